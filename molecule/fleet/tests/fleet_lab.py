# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lab that runs now, as its tests see it: nodes over ssh, replicas and gateway over HTTP."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import subprocess
import time
from typing import Any

import requests
import testinfra

ROOT = pathlib.Path(__file__).resolve().parents[3]
CONFIG = "/etc/ironserve"
STATE = "/var/lib/ironserve"
ENGINE = os.environ.get("FLEET_ENGINE") or "llama_cpp"
#: vLLM needs a core of its own (tests/lab).
CARDS = 1 if ENGINE == "vllm" else 4
#: How the files of its weights end.
FORMAT = ".safetensors" if ENGINE == "vllm" else ".gguf"
PORTS = [8001 + card for card in range(CARDS)]


class Lab:
    """What ``make lab`` wrote down, and ways to ask its members."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = json.loads((ROOT / ".cache/lab/live/lab.json").read_text(encoding="utf-8"))
        self.gateway: str = self.state["gateway"][0]
        self.nodes: list[str] = self.state["nodes"]
        self.url = f"http://{self.address(self.gateway)}:8000"
        self._hosts: dict[str, Any] = {}
        self._key = ""

    def address(self, name: str) -> str:
        return self.state["addresses"][name]

    def host(self, name: str) -> Any:
        """A node over ssh, as root."""
        if name not in self._hosts:
            self._hosts[name] = testinfra.get_host(
                f"ssh://{self.state['user']}@{self.address(name)}",
                sudo=True,
                ssh_identity_file=self.state["key"],
                ssh_extra_args=self.state["ssh_arguments"],
                controlpersist=0,
            )
        return self._hosts[name]

    def replicas(self, node: str) -> list[dict[str, Any]]:
        """The engine's description of every replica container of a node, running or not."""
        listed = "docker ps --all --quiet --filter name=^/?ironserve-"
        return json.loads(self.host(node).check_output(f"docker inspect $({listed})"))

    def client_key(self) -> str:
        if not self._key:
            self._key = self.host(self.gateway).file(f"{CONFIG}/keys/client-default.key").content_string.strip()
        return self._key

    def ask(self, question: str = "What is the capital of Japan?", wire: bool = False, **changes: Any) -> requests.Response:
        """Ask a question through the gateway, as a user would; with ``wire`` the answer is read by the caller as it comes."""
        body = {"model": "smollm2-135m", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24, **changes}
        headers = {"Authorization": f"Bearer {self.client_key()}"}
        return requests.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=120, stream=wire)

    def servers(self) -> dict[str, dict[str, str]]:
        """The gateway's own figures for each replica, by name; one column each, as HAProxy names them."""
        text = self.host(self.gateway).check_output("curl -sf 'http://127.0.0.1:8404/stats;csv'").removeprefix("# ")
        rows = csv.DictReader(text.splitlines())
        return {row["svname"]: row for row in rows if row["pxname"] == "ironserve_replicas" and row["svname"] != "BACKEND"}

    def engine(self, asker: str, node: str, path: str, key: str = "") -> list[str]:
        """What each replica of a node answers to ``path`` when a member asks its port: HTTP statuses, "silence", or how curl failed."""
        header = f"-H 'Authorization: Bearer {key}'" if key else ""
        one = f"curl -s -o /dev/null --connect-timeout 2 --max-time 10 -w '%{{http_code}}' {header} http://{self.address(node)}:$port{path}"
        told = self.host(asker).check_output(
            f"for port in {' '.join(map(str, PORTS))}; do (status=$({one}); echo $port $status $?) & done; wait"
        )
        found = {int(port): (status, rc) for port, status, rc in map(str.split, told.splitlines())}
        failures = {"7": "refused", "28": "silence"}
        return [status if rc == "0" else failures.get(rc, f"curl {rc}") for status, rc in (found[port] for port in PORTS)]

    def healthy(self, node: str) -> int:
        """How many replicas of a node answer their health check, asked by the gateway, for nobody else is answered."""
        return self.engine(self.gateway, node, "/health").count("200")

    def container(self, node: str, action: str) -> None:
        """Do something to a node as to a machine: stop (an orderly shutdown), start."""
        subprocess.run(["docker", action, f"ironserve-lab-{node}"], check=True, capture_output=True)

    def running(self, node: str) -> bool:
        command = ["docker", "inspect", "--format={{.State.Running}}", f"ironserve-lab-{node}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "true"

    def wait_healthy(self, node: str, count: int, limit_s: float) -> float:
        """Seconds until a node has that many healthy replicas; the node's own end ends the wait."""
        begun = time.monotonic()
        while self.healthy(node) < count:
            assert self.running(node), f"{node} died"
            assert time.monotonic() - begun < limit_s, f"{node}: {self.healthy(node)} of {count} replicas healthy after {limit_s} s"
            time.sleep(0.2)
        return time.monotonic() - begun
