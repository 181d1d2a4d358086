# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine's cache, block by block, against what real engines printed, and weights on a card against the sizes of real models."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._geometry import (
    Serving,
    layouts,
    number_bytes,
    read_config,
    stages,
    tally,
    weights_on_card,
)

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
GIB = 2**30

CUDA = {"block": 16, "align": 16, "page": "whole"}
CPU = {"block": 128, "align": 128, "page": "whole"}
ASCEND = {"block": 128, "align": 128, "page": "key"}

QWEN_27B = {
    "model_type": "qwen3_5",
    "dtype": "bfloat16",
    "text_config": {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_size": 5120,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262144,
    },
}
DENSE = {
    "model_type": "qwen2",
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "hidden_size": 896,
    "torch_dtype": "bfloat16",
    "sliding_window": 32768,
    "use_sliding_window": False,
}
#: Multi-head latent attention, as DeepSeek-V3 has it.
MLA = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 256,
    "num_nextn_predict_layers": 1,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 163840,
}


def config_of(name):
    return json.loads((FIXTURES / "models" / (name + ".config.json")).read_text(encoding="utf-8"))


def one(config, rule=None, **serving):
    (layout,) = layouts(read_config(config, "it"), Serving(**serving), rule or CUDA)
    return layout


QWEN = config_of("qwen3.6-35b-a3b")
NEXT = config_of("qwen3-next-80b-a3b")
#: The tiny model of the real starts: true geometry of each layer, two of full attention and six of linear.
TINY = dict(QWEN, text_config=dict(QWEN["text_config"], num_hidden_layers=8, layer_types=QWEN["text_config"]["layer_types"][:8]))


# What config.json says


@pytest.mark.parametrize(
    ("config", "full", "linear", "mtp", "kv_heads", "head_dim", "experts", "state_bytes"),
    [
        (QWEN, 10, 30, 1, 2, 256, 256, 4),
        (NEXT, 12, 36, 1, 2, 256, 512, 0),
        (QWEN_27B, 16, 48, 1, 4, 256, 0, 4),
        (DENSE, 24, 0, 0, 2, 64, 0, 0),
    ],
    ids=["qwen3.6", "qwen3-next", "qwen3.5-27b", "dense"],
)
def test_the_geometry_of_known_models(config, full, linear, mtp, kv_heads, head_dim, experts, state_bytes):
    geometry = read_config(config, "it")
    assert (geometry.layers("full"), geometry.layers("linear"), geometry.mtp_layers) == (full, linear, mtp)
    assert (geometry.kv_heads, geometry.head_dim, geometry.experts, geometry.state_bytes) == (kv_heads, head_dim, experts, state_bytes)
    assert geometry.dtype_bytes == 2
    if linear:
        assert geometry.max_position == 262144
        assert (geometry.key_heads, geometry.key_dim, geometry.value_dim, geometry.kernel) == (16, 128, 128, 4)


def test_layer_kinds_follow_the_interval_where_there_is_no_list():
    text = {key: value for key, value in QWEN["text_config"].items() if key != "layer_types"}
    assert read_config(dict(QWEN, text_config=text), "it") == read_config(QWEN, "it")


def test_a_latent_vector_takes_the_place_of_keys_and_values():
    geometry = read_config(MLA, "it")
    assert (geometry.latent, geometry.experts, geometry.mtp_layers) == (576, 256, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": None}, "it: 'num_hidden_layers' must be a whole number, 1 or more, found None"),
        ({"num_attention_heads": "16"}, "it: 'num_attention_heads' must be a whole number"),
        ({"linear_conv_kernel_dim": True}, "it: 'linear_conv_kernel_dim' must be"),
        ({"layer_types": ["full_attention"]}, "it: 1 layer_types for 40 layers"),
        ({"layer_types": ["sliding_attention"] * 40}, "it: layer_types has 'sliding_attention'"),
        ({"sliding_window": 4096}, "it: has a sliding window"),
        ({"index_topk": 2048}, "it: has 'index_topk'"),
        ({"dtype": "int4"}, "it: dtype: number format 'int4'"),
        ({"mamba_ssm_dtype": "fp12"}, "it: mamba_ssm_dtype: number format 'fp12'"),
    ],
)
def test_what_is_not_understood_is_named(change, says):
    with pytest.raises(LLMError, match=re.escape(says)):
        read_config(dict(QWEN, text_config=dict(QWEN["text_config"], **change)), "it")


