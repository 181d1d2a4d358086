# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The benchmark against an engine whose every token is written down: each figure against the truth, and the protocol as it arrived."""

from __future__ import annotations

import json
import math
import statistics
import time

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _benchmark, _load, _stream
from ansible_collections.ironserve.llm.plugins.module_utils._card_watch import Watch
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._load import Bench, Endpoint, Protocol

fleet = pytest.importorskip("standin.fleet")

# Real streams in real time.
pytestmark = pytest.mark.slow

LIMITS = _stream.Limits(silence_s=20.0, request_s=60.0, run_s=120.0)
#: What is wrong by more is wrong.
TOLERANCE = 0.01


def nearly(attempt, times=4):
    """A busy machine may spoil a time; not four times in a row."""
    for left in reversed(range(times)):
        try:
            return attempt()
        except AssertionError:
            if not left:
                raise
    raise AssertionError


def unseen(_endpoint):
    return Watch(None, "nobody looks")


def bench(engines, said=None, watch=unseen, client=_stream.Client, kinds=(), **changes):
    values = dict({"model": "standin", "levels": (2,), "requests": 4, "repeats": 1, "warmup": 1, "output_tokens": 16}, **changes)
    kinds = kinds or ["replica"] * len(engines)
    endpoints = [Endpoint(engine.name, engine.url, kind) for engine, kind in zip(engines, kinds, strict=True)]
    said = [] if said is None else said
    return Bench(Protocol(**values), endpoints, LIMITS, watch, said.append, client)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Two alike, one with the old name of the reasoning field, one that says nothing about its cache, and one with two slots."""
    tools = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    common = dict(tools, slots=16, decode_tokens_per_s=10, prefill_tokens_per_s=1e5, prefill_base_s=0.02)
    kinds = [{}, {}, {"reasoning_field": "reasoning_content"}, {"prompt_tokens_details": False}, {"slots": 2}]
    with fleet.Fleet(kinds, tmp_path_factory.mktemp("load"), **common) as started:
        yield started.engines


# ---- the truth


def sent(record, empty):
    """Events of the log that were chunks with choices: tokens that nobody sees have none, but for the last one and an empty first delta."""
    events = [event for event in record["events"] if event[1] not in ("usage", "done")]
    return [
        event
        for place, event in enumerate(events)
        if event[1] != "hidden" or place == len(events) - 1 or (empty and events[place - 1][1] == "role")
    ]


class Recorder(_stream.Client):
    """A client that keeps what it brought."""

    last = None

    def run(self, lanes):
        Recorder.last = super().run(lanes)
        return Recorder.last


def truth(records, starts, stood, empty, slo_ms):
    """The figures by the rules of docs/benchmark-result.md, from when each request was begun, when its connection stood, and the engine's own
    log of every token.

    How long the engine's process took to notice a request is part of the time to its first token, and no fault of the client.
    """
    pools = {}

    def add(name, *values):
        pools.setdefault(name, []).extend(values)

    edges, made_at, kept = [], [], 0
    for record, start, connected in zip(records, starts, stood, strict=True):
        chunks = sent(record, empty)
        # Tokens that nobody sees come with the next chunk.
        held, tokens = 0, []
        for event in record["events"]:
            held += event[2]
            if event in chunks:
                tokens.append((event[0], held))
                held = 0
        tokens = [(at, count) for at, count in tokens if count]
        made = record["completion_tokens"]
        seen = [event for event in chunks if event[1] not in ("role", "hidden")]
        # An empty delta is a token that nobody can see.
        visible = [event for event in seen[1 if empty else 0 :] if "content" in event[1]]
        add("ttft_ms", (chunks[0][0] - start) * 1000)
        add("ttft_sent_ms", (chunks[0][0] - connected) * 1000)
        add("ttft_token_ms", (seen[0][0] - start) * 1000)
        add("ttft_content_ms", *[(event[0] - start) * 1000 for event in visible[:1]])
        add("e2el_ms", (chunks[-1][0] - start) * 1000)
        add("tpot_ms", (chunks[-1][0] - chunks[0][0]) / (made - 1) * 1000)
        add("gap_ms", *[(after[0] - before[0]) * 1000 for before, after in zip(chunks, chunks[1:], strict=False)])
        for before, after in zip(tokens, tokens[1:], strict=False):
            add("itl_ms", *[(after[0] - before[0]) / after[1] * 1000] * after[1])
        add("decode_tokens_per_s", sum(count for _at, count in tokens[1:]) / (tokens[-1][0] - tokens[0][0]))
        add("prefill_tokens_per_s", (record["prompt_tokens"] - record["cached_tokens"]) / (seen[0][0] - start))
        edges += [(start, 1), (record["events"][-1][0], -1)]
        made_at += tokens
        kept += (chunks[0][0] - start) * 1000 <= slo_ms
    out = {}
    for name, values in pools.items():
        if values:
            cuts = statistics.quantiles(values, n=100, method="inclusive")
            out.update({"mean_" + name: statistics.fmean(values), "median_" + name: cuts[49], "p90_" + name: cuts[89]})
            out.update(
                {"p95_" + name: cuts[94], "p99_" + name: cuts[98], "max_" + name: max(values), "std_" + name: statistics.pstdev(values)}
            )
        else:
            out.update(dict.fromkeys(STATISTICS_OF.format(name).split(), None))
    first = min(starts)
    seconds = max(record["events"][-1][0] for record in records) - first
    made, read = (sum(record[key] for record in records) for key in ("completion_tokens", "prompt_tokens"))
    out.update(total_output_tokens=made, total_input_tokens=read, request_throughput=len(records) / seconds)
    out.update(output_throughput=made / seconds, total_token_throughput=(made + read) / seconds)
    out.update(tokens_per_chunk=made / sum(record["chunks"] for record in records))
    out.update(request_goodput=kept / seconds, good_share=kept / len(records))
    out.update(reasoning_tokens=sum(record["reasoning_tokens"] for record in records) or None)
    out.update(max_concurrent_requests=max(sum(step for at, step in edges if at <= when) for when, _step in edges))
    whole = [sum(count for at, count in made_at if second <= at - first < second + 1) for second in range(int(seconds))]
    out.update(peak_output_tokens_per_s=max(whole))
    return out


STATISTICS_OF = "mean_{0} std_{0} median_{0} p90_{0} p95_{0} p99_{0} max_{0}"
#: What an engine can't know: how long a connection took, that nothing was due in a closed loop, what the cards drew. Other tests have them.
NOT_THE_ENGINES = {*STATISTICS_OF.format("connect_ms").split(), *STATISTICS_OF.format("schedule_lag_ms").split(), "tokens_per_joule"}
#: Prefills go one after the other: who comes second of two waits twice as long for the first token, and keeps no limit between the two.
PREFILL_S, SLO_MS = 0.43, 645.0


MODES = {
    "plain": (0, {}),
    "reasoning": (0, {"reasoning_tokens": 10}),
    "reasoning under its old name": (2, {"reasoning_tokens": 10}),
    "bursts": (0, {"spec_tokens": 2, "spec_acceptance": 0.7}),
    "bursts of reasoning": (0, {"spec_tokens": 3, "reasoning_tokens": 12}),
    "tools": (0, {"tool": {"name": "lookup", "arguments": {"city": "Oslo", "why": "a question that needs a few tokens of arguments"}}}),
    "role early": (0, {"first_delta": "early"}),
    "first delta empty": (0, {"first_delta": "empty"}),
}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("mode", MODES)
def test_every_figure_is_the_truth_to_one_per_cent(engines, mode):
    place, script = MODES[mode]
    engine = engines[place]
    asked = {
        "standin": dict(
            {"prefill_s": PREFILL_S}, **(script if "tool" in script else dict(script, tokens=32 if "spec_tokens" in script else 16))
        )
    }
    if "tool" in script:
        asked["tools"] = [TOOL]

    def attempt():
        result = bench([engine], client=Recorder, request=asked, ignore_eos=False, slo={"ttft_ms": SLO_MS}).run()
        (run,) = result["runs"]
        assert run["refused"] == [] and run["client"]["stamps"] == "kernel"
        records = sorted(engine.records()[-4:], key=lambda record: record["arrival"])
        answers = sorted(Recorder.last.answers[0], key=lambda answer: answer.started)
        starts, stood = [answer.started for answer in answers], [answer.connected for answer in answers]
        waits = [record["arrival"] - start for record, start in zip(records, starts, strict=True)]
        assert min(waits) > 0 and statistics.median(waits) < 0.05
        expected = truth(records, starts, stood, mode == "first delta empty", SLO_MS)
        found = run["figures"]
        assert set(found) == set(expected) | NOT_THE_ENGINES
        # Both sides of the limit are there, except where the role comes at once.
        assert expected["good_share"] == (1.0 if mode == "role early" else 0.75)
        # Nobody measures a millisecond to one per cent: the role that comes at once.
        slack = {"ttft_ms": 1.0, "ttft_sent_ms": 1.0} if mode == "role early" else {}
        off = {}
        for name, value in expected.items():
            # What deviates little deviates by as little as is measured: one per cent of the figures themselves.
            scale = expected["mean_" + name[4:]] if name.startswith("std_") else value
            allowed = None if value is None else max(TOLERANCE * scale, slack.get(name.partition("_")[2], 0.0))
            if value is None or found[name] is None:
                if found[name] is not value:
                    off[name] = (found[name], value)
            elif abs(found[name] - value) > allowed:
                off[name] = (found[name], value)
        assert off == {}

    nearly(attempt)


def test_what_was_sent_is_the_protocol(engines):
    engine = engines[0]
    before = len(engine.records())
    result = bench(
        [engine], levels=(2, 4), requests=5, repeats=2, warmup=3, output_tokens=6, input_tokens=400, stop_when_saturated=False
    ).run()
    records = engine.records()[before:]
    # Two that learn, then for each level three that warm up and two runs.
    assert len(records) == 2 + 2 * (3 + 2 * 5)
    measured = records[5:15] + records[18:]
    assert {record["completion_tokens"] for record in measured} == {6} and {record["stream"] for record in measured} == {True}
    assert all(abs(record["prompt_tokens"] - 400) < 24 for record in measured), [record["prompt_tokens"] for record in measured]
    assert sum(record["cached_tokens"] for record in measured) <= 20 * 16
    assert [(run["concurrency"], run["repeat"], run["completed"]) for run in result["runs"]] == [(2, 1, 5), (2, 2, 5), (4, 1, 5), (4, 2, 5)]
    assert [run["figures"]["max_concurrent_requests"] for run in result["runs"]] == [2, 2, 4, 4]
    assert [row["repeats"] for row in result["summary"]["levels"]] == [2, 2]
    assert result["ok"] and result["version"] == 1 and json.loads(json.dumps(result)) == result
    assert [row["run"] for row in result["cards"]] == [0, 1, 2, 3] and result["cards"][0]["why"] == "nobody looks"


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_what_warms_up_is_never_what_is_measured(engines, cache):
    """Else the first of the measured prompts would be read from the cache, as the one of vLLM's own test request is."""
    asked = []

    class Listener(_stream.Client):
        def run(self, lanes):
            asked.append([json.loads(body)["messages"][0]["content"] for lane in lanes for body in lane.bodies])
            return super().run(lanes)

    changes = {"kind": "texts", "texts": ("Tell me of salt.", "Tell me of bread."), "requests": 2, "repeats": 2, "warmup": 3}
    result = bench([engines[1]], client=Listener, cache=cache, output_tokens=2, **changes).run()
    *before, warmup, first, second = asked
    assert (len(warmup), len(first), len(second), len(result["runs"])) == (3, 2, 2, 2)
    learned = [text for texts in before for text in texts]
    measured = [*first, *second]
    assert not set(warmup) & {*measured, *learned}
    if cache == "cold":
        assert len(set(measured)) == 4 and not set(measured) & set(learned)
    else:
        # What is to be warm was asked for just that, and nothing else.
        assert set(measured) == set(changes["texts"]) <= set(learned)


