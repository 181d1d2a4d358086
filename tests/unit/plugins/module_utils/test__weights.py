# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Weights on disk: structure of a set, placing, interruption, removal; with real files, archives and a real pip."""

from __future__ import annotations

import concurrent.futures
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
import time
import unittest.mock
import zipfile
from pathlib import Path

import pytest
from faults.tiny_gguf import tiny_gguf

from ansible_collections.ironserve.llm.plugins.module_utils import _manifest, _progress, _structure, _versions, _weights
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

ONE, TWO = tiny_gguf(("a.weight",)), tiny_gguf(("b.weight",), fill=0x33)
FILES = {"one.gguf": ONE, "sub/two.gguf": TWO}


def entries_of(files) -> list:
    return _manifest.parse_manifest(
        [{"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()]
    )


def fill(root: Path, files) -> Path:
    for name, data in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return root


class Place:
    """A target directory and a source directory, and short ways to ask for both."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "weights"
        self.path = self.base / "demo" / "q"
        self.part = self.base / "demo" / "q.part"
        self.marker = self.base / ".verified" / "demo-q.json"
        self.origin = fill(folder / "origin", FILES)
        self.entries = entries_of(FILES)

    def put(self, source=None, **more):
        source = source or {"kind": "directory", "path": str(self.origin)}
        return _weights.place(str(self.path), self.entries, "gguf", source, str(self.marker), **more)

    def content(self) -> dict:
        return {name: (self.path / name).read_bytes() for name in _manifest.tree_files(str(self.path))}


@pytest.fixture
def site(tmp_path) -> Place:
    return Place(tmp_path)


# ---- placing


def test_a_virgin_host_gets_read_only_files_and_a_marker_and_nothing_else(site):
    old = os.umask(0o077)
    try:
        placed = site.put()
    finally:
        os.umask(old)
    assert placed.changed and placed.report.ok and sorted(placed.fetched) == sorted(FILES)
    assert site.content() == FILES
    modes = {path.relative_to(site.base).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in site.base.rglob("*")}
    assert modes == {
        "demo": 0o755,
        "demo/q": 0o755,
        "demo/q/sub": 0o755,
        "demo/q.manifest.json": 0o644,
        "demo/q/one.gguf": 0o444,
        "demo/q/sub/two.gguf": 0o444,
        ".verified": 0o755,
        ".verified/demo-q.json": 0o644,
    }


def test_the_second_time_nothing_is_read_or_changed(site):
    site.put()
    before = os.stat(site.marker).st_mtime_ns
    placed = site.put()
    assert not placed.changed and placed.report.hashed_bytes == 0 and placed.fetched == []
    assert os.stat(site.marker).st_mtime_ns == before


def test_looking_only_writes_nothing_and_says_what_would_come(site):
    placed = site.put(look_only=True)
    assert placed.changed and sorted(placed.fetched) == sorted(FILES)
    assert not site.base.exists()


def test_only_the_bad_file_comes_again_and_the_good_one_keeps_its_inode(site):
    site.put()
    inode = (site.path / "one.gguf").stat().st_ino
    os.chmod(site.path / "sub/two.gguf", 0o644)
    (site.path / "sub/two.gguf").write_bytes(TWO[:-1] + b"x")
    placed = site.put()
    assert (placed.fetched, placed.kept) == (["sub/two.gguf"], ["one.gguf"])
    assert site.content() == FILES
    assert (site.path / "one.gguf").stat().st_ino == inode


def test_a_stray_file_goes_and_a_wrong_mode_is_put_right_without_a_source(site):
    site.put()
    (site.path / "stray.gguf").write_bytes(ONE)
    os.chmod(site.path / "one.gguf", 0o666)
    nowhere = {"kind": "directory", "path": "/nonexistent"}
    assert site.put(nowhere).changed
    assert site.content() == FILES
    os.chmod(site.path / "one.gguf", 0o666)
    assert site.put(nowhere).changed
    assert stat.S_IMODE((site.path / "one.gguf").stat().st_mode) == 0o444
    assert not site.put(nowhere).changed


def test_a_bad_file_never_replaces_a_good_one_and_the_good_ones_wait(site):
    site.put()
    site.entries = entries_of({"one.gguf": TWO, "three.gguf": ONE})
    fill(site.origin, {"one.gguf": TWO, "three.gguf": ONE[:-1] + b"x"})
    with pytest.raises(LLMError) as caught:
        site.put()
    message = str(caught.value)
    assert "three.gguf: wrong_sha256: expected sha256 " + hashlib.sha256(ONE).hexdigest() in message
    assert hashlib.sha256(ONE[:-1] + b"x").hexdigest() in message and "unchanged" in message
    assert site.content() == FILES
    assert _manifest.tree_files(str(site.part)) == ["one.gguf"]
    fill(site.origin, {"three.gguf": ONE})
    (site.origin / "one.gguf").unlink()
    assert site.put().fetched == ["three.gguf"]
    assert site.content() == {"one.gguf": TWO, "three.gguf": ONE}
    assert not site.part.exists()


def test_right_bytes_with_a_broken_structure_are_refused(site):
    broken = {"one.gguf": ONE[:-40]}
    fill(site.origin, broken)
    site.entries = entries_of(broken)
    with pytest.raises(LLMError, match="one.gguf: truncated: tensor 'a.weight'"):
        site.put()
    assert not site.path.exists()
    fill(site.path, broken)
    with pytest.raises(LLMError, match="bytes are the manifest's"):
        site.put()
    with pytest.raises(LLMError, match="bytes are the manifest's"):
        site.put(look_only=True)


def test_left_halves_are_not_trusted_and_left_wholes_are_used(site):
    fill(site.part, {"one.gguf": ONE[:50], "sub/two.gguf": TWO, ".pip-x/y.whl": b"z"})
    assert site.put().fetched == ["one.gguf"]
    assert site.content() == FILES


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_killed_inside_the_switch_it_converges(site, monkeypatch, moment):
    site.put()
    fill(site.origin, {"one.gguf": TWO})
    site.entries = entries_of({"one.gguf": TWO, "sub/two.gguf": TWO})
    real, calls = os.rename, []

    def rename(source, target):
        calls.append(target)
        if (moment, len(calls)) in (("before", 1), ("between", 2)):
            raise KeyboardInterrupt
        real(source, target)

    def put_aside(path, identity):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        if moment == "after":
            patch.setattr(_weights, "_put_aside", put_aside)
        with pytest.raises(KeyboardInterrupt):
            site.put()
    assert site.path.exists() == (moment != "between")
    site.put()
    assert site.content() == {"one.gguf": TWO, "sub/two.gguf": TWO}
    assert sorted(os.listdir(site.path.parent)) == ["q", "q.manifest.json"]
    assert _manifest.read_document(str(site.path) + ".manifest.json")["manifest_id"] == _manifest.manifest_id(site.entries)
    assert not site.put().changed


def test_after_a_kill_between_the_renames_the_old_weights_come_back_when_the_new_cannot(site):
    site.put()
    os.rename(site.path, str(site.path) + ".old")
    site.entries = entries_of({"new.gguf": ONE})
    with pytest.raises(LLMError, match="lacks 1 .* new.gguf"):
        site.put()
    assert site.content() == FILES


def test_a_full_disk_is_said_before_anything_is_written(site):
    for look_only in (True, False):
        with pytest.raises(LLMError, match=r"not enough disk space: 0 MiB .* margin, .* MiB free"):
            site.put(margin=1 << 60, look_only=look_only)
    assert not site.part.exists() and not site.path.exists()


def test_a_disk_that_fills_up_in_the_middle_leaves_the_target_alone(site, monkeypatch):
    site.put()
    site.entries = entries_of({"one.gguf": ONE, "sub/two.gguf": TWO, "three.gguf": ONE})
    fill(site.origin, {"three.gguf": ONE})

    def copy(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr(_weights, "_copy", copy)
    with pytest.raises(LLMError, match="three.gguf: No space left .* unchanged"):
        site.put()
    assert site.content() == FILES
    assert _manifest.tree_files(str(site.part)) == ["one.gguf", "sub/two.gguf"]


def test_a_second_writer_waits_and_then_says_so(site):
    site.path.parent.mkdir(parents=True)
    number = os.open(site.path.parent, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        with pytest.raises(LLMError, match="another process"):
            site.put(wait_s=0.1)
    finally:
        os.close(number)
    assert site.put().changed


def test_a_file_where_the_directory_should_be_is_left_alone(site):
    site.path.parent.mkdir(parents=True)
    site.path.write_text("mine")
    with pytest.raises(LLMError, match="no directory"):
        site.put()
    assert site.path.read_text() == "mine"


# ---- sources


def pack(folder: Path, kind: str, files, prefix: str) -> Path:
    path = folder / ("archive." + kind)
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in files:
                archive.write(folder / "origin" / name, prefix + name)
    else:
        with tarfile.open(path, "w:" + (kind.partition(".")[2] or "")) as archive:
            for name in files:
                archive.add(folder / "origin" / name, prefix + name)
    return path


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.xz"])
@pytest.mark.parametrize("prefix", ["", "model/"])
def test_an_archive_gives_its_members(site, tmp_path, kind, prefix):
    path = pack(tmp_path, kind, FILES, prefix)
    site.put({"kind": "archive", "path": str(path), "member_dir": prefix.rstrip("/")})
    assert site.content() == FILES


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.xz"])
def test_a_cut_archive_is_an_error_that_names_it(site, tmp_path, kind):
    fill(site.origin, {"one.gguf": os.urandom(100000)})
    path = pack(tmp_path, kind, FILES, "")
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(LLMError, match="archive.*fetch it again"):
        site.put({"kind": "archive", "path": str(path)})
    assert not site.path.exists()


@pytest.mark.parametrize(
    "local, central, value, says", [(6, 8, 1, "is encrypted, password required"), (8, 10, 9, "compression method is not supported")]
)
def test_a_zip_with_a_password_or_an_unknown_compression_is_an_error_that_names_it(site, tmp_path, local, central, value, says):
    path = pack(tmp_path, "zip", FILES, "")
    raw = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        begin = raw.find(mark)
        while begin >= 0:
            raw[begin + at] = value
            begin = raw.find(mark, begin + 1)
    path.write_bytes(bytes(raw))
    with pytest.raises(LLMError, match="archive.zip: member one.gguf cannot be unpacked: .*{0}.*pack the archive again".format(says)):
        site.put({"kind": "archive", "path": str(path)})
    assert not site.path.exists()


def test_a_member_that_is_not_there_or_no_file_is_named(site, tmp_path):
    path = pack(tmp_path, "zip", FILES, "model/")
    with pytest.raises(LLMError, match="no member one.gguf .* it has model/one.gguf: correct member_dir"):
        site.put({"kind": "archive", "path": str(path)})
    path = tmp_path / "link.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("one.gguf")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    site.entries = entries_of({"one.gguf": ONE})
    with pytest.raises(LLMError, match="one.gguf is no regular file"):
        site.put({"kind": "archive", "path": str(path)})


def test_a_member_larger_than_the_manifest_says_is_not_unpacked_whole(site, tmp_path):
    fill(site.origin, {"one.gguf": bytes(50 << 20)})
    path = pack(tmp_path, "zip", FILES, "")
    with pytest.raises(LLMError, match="one.gguf: wrong_size: expected {0} bytes, found {1}".format(len(ONE), len(ONE) + 1)):
        site.put({"kind": "archive", "path": str(path)})


def test_what_was_staged_is_taken_and_what_was_not_is_missing(site):
    fill(site.part, {"one.gguf": ONE})
    with pytest.raises(LLMError, match="sub/two.gguf: missing"):
        site.put({"kind": "staged"})
    fill(site.part, {"sub/two.gguf": TWO})
    assert site.put({"kind": "staged"}).changed
    assert site.content() == FILES


@pytest.fixture
def wheelhouse(tmp_path, monkeypatch) -> Path:
    """A real wheel in a directory that pip is told to look into, and no index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "demo_weights-1.0-py3-none-any.whl", "w") as archive:
        for name, data in FILES.items():
            archive.writestr("demo_weights/" + name, data)
        archive.writestr("demo_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo-weights\nVersion: 1.0\n")
        archive.writestr("demo_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("demo_weights-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def package(version: str) -> dict:
    return {"kind": "pypi", "project": "demo-weights", "version": version, "member_dir": "demo_weights", "python": sys.executable}


def test_a_package_gives_its_members_and_leaves_no_wheel(site, wheelhouse):
    assert site.put(package("1.0")).changed
    assert site.content() == FILES
    (wheelhouse / "demo_weights-1.0-py3-none-any.whl").unlink()
    assert not site.put(package("1.0")).changed


def test_a_package_that_is_not_there_is_said_in_the_words_of_pip(site, wheelhouse):
    with pytest.raises(LLMError, match="package demo-weights==2.0 could not be downloaded") as caught:
        site.put(package("2.0"))
    assert "No matching distribution" in str(caught.value)
    assert not site.part.exists() and not site.path.exists()


# ---- verifying


def test_files_of_another_format_are_no_weights(site):
    with pytest.raises(LLMError, match="no file of format safetensors"):
        _weights.place(str(site.path), site.entries, "safetensors", {"kind": "directory", "path": str(site.origin)})


def test_a_remembered_structure_is_not_read_again_and_another_format_is(site, monkeypatch):
    site.put()
    seen = []
    real = _structure.inspect
    monkeypatch.setattr(_structure, "inspect", lambda *args: seen.append(args) or real(*args))
    assert _weights.verify(str(site.path), site.entries, "gguf", str(site.marker)).ok
    assert not seen
    assert not _weights.verify(str(site.path), site.entries, "safetensors", str(site.marker)).ok
    assert _weights.verify(str(site.path), site.entries, "gguf", str(site.marker), deep=True).hashed_bytes == len(ONE) + len(TWO)
    assert len(seen) == 2


def test_bytes_and_structure_are_two_facts(tmp_path):
    files = {"one.gguf": ONE[:-40]}
    report = _weights.verify(str(fill(tmp_path / "w", files)), entries_of(files), "gguf").as_dict()
    assert (report["ok"], report["bytes_ok"], report["structure_ok"]) == (False, True, False)
    report = _weights.verify(str(tmp_path / "w"), entries_of(files), "gguf", structure=False).as_dict()
    assert (report["ok"], report["bytes_ok"], report["structure_ok"]) == (True, True, None)


# ---- removing


def test_removing_takes_what_was_made_and_leaves_what_was_not(site):
    site.put()
    fill(site.base, {"mine/notes.txt": b"x"})
    fill(site.part, {"one.gguf": b"half"})
    assert _weights.remove(str(site.path), str(site.marker), look_only=True)[0]
    assert site.path.exists()
    assert _weights.remove(str(site.path), str(site.marker)) == (
        True,
        ["one.gguf {0}".format(len(ONE)), "sub/two.gguf {0}".format(len(TWO))],
    )
    assert [path.relative_to(site.base).as_posix() for path in sorted(site.base.rglob("*"))] == ["mine", "mine/notes.txt"]
    assert not _weights.remove(str(site.path), str(site.marker))[0]


def test_purging_takes_every_set_that_has_a_marker_and_nothing_else(site):
    site.put()
    _weights.place(
        str(site.base / "old" / "v"),
        site.entries,
        "gguf",
        {"kind": "directory", "path": str(site.origin)},
        str(site.base / ".verified/old-v.json"),
    )
    # Ours that never became whole: one has the folder of a job, one is named, one was claimed before it was filled.
    fill(site.base, {"half/q.part/one.gguf": ONE[:9], "half/q.job/job.json": b'{"nonce": "n"}', "named/q.part/one.gguf": ONE[:9]})
    with pytest.raises(LLMError):
        _weights.place(
            str(site.base / "claimed" / "v"),
            site.entries,
            "gguf",
            {"kind": "directory", "path": str(fill(site.origin / "half", {"one.gguf": ONE, "sub/two.gguf": ONE}))},
            str(site.base / ".verified/claimed-v.json"),
        )
    assert (site.base / "claimed/v.part/one.gguf").exists()
    # Other people's, whatever they are called.
    theirs = ["a.part/x", "mine/v/model.gguf", "mine/v.job/notes", "mine/v.old/model.gguf", "mine/v.part/model.gguf", "x.config.json"]
    fill(site.base, dict.fromkeys(theirs, ONE))
    named = [str(site.base / "named" / "q")]
    assert _weights.purge(str(site.base), look_only=True, also=named)[0]
    assert site.content() == FILES
    changed, before = _weights.purge(str(site.base), also=named)
    assert changed and "demo/q/one.gguf {0}".format(len(ONE)) in before and len(before) == 4
    assert _manifest.tree_files(str(site.base)) == sorted(theirs)
    assert sorted(os.listdir(site.base)) == ["a.part", "mine", "x.config.json"]
    assert not _weights.purge(str(site.base), also=named)[0]


def test_purging_believes_no_marker_about_another_place(site, tmp_path):
    site.put()
    other = fill(tmp_path / "elsewhere", FILES)
    _manifest.write_marker(str(site.base / ".verified/x.json"), str(other), "0" * 64, [], "")
    _weights.purge(str(site.base))
    assert sorted(_manifest.tree_files(str(other))) == sorted(FILES)
    assert not site.path.exists()


def at_work(folder: Path):
    """Hold the lock of a job's folder, as its worker does; what stands in the folder is written as well."""
    number = os.open(fill(folder, {"lock": b"", "job.json": b'{"nonce": "n", "title": "download of x", "pid": 4711}'}) / "lock", os.O_RDWR)
    fcntl.flock(number, fcntl.LOCK_EX)
    return number


def everything(base: Path) -> dict:
    return {name: (base / name).read_bytes() for name in _manifest.tree_files(str(base))}


def removals(site, wait_s: float = 0.0) -> list:
    """Every way to remove the set."""
    whole = [str(site.path)]
    return [
        lambda: _weights.remove(str(site.path), str(site.marker), wait_s=wait_s),
        lambda: _weights.purge(str(site.base), wait_s=wait_s),
        lambda: _weights.purge(str(site.base), also=whole, wait_s=wait_s),
    ]


@pytest.mark.parametrize("job", ["q.job", "q.place.job", "q.verify.job", "q.give.job"])
@pytest.mark.parametrize("whole", [True, False])
def test_nothing_is_removed_under_somebody_at_work(site, job, whole):
    """Two runs at once: what one brings, gives or reads is not taken away piece by piece by the other."""
    if whole:
        site.put()
    _weights.place(str(site.base / "a" / "v"), site.entries, "gguf", {"kind": "directory", "path": str(site.origin)})
    _manifest.write_claim(str(site.base / ".verified/a-v.json.claim"), str(site.base / "a" / "v"))
    fill(site.part, {"one.gguf": ONE[:9]})
    number = at_work(site.path.parent / job)
    before = everything(site.base)
    try:
        for remove in removals(site):
            with pytest.raises(LLMError, match=r"demo/{0}: a job is at work there: download of x, pid 4711.*\(kill 4711\)".format(job)):
                remove()
            assert everything(site.base) == before
        assert _weights.purge(str(site.base), look_only=True)[0]
    finally:
        os.close(number)
    assert _weights.purge(str(site.base), wait_s=0.0)[0] and not site.base.exists()


def test_nothing_is_removed_while_weights_are_put_in_place(site):
    site.put()
    before = everything(site.base)
    number = os.open(site.path.parent, os.O_RDONLY)
    fcntl.flock(number, fcntl.LOCK_EX)
    try:
        for remove in removals(site):
            with pytest.raises(LLMError, match="demo: another process keeps it locked"):
                remove()
            assert everything(site.base) == before
    finally:
        os.close(number)


@pytest.mark.parametrize("way", range(3))
def test_removal_waits_for_who_is_at_work(site, monkeypatch, way):
    site.put()
    number, real = at_work(site.path.parent / "q.job"), time.sleep

    def end(pause):
        if not ended:
            os.close(number)
        ended.append(pause)
        real(pause)

    ended = []
    monkeypatch.setattr(time, "sleep", end)
    assert removals(site, 30.0)[way]()[0]
    assert ended and not site.base.exists()


def test_a_list_that_is_asked_for_is_not_purged_either(site):
    fill(site.base, {".manifests/x.json": b"{}"})
    number = at_work(site.base / ".manifests" / "x.json.job")
    try:
        with pytest.raises(LLMError, match=r"\.manifests/x\.json\.job: a job is at work there"):
            _weights.purge(str(site.base), wait_s=0.0)
    finally:
        os.close(number)
    assert (site.base / ".manifests/x.json").exists()
    assert _weights.purge(str(site.base), wait_s=0.0)[0] and not site.base.exists()


def test_a_set_that_two_ways_lead_to_is_purged(site, tmp_path):
    site.put()
    fill(site.part, {"one.gguf": b"half"})
    at_work_before = at_work(site.path.parent / "q.job")
    os.close(at_work_before)
    (tmp_path / "link").symlink_to(site.base)
    assert _weights.purge(str(tmp_path / "link"), also=[str(tmp_path / "link/demo/q")], wait_s=0.0)[0]
    assert not site.path.exists() and not site.part.exists()


def test_two_who_remove_at_once_remove_it_all(site):
    for variant in ("q", "r", "s"):
        site.path, site.marker = site.base / "demo" / variant, site.base / ".verified" / (variant + ".json")
        site.put()
        os.close(at_work(site.base / "demo" / (variant + ".job")))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = [pool.submit(_weights.purge, str(site.base), wait_s=20.0) for turn in range(2)]
    assert any(one.result()[0] for one in both) and not site.base.exists()


# ---- what a download leaves, and the stored manifest


def test_the_manifest_is_stored_beside_and_follows_what_is_there(site):
    site.put(source_about={"kind": "modelscope", "commit": "c0ffee"}, computed=["one.gguf"])
    document = _manifest.read_document(str(site.path) + ".manifest.json")
    assert document["source"] == {"kind": "modelscope", "commit": "c0ffee"}
    assert {item["path"]: item["origin"] for item in document["files"]} == {"one.gguf": "computed", "sub/two.gguf": "given"}
    # who knows no source does not make the record forget it
    assert not site.put().changed
    assert _manifest.read_document(str(site.path) + ".manifest.json") == document
    half = Path(str(site.path) + ".manifest.json.4711")
    half.write_text("{")
    Path(str(site.path) + ".manifest.json").unlink()
    assert site.put().changed and not half.exists()
    assert _manifest.read_document(str(site.path) + ".manifest.json")["manifest_id"] == document["manifest_id"]


def test_a_disk_too_full_for_the_manifest_leaves_the_old_weights_in_place(site):
    site.put()
    before = site.content()
    fill(site.origin, {"one.gguf": TWO})
    site.entries = entries_of({"one.gguf": TWO, "sub/two.gguf": TWO})
    old = Path(str(site.path) + ".manifest.json").read_text()

    def full(path, found):
        os.symlink("/dev/full", "{}.{}".format(path, os.getpid()))
        return prepare(path, found)

    prepare = _manifest.prepare_document
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_manifest, "prepare_document", full)
        with pytest.raises(
            LLMError, match="manifest.json: the manifest cannot be written: No space left on device. Make room and run again"
        ):
            site.put()
    assert site.content() == before and Path(str(site.path) + ".manifest.json").read_text() == old
    assert site.put().changed and site.content()["one.gguf"] == TWO


def test_what_a_download_left_goes_when_its_files_are_in_place(site):
    job = Path(str(site.path) + ".job")
    fill(job, {"scratch/half.incomplete": b"x"})
    fill(site.part, FILES)
    placed = site.put({"kind": "staged"})
    assert placed.changed and site.content() == FILES and not job.exists() and not site.part.exists()
    fill(job, {"lock": b""})
    site.put()
    assert not job.exists()


def test_nothing_is_placed_while_a_download_is_at_work(site):
    job = Path(str(site.path) + ".job")
    job.mkdir(parents=True)
    with open(job / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LLMError, match="q.job: a job is at work there"):
            site.put(wait_s=0.1)
    assert not site.path.exists() and site.put().changed


def test_links_in_the_staging_directory_go_and_what_they_lead_to_stays(site, tmp_path):
    outside = fill(tmp_path / "outside", {"two.gguf": b"mine"})
    site.part.mkdir(parents=True)
    (site.part / "sub").symlink_to(outside)
    site.put()
    assert (outside / "two.gguf").read_bytes() == b"mine" and site.content() == FILES


def test_progress_is_told_while_files_are_copied_and_hashed(site, tmp_path, monkeypatch):
    seen = []
    path = str(tmp_path / "progress.json")

    def slow(source, target):
        with open(source, "rb") as read, open(target, "wb") as write:
            data = read.read()
            write.write(data[:50])
            write.flush()
            # the half is told before the other half comes
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                state = _progress.read(path)
                if state.get("phase") == "copy" and target.endswith(state["files"][0]) and state["done_bytes"] % len(ONE) == 50:
                    seen.append(state)
                    break
                time.sleep(0.02)
            write.write(data[50:])

    monkeypatch.setattr(_weights, "_copy", slow)
    site.put(progress_path=path)
    total = len(ONE) + len(TWO)
    assert (seen[0]["files"], seen[0]["done_bytes"], seen[0]["total_bytes"], seen[0]["files_done"]) == (["one.gguf"], 50, total, 0)
    assert (seen[1]["files"], seen[1]["done_bytes"], seen[1]["files_done"]) == (["sub/two.gguf"], len(ONE) + 50, 1)
    assert _progress.read(path)["phase"] == "hash" and _progress.read(path)["done_bytes"] == total


def test_a_job_places_as_a_call_does(site):
    arguments = {"path": str(site.path), "weights_format": "gguf", "source": {"kind": "directory", "path": str(site.origin)}}
    manifest = [{"path": item.path, "size": item.size, "sha256": item.sha256} for item in site.entries]
    value = _weights.place_job(dict(arguments, manifest=manifest), "", "")
    assert (value["changed"], value["fetched"], value["kept"]) == (True, ["one.gguf", "sub/two.gguf"], [])
    assert value["manifest_id"] == _manifest.manifest_id(site.entries) and site.content() == FILES
    assert json.loads(json.dumps(value)) == value


# ---- what was there before


def replaced(site, files, **more):
    """Other weights at the same place."""
    origin = fill(site.origin.parent / "o{0}".format(len(os.listdir(site.origin.parent))), files)
    site.entries = entries_of(files)
    return site.put({"kind": "directory", "path": str(origin)}, **more)


VERSIONS = [{"one.gguf": ONE, "sub/two.gguf": tiny_gguf(("b.weight",), fill=number)} for number in range(1, 6)]


def kept(site) -> list:
    return [
        next(number for number, files in enumerate(VERSIONS) if _manifest.manifest_id(entries_of(files)) == version.manifest_id)
        for version in _versions.versions(str(site.path))
    ]


def test_what_was_there_before_is_kept_by_count(site):
    for number in range(4):
        placed = replaced(site, VERSIONS[number], keep=2)
        time.sleep(0.01)
    assert kept(site) == [2, 1] and [item["used"] for item in placed.versions] == ["", ""]
    # Fewer from now on, without any other change.
    placed = replaced(site, VERSIONS[3], keep=1)
    assert placed.changed and not placed.fetched and kept(site) == [2]
    assert not replaced(site, VERSIONS[3], keep=1).changed
    replaced(site, VERSIONS[3], keep=0)
    assert sorted(os.listdir(site.path.parent)) == ["q", "q.manifest.json"]


def test_kept_weights_come_back_without_a_source(site):
    replaced(site, VERSIONS[0], keep=1)
    inode = (site.path / "sub/two.gguf").stat().st_ino
    replaced(site, VERSIONS[1], keep=1)
    site.entries = entries_of(VERSIONS[0])
    assert _weights.recall(str(site.path), site.entries, "gguf", str(site.marker), look_only=True).changed
    assert site.content() == VERSIONS[1]
    placed = _weights.recall(str(site.path), site.entries, "gguf", str(site.marker), keep=1)
    assert placed.changed and site.content() == VERSIONS[0] and (site.path / "sub/two.gguf").stat().st_ino == inode
    assert kept(site) == [1]
    site.entries = entries_of(VERSIONS[2])
    assert _weights.recall(str(site.path), site.entries, "gguf", str(site.marker), keep=1) is None


def test_damaged_kept_weights_do_not_come_back_and_what_is_good_of_them_is_used(site):
    replaced(site, VERSIONS[0], keep=1)
    replaced(site, VERSIONS[1], keep=1)
    where = Path(_versions.version_of(str(site.path), _manifest.manifest_id(entries_of(VERSIONS[0]))))
    os.chmod(where / "sub/two.gguf", 0o644)
    (where / "sub/two.gguf").write_bytes(VERSIONS[2]["sub/two.gguf"])
    site.entries = entries_of(VERSIONS[0])
    # a dry run says the same, and leaves them where they are
    assert _weights.recall(str(site.path), site.entries, "gguf", str(site.marker), look_only=True) is None
    assert kept(site) == [0] and not site.part.exists()
    assert _weights.recall(str(site.path), site.entries, "gguf", str(site.marker), keep=1) is None
    assert site.content() == VERSIONS[1] and _manifest.tree_files(str(site.part)) == ["one.gguf"] and kept(site) == []


def test_the_same_weights_repaired_are_no_version(site):
    replaced(site, VERSIONS[0], keep=3)
    os.chmod(site.path / "one.gguf", 0o644)
    (site.path / "one.gguf").write_bytes(TWO)
    replaced(site, VERSIONS[0], keep=3, deep=True)
    assert site.content() == VERSIONS[0] and kept(site) == []


def killed_before_its_manifest(patch, path) -> None:
    """Die when the new weights are in place and their manifest is not."""
    replace = os.replace

    def die(source, target):
        if target == str(path) + ".manifest.json":
            raise KeyboardInterrupt
        replace(source, target)

    patch.setattr(_weights.os, "replace", die)


def killed_after_its_manifest(patch, path) -> None:
    """Die when both are in place."""
    patch.setattr(_weights, "_put_aside", unittest.mock.Mock(side_effect=KeyboardInterrupt))


@pytest.mark.parametrize("killed", [killed_before_its_manifest, killed_after_its_manifest])
def test_a_kill_inside_the_switch_costs_no_version(site, monkeypatch, killed):
    replaced(site, VERSIONS[0], keep=1)
    with monkeypatch.context() as patch:
        killed(patch, site.path)
        with pytest.raises(KeyboardInterrupt):
            replaced(site, VERSIONS[1], keep=1)
    replaced(site, VERSIONS[1], keep=1)
    assert site.content() == VERSIONS[1] and kept(site) == [0]
    assert sorted(os.listdir(site.path.parent)) == ["q", "q.kept", "q.manifest.json"]


@pytest.mark.parametrize("folder", [True, False])
def test_what_another_removes_at_the_same_time_is_as_good_as_removed(tmp_path, monkeypatch, folder):
    """Two names of one machine have the same weights, and are taken down together."""
    path = tmp_path / "weights"
    if folder:
        path.mkdir()
    (path / "shard" if folder else path).write_text("x")
    name, module = ("rmtree", shutil) if folder else ("unlink", os)
    real, calls = getattr(module, name), []

    def beaten(target):
        calls.append(target)
        real(target)
        raise FileNotFoundError(2, "No such file or directory", target)

    monkeypatch.setattr(module, name, beaten)
    _weights._remove(str(path))
    assert calls == [str(path)] and not path.exists()
