# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Descriptions of quantization held against headers: each way to disagree has its word, its module and its shard."""

from __future__ import annotations

import copy
import dataclasses
import io

import pytest
from faults import tiny_w8a8
from faults.tiny_w8a8 import FULL, SCHEME, TINY

from ansible_collections.ironserve.llm.plugins.module_utils import _quantization, _safetensors
from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

LAYER = "model.language_model.layers."


def headers(tensors, parts: int = 2) -> dict:
    """Shard -> tensors, as ``_structure.inspect`` gives them, through real headers."""
    out = {}
    for name, held in tiny_w8a8.split(tensors, parts).items():
        head, size = tiny_w8a8.header(held)
        out[name] = _safetensors.read_header(io.BytesIO(head), len(head) + size, name)
    return out


class Case:
    """A good model that a test breaks in one place."""

    def __init__(self, g=TINY, plain=(), extra=("weight_scale",)) -> None:
        self.tensors = tiny_w8a8.names(g, plain, extra)
        self.config = tiny_w8a8.config(g)
        self.block = copy.deepcopy({**SCHEME, "ignore": tiny_w8a8.ignored(self.tensors)})
        self.described = None

    def judge(self, **more):
        config = {**self.config, "quantization_config": self.block} if self.block is not None else self.config
        return _quantization.judge(config, headers(self.tensors), self.described, **more)


@pytest.fixture
def case() -> Case:
    return Case()


def only(verdict, check: str) -> str:
    """The one line of a verdict with one problem."""
    assert verdict.checks == [check], verdict.problems
    assert len(verdict.problems) == 1, verdict.problems
    return verdict.problems[0]


# ---- good ones


def test_a_good_description_passes(case):
    verdict = case.judge(wanted="compressed-tensors")
    assert (verdict.problems, verdict.notes, verdict.method) == ([], [], "compressed-tensors")
    assert (verdict.quantized, verdict.plain, verdict.linear_attention) == (68, 18, "quantized")
    assert verdict.ignore == sorted(tiny_w8a8.ignored(case.tensors), key=lambda name: (name != "lm_head", name))


def test_the_list_of_a_real_model_is_derived_exactly():
    """Qwen3.6-35B-A3B as published in W8A8: 194 modules stay plain, linear attention is int8, the draft layer too.

    With 4 experts in place of 256, which changes nothing about the list and is 50 times quicker.
    """
    g = dataclasses.replace(FULL, experts=4)
    tensors = tiny_w8a8.names(g)
    shards = headers(tensors, 8)
    block = _quantization.derive(tiny_w8a8.config(g), shards)
    expected = ["lm_head"]
    expected += [f"{LAYER}{layer}.mlp.{gate}" for layer in range(40) for gate in ("gate", "shared_expert_gate")]
    modules = ("attn.proj", "attn.qkv", "mlp.linear_fc1", "mlp.linear_fc2")
    expected += [f"model.visual.blocks.{number}.{module}" for number in range(27) for module in modules]
    expected += ["model.visual.merger.linear_fc1", "model.visual.merger.linear_fc2"]
    expected += ["mtp.fc", "mtp.layers.0.mlp.gate", "mtp.layers.0.mlp.shared_expert_gate"]
    assert block["ignore"] == expected and len(expected) == 194
    assert {key: value for key, value in block.items() if key != "ignore"} == SCHEME
    verdict = _quantization.judge({**tiny_w8a8.config(g), "quantization_config": block}, shards)
    assert (verdict.problems, verdict.quantized, verdict.plain) == ([], 809, 194)


@pytest.mark.parametrize("g", [TINY, tiny_w8a8.DENSE])
@pytest.mark.parametrize("plain", [(), ("in_proj_a", "in_proj_b", "mtp."), ("linear_attn",), ("shared_expert.", "mlp.down")])
def test_what_is_derived_passes_whatever_was_left_plain(g, plain):
    case = Case(g, plain)
    case.block = _quantization.derive(case.config, headers(case.tensors))
    verdict = case.judge()
    assert verdict.problems == []
    assert verdict.linear_attention == {(): "quantized", ("linear_attn",): "plain"}.get(
        plain, "mixed" if "in_proj_a" in plain else "quantized"
    )


