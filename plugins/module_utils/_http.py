# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one door to HTTP, and the only file that knows ``requests``. Private to the collection.

Three deadlines are kept apart because they mean different faults: no connection, silence, and too long in all.
Environment proxies are never used and redirects never followed: a replica key must reach its replica and nobody else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
from collections.abc import Iterator

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

try:
    import requests
except ImportError:
    HAS_REQUESTS = False
else:
    HAS_REQUESTS = True

#: Bytes of an answer kept in an error message.
BODY_HEAD = 200

#: No wait is longer than this, seconds: a week. A longer one, or one without end, is a slip, and some clocks take none.
LONGEST_S = 604800.0

REFUSED = "refused"
RESET = "reset"
CONNECT_TIMEOUT = "connect_timeout"
SILENT = "silent"
TOTAL_TIMEOUT = "total_timeout"
PROTOCOL = "protocol"


class HttpError(LLMError):
    """A request that got no complete HTTP answer.

    Attributes:
        kind: ``refused``, ``reset`` (closed before the answer was complete), ``connect_timeout``, ``silent``
            (connected, then no byte for the silence limit), ``total_timeout`` or ``protocol``.
        url: the address asked.
    """

    def __init__(self, kind: str, url: str, message: str) -> None:
        super().__init__("{0}: {1}".format(url, message))
        self.kind = kind
        self.url = url


@dataclasses.dataclass(frozen=True)
class Deadlines:
    """Limits of one request, all in seconds.

    Attributes:
        connect_s: until the TCP connection stands.
        silence_s: without any byte, before the answer begins and between its parts.
        total_s: from sending to the last byte.
    """

    connect_s: float = 3.0
    silence_s: float = 60.0
    total_s: float = 120.0


@dataclasses.dataclass(frozen=True)
class Reply:
    """A whole answer.

    Attributes:
        status: HTTP status.
        content_type: the header, or an empty string.
        body: the bytes received.
        seconds: from sending to the last byte.
    """

    status: int
    content_type: str
    body: bytes
    seconds: float

    def text(self) -> str:
        """The body as text; bytes that are not UTF-8 become U+FFFD."""
        return self.body.decode("utf-8", "replace")

    def head(self) -> str:
        """The start of the body on one line, for messages."""
        return one_line(self.text())

    def json(self, url: str) -> object:
        """Decode the body. Raises HttpError (``protocol``) naming ``url`` when it is not JSON."""
        try:
            return json.loads(self.text())
        except (ValueError, RecursionError):
            raise HttpError(PROTOCOL, url, "HTTP {0} with a body that is not JSON: {1}".format(self.status, self.head())) from None


def one_line(text: str, limit: int = BODY_HEAD) -> str:
    """Fold ``text`` to one printable line of at most ``limit`` characters."""
    folded = " ".join(text.split())
    folded = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in folded)
    return folded if len(folded) <= limit else folded[: limit - 3] + "..."


def read_key(path: str) -> str:
    """Read an API key from its file; an empty ``path`` means no key is used.

    Raises LLMError naming the file when it can't be read, is empty, or holds more than one line. The key itself is
    never part of a message.
    """
    if not path:
        return ""
    try:
        # Some editors begin a file with a mark that is no part of the key.
        with open(path, encoding="utf-8-sig") as handle:
            text = handle.read().strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not text"
        raise LLMError("API key file {0} can't be read: {1}. Write one key into it, mode 0600".format(path, reason)) from None
    if not text or len(text.split()) != 1:
        raise LLMError("API key file {0} must hold exactly one key on one line".format(path))
    if not all("!" <= char <= "~" for char in text):
        raise LLMError("API key file {0} holds a character that no HTTP header can carry. Write the key anew, in plain ASCII".format(path))
    return text


class Stream:
    """An answer that is read while it arrives. Use as a context manager and iterate.

    Iterating yields ``(at, chunk)``: the ``time.monotonic()`` at which the bytes were in hand, and the bytes.

    Attributes:
        status: HTTP status.
        content_type: the header, or an empty string.
        sent_at: ``time.monotonic()`` just before the connection was opened.
    """

    def __init__(self, url: str, response: requests.Response, sent_at: float, deadlines: Deadlines) -> None:
        self.url = url
        self.status = response.status_code
        self.content_type = response.headers.get("Content-Type", "")
        self.sent_at = sent_at
        self._deadlines = deadlines
        self._response = response
        self._expired = False
        self._timer = None

    def __enter__(self) -> Stream:
        remaining = self.sent_at + self._deadlines.total_s - time.monotonic()
        self._timer = threading.Timer(max(remaining, 0.0), self._expire)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._timer.cancel()
        self._response.close()

    def _expire(self) -> None:
        # requests has no total deadline, and a server that drips bytes never trips the silence limit: shutting the
        # socket down wakes the reader at the right moment.
        self._expired = True
        with self._socket() as duplicate:
            if duplicate is not None:
                with contextlib.suppress(OSError):
                    duplicate.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _socket(self) -> Iterator[socket.socket | None]:
        """A duplicate of the answer's socket; None when it is closed."""
        try:
            duplicate = socket.socket(fileno=os.dup(self._response.raw.fileno()))
        except (OSError, ValueError, AttributeError):
            yield None
            return
        try:
            yield duplicate
        finally:
            duplicate.close()

    def own_port(self) -> int:
        """This side's port, which tells one connection from another; 0 when it is closed already."""
        with self._socket() as duplicate:
            return duplicate.getsockname()[1] if duplicate is not None else 0

    def _over(self) -> HttpError:
        return HttpError(TOTAL_TIMEOUT, self.url, "the answer was not complete after {0:g} s".format(self._deadlines.total_s))

    def __iter__(self) -> Iterator[tuple[float, bytes]]:
        chunked = "chunked" in self._response.headers.get("Transfer-Encoding", "").lower()
        # Without chunks a larger read would wait for its buffer to fill and spoil every time stamp.
        size = None if chunked else 1
        if not chunked and "Content-Length" in self._response.headers:
            size = 65536
        try:
            for chunk in self._response.iter_content(chunk_size=size):
                yield time.monotonic(), chunk
                if self._expired or time.monotonic() - self.sent_at > self._deadlines.total_s:
                    raise self._over()
        except (requests.RequestException, OSError, AttributeError, ValueError) as exc:
            # AttributeError and ValueError are what http.client raises on a socket shut down under its hands.
            if self._expired:
                raise self._over() from None
            if not isinstance(exc, (requests.RequestException, OSError)):
                raise HttpError(PROTOCOL, self.url, "the answer can't be read: {0}".format(exc)) from None
            raise _translate(exc, self.url, self._deadlines) from None
        if self._expired:
            raise self._over()


