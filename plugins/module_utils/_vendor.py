# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a probe may touch of a host: the vendor's tools, its files and sysfs. Private to the collection.

Every probe gets one ``Vendor`` and nothing else, so that a whole host can be played from a directory.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._run import Completed, run

_PCI = re.compile(r"^(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$")


def pci_address(text: str) -> str:
    """A PCI address as sysfs writes it, ``0000:07:00.0``: four digits of domain, lower case.

    Tools write ``07:00.0``, ``0000:C1:00.0`` or ``00000000:83:00.0``. Raises UnknownOutput for anything else.
    """
    match = _PCI.match(text.strip())
    if not match or int(match.group(1) or "0", 16) > 0xFFFF:
        raise UnknownOutput("{0!r} is no PCI address".format(text))
    domain, bus, slot, function = match.groups()
    return "{0:04x}:{1}:{2}.{3}".format(int(domain or "0", 16), bus.lower(), slot.lower(), function)


def first_odd_line(*texts: str) -> str:
    """The first line with anything in it, at most 200 characters, for an error message; ``nothing`` when all is blank."""
    for text in texts:
        for line in text.splitlines():
            if line.strip():
                return repr(line.strip()[:200])
    return "nothing"


class Vendor:
    """One vendor's tools and files on one host.

    Args:
        tools: tool name -> absolute paths where it may lie, the best first.
        environment: variables every call of a tool gets.
        timeout_s: time limit of one call, seconds; then the tool and its children are killed.
        root: directory that stands for the host's ``/``.
        sysfs: directory that stands for ``/sys``; default is ``sys`` under ``root``.
        options: what the platform's entry says to its own probe.
    """

    def __init__(
        self,
        tools: dict[str, list[str]] | None = None,
        environment: dict[str, str] | None = None,
        timeout_s: float = 30.0,
        root: str = "/",
        sysfs: str = "",
        options: dict[str, Any] | None = None,
    ) -> None:
        self.tools = dict(tools or {})
        self.environment = dict(environment or {})
        self.timeout_s = timeout_s
        self.root = root
        self.sysfs = sysfs or os.path.join(root, "sys")
        self.options = dict(options or {})

    def path(self, path: str) -> str:
        """Where an absolute path of the host really lies."""
        if path == "/sys" or path.startswith("/sys/"):
            return self.sysfs + path[len("/sys") :]
        return path if self.root == "/" else self.root + path

    def exists(self, path: str) -> bool:
        """Whether the host has ``path``; a link that leads nowhere is not there."""
        return os.path.exists(self.path(path))

    def names(self, path: str) -> list[str]:
        """Sorted names in a directory; empty where there is none. Raises LLMError when it is there and cannot be read."""
        try:
            return sorted(os.listdir(self.path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            raise LLMError("{0}: cannot be listed: {1}".format(path, exc.strerror or exc)) from exc

    def read(self, path: str) -> str | None:
        """Text of a file, None where there is none. Raises LLMError when it is there and cannot be read."""
        try:
            with open(self.path(path), "rb") as handle:
                return handle.read().decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise LLMError("{0}: cannot be read: {1}".format(path, exc.strerror or exc)) from exc

    def link(self, path: str) -> str:
        """Last part of where a symbolic link leads, such as a driver's name; empty where there is no link."""
        try:
            return os.path.basename(os.readlink(self.path(path)))
        except OSError:
            return ""

    def tool(self, name: str) -> str:
        """Path of a tool, the first of its candidates that may be run. Raises LLMError that lists them all."""
        candidates = self.tools.get(name, [])
        for path in candidates:
            if os.access(self.path(path), os.X_OK) and os.path.isfile(self.path(path)):
                return path
        raise LLMError(
            "{0}: not found (looked for {1}); install the driver that brings it, or name its place in the platform's 'tools'".format(
                name, ", ".join(candidates) or "no path at all"
            )
        )

    def has_tool(self, name: str) -> bool:
        """Whether a tool is there."""
        try:
            return bool(self.tool(name))
        except LLMError:
            return False

    def run(self, name: str, *arguments: str) -> Completed:
        """Run a tool, whatever its exit status. Raises LLMError when it is missing or does not end in time."""
        return run([self.path(self.tool(name))] + list(arguments), self.timeout_s, env=self.environment)

    def ask(self, name: str, *arguments: str) -> str:
        """Standard output of a tool that must end with status 0.

        Raises LLMError with tool, exit status and the first line it said; vendors print errors on either stream.
        """
        done = self.run(name, *arguments)
        if done.rc != 0:
            raise LLMError(
                "{0} ended with status {1} and said {2}".format(
                    " ".join([self.tool(name)] + list(arguments)), done.rc, first_odd_line(done.stderr, done.stdout)
                )
            )
        return done.stdout

    def pci_devices(self, vendor_id: str) -> dict[str, dict[str, str]]:
        """PCI functions of one vendor: address -> ``{"device", "class", "driver", "numa_node"}``, as sysfs writes them.

        Host bridges and other functions of the same vendor are among them; the caller knows its cards by ``device`` or ``class``.
        """
        found = {}
        base = "/sys/bus/pci/devices"
        for address in self.names(base):
            here = "{0}/{1}".format(base, address)
            if (self.read(here + "/vendor") or "").strip().lower() != vendor_id.lower():
                continue
            found[address] = {
                "device": (self.read(here + "/device") or "").strip().lower(),
                "class": (self.read(here + "/class") or "").strip().lower(),
                "driver": self.link(here + "/driver"),
                "numa_node": (self.read(here + "/numa_node") or "").strip(),
            }
        return found

    def numa_node(self, address: str) -> int | None:
        """NUMA node of a PCI function; None where the kernel does not say (it writes -1)."""
        text = (self.read("/sys/bus/pci/devices/{0}/numa_node".format(address)) or "").strip()
        return int(text) if text.isdigit() else None

    def drm_nodes(self, address: str) -> dict[str, str]:
        """Device nodes that the kernel's DRM layer made for a PCI function: ``card`` and ``render`` -> path under /dev/dri."""
        found = {}
        for name in self.names("/sys/bus/pci/devices/{0}/drm".format(address)):
            for kind, stem in (("card", "card"), ("render", "renderD")):
                if name.startswith(stem) and name[len(stem) :].isdigit():
                    found[kind] = "/dev/dri/" + name
        return found
