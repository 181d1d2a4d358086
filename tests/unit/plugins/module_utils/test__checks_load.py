# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Long context, cached prefixes, a crowd, and the engine's own counters; cancelling is shown on real sockets in the zoo."""

from __future__ import annotations

import itertools
import re
import threading

import pytest
from faults.zoo.prover import Prover, said

from ansible_collections.ironserve.llm.plugins.module_utils import _checks_load, _engine_metrics


def tokens(text):
    return max(1, len(text) // 4)


def finds(messages, _max_tokens, _extra, _streamed):
    text = messages[0]["content"]
    city = re.search("code of ([A-Z][a-z]+)[?]", text)
    found = re.search("vault code of {0} is ([0-9]+)".format(city.group(1)), text) if city else None
    return said(found.group(1) if found else "words", prompt=tokens(text))


def test_a_document_is_as_long_as_asked_for_by_the_engines_count_and_has_its_codes_at_depth():
    prover = Prover(finds)
    found = _checks_load.long_context(prover, {"tokens": 40000, "depths": [0.1, 0.5, 0.9], "timeout_s": 300})
    assert found.trouble == ""
    assert 40000 <= found.figure < 44000
    assert len(prover.asked) == 4
    text = prover.asked[1][0][0]["content"]
    places = [match.start() / len(text) for match in re.finditer("The vault code", text)]
    assert places == pytest.approx([0.1, 0.5, 0.9], abs=0.03)
    assert [asked[3] for asked in prover.asked[1:]] == [300.0] * 3
    # The document is the same in all three, so that the cache serves the later ones; the next proof has another.
    ends = {asked[0][0]["content"].rsplit("\n\n", 1)[0] for asked in prover.asked[1:]}
    assert len(ends) == 1
    again = Prover(finds)
    _checks_load.long_context(again, {"tokens": 400})
    assert again.asked[1][0][0]["content"][:30] != text[:30]


def test_a_lost_needle_is_named_by_its_depth():
    def loses(messages, *rest):
        answer = finds(messages, *rest)
        text = messages[0]["content"]
        return (
            said("I do not know", prompt=tokens(text))
            if text.find(answer.content) < 0.2 * len(text) and answer.content.isdigit()
            else answer
        )

    found = _checks_load.long_context(Prover(loses), {"tokens": 2000, "depths": [0.6, 0.1]})
    assert re.match("of 2[0-9]{3} tokens, at depth 10%: the code [0-9]{6} did not come back, it said", found.trouble)


def test_a_prompt_that_was_cut_is_seen_by_usage():
    def cuts(messages, *rest):
        answer = finds(messages, *rest)
        answer.prompt_tokens = min(answer.prompt_tokens, 4096)
        return answer

    found = _checks_load.long_context(Prover(cuts), {"tokens": 8000})
    assert found.trouble.startswith("usage counts 4096 prompt tokens for a document made of 8000 or more")


@pytest.mark.parametrize("check", [_checks_load.long_context, _checks_load.cache_hit])
def test_without_usage_nothing_long_is_proved(check):
    found = check(Prover(lambda *_args: said("words", prompt=None)), {})
    assert (found.status, found.sign) == ("unknown", "unknown")


def test_the_same_beginning_three_times_with_different_ends():
    prover = Prover(finds)
    assert _checks_load.cache_hit(prover, {"tokens": 4096}).good == "3 times the same 4096 tokens with different ends, all right"
    texts = [asked[0][0]["content"] for asked in prover.asked[1:]]
    assert len({text.rsplit("\n\n", 1)[0] for text in texts}) == 1
    assert len({text.rsplit("\n\n", 1)[1] for text in texts}) == 3


@pytest.mark.parametrize(("turn", "said_so"), [(1, "wrong even the first time"), (3, "right without, wrong with its beginning cached")])
def test_a_wrong_answer_from_the_cache_is_told_from_a_wrong_model(turn, said_so):
    seen = []

    def spoils(messages, *rest):
        seen.append(messages)
        return said("!", prompt=100) if len(seen) == turn + 1 else finds(messages, *rest)

    assert said_so in _checks_load.cache_hit(Prover(spoils), {"tokens": 500}).trouble


def opens(messages, _max_tokens, _extra, _streamed):
    found = re.search("code ([0-9]{8})", messages[0]["content"])
    return said(found.group(1) if found else "Bread is old.")


def test_a_crowd_asks_at_once_and_everyone_gets_his_own():
    together = threading.Barrier(3, timeout=10)
    mine = threading.local()

    def waits(messages, *rest):
        # The first question of each: afterwards one may be done while the others ask once more.
        if not hasattr(mine, "met"):
            mine.met = together.wait()
        return opens(messages, *rest)

    found = _checks_load.concurrency(Prover(waits), {"streams": 3, "seconds": 0.01})
    assert found.trouble == ""
    # The barrier opens only for three at once.
    assert found.figure >= 3


@pytest.mark.parametrize(("planned", "item", "streams"), [(3, {}, 3), (3, {"streams": 2}, 2), (0, {"streams": 2}, 2)])
def test_a_crowd_is_as_large_as_the_plan_says_unless_the_recipe_says_otherwise(planned, item, streams):
    prover = Prover(opens)
    prover.max_num_seqs = planned
    found = _checks_load.concurrency(prover, dict(item, seconds=0.01))
    assert "{0} at once".format(streams) in found.good
    lockers = {words[1] for words in (messages[0]["content"].split() for messages, *_rest in prover.asked) if words[0] == "Locker"}
    assert lockers == {str(number) for number in range(1, streams + 1)}


def test_a_crowd_of_which_nobody_knows_the_size_could_not_be_told():
    found = _checks_load.concurrency(Prover(opens), {"seconds": 0.01})
    assert (found.status, found.sign) == ("unknown", "unknown") and "max_num_seqs" in found.trouble


def calls_with(meter_of):
    """Opens lockers; a tool is called with what ``meter_of`` makes of the question."""

    def answers(messages, limit, extra, streamed):
        if "tools" not in extra:
            return opens(messages, limit, extra, streamed)
        meter = meter_of(re.search('"(M-[0-9]+)"', messages[0]["content"]).group(1))
        arguments = '{{"meter": "{0}", "unit": "kelvin"}}'.format(meter)
        return said(calls=({"id": "c", "name": "read_meter", "arguments": arguments},), finish="tool_calls")

    return answers


def test_a_crowd_calls_tools_where_the_model_is_to():
    prover = Prover(calls_with(lambda meter: meter))
    _checks_load.concurrency(prover, {"streams": 2, "seconds": 0.01})
    assert not any("tools" in extra for _messages, _limit, extra, _patience in prover.asked)
    prover = Prover(calls_with(lambda meter: meter))
    prover.tools = True
    ways = set()
    plain = prover.answer

    def notes(messages, limit, extra, streamed):
        if "tools" in extra:
            ways.add(streamed)
        return plain(messages, limit, extra, streamed)

    prover.answer = notes
    assert _checks_load.concurrency(prover, {"streams": 2, "seconds": 0.01}).trouble == ""
    # Both ways, for either may be the broken one.
    assert ways == {True, False}


@pytest.mark.parametrize(
    ("other", "trouble"),
    [
        (True, "was answered with the code of worker 1: answers are mixed up, it said"),
        (False, 'asked for M-[0-9]{8} in kelvin, it called for "M-1" in kelvin'),
    ],
)
def test_arguments_of_another_client_are_told_from_wrong_ones(other, trouble):
    meters = []

    def first(meter):
        meters.append(meter)
        return meters[0] if other else "M-1"

    prover = Prover(calls_with(first))
    prover.tools = True
    found = _checks_load.concurrency(prover, {"streams": 1, "seconds": 0.3})
    assert found.trouble.startswith("right alone, wrong with 1 at once") and re.search(trouble, found.trouble)


def test_mixed_answers_are_named():
    codes = []

    def mixes(messages, *rest):
        answer = opens(messages, *rest)
        codes.append(answer.content)
        return said(codes[0])

    found = _checks_load.concurrency(Prover(mixes), {"streams": 1, "seconds": 0.05})
    assert "request of worker 1 was answered with the code of worker 1: answers are mixed up" in found.trouble
    assert found.trouble.startswith("right alone, wrong with 1 at once, after 2 requests")


def test_a_code_that_is_lost_under_load_is_trouble_and_an_error_of_one_ends_all():
    assert "did not come back" in _checks_load.concurrency(Prover(lambda *_args: said("?")), {"streams": 2, "seconds": 0.05}).trouble

    def breaks(*_args):
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        _checks_load.concurrency(Prover(breaks), {"streams": 2, "seconds": 5})


@pytest.mark.parametrize(
    ("before", "after", "item", "trouble", "sign"),
    [
        ({}, {}, {}, "", ""),
        ({"corrupted": 1.0}, {"corrupted": 1.0}, {}, "", ""),
        ({"corrupted": 1.0}, {"corrupted": 3.0}, {}, "the engine counted 2 answers whose logits were no numbers (NaN)", "garbage"),
        ({"drafted": 0.0, "accepted": 0.0}, {"drafted": 1000.0, "accepted": 390.0}, {"speculative": True}, "", ""),
        ({"drafted": 0.0, "accepted": 0.0}, {"drafted": 1000.0, "accepted": 9.0}, {}, "1% of 1000 drafted tokens were right", "partial"),
        ({"drafted": 0.0, "accepted": 0.0}, {"drafted": 49.0, "accepted": 0.0}, {}, "", ""),
        ({"running": 0.0}, {"running": 0.0}, {"speculative": True}, "speculative decoding was asked for", "partial"),
        ({"drafted": 0.0, "accepted": 0.0}, {"drafted": 100.0, "accepted": 30.0}, {"acceptance_min": 0.4}, "30% of 100", "partial"),
    ],
)
def test_the_engines_counters(before, after, item, trouble, sign):
    prover = Prover()
    prover.metrics_at_start, prover.figures = before, [after]
    found = _checks_load.counters(prover, item)
    assert found.trouble.startswith(trouble) if trouble else not found.trouble
    assert not trouble or found.sign == sign
    assert (found.status == "not_applicable") == (not after)


def test_a_context_that_is_known_to_be_shorter_is_no_failure_and_is_said():
    prover = Prover(finds, context=32768)
    found = _checks_load.long_context(prover, {"tokens": 40000})
    assert (found.status, prover.asked) == ("not_applicable", [])
    assert found.good == "the engine runs with a context of 32768 tokens, 40000 are asked for here"
    assert _checks_load.long_context(Prover(finds, context=44000), {"tokens": 40000}).figure >= 40000


def test_a_request_that_is_counted_a_moment_longer_does_not_keep_the_cancelled_from_being_counted():
    """With every slot leaked, the next answer would be judged by time: the engine's own count says it on any machine."""
    figures = iter([{_engine_metrics.RUNNING: 1.0}, {_engine_metrics.RUNNING: 0.0}])
    asked = []

    class Counted:
        def metrics(self):
            asked.append(1)
            return next(figures)

    assert _checks_load._settled(Counted(), 60.0) == {_engine_metrics.RUNNING: 0.0}
    assert len(asked) == 2
    figures = itertools.repeat({_engine_metrics.RUNNING: 1.0})
    assert _checks_load._settled(Counted(), 0.0) == {_engine_metrics.RUNNING: 1.0}
    figures = iter([{}])
    assert _checks_load._settled(Counted(), 60.0) == {}