def test_patterns_say_the_same_in_five_entries(case):
    case.block["ignore"] = ["lm_head", r"re:.*mlp\.gate$", "re:.*shared_expert_gate$", r"re:.*visual\..*", "mtp.fc"]
    assert case.judge().problems == []


def test_plain_weights_need_no_description():
    case = Case(plain=("",))
    case.block = None
    verdict = case.judge()
    assert (verdict.problems, verdict.method, verdict.quantized) == ([], "", 0)


def test_a_copy_for_older_readers_must_be_a_copy(case):
    case.config["compression_config"] = copy.deepcopy(case.block)
    assert case.judge().problems == []
    case.config["compression_config"]["format"] = "other"
    assert "quantization_config and compression_config differ" in only(case.judge(), "two_descriptions")


# ---- broken in one place


@pytest.mark.parametrize(
    ("fault", "check", "where", "says"),
    [
        ("ignored_int8", "ignored_but_quantized", "layers.0.linear_attn.out_proj: ", ["'re:.*linear_attn.*'", "garbage", "(14 more"]),
        ("no_config", "no_description", "layers.0.linear_attn.in_proj_qkv: ", ["neither config.json nor quant_model_desc", "(67 more"]),
        (
            "half_of_a_pair_ignored",
            "part_ignored",
            "layers.0.linear_attn.in_proj_qkv: ",
            ["in_proj_z'", "in_proj_qkvz and not in_proj_qkv:"],
        ),
        ("scale_missing", "scale_missing", "layers.1.linear_attn.out_proj: ", ["no weight_scale in any shard"]),
        ("scale_renamed", "scale_name", "layers.0.linear_attn.out_proj: ", ["is called scale,", "(67 more"]),
        ("wrong_format", "wrong_format", None, ["'pack-quantized', the shards hold I8"]),
        ("not_ignored", "not_ignored", "layers.0.mlp.gate: ", ["weight is BF16 and no ignore entry", "(4 more"]),
    ],
)
def test_each_broken_variant_is_refused_with_its_reason_module_and_shard(case, fault, check, where, says):
    model = tiny_w8a8.Model(case.tensors, {**case.config, "quantization_config": case.block})
    tiny_w8a8.BROKEN[fault](model)
    line = only(_quantization.judge(model.config, headers(model.tensors)), check)
    start = "config.json: " if where is None else "model-00001-of-00002.safetensors: model.language_model." + where
    assert line.startswith(start + check + ": ")
    assert all(word in line for word in says), line


def test_the_shard_that_is_named_is_the_one_that_holds_the_module(case):
    del case.tensors["mtp.layers.0.self_attn.o_proj.weight_scale"]
    line = only(case.judge(), "scale_missing")
    assert line.startswith("model-00002-of-00002.safetensors: mtp.layers.0.self_attn.o_proj: ")


# ---- how the engine matches


def test_exact_entries_are_renamed_and_patterns_are_not(case):
    """``re:model\\.language_model`` matches in the tool that made the weights and never in the engine."""
    case.block["ignore"] = [name for name in case.block["ignore"] if ".mlp.gate" not in name or name.startswith("mtp.")]
    gates = [name for name in tiny_w8a8.ignored(case.tensors) if name.startswith(LAYER) and name.endswith("mlp.gate")]
    assert len(gates) == 4
    case.block["ignore"] += [r"re:model\.language_model\.layers\.\d+\.mlp\.gate$"]
    verdict = case.judge()
    only(verdict, "not_ignored")
    assert "1 entries of ignore match no module, first 're:model" in verdict.notes[0]
    case.block["ignore"][-1] = r"re:language_model\.model\.layers\.\d+\.mlp\.gate$"
    assert case.judge().problems == []
    case.block["ignore"][-1:] = [name.replace("model.language_model.", "language_model.model.") for name in gates]
    assert case.judge().problems == []


