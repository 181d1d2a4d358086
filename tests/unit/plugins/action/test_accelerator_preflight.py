# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's judgement of one host, from results as the modules leave them, good and bad."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins.loader import connection_loader
from ansible.template import Templar

from ansible_collections.ironserve.llm.plugins.action.accelerator_preflight import ActionModule, missing_result
from ansible_collections.ironserve.llm.plugins.module_utils._catalog import resolve

CARD = {
    "id": "0000:07:00.0",
    "index": 0,
    "name": "K100_AI",
    "name_raw": "K100_AI",
    "architecture": "gfx928",
    "memory_total_mib": 65520,
    "memory_used_mib": 2,
    "holders": [],
    "numa_node": 0,
    "link": None,
}
PROBED = {
    "probe": "hygon",
    "cards": [CARD],
    "checks": [{"name": "probe", "status": "pass", "detail": "hygon", "fix": ""}],
    "driver_live": True,
    "driver_version": "6.3.31-V1.5.0a",
    "firmware_version": None,
    "runtime_version": None,
    "tool_version": None,
    "own_containers": [],
}
HOST = {
    "kernel": {
        "release": "5.10.0",
        "arguments": [],
        "modules": [],
        "sysctl": {},
        "governors": {},
        "hugepages": {"reserved_mib": 0, "transparent": ""},
        "memory_total_mib": 1000,
        "numa_nodes": 1,
        "limits": {"nofile": [-1, -1], "memlock": [-1, -1]},
        "limits_of": "process 1",
        "iommu": {"active": False, "groups": {}},
        "acs": {"bridges": [], "redirecting": [], "unreadable": []},
    },
    "disks": [
        {"path": "/w", "parent": "/", "device": 1, "free_mib": 1000, "total_mib": 9999, "present_mib": 0},
        {"path": "/data/docker", "parent": "/", "device": 1, "free_mib": 1000, "total_mib": 9999, "present_mib": None},
    ],
    "ports": [],
    "firewalls": [],
    "engine": {
        "installed": True,
        "running": True,
        "reachable": True,
        "version": "24.0.7",
        "default_runtime": "runc",
        "configured_runtime": "",
        "configuration_error": "",
        "runtimes": ["runc"],
        "root_dir": "/data/docker",
        "error": "",
    },
    "image": {"present": False, "digests": [], "environment": {}},
    "toolkits": {},
    "clock_skew_s": 0.0,
}


@pytest.fixture
def run():
    """Run the plugin on a real task."""

    def call(**arguments):
        loader, context = DataLoader(), PlayContext()
        task = Task.load({"action": {"module": "ironserve.llm.accelerator_preflight", **arguments}})
        plugin = ActionModule(
            task=task,
            connection=connection_loader.get("ansible.builtin.local", context, new_stdin=None),
            play_context=context,
            loader=loader,
            templar=Templar(loader=loader, variables={}),
            shared_loader_obj=None,
        )
        return plugin.run(None, {})

    return call


@pytest.fixture
def chosen(catalog):
    """The first recipe, without a table."""
    return dict(resolve(catalog, "hygon_k100ai", "qwen3.6-35b-a3b"), compatibility={"rows": {}, "vulnerabilities": {}})


def statuses(result):
    found = {}
    for check in result["checks"]:
        found.setdefault(check["name"], []).append(check["status"])
    return found


def test_a_host_that_is_fit(run, chosen):
    result = run(probe_result=PROBED, host_result=HOST, catalog=chosen)
    assert (result["ok"], result["status"], result["changed"]) == (True, 0, False)
    assert result["lines"][0] == "PASS     probe                    hygon"
    assert statuses(result)["expected_product"] == ["pass"]
    assert len(result["checks"]) > 20


def test_the_platform_s_products_count_unless_others_are_named(run, chosen):
    chosen["platform"]["card"]["products"] = ["K100"]
    assert statuses(run(probe_result=PROBED, host_result=HOST, catalog=chosen))["expected_product"] == ["fail"]
    named = run(probe_result=PROBED, host_result=HOST, catalog=chosen, expected_products=["K100 AI"])
    assert statuses(named)["expected_product"] == ["pass"]
    nothing = run(probe_result=PROBED, host_result=HOST, catalog=chosen, expected_products=[], expected_architectures=[])
    assert statuses(nothing)["expected_product"] == ["not_applicable"]
    assert "expected_architecture" not in statuses(nothing)


@pytest.mark.parametrize(("present", "image_mib", "status"), [(False, 600, "fail"), (False, 400, "pass"), (True, 9999, "pass")])
def test_the_image_needs_space_in_the_engine_s_own_place(run, chosen, present, image_mib, status):
    host = dict(HOST, image=dict(HOST["image"], present=present))
    result = run(probe_result=PROBED, host_result=host, catalog=chosen, space_mib={"/w": 500}, image_mib=image_mib)
    assert statuses(result)["space"] == [status]


