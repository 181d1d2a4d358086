# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hash files as fast as disk and cores allow, and tell how far it is. Private to the collection.

SHA-256 of one file is work for one core, whatever one does; so files are spread over the cores, largest first. hashlib and
read give the interpreter lock away. Files are read, not mapped: a file that shrinks or a disk that fails must be an error
with a name, and under a mapping both are a signal that ends the process.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import threading
import time
from typing import Any, Callable, Iterator

#: Gets bytes done, bytes in all, and the file that was being read.
Report = Callable[[int, int, str], None]

_CHUNK = 1 << 20
#: How far ahead of the hash the kernel is asked to read: its own read-ahead is 128 KiB on many hosts, too little for a fast
#: disk. It takes one request's worth of a call, so the calls are small.
_AHEAD = 8 << 20
_EVERY_S = 0.5


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def stamp_of(status: os.stat_result) -> list[int]:
    """The cheap identity of a file's bytes: ``[size, mtime_ns, inode]``."""
    return [status.st_size, status.st_mtime_ns, status.st_ino]


class Meter:
    """Adds up what several threads read, and tells ``report`` at the start, twice a second and at the end of each file.

    A report that cannot be written (a full disk) must not spoil a verification: its OSError is dropped.
    """

    def __init__(self, total: int, report: Report | None = None) -> None:
        self.total = total
        self.done = 0
        self._report = report
        self._next = 0.0
        self._lock = threading.Lock()
        self._tell("")

    def add(self, count: int, path: str) -> None:
        """``count`` more bytes of ``path`` are done."""
        if self._report is None:
            return
        with self._lock:
            self.done += count
            if time.monotonic() >= self._next:
                self._tell(path)

    def finish(self, path: str) -> None:
        """``path`` is done, well or not."""
        with self._lock:
            self._tell(path)

    def _tell(self, path: str) -> None:
        if self._report is not None:
            self._next = time.monotonic() + _EVERY_S
            with contextlib.suppress(OSError):
                self._report(self.done, self.total, path)


def sha256_of(path: str, meter: Meter | None = None, name: str = "") -> tuple[str, os.stat_result, bool]:
    """Hash a file: ``(hex digest, stat, stable)``; not stable when the file changed while it was read.

    ``meter`` is told of every megabyte, under ``name``. Raises OSError.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    with open(path, "rb", buffering=0) as handle:
        number = handle.fileno()
        before = os.fstat(number)
        at, asked = 0, 0
        while True:
            while asked < before.st_size and asked < at + _AHEAD:
                _read_ahead(number, asked)
                asked += _CHUNK
            count = handle.readinto(buffer)
            if not count:
                break
            digest.update(buffer[:count])
            at += count
            if meter is not None:
                meter.add(count, name)
        after = os.fstat(number)
    return digest.hexdigest(), after, stamp_of(before) == stamp_of(after)


def _read_ahead(number: int, offset: int) -> None:
    """Ask the kernel to have a piece of a file in memory soon. Only ever advice: what cannot take it goes on without."""
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(number, offset, _CHUNK, os.POSIX_FADV_WILLNEED)


def side_by_side(work: Callable[[Any], Any], items: list) -> Iterator[Any]:
    """Give ``work(item)`` for every item, in order, worked on by as many threads as there are cores."""
    if not items:
        return
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, min(len(items), cores()))) as pool:
        yield from pool.map(work, items)
