# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Prove one animal of the zoo, over real sockets, with the check list that all of them get."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Iterator

from ansible_collections.ironserve.llm.plugins.module_utils import _card_use, _verify
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint

from .animals import KEY, LIMITS, Animal
from .engine import SLOTS, Zoo


class Meter:
    """A card use sampler that shows one figure."""

    def __init__(self, percent: float) -> None:
        self._percent = percent

    def percent(self) -> float:
        """The figure."""
        return self._percent


@contextlib.contextmanager
def meter(percent: float | None) -> Iterator[None]:
    """Give platform ``zoo`` a sampler that shows ``percent``."""
    if percent is not None:
        _card_use.SAMPLERS["zoo"] = lambda _container, _cards: Meter(percent)
    try:
        yield
    finally:
        _card_use.SAMPLERS.pop("zoo", None)


class Lag:
    """How late this process got to run while the block ran: at worst and on average, seconds."""

    STEP_S = 0.02

    def __enter__(self) -> Lag:
        self.worst_s = self.mean_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        last = time.monotonic()
        late, steps = 0.0, 0
        while not self._over.wait(self.STEP_S):
            now = time.monotonic()
            late, steps = late + now - last - self.STEP_S, steps + 1
            self.worst_s, self.mean_s = max(self.worst_s, now - last - self.STEP_S), late / steps
            last = now

    @property
    def starved(self) -> bool:
        """Whether it got too little of the machine to tell a slow engine from itself."""
        return self.worst_s > WORST_S or self.mean_s > MEAN_S

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join()


@dataclasses.dataclass(frozen=True)
class Shown:
    """What the proof of one animal came to, and how late this process was meanwhile, at worst and on average, seconds."""

    proof: _verify.Proof
    right: bool
    late_s: tuple


#: Beyond these a process can't tell a slow engine from itself; on an idle machine they are 0.02 and 0.002.
WORST_S = 0.25
MEAN_S = 0.02
TRIES = 4


def prove(animal: Animal) -> _verify.Proof:
    """The proof of one animal, in an engine of its own."""
    acceptance = _verify.read_acceptance(animal.acceptance())
    with tempfile.TemporaryDirectory() as directory, Zoo(animal.make(), animal.options, KEY) as zoo, meter(animal.cards_pct):
        path = os.path.join(directory, "key")
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(KEY)
        if animal.prepare is not None:
            animal.prepare(zoo)
        container = "zoo" if animal.cards_pct is not None else ""
        endpoint = Endpoint(animal.name, zoo.url, path, container=container, platform="zoo")
        return _verify.prove_all([endpoint], "zoo", acceptance, _verify.Limits(**LIMITS), max_num_seqs=SLOTS)[0]


def show(animal: Animal) -> Shown:
    """Prove one animal; a wrong outcome while this process lagged is no outcome, and it is proved again."""
    for _number in range(TRIES):
        with Lag() as lag:
            proof = prove(animal)
        right = proof.verdict == animal.verdict and (not animal.evidence or animal.shows(proof.evidence))
        if right or not lag.starved:
            break
    return Shown(proof, right, (lag.worst_s, lag.mean_s))
