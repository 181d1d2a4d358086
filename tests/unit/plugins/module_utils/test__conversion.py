# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A conversion gives the right numbers under the right names, the same bytes every time, and refuses what it does not know."""

from __future__ import annotations

import hashlib
import json
import os
import struct

import pytest
import yaml
from faults.tiny_llama import F16, F32, Q8_0, TENSORS, model, text
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _conversion, _safetensors
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def rounded(value):
    """The nearest bfloat16, ties to even, found by comparing neighbours."""
    word = struct.unpack("<I", struct.pack("<f", value))[0]
    exact = struct.unpack("<f", struct.pack("<f", value))[0]
    near = [struct.unpack("<f", struct.pack("<I", (word >> 16) + step << 16))[0] for step in (0, 1)]
    gaps = [abs(item - exact) for item in near]
    if gaps[0] == gaps[1]:
        return near[(word >> 16) & 1]
    return near[gaps.index(min(gaps))]


def read_tensors(path):
    with open(path, "rb") as handle:
        raw = handle.read()
    length = struct.unpack("<Q", raw[:8])[0]
    found = json.loads(raw[8 : 8 + length])
    found.pop("__metadata__")
    for name, item in found.items():
        begin, end = (8 + length + at for at in item["data_offsets"])
        words = struct.unpack("<{0}H".format((end - begin) // 2), raw[begin:end])
        found[name] = (item["shape"], [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words])
    return found


@pytest.fixture
def made(tmp_path):
    """Little model converted: its numbers, the tensors, the folder."""
    values = model(str(tmp_path / "m.gguf"))
    folder = tmp_path / "out"
    folder.mkdir()
    _conversion.convert(str(tmp_path / "m.gguf"), str(folder))
    return values, read_tensors(str(folder / "model.safetensors")), folder


def test_every_file_that_is_promised_is_made_and_no_other(made):
    assert sorted(os.listdir(made[2])) == sorted(_conversion.FILES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
        ("blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"),
        ("blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight"),
        ("blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
    ],
)
def test_numbers_stay_in_order_and_are_rounded_once(made, old, new):
    values, tensors, _folder = made
    shape = next(list(reversed(shape)) for name, shape, _kind in TENSORS if name == old)
    assert tensors[new] == (shape, [rounded(value) for value in values[old]])


@pytest.mark.parametrize(("old", "new", "heads"), [("attn_q", "q_proj", 2), ("attn_k", "k_proj", 1)])
def test_rotary_rows_go_back_to_two_halves(made, old, new, heads):
    values, tensors, _folder = made
    shape, found = tensors["model.layers.0.self_attn.{0}.weight".format(new)]
    rows = [found[start : start + 64] for start in range(0, len(found), 64)]
    plain = [rounded(value) for value in values["blk.0.{0}.weight".format(old)]]
    assert shape == [heads * 32, 64]
    for head in range(heads):
        for pair in range(16):
            for half in (0, 1):
                came_from = head * 32 + 2 * pair + half
                assert rows[head * 32 + half * 16 + pair] == plain[came_from * 64 : came_from * 64 + 64]


def test_the_weights_file_is_sound(made):
    path = made[2] / "model.safetensors"
    with open(path, "rb") as handle:
        assert len(_safetensors.read_header(handle, path.stat().st_size, "m")) == len(TENSORS)


def test_configuration_says_what_the_header_says(made):
    config = json.loads((made[2] / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]) == (64, 96, 1)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (2, 1, 32)
    assert config["rms_norm_eps"] == 1e-05
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config["tie_word_embeddings"] is True
    assert (config["bos_token_id"], config["eos_token_id"], config["vocab_size"]) == (1, 0, 6)


def test_a_model_with_its_own_output_is_not_tied(tmp_path):
    model(str(tmp_path / "m.gguf"), [*TENSORS, ("output.weight", (64, 6), Q8_0)])
    _conversion.convert(str(tmp_path / "m.gguf"), str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False
    assert "lm_head.weight" in read_tensors(str(tmp_path / "model.safetensors"))


def test_vocabulary_merges_markers_and_template_arrive(made):
    whole = json.loads((made[2] / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((made[2] / "tokenizer_config.json").read_text())
    assert whole["model"]["vocab"] == {"<|end|>": 0, "<|start|>": 1, "a": 2, "b": 3, "ab": 4, "é": 5}
    assert whole["model"]["merges"] == [["a", "b"]]
    assert [(item["id"], item["content"], item["special"]) for item in whole["added_tokens"]] == [
        (0, "<|end|>", True),
        (1, "<|start|>", True),
    ]
    assert whole["pre_tokenizer"]["pretokenizers"][0] == {"type": "Digits", "individual_digits": True}
    assert (settings["eos_token"], settings["bos_token"]) == ("<|end|>", "<|start|>")
    assert settings["chat_template"] == "{{ messages }}"


def test_same_file_same_bytes(made, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    _conversion.convert(str(tmp_path / "m.gguf"), str(again))
    for name in _conversion.FILES:
        assert (again / name).read_bytes() == (made[2] / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": (8, text("qwen3"))}, "general.architecture is 'qwen3'; this collection converts llama"),
        ({"tokenizer.ggml.model": (8, text("llama"))}, "tokenizer.ggml.model is 'llama'"),
        ({"tokenizer.ggml.pre": (8, text("deepseek"))}, "tokenizer.ggml.pre is 'deepseek'"),
        ({"llama.rope.freq_base": None}, "lacks llama.rope.freq_base"),
    ],
)
def test_another_kind_of_model_is_refused_by_name(tmp_path, changes, said):
    model(str(tmp_path / "m.gguf"), **changes)
    with pytest.raises(LLMError, match=said):
        _conversion.convert(str(tmp_path / "m.gguf"), str(tmp_path))


@pytest.mark.parametrize(
    ("tensor", "said"),
    [(("blk.0.attn_sinks.weight", (64,), F32), "attn_sinks.weight' has no known place"), (("output.weight", (64, 6), F16), "type F16")],
)
def test_a_tensor_without_a_place_or_known_numbers_is_refused(tmp_path, tensor, said):
    model(str(tmp_path / "m.gguf"), [*TENSORS, tensor])
    with pytest.raises(LLMError, match=said):
        _conversion.convert(str(tmp_path / "m.gguf"), str(tmp_path))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100))
def test_rounding_is_to_the_nearest(value):
    found = struct.unpack("<f", b"\0\0" + _conversion._bf16([value]))[0]
    assert found == rounded(value)


def test_the_demo_model_gives_the_bytes_that_its_recipe_pins(tmp_path, pytestconfig):
    real = os.environ.get("IRONSERVE_TEST_GGUF")
    if not real:
        pytest.skip("IRONSERVE_TEST_GGUF names no file")
    recipe = yaml.safe_load((pytestconfig.rootpath / "roles/catalog/models/smollm2-135m.yml").read_text(encoding="utf-8"))
    _conversion.convert(real, str(tmp_path))
    wanted = {item["path"]: item["sha256"] for item in recipe["weights"]["variants"]["hf_bf16"]["files"]}
    assert {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in wanted} == wanted
