# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Manifests: what is refused, what identifies them, how a tree is compared, what the marker may and may not save."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _manifest
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def item(path: str, data: bytes) -> dict:
    return {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


FILES = {"a.bin": b"alpha" * 100, "sub/b.bin": b"beta" * 1000, "config.json": b"{}"}


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "weights"
    for name, data in FILES.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return root


@pytest.fixture
def entries():
    return _manifest.parse_manifest([item(name, data) for name, data in FILES.items()])


def verdicts(root, entries, **more) -> dict:
    return {result.path: result.verdict for result in _manifest.check_tree(str(root), entries, **more)}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"path": "../a"}, "stay inside"),
        ({"path": "/a"}, "stay inside"),
        ({"path": "a/./b"}, "stay inside"),
        ({"path": "a//b"}, "stay inside"),
        ({"path": "a\\b"}, "stay inside"),
        ({"path": "a\nb"}, "control character"),
        ({"path": ""}, "must be text"),
        ({"size": -1}, "number of bytes"),
        ({"size": True}, "number of bytes"),
        ({"size": "5"}, "number of bytes"),
        ({"sha256": "abc"}, "64 hex digits"),
        ({"sha256": None}, "64 hex digits"),
        ({"sha256": _manifest.EMPTY_SHA256}, "empty file"),
    ],
)
def test_bad_entries_are_refused_by_name(bad, says):
    with pytest.raises(LLMError, match=says) as caught:
        _manifest.parse_manifest([item("good", b"1"), dict(item("a", b"12345"), **bad)])
    assert "entry 1" in str(caught.value)


def test_duplicates_and_file_as_directory_are_refused():
    with pytest.raises(LLMError, match="occurs twice"):
        _manifest.parse_manifest([item("a", b"1"), item("a", b"1")])
    with pytest.raises(LLMError, match="both a file and the directory"):
        _manifest.parse_manifest([item("a", b"1"), item("a/b", b"2")])
    with pytest.raises(LLMError, match="empty"):
        _manifest.parse_manifest([])


def test_the_identity_ignores_order_and_case_but_no_byte(entries):
    items = [item(name, data) for name, data in FILES.items()]
    identity = _manifest.manifest_id(entries)
    assert identity == _manifest.manifest_id(_manifest.parse_manifest(items[::-1]))
    upper = [dict(one, sha256=one["sha256"].upper()) for one in items]
    assert identity == _manifest.manifest_id(_manifest.parse_manifest(upper))
    for change in ({"path": "z"}, {"size": 1}, {"sha256": "0" * 64}):
        assert identity != _manifest.manifest_id(_manifest.parse_manifest([dict(items[0], **change), *items[1:]]))


def test_the_identity_is_pinned():
    """Release records carry it: another canonical form would make every old record unreadable."""
    digests = [hashlib.sha256(data).hexdigest() for data in (b"alpha", b"b")]
    canonical = '[{"path":"a","sha256":"%s","size":5},{"path":"b","sha256":"%s","size":1}]' % tuple(digests)
    entries = _manifest.parse_manifest([item("b", b"b"), item("a", b"alpha")])
    assert _manifest.manifest_id(entries) == hashlib.sha256(canonical.encode()).hexdigest()


def test_a_good_tree_is_good(tree, entries):
    assert set(verdicts(tree, entries).values()) == {"ok"}


def test_an_absent_directory_misses_everything(tmp_path, entries):
    assert set(verdicts(tmp_path / "nowhere", entries).values()) == {"missing"}


def test_each_fault_has_its_own_verdict(tree, entries):
    (tree / "a.bin").unlink()
    (tree / "sub/b.bin").write_bytes(b"beta" * 999 + b"betA")
    (tree / "config.json").write_bytes(b"{ }")
    (tree / "sub/stray.safetensors").write_bytes(b"x")
    assert verdicts(tree, entries) == {
        "a.bin": "missing",
        "sub/b.bin": "wrong_sha256",
        "config.json": "wrong_size",
        "sub/stray.safetensors": "extra",
    }


