# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action plugin, run as Ansible runs it: defaults, the plan and its lines, and errors as messages."""

from __future__ import annotations

import dataclasses

import pytest
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins.loader import connection_loader
from ansible.template import Templar

from ansible_collections.ironserve.llm.plugins.action.replica_plan import ActionModule


@pytest.fixture
def run():
    """Run the plugin on a real task: ``run({arguments})``."""

    def call(arguments, check_mode=False):
        loader, context = DataLoader(), PlayContext()
        plugin = ActionModule(
            task=Task.load({"action": {"module": "ironserve.llm.replica_plan", **arguments}, "check_mode": check_mode}),
            connection=connection_loader.get("ansible.builtin.local", context, new_stdin=None),
            play_context=context,
            loader=loader,
            templar=Templar(loader=loader, variables={}),
            shared_loader_obj=None,
        )
        return plugin.run(None, {})

    return call


@pytest.fixture
def arguments(k100):
    return dataclasses.asdict(k100())


@pytest.mark.parametrize("check_mode", [False, True])
def test_plan_is_the_same_in_check_mode_and_changes_nothing(run, arguments, check_mode):
    result = run(arguments, check_mode)
    assert result["changed"] is False
    assert [replica["port"] for replica in result["plan"]["replicas"]] == [8001, 8002, 8003, 8004]
    assert result["lines"][0] == "k100-01: qwen3.6-35b-a3b W8A8 on hygon_k100ai (vllm)"


def test_defaults_are_those_of_the_plan(run, arguments, k100):
    needed = ("host", "catalog", "cards", "image", "weights_path", "key_file", "cache_dir", "device_nodes")
    result = run({name: arguments[name] for name in needed})
    replica = result["plan"]["replicas"][0]
    assert (replica["address"], replica["port"], replica["spec"]["network"], replica["spec"]["user"]) == (
        "127.0.0.1",
        8001,
        "ironserve",
        "64064:64064",
    )


def test_error_is_a_message(run, arguments):
    with pytest.raises(AnsibleActionFail, match=r"unknown enhancement 'mpt' \(variable llm_enhancements\)"):
        run(dict(arguments, enhancements={"mpt": True}))


@pytest.mark.parametrize("name", ["host", "catalog", "cards", "image", "weights_path", "key_file", "cache_dir"])
def test_required_arguments(run, arguments, name):
    del arguments[name]
    with pytest.raises(AnsibleActionFail, match=name):
        run(arguments)
