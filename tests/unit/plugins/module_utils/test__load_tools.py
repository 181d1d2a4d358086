# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Other load clients: their commands as they are run, their results in our words, and no key where somebody can read it."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import stat

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _benchmark, _load, _load_tools
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._load_tools import Job

#: As `vllm bench serve --save-result` writes it: names from its source, figures made up to agree with each other.
VLLM = {
    "date": "20261130-150000",
    "backend": "openai-chat",
    "label": None,
    "model_id": "m",
    "tokenizer_id": "/models",
    "num_prompts": 100,
    "request_rate": 5.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 20.0,
    "completed": 100,
    "failed": 0,
    "total_input_tokens": 21000,
    "total_output_tokens": 12000,
    "request_throughput": 5.0,
    "request_goodput": None,
    "output_throughput": 600.0,
    "total_token_throughput": 1650.0,
    "max_output_tokens_per_s": 900.0,
    "max_concurrent_requests": 14,
    "rtfx": 0.0,
    "spec_decode_acceptance_rate": 71.25,
}
for _place, _name in enumerate(("ttft", "tpot", "itl", "e2el"), 1):
    for _order, _prefix in enumerate(("mean", "median", "std", "p90", "p95", "p99"), 1):
        VLLM["{0}_{1}_ms".format(_prefix, _name)] = _place * 100.0 + _order

PLAIN = Job("vllm", "http://10.0.0.1:8001", "m", "registry.example/vllm@sha256:1", "/srv/m", '[{"conversations": []}]', 1000, rate=5.0)


def guide(**changes):
    def block(mean, total=None):
        out = {"mean": mean, "median": mean + 1, "std_dev": 2.0, "percentiles": {"p90": mean + 3, "p95": mean + 4, "p99": mean + 5}}
        return {"successful": dict(out, total_sum=total)}

    metrics = {
        "time_to_first_token_ms": block(100.0),
        "inter_token_latency_ms": block(20.0),
        "time_per_output_token_ms": block(21.0),
        "request_latency": block(2.0),
        "requests_per_second": block(4.0),
        "output_tokens_per_second": block(500.0),
        "tokens_per_second": block(1500.0),
        "prompt_token_count": block(210.0, 21000),
        "output_token_count": block(120.0, 12000),
        "request_totals": {"successful": 100, "errored": 0, "incomplete": 0, "total": 100},
    }
    metrics.update(changes)
    return {"benchmarks": [{"duration": 25.0, "metrics": {name: value for name, value in metrics.items() if value is not None}}]}


#: As `evalscope perf` 1.14 writes benchmark_summary.json, and as older versions did; both say the same.
SCOPE = {
    "Test Duration (s)": 30.0,
    "Concurrency": 4,
    "Request Rate (req/s)": -1.0,
    "Total Requests": 40,
    "Success Requests": 40,
    "Failed Requests": 0,
    "Stream Requests": 40,
    "Non-Stream Requests": 0,
    "Req Throughput (req/s)": 1.33,
    "Avg Latency (s)": 2.5,
    "Avg Input Tokens": 6.5,
    "Output Throughput (tok/s)": 68.3,
    "Total Throughput (tok/s)": 77.0,
    "Avg TTFT (ms)": 250.0,
    "Avg TPOT (ms)": 30.0,
    "Avg ITL (ms)": 30.0,
    "Avg Output Tokens": 51.4,
}
OLD_SCOPE = {
    "Time taken for tests (s)": 30.0,
    "Number of concurrency": 4,
    "Total requests": 40,
    "Succeed requests": 40,
    "Failed requests": 0,
    "Output token throughput (tok/s)": 68.3,
    "Total token throughput (tok/s)": 77.0,
    "Request throughput (req/s)": 1.33,
    "Average latency (s)": 2.5,
    "Average time to first token (s)": 0.25,
    "Average time per output token (s)": 0.03,
}


