# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node goes away and comes back while users ask. The scenario converges the site again afterwards, which proves what came back."""

from __future__ import annotations

import threading
import time

import requests
from fleet_lab import CARDS, Lab


def test_a_rebooted_node_comes_back_and_nobody_notices(lab: Lab) -> None:
    node = lab.nodes[-1]
    boot = lab.host(node).check_output("stat -c %Y /proc/1")
    answers: list[tuple[float, int]] = []
    done = threading.Event()

    def loop() -> None:
        while not done.is_set():
            begun = time.monotonic()
            try:
                status = lab.ask(max_tokens=4).status_code
            except requests.RequestException:
                status = 0
            answers.append((begun, status))

    lab.client_key()
    users = [threading.Thread(target=loop) for _ in range(2)]
    for user in users:
        user.start()
    try:
        # An orderly shutdown ends what this node was answering; whatever begins once it is off must not suffer.
        lab.container(node, "stop")
        off = time.monotonic()
        assert lab.healthy(node) == 0
        begun = len(answers)
        while len(answers) < begun + 6:
            assert any(user.is_alive() for user in users)
            time.sleep(0.05)
        lab.container(node, "start")
        lab.wait_healthy(node, CARDS, 90)
        # As soon as they are there, nobody else gets through.
        shut = lab.engine(lab.nodes[0], node, "/health")
        begun = len(answers)
        while len(answers) < begun + 6:
            time.sleep(0.05)
    finally:
        done.set()
        if not lab.running(node):
            lab.container(node, "start")
        for user in users:
            user.join()
    assert [status for begun_at, status in answers if begun_at > off and status != 200] == []
    assert shut == ["silence"] * CARDS
    assert lab.host(node).check_output("stat -c %Y /proc/1") != boot, "the node was not rebooted"
    assert [replica["Name"] for replica in lab.replicas(node) if not replica["State"]["Running"]] == []
