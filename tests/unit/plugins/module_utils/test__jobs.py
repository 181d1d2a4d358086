# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Jobs outlive whoever started them, are found again, and never run twice in one place; with real processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import types

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _jobs
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

WORK = """
import os, sys, time
from {package} import _progress
from {package}._errors import LLMError

def echo(arguments, secret, progress):
    return {{"got": arguments, "secret": len(secret), "pid": os.getpid(), "session": os.getsid(0)}}

def refuse(arguments, secret, progress):
    raise LLMError("x: wrong; the key was " + secret)

def crash(arguments, secret, progress):
    print("about to", file=sys.stderr)
    raise KeyError(secret)

def hold(arguments, secret, progress):
    shown = _progress.Progress(progress, "hash", 100)
    shown.update(40, ["f"])
    with open(arguments["ready"], "w") as handle:
        handle.write(str(os.getpid()))
    while not os.path.exists(arguments["go"]):
        time.sleep(0.01)
    return "done"

def full(arguments, secret, progress):
    os.symlink("/dev/full", os.path.join(os.path.dirname(progress), "result.json.%d" % os.getpid()))
    return "done"
""".format(package=_jobs.PACKAGE)


class Loader:
    def get_source(self, _name: str) -> str:
        return WORK


@pytest.fixture
def folder(tmp_path, monkeypatch) -> str:
    """A job folder; the functions above are one more file of the package."""
    module = types.ModuleType(_jobs.PACKAGE + "._sample")
    module.__loader__ = Loader()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return str(tmp_path / "x.job")


def begin(folder: str, function: str, arguments=None, secret: str = "", identity: str = "i") -> _jobs.State:
    return _jobs.start(folder, identity, "work on x", "_sample." + function, arguments or {}, secret)


@pytest.fixture
def held(folder, tmp_path):
    """A job that waits; ends when the test does."""
    arguments = {"ready": str(tmp_path / "ready"), "go": str(tmp_path / "go")}
    state = begin(folder, "hold", arguments)
    deadline = time.monotonic() + 30
    while not os.path.exists(arguments["ready"]) or not _jobs.look(folder).progress:
        assert time.monotonic() < deadline, _jobs.log_tail(folder)
        time.sleep(0.01)
    yield arguments, state
    with open(arguments["go"], "w"):
        pass
    _jobs.wait(folder, state.nonce, 20)


def test_a_job_gets_its_arguments_and_its_value_comes_back(folder):
    state = begin(folder, "echo", {"a": [1, "ü"]}, "secret")
    value = _jobs.value_of(folder, _jobs.wait(folder, state.nonce, 30))
    assert (value["got"], value["secret"]) == ({"a": [1, "ü"]}, 6)
    # a session of its own: no terminal and no controller takes it along
    assert value["pid"] == value["session"] == state.pid != os.getpid()
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_a_running_job_is_found_again_and_not_started_twice(folder, held):
    arguments, state = held
    again = begin(folder, "hold", arguments)
    assert (again.nonce, again.running, again.pid) == (state.nonce, True, state.pid)
    assert again.progress["done_bytes"] == 40 and again.progress["files"] == ["f"]
    other = begin(folder, "echo", identity="j")
    assert (other.nonce, other.identity, other.running) == (state.nonce, "i", True)
    assert "work on x, pid {}, started 2".format(state.pid) in other.who()
    assert _jobs.wait(folder, state.nonce, 0.1).running
    with open(arguments["go"], "w"):
        pass
    assert _jobs.value_of(folder, _jobs.wait(folder, state.nonce, 30)) == "done"


