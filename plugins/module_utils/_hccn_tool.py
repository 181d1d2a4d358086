# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ``hccn_tool`` prints about the network port of an Ascend chip, and ``/etc/hccn.conf``. Private to the collection.

The tool writes ``key: value``, ``key:value`` and ``key : value`` as it likes, may answer nothing with status 0, and says that
something is not set with an error. What does not fit is an UnknownOutput that names the line.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re

from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

#: Every word of ``-net_health`` the tool has; only the first is good.
NET_HEALTH = (
    "Success",
    "Socket fail",
    "Receive timeout",
    "Unreachable",
    "Time exceeded",
    "Fault",
    "Init",
    "Thread error",
    "Detect ip set",
    "Unknown",
)

_UNSET = re.compile(r"Get (?:ip|ipconf|gateway) failed, because no (?:ip|gateway) was preset there!")
_GATEWAY = re.compile(r"default gateway:\s*([0-9.]+),\s*Iface:\s*(\w+)", re.ASCII)
_SWITCH = re.compile(r"(?:dev_id:|device )[0-9]+, tls switch\[([01])\]\(0:disable, 1:enable\), .*tls alarm time threshold\[[0-9]+\]days")
_CERTIFICATE = re.compile(r"(?:dev_id:|device )[0-9]+, \[[^]]+\] info:|\s+\w[\w ]*\[.*\](?:\(.*\))?")
_PREFIX = re.compile(r"^\[dev(?:id|ice) [0-9]+\]")
_CHANGE = re.compile(r"\s*(\w{3} \w{3} +[0-9]+ [0-9:]+ [0-9]{4})\s+LINK (UP|DOWN)", re.ASCII)
_SETTING = re.compile(r"([a-z][a-z0-9_]*?)_([0-9]+)=(\S*)")


@dataclasses.dataclass
class LinkHistory:
    """How often a link came up, and its changes as (time as the tool writes it, ``up`` or ``down``), the newest first."""

    ups: int
    changes: list[tuple[str, str]]


def _lines(what: str, text: str) -> list[str]:
    """Lines with anything in them. Raises UnknownOutput for an empty answer and for one whose last line was cut off."""
    if not text.strip():
        raise UnknownOutput("hccn_tool {0} said nothing".format(what))
    if not text.endswith("\n"):
        raise UnknownOutput("hccn_tool {0} stopped in the middle of a line: {1!r}".format(what, text.splitlines()[-1][:200]))
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def _odd(what: str, line: str) -> UnknownOutput:
    return UnknownOutput("hccn_tool {0} said {1!r}".format(what, line.strip()[:200]))


def _address(what: str, text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError as exc:
        raise UnknownOutput("{0} has {1!r} for an address".format(what, text[:200])) from exc


def _only(what: str, text: str, keys: tuple[str, ...]) -> str:
    """The value of an answer of one line, whose key is one of ``keys``."""
    fields = parse_fields(what, text)
    if len(fields) != 1 or list(fields)[0] not in keys:
        raise _odd(what, text.strip().split("\n")[0])
    return list(fields.values())[0]


def unset(*texts: str) -> bool:
    """Whether the tool says that the address or the gateway was never set; it does so with a status that is not 0."""
    return any(_UNSET.search(text) for text in texts)


def parse_fields(what: str, text: str) -> dict[str, str]:
    """Key -> value of an answer such as ``-optical``, ``-fec``, ``-stat`` or ``-mac_addr``; its heading has no value and is left out."""
    found: dict[str, str] = {}
    for line in _lines(what, text):
        key, colon, value = (part.strip() for part in _PREFIX.sub("", line).partition(":"))
        if not colon or not key or key in found:
            raise _odd(what, line)
        if value:
            found[key] = value
    if not found:
        raise _odd(what, text)
    return found


def parse_link(text: str) -> str:
    """Read ``-link -g``: ``up`` or ``down``."""
    word = _only("-link", text, ("link status",))
    if word not in ("UP", "DOWN"):
        raise _odd("-link", text)
    return word.lower()


def parse_net_health(text: str) -> str:
    """Read ``-net_health -g``: one word of ``NET_HEALTH``."""
    word = _only("-net_health", text, ("net health status",))
    word = "Socket fail" if word == "Socket failed" else word
    if word not in NET_HEALTH:
        raise _odd("-net_health", text)
    return word


def parse_ip(text: str) -> tuple[str, str]:
    """Read ``-ip -g``: address and netmask."""
    fields = parse_fields("-ip", text)
    if sorted(fields) != ["ipaddr", "netmask"]:
        raise _odd("-ip", text)
    return _address("hccn_tool -ip", fields["ipaddr"]), _address("hccn_tool -ip", fields["netmask"])


def parse_gateway(text: str) -> str:
    """Read ``-gateway -g``: its address."""
    lines = _lines("-gateway", text)
    match = _GATEWAY.fullmatch(lines[0].strip())
    if len(lines) != 1 or not match:
        raise _odd("-gateway", lines[0])
    return _address("hccn_tool -gateway", match.group(1))


def parse_netdetect(text: str) -> str | None:
    """Read ``-netdetect -g``: the address that is pinged for ``-net_health``; None where none is set."""
    address = _address("hccn_tool -netdetect", _only("-netdetect", text, ("netdetect address", "netdetect addr")))
    return None if address == "0.0.0.0" else address


def parse_tls(text: str) -> bool:
    """Read ``-tls -g``: whether TLS is on. It must be the same on every chip that speaks to another."""
    switch = None
    for line in _lines("-tls", text):
        match = _SWITCH.fullmatch(line.strip())
        if match and switch is None:
            switch = match.group(1) == "1"
        elif match or not _CERTIFICATE.fullmatch(line):
            raise _odd("-tls", line)
    if switch is None:
        raise _odd("-tls", text)
    return switch


def parse_link_history(text: str) -> LinkHistory:
    """Read ``-link_stat -g``."""
    ups = None
    changes = []
    for line in _lines("-link_stat", text):
        line = _PREFIX.sub("", line)
        change = _CHANGE.fullmatch(line)
        key, _colon, value = (part.strip() for part in line.partition(":"))
        if change:
            changes.append((change.group(1), change.group(2).lower()))
        elif key == "link up count" and value.isdigit() and ups is None:
            ups = int(value)
        elif key not in ("current time", "link change records"):
            raise _odd("-link_stat", line)
    if ups is None:
        raise _odd("-link_stat", text)
    return LinkHistory(ups, changes)


def parse_conf(text: str) -> dict[int, dict[str, str]]:
    """Read ``/etc/hccn.conf``: physical id -> setting -> value. Lines may stand in any order; addresses are checked."""
    found: dict[int, dict[str, str]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _SETTING.fullmatch(line)
        device = int(match.group(2)) if match else -1
        if not match or match.group(1) in found.get(device, {}):
            raise UnknownOutput("/etc/hccn.conf, line {0} does not fit or sets a thing again: {1!r}".format(number, line[:200]))
        name, value = match.group(1), match.group(3)
        if name in ("address", "netmask", "gateway", "netdetect"):
            value = _address("/etc/hccn.conf, line {0}".format(number), value)
        found.setdefault(device, {})[name] = value
    return found
