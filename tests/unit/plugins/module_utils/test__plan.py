# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan: recipe A as it was measured, and the promises every plan keeps."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils._catalog import resolve
from ansible_collections.ironserve.llm.plugins.module_utils._compatibility import read_table, select
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._plan import (
    KEY_CONFIG,
    KEY_TARGET,
    PlanInput,
    choose_enhancements,
    enhanced_memory,
    group_cards,
    make_plan,
    render,
)

RECIPE = {
    "name": "toy",
    "enhancements": {
        "mtp": {"default": True, "settings": {"speculative": {"n": 2}}},
        "prefix_caching": {"default": True, "settings": {"caching": True}, "without": {"caching": False}},
        "long_context": {"default": False, "settings": {"max_model_len": 9}},
    },
    "forbidden": [
        {"enhancements": ["mtp", "prefix_caching"], "give_up": "mtp", "reason": "wrong answers", "source": "issue 1", "date": "2026-10-01"}
    ],
}


def flag(plan, word, number=0):
    """The word after ``word`` on a replica's command line."""
    command = plan["replicas"][number]["spec"]["command"]
    return command[command.index(word) + 1]


def states(decisions):
    return {item["name"]: item["state"] for item in decisions}


# Recipe A


def test_recipe_a_as_it_was_proven(k100):
    plan = make_plan(k100())
    assert (plan["platform"], plan["engine"], plan["weights"]) == ("hygon_k100ai", "vllm", "w8a8")
    assert [replica["card_indexes"] for replica in plan["replicas"]] == [[0], [1], [2], [3]]
    assert [replica["port"] for replica in plan["replicas"]] == [8001, 8002, 8003, 8004]
    assert [replica["name"] for replica in plan["replicas"]] == ["k100-01-c0", "k100-01-c1", "k100-01-c2", "k100-01-c3"]
    for number, replica in enumerate(plan["replicas"]):
        assert (replica["tensor_parallel_size"], replica["max_model_len"], replica["max_num_seqs"]) == (1, 131072, 4)
        assert flag(plan, "--tensor-parallel-size", number) == "1"
        assert flag(plan, "--max-model-len", number) == "131072"
        assert flag(plan, "--max-num-seqs", number) == "4"
        assert flag(plan, "--mamba-cache-mode", number) == "align"
        assert flag(plan, "--quantization", number) == "compressed-tensors"
        assert "--enable-prefix-caching" in replica["spec"]["command"]
        assert "--speculative-config" not in replica["spec"]["command"]
        assert round(replica["fit"]["concurrency"], 1) == 7.0
        assert (replica["fit"]["block_tokens"], replica["fit"]["blocks_per_sequence"]) == (1056, 131)
    assert plan["left_out"] == []


def test_recipe_a_gives_up_mtp_and_says_why(k100):
    decisions = {item["name"]: item for item in make_plan(k100())["enhancements"]}
    assert decisions["prefix_caching"]["state"] == "on"
    assert decisions["mtp"]["state"] == "off"
    for part in ("forbidden together", "corrupts the recurrent state", "43559", "2026-10-01"):
        assert part in decisions["mtp"]["reason"]


def test_mtp_instead_of_prefix_caching(k100):
    plan = make_plan(k100(enhancements={"prefix_caching": False, "mtp": True}))
    command = plan["replicas"][0]["spec"]["command"]
    assert "--no-enable-prefix-caching" in command
    assert "--mamba-cache-mode" not in command
    assert json.loads(flag(plan, "--speculative-config")) == {"method": "mtp", "num_speculative_tokens": 2}


def test_plan_for_a_person_says_all_of_it(k100):
    text = "\n".join(render(make_plan(k100())))
    for part in (
        "qwen3.6-35b-a3b W8A8",
        "k100-01-c3",
        "3 (0000:16:00.0)",
        "127.0.0.1:8004",
        "131072 x 4",
        "off mtp",
        "on  prefix_caching",
        "7.0 at once",
    ):
        assert part in text
    assert "arguments vllm serve /models " in text


def test_bf16_on_one_card_is_refused_with_the_two_ways_out(k100):
    """67 GiB of weights in 57.6 GiB of a card; int8 weights or two cards are the ways out, and a shorter context is none."""
    with pytest.raises(LLMError) as caught:
        make_plan(k100(weights="bf16"))
    said = str(caught.value)
    assert "qwen3.6-35b-a3b bf16 does not fit card 0000:07:00.0 of host k100-01: 58968 MiB usable - 68573 weights - 4096 overhead" in said
    ways = said.split("Ways out: ")[1].split("; ")
    assert ways == [
        "smaller weights, llm_weights: w8a8 (35838 MiB): 7.0 at once",
        "more cards per replica, llm_settings: {tensor_parallel_size: 2}: 15.2 at once",
    ]


def test_a_shorter_context_is_a_way_out_where_it_is_one(k100):
    data = k100(settings={"max_model_len": 262144})
    for card in data.cards:
        card["memory_total_mib"] = 49000
    with pytest.raises(LLMError, match="Ways out: more cards per replica.*; a shorter context, max_model_len: ([0-9]+)$") as caught:
        make_plan(data)
    longest = int(str(caught.value).rsplit(" ", 1)[1])
    assert longest % 1056 == 0
    assert make_plan(k100(cards=data.cards, settings={"max_model_len": longest}))["replicas"][0]["fit"]["concurrency"] >= 1
    with pytest.raises(LLMError, match="does not fit"):
        make_plan(k100(cards=data.cards, settings={"max_model_len": longest + 2 * 1056}))


def test_where_nothing_helps_nothing_is_promised(k100):
    data = k100()
    for card in data.cards:
        card["memory_total_mib"] = 4096
    with pytest.raises(LLMError, match="Ways out: smaller weights .llm_weights. or larger cards$"):
        make_plan(data)


def test_a_step_shorter_than_a_block_is_refused(k100):
    with pytest.raises(LLMError, match="max_num_batched_tokens 1024 is less than a block of this hybrid model, 1056 tokens"):
        make_plan(k100(settings={"max_num_batched_tokens": 1024}))
    make_plan(k100(settings={"max_num_batched_tokens": 1056}))
    make_plan(k100(settings={"max_num_batched_tokens": 1024}, enhancements={"prefix_caching": False, "mtp": False}))


def test_a_context_beyond_the_models_own_is_refused(k100):
    with pytest.raises(
        LLMError, match="max_model_len 262145 is beyond the 262144 tokens that 'qwen3.6-35b-a3b' was made for.*hf_overrides"
    ):
        make_plan(k100(settings={"max_model_len": 262145}))
    make_plan(k100(settings={"max_model_len": 300000, "hf_overrides": {"rope_parameters": {"rope_type": "yarn"}}}))


