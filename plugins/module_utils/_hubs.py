# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one door to model hubs: which files a revision has, and their bytes. Private to the collection.

The hubs' own client libraries speak their protocols (``modelscope_hub``, which comes with ``modelscope``, and
``huggingface_hub``); a mirror is plain HTTP with ranges. What a client says about the bytes is not believed: every file is
hashed from disk before it leaves the scratch directory. Works on the download host only, as a job (see _jobs).
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import errno
import fnmatch
import hashlib
import http.client
import os
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable

from ansible_collections.ironserve.llm.plugins.module_utils import _manifest, _progress, _weights
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._manifest import Entry

#: kind -> (module to import, what to install).
CLIENTS = {"modelscope": ("modelscope_hub", "modelscope"), "huggingface": ("huggingface_hub", "huggingface_hub")}
KINDS = ("modelscope", "huggingface", "http")
DEFAULT_REVISION = {"modelscope": "master", "huggingface": "main", "http": ""}

#: What switches a client off the network.
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")

#: Where clients look for tokens by themselves. Only the one that was given counts here.
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "MODELSCOPE_API_TOKEN", "MODELSCOPE_SDK_TOKEN")

#: Files of a repository that no engine reads and that hubs treat each in its own way.
NEVER = (".gitattributes", ".gitignore")

#: Where a ModelScope listing is cut without a word.
CUT = 3000

#: The largest file that Hugging Face's client takes over plain HTTP, in bytes.
_HTTP_LIMIT = 50_000_000_000

_CHUNK = 1 << 20

#: Name of the threads that fetch. After an error the others are not waited for: the worker ends, and they with it.
THREAD = "ironserve-fetch"


@dataclasses.dataclass
class Remote:
    """One file of a hub: path, size in bytes, and the digests the hub tells (``""`` for what it does not)."""

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""


@dataclasses.dataclass
class Listing:
    """What a revision holds: the commit it stands for (``""`` when the hub does not say), and its files."""

    commit: str
    files: list[Remote]


# --- what is the same for all -----------------------------------------------------------------------------------------


def name_of(source: dict) -> str:
    """Name a source in one phrase: ``modelscope Qwen/Qwen3-8B at master``."""
    if source["kind"] == "http":
        return "mirror {0}".format(_without_secrets(source["url"]))
    place = " on {0}".format(_without_secrets(source["endpoint"])) if source.get("endpoint") else ""
    return "{0} {1} at {2}{3}".format(source["kind"], source["repo"], revision_of(source), place)


def _without_secrets(url: str) -> str:
    """An address without user, password and query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def public(source: dict) -> dict:
    """A source that may be shown: its addresses without user, password and query."""
    return {name: _without_secrets(value) if name in ("url", "endpoint") and value else value for name, value in source.items()}


def revision_of(source: dict) -> str:
    """The revision a source asks for, else the hub's default branch."""
    return source.get("revision") or DEFAULT_REVISION[source["kind"]]


def offline_by(environment: dict) -> str:
    """The variable that forbids the network, as ``NAME=value``; empty when none does."""
    for name in OFFLINE:
        if environment.get(name, "").strip().upper() in ("1", "ON", "YES", "TRUE"):
            return "{0}={1}".format(name, environment[name])
    return ""


def environment_for(environment: dict, scratch: str, tries: int) -> dict[str, str]:
    """The environment of a worker: the user's (endpoints, proxies, certificates), without tokens and without chatter."""
    found = {"MODELSCOPE_DOWNLOAD_MAX_RETRIES": str(tries), "MODELSCOPE_REPO_TREE_PAGE_MAX_ATTEMPTS": str(tries + 1)}
    found.update((name, value) for name, value in environment.items() if name not in TOKENS)
    found.update(
        HF_HUB_DISABLE_IMPLICIT_TOKEN="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        # Stored logins are pickles in the user's home; neither is read. The job has a lock of its own.
        MODELSCOPE_HOME=os.path.join(scratch, ".modelscope"),
        MODELSCOPE_CACHE=os.path.join(scratch, ".modelscope"),
        MODELSCOPE_DOWNLOAD_FILE_LOCK="false",
        MODELSCOPE_LOG_LEVEL="ERROR",
        TQDM_DISABLE="1",
        PYTHONDONTWRITEBYTECODE="1",
    )
    return found


