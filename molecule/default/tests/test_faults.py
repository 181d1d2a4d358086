# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults made on purpose on the converged machine. The scenario converges the site again afterwards."""

from __future__ import annotations

import json
import pathlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fleet_client import Answer, request

LISTENERS = pathlib.Path(__file__).with_name("listeners.py")
#: How long the loop goes on after the kill, longer than the gateway needs to notice.
AFTER_S = 8


def test_a_killed_replica_loses_no_request_that_had_not_begun(
    host: Any, replicas: list[dict[str, Any]], ask: Callable[..., Answer]
) -> None:
    assert len([replica for replica in replicas if replica["State"]["Running"]]) >= 2
    answers: list[tuple[float, float, int]] = []
    done = threading.Event()

    def loop() -> None:
        while not done.is_set():
            begun = time.monotonic()
            try:
                status = ask(max_tokens=4).status
            except OSError:
                status = 0
            answers.append((begun, time.monotonic(), status))

    users = [threading.Thread(target=loop) for _ in range(2)]
    for user in users:
        user.start()
    while len(answers) < 6:
        time.sleep(0.05)
    host.check_output(f"docker kill {replicas[0]['Id']}")
    killed = time.monotonic()
    done.wait(AFTER_S)
    done.set()
    for user in users:
        user.join()

    assert [status for _, ended, status in answers if ended < killed and status != 200] == []
    begun_later = [status for begun, _, status in answers if begun > killed]
    assert len(begun_later) >= 3
    assert [status for status in begun_later if status != 200] == []


def test_with_all_replicas_out_the_gateway_says_503_and_nobody_answers_in_their_place(host: Any, ask: Callable[..., Answer]) -> None:
    names = host.check_output("docker ps --filter name=^/?ironserve- --format '{{.Names}}'").split()
    described = json.loads(host.check_output("docker inspect " + " ".join(names)))
    ports = [int(item["HostPort"]) for replica in described for bound in replica["HostConfig"]["PortBindings"].values() for item in bound]
    assert ports and ask(max_tokens=4).status == 200
    host.check_output("docker stop " + " ".join(names))
    try:
        # What was asked for while the gateway still takes them for alive may end otherwise, but not well.
        limit = time.monotonic() + 30
        while (status := ask(max_tokens=4).status) != 503:
            assert status != 200 and time.monotonic() < limit, status
        for _ in range(20):
            answer = ask(max_tokens=4)
            assert (answer.status, answer.json()["error"]["code"]) == (503, "overloaded")
            assert int(answer.headers["retry-after"]) > 0
        told = json.loads(host.check_output(f"python3 {LISTENERS} self"))["self"]
        assert [listener for listener in told if listener["port"] in ports] == []
        for port in ports:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 5)
    finally:
        host.check_output("docker start " + " ".join(names))
    limit = time.monotonic() + 120
    for port in ports:
        while not healthy(port):
            assert time.monotonic() < limit, f"{port} did not come back"
            time.sleep(0.2)
    while ask(max_tokens=4).status != 200:
        assert time.monotonic() < limit, "the gateway did not take them back"


def healthy(port: int) -> bool:
    """Whether a replica answers its health check."""
    try:
        return request(port, "GET", "/health").status == 200
    except OSError:
        return False
