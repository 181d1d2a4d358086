# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How far a long piece of work is: written beside the work, read and told by whoever waits. Private to the collection.

The writer replaces one small JSON file; a reader never meets half of it. A progress file can only inform: nothing is
ever decided by it, and a disk that is too full for it does not stop the work.

Shape of the file: ``{"version": 1, "phase": "download", "files": [<paths at work>], "files_done": 3, "files_total": 8,
"done_bytes": ..., "total_bytes": ..., "rate_bytes_s": ..., "idle_s": ..., "seconds": ..., "finished": false}``.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import threading
import time
from typing import Callable, Iterable

VERSION = 1

#: Phases, and how a line about each begins.
PHASES = {"list": "reading the file list", "download": "downloading", "hash": "hashing", "copy": "copying", "fan_out": "sending"}

#: Length of the window over which a rate is taken, in seconds.
WINDOW_S = 30.0

#: A rate is told only when nothing stood still for longer than this, in seconds.
IDLE_S = 15.0

#: Lines are told when this share more is done (in per cent) and this many seconds passed, or this many seconds at the latest.
STEP_PCT = 5
SOONEST_S = 5.0
LATEST_S = 60.0


class Progress:
    """Writes a progress file. May be used by several threads.

    Args:
        path: the file; empty writes nothing.
        phase: one of PHASES.
        total_bytes: bytes of the whole work, those done by an earlier run included.
        files_total: number of files.
        interval_s: a file is written at most once in this time, in seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        path: str,
        phase: str,
        total_bytes: int = 0,
        files_total: int = 0,
        interval_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._start = clock()
        self._written = None
        self._moved = self._start
        self._window = collections.deque()
        self.snapshot = {
            "version": VERSION,
            "phase": phase,
            "files": [],
            "files_done": 0,
            "files_total": files_total,
            "done_bytes": 0,
            "total_bytes": total_bytes,
            "rate_bytes_s": None,
            "idle_s": 0.0,
            "seconds": 0.0,
            "finished": False,
        }

    def update(self, done_bytes: int, files: Iterable[str] = (), files_done: int | None = None) -> None:
        """Say how many bytes are done in all, which files are at work, and how many are done."""
        with self._lock:
            now = self._clock()
            known = self.snapshot
            if done_bytes != known["done_bytes"]:
                self._moved = now
            if not self._window:
                # What an earlier run did is no speed of this one.
                self._moved = now
            self._window.append((now, done_bytes))
            while len(self._window) > 2 and now - self._window[1][0] >= WINDOW_S:
                self._window.popleft()
            since, before = self._window[0]
            rate = (done_bytes - before) / (now - since) if now - since >= 1.0 and done_bytes > before else None
            known.update(
                done_bytes=done_bytes,
                files=list(files),
                rate_bytes_s=rate,
                idle_s=round(now - self._moved, 1),
                seconds=round(now - self._start, 1),
            )
            if files_done is not None:
                known["files_done"] = files_done
            if self._written is None or now - self._written >= self._interval_s:
                self._write(now)

    def report(self, done_bytes: int, total_bytes: int, path: str) -> None:
        """The same for work that knows its total only on the way."""
        self.snapshot["total_bytes"] = total_bytes
        self.update(done_bytes, [path] if path else [])

    def finish(self) -> None:
        """Write the last state, whatever the interval says."""
        with self._lock:
            now = self._clock()
            self.snapshot.update(files=[], finished=True, seconds=round(now - self._start, 1))
            self._write(now)

    def _write(self, now: float) -> None:
        self._written = now
        if not self._path:
            return
        # Work goes on without a progress file, so an error here is none.
        temporary = "{0}.{1}".format(self._path, os.getpid())
        with contextlib.suppress(OSError):
            try:
                with open(temporary, "w", encoding="utf-8") as handle:
                    json.dump(self.snapshot, handle)
                os.replace(temporary, self._path)
            except OSError:
                os.unlink(temporary)


def read(path: str) -> dict:
    """The last state in a progress file; empty when there is none, or none of ours."""
    try:
        with open(path, encoding="utf-8") as handle:
            data = json.load(handle)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) and data.get("version") == VERSION and data.get("phase") in PHASES else {}


def size(count: float) -> str:
    """Bytes as people read them, decimal as disks and networks are sold: ``35.0 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return "{0:.0f} {1}".format(count, unit) if unit == "B" else "{0:.1f} {1}".format(count, unit)
        count /= 1000.0
    return "{0:.1f} TB".format(count)


def span(seconds: float) -> str:
    """A time as people read it: ``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = int(round(seconds))
    if whole < 60:
        return "{0} s".format(whole)
    if whole < 3600:
        return "{0} min {1:02d} s".format(whole // 60, whole % 60)
    return "{0} h {1:02d} min".format(whole // 3600, whole % 3600 // 60)


def percent(snapshot: dict) -> int:
    """Share done in whole per cent, rounded down, so that 100 means all."""
    total = snapshot["total_bytes"]
    return min(100, snapshot["done_bytes"] * 100 // total) if total else 0


def line(snapshot: dict) -> str:
    """One line: what is done to which file, per cent, bytes, rate and time left (or for how long nothing moved)."""
    files = snapshot["files"]
    parts = [PHASES[snapshot["phase"]]]
    if files:
        parts[0] += " " + files[0]
        if len(files) > 1:
            parts[0] += " and {0} more".format(len(files) - 1)
    if snapshot["total_bytes"]:
        parts.append("{0} % of {1}".format(percent(snapshot), size(snapshot["total_bytes"])))
    if snapshot["files_total"] > 1:
        parts.append("{0} of {1} files done".format(snapshot["files_done"], snapshot["files_total"]))
    rate = snapshot["rate_bytes_s"]
    left = snapshot["total_bytes"] - snapshot["done_bytes"]
    if snapshot["finished"]:
        parts.append("in {0}".format(span(snapshot["seconds"])))
    elif snapshot["idle_s"] >= IDLE_S:
        parts.append("nothing came for {0}".format(span(snapshot["idle_s"])))
    elif rate:
        parts.append("{0}/s".format(size(rate)))
        if left > 0:
            parts.append("{0} left".format(span(left / rate)))
    return ", ".join(parts)


class Teller:
    """Chooses the moments worth a line, so that neither a terminal nor a log is flooded."""

    def __init__(self) -> None:
        self._told_at = None
        self._told_pct = 0
        self._phase = ""

    def due(self, snapshot: dict, now: float) -> bool:
        """Whether to tell this state at ``now`` (monotonic seconds); a yes counts as told."""
        if not snapshot:
            return False
        done = percent(snapshot)
        since = None if self._told_at is None else now - self._told_at
        if snapshot["phase"] == self._phase and since is not None:
            if snapshot["finished"] or since < SOONEST_S:
                return False
            if done - self._told_pct < STEP_PCT and since < LATEST_S:
                return False
        self._told_at, self._told_pct, self._phase = now, done, snapshot["phase"]
        return True