@pytest.mark.parametrize(
    ("arguments", "name", "status"),
    [
        ({"environment": {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512"}}, "environment", "fail"),
        ({"environment": {"VLLM_SERVER_DEV_MODE": "1"}}, "environment", "fail"),
        ({"settings": {"speculative": {"threshold": 0.8}}}, "settings", "fail"),
        ({"settings": {"tensor_parallel_size": "two"}}, "settings", "fail"),
        ({"enhancements": {"mtp": True, "prefix_caching": True}}, "settings", "fail"),
        ({"enhancements": {"mtpp": True}}, "settings", "fail"),
        ({"expected_versions": {"driver": ">=7"}}, "versions", "fail"),
    ],
)
def test_wishes_that_are_refused(run, chosen, arguments, name, status):
    result = run(probe_result=PROBED, host_result=HOST, catalog=chosen, **arguments)
    assert status in statuses(result)[name]
    assert (result["ok"], result["status"]) == (False, 1)


def test_a_platform_alone(run, catalog):
    alone = dict(resolve(catalog, "hygon_k100ai", ""), compatibility={"rows": {}, "vulnerabilities": {}})
    result = run(probe_result=PROBED, host_result=HOST, catalog=alone)
    assert result["ok"] is True
    assert statuses(result)["compatibility"] == ["not_applicable"]
    assert "vulnerabilities" not in statuses(result)


def test_the_table_is_asked(run, chosen):
    row = {"when": {"driver": "<7"}, "verdict": "refuse", "reason": "r", "source": "s", "date": "2026-01-01", "grade": "vendor_verified"}
    chosen["compatibility"]["rows"]["t/r"] = row
    result = run(probe_result=PROBED, host_result=HOST, catalog=chosen)
    assert statuses(result)["compatibility"][0] == "fail"
    assert any("row t/r: r (s, 2026-01-01, vendor_verified)" in line for line in result["lines"])


@pytest.mark.parametrize("size", [2, "2"])
def test_several_cards_per_replica_need_more(run, chosen, size):
    result = run(probe_result=PROBED, host_result=HOST, catalog=chosen, settings={"tensor_parallel_size": size})
    assert statuses(result)["card_topology"] == ["pass"]
    assert statuses(result)["iommu"] == ["pass"]


def test_a_probe_that_failed_is_one_failed_check(run, chosen):
    probed = {"failed": False, "msg": "hy-smi: not found (looked for /opt/hyhal/bin/hy-smi)", "changed": False}
    result = run(probe_result=probed, host_result=HOST, catalog=chosen)
    assert statuses(result)["probe"] == ["fail"]
    assert [check["detail"] for check in result["checks"] if check["name"] == "probe"] == [probed["msg"]]
    assert [name for name, found in statuses(result).items() if set(found) & {"fail", "unknown"}] == ["probe"]
    assert "card_holders" not in statuses(result), "nobody looked"
    assert result["status"] == 1


def test_a_host_that_is_away_could_not_be_told_about(run, chosen):
    probed = {"unreachable": True, "msg": "Failed to connect to the host via ssh: Connection timed out", "changed": False}
    result = run(probe_result=probed, host_result={"skipped": True}, catalog=chosen)
    assert [(check["name"], check["status"]) for check in result["checks"]] == [("host", "unknown")]
    assert "Connection timed out" in result["checks"][0]["detail"]
    assert result["status"] == 2


def test_a_host_whose_facts_failed(run, chosen):
    result = run(probe_result=PROBED, host_result={"msg": "/proc/modules has a line", "changed": False}, catalog=chosen)
    assert statuses(result)["host"] == ["fail"]


@pytest.mark.parametrize(
    ("result", "status", "words"),
    [
        (
            {"msg": "MODULE FAILURE\nSee stdout/stderr", "module_stderr": "Traceback\n  x\nZeroDivisionError: division by zero\n"},
            "unknown",
            "ZeroDivisionError",
        ),
        ({"msg": "Task failed: Module failed: division by zero"}, "unknown", "division by zero"),
        ({"msg": "Module result deserialization failed: No start of json char found"}, "unknown", "deserialization"),
        ({}, "unknown", "it said nothing"),
        ({"msg": "npu-smi ended with\nstatus 187"}, "fail", "npu-smi ended with status 187"),
    ],
)
def test_a_module_that_broke_is_not_one_that_failed(result, status, words):
    check = missing_result("probe", result)
    assert (check.name, check.status) == ("probe", status)
    assert words in check.detail


def test_a_mistyped_argument_is_refused(run, chosen):
    with pytest.raises(AnsibleError, match="expected_product"):
        run(probe_result=PROBED, host_result=HOST, catalog=chosen, expected_product=["x"])
