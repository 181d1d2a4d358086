# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of the proof that take memory, slots and time: long context, cached prefixes, many at once, cancelling. Private to the collection."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import secrets
import threading
import time
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _checks_dialogue, _engine_metrics, _http, _sse, _verdicts
from ansible_collections.ironserve.llm.plugins.module_utils._checks import NOT_APPLICABLE, UNKNOWN
from ansible_collections.ironserve.llm.plugins.module_utils._checks_found import Found, code, user
from ansible_collections.ironserve.llm.plugins.module_utils._words import contains

#: What counts as long: the first recipe's acceptance asked for it.
LONG_TOKENS = 40000
DEPTHS = (0.05, 0.35, 0.65, 0.95)
CACHE_TOKENS = 4096
PATIENCE_S = 600.0
SECONDS = 60.0
ANSWER_TOKENS = 64
CALL_TOKENS = 256
#: Lines from which the tokens per line are learnt.
SAMPLE_LINES = 40
#: Margin on the lines, because a sample is no measurement.
MARGIN = 1.05
#: Tokens that a cancelled answer would still have had to make: a leaked slot is held for long.
CANCEL_TOKENS = 2048
RELEASE_S = 5.0
#: Healthy drafts are accepted to 39 to 80 percent, broken ones to below 1.
ACCEPTANCE_MIN = 0.2
#: Fewer drafted tokens say nothing.
DRAFTED_MIN = 50

_CITIES = ("Lima", "Oslo", "Quito", "Dakar", "Hanoi", "Turin", "Perth", "Bergen", "Cusco", "Malmo")


def _quote(text: str) -> str:
    return '"{0}"'.format(_http.one_line(text, 90))


def _line(number: int) -> str:
    return "Entry {0}: station {1} saw {2} days of rain, {3} of sun and {4} of fog.".format(
        number, number * 37 % 911, number * 7 % 31, number * 11 % 29, number * 5 % 23
    )


def document(lines: int, needles: dict[str, str], depths: tuple) -> str:
    """A long report that begins like no other, with ``needles`` (city -> code) at ``depths`` (0 to 1)."""
    out = ["Report {0} on the weather.".format(secrets.token_hex(8))] + [_line(number) for number in range(1, lines + 1)]
    for city, depth in sorted(zip(needles, depths), key=lambda pair: -pair[1]):
        out.insert(1 + int(depth * lines), "The vault code of {0} is {1}.".format(city, needles[city]))
    return "\n".join(out)


def _question(text: str, city: str) -> list:
    return [user("{0}\n\nWhat is the vault code of {1}? Answer with the number only.".format(text, city))]


def _lines_for(prover: Any, tokens: int) -> tuple[int, str]:
    """Lines of a report of ``tokens`` tokens by the engine's own count, or what kept it from being known."""
    text = "\n".join(_line(number) for number in range(1, SAMPLE_LINES + 1))
    sample = prover.ask([user(text)], 1)
    if not sample.prompt_tokens:
        return 0, "usage does not say how many tokens a prompt has, so nothing long can be measured"
    return int(math.ceil(tokens * MARGIN * SAMPLE_LINES / sample.prompt_tokens)), ""


def long_context(prover: Any, item: dict) -> Found:
    """One document of at least ``tokens`` tokens by usage; a code from each of ``depths`` must come back."""
    tokens, depths = item.get("tokens", LONG_TOKENS), tuple(item.get("depths", DEPTHS))
    patience = float(item.get("timeout_s", PATIENCE_S))
    if 0 < prover.context() < (2 * MARGIN - 1) * tokens:
        # The plan chose the context; the recipe's figure is for the one with the long context switched on.
        detail = "the engine runs with a context of {0} tokens, {1} are asked for here".format(prover.context(), tokens)
        return Found(good=detail, status=NOT_APPLICABLE)
    lines, unknown = _lines_for(prover, tokens)
    if unknown:
        return Found(unknown, sign=_verdicts.NO_VERDICT, status=UNKNOWN)
    needles = {city: code() for city in _CITIES[: len(depths)]}
    text = document(lines, needles, depths)
    max_tokens = item.get("max_tokens", ANSWER_TOKENS)
    seen, waits = [], []
    for city, depth in zip(needles, depths):
        messages = _question(text, city)
        answer = prover.ask(messages, max_tokens, {}, patience)
        seen.append(answer.prompt_tokens or 0)
        waits.append(answer.ttft_s or 0.0)
        if seen[-1] < tokens:
            return Found(
                "usage counts {0} prompt tokens for a document made of {1} or more: it was cut off, or usage lies".format(seen[-1], tokens)
            )
        trouble = prover.text_trouble(item, messages, answer, max_tokens)
        if not trouble and not contains(answer.content, needles[city]):
            trouble = "the code {0} did not come back, it said {1}".format(needles[city], _quote(answer.content))
        if trouble:
            return Found("of {0} tokens, at depth {1:.0%}: {2}".format(seen[-1], depth, trouble))
    good = "{0} tokens by usage, codes at {1} came back; first token after {2:.1f} s, later {3:.1f} s"
    shown = ", ".join("{0:.0%}".format(depth) for depth in depths)
    return Found(good=good.format(min(seen), shown, waits[0], min(waits[1:] or waits)), figure=float(min(seen)), unit="tokens")


