# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a request may ask for, and what a bad one gets."""

from __future__ import annotations

import json
import re

import pytest
from faults.zoo.prover import Prover, said

from ansible_collections.ironserve.llm.plugins.module_utils import _checks_form


def fills(messages, _max_tokens, extra, _streamed):
    assert extra["response_format"]["json_schema"]["strict"] is True
    return said(json.dumps({"country": "Japan", "code": int(re.search("[0-9]{6}", messages[0]["content"]).group())}))


def only(way, text):
    """Healthy but for one way of asking."""
    return lambda messages, limit, extra, streamed: (
        said(text) if streamed == (way == "streamed") else fills(messages, limit, extra, streamed)
    )


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (fills, ""),
        (only("whole", "Japan, 123456"), "whole: the answer is no JSON"),
        (only("whole", "[" * 200000), "whole: the answer is no JSON"),
        (only("streamed", "```json\n{}\n```"), "streamed: the answer is no JSON"),
        (only("streamed", '{"country": "Japan"}'), 'streamed: the answer lacks "code"'),
        (only("whole", '{"country": "Japan", "code": 1}'), "whole: the form should say Japan and"),
    ],
)
def test_json_of_a_schema(answer, trouble):
    found = _checks_form.json_schema(Prover(answer), {})
    assert found.trouble.startswith(trouble) if trouble else found.good


@pytest.mark.parametrize(
    ("text", "finish", "trouble"),
    [
        ("alpha bravo charlie ", "stop", ""),
        ("alpha bravo charlie delta", "stop", 'past the stop string "delta"'),
        ("alpha bravo charlie delta echo foxtrot", "stop", "past the stop string"),
        ("Sure!", "stop", "not what comes before the stop string"),
        ("alpha bravo charlie", "length", 'finish reason "length" at a stop string'),
    ],
)
def test_a_stop_string(text, finish, trouble):
    found = _checks_form.stop(Prover(lambda *_args: said(text, finish=finish)), {})
    assert trouble in found.trouble
    assert bool(found.trouble) == bool(trouble)


@pytest.mark.parametrize(
    ("made", "finish", "trouble"),
    [
        (16, "length", ""),
        (None, "length", ""),
        (17, "length", "whole: it made 17 tokens, max_tokens was 16"),
        (16, "stop", 'whole: cut at 16 tokens it gave the finish reason "stop"'),
    ],
)
def test_the_length(made, finish, trouble):
    assert _checks_form.max_tokens(Prover(lambda *_args: said("Bread is", finish=finish, made=made)), {}).trouble == trouble


def in_turn(*texts):
    """Answers these, one after the other; the first is whole, the second streamed."""
    left = list(texts)
    return Prover(lambda *_args: said(left.pop(0), finish="length", made=16))


@pytest.mark.parametrize(
    ("texts", "trouble"),
    [
        # One that differs may be an accident of what else ran; then the third is like one of them.
        (("Bread is old.", "Bread was old.", "Bread is old."), ""),
        (("Bread is old.", "Bread was old.", "Bread was old."), ""),
        (("Bread is old.", "Bread was old.", "Once there was bread."), "three answers to one question at temperature 0, no two alike"),
        (("x" * 70, "y" * 42, "y" * 42), ""),
        (("x" * 70, "x" * 41), "of 16 tokens came 70 characters whole, but 41 streamed: text gets lost"),
        (("x" * 20, "x" * 70), "of 16 tokens came 70 characters streamed, but 20 whole: text gets lost"),
    ],
)
def test_texts_of_equal_length_at_temperature_zero(texts, trouble):
    found = _checks_form.max_tokens(in_turn(*texts), {})
    assert found.trouble.startswith(trouble) and bool(found.trouble) == bool(trouble)


def test_what_was_thought_is_text_that_came():
    spoken = [said("", reasoning="x" * 60, finish="length", made=16), said("x" * 30, reasoning="x" * 30, finish="length", made=16)]
    assert _checks_form.max_tokens(Prover(lambda *_args: spoken.pop(0)), {}).trouble == ""


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (said("42", reasoning="17 and 25"), ""),
        (said("42"), "whole: no reasoning under either name"),
        (said("<think>17</think>42"), 'whole: "<think>" stands in the answer'),
        (said("43", reasoning="17 and 25"), 'whole: expected "42" in the answer, it is "43"'),
    ],
)
def test_reasoning_in_a_field_of_its_own(answer, trouble):
    found = _checks_form.reasoning(Prover(lambda *_args: answer), {})
    assert found.trouble.startswith(trouble) if trouble else found.good == "thought in the field reasoning"


def test_reasoning_asks_for_thinking_whatever_the_recipe_does_elsewhere():
    asked = []
    _checks_form.reasoning(Prover(lambda _messages, limit, extra, _streamed: asked.append((limit, extra)) or said("42", reasoning="x")), {})
    assert asked[0] == (1024, {"chat_template_kwargs": {"enable_thinking": True}})
    asked.clear()
    item = {"request": {"reasoning_effort": "low"}, "max_tokens": 99}
    _checks_form.reasoning(
        Prover(lambda _messages, limit, extra, _streamed: asked.append((limit, extra)) or said("42", reasoning="x")), item
    )
    assert asked[0] == (99, {"reasoning_effort": "low"})


def refuses(body, key):
    if isinstance(body, bytes):
        return 400, '{"error": {"message": "no JSON"}}'
    if key is not None:
        return 401, '{"error": "Unauthorized"}'
    if body["model"] != "m":
        return 404, '{"error": {"message": "no such model"}}'
    return 400, '{"error": {"message": "too long"}}'


def test_every_bad_request_is_tried_and_a_good_one_after_them():
    seen = []
    prover = Prover(
        lambda *_args: said("Hello"), key="k", context=1000, post=lambda body, key: (seen.append((body, key)), refuses(body, key))[1]
    )
    found = _checks_form.errors(prover, {})
    assert found.good == "refused as they should be: unknown_model, bad_json, bad_key, too_long"
    assert seen[2][1].startswith("not-a-key-")
    assert len(seen[3][0]["messages"][0]["content"].split()) == 1200
    assert len(prover.asked) == 1


def test_without_a_key_or_a_known_context_less_can_be_tried():
    prover = Prover(lambda *_args: said("Hello"), post=refuses)
    assert _checks_form.errors(prover, {}).good == "refused as they should be: unknown_model, bad_json"
    assert _checks_form.errors(prover, {"skip": ["unknown_model"], "context": 50}).good == "refused as they should be: bad_json, too_long"


@pytest.mark.parametrize(
    ("status", "text", "trouble"),
    [
        (200, "{}", "an unknown model got HTTP 200, not 400 or 404: {}"),
        (500, "oops", "an unknown model got HTTP 500, not 400 or 404: oops"),
        (404, "<h1>", "an unknown model got HTTP 404 without a reason in JSON: <h1>"),
        (404, "[]", "an unknown model got HTTP 404 without a reason in JSON: []"),
    ],
)
def test_what_is_no_clean_refusal(status, text, trouble):
    assert _checks_form.errors(Prover(lambda *_args: said("Hello"), post=lambda *_args: (status, text)), {}).trouble == trouble


def test_nothing_after_bad_requests_is_trouble():
    assert "after bad requests" in _checks_form.errors(Prover(lambda *_args: said(""), post=refuses), {}).trouble