def test_pipeline_stages_take_cards_too(k100):
    plan = make_plan(k100(weights="bf16", settings={"pipeline_parallel_size": 2}))
    assert [replica["card_indexes"] for replica in plan["replicas"]] == [[0, 1], [2, 3]]
    assert plan["replicas"][0]["fit"]["weights"] == 34287


def test_heads_that_cannot_be_divided_are_said_before_anything_starts(k100):
    with pytest.raises(LLMError, match="16 attention heads cannot be divided over tensor_parallel_size 3"):
        make_plan(k100(settings={"tensor_parallel_size": 3}))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"speculative": "mtp"}, "setting 'speculative' must be a mapping"),
        ({"speculative": {"num_speculative_tokens": "two"}}, "setting 'num_speculative_tokens' must be a whole number, 1 or more"),
        ({"kv_cache_dtype": "fp9"}, "setting 'kv_cache_dtype': number format 'fp9'"),
        ({"kv_cache_memory_bytes": "4G"}, "setting 'kv_cache_memory_bytes' must be a whole number"),
    ],
)
def test_settings_of_the_cache_that_mean_nothing(k100, settings, says):
    with pytest.raises(LLMError, match=says):
        make_plan(k100(enhancements={"mtp": True}, settings=settings))


def test_bf16_on_card_pairs(k100):
    plan = make_plan(k100(weights="bf16", settings={"tensor_parallel_size": 2}))
    assert [replica["card_indexes"] for replica in plan["replicas"]] == [[0, 1], [2, 3]]
    assert [replica["port"] for replica in plan["replicas"]] == [8001, 8002]
    assert [replica["container"] for replica in plan["replicas"]] == ["ironserve-c0", "ironserve-c2"]
    assert "--quantization" not in plan["replicas"][0]["spec"]["command"]
    assert plan["replicas"][1]["spec"]["own_devices"] == ["/dev/dri/card3", "/dev/dri/renderD130", "/dev/dri/card4", "/dev/dri/renderD131"]


def test_more_sequences_than_fit_is_said(k100):
    plan = make_plan(k100(settings={"max_num_seqs": 8}))
    (said,) = {reason.split(": ", 1)[1] for reason in plan["reasons"] if "do not fit" in reason}
    assert (
        said
        == "8 sequences of full length do not fit at once; more wait in the engine. For no wait: max_num_seqs 7, or max_model_len 115104"
    )
    assert not any("do not fit at once" in reason for reason in make_plan(k100(settings={"max_num_seqs": 7}))["reasons"])
    shorter = make_plan(k100(settings={"max_num_seqs": 8, "max_model_len": 115104}))
    assert not any("do not fit at once" in reason for reason in shorter["reasons"])
    assert not any("do not fit at once" in reason for reason in make_plan(k100())["reasons"])


# A dead card


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(alive=st.sets(st.integers(0, 3), min_size=1), order=st.permutations([0, 1, 2, 3]), gone=st.booleans())
def test_dead_cards_never_renumber_the_others(k100, alive, order, gone):
    """Whatever subset of cards is left, in whatever order they are listed, each keeps name, port and specification."""
    whole = {replica["cards"][0]: replica for replica in make_plan(k100())["replicas"]}
    cards = [k100().cards[number] for number in order]
    if gone:
        cards = [card for card in cards if card["index"] in alive]
    for card in cards:
        if card["index"] not in alive:
            card["health"] = "fault"
    plan = make_plan(k100(cards=cards, allow_degraded=True))
    assert [replica["card_indexes"] for replica in plan["replicas"]] == [[number] for number in sorted(alive)]
    for replica in plan["replicas"]:
        assert replica == whole[replica["cards"][0]]
    assert {item["card"] for item in plan["left_out"]} == {card["id"] for card in cards if card["index"] not in alive}


@pytest.mark.parametrize("health", ["fault", "unknown", "something new", ""])
def test_card_that_is_not_known_to_be_well_stops_the_plan(k100, health):
    data = k100()
    data.cards[2]["health"] = health
    with pytest.raises(LLMError, match="card 2 .0000:0f:00.0. has health '{0}'.*replica_allow_degraded: true".format(health)):
        make_plan(data)


def test_warning_is_still_served(k100):
    data = k100()
    data.cards[2]["health"] = "warning"
    assert len(make_plan(data)["replicas"]) == 4


def test_half_a_group_is_left_out_with_its_reason(recorded):
    recorded["cards"][1]["health"] = "fault"
    groups, left_out = group_cards(recorded["cards"], 2, True, [])
    assert [(number, [card["index"] for card in members]) for number, members in groups] == [(1, [2, 3])]
    assert {item["card"]: item["reason"] for item in left_out}["0000:07:00.0"] == "its group 0 has 1 of 2 cards"


def test_count_and_fewest(k100):
    plan = make_plan(k100(count=2))
    assert [replica["port"] for replica in plan["replicas"]] == [8001, 8002]
    assert [item["reason"] for item in plan["left_out"]] == ["replica_count is 2"] * 2
    with pytest.raises(LLMError, match="host k100-01 can run 2 of the 3 replicas asked for as the fewest .*replica_count is 2"):
        make_plan(k100(count=2, min_count=3))


@pytest.mark.parametrize("min_count", [0, 1])
def test_no_cards_is_no_plan(k100, min_count):
    with pytest.raises(LLMError, match="can run 0 of the 1 replicas.*0 cards"):
        make_plan(k100(cards=[], min_count=min_count))


@pytest.mark.parametrize("key", ["id", "index", "health", "memory_total_mib"])
def test_card_that_is_badly_described_is_named(k100, key):
    data = k100()
    del data.cards[1][key]
    with pytest.raises(LLMError, match="card .* lacks {0}".format(key)):
        make_plan(data)


def test_lost_card_that_does_not_say_its_memory_can_be_left_out(k100):
    data = k100(allow_degraded=True)
    data.cards[1].update(health="fault", memory_total_mib=None)
    plan = make_plan(data)
    assert [replica["card_indexes"] for replica in plan["replicas"]] == [[0], [2], [3]]
    assert [item["card"] for item in plan["left_out"]] == [data.cards[1]["id"]]


@pytest.mark.parametrize("key", ["id", "index"])
def test_two_cards_of_one_identity(k100, key):
    data = k100()
    data.cards[1][key] = data.cards[0][key]
    with pytest.raises(LLMError, match="several cards have the {0} {1}".format(key, data.cards[0][key])):
        make_plan(data)


