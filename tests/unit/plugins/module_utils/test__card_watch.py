# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What cards did in a window: weighted by time, of all cards of the replica, and None with a reason where it is not known."""

from __future__ import annotations

import time

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _card_use, _card_watch, _cgroup, _docker
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Card
from ansible_collections.ironserve.llm.plugins.module_utils._card_watch import ContainerReader, ProbeReader, Watch
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


class Steady:
    why = "no reason"

    def __init__(self, *readings):
        self.readings = list(readings)

    def read(self):
        found = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(found, Exception):
            raise found
        return found


def watched(reader, seconds=0.05, period_s=0.01):
    one = Watch(reader, period_s=period_s)
    one.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end or not one.samples and not isinstance(reader.readings[0], Exception):
        time.sleep(0.005)
    return one.stop()


def test_means_and_maxima_of_what_was_read():
    found = watched(Steady((50.0, 1000.0, 200.0, 64000.0)))
    assert found["utilisation_pct"] == {"mean": pytest.approx(50.0), "max": 50.0}
    assert found["power_w"]["max"] == 200.0 and found["memory_total_mib"] == 64000.0 and found["why"] == ""
    assert len(found["samples"]) >= 2 and found["samples"][0][1:] == [50.0, 1000.0, 200.0]


def test_each_reading_stands_for_the_time_before_it():
    rows = [(1.0, 100.0), (4.0, 0.0)]
    assert _card_watch._statistics([use for _at, use in rows], rows) == {"mean": pytest.approx(25.0), "max": 100.0}
    assert _card_watch._statistics([], []) is None and _card_watch._statistics([1.0, None], rows) is None


def test_a_figure_the_platform_does_not_have_is_null_and_the_others_stay():
    found = watched(Steady((50.0, 1000.0, None, None)))
    assert found["power_w"] is None and found["memory_used_mib"]["max"] == 1000.0 and found["why"] == "no reason"


def test_a_reading_that_fails_ends_the_watch_with_its_reason():
    found = watched(Steady(LLMError("the tool hangs")))
    assert found["why"] == "the tool hangs" and found["samples"] == [] and found["utilisation_pct"] is None


def test_a_short_window_is_read_at_its_end():
    one = Watch(Steady((70.0, 1.0, 2.0, 3.0)), period_s=60.0)
    one.start()
    assert one.stop()["utilisation_pct"] == {"mean": 70.0, "max": 70.0}


def card(name, **more):
    values = {"utilisation_pct": 40.0, "memory_used_mib": 100, "power_w": 50.0}
    values.update(more)
    return Card(name, 0, "c", "C", "x", 1000, **values)


def test_cards_of_a_replica_are_put_together():
    found = [card("a"), card("b", utilisation_pct=60.0, power_w=70.0), card("c", utilisation_pct=0.0)]
    assert ProbeReader(lambda: found, ["a", "b"]).read() == (50.0, 200.0, 120.0, 2000.0)
    assert ProbeReader(lambda: found + [card("d", power_w=None)], ["a", "d"]).read() == (40.0, 200.0, None, 2000.0)
    for wanted, said in ((["z"], "does not show z"), ([], "any card of this replica")):
        with pytest.raises(LLMError, match=said):
            ProbeReader(lambda: found, wanted).read()


def test_cores_are_read_from_the_control_group(monkeypatch):
    """5 s in which 4 s of CPU time pass, then 5 s with none: of one card 80 % and 0 %."""
    clock = iter([100.0, 105.0, 110.0])
    use = iter([80.0, 40.0])
    monkeypatch.setattr(_card_use, "sampler", lambda platform, container, cards: type("S", (), {"percent": lambda self: next(use)})())
    monkeypatch.setattr(_docker, "container_pid", lambda name: 77)
    monkeypatch.setattr(_cgroup, "memory_bytes", lambda pid: {77: 3 * 1048576}[pid])
    monkeypatch.setattr(_card_watch.time, "monotonic", lambda: next(clock))
    reader = ContainerReader("cpu", "c0", ["cpu:0"])
    assert reader.read() == (pytest.approx(80.0), 3.0, None, None)
    assert reader.read() == (pytest.approx(0.0), 3.0, None, None)


def test_who_watches_what(monkeypatch):
    assert _card_watch.watch("cpu", "", ["cpu:0"], "cpu", None, 1.0).stop()["why"] == "no container on this host belongs to this endpoint"
    assert 'platform "abacus" has no card use sampler' in _card_watch.watch("abacus", "c0", [], "", None, 1.0).stop()["why"]
    monkeypatch.setitem(_card_watch.PROBES, "hygon", lambda vendor: type("A", (), {"cards": [card(vendor)]})())
    one = _card_watch.watch("hygon_k100ai", "c0", ["v"], "hygon", "v", 60.0)
    one.start()
    assert one.stop()["power_w"] == {"mean": 50.0, "max": 50.0}