def container_command(image: str, folder: str, environment: dict, user: str) -> list[str]:
    """Run the worker with the Python of an engine image that has the client libraries, as the same user, in the same folder.

    Variables go by name: their values stand in no argument.
    """
    names = sorted(
        name
        for name in environment
        if name.startswith(("HF_", "MODELSCOPE_", "TRANSFORMERS_", "TQDM_", "PYTHONDONT"))
        or name.lower() in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "requests_ca_bundle")
    )
    return (
        ["docker", "run", "--rm", "--interactive", "--network=host", "--user=" + user, "--volume={0}:{0}".format(folder)]
        + ["--env=HOME=/tmp"]
        + ["--env=" + name for name in names]
        + ["--entrypoint=python3", image]
    )


def read_token(path: str) -> str:
    """The token in a file of mode 0600; empty ``path`` means none.

    Raises LLMError naming the file when it cannot be read, others may read it, or it does not hold one token. The token
    itself is never part of a message.
    """
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as handle:
            mode = os.fstat(handle.fileno()).st_mode & 0o777
            words = handle.read().split()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not text"
        raise LLMError("{0}: the token file cannot be read: {1}. Write one token into it, mode 0600".format(path, reason)) from None
    if mode & 0o077:
        raise LLMError("{0}: the token file has mode {1:04o}, so others may read it: chmod 600 {0}".format(path, mode))
    if len(words) != 1:
        raise LLMError("{0}: the token file must hold exactly one token, it holds {1} words".format(path, len(words)))
    return words[0]


def safe(files: list[Remote], where: str) -> None:
    """Raise LLMError when a listing names a path twice, or one that leaves the directory."""
    try:
        _manifest.parse_manifest([{"path": item.path, "size": item.size, "sha256": item.sha256 or "0" * 64} for item in files])
    except LLMError as exc:
        raise LLMError("the file list of {0} cannot be used: {1}. Nothing was downloaded".format(where, exc)) from exc


def choose(files: list[Remote], include: list[str], exclude: list[str]) -> list[Remote]:
    """The files whose path matches one of ``include`` (empty: all) and none of ``exclude``; ``*`` matches ``/`` too."""
    found = []
    for item in files:
        if item.path in NEVER or any(fnmatch.fnmatchcase(item.path, pattern) for pattern in exclude):
            continue
        if not include or any(fnmatch.fnmatchcase(item.path, pattern) for pattern in include):
            found.append(item)
    return found


def moved(wanted: list[Entry], listing: Listing, where: str) -> str:
    """Say which file of a manifest the revision does not have any more as it was; empty when all are."""
    now = {item.path: item for item in listing.files}
    lines = []
    for entry in wanted:
        item = now.get(entry.path)
        if item is None:
            lines.append("{0}: is not there any more".format(entry.path))
        elif item.sha256 and item.sha256 != entry.sha256:
            lines.append("{0}: the manifest has sha256 {1}, the hub now says {2}".format(entry.path, entry.sha256, item.sha256))
        elif item.size != entry.size:
            lines.append("{0}: the manifest has {1} bytes, the hub now says {2}".format(entry.path, entry.size, item.size))
    if not lines:
        return ""
    return (
        "{0} moved since the manifest was made: {1}{2}. Pin the commit of the manifest as the revision, or take a new manifest "
        "(weights_refresh=true) and prove the new weights. Nothing was changed".format(
            where, "; ".join(lines[:3]), "; and {0} more".format(len(lines) - 3) if len(lines) > 3 else ""
        )
    )


