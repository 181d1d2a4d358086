# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of the proof on what a request may ask for: JSON, stops, length, reasoning, and what a bad one gets. Private to the collection."""

from __future__ import annotations

import json
import secrets
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _http, _json_schema
from ansible_collections.ironserve.llm.plugins.module_utils._checks_found import Found, code, user
from ansible_collections.ironserve.llm.plugins.module_utils._words import contains

_SCHEMA = {
    "type": "object",
    "properties": {"country": {"type": "string"}, "code": {"type": "integer"}},
    "required": ["country", "code"],
    "additionalProperties": False,
}
#: Marks that a reasoning parser should have taken out of the answer.
_MARKS = ("<think>", "</think>", "<|channel|>", "[THINK]")
#: A prompt of so many times the context is too long by any tokenizer: a short word of its own is a token at least.
_TOO_LONG = 1.2
ANSWER_TOKENS = 128
REASONING_TOKENS = 1024
LENGTH_TOKENS = 16
#: Two texts of equally many tokens differ in length, but not by this share.
LOST_SHARE = 0.6


def _quote(text: str) -> str:
    return '"{0}"'.format(_http.one_line(text, 90))


def json_schema(prover: Any, item: dict) -> Found:
    """Ask for JSON of a given schema, whole and streamed, with a code of this run in it."""
    wanted = code()
    messages = [user("Fill in the form: the country is Japan, the code is {0}. Answer in JSON with country and code.".format(wanted))]
    max_tokens = item.get("max_tokens", ANSWER_TOKENS)
    extra = {"response_format": {"type": "json_schema", "json_schema": {"name": "form", "strict": True, "schema": _SCHEMA}}}
    for way, ask in (("whole", prover.whole), ("streamed", prover.ask)):
        answer = ask(messages, max_tokens, extra)
        trouble = prover.text_trouble(item, messages, answer, max_tokens)
        if trouble:
            return Found("{0}: {1}".format(way, trouble))
        try:
            value = json.loads(answer.content)
        except (ValueError, RecursionError):
            return Found("{0}: the answer is no JSON: {1}".format(way, _quote(answer.content)))
        misfit = _json_schema.misfit(value, _SCHEMA, "the answer")
        if misfit:
            return Found("{0}: {1}".format(way, misfit))
        if value["code"] != int(wanted) or not contains(value["country"], "Japan"):
            return Found("{0}: the form should say Japan and {1}, it says {2}".format(way, wanted, _quote(answer.content)))
    return Found(good="both ways JSON of the schema, with this run's code")


def stop(prover: Any, item: dict) -> Found:
    """A stop string must end the answer and not be part of it, whole and streamed."""
    max_tokens = item.get("max_tokens", ANSWER_TOKENS)
    messages = [user("Repeat exactly: alpha bravo charlie delta echo foxtrot")]
    for way, ask in (("whole", prover.whole), ("streamed", prover.ask)):
        answer = ask(messages, max_tokens, {"stop": ["delta"]})
        said = "{0}: it said {1}".format(way, _quote(answer.content))
        if contains(answer.content, "delta") or contains(answer.content, "foxtrot"):
            return Found('{0}, past the stop string "delta"'.format(said))
        if not contains(answer.content, "bravo"):
            return Found('{0}, not what comes before the stop string "delta"'.format(said))
        if answer.finish != "stop":
            return Found('{0}: finish reason "{1}" at a stop string'.format(way, answer.finish))
    return Found(good='both ways the answer ended before "delta"')


def _spoken(answer: Any) -> str:
    return answer.reasoning + answer.content


def max_tokens(prover: Any, item: dict) -> Found:
    """An answer must end at ``max_tokens``, say so, and count what it made; whole and streamed.

    Both are of equal length and asked for at temperature 0, so they also show text that got lost on one way, and answers that are drawn
    by lot. One may differ from another when much runs at once; three that all differ are no accident.
    """
    limit = item.get("max_tokens", LENGTH_TOKENS)
    messages = [user(item.get("prompt", "Tell me about the history of bread in three paragraphs."))]
    texts = []
    for way, ask in (("whole", prover.whole), ("streamed", prover.ask)):
        answer = ask(messages, limit)
        count = answer.completion_tokens
        if count is not None and count > limit:
            return Found("{0}: it made {1} tokens, max_tokens was {2}".format(way, count, limit))
        if answer.finish != "length":
            return Found('{0}: cut at {1} tokens it gave the finish reason "{2}"'.format(way, limit, answer.finish))
        texts.append(_spoken(answer))
    short, long = sorted((len(text), way) for text, way in zip(texts, ("whole", "streamed")))
    if short[0] < LOST_SHARE * long[0]:
        detail = "of {0} tokens came {1} characters {2}, but {3} {4}: text gets lost"
        return Found(detail.format(limit, long[0], long[1], short[0], short[1]))
    if texts[0] != texts[1]:
        texts.append(_spoken(prover.whole(messages, limit)))
        if len(set(texts)) == len(texts):
            said = ", ".join(_quote(text) for text in texts)
            return Found("three answers to one question at temperature 0, no two alike: {0}".format(said))
    return Found(good="both ways cut at {0} tokens".format(limit))


