#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send verified weights along a chain of hosts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_fanout
short_description: Send verified weights from one host to many, along a chain
version_added: "0.1.0"
description:
  - One host holds verified weights. The others form a chain behind it; each takes pieces from the one before and gives them on as
    soon as they are verified, so the first host sends the bytes about once, however many hosts there are.
  - A play uses it in four steps. O(state=served) on the first host, O(state=joined) on all others, which returns at once,
    O(state=fetched) on all others, which waits, and O(state=ended) everywhere. M(ironserve.llm.weights_files) with a source of kind
    V(staged) then verifies what came and puts it in place.
  - The work of a host is a job of its own in C(<path>.job) (C(<path>.give.job) on the first host). It goes on when the controller goes
    away; a second run that wants the same joins it. Nothing stays behind, a job that nobody asks for anything ends by itself.
  - A host before that dies, lags or sends wrong bytes is passed by, and the one further up is asked. What is interrupted goes on where
    it was. Half files lie in C(<path>.job/pieces), whole ones in C(<path>.part).
extends_documentation_fragment:
  - ironserve.llm.weights.manifest
  - ironserve.llm.weights.job
  - ironserve.llm.attributes
options:
  path:
    description: Directory the weights are in (O(state=served)) or will live in. Nothing in it is touched.
    type: path
    required: true
  state:
    description:
      - V(served) cuts the weights into pieces, hashes them, and gives them to others.
      - V(joined) begins to take pieces and to give them on.
      - V(fetched) waits until everything is there.
      - V(ended) ends the giving.
    type: str
    choices: [served, joined, fetched, ended]
    required: true
  marker:
    description: File that remembers what was verified in O(path), see M(ironserve.llm.weights_verify).
    type: path
  role:
    description: Which job O(state=ended) ends, that of the first host or that of a host that takes.
    type: str
    choices: [giver, taker]
    default: taker
  address:
    description: Name or address by which the others reach this host; it is listened on there only. Needed for V(served) and V(joined).
    type: str
  port:
    description: TCP port to listen on. Needed for V(served) and V(joined).
    type: int
  peers:
    description: Addresses of the other hosts, to find the own one where a host takes its own name for 127.0.1.1.
    type: list
    elements: str
    default: []
  token:
    description: Secret of this run; who does not know it gets nothing. It goes through a pipe to the job. Needed for V(served) and V(joined).
    type: str
  sources:
    description: The hosts up the chain, the nearest first, the first host of all last. Needed for O(state=joined).
    type: list
    elements: dict
    suboptions:
      host:
        description: Name for messages.
        type: str
        required: true
      address:
        description: Name or address.
        type: str
        required: true
      port:
        description: TCP port.
        type: int
        required: true
  table:
    description: Digest of the table of pieces, as the first host returned it. Needed for V(joined) and V(fetched).
    type: str
  rate_mib:
    description: Most that this host sends, in MiB a second over all connections. V(0) is no cap.
    type: int
    default: 0
  idle_timeout:
    description: How long a job goes on giving when nobody asks, in seconds.
    type: int
    default: 300
  stall_timeout:
    description: Longest time in which no piece comes from anybody, in seconds. V(0) waits for ever.
    type: int
    default: 300
  patience:
    description: How long a host of O(sources) that never answered is waited for before the next one is asked, in seconds.
    type: int
    default: 20
  margin_mib:
    description: Space that must stay free on the filesystem, in MiB.
    type: int
    default: 512
  lock_timeout:
    description: Longest wait for another job in the same directory, in seconds.
    type: int
    default: 1800
attributes:
  check_mode:
    description: Starts nothing and asks nobody; with O(state=fetched) says what is missing, by names and sizes.
    support: full
  diff_mode:
    description: What came is in RV(fetched).
    support: none
seealso:
  - module: ironserve.llm.weights_files
  - module: ironserve.llm.weights_download
author:
  - ironserve.llm contributors (@ironserve)
"""

EXAMPLES = r"""
- name: Have the first host give
  ironserve.llm.weights_fanout:
    state: served
    path: /var/lib/ironserve/weights/qwen3-8b/bf16
    manifest: "{{ files }}"
    address: 192.0.2.11
    port: 8470
    token: "{{ token }}"
  delegate_to: node1
  register: given

- name: Have the next one take
  ironserve.llm.weights_fanout:
    state: joined
    path: /var/lib/ironserve/weights/qwen3-8b/bf16
    manifest: "{{ files }}"
    address: 192.0.2.12
    port: 8470
    token: "{{ token }}"
    table: "{{ given.table }}"
    sources:
      - {host: node1, address: 192.0.2.11, port: 8470}

