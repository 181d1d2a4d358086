# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which bytes a directory of weights must hold, and which it does. Private to the collection.

A manifest is a list of ``{path, size, sha256}``: path relative to the weights directory, size in bytes, digest in
lower-case hex. The marker remembers which files were hashed, so that an unchanged tree is not read again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from typing import Iterable

from ansible_collections.ironserve.llm.plugins.module_utils import _hashing
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._hashing import sha256_of, stamp_of

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()

#: Verdicts of one file. Only ``ok`` is good.
OK = "ok"
MISSING = "missing"
EXTRA = "extra"
WRONG_SIZE = "wrong_size"
WRONG_SHA256 = "wrong_sha256"
EMPTY = "empty"
LFS_POINTER = "lfs_pointer"
HTML_PAGE = "html_page"
SYMLINK = "symlink"
NOT_A_FILE = "not_a_file"
UNREADABLE = "unreadable"
CHANGING = "changing"
BAD_STRUCTURE = "bad_structure"
WRITABLE = "writable"

#: Verdicts that say nothing against the bytes themselves.
BYTES_GOOD = (OK, WRITABLE, BAD_STRUCTURE)

_HEX64 = re.compile(r"\A[0-9a-f]{64}\Z")
_MARKER_VERSION = 1


#: What a module takes as a manifest, for its argument spec; documented in the doc fragment ``weights``.
OPTION = {
    "type": "list",
    "elements": "dict",
    "options": {
        "path": {"type": "str", "required": True},
        "size": {"type": "int", "required": True},
        "sha256": {"type": "str", "required": True},
    },
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of a manifest: relative path, size in bytes, sha256 in lower-case hex."""

    path: str
    size: int
    sha256: str


@dataclasses.dataclass
class FileResult:
    """What was found for one file.

    Attributes:
        path: relative to the weights directory.
        verdict: one of the constants above.
        detail: expected against found, in one line; empty when the verdict is ok.
        size: bytes found, or None when there is no such file.
        sha256: digest of the file, or None when it was not hashed (then nothing was wrong, or something cheaper was).
        stamp: ``[size, mtime_ns, inode]`` at the time of hashing, for the marker.
        hashed: whether the bytes were read in this run.
    """

    path: str
    verdict: str
    detail: str = ""
    size: int | None = None
    sha256: str | None = None
    stamp: list[int] | None = None
    hashed: bool = False

    def line(self) -> str:
        """Render a problem as one line: ``path: verdict: detail``."""
        return "{0}: {1}: {2}".format(self.path, self.verdict, self.detail)


def parse_manifest(items: list[dict]) -> list[Entry]:
    """Turn plain data into entries sorted by path.

    Raises LLMError that names the entry when a path is absolute, leaves the directory, occurs twice or is both file
    and directory, when a size is no number of bytes, or when a digest is none (or the one of no bytes at all).
    """
    entries = {}
    if not items:
        raise LLMError("the weights manifest is empty: name at least one file with path, size and sha256")
    for number, item in enumerate(items):
        path = item.get("path")
        where = "weights manifest entry {0} ({1!r})".format(number, path)
        if not isinstance(path, str) or not path:
            raise LLMError("{0}: path must be text".format(where))
        if path.startswith("/") or "\\" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise LLMError("{0}: path must stay inside the weights directory, relative and without '.' or '..'".format(where))
        if any(ord(char) < 32 or ord(char) == 127 for char in path):
            raise LLMError("{0}: path holds a control character".format(where))
        if path in entries:
            raise LLMError("{0}: path occurs twice".format(where))
        size = item.get("size")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise LLMError("{0}: size must be a number of bytes, not {1!r}".format(where, size))
        digest = item.get("sha256")
        digest = digest.lower() if isinstance(digest, str) else digest
        if not isinstance(digest, str) or not _HEX64.match(digest):
            raise LLMError("{0}: sha256 must be 64 hex digits, not {1!r}".format(where, digest))
        if digest == EMPTY_SHA256 and size:
            raise LLMError(
                "{0}: the sha256 is the one of an empty file but size is {1}: the digest was taken from a download that "
                "had no bytes; take it again from the source".format(where, size)
            )
        entries[path] = Entry(path, size, digest)
    for path in entries:
        parent = os.path.dirname(path)
        while parent:
            if parent in entries:
                raise LLMError("weights manifest: {0!r} is both a file and the directory of {1!r}".format(parent, path))
            parent = os.path.dirname(parent)
    return [entries[path] for path in sorted(entries)]


def manifest_id(entries: list[Entry]) -> str:
    """The identity of a set of bytes: sha256 over the canonical JSON of its entries, whatever their order was."""
    ordered = sorted((dataclasses.asdict(entry) for entry in entries), key=lambda item: item["path"])
    text = json.dumps(ordered, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def sniff(head: bytes) -> tuple[str, str] | None:
    """Recognize what hubs and proxies hand out in place of weights, from the first bytes of a file.

    Returns ``(verdict, explanation)``, or None when the bytes are not such a stand-in.
    """
    if head.startswith(b"version https://git-lfs"):
        return LFS_POINTER, "this is a Git LFS pointer, not the file it points to: fetch it with a client that resolves LFS"
    text = head[:256].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return HTML_PAGE, "this is an HTML page (a login or error page of the source), not weights"
    if text.startswith(b"<?xml"):
        return HTML_PAGE, "this is an XML document (an error of the source), not weights"
    return None


def tree_files(root: str) -> list[str]:
    """Relative paths of everything under ``root`` that is not a directory, sorted; links to directories included."""
    found = []
    for folder, folders, files in os.walk(root):
        names = files + [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found.extend(os.path.relpath(os.path.join(folder, name), root) for name in names)
    return sorted(found)


def _head(path: str) -> bytes:
    with open(path, "rb") as handle:
        return handle.read(512)


def _cheap(root: str, entry: Entry) -> FileResult:
    """Everything about one file that can be known without hashing it."""
    path = os.path.join(root, *entry.path.split("/"))
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return FileResult(entry.path, MISSING, "expected {0} bytes, there is no such file".format(entry.size))
    except OSError as exc:
        return FileResult(entry.path, UNREADABLE, str(exc))
    real_root = os.path.realpath(root)
    if stat.S_ISLNK(status.st_mode) or os.path.realpath(path) != os.path.join(real_root, *entry.path.split("/")):
        target = os.path.realpath(path)
        return FileResult(entry.path, SYMLINK, "is a symbolic link (to {0}) that a container would not see".format(target))
    if not stat.S_ISREG(status.st_mode):
        return FileResult(entry.path, NOT_A_FILE, "is no regular file")
    if status.st_size != entry.size:
        wrong = FileResult(entry.path, WRONG_SIZE, "", status.st_size)
        wrong.detail = "expected {0} bytes, found {1}".format(entry.size, status.st_size)
        if status.st_size == 0:
            wrong.verdict = EMPTY
            wrong.detail = "expected {0} bytes, found an empty file (sha256 {1}): the download wrote nothing".format(
                entry.size, EMPTY_SHA256
            )
            return wrong
        try:
            known = sniff(_head(path))
        except OSError as exc:
            return FileResult(entry.path, UNREADABLE, str(exc), status.st_size)
        if known:
            wrong.verdict = known[0]
            wrong.detail = "{0}; {1}".format(wrong.detail, known[1])
        return wrong
    return FileResult(entry.path, OK, "", status.st_size, None, stamp_of(status))


def _hash(root: str, entry: Entry, meter: _hashing.Meter) -> FileResult:
    """The verdict on one file whose size is right, by its bytes."""
    path = os.path.join(root, *entry.path.split("/"))
    try:
        digest, status, stable = sha256_of(path, meter, entry.path)
        head = _head(path) if digest != entry.sha256 else b""
    except OSError as exc:
        return FileResult(entry.path, UNREADABLE, str(exc))
    finally:
        meter.finish(entry.path)
    result = FileResult(entry.path, OK, "", status.st_size, digest, stamp_of(status), True)
    if not stable:
        result.verdict = CHANGING
        result.detail = "changed while it was read: somebody is still writing it"
    elif digest != entry.sha256:
        result.verdict = WRONG_SHA256
        result.detail = "expected sha256 {0}, found {1}".format(entry.sha256, digest)
        known = sniff(head)
        if known:
            result.verdict = known[0]
            result.detail = "{0}; {1}".format(result.detail, known[1])
    return result


def check_tree(
    root: str,
    entries: list[Entry],
    remembered: dict[str, list] | None = None,
    extras: bool = True,
    report: _hashing.Report | None = None,
) -> list[FileResult]:
    """Compare a directory with a manifest.

    Args:
        root: the weights directory; it need not exist.
        entries: the manifest.
        remembered: ``path -> [size, mtime_ns, inode, sha256]`` of files hashed earlier (see ``read_marker``); a file
            that still has this stamp is not read again. None or empty hashes everything.
        extras: whether files that the manifest does not name are problems too (an engine may load them).
        report: is told how far the hashing is, see ``_hashing.Meter``.

    Returns one result per entry, then one per extra file, sorted by path. Files are hashed side by side, one thread
    a file, largest first, on as many threads as there are cores (hashlib releases the interpreter lock).
    """
    remembered = remembered or {}
    results = {}
    to_hash = []
    for entry in entries:
        result = _cheap(root, entry)
        results[entry.path] = result
        if result.verdict == OK:
            if remembered.get(entry.path) == (result.stamp or []) + [entry.sha256]:
                result.sha256 = entry.sha256
            else:
                to_hash.append(entry)
    if to_hash:
        to_hash.sort(key=lambda entry: entry.size, reverse=True)
        meter = _hashing.Meter(sum(entry.size for entry in to_hash), report)
        for result in _hashing.side_by_side(lambda entry: _hash(root, entry, meter), to_hash):
            results[result.path] = result
    found = [results[entry.path] for entry in entries]
    if extras and os.path.isdir(root):
        for path in tree_files(root):
            if path not in results:
                found.append(FileResult(path, EXTRA, "is not in the manifest, and an engine could load it"))
    return found


def unchanged(root: str, entries: list[Entry], remembered: dict[str, list]) -> bool:
    """Whether every file is there as it was when it was hashed; nothing is read."""
    found = [(entry, _cheap(root, entry)) for entry in entries]
    return all(item.verdict == OK and remembered.get(entry.path) == (item.stamp or []) + [entry.sha256] for entry, item in found)


def read_marker(path: str, root: str, identity: str) -> dict:
    """Read what an earlier verification remembered.

    Returns ``{"files": {path: [size, mtime_ns, inode, sha256]}, "structure": <format or "">}``, with nothing in it when
    there is no marker, when it is about another directory or manifest, or when others could have written it:
    a marker can only save work, never give a verdict of its own.
    """
    nothing = {"files": {}, "structure": ""}
    try:
        with open(path, encoding="utf-8") as handle:
            status = os.fstat(handle.fileno())
            data = json.load(handle)
    except (OSError, ValueError):
        return nothing
    if status.st_mode & 0o022 or status.st_uid not in (0, os.geteuid()):
        return nothing
    if not isinstance(data, dict) or data.get("version") != _MARKER_VERSION:
        return nothing
    if data.get("root") != os.path.realpath(root) or data.get("manifest_id") != identity:
        return nothing
    files = data.get("files")
    structure = data.get("structure")
    if not isinstance(files, dict) or not isinstance(structure, str):
        return nothing
    return {"files": files, "structure": structure}


def make_folder(path: str) -> None:
    """Make a directory and its parents, 0755 whatever the umask says: a replica's user must be able to look inside."""
    if path and not os.path.isdir(path):
        make_folder(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
            os.chmod(path, 0o755)


def marker_root(path: str) -> str | None:
    """The directory a marker is about, or None when the file is none of our markers."""
    try:
        with open(path, encoding="utf-8") as handle:
            data = json.load(handle)
    except (OSError, ValueError):
        return None
    root = data.get("root") if isinstance(data, dict) and data.get("version") == _MARKER_VERSION else None
    return root if isinstance(root, str) else None


def write_claim(path: str, root: str) -> None:
    """Say that ``root`` is being filled by this collection, for whoever removes what never became whole; read by ``marker_root``."""
    make_folder(os.path.dirname(path))
    temporary = "{0}.{1}".format(path, os.getpid())
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            json.dump({"version": _MARKER_VERSION, "root": os.path.realpath(root)}, handle)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_marker(path: str, root: str, identity: str, results: list[FileResult], structure: str) -> None:
    """Remember a tree whose every file was found good. ``structure`` is the format whose structure was checked, or ""."""
    data = {
        "version": _MARKER_VERSION,
        "root": os.path.realpath(root),
        "manifest_id": identity,
        "structure": structure,
        "verified_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": {result.path: (result.stamp or []) + [result.sha256] for result in results},
    }
    folder = os.path.dirname(path)
    try:
        make_folder(folder)
        number, temporary = tempfile.mkstemp(prefix=".marker-", dir=folder)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as handle:
                json.dump(data, handle, indent=1, sort_keys=True)
                handle.write("\n")
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as exc:
        raise LLMError("cannot write the verified-marker {0}: {1}".format(path, exc)) from exc


# --- the stored manifest ----------------------------------------------------------------------------------------------


def document(entries: list[Entry], source: dict, computed: Iterable[str] = ()) -> dict:
    """A manifest as it is stored: its identity, where it came from, and its files.

    ``origin`` of a file is ``computed`` when its digest was taken from a download because the source told none, else ``given``.
    """
    taken = set(computed)
    return {
        "version": 1,
        "manifest_id": manifest_id(entries),
        "source": source,
        "files": [dict(dataclasses.asdict(entry), origin="computed" if entry.path in taken else "given") for entry in entries],
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def same_document(one: dict, other: dict) -> bool:
    """Whether two stored manifests say the same, whenever they were made."""
    return all(one.get(name) == other.get(name) for name in ("version", "manifest_id", "source", "files"))


def read_document(path: str) -> dict:
    """A stored manifest; empty when there is none. Raises LLMError naming the file when it is none of ours, or is damaged."""
    try:
        with open(path, encoding="utf-8") as handle:
            found = json.load(handle)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise LLMError("{0}: the stored manifest cannot be read: {1}. Remove it, and a new one is taken".format(path, exc)) from exc
    try:
        good = found["version"] == 1 and found["manifest_id"] == manifest_id(parse_manifest(found["files"]))
    except (LLMError, KeyError, TypeError, AttributeError) as exc:
        raise LLMError("{0}: is no stored manifest: {1}. Remove it, and a new one is taken".format(path, exc)) from exc
    if not good:
        raise LLMError("{0}: the stored manifest does not have the identity it names. Remove it, and a new one is taken".format(path))
    return found


def prepare_document(path: str, found: dict) -> str:
    """Write a manifest beside ``path``, safely on disk, for ``os.replace``; returns where. Raises LLMError when it cannot be written."""
    temporary = "{0}.{1}".format(path, os.getpid())
    try:
        make_folder(os.path.dirname(path))
        try:
            with open(temporary, "w", encoding="utf-8") as handle:
                json.dump(found, handle, indent=1, sort_keys=True)
                handle.write("\n")
                handle.flush()
                os.fsync(handle.fileno())
            os.chmod(temporary, 0o644)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as exc:
        raise LLMError(
            "{0}: the manifest cannot be written: {1}. Make room and run again; what was there before is unchanged".format(
                path, exc.strerror or exc
            )
        ) from exc
    return temporary


def write_document(path: str, found: dict) -> None:
    """Store a manifest in one step. Raises LLMError when it cannot be written."""
    os.replace(prepare_document(path, found), path)
