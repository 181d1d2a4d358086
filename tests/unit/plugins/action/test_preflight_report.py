# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From the facts of many hosts to one report, on screen and as a file that is whole or not there."""

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins.loader import connection_loader
from ansible.template import Templar

from ansible_collections.ironserve.llm.plugins.action.preflight_report import ActionModule

GOOD = {"name": "card_count", "status": "pass", "detail": "8 cards, 8 expected", "fix": ""}
BAD = {"name": "card_count", "status": "fail", "detail": "7 cards, 8 expected", "fix": "look"}


@pytest.fixture
def run():
    """Run the plugin on a real task: ``run(hostvars, hosts, path)``."""

    def call(hostvars, hosts, path="", check_mode=False):
        loader, context = DataLoader(), PlayContext()
        task = Task.load({"action": {"module": "ironserve.llm.preflight_report", "hosts": hosts, "path": path}, "check_mode": check_mode})
        plugin = ActionModule(
            task=task,
            connection=connection_loader.get("ansible.builtin.local", context, new_stdin=None),
            play_context=context,
            loader=loader,
            templar=Templar(loader=loader, variables={}),
            shared_loader_obj=None,
        )
        return plugin.run(None, {"hostvars": hostvars})

    return call


def left(*checks):
    return {"accelerator_out": {"platform": "acme", "checks": list(checks), "cards": []}}


def test_equal_hosts_once_and_the_odd_one(run, tmp_path):
    path = tmp_path / "new" / "report.json"
    result = run({"n1": left(GOOD), "n2": left(GOOD), "n3": left(BAD)}, ["n1", "n2", "n3"], str(path))
    assert (result["status"], result["changed"]) == (1, False)
    assert result["lines"][2] == "n[1-2] (2 hosts, acme): ok"
    assert "n3 (acme): FAILED; unlike n[1-2]:" in result["lines"]
    assert result["lines"][-1] == "report: {0}".format(path)
    assert json.loads(path.read_text(encoding="utf-8")) == result["report"]
    assert [item.name for item in path.parent.iterdir()] == ["report.json"], "nothing half-written is left"


@pytest.mark.parametrize(
    "hostvars",
    [
        {"n1": left(GOOD)},
        {"n1": left(GOOD), "n2": {}},
        {"n1": left(GOOD), "n2": left()},
        {"n1": left(GOOD), "n2": {"accelerator_out": None}},
    ],
)
def test_a_host_that_left_nothing_is_not_lost(run, hostvars):
    result = run(hostvars, ["n1", "n2"])
    assert result["status"] == 2
    assert result["report"]["hosts"]["n2"]["checks"][0]["status"] == "unknown"
    assert not any(line.startswith("report:") for line in result["lines"])


def test_a_fleet_without_hosts_is_no_good_news(run):
    assert run({}, [])["status"] == 2


def test_a_good_fleet(run):
    assert run({"n1": left(GOOD)}, ["n1"])["status"] == 0


def test_check_mode_gives_the_same(run, tmp_path):
    path = tmp_path / "report.json"
    run({"n1": left(GOOD)}, ["n1"], str(path), check_mode=True)
    assert json.loads(path.read_text(encoding="utf-8"))["status"] == 0


def test_a_report_that_cannot_be_written_is_named(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AnsibleActionFail, match="file/report.json: the report cannot be written"):
        run({"n1": left(GOOD)}, ["n1"], str(tmp_path / "file" / "report.json"))


def test_an_older_report_is_replaced(run, tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    run({"n1": left(BAD)}, ["n1"], str(path))
    assert json.loads(path.read_text(encoding="utf-8"))["status"] == 1
