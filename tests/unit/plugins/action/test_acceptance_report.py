# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From the facts of the hosts to what ran where."""

from __future__ import annotations

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins.loader import connection_loader
from ansible.template import Templar
from samples import acceptance

from ansible_collections.ironserve.llm.plugins.action.acceptance_report import ActionModule, fleet_of


def left(host=1, **replica):
    return {
        "catalog_out": {"platform": {"container": {"environment_per_card": {"HIP_VISIBLE_DEVICES": "{index}"}}}},
        "accelerator_out": {"driver_version": "6.3.8", "cards": [], "platform": "hygon_k100ai"},
        "replica_out": dict({"plan": acceptance.plan(host), "image_id": "sha256:1"}, **replica),
    }


def test_what_ran_where_is_read_from_the_facts():
    fleet = fleet_of(["node01", "node02"], {"node01": left(1), "node02": left(2)})
    assert [row["host"] for row in fleet] == ["node01", "node02"] and [len(row["replicas"]) for row in fleet] == [4, 4]
    assert fleet[0]["driver"] == "6.3.8" and fleet[1]["replicas"][0]["image_id"] == "sha256:1"
    assert "HIP_VISIBLE_DEVICES" not in fleet[0]["replicas"][0]["environment"]


@pytest.mark.parametrize(
    ("hostvars", "error"),
    [
        ({}, "nothing was found out about this host"),
        ({"n": {}}, "nothing was found out"),
        ({"n": {"replica_out": {"error": "no way"}}}, "no way"),
    ],
)
def test_a_host_that_left_nothing_has_an_error(hostvars, error):
    (row,) = fleet_of(["n"], hostvars)
    assert row["host"] == "n" and error in row["error"]


def test_the_module_gets_the_fleet_and_everything_else_as_it_was(monkeypatch):
    loader, context = DataLoader(), PlayContext()
    arguments = {
        "module": "ironserve.llm.acceptance_report",
        "results": [{"name": "gateway"}],
        "hosts": ["node01"],
        "path": "/x.json",
    }
    plugin = ActionModule(
        task=Task.load({"action": arguments}),
        connection=connection_loader.get("ansible.builtin.local", context, new_stdin=None),
        play_context=context,
        loader=loader,
        templar=Templar(loader=loader, variables={}),
        shared_loader_obj=None,
    )
    heard = {}
    monkeypatch.setattr(plugin, "_execute_module", lambda **given: heard.update(given) or {"changed": False, "status": 0})
    assert plugin.run(None, {"hostvars": {"node01": left(1)}})["status"] == 0
    assert heard["module_name"] == "ironserve.llm.acceptance_report"
    assert heard["module_args"]["results"] == [{"name": "gateway"}] and heard["module_args"]["path"] == "/x.json"
    assert [row["host"] for row in heard["module_args"]["fleet"]] == ["node01"]