def test_a_pattern_need_only_match_the_beginning(case):
    case.block["ignore"].append("re:.*in_proj_q")
    assert "in_proj_z" in only(case.judge(), "part_ignored")


@pytest.mark.parametrize(
    ("entries", "check"),
    [
        # of a joined module the engine asks for the whole name only exactly
        ([LAYER + "3.self_attn.qkv_proj"], "ignored_but_quantized"),
        (["re:.*layers.3.self_attn.qkv_proj"], None),
        ([LAYER + "3.self_attn." + part for part in ("q_proj", "k_proj", "v_proj")], "ignored_but_quantized"),
        ([LAYER + "3.self_attn.q_proj", LAYER + "3.self_attn.k_proj"], "part_ignored"),
        (["re:.*self_attn.[qkv]_proj"], "ignored_but_quantized"),
        (["re:.*shared_expert.gate_proj"], "part_ignored"),
        # experts are one module, asked for as a whole or by the parts of the first
        ([LAYER + "1.mlp.experts"], "ignored_but_quantized"),
        ([LAYER + "1.mlp.experts.0." + part for part in ("gate_proj", "up_proj", "down_proj")], "ignored_but_quantized"),
        ([LAYER + "1.mlp.experts.0.down_proj"], "part_ignored"),
        ([LAYER + "1.mlp.experts.1.down_proj"], None),
        (["re:.*experts"], "ignored_but_quantized"),
        (["re:mtp"], "ignored_but_quantized"),
        (["mtp.layers.0.self_attn.o_proj"], "ignored_but_quantized"),
        (["re:.*in_proj_[ab]$"], "ignored_but_quantized"),
        (["lm_head", "re:.*lm_head"], None),
        (["re:.*linear_attn["], "bad_entry"),
        ([17], "bad_entry"),
    ],
)
def test_entries_match_as_in_the_engine(case, entries, check):
    case.block["ignore"] += entries
    verdict = case.judge()
    assert verdict.checks == ([check] if check else []), verdict.problems
    if check is None and "lm_head" not in entries:
        assert entries[0] in verdict.notes[0]


def test_an_unknown_architecture_takes_patterns_only_where_names_cannot_matter(case):
    case.config["architectures"] = ["BrandNewForConditionalGeneration"]
    assert case.judge().problems == []
    case.block["ignore"].append("re:.*nothing")
    assert case.judge().problems == []
    case.block["ignore"].append("re:visual.*")
    assert "write re:.* in front" in only(case.judge(), "bad_entry")


def test_flat_names_are_the_same_at_run_time_whatever_the_architecture():
    case = Case()
    towers = [name for name in case.tensors if name.startswith("model.visual")]
    tensors = {name.replace("model.language_model.", "model."): about for name, about in case.tensors.items() if name not in towers}
    case.tensors, case.config["architectures"] = tensors, ["Qwen3NextForCausalLM"]
    case.block["ignore"] = [r"re:model\.layers\.\d+\.mlp\.(gate|shared_expert_gate)$", "re:mtp.*gate$", "mtp.fc"]
    assert case.judge().problems == []
    case.block["ignore"][0] = r"re:layers"
    assert case.judge().checks == ["not_ignored"]


def test_groups_name_their_targets_by_class_or_name(case):
    group = case.block["config_groups"]["group_0"]
    group["targets"] = ["re:.*linear_attn.*", "re:.*(gate|up|down|q|k|v|o)_proj$"]
    assert case.judge().problems == []
    group["targets"] = ["re:.*linear_attn.*"]
    verdict = case.judge()
    assert verdict.checks == ["no_target"] and "layers.0.mlp" in verdict.problems[0]


# ---- scales


