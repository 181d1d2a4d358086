#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: accelerator_info
short_description: Read the accelerator cards of a host, one schema for all platforms
version_added: "0.1.0"
description:
  - Runs the platform's probe and checks what it found, one line per check.
  - A tool that is missing, hangs, fails or prints something unknown is an error that names it; it never means no cards.
author:
  - ironserve.llm contributors (@ironserve)
attributes:
  check_mode:
    description: Can run in check mode and gives the same result.
    support: full
  diff_mode:
    description: Returns what has changed or would change.
    support: none
options:
  probe:
    description: Name of the probe, as the platform's catalog entry gives it.
    type: str
    required: true
  expected_cards:
    description: How many cards the host must have; V(0) means any number but none.
    type: int
    default: 0
  minimum_memory_mib:
    description: Least memory of each card, in MiB.
    type: int
    default: 0
  device_nodes:
    description: Device nodes that must open for reading and writing.
    type: list
    elements: path
    default: []
  optional_device_nodes:
    description: Device nodes that are reported if they are there.
    type: list
    elements: path
    default: []
  cpu_cards:
    description: Probe V(cpu) only. How many cards to play; fewer if memory does not hold them.
    type: int
    default: 4
  cpu_card_memory_mib:
    description: Probe V(cpu) only. Memory of each card, in MiB.
    type: int
    default: 1024
"""

EXAMPLES = r"""
---
- name: Read the cards
  ironserve.llm.accelerator_info:
    probe: cpu
    cpu_cards: 4
  register: accelerators
"""

RETURN = r"""
cards:
  description:
    - Cards by index, each with C(id), C(index), C(name), C(name_raw), C(architecture), C(memory_total_mib), C(memory_used_mib),
      C(utilisation_pct), C(temperature_c), C(power_w), C(health), C(holders), C(devices), C(cpuset) and C(numa_node).
    - A figure the tool does not give is null.
  returned: success
  type: list
  elements: dict
probe:
  description: Name of the probe.
  returned: success
  type: str
tool:
  description: Tool and version that were read.
  returned: success
  type: str
driver_version:
  description: Version of the driver; null where the platform has none.
  returned: success
  type: str
runtime_version:
  description: Version of the vendor's runtime; null where the platform has none.
  returned: success
  type: str
device_nodes:
  description: Numeric group id of each device node that is there, by path.
  returned: success
  type: dict
checks:
  description: Checks, each with C(name), C(status), C(detail) and C(fix).
  returned: success
  type: list
  elements: dict
lines:
  description: The checks as lines for a person.
  returned: success
  type: list
  elements: str
ok:
  description: Whether every check lets a deployment go on.
  returned: success
  type: bool
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _probe_cpu
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import preflight
from ansible_collections.ironserve.llm.plugins.module_utils._checks import all_good
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest

PROBES = {"cpu": _probe_cpu.probe}


def open_error(path: str) -> str:
    """Why a device node cannot be used, or an empty text. A node can be listed and still not open."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as exc:
        return exc.strerror or str(exc)
    return ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "probe": {"type": "str", "required": True},
            "expected_cards": {"type": "int", "default": 0},
            "minimum_memory_mib": {"type": "int", "default": 0},
            "device_nodes": {"type": "list", "elements": "path", "default": []},
            "optional_device_nodes": {"type": "list", "elements": "path", "default": []},
            "cpu_cards": {"type": "int", "default": 4},
            "cpu_card_memory_mib": {"type": "int", "default": 1024},
        },
        supports_check_mode=True,
    )
    params = module.params
    if params["probe"] not in PROBES:
        module.fail_json(msg="unknown probe '{0}': {1}".format(params["probe"], nearest(params["probe"], list(PROBES))))
    try:
        found = PROBES[params["probe"]]({"cards": params["cpu_cards"], "card_memory_mib": params["cpu_card_memory_mib"]})
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    own = [path for card in found.cards for path in card.devices.values()]
    errors = {path: open_error(path) for path in params["device_nodes"] + own}
    present = [path for path in params["device_nodes"] + params["optional_device_nodes"] + own if os.path.exists(path)]
    checks = preflight(found, params["expected_cards"], params["minimum_memory_mib"], {path: why for path, why in errors.items() if why})
    module.exit_json(
        changed=False,
        device_nodes={path: os.stat(path).st_gid for path in present},
        checks=[check.as_dict() for check in checks],
        lines=[check.line() for check in checks],
        ok=all_good(checks),
        **found.as_dict(),
    )


if __name__ == "__main__":
    main()
