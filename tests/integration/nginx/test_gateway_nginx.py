# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The shipped nginx template, script and modules with a real nginx on loopback: what docs/gateway.md says it can, and that it loses nothing.

Drains and states are asked for as the role replica and the rolling update do, which name HAProxy's file and know no other.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from integration.gateway.gateway_lab import free_port, refused, server, until
from integration.nginx.nginx_lab import NGINX

from ansible_collections.ironserve.llm.plugins.module_utils import _nginx

pytestmark = pytest.mark.slow


class Stream:
    """An open stream through the gateway, of which the first event has come."""

    def __init__(self, gateway, events, once_a_step=False):
        self.door = gateway.connect()
        wish = {"stream": events, "once_a_step": once_a_step}
        self.door.request("POST", "/v1/completions", json.dumps(wish), {"Authorization": "Bearer " + gateway.key})
        self.answer = self.door.getresponse()
        assert self.answer.status == 200
        assert self.answer.readline() + self.answer.readline() == b"data: 0\n\n"

    def rest(self):
        """Everything that still comes. A stream that was cut raises IncompleteRead."""
        try:
            return self.answer.read()
        finally:
            self.door.close()


# Keeping out


def test_perimeter(pair):
    gateway, engines, _servers = pair
    key = "Authorization: Bearer " + gateway.key
    cases = {
        **refused(gateway),
        f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {gateway.ENGINE_KEY}": 401,
        f"GET /v1/models?key={gateway.key} HTTP/1.1\r\nHost: a": 401,
        f"GET /v1/models HTTP/1.1\r\nHost: a'b\r\n{key}": 400,
        f"GET http://a/v1/models HTTP/1.1\r\nHost: b\r\n{key}": 400,
        f"GET /v1/models HTTP/1.1\r\nHost:\r\n{key}": 400,
        f"GET /v1/models HTTP/1.0\r\n{key}": 400,
        f"GET /v1/models#x HTTP/1.1\r\nHost: a\r\n{key}": 404,
        f"GET /V1/models HTTP/1.1\r\nHost: a\r\n{key}": 404,
        f"GET /_ironserve/400 HTTP/1.1\r\nHost: a\r\n{key}": 404,
        # What nginx itself refuses, before any rule of ours is looked at.
        "BROKEN": 400,
        f"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: {'x' * 40000}\r\n{key}": 400,
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{key}\r\nContent-Length: 2\r\nTransfer-Encoding: chunked": 400,
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{key}\r\nContent-Length: 2\r\nContent-Length: 3": 400,
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{key}\r\nTransfer-Encoding: gzip": 501,
    }
    got = {}
    for head in cases:
        status, body = gateway.raw(head + "\r\nConnection: close\r\n\r\n")
        got[head[:150]] = status
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"], head
        assert gateway.key not in body.decode() and gateway.ENGINE_KEY not in body.decode()
    assert got == {head[:150]: status for head, status in cases.items()}
    # Two keys: nginx itself or the rule for keys, as the version likes.
    assert gateway.raw(f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{key}\r\n{key}\r\nConnection: close\r\n\r\n")[0] in (400, 401)
    assert not engines[0].seen and not engines[1].seen


def test_what_the_engine_sees(pair):
    gateway, engines, _servers = pair
    for target in ("/v1/models?api-version=1", "http://evil/v1/models"):
        host = "evil" if "evil" in target else "a.example:8000"
        status, _body = gateway.raw(
            f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: bEaReR {gateway.key}\r\nAccept: application/json\r\n"
            "X-Forwarded-For: 1.2.3.4\r\nForwarded: for=evil\r\nX-Real-IP: 1.2.3.4\r\nX-Api-Key: x\r\nConnection: close\r\n\r\n"
        )
        assert status == 200
    body = json.dumps({"prompt": "字" * 500_000}).encode()
    door = gateway.connect()
    door.request("POST", "/v1/completions", body, {"Authorization": "Bearer " + gateway.key, "Content-Type": "application/json"})
    assert json.loads(door.getresponse().read())["length"] == len(body)
    door.close()
    seen = engines[0].seen + engines[1].seen
    assert sorted(path for path, _headers in seen) == ["/v1/completions", "/v1/models", "/v1/models"]
    for _path, headers in seen:
        low = {name.lower(): value for name, value in headers.items()}
        assert (low.pop("host"), low.pop("authorization")) == ("ironserve", "Bearer " + gateway.ENGINE_KEY)
        assert set(low) <= {"connection", "accept", "content-type", "content-length"}


def test_secrets_are_only_in_their_files_and_prompts_in_none(pair):
    gateway, engines, servers = pair
    # One that no small buffer holds, while it waits for its engine.
    for engine in engines:
        engine.gate.clear()
    words = "nobody may read this " * 20_000
    thread = threading.Thread(target=gateway.post, args=({"prompt": words},))
    thread.start()
    until(lambda: any(engine.busy for engine in engines))
    # nginx has no name for such a file any more, but has it open.
    opened = [os.readlink(path) for pid in gateway.info()["pids"] for path in Path(f"/proc/{pid}/fd").iterdir()]
    assert opened and not [path for path in opened if str(gateway.home / "run/gateway-nginx") in path]
    for engine in engines:
        engine.gate.set()
    thread.join(20)
    commands = "".join(Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8") for pid in gateway.info()["pids"])
    texts = {"commands": commands, "states": str(gateway.loaded())}
    for path in (gateway.home / "etc/gateway").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600 or path.suffix == ".py", path
        texts[path.name] = path.read_text(encoding="utf-8")
    assert gateway.ENGINE_KEY in texts.pop("engine.map")
    assert set(texts) >= {"nginx.conf", "keys.map"}
    assert not [name for name, text in texts.items() if gateway.ENGINE_KEY in text or gateway.key in text]
    assert gateway.put(servers)["diff"]["after"].count(gateway.key) == 0


def test_keys_come_end_and_go_with_a_reload(pair):
    gateway, _engines, servers = pair
    stream = Stream(gateway, 3)
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 1))
    clients = [{"name": "new", "key": "key-of-a-new-client"}, {"name": "old", "key": "key-of-an-old-client", "expires": end}]
    assert gateway.keys(check=True, client_keys=clients)["changed"]
    # A dry run tells of the reload though it has written no key.
    assert gateway.put(servers, check=True, keys_change=True)["action"] == "reloaded"
    assert gateway.put(servers)["action"] == "none"
    result = gateway.keys(client_keys=clients)
    assert (result["added"], result["removed"], result["live"]) == (["new", "old"], [], False)
    assert gateway.post(key="key-of-a-new-client")[0] == 401
    assert gateway.put(servers)["action"] == "reloaded"
    assert (gateway.keys(client_keys=clients)["changed"], gateway.put(servers)["action"]) == (False, "none")
    assert gateway.post(key="key-of-a-new-client")[0] == gateway.post()[0] == 200
    status, body, headers = gateway.post(key="key-of-an-old-client")
    assert (status, body["error"]["code"], headers["WWW-Authenticate"]) == (401, "expired_api_key", "Bearer")
    gateway.keys()
    assert gateway.put(servers)["action"] == "reloaded"
    assert gateway.post(key="key-of-a-new-client")[1]["error"]["code"] == "invalid_api_key"
    for engine in _engines:
        engine.step.set()
    assert stream.rest().endswith(b"data: 2\n\n")