def test_a_cold_cache_stays_cold_and_a_warm_one_is_warm(engines):
    engine = engines[1]
    texts = tuple("{0} {1}".format("word " * 100, number) for number in range(3))
    asked = {"kind": "texts", "texts": texts, "output_tokens": 4, "requests": 6}
    cold = bench([engine], **asked).run()["runs"][0]
    assert cold["cache"]["verified"] is True and cold["cache"]["cached_share"] < 0.2 and cold["refused"] == []
    warm = bench([engine], cache="warm", **asked).run()["runs"][0]
    assert warm["cache"]["verified"] is True and warm["cache"]["cached_share"] > 0.9 and warm["refused"] == []


def test_a_warm_cache_that_is_not_is_refused(engines, monkeypatch):
    monkeypatch.setattr(_load, "PRIMES", 0)
    texts = tuple("{0} {1}".format(time.time_ns(), "other " * 100) for _number in range(4))
    result = bench([engines[1]], cache="warm", kind="texts", texts=texts, output_tokens=4).run()
    assert not result["ok"] and result["runs"][0]["figures"] is None and result["cards"]
    assert "the prompts should have been warm, but" in result["runs"][0]["refused"][0]
    assert result["summary"]["levels"][0]["figures"] is None
    assert result["summary"]["lines"][-1] == "  not published: " + result["runs"][0]["refused"][0]


