# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The measuring client on real sockets: what it tells of answers, when their bytes came, and how late it was itself."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import socket
import ssl
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _http, _sse, _stream
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._stream import Answer, Body, Client, Lane, Limits

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
QUICK = Limits(connect_s=2.0, silence_s=5.0, request_s=10.0, run_s=20.0)


def chunked(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(content="", finish=None, usage=None, **delta):
    if content:
        delta["content"] = content
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if usage:
        body["usage"] = usage
    return b"data: " + json.dumps(body).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


class Served:
    """A server that does with every connection, in a thread of its own, what a function says: it gets the socket and the request."""

    def __init__(self, act, tls=None, backlog=64):
        self._act = act
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.url = "{0}://127.0.0.1:{1}".format("https" if tls else "http", self._listener.getsockname()[1])
        self.requests = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                client = self._tls.wrap_socket(client, server_side=True)
            stack.enter_context(client)
            raw = b""
            while b"\r\n\r\n" not in raw:
                raw += client.recv(65536)
            head, _end, body = raw.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            while len(body) < length:
                body += client.recv(65536)
            with self._lock:
                self.requests.append((head.decode(), json.loads(body.decode())))
            self._act(client, json.loads(body.decode()))

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        # Closing alone would leave it open as long as a thread waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def lane(served, bodies, width=64, due=None, key="", ca_file=""):
    target = _stream.target(served.url, "/v1/chat/completions", key, ca_file)
    return Lane(target, [json.dumps(body).encode() for body in bodies], width, due)


def ask(act, bodies=({},), limits=QUICK, **more):
    with Served(act) as served:
        return Client(limits, **more).run([lane(served, bodies)]).answers[0]


def whole(client, _body):
    client.sendall(HEAD + chunked(event("Hi", role="assistant")) + chunked(event("!", "stop")) + chunked(USAGE) + chunked(DONE) + END)


# ---- bytes


def unframe(data, cuts):
    body, out, start = Body(), b"", 0
    for cut in sorted(cuts) + [len(data)]:
        out += body.feed(data[start:cut])
        start = cut
    return body, out


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=6))
def test_chunks_come_out_whole_however_they_are_cut(parts, cuts):
    data = HEAD + b"".join(map(chunked, parts)) + END
    body, out = unframe(data, [min(cut, len(data)) for cut in cuts])
    assert (out, body.over, body.fault, body.status) == (b"".join(parts), True, "", 200)


@settings(deadline=None)
@given(st.binary(max_size=60), st.lists(st.integers(0, 120), max_size=5))
def test_a_body_of_known_length_ends_there(payload, cuts):
    data = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(payload) + payload
    body, out = unframe(data + b"more", [min(cut, len(data)) for cut in cuts])
    assert (out, body.over, body.status) == (payload, True, 404)


def test_a_body_without_length_ends_with_the_connection():
    body = Body()
    assert body.feed(b"HTTP/1.0 200 OK\r\n\r\nabc") == b"abc" and not body.over
    body.close()
    assert body.over


def test_what_comes_before_the_answer_is_passed_over_and_extensions_too():
    body = Body()
    assert body.feed(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"3;a=b\r\nabc\r\n" + END) == b"abc"
    assert body.over and body.status == 200


@pytest.mark.parametrize(
    "data, fault",
    [
        (b"SSH-2.0-x\r\n\r\n", "no HTTP answer"),
        (HEAD + b"zz\r\n", "no chunk"),
        (b"x" * 70000, "does not end"),
        (HEAD + b"1" * 5000, "no chunk"),
        (HEAD + b"+3\r\nabc\r\n", "no chunk"),
        (HEAD + b"1" * 16 + b"\r\n", "no chunk"),
        ("HTTP/1.1 2\u00b20 OK\r\n\r\n".encode("latin-1"), "no HTTP answer"),
        (b"HTTP/1.1 000 OK\r\n\r\n", "no HTTP answer"),
    ],
)
def test_what_is_no_http_is_a_fault(data, fault):
    body = Body()
    body.feed(data)
    assert body.over and fault in body.fault


def test_a_chunk_of_less_than_nothing_is_a_fault_and_not_read_for_ever():
    body = Body()
    reader = threading.Thread(target=body.feed, args=(HEAD + b"-6\r\n",), daemon=True)
    reader.start()
    reader.join(5)
    assert not reader.is_alive() and body.over and "no chunk: -6" in body.fault


def test_a_length_that_is_no_number_is_none():
    body = Body()
    assert body.feed("HTTP/1.1 200 OK\r\nContent-Length: \u00b2\r\n\r\nabc".encode("latin-1")) == b"abc" and not body.over


def test_a_cut_chunked_body_is_not_over():
    body = Body()
    body.feed(HEAD + chunked(b"abc"))
    body.close()
    assert not body.over


