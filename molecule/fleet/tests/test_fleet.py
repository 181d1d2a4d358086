# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What must be true of the fleet after the shipped site converged on it over ssh."""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import socket
from typing import Any

import pytest
import requests
from fleet_lab import CARDS, CONFIG, FORMAT, PORTS, ROOT, STATE, Lab


@pytest.fixture(scope="module")
def replicas(lab: Lab) -> dict[str, list[dict[str, Any]]]:
    return {node: lab.replicas(node) for node in lab.nodes}


# ---- the nodes


def test_what_the_site_started_also_starts_with_the_node(lab: Lab) -> None:
    for name, service in [*((node, "docker") for node in lab.nodes), (lab.gateway, "ironserve-gateway")]:
        found = lab.host(name).service(service)
        assert found.is_running and found.is_enabled, f"{service} on {name}"


def test_no_unit_failed(lab: Lab) -> None:
    for name in [lab.gateway, *lab.nodes]:
        assert lab.host(name).check_output("systemctl list-units --failed --plain --no-legend") == "", name


def test_the_run_lock_was_given_back(lab: Lab) -> None:
    for name in [lab.gateway, *lab.nodes]:
        assert not lab.host(name).file("/run/ironserve/lock.json").exists, name


# ---- the replicas


def test_four_replicas_run_on_each_node(replicas: dict[str, list[dict[str, Any]]]) -> None:
    for node, found in replicas.items():
        assert sorted(replica["Name"] for replica in found if replica["State"]["Running"]) == [
            f"/ironserve-c{card}" for card in range(CARDS)
        ], node


def test_replicas_have_no_more_rights_than_they_need(replicas: dict[str, list[dict[str, Any]]]) -> None:
    for node, found in replicas.items():
        for replica in found:
            name, settings = f"{node}{replica['Name']}", replica["HostConfig"]
            assert settings["Privileged"] is False, name
            assert settings["CapDrop"] == ["ALL"] and not settings["CapAdd"], name
            assert settings["ReadonlyRootfs"] is True, name
            assert any(option.startswith("no-new-privileges") for option in settings["SecurityOpt"]), name
            assert settings["NetworkMode"] != "host" and settings["PidMode"] != "host" and settings["IpcMode"] != "host", name
            assert settings["Memory"] > 0 and settings["PidsLimit"] > 0, name
            assert not settings["Devices"], name
            assert replica["Config"]["User"].split(":")[0] not in ("", "0", "root"), name
            assert not any(mount["RW"] for mount in replica["Mounts"] if mount["Source"].startswith(f"{STATE}/weights")), name


def test_replicas_are_bound_to_their_nodes_address(lab: Lab, replicas: dict[str, list[dict[str, Any]]]) -> None:
    for node, found in replicas.items():
        bindings = [binding for replica in found for bound in replica["HostConfig"]["PortBindings"].values() for binding in bound]
        assert sorted(int(binding["HostPort"]) for binding in bindings) == PORTS, node
        assert {binding["HostIp"] for binding in bindings} == {lab.address(node)}, node


def test_whoever_listens_on_a_replicas_port_is_the_replica(lab: Lab, replicas: dict[str, list[dict[str, Any]]]) -> None:
    """On the node the container engine's proxy, and it leads to the container; there a process of the container's control group."""
    program = (ROOT / "molecule/default/tests/listeners.py").read_text(encoding="utf-8")
    for node, found in replicas.items():
        processes = [str(replica["State"]["Pid"]) for replica in found]
        told = json.loads(lab.host(node).check_output("python3 -c %s self " + " ".join(processes), program))
        doors = {listener["port"]: listener["processes"] for listener in told["self"] if listener["port"] in PORTS}
        assert sorted(doors) == PORTS, node
        for replica, process in zip(found, processes, strict=True):
            (port,) = [int(item["HostPort"]) for bound in replica["HostConfig"]["PortBindings"].values() for item in bound]
            (inside,) = [int(name.partition("/")[0]) for name in replica["HostConfig"]["PortBindings"]]
            addresses = {network["IPAddress"] for network in replica["NetworkSettings"]["Networks"].values()}
            for door in doors[port]:
                options = dict(itertools.pairwise(door["command"]))
                assert door["command"][0].endswith("docker-proxy"), door
                assert options["-container-ip"] in addresses and options["-container-port"] == str(inside), door
            engines = [listener for listener in told[process] if listener["port"] == inside]
            assert engines and all(listener["processes"] for listener in engines + [{"processes": doors[port]}]), replica["Name"]
            for listener in engines:
                assert all(replica["Id"] in item["cgroup"] for item in listener["processes"]), listener


def test_replicas_run_the_image_of_the_digest(lab: Lab, replicas: dict[str, list[dict[str, Any]]]) -> None:
    wanted = f"{lab.state['image']['reference']}@{lab.state['image']['digest']}"
    for node, found in replicas.items():
        ids = {replica["Image"] for replica in found}
        assert len(ids) == 1, node
        assert wanted in json.loads(lab.host(node).check_output(f"docker image inspect {ids.pop()}"))[0]["RepoDigests"], node


def test_replicas_restart_with_their_node(replicas: dict[str, list[dict[str, Any]]]) -> None:
    for node, found in replicas.items():
        assert {replica["HostConfig"]["RestartPolicy"]["Name"] for replica in found} <= {"unless-stopped", "always"}, node


