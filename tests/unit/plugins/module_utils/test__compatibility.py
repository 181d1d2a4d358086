# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Versions as vendors write them, rows that apply, and rows that cannot be decided; never ok by not knowing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils._compatibility import (
    applies,
    compare,
    fits_text,
    image_versions,
    judge,
    known_holes,
    parse_version,
    read_table,
    satisfies,
    select,
)
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

# Each list is in rising order.
ORDERS = [
    ["5.7.1", "rock-5.7.1-6.2.26-V1.5", "rock-5.7.1-6.2.35", "rock-6.3.8", "6.3.31-V1.5.0", "6.3.31-V1.5.0a", "6.3.32-V1.6.0"],
    ["22.0.3.1", "23.0.rc1", "23.0.rc3.3", "23.0.0", "23.0.2.1", "23.0.5", "24.1.rc1", "24.1.RC2", "24.1.0", "25.5.1", "25.7.rc1"],
    [
        "0.8.3",
        "0.10.1",
        "0.10.1.1",
        "0.14.1",
        "0.17.0rc1",
        "0.17.0",
        "0.18.1+das.dtk2604",
        "0.19.1rc1.dev3",
        "0.19.1rc1",
        "0.19.1",
        "0.19.1.post1",
        "0.32.0",
    ],
    ["7.0.RC1", "8.5.0", "8.5.1", "9.1.0"],
    ["550.54.15", "580.95.05", "580.159", "610.12"],
    ["DTK 24.04.3", "25.04.4", "DTK-26.04-rc4", "26.04"],
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order[0])
def test_versions_rise(order):
    for number, lower in enumerate(order):
        for higher in order[number + 1 :]:
            assert compare(parse_version(lower), parse_version(higher)) == -1, (lower, higher)
            assert compare(parse_version(higher), parse_version(lower)) == 1, (lower, higher)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.18.1", "0.18.1+das.fa71803.dtk2604"),
        ("v0.17.0rc1", "0.17.0.rc1"),
        ("24.1", "24.1.0"),
        ("26.04", "26.4"),
        ("CANN 8.5.1", "8.5.1"),
        ("DTK 26.04", "DTK-26.04"),
        ("rock-5.7.1-6.2.26-V1.5", "6.2.26"),
        ("6.3.31-V1.5.0a", "6.3.31"),
        ("20.10.24+dfsg1", "20.10.24"),
        ("0.32.0", "0.32"),
    ],
)
def test_the_same_version_in_two_spellings(one, other):
    assert compare(parse_version(one), parse_version(other)) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "latest",
        "None",
        "v",
        "6.3.31a",
        "6.3.31-V",
        "rock-",
        "1..2",
        "1.2.",
        "0.18.1+",
        "0.18.1-hotfix",
        "23.0.3.b060x",
        "8.5.1 8.5.2",
        "V1.5 6.3",
    ],
)
def test_a_version_of_unknown_form_is_unknown(text):
    with pytest.raises(UnknownOutput, match="no version this collection knows"):
        parse_version(text)


@given(st.text(max_size=20))
def test_any_text_is_a_version_or_unknown(text):
    try:
        version = parse_version(text)
    except UnknownOutput:
        return
    assert version.release and compare(version, version) == 0


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=4), st.lists(st.integers(0, 3000), min_size=1, max_size=4))
def test_plain_numbers_compare_as_numbers(left, right):
    size = max(len(left), len(right))
    padded = [numbers + [0] * (size - len(numbers)) for numbers in (left, right)]
    wanted = (padded[0] > padded[1]) - (padded[0] < padded[1])
    assert compare(parse_version(".".join(map(str, left))), parse_version(".".join(map(str, right)))) == wanted


