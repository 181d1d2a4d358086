# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How busy a replica's cards were over a span of time. Private to the collection.

A platform joins by adding a sampler class to ``SAMPLERS``.
"""

from __future__ import annotations

import time

from ansible_collections.ironserve.llm.plugins.module_utils import _cgroup
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


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


SAMPLERS = {"cpu": CpuSampler}


def sampler(platform: str, container: str, cards: list[str]) -> CpuSampler:
    """Start sampling the cards of one replica.

    Raises NoSampler when there is nothing to sample by design (no container named, platform without a sampler), and
    LLMError when there should be something but it can't be read.
    """
    if not container:
        raise NoSampler("no container belongs to this endpoint")
    if platform not in SAMPLERS:
        raise NoSampler('platform "{0}" has no card use sampler'.format(platform))
    return SAMPLERS[platform](container, cards)