# The specification and its hash


def hashes(data):
    return [replica["spec"]["spec_hash"] for replica in make_plan(data)["replicas"]]


def test_same_input_same_plan(k100):
    assert make_plan(k100()) == make_plan(k100())


def test_order_of_environment_and_settings_does_not_matter(k100):
    environment = {"B_VAR": "2", "A_VAR": "1"}
    extra = {"max_num_batched_tokens": 4096, "dtype": "float16"}
    turned = [dict(reversed(list(item.items()))) for item in (environment, extra)]
    assert hashes(k100(environment=environment, settings=extra)) == hashes(k100(environment=turned[0], settings=turned[1]))


@pytest.mark.parametrize(
    "change",
    [
        {"image": "registry.example/vllm@sha256:" + "1" * 64},
        {"weights_id": "x" * 64},
        {"weights_path": "/other"},
        {
            "weights": "bf16",
            "settings": {"max_model_len": 1024, "max_num_seqs": 1, "gpu_memory_utilization": 0.9, "tensor_parallel_size": 2},
        },
        {"key_id": "another"},
        {"key_file": "/etc/other.key"},
        {"cache_dir": "/other"},
        {"port_base": 9001},
        {"address": "192.0.2.7"},
        {"uid": 1234},
        {"network": "other"},
        {"settings": {"max_num_seqs": 2}},
        {"environment": {"VLLM_LOGGING_LEVEL": "DEBUG"}},
        {"enhancements": {"prefix_caching": False}},
        {"device_nodes": {"/dev/kfd": 99}},
    ],
    ids=",".join,
)
def test_everything_that_matters_changes_the_spec(k100, change):
    assert not set(hashes(k100(**change))) & set(hashes(k100()))


def test_every_replica_has_its_own_spec_port_cache_and_name(k100):
    replicas = make_plan(k100())["replicas"]
    for values in (
        [replica["spec"]["spec_hash"] for replica in replicas],
        [replica["port"] for replica in replicas],
        [replica["spec"]["mounts"][1]["source"] for replica in replicas],
        [replica["container"] for replica in replicas],
    ):
        assert len(set(values)) == 4


def test_count_changes_no_spec_of_those_that_stay(k100):
    assert hashes(k100(count=2)) == hashes(k100())[:2]


def test_labels_tell_what_runs(k100):
    spec = make_plan(k100())["replicas"][2]["spec"]
    assert spec["labels"] == {
        "ironserve.replica": "k100-01-c2",
        "ironserve.cards": "0000:0f:00.0",
        "ironserve.model": "qwen3.6-35b-a3b",
        "ironserve.weights": "w" * 64,
        "ironserve.spec": spec["spec_hash"],
    }


def test_endpoint_is_where_the_replica_listens(k100):
    for replica in make_plan(k100(address="192.0.2.7"))["replicas"]:
        assert replica["endpoint"]["url"] == "http://192.0.2.7:{0}".format(replica["port"])
        assert replica["spec"]["publish"] == {"address": "192.0.2.7", "port": replica["port"], "container_port": 8000}
        assert replica["endpoint"]["container"] == replica["spec"]["name"]
        assert replica["endpoint"]["api_key_file"] == "/etc/ironserve/keys/engine.key"


def test_a_cache_that_is_too_large_may_be_left_to_the_engine(k100):
    with pytest.raises(LLMError) as caught:
        make_plan(k100(settings={"kv_cache_memory_bytes": 2**40}))
    said = str(caught.value)
    assert "= 19034 MiB, 1048576 of them (kv_cache_memory_bytes)" in said
    assert said.endswith("Ways out: kv_cache_memory_bytes: null, and the engine takes what is left: 7.0 at once")


@pytest.mark.parametrize(
    ("used", "share", "says"),
    [
        (3276, 0.95, []),
        (
            3277,
            0.95,
            [
                "3277 MiB in use with nobody on it, so 62243 are free and the share of the engine is 62244; "
                "where it ends at its start for that, gpu_memory_utilization: 0.94"
            ],
        ),
        (3277, 0.9, []),
        (None, 0.95, []),
    ],
)
def test_a_card_on_which_less_is_free_than_the_engine_asks_for(k100, used, share, says):
    """65520 MiB x 0.95 = 62244 MiB."""
    data = k100(settings={"gpu_memory_utilization": share})
    data.cards[0].update(memory_used_mib=used, holders=[])
    assert [line.split(" has ")[1] for line in make_plan(data)["reasons"] if line.startswith("card 0000:07:00.0 has")] == says
    data.cards[0]["holders"] = [{"pid": 7, "container": "ironserve-c0"}]
    assert not [line for line in make_plan(data)["reasons"] if line.startswith("card ")], "what runs there now will be gone then"


# What is known not to work


def known(k100, catalog, **changes):
    data = k100(**changes)
    data.catalog["compatibility"] = select(read_table(catalog["compatibility"]), "hygon_k100ai", "vllm")
    return [line for line in make_plan(data)["reasons"] if line.startswith(("refused", "in doubt"))]


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"weights": "fp8"}, "hygon/no_fp8_weights: gfx928 has no FP8"),
        (
            {"weights": "w8a8_ascend"},
            "ascend/ascend_weights_elsewhere: weights that are described for Ascend are read by vllm-ascend alone",
        ),
        ({"settings": {"kv_cache_dtype": "fp8"}}, "hygon/no_fp8_cache: "),
        ({"engine_version": "0.16.0", "settings": {"language_model_only": None, "shutdown_timeout": None}}, "vllm/qwen3_5_architecture: "),
    ],
)
def test_what_the_preflight_would_refuse_is_in_the_plan(k100, catalog, changes, row):
    lines = [line for line in known(k100, catalog, **changes) if line.startswith("refused by the preflight: row " + row)]
    assert len(lines) == 1 and ". Fix: " in lines[0]


def test_what_is_in_doubt_is_in_the_plan(k100, catalog):
    lines = known(k100, catalog, settings={"tensor_parallel_size": 2})
    assert any(line.startswith("in doubt: row hygon/tensor_parallel: tensor parallel 2 gave 0.06 tokens/s") for line in lines)
    lines = known(k100, catalog, engine_version="0.18.1")
    assert [line.split(": ")[1] for line in lines] == ["row vllm/hybrid_context_unchecked"]
    assert known(k100, catalog, engine_version="0.20.0") == []


def test_what_hangs_on_an_unknown_version_is_said_once(k100, catalog):
    assert known(k100, catalog) == []


# Rights and secrets


