# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The measuring client: many streamed answers at a time over plain sockets, with the time of every event. Private to the collection.

One thread, one epoll. What is measured is kept apart from what it means:

- Bytes are stamped by the kernel when they come in from the network (``SO_TIMESTAMPNS``), so a client that reads late still tells the right time.
  Where the kernel does not, the stamp is taken right after the read, before anything else is done.
- While a stream runs, its bytes are only kept. Their events are read when nothing else is waiting.
- How late the reads are is measured all the time, and kept for whoever judges the figures.

Times are ``time.monotonic()`` seconds. Linux only.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
import gc
import os
import random
import re
import resource
import select
import socket
import ssl
import struct
import time
import urllib.parse
from typing import Any, Iterator, Sequence

from ansible_collections.ironserve.llm.plugins.module_utils import _http, _sse
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: Linux's number of the option and of its message, which Python has no name for.
SO_TIMESTAMPNS = 35

#: Bytes of one read. A client that reads 64 KiB at a time falls behind on long answers of many streams.
READ_BYTES = 4 << 20

#: A client clock that was set back or forth would move stamps; a read is never later than this, in seconds.
AGE_LIMIT_S = 60.0

#: The loop's own clock: so often it is asked how late it is, in seconds, give or take half of it.
BEAT_S = 0.02

#: How often deadlines are looked at, in seconds.
WATCH_S = 0.1

#: Connections on the way at a time; a kernel's backlog is no longer.
OPENING = 128

#: Reads of finished answers that are taken apart before the sockets are looked at again; about a tenth of a millisecond.
DIGEST = 6

CONNECTING, HANDSHAKE, SENDING, READING, OVER = range(5)

_READ_MASK = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_LAST_EVENT = b"data: [DONE]"
_CHUNK_SIZE = re.compile(b"[0-9A-Fa-f]{1,15}$")
_STATUS = re.compile("[1-9][0-9]{2}$")


@dataclasses.dataclass(frozen=True)
class Target:
    """Where requests go.

    Attributes:
        url: address with path, for messages.
        family, address: what the socket connects to; the name was looked up once.
        host: name for the certificate and the Host header.
        head: the request's head without its Content-Length line and end.
        tls: context for https, or None.
    """

    url: str
    family: int
    address: tuple
    host: str
    head: bytes
    tls: ssl.SSLContext | None


def target(base: str, path: str, key: str = "", ca_file: str = "") -> Target:
    """The place ``path`` at ``base`` (``http://host:port`` or https). Raises LLMError when it is no address or the name is unknown.

    ``ca_file`` names the certificates that are trusted instead of the system's.
    """
    try:
        parts = urllib.parse.urlsplit(base)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as exc:
        raise LLMError("{0} is no address: {1}".format(base, exc)) from None
    host = parts.hostname
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise LLMError("{0} is no address such as http://127.0.0.1:8000".format(base))
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as exc:
        raise LLMError("{0}: the name {1} is not known: {2}".format(base, host, exc.strerror or exc)) from None
    context = None
    if parts.scheme == "https":
        try:
            context = ssl.create_default_context(cafile=ca_file or None)
        except (OSError, ssl.SSLError) as exc:
            raise LLMError("{0}: certificates can't be read: {1}".format(ca_file, exc)) from None
    whole = parts.path.rstrip("/") + path
    lines = [
        "POST {0} HTTP/1.1".format(whole),
        "Host: {0}".format(parts.netloc),
        "Accept: text/event-stream",
        "Content-Type: application/json",
        "Connection: close",
    ]
    if key:
        lines.append("Authorization: Bearer " + key)
    head = ("\r\n".join(lines) + "\r\n").encode("latin-1")
    return Target("{0}://{1}{2}".format(parts.scheme, parts.netloc, whole), found[0], found[4], host, head, context)


