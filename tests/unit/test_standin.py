# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine stand-ins keep what their README promises: the model exactly, in time of its own, and the wire on real sockets."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import engine, fleet
from standin.engine import BlockPool, Core, CoreOptions, Plan, Script, Sequence, Span

from ansible_collections.ironserve.llm.plugins.module_utils import _quality, _verify
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests/fixtures/vllm"
KEY = "key-of-the-test"
PATH = "/v1/chat/completions"

# ---- tokens and the prefix cache


@settings(deadline=None)
@given(st.text(max_size=60))
def test_tokens_are_whole_characters_and_lose_nothing(text: str) -> None:
    pieces = engine.tokens(text)
    assert b"".join(pieces).decode() == text
    assert all(len(piece) <= 4 and (piece.isascii() or len(piece.decode()) == 1) for piece in pieces)
    span = Span(text)
    assert span.count == len(pieces)
    for start in range(len(pieces)):
        assert span.part(start, start + 3) == b"".join(pieces[start : start + 3])


def test_a_token_is_four_ascii_characters_or_one_other() -> None:
    assert [engine.Span(text).count for text in ("", "abcd", "abcde", "面包", "a面包b", "x" * 500_000)] == [0, 1, 2, 2, 4, 125_000]


@settings(deadline=None)
@given(st.text("ab面", max_size=80), st.text("ab面", max_size=80), st.integers(1, 7))
def test_block_keys_agree_as_far_as_the_tokens_do(first: str, second: str, size: int) -> None:
    cut = [engine.tokens(text) for text in (first, second)]
    same = len(os.path.commonprefix(cut)) // size
    keys = [engine.block_keys([Span(text)], size) for text in (first, second)]
    assert [len(found) for found in keys] == [len(pieces) // size for pieces in cut]
    assert len(os.path.commonprefix(keys)) == same
    assert engine.block_keys([Span(first)], size, tuple(keys[0][:2])) == keys[0]


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 12), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=40))
def test_the_pool_never_holds_more_than_it_has(total: int, moves: list[tuple[int, int, bool]]) -> None:
    pool, held = BlockPool(total), []
    for family, length, leave in moves:
        if leave and held:
            pool.release(*held.pop(0))
        keys = [family * 100 + index for index in range(length)]
        hits = pool.match(keys)
        before = (pool.private, dict(pool.busy), list(pool.idle))
        if pool.take(hits, len(keys) - len(hits) + 1):
            for key in keys[len(hits) :]:
                pool.publish(key)
            held.append((keys, 1))
        else:
            assert (pool.private, pool.busy, list(pool.idle)) == before
            # Refused only when what others hold really leaves no room.
            assert pool.used + len([key for key in hits if key in pool.idle]) + len(keys) - len(hits) + 1 > total
        assert 0 <= pool.private and pool.used + len(pool.idle) <= total
        assert not set(pool.busy) & set(pool.idle)
        assert pool.private == len(held)
    for entry in held:
        pool.release(*entry)
    assert (pool.used, pool.private) == (0, 0)


def test_the_pool_evicts_what_was_used_longest_ago_and_a_prefix_from_its_end() -> None:
    pool = BlockPool(6)
    for keys in ([1, 2, 3], [11, 12]):
        assert pool.take([], len(keys))
        for key in keys:
            pool.publish(key)
        pool.release(keys, 0)
    assert pool.take(pool.match([1]), 2)
    assert (pool.match([1, 2, 3]), pool.match([11, 12]), pool.evicted) == ([1, 2], [11, 12], 1)
    assert pool.take([], 1)
    assert (pool.match([1, 2]), pool.match([11, 12])) == ([1], [11, 12])


# ---- the engine, in time of its own


class Play:
    """A core with what its sequences did: ``seen[name]`` is a list of (engine time, tokens)."""

    def __init__(self, **options: object) -> None:
        self.core = Core(CoreOptions(**options))
        self.seen: dict[str, list[tuple[float, int]]] = {}

    def ask(self, name: str, at: float, prompt: int | str, answer: int = 4, **script: object) -> Sequence:
        """Submit a prompt (a text, or so many tokens of its own) that is answered with so many tokens."""
        text = prompt if isinstance(prompt, str) else (name * 4 * prompt)[: 4 * prompt]
        plan = Plan()
        for index in range(answer):
            plan.add("content", "word", "{0:04d}".format(index).encode())
        log = self.seen.setdefault(name, [])
        sequence = Sequence(
            [Span(text)], plan, Script(**{"decode_tokens_per_s": 10.0, **script}), random.Random(1), lambda _s, n, t: log.append((t, n))
        )
        self.core.submit(sequence, at)
        return sequence

    def times(self, name: str) -> list[float]:
        return [round(at, 9) for at, _count in self.seen[name]]


def test_time_to_first_token_is_queue_plus_prefill_and_decode_keeps_its_places() -> None:
    play = Play(prefill_tokens_per_s=100, prefill_base_s=0.5)
    play.ask("a", 1.0, 200)
    play.core.run(100)
    assert play.times("a") == [3.5, 3.6, 3.7, 3.8]


def test_prefill_is_serial_and_the_second_waits() -> None:
    play = Play(prefill_tokens_per_s=100)
    first, second = play.ask("a", 0.0, 200), play.ask("b", 0.5, 100)
    assert (len(play.core.running), len(play.core.waiting)) == (1, 1)
    play.core.run(100)
    assert (first.prefill_start, first.prefill_end) == (0.0, 2.0)
    assert (second.prefill_start, second.prefill_end) == (2.0, 3.0)
    assert play.times("b")[0] == 3.0


def test_slots_bound_what_runs_and_the_next_starts_when_one_is_done() -> None:
    play = Play(slots=2, prefill_tokens_per_s=1000)
    asked = [play.ask(name, 0.0, 100, answer=11) for name in "abcd"]
    play.core.run(0.5)
    assert (len(play.core.running), len(play.core.waiting)) == (2, 2)
    play.core.run(100)
    assert [round(sequence.prefill_start, 9) for sequence in asked] == [0.0, 0.1, 1.1, 1.2]
    assert (len(play.core.running), play.core.pool.used) == (0, 0)


def test_a_prefix_hit_shortens_prefill_by_exactly_the_cached_blocks() -> None:
    play = Play(prefill_tokens_per_s=100, block_tokens=16)
    document = "".join("{0:04d}".format(index) for index in range(100))
    cold = play.ask("a", 0.0, document + "why?")
    play.core.run(50)
    warm = play.ask("b", 50.0, document + "who?what")
    play.core.run(100)
    assert (cold.cached, warm.cached) == (0, 96)
    assert (cold.prefill_end - cold.prefill_start, warm.prefill_end - warm.prefill_start) == (1.01, pytest.approx(0.06))
    assert (play.core.count["prefix_queries"], play.core.count["prefix_hits"]) == (101 + 102, 96)
    assert (cold.created, warm.created) == (96, 0)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    play = Play(prefill_tokens_per_s=100, block_tokens=16)
    for at in (0.0, 50.0):
        again = play.ask("a", at, 64)
        play.core.run(at + 40)
    assert again.cached == 48


