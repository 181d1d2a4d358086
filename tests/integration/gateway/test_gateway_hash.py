# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""prefix_hash: the beginning of a prompt says which replica, by a ring that whoever comes or goes leaves as it is."""

from __future__ import annotations

import json
import threading

import pytest
from integration.gateway.gateway_lab import server, until


def place(gateway, text, **headers):
    """The port that a prompt is answered from."""
    status, answer, _headers = gateway.post({"prompt": text}, path="/v1/completions", **headers)
    assert status == 200, answer
    return answer["port"]


@pytest.fixture
def ring(make):
    """A gateway with prefix_hash without a bound, and four engines."""
    gateway = make(gateway_balance="prefix_hash", gateway_hash_bound_percent=0)
    engines = [make.engine() for _number in range(4)]
    servers = [server(f"n-c{number}", engine.port) for number, engine in enumerate(engines)]
    gateway.put(servers)
    return gateway, engines, servers


def test_a_prefix_has_its_replica_however_it_is_written(ring):
    gateway, engines, _servers = ring
    first = {number: place(gateway, f"document {number}") for number in range(80)}
    assert {number: place(gateway, f"document {number}") for number in range(80)} == first
    # 20 each would be even; a ring with too few points, or a hash that does not mix, leaves one with hardly any.
    assert min(list(first.values()).count(engine.port) for engine in engines) >= 8
    for begin in "甲乙丙丁":
        bodies = [json.dumps({"prompt": begin + "字" * 170_000}, ensure_ascii=ascii).encode() for ascii in (True, False)]
        doors = [gateway.connect() for _body in bodies]
        ports = set()
        for door, body in zip(doors, bodies, strict=True):
            door.request("POST", "/v1/completions", body, {"Authorization": "Bearer " + gateway.key})
            ports.add(json.loads(door.getresponse().read())["port"])
            door.close()
        assert len(ports) == 1
    assert len({place(gateway, f"question {number}", **{"X-Session-Id": "s1"}) for number in range(8)}) == 1
    # What has no beginning goes around.
    assert {gateway.post({})[1]["port"] for _number in range(40)} == {engine.port for engine in engines}


def test_only_what_a_replica_had_moves_and_comes_back(ring):
    gateway, engines, servers = ring
    first = {number: place(gateway, f"document {number}") for number in range(60)}
    gone = engines[2].port
    gateway.set(**{"n-c2": "drain"})
    second = {number: place(gateway, f"document {number}") for number in range(60)}
    assert [number for number in first if second[number] != first[number]] == [number for number in first if first[number] == gone]
    assert gone not in second.values()
    # The reload keeps it out, though it is in the file by another number of the line.
    result = gateway.put([servers[2], servers[0], servers[1], servers[3]], gateway_retry_after_s=9)
    assert (result["action"], gateway.info()["states"]["n-c2"]) == ("reloaded", "maint")
    assert {number: place(gateway, f"document {number}") for number in range(60)} == second
    gateway.set(**{"n-c2": "ready"})
    assert {number: place(gateway, f"document {number}") for number in range(60)} == first


def test_one_more_replica_takes_its_share_and_moves_nothing_else(ring, make):
    gateway, _engines, servers = ring
    first = {number: place(gateway, f"document {number}") for number in range(60)}
    new = make.engine()
    # Before all others in the file: places on the ring must not come from the order.
    gateway.put([server("a-c0", new.port), *servers])
    second = {number: place(gateway, f"document {number}") for number in range(60)}
    moved = [number for number in first if second[number] != first[number]]
    assert 3 <= len(moved) <= 24
    assert {second[number] for number in moved} == {new.port}


@pytest.mark.parametrize(("bound", "spills"), [(0, False), (200, True)])
def test_a_hot_prefix_waits_for_its_replica_or_spills_and_is_never_refused(make, bound, spills):
    gateway = make(gateway_balance="prefix_hash", gateway_hash_bound_percent=bound)
    engines = [make.engine() for _number in range(4)]
    gateway.put([server(f"n-c{number}", engine.port, places=20) for number, engine in enumerate(engines)])
    for engine in engines:
        engine.gate.clear()
    statuses = []

    def ask():
        statuses.append(gateway.post({"prompt": "hot"}, path="/v1/completions")[0])

    threads = [threading.Thread(target=ask) for _number in range(24)]
    for thread in threads:
        thread.start()
    # Twice the mean of 24 on four is 12. Without a bound its replica works on as many as it has places for, and the rest waits for it.
    until(lambda: sum(gateway.door.sessions().values()) == 24)
    until(lambda: sum(engine.busy for engine in engines) == (24 if spills else 20))
    assert max(engine.busy for engine in engines) == (12 if spills else 20)
    assert max(gateway.door.sessions().values()) == (12 if spills else 24)
    for engine in engines:
        engine.gate.set()
    for thread in threads:
        thread.join(20)
    assert statuses == [200] * 24


def test_a_dead_replica_loses_its_prefixes_to_others(ring):
    gateway, engines, _servers = ring
    home = place(gateway, "document")
    victim = next(engine for engine in engines if engine.port == home)
    victim.server.socket.close()
    victim.server.shutdown()
    moved = [place(gateway, "document") for _number in range(4)]
    assert home not in moved and len(set(moved)) == 1
