# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""CPU time and memory of a process's control group, for cgroup v1 and v2. Private to the collection.

Source: Linux kernel documentation, admin-guide/cgroup-v1/{cpuacct,memory}.rst and admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import os

from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

#: What is counted -> (v1 controller, v1 file, v2 file).
ACCOUNTS = {
    "cpu": ("cpuacct", "cpuacct.usage", "cpu.stat"),
    "memory": ("memory", "memory.usage_in_bytes", "memory.current"),
}


def account_path(proc_cgroup: str, account: str, root: str = "/sys/fs/cgroup") -> str:
    """Find the file that counts ``cpu`` or ``memory``, from the text of ``/proc/<pid>/cgroup``.

    A v1 line is ``<id>:<controllers>:<path>``; the v2 line is ``0::<path>``. A v1 controller's line wins, because on a hybrid
    host the v2 tree has no controllers.

    Raises UnknownOutput when neither line is there.
    """
    controller, v1_file, v2_file = ACCOUNTS[account]
    unified = None
    for line in proc_cgroup.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            raise UnknownOutput("/proc/<pid>/cgroup has a line this collection does not know: {0!r}".format(line))
        _number, controllers, path = parts
        if controller in controllers.split(","):
            return os.path.join(root, controller, path.lstrip("/"), v1_file)
        if controllers == "":
            unified = path
    if unified is None:
        raise UnknownOutput("/proc/<pid>/cgroup names neither a {0} nor a unified group".format(controller))
    return os.path.join(root, unified.lstrip("/"), v2_file)


def parse_cpu_seconds(path: str, text: str) -> float:
    """Read CPU seconds from the text of ``cpuacct.usage`` (nanoseconds) or ``cpu.stat`` (``usage_usec``), told apart by ``path``."""
    if path.endswith("cpuacct.usage"):
        if text.strip().isdigit():
            return int(text) / 1e9
    else:
        for line in text.splitlines():
            key, _space, value = line.partition(" ")
            if key == "usage_usec" and value.strip().isdigit():
                return int(value) / 1e6
    raise UnknownOutput("{0}: no CPU time in {1!r}".format(path, text[:80]))


def parse_memory_bytes(path: str, text: str) -> int:
    """Read bytes from the text of ``memory.usage_in_bytes`` or ``memory.current``."""
    if text.strip().isdigit():
        return int(text)
    raise UnknownOutput("{0}: no byte count in {1!r}".format(path, text[:80]))


def account_of(pid: int, account: str) -> str:
    """The file that counts ``cpu`` or ``memory`` of the control group of process ``pid``.

    It stays the group's when the process ends, which a second look would not: a process that has ended is in the root group.
    """
    with open("/proc/{0}/cgroup".format(pid), encoding="ascii") as handle:
        return account_path(handle.read(), account)


def _read(path: str) -> tuple[str, str]:
    with open(path, encoding="ascii") as handle:
        return path, handle.read()


def cpu_seconds(path: str) -> float:
    """CPU seconds used so far by a control group and everything in it; ``path`` is from ``account_of``."""
    return parse_cpu_seconds(*_read(path))


def memory_bytes(pid: int) -> int:
    """Bytes of memory charged to the control group of process ``pid``."""
    return parse_memory_bytes(*_read(account_of(pid, "memory")))
