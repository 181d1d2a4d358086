# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one door to commands: bounded in time, whole process group ended. Private to the collection."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


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
