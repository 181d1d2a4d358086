# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module as Ansible calls it: what it writes, what it records, what it refuses."""

from __future__ import annotations

import json
import os
import stat
import xml.etree.ElementTree as ET

import pytest
from samples import acceptance

from ansible_collections.ironserve.llm.plugins.module_utils import _report
from ansible_collections.ironserve.llm.plugins.modules import acceptance_report


def measured(**changes):
    """A small sweep."""
    return acceptance.benchmark(1, 3, **dict({"levels": (1, 8)}, **changes))


@pytest.fixture
def call(run_module, tmp_path):
    """Run the module on the sample fleet: ``call(check_mode=False, **changes)``."""

    def run(check_mode=False, **changes):
        arguments = {
            "results": acceptance.results(1, 3),
            "fleet": acceptance.fleet(1, 3),
            "path": str(tmp_path / "reports" / "acceptance.json"),
            "baseline_dir": str(tmp_path / "baselines"),
        }
        arguments.update(changes)
        return run_module(acceptance_report, arguments, check_mode)

    return run


def stored(tmp_path):
    folder = tmp_path / "baselines"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def garbage():
    rows = acceptance.results(1, 3)
    rows[2] = acceptance.fail(rows[2], "garbage", ["exact: zzz"], "Verify the weights", exact_capital_japan="zzz")
    return rows


def test_all_four_forms_are_written_and_agree(call, tmp_path):
    result = call(release="a1b2")
    assert (result["status"], result["verdict"], result["changed"]) == (0, "accepted", False)
    folder = tmp_path / "reports"
    assert [os.path.basename(name) for name in result["files"]] == ["acceptance.json", "acceptance.html", "acceptance.xml", "acceptance.md"]
    assert sorted(item.name for item in folder.iterdir()) == sorted(os.path.basename(name) for name in result["files"])
    assert {stat.S_IMODE(item.stat().st_mode) for item in folder.iterdir()} == {0o644}
    data = json.loads((folder / "acceptance.json").read_text())
    assert data["status"] == 0 and data["ok"] is True and data["release"] == "a1b2" and data["lines"] == result["lines"]
    assert ET.fromstring((folder / "acceptance.xml").read_bytes()).get("failures") == "0"
    assert "Accepted" in (folder / "acceptance.html").read_text() and (folder / "acceptance.md").read_text().startswith(
        "# Acceptance: accepted"
    )


def test_a_second_report_of_the_same_changes_nothing(call):
    assert call()["changed"] is False and call()["changed"] is False


def test_a_dry_run_judges_and_writes_nothing(call, tmp_path):
    result = call(True, results=garbage())
    assert result["status"] == 1 and result["changed"] is False and list(tmp_path.iterdir()) == []
    result = call(True, benchmark=measured())
    assert result["changed"] is True and list(tmp_path.iterdir()) == []


def test_a_refusal_is_told_and_does_not_fail_the_task(call):
    result = call(results=garbage())
    assert (result.get("failed", False), result["status"], result["verdict"]) == (False, 1, "refused")
    assert "node01-c1: garbage" in result["lines"]


def test_the_first_run_is_recorded_the_next_one_compared(call, tmp_path):
    first = call(benchmark=measured(seed=3))
    assert first["changed"] is True and first["status"] == 0 and first["baseline"]["status"] == "none"
    assert first["baseline"]["detail"] == "recorded now: no baseline of this release"
    assert [item.name for item in stored(tmp_path)] == [first["fingerprint_id"] + ".json"]
    second = call(benchmark=measured(seed=4))
    assert second["changed"] is False and second["status"] == 0 and second["baseline"]["status"] in ("same", "better")
    slow = call(benchmark=measured(slow=1.15))
    assert slow["status"] == 1 and slow["baseline"]["status"] == "worse" and slow["changed"] is False
    assert any(line.startswith("  gateway, 1 at a time: median") and "more than the 3 % allowed" in line for line in slow["lines"])
    assert json.loads(stored(tmp_path)[0].read_text())["sessions"][0]["date"] == second["baseline"]["recorded"]


def test_a_sweep_that_stopped_a_level_earlier_is_compared_all_the_same(call):
    """Whether the last level brings 4 % more or 6 % is noise, and so is whether it was the last."""

    def shorter(benchmark):
        rows = [row for row in benchmark["summary"]["levels"] if row["concurrency"] == 1]
        return dict(benchmark, summary=dict(benchmark["summary"], levels=rows))

    call(benchmark=measured(seed=3))
    again = call(benchmark=shorter(measured(seed=4)))
    assert again["status"] == 0 and again["baseline"]["status"] in ("same", "better"), again["lines"]
    assert {item["verdict"] for item in again["baseline"]["figures"] if ", 8 at a time" in item["name"]} == {"left_out"}
    assert call(benchmark=shorter(measured(slow=1.15)))["status"] == 1


