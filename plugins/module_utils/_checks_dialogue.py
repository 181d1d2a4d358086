# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of the proof that talk for several turns: memory, and a closed tool loop. Private to the collection."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _http, _json_schema
from ansible_collections.ironserve.llm.plugins.module_utils._checks_found import Found, assistant, code, user
from ansible_collections.ironserve.llm.plugins.module_utils._words import contains

#: What is told first, what is asked in between with its answer, and what is asked at last.
_TALKS = {
    "en": (
        "My ticket number is {0}. Please remember it and answer with OK.",
        (
            ("What is the capital of Japan? Answer in one word.", "Tokyo"),
            ("What is 17 + 25? Answer with the number only.", "42"),
            ("What is the capital of Greece? Answer in one word.", "Athens"),
            ("What is 90 - 31? Answer with the number only.", "59"),
            ("What is the capital of Poland? Answer in one word.", "Warsaw"),
            ("What is 6 * 8? Answer with the number only.", "48"),
        ),
        "What is my ticket number? Answer with the number only.",
    ),
    "zh": (
        "我的票号是{0}。请记住它，并回答好。",
        (
            ("日本的首都是哪里？只回答城市名。", "东京"),
            ("17 + 25 等于多少？只回答数字。", "42"),
            ("法国的首都是哪里？只回答城市名。", "巴黎"),
            ("90 - 31 等于多少？只回答数字。", "59"),
            ("德国的首都是哪里？只回答城市名。", "柏林"),
            ("6 * 8 等于多少？只回答数字。", "48"),
        ),
        "我的票号是多少？只回答数字。",
    ),
}
TURNS = 6
#: Room for an answer of a few words, and for a model that thinks aloud first.
ANSWER_TOKENS = 128
ROUNDS = 2

TOOL = {
    "type": "function",
    "function": {
        "name": "read_meter",
        "description": "Reads a meter of the plant and returns its present value.",
        "parameters": {
            "type": "object",
            "properties": {
                "meter": {"type": "string", "description": "name of the meter, such as M-100"},
                "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
            },
            "required": ["meter", "unit"],
            "additionalProperties": False,
        },
    },
}
_ROUNDS = (("M-417", "kelvin"), ("M-052", "celsius"), ("M-880", "kelvin"), ("M-236", "celsius"))
TOOL_QUESTION = 'Read meter "{0}" in {1} with the tool, then tell me its value.'


def _quote(text: str) -> str:
    return '"{0}"'.format(_http.one_line(text, 90))


def multi_turn(prover: Any, item: dict) -> Found:
    """Tell a code, talk of other things for ``turns`` turns in all, ask for the code. Every answer on the way must be right, too."""
    told, between, asked = _TALKS[item.get("language") or "en"]
    turns, max_tokens = max(3, item.get("turns", TURNS)), item.get("max_tokens", ANSWER_TOKENS)
    ticket = code()
    questions = [(told.format(ticket), "")]
    questions += [between[turn % len(between)] for turn in range(turns - 2)]
    questions.append((asked, ticket))
    messages = []
    for turn, (question, expected) in enumerate(questions, 1):
        messages.append(user(question))
        answer = prover.ask(messages, max_tokens)
        trouble = prover.text_trouble(item, messages, answer, max_tokens)
        if not trouble and expected and not contains(answer.content, expected):
            told_first = ", told in turn 1," if expected == ticket else ""
            trouble = 'expected "{0}"{1} it said {2}'.format(expected, told_first, _quote(answer.content))
        if trouble:
            return Found("turn {0} of {1}: {2}".format(turn, turns, trouble))
        messages.append(assistant(answer.content))
    return Found(good="{0} turns, and the code of turn 1 came back".format(turns))


#: What a system message tells, and what is then asked.
_SYSTEM = {
    "en": ("You are the guard of a house. The door number is {0}.", "What is the door number? Answer with the number only."),
    "zh": ("你是一栋房子的看守。门牌号是{0}。", "门牌号是多少？只回答数字。"),
}


def system_message(prover: Any, item: dict) -> Found:
    """What only the system message says must be known: some templates drop it without a word."""
    told, asked = _SYSTEM[item.get("language") or "en"]
    number, max_tokens = code(), item.get("max_tokens", ANSWER_TOKENS)
    messages = [{"role": "system", "content": told.format(number)}, user(asked)]
    answer = prover.ask(messages, max_tokens)
    trouble = prover.text_trouble(item, messages, answer, max_tokens)
    if not trouble and not contains(answer.content, number):
        trouble = "the system message said {0}, the answer {1}".format(number, _quote(answer.content))
    return Found(trouble, "what the system message said came back")


#: Questions on one connection: the second shows what the first left behind, the third what the second did.
TIMES = 3


