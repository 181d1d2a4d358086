# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Weights cut into pieces: the table of their digests, which of them a host has, and where they lie. Private to the collection.

Pieces make it possible to send on the first megabytes of a file before the last have come, without ever sending on what was not
verified. The table is as trustworthy as its digest, which comes another way than the pieces (see _fanout).
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import threading

from ansible_collections.ironserve.llm.plugins.module_utils import _hashing, _manifest, _progress
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._manifest import Entry

#: Pieces are as small as this many of them allow: a chain of N hosts takes N - 1 pieces longer than one host.
PIECES = 2048
SMALLEST, LARGEST = 1 << 19, 32 << 20

_CHUNK = 1 << 20


# --- the table of pieces ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a file: its number in the table, the file's entry, first byte, length in bytes, and sha256."""

    number: int
    entry: Entry
    offset: int
    length: int
    sha256: str


def piece_size(total: int) -> int:
    """Length of a piece for ``total`` bytes: a power of two from 512 KiB to 32 MiB."""
    size = SMALLEST
    while size < LARGEST and total > size * PIECES:
        size *= 2
    return size


def cuts(entries: list[Entry], size: int) -> list[tuple[Entry, int, int]]:
    """``(entry, offset, length)`` of every piece, in the order of the manifest. A piece never spans files; an empty file has none."""
    return [(entry, offset, min(size, entry.size - offset)) for entry in entries for offset in range(0, entry.size, size)]


def make_table(root: str, entries: list[Entry], remembered: dict[str, list], progress_path: str = "") -> bytes:
    """The table of pieces of the weights at ``root``, as bytes that are the same for the same weights.

    ``remembered`` vouches for files, see ``_manifest.check_tree``; others are hashed whole first. Raises LLMError naming the file that is
    not what the manifest says.
    """
    progress = _progress.Progress(progress_path, "hash")
    results = _manifest.check_tree(root, entries, remembered, extras=False, report=progress.report)
    bad = [result.line() for result in results if result.verdict not in _manifest.BYTES_GOOD]
    if bad:
        raise LLMError(
            "{0}: these weights cannot be sent to other hosts: {1}. Have them verified and fetched again there".format(
                root, "; ".join(bad[:3])
            )
        )
    stamps = {result.path: result.stamp for result in results}
    size = piece_size(sum(entry.size for entry in entries))
    parts = cuts(entries, size)
    meter = _hashing.Meter(sum(entry.size for entry in entries), progress.report)

    def digest(part: tuple[Entry, int, int]) -> str:
        entry, offset, length = part
        found = _digest_at(os.path.join(root, *entry.path.split("/")), offset, length)
        meter.add(length, entry.path)
        return found

    digests = list(_hashing.side_by_side(digest, parts))
    for entry in entries:
        if _hashing.stamp_of(os.stat(os.path.join(root, *entry.path.split("/")))) != stamps[entry.path]:
            raise LLMError(
                "{0}: {1}: changed while it was hashed: somebody is still writing it. Stop that and run again".format(root, entry.path)
            )
    progress.finish()
    table = {"version": 1, "manifest_id": _manifest.manifest_id(entries), "piece": size, "digests": digests}
    return json.dumps(table, sort_keys=True, separators=(",", ":")).encode("ascii")