def test_figures_of_a_failing_run_are_neither_recorded_nor_compared_nor_shown(call, tmp_path):
    result = call(results=garbage(), benchmark=measured(slow=0.2))
    assert result["status"] == 1 and result["baseline"] is None and stored(tmp_path) == []
    assert "thrown away" in result["report"]["discarded"]
    assert "output_throughput" not in (tmp_path / "reports/acceptance.json").read_text()
    missing = call(results=acceptance.results(1, 3)[:-1], benchmark=measured())
    assert missing["status"] == 2 and stored(tmp_path) == []
    unpublished = call(benchmark=dict(measured(), ok=False))
    assert unpublished["status"] == 2 and stored(tmp_path) == []


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("driver", {"driver_version": "6.2.0"}),
        ("runtime", {"runtime_version": "DTK 24.04"}),
    ],
)
def test_another_release_has_no_baseline_and_hears_what_differs(call, tmp_path, key, changed):
    call(benchmark=measured())
    result = call(benchmark=measured(slow=3), fleet=acceptance.fleet(1, 3, **changed), baseline="never")
    assert result["status"] == 0 and result["baseline"]["status"] == "none" and result["changed"] is False
    assert [item["key"] for item in result["baseline"]["differs"]] == [key]
    assert "is none: {0}: here {1}".format(key, list(changed.values())[0]) in result["baseline"]["detail"]
    assert len(stored(tmp_path)) == 1


def test_a_named_baseline_of_other_hardware_is_refused_as_evidence(call, tmp_path):
    call(benchmark=measured())
    (path,) = stored(tmp_path)
    fleet = acceptance.fleet(1, 3)
    for row in fleet:
        for card in row["cards"]:
            card["name"] = "H100"
    result = call(benchmark=measured(), fleet=fleet, baseline_file=str(path))
    assert result["status"] == 2 and result["baseline"]["status"] == "refused" and result["baseline"]["figures"] == []
    assert "card: here 3 x H100" in result["baseline"]["detail"]
    assert call(benchmark=measured(seed=5), baseline_file=str(path))["status"] == 0


def test_a_fingerprint_with_a_hole_has_no_baseline(call, tmp_path):
    result = call(benchmark=measured(), fleet=acceptance.fleet(1, 3, driver_version=""))
    assert result["status"] == 2 and "no baseline without knowing driver" in result["baseline"]["detail"] and stored(tmp_path) == []


def test_days_are_added_and_a_new_reference_is_set_only_when_asked_for(call, tmp_path):
    call(benchmark=measured(seed=3))
    assert call(benchmark=measured(seed=4), baseline="add")["changed"] is True
    assert len(json.loads(stored(tmp_path)[0].read_text())["sessions"]) == 2
    slow = measured(slow=1.15, seed=5)
    assert call(benchmark=slow, baseline="add")["changed"] is False
    replaced = call(benchmark=slow, baseline="replace")
    assert (
        replaced["changed"] is True and replaced["status"] == 0 and replaced["baseline"]["detail"] == "recorded in place of the one before"
    )
    assert len(json.loads(stored(tmp_path)[0].read_text())["sessions"]) == 1
    assert call(benchmark=measured(slow=1.15, seed=6))["baseline"]["status"] == "same"


def test_too_few_repeats_are_told_and_not_recorded(call, tmp_path):
    result = call(benchmark=measured(repeats=2))
    assert result["status"] == 0 and result["changed"] is False and "not recorded: no baseline from 2 runs" in result["baseline"]["detail"]
    assert stored(tmp_path) == []


def test_a_broken_baseline_or_limits_that_cannot_be_fail_by_name(call, tmp_path):
    call(benchmark=measured())
    (path,) = stored(tmp_path)
    path.write_text("{")
    result = call(benchmark=measured())
    assert result["failed"] and str(path) in result["msg"]
    assert "tolerance_pct" in call(tolerance_pct=20)["msg"]
    assert "version None" in call(benchmark={"runs": []})["msg"]


def test_a_fleet_told_in_short_is_filled_up(call):
    result = call(fleet=[{"host": "node01", "replicas": [{"name": "node01-c0"}]}], results=acceptance.results(1, 1))
    assert result["status"] == 0 and result["fingerprint"]["driver"] == "unknown"