def test_an_engine_that_says_nothing_about_its_cache_is_believed_but_not_verified(engines):
    run = bench([engines[3]], output_tokens=4).run()["runs"][0]
    assert run["cache"] == {"wanted": "cold", "cached_share": None, "verified": None} and run["refused"] == []


def test_a_client_that_was_too_late_publishes_nothing(engines):
    result = bench([engines[0]], client=lambda limits: _stream.Client(limits, burden=lambda: time.sleep(0.06)), output_tokens=8).run()
    assert not result["ok"] and result["runs"][0]["figures"] is None
    assert "the measuring client itself was late" in result["runs"][0]["refused"][0]


def test_a_sweep_stops_at_saturation(engines):
    """Two slots: four at a time bring no more tokens than two."""

    def attempt():
        said = []
        result = bench([engines[4]], said, levels=(1, 2, 4, 6), requests=6, output_tokens=8, input_tokens=64).run()
        (found,) = result["summary"]["saturation"]
        assert [run["concurrency"] for run in result["runs"]] == [1, 2, 4]
        assert (found["saturated"], found["level"]) == (True, 2) and "from 2 to 4" in found["why"]
        assert said == ["e4: {0} at a time, run 1 of 1, 6 requests".format(level) for level in (1, 2, 4)]

    nearly(attempt)