def test_without_prefix_caching_nothing_is_found() -> None:
    play = Play(prefix_caching=False)
    for at in (0.0, 50.0):
        again = play.ask("a", at, 64)
        play.core.run(at + 40)
    assert (again.cached, play.core.count["prefix_queries"], len(play.core.pool.idle)) == (0, 0, 0)


def test_the_cache_forgets_the_oldest_document_when_it_is_full() -> None:
    play = Play(prefill_tokens_per_s=1e6, block_tokens=16, kv_blocks=3 * 11)
    cached = []
    for turn, name in enumerate("abcdabd"):
        cached.append(play.ask(name, 10.0 * turn, 160, answer=1).cached)
        play.core.run(10.0 * turn + 9)
    # Three documents and a little more fit: d drives out a's end, a b's, b c's; d is still there.
    assert cached[:4] == [0, 0, 0, 0]
    assert cached[4] < 144 and cached[6] == 144
    assert play.core.pool.evicted > 0


def test_memory_bounds_what_runs_too() -> None:
    play = Play(slots=8, prefill_tokens_per_s=1000, block_tokens=16, kv_blocks=20)
    first, second = (play.ask(name, 0.0, 160, answer=11) for name in "ab")
    play.core.run(0.5)
    assert (len(play.core.running), len(play.core.waiting)) == (1, 1)
    play.core.run(100)
    assert second.prefill_start == pytest.approx(first.prefill_end + 1.0)


@pytest.mark.parametrize(("pauses", "expected"), [(False, [1.0, 1.1, 1.2, 1.3]), (True, [1.0, 1.1, 3.1, 3.2])])
def test_decode_goes_on_or_stands_still_during_a_prefill(pauses: bool, expected: list[float]) -> None:
    play = Play(prefill_tokens_per_s=100, prefill_pauses_decode=pauses)
    play.ask("a", 0.0, 100)
    play.ask("b", 1.15, 195)
    play.core.run(100)
    # b's prefill lasts from 1.15 to 3.10: a's third token had 0.05 s to go.
    assert play.times("a") == expected if not pauses else play.times("a") == [1.0, 1.1, 3.15, 3.25]
    assert play.times("b")[0] == 3.1


@pytest.mark.parametrize("where", ["waiting", "prefill", "decode"])
def test_an_abort_frees_what_it_held_wherever_it_is(where: str) -> None:
    play = Play(slots=1, prefill_tokens_per_s=100, prefill_pauses_decode=True)
    first = play.ask("a", 0.0, 100, answer=1000)
    second, third = play.ask("b", 0.0, 100), play.ask("c", 0.0, 100)
    gone, now = {"waiting": (second, 0.5), "prefill": (first, 0.5), "decode": (first, 5.0)}[where]
    assert play.core.abort(gone, now) == where
    if where == "waiting":
        play.core.abort(first, 5.0)
        assert third.prefill_start == 5.0 and second.prefill_start is None
    else:
        assert second.prefill_start == now
    play.core.run(1000)
    assert play.core.abort(gone, 1000) == "done"
    assert (play.core.pool.used, len(play.core.running), len(play.core.waiting)) == (0, 0, 0)
    assert len(play.seen["c"]) == 4


def test_what_was_answered_is_found_by_the_next_turn() -> None:
    play = Play(prefill_tokens_per_s=1000, block_tokens=5)
    plan = engine.make_plan(Script(tokens=40), random.Random(5), [{"role": "user", "content": "hello"}], 100, 9)
    turn = [engine.special("user"), Span("hello"), engine.special("end"), engine.special("assistant")]
    asked = Sequence(turn, plan, Script(), random.Random(1), lambda *_args: None)
    play.core.submit(asked, 0.0)
    play.core.run(50)
    spans = [*turn, Span(plan.channel("content")), engine.special("end"), engine.special("user"), Span("go on")]
    following = Sequence([*spans, engine.special("end")], Plan(["content"], ["x"], [b"x"]), Script(), random.Random(1), lambda *_args: None)
    play.core.submit(following, 60.0)
    # 5 tokens of prompt and 40 of answer, its end included, in blocks of 5.
    assert (asked.prompt_tokens, following.cached) == (5, 45)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 300), st.integers(1, 30)), min_size=1, max_size=8), st.data())
def test_being_late_changes_nothing_of_the_schedule(requests: list[tuple[float, int, int]], data: st.DataObject) -> None:
    requests.sort()
    pauses = data.draw(st.booleans())
    looks = sorted(data.draw(st.lists(st.floats(0, 60), max_size=10)))
    seen = []
    for extra in ([], looks):
        play = Play(slots=2, prefill_tokens_per_s=100, prefill_pauses_decode=pauses)
        todo = sorted([(at, 0, index) for index, (at, _prompt, _answer) in enumerate(requests)] + [(at, 1, 0) for at in extra])
        for at, is_look, index in todo:
            if is_look:
                play.core.run(at)
            else:
                play.ask(chr(97 + index), at, requests[index][1], requests[index][2])
        play.core.run(10_000)
        seen.append({name: play.times(name) for name in play.seen})
    assert seen[0] == seen[1]
    assert all(len(seen[0][chr(97 + index)]) == request[2] for index, request in enumerate(requests))


def test_speculation_brings_bursts_and_counts_them() -> None:
    play = Play(prefill_tokens_per_s=1000)
    play.ask("a", 0.0, 100, answer=10, spec_tokens=2)
    play.core.run(50)
    assert play.seen["a"] == [(pytest.approx(0.1 + 0.1 * step), count) for step, count in enumerate([1, 3, 3, 3])]
    assert [play.core.count[name] for name in ("drafts", "draft_tokens", "accepted_tokens")] == [3, 6, 6]
    half = Play(prefill_tokens_per_s=1000)
    half.ask("a", 0.0, 100, answer=3000, spec_tokens=2, spec_acceptance=0.5)
    half.core.run(5000)
    steps = len(half.seen["a"]) - 1
    assert sum(count for _at, count in half.seen["a"]) == 3000 and half.core.count["drafts"] == steps
    # One token, half of the time a second, a quarter of the time a third.
    assert 2999 / steps == pytest.approx(1.75, abs=0.1)
    assert half.core.accepted_at[0] / steps == pytest.approx(0.5, abs=0.05)
    assert half.core.accepted_at[1] / steps == pytest.approx(0.25, abs=0.05)


def test_jitter_moves_tokens_and_never_their_places() -> None:
    play = Play(prefill_tokens_per_s=1000)
    play.ask("a", 0.0, 100, answer=500, jitter=0.8)
    play.core.run(5000)
    off = [at - (0.1 + 0.1 * index) for index, at in enumerate(play.times("a"))]
    assert all(abs(value) <= 0.04 + 1e-9 for value in off) and len({round(value, 6) for value in off}) > 100
    assert play.times("a") == sorted(play.times("a"))


