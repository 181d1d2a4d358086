# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role acceptance measures and scores, with a real ansible-playbook against engines that are played: two replicas and one as the gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from standin import fleet

ROOT = Path(__file__).resolve().parents[4]
COLLECTIONS = ROOT.parents[2] if ROOT.parts[-3:] == ("ansible_collections", "ironserve", "llm") else ROOT / "collections"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    for name in ("client", "engine"):
        (folder / name).write_text("key-of-the-{0}\n".format(name))
    kinds = [{"key_file": folder / "client"}, {"key_file": folder / "engine"}, {"key_file": folder / "engine"}]
    with fleet.Fleet(kinds, folder, slots=8, decode_tokens_per_s=10, prefill_base_s=0.1) as started:
        yield started.engines, folder


def play(engines, folder: Path, *more: str, **changes: object) -> subprocess.CompletedProcess:
    (gateway, *replicas), keys = engines
    plan = [
        {"endpoint": {"name": f"one-c{n}", "url": engine.url, "container": f"c{n}", "cards": [f"cpu:{n}"], "platform": "cpu", "more": "x"}}
        for n, engine in enumerate(replicas)
    ]
    variables = {
        "ansible_python_interpreter": sys.executable,
        "catalog_out": {"model": {"served_names": ["standin"]}, "platform": {"probe": "cpu"}},
        "__out": {"plan": {"replicas": plan}},
        "acceptance_node_group": "all",
        "acceptance_gateway_url": gateway.url,
        "acceptance_client_key_file": str(keys / "client"),
        "acceptance_engine_key_file": str(keys / "engine"),
        "acceptance_benchmark_result": str(folder / "reports" / "benchmark.json"),
        "acceptance_benchmark_protocol": {"concurrency": [1], "requests": 2, "repeats": 1, "warmup": 0, "output_tokens": 5},
        **changes,
    }
    tasks = [
        {"ansible.builtin.set_fact": {"replica_out": "{{ __out }}"}},
        {"ansible.builtin.include_role": {"name": "ironserve.llm.acceptance", "tasks_from": "benchmark"}},
        {"ansible.builtin.debug": {"msg": "kept {{ __acceptance_benchmark.result.runs | default([]) | length }} runs"}},
        {"ansible.builtin.include_role": {"name": "ironserve.llm.acceptance", "tasks_from": "accuracy"}},
    ]
    (folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "vars": variables, "tasks": tasks}]))
    return subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "one,", "-c", "local", "play.json", *more],
        cwd=folder,
        env=dict(os.environ, HOME=str(folder), ANSIBLE_COLLECTIONS_PATH=str(COLLECTIONS), ANSIBLE_NOCOLOR="1"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_measures_replicas_and_gateway_and_scores(engines, tmp_path):
    done = play(engines, tmp_path, acceptance_accuracy_probe={"limit": 3, "max_tokens": 8})
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "reports" / "benchmark.json").read_text())
    assert [run["endpoint"] for run in result["runs"]] == ["one-c0", "one-c1", "all replicas", "gateway"]
    assert [run["completed"] for run in result["runs"]] == [2, 2, 4, 2]
    assert [item["kind"] for item in result["endpoints"]] == ["gateway", "replica", "replica"]
    assert result["summary"]["gateway"][0]["through"] == "gateway" and result["protocol"]["output_tokens"] == 5
    # There is no such container on this host, which is no reason not to measure.
    assert all(row["power_w"] is None and row["why"] for row in result["cards"])
    assert "kept 4 runs" in done.stdout and "gateway: 0 of 3 right; there is no recorded score" in done.stdout
    assert "endpoint" in done.stdout and "key-of-the" not in done.stdout + json.dumps(result)


@pytest.mark.long
def test_the_conversations_of_the_role_are_asked_without_a_file(engines, tmp_path):
    wanted = {"concurrency": [2], "requests": 2, "repeats": 1, "warmup": 0, "output_tokens": 5, "prompts": {"kind": "sharegpt"}}
    done = play(engines, tmp_path, acceptance_benchmark_protocol=wanted, acceptance_accuracy_probe={"limit": 1, "max_tokens": 8})
    assert done.returncode == 0, done.stdout + done.stderr
    prompts = json.loads((tmp_path / "reports" / "benchmark.json").read_text())["protocol"]["prompts"]
    assert prompts["kind"] == "sharegpt" and prompts["count"] == 16


def test_a_dry_run_sends_nothing(engines, tmp_path):
    before = [len(engine.records()) for engine in engines[0]]
    done = play(engines, tmp_path, "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [len(engine.records()) for engine in engines[0]] == before and not (tmp_path / "reports").exists()


def test_a_mistyped_option_is_refused(engines, tmp_path):
    done = play(engines, tmp_path, acceptance_benchmark_protocol={"concurency": [1]})
    assert done.returncode != 0 and "unknown concurency; known: cache, clients, concurrency" in " ".join(done.stdout.split())
