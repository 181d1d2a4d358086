# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Cores playing cards: memory decides how many, and always the same ones."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _docker, _probe_cpu
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor


@pytest.fixture
def no_engine(monkeypatch):
    def absent(*_args):
        raise _docker.EngineAbsent("no engine here")

    monkeypatch.setattr(_docker, "connect", absent)


def test_memory_total():
    assert _probe_cpu.parse_memory_total_mib("MemFree: 1 kB\nMemTotal:        8052184 kB\n") == 7863


@pytest.mark.parametrize("text", ["", "MemFree: 1 kB\n", "MemTotal: 8 GB\n", "MemTotal: 8\n"])
def test_memory_total_that_is_not_there(text):
    with pytest.raises(UnknownOutput, match="/proc/meminfo"):
        _probe_cpu.parse_memory_total_mib(text)


def test_cards_take_the_cores_in_turn():
    cards = _probe_cpu.lay_out([2, 5], 8192, 4, 1024)
    assert [card.cpuset for card in cards] == ["2", "5", "2", "5"]
    assert [card.id for card in cards] == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert {card.health for card in cards} == {"ok"}
    assert {card.memory_total_mib for card in cards} == {1024}


@pytest.mark.parametrize(("total", "count"), [(1024 + 1023, 0), (1024 + 1024, 1), (1024 + 3 * 1024, 3), (65536, 4), (512, 0)])
def test_memory_decides_after_the_hosts_own_share(total, count):
    assert len(_probe_cpu.lay_out([0, 1], total, 4, 1024)) == count


@given(st.integers(0, 65536), st.integers(1, 16), st.integers(1, 8192))
def test_cards_never_promise_more_memory_than_there_is(total, wanted, size):
    cards = _probe_cpu.lay_out([0, 1, 2], total, wanted, size)
    assert len(cards) <= wanted
    assert not cards or sum(card.memory_total_mib for card in cards) + _probe_cpu.HOST_RESERVE_MIB <= total
    assert cards == _probe_cpu.lay_out([0, 1, 2], total, wanted + 1, size)[: len(cards)], "more cards rename none"


def test_real_host_without_an_engine(no_engine):
    found = _probe_cpu.probe(Vendor(options={"cards": 1, "card_memory_mib": 1}))
    (card,) = found.cards
    assert int(card.cpuset) in os.sched_getaffinity(0)
    assert (card.utilisation_pct, card.memory_used_mib, card.holders) == (0.0, 0, [])
    assert card.architecture == os.uname().machine


def test_host_too_small_for_one_card_says_the_figures(no_engine):
    with pytest.raises(LLMError, match=r"one card of 100000000 MiB and 1024 MiB for the host .*accelerator_cpu_card_memory_mib"):
        _probe_cpu.probe(Vendor(options={"cards": 1, "card_memory_mib": 100000000}))


@pytest.mark.parametrize(("name", "value"), [("cards", 0), ("cards", -1), ("card_memory_mib", 0)])
def test_senseless_option_is_named(no_engine, name, value):
    with pytest.raises(LLMError, match="accelerator_cpu_{0} must be 1 or more, found {1}".format(name, value)):
        _probe_cpu.probe(Vendor(options=dict({"cards": 1, "card_memory_mib": 1}, **{name: value})))


def test_engine_that_breaks_is_an_error_and_not_an_idle_card(monkeypatch):
    class Broken:
        def containers(self, **_filters):
            raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(_docker, "connect", lambda *_args: Broken())
    with pytest.raises(LLMError, match="the container engine does not say what it runs: reset by peer"):
        _probe_cpu.probe(Vendor(options={"cards": 1, "card_memory_mib": 1}))


class Engine:
    """An engine whose containers are processes of this machine."""

    def __init__(self, containers):
        self.described = {name: {"Name": "/" + name, "State": {"Pid": pid}} for name, pid, _cards in containers}
        self.listed = [{"Names": ["/" + name], "Labels": {"ironserve.cards": cards}} for name, _pid, cards in containers]

    def containers(self, **_filters):
        return self.listed

    def inspect_container(self, name):
        return self.described[name]


def test_holders_are_those_on_the_card(monkeypatch):
    monkeypatch.setattr(_docker, "connect", lambda *_args: Engine([("ironserve-c1", os.getpid(), "cpu:1")]))
    monkeypatch.setattr(_probe_cpu, "WINDOW_S", 0)
    monkeypatch.setattr(_probe_cpu, "lay_out", lambda cores, _total, cards, mib: real_lay_out(cores, 1 << 20, cards, mib))
    monkeypatch.setattr(_probe_cpu._cgroup, "account_of", lambda pid, account: f"/group/{account}.stat")
    monkeypatch.setattr(_probe_cpu._cgroup, "cpu_seconds", lambda path: {"/group/cpu.stat": 7.0}[path])
    monkeypatch.setattr(_probe_cpu._cgroup, "memory_bytes", lambda _pid: 5 * 2**20)
    found = _probe_cpu.probe(Vendor(options={"cards": 2, "card_memory_mib": 1}))
    assert [[holder.container for holder in card.holders] for card in found.cards] == [[], ["ironserve-c1"]]
    assert [card.memory_used_mib for card in found.cards] == [0, 5]


def test_replica_that_ends_meanwhile_is_said(monkeypatch):
    monkeypatch.setattr(_docker, "connect", lambda *_args: Engine([("ironserve-c0", 2**22 + 1, "cpu:0")]))
    with pytest.raises(LLMError, match="a replica ended while its control group was read.*run again"):
        _probe_cpu.probe(Vendor(options={"cards": 1, "card_memory_mib": 1}))


real_lay_out = _probe_cpu.lay_out
