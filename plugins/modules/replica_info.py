#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: replica_info
short_description: Tell which replicas run on a host, and what a plan would change of them
version_added: "0.1.0"
description:
  - Reads the containers of this collection's replicas, and holds a plan against them. The specification hash that each container carries
    decides; where it is another one, image, arguments, environment, port, cards, devices and weights are compared one by one. Where it is
    the same, what the engine says of the container is held against what it was asked to make.
  - A host without a container engine runs nothing.
author:
  - ironserve.llm contributors (@ironserve)
requirements:
  - docker >= 5.0.3 (Python library)
extends_documentation_fragment:
  - ironserve.llm.attributes.reads
options:
  plan:
    description: A plan of this host, as M(ironserve.llm.replica_plan) returns it; empty compares nothing.
    type: dict
    default: {}
  neighbours:
    description:
      - The other names of the inventory. A machine that runs several models stands in it under several names, and what belongs to one of
        them is not compared with the plan of this one. A card of the plan that one of them has is an error.
    type: list
    elements: str
    default: []
  socket:
    description: The container engine's socket.
    type: path
    default: /var/run/docker.sock
"""

EXAMPLES = r"""
---
- name: What would change
  ironserve.llm.replica_info:
    plan: "{{ replica_out.plan }}"
  register: running
"""

RETURN = r"""
replicas:
  description:
    - The replicas' containers, with C(name), C(running), C(image), C(labels), C(command), C(publish) (C(address) and C(port)) and C(devices).
      The labels tell cards, model, weights and specification hash.
  returned: success
  type: list
  elements: dict
differences:
  description:
    - One entry for each replica of the plan, then for those in no plan, with C(container), C(state) and C(details). The state is V(same),
      V(start) (it stands still), V(new), V(change), V(gone), or V(open) where only the host knows what may differ.
  returned: success
  type: list
  elements: dict
lines:
  description: The differences for a person.
  returned: success
  type: list
  elements: str
"""

import dataclasses
import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _container_request, _docker, _machines, _plan_diff
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def run(plan: dict[str, Any], neighbours: list[str], socket: str) -> dict[str, Any]:
    """Read the containers and compare. Raises LLMError for a card of the plan that another name of this machine has."""
    try:
        client = _docker.connect(socket)
    except _docker.EngineAbsent:
        found = []
    else:
        names = [item["name"] for item in _docker.replicas(client)]
        found = [inspected for inspected in (_docker.inspect(client, name) for name in names) if inspected]
    containers = [_plan_diff.describe(inspected) for inspected in found]
    if plan:
        replicas = [dict(item, spec=_container_request.for_host(item["spec"], os.path.exists)) for item in plan["replicas"]]
        plan = dict(plan, replicas=replicas)
        held = _machines.held_cards([item["spec"] for item in replicas], containers, neighbours)
        if held:
            raise LLMError("; ".join(held))
    own = [item for item in containers if _machines.owner(item["labels"]) not in neighbours]
    differences = _plan_diff.compare(plan, own) if plan else []
    for container in containers:
        # They may hold what a user put there, and nobody needs them.
        del container["environment"], container["inspected"]
    return {
        "changed": False,
        "replicas": containers,
        "differences": [dataclasses.asdict(item) for item in differences],
        "lines": [line for item in differences for line in item.lines()],
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "default": {}},
            "neighbours": {"type": "list", "elements": "str", "default": []},
            "socket": {"type": "path", "default": "/var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module.params["plan"], module.params["neighbours"], module.params["socket"])
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    except _docker.ENGINE_ERRORS as exc:
        module.fail_json(msg="the container engine refused: {0}".format(exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
