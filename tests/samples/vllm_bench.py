# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A stand-in for the program ``vllm``: ``bench serve`` in a closed loop, a client of its own with that one's rules.

Prompts are made up, or the first questions of a file in ShareGPT's format whose answers all get one length. Written after how vLLM's client
(0.32) asks and counts, and with nothing of ours in it, so that two clients are compared and not one with itself:

- time to the first token: from before the request is sent to the first event with choices, the role alone included;
- end to end: to the last event with choices; time per output token: (end to end - first) / (tokens by usage - 1);
- inter token latency: pooled gaps between events with choices; percentiles linear, deviation of the whole population;
- one request is sent before the run where it is to wait for the endpoint, and none otherwise.

It writes the result file that ``--save-result`` asks for, with the names and shape of the real one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import statistics
import sys
import threading
import time
import urllib.parse


def prompts(options: argparse.Namespace) -> tuple[list[str], int]:
    """What is asked, and tokens of each answer."""
    if options.dataset_name == "random":
        lengths = range(options.random_input_len)
        made = [" ".join("w{0:03d}".format((number * 7919 + at) % 1000) for at in lengths) for number in range(options.num_prompts)]
        return made, options.random_output_len
    with open(options.dataset_path, encoding="utf-8") as handle:
        asked = [entry["conversations"][0]["value"] for entry in json.load(handle) if len(entry["conversations"]) >= 2]
    return asked[: options.num_prompts], options.sharegpt_output_len


def ask(options: argparse.Namespace, text: str, tokens: int) -> dict:
    """One streamed answer: seconds to its first event and its last, the gaps between, tokens by usage."""
    where = urllib.parse.urlsplit(options.base_url)
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
        "max_completion_tokens": tokens,
        "temperature": options.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": options.ignore_eos,
    }
    headers = {"Content-Type": "application/json", "Authorization": "Bearer {0}".format(os.environ.get("OPENAI_API_KEY", ""))}
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    seen, usage = [], {}
    start = time.perf_counter()
    connection.request("POST", options.endpoint, json.dumps(body), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError("HTTP {0}: {1!r}".format(answer.status, answer.read(200)))
    for line in answer:
        at = time.perf_counter()
        data = line.strip()[len(b"data: ") :]
        if not line.startswith(b"data: ") or data == b"[DONE]":
            continue
        event = json.loads(data)
        if event.get("choices"):
            seen.append(at)
        usage = event.get("usage") or usage
    connection.close()
    return {
        "ttft": seen[0] - start,
        "e2el": seen[-1] - start,
        "itl": [later - earlier for earlier, later in zip(seen, seen[1:], strict=False)],
        "input": usage["prompt_tokens"],
        "output": usage["completion_tokens"],
    }


def run(options: argparse.Namespace) -> tuple[list[dict], float]:
    """So many requests, so many at a time; the answers, and the seconds it took."""
    texts, tokens = prompts(options)
    waiting, found, lock = iter(texts), [], threading.Lock()

    def work() -> None:
        while True:
            with lock:
                text = next(waiting, None)
            if text is None:
                return
            answer = ask(options, text, tokens)
            with lock:
                found.append(answer)

    threads = [threading.Thread(target=work) for _number in range(options.max_concurrency or options.num_prompts)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, time.perf_counter() - start


def share(values: list[float], percent: float) -> float:
    """A percentile, linear between neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (place - low)


def result(options: argparse.Namespace, found: list[dict], seconds: float) -> dict:
    """The result file."""
    made, read = sum(item["output"] for item in found), sum(item["input"] for item in found)
    out = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": options.backend,
        "label": None,
        "model_id": options.model,
        "tokenizer_id": options.tokenizer,
        "num_prompts": options.num_prompts,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": options.max_concurrency,
        "duration": seconds,
        "completed": len(found),
        "failed": options.num_prompts - len(found),
        "total_input_tokens": read,
        "total_output_tokens": made,
        "request_throughput": len(found) / seconds,
        "request_goodput": None,
        "output_throughput": made / seconds,
        "total_token_throughput": (made + read) / seconds,
    }
    pools = {
        "ttft": [item["ttft"] for item in found],
        "tpot": [(item["e2el"] - item["ttft"]) / (item["output"] - 1) for item in found if item["output"] > 1],
        "itl": [gap for item in found for gap in item["itl"]],
        "e2el": [item["e2el"] for item in found],
    }
    for name in options.percentile_metrics.split(","):
        values = [value * 1000 for value in pools[name]]
        out["mean_{0}_ms".format(name)] = statistics.fmean(values)
        out["median_{0}_ms".format(name)] = statistics.median(values)
        out["std_{0}_ms".format(name)] = statistics.pstdev(values)
        for percent in options.metric_percentiles.split(","):
            out["p{0}_{1}_ms".format(percent, name)] = share(values, float(percent))
    return out


def main(words: list[str]) -> int:
    """Do what the command line says; a word that is not known ends it, as it ends the real one."""
    line = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    for name in ("backend", "base-url", "endpoint", "model", "tokenizer", "dataset-name", "percentile-metrics", "metric-percentiles"):
        line.add_argument("--" + name, required=True)
    for name in ("result-dir", "result-filename"):
        line.add_argument("--" + name, required=True)
    line.add_argument("--dataset-path")
    line.add_argument("--temperature", type=float)
    numbers = ("seed", "num-prompts", "random-input-len", "random-output-len", "sharegpt-output-len", "max-concurrency")
    for name in (*numbers, "ready-check-timeout-sec"):
        line.add_argument("--" + name, type=int, default=0)
    for name in ("ignore-eos", "disable-tqdm", "save-result"):
        line.add_argument("--" + name, action="store_true")
    if words[:2] != ["bench", "serve"]:
        line.error("only bench serve is played")
    options = line.parse_args(words[2:])
    if options.dataset_name not in ("random", "sharegpt") or (options.dataset_name == "sharegpt" and not options.sharegpt_output_len):
        line.error("only the data sets random and sharegpt with one length of answers are played")
    if options.ready_check_timeout_sec:
        print("Starting initial single prompt test run...")
        texts, tokens = prompts(options)
        ask(options, texts[0], tokens)
    found, seconds = run(options)
    print("============ Serving Benchmark Result ============")
    with open(os.path.join(options.result_dir, options.result_filename), "w", encoding="utf-8") as handle:
        json.dump(result(options, found, seconds), handle)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
