# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Load clients of others: how each is called, and what its result means in the words of ours. Private to the collection.

Their figures stand beside ours and are not mixed with them. Where a word means something else there, it gets our word for what it is:

- vLLM's and sglang's ITL is the gap between chunks: ``gap_ms``.
- guidellm's "inter token latency" is what vLLM and we call ``tpot_ms``; its "time per output token" has the first token in it and is left out.
- evalscope tells averages only, and its end is moved by the usage event: no ``tpot_ms`` of it is taken.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Callable

from ansible_collections.ironserve.llm.plugins.module_utils import _http, _run
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

VLLM = "vllm"
GUIDELLM = "guidellm"
EVALSCOPE = "evalscope"
TOOLS = (VLLM, GUIDELLM, EVALSCOPE)

#: Each reads the key and a file (the data set, or all that is asked) from standard input, so that no key stands in a list of processes; the tool's
#: own words go to standard error, and its result is all there is on standard output. All end by themselves when time is up.
#: A container would outlive whoever started it, so its end is told to what runs in it.
_IN_IMAGE = (
    'read -r OPENAI_API_KEY; if [ -n "$OPENAI_API_KEY" ]; then export OPENAI_API_KEY; fi; '
    'cat > /tmp/dataset.json && timeout "$SECONDS_LEFT" "$@" >&2 && cat /tmp/result.json'
)
#: $0 is a folder of this run alone; what is asked of guidellm has the key in it.
_GUIDE = 'read -r key; umask 077; cat > "$0/asked.json" && HF_HUB_OFFLINE=1 timeout "$SECONDS_LEFT" "$@" >&2 && cat "$0/benchmarks.json"'
#: It makes folders of its own below; there is one result in an empty one.
_SCOPE = (
    'timeout "$SECONDS_LEFT" "$@" >&2 </dev/null && found="$(find "$0" -name benchmark_summary.json)" && [ -n "$found" ] && cat "$found"'
)

_STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of another client.

    Attributes:
        tool: one of TOOLS.
        url: address of the endpoint without a path, as this host reaches it.
        model: served name.
        image: vllm only: the engine image it is in.
        weights: the folder on this host with the tokenizer.
        dataset: text of a file in the format of ShareGPT; empty lets the tool make prompts up. vllm only.
        requests, input_tokens, output_tokens, seed: as in our own protocol; with a data set lengths are its own.
        answer_tokens: with a data set: tokens of every answer, whose end is forbidden before; 0 for as many as the data set's answer has.
        concurrency: at a time; 0 for no limit.
        rate: requests a second on average; 0 for as fast as may be.
        timeout_s: until it must be over.
    """

    tool: str
    url: str
    model: str
    image: str = ""
    weights: str = ""
    dataset: str = ""
    requests: int = 1000
    input_tokens: int = 512
    output_tokens: int = 128
    seed: int = 0
    concurrency: int = 0
    rate: float = 0.0
    timeout_s: float = 3600.0
    answer_tokens: int = 0

    def check(self) -> None:
        """Raises LLMError that names what is missing."""
        if self.tool not in TOOLS:
            raise LLMError("unknown load client {0!r}; known: {1}".format(self.tool, ", ".join(TOOLS)))
        if self.tool == VLLM and not (self.image and self.weights):
            raise LLMError("vllm bench serve needs image (an engine image that has it) and weights (the folder with the tokenizer)")
        if self.tool != VLLM and self.dataset:
            raise LLMError("{0} is given no data set here; leave it out".format(self.tool))
        if self.tool != VLLM and not self.weights:
            raise LLMError("{0} needs weights (the folder with the tokenizer)".format(self.tool))
        if self.tool != VLLM and not self.concurrency and not self.rate:
            raise LLMError("{0} needs concurrency or rate".format(self.tool))
        # Not the other way round: what is no number (NaN) is not less, either.
        if not (self.requests >= 1 and 0 < self.timeout_s <= _http.LONGEST_S and self.concurrency >= 0 and 0 <= self.rate < math.inf):
            raise LLMError("requests, timeout_s, concurrency and rate of {0} cannot be below nothing or without end".format(self.tool))


def vllm_arguments(job: Job) -> list[str]:
    """The command line of ``vllm bench serve`` inside its image.

    Its sampling is ours (greedy), which it leaves to the server otherwise. Older versions send the first request once before the run, which
    is then measured out of the cache: 0 seconds of waiting for an endpoint leaves that out.
    """
    out = ["vllm", "bench", "serve", "--backend", "openai-chat", "--base-url", job.url, "--endpoint", "/v1/chat/completions"]
    out += ["--model", job.model, "--tokenizer", "/models", "--seed", str(job.seed), "--num-prompts", str(job.requests)]
    if job.dataset:
        out += ["--dataset-name", "sharegpt", "--dataset-path", "/tmp/dataset.json"]
        if job.answer_tokens:
            out += ["--sharegpt-output-len", str(job.answer_tokens), "--ignore-eos"]
    else:
        out += ["--dataset-name", "random", "--random-input-len", str(job.input_tokens), "--random-output-len", str(job.output_tokens)]
        out += ["--ignore-eos"]
    if job.rate:
        out += ["--request-rate", "{0:g}".format(job.rate)]
    if job.concurrency:
        out += ["--max-concurrency", str(job.concurrency)]
    out += ["--temperature", "0", "--ready-check-timeout-sec", "0"]
    out += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "90,95,99"]
    return out + ["--disable-tqdm", "--save-result", "--result-dir", "/tmp", "--result-filename", "result.json"]


def _bounded(script: str, job: Job) -> str:
    return script.replace('"$SECONDS_LEFT"', "{0:g}".format(job.timeout_s))


def command(job: Job, folder: str) -> list[str]:
    """The whole command. Standard input is the key's line (maybe empty) and a file, see ``run``; standard output is the result file.

    ``folder`` is an empty directory of this host, for tools that run beside and not in an image.
    """
    if job.tool == VLLM:
        run = ["docker", "run", "--rm", "--interactive", "--network=host", "--volume={0}:/models:ro".format(job.weights)]
        run += ["--env=HF_HUB_OFFLINE=1", "--env=HOME=/tmp", "--entrypoint=sh", job.image, "-c", _bounded(_IN_IMAGE, job), "sh"]
        return run + vllm_arguments(job)
    if job.tool == GUIDELLM:
        arguments = ["guidellm", "run", "--config", folder + "/asked.json", "--disable-console"]
        return ["sh", "-c", _bounded(_GUIDE, job), folder] + arguments
    arguments = ["evalscope", "perf", "--url", job.url + "/v1/chat/completions", "--api", "openai", "--model", job.model, "--stream"]
    arguments += ["--dataset", "random", "--tokenizer-path", job.weights]
    arguments += ["--min-prompt-length", str(job.input_tokens), "--max-prompt-length", str(job.input_tokens)]
    arguments += ["--max-tokens", str(job.output_tokens), "--extra-args", '{"ignore_eos": true}']
    arguments += ["--number", str(job.requests), "--seed", str(job.seed), "--temperature", "0"]
    if job.rate:
        arguments += ["--rate", "{0:g}".format(job.rate)]
    # A rate alone would wait for one answer after the other.
    arguments += ["--parallel", str(job.concurrency)] if job.concurrency else ["--open-loop"]
    return ["sh", "-c", _bounded(_SCOPE, job), folder] + arguments + ["--outputs-dir", folder]


def asked_of_guidellm(job: Job, key: str, folder: str) -> str:
    """All that guidellm is to do, as the JSON file it reads; it knows no other place for a key but its command line."""
    backend: dict[str, Any] = {"kind": "openai_http", "target": job.url, "model": job.model, "extras": {"body": {"temperature": 0}}}
    if key:
        backend["api_key"] = key
    if job.rate:
        profile = {"kind": "poisson", "rate": [job.rate]}
        if job.concurrency:
            profile["max_concurrency"] = job.concurrency
    else:
        profile = {"kind": "concurrent", "streams": [job.concurrency]}
    spec = {
        "backend": backend,
        "profile": profile,
        "constraints": [{"kind": "max_requests", "count": job.requests}],
        "tokenizer": {"kind": "huggingface_auto", "model": job.weights},
        "data": [{"kind": "synthetic_text", "prompt_tokens": job.input_tokens, "output_tokens": job.output_tokens}],
        "seed": {"kind": "static", "value": job.seed},
        "outputs": [{"kind": "json", "path": folder + "/benchmarks.json"}],
    }
    return json.dumps({"spec": spec})


def _object(text: str, tool: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise UnknownOutput("the result of {0} is no JSON object: {1!r}".format(tool, text.strip()[:200]))
    return data


def _figure(data: dict[str, Any], key: str, tool: str) -> float:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e18 < value < 1e18:
        raise UnknownOutput("the result of {0} has no figure {1}: {2!r}".format(tool, key, value))
    return value


def parse_vllm(text: str) -> dict[str, Any]:
    """Read a result file of ``vllm bench serve``. Returns ``completed``, ``failed``, ``duration_s``, ``figures``, ``notes``.

    Files of versions that do not count failures have them as the difference to the prompts. Raises UnknownOutput that names the figure that
    is missing.
    """
    data = _object(text, VLLM)
    completed = int(_figure(data, "completed", VLLM))
    wanted = int(_figure(data, "num_prompts", VLLM))
    failed = int(_figure(data, "failed", VLLM)) if "failed" in data else wanted - completed
    figures = {}
    for key in ("request_throughput", "output_throughput", "total_token_throughput", "total_input_tokens", "total_output_tokens"):
        figures[key] = _figure(data, key, VLLM)
    goodput = data.get("request_goodput")
    figures["request_goodput"] = goodput if isinstance(goodput, (int, float)) else None
    for theirs, ours in (("ttft", "ttft_ms"), ("tpot", "tpot_ms"), ("itl", "gap_ms"), ("e2el", "e2el_ms")):
        for prefix in _STATISTICS:
            key = "{0}_{1}_ms".format(prefix, theirs)
            if prefix.startswith("p") and key not in data:
                figures[prefix + "_" + ours] = None
                continue
            figures[prefix + "_" + ours] = _figure(data, key, VLLM)
    if "max_concurrent_requests" in data:
        figures["max_concurrent_requests"] = _figure(data, "max_concurrent_requests", VLLM)
    notes = []
    if "spec_decode_acceptance_rate" in data:
        notes.append("{0:.1f} % of the drafted tokens were accepted".format(_figure(data, "spec_decode_acceptance_rate", VLLM)))
    return {"completed": completed, "failed": failed, "duration_s": _figure(data, "duration", VLLM), "figures": figures, "notes": notes}


def _guide(metrics: dict[str, Any], name: str, needed: bool = True) -> dict[str, Any]:
    block = metrics.get(name)
    found = block.get("successful") if isinstance(block, dict) else None
    if not isinstance(found, dict):
        if needed:
            raise UnknownOutput("the result of guidellm has no metric {0}".format(name))
        return {}
    return found


def parse_guidellm(text: str) -> dict[str, Any]:
    """Read the JSON of ``guidellm benchmark`` with one benchmark in it; returns the same as ``parse_vllm``."""
    data = _object(text, GUIDELLM)
    found = data.get("benchmarks")
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], dict):
        raise UnknownOutput("the result of guidellm does not hold one benchmark")
    metrics = found[0].get("metrics")
    if not isinstance(metrics, dict):
        raise UnknownOutput("the result of guidellm has no metrics")
    figures = {}
    families = (
        ("time_to_first_token_ms", "ttft_ms", 1.0),
        ("inter_token_latency_ms", "tpot_ms", 1.0),
        ("request_latency", "e2el_ms", 1000.0),
    )
    for theirs, ours, factor in families:
        block = _guide(metrics, theirs)
        shares = block.get("percentiles")
        if not isinstance(shares, dict):
            raise UnknownOutput("the result of guidellm has no percentiles of {0}".format(theirs))
        for prefix, source, key in (
            ("mean", block, "mean"),
            ("median", block, "median"),
            ("std", block, "std_dev"),
            ("p90", shares, "p90"),
            ("p95", shares, "p95"),
            ("p99", shares, "p99"),
        ):
            figures[prefix + "_" + ours] = _figure(source, key, GUIDELLM) * factor
    for theirs, ours in (
        ("requests_per_second", "request_throughput"),
        ("output_tokens_per_second", "output_throughput"),
        ("tokens_per_second", "total_token_throughput"),
    ):
        figures[ours] = _figure(_guide(metrics, theirs), "mean", GUIDELLM)
    for theirs, ours in (("prompt_token_count", "total_input_tokens"), ("output_token_count", "total_output_tokens")):
        block = _guide(metrics, theirs, False)
        # Its sums are made of shares, and 971 tokens are 970.999.
        figures[ours] = int(round(_figure(block, "total_sum", GUIDELLM))) if block else None
    totals = metrics.get("request_totals")
    if not isinstance(totals, dict):
        raise UnknownOutput("the result of guidellm has no request_totals")
    completed = int(_figure(totals, "successful", GUIDELLM))
    failed = int(_figure(totals, "errored", GUIDELLM)) + int(_figure(totals, "incomplete", GUIDELLM))
    return {
        "completed": completed,
        "failed": failed,
        "duration_s": _figure(found[0], "duration", GUIDELLM),
        "figures": figures,
        "notes": ["its throughput is a mean over time, not tokens over duration"],
    }


#: Our figure -> its names (of now, and of older versions), each with the factor to our unit.
_SCOPE_FIGURES = {
    "completed": (("Success Requests", 1), ("Succeed requests", 1)),
    "failed": (("Failed Requests", 1), ("Failed requests", 1)),
    "duration_s": (("Test Duration (s)", 1), ("Time taken for tests (s)", 1)),
    "request_throughput": (("Req Throughput (req/s)", 1), ("Request throughput (req/s)", 1)),
    "output_throughput": (("Output Throughput (tok/s)", 1), ("Output token throughput (tok/s)", 1)),
    "total_token_throughput": (("Total Throughput (tok/s)", 1), ("Total token throughput (tok/s)", 1)),
    "mean_ttft_ms": (("Avg TTFT (ms)", 1), ("Average time to first token (s)", 1000)),
    "mean_e2el_ms": (("Avg Latency (s)", 1000), ("Average latency (s)", 1000)),
}


def parse_evalscope(text: str) -> dict[str, Any]:
    """Read ``benchmark_summary.json`` of ``evalscope perf``; returns the same as ``parse_vllm``."""
    data = _object(text, EVALSCOPE)
    figures = {}
    for ours, names in _SCOPE_FIGURES.items():
        theirs, factor = next((item for item in names if item[0] in data), names[0])
        figures[ours] = _figure(data, theirs, EVALSCOPE) * factor
    return {
        "completed": int(figures.pop("completed")),
        "failed": int(figures.pop("failed")),
        "duration_s": figures.pop("duration_s"),
        "figures": figures,
        "notes": ["averages only; its end of an answer is the usage event, so its time per token is left out"],
    }


PARSERS = {VLLM: parse_vllm, GUIDELLM: parse_guidellm, EVALSCOPE: parse_evalscope}


def run(job: Job, key: str, folder: str, runner: Callable[..., Any] = _run.run) -> dict[str, Any]:
    """Run it and read its result. Raises LLMError when the tool is not there or ended with an error."""
    job.check()
    if job.tool == EVALSCOPE and key:
        raise LLMError("evalscope takes its key on the command line only, where everybody on the host can read it; measure without it")
    given = asked_of_guidellm(job, key, folder) if job.tool == GUIDELLM else job.dataset
    done = runner(command(job, folder), job.timeout_s + 60.0, stdin=key + "\n" + given)
    if done.rc:
        said = [line for line in done.stderr.splitlines() if line.strip()][-3:]
        raise LLMError("{0} ended with status {1}: {2}".format(job.tool, done.rc, " | ".join(said)[-600:].replace(key or "\0", "***")))
    return PARSERS[job.tool](done.stdout)


def row(job: Job, endpoint: str, found: dict[str, Any], started_unix: float) -> dict[str, Any]:
    """A row of ``runs`` from what a tool told. Its figures are published as they are, unless requests failed."""
    refused = []
    if found["failed"] or not found["completed"]:
        refused.append("{0} of {1} requests failed".format(found["failed"], found["failed"] + found["completed"]))
    return _row(job, endpoint, found, refused, started_unix)


def failed_row(job: Job, endpoint: str, error: LLMError, started_unix: float) -> dict[str, Any]:
    """A row of ``runs`` for a tool that told nothing: what others measured before is not lost with it."""
    text = str(error)
    found = {"completed": 0, "failed": job.requests, "duration_s": None, "figures": None, "notes": []}
    return dict(_row(job, endpoint, found, [text], started_unix), errors=[{"error": text, "count": job.requests}])


def _row(job: Job, endpoint: str, found: dict[str, Any], refused: list[str], started_unix: float) -> dict[str, Any]:
    closed = not job.rate
    return {
        "endpoint": endpoint,
        "tool": job.tool,
        "load": "closed" if closed else "open",
        # All at once is a closed loop as wide as there are requests.
        "concurrency": (job.concurrency or job.requests) if closed else None,
        "request_rate": None if closed else job.rate,
        "repeat": 1,
        "started_unix": round(started_unix, 3),
        "duration_s": found["duration_s"],
        "completed": found["completed"],
        "failed": found["failed"],
        "errors": [],
        "publishable": not refused,
        "refused": refused,
        "figures": None if refused else found["figures"],
        "cache": {"wanted": None, "cached_share": None, "verified": None},
        "client": None,
        "notes": found["notes"],
        "timeline": [],
        "requests": [],
    }
