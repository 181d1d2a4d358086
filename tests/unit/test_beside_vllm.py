# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""benchmarks/beside_vllm.py: what it measures, when it says nothing, and its goal. The engine is a stand-in, docker and the program are played."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "beside_vllm.py"
if not PATH.is_file():
    pytest.skip("the artifact has no benchmarks", allow_module_level=True)
_spec = importlib.util.spec_from_file_location("beside_vllm", PATH)
beside = importlib.util.module_from_spec(_spec)
sys.modules["beside_vllm"] = beside
_spec.loader.exec_module(beside)

PLACE = beside.Place("c0", "http://127.0.0.1:1", "", "image", "/srv/m")
WORK = beside.Work(4, 2, 20, 8)


def container(**host):
    """The part of a container's description that is read."""
    ports = {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8001"}]}
    mounts = {"/models": "/srv/m", "/cache": "/srv/c", "/run/secrets/engine.key": "/etc/key"}
    return {
        "Name": "/ironserve-c0",
        "Config": {"Image": "ironserve/vllm-cpu:1"},
        "HostConfig": {"PortBindings": ports, **host},
        "Mounts": [{"Destination": target, "Source": source} for target, source in mounts.items()],
    }


def figures(**changes):
    """Figures of a run that did WORK."""
    known = dict.fromkeys(beside.FIGURES, 100.0)
    return {**known, "total_output_tokens": 32, "total_input_tokens": 400, **changes}


def test_a_replica_is_found_by_its_container():
    assert beside.place_of(container()) == beside.Place(
        "ironserve-c0", "http://127.0.0.1:8001", "/etc/key", "ironserve/vllm-cpu:1", "/srv/m"
    )
    for address, host in (("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("fd00::1", "[fd00::1]"), ("10.0.0.1", "10.0.0.1")):
        found = container(PortBindings={"8000/tcp": [{"HostIp": address, "HostPort": "8009"}]})
        assert beside.place_of(found).url == f"http://{host}:8009"
    with pytest.raises(beside.Untold, match="ironserve-c0 publishes no port"):
        beside.place_of(container(PortBindings=None))


@pytest.mark.parametrize(
    ("ps", "said"),
    [("", "but 0 others"), ("ironserve-c0 ironserve/llama-cpp:1\n", "but 1 others; make demo ENGINE=vllm")],
)
def test_no_replica_of_vllm_is_no_comparison(monkeypatch, ps, said):
    monkeypatch.setattr(beside, "docker", lambda *_words: ps)
    with pytest.raises(beside.Untold, match=said):
        beside.find("")


def test_the_first_of_vllm_is_taken_and_a_named_one_before_it(monkeypatch):
    asked = []

    def docker(*words):
        asked.append(words)
        return (
            json.dumps([container()]) if words[0] == "inspect" else "ironserve-c1 ironserve/vllm-cpu:1\nironserve-c0 a/vllm:1\nz llama:1\n"
        )

    monkeypatch.setattr(beside, "docker", docker)
    beside.find("")
    beside.find("other")
    assert [words for words in asked if words[0] == "inspect"] == [("inspect", "ironserve-c0"), ("inspect", "other")]


def test_sides_take_turns_with_the_same_seed_and_a_first_run_counts_nowhere():
    asked = []

    def side(name):
        def run(_place, _model, work, seed):
            asked.append((name, work.requests, seed))
            return figures()

        return run

    rounds = beside.measure(
        PLACE, "m", beside.Work(16, 2, 20, 2), 3, {name: side(name) for name in (beside.OURS, beside.THEIRS)}, lambda _: None
    )
    assert asked == [
        (beside.OURS, 4, 0),
        (beside.OURS, 16, 1),
        (beside.THEIRS, 16, 1),
        (beside.THEIRS, 16, 2),
        (beside.OURS, 16, 2),
        (beside.OURS, 16, 3),
        (beside.THEIRS, 16, 3),
    ]
    assert len(rounds) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"total_output_tokens": 31}, "answers have 31 and 32 tokens"), ({"total_input_tokens": 409}, "prompts have 409 and 400 tokens")],
)
def test_a_round_of_other_work_is_done_again_until_it_is_hopeless(changes, said):
    bad = iter([changes, {}, changes, {}, {}])
    lines = []
    sides = {beside.OURS: lambda *_run: figures(**next(bad)), beside.THEIRS: lambda *_run: figures()}
    # The first one is the run that counts nowhere.
    assert len(beside.measure(PLACE, "m", WORK, 3, sides, lines.append)) == 3
    assert [line for line in lines if said in line] == [f"round 2 cannot be used: {said}" + lines[1].partition(said)[2]]
    sides[beside.OURS] = lambda *_run: figures(**changes)
    with pytest.raises(beside.Untold, match=f"4 rounds could not be used; the last one: {said}"):
        beside.measure(PLACE, "m", WORK, 1, sides, lambda _: None)