def test_a_configuration_without_number_format_has_no_size():
    with pytest.raises(LLMError, match="it: says no 'dtype'"):
        read_config({key: value for key, value in DENSE.items() if key != "torch_dtype"}, "it")


def test_the_text_part_may_leave_the_number_format_to_the_whole():
    assert read_config(QWEN_27B, "it").dtype_bytes == 2


# The cache of one card


def test_state_of_linear_attention():
    """2,146,304 bytes a layer, 16,384 more for each token guessed ahead."""
    for spec_tokens in (0, 1, 2, 3):
        assert one(QWEN, spec_tokens=spec_tokens).state_bytes == 30 * (2146304 + 16384 * spec_tokens)


@pytest.mark.parametrize(
    ("config", "rule", "serving", "block"),
    [
        (QWEN, CUDA, {}, 1056),
        (QWEN, CUDA, {"spec_tokens": 2}, 1072),
        (QWEN, CUDA, {"spec_tokens": 3}, 1072),
        (NEXT, CUDA, {}, 544),
        (QWEN, CPU, {}, 1152),
        (QWEN, ASCEND, {}, 2048),
        (QWEN, ASCEND, {"tensor_parallel": 2}, 2048),
        (QWEN, ASCEND, {"tensor_parallel": 4}, 1024),
        (QWEN, CUDA, {"kv_bytes": 1}, 2096),
        (DENSE, CUDA, {}, 16),
        (DENSE, CPU, {}, 128),
    ],
)
def test_block_in_tokens(config, rule, serving, block):
    assert one(config, rule, **serving).block_tokens == block


def test_groups_and_bytes_of_a_block():
    """10 full layers and 30 linear ones are 1 + 3 groups of 10; with MTP 11 full ones, and groups of 11."""
    plain, ahead = one(QWEN), one(QWEN, spec_tokens=2)
    assert (plain.full_groups, plain.state_groups, plain.block_bytes) == (1, 3, 21626880)
    assert (ahead.full_groups, ahead.state_groups, ahead.block_bytes) == (1, 3, 24150016)
    assert (plain.state_blocks, ahead.state_blocks, one(QWEN, spec_tokens=2, align=True).state_blocks) == (1, 3, 4)


def test_layers_of_nearly_equal_numbers_are_one_group_each():
    kinds = ["linear_attention"] * 4 + ["full_attention"] * 3
    config = dict(QWEN, text_config=dict(QWEN["text_config"], num_hidden_layers=7, layer_types=kinds))
    layout = one(config)
    assert (layout.full_groups, layout.state_groups, layout.block_bytes) == (1, 1, 1056 * 2048 * 4)


def test_bytes_of_a_token():
    """20 KiB for ten layers of two heads of 256; the latent vector is on every card, heads are divided as far as there are any."""
    assert one(QWEN).token_bytes == 20480
    assert [one(QWEN, tensor_parallel=cards).token_bytes for cards in (2, 4, 8)] == [10240, 10240, 10240]
    assert one(QWEN, spec_tokens=1).token_bytes == 22528
    assert one(NEXT).token_bytes == 24576
    assert one(QWEN_27B).token_bytes == 65536
    assert one(DENSE).token_bytes == 12288
    assert [one(MLA, tensor_parallel=cards).token_bytes for cards in (1, 8)] == [61 * 576 * 2] * 2
    assert one(QWEN, kv_bytes=1).token_bytes == 10240


def test_dense_models_have_no_state():
    layout = one(DENSE, align=True)
    assert (layout.state_groups, layout.state_bytes, layout.blocks(32768)) == (0, 0, 2048)
    assert layout.block_bytes == 16 * 12288


def test_another_number_format_than_the_configuration_says():
    assert one(NEXT, dtype_bytes=4).token_bytes == 2 * 24576
    assert one(NEXT, dtype_bytes=4).state_bytes == 2 * one(NEXT).state_bytes
    assert one(QWEN, dtype_bytes=4).state_bytes == 30 * (2 * 49152 + 2097152), "its recurrent state is float32 by its own word"


