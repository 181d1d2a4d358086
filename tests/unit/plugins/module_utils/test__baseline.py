# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import random
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _baseline
from ansible_collections.ironserve.llm.plugins.module_utils._baseline import HIGHER, LOWER, Figure, Limits
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

PARTS = {
    "model": "smollm2-135m",
    "card": "4 x CPU core 1500 MiB, 4 replicas",
    "driver": "none",
    "runtime": "none",
    "image": "sha256:aa",
    "weights": "bb",
    "arguments": ["--ctx-size 2048 --parallel 2"],
    "protocol": {"load": "closed", "levels": [1, 4]},
}
DATE = "2026-03-01T10:00:00+00:00"


def parts(**changes):
    return _baseline.fingerprint(dict(PARTS, **changes))


def figure(*samples, name="ttft", unit="ms", better=LOWER):
    return Figure(name, unit, better, samples)


def stored(tmp_path, *figures, sessions=1, **changes):
    path = _baseline.path_of(str(tmp_path), parts(**changes))
    for number in range(sessions):
        data = _baseline.record(path, parts(**changes), list(figures), DATE, True, add=number > 0)
    return data


# ---- the fingerprint


def test_a_fingerprint_is_all_of_its_keys_as_text():
    made = parts()
    assert list(made) == list(_baseline.KEYS)
    assert made["protocol"] == '{"levels": [1, 4], "load": "closed"}'
    assert made["arguments"] == '["--ctx-size 2048 --parallel 2"]'


@pytest.mark.parametrize("wrong", [{k: v for k, v in PARTS.items() if k != "driver"}, dict(PARTS, colour="red")])
def test_a_fingerprint_that_leaves_out_or_adds_a_key_is_refused(wrong):
    with pytest.raises(LLMError, match="driver|colour"):
        _baseline.fingerprint(wrong)


@pytest.mark.parametrize("key", _baseline.KEYS)
def test_every_key_alone_makes_another_release_and_is_named(key):
    other = parts(**{key: "another"})
    assert _baseline.identity(other) != _baseline.identity(parts())
    (found,) = _baseline.differences(parts(), other)
    assert found["key"] == key and found["there"] == "another"


@pytest.mark.parametrize("nothing", ["", None, [], {}])
def test_what_could_not_be_told_equals_nothing_not_even_itself(nothing):
    made = parts(driver=nothing)
    assert _baseline.untold(made) == ["driver"]
    assert [item["key"] for item in _baseline.differences(made, made)] == ["driver"]


def test_a_platform_without_a_driver_is_known_to_have_none():
    assert _baseline.untold(parts(driver=_baseline.NO_PART)) == [] and _baseline.differences(parts(), parts()) == []


def test_a_difference_of_long_parts_is_shown_where_they_part_ways():
    long = "--model /weights --max-model-len 4096 --max-num-seqs {0} --gpu-memory-utilization 0.9"
    text = _baseline.explain({"key": "arguments", "here": long.format(4), "there": long.format(16)})
    assert text.startswith("arguments: here …4 --gpu") and "there …16 --gpu" in text
    assert _baseline.explain({"key": "driver", "here": "6.2", "there": "6.3"}) == "driver: here 6.2, there 6.3"


# ---- statistics


@pytest.mark.parametrize(
    ("confidence", "degrees", "value"),
    # From printed tables of Student's distribution.
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 4, 2.776),
        (0.95, 5, 2.571),
        (0.95, 10, 2.228),
        (0.95, 30, 2.042),
        (0.99, 7, 3.499),
        (0.99, 120, 2.617),
        (0.999, 3, 12.924),
    ],
)
def test_limits_of_t_are_those_of_the_tables(confidence, degrees, value):
    assert _baseline.t_limit(confidence, degrees) == pytest.approx(value, abs=0.0006)


def test_the_change_of_two_rows_is_welchs():
    # exp of these is what is compared; means 0.02 apart, variances 0.0001 and 0.0004, n=3 each: se 0.01291, 2.94 -> 2 degrees, t 4.303.
    before = [2.718281828 ** (1 + step) for step in (-0.01, 0.0, 0.01)]
    now = [2.718281828 ** (1.02 + step) for step in (-0.02, 0.0, 0.02)]
    middle, low, high = _baseline.change([before], now, LOWER, 0.95)
    assert middle == pytest.approx(2.0201, abs=0.001)
    assert low == pytest.approx(100 * (2.718281828 ** (0.02 - 0.05555) - 1), abs=0.01)
    assert high == pytest.approx(100 * (2.718281828 ** (0.02 + 0.05555) - 1), abs=0.01)