def test_devices_are_own_and_shared_and_nothing_else(k100):
    data = k100()
    for replica, card in zip(make_plan(data)["replicas"], data.cards, strict=True):
        own = [card["devices"]["card"], card["devices"]["render"]]
        assert replica["spec"]["own_devices"] == own
        assert replica["spec"]["devices"] == ["/dev/kfd", "/dev/mkfd"] + own
        assert replica["spec"]["groups"] == [44]
        assert (replica["spec"]["memory_mib"], replica["spec"]["cpuset"]) == (0, ""), "a card with its own memory limits no host memory"


def test_group_of_root_is_never_given(k100):
    data = k100()
    data.device_nodes.update({"/dev/kfd": 0, "/dev/dri/renderD128": 105})
    assert make_plan(data)["replicas"][0]["spec"]["groups"] == [44, 105]


def test_absent_optional_device_is_not_asked_for(k100):
    data = k100()
    del data.device_nodes["/dev/mkfd"]
    assert "/dev/mkfd" not in make_plan(data)["replicas"][0]["spec"]["devices"]


def test_card_without_its_node_is_named(k100):
    data = k100()
    del data.cards[1]["devices"]["render"]
    with pytest.raises(LLMError, match="card 1 .0000:0a:00.0. of host k100-01 has no known 'render' device node"):
        make_plan(data)


def test_weights_and_key_are_read_only_and_only_the_cache_is_written(k100):
    mounts = {mount["target"]: mount for mount in make_plan(k100())["replicas"][0]["spec"]["mounts"]}
    assert [target for target, mount in mounts.items() if not mount["read_only"]] == ["/cache"]
    assert mounts["/cache"]["owner"] == 64064
    assert mounts["/models"]["read_only"] and mounts["/run/secrets/engine.key"]["read_only"]


def test_key_reaches_vllm_from_its_file_only(k100):
    spec = make_plan(k100())["replicas"][0]["spec"]
    assert spec["entrypoint"][:2] == ["/bin/sh", "-c"]
    assert "cat /run/secrets/engine.key" in spec["entrypoint"][2]
    assert 'exec "$@"' in spec["entrypoint"][2], "the engine must become the process that gets the signals"
    assert "VLLM_API_KEY" not in spec["environment"]
    assert "--api-key" not in spec["command"]


def test_key_reaches_llama_cpp_as_a_file(shipped):
    plan = make_plan(cpu_input(shipped))
    spec = plan["replicas"][0]["spec"]
    assert flag(plan, "--api-key-file") == "/run/secrets/engine.key"
    assert spec["entrypoint"] is None


@pytest.mark.parametrize("name", ["VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_API_KEY", "VLLM_PORT"])
def test_environment_that_opens_the_engine_is_refused(k100, name):
    with pytest.raises(LLMError, match="environment variable {0} is refused: ".format(name)):
        make_plan(k100(environment={name: "1"}))


@pytest.mark.parametrize("where", ["engine", "platform"])
def test_environment_from_the_catalog_is_judged_too(k100, where):
    data = k100()
    holder = data.catalog["engine"] if where == "engine" else data.catalog["platform"]["container"]
    holder.setdefault("environment", {})["VLLM_SERVER_DEV_MODE"] = "1"
    with pytest.raises(LLMError, match="VLLM_SERVER_DEV_MODE is refused"):
        make_plan(data)


def test_environment_of_null_is_left_out(k100):
    environment = make_plan(k100(environment={"VLLM_CACHE_ROOT": None, "MY_VAR": 3}))["replicas"][0]["spec"]["environment"]
    assert "VLLM_CACHE_ROOT" not in environment
    assert environment["MY_VAR"] == "3"


def test_engine_with_an_unknown_kind_of_key(k100):
    data = k100()
    data.catalog["engine"]["key"] = {"kind": "header"}
    with pytest.raises(LLMError, match="engine 'vllm': its key has the unknown kind 'header'; Known: argument, config_file, environment"):
        make_plan(data)


@pytest.mark.parametrize("key", ["plain", """it's "$HOME" `id` \\n %s {x}: # -""", "字"])
def test_key_reaches_an_engine_that_reads_a_configuration_file(k100, tmp_path, key):
    """The planned entrypoint is run for real: the engine's words, then the file, which nobody else reads and the process list does not show."""
    data = k100()
    data.catalog["engine"]["key"] = {
        "kind": "config_file",
        "flag": "--config",
        "name": "api-key",
        "command": ["/bin/cat", "/proc/self/cmdline"],
    }
    spec = make_plan(data)["replicas"][0]["spec"]
    assert spec["command"][:3] == ["/bin/cat", "/proc/self/cmdline", "/models"]
    (tmp_path / "engine.key").write_text(key + "\n", encoding="utf-8")
    script = spec["entrypoint"][2].replace(KEY_TARGET, str(tmp_path / "engine.key")).replace(KEY_CONFIG, str(tmp_path / "key.yaml"))
    done = subprocess.run(
        [*spec["entrypoint"][:2], script, "engine", "/usr/bin/printf", "%s\\n", "a b", "--x"], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["a b", "--x", "--config", str(tmp_path / "key.yaml")]
    assert yaml.safe_load((tmp_path / "key.yaml").read_text(encoding="utf-8")) == {"api-key": key}
    assert (tmp_path / "key.yaml").stat().st_mode & 0o777 == 0o600


def test_engine_does_not_start_without_its_key(k100, tmp_path):
    data = k100()
    data.catalog["engine"]["key"] = {"kind": "config_file", "flag": "--config", "name": "api-key", "command": ["engine"]}
    script = make_plan(data)["replicas"][0]["spec"]["entrypoint"][2]
    script = script.replace(KEY_TARGET, str(tmp_path / "absent.key")).replace(KEY_CONFIG, str(tmp_path / "key.yaml"))
    done = subprocess.run(["/bin/sh", "-c", script, "engine", "/usr/bin/printf", "started"], check=False, capture_output=True, text=True)
    assert (done.returncode != 0, done.stdout) == (True, "")


# Bad settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel_size", 0),
        ("tensor_parallel_size", "two"),
        ("max_model_len", "128k"),
        ("max_model_len", None),
        ("max_num_seqs", 0),
        ("max_num_seqs", True),
        ("gpu_memory_utilization", "most"),
        ("gpu_memory_utilization", 90),
        ("gpu_memory_utilization", 0),
    ],
)
def test_bad_number_is_named(k100, name, value):
    with pytest.raises(LLMError, match="setting '{0}' must be a (whole )?number".format(name)):
        make_plan(k100(settings={name: value}))


