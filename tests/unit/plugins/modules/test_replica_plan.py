# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module's own entry point: defaults, the plan and its lines, and errors as messages."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.ironserve.llm.plugins.modules import replica_plan


@pytest.fixture
def arguments(k100):
    return dataclasses.asdict(k100())


@pytest.mark.parametrize("check_mode", [False, True])
def test_plan_is_the_same_in_check_mode_and_changes_nothing(run_module, arguments, check_mode):
    result = run_module(replica_plan, arguments, check_mode)
    assert result["changed"] is False
    assert [replica["port"] for replica in result["plan"]["replicas"]] == [8001, 8002, 8003, 8004]
    assert result["lines"][0] == "k100-01: qwen3.6-35b-a3b W8A8 on hygon_k100ai (vllm)"


def test_defaults_are_those_of_the_plan(run_module, arguments, k100):
    needed = ("host", "catalog", "cards", "image", "weights_path", "key_file", "cache_dir", "device_nodes")
    result = run_module(replica_plan, {name: arguments[name] for name in needed})
    replica = result["plan"]["replicas"][0]
    assert (replica["address"], replica["port"], replica["spec"]["network"], replica["spec"]["user"]) == (
        "127.0.0.1",
        8001,
        "ironserve",
        "64064:64064",
    )


def test_error_is_a_message(run_module, arguments):
    result = run_module(replica_plan, dict(arguments, enhancements={"mpt": True}))
    assert result["failed"] is True
    assert "unknown enhancement 'mpt' (variable llm_enhancements)" in result["msg"]


@pytest.mark.parametrize("name", ["host", "catalog", "cards", "image", "weights_path", "key_file", "cache_dir"])
def test_required_arguments(run_module, arguments, name):
    del arguments[name]
    assert name in run_module(replica_plan, arguments)["msg"]
