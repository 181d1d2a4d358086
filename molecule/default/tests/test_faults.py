# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults made on purpose on the converged machine. The scenario converges the site again afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from fleet_client import Answer

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
