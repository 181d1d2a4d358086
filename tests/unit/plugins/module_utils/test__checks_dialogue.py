# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Memory over turns, and a tool loop that is closed."""

from __future__ import annotations

import json
import re

import pytest
from faults.zoo.prover import Prover, said

from ansible_collections.ironserve.llm.plugins.module_utils import _checks_dialogue
from ansible_collections.ironserve.llm.plugins.module_utils._checks_dialogue import call_trouble

ANSWERS = {"Japan": "Tokyo", "17 + 25": "42", "Greece": "Athens", "90 - 31": "59", "Poland": "Warsaw", "6 * 8": "48"}


def remembers(messages, _max_tokens, _extra, _streamed):
    question = messages[-1]["content"]
    for word, answer in ANSWERS.items():
        if word in question:
            return said(answer)
    return said("OK " + re.search("[0-9]{6}", messages[0]["content"]).group())


def test_the_code_of_the_first_turn_must_come_back_at_the_last():
    prover = Prover(remembers)
    found = _checks_dialogue.multi_turn(prover, {"check": "multi_turn", "turns": 9})
    assert (found.trouble, found.good) == ("", "9 turns, and the code of turn 1 came back")
    assert len(prover.asked) == 9
    # The conversation grows by what the model really said, and the code is told once.
    last = prover.asked[-1][0]
    assert [message["role"] for message in last] == ["user", "assistant"] * 8 + ["user"]
    assert last[3]["content"] == "Tokyo"
    code = re.search("[0-9]{6}", last[0]["content"]).group()
    assert sum(code in message["content"] for message in last if message["role"] == "user") == 1


@pytest.mark.parametrize(
    ("wrong", "said_wrong", "trouble"),
    [
        ("ticket number?", "I do not know", "turn 6 of 6: expected"),
        ("Greece", "Rome", 'turn 4 of 6: expected "Athens" it said "Rome"'),
    ],
)
def test_a_wrong_turn_is_named(wrong, said_wrong, trouble):
    found = _checks_dialogue.multi_turn(
        Prover(lambda messages, *rest: said(said_wrong) if wrong in messages[-1]["content"] else remembers(messages, *rest)), {}
    )
    assert found.trouble.startswith(trouble)
    assert found.sign == "partial"


def test_rubbish_on_the_way_is_the_trouble():
    prover = Prover(remembers)
    prover.trouble = lambda answer: "equal_run" if answer.content == "42" else ""
    assert _checks_dialogue.multi_turn(prover, {}).trouble == "turn 3 of 6: equal_run"