- name: Wait until it has everything
  ironserve.llm.weights_fanout:
    state: fetched
    path: /var/lib/ironserve/weights/qwen3-8b/bf16
    manifest: "{{ files }}"
    table: "{{ given.table }}"
"""

RETURN = r"""
table:
  description: Digest of the table of pieces (empty in check mode).
  returned: when state is served
  type: str
fetched:
  description: Files that were taken from other hosts (in check mode those that are missing).
  returned: when state is fetched
  type: list
  elements: str
fetched_bytes:
  description: Bytes that came in this run.
  returned: when state is fetched
  type: int
resumed_bytes:
  description: Bytes of half files that an earlier run had left and that were right.
  returned: when state is fetched
  type: int
kept:
  description: Files that were good already.
  returned: when state is fetched
  type: list
  elements: str
given:
  description: Bytes by the host they came from.
  returned: when state is fetched
  type: dict
wrong:
  description: One line per wrong piece, with the host that sent it. They are shown as warnings.
  returned: when state is fetched
  type: list
  elements: str
notes:
  description: One line per host that was passed by because it lagged. They are shown as warnings.
  returned: when state is fetched
  type: list
  elements: str
sent_bytes:
  description: Bytes of files this host sent, 0 when no job was there.
  returned: when state is ended
  type: int
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
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _fanout, _hubs, _jobs, _manifest, _weights
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: How long a detached call waits, in seconds.
LINGER_S = 2.0
#: How long a job may take to end when it is told to, in seconds.
END_S = 20.0


def identity_of(params: dict, path: str, giver: bool) -> str:
    """What the work of a job is: two runs that want the same join one job, whatever their tokens are."""
    about = [path, _manifest.manifest_id(_manifest.parse_manifest(params["manifest"])), "" if giver else params["table"]]
    return hashlib.sha256(json.dumps(about).encode("utf-8")).hexdigest()


def started(params: dict, folder: str, identity: str, title: str, entry: str, arguments: dict) -> dict:
    """Have the job run and listen; returns what it said then. Raises Pending for the controller to wait with."""
    deadline = time.monotonic() + params["lock_timeout"]
    _manifest.make_folder(os.path.dirname(folder))
    while True:
        before = _jobs.look(folder, params["job"])
        if not params["job"] or before.nonce != params["job"]:
            before = _jobs.look(folder)
            state = _jobs.start(folder, identity, title, entry, arguments, params["token"])
            if state.nonce == before.nonce and state.running and state.identity == identity:
                _fanout.join(folder, params["token"])
        else:
            state = before
        mine, until = state.identity == identity, time.monotonic() + LINGER_S
        seen = _jobs.look(folder, state.nonce)
        while seen.running and seen.nonce == state.nonce and time.monotonic() < until:
            ready = _fanout.said(folder, "ready", state.nonce)
            if mine and ready:
                return ready["value"]
            time.sleep(0.02)
            seen = _jobs.look(folder, state.nonce)
        same = seen.nonce == state.nonce
        if mine and same and not seen.running:
            # It can only have failed before it listened, or be over already.
            _jobs.value_of(folder, seen)
            ready = _fanout.said(folder, "ready", state.nonce)
            if ready:
                return ready["value"]
        if params["detach"]:
            raise _jobs.Pending(seen, mine and same)
        if not mine and seen.running and time.monotonic() >= deadline:
            raise LLMError(
                "{0}: another job is at work there: {1}. Wait for its end, or end it (kill {2}), and run again".format(
                    folder, seen.who(), seen.pid
                )
            )


def common(params: dict, path: str) -> dict:
    """What both kinds of jobs are told."""
    return {
        "path": path,
        "files": params["manifest"],
        "marker": os.path.abspath(params["marker"]) if params["marker"] else "",
        "address": params["address"],
        "port": params["port"],
        "peers": params["peers"],
        "rate": params["rate_mib"] << 20,
        "idle_s": params["idle_timeout"],
    }


def served(module: AnsibleModule, path: str) -> dict:
    """The first host gives."""
    params = module.params
    if module.check_mode:
        return {"changed": False, "table": ""}
    title = "giving of {0}".format(path)
    ready = started(params, _fanout.giving_job_of(path), identity_of(params, path, True), title, "_fanout.give_job", common(params, path))
    return {"changed": False, "table": ready["table"]}


def joined(module: AnsibleModule, path: str) -> dict:
    """A host takes and gives on."""
    params = module.params
    if module.check_mode:
        return {"changed": False}
    arguments = dict(
        common(params, path),
        sources=params["sources"],
        table=params["table"],
        stall_s=params["stall_timeout"],
        patience_s=params["patience"],
        margin=params["margin_mib"] << 20,
    )
    title = "taking of {0}".format(path)
    started(params, _weights.job_of(path), identity_of(params, path, False), title, "_fanout.take_job", arguments)
    return {"changed": False}


