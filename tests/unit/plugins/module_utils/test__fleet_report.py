# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sixty-four equal hosts are one paragraph, the odd one is another, and no host is ever lost between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils._fleet_report import build, fleet_status, group, mask, render
from ansible_collections.ironserve.llm.plugins.module_utils._names import fold


def check(name, status="pass", detail="", fix=""):
    return {"name": name, "status": status, "detail": detail, "fix": fix}


def result(host, *checks, platform="acme"):
    return {"host": host, "platform": platform, "checks": list(checks)}


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["node%02d" % number for number in range(1, 65)], "node[01-64]"),
        (["node%02d" % number for number in range(1, 65) if number != 7], "node[01-06,08-64]"),
        (["node9", "node10", "node11"], "node[9-11]"),
        (["node08", "node09", "node10", "node11"], "node[08-11]"),
        (["node1", "node01"], "node1, node01"),
        (["node0", "node9", "node10"], "node[0,9-10]"),
        (["k100-01"], "k100-01"),
        (["a1.example.com", "a2.example.com", "b7.example.com"], "a[1-2].example.com, b7.example.com"),
        (["rack1-node3", "rack1-node4", "rack2-node3"], "rack1-node[3-4], rack2-node3"),
        (["10.0.0.5", "10.0.0.6", "10.0.1.5"], "10.0.0.[5-6], 10.0.1.5"),
        (["gpu", "local"], "gpu, local"),
        (["n3", "n1", "n2"], "n[1-3]"),
        (["node007b", "node008b"], "node[007-008]b"),
        ([], ""),
    ],
)
def test_folded_names(names, folded):
    assert fold(names) == folded


def unfold(text):
    """The names that a folded text stands for."""
    names = []
    for part in text.split(", ") if text else []:
        head, bracket, rest = part.partition("[")
        if not bracket:
            names.append(part)
            continue
        inner, _bracket, tail = rest.partition("]")
        for run in inner.split(","):
            low, _dash, high = run.partition("-")
            names += [
                head + str(number).zfill(len(low) if low.startswith("0") else 0) + tail for number in range(int(low), int(high or low) + 1)
            ]
    return sorted(names)


@given(st.lists(st.from_regex(r"\A(node|gpu-|rack1-n)(0[0-9]|[1-9][0-9]?)(\.x)?\Z"), unique=True, max_size=40))
def test_no_name_is_lost_in_folding(names):
    assert unfold(fold(names)) == sorted(names)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("fault: 0000:07:00.0", "fault: 0000:0a:00.0"),
        ("0000:07:00.0, 0000:0a:00.0", "0000:1a:00.0, 0000:2c:00.0"),
        ("/w: 1200 MiB free", "/w: 98765 MiB free"),
        ("-31 s from the controller's", "+305 s from the controller's"),
        ("held by python (pid 4242)", "held by python (pid 9)"),
        ("is held by process 4242 (python3)", "is held by process 7 (python3)"),
        ("GPU-8a1f2b3c-0000-1111-2222-333344445555", "GPU-00000000-aaaa-bbbb-cccc-ddddeeeeffff"),
        ("container 0123456789ab", "container ba9876543210"),
        ("62.5 C, 105 W, 97 %", "58 C, 120.1 W, 0 %"),
    ],
)
def test_what_differs_between_equal_hosts(one, other):
    assert mask(one) == mask(other) != one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("driver 6.3.31-V1.5.0a", "driver 6.3.32-V1.6.0"),
        ("driver 23.0.2.1", "driver 23.0.3.1"),
        ("8 cards, 8 expected", "7 cards, 8 expected"),
        ("Docker 20.10.24", "Docker 24.0.7"),
        ("kernel 5.10.0-8", "kernel 5.10.0-9"),
        ("vm.swappiness = 0", "vm.swappiness = 60"),
        ("K100_AI", "K100"),
    ],
)
def test_what_makes_a_host_odd(one, other):
    assert mask(one) != mask(other)


def test_the_host_s_own_name_makes_no_difference():
    assert mask("node01: no route", "node01") == mask("node02: no route", "node02")
    assert mask("node010 and xnode01", "node01") == "node010 and xnode01"


def fleet(size=64):
    return [
        result(
            "node%02d" % number,
            check("card_count", detail="8 cards, 8 expected"),
            check("space", detail="/w: %d MiB free" % (1000 + number)),
        )
        for number in range(1, size + 1)
    ]


def test_equal_hosts_print_once():
    results = fleet()
    (item,) = group(results)
    assert len(item.hosts) == 64
    lines = render(results)
    assert lines == [
        "preflight of 64 hosts: 64 ok, 0 failed, 0 could not tell",
        "",
        "node[01-64] (64 hosts, acme): ok",
        "  PASS     card_count               8 cards, 8 expected",
        "  PASS     space                    /w: … MiB free",
    ]


