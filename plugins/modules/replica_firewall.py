#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: replica_firewall
short_description: Let nobody but the gateways reach the replicas' ports
version_added: "0.1.0"
description:
  - Keeps one chain, C(IRONSERVE), in the table C(raw) of this host. It drops what goes to the replicas' ports and does not come from an
    admitted address or from this host, and what is routed straight into the network of their containers.
  - The table is passed before the container engine puts another address into a packet, so published ports are covered, which C(INPUT) never
    sees. A restart of the engine changes nothing.
  - The rules are set in one transaction. Other rules and chains are not touched, and nothing is admitted that they refuse.
  - Writes the same rules to C(rules.v4) and C(rules.v6) in O(directory), for whatever brings them back after a boot.
author:
  - ironserve.llm contributors (@ironserve)
requirements:
  - iptables >= 1.6.2, of either kind (legacy or nf_tables); ip6tables where the replicas listen on an IPv6 address
  - docker >= 5.0.3 (Python library)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    description: Can run in check mode. A network of containers that is still to be made is then left out of the rules.
    support: full
  diff_mode:
    description: Shows the rules.
    support: full
options:
  state:
    description: Whether the rules shall be there. V(absent) does nothing where they were never set.
    type: str
    choices: [present, absent]
    default: present
  address:
    description: Address that the replicas' ports are bound to; V(0.0.0.0) and V(::) are all addresses of the host.
    type: str
    default: ""
  ports:
    description:
      - The replicas' ports on the host.
      - What containers of replicas publish already is guarded besides, so that a port that is changed is not open before its container goes.
    type: list
    elements: int
    default: []
  admitted:
    description:
      - Addresses, networks and host names that may reach them. Names are looked up on this host, and all their addresses count.
      - This host itself always may.
    type: list
    elements: str
    default: []
  network:
    description: Container network of the replicas, made when it is missing, for its addresses are part of the rules. Empty for none.
    type: str
    default: ""
  directory:
    description: Directory of the files.
    type: path
    default: /etc/ironserve/firewall
  socket:
    description: The container engine's socket.
    type: path
    default: /var/run/docker.sock
"""

EXAMPLES = r"""
---
- name: Admit the gateway and the host that reads the engines' metrics
  ironserve.llm.replica_firewall:
    address: 192.0.2.11
    ports: [8001, 8002, 8003, 8004]
    admitted: [192.0.2.10, metrics.example.org]
    network: ironserve
"""

RETURN = r"""
rules:
  description: The rules, by what sets them, C(iptables) and C(ip6tables).
  returned: success
  type: dict
  sample:
    iptables:
      - -A IRONSERVE -i lo -j RETURN
      - -A IRONSERVE -s 192.0.2.10/32 -j RETURN
      - -A IRONSERVE -d 192.0.2.11/32 -p tcp -m tcp --dport 8001:8004 -j DROP
    ip6tables: []
besides:
  description: Ports that are guarded although nobody asked for it, since containers of replicas publish them that are there already.
  returned: success
  type: list
  elements: int
service_manager:
  description: What starts services on this host, V(systemd), V(sysv) or V(direct).
  returned: success
  type: str
"""

import os
import shutil
import socket
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _docker, _files, _firewall, _host, _run
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: How long to wait for others who change rules at the same time.
WAIT_S = 10


def looked_up(items: list[str]) -> list[str]:
    """Addresses and networks for what may also be host names. Raises LLMError, naming it, for a name that leads nowhere but here."""
    found = []
    for item in items:
        if _firewall.network_of(item) is not None:
            addresses = [item]
        else:
            try:
                # A link-local address may have its interface behind it.
                addresses = sorted({entry[4][0].partition("%")[0] for entry in socket.getaddrinfo(item, None)})
            except OSError as exc:
                reason = "{0}: this host knows no address of it: {1}".format(item, exc.strerror or exc)
                raise LLMError("{0}. Name an address (ansible_host of the gateway, or replica_firewall_gateways)".format(reason)) from exc
        outer = [text for text in addresses if not _firewall.network_of(text).is_loopback]
        if not outer:
            reason = "{0} is {1} on this host, which is this host itself and nobody else".format(item, ", ".join(addresses))
            raise LLMError("{0}. Name the address it has for others (replica_firewall_gateways)".format(reason))
        found += outer
    return found


def engine(params: dict[str, Any], check_mode: bool) -> tuple[list[str], list[tuple[str, int]]]:
    """The addresses of the containers' network, which is made when it is missing, and what replicas publish that are there already."""
    if not params["network"]:
        return [], []
    try:
        client = _docker.connect(params["socket"])
    except _docker.EngineAbsent:
        if check_mode:
            return [], []
        raise
    if not check_mode:
        _docker.ensure_network(client, params["network"])
    return _docker.subnets(client, params["network"]), _docker.published(client)