@pytest.mark.parametrize(
    ("version", "condition", "held"),
    [
        ("6.3.31-V1.5.0a", ">=6.3", True),
        ("rock-5.7.1-6.2.26-V1.5", ">=6.3", False),
        ("rock-5.7.1-6.2.26-V1.5", ">=6.2.26,<6.3", True),
        ("6.3.31-V1.5.0a", ">6.3.31", False),
        ("6.3.31-V1.5.0a", ">=6.3.31-V1.6", False),
        ("8.5.0", "8.5.1", False),
        ("8.5.1", "8.5.1", True),
        ("8.5.0", "!=8.5.1", True),
        ("0.17.0rc1", "<0.17.0", True),
        ("0.18.1+das.dtk2604", "0.18.*", True),
        ("0.18", "0.18.*", True),
        ("0.180.1", "0.18.*", False),
        ("1.8", "0.18.*", False),
        ("0.18.1", "!=0.18.*", False),
        ("0.10.1", "<0.10.1.1", True),
        ("0.10.1.1", "<0.10.1.1", False),
        ("25.04.4", "25.04.*", True),
        ("26.04", "25.04.*", False),
        (2, ">=2", True),
        ("580.95.05", ">=580.95.5,<=580.95.5", True),
    ],
)
def test_conditions(version, condition, held):
    assert satisfies(version, condition) is held


@pytest.mark.parametrize("condition", ["", ">=", ">=new", "0.x", ">=0.18.*", "=>1", "1,,2"])
def test_a_condition_of_unknown_form_is_unknown(condition):
    with pytest.raises(UnknownOutput):
        satisfies("1.0", condition)


@pytest.mark.parametrize(
    ("values", "wanted", "held"),
    [
        (["910B2"], ["910b*"], True),
        (["910_93"], ["910B*"], False),
        (["910B2", "910_93"], ["910_93"], True),
        (["quay.io/ascend/vllm-ascend:v1-a3"], ["*vllm-ascend:*", "!*-a3*"], False),
        (["quay.io/ascend/vllm-ascend:v1"], ["*vllm-ascend:*", "!*-a3*"], True),
        (["other"], ["*vllm-ascend:*", "!*-a3*"], False),
        ([""], ["!0"], True),
        (["0"], ["!0"], False),
        ([""], ["?*", "!0"], False),
        ([], ["mtp"], False),
        ([], ["!mtp"], True),
    ],
)
def test_words(values, wanted, held):
    assert fits_text(values, wanted) is held


ROW = {"when": {"platform": "x"}, "verdict": "warn", "reason": "r", "source": "s", "date": "2026-01-02", "grade": "vendor_verified"}
HOLE = {
    "engine": "vllm",
    "severity": "9.8",
    "verdict": "warn",
    "reason": "bad",
    "fix": "newer",
    "source": "s",
    "date": "2026-01-02",
    "grade": "vendor_verified",
}
HERE = {
    "platform": "x",
    "driver": "6.2.1",
    "engine": "vllm",
    "engine_version": "0.18.1",
    "model": "m",
    "settings": {"a": True},
    "environment": {},
}


def statuses(rows, situation=None):
    return [(item.status, item.detail.split(":")[0]) for item in judge(rows, situation or HERE)]


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"platform": "x"}, "yes"),
        ({"platform": "y"}, "no"),
        ({"platform": ["y", "x"]}, "yes"),
        ({"driver": "<6.3", "engine_version": ["0.17.*", "0.18.*"]}, "yes"),
        ({"driver": ">=6.3"}, "no"),
        ({"firmware": ">=1"}, "undecided"),
        ({"runtime": ">=1"}, "no"),
        ({"firmware": ">=1", "platform": "y"}, "no"),
        ({"settings.a": "true"}, "yes"),
        ({"settings.a": "!true"}, "no"),
        ({"settings.b": "!true"}, "yes"),
        ({"environment.B": "?*"}, "no"),
    ],
)
def test_when_a_row_applies(when, expected):
    assert applies(when, dict(HERE, firmware=None))[0] == expected


