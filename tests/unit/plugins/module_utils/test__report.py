# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import acceptance

from ansible_collections.ironserve.llm.plugins.module_utils import _baseline, _report
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

DATE = acceptance.DATE


def build(results=None, fleet=None, **more):
    return _report.build(acceptance.results() if results is None else results, acceptance.fleet() if fleet is None else fleet, DATE, **more)


def garbage(results, index=2, detail='says "zzz", not "Tokyo"'):
    results = copy.deepcopy(results)
    results[index] = acceptance.fail(
        results[index], "garbage", ["exact capital_japan: " + detail], "Verify the weights", exact_capital_japan=detail
    )
    return results


def comparison(status, **more):
    return dict(_baseline.answer(status, "said so"), **more)


# ---- text and figures


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (211.4, "ms", "211 ms"),
        (49.96, "tokens/s", "50.0 tokens/s"),
        (0.0642, "tokens/s", "0.0642 tokens/s"),
        (9.996, "", "10.0"),
        (999.7, "", "1,000"),
        (1139.6, "", "1,140"),
        (41207, "tokens", "41,207 tokens"),
        (0.0, "%", "0 %"),
        (-3.14159, "", "-3.14"),
        (None, "ms", "–"),
        (float("nan"), "ms", "–"),
        (float("inf"), "ms", "–"),
        (True, "", "–"),
        ("12", "", "–"),
        (10**400, "tokens", "–"),
    ],
)
def test_a_figure_has_the_digits_that_count_and_its_unit(value, unit, text):
    assert _report.number(value, unit) == text


def test_an_axis_needs_no_zeros_at_the_end():
    assert _report.number(2.5, trim=True) == "2.5" and _report.number(40.0, trim=True) == "40" and _report.number(100.0, trim=True) == "100"


def test_a_date_is_one_that_people_read():
    assert _report.moment("2026-03-01T10:00:59+00:00") == "2026-03-01 10:00 UTC"
    assert _report.moment("2026-03-01T18:00:00+08:00") == "2026-03-01 18:00 UTC+08:00"
    assert _report.moment("<b>") == "<b>"


def test_what_is_invisible_is_spelled_out_and_what_is_written_stays():
    assert _report.clean("a\x00b\x1bc\u202ed\ud800e\ufffff\u2028g") == "a\\u0000b\\u001bc\\u202ed\\ud800e\\ufffff\\u2028g"
    assert _report.clean("巴黎 Ελλάδα العربية 👩‍💻\nnew line") == "巴黎 Ελλάδα العربية 👩‍💻\nnew line"


def test_an_endless_answer_is_cut_and_says_so():
    text = _report.clean("哈" * 5000)
    assert len(text) < 4100 and text.endswith("… (1000 more characters)")


# ---- what ran where


def test_a_row_of_the_fleet_tells_what_runs_and_no_secret():
    row = acceptance.fleet(1)[0]
    replica = row["replicas"][0]
    assert row["driver"] == "6.3.8" and row["runtime"] == "DTK 25.04" and row["enhancements"] == ["mtp"]
    assert replica["name"] == "node01-c0" and replica["cards"] == ["0000:04:00.0"] and replica["weights_id"] == "5e" * 32
    assert replica["command"][-2:] == ["--api-key", "(not shown)"]
    # What each card gets for itself makes no other release of it.
    assert replica["environment"] == {"HF_TOKEN": "(not shown)", "VLLM_USE_V1": "1"}
    assert "never" not in json.dumps(row)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "sk-1", "--port", "1"], ["--api-key", "(not shown)", "--port", "1"]),
        (["--api-key=sk-1"], ["--api-key=(not shown)"]),
        (["--hf_token", "x"], ["--hf_token", "(not shown)"]),
        (["--api-key-file", "/run/key"], ["--api-key-file", "/run/key"]),
        (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
        (["--tokenizer", "x", "--tool-call-parser", "y"], ["--tokenizer", "x", "--tool-call-parser", "y"]),
        (["--enable-auth", "--port", "1"], ["--enable-auth", "--port", "1"]),
    ],
)
def test_arguments_that_name_a_secret_lose_its_value(words, shown):
    assert _report.hide_secrets(words) == shown