def test_another_engine_key_is_a_reload_and_a_key_it_cannot_be_told_an_error(pair):
    gateway, engines, servers = pair
    (gateway.home / "etc/keys/engine.key").write_text("another-engine-key\n", encoding="utf-8")
    assert gateway.keys()["engine_key_changed"]
    assert gateway.put(servers)["action"] == "reloaded"
    gateway.post()
    seen = engines[0].seen + engines[1].seen
    assert seen[-1][1]["Authorization"] == "Bearer another-engine-key"
    (gateway.home / "etc/keys/engine.key").write_text("with$variable\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="engine key has characters that nginx cannot be told"):
        gateway.keys()


# Streams and failures


def test_tokens_are_not_held_back(pair):
    gateway, engines, _servers = pair
    door = gateway.connect()
    door.request("POST", "/v1/completions", json.dumps({"stream": 12, "once_a_step": True}), {"Authorization": "Bearer " + gateway.key})
    answer = door.getresponse()
    lags = []
    for _number in range(11):
        assert answer.readline().startswith(b"data")
        assert answer.readline() == b"\n"
        begin = time.monotonic()
        for engine in engines:
            engine.step.set()
        answer.peek()
        lags.append(time.monotonic() - begin)
    door.close()
    assert sorted(lags)[len(lags) // 2] < 0.05, lags


def test_a_client_that_leaves_frees_its_place_and_the_full_are_503(make):
    gateway, engine = make(), make.engine()
    gateway.put([server("n-c0", engine.port, places=1, models=["m"])])
    engine.gate.clear()
    gone = gateway.connect()
    gone.request("POST", "/v1/completions", "{}", {"Authorization": "Bearer " + gateway.key})
    until(lambda: engine.busy == 1)
    status, body, headers = gateway.post()
    assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "overloaded", "5")
    gone.close()
    # The place is free for the gateway though the small engine has not noticed yet.
    until(lambda: gateway.set(check=True, **{"n-c0": "drain"})["open_sessions"] == 0)
    engine.gate.set()
    until(lambda: gateway.post()[0] == 200)


def test_a_dead_replica_costs_no_request_and_without_any_it_is_503(pair):
    gateway, engines, _servers = pair
    engines[0].server.socket.close()
    engines[0].server.shutdown()
    assert {(status, body["port"]) for status, body, _headers in (gateway.post() for _number in range(20))} == {(200, engines[1].port)}
    engines[1].server.socket.close()
    engines[1].server.shutdown()
    for _number in range(3):
        status, body, headers = gateway.post()
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "overloaded", "5")


