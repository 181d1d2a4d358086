# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""safetensors headers and indexes: every way to be broken has its message."""

from __future__ import annotations

import io
import json
import struct

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _safetensors
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput


def tensor(dtype="F32", shape=(2, 2), offsets=(0, 16)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def build(header, data: int, length=None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data)


GOOD = {"__metadata__": {"format": "pt"}, "b": tensor("BF16", (4,), (16, 24)), "a": tensor(), "s": tensor("I8", (), (24, 25))}


def read(raw: bytes):
    return _safetensors.read_header(io.BytesIO(raw), len(raw), "m.safetensors")


def test_a_good_shard_in_the_order_of_its_data():
    assert [(one.name, one.begin, one.end) for one in read(build(GOOD, 25))] == [("a", 0, 16), ("b", 16, 24), ("s", 24, 25)]


def test_padding_after_the_header_and_four_bit_numbers_are_allowed():
    raw = json.dumps({"a": tensor("F4", (3, 2), (0, 3))}).encode() + b"     "
    assert read(build(raw, 3))[0].dtype == "F4"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "truncated"),
        (b"1234567", "truncated"),
        (build(GOOD, 24), "truncated: expected .* first 's'"),
        (build(GOOD, 0), "3 tensors are cut off, first 'a'"),
        (build(GOOD, 26), "1 bytes after the last tensor"),
        (build(GOOD, 25, length=1 << 40), "header length"),
        (build(GOOD, 25, length=5000), "header alone needs"),
        (b"<html><body>no such model</body></html>", "header length"),
        (build(b"[1]", 0), "begins with"),
        (build(b"{", 0), "no valid JSON"),
        (build(b'{"a": 1, "a": 2}', 0), "'a' occurs twice"),
        (build({"a": 1}, 0), "'a': has no description"),
        (build({"__metadata__": {}}, 0), "no tensors"),
        (build({"a": tensor(shape=[2, -2])}, 16), "'a': shape"),
        (build({"a": tensor(shape=[2, True])}, 16), "'a': shape"),
        (build({"a": tensor(offsets=(16, 0))}, 16), "'a': data_offsets"),
        (build({"a": tensor(offsets=(0,))}, 16), "'a': data_offsets"),
        (build({"a": tensor(offsets=(0, 8))}, 8), "'a': F32 .* takes 16 bytes"),
        (build({"a": tensor(), "b": tensor(offsets=(8, 24))}, 24), "'b' overlaps 'a'"),
        (build({"a": tensor(), "b": tensor(offsets=(20, 36))}, 36), "4 bytes before tensor 'b'"),
    ],
)
def test_damage_is_named(raw, says):
    with pytest.raises(LLMError, match=says) as caught:
        read(raw)
    assert str(caught.value).startswith("m.safetensors: ")


def test_the_unknown_is_never_ok():
    with pytest.raises(UnknownOutput, match="'a': dtype 'Q3'"):
        read(build({"a": tensor("Q3")}, 16))


def test_every_cut_is_an_error():
    raw = build(GOOD, 25)
    for length in range(len(raw)):
        with pytest.raises(LLMError):
            read(raw[:length])


MAP = {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}


def test_an_index_that_agrees():
    raw = json.dumps({"metadata": {}, "weight_map": MAP}).encode()
    assert _safetensors.parse_index(raw, "i") == MAP
    assert _safetensors.check_index(MAP, {"1.safetensors": ["b", "a"], "2.safetensors": ["c"]}, "i") == []


@pytest.mark.parametrize(
    ("shards", "says"),
    [
        ({"1.safetensors": ["a", "b"]}, "names shard 2.safetensors for 1 tensors"),
        ({"1.safetensors": ["a", "b"], "2.safetensors": ["c"], "3.safetensors": ["d"]}, "3.safetensors is beside it"),
        ({"1.safetensors": ["a"], "2.safetensors": ["c"]}, "1 tensors are not in shard 1.safetensors, first 'b'"),
        ({"1.safetensors": ["a", "b"], "2.safetensors": ["c", "x"]}, "2.safetensors holds 1 tensors .* first 'x'"),
    ],
)
def test_an_index_that_disagrees_is_named_both_ways(shards, says):
    lines = _safetensors.check_index(MAP, shards, "i")
    assert len(lines) == 1
    with pytest.raises(LLMError, match=says):
        raise LLMError(lines[0])


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": "../x"}, {"a": "d/x"}, {"a": 1}, {"a": ".."}])
def test_an_index_that_is_none_is_refused(weight_map):
    with pytest.raises(LLMError, match="i: "):
        _safetensors.parse_index(json.dumps({"weight_map": weight_map}).encode(), "i")