def test_what_vllm_says_has_our_names():
    found = _load_tools.parse_vllm(json.dumps(VLLM))
    assert (found["completed"], found["failed"], found["duration_s"]) == (100, 0, 20.0)
    figures = found["figures"]
    assert [figures["mean_ttft_ms"], figures["p99_tpot_ms"], figures["median_e2el_ms"]] == [101.0, 206.0, 402.0]
    # What it calls time between tokens is the gap between chunks.
    assert figures["median_gap_ms"] == 302.0 and "median_itl_ms" not in figures
    assert (figures["output_throughput"], figures["total_output_tokens"], figures["max_concurrent_requests"]) == (600.0, 12000, 14)
    assert "71.2 % of the drafted tokens were accepted" in found["notes"][0]
    # All its names are names of ours.
    known = set(_benchmark.figures([], {}))
    assert set(figures) <= known


#: What they really wrote; its INDEX.md says how. The artifact has no fixtures.
WRITTEN = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "load_clients"
only_where_written = pytest.mark.skipif(not WRITTEN.is_dir(), reason="the artifact has no fixtures")


@only_where_written
def test_a_result_that_vllm_wrote():
    found = _load_tools.parse_vllm((WRITTEN / "vllm-0.32.0.json").read_text())
    assert (found["completed"], found["failed"], found["notes"]) == (8, 0, [])
    figures = found["figures"]
    # 25 tokens at 20 a second: 50 ms each. Its mean of gaps takes events apart that were read at once.
    assert figures["mean_tpot_ms"] == pytest.approx(50.0, rel=0.005) and figures["mean_gap_ms"] == pytest.approx(47.9, abs=0.1)
    assert figures["mean_e2el_ms"] == pytest.approx(figures["mean_ttft_ms"] + 24 * figures["mean_tpot_ms"], rel=0.001)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (534, 8 * 25)
    assert figures["output_throughput"] == pytest.approx(200 / found["duration_s"])


@only_where_written
def test_a_result_that_guidellm_wrote():
    found = _load_tools.parse_guidellm((WRITTEN / "guidellm-0.8.1.json").read_text())
    assert (found["completed"], found["failed"]) == (12, 0)
    figures = found["figures"]
    # 16 tokens at 20 a second. The log of the stand-in says 528 ms, 49.91 ms and 1277 ms, without the client's own part.
    assert figures["mean_tpot_ms"] == pytest.approx(49.91, rel=0.002)
    assert figures["mean_ttft_ms"] == pytest.approx(528, abs=35) and figures["mean_e2el_ms"] == pytest.approx(1277, abs=35)
    assert figures["mean_e2el_ms"] == pytest.approx(figures["mean_ttft_ms"] + 15 * figures["mean_tpot_ms"], rel=0.005)
    # Its sums of whole numbers are none.
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (971, 12 * 16)


@only_where_written
def test_a_result_that_evalscope_wrote():
    found = _load_tools.parse_evalscope((WRITTEN / "evalscope-1.14.1.json").read_text())
    assert (found["completed"], found["failed"]) == (12, 0)
    figures = found["figures"]
    # The log of the stand-in says 528 ms and 1275 ms, without the client's own part; 12 answers of 16 tokens.
    assert figures["mean_ttft_ms"] == pytest.approx(528, abs=50) and figures["mean_e2el_ms"] == pytest.approx(1275, abs=50)
    assert figures["output_throughput"] * found["duration_s"] == pytest.approx(12 * 16, rel=0.001)
    assert figures["request_throughput"] * found["duration_s"] == pytest.approx(12, rel=0.001)


def test_an_older_vllm_counts_no_failures_and_has_fewer_percentiles():
    older = {key: value for key, value in VLLM.items() if key not in ("failed", "max_concurrent_requests", "p90_ttft_ms")}
    found = _load_tools.parse_vllm(json.dumps(dict(older, completed=97)))
    assert found["failed"] == 3 and found["figures"]["p90_ttft_ms"] is None


