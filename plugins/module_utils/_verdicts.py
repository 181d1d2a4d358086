# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From the outcomes of checks to one named verdict and what a person should do next. Pure; private to the collection."""

from __future__ import annotations

import dataclasses

from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, GOOD, PASS, UNKNOWN

OK = "ok"
STALLED = "stalled"
SLOW = "slow"
SATURATED = "saturated"
GARBAGE = "garbage"
PARTIAL = "partial"
NOT_LOADED = "not_loaded"
DEAD = "dead"
NO_VERDICT = "unknown"

VERDICTS = (OK, STALLED, SLOW, SATURATED, GARBAGE, PARTIAL, NOT_LOADED, DEAD, NO_VERDICT)

#: The worst sign first. A dead or hung replica gave no answers to judge; rubbish outranks its speed, because garbage is
#: often the fastest and a person who reads "slow" would go and tune it.
_ORDER = (DEAD, STALLED, NOT_LOADED, SATURATED, GARBAGE, SLOW, PARTIAL, NO_VERDICT)

_NEXT = {
    OK: "",
    STALLED: "Look at the card's use and the engine's log for a hung kernel or collective; restart the replica. "
    "With tensor parallelism above 1, try the same model on one card first",
    SLOW: "Compare with this card's recorded speed: look for other load on the card or its CPU cores, a missing kernel "
    "for this number format in the engine's log, throttling",
    SATURATED: "The replica is busy with other requests: stop the other load or wait, then prove it again",
    GARBAGE: "The weights and the engine do not fit each other: verify the weights against their manifest, compare their "
    "quantization with what the engine supports, and try the same weights unquantized or with enhancements off",
    PARTIAL: "It answers some kinds of requests only: the failing checks say which; keep it out of traffic",
    NOT_LOADED: "Wait for loading to end, or compare the served model name with the plan and read the engine's log",
    DEAD: "Read the last lines of the container's log; look for out of memory, a driver fault or a missing library",
    NO_VERDICT: "Nothing was proved: read the evidence, remove what kept the checks from running and verify again",
}


@dataclasses.dataclass
class Outcome:
    """What one check found.

    Attributes:
        check: the kind of check (``exact``, ``speed``...).
        id: which one of its kind; may be empty.
        status: as in ``_checks``.
        detail: one line for a person, with units.
        sign: the verdict this outcome points to when it is not good; empty when it is.
        language: ``en``, ``zh`` or empty, to see failures of one language.
        figure: the measured number, if the check has one.
        unit: the unit of the figure.
    """

    check: str
    id: str
    status: str
    detail: str
    sign: str = ""
    language: str = ""
    figure: float | None = None
    unit: str = ""

    @property
    def good(self) -> bool:
        """Whether the check stands in nobody's way."""
        return self.status in GOOD

    @property
    def name(self) -> str:
        """The check and its id, for people."""
        return "{0} {1}".format(self.check, self.id) if self.id else self.check

    def as_dict(self) -> dict:
        """Plain data for module results."""
        return dataclasses.asdict(self)


#: Kinds of checks without which nothing is proved.
PROVING = ("exact", "nonce_recall", "quality", "stream_equals_unary")


def one_language_only(outcomes: list[Outcome]) -> str:
    """The language to which all rubbish is confined while the other answers well; empty when there is none."""
    judged = [item for item in outcomes if item.check in PROVING and item.language]
    bad = {item.language for item in judged if not item.good}
    well = {item.language for item in judged if item.status == PASS}
    return bad.copy().pop() if len(bad) == 1 and well - bad and not bad & well else ""


def judge(outcomes: list[Outcome]) -> str:
    """Give the verdict over all outcomes of one replica.

    No outcome, or no passed check that proves inference, is ``unknown``: a list of good wishes proves nothing.
    """
    bad = [item for item in outcomes if not item.good]
    if not bad:
        return OK if any(item.check in PROVING and item.status == PASS for item in outcomes) else NO_VERDICT
    signs = {item.sign or NO_VERDICT for item in bad}
    worst = next((name for name in _ORDER if name in signs), NO_VERDICT)
    if worst == GARBAGE and one_language_only(outcomes):
        return PARTIAL
    return worst


def next_step(verdict: str) -> str:
    """What a person should do about ``verdict``; empty for ``ok``."""
    return _NEXT[verdict]


def evidence(outcomes: list[Outcome]) -> list[str]:
    """The lines that show why: failures first by weight, then unknowns, then, if all is good, what was proved."""
    bad = [item for item in outcomes if item.status == FAIL] + [item for item in outcomes if item.status == UNKNOWN]
    shown = bad or [item for item in outcomes if item.status == PASS]
    return ["{0}: {1}".format(item.name, item.detail) for item in shown]
