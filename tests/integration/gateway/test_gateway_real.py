# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The shipped template, script and modules with a real HAProxy on loopback, without an init system.

The modules gateway_config, gateway_info, gateway_keys and gateway_servers are called as the role calls them: see gateway_lab.py.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from pathlib import Path

import pytest
import requests
from integration.gateway.gateway_lab import free_port, refused, server, until

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy

# Keeping out


def test_perimeter(pair):
    gateway, engines, _servers = pair
    key = "Authorization: Bearer " + gateway.key
    cases = {**refused(gateway), f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{key}\r\n{key}": 401}
    got = {}
    for head in cases:
        status, body = gateway.raw(head + "\r\nConnection: close\r\n\r\n")
        got[head] = status
        # What is not even HTTP is refused by HAProxy's parser, which has one page for that.
        if "Host: b" not in head and not body.startswith(b"<html>"):
            assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}, head
    assert got == cases
    assert not engines[0].seen and not engines[1].seen


def test_the_statistics_port_says_where_to_look_and_reaches_no_engine(pair):
    gateway, engines, _servers = pair
    for path, status in (("/stats", 200), ("/stats;csv", 200), ("/", 404), ("/v1/models", 404)):
        answer = requests.get(f"http://127.0.0.1:{gateway.stats_port}{path}", timeout=10)
        assert answer.status_code == status, path
        assert status == 200 or answer.text == "try /stats or /metrics"
    assert not engines[0].seen and not engines[1].seen


def test_what_the_engine_sees(pair):
    gateway, engines, _servers = pair
    for target in ("/v1/models?api-version=1", "http://evil/v1/models"):
        host = "evil" if "evil" in target else "a.example:8000"
        status, _body = gateway.raw(
            f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: bEaReR {gateway.key}\r\n"
            "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Host: evil\r\nForwarded: for=evil\r\nX-Real-IP: 1.2.3.4\r\nConnection: close\r\n\r\n"
        )
        assert status == 200
    for path, headers in engines[0].seen + engines[1].seen:
        low = {name.lower(): value for name, value in headers.items()}
        assert path == "/v1/models"
        assert low["host"] == "ironserve"
        assert low["authorization"] == "Bearer " + gateway.ENGINE_KEY
        assert not any(name.startswith(("x-forwarded", "x-real", "forwarded")) for name in low)
    assert len(engines[0].seen + engines[1].seen) == 2


