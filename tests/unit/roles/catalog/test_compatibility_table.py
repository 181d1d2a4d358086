# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The shipped compatibility table: every row can be used, has its origin, and says what it is there to say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ansible_collections.ironserve.llm.plugins.module_utils._catalog import collect
from ansible_collections.ironserve.llm.plugins.module_utils._compatibility import judge, known_holes, read_table, select

FOLDER = Path(__file__).resolve().parents[4] / "roles" / "catalog" / "compatibility"


@pytest.fixture(scope="module")
def table():
    files = [(str(path), yaml.safe_load(path.read_text(encoding="utf-8"))) for path in sorted(FOLDER.glob("*.yml"))]
    return read_table(collect("compatibility", files))


def verdicts(table, **situation):
    """Rows that say something about a situation: id -> status."""
    asked = {"settings": {}, "environment": {}, "driver": None, "firmware": None, "enhancement": [], "tensor_parallel_size": 1, **situation}
    rows = select(table, asked["platform"], asked.get("engine", ""))["rows"]
    return {item.detail.split()[1].rstrip(":"): item.status for item in judge(rows, asked) if item.detail.startswith("row ")}


def holes(table, version, **situation):
    rows = select(table, "hygon_k100ai", "vllm")["vulnerabilities"]
    found = known_holes(rows, "vllm", version, {"platform": "hygon_k100ai", "model": "qwen3.6-35b-a3b", "settings": {}, **situation})
    return {word: item.status for item in found for word in item.detail.split() if word in rows}


def test_the_file_is_the_entry():
    assert [path.stem for path in sorted(FOLDER.glob("*.yml"))] == ["ascend", "cpu", "hygon", "nvidia", "vllm"]
    for path in FOLDER.glob("*.yml"):
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["name"] == path.stem


def test_every_vulnerability_of_the_reliability_facts_is_there(table):
    assert sorted(table["vulnerabilities"]) == sorted(
        ["CVE-2026-22778", "CVE-2026-24779", "CVE-2026-22807", "CVE-2026-27893", "CVE-2026-48710", "CVE-2026-5497", "CVE-2026-9540"]
        + ["CVE-2025-62164", "CVE-2025-62426", "CVE-2025-48956", "CVE-2025-48944", "ShadowMQ", "CVE-2025-66448", "CVE-2025-61620"]
    )


@pytest.mark.parametrize(
    ("version", "refused", "warned"),
    [
        ("0.32.0", [], ["CVE-2026-5497"]),
        ("0.19.0", [], ["CVE-2026-5497", "CVE-2026-9540"]),
        ("0.18.1+das.fa71803.dtk2604", [], ["CVE-2026-48710", "CVE-2026-5497"]),
        ("0.14.1", [], ["CVE-2026-48710", "CVE-2026-5497"]),
        (
            "0.14.0",
            ["CVE-2026-22778"],
            ["CVE-2026-24779", "CVE-2026-48710", "CVE-2026-5497"],
        ),
        (
            "0.8.5",
            ["CVE-2026-22778"],
            ["CVE-2025-48944", "CVE-2025-48956", "CVE-2025-62426", "CVE-2026-24779", "CVE-2026-48710", "CVE-2026-5497", "ShadowMQ"],
        ),
        (
            "0.11.0",
            ["CVE-2026-22778"],
            ["CVE-2025-61620", "CVE-2025-62164", "CVE-2025-62426", "CVE-2025-66448", "CVE-2026-22807", "CVE-2026-24779"]
            + ["CVE-2026-48710", "CVE-2026-5497"],
        ),
    ],
)
def test_vulnerabilities_by_version(table, version, refused, warned):
    found = holes(table, version)
    assert sorted(name for name, status in found.items() if status == "fail") == refused
    assert sorted(name for name, status in found.items() if status == "warn") == sorted(warned)


def test_a_hole_of_other_models_counts_for_them_only(table):
    assert "CVE-2026-27893" not in holes(table, "0.17.0")
    assert holes(table, "0.17.0", model="kimi-k2.5")["CVE-2026-27893"] == "warn"


