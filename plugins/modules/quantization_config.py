#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Have the engine told how weights are quantized, as their tensors are."""

from __future__ import annotations

DOCUMENTATION = r"""
module: quantization_config
short_description: Tell the engine how weights are quantized, as their tensors are
version_added: "0.1.0"
description:
  - Reads the headers of the safetensors files in a directory, holds what says how they are quantized against them, module by
    module, and says it for int8 weights that come without a word about it. No tensor data is read.
  - The words are the block C(quantization_config) of C(config.json) in the form of compressed-tensors (and a copy of it as
    C(compression_config), for older readers). Its list of modules to leave alone is derived from the headers, or checked
    against them when O(config) gives it. Weights that come with a right block, with Ascend's C(quant_model_description.json),
    or unquantized stay as they are.
  - Engines start on a wrong description and answer garbage, in many versions without a warning. A directory that passes can
    still give wrong answers; whether a model really infers is the business of a proof.
options:
  path:
    description: Directory of the weights.
    type: path
    required: true
  state:
    description:
      - V(present) makes the description right and fails when it cannot be.
      - V(checked) changes nothing and fails when the description is wrong.
      - V(absent) puts back what V(present) replaced.
    type: str
    choices: [present, checked, absent]
    default: present
  dest:
    description:
      - File for the config with the block, to be mounted over C(config.json) of O(path), which then stays what the hub sent.
        It must lie outside O(path).
      - Without it C(config.json) itself is replaced, and its digest is no longer the one of a manifest.
    type: path
  backup:
    description: Where the original goes before C(config.json) itself is replaced. Default is C(<path>/config.json.original).
    type: path
  config:
    description: The block to use in place of the derived one. It is refused when it is wrong.
    type: dict
  method:
    description:
      - What the engine is told to expect, such as its argument C(--quantization). V(auto) takes what the weights say.
    type: str
    choices: [auto, ascend, compressed-tensors, fp8]
    default: auto
  lock_timeout:
    description: Longest wait for another writer of the same weights, in seconds.
    type: int
    default: 60
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    description: Judges fully and writes nothing.
    support: full
  diff_mode:
    description: Shows the config before and after.
    support: full
seealso:
  - module: ironserve.llm.weights_verify
author:
  - ironserve.llm contributors (@ironserve)
"""

EXAMPLES = r"""
- name: Describe int8 weights in a file that is mounted over their config.json
  ironserve.llm.quantization_config:
    path: /var/lib/ironserve/weights/qwen3.6-35b-a3b/w8a8
    dest: /var/lib/ironserve/weights/.config/qwen3.6-35b-a3b-w8a8.json
  register: quantization

- name: Only look, with the method the engine will be started with
  ironserve.llm.quantization_config:
    path: /srv/models/qwen3.6-35b-a3b-w8a8
    state: checked
    method: ascend

- name: Put the original config.json back
  ironserve.llm.quantization_config:
    path: /srv/models/demo
    state: absent
"""

RETURN = r"""
config_path:
  description: The config that the engine must see as C(config.json); O(dest) only when it is needed.
  returned: when state is not absent
  type: str
method:
  description: What says how the weights are quantized (V(ascend) or a C(quant_method)), empty for weights that are not.
  returned: when state is not absent
  type: str
sha256:
  description: SHA-256 digest of RV(config_path).
  returned: when state is not absent
  type: str
original_sha256:
  description: SHA-256 digest of the config without our block, as the hub sent it.
  returned: when state is not absent
  type: str
quantized:
  description: Number of matrices whose numbers are quantized.
  returned: when state is not absent
  type: int
plain:
  description: Number of matrices that are multiplied and not quantized.
  returned: when state is not absent
  type: int
linear_attention:
  description: What the headers say of linear attention, one of V(none), V(quantized), V(plain), V(mixed).
  returned: when state is not absent
  type: str
ignore:
  description: Modules the engine must leave alone, as derived from the headers.
  returned: when state is not absent and something is quantized
  type: list
  elements: str
failed_checks:
  description: Words of the checks that failed.
  returned: on failure of a check
  type: list
  elements: str
problems:
  description: One line a kind of disagreement, with the first shard and module and how many more there are.
  returned: on failure of a check
  type: list
  elements: str
notes:
  description: What could not or need not be judged.
  returned: when state is not absent
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _config_file, _quantization
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def text(raw: bytes) -> str:
    """Bytes for one side of a diff."""
    return raw.decode("utf-8", "replace")


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "checked", "absent"], "default": "present"},
            "dest": {"type": "path"},
            "backup": {"type": "path"},
            "config": {"type": "dict"},
            "method": {"type": "str", "choices": ["auto", "ascend", "compressed-tensors", "fp8"], "default": "auto"},
            "lock_timeout": {"type": "int", "default": 60},
        },
        mutually_exclusive=[("dest", "backup")],
        supports_check_mode=True,
    )
    params = module.params
    path = os.path.abspath(params["path"])
    dest = os.path.abspath(params["dest"]) if params["dest"] else ""
    backup = os.path.abspath(params["backup"]) if params["backup"] else ""
    try:
        done = _config_file.settle(
            path,
            params["state"],
            dest,
            backup,
            params["config"],
            params["method"],
            module.check_mode,
            params["lock_timeout"],
        )
    except (LLMError, OSError) as exc:
        module.fail_json(msg=str(exc))
    result = {"changed": done.changed}
    result["diff"] = {
        "before_header": done.target,
        "after_header": done.target,
        "before": text(done.before),
        "after": text(done.after),
    }
    verdict = done.verdict
    if verdict is None:
        module.exit_json(**result)
    result.update(
        config_path=done.config_path,
        method=verdict.method,
        sha256=done.sha256,
        original_sha256=done.original_sha256,
        quantized=verdict.quantized,
        plain=verdict.plain,
        linear_attention=verdict.linear_attention,
        notes=verdict.notes,
    )
    if verdict.quantized:
        result["ignore"] = verdict.ignore
    if verdict.problems:
        result.update(changed=False, problems=verdict.problems, failed_checks=verdict.checks)
        module.fail_json(msg=_quantization.complaint(path, verdict), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
