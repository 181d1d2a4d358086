# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ends a run of the preflight or the verify playbook with its own status: 0 ok, 1 failed, 2 could not tell."""

from __future__ import annotations

DOCUMENTATION = """
name: preflight_status
type: aggregate
short_description: End ansible-playbook with the status of what was looked at
version_added: "0.1.0"
author:
  - ironserve.llm contributors (@ironserve)
description:
  - C(ansible-playbook) ends with 2 whenever a host failed, so a failed check and one that could not tell look alike. With this callback a
    run that reports with M(ironserve.llm.preflight_report) ends with 0 when all hosts are fit, 1 when a check failed, 2 when something
    could not be told.
  - A run of this collection's C(verify.yml) or C(benchmark.yml) that reports with M(ironserve.llm.acceptance_report) ends in the same way, with
    0 when all was accepted, 1 when something was refused, 2 when something could not be told. Other playbooks that write this report, such as
    a deployment, end as Ansible does.
  - It also ends with 2 a run of this collection's C(preflight.yml), C(verify.yml) or C(benchmark.yml) that made no report, such as one whose
    hosts matched nothing. Playbooks of the same name from elsewhere are left alone.
  - Runs that are about something else are left alone, and so is a status that says more went wrong than the report knows.
requirements:
  - enable it with C(callbacks_enabled = ironserve.llm.preflight_status) in ansible.cfg, or in the environment variable
    E(ANSIBLE_CALLBACKS_ENABLED). Without it the run ends with 0 or 2.
"""

import os
from typing import Any

from ansible.plugins.callback import CallbackBase

REPORT = "ironserve.llm.preflight_report"
ACCEPTANCE = "ironserve.llm.acceptance_report"
#: Playbooks that are about nothing but their report, and those whose acceptance decides how they end.
LOOKING = ("preflight", "verify", "benchmark")
ACCEPTING = ("verify", "benchmark")
COULD_NOT_TELL = 2
#: Where this collection's playbooks are: others may have playbooks of these names.
PLAYBOOKS = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), os.pardir, os.pardir, "playbooks"))


class CallbackModule(CallbackBase):
    """Remember the report, and end the run with its status when everything has been said."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "ironserve.llm.preflight_status"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, display: Any = None, options: Any = None) -> None:
        super().__init__(display=display, options=options)
        self._is_looking = False
        self._is_accepting = False
        self._status: int | None = None

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Note whether this run only looks."""
        folder, file = os.path.split(os.path.realpath(str(playbook._file_name)))
        name = os.path.splitext(file)[0] if folder == PLAYBOOKS else ""
        self._is_looking, self._is_accepting = name in LOOKING, name in ACCEPTING

    def v2_runner_on_ok(self, result: Any) -> None:
        """Note the report's status."""
        task = getattr(result, "task", None) or result._task
        names = (task.resolved_action, task.action)
        if REPORT in names or (ACCEPTANCE in names and self._is_accepting):
            answer = getattr(result, "result", None) or result._result
            self._status = int(answer["status"])

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """End the run. What comes after the statistics is only cleaning up, which happens all the same."""
        if self._status is None:
            if self._is_looking:
                raise SystemExit(COULD_NOT_TELL)
            return
        if self._status:
            raise SystemExit(self._status)