@pytest.mark.parametrize("text", acceptance.HOSTILE)
def test_hostile_answers_are_written_in_every_form(call, tmp_path, text):
    rows = acceptance.results(1, 3)
    # Half a pair does not come through Ansible; the action plugin spells it out.
    text = text.replace("\ud800", "")
    rows[1]["checks"][1]["detail"] = text
    call(results=rows)
    data = json.loads((tmp_path / "reports/acceptance.json").read_text(encoding="utf-8"))
    assert data["results"][1]["checks"][1]["detail"] == text
    ET.fromstring((tmp_path / "reports/acceptance.xml").read_bytes())
    assert "<script>document" not in (tmp_path / "reports/acceptance.html").read_text(encoding="utf-8")


def test_figures_that_were_asked_for_and_not_measured_could_not_be_told(call, tmp_path):
    result = call(unmeasured="the gateway went away")
    assert (result["status"], result["verdict"], result["report"]["unmeasured"]) == (2, "could not tell", "the gateway went away")
    assert result["lines"][0].endswith("; nothing was measured") and "  the gateway went away" in result["lines"]
    data = tmp_path / "reports"
    assert ET.fromstring((data / "acceptance.xml").read_bytes()).get("errors") == "1"
    assert all("the gateway went away" in (data / name).read_text() for name in ("acceptance.html", "acceptance.md"))
    # What did not prove itself outranks it.
    assert call(unmeasured="x", results=garbage())["status"] == 1


def test_a_score_is_in_all_four_forms_and_a_low_one_takes_the_figures(call, tmp_path):
    good, low = acceptance.score(19, 1), acceptance.score(16, 4)
    result = call(benchmark=measured(), accuracy=[good])
    assert (result["status"], result["changed"], "accuracy" in result["report"]) == (0, True, False)
    (baseline,) = stored(tmp_path)
    baseline.unlink()
    result = call(benchmark=measured(), accuracy=[low])
    assert (result["status"], result["verdict"], result["baseline"], result["changed"]) == (1, "refused", None, False)
    assert stored(tmp_path) == [] and result["report"]["discarded"] and result["report"]["ok"] is False
    for name in ("json", "html", "xml", "md"):
        text = (tmp_path / "reports/acceptance").with_suffix("." + name).read_text(encoding="utf-8")
        assert "80.0 % right, 90.0 % recorded, 85.0 % allowed" in text and "What is 2 + 2?" in text, name
    data = json.loads((tmp_path / "reports/acceptance.json").read_text(encoding="utf-8"))
    assert data["accuracy"] == [low] and len(low["wrong"]) == 4
    result = call(benchmark=measured(), unscored="nobody answered")
    assert (result["status"], result["report"]["unscored"], stored(tmp_path)) == (2, "nobody answered", [])


def test_a_comparison_made_elsewhere_is_told_and_nothing_is_recorded_here(call, tmp_path):
    first = call(benchmark=measured(), path="")
    assert first["baseline"]["recorded_now"] is True
    slow = call(benchmark=measured(slow=1.3), path="")["baseline"]
    assert slow["status"] == "worse"
    result = call(benchmark=measured(slow=1.3), comparison=slow, baseline_dir="")
    assert (result["status"], result["baseline"]["status"], result["changed"]) == (1, "worse", False)
    # Garbage has no speed, whoever compared it.
    vetoed = call(benchmark=measured(slow=1.3), comparison=slow, results=garbage())
    assert vetoed["baseline"] is None and vetoed["report"]["discarded"] and vetoed["changed"] is False
    assert "of no use without benchmark" in call(comparison=slow)["msg"]


def odd(index, place=None, **members):
    """The sample's results with other members in one of them, or in one of its checks."""
    rows = acceptance.results(1, 3)
    (rows[index] if place is None else rows[index]["checks"][place]).update(members)
    return rows


