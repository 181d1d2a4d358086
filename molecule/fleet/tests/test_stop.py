# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An engine is ended while it writes, without being drained first: what it has begun it ends."""

from __future__ import annotations

import json
import threading
import time

import pytest
from fleet_lab import CARDS, ENGINE, Lab

pytestmark = pytest.mark.skipif(ENGINE != "vllm", reason="llama.cpp has no word for how long open requests are waited for")

TALE = "Tell me about the history of bread."
TOKENS = 64


def test_an_engine_that_is_ended_finishes_the_stream_it_writes(lab: Lab) -> None:
    before = lab.servers()
    with lab.ask(TALE, max_tokens=TOKENS, stream=True, wire=True, ignore_eos=True, stream_options={"include_usage": True}) as answer:
        lines = (line[6:] for line in answer.iter_lines() if line.startswith(b"data: "))
        begun = [next(lines) for _ in range(3)]
        (writer,) = [name for name, server in lab.servers().items() if int(server["scur"])]
        node, _, replica = writer.rpartition("-")
        container = f"ironserve-{replica}"
        stopping = threading.Thread(target=lambda: lab.host(node).check_output(f"docker stop {container}"))
        stopping.start()
        told = time.monotonic()
        rest = [(time.monotonic() - told, line) for line in lines]
    stopping.join()
    try:
        assert answer.status_code == 200
        assert rest[-1][1] == b"[DONE]", f"cut after {len(begun) + len(rest)} pieces: {rest[-1:]}"
        # The better part of it came when the engine knew.
        assert [at for at, _ in rest if at > 1][4:], f"it was over in {rest[-1][0]:.1f} s"
        events = [json.loads(line) for line in [*begun, *(line for _, line in rest[:-1])]]
        assert events[-1]["usage"]["completion_tokens"] == TOKENS
        state = json.loads(lab.host(node).check_output(f"docker inspect {container}"))[0]["State"]
        # 137 is an end by force, after more patience than the engine was said to have.
        assert (state["Running"], state["OOMKilled"], state["ExitCode"]) == (False, False, 0)
        # The others serve meanwhile.
        assert lab.ask(max_tokens=4).status_code == 200
    finally:
        lab.host(node).check_output(f"docker start {container}")
        lab.wait_healthy(node, CARDS, 120)
    limit = time.monotonic() + 60
    while lab.servers()[writer]["status"] != "UP":
        assert time.monotonic() < limit, f"the gateway does not take {writer} back"
        time.sleep(0.2)
    assert {name: server["status"] for name, server in lab.servers().items()} == dict.fromkeys(before, "UP")
