# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Server-sent events of OpenAI-compatible engines: bytes in, timed events and figures out. Private to the collection.

Sources: WHATWG HTML, "Server-sent events" (line rules); streams captured from vLLM and llama.cpp (bodies).
"""

from __future__ import annotations

import dataclasses
import json
import re

ROLE = "role"
REASONING = "reasoning"
CONTENT = "content"
TOOL = "tool"
FINISH = "finish"
USAGE = "usage"
DONE = "done"
ERROR = "error"
MALFORMED = "malformed"

_LINE_END = re.compile(b"[\r\n]")
#: Kinds that carry generated tokens, whatever the channel.
TOKEN_KINDS = frozenset((REASONING, CONTENT, TOOL))


@dataclasses.dataclass(frozen=True)
class Event:
    """One event of a stream.

    Attributes:
        at: monotonic seconds at which its last byte was in hand.
        kinds: what it carries; one event may carry several kinds (a last word and the finish reason).
        content, reasoning, tool: the text added to each channel (``tool`` is the added argument text).
        finish: the finish reason, or an empty string.
        usage: the usage object, or None.
        error: the error text of an error event, or the raw line of a malformed one.
        has_choices: whether the event had a non-empty ``choices`` list.
        calls: pieces of tool calls as ``(index, id, name, argument text)``; ids and names are empty in all but the first piece.
        reasoning_field: the name under which reasoning came, or an empty string.
    """

    at: float
    kinds: frozenset
    content: str = ""
    reasoning: str = ""
    tool: str = ""
    finish: str = ""
    usage: dict | None = None
    error: str = ""
    has_choices: bool = False
    calls: tuple = ()
    reasoning_field: str = ""


class Decoder:
    """Turn bytes in any chunking into the data of complete events."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data = []
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[str]:
        """Take the next bytes; return the data of every event they complete."""
        out = []
        if 13 not in chunk and not self._after_cr:
            # The common case, ten times as fast.
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                self._line += line
                self._end_line(out)
            self._line += rest
            return out
        start = 0
        for found in _LINE_END.finditer(chunk):
            index = found.start()
            if index > start:
                self._after_cr = False
            if chunk[index] == 10 and self._after_cr:
                self._after_cr = False
                start = index + 1
                continue
            self._line += chunk[start:index]
            start = index + 1
            self._after_cr = chunk[index] == 13
            self._end_line(out)
        if start < len(chunk):
            self._after_cr = False
            self._line += chunk[start:]
        return out

    def close(self) -> list[str]:
        """Return the data of an event whose closing blank line never came."""
        out = []
        if self._line:
            self._end_line(out)
        self._dispatch(out)
        return out

    def _end_line(self, out: list[str]) -> None:
        raw = bytes(self._line)
        del self._line[:]
        if self._first:
            self._first = False
            if raw.startswith(b"\xef\xbb\xbf"):
                raw = raw[3:]
        if not raw:
            self._dispatch(out)
            return
        field, _colon, value = raw.partition(b":")
        if field == b"data":
            self._data.append(value[1:] if value.startswith(b" ") else value)

    def _dispatch(self, out: list[str]) -> None:
        if self._data:
            out.append(b"\n".join(self._data).decode("utf-8", "replace"))
            self._data = []


def error_text(error: object) -> str:
    """The text of an ``error`` member: engines send an object or, for 401, a bare string."""
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _tool_pieces(calls: object) -> tuple:
    """The pieces of tool calls in one delta; what is no call is left out."""
    found = []
    for place, call in enumerate(calls if isinstance(calls, list) else []):
        if isinstance(call, dict):
            function = call.get("function") if isinstance(call.get("function"), dict) else {}
            index = call.get("index") if isinstance(call.get("index"), int) else place
            found.append((index, _text(call.get("id")), _text(function.get("name")), _text(function.get("arguments"))))
    return tuple(found)


def parse(at: float, data: str) -> Event:
    """Read the data of one event. Never raises: what can't be understood becomes a ``malformed`` event."""
    if data.strip() == "[DONE]":
        return Event(at, frozenset((DONE,)))
    if not data.strip():
        return Event(at, frozenset())
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        # Lists in lists without end are what a decoder gives up on.
        body = None
    if not isinstance(body, dict):
        return Event(at, frozenset((MALFORMED,)), error=data[:200])
    if body.get("error"):
        return Event(at, frozenset((ERROR,)), error=error_text(body["error"])[:400])
    kinds = set()
    content = reasoning = finish = field = ""
    calls = ()
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    if choice is not None:
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        content = _text(delta.get("content")) or _text(choice.get("text"))
        # vLLM renamed the field in 0.17.1; some engines send both names with the same text.
        field = next((name for name in ("reasoning", "reasoning_content") if _text(delta.get(name))), "")
        reasoning = _text(delta.get(field)) if field else ""
        calls = _tool_pieces(delta.get("tool_calls"))
        finish = _text(choice.get("finish_reason"))
        for kind, present in (
            (CONTENT, content),
            (REASONING, reasoning),
            (TOOL, calls),
            (FINISH, finish),
            (ROLE, delta.get("role")),
        ):
            if present:
                kinds.add(kind)
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else None
    if usage is not None:
        kinds.add(USAGE)
    tool = "".join(call[3] for call in calls)
    return Event(at, frozenset(kinds), content, reasoning, tool, finish, usage, "", choice is not None, calls, field)


