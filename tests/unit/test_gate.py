# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gate's own helpers: a gate that cannot see is worse than none."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from gate import action_group, garbage, machine

ROOT = Path(__file__).resolve().parents[2]

SERVERS = """1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_port
3 engines 1 local-c0 127.0.0.1 2 0 1 8001
3 engines 2 local-c1 127.0.0.1 2 1 1 8002
3 engines 3 local-c2 127.0.0.1 0 0 1 8003
3 engines 4 local-c3 127.0.0.1 2 8 1 8004

"""


def test_only_running_servers_without_maintenance_are_open() -> None:
    assert garbage.open_ports(SERVERS) == {8001}


def test_damaged_recipe_points_at_the_damaged_file_only() -> None:
    weights = {"format": "gguf", "entry": "m.gguf", "source": {"kind": "pypi"}, "files": [{"path": "m.gguf", "size": 1, "sha256": "a"}]}
    recipe = {
        "name": "m",
        "title": "M",
        "acceptance": {"checks": []},
        "weights": {"default": "q", "variants": {"q": weights, "r": weights}},
    }
    damaged = garbage.damaged_recipe(recipe, {"size": 2, "sha256": "b"}, Path("/d"))
    variant = damaged["weights"]["variants"]["q"]
    assert damaged["name"] != recipe["name"] and list(damaged["weights"]["variants"]) == ["q"]
    assert variant["source"] == {"kind": "directory", "path": "/d"}
    assert variant["files"] == [{"path": "m.gguf", "size": 2, "sha256": "b"}]
    assert damaged["acceptance"] is recipe["acceptance"] and recipe["weights"]["variants"]["q"]["files"][0]["size"] == 1


def test_the_machine_comparison_sees_both_directions() -> None:
    before = {"path": ["/a", "/b"], "user": ["x"]}
    assert machine.differences(before, before) == []
    assert machine.differences(before, {"path": ["/b", "/c"], "user": ["x"]}) == [
        "left behind: path /c",
        "gone, though it was here before: path /a",
    ]


def test_comparing_with_what_was_never_remembered_is_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert machine.main("compare", str(tmp_path / "none.json")) == 0
    assert "nothing was remembered" in capsys.readouterr().out


def test_the_hosts_network_is_no_leftover_of_an_engine_that_runs() -> None:
    table = "overlay / overlay rw 0 0\nnsfs /run/docker/netns/default nsfs rw 0 0\nnsfs /run/docker/netns/0a1b nsfs rw 0 0\n"
    assert machine.mounts(table, engine_runs=True) == ["/run/docker/netns/0a1b"]
    assert machine.mounts(table, engine_runs=False) == ["/run/docker/netns/default", "/run/docker/netns/0a1b"]


def test_the_action_group_is_rewritten_and_nothing_else() -> None:
    text = 'requires_ansible: ">=2"\naction_groups:\n  llm:\n    - b\n    - gone\nplugin_routing: {}\n'
    assert action_group.rewritten(text, ["c", "a"]) == text.replace("    - b\n    - gone\n", "    - a\n    - c\n")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that holds nothing but the gate's runner and three layers."""
    gate = tmp_path / "tests/gate"
    gate.mkdir(parents=True)
    for name in ("common.sh", "layers.sh"):
        (gate / name).write_bytes((ROOT / "tests/gate" / name).read_bytes())
    for name, body in {
        "good": "exit 0",
        "bad": "echo what went wrong; exit 3",
        "hurt": "kill -TERM $PPID; exit 1",
        # They end only when both are there at the same time.
        "left": "mkfifo meet; echo there >meet",
        "right": "until [ -p meet ]; do sleep 0.05; done; cat meet",
        "endless": "echo $$ >endless.pid; sleep 600",
        "hurt_late": "until [ -s endless.pid ]; do sleep 0.05; done; kill -TERM $PPID; exit 1",
    }.items():
        layer = gate / f"layer_{name}.sh"
        layer.write_text(f"#!/usr/bin/env bash\n{body}\n")
        layer.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("layers", "closing", "status"),
    [
        (["good"], "1 passed, 0 failed", 0),
        (["good", "bad", "good"], "2 passed, 1 failed", 1),
        (["good", "absent"], "1 passed, 1 failed", 1),
        (["good", "hurt", "good"], "1 passed, 2 failed", 1),
        (["left+right", "good"], "3 passed, 0 failed", 0),
        (["good+bad", "good"], "2 passed, 1 failed", 1),
        (["bad+good", "good"], "2 passed, 1 failed", 1),
    ],
)
def test_the_runner_counts_layers_and_says_so_last(checkout: Path, layers: list[str], closing: str, status: int) -> None:
    result = subprocess.run(["bash", "tests/gate/layers.sh", *layers], cwd=checkout, capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == closing
    assert (result.returncode != 0) == (status != 0)


def test_what_runs_beside_is_shown_when_both_have_ended(checkout: Path) -> None:
    said = subprocess.run(["bash", "tests/gate/layers.sh", "good+bad"], cwd=checkout, capture_output=True, text=True)
    assert said.stdout.splitlines()[:-1] == ["what went wrong", "not passed: bad"]
    assert said.stderr.index("gate: good passed") < said.stderr.index("gate: bad FAILED")


def test_who_is_interrupted_ends_what_runs_beside(checkout: Path) -> None:
    said = subprocess.run(["bash", "tests/gate/layers.sh", "hurt_late+endless"], cwd=checkout, capture_output=True, text=True)
    assert said.stdout.splitlines()[-1] == "0 passed, 2 failed"
    pid = int((checkout / "endless.pid").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)
