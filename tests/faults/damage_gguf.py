# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make a GGUF copy that is valid in every way but whose mathematics are broken.

The key projections of the first three layers become zero (a zero block is a zero in every number format), so that
attention there is blind. The copy loads, lists, answers 200, and its checksum is its own: only asking it shows the
damage. The same input always gives the same bytes.

Usage: damage_gguf.py SRC DST     prints {"path", "size", "sha256"} of DST as JSON, ready for a manifest.
Exit status: 0 made, 1 not a GGUF file or without those tensors, 2 wrong usage.
"""

from __future__ import annotations

import json
import os
import shutil
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPOSITORY, "collections"))

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError  # noqa: E402
from ansible_collections.ironserve.llm.plugins.module_utils._gguf import read_header  # noqa: E402
from ansible_collections.ironserve.llm.plugins.module_utils._manifest import sha256_of  # noqa: E402

TENSORS = ("blk.0.attn_k.weight", "blk.1.attn_k.weight", "blk.2.attn_k.weight")
_CHUNK = 1 << 20


def damage(source: str, target: str, names: tuple[str, ...] = TENSORS) -> dict:
    """Copy ``source`` to ``target`` with the data of the named tensors zeroed; ``target`` appears only when it is whole.

    Returns the manifest entry of the copy, its path relative to its directory. Raises LLMError, OSError.
    """
    with open(source, "rb") as handle:
        header = read_header(handle, os.fstat(handle.fileno()).st_size, source)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    absent = [name for name in names if name not in tensors]
    if absent:
        raise LLMError("{0}: has no tensor {1}".format(source, ", ".join(absent)))
    part = target + ".part"
    try:
        shutil.copyfile(source, part)
        with open(part, "r+b") as handle:
            for name in names:
                handle.seek(tensors[name].offset)
                left = tensors[name].size
                while left:
                    left -= handle.write(bytes(min(_CHUNK, left)))
        os.replace(part, target)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    digest, status, _stable = sha256_of(target)
    return {"path": os.path.basename(target), "size": status.st_size, "sha256": digest}


def main(argv: list[str]) -> int:
    """Entry point."""
    if len(argv) != 3 or argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        print(json.dumps(damage(argv[1], argv[2]), sort_keys=True))
    except (LLMError, OSError) as exc:
        print("damage_gguf: {0}".format(exc), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