def test_the_step_counter_moves_while_a_long_prefill_runs() -> None:
    play = Play(prefill_tokens_per_s=1000, batched_tokens=2048)
    play.ask("a", 0.0, 10_000)
    counts = [play.core.step_counts(at) for at in (1.0, 2.1, 5.0, 20.0)]
    assert counts == [[], [2048], [2048], [2048, 2048, 10_000 - 4 * 2048 + 1, 3]]


# ---- what is answered


def plan_of(question: str = "Tell me something.", max_tokens: int = 1000, script: Script | None = None, **more: object) -> Plan:
    messages = more.pop("messages", [{"role": "user", "content": question}])
    return engine.make_plan(script or Script(), random.Random(more.pop("seed", 1)), messages, max_tokens, 50, **more)


def test_lengths_are_exact_and_the_end_is_a_token() -> None:
    plan = plan_of(script=Script(tokens=100))
    assert (len(plan), plan.finish, plan.kinds.count("content"), plan.kinds[-1]) == (100, "stop", 99, "hidden")
    plan = plan_of(script=Script(tokens=100, reasoning_tokens=40))
    assert (len(plan), plan.kinds.count("reasoning"), plan.kinds[40], plan.kinds.count("content")) == (100, 40, "hidden", 58)
    assert plan_of(script=Script(reasoning_tokens=40), thinking=False).kinds.count("reasoning") == 0
    for wanted, cap, more, made, finish in (
        (100, 10, {}, 10, "length"),
        (100, 100, {}, 100, "stop"),
        (5, 60, {"ignore_eos": True}, 60, "length"),
        (5, 60, {"min_tokens": 30}, 30, "stop"),
    ):
        plan = plan_of(max_tokens=cap, script=Script(tokens=wanted), **more)
        assert (len(plan), plan.finish) == (made, finish)


def test_a_stop_string_ends_the_text_before_it_wherever_tokens_are_cut() -> None:
    text = "one two three four"
    for stop in ("three", "wo", "r", " ", "four"):
        for keep in (False, True):
            plan = plan_of(script=Script(text=text), stops=(stop,), keep_stop=keep)
            at = text.index(stop) + (len(stop) if keep else 0)
            assert (plan.channel("content"), plan.finish, plan.stop_reason) == (text[:at], "stop", stop)
            assert len(plan) == -(-(text.index(stop) + len(stop)) // 4)
    assert plan_of(script=Script(text=text), stops=("five",)).stop_reason is None
    assert plan_of(script=Script(text=text), max_tokens=2, stops=("three",)).finish == "length"


def test_the_same_request_gets_the_same_prose_and_another_seed_another() -> None:
    texts = [plan_of(seed=seed).channel("content") for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("chinese", [False, True])
def test_prose_passes_the_detectors_of_garbage(chinese: bool) -> None:
    for seed in range(5):
        text = b"".join(engine.prose_tokens(random.Random(seed), 700, chinese)).decode()
        assert _quality.inspect(text, prompt="面包" if chinese else "bread", language="zh" if chinese else "en") == []


FILLER = "Nothing of note happened on this day. " * 2000


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the capital of Greece?", "The capital of Greece is Athens."),
        ("日本的首都是哪里？", "日本的首都是东京。"),
        ("What is 1234 + 8766?", "10000"),
        ("The secret code is 771204. What is the secret code? Answer with the code only.", "771204"),
        ("The secret code is 771204. What is the secret code?", "The secret code is 771204."),
        ("密码是 771204。请重复密码。", "771204"),
        ("暗号是 771204。暗号是什么？", "771204"),
        ("Repeat exactly: a b c", "a b c"),
        (
            FILLER + "The magic number for Oslo is 4412. " + FILLER + "What is the magic number for Oslo?",
            "The magic number for Oslo is 4412.",
        ),
        (FILLER + "What is this day about?", ""),
    ],
)
def test_answers_come_from_the_tables_and_the_conversation(question: str, expected: str) -> None:
    assert engine.answer([{"role": "user", "content": question}]) == expected


def test_answers_remember_earlier_turns_and_what_tools_said() -> None:
    talk = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada. The secret code is 1111."},
        {"role": "user", "content": [{"type": "text", "text": "The secret code is 5521."}]},
        {"role": "assistant", "content": "Fine."},
    ]
    assert engine.answer([*talk, {"role": "user", "content": "What is my name?"}]) == "Your name is Ada."
    assert engine.answer([*talk, {"role": "user", "content": "What was the code I gave you?"}]) == "5521"
    assert "17.25" in engine.answer([*talk, {"role": "tool", "content": '{"temperature": 17.25}'}])


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "integer", "minimum": 2, "maximum": 5},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 2},
        "exact": {"type": "boolean"},
        "note": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        "left_out": {"type": "string"},
    },
    "required": ["city", "unit", "days", "tags", "exact", "note"],
    "$defs": {"tag": {"type": "string", "maxLength": 3}},
}


def test_a_schema_is_filled_from_the_question() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    value = engine.instance(SCHEMA, "Weather in Tokyo in kelvin for 9 days?")
    jsonschema.validate(value, SCHEMA)
    assert (value["city"], value["unit"], value["days"], "left_out" in value) == ("Tokyo", "kelvin", 5, False)
    assert json.loads(plan_of("Oslo?", schema=SCHEMA).channel("content"))["city"] == "Oslo"


@settings(deadline=None)
@given(st.text(max_size=40), st.text("abc面 ", min_size=1, max_size=12))
def test_the_parts_of_a_tool_call_join_to_its_arguments(value: str, name: str) -> None:
    arguments = json.dumps({"q": value}, ensure_ascii=False)
    plan = plan_of(tool={"id": "x", "name": name, "arguments": arguments, "finish": "tool_calls", "content": None})
    assert plan.channel("tool") == arguments
    assert (plan.kinds.count("tool_name"), plan.kinds.index("tool_name") < plan.kinds.index("tool"), plan.finish) == (1, True, "tool_calls")
    assert b"".join(plan.raws[:-1]).decode() == "".join(engine.tool_source(name, arguments))


@pytest.mark.parametrize(
    "changes",
    [{"token": 5}, {"tokens": "5"}, {"tokens": True}, {"jitter": 1}, {"first_delta": "none"}, {"tool": {}}, {"spec_acceptance": 1.1}, []],
)
def test_a_script_that_is_not_understood_is_refused(changes: object) -> None:
    with pytest.raises(ValueError, match="standin"):
        Script().with_changes(changes, "standin")


def test_a_command_line_that_cannot_work_is_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "rules").write_text('[{"match": "x", "tokenz": 1}]')
    for line, told in (
        (["--kv-blocks", "10"], "8192 can"),
        (["--slots", "0"], "1 or more"),
        (["--time-scale", "0"], "above 0"),
        (["--key-file", str(tmp_path / "empty")], "holds no key"),
        (["--script", str(tmp_path / "rules")], "tokenz"),
        (["--spec-acceptance", "2"], "spec_acceptance"),
    ):
        with pytest.raises(SystemExit):
            engine.build(line)
        assert told in capsys.readouterr().err


