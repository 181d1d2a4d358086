#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: engine_version_info
short_description: Read an engine's version inside its image
version_added: "0.1.0"
description:
  - Tags say little of what is in an image. This runs one command of the catalog in a container of the image, without network, devices,
    capabilities or a writable file system, and removes the container again.
author:
  - ironserve.llm contributors (@ironserve)
requirements:
  - docker >= 5.0.3 (Python library)
extends_documentation_fragment:
  - ironserve.llm.attributes.reads
options:
  image:
    description: Reference of the image, which is on the host.
    type: str
    required: true
  command:
    description: The command that prints the version.
    type: list
    elements: str
    required: true
  pattern:
    description: Regular expression for the line with the version; its first group is the version.
    type: str
    required: true
  timeout_s:
    description: Longest run of the command, seconds.
    type: int
    default: 120
  socket:
    description: The container engine's socket.
    type: path
    default: /var/run/docker.sock
"""

EXAMPLES = r"""
---
- name: Which vLLM is it
  ironserve.llm.engine_version_info:
    image: registry.example/vllm@sha256:0000000000000000000000000000000000000000000000000000000000000000
    command: [python3, -c, "import importlib.metadata as m; print('version', m.version('vllm'))"]
    pattern: "^version (\\S+)$"
  register: inside
"""

RETURN = r"""
version:
  description: The engine's version, as the engine spells it.
  returned: success
  type: str
  sample: 0.18.1+das.fa71803.dtk2604
"""

import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _docker
from ansible_collections.ironserve.llm.plugins.module_utils._compatibility import parse_version
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput


def read_version(output: str, pattern: str, image: str) -> str:
    """Find the version in what the command printed. Raises UnknownOutput that shows the last line when there is none."""
    found = re.search(pattern, output, re.MULTILINE)
    last = output.strip().splitlines()[-1][:200] if output.strip() else "(nothing)"
    if not found:
        raise UnknownOutput("image {0}: its engine does not tell its version; it printed {1!r}".format(image, last))
    # What cannot be compared is no version.
    parse_version(found.group(1))
    return found.group(1)


def run(params: dict[str, Any]) -> dict[str, Any]:
    """Run the command once and read what it printed."""
    client = _docker.connect(params["socket"], params["timeout_s"] + 30)
    exit_code, output = _docker.run_once(client, params["image"], params["command"], params["timeout_s"])
    if exit_code:
        last = output.strip().splitlines()[-1][:200] if output.strip() else "(nothing)"
        text = (
            "image {0}: the command that tells the engine's version ended with {1}: {2}. State it instead: replica_image: {{version: ...}}"
        )
        raise LLMError(text.format(params["image"], exit_code, last))
    return {"changed": False, "version": read_version(output, params["pattern"], params["image"])}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "command": {"type": "list", "elements": "str", "required": True},
            "pattern": {"type": "str", "required": True},
            "timeout_s": {"type": "int", "default": 120},
            "socket": {"type": "path", "default": "/var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module.params)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    except _docker.ENGINE_ERRORS as exc:
        module.fail_json(msg="the container engine refused: {0}".format(exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