def cache_hit(prover: Any, item: dict) -> Found:
    """The same long beginning ``times`` times with different ends: answers from a cached prefix must be as right as the first."""
    tokens, times = item.get("tokens", CACHE_TOKENS), item.get("times", 3)
    lines, unknown = _lines_for(prover, tokens)
    if unknown:
        return Found(unknown, sign=_verdicts.NO_VERDICT, status=UNKNOWN)
    needles = {city: code() for city in _CITIES[:times]}
    text = document(lines, needles, tuple((index + 0.5) / times for index in range(times)))
    max_tokens = item.get("max_tokens", ANSWER_TOKENS)
    for turn, city in enumerate(needles, 1):
        messages = _question(text, city)
        answer = prover.ask(messages, max_tokens, {}, float(item.get("timeout_s", PATIENCE_S)))
        trouble = prover.text_trouble(item, messages, answer, max_tokens)
        if not trouble and not contains(answer.content, needles[city]):
            trouble = "the code {0} did not come back, it said {1}".format(needles[city], _quote(answer.content))
        if trouble:
            before = "right without, wrong with its beginning cached" if turn > 1 else "wrong even the first time"
            return Found("time {0} of {1}, {2}: {3}".format(turn, times, before, trouble))
    return Found(good="{0} times the same {1} tokens with different ends, all right".format(times, tokens))


class _Crowd:
    """Several askers at once, each with a code of its own; remembers whose code is whose."""

    def __init__(self, prover: Any, item: dict, streams: int, until: float) -> None:
        self._prover = prover
        self._item = item
        self._until = until
        self._lock = threading.Lock()
        self._codes = {}
        self._streams = streams
        self.asked = 0
        self.troubles = []

    def work(self, worker: int) -> None:
        """Ask until time is up or something is wrong anywhere; every worker asks twice at least, and once for a tool call where that is wanted."""
        count, kinds = 0, [self._recall, self._call, self._prose] if self._prover.tools else [self._recall, self._recall, self._prose]
        while (count < 2 or time.monotonic() < self._until) and not self.troubles:
            ask = kinds[count % len(kinds)]
            count += 1
            own = code(8)
            with self._lock:
                self._codes[own] = worker
                self.asked += 1
            trouble = ask(worker, own)
            if trouble:
                with self._lock:
                    self.troubles.append(trouble)

    def _recall(self, worker: int, own: str) -> str:
        messages = [user("Locker {0} opens with code {1}. Which code opens locker {0}? Answer with the code only.".format(worker + 1, own))]
        max_tokens = self._item.get("max_tokens", ANSWER_TOKENS)
        answer = self._prover.ask(messages, max_tokens)
        mixed = self._mixed_up(worker, own, answer.content)
        if mixed:
            return mixed
        trouble = self._prover.text_trouble(self._item, messages, answer, max_tokens)
        if not trouble and not contains(answer.content, own):
            trouble = "the code {0} did not come back, it said {1}".format(own, _quote(answer.content))
        return trouble

    def _mixed_up(self, worker: int, own: str, text: str) -> str:
        """Whose code stands in ``text`` where it should be that of ``worker``; empty when nobody else's does."""
        with self._lock:
            others = [(other, of) for other, of in self._codes.items() if other != own and contains(text, other)]
        if not others:
            return ""
        return "request of worker {0} was answered with the code of worker {1}: answers are mixed up, it said {2}".format(
            worker + 1, others[0][1] + 1, _quote(text)
        )

    def _call(self, worker: int, own: str) -> str:
        """Have a tool called with a meter that nobody else reads; every other worker has it streamed."""
        meter = "M-" + own
        ask = self._prover.ask if worker % 2 else self._prover.whole
        messages = [user(_checks_dialogue.TOOL_QUESTION.format(meter, "kelvin"))]
        answer = ask(messages, CALL_TOKENS, {"tools": [_checks_dialogue.TOOL], "tool_choice": "auto"})
        trouble = self._mixed_up(worker, own, " ".join([answer.content] + [call["arguments"] for call in answer.calls]))
        return trouble or _checks_dialogue.call_trouble(answer.calls, answer.content, answer.finish, meter, "kelvin")

    def _prose(self, worker: int, _own: str) -> str:
        messages = [user("Tell me something about the history of {0}.".format(("bread", "paper", "glass", "salt")[worker % 4]))]
        answer = self._prover.ask(messages, 2 * ANSWER_TOKENS)
        return self._prover.text_trouble(self._item, messages, answer, 2 * ANSWER_TOKENS)


def streams_of(prover: Any, item: dict) -> int:
    """How many are asked at once: what the recipe says, else as many as run at a time by the plan; 0 when neither is known."""
    return item.get("streams") or prover.max_num_seqs


