# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Weights from one host to many, each sending on what it has verified. Private to the collection.

The hosts form a chain: the origin, which holds verified weights, then each taker in turn. The origin cuts the files into pieces and
writes down the sha256 of each; the digest of that table travels through Ansible, the table itself and the pieces from host to host
over HTTP with ranges. A piece is verified before it is written, and offered to the next host at once, so the chain is full after one
piece a host. A host before that dies, stands still or sends wrong bytes is passed by: the one further up is asked, at last the origin.

Every host runs one job (see _jobs) that takes and gives. It ends when it is told to, or when nobody asked for some minutes. Half files
lie in ``<path>.job/pieces``, whole ones in ``<path>.part``, from where _weights verifies them once more and puts them in place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import hmac
import http.client
import http.server
import json
import os
import socket
import threading
import time
import urllib.parse
from typing import Any, Callable

from ansible_collections.ironserve.llm.plugins.module_utils import _hashing, _jobs, _manifest, _progress, _weights
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._manifest import Entry
from ansible_collections.ironserve.llm.plugins.module_utils._pieces import Holdings, Piece, Store, make_table, read_table

#: How long a request for a piece that is still to come is held open, in seconds.
HOLD_S = 2.0
#: Longest silence of a connection, in seconds; above HOLD_S.
SILENCE_S = 30.0
CONNECT_S = 5.0
#: How often every host up the chain hears that it may still be needed, in seconds; well below any idle time.
PING_S = 10.0
#: A host before that gained nothing for this long, while the one further up can give, is passed by, in seconds.
STILL_S = 20.0
#: And so is one that the one further up would beat by this factor.
SLOWER = 4.0
#: A host that sent this many wrong pieces is asked for no more.
WRONG_LIMIT = 3
#: Pieces that one host asks for side by side: one comes while the other is verified and written. They come one after the other, for two
#: at half the speed each would reach the next host later.
WORKERS = 2

#: No answer is longer, in bytes: a table for a terabyte of pieces is 2 MiB.
_MOST = 64 << 20
#: A send under a cap goes in such parts, in bytes.
_SLICE = 128 << 10


# --- giving -----------------------------------------------------------------------------------------------------------