def test_worse_means_slower_for_times_and_less_for_rates():
    assert _baseline.change([[100.0] * 3], [200.0] * 3, LOWER, 0.95)[0] == pytest.approx(100)
    assert _baseline.change([[100.0] * 3], [50.0] * 3, HIGHER, 0.95)[0] == pytest.approx(50)
    assert _baseline.change([[100.0] * 3], [50.0] * 3, LOWER, 0.95)[0] == pytest.approx(-50)


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        ((100, 101, 99), (100.5, 99.5, 100), _baseline.SAME),
        ((100, 101, 99), (112, 113, 111), _baseline.WORSE),
        ((100, 101, 99), (88, 87, 89), _baseline.BETTER),
        # The same 12 % in the middle of a noise that could be nothing.
        ((100, 120, 85), (112, 134, 95), _baseline.UNCLEAR),
        # 2 % worse for sure is within what nobody minds.
        ((100, 100.1, 99.9), (102, 102.1, 101.9), _baseline.SAME),
        ((100, 100.1, 99.9), (104, 104.1, 103.9), _baseline.WORSE),
        # No spread at all, as of a counter.
        ((100, 100, 100), (100, 100, 100), _baseline.SAME),
        ((100, 100), (100, 100, 100), _baseline.UNCLEAR),
        ((100, 100, 100), (100, 100), _baseline.UNCLEAR),
        ((), (100, 100, 100), _baseline.UNCLEAR),
    ],
)
def test_verdict_of_one_figure(before, now, verdict):
    result = _baseline.compare_figure([list(before)] if before else [], figure(*now), Limits())
    assert result["verdict"] == verdict, result


def test_the_same_change_is_clear_with_little_noise_and_not_with_much():
    quiet = _baseline.compare_figure([[100, 101, 99, 100]], figure(108, 109, 107, 108), Limits())
    noisy = _baseline.compare_figure([[100, 112, 90, 98]], figure(108, 120, 97, 107), Limits())
    assert quiet["verdict"] == _baseline.WORSE and noisy["verdict"] == _baseline.UNCLEAR
    assert "differ too much" in noisy["detail"] and "3 % allowed" in quiet["detail"]


def test_one_of_many_figures_must_be_worse_more_surely_than_one_alone():
    # 5.8 % with a reach of 2.3 % is more than 3 % alone; one of twenty reaches 5.1 % by chance.
    assert _baseline.compare_figure([[100, 101, 99]], figure(106, 107, 105), Limits(), 1)["verdict"] == _baseline.WORSE
    assert _baseline.compare_figure([[100, 101, 99]], figure(106, 107, 105), Limits(), 20)["verdict"] == _baseline.SAME


def test_days_that_differ_widen_the_limits():
    # Within a session the runs are alike, but the sessions are 8 % apart: 6 % is an ordinary day.
    days = [[100, 100.2, 99.8], [108, 108.2, 107.8], [97, 97.2, 96.8], [104, 104.2, 103.8]]
    assert _baseline.compare_figure(days, figure(108.4, 108.6, 108.2), Limits())["verdict"] != _baseline.WORSE
    assert _baseline.compare_figure(days[:1], figure(106, 106.2, 105.8), Limits())["verdict"] == _baseline.WORSE


def test_equal_machines_are_hardly_ever_called_worse_and_slow_ones_hardly_ever_pass():
    random.seed(20260301)

    def draw(middle):
        return tuple(random.gauss(middle, 2.0) for _run in range(5))

    def verdicts(shift):
        rows = []
        for _trial in range(400):
            names = ["f{0}".format(number) for number in range(6)]
            baseline = {
                "id": "x",
                "fingerprint": parts(),
                "sessions": [_baseline.session_of([figure(*draw(100), name=name) for name in names], DATE)],
            }
            rows.append(_baseline.compare(baseline, parts(), [figure(*draw(100 * shift), name=name) for name in names])["status"])
        return rows

    same, slow = verdicts(1.0), verdicts(1.15)
    # Six figures with 2 % noise each, judged together.
    assert same.count(_baseline.WORSE) <= 2 and same.count(_baseline.SAME) >= 380
    assert slow.count(_baseline.SAME) == 0 and slow.count(_baseline.WORSE) >= 390


