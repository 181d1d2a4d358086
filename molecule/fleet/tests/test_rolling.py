# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/rolling_update.yml on a fleet that people use: short requests and long streams go on all the while, and none is lost."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from fleet_lab import CARDS, ROOT, Lab

TALE = "Tell me about the history of bread."


class Users:
    """People who ask short questions, and people who read long streams, one after the other, until they are told to go."""

    def __init__(self, lab: Lab, short: int = 2, streams: int = 2) -> None:
        self.lost: list[str] = []
        self.answered = {"short": 0, "stream": 0}
        self._lab = lab
        self._go = threading.Event()
        lab.client_key()
        kinds = [self._short] * short + [self._stream] * streams
        self._threads = [threading.Thread(target=self._ask, args=(kind,)) for kind in kinds]

    def __enter__(self) -> Users:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._go.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, kind: Any) -> None:
        while not self._go.is_set():
            try:
                trouble = kind()
            except requests.RequestException as exc:
                trouble = repr(exc)
            if trouble:
                self.lost.append(f"{kind.__name__}: {trouble}")

    def _short(self) -> str:
        answer = self._lab.ask(max_tokens=4)
        self.answered["short"] += 1
        return "" if answer.status_code == 200 else f"HTTP {answer.status_code}: {answer.text[:200]}"

    def _stream(self) -> str:
        with self._lab.ask(TALE, max_tokens=120, stream=True, wire=True) as answer:
            lines = [line for line in answer.iter_lines() if line]
        self.answered["stream"] += 1
        if answer.status_code != 200:
            return f"HTTP {answer.status_code}: {lines[:2]}"
        return "" if lines[-1:] == [b"data: [DONE]"] else f"cut after {len(lines)} pieces: {lines[-1:]}"


def update(*settings: str) -> tuple[int, str]:
    """Run the playbook; its exit status and what it printed."""
    program = pathlib.Path(sys.executable).with_name("ansible-playbook")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
    command = [str(program), "playbooks/rolling_update.yml", "-i", "inventories/lab"]
    for item in settings:
        command += ["-e", item]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def running(lab: Lab) -> dict[str, str]:
    """Container ids by node and name."""
    return {f"{node}-{item['Name']}": item["Id"] for node in lab.nodes for item in lab.replicas(node) if item["State"]["Running"]}


@pytest.fixture
def rubbish(lab: Lab) -> Iterator[dict[str, str]]:
    """An engine image in the lab's registry that starts, lists the model, and answers nonsense; as ``replica_image``."""
    engine = lab.state["image"]
    port = subprocess.run(["docker", "port", "ironserve-lab-registry", "5000/tcp"], check=True, capture_output=True, text=True)
    local = port.stdout.splitlines()[0]
    base = f"{local}/{engine['reference'].split('/', 1)[1]}@{engine['digest']}"
    alias = f"{local}/ironserve/rubbish:test"
    place = ROOT / ".cache" / "rubbish"
    place.mkdir(parents=True, exist_ok=True)
    (place / "scripted.py").write_bytes((ROOT / "tests/faults/engines/scripted.py").read_bytes())
    (place / "scripted.py").chmod(0o644)
    start = json.dumps(["/usr/bin/python3", "/opt/faults/scripted.py", "--behaviour", "garbage_words"])
    (place / "Dockerfile").write_text(f"FROM {base}\nCOPY scripted.py /opt/faults/scripted.py\nENTRYPOINT {start}\n")

    def docker(*arguments: str) -> str:
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, env={**os.environ, "DOCKER_BUILDKIT": "0"}, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    docker("build", "--quiet", "--tag", alias, str(place))
    docker("push", "--quiet", alias)
    digests = json.loads(docker("inspect", alias))[0]["RepoDigests"]
    yield {**engine, "reference": engine["reference"].split("/", 1)[0] + "/ironserve/rubbish", "digest": digests[0].split("@")[1]}
    docker("rmi", alias, base)


def test_an_image_that_is_not_there_costs_nobody_anything(lab: Lab) -> None:
    before = running(lab)
    status, output = update(json.dumps({"replica_image": {**lab.state["image"], "digest": "sha256:" + "0" * 64}}))
    assert status != 0
    assert "0" * 64 in output
    assert running(lab) == before


def test_rubbish_stops_at_the_first_replica_which_serves_again_as_before(lab: Lab, rubbish: dict[str, str]) -> None:
    before = running(lab)
    with Users(lab) as users:
        status, output = update(json.dumps({"replica_image": rubbish}))
    assert status != 0
    assert "garbage" in output and "The containers of before are back, proved and serving." in output
    # One replica, on one host: nobody else was touched.
    assert len(set(re.findall(r"(\S+-c\d+) refused:", output))) == 1
    assert running(lab) == before
    assert {server["status"] for server in lab.servers().values()} == {"UP"}
    assert users.lost == []


def test_every_replica_changes_and_nothing_is_lost(lab: Lab) -> None:
    before = running(lab)
    assert len(before) == CARDS * len(lab.nodes)
    with Users(lab) as users:
        status, output = update('{"replica_settings": {"max_model_len": 2048}}')
    assert status == 0, output[-6000:]
    after = running(lab)
    assert sorted(after) == sorted(before)
    assert set(after.values()).isdisjoint(before.values())
    assert users.lost == []
    assert users.answered["stream"] >= len(after) and users.answered["short"] >= len(after)
    for node in lab.nodes:
        for replica in lab.replicas(node):
            assert "2048" in replica["Config"]["Cmd"], replica["Name"]
    assert {server["status"] for server in lab.servers().values()} == {"UP"}


def test_with_a_replica_out_nothing_is_begun(lab: Lab) -> None:
    name = next(iter(lab.servers()))
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('/run/ironserve/gateway.sock');"
        " s.sendall(sys.argv[1].encode() + b'\\n'); print(s.recv(4096).decode())"
    )

    def tell(state: str) -> None:
        lab.host(lab.gateway).check_output(f"python3 -c {shlex.quote(program)} 'set server ironserve_replicas/{name} state {state}'")

    tell("maint")
    before = running(lab)
    try:
        status, output = update()
    finally:
        tell("ready")
    assert status != 0
    assert f"{name} is out already" in output
    assert running(lab) == before
