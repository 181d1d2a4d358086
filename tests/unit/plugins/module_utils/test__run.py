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


def test_what_is_started_has_its_own_session_input_log_and_descriptor(tmp_path):
    log, out = tmp_path / "log", tmp_path / "out"
    reader, writer = os.pipe()
    # The pipe ends when the last holder of its writing end does: that is how the end is seen.
    script = 'cat; echo "$ONLY/$HOME" >&2; ps -o sid= -p $$ >"$0" 2>/dev/null || cut -d" " -f6 /proc/$$/stat >"$0"'
    pid = _run.start(["/bin/sh", "-c", script, str(out)], "hello\n", str(log), {"ONLY": "this", "PATH": os.environ["PATH"]}, (writer,))
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert log.read_text() == "hello\nthis/\n"
    assert int(out.read_text()) == pid


def test_what_cannot_be_started_is_named(tmp_path):
    with pytest.raises(LLMError, match="no-such-tool: not found"):
        _run.start(["no-such-tool"], "", str(tmp_path / "log"))
    (tmp_path / "data").write_text("")
    with pytest.raises(LLMError, match="data: cannot be run"):
        _run.start([str(tmp_path / "data")], "", str(tmp_path / "log"))
    # One that ends before it reads its input is no error of the caller.
    assert _run.start(["/bin/true"], "x" * 1000000, str(tmp_path / "log")) > 0
