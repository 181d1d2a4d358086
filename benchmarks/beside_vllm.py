# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our figures of a real vLLM beside those of ``vllm bench serve``, in turns: the same prompts, the same load, no prompt known to the cache.

    make demo ENGINE=vllm && .venv/bin/python benchmarks/beside_vllm.py [--rounds 7] [--requests 8] [--concurrency 1] [--json FILE]

Measures the first replica of vLLM that runs on this machine, or the one in --container. What is asked where with which key it reads from the
container; theirs runs in a container of the replica's own image, beside the replica. Nothing of the replica is changed. The exit status is 1
when a goal is missed, 2 when it could not be told. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests")]

from unit.conftest import install_loader  # noqa: E402

install_loader()

from ansible_collections.ironserve.llm.plugins.module_utils import _http, _load_tools, _plan, _prompts, _stream  # noqa: E402
from ansible_collections.ironserve.llm.plugins.module_utils._card_watch import Watch  # noqa: E402
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError  # noqa: E402
from ansible_collections.ironserve.llm.plugins.module_utils._load import Bench, Endpoint, Protocol  # noqa: E402

GOAL = 0.05
#: Both must have read as much: codes that make prompts new differ by a token or two.
INPUT_APART = 0.02
#: What both tell, and what vllm bench serve calls it.
FIGURES = {
    "mean_ttft_ms": "TTFT ms, mean",
    "median_ttft_ms": "TTFT ms, median",
    "mean_gap_ms": "ITL ms, mean",
    "median_gap_ms": "ITL ms, median",
    "mean_tpot_ms": "TPOT ms, mean",
    "median_tpot_ms": "TPOT ms, median",
    "mean_e2el_ms": "e2e ms, mean",
    "median_e2el_ms": "e2e ms, median",
    "output_throughput": "tokens/s",
    "request_throughput": "requests/s",
}
OURS, THEIRS = "ours", "vllm bench serve"
#: A round that cannot be used is done once more, so often for all of them.
SPARE = 3


class Untold(Exception):
    """There is no comparison; the text says why."""


@dataclasses.dataclass(frozen=True)
class Place:
    """One replica: its address without a path, the file with its key (empty for none), its image, and the folder with its tokenizer."""

    name: str
    url: str
    key_file: str
    image: str
    weights: str


def place_of(found: dict) -> Place:
    """The replica in a container's description. Raises Untold that names what is not there."""
    name = found["Name"].lstrip("/")
    mounts = {mount["Destination"]: mount["Source"] for mount in found.get("Mounts") or []}
    ports = [item for items in (found["HostConfig"].get("PortBindings") or {}).values() for item in items or []]
    if not ports or _plan.WEIGHTS_TARGET not in mounts:
        raise Untold(f"container {name} publishes no port or has no {_plan.WEIGHTS_TARGET}: it is no replica of this collection")
    address = ports[0].get("HostIp") or "127.0.0.1"
    address = "127.0.0.1" if address == "0.0.0.0" else address
    url = f"http://{f'[{address}]' if ':' in address else address}:{ports[0]['HostPort']}"
    return Place(name, url, mounts.get(_plan.KEY_TARGET, ""), found["Config"]["Image"], mounts[_plan.WEIGHTS_TARGET])


def docker(*words: str) -> str:
    """What docker says. Raises Untold with its own words when it fails, or is not there."""
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    except OSError as exc:
        raise Untold(f"docker: {exc.strerror}") from None
    if done.returncode:
        raise Untold(f"docker {words[0]}: {done.stderr.strip()}")
    return done.stdout


def find(container: str) -> Place:
    """The replica in ``container``; without a name the first of vLLM that runs here. Raises Untold."""
    if not container:
        lines = docker("ps", "--filter", "label=ironserve.replica", "--format", "{{.Names}} {{.Image}}").splitlines()
        running = sorted(line.split()[0] for line in lines if "vllm" in line.split()[1])
        if not running:
            raise Untold(f"no replica of vLLM runs here, but {len(lines)} others; make demo ENGINE=vllm brings up two")
        container = running[0]
    return place_of(json.loads(docker("inspect", container))[0])


def served_name(place: Place) -> str:
    """The model's name there."""
    reply = _http.request("GET", place.url + "/v1/models", _http.read_key(place.key_file))
    listed = reply.json(place.url)
    if reply.status != 200 or not isinstance(listed, dict) or not listed.get("data"):
        raise Untold(f"{place.url}/v1/models answers {reply.status} and lists no model")
    return listed["data"][0]["id"]


@dataclasses.dataclass(frozen=True)
class Work:
    """One run: so many prompts of so many words, at a time, each answered with exactly so many tokens."""

    requests: int
    concurrency: int
    words: int
    tokens: int
    timeout_s: float = 600.0

    def texts(self, seed: int) -> list[str]:
        """Prompts whose words follow ``seed``."""
        return [_prompts.task(self.words, seed * 1000003 + number) for number in range(self.requests)]


def ours(place: Place, model: str, work: Work, seed: int) -> dict:
    """What our client tells of one run. It begins every prompt with a code of its own."""
    protocol = Protocol(
        model,
        (work.concurrency,),
        kind=_prompts.TEXTS,
        texts=tuple(work.texts(seed)),
        count=work.requests,
        output_tokens=work.tokens,
        requests=work.requests,
        repeats=1,
        warmup=0,
    )
    limits = _stream.Limits(request_s=work.timeout_s, run_s=work.timeout_s)
    endpoint = Endpoint(place.name, place.url, api_key_file=place.key_file)
    (run,) = Bench(protocol, [endpoint], limits, lambda _endpoint: Watch(None, "nobody looks")).run()["runs"]
    if not run["publishable"]:
        raise Untold(f"{OURS}: {'; '.join(run['refused'])}")
    return run["figures"]