def test_it_outlives_the_process_that_started_it(folder, tmp_path):
    arguments = {"ready": str(tmp_path / "ready"), "go": str(tmp_path / "go")}
    pid = os.fork()
    if pid == 0:
        begin(folder, "hold", arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    state = _jobs.look(folder)
    assert state.running
    with open(arguments["go"], "w"):
        pass
    assert _jobs.value_of(folder, _jobs.wait(folder, state.nonce, 30)) == "done"


def test_a_killed_job_is_known_to_be_over_and_can_be_started_again(folder, held):
    arguments, state = held
    os.kill(state.pid, signal.SIGKILL)
    ended = _jobs.wait(folder, state.nonce, 30)
    assert not ended.running and ended.result == {}
    with pytest.raises(LLMError, match="work on x: ended without a result: it was killed.*run again and it goes on"):
        _jobs.value_of(folder, ended)
    with open(arguments["go"], "w"):
        pass
    again = begin(folder, "hold", arguments)
    assert again.nonce != state.nonce
    assert _jobs.value_of(folder, _jobs.wait(folder, again.nonce, 30)) == "done"


def test_errors_come_back_as_one_message_without_the_secret(folder):
    state = begin(folder, "refuse", secret="canary")
    with pytest.raises(LLMError, match=r"^x: wrong; the key was \*\*\*$"):
        _jobs.value_of(folder, _jobs.wait(folder, state.nonce, 30))
    state = begin(folder, "crash", secret="canary")
    with pytest.raises(LLMError, match="KeyError: .*log"):
        _jobs.value_of(folder, _jobs.wait(folder, state.nonce, 30))
    with open(os.path.join(folder, "log"), encoding="utf-8") as log:
        assert "about to" in log.read()
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as handle:
            assert b"canary" not in handle.read(), name


def test_a_worker_that_cannot_even_begin_says_so(folder):
    state = _jobs.start(folder, "i", "work on x", "_sample.echo", {}, command=[sys.executable, "-c", "import no_such_module_here"])
    with pytest.raises(LLMError, match="ended without a result.*it said last: .*no_such_module_here"):
        _jobs.value_of(folder, _jobs.wait(folder, state.nonce, 30))
    with pytest.raises(LLMError, match="no-such-python: not found"):
        _jobs.start(folder, "i", "work on x", "_sample.echo", {}, command=["no-such-python"])
    # neither leaves the lock behind
    state = begin(folder, "echo")
    assert _jobs.value_of(folder, _jobs.wait(folder, state.nonce, 30))


def test_a_full_disk_does_not_take_the_result(folder):
    state = begin(folder, "full")
    assert _jobs.value_of(folder, _jobs.wait(folder, state.nonce, 30)) == "done"
    # the room was kept for it from the start
    assert "reserve" not in os.listdir(folder)


def test_an_old_result_is_not_the_one_of_a_new_start(folder, tmp_path):
    state = begin(folder, "echo")
    _jobs.wait(folder, state.nonce, 30)
    state = begin(folder, "hold", {"ready": str(tmp_path / "ready"), "go": str(tmp_path / "go")})
    assert _jobs.look(folder).result == {}
    deadline = time.monotonic() + 30
    while not os.path.exists(tmp_path / "ready") and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(state.pid, signal.SIGKILL)
    ended = _jobs.wait(folder, state.nonce, 30)
    assert ended.result == {}
    with open(os.path.join(folder, "result.json"), "w", encoding="utf-8") as handle:
        json.dump({"ok": True, "value": 1, "nonce": "an older one"}, handle)
    assert _jobs.look(folder).result == {}
    # nor is its progress
    assert ended.progress["done_bytes"] == 40
    state = begin(folder, "echo")
    assert _jobs.wait(folder, state.nonce, 30).progress == {}


def test_who_waited_gets_the_result_although_the_next_job_has_started(folder, tmp_path):
    first = begin(folder, "echo", {"n": 1})
    _jobs.wait(folder, first.nonce, 30)
    second = begin(folder, "hold", {"ready": str(tmp_path / "ready"), "go": str(tmp_path / "go")}, identity="j")
    assert second.nonce != first.nonce
    ended = _jobs.wait(folder, first.nonce, 0)
    assert (ended.running, ended.nonce, ended.identity) == (False, first.nonce, "i")
    assert _jobs.value_of(folder, ended)["got"] == {"n": 1}
    # the one at work is another matter, and a name that nobody knows is answered with it
    assert _jobs.look(folder).nonce == _jobs.look(folder, "unknown").nonce == second.nonce
    os.kill(second.pid, signal.SIGKILL)
    _jobs.wait(folder, second.nonce, 30)
    third = begin(folder, "echo")
    # one that was killed left no result, so the last that did is still there
    assert _jobs.value_of(folder, _jobs.look(folder, first.nonce))["got"] == {"n": 1}
    _jobs.wait(folder, third.nonce, 30)


def test_idle_waits_for_a_job_and_then_names_it(folder, held):
    arguments, state = held
    with pytest.raises(LLMError, match="a job is at work there: work on x, pid {}".format(state.pid)):
        with _jobs.idle(folder, 0.2):
            pass
    threading.Timer(0.3, lambda: open(arguments["go"], "w").close()).start()
    with _jobs.idle(folder, 30):
        assert os.path.exists(arguments["go"])
        # while it is held, nobody may start
        assert _jobs._try_lock(folder) is None
    with _jobs.idle(folder + ".none"):
        assert not os.path.exists(folder + ".none")


def test_a_lock_of_a_folder_that_was_removed_meanwhile_is_no_lock(folder, monkeypatch):
    os.makedirs(folder)
    path, real, calls = os.path.join(folder, "lock"), fcntl.flock, []

    def flock(number, how):
        # whoever had the lock removes the folder between the opening and the locking, and somebody else makes it anew
        if not calls:
            os.rename(path, path + ".gone")
            with open(path, "w"):
                pass
        calls.append(how)
        real(number, how)

    monkeypatch.setattr(_jobs.fcntl, "flock", flock)
    number = _jobs._try_lock(folder)
    assert len(calls) == 2 and os.fstat(number).st_ino == os.stat(path).st_ino
    os.close(number)


def test_many_starts_at_once_make_one_job(folder, tmp_path):
    arguments = {"ready": str(tmp_path / "ready"), "go": str(tmp_path / "go")}
    states = []
    threads = [threading.Thread(target=lambda: states.append(begin(folder, "hold", arguments))) for _number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = _jobs.look(folder)
    assert state.running and {item.nonce for item in states} <= {state.nonce, ""}
    with open(arguments["go"], "w"):
        pass
    assert _jobs.value_of(folder, _jobs.wait(folder, state.nonce, 30)) == "done"


def test_nothing_is_known_where_there_never_was_a_job(tmp_path):
    assert _jobs.look(str(tmp_path)) == _jobs.State(False)
    assert _jobs.look(str(tmp_path / "none")) == _jobs.State(False)


def test_a_packed_worker_needs_nothing_but_itself(folder, tmp_path):
    """As when the module's own files are gone: no collection on the path, another directory, an empty environment."""
    path = str(tmp_path / "w.zip")
    _jobs.pack(path)
    script = "import sys; sys.path.insert(0, {!r}); from {} import _jobs, _sample; print(_sample.__file__)".format(path, _jobs.PACKAGE)
    done = subprocess.run([sys.executable, "-I", "-c", script], cwd="/", env={}, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(path), done.stderr


def test_a_folder_that_goes_away_while_it_is_asked_for_is_idle(tmp_path, monkeypatch):
    folder = tmp_path / "job"
    folder.mkdir()
    real = _jobs._try_lock

    def gone(path):
        folder.rmdir()
        return real(path)

    monkeypatch.setattr(_jobs, "_try_lock", gone)
    with _jobs.idle(str(folder)):
        assert not folder.exists()
