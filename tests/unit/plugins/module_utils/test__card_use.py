# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Card use on platform cpu is CPU time over wall time and cores; elsewhere it is honestly unknown."""

from __future__ import annotations

import os
import threading
import time

import pytest
import yaml
from replay import hosts, smi

from ansible_collections.ironserve.llm.plugins.module_utils import _card_use, _cgroup, _docker
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Accelerators, Card
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._run import Completed
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor


def test_use_is_cpu_seconds_over_wall_seconds_and_cards(monkeypatch):
    monkeypatch.setattr(_docker, "container_pid", lambda name: {"c0": 4711}[name])
    monkeypatch.setattr(_cgroup, "account_of", lambda pid, account: {(4711, "cpu"): "/group/cpu.stat"}[pid, account])
    seconds = iter([10.0, 13.0])
    monkeypatch.setattr(_cgroup, "cpu_seconds", lambda path: {"/group/cpu.stat": seconds}[path].__next__())
    clock = iter([100.0, 102.0])
    monkeypatch.setattr(_card_use.time, "monotonic", lambda: next(clock))
    assert _card_use.sampler("cpu", "c0", ["cpu:0", "cpu:1"]).percent() == pytest.approx(75.0)


@pytest.mark.parametrize(
    "platform, container, message",
    [("cpu", "", "no container belongs"), ("abacus", "c0", 'platform "abacus" has no card use sampler')],
)
def test_nothing_to_sample_by_design(platform, container, message):
    with pytest.raises(_card_use.NoSampler, match=message):
        _card_use.sampler(platform, container, [])


def test_a_container_that_ends_meanwhile_is_an_error_and_no_figure_of_another_group(monkeypatch, tmp_path):
    """Its process is then found in the root group, whose CPU time is the whole machine's."""
    account = tmp_path / "cpu.stat"
    account.write_text("usage_usec 2500000\n")
    places = iter([str(account), "/sys/fs/cgroup/cpu.stat"])
    monkeypatch.setattr(_docker, "container_pid", lambda name: 4711)
    monkeypatch.setattr(_cgroup, "account_of", lambda pid, account: next(places))
    sampler = _card_use.sampler("cpu", "c0", ["cpu:0"])
    account.unlink()
    with pytest.raises(LLMError, match="CPU time of container c0 can't be read, it probably ended"):
        sampler.percent()


def test_a_process_that_is_gone_is_an_error_not_zero(monkeypatch):
    monkeypatch.setattr(_docker, "container_pid", lambda name: 2**22 + os.getpid())
    with pytest.raises(LLMError, match="can't be read") as caught:
        _card_use.sampler("cpu", "c0", [])
    assert not isinstance(caught.value, _card_use.NoSampler)


def reads(*uses):
    """A probe whose card shows these, one after the other; the last one for good."""
    left = list(uses)

    def probe(_vendor):
        use = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(use, Exception):
            raise use
        return Accelerators(
            "played", "tool", [Card("c{0}".format(n), n, "", "", "", 1, utilisation_pct=value) for n, value in enumerate(use)]
        )

    probe.left = left
    return probe


def test_use_of_a_tool_is_the_mean_of_its_readings_over_the_replicas_own_cards():
    over = threading.Event()
    uses = [[10.0, 99.0, 30.0], [30.0, 99.0, 50.0]]

    def probe(_vendor):
        if not uses:
            over.wait(5)
            raise LLMError("ended")
        values = uses.pop(0)
        return Accelerators(
            "played", "tool", [Card("c{0}".format(n), n, "", "", "", 1, utilisation_pct=value) for n, value in enumerate(values)]
        )

    sampler = _card_use.ToolSampler(probe, Vendor(), ["c0", "c2"], interval_s=0.005)
    while uses:
        time.sleep(0.002)
    sampler.close()
    over.set()
    assert sampler.percent() == pytest.approx(30.0)


@pytest.mark.parametrize(
    "use, message",
    [
        ([None], "does not say how busy card c0 is"),
        ([], "does not list card c0 any more; it lists none"),
        (LLMError("hy-smi ended with status 1"), "hy-smi ended with status 1"),
    ],
)
def test_what_a_tool_does_not_say_is_unknown_and_never_idle(use, message):
    sampler = _card_use.ToolSampler(reads(use), Vendor(), ["c0"], interval_s=0.005)
    with pytest.raises(LLMError, match=message) as caught:
        sampler.percent()
    sampler.close()
    assert not isinstance(caught.value, _card_use.NoSampler)


def test_one_odd_reading_among_good_ones_is_passed_over():
    probe = reads(LLMError("busy"), [40.0])
    sampler = _card_use.ToolSampler(probe, Vendor(), ["c0"], interval_s=0.005)
    end = time.monotonic() + 10
    while not sampler._values and time.monotonic() < end:
        time.sleep(0.002)
    sampler.close()
    assert sampler.percent() == pytest.approx(40.0)
    assert len(probe.left) == 1


def test_a_replica_without_cards_cannot_be_seen():
    with pytest.raises(LLMError, match="no card is named for container c0"):
        _card_use.sampler("hygon_k100ai", "c0", [], {"probe": "hygon"})


@pytest.mark.parametrize("kind", sorted(hosts.KINDS))
def test_the_platforms_tools_are_read_through_their_probes(kind, tmp_path, monkeypatch):
    """Hosts of every vendor, played from captures; their cards are idle, for no container runs on them."""
    root = tmp_path / "host"
    told = hosts.write(root, kind + "-01", {})
    path = hosts.ROOT / "roles/catalog/platforms/{0}.yml".format(hosts.KINDS[kind].platform)
    platform = yaml.safe_load(path.read_text(encoding="utf-8"))
    tools = {"probe": platform["probe"], "tools": platform["tools"], "environment": platform.get("tool_environment"), "root": str(root)}
    cards = [smi.Card(**card) for card in told["cards"]]

    def run(vendor, name, *arguments):
        if vendor.tool(name) != told["tool"]:
            return plain(vendor, name, *arguments)
        said = smi.answer(told, list(arguments), smi.follow(cards, [], told["scale"], smi.Faults()), smi.Faults())
        return Completed([told["tool"]] + list(arguments), said.rc, said.out, said.err)

    plain = Vendor.run
    monkeypatch.setattr(Vendor, "run", run)
    monkeypatch.setattr(_card_use, "INTERVAL_S", 0.01)
    probe = _card_use._probe_of(platform["probe"])
    card = probe(Vendor(platform["tools"], platform.get("tool_environment"), 60, str(root))).cards[0]
    sampler = _card_use.sampler(platform["name"], "c0", [card.id], tools)
    assert isinstance(sampler, _card_use.ToolSampler)
    assert sampler.percent() == pytest.approx(card.utilisation_pct)
    sampler.close()
