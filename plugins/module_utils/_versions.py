# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Weights that others replaced: kept for the way back, dropped by count, never while somebody uses them. Private to the collection.

They lie in ``<path>.kept/<first 12 digits of the manifest id>``, each with its manifest in ``<...>.json`` beside it; the time of that file
is when they were replaced. A container goes on with the directory it was started with, wherever that was moved to, and the kernel says
so: in the mount tables of its processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
from typing import Iterable

from ansible_collections.ironserve.llm.plugins.module_utils import _manifest
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

_PROC = "/proc"
#: The capability to look into processes of others, see capabilities(7).
_CAP_SYS_PTRACE = 1 << 19


@dataclasses.dataclass
class Version:
    """One set of weights that was replaced.

    Attributes:
        path: its directory.
        manifest_id: its identity.
        replaced: when, in seconds since the epoch.
        used: who uses it, in words; empty when nobody does.
    """

    path: str
    manifest_id: str
    replaced: float
    used: str = ""

    def as_dict(self) -> dict:
        """Plain data for module results."""
        return {"path": self.path, "manifest_id": self.manifest_id, "used": self.used}


def kept_of(path: str) -> str:
    """Where what was at ``path`` before is kept."""
    return path + ".kept"


def version_of(path: str, manifest_id: str) -> str:
    """Where the weights with this identity are kept, when they are."""
    return os.path.join(kept_of(path), manifest_id[:12])


def versions(path: str) -> list[Version]:
    """What is kept for ``path``, the latest first. A directory without a readable manifest is none of ours and is not in it."""
    found = []
    for name in sorted(os.listdir(kept_of(path))) if os.path.isdir(kept_of(path)) else []:
        where = os.path.join(kept_of(path), name)
        if not os.path.isdir(where) or os.path.islink(where):
            continue
        with contextlib.suppress(LLMError, OSError):
            document = _manifest.read_document(where + ".json")
            if document and document["manifest_id"][:12] == name:
                found.append(Version(where, document["manifest_id"], os.stat(where + ".json").st_mtime))
    return sorted(found, key=lambda item: item.replaced, reverse=True)


def retire(old: str, path: str, document: dict) -> None:
    """Keep what was moved to ``old`` when ``path`` was replaced; ``document`` is its manifest."""
    where = version_of(path, document["manifest_id"])
    _manifest.make_folder(os.path.dirname(where))
    if os.path.lexists(where):
        drop(where)
    os.rename(old, where)
    _manifest.write_document(where + ".json", document)


def drop(where: str) -> None:
    """Remove one version and its manifest."""
    # The manifest first: what is half removed must not look whole.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(where + ".json")
    if os.path.isdir(where) and not os.path.islink(where):
        shutil.rmtree(where)
    elif os.path.lexists(where):
        os.unlink(where)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(where))


def collect(path: str, keep: int, releases: Iterable[str] = ()) -> list[Version]:
    """Drop all but the latest ``keep`` versions that nobody uses; returns what is left, the latest first.

    ``releases`` are files that name the identities of weights a release needs; one that is not there names none. What is used counts
    among the ``keep``, and stays beyond them.
    """
    found = versions(path)
    if not found:
        return []
    current = {(status.st_dev, status.st_ino) for status in _stats(path)}
    left = []
    for number, version in enumerate(found):
        version.used = used_by(version, path, current, releases)
        if number < keep or version.used:
            left.append(version)
        else:
            drop(version.path)
    return left