def test_the_odd_one_stands_out_with_what_is_odd():
    results = fleet()
    results[6] = result(
        "node07",
        check("card_count", "fail", "7 cards, 8 expected", "look for it"),
        check("space", detail="/w: 1 MiB free"),
        check("extra", "not_applicable"),
    )
    lines = render(results)
    assert lines[0] == "preflight of 64 hosts: 63 ok, 1 failed, 0 could not tell"
    assert lines[2] == "node[01-06,08-64] (63 hosts, acme): ok"
    assert lines[6:] == [
        "node07 (acme): FAILED; unlike node[01-06,08-64]:",
        "  FAIL     card_count               7 cards, 8 expected. Fix: look for it",
        "  N/A      extra",
    ]


def test_a_check_that_was_not_made_is_told():
    results = fleet(3)
    results[1] = result("node02", check("space", detail="/w: 5 MiB free"))
    assert render(results)[-1] == "  not checked: card_count"


def test_a_good_host_with_another_version_is_odd_too():
    results = [result("n%d" % number, check("versions", detail="driver 6.3.%d" % (31 if number < 3 else 32))) for number in (1, 2, 3)]
    assert render(results)[-2:] == ["n3 (acme): ok; unlike n[1-2]:", "  PASS     versions                 driver 6.3.32"]


def test_hosts_that_fail_alike_keep_each_its_own_figures():
    results = [result("n%d" % number, check("space", "fail", "%d MiB free" % number, "make room")) for number in (1, 2, 3)]
    results[2]["checks"][0]["detail"] = "1 MiB free"
    lines = render(results)
    assert lines[2] == "n[1-3] (3 hosts, acme): FAILED"
    assert lines[3:] == [
        "  FAIL     space                    n[1,3]: 1 MiB free. Fix: make room",
        "  FAIL     space                    n2: 2 MiB free. Fix: make room",
    ]


def test_platforms_are_told_apart():
    results = [result("a1", check("x")), result("b1", check("x"), platform="cpu"), result("a2", check("x"))]
    assert [item.hosts for item in group(results)] == [["a1", "a2"], ["b1"]]
    assert "a[1-2] (2 hosts, acme): ok" in render(results) and "b1 (cpu): ok" in render(results)
    assert not any("unlike" in line for line in render(results))


def test_hosts_that_could_not_be_reached_are_nobody_s_standard():
    away = check("host", "unknown", "not reached")
    results = [result("n1", away), result("n2", away), result("n3", check("x"))]
    assert [item.hosts for item in group(results)] == [["n3"], ["n1", "n2"]]
    assert "n[1-2] (2 hosts, acme): COULD NOT TELL; unlike n3:" in render(results)


def test_a_host_that_left_nothing_could_not_be_told_about():
    lines = render([result("n1")])
    assert lines[0] == "preflight of 1 host: 0 ok, 0 failed, 1 could not tell"
    assert "UNKNOWN" in lines[3]


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], 2),
        ([["pass"], ["warn"]], 0),
        ([["pass"], ["unknown"]], 2),
        ([["pass"], []], 2),
        ([["unknown"], ["fail"]], 1),
        ([[], ["fail"]], 1),
    ],
)
def test_status_of_the_fleet(statuses, code):
    results = [result("n%d" % number, *[check("x", status) for status in item]) for number, item in enumerate(statuses)]
    assert fleet_status(results) == code
    assert build(results, "2026-11-30T00:00:00+00:00")["status"] == code


def test_the_report_as_data():
    results = fleet(3)
    results[2]["checks"][0] = check("card_count", "fail", "7 cards")
    report = build(results, "2026-11-30T00:00:00+00:00")
    assert (report["format"], report["date"], report["verdict"]) == (1, "2026-11-30T00:00:00+00:00", "failed")
    assert report["counts"] == {"ok": 2, "failed": 1, "could not tell": 0}
    assert sorted(report["hosts"]) == ["node01", "node02", "node03"]
    assert report["hosts"]["node02"]["checks"] == results[1]["checks"]
    assert report["groups"] == [
        {"hosts": ["node01", "node02"], "pattern": "node[01-02]", "platform": "acme", "status": 0},
        {"hosts": ["node03"], "pattern": "node03", "platform": "acme", "status": 1},
    ]


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from("abc"),
                st.sampled_from(["pass", "warn", "fail", "unknown", "not_applicable"]),
                st.sampled_from(["1 MiB", "2 MiB", "v1", "v2"]),
            ),
            max_size=3,
        ),
        max_size=8,
    )
)
def test_every_host_is_in_one_group_and_every_bad_word_is_printed(fleets):
    results = [result("h%02d" % number, *[check(*item) for item in checks]) for number, checks in enumerate(fleets)]
    assert sorted(host for item in group(results) for host in item.hosts) == [item["host"] for item in results]
    text = "\n".join(render(results))
    for item in results:
        for one in item["checks"]:
            if one["status"] in ("fail", "unknown"):
                assert "{0:<8} {1:<24}".format(one["status"].upper(), one["name"]) in text and one["detail"] in text