@pytest.mark.parametrize(
    ("suffix", "about", "check", "says"),
    [
        ("weight_scale", ("F32", (7, 1)), "scale_shape", "[7, 1], strategy channel needs [32, 1]"),
        ("weight_scale", ("F32", (1,)), "scale_shape", "[1]"),
        ("weight_scale", ("F32", (32,)), None, ""),
        ("weight_scale", ("BF16", (32, 1)), None, ""),
        ("weight_scale", ("I8", (32, 1)), "scale_type", "weight_scale is I8"),
        ("weight_zero_point", ("F32", (32, 1)), "scale_stray", "weight_zero_point"),
        ("input_scale", ("F32", (1,)), "scale_stray", "input_scale"),
    ],
)
def test_a_scale_must_fit_its_weight(case, suffix, about, check, says):
    module = LAYER + "0.linear_attn.out_proj"
    assert case.tensors[module + ".weight"] == ("I8", (32, 32))
    case.tensors[module + "." + suffix] = about
    verdict = case.judge()
    if check is None:
        assert verdict.problems == []
    else:
        # an int8 number that is no matrix with a name of its own is odd in itself
        assert check in verdict.checks
        line = next(line for line in verdict.problems if check in line)
        assert module in line and says in line


def test_a_plain_module_with_a_scale_is_of_two_checkpoints(case):
    case.tensors[LAYER + "0.mlp.gate.weight_scale"] = ("F32", (2, 1))
    assert LAYER + "0.mlp.gate: scale_stray: is left alone and BF16, yet has weight_scale" in only(case.judge(), "scale_stray")


def test_a_scale_without_its_weight_is_found(case):
    del case.tensors["mtp.layers.0.self_attn.o_proj.weight"]
    verdict = case.judge()
    assert verdict.checks == ["incomplete", "scale_orphan"]
    assert any("mtp.layers.0.self_attn.o_proj: scale_orphan" in line for line in verdict.problems)
    assert any("mtp.layers.0: incomplete: is full_attention and lacks self_attn.o_proj" in line for line in verdict.problems)


def test_static_activations_need_their_scale(case):
    case.block["config_groups"]["group_0"]["input_activations"].update(strategy="tensor", dynamic=False)
    assert "there is no input_scale (67 more" in only(case.judge(), "scale_missing")
    for name in [name for name in case.tensors if name.endswith(".weight_scale")]:
        case.tensors[name.replace("weight_scale", "input_scale")] = ("F32", (1,))
    assert case.judge().problems == []
    with pytest.raises(UnknownOutput, match="static"):
        _quantization.derive(case.config, headers(case.tensors))


def test_one_scale_for_a_whole_matrix_is_another_strategy(case):
    for name in [name for name in case.tensors if name.endswith(".weight_scale")]:
        case.tensors[name] = ("F32", (1,))
    block = _quantization.derive(case.config, headers(case.tensors))
    assert block["config_groups"]["group_0"]["weights"]["strategy"] == "tensor"
    assert case.judge().checks == ["scale_shape"]
    case.block = block
    assert case.judge().problems == []


# ---- what is joined, and what must be there


def test_parts_that_differ_in_the_shards_cannot_be_described(case):
    module = LAYER + "3.self_attn.k_proj"
    case.tensors[module + ".weight"] = ("BF16", case.tensors[module + ".weight"][1])
    del case.tensors[module + ".weight_scale"]
    line = only(case.judge(), "mixed_parts")
    assert LAYER + "3.self_attn.q_proj" in line and module in line and "qkv_proj" in line
    case.block["ignore"].append(module)
    only(case.judge(), "mixed_parts")


