# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Starts as they are seen from outside, a sample every three seconds: what works is never given up, what stands still is, and when."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._liveness import Liveness, Sample

STALL_S = 600


def given_up(cpu_s, memory_mib, seconds=3600, stall_s=STALL_S):
    """The second at which a start is given up, whose CPU time and memory are functions of the second; None for never."""
    liveness = Liveness(stall_s)
    for at in range(0, seconds, 3):
        if liveness.note(Sample(1000.0 + at, cpu_s(at), memory_mib(at))):
            return at
    return None


def still(_at):
    return 812.0


@pytest.mark.parametrize(
    ("cpu_s", "memory_mib"),
    [
        # Compiles on one core; on a twentieth of one.
        (lambda at: at, still),
        (lambda at: at / 20, still),
        # Reads weights from a slow disk: 17 GB in an hour, next to no CPU time.
        (lambda at: at / 500, lambda at: at * 5),
        # Reads even more slowly: 100 MiB in an hour.
        (still, lambda at: at / 36),
        # Gives memory back.
        (still, lambda at: 40000 - at),
        # Works one minute in nine.
        (lambda at: at // 540 * 60, still),
    ],
)
def test_what_works_is_waited_for(cpu_s, memory_mib):
    assert given_up(cpu_s, memory_mib) is None


@pytest.mark.parametrize(
    ("cpu_s", "memory_mib", "second"),
    [
        (still, still, 600),
        # Threads that wake up and find nothing to do.
        (lambda at: at * 0.005, still, 600),
        (still, lambda at: 812 + at % 10, 600),
        # Worked for a quarter of an hour, then waited for ever.
        (lambda at: min(at, 900), still, 1500),
        (still, lambda at: min(at, 900), 1500),
    ],
)
def test_what_stands_still_is_given_up(cpu_s, memory_mib, second):
    assert given_up(cpu_s, memory_mib) == second


def test_it_is_said_how_long_and_at_what():
    liveness = Liveness(10)
    assert liveness.note(Sample(100, 5.0, 800)) == ""
    assert liveness.note(Sample(109, 5.05, 801)) == ""
    assert liveness.note(Sample(110, 5.06, 801)) == "for 10 s it used 0.1 s of CPU time, and its memory stands at 801 MiB"
    assert liveness.line() == "its last sign of life was 10 s ago, at 5 s of CPU time and 800 MiB"


def test_a_start_that_began_anew_is_a_sign_of_life():
    liveness = Liveness(10)
    liveness.note(Sample(100, 5.0, 800))
    assert liveness.note(Sample(111, 4.0, 800)) == ""
    assert liveness.note(Sample(120, 4.0, 800)) == ""
    assert liveness.note(Sample(121, 4.0, 800)) != ""


def test_nothing_was_seen_yet():
    assert Liveness(10).line() == ""


def test_zero_waits_for_ever():
    assert given_up(still, still, stall_s=0) is None
