# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""GGUF headers: every way to be broken has its message, and no tensor data is read."""

from __future__ import annotations

import io
import os
import struct

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _gguf
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

ALIGNMENT = 32


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def build(tensors, keys=(), version=3, tail=b"", pad_last=True, cut=0, counts=None) -> bytes:
    """A GGUF file; ``tensors`` is a list of (name, shape, type number, offset or None, bytes)."""
    head = b"GGUF" + struct.pack("<I", version)
    head += struct.pack("<QQ", *(counts or (len(tensors), len(keys))))
    for key, kind, raw in keys:
        head += text(key) + struct.pack("<I", kind) + raw
    offset, data = 0, b""
    for name, shape, kind, at, size in tensors:
        at = offset if at is None else at
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", extent) for extent in shape)
        head += struct.pack("<IQ", kind, at)
        data = data.ljust(at, b"\0") + b"\x55" * size
        offset = -(-(at + size) // ALIGNMENT) * ALIGNMENT
    head = head.ljust(-(-len(head) // ALIGNMENT) * ALIGNMENT, b"\0")
    if pad_last:
        data = data.ljust(-(-len(data) // ALIGNMENT) * ALIGNMENT, b"\0")
    whole = head + data + tail
    return whole[: len(whole) - cut]


GOOD = [("a.weight", (32, 4), 3, None, 80), ("b.weight", (5,), 0, None, 20), ("c.weight", (256, 2), 12, None, 288)]
KEYS = [
    ("general.architecture", 8, text("llama")),
    ("tokens", 9, struct.pack("<IQ", 8, 3) + text("x") + text("") + text("yz")),
    ("scores", 9, struct.pack("<IQ", 6, 3) + struct.pack("<3f", 1, 2, 3)),
    ("nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 4, 2) + struct.pack("<II", 1, 2)),
    ("flag", 7, b"\x01"),
    ("n", 10, struct.pack("<Q", 7)),
]


def read(raw: bytes):
    return _gguf.read_header(io.BytesIO(raw), len(raw), "m.gguf")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("pad_last", [True, False])
def test_a_good_file(version, pad_last):
    header = read(build(GOOD, KEYS, version, pad_last=pad_last))
    assert header.version == version
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["tokens"] == {"type": 8, "count": 3}
    assert (header.metadata["flag"], header.metadata["n"]) == (True, 7)
    assert [(one.name, one.type_name, one.shape, one.size) for one in header.tensors] == [
        ("a.weight", "Q4_1", (32, 4), 80),
        ("b.weight", "F32", (5,), 20),
        ("c.weight", "Q4_K", (256, 2), 288),
    ]
    assert [one.offset - header.data_start for one in header.tensors] == [0, 96, 128]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "truncated"),
        (b"GGUF", "truncated"),
        (b"<html>....", "no GGUF file"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
        (build(GOOD, KEYS, counts=(1 << 60, 1)), "more than its .* bytes can describe"),
        (build(GOOD, KEYS, counts=(1, 1 << 60)), "more than its .* bytes can describe"),
        (build(GOOD, [("k", 8, struct.pack("<Q", 1 << 40))]), "key 'k' needs"),
        (build(GOOD, [("k", 9, struct.pack("<IQ", 8, 1 << 50))]), "key 'k' claims"),
        (build(GOOD, [("k", 4, bytes(4)), ("k", 4, bytes(4))]), "key 'k' occurs twice"),
        (build(GOOD, [("general.alignment", 4, struct.pack("<I", 48))]), "power of two"),
        (build([GOOD[0], GOOD[0]]), "'a.weight' occurs twice"),
        (build([("a", (33, 1), 3, None, 20)]), "'a' has rows of 33"),
        (build([("a", (), 0, None, 4)]), "'a' has 0 dimensions"),
        (build([("a", (0,), 0, None, 0)]), "'a' has no elements"),
        (build([("a", (8,), 0, 4, 32)]), "'a' starts at 4"),
        (build([("a", (32,), 0, None, 128), ("b", (8,), 0, 64, 32)]), "'b' .* overlaps 'a'"),
        (build([("a", (8,), 0, None, 32), ("b", (8,), 0, 128, 32)]), "before tensor 'b'"),
        (build(GOOD, tail=bytes(64)), "after the last tensor"),
        (build(GOOD, KEYS, pad_last=False, cut=1), "truncated: tensor 'c.weight'"),
        (build([], KEYS), "no tensors"),
    ],
)
def test_damage_is_named(raw, says):
    with pytest.raises(LLMError, match=says) as caught:
        read(raw)
    assert str(caught.value).startswith("m.gguf: ")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (build(GOOD, version=4), "version 4"),
        (build([("a", (8,), 99, None, 32)]), "'a' has tensor type 99"),
        (build(GOOD, [("k", 77, b"")]), "key 'k' has value type 77"),
    ],
)
def test_the_unknown_is_never_ok(raw, says):
    with pytest.raises(UnknownOutput, match=says):
        read(raw)


def test_every_cut_inside_the_header_is_an_error_and_never_a_crash():
    raw = build(GOOD, KEYS)
    for length in range(read(raw).data_start):
        with pytest.raises(LLMError):
            read(raw[:length])


def test_a_vocabulary_larger_than_the_read_ahead_is_stepped_over(monkeypatch):
    monkeypatch.setattr(_gguf, "_CHUNK", 64)
    words = [f"token{number}" for number in range(500)]
    keys = [("tokens", 9, struct.pack("<IQ", 8, len(words)) + b"".join(text(word) for word in words)), *KEYS[2:]]
    assert len(read(build(GOOD, keys)).tensors) == 3


def test_no_tensor_data_is_read(tmp_path):
    """A sparse file of 64 GiB is judged by its header alone."""
    size = 64 << 30
    raw = build([("a", (size,), 24, None, 0)])
    path = tmp_path / "big.gguf"
    path.write_bytes(raw)
    os.truncate(path, len(raw) + size)
    with open(path, "rb") as handle:
        assert _gguf.read_header(handle, len(raw) + size, "big").tensors[0].size == size
        assert handle.tell() <= len(raw) + _gguf._CHUNK
