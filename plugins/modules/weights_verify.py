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
    headers of the weight files (and their index) without reading tensor data.
  - A file that was verified before and still has its size, modification time and inode is not read again, so a second
    run takes milliseconds; O(deep=true) reads everything.
  - Good weights can still give wrong answers. Whether a model really infers is the business of a proof, not of this module.
options:
  path:
    description: Directory of the weights. It need not exist; then every file is missing.
    type: path
    required: true
  manifest:
    description: The files the directory must hold, and no others.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Path relative to O(path), without C(..) and not absolute.
        type: str
        required: true
      size:
        description: Size in bytes.
        type: int
        required: true
      sha256:
        description: SHA-256 digest, 64 hex digits.
        type: str
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
  read_only:
    description: Whether a file whose mode is not C(0444) is a problem.
    type: bool
    default: false
  marker:
    description:
      - File that remembers what was verified. It must lie outside O(path).
      - It is written only when everything is good. Without it every run hashes everything.
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
  description: Whether the directory holds exactly the bytes of the manifest.
  returned: always
  type: bool
structure_ok:
  description: Whether headers and indexes are sound; V(null) when O(structure=false).
  returned: always
  type: bool
manifest_id:
  description: Identity of the manifest, a SHA-256 over its canonical form, whatever the order of its entries.
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
free_bytes:
  description: Free space on the filesystem of O(path), in bytes.
  returned: always
  type: int
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _manifest, _weights
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def run(module: AnsibleModule) -> dict:
    """Verify, remember what was good, and return the result."""
    params = module.params
    path, marker = params["path"], params["marker"] or ""
    if marker and os.path.abspath(marker).startswith(os.path.abspath(path).rstrip("/") + "/"):
        raise LLMError("marker {0} lies inside {1}; put it outside the weights directory".format(marker, path))
    entries = _manifest.parse_manifest(params["manifest"])
    report = _weights.verify(path, entries, params["format"], marker, params["deep"], params["structure"], params["read_only"])
    if not module.check_mode:
        _weights.remember(path, marker, report)
    result = report.as_dict()
    if not report.ok and params["fail_on_problem"]:
        message = _weights.complaint(path, report, "Fetch the named files again from a source you trust, or correct the manifest.")
        module.fail_json(msg=message, **result)
    return result


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "manifest": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "str", "required": True},
                    "size": {"type": "int", "required": True},
                    "sha256": {"type": "str", "required": True},
                },
            },
            "format": {"type": "str", "choices": ["gguf", "safetensors"], "required": True},
            "deep": {"type": "bool", "default": False},
            "structure": {"type": "bool", "default": True},
            "read_only": {"type": "bool", "default": False},
            "marker": {"type": "path"},
            "fail_on_problem": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(changed=False, **run(module))
    except (LLMError, OSError) as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
