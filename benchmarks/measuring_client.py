# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What measuring costs, and how right its times are, beside clients that others measure with, in one run.

    .venv/bin/python benchmarks/measuring_client.py [--streams 32] [--rate 50] [--seconds 6] [--rounds 3] [--json]

Every contestant reads the same streams of an engine stand-in, in a process of its own, and takes the time of every event. The stand-in
writes down when each event left it, so every time can be checked. Contestants take turns; the best round of each counts, the worst is shown.
The exit status is 1 when a goal is missed. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests")]

CORE_GOAL = 0.10
PEER_GOAL = 1.0
PATH = "/v1/chat/completions"

#: What a contestant brings: for each stream the times of its events with choices, and its tokens by usage.
Streams = list[tuple[list[float], int]]


def bodies(streams: int, rate: float, seconds: float) -> list[dict]:
    """Requests whose answers differ in length by one token each, by which they are told apart."""
    first = int(rate * seconds)
    return [
        {
            "messages": [{"role": "user", "content": f"stream {number}"}],
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "standin": {"tokens": first + number, "prefill_s": 0.01},
        }
        for number in range(streams)
    ]


# ---- contestants


class Reader:
    """What every peer does with the lines of a stream: decode the JSON, take the time, count the tokens by usage."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.tokens = 0

    def line(self, line: bytes) -> None:
        at = time.monotonic()
        if not line.startswith(b"data: ") or line == b"data: [DONE]":
            return
        chunk = json.loads(line[6:])
        if chunk["choices"]:
            self.times.append(at)
        if chunk.get("usage"):
            self.tokens = chunk["usage"]["completion_tokens"]


def ours(url: str, asked: list[dict]) -> Streams:
    """This collection's client: events, texts, tokens and faults of every stream."""
    from ansible_collections.ironserve.llm.plugins.module_utils import _stream

    lane = _stream.Lane(_stream.target(url, PATH), [json.dumps(body).encode() for body in asked], len(asked))
    outcome = _stream.Client().run([lane])
    return [([c.at for c in answer.chunks if c.has_choices], answer.usage["completion_tokens"]) for answer in outcome.answers[0]]


def aiohttp_client(url: str, asked: list[dict]) -> Streams:
    """aiohttp, with which vllm bench serve, guidellm's neighbours and evalscope measure."""
    import aiohttp

    async def one(session: aiohttp.ClientSession, body: dict) -> Reader:
        reader = Reader()
        async with session.post(url + PATH, json=body) as reply:
            async for line in reply.content:
                if line.strip():
                    reader.line(line.strip())
        return reader

    async def every() -> list[Reader]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=4 << 20) as session:
            return await asyncio.gather(*[one(session, body) for body in asked])

    return [(reader.times, reader.tokens) for reader in asyncio.run(every())]


def httpx_client(url: str, asked: list[dict]) -> Streams:
    """httpx, which the openai library is made of (its successor httpx2 where that is installed)."""
    httpx = importlib.import_module("httpx2" if importlib.util.find_spec("httpx2") else "httpx")

    async def one(client: object, body: dict) -> Reader:
        reader = Reader()
        async with client.stream("POST", url + PATH, json=body) as reply:
            async for line in reply.aiter_lines():
                if line:
                    reader.line(line.encode())
        return reader

    async def every() -> list[Reader]:
        async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None), trust_env=False) as client:
            return await asyncio.gather(*[one(client, body) for body in asked])

    return [(reader.times, reader.tokens) for reader in asyncio.run(every())]