def test_an_expert_that_differs_from_the_others_is_found(case):
    module = LAYER + "2.mlp.experts.1.down_proj"
    case.tensors[module + ".weight"] = ("BF16", case.tensors[module + ".weight"][1])
    del case.tensors[module + ".weight_scale"]
    assert module in only(case.judge(), "mixed_parts")


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("layers.1.", "config.json promises 4 layers, 1 are not there, first 1"),
        ("layers.0.linear_attn.out_proj", "layers.0: incomplete: is linear_attention and lacks linear_attn.out_proj"),
        ("layers.3.self_attn.o_proj", "layers.3: incomplete: is full_attention and lacks self_attn.o_proj"),
        ("layers.0.mlp.experts.1.", "layers.0.mlp.experts: incomplete: 1 of 2 experts are not there, first 1"),
        ("layers.0.mlp.experts.1.up_proj", "layers.0.mlp.experts.1: incomplete: lacks up_proj"),
        ("layers.0.mlp.shared_expert.up_proj", "layers.0.mlp.shared_expert: incomplete: has gate_proj without up_proj"),
    ],
)
def test_what_the_config_promises_must_be_there(case, gone, says):
    case.tensors = {name: about for name, about in case.tensors.items() if "model.language_model." + gone not in name}
    assert says in only(case.judge(), "incomplete")


@pytest.mark.parametrize("key, says", [("num_hidden_layers", "promises {0} layers"), ("num_experts", "of {0} experts are not there")])
def test_a_number_beyond_all_models_is_a_problem_and_takes_no_memory(case, key, says):
    case.config["text_config"].update({key: 1 << 70, "full_attention_interval": 1})
    del case.config["text_config"]["layer_types"]
    assert says.format(1 << 70) in "".join(case.judge().problems)


def test_a_layer_number_beyond_all_models_takes_no_memory(case):
    case.tensors = {name.replace("mtp.layers.0.", "mtp.layers.{0}.".format(1 << 70)): about for name, about in case.tensors.items()}
    assert "1 are not there, first 0" in "".join(case.judge().problems)


def test_a_layer_of_the_other_kind_is_found(case):
    case.config["text_config"]["layer_types"] = ["full_attention"] * 3 + ["linear_attention"]
    assert {"is full_attention", "is linear_attention"} <= {" ".join(line.split(": ")[3].split()[:2]) for line in case.judge().problems}


def test_the_kinds_of_layers_are_derived_when_the_config_has_no_list(case):
    del case.config["text_config"]["layer_types"]
    case.config["text_config"]["full_attention_interval"] = 2
    assert LAYER + "1: incomplete: is full_attention" in "".join(case.judge().problems)


def test_a_promised_draft_layer_that_is_not_there_is_a_note(case):
    case.tensors = {name: about for name, about in case.tensors.items() if not name.startswith("mtp.")}
    verdict = case.judge()
    assert verdict.problems == []
    assert any("multi-token prediction" in note for note in verdict.notes)


def test_an_int8_output_layer_is_refused(case):
    case.tensors["lm_head.weight"] = ("I8", (64, 32))
    case.tensors["lm_head.weight_scale"] = ("F32", (64, 1))
    case.block["ignore"].remove("lm_head")
    assert "lm_head: output_quantized" in only(case.judge(), "output_quantized")


@pytest.mark.parametrize(
    ("name", "about"),
    [
        (LAYER + "0.mlp.experts.gate_up_proj", ("I8", (2, 4, 4))),
        (LAYER + "0.linear_attn.conv1d.weight", ("I8", (64, 1, 4))),
        ("model.language_model.embed_tokens.weight", ("I8", (64, 32))),
        (LAYER + "0.mlp.gate.weight", ("U8", (2, 32))),
        (LAYER + "0.extra.weight_packed", ("I32", (2, 32))),
    ],
)
def test_a_layout_that_is_not_known_is_never_good(case, name, about):
    tiny_w8a8.BYTES.setdefault("U8", 1)
    tiny_w8a8.BYTES.setdefault("I32", 4)
    case.tensors[name] = about
    assert name.rpartition(".")[0] in only(case.judge(), "unknown_layout")


