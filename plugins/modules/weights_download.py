#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Download model weights from a hub or a mirror."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_download
short_description: Download model weights from ModelScope, Hugging Face or a mirror
version_added: "0.1.0"
description:
  - Takes the list of files of a revision, with a SHA-256 for each, or downloads what is missing of such a list into
    C(<path>.part). M(ironserve.llm.weights_files) with a source of kind V(staged) then puts it in place.
  - Runs on the download host only. The hubs' own client libraries speak the protocols; they have to be there for O(python) or in
    O(container_image).
  - The work is a job of its own in C(<path>.job). It goes on when the controller goes away, and a second run that wants the same
    waits for it instead of starting another. Meanwhile the file, per cent, rate and time left are shown.
  - Every file is hashed from disk before it counts, whatever the client library said. What is interrupted goes on where it was.
  - Tokens that the environment holds (C(HF_TOKEN), C(MODELSCOPE_API_TOKEN)) and stored logins are not used, only O(token_file) and
    O(token). Endpoints, proxies and C(HF_HUB_OFFLINE) of the environment are honoured.
extends_documentation_fragment:
  - ironserve.llm.weights.manifest
  - ironserve.llm.weights.job
  - ironserve.llm.attributes
options:
  path:
    description: Directory the weights will live in. Nothing in it is touched.
    type: path
    required: true
  state:
    description:
      - V(listed) returns the files of a revision, from O(manifest_file) when it is about this source, else from the hub.
      - V(fetched) downloads what is neither in O(path) nor in C(<path>.part) yet.
    type: str
    choices: [listed, fetched]
    default: fetched
  source:
    description: Where the weights come from.
    type: dict
    required: true
    suboptions:
      kind:
        description: V(http) is any mirror that gives C(<url>/<path of the file>) and knows ranges; it has no list of files.
        type: str
        choices: [modelscope, huggingface, http]
        required: true
      repo:
        description: Repository, C(owner/name).
        type: str
      revision:
        description: Branch, tag or commit. Default is the hub's default branch, V(master) or V(main).
        type: str
      commit:
        description: Commit that the list of files was taken from, see RV(source). Hugging Face is asked for this one.
        type: str
      url:
        description: Address of the mirror.
        type: str
      endpoint:
        description: Address of the hub. Default is what the environment says (C(HF_ENDPOINT), C(MODELSCOPE_ENDPOINT)), else the public one.
        type: str
      include:
        description: Patterns of which a path must match one; C(*) matches C(/) as well. Empty takes all.
        type: list
        elements: str
        default: []
      exclude:
        description: Patterns of which a path must match none. C(.gitattributes) and C(.gitignore) never come.
        type: list
        elements: str
        default: []
  manifest_file:
    description: File that keeps the list, so that a moving branch does not change it. Needed for O(state=listed).
    type: path
  refresh:
    description: Whether to ask the hub again although O(manifest_file) is there.
    type: bool
    default: false
  marker:
    description: File that remembers what was verified in O(path), see M(ironserve.llm.weights_verify).
    type: path
  token_file:
    description: File of mode 0600 on the download host with the token for the hub.
    type: path
  token:
    description: The token itself, out of a vault. It goes through a pipe to the job and is written nowhere.
    type: str
  offline:
    description: Whether the network must not be used. C(HF_HUB_OFFLINE) and C(TRANSFORMERS_OFFLINE) of the environment say the same.
    type: bool
    default: false
  python:
    description: Python interpreter that has the client library. Default is the one that runs the module.
    type: path
  container_image:
    description: Engine image whose C(python3) has the client library; the job then runs in a container of it.
    type: str
  workers:
    description: Files that are downloaded side by side.
    type: int
    default: 4
  retries:
    description: How often one file is tried again without a single byte more, when the hub is out of order or the connection is cut.
    type: int
    default: 5
  stall_timeout:
    description: Longest time in which no byte comes at all, in seconds. V(0) waits for ever.
    type: int
    default: 300
  margin_mib:
    description: Space that must stay free on the filesystem, in MiB.
    type: int
    default: 512
  lock_timeout:
    description: Longest wait for another download into the same directory, in seconds.
    type: int
    default: 1800
attributes:
  check_mode:
    description: With O(state=listed) asks the hub and writes nothing; with O(state=fetched) asks nobody and says what is missing.
    support: full
  diff_mode:
    description: What is downloaded is in RV(fetched).
    support: none
seealso:
  - module: ironserve.llm.weights_files
  - module: ironserve.llm.weights_verify
author:
  - ironserve.llm contributors (@ironserve)
