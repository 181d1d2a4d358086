# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every animal of the zoo: a fault with the verdict and evidence that a proof must give it, or a healthy oddity that must pass.

One check list for all of them. Times are scaled: a token in 1 ms is fast here, one in 300 ms is the 17 s of the field, and the
list's limits are scaled alike.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable

from faults.engines.scripted import PROSE, PROSE_ZH

from .engine import CUT, DIE, DONE, HANG, Behaviour, Play, codes

#: What every animal is asked. Options of an animal add to it.
CHECKS = [
    {"check": "models"},
    {"check": "exact_set", "max_tokens": 64},
    {"check": "stream_equals_unary", "id": "england", "language": "en", "prompt": "What is the capital of England?"},
    {"check": "quality", "id": "bread", "language": "en", "prompt": "Tell me about bread."},
    {"check": "quality", "id": "bread_zh", "language": "zh", "prompt": "请介绍面包的历史。"},
    {"check": "multi_turn", "id": "en", "language": "en", "turns": 8},
    {"check": "multi_turn", "id": "zh", "language": "zh", "turns": 4},
    {"check": "tool_loop"},
    {"check": "system_message"},
    {"check": "kept_connection"},
    {"check": "json_schema"},
    {"check": "stop"},
    {"check": "max_tokens"},
    {"check": "errors"},
    {"check": "speed"},
    {"check": "cache_hit", "tokens": 1500, "timeout_s": 2},
    {"check": "long_context", "tokens": 6000, "timeout_s": 2},
    {"check": "cancel", "release_s": 0.4, "max_tokens": 4096},
    {"check": "concurrency", "seconds": 0.4},
    {"check": "counters"},
    {"check": "card_use"},
]
FLOOR = 50
TTFT_LIMIT_S = 0.6
#: The limits of one proof: first token or silence, one request, all, how long a hopeless stream is watched, and how long an engine may take to
#: show that it works for others; seconds.
LIMITS = {"first_token_s": 1.5, "request_s": 4.0, "total_s": 60.0, "slow_window_s": 0.4, "progress_s": 0.5}
KEY = "key-of-the-zoo"


@dataclasses.dataclass(frozen=True)
class Animal:
    """One entry.

    Attributes:
        name: ``snake_case``.
        about: what a person sees, one line.
        verdict: what the proof must say.
        evidence: the line that must be in the evidence; ``…`` stands for any text.
        make: makes its behaviour.
        options: command line of the stand-in below.
        checks: checks it is asked besides.
        cards_pct: what its cards show; None when it has none to show.
        seen: where it was met, empty for what follows from the interface.
        prepare: done to the running zoo before the proof.
        request: members of every request, as a recipe may have them.
    """

    name: str
    about: str
    verdict: str
    evidence: str = ""
    make: Callable[[], Behaviour] = Behaviour
    options: tuple = ()
    checks: tuple = ()
    cards_pct: float | None = None
    seen: str = ""
    prepare: Callable | None = None
    request: dict = dataclasses.field(default_factory=dict)

    def acceptance(self) -> dict:
        """The check list of this animal."""
        checks = copy.deepcopy(CHECKS) + [dict(item) for item in self.checks]
        own = {(item["check"], item.get("id", "")) for item in self.checks}
        kept = [item for item in checks[: len(CHECKS)] if (item["check"], item.get("id", "")) not in own] + checks[len(CHECKS) :]
        return {"floor_decode_tokens_per_s": FLOOR, "ttft_limit_s": TTFT_LIMIT_S, "checks": kept, "request": dict(self.request)}

    def shows(self, lines: list[str]) -> bool:
        """Whether its evidence is in ``lines``."""
        pattern = ".*".join(re.escape(part) for part in self.evidence.split("…"))
        return any(re.search(pattern, line) for line in lines)


def always(_play: Play) -> bool:
    """Every request."""
    return True


# ---- behaviours, each a few lines


class Says(Behaviour):
    """Answers one text whenever ``when``."""

    def __init__(self, text: str | Callable[[Play], str], when: Callable[[Play], bool] = always) -> None:
        super().__init__()
        self._text, self._when = text, when

    def asked(self, play: Play) -> None:
        """Change what is said."""
        if self._when(play):
            play.say(self._text if isinstance(self._text, str) else self._text(play))


class Instead(Behaviour):
    """Something else than an answer whenever ``when``."""

    def __init__(self, what: object, when: Callable[[Play], bool] = always) -> None:
        super().__init__()
        self._what, self._when = what, when

    def asked(self, play: Play) -> object | None:
        """Give it."""
        return self._what if self._when(play) else None


class Http(Behaviour):
    """Something else on a path."""

    def __init__(self, path: str, what: object) -> None:
        super().__init__()
        self._path, self._what = path, what

    def http(self, method: str, path: str, headers: dict) -> object | None:
        """Give it."""
        return self._what if path.startswith(self._path) else None


class At(Behaviour):
    """Something at event ``place`` of every stream that ``when`` holds for."""

    def __init__(self, place: int, *what: object, when: Callable[[Play], bool] = always) -> None:
        super().__init__()
        self._place, self._what, self._when = place, list(what), when

    def event(self, play: Play, chunk: dict) -> list:
        """Put it in."""
        return [chunk, *self._what] if play.sent == self._place and self._when(play) else [chunk]


class Deltas(Behaviour):
    """Changes every chunk with ``change(play, chunk)`` in place."""

    def __init__(self, change: Callable[[Play, dict], object], whole: Callable[[Play, dict], object] | None = None) -> None:
        super().__init__()
        self._change, self._whole = change, whole

    def event(self, play: Play, chunk: dict) -> list:
        """Change it."""
        self._change(play, chunk)
        return [chunk]

    def whole(self, play: Play, body: dict) -> dict:
        """Change a whole answer."""
        if self._whole is not None:
            self._whole(play, body)
        return body


class NoDone(Behaviour):
    """A stream without its last word."""

    def done(self, play: Play) -> list:
        """Nothing."""
        return []


class EndsEarly(Behaviour):
    """The stream ends, cleanly, after a few tokens."""

    def event(self, play: Play, chunk: dict) -> list:
        """Only the first ones."""
        return [chunk] if play.sent < 4 else []

    def done(self, play: Play) -> list:
        """Nothing."""
        return []


class NeverEnds(Behaviour):
    """Ignores ``max_tokens`` and the end of the answer."""

    def asked(self, play: Play) -> None:
        """Make it long."""
        play.body.update(max_tokens=20000, ignore_eos=True)


class IgnoresMaxTokens(Behaviour):
    """Writes as long as it likes, then ends well."""

    def asked(self, play: Play) -> None:
        """Forget the limit."""
        play.body["max_tokens"] = 4096


class IgnoresStop(Behaviour):
    """Has no idea of stop strings."""

    def asked(self, play: Play) -> None:
        """Forget them."""
        play.body.pop("stop", None)


class KeepsStop(Behaviour):
    """Ends at the stop string, but leaves it in."""

    def asked(self, play: Play) -> None:
        """Leave it in."""
        play.body["include_stop_str_in_output"] = True


