# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A GGUF file of a Llama model with one layer and six words, whole enough to be converted."""

from __future__ import annotations

import random
import struct

F32, Q4_1, Q8_0, F16 = 0, 3, 8, 1
#: A little model: 2 heads of 32 and 1 key head, so that rows must move; 1 layer.
TENSORS = [
    ("token_embd.weight", (64, 6), Q8_0),
    ("output_norm.weight", (64,), F32),
    ("blk.0.attn_norm.weight", (64,), F32),
    ("blk.0.attn_q.weight", (64, 64), Q4_1),
    ("blk.0.attn_k.weight", (64, 32), Q4_1),
    ("blk.0.attn_v.weight", (64, 32), Q4_1),
    ("blk.0.attn_output.weight", (64, 64), Q4_1),
    ("blk.0.ffn_norm.weight", (64,), F32),
    ("blk.0.ffn_gate.weight", (64, 96), Q4_1),
    ("blk.0.ffn_up.weight", (64, 96), Q4_1),
    ("blk.0.ffn_down.weight", (96, 64), Q4_1),
]


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def texts(values):
    return struct.pack("<IQ", 8, len(values)) + b"".join(text(value) for value in values)


def header(**changes):
    keys = {
        "general.architecture": (8, text("llama")),
        "llama.block_count": (4, struct.pack("<I", 1)),
        "llama.context_length": (4, struct.pack("<I", 8192)),
        "llama.embedding_length": (4, struct.pack("<I", 64)),
        "llama.feed_forward_length": (4, struct.pack("<I", 96)),
        "llama.attention.head_count": (4, struct.pack("<I", 2)),
        "llama.attention.head_count_kv": (4, struct.pack("<I", 1)),
        "llama.attention.layer_norm_rms_epsilon": (6, struct.pack("<f", 1e-5)),
        "llama.rope.freq_base": (6, struct.pack("<f", 100000.0)),
        "tokenizer.ggml.model": (8, text("gpt2")),
        "tokenizer.ggml.pre": (8, text("smollm")),
        "tokenizer.ggml.tokens": (9, texts(["<|end|>", "<|start|>", "a", "b", "ab", "é"])),
        "tokenizer.ggml.token_type": (9, struct.pack("<IQ6i", 5, 6, 3, 3, 1, 1, 1, 1)),
        "tokenizer.ggml.merges": (9, texts(["a b"])),
        "tokenizer.ggml.bos_token_id": (4, struct.pack("<I", 1)),
        "tokenizer.ggml.eos_token_id": (4, struct.pack("<I", 0)),
        "tokenizer.chat_template": (8, text("{{ messages }}")),
    }
    keys.update(changes)
    return {key: value for key, value in keys.items() if value is not None}


def numbers(kind, count, seed):
    """Bytes of ``count`` numbers of a kind, and the numbers, computed the slow and plain way."""
    source = random.Random(seed)
    data, values = b"", []
    if kind == F16:
        return bytes(2 * count), [0.0] * count
    if kind == F32:
        values = [struct.unpack("<f", struct.pack("<f", source.uniform(-2, 2)))[0] for _number in range(count)]
        return struct.pack("<{0}f".format(count), *values), values
    for _block in range(count // 32):
        scale, low = (struct.unpack("<e", struct.pack("<e", source.uniform(-1, 1)))[0] for _word in range(2))
        if kind == Q8_0:
            steps = [source.randint(-128, 127) for _number in range(32)]
            data += struct.pack("<e32b", scale, *steps)
            values += [scale * step for step in steps]
        else:
            steps = [source.randint(0, 15) for _number in range(32)]
            data += struct.pack("<ee", scale, low) + bytes(steps[number] | steps[number + 16] << 4 for number in range(16))
            values += [scale * step + low for step in steps]
    return data, values


def model(path, tensors=None, **changes):
    """Write a little GGUF file; returns its numbers by name of tensor."""
    tensors = TENSORS if tensors is None else tensors
    keys = header(**changes)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, (kind, raw) in keys.items():
        head += text(key) + struct.pack("<I", kind) + raw
    data, values = b"", {}
    for number, (name, shape, kind) in enumerate(tensors):
        count = 1
        for extent in shape:
            count *= extent
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", extent) for extent in shape)
        head += struct.pack("<IQ", kind, len(data))
        raw, values[name] = numbers(kind, count, number)
        data += raw.ljust(-(-len(raw) // 32) * 32, b"\0")
    with open(path, "wb") as out:
        out.write(head.ljust(-(-len(head) // 32) * 32, b"\0") + data)
    return values
