# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The parts of the lab that need no container: what a node may do, what makes it new, what the inventory says."""

from __future__ import annotations

import ipaddress
import json
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from lab import lab
from replay import hosts

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUBNET = ipaddress.IPv4Network("172.31.77.0/24")
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


def test_nodes_get_no_flag_that_reaches_the_machine() -> None:
    members = [*lab.node_members(SUBNET, 3)]
    assert [member.name for member in members] == ["gw", "node1", "node2", "node3"]
    for member in members:
        words = " ".join(member.flags)
        for forbidden in (
            "--privileged",
            "systempaths",
            "/sys/fs/cgroup",
            "--pid=host",
            "--network=host",
            "docker.sock",
            "--device-cgroup-rule",
        ):
            assert forbidden not in words, member.name
        assert "--cgroupns=private" in member.flags
        for name in ("SYS_RESOURCE", "SYS_MODULE", "SYS_TIME", "SYS_RAWIO", "SYS_BOOT"):
            assert f"--cap-drop={name}" in member.flags, member.name
        assert member.volume == f"{member.container}-docker"


def test_an_engine_that_needs_a_core_gets_one_on_each_card_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.os, "sched_getaffinity", lambda _pid: {5, 2})
    cores = [[flag for flag in member.flags if flag.startswith("--cpuset-cpus")] for member in lab.node_members(SUBNET, 3, alone=True)]
    assert cores == [[], ["--cpuset-cpus=2"], ["--cpuset-cpus=5"], ["--cpuset-cpus=2"]]
    assert lab.engine_variables("vllm") == {"llm_engine": "vllm", "accelerator_cpu_cards": 1, "accelerator_cpu_card_memory_mib": 3072}
    assert lab.engine_variables("llama_cpp") == {"llm_engine": "llama_cpp"}


def test_only_the_first_card_node_has_a_running_engine() -> None:
    running = ["--env=LAB_ENGINE=running" in member.flags for member in lab.node_members(SUBNET, 3)]
    assert running == [False, True, False, False]


def test_routes_are_read_as_networks_without_the_default_route() -> None:
    assert lab.routes(ROUTES) == [ipaddress.IPv4Network("172.17.0.0/16")]


def test_a_hash_follows_content_and_mode(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "ROOT", tmp_path)
    file = tmp_path / "d" / "file"
    file.parent.mkdir()
    file.write_text("a")
    seen = {lab.digest_of(file.parent), lab.digest_of(file.parent, "x")}
    file.write_text("b")
    seen.add(lab.digest_of(file.parent))
    file.chmod(0o755)
    seen.add(lab.digest_of(file.parent))
    assert len(seen) == 4
    assert lab.digest_of(file.parent) in seen


def test_a_file_is_written_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def broken(file: object) -> None:
        raise lab.LabError("cut off")

    with pytest.raises(lab.LabError):
        lab.write_whole(path, broken)
    assert path.read_text() == "before"


def test_a_wait_ends_with_the_one_waited_for() -> None:
    def dead() -> None:
        raise lab.LabError("node1 died while it started")

    begun = time.monotonic()
    with pytest.raises(lab.LabError, match="node1 died"):
        lab.until("node1", begun + 60, lambda: False, dead)
    assert time.monotonic() - begun < 5


