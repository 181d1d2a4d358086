# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""No healthy oddity of the zoo raises an alarm, and every check was really made."""

from __future__ import annotations

import pytest
from faults.zoo.animals import ODDITIES
from faults.zoo.proof import show


@pytest.mark.slow
@pytest.mark.parametrize("animal", ODDITIES, ids=[animal.name for animal in ODDITIES])
def test_every_oddity_passes_every_check(animal):
    shown = show(animal)
    assert shown.right, (shown.late_s, shown.proof.evidence)
    assert shown.proof.decode_tokens_per_s > 0
    made = {(check["check"], check["id"]) for check in shown.proof.checks if check["status"] == "pass"}
    missing = [
        item
        for item in animal.acceptance()["checks"]
        if item["check"] not in ("exact_set", "card_use", "counters") and (item["check"], item.get("id", "")) not in made
    ]
    assert missing == []
