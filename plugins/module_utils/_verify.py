# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The proof of real inference: right answers, then speed, then card use. Private to the collection.

Every question is asked as a stream, greedy, on a connection of its own, so that a replica which is slow, hangs or dies
in the middle is told apart by what had arrived until then.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import math
import secrets
import threading
import time
from typing import Any, Callable, Iterator

from ansible_collections.ironserve.llm.plugins.module_utils import (
    _card_use,
    _checks_dialogue,
    _checks_form,
    _checks_load,
    _engine_metrics,
    _http,
    _log_messages,
    _quality,
    _questions,
    _sse,
    _verdicts,
)
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARN
from ansible_collections.ironserve.llm.plugins.module_utils._checks_found import Found, Whole, read_whole
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest
from ansible_collections.ironserve.llm.plugins.module_utils._verdicts import Outcome
from ansible_collections.ironserve.llm.plugins.module_utils._words import contains

#: Options of each kind of check: name -> whether it must be given.
KINDS = {
    "models": {},
    "exact": {"prompt": True, "expect": True, "max_tokens": False, "finish": False, "margin_nats": False},
    "nonce_recall": {"prompt": False, "answer": False, "shots": False, "digits": False, "max_tokens": False, "margin_nats": False},
    "quality": {"prompt": True, "form": False, "max_tokens": False},
    "stream_equals_unary": {"prompt": True, "max_tokens": False},
    "speed": {"prompt": False, "max_tokens": False},
    "prefix_cache": {"lines": False, "factor": False},
    "card_use": {"floor_pct": False},
    # Ten exact questions and two nonces, half of them Chinese: expanded when the recipe is read.
    "exact_set": {"max_tokens": False},
    "multi_turn": {"turns": False, "max_tokens": False},
    "tool_loop": {"rounds": False, "max_tokens": False},
    "system_message": {"max_tokens": False},
    "kept_connection": {"times": False, "max_tokens": False},
    "json_schema": {"max_tokens": False},
    "stop": {"max_tokens": False},
    "max_tokens": {"prompt": False, "max_tokens": False},
    "reasoning": {"prompt": False, "expect": False, "request": False, "max_tokens": False},
    "errors": {"skip": False, "context": False},
    "cancel": {"streams": False, "release_s": False, "max_tokens": False},
    "long_context": {"tokens": False, "depths": False, "timeout_s": False, "max_tokens": False},
    "cache_hit": {"tokens": False, "times": False, "timeout_s": False, "max_tokens": False},
    "concurrency": {"streams": False, "seconds": False, "max_tokens": False},
    "counters": {"speculative": False, "acceptance_min": False},
    "agreement": {"least": False},
}
#: Checks that have a function in a file of their own.
_MORE = {
    "multi_turn": _checks_dialogue.multi_turn,
    "tool_loop": _checks_dialogue.tool_loop,
    "system_message": _checks_dialogue.system_message,
    "kept_connection": _checks_dialogue.kept_connection,
    "json_schema": _checks_form.json_schema,
    "stop": _checks_form.stop,
    "max_tokens": _checks_form.max_tokens,
    "reasoning": _checks_form.reasoning,
    "errors": _checks_form.errors,
    "cancel": _checks_load.cancel,
    "long_context": _checks_load.long_context,
    "cache_hit": _checks_load.cache_hit,
    "counters": _checks_load.counters,
}
_COMMON = ("check", "id", "language")
#: The keys of an entry of ``not_applicable``.
_EXCLUDED = ("check", "id", "reason", "measured")
#: Options of checks that are whole numbers above 0, and those that are numbers above 0.
_WHOLE = ("max_tokens", "digits", "lines", "turns", "rounds", "streams", "tokens", "times", "context")
_NUMBERS = ("seconds", "timeout_s", "release_s", "acceptance_min", "least", "floor_pct")
#: Checks every proof makes, listed in the recipe or not, unless the recipe says they are not applicable.
IMPLIED = ("models", "speed", "card_use")

#: The checks of a recipe that are not named here: each is a question by itself.
QUESTION = "question"
#: What is made in which order; right answers come before speed, for garbage is often the fastest. The long answer whose speed is
#: measured has the endpoint for itself.
ORDER = (
    "models",
    QUESTION,
    "quality",
    "speed",
    "prefix_cache",
    "cache_hit",
    "long_context",
    "cancel",
    "concurrency",
    "counters",
    "card_use",
)
#: Asked for only when all before was right.
DEMANDING = ORDER[ORDER.index("speed") : ORDER.index("counters")]

#: After this many seconds of tokens a stream that is hopelessly under the floor is not waited for any longer.
SLOW_WINDOW_S = 10.0
#: One event may hold several tokens under speculative decoding, so a cut stream must be this many times under the floor.
BURST = 4.0
#: Tokens a stream must have for its speed to mean something.
SPEED_TOKENS = 16
#: Characters a token of English prose has at the very least.
LEAST_CHARACTERS = 2.5
CARD_FLOOR_PCT = 5.0
#: A report of this many lines is some 1500 tokens long; read from the cache, it must be this many times quicker.
PREFIX_LINES = 75
PREFIX_FACTOR = 2.0
#: What is asked once more after the load.
_AGAIN = ("exact", "nonce_recall", "quality", "multi_turn", "tool_loop", "json_schema")
#: How long a silent engine's counters are watched before it counts as hung.
PROGRESS_S = 2.0
#: Share of equal answers between replicas below which one of them is not believed.
AGREEMENT = 0.8
#: The form of a nonce question when the recipe gives none: for models that follow instructions without examples.
NONCE_PROMPT = "The secret code is {nonce}. What is the secret code? Answer with the code only."


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds: until the first token and between tokens; for one request; for one whole proof."""

    first_token_s: float = 60.0
    request_s: float = 120.0
    total_s: float = 600.0
    slow_window_s: float = SLOW_WINDOW_S
    progress_s: float = PROGRESS_S


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """What a model must show, from its recipe."""

    checks: list
    not_applicable: list
    floor_decode_tokens_per_s: float
    ttft_limit_s: float
    exact_pass_share: float = 1.0
    request: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Proof:
    """The verdict on one endpoint. Figures are None unless the verdict is ``ok``: figures of a failed run are no figures."""

    name: str
    url: str
    verdict: str
    evidence: list
    next_step: str
    checks: list
    ttft_ms: float | None = None
    decode_tokens_per_s: float | None = None
    card_use_pct: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the endpoint proved that it really infers."""
        return self.verdict == _verdicts.OK

    def as_dict(self) -> dict:
        """Plain data for module results."""
        return dataclasses.asdict(self)


class _Stopped(Exception):
    """The proof goes no further; why is among the outcomes."""