def concurrency(prover: Any, item: dict) -> Found:
    """``streams`` askers at once for ``seconds``, each with a code that nobody else has."""
    streams, seconds = streams_of(prover, item), float(item.get("seconds", SECONDS))
    if not streams:
        detail = "how many requests run here at a time is not known: give the option max_num_seqs, or streams in the recipe"
        return Found(detail, sign=_verdicts.NO_VERDICT, status=UNKNOWN)
    crowd = _Crowd(prover, item, streams, time.monotonic() + seconds)
    with concurrent.futures.ThreadPoolExecutor(max_workers=streams) as pool:
        waiting = [pool.submit(crowd.work, worker) for worker in range(streams)]
        stops = [found.exception() for found in waiting if found.exception() is not None]
    if stops:
        raise stops[0]
    if crowd.troubles:
        return Found("right alone, wrong with {0} at once, after {1} requests: {2}".format(streams, crowd.asked, crowd.troubles[0]))
    good = "{0} requests, {1} at once for {2:.0f} s, each got its own code back"
    return Found(good=good.format(crowd.asked, streams, seconds), figure=float(crowd.asked), unit="requests")


def _settled(prover: Any, patience_s: float) -> dict:
    """The engine's figures once it counts no running request, or after ``patience_s``: a busy machine counts a request that has just ended."""
    until = time.monotonic() + patience_s
    figures = prover.metrics()
    while figures.get(_engine_metrics.RUNNING) and time.monotonic() < until:
        time.sleep(0.05)
        figures = prover.metrics()
    return figures


def cancel(prover: Any, item: dict) -> Found:
    """Hang up on ``streams`` running answers; the engine must free their slots within ``release_s``."""
    streams, release_s = streams_of(prover, item) or 1, float(item.get("release_s", RELEASE_S))
    before = _settled(prover, release_s)
    with contextlib.ExitStack() as stack:
        for _number in range(streams):
            stream = stack.enter_context(
                prover.open([user("Write a long story about a ship, chapter by chapter.")], item.get("max_tokens", CANCEL_TOKENS))
            )
            transcript = _sse.Transcript(stream.sent_at)
            for at, chunk in stream:
                transcript.feed(at, chunk)
                if transcript.token_events >= 2 or transcript.done:
                    break
            if not transcript.token_events or transcript.done:
                why = (
                    "an error: {0}".format(transcript.error)
                    if transcript.error
                    else "its end after {0} tokens".format(transcript.token_events)
                )
                return Found("there was no running answer to cancel, but {0}".format(why))
    # Where others' requests run the whole time, its own can't be told by the count.
    figures = _settled(prover, release_s) if before.get(_engine_metrics.RUNNING) == 0 else prover.metrics()
    if before.get(_engine_metrics.RUNNING) == 0 and figures.get(_engine_metrics.RUNNING):
        return Found(
            "{0:.0f} of {1} cancelled answers still hold their slot {2:g} s after the client hung up ({3})".format(
                figures[_engine_metrics.RUNNING], streams, release_s, _engine_metrics.load(figures)
            )
        )
    # Longer than a freed slot takes, so that a leaked one is told from a hung engine.
    answer = prover.ask([user("Say hello.")], ANSWER_TOKENS, {}, 10 * release_s)
    seen = "by its own count" if _engine_metrics.RUNNING in figures else "the next answer began after {0:.2f} s".format(answer.ttft_s or 0)
    if answer.ttft_s is None or (_engine_metrics.RUNNING not in figures and answer.ttft_s > release_s):
        return Found("after {0} cancelled answers the next one began only after {1:.1f} s".format(streams, answer.ttft_s or math.inf))
    return Found(good="{0} cancelled, slots free within {1:g} s, {2}".format(streams, release_s, seen))


def counters(prover: Any, item: dict) -> Found:
    """What the engine counted during the proof: answers whose logits were no numbers, and how many drafted tokens were right."""
    before, after = prover.metrics_at_start, prover.metrics()
    if not after:
        return Found(good="the engine gives no metrics here", status=NOT_APPLICABLE)
    corrupted = _engine_metrics.grown(before, after, _engine_metrics.CORRUPTED)
    if corrupted:
        return Found("the engine counted {0:.0f} answers whose logits were no numbers (NaN)".format(corrupted), sign=_verdicts.GARBAGE)
    rate = _engine_metrics.acceptance(before, after)
    drafted = _engine_metrics.grown(before, after, _engine_metrics.DRAFTED)
    if item.get("speculative") and drafted is None:
        return Found("speculative decoding was asked for, yet the engine counts no drafts: it is not active")
    least = float(item.get("acceptance_min", ACCEPTANCE_MIN))
    said = "{0:.0%} of {1:.0f} drafted tokens were right".format(rate, drafted) if rate is not None else "no drafts"
    if rate is not None and drafted >= DRAFTED_MIN and rate < least:
        return Found(
            "{0}, healthy is above {1:.0%}: the draft model does not fit".format(said, least), figure=round(100 * rate, 1), unit="percent"
        )
    good = said if corrupted is None else "{0}, no answer with NaN".format(said)
    return Found(good=good, figure=None if rate is None else round(100 * rate, 1), unit="" if rate is None else "percent")
