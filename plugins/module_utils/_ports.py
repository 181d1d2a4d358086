# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who listens on which TCP port, from ``/proc``. Private to the collection.

Source: Linux kernel documentation, networking/proc_net_tcp.rst; proc(5) for ``/proc/<pid>/fd``.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import struct

from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

#: The ``st`` column of a listening socket (``TCP_LISTEN`` in the kernel's tcp_states.h).
LISTEN = "0A"


@dataclasses.dataclass
class Listener:
    """A listening TCP socket.

    Attributes:
        port: TCP port.
        address: the address it is bound to, in the usual notation.
        inode: socket inode, the key into ``/proc/<pid>/fd``.
    """

    port: int
    address: str
    inode: str


def decode_address(text: str) -> str:
    """Turn the kernel's hexadecimal address (host byte order, 32 bits at a time) into the usual notation."""
    try:
        words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
        packed = struct.pack("={0}I".format(len(words)), *words)
        return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    except (ValueError, struct.error) as exc:
        raise UnknownOutput("/proc/net/tcp has an address this collection does not know: {0!r}".format(text)) from exc


def parse_listeners(text: str) -> list[Listener]:
    """Read the listening sockets from the text of ``/proc/net/tcp`` or ``/proc/net/tcp6``."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if not fields:
            continue
        if len(fields) < 10 or ":" not in fields[1]:
            raise UnknownOutput("/proc/net/tcp has a line this collection does not know: {0!r}".format(line))
        if fields[3] != LISTEN:
            continue
        address, port = fields[1].rsplit(":", 1)
        found.append(Listener(int(port, 16), decode_address(address), fields[9]))
    return found


def read_listeners(proc: str = "/proc") -> list[Listener]:
    """All listening TCP sockets of this network namespace, IPv4 and IPv6."""
    found = []
    for name in ("tcp", "tcp6"):
        path = os.path.join(proc, "net", name)
        # A kernel without IPv6 has no tcp6; one without tcp is no Linux we know.
        if name == "tcp6" and not os.path.exists(path):
            continue
        with open(path, encoding="ascii") as handle:
            found.extend(parse_listeners(handle.read()))
    return found


def socket_owners(inodes: set[str], proc: str = "/proc") -> dict[str, int]:
    """Find the process that holds each socket inode; only root sees those of other users.

    Returns ``{inode: pid}`` for the ones found.
    """
    wanted = {"socket:[{0}]".format(inode): inode for inode in inodes}
    owners = {}
    if not wanted:
        return owners
    for entry in sorted((name for name in os.listdir(proc) if name.isdigit()), key=int):
        directory = os.path.join(proc, entry, "fd")
        try:
            numbers = os.listdir(directory)
        except OSError:
            continue
        for number in numbers:
            try:
                target = os.readlink(os.path.join(directory, number))
            except OSError:
                continue
            if target in wanted:
                owners.setdefault(wanted[target], int(entry))
    return owners


def command_line(pid: int, proc: str = "/proc") -> str:
    """The command line of a process on one line, or its short name in brackets, or an empty text when it is gone."""
    try:
        with open(os.path.join(proc, str(pid), "cmdline"), "rb") as handle:
            words = handle.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        if words:
            return words
        with open(os.path.join(proc, str(pid), "comm"), encoding="utf-8", errors="replace") as handle:
            return "[{0}]".format(handle.read().strip())
    except OSError:
        return ""


def container_ports(containers: list[dict]) -> dict[int, str]:
    """Map published TCP ports to container names, from the engine's ``GET /containers/json`` answer."""
    names = {}
    for container in containers:
        name = (container.get("Names") or [container.get("Id", "?")[:12]])[0].lstrip("/")
        for port in container.get("Ports") or []:
            if port.get("Type") == "tcp" and port.get("PublicPort"):
                names[int(port["PublicPort"])] = name
    return names


def port_report(
    ports: list[int], listeners: list[Listener], owners: dict[str, int], containers: dict[int, str], own: list[str], proc: str = "/proc"
) -> list[dict]:
    """Describe each asked port.

    ``own`` are markers: a port whose command line or container name holds one of them is this collection's.
    Returns per port ``{port, free, own, address, pid, command, container}``; ``pid`` is 0 and texts are empty
    where there is nothing or it cannot be seen.
    """
    report = []
    for port in ports:
        mine = [item for item in listeners if item.port == port]
        entry = {"port": port, "free": not mine, "own": False, "address": "", "pid": 0, "command": "", "container": ""}
        if mine:
            entry["address"] = mine[0].address
            entry["pid"] = next((owners[item.inode] for item in mine if item.inode in owners), 0)
            entry["command"] = command_line(entry["pid"], proc) if entry["pid"] else ""
            entry["container"] = containers.get(port, "")
            text = "{0} {1}".format(entry["command"], entry["container"])
            entry["own"] = any(marker in text for marker in own)
        report.append(entry)
    return report


def describe(entry: dict) -> str:
    """Say who has a port: ``127.0.0.1:8000 is taken by haproxy -f ... (pid 7)``."""
    who = "container {0}".format(entry["container"]) if entry["container"] else entry["command"][:120] or "a process that cannot be seen"
    pid = " (pid {0})".format(entry["pid"]) if entry["pid"] else ""
    return "{0}:{1} is taken by {2}{3}".format(entry["address"], entry["port"], who, pid)
