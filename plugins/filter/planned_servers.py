# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One server for each replica of the fleet. Documentation: planned_servers.yml."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def planned_servers(hosts, hostvars, assume_proven=False):
    """Return the servers of the hosts that have a plan, and the hosts that have none."""
    outs, absent = {}, []
    for host in hosts:
        out = hostvars[host].get("replica_out") if host in hostvars else None
        if out and out.get("plan"):
            outs[host] = out
        else:
            absent.append(host)
    try:
        return {"servers": _haproxy.planned_servers(outs, assume_proven), "absent": absent}
    except LLMError as exc:
        raise AnsibleFilterError(str(exc)) from exc
    except (KeyError, TypeError, ValueError) as exc:
        raise AnsibleFilterError("replica_out of a host is not what the role replica leaves: {0!r}".format(exc)) from exc


class FilterModule:
    """The filters of this file."""

    def filters(self):
        """Return them by name."""
        return {"planned_servers": planned_servers}
