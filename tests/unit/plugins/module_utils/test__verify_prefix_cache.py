# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The prefix cache is seen by its effect on the first token, over real sockets."""

from __future__ import annotations

import time

import pytest
from faults.engines import scripted

from ansible_collections.ironserve.llm.plugins.module_utils import _card_use, _verify
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

COLD_S = 0.3


def acceptance(**check):
    exact = {"check": "exact", "id": "japan", "prompt": "What is the capital of Japan?", "expect": ["Tokyo"]}
    quality = {"check": "quality", "id": "bread", "prompt": "Tell me about bread."}
    return _verify.read_acceptance({"checks": [exact, quality, dict({"check": "prefix_cache"}, **check)], "ttft_limit_s": 5})


def prove(monkeypatch, caches, cards=("cpu:0",), wanted=None):
    """Prove a scripted engine that reads long prompts slowly, each once (``caches``) or every time."""
    seen = []

    def answer(messages, plain=scripted.answer):
        text = messages[-1]["content"]
        if len(text) > 1000:
            if not (caches and text in seen):
                time.sleep(COLD_S)
            seen.append(text)
        return plain(messages)

    monkeypatch.setattr(scripted, "answer", answer)

    def no_sampler(*_args):
        raise _card_use.NoSampler("none here")

    monkeypatch.setattr(_card_use, "sampler", no_sampler)
    with scripted.Engine("healthy") as engine:
        endpoint = Endpoint("r0", engine.url, cards=tuple(cards))
        proof = _verify.prove_all([endpoint], "scripted", wanted or acceptance(), _verify.Limits(first_token_s=5, request_s=10))[0]
    return proof, {check["check"]: check for check in proof.checks}, seen


def test_a_cached_prefix_passes_and_gives_both_times(monkeypatch):
    proof, checks, seen = prove(monkeypatch, caches=True)
    assert proof.ok, proof.evidence
    found = checks["prefix_cache"]
    assert found["status"] == "pass"
    assert "without and" in found["detail"]
    assert found["figure"] > 2
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_no_cache_is_seen_and_said_with_both_times(monkeypatch):
    proof, checks, _seen = prove(monkeypatch, caches=False)
    assert proof.verdict == "partial"
    assert checks["prefix_cache"]["status"] == "fail"
    assert "least gain is 2 times" in checks["prefix_cache"]["detail"]


def test_every_run_has_a_prefix_of_its_own(monkeypatch):
    first = prove(monkeypatch, caches=True)[2]
    second = prove(monkeypatch, caches=True)[2]
    assert first[0][:40] != second[0][:40]


def test_behind_a_gateway_it_does_not_apply(monkeypatch):
    proof, checks, seen = prove(monkeypatch, caches=False, cards=())
    assert proof.ok, proof.evidence
    assert checks["prefix_cache"]["status"] == "not_applicable"
    assert seen == []


@pytest.mark.parametrize(
    ("option", "said"),
    [({"factor": 1}, "'factor' must be a number above 1"), ({"factor": "much"}, "'factor'"), ({"lines": 0}, "'lines'")],
)
def test_bad_options_are_named(option, said):
    with pytest.raises(LLMError, match=said):
        acceptance(**option)
