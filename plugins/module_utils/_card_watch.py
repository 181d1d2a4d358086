# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a replica's cards did while something else went on: use, memory and power, read again and again. Private to the collection.

Nothing here stops what is watched: what cannot be read is None, and ``why`` says so.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Sequence

from ansible_collections.ironserve.llm.plugins.module_utils import (
    _card_use,
    _cgroup,
    _probe_ascend,
    _probe_hygon,
    _probe_nvidia,
)
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Card
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

#: Probes that tell what a card does at the moment.
PROBES = {"ascend": _probe_ascend.probe, "hygon": _probe_hygon.probe, "nvidia": _probe_nvidia.probe}

#: utilisation_pct (mean of the cards), memory_used_mib and power_w (sums), memory_total_mib (sum); None for what is not known.
Reading = tuple

_FIGURES = ("utilisation_pct", "memory_used_mib", "power_w")


class ContainerReader:
    """Reads the control group of a container whose cards are cores: use and memory, no power."""

    why = "cores tell no power, and their memory is the host's"

    def __init__(self, platform: str, container: str, cards: Sequence[str]) -> None:
        # Lazily: an endpoint without a container must not need the docker library.
        from ansible_collections.ironserve.llm.plugins.module_utils import _docker

        self._sampler = _card_use.sampler(platform, container, list(cards))
        self._pid = _docker.container_pid(container)
        self._start = time.monotonic()
        self._before = (self._start, 0.0)

    def read(self) -> Reading:
        """Use since the last reading, memory now."""
        now = time.monotonic()
        # The sampler tells the use since it was made; in seconds of one per cent, differences are those of the interval.
        work = self._sampler.percent() * (now - self._start)
        then, before = self._before
        self._before = (now, work)
        use = (work - before) / (now - then) if now > then else None
        try:
            memory = _cgroup.memory_bytes(self._pid) / 1048576.0
        except (OSError, LLMError):
            memory = None
        return (use, memory, None, None)


def _total(values: Sequence[float | None]) -> float | None:
    return None if not values or None in values else float(sum(values))


class ProbeReader:
    """Reads cards with their platform's probe. ``probe`` returns what it found; ``cards`` are the ids wanted."""

    why = ""

    def __init__(self, probe: Callable[[], Sequence[Card]], cards: Sequence[str]) -> None:
        self._probe = probe
        self._wanted = list(cards)

    def read(self) -> Reading:
        """Raises LLMError when a card is not there."""
        found = {card.id: card for card in self._probe()}
        missing = [name for name in self._wanted if name not in found]
        if missing or not self._wanted:
            raise LLMError("the probe does not show {0}".format(", ".join(missing) or "any card of this replica"))
        cards = [found[name] for name in self._wanted]
        use = _total([card.utilisation_pct for card in cards])
        return (
            None if use is None else use / len(cards),
            _total([card.memory_used_mib for card in cards]),
            _total([card.power_w for card in cards]),
            _total([card.memory_total_mib for card in cards]),
        )


class Watch:
    """Reads in a thread of its own from ``start`` to ``stop``, every ``period_s`` seconds and once at the end.

    ``reader`` is None when nothing can be read; ``why`` then says why.
    """

    def __init__(self, reader: Any, why: str = "", period_s: float = 1.0) -> None:
        self._reader = reader
        self._why = why or (reader.why if reader is not None else "nothing to read")
        self._period_s = period_s
        self._over = threading.Event()
        self._thread = None
        self._start = 0.0
        self.samples = []
        self._total_mib = None

    def start(self) -> None:
        """Begin."""
        self._start = time.monotonic()
        if self._reader is not None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            over = self._over.wait(self._period_s)
            try:
                use, memory, power, total = self._reader.read()
            except (LLMError, OSError) as exc:
                self._why = str(exc)
                return
            self._total_mib = total
            self.samples.append((time.monotonic() - self._start, use, memory, power))
            if over:
                return

    def stop(self) -> dict[str, Any]:
        """End; returns ``utilisation_pct``, ``memory_used_mib``, ``power_w`` (mean and max, or None), ``memory_total_mib``, ``samples``, ``why``."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        out = {name: _statistics([row[place] for row in self.samples], self.samples) for place, name in enumerate(_FIGURES, 1)}
        known = all(out[name] is not None for name in _FIGURES)
        samples = [[None if value is None else round(value, 3) for value in row] for row in self.samples]
        return dict(out, memory_total_mib=self._total_mib, samples=samples, why="" if known else self._why)


def _statistics(values: Sequence[float | None], samples: Sequence[tuple]) -> dict[str, float] | None:
    """Mean over time (each reading stands for the time since the one before) and maximum; None when one is not known."""
    if not values or any(value is None for value in values):
        return None
    edges = [0.0] + [row[0] for row in samples]
    spans = [after - before for before, after in zip(edges, edges[1:])]
    span = sum(spans)
    mean = sum(value * part for value, part in zip(values, spans)) / span if span > 0 else sum(values) / len(values)
    return {"mean": mean, "max": max(values)}


def watch(platform: str, container: str, cards: Sequence[str], probe: str, vendor: Vendor, period_s: float) -> Watch:
    """What watches the cards of one replica. ``probe`` is the name of the platform's; empty where there is none.

    Where nothing can be read, the watch says why instead.
    """
    if not container:
        return Watch(None, "no container on this host belongs to this endpoint")
    try:
        if probe in PROBES:
            return Watch(ProbeReader(lambda: PROBES[probe](vendor).cards, cards), period_s=period_s)
        return Watch(ContainerReader(platform, container, cards), period_s=period_s)
    except LLMError as exc:
        return Watch(None, str(exc))
