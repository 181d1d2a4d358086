# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rules of counting, each with the figures that a wrong rule would give instead; and what may not be published."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _benchmark as b
from ansible_collections.ironserve.llm.plugins.module_utils import _sse
from ansible_collections.ironserve.llm.plugins.module_utils._stream import Answer, Chunk, Outcome

NO_SLO = {"ttft_ms": None, "tpot_ms": None, "e2el_ms": None}


def answer(*events, start=100.0, usage=None, **more):
    """An answer whose events are (milliseconds from its start, kinds joined by +, tokens until then or None)."""
    chunks = []
    for ms, kinds, made in events:
        named = frozenset(kinds.split("+")) if kinds else frozenset()
        chunks.append(Chunk(start + ms / 1000.0, named, made, not named & {_sse.DONE} and named != {_sse.USAGE}))
    end = chunks[-1].at if chunks else start
    out = Answer(0, started=start, connected=start + 0.001, sent=start + 0.002, ended=end, status=200, chunks=chunks, usage=usage or {})
    for name, value in more.items():
        setattr(out, name, value)
    return out


def usage(made, prompt=30, **details):
    out = {"prompt_tokens": prompt, "completion_tokens": made}
    if "cached" in details:
        out["prompt_tokens_details"] = {"cached_tokens": details["cached"]}
    if "reasoning" in details:
        out["completion_tokens_details"] = {"reasoning_tokens": details["reasoning"]}
    return out


def burst(deltas=True, early=False, steps=40, kinds="reasoning", first_content=20):
    """The stream of the comparison of clients: two tokens every 20 ms, the first at 200 ms, half of it reasoning, usage at the end."""
    events = [(5.0 if early else 200.0, "role", 0 if deltas else None)]
    for number in range(steps):
        kind = kinds if number < first_content else "content"
        events.append((200.0 + 20.0 * number, kind + ("+finish" if number == steps - 1 else ""), 2 * (number + 1) if deltas else None))
    end = events[-1][0]
    return answer(
        *events, (end + 30.0, "usage", 2 * steps), (end + 30.0, "done", None), usage=usage(2 * steps, reasoning=2 * first_content)
    )


# ---- counting rules


def test_tokens_are_counted_by_usage_not_by_chunks():
    one = b.sample(burst())
    # 780 ms for 80 tokens in 40 chunks; one chunk as one token would be 20 ms, twice as much.
    assert one.completion_tokens == 80 and one.token_chunks == 40
    assert one.tpot_s * 1000 == pytest.approx(780 / 79)
    assert b.figures([one], NO_SLO)["tokens_per_chunk"] == 2.0


def test_first_token_by_three_rules():
    one = b.sample(burst(early=True))
    assert [one.ttft_s, one.ttft_token_s, one.ttft_content_s] == pytest.approx([0.005, 0.2, 0.6])
    assert b.sample(burst()).ttft_s == pytest.approx(0.2)
    # vLLM's rule for TPOT follows its rule for TTFT, and so does its error; the decode rate does not.
    assert one.tpot_s * 1000 == pytest.approx((980 - 5) / 79)
    assert one.decode_rate == pytest.approx(b.sample(burst()).decode_rate) == pytest.approx(78 / 0.78)


def test_rules_that_differ_are_told():
    told = b.notes([b.sample(burst(early=True))], 80)
    assert any("first token came later than the first chunk, 195.0 ms" in line for line in told)
    assert any("first visible text came later than the first chunk, 595.0 ms" in line for line in told)
    assert not any("first token" in line for line in b.notes([b.sample(burst())], 80))


@pytest.mark.parametrize(("apart_ms", "told"), [(4.9, False), (5.1, True)])
def test_rules_differ_from_five_milliseconds_on(apart_ms, told):
    late = 100 + apart_ms
    events = [(100, "role", None), (late, "content", None), (late + 20, "content+finish", None), (late + 20, "done", None)]
    assert any("the first token came later" in line for line in b.notes([b.sample(answer(*events, usage=usage(2)))], 2)) == told


@pytest.mark.parametrize("kind", ["reasoning", "content", "tool"])
def test_every_channel_carries_tokens(kind):
    one = b.sample(burst(kinds=kind))
    assert one.ttft_token_s == pytest.approx(0.2) and one.token_chunks == 40
    assert one.ttft_content_s == pytest.approx(0.2 if kind == "content" else 0.6)


