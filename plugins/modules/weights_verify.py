#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verify model weights on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_verify
short_description: Verify model weights against a manifest and their format
version_added: "0.1.0"
description:
  - Compares a directory with a manifest of paths, sizes and SHA-256 digests, hashing files side by side, and checks the
    headers of the weight files, their index, the files beside them and what says how they are quantized, without reading
    tensor data.
  - A file that was verified before and still has its size, modification time and inode is not read again, so a second
    run takes milliseconds; O(deep=true) reads everything. A file that was only touched is read again and is then good.
  - Without O(manifest) headers, files beside them and quantization are all that is judged; that the bytes are the right ones
    is then not known (RV(bytes_ok) is V(null)).
  - While many gigabytes are hashed, lines tell file, share, rate and time left.
  - Good weights can still give wrong answers. Whether a model really infers is the business of a proof, not of this module.
extends_documentation_fragment:
  - ironserve.llm.weights.manifest
  - ironserve.llm.weights.job
  - ironserve.llm.attributes
options:
  path:
    description: Directory of the weights. It need not exist; then every file is missing.
    type: path
    required: true
  format:
    description: Format whose structure is checked.
    type: str
    choices: [gguf, safetensors]
    required: true
  deep:
    description: Whether to hash every file even when the marker says that nothing changed.
    type: bool
    default: false
  structure:
    description: Whether to check headers, indexes and required files of the format.
    type: bool
    default: true
  needs:
    description:
      - What safetensors must bring with them. V(chat_template) is a file C(chat_template.jinja), C(chat_template.json), or an
        entry of C(tokenizer_config.json).
    type: list
    elements: str
    choices: [config, tokenizer, chat_template, generation_config]
    default: [config, tokenizer, chat_template, generation_config]
  quantization:
    description:
      - What the engine will be told, to be held against C(config.json) (or Ascend's C(quant_model_description.json)) and the
        headers, module by module. V(auto) takes what the weights say, V(none) does not look. Part of O(structure).
      - Weights of int8 that come without a word about it are refused; M(ironserve.llm.quantization_config) says it for them.
    type: str
    choices: [auto, none, ascend, compressed-tensors, fp8]
    default: auto
  engine_config:
    description:
      - File that is mounted over C(config.json) of O(path), as M(ironserve.llm.quantization_config) makes it. One that is not
        there is not an error; then C(config.json) itself is judged.
    type: path
  read_only:
    description: Whether a file whose mode is not C(0444) is a problem.
    type: bool
    default: false
  marker:
    description:
      - File that remembers what was verified. It must lie outside O(path).
      - It is written only when every byte is good. Without it every run hashes everything.
    type: path
  fail_on_problem:
    description: Whether a problem fails the task. With V(false) the caller reads RV(ok).
    type: bool
    default: true
attributes:
  check_mode:
    description: Verifies fully, and does not write the marker.
    support: full
  diff_mode:
    description: Has nothing to show, because only the marker is ever written.
    support: none
seealso:
  - module: ironserve.llm.quantization_config
  - module: ironserve.llm.weights_files
author:
  - ironserve.llm contributors (@ironserve)
"""

EXAMPLES = r"""
- name: Verify the weights of the demo model
  ironserve.llm.weights_verify:
    path: /var/lib/ironserve/weights/smollm2-135m/q4_1
    format: gguf
    marker: /var/lib/ironserve/weights/.verified/smollm2-135m-q4_1.json
    manifest:
      - path: SmolLM2-135M-Instruct.Q4_1.gguf
        size: 98362432
        sha256: b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

- name: Judge a directory that nobody has a manifest of
  ironserve.llm.weights_verify:
    path: /srv/models/unknown
    format: safetensors

- name: Read every byte again
  ironserve.llm.weights_verify:
    path: /srv/models/demo
    format: safetensors
    manifest: "{{ manifest }}"
    deep: true
    fail_on_problem: false
  register: weights
"""

RETURN = r"""
ok:
  description: Whether bytes, structure and (if asked for) modes are all good.
  returned: always
  type: bool
bytes_ok:
  description: Whether the directory holds exactly the bytes of the manifest; V(null) without a manifest.
  returned: always
  type: bool
structure_ok:
  description: Whether headers and indexes are sound; V(null) when O(structure=false).
  returned: always
  type: bool
quantization_ok:
  description:
    - Whether what says how the weights are quantized agrees with their tensors, in this run or when the marker was written.
      V(null) when it was not judged, also because something else was wrong.
  returned: always
  type: bool
notes:
  description: What could not or need not be judged of the quantization in this run.
  returned: always
  type: list
  elements: str
config_path:
  description: The config that the engine must see as C(config.json); empty for a format that has none.
  returned: always
  type: str
config_sha256:
  description: SHA-256 digest of RV(config_path), empty when there is no such file.
  returned: always
  type: str
manifest_id:
  description: Identity of the manifest, a SHA-256 over its canonical form, whatever the order of its entries; V(null) without one.
  returned: always
  type: str
files:
  description: One entry a file of the manifest, then one a file that should not be there.
  returned: always
  type: list
  elements: dict
  contains:
    path:
      description: Path relative to O(path).
      type: str
    verdict:
      description:
        - What was found, one of V(ok), V(missing), V(extra), V(wrong_size), V(wrong_sha256), V(empty), V(lfs_pointer),
          V(html_page), V(symlink), V(not_a_file), V(unreadable), V(changing), V(bad_structure), V(writable).
      type: str
    detail:
      description: Expected against found, empty when the verdict is V(ok).
      type: str
    size:
      description: Size found, in bytes.
      type: int
    sha256:
      description: Digest of the file, V(null) when something cheaper was wrong already.
      type: str
    hashed:
      description: Whether the file was read in this run.
      type: bool
problems:
  description: One line a problem.
  returned: always
  type: list
  elements: str
hashed_bytes:
  description: Bytes read for hashing in this run.
  returned: always
  type: int
seconds:
  description: Time the verification took, in seconds.
  returned: always
  type: float
needed_bytes:
  description: Size of the files that are not good, in bytes.
  returned: always
  type: int
gathered_bytes:
  description: Bytes that an interrupted run left beside the directory.
  returned: always
  type: int
free_bytes:
  description: Free space on the filesystem of O(path), in bytes.
  returned: always
  type: int
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _jobs, _manifest, _weights_verify
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def run(module: AnsibleModule) -> dict:
    """Verify, remember what was good, and return the result. Raises Pending while a job works."""
    params = module.params
    names = ("manifest", "format", "deep", "structure", "read_only", "needs", "quantization")
    arguments = {name: params[name] for name in names}
    arguments.update(
        path=params["path"],
        marker=params["marker"] or "",
        engine_config=params["engine_config"] or "",
        remember=not module.check_mode,
    )
    _weights_verify.check_arguments(arguments, params["manifest"] is not None)
    if params["manifest"] is None:
        return _weights_verify.without_manifest(arguments)
    if params["detach"] and not module.check_mode:
        arguments["path"] = os.path.abspath(arguments["path"])
        if params["job"] or _weights_verify.to_hash(arguments) >= _weights_verify.JOB_BYTES:
            return _weights_verify.followed(arguments, params["job"])
    return _weights_verify.verified(arguments)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "manifest": _manifest.OPTION,
            "format": {"type": "str", "choices": ["gguf", "safetensors"], "required": True},
            "deep": {"type": "bool", "default": False},
            "structure": {"type": "bool", "default": True},
            "needs": {
                "type": "list",
                "elements": "str",
                "choices": ["config", "tokenizer", "chat_template", "generation_config"],
                "default": ["config", "tokenizer", "chat_template", "generation_config"],
            },
            "quantization": {"type": "str", "choices": ["auto", "none", "ascend", "compressed-tensors", "fp8"], "default": "auto"},
            "engine_config": {"type": "path"},
            "read_only": {"type": "bool", "default": False},
            "marker": {"type": "path"},
            "fail_on_problem": {"type": "bool", "default": True},
            **_jobs.OPTIONS,
        },
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except _weights_verify.Pending as pending:
        state = pending.state
        job = {"nonce": state.nonce, "running": state.running, "mine": pending.mine, "who": state.who(), "progress": state.progress}
        module.exit_json(changed=False, job=job)
    except (LLMError, OSError) as exc:
        module.fail_json(msg=str(exc))
    complaint = result.pop("complaint")
    if complaint and module.params["fail_on_problem"]:
        module.fail_json(msg=complaint, **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
