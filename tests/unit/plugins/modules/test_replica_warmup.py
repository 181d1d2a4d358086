# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module as Ansible calls it."""

from __future__ import annotations

import pytest
from faults.engines.scripted import Engine

from ansible_collections.ironserve.llm.plugins.modules import replica_warmup


def arguments(*engines, **changes):
    endpoints = [{"name": f"r{number}", "url": engine.url, "cards": ["cpu:0"], "platform": "cpu"} for number, engine in enumerate(engines)]
    return {"endpoints": endpoints, "model": "scripted", "timeout_s": 5, **changes}


@pytest.mark.parametrize("check_mode", [False, True])
def test_all_replicas_are_warm(run_module, check_mode):
    with Engine("healthy") as one, Engine("healthy") as two:
        result = run_module(replica_warmup, arguments(one, two, prompt_tokens=[32], max_num_seqs=2, rounds=2), check_mode)
        assert (len(one.asked), len(two.asked)) == (7, 7)
    assert result["changed"] is False
    assert [entry["name"] for entry in result["results"]] == ["r0", "r1"]
    assert all(entry["first_token_s"] > 0 and len(entry["rounds_s"]) == 2 for entry in result["results"])
    assert all(entry["cold_ttft_s"] > 0 and entry["warm_ttft_s"] > 0 for entry in result["results"])
    assert [line.split(", ")[0] for line in result["lines"]] == ["r0: warmed up", "r1: warmed up"]


def test_the_one_that_fails_is_named(run_module):
    with Engine("healthy") as one, Engine("status_500") as two:
        result = run_module(replica_warmup, arguments(one, two))
    assert result["failed"] is True
    assert result["msg"].startswith("replica r1 at ")
    assert "replica r0" not in result["msg"]
    assert result["results"][0]["error"] == ""


def test_bad_numbers_are_refused(run_module):
    with Engine("healthy") as engine:
        for bad in ({"timeout_s": 0}, {"stall_s": -1}):
            assert "timeout_s must be above 0" in run_module(replica_warmup, arguments(engine, **bad))["msg"]
        for bad in ({"prompt_tokens": [0]}, {"max_num_seqs": 0}, {"rounds": 1}):
            assert "must be 1 or more, and rounds 2 or more" in run_module(replica_warmup, arguments(engine, **bad))["msg"]


def test_how_long_a_container_may_stand_still_arrives(run_module, monkeypatch):
    given = {}
    monkeypatch.setattr(replica_warmup, "warm_all", lambda *_all: given.update(knowledge=_all[-1]) or [])
    with Engine("healthy") as engine:
        run_module(replica_warmup, arguments(engine))
        assert given["knowledge"].stall_s == 600
        run_module(replica_warmup, arguments(engine, stall_s=45))
    assert given["knowledge"].stall_s == 45