def test_replicas_refuse_whoever_has_no_key(lab: Lab) -> None:
    for node in lab.nodes:
        for key in ("", lab.client_key()):
            assert lab.engine(lab.gateway, node, "/v1/models", key) == ["401"] * CARDS, node


def test_one_engine_key_opens_all_replicas(lab: Lab) -> None:
    key = lab.host(lab.gateway).file(f"{CONFIG}/keys/engine.key").content_string.strip()
    assert len(key) >= 16
    for node in lab.nodes:
        assert lab.engine(lab.gateway, node, "/v1/models", key) == ["200"] * CARDS, node


# ---- the firewall


def test_nobody_but_the_gateway_and_the_node_itself_reaches_its_replicas(lab: Lab) -> None:
    for node, other in zip(lab.nodes, lab.nodes[1:] + lab.nodes[:1], strict=True):
        assert lab.engine(lab.gateway, node, "/health") == ["200"] * CARDS, node
        assert lab.engine(node, node, "/health") == ["200"] * CARDS, node
        assert lab.engine(other, node, "/health") == ["silence"] * CARDS, f"from {other} to {node}"
        # Nor does this machine, which is the nodes' way out.
        with pytest.raises(TimeoutError):
            socket.create_connection((lab.address(node), PORTS[0]), timeout=2)


def test_the_other_ports_of_a_node_are_nobodys_business(lab: Lab) -> None:
    for node in lab.nodes:
        socket.create_connection((lab.address(node), 22), timeout=5).close()


def test_the_way_into_the_containers_network_is_shut(lab: Lab) -> None:
    """A route by way of the node leads past its ports, so past all that is said of ports."""
    node, other = lab.nodes[:2]
    inside = json.loads(lab.host(node).check_output("docker network inspect ironserve"))[0]
    container = next(iter(inside["Containers"].values()))["IPv4Address"].partition("/")[0]
    route = f"{container}/32 via {lab.address(node)}"
    ask = f"curl -s -o /dev/null --connect-timeout 2 --max-time 5 http://{container}:8000/health"
    assert lab.host(node).run(ask).rc == 0, "the container's port is another one"
    lab.host(other).check_output(f"ip route add {route}")
    try:
        assert lab.host(other).run(ask).rc == 28
    finally:
        lab.host(other).check_output(f"ip route del {route}")


# ---- weights and keys


def test_weights_are_the_same_everywhere_and_read_only(lab: Lab) -> None:
    find = f"cd {STATE}/weights && find . -name '*{FORMAT}' -exec sha256sum {{}} +"
    sums = {node: lab.host(node).check_output(find) for node in lab.nodes}
    assert len(set(sums.values())) == 1 and FORMAT in sums[lab.nodes[0]]
    records = r"\( -path '*/.verified*' -o -name '*.manifest.json' \)"
    for node in lab.nodes:
        assert lab.host(node).check_output(f"find {STATE}/weights {records} -prune -o -type f -perm /0222 -print") == "", node


def test_keys_are_readable_by_their_owner_only(lab: Lab) -> None:
    places = [(name, "keys/engine.key") for name in [lab.gateway, *lab.nodes]]
    for name, path in [*places, (lab.gateway, "keys/client-default.key"), (lab.gateway, "gateway/haproxy.cfg")]:
        file = lab.host(name).file(f"{CONFIG}/{path}")
        assert file.is_file and file.mode & 0o077 == 0, f"{name}:{path}"


def test_the_client_key_never_left_the_gateway_node(lab: Lab) -> None:
    for node in lab.nodes:
        assert not lab.host(node).file(f"{CONFIG}/keys/client-default.key").exists, node


# ---- the gateway


@pytest.mark.parametrize("stream", [False, True])
def test_gateway_answers_with_the_key(lab: Lab, stream: bool) -> None:
    answer = lab.ask(stream=stream)
    assert answer.status_code == 200, answer.text
    if stream:
        events = [line[5:].strip() for line in answer.text.splitlines() if line.startswith("data:")]
        assert events[-1] == "[DONE]"
        text = "".join(choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"])
    else:
        text = answer.json()["choices"][0]["message"]["content"]
    assert "Tokyo" in text


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer sk-wrong"}], ids=["no key", "wrong key"])
def test_gateway_refuses_without_the_key(lab: Lab, headers: dict[str, str]) -> None:
    assert requests.get(f"{lab.url}/v1/models", headers=headers, timeout=10).status_code == 401


@pytest.mark.parametrize("path", ["/metrics", "/health", "/invocations", "/v1/load_lora_adapter"])
def test_gateway_hides_every_other_path(lab: Lab, path: str) -> None:
    assert requests.get(lab.url + path, headers={"Authorization": f"Bearer {lab.client_key()}"}, timeout=10).status_code == 404


def test_gateway_figures_are_for_the_node_only(lab: Lab) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((lab.address(lab.gateway), 8404), timeout=5)


def test_all_eight_replicas_serve(lab: Lab) -> None:
    before = lab.servers()
    assert sorted(before) == [f"{node}-c{card}" for node in lab.nodes for card in range(CARDS)]
    assert {server["status"] for server in before.values()} == {"UP"}
    with concurrent.futures.ThreadPoolExecutor(8) as users:
        answers = list(users.map(lambda _: lab.ask(max_tokens=8), range(24)))
    assert {answer.status_code for answer in answers} == {200}
    after = lab.servers()
    assert [name for name in after if int(after[name]["stot"]) == int(before[name]["stot"])] == []