def write(path: str, text: str, check_mode: bool) -> bool:
    """Have the file with this text, privately and whole, or no file without text. Returns whether that is a change."""
    before = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as handle:
            before = handle.read()
    if before == text or check_mode:
        return before != text
    if not text:
        os.unlink(path)
        return True
    _files.put(path, text, folder_mode=0o700)
    return True


def ask(argv: list[str], stdin: str = "") -> str:
    """What a command printed. Raises LLMError with what it said when it fails."""
    done = _run.run(argv, 60, stdin=stdin)
    if done.rc:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("Try ")]
        raise LLMError("{0}: failed with status {1}: {2}".format(" ".join(argv), done.rc, "; ".join(said) or "it said nothing"))
    return done.stdout


def live_rules(program: str) -> _firewall.Live:
    """What this host has."""
    return _firewall.read(ask([program, "-w", str(WAIT_S), "-t", _firewall.TABLE, "-S"]))


def enforce(program: str, wanted: list[str], check_mode: bool) -> tuple[bool, list[str]]:
    """Bring one family's rules into force; returns whether that was a change, and the rules of before."""
    live = live_rules(program)
    if _firewall.as_wanted(live, wanted):
        return False, live.chain or []
    if not check_mode:
        ask([program + "-restore", "--noflush", "--wait", str(WAIT_S)], _firewall.transaction(live, wanted))
        after = live_rules(program)
        if not _firewall.as_wanted(after, wanted):
            found = "; ".join(after.chain or ["no chain " + _firewall.CHAIN])
            reason = "{0} took the rules and now has others: {1}; {2} jumps to them. See what else changes the table {3} of this host"
            raise LLMError(reason.format(program, found, after.hooks, _firewall.TABLE))
    return True, live.chain or []


def program_of(module: AnsibleModule, name: str) -> str:
    """Where the program is. Raises LLMError that says what to do without it; empty in check mode, where it may still come."""
    program = module.get_bin_path(name)
    if program or module.check_mode:
        return program or ""
    if module.params["state"] == "absent":
        reason = "the rules it set may still be there. Install it (package iptables) and run again; after a restart without them remove {0}"
        raise LLMError("{0}: not found on this host, and ".format(name) + reason.format(module.params["directory"]))
    ports = ", ".join(_firewall.spans(module.params["ports"]))
    reason = "Install it (package iptables), or guard the ports {0} by other means and set replica_firewall to never"
    raise LLMError("{0}: not found on this host. ".format(name) + reason.format(ports))


def run(module: AnsibleModule) -> dict[str, Any]:
    """Compare, write, enforce."""
    params, check_mode = module.params, module.check_mode
    directory = params["directory"]
    present = params["state"] == "present"
    if present and not params["ports"]:
        raise LLMError("replica_firewall: no ports to guard; state absent removes the rules")
    admitted = looked_up(params["admitted"]) if present else []
    networks, published = engine(params, check_mode) if present else ([], [])
    doors = [(params["address"], port) for port in params["ports"]]
    besides = [door for door in published if door not in doors]
    changed = not present and os.path.isdir(directory)
    rules, diff = {}, []
    for family, name in _firewall.PROGRAMS.items():
        wanted = _firewall.rules(family, doors + besides, admitted, networks) if present else []
        rules[name] = wanted
        path = os.path.join(directory, "rules.v{0}".format(family))
        # The file comes before the rules and goes after them: where there is none, nothing was ever set.
        if not wanted and not os.path.exists(path):
            continue
        program = program_of(module, name)
        changed = (bool(wanted) and write(path, _firewall.file_text(wanted), check_mode)) or changed
        differs, before = enforce(program, wanted, check_mode) if program else (True, [])
        changed = (not wanted and write(path, "", check_mode)) or differs or changed
        if differs:
            header = "{0}, table {1}, chain {2}".format(name, _firewall.TABLE, _firewall.CHAIN)
            texts = ["".join(line + "\n" for line in lines) for lines in (before, wanted)]
            diff.append({"before_header": header, "after_header": header, "before": texts[0], "after": texts[1]})
    if not present and not check_mode and os.path.isdir(directory):
        # Last, for it says that there is something to remove.
        shutil.rmtree(directory)
    return {
        "changed": changed,
        "rules": rules,
        "besides": sorted({port for _address, port in besides}),
        "service_manager": _host.init_kind(),
        "diff": diff,
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "address": {"type": "str", "default": ""},
            "ports": {"type": "list", "elements": "int", "default": []},
            "admitted": {"type": "list", "elements": "str", "default": []},
            "network": {"type": "str", "default": ""},
            "directory": {"type": "path", "default": "/etc/ironserve/firewall"},
            "socket": {"type": "path", "default": "/var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    except _docker.ENGINE_ERRORS as exc:
        module.fail_json(msg="{0}: {1}".format(module.params["directory"], exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