def status_of(exc: BaseException) -> int:
    """The HTTP status in an exception of a client library, or in one it came from; 0 when there is none."""
    seen = []
    while exc is not None and exc not in seen:
        seen.append(exc)
        for holder in (exc, getattr(exc, "response", None)):
            for name in ("status_code", "code"):
                value = getattr(holder, name, None)
                if isinstance(value, int) and 100 <= value < 600:
                    return value
        exc = exc.__cause__ or exc.__context__
    return 0


def _chain(exc: BaseException) -> list[BaseException]:
    seen = []
    while exc is not None and exc not in seen:
        seen.append(exc)
        exc = exc.__cause__ or exc.__context__
    return seen


def explain(exc: BaseException, what: str, where: str) -> LLMError:
    """One message for whatever went wrong with ``what`` (a path, or ``the file list``) of ``where``, and what to do."""
    for item in _chain(exc):
        if isinstance(item, LLMError):
            return item
        if isinstance(item, OSError) and item.errno in (errno.ENOSPC, errno.EDQUOT):
            return LLMError(
                "{0}: no space left on the disk while it was downloaded from {1}. What came so far is kept: free some space (or raise "
                "the quota) and run again, it goes on".format(what, where)
            )
    status = status_of(exc)
    head = "{0}: {1} answered HTTP {2}".format(what, where, status)
    if status in (401, 403):
        return LLMError(
            "{0}: it wants a token, or the token has no right to this repository. Put one that has into a file of mode 0600 and name it "
            "in weights_token_file; accept the model's terms on the hub's site".format(head)
        )
    if status == 404:
        return LLMError("{0}: there is no such repository, revision or file. Correct repo, revision or manifest".format(head))
    if status == 429:
        return LLMError("{0}: too many requests. Wait some minutes and run again, it goes on; a token raises the limit".format(head))
    if status >= 500:
        return LLMError("{0}: the hub is out of order. Run again later, it goes on; or name a mirror as endpoint".format(head))
    if status >= 400:
        return LLMError("{0}: {1}".format(head, _one_line(exc)))
    if any(isinstance(item, ValueError) and "json" in type(item).__name__.lower() + str(item).lower() for item in _chain(exc)):
        return LLMError(
            "{0}: {1} answered with something that is no JSON, probably the login or error page of a proxy. Look at the endpoint and "
            "the proxy settings of the download host".format(what, where)
        )
    if any("Integrity" in type(item).__name__ for item in _chain(exc)):
        return LLMError(
            "{0}: {1} delivered wrong bytes several times: {2}. They were thrown away. Use another endpoint or mirror, or run again "
            "later".format(what, where, _one_line(exc))
        )
    return LLMError(
        "{0}: could not be fetched from {1}: {2}. Look at the endpoint and the network of the download host and run again, it goes "
        "on".format(what, where, _one_line(exc))
    )