@pytest.mark.parametrize(
    "parse, text, said",
    [
        (_load_tools.parse_vllm, "", "no JSON object"),
        (_load_tools.parse_vllm, "[]", "no JSON object"),
        (_load_tools.parse_vllm, json.dumps(dict(VLLM, mean_ttft_ms=None)), "no figure mean_ttft_ms"),
        (_load_tools.parse_vllm, json.dumps(dict(VLLM, mean_ttft_ms=float("nan"))), "no figure mean_ttft_ms"),
        (_load_tools.parse_guidellm, "{}", "does not hold one benchmark"),
        (_load_tools.parse_guidellm, json.dumps({"benchmarks": guide()["benchmarks"] * 2}), "does not hold one benchmark"),
        (_load_tools.parse_guidellm, json.dumps(guide(request_latency=None)), "no metric request_latency"),
        (_load_tools.parse_guidellm, json.dumps(guide(request_totals=None)), "no request_totals"),
        (_load_tools.parse_evalscope, json.dumps(dict(SCOPE, **{"Avg Latency (s)": "n/a"})), "no figure Avg Latency"),
        (_load_tools.parse_evalscope, json.dumps(dict(OLD_SCOPE, **{"Average latency (s)": None})), "no figure Average latency"),
        (_load_tools.parse_evalscope, "{}", "no figure Success Requests"),
    ],
)
def test_a_result_that_is_not_understood_is_an_error(parse, text, said):
    with pytest.raises(UnknownOutput, match=said):
        parse(text)


def test_what_guidellm_says_has_our_names():
    found = _load_tools.parse_guidellm(json.dumps(guide(request_totals={"successful": 90, "errored": 7, "incomplete": 3})))
    figures = found["figures"]
    assert (found["completed"], found["failed"], found["duration_s"]) == (90, 10, 25.0)
    # Its time between tokens is our time per token; its own time per token has the first one in it.
    assert [figures["mean_tpot_ms"], figures["p99_ttft_ms"], figures["mean_e2el_ms"], figures["p90_e2el_ms"]] == [
        20.0,
        105.0,
        2000.0,
        5000.0,
    ]
    assert figures["total_output_tokens"] == 12000 and figures["output_throughput"] == 500.0


@pytest.mark.parametrize("said", [SCOPE, OLD_SCOPE])
def test_what_evalscope_says_has_our_names(said):
    found = _load_tools.parse_evalscope(json.dumps(said))
    assert (found["failed"], found["duration_s"], found["figures"]["output_throughput"]) == (0, 30.0, 68.3)
    assert (found["figures"]["total_token_throughput"], found["figures"]["request_throughput"]) == (77.0, 1.33)
    assert found["figures"]["mean_ttft_ms"] == 250.0 and found["figures"]["mean_e2el_ms"] == 2500.0
    assert "mean_tpot_ms" not in found["figures"] and found["completed"] == 40


def test_vllm_runs_in_the_engine_image():
    command = _load_tools.command(PLAIN, "/x")
    image = command.index("registry.example/vllm@sha256:1")
    assert command[:4] == ["docker", "run", "--rm", "--interactive"]
    assert "--volume=/srv/m:/models:ro" in command[:image] and "--entrypoint=sh" in command[:image] and "--network=host" in command[:image]
    line = " ".join(command[image + 4 :])
    assert line.startswith(
        "vllm bench serve --backend openai-chat --base-url http://10.0.0.1:8001 --endpoint /v1/chat/completions --model m"
    )
    for part in (
        "--dataset-name sharegpt --dataset-path /tmp/dataset.json",
        "--num-prompts 1000",
        "--request-rate 5",
        "--metric-percentiles 90,95,99",
    ):
        assert part in line
    assert "--max-concurrency" not in line and "--ignore-eos" not in line and "--sharegpt-output-len" not in line
    # Greedy as ours, and no request before the run, whatever the version does of itself.
    assert "--temperature 0 --ready-check-timeout-sec 0" in line
    fixed = " ".join(_load_tools.vllm_arguments(dataclasses.replace(PLAIN, answer_tokens=32)))
    assert "--dataset-path /tmp/dataset.json --sharegpt-output-len 32 --ignore-eos" in fixed
    made_up = " ".join(_load_tools.vllm_arguments(Job("vllm", "u", "m", "i", "w", concurrency=8, input_tokens=64, output_tokens=32)))
    assert "--dataset-name random --random-input-len 64 --random-output-len 32 --ignore-eos" in made_up
    assert "--max-concurrency 8" in made_up and "--request-rate" not in made_up


def program(folder, name, text):
    path = folder / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A place for programs that is looked at first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", "{0}:{1}".format(folder, os.environ["PATH"]))
    return folder


