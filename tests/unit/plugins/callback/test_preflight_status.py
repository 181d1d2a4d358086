# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""With what a run ends. The real ansible-playbook's status is tested with the playbook itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.ironserve.llm.plugins.callback.preflight_status import PLAYBOOKS, CallbackModule


def ours(name):
    return f"{PLAYBOOKS}/{name}"


def end(name, *results):
    """The status a run would end with; None when it is left to Ansible."""
    callback = CallbackModule()
    callback.v2_playbook_on_start(SimpleNamespace(_file_name=name))
    for action, answer in results:
        callback.v2_runner_on_ok(SimpleNamespace(task=SimpleNamespace(action=action, resolved_action=action), result=answer))
    try:
        callback.v2_playbook_on_stats(None)
    except SystemExit as ended:
        return ended.code
    return None


REPORT = "ironserve.llm.preflight_report"
ACCEPTANCE = "ironserve.llm.acceptance_report"


@pytest.mark.parametrize(("status", "code"), [(0, None), (1, 1), (2, 2)])
def test_the_report_decides(status, code):
    assert end(ours("preflight.yml"), (REPORT, {"status": status})) == code
    assert end("/x/of_my_own.yml", (REPORT, {"status": status})) == code


def test_a_preflight_without_a_report_could_not_tell():
    assert end(ours("preflight.yml")) == 2
    assert end(ours("preflight.yml"), ("ansible.builtin.debug", {"status": 0})) == 2


@pytest.mark.parametrize(("status", "code"), [(0, None), (1, 1), (2, 2)])
@pytest.mark.parametrize("playbook", ["verify.yml", "benchmark.yml"])
def test_an_acceptance_that_only_looks_decides_too(playbook, status, code):
    assert end(ours(playbook), (ACCEPTANCE, {"status": status})) == code


@pytest.mark.parametrize("playbook", ["verify.yml", "benchmark.yml"])
def test_an_acceptance_without_a_report_could_not_tell(playbook):
    assert end(ours(playbook)) == 2


def test_the_last_report_of_a_run_decides():
    """A measurement reports what was proved, then what was measured."""
    assert end(ours("benchmark.yml"), (ACCEPTANCE, {"status": 0}), (ACCEPTANCE, {"status": 2})) == 2


def test_a_deployment_ends_as_ansible_does_whatever_its_report_says():
    assert end(ours("site.yml"), (ACCEPTANCE, {"status": 1})) is None


def test_the_playbooks_are_those_of_this_collection():
    assert {"preflight.yml", "verify.yml", "benchmark.yml"} <= {path.name for path in Path(PLAYBOOKS).iterdir()}


@pytest.mark.parametrize("name", ["/x/preflight.yml", "/x/verify.yml", "verify.yml", "/x/benchmark.yml"])
def test_playbooks_of_the_same_name_from_elsewhere_are_left_alone(name):
    assert end(name) is None
    assert end(name, (ACCEPTANCE, {"status": 1})) is None


def test_other_runs_are_left_alone():
    assert end(ours("site.yml"), ("ansible.builtin.uri", {"status": 404})) is None


def test_the_callback_of_older_versions():
    callback = CallbackModule()
    callback.v2_runner_on_ok(SimpleNamespace(_task=SimpleNamespace(action=REPORT, resolved_action=None), _result={"status": 1}))
    with pytest.raises(SystemExit) as ended:
        callback.v2_playbook_on_stats(None)
    assert ended.value.code == 1
