# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Streams in any chunking give the same events, and the figures follow the counting rules."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _sse

# As captured from vLLM: a role-only start, usage in a last event without choices, then [DONE].
HEAD = 'data: {"id":"c","object":"chat.completion.chunk","choices":['
CAPTURED = (
    HEAD
    + '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}\n\n'
    + HEAD
    + '{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
    + HEAD
    + '{"index":0,"delta":{"content":" 你好"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
    + HEAD
    + '{"index":0,"delta":{"content":"!"},"logprobs":null,"finish_reason":"length","stop_reason":null}]}\n\n'
    + HEAD
    + '],"usage":{"prompt_tokens":31,"total_tokens":34,"completion_tokens":3}}\n\n'
    + "data: [DONE]\n\n"
).encode()


def data_of(raw, cuts=()):
    decoder = _sse.Decoder()
    out = []
    edges = [0, *sorted(cuts), len(raw)]
    for start, end in itertools.pairwise(edges):
        out.extend(decoder.feed(raw[start:end]))
    return out + decoder.close()


def chunk(**delta):
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def transcript(*timed, sent_at=100.0):
    made = _sse.Transcript(sent_at)
    for at, data in timed:
        made.feed(sent_at + at, f"data: {data}\n\n".encode())
    return made


def test_the_captured_stream_reads_as_it_was_said():
    whole = _sse.Transcript(0.0)
    whole.feed(1.0, CAPTURED)
    assert whole.content == "Hello 你好!"
    assert whole.finish == "length"
    assert whole.done
    assert (whole.prompt_tokens, whole.completion_tokens, whole.token_events) == (31, 3, 3)
    assert [sorted(event.kinds) for event in whole.events] == [
        ["role"],
        ["content"],
        ["content"],
        ["content", "finish"],
        ["usage"],
        ["done"],
    ]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_no_chunking_and_no_line_ending_changes_the_events(ending):
    raw = CAPTURED.replace(b"\n", ending)
    wanted = data_of(CAPTURED)
    assert len(wanted) == 6
    generator = random.Random(20261130)
    assert data_of(raw, range(1, len(raw))) == wanted
    for _round in range(200):
        cuts = generator.sample(range(1, len(raw)), generator.randint(0, 40))
        assert data_of(raw, cuts) == wanted


@pytest.mark.parametrize(
    "raw, wanted",
    [
        (b"data:tight\n\n", ["tight"]),
        (b"data:  two spaces\n\n", [" two spaces"]),
        (b": keep-alive\n\ndata: x\n\n", ["x"]),
        (b"event: message\nid: 7\nretry: 10\ndata: x\n\n", ["x"]),
        (b"data: one\ndata: two\n\n", ["one\ntwo"]),
        (b"data: one\r\ndata: two\r\n\r\n", ["one\ntwo"]),
        (b"data\n\n", [""]),
        (b"\n\n\n", []),
        (b"data: no blank line", ["no blank line"]),
        (b"\xef\xbb\xbfdata: after a mark\n\n", ["after a mark"]),
        (b"data: \xff\xfe\n\n", ["\ufffd\ufffd"]),
        (b"", []),
    ],
)
def test_line_rules(raw, wanted):
    assert data_of(raw) == wanted


def test_time_is_taken_per_event_and_the_first_token_of_any_channel_counts():
    made = transcript(
        (0.005, json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})),
        (0.2, chunk(reasoning="Let")),
        (0.4, chunk(reasoning_content=" me")),
        (0.6, chunk(content="Tokyo")),
        (0.7, json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]})),
        (9.0, json.dumps({"choices": [], "usage": {"completion_tokens": 11}})),
        (9.0, "[DONE]"),
    )
    assert made.ttft_choices_s == pytest.approx(0.005)
    assert made.ttft_s == pytest.approx(0.2)
    assert made.ttft_content_s == pytest.approx(0.6)
    # The usage event comes late and must not move the end: 10 further tokens in half a second.
    assert made.decode_s == pytest.approx(0.5)
    assert made.decode_tokens_per_s == pytest.approx(20.0)
    assert made.e2e_s == pytest.approx(9.0)
    assert made.reasoning == "Let me"


def test_speculative_bursts_are_counted_by_usage_not_by_events():
    events = [(0.1 + 0.02 * index, chunk(content="three tokens here")) for index in range(10)]
    made = transcript(*events, (0.3, json.dumps({"choices": [], "usage": {"completion_tokens": 28}})))
    assert made.token_events == 10
    assert made.decode_tokens_per_s == pytest.approx(27 / 0.18)


def test_what_can_not_be_known_is_none():
    assert transcript().ttft_s is None
    assert transcript().e2e_s is None
    assert transcript((0.1, chunk(content="x"))).decode_tokens_per_s is None
    burst = transcript((0.1, chunk(content="all at once")), (0.1, json.dumps({"choices": [], "usage": {"completion_tokens": 9}})))
    assert burst.decode_tokens_per_s is None
    assert transcript((0.1, chunk(content="x"))).events_per_s(100.0) is None