def test_four_bit_weights_are_said_to_be_unknown_and_nothing_else(case):
    tiny_w8a8.BYTES.setdefault("I32", 4)
    packed = {}
    for name, about in case.tensors.items():
        if about[0] == "I8":
            packed[name + "_packed"] = ("I32", (about[1][0], about[1][1] // 4))
        else:
            packed[name] = about
    case.tensors, case.block["format"] = packed, "pack-quantized"
    assert "has weight_packed, which this collection cannot judge (67 more" in only(case.judge(), "unknown_layout")


def test_parts_that_some_models_have_alone_are_not_missed():
    case = Case(tiny_w8a8.DENSE)
    case.tensors = {name: about for name, about in case.tensors.items() if ".mlp.gate_proj" not in name}
    assert case.judge().problems == []
    case.tensors = {name: about for name, about in case.tensors.items() if "3.self_attn.k_proj" not in name}
    verdict = case.judge()
    assert verdict.checks == ["incomplete"]
    assert any("3.self_attn: incomplete: has q_proj and v_proj without k_proj" in line for line in verdict.problems)


# ---- the block itself


@pytest.mark.parametrize(
    ("path", "value", "check"),
    [
        (["format"], "int_quantized", "wrong_format"),
        (["config_groups"], {}, "bad_block"),
        (["ignore"], "lm_head", "bad_block"),
        (["config_groups", "group_0", "weights", "num_bits"], 4, "wrong_scheme"),
        (["config_groups", "group_0", "weights", "symmetric"], False, "wrong_scheme"),
        (["config_groups", "group_0", "weights", "type"], "float", "wrong_scheme"),
        (["config_groups", "group_0", "weights", "dynamic"], True, "wrong_scheme"),
        (["config_groups", "group_0", "weights", "strategy"], "group", "wrong_scheme"),
        (["config_groups", "group_0", "input_activations"], None, "wrong_scheme"),
        (["config_groups", "group_0", "input_activations", "num_bits"], 16, "wrong_scheme"),
        (["config_groups", "group_0", "input_activations", "strategy"], "group", "wrong_scheme"),
        (["config_groups", "group_0", "targets"], None, "wrong_scheme"),
        (["quant_method"], "gptq", "unknown_method"),
    ],
)
def test_a_scheme_that_the_numbers_do_not_have_is_refused(case, path, value, check):
    place = case.block
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert check in case.judge().checks


def test_a_block_over_plain_weights_is_refused():
    assert "no matrix in the shards is" in only(Case(plain=("",)).judge(), "not_quantized")


def test_what_the_engine_is_told_must_be_what_the_weights_say(case):
    assert "told ascend, and the weights say compressed-tensors" in only(case.judge(wanted="ascend"), "wrong_method")
    case.block = None
    assert case.judge(wanted="compressed-tensors").checks == ["no_description", "wrong_method"]


def test_many_faults_of_a_kind_are_counted_and_never_cut_in_silence(case):
    for number, name in enumerate(sorted(name for name in case.tensors if name.endswith(".weight_scale"))[:30]):
        case.tensors[name] = ("F32", (100 + number, 1))
    verdict = case.judge()
    assert len(verdict.problems) == 21
    assert verdict.problems[-1] == "scale_shape: 10 more lines of this kind"


# ---- fp8


def fp8() -> Case:
    tiny_w8a8.BYTES.setdefault("F8_E4M3", 1)
    case = Case()
    case.tensors = {
        name.replace(".weight_scale", ".weight_scale_inv"): ("F8_E4M3", about[1]) if about[0] == "I8" else about
        for name, about in case.tensors.items()
    }
    case.block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    return case


def test_fp8_needs_its_scales_and_says_what_is_not_judged():
    case = fp8()
    verdict = case.judge()
    assert verdict.problems == [] and "not held against" in verdict.notes[0]
    del case.tensors[LAYER + "0.linear_attn.out_proj.weight_scale_inv"]
    assert LAYER + "0.linear_attn.out_proj" in only(case.judge(), "scale_missing")
    case.tensors[LAYER + "0.mlp.gate.weight_scale_inv"] = ("F32", (1, 1))
    assert case.judge().checks == ["scale_missing", "scale_stray"]


def test_int8_is_no_fp8(case):
    case.block = {"quant_method": "fp8"}
    assert "weight is I8 and config.json says fp8" in only(case.judge(), "wrong_method")


def test_no_block_can_be_derived_from_what_is_no_int8():
    for case in (fp8(), Case(plain=("",))):
        with pytest.raises(UnknownOutput, match="0 matrices of int8"):
            _quantization.derive(case.config, headers(case.tensors))


# ---- Ascend


def ascend(change=lambda described, tensors: None):
    """A verdict on weights as Ascend's tool makes them, after ``change``."""
    case = Case(plain=("in_proj_a", "in_proj_b", "mtp."), extra=("weight_scale", "weight_offset"))
    case.block = None
    case.described = {"model_quant_type": "W8A8_DYNAMIC", "version": "1.0.0", "group_size": 0}
    for name in case.tensors:
        kind = case.tensors.get(name.rpartition(".")[0] + ".weight", ("",))[0]
        case.described[name] = "W8A8_DYNAMIC" if kind == "I8" else "FLOAT"
    change(case.described, case.tensors)
    return case.judge(wanted="ascend")


def test_a_good_ascend_description_passes():
    verdict = ascend()
    assert (verdict.problems, verdict.method, verdict.linear_attention) == ([], "ascend", "mixed")


OUT = LAYER + "0.linear_attn.out_proj"


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        (lambda d, t: d.pop(OUT + ".weight"), "key_missing", OUT),
        (lambda d, t: d.update({OUT + ".weight": "FLOAT"}), "type_differs", "described as FLOAT and its weight is I8"),
        (lambda d, t: d.update({"mtp.fc.weight": "W8A8_DYNAMIC"}), "type_differs", "mtp.fc"),
        (lambda d, t: d.update({OUT + ".weight": "W3A3"}), "unknown_type", "'W3A3'"),
        (lambda d, t: t.pop(OUT + ".weight_offset"), "scale_missing", "lacks weight_offset"),
        (lambda d, t: d.update({LAYER + "9.mlp.down_proj.weight": "W8A8_DYNAMIC"}), "key_stray", "layers.9"),
        (lambda d, t: t.update({"mtp.fc.weight_scale": ("F32", (32, 1))}), "scale_stray", "mtp.fc"),
        (lambda d, t: d.update({OUT + ".weight": "W8A8"}), "scale_missing", "input_scale, input_offset, deq_scale, quant_bias"),
    ],
)
def test_an_ascend_description_that_disagrees_is_refused(change, check, says):
    assert says in only(ascend(change), check)


