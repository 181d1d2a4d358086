# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every scripted fault gets its verdict over real sockets, and no healthy oddity raises an alarm."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import types

import pytest
from faults.engines import scripted
from faults.engines.scripted import BEHAVIOURS, Engine
from faults.zoo.animals import ODDITIES, Instead, Models, Says
from faults.zoo.engine import HANG, Behaviour, Zoo

from ansible_collections.ironserve.llm.plugins.module_utils import _card_use, _docker, _http, _sse, _verify
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

ACCEPTANCE = {
    "floor_decode_tokens_per_s": 5,
    "ttft_limit_s": 0.5,
    "checks": [
        {
            "check": "exact",
            "id": "japan",
            "language": "en",
            "prompt": "What is the capital of Japan?",
            "expect": ["Tokyo"],
            "finish": "stop",
        },
        {
            "check": "nonce_recall",
            "id": "en",
            "language": "en",
            "prompt": "The secret code is {nonce}. What is the secret code?",
            "answer": "The secret code is {nonce}.",
            "shots": ["418362"],
        },
        {
            "check": "nonce_recall",
            "id": "zh",
            "language": "zh",
            "prompt": "密码是 {nonce}。",
            "answer": "密码是 {nonce}。",
            "shots": ["905174"],
        },
        {"check": "stream_equals_unary", "id": "japan", "language": "en", "prompt": "What is the capital of Greece?"},
        {"check": "quality", "id": "bread", "language": "en", "prompt": "Tell me about bread."},
        {"check": "quality", "id": "bread_zh", "language": "zh", "prompt": "请介绍面包的历史。"},
    ],
    "not_applicable": [{"check": "tool_loop", "reason": "scripted", "measured": "no tools"}],
}
NO_SPEED = [{"check": "speed", "reason": "scripted"}]
LIMITS = _verify.Limits(first_token_s=1.0, request_s=3.0, total_s=30.0, slow_window_s=0.5)


def prove(engine, acceptance=None, limits=LIMITS, model="scripted", **options):
    endpoint = Endpoint("r0", engine.url, options.pop("api_key_file", ""), **options.pop("endpoint", {}))
    return _verify.prove_all([endpoint], model, _verify.read_acceptance(acceptance or ACCEPTANCE), limits, **options)[0]


def changed(**changes):
    return {**ACCEPTANCE, **changes}


