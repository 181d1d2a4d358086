# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The door to the container engine: the real client library against an engine that answers what the test wants.

The engine here is a small HTTP server on a socket of its own; the real engine is in tests/integration.
"""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import threading

import pytest
from unit.plugins.played.container import SPEC

from ansible_collections.ironserve.llm.plugins.module_utils import _docker
from ansible_collections.ironserve.llm.plugins.module_utils._container_request import request
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class Engine:
    """Answers by ``(method, path without version)``; keeps what it was sent."""

    def __init__(self, path):
        self.answers = {("GET", "/_ping"): (200, "OK"), ("GET", "/version"): (200, {"ApiVersion": "1.41"})}
        self.bodies = {}
        self.asked = []
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def reply(self):
                engine.asked.append(self.path)
                path = self.path.split("?")[0]
                path = path[path.index("/", 1) :] if path.startswith("/v1.") else path
                length = int(self.headers.get("Content-Length") or 0)
                if length:
                    engine.bodies[path] = json.loads(self.rfile.read(length))
                status, answer = engine.answers.get((self.command, path), (404, {"message": "No such thing: " + path}))
                payload = (
                    answer if isinstance(answer, bytes) else (answer if isinstance(answer, str) else json.dumps(answer)).encode("utf-8")
                )
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_POST = do_DELETE = reply

            def address_string(self):
                return "unix"

            def log_message(self, *_args):
                pass

        self.server = UnixServer(path, Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def socket_path(tmp_path):
    path = str(tmp_path / "engine.sock")
    return path if len(path) < 100 else os.path.relpath(path)


@pytest.fixture
def engine(socket_path):
    engine = Engine(socket_path)
    yield engine
    engine.close()


@pytest.fixture
def client(engine, socket_path):
    client = _docker.connect(socket_path)
    yield client
    client.close()


def described(name, **state):
    return {"Name": "/" + name, "RestartCount": 2, "State": dict({"Running": True, "Pid": 77, "ExitCode": 0, "Restarting": False}, **state)}


def test_no_engine_is_named_by_its_socket(socket_path):
    with pytest.raises(_docker.EngineAbsent, match="no container engine answers on .*engine.sock"):
        _docker.connect(socket_path)


def test_engine_that_fails_its_ping_is_absent(engine, socket_path):
    engine.answers["GET", "/_ping"] = (500, {"message": "broken"})
    with pytest.raises(_docker.EngineAbsent, match="no container engine answers"):
        _docker.connect(socket_path)


def test_missing_library_says_what_to_install(monkeypatch, socket_path):
    monkeypatch.setattr(_docker, "HAS_DOCKER", False)
    with pytest.raises(_docker.EngineAbsent, match="python3-docker"):
        _docker.connect(socket_path)


def test_absent_engine_is_one_of_our_errors():
    assert issubclass(_docker.EngineAbsent, LLMError)


def test_inspect_takes_a_name_and_not_the_beginning_of_an_id(engine, client):
    engine.answers["GET", "/containers/abc/json"] = (200, described("ironserve-c0"))
    engine.answers["GET", "/containers/ironserve-c0/json"] = (200, described("ironserve-c0"))
    assert _docker.inspect(client, "abc") is None
    assert _docker.inspect(client, "missing") is None
    assert _docker.inspect(client, "ironserve-c0")["State"]["Pid"] == 77


def test_pid_of_a_running_container(engine, socket_path):
    engine.answers["GET", "/containers/ironserve-c0/json"] = (200, described("ironserve-c0"))
    assert _docker.container_pid("ironserve-c0", socket_path) == 77
    engine.answers["GET", "/containers/ironserve-c0/json"] = (200, described("ironserve-c0", Pid=0, Running=False, ExitCode=137))
    with pytest.raises(LLMError, match="container ironserve-c0 does not run .exit code 137."):
        _docker.container_pid("ironserve-c0", socket_path)
    with pytest.raises(LLMError, match="container ironserve-c9 does not exist"):
        _docker.container_pid("ironserve-c9", socket_path)


@pytest.mark.parametrize(("state", "running"), [({}, True), ({"Restarting": True}, False), ({"Running": False}, False)])
def test_state_of_a_container(monkeypatch, engine, socket_path, state, running):
    monkeypatch.setattr(_docker, "log_tail", lambda _client, _name: "last words")
    engine.answers["GET", "/containers/ironserve-c0/json"] = (200, described("ironserve-c0", ExitCode=1, **state))
    expected = {
        "running": running,
        "pid": 77 if running else 0,
        "exit_code": 1,
        "oom_killed": False,
        "restarts": 2,
        "log_tail": "" if running else "last words",
    }
    assert _docker.container_state("ironserve-c0", socket_path) == expected


def test_the_last_words_of_a_container_by_its_name(engine, socket_path):
    engine.answers["GET", "/containers/ironserve-c0/json"] = (200, dict(described("ironserve-c0"), Config={"Tty": True}))
    engine.answers["GET", "/containers/ironserve-c0/logs"] = (200, "loading\nstill loading\n")
    assert _docker.last_log("ironserve-c0", socket_path) == "loading\nstill loading"


def test_a_container_that_the_kernel_ended_says_so(monkeypatch, engine, socket_path):
    monkeypatch.setattr(_docker, "log_tail", lambda _client, _name: "")
    engine.answers["GET", "/containers/ironserve-c0/json"] = (200, described("ironserve-c0", Running=False, ExitCode=137, OOMKilled=True))
    assert _docker.container_state("ironserve-c0", socket_path)["oom_killed"] is True


def test_the_log_since_the_last_start(engine, socket_path):
    """The engine frames what a container wrote: stream, length, text. Only what came after the start is asked for."""
    found = dict(described("ironserve-c0", StartedAt="2026-11-30T15:00:00.123456789Z"), Config={"Tty": False})
    engine.answers["GET", "/containers/ironserve-c0/json"] = (200, found)
    frames = b"".join(bytes([1, 0, 0, 0]) + len(text).to_bytes(4, "big") + text for text in (b"first\n", b"second\n", b"third\n"))
    engine.answers["GET", "/containers/ironserve-c0/logs"] = (200, frames)
    assert _docker.start_log("ironserve-c0", socket=socket_path) == "first\nsecond\nthird\n"
    assert _docker.start_log("ironserve-c0", most_bytes=7, socket=socket_path) == "first\nsecond\n"
    (asked,) = {path for path in engine.asked if "/logs" in path}
    assert "since=1796050800" in asked and "follow=0" in asked
    assert _docker.start_log("ironserve-c9", socket=socket_path) == ""


def test_container_that_ends_meanwhile_is_left_out(engine, client):
    engine.answers["GET", "/containers/json"] = (200, [{"Id": "one"}, {"Id": "two"}])
    engine.answers["GET", "/containers/two/json"] = (200, described("two"))
    assert [item["Name"] for item in _docker.running_containers(client)] == ["/two"]


@pytest.fixture
def created(engine, client):
    """What the engine was asked to create for SPEC."""
    engine.answers["POST", "/containers/create"] = (201, {"Id": "1", "Warnings": []})
    engine.answers["POST", "/containers/ironserve-c1/start"] = (204, "")
    _docker.create(client, SPEC)
    return engine.bodies["/containers/create"]


def test_created_without_rights_it_does_not_need(created):
    host = created["HostConfig"]
    assert not host.get("Privileged")
    assert host["CapDrop"] == ["ALL"] and not host.get("CapAdd")
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["ReadonlyRootfs"] is True
    assert host["NetworkMode"] == "ironserve"
    assert not host.get("PidMode") and host["IpcMode"] == "private" and not host.get("UTSMode")
    assert created["User"] == "64064:64064"


def test_created_with_its_own_devices_mounts_and_limits(created):
    host = created["HostConfig"]
    assert [(item["PathOnHost"], item["PathInContainer"]) for item in host["Devices"]] == [(path, path) for path in SPEC["devices"]]
    assert {item["Target"]: item.get("ReadOnly", False) for item in host["Mounts"]} == {"/models": True, "/cache": False}
    assert host["Memory"] == host["MemorySwap"] == 2**30
    assert (host["CpusetCpus"], host["PidsLimit"], host["ShmSize"], host["GroupAdd"]) == ("1", 256, 2**26, ["44"])
    assert "nosuid" in host["Tmpfs"]["/tmp"] and "size=" in host["Tmpfs"]["/tmp"]
    assert host["LogConfig"]["Config"] == {"max-size": "16m", "max-file": "3"}
    assert created["StopTimeout"] == 20


def test_port_is_bound_to_its_address_only(created):
    assert created["HostConfig"]["PortBindings"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8002"}]}


def test_asked_for_exactly_as_the_request_says(created, engine):
    assert created == request(SPEC)
    assert any(path.endswith("/containers/create?name=ironserve-c1") for path in engine.asked)


def test_no_limits_where_the_platform_sets_none(engine, client):
    engine.answers["POST", "/containers/create"] = (201, {"Id": "1", "Warnings": []})
    engine.answers["POST", "/containers/ironserve-c1/start"] = (204, "")
    _docker.create(client, dict(SPEC, memory_mib=0, cpuset=""))
    host = engine.bodies["/containers/create"]["HostConfig"]
    assert not host.get("Memory") and not host.get("CpusetCpus")


def test_network_is_made_once_and_keeps_containers_apart(engine, client):
    engine.answers["GET", "/networks"] = (200, [{"Name": "ironserve-other", "Id": "9"}])
    engine.answers["POST", "/networks/create"] = (201, {"Id": "1"})
    assert _docker.ensure_network(client, "ironserve") is True
    assert engine.bodies["/networks/create"]["Options"] == {"com.docker.network.bridge.enable_icc": "false"}
    engine.answers["GET", "/networks"] = (200, [{"Name": "ironserve", "Id": "1"}])
    assert _docker.ensure_network(client, "ironserve") is False


def test_two_who_want_the_network_at_the_same_moment_make_one():
    """The real engine takes a second network of the same name, and then starts no container on it."""

    class Slow:
        def __init__(self):
            self.made, self.looked = [], threading.Semaphore(0)

        def networks(self, names):
            self.looked.release()
            return [{"Name": name} for name in self.made if name in names]

        def create_network(self, name, **_options):
            # Another look before this one is made would miss it; the first release is this one's own.
            self.looked.acquire()
            self.looked.acquire(timeout=0.3)
            self.made.append(name)

    client, results = Slow(), []
    threads = [threading.Thread(target=lambda: results.append(_docker.ensure_network(client, "ironserve"))) for _turn in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (client.made, sorted(results)) == (["ironserve"], [False, True])


def test_a_network_that_another_made_or_removed_a_moment_earlier_is_as_good(engine, client):
    """Names of one machine do the same at the same time."""
    engine.answers["GET", "/networks"] = (200, [])
    engine.answers["POST", "/networks/create"] = (409, {"message": "network with name ironserve already exists"})
    assert _docker.ensure_network(client, "ironserve") is False
    engine.answers["POST", "/networks/create"] = (500, {"message": "no room for another network"})
    with pytest.raises(_docker.docker.errors.APIError):
        _docker.ensure_network(client, "ironserve")
    engine.answers["GET", "/networks"] = (200, [{"Name": "ironserve", "Id": "1"}])
    engine.answers["GET", "/networks/1"] = (404, {"message": "no such network"})
    assert _docker.remove_network(client, "ironserve") is False


def test_what_replicas_publish_is_told_of_those_that_stand_still_too(engine, client):
    engine.answers["GET", "/containers/json"] = (200, [{"Names": ["/ironserve-c0"], "Id": "1"}, {"Names": ["/ironserve-c1"], "Id": "2"}])
    for name, bindings in (
        ("c0", {"8000/tcp": [{"HostIp": "192.0.2.11", "HostPort": "8001"}]}),
        ("c1", {"8000/tcp": [{"HostPort": "8002"}]}),
    ):
        answer = {"Name": "/ironserve-" + name, "HostConfig": {"PortBindings": bindings}}
        engine.answers["GET", "/containers/ironserve-{0}/json".format(name)] = (200, answer)
    assert _docker.published(client) == [("0.0.0.0", 8002), ("192.0.2.11", 8001)]
    assert any("all=1" in path and "ironserve.replica" in path for path in engine.asked)


def test_a_network_s_addresses_are_its_own_and_not_those_of_one_with_a_longer_name(engine, client):
    two = {"Config": [{"Subnet": "172.18.0.0/16", "Gateway": "172.18.0.1"}, {"Subnet": "fd00:18::/64"}]}
    other = {"Name": "ironserve-other", "Id": "9", "IPAM": {"Config": [{"Subnet": "172.19.0.0/16"}]}}
    engine.answers["GET", "/networks"] = (200, [other, {"Name": "ironserve", "Id": "1", "IPAM": two}])
    assert _docker.subnets(client, "ironserve") == ["172.18.0.0/16", "fd00:18::/64"]
    engine.answers["GET", "/networks"] = (200, [other, {"Name": "host", "Id": "2", "IPAM": {"Config": None}}])
    assert _docker.subnets(client, "ironserve") == _docker.subnets(client, "host") == []


@pytest.mark.parametrize(("containers", "removed"), [({}, True), ({"abc": {}}, False)])
def test_network_goes_only_when_nothing_is_on_it(engine, client, containers, removed):
    engine.answers["GET", "/networks"] = (200, [{"Name": "ironserve-other", "Id": "9"}, {"Name": "ironserve", "Id": "1"}])
    engine.answers["GET", "/networks/1"] = (200, {"Name": "ironserve", "Containers": containers})
    engine.answers["DELETE", "/networks/1"] = (204, "")
    assert _docker.remove_network(client, "ironserve") is removed


def test_every_network_of_ours_with_that_name_goes(engine, client):
    """An engine may have two of one name. One in use stays, one that is gone already keeps none of the others from going."""
    named = [("1", "ironserve"), ("2", "ironserve"), ("3", "ironserve-other"), ("4", "ironserve"), ("5", "ironserve")]
    engine.answers["GET", "/networks"] = (200, [{"Name": name, "Id": number} for number, name in named])
    for number, name in named:
        used = {"abc": {}} if number == "2" else {}
        engine.answers["GET", "/networks/" + number] = (200, {"Name": name, "Containers": used})
        engine.answers["DELETE", "/networks/" + number] = (204, "")
    engine.answers["GET", "/networks/4"] = (404, {"message": "no such network"})
    assert _docker.remove_network(client, "ironserve") is True
    asked = [path.rpartition("/networks/")[2] for path in engine.asked if "/networks/" in path]
    # Looked at, and where the same follows, removed.
    assert asked == ["1", "1", "2", "4", "5", "5"]


def test_removing_what_is_gone_is_no_error(client):
    _docker.remove(client, "gone")


def test_a_command_that_runs_once_reaches_nothing_and_leaves_nothing(engine, client):
    engine.answers["POST", "/containers/create"] = (201, {"Id": "77", "Warnings": []})
    engine.answers["POST", "/containers/77/start"] = (204, "")
    engine.answers["POST", "/containers/77/wait"] = (200, {"StatusCode": 3})
    engine.answers["GET", "/containers/77/json"] = (200, dict(described("x"), Config={"Tty": True}))
    engine.answers["GET", "/containers/77/logs"] = (200, "version 0.18.1\n")
    engine.answers["DELETE", "/containers/77"] = (204, "")
    assert _docker.run_once(client, "img", ["tell", "it"], 9) == (3, "version 0.18.1")
    body = engine.bodies["/containers/create"]
    assert (body["Image"], body["Entrypoint"], body["User"]) == ("img", ["tell", "it"], "65534:65534")
    limits = body["HostConfig"]
    assert (limits["NetworkMode"], limits["ReadonlyRootfs"], limits["CapDrop"]) == ("none", True, ["ALL"])
    assert not limits.get("Devices") and not limits.get("Binds") and not limits.get("Mounts")
    assert any("/containers/77?" in path and "force=True" in path for path in engine.asked)


def test_a_command_that_does_not_start_leaves_nothing_either(engine, client):
    engine.answers["POST", "/containers/create"] = (201, {"Id": "77", "Warnings": []})
    engine.answers["POST", "/containers/77/start"] = (500, {"message": "exec: tell: not found"})
    engine.answers["DELETE", "/containers/77"] = (204, "")
    with pytest.raises(_docker.ENGINE_ERRORS, match="tell: not found"):
        _docker.run_once(client, "img", ["tell"], 9)
    assert any("/containers/77?" in path and "force=True" in path for path in engine.asked)