@dataclasses.dataclass(frozen=True)
class Lane:
    """Requests for one target, in order.

    Attributes:
        target: where.
        bodies: the requests' JSON bodies, ready to be sent.
        width: at most so many at a time.
        due: None sends the next when there is room (closed loop). Else seconds from the start at which each is sent, whoever is still at
            work (open loop); one for which there is no room then fails.
    """

    target: Target
    bodies: Sequence[bytes]
    width: int
    due: Sequence[float] | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds: until a connection stands, without any byte, for one answer, and for all of them together."""

    connect_s: float = 5.0
    silence_s: float = 120.0
    request_s: float = 600.0
    run_s: float = 3600.0


@dataclasses.dataclass
class Chunk:
    """One event of a stream: its time, kinds (see ``_sse``), tokens generated until then where it says so, and whether it had choices."""

    __slots__ = ("at", "kinds", "made", "has_choices")

    at: float
    kinds: frozenset
    made: int | None
    has_choices: bool


@dataclasses.dataclass
class Answer:
    """What became of one request. Times are monotonic seconds, None for what did not happen.

    Attributes:
        index: place in its lane.
        due: when it should have been sent; None in a closed loop.
        started, connected, sent: before connecting; the connection stood; the last byte of the request was handed over.
        at_once: whether that took no waiting, so that no lateness of the client is in it.
        ended: no more came.
        status: HTTP status, 0 without an answer.
        kind, error: what went wrong (kinds of ``_http``, ``status``, ``stream``, ``overload``), empty for nothing.
        chunks: its events, in order.
        content, reasoning, tool: text of each channel.
        finish: the finish reason.
        usage: the last usage object.
    """

    index: int
    due: float | None = None
    started: float | None = None
    connected: float | None = None
    sent: float | None = None
    at_once: bool = False
    ended: float | None = None
    status: int = 0
    kind: str = ""
    error: str = ""
    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    tool: str = ""
    finish: str = ""
    usage: dict[str, Any] = dataclasses.field(default_factory=dict)

    def fail(self, kind: str, text: str) -> None:
        """Note the first thing that went wrong."""
        if not self.kind:
            self.kind, self.error = kind, text


@dataclasses.dataclass
class Outcome:
    """What a run brought.

    Attributes:
        answers: one list per lane, by index.
        started, ended: monotonic seconds.
        lags: how late reads were, seconds, one per read or beat.
        kernel: whether the kernel stamped every read.
        cpu_s: CPU time of this thread.
        reads: how many reads there were.
    """

    answers: list[list[Answer]]
    started: float
    ended: float
    lags: list[float]
    kernel: bool
    cpu_s: float
    reads: int


class Body:
    """Take the bytes of an HTTP/1.1 answer apart: ``feed`` returns the next bytes of its body."""

    def __init__(self) -> None:
        self._buffer = b""
        self._left = -1
        self._chunked = False
        self._in_chunk = False
        self.headers: dict[str, str] = {}
        self.status = 0
        self.over = False
        self.fault = ""

    def _bad(self, text: str, raw: bytes) -> bytes:
        self.fault = "{0}: {1}".format(text, _http.one_line(raw[:100].decode("latin-1")))
        self.over = True
        return b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return what they add to the body. ``over`` and ``fault`` tell its end."""
        if self.over:
            return b""
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        while not self.status:
            head, end, rest = data.partition(b"\r\n\r\n")
            if not end:
                self._buffer = data
                return self._bad("the head of the answer does not end", data) if len(data) > 65536 else b""
            if not self._read_head(head):
                return b""
            data = rest
        if not self._chunked:
            return self._plain(data)
        return self._chunks(data)

    def _read_head(self, head: bytes) -> bool:
        lines = head.decode("latin-1").split("\r\n")
        first = lines[0].split(None, 2)
        if len(first) < 2 or not first[0].startswith("HTTP/1.") or not _STATUS.match(first[1]):
            self._bad("this is no HTTP answer", head)
            return False
        if first[1].startswith("1"):
            # 100 Continue and its kind; the answer is still to come.
            return True
        self.status = int(first[1])
        for line in lines[1:]:
            name, _colon, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length", "")
        # Latin-1 has digits that are no numbers, such as a raised 2.
        if not self._chunked and length.encode("latin-1").isdigit():
            self._left = int(length)
            self.over = self._left == 0
        return True

    def _plain(self, data: bytes) -> bytes:
        if self._left < 0:
            return data
        out = data[: self._left]
        self._left -= len(out)
        self.over = self._left == 0
        return out

    def _chunks(self, data: bytes) -> bytes:
        out = []
        at = 0
        while True:
            if self._in_chunk:
                out.append(data[at : at + self._left])
                took = min(self._left, len(data) - at)
                at += took
                self._left -= took
                if self._left:
                    return b"".join(out)
                if len(data) < at + 2:
                    self._buffer = data[at:]
                    return b"".join(out)
                at += 2
                self._in_chunk = False
            end = data.find(b"\r\n", at)
            if end < 0:
                self._buffer = data[at:]
                if len(self._buffer) > 4096:
                    self._bad("this is no chunk", self._buffer)
                return b"".join(out)
            size = data[at:end].partition(b";")[0].strip()
            # int() takes a sign, too, and a chunk of less than nothing would be read for ever.
            if not _CHUNK_SIZE.match(size):
                self._bad("this is no chunk", data[at:end])
                return b"".join(out)
            self._left = int(size, 16)
            at = end + 2
            if not self._left:
                # Trailers tell nothing that is wanted.
                self.over = True
                return b"".join(out)
            self._in_chunk = True

    def close(self) -> None:
        """Say that the connection was closed; a body that has no other end is complete."""
        if not self.over and self.status and not self._chunked and self._left < 0:
            self.over = True


