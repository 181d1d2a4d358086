# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one door to commands: bounded in time, whole process group ended. Private to the collection.

``run`` is for questions: it waits, keeps the output, and leaves nothing behind. ``start_logged`` and ``watch`` are for work that must
not be cut off by a lost connection: the command writes into a file, its exit status too, and whoever comes later can wait on.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._lock import process_start

#: Runs its arguments; leaves its pid and then their exit status in files, which outlive whoever waits for it.
_KEEP_STATUS = 'echo $$ > "$0.pid" || exit 125; "$@"; status=$?; echo "$status" > "$0.new" && mv -f "$0.new" "$0"; exit "$status"'

#: How a watched command stopped.
ENDED = ""
TIMEOUT = "timeout"
FLOOD = "flood"


@dataclasses.dataclass
class Completed:
    """What a command left behind.

    Attributes:
        argv: the command and its arguments.
        rc: exit status; negative when a signal ended it.
        stdout: standard output, decoded, bad bytes replaced.
        stderr: standard error, decoded, bad bytes replaced.
    """

    argv: list[str]
    rc: int
    stdout: str
    stderr: str


def run(argv: list[str], timeout_s: float, env: dict[str, str] | None = None, stdin: str = "") -> Completed:
    """Run ``argv`` without a shell and wait at most ``timeout_s`` seconds.

    ``env`` adds to the environment; the locale is always C, so that output can be parsed.
    An exit status other than 0 is for the caller to judge.
    Raises LLMError when the tool is missing, may not be run, or does not end in time (its children end with it).
    """
    environment = dict(os.environ, LC_ALL="C", LANGUAGE="C")
    environment.update(env or {})
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError as exc:
        raise LLMError("{0}: not found; install it or put it on the PATH".format(argv[0])) from exc
    except OSError as exc:
        raise LLMError("{0}: cannot be run: {1}".format(argv[0], exc.strerror or exc)) from exc
    try:
        out, err = process.communicate(stdin.encode("utf-8"), timeout=timeout_s)
    except subprocess.TimeoutExpired as exc:
        raise LLMError("{0}: no end after {1:g} s; it hangs".format(" ".join(argv), timeout_s)) from exc
    finally:
        # Also on Ctrl-C: a tool left behind would go on holding its card or file.
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.communicate()
    return Completed(list(argv), process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def start(argv: list[str], stdin: str, log: str, env: dict[str, str] | None = None, descriptors: tuple[int, ...] = ()) -> int:
    """Start ``argv`` without a shell in a session of its own, and do not wait for it; returns its process id.

    ``stdin`` is its whole input, the file ``log`` (mode 0600) takes both streams, ``env`` is its whole environment (default this one's),
    ``descriptors`` stay open in it. Raises LLMError when the tool is missing or may not be run.
    """
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=number, stderr=number, env=env, pass_fds=descriptors, start_new_session=True
        )
    except FileNotFoundError as exc:
        raise LLMError("{0}: not found; install it or put it on the PATH".format(argv[0])) from exc
    except OSError as exc:
        raise LLMError("{0}: cannot be run: {1}".format(argv[0], exc.strerror or exc)) from exc
    finally:
        os.close(number)
    try:
        with process.stdin as pipe:
            pipe.write(stdin.encode("utf-8"))
    except BrokenPipeError:
        # It ended, or closed its input, before it read all of it: its own affair.
        pass
    # Nobody waits for it here, and that is meant.
    process.returncode = 0
    return process.pid


def start_logged(argv: list[str], output: str, status: str, cwd: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start ``argv`` in a session of its own and return at once; whoever dies meanwhile, the command goes on.

    Both streams go to the file ``output``, standard input is empty. The file ``status`` takes the exit status when the command has
    ended, ``status`` with ``.pid`` behind it tells who works. ``env`` adds to the environment; the locale is always C.
    Raises LLMError when the files or the shell cannot be used.
    """
    environment = dict(os.environ, LC_ALL="C", LANGUAGE="C")
    environment.update(env or {})
    try:
        forget(status)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _KEEP_STATUS, status] + argv,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise LLMError("{0}: cannot be started: {1}".format(argv[0], exc.strerror or exc)) from exc
    while not worker(status) and process.poll() is None:
        time.sleep(0.005)
    if not worker(status):
        raise LLMError("{0}: cannot be started: nothing can be written to {1}; is the disk full?".format(argv[0], status))
    return process


def forget(status: str) -> None:
    """Remove what an earlier command of ``start_logged`` left under the name ``status``."""
    for path in (status, status + ".pid"):
        if os.path.exists(path):
            os.unlink(path)


def alive(status: str) -> bool:
    """Whether the command of ``start_logged`` that works for the file ``status`` still does, our own child or not.

    What it left in the background does not count once its exit status is written.
    """
    pid = worker(status)
    if not pid:
        return False
    if process_start(pid):
        # A pid is given anew some day, also after a restart of the host; the shell we started names our file.
        try:
            with open("/proc/{0}/cmdline".format(pid), "rb") as handle:
                return os.fsencode(status) in handle.read().split(b"\0")
        except OSError:
            return False
    # The shell alone may have been killed. A number in use as a group's is not given to a new process.
    return not os.path.exists(status) and _group_works(pid)


def watch(status: str, timeout_s: float, output: str, limit_bytes: int, grace_s: float = 10.0) -> str:
    """Wait for a command of ``start_logged``, our own child or not.

    Returns ENDED, or TIMEOUT after ``timeout_s`` seconds, or FLOOD when ``output`` grows beyond ``limit_bytes`` (a question that nobody
    answers is often asked again without end). In both of these the whole group is ended: asked first, killed after ``grace_s``.
    An exception, such as Ctrl-C, leaves the command running.
    """
    deadline = time.monotonic() + timeout_s
    while alive(status):
        flood = os.path.exists(output) and os.path.getsize(output) > limit_bytes
        if flood or time.monotonic() >= deadline:
            _end_group(worker(status), grace_s)
            return FLOOD if flood else TIMEOUT
        time.sleep(0.05)
    return ENDED


def worker(status: str) -> int:
    """Pid of the shell that works for the file ``status``, 0 when none was started."""
    try:
        with open(status + ".pid", encoding="ascii") as handle:
            return int(handle.read())
    except (OSError, ValueError):
        return 0


def _group_works(group: int) -> bool:
    """Whether a process group has a member that is not a zombie."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/{0}/stat".format(entry), encoding="utf-8", errors="replace") as handle:
                state, _parent, its_group = handle.read().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(its_group) == group and state not in ("Z", "X"):
            return True
    return False


def _end_group(group: int, grace_s: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + grace_s
        while _group_works(group) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not _group_works(group):
            return
