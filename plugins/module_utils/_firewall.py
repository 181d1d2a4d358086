# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules that let nobody but the gateways reach the replicas, and whether a host has them. Pure. Private to the collection.

They are one chain in the table ``raw``, which a packet passes as it comes in, before the container engine puts another address into it. So
they see the port that was asked for, and hold for published ports, the engine's port proxy and the host's own network alike. An engine that
starts anew leaves that table alone, and which firewall it uses itself, iptables or nftables, makes no difference. The chain only
drops: what it lets pass goes on to the host's other rules. ``REJECT`` is unknown there, so who is not admitted hears nothing.

Source: iptables(8), iptables-restore(8), iptables-extensions(8), 1.8.9.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import shlex
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

TABLE = "raw"
CHAIN = "IRONSERVE"
HOOK = "PREROUTING"

#: What reads and sets the rules of each family; its ``-restore`` lies beside it.
PROGRAMS = {4: "iptables", 6: "ip6tables"}

#: A few spellings that versions of iptables use for one thing.
_ALIASES = {
    "--protocol": "-p",
    "--source": "-s",
    "--destination": "-d",
    "--in-interface": "-i",
    "--jump": "-j",
    "--destination-port": "--dport",
}


@dataclasses.dataclass
class Live:
    """What a host has.

    Attributes:
        chain: the rules of our chain as the tool lists them; None when there is no such chain.
        hooks: how many jumps lead to it.
        first: whether a packet meets it before any rule that lets packets pass.
    """

    chain: list[str] | None
    hooks: int
    first: bool


def address_of(text: str) -> Any:
    """The address that the replicas listen on. Raises LLMError for what is none."""
    try:
        return ipaddress.ip_address(text)
    except ValueError as exc:
        raise LLMError("replica_address: {0!r} is no address; ports are bound to one, so give the host's own".format(text)) from exc


def network_of(text: str) -> Any:
    """An address or a network as a network, None for what is neither, such as a name."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def spans(ports: list[int]) -> list[str]:
    """Ports as iptables has them, neighbours together: ``[8001, 8002, 9000]`` is ``["8001:8002", "9000"]``."""
    found: list[list[int]] = []
    for port in sorted(set(ports)):
        if found and port == found[-1][1] + 1:
            found[-1][1] = port
        else:
            found.append([port, port])
    return ["{0}:{1}".format(*pair) if pair[0] != pair[1] else str(pair[0]) for pair in found]


def rules(family: int, doors: list[tuple[str, int]], admitted: list[str], inside: list[str]) -> list[str]:
    """The rules of one family, empty where the replicas cannot be reached by it.

    Args:
        family: 4 or 6.
        doors: address and port of each replica on the host. ``0.0.0.0`` and ``::`` are all addresses of the host, of both families; what is
            on a loopback address needs no rule.
        admitted: addresses and networks that may reach them, of any family. The host itself always may.
        inside: networks that the containers are on. Whoever routes there by way of the host passes no port of it.
    """
    ports: dict[str, list[int]] = {}
    for address, port in doors:
        place = address_of(address)
        if place.is_unspecified:
            ports.setdefault("-m addrtype --dst-type LOCAL", []).append(port)
        elif place.version == family and not place.is_loopback:
            ports.setdefault("-d {0}".format(ipaddress.ip_network(str(place))), []).append(port)
    nets = [network for network in map(network_of, inside) if network.version == family]
    if not nets and not ports:
        return []
    lines = ["-i lo -j RETURN"]
    lines += ["! -s {0} -d {0} -j DROP".format(network) for network in nets]
    if ports:
        friends = sorted({network for network in map(network_of, admitted) if network.version == family})
        lines += ["-s {0} -j RETURN".format(network) for network in friends]
        lines += ["{0} -p tcp -m tcp --dport {1} -j DROP".format(to, span) for to in sorted(ports) for span in spans(ports[to])]
    return ["-A {0} {1}".format(CHAIN, line) for line in lines]


def read(listing: str) -> Live:
    """Read what ``iptables -t raw -S`` printed."""
    chain: list[str] | None = None
    hooks, first, passing = 0, False, False
    for line in listing.splitlines():
        words = shlex.split(line)
        if words[:2] == ["-N", CHAIN]:
            chain = []
        elif words[:2] == ["-A", CHAIN] and chain is not None:
            chain.append(line)
        elif words[:2] == ["-A", HOOK]:
            if words[2:] == ["-j", CHAIN]:
                first = first or not passing
                hooks += 1
            # Where another rule lets a packet pass, ours never sees it.
            passing = passing or "ACCEPT" in words
    return Live(chain, hooks, first)


def normal(rule: str) -> frozenset[tuple[str, ...]]:
    """A rule in one form, for versions of the tool order and spell its parts in their own ways."""
    words = shlex.split(rule)[2:]
    parts: list[list[str]] = []
    negated = False
    for word in words:
        if word == "!":
            negated = True
        elif word.startswith("-"):
            parts.append(["!" if negated else "", _ALIASES.get(word, word)])
            negated = False
        elif parts:
            parts[-1].append(word)
        else:
            parts.append(["", word])
    result = set()
    for part in parts:
        if part[1] in ("-s", "-d") and len(part) == 3:
            part[2] = str(network_of(part[2]) or part[2])
        elif part[1:] == ["-p", "6"]:
            part[2] = "tcp"
        # What a match is loaded by says nothing that its options do not say.
        if part[1] != "-m":
            result.add(tuple(part))
    return frozenset(result)


def as_wanted(live: Live, wanted: list[str]) -> bool:
    """Whether a host has exactly these rules, in this order, where each packet meets them once. No rules: whether it has no chain."""
    if not wanted:
        return live.chain is None and not live.hooks
    return live.hooks == 1 and live.first and live.chain is not None and list(map(normal, live.chain)) == list(map(normal, wanted))


def file_text(wanted: list[str]) -> str:
    """The chain for ``iptables-restore --noflush``, without what leads to it; empty without rules."""
    return "".join(line + "\n" for line in ["*" + TABLE, ":{0} - [0:0]".format(CHAIN)] + wanted + ["COMMIT"]) if wanted else ""


def transaction(live: Live, wanted: list[str]) -> str:
    """What brings a host from what it has to ``wanted``, for ``iptables-restore --noflush``: all of it at once or nothing.

    There is no moment without rules in between. Other chains and rules of the table are not touched.
    """
    unhook = ["-D {0} -j {1}".format(HOOK, CHAIN)] * live.hooks
    if wanted:
        hook = [] if live.hooks == 1 and live.first else unhook + ["-I {0} 1 -j {1}".format(HOOK, CHAIN)]
        lines = [":{0} - [0:0]".format(CHAIN)] + wanted + hook
    else:
        lines = unhook + (["-F " + CHAIN, "-X " + CHAIN] if live.chain is not None else [])
    return "".join(line + "\n" for line in ["*" + TABLE] + lines + ["COMMIT"])