def test_what_really_runs_beats_what_was_planned():
    left = {
        "plan": acceptance.plan(1),
        "image_id": "sha256:planned",
        "running": [{"name": "ironserve-c1", "image_id": "sha256:runs", "weights_id": "mounted"}],
    }
    replicas = _report.fleet_row("node01", {}, left, {})["replicas"]
    assert [item["image_id"] for item in replicas[:2]] == ["sha256:planned", "sha256:runs"]
    assert replicas[1]["weights_id"] == "mounted"


def test_the_fingerprint_has_everything_a_figure_depends_on():
    parts = _report.fingerprint(acceptance.fleet(), {"id": "x", "load": "closed"})
    assert parts["card"] == "8 x K100-AI gfx928 65520 MiB, in 8 replicas"
    assert parts["model"] == "qwen3.6-35b-a3b w8a8" and parts["image"] == "sha256:" + "cd" * 32 and parts["weights"] == "5e" * 32
    assert parts["arguments"].count("--max-model-len 131072") == 1 and "VLLM_USE_V1=1" in parts["arguments"]
    assert parts["protocol"] == '{"load": "closed"}' and _baseline.untold(parts) == []


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("driver", lambda fleet: fleet[1].update(driver="")),
        ("driver", lambda fleet: fleet[1].update(driver="unknown")),
        ("runtime", lambda fleet: fleet[0].update(runtime="")),
        ("card", lambda fleet: fleet[0]["cards"].pop(0)),
        ("card", lambda fleet: fleet[0]["cards"][0].update(memory_total_mib=None)),
        ("weights", lambda fleet: fleet[0]["replicas"][0].update(weights_id="")),
        # A tag alone does not tell one image from another.
        ("image", lambda fleet: fleet[0]["replicas"][0].update(image_id="", image="vllm:latest")),
    ],
)
def test_what_one_host_cannot_tell_is_untold_for_all(key, change):
    fleet = acceptance.fleet()
    change(fleet)
    assert _baseline.untold(_report.fingerprint(fleet, {})) == [key]


def test_a_host_with_another_driver_makes_another_fingerprint():
    fleet = acceptance.fleet()
    fleet[1]["driver"] = "6.2.0"
    assert _report.fingerprint(fleet)["driver"] == "6.2.0, 6.3.8"


# ---- the verdict


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda rows, fleet: None, _report.OK),
        (lambda rows, fleet: rows[1].update(verdict="slow"), _report.FAILED),
        (lambda rows, fleet: rows[1].update(verdict="a new word"), _report.FAILED),
        (lambda rows, fleet: rows[1].update(verdict="unknown"), _report.COULD_NOT_TELL),
        (lambda rows, fleet: rows[1].pop("verdict"), _report.COULD_NOT_TELL),
        (lambda rows, fleet: rows.pop(3), _report.COULD_NOT_TELL),
        (lambda rows, fleet: rows.clear(), _report.COULD_NOT_TELL),
        (lambda rows, fleet: fleet[0].update(error="unreachable"), _report.COULD_NOT_TELL),
        (lambda rows, fleet: (rows[1].update(verdict="dead"), rows[2].update(verdict="unknown")), _report.FAILED),
    ],
)
def test_status_says_it_all(change, status):
    rows, fleet = acceptance.results(), acceptance.fleet()
    change(rows, fleet)
    report = build(rows, fleet)
    assert (report["status"], report["verdict"]) == (status, _report.WORDS[status])
    assert report["ok"] is (status == _report.OK)
    assert bool(_report.troubles(report)) is (status != _report.OK)


def test_nothing_asked_and_nothing_planned_is_no_good_news():
    report = build([], [])
    assert report["status"] == _report.COULD_NOT_TELL and "no endpoint was asked" in "\n".join(report["lines"])


@pytest.mark.parametrize(("status", "code"), [("same", 0), ("better", 0), ("none", 0), ("worse", 1), ("unknown", 2), ("refused", 2)])
def test_the_baseline_counts_as_much_as_the_proof(status, code):
    assert build(benchmark=acceptance.benchmark(), comparison=comparison(status))["status"] == code


