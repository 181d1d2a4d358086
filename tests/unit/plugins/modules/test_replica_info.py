# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module as Ansible calls it: hosts without an engine, with replicas, and with an engine that breaks."""

from __future__ import annotations

import json

import pytest
from unit.plugins.played.container import described

from ansible_collections.ironserve.llm.plugins.module_utils import _docker
from ansible_collections.ironserve.llm.plugins.module_utils._plan import make_plan
from ansible_collections.ironserve.llm.plugins.modules import replica_info


class Containers:
    """An engine that has these containers, as its own descriptions."""

    def __init__(self, described):
        self.described = {item["Name"]: item for item in described}

    def containers(self, **_filters):
        # One of them is gone before it is looked at.
        return [
            {"Names": [name], "Labels": self.described.get(name, {"Config": {"Labels": {}}})["Config"]["Labels"]}
            for name in [*self.described, "/ironserve-c9"]
        ]

    def inspect_container(self, name):
        if "/" + name not in self.described:
            raise _docker.docker.errors.NotFound("gone")
        return self.described["/" + name]


@pytest.fixture
def plan(k100):
    return make_plan(k100())


def container(spec):
    found = described(spec)
    found["Config"]["Env"].append("HF_TOKEN=hf_canary_canary_canary")
    return found


def test_without_an_engine_everything_is_new(run_module, plan, tmp_path):
    result = run_module(replica_info, {"plan": plan, "socket": str(tmp_path / "no.sock")})
    assert (result["changed"], result["replicas"]) == (False, [])
    assert result["lines"] == [f"new    ironserve-c{number}" for number in range(4)]


@pytest.mark.parametrize("check_mode", [False, True])
def test_what_runs_is_held_against_the_plan(run_module, monkeypatch, plan, check_mode):
    described = [container(replica["spec"]) for replica in plan["replicas"][:2]]
    described[1]["Config"]["Labels"] = dict(described[1]["Config"]["Labels"], **{"ironserve.spec": "old"})
    described[1]["Config"]["Image"] = "old/image"
    monkeypatch.setattr(_docker, "connect", lambda socket: Containers(described))
    result = run_module(replica_info, {"plan": plan}, check_mode)
    assert [(item["container"], item["state"]) for item in result["differences"]] == [
        ("ironserve-c0", "same"),
        ("ironserve-c1", "change"),
        ("ironserve-c2", "new"),
        ("ironserve-c3", "new"),
    ]
    assert any(line.startswith("         ~ image old/image -> ") for line in result["lines"])
    assert [item["publish"]["port"] for item in result["replicas"]] == [8001, 8002]
    assert "canary" not in json.dumps(result["replicas"]), "the environment stays on the host"


def test_what_another_name_of_the_machine_runs_is_not_gone(run_module, monkeypatch, plan, k100):
    other = make_plan(k100(host="k100-01-large", card_groups=[[3]]))
    mine = dict(plan, replicas=plan["replicas"][:3])
    containers = [container(replica["spec"]) for replica in mine["replicas"] + other["replicas"]]
    monkeypatch.setattr(_docker, "connect", lambda socket: Containers(containers))
    result = run_module(replica_info, {"plan": mine, "neighbours": ["k100-01-large"]})
    assert [item["state"] for item in result["differences"]] == ["same"] * 3
    assert [item["state"] for item in run_module(replica_info, {"plan": mine})["differences"]] == ["same"] * 3 + ["gone"]
    # All four cards: one of them is another's.
    result = run_module(replica_info, {"plan": plan, "neighbours": ["k100-01-large"]})
    assert result["failed"] is True and "k100-01-c3: card 0000:16:00.0 has container ironserve-c3 of k100-01-large" in result["msg"]


def test_without_a_plan_nothing_is_compared(run_module, monkeypatch, plan):
    monkeypatch.setattr(_docker, "connect", lambda socket: Containers([container(plan["replicas"][0]["spec"])]))
    result = run_module(replica_info, {})
    assert ([item["name"] for item in result["replicas"]], result["differences"], result["lines"]) == (["ironserve-c0"], [], [])


def test_an_engine_that_breaks_is_a_message(run_module, monkeypatch):
    def broken(_client):
        raise OSError("connection lost")

    monkeypatch.setattr(_docker, "connect", lambda socket: Containers([]))
    monkeypatch.setattr(_docker, "replicas", broken)
    result = run_module(replica_info, {})
    assert result["failed"] is True and result["msg"] == "the container engine refused: connection lost"
