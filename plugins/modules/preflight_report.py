#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: preflight_report
short_description: Sum up the preflight of a fleet
version_added: "0.1.0"
description:
  - Runs on the controller, once for all hosts. Reads the fact C(accelerator_out) of each, which the role C(accelerator) leaves.
  - Equal hosts appear once, as C(node[01-63]); one that differs from the others of its platform appears with what differs.
    Figures with a unit, PCI addresses and process ids do not make hosts differ; versions, counts and verdicts do.
  - A host that left nothing could not be told about, which is not good. Neither is a fleet without hosts.
  - It does not fail by itself. RV(status) is what a run should end with.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    description: Can run in check mode and gives the same result, the file included, which is its output and no change to any host.
    support: full
  diff_mode:
    support: none
options:
  hosts:
    description: All hosts that were to be looked at, also those that could not be reached.
    type: list
    elements: str
    required: true
  path:
    description: File on the controller that gets the report as JSON; empty writes none.
    type: path
    default: ""
"""

EXAMPLES = r"""
---
- name: Sum up
  ironserve.llm.preflight_report:
    hosts: "{{ ansible_play_hosts_all }}"
    path: ~/.cache/ironserve/preflight.json
  run_once: true
  register: fleet
"""

RETURN = r"""
lines:
  description: The report for a person.
  returned: success
  type: list
  elements: str
status:
  description: V(0) when all hosts are fit, V(1) when a check failed on one, V(2) when none failed but something could not be told.
  returned: success
  type: int
report:
  description:
    - What is written as JSON, C(format), C(date), C(status), C(verdict), C(counts), C(hosts) (each with C(platform), C(status) and C(checks))
      and C(groups) of equal hosts (each with C(hosts), C(pattern), C(platform) and C(status)).
  returned: success
  type: dict
"""