def test_figures_that_may_not_be_published_could_not_be_told():
    data = acceptance.benchmark()
    data["ok"] = False
    data["runs"][3].update(publishable=False, refused=["the client's own delay was 9 ms"])
    report = build(benchmark=data)
    assert report["status"] == _report.COULD_NOT_TELL
    assert "  gateway, 1 at a time: the client's own delay was 9 ms" in report["lines"]
    data["runs"][3]["tool"] = "vllm"
    assert "  gateway (vllm), 1 at a time: the client's own delay was 9 ms" in build(benchmark=data)["lines"]


def test_quality_vetoes_speed():
    report = build(garbage(acceptance.results()), benchmark=acceptance.benchmark(), comparison=comparison("better"))
    assert report["status"] == _report.FAILED
    assert report["benchmark"] is None and report["baseline"] is None and "garbage is often the fastest" in report["discarded"]
    told = json.dumps(report) + _report.markdown(report) + _report.junit(report)
    assert "output_throughput" not in told and "Generated" not in told
    assert report["fingerprint"]["protocol"] == "none"


@pytest.mark.parametrize(
    ("score", "verdict", "status"),
    [
        (acceptance.score(18, 2), "ok", _report.OK),
        # 85 % are just enough: 90 % recorded, 5 % may be lost.
        (acceptance.score(17, 3), "ok", _report.OK),
        (acceptance.score(16, 4), "inaccurate", _report.FAILED),
        (acceptance.score(0, 4, recorded=None), "not_judged", _report.OK),
        (acceptance.score(19, 0, unanswered=1), "unanswered", _report.FAILED),
        (acceptance.score(19, 0, recorded=None, unanswered=1), "unanswered", _report.FAILED),
        (dict(acceptance.score(18, 2), ok=None), "unknown", _report.COULD_NOT_TELL),
        (dict(acceptance.score(18, 2, recorded=None), score=None), "unknown", _report.COULD_NOT_TELL),
        (dict(acceptance.score(16, 4), ok=True), "unknown", _report.COULD_NOT_TELL),
    ],
)
def test_a_score_counts_as_much_as_the_proof(score, verdict, status):
    report = build(accuracy=[score])
    assert _report.score_verdict(score) == verdict
    assert (report["status"], report["verdict"], report["ok"]) == (status, _report.WORDS[status], status == _report.OK)
    assert bool(_report.troubles(report)) is (status != _report.OK) and report["accuracy"] == [score]
    root = ET.fromstring(_report.junit(report))
    assert (root.get("failures"), root.get("errors")) == (str(int(status == 1)), str(int(status == 2)))
    # No figure of a model that lost some of its mind.
    measured = build(accuracy=[score], benchmark=acceptance.benchmark(), comparison=comparison("better"))
    assert (measured["benchmark"] is None) is (measured["baseline"] is None) is bool(measured["discarded"]) is (status != _report.OK)


def test_a_score_that_was_asked_for_and_not_found_could_not_be_told():
    report = build(unscored="the set is not there", benchmark=acceptance.benchmark())
    assert (report["status"], report["ok"], report["benchmark"]) == (_report.COULD_NOT_TELL, False, None)
    assert report["lines"][0].endswith("real inference; accuracy could not be told; the figures of this run are thrown away")
    assert report["lines"][1:3] == ["accuracy: unknown", "  the set is not there"]
    case = ET.fromstring(_report.junit(report)).find(".//testcase[@name='accuracy was scored']/error")
    assert case.get("message") == "the set is not there" and "the set is not there" in _report.markdown(report)
    # A good score proves no endpoint.
    assert build([], [], accuracy=[acceptance.score(9, 0)])["status"] == _report.COULD_NOT_TELL
    assert build(garbage(acceptance.results()), accuracy=[acceptance.score(9, 0)])["status"] == _report.FAILED


