# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One line per check: what was looked at, the verdict, what to do. Private to the collection."""

from __future__ import annotations

import dataclasses

PASS = "pass"
FAIL = "fail"
WARN = "warn"
UNKNOWN = "unknown"
NOT_APPLICABLE = "not_applicable"

#: Statuses that let a deployment go on. ``unknown`` is deliberately not among them.
GOOD = (PASS, WARN, NOT_APPLICABLE)


@dataclasses.dataclass
class Check:
    """The outcome of one check.

    Attributes:
        name: what was checked, ``snake_case``.
        status: ``pass``, ``fail``, ``warn``, ``unknown`` or ``not_applicable``.
        detail: what was found, in one line, with units.
        fix: what a person should do; empty when the status is good.
    """

    name: str
    status: str
    detail: str
    fix: str = ""

    @property
    def good(self) -> bool:
        """Whether a deployment may go on after this check."""
        return self.status in GOOD

    def line(self) -> str:
        """Render the check as the one line a person reads."""
        text = "{0:<8} {1:<24} {2}".format(self.status.upper().replace("NOT_APPLICABLE", "N/A"), self.name, self.detail)
        return "{0}. Fix: {1}".format(text.rstrip("."), self.fix) if self.fix else text

    def as_dict(self) -> dict[str, str]:
        """Return the check as plain data for module results."""
        return dataclasses.asdict(self)


def all_good(checks: list[Check]) -> bool:
    """Whether every check lets a deployment go on; an empty list does not count as proof."""
    return bool(checks) and all(check.good for check in checks)


def failures(checks: list[Check]) -> list[str]:
    """The lines of the checks that stop a deployment."""
    return [check.line() for check in checks if not check.good]
