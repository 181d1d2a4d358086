# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the gateway adds to a stream: engines asked straight and through it, at the same time.

Engines are stand-ins, which write down when each chunk left them. The client is the collection's own, whose times are the kernel's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

from integration.gateway.gateway_lab import Gateway, server
from standin.fleet import Fleet

from ansible_collections.ironserve.llm.plugins.module_utils import _stream

PATH = "/v1/chat/completions"


@contextlib.contextmanager
def house(directory: Path, engines: int, slots: int, **options: object) -> Iterator[tuple[Fleet, Gateway]]:
    """So many stand-ins with so many places each, behind a gateway."""
    key = directory / "engine.key"
    key.write_text(Gateway.ENGINE_KEY + "\n", encoding="utf-8")
    with Fleet(engines, directory, slots=slots, key_file=key, prefill_tokens_per_s=1e6, kv_blocks=65536, **options) as fleet:
        gateway = Gateway()
        try:
            gateway.put([server(engine.name, engine.port, places=slots, models=["standin"]) for engine in fleet.engines])
            yield fleet, gateway
        finally:
            gateway.remove()


def ask(lanes: list[tuple[str, str, list[dict]]]) -> list[list[_stream.Answer]]:
    """Ask all of each lane (url, key, bodies) at once. Raises RuntimeError for the first answer that is not whole."""
    made = [
        _stream.Lane(_stream.target(url, PATH, key), [json.dumps(body, ensure_ascii=False).encode() for body in bodies], len(bodies))
        for url, key, bodies in lanes
    ]
    answers = _stream.Client().run(made).answers
    for (url, _key, _bodies), lane in zip(lanes, answers, strict=True):
        for answer in lane:
            if answer.status != 200 or answer.kind or not answer.finish:
                raise RuntimeError(f"{url}: request {answer.index}: {answer.status} {answer.error or 'ended before its end'}")
    return answers


def story(tokens: int, text: str = "Tell me a story.", **how: object) -> dict:
    """A streamed request for an answer of so many tokens."""
    return {
        "model": "standin",
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "standin": {"tokens": tokens, **how},
    }


