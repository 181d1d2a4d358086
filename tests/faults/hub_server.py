# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A model hub on this machine: ModelScope's and Hugging Face's download protocols and a plain mirror, with faults on demand.

The real client libraries drive it, so what it answers is what they accept: file lists with digests (ModelScope's cut at 3000
entries without a word), redirects of large files to a store on another address, ranges, commits, tokens.

    with Hub() as hub:
        hub.repo("org/model", {"config.json": b"{}", "model.safetensors": data})
        hub.fault("model.safetensors", status=503, times=2)
        ...  # endpoint=hub.url for both clients, hub.url + "/mirror/org/model" for the mirror, "/moved/..." for one that redirects
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOGIN_PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Your session ended.</body></html>\n"
CUT = 3000
#: Larger files are "LFS": kept in the store, with a sha256. The small ones have a git digest only.
LFS_FROM = 1024


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclasses.dataclass
class Fault:
    """What goes wrong with files (or lists) whose path holds ``match``.

    Attributes:
        match: part of the file's path; ``<list>`` for file lists.
        times: how many answers it spoils; -1 spoils all.
        status: answer this HTTP status.
        headers: more headers of that answer.
        login: answer 200 with a login page.
        flip: change one byte, keeping the size.
        short: close the connection after this share of the body.
        announce_short: announce and send only this share, as if that were the file.
        hold: send this share, then wait until ``release`` is set.
    """

    match: str
    times: int = -1
    status: int = 0
    headers: dict = dataclasses.field(default_factory=dict)
    login: bool = False
    flip: bool = False
    short: float = 0.0
    announce_short: float = 0.0
    hold: float = 0.0
    release: threading.Event = dataclasses.field(default_factory=threading.Event)
    reached: threading.Event = dataclasses.field(default_factory=threading.Event)


@dataclasses.dataclass
class Request:
    """One request as it came in, and how many bytes of body went out."""

    method: str
    path: str
    file: str
    range: str
    token: str
    sent: int = 0