def test_a_version_nobody_can_read_leaves_the_row_undecided():
    held, why = applies({"driver": ">=6.3"}, dict(HERE, driver="build-of-tuesday"))
    assert held == "undecided"
    assert "build-of-tuesday" in why


@pytest.mark.parametrize(
    ("verdict", "when", "status"),
    [
        ("refuse", {"platform": "x"}, "fail"),
        ("warn", {"platform": "x"}, "warn"),
        ("ok", {"platform": "x"}, "pass"),
        ("refuse", {"firmware": ">=1"}, "unknown"),
        ("warn", {"firmware": ">=1"}, "warn"),
    ],
)
def test_each_row_that_may_apply_is_named(verdict, when, status):
    found = judge({"t/row": dict(ROW, verdict=verdict, when=when)}, dict(HERE, firmware=None))
    assert (found[0].status, found[0].name) == (status, "compatibility")
    assert found[0].detail.startswith("row t/row")
    assert "(s, 2026-01-02, vendor_verified)" in found[0].detail
    assert bool(found[0].fix) is (status in ("fail", "unknown"))
    if when == {"firmware": ">=1"}:
        assert "the firmware is not known" in found[0].detail


def test_an_undecided_ok_vouches_for_nothing():
    (line,) = judge({"t/row": dict(ROW, verdict="ok", when={"firmware": ">=1"})}, dict(HERE, firmware=None))
    assert (line.status, line.detail) == ("warn", "no row vouches for engine vllm, engine version 0.18.1, model m on x; the proof decides")


def test_what_is_only_reported_vouches_for_nothing():
    rows = {"t/row": dict(ROW, verdict="ok", grade="reported")}
    assert [item.status for item in judge(rows, HERE)] == ["pass", "warn"]
    assert [item.status for item in judge({"t/row": dict(ROW, verdict="ok")}, HERE)] == ["pass"]


def test_without_an_engine_there_is_nothing_to_vouch_for():
    assert [item.status for item in judge({}, {"platform": "x", "driver": None})] == ["not_applicable"]


@pytest.mark.parametrize(
    ("bounds", "version", "hit"),
    [
        ({"since": "0.8.3", "below": "0.14.1"}, "0.8.2", False),
        ({"since": "0.8.3", "below": "0.14.1"}, "0.8.3", True),
        ({"since": "0.8.3", "below": "0.14.1"}, "0.14.0+das", True),
        ({"since": "0.8.3", "below": "0.14.1"}, "0.14.1", False),
        ({"through": "0.12.0"}, "0.12.0", True),
        ({"through": "0.12.0"}, "0.12.1", False),
        ({"since": "0.8.0"}, "0.32.0", True),
        ({}, "0.1", True),
    ],
)
def test_known_holes_by_version(bounds, version, hit):
    (line,) = known_holes({"CVE-1": dict(HOLE, **bounds)}, "vllm", version, HERE)
    assert line.status == ("warn" if hit else "pass")
    assert ("CVE-1" in line.detail) is hit
    assert line.fix == ("newer" if hit else "")


def test_a_hole_that_refuses_fails():
    (line,) = known_holes({"CVE-1": dict(HOLE, verdict="refuse")}, "vllm", "0.1", HERE)
    assert line.status == "fail"
    assert "severity 9.8" in line.detail


@pytest.mark.parametrize("version", [None, "main", "hotfix-3"])
def test_an_engine_of_unknown_version_may_have_every_hole(version):
    (line,) = known_holes({"CVE-1": HOLE, "CVE-2": dict(HOLE, below="0.0.1")}, "vllm", version, HERE)
    assert line.status == "unknown"
    assert "none of 2 recorded ones can be ruled out" in line.detail


