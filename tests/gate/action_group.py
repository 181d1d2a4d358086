#!/usr/bin/env python3
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the action group of meta/runtime.yml from the modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def rewritten(runtime: str, modules: list[str]) -> str:
    """The text of meta/runtime.yml with exactly ``modules`` in the group ``llm``, sorted."""
    group = "".join(f"    - {name}\n" for name in sorted(modules))
    return re.sub(r"(?m)^  llm:\n(?:    - .*\n)*", f"  llm:\n{group}", runtime)


if __name__ == "__main__":
    path = ROOT / "meta/runtime.yml"
    path.write_text(rewritten(path.read_text(), [module.stem for module in ROOT.glob("plugins/modules/*.py")]))