class _Stop(Exception):
    """Carries the outcome after which asking further makes no sense."""

    def __init__(self, sign: str, detail: str) -> None:
        super().__init__(detail)
        self.sign = sign
        self.detail = detail


def _above(value: object, least: float) -> bool:
    """Whether ``value`` is a number above ``least``. What is no number (NaN) or has no end is none: it would let everything pass, or nothing."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > least


def _number(data: dict, key: str, default: float | None) -> float:
    value = data.get(key, default)
    if not _above(value, 0):
        raise LLMError("acceptance.{0} must be a number above 0, not {1!r}".format(key, value))
    return float(value)


def _check_known(where: str, what: str, word: str, known: list) -> None:
    """Raise LLMError naming ``where`` and the nearest right word unless ``word`` is one of ``known``."""
    if word not in known:
        raise LLMError('{0}: {1} "{2}"; {3}'.format(where, what, word, nearest(word, known)))


def _check_item(index: int, item: object) -> dict:
    where = "acceptance.checks[{0}]".format(index)
    if not isinstance(item, dict) or "check" not in item:
        raise LLMError("{0} must be a mapping with the key 'check'".format(where))
    kind = str(item["check"])
    where = "{0} ({1} {2})".format(where, kind, item.get("id", "")).replace(" )", ")")
    _check_known(where, "unknown check", kind, list(KINDS))
    known = KINDS[kind]
    for key in item:
        _check_known(where, "unknown key", str(key), list(known) + list(_COMMON))
    for key, required in known.items():
        if required and not item.get(key):
            raise LLMError("{0}: the key '{1}' is missing or empty".format(where, key))
    for key in ("expect", "shots", "skip", "depths"):
        if key in item and not isinstance(item[key], list):
            raise LLMError("{0}: '{1}' must be a list".format(where, key))
    for name in item.get("skip", []):
        _check_known(where, "unknown bad request in 'skip'", str(name), list(_checks_form.BAD_REQUESTS))
    if any(word is None or not str(word).strip() for word in item.get("expect", [])):
        raise LLMError("{0}: 'expect' has an empty word, which stands in every answer".format(where))
    for key in ("prompt", "answer"):
        if kind == "nonce_recall" and "{nonce}" not in str(item.get(key, "{nonce}")):
            raise LLMError("{0}: '{1}' must contain {{nonce}}".format(where, key))
    for key in _WHOLE:
        value = item.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise LLMError("{0}: '{1}' must be a whole number above 0, not {2!r}".format(where, key, value))
    for key in _NUMBERS:
        value = item.get(key, 1)
        if not _above(value, 0):
            raise LLMError("{0}: '{1}' must be a number above 0, not {2!r}".format(where, key, value))
    if item.get("form", "") not in ("", *_quality.FORMS):
        raise LLMError("{0}: 'form' must be one of {1}, not {2!r}".format(where, ", ".join(_quality.FORMS), item["form"]))
    if kind in ("multi_turn", "system_message") and item.get("language", "en") not in ("en", "zh"):
        raise LLMError("{0}: 'language' must be en or zh, not {1!r}".format(where, item["language"]))
    depths = item.get("depths", [0])
    if not depths or len(depths) > 10 or not all(isinstance(depth, (int, float)) and 0 <= depth <= 1 for depth in depths):
        raise LLMError("{0}: 'depths' must be 1 to 10 numbers from 0 to 1".format(where))
    if item.get("times", 3) > 10:
        raise LLMError("{0}: 'times' must be 10 or less".format(where))
    value = item.get("factor", PREFIX_FACTOR)
    if not _above(value, 1):
        raise LLMError("{0}: 'factor' must be a number above 1, not {1!r}".format(where, value))
    return dict(item)


def _list(value: Any) -> list:
    """What an endpoint said, where it is a list; else an empty one."""
    return value if isinstance(value, list) else []


def _phase(item: dict) -> str:
    return item["check"] if item["check"] in ORDER else QUESTION


def read_acceptance(data: dict) -> Acceptance:
    """Check a recipe's ``acceptance`` block. Raises LLMError naming the key at fault.

    At least one ``exact`` or ``nonce_recall`` check is demanded: nothing else can prove that answers are right.
    """
    known = [field.name for field in dataclasses.fields(Acceptance)]
    for key in data:
        _check_known("acceptance", "unknown key", str(key), known)
    raw = data.get("checks")
    if not isinstance(raw, list):
        raise LLMError("acceptance.checks must be a list of checks")
    checks = []
    for index, item in enumerate(raw):
        checked = _check_item(index, item)
        checks.extend(_questions.expand(checked) if checked["check"] == "exact_set" else [checked])
    if not any(item["check"] in ("exact", "nonce_recall") for item in checks):
        raise LLMError("acceptance.checks needs at least one 'exact' or 'nonce_recall' check: nothing else proves right answers")
    excluded = data.get("not_applicable") or []
    if not isinstance(excluded, list):
        raise LLMError("acceptance.not_applicable must be a list of checks with their reasons, not {0!r}".format(excluded))
    for index, item in enumerate(excluded):
        where = "acceptance.not_applicable[{0}]".format(index)
        if not isinstance(item, dict) or not item.get("check") or not item.get("reason"):
            raise LLMError("{0} must have the keys 'check' and 'reason'".format(where))
        _check_known(where, "unknown check", str(item["check"]), list(KINDS))
        for key in item:
            _check_known(where, "unknown key", str(key), list(_EXCLUDED))
    request = data.get("request") or {}
    if not isinstance(request, dict):
        raise LLMError("acceptance.request must be a mapping of members of a request body, not {0!r}".format(request))
    return Acceptance(
        checks,
        excluded,
        _number(data, "floor_decode_tokens_per_s", 5.0),
        _number(data, "ttft_limit_s", 10.0),
        _number(data, "exact_pass_share", 1.0),
        request,
    )


def _quote(text: str) -> str:
    return '"{0}"'.format(_http.one_line(text, 90))


def _status_stop(status: int, head: str) -> _Stop:
    """What an HTTP status other than 200 says about the replica."""
    said = "HTTP {0}: {1}".format(status, head or "no body")
    if status in (401, 403):
        return _Stop(_verdicts.NO_VERDICT, "the API key was refused, {0}".format(said))
    if status == 404:
        return _Stop(_verdicts.NOT_LOADED, said)
    if status == 429:
        return _Stop(_verdicts.SATURATED, said)
    if status == 503:
        return _Stop(_verdicts.NOT_LOADED if "loading" in head.lower() else _verdicts.SATURATED, said)
    if status == 504:
        return _Stop(_verdicts.STALLED, said)
    if status >= 500:
        return _Stop(_verdicts.DEAD, "it answers HTTP but can't infer, {0}".format(said))
    return _Stop(_verdicts.NO_VERDICT, said)


def _error_stop(exc: _http.HttpError) -> _Stop:
    """What a request without an answer says about the replica."""
    signs = {
        _http.REFUSED: _verdicts.DEAD,
        _http.RESET: _verdicts.DEAD,
        _http.CONNECT_TIMEOUT: _verdicts.SATURATED,
        _http.SILENT: _verdicts.STALLED,
        _http.TOTAL_TIMEOUT: _verdicts.STALLED,
    }
    return _Stop(signs.get(exc.kind, _verdicts.NO_VERDICT), str(exc))


def _text_trouble(item: dict, messages: list, answer: _sse.Transcript | Whole) -> str:
    """What the detectors find in an answer, in one line; empty when they find nothing."""
    prompt = " ".join(str(message.get("content") or "") for message in messages)
    findings = _quality.inspect(
        answer.content, answer.reasoning, answer.tool, prompt, str(item.get("language", "")), str(item.get("form", ""))
    )
    if not findings:
        return ""
    shown = "; ".join("{0}: {1}".format(finding.name, finding.detail) for finding in findings)
    return "{0}; it said {1}".format(shown, _quote(answer.content or answer.reasoning))


def _lost_text(item: dict, transcript: _sse.Transcript) -> str:
    """What is wrong when usage counts more tokens than the text can have had; empty when nothing is.

    Prose in English has four to five characters a token by every tokenizer of today. Nothing so sure can be said of other languages or of code.
    """
    count, size = transcript.completion_tokens or 0, len(transcript.content) + len(transcript.reasoning)
    if item.get("language") != "en" or item.get("form") or count < SPEED_TOKENS or size >= LEAST_CHARACTERS * count:
        return ""
    return "usage counts {0} tokens, yet only {1} characters of text came: text gets lost, or usage lies".format(count, size)


def _plain(text: str) -> str:
    """An answer without what may differ between two right ones: case, spaces, punctuation at the ends."""
    return " ".join(text.split()).strip(" .。!！*\"'").casefold()


@dataclasses.dataclass(frozen=True)
class _Given:
    """One answer to an exact question. ``expect`` holds the words as ``_words`` gives them, ``answer`` is as ``_plain`` gives it."""

    prompt: str
    expect: frozenset
    language: str
    answer: str
    after_load: str
    outcome: Outcome


def _words(expect: list) -> frozenset:
    return frozenset(str(word).casefold() for word in expect)


def _covers(words: frozenset, others: frozenset) -> bool:
    """Whether what says all of ``words`` says all of ``others``, too."""
    return all(any(contains(word, other) for word in words) for other in others)


def _at_odds(given: _Given, group: list) -> _Given | None:
    """Of ``group``, all with one right answer, one that shows that ``given`` was no answer to its question; None when there is none.

    Two questions in one language that expect different words are at odds. Across languages it takes a third: "Tokyo (东京)" is right in both.
    Where one expects all that the other does, and perhaps more, one answer may well serve both.
    """
    others = [
        other
        for other in group
        if other.prompt != given.prompt and not _covers(other.expect, given.expect) and not _covers(given.expect, other.expect)
    ]
    apart = {other.expect for other in others}
    return next((other for other in others if other.language == given.language or len(apart) > 1), None)


def _extra_seconds(item: dict) -> float:
    """What one check may take beyond the limits of a whole proof, because the recipe asks for something long."""
    if item["check"] == "concurrency":
        return float(item.get("seconds", _checks_load.SECONDS))
    if item["check"] == "long_context":
        return float(item.get("timeout_s", _checks_load.PATIENCE_S)) * len(item.get("depths", _checks_load.DEPTHS))
    if item["check"] == "cache_hit":
        return float(item.get("timeout_s", _checks_load.PATIENCE_S)) * item.get("times", 3)
    return 0.0


class Verifier:
    """Proves one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        acceptance: Acceptance,
        limits: Limits,
        bad_key: bool = False,
        closed_paths: tuple = (),
        abreast: int = 1,
        max_num_seqs: int = 0,
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._acceptance = acceptance
        self._limits = limits
        self._bad_key = bad_key
        self._closed_paths = closed_paths
        self._abreast = abreast
        self._max_num_seqs = max_num_seqs
        self._base = endpoint.url.rstrip("/")
        self._key = ""
        self._end = 0.0
        self._outcomes = []
        self._streams = []
        self._sampler = None
        self._speed = None
        self._ttft = None
        self._use = None
        self._answers = {}
        self._given = []
        self._todo = []
        self._after_load = ""
        self._context = 0
        self.metrics_at_start = {}

    def prove(self) -> Proof:
        """Run every check in order; never raises for what the endpoint did, only for a bug."""
        self._end = time.monotonic() + self._limits.total_s
        excluded = {(str(item["check"]), str(item.get("id", ""))) for item in self._acceptance.not_applicable}
        for item in self._acceptance.not_applicable:
            measured = " (measured: {0})".format(item["measured"]) if item.get("measured") else ""
            detail = _http.one_line(str(item["reason"]), 400) + measured
            self._add(str(item["check"]), str(item.get("id", "")), NOT_APPLICABLE, detail)
        kinds = [kind for kind in IMPLIED if kind not in [item["check"] for item in self._acceptance.checks]]
        todo = [{"check": kind} for kind in kinds] + self._acceptance.checks
        todo = [item for item in todo if (item["check"], str(item.get("id", ""))) not in excluded]
        todo.sort(key=lambda item: ORDER.index(_phase(item)))
        self._todo = todo
        self._end += sum(_extra_seconds(item) for item in todo)
        try:
            with self._stops_at({"check": "key"}):
                self._key = _http.read_key(self._endpoint.api_key_file)
                self._start_sampling([item for item in todo if item["check"] == "card_use"])
                self.metrics_at_start = self.metrics() if any(item["check"] == "counters" for item in todo) else {}
            for phase, items in itertools.groupby(todo, _phase):
                if phase in DEMANDING:
                    self._settle_exact()
                    if any(not outcome.good for outcome in self._outcomes):
                        break
                self._make(list(items), self._abreast if phase == QUESTION else 1)
            with self._stops_at({"check": "doors"}):
                self._check_doors()
        except _Stopped:
            pass
        proof = self._proof()
        if hasattr(self._sampler, "close"):
            self._sampler.close()
        return proof

    def _make(self, items: list, abreast: int) -> None:
        """Make the checks ``items``, ``abreast`` at a time, up to the first that stops the proof."""
        stopped = threading.Event()

        def make(item: dict) -> None:
            if stopped.is_set():
                return
            try:
                with self._stops_at(item):
                    self._run(item)
            except BaseException:
                stopped.set()
                raise

        first = len(self._outcomes)
        with concurrent.futures.ThreadPoolExecutor(max_workers=abreast) as pool:
            made = [pool.submit(make, item) for item in items]
        # In the order of the recipe, whichever answer came first; what belongs to no check of it comes last.
        place = {(item["check"], str(item.get("id", ""))): number for number, item in reversed(list(enumerate(items)))}
        self._outcomes[first:] = sorted(self._outcomes[first:], key=lambda found: place.get((found.check, found.id), len(items)))
        for future in made:
            future.result()

    @contextlib.contextmanager
    def _stops_at(self, item: dict) -> Iterator[None]:
        """Note what ended the check ``item``, and that the proof goes no further."""
        try:
            yield
            return
        except _Stop as exc:
            stop = exc
        except _http.HttpError as exc:
            stop = _error_stop(exc)
        except LLMError as exc:
            stop = _Stop(_verdicts.NO_VERDICT, str(exc))
        stop = self._reconsider(stop)
        status = UNKNOWN if stop.sign == _verdicts.NO_VERDICT else FAIL
        self._add(item["check"], str(item.get("id", "")), status, stop.detail, stop.sign, str(item.get("language", "")))
        self._add_death_evidence(stop.sign)
        raise _Stopped

    def _run(self, item: dict) -> None:
        kind = item["check"]
        if kind in _MORE:
            self._found(item, _MORE[kind](self, item))
        elif kind != "agreement":
            # Agreement is judged when all replicas have answered.
            getattr(self, "_check_" + kind)(item)

    def _found(self, item: dict, found: Found) -> None:
        if found.status:
            sign = found.sign if found.status in (FAIL, UNKNOWN) else ""
            self._add(
                item["check"], str(item.get("id", "")), found.status, found.trouble or found.good, sign, str(item.get("language", ""))
            )
        else:
            self._result(item, found.trouble, found.good, found.sign, found.figure, found.unit)

    def _ask_again(self) -> None:
        """Ask everything once more after the load; what was right before and is wrong now is partial."""
        load = self._outcomes[-1]
        self._after_load = "after {0:.0f} requests at once: ".format(load.figure) if load.good and load.figure else "after the load: "
        for item in self._todo:
            if item["check"] not in _AGAIN:
                continue
            start = len(self._outcomes)
            try:
                self._run(item)
            except _Stop as stop:
                if stop.sign != _verdicts.GARBAGE:
                    raise
                self._add(item["check"], str(item.get("id", "")), FAIL, stop.detail, stop.sign, str(item.get("language", "")))
            for outcome in self._outcomes[start:]:
                outcome.id = "{0} after_load".format(outcome.id).strip()
                if outcome.status == FAIL:
                    # The words that let a recipe forgive a wrong answer must not begin the line: it was right before.
                    outcome.detail = "right before, wrong {0}{1}".format(self._after_load, outcome.detail)
                    outcome.sign = _verdicts.PARTIAL if outcome.sign == _verdicts.GARBAGE else outcome.sign
        self._after_load = ""

    def _reconsider(self, stop: _Stop) -> _Stop:
        """Tell hung from busy, and slow from stalled, by the engine's own counters and by the cards."""
        if stop.sign not in (_verdicts.STALLED, _verdicts.SLOW):
            return stop
        before = self.metrics()
        until = time.monotonic() + min(self._limits.progress_s, max(0.0, self._end - time.monotonic()))
        after = before
        while _engine_metrics.RUNNING in before and time.monotonic() < until:
            time.sleep(0.1)
            after = self.metrics()
            if _engine_metrics.progress(before, after):
                break
        load, moved = _engine_metrics.load(after), _engine_metrics.progress(before, after)
        busy = after.get(_engine_metrics.WAITING, 0) > 0 or (stop.sign == _verdicts.STALLED and after.get(_engine_metrics.RUNNING, 0) > 0)
        if moved and busy:
            detail = "{0}; {1}, and it works for them: busy, not hung".format(stop.detail, load)
            return _Stop(_verdicts.SATURATED, detail)
        detail = stop.detail
        if load:
            detail += "; {0}, and its counters {1}".format(load, "move" if moved else "stand still")
        use = self._idle_percent()
        if use is not None and stop.sign == _verdicts.SLOW:
            return _Stop(_verdicts.STALLED, "{0}, with the cards {1:.1f} % busy: it waits for something else than work".format(detail, use))
        return _Stop(stop.sign, detail)

    def _idle_percent(self) -> float | None:
        """Use of the cards since the proof began when that is nothing; None when they worked or can't be read."""
        if self._sampler is None:
            return None
        try:
            use = self._sampler.percent()
        except LLMError:
            return None
        floors = [item.get("floor_pct", CARD_FLOOR_PCT) for item in self._acceptance.checks if item["check"] == "card_use"]
        return use if use < float((floors or [CARD_FLOOR_PCT])[0]) else None

    @property
    def answers(self) -> dict:
        """Answers to exact questions, by question, as ``_plain`` gives them."""
        return dict(self._answers)

    def compared(self, control: dict, least: float) -> Proof:
        """The proof once the answers were compared with those of ``control``, which most replicas gave."""
        common = [name for name in self._answers if name in control]
        if common:
            equal = [name for name in common if self._answers[name] == control[name]]
            share = len(equal) / len(common)
            said = "{0} of {1} answers equal to those of the other replicas".format(len(equal), len(common))
            other = [name for name in common if name not in equal]
            if other:
                said += "; {0}: {1}, elsewhere {2}".format(other[0], _quote(self._answers[other[0]]), _quote(control[other[0]]))
            trouble = "{0}, the least share is {1:.0%}".format(said, least) if share < least else ""
            self._result({"check": "agreement"}, trouble, said, _verdicts.PARTIAL, round(100 * share, 1), "percent")
        return self._proof()

    def _proof(self) -> Proof:
        self._settle_exact()
        verdict = _verdicts.judge(self._outcomes)
        good = verdict == _verdicts.OK
        lines = _verdicts.evidence(self._outcomes)
        if not good and self._sampler is not None:
            try:
                lines.append("the cards were {0:.0f} % busy meanwhile".format(self._sampler.percent()))
            except LLMError as exc:
                lines.append("card use unknown: {0}".format(exc))
        return Proof(
            self._endpoint.name,
            self._endpoint.url,
            verdict,
            lines,
            _verdicts.next_step(verdict),
            [outcome.as_dict() for outcome in self._outcomes],
            round(self._ttft * 1000.0, 1) if good and self._ttft is not None else None,
            round(self._speed, 2) if good and self._speed is not None else None,
            round(self._use, 1) if good and self._use is not None else None,
        )

    def _add(
        self,
        check: str,
        ident: str,
        status: str,
        detail: str,
        sign: str = "",
        language: str = "",
        figure: float | None = None,
        unit: str = "",
    ) -> Outcome:
        outcome = Outcome(check, ident, status, detail, sign, language, figure, unit)
        self._outcomes.append(outcome)
        return outcome

    def _result(
        self, item: dict, trouble: str, good: str, sign: str = _verdicts.GARBAGE, figure: float | None = None, unit: str = ""
    ) -> Outcome:
        """Add the outcome of ``item``: failed with ``trouble`` if there is any, else passed with ``good``."""
        status = FAIL if trouble else PASS
        return self._add(
            item["check"],
            str(item.get("id", "")),
            status,
            trouble or good,
            sign if trouble else "",
            str(item.get("language", "")),
            figure,
            unit,
        )

    def _refuse_canned(self) -> None:
        """Fail the exact questions that passed with one answer although they are about different things."""
        # Where answers are the same before and after the load, each time is judged by itself.
        groups = {}
        for given in self._given:
            if given.outcome.status == PASS:
                groups.setdefault((given.after_load, given.answer), []).append(given)
        for (after_load, answer), group in groups.items():
            for given in group:
                other = _at_odds(given, group)
                if other is None:
                    continue
                trouble = 'one answer to different questions, as to "{0}" (which expects "{1}"): canned, it said {2}'.format(
                    _http.one_line(other.prompt, 60), '", "'.join(sorted(other.expect)), _quote(answer)
                )
                given.outcome.status = FAIL
                given.outcome.detail = "right before, wrong {0}{1}".format(after_load, trouble) if after_load else trouble
                given.outcome.sign = _verdicts.PARTIAL if after_load else _verdicts.GARBAGE

    def _settle_exact(self) -> None:
        """Forgive as many wrong exact answers as the recipe allows; never one with a hard finding, a wrong nonce or a canned answer."""
        self._refuse_canned()
        exact = [outcome for outcome in self._outcomes if outcome.check == "exact"]
        passed = [outcome for outcome in exact if outcome.status == PASS]
        if len(passed) < len(exact) and len(passed) >= self._acceptance.exact_pass_share * len(exact):
            for outcome in exact:
                if outcome.status == FAIL and outcome.detail.startswith("expected "):
                    outcome.status, outcome.sign = WARN, ""

    def _add_death_evidence(self, sign: str) -> None:
        if sign != _verdicts.DEAD or not self._endpoint.container:
            return
        try:
            from ansible_collections.ironserve.llm.plugins.module_utils import _docker

            state = _docker.container_state(self._endpoint.container)
        except LLMError as exc:
            self._add("container", "", UNKNOWN, str(exc), _verdicts.NO_VERDICT)
            return
        if not state["running"]:
            log = _log_messages.mask(str(state["log_tail"]), [self._key] if self._key else [])
            last = [line for line in log.splitlines() if line.strip()][-3:]
            detail = "container {0} exited with code {1}; its log ends: {2}".format(
                self._endpoint.container, state["exit_code"], " | ".join(last) or "empty"
            )
            self._add("container", "", FAIL, detail, _verdicts.DEAD)

    @property
    def model(self) -> str:
        """The name under which the model is asked for."""
        return self._model

    @property
    def key(self) -> str:
        """The API key; empty when none is used."""
        return self._key

    @property
    def max_num_seqs(self) -> int:
        """How many requests run here at a time by the plan; 0 when nobody said."""
        return self._max_num_seqs

    @property
    def tools(self) -> bool:
        """Whether the model is to call tools, by its recipe."""
        return any(item["check"] == "tool_loop" for item in self._todo)

    def context(self) -> int:
        """The longest context the engine says it takes, tokens; 0 when it does not say."""
        return self._context

    def get(self, path: str) -> _http.Reply:
        """GET ``path`` with the key."""
        return _http.request("GET", self._base + path, self._key, None, self._deadlines())

    def post(self, body: object, key: str | None = None) -> _http.Reply:
        """Ask for a chat completion with any body, and with another key if ``key`` is given; whatever the status."""
        return _http.request("POST", self._base + "/v1/chat/completions", self._key if key is None else key, body, self._deadlines())

    def metrics(self) -> dict:
        """What the engine says of itself, as ``_engine_metrics`` reads it; empty where it says nothing."""
        try:
            reply = self.get("/metrics")
        except (_http.HttpError, _Stop):
            return {}
        return _engine_metrics.read(reply.text()) if reply.status == 200 else {}

    def open(self, messages: list, max_tokens: int) -> _http.Stream:
        """Open the stream of an answer. Raises _Stop for any status but 200."""
        body = self._body(messages, max_tokens, True)
        stream = _http.open_stream("POST", self._base + "/v1/chat/completions", self._key, body, self._deadlines())
        if stream.status != 200:
            with stream:
                raise _status_stop(stream.status, _http.one_line(b"".join(chunk for _at, chunk in stream).decode("utf-8", "replace")))
        return stream

    def ask(self, messages: list, max_tokens: int, extra: dict | None = None, patience_s: float = 0.0) -> _sse.Transcript:
        """Ask as a stream. Raises _Stop for everything that is no answer."""
        return self._ask(messages, max_tokens, extra, patience_s)

    def whole(self, messages: list, max_tokens: int, extra: dict | None = None, patience_s: float = 0.0) -> Whole:
        """Ask for an answer in one piece. Raises _Stop for everything that is no answer."""
        return self._whole(_http.request, self._body(messages, max_tokens, False, extra), patience_s)

    def on_one_connection(self, questions: list, max_tokens: int) -> tuple[list[Whole], int]:
        """Ask each of ``questions`` over one connection; returns the answers, and how many connections were needed. Raises as ``whole``."""
        with _http.KeptConnection() as kept:
            answers = [self._whole(kept.request, self._body(messages, max_tokens, False), 0.0) for messages in questions]
            return answers, kept.opened()

    def _whole(self, send: Callable[..., _http.Reply], body: dict, patience_s: float) -> Whole:
        url = self._base + "/v1/chat/completions"
        reply = send("POST", url, self._key, body, self._deadlines(patience_s or self._limits.request_s))
        if reply.status != 200:
            raise _status_stop(reply.status, reply.head())
        found = read_whole(reply.json(url))
        if found is None:
            raise _Stop(_verdicts.GARBAGE, "HTTP 200 without choices[0].message: {0}".format(reply.head()))
        return found

    def text_trouble(self, item: dict, messages: list, answer: _sse.Transcript | Whole, max_tokens: int) -> str:
        """What is wrong with the form and text of an answer, in one line; empty when nothing is."""
        if isinstance(answer, _sse.Transcript):
            return self._judge_text(item, messages, answer, max_tokens)[1]
        return _text_trouble(item, messages, answer)

    def _deadlines(self, silence_s: float = 0.0) -> _http.Deadlines:
        left = self._end - time.monotonic()
        if left <= 0:
            raise _Stop(_verdicts.NO_VERDICT, "the proof was not complete after {0:g} s".format(self._limits.total_s))
        if silence_s:
            return _http.Deadlines(3.0, silence_s, min(max(self._limits.request_s, silence_s), left))
        return _http.Deadlines(3.0, self._limits.first_token_s, min(self._limits.request_s, left))

    def _body(self, messages: list, max_tokens: int, stream: bool, extra: dict | None = None) -> dict:
        body = dict(self._acceptance.request)
        body.update(extra or {})
        body.update(model=self._model, messages=messages, temperature=0, max_tokens=max_tokens, stream=stream)
        if stream:
            body["stream_options"] = {"include_usage": True}
        return body

    def _slow_stop(self, transcript: _sse.Transcript, now: float) -> _Stop:
        count = transcript.token_events
        rate = transcript.events_per_s(now) if count > 2 else count / (now - transcript.sent_at)
        floor = self._acceptance.floor_decode_tokens_per_s
        detail = "{0:.2g} tokens/s ({1} tokens in {2:.1f} s), the floor is {3:g} tokens/s".format(
            rate, count, now - transcript.sent_at, floor
        )
        return _Stop(_verdicts.SLOW, detail)

    def _cut_stop(self, transcript: _sse.Transcript, exc: _http.HttpError, max_tokens: int) -> _Stop:
        """What it means that a stream broke off, by what had arrived until then."""
        count = transcript.token_events
        if not count or exc.kind == _http.RESET:
            stop = _error_stop(exc)
            return _Stop(stop.sign, "{0}; {1} tokens until then".format(stop.detail, count))
        now = time.monotonic()
        if exc.kind == _http.SILENT:
            return _Stop(_verdicts.STALLED, "{0}; it stopped after {1} tokens".format(exc, count))
        if exc.kind == _http.TOTAL_TIMEOUT:
            if count > max_tokens:
                return _Stop(_verdicts.GARBAGE, "it sent {0} pieces and did not end, max_tokens was {1}".format(count, max_tokens))
            return self._late_stop(transcript, exc, now, max_tokens)
        return _error_stop(exc)

    def _late_stop(self, transcript: _sse.Transcript, exc: _http.HttpError, now: float, max_tokens: int) -> _Stop:
        """What it means that an answer was not complete when its time was up: slow only where a limit of speed is broken."""
        count, floor, limit = transcript.token_events, self._acceptance.floor_decode_tokens_per_s, self._acceptance.ttft_limit_s
        silence = now - transcript.last_token_at
        if count > 2 and silence > max(self._limits.slow_window_s, (now - transcript.sent_at) / 2):
            return _Stop(_verdicts.STALLED, "{0}; it stopped after {1} tokens, {2:.1f} s before".format(exc, count, silence))
        rate = transcript.events_per_s(now) if count > 2 else count / (now - transcript.sent_at)
        if rate < floor:
            return self._slow_stop(transcript, now)
        said = "{0}; {1} pieces of text came, {2:.2g} a second".format(exc, count, rate)
        if transcript.ttft_s > limit:
            return _Stop(_verdicts.SLOW, "{0}, the first after {1:.2f} s, the limit is {2:g} s".format(said, transcript.ttft_s, limit))
        return _Stop(
            _verdicts.NO_VERDICT,
            "{0}, and the floor of {1:g} tokens/s is not broken: the time is too short for {2} tokens; raise request_s, or lower "
            "this check's max_tokens".format(said, floor, max_tokens),
        )

    def _hopeless(self, transcript: _sse.Transcript, at: float) -> bool:
        first = transcript.ttft_s
        if first is None or at - transcript.sent_at - first < self._limits.slow_window_s:
            return False
        rate = transcript.events_per_s(at)
        return rate is not None and rate * BURST < self._acceptance.floor_decode_tokens_per_s

    def _ask(self, messages: list, max_tokens: int, extra: dict | None = None, patience_s: float = 0.0) -> _sse.Transcript:
        """Ask as a stream. Raises _Stop for everything that is no answer."""
        url = self._base + "/v1/chat/completions"
        deadlines = self._deadlines(patience_s)
        body = self._body(messages, max_tokens, True, extra)
        with _http.open_stream("POST", url, self._key, body, deadlines) as stream:
            if stream.status != 200:
                raise _status_stop(stream.status, _http.one_line(b"".join(chunk for _at, chunk in stream).decode("utf-8", "replace")))
            transcript = _sse.Transcript(stream.sent_at)
            try:
                for at, chunk in stream:
                    transcript.feed(at, chunk)
                    if self._hopeless(transcript, at):
                        raise self._slow_stop(transcript, at)
                    if transcript.done or transcript.error:
                        # Some servers leave the connection open after their last word.
                        break
            except _http.HttpError as exc:
                if not transcript.error:
                    raise self._cut_stop(transcript, exc, max_tokens) from None
            transcript.close(time.monotonic())
        if transcript.error:
            raise _Stop(_verdicts.DEAD, "an error came inside the stream: {0}".format(_http.one_line(transcript.error)))
        if not transcript.events:
            raise _Stop(_verdicts.GARBAGE, "HTTP 200 without one event of a stream ({0})".format(stream.content_type or "no content type"))
        return transcript

    def _form_trouble(self, transcript: _sse.Transcript, max_tokens: int) -> tuple[str, str]:
        """Faults of a stream's form: ``(sign, detail)``, or two empty strings."""
        if transcript.malformed:
            return _verdicts.GARBAGE, "an event is no JSON object: {0}".format(_quote(transcript.malformed[0]))
        if not transcript.finish and not transcript.done:
            return _verdicts.DEAD, "the stream ended in the middle, after {0} tokens".format(transcript.token_events)
        if not transcript.done:
            return _verdicts.PARTIAL, "the stream has no [DONE] at its end"
        count = transcript.completion_tokens
        if count is not None and count < transcript.token_events - 1:
            return _verdicts.PARTIAL, "usage says {0} tokens but {1} pieces of text came".format(count, transcript.token_events)
        if max(count or 0, transcript.token_events) > max_tokens + 1:
            return _verdicts.PARTIAL, "it made {0} tokens, max_tokens was {1}".format(max(count or 0, transcript.token_events), max_tokens)
        return "", ""

    def _judge_text(self, item: dict, messages: list, transcript: _sse.Transcript, max_tokens: int) -> tuple[str, str]:
        sign, detail = self._form_trouble(transcript, max_tokens)
        if detail:
            return sign, detail
        trouble = _text_trouble(item, messages, transcript)
        return (_verdicts.GARBAGE, trouble) if trouble else ("", "")

    def _start_sampling(self, wanted: list) -> None:
        if not wanted:
            return
        try:
            self._sampler = _card_use.sampler(
                self._endpoint.platform, self._endpoint.container, list(self._endpoint.cards), self._endpoint.tools
            )
        except _card_use.NoSampler as exc:
            # A replica whose card cannot be seen working has not proved that the card works: unknown is never ok.
            if self._endpoint.container:
                self._add("card_use", "", UNKNOWN, "card use unknown: {0}".format(exc), _verdicts.NO_VERDICT)
            else:
                self._add("card_use", "", NOT_APPLICABLE, "card use unknown: {0}".format(exc))
        except LLMError as exc:
            self._add("card_use", "", UNKNOWN, "card use unknown: {0}".format(exc), _verdicts.NO_VERDICT)

    def _check_models(self, _item: dict) -> None:
        url = self._base + "/v1/models"
        reply = _http.request("GET", url, self._key, None, self._deadlines())
        if reply.status != 200:
            raise _status_stop(reply.status, reply.head())
        body = reply.json(url)
        data = body.get("data") if isinstance(body, dict) else None
        entries = [entry for entry in _list(data) if isinstance(entry, dict)]
        # llama.cpp lists a model once, with its other names beside.
        cards = [(entry, [str(entry.get("id")), *map(str, _list(entry.get("aliases")))]) for entry in entries]
        ours = [entry for entry, names in cards if self._model in names]
        if not ours:
            served = ", ".join(name for _entry, names in cards for name in names) or "none"
            raise _Stop(_verdicts.NOT_LOADED, 'the served models are {0}, not "{1}"'.format(served, self._model))
        limit = ours[0].get("max_model_len")
        self._context = limit if isinstance(limit, int) and not isinstance(limit, bool) else 0
        self._add("models", "", PASS, 'serves "{0}"'.format(self._model))

    def _check_exact(self, item: dict) -> None:
        messages = [{"role": "user", "content": item["prompt"]}]
        max_tokens = item.get("max_tokens", 24)
        transcript = self._ask(messages, max_tokens)
        sign, trouble = self._judge_text(item, messages, transcript, max_tokens)
        missing = [str(word) for word in item["expect"] if not contains(transcript.content, str(word))]
        said = "said {0}".format(_quote(transcript.content))
        plain = _plain(transcript.content)
        self._answers.setdefault(str(item.get("id") or item["prompt"]), plain)
        if not trouble and missing:
            sign, trouble = _verdicts.GARBAGE, 'expected "{0}", it {1}'.format('", "'.join(missing), said)
        if not trouble and item.get("finish") and transcript.finish != item["finish"]:
            sign, trouble = (
                _verdicts.GARBAGE,
                'expected finish reason "{0}", got "{1}", it {2}'.format(item["finish"], transcript.finish, said),
            )
        outcome = self._result(item, trouble, said, sign)
        self._given.append(_Given(item["prompt"], _words(item["expect"]), str(item.get("language", "")), plain, self._after_load, outcome))

    def _check_nonce_recall(self, item: dict) -> None:
        digits = item.get("digits", 6)
        shots = [str(shot) for shot in item.get("shots", [])]
        prompt, answer = item.get("prompt", NONCE_PROMPT), item.get("answer", "{nonce}")
        nonce = ""
        while not nonce or nonce in shots:
            nonce = str(10 ** (digits - 1) + secrets.randbelow(9 * 10 ** (digits - 1)))
        messages = []
        for shot in shots:
            messages.append({"role": "user", "content": prompt.replace("{nonce}", shot)})
            messages.append({"role": "assistant", "content": answer.replace("{nonce}", shot)})
        messages.append({"role": "user", "content": prompt.replace("{nonce}", nonce)})
        max_tokens = item.get("max_tokens", 24)
        transcript = self._ask(messages, max_tokens)
        sign, trouble = self._judge_text(item, messages, transcript, max_tokens)
        if not trouble and not contains(transcript.content, nonce):
            sign = _verdicts.GARBAGE
            trouble = "this run's code {0} did not come back, it said {1} (canned, cached or wrong)".format(
                nonce, _quote(transcript.content)
            )
        self._result(item, trouble, "gave back this run's code {0}".format(nonce), sign)

    def _check_quality(self, item: dict) -> None:
        messages = [{"role": "user", "content": item["prompt"]}]
        max_tokens = item.get("max_tokens", 128)
        transcript = self._ask(messages, max_tokens)
        self._streams.append(transcript)
        sign, trouble = self._judge_text(item, messages, transcript, max_tokens)
        if not trouble:
            sign, trouble = _verdicts.PARTIAL, _lost_text(item, transcript)
        if not trouble and _quality.weight(transcript.content) < _quality.LONG_TEXT:
            sign = _verdicts.GARBAGE
            trouble = "only {0} characters, too few to judge, it said {1}".format(len(transcript.content), _quote(transcript.content))
        self._result(item, trouble, "{0} characters, no finding".format(len(transcript.content)), sign)

    def _check_stream_equals_unary(self, item: dict) -> None:
        messages = [{"role": "user", "content": item["prompt"]}]
        max_tokens = item.get("max_tokens", 24)
        transcript = self._ask(messages, max_tokens)
        sign, trouble = self._judge_text(item, messages, transcript, max_tokens)
        text = self.whole(messages, max_tokens).content
        if not trouble and text != transcript.content:
            sign, trouble = _verdicts.PARTIAL, "streamed {0}, whole {1}".format(_quote(transcript.content), _quote(text))
        self._result(item, trouble, "both ways {0}".format(_quote(text)), sign)

    def _check_speed(self, item: dict) -> None:
        if item.get("prompt"):
            messages = [{"role": "user", "content": item["prompt"]}]
            self._streams = [self._ask(messages, item.get("max_tokens", 128))]
        measured = [stream for stream in self._streams if (stream.completion_tokens or 0) >= SPEED_TOKENS]
        if not measured:
            detail = "no answer of {0} or more tokens with a usage count to measure: add a quality check".format(SPEED_TOKENS)
            raise _Stop(_verdicts.NO_VERDICT, detail)
        stream = max(measured, key=lambda found: found.completion_tokens)
        # In one burst there is no decode span; the whole time is then a lower bound of the speed.
        rate = stream.decode_tokens_per_s or stream.completion_tokens / stream.e2e_s
        floor, limit = self._acceptance.floor_decode_tokens_per_s, self._acceptance.ttft_limit_s
        trouble = ""
        if rate < floor:
            trouble = "{0:.2g} tokens/s, the floor is {1:g} tokens/s".format(rate, floor)
        elif stream.ttft_s > limit:
            trouble = "first token after {0:.2f} s, the limit is {1:g} s".format(stream.ttft_s, limit)
        self._speed, self._ttft = rate, stream.ttft_s
        good = "{0:.1f} tokens/s over {1} tokens, first token after {2:.2f} s".format(rate, stream.completion_tokens, stream.ttft_s)
        self._result(item, trouble, good, _verdicts.SLOW, round(rate, 3), "tokens/s")

    def _check_concurrency(self, item: dict) -> None:
        try:
            found = _checks_load.concurrency(self, item)
        except (_Stop, _http.HttpError) as exc:
            stop = exc if isinstance(exc, _Stop) else _error_stop(exc)
            detail = "with {0} at once: {1}".format(_checks_load.streams_of(self, item), stop.detail)
            if stop.sign != _verdicts.GARBAGE:
                raise _Stop(stop.sign, detail) from None
            found = Found("right alone, wrong {0}".format(detail))
        self._found(item, found)
        if found.status != UNKNOWN:
            self._ask_again()

    def _check_prefix_cache(self, item: dict) -> None:
        """Ask the same long thing three times; it begins with a code of this run, so only the first time is without the cache."""
        if not self._endpoint.cards:
            detail = "several replicas may answer here, each with a cache of its own"
            self._add(item["check"], str(item.get("id", "")), NOT_APPLICABLE, detail)
            return
        lines = ["Report {0} on the weather.".format(secrets.token_hex(8))]
        lines += [
            "Station {0} saw {1} days of rain and {2} of sun.".format(n, n * 7 % 31, n * 11 % 29)
            for n in range(item.get("lines", PREFIX_LINES))
        ]
        messages = [{"role": "user", "content": "\n".join(lines + ["What is this report about?"])}]
        waits = []
        for _turn in range(3):
            transcript = self._ask(messages, 4)
            if transcript.ttft_s is None:
                raise _Stop(_verdicts.GARBAGE, "no token came for a prompt of {0} lines".format(len(lines) + 1))
            waits.append(transcript.ttft_s)
        cold, warm, factor = waits[0], min(waits[1:]), float(item.get("factor", PREFIX_FACTOR))
        said = "first token after {0:.2f} s without and {1:.2f} s with its prefix cached".format(cold, warm)
        trouble = "" if warm * factor <= cold else "{0}, the least gain is {1:g} times".format(said, factor)
        self._result(item, trouble, said, _verdicts.PARTIAL, round(cold / warm, 1), "times")

    def _check_card_use(self, item: dict) -> None:
        if self._sampler is None:
            return
        use = self._sampler.percent()
        floor = float(item.get("floor_pct", CARD_FLOOR_PCT))
        trouble = ""
        if use < floor:
            trouble = "answers came, yet this replica's cards were only {0:.1f} % busy (floor {1:g} %)".format(use, floor)
            trouble += ": does another engine answer on this port?"
        self._use = use
        self._result(item, trouble, "{0:.0f} % of its cards".format(use), _verdicts.NO_VERDICT, round(use, 1), "percent")

    def _check_doors(self) -> None:
        if self._bad_key:
            for key, told in (("not-a-key-" + secrets.token_hex(8), "a wrong key"), ("", "no key")):
                reply = _http.request("GET", self._base + "/v1/models", key, None, self._deadlines())
                trouble = "" if reply.status == 401 else "{0} got HTTP {1}, not 401".format(told, reply.status)
                self._result(
                    {"check": "bad_key", "id": told.replace(" ", "_")}, trouble, "{0} got HTTP 401".format(told), _verdicts.PARTIAL
                )
        for path in self._closed_paths:
            reply = _http.request("GET", self._base + path, self._key, None, self._deadlines())
            trouble = "" if reply.status == 404 else "HTTP {0}, not 404: this path must be closed".format(reply.status)
            self._result({"check": "closed_path", "id": path}, trouble, "HTTP 404", _verdicts.PARTIAL)