def test_secrets_are_only_in_their_files(pair):
    gateway, _engines, _servers = pair
    gateway.post()
    config = gateway.config.read_text(encoding="utf-8")
    said = gateway.door.ask("show events ironserve_log")
    commands = "".join(Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8") for pid in gateway.info()["pids"])
    for text in (config, said, commands, (gateway.home / "etc/gateway/keys.map").read_text(encoding="utf-8")):
        assert gateway.ENGINE_KEY not in text and gateway.key not in text
    for path in (gateway.home / "etc/gateway").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    for path in ("run/gateway.sock", "run/gateway-master.sock", "etc/keys/client-default.key"):
        assert (gateway.home / path).stat().st_mode & 0o777 == 0o600, path


def test_rate_limit(make):
    gateway, engine = make(gateway_rate_limit_per_minute=3), make.engine()
    gateway.put([server("n-c0", engine.port)])
    answers = [gateway.post() for _number in range(5)]
    assert [status for status, _body, _headers in answers] == [200, 200, 200, 429, 429]
    assert answers[-1][1]["error"]["code"] == "rate_limit_exceeded"
    assert answers[-1][2]["Retry-After"] == "5"


# Streams, queues and failures


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
        lags.append(time.monotonic() - begin)
        begin = time.monotonic()
        answer.peek()
        lags[-1] += time.monotonic() - begin
    door.close()
    # HAProxy's own way is to hold each piece for 100 to 200 ms; the median forgives a busy machine.
    assert sorted(lags)[len(lags) // 2] < 0.05, lags


def test_engine_gets_no_more_than_its_places_and_the_rest_waits(make):
    gateway, engine = make(), make.engine()
    gateway.put([server("n-c0", engine.port, places=2)])
    engine.gate.clear()
    results = []
    threads = [threading.Thread(target=lambda: results.append(gateway.post()[0])) for _number in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: "\nCurrConns: 6" in gateway.door.ask("show info") and engine.busy == 2)
    # Looked at while the engine still holds its two: it counts one down only after the next may have come.
    assert engine.most == 2
    engine.gate.set()
    for thread in threads:
        thread.join(20)
    assert results == [200] * 6


def test_a_client_that_left_the_queue_never_reaches_the_engine(make):
    gateway, engine = make(), make.engine()
    gateway.put([server("n-c0", engine.port, places=1)])
    engine.gate.clear()
    first = threading.Thread(target=gateway.post)
    first.start()
    until(lambda: engine.busy == 1)

    def queued():
        rows = _haproxy.parse_stat(gateway.door.ask("show stat"))
        return next(int(row["qcur"]) for row in rows if row["pxname"] == _haproxy.BACKEND and row["svname"] == "BACKEND")

    gone = gateway.connect()
    gone.request("POST", "/v1/completions", "{}", {"Authorization": "Bearer " + gateway.key})
    until(lambda: queued() == 1)
    gone.close()
    until(lambda: queued() == 0)
    engine.gate.set()
    first.join(20)
    assert gateway.post(path="/v1/completions")[0] == 200
    assert [path for path, _headers in engine.seen] == ["/v1/chat/completions", "/v1/completions"]


def test_a_replica_that_dies_under_full_load_loses_nothing(pair):
    gateway, engines, _servers = pair
    statuses, stop = [], threading.Event()

    def loop():
        while not stop.is_set():
            statuses.append(gateway.post()[0])

    threads = [threading.Thread(target=loop) for _number in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: len(statuses) > 50)
    engines[0].server.socket.close()
    engines[0].server.shutdown()
    at = len(statuses)
    until(lambda: gateway.door.servers()["n-c0"].op == "stopped")
    until(lambda: len(statuses) > at + 50)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert set(statuses) == {200}


def test_a_closed_connection_without_an_answer_is_tried_elsewhere(make):
    gateway, engine = make(), make.engine()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hole:
        stop = threading.Event()
        hole.settimeout(0.05)
        tried = []

        def swallow():
            while not stop.is_set():
                try:
                    door, _peer = hole.accept()
                except TimeoutError:
                    continue
                head = door.recv(4096)
                if not head.startswith(b"GET /health"):
                    tried.append(head)
                    door.close()
                else:
                    door.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    door.close()

        thread = threading.Thread(target=swallow)
        thread.start()
        try:
            gateway.put([server("n-c0", hole.getsockname()[1]), server("n-c1", engine.port)])
            assert {gateway.post()[1]["port"] for _number in range(6)} == {engine.port}
            assert tried
        finally:
            stop.set()
            thread.join()


def test_large_prompts_pass(pair):
    gateway, _engines, _servers = pair
    status, body, _headers = gateway.post({"prompt": "字" * 250_000})
    assert status == 200
    assert body["length"] > 500_000


def test_without_a_replica_503_says_when_to_come_back(make):
    gateway = make(gateway_timeout_queue_s=1)
    gateway.put([server("n-c0", free_port(), proven=False)])
    status, body, headers = gateway.post()
    assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "overloaded", "5")


# The file


def test_second_time_changes_nothing(pair):
    gateway, _engines, servers = pair
    for check in (True, False):
        result = gateway.put(servers, check=check)
        assert (result["changed"], result["action"]) == (False, "none")
        assert gateway.keys(check=check)["changed"] is False


def test_check_mode_writes_nothing_where_nothing_is(make):
    gateway = make()
    for name in ("keys.map", "engine.map"):
        (gateway.home / "etc/gateway" / name).unlink()
    (gateway.home / "etc/keys/client-default.key").unlink()
    assert gateway.keys(check=True)["changed"] is True
    result = gateway.put([server("n-c0", free_port())], check=True)
    assert (result["action"], result["validated"]) == ("started", True)
    assert "server n-c0" in result["diff"]["after"]
    assert [path.name for path in (gateway.home / "etc/gateway").iterdir()] == ["save_server_state.py"]
    assert not (gateway.home / "etc/keys/client-default.key").exists()


def test_invalid_configuration_is_refused_and_the_old_one_serves(pair):
    gateway, _engines, servers = pair
    before = gateway.config.read_text(encoding="utf-8")
    with pytest.raises(AssertionError, match=r"was not installed: parsing \[.*/etc/gateway/haproxy.cfg:\d+\] : .*nbthread.*stays in force"):
        gateway.put(servers, gateway_threads=9999)
    assert gateway.config.read_text(encoding="utf-8") == before
    assert gateway.post()[0] == 200


def test_valid_configuration_that_cannot_start_is_taken_back(pair):
    gateway, _engines, servers = pair
    before = gateway.config.read_text(encoding="utf-8")
    too_many = re.sub(r"(?m)^    maxconn \d+", "    maxconn 90000000", gateway.render("haproxy.cfg.j2", servers))
    with pytest.raises(AssertionError, match="put back and is still in force"):
        gateway.put(servers, config=too_many, wait_s=2)
    assert gateway.config.read_text(encoding="utf-8") == before
    assert gateway.post()[0] == 200
    assert gateway.put(servers)["action"] == "none"


def test_what_cannot_be_bound_is_refused_before_the_running_gateway_notices(pair):
    gateway, engines, servers = pair
    pids = gateway.info()["pids"]
    for check in (True, False):
        with pytest.raises(AssertionError, match=r"cannot bind 203\.0\.113\.7:\d+: Cannot assign requested address"):
            gateway.put(servers, check=check, gateway_bind_address="203.0.113.7")
        with pytest.raises(AssertionError, match=rf"cannot bind 127\.0\.0\.1:{engines[0].port}: Address already in use"):
            gateway.put(servers, check=check, gateway_port=engines[0].port)
    assert gateway.info()["pids"] == pids
    assert gateway.put(servers)["action"] == "none"


def test_only_proof_differs_needs_no_reload(pair):
    gateway, engines, servers = pair
    pids = gateway.info()["pids"]
    held = [servers[0], dict(servers[1], proven=False)]
    assert gateway.put(held)["action"] == "written"
    assert gateway.set(**{"n-c1": "maint"})["changed"] is True
    assert {gateway.post()[1]["port"] for _number in range(4)} == {engines[0].port}
    assert gateway.script("reload").returncode == 0
    until(lambda: gateway.info()["pids"] != pids and gateway.info()["running"])
    assert gateway.info()["states"] == {"n-c0": "ready", "n-c1": "maint"}
    assert gateway.put(servers)["action"] == "written"
    assert gateway.set(**{"n-c1": "ready"})["changed"] is True
    assert gateway.info()["states"]["n-c1"] == "ready"


def test_a_new_unproven_replica_gets_nothing(pair, make):
    gateway, _engines, servers = pair
    newcomer = make.engine()
    assert gateway.put([*servers, server("n-c2", newcomer.port, proven=False)])["action"] == "reloaded"
    for _number in range(12):
        assert gateway.post()[0] == 200
    assert not newcomer.seen
    assert (gateway.home / "etc/gateway/haproxy.cfg.previous").read_text(encoding="utf-8").count("    server ") == 2


def test_reload_cuts_no_stream_and_forgets_no_state(pair):
    gateway, engines, servers = pair
    gateway.set(**{"n-c1": "maint"})
    door = gateway.connect()
    door.request("POST", "/v1/completions", json.dumps({"stream": 5}), {"Authorization": "Bearer " + gateway.key})
    answer = door.getresponse()
    assert answer.readline() == b"data: 0\n"
    statuses, stop = [], threading.Event()

    def loop():
        while not stop.is_set():
            statuses.append(gateway.post()[0])

    thread = threading.Thread(target=loop)
    thread.start()
    for number in range(4):
        result = gateway.put(servers, gateway_retry_after_s=10 + number)
        assert (result["action"], result["restored"]) == ("reloaded", {})
        assert gateway.info()["states"] == {"n-c0": "ready", "n-c1": "maint"}
    stop.set()
    thread.join(20)
    engines[0].step.set()
    assert answer.read().endswith(b"data: 4\n\n")
    assert set(statuses) == {200}
    assert not engines[1].seen


def test_a_dead_replica_stays_dead_over_a_reload(pair):
    gateway, engines, servers = pair
    engines[0].server.socket.close()
    engines[0].server.shutdown()
    until(lambda: gateway.door.servers()["n-c0"].op == "stopped")
    gateway.put(servers, gateway_retry_after_s=11)
    assert gateway.door.servers()["n-c0"].op == "stopped"


def test_a_moved_port_is_not_taken_from_the_saved_state(pair, make):
    gateway, _engines, servers = pair
    moved = make.engine()
    gateway.put([dict(servers[0], port=moved.port), servers[1]])
    assert gateway.door.servers()["n-c0"].port == moved.port
    until(lambda: gateway.post()[0] == 200 and moved.seen)


def test_killed_between_writing_and_reloading(pair):
    gateway, _engines, servers = pair
    text, _identity = _haproxy.with_identity(gateway.render("haproxy.cfg.j2", servers, gateway_retry_after_s=77))
    gateway.config.write_text(text, encoding="utf-8")
    result = gateway.put(servers, gateway_retry_after_s=77)
    assert result["action"] == "reloaded"
    assert gateway.put(servers, gateway_retry_after_s=77)["action"] == "none"


def test_cold_start_does_not_believe_old_states(pair):
    gateway, _engines, _servers = pair
    # By the socket alone, as the state file would have it; what the module takes out is also in the configuration.
    gateway.door.set_state(_haproxy.BACKEND, "n-c1", "maint")
    assert gateway.script("reload").returncode == 0
    assert (gateway.home / "run/gateway.state").exists()
    assert gateway.script("restart").returncode == 0
    until(lambda: gateway.info()["running"])
    assert gateway.info()["states"]["n-c1"] == "ready"


def test_script_tells_whether_it_runs(pair):
    gateway, _engines, _servers = pair
    assert gateway.script("status").returncode == 0
    assert gateway.script("start").returncode == 0
    assert gateway.script("stop").returncode == 0
    assert gateway.script("status").returncode == 3
    assert gateway.script("reload").returncode == 1
    assert gateway.script("nonsense").returncode == 2
    (gateway.home / "run/gateway.pid").write_text("1\n", encoding="utf-8")
    assert gateway.script("status").returncode == 3


def test_what_was_taken_out_stays_out_when_the_gateway_starts_anew(pair):
    """A run that dies between taking a replica out and proving its successor leaves nothing that a restart would let in."""
    gateway, engines, _servers = pair
    before = gateway.config.read_text(encoding="utf-8")
    gateway.set(**{"n-c0": "drain"})
    assert gateway.script("restart").returncode == 0
    until(lambda: gateway.door.servers(_haproxy.BACKEND)["n-c1"].op == "running")
    assert gateway.door.servers(_haproxy.BACKEND)["n-c0"].admin == "maint"
    assert [gateway.post()[0] for _number in range(4)] == [200] * 4
    assert [path for path, _headers in engines[0].seen if path != "/health"] == []
    gateway.set(**{"n-c0": "ready"})
    assert gateway.config.read_text(encoding="utf-8") == before


# Keys


def test_keys_change_without_a_reload(pair):
    gateway, _engines, _servers = pair
    pids, old = gateway.info()["pids"], gateway.key
    fresh = [{"name": "a", "key": "key-of-client-a-0001"}]
    newer = [{"name": "b", "key": "key-of-client-b-0002"}]
    result = gateway.keys(check=True, client_keys=fresh)
    assert (result["changed"], result["added"], result["removed"]) == (True, ["a"], [])
    assert gateway.post(key="key-of-client-a-0001")[0] == 401
    assert gateway.keys(client_keys=fresh)["added"] == ["a"]
    # The host's own key stays good beside the clients': acceptance asks with it.
    assert [gateway.post(key=key)[0] for key in (old, "key-of-client-a-0001")] == [200, 200]
    assert gateway.keys(client_keys=newer)["removed"] == ["a"]
    assert [gateway.post(key=key)[0] for key in (old, "key-of-client-a-0001", "key-of-client-b-0002")] == [200, 401, 200]
    result = gateway.keys(client_keys=newer)
    assert result["changed"] is False
    with open(result["client_key_file"], encoding="utf-8") as handle:
        assert handle.read().strip() == old
    assert gateway.info()["pids"] == pids


def test_engine_key_changes_without_a_reload(pair):
    gateway, engines, _servers = pair
    (gateway.home / "etc/keys/engine.key").write_text("another-engine-key\n", encoding="utf-8")
    result = gateway.keys()
    assert result["engine_key_changed"] is True
    assert "another-engine-key" not in json.dumps(result)
    gateway.post()
    assert (engines[0].seen + engines[1].seen)[-1][1]["authorization"] == "Bearer another-engine-key"


def test_keys_lost_in_memory_come_back(pair):
    gateway, _engines, _servers = pair
    gateway.door.map_delete(gateway.keys_options["keys_map"], _haproxy.key_hash(gateway.key))
    assert gateway.post()[0] == 401
    assert gateway.keys()["changed"] is True
    assert gateway.post()[0] == 200


def test_a_missing_engine_key_is_said(pair):
    gateway, _engines, _servers = pair
    (gateway.home / "etc/keys/engine.key").unlink()
    with pytest.raises(AssertionError, match=r"engine key .*engine\.key is not on this host"):
        gateway.keys()


# Drains


def test_drain_waits_for_the_open_request_and_not_longer(pair):
    gateway, engines, _servers = pair
    gateway.set(**{"n-c1": "maint"})
    engines[0].gate.clear()
    statuses = []
    thread = threading.Thread(target=lambda: statuses.append(gateway.post()[0]))
    thread.start()
    until(lambda: engines[0].busy == 1)
    result = gateway.set(wait_s=0.3, **{"n-c0": "drain"})
    assert result["open_sessions"] == 1
    assert 0.3 <= result["waited_s"] < 3
    assert result["servers"][0]["after"] == "maint"
    gateway.set(**{"n-c0": "ready"})
    threading.Timer(0.3, engines[0].gate.set).start()
    result = gateway.set(wait_s=20, **{"n-c0": "drain"})
    assert (result["open_sessions"], result["servers"][0]["after"]) == (0, "maint")
    assert result["waited_s"] < 10
    thread.join(20)
    assert statuses == [200]
    again = gateway.set(**{"n-c0": "drain"})
    assert (again["changed"], again["waited_s"]) == (False, 0)


def test_drain_counts_what_a_worker_from_before_a_reload_still_serves(pair):
    gateway, engines, servers = pair
    gateway.set(**{"n-c1": "maint"})
    engines[0].gate.clear()
    thread = threading.Thread(target=gateway.post)
    thread.start()
    until(lambda: engines[0].busy == 1)
    gateway.put(servers, gateway_retry_after_s=12)
    assert gateway.door.sessions().get("n-c0") == 0
    assert gateway.set(wait_s=0.2, **{"n-c0": "drain"})["open_sessions"] == 1
    engines[0].gate.set()
    thread.join(20)


def test_drain_ends_with_idle_connections_open(pair):
    gateway, _engines, _servers = pair
    door = gateway.connect()
    for _number in range(2):
        door.request("GET", "/v1/models", headers={"Authorization": "Bearer " + gateway.key})
        assert door.getresponse().read()
    assert gateway.set(wait_s=20, **{"n-c0": "drain", "n-c1": "drain"})["waited_s"] < 10
    door.close()


def test_states_in_check_mode_and_of_unknown_servers(pair):
    gateway, _engines, _servers = pair
    result = gateway.set(check=True, **{"n-c0": "maint", "n-c1": "ready"})
    assert (result["changed"], [item["after"] for item in result["servers"]]) == (True, ["maint", "ready"])
    assert gateway.info()["states"]["n-c0"] == "ready"
    with pytest.raises(AssertionError, match=r'no server "n-c9".*did you mean.*Known: n-c0, n-c1'):
        gateway.set(**{"n-c9": "maint"})


def test_what_is_missing_can_be_passed_over(pair):
    gateway, _engines, _servers = pair
    result = gateway.set(missing="ignore", **{"n-c0": "maint", "n-c9": "maint"})
    assert [(item["name"], item["after"]) for item in result["servers"]] == [("n-c0", "maint")]
    assert gateway.script("stop").returncode == 0
    assert gateway.set(missing="ignore", **{"n-c0": "ready"})["servers"] == []
    with pytest.raises(AssertionError, match="Is the gateway running"):
        gateway.set(**{"n-c0": "ready"})
