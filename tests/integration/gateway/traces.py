# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Traces with shared prefixes, who plays them, and a router that knows every cache: what a gateway's balancing is measured with.

Engines are stand-ins with the figures of the routing comparison (``standin.fleet.ROUTING``), which say what truly happened.
"""

from __future__ import annotations

import collections
import dataclasses
import http.client
import json
import random
import threading
import time
from pathlib import Path

from integration.gateway.gateway_lab import Gateway, server, until
from standin.fleet import ROUTING, Engine, Fleet

WORDS = "alpha bravo card delta engine fleet gateway host index joint key lamp model node order plan queue replica stream token".split()
ENGINES = 4
#: Closed loop: so many requests are under way at any time.
AT_ONCE = 12
DOCUMENTS = 24
DOCUMENT_TOKENS = 3000
#: The system prompt that all share: longer than what any key is taken from.
SYSTEM = "You answer questions about documents. " * 60
SYSTEM_TOKENS = len(SYSTEM) // 4
ANSWER_TOKENS = ROUTING["answer_tokens"]


def words(rng: random.Random, tokens: int) -> str:
    """Prose of so many of the stand-in's tokens, four characters each."""
    out: list[str] = []
    length = 0
    while length < 4 * tokens:
        out.append(rng.choice(WORDS))
        length += len(out[-1]) + 1
    return " ".join(out)[: 4 * tokens]


def about(document: str, question: str) -> list[dict]:
    """A conversation that begins with a document."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": document + "\n" + question}]


class Documents:
    """Questions about documents, drawn by ``weights``."""

    def __init__(self, seed: int, requests: int, weights: list[float]) -> None:
        rng = random.Random(seed)
        texts = [words(rng, DOCUMENT_TOKENS) for _weight in weights]
        drawn = rng.choices(range(len(weights)), weights, k=requests)
        self._left = collections.deque((number, about(texts[number], f"Question {place}?")) for place, number in enumerate(drawn))
        self._lock = threading.Lock()

    def take(self) -> tuple[int, list[dict]] | None:
        """The next request: whose prefix it has, and its messages; None when there are no more."""
        with self._lock:
            return self._left.popleft() if self._left else None

    def give(self, number: int, answer: str) -> None:
        """What was answered; nobody goes on from it."""


class Chats:
    """Conversations of several turns; each turn brings all before it. One that waits for its answer is left alone."""

    def __init__(self, seed: int, requests: int, turns: int = 6, at_once: int = 24, first: int = 1200, more: int = 300) -> None:
        self._rng = random.Random(seed)
        self._turns, self._first, self._more, self._left = turns, first, more, requests
        self._lock = threading.Condition()
        self._number = 0
        self._open: dict[int, tuple[int, list[dict]]] = {}
        self._busy: set[int] = set()
        for _place in range(at_once):
            self._begin()

    def _begin(self) -> None:
        self._open[self._number] = (1, about(words(self._rng, self._first), "Hello."))
        self._number += 1

    def take(self) -> tuple[int, list[dict]] | None:
        """As of ``Documents``."""
        with self._lock:
            if not self._left:
                return None
            self._left -= 1
            number = self._rng.choice([number for number in self._open if number not in self._busy])
            self._busy.add(number)
            return number, self._open[number][1]

    def give(self, number: int, answer: str) -> None:
        """Go on, or begin another conversation after the last turn."""
        with self._lock:
            self._busy.discard(number)
            turn, messages = self._open.pop(number)
            if turn == self._turns:
                self._begin()
            else:
                said = {"role": "assistant", "content": answer}
                self._open[number] = (turn + 1, [*messages, said, {"role": "user", "content": words(self._rng, self._more)}])


def zipf(count: int, exponent: float = 0.8) -> list[float]:
    """Weights of documents by popularity."""
    return [1 / (place + 1) ** exponent for place in range(count)]


def hot(others: int = 15) -> list[float]:
    """One document has half of all requests, the others are asked about alike.

    So many fit into four caches together, and leastconn finds in them about what it found in the comparison that the goals come from.
    """
    return [float(others), *[1.0] * others]


#: What makes each trace, from a seed and the number of requests.
TRACES = {
    "documents": lambda seed, requests: Documents(seed, requests, zipf(DOCUMENTS)),
    "hot document": lambda seed, requests: Documents(seed, requests, hot()),
    "chat": Chats,
    # As many documents as requests: hardly one comes twice, and each that does is a new one.
    "unrelated": lambda seed, requests: Unrelated(seed, requests),
}


class Unrelated(Documents):
    """Each document once."""

    def __init__(self, seed: int, requests: int) -> None:
        rng = random.Random(seed)
        self._left = collections.deque((number, about(words(rng, DOCUMENT_TOKENS), "What is it?")) for number in range(requests))
        self._lock = threading.Lock()


class Knowing:
    """A router that knows what is in every cache and how much work each engine has: the most that routing can get.

    A prefix goes where its prefill would be done first, counting what is under way there.
    """

    def __init__(self, engines: list[Engine], time_scale: float) -> None:
        self._scale = time_scale
        self._ports = [engine.port for engine in engines]
        self._caches: list[collections.OrderedDict[int, int]] = [collections.OrderedDict() for _engine in engines]
        self._free = [0.0] * len(engines)
        self._running = [0] * len(engines)
        self._lock = threading.Lock()

    def begin(self, number: int, tokens: int) -> int:
        """The engine that gets the request; its place."""
        with self._lock:
            now = time.monotonic() * self._scale
            costs = []
            for place, cache in enumerate(self._caches):
                # The system prompt is in every cache, once.
                cold = max(0, tokens - SYSTEM_TOKENS - cache.get(number, 0))
                prefill = ROUTING["prefill_base_s"] + cold / ROUTING["prefill_tokens_per_s"]
                full = max(0, self._running[place] - ROUTING["slots"] + 1)
                costs.append((max(now, self._free[place]) + prefill + full * ROUTING["prefill_base_s"], self._running[place], place))
            done, _running, place = min(costs)
            self._free[place] = done
            self._running[place] += 1
            cache = self._caches[place]
            cache[number] = tokens - SYSTEM_TOKENS
            cache.move_to_end(number)
            while sum(cache.values()) > ROUTING["kv_blocks"] * ROUTING["block_tokens"] - ROUTING["slots"] * 64:
                cache.popitem(last=False)
            return place

    def end(self, place: int) -> None:
        """The request is over."""
        with self._lock:
            self._running[place] -= 1

    def port(self, place: int) -> int:
        """Where an engine listens."""
        return self._ports[place]


@dataclasses.dataclass
class Played:
    """How a trace went: requests a second of the engines' time, the share of prompt tokens that came out of caches, statuses other than 200."""

    rate: float
    hits: float
    bad: list[int]
    late_s: float


