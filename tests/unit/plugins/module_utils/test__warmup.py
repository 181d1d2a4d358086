# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Warm-up ends with a real token or with a reason, and a dying container is noticed at once."""

from __future__ import annotations

import time
import types

import pytest
from faults.engines.scripted import Engine

from ansible_collections.ironserve.llm.plugins.module_utils import _docker, _sse, _warmup
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint
from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput


def warm(engine, timeout_s=3.0, sweep=None, container="", key=""):
    return _warmup.warm_all([Endpoint("r0", engine.url, key, container)], "scripted", sweep, timeout_s)[0]


@pytest.fixture
def container(monkeypatch):
    """A container whose state the test changes; ``asked`` counts how often it was looked at."""

    class Container:
        state = {"running": True, "exit_code": 0, "log_tail": ""}
        asked = 0

        def look(self, name):
            assert name == "c0"
            self.asked += 1
            return self.state

        def end(self):
            self.state = {"running": False, "exit_code": 139, "log_tail": "loading\nfatal: illegal memory access"}

    made = Container()
    monkeypatch.setattr(_docker, "container_state", made.look)
    return made


def test_a_warm_replica_costs_little():
    start = time.monotonic()
    with Engine("healthy") as engine:
        result = warm(engine)
    assert time.monotonic() - start < 1
    assert result.error == ""
    assert 0 <= result.health_s <= result.first_token_s < 1


def test_health_is_waited_for_and_then_one_request_made():
    with Engine("healthy", start_s=0.6) as engine:
        result = warm(engine)
        assert result.error == ""
        assert result.health_s >= 0.5
        assert [body["max_tokens"] for body in engine.asked] == [_warmup.TOKENS]
    assert result.line() == ""
    assert (result.rounds_s, result.steady, result.warm_ttft_s) == ([], None, None)


@pytest.mark.parametrize(
    ("lengths", "most", "context", "steps"),
    [
        ([], 8, 0, []),
        ([32], 1, 0, [[32]]),
        ([512, 32], 1, 0, [[32], [512]]),
        ([32], 2, 0, [[32], [32, 32]]),
        ([32], 8, 0, [[32], [32] * 2, [32] * 4, [32] * 8]),
        ([32], 6, 0, [[32], [32] * 2, [32] * 4, [32] * 6]),
        ([32, 512, 4096], 4, 0, [[32], [512], [4096], [32] * 2, [32] * 4, [4096, 512, 32, 4096]]),
        # Half of the context, for lengths are estimates.
        ([32, 512, 4096], 2, 4096, [[32], [512], [32] * 2, [512, 32]]),
        ([4096], 2, 4096, []),
    ],
)
def test_a_round_goes_through_lengths_and_concurrency(lengths, most, context, steps):
    assert _warmup.Sweep(lengths, most).steps(context) == steps


@pytest.mark.parametrize("tokens", [32, 128, 512, 4096, 12288])
def test_a_prompt_has_about_the_wanted_length_and_no_known_beginning(tokens):
    one, other = _warmup.prompt_of(tokens, 7), _warmup.prompt_of(tokens, 7)
    assert one[:17] != other[:17]
    # Words and full stops are a token each; the code at the beginning takes about as many as what the template adds.
    assert abs(len(one.split()) * _warmup.TOKENS_PER_WORD + _warmup.TOKENS_AROUND - tokens) <= 4


