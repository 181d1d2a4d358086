# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module's own entry point against an engine stand-in, and the options it refuses."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.modules import inference_benchmark

fleet = pytest.importorskip("standin.fleet")
DOC = Path(__file__).resolve().parents[4] / "docs" / "benchmark-result.md"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    (folder / "key").write_text("the-key\n")
    with fleet.Fleet(1, folder, slots=8, decode_tokens_per_s=20, prefill_base_s=0.05, key_file=folder / "key") as started:
        yield started.engines[0], str(folder / "key")


def options(engine, **changes):
    running, key = engine
    values = {
        "endpoints": [{"name": "c0", "url": running.url, "api_key_file": key}],
        "model": "standin",
        "requests": 2,
        "repeats": 1,
        "warmup": 0,
        "output_tokens": 4,
        "prompts": {"input_tokens": 64},
    }
    values.update(changes)
    return values


def test_measures_and_writes_what_it_returns(run_module, engine, tmp_path):
    path = tmp_path / "result.json"
    result = run_module(inference_benchmark, options(engine, path=str(path)))
    assert result["ok"] and result["changed"] is False and result["version"] == 1
    (run,) = result["runs"]
    assert run["figures"]["total_output_tokens"] == 8 and run["figures"]["median_tpot_ms"] == pytest.approx(50, rel=0.2)
    assert "the-key" not in json.dumps(result)
    written = json.loads(path.read_text())
    assert written == {name: result[name] for name in written} and len(written) == 7
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_result_is_what_the_document_says(run_module, engine):
    """Every key of the result stands in docs/benchmark-result.md, and every family and figure with all its statistics."""
    if not DOC.is_file():
        pytest.skip("the artifact's documents are not here")
    text = DOC.read_text()
    result = run_module(inference_benchmark, options(engine))
    result.pop("invocation", None)
    keys = set(result) - {"changed", "ok", "version"}
    for block in (
        result["protocol"],
        result["runs"][0],
        result["runs"][0]["client"],
        result["summary"],
        result["summary"]["levels"][0],
        result["cards"][0],
    ):
        keys |= set(block)
    keys |= set(result["runs"][0]["timeline"][0]) | set(result["runs"][0]["requests"][0])
    names = set(result["runs"][0]["figures"])
    families = {name.partition("_")[2] for name in names if name.startswith("p99_")}
    assert names >= {prefix + "_" + name for name in families for prefix in ("mean", "median", "std", "p90", "p95", "p99", "max")}
    keys |= families | {name for name in names if name.partition("_")[2] not in families}
    assert sorted(key for key in keys if "`{0}".format(key) not in text) == []
    returned = yaml.safe_load(inference_benchmark.RETURN)
    assert set(result) - {"changed"} == set(returned)
    assert set(result["runs"][0]) == set(returned["runs"]["contains"])


def test_check_mode_sends_nothing_and_says_so(run_module, engine):
    before = len(engine[0].records())
    result = run_module(inference_benchmark, options(engine), check_mode=True)
    assert result["runs"] == [] and result["ok"] is False and not result.get("failed") and "no load was sent" in result["msg"]
    assert len(engine[0].records()) == before


def test_what_may_not_be_published_fails_unless_told_otherwise(run_module, engine):
    wrong = options(engine, prompts={"input_tokens": 500000})
    result = run_module(inference_benchmark, wrong)
    assert result["failed"] and "2 of 2 requests failed" in result["msg"] and result["runs"][0]["figures"] is None
    result = run_module(inference_benchmark, dict(wrong, fail_on_refusal=False))
    assert not result.get("failed") and result["ok"] is False


def test_details_can_be_left_out(run_module, engine):
    run = run_module(inference_benchmark, options(engine, detail=False))["runs"][0]
    assert run["timeline"] == [] and run["requests"] == [] and run["figures"]


def test_conversations_are_asked(run_module, engine, monkeypatch):
    talks = [{"conversations": [{"from": "human", "value": "What is {0}?".format(n)}, {"from": "gpt", "value": "x"}]} for n in range(3)]
    warned = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text, **_more: warned.append(text))
    result = run_module(inference_benchmark, options(engine, prompts={"kind": "sharegpt", "conversations": talks + [{"id": "none"}]}))
    assert result["ok"] and result["protocol"]["prompts"]["count"] == 3
    assert warned == ["1 conversations have no question with an answer and were left out"]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"prompts": {"kind": "sharegpt"}}, "prompts.kind sharegpt needs prompts.path or prompts.conversations"),
        ({"prompts": {"kind": "texts"}}, "prompts.kind texts needs prompts.texts"),
        ({"prompts": {"texts": ["a"]}}, "prompts.texts is of no use with prompts.kind synthetic"),
        ({"prompts": {"kind": "sharegpt", "path": "/nowhere.json"}}, "/nowhere.json can't be read"),
        ({"timeouts": {"run_s": 0}}, "run_s must be above 0"),
        ({"card_interval_s": -1}, "card_interval_s must be above 0"),
        ({"timeouts": {"run_s": float("inf")}}, "run_s must be above 0 s and at most 604800 s, not inf"),
        ({"concurrency": []}, "at least one level"),
        ({"endpoints": [{"name": "a", "url": "nowhere"}]}, "endpoint a: its url is no address (not shown here)"),
        ({"endpoints": [{"name": "a", "url": "http://127.0.0.1:1", "api_key_file": "/nowhere"}]}, "API key file /nowhere"),
        ({"endpoints": [{"name": "a", "url": "http://127.0.0.1:1"}]}, "connection refused"),
    ],
)
def test_options_that_cannot_work_are_refused(run_module, engine, changes, said):
    result = run_module(inference_benchmark, options(engine, **changes))
    assert result["failed"] and said in result["msg"]