def test_a_low_score_is_told_with_record_tolerance_and_what_was_wrong():
    report = build(accuracy=[acceptance.score(13, 7)])
    why = "13 of 20 right; 65.0 % right, 90.0 % recorded, 85.0 % allowed"
    wrong = "What is 2 + 2? → 5, not 4"
    assert report["lines"][0] == "acceptance: REFUSED. 9 of 9 endpoints proved real inference; not as accurate as recorded"
    assert report["lines"][1:3] == ["accuracy of gateway: inaccurate", "  " + why]
    assert report["lines"][3:9] == ["  " + wrong] * 5 + ["  and 2 more, all are in the JSON form"]
    told = _report.markdown(report)
    assert "| gateway | inaccurate | 65.0 % | 13 | 20 | 90.0 % | 5.0 % |" in told and told.count(wrong) == 5 + 7
    suite = ET.fromstring(_report.junit(report)).find("testsuite[@name='accuracy of gateway']")
    values = {item.get("name"): item.get("value") for item in suite.find("properties")}
    assert values == {"score": "0.65", "recorded": "0.9", "tolerance": "0.05", "right": "13", "count": "20"}
    failure = suite.find("testcase/failure")
    assert failure.get("message") == why and failure.text.splitlines() == [wrong] * 7


def test_a_good_score_and_one_that_is_only_told_are_in_every_form():
    report = build(accuracy=[acceptance.score(19, 1), acceptance.score(1, 1, recorded=None, name="gateway b")])
    assert report["lines"] == [
        "acceptance: accepted. 9 of 9 endpoints proved real inference",
        "accuracy of gateway: 19 of 20 right; 95.0 % right, 90.0 % recorded, 85.0 % allowed",
        "accuracy of gateway b: 1 of 2 right; there is no recorded score to hold it against",
    ]
    assert build(accuracy=[acceptance.score(19, 1)])["lines"][0].endswith("real inference; as accurate as recorded")
    assert "| gateway b | not judged | 50.0 % | 1 | 2 | – | – |" in _report.markdown(report)
    root = ET.fromstring(_report.junit(report))
    for name, skipped in (("accuracy of gateway", "0"), ("accuracy of gateway b", "1")):
        suite = root.find("testsuite[@name='{0}']".format(name))
        assert (suite.get("tests"), suite.get("skipped")) == ("1", skipped) and suite.find("system-out").text.endswith("→ 5, not 4")


def test_a_long_list_of_wrong_answers_says_what_it_leaves_out():
    report = build(accuracy=[acceptance.score(0, 60)])
    assert "- and 10 more, all are in the JSON form\n" in _report.markdown(report) and len(report["accuracy"][0]["wrong"]) == 60
    item = {"question": "a\n" * 80, "expected": "4", "found": None}
    assert _report.wrong_line(item) == "a " * 50 + "… (59 more characters) → no number, not 4"


def test_equal_troubles_are_told_once_with_all_who_have_them():
    rows = acceptance.results()
    for index in (1, 2, 3):
        rows = garbage(rows, index)
    (trouble,) = _report.troubles(build(rows))
    assert trouble["who"] == "node01-c[0-2]" and trouble["verdict"] == "garbage" and trouble["next_step"] == "Verify the weights"


def test_lines_begin_with_the_verdict_and_give_the_next_step():
    lines = build(garbage(acceptance.results()))["lines"]
    assert lines[0] == "acceptance: REFUSED. 8 of 9 endpoints proved real inference"
    assert lines[1:] == ["node01-c1: garbage", '  exact capital_japan: says "zzz", not "Tokyo"', "  next: Verify the weights"]
    assert build()["lines"] == ["acceptance: accepted. 9 of 9 endpoints proved real inference"]


def test_the_report_reads_as_its_first_version_did():
    report = build()
    assert report["ok"] is True and [row["name"] for row in report["results"]][:2] == ["gateway", "node01-c0"]
    assert report["format"] == 1 and json.loads(json.dumps(report)) == report


def test_the_report_holds_no_single_requests():
    data = dict(acceptance.benchmark(1, 1, levels=(1, 2)), changed=True, invocation={"x": 1})
    data["runs"][0]["requests"] = [{"at_s": 0.0, "ok": True}]
    kept = build(benchmark=data)["benchmark"]
    assert "invocation" not in kept and not any("requests" in run for run in kept["runs"]) and kept["runs"][0]["completed"] == 64


