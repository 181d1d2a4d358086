# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the files of a model are whole and belong together, from their headers alone. Private to the collection.

Needs no manifest and reads no tensor data: some 10 MB for a model of 35 GB, whose headers name 63,000 tensors.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _gguf, _manifest, _safetensors
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

FORMATS = ("gguf", "safetensors")

#: What an engine needs beside shards to answer chats as their makers meant.
NEEDS = ("config", "tokenizer", "chat_template", "generation_config")

#: A marker that was written by weaker checks than these saves no work: raise it with every check that is added.
VERSION = 2

_PART_OF = re.compile(r"\A(?P<stem>.*)-(?P<number>\d{5})-of-(?P<total>\d{5})\.(?P<suffix>gguf|safetensors)\Z")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "tiktoken.model", "spiece.model")
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
#: Names under which a source may have handed out a page or a pointer in place of the file; a README may well be HTML.
_SNIFFED = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".json", ".jinja", ".model", ".tiktoken", ".txt")
_JSON = ("config.json", "generation_config.json", "tokenizer_config.json")
#: Where hub clients keep what they have not finished.
_UNFINISHED = re.compile(r"(\A|/)\._____temp/|\.(incomplete|part|aria2|crdownload)\Z")


@dataclasses.dataclass
class Inspection:
    """What headers and small files say.

    Attributes:
        problems: path, or "" for the set as a whole, -> one line per fault.
        shards: path of a safetensors file whose header is sound -> its tensors.
        documents: name of a JSON file at the top (see ``_JSON``) that could be read -> its content.
    """

    problems: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    shards: dict[str, list[_safetensors.Tensor]] = dataclasses.field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def note(self, path: str, line: str) -> None:
        """Remember a fault of ``path``."""
        self.problems.setdefault(path, []).append(line)

    def lines(self) -> list[str]:
        """Every fault, those of the set as a whole last."""
        return [line for path in sorted(self.problems, key=lambda name: (not name, name)) for line in self.problems[path]]


def checks(weights_format: str, needs: tuple[str, ...] = NEEDS, quantization: str = "") -> str:
    """Name a set of checks, for a marker: words, so that more checks contain fewer."""
    words = ["{0}/{1}".format(weights_format, VERSION)]
    words += ["needs:" + need for need in needs] if weights_format == "safetensors" else []
    words += ["quantization:" + quantization] if quantization else []
    return " ".join(words)


def covers(known: str, wanted: str) -> bool:
    """Whether the checks named ``known`` contain those named ``wanted``."""
    return set(wanted.split()) <= set(known.split())


def files_of(root: str) -> list[str]:
    """Relative paths of the files an engine could see, hidden ones left out. Raises LLMError without a directory."""
    if not os.path.isdir(root):
        raise LLMError("{0}: there is no such directory on this host".format(root))
    return [path for path in _manifest.tree_files(root) if not _hidden(path) or _UNFINISHED.search(path)]


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def inspect(root: str, paths: list[str], weights_format: str, needs: tuple[str, ...] = NEEDS) -> Inspection:
    """Check headers, indexes and required files of ``paths`` (relative to ``root``).

    ``needs`` are names of ``NEEDS``; they concern safetensors, since a GGUF file brings everything itself.
    """
    found = Inspection()
    unknown = sorted(set(needs) - set(NEEDS))
    if unknown:
        raise LLMError("required file {0!r} is none this collection knows; it knows {1}".format(unknown[0], ", ".join(NEEDS)))
    whole = [path for path in paths if _is_whole(root, path, found)]
    suffix = "." + weights_format
    weights = [path for path in paths if path.endswith(suffix)]
    if not weights:
        found.note("", "no file of format {0} is among {1}".format(weights_format, _some(paths)))
    headers: dict[str, Any] = {}
    for path in weights:
        if path in whole:
            _read_header(root, path, weights_format, headers, found)
    for line in _missing_parts(weights):
        found.note("", line)
    names = {path: [tensor.name for tensor in _tensors(header)] for path, header in headers.items()}
    if weights_format == "safetensors":
        found.shards = headers
        for name in _JSON:
            if name in whole:
                _read_document(root, name, found)
        _check_indexes(root, whole, weights, names, found)
        _check_needs(root, paths, whole, needs, found)
        twice = names
    else:
        _check_split(headers, found)
        # several GGUF files in a directory may be several models; parts of one must not repeat each other
        twice = {path: tensors for path, tensors in names.items() if _PART_OF.match(path)}
    for line in _twice(twice):
        found.note("", line)
    return found