class Hub:
    """The server; a context manager. ``url`` is its address, ``store`` the one large files are redirected to."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, tuple[str, dict[str, bytes]]]] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.token = ""
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._servers = [_Server(("127.0.0.1", 0), handler), _Server(("127.0.0.1", 0), handler)]
        self.url, self.store = ("http://127.0.0.1:{}".format(server.server_port) for server in self._servers)

    def __enter__(self) -> Hub:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for fault in self.faults:
            fault.release.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def repo(self, name: str, files: dict[str, bytes], branches: tuple[str, ...] = ("master", "main")) -> str:
        """Make a commit with these files and let the branches point to it; returns the commit."""
        text = json.dumps({path: sha256(data) for path, data in sorted(files.items())})
        commit = hashlib.sha1(text.encode()).hexdigest()
        known = self.repos.setdefault(name, {})
        for revision in (commit, *branches):
            known[revision] = (commit, dict(files))
        return commit

    def fault(self, match: str, **more: object) -> Fault:
        """Add a fault; it may be changed or taken out of ``faults`` later."""
        fault = Fault(match, **more)
        self.faults.append(fault)
        return fault

    def sent(self, file: str) -> int:
        """Bytes of bodies that went out for a file."""
        with self.lock:
            return sum(item.sent for item in self.requests if item.file == file and item.method == "GET")

    def ranges(self, file: str) -> list[str]:
        """The Range headers of the requests that sent bytes of a file, in order; empty for a whole one."""
        with self.lock:
            return [item.range for item in self.requests if item.file == file and item.method == "GET" and item.sent]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no error of the server."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        authorization = self.headers.get("Authorization", "")
        self.request_log = Request(self.command, self.path, "", self.headers.get("Range", ""), authorization.partition(" ")[2])
        with self.hub.lock:
            self.hub.requests.append(self.request_log)
        if parts[0] == "store":
            return self.give("/".join(parts[3:]), self.lookup("/".join(parts[1:3]), query["commit"]), True)
        if self.hub.token and self.request_log.token != self.hub.token:
            return self.error(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        if parts[:3] == ["api", "v1", "models"]:
            return self.modelscope("/".join(parts[3:5]), parts[5:], query)
        if parts[:2] == ["api", "models"] and parts[4:5] == ["revision"]:
            return self.hugging_face_list("/".join(parts[2:4]), parts[5])
        if parts[2:3] == ["resolve"]:
            return self.hugging_face_file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        if parts[0] == "moved":
            name, path = "/".join(parts[1:3]), "/".join(parts[3:])
            commit, files = self.lookup(name, "master")
            return self.redirect(name, commit, path, files[path])
        if parts[0] == "mirror":
            return self.give("/".join(parts[3:]), self.lookup("/".join(parts[1:3]), "master"), True)
        return self.error(404)

    def lookup(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        return self.hub.repos.get(name, {}).get(revision)

    # ---- the protocols

    def modelscope(self, name: str, rest: list[str], query: dict[str, str]) -> None:
        found = self.lookup(name, query.get("Revision", "master"))
        if found is None:
            return self.error(
                404, body=json.dumps({"Code": 10010205001, "Message": "the model or revision does not exist", "Success": False})
            )
        commit, files = found
        if rest == ["repo", "files"]:
            root = query.get("Root", "").strip("/")
            deep = query.get("Recursive", "False").lower() == "true"
            entries = self.modelscope_entries(files, commit, root, deep)[:CUT]
            return self.give_list({"Code": 200, "Success": True, "Message": "success", "Data": {"Files": entries}})
        if rest == ["repo"]:
            path = query.get("FilePath", "")
            if len(files.get(path, b"")) >= LFS_FROM:
                return self.redirect(name, commit, path, files[path])
            # A file out of git: ranges are ignored there.
            return self.give(path, found, False)
        return self.give_list({"Code": 200, "Success": True, "Data": {"Name": name}})

    @staticmethod
    def modelscope_entries(files: dict[str, bytes], commit: str, root: str, deep: bool) -> list[dict]:
        entries, folders = [], set()
        for path, data in files.items():
            if root and not path.startswith(root + "/"):
                continue
            below = path[len(root) + 1 :] if root else path
            steps = below.split("/")
            for depth in range(1, len(steps) if deep else min(len(steps), 2)):
                folder = "/".join(([root] if root else []) + steps[:depth])
                if folder not in folders:
                    folders.add(folder)
                    entries.append({"Path": folder, "Name": folder.rpartition("/")[2], "Type": "tree", "Size": 0, "Sha256": ""})
            if deep or len(steps) == 1:
                entries.append(
                    {
                        "Path": path,
                        "Name": path.rpartition("/")[2],
                        "Type": "blob",
                        "Size": len(data),
                        "Sha256": sha256(data),
                        "Revision": commit,
                        "CommittedDate": 1790000000,
                        "IsLFS": len(data) >= LFS_FROM,
                    }
                )
        return entries

    def hugging_face_list(self, name: str, revision: str) -> None:
        if name not in self.hub.repos:
            return self.error(404, {"X-Error-Code": "RepoNotFound"})
        found = self.lookup(name, revision)
        if found is None:
            return self.error(404, {"X-Error-Code": "RevisionNotFound"})
        commit, files = found
        siblings = []
        for path, data in files.items():
            item = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
            if len(data) >= LFS_FROM:
                item["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
            siblings.append(item)
        return self.give_list({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []})

    def hugging_face_file(self, name: str, revision: str, path: str) -> None:
        found = self.lookup(name, revision)
        if found is None or path not in found[1]:
            return self.error(404, {"X-Error-Code": "EntryNotFound" if found else "RevisionNotFound"})
        commit, data = found[0], found[1][path]
        if len(data) >= LFS_FROM:
            return self.redirect(name, commit, path, data)
        return self.give(path, found, True, {"ETag": '"{}"'.format(git_sha1(data)), "X-Repo-Commit": commit})

    def redirect(self, name: str, commit: str, path: str, data: bytes) -> None:
        self.request_log.file = path
        fault = self.due(path)
        if fault and (fault.status or fault.login):
            return self.spoil(fault)
        self.reply(
            302,
            {
                "Location": "{}/store/{}/{}?commit={}".format(self.hub.store, name, urllib.parse.quote(path), commit),
                "X-Repo-Commit": commit,
                "X-Linked-Size": str(len(data)),
                "X-Linked-ETag": '"{}"'.format(sha256(data)),
                "Accept-Ranges": "bytes",
            },
            b"",
        )

    # ---- answers

    def due(self, path: str) -> Fault | None:
        """The first fault for this path; one that is about a body waits for the request that gets it."""
        with self.hub.lock:
            return next((item for item in self.hub.faults if item.times and item.match in path), None)

    def spoil(self, fault: Fault) -> None:
        with self.hub.lock:
            fault.times -= 1
        fault.reached.set()
        if fault.login:
            return self.reply(200, {"Content-Type": "text/html"}, LOGIN_PAGE)
        return self.error(fault.status, fault.headers)

    def give_list(self, data: dict) -> None:
        fault = self.due("<list>")
        if fault:
            return self.spoil(fault)
        return self.reply(200, {"Content-Type": "application/json"}, json.dumps(data).encode())

    def give(self, path: str, found: tuple[str, dict[str, bytes]] | None, ranges: bool, headers: dict[str, str] | None = None) -> None:
        """Send a file, or the range of it that was asked for, as well as the faults let it."""
        self.request_log.file = path
        if found is None or path not in found[1]:
            return self.error(404)
        data = found[1][path]
        fault = self.due(path)
        if fault and (fault.status or fault.login):
            return self.spoil(fault)
        if fault and self.command == "GET":
            with self.hub.lock:
                fault.times -= 1
        else:
            fault = None
        if fault and fault.flip:
            place = len(data) // 2
            data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        if fault and fault.announce_short:
            data = data[: int(len(data) * fault.announce_short)]
        status, begin, end = 200, 0, len(data)
        asked = self.headers.get("Range", "") if ranges else ""
        if asked:
            first, _dash, last = asked.partition("=")[2].partition("-")
            begin, end = int(first), min(int(last) + 1 if last else len(data), len(data))
            if begin >= len(data):
                return self.error(416, {"Content-Range": "bytes */{}".format(len(data))})
            status = 206
        answer = dict(headers or {})
        if status == 206:
            answer["Content-Range"] = "bytes {}-{}/{}".format(begin, end - 1, len(data))
        self.send_response(status)
        for name, value in dict(answer, **{"Content-Length": str(end - begin), "Content-Type": "application/octet-stream"}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return None
        stop = end
        if fault and (fault.short or fault.hold):
            stop = min(end, max(begin, int(len(data) * (fault.short or fault.hold))))
        self.body(data[begin:stop])
        if fault and fault.hold:
            fault.reached.set()
            fault.release.wait(60)
            self.body(data[stop:end])
            stop = end
        if stop < end:
            self.close_connection = True
            self.connection.shutdown(2)
        return None

    def body(self, data: bytes) -> None:
        for start in range(0, len(data), 1 << 16):
            self.wfile.write(data[start : start + (1 << 16)])
            self.request_log.sent += len(data[start : start + (1 << 16)])
        self.wfile.flush()

    def error(self, status: int, headers: dict[str, str] | None = None, body: str = "") -> None:
        self.reply(status, dict({"Content-Type": "application/json"}, **(headers or {})), (body or json.dumps({"error": "no"})).encode())

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in dict(headers, **{"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