class IgnoresSchema(Behaviour):
    """Answers in prose where JSON was asked for."""

    def asked(self, play: Play) -> None:
        """Forget the schema."""
        play.body.pop("response_format", None)


class DropsTools(Behaviour):
    """The chat template knows no tools."""

    def asked(self, play: Play) -> None:
        """Forget them."""
        play.body.pop("tools", None)
        play.body.pop("tool_choice", None)


class ForgetsTurns(Behaviour):
    """The template keeps the last message only."""

    def asked(self, play: Play) -> None:
        """Forget the others."""
        if play.tools:
            return
        play.body["messages"] = play.body["messages"][-1:]


class Truncates(Behaviour):
    """Cuts long prompts to their last part without a word."""

    def asked(self, play: Play) -> None:
        """Cut."""
        for message in play.body.get("messages", []):
            if isinstance(message.get("content"), str) and 12000 < len(message["content"]) < 100000:
                message["content"] = message["content"][-8000:]


class Leaks(Behaviour):
    """A cancelled request goes on in the engine."""

    def asked(self, play: Play) -> None:
        """A long story is long."""
        if "long story" in play.question:
            play.body["standin"] = {"tokens": 4000}

    def cancelled(self, play: Play) -> bool:
        """It does not care."""
        return False


class HangsAfterCancel(Behaviour):
    """The first cancelled request takes the engine with it."""

    gone = False

    def cancelled(self, play: Play) -> bool:
        """Remember."""
        self.gone = True
        return True

    def asked(self, play: Play) -> object | None:
        """Nobody is at home."""
        return HANG if self.gone else None


class CrossTalk(Behaviour):
    """Under load, gives one request the answer of another."""

    def asked(self, play: Play) -> None:
        """Answer with an earlier code."""
        before = [codes(str(body.get("messages", [{}])[-1].get("content"))) for body in self.zoo.asked[-3:-1]]
        others = [found[0] for found in before if found and len(found[0]) == 8]
        if play.running >= 1 and others and "opens locker" in play.question:
            play.say(others[0])


class ToolCrossTalk(Behaviour):
    """Under load, calls a tool with the arguments of another client."""

    def asked(self, play: Play) -> None:
        """Call with an earlier code."""
        before = [codes(str(body["messages"][-1].get("content"))) for body in self.zoo.asked[-5:-1] if body.get("tools")]
        own = codes(play.question)
        others = [found[0] for found in before if found and len(found[0]) == 8 and found != own]
        if play.running >= 1 and others and play.tools and own and len(own[0]) == 8:
            play.body["standin"] = {"tool": {"name": "read_meter", "arguments": {"meter": "M-" + others[-1], "unit": "kelvin"}}}


class DropsSystem(Behaviour):
    """The template knows no system messages."""

    def asked(self, play: Play) -> None:
        """Forget them."""
        play.body["messages"] = [message for message in play.body["messages"] if message.get("role") != "system"]


class DrawsLots(Behaviour):
    """Ignores the temperature: no two long answers are alike, short ones are still right."""

    def asked(self, play: Play) -> None:
        """Begin somewhere else each time."""
        if "history of bread" in play.question:
            start = PROSE.index(" ", 17 * (play.number % 7) + 3) + 1
            play.say(PROSE[start:] + " " + PROSE)


class Accepts(Behaviour):
    """Is too kind: what should be refused is answered."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def http(self, method: str, path: str, headers: dict) -> object | None:
        """Any key will do."""
        if self._kind == "key":
            headers["authorization"] = "Bearer " + KEY
        return None

    def asked(self, play: Play) -> object | None:
        """Any model, any length."""
        if self._kind == "model":
            play.body["model"] = "zoo"
        if self._kind == "length" and len(play.question) > 100000:
            play.body["messages"][-1]["content"] = play.question[:1000]
        return None


class Numbers(Behaviour):
    """Says other things in its metrics."""

    def __init__(self, *lines: str, grows: str = "") -> None:
        super().__init__()
        self._lines, self._grows, self._count = list(lines), grows, 0

    def metrics(self, text: str) -> str:
        """Add to them."""
        names = [line.split("{")[0].split(" ")[0] for line in self._lines]
        kept = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] not in names]
        out = kept + self._lines
        if self._grows:
            self._count += 1
            out.append('{0}{{engine="0"}} {1}.0'.format(self._grows, self._count))
        return "\n".join(out) + "\n"


class HangsRunning(Numbers):
    """Silent, with a request that runs and counters that stand still."""

    def asked(self, play: Play) -> object:
        """Say nothing."""
        return HANG


class Raw(Behaviour):
    """Writes events in another form."""

    def __init__(self, form: Callable[[Play, str], bytes]) -> None:
        super().__init__()
        self._form = form

    def raw(self, play: Play, data: str) -> bytes:
        """Write it."""
        return self._form(play, data)


class SlowFirst(Behaviour):
    """The first requests compile kernels."""

    def __init__(self, seconds: float, requests: int = 1) -> None:
        super().__init__()
        self._seconds, self._requests = seconds, requests

    def asked(self, play: Play) -> None:
        """Take time."""
        if play.number < self._requests:
            play.body["standin"] = {"prefill_s": self._seconds}


class Plays(Behaviour):
    """Plays a request otherwise whenever ``when``: keys as in the stand-in's script."""

    def __init__(self, when: Callable[[Play], bool], **script: object) -> None:
        super().__init__()
        self._when, self._script = when, script

    def asked(self, play: Play) -> None:
        """Say how."""
        if self._when(play):
            play.body["standin"] = dict(self._script)


class Models(Behaviour):
    """Lists other models."""

    def __init__(self, change: Callable[[dict], dict]) -> None:
        super().__init__()
        self._change = change

    def models(self, body: dict) -> dict:
        """List them."""
        return self._change(body)


class ErrorText(Behaviour):
    """Error bodies in the form of other servers."""

    def http(self, method: str, path: str, headers: dict) -> object | None:
        """A bare string for a wrong key."""
        if path.startswith("/v1") and headers.get("authorization") not in (None, "Bearer " + KEY):
            return 403, {"error": "forbidden"}
        return None

    def asked(self, play: Play) -> object | None:
        """A detail."""
        if play.body.get("model") != "zoo":
            return 404, {"detail": "model not found"}
        return None


class Silent(Behaviour):
    """Headers, then nothing."""

    def event(self, play: Play, chunk: dict) -> list:
        """Nothing, for ever."""
        return [HANG]


class DiesOnBadJson(Behaviour):
    """A parser error ends the process."""

    def bad_body(self) -> object:
        """End."""
        return DIE


class ToolSays(Behaviour):
    """Calls with these arguments."""

    def __init__(self, arguments: dict) -> None:
        super().__init__()
        self._arguments = arguments

    def asked(self, play: Play) -> None:
        """Call so."""
        if play.tools and play.body["messages"][-1]["role"] == "user":
            play.body["standin"] = {"tool": {"name": "read_meter", "arguments": self._arguments}}