def test_an_answer_without_visible_text_has_no_first_text():
    one = b.sample(burst(kinds="tool", first_content=40))
    assert one.ttft_content_s is None and one.ttft_token_s == pytest.approx(0.2)


def test_an_empty_first_delta_is_a_token_where_the_engine_says_so_and_never_visible():
    """Half a character has no text yet."""
    events = [(100, "role", 0), (110, "", 1), (120, "content", 2), (140, "content+finish", 3), (140, "usage", 3), (141, "done", None)]
    one = b.sample(answer(*events, usage=usage(3)))
    assert [one.ttft_s, one.ttft_token_s, one.ttft_content_s] == pytest.approx([0.1, 0.11, 0.12])
    assert one.itls == pytest.approx([0.01, 0.02]) and one.token_chunks == 3
    silent = [(ms, kinds, None) for ms, kinds, _made in events]
    one = b.sample(answer(*silent, usage=usage(3)))
    assert [one.ttft_s, one.ttft_token_s] == pytest.approx([0.1, 0.12]) and one.token_chunks == 2


def test_usage_at_the_end_moves_no_end():
    """evalscope's rule would: 810 ms instead of 780."""
    one = b.sample(burst())
    assert one.e2el_s == pytest.approx(0.98)
    assert one.tpot_s * 79 == pytest.approx(0.78)


def test_one_token_has_no_time_per_token_and_zero_none_either():
    for made in (0, 1):
        one = b.sample(answer((50, "content+finish", made), (50, "usage", made), (50, "done", None), usage=usage(made)))
        assert one.ok and one.tpot_s is None and one.decode_rate is None
    two = b.sample(burst())
    # It is left out of the mean, not counted as 0.
    assert b.figures([one, two], NO_SLO)["mean_tpot_ms"] == pytest.approx(780 / 79)


def test_gaps_between_chunks_have_their_own_name_and_tokens_theirs():
    found = b.figures([b.sample(burst())], NO_SLO)
    # The role and the first token come together: one gap of 0 ms and 39 of 20, as vLLM pools them.
    assert found["mean_gap_ms"] == pytest.approx(39 * 20 / 40) and found["median_gap_ms"] == pytest.approx(20.0)
    assert [found["mean_itl_ms"], found["p99_itl_ms"]] == pytest.approx([10.0, 10.0])


def test_where_each_chunk_is_one_token_both_are_equal():
    events = [(100 + 10 * n, "content" + ("+finish" if n == 4 else ""), None) for n in range(5)]
    one = b.sample(answer(*events, (150, "done", None), usage=usage(5)))
    assert one.itls == one.gaps == pytest.approx([0.01] * 4)


def test_tokens_per_chunk_that_nobody_tells_are_not_guessed():
    one = b.sample(burst(deltas=False))
    assert one.itls is None and one.gaps
    found = b.figures([one], NO_SLO)
    assert found["mean_itl_ms"] is None and found["p99_itl_ms"] is None
    assert any("chunks hold several tokens" in line for line in b.notes([one], 80))
    # By usage the rate is still right on the whole.
    assert one.decode_rate == pytest.approx(79 / 0.78)


@pytest.mark.parametrize(
    "events, total, expected",
    [
        ([(1, "role", 0), (2, "content", 3), (3, "finish", 4)], 4, [0, 3, 1]),
        ([(1, "role", None), (2, "content", None), (3, "content+finish", None)], 2, [0, 1, 1]),
        # The end of an answer is a token without text, on a chunk of its own or with the last word.
        ([(1, "role", None), (2, "content", None), (3, "finish", None)], 2, [0, 1, 1]),
        ([(1, "content", None), (2, "content+finish", None)], 3, [1, 2]),
        ([(1, "content", None), (2, "content+finish", None)], 5, None),
        ([(1, "content", 2), (2, "content", 1)], 1, None),
        ([(1, "content", 2), (2, "content+finish", None)], 4, None),
        ([(1, "content", 2), (2, "content+finish", 3)], 4, None),
    ],
)
def test_tokens_of_each_chunk(events, total, expected):
    assert b.tokens_of_chunks(answer(*events).chunks, total) == expected


def test_time_is_measured_from_before_the_connection_and_from_when_it_stood():
    one = b.sample(burst())
    assert [one.connect_s, one.ttft_s, one.ttft_sent_s] == pytest.approx([0.001, 0.2, 0.199])