def test_theirs_are_the_same_words_with_codes_that_were_never_used(monkeypatch):
    jobs = []

    def run(job, key, _folder):
        jobs.append((job, key))
        return {"completed": 4, "failed": 0, "figures": figures()}

    monkeypatch.setattr(beside._load_tools, "run", run)
    for _time in range(2):
        beside.theirs(PLACE, "m", WORK, 3)
    asked = [[talk["conversations"][0]["value"] for talk in json.loads(job.dataset)] for job, _key in jobs]
    plain = [[text.partition("] ")[2] for text in texts] for texts in asked]
    assert plain[0] == plain[1] == WORK.texts(3) and len(set(plain[0])) == 4 and WORK.texts(3) != WORK.texts(4)
    assert len(set(asked[0] + asked[1])) == 8
    job, key = jobs[0]
    assert (job.image, job.weights, job.requests, job.concurrency, job.answer_tokens, key) == ("image", "/srv/m", 4, 2, 8, "")
    monkeypatch.setattr(beside._load_tools, "run", lambda *_args: {"completed": 3, "failed": 1, "figures": figures()})
    with pytest.raises(beside.Untold, match="3 of 4 requests were answered"):
        beside.theirs(PLACE, "m", WORK, 3)


def test_medians_over_rounds_are_judged_in_both_directions():
    theirs = figures()

    def row(*values):
        rounds = [{beside.OURS: figures(mean_ttft_ms=value), beside.THEIRS: theirs} for value in values]
        rows = beside.compare(rounds)
        assert all(other["kept"] and other["apart"] == 0 for other in rows if other["figure"] != "mean_ttft_ms")
        return next(found for found in rows if found["figure"] == "mean_ttft_ms")

    assert row(104.9, 90.0, 160.0)["kept"] and not row(105.2, 90.0, 160.0)["kept"]
    assert not row(94.0, 94.0, 200.0)["kept"] and row(95.5)["kept"]
    found = row(90.0, 102.0, 110.0)
    assert (found["ours"], found["theirs"]) == (102.0, 100.0)
    assert [found[name] for name in ("apart", "least", "most")] == pytest.approx([0.02, -0.1, 0.1])
    # What drifts meets both sides of a round: medians of each side alone would be 5 % apart.
    drift = [
        {beside.OURS: figures(mean_ttft_ms=mine), beside.THEIRS: figures(mean_ttft_ms=other)}
        for mine, other in ((100, 100), (200, 210), (300, 190))
    ]
    assert next(found for found in beside.compare(drift) if found["figure"] == "mean_ttft_ms")["apart"] == 0


@pytest.mark.slow
def test_the_whole_of_it(tmp_path, monkeypatch, capsys):
    """One round on a stand-in, with docker and the program played; whether its goal is kept is not asked on a busy machine."""
    fleet = pytest.importorskip("standin.fleet")
    played_docker = pytest.importorskip("samples.played_docker")
    key = tmp_path / "key"
    key.write_text("the-key\n")
    with fleet.Fleet(1, tmp_path, slots=2, decode_tokens_per_s=5, prefill_base_s=0.3, key_file=key) as started:
        engine = started.engines[0]
        there = container(PortBindings={"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(engine.port)}]})
        there["Mounts"][2]["Source"] = str(key)
        programs = played_docker.put(tmp_path, "ironserve-c0 ironserve/vllm-cpu:1\n", json.dumps([there]))
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        status = beside.main(
            "--rounds 1 --requests 4 --concurrency 2 --tokens 5 --words 20".split() + ["--json", str(tmp_path / "out.json")]
        )
        records = [record for record in engine.records() if record.get("completion_tokens") == 5]
    found = json.loads((tmp_path / "out.json").read_text())
    assert status in (0, 1) and (status == 0) == all(row["kept"] for row in found["rows"])
    assert [row["figure"] for row in found["rows"]] == list(beside.FIGURES) and found["model"] == "standin"
    (one,) = found["rounds"]
    assert {name: one[name]["total_output_tokens"] for name in one} == {beside.OURS: 20, beside.THEIRS: 20}
    # A first run and both sides, four each, and rounds that a busy machine spoilt; nothing came out of the cache, no answer ended early.
    assert len(records) >= 12 and len(records) % 4 == 0 and {record["finish"] for record in records} == {"length"}
    assert max(record["cached_tokens"] for record in records) < 16
    said = capsys.readouterr().out
    assert (
        "ironserve-c0 at http://127.0.0.1" in said
        and "TTFT ms, mean" in said
        and "the-key" not in said + (tmp_path / "out.json").read_text()
    )


def test_what_cannot_be_told_is_neither_kept_nor_missed(tmp_path, monkeypatch, capsys):
    played_docker = pytest.importorskip("samples.played_docker")
    monkeypatch.setenv("PATH", f"{played_docker.put(tmp_path)}:{os.environ['PATH']}")
    assert beside.main([]) == 2
    assert "cannot be told: no replica of vLLM runs here" in capsys.readouterr().err


def test_no_container_engine_is_no_comparison(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert beside.main([]) == 2 and "cannot be told: docker: No such file" in capsys.readouterr().err