def test_holes_of_other_engines_and_models_do_not_count():
    rows = {"CVE-1": dict(HOLE, engine="sglang"), "CVE-2": dict(HOLE, when={"model": "*kimi*"})}
    (line,) = known_holes(rows, "vllm", "0.1", HERE)
    assert line.status == "not_applicable"
    assert [item.status for item in known_holes(rows, "vllm", "0.1", dict(HERE, model="kimi-k2"))] == ["warn"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "refused"}, "unknown verdict 'refused'; did you mean \"refuse\""),
        ({"grade": "hearsay"}, "unknown grade 'hearsay'"),
        ({"grade": "reported", "verdict": "refuse"}, "only reported may warn, not refuse"),
        ({"date": "2026-10"}, "the date must be written as 2026-11-30, found '2026-10'"),
        ({"source": ""}, "the key 'source' is missing or empty"),
        ({"reson": "x"}, "unknown key 'reson'; did you mean \"reason\""),
        ({"when": {}}, "the key 'when' is missing or empty"),
        ({"when": "platform"}, "'when' must be a mapping"),
        ({"when": {"drivers": "1"}}, "unknown condition 'drivers'; did you mean \"driver\""),
        ({"when": {"driver": ">=new"}}, "when.driver: 'new' is no version"),
    ],
)
def test_a_bad_row_is_named(changes, message):
    with pytest.raises(LLMError) as caught:
        read_table({"mine": {"rows": {"r1": dict(ROW, **changes)}}})
    assert str(caught.value).startswith("compatibility 'mine', rows 'r1': ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"below": "soon"}, "below: 'soon' is no version"),
        ({"engine": ""}, "the key 'engine' is missing"),
        ({"when": {}}, "'when' must be a mapping"),
    ],
)
def test_a_bad_vulnerability_is_named(changes, message):
    with pytest.raises(LLMError, match="compatibility 'mine', vulnerabilities 'CVE-1': .*" + message.replace("(", r"\(")):
        read_table({"mine": {"vulnerabilities": {"CVE-1": dict(HOLE, **changes)}}})


def test_only_what_can_concern_the_host_travels():
    table = read_table(
        {
            "a": {
                "rows": {
                    "here": dict(ROW, when={"platform": "hygon_*"}),
                    "there": dict(ROW, when={"platform": "cpu"}),
                    "engine": dict(ROW, when={"engine": "sglang"}),
                    "everywhere": dict(ROW, when={"driver": ">=1"}),
                },
                "vulnerabilities": {"CVE-1": HOLE, "CVE-2": dict(HOLE, engine="sglang")},
            }
        }
    )
    chosen = select(table, "hygon_k100ai", "vllm")
    assert sorted(chosen["rows"]) == ["a/everywhere", "a/here"]
    assert sorted(chosen["vulnerabilities"]) == ["CVE-1"]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({"reference": "r:5443/dcu/vllm:0.18.1-ubuntu22.04-dtk26.04-py3.10"}, ("0.18.1", "26.04")),
        ({"reference": "r:5443/dcu/custom:vllm0.18.1-hotfix-ubuntu22.04-dtk2604-py3.10"}, ("0.18.1", "26.04")),
        ({"reference": "r:5443/dcu/custom:vllm018-ubuntu22.04-dtk26.04-qwen3.6-20260423"}, (None, "26.04")),
        ({"reference": "quay.io/ascend/vllm-ascend:v0.17.0rc1-a3"}, ("0.17.0rc1", None)),
        ({"reference": "quay.io/ascend/vllm-ascend:v0.18.0@sha256:00"}, ("0.18.0", None)),
        ({"reference": "vllm/vllm-openai:v0.10.1.1"}, ("0.10.1.1", None)),
        ({"reference": "vllm/vllm-openai:latest"}, (None, None)),
        ({"reference": "registry:5000/vllm"}, (None, None)),
        ({"reference": "x/y:v9.9.9", "version": "0.18.1", "runtime": "DTK 26.04"}, ("0.18.1", "DTK 26.04")),
        ({"source": "build", "build": "llama_cpp"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_what_is_in_an_image(image, expected):
    assert image_versions(image) == expected
