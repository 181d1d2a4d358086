# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Preflight: one line per check, and neither no cards nor an unknown word is ever good."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Accelerators, Card, Holder, preflight
from ansible_collections.ironserve.llm.plugins.module_utils._checks import all_good, failures


def card(index, health="ok", memory=65520, identity=None, devices=None):
    return Card(
        identity or "0000:0{0}:00.0".format(index), index, "K100_AI", "K100_AI", "gfx928", memory, health=health, devices=devices or {}
    )


def check(cards, expected=0, minimum=0, errors=None):
    return preflight(Accelerators("hygon", "hy-smi 1.7", cards), expected, minimum, errors or {})


def statuses(checks):
    return {item.name: item.status for item in checks}


def test_healthy_host_passes_every_check():
    checks = check([card(0), card(1)], expected=2, minimum=65520)
    assert set(statuses(checks).values()) == {"pass"}
    assert list(statuses(checks)) == ["probe", "card_count", "card_identity", "card_memory", "card_health", "device_nodes"]
    assert all_good(checks)


@pytest.mark.parametrize("expected", [0, 4])
def test_no_cards_is_never_good(expected):
    checks = check([], expected=expected)
    assert not all_good(checks)
    assert statuses(checks)["card_count"] == "fail"
    assert "card_health" not in statuses(checks), "nobody's health was seen"


@pytest.mark.parametrize("expected", [1, 3])
def test_other_than_the_expected_number(expected):
    checks = check([card(0), card(1)], expected=expected)
    (line,) = failures(checks)
    assert "2 cards, {0} expected".format(expected) in line
    assert "accelerator_expected_cards" in line


def test_identity_given_twice():
    checks = check([card(0), card(1, identity="0000:00:00.0")])
    (line,) = failures(checks)
    assert "identities given twice: 0000:00:00.0" in line


def test_card_too_small_names_card_and_both_figures():
    (line,) = failures(check([card(0), card(1, memory=32768)], minimum=60000))
    assert "0000:01:00.0 has 32768 MiB, 60000 MiB needed" in line
    assert "0000:00:00.0" not in line


@pytest.mark.parametrize("minimum", [0, 60000])
def test_card_that_does_not_say_its_memory_is_not_big_enough(minimum):
    (line,) = failures(check([card(0), card(1, memory=None)], minimum=minimum))
    assert "0000:01:00.0 does not say how much, {0} MiB needed".format(minimum) in line


@pytest.mark.parametrize(
    ("health", "status", "good"),
    [
        ("ok", "pass", True),
        ("warning", "warn", True),
        ("fault", "fail", False),
        ("unknown", "unknown", False),
        ("Throttled", "unknown", False),
    ],
)
def test_health(health, status, good):
    checks = check([card(0), card(1, health=health)])
    assert statuses(checks)["card_health"] == status
    assert all_good(checks) is good
    if health != "ok":
        assert any(health in item.detail and "0000:01:00.0" in item.detail for item in checks)


def test_health_is_unknown_unless_a_probe_says_otherwise():
    assert not all_good(check([Card("x", 0, "n", "n", "a", 1)]))


def test_each_bad_health_has_its_line():
    lines = failures(check([card(0, "fault"), card(1, "unknown"), card(2, "odd"), card(3)]))
    assert len(lines) == 3


def test_device_node_that_does_not_open():
    checks = check([card(0)], errors={"/dev/kfd": "Permission denied"})
    (line,) = failures(checks)
    assert "/dev/kfd: Permission denied" in line
    assert "load the driver" in line


def test_schema_is_plain_data():
    found = Accelerators("hygon", "hy-smi 1.7", [card(0, devices={"card": "/dev/dri/card1"})])
    found.cards[0].holders = [Holder(7, "jupyter")]
    data = found.as_dict()["cards"][0]
    assert data["devices"] == {"card": "/dev/dri/card1"}
    assert data["holders"] == [{"pid": 7, "container": "jupyter", "name": "", "memory_mib": None}]
    assert data["utilisation_pct"] is None, "what a tool does not give is null, not 0"
