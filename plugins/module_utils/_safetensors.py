# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Structure of safetensors shards and their index from headers alone. Private to the collection.

A shard is an 8-byte little-endian length, that many bytes of JSON ``{name: {dtype, shape, data_offsets}}`` and the
data. Source: the safetensors format description (its README, section "Format").
"""

from __future__ import annotations

import json
import struct
from typing import IO, Any, NamedTuple

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

#: dtype -> bits an element.
DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}

#: The format's own limit on the JSON, bytes.
MAX_HEADER = 100000000


class Tensor(NamedTuple):
    """One tensor: ``begin`` and ``end`` are bytes from the start of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict but refuse a name that occurs twice: JSON readers silently keep one of them."""
    result = dict(pairs)
    if len(result) != len(pairs):
        seen = set()
        for key, _value in pairs:
            if key in seen:
                raise LLMError("name {0!r} occurs twice".format(key))
            seen.add(key)
    return result


def parse_json(raw: bytes, label: str) -> dict[str, Any]:
    """Parse a JSON object whose names are unique. Raises LLMError that begins with ``label``."""
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, LLMError, RecursionError) as exc:
        raise LLMError("{0}: is no valid JSON ({1}): damaged; fetch it again".format(label, exc)) from exc
    if not isinstance(data, dict):
        raise LLMError("{0}: is no JSON object: damaged; fetch it again".format(label))
    return data


def read_header(handle: IO[bytes], size: int, label: str) -> list[Tensor]:
    """Read and check the header of one shard of ``size`` bytes; tensors come back in the order of their data.

    Raises LLMError for damage, UnknownOutput for a dtype this collection does not know.
    """
    first = handle.read(8)
    if len(first) < 8:
        raise LLMError("{0}: truncated: {1} bytes, not even a header length; fetch it again".format(label, size))
    length = struct.unpack("<Q", first)[0]
    if length > MAX_HEADER:
        raise LLMError(
            "{0}: is no safetensors file or damaged: header length {1}, the limit is {2} bytes".format(label, length, MAX_HEADER)
        )
    if 8 + length > size:
        raise LLMError("{0}: truncated: the header alone needs {1} bytes, the file has {2}; fetch it again".format(label, 8 + length, size))
    raw = handle.read(length)
    if len(raw) < length:
        raise LLMError("{0}: truncated inside its header; fetch it again".format(label))
    if not raw.startswith(b"{"):
        raise LLMError("{0}: is no safetensors file: its header begins with {1!r}".format(label, raw[:8]))
    tensors = []
    for name, about in parse_json(raw, "{0}: header".format(label)).items():
        if name != "__metadata__":
            tensors.append(_tensor(name, about, label))
    if not tensors:
        raise LLMError("{0}: holds no tensors".format(label))
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    position, previous = 0, None
    for tensor in tensors:
        if tensor.begin < position:
            raise LLMError("{0}: tensor {1!r} overlaps {2!r}: damaged header".format(label, tensor.name, previous))
        if tensor.begin > position:
            raise LLMError("{0}: {1} bytes before tensor {2!r} belong to nobody".format(label, tensor.begin - position, tensor.name))
        position, previous = tensor.end, tensor.name
    expected = 8 + length + position
    if size < expected:
        broken = [tensor.name for tensor in tensors if 8 + length + tensor.end > size]
        raise LLMError(
            "{0}: truncated: expected {1} bytes, found {2}; {3} tensors are cut off, first {4!r}; fetch it again".format(
                label, expected, size, len(broken), broken[0]
            )
        )
    if size > expected:
        raise LLMError("{0}: {1} bytes after the last tensor belong to nobody".format(label, size - expected))
    return tensors


def _whole(values: Any) -> bool:
    """Whether this is a list of numbers that are not negative; JSON's true is a number to Python."""
    if not isinstance(values, list):
        return False
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            return False
    return True


def _tensor(name: str, about: Any, label: str) -> Tensor:
    """One entry of a header. Called for tens of thousands, so nothing is formatted until something is wrong."""
    if not isinstance(about, dict):
        raise LLMError("{0}: tensor {1!r}: has no description: damaged header".format(label, name))
    dtype, shape, offsets = about.get("dtype"), about.get("shape"), about.get("data_offsets")
    if not _whole(shape):
        raise LLMError("{0}: tensor {1!r}: shape is {2!r}: damaged header".format(label, name, shape))
    if not _whole(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LLMError("{0}: tensor {1!r}: data_offsets are {2!r}: damaged header".format(label, name, offsets))
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise UnknownOutput("{0}: tensor {1!r}: dtype {2!r}, which this collection does not know".format(label, name, dtype))
    for extent in shape:
        bits *= extent
    begin, end = offsets
    if bits != 8 * (end - begin):
        raise LLMError(
            "{0}: tensor {1!r}: {2} {3} takes {4} bytes, data_offsets give it {5}: damaged header".format(
                label, name, dtype, shape, bits // 8, end - begin
            )
        )
    return Tensor(name, dtype, tuple(shape), begin, end)


def parse_index(raw: bytes, label: str) -> dict[str, str]:
    """Read an index file: tensor name -> shard file name (relative to the index). Raises LLMError."""
    weight_map = parse_json(raw, label).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LLMError("{0}: has no weight_map: damaged or not an index".format(label))
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or "/" in shard or shard in ("", ".", ".."):
            raise LLMError("{0}: tensor {1!r} is said to be in {2!r}, which is no file name".format(label, tensor, shard))
    return weight_map


def check_index(weight_map: dict[str, str], shards: dict[str, list[str]], label: str) -> list[str]:
    """Hold an index against the shards beside it, both ways.

    Args:
        weight_map: tensor -> shard, see ``parse_index``.
        shards: shard file name -> the tensor names its header holds.
        label: the index, for messages.

    Returns one line per disagreement, at most one a shard and kind, with counts and the first name.
    """
    lines = []
    wanted = {}
    for tensor, shard in weight_map.items():
        wanted.setdefault(shard, set()).add(tensor)
    for shard in sorted(set(wanted) | set(shards)):
        if shard not in shards:
            lines.append("{0}: names shard {1} for {2} tensors, and there is no such shard".format(label, shard, len(wanted[shard])))
            continue
        if shard not in wanted:
            lines.append("{0}: shard {1} is beside it and named by nobody".format(label, shard))
            continue
        absent = sorted(wanted[shard] - set(shards[shard]))
        if absent:
            lines.append("{0}: {1} tensors are not in shard {2}, first {3!r}".format(label, len(absent), shard, absent[0]))
        unnamed = sorted(set(shards[shard]) - wanted[shard])
        if unnamed:
            lines.append(
                "{0}: shard {1} holds {2} tensors the index does not place there, first {3!r}".format(
                    label, shard, len(unnamed), unnamed[0]
                )
            )
    return lines
