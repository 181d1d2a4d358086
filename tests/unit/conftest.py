# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make ``ansible_collections.ironserve.llm`` importable, from the checkout as from an installed collection."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def collections_path(root: Path) -> Path:
    """Return the directory that holds ``ansible_collections/ironserve/llm`` for the tree at ``root``."""
    if root.parts[-3:] == ("ansible_collections", "ironserve", "llm"):
        return root.parents[2]
    link = root / "collections"
    if (link / "ansible_collections" / "ironserve" / "llm").resolve() != root:
        raise RuntimeError(f"{link}/ansible_collections/ironserve/llm does not lead back to {root}")
    return link


def install_loader() -> None:
    """Install ansible's own collection loader, once: plain sys.path would miss its rules about redirects."""
    from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

    if not any(isinstance(finder, _AnsibleCollectionFinder) for finder in sys.meta_path):
        _AnsibleCollectionFinder(paths=[str(collections_path(ROOT))])._install()


install_loader()
# Tests use the fault zoo of tests/faults; the checkout's pyproject.toml says the same, an installed collection has none.
if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))