def requests_client(url: str, asked: list[dict]) -> Streams:
    """requests with a thread for every stream."""
    import requests

    readers = [Reader() for _body in asked]

    def one(reader: Reader, body: dict) -> None:
        with requests.post(url + PATH, json=body, stream=True, timeout=120) as reply:
            for line in reply.iter_lines(chunk_size=None):
                if line:
                    reader.line(line)

    threads = [threading.Thread(target=one, args=pair) for pair in zip(readers, asked, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [(reader.times, reader.tokens) for reader in readers]


CONTESTANTS: dict[str, tuple[Callable[[str, list[dict]], Streams], str]] = {
    "ours": (ours, ""),
    "aiohttp": (aiohttp_client, "aiohttp"),
    "httpx": (httpx_client, "httpx2"),
    "requests": (requests_client, "requests"),
}


def contest(name: str, url: str, asked: list[dict]) -> None:
    """Run one contestant here, and print what it took and brought. A first stream pays for what is imported."""
    work = CONTESTANTS[name][0]
    work(url, [dict(asked[0], standin={"tokens": 2})])
    cpu, start = time.process_time(), time.monotonic()
    streams = work(url, asked)
    print(json.dumps({"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - start, "streams": streams}))


# ---- the measure


def lateness(streams: Streams, records: list[dict]) -> list[float]:
    """Milliseconds from when each event left the engine until the time it was given."""
    left = {
        record["completion_tokens"]: [event[0] for event in record["events"] if event[1] not in ("usage", "done")] for record in records
    }
    out = []
    for times, tokens in streams:
        truth = left[tokens]
        if len(truth) != len(times):
            raise SystemExit(f"{len(times)} events came of {len(truth)}")
        out += [1000.0 * (at - stamp) for at, stamp in zip(times, truth, strict=True)]
    return out


def measure(streams: int, rate: float, seconds: float, rounds: int) -> dict:
    """All figures of all contestants."""
    from standin.fleet import Fleet

    known = [name for name, (_work, module) in CONTESTANTS.items() if not module or importlib.util.find_spec(module)]
    found: dict[str, list[dict]] = {name: [] for name in known}
    with tempfile.TemporaryDirectory() as folder:
        options = {"slots": streams, "decode_tokens_per_s": rate, "prefill_tokens_per_s": 1e6}
        with Fleet(1, folder, **options) as fleet:
            for _round in range(rounds):
                for name in known:
                    before = len(fleet.records())
                    command = [sys.executable, __file__, "--contestant", name, "--url", fleet.engines[0].url]
                    command += ["--streams", str(streams), "--rate", str(rate), "--seconds", str(seconds)]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    if done.returncode:
                        raise SystemExit(f"{name} failed: {done.stderr[-800:]}")
                    told = json.loads(done.stdout)
                    late = sorted(lateness(told["streams"], fleet.records()[before + 1 :]))
                    found[name].append(
                        {
                            "core": told["cpu_s"] / told["wall_s"],
                            "late_median_ms": statistics.median(late),
                            "late_p99_ms": late[int(0.99 * (len(late) - 1))],
                            "events": len(late),
                        }
                    )
    best = {name: min(results, key=lambda result: result["core"]) for name, results in found.items()}
    worst = {name: max(result["core"] for result in results) for name, results in found.items()}
    peers = [name for name in known if name != "ours"]
    return {
        "streams": streams,
        "rate": rate,
        "best": best,
        "worst_core": worst,
        "against": {name: best["ours"]["core"] / best[name]["core"] for name in peers},
        "load": os.getloadavg()[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rate", type=float, default=50, help="tokens/s of each stream")
    parser.add_argument("--seconds", type=float, default=6, help="length of a stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--contestant", choices=list(CONTESTANTS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        contest(options.contestant, options.url, bodies(options.streams, options.rate, options.seconds))
        return 0
    found = measure(options.streams, options.rate, options.seconds, options.rounds)
    if options.json:
        print(json.dumps(found, indent=1))
    mine = found["best"]["ours"]
    goals = [("share of one core", mine["core"], CORE_GOAL)]
    goals += [(f"cost / {name}'s cost", ratio, PEER_GOAL) for name, ratio in found["against"].items() if name == "httpx"]
    print(f"{found['streams']} streams of {found['rate']:g} tokens/s, load average {found['load']:.1f}")
    for name, result in found["best"].items():
        late = f"times late by {result['late_median_ms']:.2f} ms in the median, {result['late_p99_ms']:.2f} ms p99"
        ratio = "" if name == "ours" else f"; ours takes {found['against'][name]:.2f} of it"
        print(f"  {name:<9} {100 * result['core']:5.1f} % of a core (worst {100 * found['worst_core'][name]:.1f} %), {late}{ratio}")
    for title, value, goal in goals:
        print(f"{title}: {value:.3f}, goal <= {goal:g}: {'kept' if value <= goal else 'MISSED'}")
    return 0 if all(value <= goal for _title, value, goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
