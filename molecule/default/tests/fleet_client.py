# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A client small enough to be trusted: the standard library, one request, one answer."""

from __future__ import annotations

import dataclasses
import http.client
import json
from typing import Any

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
