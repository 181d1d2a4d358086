# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""End everything a site runs on this machine at once and without a word, as when the power goes. Files stay as they are.

Only what the site started: its gateway, its replicas, and the container engine where the site itself started it.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

RUN = pathlib.Path("/run/ironserve")


def children(pid: int) -> list[int]:
    """A process and all that descend from it, the deepest last."""
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [each for child in task.read_text().split() for each in children(int(child))]
        except OSError:
            continue
    return found


def replicas() -> list[int]:
    """First processes of the site's containers, and of what holds them (the shims outlive their daemon)."""
    words = ["docker", "ps", "--quiet", "--filter", "label=ironserve.replica"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    found = []
    for container in listed:
        words = ["docker", "inspect", "--format", "{{.State.Pid}}", container]
        pid = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        found += [pid, int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])]
    return found


def main() -> int:
    roots = replicas()
    for name in ("dockerd.pid", "gateway.pid"):
        if (RUN / name).exists():
            roots.append(int((RUN / name).read_text()))
    ended = sorted({pid for root in roots if os.path.exists(f"/proc/{root}") for pid in children(root)})
    for pid in ended:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + 30
    while left := [pid for pid in ended if os.path.exists(f"/proc/{pid}/exe")]:
        if time.monotonic() > deadline:
            print(f"still there after 30 s: {left}")
            return 1
        time.sleep(0.1)
    print(f"{len(ended)} processes ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
