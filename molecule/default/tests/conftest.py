# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the tests of a converged machine share: its keys, its replicas, and a way to ask it something."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fleet_client import CONFIG, GATEWAY_PORT, Answer, request


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