@pytest.mark.parametrize(
    ("serving", "tokens", "printed"),
    [
        ({"spec_tokens": 2, "align": True}, 131072, 6.59),
        ({"align": True}, 131072, 7.57),
        ({}, 131072, 7.75),
        ({"spec_tokens": 3, "align": True}, 262144, 3.42),
    ],
)
def test_what_0_18_1_computes_for_20_gib(serving, tokens, printed):
    """Four runs of the engine's own code."""
    layout = one(QWEN, **serving)
    assert round(layout.count(20 * GIB) / layout.blocks(tokens), 2) == printed


@pytest.mark.parametrize(("serving", "printed"), [({"align": True}, 7.58), ({"spec_tokens": 3}, 4.97), ({}, 7.78)])
def test_what_0_32_0_printed_for_4_gib_on_a_cpu(serving, printed):
    """Three real starts at 131072 tokens."""
    layout = one(TINY, CPU, **serving)
    assert round(layout.count(4 * GIB) / layout.blocks(131072), 2) == printed


def test_what_0_32_0_says_of_itself_in_its_metrics():
    """A real start with prefix caching, 16384 tokens and 4 GiB: blocks, their size and the concurrency to the last digit."""
    text = (FIXTURES / "vllm" / "vllm-0.32.0-hybrid-prefixcache.prom").read_text(encoding="utf-8")
    said = dict(re.findall(r'(\w+)="([^"]*)"', re.search(r"vllm:cache_config_info\{(.*)\}", text).group(1)))
    layout = one(TINY, CPU, align=said["mamba_cache_mode"] == "align")
    blocks = layout.count(int(said["kv_cache_memory_bytes"]))
    assert (layout.block_tokens, blocks) == (int(said["block_size"]), int(said["num_gpu_blocks"]))
    assert blocks / layout.blocks(16384) == float(said["kv_cache_max_concurrency"])


