# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Long work that goes on when nobody waits for it. Private to the collection.

A job lives in a folder of its own, mode 0700: ``lock`` (held by the worker as long as it lives, so a job that was killed
is known to be over), ``job.json`` (what runs), ``progress.json`` (see _progress), ``result.json``, ``previous.json`` (the job before
with its result: who waited for that one may ask after the next has started), ``reserve``, ``log``, ``worker.zip``
(the files of this directory that the work needs: the worker may be another Python, and the module's own files are gone
when it ends). A secret travels through a pipe and lies nowhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib
import json
import os
import sys
import time
import traceback
import uuid
import zipfile
from typing import Any, Iterator

from ansible_collections.ironserve.llm.plugins.module_utils import _progress
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._run import start as start_process

PACKAGE = __name__.rpartition(".")[0]
_MAIN = "from {0} import _jobs\n\n_jobs.main()\n"
_LOG_TAIL = 600
#: Room on the disk that is kept for the result, in bytes.
_RESERVE = 1 << 16


#: What the controller fills in to follow a job, for argument specs; documented in the doc fragment ``weights``.
OPTIONS = {"detach": {"type": "bool", "default": False}, "job": {"type": "str", "default": ""}}


@dataclasses.dataclass
class State:
    """What is known about a job.

    Attributes:
        running: whether its worker lives.
        nonce: name of this one start; empty when there never was a job.
        identity: what the work is; two starts with the same identity are the same work.
        title: the work in words, for messages.
        pid: process id of the worker.
        started: seconds since the epoch, by this host's clock.
        progress: see _progress; empty when nothing was written yet.
        result: ``{"ok": true, "value": ...}`` or ``{"ok": false, "msg": ...}``; empty while it runs and when it was killed.
    """

    running: bool
    nonce: str = ""
    identity: str = ""
    title: str = ""
    pid: int = 0
    started: float = 0.0
    progress: dict = dataclasses.field(default_factory=dict)
    result: dict = dataclasses.field(default_factory=dict)

    def who(self) -> str:
        """Name the job: ``download of x, pid 4711, started 2026-01-31 10:00:00 UTC``."""
        started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started))
        return "{0}, pid {1}, started {2}".format(self.title, self.pid, started)


def _path(folder: str, name: str) -> str:
    return os.path.join(folder, name)


