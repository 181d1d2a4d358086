# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a container that starts is at work or stands still. Pure. Private to the collection.

Log silence tells nothing: compiling says no word for minutes. What compiles uses CPU time, and what loads is charged for the pages it reads.
"""

from __future__ import annotations

import dataclasses

#: Less than this part of one core is waiting: what idles in a Python server's threads is below it.
LEAST_CPU_SHARE = 0.01
#: Memory that came or went; less is noise.
LEAST_MEMORY_MIB = 16


@dataclasses.dataclass
class Sample:
    """What a container had used at one moment: monotonic second, CPU seconds since it was made, MiB charged to it."""

    at: float
    cpu_s: float
    memory_mib: float


class Liveness:
    """Remembers the last sign of life. A container stands still when it gave none for ``stall_s`` seconds; 0 never says so."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._mark: Sample | None = None
        self._last: Sample | None = None

    def note(self, sample: Sample) -> str:
        """Take one sample. Returns what stands still and since when, for a person; empty while the container is at work.

        A sign of life is memory that changed, or CPU time that comes to ``LEAST_CPU_SHARE`` of a core over ``stall_s``, however long or short
        it took. CPU time that went back is another container's: it began anew.
        """
        mark = self._mark
        self._last = sample
        if (
            mark is None
            or sample.cpu_s < mark.cpu_s
            or sample.cpu_s - mark.cpu_s >= LEAST_CPU_SHARE * self._stall_s
            or abs(sample.memory_mib - mark.memory_mib) >= LEAST_MEMORY_MIB
        ):
            self._mark = sample
            return ""
        if not self._stall_s or sample.at - mark.at < self._stall_s:
            return ""
        return "for {0:.0f} s it used {1:.1f} s of CPU time, and its memory stands at {2:.0f} MiB".format(
            sample.at - mark.at, sample.cpu_s - mark.cpu_s, sample.memory_mib
        )

    def line(self) -> str:
        """What was seen last, for a person; empty where nothing was."""
        if self._mark is None or self._last is None:
            return ""
        return "its last sign of life was {0:.0f} s ago, at {1:.0f} s of CPU time and {2:.0f} MiB".format(
            self._last.at - self._mark.at, self._mark.cpu_s, self._mark.memory_mib
        )
