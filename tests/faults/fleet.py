# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A fleet of hosts that send weights to each other: real modules and jobs, one address and one directory a host.

On the loopback network a host is an address; with network namespaces (see Wires) it has a link of its own, as slow as it is told.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from ansible_collections.ironserve.llm.plugins.module_utils import _fanout, _jobs, _manifest, _weights

ROOT = Path(__file__).resolve().parents[2]
COLLECTIONS = ROOT.parents[2] if ROOT.parts[-3:] == ("ansible_collections", "ironserve", "llm") else ROOT / "collections"
MODULE = ROOT / "plugins" / "modules" / "weights_fanout.py"


def manifest(files: dict[str, bytes]) -> list[dict]:
    return [{"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in files.items()]


def free_port(addresses: list[str]) -> int:
    """A port that is free at all these addresses."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind((addresses[0], 0))
            port = first.getsockname()[1]
            try:
                for address in addresses[1:]:
                    stack.enter_context(socket.socket()).bind((address, port))
            except OSError:
                continue
            return port


def wait_until(condition, limit_s: float = 60.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Host:
    """One host: a name, an address, a directory for weights, and what to put before a command that runs on it."""

    def __init__(self, fleet: Fleet, name: str, address: str, prefix: tuple[str, ...] = ()) -> None:
        self.fleet, self.name, self.address, self.prefix = fleet, name, address, prefix
        self.path = fleet.folder / name / "weights" / "q"
        self.part, self.job = Path(_weights.staging_of(str(self.path))), Path(_weights.job_of(str(self.path)))
        self.line = {"host": name, "address": address, "port": fleet.port}

    def call(self, **arguments) -> dict:
        """Run the module as Ansible does."""
        done = subprocess.run(
            [*self.prefix, sys.executable, "-B", str(MODULE)],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": {"path": str(self.path), "manifest": self.fleet.manifest, **arguments}}),
            env={**os.environ, "PYTHONPATH": str(COLLECTIONS)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.stdout.strip().startswith("{"), done.stderr
        return json.loads(done.stdout)

    def give(self, **more) -> dict:
        arguments = {"state": "served", "address": self.address, "port": self.fleet.port, "token": self.fleet.token}
        return self.call(**{**arguments, **more})

    def join(self, *sources: Host, **more) -> dict:
        arguments = {"state": "joined", "address": self.address, "port": self.fleet.port, "token": self.fleet.token}
        arguments.update(sources=[host.line for host in sources], table=self.fleet.table, margin_mib=0)
        return self.call(**{**arguments, **more})

    def fetch(self, **more) -> dict:
        return self.call(state="fetched", table=self.fleet.table, **more)

    def end(self, role: str = "taker") -> dict:
        return self.call(state="ended", role=role)

    def folder(self) -> Path:
        """Folder of the job this host has, or had."""
        giving = Path(_fanout.giving_job_of(str(self.path)))
        return giving if giving.exists() else self.job

    def kill(self) -> None:
        """End its job as a power cut would, without the power cut."""
        state = _jobs.look(str(self.folder()))
        if state.running:
            os.killpg(state.pid, signal.SIGKILL)
            assert wait_until(lambda: not _jobs.look(str(self.folder())).running)

    def progress(self) -> float:
        """Share of the bytes it has, while it takes."""
        found = _jobs.look(str(self.job)).progress
        return found["done_bytes"] / found["total_bytes"] if found.get("phase") == "download" and found["total_bytes"] else 0.0

    def content(self) -> dict[str, bytes]:
        """What lies verified in the staging directory."""
        return {path: (self.part / path).read_bytes() for path in _manifest.tree_files(str(self.part))}


class Fleet:
    """An origin with weights and hosts that need them. Use as a context manager: no job outlives it."""

    def __init__(
        self, folder: Path, files: dict[str, bytes], names: list[str], places: list[tuple[str, tuple[str, ...]]] | None = None
    ) -> None:
        self.folder, self.files, self.manifest = folder, files, manifest(files)
        self.size = sum(len(data) for data in files.values())
        self.token, self.table = "token-of-this-run", ""
        places = places or [(f"127.0.0.{10 + number}", ()) for number in range(len(names) + 1)]
        self.port = free_port([address for address, _prefix in places]) if not any(prefix for _address, prefix in places) else 8470
        self.origin, *self.hosts = (Host(self, name, *place) for name, place in zip(["origin", *names], places, strict=True))
        for path, data in files.items():
            target = self.origin.path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_exc: object) -> None:
        for host in [self.origin, *self.hosts]:
            host.kill()

    def chain(self, number: int) -> list[Host]:
        """Whom host ``number`` may ask, the nearest first."""
        return [*reversed(self.hosts[:number]), self.origin]

    def give(self, **more) -> None:
        answer = self.origin.give(**more)
        assert answer.get("table"), answer
        self.table = answer["table"]

    def join_all(self, **more) -> None:
        for number, host in enumerate(self.hosts):
            answer = host.join(*self.chain(number), **more)
            assert not answer.get("failed"), answer

    def fetch_all(self, hosts: list[Host] | None = None) -> list[dict]:
        """Wait for hosts side by side, as a play does."""
        hosts = self.hosts if hosts is None else hosts
        results: list[dict] = [{} for _host in hosts]

        def fetch(number: int) -> None:
            results[number] = hosts[number].fetch()

        threads = [threading.Thread(target=fetch, args=(number,)) for number in range(len(hosts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def end_all(self) -> dict[str, int]:
        """End all jobs; returns the bytes each host sent."""
        sent = {host.name: host.end()["sent_bytes"] for host in self.hosts}
        return {**sent, "origin": self.origin.end("giver")["sent_bytes"]}


class Wires:
    """A network namespace a host, each with a link of its own to one switch, shaped in both directions with ``tc tbf``.

    The switch is a namespace too, so that neither the machine's bridges nor its firewall see any of it. Needs root.
    """

    def __init__(self, count: int, mbit: int, prefix: str = "fan") -> None:
        self.count, self.mbit = count, mbit
        self.name = f"{prefix}{os.getpid()}"
        self.switch = f"{self.name}s"

    @staticmethod
    def possible() -> bool:
        """Whether this machine lets us."""
        if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
            return False
        name = f"fantry{os.getpid()}"
        try:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
            run("tc", "-n", name, "qdisc", "add", "dev", "v0", "root", "tbf", "rate", "10mbit", "burst", "32kb", "latency", "50ms")
            run("ip", "-n", name, "link", "add", "br0", "type", "bridge")
        except (OSError, subprocess.CalledProcessError):
            return False
        finally:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        return True

    def __enter__(self) -> Wires:
        try:
            run("ip", "netns", "add", self.switch)
            run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "br0", "up")
            # A burst that takes the largest segment whole: a smaller one costs the processors more than the hosts do.
            shape = ["root", "tbf", "rate", f"{self.mbit}mbit", "burst", "256kb", "latency", "50ms"]
            for number in range(self.count):
                space, port = f"{self.name}h{number}", f"p{number}"
                run("ip", "netns", "add", space)
                run("ip", "-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
                run("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
                run("ip", "-n", space, "addr", "add", f"10.99.0.{number + 1}/24", "dev", "eth0")
                run("ip", "-n", space, "link", "set", "eth0", "up")
                run("ip", "-n", space, "link", "set", "lo", "up")
                run("tc", "-n", space, "qdisc", "add", "dev", "eth0", *shape)
                run("tc", "-n", self.switch, "qdisc", "add", "dev", port, *shape)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        for space in [*(f"{self.name}h{number}" for number in range(self.count)), self.switch]:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def places(self) -> list[tuple[str, tuple[str, ...]]]:
        """Address and command prefix of every host."""
        return [(f"10.99.0.{number + 1}", ("ip", "netns", "exec", f"{self.name}h{number}")) for number in range(self.count)]

    def sent(self, number: int) -> int:
        """Bytes that left a host, as its network interface counts them."""
        listing = run("ip", "-n", f"{self.name}h{number}", "-s", "-j", "link", "show", "eth0")
        return json.loads(listing)[0]["stats64"]["tx"]["bytes"]


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
