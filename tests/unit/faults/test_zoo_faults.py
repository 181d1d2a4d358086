# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every fault of the zoo gets its verdict with its evidence, over real sockets."""

from __future__ import annotations

import pytest
from faults.zoo import table
from faults.zoo.animals import ANIMALS, CHECKS, FAULTS, ODDITIES
from faults.zoo.proof import show

from ansible_collections.ironserve.llm.plugins.module_utils import _verdicts, _verify

TIMES = 20


def names(animals):
    return [animal.name for animal in animals]


@pytest.mark.slow
@pytest.mark.parametrize("animal", FAULTS, ids=names(FAULTS))
def test_every_fault_gets_its_verdict_and_evidence(animal):
    shown = show(animal)
    assert shown.right, (shown.late_s, shown.proof.verdict, shown.proof.evidence)
    assert shown.proof.next_step
    assert (shown.proof.ttft_ms, shown.proof.decode_tokens_per_s, shown.proof.card_use_pct) == (None, None, None)


@pytest.mark.long
@pytest.mark.parametrize("animal", ANIMALS, ids=names(ANIMALS))
def test_every_animal_is_told_twenty_times(animal):
    found = [show(animal) for _number in range(TIMES)]
    wrong = [(shown.late_s, shown.proof.verdict, shown.proof.evidence) for shown in found if not shown.right]
    assert wrong == []


def test_the_zoo_is_large_and_every_verdict_and_check_is_in_it():
    assert len(FAULTS) >= 40
    assert len(ODDITIES) >= 25
    assert len(set(names(ANIMALS))) == len(ANIMALS)
    assert {animal.verdict for animal in FAULTS} == set(_verdicts.VERDICTS) - {_verdicts.OK}
    assert {animal.verdict for animal in ODDITIES} == {_verdicts.OK}
    asked = {item["check"] for animal in ANIMALS for item in animal.acceptance()["checks"]}
    # Agreement needs two replicas, the cache's speed a card, and a nonce is in the packaged set.
    assert asked | {"agreement", "prefix_cache", "exact", "nonce_recall"} == set(_verify.KINDS)


def test_no_animal_is_asked_less_than_the_list():
    wanted = {(item["check"], item.get("id", "")) for item in CHECKS}
    for animal in ANIMALS:
        assert wanted <= {(item["check"], item.get("id", "")) for item in animal.acceptance()["checks"]}, animal.name
        assert bool(animal.evidence) == (animal.verdict != _verdicts.OK), animal.name


def test_the_page_is_current():
    assert table.PAGE.read_text(encoding="utf-8") == table.page(), "run PYTHONPATH=tests python3 -m faults.zoo.table"