def call(arguments, name="read_meter", ident="c1"):
    return {"id": ident, "name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}


def uses_tools(messages, _max_tokens, extra, _streamed):
    if messages[-1]["role"] == "tool":
        return said("The value is {0}.".format(json.loads(messages[-1]["content"])["value"]))
    meter, unit = re.search('meter "(.+)" in ([a-z]+)', messages[-1]["content"]).groups()
    assert extra["tools"][0]["function"]["name"] == "read_meter"
    return said(calls=[call({"meter": meter, "unit": unit})], finish="tool_calls")


def test_the_loop_is_closed_both_ways():
    prover = Prover(uses_tools)
    found = _checks_dialogue.tool_loop(prover, {"rounds": 3})
    assert found.trouble == ""
    assert found.good.startswith("3 rounds whole and streamed")
    last = prover.asked[-1][0]
    assert [message["role"] for message in last] == ["user", "assistant", "tool", "assistant"] * 2 + ["user", "assistant", "tool"]
    assert last[1]["tool_calls"][0]["id"] == last[2]["tool_call_id"] == "c1"
    # Only the tool knows the value: it is in no question, and another in every round.
    values = [json.loads(message["content"])["value"] for message in last if message["role"] == "tool"]
    assert len(set(values)) == 3
    assert not any(str(value) in message["content"] for value in values for message in last if message["role"] == "user")


def test_an_answer_without_what_the_tool_said_is_not_closed():
    found = _checks_dialogue.tool_loop(
        Prover(lambda messages, *rest: said("Done.") if messages[-1]["role"] == "tool" else uses_tools(messages, *rest)), {}
    )
    assert re.fullmatch('whole, round 1: the tool said [0-9]{5}, the answer "Done."', found.trouble)


def test_thousands_may_be_grouped():
    def groups(messages, *rest):
        answer = uses_tools(messages, *rest)
        answer.content = re.sub("([0-9]{2})([0-9]{3})", r"\1,\2", answer.content)
        return answer

    assert _checks_dialogue.tool_loop(Prover(groups), {}).trouble == ""


def test_both_ways_must_call_the_same_but_may_space_it_otherwise():
    def streams_more(messages, max_tokens, extra, streamed):
        answer = uses_tools(messages, max_tokens, extra, streamed)
        if streamed and answer.calls:
            answer.calls = [*answer.calls, answer.calls[0]]
        return answer

    found = _checks_dialogue.tool_loop(Prover(streams_more), {})
    assert found.trouble.startswith("streamed, round 1: whole it called with")

    def spaces(messages, max_tokens, extra, streamed):
        answer = uses_tools(messages, max_tokens, extra, streamed)
        if streamed and answer.calls:
            answer.calls[0]["arguments"] = answer.calls[0]["arguments"].replace(" ", "")
        return answer

    assert _checks_dialogue.tool_loop(Prover(spaces), {}).trouble == ""


GOOD = {"meter": "M-417", "unit": "kelvin"}


@pytest.mark.parametrize(
    ("calls", "content", "finish", "trouble"),
    [
        ([call(GOOD)], "", "tool_calls", ""),
        ([call(GOOD)], "I will look.", "stop", ""),
        ([], "It is warm.", "stop", 'no tool was called, it said "It is warm."'),
        ([], '<tool_call>{"name": "read_meter"}', "stop", "the call was left as text in the answer"),
        ([call(GOOD)], "", "length", 'a call with the finish reason "length"'),
        ([call(GOOD, name="weather")], "", "tool_calls", 'it called "weather"'),
        ([call(GOOD, ident="")], "", "tool_calls", "the call has no id"),
        ([call('{"meter": ')], "", "tool_calls", "the arguments are no JSON"),
        ([call("[" * 200000)], "", "tool_calls", "the arguments are no JSON"),
        ([call('["M-417"]')], "", "tool_calls", "the arguments is ['M-417'], not of type object"),
        ([call({"meter": "M-417"})], "", "tool_calls", 'the arguments lacks "unit"'),
        ([call(dict(GOOD, more=1))], "", "tool_calls", 'the arguments has "more"'),
        ([call(dict(GOOD, meter="M-4"))], "", "tool_calls", "asked for M-417 in kelvin, it called for"),
        ([call(GOOD), call("{")], "", "tool_calls", "the arguments are no JSON"),
    ],
)
def test_what_is_wrong_with_a_call(calls, content, finish, trouble):
    found = call_trouble(calls, content, finish, "M-417", "kelvin")
    assert found.startswith(trouble) if trouble else not found


@pytest.mark.parametrize(("language", "word"), [("en", "guard"), ("zh", "看守")])
def test_what_only_the_system_message_says_must_be_known(language, word):
    prover = Prover(lambda messages, *_rest: said(re.search("[0-9]{6}", messages[0]["content"]).group()))
    assert _checks_dialogue.system_message(prover, {"language": language}).trouble == ""
    ((messages, *_rest),) = prover.asked
    assert [message["role"] for message in messages] == ["system", "user"] and word in messages[0]["content"]
    # The question does not tell it.
    assert not re.search("[0-9]", messages[1]["content"])
    found = _checks_dialogue.system_message(Prover(lambda *_args: said("I know no number")), {})
    assert found.trouble.startswith("the system message said ") and found.sign == "partial"


def own_code(messages, *_rest):
    return said("It is {0}.".format(re.search("[0-9]{6}", messages[0]["content"]).group()))


def test_answers_over_one_connection_are_each_their_own():
    assert _checks_dialogue.kept_connection(Prover(own_code), {}).good == "3 questions over one connection, each got its own code back"
    closes = Prover(own_code)
    closes.connections = 5
    assert "5 questions over 5 connections, for the server keeps none" in _checks_dialogue.kept_connection(closes, {"times": 5}).good


@pytest.mark.parametrize(
    ("behind", "trouble"),
    [
        (1, "question 2 of 3 on one connection: it got the answer to question 1 of the same connection"),
        (2, "question 3 of 3 on one connection: it got the answer to question 1 of the same connection"),
    ],
)
def test_an_answer_that_belongs_to_the_question_before_is_named(behind, trouble):
    seen = []

    def late(messages, *rest):
        seen.append(own_code(messages, *rest))
        return seen[-1 - behind] if len(seen) > behind else seen[-1]

    assert _checks_dialogue.kept_connection(Prover(late), {}).trouble.startswith(trouble)
    lost = _checks_dialogue.kept_connection(Prover(lambda *_args: said("Hello")), {})
    assert re.match("question 1 of 3 on one connection: the code [0-9]{6} did not come back", lost.trouble)