@given(
    st.lists(st.floats(0.01, 1e6), min_size=3, max_size=6),
    st.lists(st.floats(0.01, 1e6), min_size=3, max_size=6),
    st.sampled_from([LOWER, HIGHER]),
)
def test_a_range_always_holds_its_middle(before, now, better):
    middle, low, high = _baseline.change([before], now, better, 0.95)
    assert low <= middle + 1e-9 and middle <= high + 1e-9


# ---- comparing


@pytest.mark.parametrize(
    ("key", "here", "there"),
    [("card", "8 x A", "8 x B"), ("driver", "6.2", "6.3"), ("image", "sha256:1", "sha256:2"), ("protocol", "cold", "warm")],
)
def test_a_baseline_of_something_else_is_no_evidence_and_the_key_is_named(tmp_path, key, here, there):
    baseline = stored(tmp_path, figure(100, 101, 99), **{key: there})
    answer = _baseline.compare(baseline, parts(**{key: here}), [figure(100, 101, 99)])
    assert answer["status"] == _baseline.REFUSED and answer["figures"] == []
    assert [item["key"] for item in answer["differs"]] == [key]
    assert "{0}: here {1}, there {2}".format(key, here, there) in answer["detail"]
    assert answer["next_step"]


def test_one_worse_figure_outweighs_better_ones(tmp_path):
    rate = figure(50, 51, 49, name="rate", unit="tokens/s", better=HIGHER)
    baseline = stored(tmp_path, figure(100, 101, 99), rate)
    answer = _baseline.compare(baseline, parts(), [figure(80, 81, 79), figure(40, 41, 39, name="rate", unit="tokens/s", better=HIGHER)])
    assert answer["status"] == _baseline.WORSE and [item["verdict"] for item in answer["figures"]] == [_baseline.BETTER, _baseline.WORSE]
    assert answer["detail"] == "2 figures: 1 worse, 1 better"


def test_a_figure_that_was_recorded_and_not_measured_is_not_ok(tmp_path):
    baseline = stored(tmp_path, figure(100, 101, 99), figure(5, 5, 5, name="itl"))
    answer = _baseline.compare(baseline, parts(), [figure(100, 101, 99), figure(1, 1, 1, name="more")])
    assert answer["status"] == _baseline.UNCLEAR
    assert {item["name"]: item["verdict"] for item in answer["figures"]} == {"ttft": "same", "itl": "unknown", "more": "new"}


def test_a_level_that_the_sweep_left_out_stands_in_nobodys_way(tmp_path):
    """Where a sweep stops is noise; what it measured below is judged all the same."""
    baseline = stored(tmp_path, figure(100, 101, 99), figure(5, 5, 5, name="at 8"))
    answer = _baseline.compare(baseline, parts(), [figure(100, 101, 99)], left_out={"at 8"})
    assert answer["status"] == _baseline.SAME and answer["detail"] == "1 figures: 1 as before"
    assert {item["name"]: item["verdict"] for item in answer["figures"]} == {"ttft": "same", "at 8": "left_out"}
    assert _baseline.compare(baseline, parts(), [figure(200, 201, 199)], left_out={"at 8"})["status"] == _baseline.WORSE
    # Measured all the same it counts, and with everything left out nothing was told.
    assert (
        _baseline.compare(baseline, parts(), [figure(100, 101, 99), figure(9, 9, 9, name="at 8")], left_out={"at 8"})["status"] == "worse"
    )
    assert _baseline.compare(baseline, parts(), [], left_out={"ttft", "at 8"})["status"] == _baseline.UNCLEAR


def test_a_figure_in_another_unit_is_not_compared(tmp_path):
    answer = _baseline.compare(stored(tmp_path, figure(100, 101, 99)), parts(), [figure(0.1, 0.101, 0.099, unit="s")])
    assert answer["status"] == _baseline.UNCLEAR and "measured in s, recorded in ms" in answer["figures"][0]["detail"]


# ---- files


