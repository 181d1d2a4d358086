# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the preflight said of a fleet of played hosts, and whether their cards follow the containers of their nodes."""

from __future__ import annotations

import json
import pathlib
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _hy_smi

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIVE = ROOT / ".cache/lab/live"

#: Host -> what is not good there, and words that name the fault; what one fault brings about is all its own.
PLANTED: dict[str, tuple[dict[str, str], str]] = {
    "k100-03": ({"probe": "fail"}, "hy-smi: no end after 3 s; it hangs"),
    "k100-04": ({"probe": "fail"}, "hy-smi: not found (looked for /opt/hyhal/bin/hy-smi"),
    "a910b-03": ({"card_health": "fail"}, "fault: 0000:41:00.0"),
    "a910b-04": ({"probe": "fail"}, "npu-smi info ended with status 172"),
    "h200-03": (
        {"lost_card": "fail", "card_health": "fail", "card_memory": "fail", "equal_cards": "warn"},
        "GPU 3 (0000:5d:00.0) cannot be opened",
    ),
    "h200-04": ({"inforom": "warn"}, "corrupted on a card that is not named"),
}
GOOD = ["node1", "node2", "k100-01", "k100-02", "a910b-01", "a910b-02", "h200-01", "h200-02"]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return json.loads((LIVE / "preflight.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    return json.loads((LIVE / "lab.json").read_text(encoding="utf-8"))


def not_good(report: dict[str, Any], host: str) -> dict[str, str]:
    checks = report["hosts"][host]["checks"]
    return {check["name"]: check["status"] for check in checks if check["status"] not in ("pass", "not_applicable")}


# ---- the report


def test_every_host_is_in_it_and_failed_ones_decide(report: dict[str, Any]) -> None:
    assert sorted(report["hosts"]) == sorted([*PLANTED, *GOOD])
    assert report["counts"] == {"ok": 9, "failed": 5, "could not tell": 0} and report["status"] == 1


@pytest.mark.parametrize("host", PLANTED)
def test_a_planted_fault_is_named_on_its_host(report: dict[str, Any], host: str) -> None:
    expected, words = PLANTED[host]
    assert not_good(report, host) == expected
    assert any(words in check["detail"] for check in report["hosts"][host]["checks"] if check["status"] in ("fail", "warn"))


@pytest.mark.parametrize("host", GOOD)
def test_nothing_is_named_on_a_good_host(report: dict[str, Any], host: str) -> None:
    assert not_good(report, host) == {}


def test_equal_hosts_are_one_group(report: dict[str, Any]) -> None:
    patterns = [group["pattern"] for group in report["groups"]]
    assert {"node[1-2]", "k100-[01-02]", "a910b-[01-02]", "h200-[01-02]"} <= set(patterns)
    assert sorted(set(patterns) & set(PLANTED)) == sorted(PLANTED)
    printed = (LIVE / "preflight.log").read_text(encoding="utf-8")
    for line in ("preflight of 14 hosts: 9 ok, 5 failed, 0 could not tell", "k100-[01-02] (2 hosts, hygon_k100ai): ok"):
        assert printed.count(line) == 1, printed


# ---- cards follow containers


class Node:
    """The node that a played host lies on, over the engine of this machine."""

    def __init__(self, state: dict[str, Any], host: str) -> None:
        self.name = state["played"][host]["node"]
        self.tool = state["played"][host]["vars"]["accelerator_root"] + "/opt/hyhal/bin/hy-smi"

    def run(self, command: str) -> str:
        words = ["docker", "exec", f"ironserve-lab-{self.name}", "sh", "-ec", command]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def card(self, number: int) -> tuple[int | None, float | None, list[int]]:
        """Memory in use, use, and holders of a card, as the collection reads them."""
        memories = _hy_smi.memories(_hy_smi.parse_json(self.run(f"{self.tool} --showmeminfo vram --json")))
        row = _hy_smi.parse_table(self.run(self.tool)).rows[number]
        processes = _hy_smi.parse_processes(self.run(f"{self.tool} --showpids"))
        return memories[number][1], row.use_pct, [process.pid for process in processes if number in process.indices]

    def plant(self, **faults: Any) -> None:
        self.run(f"printf %s {shlex.quote(json.dumps(faults))} >{self.tool}.replay/state.json")


@pytest.fixture
def node(state: dict[str, Any]) -> Iterator[Node]:
    """A node with an image that has a shell and nothing else, made of the node's own files."""
    node = Node(state, "k100-01")
    node.run("tar -chf - /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*') 2>/dev/null | docker import - played-load >/dev/null")
    yield node
    node.run("docker rm --force played-load >/dev/null 2>&1 || true; docker rmi played-load >/dev/null")
    node.plant()


def test_a_card_is_held_as_long_as_its_container_runs(node: Node) -> None:
    assert node.card(2) == (2, 0.0, [])
    node.run(
        "docker run --detach --name=played-load --network=none --label=ironserve.cards=0000:0f:00.0 played-load /bin/sh -c 'while :; do :; done'"
    )
    pid = int(node.run("docker inspect --format={{.State.Pid}} played-load"))
    used, use, holders = node.card(2)
    assert used > 2 and use > 0 and holders == [pid]
    assert node.card(3) == (2, 0.0, [])

    # What a free-card wait and a proof that finds cards idle must tell.
    node.plant(idle=[2], stuck_s=3600)
    used, use, holders = node.card(2)
    assert used > 2 and use == 0.0 and holders == [pid]
    node.run("docker rm --force played-load")
    stuck, use, holders = node.card(2)
    assert stuck > 2 and (use, holders) == (0.0, [])
    node.plant()
    assert node.card(2) == (2, 0.0, [])
