# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wait until cards have let go of the memory of what was stopped on them. Private to the collection.

A container that ended says nothing of its card: workers outlive it, and drivers give memory back late. An engine that starts meanwhile
ends at once, or measures wrong how much there is.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable

from ansible_collections.ironserve.llm.plugins.module_utils._card_watch import PROBES
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

#: Between two readings of a vendor's tool, seconds.
POLL_S = 2.0


def _name(holder: Any) -> str:
    if holder.container:
        return "container {0}".format(holder.container)
    return "pid {0}{1}".format(holder.pid, " ({0})".format(holder.name) if holder.name else "")


def held(found: Iterable[Any], wanted: list[str], idle_mib: int) -> str:
    """Which of the cards ``wanted`` still have memory in use, and by whom, for a person; empty when all of them are free.

    A card that is not listed, or does not say what it holds, is not known to be free.

    Args:
        found: cards as a probe gives them.
        idle_mib: device memory that a card shows when nothing runs on it, at most.
    """
    cards = {card.id: card for card in found}
    lines = []
    for name in wanted:
        used = cards[name].memory_used_mib if name in cards else None
        if name not in cards:
            lines.append("{0} is not listed any more".format(name))
        elif used is None:
            lines.append("{0} does not say what memory is in use".format(name))
        elif used > idle_mib:
            who = [_name(holder) for holder in cards[name].holders]
            lines.append("{0} has {1} MiB in use by {2}".format(name, used, ", ".join(who) or "nobody that is seen"))
    return "; ".join(lines)


class Freedom:
    """Waits for cards to be free.

    Args:
        tools: how they are read: ``probe`` (its name), ``tools``, ``environment``, ``timeout_s``, ``root`` and ``sysfs``, as ``Vendor`` takes
            them. A probe that the collection does not have, or whose cards are cores, is not waited for.
        idle_mib: as for ``held``.
        timeout_s: longest wait, seconds; 0 waits for nothing.
    """

    def __init__(self, tools: dict[str, Any], idle_mib: int, timeout_s: float) -> None:
        self._probe: Callable[[Vendor], Any] | None = PROBES.get(str(tools.get("probe", "")))
        self._vendor = Vendor(
            tools.get("tools"),
            {name: str(value) for name, value in (tools.get("environment") or {}).items()},
            float(tools.get("timeout_s") or 30.0),
            str(tools.get("root") or "/"),
            str(tools.get("sysfs") or ""),
        )
        self._idle_mib = idle_mib
        self._timeout_s = timeout_s

    def _look(self, probe: Callable[[Vendor], Any], wanted: list[str]) -> str:
        try:
            return held(probe(self._vendor).cards, wanted, self._idle_mib)
        except LLMError as exc:
            # One odd reading is no verdict; only odd ones are.
            return "the cards cannot be read: {0}".format(exc)

    def wait(self, wanted: list[str]) -> str:
        """Wait until the cards ``wanted`` are free. Returns nothing, or after the longest wait what still is not so."""
        if self._probe is None or not wanted or not self._timeout_s:
            return ""
        end = time.monotonic() + self._timeout_s
        while True:
            text = self._look(self._probe, wanted)
            if not text or time.monotonic() >= end:
                return text
            time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))

    def demand(self, wanted: list[str]) -> None:
        """Wait as ``wait`` does. Raises LLMError, naming card and holder, when the cards are not free after that."""
        text = self.wait(wanted)
        if text:
            raise LLMError(
                "{0}, {1:g} s after its container was stopped; an idle card shows {2} MiB at most. End the worker that outlived its container, "
                "or restart the host; where only the wait was too short, raise replica_free_timeout_s".format(
                    text, self._timeout_s, self._idle_mib
                )
            )
