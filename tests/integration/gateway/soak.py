# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""People ask a gateway that is never left in peace: reloads, keys that change, replicas that are drained and let in again.

The gateway is changed by the role's own modules, each kind of change by a process of its own, as by several people at once. The engines are
stand-ins that write down when each request reached them.
"""

from __future__ import annotations

import dataclasses
import http.client
import itertools
import json
import multiprocessing
import select
import threading
import time
import traceback
from pathlib import Path

from integration.gateway.gateway_lab import HAPROXY, Gateway, run_module, server
from standin.fleet import Fleet

from ansible_collections.ironserve.llm.plugins.modules import gateway_config

PATH = "/v1/chat/completions"
ENGINES, SLOTS, TOKENS_PER_S = 4, 16, 25
#: A stream is longer than the time between two reloads.
STREAM_TOKENS, SHORT_TOKENS = 40, 2
RELOAD_S, ROTATE_S, OUT_S, IN_S = 1.0, 2.0, 2.5, 0.5


@dataclasses.dataclass
class Told:
    """What happened.

    ``again`` are requests over a kept connection that was just being closed, ``trespasses`` are requests that reached a replica that was out;
    ``failures`` and ``trouble`` are one line each.
    """

    short: int = 0
    streams: int = 0
    reloads: int = 0
    rotations: int = 0
    drains: int = 0
    refused: int = 0
    again: int = 0
    seconds: float = 0.0
    truncated: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    trouble: list[str] = dataclasses.field(default_factory=list)
    trespasses: list[str] = dataclasses.field(default_factory=list)
    served: dict[str, int] = dataclasses.field(default_factory=dict)

    def line(self) -> str:
        """The counts, for a person."""
        return (
            f"{self.short + self.streams} requests ({self.streams} streams) in {self.seconds:.0f} s with {self.reloads} reloads, "
            f"{self.rotations} key rotations, {self.drains} drains: {len(self.failures)} failures, {self.truncated} truncated, "
            f"{len(self.trespasses)} requests to a drained server; {self.refused} revoked keys refused, {self.again} kept connections closed "
            f"under a request that was asked again; by engine {self.served}"
        )


class Meddler:
    """One who changes the gateway again and again, in a process of its own: modules hold the standard output of theirs."""

    def __init__(self, work, pause_s: float) -> None:
        fork = multiprocessing.get_context("fork")
        self.work, self.pause_s = work, pause_s
        self.count, self.failed = fork.Value("i", 0), fork.Value("i", 0)
        self._stop = fork.Event()
        self._near, self._far = fork.Pipe(duplex=False)
        self._process = fork.Process(target=self._loop, daemon=True)

    def start(self) -> None:
        self._process.start()
        self._far.close()

    def _loop(self) -> None:
        done, trouble = [], []
        due = time.monotonic()
        for number in itertools.count():
            if self._stop.wait(max(0.0, due - time.monotonic())):
                break
            due += self.pause_s
            try:
                done.append(self.work(number, self._stop))
                self.count.value += 1
            except BaseException:
                trouble.append(traceback.format_exc().strip().splitlines()[-1])
                self.failed.value = 1
            # As long as a module takes to start: whoever waits for this one's turn to end has the next.
            due = max(due, time.monotonic() + 0.3)
        self._far.send((done, trouble))

    def end(self) -> tuple[list, list[str]]:
        """What it did, and what went wrong."""
        self._stop.set()
        found = self._near.recv() if self._near.poll(120) else ([], ["it does not end"])
        self._process.join(10)
        return found


class Soak:
    """So many requests to a gateway that changes all the while, and more until each change was made as often as ``least`` says.

    Everybody asks four short questions, then reads a stream, and again. Every other one keeps the connection for the short ones.
    """

    def __init__(self, directory: Path, requests: int, least: tuple[int, int, int], people: int = 32) -> None:
        self.directory, self.left, self.least, self.people = directory, requests, least, people
        self.told = Told()
        self.lock = threading.Lock()
        self.meddlers: list[Meddler] = []
        # The key that people have now; each is good for at least two rotations after another took its place.
        self.turn = multiprocessing.get_context("fork").Value("i", 1)

    @staticmethod
    def key(number: int) -> str:
        return f"key-of-the-soak-number-{number:06d}"

    def run(self) -> Told:
        """Ask until all is asked."""
        key = self.directory / "engine.key"
        key.write_text(Gateway.ENGINE_KEY + "\n", encoding="utf-8")
        options = {"slots": SLOTS, "prefill_tokens_per_s": 1e6, "decode_tokens_per_s": TOKENS_PER_S, "enable_prefix_caching": False}
        with Fleet(ENGINES, self.directory, key_file=key, **options) as fleet:
            gateway = Gateway()
            try:
                self._run(gateway, fleet)
            finally:
                gateway.remove()
        return self.told

    def _run(self, gateway: Gateway, fleet: Fleet) -> None:
        servers = [server(engine.name, engine.port, places=SLOTS, models=["standin"]) for engine in fleet.engines]
        gateway.put(servers)
        gateway.keys(client_keys=[{"name": f"soak{number}", "key": self.key(number)} for number in (0, 1, 2)], models=gateway.names)
        # What a reload needs a reason for: another text each time. Templates are the role's, and rendered once.
        texts = [gateway.render("haproxy.cfg.j2", servers, gateway_retry_after_s=seconds) for seconds in (10, 11)]
        names = [engine.name for engine in fleet.engines]
        self.meddlers = [
            Meddler(lambda number, _stop: self._reload(gateway, texts[number % 2]), RELOAD_S),
            Meddler(lambda number, _stop: self._rotate(gateway, number), ROTATE_S),
            Meddler(lambda number, stop: self._drain(gateway, names[number % len(names)], stop), 0.0),
        ]
        for meddler in self.meddlers:
            meddler.start()
        begin = time.monotonic()
        people = [threading.Thread(target=self._person, args=(gateway, number % 2 == 0), daemon=True) for number in range(self.people)]
        try:
            for person in people:
                person.start()
            for person in people:
                person.join()
        finally:
            self.told.seconds = time.monotonic() - begin
            done, trouble = zip(*(meddler.end() for meddler in self.meddlers), strict=True)
        self.told.trouble = [line for lines in trouble for line in lines]
        self.told.reloads, self.told.rotations, self.told.drains = map(len, done)
        self.told.refused = sum(done[1])
        records = fleet.records()
        self.told.served = {name: sum(record["engine"] == name for record in records) for name in names}
        self.told.trespasses = [
            f"{name}: {record['arrival']} in {begun}..{ended}"
            for name, begun, ended in done[2]
            for record in records
            if record["engine"] == name and begun < record["arrival"] < ended
        ]
        states = gateway.info()["states"]
        if set(states.values()) != {"ready"}:
            self.told.trouble.append(f"in the end: {states}")

    # Those who change things

    @staticmethod
    def _reload(gateway: Gateway, text: str) -> str:
        options = {"config": text, "haproxy": HAPROXY, "path": str(gateway.config), "socket": gateway.socket}
        for path in gateway.config.parent.glob("requests-*.lua"):
            options.update(lua_path=str(path), lua=path.read_text(encoding="utf-8"))
        result = run_module(gateway_config, {**options, "service_manager": "direct", "script": str(gateway.home / "test-gateway")})
        assert (result["action"], result["restored"]) == ("reloaded", {}), result
        return result["action"]

    def _rotate(self, gateway: Gateway, number: int) -> int:
        """One key goes, one comes, people get the next; returns how many revoked keys were tried and refused."""
        now = number + 2
        good = range(now - 2, now + 2)
        gateway.keys(client_keys=[{"name": f"soak{each}", "key": self.key(each)} for each in good], models=gateway.names)
        self.turn.value = now
        if now - 3 < 0:
            return 0
        status = gateway.post({"model": "standin", "messages": [{"role": "user", "content": "x"}]}, key=self.key(now - 3))[0]
        assert status == 401, f"a revoked key was answered with {status}"
        return 1

    @staticmethod
    def _drain(gateway: Gateway, name: str, stop) -> tuple[str, float, float]:
        """Out, a while of nothing, in again; returns from when to when nothing may have come."""
        result = gateway.set(wait_s=60, **{name: "drain"})
        begun = time.monotonic()
        try:
            assert result["open_sessions"] == 0, result
            stop.wait(OUT_S)
        finally:
            ended = time.monotonic()
            gateway.set(**{name: "ready"})
        stop.wait(IN_S)
        return name, begun, ended

    # Those who ask

    def _next(self) -> bool:
        with self.lock:
            self.left -= 1
            wanting = any(meddler.count.value < least for meddler, least in zip(self.meddlers, self.least, strict=True))
            failed = self.told.failures or any(meddler.failed.value for meddler in self.meddlers)
            return self.left >= 0 or (wanting and not failed)

    def _person(self, gateway: Gateway, stay: bool) -> None:
        door = gateway.connect()
        for kind in itertools.cycle(["short"] * 4 + ["stream"]):
            if not self._next():
                break
            if kind == "stream":
                self._stream(gateway)
            else:
                self._ask(door, stay)
        door.close()

    def _note(self, kind: str, trouble: str, truncated: bool = False) -> None:
        with self.lock:
            self.told.streams += kind == "stream"
            self.told.short += kind == "short"
            self.told.truncated += truncated
            if trouble:
                self.told.failures.append(f"{kind}: {trouble}")

    def _send(self, door: http.client.HTTPConnection, stay: bool, **body) -> http.client.HTTPResponse:
        body.update(model="standin", messages=[{"role": "user", "content": "Tell me a story."}])
        headers = {"Authorization": "Bearer " + self.key(self.turn.value), "Content-Type": "application/json"}
        door.request("POST", PATH, json.dumps(body), headers if stay else {**headers, "Connection": "close"})
        return door.getresponse()

    def _stream(self, gateway: Gateway) -> None:
        door = gateway.connect()
        try:
            answer = self._send(door, False, stream=True, stream_options={"include_usage": True}, standin={"tokens": STREAM_TOKENS})
            events = [line for line in answer.read().split(b"\n\n") if line]
            if answer.status != 200:
                self._note("stream", f"HTTP {answer.status}: {events[:1]}")
                return
            whole = events[-1:] == [b"data: [DONE]"]
            usage = json.loads(events[-2][len(b"data: ") :])["usage"]["completion_tokens"] if whole else 0
            self._note("stream", "", usage != STREAM_TOKENS)
        except http.client.IncompleteRead:
            self._note("stream", "", True)
        except (OSError, http.client.HTTPException) as exc:
            self._note("stream", repr(exc))
        finally:
            door.close()

    def _ask(self, door: http.client.HTTPConnection, stay: bool) -> None:
        # As libraries do: they look whether their connection is still there, and where it is closed while they send, without a word of an
        # answer, they ask once more over another. A reload closes idle connections, for only the new worker knows keys and states.
        if door.sock is not None and select.select([door.sock], [], [], 0)[0]:
            door.close()
        used = door.sock is not None
        try:
            try:
                answer = self._send(door, stay, standin={"tokens": SHORT_TOKENS})
            except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
                door.close()
                if not used:
                    raise
                with self.lock:
                    self.told.again += 1
                answer = self._send(door, stay, standin={"tokens": SHORT_TOKENS})
            body = answer.read()
            usage = json.loads(body)["usage"]["completion_tokens"] if answer.status == 200 else 0
            self._note("short", "" if usage == SHORT_TOKENS else f"HTTP {answer.status}: {body[:100]!r}")
        except (OSError, http.client.HTTPException) as exc:
            self._note("short", repr(exc))
            door.close()
