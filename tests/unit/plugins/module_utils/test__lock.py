# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One run at a time: refusal, take-over for a stated reason only, and one winner of a race of real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _lock
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def owner(run_id="a", **changes):
    record = {
        "run_id": run_id,
        "user": "ann",
        "controller": "ctl",
        "controller_id": "boot ns",
        "pid": 7,
        "pid_start": "5",
        "started": 1000.0,
    }
    return dict(record, **changes)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "run" / "lock.json")


def test_take_renew_refuse_release(path):
    assert _lock.acquire(path, owner("a"), 60).message == "lock taken"
    refused = _lock.acquire(path, owner("b"), 60)
    assert (refused.held, refused.message) == (False, "held by ann@ctl, pid 7, started 1970-01-01 00:16:40 UTC")
    renewed = _lock.acquire(path, owner("a", started=2000.0), 60)
    assert (renewed.held, renewed.holder["started"]) == (True, 1000.0)
    assert "left alone" in _lock.release(path, owner("b")).message
    assert _lock.read(path)["run_id"] == "a"
    assert _lock.release(path, owner("a")).message == "lock released"
    assert not os.path.exists(path)
    assert _lock.release(path, owner("a")).message == "there was no lock"


def test_renewing_moves_the_lease(path):
    _lock.acquire(path, owner("a"), 60, now=100.0)
    _lock.acquire(path, owner("a"), 60, now=150.0)
    assert _lock.acquire(path, owner("b"), 60, now=170.0).held is False
    taken = _lock.acquire(path, owner("b"), 60, now=211.0)
    assert taken.takeover and "lease ran out 1 s ago" in taken.message


def test_a_dead_run_is_replaced_only_if_it_is_still_the_holder(path):
    _lock.acquire(path, owner("a"), 60)
    assert _lock.acquire(path, owner("b"), 60, dead_run_id="other").held is False
    taken = _lock.acquire(path, owner("b"), 60, dead_run_id="a")
    assert taken.takeover and "its process is gone" in taken.message
    assert _lock.acquire(path, owner("c"), 60, dead_run_id="a").held is False


def test_a_restart_of_the_host_frees_the_lock(path):
    _lock.acquire(path, owner("a"), 60)
    holder = _lock.read(path)
    holder["host_boot_id"] = "an earlier boot"
    with open(path, "w", encoding="utf-8") as handle:
        json.dump(holder, handle)
    assert "restarted" in _lock.acquire(path, owner("b"), 60).message


def test_takeover_takes_any(path):
    _lock.acquire(path, owner("a"), 60)
    assert _lock.acquire(path, owner("b"), 60, takeover=True).takeover
    assert _lock.release(path, owner("a"), takeover=True).takeover


def test_looking_writes_nothing(path):
    assert _lock.acquire(path, owner("a"), 60, look_only=True).held
    assert not os.path.exists(os.path.dirname(path))
    _lock.acquire(path, owner("a"), 60)
    assert _lock.acquire(path, owner("b"), 60, takeover=True, look_only=True).held
    _lock.release(path, owner("a"), look_only=True)
    assert _lock.read(path)["run_id"] == "a"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"run_id": 1}'])
def test_a_strange_lock_file_is_named_and_kept(path, text):
    os.makedirs(os.path.dirname(path))
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(text)
    with pytest.raises(LLMError, match="lock.json: not a lock of this collection"):
        _lock.acquire(path, owner("a"), 60)
    with open(path, encoding="utf-8") as handle:
        assert handle.read() == text


def test_a_process_start_tells_processes_apart():
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert _lock.process_start(process.pid).isdigit()
        process.kill()
        # Not waited for yet: a zombie counts as gone.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert _lock.process_start(process.pid) == ""
    finally:
        process.kill()
        process.wait()
    assert _lock.process_start(process.pid) == ""


RACER = """
import sys
from ansible_collections.ironserve.llm.plugins.module_utils import _lock
me = {"run_id": sys.argv[2], "user": "u", "controller": "c", "controller_id": "x", "pid": 1, "pid_start": "1", "started": 1.0}
print("ready", flush=True)
sys.stdin.readline()
print(_lock.acquire(sys.argv[1], me, 60, dead_run_id="stale").held, flush=True)
"""


@pytest.mark.parametrize("stale", [False, True])
def test_of_runs_that_come_at_once_exactly_one_wins(path, stale):
    if stale:
        _lock.acquire(path, owner("stale"), 60)
    link = os.path.abspath(os.path.join(_lock.__file__, *[os.pardir] * 6))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, path, "run{0}".format(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, PYTHONPATH=link),
        )
        for number in range(6)
    ]
    try:
        assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 6
        starters = [threading.Thread(target=lambda racer=racer: (racer.stdin.write("go\n"), racer.stdin.flush())) for racer in racers]
        for starter in starters:
            starter.start()
        for starter in starters:
            starter.join()
        answers = [racer.communicate(timeout=30)[0].strip() for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert sorted(answers) == ["False"] * 5 + ["True"]
    assert _lock.read(path)["run_id"] == "run{0}".format(answers.index("True"))
    assert os.listdir(os.path.dirname(path)) == ["lock.json"]
