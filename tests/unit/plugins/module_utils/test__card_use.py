# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Card use on platform cpu is CPU time over wall time and cores; elsewhere it is honestly unknown."""

from __future__ import annotations

import os

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _card_use, _cgroup, _docker
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


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
