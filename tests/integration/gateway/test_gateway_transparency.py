# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A small benchmarks/gateway_transparency.py. The benchmark has the goals; here a busy machine may be late."""

from __future__ import annotations

from integration.gateway import transparency


def test_a_stream_is_what_it_is_without_the_gateway(tmp_path):
    """Every chunk comes, as many as without it. An HAProxy that gathers chunks is late by 100 ms and more."""
    seen = transparency.compare(tmp_path, rounds=3, streams=2, tokens=20, rate=50, prefill_s=0.01)
    assert len(seen.through.lags) == len(seen.straight.lags) > 3 * 2 * 15
    assert seen.first_chunk < 30
    assert transparency.percentile(seen.through.lags, 0.5) - transparency.percentile(seen.straight.lags, 0.5) < 30


def test_every_place_of_every_engine_can_be_a_slow_stream(tmp_path):
    most, shares, _cpu = transparency.hold(tmp_path, engines=4, slots=50, tokens=12, rate=2)
    assert (most, shares) == (200, [50] * 4)


def test_prompts_of_half_a_megabyte_pass(tmp_path):
    prompts = transparency.long_prompts(tmp_path)
    assert all(size > 500_000 and good for size, good in prompts.values()), prompts