def row(**members):
    return [dict({"host": "node01", "replicas": [{"name": "node01-c0"}]}, **members)]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"results": odd(1, name="")}, "results[1] must be a mapping with the endpoint's 'name'"),
        ({"results": [{"verdict": "ok"}]}, "results[0] must be a mapping with the endpoint's 'name'"),
        ({"results": odd(1, verdict="okay")}, "results[1] (node01-c0): 'verdict' is 'okay'; did you mean \"ok\"?"),
        ({"results": odd(1, verdict=None)}, "results[1] (node01-c0): 'verdict' is None; "),
        ({"results": odd(1, verdict=["ok"])}, "results[1] (node01-c0): 'verdict' is ['ok']; "),
        ({"results": odd(1, checks="exact")}, "results[1] (node01-c0): 'checks' must be a list, not 'exact'"),
        ({"results": odd(1, checks=["exact"])}, "results[1] (node01-c0): 'checks[0]' must be a mapping, not 'exact'"),
        ({"results": odd(1, evidence={"a": 1})}, "results[1] (node01-c0): 'evidence' must be a list, not {'a': 1}"),
        ({"results": odd(1, ttft_ms="12")}, "results[1] (node01-c0): 'ttft_ms' must be a number, not '12'"),
        ({"results": odd(1, decode_tokens_per_s=[1])}, "results[1] (node01-c0): 'decode_tokens_per_s' must be a number, not [1]"),
        ({"results": odd(1, 2, status="passed")}, "results[1] (node01-c0), checks[2]: 'status' is 'passed'; did you mean \"pass\"?"),
        ({"results": odd(1, 2, check=None)}, "results[1] (node01-c0), checks[2]: the key 'check' is missing or no text"),
        ({"results": odd(1, 2, detail=7)}, "results[1] (node01-c0), checks[2]: 'detail' must be text, not 7"),
        ({"results": odd(1, 2, figure="7")}, "results[1] (node01-c0), checks[2]: 'figure' must be a number, not '7'"),
        ({"fleet": row(host=7)}, "fleet[0] must be a mapping with the key 'host'"),
        ({"fleet": row(driver=None)}, "fleet[0] (node01): 'driver' must be text, not None"),
        ({"fleet": row(replicas="node01-c0")}, "fleet[0] (node01): 'replicas' must be a list, not 'node01-c0'"),
        ({"fleet": row(replicas=["node01-c0"])}, "fleet[0] (node01): 'replicas[0]' must be a mapping, not 'node01-c0'"),
        ({"fleet": row(replicas=[{"name": ["x"]}])}, "fleet[0] (node01), replicas[0]: the key 'name' is missing or no text"),
        ({"fleet": row(replicas=[{"name": "x", "image": None}])}, "fleet[0] (node01), replicas[0]: 'image' must be text, not None"),
        ({"fleet": row(replicas=[{"name": "x", "cards": [{}]}])}, "fleet[0] (node01), replicas[0]: 'cards[0]' must be text, not {}"),
        ({"fleet": row(replicas=[{"name": "x", "environment": []}])}, "fleet[0] (node01), replicas[0]: 'environment' must be a mapping"),
        ({"fleet": row(cards=[{"name": "K100"}])}, "fleet[0] (node01), cards[0]: the key 'id' is missing or no text"),
        ({"accuracy": [{"ok": True}]}, "accuracy[0] must be a mapping with the endpoint's 'name'"),
        ({"accuracy": [{"name": "gateway"}]}, "accuracy[0] (gateway): 'ok' must be true, false or null, not None"),
        ({"accuracy": [dict(acceptance.score(9, 1), ok=1)]}, "accuracy[0] (gateway): 'ok' must be true, false or null, not 1"),
        ({"accuracy": [dict(acceptance.score(9, 1), score="0.9")]}, "accuracy[0] (gateway): 'score' must be a number, not '0.9'"),
        ({"accuracy": [dict(acceptance.score(9, 1), wrong=["x"])]}, "accuracy[0] (gateway): 'wrong[0]' must be a mapping, not 'x'"),
        ({"accuracy": [dict(acceptance.score(8, 2), ok=True)]}, "the verdict is ok, yet its score 0.8 is below 0.85: nothing is accepted"),
        ({"accuracy": [dict(acceptance.score(9, 1, None), ok=True)]}, "accuracy[0] (gateway): the verdict is ok, yet it has no recorded"),
        ({"accuracy": [dict(acceptance.score(9, 0, 0.9, 1), ok=True)]}, "the verdict is ok, yet 1 of its questions were not answered"),
        ({"benchmark": dict(measured(), endpoints=["gateway"])}, "the benchmark's result: 'endpoints[0]' must be a mapping, not 'gateway'"),
        ({"benchmark": measured(), "comparison": {"state": "same"}}, "comparison: 'status' is None; "),
    ],
)
def test_what_is_of_another_form_is_refused_by_name(call, tmp_path, changes, message):
    result = call(**changes)
    assert result["failed"] is True and message in result["msg"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("status", ["fail", "unknown"])
def test_a_verdict_that_its_own_checks_contradict_is_never_ok(call, tmp_path, status):
    rows = odd(1, 2, status=status)
    result = call(results=rows)
    check = rows[1]["checks"][2]
    told = "results[1] (node01-c0): the verdict is ok, yet its check {0} is {1}: ".format(_report.check_name(check), status)
    assert result["failed"] is True and result["msg"].startswith(told)
    assert _report.proof_status([], rows) == _report.COULD_NOT_TELL
    # A wrong answer that the recipe forgives is no contradiction.
    assert call(results=odd(1, 2, status="warn"))["status"] == 0
    for item in rows[1]["checks"]:
        item["status"] = "not_applicable"
    assert "the verdict is ok, yet none of its checks has passed" in call(results=rows)["msg"]