class Poisoned(Behaviour):
    """Its state is spoilt by the first crowd, for good."""

    crowd = 0

    def asked(self, play: Play) -> None:
        """Right during the crowd, wrong after it."""
        if "opens locker" in play.question:
            self.crowd += 1
        elif self.crowd and "history of" not in play.question:
            play.say(LOOP)


# ---- changes to chunks


def _move_to_reasoning(_play: Play, chunk: dict) -> None:
    for choice in chunk.get("choices", []):
        delta = choice.get("delta", {})
        if delta.get("content"):
            delta["reasoning_content"] = delta.pop("content")


def _usage(count: Callable[[int], int | None]) -> Callable[[Play, dict], None]:
    def change(_play: Play, chunk: dict) -> None:
        usage = chunk.get("usage")
        if usage:
            usage["completion_tokens"] = count(usage["completion_tokens"])

    return change


def _no_usage(_play: Play, chunk: dict) -> None:
    chunk.pop("usage", None)


def _no_finish(_play: Play, chunk: dict) -> None:
    for choice in chunk.get("choices", []):
        choice["finish_reason"] = None


def _always_stop(_play: Play, chunk: dict) -> None:
    for choice in chunk.get("choices", []):
        if choice.get("finish_reason") == "length":
            choice["finish_reason"] = "stop"


def _always_length(_play: Play, chunk: dict) -> None:
    for choice in chunk.get("choices", []):
        if choice.get("finish_reason") == "stop":
            choice["finish_reason"] = "length"


def _pieces(chunk: dict) -> list[dict]:
    found = []
    for choice in chunk.get("choices", []):
        found += (choice.get("delta") or choice.get("message") or {}).get("tool_calls") or []
    return found


def _break_arguments(_play: Play, chunk: dict) -> None:
    for call in _pieces(chunk):
        if "arguments" in call.get("function", {}):
            call["function"]["arguments"] = call["function"]["arguments"].replace('"', "", 1)


def _other_arguments(_play: Play, chunk: dict) -> None:
    for call in _pieces(chunk):
        if "arguments" in call.get("function", {}):
            call["function"]["arguments"] = call["function"]["arguments"].replace("4", "5")


def _no_ids(_play: Play, chunk: dict) -> None:
    for call in _pieces(chunk):
        call.pop("id", None)


def _other_tool(_play: Play, chunk: dict) -> None:
    for call in _pieces(chunk):
        if "name" in call.get("function", {}):
            call["function"]["name"] = "get_weather"


def _calls_end_with_length(_play: Play, chunk: dict) -> None:
    for choice in chunk.get("choices", []):
        if choice.get("finish_reason") == "tool_calls":
            choice["finish_reason"] = "length"


def _calls_end_with_stop(_play: Play, chunk: dict) -> None:
    for choice in chunk.get("choices", []):
        if choice.get("finish_reason") == "tool_calls":
            choice["finish_reason"] = "stop"


def _think_marks(play: Play, chunk: dict) -> None:
    for choice in chunk.get("choices", []):
        delta = choice.get("delta") or choice.get("message") or {}
        thought = delta.pop("reasoning", None)
        if "message" in choice:
            delta["content"] = "<think>{0}</think>{1}".format(thought or "", delta.get("content") or "")
        elif thought:
            begin = "" if play.memory.get("begun") else "<think>"
            play.memory["begun"] = True
            delta["content"] = begin + thought
        elif delta.get("content") and play.memory.pop("begun", None):
            delta["content"] = "</think>" + delta["content"]


def _drop_reasoning(_play: Play, chunk: dict) -> None:
    for choice in chunk.get("choices", []):
        for part in (choice.get("delta"), choice.get("message")):
            if part:
                part.pop("reasoning", None)


def _nulls(_play: Play, chunk: dict) -> None:
    for choice in chunk.get("choices", []):
        delta = choice.setdefault("delta", {})
        for name in ("content", "reasoning_content", "tool_calls", "function_call", "refusal", "audio"):
            delta.setdefault(name, None)


def _llama_cpp(_play: Play, chunk: dict) -> None:
    chunk["timings"] = {"prompt_n": 1, "predicted_per_second": 70.0}
    chunk.pop("system_fingerprint", None)
    for choice in chunk.get("choices", []):
        choice.pop("stop_reason", None)
        choice.pop("logprobs", None)


def _usage_at_end(play: Play, chunk: dict) -> None:
    """Keep usage in the last chunk that has a choice: the engine's own comes right after it."""
    if chunk.get("usage") and not chunk.get("choices"):
        chunk["choices"] = [{"index": 0, "delta": {}, "finish_reason": None}]


def _loses_pieces(play: Play, chunk: dict) -> None:
    """In long answers every second piece of text gets lost; usage is right."""
    for choice in chunk.get("choices", []):
        delta = choice.get("delta") or {}
        if delta.get("content") and play.sent % 2 and play.sent > 2 and "three paragraphs" in play.question:
            delta["content"] = ""


def _cut_text(play: Play, chunk: dict) -> None:
    """Of long English answers only the first pieces come; usage is right."""
    for choice in chunk.get("choices", []):
        delta = choice.get("delta") or {}
        if delta.get("content") and play.sent > 70 and not play.chinese:
            delta["content"] = ""


def late(number: int) -> Callable[[Play], bool]:
    """From request ``number`` on."""
    return lambda play: play.number >= number


def prose(play: Play) -> bool:
    """Asks for prose."""
    return "about bread" in play.question or "面包的历史" in play.question


def crowded(play: Play) -> bool:
    """Not alone in the engine, and asked by one of a crowd: what was cancelled a moment ago may run, too."""
    return play.running >= 1 and ("opens locker" in play.question or "something about the history" in play.question)


def cached(play: Play) -> bool:
    """Its long beginning was seen before."""
    return play.repeats >= 2


def document_at(share: float) -> Callable[[Play], bool]:
    """Asks for a code that stands in the first ``share`` of a long document."""

    def found(play: Play) -> bool:
        name = re.search("vault code of ([A-Z][a-z]+)\\? ", play.question)
        if len(play.question) < 20000 or name is None:
            return False
        return play.question.find("vault code of {0} is".format(name.group(1))) < share * len(play.question)

    return found


# Fluent Chinese that means nothing, as a model writes when its drafts are wrong.
BROKEN_ZH = (
    "面包的历史可以的是在于从前人们所以把了麦子而且到了因为火的旁边石头然后就是的水里面于是关于烤炉的发现但是对于城市的面包师"
    "如果没有的话那么酵母的空气在一个晚上以后为了面团的膨胀其中的一部分还是说古代的埃及人他们的手艺通过商路而被的传到了罗马"
)
WRONG = "The capital is Paris, the sum is 7, and the code is 000000. 首都是巴黎，答案是七。"
RUN = "!" * 64
LOOP = "and the English and the " * 30
SLOW_OPTIONS = ("--decode-tokens-per-s", "3")