#: KV cache in GiB -> blocks -> how many sequences of 32, 128 and 256 thousand tokens, worked out with the engine's own code.
CASES = {
    "k100ai plain": ({}, CUDA, 18.4, 912, (26.1, 7.1, 3.6)),
    "k100ai align": ({"align": True}, CUDA, 18.4, 912, (24.0, 7.0, 3.6)),
    "k100ai align mtp 2": ({"align": True, "spec_tokens": 2}, CUDA, 18.4, 817, (19.0, 6.1, 3.2)),
    "k100ai align mtp 3, 0.95": ({"align": True, "spec_tokens": 3}, CUDA, 21.6, 959, (20.9, 7.0, 3.7)),
    "bf16 on two cards": ({"tensor_parallel": 2, "align": True}, CUDA, 19.6, 1944, (51, 14.8, 7.6)),
    "h100 bf16": ({"align": True}, CUDA, 3.2, 160, (4.2, 1.2, 0.6)),
    "h100 fp8 align mtp 2": ({"align": True, "spec_tokens": 2}, CUDA, 33.7, 1499, (34.9, 11.1, 5.8)),
    "910b2 align mtp 3": ({"align": True, "spec_tokens": 3}, ASCEND, 17.4, 395, (12.7, 5.0, 2.8)),
    "910b2 x 2 mtp 3": ({"tensor_parallel": 2, "spec_tokens": 3}, ASCEND, 34.7, 1578, (56, 20.8, 11.3)),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_planned_cases(name):
    serving, rule, gib, blocks, concurrency = CASES[name]
    layout = one(QWEN, rule, **serving)
    least, most = (gib - 0.05) * GIB, (gib + 0.05) * GIB
    assert layout.count(int(least)) <= blocks <= layout.count(int(most))
    for tokens, printed in zip((32768, 131072, 262144), concurrency, strict=True):
        # The last printed digit; one figure (20.9) was cut from a share of a block more.
        assert blocks / layout.blocks(tokens) == pytest.approx(printed, abs=0.6 if isinstance(printed, int) else 0.06)
    alone = layout.largest_context(blocks)
    assert (alone >= 262144) == (name != "h100 bf16")


def test_largest_context_of_a_bf16_replica_on_an_h100():
    """159 blocks are left: 153 of 1056 tokens and 6 of states."""
    assert one(QWEN, align=True).largest_context(160) == 153 * 1056 == 161568


@given(
    blocks=st.integers(1, 5000),
    sequences=st.integers(1, 64),
    serving=st.builds(Serving, tensor_parallel=st.sampled_from([1, 2, 4]), spec_tokens=st.integers(0, 4), align=st.booleans()),
    rule=st.sampled_from([CUDA, CPU, ASCEND]),
)
def test_largest_context_is_the_largest(blocks, sequences, serving, rule):
    (layout,) = layouts(read_config(QWEN, "it"), serving, rule)
    tokens = layout.largest_context(blocks, sequences)
    assert tokens == 0 or sequences * layout.blocks(tokens) <= blocks - 1
    assert sequences * layout.blocks(tokens + 1) > blocks - 1


# Cards that share a replica


@pytest.mark.parametrize(
    ("layers", "parts", "sizes"), [(40, 4, [10] * 4), (40, 3, [13, 14, 13]), (61, 4, [15, 15, 16, 15]), (7, 4, [2, 2, 2, 1]), (5, 1, [5])]
)
def test_pipeline_stages(layers, parts, sizes):
    cut = stages(layers, parts)
    assert [len(part) for part in cut] == sizes
    assert [layer for part in cut for layer in part] == list(range(layers))


def test_more_stages_than_layers():
    with pytest.raises(LLMError, match="4 layers cannot be cut into 5 pipeline stages"):
        stages(4, 5)


def test_the_last_stage_has_the_mtp_layer():
    first, last = layouts(read_config(QWEN, "it"), Serving(pipeline_parallel=2, spec_tokens=2), CUDA)
    assert (first.token_bytes, last.token_bytes) == (5 * 2048, 6 * 2048)


@pytest.mark.parametrize(("cards", "says"), [(3, "16 attention heads"), (32, "16 attention heads")])
def test_heads_that_cannot_be_divided(cards, says):
    with pytest.raises(LLMError, match=says + " cannot be divided over tensor_parallel_size"):
        one(QWEN, tensor_parallel=cards)


def test_kv_heads_that_can_neither_be_divided_nor_copied():
    with pytest.raises(LLMError, match="8 KV heads cannot be divided over tensor_parallel_size 6, nor copied evenly"):
        one(dict(DENSE, num_attention_heads=48, num_key_value_heads=8, head_dim=64), tensor_parallel=6)


def test_an_unknown_way_of_sizing_pages():
    with pytest.raises(LLMError, match="kv_cache page 'value'; .*Known: key, whole"):
        one(QWEN, dict(CUDA, page="value"))


@pytest.mark.parametrize(("word", "size"), [("auto", 0), (None, 0), ("bfloat16", 2), ("fp8_e4m3", 1), ("float32", 4)])
def test_number_formats(word, size):
    assert number_bytes(word, "it") == size


def test_an_unknown_number_format_is_no_default():
    with pytest.raises(UnknownOutput, match="it: number format 'fp8_e4m4'; did you mean \"fp8_e4m3\""):
        number_bytes("fp8_e4m4", "it")


# Weights on a card


def linear(name, rows, columns, dtype="BF16"):
    """A linear module as headers show it; an int8 one has a scale for each row."""
    yield name + ".weight", dtype, (rows, columns)
    if dtype == "I8":
        yield name + ".weight_scale", "F32", (rows, 1)


def headers(config, dtype="BF16", mtp_dtype="BF16"):
    """The tensors of a checkpoint of the Qwen3.5 and Qwen3-Next families, as the headers of its shards show them."""
    text = config.get("text_config", config)
    hidden, head, vocab = text["hidden_size"], text["head_dim"], text["vocab_size"]
    wide_k, wide_v = (
        text["linear_num_key_heads"] * text["linear_key_head_dim"],
        text["linear_num_value_heads"] * text["linear_value_head_dim"],
    )

    def layer(name, kind, dtype):
        yield name + ".input_layernorm.weight", "BF16", (hidden,)
        yield name + ".post_attention_layernorm.weight", "BF16", (hidden,)
        if kind == "full":
            yield from linear(name + ".self_attn.q_proj", 2 * text["num_attention_heads"] * head, hidden, dtype)
            for part in "kv":
                yield from linear(f"{name}.self_attn.{part}_proj", text["num_key_value_heads"] * head, hidden, dtype)
            yield from linear(name + ".self_attn.o_proj", hidden, text["num_attention_heads"] * head, dtype)
            yield name + ".self_attn.q_norm.weight", "BF16", (head,)
            yield name + ".self_attn.k_norm.weight", "BF16", (head,)
        else:
            rows = {"in_proj_qkv": 2 * wide_k + wide_v, "in_proj_z": wide_v}
            rows.update(in_proj_a=text["linear_num_value_heads"], in_proj_b=text["linear_num_value_heads"])
            for part, count in rows.items():
                yield from linear(f"{name}.linear_attn.{part}", count, hidden, dtype)
            yield from linear(name + ".linear_attn.out_proj", hidden, wide_v, dtype)
            yield name + ".linear_attn.conv1d.weight", "BF16", (2 * wide_k + wide_v, 1, 4)
            yield name + ".linear_attn.norm.weight", "BF16", (text["linear_value_head_dim"],)
            for part in ("A_log", "dt_bias"):
                yield f"{name}.linear_attn.{part}", "BF16", (text["linear_num_value_heads"],)
        yield name + ".mlp.gate.weight", "BF16", (text["num_experts"], hidden)
        yield name + ".mlp.shared_expert_gate.weight", "BF16", (1, hidden)
        experts = [f"experts.{number}" for number in range(text["num_experts"])] + ["shared_expert"]
        for expert in experts:
            for part in ("gate_proj", "up_proj"):
                yield from linear(f"{name}.mlp.{expert}.{part}", text["moe_intermediate_size"], hidden, dtype)
            yield from linear(f"{name}.mlp.{expert}.down_proj", hidden, text["moe_intermediate_size"], dtype)

    stem = "model.language_model." if "vision_config" in config else "model."
    yield stem + "embed_tokens.weight", "BF16", (vocab, hidden)
    yield "lm_head.weight", "BF16", (vocab, hidden)
    yield stem + "norm.weight", "BF16", (hidden,)
    for number in range(text["num_hidden_layers"]):
        yield from layer(f"{stem}layers.{number}", "linear" if (number + 1) % 4 else "full", dtype)
    yield from layer("mtp.layers.0", "full", mtp_dtype)
    yield "mtp.fc.weight", "BF16", (hidden, 2 * hidden)
    if "vision_config" in config:
        wide, inner = config["vision_config"]["hidden_size"], config["vision_config"]["intermediate_size"]
        yield "model.visual.patch_embed.proj.weight", "BF16", (wide, 3, 2, 16, 16)
        yield "model.visual.pos_embed.weight", "BF16", (config["vision_config"]["num_position_embeddings"], wide)
        for number in range(config["vision_config"]["depth"]):
            name = f"model.visual.blocks.{number}"
            for part, rows, columns in (
                ("attn.qkv", 3 * wide, wide),
                ("attn.proj", wide, wide),
                ("mlp.linear_fc1", inner, wide),
                ("mlp.linear_fc2", wide, inner),
            ):
                yield f"{name}.{part}.weight", "BF16", (rows, columns)
                yield f"{name}.{part}.bias", "BF16", (rows,)
        yield "model.visual.merger.linear_fc1.weight", "BF16", (4 * wide, 4 * wide)
        yield "model.visual.merger.linear_fc2.weight", "BF16", (hidden, 4 * wide)


def loaded(config, tensors, **how):
    return weights_on_card(tally(tensors), read_config(config, "it"), **how)


def gib(figures):
    return sum(figures) / GIB


BF16 = list(headers(QWEN))
W8A8 = list(headers(QWEN, "I8", "I8"))


def test_35_95_billion_parameters():
    total = sum(loaded(QWEN, BF16))
    assert round(total / 2e9, 2) == 35.95
    assert (round(total / 1e9, 2), total / GIB) == (71.90, pytest.approx(66.96, abs=0.01))


def test_sizes_in_int8():
    """All linear modules and the MTP layer in int8, as the metax weights; with the MTP layer in bfloat16; without the vision tower."""
    assert gib(loaded(QWEN, W8A8)) == pytest.approx(34.99, abs=0.01)
    assert gib(loaded(QWEN, headers(QWEN, "I8"))) == pytest.approx(35.77, abs=0.01)
    assert gib(loaded(QWEN, BF16)) - gib(loaded(QWEN, BF16, text_only=True)) == pytest.approx(0.83, abs=0.01)


def test_layers_for_guessing_ahead_are_loaded_only_to_guess_ahead():
    assert gib(loaded(QWEN, BF16)) - gib(loaded(QWEN, BF16, mtp=False)) == pytest.approx(1.57, abs=0.01)


@pytest.mark.parametrize(
    ("model", "variant", "config", "tensors"),
    [
        ("qwen3.6-35b-a3b", "bf16", QWEN, BF16),
        ("qwen3.6-35b-a3b", "w8a8", QWEN, W8A8),
        ("qwen3.5-35b-a3b", "int8_channel", QWEN, list(headers(QWEN, "I8"))),
        ("qwen3-next-80b-a3b", "bf16", NEXT, list(headers(NEXT))),
    ],
)
def test_sizes_that_recipes_state(shipped, model, variant, config, tensors):
    stated = shipped["models"][model]["weights"]["variants"][variant]["size_mib"]
    assert sum(loaded(config, tensors)) / 2**20 == pytest.approx(stated, rel=0.0005)


def test_two_cards_hold_half_and_what_both_need():
    (whole,), (half,) = loaded(QWEN, W8A8, mtp=False), loaded(QWEN, W8A8, mtp=False, tensor_parallel=2)
    assert whole / 2 < half < whole / 2 * 1.01
    (bf16,) = loaded(QWEN, BF16, tensor_parallel=2)
    assert bf16 / GIB == pytest.approx(33.5, abs=0.1)


def test_more_cards_than_kv_heads_hold_copies_of_their_projections():
    tensors = [("model.layers.0.self_attn.k_proj.weight", "BF16", (512, 2048))]
    assert [loaded(QWEN, tensors, tensor_parallel=cards) for cards in (1, 2, 8)] == [[2097152], [1048576], [1048576]]


def test_routers_and_vectors_are_whole_on_every_card():
    for name, shape in (
        ("mlp.gate.weight", (256, 2048)),
        ("mlp.shared_expert_gate.weight", (1, 2048)),
        ("input_layernorm.weight", (2048,)),
    ):
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        assert loaded(QWEN, [("model.layers.0." + name, "BF16", shape)], tensor_parallel=8) == [size]


def test_stages_hold_their_layers_and_the_ends_hold_the_rest():
    first, last = loaded(QWEN, BF16, pipeline_parallel=2)
    assert first + last == sum(loaded(QWEN, BF16))
    embedding = ("model.embed_tokens.weight", "BF16", (1000, 2048))
    output = ("lm_head.weight", "BF16", (1000, 2048))
    layer = ("model.layers.39.mlp.gate.weight", "BF16", (2, 2048))
    assert loaded(QWEN, [embedding, output, layer], pipeline_parallel=2) == [4096000, 4096000 + 8192]
    assert loaded(QWEN, [embedding, layer], pipeline_parallel=2) == [4096000, 4096000 + 8192], "shared embeddings are on both"


def test_a_layer_beyond_the_last_is_one_for_guessing_ahead():
    tensors = [("model.layers.61.mlp.gate.weight", "BF16", (2, 8)), ("model.layers.60.mlp.gate.weight", "BF16", (2, 8))]
    assert loaded(MLA, tensors) == [64]
    assert loaded(MLA, tensors, mtp=False) == [32]


def test_a_tensor_of_unknown_format_has_no_size():
    with pytest.raises(UnknownOutput, match="tensor 'x.weight': dtype 'Q9'"):
        loaded(QWEN, [("x.weight", "Q9", (2, 2))])


# Recipes


def test_recipes_state_what_the_models_say(shipped):
    """Only keys that the models have, with their values; what the geometry needs is all there."""
    for model, full in (("qwen3.6-35b-a3b", QWEN), ("qwen3-next-80b-a3b", NEXT)):
        stated = shipped["models"][model]["config"]
        mine, theirs = (item.get("text_config", item) for item in (stated, full))
        known = dict(theirs, full_attention_interval=4)
        assert {key: known.get(key) for key in mine} == mine
        assert read_config(stated, model) == read_config(full, model)
    assert shipped["models"]["qwen3.5-35b-a3b"]["config"] == shipped["models"]["qwen3.6-35b-a3b"]["config"]


def test_the_tally_of_35_billion_parameters_is_short_and_loses_nothing():
    rows = tally(BF16)
    assert len(rows) < 200
    assert sum(row[3] for row in rows) == 16 * sum(math.prod(shape) for _name, _dtype, shape in BF16)
    assert json.loads(json.dumps(rows)) == rows