class Bucket:
    """Spreads what is sent over time: at most ``rate`` bytes a second over all connections; 0 is no cap."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self.rate = rate
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int) -> None:
        """Wait until ``count`` bytes may go."""
        if not self.rate:
            return
        with self._lock:
            begin = max(self._free_at, self._clock())
            self._free_at = begin + count / float(self.rate)
            pause = begin - self._clock()
        if pause > 0:
            self._sleep(pause)


class _Handler(http.server.BaseHTTPRequestHandler):
    """``/table``, ``/state`` and ``/files/<path>`` with a range, for who knows the token."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 2 * SILENCE_S
    server: Giver

    def do_GET(self) -> None:
        try:
            self._answer()
        except (OSError, ValueError):
            # The other side went away, or is too slow: it asks again, or another one.
            self.close_connection = True

    def _answer(self) -> None:
        giver = self.server
        kind, _space, token = (self.headers.get("Authorization") or "").partition(" ")
        if kind != "Bearer" or not giver.knows(token):
            self._reply(401)
            return
        giver.asked_at = time.monotonic()
        holdings = giver.holdings
        if self.path == "/state":
            self._reply(200, json.dumps({"have": holdings.count, "total": len(holdings.pieces)}).encode("ascii"))
        elif self.path == "/table":
            with holdings.changed:
                holdings.changed.wait_for(lambda: holdings.table, HOLD_S)
            self._reply(200 if holdings.table else 503, holdings.table)
        elif self.path.startswith("/files/"):
            self._file(urllib.parse.unquote(self.path[len("/files/") :]))
        else:
            self._reply(404)

    def _file(self, path: str) -> None:
        giver, holdings = self.server, self.server.holdings
        size = giver.sizes.get(path)
        if size is None:
            self._reply(404)
            return
        begin, end = byte_range(self.headers.get("Range") or "", size)
        if begin >= end:
            self._reply(416)
            return
        with holdings.changed:
            here = holdings.changed.wait_for(lambda: holdings.covered(path, begin, end), HOLD_S)
        if not here:
            self._reply(503)
            return
        handle = self._open(path)
        with handle:
            self.send_response(206)
            self.send_header("Content-Range", "bytes {0}-{1}/{2}".format(begin, end - 1, size))
            self.send_header("Content-Length", str(end - begin))
            self.send_header("X-Have", str(holdings.count))
            self.end_headers()
            try:
                handle.seek(begin)
                while handle.tell() < end:
                    part = min(end - handle.tell(), _SLICE) if giver.bucket.rate else end - handle.tell()
                    giver.bucket.take(part)
                    if not self.connection.sendfile(handle, handle.tell(), part):
                        # The file is shorter than it was: the other side must not wait for the rest.
                        self.close_connection = True
                        break
            finally:
                giver.add_sent(handle.tell() - begin)
        giver.asked_at = time.monotonic()

    def _open(self, path: str) -> Any:
        try:
            return open(self.server.holdings.place_of(path), "rb")
        except FileNotFoundError:
            # It became whole and was moved in this moment.
            return open(self.server.holdings.place_of(path), "rb")

    def _reply(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Have", str(self.server.holdings.count))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "ironserve"

    def log_message(self, *args: Any) -> None:
        """Nothing: the log is for faults."""


def byte_range(header: str, size: int) -> tuple[int, int]:
    """First byte and the one behind the last of ``bytes=<first>-[<last>]``, within ``size``; ``(0, 0)`` for anything else."""
    unit, _equals, text = header.partition("=")
    first, dash, last = text.partition("-")
    if unit.strip() != "bytes" or not dash or not first.isdigit() or last and not last.isdigit():
        return 0, 0
    begin, end = int(first), int(last) + 1 if last else size
    return (begin, end) if begin < end <= size else (0, 0)


class Giver(http.server.ThreadingHTTPServer):
    """The server of one host.

    Attributes:
        holdings: what it may give.
        sizes: ``path -> bytes`` of the manifest; nothing else has a name here.
        asked_at: when somebody with a token last asked, by the monotonic clock.
        sent: bytes of files sent.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(
        self, address: str, port: int, holdings: Holdings, entries: list[Entry], token: str, folder: str = "", rate: int = 0
    ) -> None:
        self.holdings = holdings
        self.sizes = {entry.path: entry.size for entry in entries}
        self.bucket = Bucket(rate)
        self.asked_at = time.monotonic()
        self.sent = 0
        self._known = [hashlib.sha256(token.encode("utf-8")).hexdigest()]
        self._folder = folder
        self._lock = threading.Lock()
        if ":" in address:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((address, port), _Handler)
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                raise LLMError(
                    "port {0} of {1} is in use on this host, and it is needed to send weights on: choose another "
                    "weights_fanout_port, the same on all hosts".format(port, address)
                ) from exc
            if exc.errno == errno.EADDRNOTAVAIL:
                raise LLMError(
                    "{0} is no address of this host: set weights_fanout_address to the one by which the other hosts reach it".format(
                        address
                    )
                ) from exc
            raise LLMError("{0} port {1}: cannot be listened on: {2}".format(address, port, exc.strerror or exc)) from exc

    def server_bind(self) -> None:
        # The base class would ask the name service who we are, which can take long.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: connections end in all ways."""

    def knows(self, token: str) -> bool:
        """Whether a token is the one of this run, or of a run that joined it since."""
        found = hashlib.sha256(token.encode("utf-8")).hexdigest()
        for known in self._known + (joined_tokens(self._folder) if self._folder else []):
            if hmac.compare_digest(known, found):
                return True
        return False

    def add_sent(self, count: int) -> None:
        """``count`` more bytes of files went out."""
        with self._lock:
            self.sent += count

    def begin(self) -> Giver:
        """Answer from now on, in a thread of its own."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        return self


def listen_address(address: str, peers: list[str]) -> str:
    """The address to listen on for those who know this host as ``address``, a name or an address.

    Many a host believes that its own name means 127.0.1.1. Then it is the address by which it reaches ``peers`` itself.
    Raises LLMError when there is none.
    """
    try:
        found = [item[4][0] for item in socket.getaddrinfo(address, None, 0, socket.SOCK_STREAM)]
    except OSError as exc:
        raise LLMError(
            "{0}: this host does not know the address of its own name ({1}): set weights_fanout_address to an address".format(address, exc)
        ) from exc
    if address in found:
        return address
    real = [item for item in found if not item.startswith("127.") and item != "::1"]
    if real:
        return real[0]
    for peer in peers:
        try:
            family, _kind, _protocol, _name, target = socket.getaddrinfo(peer, 9, 0, socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                # No packet goes out: the kernel only chooses the way.
                probe.connect(target)
                own = probe.getsockname()[0]
        except OSError:
            continue
        if not own.startswith("127.") and own != "::1":
            return own
    raise LLMError(
        "{0} means {1} on this host itself: set weights_fanout_address to the address by which the other hosts reach it".format(
            address, found[0]
        )
    )


# --- taking -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Peer:
    """A host up the chain, and what became of asking it.

    Attributes:
        host: its name in the inventory.
        address, port: where it listens.
        seen: whether it ever answered.
        have: pieces it had when it answered last; ``grew_at`` when that number last grew, monotonic.
        failures: failed requests in a row; it is not asked before ``not_before``, monotonic.
        passed: whether it is passed by because it lags.
        wrong: wrong pieces it sent.
        given: bytes it gave.
        reason: what was wrong last, for messages.
    """

    host: str
    address: str
    port: int
    seen: bool = False
    have: int = -1
    grew_at: float = 0.0
    failures: int = 0
    not_before: float = 0.0
    passed: bool = False
    wrong: int = 0
    given: int = 0
    reason: str = "not asked"

    def name(self) -> str:
        """Host, address, port and what was wrong, in one phrase."""
        return "{0} ({1} port {2}: {3})".format(self.host, self.address, self.port, self.reason)


class NotYet(Exception):
    """The piece is still to come there."""


class WrongBytes(Exception):
    """What came is not the piece that was asked for."""


class Refused(Exception):
    """The other side answered something that is no piece."""


class Line:
    """The connections of one thread, one a peer, kept open. Threads that share ``turn`` read one body at a time."""

    def __init__(self, token: str, turn: threading.Lock | None = None) -> None:
        self._token = token
        self._turn = turn or threading.Lock()
        self._open: dict[int, http.client.HTTPConnection] = {}

    def ask(self, peer: Peer, path: str, expect: int, span: tuple[int, int] | None = None) -> bytearray:
        """The body of one answer, which must have ``expect`` bytes (-1: whatever it has).

        ``span`` is the range, first byte and the one behind the last. Raises NotYet, Refused, OSError or HTTPException.
        """
        kept = id(peer) in self._open
        try:
            return self._ask(peer, path, expect, span)
        except (OSError, http.client.HTTPException) as exc:
            self.drop(peer)
            # A connection that was idle may have been closed long ago.
            if not kept or isinstance(exc, socket.timeout):
                raise
        try:
            return self._ask(peer, path, expect, span)
        except (OSError, http.client.HTTPException):
            self.drop(peer)
            raise

    def _ask(self, peer: Peer, path: str, expect: int, span: tuple[int, int] | None) -> bytearray:
        connection = self._open.get(id(peer))
        if connection is None:
            connection = http.client.HTTPConnection(peer.address, peer.port, timeout=CONNECT_S)
            connection.connect()
            connection.sock.settimeout(SILENCE_S)
            self._open[id(peer)] = connection
        headers = {"Authorization": "Bearer " + self._token}
        if span:
            headers["Range"] = "bytes={0}-{1}".format(span[0], span[1] - 1)
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        have = reply.headers.get("X-Have") or ""
        if have.isdigit():
            if int(have) > peer.have:
                peer.have, peer.grew_at = int(have), time.monotonic()
        length = reply.headers.get("Content-Length") or ""
        wanted = 206 if span else 200
        if length.isdigit() and int(length) > _MOST:
            self.drop(peer)
            raise Refused("an answer of {0} bytes".format(length))
        if reply.status != wanted or not length.isdigit() or expect >= 0 and int(length) != expect:
            self.drop(peer) if reply.status not in (503,) else reply.read()
            if reply.status == 503:
                raise NotYet()
            raise Refused(
                "HTTP {0} with {1} bytes{2}".format(
                    reply.status, length or "?", ", it does not know the token of this run" if reply.status == 401 else ""
                )
            )
        body = bytearray(int(length))
        view, at = memoryview(body), 0
        with self._turn:
            while at < len(body):
                count = reply.readinto(view[at:])
                if not count:
                    raise http.client.HTTPException("the connection ended after {0} of {1} bytes".format(at, len(body)))
                at += count
        peer.seen = True
        return body

    def drop(self, peer: Peer) -> None:
        """Close the connection to a peer."""
        connection = self._open.pop(id(peer), None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()


class Taker:
    """Takes what is missing from the hosts up the chain, nearest first.

    Args:
        holdings: what there is and what comes.
        peers: the hosts up the chain, the nearest first, the origin last.
        token: the one of this run.
        write: puts a verified piece on disk.
        stall_s: longest time in which no piece comes, in seconds; 0 waits for ever.
        patience_s: how long a host that never answered is waited for before the next one is asked: it may start a moment later.

    Attributes:
        wrong: one line per wrong piece.
        notes: one line per host that was passed by.
        at_work: paths of the files that pieces are fetched of.
    """

    def __init__(
        self,
        holdings: Holdings,
        peers: list[Peer],
        token: str,
        write: Callable[[Piece, bytearray, str], None],
        stall_s: float = 300.0,
        patience_s: float = 20.0,
    ) -> None:
        self.holdings, self.peers, self.write = holdings, peers, write
        self.wrong: list[str] = []
        self.notes: list[str] = []
        self.at_work: dict[int, str] = {}
        self.error: BaseException | None = None
        self.taken = 0
        self._token = token
        self._stall_s = stall_s
        self._patient_until = time.monotonic() + patience_s
        self._came_at = time.monotonic()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._todo: list[Piece] = []
        self._ended = threading.Event()
        self._probed_at = 0.0

    # The choice of whom to ask.

    def choose(self, shunned: dict[int, int], now: float) -> Peer | None:
        """The peer to ask now; None when all that may be asked have to be waited for."""
        if not any(self._useful(peer, shunned) for peer in self.peers):
            with self._lock:
                for peer in self.peers:
                    peer.passed = False
        for peer in self.peers:
            if not self._useful(peer, shunned):
                continue
            if now >= peer.not_before:
                return peer
            if not peer.seen and now < self._patient_until:
                return None
        return None

    def _useful(self, peer: Peer, shunned: dict[int, int]) -> bool:
        # The last one has nobody behind it, so it may try the same piece twice.
        chances = 2 if peer is self.peers[-1] else 1
        return not peer.passed and peer.wrong < WRONG_LIMIT and shunned.get(id(peer), 0) < chances

    def failed(self, peer: Peer, exc: BaseException, now: float) -> None:
        """A request came to nothing: the peer rests, longer each time."""
        text = " ".join(str(exc).split()) or type(exc).__name__
        with self._lock:
            peer.failures += 1
            rest = min(15.0, 0.25 * 2**peer.failures) if peer.seen or now >= self._patient_until else 0.3
            peer.not_before = now + rest
            peer.reason = "no answer in time" if isinstance(exc, socket.timeout) else text[:120]

    def further(self, peer: Peer, shunned: dict[int, int], now: float) -> Peer | None:
        """The next one up the chain that can be asked."""
        for other in self.peers[self.peers.index(peer) + 1 :]:
            if self._useful(other, shunned) and now >= other.not_before:
                return other
        return None

    def lags(self, peer: Peer, rate: float, since: float, before: int, now: float) -> bool:
        """Whether a peer that could not give falls behind: it stands still, or gains far less than ``rate`` pieces a second.

        ``rate`` is what the one further up gave, 0 when that is not known; ``before`` is what the peer had at ``since``.
        """
        if now - max(peer.grew_at, since) >= STILL_S:
            return True
        return bool(rate) and rate > SLOWER * (peer.have - before) / max(now - since, 0.001)

    # The work.

    def fetch_table(self, expected: str, entries: list[Entry]) -> None:
        """Get the table of pieces from whoever has it. Raises LLMError when nobody gives the right one."""
        line, tries = Line(self._token), 0
        shunned: dict[int, int] = {}
        try:
            while True:
                peer = self.choose(shunned, time.monotonic())
                if peer is None:
                    if not any(self._useful(item, shunned) for item in self.peers):
                        raise LLMError("no host up the chain has the table of pieces: {0}. Run again".format(self._names()))
                    self._wait("the table of pieces")
                    continue
                try:
                    raw = bytes(line.ask(peer, "/table", -1))
                    self.holdings.learn(raw, read_table(raw, expected, entries))
                    self._came_at = time.monotonic()
                    self._good(peer)
                    for other in self.peers:
                        # That it had no table says nothing about pieces.
                        other.not_before = other.not_before if other.failures else 0.0
                    return
                except NotYet:
                    tries += 1
                    peer.seen, peer.reason = True, "has no table of pieces yet"
                    if tries >= 5 and self.further(peer, shunned, time.monotonic()):
                        tries = 0
                        peer.not_before = time.monotonic() + 5.0
                    self._wait("the table of pieces", 0.0)
                except LLMError as exc:
                    peer.reason = str(exc)
                    shunned[id(peer)] = shunned.get(id(peer), 0) + 1
                except (Refused, OSError, http.client.HTTPException) as exc:
                    self.failed(peer, exc, time.monotonic())
        finally:
            line.close()

    def run(self, tell: Callable[[], None]) -> None:
        """Fetch everything that is missing; ``tell`` is called twice a second. Raises LLMError; what came stays."""
        self._todo = [piece for piece in reversed(self.holdings.pieces) if not self.holdings.has[piece.number]]
        self._came_at = time.monotonic()
        threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(WORKERS)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) and self.error is None:
                tell()
                threads[0].join(0.5) if threads[0].is_alive() else time.sleep(0.05)
        finally:
            self._ended.set()
        if self.error is not None:
            raise self.error
        tell()

    def ping(self, stop: threading.Event) -> None:
        """Tell every host up the chain now and then that it may still be needed, until ``stop``."""
        line = Line(self._token)
        while not stop.wait(PING_S):
            for peer in self.peers:
                with contextlib.suppress(NotYet, Refused, OSError, http.client.HTTPException):
                    line.ask(peer, "/state", -1)
        line.close()

    def _work(self, number: int) -> None:
        line = Line(self._token, self._turn)
        try:
            while not self._ended.is_set():
                with self._lock:
                    if not self._todo:
                        return
                    piece = self._todo.pop()
                    self.at_work[number] = piece.entry.path
                self._get(line, piece)
        except BaseException as exc:
            self.error = self.error or exc
        finally:
            self.at_work.pop(number, None)
            line.close()

    def _get(self, line: Line, piece: Piece) -> None:
        """Have one piece on disk, from whoever gives it."""
        shunned: dict[int, int] = {}
        waited: dict[int, tuple[float, int]] = {}
        while not self._ended.is_set():
            now = time.monotonic()
            peer = self.choose(shunned, now)
            if peer is None:
                if not any(self._useful(item, shunned) for item in self.peers):
                    raise LLMError(
                        "{0}: no host up the chain has the right bytes from {1} on: {2}. What came so far is kept: have the weights verified on "
                        "{3} (weights_deep=true) and run again".format(piece.entry.path, piece.offset, self._names(), self.peers[-1].host)
                    )
                self._wait(piece.entry.path)
                continue
            try:
                self._take(line, peer, piece, shunned)
                return
            except WrongBytes:
                continue
            except NotYet:
                peer.seen, peer.reason = True, "has only {0} of {1} pieces".format(max(0, peer.have), len(self.holdings.pieces))
                since, before = waited.setdefault(id(peer), (now, peer.have))
                if self._behind(line, peer, piece, shunned, since, before):
                    return
                self._wait(piece.entry.path, 0.0)
            except (Refused, OSError, http.client.HTTPException) as exc:
                self.failed(peer, exc, time.monotonic())

    def _take(self, line: Line, peer: Peer, piece: Piece, shunned: dict[int, int]) -> None:
        """One piece from one peer. A wrong one is written nowhere, and the peer is not asked for it again: WrongBytes."""
        path = "/files/" + urllib.parse.quote(piece.entry.path)
        body = line.ask(peer, path, piece.length, (piece.offset, piece.offset + piece.length))
        found = hashlib.sha256(body).hexdigest()
        if found != piece.sha256:
            shunned[id(peer)] = shunned.get(id(peer), 0) + 1
            text = "{0}: bytes from {1} on, sent by {2}, were wrong: expected sha256 {3}, found {4}".format(
                piece.entry.path, piece.offset, peer.host, piece.sha256, found
            )
            with self._lock:
                peer.wrong += 1
                self.wrong.append(text)
                peer.reason = "sent wrong bytes"
            raise WrongBytes()
        self.write(piece, body, peer.host)
        with self._lock:
            peer.given += piece.length
            self.taken += piece.length
            self._came_at = time.monotonic()
        self._good(peer)

    def _behind(self, line: Line, peer: Peer, piece: Piece, shunned: dict[int, int], since: float, before: int) -> bool:
        """Pass a peer by that lags. Returns whether the piece came while that was found out."""
        now = time.monotonic()
        other = self.further(peer, shunned, now)
        if other is None or now - since < STILL_S / 2:
            return False
        with self._lock:
            probe = now - self._probed_at >= 3 * STILL_S
            if probe:
                self._probed_at = now
        rate, came = 0.0, False
        if probe:
            # One piece from further up tells what the way would give.
            try:
                self._take(line, other, piece, shunned)
                rate, came = 1.0 / max(time.monotonic() - now, 0.001), True
            except (NotYet, WrongBytes):
                return False
            except (Refused, OSError, http.client.HTTPException) as exc:
                self.failed(other, exc, time.monotonic())
                return False
        if self.lags(peer, rate, since, before, now):
            with self._lock:
                peer.passed = True
                self.notes.append(
                    "{0} lags: it had {1} of {2} pieces and was passed by".format(peer.host, max(0, peer.have), len(self.holdings.pieces))
                )
        return came

    def _good(self, peer: Peer) -> None:
        with self._lock:
            peer.failures, peer.reason, peer.not_before = 0, "answers", 0.0

    def _names(self) -> str:
        return ", ".join(peer.name() for peer in self.peers)

    def _wait(self, what: str, pause_s: float = 0.1) -> None:
        """Pause; raises LLMError when nothing came for too long."""
        idle = time.monotonic() - self._came_at
        if self._stall_s and idle > self._stall_s:
            raise LLMError(
                "{0}: nothing came for {1} from any host up the chain: {2}. What came so far is kept: see that the hosts reach each other on "
                "that port (or set weights_fanout=false) and run again, it goes on".format(what, _progress.span(idle), self._names())
            )
        if pause_s:
            time.sleep(pause_s)


# --- the jobs ---------------------------------------------------------------------------------------------------------


def giving_job_of(path: str) -> str:
    """Where the job of an origin lives; it writes nothing beside it."""
    return path + ".give.job"


def say(folder: str, name: str, nonce: str, value: Any = None) -> None:
    """Leave a word in a job's folder, in one step, for the job with this ``nonce`` or from it."""
    path = os.path.join(folder, name)
    temporary = "{0}.{1}".format(path, os.getpid())
    with open(temporary, "w", encoding="utf-8") as handle:
        json.dump({"nonce": nonce, "value": value}, handle)
    os.replace(temporary, path)


def said(folder: str, name: str, nonce: str) -> dict | None:
    """The word ``name``, as ``{"nonce", "value"}``; None when there is none of this ``nonce``."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as handle:
            found = json.load(handle)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("nonce") == nonce else None


def join(folder: str, token: str) -> None:
    """Have the job in ``folder`` accept the token of one more run. Only its digest is written."""
    digest = hashlib.sha256(token.encode("utf-8")).hexdigest()
    number = os.open(os.path.join(folder, "tokens"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(number, (digest + "\n").encode("ascii"))
    finally:
        os.close(number)


def joined_tokens(folder: str) -> list[str]:
    """Digests of the tokens of runs that joined."""
    try:
        with open(os.path.join(folder, "tokens"), encoding="ascii") as handle:
            return handle.read().split()
    except (OSError, ValueError):
        return []


def _serve_until_over(folder: str, nonce: str, giver: Giver, idle_s: float, tell: Callable[[], None]) -> None:
    """Wait until this job is told to end, or nobody asked for ``idle_s`` seconds."""
    giver.asked_at = max(giver.asked_at, time.monotonic())
    while said(folder, "stop", nonce) is None and time.monotonic() - giver.asked_at < idle_s:
        tell()
        time.sleep(0.1)
    giver.shutdown()


def _begin(arguments: dict, secret: str, progress_path: str, entries: list[Entry]) -> tuple[str, str, Giver]:
    """Folder, nonce and listening server of a job; runs that joined an earlier job of this folder are forgotten."""
    folder = os.path.dirname(progress_path)
    nonce = _jobs.look(folder).nonce
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, "tokens"))
    address = listen_address(arguments["address"], arguments["peers"])
    giver = Giver(address, arguments["port"], Holdings(), entries, secret, folder, arguments["rate"])
    return folder, nonce, giver.begin()


def give_job(arguments: dict, secret: str, progress_path: str) -> dict:
    """The origin: make the table of pieces and give, until it is over.

    ``arguments``: ``path``, ``files`` (``{path, size, sha256}``), ``marker``, ``address``, ``port``, ``peers`` (addresses), ``rate``
    (bytes a second, 0 for no cap), ``idle_s``. Says ``ready`` with the table's digest. Returns ``{"sent_bytes": ...}``.
    """
    entries = _manifest.parse_manifest(arguments["files"])
    folder, nonce, giver = _begin(arguments, secret, progress_path, entries)
    path = arguments["path"]
    known = _manifest.read_marker(arguments["marker"], path, _manifest.manifest_id(entries))["files"] if arguments["marker"] else {}
    raw = make_table(path, entries, known, progress_path)
    digest = hashlib.sha256(raw).hexdigest()
    for entry in entries:
        giver.holdings.put(entry.path, os.path.join(path, *entry.path.split("/")))
    pieces = read_table(raw, digest, entries)
    giver.holdings.learn(raw, pieces)
    for piece in pieces:
        giver.holdings.add(piece)
    say(folder, "ready", nonce, {"table": digest, "port": giver.server_port})
    progress = _progress.Progress(progress_path, "fan_out", sum(entry.size for entry in entries), len(entries))
    _serve_until_over(folder, nonce, giver, arguments["idle_s"], lambda: progress.update(giver.sent))
    return {"sent_bytes": giver.sent}


def take_job(arguments: dict, secret: str, progress_path: str) -> dict:
    """A taker: fetch what is missing into the staging directory, give it on, until it is over.

    ``arguments``: those of ``give_job``, and ``sources`` (``{host, address, port}``, nearest first), ``table`` (its digest), ``stall_s``,
    ``patience_s``, ``margin`` (bytes to keep free). Says ``ready`` when it listens, and ``fetched`` with what it returns at the end:
    ``{"fetched": [paths], "kept": [paths], "fetched_bytes", "resumed_bytes", "given": {host: bytes}, "wrong": [lines], "notes": [lines]}``;
    then also ``sent_bytes``.
    """
    entries = _manifest.parse_manifest(arguments["files"])
    folder, nonce, giver = _begin(arguments, secret, progress_path, entries)
    say(folder, "ready", nonce, {"port": giver.server_port})
    holdings, path = giver.holdings, arguments["path"]
    staging, total = _weights.staging_of(path), sum(entry.size for entry in entries)
    store = Store(holdings, os.path.join(folder, "pieces"), staging)
    peers = [Peer(item["host"], item["address"], item["port"]) for item in arguments["sources"]]
    taker = Taker(holdings, peers, secret, store.write, arguments["stall_s"], arguments["patience_s"])
    stop = threading.Event()
    threading.Thread(target=taker.ping, args=(stop,), daemon=True).start()
    progress = _progress.Progress(progress_path, "hash", total, len(entries))
    progress.update(0)
    try:
        taker.fetch_table(arguments["table"], entries)
        marker = _manifest.read_marker(arguments["marker"], path, _manifest.manifest_id(entries)) if arguments["marker"] else {"files": {}}
        here = _manifest.check_tree(path, entries, marker["files"], extras=False, report=progress.report)
        kept = {result.path: path for result in here if result.verdict == _manifest.OK}
        if len(kept) < len(entries):
            kept.update(
                (name, staging)
                for name in _weights.clean_staging(staging, [entry for entry in entries if entry.path not in kept], progress.report)
            )
        for name, root in kept.items():
            holdings.add_file(name, os.path.join(root, *name.split("/")))
        wanted = [entry for entry in entries if entry.path not in kept]
        resumed = store.resume(wanted, _hashing.Meter(sum(entry.size for entry in wanted), progress.report))
        _weights.require_space(staging, total - holdings.bytes, arguments["margin"])
        progress = _progress.Progress(progress_path, "download", total, len(entries))

        def tell() -> None:
            progress.update(holdings.bytes, sorted(set(taker.at_work.values())), len(kept) + len(store.done))

        taker.run(tell)
        progress.finish()
    except OSError as exc:
        raise LLMError(
            "{0}: {1}. What came so far is kept: make room or mend that and run again, it goes on".format(
                exc.filename or path, exc.strerror or exc
            )
        ) from exc
    finally:
        stop.set()
    value = {
        "fetched": [entry.path for entry in wanted],
        "kept": sorted(kept),
        "fetched_bytes": taker.taken,
        "resumed_bytes": resumed,
        "given": {peer.host: peer.given for peer in peers if peer.given},
        "wrong": taker.wrong,
        "notes": taker.notes,
    }
    say(folder, "fetched", nonce, value)
    _serve_until_over(folder, nonce, giver, arguments["idle_s"], lambda: None)
    return dict(value, sent_bytes=giver.sent)
