# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A stand-in engine in a thread of this process, with hooks where something can break. Real sockets, a real engine model below.

``Behaviour`` is what an animal of the zoo overrides: every hook of the base does nothing, and the engine is then the healthy
stand-in. Hooks run on the engine's own loop and must not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import socket
import threading
import time

from standin import engine as standin

#: What a hook may give instead of bytes: say no more, but keep the connection; cut the connection; end like a crashed process.
HANG, CUT, DIE = object(), object(), object()
DONE = "[DONE]"
#: A prompt of so many characters is a document, no question.
LONG = 1000

#: Sequences the engine runs at a time, as its plan would say.
SLOTS = 4
#: Fast enough for a whole proof in a second or two. Seconds and rates are real here: the check list's limits are scaled instead.
OPTIONS = (
    "--model", "zoo", "--slots", str(SLOTS), "--decode-tokens-per-s", "1500", "--prefill-tokens-per-s", "200000",
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-model-len", "32768",
)  # fmt: skip


#: Statuses that the stand-in never gives.
standin._REASONS.update({403: "Forbidden", 429: "Too Many Requests", 503: "Service Unavailable", 504: "Gateway Timeout"})


@dataclasses.dataclass
class Play:
    """One request, as hooks see it.

    Attributes:
        number: how many generations were asked for before it.
        body: the request; a hook may change it. ``body["standin"]`` says how it is played.
        question: the last user message.
        running: generations that ran when it came.
        repeats: earlier requests that began with the same long text.
        before: what was asked over the same connection earlier, latest last.
        sent: events sent so far.
        memory: a hook's own.
    """

    number: int
    body: dict
    question: str
    running: int
    repeats: int
    before: tuple = ()
    sent: int = 0
    muted: bool = False
    memory: dict = dataclasses.field(default_factory=dict)

    @property
    def stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return bool(self.body.get("stream"))

    @property
    def chinese(self) -> bool:
        """Whether the question is Chinese."""
        return standin.has_han(self.question)

    @property
    def turns(self) -> int:
        """User messages of the conversation."""
        return sum(message.get("role") == "user" for message in self.body.get("messages", []))

    @property
    def tools(self) -> bool:
        """Whether tools are offered."""
        return bool(self.body.get("tools"))

    def say(self, text: str) -> None:
        """Answer ``text`` instead."""
        self.body["standin"] = {**self.body.get("standin", {}), "text": text, "tool": False}
        self.body.pop("response_format", None)


class Behaviour:
    """The healthy stand-in. ``zoo`` is the engine; what a hook returns is described at each."""

    def __init__(self) -> None:
        self.zoo: Zoo | None = None

    def http(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, object] | object | None:
        """Before a request is looked at: ``(status, JSON body or text)``, HANG, CUT, DIE, or None to go on."""

    def asked(self, play: Play) -> tuple[int, object] | object | None:
        """A generation was asked for: as ``http``; or change ``play.body`` and return None."""

    def bad_body(self) -> object | None:
        """A body that is no JSON came: as ``http``."""

    def event(self, play: Play, chunk: dict) -> list:
        """One chunk of a stream is due: what is sent instead (dicts, strings, HANG, CUT, DIE), normally ``[chunk]``."""
        return [chunk]

    def done(self, play: Play) -> list:
        """The end of a stream is due: as ``event``, normally ``[DONE]``."""
        return [DONE]

    def whole(self, play: Play, body: dict) -> dict:
        """A whole answer is due: what is sent instead."""
        return body

    def raw(self, play: Play, data: str) -> bytes:
        """How the data of an event goes on the wire."""
        return "data: {0}\n\n".format(data).encode("utf-8", "replace")

    def models(self, body: dict) -> dict:
        """The list of models is due: what is sent instead."""
        return body

    def metrics(self, text: str) -> str:
        """Metrics are due: what is sent instead."""
        return text

    def cancelled(self, play: Play) -> bool:
        """The client went: whether the engine frees what it held."""
        return True


class ZooConnection(standin.Connection):
    """A connection whose answers pass through the hooks."""

    play: Play | None = None
    questions: tuple = ()

    def event(self, data: str) -> None:
        """Send one event, or what the behaviour makes of it."""
        play = self.play
        if play is None or play.muted:
            return
        behaviour = self._server.behaviour
        if data == DONE:
            items = behaviour.done(play)
        elif self._server.zoo.changes_events:
            items = behaviour.event(play, json.loads(data))
        else:
            # Most animals leave events alone, and reading and writing each of them again costs.
            items = [data]
        play.sent += 1
        for item in items:
            if item is HANG:
                play.muted = True
                return
            if item is CUT:
                self.transport.abort()
                return
            if item is DIE:
                self._server.zoo.die()
                return
            raw = behaviour.raw(play, item if isinstance(item, str) else standin.compact(item))
            self._write(raw)

    def _write(self, raw: bytes) -> None:
        size = self._server.behaviour.zoo.drip
        pieces = [raw] if not size else [raw[start : start + size] for start in range(0, len(raw), size)]
        for piece in pieces:
            if self.transport.is_closing():
                return
            self.transport.write(b"%x\r\n%s\r\n" % (len(piece), piece) if not self._old else piece)

    def end_stream(self) -> None:
        """Say that the stream is over, unless it hangs."""
        if self.play is None or not (self.play.muted or self._server.zoo.keeps_open):
            super().end_stream()

    def answer(self, status: int, body: bytes, content_type: str = "application/json", more: tuple = ()) -> None:
        """Send a whole answer, or what the behaviour makes of it."""
        if self.play is not None and status == 200 and body.startswith(b'{"id"'):
            body = standin.compact(self._server.behaviour.whole(self.play, json.loads(body))).encode("utf-8", "replace")
        super().answer(status, body, content_type, more)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember who it is; nobody gets into an engine that is dead."""
        super().connection_made(transport)
        if self._server.zoo.dead:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went."""
        if self.job is not None and self.play is not None and not self._server.behaviour.cancelled(self.play):
            self.play.muted = True
            self.job = None
        super().connection_lost(exc)


