# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The run lock: one deployment at a time on a host. Private to the collection.

The lock is a small JSON file. Every decision is made while an exclusive ``flock`` is held on the directory it
lies in; the kernel drops that when a process dies, so a crash can never leave the guard itself behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from typing import Iterator

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: What a holder record must have, with its type.
FIELDS = {
    "run_id": str,
    "user": str,
    "controller": str,
    "controller_id": str,
    "pid": int,
    "pid_start": str,
    "started": float,
}


@dataclasses.dataclass
class Outcome:
    """What the lock answered.

    Attributes:
        held: whether the asking run has the lock now (or would have it, when only looking).
        holder: the record in the lock file after the call, or the one that stands in the way; empty when none.
        message: what happened, in one line.
        takeover: whether another run's lock was (or would be) replaced or removed.
    """

    held: bool
    holder: dict
    message: str
    takeover: bool = False


def describe(holder: dict) -> str:
    """Name a holder: ``ann@ctl1, pid 4711, started 2026-01-31 10:00:00 UTC``."""
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(holder["started"]))
    return "{0}@{1}, pid {2}, started {3}".format(holder["user"], holder["controller"], holder["pid"], started)


def boot_id(path: str = "/proc/sys/kernel/random/boot_id") -> str:
    """The kernel's identity of this boot, or an empty text where there is none (not Linux)."""
    try:
        with open(path, encoding="ascii") as handle:
            return handle.read().strip()
    except OSError:
        return ""


def process_start(pid: int, proc: str = "/proc") -> str:
    """The start time of a process in clock ticks since boot (field 22 of ``/proc/<pid>/stat``), empty when it is gone.

    The command name in field 2 may hold spaces and brackets, so fields are counted from the last bracket.
    """
    try:
        with open(os.path.join(proc, str(pid), "stat"), encoding="utf-8", errors="replace") as handle:
            rest = handle.read().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie holds a pid, yet does nothing any more.
    return "" if rest[0] in ("Z", "X") else rest[19]


def parse(text: str, path: str) -> dict:
    """Read a lock file; LLMError names the file when it is not one of ours."""
    try:
        holder = json.loads(text)
        if not isinstance(holder, dict):
            raise ValueError("not an object")
        for name, kind in FIELDS.items():
            if not isinstance(holder[name], (int, float) if kind is float else kind):
                raise ValueError("{0} is no {1}".format(name, kind.__name__))
        for name in ("expires", "host_boot_id"):
            holder[name]
    except (ValueError, KeyError) as exc:
        raise LLMError(
            "{0}: not a lock of this collection ({1}); look at it, and remove it if nothing is running".format(path, exc)
        ) from exc
    return holder


def staleness(holder: dict, now: float, host_boot: str, dead_run_id: str = "") -> str:
    """Say why a lock no longer counts, or return an empty text when it does.

    ``now`` is the host's clock (seconds since the epoch), the one ``expires`` was written with.
    ``dead_run_id`` is a run whose process the controller knows to be gone.
    """
    if host_boot and holder["host_boot_id"] and holder["host_boot_id"] != host_boot:
        return "this host was restarted since"
    if dead_run_id and holder["run_id"] == dead_run_id:
        return "its process is gone"
    if now >= holder["expires"]:
        return "its lease ran out {0:.0f} s ago".format(now - holder["expires"])
    return ""


@contextlib.contextmanager
def guard(directory: str, timeout_s: float = 3.0) -> Iterator[None]:
    """Hold the exclusive flock of ``directory``; LLMError when another process keeps it longer than ``timeout_s``."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as exc:
                if time.monotonic() >= deadline:
                    raise LLMError("{0}: another process keeps it locked for more than {1:g} s".format(directory, timeout_s)) from exc
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def read(path: str) -> dict:
    """The holder in the lock file, or an empty record when there is no lock."""
    try:
        with open(path, encoding="utf-8") as handle:
            return parse(handle.read(), path)
    except FileNotFoundError:
        return {}


def _write(path: str, holder: dict) -> None:
    """Replace the lock file in one step, so that a reader never meets half a record."""
    temporary = "{0}.{1}".format(path, os.getpid())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            json.dump(holder, handle, sort_keys=True)
            handle.flush()
            os.fsync(handle.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def acquire(
    path: str, owner: dict, lease_s: float, takeover: bool = False, dead_run_id: str = "", look_only: bool = False, now: float | None = None
) -> Outcome:
    """Take the lock for ``owner`` (see FIELDS), renew it, or say who has it.

    A lock that no longer counts (see staleness) is taken over, and the message says so. ``takeover`` takes any.
    With ``look_only`` nothing is written, not even the directory.
    Raises LLMError when the lock file cannot be read or written.
    """
    now = time.time() if now is None else now
    host_boot = boot_id()
    record = dict(owner, expires=now + lease_s, host_boot_id=host_boot)
    directory = os.path.dirname(os.path.abspath(path))
    try:
        if look_only:
            return _decide(read(path), record, now, host_boot, takeover, dead_run_id)
        os.makedirs(directory, mode=0o755, exist_ok=True)
        with guard(directory):
            outcome = _decide(read(path), record, now, host_boot, takeover, dead_run_id)
            if outcome.held:
                _write(path, record)
        return outcome
    except OSError as exc:
        raise LLMError("{0}: cannot take the run lock: {1}".format(path, exc.strerror or exc)) from exc


def _decide(holder: dict, record: dict, now: float, host_boot: str, takeover: bool, dead_run_id: str) -> Outcome:
    if not holder:
        return Outcome(True, record, "lock taken")
    if holder["run_id"] == record["run_id"]:
        # A run began when it first took the lock.
        record["started"] = holder["started"]
        return Outcome(True, record, "lock renewed")
    why = staleness(holder, now, host_boot, dead_run_id)
    if why or takeover:
        return Outcome(True, record, "lock taken over from {0}: {1}".format(describe(holder), why or "takeover was asked for"), True)
    return Outcome(False, holder, "held by {0}".format(describe(holder)))


def release(path: str, owner: dict, takeover: bool = False, look_only: bool = False) -> Outcome:
    """Give the lock back. Another run's lock stays, unless ``takeover`` is given.

    With ``look_only`` nothing is removed. Raises LLMError when the lock file cannot be read or removed.
    """
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        return Outcome(False, {}, "there was no lock")
    try:
        with guard(directory):
            holder = read(path)
            if not holder:
                return Outcome(False, {}, "there was no lock")
            mine = holder["run_id"] == owner["run_id"]
            if not (mine or takeover):
                return Outcome(False, holder, "left alone: held by {0}".format(describe(holder)))
            if not look_only:
                os.unlink(path)
            return Outcome(False, {}, "lock released" if mine else "lock of {0} removed".format(describe(holder)), not mine)
    except OSError as exc:
        raise LLMError("{0}: cannot release the run lock: {1}".format(path, exc.strerror or exc)) from exc
