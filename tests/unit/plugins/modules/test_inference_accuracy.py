# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module's own entry point against an engine whose answers are known: three of four problems right, half of them Chinese."""

from __future__ import annotations

import json

import pytest

from ansible_collections.ironserve.llm.plugins.modules import inference_accuracy

fleet = pytest.importorskip("standin.fleet")

SET = "\n".join(
    json.dumps({"question": question, "answer": "#### {0}".format(answer), "language": language})
    for question, answer, language in (
        ("apples 3 and 4?", 7, "en"),
        ("pears 2 and 2?", 4, "en"),
        ("\u4e09\u52a0\u4e94\uff1f", 8, "zh"),
        ("\u4e8c\u52a0\u56db\uff1f", 6, "zh"),
    )
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    rules = [
        {"match": "apples", "text": "3 + 4 = 7, so\n#### 7"},
        {"match": "pears", "text": "2 + 2 = 5\n#### 5"},
        {"match": "\u4e09\u52a0\u4e94", "text": "\u7b54\u6848\u662f8\u3002"},
        {"match": "\u4e8c\u52a0\u56db", "text": "2+4=6\n\uff03\uff03\uff03\uff03 \uff16"},
    ]
    (folder / "script").write_text(json.dumps(rules))
    with fleet.Fleet(1, folder, slots=4, decode_tokens_per_s=1000, prefill_tokens_per_s=1e6, script=folder / "script") as started:
        yield started.engines[0]


def options(engine, **changes):
    return dict(
        {"endpoints": [{"name": "c0", "url": engine.url}], "model": "standin", "problems": SET, "recorded": 0.75, "tolerance": 0.0},
        **changes,
    )


def test_scores_and_judges(run_module, engine):
    result = run_module(inference_accuracy, options(engine))
    (found,) = result["results"]
    assert result["ok"] is True and result["changed"] is False
    assert (found["score"], found["right"], found["count"]) == (0.75, 3, 4) and found["by_language"] == {"en": 0.5, "zh": 1.0}
    assert [item["found"] for item in found["wrong"]] == ["5"]


def test_a_model_that_lost_some_of_its_mind_fails(run_module, engine):
    result = run_module(inference_accuracy, options(engine, recorded=0.9, tolerance=0.1))
    assert result["failed"] and "c0: 75.0 % right, 90.0 % recorded, 80.0 % allowed" in result["msg"] and result["ok"] is False
    result = run_module(inference_accuracy, options(engine, recorded=0.9, tolerance=0.1, fail_on_score=False))
    assert not result.get("failed") and result["ok"] is False


def test_without_a_record_nothing_is_judged(run_module, engine, tmp_path):
    (tmp_path / "set").write_text(SET)
    result = run_module(
        inference_accuracy,
        {"endpoints": [{"name": "c0", "url": engine.url}], "model": "standin", "path": str(tmp_path / "set"), "limit": 1},
    )
    assert result["ok"] is None and result["results"][0]["score"] == 1.0 and result["results"][0]["count"] == 1


def test_no_answer_is_no_score(run_module, engine):
    result = run_module(inference_accuracy, options(engine, recorded=0.0, endpoints=[{"name": "gone", "url": "http://127.0.0.1:1"}]))
    assert result["failed"] and "4 of 4 questions were not answered" in result["msg"] and "connection refused" in result["msg"]


def test_an_address_with_a_password_is_refused_and_not_shown(run_module, engine):
    result = run_module(inference_accuracy, options(engine, endpoints=[{"name": "c0", "url": "http://me:hunter2@127.0.0.1:1"}]))
    assert result["failed"] and "endpoint c0: its url holds a user or a password" in result["msg"] and "hunter2" not in json.dumps(result)


def test_check_mode_asks_nothing(run_module, engine):
    before = len(engine.records())
    result = run_module(inference_accuracy, options(engine), check_mode=True)
    assert result["ok"] is None and result["results"] == [] and len(engine.records()) == before


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"problems": ""}, "either path or problems"),
        ({"path": "/x"}, "either path or problems"),
        ({"problems": "", "path": "/nowhere"}, "path /nowhere can't be read"),
        ({"recorded": 95.0}, "share from 0 to 1"),
        ({"concurrency": 0}, "concurrency must be 1 or more"),
        ({"tolerance": 2}, "tolerance is a share from 0 to 1, not 2: 2 % is 0.02"),
        ({"timeout_s": float("nan")}, "timeout_s must be 0.001 or more, not nan"),
        ({"timeout_s": float("inf")}, "timeout_s must be at most 604800 s, not inf"),
        ({"endpoints": []}, "no endpoint"),
        ({"endpoints": [{"name": "c0", "url": "http://127.0.0.1:1"}] * 2}, 'the name "c0" is given twice'),
        ({"request": {"stream": False, "top_p": 1}}, "request may not have stream: the probe sets it"),
    ],
)
def test_options_that_cannot_work_are_refused(run_module, engine, changes, said):
    result = run_module(inference_accuracy, options(engine, **changes))
    assert result["failed"] and said in result["msg"]