#: Every fault: more than one verdict can't be right for it.
FAULTS = [
    # ---- no answer
    Animal("nothing_listens", "the port is closed", "dead", "models: …connection refused", prepare=lambda zoo: zoo.close()),
    Animal(
        "hangs",
        "accepts a question and never answers",
        "stalled",
        "exact capital_japan: …then no byte for 1.5 s",
        lambda: Instead(HANG),
        seen="vllm #39863",
    ),
    Animal(
        "hangs_at_once",
        "accepts a connection and says nothing, whatever is asked",
        "stalled",
        "models: …no byte for 1.5 s",
        lambda: Http("/", HANG),
    ),
    Animal(
        "hangs_running",
        "silent, its metrics show a running request, counters stand still",
        "stalled",
        "exact capital_japan: …1 running, 0 waiting, and its counters stand still",
        lambda: HangsRunning('vllm:num_requests_running{engine="0"} 1.0'),
        seen="vllm #36451",
    ),
    Animal("headers_then_silence", "HTTP 200 and headers, then nothing", "stalled", "exact capital_japan: …no byte for 1.5 s", Silent),
    Animal("hangs_midway", "stops after a few tokens", "stalled", "it stopped after …tokens", lambda: At(3, HANG)),
    Animal(
        "hangs_on_chinese",
        "a Chinese question hangs it",
        "stalled",
        "exact capital_japan_zh: …no byte",
        lambda: Instead(HANG, lambda play: play.chinese),
    ),
    Animal(
        "hangs_in_a_crowd",
        "hangs when requests run at once",
        "stalled",
        "concurrency: with 4 at once: …",
        lambda: Instead(HANG, crowded),
    ),
    Animal(
        "hangs_on_long_prompts",
        "a long prompt never gets its first token",
        "stalled",
        "long_context: …",
        lambda: Instead(HANG, lambda play: 20000 < len(play.question) < 100000),
    ),
    Animal(
        "gateway_time_out", "HTTP 504 for every question", "stalled", "HTTP 504", lambda: Instead((504, "<html>Gateway Time-out</html>"))
    ),
    Animal(
        "seventeen_seconds_a_token",
        "a token every 17 s (scaled), the cards idle: tensor parallel on a stack that can't",
        "stalled",
        "exact capital_japan: …tokens/s…the floor is 50 tokens/s…with the cards 0.4 % busy",
        options=SLOW_OPTIONS,
        cards_pct=0.4,
        seen="recipe A, TP2",
    ),
    Animal(
        "slow_busy_cards",
        "a token every 17 s (scaled), the cards busy",
        "slow",
        "tokens/s…the floor is 50 tokens/s",
        options=SLOW_OPTIONS,
        cards_pct=97.0,
        seen="vllm #11705",
    ),
    Animal(
        "slow_unseen_cards",
        "far below the floor, nobody sees the cards",
        "slow",
        "tokens/s…the floor is 50 tokens/s",
        options=("--decode-tokens-per-s", "8"),
    ),
    Animal(
        "just_too_slow",
        "complete prose at 40 tokens/s, the floor is 50",
        "slow",
        "speed: …tokens/s, the floor is 50 tokens/s",
        lambda: Plays(prose, decode_tokens_per_s=40),
    ),
    Animal(
        "slow_first_token",
        "the first token of prose takes 1 s, the limit is 0.6 s",
        "slow",
        "speed: first token after …s, the limit is 0.6 s",
        lambda: Plays(prose, prefill_s=1.0),
    ),
    Animal(
        "busy_engine",
        "other clients hold every slot, the engine works for them",
        "saturated",
        "the engine says 4 running, …and it works for them: busy, not hung",
        prepare=lambda zoo: zoo.occupy(60, 4),
        seen="gonka #1421",
    ),
    Animal("queue_full_429", "HTTP 429", "saturated", "HTTP 429", lambda: Instead((429, {"error": {"message": "too many requests"}}))),
    Animal("queue_full_503", "HTTP 503", "saturated", "HTTP 503", lambda: Instead((503, {"error": {"message": "queue full"}}))),
    Animal(
        "refuses_a_crowd",
        "HTTP 429 as soon as two run at once",
        "saturated",
        "concurrency: with 4 at once: HTTP 429",
        lambda: Instead((429, {"error": {"message": "slots"}}), crowded),
    ),
    Animal(
        "loading",
        "HTTP 503, the model is loading",
        "not_loaded",
        "HTTP 503: …Loading model",
        lambda: Http("/v1", (503, {"error": {"message": "Loading model"}})),
    ),
    Animal(
        "other_model",
        "serves a model of another name",
        "not_loaded",
        'the served models are llama, not "zoo"',
        lambda: Models(lambda body: {"data": [{"id": "llama"}]}),
    ),
    Animal(
        "no_model",
        "an empty list of models",
        "not_loaded",
        'the served models are none, not "zoo"',
        lambda: Models(lambda body: {"data": []}),
    ),
    Animal(
        "listed_not_served",
        "lists the model, answers 404 for it",
        "not_loaded",
        "exact capital_japan: HTTP 404",
        lambda: Instead((404, {"error": {"message": "The model `zoo` does not exist."}})),
    ),
    Animal(
        "status_500",
        "lists the model, fails every question",
        "dead",
        "it answers HTTP but can't infer, HTTP 500",
        lambda: Instead((500, {"error": {"message": "EngineCore encountered an issue"}})),
        seen="vllm #1492",
    ),
    Animal(
        "dies_at_first_question",
        "200 everywhere until it is asked something",
        "dead",
        "exact capital_japan: …closed before the answer was complete",
        lambda: Instead(DIE),
    ),
    Animal("dies_midway", "crashes after a few tokens", "dead", "…tokens until then", lambda: At(3, DIE)),
    Animal(
        "dies_in_a_crowd",
        "crashes when requests run at once",
        "dead",
        "concurrency: with 4 at once: …",
        lambda: Instead(DIE, crowded),
    ),
    Animal("dies_on_bad_json", "a body that is no JSON kills it", "dead", "errors: …", DiesOnBadJson),
    Animal(
        "error_in_stream",
        "an error event inside a stream that began with 200",
        "dead",
        "an error came inside the stream: EngineDeadError",
        lambda: At(3, {"error": {"message": "EngineDeadError", "code": 500}}),
    ),
    Animal("ends_in_the_middle", "the stream ends after four events, cleanly", "dead", "the stream ended in the middle", EndsEarly),
    Animal(
        "cut_in_the_middle", "the connection is cut after four events", "dead", "closed before the answer was complete", lambda: At(3, CUT)
    ),
    Animal(
        "key_refused",
        "our key is refused",
        "unknown",
        "models: the API key was refused, HTTP 401",
        lambda: Http("/v1", (401, {"error": "Unauthorized"})),
    ),
    # ---- rubbish, whatever is asked
    Animal(
        "rubbish_exclamation",
        "rows of one character: NaN logits",
        "garbage",
        "exact capital_japan: equal_run: 64 times '!'",
        lambda: Says(RUN),
        seen="vllm #22881",
    ),
    Animal(
        "rubbish_replacement",
        "U+FFFD inside words",
        "garbage",
        "bad_characters: …U+FFFD",
        lambda: Says("The capital \ufffd\ufffd of \ufffd is \ufffd"),
    ),
    Animal("rubbish_control", "control characters", "garbage", "bad_characters: …U+0001", lambda: Says("The\x01 capital\x02 of it")),
    Animal(
        "rubbish_private",
        "characters of the private use area",
        "garbage",
        "bad_characters: …U+E123",
        lambda: Says("Tokyo \ue123\ue124 42 144"),
    ),
    Animal("rubbish_soup", "letters of ten scripts", "garbage", "foreign_script", lambda: Says("жуѣ កា தமி かな ⵣⵍ เมื گفت હતું " * 4)),
    Animal(
        "rubbish_words",
        "clean words, no meaning",
        "garbage",
        'exact capital_japan: expected "Tokyo"',
        lambda: Says("_The out to_ the a to_ out native further to. the out a in the"),
    ),
    Animal(
        "rubbish_loop",
        "one phrase over and over",
        "garbage",
        "tail_loop: the end repeats a block",
        lambda: Says(LOOP),
        seen="vllm-ascend #10503",
    ),
    Animal(
        "rubbish_line_loop",
        "one line over and over",
        "garbage",
        "compression: a part compresses",
        lambda: Says("Wait - writing each line of the answer down again now.\n" * 14),
    ),
    Animal("rubbish_newlines", "empty lines without end", "garbage", "equal_run", lambda: Says("The" + "\n" * 40)),
    Animal("rubbish_de", "one Chinese character over and over", "garbage", "equal_run", lambda: Says("的" * 50)),
    Animal(
        "rubbish_chinese",
        "fluent Chinese without meaning: broken drafts",
        "garbage",
        'expected "',
        lambda: Says(BROKEN_ZH),
        seen="vllm-ascend #16979",
    ),
    Animal("rubbish_html", "a web page as the answer", "garbage", 'expected "Tokyo"', lambda: Says("<html><body>It works!</body></html>")),
    Animal(
        "fluent_and_wrong",
        "good sentences, wrong answers: wrong weights",
        "garbage",
        'expected "Tokyo", it said "The capital is Paris',
        lambda: Says(WRONG),
    ),
    Animal("empty_answer", "HTTP 200, finish reason stop, no text", "garbage", "empty: no text in any field", lambda: Says("")),
    Animal(
        "wrong_language",
        "answers English questions in Chinese prose",
        "garbage",
        "wrong_language: only",
        lambda: Says(PROSE_ZH, lambda play: "bread" in play.question),
    ),
    Animal(
        "prose_only_rubbish",
        "short answers right, prose falls into a loop",
        "garbage",
        "quality bread: compression",
        lambda: Says(PROSE[:200] + " very" * 80, lambda play: "Tell me about bread" in play.question),
    ),
    Animal(
        "off_by_one_digit",
        "gives numbers back with one digit wrong: broken attention",
        "garbage",
        "nonce_recall code_en: this run's code",
        lambda: Says(lambda play: str(int(codes(play.question)[0]) ^ 1), lambda play: "secret code" in play.question),
    ),
    # ---- what comes is not what was asked for
    Animal(
        "canned",
        "one answer that knows every capital and an old code",
        "garbage",
        "nonce_recall code_en: this run's code …did not come back",
        lambda: Says('Tokyo Athens 42 144 {"station": 7, "open": true} 东京 巴黎 北京 418362 London'),
    ),
    Animal(
        "says_every_fact",
        "all facts in one answer, to every question; codes come back",
        "garbage",
        'exact capital_greece: one answer to different questions, as to "What is the capital of Japan?',
        lambda: Says('Tokyo Athens 42 144 {"station": 7, "open": true} 东京 巴黎 北京', lambda play: not codes(play.question)),
    ),
    Animal(
        "replays_first_answer",
        "a cache in front gives the first answer to all",
        "garbage",
        'expected "Athens"',
        lambda: Says("The capital of Japan is Tokyo."),
    ),
    Animal(
        "wrong_field",
        "the answer is in the reasoning field",
        "garbage",
        "wrong_field: text only in the reasoning field",
        lambda: Deltas(_move_to_reasoning),
    ),
    Animal(
        "not_a_stream",
        "HTTP 200 with something else than a stream",
        "garbage",
        "HTTP 200 without one event of a stream",
        lambda: Instead((200, {"status": "success"})),
    ),
    Animal(
        "web_page",
        "HTTP 200 with a web page",
        "garbage",
        "HTTP 200 without one event of a stream (text/html)",
        lambda: Instead((200, "<html>Welcome</html>")),
    ),
    Animal("broken_event", "an event that is no JSON", "garbage", "an event is no JSON object", lambda: At(2, '{"choices": [{"delta": ')),
    Animal("never_ends", "goes on until the time is up", "garbage", "did not end, max_tokens was 64", NeverEnds),
    Animal(
        "always_length",
        "finish reason length after two words",
        "garbage",
        'expected finish reason "stop", got "length"',
        lambda: Deltas(_always_length),
    ),
    Animal("no_done", "the stream has no [DONE]", "partial", "the stream has no [DONE] at its end", NoDone),
    Animal(
        "ignores_max_tokens",
        "writes past max_tokens and ends well",
        "partial",
        "quality bread…max_tokens was 128",
        IgnoresMaxTokens,
        options=("--answer-tokens", "400"),
    ),
    Animal(
        "usage_too_small",
        "usage counts one token for a sentence",
        "partial",
        "usage says 1 tokens but",
        lambda: Deltas(_usage(lambda count: 1)),
    ),
    Animal(
        "usage_too_large", "usage counts tokens ten times", "partial", "max_tokens was", lambda: Deltas(_usage(lambda count: 10 * count))
    ),
    Animal(
        "loses_pieces",
        "long answers lose every second piece when streamed, usage is right",
        "partial",
        "max_tokens: of 16 tokens came …characters whole, but …streamed: text gets lost",
        lambda: Deltas(_loses_pieces),
    ),
    Animal(
        "text_cut",
        "the text of long English answers ends early, usage counts all of it",
        "partial",
        "quality bread: usage counts 128 tokens, yet only …characters of text came",
        lambda: Deltas(_cut_text),
    ),
    Animal(
        "draws_lots",
        "ignores temperature 0: no two long answers are alike",
        "partial",
        "max_tokens: three answers to one question at temperature 0, no two alike",
        DrawsLots,
    ),
    Animal(
        "no_usage",
        "no usage although it was asked for: no speed can be told",
        "unknown",
        "speed: no answer of 16 or more tokens with a usage count",
        lambda: Deltas(_no_usage),
    ),
    Animal(
        "stream_differs",
        "streamed and whole answers differ",
        "partial",
        "stream_equals_unary england: streamed",
        lambda: Says("London it is, said the clerk.", lambda play: "England" in play.question and not play.stream),
    ),
    Animal(
        "always_stop",
        "says stop where the answer was cut",
        "partial",
        'max_tokens: …cut at 16 tokens it gave the finish reason "stop"',
        lambda: Deltas(_always_stop, _always_stop),
    ),
    Animal("ignores_stop", "stop strings do nothing", "partial", 'past the stop string "delta"', IgnoresStop),
    Animal("keeps_stop", "the stop string stays in the answer", "partial", 'past the stop string "delta"', KeepsStop),
    Animal(
        "ignores_schema",
        "prose where JSON was asked for",
        "partial",
        "json_schema: whole: the answer is …, not of type object",
        IgnoresSchema,
        seen="vllm-ascend #15357",
    ),
    Animal(
        "schema_only_whole",
        "a JSON schema holds for whole answers only",
        "partial",
        "json_schema: streamed: the answer is no JSON",
        lambda: Says("Japan, as you wish", lambda play: play.stream and "response_format" in play.body),
    ),
    Animal(
        "schema_wrong_type",
        "JSON, but a number is a string",
        "partial",
        'json_schema: whole: "code" is',
        lambda: Says('{"country": "Japan", "code": "12"}', lambda play: "response_format" in play.body),
    ),
    # ---- tools
    Animal(
        "drops_tools",
        "tools are dropped without a word",
        "partial",
        "tool_loop: whole, round 1: no tool was called",
        DropsTools,
        seen="llama.cpp",
    ),
    Animal(
        "tool_call_as_text",
        "the call stays in the answer as text: wrong parser",
        "partial",
        "tool_loop: whole, round 1: the call was left as text",
        lambda: Says('<tool_call>\n{"name": "read_meter", "arguments": {}}\n</tool_call>', lambda play: play.tools),
        seen="vllm #22975",
    ),
    Animal(
        "tool_json_broken_in_stream",
        "arguments broken in the stream only",
        "partial",
        "tool_loop: streamed, round 1: the arguments are no JSON",
        lambda: Deltas(_break_arguments),
    ),
    Animal(
        "tool_json_broken_whole",
        "arguments broken in whole answers only",
        "partial",
        "tool_loop: whole, round 1: the arguments are no JSON",
        lambda: Deltas(lambda play, chunk: None, _break_arguments),
    ),
    Animal(
        "tool_differs_in_stream",
        "calls for another meter when streamed",
        "partial",
        "tool_loop: streamed, round 1: asked for M-417",
        lambda: Deltas(_other_arguments),
    ),
    Animal(
        "tool_misfit",
        "arguments do not fit the schema",
        "partial",
        'tool_loop: whole, round 1: "unit" is',
        lambda: ToolSays({"meter": "M-417", "unit": "fahrenheit"}),
    ),
    Animal(
        "tool_lacks_argument",
        "a required argument is missing",
        "partial",
        'tool_loop: whole, round 1: the arguments lacks "unit"',
        lambda: ToolSays({"meter": "M-417"}),
    ),
    Animal(
        "tool_other_name",
        "calls a tool that nobody offered",
        "partial",
        'it called "get_weather"',
        lambda: Deltas(_other_tool, _other_tool),
    ),
    Animal("tool_no_id", "a call without id can't be answered", "partial", "the call has no id", lambda: Deltas(_no_ids, _no_ids)),
    Animal(
        "tool_cut",
        "a call that ended by length",
        "partial",
        'a call with the finish reason "length"',
        lambda: Deltas(_calls_end_with_length, _calls_end_with_length),
    ),
    Animal(
        "tool_result_ignored",
        "the answer does not use what the tool said",
        "partial",
        "tool_loop: whole, round 1: the tool said",
        lambda: Says("The meter looks fine to me.", lambda play: play.body["messages"][-1]["role"] == "tool"),
    ),
    Animal(
        "tool_history_refused",
        "HTTP 400 when its own call is sent back",
        "unknown",
        "tool_loop: HTTP 400",
        lambda: Instead(
            (400, {"error": {"message": "Unterminated string starting at"}}), lambda play: play.body["messages"][-1]["role"] == "tool"
        ),
        seen="vllm #47761",
    ),
    # ---- only sometimes
    Animal(
        "chinese_only",
        "rubbish in Chinese only",
        "partial",
        "exact capital_japan_zh: …equal_run",
        lambda: Says("！" * 12, lambda play: play.chinese),
        seen="vllm-ascend #14663",
    ),
    Animal(
        "english_only",
        "rubbish in English only",
        "partial",
        "exact capital_japan: …equal_run",
        lambda: Says(RUN, lambda play: not play.chinese),
    ),
    Animal("decays", "right until request 95, then a loop, for good", "partial", "wrong", lambda: Says(LOOP, late(95)), seen="vllm #36872"),
    Animal(
        "loops_from_turn_six",
        "a conversation of six turns falls into a loop",
        "partial",
        "multi_turn en: turn 6 of 8: …",
        lambda: Says(LOOP, lambda play: play.turns >= 6),
        seen="vllm #47087",
    ),
    Animal("drops_system", "system messages are dropped without a word", "partial", "system_message: the system message said", DropsSystem),
    Animal("forgets_turns", "knows the last message only", "partial", "multi_turn en: turn 8 of 8: expected", ForgetsTurns),
    Animal(
        "wrong_on_cache_hit",
        "wrong from the third sighting of a prefix on",
        "partial",
        "cache_hit: time 3 of 3, right without, wrong with its beginning cached",
        lambda: Says("The vault is empty.", cached),
        seen="vllm #43559",
    ),
    Animal(
        "nan_on_cache_hit",
        "exclamation marks once the prefix is cached",
        "partial",
        "cache_hit: time 3 of 3, right without, wrong with its beginning cached: equal_run",
        lambda: Says(RUN, cached),
        seen="vllm #55766",
    ),
    Animal(
        "wrong_in_a_crowd",
        "rubbish when requests run at once",
        "partial",
        "concurrency: right alone, wrong with 4 at once",
        lambda: Says(LOOP, crowded),
        seen="vllm-ascend #7854",
    ),
    Animal(
        "tool_cross_talk",
        "under load, calls a tool with the arguments of another client",
        "partial",
        "concurrency: right alone, wrong with 4 at once…answers are mixed up, it said…M-",
        ToolCrossTalk,
    ),
    Animal(
        "wrong_on_kept_connection",
        "right on the first request of a connection, then one answer behind",
        "partial",
        "kept_connection: question 2 of 3 on one connection: it got the answer to question 1",
        lambda: Says(lambda play: codes(play.before[-1])[0], lambda play: bool(play.before) and bool(codes(play.before[-1]))),
    ),
    Animal("cross_talk", "gives one request the answer of another", "partial", "answers are mixed up", CrossTalk),
    Animal(
        "poisoned_by_a_crowd",
        "wrong for good once it was under load",
        "partial",
        "after_load: right before, wrong after",
        Poisoned,
        seen="vllm #35800",
    ),
    Animal(
        "loses_the_beginning",
        "codes in the first part of a long document are gone",
        "partial",
        "long_context: of …tokens, at depth 5%: the code …did not come back",
        lambda: Says("I do not know.", document_at(0.2)),
    ),
    Animal(
        "loses_the_middle",
        "codes in the middle of a long document are gone",
        "partial",
        "long_context: of …tokens, at depth 35%",
        lambda: Says("I do not know.", lambda play: document_at(0.5)(play) and not document_at(0.2)(play)),
    ),
    Animal("cuts_long_prompts", "long prompts are cut without a word", "partial", "usage counts …it was cut off, or usage lies", Truncates),
    Animal(
        "leaks_slots", "cancelled requests keep their slots", "partial", "cancel: 4 of 4 cancelled answers still hold their slot", Leaks
    ),
    Animal(
        "leaks_unseen",
        "cancelled requests keep their slots, no metrics",
        "partial",
        "cancel: after 4 cancelled answers the next one began only after",
        Leaks,
        options=("--no-metrics",),
    ),
    Animal("hangs_after_cancel", "the first cancelled request takes the engine with it", "stalled", "cancel: …", HangsAfterCancel),
    # ---- errors, doors, counters, cards
    Animal("takes_any_key", "a wrong key is served", "partial", "errors: a wrong key got HTTP 200", lambda: Accepts("key")),
    Animal("takes_any_model", "an unknown model is served", "partial", "errors: an unknown model got HTTP 200", lambda: Accepts("model")),
    Animal(
        "takes_any_length",
        "a prompt beyond the context is cut and served",
        "partial",
        "errors: a prompt beyond 32768 tokens got HTTP 200",
        lambda: Accepts("length"),
    ),
    Animal(
        "fails_on_long",
        "a prompt beyond the context is a server error",
        "partial",
        "errors: a prompt beyond 32768 tokens got HTTP 500",
        lambda: Instead((500, {"error": {"message": "assertion"}}), lambda play: len(play.question) > 100000),
    ),
    Animal(
        "error_as_200",
        "an error body with HTTP 200",
        "partial",
        "errors: an unknown model got HTTP 200",
        lambda: Instead((200, {"error": {"message": "no such model"}}), lambda play: play.body.get("model") != "zoo"),
    ),
    Animal(
        "error_as_page",
        "an error without a reason a program can read",
        "partial",
        "errors: an unknown model got HTTP 404 without a reason in JSON",
        lambda: Instead((404, "<h1>Not Found</h1>"), lambda play: play.body.get("model") != "zoo"),
    ),
    Animal(
        "counts_nan",
        "answers look right, the engine counts NaN logits",
        "garbage",
        "counters: the engine counted …logits were no numbers",
        lambda: Numbers(grows="vllm:corrupted_requests_total"),
        seen="vllm #55766",
    ),
    Animal(
        "drafts_refused",
        "speculation whose drafts are nearly all wrong",
        "partial",
        "counters: …drafted tokens were right",
        options=("--spec-tokens", "3", "--spec-acceptance", "0.02"),
        seen="vllm-ascend #9290",
    ),
    Animal(
        "no_speculation",
        "speculation was asked for and is not active",
        "partial",
        "counters: speculative decoding was asked for",
        checks=({"check": "counters", "speculative": True},),
    ),
    Animal(
        "think_marks",
        "reasoning stands in the answer: no parser",
        "partial",
        'reasoning: whole: "<think>" stands in the answer',
        lambda: Deltas(_think_marks, _think_marks),
        options=("--reasoning-tokens", "12"),
        checks=({"check": "reasoning"},),
    ),
    Animal(
        "reasoning_lost",
        "reasoning is thrown away",
        "partial",
        "reasoning: whole: no reasoning under either name",
        lambda: Deltas(_drop_reasoning, _drop_reasoning),
        options=("--reasoning-tokens", "12"),
        checks=({"check": "reasoning"},),
    ),
    Animal(
        "cards_idle",
        "right answers, idle cards: another engine answers here",
        "unknown",
        "card_use: answers came, yet this replica's cards were only 0.2 % busy",
        cards_pct=0.2,
    ),
]