def _causes(exc: BaseException) -> list[BaseException]:
    """The chain of exceptions below ``exc``, where ``requests`` hides what really happened."""
    seen = []
    todo = [exc]
    while todo:
        item = todo.pop()
        if item in seen:
            continue
        seen.append(item)
        nested = [getattr(item, "reason", None), item.__cause__, item.__context__] + list(item.args)
        todo.extend(found for found in nested if isinstance(found, BaseException))
    return seen


def _translate(exc: Exception, url: str, deadlines: Deadlines) -> HttpError:
    """Turn what ``requests`` raised into an HttpError that says what happened."""
    chain = _causes(exc)
    names = [type(item).__name__ for item in chain]
    if isinstance(exc, requests.exceptions.ConnectTimeout):
        return HttpError(CONNECT_TIMEOUT, url, "no connection after {0:g} s".format(deadlines.connect_s))
    if any(isinstance(item, ConnectionRefusedError) for item in chain):
        return HttpError(REFUSED, url, "connection refused: nothing listens there")
    if isinstance(exc, requests.exceptions.ReadTimeout) or any(
        "ReadTimeout" in name or name in ("timeout", "TimeoutError") for name in names
    ):
        return HttpError(SILENT, url, "connected, then no byte for {0:g} s".format(deadlines.silence_s))
    closed = ("RemoteDisconnected", "IncompleteRead", "InvalidChunkLength", "ProtocolError", "ConnectionResetError", "BrokenPipeError")
    if any(name in closed for name in names):
        return HttpError(RESET, url, "the connection was closed before the answer was complete")
    return HttpError(PROTOCOL, url, one_line("{0}: {1}".format(type(exc).__name__, exc)))


def _new_session() -> requests.Session:
    if not HAS_REQUESTS:
        raise LLMError("the Python library 'requests' is missing on this host: install python3-requests")
    session = requests.Session()
    session.trust_env = False
    return session


class KeptConnection:
    """Asks several times over one connection, as clients with a pool do. Use as a context manager."""

    def __init__(self) -> None:
        self.session = _new_session()
        self._ports = set()

    def __enter__(self) -> KeptConnection:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.session.close()

    def request(self, method: str, url: str, key: str = "", body: object = None, deadlines: Deadlines = Deadlines()) -> Reply:
        """As ``request`` below."""
        stream = open_stream(method, url, key, body, deadlines, self)
        self._ports.add(stream.own_port())
        return _read(stream)

    def opened(self) -> int:
        """How many connections were needed until now: 1 when the server kept it."""
        return len(self._ports)


def open_stream(
    method: str, url: str, key: str = "", body: object = None, deadlines: Deadlines = Deadlines(), kept: KeptConnection | None = None
) -> Stream:
    """Send a request and return as soon as the answer's headers are there; on a connection of its own, or on ``kept``.

    Any HTTP status is returned, not raised. Raises HttpError when there is no answer.
    """
    session = kept.session if kept else _new_session()
    headers = {"Accept": "*/*"}
    if not kept:
        headers["Connection"] = "close"
    if key:
        headers["Authorization"] = "Bearer " + key
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        # Bytes are sent as they are: a bad body is a question, too.
        data = body if isinstance(body, bytes) else json.dumps(body).encode("utf-8")
    sent_at = time.monotonic()
    silence = max(0.001, min(deadlines.silence_s, deadlines.total_s))
    try:
        response = session.request(
            method,
            url,
            headers=headers,
            data=data,
            stream=True,
            allow_redirects=False,
            timeout=(min(deadlines.connect_s, deadlines.total_s), silence),
        )
    except (requests.RequestException, OSError) as exc:
        raise _translate(
            exc, url, deadlines if deadlines.silence_s <= deadlines.total_s else dataclasses.replace(deadlines, silence_s=silence)
        ) from None
    return Stream(url, response, sent_at, deadlines)


def request(method: str, url: str, key: str = "", body: object = None, deadlines: Deadlines = Deadlines()) -> Reply:
    """Send a request and read the whole answer. Any HTTP status is returned; raises HttpError when there is none."""
    return _read(open_stream(method, url, key, body, deadlines))


def _read(answer: Stream) -> Reply:
    with answer as stream:
        parts = [chunk for _at, chunk in stream]
        return Reply(stream.status, stream.content_type, b"".join(parts), time.monotonic() - stream.sent_at)
