# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How a host's kernel is set up, from /proc and /sys of it or of a directory that plays it. Private to the collection.

What is not there is None, an empty mapping or an empty text; the judgement is made elsewhere.
Source: Linux kernel documentation (kernel-parameters, sysctl/vm, sysctl/kernel, cpu-freq, transhuge, ABI/testing/sysfs-kernel-iommu_groups);
proc(5); PCI Express Base Specification, Access Control Services extended capability.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

#: sysctl values that are read.
SYSCTLS = ("vm.swappiness", "kernel.numa_balancing", "vm.overcommit_memory", "vm.max_map_count", "kernel.pid_max", "fs.file-max")

#: Limits of a process that containers inherit from the engine: name in /proc/<pid>/limits -> ours.
LIMITS = {"Max open files": "nofile", "Max locked memory": "memlock"}

#: PCI Express extended capability id of Access Control Services, where extended capabilities begin, and their control word's bits
#: that send traffic between cards up to the root: request redirect, completion redirect.
ACS_ID, EXTENDED, REDIRECT = 0x000D, 0x100, 0x000C

_ADDRESS = re.compile(r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


class Tree(Vendor):
    """A host's files, with a place of its own for ``/proc`` where it is played."""

    def __init__(self, root: str = "/", sysfs: str = "", proc: str = "") -> None:
        super().__init__(root=root, sysfs=sysfs)
        self.proc = proc or os.path.join(root, "proc")

    def path(self, path: str) -> str:
        """Where an absolute path of the host really lies."""
        if path == "/proc" or path.startswith("/proc/"):
            return self.proc + path[len("/proc") :]
        return super().path(path)

    def read_bytes(self, path: str) -> bytes:
        """Bytes of a file; empty where there is none. Raises LLMError when it is there and cannot be read."""
        try:
            with open(self.path(path), "rb") as handle:
                return handle.read()
        except (FileNotFoundError, NotADirectoryError):
            return b""
        except OSError as exc:
            raise LLMError("{0}: cannot be read: {1}".format(path, exc.strerror or exc)) from exc

    def word(self, path: str) -> str | None:
        """Text of a file of one value, without blanks around it; None where there is none."""
        text = self.read(path)
        return None if text is None else text.strip()


def parse_modules(text: str) -> list[str]:
    """Names of the loaded modules, from ``/proc/modules``. Raises UnknownOutput for a line of another form."""
    names = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 6 or not words[1].isdigit():
            raise UnknownOutput("/proc/modules has a line this collection does not know: {0!r}".format(line))
        names.append(words[0])
    return sorted(names)


def parse_chosen(text: str) -> str:
    """The word in brackets of ``always [madvise] never``. Raises UnknownOutput when there is none."""
    match = re.search(r"\[([a-z_]+)\]", text)
    if not match:
        raise UnknownOutput("{0!r} has no word in brackets".format(text.strip()))
    return match.group(1)


def parse_hugepages(meminfo: str) -> int:
    """Memory set aside for huge pages of the default size, MiB, from ``/proc/meminfo``; 0 where the kernel has none."""
    values = dict(re.findall(r"^(HugePages_Total|Hugepagesize):\s+(\d+)(?: kB)?$", meminfo, re.M))
    return int(values.get("HugePages_Total", 0)) * int(values.get("Hugepagesize", 0)) // 1024


def parse_limits(text: str) -> dict[str, list[int]]:
    """Soft and hard limits by our name, from ``/proc/<pid>/limits``; -1 means none. Raises UnknownOutput when one is missing."""
    found = {}
    for label, name in LIMITS.items():
        match = re.search(r"^{0}\s+(unlimited|\d+)\s+(unlimited|\d+)\s".format(re.escape(label)), text, re.M)
        if not match:
            raise UnknownOutput("/proc/<pid>/limits has no line '{0}'".format(label))
        found[name] = [-1 if value == "unlimited" else int(value) for value in match.groups()]
    return found


def count_list(text: str) -> int:
    """How many numbers a kernel list such as ``0-3,8`` names. Raises UnknownOutput for another form."""
    total = 0
    for part in text.strip().split(","):
        match = re.match(r"^(\d+)(?:-(\d+))?$", part)
        if not match:
            raise UnknownOutput("{0!r} is no list of numbers".format(text.strip()))
        total += int(match.group(2) or match.group(1)) - int(match.group(1)) + 1
    return total


def acs_control(config: bytes) -> int | None:
    """The control word of Access Control Services in a PCI function's configuration space; None where it has none.

    Raises UnknownOutput when the extended space cannot be seen (only root sees it) or its chain of capabilities does not end.
    """
    if len(config) <= EXTENDED:
        # A device without extended space has 256 bytes; fewer are what a user without rights sees.
        if len(config) == EXTENDED:
            return None
        raise UnknownOutput("{0} bytes of the configuration space can be read; only root reads more".format(len(config)))
    offset, seen = EXTENDED, set()
    while offset:
        if offset in seen or offset < EXTENDED or offset + 8 > len(config):
            raise UnknownOutput("the chain of capabilities does not end")
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == ACS_ID:
            return int.from_bytes(config[offset + 6 : offset + 8], "little")
        offset = header >> 20
    return None


def bridges_above(tree: Tree, addresses: list[str]) -> list[str]:
    """PCI bridges between the cards and the root, by address; sysfs shows the way in the path of the device."""
    found = set()
    for address in addresses:
        real = os.path.realpath(tree.path("/sys/bus/pci/devices/" + address))
        found.update(part for part in real.split(os.sep)[:-1] if _ADDRESS.match(part))
    return sorted(found)


def read_acs(tree: Tree, addresses: list[str]) -> dict[str, Any]:
    """Bridges above the cards: ``{"bridges", "redirecting", "unreadable"}``, each a list of addresses."""
    report: dict[str, Any] = {"bridges": bridges_above(tree, addresses), "redirecting": [], "unreadable": []}
    for address in report["bridges"]:
        try:
            control = acs_control(tree.read_bytes("/sys/bus/pci/devices/{0}/config".format(address)))
        except (LLMError, UnknownOutput):
            report["unreadable"].append(address)
            continue
        if control is not None and control & REDIRECT:
            report["redirecting"].append(address)
    return report


def read_kernel(tree: Tree, limits_pid: int, addresses: list[str]) -> dict[str, Any]:
    """Everything of this file about one host.

    Args:
        limits_pid: process whose limits are read: the container engine, from which containers inherit, or 1.
        addresses: PCI addresses of the cards.
    Returns ``{"release", "arguments", "modules", "sysctl", "governors", "hugepages", "memory_total_mib", "numa_nodes", "limits", "iommu", "acs"}``. Sizes are
    in MiB. Raises LLMError for a file that is there and cannot be read or understood.
    """
    cmdline = tree.word("/proc/cmdline")
    modules = tree.read("/proc/modules")
    governors: dict[str, int] = {}
    for name in tree.names("/sys/devices/system/cpu"):
        if re.match(r"^cpu\d+$", name):
            governor = tree.word("/sys/devices/system/cpu/{0}/cpufreq/scaling_governor".format(name))
            if governor:
                governors[governor] = governors.get(governor, 0) + 1
    transparent = tree.read("/sys/kernel/mm/transparent_hugepage/enabled")
    online = tree.word("/sys/devices/system/node/online")
    limits = tree.read("/proc/{0}/limits".format(limits_pid))
    meminfo = tree.read("/proc/meminfo") or ""
    total = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.M)
    groups: dict[str, int] = {}
    for number in tree.names("/sys/kernel/iommu_groups"):
        kind = tree.word("/sys/kernel/iommu_groups/{0}/type".format(number)) or "unknown"
        groups[kind] = groups.get(kind, 0) + 1
    return {
        "release": tree.word("/proc/sys/kernel/osrelease"),
        "arguments": None if cmdline is None else cmdline.split(),
        "modules": None if modules is None else parse_modules(modules),
        "sysctl": {name: tree.word("/proc/sys/" + name.replace(".", "/")) for name in SYSCTLS},
        "governors": governors,
        "hugepages": {
            "reserved_mib": parse_hugepages(meminfo),
            "transparent": parse_chosen(transparent) if transparent is not None else "",
        },
        "memory_total_mib": int(total.group(1)) // 1024 if total else 0,
        "numa_nodes": count_list(online) if online else 1,
        "limits": None if limits is None else parse_limits(limits),
        "iommu": {"active": bool(tree.names("/sys/class/iommu")), "groups": groups},
        "acs": read_acs(tree, addresses),
    }