def test_prefill_counts_what_was_computed():
    assert b.sample(answer((100, "content+finish", 1), usage=usage(1, 30, cached=20))).prefill_rate == pytest.approx(10 / 0.098)
    plain = answer((100, "content+finish", 1), usage=usage(1, 30))
    # Without a word about the cache it is only known of prompts that nothing can know.
    assert b.sample(plain).prefill_rate is None
    assert b.sample(plain, cold=True).prefill_rate == pytest.approx(30 / 0.098)


def test_what_was_due_earlier_was_sent_late():
    assert b.sample(answer((10, "content+finish", 1), due=99.75)).late_s == pytest.approx(0.25)
    assert b.sample(answer((10, "content+finish", 1))).late_s is None


@pytest.mark.parametrize(
    "one, error",
    [
        (answer((10, "content", 1), usage=usage(1)), "ended in the middle"),
        (answer(), "no event"),
        (answer((10, "content+finish", 1), kind="reset", error="cut"), "cut"),
    ],
)
def test_what_is_no_answer_has_no_figures(one, error):
    found = b.sample(one)
    assert not found.ok and error in found.error and found.tpot_s is None


# ---- statistics


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
def test_percentiles_are_linear_between_neighbours(values):
    expected = statistics.quantiles(values, n=100, method="inclusive")
    for share in (1, 50, 90, 95, 99):
        assert b.percentile(values, share) == pytest.approx(expected[share - 1], abs=1e-6)
    assert b.deviation(values) == pytest.approx(statistics.pstdev(values), abs=1e-6)


def test_of_nothing_there_is_no_figure():
    assert set(b.family("x_ms", []).values()) == {None}
    assert b.family("x_ms", [0.25], 1000.0) == {
        name: 250.0 if name != "std_x_ms" else 0.0
        for name in ("mean_x_ms", "std_x_ms", "median_x_ms", "p90_x_ms", "p95_x_ms", "p99_x_ms", "max_x_ms")
    }


# ---- a run


def two():
    """Two requests, one second apart, each 2.5 s long with 26 tokens, one every 100 ms."""
    out = []
    for start in (100.0, 101.0):
        events = [(100.0 * n, "content" + ("+finish" if n == 25 else ""), n + 1) for n in range(26)]
        out.append(b.sample(answer(*events, (2500.0, "done", None), start=start, usage=usage(26, 10, cached=0))))
    return out


def test_throughput_is_tokens_by_usage_over_first_start_to_last_end():
    found = b.figures(two(), NO_SLO)
    assert b.window(two()) == (100.0, 103.5)
    assert found["output_throughput"] == pytest.approx(52 / 3.5)
    assert found["total_token_throughput"] == pytest.approx(72 / 3.5)
    assert found["request_throughput"] == pytest.approx(2 / 3.5)
    assert (found["total_output_tokens"], found["total_input_tokens"], found["max_concurrent_requests"]) == (52, 20, 2)


def test_the_peak_is_the_best_whole_second_in_tokens():
    # 10 and 10 tokens in the second where both run; chunks of a burst count as what they hold.
    assert b.figures(two(), NO_SLO)["peak_output_tokens_per_s"] == pytest.approx(20, abs=1)
    long = b.sample(burst(steps=100, first_content=0))
    assert b.figures([long], NO_SLO)["peak_output_tokens_per_s"] == pytest.approx(100, abs=2)
    assert b.figures([b.sample(burst(deltas=False, steps=100))], NO_SLO)["peak_output_tokens_per_s"] == pytest.approx(100, abs=2)


def test_goodput_counts_who_keeps_every_limit_and_a_failed_one_keeps_none():
    runs = [b.sample(burst()), b.sample(burst(early=True)), b.sample(answer(kind="reset", error="x"))]
    for slo, kept in (({"ttft_ms": 100.0}, 1), ({"ttft_ms": 300.0}, 2), ({"ttft_ms": 300.0, "tpot_ms": 10.0}, 1), ({"e2el_ms": 900.0}, 0)):
        found = b.figures(runs, slo)
        assert found["good_share"] == pytest.approx(kept / 3) and found["request_goodput"] == pytest.approx(kept / 1.01)
    found = b.figures(runs, NO_SLO)
    assert found["good_share"] is None and found["request_goodput"] is None


