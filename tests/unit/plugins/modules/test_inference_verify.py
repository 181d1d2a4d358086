# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module as Ansible calls it."""

from __future__ import annotations

import pytest
from faults.engines.scripted import Engine

from ansible_collections.ironserve.llm.plugins.modules import inference_verify

ACCEPTANCE = {
    "checks": [
        {"check": "exact", "id": "japan", "prompt": "What is the capital of Japan?", "expect": ["Tokyo"]},
        {"check": "quality", "id": "bread", "prompt": "Tell me about bread."},
    ]
}


def arguments(*engines, **changes):
    endpoints = [{"name": f"r{number}", "url": engine.url} for number, engine in enumerate(engines)]
    return {"endpoints": endpoints, "model": "scripted", "acceptance": ACCEPTANCE, **changes}


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_healthy_replica_is_ok_and_nothing_changes(run_module, check_mode):
    with Engine("healthy") as engine:
        result = run_module(inference_verify, arguments(engine), check_mode)
    assert result["changed"] is False
    assert result["ok"] is True
    assert result["results"][0]["verdict"] == "ok"
    assert result["results"][0]["decode_tokens_per_s"] > 5
    assert len(result["summary"]) == 2


def test_a_failed_verdict_fails_the_task_with_everything_in_the_result(run_module):
    with Engine("healthy") as good, Engine("garbage_run") as bad:
        result = run_module(inference_verify, arguments(good, bad))
    assert result["failed"] is True
    assert result["msg"].startswith("not proved: r1 is garbage (exact japan: ")
    assert [entry["verdict"] for entry in result["results"]] == ["ok", "garbage"]
    assert any("garbage" in line for line in result["summary"])


def test_an_answer_that_no_encoding_takes_is_a_verdict_not_a_broken_result(run_module):
    """Half surrogate pairs come escaped in JSON; the fixture refuses a result that cannot be sent."""
    with Engine("garbage_surrogates") as bad:
        result = run_module(inference_verify, arguments(bad))
    assert result["results"][0]["verdict"] == "garbage"
    assert result["msg"].startswith("not proved: r0 is garbage (") and "U+D83D" in result["msg"]


def test_the_verdict_may_be_only_told(run_module):
    with Engine("garbage_run") as bad:
        result = run_module(inference_verify, arguments(bad, fail_on_verdict=False))
    assert (result.get("failed", False), result["ok"]) == (False, False)


def test_partly_given_timeouts_and_extra_checks_keep_their_other_defaults(run_module):
    with Engine("never_answers") as engine:
        changes = {"timeouts": {"first_token_s": 0.3}, "extra_checks": {"closed_paths": ["/x"]}, "fail_on_verdict": False}
        result = run_module(inference_verify, arguments(engine, **changes))
    assert result["results"][0]["verdict"] == "stalled"
    assert "no byte for 0.3 s" in result["results"][0]["evidence"][0]


def test_no_endpoint_is_no_proof(run_module):
    result = run_module(inference_verify, arguments())
    assert result["failed"] is True
    assert result["msg"] == "not proved: no endpoint was given"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"acceptance": {"checks": []}}, "at least one 'exact' or 'nonce_recall'"),
        ({"parallel": -1}, "parallel must be 0"),
        ({"endpoints": [{"name": "r0", "url": "http://127.0.0.1:%d" % port} for port in (1, 2)]}, 'the name "r0" is given twice'),
        ({"timeouts": {"total_s": 0}}, "timeouts.total_s must be above 0 s"),
        ({"timeouts": {"first_token_s": float("nan")}}, "at most 604800 s, not nan"),
        ({"timeouts": {"request_s": float("inf")}}, "at most 604800 s, not inf"),
    ],
)
def test_bad_input_is_one_clear_message(run_module, changes, message):
    with Engine("healthy") as engine:
        result = run_module(inference_verify, arguments(engine, **changes))
    assert result["failed"] is True
    assert message in result["msg"]


def test_how_many_run_at_a_time_comes_from_the_plan(run_module):
    crowd = {"checks": [*ACCEPTANCE["checks"], {"check": "concurrency", "seconds": 0.1, "max_tokens": 128}]}
    with Engine("healthy") as engine:
        result = run_module(inference_verify, arguments(engine, acceptance=crowd, max_num_seqs=3))
        told = next(check["detail"] for check in result["results"][0]["checks"] if check["check"] == "concurrency")
        assert result["ok"] and "3 at once" in told
        result = run_module(inference_verify, arguments(engine, acceptance=crowd))
        assert result["failed"] and "r0 is unknown (concurrency: " in result["msg"]
        assert "max_num_seqs must be 0" in run_module(inference_verify, arguments(engine, max_num_seqs=-1))["msg"]


@pytest.mark.parametrize("url", ["http://joe:hunter2@127.0.0.1:1", "http://127.0.0.1:1/?key=hunter2"])
def test_what_is_secret_in_an_address_stands_nowhere_in_the_result(run_module, url):
    result = run_module(inference_verify, {**arguments(), "endpoints": [{"name": "r0", "url": url}]})
    assert result["failed"] is True
    assert result["msg"].startswith("endpoint r0: its url holds a ")
    assert "hunter2" not in str(result) and "results" not in result
