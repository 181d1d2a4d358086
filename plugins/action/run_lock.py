# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's side of the run lock: it alone knows which process runs the playbook, and whether another one lives."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
import time

from ansible.plugins.action import ActionBase

from ansible_collections.ironserve.llm.plugins.module_utils import _lock


def controller_id() -> str:
    """Where a process id of this controller means something: one boot, one pid namespace.

    Containers on one machine share the boot id, but not the processes they can see. Empty where neither is known.
    """
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    boot = _lock.boot_id()
    return "{0} {1}".format(boot, namespace) if boot and namespace else ""


def owner_record(pid: int) -> dict:
    """Describe the run whose main process is ``pid``; the run id is the same for every task and host of that run."""
    where = controller_id()
    start = _lock.process_start(pid)
    # On a controller without /proc the start time is empty: then only the lease and takeover can end its locks.
    identity = "{0}|{1}|{2}|{3}".format(where, socket.gethostname(), pid, start)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "uid {0}".format(os.getuid())
    return {
        "run_id": hashlib.sha256(identity.encode("utf-8")).hexdigest()[:16],
        "user": user,
        "controller": socket.gethostname(),
        "controller_id": where,
        "pid": pid,
        "pid_start": start,
        "started": time.time(),
    }


def known_dead(holder: dict) -> bool:
    """Whether the holder ran on this very controller and its process is gone (or its pid is another process now)."""
    where = controller_id()
    return bool(where) and holder["controller_id"] == where and _lock.process_start(holder["pid"]) != holder["pid_start"]


class ActionModule(ActionBase):
    """Fill in who asks, judge the holder's process, and word the refusal."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        # Tasks run in a child of the playbook's main process, and that one lives as long as the run.
        args = dict(self._task.args, owner=owner_record(os.getppid()))
        answer = self._execute_module("ironserve.llm.run_lock", module_args=args, task_vars=task_vars)
        refused = self._task.args.get("state", "present") == "present" and not answer.get("failed") and not answer.get("held")
        if refused and known_dead(answer["holder"]):
            args["dead_run_id"] = answer["holder"]["run_id"]
            answer = self._execute_module("ironserve.llm.run_lock", module_args=args, task_vars=task_vars)
            refused = not answer.get("failed") and not answer.get("held")
        result.update(answer)
        if refused:
            message = "{0}: another run is at work on this host, {1}. Wait for it, or take over with -e llm_lock_takeover=true".format(
                self._task.args.get("path", "/run/ironserve/lock.json"), answer["msg"]
            )
            result["msg"] = message
            if self._task.check_mode:
                result["warnings"] = result.get("warnings", []) + [message]
            else:
                result["failed"] = True
        elif answer.get("takeover"):
            result["warnings"] = result.get("warnings", []) + [answer["msg"]]
        return result