def test_the_names_are_those_of_vllm_where_it_means_the_same():
    """Keys of the file that ``vllm bench serve --save-result`` writes; its ITL is a gap between chunks and has that name."""
    times = {"{0}_{1}_ms".format(share, name) for share in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "e2el")}
    counts = {"total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput", "output_throughput"}
    assert times | counts | {"total_token_throughput", "max_concurrent_requests"} <= set(b.figures(two(), NO_SLO))


def test_answers_without_usage_make_no_throughput():
    silent = b.sample(answer((10, "content", None), (20, "content+finish", None)))
    assert silent.ok and silent.completion_tokens is None
    found = b.figures([silent] + two(), NO_SLO)
    assert found["output_throughput"] is None and found["total_output_tokens"] is None and found["mean_ttft_ms"] is not None


def test_the_timeline_has_a_row_per_second():
    rows = b.timeline(two())
    assert [row["at_s"] for row in rows] == [0, 1, 2, 3]
    assert [row["running"] for row in rows] == pytest.approx([1.0, 2.0, 1.5, 1.0])
    assert [row["output_tokens_per_s"] for row in rows] == pytest.approx([10, 20, 16, 12], abs=1.1)
    assert math.fsum(row["output_tokens_per_s"] * width for row, width in zip(rows, (1, 1, 1, 0.5), strict=True)) == pytest.approx(52)
    assert [row["ttft_ms"] for row in rows] == [0.0, 0.0, None, None] and rows[2]["gap_ms"] == pytest.approx(100.0)
    assert b.timeline([]) == []


def test_rows_of_requests_are_by_start():
    rows = b.rows(list(reversed(two())), {"e2el_ms": 2000.0})
    assert [row["at_s"] for row in rows] == [0.0, 1.0] and [row["good"] for row in rows] == [False, False]
    assert rows[0]["tpot_ms"] == pytest.approx(100.0) and rows[0]["completion_tokens"] == 26


# ---- what may be published


def client(lags, kernel=True, samples=None):
    return b.lag(Outcome([], 0.0, 10.0, lags, kernel, 0.5, len(lags)), samples or two())


def judge(samples=None, lags=(0.0001,) * 100, kernel=True, wanted="cold"):
    samples = two() if samples is None else samples
    return b.judge(samples, client(list(lags), kernel, samples), b.cache(samples, wanted))


def slow_start():
    """Like two, with the first token 500 ms after the start."""
    out = []
    for _number in range(2):
        events = [(500.0 + 100.0 * n, "content" + ("+finish" if n == 9 else ""), n + 1) for n in range(10)]
        out.append(b.sample(answer(*events, (1400.0, "done", None), usage=usage(10, 10, cached=0))))
    return out


def test_the_client_tells_about_itself():
    told = client([0.001] * 98 + [0.004] * 2, samples=slow_start())
    assert told["stamps"] == "kernel" and told["probes"] == 100 and told["cpu_pct"] == 5.0
    assert [told["lag_p50_ms"], told["lag_max_ms"], told["limit_ms"], told["limit_p50_ms"]] == [1.0, 4.0, 50.0, 10.0]
    assert client([0.001], kernel=False)["limit_ms"] == pytest.approx(2.0) and client([], kernel=False)["stamps"] == "own"


@pytest.mark.parametrize(
    "late_ms, kernel, refused",
    [(1.9, False, ""), (2.1, False, "p99"), (9.0, True, ""), (11.0, True, "median"), (45.0, True, "median"), (51.0, True, "p99")],
)
def test_a_client_that_was_too_late_refuses(late_ms, kernel, refused):
    """Gaps are 100 ms: 2 % with stamps of its own, half a gap with those of the kernel, and 2 % of the first token in the median."""
    found = judge(slow_start(), [late_ms / 1000.0] * 100, kernel)
    assert bool(found) == bool(refused)
    if refused:
        assert found[0].startswith("the measuring client itself was late: {0} {1:.2f} ms".format(refused, late_ms))


def test_lateness_is_not_in_what_was_sent_at_once_and_stamped_by_the_kernel():
    samples = slow_start()
    for one in samples:
        one.at_once = True
    assert judge(samples, [0.045] * 100) == [] and judge(samples, [0.045] * 100, False) != []
    assert client([0.001], samples=samples)["limit_p50_ms"] is None
    samples[0].at_once = False
    assert judge(samples, [0.045] * 100) != []