# ---- answers


def test_an_answer_with_everything_in_it():
    def act(client, _body):
        parts = [
            event(role="assistant"),
            event(reasoning_content="hm"),
            event("Hi", usage={"completion_tokens": 2}),
            event(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]),
            event(" you", "stop"),
            USAGE,
            DONE,
        ]
        client.sendall(HEAD + b"".join(map(chunked, parts)) + END)

    (answer,) = ask(act)
    assert (answer.kind, answer.error, answer.status) == ("", "", 200)
    assert (answer.content, answer.reasoning, answer.tool, answer.finish) == ("Hi you", "hm", "{}", "stop")
    assert answer.usage == {"prompt_tokens": 7, "completion_tokens": 3}
    assert [sorted(chunk.kinds) for chunk in answer.chunks] == [
        [_sse.ROLE],
        [_sse.REASONING],
        [_sse.CONTENT, _sse.USAGE],
        [_sse.TOOL],
        [_sse.CONTENT, _sse.FINISH],
        [_sse.USAGE],
        [_sse.DONE],
    ]
    assert [chunk.made for chunk in answer.chunks] == [None, None, 2, None, None, 3, None]
    assert [chunk.has_choices for chunk in answer.chunks] == [True] * 5 + [False] * 2
    assert answer.started <= answer.connected <= answer.sent <= answer.chunks[0].at <= answer.ended


def test_the_request_is_what_was_asked_for_with_the_key_where_it_belongs():
    with Served(whole) as served:
        Client(QUICK).run([lane(served, [{"a": "\u9762"}], key="secret")])
        ((head, body),) = served.requests
    assert body == {"a": "\u9762"}
    assert head.startswith("POST /v1/chat/completions HTTP/1.1\r\n") and "\r\nAuthorization: Bearer secret\r\n" in head
    assert "\r\nHost: {0}\r\n".format(served.url[7:]) in head


def test_events_of_one_packet_have_one_time_and_are_still_several():
    (answer,) = ask(whole)
    assert len({chunk.at for chunk in answer.chunks}) == 1 and len(answer.chunks) == 4


def test_a_large_request_gets_there_and_a_long_answer_comes_back():
    def act(client, body):
        client.sendall(HEAD)
        for number in range(3000):
            client.sendall(chunked(event("w" * 400 if number else str(len(body["x"])))))
        client.sendall(chunked(USAGE) + chunked(DONE) + END)

    (answer,) = ask(act, [{"x": "y" * 3000000}])
    assert answer.error == "" and answer.content == "3000000" + "w" * 400 * 2999


def test_a_server_that_stays_after_its_last_word_is_not_waited_for():
    def act(client, _body):
        client.sendall(HEAD + chunked(event("x", "stop")) + chunked(DONE))
        time.sleep(3)

    start = time.monotonic()
    (answer,) = ask(act)
    assert answer.error == "" and time.monotonic() - start < 2


@pytest.mark.parametrize(
    "sent, kind, said",
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 13\r\n\r\ncome\nback 5 s", "status", "HTTP 503: come back 5 s"),
        (HEAD + chunked(event("x")), _http.RESET, "closed before the answer was complete"),
        (b"", _http.RESET, "closed before the answer was complete"),
        (HEAD + chunked(b'data: {"error":{"message":"out of memory"}}\n\n') + chunked(DONE) + END, "stream", "out of memory"),
        (HEAD + chunked(b"<html>\n\n") + END, "stream", "without one event of a stream (text/event-stream)"),
        (b"garbage\r\n\r\n", _http.PROTOCOL, "no HTTP answer"),
    ],
)
def test_an_answer_that_is_none_says_why(sent, kind, said):
    (answer,) = ask(lambda client, _body: client.sendall(sent))
    assert answer.kind == kind and said in answer.error


def test_nobody_listens():
    with Served(whole) as served:
        pass
    outcome = Client(QUICK).run([lane(served, [{}] * 3)])
    assert [answer.kind for answer in outcome.answers[0]] == [_http.REFUSED] * 3
    assert [answer.status for answer in outcome.answers[0]] == [0] * 3


@pytest.mark.parametrize(
    "limits, kind, said",
    [
        (Limits(silence_s=0.3), _http.SILENT, "no byte for 0.3 s"),
        (Limits(request_s=0.3), _http.TOTAL_TIMEOUT, "not complete after 0.3 s"),
        (Limits(run_s=0.3), _http.TOTAL_TIMEOUT, "the run was not over after 0.3 s"),
    ],
)
def test_what_takes_too_long_is_ended(limits, kind, said):
    def act(client, _body):
        client.sendall(HEAD + chunked(event("x")))
        time.sleep(2)

    start = time.monotonic()
    (answer,) = ask(act, limits=limits)
    assert answer.kind == kind and said in answer.error and time.monotonic() - start < 1.5
    # What came until then is still known.
    assert answer.content == "x"


