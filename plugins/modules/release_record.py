#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: release_record
short_description: Keep what was accepted as a release
version_added: "0.1.0"
description:
  - Writes a release record to C(<id>.json) in a directory, and lets C(current.json) there point to it.
  - A record that is there is never written again. It keeps the proof it was first accepted on.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    description: Can run in check mode. Says what would change and writes nothing.
    support: full
  diff_mode:
    description: Shows which record is the current one, before and after.
    support: full
options:
  directory:
    description: Directory of the records. It is made (V(0755)) where it is not there; one that is there keeps its permissions.
    type: path
    required: true
  record:
    description: What was accepted. C(id) names it, in letters, digits, dots, dashes and underscores.
    type: dict
    required: true
  proof:
    description: What M(ironserve.llm.inference_verify) returned as C(results), for all endpoints.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
---
- name: Record the release
  ironserve.llm.release_record:
    directory: /var/lib/ironserve/releases
    record: {id: 5f0e2b7c90d1a344, model: demo, platform: cpu, replicas: []}
    proof: "{{ proof.results }}"
"""

RETURN = r"""
path:
  description: File of the record.
  returned: success
  type: str
written:
  description: Whether the record is new.
  returned: success
  type: bool
previous:
  description: Id of the release that was the current one before; empty where none was.
  returned: success
  type: str
"""

import json
import os
import re

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _files
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def current_of(directory: str) -> str:
    """Id of the current release; empty where there is none. Raises LLMError for something else in its place."""
    link = os.path.join(directory, "current.json")
    if not os.path.lexists(link):
        return ""
    if not os.path.islink(link):
        raise LLMError("{0} is no link to a record. Move it away, then run again".format(link))
    return os.path.basename(os.readlink(link))[: -len(".json")]


def point(directory: str, name: str) -> None:
    """Let ``current.json`` point to the record of this name in one step. Raises LLMError."""
    link = os.path.join(directory, "current.json")
    partial = "{0}.{1}".format(link, os.getpid())
    try:
        os.symlink(name + ".json", partial)
        os.replace(partial, link)
    except OSError as exc:
        if os.path.islink(partial):
            os.unlink(partial)
        raise LLMError("{0} cannot be written: {1}".format(link, exc.strerror or exc)) from exc


def run(params: dict, dry: bool) -> dict:
    """Write what is missing. Raises LLMError."""
    directory, name = params["directory"], str(params["record"].get("id", ""))
    if not re.match(r"^[A-Za-z0-9_][A-Za-z0-9._-]*\Z", name) or name == "current":
        raise LLMError("record.id is {0!r}; it names a file, so it has to be letters, digits, dots, dashes and underscores".format(name))
    path = os.path.join(directory, name + ".json")
    previous, writing = current_of(directory), not os.path.exists(path)
    if not dry:
        if writing:
            text = json.dumps(dict(params["record"], proof=params["proof"]), indent=4, sort_keys=True, ensure_ascii=True) + "\n"
            _files.put(path, text, _files.PUBLIC, 0o755)
        if previous != name:
            point(directory, name)
    return {
        "changed": writing or previous != name,
        "path": path,
        "written": writing,
        "previous": previous,
        "diff": {"before": "current: {0}\n".format(previous or "none"), "after": "current: {0}\n".format(name)},
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "record": {"type": "dict", "required": True},
            "proof": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module.params, module.check_mode)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
