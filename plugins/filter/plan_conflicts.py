# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What two plans of one machine both take. Documentation: plan_conflicts.yml."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.ironserve.llm.plugins.module_utils import _machines


def plan_conflicts(plan, others):
    """Return one line for each card or port that another plan takes too."""
    try:
        return _machines.plan_conflicts(plan, others)
    except (KeyError, TypeError) as exc:
        raise AnsibleFilterError("plan_conflicts was given what is no plan of replica_plan: {0!r}".format(exc)) from exc


class FilterModule:
    """The filters of this file."""

    def filters(self):
        """Return them by name."""
        return {"plan_conflicts": plan_conflicts}
