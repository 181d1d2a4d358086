# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Structure of a GGUF file from its header alone, no tensor data read. Private to the collection.

Source: ggml documentation, docs/gguf.md (versions 2 and 3); block sizes from ggml's type traits.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import IO, Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

#: Tensor type number -> (name, elements a block, bytes a block).
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}

# Value type number -> struct code; 8 is a string and 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9

_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_NAME = 65535
_CHUNK = 4 << 20


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor: ``offset`` and ``size`` are bytes, the offset counted from the start of the file."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclasses.dataclass
class Header:
    """What the header says.

    Attributes:
        version: 2 or 3.
        metadata: key -> value; arrays are given as ``{"type": <number>, "count": <length>}``, their items are skipped.
        tensors: in the order of the header.
        data_start: where tensor data begins, in bytes from the start of the file.
        file_size: bytes of the file.
    """

    version: int
    metadata: dict[str, Any]
    tensors: list[Tensor]
    data_start: int
    file_size: int


class _Reader:
    """A cursor over the header that reads ahead in big pieces and never past the end of the file."""

    def __init__(self, handle: IO[bytes], size: int, label: str) -> None:
        self.handle = handle
        self.size = size
        self.label = label
        self.buffer = b""
        self.at = 0
        self.base = 0

    @property
    def position(self) -> int:
        return self.base + self.at

    def need(self, count: int, what: str) -> None:
        """Have ``count`` bytes ready at the cursor, or say what was cut off."""
        if len(self.buffer) - self.at >= count:
            return
        if count > self.size - self.position:
            raise LLMError(
                "{0}: truncated or damaged: {1} needs {2} bytes at offset {3}, the file ends at {4}; fetch it again".format(
                    self.label, what, count, self.position, self.size
                )
            )
        rest = self.buffer[self.at :]
        self.base += self.at
        self.at = 0
        self.buffer = rest + self.handle.read(max(count - len(rest), _CHUNK))
        if len(self.buffer) < count:
            raise LLMError("{0}: truncated: {1} ends before its {2} bytes; fetch it again".format(self.label, what, count))

    def unpack(self, code: str, what: str) -> Any:
        width = struct.calcsize("<" + code)
        self.need(width, what)
        value = struct.unpack_from("<" + code, self.buffer, self.at)[0]
        self.at += width
        return value

    def skip(self, count: int, what: str) -> None:
        while count:
            self.need(min(count, _CHUNK), what)
            step = min(count, len(self.buffer) - self.at)
            self.at += step
            count -= step

    def text(self, what: str, limit: int | None = None) -> str:
        length = self.unpack("Q", what)
        if limit is not None and length > limit:
            raise LLMError("{0}: {1} claims to be {2} bytes long: damaged header; fetch it again".format(self.label, what, length))
        self.need(length, what)
        raw = self.buffer[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise LLMError("{0}: {1} is not UTF-8: damaged header; fetch it again".format(self.label, what)) from exc

    def skip_texts(self, count: int, what: str) -> None:
        """Step over ``count`` strings; vocabularies have hundreds of thousands, so this loop is kept bare."""
        unpack = struct.Struct("<Q").unpack_from
        for _number in range(count):
            if len(self.buffer) - self.at < 8:
                self.need(8, what)
            length = unpack(self.buffer, self.at)[0]
            self.at += 8
            if len(self.buffer) - self.at < length:
                self.need(length, what)
            self.at += length


def _value(reader: _Reader, kind: int, what: str, depth: int = 0, keep: bool = False) -> Any:
    if kind in _SCALARS:
        return reader.unpack(_SCALARS[kind], what)
    if kind == _STRING:
        return reader.text(what)
    if kind != _ARRAY or depth > 4:
        raise UnknownOutput("{0}: {1} has value type {2}, which this collection does not know".format(reader.label, what, kind))
    inner = reader.unpack("I", what)
    count = reader.unpack("Q", what)
    # every item takes at least a byte: a count beyond the file is damage, not a reason to loop for hours
    if count > reader.size:
        raise LLMError("{0}: {1} claims {2} items: damaged header; fetch it again".format(reader.label, what, count))
    if keep:
        return [_value(reader, inner, what, depth + 1, keep) for _number in range(count)]
    if inner in _SCALARS:
        reader.skip(count * struct.calcsize("<" + _SCALARS[inner]), what)
    elif inner == _STRING:
        reader.skip_texts(count, what)
    else:
        for _number in range(count):
            _value(reader, inner, what, depth + 1)
    return {"type": inner, "count": count}


def read_header(handle: IO[bytes], size: int, label: str, arrays: bool = False) -> Header:
    """Read the header of a GGUF file.

    Args:
        handle: binary file object at its start.
        size: bytes of the whole file.
        label: name for messages, such as the path.
        arrays: give arrays as lists instead of stepping over their items.

    Raises LLMError for damage, UnknownOutput for versions and types this collection does not know.
    """
    reader = _Reader(handle, size, label)
    reader.need(8, "the start of the header")
    magic = reader.buffer[:4]
    if magic != b"GGUF":
        raise LLMError("{0}: is no GGUF file: it begins with {1!r}, not b'GGUF'".format(label, magic))
    reader.at = 4
    version = reader.unpack("I", "the version")
    if version not in (2, 3):
        swapped = struct.unpack(">I", struct.pack("<I", version))[0]
        if swapped in (2, 3):
            raise LLMError("{0}: is a big-endian GGUF file; get the little-endian one".format(label))
        raise UnknownOutput("{0}: GGUF version {1}; this collection knows 2 and 3".format(label, version))
    tensor_count = reader.unpack("Q", "the tensor count")
    key_count = reader.unpack("Q", "the key count")
    # the smallest key takes 13 bytes and the smallest tensor entry 24
    if key_count * 13 + tensor_count * 24 > size:
        raise LLMError(
            "{0}: claims {1} keys and {2} tensors, more than its {3} bytes can describe: damaged header; fetch it again".format(
                label, key_count, tensor_count, size
            )
        )
    metadata = {}
    for number in range(key_count):
        key = reader.text("key {0}".format(number), _MAX_NAME)
        if key in metadata:
            raise LLMError("{0}: key {1!r} occurs twice: damaged header; fetch it again".format(label, key))
        kind = reader.unpack("I", "key {0!r}".format(key))
        metadata[key] = _value(reader, kind, "key {0!r}".format(key), keep=arrays)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise LLMError("{0}: general.alignment is {1!r}, not a power of two: damaged header".format(label, alignment))
    raw = [_tensor(reader, number) for number in range(tensor_count)]
    data_start = _align(reader.position, alignment)
    tensors = []
    for name, type_name, shape, offset, length in raw:
        if offset % alignment:
            raise LLMError("{0}: tensor {1!r} starts at {2}, not a multiple of {3}: damaged header".format(label, name, offset, alignment))
        tensors.append(Tensor(name, type_name, shape, data_start + offset, length))
    header = Header(version, metadata, tensors, data_start, size)
    _check_layout(header, alignment, label)
    return header


def _tensor(reader: _Reader, number: int) -> tuple[str, str, tuple[int, ...], int, int]:
    name = reader.text("the name of tensor {0}".format(number), _MAX_NAME)
    what = "tensor {0!r}".format(name)
    dimensions = reader.unpack("I", what)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise LLMError("{0}: {1} has {2} dimensions: damaged header; fetch it again".format(reader.label, what, dimensions))
    shape = tuple(reader.unpack("Q", what) for _dimension in range(dimensions))
    kind = reader.unpack("I", what)
    offset = reader.unpack("Q", what)
    if kind not in TENSOR_TYPES:
        raise UnknownOutput("{0}: {1} has tensor type {2}, which this collection does not know".format(reader.label, what, kind))
    type_name, per_block, block_bytes = TENSOR_TYPES[kind]
    if shape[0] % per_block:
        raise LLMError(
            "{0}: {1} has rows of {2} elements, {3} needs a multiple of {4}".format(reader.label, what, shape[0], type_name, per_block)
        )
    elements = 1
    for extent in shape:
        elements *= extent
    return name, type_name, shape, offset, elements // per_block * block_bytes


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _check_layout(header: Header, alignment: int, label: str) -> None:
    """Tensors must follow each other without overlap or hole, and end where the file ends."""
    if not header.tensors:
        raise LLMError("{0}: holds no tensors (a vocabulary alone?)".format(label))
    seen = set()
    for tensor in header.tensors:
        if tensor.name in seen:
            raise LLMError("{0}: tensor {1!r} occurs twice".format(label, tensor.name))
        seen.add(tensor.name)
        if not tensor.size:
            raise LLMError("{0}: tensor {1!r} has no elements: damaged header".format(label, tensor.name))
    end, previous = header.data_start, None
    for tensor in sorted(header.tensors, key=lambda item: item.offset):
        if tensor.offset < end:
            raise LLMError(
                "{0}: tensor {1!r} (offset {2}) overlaps {3!r}: damaged header".format(label, tensor.name, tensor.offset, previous)
            )
        if tensor.offset > _align(end, alignment):
            raise LLMError(
                "{0}: {1} bytes before tensor {2!r} belong to nobody: damaged header".format(label, tensor.offset - end, tensor.name)
            )
        end, previous = tensor.offset + tensor.size, tensor.name
        if end > header.file_size:
            raise LLMError(
                "{0}: truncated: tensor {1!r} needs the file to reach {2} bytes, it has {3}; fetch it again".format(
                    label, tensor.name, end, header.file_size
                )
            )
    if header.file_size > _align(end, alignment):
        raise LLMError("{0}: {1} bytes after the last tensor belong to nobody".format(label, header.file_size - end))