class ZooServer(standin.Server):
    """The stand-in's HTTP surface with hooks."""

    zoo: Zoo
    behaviour: Behaviour

    def handle(self, connection: ZooConnection, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        """Answer one request, unless the behaviour does."""
        connection.play = None
        path = target.partition("?")[0]
        found = self.behaviour.http(method, path, headers)
        if found is None and method == "POST" and not body.rstrip().endswith(b"}"):
            found = self.behaviour.bad_body()
        if not self._instead(connection, found):
            super().handle(connection, method, target, headers, body)

    def _instead(self, connection: ZooConnection, found: object) -> bool:
        if found is None:
            return False
        if found is CUT:
            connection.transport.abort()
        elif found is DIE:
            self.zoo.die()
        elif found is not HANG:
            status, body = found
            if isinstance(body, str):
                connection.answer(status, body.encode(), "text/html")
            else:
                connection.answer(status, standin.compact(body).encode())
        return True

    def _generate(self, connection: ZooConnection, path: str, headers: dict, request: dict, chat: bool, key: int | None) -> None:
        messages = request.get("messages") if isinstance(request.get("messages"), list) else []
        texts = [standin.text_of(message.get("content")) for message in messages if message.get("role") == "user"]
        question = texts[-1] if texts else ""
        begin = question[: LONG // 2] if len(question) > LONG else ""
        play = Play(len(self.zoo.asked), request, question, len(self.core.running), self.zoo.begun.count(begin) if begin else 0)
        play.before = connection.questions
        connection.questions += (question,)
        self.zoo.asked.append(request)
        self.zoo.begun.append(begin)
        connection.play = play
        if not self._instead(connection, self.behaviour.asked(play)):
            super()._generate(connection, path, headers, play.body, chat, key)

    def _models(self) -> dict:
        return self.behaviour.models(super()._models())


class Zoo:
    """One engine of the zoo on a port of its own. Use as a context manager.

    Attributes:
        url: where it answers.
        asked: the body of every generation asked for, as it came.
        drip: bytes per piece on the wire; 0 sends events whole.
        keeps_open: whether a stream's connection stays open after its end.
    """

    def __init__(self, behaviour: Behaviour | None = None, options: tuple[str, ...] = (), key: str = "") -> None:
        self.behaviour = behaviour or Behaviour()
        self.behaviour.zoo = self
        self.changes_events = type(self.behaviour).event is not Behaviour.event
        self.asked: list[dict] = []
        self.begun: list[str] = []
        self.drip = 0
        self.keeps_open = False
        self.url = ""
        self.dead = False
        self._arguments = [*OPTIONS, *options]
        self._key = key
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._over: asyncio.Event | None = None
        self._listener: socket.socket | None = None
        self.server: ZooServer | None = None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        built = standin.build(self._arguments)
        # The stand-in builds its own class; what it holds is ours to use with another surface.
        built.__class__ = ZooServer
        built.zoo, built.behaviour = self, self.behaviour
        if self._key:
            built._keys = [self._key]
        plain = built.metrics.render
        built.metrics.render = lambda now: self.behaviour.metrics(plain(now))
        self.server = built
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        await self._loop.create_server(lambda: ZooConnection(built), sock=self._listener, backlog=512)
        self.url = "http://127.0.0.1:{0}".format(self._listener.getsockname()[1])
        self._ready.set()
        await self._over.wait()
        self.die()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def die(self) -> None:
        """End like a crashed process: nothing listens, every connection is cut."""
        self.dead = True
        if self._listener.fileno() >= 0:
            # asyncio's own server, once closed, forgets connections that it had just taken: open for ever, which no dead process leaves.
            self._loop.remove_reader(self._listener)
            self._listener.close()
        for connection in list(self.server.connections):
            connection.transport.abort()

    def close(self) -> None:
        """Stop listening, from any thread."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (self.die(), done.set()))
        done.wait()

    def occupy(self, seconds: float, streams: int) -> None:
        """Let other clients hold ``streams`` slots for ``seconds``, as in a busy engine."""
        done = threading.Event()

        def fill() -> None:
            for _number in range(streams):
                script = self.server._script.with_changes({"decode_tokens_per_s": 20.0}, "zoo")
                plan = standin.Plan()
                for _token in range(max(1, int(seconds * 20))):
                    plan.add("hidden", "", b"x")
                sequence = standin.Sequence([standin.Span("busy")], plan, script, None, lambda *_args: None)
                self.server.submit(sequence)
            done.set()

        self._loop.call_soon_threadsafe(fill)
        done.wait()

    def __enter__(self) -> Zoo:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the zoo's engine did not start")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)


def codes(text: str) -> list[str]:
    """The random codes in a text."""
    return re.findall(r"\d{4,}", text)


def now() -> float:
    """Seconds, for hooks that count time."""
    return time.monotonic()
