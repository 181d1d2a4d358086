# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write HAProxy's server states to a file before a reload: save_server_state.py SOCKET CONFIG STATE_FILE.

Without it a reload puts drained and dead servers back into rotation. Servers whose address or port is another one in
CONFIG are left out, because HAProxy would go on using the old address from the state file. The gateway's service calls
this on every reload, so a reload by hand is as safe as one by Ansible. Exit status: 0 written, 1 with one line on
standard error.
"""

from __future__ import annotations

import os
import re
import socket
import sys


def ask(path: str, command: str, timeout_s: float = 5.0) -> str:
    """Return the answer of HAProxy's runtime socket to one command."""
    chunks = []
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.settimeout(timeout_s)
        door.connect(path)
        door.sendall(command.encode() + b"\n")
        while True:
            chunk = door.recv(65536)
            if not chunk:
                return b"".join(chunks).decode()
            chunks.append(chunk)
    finally:
        door.close()


def fresh_lines(dump: str, config: str) -> list[str]:
    """Return the lines of ``show servers state`` that still agree with the file that is about to be loaded."""
    wanted = {}
    for line in config.splitlines():
        match = re.match(r"^\s+server\s+(\S+)\s+(\S+):(\d+)(?:\s|$)", line)
        if match:
            wanted[match.group(1)] = (match.group(2).strip("[]"), match.group(3))
    lines = [line for line in dump.splitlines() if line.strip()]
    if len(lines) < 2 or lines[0].strip() != "1" or not lines[1].startswith("# "):
        raise ValueError("HAProxy answered with something unknown: {0!r}".format(dump[:80]))
    names = lines[1][2:].split()
    kept = lines[:2]
    for line in lines[2:]:
        row = dict(zip(names, line.split()))
        if wanted.get(row.get("srv_name", "")) == (row.get("srv_addr"), row.get("srv_port")):
            kept.append(line)
    return kept


def main(arguments: list[str]) -> int:
    """Save the states and return the exit status."""
    if len(arguments) != 3:
        sys.stderr.write("usage: save_server_state.py SOCKET CONFIG STATE_FILE\n")
        return 1
    path, config, target = arguments
    try:
        with open(config, encoding="utf-8") as source:
            lines = fresh_lines(ask(path, "show servers state"), source.read())
        partial = target + ".new"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as sink:
            sink.write("\n".join(lines) + "\n")
        os.rename(partial, target)
    except (OSError, ValueError) as exc:
        sys.stderr.write("the server states of {0} could not be saved to {1}: {2}\n".format(path, target, exc))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
