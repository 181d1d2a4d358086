# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ironserve.llm.acceptance_report: what the hosts left as facts becomes what ran where; the module does the rest."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.ironserve.llm.plugins.module_utils import _report


def fleet_of(hosts: list[str], hostvars: Any) -> list[dict[str, Any]]:
    """One row per host; a host that left no plan has an error."""
    fleet = []
    for host in hosts:
        variables = hostvars[host] if host in hostvars else {}
        row = _report.fleet_row(
            host, variables.get("accelerator_out") or {}, variables.get("replica_out") or {}, variables.get("catalog_out") or {}
        )
        if not row["replicas"] and not row["error"]:
            row["error"] = "nothing was found out about this host"
        fleet.append(row)
    return fleet


class ActionModule(ActionBase):
    """Gather what ran where, then run the module on the host that keeps the report."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; see its documentation."""
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        hosts = arguments.get("hosts") or []
        if hosts and isinstance(hosts, list):
            arguments["fleet"] = fleet_of([str(host) for host in hosts], (task_vars or {})["hostvars"])
        result.update(self._execute_module(module_name="ironserve.llm.acceptance_report", module_args=arguments, task_vars=task_vars))
        return result