# ---- figures of a benchmark


def test_a_benchmark_of_another_version_is_refused():
    with pytest.raises(LLMError, match="version 2, this report reads 1"):
        build(benchmark=dict(acceptance.benchmark(), version=2))
    with pytest.raises(LLMError, match="no runs"):
        build(benchmark={key: value for key, value in acceptance.benchmark().items() if key != "runs"})


def test_compared_figures_have_no_host_in_their_name_and_one_value_per_repeat():
    figures = {figure.name: figure for figure in _report.figures_of(acceptance.benchmark())}
    assert len(figures) == 2 * 7 * 3 and not any("node" in name for name in figures)
    figure = figures["gateway, 8 at a time: generated tokens"]
    assert (figure.unit, figure.better, len(figure.samples)) == ("tokens/s", "higher", 5)
    assert figures["all replicas, 1 at a time: median time to the first token"].better == "lower"


def test_single_replicas_are_one_figure_the_mean_of_all():
    def level(name, values):
        return {
            "endpoint": name,
            "concurrency": 2,
            "request_rate": None,
            "publishable": True,
            "figures": {"median_tpot_ms": {"values": values}},
        }

    data = {
        "endpoints": [{"name": "a-c0", "kind": "replica"}, {"name": "b-c0", "kind": "replica"}],
        "summary": {"levels": [level("a-c0", [10, 12, 14, 16]), level("b-c0", [20, 22, 24])]},
    }
    (figure,) = _report.figures_of(data)
    assert figure.name == "one replica, 2 at a time: median time per token" and figure.samples == (15, 17, 19)
    data["summary"]["levels"][1]["publishable"] = False
    assert _report.figures_of(data)[0].samples == (10, 12, 14, 16)


def test_levels_of_the_protocol_without_a_row_were_left_out():
    data = acceptance.benchmark()
    assert data["protocol"]["load"] == "closed" and _report.left_out_of(data) == frozenset()
    top = max(data["protocol"]["levels"])
    kept = [row for row in data["summary"]["levels"] if row["concurrency"] != top or row["endpoint"] == "gateway"]
    left = _report.left_out_of(dict(data, summary=dict(data["summary"], levels=kept)))
    names = {figure.name for figure in _report.figures_of(data)}
    assert left < names and left == {name for name in names if ", {0} at a time:".format(top) in name and not name.startswith("gateway")}
    # Of rates the same; another client has no sweep.
    rows = [{"endpoint": "gateway", "tool": tool, "request_rate": rate} for tool, rate in (("ironserve", 0.5), ("vllm", 2.0))]
    data = {"endpoints": data["endpoints"], "protocol": {"load": "open", "levels": [0.5, 2.0]}, "summary": {"levels": rows}}
    assert {name.partition(":")[0] for name in _report.left_out_of(data)} == {"gateway, 2 requests/s"}


def test_another_tool_and_open_load_are_other_figures():
    level = {
        "endpoint": "gateway",
        "tool": "vllm",
        "request_rate": 2.5,
        "publishable": True,
        "figures": {"median_tpot_ms": {"values": [1, 2, 3]}},
    }
    data = {"endpoints": [{"name": "gateway", "kind": "gateway"}], "summary": {"levels": [level]}}
    assert _report.figures_of(data)[0].name == "gateway, 2.5 requests/s (vllm): median time per token"


# ---- JUnit


def test_what_was_left_out_is_shown_and_skipped():
    figure = dict(
        _baseline.compare_figure([], _baseline.Figure("at 8", "ms", "lower", ()), _baseline.Limits()), verdict="left_out", detail="stopped"
    )
    report = build(benchmark=acceptance.benchmark(), comparison=comparison("same", figures=[figure]))
    case = ET.fromstring(_report.junit(report)).find(".//testcase[@name='at 8']")
    assert case.find("skipped") is not None and "| left out |" in _report.markdown(report) and report["status"] == _report.OK


