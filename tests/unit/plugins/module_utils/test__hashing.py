# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hashing side by side: right digests, files that change or fail, and how the progress is told."""

from __future__ import annotations

import hashlib
import os
import threading

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _hashing


@pytest.mark.parametrize("size", [0, 1, _hashing._CHUNK - 1, _hashing._CHUNK, _hashing._CHUNK + 1, 3 * _hashing._AHEAD + 5])
def test_the_digest_is_that_of_the_bytes(tmp_path, size):
    data = os.urandom(size)
    path = tmp_path / "f"
    path.write_bytes(data)
    digest, status, stable = _hashing.sha256_of(str(path))
    assert (digest, status.st_size, stable) == (hashlib.sha256(data).hexdigest(), size, True)


def test_without_read_ahead_it_goes_on(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"x" * 10)
    monkeypatch.delattr(os, "posix_fadvise")
    assert _hashing.sha256_of(str(tmp_path / "f"))[0] == hashlib.sha256(b"x" * 10).hexdigest()


@pytest.mark.parametrize("how", ["grow", "shrink", "touch"])
def test_a_file_that_changes_while_it_is_read_is_not_stable(tmp_path, how):
    path = tmp_path / "f"
    path.write_bytes(bytes(4 * _hashing._CHUNK))

    def report(done, total, name):
        if done == _hashing._CHUNK:
            if how == "touch":
                os.utime(path, ns=(5, 5))
            else:
                os.truncate(path, {"grow": 6, "shrink": 2}[how] * _hashing._CHUNK)

    meter = _hashing.Meter(4 * _hashing._CHUNK, report)
    meter._next = 0.0
    assert _hashing.sha256_of(str(path), meter, "f")[2] is False


def test_a_file_that_is_not_there_is_an_error_with_its_name(tmp_path):
    with pytest.raises(OSError, match="nothing-here"):
        _hashing.sha256_of(str(tmp_path / "nothing-here"))


def test_progress_is_told_at_the_start_now_and_then_and_at_each_end(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(_hashing.time, "monotonic", lambda: clock[0])
    told = []
    meter = _hashing.Meter(100, lambda *args: told.append(args))
    for _step in range(4):
        meter.add(10, "a")
    assert told == [(0, 100, "")]
    clock[0] += _hashing._EVERY_S
    meter.add(10, "a")
    meter.add(10, "b")
    assert told == [(0, 100, ""), (50, 100, "a")]
    meter.finish("a")
    assert told[-1] == (60, 100, "a") and len(told) == 3


def test_what_many_threads_read_adds_up():
    told = []
    meter = _hashing.Meter(8000, lambda *args: told.append(args))

    def work(name):
        for _step in range(1000):
            meter.add(1, name)
        meter.finish(name)

    list(_hashing.side_by_side(work, list("abcdefgh")))
    assert told[-1][:2] == (8000, 8000)
    assert [done for done, _total, _name in told] == sorted(done for done, _total, _name in told)


def test_a_progress_that_cannot_be_written_spoils_nothing_and_a_mistake_in_it_is_seen(tmp_path):
    (tmp_path / "f").write_bytes(b"x")

    def full(done, total, name):
        raise OSError(28, "No space left on device")

    def wrong(done, total, name):
        raise KeyError(name)

    assert _hashing.sha256_of(str(tmp_path / "f"), _hashing.Meter(1, full), "f")[2]
    with pytest.raises(KeyError):
        _hashing.Meter(1, wrong)


def test_work_is_done_on_as_many_threads_as_there_are_cores_and_comes_back_in_order(monkeypatch):
    monkeypatch.setattr(_hashing, "cores", lambda: 3)
    together = threading.Barrier(3, timeout=20)
    seen = set()

    def work(item):
        together.wait()
        seen.add(threading.get_ident())
        return item * 2

    assert list(_hashing.side_by_side(work, [3, 1, 2])) == [6, 2, 4]
    assert len(seen) == 3
    assert list(_hashing.side_by_side(work, [])) == []


def test_cores_are_those_this_process_may_use():
    assert _hashing.cores() == len(os.sched_getaffinity(0))
