# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: planned_servers
short_description: Collect the gateway's servers from the plans of all hosts
version_added: "0.1.0"
author:
  - ironserve.llm contributors (@ironserve)
description:
  - Reads the fact C(replica_out) of each host, which the role C(replica) leaves, and returns one server for each replica.
  - Hosts without that fact are no part of this run and are listed as C(absent).
positional: _input, hostvars
options:
  _input:
    description: The hosts whose replicas belong behind the gateway.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variables of all hosts, as in the magic variable C(hostvars).
    type: dict
    required: true
  assume_proven:
    description: Whether the replicas of a host without a list of proofs count as proven. For check runs.
    type: bool
    default: false
"""

EXAMPLES = r"""
fleet: "{{ groups['llm_nodes'] | ironserve.llm.planned_servers(hostvars) }}"
"""

RETURN = r"""
_value:
  description: C(servers), elements as in the role's C(gateway_servers), and C(absent), a list of host names.
  type: dict
"""

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
