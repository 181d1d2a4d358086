# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pieces of weights: how they are cut, their table, what a host has of them, and what an interrupted host finds again."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _hashing, _manifest, _pieces
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

UNIT = _pieces.SMALLEST
FILES = {"a.bin": os.urandom(2 * UNIT + 5), "empty": b"", "sub/b.bin": b"\0" * UNIT + b"end", "z": b"{}"}
ENTRIES = _manifest.parse_manifest([{"path": p, "size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for p, d in FILES.items()])


@pytest.fixture
def origin(tmp_path) -> Path:
    for path, data in FILES.items():
        (tmp_path / "o" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "o" / path).write_bytes(data)
    return tmp_path / "o"


def table(origin: Path) -> tuple[bytes, list[_pieces.Piece]]:
    raw = _pieces.make_table(str(origin), ENTRIES, {})
    return raw, _pieces.read_table(raw, hashlib.sha256(raw).hexdigest(), ENTRIES)


@pytest.mark.parametrize(
    ("total", "size"), [(0, 1), (UNIT, 1), (2048 * UNIT, 1), (2048 * UNIT + 1, 2), (35 * 10**9, 64), (10**12, 64), (5 * 10**9, 8)]
)
def test_the_size_of_a_piece(total, size):
    assert _pieces.piece_size(total) == size * UNIT


@given(st.lists(st.integers(0, 70), min_size=1, max_size=6), st.integers(1, 20))
def test_pieces_cover_every_byte_once_and_span_no_files(sizes, size):
    entries = [_manifest.Entry(str(number), length, "0" * 64) for number, length in enumerate(sizes)]
    seen = [(entry.path, at) for entry, offset, length in _pieces.cuts(entries, size) for at in range(offset, offset + length)]
    assert seen == [(entry.path, at) for entry in entries for at in range(entry.size)]
    assert all(0 < length <= size for _entry, _offset, length in _pieces.cuts(entries, size))


def test_the_table_says_the_digest_of_every_piece(origin):
    raw, pieces = table(origin)
    assert [(piece.number, piece.entry.path, piece.offset, piece.length) for piece in pieces] == [
        (0, "a.bin", 0, UNIT),
        (1, "a.bin", UNIT, UNIT),
        (2, "a.bin", 2 * UNIT, 5),
        (3, "sub/b.bin", 0, UNIT),
        (4, "sub/b.bin", UNIT, 3),
        (5, "z", 0, 2),
    ]
    for piece in pieces:
        assert piece.sha256 == hashlib.sha256(FILES[piece.entry.path][piece.offset : piece.offset + piece.length]).hexdigest()
    assert table(origin)[0] == raw


@pytest.mark.parametrize("what", ["byte", "size", "missing"])
def test_wrong_weights_give_no_table(origin, what):
    path = origin / "a.bin"
    if what == "missing":
        path.unlink()
    else:
        path.write_bytes(b"x" + FILES["a.bin"][1:] if what == "byte" else FILES["a.bin"][:-1])
    with pytest.raises(LLMError, match="cannot be sent to other hosts: a.bin: (wrong_sha256|wrong_size|missing)"):
        table(origin)


def test_a_file_the_marker_vouches_for_is_read_once_only(origin, monkeypatch):
    stamps = {entry.path: _hashing.stamp_of(os.stat(origin / entry.path)) + [entry.sha256] for entry in ENTRIES}
    monkeypatch.setattr(_manifest, "sha256_of", lambda *args: pytest.fail("hashed whole"))
    _pieces.make_table(str(origin), ENTRIES, stamps)


def test_a_file_that_changes_meanwhile_gives_no_table(origin, monkeypatch):
    real = _pieces._digest_at

    def digest(path, offset, length):
        os.utime(origin / "z", ns=(1, 1))
        return real(path, offset, length)

    monkeypatch.setattr(_pieces, "_digest_at", digest)
    with pytest.raises(LLMError, match="z: changed while it was hashed"):
        table(origin)


def test_a_table_that_is_another_is_refused(origin):
    raw, _pieces_of = table(origin)
    with pytest.raises(LLMError, match="has sha256 [0-9a-f]{64}, expected 0000"):
        _pieces.read_table(raw, "0" * 64, ENTRIES)
    for change in ({"manifest_id": "x"}, {"digests": []}, {"version": 2}):
        other = json.dumps({**json.loads(raw), **change}).encode()
        with pytest.raises(LLMError, match="about other weights"):
            _pieces.read_table(other, hashlib.sha256(other).hexdigest(), ENTRIES)


def test_what_is_had_and_what_a_range_needs(origin):
    holdings = _pieces.Holdings()
    assert not holdings.covered("a.bin", 0, 1)
    holdings.learn(*table(origin))
    assert not holdings.add(holdings.pieces[0]) and not holdings.add(holdings.pieces[2])
    assert (holdings.count, holdings.bytes) == (2, UNIT + 5)
    found = {span: holdings.covered("a.bin", *span) for span in [(0, 1), (0, UNIT), (0, UNIT + 1), (UNIT - 1, UNIT), (UNIT, UNIT + 1)]}
    assert found == {(0, 1): True, (0, UNIT): True, (0, UNIT + 1): False, (UNIT - 1, UNIT): True, (UNIT, UNIT + 1): False}
    assert (
        holdings.covered("a.bin", 2 * UNIT, 2 * UNIT + 5) and not holdings.covered("sub/b.bin", 0, 1) and not holdings.covered("no", 0, 1)
    )
    # twice is once; the last one completes the file
    holdings.add(holdings.pieces[0])
    assert holdings.bytes == UNIT + 5 and holdings.add(holdings.pieces[1])
    holdings.add_file("sub/b.bin", "/x/b.bin")
    assert holdings.covered("sub/b.bin", 0, UNIT + 3) and holdings.place_of("sub/b.bin") == "/x/b.bin" and holdings.place_of("z") == ""


class Taken:
    """A store of a host that has nothing yet."""

    def __init__(self, folder: Path, origin: Path) -> None:
        self.holdings = _pieces.Holdings()
        self.holdings.learn(*table(origin))
        self.store = _pieces.Store(self.holdings, str(folder / "pieces"), str(folder / "q.part"))
        self.found = self.store.resume(ENTRIES, _hashing.Meter(1))

    def write(self, *numbers: int) -> None:
        for piece in (self.holdings.pieces[number] for number in numbers):
            data = FILES[piece.entry.path][piece.offset : piece.offset + piece.length]
            self.store.write(piece, bytearray(data), "h")


def test_files_grow_and_move_when_they_are_whole(tmp_path, origin):
    taken = Taken(tmp_path, origin)
    # an empty file is whole at once
    assert taken.found == 0 and _manifest.tree_files(str(tmp_path / "q.part")) == ["empty"]
    taken.write(2, 0, 4)
    assert _manifest.tree_files(str(tmp_path / "q.part")) == ["empty"]
    taken.write(1, 3, 5)
    assert {path: (tmp_path / "q.part" / path).read_bytes() for path in _manifest.tree_files(str(tmp_path / "q.part"))} == FILES
    assert taken.holdings.place_of("a.bin") == str(tmp_path / "q.part/a.bin") and _manifest.tree_files(str(tmp_path / "pieces")) == []


def test_an_interrupted_host_finds_its_pieces_again_and_nothing_wrong(tmp_path, origin):
    Taken(tmp_path, origin).write(0, 2, 3)
    half = tmp_path / "pieces" / "a.bin"
    with open(half, "r+b") as handle:
        handle.write(b"X")
    (tmp_path / "pieces" / "stranger").write_bytes(b"x")
    os.symlink(origin / "z", tmp_path / "pieces" / "link")
    (tmp_path / "pieces" / "z").unlink()
    os.symlink("/etc/hostname", tmp_path / "pieces" / "z")
    again = Taken(tmp_path, origin)
    # the piece with the wrong byte is not believed
    assert again.found == 5 + UNIT and [bool(flag) for flag in again.holdings.has] == [False, False, True, True, False, False]
    assert sorted(_manifest.tree_files(str(tmp_path / "pieces"))) == ["a.bin", "sub/b.bin", "z"]
    assert not (tmp_path / "pieces" / "z").is_symlink()
    again.write(0, 1, 4, 5)
    assert (tmp_path / "q.part" / "a.bin").read_bytes() == FILES["a.bin"]


def test_a_file_that_became_whole_before_the_kill_moves_at_once(tmp_path, origin, monkeypatch):
    taken = Taken(tmp_path, origin)
    monkeypatch.setattr(taken.store, "_move", lambda entry: None)
    taken.write(0, 1, 2)
    assert Taken(tmp_path, origin).found == 2 * UNIT + 5 and (tmp_path / "q.part" / "a.bin").read_bytes() == FILES["a.bin"]


def test_another_version_of_a_file_is_cut_and_gives_only_what_is_the_same(tmp_path, origin):
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "a.bin").write_bytes(FILES["a.bin"][: UNIT + 7] + b"other" * UNIT)
    assert Taken(tmp_path, origin).found == UNIT
    assert os.path.getsize(tmp_path / "pieces" / "a.bin") == len(FILES["a.bin"])


def test_holes_are_not_read(tmp_path, origin, monkeypatch):
    Taken(tmp_path, origin).write(2)
    read = []
    real = _pieces._digest_at
    holdings = _pieces.Holdings()
    holdings.learn(*table(origin))
    monkeypatch.setattr(
        _pieces, "_digest_at", lambda path, offset, length: read.append((Path(path).name, offset)) or real(path, offset, length)
    )
    _pieces.Store(holdings, str(tmp_path / "pieces"), str(tmp_path / "q.part")).resume(ENTRIES, _hashing.Meter(1))
    assert read == [("a.bin", 2 * UNIT)]


def test_a_write_that_fails_names_file_sender_and_remedy(tmp_path, origin):
    taken = Taken(tmp_path, origin)
    (tmp_path / "pieces" / "a.bin").unlink()
    with pytest.raises(LLMError, match=r"a.bin: No such file or directory while it came from h. What came so far is kept in .*pieces"):
        taken.write(0)
    assert not taken.holdings.has[0]