def _load(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as handle:
            data = json.load(handle)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _save(path: str, data: dict) -> None:
    temporary = "{0}.{1}".format(path, os.getpid())
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            json.dump(data, handle)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _try_lock(folder: str) -> int | None:
    """The descriptor of the job's lock, or None while somebody has it."""
    while True:
        number = os.open(_path(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have removed the folder meanwhile; then this is the lock of nothing.
            if os.path.exists(_path(folder, "lock")) and os.fstat(number).st_ino == os.stat(_path(folder, "lock")).st_ino:
                return number
        except BlockingIOError:
            os.close(number)
            return None
        except BaseException:
            os.close(number)
            raise
        os.close(number)
        os.makedirs(folder, mode=0o700, exist_ok=True)


@contextlib.contextmanager
def idle(folder: str, limit_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of a folder in which no job may run meanwhile; LLMError names the one that does for longer than ``limit_s``."""
    deadline = time.monotonic() + limit_s
    number = None
    while os.path.isdir(folder):
        # Whoever else waited may have removed the folder since.
        with contextlib.suppress(FileNotFoundError):
            number = _try_lock(folder)
            if number is not None:
                break
            if time.monotonic() >= deadline:
                state = look(folder)
                who = "{0}. Wait for its end, or end it (kill {1})".format(state.who(), state.pid) if state.pid else "wait for its end"
                raise LLMError("{0}: a job is at work there: {1}, and run again".format(folder, who))
            time.sleep(0.1)
    try:
        yield
    finally:
        if number is not None:
            os.close(number)


def look(folder: str, nonce: str = "") -> State:
    """The state of the job in ``folder``, or of the one before it when that is the ``nonce`` asked for. Writes nothing."""
    known = _load(_path(folder, "job.json"))
    if not known.get("nonce"):
        return State(False)
    if nonce and known["nonce"] != nonce:
        previous = _load(_path(folder, "previous.json"))
        if previous.get("job", {}).get("nonce") == nonce:
            return _state(False, previous["job"], {}, previous["result"])
    running = False
    try:
        number = os.open(_path(folder, "lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pass
    else:
        try:
            # Shared, so that two who look at the same moment do not take each other for the worker.
            fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            running = True
        finally:
            os.close(number)
    result = {} if running else _load(_path(folder, "result.json"))
    return _state(running, known, _progress.read(_path(folder, "progress.json")), result)


def _state(running: bool, known: dict, progress: dict, result: dict) -> State:
    """What the files of a job say; a result of another start is none."""
    if result.get("nonce") != known["nonce"]:
        result = {}
    return State(
        running,
        known["nonce"],
        known.get("identity", ""),
        known.get("title", ""),
        known.get("pid", 0),
        known.get("started", 0.0),
        progress,
        result,
    )


def log_tail(folder: str) -> str:
    """The end of what the worker printed, on one line."""
    try:
        with open(_path(folder, "log"), "rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - _LOG_TAIL))
            return " ".join(handle.read().decode("utf-8", "replace").split())
    except OSError:
        return ""


def pack(path: str) -> None:
    """Write every loaded file of this package into a zip archive that a Python can run."""
    with zipfile.ZipFile(path, "w") as archive:
        parts = PACKAGE.split(".")
        for depth in range(1, len(parts) + 1):
            archive.writestr("/".join(parts[:depth]) + "/__init__.py", "")
        for name in sorted(sys.modules):
            module = sys.modules[name]
            if name.startswith(PACKAGE + ".") and getattr(module, "__loader__", None) is not None:
                archive.writestr(name.replace(".", "/") + ".py", module.__loader__.get_source(name))
        archive.writestr("__main__.py", _MAIN.format(PACKAGE))


def start(
    folder: str,
    identity: str,
    title: str,
    entry: str,
    arguments: dict,
    secret: str = "",
    command: list[str] | None = None,
    env: dict[str, str] | None = None,
) -> State:
    """Start a job, or look at the one that runs in ``folder``.

    Args:
        folder: where it lives; made when absent.
        identity: what the work is.
        title: the work in words.
        entry: ``<file of this directory without .py>.<function>``; called with arguments, secret and the progress file, its
            value must be JSON.
        arguments: for the function, as JSON.
        secret: handed over through a pipe.
        command: what to run the worker with, default this Python; the archive and the folder are added.
        env: its whole environment, default this one's.

    Returns the state right after; when ``nonce`` was not seen before by the caller and ``identity`` is another's, that job has
    to end first. Raises LLMError when the folder cannot be used or the worker not be started.
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        number = _try_lock(folder)
        if number is None:
            return look(folder)
        try:
            ended, result = _load(_path(folder, "job.json")), _load(_path(folder, "result.json"))
            if result and result.get("nonce") == ended.get("nonce"):
                _save(_path(folder, "previous.json"), {"job": ended, "result": result})
            for name in ("result.json", "progress.json"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(_path(folder, name))
            record = {"nonce": uuid.uuid4().hex, "identity": identity, "title": title, "pid": 0, "started": time.time()}
            archive = _path(folder, "worker.zip")
            pack(archive)
            with open(_path(folder, "reserve"), "wb") as handle:
                handle.write(bytes(_RESERVE))
            _save(_path(folder, "job.json"), record)
            task = {"nonce": record["nonce"], "entry": entry, "arguments": arguments, "secret": secret}
            argv = (command or [sys.executable]) + [archive, folder]
            record["pid"] = start_process(argv, json.dumps(task), _path(folder, "log"), env, (number,))
            _save(_path(folder, "job.json"), record)
        finally:
            os.close(number)
    except OSError as exc:
        raise LLMError("{0}: the job cannot be started: {1}".format(exc.filename or folder, exc.strerror or exc)) from exc
    return look(folder)


def wait(folder: str, nonce: str, limit_s: float) -> State:
    """Wait for the end of a job at most ``limit_s`` seconds; returns its state then (or that of a job that came long after it)."""
    deadline = time.monotonic() + limit_s
    pause = 0.02
    while True:
        state = look(folder, nonce)
        if not state.running or state.nonce != nonce or time.monotonic() >= deadline:
            return state
        time.sleep(pause)
        pause = min(0.5, pause * 1.5)


class Pending(Exception):
    """A job works on.

    Attributes:
        state: what is known about it.
        mine: whether it does what was asked for; otherwise it has to end first.
    """

    def __init__(self, state: State, mine: bool) -> None:
        super().__init__()
        self.state = state
        self.mine = mine

    def as_dict(self) -> dict:
        """Plain data for a module's result; the action plugin asks again with ``nonce``."""
        state = self.state
        return {"nonce": state.nonce, "running": state.running, "mine": self.mine, "who": state.who(), "progress": state.progress}


def value_of(folder: str, state: State) -> Any:
    """What an ended job returned. Raises LLMError with its message, or one that says that it was killed."""
    if not state.result:
        tail = log_tail(folder)
        raise LLMError(
            "{0}: ended without a result: it was killed, or the host was short of memory{1}. What it did so far stays; run again and it "
            "goes on".format(state.title, "; it said last: " + tail if tail else "")
        )
    if not state.result["ok"]:
        raise LLMError(state.result["msg"])
    return state.result["value"]


def _log(text: str) -> None:
    """Print into the log, which may be on a full disk."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def main() -> None:
    """What the worker runs: read the task, do it, write the result."""
    folder = sys.argv[1]
    task = json.loads(sys.stdin.read())
    secret = task["secret"]
    try:
        name, _dot, function = task["entry"].partition(".")
        work = getattr(importlib.import_module("{0}.{1}".format(PACKAGE, name)), function)
        result = {"ok": True, "value": work(task["arguments"], secret, _path(folder, "progress.json"))}
    except LLMError as exc:
        result = {"ok": False, "msg": str(exc)}
    except Exception as exc:
        text = traceback.format_exc()
        _log(text.replace(secret, "***") if secret else text)
        result = {"ok": False, "msg": "{0}: {1} (all of it in {2})".format(type(exc).__name__, exc, _path(folder, "log"))}
    if secret and not result["ok"]:
        result["msg"] = result["msg"].replace(secret, "***")
    try:
        try:
            _save(_path(folder, "result.json"), dict(result, nonce=task["nonce"]))
        except OSError:
            # A full disk is a result to tell, too.
            os.unlink(_path(folder, "reserve"))
            _save(_path(folder, "result.json"), dict(result, nonce=task["nonce"]))
    except OSError as exc:
        _log("{0}: the result cannot be written: {1}; it was: {2}".format(folder, exc.strerror, result.get("msg", "good")))
    # Threads of a client that still downloads must not keep a job alive that is over.
    os._exit(0)