def _one_line(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    return "{0}: {1}".format(type(exc).__name__, text if len(text) <= 300 else text[:297] + "...").rstrip(". ")


def _client(kind: str) -> Any:
    """Import a client library. Raises LLMError that says what to install where."""
    module, package = CLIENTS[kind]
    try:
        if kind == "modelscope":
            import modelscope_hub as library
        else:
            import huggingface_hub as library
    except ImportError as exc:
        import sys

        raise LLMError(
            "the Python library {0} is missing for {1} ({2}): {1} -m pip install -r requirements-hubs.txt (of this collection), or "
            "name a Python that has it in weights_hub_python. Only the download host needs it".format(package, sys.executable, exc)
        ) from exc
    if kind == "modelscope" and not hasattr(library, "HubApi"):
        raise LLMError("the Python library {0} is of a version this collection does not know: no HubApi in {1}".format(package, module))
    return library


# --- the sources ------------------------------------------------------------------------------------------------------


class _ModelScope:
    """ModelScope, through its own client. Every file has a sha256; the commit is the newest one a file was changed in."""

    def __init__(self, source: dict, token: str, scratch: str) -> None:
        self.repo, self.revision, self.scratch = source["repo"], revision_of(source), scratch
        # An empty token means none; None would make the client look for one.
        self.api = _client("modelscope").HubApi(token=token, endpoint=source.get("endpoint") or None)

    def listing(self) -> Listing:
        client = self.api.legacy
        found = client.list_repo_files(self.repo, "model", self.revision, recursive=True)
        if getattr(getattr(client, "_read_state", None), "listing_incomplete", len(found) >= CUT):
            raise LLMError(
                "{0}: its file list is cut by the hub at {1} entries, so a manifest would lack files. Name the files in the recipe".format(
                    self.repo, CUT
                )
            )
        blobs = [item for item in found if item.get("Type", "blob") != "tree"]
        newest = max(blobs, key=lambda item: int(item.get("CommittedDate") or 0), default={})
        files = [Remote(item.get("Path") or "", int(item.get("Size") or 0), (item.get("Sha256") or "").lower()) for item in blobs]
        return Listing(newest.get("Revision") or "", files)

    def fetch(self, item: Remote) -> str:
        return str(
            self.api.download_file(
                self.repo,
                "model",
                item.path,
                revision=self.revision,
                local_dir=self.scratch,
                expected_sha256=item.sha256 or None,
                file_size=item.size,
            )
        )

    def partial(self, item: Remote) -> int:
        target = os.path.join(self.scratch, *item.path.split("/"))
        # One file that grows, or one a range while several are fetched side by side.
        return _sizes(os.path.dirname(target), os.path.basename(target))


class _HuggingFace:
    """Hugging Face, through its own client. Small files have a git digest only."""

    def __init__(self, source: dict, token: str, scratch: str) -> None:
        self.library = _client("huggingface")
        self.repo, self.revision, self.scratch = source["repo"], source.get("commit") or revision_of(source), scratch
        self.tries = source.get("tries", 5)
        self.endpoint, self.token = source.get("endpoint") or None, token or False
        self.api = self.library.HfApi(endpoint=self.endpoint, token=self.token)

    def listing(self) -> Listing:
        info = _again(lambda: self.api.model_info(self.repo, revision=self.revision, files_metadata=True, timeout=60), self.tries)
        files = []
        for item in info.siblings or []:
            lfs = getattr(item, "lfs", None)
            if item.size is None:
                raise LLMError("{0}: {1} has no size in the file list, so it cannot be verified".format(self.repo, item.rfilename))
            files.append(Remote(item.rfilename, item.size, lfs.sha256 if lfs else "", "" if lfs else item.blob_id or ""))
        # From here on the commit, whatever happens to the branch meanwhile.
        self.revision = info.sha or self.revision
        return Listing(info.sha or "", files)

    def fetch(self, item: Remote) -> str:
        target = os.path.join(self.scratch, *item.path.split("/"))
        if item.size > _HTTP_LIMIT or os.environ.get("HF_XET_HIGH_PERFORMANCE"):
            return _again(
                lambda: self.library.hf_hub_download(
                    self.repo, item.path, revision=self.revision, local_dir=self.scratch, endpoint=self.endpoint, token=self.token
                ),
                self.tries,
            )
        # hf_hub_download throws away the half of a file when it is interrupted; its parts can go on where they were.
        part = _part(target, item)
        _manifest.make_folder(os.path.dirname(target))
        if _size(part) > item.size:
            os.unlink(part)
        _again(lambda: self._get(item, part), self.tries, lambda: _size(part))
        os.replace(part, target)
        return target

    def _get(self, item: Remote, part: str) -> None:
        from huggingface_hub.file_download import http_get

        url = self.library.hf_hub_url(self.repo, item.path, revision=self.revision, endpoint=self.endpoint)
        about = self.library.get_hf_file_metadata(url, token=self.token, endpoint=self.endpoint)
        if not about.commit_hash or about.size not in (None, item.size):
            raise LLMError(
                "{0}: what answers at {1} is no hub with this file: commit {2}, {3} bytes, expected {4} bytes. Probably the login or error page "
                "of a proxy; look at the endpoint and the proxy settings of the download host".format(
                    item.path, _without_secrets(url), about.commit_hash, about.size, item.size
                )
            )
        headers = self.library.utils.build_hf_headers(token=self.token)
        if urllib.parse.urlsplit(about.location).netloc != urllib.parse.urlsplit(url).netloc:
            # The store behind the hub must not learn the token.
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        with open(part, "ab") as out:
            had = out.tell()
            try:
                http_get(about.location, out, resume_size=had, headers=headers, expected_size=item.size)
            except Exception as exc:
                _drop_if_beyond(exc, item, part, had)
                raise

    def partial(self, item: Remote) -> int:
        target = os.path.join(self.scratch, *item.path.split("/"))
        return max(_size(target), _size(_part(target, item)))


class _Mirror:
    """Plain HTTP(S): ``<url>/<path>``. There is no list of files, the manifest has to be known."""

    def __init__(self, source: dict, token: str, scratch: str) -> None:
        self.url, self.token, self.scratch, self.tries = source["url"].rstrip("/"), token, scratch, source.get("tries", 5)

    def listing(self) -> Listing:
        raise LLMError("mirror {0}: has no list of files with digests; name them in the recipe".format(_without_secrets(self.url)))

    def fetch(self, item: Remote) -> str:
        target = os.path.join(self.scratch, *item.path.split("/"))
        part = _part(target, item)
        _manifest.make_folder(os.path.dirname(target))
        if _size(part) > item.size:
            os.unlink(part)
        _again(lambda: self._get(item, part, _size(part)), self.tries, lambda: _size(part))
        os.replace(part, target)
        return target

    def _get(self, item: Remote, part: str, had: int) -> None:
        """Append what is missing to ``part``; a connection that ends early raises and leaves what came."""
        if had and had == item.size:
            return
        request = urllib.request.Request("{0}/{1}".format(self.url, urllib.parse.quote(item.path)))
        parts = urllib.parse.urlsplit(self.url)
        # Unredirected: whoever the mirror sends us to must not learn the token.
        if self.token:
            request.add_unredirected_header("Authorization", "Bearer " + self.token)
        elif parts.username:
            # urllib does not take user and password out of an address.
            pair = "{0}:{1}".format(urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
            request.full_url = request.full_url.replace(parts.netloc, parts.netloc.rpartition("@")[2], 1)
            request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(pair.encode("utf-8")).decode("ascii"))
        if had:
            request.add_header("Range", "bytes={0}-".format(had))
        try:
            opened = urllib.request.build_opener().open(request, timeout=60)
        except urllib.error.HTTPError as exc:
            _drop_if_beyond(exc, item, part, had)
            raise
        with opened as reply:
            began = 0
            if reply.status == 206:
                answer = (reply.headers.get("Content-Range") or "").partition("bytes ")[2]
                began = int(answer.partition("-")[0]) if answer.partition("-")[0].isdigit() else -1
                if began != had:
                    raise http.client.HTTPException("asked for bytes from {0} on, got {1!r}".format(had, answer))
            length = reply.headers.get("Content-Length")
            whole = began + int(length) if length and length.isdigit() else None
            head = reply.read(512)
            if whole is not None and whole != item.size or whole is None and _manifest.sniff(head):
                known = _manifest.sniff(head)
                raise LLMError(
                    "{0}: mirror {1} announced {2} bytes, expected {3}{4}. Nothing of it was kept; correct the mirror or the manifest".format(
                        item.path, _without_secrets(self.url), whole, item.size, "; " + known[1] if known else ""
                    )
                )
            with open(part, "ab" if began else "wb") as out:
                count = began
                while head:
                    out.write(head)
                    count += len(head)
                    if count > item.size:
                        break
                    # What is there now: half a megabyte that waits for its other half is no progress, and is lost with the connection.
                    head = reply.read1(_CHUNK)
        if count < item.size:
            raise http.client.HTTPException("the connection ended after {0} of {1} bytes".format(count, item.size))

    def partial(self, item: Remote) -> int:
        target = os.path.join(self.scratch, *item.path.split("/"))
        return max(_size(target), _size(_part(target, item)))


def _part(target: str, item: Remote) -> str:
    """Where the half of a file lies; its digest is part of the name, so that two versions of a file are never mixed."""
    return "{0}.{1}.incomplete".format(target, (item.sha256 or item.git_sha1)[:16])


def _drop_if_beyond(exc: BaseException, item: Remote, part: str, had: int) -> None:
    """A store that has nothing beyond the half has another file than the list says: nothing can go on from there."""
    if status_of(exc) == 416:
        os.unlink(part)
        raise LLMError(
            "{0}: the store has {1} bytes of it at most, the list says {2}. Nothing of it was kept; run again, and if it repeats use "
            "another endpoint or mirror".format(item.path, had, item.size)
        ) from exc


def _again(work: Callable[[], Any], tries: int, size: Callable[[], int] = lambda: 0) -> Any:
    """Do ``work`` again while what is wrong may pass: no answer, a cut connection, HTTP 408, 429 and 5xx.

    At most ``tries`` times in a row without ``size()`` having grown. What lasts is raised at once.
    """
    failed = 0
    while True:
        had = size()
        try:
            return work()
        except Exception as exc:
            failed = 1 if size() > had else failed + 1
            if failed > tries or not _passes(exc):
                raise
            time.sleep(_pause(exc, failed))


def _passes(exc: BaseException) -> bool:
    """Whether it makes sense to try once more."""
    status = status_of(exc)
    if status:
        return status in (408, 429) or status >= 500
    if any(isinstance(item, (LLMError, ValueError)) for item in _chain(exc)):
        return False
    for item in _chain(exc):
        if isinstance(item, OSError) and item.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOENT):
            return False
    names = [type(item).__name__ for item in _chain(exc)]
    return any(isinstance(item, (OSError, http.client.HTTPException)) for item in _chain(exc)) or any(
        word in name for name in names for word in ("Timeout", "Connect", "Protocol", "Network", "ReadError")
    )