A2 = {"platform": "ascend_910b", "architecture": ["910B2"], "engine": "vllm", "runtime": "CANN 8.5.1", "driver": "25.5.1"}
A3 = dict(A2, platform="ascend_a3", architecture=["910_93"])


@pytest.mark.parametrize(
    ("host", "tag", "row"),
    [
        (A2, "v0.18.0-a3", "ascend/image_of_a3_on_a2"),
        (A2, "v0.18.0-a3-openeuler", "ascend/image_of_a3_on_a2"),
        (A2, "v0.18.0-310p", "ascend/image_of_310p"),
        (A3, "v0.18.0", "ascend/image_of_a2_on_a3"),
        (A3, "v0.18.0-openeuler", "ascend/image_of_a2_on_a3"),
    ],
)
def test_the_image_trap(table, host, tag, row):
    found = verdicts(
        table, engine_version="0.18.0", image="quay.io/ascend/vllm-ascend:" + tag, model="qwen3.5-35b-a3b", weights="x", **host
    )
    assert found[row] == "fail"


@pytest.mark.parametrize(("host", "tag"), [(A2, "v0.18.0"), (A2, "v0.18.0-openeuler"), (A3, "v0.18.0-a3"), (A3, "v0.18.0-a3-openeuler")])
def test_the_right_image_passes(table, host, tag):
    found = verdicts(table, engine_version="0.18.0", image="mirror/vllm-ascend:" + tag, model="qwen2.5-0.5b", weights="x", **host)
    assert found == {"ascend/vllm_0_18": "pass"}


@pytest.mark.parametrize(
    ("version", "runtime", "row", "status"),
    [
        ("0.17.0rc1", "8.5.1", "vllm_0_17", "pass"),
        ("0.17.0", "8.5.0", "vllm_0_17_other_cann", "fail"),
        ("0.18.0", "8.5.0", "vllm_0_18_other_cann", "fail"),
        ("0.23.0", "9.1.0", "vllm_0_23", "pass"),
        ("0.23.0", "8.5.1", "vllm_0_23_other_cann", "fail"),
        ("0.18.0", None, "vllm_0_18_other_cann", "unknown"),
    ],
)
def test_engine_and_cann_are_one_set(table, version, runtime, row, status):
    asked = {"engine_version": version, "runtime": runtime, "image": "m/vllm-ascend:x", "model": "qwen2.5-0.5b", "weights": "x"}
    found = verdicts(table, **{**A2, **asked})
    assert found == {"ascend/" + row: status}


@pytest.mark.parametrize(
    ("model", "version", "refused"),
    [
        ("qwen3.6-35b-a3b", "0.17.0", ["ascend/qwen3_6_first_in_0_18"]),
        ("qwen3.6-35b-a3b", "0.18.0", []),
        ("qwen3.5-35b-a3b", "0.17.0rc1", []),
        ("qwen3.5-35b-a3b", "0.16.0", ["ascend/qwen3_5_first_in_0_17", "vllm/qwen3_5_architecture"]),
    ],
)
def test_a_model_needs_an_engine_that_knows_it(table, model, version, refused):
    found = verdicts(table, engine_version=version, image="m/vllm-ascend:x", model=model, weights="x", **A2)
    assert sorted(name for name, status in found.items() if status == "fail") == refused


K100 = {
    "platform": "hygon_k100ai",
    "architecture": ["gfx928"],
    "engine": "vllm",
    "engine_version": "0.18.1",
    "runtime": "DTK 26.04",
    "image": "i:x",
}
SWITCHES = {"VLLM_HCU_USE_CUSTOM_OPS": "0", "VLLM_HCU_USE_CUSTOM_QUANTIZATION_GEMM": "0"}


def test_recipe_a_is_vouched_for(table):
    found = verdicts(table, driver="6.3.31-V1.5.0a", environment=SWITCHES, model="qwen3.6-35b-a3b", weights="w8a8", settings={}, **K100)
    assert found == {"hygon/dtk_26_04": "pass", "hygon/qwen3_6_w8a8_tp1": "pass", "vllm/hybrid_context_unchecked": "warn"}