def test_late_now_and_then_is_told_by_the_p99():
    assert judge(slow_start(), [0.0001] * 97 + [0.06] * 3) != []
    assert judge(slow_start(), [0.0001] * 997 + [0.06] * 3) == []


def test_a_client_that_does_not_know_refuses():
    assert judge(lags=()) == ["the client does not know how late it was"]


def test_a_failed_request_refuses_and_says_how():
    bad = [b.sample(answer(kind="reset", error=text)) for text in ("cut", "cut", "busy")]
    (found,) = judge(slow_start() + bad)
    assert found == "3 of 5 requests failed: cut (and 1 other reason)"
    assert b.faults(bad) == [{"error": "cut", "count": 2}, {"error": "busy", "count": 1}]
    assert judge([]) == ["nothing was asked"]


def test_answers_without_usage_refuse():
    silent = b.sample(answer((500, "content", None), (600, "content+finish", None)))
    assert judge(slow_start() + [silent]) == ["1 of 3 answers came without usage, so their tokens cannot be counted"]


@pytest.mark.parametrize("allowed, refused", [(10, []), (9, []), (8, ["usage counts up to 10 tokens in 2 of 2 answers, 8 were allowed"])])
def test_more_tokens_than_were_allowed_refuse(allowed, refused):
    samples = slow_start()
    found = b.judge(samples, client([0.0001] * 100, True, samples), b.cache(samples, "cold"), allowed)
    assert [text.partition(":")[0] for text in found] == refused


@pytest.mark.parametrize("counted, refused", [(10, False), (9, False), (8, True), (1, True)])
def test_fewer_tokens_than_chunks_with_text_refuse(counted, refused):
    """Some engines do not count the first or the last; speculation puts several into a chunk, never one into several."""
    events = [(500.0 + 100.0 * n, "content" + ("+finish" if n == 9 else ""), None) for n in range(10)]
    samples = [*slow_start(), b.sample(answer(*events, (1400.0, "done", None), usage=usage(counted, 10, cached=0)))]
    said = "usage counts {0} tokens where 10 chunks with text came, in 1 of 3 answers: it lies".format(counted)
    assert judge(samples) == ([said] if refused else [])


@pytest.mark.parametrize("allowed, refused", [(16, ["1 of 3 answers had no text at all"]), (1, [])])
def test_an_answer_without_text_refuses_where_more_than_one_token_was_asked_for(allowed, refused):
    """One token may be half a character, which shows as nothing."""
    nothing = b.sample(answer((500, "role", None), (510, "finish", None), (510, "done", None), usage=usage(1, 10, cached=0)))
    samples = [nothing] + (slow_start() if allowed > 1 else [])
    assert b.judge(samples, client([0.0001] * 100, True, samples), b.cache(samples, "cold"), allowed) == refused


def test_a_count_that_no_answer_can_have_is_none():
    one = b.sample(answer((500, "content", None), (600, "content+finish", None), usage=usage(10**400, 10**400)))
    assert (one.prompt_tokens, one.completion_tokens) == (None, None)


@pytest.mark.parametrize(
    "prompt, cached, wanted, verified",
    [
        (1000, 0, "cold", True),
        (1000, 100, "cold", True),
        (1000, 101, "cold", False),
        # The head of a chat template is everybody's.
        (80, 64, "cold", True),
        (80, 65, "cold", False),
        (1000, 500, "warm", True),
        (1000, 499, "warm", False),
        (1000, None, "cold", None),
        (1000, None, "warm", None),
    ],
)
def test_the_state_of_the_cache_is_enforced(prompt, cached, wanted, verified):
    details = {} if cached is None else {"cached": cached}
    one = b.sample(answer((500, "content", 1), (600, "content+finish", 2), usage=usage(2, prompt, **details)))
    assert b.cache([one], wanted)["verified"] is verified
    found = judge([one], wanted=wanted)
    assert bool(found) == (verified is False)
    if found:
        assert "the prompts should have been {0}".format(wanted) in found[0]


def test_lengths_that_were_not_asked_for_are_told():
    assert "2 of 2 answers are not 128 tokens long" in b.notes(two(), 128)
    assert not any("tokens long" in line for line in b.notes(two(), 26))


# ---- several runs


