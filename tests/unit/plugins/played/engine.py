# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A container engine on a unix socket that answers what it was told to, for hosts that are played from a directory."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pathlib
import socketserver
import threading
from collections.abc import Iterator
from typing import Any


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    answers: dict[str, Any]
    asked: list[str]


class _Handler(http.server.BaseHTTPRequestHandler):
    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_args: Any) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        server.asked.append(self.path)
        answer = server.answers.get(self.path)
        status, body = (404, {"message": "no such thing"}) if answer is None else answer if isinstance(answer, tuple) else (200, answer)
        data = body if isinstance(body, bytes) else json.dumps(body).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def play(root: pathlib.Path, answers: dict[str, Any], socket: str = "/var/run/docker.sock") -> Iterator[list[str]]:
    """Serve ``answers`` (path -> JSON, bytes, or a pair of status and either) on ``socket`` under ``root``; yields the paths asked for.

    Whatever is not among the answers is not found.
    """
    path = root / socket.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    # A socket's name is short by law; a long root is reached by its directory.
    here = os.open(path.parent, os.O_RDONLY)
    try:
        server = _Server("/proc/self/fd/{0}/{1}".format(here, path.name), _Handler)
    finally:
        os.close(here)
    server.answers, server.asked = answers, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        path.unlink()
