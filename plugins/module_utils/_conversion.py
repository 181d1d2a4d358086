# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make the Hugging Face layout of a model from its GGUF file. Private to the collection.

The same file always gives the same bytes, on every machine and Python: a recipe can pin their sha256. Known are Llama models
with a byte-level BPE vocabulary, in the number formats below; anything else is refused.

Sources: ggml's block formats (Q4_1: scale, minimum, 16 bytes with two numbers each; Q8_0: scale, 32 signed bytes); llama.cpp's
convert_hf_to_gguf.py (names of tensors, order of rows of the rotary projections); safetensors' format description.
"""

from __future__ import annotations

import array
import json
import os
import struct
import sys
from typing import IO, Any, Callable, Iterator

from ansible_collections.ironserve.llm.plugins.module_utils import _gguf
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

#: Files that ``convert`` makes.
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

#: GGUF name -> name in the other layout.
_WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
_IN_BLOCK = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}

#: How llama.cpp's name of a splitting rule is written as steps of a tokenizer.
_SPLITTERS = {
    "gpt-2": [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}],
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}
#: Token type of markers such as <|im_end|>, which text is never split across.
_CONTROL = 3

_PAD = bytes(240)
_LOW = bytes(number & 15 for number in range(256))
_HIGH = bytes(number >> 4 for number in range(256))


def _bf16(values: tuple[float, ...]) -> bytes:
    """Round to bfloat16, ties to even, little-endian."""
    words = struct.unpack("<{0}I".format(len(values)), struct.pack("<{0}f".format(len(values)), *values))
    out = array.array("H", [(word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words])
    if sys.byteorder == "big":
        out.byteswap()
    return out.tobytes()


def _from_f32(data: bytes) -> bytes:
    return _bf16(struct.unpack("<{0}f".format(len(data) // 4), data))


def _from_q8_0(data: bytes) -> bytes:
    numbers = struct.Struct("<32b").unpack
    out = []
    for scale, packed in struct.iter_unpack("<e32s", data):
        out.append(_bf16([scale * number for number in numbers(packed)]))
    return b"".join(out)


def _from_q4_1(data: bytes) -> bytes:
    steps = range(16)
    low, high = [], []
    for scale, minimum, packed in struct.iter_unpack("<ee16s", data):
        table = _bf16([scale * step + minimum for step in steps])
        numbers = packed.translate(_LOW) + packed.translate(_HIGH)
        low.append(numbers.translate(table[0::2] + _PAD))
        high.append(numbers.translate(table[1::2] + _PAD))
    out = bytearray(len(data) // 20 * 64)
    out[0::2] = b"".join(low)
    out[1::2] = b"".join(high)
    return bytes(out)


_NUMBERS: dict[str, Callable[[bytes], bytes]] = {"F32": _from_f32, "Q8_0": _from_q8_0, "Q4_1": _from_q4_1}


def _rotary_rows(data: bytes, heads: int, rows: int) -> bytes:
    """Put the rows of a rotary projection back: GGUF has the two halves of each head interleaved."""
    width, size = len(data) // rows, rows // heads
    order = (head * size + pair * 2 + half for head in range(heads) for half in (0, 1) for pair in range(size // 2))
    return b"".join(data[row * width : (row + 1) * width] for row in order)


class _Model:
    """A GGUF file with its header read. Raises LLMError for a model this file does not know how to convert."""

    def __init__(self, path: str, handle: IO[bytes]) -> None:
        self.path = path
        self.handle = handle
        self.header = _gguf.read_header(handle, os.fstat(handle.fileno()).st_size, path, arrays=True)
        self.data = self.header.metadata
        for key, known in (
            ("general.architecture", ["llama"]),
            ("tokenizer.ggml.model", ["gpt2"]),
            ("tokenizer.ggml.pre", sorted(_SPLITTERS)),
        ):
            if self.get(key) not in known:
                raise UnknownOutput("{0}: {1} is {2!r}; this collection converts {3}".format(path, key, self.get(key), ", ".join(known)))

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the header; without ``default`` it must be there."""
        value = self.data.get(key, default)
        if value is None:
            raise LLMError("{0}: its header lacks {1}, which a conversion needs".format(self.path, key))
        return value

    def tensors(self) -> list[tuple[str, _gguf.Tensor]]:
        """Pairs of new name and tensor, by new name."""
        found = []
        for tensor in self.header.tensors:
            name = _WHOLE.get(tensor.name)
            parts = tensor.name.split(".", 2)
            if name is None and len(parts) == 3 and parts[0] == "blk" and parts[2] in _IN_BLOCK:
                name = "model.layers.{0}.{1}".format(parts[1], _IN_BLOCK[parts[2]])
            if name is None:
                raise UnknownOutput("{0}: tensor {1!r} has no known place in the other layout".format(self.path, tensor.name))
            if tensor.type_name not in _NUMBERS:
                raise UnknownOutput(
                    "{0}: tensor {1!r} has numbers of type {2}; this collection converts {3}".format(
                        self.path, tensor.name, tensor.type_name, ", ".join(sorted(_NUMBERS))
                    )
                )
            found.append((name, tensor))
        return sorted(found)

    def pieces(self, tensor: _gguf.Tensor) -> Iterator[bytes]:
        """The tensor's numbers as bfloat16, in the order of the other layout, in pieces of bounded size."""
        convert = _NUMBERS[tensor.type_name]
        heads = {"attn_q.weight": "llama.attention.head_count", "attn_k.weight": "llama.attention.head_count_kv"}.get(
            tensor.name.split(".", 2)[-1]
        )
        self.handle.seek(tensor.offset)
        if heads:
            yield _rotary_rows(convert(self.handle.read(tensor.size)), self.get(heads), tensor.shape[1])
            return
        rows = tensor.size // (tensor.shape[1] if len(tensor.shape) > 1 else 1)
        step = max(1, (1 << 20) // rows) * rows
        left = tensor.size
        while left:
            raw = self.handle.read(min(step, left))
            left -= len(raw)
            yield convert(raw)


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode("utf-8")


def _config(model: _Model) -> dict[str, Any]:
    heads, width = model.get("llama.attention.head_count"), model.get("llama.embedding_length")
    theta = float(model.get("llama.rope.freq_base"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": model.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": model.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": model.get("tokenizer.ggml.padding_token_id", model.get("tokenizer.ggml.eos_token_id")),
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "head_dim": width // heads,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": model.get("llama.feed_forward_length"),
        "max_position_embeddings": model.get("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": model.get("llama.block_count"),
        "num_key_value_heads": model.get("llama.attention.head_count_kv"),
        # GGUF keeps a 4-byte number; its shortest spelling is what was meant.
        "rms_norm_eps": float("{0:.6g}".format(model.get("llama.attention.layer_norm_rms_epsilon"))),
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "rope_theta": theta,
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in model.header.tensors),
        "use_cache": True,
        "vocab_size": len(model.get("tokenizer.ggml.tokens")),
    }


def _tokenizer(model: _Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Contents of tokenizer.json and tokenizer_config.json."""
    tokens, kinds = model.get("tokenizer.ggml.tokens"), model.get("tokenizer.ggml.token_type")
    markers = [number for number, kind in enumerate(kinds) if kind == _CONTROL]
    added = [
        {
            "id": number,
            "content": tokens[number],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number in markers
    ]
    unknown = tokens[model.get("tokenizer.ggml.unknown_token_id", model.get("tokenizer.ggml.eos_token_id"))]
    steps = _SPLITTERS[model.get("tokenizer.ggml.pre")]
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in model.get("tokenizer.ggml.merges")],
        },
    }
    settings = {
        "added_tokens_decoder": {str(item["id"]): {key: value for key, value in item.items() if key != "id"} for item in added},
        "add_prefix_space": False,
        "bos_token": tokens[model.get("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[model.get("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[model.get("tokenizer.ggml.padding_token_id", model.get("tokenizer.ggml.eos_token_id"))],
        "unk_token": unknown,
        "clean_up_tokenization_spaces": False,
        "chat_template": model.get("tokenizer.chat_template", ""),
        "model_max_length": model.get("llama.context_length"),
        # The class that takes tokenizer.json as it is; those named after models rebuild it and lose the splitting of digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return whole, settings


def _write_tensors(model: _Model, target: str) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    tensors = model.tensors()
    for name, tensor in tensors:
        elements = 1
        for extent in tensor.shape:
            elements *= extent
        header[name] = {"dtype": "BF16", "shape": list(reversed(tensor.shape)), "data_offsets": [at, at + 2 * elements]}
        at += 2 * elements
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _name, tensor in tensors:
            for piece in model.pieces(tensor):
                out.write(piece)


def convert(source: str, folder: str) -> None:
    """Write ``FILES``, made from the GGUF file ``source``, into the existing directory ``folder``.

    Takes about half a minute of one core for 135 million numbers. Raises LLMError naming the file for anything that cannot be
    converted, OSError for a disk that fails.
    """
    with open(source, "rb") as handle:
        model = _Model(source, handle)
        config = _config(model)
        tokenizer, settings = _tokenizer(model)
        ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        small = {"config.json": config, "generation_config.json": ends, "tokenizer.json": tokenizer, "tokenizer_config.json": settings}
        for name, content in small.items():
            with open(os.path.join(folder, name), "wb") as out:
                out.write(_json(content))
        _write_tensors(model, os.path.join(folder, "model.safetensors"))
