#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: weights_info
short_description: Tell what weights on a host will take of a card
version_added: "0.1.0"
description:
  - Reads C(config.json) and the headers of the safetensors files that an engine would load, no tensor data, and adds the tensors up for
    M(ironserve.llm.replica_plan).
  - A directory that is not there yet is no error.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes.reads
options:
  path:
    description: Directory of the weights, with their C(config.json).
    type: path
    required: true
  config:
    description: The file that the engine sees as C(config.json), where it is another than that of O(path).
    type: path
    default: ""
"""

EXAMPLES = r"""
---
- name: Read what the weights will take
  ironserve.llm.weights_info:
    path: /var/lib/ironserve/weights/qwen3.6-35b-a3b/bf16
  register: weights
"""

RETURN = r"""
found:
  description: The weights, or nothing where the directory does not exist.
  returned: success
  type: dict
  contains:
    config:
      description: The configuration, without what is long and says nothing of memory.
      type: dict
    tensors:
      description: Rows of part, number of the layer (-1 for none), how it is spread over cards, and size in bits.
      type: list
      elements: list
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _tensor_sizes
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def run(path: str, config: str) -> dict[str, Any]:
    """Read them, where they are."""
    return {"changed": False, "found": _tensor_sizes.read(path, config) if os.path.isdir(path) else {}}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "config": {"type": "path", "default": ""}},
        supports_check_mode=True,
    )
    try:
        result = run(module.params["path"], module.params["config"])
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
