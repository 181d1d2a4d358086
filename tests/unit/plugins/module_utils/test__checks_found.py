# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whole answers in the forms that engines give them."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _checks_found


def body(message, **more):
    return {"choices": [dict({"message": message, "finish_reason": "stop"}, **more)], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def test_an_answer_in_words():
    found = _checks_found.read_whole(body({"content": "Tokyo"}))
    assert (found.content, found.finish, found.prompt_tokens, found.completion_tokens) == ("Tokyo", "stop", 7, 3)
    assert (found.reasoning, found.calls, found.reasoning_fields, found.tool) == ("", [], [], "")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_found_under_either_name(field):
    found = _checks_found.read_whole(body({"content": "42", field: "17 and 25"}))
    assert (found.reasoning, found.reasoning_fields) == ("17 and 25", [field])


def test_tool_calls_and_null_content():
    call = {"id": "c1", "type": "function", "function": {"name": "read_meter", "arguments": '{"a": 1}'}}
    found = _checks_found.read_whole(body({"content": None, "tool_calls": [call, "junk", {"function": {"arguments": {"a": 1}}}]}))
    assert found.content == ""
    assert found.calls[0] == {"id": "c1", "name": "read_meter", "arguments": '{"a": 1}'}
    # Arguments that are no text are no arguments of this interface.
    assert found.calls[1:] == [{"id": "", "name": "", "arguments": ""}]
    assert found.tool == '{"a": 1}'


@pytest.mark.parametrize("odd", [None, [], {}, {"choices": []}, {"choices": [{}]}, {"choices": [{"message": "text"}]}, {"error": {"x": 1}}])
def test_what_is_no_answer(odd):
    assert _checks_found.read_whole(odd) is None


def test_usage_that_is_no_number_is_unknown():
    found = _checks_found.read_whole({"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": "7"}})
    assert (found.prompt_tokens, found.completion_tokens, found.finish) == (None, None, "")


def test_codes_have_their_digits_and_differ():
    found = {_checks_found.code(8) for _number in range(50)}
    assert len(found) > 45
    assert {len(item) for item in found} == {8}
