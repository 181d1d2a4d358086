# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Waiting for cards to be free, with the real probe on a host that is played: eight K100_AI, card 1 with a worker on it."""

from __future__ import annotations

import shutil

import pytest
from unit.plugins.played import hygon

from ansible_collections.ironserve.llm.plugins.module_utils import _card_wait
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Card, Holder
from ansible_collections.ironserve.llm.plugins.module_utils._card_wait import Freedom, held
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

BUSY, IDLE = "0000:0a:00.0", "0000:07:00.0"


@pytest.fixture
def host(tmp_path):
    """Play a host whose second card is busy, or free; returns how its cards are read."""
    root = tmp_path / "host"

    def play(busy=True):
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        return {"probe": "hygon", "tools": hygon.TOOLS, "root": str(hygon.play(root, hygon.k100ai(busy=busy)))}

    return play


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping moves; ``acts`` are done instead of sleeping, one after the other."""

    class Clock:
        def __init__(self):
            self.now, self.slept, self.acts = 100.0, [], []

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds
            self.slept.append(seconds)
            if self.acts:
                self.acts.pop(0)()

    made = Clock()
    monkeypatch.setattr(_card_wait, "time", made)
    return made


def test_cards_that_are_free_are_not_waited_for(host, clock):
    assert Freedom(host(), 64, 60).wait([IDLE]) == ""
    assert clock.slept == []


def test_a_card_is_waited_for_until_its_worker_has_gone(host, clock):
    clock.acts = [lambda: None, lambda: host(False)]
    Freedom(host(), 64, 60).demand([IDLE, BUSY])
    assert clock.slept == [2.0, 2.0]


def test_a_card_that_stays_held_is_named_with_its_holder(host, clock):
    with pytest.raises(LLMError) as caught:
        Freedom(host(), 64, 3).demand([BUSY])
    said = str(caught.value)
    assert said.startswith("0000:0a:00.0 has 9703 MiB in use by pid 2004092 (python3), 3 s after its container was stopped")
    assert "idle card shows 64 MiB at most" in said and "replica_free_timeout_s" in said
    assert clock.slept == [2.0, 1.0], "no longer than the wait"


def test_a_tool_that_says_nothing_is_no_free_card(host, clock):
    tools = dict(host(), tools={"hy-smi": ["/nowhere/hy-smi"]})
    with pytest.raises(LLMError, match="the cards cannot be read: .*hy-smi"):
        Freedom(tools, 64, 1).demand([BUSY])


@pytest.mark.parametrize(
    ("tools", "wanted", "timeout_s"),
    [({"probe": "cpu"}, ["cpu:0"], 60), ({}, [BUSY], 60), ({"probe": "hygon"}, [], 60), ({"probe": "hygon"}, [BUSY], 0)],
)
def test_what_cannot_be_held_is_not_waited_for(tools, wanted, timeout_s):
    assert Freedom(tools, 0, timeout_s).wait(wanted) == ""


def card(name, used, *holders):
    return Card(name, 0, "x", "x", "x", 65536, used, holders=list(holders))


def test_every_card_that_is_not_known_to_be_free_is_told():
    found = [card("a", 64), card("b", 65, Holder(7)), card("c", None), card("d", 900), card("e", 70, Holder(0, "other"))]
    assert held(found, ["a"], 64) == ""
    assert held(found, ["a", "b", "c", "d", "e", "f"], 64).split("; ") == [
        "b has 65 MiB in use by pid 7",
        "c does not say what memory is in use",
        "d has 900 MiB in use by nobody that is seen",
        "e has 70 MiB in use by container other",
        "f is not listed any more",
    ]
