# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Small int8 checkpoints with the names, shapes and files of Qwen3.5 and 3.6, whole or broken in one way.

``write(folder)`` makes a good one; ``write(folder, "scale_missing")`` one of ``BROKEN``; ``write_plain(folder)`` the good one
with every int8 matrix multiplied out. Numbers are random and the same every time. Ratios follow the models: one layer in four
has full attention, the others linear attention; a multi-token prediction layer; a vision tower of one block.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

#: name -> (dtype, shape)
Tensors = dict[str, tuple[str, tuple[int, ...]]]

BYTES = {"I8": 1, "BF16": 2, "F32": 4}
INDEX = "model.safetensors.index.json"
DESCRIPTION = "quant_model_description.json"

SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "group_size": None,
                "strategy": "channel",
                "dynamic": False,
                "observer": "minmax",
                "observer_kwargs": {},
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "group_size": None,
                "strategy": "token",
                "dynamic": True,
                "observer": "minmax",
                "observer_kwargs": {},
            },
        }
    },
}


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Sizes of a model; those of Qwen3.6-35B-A3B with ``FULL``."""

    layers: int = 4
    experts: int = 2
    hidden: int = 32
    intermediate: int = 16
    vocabulary: int = 64
    heads: int = 2
    kv_heads: int = 1
    head: int = 16
    k_heads: int = 2
    v_heads: int = 4
    k_dim: int = 8
    v_dim: int = 8
    vision_blocks: int = 1
    vision_hidden: int = 16
    vision_intermediate: int = 32
    positions: int = 16
    interval: int = 4
    mtp: bool = True


TINY = Geometry()
#: Four dense layers: ``experts=0`` has one MLP a layer.
DENSE = Geometry(experts=0)
#: Dense, as large as real kernels need it to be, with a word for every byte: what an engine can serve.
SERVED = Geometry(4, 0, 128, 256, 320, 4, 2, 64, 2, 4, 64, 64)
FULL = Geometry(40, 256, 2048, 512, 248320, 16, 2, 256, 16, 32, 128, 128, 27, 1152, 4304, 2304)


def _attention(prefix: str, g: Geometry, tensors: Tensors, quantized: Callable[[str, int, int], None]) -> None:
    quantized(prefix + "self_attn.q_proj", 2 * g.heads * g.head, g.hidden)
    quantized(prefix + "self_attn.k_proj", g.kv_heads * g.head, g.hidden)
    quantized(prefix + "self_attn.v_proj", g.kv_heads * g.head, g.hidden)
    quantized(prefix + "self_attn.o_proj", g.hidden, g.heads * g.head)
    for norm in ("q_norm", "k_norm"):
        tensors[prefix + "self_attn." + norm + ".weight"] = ("BF16", (g.head,))


def _gated_delta(prefix: str, g: Geometry, tensors: Tensors, quantized: Callable[[str, int, int], None]) -> None:
    mixed = 2 * g.k_dim * g.k_heads + g.v_dim * g.v_heads
    quantized(prefix + "linear_attn.in_proj_qkv", mixed, g.hidden)
    quantized(prefix + "linear_attn.in_proj_z", g.v_dim * g.v_heads, g.hidden)
    quantized(prefix + "linear_attn.in_proj_a", g.v_heads, g.hidden)
    quantized(prefix + "linear_attn.in_proj_b", g.v_heads, g.hidden)
    quantized(prefix + "linear_attn.out_proj", g.hidden, g.v_dim * g.v_heads)
    tensors[prefix + "linear_attn.conv1d.weight"] = ("BF16", (mixed, 1, 4))
    tensors[prefix + "linear_attn.A_log"] = ("F32", (g.v_heads,))
    tensors[prefix + "linear_attn.dt_bias"] = ("BF16", (g.v_heads,))
    tensors[prefix + "linear_attn.norm.weight"] = ("F32", (g.v_dim,))


def _mlp(prefix: str, g: Geometry, tensors: Tensors, quantized: Callable[[str, int, int], None]) -> None:
    groups = [f"mlp.experts.{number}." for number in range(g.experts)] + ["mlp.shared_expert."] if g.experts else ["mlp."]
    for group in groups:
        quantized(prefix + group + "gate_proj", g.intermediate, g.hidden)
        quantized(prefix + group + "up_proj", g.intermediate, g.hidden)
        quantized(prefix + group + "down_proj", g.hidden, g.intermediate)
    if g.experts:
        tensors[prefix + "mlp.gate.weight"] = ("BF16", (g.experts, g.hidden))
        tensors[prefix + "mlp.shared_expert_gate.weight"] = ("BF16", (1, g.hidden))
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[prefix + norm + ".weight"] = ("BF16", (g.hidden,))


def names(g: Geometry = TINY, plain: tuple[str, ...] = (), extra: tuple[str, ...] = ("weight_scale",)) -> Tensors:
    """Every tensor of a checkpoint; modules with one of ``plain`` in their name stay bfloat16, others get ``extra`` beside int8."""
    tensors: Tensors = {"model.language_model.embed_tokens.weight": ("BF16", (g.vocabulary, g.hidden))}

    def quantized(module: str, rows: int, columns: int) -> None:
        if any(word in module for word in plain):
            tensors[module + ".weight"] = ("BF16", (rows, columns))
            return
        tensors[module + ".weight"] = ("I8", (rows, columns))
        for suffix in extra:
            tensors[f"{module}.{suffix}"] = ("F32", (rows, 1))

    for layer in range(g.layers):
        prefix = f"model.language_model.layers.{layer}."
        (_attention if layer % g.interval == g.interval - 1 else _gated_delta)(prefix, g, tensors, quantized)
        _mlp(prefix, g, tensors, quantized)
    tensors["model.language_model.norm.weight"] = ("BF16", (g.hidden,))
    tensors["lm_head.weight"] = ("BF16", (g.vocabulary, g.hidden))
    width = g.vision_hidden
    tensors["model.visual.patch_embed.proj.weight"] = ("BF16", (width, 3, 2, 4, 4))
    tensors["model.visual.pos_embed.weight"] = ("BF16", (g.positions, width))
    for block in range(g.vision_blocks):
        prefix = f"model.visual.blocks.{block}."
        for module, rows, columns in (
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.linear_fc1", g.vision_intermediate, width),
            ("mlp.linear_fc2", width, g.vision_intermediate),
        ):
            tensors[f"{prefix}{module}.weight"] = ("BF16", (rows, columns))
            tensors[f"{prefix}{module}.bias"] = ("BF16", (rows,))
        for norm in ("norm1", "norm2"):
            tensors[f"{prefix}{norm}.weight"] = ("BF16", (width,))
    tensors["model.visual.merger.norm.weight"] = ("BF16", (width,))
    tensors["model.visual.merger.linear_fc1.weight"] = ("BF16", (4 * width, 4 * width))
    tensors["model.visual.merger.linear_fc2.weight"] = ("BF16", (g.hidden, 4 * width))
    if g.mtp:
        tensors["mtp.fc.weight"] = ("BF16", (g.hidden, 2 * g.hidden))
        _attention("mtp.layers.0.", g, tensors, quantized)
        _mlp("mtp.layers.0.", g, tensors, quantized)
        for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            tensors[f"mtp.{norm}.weight"] = ("BF16", (g.hidden,))
    return tensors


def ignored(tensors: Tensors) -> list[str]:
    """The ignore list that is right for these tensors: every plain matrix that is no embedding."""
    return [
        name[: -len(".weight")]
        for name, (dtype, shape) in tensors.items()
        if name.endswith(".weight") and len(shape) == 2 and dtype != "I8" and "embed" not in name
    ]


def config(g: Geometry = TINY) -> dict:
    """A config.json without any word about quantization."""
    kind = "qwen3_5_moe" if g.experts else "qwen3_5"
    text = {
        "model_type": kind + "_text",
        "dtype": "bfloat16",
        "num_hidden_layers": g.layers,
        "full_attention_interval": g.interval,
        "layer_types": ["full_attention" if at % g.interval == g.interval - 1 else "linear_attention" for at in range(g.layers)],
        "hidden_size": g.hidden,
        "hidden_act": "silu",
        "num_attention_heads": g.heads,
        "num_key_value_heads": g.kv_heads,
        "head_dim": g.head,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": g.k_dim,
        "linear_num_key_heads": g.k_heads,
        "linear_num_value_heads": g.v_heads,
        "linear_value_head_dim": g.v_dim,
        "mtp_num_hidden_layers": int(g.mtp),
        "rms_norm_eps": 1e-06,
        "vocab_size": g.vocabulary,
        "tie_word_embeddings": False,
    }
    if g.experts:
        text.update(num_experts=g.experts, num_experts_per_tok=1, moe_intermediate_size=g.intermediate)
        text.update(shared_expert_intermediate_size=g.intermediate)
    else:
        text.update(intermediate_size=g.intermediate)
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration" if g.experts else "Qwen3_5ForConditionalGeneration"],
        "model_type": kind,
        "text_config": text,
        "vision_config": {"depth": g.vision_blocks, "hidden_size": g.vision_hidden, "num_heads": 1},
        "tie_word_embeddings": False,
    }


def header(tensors: Tensors) -> tuple[bytes, int]:
    """The header of a shard with these tensors, and how many bytes of data follow it."""
    at, entries = 0, {"__metadata__": {"format": "pt"}}
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype]
        for extent in shape:
            size *= extent
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw, at


#: A byte -> the int8 number of -64 to 63 it stands for. oneDNN on a CPU without VNNI adds products in 16 bits, two at a time, and
#: cuts off what is too large; with these nothing is.
_HALVED = bytes((byte // 2 - 64) % 0x100 for byte in range(0x100))


def _data(tensors: Tensors, numbers: random.Random) -> dict[str, bytes]:
    """Small numbers around zero; scales and norms are what keeps a layer's output near its input."""
    out = {}
    for name, (dtype, shape) in tensors.items():
        count = math.prod(shape)
        if dtype == "I8":
            out[name] = numbers.randbytes(count).translate(_HALVED)
        elif name.endswith("_scale"):
            # Another one for every row: one that is used for its neighbour, or for all, shows in the answers.
            usual = 1 / (37 * shape[0] ** 0.5 + 1)
            out[name] = struct.pack(f"<{count}f", *(usual * numbers.uniform(0.5, 1.5) for _number in range(count)))
        elif dtype == "F32":
            out[name] = struct.pack("<f", 1.0) * count
        elif "norm" in name:
            out[name] = b"\x80\x3f" * count
        else:
            out[name] = _bfloat16(numbers.uniform(-0.1, 0.1) for _number in range(count))
    return out