class Breaks(http.server.BaseHTTPRequestHandler):
    """An engine that closes without an answer, after one token, or never answers, by its ``how``."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        if self.server.how == "token":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 0\n\n\r\n")
        elif self.server.how == "silent":
            self.server.free.wait(20)
        self.close_connection = True


@pytest.mark.parametrize(("how", "status", "code"), [("close", 502, "bad_gateway"), ("silent", 504, "timeout"), ("token", 200, "")])
def test_what_may_have_been_begun_is_never_sent_to_a_second_replica(make, how, status, code):
    gateway = make(gateway_timeout_stream_s=1)
    breaking = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Breaks) for _number in range(2)]
    for thing in breaking:
        thing.how, thing.asked, thing.free = how, 0, threading.Event()
        threading.Thread(target=thing.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        gateway.put([server(f"n-c{number}", thing.server_address[1], models=["m"]) for number, thing in enumerate(breaking)])
        got, body = gateway.raw_post("{}") if how == "token" else gateway.post()[:2]
        assert got == status
        if code:
            assert body["error"]["code"] == code
        else:
            # A stream that breaks off is seen as one: there is no end of the chunks.
            assert body == b"data: 0\n\n"
        assert sum(thing.asked for thing in breaking) == 1
    finally:
        for thing in breaking:
            thing.free.set()
            thing.shutdown()
            thing.server_close()


def test_limits_of_all_keys(make):
    gateway, engine = make(gateway_rate_limit_per_minute=4, gateway_client_concurrency=2), make.engine()
    gateway.put([server("n-c0", engine.port, places=8, models=["m"])])
    gateway.keys(client_keys=[{"name": "other", "key": "key-of-another-client"}])
    gateway.put([server("n-c0", engine.port, places=8, models=["m"])])
    engine.gate.clear()
    threads = [threading.Thread(target=gateway.post) for _number in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: engine.busy == 2)
    status, body, headers = gateway.post()
    assert (status, body["error"]["code"], headers["Retry-After"]) == (429, "concurrency_limit_exceeded", "5")
    engine.gate.set()
    for thread in threads:
        thread.join(20)
    until(lambda: engine.busy == 0)
    answers = [gateway.post() for _number in range(4)]
    assert answers[-1][0] == 429 and answers[-1][1]["error"]["code"] == "rate_limit_exceeded"
    # Each key has its own, and guesses cost nobody's.
    assert gateway.post(key="key-of-a-stranger-00")[0] == 401
    assert gateway.post(key="key-of-another-client")[0] == 200


# Drains and reloads


def test_drain_waits_for_a_stream_and_cuts_none(pair):
    gateway, engines, _servers = pair
    stream = Stream(gateway, 3)
    owner = next(engine for engine in engines if engine.busy)
    name, other = ("n-c0", engines[1]) if owner is engines[0] else ("n-c1", engines[0])
    result = gateway.set(wait_s=0.3, **{name: "drain"})
    assert (result["changed"], result["open_sessions"], result["servers"][0]["after"]) == (True, 1, "maint")
    assert 0.3 <= result["waited_s"] < 5
    # Nothing new comes, and whoever looks is told so, by the old name of the file too.
    assert {gateway.post()[1]["port"] for _number in range(8)} == {other.port}
    assert gateway.info()["states"] == {name: "maint", "n-c1" if name == "n-c0" else "n-c0": "ready"}
    assert not gateway.set(**{name: "maint"})["changed"]
    threading.Timer(0.5, owner.step.set).start()
    assert gateway.set(check=True, **{name: "drain"})["open_sessions"] == 1
    assert stream.rest() == b"data: 1\n\ndata: 2\n\n"
    until(lambda: gateway.set(wait_s=5, **{name: "drain"})["open_sessions"] == 0)
    assert gateway.set(**{name: "ready"})["changed"]
    assert {gateway.post()[1]["port"] for _number in range(8)} == {engine.port for engine in engines}


def test_a_body_that_an_old_worker_still_reads_counts_for_every_server(pair):
    gateway, engines, _servers = pair
    slow = socket.create_connection(("127.0.0.1", gateway.port), timeout=20)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {gateway.key}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    )
    slow.sendall(head.encode() + b"{")
    door = {port for _address, port in _nginx.binds(gateway.config.read_text(encoding="utf-8"))}
    until(lambda: any(here[1] in door for pid in gateway.info()["pids"][1:] for here, _there in _nginx.connections(pid)))
    result = gateway.set(wait_s=0.2, **{"n-c0": "drain"})
    assert result["open_sessions"] == 1
    slow.sendall(b"}")
    assert slow.recv(100).startswith(b"HTTP/1.1 200 ")
    slow.close()
    until(lambda: gateway.set(check=True, **{"n-c0": "drain"})["open_sessions"] == 0)
    assert len(engines[0].seen + engines[1].seen) == 1


def test_reloads_and_drains_under_requests_lose_none(pair):
    gateway, engines, servers = pair
    # Nothing waits here: the one that is left must have a place for each.
    servers = [dict(item, max_num_seqs=8) for item in servers]
    statuses, broken, stop = [], [], threading.Event()
    for engine in engines:
        engine.step.set()

    def ask():
        while not stop.is_set():
            statuses.append(gateway.post()[0])

    def stream():
        while not stop.is_set():
            if not Stream(gateway, 20).rest().endswith(b"data: 19\n\n"):
                broken.append(1)
            statuses.append("stream")

    threads = [threading.Thread(target=target) for target in (ask, ask, stream)]
    for thread in threads:
        thread.start()
    for number in range(4):
        assert gateway.put(servers, gateway_retry_after_s=6 + number)["action"] == "reloaded"
        result = gateway.set(wait_s=20, **{f"n-c{number % 2}": "drain"})
        assert result["open_sessions"] == 0
        drained, at = engines[number % 2], len(statuses)
        seen = len(drained.seen)
        until(lambda at=at: len(statuses) > at + 20, 30)
        assert len(drained.seen) == seen
        gateway.set(**{f"n-c{number % 2}": "ready"})
    stop.set()
    for thread in threads:
        thread.join(30)
    assert set(statuses) == {200, "stream"} and not broken
    assert statuses.count("stream") > 4


def test_a_bad_file_replaces_nothing_and_the_one_before_is_kept(pair):
    gateway, _engines, servers = pair
    good = gateway.config.read_text(encoding="utf-8")
    broken = gateway.render("nginx.conf.j2", servers).replace("least_conn;", "least_conn nonsense;")
    with pytest.raises(
        AssertionError, match='invalid and was not installed: .*"least_conn".* in .*/nginx.conf:[0-9]+. The one before stays'
    ):
        gateway.put(servers, config=broken)
    assert gateway.config.read_text(encoding="utf-8") == good
    assert not list(gateway.config.parent.glob("*.previous"))
    assert gateway.put(servers, check=True, gateway_retry_after_s=9)["action"] == "reloaded"
    assert gateway.config.read_text(encoding="utf-8") == good
    # A port that somebody has.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AssertionError, match="cannot bind 127.0.0.1:"):
            gateway.put(servers, gateway_port=taken.getsockname()[1])
    assert gateway.post()[0] == 200
    assert gateway.put(servers, gateway_retry_after_s=9)["action"] == "reloaded"
    assert (gateway.config.parent / "nginx.conf.previous").read_text(encoding="utf-8") == good
    # Killed between the file and the reload: the next run makes it good.
    text, _identity = _nginx.with_identity(_nginx.with_down(good, {"n-c1": True}))
    gateway.config.write_text(text, encoding="utf-8")
    assert gateway.put(servers, gateway_retry_after_s=9)["action"] == "written"
    gateway.config.write_text(text, encoding="utf-8")
    assert gateway.put([servers[0], dict(servers[1], proven=False)])["action"] == "reloaded"
    assert gateway.loaded()[1] == {"n-c0": "ready", "n-c1": "maint"}


def test_a_file_that_nginx_does_not_take_in_the_end_is_put_back(pair):
    gateway, _engines, _servers = pair
    good = gateway.config.read_text(encoding="utf-8")
    master = gateway.info()["pids"][0]
    os.kill(master, signal.SIGSTOP)
    try:
        with pytest.raises(_nginx.LLMError, match="still has the file before after 0.3 s. The file before was put back"):
            _nginx.Gateway(str(gateway.config), gateway.socket).set_states({"n-c0": "maint"}, wait_s=0.3)
    finally:
        os.kill(master, signal.SIGCONT)
    assert gateway.config.read_text(encoding="utf-8") == good
    assert gateway.post()[0] == 200


def test_what_does_not_run_is_passed_over_only_if_asked_and_starts_as_it_was_left(pair):
    gateway, _engines, servers = pair
    gateway.set(**{"n-c1": "maint"})
    assert gateway.script("stop").returncode == 0
    until(lambda: not gateway.info()["running"])
    assert gateway.info()["pids"] == [] and gateway.script("status").returncode == 3
    assert gateway.set(missing="ignore", **{"n-c0": "drain"})["servers"] == []
    with pytest.raises(AssertionError, match="Is the gateway running"):
        gateway.set(**{"n-c0": "drain"})
    assert gateway.put([servers[0], dict(servers[1], proven=False)])["action"] == "started"
    assert gateway.info()["states"] == {"n-c0": "ready", "n-c1": "maint"}
    with pytest.raises(AssertionError, match='the gateway has no server "n-c7"'):
        gateway.set(**{"n-c7": "drain"})
    assert gateway.set(missing="ignore", **{"n-c7": "drain"})["servers"] == []
    assert gateway.script("reload").returncode == 0 and gateway.script("status").returncode == 0


def test_a_host_is_told_what_it_has(pair):
    gateway, engines, _servers = pair
    info = gateway.info()
    assert (info["software"], info["installed"], info["running"], info["kept"]) == ("nginx", True, True, [])
    assert re.match(r"1\.\d+\.\d+$", info["version"]), NGINX
    assert [(item["name"], item["port"], item["max_num_seqs"], item["proven"], item["models"]) for item in info["servers"]] == [
        ("n-c0", engines[0].port, 2, True, ["m", "alias"]),
        ("n-c1", engines[1].port, 2, True, ["m", "alias"]),
    ]
    with pytest.raises(
        AssertionError, match="the gateway of this host is nginx, by .*/nginx.conf, and haproxy is wanted. Take it away first"
    ):
        gateway.info(software="haproxy")


# The log


def test_the_log_has_who_and_how_long_and_no_secret(make):
    gateway, engine, dead = make(gateway_access_log=True), make.engine(), free_port()
    servers = [server("n-c0", engine.port, models=["m"]), server("n-c1", dead, models=["m"])]
    gateway.put(servers)
    gateway.keys(client_keys=[{"name": "me", "key": "key-of-a-client-0001"}])
    gateway.put(servers)
    assert [gateway.post({"prompt": "nobody may read this"}, key="key-of-a-client-0001")[0] for _number in range(3)] == [200] * 3
    assert gateway.post(path="/secret-path")[0] == 404
    assert gateway.post(key="key-of-a-stranger-00")[0] == 401
    log = gateway.home / "run/gateway-access.log"
    until(lambda: log.read_text(encoding="utf-8").count("\n") == 5)
    text = log.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["key"], line["model"], line["status"], line["server"], line["path"]) for line in lines] == [
        *[("me", "m", 200, "n-c0", "/v1/chat/completions")] * 3,
        ("default", "-", 404, "<NOSRV>", "-"),
        ("", "-", 401, "<NOSRV>", "/v1/chat/completions"),
    ]
    # The dead one was tried once, and then left out.
    assert sorted(line["retries"] for line in lines[:3]) in (["0", "0", "1"], ["0", "0", "0"])
    assert all(0 <= line["first_byte_ms"] <= line["total_ms"] + 1 for line in lines[:3])
    assert all(line["first_byte_ms"] == -1 for line in lines[3:])
    for word in ("nobody may read", "key-of-a-client-0001", "key-of-a-stranger", "secret-path", gateway.ENGINE_KEY):
        assert word not in text
    errors = gateway.home / "run/gateway-error.log"
    assert not errors.exists() or errors.read_text(encoding="utf-8") == ""