def test_what_was_not_sent_when_the_run_is_over_failed_too():
    with Served(lambda client, _body: time.sleep(2)) as served:
        outcome = Client(Limits(run_s=0.3)).run([lane(served, [{}] * 3, width=1)])
    assert [answer.kind for answer in outcome.answers[0]] == [_http.TOTAL_TIMEOUT] * 3
    assert [answer.started is None for answer in outcome.answers[0]] == [False, True, True]


def test_a_connection_that_never_stands():
    # Nobody accepts, and the queue has room for one.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, socket.create_connection(listener.getsockname()):
        target = _stream.target("http://127.0.0.1:{0}".format(listener.getsockname()[1]), "/")
        outcome = Client(Limits(connect_s=0.3, silence_s=2.0)).run([Lane(target, [b"{}"], 1)])
    assert outcome.answers[0][0].kind == _http.CONNECT_TIMEOUT


# ---- many


class Width:
    """How many threads are inside at once, at most. Leave it before answering: who has an answer may ask again at once."""

    def __init__(self):
        self.most = self._inside = 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)

    def __exit__(self, *_exc):
        with self._lock:
            self._inside -= 1


def slow(client, _body):
    time.sleep(0.03)
    whole(client, _body)


def test_a_closed_loop_keeps_its_width_and_forgets_nobody():
    together = threading.Barrier(8, timeout=20)
    width = Width()

    def act(client, body):
        with width:
            # The first eight are answered only once all of them were asked.
            if body["n"] < 8:
                together.wait()
            time.sleep(0.03)
        whole(client, body)

    with Served(act) as served:
        outcome = Client(QUICK).run([lane(served, [{"n": number} for number in range(40)], width=8)])
        asked = sorted(body["n"] for _head, body in served.requests)
    assert asked == list(range(40)) and width.most == 8
    assert [answer.index for answer in outcome.answers[0] if not answer.error] == list(range(40))


def test_more_than_a_hundred_run_at_once():
    """No answer comes before all of them were asked: a client with a limit of its own would wait for ever."""
    together = threading.Barrier(160, timeout=20)

    def act(client, _body):
        together.wait()
        whole(client, _body)

    with Served(act, backlog=256) as served:
        outcome = Client(QUICK).run([lane(served, [{}] * 160, width=160)])
    assert [answer.error for answer in outcome.answers[0]] == [""] * 160


def test_lanes_have_answers_of_their_own():
    with Served(slow) as one, Served(lambda client, _body: client.sendall(b"HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n")) as other:
        outcome = Client(QUICK).run([lane(one, [{}] * 3, 2), lane(other, [{}] * 2, 2)])
    assert [[answer.status for answer in answers] for answers in outcome.answers] == [[200] * 3, [500] * 2]


def test_an_open_loop_sends_when_it_is_due_whoever_is_still_at_work():
    due = [0.0, 0.05, 0.06, 0.2]

    def act(client, _body):
        with width:
            time.sleep(0.4)
        whole(client, _body)

    # A machine that is busy with other things may make it late, not four times in a row; too early it is never.
    for left in reversed(range(4)):
        width = Width()
        with Served(act) as served:
            outcome = Client(QUICK).run([lane(served, [{}] * 4, due=due)])
        late = [answer.started - answer.due for answer in outcome.answers[0]]
        assert [answer.due - outcome.started for answer in outcome.answers[0]] == pytest.approx(due)
        assert min(late) >= -0.0001
        if not left or (width.most == 4 and max(late) < 0.02):
            break
    assert width.most == 4
    assert max(late) < 0.02


def test_an_open_loop_without_room_fails_what_is_too_much():
    with Served(lambda client, body: (time.sleep(0.5), whole(client, body))) as served:
        outcome = Client(QUICK).run([lane(served, [{}] * 4, width=2, due=[0.0, 0.0, 0.1, 0.1])])
    assert [answer.kind for answer in outcome.answers[0]] == ["", "", "overload", "overload"]


# ---- time


def paced(stamps, pause, count):
    """An act that notes when it sent each event."""

    def act(client, _body):
        client.sendall(HEAD)
        for number in range(count):
            time.sleep(pause)
            stamps.append(time.monotonic())
            client.sendall(chunked(event("x", "stop" if number == count - 1 else None)))
        client.sendall(chunked(USAGE) + chunked(DONE) + END)

    return act


def errors(kernel, burden=None):
    """How far the stamps of a paced stream are off, ms, sorted; and the outcome."""
    stamps = []
    with Served(paced(stamps, 0.05, 12)) as served:
        outcome = Client(QUICK, kernel, burden).run([lane(served, [{}])])
    chunks = [chunk for chunk in outcome.answers[0][0].chunks if chunk.has_choices]
    assert len(chunks) == 12
    return sorted(1000.0 * abs(chunk.at - stamp) for chunk, stamp in zip(chunks, stamps, strict=True)), outcome


