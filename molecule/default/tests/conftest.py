# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the tests of a converged machine share: its keys, its replicas, and a client for its gateway."""

from __future__ import annotations

import dataclasses
import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

CONFIG = "/etc/ironserve"
GATEWAY_PORT = 8000


@dataclasses.dataclass
class Answer:
    """One HTTP answer: status, headers with lower-case names, body text."""

    status: int
    headers: dict[str, str]
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


def request(port: int, method: str, path: str, *, key: str = "", body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    """Send one request to 127.0.0.1 and read the whole answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        sent = dict(headers or {})
        if key:
            sent["Authorization"] = f"Bearer {key}"
        data = None
        if body is not None:
            data = json.dumps(body)
            sent["Content-Type"] = "application/json"
        connection.request(method, path, body=data, headers=sent)
        response = connection.getresponse()
        return Answer(
            response.status, {name.lower(): value for name, value in response.getheaders()}, response.read().decode("utf-8", "replace")
        )
    finally:
        connection.close()


@pytest.fixture(scope="module")
def client_key(host: Any) -> str:
    return host.file(f"{CONFIG}/keys/client-default.key").content_string.strip()


@pytest.fixture(scope="module")
def engine_key(host: Any) -> str:
    return host.file(f"{CONFIG}/keys/engine.key").content_string.strip()


@pytest.fixture(scope="module")
def replicas(host: Any) -> list[dict[str, Any]]:
    """The engine's description of every replica container, running or not."""
    names = host.check_output("docker ps --all --filter name=^/?ironserve- --format '{{.Names}}'").split()
    assert names, "no container of the site exists"
    return json.loads(host.check_output("docker inspect " + " ".join(names)))


@pytest.fixture(scope="module")
def served_name(client_key: str) -> str:
    return request(GATEWAY_PORT, "GET", "/v1/models", key=client_key).json()["data"][0]["id"]


@pytest.fixture(scope="module")
def ask(client_key: str, served_name: str) -> Callable[..., Answer]:
    """Ask a question through the gateway, as a user would."""

    def asking(question: str = "What is the capital of Japan?", **changes: Any) -> Answer:
        body = {"model": served_name, "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24, **changes}
        return request(GATEWAY_PORT, "POST", "/v1/chat/completions", key=client_key, body=body)

    return asking
