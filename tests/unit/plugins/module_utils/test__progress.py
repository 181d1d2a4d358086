# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Progress files: what is written, what a person reads, and how often."""

from __future__ import annotations

import json
import os

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _progress


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rate_time_left_and_line(tmp_path, clock):
    path = str(tmp_path / "p.json")
    progress = _progress.Progress(path, "download", 1000_000_000, 4, clock=clock)
    progress.update(200_000_000, ["a.safetensors"], 1)
    clock.now += 10
    progress.update(300_000_000, ["a.safetensors", "b.safetensors"], 1)
    state = _progress.read(path)
    # 100 MB in 10 s; the 200 MB of an earlier run are no speed. 700 MB are left.
    assert state["rate_bytes_s"] == pytest.approx(10_000_000)
    assert _progress.line(state) == ("downloading a.safetensors and 1 more, 30 % of 1.0 GB, 1 of 4 files done, 10.0 MB/s, 1 min 10 s left")


def test_the_rate_is_the_one_of_the_last_half_minute(clock):
    progress = _progress.Progress("", "hash", 10_000, clock=clock)
    for step in range(61):
        progress.update(step * (10 if step <= 30 else 20) - (300 if step > 30 else 0))
        clock.now += 1
    # 10 a second at first, 20 a second since: the window only holds the latter
    assert progress.snapshot["rate_bytes_s"] == pytest.approx(20)


def test_standing_still_is_told_instead_of_an_old_rate(clock):
    progress = _progress.Progress("", "download", 1000, clock=clock)
    progress.update(100, ["a"])
    clock.now += 5
    progress.update(400, ["a"])
    clock.now += 20
    progress.update(400, ["a"])
    assert progress.snapshot["idle_s"] == 20
    assert _progress.line(progress.snapshot) == "downloading a, 40 % of 1.0 kB, nothing came for 20 s"
    clock.now += 20
    progress.update(400, ["a"])
    clock.now += 1
    progress.update(400, ["a"])
    assert progress.snapshot["rate_bytes_s"] is None


def test_a_file_is_not_written_more_often_than_the_interval(tmp_path, clock):
    path = tmp_path / "p.json"
    progress = _progress.Progress(str(path), "hash", 100, interval_s=1.0, clock=clock)
    progress.update(1)
    clock.now += 0.5
    progress.update(2)
    assert json.loads(path.read_text())["done_bytes"] == 1
    clock.now += 0.6
    progress.report(3, 200, "x")
    assert (json.loads(path.read_text())["done_bytes"], json.loads(path.read_text())["total_bytes"]) == (3, 200)
    progress.update(4)
    progress.finish()
    state = _progress.read(str(path))
    assert (state["done_bytes"], state["finished"], state["files"]) == (4, True, [])
    assert os.listdir(tmp_path) == ["p.json"]


def test_a_file_that_cannot_be_written_does_not_stop_the_work(tmp_path):
    progress = _progress.Progress(str(tmp_path / "no" / "p.json"), "hash", 100)
    progress.update(1)
    progress.finish()
    assert progress.snapshot["finished"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "phase": "hash"}', '{"version": 1, "phase": "sing"}'])
def test_what_is_no_progress_file_is_no_progress(tmp_path, text):
    (tmp_path / "p").write_text(text)
    assert _progress.read(str(tmp_path / "p")) == {}
    assert _progress.read(str(tmp_path / "none")) == {}


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (35_000_000_000, "35.0 GB"), (2.5e12, "2.5 TB"), (9e15, "9000.0 TB")]
)
def test_sizes(count, text):
    assert _progress.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (3600, "1 h 00 min"), (7805, "2 h 10 min")]
)
def test_spans(seconds, text):
    assert _progress.span(seconds) == text


def test_hundred_per_cent_means_all():
    assert _progress.percent({"done_bytes": 999_999, "total_bytes": 1_000_000}) == 99
    assert _progress.percent({"done_bytes": 0, "total_bytes": 0}) == 0


def state(done, phase="download", finished=False):
    return {"phase": phase, "done_bytes": done, "total_bytes": 100, "finished": finished}


def test_lines_come_at_once_then_by_steps_then_by_the_minute():
    teller = _progress.Teller()
    assert not teller.due({}, 0)
    assert teller.due(state(0), 0)
    # much is done, but the last line is only a moment old
    assert not teller.due(state(50), 4)
    assert teller.due(state(50), 5)
    # too little is done
    assert not teller.due(state(54), 30)
    assert teller.due(state(55), 30)
    # nothing at all is done: still a sign of life
    assert not teller.due(state(55), 89)
    assert teller.due(state(55), 90)
    assert teller.due(state(0, "hash"), 91)
    assert not teller.due(state(100, "hash", True), 200)


def test_a_day_long_download_does_not_flood_the_log():
    teller = _progress.Teller()
    told = sum(teller.due(state(second * 100 // 86400), second) for second in range(86400))
    assert told <= 86400 / 60 + 1
    teller = _progress.Teller()
    assert sum(teller.due(state(second), second) for second in range(101)) <= 21
