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
  - Says which container holds each card, whether or not a process shows on it.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes.reads
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
  tools:
    description: Where each tool of the vendor may lie, the best path first, by the tool's name.
    type: dict
    default: {}
  tool_environment:
    description: Environment of every call of a tool. A shell that is not interactive has no vendor's library path.
    type: dict
    default: {}
  tool_timeout_s:
    description: Time limit of one call of a tool, in seconds. A hung driver hangs its tool.
    type: float
    default: 30
  options:
    description: What the platform says to its own probe, such as C(cards) and C(card_memory_mib) for V(cpu).
    type: dict
    default: {}
  probe_source:
    description:
      - Python source of a probe that the collection does not have, as the catalog found it in an overlay.
      - It must have a function C(probe(vendor)) that returns C(Accelerators).
    type: str
    default: ""
  engine_socket:
    description: Socket of the container engine, which says whose the containers on the cards are.
    type: path
    default: /var/run/docker.sock
  root:
    description: Directory that stands for the root of the host, to read a host that is played.
    type: path
    default: /
  sysfs:
    description: Directory that stands for C(/sys), to read a host that is played. Default is C(sys) under O(root).
    type: path
    default: ""
"""

EXAMPLES = r"""
---
- name: Read the cards
  ironserve.llm.accelerator_info:
    probe: cpu
    options: {cards: 4, card_memory_mib: 1024}
  register: accelerators

- name: Read the cards of a host with a vendor's tool
  ironserve.llm.accelerator_info:
    probe: hygon
    expected_cards: 8
    tools:
      hy-smi: [/opt/hyhal/bin/hy-smi, /usr/local/hyhal/bin/hy-smi]
    device_nodes: [/dev/kfd]
"""

RETURN = r"""
cards:
  description:
    - Cards by index, each with C(id), C(index), C(name), C(name_raw), C(architecture), C(memory_total_mib), C(memory_used_mib),
      C(ddr_total_mib), C(ddr_used_mib), C(utilisation_pct), C(temperature_c), C(power_w), C(health), C(health_detail), C(holders),
      C(devices), C(cpuset), C(numa_node), C(physical_id), C(logical_id), C(die), C(link) and C(link_detail).
    - Each of C(holders) has C(pid), C(container), C(name) and C(memory_mib).
    - Memory is in MiB, use in percent, temperature in degrees Celsius, power in watts.
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
driver_live:
  description: Whether the kernel runs the driver; null where the platform has none.
  returned: success
  type: bool
runtime_version:
  description: Version of the vendor's runtime; null where the platform has none.
  returned: success
  type: str
firmware_version:
  description: Version of the cards' firmware; null where the platform has none.
  returned: success
  type: str
tool_version:
  description: Version of the tool; null where it has none of its own.
  returned: success
  type: str
aliases:
  description: Other names by which a container may ask for a card, such as a uuid, with the card's C(id).
  returned: success
  type: dict
own_containers:
  description: Names of the running containers of this collection.
  returned: success
  type: list
  elements: str
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

import importlib.util
import os
from typing import Callable

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Accelerators, preflight
from ansible_collections.ironserve.llm.plugins.module_utils._checks import UNKNOWN, Check, all_good
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest
from ansible_collections.ironserve.llm.plugins.module_utils._holders import name_holders
from ansible_collections.ironserve.llm.plugins.module_utils._host_engine import OWN_LABEL, own_names, running_containers
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

PROBES = ("ascend", "cpu", "hygon", "nvidia")


def shipped_probe(name: str) -> Callable[[Vendor], Accelerators]:
    """The collection's probe of this name, which is one of ``PROBES``.

    Each is imported by itself: a host would compile the parsers of all vendors on every run.
    """
    if name == "ascend":
        from ansible_collections.ironserve.llm.plugins.module_utils import _probe_ascend as module
    elif name == "hygon":
        from ansible_collections.ironserve.llm.plugins.module_utils import _probe_hygon as module
    elif name == "nvidia":
        from ansible_collections.ironserve.llm.plugins.module_utils import _probe_nvidia as module
    elif name == "cpu":
        from ansible_collections.ironserve.llm.plugins.module_utils import _probe_cpu as module
    else:
        raise LLMError("probe '{0}' is listed and not there: report it".format(name))
    return module.probe


def find_probe(name: str, source: str, tmpdir: str) -> Callable[[Vendor], Accelerators]:
    """The collection's probe of this name, or the one that ``source`` defines.

    Raises LLMError for a name nobody knows, and for a source that cannot be loaded or has no ``probe``.
    """
    if not source:
        if name not in PROBES:
            hint = "; or put it into <inventory>/catalog/probes/{0}.py".format(name)
            raise LLMError("unknown probe '{0}': {1}{2}".format(name, nearest(name, list(PROBES)), hint))
        return shipped_probe(name)
    path = os.path.join(tmpdir, "probe_{0}.py".format(name))
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(source)
    spec = importlib.util.spec_from_file_location("ironserve_probe", path)
    loaded = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(loaded)
        return loaded.probe
    except Exception as exc:
        raise LLMError("probe '{0}' of the catalog's overlay cannot be used: {1!r}".format(name, exc)) from exc


def name_containers(vendor: Vendor, found: Accelerators, socket: str) -> list[str]:
    """Fill in which containers hold the cards; returns the names of this collection's own. A check says what the engine did not."""
    if found.probe == "cpu":
        # Its probe has named them, and names none but our own: whoever is privileged holds no core.
        return sorted({holder.container for card in found.cards for holder in card.holders})
    try:
        running = running_containers(vendor, socket)
        name_holders(found.cards, running, found.aliases, proc=vendor.path("/proc"))
        return own_names(running, OWN_LABEL)
    except LLMError as exc:
        found.checks.append(Check("card_containers", UNKNOWN, str(exc), "look at the container engine's log and mend it"))
        return []


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
            "tools": {"type": "dict", "default": {}},
            "tool_environment": {"type": "dict", "default": {}},
            "tool_timeout_s": {"type": "float", "default": 30.0},
            "options": {"type": "dict", "default": {}},
            "probe_source": {"type": "str", "default": ""},
            "engine_socket": {"type": "path", "default": "/var/run/docker.sock"},
            "root": {"type": "path", "default": "/"},
            "sysfs": {"type": "path", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    vendor = Vendor(
        tools=params["tools"],
        environment={name: str(value) for name, value in params["tool_environment"].items()},
        timeout_s=params["tool_timeout_s"],
        root=params["root"],
        sysfs=params["sysfs"],
        options=params["options"],
    )
    try:
        found = find_probe(params["probe"], params["probe_source"], module.tmpdir)(vendor)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    own_containers = name_containers(vendor, found, params["engine_socket"])
    own = [path for card in found.cards for path in card.devices.values()]
    errors = {path: open_error(vendor.path(path)) for path in params["device_nodes"] + own}
    present = [path for path in params["device_nodes"] + params["optional_device_nodes"] + own if vendor.exists(path)]
    checks = preflight(found, params["expected_cards"], params["minimum_memory_mib"], {path: why for path, why in errors.items() if why})
    module.exit_json(
        changed=False,
        device_nodes={path: os.stat(vendor.path(path)).st_gid for path in present},
        lines=[check.line() for check in checks],
        ok=all_good(checks),
        own_containers=own_containers,
        **dict(found.as_dict(), checks=[check.as_dict() for check in checks]),
    )


if __name__ == "__main__":
    main()
