# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A verification as plain data: at once, as a job whose progress can be told, or without any manifest. Private."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import (
    _config_file,
    _hashing,
    _jobs,
    _manifest,
    _progress,
    _structure,
    _weights,
)
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: More bytes than this are hashed by a job, so that somebody can be told how far it is: some seconds of a fast disk.
JOB_BYTES = 2 << 30

#: How long a call waits for a job to end before it says that it works on, in seconds.
LINGER_S = 2.0

REMEDY = "Fetch the named files again from a source you trust, or correct the manifest."


class Pending(Exception):
    """The job works on; ``state`` is what is known about it, ``mine`` whether it does what was asked for."""

    def __init__(self, state: _jobs.State, mine: bool) -> None:
        super().__init__()
        self.state = state
        self.mine = mine


def job_of(path: str) -> str:
    """Where the job of a verification lives."""
    return path + ".verify.job"


def verified(arguments: dict[str, Any], progress_path: str = "") -> dict[str, Any]:
    """Verify against a manifest.

    Args:
        arguments: ``{path, manifest, format, marker, deep, structure, read_only, needs, quantization, engine_config,
            remember}``, see ``_weights.verify``; ``remember`` says whether the marker may be written.
        progress_path: file for the progress, see ``_progress``; "" for none.

    Returns the result as plain data, with ``complaint`` (one message, empty when all is well) and what ``config_of`` gives.
    """
    path = arguments["path"]
    entries = _manifest.parse_manifest(arguments["manifest"])
    progress = _progress.Progress(progress_path, "hash")
    report = _weights.verify(
        path,
        entries,
        arguments["format"],
        arguments["marker"],
        arguments["deep"],
        arguments["structure"],
        arguments["read_only"],
        needs=tuple(arguments["needs"]),
        report=progress.report,
        quantization=arguments["quantization"],
        engine_config=arguments["engine_config"],
    )
    progress.finish()
    if arguments["remember"]:
        _weights.remember(path, arguments["marker"], report)
    complaint = "" if report.ok else _weights.complaint(path, report, REMEDY)
    return dict(report.as_dict(), complaint=complaint, **config_of(arguments))


def job(arguments: dict[str, Any], _secret: str, progress_path: str) -> dict[str, Any]:
    """``verified`` as the worker of a job calls it."""
    return verified(arguments, progress_path)


def config_of(arguments: dict[str, Any]) -> dict[str, str]:
    """The config the engine will see, ``{config_path, config_sha256}``; both "" for formats that have none, and the second when it is not there."""
    if arguments["format"] != "safetensors":
        return {"config_path": "", "config_sha256": ""}
    over = arguments["engine_config"]
    path = over if over and os.path.exists(over) else os.path.join(arguments["path"], "config.json")
    digest = _hashing.sha256_of(path)[0] if os.path.isfile(path) else ""
    return {"config_path": path, "config_sha256": digest}


def to_hash(arguments: dict[str, Any]) -> int:
    """Bytes a verification would have to read, from sizes and times alone."""
    path, marker = arguments["path"], arguments["marker"]
    entries = _manifest.parse_manifest(arguments["manifest"])
    known: dict[str, list] = {}
    if marker and not arguments["deep"]:
        known = _manifest.read_marker(marker, path, _manifest.manifest_id(entries))["files"]
    total = 0
    for entry in entries:
        try:
            status = os.lstat(os.path.join(path, *entry.path.split("/")))
        except OSError:
            continue
        if status.st_size == entry.size and known.get(entry.path) != _manifest.stamp_of(status) + [entry.sha256]:
            total += entry.size
    return total


def followed(arguments: dict[str, Any], nonce: str) -> dict[str, Any]:
    """Have a job verify; ``nonce`` names the one an earlier call started, "" starts one.

    Returns what ``verified`` returns. Raises Pending while it works.
    """
    folder = job_of(arguments["path"])
    identity = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode("utf-8")).hexdigest()
    state = _jobs.look(folder, nonce)
    if not nonce or state.nonce != nonce:
        _manifest.make_folder(os.path.dirname(folder))
        title = "verification of {0}".format(arguments["path"])
        state = _jobs.start(folder, identity, title, "_weights_verify.job", arguments)
    mine = state.identity == identity
    seen = _jobs.wait(folder, state.nonce, LINGER_S)
    # Another run may have taken the result and the folder with it; then it is to be asked for anew.
    mine = mine and seen.nonce == state.nonce
    if seen.running or not mine:
        raise Pending(seen, mine)
    value = _jobs.value_of(folder, seen)
    shutil.rmtree(folder, ignore_errors=True)
    return value


def without_manifest(arguments: dict[str, Any]) -> dict[str, Any]:
    """Judge what is there by headers alone: whether bytes are the right ones stays unknown.

    Returns the same shape as ``verified``. Raises LLMError when there is no directory.
    """
    start = time.monotonic()
    path, weights_format = arguments["path"], arguments["format"]
    paths = _structure.files_of(path)
    found = _structure.inspect(path, paths, weights_format, tuple(arguments["needs"]))
    problems = found.lines()
    ok, notes = None, []
    if weights_format == "safetensors" and arguments["quantization"] != "none" and not problems:
        ok, lines, notes = _config_file.opinion(path, arguments["engine_config"], arguments["quantization"], found)
        problems = problems + lines
    files = []
    for name in paths:
        lines = found.problems.get(name, [])
        status = os.lstat(os.path.join(path, *name.split("/")))
        verdict = _manifest.BAD_STRUCTURE if lines else _manifest.OK
        if arguments["read_only"] and not lines and status.st_mode & 0o7777 != 0o444:
            verdict, lines = _manifest.WRITABLE, ["mode is {0:04o}, expected 0444".format(status.st_mode & 0o7777)]
            problems.append("{0}: writable: {1}".format(name, lines[0]))
        files.append(
            {
                "path": name,
                "verdict": verdict,
                "detail": lines[0] if lines else "",
                "size": status.st_size,
                "sha256": None,
                "hashed": False,
            }
        )
    complaint = ""
    if problems:
        complaint = "{0}: {1} problem{2} with the weights:\n{3}\n{4}".format(
            path, len(problems), "" if len(problems) == 1 else "s", "\n".join("  - " + line for line in problems), REMEDY
        )
    return {
        "ok": not problems,
        "bytes_ok": None,
        "structure_ok": not found.problems,
        "quantization_ok": ok,
        "notes": notes,
        "manifest_id": None,
        "files": files,
        "problems": problems,
        "hashed_bytes": 0,
        "seconds": round(time.monotonic() - start, 3),
        "needed_bytes": 0,
        "gathered_bytes": 0,
        "free_bytes": _weights.free_bytes(path),
        "complaint": complaint,
        **config_of(arguments),
    }


def check_arguments(arguments: dict[str, Any], manifest: bool) -> None:
    """Raise LLMError for arguments that do not go together."""
    path, marker = os.path.abspath(arguments["path"]), arguments["marker"]
    for name, other in (("marker", marker), ("engine_config", arguments["engine_config"])):
        if other and os.path.abspath(other).startswith(path.rstrip("/") + "/"):
            raise LLMError("{0} {1} lies inside {2}; put it outside the weights directory".format(name, other, path))
    if not manifest and not arguments["structure"]:
        raise LLMError("{0}: without a manifest and without structure nothing would be checked".format(path))