@pytest.mark.parametrize(
    ("changes", "row", "status"),
    [
        ({"weights": "fp8"}, "no_fp8_weights", "fail"),
        ({"settings": {"kv_cache_dtype": "fp8_e4m3"}}, "no_fp8_cache", "fail"),
        ({"settings": {"quantization": "slimquant_marlin"}}, "no_slimquant", "fail"),
        ({"environment": dict(SWITCHES, VLLM_HCU_USE_PD_SPLIT="1")}, "no_split_switch", "fail"),
        ({"environment": dict(SWITCHES, VLLM_HCU_USE_FLASH_ATTN="1")}, "no_flash_attention_switch", "fail"),
        ({"environment": {}}, "custom_ops_0_18", "warn"),
        ({"environment": {}}, "custom_gemm_0_18", "warn"),
        ({"tensor_parallel_size": 2}, "tensor_parallel", "warn"),
        ({"tensor_parallel_size": 2}, "custom_all_reduce", "warn"),
        ({"driver": "rock-5.7.1-6.2.26-V1.5"}, "driver_6_2_dtk_26", "warn"),
        ({"driver": "rock-5.7.1-6.2.11"}, "driver_before_6_2_26", "warn"),
        ({"engine": "sglang"}, "sglang", "warn"),
        ({"engine_version": "0.21.0"}, "aiter_0_21", "warn"),
        ({"weights": "bf16", "tensor_parallel_size": 2}, "qwen3_6_bf16_tp2", "pass"),
    ],
)
def test_rows_for_hygon(table, changes, row, status):
    good = dict(K100, driver="6.3.31-V1.5.0a", environment=SWITCHES, model="qwen3.6-35b-a3b", weights="w8a8", settings={})
    assert ("hygon/" + row) not in {name for name, found in verdicts(table, **good).items() if found == status}
    assert verdicts(table, **dict(good, **changes))["hygon/" + row] == status


def test_all_reduce_that_is_off_is_nothing_to_warn_of(table):
    found = verdicts(
        table, environment=SWITCHES, model="m", weights="bf16", tensor_parallel_size=2, settings={"disable_custom_all_reduce": True}, **K100
    )
    assert "hygon/custom_all_reduce" not in found


def test_h100(table):
    host = {
        "platform": "nvidia_h100",
        "architecture": ["sm_90"],
        "engine": "vllm",
        "engine_version": "0.32.0",
        "runtime": None,
        "image": "i",
    }
    assert verdicts(table, model="qwen3.6-35b-a3b", weights="fp8", **host) == {"nvidia/qwen3_6_fp8_h100": "pass"}
    assert verdicts(table, model="qwen3.6-35b-a3b", weights="bf16", **host) == {"nvidia/qwen3_6_bf16_one_h100": "warn"}
    assert verdicts(table, model="qwen3.6-35b-a3b", weights="bf16", **dict(host, tensor_parallel_size=2)) == {
        "nvidia/qwen3_6_bf16_tp2": "pass"
    }


@pytest.mark.parametrize(("engine", "version", "row"), [("llama_cpp", None, "cpu/llama_cpp"), ("vllm", "0.32.0", "cpu/vllm_0_32")])
def test_the_demo_is_vouched_for(table, engine, version, row):
    found = verdicts(
        table, platform="cpu", engine=engine, engine_version=version, runtime=None, image="x", model="smollm2-135m", weights="q"
    )
    assert found == {row: "pass"}


def test_an_overlay_changes_one_key_of_a_row():
    files = [(str(path), yaml.safe_load(path.read_text(encoding="utf-8"))) for path in sorted(FOLDER.glob("*.yml"))]
    mine = {"name": "vllm", "vulnerabilities": {"CVE-2026-5497": {"below": "0.30.0"}}}
    table = read_table(collect("compatibility", files + [("mine.yml", mine)]))
    assert holes(table, "0.32.0") == {}
    assert holes(table, "0.29.0") == {"CVE-2026-5497": "warn"}
