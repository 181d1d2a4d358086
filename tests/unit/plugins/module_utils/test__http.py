# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each way in which a server fails to answer has its own name, and deadlines hold."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import re
import socket
import threading
import time

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _http
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TO_END = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def whole_request(connection):
    """What a client sent, up to the end of its body, which may come by itself."""
    text = b""
    while True:
        head, end, body = text.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if end and len(body) >= (int(length.group(1)) if length else 0):
            return text
        piece = connection.recv(65536)
        if not piece:
            return text
        text += piece


@contextlib.contextmanager
def server(*script):
    """A server for one connection: bytes are sent, numbers are seconds of silence, ``wait`` holds until the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()
    heard = []

    def play():
        with contextlib.suppress(OSError):
            connection, _address = listener.accept()
            with connection:
                heard.append(whole_request(connection))
                for step in script:
                    if step == "wait":
                        over.wait(10)
                    elif isinstance(step, (int, float)):
                        over.wait(step)
                    else:
                        connection.sendall(step)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x", heard
    finally:
        over.set()
        listener.close()
        thread.join(5)


def limits(silence=5.0, total=5.0):
    return _http.Deadlines(1.0, silence, total)


def fails(*script, deadlines=None):
    with server(*script) as (url, _heard):
        with pytest.raises(_http.HttpError) as caught:
            _http.request("GET", url, "", None, deadlines or limits())
        assert str(caught.value).startswith(url + ": ")
        assert caught.value.url == url
        return caught.value


def test_a_whole_answer():
    with server(OK) as (url, heard):
        reply = _http.request("POST", url, "k3y", {"a": "ü"}, limits())
    assert (reply.status, reply.content_type, reply.body, reply.json(url)) == (200, "application/json", b"{}", {})
    assert b"Authorization: Bearer k3y\r\n" in heard[0]
    assert b"Connection: close\r\n" in heard[0]


def test_refused():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(_http.HttpError) as caught:
        _http.request("GET", f"http://127.0.0.1:{port}/x", "", None, limits())
    assert caught.value.kind == _http.REFUSED


@pytest.mark.parametrize("script", [(), (CHUNKED,), (CHUNKED, b"5\r\nhel"), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",)])
def test_closed_before_the_answer_was_complete(script):
    assert fails(*script).kind == _http.RESET


def test_silence_before_and_inside_an_answer():
    start = time.monotonic()
    assert fails("wait", deadlines=limits(silence=0.2)).kind == _http.SILENT
    assert fails(CHUNKED, b"1\r\nx\r\n", "wait", deadlines=limits(silence=0.2)).kind == _http.SILENT
    assert time.monotonic() - start < 2


def test_dripping_bytes_do_not_outlive_the_total():
    start = time.monotonic()
    error = fails(CHUNKED, *[b"1\r\nx\r\n", 0.05] * 100, deadlines=limits(silence=2.0, total=0.4))
    assert error.kind == _http.TOTAL_TIMEOUT
    assert "not complete after 0.4 s" in str(error)
    assert time.monotonic() - start < 0.8


def test_the_total_wakes_a_reader_whose_silence_limit_is_longer():
    start = time.monotonic()
    # The last byte comes late: from there the silence limit alone would wait another whole second.
    error = fails(CHUNKED, 0.8, b"1\r\nx\r\n", "wait", deadlines=limits(silence=4.0, total=1.0))
    assert error.kind == _http.TOTAL_TIMEOUT
    assert time.monotonic() - start < 1.5


def test_no_http_at_all():
    assert fails(b"SSH-2.0-OpenSSH_9.2\r\n").kind in (_http.PROTOCOL, _http.RESET)


@pytest.mark.parametrize("head, form", [(CHUNKED, b"1\r\n%s\r\n"), (TO_END, b"%s")])
def test_each_part_has_the_time_it_came(head, form):
    with server(head, form % b"a", 0.15, form % b"b", 0.15, form % b"c", b"0\r\n\r\n" if head is CHUNKED else b"") as (url, _heard):
        with _http.open_stream("GET", url, "", None, limits()) as stream:
            parts = [(at - stream.sent_at, piece) for at, piece in stream]
    assert [piece for _at, piece in parts] == [b"a", b"b", b"c"]
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(parts)]
    assert all(0.1 < gap < 0.4 for gap in gaps)


def test_a_status_is_an_answer_and_redirects_are_not_followed():
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with server(moved) as (url, _heard):
        assert _http.request("GET", url, "k", None, limits()).status == 302


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with server(OK) as (url, _heard):
        assert _http.request("GET", url, "", None, limits()).status == 200


def test_a_body_that_is_not_json_is_named_with_its_head():
    with pytest.raises(_http.HttpError) as caught:
        _http.Reply(200, "text/html", b"<html>\n<b>hi", 0.1).json("http://h:1/x")
    assert str(caught.value) == "http://h:1/x: HTTP 200 with a body that is not JSON: <html> <b>hi"


def test_lists_in_lists_without_end_are_not_json():
    with pytest.raises(_http.HttpError, match="HTTP 200 with a body that is not JSON: \\[\\["):
        _http.Reply(200, "application/json", b"[" * 200000, 0.1).json("http://h:1/x")


def test_one_line_folds_and_cuts():
    assert _http.one_line("a\n b\x00" + "c" * 300) == "a b\ufffd" + "c" * 193 + "..."


def test_key_files(tmp_path):
    good, two, empty, binary, accent, control = (tmp_path / name for name in ("good", "two", "empty", "binary", "accent", "control"))
    good.write_text("abc\n")
    two.write_text("abc\ndef\n")
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")
    accent.write_text("abc\u2603", encoding="utf-8")
    control.write_bytes(b"abc\x01")
    assert _http.read_key(str(good)) == "abc"
    assert _http.read_key("") == ""
    good.write_bytes(b"\xef\xbb\xbfabc\r\n")
    assert _http.read_key(str(good)) == "abc"
    for path in (two, empty, binary, accent, control, tmp_path / "missing", tmp_path):
        with pytest.raises(LLMError) as caught:
            _http.read_key(str(path))
        assert str(path) in str(caught.value)
        assert "abc" not in str(caught.value)


def test_a_missing_library_is_said(monkeypatch):
    monkeypatch.setattr(_http, "HAS_REQUESTS", False)
    with pytest.raises(LLMError, match="install python3-requests"):
        _http.request("GET", "http://127.0.0.1:1/")


def test_bytes_are_sent_as_they_are():
    with server(OK) as (url, heard):
        _http.request("POST", url, body=b'{"broken": ')
    assert heard[0].endswith(b'\r\n\r\n{"broken": ')


@pytest.mark.parametrize(("closes", "connections"), [(False, 1), (True, 3)])
def test_a_kept_connection_is_one_as_long_as_the_server_keeps_it(closes, connections):
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.client_address[1], self.headers.get("Connection"), self.headers["Authorization"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            if closes:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as engine:
        threading.Thread(target=engine.serve_forever, args=(0.05,), daemon=True).start()
        url = "http://127.0.0.1:{0}".format(engine.server_address[1])
        with _http.KeptConnection() as kept:
            for number in range(3):
                assert kept.request("POST", url + "/x", "k3y", {"n": number}, limits()).json(url) == {"n": number}
            assert kept.opened() == connections
        engine.shutdown()
    assert len({port for port, *_rest in seen}) == connections
    assert {(kept_open, key) for _port, kept_open, key in seen} == {("keep-alive", "Bearer k3y")}
