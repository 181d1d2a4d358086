# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Puts load on endpoints by a protocol, and makes the result of it: docs/benchmark-result.md. Private to the collection."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
import time
from typing import Any, Callable, Sequence

from ansible_collections.ironserve.llm.plugins.module_utils import _benchmark, _http, _prompts, _stream
from ansible_collections.ironserve.llm.plugins.module_utils._benchmark import CLOSED, COLD, WARM
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

VERSION = 1
PATH = "/v1/chat/completions"
REPLICA = "replica"
GATEWAY = "gateway"

#: Name of the row that puts together what ran at the same time.
ALL = "all replicas"

#: Engines with large blocks find a prompt only when it comes for the third time.
PRIMES = 2

#: Requests at work at a time in an open loop, beyond which the rest fails.
OPEN_LIMIT = 4096

#: Word counts of the two requests that tell how many tokens a word has.
_GAUGE = (100, 400)


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """What is asked: a replica on its own port, or a gateway. Without ``container`` its cards are not on this host."""

    name: str
    url: str
    kind: str = REPLICA
    api_key_file: str = ""
    ca_file: str = ""
    container: str = ""
    cards: tuple[str, ...] = ()
    platform: str = ""


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How it is asked; docs/benchmark-result.md says what each means. ``texts`` are empty for synthetic prompts."""

    model: str
    levels: tuple[float, ...]
    kind: str = _prompts.SYNTHETIC
    texts: tuple[str, ...] = ()
    count: int = 32
    input_tokens: int = 512
    output_tokens: int = 128
    ignore_eos: bool = True
    request: dict[str, Any] = dataclasses.field(default_factory=dict)
    load: str = CLOSED
    requests: int = 32
    repeats: int = 3
    warmup: int = 2
    cache: str = COLD
    seed: int = 0
    together: bool = False
    slo: dict[str, float | None] = dataclasses.field(default_factory=dict)
    stop_when_saturated: bool = True
    saturation_gain_pct: float = 5.0

    def check(self) -> None:
        """Raises LLMError that names the option."""
        for name, least in (("count", 1), ("output_tokens", 1), ("requests", 1), ("repeats", 1), ("warmup", 0), ("input_tokens", 16)):
            if getattr(self, name) < least:
                raise LLMError("{0} must be {1} or more, not {2}".format(name, least, getattr(self, name)))
        if not self.levels or not all(0 < level < math.inf for level in self.levels):
            raise LLMError("at least one level is needed, each above 0, not {0}".format(list(self.levels)))
        for name, limit in self.slo.items():
            if limit is not None and not 0 < limit < math.inf:
                raise LLMError("slo.{0} must be a number above 0, not {1:g}".format(name, limit))
        if not 0 <= self.saturation_gain_pct < math.inf:
            raise LLMError("saturation_gain_pct must be 0 or more, not {0:g}".format(self.saturation_gain_pct))
        if self.load == CLOSED and any(level != int(level) for level in self.levels):
            raise LLMError("concurrency must be whole numbers, not {0}".format(list(self.levels)))
        if self.load == CLOSED and max(self.levels) > self.requests:
            text = (
                "{0} requests can never be {1:g} at a time: raise requests to {1:g} or more (several times that, to measure a steady load)"
            )
            raise LLMError(text.format(self.requests, max(self.levels)))
        if len(set(self.levels)) < len(self.levels):
            raise LLMError("a level is given twice: {0}".format(list(self.levels)))
        reserved = sorted(set(self.request) & {"messages", "model", "stream", "stream_options", "max_tokens"})
        if reserved:
            raise LLMError("request may not have {0}: the benchmark sets it".format(", ".join(reserved)))

    def as_dict(self, texts: Sequence[str]) -> dict[str, Any]:
        """The block ``protocol`` of the result."""
        digest = hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()
        synthetic = self.kind == _prompts.SYNTHETIC
        out = {
            "model": self.model,
            "prompts": {
                "kind": self.kind,
                "count": len(texts),
                "sha256": digest,
                "input_tokens": self.input_tokens if synthetic else None,
            },
            "output_tokens": self.output_tokens,
            "ignore_eos": self.ignore_eos,
            "request": self.request,
            "load": self.load,
            "levels": [int(level) if self.load == CLOSED else level for level in self.levels],
            "requests": self.requests,
            "repeats": self.repeats,
            "warmup": self.warmup,
            "seed": self.seed,
            "cache": self.cache,
            "together": self.together,
            "slo": {key: self.slo.get(key) for key in _benchmark.SLO},
        }
        out["id"] = hashlib.sha256(json.dumps(out, sort_keys=True).encode("utf-8")).hexdigest()[:16]
        return out


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds at which so many requests arrive, at random and ``rate`` a second on average (Poisson); the first at 0."""
    rng = random.Random(seed)
    out, at = [], 0.0
    for _number in range(count):
        out.append(at)
        at += rng.expovariate(rate)
    return out