def _pause(exc: BaseException, tries: int) -> float:
    """Seconds until the next try: what the server asks for (at most a minute), else longer each time."""
    headers = getattr(exc, "headers", None) or getattr(getattr(exc, "response", None), "headers", None)
    asked = headers.get("Retry-After") if headers else None
    return float(min(60, int(asked))) if asked and asked.isdigit() else min(30.0, 0.25 * 2**tries)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _sizes(folder: str, prefix: str) -> int:
    """Bytes of the files in ``folder`` whose name is ``prefix`` or begins with it and a separator."""
    total = 0
    with contextlib.suppress(OSError):
        for item in os.scandir(folder):
            if item.name == prefix or item.name.startswith((prefix + ".", prefix + "_")):
                if not item.name.endswith((".lock", ".metadata")):
                    total += _size(item.path)
    return total


def open_source(source: dict, token: str, scratch: str) -> Any:
    """The source for ``{kind: modelscope|huggingface|http, ...}``."""
    return {"modelscope": _ModelScope, "huggingface": _HuggingFace, "http": _Mirror}[source["kind"]](source, token, scratch)


# --- the work ---------------------------------------------------------------------------------------------------------


def digests(path: str) -> tuple[str, str, int]:
    """``(sha256, git blob sha1, size)`` of a file, read once from disk."""
    size = os.stat(path).st_size
    sha256, sha1 = hashlib.sha256(), hashlib.sha1("blob {0}\0".format(size).encode("ascii"))
    with open(path, "rb") as handle:
        while True:
            piece = handle.read(_CHUNK)
            if not piece:
                return sha256.hexdigest(), sha1.hexdigest(), size
            sha256.update(piece)
            sha1.update(piece)


