# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine needs on one platform: from the catalog into the plan, for vLLM on cards that are CPU cores."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._arguments import spell
from ansible_collections.ironserve.llm.plugins.module_utils._catalog import resolve
from ansible_collections.ironserve.llm.plugins.module_utils._plan import PlanInput, make_plan


def card(index, core, memory_mib=3072):
    return {"id": "cpu:{0}".format(index), "index": index, "health": "ok", "memory_total_mib": memory_mib, "cpuset": core}


def plan_of(shipped, engine="vllm", cards=None, **changes):
    data = {
        "host": "local",
        "address": "127.0.0.1",
        "catalog": resolve(shipped, "cpu", "smollm2-135m", engine),
        "cards": cards or [card(0, "0"), card(1, "1")],
        "image": "ironserve/vllm-cpu:0",
        "weights_path": "/weights",
        "key_file": "/keys/engine.key",
        "cache_dir": "/cache",
    }
    data.update(changes)
    return make_plan(PlanInput(**data))


def specs(plan):
    return [replica["spec"] for replica in plan["replicas"]]


def test_choosing_the_engine_chooses_the_weights_it_reads(shipped):
    assert resolve(shipped, "cpu", "smollm2-135m", "vllm")["weights"]["name"] == "hf_bf16"
    assert resolve(shipped, "cpu", "smollm2-135m", "llama_cpp")["weights"]["name"] == "q4_1"
    assert resolve(shipped, "cpu", "smollm2-135m", "vllm", "q4_1")["weights"]["name"] == "q4_1"


def test_converted_weights_carry_what_they_are_made_from(shipped):
    source = resolve(shipped, "cpu", "smollm2-135m", "vllm")["weights"]["source"]
    assert source["kind"] == "convert"
    assert source["base"] == shipped["models"]["smollm2-135m"]["weights"]["variants"][source["variant"]]


def test_every_replica_computes_on_its_own_core(shipped):
    plan = plan_of(shipped)
    assert [spec["environment"]["VLLM_CPU_OMP_THREADS_BIND"] for spec in specs(plan)] == ["0", "1"]
    assert [spec["cpuset"] for spec in specs(plan)] == ["0", "1"]
    assert "VLLM_CPU_OMP_THREADS_BIND" not in specs(plan_of(shipped, "llama_cpp"))[0]["environment"]


def test_a_group_of_cards_computes_on_all_of_its_cores(shipped):
    # Its nine heads can be divided by three.
    plan = plan_of(shipped, settings={"tensor_parallel_size": 3}, cards=[card(number, str(number)) for number in range(3)])
    assert [spec["environment"]["VLLM_CPU_OMP_THREADS_BIND"] for spec in specs(plan)] == ["0,1,2"]


def test_the_user_may_still_choose_the_cores(shipped):
    plan = plan_of(shipped, environment={"VLLM_CPU_OMP_THREADS_BIND": "0-1"})
    assert {spec["environment"]["VLLM_CPU_OMP_THREADS_BIND"] for spec in specs(plan)} == {"0-1"}


def test_needs_of_one_engine_do_not_reach_another(shipped):
    quick, real = specs(plan_of(shipped, "llama_cpp"))[0], specs(plan_of(shipped))[0]
    assert (quick["pids_limit"], quick["shm_mib"]) == (256, 64)
    assert real["pids_limit"] > 256
    assert real["shm_mib"] > 64
    assert real["memory_mib"] == 3072
    assert "platforms" not in resolve(shipped, "cpu", "smollm2-135m", "vllm")["engine"]


def test_the_command_line_of_the_real_engine(shipped):
    command = specs(plan_of(shipped))[0]["command"]
    assert command[:3] == ["vllm", "serve", "/models"]
    for words in (
        ["--dtype", "bfloat16"],
        ["--kv-cache-memory-bytes", "268435456"],
        ["--shutdown-timeout", "20"],
        ["--tool-call-parser", "hermes"],
        ["--chat-template", "/opt/ironserve/chat_template.jinja"],
        ["--max-num-seqs", "2"],
    ):
        at = command.index(words[0])
        assert command[at : at + 2] == words
    for word in ("--enforce-eager", "--enable-prefix-caching", "--enable-auto-tool-choice"):
        assert word in command
    assert "--threads" not in command


def test_the_container_waits_longer_than_the_engine(shipped):
    spec = specs(plan_of(shipped))[0]
    patience = int(spec["command"][spec["command"].index("--shutdown-timeout") + 1])
    assert spec["stop_timeout_s"] >= patience + 15


def test_memory_of_the_recipe_is_that_of_the_engine(shipped):
    real, quick = (resolve(shipped, "cpu", "smollm2-135m", engine)["model"]["memory"] for engine in ("vllm", "llama_cpp"))
    assert real["overhead_mib"] > 1000 > quick["overhead_mib"]
    assert real["kv_bytes_per_token"] == quick["kv_bytes_per_token"]
    with pytest.raises(Exception, match="does not fit card cpu:0"):
        plan_of(shipped, cards=[card(0, "0", 1024)])


def test_the_cache_for_kv_holds_a_sequence_of_full_length(shipped):
    chosen = resolve(shipped, "cpu", "smollm2-135m", "vllm")
    need = chosen["model"]["memory"]["kv_bytes_per_token"] * chosen["settings"]["max_model_len"]
    assert chosen["settings"]["kv_cache_memory_bytes"] >= need * chosen["settings"]["max_num_seqs"]


def test_checks_for_one_engine_are_added_and_the_catalog_stays_as_it_was(shipped):
    before = len(shipped["models"]["smollm2-135m"]["acceptance"]["checks"])
    kinds = [item["check"] for item in resolve(shipped, "cpu", "smollm2-135m", "vllm")["model"]["acceptance"]["checks"]]
    assert kinds[-1] == "prefix_cache"
    assert "prefix_cache" not in [item["check"] for item in resolve(shipped, "cpu", "smollm2-135m")["model"]["acceptance"]["checks"]]
    assert len(shipped["models"]["smollm2-135m"]["acceptance"]["checks"]) == before == len(kinds) - 1


def test_switches_are_spelled_as_words(shipped):
    engine = shipped["engines"]["vllm"]
    assert spell(engine, {"enforce_eager": True}) == ["--enforce-eager"]
    assert spell(engine, {"enforce_eager": False}) == []