def test_other_clients_stand_beside_ours(run_module, engine, tmp_path, monkeypatch):
    """guidellm is played: it writes what it would write."""

    def block(mean):
        shares = {"p90": mean, "p95": mean, "p99": mean}
        return {"successful": {"mean": mean, "median": mean, "std_dev": 0.0, "percentiles": shares, "total_sum": 8}}

    names = (
        "time_to_first_token_ms",
        "inter_token_latency_ms",
        "request_latency",
        "requests_per_second",
        "output_tokens_per_second",
        "tokens_per_second",
    )
    metrics = dict({name: block(50.0) for name in names}, request_totals={"successful": 2, "errored": 0, "incomplete": 0})
    (tmp_path / "made.json").write_text(json.dumps({"benchmarks": [{"duration": 1.0, "metrics": metrics}]}))
    program = tmp_path / "guidellm"
    program.write_text('#!/bin/sh\ncp {0}/made.json "$(dirname "$3")/benchmarks.json"\n'.format(tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    client = {"tool": "guidellm", "endpoint": "c0", "weights": "/srv/m", "concurrency": 2, "requests": 2}
    result = run_module(inference_benchmark, options(engine, clients=[client]))
    assert result["ok"] and [run["tool"] for run in result["runs"]] == ["ironserve", "guidellm"]
    assert [row["tool"] for row in result["summary"]["levels"]] == ["ironserve", "guidellm"]
    assert result["runs"][1]["figures"]["median_tpot_ms"] == 50.0
    wrong = [{"tool": "guidellm", "endpoint": "nobody", "concurrency": 1}]
    assert "no endpoint is named 'nobody'" in run_module(inference_benchmark, options(engine, clients=wrong))["msg"]


def test_what_was_measured_outlives_what_comes_after(run_module, engine, tmp_path, monkeypatch):
    """Our own figures may have taken hours: a client that is not there, and a disk that takes no file, cost only themselves."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sh").symlink_to("/bin/sh")
    path = tmp_path / "result.json"
    client = {"tool": "guidellm", "endpoint": "c0", "weights": "/srv/m", "concurrency": 2, "requests": 2}
    result = run_module(inference_benchmark, options(engine, clients=[client], path=str(path)))
    assert result["failed"] and "not published: guidellm ended with status 127" in result["msg"], result["msg"]
    for runs in (result["runs"], json.loads(path.read_text())["runs"]):
        ours, theirs = runs
        assert ours["figures"]["total_output_tokens"] == 8 and (theirs["tool"], theirs["figures"]) == ("guidellm", None)
    result = run_module(inference_benchmark, options(engine, path="/proc/nowhere/x.json"))
    assert result["failed"] and "/proc/nowhere/x.json can't be written" in result["msg"]
    assert result["runs"][0]["figures"]["total_output_tokens"] == 8


#: The conversations that come with the role acceptance, which gives them to the module.
SAMPLE = Path(__file__).resolve().parents[4] / "roles" / "acceptance" / "files" / "conversations.json"


def test_vllm_is_given_the_conversations_and_the_rate(run_module, engine, tmp_path, monkeypatch):
    """Docker is played: it writes down what it is given, and the result of a run of a thousand."""
    talks = json.loads(SAMPLE.read_text(encoding="utf-8"))
    times = {"{0}_{1}_ms".format(prefix, name): 50.0 for prefix in ("mean", "median", "std") for name in ("ttft", "tpot", "itl", "e2el")}
    rates = dict.fromkeys(("request_throughput", "output_throughput", "total_token_throughput"), 5.0)
    totals = {"num_prompts": 1000, "completed": 1000, "failed": 0, "total_input_tokens": 1, "total_output_tokens": 1, "duration": 200.0}
    (tmp_path / "made.json").write_text(json.dumps({**times, **rates, **totals}))
    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\necho "$*" > {0}/line\ncat > {0}/input\ncat {0}/made.json\n'.format(tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    client = {"tool": "vllm", "endpoint": "c0", "image": "registry.example/vllm", "weights": "/srv/m", "rate": 5}
    result = run_module(inference_benchmark, options(engine, prompts={"kind": "sharegpt", "conversations": talks}, clients=[client]))
    key, _newline, dataset = (tmp_path / "input").read_text(encoding="utf-8").partition("\n")
    assert key == "the-key" and json.loads(dataset) == talks
    line = (tmp_path / "line").read_text()
    assert "--dataset-name sharegpt --dataset-path /tmp/dataset.json --request-rate 5 " in line and "--num-prompts 1000 " in line
    # Lengths are the data set's own, as many at a time as come, and no key where somebody could read it.
    assert not any(word in line for word in ("--max-concurrency", "--ignore-eos", "--sharegpt-output-len", "the-key"))
    row = result["runs"][-1]
    assert [row[name] for name in ("tool", "load", "request_rate", "completed", "publishable")] == ["vllm", "open", 5.0, 1000, True]