class _Exchange:
    """One request on its connection. ``reads`` are bytes as they came, ``pieces`` those of the body with their times."""

    __slots__ = (
        "answer",
        "lane",
        "sock",
        "out",
        "body",
        "phase",
        "reads",
        "pieces",
        "frame",
        "tail",
        "eof",
        "fault",
        "last",
        "tls",
        "inward",
        "outward",
    )

    def __init__(self, answer: Answer, lane: int, body: bytes) -> None:
        self.answer = answer
        self.lane = lane
        self.sock = None
        self.body = body
        self.out = memoryview(b"")
        self.phase = CONNECTING
        self.reads = []
        self.pieces = []
        self.frame = Body()
        self.tail = b""
        self.eof = False
        self.fault = ""
        self.last = 0.0
        self.tls = None
        self.inward = self.outward = None


def digest(answer: Answer, pieces: Sequence[tuple[float, bytes]], frame: Body) -> Iterator[None]:
    """Read the events of a body into ``answer``; yields after each piece, so that it can be done bit by bit.

    ``frame`` is what the body was taken out of; it knows the status and how the answer ended.
    """
    answer.status = frame.status
    decoder = _sse.Decoder()
    kept = {"content": [], "reasoning": [], "tool": []}
    known = {}
    raw = b""
    done = False

    def take(events: list[_sse.Event]) -> None:
        nonlocal done
        for event in events:
            done = done or _sse.DONE in event.kinds
            if event.error:
                answer.fail("stream", _http.one_line(event.error))
            made = None
            if event.usage is not None:
                answer.usage = event.usage
                count = event.usage.get("completion_tokens")
                made = count if isinstance(count, int) else None
            answer.finish = event.finish or answer.finish
            for channel, parts in kept.items():
                part = getattr(event, channel)
                if part:
                    parts.append(part)
            # The few combinations there are need not be kept a million times.
            kinds = known.setdefault(event.kinds, event.kinds)
            if kinds or event.has_choices:
                answer.chunks.append(Chunk(event.at, kinds, made, event.has_choices))

    for at, piece in pieces:
        if frame.status == 200:
            take([_sse.parse(at, text) for text in decoder.feed(piece)])
        elif len(raw) < 4096:
            raw += piece
        yield None
    if frame.status == 200 and pieces:
        take([_sse.parse(pieces[-1][0], text) for text in decoder.close()])
    for channel, parts in kept.items():
        setattr(answer, channel, "".join(parts))
    if answer.kind:
        return
    if frame.fault:
        answer.fail(_http.PROTOCOL, frame.fault)
    elif frame.status and frame.status != 200:
        answer.fail("status", "HTTP {0}: {1}".format(frame.status, _http.one_line(raw.decode("utf-8", "replace")) or "no text"))
    elif not frame.over and not done:
        answer.fail(_http.RESET, "the connection was closed before the answer was complete")
    elif not any(chunk.has_choices for chunk in answer.chunks):
        answer.fail("stream", "HTTP 200 without one event of a stream ({0})".format(frame.headers.get("content-type", "no content type")))


def kernel_stamps(keeper: socket.socket, wait_s: float = 0.2) -> bool:
    """Whether the kernel stamps what comes in; ``keeper`` makes it do so until it is closed. It may take a moment to begin."""
    until = time.monotonic() + wait_s
    try:
        keeper.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        keeper.bind(("127.0.0.1", 0))
        keeper.listen(1)
        with socket.create_connection(keeper.getsockname(), wait_s) as near, keeper.accept()[0] as far:
            near.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            while time.monotonic() < until:
                far.sendall(b".")
                notes = near.recvmsg(1, 64)[1]
                if any(level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS for level, kind, _data in notes):
                    return True
                time.sleep(0.001)
    except OSError:
        return False
    return False


