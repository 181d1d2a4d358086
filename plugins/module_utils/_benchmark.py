# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Figures of a benchmark out of the events of its answers, and whether they may be published. Pure. Private to the collection.

The names are those of ``vllm bench serve`` where it has one and means the same; docs/benchmark-result.md has them all. Tokens are counted by
``usage``, never by chunks: under speculation a chunk holds several, and some hold none.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Iterable, Sequence

from ansible_collections.ironserve.llm.plugins.module_utils import _sse
from ansible_collections.ironserve.llm.plugins.module_utils._stream import Answer, Chunk, Outcome

CLOSED = "closed"
OPEN = "open"
COLD = "cold"
WARM = "warm"

#: A stamp of our own is wrong by what the client was late: p99 of that against the median gap. A stamp of the kernel is right however
#: late it is read, until several events are read at once; then the client was late by about a gap.
LAG_SHARE_OWN = 0.02
LAG_SHARE_KERNEL = 0.5
#: A request is sent when the client notices that its connection stands, unless that is so at once: median of the lag against the median
#: time to the first token.
LAG_SHARE_TTFT = 0.02

LATE = "the measuring client itself was late: {0} {1:.2f} ms, {2:.2f} ms would do; give it a quieter machine or core"

#: First tokens by different rules that are further apart than this are told, seconds.
TTFT_APART_S = 0.005

#: A cold prompt may share so much with others (a chat template's own head), in tokens and as a share; more was cached.
COLD_TOKENS = 64
COLD_SHARE = 0.1
#: A warm prompt must have come out of the cache at least to this share.
WARM_SHARE = 0.5

#: Statistics of every family: prefix -> percentile, or a name.
PERCENTILES = (("median", 50.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0))

#: Families in milliseconds, each an attribute of Sample in seconds.
TIMES = (
    ("connect", "connect_s"),
    ("ttft", "ttft_s"),
    ("ttft_sent", "ttft_sent_s"),
    ("ttft_token", "ttft_token_s"),
    ("ttft_content", "ttft_content_s"),
    ("tpot", "tpot_s"),
    ("e2el", "e2el_s"),
    ("schedule_lag", "late_s"),
)
RATES = (("decode_tokens_per_s", "decode_rate"), ("prefill_tokens_per_s", "prefill_rate"))

