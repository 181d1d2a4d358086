# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who listens on which port, as the kernel has it: listeners.py PROCESS...

For each process, by number or ``self``, the listening sockets of its network as JSON: port, and every process that has the socket with its
command line and control groups. Takes root; the standard library only, for it runs on the hosts that are looked at.
"""

from __future__ import annotations

import glob
import json
import os
import sys


def sockets(process: str) -> dict[str, int]:
    """The port of each listening socket, by inode."""
    found = {}
    for family in ("tcp", "tcp6"):
        with open(f"/proc/{process}/net/{family}", encoding="ascii") as handle:
            rows = [line.split() for line in handle.readlines()[1:]]
        # 0A is the state of a socket that listens.
        found.update((row[9], int(row[1].rpartition(":")[2], 16)) for row in rows if row[3] == "0A")
    return found


def holders() -> dict[str, set[str]]:
    """The processes that have a socket, by its inode."""
    found: dict[str, set[str]] = {}
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.setdefault(target[len("socket:[") : -1], set()).add(path.split("/")[2])
    return found


def about(process: str) -> dict[str, object]:
    """What a process is; one that ended meanwhile is nobody."""
    try:
        with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as handle:
            command = handle.read().split("\0")[:-1]
        with open(f"/proc/{process}/cgroup", encoding="utf-8") as handle:
            return {"pid": int(process), "command": command, "cgroup": handle.read()}
    except OSError:
        return {}


def main() -> None:
    """Print what the processes' networks listen on."""
    known = holders()
    told = {}
    for process in sys.argv[1:]:
        told[process] = [
            {"port": port, "processes": [found for found in map(about, sorted(known.get(inode, ()))) if found]}
            for inode, port in sockets(process).items()
        ]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