CODE = (
    'def fibonacci(count: int) -> list[int]:\n    """The first numbers of the row."""\n    row = [0, 1]\n    while len(row) < count:\n'
    '        row.append(row[-1] + row[-2])\n    return row[:count]\n\n\nif __name__ == "__main__":\n    for index, value in enumerate(fibonacci(10)):\n'
    "        print(index, value)\n"
)
JSON_LIST = (
    "[\n"
    + ",\n".join('  {"station": %d, "rain": %d, "sun": %d, "open": true}' % (n, n * 7 % 31, n * 11 % 29) for n in range(1, 21))
    + "\n]"
)
TABLE = "| station | rain | sun | fog |\n|---|---|---|---|\n" + "\n".join(
    "| {0} | {1} | {2} | {3} |".format(n, n * 7 % 31, n * 11 % 29, n * 5 % 23) for n in range(1, 25)
)
TIMES = "\n".join(" ".join("{0:>3}".format(a * b) for b in range(1, 11)) for a in range(1, 11))
RUSSIAN = (
    "Хлеб относится к самым древним продуктам, которые готовит человек. Задолго до печей зерно растирали между камнями, смешивали с водой "
    "и пекли на горячих плитах у огня. Позже кто-то заметил, что тесто, оставленное на ночь, поднимается само, потому что в него попали дрожжи."
)
JAPANESE = (
    "パンは人間が作ってきた最も古い食べ物のひとつです。窯ができるずっと前から、穀物を石でつぶし、水と混ぜて、火のそばの熱い石の上で焼いていました。"
    "あるとき、一晩置いた生地が自然に膨らむことに誰かが気づきました。空気中の酵母が中に入っていたからです。エジプトの職人は古い生地を少し残しておきました。"
)
MARKDOWN = (
    "# Bread\n\n## Where it comes from\n\n- **Grain** was crushed between stones.\n- **Water** made it a dough.\n- **Fire** baked it.\n\n"
    "## What changed it\n\n1. Somebody left the dough alone overnight.\n2. Wild yeast settled in it.\n3. It rose by itself, and nobody wanted the flat "
    "kind any more.\n\n> Public bakeries fed whole districts of Rome.\n\nSee also: *ovens*, `mills`, and the trade routes that carried the craft."
)