class Told(Bench):
    """A benchmark whose throughput is known: as many tokens/s as are asked for at a time, up to two."""

    def _gauge(self, endpoint):
        pass

    def _texts(self):
        return ["a"]

    def _measure(self, group, texts, level, repeat):
        row = {"endpoint": group[0].name, "tool": "ironserve", "load": "closed", "concurrency": level, "request_rate": None}
        self._runs.append(dict(row, repeat=repeat, publishable=True, refused=[], figures={"output_throughput": min(level, 2)}))


@pytest.mark.parametrize(
    ("levels", "measured"), [((1, 2, 4, 8), [1, 2, 4]), ((4, 2, 6, 1), [4, 2, 1]), ((4, 6, 5, 2), [4, 6, 5, 2]), ((8, 1), [8, 1])]
)
def test_saturation_leaves_out_what_is_higher_and_nothing_else(levels, measured):
    """Levels come in the order given: what is lower than the level that brought nothing is still measured."""
    told = Told(Protocol("m", levels, warmup=0, repeats=1), [Endpoint("c0", "http://127.0.0.1:1")], LIMITS, unseen)
    assert [run["concurrency"] for run in told.run()["runs"]] == measured


def test_endpoints_take_turns_and_the_gateway_is_compared(engines):
    result = bench(engines[:3], kinds=["replica", "replica", "gateway"], repeats=2, output_tokens=4).run()
    assert [(run["endpoint"], run["repeat"]) for run in result["runs"]] == [
        (name, repeat) for repeat in (1, 2) for name in ("e0", "e1", "e2")
    ]
    (found,) = result["summary"]["gateway"]
    assert (found["through"], found["direct"]) == ("e2", ["e0", "e1"]) and 0.5 < found["ttft_ratio"] < 2