class Client:
    """Runs lanes of requests side by side.

    Args:
        limits: what is waited for.
        kernel: whether to ask the kernel for stamps.
        burden: called once per turn of the loop; for tests of the lag meter only.
    """

    def __init__(self, limits: Limits = Limits(), kernel: bool = True, burden: Any = None) -> None:
        self._limits = limits
        self._kernel_wanted = kernel
        self._burden = burden

    def run(self, lanes: Sequence[Lane]) -> Outcome:
        """Send everything and wait for all answers. Raises LLMError only when nothing can be sent at all."""
        self._lanes = list(lanes)
        self._room(sum(min(lane.width, len(lane.bodies)) for lane in lanes))
        self._answers = [[Answer(index) for index in range(len(lane.bodies))] for lane in lanes]
        self._next = [0] * len(lanes)
        self._busy = [0] * len(lanes)
        self._active = {}
        self._opening = 0
        self._finished = collections.deque()
        self._work = None
        self._lags = []
        keeper = socket.socket()
        self._kernel = self._kernel_wanted and kernel_stamps(keeper)
        self._reads = 0
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._epoll = select.epoll()
        # A collection of garbage in the middle of a run would be a lag of our own making.
        collecting = gc.isenabled()
        gc.disable()
        cpu = time.thread_time()
        self._start = time.monotonic()
        try:
            self._loop()
            ended = time.monotonic()
            while self._digest_some():
                pass
        finally:
            for exchange in list(self._active.values()):
                exchange.sock.close()
            self._epoll.close()
            keeper.close()
            if collecting:
                gc.enable()
        spent = time.thread_time() - cpu
        return Outcome(self._answers, self._start, ended, self._lags, self._kernel and self._reads > 0, spent, self._reads)

    @staticmethod
    def _room(wanted: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = wanted + 64
        if soft != resource.RLIM_INFINITY and soft < needed:
            if hard != resource.RLIM_INFINITY and hard < needed:
                raise LLMError("{0} connections at a time need more open files than the limit of {1}; raise ulimit -n".format(wanted, hard))
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))

    # ---- the loop

    def _loop(self) -> None:
        beat = self._start + BEAT_S
        watch = self._start + WATCH_S
        over_at = self._start + self._limits.run_s
        while True:
            now = time.monotonic()
            if now > over_at:
                self._give_up("the run was not over after {0:g} s".format(self._limits.run_s))
                return
            upcoming = self._begin(now)
            if not self._active and upcoming is None:
                return
            waits = [beat, watch, over_at] + ([upcoming] if upcoming is not None else [])
            ready = self._wait(0.0 if self._work or self._finished else max(0.0, min(waits) - time.monotonic()))
            woke = time.monotonic()
            got = []
            for number, mask in ready:
                exchange = self._active[number]
                if exchange.phase in (READING, HANDSHAKE) and mask & _READ_MASK:
                    self._receive(exchange, woke)
                    got.append(exchange)
                else:
                    self._move(exchange)
            # Only now, with everything stamped, is anything looked at.
            for exchange in got:
                self._look(exchange)
            if self._burden is not None:
                self._burden()
            now = time.monotonic()
            if now >= beat:
                if not self._kernel:
                    self._lags.append(now - beat)
                beat = now + BEAT_S * random.uniform(0.5, 1.5)
            if now >= watch:
                self._watch(now)
                watch = now + WATCH_S
            if not ready:
                for _read in range(DIGEST):
                    if not self._digest_some():
                        break

    def _wait(self, seconds: float) -> list[tuple[int, int]]:
        if seconds >= 0.002:
            # Down to a whole millisecond; what is left is waited for the next time.
            return self._epoll.poll(int(seconds * 1000.0) / 1000.0)
        if seconds > 0:
            # epoll alone waits for whole milliseconds; an epoll can itself be waited for.
            select.select([self._epoll.fileno()], [], [], seconds)
        return self._epoll.poll(0)

    def _begin(self, now: float) -> float | None:
        """Send what is due. Returns when the next is, or None when nothing more will be sent of itself."""
        upcoming = None
        for number, lane in enumerate(self._lanes):
            while self._next[number] < len(lane.bodies):
                index = self._next[number]
                answer = self._answers[number][index]
                if lane.due is None:
                    if self._busy[number] >= lane.width or self._opening >= OPENING:
                        break
                else:
                    answer.due = self._start + lane.due[index]
                    if answer.due > now:
                        upcoming = answer.due if upcoming is None else min(upcoming, answer.due)
                        break
                    if self._busy[number] >= lane.width:
                        answer.fail("overload", "{0} requests were at work when this one was due".format(lane.width))
                        self._next[number] += 1
                        continue
                self._next[number] += 1
                self._busy[number] += 1
                self._open(number, lane, answer)
        return upcoming

    def _open(self, number: int, lane: Lane, answer: Answer) -> None:
        data = lane.bodies[answer.index]
        length = "Content-Length: {0}\r\n\r\n".format(len(data)).encode("ascii")
        exchange = _Exchange(answer, number, lane.target.head + length + data)
        self._opening += 1
        answer.started = exchange.last = time.monotonic()
        try:
            sock = socket.socket(lane.target.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as exc:
            self._lost(exchange, exc)
            return
        exchange.sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._kernel:
            try:
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            except OSError:
                self._kernel = False
        code = sock.connect_ex(lane.target.address)
        if code not in (0, errno.EINPROGRESS):
            self._lost(exchange, OSError(code, os.strerror(code)))
            return
        self._active[sock.fileno()] = exchange
        self._epoll.register(sock.fileno(), select.EPOLLOUT)
        try:
            sock.getpeername()
        except OSError:
            return
        # On this machine a connection stands at once; nothing is to be waited for.
        self._move(exchange)
        answer.at_once = answer.sent is not None

    def _move(self, exchange: _Exchange) -> None:
        """A socket can be written, or its connection is there or failed."""
        sock = exchange.sock
        answer = exchange.answer
        try:
            if exchange.phase == CONNECTING:
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))
                answer.connected = exchange.last = time.monotonic()
                self._opening -= 1
                context = self._lanes[exchange.lane].target.tls
                if context is None:
                    exchange.phase = SENDING
                    exchange.out = memoryview(exchange.body)
                else:
                    exchange.phase = HANDSHAKE
                    exchange.inward, exchange.outward = ssl.MemoryBIO(), ssl.MemoryBIO()
                    host = self._lanes[exchange.lane].target.host
                    exchange.tls = context.wrap_bio(exchange.inward, exchange.outward, server_hostname=host)
                    self._shake(exchange)
            self._flush(exchange)
        except (OSError, ssl.SSLError) as exc:
            self._lost(exchange, exc)

    def _shake(self, exchange: _Exchange) -> None:
        try:
            exchange.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            # The connection stands when it is safe.
            exchange.answer.connected = time.monotonic()
            exchange.tls.write(exchange.body)
            exchange.phase = SENDING
        exchange.out = memoryview(bytes(exchange.out) + exchange.outward.read())

    def _flush(self, exchange: _Exchange) -> None:
        number = exchange.sock.fileno()
        while exchange.out:
            try:
                exchange.out = exchange.out[exchange.sock.send(exchange.out) :]
            except BlockingIOError:
                self._epoll.modify(number, select.EPOLLOUT | (select.EPOLLIN if exchange.phase == HANDSHAKE else 0))
                return
        if exchange.phase == SENDING:
            exchange.answer.sent = exchange.last = time.monotonic()
            exchange.body = b""
            exchange.phase = READING
        self._epoll.modify(number, select.EPOLLIN)

    def _receive(self, exchange: _Exchange, woke: float) -> None:
        """Read once and stamp; nothing else, because others wait."""
        at = None
        try:
            if self._kernel:
                size, notes, _flags, _address = exchange.sock.recvmsg_into([self._view], 64)
                now = time.monotonic()
                if size:
                    real = time.time()
                    for level, kind, data in notes:
                        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                            seconds, nanos = struct.unpack("ll", data[: struct.calcsize("ll")])
                            age = real - seconds - nanos * 1e-9
                            if -0.001 < age < AGE_LIMIT_S:
                                at = min(now, max(now - age, exchange.last))
                                self._lags.append(now - at)
            else:
                size = exchange.sock.recv_into(self._view)
                now = time.monotonic()
                if size:
                    self._lags.append(now - woke)
        except BlockingIOError:
            return
        except OSError as exc:
            exchange.fault = exc.strerror or str(exc)
            exchange.eof = True
            return
        if not size:
            exchange.eof = True
            return
        self._reads += 1
        if at is None:
            at = now
            self._kernel = False
        exchange.last = at
        exchange.reads.append((at, bytes(self._view[:size])))

    def _look(self, exchange: _Exchange) -> None:
        """Find out whether the answer is complete."""
        if exchange.tls is not None and not self._decrypt(exchange):
            return
        frame = exchange.frame
        for at, data in exchange.reads:
            piece = frame.feed(data)
            exchange.pieces.append((at, piece))
            exchange.tail = (exchange.tail + piece[-20:])[-20:]
        del exchange.reads[:]
        if exchange.eof:
            frame.close()
            if exchange.fault:
                exchange.answer.fail(_http.RESET, "the connection broke: {0}".format(exchange.fault))
        # Some servers leave the connection open after their last word.
        if exchange.eof or frame.over or (frame.status == 200 and exchange.tail.rstrip(b"\r\n").endswith(_LAST_EVENT)):
            self._close(exchange)

    def _decrypt(self, exchange: _Exchange) -> bool:
        """Put plain bytes in place of those just read. False when there is nothing to look at."""
        try:
            if exchange.reads:
                at, data = exchange.reads.pop()
                exchange.inward.write(data)
                if exchange.phase == HANDSHAKE:
                    self._shake(exchange)
                    self._flush(exchange)
                    return False
                plain = []
                try:
                    while True:
                        part = exchange.tls.read(READ_BYTES)
                        if not part:
                            exchange.eof = True
                            break
                        plain.append(part)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    exchange.eof = True
                if plain:
                    exchange.reads.append((at, b"".join(plain)))
                return bool(plain) or exchange.eof
        except (OSError, ssl.SSLError) as exc:
            self._lost(exchange, exc)
            return False
        return True

    # ---- ends

    def _close(self, exchange: _Exchange) -> None:
        """The exchange is over; its bytes are looked at later, its place is free now."""
        if exchange.phase == OVER:
            return
        if exchange.phase == CONNECTING:
            self._opening -= 1
        exchange.phase = OVER
        exchange.answer.ended = exchange.pieces[-1][0] if exchange.pieces else time.monotonic()
        if exchange.sock is not None:
            self._active.pop(exchange.sock.fileno(), None)
            # Closing takes it out of the epoll, too.
            exchange.sock.close()
        self._busy[exchange.lane] -= 1
        self._finished.append(exchange)

    def _lost(self, exchange: _Exchange, exc: Exception) -> None:
        kind = _http.RESET
        text = "the connection broke: {0}".format(getattr(exc, "strerror", "") or exc)
        if isinstance(exc, ConnectionRefusedError):
            kind, text = _http.REFUSED, "connection refused: nothing listens there"
        elif isinstance(exc, ssl.SSLError):
            kind, text = _http.PROTOCOL, "no safe connection: {0}".format(_http.one_line(str(exc)))
        exchange.answer.fail(kind, text)
        self._close(exchange)

    def _watch(self, now: float) -> None:
        limits = self._limits
        for exchange in list(self._active.values()):
            answer = exchange.answer
            if exchange.phase == CONNECTING or exchange.phase == HANDSHAKE:
                if now - answer.started > limits.connect_s:
                    answer.fail(_http.CONNECT_TIMEOUT, "no connection after {0:g} s".format(limits.connect_s))
            elif now - exchange.last > limits.silence_s:
                answer.fail(_http.SILENT, "connected, then no byte for {0:g} s".format(limits.silence_s))
            if now - answer.started > limits.request_s:
                answer.fail(_http.TOTAL_TIMEOUT, "the answer was not complete after {0:g} s".format(limits.request_s))
            if answer.kind:
                self._close(exchange)

    def _give_up(self, why: str) -> None:
        for exchange in list(self._active.values()):
            exchange.answer.fail(_http.TOTAL_TIMEOUT, why)
            self._close(exchange)
        for number, answers in enumerate(self._answers):
            for answer in answers[self._next[number] :]:
                answer.fail(_http.TOTAL_TIMEOUT, why)

    def _digest_some(self) -> bool:
        """Take one read of a finished answer apart. False when there is none."""
        if self._work is None:
            if not self._finished:
                return False
            exchange = self._finished.popleft()
            self._work = digest(exchange.answer, exchange.pieces, exchange.frame)
        try:
            next(self._work)
        except StopIteration:
            self._work = None
        return True