def test_ascend_parts_that_the_engine_joins_must_have_one_type():
    def change(described, tensors):
        module = LAYER + "3.self_attn.v_proj"
        described[module + ".weight"] = "FLOAT"
        tensors[module + ".weight"] = ("BF16", tensors[module + ".weight"][1])
        for suffix in ("weight_scale", "weight_offset"):
            del tensors[f"{module}.{suffix}"]

    line = only(ascend(change), "part_differs")
    assert "described as W8A8_DYNAMIC" in line and "v_proj as FLOAT" in line and "qkv_proj" in line


def test_a_description_under_another_name_is_recognized(case):
    case.block = None
    line = only(case.judge(names=["config.json", "quant_model_description_w8a8_dynamic.json"]), "description_name")
    assert line.startswith("quant_model_description_w8a8_dynamic.json: ") and "rename it to quant_model_description.json" in line


def test_two_descriptions_are_one_too_many(case):
    case.described = dict.fromkeys(case.tensors, "FLOAT")
    assert "two_descriptions" in case.judge().checks


# ---- values of another type than anybody expects


@pytest.mark.parametrize("odd", [[], {}, ["channel"], {"a": 1}])
def test_a_value_of_an_odd_type_is_a_problem_like_others(case, odd):
    case.config["architectures"] = [odd]
    case.block["config_groups"]["group_0"]["weights"]["strategy"] = odd
    assert case.judge().problems
    case.block, case.described = None, dict.fromkeys(case.tensors, odd)
    assert "unknown_type" in case.judge().checks