class Transcript:
    """Everything one streamed answer said, and its figures.

    Seconds are monotonic; ``sent_at`` is when the request was sent.
    """

    def __init__(self, sent_at: float) -> None:
        self.sent_at = sent_at
        self.events = []
        self._decoder = Decoder()
        # What is asked after every chunk, which may be one byte long, is kept: looking through all events again would be quadratic.
        self._tokens = []
        self._done = False
        self._error = ""

    def feed(self, at: float, chunk: bytes) -> None:
        """Take bytes that were in hand at monotonic second ``at``."""
        self._take(at, self._decoder.feed(chunk))

    def close(self, at: float) -> None:
        """Say that no more bytes will come."""
        self._take(at, self._decoder.close())

    def _take(self, at: float, found: list[str]) -> None:
        for data in found:
            event = parse(at, data)
            self.events.append(event)
            if event.kinds & TOKEN_KINDS:
                self._tokens.append(event)
            if DONE in event.kinds:
                self._done = True
            if ERROR in event.kinds and not self._error:
                self._error = event.error

    def _join(self, channel: str) -> str:
        return "".join(getattr(event, channel) for event in self.events)

    @property
    def content(self) -> str:
        """The visible answer."""
        return self._join("content")

    @property
    def reasoning(self) -> str:
        """The text of the reasoning channel."""
        return self._join("reasoning")

    @property
    def tool(self) -> str:
        """The joined argument text of tool calls."""
        return self._join("tool")

    @property
    def calls(self) -> list[dict]:
        """The tool calls, put together by their index: ``{"id", "name", "arguments"}``, arguments as text."""
        found = {}
        for event in self.events:
            for index, ident, name, arguments in event.calls:
                call = found.setdefault(index, {"id": "", "name": "", "arguments": ""})
                call["id"] = call["id"] or ident
                call["name"] += name
                call["arguments"] += arguments
        return [found[index] for index in sorted(found)]

    @property
    def reasoning_fields(self) -> list[str]:
        """The names under which reasoning came."""
        return sorted({event.reasoning_field for event in self.events if event.reasoning_field})

    @property
    def finish(self) -> str:
        """The last finish reason, or an empty string."""
        found = [event.finish for event in self.events if event.finish]
        return found[-1] if found else ""

    @property
    def done(self) -> bool:
        """Whether the stream ended with ``[DONE]``."""
        return self._done

    @property
    def error(self) -> str:
        """The text of the first error event inside the stream, or an empty string."""
        return self._error

    @property
    def malformed(self) -> list[str]:
        """The data of events that are no JSON object."""
        return [event.error for event in self.events if MALFORMED in event.kinds]

    @property
    def token_events(self) -> int:
        """Events that carried generated tokens; under speculation one event holds several tokens."""
        return len(self._tokens)

    @property
    def last_token_at(self) -> float:
        """Monotonic second of the last event with generated tokens; when the request was sent, before the first."""
        tokens = self._tokens
        return tokens[-1].at if tokens else self.sent_at

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens by usage, or None."""
        return self._usage("prompt_tokens")

    @property
    def completion_tokens(self) -> int | None:
        """Generated tokens by usage, or None when the engine did not say."""
        return self._usage("completion_tokens")

    def _usage(self, key: str) -> int | None:
        found = [event.usage.get(key) for event in self.events if event.usage]
        return found[-1] if found and isinstance(found[-1], int) else None

    def _since_sent(self, events: list[Event]) -> float | None:
        return events[0].at - self.sent_at if events else None

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token of any channel; a role-only event is no token."""
        return self._since_sent(self._tokens)

    @property
    def ttft_content_s(self) -> float | None:
        """Seconds to the first visible token."""
        return self._since_sent([event for event in self.events if CONTENT in event.kinds])

    @property
    def ttft_choices_s(self) -> float | None:
        """Seconds to the first event with choices, role-only included: what ``vllm bench serve`` calls TTFT."""
        return self._since_sent([event for event in self.events if event.has_choices])

    @property
    def decode_s(self) -> float | None:
        """Seconds from the first token to the last event with choices (a trailing usage event does not count)."""
        tokens = self._tokens
        last = [event for event in self.events if event.has_choices]
        return last[-1].at - tokens[0].at if tokens and last else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """(tokens by usage - 1) / decode seconds; None without usage, below two tokens, or in one burst."""
        count = self.completion_tokens
        seconds = self.decode_s
        if count is None or count < 2 or not seconds or seconds <= 0:
            return None
        return (count - 1) / seconds

    def events_per_s(self, until: float) -> float | None:
        """Token events per second from the first one up to monotonic second ``until``: the figure of a cut stream."""
        tokens = self._tokens
        if not tokens or until <= tokens[0].at:
            return None
        return (len(tokens) - 1) / (until - tokens[0].at)

    @property
    def e2e_s(self) -> float | None:
        """Seconds from sending to the last event."""
        return self.events[-1].at - self.sent_at if self.events else None
