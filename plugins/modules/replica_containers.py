#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: replica_containers
short_description: Bring the containers of a host's replicas to a state, in one call
version_added: "0.1.0"
description:
  - Creates, starts, replaces, takes back and removes the containers of all replicas of a host, side by side.
  - A replaced container is stopped and kept under the name C(<name>-previous) until it is committed or reverted, so that a change
    whose proof fails is undone without building anything anew.
  - Drains nothing. Take a replica out of the gateway first.
  - An optional mount is left out where the host lacks its source.
  - After a container was stopped, its cards are waited for until they have let go of its memory, and only then the next one starts on them.
author:
  - ironserve.llm contributors (@ironserve)
requirements:
  - docker >= 5.0.3 (Python library)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  specs:
    description: Container specifications, the C(spec) of each replica of the plan.
    type: list
    elements: dict
    required: true
  state:
    description:
      - V(present) makes each container run with its specification. One that carries its hash and was changed all the same, or was made
        otherwise, is made anew.
      - V(reverted) brings back what a container replaced; one that replaced nothing is stopped and kept for its logs,
        and one that was not replaced yet runs on.
      - V(committed) removes what was replaced.
      - V(stopped) stops the containers and keeps them for their logs.
      - V(absent) removes the containers, and the network if nothing else is on it.
    type: str
    choices: [present, absent, reverted, committed, stopped]
    default: present
  cache_dir:
    description: Directory that holds the replicas' cache directories; only directories below it are made.
    type: path
    required: true
  neighbours:
    description:
      - The other names of the inventory. A machine that runs several models stands in it under several names, and what belongs to one of
        them is no orphan of this one.
      - V(present) refuses a card that a replica of one of them has on this machine, running or not.
    type: list
    elements: str
    default: []
  card_tools:
    description:
      - How the cards are read, to see that they are free. Without it, and on platform C(cpu), nothing is waited for.
    type: dict
    default: {}
    suboptions:
      probe:
        description: Name of the collection's probe, V(ascend), V(hygon) or V(nvidia).
        type: str
        default: ""
      tools:
        description: The vendor's tools with the paths where each may lie, as in the platform's entry of the catalog.
        type: dict
        default: {}
      environment:
        description: Variables every call of a tool gets.
        type: dict
        default: {}
      timeout_s:
        description: Seconds after which a call of a tool counts as hung.
        type: float
        default: 30
      root:
        description: Directory that stands for the host's root, to read a host that is played.
        type: path
        default: /
      sysfs:
        description: Directory that stands for the host's /sys. Empty takes C(sys) under O(card_tools.root).
        type: path
        default: ""
  idle_mib:
    description: Device memory in MiB that a card shows when nothing runs on it, at most.
    type: int
    default: 0
  free_timeout_s:
    description:
      - Longest wait in seconds for cards to be free, V(0) for no wait. With V(present) one that is not free after that is an error; what is
        brought back with V(reverted) is started all the same.
    type: float
    default: 0
  socket:
    description: The container engine's socket.
    type: path
    default: /var/run/docker.sock
"""

EXAMPLES = r"""
---
- name: Run the planned replicas
  ironserve.llm.replica_containers:
    specs: "{{ replica_out.plan.replicas | map(attribute='spec') }}"
    cache_dir: /var/lib/ironserve/cache
"""

RETURN = r"""
actions:
  description:
    - One entry for each container, with C(name), C(action) (keep, create, start, replace, remove, revert,
        untouched, stop or commit) and C(reason).
  returned: success
  type: list
  elements: dict
orphans:
  description: Names of containers of this collection's replicas that are in no specification and belong to no neighbour.
  returned: success
  type: list
  elements: str
orphan_replicas:
  description: Names of the replicas that these containers are, which is what the gateway calls them.
  returned: success
  type: list
  elements: str
predecessors:
  description:
    - Names of containers that still have a predecessor beside them. Their last change was neither committed nor reverted.
  returned: success
  type: list
  elements: str
"""

import concurrent.futures
import json
import os
import shutil
import socket
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import (
    _card_wait,
    _container_request,
    _containers,
    _docker,
    _machines,
    _ports,
)
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def busy_port(client: Any, address: str, port: int) -> str:
    """Say who holds a port that cannot be bound, or nothing when it is free."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            return ""
        except OSError as exc:
            reason = "{0}:{1} cannot be bound: {2}".format(address, port, exc.strerror or exc)
    listeners = [item for item in _ports.read_listeners() if item.port == port]
    if not listeners:
        return reason
    owners = _ports.socket_owners({item.inode for item in listeners})
    return _ports.describe(_ports.port_report([port], listeners, owners, _ports.container_ports(client.containers()), [])[0])