def kept_connection(prover: Any, item: dict) -> Found:
    """Several questions over one connection, each with a code of its own: an answer must not be the one before it."""
    max_tokens, own = item.get("max_tokens", ANSWER_TOKENS), [code() for _number in range(item.get("times", TIMES))]
    questions = [[user("The secret code is {0}. What is the secret code? Answer with the code only.".format(secret))] for secret in own]
    answers, connections = prover.on_one_connection(questions, max_tokens)
    for number, (messages, answer) in enumerate(zip(questions, answers)):
        trouble = prover.text_trouble(item, messages, answer, max_tokens)
        before = [earlier for earlier, secret in enumerate(own[:number], 1) if contains(answer.content, secret)]
        if before:
            trouble = "it got the answer to question {0} of the same connection: {1}".format(before[-1], _quote(answer.content))
        elif not trouble and not contains(answer.content, own[number]):
            trouble = "the code {0} did not come back, it said {1}".format(own[number], _quote(answer.content))
        if trouble:
            return Found("question {0} of {1} on one connection: {2}".format(number + 1, len(own), trouble))
    kept = "one connection" if connections == 1 else "{0} connections, for the server keeps none".format(connections)
    return Found(good="{0} questions over {1}, each got its own code back".format(len(own), kept))


def call_trouble(calls: list, content: str, finish: str, meter: str, unit: str) -> str:
    """What is wrong with the tool calls of one answer; empty when they are what was wanted."""
    if not calls:
        left = "read_meter" in content or "tool_call" in content
        return (
            "the call was left as text in the answer: {0}".format(_quote(content))
            if left
            else "no tool was called, it said {0}".format(_quote(content))
        )
    if finish not in ("tool_calls", "stop"):
        return 'a call with the finish reason "{0}"'.format(finish)
    for call in calls:
        if call["name"] != TOOL["function"]["name"]:
            return 'it called "{0}", which is no tool of ours'.format(call["name"])
        if not call["id"]:
            return "the call has no id"
        try:
            arguments = json.loads(call["arguments"])
        except (ValueError, RecursionError):
            return "the arguments are no JSON: {0}".format(_quote(call["arguments"]))
        misfit = _json_schema.misfit(arguments, TOOL["function"]["parameters"], "the arguments")
        if misfit:
            return misfit
    arguments = json.loads(calls[0]["arguments"])
    if (arguments["meter"], arguments["unit"]) != (meter, unit):
        return "asked for {0} in {1}, it called for {2} in {3}".format(meter, unit, _quote(arguments["meter"]), arguments["unit"])
    return ""


def _same(first: list, second: list) -> bool:
    return [(call["name"], json.loads(call["arguments"])) for call in first] == [
        (call["name"], json.loads(call["arguments"])) for call in second
    ]


def tool_loop(prover: Any, item: dict) -> Found:
    """Request, call, our tool, result, answer: ``rounds`` times in one conversation, whole and streamed.

    Only the tool knows the value that the last answer must contain. Both ways must call the same.
    """
    max_tokens = item.get("max_tokens", 2 * ANSWER_TOKENS)
    extra = {"tools": [TOOL], "tool_choice": "auto"}
    rounds = [_ROUNDS[index % len(_ROUNDS)] for index in range(item.get("rounds", ROUNDS))]
    called = {}
    for way, ask in (("whole", prover.whole), ("streamed", prover.ask)):
        messages = []
        for number, (meter, unit) in enumerate(rounds, 1):
            where = "{0}, round {1}".format(way, number)
            messages.append(user(TOOL_QUESTION.format(meter, unit)))
            answer = ask(messages, max_tokens, extra)
            trouble = call_trouble(answer.calls, answer.content, answer.finish, meter, unit)
            if trouble:
                return Found("{0}: {1}".format(where, trouble))
            if way == "streamed" and not _same(called[number], answer.calls):
                texts = [calls[0]["arguments"] for calls in (called[number], answer.calls)]
                return Found("{0}: whole it called with {1}, streamed with {2}".format(where, _quote(texts[0]), _quote(texts[1])))
            called[number] = answer.calls
            calls = [
                {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
                for call in answer.calls
            ]
            messages.append({"role": "assistant", "content": answer.content or None, "tool_calls": calls})
            value = code(5)
            for call in calls:
                result = json.dumps({"meter": meter, "unit": unit, "value": int(value)})
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            answer = ask(messages, max_tokens, extra)
            trouble = prover.text_trouble(item, messages, answer, max_tokens)
            if not trouble and not contains(answer.content.replace(",", ""), value):
                trouble = "the tool said {0}, the answer {1}".format(value, _quote(answer.content))
            if trouble:
                return Found("{0}: {1}".format(where, trouble))
            messages.append(assistant(answer.content))
    good = "{0} rounds whole and streamed, {1} with {2}, and what the tool said came back"
    return Found(good=good.format(len(rounds), TOOL["function"]["name"], called[1][0]["arguments"]))
