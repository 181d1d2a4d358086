# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How busy a replica's cards were over a span of time. Private to the collection.

Platform ``cpu`` counts CPU time; every other platform is read by its probe, over and over while a proof asks its questions.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable

from ansible_collections.ironserve.llm.plugins.module_utils import _cgroup
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

#: Between two readings of a vendor's tool, seconds: it costs CPU time of the host, and some tools a moment of the card.
INTERVAL_S = 2.0
#: How long the first reading is waited for when a proof is over before it.
FIRST_S = 60.0


class NoSampler(LLMError):
    """Card use can't be told here by design; the message says why."""


class CpuSampler:
    """Card use on platform ``cpu``: CPU time of the container's control group over the cores it holds."""

    def __init__(self, container: str, cards: list[str]) -> None:
        # Lazily: an endpoint without a container must not need the docker library.
        from ansible_collections.ironserve.llm.plugins.module_utils import _docker

        self._cards = max(1, len(cards))
        self._container = container
        try:
            self._account = _cgroup.account_of(_docker.container_pid(container), "cpu")
        except OSError as exc:
            raise self._gone(exc) from None
        self._at = time.monotonic()
        self._seconds = self._read()

    def _gone(self, exc: OSError) -> LLMError:
        return LLMError("CPU time of container {0} can't be read, it probably ended: {1}".format(self._container, exc.strerror))

    def _read(self) -> float:
        try:
            return _cgroup.cpu_seconds(self._account)
        except OSError as exc:
            raise self._gone(exc) from None

    def percent(self) -> float:
        """Use since this sampler was made, in percent of all its cards together."""
        elapsed = time.monotonic() - self._at
        return 100.0 * (self._read() - self._seconds) / elapsed / self._cards if elapsed > 0 else 0.0


class ToolSampler:
    """Card use as the platform's own tool shows it, read by its probe in the background until ``close``.

    What the tool shows is use in its own short window, so the mean of many readings counts, never a single one of them before
    the first question.
    """

    def __init__(self, probe: Callable, vendor: Vendor, cards: list[str], interval_s: float = INTERVAL_S) -> None:
        self._probe = probe
        self._vendor = vendor
        self._cards = list(cards)
        self._interval_s = interval_s
        self._values = []
        self._error = ""
        self._over = threading.Event()
        self._first = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _read(self) -> float:
        found = {card.id: card for card in self._probe(self._vendor).cards}
        missing = [card for card in self._cards if card not in found]
        if missing:
            raise LLMError("the tool does not list card {0} any more; it lists {1}".format(missing[0], ", ".join(sorted(found)) or "none"))
        silent = [card for card in self._cards if found[card].utilisation_pct is None]
        if silent:
            raise LLMError("the tool does not say how busy card {0} is".format(silent[0]))
        return sum(found[card].utilisation_pct for card in self._cards) / len(self._cards)

    def _watch(self) -> None:
        while not self._over.wait(self._interval_s):
            try:
                self._values.append(self._read())
            except LLMError as exc:
                # One odd reading among good ones is no reason to know nothing; only odd ones are.
                self._error = str(exc)
            self._first.set()

    def percent(self) -> float:
        """Mean use of its cards since it was made. Raises LLMError when no reading was understood."""
        self._first.wait(FIRST_S)
        values = list(self._values)
        if not values:
            raise LLMError("card use can't be read: {0}".format(self._error or "the tool did not answer in {0:g} s".format(FIRST_S)))
        return sum(values) / len(values)

    def close(self) -> None:
        """Read no more."""
        self._over.set()


SAMPLERS = {"cpu": CpuSampler}


def _probe_of(name: str) -> Callable | None:
    """The collection's probe of this name; None for one that it does not have."""
    if name == "hygon":
        from ansible_collections.ironserve.llm.plugins.module_utils import _probe_hygon as module
    elif name == "ascend":
        from ansible_collections.ironserve.llm.plugins.module_utils import _probe_ascend as module
    elif name == "nvidia":
        from ansible_collections.ironserve.llm.plugins.module_utils import _probe_nvidia as module
    else:
        return None
    return module.probe


def sampler(platform: str, container: str, cards: list[str], tools: dict | None = None) -> Any:
    """Start sampling the cards of one replica.

    ``tools`` says how the platform's cards are read: ``probe`` (its name), ``tools`` (name -> paths), ``environment``,
    ``timeout_s``, ``root`` and ``sysfs``, as ``_vendor.Vendor`` takes them. Platform ``cpu`` needs none.
    Raises NoSampler when there is nothing to sample by design (no container named, platform without a sampler), and
    LLMError when there should be something but it can't be read.
    """
    if not container:
        raise NoSampler("no container belongs to this endpoint")
    probe = _probe_of(str((tools or {}).get("probe", "")))
    if platform not in SAMPLERS and probe is not None:
        if not cards:
            raise LLMError("no card is named for container {0}, so nobody can see it working".format(container))
        vendor = Vendor(
            tools.get("tools"),
            {name: str(value) for name, value in (tools.get("environment") or {}).items()},
            float(tools.get("timeout_s") or 30.0),
            str(tools.get("root") or "/"),
            str(tools.get("sysfs") or ""),
        )
        return ToolSampler(probe, vendor, cards, INTERVAL_S)
    if platform not in SAMPLERS:
        raise NoSampler('platform "{0}" has no card use sampler'.format(platform))
    return SAMPLERS[platform](container, cards)