def _digest_at(path: str, offset: int, length: int) -> str:
    """sha256 of a part of a file; of less when the file ends before."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as handle:
        handle.seek(offset)
        while length:
            piece = handle.read(min(_CHUNK, length))
            if not piece:
                break
            digest.update(piece)
            length -= len(piece)
    return digest.hexdigest()


def read_table(raw: bytes, expected: str, entries: list[Entry]) -> list[Piece]:
    """The pieces in a table. Raises LLMError when it is not the one whose sha256 is ``expected``, or is about other files."""
    found = hashlib.sha256(raw).hexdigest()
    if found != expected:
        raise LLMError("the table of pieces has sha256 {0}, expected {1}".format(found, expected))
    table = json.loads(raw.decode("ascii"))
    parts = cuts(entries, table["piece"])
    if table["version"] != 1 or table["manifest_id"] != _manifest.manifest_id(entries) or len(table["digests"]) != len(parts):
        raise LLMError(
            "the table of pieces is about other weights than the manifest. Run again, with one recipe for all hosts of the chain"
        )
    return [Piece(number, *part, digest) for number, (part, digest) in enumerate(zip(parts, table["digests"]))]


# --- what a host has --------------------------------------------------------------------------------------------------


class Holdings:
    """Which pieces a host has verified, and where their files lie. May be used by several threads.

    A file lies in one of two places at most: where it grows, and where it is moved to when it is whole.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.table = b""
        self.pieces: list[Piece] = []
        self.has = bytearray()
        self.count = 0
        self.bytes = 0
        self._left: dict[str, int] = {}
        self._numbers: dict[str, range] = {}
        self._size = 1
        self._where: dict[str, str] = {}

    def learn(self, raw: bytes, pieces: list[Piece]) -> None:
        """The table is known from now on; nothing is had yet."""
        with self.changed:
            self.table, self.pieces, self.has = raw, pieces, bytearray(len(pieces))
            self._size = json.loads(raw.decode("ascii"))["piece"]
            for piece in pieces:
                first = self._numbers[piece.entry.path].start if piece.entry.path in self._numbers else piece.number
                self._numbers[piece.entry.path] = range(first, piece.number + 1)
            self._left = {path: len(numbers) for path, numbers in self._numbers.items()}
            self.changed.notify_all()

    def put(self, path: str, where: str) -> None:
        """The file ``path`` of the manifest lies at ``where`` from now on."""
        with self.changed:
            self._where[path] = where

    def place_of(self, path: str) -> str:
        """Where a file lies; empty when nothing of it is here."""
        with self.changed:
            return self._where.get(path, "")

    def add(self, piece: Piece) -> bool:
        """A piece is verified and on disk; returns whether its file is whole now."""
        with self.changed:
            if not self.has[piece.number]:
                self.has[piece.number] = 1
                self.count += 1
                self.bytes += piece.length
                self._left[piece.entry.path] -= 1
                self.changed.notify_all()
            return not self._left[piece.entry.path]

    def add_file(self, path: str, where: str) -> None:
        """All of a file is verified, and lies at ``where``."""
        self.put(path, where)
        for number in self._numbers.get(path, range(0)):
            self.add(self.pieces[number])

    def covered(self, path: str, begin: int, end: int) -> bool:
        """Whether every piece that has one of the bytes from ``begin`` to before ``end`` is here; to be called under ``changed``."""
        numbers = self._numbers.get(path, range(0))
        wanted = numbers[begin // self._size : (end - 1) // self._size + 1]
        return len(wanted) > 0 and all(self.has[number] for number in wanted)


# --- the files of a taker ---------------------------------------------------------------------------------------------


class Store:
    """The files of a taker: where they grow, and where they are moved to when they are whole."""

    def __init__(self, holdings: Holdings, pieces_dir: str, staging: str) -> None:
        self.holdings, self.pieces_dir, self.staging = holdings, pieces_dir, staging
        self._lock = threading.Lock()
        self.done: list[str] = []

    def growing(self, path: str) -> str:
        """Where a file grows."""
        return os.path.join(self.pieces_dir, *path.split("/"))

    def resume(self, wanted: list[Entry], meter: _hashing.Meter) -> int:
        """Find the right pieces in half files of an earlier try, drop what is not wanted, make the rest; returns the bytes found."""
        if os.path.lexists(self.pieces_dir) and (os.path.islink(self.pieces_dir) or not os.path.isdir(self.pieces_dir)):
            os.unlink(self.pieces_dir)
        os.makedirs(self.pieces_dir, mode=0o700, exist_ok=True)
        names = {entry.path: entry for entry in wanted}
        for path in _manifest.tree_files(self.pieces_dir):
            where = self.growing(path)
            if path not in names or os.path.islink(where) or not os.path.isfile(where):
                os.unlink(where)
        before = self.holdings.bytes
        for entry in wanted:
            where = self.growing(entry.path)
            os.makedirs(os.path.dirname(where), mode=0o700, exist_ok=True)
            with open(where, "ab"):
                pass
            if os.stat(where).st_size > entry.size:
                os.truncate(where, entry.size)
            self.holdings.put(entry.path, where)
        mine = [piece for piece in self.holdings.pieces if piece.entry.path in names]

        def look(piece: Piece) -> tuple[Piece, bool]:
            where = self.growing(piece.entry.path)
            good = _is_written(where, piece) and _digest_at(where, piece.offset, piece.length) == piece.sha256
            meter.add(piece.length, piece.entry.path)
            return piece, good

        for piece, good in _hashing.side_by_side(look, mine):
            if good and self.holdings.add(piece):
                self._move(piece.entry)
        for entry in wanted:
            if not entry.size:
                self._move(entry)
        return self.holdings.bytes - before

    def write(self, piece: Piece, body: bytearray, sender: str) -> None:
        """Put a verified piece on disk, and its file into the staging directory when that was the last one. Raises LLMError."""
        where = self.growing(piece.entry.path)
        try:
            number = os.open(where, os.O_WRONLY | os.O_CLOEXEC)
            try:
                view, at = memoryview(body), piece.offset
                while view:
                    count = os.pwrite(number, view, at)
                    view, at = view[count:], at + count
            finally:
                os.close(number)
            if self.holdings.add(piece):
                self._move(piece.entry)
        except OSError as exc:
            text = "no space left on the disk" if exc.errno in (errno.ENOSPC, errno.EDQUOT) else exc.strerror or str(exc)
            raise LLMError(
                "{0}: {1} while it came from {2}. What came so far is kept in {3}: make room there (or raise the quota) and run again, it goes "
                "on".format(piece.entry.path, text, sender, self.pieces_dir)
            ) from exc

    def _move(self, entry: Entry) -> None:
        target = os.path.join(self.staging, *entry.path.split("/"))
        with self._lock:
            _manifest.make_folder(os.path.dirname(target))
            if os.path.lexists(self.growing(entry.path)):
                os.chmod(self.growing(entry.path), 0o644)
                os.replace(self.growing(entry.path), target)
                self.holdings.put(entry.path, target)
                self.done.append(entry.path)


def _is_written(path: str, piece: Piece) -> bool:
    """Whether a file has data where a piece begins; a hole needs no reading."""
    with open(path, "rb") as handle:
        if os.fstat(handle.fileno()).st_size < piece.offset + piece.length:
            return False
        try:
            return os.lseek(handle.fileno(), piece.offset, os.SEEK_DATA) < piece.offset + piece.length
        except OSError as exc:
            # ENXIO: no data from here to the end. Anything else: a filesystem that cannot say.
            return exc.errno != errno.ENXIO