def _failure(endpoint: Endpoint, answer: _stream.Answer, what: str) -> LLMError:
    return LLMError("{0} ({1}): {2} failed: {3}".format(endpoint.name, endpoint.url, what, answer.error or answer.kind))


class Bench:
    """One benchmark.

    Args:
        protocol, endpoints, limits: what is done, where, and what is waited for.
        watch: starts watching an endpoint's cards; returns an object with ``stop``, see ``_card_watch.Watch``.
        say: takes a line about what is done next.
        client: makes the measuring client.
    """

    def __init__(
        self,
        protocol: Protocol,
        endpoints: Sequence[Endpoint],
        limits: _stream.Limits,
        watch: Callable[[Endpoint], Any],
        say: Callable[[str], None] = lambda line: None,
        client: Callable[..., _stream.Client] = _stream.Client,
    ) -> None:
        protocol.check()
        names = [endpoint.name for endpoint in endpoints]
        if not names or len(set(names)) < len(names) or ALL in names:
            raise LLMError("endpoints need names of their own, other than '{0}': {1}".format(ALL, ", ".join(names) or "none given"))
        self._protocol = protocol
        self._endpoints = list(endpoints)
        self._limits = limits
        self._watch = watch
        self._say = say
        self._client = client
        self._targets = {
            endpoint.name: _stream.target(endpoint.url, PATH, _http.read_key(endpoint.api_key_file), endpoint.ca_file)
            for endpoint in endpoints
        }
        self._deltas = {}
        self._words = {}
        self._runs = []
        self._cards = []

    # ---- asking

    def _body(self, endpoint: Endpoint, text: str, tokens: int) -> bytes:
        protocol = self._protocol
        options = {"include_usage": True}
        if self._deltas.get(endpoint.name, True):
            options["continuous_usage_stats"] = True
        body = {
            "model": protocol.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": options,
        }
        if protocol.ignore_eos:
            body["ignore_eos"] = True
        body.update(protocol.request)
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")

    def _ask(self, endpoint: Endpoint, texts: Sequence[str], tokens: int, width: int, what: str) -> list[_stream.Answer]:
        """Ask what counts nowhere. Raises LLMError when one is not answered."""
        bodies = [self._body(endpoint, text, tokens) for text in texts]
        outcome = self._client(self._limits).run([_stream.Lane(self._targets[endpoint.name], bodies, width)])
        for answer in outcome.answers[0]:
            if answer.kind:
                raise _failure(endpoint, answer, what)
        return outcome.answers[0]

    def _gauge(self, endpoint: Endpoint) -> None:
        """Learn whether the engine counts the tokens of every chunk, and how many words make the wanted prompt."""
        texts = [_prompts.fresh(_prompts.task(words, self._protocol.seed)) for words in _GAUGE]
        try:
            answers = self._ask(endpoint, texts[:1], 2, 1, "a first request")
        except LLMError as exc:
            if "HTTP 400" not in str(exc) and "HTTP 422" not in str(exc):
                raise
            # Some servers know no continuous_usage_stats and refuse what they do not know.
            self._deltas[endpoint.name] = False
            answers = self._ask(endpoint, texts[:1], 2, 1, "a first request")
        if self._protocol.kind != _prompts.SYNTHETIC:
            return
        answers += self._ask(endpoint, texts[1:], 2, 1, "a request of {0} words".format(_GAUGE[1]))
        counts = [answer.usage.get("prompt_tokens") for answer in answers]
        if not all(isinstance(count, int) for count in counts) or counts[1] <= counts[0]:
            raise LLMError(
                "{0} ({1}): prompts of {2} and {3} words have {4} and {5} tokens by its usage; without a right count no prompt of {6} tokens "
                "can be made".format(endpoint.name, endpoint.url, *(list(_GAUGE) + counts + [self._protocol.input_tokens]))
            )
        each = (counts[1] - counts[0]) / (_GAUGE[1] - _GAUGE[0])
        self._words[endpoint.name] = max(1, int(round(_GAUGE[0] + (self._protocol.input_tokens - counts[0]) / each)))

    def _texts(self) -> list[str]:
        """The prompts, without the codes that make them cold: the same for all endpoints."""
        protocol = self._protocol
        if protocol.kind != _prompts.SYNTHETIC:
            return _prompts.choose(protocol.texts, protocol.count, protocol.seed)
        # All serve one model, so one count of words fits all.
        words = self._words[self._endpoints[0].name]
        return [_prompts.task(words, protocol.seed * 1000003 + number + 1) for number in range(protocol.count)]

    def _measured(self, texts: Sequence[str], repeat: int) -> list[str]:
        """The prompts of one run."""
        rng = random.Random(self._protocol.seed * 1009 + repeat)
        order = []
        while len(order) < self._protocol.requests:
            batch = list(texts)
            rng.shuffle(batch)
            order += batch
        order = order[: self._protocol.requests]
        return [_prompts.fresh(text) for text in order] if self._protocol.cache == COLD else order

    def _prepare(self, endpoint: Endpoint, texts: Sequence[str], level: float) -> None:
        """Warm up, with prompts that are never measured. What fails here fails again where it is measured."""
        protocol = self._protocol
        if not protocol.warmup:
            return
        width = int(level) if protocol.load == CLOSED else protocol.warmup
        asked = [_prompts.fresh(texts[number % len(texts)]) for number in range(protocol.warmup)]
        bodies = [self._body(endpoint, text, protocol.output_tokens) for text in asked]
        self._client(self._limits).run([_stream.Lane(self._targets[endpoint.name], bodies, width)])

    # ---- measuring

    def run(self) -> dict[str, Any]:
        """Do it all; returns the result. Raises LLMError when an endpoint cannot even be asked."""
        protocol = self._protocol
        for endpoint in self._endpoints:
            self._gauge(endpoint)
        texts = self._texts()
        if protocol.cache == WARM:
            for endpoint in self._endpoints:
                self._say("{0}: sending every prompt {1} times, so that its cache is warm".format(endpoint.name, PRIMES))
                for _time in range(PRIMES):
                    self._ask(endpoint, texts, 1, 1, "filling the cache")
        groups = self._groups()
        beyond = {}
        for level in protocol.levels:
            open_groups = [group for group in groups if level < beyond.get(group[0].name, math.inf)]
            for group in open_groups:
                for endpoint in group:
                    self._prepare(endpoint, texts, level)
            # Endpoints take turns, so that whatever else changes with time meets all of them.
            for repeat in range(1, protocol.repeats + 1):
                for group in open_groups:
                    self._measure(group, texts, level, repeat)
            if protocol.stop_when_saturated:
                # Lower levels that are still to come are worth knowing.
                beyond.update((name, min(level, beyond.get(name, math.inf))) for name in self._saturated())
        return self._result(texts)

    def _groups(self) -> list[list[Endpoint]]:
        replicas = [endpoint for endpoint in self._endpoints if endpoint.kind == REPLICA]
        if not self._protocol.together or len(replicas) < 2:
            return [[endpoint] for endpoint in self._endpoints]
        return [replicas] + [[endpoint] for endpoint in self._endpoints if endpoint.kind != REPLICA]

    def _saturated(self) -> set[str]:
        rows = _benchmark.saturation(_benchmark.levels(self._runs), self._protocol.saturation_gain_pct)
        done = {row["endpoint"] for row in rows if row["saturated"]}
        groups = self._groups()
        # A group goes on together or not at all.
        return {group[0].name for group in groups if (ALL if len(group) > 1 else group[0].name) in done}

    def _measure(self, group: Sequence[Endpoint], texts: Sequence[str], level: float, repeat: int) -> None:
        protocol = self._protocol
        closed = protocol.load == CLOSED
        what = "{0:g} at a time".format(level) if closed else "{0:g} requests/s".format(level)
        names = ", ".join(endpoint.name for endpoint in group)
        self._say("{0}: {1}, run {2} of {3}, {4} requests".format(names, what, repeat, protocol.repeats, protocol.requests))
        lanes = []
        for number, endpoint in enumerate(group):
            bodies = [self._body(endpoint, text, protocol.output_tokens) for text in self._measured(texts, repeat)]
            due = None if closed else arrivals(len(bodies), level, protocol.seed * 7919 + repeat * 101 + number)
            lanes.append(_stream.Lane(self._targets[endpoint.name], bodies, int(level) if closed else OPEN_LIMIT, due))
        watches = [self._watch(endpoint) for endpoint in group]
        started = time.time()
        for watch in watches:
            watch.start()
        try:
            outcome = self._client(self._limits).run(lanes)
        finally:
            seen = [watch.stop() for watch in watches]
        each = [[_benchmark.sample(answer, protocol.cache == COLD) for answer in answers] for answers in outcome.answers]
        for endpoint, samples, cards in zip(group, each, seen):
            row = self._row(endpoint.name, samples, outcome, level, repeat, started)
            self._add_power(row, [cards], samples)
            place = {"run": len(self._runs), "endpoint": endpoint.name, "cards": list(endpoint.cards), "platform": endpoint.platform}
            self._cards.append(dict(place, **cards))
            self._runs.append(row)
        if len(group) > 1:
            pooled = [one for samples in each for one in samples]
            row = self._row(ALL, pooled, outcome, level, repeat, started)
            row["members"] = [endpoint.name for endpoint in group]
            self._add_power(row, seen, pooled)
            self._runs.append(row)

    def _add_power(self, row: dict[str, Any], cards: Sequence[dict[str, Any]], samples: Sequence[_benchmark.Sample]) -> None:
        if row["figures"] is None or any(card["power_w"] is None for card in cards):
            return
        watts = sum(card["power_w"]["mean"] for card in cards)
        total = row["figures"]["total_output_tokens"]
        start, end = _benchmark.window(samples)
        if watts > 0 and end > start and total is not None:
            row["figures"]["tokens_per_joule"] = total / (watts * (end - start))

    def _row(
        self, name: str, samples: Sequence[_benchmark.Sample], outcome: _stream.Outcome, level: float, repeat: int, started: float
    ) -> dict[str, Any]:
        protocol = self._protocol
        client = _benchmark.lag(outcome, samples)
        cached = _benchmark.cache(samples, protocol.cache)
        refused = _benchmark.judge(samples, client, cached, protocol.output_tokens)
        closed = protocol.load == CLOSED
        start, end = _benchmark.window(samples)
        answered = [one for one in samples if one.ok]
        return {
            "endpoint": name,
            "tool": "ironserve",
            "load": protocol.load,
            "concurrency": int(level) if closed else None,
            "request_rate": None if closed else level,
            "repeat": repeat,
            "started_unix": round(started, 3),
            "duration_s": round(end - start, 6),
            "completed": len(answered),
            "failed": len(samples) - len(answered),
            "errors": _benchmark.faults(samples),
            "publishable": not refused,
            "refused": refused,
            "figures": None if refused else _benchmark.figures(samples, protocol.slo),
            "cache": cached,
            "client": client,
            "notes": _benchmark.notes(samples, protocol.output_tokens),
            "timeline": _benchmark.timeline(samples),
            "requests": _benchmark.rows(samples, protocol.slo),
        }

    def _result(self, texts: Sequence[str]) -> dict[str, Any]:
        protocol = self._protocol
        members = ("name", "url", "kind", "container", "platform")
        return {
            "version": VERSION,
            "ok": all(run["publishable"] for run in self._runs),
            "protocol": protocol.as_dict(texts),
            "endpoints": [
                dict({name: getattr(endpoint, name) for name in members}, cards=list(endpoint.cards)) for endpoint in self._endpoints
            ],
            "runs": self._runs,
            "summary": summary(self._runs, self._endpoints, protocol.saturation_gain_pct),
            "cards": self._cards,
        }


def summary(runs: Sequence[dict[str, Any]], endpoints: Sequence[Endpoint], gain_pct: float) -> dict[str, Any]:
    """The block ``summary`` of the result, from its runs."""
    rows = _benchmark.levels(runs)
    refusals = {}
    for run in runs:
        for text in run["refused"]:
            known = refusals.setdefault(_benchmark.label(run), [])
            if text not in known:
                known.append(text)
    through = [endpoint.name for endpoint in endpoints if endpoint.kind == GATEWAY]
    direct = [endpoint.name for endpoint in endpoints if endpoint.kind == REPLICA]
    return {
        "levels": rows,
        "saturation": _benchmark.saturation(rows, gain_pct),
        "gateway": _benchmark.gateway(rows, through, direct),
        "lines": _benchmark.table(rows, refusals),
    }