def _bfloat16(values: Iterable[float]) -> bytes:
    """The nearest bfloat16 of each number: the upper half of a float."""
    out = []
    for value in values:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        out.append((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return struct.pack(f"<{len(out)}H", *out)


def _multiplied(matrix: bytes, scale: bytes) -> bytes:
    """An int8 matrix times the scale of each row, in bfloat16."""
    scales = [value for (value,) in struct.iter_unpack("<f", scale)]
    steps = struct.unpack(f"<{len(matrix)}b", matrix)
    columns = len(steps) // len(scales)
    return _bfloat16(steps[at] * scales[at // columns] for at in range(len(steps)))


def split(tensors: Tensors, parts: int, stem: str = "model") -> dict[str, Tensors]:
    """Spread tensors over shards, in order."""
    every = list(tensors.items())
    step = -(-len(every) // parts)
    return {f"{stem}-{part + 1:05d}-of-{parts:05d}.safetensors": dict(every[part * step : (part + 1) * step]) for part in range(parts)}


#: Files a model brings beside its shards.
BESIDE = {
    "generation_config.json": b'{"eos_token_id": 1}',
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
}


def tokenizer() -> dict[str, bytes]:
    """The files of a tokenizer with a word for every byte, behind one that ends a text and one that ends a turn."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    # a tokenizer.json writes bytes as letters: those that have none of their own get what follows the last
    letters = {byte: chr(byte) for byte in plain}
    letters.update((byte, chr(0x100 + at)) for at, byte in enumerate(byte for byte in range(0x100) if byte not in letters))
    special = ["<|endoftext|>", "<|im_end|>"]
    words = special + [letters[byte] for byte in range(0x100)]
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": at, "content": word, **common} for at, word in enumerate(special)],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {word: at for at, word in enumerate(words)}, "merges": []},
    }
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[1], "pad_token": special[0]}
    return {"tokenizer.json": json.dumps(content).encode(), "tokenizer_config.json": json.dumps(about).encode()}


@dataclasses.dataclass
class Model:
    """What ``write`` is about to write; a fault changes it."""

    tensors: Tensors
    config: dict
    shards: dict[str, Tensors] = dataclasses.field(default_factory=dict)
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)


def _module(model: Model, *words: str) -> str:
    """The first int8 module whose name holds every word."""
    for name, (dtype, _shape) in model.tensors.items():
        if dtype == "I8" and all(word in name for word in words):
            return name[: -len(".weight")]
    raise LookupError(words)


def _quantization(model: Model) -> dict:
    return model.config["quantization_config"]


def _ignored_int8(model: Model) -> None:
    _quantization(model)["ignore"].append("re:.*linear_attn.*")


def _no_config(model: Model) -> None:
    del model.config["quantization_config"]


def _half_of_a_pair_ignored(model: Model) -> None:
    _quantization(model)["ignore"].append(_module(model, "linear_attn.in_proj_z"))


def _scale_missing(model: Model) -> None:
    del model.tensors[_module(model, "layers.1", "out_proj") + ".weight_scale"]


def _scale_renamed(model: Model) -> None:
    model.tensors = {name.replace(".weight_scale", ".scale"): about for name, about in model.tensors.items()}


def _wrong_format(model: Model) -> None:
    _quantization(model)["format"] = "pack-quantized"


def _not_ignored(model: Model) -> None:
    _quantization(model)["ignore"] = [name for name in _quantization(model)["ignore"] if not name.endswith("mlp.gate")]


def _nothing(model: Model) -> None:
    pass


#: Faults before the shards are written. The last two are done to files, see ``write``.
BROKEN: dict[str, Callable[[Model], None]] = {
    "ignored_int8": _ignored_int8,
    "no_config": _no_config,
    "half_of_a_pair_ignored": _half_of_a_pair_ignored,
    "scale_missing": _scale_missing,
    "scale_renamed": _scale_renamed,
    "wrong_format": _wrong_format,
    "not_ignored": _not_ignored,
    "shard_truncated": _nothing,
    "shard_missing": _nothing,
}


def write(
    folder: Path,
    fault: str = "",
    g: Geometry = TINY,
    parts: int = 2,
    seed: int = 1,
    plain: tuple[str, ...] = (),
    files: dict[str, bytes] | None = None,
) -> dict[str, Tensors]:
    """Write a checkpoint into ``folder`` (made when absent), with ``files`` in place of those in BESIDE; returns shard -> its tensors."""
    tensors = names(g, plain)
    model = Model(tensors, {**config(g), "quantization_config": {**SCHEME, "ignore": ignored(tensors)}}, files=files or {})
    if fault:
        BROKEN[fault](model)
    shards = split(model.tensors, parts)
    _write(folder, model, shards, INDEX, _data(model.tensors, random.Random(seed)))
    last = folder / list(shards)[-1]
    if fault == "shard_truncated":
        raw = last.read_bytes()
        last.write_bytes(raw[: len(raw) - 100])
    elif fault == "shard_missing":
        last.unlink()
    return shards


def write_plain(folder: Path, g: Geometry = TINY, seed: int = 1, files: dict[str, bytes] | None = None) -> None:
    """Write the numbers that ``write`` means, with the same ``seed``, and nothing quantized."""
    tensors = names(g)
    data = _data(tensors, random.Random(seed))
    for name in [name for name, (dtype, _shape) in tensors.items() if dtype == "I8"]:
        data[name] = _multiplied(data[name], data.pop(name + "_scale"))
        tensors[name] = ("BF16", tensors[name][1])
        del tensors[name + "_scale"]
    _write(folder, Model(tensors, config(g), files=files or {}), split(tensors, 2), INDEX, data)


def write_ascend(
    folder: Path, fault: Callable[[dict, Tensors], None] = lambda described, tensors: None, g: Geometry = TINY, seed: int = 1
) -> None:
    """Write what Ascend's tool makes: a description of every tensor, offsets beside the scales, shards with other names.

    ``fault(description, tensors)`` may change both before they are written.
    """
    tensors = names(g, ("in_proj_a", "in_proj_b", "mtp."), ("weight_scale", "weight_offset"))
    described = {"model_quant_type": "W8A8_DYNAMIC", "version": "1.0.0", "group_size": 0}
    for name in tensors:
        module = name.rpartition(".")[0]
        described[name] = "W8A8_DYNAMIC" if tensors.get(module + ".weight", ("",))[0] == "I8" else "FLOAT"
    fault(described, tensors)
    model = Model(tensors, config(g), files={DESCRIPTION: json.dumps(described, indent=2).encode()})
    shards = split(tensors, 2, "quant_model_weights")
    _write(folder, model, shards, "quant_model_weights.safetensors.index.json", _data(tensors, random.Random(seed)))


def _write(folder: Path, model: Model, shards: dict[str, Tensors], index: str, data: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in shards.items():
        head, _size = header(tensors)
        (folder / name).write_bytes(head + b"".join(data[tensor] for tensor in tensors))
    weight_map = {tensor: shard for shard, tensors in shards.items() for tensor in tensors}
    files = {
        **BESIDE,
        **model.files,
        "config.json": (json.dumps(model.config, indent=2) + "\n").encode(),
        index: json.dumps({"metadata": {}, "weight_map": weight_map}).encode(),
    }
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