def refuse_busy_port(client: Any, spec: dict[str, Any]) -> None:
    """Raise LLMError, naming the holder, when the replica's port cannot be bound."""
    held = busy_port(client, spec["publish"]["address"], spec["publish"]["port"])
    if held:
        raise LLMError("{0}. Free the port, or choose others with replica_port_base".format(held))


def holds_port(inspected: dict[str, Any] | None, port: int) -> bool:
    """Whether a container publishes the host's ``port``."""
    bindings = (inspected or {}).get("HostConfig", {}).get("PortBindings") or {}
    return any(item["HostPort"] == str(port) for items in bindings.values() for item in items or [])


def cache_dirs(spec: dict[str, Any], below: str) -> list[tuple[str, int]]:
    """The private cache directories of one replica with their owners: ``<below>/<replica>/<image>``."""
    found = []
    for mount in spec["mounts"]:
        if mount.get("owner") is None:
            continue
        path = os.path.abspath(mount["source"])
        if os.path.dirname(os.path.dirname(path)) != os.path.abspath(below):
            raise LLMError("cache directory {0} is not <replica>/<image> below {1}".format(path, below))
        found.append((path, int(mount["owner"])))
    return found


def make_cache_dirs(spec: dict[str, Any], below: str) -> None:
    """Make the private cache directories of one replica; a compile cache can carry code, so nobody else may write there."""
    for path, owner in cache_dirs(spec, below):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.chmod(os.path.dirname(path), 0o700)
        os.makedirs(path, mode=0o700, exist_ok=True)
        os.chmod(path, 0o700)
        os.chown(path, owner, owner)


def drop_old_caches(spec: dict[str, Any], below: str) -> None:
    """Remove what other images than the present one cached for a replica: nothing runs any more that would use it."""
    for path, _owner in cache_dirs(spec, below):
        with os.scandir(os.path.dirname(path)) as entries:
            for entry in entries:
                if entry.name == os.path.basename(path):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)


def cards_of(spec: dict[str, Any]) -> list[str]:
    """The cards of a replica, as its label names them."""
    return [card for card in spec.get("labels", {}).get("ironserve.cards", "").split(",") if card]


def apply(client: Any, spec: dict[str, Any], action: str, cache_dir: str, freedom: _card_wait.Freedom) -> None:
    """Do one decided action. Each leaves a state from which a repeated run goes on."""
    name, previous = spec["name"], spec["name"] + _containers.PREVIOUS_SUFFIX
    grace = int(spec["stop_timeout_s"])
    if action in (_containers.CREATE, _containers.REPLACE):
        make_cache_dirs(spec, cache_dir)
        predecessor = _docker.inspect(client, previous)
        # A port that somebody else holds must be known before anything is stopped.
        if not any(holds_port(item, spec["publish"]["port"]) for item in (_docker.inspect(client, name), predecessor)):
            refuse_busy_port(client, spec)
        if predecessor:
            # It runs when a revert was interrupted.
            _docker.stop(client, previous, grace)
        if action == _containers.REPLACE:
            _docker.stop(client, name, grace)
            # With a predecessor at hand the present container was never proven, and the predecessor was.
            if predecessor:
                _docker.remove(client, name)
            else:
                client.rename(name, previous)
        refuse_busy_port(client, spec)
        if predecessor or action == _containers.REPLACE:
            # After the renaming: what was replaced is known by its name, and comes back when this fails.
            freedom.demand(cards_of(spec))
        _docker.create(client, spec)
    elif action == _containers.START:
        client.start(name)
    elif action == _containers.STOP:
        _docker.stop(client, name, grace)
    elif action == _containers.REVERT:
        if _docker.inspect(client, name):
            _docker.stop(client, name, grace)
            _docker.remove(client, name)
            # The way back is tried in any case; its proof tells.
            freedom.wait(cards_of(spec))
        # Renamed last: until then a repeated run knows that something is to come back.
        client.start(previous)
        client.rename(previous, name)
    elif action == _containers.COMMIT:
        _docker.remove(client, previous)
        drop_old_caches(spec, cache_dir)
    elif action == _containers.REMOVE:
        if _docker.inspect(client, name):
            _docker.stop(client, name, grace)
        _docker.remove(client, name)
        _docker.remove(client, previous)