@dataclasses.dataclass
class Seen:
    """How one side saw its streams; all in milliseconds.

    ``ttft`` from before connecting to the first chunk; ``overhead`` the part of it that was not the engine's, of requests that were
    made alone; ``lags`` from when a chunk left the engine to when it was here.
    """

    ttft: list[float] = dataclasses.field(default_factory=list)
    overhead: list[float] = dataclasses.field(default_factory=list)
    lags: list[float] = dataclasses.field(default_factory=list)

    def add(self, answer: _stream.Answer, record: dict, alone: bool = False) -> None:
        """Take in one stream, and what the engine wrote down about it. Raises RuntimeError when chunks are missing."""
        came = [chunk.at for chunk in answer.chunks if chunk.has_choices]
        left = [event[0] for event in record["events"] if event[1] not in ("usage", "done")]
        if len(came) != len(left):
            raise RuntimeError(f"{len(came)} chunks came of {len(left)}")
        ttft = 1000 * (came[0] - answer.started)
        if alone:
            self.overhead.append(ttft - 1000 * (left[0] - record["arrival"]))
            return
        self.ttft.append(ttft)
        self.lags += [1000 * (at - stamp) for at, stamp in zip(came, left, strict=True)]


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of them is."""
    return sorted(values)[int(share * (len(values) - 1))]


@dataclasses.dataclass
class Compared:
    """Straight and through, in the same seconds; milliseconds. ``late_s`` is how late an engine was at worst."""

    straight: Seen
    through: Seen
    late_s: float

    @property
    def first_chunk(self) -> float:
        """What the gateway adds to the first chunk: median against median."""
        return statistics.median(self.through.overhead) - statistics.median(self.straight.overhead)

    @property
    def chunk_lag(self) -> float:
        """What it adds to a chunk on its way: the worst of a hundred against the worst of a hundred."""
        return percentile(self.through.lags, 0.99) - percentile(self.straight.lags, 0.99)

    @property
    def ttft(self) -> float:
        """Time to first token through it, as a multiple: median against median."""
        return statistics.median(self.through.ttft) / statistics.median(self.straight.ttft)


def compare(directory: Path, rounds: int, streams: int, tokens: int, rate: float, prefill_s: float) -> Compared:
    """Ask for ``streams`` answers straight and as many through the gateway, all at once, then for as many one after the other, straight
    and through in turn; ``rounds`` times.

    Requests that come at the same moment wait for each other on few cores, so what is added to the first chunk is seen in those alone.
    Each side has an engine of its own, so that none waits behind the other's prefills; they change engines from round to round.
    """
    sides = Seen(), Seen()
    with house(directory, 2, streams, decode_tokens_per_s=rate, enable_prefix_caching=False) as (fleet, gateway):
        for number in range(rounds):
            straight, behind = fleet.engines if number % 2 == 0 else fleet.engines[::-1]
            gateway.set(**{behind.name: "ready"})
            gateway.set(**{straight.name: "maint"})
            lanes = [(straight.url, Gateway.ENGINE_KEY), (f"http://127.0.0.1:{gateway.port}", gateway.key)]
            # First connections and first pages of memory are nobody's figures.
            ask([(*lane, [story(2)]) for lane in lanes])
            before = [len(engine.records()) for engine in (straight, behind)]
            # Lengths tell the records of one engine apart.
            bodies = [story(tokens + place, prefill_s=prefill_s) for place in range(streams)]
            answers = ask([(*lane, bodies) for lane in lanes])
            for seen, engine, known, lane in zip(sides, (straight, behind), before, answers, strict=True):
                records = {record["completion_tokens"]: record for record in engine.records()[known:]}
                for answer in lane:
                    seen.add(answer, records[answer.usage["completion_tokens"]])
            for _turn in range(streams):
                for seen, engine, lane in zip(sides, (straight, behind), lanes, strict=True):
                    answer = ask([(*lane, [story(2, prefill_s=prefill_s)])])[0][0]
                    seen.add(answer, engine.records()[-1], alone=True)
        late = max(record.get("late_s") or 0.0 for record in fleet.records())
    return Compared(*sides, late)


def hold(directory: Path, engines: int, slots: int, tokens: int, rate: float) -> tuple[int, list[int], float]:
    """Fill every place of every engine with a slow stream through the gateway.

    Returns how many streams were under way at once, how many each engine got, and the CPU seconds of the gateway's processes.
    """
    with house(directory, engines, slots, decode_tokens_per_s=rate) as (fleet, gateway):
        begin = gateway_cpu(gateway)
        ask([(f"http://127.0.0.1:{gateway.port}", gateway.key, [story(tokens) for _number in range(engines * slots)])])
        cpu = gateway_cpu(gateway) - begin
        records = fleet.records()
    moments = sorted([(record["events"][0][0], 1) for record in records] + [(record["events"][-1][0], -1) for record in records])
    open_now = most = 0
    for _at, step in moments:
        open_now += step
        most = max(most, open_now)
    return most, [sum(record["engine"] == engine.name for record in records) for engine in fleet.engines], cpu


def gateway_cpu(gateway: Gateway) -> float:
    """CPU seconds of a gateway's processes until now."""
    ticks = 0
    for pid in gateway.info()["pids"]:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


#: What is asked for at the end of a long prompt, and found in the answer.
LONG = {
    "English": "word " * 100_000 + "What is the capital of Norway?",
    "Chinese": "字" * 170_000 + "What is the capital of Norway?",
}


def long_prompts(directory: Path) -> dict[str, tuple[int, bool]]:
    """Send prompts of half a megabyte; return the bytes of each and whether the answer is that of the engine asked straight."""
    found = {}
    with house(directory, 1, 2, max_model_len=400_000, decode_tokens_per_s=500) as (fleet, gateway):
        for name, text in LONG.items():
            body = {"model": "standin", "messages": [{"role": "user", "content": text}], "stream": True}
            lanes = [(fleet.engines[0].url, Gateway.ENGINE_KEY, [body]), (f"http://127.0.0.1:{gateway.port}", gateway.key, [body])]
            straight, through = (lane[0].content for lane in ask(lanes))
            found[name] = (len(json.dumps(body, ensure_ascii=False).encode()), straight == through and "Oslo" in through)
    return found
