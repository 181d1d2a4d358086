# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is refused: every row of the table in docs/gateway.md, byte by byte, against a real HAProxy. No engine sees any of it."""

from __future__ import annotations

import ast
import json
import re
import socket
import threading
import time

import pytest
from integration.gateway.gateway_lab import ROOT, server, until

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy

DOCS = ROOT / "docs/gateway.md"
BODY = b'{"model":"alpha","messages":[]}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


def get(target, more=b"", host=b"Host: a\r\n"):
    """A GET with a good key."""
    return b"GET " + target + b" HTTP/1.1\r\n" + host + b"Authorization: Bearer @KEY@\r\n" + more + b"\r\n"


def post(more=LENGTH, body=BODY, target=b"/v1/chat/completions", host=b"Host: a\r\n", key=b"Authorization: Bearer @KEY@\r\n"):
    """A POST with a good key, unless told otherwise."""
    return b"POST " + target + b" HTTP/1.1\r\n" + host + key + more + b"\r\n" + body


#: Name as in the docs, bytes, the statuses that refuse it; None: the connection is closed without a word.
CASES = [
    ("path: doubled slash", [get(b"//v1/models"), get(b"/v1//models"), post(target=b"//v1/chat/completions")], {404}),
    ("path: dots", [get(b"/v1/../v1/models"), get(b"/v1/./models"), get(b"/v1/models/../../invocations"), get(b"/..;/v1/models")], {404}),
    ("path: encoded", [get(b"/%761/models"), get(b"/v1%2fmodels"), get(b"/v1/models%2f..%2f..%2fmetrics"), get(b"/v1/models%00")], {404}),
    ("path: other spelling", [get(b"/v1/models/"), get(b"/V1/Models"), get(b"/v1/models;x=1"), get(b"/v1\\models")], {404}),
    (
        "path: what engines answer without a key",
        [get(b"/metrics"), get(b"/health"), get(b"/load"), get(b"/version"), post(target=b"/invocations"), post(target=b"/tokenize")]
        + [post(target=b"/v1/load_lora_adapter"), get(b"/docs"), get(b"/openapi.json"), post(target=b"/sleep"), post(target=b"/ping")],
        {404},
    ),
    ("path: absolute, with another path", [get(b"http://a/invocations"), get(b"http://a//v1/models"), get(b"https://a/metrics")], {404}),
    ("path: fragment", [get(b"/v1/models#/../../metrics"), get(b"/metrics#/v1/models")], {400, 404}),
    (
        "method",
        [b"TRACE" + get(b"/v1/models")[3:], b"DELETE" + get(b"/v1/models")[3:], post(target=b"/v1/models"), get(b"/v1/completions")]
        + [get(b"/v1/completions", b"X-HTTP-Method-Override: POST\r\n"), b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n"],
        {400, 404, 405},
    ),
    (
        "host: missing or empty",
        [get(b"/v1/models", host=b""), get(b"/v1/models", host=b"Host:\r\n"), get(b"/v1/models", host=b"Host: \r\n")],
        {400},
    ),
    ("host: two", [get(b"/v1/models", host=b"Host: a\r\nHost: b\r\n"), get(b"/v1/models", host=b"Host: a, b\r\n")], {400}),
    (
        "host: crafted",
        [
            get(b"/v1/models", host=b"Host: " + text + b"\r\n")
            for text in (b"a/b", b"a?b", b"u@a", b"a b", b"a:80:80", b"a:x", b"<a>", b"a\\b", b"[::1")
        ],
        {400},
    ),
    ("host: another than in the target", [get(b"http://evil/v1/models"), get(b"http://evil/v1/models", host=b"Host: evil.a\r\n")], {400}),
    ("smuggling: length and chunks", [post(LENGTH + b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n" + get(b"/metrics"))], {400, 411}),
    (
        "smuggling: two lengths",
        [post(LENGTH + b"Content-Length: 1\r\n"), post(b"Content-Length: %d, 1\r\n" % len(BODY))],
        {400},
    ),
    (
        "smuggling: odd lengths",
        [post(b"Content-Length: " + text + b"\r\n") for text in (b"+31", b"-1", b"0x1f", b"31 1", b"1e2", b"99999999999999999999", b"")],
        {400, 411},
    ),
    (
        "smuggling: odd encodings",
        [
            post(b"Transfer-Encoding: " + text + b"\r\n", b"0\r\n\r\n")
            for text in (b"chunked", b"xchunked", b"chunked, identity", b"\x0bchunked")
        ]
        + [post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"), post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n")],
        {400, 411, 422, 501},
    ),
    (
        "smuggling: lines",
        [
            get(b"/v1/models", b"X: a\x00b\r\n"),
            get(b"/v1/models", b" folded: x\r\n"),
            get(b"/v1/models", b"X : y\r\n"),
            get(b"/v1/models\x00"),
        ]
        + [
            get(b"/v1/models", b"no colon\r\n"),
            b"GET /v1/models HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        ],
        {400, 401, 505, None},
    ),
    (
        "key: none, or not as a bearer",
        [post(key=text) for text in (b"", b"Authorization: @KEY@\r\n", b"X-Api-Key: @KEY@\r\n", b"Authorization: Basic @KEY@\r\n")],
        {401},
    ),
    (
        "key: in the address",
        [post(key=b"", target=b"/v1/chat/completions?api_key=@KEY@"), get(b"/v1/models?key=@KEY@").replace(b"Authorization", b"X")],
        {401},
    ),
    (
        "key: two",
        [
            post(key=b"Authorization: Bearer @KEY@\r\nAuthorization: Bearer @KEY@\r\n"),
            post(key=b"Authorization: Bearer x, Bearer @KEY@\r\n"),
        ],
        {401},
    ),
    ("key: its hash from the map", [post(key=b"Authorization: Bearer @HASH@\r\n"), post(key=b"Authorization: Bearer default\r\n")], {401}),
    ("key: that of the engines", [post(key=b"Authorization: Bearer @ENGINE@\r\n")], {401}),
    ("key: revoked", [post(key=b"Authorization: Bearer key-that-was-revoked\r\n")], {401}),
    ("key: expired", [post(key=b"Authorization: Bearer key-that-has-expired\r\n")], {401}),
    ("model: another key's", [post(key=b"Authorization: Bearer key-for-beta-alone\r\n")], {403}),
    (
        "model: named twice",
        [
            post(b"Content-Length: %d\r\n" % len(body), body, key=b"Authorization: Bearer key-for-beta-alone\r\n")
            for body in (
                b'{"model":"beta","model":"alpha"}',
                b'{"model":"alpha","model":"beta"}',
                b'{"model":"beta","m\\u006fdel":"alpha"}',
            )
        ],
        {404},
    ),
    (
        "size: header",
        [get(b"/v1/models", b"X: " + b"a" * 1_100_000 + b"\r\n"), get(b"/v1/models?" + b"a" * 1_100_000)],
        {400, 414, 431, None},
    ),
    ("size: headers", [get(b"/v1/models", b"".join(b"X%d: a\r\n" % number for number in range(500)))], {400, 431}),
    ("size: body", [post(b"Content-Length: 16777217\r\n", b"x"), post(b"Content-Length: 4294967297\r\n", b"x")], {413}),
    ("size: body without a length", [post(b"", b""), post(b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n")], {411}),
]


@pytest.fixture
def fort(make):
    """A gateway with two models and keys of every kind."""
    gateway = make(gateway_timeout_body_s=1, gateway_timeout_request_s=1)
    engines = [make.engine(), make.engine()]
    gateway.put([server("n-c0", engines[0].port, models=["alpha"], places=1), server("n-c1", engines[1].port, models=["beta"], places=1)])
    keys = [
        {"name": "narrow", "key": "key-for-beta-alone", "models": ["beta"]},
        {"name": "old", "key": "key-that-has-expired", "expires": "2020-01-01"},
    ]
    gateway.keys(models=gateway.names, client_keys=[*keys, {"name": "gone", "key": "key-that-was-revoked"}])
    assert gateway.post({"model": "alpha"}, key="key-that-was-revoked")[0] == 200
    gateway.keys(models=gateway.names, client_keys=keys)
    engines[0].seen.clear()
    return gateway, engines


def send(gateway, data):
    """Send bytes; return every status that comes back until the connection is closed, or silent after an answer."""
    data = data.replace(b"@KEY@", gateway.key.encode()).replace(b"@ENGINE@", gateway.ENGINE_KEY.encode())
    data = data.replace(b"@HASH@", _haproxy.key_hash(gateway.key).encode())
    got = b""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as door:
        try:
            door.sendall(data)
            while True:
                piece = door.recv(65536)
                if not piece:
                    break
                got += piece
                door.settimeout(0.3)
        except ConnectionError:
            pass
        except TimeoutError:
            assert got, data[:200]
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3})", got)], got


@pytest.mark.parametrize(("name", "attacks", "refusals"), CASES, ids=[case[0].replace(" ", "-") for case in CASES])
def test_refused(fort, name, attacks, refusals):
    gateway, engines = fort
    for attack in attacks:
        statuses, got = send(gateway, attack)
        assert (statuses[0] if statuses else None) in refusals, (attack[:200], got[:300])
        # What follows in the same connection is not answered otherwise.
        assert all(status >= 400 for status in statuses), (attack[:200], got[:300])
        assert gateway.ENGINE_KEY.encode() not in got
    assert not engines[0].seen and not engines[1].seen
    assert gateway.post({"model": "alpha"})[0] == 200


def test_a_slow_head_or_body_is_ended_and_holds_no_place(fort):
    gateway, engines = fort
    doors = []
    for slow in (b"POST /v1/chat/completions HTTP/1.1\r\nHo", post(b"Content-Length: 5000\r\n", b'{"model"')):
        for _number in range(20):
            door = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
            door.sendall(slow.replace(b"@KEY@", gateway.key.encode()))
            doors.append(door)
    begin = time.monotonic()
    assert [gateway.post({"model": name})[0] for name in ("alpha", "beta")] == [200, 200]
    assert time.monotonic() - begin < 1
    for door in doors:
        assert door.recv(4096).startswith(b"HTTP/1.1 408 "), "not ended"
        door.close()
    assert time.monotonic() - begin < 8
    assert len(engines[0].seen) == len(engines[1].seen) == 1


def test_a_body_that_stops_after_a_full_buffer_is_ended_too(make):
    gateway, engine = make(gateway_timeout_stream_s=1), make.engine()
    gateway.put([server("n-c0", engine.port)])
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as door:
        door.sendall(post(b"Content-Length: 900000\r\n", b"x" * 300_000).replace(b"@KEY@", gateway.key.encode()))
        assert re.match(rb"HTTP/1.1 (408|50\d) |$", door.recv(4096))
    until(lambda: gateway.door.sessions()["n-c0"] == 0)


def test_what_comes_after_a_request_is_another_request(fort):
    """A body that looks like a request is a body; what stands behind it needs a key of its own."""
    gateway, engines = fort
    hidden = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
    body = b'{"model":"alpha"}' + hidden
    statuses, _got = send(gateway, post(b"Content-Length: %d\r\n" % len(body), body) + hidden + post(key=b""))
    assert statuses == [200, 404, 401]
    assert [path for path, _headers in engines[0].seen] == ["/v1/chat/completions"]


def test_nothing_that_a_client_claims_reaches_the_engine(fort):
    gateway, engines = fort
    claims = (
        b"Connection: Upgrade, HTTP2-Settings, Authorization, Host\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
        b"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Prefix: /x\r\nX-Original-URL: /metrics\r\nX-Rewrite-URL: /metrics\r\nForwarded: for=x\r\n"
        b"X-Real-IP: 127.0.0.1\r\nX-Api-Key: @KEY@\r\nProxy: evil\r\nTrailer: x\r\nExpect: 100-continue\r\n"
    )
    statuses, _got = send(gateway, post(LENGTH + claims, target=b"/v1/chat/completions?x=/../../metrics&api_key=@KEY@"))
    assert statuses[-1] == 200
    ((path, headers),) = engines[0].seen
    low = {name.lower(): value for name, value in headers.items()}
    assert path == "/v1/chat/completions"
    assert (low["host"], low["authorization"]) == ("ironserve", "Bearer " + gateway.ENGINE_KEY)
    assert gateway.key not in json.dumps(headers)
    claimed = ("upgrade", "http2-settings", "x-original-url", "x-rewrite-url", "forwarded", "x-real-ip", "x-api-key", "proxy", "trailer")
    assert not [name for name in low if name in claimed or name.startswith("x-forwarded")]


def test_a_revoked_key_is_refused_at_once_and_its_open_stream_goes_on(fort):
    gateway, engines = fort
    gateway.keys(models=gateway.names, client_keys=[{"name": "brief", "key": "key-that-is-revoked-soon"}])
    answers = []
    engines[0].gate.clear()
    thread = threading.Thread(target=lambda: answers.append(gateway.post({"model": "alpha"}, key="key-that-is-revoked-soon")[0]))
    thread.start()
    until(lambda: engines[0].busy == 1)
    gateway.keys(models=gateway.names)
    assert gateway.post({"model": "beta"}, key="key-that-is-revoked-soon")[0] == 401
    engines[0].gate.set()
    thread.join(20)
    assert answers == [200]


def functions(name):
    """The tests of a file that the docs name."""
    folder = ROOT / "tests/integration"
    paths = (
        [ROOT / "molecule/fleet/tests/test_fleet.py"]
        if name == "lab_fleet"
        else [*folder.glob(f"{name}.py"), *folder.glob(f"gateway/{name}.py")]
    )
    tree = [node for path in paths for node in ast.parse(path.read_text(encoding="utf-8")).body]
    return {node.name for node in tree if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_the_table_in_the_docs_has_every_attack_and_every_row_its_test():
    table = DOCS.read_text(encoding="utf-8").partition("| attack | answer | test |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table.splitlines()]
    assert {len(row) for row in rows} == {3} and all(answer for _attack, answer, _test in rows)
    named = {attack: test.strip("`").split("::") for attack, _answer, test in rows}
    assert len(named) == len(rows)
    assert [attack for attack, (_file, test) in named.items() if test == "test_refused"] == [name for name, _attacks, _refusals in CASES]
    assert [(attack, test) for attack, (file, test) in named.items() if test not in functions(file)] == []