def test_junit_has_a_case_per_check_and_counts_that_agree():
    rows = garbage(acceptance.results())
    rows[3].update(verdict="unknown", checks=rows[3]["checks"][:1])
    report = build(rows, benchmark=None, comparison=None)
    root = ET.fromstring(_report.junit(report))
    suites = {suite.get("name"): suite for suite in root}
    bad = suites["node01-c1"]
    assert (bad.get("tests"), bad.get("failures"), bad.get("errors"), bad.get("skipped")) == ("16", "2", "0", "1")
    assert suites["node01-c2"].get("errors") == "1"
    (failure,) = [case for case in bad if case.get("name") == "exact capital_japan"]
    assert failure.find("failure").get("message") == 'says "zzz", not "Tokyo"'
    assert bad.find(".//property[@name='driver']").get("value") == "6.3.8"
    for label, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"), ("tests", "testcase")):
        assert int(root.get(label)) == len(root.findall(".//" + tag)) == sum(int(suite.get(label)) for suite in root)


def test_junit_is_green_when_and_only_when_the_status_is():
    for report in (
        build(),
        build(garbage(acceptance.results())),
        build(acceptance.results()[:-1]),
        build(benchmark=acceptance.benchmark(), comparison=comparison("worse")),
        build(benchmark=acceptance.benchmark(), comparison=comparison("refused")),
        build(benchmark=dict(acceptance.benchmark(), ok=False)),
        build([], []),
    ):
        root = ET.fromstring(_report.junit(report))
        assert (root.get("failures") == root.get("errors") == "0") is (report["status"] == 0), report["lines"]
        assert (root.get("failures") != "0") is (report["status"] == 1), report["lines"]


# ---- hostile texts


ANY = st.text(st.characters(exclude_categories=[]), max_size=60)


@given(ANY)
def test_any_answer_makes_sound_xml_that_says_it(text):
    rows = garbage(acceptance.results(1, 1), 1, text)
    rows[1]["name"] = "node01-c0"
    root = ET.fromstring(_report.junit(build(rows, acceptance.fleet(1, 1))).encode("utf-8"))
    case = root.find(".//testcase[@name='exact capital_japan']/failure")
    assert case.get("message") == _report.clean(text).replace("\n", "\n")


@given(ANY)
def test_any_answer_stays_in_its_cell_of_a_markdown_table(text):
    cell = _report.markdown_text(text)
    assert "\n" not in cell and "<" not in cell and ">" not in cell.replace("&gt;", "")
    assert not re.search(r"(?<!\\)(?:\\\\)*[|`\[\]]", cell)
    # Nothing becomes a link or calls somebody.
    assert not re.search(r"\w://|@", cell)
    cell.encode("utf-8")


@pytest.mark.parametrize("text", acceptance.HOSTILE)
def test_markdown_of_a_hostile_answer_has_nothing_alive_in_it(text):
    report = build(
        garbage(acceptance.results(), 2, text), accuracy=[acceptance.score(1, 2, text=text), acceptance.score(1, 0, None, 1, text)]
    )
    told = _report.markdown(report)
    ET.fromstring(_report.junit(report).encode("utf-8"))
    assert "<script" not in told and "<img" not in told and "://attacker" not in told
    assert not re.search(r"(?<!\\)\]\(", told) and "@" not in told.replace("@sha256", "")
    # Each table still has as many cells in every row as in its head.
    width = 0
    for line in told.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line))
        if line.startswith("|---"):
            width = cells
        elif line.startswith("|") and width:
            assert cells == width, line
        elif not line.startswith("|"):
            width = 0


def test_markdown_tells_the_same_as_the_rest():
    told = _report.markdown(build(benchmark=acceptance.benchmark(), comparison=comparison("same"), release="a1"))
    assert told.startswith("# Acceptance: accepted\n")
    assert "| node01\\-c0" in told or "| node01-c0 | ok | 211 ms |" in told
    assert "## Speed" in told and "## Against the baseline" in told and "| driver | 6.3.8 |" in told
    assert "vision | not applicable | the recipe serves text only |" in told