def prove_all(
    endpoints: list[Endpoint],
    model: str,
    acceptance: Acceptance,
    limits: Limits,
    parallel: int = 0,
    bad_key: bool = False,
    closed_paths: tuple = (),
    abreast: int = 1,
    max_num_seqs: int = 0,
) -> list[Proof]:
    """Prove every endpoint, ``parallel`` at a time (0: all at once), each with ``abreast`` questions at the same time.

    ``max_num_seqs`` is how many requests each runs at a time, 0 when nobody knows. The proofs come in the order of ``endpoints``.
    """
    if not endpoints:
        return []
    verifiers = [Verifier(endpoint, model, acceptance, limits, bad_key, closed_paths, abreast, max_num_seqs) for endpoint in endpoints]
    with concurrent.futures.ThreadPoolExecutor(max_workers=parallel or len(verifiers)) as pool:
        proofs = list(pool.map(Verifier.prove, verifiers))
    wanted = [item for item in acceptance.checks if item["check"] == "agreement"]
    return _agreement(verifiers, proofs, float(wanted[0].get("least", AGREEMENT))) if wanted else proofs


def _agreement(verifiers: list[Verifier], proofs: list[Proof], least: float) -> list[Proof]:
    """Compare the replicas that are ok by themselves, each with the answer that most of them gave; the first decides a tie."""
    good = [verifier for verifier, proof in zip(verifiers, proofs) if proof.ok]
    if len(good) < 2:
        return proofs
    control = {}
    for name in good[0].answers:
        given = [verifier.answers[name] for verifier in good if name in verifier.answers]
        control[name] = max(given, key=given.count)
    return [verifier.compared(control, least) if verifier in good else proof for verifier, proof in zip(verifiers, proofs)]


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def table(proofs: list[Proof]) -> list[str]:
    """The lines a person reads: one per endpoint, and below a failed one its evidence and next step."""
    width = max([len(proof.name) for proof in proofs] + [len("replica")])
    row = "{0:<" + str(width) + "}  {1:<10}  {2:>8}  {3:>12}  {4:>8}  {5}"
    lines = [row.format("replica", "verdict", "ttft ms", "tokens/s", "card use", "checks")]
    for proof in proofs:
        counts = {}
        for check in proof.checks:
            counts[check["status"]] = counts.get(check["status"], 0) + 1
        shown = ", ".join("{0} {1}".format(counts[status], status.replace("_", " ")) for status in sorted(counts))
        figures = (
            _figure(proof.ttft_ms, "{0:.0f}"),
            _figure(proof.decode_tokens_per_s, "{0:.1f}"),
            _figure(proof.card_use_pct, "{0:.0f} %"),
        )
        lines.append(row.format(proof.name, proof.verdict, figures[0], figures[1], figures[2], shown))
        if not proof.ok:
            lines.extend("  because  {0}".format(line) for line in proof.evidence)
            lines.append("  next     {0}".format(proof.next_step))
    return lines