def fetched(module: AnsibleModule, path: str) -> dict:
    """Wait until everything is there."""
    params, folder = module.params, _weights.job_of(path)
    entries = _manifest.parse_manifest(params["manifest"])
    if module.check_mode:
        missing = [entry.path for entry in entries if not any(_hubs.right_size(root, entry) for root in (path, path + ".part"))]
        kept = [entry.path for entry in entries if entry.path not in missing]
        return result_of({"fetched": missing, "kept": kept, "fetched_bytes": 0, "resumed_bytes": 0, "given": {}, "wrong": [], "notes": []})
    identity = identity_of(params, path, False)
    while True:
        state, until = _jobs.look(folder), time.monotonic() + LINGER_S
        nonce = state.nonce
        if state.identity != identity:
            marker = os.path.abspath(params["marker"]) if params["marker"] else ""
            known = _manifest.read_marker(marker, path, _manifest.manifest_id(entries))["files"] if marker else {}
            if not _manifest.unchanged(path, entries, known):
                raise LLMError("{0}: no job takes these weights there (any more). Run again, what came so far is kept".format(folder))
            # Another run had the same weights put in place and took the job away.
            kept = [entry.path for entry in entries]
            return result_of({"fetched": [], "kept": kept, "fetched_bytes": 0, "resumed_bytes": 0, "given": {}, "wrong": [], "notes": []})
        while state.running and state.nonce == nonce and time.monotonic() < until:
            done = _fanout.said(folder, "fetched", nonce)
            if done:
                return result_of(done["value"])
            time.sleep(0.05)
            state = _jobs.look(folder)
        if not state.running and state.nonce == nonce:
            return result_of(_jobs.value_of(folder, state))
        if params["detach"]:
            raise _jobs.Pending(state, True)


def result_of(value: dict) -> dict:
    """The result of a host that has everything."""
    names = ("fetched", "kept", "fetched_bytes", "resumed_bytes", "given", "wrong", "notes")
    return dict({name: value[name] for name in names}, changed=bool(value["fetched"]))


def ended(module: AnsibleModule, path: str) -> dict:
    """The giving is over."""
    giver = module.params["role"] == "giver"
    folder = _fanout.giving_job_of(path) if giver else _weights.job_of(path)
    state = _jobs.look(folder)
    if module.check_mode or not state.nonce:
        return {"changed": False, "sent_bytes": 0}
    if state.running and (giver or _fanout.said(folder, "ready", state.nonce)):
        _fanout.say(folder, "stop", state.nonce)
        state = _jobs.wait(folder, state.nonce, END_S)
        if state.running:
            raise LLMError("{0}: it does not end: {1}. End it (kill {2})".format(folder, state.who(), state.pid))
    value = state.result.get("value") if state.result.get("ok") else None
    if giver and not state.running:
        _weights.forget_job(folder)
    return {"changed": False, "sent_bytes": value.get("sent_bytes", 0) if isinstance(value, dict) else 0}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["served", "joined", "fetched", "ended"], "required": True},
            "manifest": _manifest.OPTION,
            "marker": {"type": "path"},
            "role": {"type": "str", "choices": ["giver", "taker"], "default": "taker"},
            "address": {"type": "str"},
            "port": {"type": "int"},
            "peers": {"type": "list", "elements": "str", "default": []},
            "token": {"type": "str", "no_log": True},
            "sources": {
                "type": "list",
                "elements": "dict",
                "options": {
                    "host": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "port": {"type": "int", "required": True},
                },
            },
            "table": {"type": "str"},
            "rate_mib": {"type": "int", "default": 0},
            "idle_timeout": {"type": "int", "default": 300},
            "stall_timeout": {"type": "int", "default": 300},
            "patience": {"type": "int", "default": 20},
            "margin_mib": {"type": "int", "default": 512},
            "lock_timeout": {"type": "int", "default": 1800},
            **_jobs.OPTIONS,
        },
        required_if=[
            ("state", "served", ["manifest", "address", "port", "token"]),
            ("state", "joined", ["manifest", "address", "port", "token", "sources", "table"]),
            ("state", "fetched", ["manifest", "table"]),
        ],
        supports_check_mode=True,
    )
    begin = time.monotonic()
    path = os.path.abspath(module.params["path"])
    act = {"served": served, "joined": joined, "fetched": fetched, "ended": ended}[module.params["state"]]
    try:
        result = act(module, path)
        for line in result.get("wrong", []) + result.get("notes", []):
            module.warn(line)
        module.exit_json(**dict(result, seconds=round(time.monotonic() - begin, 3)))
    except _jobs.Pending as pending:
        module.exit_json(changed=False, job=pending.as_dict())
    except (LLMError, OSError) as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