def arrive(item: Remote, path: str, target: str, where: str) -> str:
    """Verify a file that was fetched and move it to ``target``; returns its sha256.

    Raises LLMError when a byte is wrong; the file is removed then, for nothing can be continued from it.
    """
    sha256, git_sha1, size = digests(path)
    wrong = ""
    if size != item.size:
        wrong = "expected {0} bytes, found {1}".format(item.size, size)
    elif item.sha256 and sha256 != item.sha256:
        wrong = "expected sha256 {0}, found {1}".format(item.sha256, sha256)
    elif not item.sha256 and item.git_sha1 and git_sha1 != item.git_sha1:
        wrong = "expected git blob {0}, found {1}".format(item.git_sha1, git_sha1)
    if wrong:
        with open(path, "rb") as handle:
            known = _manifest.sniff(handle.read(512))
        os.unlink(path)
        raise LLMError(
            "{0}: {1} delivered wrong bytes: {2}{3}. They were thrown away, the files that are right are kept. Run again; if it repeats, "
            "correct the manifest or use another endpoint or mirror".format(item.path, where, wrong, "; " + known[1] if known else "")
        )
    _manifest.make_folder(os.path.dirname(target))
    os.replace(path, target)
    return sha256


def fetch_all(
    source: Any,
    items: list[Remote],
    staging: str,
    where: str,
    progress: _progress.Progress,
    before: int = 0,
    files_before: int = 0,
    workers: int = 4,
    stall_s: float = 300.0,
    tick_s: float = 0.5,
) -> dict[str, str]:
    """Fetch files side by side, largest first, verify each and move it into ``staging``; returns ``path -> sha256``.

    ``before`` are the bytes of files that are there already. The first error ends everything; whatever came stays.
    """
    todo = queue.Queue()
    for item in sorted(items, key=lambda item: item.size, reverse=True):
        todo.put(item)
    done, at_work, errors = {}, {}, []
    lock = threading.Lock()

    def work() -> None:
        while not errors:
            try:
                item = todo.get_nowait()
            except queue.Empty:
                return
            with lock:
                at_work[item.path] = item
            try:
                path = source.fetch(item)
                sha256 = arrive(item, path, os.path.join(staging, *item.path.split("/")), where)
            except BaseException as exc:
                errors.append(explain(exc, item.path, where))
                return
            with lock:
                done[item.path] = (sha256, item.size)
                del at_work[item.path]

    threads = [threading.Thread(target=work, name=THREAD, daemon=True) for _number in range(max(1, min(workers, len(items))))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not errors:
        with lock:
            here = list(at_work.values())
            finished = sum(size for _sha256, size in done.values())
        count = before + finished + sum(min(item.size, source.partial(item)) for item in here)
        progress.update(count, [item.path for item in here], files_before + len(done))
        if stall_s and progress.snapshot["idle_s"] > stall_s:
            raise LLMError(
                "{0}: nothing came from {1} for {2}. What came so far is kept: look at the network of the download host and run again, it "
                "goes on".format(", ".join(item.path for item in here), where, _progress.span(progress.snapshot["idle_s"]))
            )
        threads[0].join(tick_s) if threads[0].is_alive() else time.sleep(min(tick_s, 0.05))
    if errors:
        raise errors[0]
    progress.update(before + sum(size for _sha256, size in done.values()), [], files_before + len(done))
    return {path: sha256 for path, (sha256, _size_of) in done.items()}


def list_job(arguments: dict, token: str, progress_path: str) -> dict:
    """The manifest of a revision; files whose sha256 the hub does not tell are fetched into the staging directory for it.

    ``arguments``: ``source``, ``scratch``, ``staging``, ``workers``, ``stall_s``. Returns ``{"commit": ...,
    "files": [{path, size, sha256}], "computed": [paths]}``; computed are the digests that were taken here.
    """
    source, where = arguments["source"], name_of(arguments["source"])
    progress = _progress.Progress(progress_path, "list")
    progress.update(0)
    try:
        hub = open_source(source, token, arguments["scratch"])
        listing = hub.listing()
    except Exception as exc:
        raise explain(exc, "the file list", where) from exc
    files = choose(listing.files, source.get("include") or [], source.get("exclude") or [])
    if not files:
        raise LLMError("{0}: none of its {1} files matches include and exclude of the recipe".format(where, len(listing.files)))
    safe(files, where)
    unknown = [item for item in files if not item.sha256]
    computed = {}
    if unknown:
        _manifest.make_folder(arguments["staging"])
        progress = _progress.Progress(progress_path, "download", sum(item.size for item in unknown), len(unknown))
        computed = fetch_all(
            hub, unknown, arguments["staging"], where, progress, workers=arguments["workers"], stall_s=arguments["stall_s"]
        )
    progress.finish()
    found = [{"path": item.path, "size": item.size, "sha256": item.sha256 or computed[item.path]} for item in files]
    return {"commit": listing.commit, "files": sorted(found, key=lambda item: item["path"]), "computed": sorted(computed)}


def fetch_job(arguments: dict, token: str, progress_path: str) -> dict:
    """Fetch what is missing of a manifest into the staging directory, verified.

    ``arguments``: ``source``, ``files`` (``{path, size, sha256}``), ``path`` (where the weights will live: what is good there
    is not fetched), ``marker``, ``scratch``, ``staging``, ``workers``, ``stall_s``, ``margin`` (bytes to keep free).
    Returns ``{"fetched": [paths], "kept": [paths]}``.
    """
    source, where = arguments["source"], name_of(arguments["source"])
    entries = _manifest.parse_manifest(arguments["files"])
    total = sum(entry.size for entry in entries)
    staging = arguments["staging"]
    progress = _progress.Progress(progress_path, "hash", total, len(entries))
    progress.update(0)
    marker = _manifest.read_marker(arguments["marker"], arguments["path"], _manifest.manifest_id(entries))
    here = _manifest.check_tree(arguments["path"], entries, marker["files"], extras=False, report=progress.report)
    good = {result.path for result in here if result.verdict == _manifest.OK}
    if len(good) < len(entries):
        good |= set(_weights.clean_staging(staging, entries, progress.report))
    wanted = [entry for entry in entries if entry.path not in good]
    before = total - sum(entry.size for entry in wanted)
    progress = _progress.Progress(progress_path, "download", total, len(entries))
    progress.update(before, [], len(good))
    if wanted:
        try:
            hub = open_source(source, token, arguments["scratch"])
            had = sum(min(entry.size, hub.partial(Remote(entry.path, entry.size, entry.sha256))) for entry in wanted)
            _weights.require_space(staging, total - before - had, arguments["margin"])
            if source["kind"] != "http":
                text = moved(wanted, hub.listing(), where)
                if text:
                    raise LLMError(text)
        except Exception as exc:
            raise explain(exc, "the file list", where) from exc
        items = [Remote(entry.path, entry.size, entry.sha256) for entry in wanted]
        fetch_all(hub, items, staging, where, progress, before, len(good), arguments["workers"], arguments["stall_s"])
    progress.finish()
    return {"fetched": [entry.path for entry in wanted], "kept": sorted(good)}


def about(source: dict, commit: str) -> dict:
    """What a stored manifest says about where it came from."""
    found = {name: source[name] for name in ("kind", "repo", "include", "exclude", "endpoint") if source.get(name)}
    found.update(revision=revision_of(source), commit=commit)
    return public(found)


def same_source(document: dict, source: dict) -> bool:
    """Whether a stored manifest is the one of this source (whatever the endpoint: the same bytes may come from any)."""
    stored = document.get("source") or {}
    names = ("kind", "repo", "include", "exclude")
    same = all((stored.get(name) or None) == (source.get(name) or None) for name in names)
    return same and stored.get("revision") == revision_of(source)


def right_size(root: str, entry: Entry) -> bool:
    """Whether a file is there with the size of the manifest; says nothing about its bytes."""
    return os.path.isfile(os.path.join(root, entry.path)) and _size(os.path.join(root, entry.path)) == entry.size