def run(params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Decide for every container, then act on those that need it, side by side."""
    state = params["state"]
    if params["free_timeout_s"] < 0 or params["idle_mib"] < 0:
        raise LLMError("free_timeout_s and idle_mib must be 0 or more")
    freedom = _card_wait.Freedom(params["card_tools"], params["idle_mib"], params["free_timeout_s"])
    # A predecessor named on its own, as an orphan is, goes with its successor: two jobs must not remove one container.
    successors = {spec["name"] + _containers.PREVIOUS_SUFFIX for spec in params["specs"]}
    specs = [spec for spec in params["specs"] if spec["name"] not in successors]
    if state in ("present", "reverted"):
        specs = [_container_request.for_host(spec, os.path.exists) for spec in specs]
    try:
        client = _docker.connect(params["socket"])
    except _docker.EngineAbsent:
        # A dry run on a virgin host, and removal where nothing can be, need no engine.
        if not (check_mode or state == "absent"):
            raise
        client = None
    decisions, predecessors = [], []
    for spec in specs:
        current = _docker.inspect(client, spec["name"]) if client else None
        previous = _docker.inspect(client, spec["name"] + _containers.PREVIOUS_SUFFIX) if client else None
        decisions.append(_containers.decide(state, spec, current, previous))
        predecessors += [spec["name"]] if previous else []
    acting = [(spec, choice.action) for spec, choice in zip(specs, decisions) if choice.action not in _containers.IDLE]
    names = {spec["name"] for spec in specs}
    ours = names | {name + _containers.PREVIOUS_SUFFIX for name in names}
    replicas, neighbours = _docker.replicas(client) if client else [], params["neighbours"]
    orphans = [item for item in replicas if item["name"] not in ours and _machines.owner(item["labels"]) not in neighbours]
    if client and state == "present":
        held = _machines.held_cards(specs, replicas, neighbours) if neighbours else []
        if held:
            raise LLMError("; ".join(held))
        starting = [spec for spec, action in acting]
        others = [item for item in _docker.running_containers(client) if item["Name"].lstrip("/") not in ours]
        conflicts = _containers.device_conflicts(starting, others)
        if conflicts:
            raise LLMError("; ".join(conflicts) + ". Stop that container, or leave the card out")
    if client and not check_mode:
        if state == "present" and acting:
            _docker.ensure_network(client, specs[0]["network"])
        with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, len(acting))) as pool:
            jobs = {
                pool.submit(apply, _docker.connect(params["socket"]), spec, action, params["cache_dir"], freedom): spec["name"]
                for spec, action in acting
            }
        errors = ["{0}: {1}".format(name, job.exception()) for job, name in jobs.items() if job.exception()]
        if errors:
            raise LLMError("; ".join(errors))
        if state == "absent":
            for network in sorted({spec["network"] for spec in specs}):
                _docker.remove_network(client, network)
    return {
        "changed": bool(acting),
        "actions": [{"name": item.name, "action": item.action, "reason": item.reason} for item in decisions],
        "orphans": [item["name"] for item in orphans],
        "orphan_replicas": sorted({item["labels"][_machines.REPLICA_LABEL] for item in orphans}),
        "predecessors": predecessors,
        "diff": [
            {
                "before_header": item.name,
                "after_header": item.name,
                "before": json.dumps(item.before, indent=2, sort_keys=True) + "\n",
                "after": json.dumps(item.after, indent=2, sort_keys=True) + "\n",
            }
            for item in decisions
            if item.action not in _containers.IDLE
        ],
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "specs": {"type": "list", "elements": "dict", "required": True},
            "state": {"type": "str", "choices": ["present", "absent", "reverted", "committed", "stopped"], "default": "present"},
            "cache_dir": {"type": "path", "required": True},
            "neighbours": {"type": "list", "elements": "str", "default": []},
            "card_tools": {
                "type": "dict",
                "default": {},
                "options": {
                    "probe": {"type": "str", "default": ""},
                    "tools": {"type": "dict", "default": {}},
                    "environment": {"type": "dict", "default": {}},
                    "timeout_s": {"type": "float", "default": 30},
                    "root": {"type": "path", "default": "/"},
                    "sysfs": {"type": "path", "default": ""},
                },
            },
            "idle_mib": {"type": "int", "default": 0},
            "free_timeout_s": {"type": "float", "default": 0},
            "socket": {"type": "path", "default": "/var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module.params, module.check_mode)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    except _docker.ENGINE_ERRORS as exc:
        module.fail_json(msg="the container engine refused: {0}".format(exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