def test_figures_by_the_clients_rules() -> None:
    """One synthetic stream: the role early, 40 tokens of reasoning and 40 of content, two at a time every 20 ms."""
    events = [[0.005, "role", 0]] + [[0.2 + 0.02 * n, "reasoning" if n < 20 else "content", 2] for n in range(40)] + [[1.0, "usage", 0]]
    found = engine.figures({"arrival": 0.0, "events": events, "completion_tokens": 80})
    assert [found[name] for name in ("ttft_s", "ttft_token_s", "ttft_content_s", "e2e_s", "chunks")] == [0.005, 0.2, 0.6, 0.98, 40]
    assert found["tpot_s"] == pytest.approx((0.98 - 0.005) / 79)


# ---- on real sockets


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, fleet.Engine]]:
    """The engines of this file, each with one thing to show."""
    directory = tmp_path_factory.mktemp("standin")
    key = directory / "keys"
    key.write_text("another-key\n{0}\n".format(KEY))
    script = directory / "script.json"
    script.write_text(json.dumps([{"match": "^scripted", "text": "as the file says"}]))
    tools = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    kinds = {
        "plain": {"model": ["smol"], "max_model_len": 1024, "key_file": key, "keep_alive_s": 0.3},
        "open": dict(tools, prefill_tokens_per_s=4000, decode_tokens_per_s=500, script=script, model=["big", "alias"]),
        "narrow": {"slots": 1, "prefill_tokens_per_s": 500, "decode_tokens_per_s": 20, "enable_server_load_tracking": True},
        "fast": dict(fleet.LONG_PREFILL, time_scale=200, spec_tokens=2, reasoning_field="both"),
        "wide": {"slots": 250, "decode_tokens_per_s": 2, "prefill_tokens_per_s": 1e6},
    }
    with fleet.Fleet(list(kinds.values()), directory) as started:
        yield dict(zip(kinds, started.engines, strict=True))
        errors = [(item.name, item.errors.read_text()) for item in started.engines]
    assert [said for said in errors if said[1]] == []


def chat(text: str = "Tell me something.", **more: object) -> dict:
    return {"messages": [{"role": "user", "content": text}], **more}


