# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make a GGUF copy with fewer layers and a longer window, for tests of long prompts.

The copy loads and answers, and reads a prompt of tens of thousands of tokens in a minute instead of hours. What it says is noise.
The same input always gives the same bytes.

Usage: cut_gguf.py SRC DST LAYERS CONTEXT     prints {"path", "size", "sha256"} of DST as JSON, ready for a manifest.
Exit status: 0 made, 1 not a GGUF file or without such layers, 2 wrong usage.
"""

from __future__ import annotations

import json
import os
import struct
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPOSITORY, "collections"))

from ansible_collections.ironserve.llm.plugins.module_utils import _gguf  # noqa: E402
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError  # noqa: E402
from ansible_collections.ironserve.llm.plugins.module_utils._manifest import sha256_of  # noqa: E402

_UINT32 = 4
_CHUNK = 1 << 20


def _text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _keys(handle, size: int, label: str) -> list[tuple[str, int, int]]:
    """Every key, where its entry begins and where it ends, in bytes from the start."""
    handle.seek(0)
    reader = _gguf._Reader(handle, size, label)
    reader.skip(16, "the start of the header")
    count = reader.unpack("Q", "the key count")
    found = []
    for number in range(count):
        begin = reader.position
        key = reader.text("key {0}".format(number))
        kind = reader.unpack("I", key)
        _gguf._value(reader, kind, key)
        found.append((key, begin, reader.position))
    return found


def cut(source: str, target: str, layers: int, context: int) -> dict:
    """Copy ``source`` to ``target`` with its first ``layers`` layers and a window of ``context`` tokens.

    Returns the manifest entry of the copy, its path relative to its directory. Raises LLMError, OSError.
    """
    with open(source, "rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        header = _gguf.read_header(handle, size, source)
        kind = header.metadata.get("general.architecture")
        changes = {"{0}.block_count".format(kind): layers, "{0}.context_length".format(kind): context}
        have = header.metadata.get("{0}.block_count".format(kind), 0)
        if not 0 < layers <= have:
            raise LLMError("{0}: has {1} layers, {2} were asked for".format(source, have, layers))
        keys = _keys(handle, size, source)
        handle.seek(0)
        raw = handle.read(header.data_start)
        numbers = {name: number for number, (name, _per_block, _bytes) in _gguf.TENSOR_TYPES.items()}
        kept = [tensor for tensor in header.tensors if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) < layers]
        alignment = header.metadata.get("general.alignment", 32)
        head = b"GGUF" + struct.pack("<IQQ", header.version, len(kept), len(keys))
        for key, begin, end in keys:
            if key in changes:
                head += _text(key) + struct.pack("<II", _UINT32, changes[key])
            else:
                head += raw[begin:end]
        at = 0
        for tensor in kept:
            head += (
                _text(tensor.name) + struct.pack("<I", len(tensor.shape)) + struct.pack("<{0}Q".format(len(tensor.shape)), *tensor.shape)
            )
            head += struct.pack("<IQ", numbers[tensor.type_name], at)
            at = -(-(at + tensor.size) // alignment) * alignment
        with open(target, "wb") as out:
            out.write(head.ljust(-(-len(head) // alignment) * alignment, b"\0"))
            for tensor in kept:
                handle.seek(tensor.offset)
                left = tensor.size
                while left:
                    left -= out.write(handle.read(min(_CHUNK, left)))
                out.write(bytes(-tensor.size % alignment))
    digest, status, _stable = sha256_of(target)
    return {"path": os.path.basename(target), "size": status.st_size, "sha256": digest}


def main(argv: list[str]) -> int:
    """Entry point."""
    if len(argv) != 5 or not all(word.isdigit() for word in argv[3:]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        print(json.dumps(cut(argv[1], argv[2], int(argv[3]), int(argv[4])), sort_keys=True))
    except (LLMError, OSError) as exc:
        print("cut_gguf: {0}".format(exc), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