#: Limits a good request keeps: option -> attribute of Sample.
SLO = {"ttft_ms": "ttft_s", "tpot_ms": "tpot_s", "e2el_ms": "e2el_s"}


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` per cent lie, linear between neighbours; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100.0
    low = int(math.floor(place))
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """The population's standard deviation; None of nothing."""
    middle = mean(values)
    return None if middle is None else math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))


def family(name: str, values: Sequence[float], factor: float = 1.0) -> dict[str, float | None]:
    """Mean, deviation, percentiles and maximum of ``values`` times ``factor`` under the names of the result; None each when there are none."""
    scaled = [value * factor for value in values]
    out = {"mean_" + name: mean(scaled), "std_" + name: deviation(scaled)}
    out.update((prefix + "_" + name, percentile(scaled, share)) for prefix, share in PERCENTILES)
    out["max_" + name] = max(scaled) if scaled else None
    return out


@dataclasses.dataclass
class Sample:
    """The figures of one request. Seconds, None for what it does not have.

    Attributes:
        started, ended: monotonic seconds; ``ended`` is its last byte.
        at_once: whether the request was sent without waiting for anything.
        ok, error: whether it was answered to the end, with usage; else what went wrong.
        gaps: between chunks with choices.
        itls: one per token after those of the first chunk; None where tokens per chunk are not known.
        tokens: (monotonic second, tokens) of each chunk with tokens; even shares where they are not known.
        others are as in docs/benchmark-result.md.
    """

    started: float
    ended: float
    ok: bool = False
    error: str = ""
    at_once: bool = False
    late_s: float | None = None
    connect_s: float | None = None
    ttft_s: float | None = None
    ttft_sent_s: float | None = None
    ttft_token_s: float | None = None
    ttft_content_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None
    decode_rate: float | None = None
    prefill_rate: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    token_chunks: int = 0
    gaps: list[float] = dataclasses.field(default_factory=list)
    itls: list[float] | None = None
    tokens: list[tuple[float, float]] = dataclasses.field(default_factory=list)


def _count(value: object) -> int | None:
    # More than a float counts whole is no count, and more than it holds ends the computing.
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def _detail(usage: dict[str, Any], member: str, key: str) -> int | None:
    details = usage.get(member)
    return _count(details.get(key)) if isinstance(details, dict) else None


def tokens_of_chunks(chunks: Sequence[Chunk], total: int) -> list[int] | None:
    """Tokens that each chunk with choices brought; None where that cannot be told.

    It can where each says how many there are until then (``continuous_usage_stats``), and where as many chunks hold tokens as there are
    tokens. The end of an answer is a token without text, which may come with the last chunk or on its own.
    """
    own = [chunk for chunk in chunks if chunk.has_choices]
    if own and all(chunk.made is not None for chunk in own) and own[-1].made == total:
        before = [0] + [chunk.made for chunk in own]
        steps = [after - until for until, after in zip(before, before[1:])]
        return steps if min(steps) >= 0 else None
    told = [1 if chunk.kinds & _sse.TOKEN_KINDS else 0 for chunk in own]
    if sum(told) == total:
        return told
    if sum(told) == total - 1 and own:
        # The end token: on a chunk of its own if the last one has no text, together with the last word otherwise.
        told[-1] += 1
        return told
    return None


def sample(answer: Answer, cold: bool = False) -> Sample:
    """Figures of one answer. ``cold`` says that nothing of its prompt can have been cached."""
    out = Sample(answer.started or 0.0, answer.ended or answer.started or 0.0, error=answer.error or answer.kind)
    if answer.started is not None and answer.due is not None:
        out.late_s = max(0.0, answer.started - answer.due)
    out.at_once = answer.at_once
    if answer.connected is not None and answer.started is not None:
        out.connect_s = answer.connected - answer.started
    choices = [chunk for chunk in answer.chunks if chunk.has_choices]
    if out.error or not choices:
        out.error = out.error or "no event of a stream came"
        return out
    if not any(_sse.DONE in chunk.kinds or _sse.FINISH in chunk.kinds for chunk in answer.chunks):
        out.error = "the stream ended in the middle"
        return out
    out.ok = True
    out.prompt_tokens = _count(answer.usage.get("prompt_tokens"))
    out.completion_tokens = _count(answer.usage.get("completion_tokens"))
    out.cached_tokens = _detail(answer.usage, "prompt_tokens_details", "cached_tokens")
    out.reasoning_tokens = _detail(answer.usage, "completion_tokens_details", "reasoning_tokens")
    steps = None if out.completion_tokens is None else tokens_of_chunks(answer.chunks, out.completion_tokens)
    # A token may have no text yet (half a character): its chunk is empty and counts. That of an answer's end does not.
    told = [
        chunk
        for chunk, count in zip(choices, steps or [0] * len(choices))
        if chunk.kinds & _sse.TOKEN_KINDS or (count and _sse.FINISH not in chunk.kinds)
    ]
    out.token_chunks = len(told)
    first, last = choices[0].at, choices[-1].at
    out.ttft_s = first - answer.started
    out.ttft_sent_s = first - answer.connected
    out.e2el_s = last - answer.started
    out.gaps = [after.at - before.at for before, after in zip(choices, choices[1:])]
    if told:
        out.ttft_token_s = told[0].at - answer.started
    seen = [chunk.at for chunk in choices if _sse.CONTENT in chunk.kinds]
    if seen:
        out.ttft_content_s = seen[0] - answer.started
    if out.completion_tokens is None:
        return out
    if out.completion_tokens > 1:
        out.tpot_s = (last - first) / (out.completion_tokens - 1)
    _token_figures(out, choices, told, steps)
    computed = out.prompt_tokens
    if computed is not None and (out.cached_tokens is not None or cold):
        computed -= out.cached_tokens or 0
        until = (told or choices)[0].at - answer.sent
        out.prefill_rate = computed / until if until > 0 else None
    return out


def _token_figures(out: Sample, choices: list[Chunk], told: list[Chunk], steps: list[int] | None) -> None:
    if steps is None:
        if not told:
            return
        share = out.completion_tokens / len(told)
        out.tokens = [(chunk.at, share) for chunk in told]
        span = choices[-1].at - told[0].at
        if out.completion_tokens > 1 and span > 0:
            out.decode_rate = (out.completion_tokens - 1) / span
        return
    came = [(chunk.at, count) for chunk, count in zip(choices, steps) if count]
    out.tokens = [(at, float(count)) for at, count in came]
    out.itls = []
    for (before, _count_before), (at, count) in zip(came, came[1:]):
        out.itls += [(at - before) / count] * count
    if len(came) > 1 and came[-1][0] > came[0][0]:
        out.decode_rate = sum(count for _at, count in came[1:]) / (came[-1][0] - came[0][0])


def good(one: Sample, slo: dict[str, float | None]) -> bool:
    """Whether a request was answered and keeps every limit (milliseconds). A figure it does not have keeps any limit."""
    if not one.ok:
        return False
    for key, attribute in SLO.items():
        limit, value = slo.get(key), getattr(one, attribute)
        if limit is not None and value is not None and value * 1000.0 > limit:
            return False
    return True


def _most_at_a_time(samples: Sequence[Sample]) -> int:
    edges = sorted([(one.started, 1) for one in samples] + [(one.ended, -1) for one in samples])
    most = now = 0
    for _at, step in edges:
        now += step
        most = max(most, now)
    return most


def _per_second(samples: Sequence[Sample], start: float, seconds: int) -> list[float]:
    out = [0.0] * seconds
    for one in samples:
        for at, count in one.tokens:
            place = int(at - start)
            if 0 <= place < seconds:
                out[place] += count
    return out


def window(samples: Sequence[Sample]) -> tuple[float, float]:
    """First start and last end, monotonic seconds; twice 0 of nothing."""
    if not samples:
        return 0.0, 0.0
    return min(one.started for one in samples), max(one.ended for one in samples)


def figures(samples: Sequence[Sample], slo: dict[str, float | None]) -> dict[str, Any]:
    """All figures of a run, as docs/benchmark-result.md lists them; ``tokens_per_joule`` is None here."""
    answered = [one for one in samples if one.ok]
    start, end = window(samples)
    seconds = end - start
    made = [one.completion_tokens for one in answered]
    read = [one.prompt_tokens for one in answered]
    thought = [one.reasoning_tokens for one in answered if one.reasoning_tokens is not None]
    total_out = sum(made) if made and None not in made else None
    total_in = sum(read) if read and None not in read else None
    out = {}
    for name, attribute in TIMES:
        values = [getattr(one, attribute) for one in answered]
        out.update(family(name + "_ms", [value for value in values if value is not None], 1000.0))
    out.update(family("gap_ms", [gap for one in answered for gap in one.gaps], 1000.0))
    whole = all(one.itls is not None for one in answered)
    out.update(family("itl_ms", [value for one in answered for value in one.itls] if whole else [], 1000.0))
    for name, attribute in RATES:
        values = [getattr(one, attribute) for one in answered]
        out.update(family(name, [value for value in values if value is not None]))
    chunks = sum(one.token_chunks for one in answered)
    limits = any(value is not None for value in slo.values())
    kept = sum(1 for one in samples if good(one, slo))
    per_second = _per_second(answered, start, int(seconds))
    out.update(
        total_input_tokens=total_in,
        total_output_tokens=total_out,
        reasoning_tokens=sum(thought) if thought else None,
        request_throughput=len(answered) / seconds if seconds > 0 else None,
        output_throughput=total_out / seconds if seconds > 0 and total_out is not None else None,
        total_token_throughput=(total_out + total_in) / seconds if seconds > 0 and None not in (total_out, total_in) else None,
        request_goodput=kept / seconds if limits and seconds > 0 else None,
        good_share=kept / len(samples) if limits and samples else None,
        tokens_per_chunk=total_out / chunks if total_out is not None and chunks else None,
        max_concurrent_requests=_most_at_a_time(samples),
        peak_output_tokens_per_s=max(per_second) if per_second else None,
        tokens_per_joule=None,
    )
    return out


def timeline(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """One row per second of the run: who was at work on average, tokens/s, and means of the first tokens and gaps that fell into it."""
    start, end = window(samples)
    seconds = int(math.ceil(end - start))
    tokens = _per_second(samples, start, seconds)
    firsts = [[] for _second in range(seconds)]
    gaps = [[] for _second in range(seconds)]
    running = [0.0] * seconds
    for one in samples:
        if one.ttft_s is not None:
            firsts[min(seconds - 1, int(one.started + one.ttft_s - start))].append(one.ttft_s)
        at = one.started + (one.ttft_s or 0.0)
        for gap in one.gaps:
            at += gap
            gaps[min(seconds - 1, int(at - start))].append(gap)
        for second in range(int(one.started - start), min(seconds, int(one.ended - start) + 1)):
            running[second] += max(0.0, min(one.ended, start + second + 1) - max(one.started, start + second))
    rows = []
    for second in range(seconds):
        width = min(1.0, end - start - second)
        first, gap = mean(firsts[second]), mean(gaps[second])
        rows.append(
            {
                "at_s": second,
                "running": round(running[second] / width, 3) if width > 0 else 0.0,
                "output_tokens_per_s": round(tokens[second] / width, 3) if width > 0 else 0.0,
                "ttft_ms": None if first is None else round(first * 1000.0, 3),
                "gap_ms": None if gap is None else round(gap * 1000.0, 3),
            }
        )
    return rows


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000.0, 4)


def rows(samples: Sequence[Sample], slo: dict[str, float | None]) -> list[dict[str, Any]]:
    """One row per request, by start."""
    start, _end = window(samples)
    return [
        {
            "at_s": round(one.started - start, 6),
            "ok": one.ok,
            "error": one.error,
            "prompt_tokens": one.prompt_tokens,
            "cached_tokens": one.cached_tokens,
            "completion_tokens": one.completion_tokens,
            "ttft_ms": _ms(one.ttft_s),
            "ttft_token_ms": _ms(one.ttft_token_s),
            "tpot_ms": _ms(one.tpot_s),
            "e2el_ms": _ms(one.e2el_s),
            "good": good(one, slo),
        }
        for one in sorted(samples, key=lambda one: one.started)
    ]


def lag(outcome: Outcome, samples: Sequence[Sample]) -> dict[str, Any]:
    """What the client says about itself: ``lag_*_ms``, ``limit_ms`` for the p99, ``limit_p50_ms`` (None without one), ``stamps``, ``cpu_pct``, ``probes``."""
    gaps = [gap for one in samples for gap in one.gaps]
    firsts = [one.ttft_s for one in samples if one.ttft_s is not None]
    pace = percentile(gaps, 50.0) or percentile(firsts, 50.0)
    sent_late = not outcome.kernel or not all(one.at_once for one in samples)
    share = LAG_SHARE_KERNEL if outcome.kernel else LAG_SHARE_OWN
    seconds = outcome.ended - outcome.started
    return {
        "stamps": "kernel" if outcome.kernel else "own",
        "lag_p50_ms": _ms(percentile(outcome.lags, 50.0)),
        "lag_p99_ms": _ms(percentile(outcome.lags, 99.0)),
        "lag_max_ms": _ms(max(outcome.lags) if outcome.lags else None),
        "limit_ms": None if pace is None else _ms(pace * share),
        "limit_p50_ms": _ms(percentile(firsts, 50.0) * LAG_SHARE_TTFT) if firsts and sent_late else None,
        "cpu_pct": round(100.0 * outcome.cpu_s / seconds, 2) if seconds > 0 else None,
        "probes": len(outcome.lags),
    }


def cache(samples: Sequence[Sample], wanted: str) -> dict[str, Any]:
    """Whether the prompts were cached as ``wanted`` says: ``wanted``, ``cached_share``, ``verified`` (None where the engine does not say)."""
    answered = [one for one in samples if one.ok]
    if not answered or any(one.cached_tokens is None or not one.prompt_tokens for one in answered):
        return {"wanted": wanted, "cached_share": None, "verified": None}
    cached = sum(one.cached_tokens for one in answered)
    share = cached / sum(one.prompt_tokens for one in answered)
    if wanted == COLD:
        verified = share <= COLD_SHARE or cached / len(answered) <= COLD_TOKENS
    else:
        verified = share >= WARM_SHARE
    return {"wanted": wanted, "cached_share": round(share, 4), "verified": verified}


def _plural(count: int, word: str) -> str:
    return "{0} {1}{2}".format(count, word, "" if count == 1 else "s")


def faults(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Each text of an error once, with how often it came, the most frequent first."""
    counts = {}
    for one in samples:
        if not one.ok:
            counts[one.error] = counts.get(one.error, 0) + 1
    return [{"error": text, "count": counts[text]} for text in sorted(counts, key=lambda text: (-counts[text], text))]


def judge(samples: Sequence[Sample], client: dict[str, Any], cached: dict[str, Any], output_tokens: int | None = None) -> list[str]:
    """Why the figures of a run may not be published; empty when they may. No answer can have more than ``output_tokens``."""
    out = []
    failed = faults(samples)
    answered = [one for one in samples if one.ok]
    if not samples:
        return ["nothing was asked"]
    if failed:
        count = sum(item["count"] for item in failed)
        text = "{0} of {1} failed: {2}".format(count, _plural(len(samples), "request"), failed[0]["error"])
        out.append(text + (" (and {0})".format(_plural(len(failed) - 1, "other reason")) if len(failed) > 1 else ""))
    if not answered:
        return out
    silent = sum(1 for one in answered if one.completion_tokens is None or one.prompt_tokens is None)
    if silent:
        out.append("{0} of {1} answers came without usage, so their tokens cannot be counted".format(silent, len(answered)))
    # Some engines count the end of an answer, too.
    long = [one.completion_tokens for one in answered if output_tokens and (one.completion_tokens or 0) > output_tokens + 1]
    if long:
        text = "usage counts up to {2} tokens in {0} of {1}, {3} were allowed: it lies, or max_tokens is not kept"
        out.append(text.format(len(long), _plural(len(answered), "answer"), max(long), output_tokens))
    # A chunk may hold several tokens, but no token several chunks with text.
    short = [one for one in answered if one.completion_tokens is not None and one.completion_tokens < one.token_chunks - 1]
    if short:
        worst = max(short, key=lambda one: one.token_chunks - one.completion_tokens)
        text = "usage counts {2} tokens where {3} chunks with text came, in {0} of {1}: it lies"
        out.append(text.format(len(short), _plural(len(answered), "answer"), worst.completion_tokens, worst.token_chunks))
    # One token alone may be half a character.
    empty = sum(1 for one in answered if not one.token_chunks)
    if empty and (output_tokens or 0) > 1:
        out.append("{0} of {1} had no text at all".format(empty, _plural(len(answered), "answer")))
    late, limit = client["lag_p99_ms"], client["limit_ms"]
    if late is None or limit is None:
        out.append("the client does not know how late it was")
    elif late > limit:
        out.append(LATE.format("p99", late, limit))
    elif client["limit_p50_ms"] is not None and client["lag_p50_ms"] > client["limit_p50_ms"]:
        out.append(LATE.format("median", client["lag_p50_ms"], client["limit_p50_ms"]))
    if cached["verified"] is False:
        share = 100.0 * cached["cached_share"]
        out.append("the prompts should have been {0}, but {1:.1f} % of their tokens came out of the cache".format(cached["wanted"], share))
    return out


def notes(samples: Sequence[Sample], output_tokens: int | None) -> list[str]:
    """What a reader should know about figures that may be published."""
    answered = [one for one in samples if one.ok]
    out = []
    for name, what in (("ttft_token_s", "token"), ("ttft_content_s", "visible text")):
        apart = [getattr(one, name) - one.ttft_s for one in answered if getattr(one, name) is not None]
        late = [value for value in apart if value > TTFT_APART_S]
        if late:
            text = "in {0} of {1} the first {2} came later than the first chunk, {3:.1f} ms in the median"
            out.append(text.format(len(late), _plural(len(answered), "answer"), what, 1000.0 * percentile(late, 50.0)))
    if any(one.itls is None for one in answered):
        out.append("chunks hold several tokens and the engine does not say how many: there is no time between tokens, see gap_ms")
    odd = [one for one in answered if output_tokens and one.completion_tokens not in (None, output_tokens)]
    if odd:
        out.append("{0} of {1} are not {2} tokens long".format(len(odd), _plural(len(answered), "answer"), output_tokens))
    if len(answered) < 100:
        out.append("of {0}, p99 is close to the largest".format(_plural(len(answered), "answer")))
    return out


# ---- several runs


def spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """What repeats of one figure say: ``mean``, ``std``, ``min``, ``max``, ``spread_pct``, ``values``; None when one of them is not known."""
    if not values or any(value is None for value in values):
        return None
    middle = mean(values)
    return {
        "mean": middle,
        "std": deviation(values),
        "min": min(values),
        "max": max(values),
        "spread_pct": 100.0 * (max(values) - min(values)) / abs(middle) if middle else 0.0,
        "values": list(values),
    }


_LEVEL = ("endpoint", "tool", "load", "concurrency", "request_rate")


def levels(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the repeats of each endpoint and level together, in the order in which they first ran."""
    groups = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in _LEVEL), []).append(run)
    out = []
    for key, members in groups.items():
        usable = all(run["publishable"] for run in members)
        row = dict(zip(_LEVEL, key), repeats=len(members), publishable=usable, figures=None)
        if usable:
            names = [name for name in members[0]["figures"] if all(name in run["figures"] for run in members)]
            row["figures"] = {name: spread([run["figures"][name] for run in members]) for name in names}
        out.append(row)
    return out


def level_of(row: dict[str, Any]) -> float:
    """The number a sweep goes along: requests at a time, or requests/s."""
    return row["concurrency"] if row["load"] == CLOSED else row["request_rate"]


def saturated(before: dict[str, Any] | None, now: dict[str, Any], gain_pct: float) -> str:
    """Why the level ``now`` is beyond what is worth having, after the level ``before``; empty when it is not. Rows of ``levels``."""
    if not now["publishable"]:
        return "figures at {0:g} may not be published".format(level_of(now))
    share = now["figures"].get("good_share")
    if share is not None and share["mean"] < 0.5:
        return "at {0:g} only {1:.0f} % of the requests keep the limits".format(level_of(now), 100.0 * share["mean"])
    if before is None or not before["publishable"]:
        return ""
    old, new = before["figures"]["output_throughput"], now["figures"]["output_throughput"]
    if old is None or new is None or new["mean"] >= old["mean"] * (1.0 + gain_pct / 100.0):
        return ""
    text = "from {0:g} to {1:g} throughput went from {2:.1f} to {3:.1f} tokens/s, less than {4:g} % more"
    return text.format(level_of(before), level_of(now), old["mean"], new["mean"], gain_pct)


def saturation(rows_: Iterable[dict[str, Any]], gain_pct: float) -> list[dict[str, Any]]:
    """For each endpoint of a sweep: whether more load stopped bringing more tokens, and the highest level worth having."""
    sweeps = {}
    for row in rows_:
        sweeps.setdefault((row["endpoint"], row["tool"], row["load"]), []).append(row)
    out = []
    for (endpoint, tool, _load), sweep in sweeps.items():
        best, why = None, ""
        for row in sorted(sweep, key=level_of):
            why = saturated(best, row, gain_pct)
            if why:
                break
            best = row
        known = best is not None and best["figures"]["output_throughput"] is not None
        out.append(
            {
                "endpoint": endpoint,
                "tool": tool,
                "saturated": bool(why) and best is not None,
                "level": level_of(best) if best is not None else None,
                "output_throughput": best["figures"]["output_throughput"]["mean"] if known else None,
                "why": why or "more load may still bring more",
            }
        )
    return out


def _middle(row: dict[str, Any], name: str) -> float | None:
    found = row["figures"].get(name) if row["figures"] else None
    return None if found is None else percentile(found["values"], 50.0)


def gateway(rows_: Sequence[dict[str, Any]], through: Sequence[str], direct: Sequence[str]) -> list[dict[str, Any]]:
    """What asking through a gateway adds to asking its replicas, level by level; None where one of both is not known."""
    out = []
    for row in rows_:
        if row["endpoint"] not in through or row["tool"] != "ironserve":
            continue
        same = [
            other
            for other in rows_
            if other["endpoint"] in direct
            and other["tool"] == row["tool"]
            and [other[key] for key in _LEVEL[2:]] == [row[key] for key in _LEVEL[2:]]
        ]
        if not same:
            continue

        def difference(name: str, row: dict[str, Any] = row, same: list[dict[str, Any]] = same) -> tuple[float | None, float | None]:
            one, others = _middle(row, name), [_middle(other, name) for other in same]
            return one, None if None in others else percentile(others, 50.0)

        (first, plain), (gap, plain_gap) = difference("median_ttft_ms"), difference("p99_gap_ms")
        known = None not in (first, plain)
        out.append(
            {
                "concurrency": row["concurrency"],
                "request_rate": row["request_rate"],
                "through": row["endpoint"],
                "direct": [other["endpoint"] for other in same],
                "ttft_added_ms": first - plain if known else None,
                "ttft_ratio": first / plain if known and plain else None,
                "gap_p99_added_ms": gap - plain_gap if None not in (gap, plain_gap) else None,
            }
        )
    return out


def _cell(row: dict[str, Any], name: str, form: str = "{0:.1f}") -> str:
    found = row["figures"].get(name) if row["figures"] else None
    return "-" if found is None else form.format(found["mean"])


#: Columns of the table: title, figure.
COLUMNS = (
    ("TTFT ms", "median_ttft_ms"),
    ("p99", "p99_ttft_ms"),
    ("TPOT ms", "median_tpot_ms"),
    ("gap p99 ms", "p99_gap_ms"),
    ("e2e ms", "median_e2el_ms"),
    ("tok/s each", "mean_decode_tokens_per_s"),
    ("tok/s all", "output_throughput"),
)


def label(row: dict[str, Any]) -> str:
    """Whose row it is, for people: the endpoint, and the tool where it is not ours."""
    return row["endpoint"] if row["tool"] == "ironserve" else "{0} ({1})".format(row["endpoint"], row["tool"])


def table(rows_: Sequence[dict[str, Any]], refusals: dict[str, list[str]]) -> list[str]:
    """Lines for people: a row per endpoint and level (means of the repeats), below it why its figures are missing.

    ``refusals`` has the reasons by ``label``.
    """
    wide = max([len("endpoint")] + [len(label(row)) for row in rows_])
    out = [
        "{0:<{1}}  {2:>9}".format("endpoint", wide, "level") + "".join("  {0:>10}".format(title) for title, _name in COLUMNS) + "  spread"
    ]
    for row in rows_:
        name = "{0:g}{1}".format(level_of(row), "" if row["load"] == CLOSED else "/s")
        found = row["figures"].get("output_throughput") if row["figures"] else None
        noise = "-" if found is None else "{0:.1f} %".format(found["spread_pct"])
        out.append(
            "{0:<{1}}  {2:>9}".format(label(row), wide, name)
            + "".join("  {0:>10}".format(_cell(row, figure)) for _title, figure in COLUMNS)
            + "  "
            + noise
        )
        if not row["publishable"]:
            out += ["  not published: " + text for text in refusals.get(label(row), [])]
    return out
