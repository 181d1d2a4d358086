# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Giving and taking inside one process: whom a host asks, what it believes, what it gives and to whom. Whole chains of real jobs are in test_weights_fanout."""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import threading
from pathlib import Path

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _fanout, _manifest, _pieces
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

UNIT = _pieces.SMALLEST
FILES = {"a b.bin": os.urandom(5 * UNIT + 5), "sub/c": b"c"}
ENTRIES = _manifest.parse_manifest([{"path": p, "size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for p, d in FILES.items()])
TOKEN = "secret"


class Origin:
    """A giver with all weights, or some of the pieces."""

    def __init__(self, folder: Path, numbers=None, rate: int = 0) -> None:
        for path, data in FILES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        self.folder = folder
        self.raw = _pieces.make_table(str(folder), ENTRIES, {})
        self.digest = hashlib.sha256(self.raw).hexdigest()
        holdings = _pieces.Holdings()
        holdings.learn(self.raw, _pieces.read_table(self.raw, self.digest, ENTRIES))
        for entry in ENTRIES:
            holdings.put(entry.path, str(folder / entry.path))
        for piece in holdings.pieces:
            if numbers is None or piece.number in numbers:
                holdings.add(piece)
        self.giver = _fanout.Giver("127.0.0.1", 0, holdings, ENTRIES, TOKEN, str(folder), rate).begin()

    def peer(self, name: str) -> _fanout.Peer:
        return _fanout.Peer(name, "127.0.0.1", self.giver.server_port)

    def ask(self, path: str, token: str = TOKEN, span: str = "") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.giver.server_port, timeout=10)
        try:
            headers = {"Authorization": "Bearer " + token} if token else {}
            connection.request("GET", path, headers={**headers, "Range": span} if span else headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()


@pytest.fixture
def origins(tmp_path, monkeypatch):
    monkeypatch.setattr(_fanout, "HOLD_S", 0.05)
    made = []

    def make(**more) -> Origin:
        made.append(Origin(tmp_path / "o{0}".format(len(made)), **more))
        return made[-1]

    yield make
    for origin in made:
        origin.giver.shutdown()
        origin.giver.server_close()


def taking(peers, origin, **more) -> tuple[_fanout.Taker, dict[int, tuple[bytes, str]]]:
    """A taker that knows the table already, and what it wrote."""
    holdings, got = _pieces.Holdings(), {}

    def write(piece, body, sender):
        got[piece.number] = (bytes(body), sender)
        holdings.add(piece)

    taker = _fanout.Taker(holdings, peers, TOKEN, write, **{"patience_s": 0.0, "stall_s": 20.0, **more})
    taker.fetch_table(origin.digest, ENTRIES)
    return taker, got


def right(got) -> bool:
    return b"".join(got[number][0] for number in sorted(got)) == FILES["a b.bin"] + FILES["sub/c"]


def dead(name: str) -> _fanout.Peer:
    """A host at whose address nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return _fanout.Peer(name, "127.0.0.1", probe.getsockname()[1])


# ---- giving


@pytest.mark.parametrize(
    ("header", "size", "found"),
    [
        ("bytes=0-9", 10, (0, 10)),
        ("bytes=3-", 10, (3, 10)),
        ("bytes=9-9", 10, (9, 10)),
        ("bytes=0-10", 10, (0, 0)),
        ("bytes=10-", 10, (0, 0)),
        ("bytes=5-4", 10, (0, 0)),
        ("bytes=-5", 10, (0, 0)),
        ("bytes=0-1,3-4", 10, (0, 0)),
        ("", 10, (0, 0)),
        ("lines=0-1", 10, (0, 0)),
    ],
)
def test_ranges(header, size, found):
    assert _fanout.byte_range(header, size) == found


def test_it_gives_ranges_of_its_files_and_nothing_else(origins):
    origin = origins()
    assert origin.ask("/files/a%20b.bin", span="bytes=524280-524290") == (206, FILES["a b.bin"][524280:524291])
    assert origin.ask("/files/sub/c", span="bytes=0-0") == (206, b"c")
    assert origin.ask("/table") == (200, origin.raw)
    (origin.folder / "other").write_bytes(b"x")
    for path in ("/", "/files/", "/files/other", "/files/../o0/sub/c", "/files/sub%2F..%2Fother", "/files//etc/hostname", "/etc/hostname"):
        assert origin.ask(path, span="bytes=0-0")[0] == 404, path
    assert origin.ask("/files/sub/c")[0] == 416 and origin.ask("/files/sub/c", span="bytes=0-7")[0] == 416
    assert origin.giver.sent == 12


def test_without_the_token_it_gives_nothing(origins):
    origin = origins()
    before = origin.giver.asked_at
    for token in ("", "Secret", "secret1"):
        for path in ("/table", "/state", "/files/sub/c", "/nothing"):
            assert origin.ask(path, token, "bytes=0-0") == (401, b"")
    # nor does it stay up for them
    assert origin.giver.asked_at == before
    assert origin.ask("/state")[0] == 200 and origin.giver.asked_at > before
    # a run that joins brings its own
    _fanout.join(str(origin.folder), "another")
    assert origin.ask("/state", "another")[0] == 200 and origin.ask("/state", "third")[0] == 401
    assert b"another" not in (origin.folder / "tokens").read_bytes() and (origin.folder / "tokens").stat().st_mode & 0o777 == 0o600


def test_what_is_not_verified_yet_is_not_given(origins):
    origin = origins(numbers=(0, 6))
    assert origin.ask("/files/a%20b.bin", span="bytes=0-99")[0] == 206
    assert origin.ask("/files/a%20b.bin", span="bytes=524288-524289") == (503, b"")
    assert origin.ask("/files/a%20b.bin", span="bytes=524287-524288")[0] == 503
    assert origin.giver.sent == 100
    # it is given the moment it is there
    answer = []
    thread = threading.Thread(target=lambda: answer.append(origin.ask("/files/a%20b.bin", span="bytes=524288-524289")))
    _fanout.HOLD_S = 30.0
    thread.start()
    origin.giver.holdings.add(origin.giver.holdings.pieces[1])
    thread.join(10)
    assert answer == [(206, FILES["a b.bin"][UNIT : UNIT + 2])]


def test_a_file_that_shrank_ends_the_connection(origins):
    origin = origins()
    os.truncate(origin.folder / "a b.bin", 10)
    with pytest.raises(http.client.IncompleteRead):
        origin.ask("/files/a%20b.bin", span="bytes=0-99")


def test_the_cap_is_over_all_connections():
    now, slept = [100.0], []
    bucket = _fanout.Bucket(1000, lambda: now[0], slept.append)
    for count in (500, 500, 1000):
        bucket.take(count)
    assert slept == [0.5, 1.0]
    now[0] = 200.0
    bucket.take(10)
    assert slept == [0.5, 1.0]
    _fanout.Bucket(0, sleep=slept.append).take(10**12)
    assert len(slept) == 2


@pytest.mark.parametrize(
    ("address", "says"), [("192.0.2.1", "is no address of this host: set weights_fanout_address"), ("127.0.0.1", "is in use")]
)
def test_an_address_that_cannot_be_used_says_what_to_do(address, says):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(LLMError, match=says):
            _fanout.Giver(address, taken.getsockname()[1], _pieces.Holdings(), ENTRIES, TOKEN)


def test_the_address_to_listen_on(monkeypatch):
    assert _fanout.listen_address("127.0.0.9", []) == "127.0.0.9"

    def known(name, port, family=0, kind=0):
        found = {"self": "127.0.1.1", "two": "192.0.2.7", "peer": "127.0.0.1"}[name]
        return [(socket.AF_INET, kind, 0, "", (found, port or 0))]

    monkeypatch.setattr(socket, "getaddrinfo", known)
    assert _fanout.listen_address("two", []) == "192.0.2.7"
    # a peer on this machine does not help
    with pytest.raises(LLMError, match=r"self means 127.0.1.1 on this host itself: set weights_fanout_address"):
        _fanout.listen_address("self", ["peer"])


# ---- taking


def test_it_takes_from_the_nearest_only(origins):
    near, far = origins(), origins()
    taker, got = taking([near.peer("near"), far.peer("far")], near)
    taker.run(lambda: None)
    assert right(got) and {sender for _body, sender in got.values()} == {"near"} and far.giver.sent == 0
    assert near.giver.sent == sum(map(len, FILES.values())) == taker.taken


def test_a_dead_one_is_passed_by_and_then_asked_again(origins):
    origin = origins()
    gone = dead("gone")
    taker, got = taking([gone, origin.peer("far")], origin)
    taker.run(lambda: None)
    assert right(got) and {sender for _body, sender in got.values()} == {"far"}
    assert gone.failures and "refused" in gone.reason


def test_one_that_never_answered_is_waited_for_at_first():
    near, far = _fanout.Peer("near", "x", 1), _fanout.Peer("far", "x", 1)
    taker = _fanout.Taker(_pieces.Holdings(), [near, far], TOKEN, lambda *args: None, patience_s=3600.0)
    now = taker._patient_until - 3000
    assert taker.choose({}, now) is near
    taker.failed(near, ConnectionRefusedError("refused"), now)
    assert taker.choose({}, now) is None and taker.choose({}, now + 0.31) is near
    assert taker.choose({}, taker._patient_until + 1) is near
    taker.failed(near, ConnectionRefusedError("refused"), taker._patient_until + 1)
    assert taker.choose({}, taker._patient_until + 1) is far
    # once it was seen there is no patience with it
    near.seen = True
    taker.failed(near, ConnectionResetError("reset"), now)
    assert taker.choose({}, now) is far


def test_wrong_bytes_are_named_not_written_and_taken_from_further_up(origins):
    bad, good = origins(), origins()
    with open(bad.folder / "a b.bin", "r+b") as handle:
        handle.seek(2 * UNIT + 17)
        handle.write(bytes([FILES["a b.bin"][2 * UNIT + 17] ^ 1]))
    taker, got = taking([bad.peer("bad"), good.peer("good")], bad)
    taker.run(lambda: None)
    assert right(got) and [number for number, (_body, sender) in got.items() if sender == "good"] == [2]
    assert len(taker.wrong) == 1 and taker.wrong[0].startswith("a b.bin: bytes from 1048576 on, sent by bad, were wrong: expected sha256")


def test_one_that_is_wrong_thrice_is_asked_no_more(origins):
    bad, good = origins(), origins()
    (bad.folder / "a b.bin").write_bytes(bytes(len(FILES["a b.bin"])))
    peer = bad.peer("bad")
    taker, got = taking([peer, good.peer("good")], bad)
    taker.run(lambda: None)
    # two side by side may find it at the same time
    assert right(got) and 3 <= len(taker.wrong) <= 4 and peer.given == 0


def test_wrong_bytes_everywhere_are_one_message(origins):
    origin = origins()
    with open(origin.folder / "a b.bin", "r+b") as handle:
        handle.write(bytes([FILES["a b.bin"][0] ^ 1]))
    taker, got = taking([origin.peer("first")], origin)
    with pytest.raises(LLMError, match=r"a b.bin: no host up the chain has the right bytes from 0 on: first .*weights_deep=true"):
        taker.run(lambda: None)
    # the last one is asked twice
    assert len(taker.wrong) == 2 and 0 not in got


def test_a_wrong_table_is_not_believed(origins):
    one, other = origins(), origins()
    other.giver.holdings.table = other.raw + b" "
    taker, _got = taking([other.peer("other"), one.peer("one")], one)
    assert taker.holdings.table == one.raw
    with pytest.raises(LLMError, match="no host up the chain has the table of pieces: other .*has sha256"):
        taking([other.peer("other")], one)


def test_one_that_had_no_table_yet_is_still_the_first_to_be_asked_for_pieces(origins):
    near, far = origins(), origins()
    raw, near.giver.holdings.table = near.giver.holdings.table, b""
    taker, got = taking([near.peer("near"), far.peer("far")], far)
    near.giver.holdings.table = raw
    taker.run(lambda: None)
    assert right(got) and far.giver.sent == 0


def test_nothing_for_too_long_is_one_message(origins):
    origin = origins(numbers=(0,))
    with pytest.raises(
        LLMError,
        match=r"nothing came for .* from any host up the chain: gone \(127.0.0.1 port \d+: .*refused\), half \(.*: has only 1 of 7 pieces\)",
    ):
        taker, _got = taking([dead("gone"), origin.peer("half")], origin, stall_s=0.5)
        taker.run(lambda: None)


def test_a_wrong_token_is_said(origins):
    origin = origins()
    taker = _fanout.Taker(_pieces.Holdings(), [origin.peer("first")], "other", lambda *args: None, stall_s=0.3, patience_s=0.0)
    with pytest.raises(LLMError, match="first .*HTTP 401.*does not know the token of this run"):
        taker.fetch_table(origin.digest, ENTRIES)


def test_one_that_stands_still_is_passed_by(origins, monkeypatch):
    monkeypatch.setattr(_fanout, "STILL_S", 0.3)
    still, good = origins(numbers=(0, 1)), origins()
    peer = still.peer("still")
    taker, got = taking([peer, good.peer("good")], good)
    taker.run(lambda: None)
    assert right(got) and got[0][1] == "still" and got[5][1] == "good"
    assert peer.passed and taker.notes[0] == "still lags: it had 2 of 7 pieces and was passed by"


@pytest.mark.parametrize(
    ("rate", "had", "grew", "found"),
    [
        (0.0, 5, 99.0, False),  # it grew a second ago, and nothing is known about the way
        (0.0, 5, 79.0, True),  # nothing for 21 s
        (1.0, 8, 99.0, False),  # eight in ten seconds against one a second
        (1.0, 2, 99.0, True),  # two in ten seconds
    ],
)
def test_what_lags(rate, had, grew, found):
    peer = _fanout.Peer("p", "x", 1, seen=True, have=10 + had, grew_at=grew)
    taker = _fanout.Taker(_pieces.Holdings(), [peer], TOKEN, lambda *args: None)
    assert taker.lags(peer, rate, 90.0 if rate else 70.0, 10, 100.0) is found


def test_when_all_were_passed_by_they_are_asked_again():
    peer = _fanout.Peer("p", "x", 1, passed=True)
    taker = _fanout.Taker(_pieces.Holdings(), [peer], TOKEN, lambda *args: None)
    assert taker.choose({}, 0.0) is peer and not peer.passed


def test_an_error_of_the_disk_ends_it(origins):
    origin = origins()
    holdings = _pieces.Holdings()

    def full(piece, body, sender):
        raise LLMError("no space left")

    taker = _fanout.Taker(holdings, [origin.peer("o")], TOKEN, full)
    taker.fetch_table(origin.digest, ENTRIES)
    with pytest.raises(LLMError, match="no space left"):
        taker.run(lambda: None)


# ---- words between a job and whoever waits


def test_a_word_is_of_one_start_only(tmp_path):
    _fanout.say(str(tmp_path), "ready", "n1", {"port": 1})
    assert _fanout.said(str(tmp_path), "ready", "n1")["value"] == {"port": 1}
    assert _fanout.said(str(tmp_path), "ready", "n2") is None and _fanout.said(str(tmp_path), "stop", "n1") is None
    (tmp_path / "ready").write_text("{")
    assert _fanout.said(str(tmp_path), "ready", "n1") is None
    assert sorted(os.listdir(tmp_path)) == ["ready"]