@pytest.mark.parametrize("name", ["tensor_parallel_size", "max_model_len", "max_num_seqs"])
@pytest.mark.parametrize("value", [1.5, 2.0, float("inf")])
def test_a_number_with_a_fraction_is_not_cut_off(k100, name, value):
    """The engine would get the fraction on its command line and end."""
    with pytest.raises(LLMError, match="setting '{0}' must be a whole number, 1 or more, found {1}".format(name, value)):
        make_plan(k100(settings={name: value}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"count": -1}, "replica_count must be 0 or more, found -1"),
        ({"min_count": -1}, "replica_min_count must be 0 or more, found -1"),
        ({"uid": -5}, "replica_uid must be 0 or more, found -5"),
        ({"port_base": 0}, "ports 0 to 3 of host k100-01: .* another replica_port_base"),
        ({"port_base": 65533}, "ports 65533 to 65536 of host k100-01"),
        ({"environment": {"FLAG": True}}, "variable FLAG must be text, found True; quote it"),
        ({"environment": {"FLAG": {"a": 1}}}, "variable FLAG must be text, found {'a': 1}"),
        ({"environment": {"A=B": "c"}}, "variable 'A=B' has a name that no program could read"),
        ({"environment": {1: "c"}}, "variable 1 has a name that no program could read"),
        ({"enhancements": {1: True}}, "unknown enhancement '1'"),
    ],
)
def test_an_option_that_means_nothing_is_named(k100, changes, says):
    with pytest.raises(LLMError, match=says):
        make_plan(k100(**changes))


@pytest.mark.parametrize(("name", "instead"), [("port", "replica_port_base"), ("host", "replica_address"), ("served_names", "llm_aliases")])
def test_a_setting_that_is_the_plans_own_is_not_dropped_in_silence(k100, name, instead):
    with pytest.raises(LLMError, match="setting '{0}' .variable llm_settings. is the plan's own; use {1}".format(name, instead)):
        make_plan(k100(settings={name: 9000}))


def test_a_version_that_cannot_be_compared_is_named(k100):
    with pytest.raises(LLMError, match="replica_image.version says it: 'abc' is no version"):
        make_plan(k100(engine_version="abc"))


def test_a_group_that_is_larger_than_the_host_is_said_once(k100):
    with pytest.raises(LLMError) as caught:
        make_plan(k100(settings={"tensor_parallel_size": 8}))
    assert str(caught.value).count("its group 0 has 4 of 8 cards") == 1
    assert "fewer cards per replica (tensor_parallel_size" in str(caught.value)


def test_the_last_port_there_is_can_be_used(k100):
    assert make_plan(k100(port_base=65532, environment={"A": 1, "B": 0.5}))["replicas"][-1]["port"] == 65535


@pytest.mark.parametrize("key", ["index", "memory_total_mib"])
@pytest.mark.parametrize("value", ["3", -1, True, 1.5])
def test_a_card_whose_figures_are_no_numbers(k100, key, value):
    data = k100()
    data.cards[3][key] = value
    with pytest.raises(LLMError, match="card 0000:16:00.0: '{0}' must be a whole number, 0 or more, found {1!r}".format(key, value)):
        make_plan(data)


def test_mistyped_setting_is_an_error(k100):
    with pytest.raises(LLMError, match="no word for the setting 'max_num_seq'; did you mean \"max_num_seqs\""):
        make_plan(k100(settings={"max_num_seq": 2}))


# Enhancements


def test_default_pair_gives_one_up():
    decisions, extra = choose_enhancements(RECIPE, {}, [])
    assert states(decisions) == {"mtp": "off", "prefix_caching": "on", "long_context": "off"}
    assert extra == {"caching": True}


def test_explicitly_wanted_one_stays_and_the_other_is_given_up():
    decisions, extra = choose_enhancements(RECIPE, {"mtp": True}, [])
    assert states(decisions) == {"mtp": "on", "prefix_caching": "off", "long_context": "off"}
    assert extra == {"speculative": {"n": 2}, "caching": False}
    assert "wrong answers" in {item["name"]: item["reason"] for item in decisions}["prefix_caching"]


def test_asking_for_both_is_refused_with_the_way_out():
    with pytest.raises(LLMError) as caught:
        choose_enhancements(RECIPE, {"mtp": True, "prefix_caching": True}, [])
    for part in ("mtp and prefix_caching forbidden together", "wrong answers", "issue 1", "llm_allow_forbidden: [mtp+prefix_caching]"):
        assert part in str(caught.value)


@pytest.mark.parametrize("allowed", ["mtp+prefix_caching", "prefix_caching+mtp"])
@pytest.mark.parametrize("wanted", [{}, {"mtp": True, "prefix_caching": True}])
def test_allowed_pair_runs_and_is_called_a_danger(allowed, wanted):
    decisions, extra = choose_enhancements(RECIPE, wanted, [allowed])
    assert states(decisions)["mtp"] == states(decisions)["prefix_caching"] == "on"
    assert all("DANGER" in item["reason"] for item in decisions if item["name"] != "long_context")
    assert extra == {"speculative": {"n": 2}, "caching": True}


def test_allowing_another_pair_allows_nothing():
    assert states(choose_enhancements(RECIPE, {}, ["mtp+long_context"])[0])["mtp"] == "off"


def test_switched_off_by_hand_is_no_conflict():
    decisions, _extra = choose_enhancements(RECIPE, {"prefix_caching": False}, [])
    assert states(decisions) == {"mtp": "on", "prefix_caching": "off", "long_context": "off"}
    assert {item["name"]: item["reason"] for item in decisions}["prefix_caching"] == "asked for"


AHEAD = {"speculative": {"method": "mtp", "num_speculative_tokens": 2}}
BOTH = ["mtp+prefix_caching"]


@pytest.mark.parametrize(
    ("wanted", "own", "says"),
    [
        ({}, AHEAD, "mtp is on because llm_settings has speculative"),
        ({"mtp": True}, {"enable_prefix_caching": True}, "prefix_caching is on because llm_settings has enable_prefix_caching"),
        ({"mtp": True}, {"enable_prefix_caching": None}, "prefix_caching is on because llm_settings has enable_prefix_caching"),
        (
            {"mtp": False, "prefix_caching": False},
            dict(AHEAD, enable_prefix_caching=True),
            "mtp is on because .*; prefix_caching is on because",
        ),
    ],
)
def test_settings_are_no_way_round_a_forbidden_pair(k100, wanted, own, says):
    with pytest.raises(
        LLMError, match="mtp and prefix_caching forbidden together .*; " + says + r".*llm_allow_forbidden: \[mtp\+prefix_caching\]"
    ):
        make_plan(k100(enhancements=wanted, settings=own))
    plan = make_plan(k100(enhancements=wanted, settings=own, allow_forbidden=BOTH))
    reasons = {item["name"]: item["reason"] for item in plan["enhancements"] if item["state"] == "on"}
    assert all("DANGER, allowed by llm_allow_forbidden" in reasons[name] for name in ("mtp", "prefix_caching"))