"""

EXAMPLES = r"""
- name: Know which files the revision has
  ironserve.llm.weights_download:
    path: /srv/cache/qwen3-8b
    state: listed
    manifest_file: /srv/cache/.manifests/qwen3-8b.json
    source: {kind: modelscope, repo: Qwen/Qwen3-8B, revision: master}
  delegate_to: localhost
  register: listed

- name: Download them
  ironserve.llm.weights_download:
    path: /srv/cache/qwen3-8b
    source: "{{ listed.source }}"
    manifest: "{{ listed.files }}"
    token_file: ~/.config/modelscope.token
  delegate_to: localhost
"""

RETURN = r"""
files:
  description: The files of the revision.
  returned: when state is listed
  type: list
  elements: dict
  contains:
    path:
      description: Path of the file.
      type: str
    size:
      description: Size in bytes.
      type: int
    sha256:
      description: SHA-256 digest.
      type: str
computed:
  description: Files whose digest the hub does not tell; it was taken from their first download.
  returned: when state is listed
  type: list
  elements: str
manifest_id:
  description: Identity of the list, see M(ironserve.llm.weights_verify).
  returned: always
  type: str
source:
  description: The source, with the commit the list was taken from (empty when the hub does not say).
  returned: always
  type: dict
fetched:
  description: Files that were downloaded (in check mode those that are missing).
  returned: when state is fetched
  type: list
  elements: str
fetched_bytes:
  description: Their size, in bytes.
  returned: when state is fetched
  type: int
kept:
  description: Files that were good already.
  returned: when state is fetched
  type: list
  elements: str
seconds:
  description: Time taken, in seconds.
  returned: always
  type: float
job:
  description: The job, while it works.
  returned: with detach only
  type: dict