@pytest.mark.parametrize("behaviour", sorted(BEHAVIOURS))
@pytest.mark.parametrize("abreast", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_every_behaviour_gets_its_verdict(behaviour, abreast):
    with Engine(behaviour, slow_s=0.6) as engine:
        proof = prove(engine, abreast=abreast)
    assert proof.verdict == BEHAVIOURS[behaviour], proof.evidence
    assert proof.evidence
    assert bool(proof.next_step) != proof.ok
    if not proof.ok:
        assert (proof.ttft_ms, proof.decode_tokens_per_s, proof.card_use_pct) == (None, None, None)


class InFlight:
    """Counts the questions that are asked at the same time; with ``together`` each waits until so many are."""

    def __init__(self, monkeypatch, together=1):
        self.peak = self._now = 0
        self._lock = threading.Lock()
        self._met = threading.Barrier(together)
        self._ask = _verify.Verifier._ask

        def counted(verifier, *question):
            return self.ask(verifier, *question)

        monkeypatch.setattr(_verify.Verifier, "_ask", counted)

    def ask(self, verifier, messages, max_tokens):
        with self._lock:
            self._now += 1
            self.peak = max(self.peak, self._now)
        try:
            self._met.wait(10)
            return self._ask(verifier, messages, max_tokens)
        finally:
            with self._lock:
                self._now -= 1


def test_questions_are_asked_abreast_when_told_and_reported_in_the_same_order(monkeypatch):
    names = [[], []]
    for number, abreast in enumerate((1, 2)):
        with Engine("healthy") as engine:
            seen = InFlight(monkeypatch)
            proof = prove(engine, abreast=abreast)
        assert proof.ok
        names[number] = [(check["check"], check["id"]) for check in proof.checks]
        assert seen.peak == abreast
    assert names[0] == names[1]
    # Four questions of this recipe are asked abreast: none goes on before the others came.
    questions = [item for item in ACCEPTANCE["checks"] if item["check"] != "quality"]
    with Engine("healthy") as engine:
        seen = InFlight(monkeypatch, together=len(questions))
        proof = prove(engine, changed(checks=questions + [{"check": "models"}], not_applicable=NO_SPEED), abreast=len(questions))
    assert seen.peak == len(questions)
    assert proof.ok, proof.evidence


def test_the_long_answer_whose_speed_is_measured_has_the_endpoint_for_itself(monkeypatch):
    alone = []
    check = _verify.Verifier._check_quality
    with Engine("healthy") as engine:
        seen = InFlight(monkeypatch)
        monkeypatch.setattr(_verify.Verifier, "_check_quality", lambda verifier, item: (alone.append(seen._now), check(verifier, item)))
        assert prove(engine, abreast=8).ok
    assert alone == [0, 0]


def test_after_a_stop_no_further_question_is_asked():
    for abreast in (1, 2):
        with Engine("never_answers") as engine:
            proof = prove(engine, abreast=abreast)
            assert len(engine.asked) == abreast
        assert proof.verdict == "stalled"


def test_a_healthy_proof_has_figures_and_echoes_what_does_not_apply():
    with Engine("healthy") as engine:
        proof = prove(engine)
    assert proof.decode_tokens_per_s > 50
    assert 0 < proof.ttft_ms < 500
    statuses = {(check["check"], check["id"]): check["status"] for check in proof.checks}
    assert statuses[("tool_loop", "")] == "not_applicable"
    assert statuses[("card_use", "")] == "not_applicable"
    assert len([status for status in statuses.values() if status == "pass"]) == 8


def test_a_slow_engine_is_named_with_its_measured_speed_before_any_time_out():
    start = time.monotonic()
    with Engine("slow", slow_s=0.5) as engine:
        proof = prove(engine, changed(floor_decode_tokens_per_s=20), _verify.Limits(first_token_s=5, request_s=60, slow_window_s=0.8))
    assert time.monotonic() - start < 4
    assert proof.verdict == "slow"
    assert "the floor is 20 tokens/s" in proof.evidence[0]
    measured = float(proof.evidence[0].split(" tokens/s")[0].split(": ")[1])
    assert measured == pytest.approx(2.0, rel=0.2)


def test_one_token_before_the_deadline_is_slow_not_stalled():
    with Engine("slow", slow_s=6) as engine:
        proof = prove(engine, limits=_verify.Limits(first_token_s=5, request_s=3.0))
    assert proof.verdict == "slow"
    # As long as it was allowed, and what a busy machine adds.
    (seconds,) = re.findall(r"1 tokens in (\d+\.\d) s", proof.evidence[0])
    assert 3.0 <= float(seconds) < 6


def test_garbage_that_is_fast_has_no_figures_and_speed_is_not_even_judged():
    with Engine("garbage_words") as engine:
        proof = prove(engine)
    assert proof.verdict == "garbage"
    assert "speed" not in [check["check"] for check in proof.checks]


def test_the_nonce_is_new_in_every_run():
    with Engine("healthy") as engine:
        prove(engine)
        prove(engine)
        codes = [body["messages"][-1]["content"] for body in engine.asked if "密码" in body["messages"][-1]["content"]]
    assert len(codes) == 2
    assert codes[0] != codes[1]


def test_the_key_comes_from_its_file_and_never_shows(tmp_path):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("s3cret-right\n")
    wrong.write_text("s3cret-wrong\n")
    with Engine("healthy", key="s3cret-right") as engine:
        assert prove(engine, api_key_file=str(right), bad_key=True).ok
        refused = prove(engine, api_key_file=str(wrong))
        missing = prove(engine, api_key_file=str(tmp_path / "none"))
    assert refused.verdict == "unknown"
    assert "the API key was refused" in refused.evidence[0]
    assert "s3cret" not in repr(refused)
    assert missing.verdict == "unknown"
    assert str(tmp_path / "none") in missing.evidence[0]


def test_open_doors_are_not_ok(tmp_path):
    key = tmp_path / "key"
    key.write_text("k")
    with Engine("healthy", key="k") as engine:
        assert prove(engine, api_key_file=str(key), closed_paths=("/invocations", "/metrics")).ok
        proof = prove(engine, api_key_file=str(key), closed_paths=("/health",))
        assert proof.verdict == "partial"
        assert proof.evidence == ["closed_path /health: HTTP 200, not 404: this path must be closed"]
    with Engine("healthy") as engine:
        proof = prove(engine, bad_key=True)
        assert proof.verdict == "partial"
        assert proof.evidence[0] == "bad_key a_wrong_key: a wrong key got HTTP 200, not 401"


def test_nothing_listens_is_dead():
    with Engine("healthy") as engine:
        pass
    proof = prove(engine)
    assert proof.verdict == "dead"
    assert "connection refused" in proof.evidence[0]


def test_several_replicas_keep_their_order_and_verdicts():
    with Engine("healthy") as one, Engine("garbage_run") as two, Engine("healthy") as three:
        endpoints = [Endpoint(name, engine.url) for name, engine in (("a", one), ("b", two), ("c", three))]
        proofs = _verify.prove_all(endpoints, "scripted", _verify.read_acceptance(ACCEPTANCE), LIMITS)
    assert [(proof.name, proof.verdict) for proof in proofs] == [("a", "ok"), ("b", "garbage"), ("c", "ok")]
    lines = _verify.table(proofs)
    assert lines[1].split()[:2] == ["a", "ok"]
    assert any(line.startswith("  because  exact japan") for line in lines)
    assert any(line.startswith("  next     The weights") for line in lines)


class Meter:
    """A card use sampler that says what the test wants."""

    def __init__(self, percent):
        self.value = percent

    def percent(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.mark.parametrize(
    "percent, verdict, figure",
    [(80.0, "ok", 80.0), (0.5, "unknown", None), (LLMError("gone"), "unknown", None)],
)
def test_answers_without_work_on_the_cards_are_not_believed(monkeypatch, percent, verdict, figure):
    monkeypatch.setattr(_card_use, "sampler", lambda *_args: Meter(percent))
    # A healthy engine on a busy machine is waited for.
    with Engine("healthy") as engine:
        proof = prove(engine, endpoint={"container": "x", "platform": "cpu"}, limits=_verify.Limits(first_token_s=20, request_s=40))
    assert (proof.verdict, proof.card_use_pct) == (verdict, figure)


def test_idle_cards_are_part_of_the_evidence_of_a_stall(monkeypatch):
    monkeypatch.setattr(_card_use, "sampler", lambda *_args: Meter(0.2))
    with Engine("never_answers") as engine:
        proof = prove(engine, endpoint={"container": "x", "platform": "cpu"})
    assert proof.verdict == "stalled"
    assert proof.evidence[-1] == "the cards were 0 % busy meanwhile"


def test_a_card_that_cannot_be_seen_working_has_proved_nothing():
    with Engine("healthy") as engine:
        proof = prove(engine, endpoint={"container": "x", "platform": "abacus"})
    assert proof.verdict == "unknown"
    found = [check for check in proof.checks if check["check"] == "card_use"]
    assert found[0]["status"] == "unknown"
    assert 'platform "abacus" has no card use sampler' in found[0]["detail"]


def test_a_recipe_may_forgive_a_wrong_exact_answer_but_never_the_nonce():
    wrong = {"check": "exact", "id": "wrong", "prompt": "What is the capital of China?", "expect": ["Paris"]}
    checks = [*ACCEPTANCE["checks"], wrong]
    with Engine("healthy") as engine:
        assert prove(engine, changed(checks=checks)).verdict == "garbage"
        forgiving = prove(engine, changed(checks=checks, exact_pass_share=0.5))
        assert forgiving.ok
    with Engine("canned") as engine:
        assert prove(engine, changed(exact_pass_share=0.01)).verdict == "garbage"


def test_extra_request_members_reach_the_engine():
    with Engine("healthy") as engine:
        prove(engine, changed(request={"chat_template_kwargs": {"enable_thinking": False}}))
        assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in engine.asked)


def test_a_proof_has_a_deadline_of_its_own():
    with Engine("healthy") as engine:
        proof = prove(engine, limits=_verify.Limits(total_s=0.000001))
    assert proof.verdict == "unknown"
    assert "not complete after 1e-06 s" in proof.evidence[0]


@pytest.mark.parametrize(
    "data, message",
    [
        ({"checks": [{"check": "exct"}]}, 'did you mean "exact"'),
        ({"checks": [{"check": "exact", "prompt": "x"}]}, "the key 'expect' is missing"),
        ({"checks": [{"check": "exact", "prompt": "x", "expect": "Tokyo"}]}, "'expect' must be a list"),
        ({"checks": [{"check": "exact", "id": "a", "prompt": "x", "expects": ["y"]}]}, '(exact a): unknown key "expects"'),
        ({"checks": [{"check": "nonce_recall", "prompt": "x", "answer": "{nonce}", "shots": ["1"]}]}, "'prompt' must contain {nonce}"),
        ({"checks": [{"check": "speed"}]}, "at least one 'exact' or 'nonce_recall'"),
        ({"checks": "exact"}, "must be a list of checks"),
        ({"checks": [{"check": "exact", "prompt": "x", "expect": ["a", ""]}]}, "'expect' has an empty word"),
        ({"checks": [{"check": "exact", "prompt": "x", "expect": [None]}]}, "'expect' has an empty word"),
        ({"checks": ACCEPTANCE["checks"], "request": ["top_k"]}, "acceptance.request must be a mapping"),
        ({"checks": ACCEPTANCE["checks"], "floor_decode_tokens_per_s": float("nan")}, "must be a number above 0, not nan"),
        ({"checks": ACCEPTANCE["checks"], "ttft_limit_s": float("inf")}, "must be a number above 0, not inf"),
        ({"checks": [*ACCEPTANCE["checks"], {"check": "card_use", "floor_pct": float("nan")}]}, "must be a number above 0, not nan"),
        ({"checks": [*ACCEPTANCE["checks"], {"check": "prefix_cache", "factor": float("nan")}]}, "must be a number above 1, not nan"),
        ({"cheks": []}, 'unknown key "cheks"'),
        ({"checks": ACCEPTANCE["checks"], "floor_decode_tokens_per_s": 0}, "acceptance.floor_decode_tokens_per_s must be a number above 0"),
        ({"checks": ACCEPTANCE["checks"], "not_applicable": [{"check": "x"}]}, "'check' and 'reason'"),
        ({"checks": ACCEPTANCE["checks"], "not_applicable": {"check": "speed", "reason": "x"}}, "not_applicable must be a list"),
        (
            {"checks": ACCEPTANCE["checks"], "not_applicable": [*NO_SPEED, {"check": "card_us", "reason": "x"}]},
            'acceptance.not_applicable[1]: unknown check "card_us"; did you mean "card_use"? Known: ',
        ),
        (
            {"checks": ACCEPTANCE["checks"], "not_applicable": [{"check": "speed", "reason": "x", "mesured": "y"}]},
            'acceptance.not_applicable[0]: unknown key "mesured"; did you mean "measured"? Known: check, id, measured, reason',
        ),
        (
            {"checks": [*ACCEPTANCE["checks"], {"check": "errors", "skip": ["bad_key", "to_long"]}]},
            '(errors): unknown bad request in \'skip\' "to_long"; did you mean "too_long"? Known: bad_json, bad_key, too_long',
        ),
        ({"checks": [{"check": "quality", "prompt": "x", "max_tokens": "many"}]}, "'max_tokens' must be a whole number"),
    ],
)
def test_a_bad_acceptance_block_is_named(data, message):
    with pytest.raises(LLMError) as caught:
        _verify.read_acceptance(data)
    assert message in str(caught.value)


def test_the_shipped_recipes_are_valid(shipped):
    for recipe in shipped["models"].values():
        _verify.read_acceptance(recipe["acceptance"])
    demo = shipped["models"]["smollm2-135m"]["acceptance"]
    margins = [check["margin_nats"] for check in demo["checks"] if check["check"] in ("exact", "nonce_recall")]
    assert len(margins) >= 6
    assert min(margins) >= 2.0


@pytest.mark.parametrize(
    "text, word, found",
    [
        ("The capital is Tokyo.", "tokyo", True),
        ("Tokyoite", "Tokyo", False),
        ("code 14183629", "418362", False),
        ("code 418362。", "418362", True),
        ("首都是北京市", "北京", True),
        ("", "x", False),
    ],
)
def test_words_are_found_whole(text, word, found):
    assert _verify.contains(text, word) is found


def with_checks(*more):
    return changed(checks=[*ACCEPTANCE["checks"], *more])


class Phrases(Behaviour):
    """Right answers in other words than its siblings."""

    def asked(self, play):
        found = re.search("capital of ([A-Z][a-z]+)", play.question)
        if found and found.group(1) in scripted.CAPITALS:
            play.say("Surely " + scripted.CAPITALS[found.group(1)])


def prove_fleet(behaviours, acceptance):
    with contextlib.ExitStack() as stack:
        zoos = [stack.enter_context(Zoo(behaviour)) for behaviour in behaviours]
        endpoints = [Endpoint("r{0}".format(index), zoo.url) for index, zoo in enumerate(zoos)]
        return _verify.prove_all(endpoints, "zoo", _verify.read_acceptance(acceptance), LIMITS)


QUESTIONS = {
    "floor_decode_tokens_per_s": 5,
    "ttft_limit_s": 1.0,
    "checks": [
        {"check": "exact", "id": country, "prompt": "What is the capital of {0}?".format(country), "expect": [capital]}
        for country, capital in scripted.CAPITALS.items()
    ]
    + [{"check": "quality", "id": "bread", "prompt": "Tell me about bread."}, {"check": "agreement"}],
}


def test_a_replica_that_answers_otherwise_than_the_others_is_partial():
    proofs = prove_fleet([Behaviour(), Phrases(), Behaviour()], QUESTIONS)
    assert [proof.verdict for proof in proofs] == ["ok", "partial", "ok"]
    assert proofs[1].evidence[0].startswith("agreement: 0 of 6 answers equal to those of the other replicas; Japan: ")
    assert proofs[1].evidence[0].endswith("the least share is 80%")
    assert [check["figure"] for check in proofs[0].checks if check["check"] == "agreement"] == [100.0]


def test_one_replica_alone_has_nobody_to_agree_with_and_a_bad_one_is_no_control():
    assert [proof.verdict for proof in prove_fleet([Phrases()], QUESTIONS)] == ["ok"]
    silly = Says("Paris")
    proofs = prove_fleet([silly, Phrases(), Phrases()], QUESTIONS)
    assert [proof.verdict for proof in proofs] == ["garbage", "ok", "ok"]


def listed(**entry):
    return Models(lambda body: {**body, "data": [{**body["data"][0], **entry}]})


def test_a_model_that_is_listed_under_another_of_its_names_is_served():
    """As llama.cpp lists one: by the first of its names, with all of them beside it."""
    with Zoo(listed(id="a-first", aliases=["a-first", "zoo"])) as zoo:
        proof = prove(zoo, QUESTIONS, model="zoo")
    assert proof.verdict == "ok", proof.evidence


@pytest.mark.parametrize(
    "entry", [{"id": "a-first", "aliases": ["b"]}, {"id": "a-first", "aliases": "zoo"}, {"id": "a-first", "aliases": None}]
)
def test_a_model_that_is_listed_under_no_name_is_not(entry):
    with Zoo(listed(**entry)) as zoo:
        proof = prove(zoo, QUESTIONS, model="zoo")
    assert proof.verdict == "not_loaded" and "the served models are a-first" in proof.evidence[0]


def test_capitals_dots_and_spaces_are_no_disagreement():
    assert _verify._plain("  **Tokyo**.\n") == _verify._plain("tokyo") != _verify._plain("Kyoto")


def test_slow_with_idle_cards_is_stalled_and_with_busy_cards_slow(monkeypatch):
    for percent, verdict in ((0.4, "stalled"), (4.9, "stalled"), (5.1, "slow"), (LLMError("gone"), "slow")):
        monkeypatch.setattr(_card_use, "sampler", lambda *_args, value=percent: Meter(value))
        with Zoo(options=("--decode-tokens-per-s", "3")) as zoo:
            proof = prove(zoo, changed(floor_decode_tokens_per_s=50), model="zoo", endpoint={"container": "x", "platform": "cpu"})
        assert proof.verdict == verdict, (percent, proof.evidence)


def test_a_busy_engine_is_saturated_and_a_hung_one_stalled():
    with Zoo(Instead(HANG)) as zoo:
        hung = prove(zoo, model="zoo")
        assert hung.verdict == "stalled"
        assert "0 running, 0 waiting, and its counters stand still" in hung.evidence[0]
    with Zoo() as zoo:
        zoo.occupy(60, 4)
        busy = prove(zoo, model="zoo")
    assert busy.verdict == "saturated"
    assert "it works for them: busy, not hung" in busy.evidence[0]


class Counts(Behaviour):
    """Healthy; counts who is cancelled, and who asks in a crowd."""

    def __init__(self):
        super().__init__()
        self.cancels, self.lockers = 0, set()

    def asked(self, play):
        if "long story" in play.question:
            # Long enough to be still at work when it is cancelled.
            play.body["standin"] = {"tokens": 4000}
        if "opens locker" in play.question:
            self.lockers.add(play.question.split()[1])

    def cancelled(self, play):
        self.cancels += "long story" in play.question
        return True


@pytest.mark.parametrize(("planned", "item", "streams"), [(3, {}, 3), (3, {"streams": 2}, 2)])
def test_as_many_are_cancelled_and_ask_at_once_as_the_plan_says_unless_the_recipe_does(planned, item, streams):
    checks = [*ACCEPTANCE["checks"][:1], dict(item, check="cancel"), dict(item, check="concurrency", seconds=0.3)]
    counts = Counts()
    with Zoo(counts) as zoo:
        proof = prove(zoo, changed(checks=checks, not_applicable=NO_SPEED), model="zoo", max_num_seqs=planned)
    assert proof.ok, proof.evidence
    assert (counts.cancels, len(counts.lockers)) == (streams, streams)


def test_a_crowd_of_unknown_size_is_not_ok():
    with Zoo() as zoo:
        proof = prove(zoo, changed(checks=[*ACCEPTANCE["checks"][:1], {"check": "concurrency"}], not_applicable=NO_SPEED), model="zoo")
    assert proof.verdict == "unknown" and "option max_num_seqs" in proof.evidence[0]


def test_what_a_recipe_asks_for_at_length_has_its_own_time():
    items = [
        ({"check": "concurrency", "streams": 4}, 60),
        ({"check": "concurrency", "streams": 4, "seconds": 5}, 5),
        ({"check": "long_context"}, 2400),
        ({"check": "long_context", "timeout_s": 10, "depths": [0.5]}, 10),
        ({"check": "cache_hit", "timeout_s": 2, "times": 4}, 8),
        ({"check": "exact", "prompt": "x", "expect": ["y"]}, 0),
    ]
    assert [_verify._extra_seconds(item) for item, _seconds in items] == [seconds for _item, seconds in items]


@pytest.mark.parametrize(
    "item, message",
    [
        ({"check": "concurrency", "streams": -1}, "'streams' must be a whole number above 0"),
        ({"check": "concurrency", "streams": 4, "seconds": 0}, "'seconds' must be a number above 0"),
        ({"check": "long_context", "depths": [0.5, 2]}, "'depths' must be 1 to 10 numbers from 0 to 1"),
        ({"check": "long_context", "depths": 0.5}, "'depths' must be a list"),
        ({"check": "cache_hit", "times": 11}, "'times' must be 10 or less"),
        ({"check": "multi_turn", "language": "fr"}, "'language' must be en or zh"),
        ({"check": "quality", "prompt": "x", "form": "poem"}, "'form' must be one of prose, code, json, table"),
        ({"check": "tool_loop", "round": 2}, 'unknown key "round"'),
        ({"check": "exact_set", "id": "x"}, "exact_set has neither"),
    ],
)
def test_bad_options_of_the_newer_checks_are_named(item, message):
    with pytest.raises(LLMError) as caught:
        _verify.read_acceptance({"checks": [*ACCEPTANCE["checks"], item]})
    assert message in str(caught.value)


def test_what_the_demo_recipe_excludes_runs_here_on_a_healthy_engine(shipped):
    excluded = {item["check"] for item in shipped["models"]["smollm2-135m"]["acceptance"]["not_applicable"]}
    plain = next(animal for animal in ODDITIES if animal.name == "plain")
    thinking = next(animal for animal in ODDITIES if animal.name == "reasoning")
    asked = {item["check"] for animal in (plain, thinking) for item in animal.acceptance()["checks"]}
    assert excluded <= asked | {"exact"}, "the zoo's own tests prove each of these against a healthy engine"


def test_the_log_of_a_dead_replica_shows_no_key(monkeypatch, tmp_path):
    key = tmp_path / "engine.key"
    key.write_text("sk-of-this-fleet-0123456789\n", encoding="utf-8")
    key.chmod(0o600)
    log = "args: --api-key sk-of-this-fleet-0123456789\nAuthorization: Bearer abcdefgh12345678\nfatal: illegal memory access\n"
    state = {"running": False, "exit_code": 139, "log_tail": log}
    monkeypatch.setattr(_docker, "container_state", lambda _name: state)
    with Engine("dies_at_first_request", key="sk-of-this-fleet-0123456789") as engine:
        proof = prove(engine, api_key_file=str(key), endpoint={"container": "ironserve-c0", "platform": "cpu", "cards": ("cpu:0",)})
    assert proof.verdict == "dead"
    assert "exited with code 139" in str(proof.evidence) and "illegal memory access" in str(proof.evidence)
    assert "0123456789" not in str(proof.as_dict()) and "abcdefgh12345678" not in str(proof.as_dict())


@pytest.mark.parametrize(
    ("count", "text", "item", "trouble"),
    [
        (128, "x" * 320, {"language": "en"}, ""),
        (128, "x" * 319, {"language": "en"}, "usage counts 128 tokens, yet only 319 characters of text came"),
        # Only prose in English is so sure.
        (128, "x" * 100, {"language": "zh"}, ""),
        (128, "x" * 100, {}, ""),
        (128, "x" * 100, {"language": "en", "form": "code"}, ""),
        (15, "x", {"language": "en"}, ""),
        (None, "x", {"language": "en"}, ""),
    ],
)
def test_text_that_got_lost_is_seen_by_usage(count, text, item, trouble):
    found = _verify._lost_text(item, types.SimpleNamespace(completion_tokens=count, content=text[:-7], reasoning=text[-7:]))
    assert found.startswith(trouble) and bool(found) == bool(trouble)


def test_questions_over_one_connection_are_sent_over_one():
    with Zoo() as zoo:
        proof = prove(zoo, changed(checks=[*ACCEPTANCE["checks"][:1], {"check": "kept_connection"}], not_applicable=NO_SPEED), model="zoo")
        assert proof.ok and any("3 questions over one connection" in line for line in proof.evidence), proof.evidence


def exact(prompt, expect, language=""):
    return {"check": "exact", "id": prompt, "prompt": prompt, "expect": expect, "language": language}


@pytest.mark.parametrize(
    ("questions", "answer", "canned"),
    [
        # Two facts of one language in one answer.
        ([exact("a", ["Tokyo"]), exact("b", ["Athens"])], "Tokyo, Athens", ["a", "b"]),
        # Spaces, case and a dot at the end make no other answer of it; the play below gives them to every second question.
        ([exact("a", ["Tokyo"], "en"), exact("b", ["Athens"], "en"), exact("c", ["42"], "en")], "Tokyo  Athens 42.", ["a", "b", "c"]),
        # Words of three kinds over two languages.
        ([exact("a", ["Tokyo"], "en"), exact("b", ["巴黎"], "zh"), exact("c", ["北京"], "zh")], "Tokyo 巴黎 北京", ["a", "b", "c"]),
        # One fact in two languages is right in both.
        ([exact("a", ["Tokyo"], "en"), exact("b", ["东京"], "zh")], "Tokyo (东京)", []),
        # Two questions with one right answer.
        ([exact("a", ["4"]), exact("b", ["4"])], "4", []),
        ([exact("a", ["Paris"]), exact("b", ["Paris", "France"])], "Paris, France", []),
        ([exact("a", ["东京"]), exact("b", ["东京都"])], "东京都", []),
        # The same question twice, each time about another part of its answer.
        ([exact("a", ["Paris"]), dict(exact("a", ["France"]), id="b")], "Paris, France", []),
    ],
)
def test_one_answer_to_questions_about_different_things_is_canned(questions, answer, canned):
    acceptance = {"checks": questions, "not_applicable": NO_SPEED, "exact_pass_share": 0.01}
    turns = iter(range(100))
    with Zoo(Says(lambda _play: answer if next(turns) % 2 else answer.upper() + " ")) as zoo:
        proof = prove(zoo, acceptance, model="zoo")
    assert proof.verdict == ("garbage" if canned else "ok"), proof.evidence
    failed = [check for check in proof.checks if check["status"] == "fail"]
    assert [check["id"] for check in failed] == canned
    assert all("one answer to different questions, as to" in check["detail"] for check in failed)


def test_wrong_answers_that_are_equal_and_forgiven_stay_forgiven():
    questions = [exact("a", ["Tokyo"]), exact("b", ["Athens"]), exact("c", ["Paris"])]
    with Zoo(Says(lambda play: "Paris" if play.question == "c" else "I do not know")) as zoo:
        proof = prove(zoo, {"checks": questions, "not_applicable": NO_SPEED, "exact_pass_share": 0.3}, model="zoo")
    assert proof.ok, proof.evidence
    assert [check["status"] for check in proof.checks if check["check"] == "exact"] == ["warn", "warn", "pass"]


@pytest.mark.parametrize(
    ("at", "verdict", "said"),
    [
        # Seconds before the cut at which pieces came; the request was sent 20 s before it. The floor is 5 tokens/s, the first token has 0.5 s.
        (
            [19.8 - 0.1 * n for n in range(190)],
            "unknown",
            "190 pieces of text came, 9.5 a second, and the floor of 5 tokens/s is not broken",
        ),
        ([19.8 - 0.5 * n for n in range(39)], "slow", "1.9 tokens/s (39 tokens in 20.0 s), the floor is 5 tokens/s"),
        ([19.8 - 1.0 * n for n in range(20)], "slow", "0.96 tokens/s (20 tokens in 20.0 s), the floor is 5 tokens/s"),
        ([12.0], "slow", "0.05 tokens/s (1 tokens in 20.0 s), the floor is 5 tokens/s"),
        ([8.0 - 0.1 * n for n in range(79)], "slow", "the first after 12.00 s, the limit is 0.5 s"),
        ([19.8 - 0.01 * n for n in range(60)], "stalled", "it stopped after 60 tokens, 19.2 s before"),
    ],
)
def test_what_a_cut_request_is_called_and_why_are_one_truth(monkeypatch, at, verdict, said):
    end = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: end)
    verifier = _verify.Verifier(Endpoint("r0", "http://127.0.0.1:1"), "m", _verify.read_acceptance(ACCEPTANCE), LIMITS)
    transcript = _sse.Transcript(end - 20.0)
    for before in at:
        transcript.feed(end - before, b'data: {"choices": [{"delta": {"content": "a "}}]}\n\n')
    cut = _http.HttpError(_http.TOTAL_TIMEOUT, "http://127.0.0.1:1", "the answer was not complete after 20 s")
    stop = verifier._cut_stop(transcript, cut, 512)
    assert (stop.sign, said in stop.detail) == (verdict, True), stop.detail


def test_an_answer_that_was_cut_while_it_came_fast_enough_is_not_called_slow():
    bread = [{"check": "quality", "id": "bread", "language": "en", "prompt": "Tell me about bread.", "max_tokens": 128}]
    acceptance = changed(ttft_limit_s=10, checks=ACCEPTANCE["checks"][:1] + bread)
    with Zoo(Behaviour(), ("--decode-tokens-per-s", "40")) as zoo:
        proof = prove(zoo, acceptance, _verify.Limits(first_token_s=10, request_s=1.5), model="zoo")
    assert proof.verdict == "unknown", proof.evidence
    assert re.search("quality bread: .*not complete after 1.5 s; [0-9]+ pieces .*raise request_s", proof.evidence[0])