@pytest.mark.parametrize(
    ("wanted", "own", "expected"),
    [
        ({"mtp": True}, {"speculative": None}, {"mtp": "off", "prefix_caching": "off"}),
        ({}, {"enable_prefix_caching": False}, {"mtp": "off", "prefix_caching": "off"}),
        ({"prefix_caching": False, "mtp": False}, AHEAD, {"mtp": "on", "prefix_caching": "off"}),
        ({}, {"max_num_batched_tokens": 4096}, {"chunked_prefill": "on"}),
        ({}, {"enforce_eager": True}, {"cudagraph": "off"}),
        ({}, {"mamba_cache_mode": None}, {"prefix_caching": "on"}),
    ],
)
def test_the_plan_says_what_settings_make_of_an_enhancement(k100, wanted, own, expected):
    decisions = {item["name"]: item for item in make_plan(k100(enhancements=wanted, settings=own))["enhancements"]}
    assert {name: decisions[name]["state"] for name in expected} == expected
    before = {item["name"]: item for item in make_plan(k100(enhancements=wanted))["enhancements"]}
    for name in expected:
        changed = decisions[name]["state"] != before[name]["state"]
        assert decisions[name]["reason"] == ("llm_settings has " + next(iter(own)) if changed else before[name]["reason"])


@pytest.mark.parametrize(
    ("wanted", "own"),
    [
        ({"mtp": True}, {"speculative": {"num_speculative_tokens": 3}}),
        ({}, {"max_model_len": 65536}),
        ({"long_context": False}, {"max_model_len": 8192}),
    ],
)
def test_settings_that_only_tune_change_no_decision(k100, wanted, own):
    assert make_plan(k100(enhancements=wanted, settings=own))["enhancements"] == make_plan(k100(enhancements=wanted))["enhancements"]


def test_enhancement_that_is_on_adds_to_the_memory_figures():
    known = {"mtp": {"memory": {"kv": 20, "state": 0.5}}, "prefix": {"memory": {"state": 100}}, "long": {}}
    decisions = [{"name": name, "state": state, "reason": ""} for name, state in (("mtp", "on"), ("prefix", "off"), ("long", "on"))]
    assert enhanced_memory({"kv": 1, "state": 2, "overhead": 3}, known, decisions) == {"kv": 21, "state": 2.5, "overhead": 3}


@pytest.mark.parametrize("more", [{"states": 5}, {"state": "5"}, {"state": True}, {"state": None}])
def test_memory_that_is_added_to_nothing_is_named(more):
    with pytest.raises(LLMError, match="enhancement 'mtp' cannot add .* to the memory figure 'states?'; "):
        enhanced_memory({"state": 2}, {"mtp": {"memory": more}}, [{"name": "mtp", "state": "on", "reason": ""}])


def test_mtp_costs_memory_and_the_plan_says_so(k100):
    """With 2 tokens: 123 blocks and 9 for states, of 24150016 bytes; without anything: 125 and 3, of 21626880."""
    off, mtp = ({"prefix_caching": False, "mtp": False}, {"prefix_caching": False, "mtp": True})
    assert [make_plan(k100(enhancements=wanted))["replicas"][0]["fit"]["per_sequence"] for wanted in (off, mtp)] == [2640, 3041]


def test_every_enhancement_is_revertible_alone(k100):
    """Whatever is on, switching one off gives the words that the plan has without it, and no others go."""
    whole = {"prefix_caching": True, "mtp": False, "long_context": True, "chunked_prefill": True, "cudagraph": True}
    words = set(make_plan(k100(enhancements=whole))["replicas"][0]["spec"]["command"])
    gone = {}
    for name in ("prefix_caching", "long_context", "chunked_prefill", "cudagraph"):
        less = set(make_plan(k100(enhancements=dict(whole, **{name: False})))["replicas"][0]["spec"]["command"])
        gone[name] = (sorted(words - less), sorted(less - words))
    assert gone == {
        "prefix_caching": (["--enable-prefix-caching", "--mamba-cache-mode", "align"], ["--no-enable-prefix-caching"]),
        "long_context": (["131072"], ["32768"]),
        "chunked_prefill": (["--max-num-batched-tokens", "10240"], []),
        "cudagraph": ([], ["--enforce-eager"]),
    }


def test_unknown_enhancement_lists_the_known():
    with pytest.raises(
        LLMError, match="unknown enhancement 'prefix_cache' .variable llm_enhancements. for model 'toy': did you mean \"prefix_caching\""
    ):
        choose_enhancements(RECIPE, {"prefix_cache": True}, [])


@pytest.mark.parametrize("value", ["false", "off", 0, None])
def test_enhancement_takes_only_booleans(value):
    with pytest.raises(LLMError, match="enhancement 'mtp' .* must be true or false"):
        choose_enhancements(RECIPE, {"mtp": value}, [])


# The demo's platform


def cpu_input(shipped, cards=4, **changes):
    values = {
        "host": "local",
        "address": "127.0.0.1",
        "catalog": resolve(shipped, "cpu", "smollm2-135m"),
        "cards": [
            {
                "id": "cpu:{0}".format(number),
                "index": number,
                "health": "ok",
                "memory_total_mib": 1024,
                "cpuset": str(number % 2),
                "devices": {},
            }
            for number in range(cards)
        ],
        "image": "ironserve/llama-cpp:test",
        "weights_path": "/w",
        "key_file": "/k",
        "cache_dir": "/c",
    }
    values.update(changes)
    return PlanInput(**values)


def test_the_demo_fits_four_cards_of_one_gibibyte(shipped):
    plan = make_plan(cpu_input(shipped))
    assert [replica["port"] for replica in plan["replicas"]] == [8001, 8002, 8003, 8004]
    for number, replica in enumerate(plan["replicas"]):
        assert replica["spec"]["cpuset"] == str(number % 2)
        assert replica["spec"]["memory_mib"] == 1024
        assert replica["spec"]["devices"] == []
        assert replica["fit"]["concurrency"] >= replica["max_num_seqs"]
    assert flag(plan, "--model") == "/models/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_too_little_memory_names_card_and_ways_out(shipped):
    data = cpu_input(shipped)
    for card in data.cards:
        card["memory_total_mib"] = 256
    with pytest.raises(LLMError, match="smollm2-135m q4_1 does not fit card cpu:0 of host local"):
        make_plan(data)