"""

import hashlib
import json
import os
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _hubs, _jobs, _manifest
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: How long a detached call waits for the end, in seconds: short work then needs one call only.
LINGER_S = 2.0


def source_of(params: dict) -> dict:
    """The source as the library wants it: what was given, and nothing else."""
    return {name: value for name, value in params["source"].items() if value not in (None, [], "")}


def work(params: dict, folder: str, entry: str, arguments: dict) -> dict:
    """Have a job done in ``folder``, and return its value. Raises Pending for the controller to wait with."""
    token = params["token"] or _hubs.read_token(params["token_file"])
    scratch = os.path.join(folder, "scratch")
    source = dict(arguments["source"], tries=params["retries"])
    arguments = dict(
        arguments,
        source=source,
        scratch=scratch,
        staging=arguments["path"] + ".part",
        workers=params["workers"],
        stall_s=params["stall_timeout"],
    )
    identity = hashlib.sha256(json.dumps([entry, arguments], sort_keys=True).encode("utf-8")).hexdigest()
    environment = _hubs.environment_for(dict(os.environ), scratch, params["retries"])
    command = [params["python"]] if params["python"] else None
    if params["container_image"]:
        user = "{0}:{1}".format(os.geteuid(), os.getegid())
        command = _hubs.container_command(params["container_image"], os.path.dirname(folder), environment, user)
    title = "{0} of {1}".format("download" if entry == "_hubs.fetch_job" else "file list", _hubs.name_of(source))
    deadline = time.monotonic() + params["lock_timeout"]
    _manifest.make_folder(os.path.dirname(folder))
    while True:
        state = _jobs.look(folder, params["job"])
        if not params["job"] or state.nonce != params["job"]:
            state = _jobs.start(folder, identity, title, entry, arguments, token, command, environment)
        mine = state.identity == identity
        seen = _jobs.wait(folder, state.nonce, float("inf") if mine and not params["detach"] else LINGER_S)
        # Another run may have started over before the end was seen here; that job is then the one to wait for.
        same = seen.nonce == state.nonce
        if mine and same and not seen.running:
            return _jobs.value_of(folder, seen)
        if params["detach"]:
            raise _jobs.Pending(seen, mine and same)
        if not mine and seen.running and time.monotonic() >= deadline:
            raise LLMError(
                "{0}: another download is at work there: {1}. Wait for its end, or end it (kill {2}), and run again".format(
                    folder, seen.who(), seen.pid
                )
            )


def refuse_offline(params: dict, what: str) -> None:
    """Raise LLMError when the network must not be used."""
    by = "offline=true" if params["offline"] else _hubs.offline_by(dict(os.environ))
    if by:
        raise LLMError(
            "{0}: {1}, and {2} forbids the network. Bring the files to this place by hand, or run once without it".format(
                params["path"], what, by
            )
        )


def listed(module: AnsibleModule, path: str) -> dict:
    """The files of a revision: what was stored about it, else what the hub says now."""
    params, source = module.params, source_of(module.params)
    stored = os.path.abspath(params["manifest_file"])
    document = _manifest.read_document(stored)
    if not document or not _hubs.same_source(document, source) or params["refresh"]:
        refuse_offline(params, "the file list of {0} is not known yet".format(_hubs.name_of(source)))
        if module.check_mode:
            with tempfile.TemporaryDirectory() as folder:
                target = os.path.join(folder, "weights")
                params["detach"] = False
                found = work(params, target + ".job", "_hubs.list_job", {"source": source, "path": target})
        else:
            found = work(params, path + ".job", "_hubs.list_job", {"source": source, "path": path})
        fresh = _manifest.document(_manifest.parse_manifest(found["files"]), _hubs.about(source, found["commit"]), found["computed"])
        changed = not _manifest.same_document(document, fresh)
        if changed and not module.check_mode:
            _manifest.write_document(stored, fresh)
        document = fresh if changed else document
    else:
        changed = False
    return {
        "changed": changed,
        "files": [{name: item[name] for name in ("path", "size", "sha256")} for item in document["files"]],
        "computed": [item["path"] for item in document["files"] if item["origin"] == "computed"],
        "manifest_id": document["manifest_id"],
        "source": dict(source, commit=document["source"].get("commit", "")),
    }


def fetched(module: AnsibleModule, path: str) -> dict:
    """What is missing of a manifest, downloaded."""
    params, source = module.params, source_of(module.params)
    entries = _manifest.parse_manifest(params["manifest"])
    identity = _manifest.manifest_id(entries)
    marker = os.path.abspath(params["marker"]) if params["marker"] else ""
    remembered = _manifest.read_marker(marker, path, identity)["files"] if marker else {}
    if _manifest.unchanged(path, entries, remembered):
        value = {"fetched": [], "kept": [entry.path for entry in entries]}
    elif module.check_mode or params["offline"] or _hubs.offline_by(dict(os.environ)):
        missing = [entry.path for entry in entries if not any(_hubs.right_size(root, entry) for root in (path, path + ".part"))]
        if missing and not module.check_mode:
            refuse_offline(params, "{0} of {1} files are missing: {2}".format(len(missing), len(entries), ", ".join(missing[:5])))
        value = {"fetched": missing, "kept": [entry.path for entry in entries if entry.path not in missing]}
    else:
        arguments = {"source": source, "path": path, "marker": marker, "files": params["manifest"], "margin": params["margin_mib"] << 20}
        value = work(params, path + ".job", "_hubs.fetch_job", arguments)
    names = set(value["fetched"])
    return {
        "changed": bool(names),
        "manifest_id": identity,
        "source": _hubs.public(source),
        "fetched": value["fetched"],
        "fetched_bytes": sum(entry.size for entry in entries if entry.path in names),
        "kept": value["kept"],
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["listed", "fetched"], "default": "fetched"},
            "source": {
                "type": "dict",
                "required": True,
                "options": {
                    "kind": {"type": "str", "choices": ["modelscope", "huggingface", "http"], "required": True},
                    "repo": {"type": "str"},
                    "revision": {"type": "str"},
                    "commit": {"type": "str"},
                    "url": {"type": "str"},
                    "endpoint": {"type": "str"},
                    "include": {"type": "list", "elements": "str", "default": []},
                    "exclude": {"type": "list", "elements": "str", "default": []},
                },
                "required_if": [
                    ("kind", "modelscope", ["repo"]),
                    ("kind", "huggingface", ["repo"]),
                    ("kind", "http", ["url"]),
                ],
            },
            "manifest": _manifest.OPTION,
            "manifest_file": {"type": "path"},
            "refresh": {"type": "bool", "default": False},
            "marker": {"type": "path"},
            "token_file": {"type": "path", "no_log": False},
            "token": {"type": "str", "no_log": True},
            "offline": {"type": "bool", "default": False},
            "python": {"type": "path"},
            "container_image": {"type": "str"},
            "workers": {"type": "int", "default": 4},
            "retries": {"type": "int", "default": 5},
            "stall_timeout": {"type": "int", "default": 300},
            "margin_mib": {"type": "int", "default": 512},
            "lock_timeout": {"type": "int", "default": 1800},
            **_jobs.OPTIONS,
        },
        required_if=[("state", "listed", ["manifest_file"]), ("state", "fetched", ["manifest"])],
        mutually_exclusive=[("token", "token_file"), ("python", "container_image")],
        supports_check_mode=True,
    )
    begin = time.monotonic()
    path = os.path.abspath(module.params["path"])
    act = listed if module.params["state"] == "listed" else fetched
    try:
        module.exit_json(**dict(act(module, path), seconds=round(time.monotonic() - begin, 3)))
    except _jobs.Pending as pending:
        module.exit_json(changed=False, job=pending.as_dict())
    except (LLMError, OSError) as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