def test_replicas_together_are_one_more_row(engines):
    engine_pair = engines[:2]
    before = [len(engine.records()) for engine in engine_pair]
    result = bench(engine_pair, together=True, output_tokens=10).run()
    assert [run["endpoint"] for run in result["runs"]] == ["e0", "e1", _load.ALL]
    first, second, both = result["runs"]
    assert both["members"] == ["e0", "e1"] and both["completed"] == 8
    assert both["figures"]["total_output_tokens"] == 80
    assert both["figures"]["output_throughput"] > 1.7 * max(run["figures"]["output_throughput"] for run in (first, second))
    windows = []
    for engine, count in zip(engine_pair, before, strict=True):
        measured = engine.records()[count:][-4:]
        windows.append((min(record["arrival"] for record in measured), max(record["end"] for record in measured)))
    assert max(start for start, _end in windows) < min(end for _start, end in windows)


def test_an_open_loop_comes_at_its_own_times(engines):
    def attempt():
        asked = {"load": "open", "levels": (20.0,), "requests": 12, "output_tokens": 10, "seed": 5}
        (run,) = bench([engines[0]], client=Recorder, **asked).run()["runs"]
        starts = [answer.started - Recorder.last.started for answer in Recorder.last.answers[0]]
        assert starts == pytest.approx(_load.arrivals(12, 20.0, 5 * 7919 + 101), abs=0.02)
        assert (run["concurrency"], run["request_rate"]) == (None, 20.0) and run["figures"]["p99_schedule_lag_ms"] < 20
        # Nobody waited for anybody.
        assert run["figures"]["max_concurrent_requests"] > 4

    nearly(attempt)


def test_poisson_arrivals_are_those_of_the_seed_and_of_the_rate():
    assert _load.arrivals(50, 2.0, 1) == _load.arrivals(50, 2.0, 1) != _load.arrivals(50, 2.0, 2)
    many = _load.arrivals(20000, 5.0, 3)
    gaps = [after - before for before, after in zip(many, many[1:], strict=False)]
    assert many[0] == 0.0 and statistics.fmean(gaps) == pytest.approx(0.2, rel=0.03)
    # Of an exponential distribution deviation and mean are equal.
    assert statistics.pstdev(gaps) == pytest.approx(0.2, rel=0.05)


def test_failures_of_the_engine_are_told_and_publish_nothing(engines):
    with pytest.raises(LLMError, match=r"e0 \(http.*\): a first request failed: HTTP 404: .*nobody"):
        bench([engines[0]], model="nobody").run()
    result = bench([engines[0]], output_tokens=4, input_tokens=200000).run()
    (run,) = result["runs"]
    assert (run["completed"], run["failed"]) == (0, 4) and run["figures"] is None and not result["ok"]
    assert "4 of 4 requests failed: HTTP 400" in run["refused"][0] and run["errors"][0]["count"] == 4
    assert math.isfinite(run["duration_s"]) and len(run["requests"]) == 4