def run(endpoint="a", level=1, publishable=True, load="closed", tool="ironserve", **figures):
    values = dict({"output_throughput": 100.0, "median_ttft_ms": 50.0, "p99_gap_ms": 20.0, "good_share": None}, **figures)
    return {
        "endpoint": endpoint,
        "tool": tool,
        "load": load,
        "concurrency": level if load == "closed" else None,
        "request_rate": None if load == "closed" else level,
        "publishable": publishable,
        "figures": values if publishable else None,
    }


def test_repeats_are_put_together_with_their_spread():
    (row,) = b.levels([run(output_throughput=value) for value in (90.0, 100.0, 110.0)])
    assert row["repeats"] == 3 and row["figures"]["good_share"] is None
    found = row["figures"]["output_throughput"]
    assert found == {
        "mean": 100.0,
        "std": pytest.approx(math.sqrt(200 / 3)),
        "min": 90.0,
        "max": 110.0,
        "spread_pct": 20.0,
        "values": [90.0, 100.0, 110.0],
    }


def test_one_repeat_that_may_not_be_published_takes_the_level_with_it():
    (row,) = b.levels([run(), run(publishable=False)])
    assert not row["publishable"] and row["figures"] is None


def sweep(*throughputs, **more):
    return b.levels([run(level=2**n, output_throughput=value, **more) for n, value in enumerate(throughputs)])


def test_a_sweep_ends_where_more_load_brings_no_more_tokens():
    (found,) = b.saturation(sweep(100.0, 190.0, 300.0, 310.0), 5.0)
    assert (found["saturated"], found["level"], found["output_throughput"]) == (True, 4, 300.0)
    assert found["why"] == "from 4 to 8 throughput went from 300.0 to 310.0 tokens/s, less than 5 % more"
    (found,) = b.saturation(sweep(100.0, 190.0), 5.0)
    assert (found["saturated"], found["level"]) == (False, 2)


def test_a_level_that_fails_is_beyond_and_so_is_one_that_keeps_no_limit():
    rows = sweep(100.0, 190.0) + b.levels([run(level=4, publishable=False)])
    (found,) = b.saturation(rows, 5.0)
    assert (found["saturated"], found["level"]) == (True, 2) and "may not be published" in found["why"]
    rows = sweep(100.0) + b.levels([run(level=2, output_throughput=300.0, good_share=0.4)])
    (found,) = b.saturation(rows, 5.0)
    assert found["level"] == 1 and "only 40 % of the requests keep the limits" in found["why"]
    (found,) = b.saturation(b.levels([run(publishable=False)]), 5.0)
    assert (found["saturated"], found["level"], found["output_throughput"]) == (False, None, None)


def test_what_a_gateway_adds_is_a_difference_within_one_run():
    rows = b.levels(
        [run("r0", median_ttft_ms=value, p99_gap_ms=20.0) for value in (50.0, 52.0, 90.0)]
        + [run("r1", median_ttft_ms=value, p99_gap_ms=22.0) for value in (52.0, 54.0, 90.0)]
        + [run("gw", median_ttft_ms=value, p99_gap_ms=24.0) for value in (159.0, 160.0, 400.0)]
        + [run("gw", level=8)]
    )
    (found,) = b.gateway(rows, ["gw"], ["r0", "r1"])
    assert found == {
        "concurrency": 1,
        "request_rate": None,
        "through": "gw",
        "direct": ["r0", "r1"],
        "ttft_added_ms": pytest.approx(107.0),
        "ttft_ratio": pytest.approx(160 / 53),
        "gap_p99_added_ms": pytest.approx(3.0),
    }
    (found,) = b.gateway(b.levels([run("r0", publishable=False), run("gw")]), ["gw"], ["r0"])
    assert found["ttft_added_ms"] is None and found["ttft_ratio"] is None


def test_the_table_has_a_row_per_level_and_says_why_one_is_empty():
    lines = b.table(b.levels([run("r0"), run("gateway", level=2.5, load="open", publishable=False)]), {"gateway": ["it was late"]})
    assert lines[0].split()[:3] == ["endpoint", "level", "TTFT"]
    assert lines[1].split()[:3] == ["r0", "1", "50.0"] and lines[1].endswith("0.0 %")
    assert lines[2].split()[:3] == ["gateway", "2.5/s", "-"] and lines[3] == "  not published: it was late"