def raw_request(body: object, path: str = PATH, method: str = "POST", key: str = "", **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = ["{0} {1} HTTP/1.1".format(method, path), "Host: standin", "Content-Length: {0}".format(len(data))]
    lines += ["Authorization: Bearer " + key] if key else []
    lines += ["{0}: {1}".format(name.replace("_", "-"), value) for name, value in {"Content-Type": "application/json", **headers}.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def post(where: fleet.Engine, body: object, path: str = PATH, method: str = "POST", key: str = "", **headers: str) -> tuple:
    """One request on a connection of its own: status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", where.port, timeout=20)
    try:
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, path, data, {**given, **({"Authorization": "Bearer " + key} if key else {})})
        reply = connection.getresponse()
        raw = reply.read()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, raw
    finally:
        connection.close()


def unary(where: fleet.Engine, body: dict, **more: str) -> dict:
    status, _headers, raw = post(where, body, **more)
    assert status == 200, raw
    return json.loads(raw)


class Seen:
    """A stream as a client sees it over a plain socket: ``events`` are (monotonic seconds, data)."""

    def __init__(self, where: fleet.Engine, body: dict, path: str = PATH, key: str = "") -> None:
        self.sent = time.monotonic()
        self.events: list[tuple[float, str]] = []
        with socket.create_connection(("127.0.0.1", where.port), timeout=20) as client:
            client.sendall(raw_request(dict(body, stream=True), path, key=key))
            raw, self.body = b"", b""
            while b"\r\n\r\n" not in raw:
                raw += self._more(client)
            head, _end, raw = raw.partition(b"\r\n\r\n")
            self.head_at, self.head = time.monotonic(), head.decode()
            while not self._take(raw):
                raw = self._rest + self._more(client)
        self.chunks = [json.loads(data) for _at, data in self.events if data != "[DONE]"]

    @staticmethod
    def _more(client: socket.socket) -> bytes:
        data = client.recv(65536)
        assert data, "the stream was cut"
        return data

    def _take(self, raw: bytes) -> bool:
        """Take whole HTTP chunks, each of which must be one whole event; True at the last."""
        at = time.monotonic()
        while True:
            size, end, rest = raw.partition(b"\r\n")
            if not end or len(rest) < int(size, 16) + 2:
                self._rest = raw
                return False
            data, raw = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
            if not data:
                assert raw == b""
                return True
            self.body += data
            assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2, data
            self.events.append((at, data[6:-2].decode()))

    def deltas(self) -> list[dict]:
        return [chunk["choices"][0]["delta"] for chunk in self.chunks if chunk["choices"]]

    def text(self, field: str = "content") -> str:
        return "".join(delta.get(field) or "" for delta in self.deltas())

    @property
    def finish(self) -> str:
        return [chunk["choices"][0]["finish_reason"] for chunk in self.chunks if chunk["choices"]][-1]

    @property
    def usage(self) -> dict:
        return self.chunks[-1]["usage"]


def truth(where: fleet.Engine, ident: str) -> dict:
    """The record of a request that is over."""
    return where.wait_for(lambda e: next((r for r in e.records() if r.get("request") == ident), None), told="a record of " + ident)


def unused_numbers() -> Iterator[int]:
    """Numbers that no earlier attempt used: what was sent once is cached."""
    return iter(range(time.time_ns(), time.time_ns() + 1000))


def nearly(attempt: Callable[[], None], times: int = 4) -> None:
    """A busy machine may spoil a time; not four times in a row."""
    for left in reversed(range(times)):
        try:
            return attempt()
        except AssertionError:
            if not left:
                raise
    raise AssertionError


def shape(value: object) -> object:
    """What a JSON value is made of: keys in order, and types."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}, list(value)
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


CASES = [json.loads(line) for line in (CAPTURES / "vllm-0.32.0-http.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_every_captured_exchange_is_answered_like_vllm(engines: dict[str, fleet.Engine], case: dict) -> None:
    asked = case["request"]
    body, headers = asked["body"], {}
    if case["case"] == "prompt_too_long":
        body = chat("word " * 3000, model="smol")
    elif case["case"] == "wrong_content_type":
        headers = {"Content_Type": "text/plain"}
    if isinstance(body, str):
        body = body.encode()
    key = KEY if asked["auth"] else ""
    status, got, raw = post(engines["plain"], body, asked["path"], asked["method"], key, **headers)
    assert (status, got.get("content-type")) == (case["status"], case["content_type"])
    if isinstance(case["body"], str):
        assert raw.decode() == case["body"]
    elif status == 200:
        assert shape(json.loads(raw)) == shape(case["body"])
        assert raw == engine.compact(json.loads(raw)).encode()
    else:
        # Refusals are the same to the letter.
        assert json.loads(raw) == case["body"]


def test_a_stream_is_vllms_to_the_order_of_its_keys(engines: dict[str, fleet.Engine]) -> None:
    captured = (CAPTURES / "vllm-0.32.0-stream.sse").read_text()
    wanted = [event.removeprefix("data: ") for event in captured.strip().split("\n\n")]
    body = {"model": "smol", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stream_options": {"include_usage": True}}
    seen = Seen(engines["plain"], body, key=KEY)
    assert "\r\ncontent-type: text/event-stream; charset=utf-8" in seen.head and "\r\ntransfer-encoding: chunked" in seen.head
    assert seen.body.decode().count("\n\n") == len(seen.events) == len(wanted)
    for (_at, data), told in zip(seen.events, wanted, strict=True):
        if told == "[DONE]":
            assert data == told
            continue
        assert shape(json.loads(data)) == shape(json.loads(told))
        # Not one space more or less.
        assert data == engine.compact(json.loads(data))
    assert len({(chunk["id"], chunk["created"]) for chunk in seen.chunks}) == 1 and seen.chunks[0]["id"].startswith("chatcmpl-")
    assert (seen.finish, seen.usage["completion_tokens"]) == ("length", 4)


def series(text: str) -> dict[str, list[frozenset[str]]]:
    """Metric names with their kind, and the label names (with the bounds of buckets) of their series, in order."""
    out: dict[str, list[frozenset[str]]] = {}
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    for name, labels in re.findall(r"^(vllm:\w+)\{(.*)\} \S+$", text, re.M):
        family = name if name in kinds else re.sub("_(bucket|count|sum)$", "", name)
        pairs = re.findall(r'(\w+)="([^"]*)"', labels)
        kept = frozenset(key if key != "le" else key + value for key, value in pairs)
        out.setdefault("{0} {1} {2}".format(family, kinds[family], name), []).append(kept)
    return out


def test_metrics_have_vllms_names_kinds_labels_and_buckets(engines: dict[str, fleet.Engine]) -> None:
    captured = series((CAPTURES / "vllm-0.32.0-hybrid-prefixcache.prom").read_text())
    core = Core(CoreOptions())
    metrics = engine.Metrics(core, "tiny", 16384, 0)
    mine = series(metrics.render(0.0))
    assert list(mine) == list(captured)
    assert mine == captured
    status, headers, raw = post(engines["plain"], None, "/metrics", "GET")
    assert (status, list(series(raw.decode()))) == (200, list(captured))
    assert headers["content-type"].startswith("text/plain; version=")
    spec = [name for name in series(post(engines["fast"], None, "/metrics", "GET")[2].decode()) if "spec_decode" in name]
    assert [name.split(":")[1].split()[0] for name in spec if "_total " in name] == [
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
    ]
    assert engine._figure(20) == "20.0" and engine._figure(1795998710.3354623) == "1.7959987103354623e+09"


def test_the_metrics_count_what_was_done(engines: dict[str, fleet.Engine]) -> None:
    where = engines["open"]
    before = where.metrics()
    document = random.Random(7).randbytes(400).hex()
    usage = [unary(where, chat(document + tail, max_tokens=5))["usage"] for tail in ("?", "!")]
    after = where.metrics()
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    prompt, cached = sum(item["prompt_tokens"] for item in usage), usage[1]["prompt_tokens_details"]["cached_tokens"]
    assert (usage[0]["prompt_tokens_details"]["cached_tokens"], cached) == (0, 192)
    assert (grown["vllm:prompt_tokens_total"], grown["vllm:prefix_cache_queries_total"]) == (prompt, prompt)
    assert (grown["vllm:prefix_cache_hits_total"], grown["vllm:prompt_tokens_cached_total"]) == (cached, cached)
    assert (grown["vllm:generation_tokens_total"], grown["vllm:request_success_total"]) == (10, 2)
    assert grown["vllm:iteration_tokens_total_sum"] == prompt - cached + 10
    assert grown["vllm:time_to_first_token_seconds_count"] == grown["vllm:e2e_request_latency_seconds_count"] == 2
    assert grown["vllm:inter_token_latency_seconds_count"] == 8
    assert after["vllm:num_requests_running"] == after["vllm:kv_cache_usage_perc"] == 0


def test_the_truth_is_what_a_client_sees(engines: dict[str, fleet.Engine]) -> None:
    where = engines["open"]

    body = chat(max_tokens=60, ignore_eos=True, stream_options={"include_usage": True}, standin={"decode_tokens_per_s": 100})

    def attempt() -> None:
        seen = Seen(where, body)
        record = truth(where, seen.chunks[0]["id"])
        events = record["events"]
        assert [event[1] for event in events] == ["role", *["content"] * 60, "usage", "done"]
        lags = [at - event[0] for (at, _data), event in zip(seen.events, events, strict=True)]
        late = [event[0] - record["prefill_end"] - 0.01 * index for index, event in enumerate(events[1:61])]
        # Never before its time, never seen before it was sent; and what one side was late explains every difference.
        assert min(late) >= -1e-5 and min(lags) >= -1e-5 and record["arrival"] >= seen.sent - 1e-5
        assert max(late) == pytest.approx(record["late_s"], abs=0.001)
        times = [at for at, _data in seen.events]
        connecting = record["arrival"] - seen.sent
        assert times[0] - seen.sent == pytest.approx(record["ttft_s"] + connecting + lags[0], abs=1e-4)
        assert (times[60] - times[0]) / 59 == pytest.approx(record["tpot_s"], abs=max(lags) / 59 + 1e-6)
        assert record["tpot_s"] == pytest.approx(0.01, abs=max(late) / 59 + 1e-4)
        assert times[60] - seen.sent == pytest.approx(record["e2e_s"] + connecting + lags[60], abs=1e-4)
        assert (record["prompt_tokens"], record["completion_tokens"]) == (seen.usage["prompt_tokens"], 60)
        assert (record["content"], record["finish"], record["queue_s"], record["chunks"]) == (seen.text(), "length", 0.0, 60)
        assert statistics.median(lags) < 0.004 and statistics.median(late) < 0.004

    nearly(attempt)


def test_a_hit_shortens_the_first_token_by_what_is_cached(engines: dict[str, fleet.Engine]) -> None:
    where = engines["open"]
    fresh = unused_numbers()

    def attempt() -> None:
        document = random.Random(next(fresh)).randbytes(3200).hex()
        waits = []
        for tail in ("?", "!"):
            seen = Seen(where, chat(document + tail, max_tokens=1, stream_options={"include_usage": True}))
            waits.append((seen.events[0][0] - seen.sent, seen.usage["prompt_tokens_details"]["cached_tokens"]))
        (cold, nothing), (warm, cached) = waits
        assert (nothing, cached) == (0, 1600)
        # Never less than what is to be computed, and little more.
        for wait, computed in ((cold, 1604), (warm, 4)):
            assert 0 <= wait - computed / 4000 < 0.08

    nearly(attempt)


def test_the_second_prefill_waits_for_the_first(engines: dict[str, fleet.Engine]) -> None:
    where = engines["open"]
    fresh = unused_numbers()

    def attempt() -> None:
        documents = [random.Random(next(fresh)).randbytes(1600).hex() for _each in range(2)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            seen = list(pool.map(lambda text: Seen(where, chat(text, max_tokens=1)), documents))
        records = sorted((truth(where, item.chunks[0]["id"]) for item in seen), key=lambda record: record["prefill_start"])
        assert records[1]["prefill_start"] >= records[0]["prefill_end"] - 1e-6
        firsts = sorted(item.events[0][0] - item.sent for item in seen)
        assert 0 <= firsts[0] - 804 / 4000 < 0.08
        assert 804 / 4000 - 0.05 < firsts[1] - firsts[0] < 804 / 4000 + 0.08

    nearly(attempt)


@contextlib.contextmanager
def hanging(where: fleet.Engine, body: dict, until: Callable[[dict[str, float]], bool]) -> Iterator[socket.socket]:
    """A request whose client reads nothing; entered when the engine's metrics say what ``until`` waits for."""
    with socket.create_connection(("127.0.0.1", where.port), timeout=20) as client:
        client.sendall(raw_request(body, x_request_id="hang-{0}".format(client.getsockname()[1])))
        where.wait_for(lambda e: until(e.metrics()))
        yield client


def test_slots_bound_what_runs_and_a_client_that_goes_frees_its_place(engines: dict[str, fleet.Engine]) -> None:
    where = engines["narrow"]
    counts = ("vllm:num_requests_running", "vllm:num_requests_waiting")

    def at(running: int, waiting: int) -> Callable[[dict[str, float]], bool]:
        return lambda metrics: [metrics[name] for name in counts] == [running, waiting]

    def name_of(client: socket.socket) -> str:
        return "chatcmpl-hang-{0}".format(client.getsockname()[1])

    long = chat(max_tokens=1000, ignore_eos=True)
    aborts = where.metrics()["vllm:request_success_total"]
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(hanging(where, dict(long, stream=True), at(1, 0)))
        second = stack.enter_context(hanging(where, long, at(1, 1)))
        third = stack.enter_context(hanging(where, chat("x" * 40_000, max_tokens=2), at(1, 2)))
        fourth = stack.enter_context(hanging(where, long, at(1, 3)))
        assert json.loads(post(where, None, "/load", "GET")[2]) == {"server_load": 4}
        names = [name_of(client) for client in (first, second, third, fourth)]
        # From the queue; from decode, streamed; from decode, not streamed; from a prefill of 20 s.
        fourth.close()
        where.wait_for(lambda e: at(1, 2)(e.metrics()))
        first.close()
        assert truth(where, names[0])["aborted_in"] == "decode"
        where.wait_for(lambda e: at(1, 1)(e.metrics()) and e.metrics()["vllm:time_to_first_token_seconds_count"] >= 2)
        second.close()
        where.wait_for(lambda e: at(1, 0)(e.metrics()))
        third.close()
        where.wait_for(lambda e: at(0, 0)(e.metrics()))
    records = {name: truth(where, name) for name in names}
    assert [records[name]["aborted_in"] for name in names] == ["decode", "decode", "prefill", "waiting"]
    assert [records[name]["finish"] for name in names] == ["abort"] * 4
    # The place was free the moment its client went.
    assert records[names[1]]["prefill_start"] == pytest.approx(records[names[0]]["end"], abs=0.25)
    assert records[names[2]]["prefill_start"] == pytest.approx(records[names[1]]["end"], abs=0.25)
    assert where.metrics()["vllm:request_success_total"] == aborts + 4
    assert where.metrics()["vllm:kv_cache_usage_perc"] == 0


def test_250_slow_streams_are_held_for_next_to_nothing(engines: dict[str, fleet.Engine]) -> None:
    where = engines["wide"]
    with contextlib.ExitStack() as stack:
        body = raw_request(chat(stream=True, standin={"tokens": 1000}))
        for _each in range(255):
            stack.enter_context(socket.create_connection(("127.0.0.1", where.port), timeout=20)).sendall(body)
        where.wait_for(lambda e: e.metrics()["vllm:num_requests_running"] == 250 and e.metrics()["vllm:num_requests_waiting"] == 5)
        before, start = where.metrics(), time.monotonic()
        where.wait_for(lambda e: e.metrics()["vllm:generation_tokens_total"] >= before["vllm:generation_tokens_total"] + 250)
        after, wall = where.metrics(), time.monotonic() - start
        made = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
        assert made == pytest.approx(500 * wall, abs=260)
        # Some of it is for these questions themselves.
        assert (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / made < 0.002
    where.wait_for(lambda e: e.metrics()["vllm:num_requests_running"] == 0 and e.metrics()["vllm:num_requests_waiting"] == 0)


def test_a_prefill_of_minutes_is_played_in_a_second(engines: dict[str, fleet.Engine]) -> None:
    where = engines["fast"]
    fresh = unused_numbers()

    def attempt() -> None:
        document = random.Random(next(fresh)).randbytes(160_000).hex()
        waits = []
        for tail in ("?", "!"):
            seen = Seen(where, chat(document + tail, max_tokens=1, stream_options={"include_usage": True}))
            record = truth(where, seen.chunks[0]["id"])
            waits.append((record["prefill_end"] - record["prefill_start"], seen.usage["prompt_tokens_details"]["cached_tokens"]))
            assert 0 <= seen.events[0][0] - record["submitted"] - waits[-1][0] < 0.1
        # 187 s cold and some 8.9 s warm (the tail of a block is computed again), 200 times as fast.
        assert [round(seconds * 200) for seconds, _cached in waits] == [187, 9]
        assert waits[1][1] == 75 * 1056

    nearly(attempt)


# ---- modes


def test_reasoning_comes_before_the_answer_under_the_names_asked_for(engines: dict[str, fleet.Engine]) -> None:
    body = chat(standin={"tokens": 30, "reasoning_tokens": 10}, stream_options={"include_usage": True})
    for name, fields in (("open", ["reasoning"]), ("fast", ["reasoning", "reasoning_content"])):
        seen = Seen(engines[name], body)
        record = truth(engines[name], seen.chunks[0]["id"])
        assert {field for delta in seen.deltas() for field in delta if field.startswith("reasoning")} == set(fields)
        assert seen.text(fields[0]) == record["reasoning"] and seen.text() == record["content"]
        usage = seen.usage
        assert (usage["completion_tokens"], usage["completion_tokens_details"]) == (30, {"reasoning_tokens": 10})
        message = unary(engines[name], {key: value for key, value in body.items() if key != "stream_options"})["choices"][0]["message"]
        assert [message[field] for field in fields] == [record["reasoning"]] * len(fields)
        assert message["content"] == record["content"]
        off = unary(engines[name], dict(chat(standin=body["standin"]), chat_template_kwargs={"enable_thinking": False}))
        assert off["choices"][0]["message"]["reasoning"] is None


def test_a_burst_is_one_chunk_with_several_tokens(engines: dict[str, fleet.Engine]) -> None:
    where = engines["open"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    seen = Seen(where, chat(standin={"tokens": 31, "spec_tokens": 2}, stream_options=options))
    record = truth(where, seen.chunks[0]["id"])
    assert [event[2] for event in record["events"]] == [0, 1, *[3] * 10, 0, 0]
    assert [chunk["usage"]["completion_tokens"] for chunk in seen.chunks] == [0, 1, *range(4, 32, 3), 31]
    assert (seen.text(), record["chunks"], seen.usage["completion_tokens"]) == (record["content"], 11, 31)


def test_the_first_delta_may_be_early_or_empty(engines: dict[str, fleet.Engine]) -> None:
    where = engines["open"]

    def attempt() -> None:
        early = Seen(where, chat(standin={"tokens": 5, "prefill_s": 0.5, "first_delta": "early"}))
        record = truth(where, early.chunks[0]["id"])
        assert early.deltas()[0] == {"role": "assistant", "content": ""}
        assert early.events[1][0] - early.events[0][0] > 0.4 and record["ttft_token_s"] - record["ttft_s"] > 0.4
        plain = Seen(where, chat(standin={"tokens": 5, "prefill_s": 0.5}))
        # The head of a stream comes at once, its first event when the prefill has ended.
        assert plain.head_at - plain.sent < 0.25 and plain.events[0][0] - plain.sent >= 0.5
        assert plain.text() == record["content"]

    nearly(attempt)
    empty = Seen(where, chat(standin={"tokens": 5, "first_delta": "empty"}))
    assert [delta["content"] == "" for delta in empty.deltas()] == [True, True, False, False, False, True]
    assert empty.text() == truth(where, empty.chunks[0]["id"])["content"] != ""


TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]


def test_a_tool_loop_closes_streamed_and_whole(engines: dict[str, fleet.Engine]) -> None:
    where = engines["open"]
    body = chat("How is the weather in Tokyo for 3 days?", tools=TOOLS)
    whole = unary(where, body)["choices"][0]
    call = whole["message"]["tool_calls"][0]
    assert (whole["finish_reason"], whole["message"]["content"], call["type"]) == ("tool_calls", None, "function")
    assert json.loads(call["function"]["arguments"])["city"] == "Tokyo"
    seen = Seen(where, dict(body, stream_options={"include_usage": True}))
    calls = [delta["tool_calls"][0] for delta in seen.deltas() if "tool_calls" in delta]
    assert [(list(item), list(item["function"])) for item in calls[:2]] == [
        (["id", "type", "index", "function"], ["name"]),
        (["index", "function"], ["arguments"]),
    ]
    assert calls[0]["function"]["name"] == call["function"]["name"] == "get_weather"
    assert "".join(item["function"].get("arguments", "") for item in calls) == call["function"]["arguments"]
    assert (seen.finish, seen.deltas()[-1], {} in seen.deltas()[:-1]) == ("tool_calls", {}, False)
    # Tokens that only the parser sees are in usage, not in chunks.
    assert seen.usage["completion_tokens"] > len(calls) + 5
    turn = [*body["messages"], whole["message"], {"role": "tool", "tool_call_id": call["id"], "content": "23.5 degrees"}]
    final = unary(where, {"messages": turn, "tools": TOOLS})
    assert "23.5 degrees" in final["choices"][0]["message"]["content"]
    # The whole first turn, the call included, is found again.
    assert final["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16 * (seen.usage["total_tokens"] // 16) - 16
    named = unary(where, dict(body, tool_choice={"type": "function", "function": {"name": "get_weather"}}))["choices"][0]
    assert (named["finish_reason"], named["message"]["content"]) == ("stop", "")
    assert "tool_calls" not in unary(where, dict(body, tool_choice="none"))["choices"][0]["message"]
    scripted = unary(where, dict(body, standin={"tool": {"name": "other", "arguments": {"a": 1}}}))["choices"][0]["message"]
    assert scripted["tool_calls"][0]["function"] == {"name": "other", "arguments": '{"a": 1}'}


def test_stop_schema_script_and_completions(engines: dict[str, fleet.Engine]) -> None:
    where = engines["open"]
    choice = unary(where, chat(standin={"text": "alpha beta gamma"}, stop=["gam", "beta"]))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("alpha ", "stop", "beta")
    format_of = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert json.loads(unary(where, chat("Oslo", response_format=format_of))["choices"][0]["message"]["content"])["city"] == "Oslo"
    assert unary(where, chat("scripted"))["choices"][0]["message"]["content"] == "as the file says"
    assert unary(where, chat("scripted", model="alias"))["model"] == "alias"
    plain = unary(where, {"prompt": "What is the capital of Japan?", "max_tokens": 20}, path="/v1/completions")
    assert (plain["object"], plain["choices"][0]["text"]) == ("text_completion", "The capital of Japan is Tokyo.")
    seen = Seen(where, {"prompt": "What is 2 + 2?", "stream_options": {"include_usage": True}}, "/v1/completions")
    assert [list(chunk["choices"][0]) for chunk in seen.chunks[:-1]] == [
        ["index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"]
    ] * 2
    assert (seen.chunks[0]["choices"][0]["text"], seen.usage["completion_tokens"], seen.events[-1][1]) == ("4", 2, "[DONE]")


def test_what_cannot_be_played_is_refused(engines: dict[str, fleet.Engine]) -> None:
    for more, param in (
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"standin": {"tokenz": 1}}, "standin"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": 5}, "body.stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 131_070}, "input_tokens"),
    ):
        status, _headers, raw = post(engines["open"], chat("x" * 100, **more))
        assert (status, json.loads(raw)["error"]["param"]) == (400, param), raw


# ---- HTTP


def test_keys_protect_v1_only_and_the_truth_names_no_key(engines: dict[str, fleet.Engine]) -> None:
    where = engines["plain"]
    for path in ("/v1/models", "/v1/nosuch", "/%76%31/models"):
        for key, status in (("", 401), ("wrong", 401), (KEY, 404 if "nosuch" in path else 200)):
            assert post(where, None, path, "GET", key)[0] == status, (path, key)
    assert post(where, None, "//v1/models", "GET")[0] == 404
    answer = unary(where, chat(max_tokens=2), key=KEY)
    assert truth(where, answer["id"])["key"] == 1
    refused = [record for record in where.records() if record["status"] == 401]
    assert refused and not any("events" in record for record in refused)
    assert KEY not in where.truth.read_text()


def test_requests_in_pieces_chunks_and_rows_are_understood(engines: dict[str, fleet.Engine]) -> None:
    where = engines["plain"]
    body = json.dumps(chat("What is the capital of Japan?", model="smol")).encode()
    head = "POST {0} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {1}\r\nContent-Type: application/json\r\n".format(PATH, KEY).encode()
    with socket.create_connection(("127.0.0.1", where.port), timeout=5) as client:
        # Byte by byte, in HTTP chunks, then two at once on the same connection.
        for byte in head + b"Content-Length: %d\r\nX-Request-Id: one\r\n\r\n" % len(body) + body:
            client.sendall(bytes([byte]))
        pieces = b"".join(b"%x\r\n%s\r\n" % (len(body[at : at + 9]), body[at : at + 9]) for at in range(0, len(body), 9))
        client.sendall(head + b"Transfer-Encoding: chunked\r\nX-Request-Id: two\r\n\r\n" + pieces + b"0\r\n\r\n")
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + head + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{}")
        raw = b""
        while b"Field required" not in raw:
            raw += Seen._more(client)
        text = raw.decode()
        assert [int(code) for code in re.findall(r"HTTP/1\.1 (\d+)", text)] == [200, 200, 200, 100, 400]
        assert [text.count(part) for part in ("Tokyo", '"chatcmpl-one"', '"chatcmpl-two"')] == [2, 1, 1]
        # Then it is idle, and closed as uvicorn does.
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"GET /health HTTP/1.1\r\nbroken header\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_requests_with_two_meanings_are_refused_and_the_connection_closed(engines: dict[str, fleet.Engine], raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", engines["plain"].port), timeout=5) as client:
        client.sendall(raw)
        got = b""
        while True:
            data = client.recv(4096)
            if not data:
                break
            got += data
    assert got.startswith(b"HTTP/1.1 400 ") and got.count(b"HTTP/1.1") == 1


def test_a_head_request_gets_no_body_and_the_connection_goes_on(engines: dict[str, fleet.Engine]) -> None:
    with socket.create_connection(("127.0.0.1", engines["open"].port), timeout=5) as client:
        client.sendall(b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = b""
        while b'"}' not in got:
            got += Seen._more(client)
    assert re.fullmatch(rb"HTTP/1\.1 405 .*?\r\n\r\nHTTP/1\.1 200 .*\r\n\r\n\{.version.:.0\.32\.0.\}", got, re.S), got


def test_a_client_that_goes_after_its_last_token_was_not_cut_off(tmp_path: pathlib.Path) -> None:
    """The process was late: when the client's going is noticed, its answer was complete."""

    class Gone:
        peer, first_byte, job = "nobody", 0.0, None

        def answer(self, *_args: object) -> None:
            """Nobody reads it."""

    async def play() -> engine.Server:
        server = engine.build(["--truth", str(tmp_path / "truth")])
        connection = Gone()
        server._generate(connection, PATH, {}, chat("What is 2 + 2?"), True, None)
        server._zero -= 10.0
        connection.job.abort()
        return server

    server = asyncio.run(play())
    _start, *records = [json.loads(line) for line in (tmp_path / "truth").read_text().splitlines()]
    assert [(record["finish"], record["aborted_in"], record["content"]) for record in records] == [("stop", None, "4")]
    assert (server.metrics.finished["stop"], server.metrics.finished["abort"], len(server.core.running)) == (1, 0, 0)


def test_methods_and_old_clients(engines: dict[str, fleet.Engine]) -> None:
    where = engines["open"]
    status, headers, raw = post(where, None, PATH, "GET")
    assert (status, headers["allow"], raw) == (405, "POST", b'{"detail":"Method Not Allowed"}')
    with socket.create_connection(("127.0.0.1", where.port), timeout=5) as client:
        body = json.dumps(chat("What is 2 + 2?", stream=True)).encode()
        client.sendall(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body)
        got = b""
        while True:
            data = client.recv(4096)
            if not data:
                break
            got += data
    assert b"transfer-encoding" not in got and got.endswith(b"data: [DONE]\n\n")


# ---- the product's own proof, and the fleet


def test_the_proof_of_real_inference_finds_it_right(engines: dict[str, fleet.Engine]) -> None:
    checks = [
        {"check": "exact", "prompt": "What is the capital of Japan?", "expect": ["Tokyo"], "finish": "stop"},
        {"check": "exact", "prompt": "法国的首都是哪里？", "expect": ["巴黎"], "language": "zh"},
        {"check": "nonce_recall"},
        {
            "check": "nonce_recall",
            "prompt": "密码是 {nonce}。请重复密码。",
            "answer": "密码是 {nonce}。",
            "shots": ["418362"],
            "language": "zh",
        },
        {"check": "quality", "prompt": "Tell me about the history of bread.", "max_tokens": 96},
        {"check": "stream_equals_unary", "prompt": "Tell me about bread."},
        {"check": "prefix_cache", "lines": 200},
    ]
    proof = _verify.Verifier(
        Endpoint("standin", engines["open"].url, cards=("0",)), "big", _verify.read_acceptance({"checks": checks}), _verify.Limits()
    ).prove()
    assert (proof.verdict, [check for check in proof.checks if check["status"] == "fail"]) == ("ok", []), proof.evidence


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        with open("/proc/{0}/stat".format(pid)) as handle:
            return handle.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_fleet_ends_with_whoever_started_it(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, str(ROOT / "tests/standin/fleet.py"), "--engines", "2", "--directory", str(tmp_path), "--", "--slots", "3"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        started = json.loads(process.stdout.readline())["engines"]
        assert len({item["port"] for item in started}) == 2 and all(alive(item["pid"]) for item in started)
        options = json.loads(pathlib.Path(started[0]["truth"]).read_text().splitlines()[0])["options"]
        assert options["slots"] == 3
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    end = time.monotonic() + 5
    while any(alive(item["pid"]) for item in started) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(alive(item["pid"]) for item in started)


def test_a_fleet_that_cannot_start_says_why_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    bad = fleet.Fleet([{}, {"kv_blocks": 1}], tmp_path)
    with pytest.raises(fleet.FleetError, match="e1 does not listen.*--max-model-len"):
        with contextlib.ExitStack() as stack:
            # Kept to look at: stop() forgets them.
            begin = bad._begin
            begun = []
            bad._begin = lambda name, options: (begin(name, options), begun.append(bad._begun[-1][3].pid))
            stack.enter_context(bad)
    assert len(begun) == 2 and not any(alive(pid) for pid in begun)
    with pytest.raises(fleet.FleetError, match="1 to 64 engines, not 65"):
        fleet.Fleet(65, tmp_path)


def test_an_engine_that_is_ended_writes_down_what_it_cut_off(tmp_path: pathlib.Path) -> None:
    with fleet.Fleet(1, tmp_path, decode_tokens_per_s=5) as started:
        where = started.engines[0]
        with hanging(where, chat(stream=True, standin={"tokens": 500}), lambda metrics: metrics["vllm:generation_tokens_total"] >= 1):
            where.process.terminate()
            assert where.process.wait(5) == 0
        record = started.records()[0]
    assert (record["aborted_in"], record["engine"], record["finish"]) == ("decode", "e0", "abort")
    assert 1 <= record["completion_tokens"] < 500 and len(record["events"]) == record["completion_tokens"] + 1