def test_what_is_recorded_is_read_back_and_readable_for_all(tmp_path):
    path = _baseline.path_of(str(tmp_path / "new" / "place"), parts())
    written = _baseline.record(path, parts(), [figure(100, 101, 99)], DATE, True)
    assert _baseline.read(path) == written
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
    assert written["sessions"] == [{"date": DATE, "figures": {"ttft": {"unit": "ms", "better": "lower", "samples": [100, 101, 99]}}}]


def test_figures_of_a_run_that_failed_are_never_stored(tmp_path):
    path = _baseline.path_of(str(tmp_path), parts())
    with pytest.raises(LLMError, match="thrown away"):
        _baseline.record(path, parts(), [figure(1, 1, 1)], DATE, False)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "figures", "match"),
    [
        ({"driver": ""}, [figure(1, 1, 1)], "without knowing driver"),
        ({}, [], "without figures"),
        ({}, [figure(1, 1)], "2 runs of 'ttft'"),
        ({}, [figure(1, 1, float("nan"))], "above 0"),
        ({}, [figure(1, 1, 0)], "above 0"),
    ],
)
def test_what_could_not_serve_as_a_baseline_is_not_recorded(tmp_path, changes, figures, match):
    with pytest.raises(LLMError, match=match):
        _baseline.record(_baseline.path_of(str(tmp_path), parts()), parts(**changes), figures, DATE, True)
    assert os.listdir(tmp_path) == []


def test_a_baseline_grows_to_its_limit_and_keeps_its_first_session(tmp_path):
    path = _baseline.path_of(str(tmp_path), parts())
    for number in range(_baseline.MAX_SESSIONS + 3):
        _baseline.record(path, parts(), [figure(100, 101, 99)], "day {0}".format(number), True, add=number > 0)
    dates = [session["date"] for session in _baseline.read(path)["sessions"]]
    assert len(dates) == _baseline.MAX_SESSIONS and dates[:2] == ["day 0", "day 4"] and dates[-1] == "day 22"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: data.update(format=2), "format 2, this version of the collection reads 1"),
        (lambda data: data.pop("format"), "format None"),
        (lambda data: data["fingerprint"].update(card="8 x a better one"), "changed by hand"),
        (lambda data: data["fingerprint"].pop("card"), "must have the keys"),
        (lambda data: data.update(sessions=[]), "no session"),
        (lambda data: data["sessions"][0].pop("date"), "a date and figures"),
        (lambda data: data["sessions"][0]["figures"]["ttft"].update(samples=[1, -1]), "'ttft' must have"),
        (lambda data: data["sessions"][0]["figures"]["ttft"].update(better="more"), "'ttft' must have"),
    ],
)
def test_a_file_that_is_not_as_written_is_refused_by_name(tmp_path, change, match):
    stored(tmp_path, figure(100, 101, 99))
    path = _baseline.path_of(str(tmp_path), parts())
    data = json.loads(open(path).read())
    change(data)
    open(path, "w").write(json.dumps(data))
    with pytest.raises(LLMError, match=match) as caught:
        _baseline.read(path)
    assert path in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100000])
def test_a_file_that_is_no_baseline_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(LLMError, match="x.json"):
        _baseline.read(str(tmp_path / "x.json"))


def test_the_store_gives_the_own_baseline_or_the_nearest_other(tmp_path):
    assert _baseline.look_up(str(tmp_path / "none"), parts()) == (None, None, [])
    stored(tmp_path, figure(1, 1, 1), driver="6.2", image="sha256:old")
    near = stored(tmp_path, figure(2, 2, 2), driver="6.2")
    (tmp_path / "broken.json").write_text("{")
    own, nearest, problems = _baseline.look_up(str(tmp_path), parts())
    assert own is None and nearest == near
    assert len(problems) == 1 and "broken.json" in problems[0]
    mine = stored(tmp_path, figure(3, 3, 3))
    assert _baseline.look_up(str(tmp_path), parts()) == (mine, None, [])


def test_the_own_baseline_broken_is_an_error_and_not_a_fresh_start(tmp_path):
    stored(tmp_path, figure(1, 1, 1))
    open(_baseline.path_of(str(tmp_path), parts()), "w").write("{")
    with pytest.raises(LLMError, match="no JSON"):
        _baseline.look_up(str(tmp_path), parts())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LLMError, match="file/x.json cannot be written"):
        _baseline.write(str(tmp_path / "file" / "x.json"), {})
