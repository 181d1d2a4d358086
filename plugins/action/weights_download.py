# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of long work with weights: the module starts a job, this side waits for it and tells how far it is.

Ansible shows what a module prints only at its end, which for weights is an hour away.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.ironserve.llm.plugins.module_utils._progress import Teller, line

display = Display()

#: Pauses between two looks at a job, in seconds; the last one stays.
PAUSES_S = (0.5, 1, 2, 3, 5)


class ActionModule(ActionBase):
    """Wait for a job of the module of the same name, and show its progress."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; see its documentation."""
        result = super().run(tmp, task_vars)
        args = dict(self._task.args)
        if self._task.check_mode or self._task.async_val:
            result.update(self._execute_module(module_args=args, task_vars=task_vars))
            return result
        host = (task_vars or {}).get("inventory_hostname", "")
        if self._task.delegate_to:
            host = f"{host} -> {self._task.delegate_to}"
        answer = self.follow(host, args, task_vars)
        result.update(answer)
        return result

    def follow(self, host: str, args: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Call the module until its job has ended; its last answer is the result."""
        teller, nonce, looks, told_other = Teller(), "", 0, ""
        limit = float(args.get("lock_timeout") or 1800)
        begin = time.monotonic()
        while True:
            answer = self._execute_module(module_args=dict(args, detach=True, job=nonce), task_vars=task_vars)
            job = answer.pop("job", None)
            if answer.get("failed") or not job:
                return answer
            if job["mine"]:
                nonce = job["nonce"]
                if teller.due(job["progress"], time.monotonic()):
                    display.display(f"{host}: {line(job['progress'])}")
            else:
                nonce = ""
                if job["nonce"] != told_other:
                    told_other = job["nonce"]
                    display.display(f"{host}: waiting for another job: {job['who']}")
                if job["running"] and time.monotonic() - begin > limit:
                    return {
                        "failed": True,
                        "msg": f"{args.get('path')}: another job is still at work there after {limit:g} s: {job['who']}. "
                        "Wait for its end, or end it, and run again",
                    }
            time.sleep(PAUSES_S[min(looks, len(PAUSES_S) - 1)])
            looks += 1
