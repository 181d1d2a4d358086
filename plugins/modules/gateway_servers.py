#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_servers
short_description: Drain replicas out of the running gateway and let them back in
version_added: "0.1.0"
description:
  - Sets the administrative state of servers through HAProxy's runtime socket. Nothing is reloaded and no open request is cut.
  - A drain is maintenance at once, in which open requests go on, and then waits for these at most O(wait_s) seconds and reports how
    many are still open. It never waits longer. HAProxy's own drain state is not used, because a server in it goes on getting the
    requests whose prefix it has in its cache.
  - Where the gateway is nginx, which has no such socket, the file is changed and nginx reloaded, which cuts no open request either. It is
    over when no worker from before takes requests any more. Open requests are counted by the connections of all its workers.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    support: full
    description: Does not wait.
  diff_mode:
    support: full
    description: Shows the states before and after.
options:
  socket:
    description: The gateway's runtime socket.
    type: path
    default: /run/ironserve/gateway.sock
  master_socket:
    description:
      - The socket of HAProxy's master process. Through it, requests are counted too that a worker from before a reload still serves.
      - Ignored when it does not exist.
    type: path
    default: /run/ironserve/gateway-master.sock
  config:
    description:
      - The gateway's configuration file. What leaves rotation is marked C(disabled) there first, and what comes back is unmarked
        after it is in, so that a gateway that restarts meanwhile lets nothing in that is out.
      - Ignored when it does not exist, unless a C(nginx.conf) is beside it. Then the gateway is nginx, and that is its file.
    type: path
    default: /etc/ironserve/gateway/haproxy.cfg
  backend:
    description: The backend of the servers. Those of its models, C(<backend>.<model>), belong to it.
    type: str
    default: ironserve_replicas
  servers:
    description: The servers and the state each of them is to have.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The name of the server.
        type: str
        required: true
      state:
        description:
          - V(ready) lets new requests in.
          - V(maint) lets no new request in, at once. Open streams go on.
          - V(drain) lets no new request in, waits for the open ones, and rests in maintenance.
        type: str
        choices: [ready, drain, maint]
        required: true
  wait_s:
    description: How long drains may wait for open requests, in seconds, all servers together.
    type: float
    default: 600
  missing:
    description:
      - What to do about a gateway that does not run and about servers it does not know.
      - V(ignore) passes over them. A replica that is no server yet takes no traffic.
    type: str
    choices: [fail, ignore]
    default: fail
"""

EXAMPLES = r"""
- name: Take a replica out before its container is replaced
  ironserve.llm.gateway_servers:
    servers:
      - name: node1-c0
        state: drain
    wait_s: 600

- name: Let it back in after its proof
  ironserve.llm.gateway_servers:
    servers:
      - name: node1-c0
        state: ready
"""

RETURN = r"""
servers:
  description: The servers asked for.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: The name of the server.
      type: str
      sample: node1-c0
    before:
      description: The administrative state before, V(ready), V(drain) or V(maint).
      type: str
    after:
      description: The administrative state after, or what it would be in check mode.
      type: str
    open_sessions:
      description: How many requests the server was still working on at the end.
      type: int
    operational:
      description:
        - What the health checks say, V(stopped), V(starting), V(running) or V(stopping).
        - Nginx has none. There it is V(running) for what is V(ready) and V(stopped) for what is not.
      type: str
open_sessions:
  description: The sum of the open requests of all drained servers. More than 0 means that O(wait_s) was not enough.
  returned: success
  type: int
waited_s:
  description: How long the drains waited, in seconds.
  returned: success
  type: float
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _files, _haproxy, _nginx
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest

#: Where each wish ends.
RESTS_IN = {_haproxy.READY: _haproxy.READY, _haproxy.DRAIN: _haproxy.MAINT, _haproxy.MAINT: _haproxy.MAINT}


def mark(path: str, names: dict[str, bool]) -> None:
    """Write into the configuration file which servers are disabled, at once and privately."""
    if not names or not os.path.exists(path):
        return
    try:
        with open(path, encoding="utf-8") as source:
            before = source.read()
        text = _haproxy.with_disabled(before, names)
        if text == before:
            return
        _files.put(path, text)
    except OSError as exc:
        raise LLMError("{0} cannot be written: {1}".format(path, exc.strerror)) from exc


class Haproxy:
    """A running HAProxy, for this module."""

    def __init__(self, options: dict[str, object]) -> None:
        self.door = _haproxy.AdminSocket(options["socket"])
        self.backend = options["backend"]
        self.master = options["master_socket"] or ""
        self.config = options["config"]

    def runs(self) -> bool:
        """Whether it runs."""
        return _haproxy.running(self.door.path) is not None

    def servers(self) -> dict[str, tuple[str, str]]:
        """Return the administrative and the operational state of each server."""
        return {name: (server.admin, server.op) for name, server in self.door.servers(self.backend).items()}

    def sessions(self) -> dict[str, int]:
        """Return the open requests of each server."""
        return self.door.sessions(self.backend, self.master)

    def bring(self, states: dict[str, str]) -> None:
        """Bring servers to ``ready`` or ``maint``."""
        live = self.door.servers(self.backend)
        mark(self.config, {name: True for name, state in states.items() if state != _haproxy.READY})
        for name, state in states.items():
            # Not "drain": a drained server goes on getting the requests whose prefix it knows, and would never be empty. Streams
            # that are open go on in maintenance, and what was queued for it goes elsewhere.
            self.door.set_state(live[name].backend, name, state)
        mark(self.config, {name: False for name, state in states.items() if state == _haproxy.READY})