def theirs(place: Place, model: str, work: Work, seed: int) -> dict:
    """What vllm bench serve tells of the same prompts, begun with other codes, in a container of the replica's image."""
    talks = [
        {"conversations": [{"from": "human", "value": _prompts.fresh(text)}, {"from": "gpt", "value": "It is not read how long this is."}]}
        for text in work.texts(seed)
    ]
    job = _load_tools.Job(
        _load_tools.VLLM,
        place.url,
        model,
        place.image,
        place.weights,
        json.dumps(talks),
        work.requests,
        seed=seed,
        concurrency=work.concurrency,
        timeout_s=work.timeout_s,
        answer_tokens=work.tokens,
    )
    with tempfile.TemporaryDirectory() as folder:
        found = _load_tools.run(job, _http.read_key(place.key_file), folder)
    if found["failed"] or found["completed"] != work.requests:
        raise Untold(f"{THEIRS}: {found['completed']} of {work.requests} requests were answered")
    return found["figures"]


def same_work(one: dict, other: dict, work: Work) -> None:
    """Raises Untold when the two did not read and make as much, so that their figures are of two different things."""
    made = [figures["total_output_tokens"] for figures in (one, other)]
    if made != [work.requests * work.tokens] * 2:
        raise Untold(f"answers have {made[0]} and {made[1]} tokens and not {work.requests * work.tokens} each")
    read = [figures["total_input_tokens"] for figures in (one, other)]
    if abs(read[0] - read[1]) > INPUT_APART * read[1]:
        raise Untold(f"prompts have {read[0]} and {read[1]} tokens: they are not the same")


Side = Callable[[Place, str, Work, int], dict]


def measure(place: Place, model: str, work: Work, rounds: int, sides: dict[str, Side], say: Callable[[str], None] = print) -> list[dict]:
    """Figures of both sides for each round, ``{side: figures}``. Raises Untold when rounds cannot be used again and again."""
    # What a first request pays for is nobody's figure, so it does not matter whether there are any.
    with contextlib.suppress(Untold):
        sides[OURS](place, model, dataclasses.replace(work, requests=min(work.requests, 2 * work.concurrency)), 0)
    out, lost, seed = [], 0, 0
    while len(out) < rounds:
        seed += 1
        # Who is first changes from round to round, and whatever else changes with time meets both.
        order = [OURS, THEIRS] if seed % 2 else [THEIRS, OURS]
        try:
            found = {name: sides[name](place, model, work, seed) for name in order}
            same_work(found[OURS], found[THEIRS], work)
        except (Untold, LLMError) as exc:
            lost += 1
            say(f"round {seed} cannot be used: {exc}")
            if lost > SPARE:
                raise Untold(f"{lost} rounds could not be used; the last one: {exc}") from None
            continue
        out.append(found)
        say(f"round {seed}: " + ", ".join(f"{name} {found[name]['output_throughput']:.1f} tokens/s" for name in order))
    return out


def compare(rounds: list[dict]) -> list[dict]:
    """A row for each figure: medians over the rounds of both sides, and of how far ours is from theirs in the same round, as a share."""
    rows = []
    for name, title in FIGURES.items():
        pairs = [(one[OURS][name], one[THEIRS][name]) for one in rounds]
        apart = [mine / other - 1.0 for mine, other in pairs]
        middle = statistics.median(apart)
        rows.append(
            {
                "figure": name,
                "title": title,
                "ours": statistics.median(mine for mine, _other in pairs),
                "theirs": statistics.median(other for _mine, other in pairs),
                "apart": middle,
                "least": min(apart),
                "most": max(apart),
                "kept": abs(middle) <= GOAL,
            }
        )
    return rows


def table(rows: list[dict]) -> list[str]:
    """Lines for people."""
    out = [f"{'figure':<16}  {OURS:>10}  {THEIRS:>16}  {'apart':>7}  {'of a round':>16}  goal {100 * GOAL:g} %"]
    for row in rows:
        spread = f"{100 * row['least']:+.1f} to {100 * row['most']:+.1f} %"
        out.append(
            f"{row['title']:<16}  {row['ours']:>10.2f}  {row['theirs']:>16.2f}  {100 * row['apart']:>+5.1f} %  {spread:>16}  "
            + ("kept" if row["kept"] else "MISSED")
        )
    return out


def main(words: list[str] | None = None) -> int:
    """Do it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--container", default="", help="the replica; without it the first of vLLM that runs here")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=8, help="of each side in a round")
    parser.add_argument("--concurrency", type=int, default=1, help="at a time; the demo's replicas take two")
    parser.add_argument("--words", type=int, default=40, help="of a prompt")
    parser.add_argument("--tokens", type=int, default=24, help="of every answer")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args(words)
    work = Work(options.requests, options.concurrency, options.words, options.tokens)
    load = os.getloadavg()[0]
    try:
        place = find(options.container)
        model = served_name(place)
        print(f"{place.name} at {place.url}, {model}, {place.image}; load average at the start {load:.1f}", flush=True)
        rounds = measure(place, model, work, options.rounds, {OURS: ours, THEIRS: theirs}, lambda line: print(line, flush=True))
    except (Untold, LLMError, _http.HttpError) as exc:
        print(f"cannot be told: {exc}", file=sys.stderr)
        return 2
    rows = compare(rounds)
    print("\n".join(table(rows)))
    if options.json:
        found = {"place": dataclasses.asdict(place), "model": model, "work": dataclasses.asdict(work), "load": load}
        options.json.write_text(json.dumps({**found, "rows": rows, "rounds": rounds}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["kept"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
