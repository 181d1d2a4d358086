# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Commands end in time, with everything they started."""

from __future__ import annotations

import os
import time

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _lock, _run
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def test_output_status_and_input_come_back():
    done = _run.run(["sh", "-c", "cat; echo oops >&2; exit 3"], 10, stdin="hello")
    assert (done.rc, done.stdout, done.stderr) == (3, "hello", "oops\n")


def test_locale_is_c_and_extra_environment_is_added():
    done = _run.run(["sh", "-c", 'echo "$LC_ALL $EXTRA"'], 10, env={"EXTRA": "1"})
    assert done.stdout == "C 1\n"


def test_missing_tool_is_named():
    with pytest.raises(LLMError, match="no-such-tool: not found"):
        _run.run(["no-such-tool"], 10)


def test_a_hanging_tool_ends_with_its_children(tmp_path):
    pid_file = tmp_path / "pid"
    begin = time.monotonic()
    with pytest.raises(LLMError, match="no end after 1 s"):
        _run.run(["sh", "-c", 'sleep 300 & echo $! > "$0"; wait', str(pid_file)], 1)
    assert time.monotonic() - begin < 10
    child = int(pid_file.read_text())
    # The child's new parent may not have reaped it yet: a zombie has no start time here.
    deadline = time.monotonic() + 5
    while _lock.process_start(child) and time.monotonic() < deadline:
        os.sched_yield()
    assert not _lock.process_start(child)