def test_a_cut_stream_has_its_speed_by_events():
    made = transcript((0.0, chunk(content="a")), (17.0, chunk(content="b")), (34.0, chunk(content="c")))
    assert made.events_per_s(140.0) == pytest.approx(2 / 40.0)


def test_tool_calls_are_tokens_too():
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a"'}}]}
    rest = {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}
    made = transcript((0.3, chunk(**call)), (0.4, chunk(**rest)))
    assert made.ttft_s == pytest.approx(0.3)
    assert made.tool == '{"a": 1}'


@pytest.mark.parametrize(
    "data, kind, text",
    [
        ('{"error": {"message": "EngineDeadError", "code": 500}}', "error", "EngineDeadError"),
        ('{"error": "Unauthorized"}', "error", "Unauthorized"),
        ('{"choices": [{', "malformed", '{"choices": [{'),
        ("[1, 2]", "malformed", "[1, 2]"),
        ("null", "malformed", "null"),
    ],
)
def test_errors_and_nonsense_inside_a_200_are_seen(data, kind, text):
    event = _sse.parse(0.0, data)
    assert event.kinds == {kind}
    assert event.error == text


@pytest.mark.parametrize(
    "body",
    [
        "",
        {},
        {"choices": None},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": None, "reasoning": 5, "tool_calls": [None, {"function": None}]}}]},
        {"usage": "many"},
    ],
)
def test_odd_bodies_never_raise_and_carry_no_text(body):
    event = _sse.parse(0.0, json.dumps(body) if body != "" else "")
    assert "malformed" not in event.kinds
    assert (event.content, event.reasoning, event.tool, event.usage) == ("", "", "", None)


@pytest.mark.parametrize("start", ["[", '{"a":'])
def test_lists_in_lists_without_end_are_malformed(start):
    assert _sse.parse(0.0, start * 200000).kinds == {"malformed"}


def test_a_missing_done_is_seen():
    made = _sse.Transcript(0.0)
    made.feed(1.0, CAPTURED.replace(b"data: [DONE]\n\n", b""))
    made.close(2.0)
    assert not made.done
    assert made.finish == "length"


def test_tool_calls_are_put_together_by_their_index():
    transcript = _sse.Transcript(0.0)
    pieces = [
        [{"index": 0, "id": "a", "function": {"name": "read_meter"}}],
        [{"index": 0, "function": {"arguments": '{"m"'}}, {"index": 1, "id": "b", "function": {"name": "stop", "arguments": ""}}],
        [{"index": 1, "function": {"arguments": "{}"}}],
        [{"index": 0, "function": {"arguments": ": 1}"}}, "junk", {"index": 0, "function": None}],
    ]
    for piece in pieces:
        transcript.feed(1.0, "data: {0}\n\n".format(json.dumps({"choices": [{"delta": {"tool_calls": piece}}]})).encode())
    assert transcript.calls == [
        {"id": "a", "name": "read_meter", "arguments": '{"m": 1}'},
        {"id": "b", "name": "stop", "arguments": "{}"},
    ]
    assert transcript.tool == '{"m"{}: 1}'
    assert transcript.token_events == 4


@pytest.mark.parametrize(
    "delta, text, fields",
    [
        ({"reasoning": "a"}, "a", ["reasoning"]),
        ({"reasoning_content": "a"}, "a", ["reasoning_content"]),
        ({"reasoning": "a", "reasoning_content": "a"}, "a", ["reasoning"]),
        ({"reasoning": None, "reasoning_content": "a"}, "a", ["reasoning_content"]),
        ({"content": "a"}, "", []),
    ],
)
def test_the_name_of_the_reasoning_field_is_kept(delta, text, fields):
    transcript = _sse.Transcript(0.0)
    transcript.feed(1.0, "data: {0}\n\n".format(json.dumps({"choices": [{"delta": delta}]})).encode())
    assert (transcript.reasoning, transcript.reasoning_fields) == (text, fields)


class Once(list):
    """A list that may grow and be asked for its end, but not be looked through."""

    def __iter__(self):
        raise AssertionError("looked through all events again")


def test_what_is_asked_after_every_byte_looks_at_no_event_twice():
    """An answer without chunks comes byte by byte, and the proof asks after each whether it is over and fast enough."""
    text = b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n'
    text += b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n' * 5 + b"data: [DONE]\n\n"
    whole, bitwise = _sse.Transcript(0.0), _sse.Transcript(0.0)
    bitwise.events = Once()
    seen = []
    for index in range(len(text)):
        bitwise.feed(1.0 + index, text[index : index + 1])
        asked = (bitwise.done, bitwise.error, bitwise.token_events, bitwise.ttft_s, bitwise.events_per_s(2.0 + index))
        seen.append((bitwise.token_events, bitwise.done))
        assert len(asked) == 5
    assert sorted(set(seen)) == [(0, False), (1, False), (2, False), (3, False), (4, False), (5, False), (5, True)]
    whole.feed(1.0, text)
    bitwise.events = [*list.__iter__(bitwise.events)]
    same = ("content", "finish", "done", "error", "malformed", "token_events", "calls")
    assert [getattr(bitwise, name) for name in same] == [getattr(whole, name) for name in same]
    assert [event.kinds for event in bitwise.events] == [event.kinds for event in whole.events]
