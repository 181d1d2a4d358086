# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A small benchmarks/gateway_affinity.py: one seed of one trace on four engine stand-ins. The benchmark has the goals."""

from __future__ import annotations

from integration.gateway import traces


def test_prefixes_meet_their_caches(tmp_path):
    """Hits do not depend on how busy the machine is, as rates do: those are only held against worse."""
    played = {policy: traces.run("documents", 7, 120, policy, tmp_path) for policy in ("leastconn", "prefix_affinity", "knowing")}
    assert not any(result.bad for result in played.values())
    assert played["prefix_affinity"].hits >= 0.90 * played["knowing"].hits
    assert played["prefix_affinity"].hits >= played["leastconn"].hits + 0.15
    assert played["prefix_affinity"].rate >= 1.1 * played["leastconn"].rate


def test_the_loss_of_a_replica_moves_what_it_had_and_nothing_else(tmp_path):
    held, moved, strangers = traces.lose_one(tmp_path)
    assert held > 0
    assert (moved, strangers) == (held, 0)
