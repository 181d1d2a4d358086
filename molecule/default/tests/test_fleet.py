# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What must be true of the machine after the shipped site converged on it."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from fleet_client import CONFIG, GATEWAY_PORT, Answer, request

STATE = "/var/lib/ironserve"
LISTENERS = pathlib.Path(__file__).with_name("listeners.py")


# ---- the replicas


def test_at_least_two_replicas_run(replicas: list[dict[str, Any]]) -> None:
    assert len(replicas) >= 2
    assert [replica["Name"] for replica in replicas if not replica["State"]["Running"]] == []


def test_replicas_have_no_more_rights_than_they_need(replicas: list[dict[str, Any]]) -> None:
    for replica in replicas:
        name, settings = replica["Name"], replica["HostConfig"]
        assert settings["Privileged"] is False, name
        assert settings["CapDrop"] == ["ALL"], name
        assert not settings["CapAdd"], name
        assert settings["ReadonlyRootfs"] is True, name
        assert any(option.startswith("no-new-privileges") for option in settings["SecurityOpt"]), name
        assert settings["PidMode"] != "host" and settings["NetworkMode"] != "host" and settings["IpcMode"] != "host", name
        assert settings["PidsLimit"] and settings["PidsLimit"] > 0, name
        assert settings["Memory"] > 0, name
        assert not settings["Devices"], name
        assert replica["Config"]["User"].split(":")[0] not in ("", "0", "root"), name


def test_replicas_listen_on_loopback_only(replicas: list[dict[str, Any]]) -> None:
    for replica in replicas:
        bindings = [binding for ports in (replica["HostConfig"]["PortBindings"] or {}).values() for binding in ports]
        assert bindings and all(binding["HostIp"] == "127.0.0.1" for binding in bindings), replica["Name"]


def test_whoever_listens_on_a_replicas_port_is_the_replica(host: Any, replicas: list[dict[str, Any]]) -> None:
    """On the machine the container engine's proxy, and it leads to the container; there a process of the container's control group."""
    processes = [str(replica["State"]["Pid"]) for replica in replicas]
    told = json.loads(host.check_output(f"python3 {LISTENERS} self {' '.join(processes)}"))
    for replica, process in zip(replicas, processes, strict=True):
        (port,) = [int(item["HostPort"]) for bound in replica["HostConfig"]["PortBindings"].values() for item in bound]
        (inside,) = [int(name.partition("/")[0]) for name in replica["HostConfig"]["PortBindings"]]
        addresses = {network["IPAddress"] for network in replica["NetworkSettings"]["Networks"].values()}
        doors = [found for listener in told["self"] if listener["port"] == port for found in listener["processes"] or [{"command": ["?"]}]]
        assert doors, replica["Name"]
        for door in doors:
            options = dict(itertools.pairwise(door["command"]))
            assert door["command"][0].endswith("docker-proxy"), door
            assert options["-container-ip"] in addresses and options["-container-port"] == str(inside), door
        engines = [listener for listener in told[process] if listener["port"] == inside]
        assert engines, replica["Name"]
        for listener in engines:
            assert listener["processes"], listener
            assert all(replica["Id"] in found["cgroup"] for found in listener["processes"]), listener


def test_each_replica_has_a_card_of_its_own(replicas: list[dict[str, Any]]) -> None:
    ports = [binding["HostPort"] for replica in replicas for bound in replica["HostConfig"]["PortBindings"].values() for binding in bound]
    assert len(ports) == len(set(ports)) == len(replicas)
    assert all(replica["HostConfig"]["CpusetCpus"] for replica in replicas)


def test_weights_are_mounted_read_only(replicas: list[dict[str, Any]]) -> None:
    for replica in replicas:
        weights = [mount for mount in replica["Mounts"] if mount["Source"].startswith(f"{STATE}/weights")]
        assert weights and not any(mount["RW"] for mount in weights), replica["Name"]


# ---- the gateway