class Compiling:
    """An engine that takes long at the first sight of a shape (length, how many at once), on a clock of its own."""

    def __init__(self, monkeypatch, cold_s, quicker_s=()):
        self.known = set()
        self.bodies = []
        self.cold_s = cold_s
        self.now = 1000.0
        self.steady_s = iter(quicker_s)
        monkeypatch.setattr(_warmup, "time", types.SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(_warmup.Warmer, "_wait_for_health", lambda warmer: None)
        monkeypatch.setattr(_warmup.Warmer, "_watched", lambda _warmer, bodies: self.watched(bodies))

    def watched(self, bodies):
        shape = tuple(sorted(len(body["messages"][0]["content"].split()) for body in bodies))
        took = next(self.steady_s, 0.5) if shape in self.known else self.cold_s
        self.known.add(shape)
        self.bodies.append(bodies)
        answers = []
        for _body in bodies:
            transcript = _sse.Transcript(self.now)
            transcript.feed(self.now + took, b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n')
            answers.append((transcript, 200, ""))
        self.now += took
        return answers

    def warm(self, **sweep):
        return _warmup.warm_all([Endpoint("r0", "http://127.0.0.1:9")], "scripted", _warmup.Sweep(**sweep))[0]


def test_rounds_go_on_until_two_agree(monkeypatch):
    engine = Compiling(monkeypatch, cold_s=8.0)
    result = engine.warm(prompt_tokens=[32, 512], max_num_seqs=4)
    # The first request, then twice or three times: 32, 512, 2 x 32, 4 x 32 and four of both.
    assert [len(bodies) for bodies in engine.bodies] == [1] + [1, 1, 2, 4, 4] * 3
    assert result.rounds_s == [40.0, 2.5, 2.5]
    assert (result.error, result.steady, result.cold_ttft_s, result.warm_ttft_s) == ("", True, 8.0, 0.5)
    assert result.line() == "r0: warmed up, first token after 8 s cold and 0.5 s warm; 3 rounds, the last two agree"
    prompts = [body["messages"][0]["content"] for bodies in engine.bodies[1:] for body in bodies]
    assert len({prompt[:17] for prompt in prompts}) == len(prompts)
    assert {body["max_tokens"] for bodies in engine.bodies[1:] for body in bodies} == {_warmup.ROUND_TOKENS}


def test_an_engine_that_never_settles_is_given_up_and_said_to_be_unsteady(monkeypatch):
    engine = Compiling(monkeypatch, cold_s=9.0, quicker_s=[6.0, 4.0, 2.0])
    result = engine.warm(prompt_tokens=[32], rounds=4)
    assert result.rounds_s == [9.0, 6.0, 4.0, 2.0]
    assert (result.error, result.steady) == ("", False)
    assert result.line().endswith("no two of 4 rounds agree (9, 6, 4, 2 s): kernels may still be made under traffic")
    result.error = "it died"
    assert result.line() == ""


def test_rounds_reach_a_real_server_side_by_side():
    with Engine("healthy") as engine:
        result = warm(engine, sweep=_warmup.Sweep([32], 4, rounds=2))
        assert result.error == ""
        assert len(result.rounds_s) == 2
        assert len(engine.asked) == 1 + 2 * (1 + 2 + 4)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [("status_500", "HTTP 500"), ("garbage_empty", "without one token"), ("dies_at_first_request", "it died at its warm-up request")],
)
def test_what_fails_only_in_the_rounds_is_said(monkeypatch, behaviour, said):
    rounds = _warmup.Warmer._make_rounds

    def turn_bad(warmer, result):
        engine.behaviour = behaviour
        rounds(warmer, result)

    monkeypatch.setattr(_warmup.Warmer, "_make_rounds", turn_bad)
    with Engine("healthy") as engine:
        result = warm(engine, sweep=_warmup.Sweep([32], 2, rounds=2))
    assert result.cold_ttft_s is not None
    assert said in result.error


def test_the_deadline_names_the_replica_and_what_was_last_seen():
    with Engine("loading") as engine:
        result = warm(engine, timeout_s=0.6)
    assert result.error.startswith(f"replica r0 at {engine.url} did not warm up: not ready after 0.6 s; last seen: ")
    assert "HTTP 503" in result.error
    assert result.health_s is None


def test_up_but_silent_ends_at_the_deadline():
    start = time.monotonic()
    with Engine("never_answers") as engine:
        result = warm(engine, timeout_s=0.8)
    assert time.monotonic() - start < 3
    assert "not ready after 0.8 s" in result.error
    assert result.health_s is not None
    assert result.first_token_s is None


@pytest.mark.parametrize("behaviour", ["status_500", "error_in_stream", "garbage_empty", "status_401"])
def test_up_but_not_generating_is_said_without_waiting(behaviour):
    start = time.monotonic()
    with Engine(behaviour) as engine:
        result = warm(engine, timeout_s=30)
    if behaviour == "error_in_stream":
        # Tokens came first: the proof, not the warm-up, judges the rest.
        assert result.error == ""
    else:
        assert "it is up but does not generate" in result.error
    assert time.monotonic() - start < 5


def test_death_at_the_first_request_shows_the_log(container):
    with Engine("dies_at_first_request") as engine:
        die = engine.die
        engine.die = lambda: (container.end(), die())
        result = warm(engine, timeout_s=30, container="c0")
    assert "container c0 exited with code 139" in result.error
    assert "fatal: illegal memory access" in result.error


def test_death_says_what_it_means_and_hides_the_key(container, tmp_path):
    key = tmp_path / "engine.key"
    key.write_text("sesame99\n")
    container.end()
    container.state["log_tail"] = "\n".join(["old"] * 60 + ["args: sesame99", "OSError: [Errno 28] No space left on device"])
    knowledge = _warmup.Knowledge(messages={"disk": {"pattern": "No space left", "cause": "a disk is full", "fix": "free space"}})
    with Engine("loading") as engine:
        result = _warmup.warm_all([Endpoint("r0", engine.url, str(key), "c0")], "scripted", None, 30, knowledge=knowledge)[0]
    assert "exited with code 139. It means: a disk is full. Fix: free space\nIt means: it crashed in native code" in result.error
    assert "sesame99" not in result.error
    assert result.error.split("Its last log lines:\n")[1].splitlines()[:48] == ["old"] * 48
    assert len(result.error.split("Its last log lines:\n")[1].splitlines()) == 50


PLANNED = {
    "usable": 58968,
    "weights": 35838,
    "overhead": 4096,
    "per_sequence": 2702,
    "available": 19034,
    "concurrency": 922 / 131,
    "block_tokens": 1056,
    "blocks": 922,
    "blocks_per_sequence": 131,
}


@pytest.mark.parametrize(("printed", "word"), [("6.96", "ok"), ("5.10", "differs"), ("0.34", "too small")])
def test_what_the_engine_says_of_its_memory_is_held_against_the_plan(container, monkeypatch, printed, word):
    monkeypatch.setattr(_docker, "start_log", lambda name: "Maximum concurrency for 131,072 tokens per request: {0}x\n".format(printed))
    knowledge = _warmup.Knowledge(fits={"r0": PLANNED}, max_model_len=131072)
    with Engine("healthy") as engine:
        result = _warmup.warm_all([Endpoint("r0", engine.url, "", "c0")], "scripted", None, 3, knowledge=knowledge)[0]
    assert result.error == ""
    assert result.memory[0].startswith("r0: {0}: the engine holds {1:g} requests of 131072 tokens".format(word, float(printed)))


def test_a_plan_that_is_not_in_blocks_asks_for_no_log(container, monkeypatch):
    monkeypatch.setattr(_docker, "start_log", lambda name: pytest.fail("asked for the log"))
    for fits in ({}, {"r0": dict(PLANNED, block_tokens=0)}):
        with Engine("healthy") as engine:
            knowledge = _warmup.Knowledge(fits=fits)
            result = _warmup.warm_all([Endpoint("r0", engine.url, "", "c0")], "scripted", None, 3, knowledge=knowledge)[0]
        assert (result.error, result.memory) == ("", [])


def test_a_log_that_cannot_be_read_condemns_nobody(container, monkeypatch):
    def broken(name):
        raise OSError("connection lost")

    monkeypatch.setattr(_docker, "start_log", broken)
    with Engine("healthy") as engine:
        knowledge = _warmup.Knowledge(fits={"r0": PLANNED})
        result = _warmup.warm_all([Endpoint("r0", engine.url, "", "c0")], "scripted", None, 3, knowledge=knowledge)[0]
    assert (result.error, result.memory) == ("", ["r0: its log cannot be read: connection lost"])


def test_death_while_loading_is_noticed_long_before_the_deadline(container):
    container.end()
    start = time.monotonic()
    with Engine("loading") as engine:
        result = warm(engine, timeout_s=60, container="c0")
    assert time.monotonic() - start < 10
    assert "exited with code 139" in result.error


def test_death_during_a_silent_request_is_noticed_although_nothing_closes(container, monkeypatch):
    monkeypatch.setattr(_warmup, "WATCH_S", 0.2)
    with Engine("never_answers") as engine:
        look = container.look

        def ends_after_the_request(name):
            if engine.asked:
                container.end()
            return look(name)

        monkeypatch.setattr(_docker, "container_state", ends_after_the_request)
        start = time.monotonic()
        result = warm(engine, timeout_s=60, container="c0")
    assert time.monotonic() - start < 5
    assert "exited with code 139" in result.error


@pytest.mark.parametrize("behaviour", ["loading", "never_answers"])
def test_an_end_that_nobody_saw_is_told_by_the_start_after_it(container, monkeypatch, behaviour):
    """The container engine starts it again at once: it runs whenever it is looked at."""
    monkeypatch.setattr(_warmup, "WATCH_S", 0.2)
    monkeypatch.setattr(_docker, "last_log", lambda name: "OSError: [Errno 28] No space left on device\nINFO starting")
    knowledge = _warmup.Knowledge(messages={"disk": {"pattern": "No space left", "cause": "a disk is full", "fix": "free space"}})
    # Restarts of long ago are no news.
    container.state = dict(container.state, restarts=2)
    look = container.look

    def again(name):
        if container.asked == 2:
            container.state = dict(container.state, restarts=3)
        return look(name)

    monkeypatch.setattr(_docker, "container_state", again)
    start = time.monotonic()
    with Engine(behaviour) as engine:
        result = _warmup.warm_all([Endpoint("r0", engine.url, "", "c0")], "scripted", 1, 60, knowledge=knowledge)[0]
    assert time.monotonic() - start < 10
    assert "container c0 ended while it warmed up, and was started again. It means: a disk is full" in result.error
    assert result.error.endswith("INFO starting")


def test_a_living_container_is_not_asked_all_the_time(container):
    with Engine("loading") as engine:
        warm(engine, timeout_s=1.0, container="c0")
    assert container.asked == 1


@pytest.fixture
def accounts(container, monkeypatch):
    """A running container whose CPU time and memory the test sets; each look takes ``cpu_step`` seconds more."""

    class Accounts:
        cpu_s, cpu_step, memory_mib = 10.0, 0.0, 800
        broken: list = []

        def cpu(self, path):
            assert path == "/cgroup/77/cpu"
            for problem in self.broken:
                raise problem
            self.cpu_s += self.cpu_step
            return self.cpu_s

    made = Accounts()
    container.state = dict(container.state, pid=77)
    monkeypatch.setattr(_warmup, "WATCH_S", 0.05)
    monkeypatch.setattr(_warmup._cgroup, "account_of", "/cgroup/{0}/{1}".format)
    monkeypatch.setattr(_warmup._cgroup, "cpu_seconds", made.cpu)
    monkeypatch.setattr(_warmup._cgroup, "memory_bytes", lambda pid: made.memory_mib * 2**20)
    monkeypatch.setattr(_docker, "last_log", lambda name: "Loading weights\nargs: sesame99\nWaiting for peer")
    return made


def slow_start(engine, timeout_s, stall_s, key=""):
    messages = {"peer": {"pattern": "Waiting for peer", "cause": "another card does not answer", "fix": "look at the links"}}
    knowledge = _warmup.Knowledge(messages=messages, stall_s=stall_s)
    return _warmup.warm_all([Endpoint("r0", engine.url, key, "c0")], "scripted", 1, timeout_s, knowledge=knowledge)[0].error


def test_a_start_that_stands_still_is_given_up_long_before_the_deadline(accounts, tmp_path):
    key = tmp_path / "engine.key"
    key.write_text("sesame99\n")
    start = time.monotonic()
    with Engine("loading") as engine:
        error = slow_start(engine, 60, 1, str(key))
    assert time.monotonic() - start < 10
    assert "container c0 runs and stands still: for 1 s it used 0.0 s of CPU time, and its memory stands at 800 MiB; last seen: " in error
    assert "HTTP 503" in error and "It means: another card does not answer. Fix: look at the links" in error
    assert error.endswith("Waiting for peer") and "sesame99" not in error


def test_a_first_request_that_stands_still_is_given_up_too(accounts):
    with Engine("never_answers") as engine:
        assert "runs and stands still" in slow_start(engine, 60, 1)


def test_a_silent_start_that_works_has_until_the_deadline(accounts):
    accounts.cpu_step = 0.05
    with Engine("loading") as engine:
        error = slow_start(engine, 1.5, 1)
    assert "not ready after 1.5 s" in error and "; its last sign of life was 0 s ago, at 1" in error


def test_nobody_is_given_up_where_that_is_switched_off(accounts):
    with Engine("loading") as engine:
        assert "not ready after 1.5 s" in slow_start(engine, 1.5, 0)


@pytest.mark.parametrize("broken", [OSError(2, "No such file"), UnknownOutput("no CPU time in 'x'")])
def test_where_the_kernel_does_not_say_the_deadline_is_left_and_it_is_said(accounts, broken):
    accounts.broken = [broken]
    with Engine("loading") as engine:
        error = slow_start(engine, 1.5, 1)
    assert "not ready after 1.5 s" in error and "; whether it is at work cannot be read: {0}".format(broken) in error


def test_a_missing_key_file_is_named():
    with Engine("healthy") as engine:
        result = warm(engine, key="/nonexistent/engine.key")
    assert "/nonexistent/engine.key" in result.error
