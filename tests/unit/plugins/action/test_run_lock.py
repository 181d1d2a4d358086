# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who asks for the run lock, and when its holder is known to be dead."""

from __future__ import annotations

import os
import subprocess

from ansible_collections.ironserve.llm.plugins.action import run_lock


def test_a_run_is_the_same_run_in_every_task():
    first, second = run_lock.owner_record(os.getpid()), run_lock.owner_record(os.getpid())
    assert first["run_id"] == second["run_id"]
    assert first["pid"] == os.getpid() and first["pid_start"].isdigit() and first["user"] and first["controller"]
    assert run_lock.owner_record(os.getppid())["run_id"] != first["run_id"]


def test_a_living_holder_is_not_dead_and_a_gone_one_is():
    process = subprocess.Popen(["sleep", "60"])
    holder = run_lock.owner_record(process.pid)
    try:
        assert not run_lock.known_dead(holder)
        # The same pid with another start time is another process.
        assert run_lock.known_dead(dict(holder, pid_start="1"))
    finally:
        process.kill()
        process.wait()
    assert run_lock.known_dead(holder)


def test_nothing_is_known_of_a_run_on_another_controller():
    holder = dict(run_lock.owner_record(os.getpid()), pid_start="1", controller_id="another boot")
    assert not run_lock.known_dead(holder)


def test_without_proc_nothing_is_known(monkeypatch):
    holder = dict(run_lock.owner_record(os.getpid()), pid_start="1", controller_id="")
    monkeypatch.setattr(run_lock, "controller_id", lambda: "")
    assert not run_lock.known_dead(holder)
