# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The verdict over outcomes: the worst sign wins, and unknown is never ok."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _verdicts
from ansible_collections.ironserve.llm.plugins.module_utils._verdicts import Outcome


def passed(check="exact", language="en"):
    return Outcome(check, "a", "pass", "fine", "", language)


def failed(sign, check="exact", language="en"):
    return Outcome(check, "b", "fail", "bad", sign, language)


@pytest.mark.parametrize(
    "outcomes, verdict",
    [
        ([passed()], "ok"),
        ([passed(), Outcome("card_use", "", "warn", "no sampler")], "ok"),
        ([passed(), Outcome("tool_loop", "", "not_applicable", "no tools")], "ok"),
        ([], "unknown"),
        ([passed("models")], "unknown"),
        ([Outcome("exact", "", "not_applicable", "x")], "unknown"),
        ([passed(), Outcome("card_use", "", "unknown", "x")], "unknown"),
        ([passed(), failed("slow", "speed")], "slow"),
        ([failed("garbage"), failed("slow", "speed")], "garbage"),
        ([failed("garbage"), failed("dead")], "dead"),
        ([failed("garbage"), failed("stalled")], "stalled"),
        ([failed("not_loaded", "models")], "not_loaded"),
        ([passed(), failed("partial", "closed_path")], "partial"),
        ([passed(), failed("garbage", language="zh")], "partial"),
        ([passed(language="zh"), failed("garbage", language="zh")], "garbage"),
        ([passed(language=""), failed("garbage", language="")], "garbage"),
    ],
)
def test_judgement(outcomes, verdict):
    assert _verdicts.judge(outcomes) == verdict


@pytest.mark.parametrize("verdict", _verdicts.VERDICTS)
def test_every_verdict_but_ok_says_what_to_do(verdict):
    assert bool(_verdicts.next_step(verdict)) is (verdict != "ok")


def test_evidence_shows_failures_before_unknowns_and_proof_when_all_is_good():
    unknown = Outcome("card_use", "", "unknown", "gone")
    assert _verdicts.evidence([passed(), unknown, failed("garbage")]) == ["exact b: bad", "card_use: gone"]
    assert _verdicts.evidence([passed()]) == ["exact a: fine"]
