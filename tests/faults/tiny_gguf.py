# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A GGUF file of a few hundred bytes that is valid in structure, for tests that need a file and no model."""

from __future__ import annotations

import struct

_ALIGNMENT = 32
_Q4_1 = 3


def _text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def tiny_gguf(
    names: tuple[str, ...] = ("token_embd.weight", "output.weight"), fill: int = 0x55, keys: dict[str, int] | None = None
) -> bytes:
    """Build a version 3 file whose tensors ``names`` are Q4_1 of 32 x 2 elements (40 bytes each), every byte ``fill``.

    ``keys`` are more numbers for the header.
    """
    keys = keys or {}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), 1 + len(keys))
    head += _text("general.architecture") + struct.pack("<I", 8) + _text("llama")
    for key, value in keys.items():
        head += _text(key) + struct.pack("<II", 4, value)
    data = b""
    for name in names:
        head += _text(name) + struct.pack("<IQQIQ", 2, 32, 2, _Q4_1, len(data))
        data += (bytes([fill]) * 40).ljust(64, b"\0")
    return head.ljust(-(-len(head) // _ALIGNMENT) * _ALIGNMENT, b"\0") + data