def _quality(ident: str, prompt: str, **more: object) -> tuple:
    return (dict({"check": "quality", "id": ident, "prompt": prompt, "max_tokens": 400}, **more),)


def _tells(ident: str, text: str, prompt: str, about: str, **more: object) -> Animal:
    return Animal(ident, about, "ok", make=lambda: Says(text, lambda play: play.question == prompt), checks=_quality(ident, prompt, **more))


THINKS = ("--reasoning-tokens", "30")
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}

#: Every healthy oddity: the proof must pass it.
ODDITIES = [
    Animal("plain", "nothing odd", "ok"),
    Animal("slow_first_start", "the first two requests compile kernels for 0.9 s", "ok", make=lambda: SlowFirst(0.9, 2), seen="vllm"),
    Animal(
        "long_prefill",
        "long prompts take 0.9 s to their first token",
        "ok",
        make=lambda: Plays(lambda play: len(play.question) > 20000, prefill_s=0.9),
    ),
    Animal("busy_queue", "other clients hold every slot for 0.6 s, then ours is served", "ok", prepare=lambda zoo: zoo.occupy(0.6, 4)),
    Animal(
        "one_slot",
        "one sequence at a time: a crowd queues",
        "ok",
        options=("--slots", "1"),
        checks=({"check": "cancel", "streams": 1, "release_s": 0.4, "max_tokens": 4096},),
    ),
    Animal("prefill_pauses_decode", "running answers stand still during a prefill", "ok", options=("--prefill-pauses-decode",)),
    Animal("no_prefix_cache", "prefix caching is off", "ok", options=("--no-enable-prefix-caching",)),
    Animal("speculative", "drafts of three tokens, four in one event", "ok", options=("--spec-tokens", "3", "--spec-acceptance", "1.0")),
    Animal(
        "speculative_sixty",
        "drafts accepted six times of ten: events of one to four tokens",
        "ok",
        options=("--spec-tokens", "3", "--spec-acceptance", "0.6"),
        checks=({"check": "counters", "speculative": True},),
    ),
    Animal("jitter", "tokens come unevenly", "ok", options=("--jitter", "0.9")),
    Animal(
        "reasoning",
        "thinks in the field reasoning",
        "ok",
        options=THINKS,
        checks=({"check": "reasoning"},),
        request=NO_THINKING,
        seen="vllm 0.17.1",
    ),
    Animal(
        "reasoning_content",
        "thinks in the field reasoning_content",
        "ok",
        options=(*THINKS, "--reasoning-field", "reasoning_content"),
        checks=({"check": "reasoning"},),
        request=NO_THINKING,
    ),
    Animal(
        "reasoning_both",
        "thinks in both fields at once",
        "ok",
        options=(*THINKS, "--reasoning-field", "both"),
        checks=({"check": "reasoning"},),
        request=NO_THINKING,
    ),
    Animal(
        "thinks_always", "thinks a little before every answer", "ok", options=("--reasoning-tokens", "12"), checks=({"check": "reasoning"},)
    ),
    Animal("early_role", "the role comes long before the first token", "ok", options=("--first-delta", "early")),
    Animal("empty_first_delta", "a first token without text", "ok", options=("--first-delta", "empty")),
    Animal("null_fields", "every delta holds all fields, most of them null", "ok", make=lambda: Deltas(_nulls)),
    Animal("llama_cpp_form", "timings in every event, no stop_reason", "ok", make=lambda: Deltas(_llama_cpp)),
    Animal("usage_with_choice", "usage in an event that has a choice", "ok", make=lambda: Deltas(_usage_at_end)),
    Animal("usage_counts_end", "usage counts one token more than came", "ok", make=lambda: Deltas(_usage(lambda count: count))),
    Animal("keeps_open", "the connection stays open after [DONE]", "ok", prepare=lambda zoo: setattr(zoo, "keeps_open", True)),
    Animal("drips", "events come fifty bytes at a time", "ok", prepare=lambda zoo: setattr(zoo, "drip", 50)),
    Animal("crlf", "lines end with CR LF", "ok", make=lambda: Raw(lambda play, data: "data: {0}\r\n\r\n".format(data).encode())),
    Animal(
        "comments",
        "comments between events keep proxies awake",
        "ok",
        make=lambda: Raw(lambda play, data: ": ping\n\nevent: message\nid: 1\ndata:{0}\n\n".format(data).encode()),
    ),
    Animal(
        "byte_order_mark",
        "a stream that begins with a byte order mark",
        "ok",
        make=lambda: Raw(lambda play, data: ("" if play.sent > 1 else "\ufeff").encode() + "data: {0}\n\n".format(data).encode()),
    ),
    Animal(
        "escaped_unicode",
        "all but ASCII is escaped in JSON",
        "ok",
        make=lambda: Raw(lambda play, data: "data: {0}\n\n".format(data if data == DONE else json.dumps(json.loads(data))).encode()),
    ),
    Animal(
        "calls_end_with_stop",
        "finish reason stop after a tool call",
        "ok",
        make=lambda: Deltas(_calls_end_with_stop, _calls_end_with_stop),
        seen="vllm, named tools",
    ),
    Animal("other_error_bodies", "403 for a wrong key, errors as a string or a detail", "ok", make=ErrorText),
    Animal("no_metrics", "no /metrics", "ok", options=("--no-metrics",)),
    Animal(
        "other_metrics",
        "metrics in another form, some of them no numbers",
        "ok",
        make=lambda: Numbers("vllm:kv_cache_usage_perc NaN", 'python_info{version="3"} 1.0', "odd line"),
    ),
    Animal(
        "several_models",
        "lists adapters beside the model",
        "ok",
        make=lambda: Models(lambda body: {**body, "data": [{"id": "adapter-1"}, *body["data"], {"id": "adapter-2"}]}),
    ),
    Animal("bare_models", "lists the model without its context", "ok", make=lambda: Models(lambda body: {"data": [{"id": "zoo"}]})),
    Animal("busy_cards", "cards at 98 %", "ok", cards_pct=98.0),
    Animal(
        "leading_space",
        "answers begin with a line end and spaces",
        "ok",
        make=lambda: Says("\n\n  Tokyo", lambda play: play.question.startswith("What is the capital of Japan")),
    ),
    Animal(
        "shouts",
        "the right word in capitals, with a full stop",
        "ok",
        make=lambda: Says("**TOKYO**.", lambda play: play.question.startswith("What is the capital of Japan")),
    ),
    Animal(
        "explains",
        "a sentence where one word was asked for",
        "ok",
        make=lambda: Says("北京是中华人民共和国的首都，也是直辖市。", lambda play: play.question.startswith("中国的首都")),
    ),
    Animal(
        "words_in_chinese",
        "Latin names in Chinese prose",
        "ok",
        make=lambda: Says(
            "HAProxy 的 leastconn 算法会把新请求交给连接最少的服务器，vLLM 的 PagedAttention 则把显存分成小块。" * 1 + PROSE_ZH[:120],
            lambda play: "面包的历史" in play.question,
        ),
    ),
    _tells("code", CODE, "Write fibonacci in Python.", "source code as the answer", form="code"),
    _tells("json_list", JSON_LIST, "List 20 stations as JSON.", "a JSON list of equal rows"),
    _tells("table", TABLE, "Give the stations as a table.", "a table in Markdown"),
    _tells("times_table", TIMES, "Write the multiplication table to ten.", "a multiplication table", form="table"),
    _tells("markdown", MARKDOWN, "Summarise the history of bread.", "headings, lists, quotes", language="en"),
    _tells("russian", RUSSIAN, "Расскажи о хлебе по-русски.", "Russian, when asked in Russian"),
    _tells("japanese", JAPANESE, "パンの歴史を日本語で教えてください。", "Japanese, when asked in Japanese"),
    _tells(
        "emoji",
        "Bread \U0001f35e is old, and its history is long. \U0001f600 \u2764\ufe0f " + PROSE[:250],
        "Tell it with emoji.",
        "emoji in prose",
        language="en",
    ),
    _tells(
        "formulas",
        "The energy is E = mc\u00b2, with c \u2248 3\u00b710\u2078 m/s, at 30\u00b0 and \u03b1 = 0.5. " + PROSE[:220],
        "Explain with \u03b1.",
        "formulas and units",
        language="en",
    ),
    _tells(
        "refrain",
        "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream. " + PROSE[:200],
        "Begin with a song.",
        "a refrain",
        language="en",
    ),
]

ANIMALS = FAULTS + ODDITIES