def _some(paths: list[str]) -> str:
    return (", ".join(paths[:5]) + (" and {0} more".format(len(paths) - 5) if len(paths) > 5 else "")) or "the files"


def _full(root: str, path: str) -> str:
    return os.path.join(root, *path.split("/"))


def _is_whole(root: str, path: str, found: Inspection) -> bool:
    """Whether ``path`` is a regular file that is what its name says, as far as its first bytes tell."""
    full = _full(root, path)
    if _UNFINISHED.search(path):
        found.note(path, "{0}: is what a hub client left of an unfinished download; finish it, or remove it".format(path))
        return False
    try:
        status = os.lstat(full)
        if stat.S_ISLNK(status.st_mode):
            found.note(path, "{0}: is a symbolic link (to {1}) that a container would not see".format(path, os.path.realpath(full)))
            return False
        if not stat.S_ISREG(status.st_mode):
            found.note(path, "{0}: is no regular file".format(path))
            return False
        if not path.endswith(_SNIFFED):
            return True
        if not status.st_size:
            found.note(path, "{0}: is empty: the download wrote nothing; fetch it again".format(path))
            return False
        with open(full, "rb") as handle:
            known = _manifest.sniff(handle.read(512))
    except OSError as exc:
        found.note(path, "{0}: cannot be read: {1}".format(path, exc.strerror or exc))
        return False
    if known:
        found.note(path, "{0}: {1}".format(path, known[1]))
    return not known