def test_plan_does_not_change_its_input(k100):
    data = k100(settings={"max_num_seqs": 2}, environment={"A_VAR": "1"})
    before = copy.deepcopy(dataclasses.asdict(data))
    make_plan(data)
    assert dataclasses.asdict(data) == before


def test_a_description_that_lies_beside_the_weights_is_what_the_engine_sees(k100):
    def spec(**changes):
        return make_plan(k100(**changes))["replicas"][0]["spec"]

    own = spec(weights_config=k100().weights_path + "/config.json", weights_config_id="a")
    beside = spec(weights_config="/srv/w8a8.config.json", weights_config_id="a")
    assert [mount for mount in own["mounts"] if mount["target"].endswith("config.json")] == []
    assert {"source": "/srv/w8a8.config.json", "target": "/models/config.json", "read_only": True} in beside["mounts"]
    # Another description under the same name is another replica.
    assert beside["spec_hash"] != spec(weights_config="/srv/w8a8.config.json", weights_config_id="b")["spec_hash"]


# The engine's version


def test_settings_are_held_against_the_version_that_was_read_or_stated_or_tagged(k100):
    plan = make_plan(k100(engine_version="0.18.1+das.fa71803.dtk2604"))
    assert "--shutdown-timeout" in plan["replicas"][0]["spec"]["command"]
    assert not any("version is not known" in reason for reason in plan["reasons"])
    for changes in ({"engine_version": "0.17.0"}, {"image": "quay.io/x/vllm:v0.17.0"}):
        with pytest.raises(LLMError, match="engine 'vllm' 0.17.0 does not know the setting 'shutdown_timeout' .known from 0.18.0 on"):
            make_plan(k100(**changes))
    # What was read goes before what the tag says.
    make_plan(k100(image="quay.io/x/vllm:v0.17.0", engine_version="0.18.1"))


def test_a_version_that_nobody_knows_is_said(k100, shipped):
    assert "the engine's version is not known" in make_plan(k100())["reasons"][-1]
    assert make_plan(cpu_input(shipped))["reasons"][-1].startswith("ironserve-c3: "), "llama.cpp's words are those of every version"


def test_a_key_that_ends_the_engine_is_refused(k100):
    settings = {"speculative": {"method": "mtp", "num_speculative_tokens": 2, "threshold": 0.8}}
    with pytest.raises(LLMError, match="setting 'speculative' must not have the key 'threshold'"):
        make_plan(k100(settings=settings, enhancements={"prefix_caching": False}))


# Several models on one fleet: each host, or group of hosts, has its own


def test_aliases_come_after_the_recipes_names(k100):
    plan = make_plan(k100(aliases=["chat", "qwen3.6-35b-a3b", "team/chat:v2"]))
    assert plan["served_names"] == ["qwen3.6-35b-a3b", "chat", "team/chat:v2"]
    command = plan["replicas"][0]["spec"]["command"]
    start = command.index("--served-model-name")
    assert command[start + 1 : start + 5] == ["qwen3.6-35b-a3b", "chat", "team/chat:v2", "--host"]
    assert hashes(k100(aliases=["chat"])) != hashes(k100())


@pytest.mark.parametrize("alias", ["", "two words", "-x", "a" * 129, 'q"', "x\n"])
def test_an_alias_that_no_request_could_name(k100, alias):
    with pytest.raises(LLMError, match="llm_aliases. is no name of a model"):
        make_plan(k100(aliases=[alias]))


def test_two_models_share_the_cards_of_a_host_without_sharing_names_ports_or_caches(k100, catalog):
    """Each plan has its own cards; ports and names follow the cards, so neither moves when the other changes."""
    whole = make_plan(k100())
    one = make_plan(k100(card_groups=[[0], [1]]))
    other = make_plan(k100(card_groups=[[2], [3]], catalog=resolve(catalog, "hygon_k100ai", "qwen2.5-0.5b"), aliases=["small"]))
    assert [replica["port"] for plan in (one, other) for replica in plan["replicas"]] == [replica["port"] for replica in whole["replicas"]]
    assert [replica["name"] for plan in (one, other) for replica in plan["replicas"]] == [replica["name"] for replica in whole["replicas"]]
    assert one["replicas"] == whole["replicas"][:2]
    assert [plan["served_names"] for plan in (one, other)] == [["qwen3.6-35b-a3b"], ["qwen2.5-0.5b", "small"]]
    sources = [
        mount["source"]
        for plan in (one, other)
        for replica in plan["replicas"]
        for mount in replica["spec"]["mounts"]
        if not mount["read_only"]
    ]
    assert len(set(sources)) == 4


# Rights and cards


def nvidia(catalog, **card):
    """Make the plan's input for a host with one H100."""
    found = {"id": "0000:10:00.0", "index": 0, "health": "ok", "memory_total_mib": 81559, "devices": {"nvidia": "/dev/nvidia0"}}
    return PlanInput(
        host="h100-01",
        address="127.0.0.1",
        catalog=resolve(catalog, "nvidia_h100", "qwen3.6-35b-a3b", weights="fp8"),
        cards=[dict(found, **card)],
        image="registry.example/vllm:v0.32.0",
        weights_path="/w",
        key_file="/k",
        cache_dir="/c",
    )


def test_the_toolkit_is_asked_for_the_card_by_its_uuid(catalog):
    spec = make_plan(nvidia(catalog, uuid="GPU-7"))["replicas"][0]["spec"]
    assert spec["device_requests"] == [{"driver": "nvidia", "capabilities": ["gpu"], "device_ids": ["GPU-7"]}]
    assert spec["own_devices"] == ["/dev/nvidia0"]


@pytest.mark.parametrize("uuid", [{}, {"uuid": ""}, {"uuid": None}])
def test_a_card_that_the_toolkit_cannot_be_asked_for_is_refused(catalog, uuid):
    with pytest.raises(LLMError, match="card 0000:10:00.0 of host h100-01 has no known 'uuid', by which the nvidia toolkit is asked"):
        make_plan(nvidia(catalog, **uuid))


def test_another_uuid_is_another_specification(catalog):
    first, second = (make_plan(nvidia(catalog, uuid=name))["replicas"][0]["spec"]["spec_hash"] for name in ("GPU-7", "GPU-8"))
    assert first != second