def test_vllm_gets_key_and_data_set_by_its_input_and_its_result_comes_back_alone(tools, tmp_path):
    """Docker is played: it runs what it was given after the image, with a folder of its own as /tmp."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "result.json").write_text(json.dumps(VLLM))
    program(
        tools,
        "docker",
        'while [ "$1" != "registry.example/vllm@sha256:1" ]; do shift; done; shift 2\nscript="$(printf %s "$1" | sed "s#/tmp#{0}#g")"; shift\n'
        'exec sh -c "$script" "$@"\n'.format(inside),
    )
    program(
        tools,
        "vllm",
        'echo "a lot of talk"; printf "%s" "$OPENAI_API_KEY" > {0}/key; echo "$*" > {0}/line\ncp {1}/result.json {0}/result.json\n'.format(
            inside, tmp_path
        ),
    )
    found = _load_tools.run(PLAIN, "the-key", str(tmp_path))
    assert found["figures"]["mean_ttft_ms"] == 101.0
    assert (inside / "key").read_text() == "the-key" and (inside / "dataset.json").read_text() == PLAIN.dataset
    assert "the-key" not in (inside / "line").read_text() and "the-key" not in " ".join(_load_tools.command(PLAIN, "x"))


def test_guidellm_reads_what_is_asked_from_a_file_that_nobody_else_can(tools, tmp_path):
    (tmp_path / "made.json").write_text(json.dumps(guide()))
    out = tmp_path / "out"
    out.mkdir()
    words = 'echo talk; echo "$*" > {0}/line; stat -c %a {0}/out/asked.json > {0}/mode; cp {0}/made.json {0}/out/benchmarks.json\n'
    program(tools, "guidellm", words.format(tmp_path))
    job = Job("guidellm", "http://h:1", "m", "", "/srv/m", requests=40, input_tokens=64, output_tokens=16, concurrency=4, seed=3)
    found = _load_tools.run(job, "the-key", str(out))
    assert found["failed"] == 0 and found["figures"]["output_throughput"] == 500.0
    assert (tmp_path / "line").read_text() == "run --config {0}/asked.json --disable-console\n".format(out)
    assert (tmp_path / "mode").read_text() == "600\n"
    spec = json.loads((out / "asked.json").read_text())["spec"]
    backend = {"kind": "openai_http", "target": "http://h:1", "model": "m", "extras": {"body": {"temperature": 0}}}
    assert spec["backend"] == dict(backend, api_key="the-key")
    assert spec["profile"] == {"kind": "concurrent", "streams": [4]} and spec["tokenizer"]["model"] == "/srv/m"
    assert spec["constraints"] == [{"kind": "max_requests", "count": 40}] and spec["seed"] == {"kind": "static", "value": 3}
    assert spec["data"] == [{"kind": "synthetic_text", "prompt_tokens": 64, "output_tokens": 16}]
    assert spec["outputs"] == [{"kind": "json", "path": "{0}/benchmarks.json".format(out)}]
    opened = json.loads(_load_tools.asked_of_guidellm(dataclasses.replace(job, rate=5.0), "", "/x"))["spec"]
    assert opened["profile"] == {"kind": "poisson", "rate": [5.0], "max_concurrency": 4} and "api_key" not in opened["backend"]
    assert json.loads(_load_tools.asked_of_guidellm(dataclasses.replace(job, rate=5.0, concurrency=0), "", "/x"))["spec"]["profile"] == {
        "kind": "poisson",
        "rate": [5.0],
    }


def test_evalscope_writes_somewhere_below_a_folder(tools, tmp_path):
    (tmp_path / "made.json").write_text(json.dumps(SCOPE))
    out = tmp_path / "out"
    out.mkdir()
    words = 'echo talk; echo "$*" > {0}/line; mkdir -p {0}/out/below; cp {0}/made.json {0}/out/below/benchmark_summary.json\n'
    program(tools, "evalscope", words.format(tmp_path))
    job = Job("evalscope", "http://h:1", "m", "", "/srv/m", requests=40, input_tokens=64, output_tokens=16, concurrency=4, seed=3)
    assert _load_tools.run(job, "", str(out))["figures"]["mean_ttft_ms"] == 250.0
    line = (tmp_path / "line").read_text()
    for part in (
        "--url http://h:1/v1/chat/completions --api openai --model m --stream",
        "--dataset random --tokenizer-path /srv/m --min-prompt-length 64 --max-prompt-length 64",
        '--max-tokens 16 --extra-args {"ignore_eos": true} --number 40 --seed 3 --temperature 0 --parallel 4',
    ):
        assert part in line
    assert "--rate" not in line and "--open-loop" not in line
    opened = " ".join(_load_tools.command(dataclasses.replace(job, rate=5.0, concurrency=0), "/x"))
    assert "--rate 5 --open-loop" in opened and "--parallel" not in opened


def test_a_tool_that_fails_or_is_not_there_says_so_without_the_key(tools, tmp_path):
    program(tools, "guidellm", 'echo "cannot use the-key" >&2; exit 3\n')
    with pytest.raises(LLMError, match=r"guidellm ended with status 3: cannot use \*\*\*"):
        _load_tools.run(Job("guidellm", "u", "m", "", "w", concurrency=1), "the-key", str(tmp_path))
    with pytest.raises(LLMError, match="evalscope ended with status 127: .*evalscope"):
        _load_tools.run(Job("evalscope", "u", "m", "", "w", concurrency=1), "", str(tmp_path))
    with pytest.raises(LLMError, match="takes its key on the command line"):
        _load_tools.run(Job("evalscope", "u", "m", "", "w", concurrency=1), "the-key", str(tmp_path))


def test_a_tool_that_hangs_is_ended(tools, tmp_path):
    program(tools, "guidellm", "exec sleep 30\n")
    with pytest.raises(LLMError, match="guidellm ended with status 124"):
        _load_tools.run(Job("guidellm", "u", "m", "", "w", concurrency=1, timeout_s=0.3), "", str(tmp_path))


@pytest.mark.parametrize(
    "job, said",
    [
        (Job("wrk", "u", "m"), "unknown load client 'wrk'; known: vllm, guidellm, evalscope"),
        (Job("vllm", "u", "m", "image"), "needs image"),
        (Job("guidellm", "u", "m", concurrency=1), "guidellm needs weights"),
        (Job("evalscope", "u", "m", rate=1.0), "evalscope needs weights"),
        (Job("guidellm", "u", "m", "", "w"), "guidellm needs concurrency or rate"),
        (Job("guidellm", "u", "m", "", "w", dataset="x", rate=1.0), "is given no data set"),
        (Job("evalscope", "u", "m", "", "w", rate=1.0, requests=0), "cannot be below nothing"),
        (Job("evalscope", "u", "m", "", "w", rate=float("inf")), "or without end"),
        (Job("evalscope", "u", "m", "", "w", rate=1.0, timeout_s=float("nan")), "or without end"),
    ],
)
def test_a_job_that_cannot_be_done_is_refused(job, said):
    with pytest.raises(LLMError, match=said):
        job.check()


def test_a_row_stands_beside_ours():
    found = _load_tools.parse_vllm(json.dumps(VLLM))
    one = _load_tools.row(PLAIN, "c0", found, 1.0)
    assert (one["tool"], one["load"], one["concurrency"], one["request_rate"], one["publishable"]) == ("vllm", "open", None, 5.0, True)
    (level,) = _benchmark.levels([one])
    assert level["figures"]["mean_ttft_ms"]["mean"] == 101.0 and _benchmark.table([level], {})[1].split()[:3] == ["c0", "(vllm)", "5/s"]
    bad = _load_tools.row(Job("vllm", "u", "m", requests=100), "c0", dict(found, failed=3), 1.0)
    assert bad["figures"] is None and bad["refused"] == ["3 of 103 requests failed"] and bad["concurrency"] == 100
    none = _load_tools.failed_row(Job("vllm", "u", "m", requests=7), "c0", LLMError("not there"), 1.0)
    assert set(none) == set(one) and (none["publishable"], none["refused"], none["failed"]) == (False, ["not there"], 7)
    # Each tool has its own reasons.
    ours = dict(none, tool="ironserve", refused=["late"])
    lines = _load.summary([ours, none], [_load.Endpoint("c0", "http://h:1")], 5.0)["lines"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["c0", "7", "-"],
        ["not", "published:", "late"],
        ["c0", "(vllm)", "7"],
        ["not", "published:", "not"],
    ]
