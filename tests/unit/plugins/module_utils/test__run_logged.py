# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Work that outlives whoever started it: its output, its exit status, whether it still goes on, and how it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _lock, _run
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def work(tmp_path):
    """Paths of output and status, and ``begin(script)``; whatever still runs at the end is ended."""

    class Work:
        output = str(tmp_path / "output")
        status = str(tmp_path / "status")
        started: list[subprocess.Popen] = []

        def begin(self, script: str) -> subprocess.Popen:
            self.started.append(_run.start_logged(["/bin/sh", "-c", script], self.output, self.status, str(tmp_path)))
            return self.started[-1]

        def watch(self, timeout_s: float = 30.0, limit: int = 10**6, grace_s: float = 5.0) -> str:
            return _run.watch(self.status, timeout_s, self.output, limit, grace_s)

    yield Work()
    for process in Work.started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    Work.started.clear()


def until(condition, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_output_status_and_place(work, tmp_path):
    work.begin('pwd; echo oops >&2; read line || echo "no input"; exit 3')
    assert work.watch() == _run.ENDED
    assert Path(work.status).read_text() == "3\n"
    assert Path(work.output).read_text() == "{0}\noops\nno input\n".format(tmp_path)
    assert os.stat(work.output).st_mode & 0o777 == 0o600


def test_a_time_limit_asks_first_and_then_kills_all_of_it(work, tmp_path):
    asked = tmp_path / "asked"
    # The installer wants to tidy up when it is asked to end; its child does not listen at all.
    process = work.begin('trap "echo asked >{0}; exit 1" TERM; (trap "" TERM; sleep 300) & while :; do sleep 0.1; done'.format(asked))
    begin = time.monotonic()
    assert work.watch(timeout_s=0.5, grace_s=1.0) == _run.TIMEOUT
    assert time.monotonic() - begin < 15
    assert asked.read_text() == "asked\n"
    assert not os.path.exists(work.status)
    assert not _run._group_works(process.pid)


def test_output_without_end_is_ended(work):
    work.begin("yes answer me")
    assert work.watch(limit=200_000) == _run.FLOOD
    assert not _run.alive(work.status)


def test_what_stays_in_the_background_is_not_waited_for(work):
    work.begin("sleep 300 & exit 0")
    assert work.watch(timeout_s=20) == _run.ENDED
    assert Path(work.status).read_text() == "0\n"


def test_the_work_goes_on_without_the_shell_that_keeps_its_status(work, tmp_path):
    mark = tmp_path / "mark"
    process = work.begin("echo up; until [ -e {0} ]; do sleep 0.05; done".format(mark))
    until(lambda: Path(work.output).read_text(), "the work does not begin")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert _run.alive(work.status)
    mark.write_text("")
    assert work.watch() == _run.ENDED
    assert not os.path.exists(work.status)


def test_another_process_waits_for_what_a_dead_one_started(work, tmp_path):
    """The one that started it is killed; what it started goes on, and its status is there for who comes later."""
    mark, source = tmp_path / "mark", tmp_path / "starter.py"
    source.write_text(
        "import sys, time\n"
        "sys.path.insert(0, {0!r})\n"
        "from ansible_collections.ironserve.llm.plugins.module_utils import _run\n"
        "_run.start_logged(['/bin/sh', '-c', 'until [ -e {1} ]; do sleep 0.05; done; echo done; exit 7'], {2!r}, {3!r}, '/')\n"
        "print('started', flush=True)\n"
        "time.sleep(300)\n".format(str(ROOT / "collections"), mark, work.output, work.status)
    )
    with subprocess.Popen([sys.executable, str(source)], stdout=subprocess.PIPE) as starter:
        assert starter.stdout.readline() == b"started\n"
        starter.kill()
    assert _run.alive(work.status)
    mark.write_text("")
    assert work.watch() == _run.ENDED
    assert Path(work.status).read_text() == "7\n"
    assert Path(work.output).read_text() == "done\n"


def test_a_number_that_is_another_process_by_now_is_not_ours(work):
    """After a restart of the host the pid in the file may be anybody's."""
    Path(work.status + ".pid").write_text(str(os.getpid()))
    assert _lock.process_start(os.getpid())
    assert not _run.alive(work.status)


@pytest.mark.parametrize("text", ["", "x"])
def test_a_pid_file_without_a_pid_is_no_work(work, text):
    Path(work.status + ".pid").write_text(text)
    assert not _run.alive(work.status)


def test_an_older_status_does_not_count(work, tmp_path):
    Path(work.status).write_text("0\n")
    mark = tmp_path / "mark"
    work.begin("until [ -e {0} ]; do sleep 0.05; done; exit 5".format(mark))
    assert not os.path.exists(work.status)
    mark.write_text("")
    assert work.watch() == _run.ENDED
    assert Path(work.status).read_text() == "5\n"


def test_a_place_that_cannot_be_written_is_named_and_nothing_runs(tmp_path):
    mark = tmp_path / "mark"
    # A status in a directory that is not there: the shell cannot leave its pid.
    with pytest.raises(LLMError, match="nothing can be written to .*none/status"):
        _run.start_logged(["touch", str(mark)], str(tmp_path / "output"), str(tmp_path / "none" / "status"), str(tmp_path))
    assert not mark.exists()
    with pytest.raises(LLMError, match="touch: cannot be started: No such file"):
        _run.start_logged(["touch", str(mark)], str(tmp_path / "none" / "output"), str(tmp_path / "status"), str(tmp_path))


def test_a_file_that_cannot_be_run_says_so(work, tmp_path):
    _run.start_logged([str(tmp_path / "none.run")], work.output, work.status, str(tmp_path)).wait()
    assert Path(work.status).read_text() == "127\n"
    assert "none.run" in Path(work.output).read_text()