def reasoning(prover: Any, item: dict) -> Found:
    """A model that thinks aloud must do so in a field of its own, ``reasoning`` or ``reasoning_content``; the answer holds the answer."""
    messages = [user(item.get("prompt", "What is 17 + 25? Answer with the number only."))]
    limit = item.get("max_tokens", REASONING_TOKENS)
    extra = item.get("request", {"chat_template_kwargs": {"enable_thinking": True}})
    fields = set()
    for way, ask in (("whole", prover.whole), ("streamed", prover.ask)):
        answer = ask(messages, limit, extra)
        mark = next((mark for mark in _MARKS if mark in answer.content), "")
        if mark:
            return Found('{0}: "{1}" stands in the answer: no reasoning parser, or not this model\'s'.format(way, mark))
        if not answer.reasoning:
            return Found("{0}: no reasoning under either name, the answer is {1}".format(way, _quote(answer.content)))
        missing = [word for word in item.get("expect", ["42"]) if not contains(answer.content, str(word))]
        if missing:
            return Found('{0}: expected "{1}" in the answer, it is {2}'.format(way, missing[0], _quote(answer.content)))
        trouble = prover.text_trouble(item, messages, answer, limit)
        if trouble:
            return Found("{0}: {1}".format(way, trouble))
        fields.update(answer.reasoning_fields)
    return Found(good="thought in the field {0}".format(" and ".join(sorted(fields))))


def _refusal(reply: _http.Reply, wanted: tuple, told: str) -> str:
    """What is wrong with the answer to a bad request; empty for a clean refusal."""
    if reply.status not in wanted:
        return "{0} got HTTP {1}, not {2}: {3}".format(told, reply.status, " or ".join(str(status) for status in wanted), reply.head())
    try:
        body = json.loads(reply.text())
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or not (body.get("error") or body.get("message") or body.get("detail")):
        return "{0} got HTTP {1} without a reason in JSON: {2}".format(told, reply.status, reply.head())
    return ""


#: The bad requests of ``errors``, by the names under which a recipe leaves them out.
BAD_REQUESTS = ("unknown_model", "bad_json", "bad_key", "too_long")


def errors(prover: Any, item: dict) -> Found:
    """A wrong key, an unknown model, a prompt that is too long and a body that is no JSON: each must be refused, and hurt nobody."""
    body = {"model": prover.model, "messages": [user("Say hello.")], "max_tokens": 4}
    tried = []
    skipped = item.get("skip", [])
    context = item.get("context") or prover.context()
    cases = [
        ("unknown_model", dict(body, model="no-such-model-" + secrets.token_hex(4)), None, (400, 404)),
        ("bad_json", b'{"model": "x", "messages": [', None, (400, 422)),
    ]
    if prover.key:
        cases.append(("bad_key", body, "not-a-key-" + secrets.token_hex(8), (401, 403)))
    if context:
        words = "zoo " * int(context * _TOO_LONG)
        cases.append(("too_long", dict(body, messages=[user(words)]), None, (400, 413, 422)))
    for name, sent, key, wanted in cases:
        if name in skipped:
            continue
        told = {"unknown_model": "an unknown model", "bad_json": "a body that is no JSON", "bad_key": "a wrong key"}.get(
            name, "a prompt beyond {0} tokens".format(context)
        )
        trouble = _refusal(prover.post(sent, key), wanted, told)
        if trouble:
            return Found(trouble)
        tried.append(name)
    answer = prover.ask([user("Say hello.")], LENGTH_TOKENS)
    if not (answer.content or answer.reasoning):
        return Found("after bad requests it answers good ones with nothing")
    return Found(good="refused as they should be: {0}".format(", ".join(tried)))