def _read_header(root: str, path: str, weights_format: str, headers: dict[str, Any], found: Inspection) -> None:
    try:
        with open(_full(root, path), "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            read = _gguf.read_header if weights_format == "gguf" else _safetensors.read_header
            headers[path] = read(handle, size, path)
    except LLMError as exc:
        found.note(path, str(exc))
    except OSError as exc:
        found.note(path, "{0}: cannot be read: {1}".format(path, exc.strerror or exc))


def _tensors(header: Any) -> list:
    return header.tensors if isinstance(header, _gguf.Header) else header


def _bytes(root: str, path: str) -> bytes:
    with open(_full(root, path), "rb") as handle:
        return handle.read()


def _read_document(root: str, name: str, found: Inspection) -> None:
    try:
        found.documents[name] = _safetensors.parse_json(_bytes(root, name), name)
    except LLMError as exc:
        found.note(name, str(exc))
    except OSError as exc:
        found.note(name, "{0}: cannot be read: {1}".format(name, exc.strerror or exc))


def _missing_parts(weights: list[str]) -> list[str]:
    """Files named ``x-00001-of-00003`` whose siblings are not there, or that disagree about their number."""
    sets: dict[tuple[str, str], dict[int, set[int]]] = {}
    for path in weights:
        match = _PART_OF.match(path)
        if match:
            totals = sets.setdefault((match.group("stem"), match.group("suffix")), {})
            totals.setdefault(int(match.group("total")), set()).add(int(match.group("number")))
    lines = []
    for (stem, suffix), totals in sorted(sets.items()):
        if len(totals) > 1:
            lines.append(
                "{0}-*.{1}: the names say there are {2} parts: files of two downloads are mixed".format(
                    stem, suffix, " and ".join(str(total) for total in sorted(totals))
                )
            )
            continue
        for total, present in totals.items():
            absent = sorted(set(range(1, total + 1)) - present)
            if absent:
                lines.append(
                    "{0}-{1:05d}-of-{2:05d}.{3}: missing ({4} of {2} parts are)".format(stem, absent[0], total, suffix, len(absent))
                )
            strange = sorted(present - set(range(1, total + 1)))
            if strange:
                lines.append("{0}-{1:05d}-of-{2:05d}.{3}: there is no such part".format(stem, strange[0], total, suffix))
    return lines


def _twice(tensors: dict[str, list[str]]) -> list[str]:
    """Tensors that two files of one directory both hold: which one an engine takes is chance."""
    owner: dict[tuple[str, str], str] = {}
    lines = []
    for path in sorted(tensors):
        folder = os.path.dirname(path)
        for name in tensors[path]:
            other = owner.setdefault((folder, name), path)
            if other != path:
                lines.append("{0}: tensor {1!r} is in {2} as well".format(path, name, other))
                break
    return lines


def _check_split(headers: dict[str, _gguf.Header], found: Inspection) -> None:
    """What the parts of a split GGUF file say of each other must hold."""
    counted: dict[str, int] = {}
    for path, header in sorted(headers.items()):
        match = _PART_OF.match(path)
        total, number = header.metadata.get("split.count"), header.metadata.get("split.no")
        if match is None:
            if isinstance(total, int) and total > 1:
                found.note(path, "{0}: is one of {1} parts, and its name does not say which: engines find no others".format(path, total))
            continue
        counted[match.group("stem")] = counted.get(match.group("stem"), 0) + len(header.tensors)
        if total is not None and (total, number) != (int(match.group("total")), int(match.group("number")) - 1):
            found.note(
                path, "{0}: its header says it is part {1} of {2} (counted from 0): misnamed or mixed up".format(path, number, total)
            )
    for path, header in sorted(headers.items()):
        match = _PART_OF.match(path)
        total = header.metadata.get("split.tensors.count")
        if match and total is not None and int(match.group("number")) == 1 and total != counted[match.group("stem")]:
            found.note("", "{0}: the parts hold {1} tensors, its header says {2}".format(path, counted[match.group("stem")], total))


def _check_indexes(root: str, whole: list[str], weights: list[str], names: dict[str, list[str]], found: Inspection) -> None:
    """Hold every index against the shards beside it; several in one directory share its shards."""
    folders: dict[str, list[str]] = {}
    for path in whole:
        if path.endswith(".safetensors.index.json"):
            folders.setdefault(os.path.dirname(path), []).append(path)
    for folder, indexes in sorted(folders.items()):
        beside = {os.path.basename(path): held for path, held in names.items() if os.path.dirname(path) == folder}
        # a shard whose own header is broken was reported already
        unread = {os.path.basename(path) for path in weights if path not in names and os.path.dirname(path) == folder}
        maps = {}
        for index in indexes:
            try:
                maps[index] = _safetensors.parse_index(_bytes(root, index), index)
            except LLMError as exc:
                found.note(index, str(exc))
            except OSError as exc:
                found.note(index, "{0}: cannot be read: {1}".format(index, exc.strerror or exc))
        named = {index: set(weight_map.values()) for index, weight_map in maps.items()}
        for index, weight_map in maps.items():
            others = set().union(*(shards for other, shards in named.items() if other != index))
            mine = {shard: held for shard, held in beside.items() if shard in named[index] or shard not in others}
            judged = {name: shard for name, shard in weight_map.items() if shard not in unread}
            for line in _safetensors.check_index(judged, mine, index):
                found.note(index, line)
    top = [path for path in weights if "/" not in path]
    if len(top) > 1 and "" not in folders:
        found.note("", "there are {0} shards and no index (*.safetensors.index.json)".format(len(top)))


def _check_needs(root: str, paths: list[str], whole: list[str], needs: tuple[str, ...], found: Inspection) -> None:
    """What must lie beside the shards. A file that is there and broken was reported already."""
    if "config" in needs and "config.json" not in paths:
        found.note("", "config.json: missing: no engine can load these weights without it")
    if "tokenizer" in needs and not any(path in _TOKENIZERS or path.endswith(".tiktoken") for path in paths):
        found.note("", "no tokenizer is there (one of {0})".format(", ".join(_TOKENIZERS)))
    if "tokenizer.json" in whole and not _closes(root, "tokenizer.json"):
        found.note("tokenizer.json", "tokenizer.json: does not begin and end as a JSON object: truncated; fetch it again")
    if "generation_config" in needs and "generation_config.json" not in paths:
        found.note("", "generation_config.json: missing: the engine would sample with its own defaults, not the model's")
    if "chat_template" in needs and not any(path in _TEMPLATES for path in paths):
        settings = found.documents.get("tokenizer_config.json")
        if settings is None and "tokenizer_config.json" in paths:
            return
        if not (settings or {}).get("chat_template"):
            found.note(
                "",
                "no chat template is there ({0}, or chat_template in tokenizer_config.json): the engine would refuse chats, or make up "
                "a form the model was not trained on".format(", ".join(_TEMPLATES)),
            )


def _closes(root: str, path: str) -> bool:
    """Whether a file begins with ``{`` and ends with ``}``: a big JSON file need not be parsed to see that it was cut."""
    try:
        with open(_full(root, path), "rb") as handle:
            head = handle.read(64).lstrip()
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - 64))
            tail = handle.read().rstrip()
    except OSError:
        return False
    return head.startswith(b"{") and tail.endswith(b"}")