def test_rights_that_a_platform_states_arrive_and_are_part_of_the_specification(k100):
    data = k100(count=1)
    plain = make_plan(data)["replicas"][0]["spec"]
    assert (plain["cap_add"], plain["security_opt"], plain["ipc"]) == ([], [], "private")
    data.catalog["platform"]["container"].update(cap_add=["SYS_PTRACE"], security_opt=["seccomp=unconfined"], ipc="host")
    wide = make_plan(data)["replicas"][0]["spec"]
    assert (wide["cap_add"], wide["security_opt"], wide["ipc"]) == (["SYS_PTRACE"], ["seccomp=unconfined"], "host")
    assert wide["spec_hash"] != plain["spec_hash"]


@pytest.mark.parametrize(
    ("needs", "says"),
    [
        ({"ipc": "shareable"}, "container.ipc of the platform is 'shareable'; it is one of private, host"),
        ({"security_opt": ["no-new-privileges:false"]}, "container.security_opt of the platform says no-new-privileges:false"),
    ],
)
def test_rights_that_no_replica_has_are_refused(k100, needs, says):
    data = k100()
    data.catalog["platform"]["container"].update(needs)
    with pytest.raises(LLMError, match=says):
        make_plan(data)


def test_files_over_the_images_own_are_mounted_read_only_and_part_of_the_specification(k100):
    plain, place = make_plan(k100()), "/opt/ironserve/chat_template.jinja"
    seen = set()
    for digit in "12":
        data = k100(files_dir="/srv/files")
        data.catalog["platform"]["container"]["files"] = {place: {"source": "qwen/chat_template.jinja", "sha256": digit * 64}}
        plan = make_plan(data)
        mounts = {item["target"]: item for item in plan["replicas"][0]["spec"]["mounts"]}
        assert mounts[place] == {"source": "/srv/files/{0}/chat_template.jinja".format(digit * 64), "target": place, "read_only": True}
        assert "{0} of the image is covered by qwen/chat_template.jinja (sha256 {1})".format(place, digit * 12) in plan["reasons"]
        seen.update(replica["spec"]["spec_hash"] for replica in plan["replicas"])
    assert len(seen | {replica["spec"]["spec_hash"] for replica in plain["replicas"]}) == 12


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("cap_add", "all", "has ALL: it is as much as privileged"),
        ("cap_add", "CAP_SYS_ADMIN", "has SYS_ADMIN: "),
        ("devices_shared", "/dev/dri/", "has /dev/dri: it gives every card"),
        ("devices_optional", "/dev", "has /dev: it gives every device"),
        ("mounts", {"source": "/", "target": "/host"}, "has /: it gives the whole host"),
        ("mounts_optional", {"source": "/var/run/docker.sock", "target": "/x"}, "has /var/run/docker.sock: "),
    ],
)
def test_rights_that_are_as_good_as_privileged_are_refused(k100, key, value, says):
    data = k100()
    data.catalog["platform"]["container"].setdefault(key, []).append(value)
    with pytest.raises(LLMError, match="container.{0} of the platform {1}".format(key, says)):
        make_plan(data)


def test_mounts_that_only_some_hosts_have_are_marked(k100):
    data = k100(count=1)
    data.catalog["platform"]["container"]["mounts_optional"] = [{"source": "/etc/a", "target": "/etc/b", "read_only": True}]
    assert make_plan(data)["replicas"][0]["spec"]["mounts"][-1] == {
        "source": "/etc/a",
        "target": "/etc/b",
        "read_only": True,
        "optional": True,
    }


# Weights that are on the host


def lying(bits, **config):
    """What was read on the host: each of 40 layers a split matrix of ``bits``, a vision tower and a layer for guessing ahead."""
    rows = [["layer", layer, "split", bits] for layer in range(40)]
    text = {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 40,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_size": 2048,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262144,
    }
    vision_and_mtp = [["vision", -1, "split", 2**33], ["mtp", 0, "split", 2**34]]
    return {"config": {"dtype": "bfloat16", "text_config": {**text, **config}}, "tensors": rows + vision_and_mtp}


def test_weights_on_the_host_count_as_they_are_and_it_is_said(k100):
    """40 layers of 800 MiB; neither the vision tower nor the layer for guessing ahead is loaded by this recipe."""
    plan = make_plan(k100(weights_found=lying(800 * 2**23)))
    assert plan["replicas"][0]["fit"]["weights"] == 32000
    assert plan["replicas"][0]["fit"]["available"] == 58968 - 32000 - 4096
    assert "weights: 32000 MiB on a card, by the tensors on the host; by the recipe 35838" in plan["reasons"]
    assert plan["replicas"][0]["fit"]["concurrency"] > make_plan(k100())["replicas"][0]["fit"]["concurrency"]


def test_the_layer_for_guessing_ahead_counts_when_it_is_used(k100):
    plan = make_plan(k100(weights_found=lying(800 * 2**23), enhancements={"prefix_caching": False, "mtp": True}))
    assert plan["replicas"][0]["fit"]["weights"] == 32000 + 2048


def test_two_cards_hold_half_of_the_tensors_each(k100):
    plan = make_plan(k100(weights_found=lying(800 * 2**23), settings={"tensor_parallel_size": 2}))
    assert plan["replicas"][0]["fit"]["weights"] == 16000
    assert any(reason.endswith("; by the recipe 17919") for reason in plan["reasons"])


def test_weights_on_the_host_that_are_larger_than_the_recipe_says_are_refused(k100):
    with pytest.raises(LLMError, match="58968 MiB usable - 60000 weights - 4096 overhead"):
        make_plan(k100(weights_found=lying(1500 * 2**23)))


def test_the_geometry_is_that_of_the_config_on_the_host(k100):
    plain = make_plan(k100(weights_found=lying(800 * 2**23)))["replicas"][0]["fit"]
    more_heads = make_plan(k100(weights_found=lying(800 * 2**23, num_key_value_heads=4)))["replicas"][0]["fit"]
    assert more_heads["concurrency"] < plain["concurrency"]
    with pytest.raises(LLMError, match="config.json of the weights on the host: has 'index_topk'"):
        make_plan(k100(weights_found=lying(800 * 2**23, index_topk=8)))


def test_what_lies_on_the_host_changes_no_container(k100):
    """The plan without the host and the plan with it must be one and the same to whoever compares them."""
    with_host, without = (make_plan(k100(weights_found=found)) for found in (lying(800 * 2**23), {}))
    assert [item["spec"] for item in with_host["replicas"]] == [item["spec"] for item in without["replicas"]]


def test_without_a_known_geometry_the_figures_of_the_recipe_count(k100):
    data = k100(weights_found=lying(800 * 2**23))
    del data.catalog["model"]["config"]
    plan = make_plan(data)
    assert plan["replicas"][0]["fit"]["weights"] == 35838 and not any("on the host" in reason for reason in plan["reasons"])