def ask(port: int, key: str, messages: list[dict]) -> tuple[int, str]:
    """One streamed request; the status and what was said."""
    door = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        wish = {"messages": messages, "model": "standin", "stream": True, "max_tokens": ANSWER_TOKENS}
        door.request(
            "POST", "/v1/chat/completions", json.dumps(wish), {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
        )
        answer = door.getresponse()
        said = []
        for line in answer:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:]).get("choices")
                said.append((choices[0]["delta"].get("content") or "") if choices else "")
        return answer.status, "".join(said)
    finally:
        door.close()


def play(trace, fleet: Fleet, key: str, gateway: Gateway | None, time_scale: float = 1.0) -> Played:
    """Play a trace to its end through a gateway, or with the router that knows everything straight to the engines."""
    knowing = None if gateway else Knowing(fleet.engines, time_scale)
    bad: list[int] = []
    finished: list[float] = []

    def worker() -> None:
        while True:
            taken = trace.take()
            if taken is None:
                return
            number, messages = taken
            if knowing is None:
                status, answer = ask(gateway.port, gateway.key, messages)
            else:
                place = knowing.begin(number, sum(len(message["content"]) for message in messages) // 4)
                status, answer = ask(knowing.port(place), key, messages)
                knowing.end(place)
            if status != 200:
                bad.append(status)
            trace.give(number, answer)
            finished.append(time.monotonic())

    begin = time.monotonic()
    threads = [threading.Thread(target=worker) for _number in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = [record for record in fleet.records() if record.get("prompt_tokens")]
    prompts = sum(record["prompt_tokens"] for record in records)
    hits = sum(record["cached_tokens"] for record in records) / prompts
    return Played(len(finished) / (max(finished) - begin) / time_scale, hits, bad, max(record.get("late_s") or 0.0 for record in records))


def run(name: str, seed: int, requests: int, policy: str, directory: Path, time_scale: float = 1.0) -> Played:
    """Play one trace with one policy on cold engines: ``leastconn``, ``prefix_affinity``, or ``knowing``.

    Less than one second of the engines' in each makes what the machine itself takes count for less.
    """
    key = directory / "engine.key"
    key.write_text(Gateway.ENGINE_KEY + "\n", encoding="utf-8")
    with Fleet(ENGINES, directory, **ROUTING, key_file=key, time_scale=time_scale) as fleet:
        if policy == "knowing":
            return play(TRACES[name](seed, requests), fleet, Gateway.ENGINE_KEY, None, time_scale)
        gateway = Gateway(gateway_balance=policy)
        try:
            gateway.put(servers_of(fleet))
            return play(TRACES[name](seed, requests), fleet, Gateway.ENGINE_KEY, gateway, time_scale)
        finally:
            gateway.remove()


def servers_of(fleet: Fleet) -> list[dict]:
    """The engines as the gateway's servers."""
    return [server(engine.name, engine.port, places=ROUTING["slots"], models=["standin"]) for engine in fleet.engines]


def lose_one(directory: Path, keys: int = 40) -> tuple[int, int, int]:
    """Let an engine die; return how many prefixes it had, how many of them moved, and how many others did."""
    secret = directory / "engine.key"
    secret.write_text(Gateway.ENGINE_KEY + "\n", encoding="utf-8")
    # Prompts are short and engines fast here: only where requests go is looked at.
    with Fleet(ENGINES, directory, **{**ROUTING, "prefill_base_s": 0.0}, key_file=secret) as fleet:
        gateway = Gateway(gateway_balance="prefix_affinity")
        try:
            gateway.put(servers_of(fleet))
            for number in range(keys):
                assert ask(gateway.port, gateway.key, about(f"document {number}", "?"))[0] == 200
            before = gateway.door.affinity()
            assert len(before) == keys
            victim = fleet.engines[1]
            victim.process.terminate()
            victim.process.wait()
            until(lambda: gateway.door.servers()[victim.name].op == "stopped", 20)
            for number in range(keys):
                assert ask(gateway.port, gateway.key, about(f"document {number}", "?"))[0] == 200
            after = gateway.door.affinity()
        finally:
            gateway.remove()
    held = [entry for entry, name in before.items() if name == victim.name]
    moved = [entry for entry, name in before.items() if after[entry] != name]
    return len(held), len([entry for entry in moved if entry in held]), len([entry for entry in moved if entry not in held])
