#!/usr/bin/env python3
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Remember what is on a machine, and say later what was added to it or taken away.

Usage: machine.py remember FILE | machine.py compare FILE | machine.py forget FILE

``compare`` prints one line per difference and ends with 1 when there is any: what a site leaves behind after its teardown,
and what it removed that was not its own.
"""

from __future__ import annotations

import glob
import json
import os
import pwd
import subprocess
import sys

PATHS = [
    "/etc/ironserve",
    "/run/ironserve",
    "/var/lib/ironserve",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/etc/docker",
]
PATTERNS = [
    "/etc/systemd/system/*ironserve*",
    "/etc/init.d/*",
    "/etc/security/limits.d/*",
    "/etc/sysctl.d/*",
    "/etc/logrotate.d/*",
    "/etc/tmpfiles.d/*",
    "/etc/apt/sources.list.d/*",
]
#: Mounts under these are the engine's.
MOUNTS = ("/var/lib/docker", "/run/docker", "/var/lib/ironserve")
#: The host's own network, which a running engine holds for a minute longer than the last container that had it.
HELD = "/run/docker/netns/default"
DAEMONS = {"dockerd", "containerd", "haproxy"}


def lines(*command: str) -> list[str]:
    """Output lines of a command; none when the command is missing or fails (no engine, no dpkg)."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return []
    return result.stdout.split("\n")[:-1] if result.returncode == 0 else []


def processes() -> list[str]:
    """Daemons that run, by name, process id and start time."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="utf-8", errors="replace") as stat:
                text = stat.read()
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")]
        if name in DAEMONS:
            found.append("{} {} started at tick {}".format(name, path.split("/")[2], text[text.rindex(")") :].split()[20]))
    return found


def mounts(table: str, engine_runs: bool) -> list[str]:
    """The engine's mounts of ``/proc/self/mounts``."""
    points = [line.split()[1] for line in table.splitlines()]
    return [point for point in points if point.startswith(MOUNTS) and not (engine_runs and point == HELD)]


def look() -> dict[str, list[str]]:
    """Everything a site could leave behind, kind by kind."""
    running = processes()
    with open("/proc/self/mounts", encoding="utf-8") as table:
        mounted = mounts(table.read(), any(line.startswith("dockerd ") for line in running))
    return {
        "package": [line for line in lines("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n") if line.startswith(("ii", "rc"))],
        "image": lines("docker", "images", "--all", "--no-trunc", "--quiet"),
        "container": lines("docker", "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}}"),
        "network": lines("docker", "network", "ls", "--no-trunc", "--format", "{{.Name}}"),
        "volume": lines("docker", "volume", "ls", "--quiet"),
        "path": [path for path in PATHS if os.path.lexists(path)],
        "file": [path for pattern in PATTERNS for path in glob.glob(pattern)],
        "user": [entry.pw_name for entry in pwd.getpwall()],
        "process": running,
        "mount": mounted,
        "interface": [name for name in os.listdir("/sys/class/net") if name.startswith(("docker", "br-"))],
    }


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """One line per thing that is on one side only."""
    found = []
    for kind in before:
        old, new = set(before[kind]), set(after.get(kind, []))
        found += [f"left behind: {kind} {item}" for item in sorted(new - old)]
        found += [f"gone, though it was here before: {kind} {item}" for item in sorted(old - new)]
    return found


def main(action: str, path: str) -> int:
    if action == "remember":
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as memory:
            json.dump(look(), memory)
        return 0
    if action == "forget":
        if os.path.exists(path):
            os.unlink(path)
        return 0
    if not os.path.exists(path):
        print("nothing was remembered, so nothing can be compared: the scenario did not get as far as its start")
        return 0
    with open(path, encoding="utf-8") as memory:
        found = differences(json.load(memory), look())
    print("\n".join(found) or "the machine is as it was")
    return 1 if found else 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("remember", "compare", "forget"):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
