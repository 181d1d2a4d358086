# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ironserve.llm.preflight_report: what the hosts left as facts, grouped, written, and summed up in one number."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.ironserve.llm.plugins.module_utils import _fleet_report


def results_of(hosts: list[str], hostvars: Any) -> list[dict[str, Any]]:
    """Per host ``{"host", "platform", "checks"}``; a host that left nothing has no checks."""
    results = []
    for host in hosts:
        variables = hostvars[host] if host in hostvars else {}
        left = variables.get("accelerator_out") or {}
        results.append({"host": host, "platform": left.get("platform") or "", "checks": list(left.get("checks") or [])})
    return results


def write(path: pathlib.Path, report: dict[str, Any]) -> None:
    """Write the report in one step, so that whoever reads it never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(".{0}.{1}".format(path.name, os.getpid()))
    partial.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


class ActionModule(ActionBase):
    """Group the fleet's checks, without a round trip to any host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; see its documentation."""
        super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "hosts": {"type": "list", "elements": "str", "required": True},
                "path": {"type": "path", "default": ""},
            }
        )
        results = results_of(args["hosts"], (task_vars or {})["hostvars"])
        report = _fleet_report.build(results, datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"))
        lines = _fleet_report.render(results)
        if args["path"]:
            try:
                write(pathlib.Path(args["path"]).expanduser(), report)
            except OSError as exc:
                raise AnsibleActionFail("{0}: the report cannot be written: {1}".format(args["path"], exc.strerror or exc)) from exc
            lines += ["", "report: {0}".format(args["path"])]
        return {"changed": False, "lines": lines, "status": report["status"], "report": report}