def used_by(version: Version, path: str, current: set[tuple[int, int]], releases: Iterable[str] = ()) -> str:
    """Who uses a version, in words; empty when nobody does. ``current`` are the inodes of what is at ``path`` now: files both have say nothing."""
    for release in releases:
        try:
            with open(release, encoding="utf-8", errors="replace") as handle:
                if version.manifest_id in handle.read():
                    return "the release {0}".format(os.path.realpath(release))
        except FileNotFoundError:
            continue
        except OSError as exc:
            return "perhaps the release {0}, which cannot be read: {1}".format(release, exc.strerror)
    real = os.path.realpath(version.path)
    for folder in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        for item in os.scandir(folder) if os.path.isdir(folder) else []:
            if item.is_symlink() and os.path.realpath(item.path) == real:
                return "the link {0}".format(item.path)
    with open(os.path.join(_PROC, "self", "mountinfo"), encoding="utf-8", errors="surrogateescape") as handle:
        place = place_in_filesystem(handle.read(), real)
    own = {(status.st_dev, status.st_ino) for status in _stats(version.path)} - current
    unknown = ""
    for pid in sorted((int(name) for name in os.listdir(_PROC) if name.isdigit()), reverse=True):
        try:
            with open("{0}/{1}/mountinfo".format(_PROC, pid), encoding="utf-8", errors="surrogateescape") as handle:
                if place and mounts(handle.read(), place):
                    return "process {0} ({1}), which has it mounted".format(pid, _name(pid))
            if own and _holds(pid, own):
                return "process {0} ({1}), which has a file of it open".format(pid, _name(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as exc:
            # EINVAL is a process that is gone but not yet forgotten.
            if exc.errno != errno.EINVAL and not _above(pid):
                unknown = unknown or "perhaps process {0} ({1}), which cannot be looked into: {2}".format(pid, _name(pid), exc.strerror)
    return unknown


def place_in_filesystem(mountinfo: str, path: str) -> tuple[str, str] | None:
    """``(device as major:minor, path inside that filesystem)`` of an absolute path, by a mount table; None when no line fits."""
    best: tuple[str, str, str] | None = None
    for device, root, point in _mount_lines(mountinfo):
        if path == point or path.startswith(point.rstrip("/") + "/"):
            # A later mount over the same point hides the earlier one.
            if best is None or len(point) >= len(best[2]):
                best = (device, root, point)
    if best is None:
        return None
    device, root, point = best
    rest = path[len(point.rstrip("/")) :]
    return device, (root.rstrip("/") + rest) or "/"


def mounts(mountinfo: str, place: tuple[str, str]) -> bool:
    """Whether a mount table has a mount of just this directory, or of something in it."""
    device, inside = place
    return any(item == device and (root == inside or root.startswith(inside + "/")) for item, root, _point in _mount_lines(mountinfo))


def _mount_lines(mountinfo: str) -> list[tuple[str, str, str]]:
    """``(major:minor, root inside the filesystem, mount point)`` of each line; see proc(5)."""
    found = []
    for line in mountinfo.splitlines():
        words = line.split(" ")
        if len(words) >= 5:
            found.append((words[2], _plain(words[3]), _plain(words[4])))
    return found


def _plain(text: str) -> str:
    """Undo the octal escapes of a mount table."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _holds(pid: int, inodes: set[tuple[int, int]]) -> bool:
    """Whether a process has one of these inodes open or mapped."""
    folder = "{0}/{1}/fd".format(_PROC, pid)
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(os.path.join(folder, name))
            if (status.st_dev, status.st_ino) in inodes:
                return True
    with open("{0}/{1}/maps".format(_PROC, pid), encoding="utf-8", errors="replace") as handle:
        for line in handle:
            words = line.split(None, 5)
            if len(words) >= 5 and words[4] != "0":
                major, _colon, minor = words[3].partition(":")
                if (os.makedev(int(major, 16), int(minor, 16)), int(words[4])) in inodes:
                    return True
    return False


def _above(pid: int) -> bool:
    """Whether a process cannot be looked into because it may do what we, who may look into others, may not: no engine in a container does."""
    own, its = (_permitted("{0}/{1}/status".format(_PROC, who)) for who in ("self", pid))
    return bool(own & _CAP_SYS_PTRACE) and bool(its & ~own)


def _permitted(path: str) -> int:
    """The permitted capabilities in a status file of proc(5); 0 when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            for line in handle:
                if line.startswith("CapPrm:"):
                    return int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _stats(root: str) -> list[os.stat_result]:
    if not os.path.isdir(root):
        return []
    return [os.lstat(os.path.join(root, path)) for path in _manifest.tree_files(root)]


def _name(pid: int) -> str:
    try:
        with open("{0}/{1}/comm".format(_PROC, pid), encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return "?"
