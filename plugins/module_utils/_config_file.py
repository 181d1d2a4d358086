# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The config.json that an engine sees, with its word about quantization: judged, made, put back. Private to the collection.

Whatever is written reads back as it was but for the block, replaces the old file at once, and can be taken away again.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _manifest, _quantization, _safetensors, _structure
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._lock import guard
from ansible_collections.ironserve.llm.plugins.module_utils._quantization import Verdict
from ansible_collections.ironserve.llm.plugins.module_utils._safetensors import Tensor


def bare(config: dict[str, Any]) -> dict[str, Any]:
    """A config without any word about quantization: what must never change."""
    return {key: value for key, value in config.items() if key not in _quantization.KEYS}


def patch(config: dict[str, Any], block: dict[str, Any]) -> bytes:
    """The text of a config with ``block`` put in, twice as the readers of both keys need it. Raises LLMError unless it reads back."""
    whole = bare(config)
    for key in _quantization.KEYS:
        whole[key] = copy.deepcopy(block)
    raw = (json.dumps(whole, indent=2) + "\n").encode("utf-8")
    again = _safetensors.parse_json(raw, "config.json with its block")
    if bare(again) != bare(config) or list(bare(again)) != list(bare(config)) or any(again[key] != block for key in _quantization.KEYS):
        raise LLMError("config.json with its block does not read back as it was: this is a fault of the collection; nothing was written")
    return raw


def read_config(path: str) -> tuple[bytes, dict[str, Any]]:
    """A config's bytes and content. Raises LLMError naming it."""
    try:
        with open(path, "rb") as handle:
            raw = handle.read()
    except OSError as exc:
        raise LLMError("{0}: cannot be read: {1}".format(path, exc.strerror or exc)) from exc
    return raw, _safetensors.parse_json(raw, path)