@pytest.mark.parametrize("stream", [False, True])
def test_gateway_answers_with_the_key(ask: Callable[..., Answer], stream: bool) -> None:
    answer = ask(stream=stream)
    assert answer.status == 200, answer.body
    if stream:
        events = [line[5:].strip() for line in answer.body.splitlines() if line.startswith("data:")]
        assert events[-1] == "[DONE]"
        text = "".join(choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"])
    else:
        text = answer.json()["choices"][0]["message"]["content"]
    assert "Tokyo" in text


@pytest.mark.parametrize("key", ["", "sk-wrong"])
def test_gateway_refuses_without_the_key(key: str) -> None:
    answer = request(GATEWAY_PORT, "GET", "/v1/models", key=key)
    assert answer.status == 401
    assert answer.json()["error"]["message"]


def test_the_engine_key_opens_no_door_of_the_gateway(engine_key: str) -> None:
    assert request(GATEWAY_PORT, "GET", "/v1/models", key=engine_key).status == 401


@pytest.mark.parametrize("path", ["/invocations", "/metrics", "/health", "/pause", "/v1/load_lora_adapter", "/v1/models/../../metrics"])
def test_gateway_hides_every_other_path(client_key: str, path: str) -> None:
    for method in ("GET", "POST"):
        assert request(GATEWAY_PORT, method, path, key=client_key, body={} if method == "POST" else None).status == 404


def test_replicas_refuse_the_client_key(replicas: list[dict[str, Any]], client_key: str, engine_key: str) -> None:
    for replica in replicas:
        port = next(int(binding["HostPort"]) for bound in replica["HostConfig"]["PortBindings"].values() for binding in bound)
        assert request(port, "GET", "/v1/models", key=client_key).status == 401, replica["Name"]
        assert request(port, "GET", "/v1/models", key=engine_key).status == 200, replica["Name"]


# ---- secrets and files


@pytest.mark.parametrize("name", ["keys/client-default.key", "keys/engine.key", "gateway/haproxy.cfg"])
def test_secrets_are_readable_by_their_owner_only(host: Any, name: str) -> None:
    file = host.file(f"{CONFIG}/{name}")
    assert file.is_file and file.mode & 0o077 == 0


def test_weights_cannot_be_written(host: Any) -> None:
    assert host.check_output(f"find {STATE}/weights -type f -name '*.gguf'")
    # Markers and manifests are records beside the weights, not weights.
    records = r"\( -path '*/.verified*' -o -name '*.manifest.json' \)"
    assert host.check_output(f"find {STATE}/weights {records} -prune -o -type f -perm /0222 -print") == ""


def test_keys_are_nowhere_but_in_their_files(host: Any, replicas: list[dict[str, Any]], client_key: str, engine_key: str) -> None:
    places = {"docker inspect": json.dumps(replicas), "process list": host.check_output("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")}
    for replica in replicas:
        result = host.run(f"docker logs {replica['Id']}")
        places[f"logs of {replica['Name']}"] = result.stdout + result.stderr
        places[f"environment in {replica['Name']}"] = host.check_output(f"cat /proc/{replica['State']['Pid']}/environ | tr '\\0' ' '")
    for key in (client_key, engine_key):
        assert len(key) >= 16
        assert [place for place, text in places.items() if key in text] == []
        # Only file names are printed, never the line that matched.
        found = host.run(
            f"grep -rlF -f - {STATE} /run/ironserve /var/log --include='*' --devices=skip --binary-files=without-match <<'KEY'\n{key}\nKEY"
        )
        assert found.stdout.split() == []


def test_the_gateway_knows_client_keys_as_hashes_only(host: Any, client_key: str) -> None:
    assert client_key not in host.file(f"{CONFIG}/gateway/haproxy.cfg").content_string
    assert client_key not in host.file(f"{CONFIG}/gateway/keys.map").content_string


def test_the_site_remembers_what_it_made(host: Any) -> None:
    """Every record is readable, and what it says was installed is installed."""
    for name in host.check_output(f"find {STATE}/made -name '*.json' 2>/dev/null || true").split():
        record = json.loads(host.file(name).content_string)
        assert isinstance(record, dict)
        for package in record.get("packages", []):
            assert host.package(package).is_installed