def test_a_server_that_refuses_what_it_does_not_know_is_asked_without(engines):
    """The first request is refused once; then nothing asks for tokens per chunk."""
    seen = []

    class Strict(_stream.Client):
        def run(self, lanes):
            seen.append([b"continuous_usage_stats" in body for lane in lanes for body in lane.bodies])
            if seen[-1][0]:
                answers = [[_stream.Answer(0, kind="status", error="HTTP 400: unknown key")]]
                return _stream.Outcome(answers, 0.0, 1.0, [], True, 0.0, 0)
            return super().run(lanes)

    result = bench([engines[0]], client=Strict, output_tokens=4).run()
    assert result["ok"] and [flag for flags in seen for flag in flags].count(True) == 1
    # One token per chunk is seen all the same.
    assert result["runs"][0]["figures"]["median_itl_ms"] == pytest.approx(100, rel=0.1)


class Seen(Watch):
    """Cards that draw 50 W."""

    def __init__(self):
        super().__init__(None, "")

    def stop(self):
        return {
            "utilisation_pct": None,
            "memory_used_mib": None,
            "power_w": {"mean": 50.0, "max": 60.0},
            "memory_total_mib": None,
            "samples": [],
            "why": "",
        }


def test_energy_is_that_of_the_cards_in_the_window(engines):
    run = bench([engines[0]], watch=lambda endpoint: Seen(), output_tokens=10).run()["runs"][0]
    assert run["figures"]["tokens_per_joule"] == pytest.approx(40 / (50.0 * run["duration_s"]), rel=1e-6)
    assert bench([engines[0]], output_tokens=4).run()["runs"][0]["figures"]["tokens_per_joule"] is None


# ---- options


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"levels": ()}, "at least one level"),
        ({"levels": (0,)}, "each above 0"),
        ({"load": "open", "levels": (1.0, float("nan"))}, "each above 0"),
        ({"slo": {"ttft_ms": float("nan")}}, "slo.ttft_ms must be a number above 0, not nan"),
        ({"saturation_gain_pct": float("nan")}, "saturation_gain_pct must be 0 or more, not nan"),
        ({"levels": (1.5,)}, "whole numbers"),
        ({"levels": (2, 2)}, "given twice"),
        ({"levels": (1, 64)}, "32 requests can never be 64 at a time: raise requests to 64 or more"),
        ({"requests": 0}, "requests must be 1 or more, not 0"),
        ({"output_tokens": 0}, "output_tokens must be 1"),
        ({"warmup": -1}, "warmup must be 0"),
        ({"request": {"stream": False, "messages": []}}, "request may not have messages, stream"),
    ],
)
def test_a_protocol_that_cannot_be_is_refused(changes, said):
    with pytest.raises(LLMError, match=said):
        Protocol(**dict({"model": "m", "levels": (1,)}, **changes)).check()


@pytest.mark.parametrize("names", [[], ["a", "a"], [_load.ALL]])
def test_endpoints_need_names_of_their_own(names):
    with pytest.raises(LLMError, match="names of their own"):
        Bench(Protocol("m", (1,)), [Endpoint(name, "http://127.0.0.1:1") for name in names], LIMITS, unseen)


def test_the_protocol_has_an_id_that_follows_from_all_of_it():
    base = Protocol("m", (1, 2)).as_dict(["a"])
    assert base["id"] == Protocol("m", (1, 2)).as_dict(["a"])["id"] and len(base["id"]) == 16
    others = [Protocol("m", (1,)).as_dict(["a"]), Protocol("m", (1, 2), cache="warm").as_dict(["a"]), Protocol("m", (1, 2)).as_dict(["b"])]
    assert len({block["id"] for block in [base] + others}) == 4
    assert (
        base["prompts"]["input_tokens"] == 512
        and Protocol("m", (1,), kind="texts", texts=("a",)).as_dict(["a"])["prompts"]["input_tokens"] is None
    )


def test_the_limits_are_those_of_the_result():
    assert set(Protocol("m", (1,)).as_dict(["a"])["slo"]) == set(_benchmark.SLO)