def nearly(attempt, times=5):
    """A busy machine may spoil a time; not five times in a row."""
    for left in reversed(range(times)):
        try:
            return attempt()
        except AssertionError:
            if not left:
                raise
    raise AssertionError


@pytest.mark.parametrize("kernel", [True, False])
def test_stamps_are_those_of_the_socket(kernel):
    def attempt():
        off, outcome = errors(kernel)
        assert outcome.kernel == kernel and off[5] < 1.0 and off[-1] < 5.0, off

    nearly(attempt)


def test_stamps_of_the_kernel_are_right_however_late_the_client_reads_and_it_knows_how_late():
    def attempt():
        off, outcome = errors(True, burden=lambda: time.sleep(0.03))
        assert off[-1] < 5.0, off
        assert max(outcome.lags) > 0.005, outcome.lags

    nearly(attempt)


def test_without_the_kernel_a_late_client_is_wrong_and_knows_it():
    off, outcome = errors(False, burden=lambda: time.sleep(0.08))
    assert off[-1] > 10.0 and not outcome.kernel
    assert max(outcome.lags) > 0.05


def test_a_client_that_reads_seldom_takes_all_there_is():
    """Sixty-four KiB a read would fall behind long answers, and tell that of the engine."""
    size = 8 << 20

    def act(client, _body):
        filler = event("w" * 65000)
        client.sendall(HEAD + chunked(filler) * (size // len(filler)) + chunked(event("", "stop")) + chunked(USAGE) + chunked(DONE) + END)

    with Served(act) as served:
        outcome = Client(QUICK, burden=lambda: time.sleep(0.01)).run([lane(served, [{}])])
    (answer,) = outcome.answers[0]
    assert answer.error == "" and len(answer.content) > 0.99 * size
    assert outcome.reads < size / 65536 / 2, outcome.reads


def test_garbage_is_collected_again_afterwards_and_files_are_closed():
    import gc
    import os

    ask(whole)
    before = len(os.listdir("/proc/self/fd"))
    for _number in range(3):
        assert ask(whole)[0].error == ""
    assert gc.isenabled() and len(os.listdir("/proc/self/fd")) <= before + 1


# ---- addresses and certificates


@pytest.mark.parametrize("base", ["127.0.0.1:80", "ftp://host", "http://", "http://a:b", "http://user@host/", "http://host/?a=b"])
def test_what_is_no_address_is_refused(base):
    with pytest.raises(LLMError, match="is no address"):
        _stream.target(base, "/v1")


def test_an_unknown_name_is_refused():
    with pytest.raises(LLMError, match="the name nowhere.invalid is not known"):
        _stream.target("http://nowhere.invalid:1", "/v1")


def test_a_path_of_the_base_is_kept():
    assert b"POST /llm/v1 HTTP/1.1\r\n" in _stream.target("http://127.0.0.1:1/llm/", "/v1").head


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of our own for 127.0.0.1: path of certificate and key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "engine")])
    now = datetime.datetime(2026, 1, 1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    kept = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *kept))
    return folder / "cert.pem", folder / "key.pem"


def test_https_gives_the_same_answer_and_the_same_times(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))

    def attempt():
        stamps = []
        with Served(paced(stamps, 0.05, 6), context) as served:
            body = {"x": "y" * 300000}
            outcome = Client(QUICK).run([lane(served, [body, body], ca_file=str(certificate[0]), width=1)])
        first, second = outcome.answers[0]
        assert [answer.error for answer in (first, second)] == ["", ""] and outcome.kernel
        chunks = [chunk.at for answer in (first, second) for chunk in answer.chunks if chunk.has_choices]
        off = sorted(1000.0 * abs(at - stamp) for at, stamp in zip(chunks, stamps, strict=True))
        assert len(chunks) == 12 and off[6] < 1.0 and off[-1] < 5.0, off

    nearly(attempt)


def test_https_with_a_certificate_nobody_vouches_for_is_refused(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))
    with Served(whole, context) as served:
        (answer,) = Client(QUICK).run([lane(served, [{}])]).answers[0]
        assert served.requests == []
    assert answer.kind == _http.PROTOCOL and "certificate" in answer.error


def test_certificates_that_cannot_be_read_are_told(tmp_path):
    with pytest.raises(LLMError, match="certificates can't be read"):
        _stream.target("https://127.0.0.1:1", "/", ca_file=str(tmp_path / "none"))


def test_the_first_fault_is_kept():
    answer = Answer(0)
    answer.fail("a", "first")
    answer.fail("b", "second")
    assert (answer.kind, answer.error) == ("a", "first")