def test_the_digest_message_has_expected_and_found(tree, entries):
    (tree / "sub/b.bin").write_bytes(b"beta" * 999 + b"betA")
    result = {one.path: one for one in _manifest.check_tree(str(tree), entries)}["sub/b.bin"]
    assert hashlib.sha256(FILES["sub/b.bin"]).hexdigest() in result.detail
    assert hashlib.sha256(b"beta" * 999 + b"betA").hexdigest() in result.detail
    assert "sub/b.bin" in result.line()


def test_what_hubs_hand_out_in_place_of_weights_is_named(tree, entries):
    (tree / "a.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    (tree / "sub/b.bin").write_bytes(b"\n <!DOCTYPE html><html>log in</html>")
    (tree / "config.json").write_bytes(b"")
    assert verdicts(tree, entries) == {"a.bin": "lfs_pointer", "sub/b.bin": "html_page", "config.json": "empty"}


def test_a_page_of_exactly_the_right_size_is_still_named(tree, entries):
    page = b"<html>".ljust(len(FILES["a.bin"]), b" ")
    (tree / "a.bin").write_bytes(page)
    assert verdicts(tree, entries)["a.bin"] == "html_page"


def test_links_are_refused_even_when_their_target_is_right(tree, entries, tmp_path):
    (tree / "a.bin").rename(tmp_path / "outside")
    (tree / "a.bin").symlink_to(tmp_path / "outside")
    (tree / "sub").rename(tmp_path / "sub")
    (tree / "sub").symlink_to(tmp_path / "sub")
    found = verdicts(tree, entries)
    assert (found["a.bin"], found["sub/b.bin"], found["sub"]) == ("symlink", "symlink", "extra")


def test_a_pipe_in_place_of_a_file_does_not_hang(tree, entries):
    (tree / "a.bin").unlink()
    os.mkfifo(tree / "a.bin")
    assert verdicts(tree, entries)["a.bin"] == "not_a_file"


def remembered(tree, entries, tmp_path):
    marker = str(tmp_path / "v" / "m.json")
    identity = _manifest.manifest_id(entries)
    _manifest.write_marker(marker, str(tree), identity, _manifest.check_tree(str(tree), entries), "gguf")
    return marker, identity


def test_a_remembered_tree_is_not_read_again(tree, entries, tmp_path):
    marker, identity = remembered(tree, entries, tmp_path)
    known = _manifest.read_marker(marker, str(tree), identity)
    assert known["structure"] == "gguf"
    results = _manifest.check_tree(str(tree), entries, known["files"])
    assert [(one.verdict, one.hashed) for one in results] == [("ok", False)] * 3


def test_a_touched_file_is_read_again_and_is_good(tree, entries, tmp_path):
    marker, identity = remembered(tree, entries, tmp_path)
    os.utime(tree / "a.bin", ns=(1, 1))
    results = _manifest.check_tree(str(tree), entries, _manifest.read_marker(marker, str(tree), identity)["files"])
    assert {one.path: (one.verdict, one.hashed) for one in results} == {
        "a.bin": ("ok", True),
        "config.json": ("ok", False),
        "sub/b.bin": ("ok", False),
    }


def test_a_byte_flipped_behind_the_marker_is_found_without_it(tree, entries, tmp_path):
    marker, identity = remembered(tree, entries, tmp_path)
    status = os.stat(tree / "a.bin")
    with open(tree / "a.bin", "r+b") as handle:
        handle.write(b"A")
    os.utime(tree / "a.bin", ns=(status.st_atime_ns, status.st_mtime_ns))
    known = _manifest.read_marker(marker, str(tree), identity)["files"]
    assert verdicts(tree, entries, remembered=known)["a.bin"] == "ok"
    assert verdicts(tree, entries)["a.bin"] == "wrong_sha256"


def test_a_replaced_file_with_the_same_time_and_size_is_read_again(tree, entries, tmp_path):
    marker, identity = remembered(tree, entries, tmp_path)
    status = os.stat(tree / "a.bin")
    other = tree / "new"
    other.write_bytes(FILES["a.bin"][::-1])
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(tree / "a.bin")
    known = _manifest.read_marker(marker, str(tree), identity)["files"]
    assert verdicts(tree, entries, remembered=known)["a.bin"] == "wrong_sha256"


@pytest.mark.parametrize("spoil", ["text", "identity", "root", "mode", "version", "absent"])
def test_a_marker_that_cannot_be_trusted_saves_nothing(tree, entries, tmp_path, spoil):
    marker, identity = remembered(tree, entries, tmp_path)
    root = str(tree)
    if spoil == "text":
        (tmp_path / "v" / "m.json").write_text("{")
    elif spoil == "identity":
        identity = "0" * 64
    elif spoil == "root":
        root = str(tmp_path)
    elif spoil == "mode":
        os.chmod(marker, 0o666)
    elif spoil == "version":
        path = tmp_path / "v" / "m.json"
        path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    else:
        os.unlink(marker)
    assert _manifest.read_marker(marker, root, identity) == {"files": {}, "structure": ""}


def test_a_marker_replaces_an_older_one_whole_and_leaves_nothing_beside_it(tree, entries, tmp_path):
    remembered(tree, entries, tmp_path)
    marker, _identity = remembered(tree, entries, tmp_path)
    assert os.listdir(os.path.dirname(marker)) == ["m.json"]
    assert os.stat(marker).st_mode & 0o777 == 0o644
    assert _manifest.marker_root(marker) == str(tree.resolve())


def test_progress_counts_only_what_must_be_read_and_ends_at_its_total(tree, entries, tmp_path):
    marker, identity = remembered(tree, entries, tmp_path)
    os.utime(tree / "sub/b.bin", ns=(1, 1))
    known = _manifest.read_marker(marker, str(tree), identity)["files"]
    told = []
    _manifest.check_tree(str(tree), entries, known, report=lambda *args: told.append(args))
    size = len(FILES["sub/b.bin"])
    assert (told[0], told[-1]) == ((0, size, ""), (size, size, "sub/b.bin"))
    marker, identity = remembered(tree, entries, tmp_path)
    known = _manifest.read_marker(marker, str(tree), identity)["files"]
    _manifest.check_tree(str(tree), entries, known, report=lambda *args: pytest.fail("there is nothing to read"))


# ---- the stored manifest


def stored(tmp_path):
    entries = _manifest.parse_manifest([{"path": "b", "size": 1, "sha256": "1" * 64}, {"path": "a", "size": 2, "sha256": "2" * 64}])
    return str(tmp_path / "m" / "manifest.json"), _manifest.document(entries, {"kind": "modelscope"}, ["a"])


def test_a_stored_manifest_comes_back_and_says_which_digests_were_computed(tmp_path):
    path, document = stored(tmp_path)
    assert _manifest.read_document(path) == {}
    _manifest.write_document(path, document)
    assert _manifest.read_document(path) == document
    assert [(item["path"], item["origin"]) for item in document["files"]] == [("a", "computed"), ("b", "given")]
    assert _manifest.same_document(document, dict(document, made_at="yesterday"))
    assert not _manifest.same_document(document, dict(document, source={}))


def test_a_damaged_stored_manifest_is_refused(tmp_path):
    _path, document = stored(tmp_path)
    path = tmp_path / "manifest.json"
    document["files"][0]["sha256"] = "0" * 64
    for text, says in ((json.dumps(document), "does not have the identity"), ("{", "cannot be read"), ("[]", "is no stored manifest")):
        path.write_text(text)
        with pytest.raises(LLMError, match=f"{path}: .*{says}.*Remove it"):
            _manifest.read_document(str(path))


def test_a_full_disk_leaves_the_old_manifest(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text("old")
    # the file that would replace it is a device that is always full
    os.symlink("/dev/full", f"{path}.{os.getpid()}")
    with pytest.raises(LLMError, match="cannot be written: No space left on device.*what was there before is unchanged"):
        _manifest.write_document(str(path), {"version": 1})
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["manifest.json"]


def test_unchanged_means_every_file_as_it_was_hashed(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    entries = _manifest.parse_manifest([{"path": "a", "size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}])
    known = {"a": _manifest.stamp_of(os.stat(tmp_path / "a")) + [entries[0].sha256]}
    assert _manifest.unchanged(str(tmp_path), entries, known)
    assert not _manifest.unchanged(str(tmp_path), entries, {})
    os.utime(tmp_path / "a", ns=(1, 1))
    assert not _manifest.unchanged(str(tmp_path), entries, known)