def replace(path: str, raw: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Put bytes in a file's place at once: whoever reads sees the old file or the new one. Raises LLMError; the old one is then there."""
    folder, name = os.path.split(path)
    # always the same name: what a killed run left is written over
    temporary = os.path.join(folder, ".{0}.new".format(name))
    try:
        _manifest.make_folder(folder)
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(number, "wb") as handle:
            handle.write(raw)
            handle.flush()
            os.fsync(handle.fileno())
        if owner is not None and os.geteuid() == 0:
            os.chown(temporary, *owner)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        temporary = ""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise LLMError("{0}: cannot be written: {1}; it is what it was".format(path, exc.strerror or exc)) from exc
    finally:
        if temporary and os.path.lexists(temporary):
            os.unlink(temporary)


def look(root: str, config_path: str = "", wanted: str = "auto", found: _structure.Inspection | None = None) -> Verdict:
    """Judge a directory of shards.

    Args:
        root: the directory.
        config_path: config the engine will see in place of ``<root>/config.json``; "" or one that is not there is that file.
        wanted: see ``judge``.
        found: what ``_structure.inspect`` found, when that was done already.

    Raises LLMError when the structure itself is not sound: there is then nothing to judge.
    """
    if found is None:
        found = _structure.inspect(root, _structure.files_of(root), "safetensors", ("config",))
    sound(root, found)
    config = found.documents.get("config.json", {})
    if config_path and os.path.exists(config_path):
        config = _config_over(config_path, os.path.join(root, "config.json"), config)
    return _quantization.judge(config, _top(found), description_of(root), wanted, sorted(os.listdir(root)))


def opinion(root: str, config_path: str, wanted: str, found: _structure.Inspection) -> tuple[bool, list[str], list[str]]:
    """``look`` for a verification: ``(ok, problem lines, notes)``, a config that cannot be read being a problem like others."""
    try:
        verdict = look(root, config_path, wanted, found)
    except LLMError as exc:
        return False, [str(exc)], []
    return not verdict.problems, verdict.problems, verdict.notes


def word(wanted: str, config_path: str) -> str:
    """Name what ``look`` would judge, for a marker: the method and, when there is one, the config that is mounted over. "" for none."""
    if wanted == "none":
        return ""
    over = _content(config_path) if config_path else b""
    return "{0}@{1}".format(wanted, hashlib.sha256(over).hexdigest()) if over else wanted


def sound(root: str, found: _structure.Inspection) -> None:
    """Raise LLMError when the structure has faults."""
    if found.problems:
        raise LLMError(
            "{0}: the files are not sound, so their quantization cannot be judged:\n{1}".format(
                root, "\n".join("  - " + line for line in found.lines())
            )
        )


def _top(found: _structure.Inspection) -> dict[str, list[Tensor]]:
    """The shards an engine loads; those of subdirectories belong to other parts of a pipeline."""
    return {path: tensors for path, tensors in found.shards.items() if "/" not in path}


def _config_over(path: str, config_file: str, config: dict[str, Any]) -> dict[str, Any]:
    """A config that is mounted over ``config_file``. Raises LLMError when it differs from it in more than the block."""
    over = read_config(path)[1]
    if bare(over) != bare(config):
        raise LLMError("{0}: says other things about the model than {1}; remove it and make it again".format(path, config_file))
    return over


def description_of(root: str) -> dict[str, Any] | None:
    """Ascend's description in a directory, or None. Raises LLMError when it is there and cannot be read."""
    path = os.path.join(root, _quantization.DESCRIPTION)
    if not os.path.lexists(path):
        return None
    return read_config(path)[1]


@dataclasses.dataclass
class Settled:
    """What ``settle`` did, or would do.

    Attributes:
        changed: whether a file is (or would be) different.
        target: the file it is about.
        before, after: its content, empty when it is not there.
        config_path: the config the engine must see.
        sha256, original_sha256: digests of that config and of the one without our block.
        verdict: the judgement on that config; None when something was put back. Nothing was written when it has problems.
    """

    changed: bool
    target: str
    before: bytes
    after: bytes
    config_path: str = ""
    sha256: str = ""
    original_sha256: str = ""
    verdict: Verdict | None = None


def settle(
    root: str,
    state: str,
    dest: str = "",
    backup: str = "",
    block: dict[str, Any] | None = None,
    method: str = "auto",
    look_only: bool = False,
    wait_s: float = 60.0,
) -> Settled:
    """Have the right description beside (or in) a directory of weights, judge the one that is there, or take ours away.

    Args:
        root: the weights.
        state: ``present``, ``checked`` or ``absent``.
        dest: file for the config with the block, outside ``root``; "" replaces ``<root>/config.json``.
        backup: where the original goes before that; "" is beside it.
        block: the block to use; None derives it when one is needed.
        method: see ``judge``.
        look_only: write nothing.
        wait_s: longest wait for another writer.

    Raises LLMError when the files are not sound, cannot be read or written, or are not what this collection left.
    """
    root = os.path.abspath(root)
    config_file = os.path.join(root, "config.json")
    if dest and (dest + os.sep).startswith(root.rstrip(os.sep) + os.sep):
        raise LLMError("{0}: lies inside {1}; put it outside, so that the weights stay what they are".format(dest, root))
    if not os.path.isdir(root):
        raise LLMError("{0}: there is no such directory on this host".format(root))
    with guard(os.path.dirname(root), wait_s):
        if state == "absent":
            return _put_back(config_file, dest, backup or config_file + ".original", look_only)
        return _settle_locked(root, config_file, state, dest, backup or config_file + ".original", block, method, look_only)


def _settle_locked(
    root: str, config_file: str, state: str, dest: str, backup: str, block: dict[str, Any] | None, method: str, look_only: bool
) -> Settled:
    paths = [path for path in _structure.files_of(root) if os.path.join(root, path) != backup]
    found = _structure.inspect(root, paths, "safetensors", ("config",))
    sound(root, found)
    raw, config = read_config(config_file)
    original = _original(raw, config, config_file, "" if dest else backup)
    target = dest or config_file
    before = _content(dest) if dest else raw
    shards = _top(found)
    described, names = description_of(root), sorted(os.listdir(root))

    def judged(content: dict[str, Any]) -> Verdict:
        return _quantization.judge(content, shards, described, method, names)

    if state == "checked":
        seen = dest if dest and before else config_file
        held = _config_over(seen, config_file, config) if seen == dest else config
        return _settled(False, target, before, before, seen, before if seen == dest else raw, original, judged(held))
    verdict = judged(config)
    wrong = ["the block that came with the weights was wrong: " + line for line in verdict.problems] if verdict.method else []
    wanted = block
    if wanted is None and verdict.problems and verdict.quantized and verdict.method in ("", "compressed-tensors"):
        # The maker's block is wrong, or there is none. When no block can be right, what was found stands.
        with contextlib.suppress(UnknownOutput):
            wanted = _quantization.derive(config, shards)
    if wanted is None or wanted == _quantization.block_of(config, []):
        # config.json says it already; a file made for another one must not be mounted over it
        if dest and before and not verdict.problems:
            if not look_only:
                _remove(dest)
            return _settled(True, target, before, b"", config_file, raw, original, verdict)
        return _settled(False, target, before, before, config_file, raw, original, verdict)
    after = patch(config, wanted)
    content = _safetensors.parse_json(after, target)
    verdict = judged(content)
    verdict.notes = wrong + verdict.notes
    if verdict.problems or after == before:
        return _settled(False, target, before, before if verdict.problems else after, target, after, original, verdict)
    if not look_only:
        if dest:
            replace(dest, after, 0o644)
        else:
            status = os.stat(config_file)
            owner = (status.st_uid, status.st_gid)
            if not os.path.lexists(backup):
                replace(backup, raw, status.st_mode & 0o7777, owner)
            replace(config_file, after, status.st_mode & 0o7777, owner)
        # what is on the disk now is what counts
        again = read_config(target)[0]
        if again != after:
            raise LLMError("{0}: does not hold what was written; somebody else writes there. Stop that and run again".format(target))
    return _settled(True, target, before, after, target, after, original, verdict)


def _settled(changed: bool, target: str, before: bytes, after: bytes, seen: str, raw: bytes, original: bytes, verdict: Verdict) -> Settled:
    return Settled(changed, target, before, after, seen, hashlib.sha256(raw).hexdigest(), hashlib.sha256(original).hexdigest(), verdict)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except FileNotFoundError:
        return b""
    except OSError as exc:
        raise LLMError("{0}: cannot be read: {1}".format(path, exc.strerror or exc)) from exc


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as exc:
        raise LLMError("{0}: cannot be removed: {1}".format(path, exc.strerror or exc)) from exc


def _original(raw: bytes, config: dict[str, Any], config_file: str, backup: str) -> bytes:
    """The config as the hub sent it: the backup when there is one. Raises LLMError when that is about another model."""
    kept = _content(backup) if backup else b""
    if not kept:
        return raw
    if bare(_safetensors.parse_json(kept, backup)) != bare(config):
        raise LLMError(
            "{0}: is the original of another config than {1}: somebody replaced that since. Remove the one that is wrong and "
            "run again; nothing was changed".format(backup, config_file)
        )
    return kept


def _put_back(config_file: str, dest: str, backup: str, look_only: bool) -> Settled:
    if dest:
        before = _content(dest)
        if before and not look_only:
            _remove(dest)
        return Settled(bool(before), dest, before, b"")
    kept = _content(backup)
    raw, config = read_config(config_file)
    if not kept:
        return Settled(False, config_file, raw, raw)
    _original(raw, config, config_file, backup)
    if not look_only:
        status = os.stat(config_file)
        replace(config_file, kept, status.st_mode & 0o7777, (status.st_uid, status.st_gid))
        _remove(backup)
    return Settled(True, config_file, raw, kept)