class Nginx:
    """A running nginx, for this module."""

    def __init__(self, options: dict[str, object]) -> None:
        self.gateway = _nginx.Gateway(_nginx.present(options["config"]), options["socket"], options["backend"])

    def runs(self) -> bool:
        """Whether it runs."""
        return self.gateway.states() is not None

    def servers(self) -> dict[str, tuple[str, str]]:
        """Return the state of each server; nginx checks none by itself, so nothing more is known of them."""
        states = self.gateway.states()
        if states is None:
            raise LLMError("nginx does not answer on {0}. Is the gateway running?".format(self.gateway.socket))
        return {name: (state, "running" if state == _haproxy.READY else "stopped") for name, state in states.items()}

    def sessions(self) -> dict[str, int]:
        """Return the open requests of each server."""
        return self.gateway.sessions()

    def bring(self, states: dict[str, str]) -> None:
        """Bring servers to ``ready`` or ``maint``."""
        self.gateway.set_states(states)


def run(options: dict[str, object], check: bool) -> dict[str, object]:
    """Bring the servers to their states and return the module's result."""
    backend = options["backend"]
    lenient = options["missing"] == "ignore"
    gateway = (Nginx if _nginx.is_ours(_nginx.present(options["config"])) else Haproxy)(options)
    if lenient and not gateway.runs():
        return {"changed": False, "servers": [], "open_sessions": 0, "waited_s": 0.0}
    wanted = {}
    for item in options["servers"]:
        if wanted.get(item["name"], item["state"]) != item["state"]:
            raise LLMError('server "{0}" is asked to be both {1} and {2}'.format(item["name"], wanted[item["name"]], item["state"]))
        wanted[item["name"]] = item["state"]
    with _haproxy.turn(options["socket"], check):
        before = gateway.servers()
        if lenient:
            wanted = {name: state for name, state in wanted.items() if name in before}
        for name in wanted:
            if name not in before:
                raise LLMError('the gateway has no server "{0}" in "{1}": {2}'.format(name, backend, nearest(name, sorted(before))))
        differing = [name for name, state in wanted.items() if before[name][0] != RESTS_IN[state]]
        if not check and differing:
            gateway.bring({name: RESTS_IN[wanted[name]] for name in differing})
    draining = [name for name in differing if wanted[name] == _haproxy.DRAIN]
    # Others may have their turn while streams end.
    waited = wait_until_empty(gateway, options["wait_s"], draining) if draining and not check else 0.0
    sessions = gateway.sessions()
    after = gateway.servers()
    servers = [
        {
            "name": name,
            "before": before[name][0],
            "after": RESTS_IN[state] if check else after[name][0],
            "open_sessions": sessions.get(name, 0),
            "operational": after[name][1],
        }
        for name, state in wanted.items()
    ]
    return {
        "changed": bool(differing),
        "servers": servers,
        "open_sessions": sum(server["open_sessions"] for server in servers if wanted[server["name"]] == _haproxy.DRAIN),
        "waited_s": round(waited, 3),
        "diff": {
            "before_header": "server states of " + backend,
            "after_header": "server states of " + backend,
            "before": "".join("{0} {1}\n".format(server["name"], server["before"]) for server in servers),
            "after": "".join("{0} {1}\n".format(server["name"], server["after"]) for server in servers),
        },
    }


def wait_until_empty(gateway: Haproxy | Nginx, wait_s: float, names: list[str]) -> float:
    """Wait until the servers have no open request or the time is over; return the seconds waited."""
    start = time.monotonic()
    pause = 0.05
    while True:
        sessions = gateway.sessions()
        waited = time.monotonic() - start
        if not any(sessions.get(name, 0) for name in names) or waited >= wait_s:
            return waited
        time.sleep(min(pause, wait_s - waited))
        pause = min(1.0, pause * 1.5)


def main() -> None:
    """Answer the module call."""
    module = AnsibleModule(
        argument_spec={
            "socket": {"type": "path", "default": "/run/ironserve/gateway.sock"},
            "master_socket": {"type": "path", "default": "/run/ironserve/gateway-master.sock"},
            "config": {"type": "path", "default": "/etc/ironserve/gateway/haproxy.cfg"},
            "backend": {"type": "str", "default": _haproxy.BACKEND},
            "servers": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "state": {"type": "str", "required": True, "choices": ["ready", "drain", "maint"]},
                },
            },
            "wait_s": {"type": "float", "default": 600},
            "missing": {"type": "str", "choices": ["fail", "ignore"], "default": "fail"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**run(module.params, module.check_mode))
    except LLMError as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