def test_side_by_side_keeps_order_and_raises_what_failed() -> None:
    assert lab.side_by_side(lambda number: number * 2, [1, 2, 3]) == [2, 4, 6]
    with pytest.raises(ZeroDivisionError):
        lab.side_by_side(lambda number: 1 // number, [1, 0])


def inventory_script(checkout: pathlib.Path) -> subprocess.CompletedProcess[str]:
    (checkout / "inventories/lab").mkdir(parents=True, exist_ok=True)
    script = shutil.copy(ROOT / "inventories/lab/hosts.py", checkout / "inventories/lab/hosts.py")
    return subprocess.run([sys.executable, script, "--list"], capture_output=True, text=True, check=False)


def test_the_inventory_says_how_to_reach_each_node(tmp_path: pathlib.Path) -> None:
    state = {
        "gateway": ["gw"],
        "nodes": ["node1"],
        "addresses": {"gw": "192.0.2.10", "node1": "192.0.2.11"},
        "user": "llm",
        "key": "/k",
        "ssh_arguments": "-o StrictHostKeyChecking=yes",
        "image": {"source": "registry", "reference": "registry.lab:5000/x", "digest": "sha256:" + "0" * 64},
        "engine": {"llm_engine": "vllm", "accelerator_cpu_cards": 1},
    }
    live = tmp_path / ".cache/lab/live"
    live.mkdir(parents=True)
    (live / "lab.json").write_text(json.dumps(state))
    told = json.loads(inventory_script(tmp_path).stdout)
    assert told["llm_gateway"]["hosts"] == ["gw"] and told["llm_nodes"]["hosts"] == ["node1"]
    assert told["_meta"]["hostvars"]["node1"]["ansible_host"] == "192.0.2.11"
    assert told["_meta"]["hostvars"]["node1"]["lab_image"] == state["image"]
    assert (told["_meta"]["hostvars"]["node1"]["llm_engine"], told["_meta"]["hostvars"]["node1"]["accelerator_cpu_cards"]) == ("vllm", 1)


def test_played_hosts_are_reached_as_their_nodes_and_only_while_there_are_any(tmp_path: pathlib.Path) -> None:
    state = {
        "engine": {"llm_engine": "llama_cpp"},
        "gateway": ["gw"],
        "nodes": ["node1", "node2"],
        "played": {"k100-02": {"node": "node2", "vars": {"llm_platform": "hygon_k100ai", "accelerator_root": "/opt/played/k100-02"}}},
        "addresses": {"gw": "192.0.2.10", "node1": "192.0.2.11", "node2": "192.0.2.12"},
        "user": "llm",
        "key": "/k",
        "ssh_arguments": "",
        "image": {},
    }
    live = tmp_path / ".cache/lab/live"
    live.mkdir(parents=True)
    (live / "lab.json").write_text(json.dumps(state))
    told = json.loads(inventory_script(tmp_path).stdout)
    assert told["llm_nodes"]["hosts"] == ["node1", "node2", "k100-02"]
    played = told["_meta"]["hostvars"]["k100-02"]
    assert (played["ansible_host"], played["llm_platform"], played["accelerator_root"]) == (
        "192.0.2.12",
        "hygon_k100ai",
        "/opt/played/k100-02",
    )
    assert "accelerator_root" not in told["_meta"]["hostvars"]["node2"]
    # The lab's engine is that of its own nodes; who is played has a vendor's.
    assert "llm_engine" not in played and told["_meta"]["hostvars"]["node2"]["llm_engine"] == "llama_cpp"
    (live / "lab.json").write_text(json.dumps({**state, "played": {}}))
    assert json.loads(inventory_script(tmp_path).stdout)["llm_nodes"]["hosts"] == ["node1", "node2"]


def test_equal_played_hosts_lie_on_different_nodes() -> None:
    told = {f"k100-0{number}": {"number": number, "vars": {"x": number}} for number in range(1, 5)}
    found = lab.players(told, lab.node_members(SUBNET, 3)[1:])
    assert [host["node"] for host in found.values()] == ["node1", "node2", "node3", "node1"]
    assert found["k100-04"]["vars"] == {"x": 4}
    assert {host["node"] for host in lab.players(told, lab.node_members(SUBNET, 1)[1:]).values()} == {"node1"}


def test_played_hosts_lie_where_their_variables_say() -> None:
    assert lab.PLAYED_PLACE == hosts.PLACE


def test_without_a_lab_the_inventory_says_what_to_do(tmp_path: pathlib.Path) -> None:
    result = inventory_script(tmp_path)
    assert result.returncode == 1 and "run make lab" in result.stderr and result.stdout == ""


def test_engines_of_the_lab_are_those_that_run_on_cores() -> None:
    assert lab.engine_builds() == {"llama_cpp": "llama_cpp", "vllm": "vllm_cpu"}
