# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who uses weights that were replaced: real mounts, open and mapped files, links, releases. How they are kept and come back is in test__weights."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _manifest, _versions

DATA = b"x" * 5000


class Kept:
    """A current set of weights and three older ones, the latest last; all share one file with the current one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "weights" / "m" / "v"
        self.path.mkdir(parents=True)
        (self.path / "shared").write_bytes(b"s")
        self.ids = []
        for number in range(3):
            old = folder / "old"
            old.mkdir()
            (old / "own").write_bytes(DATA + bytes([number]))
            os.link(self.path / "shared", old / "shared")
            files = {name: (old / name).read_bytes() for name in ("own", "shared")}
            items = [{"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()]
            document = _manifest.document(_manifest.parse_manifest(items), {})
            _versions.retire(str(old), str(self.path), document)
            self.ids.append(document["manifest_id"])
            os.utime(_versions.version_of(str(self.path), self.ids[-1]) + ".json", (number, number))

    def where(self, number: int) -> Path:
        return Path(_versions.version_of(str(self.path), self.ids[number]))

    def collect(self, keep: int = 0, releases=()) -> dict:
        left = _versions.collect(str(self.path), keep, releases)
        assert sorted(item.path for item in left) == sorted(str(self.where(n)) for n in range(3) if self.where(n).exists())
        return {self.ids.index(item.manifest_id): item.used for item in left}


@pytest.fixture
def kept(tmp_path) -> Kept:
    return Kept(tmp_path)


@pytest.fixture
def user():
    """Start a process that says when it is ready and ends when its input does."""
    processes = []

    def start(code: str, *before: str) -> int:
        script = "import mmap, sys\n" + code + "\nprint('ready', flush=True)\nsys.stdin.read()"
        processes.append(
            subprocess.Popen([*before, sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert processes[-1].stdout.readline() == "ready\n"
        return processes[-1].pid

    yield start
    for process in processes:
        process.communicate("", timeout=30)


def test_the_latest_stay_and_the_others_go(kept):
    assert kept.collect(2) == {2: "", 1: ""}
    assert kept.collect(2) == {2: "", 1: ""}
    assert kept.collect(0) == {}
    assert not Path(_versions.kept_of(str(kept.path))).exists() and (kept.path / "shared").exists()


def test_an_open_and_a_mapped_file_are_uses(kept, user):
    pid = user(f"held = open({str(kept.where(0) / 'own')!r})")
    other = user(f"f = open({str(kept.where(1) / 'own')!r}, 'rb'); held = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); f.close()")
    found = kept.collect()
    assert set(found) == {0, 1} and f"process {pid} " in found[0] and f"process {other} " in found[1]
    assert "a file of it open" in found[0]


def test_a_file_that_the_current_weights_have_too_says_nothing(kept, user):
    user(f"held = open({str(kept.where(0) / 'shared')!r})")
    assert kept.collect() == {}


def test_a_mount_is_a_use_wherever_the_directory_was_moved_to(kept, user, tmp_path):
    """As a container has it: mounted in a namespace of its own, under another name, before it was replaced."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("nobody may mount here")
    target = tmp_path / "in container"
    target.mkdir()
    before = tmp_path / "before"
    os.rename(kept.where(1), before)
    script = f'mount --bind {before} "{target}" && exec "$@"'
    pid = user("", "unshare", "-m", "sh", "-c", script, "sh")
    os.rename(before, kept.where(1))
    found = kept.collect()
    assert set(found) == {1} and found[1].startswith(f"process {pid} (python") and "mounted" in found[1]


def test_a_link_and_the_release_in_force_are_uses(kept, tmp_path):
    os.symlink(kept.where(0), kept.path.parent / "pinned")
    release = tmp_path / "current.json"
    release.write_text(json.dumps({"replicas": [{"labels": {"ironserve.weights": kept.ids[1]}}]}))
    found = kept.collect(0, [str(release), str(tmp_path / "none.json")])
    assert found == {0: f"the link {kept.path.parent / 'pinned'}", 1: f"the release {release}"}


def test_what_has_no_manifest_is_not_ours(kept):
    theirs = Path(_versions.kept_of(str(kept.path))) / "theirs"
    theirs.mkdir()
    kept.collect(0)
    assert theirs.exists()


TABLE = """22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 8:2 / /data rw - ext4 /dev/sdb1 rw
24 22 8:3 /vol /data/we\\040ights rw - xfs /dev/sdc1 rw
25 24 8:1 /var/x /data/we\\040ights/m rw - ext4 /dev/sda1 rw
"""


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/etc/x", ("8:1", "/etc/x")),
        ("/data", ("8:2", "/")),
        ("/data/y", ("8:2", "/y")),
        ("/database", ("8:1", "/database")),
        ("/data/we ights/q", ("8:3", "/vol/q")),
        ("/data/we ights/m/q", ("8:1", "/var/x/q")),
    ],
)
def test_where_a_path_is_in_its_filesystem(path, place):
    assert _versions.place_in_filesystem(TABLE, path) == place


@pytest.mark.parametrize(
    ("root", "found"), [("/w/v", True), ("/w/v/sub", True), ("/w/v2", False), ("/w", False), ("/", False), ("/w/v//deleted", True)]
)
def test_which_mounts_are_of_a_directory(root, found):
    assert _versions.mounts(f"1 0 8:1 {root} /x rw - ext4 d rw", ("8:1", "/w/v")) is found
    assert not _versions.mounts(f"1 0 8:2 {root} /x rw - ext4 d rw", ("8:1", "/w/v"))


def test_a_process_that_cannot_be_looked_into_may_use_it(kept, monkeypatch):
    def refuse(pid, inodes):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(_versions, "_holds", refuse)
    monkeypatch.setattr(_versions, "_above", lambda pid: False)
    assert all("cannot be looked into: Permission denied" in used for used in kept.collect().values()) and len(kept.collect()) == 3
