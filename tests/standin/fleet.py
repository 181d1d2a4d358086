# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Several engine stand-ins at once: processes of their own, their addresses, and what truly happened in each.

    with Fleet(4, directory, slots=4, key_file=path) as fleet:
        ...                             # fleet.engines[0].url
        records = fleet.records()       # what all of them wrote down

or, until standard input ends or a signal comes: ``fleet.py --engines 4 --directory DIR -- --slots 4``, which prints the engines
as one line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable

ENGINE = pathlib.Path(__file__).resolve().with_name("engine.py")
#: More than this on one machine is a mistake.
LIMIT = 64
#: Seconds until a process that was told to end is killed.
END_S = 5.0

#: The engine of the routing comparison: 4 slots, room for six documents of 3,000 tokens beside what runs, serial prefill that is
#: seven times as long cold (0.35 s) as warm (0.05 s). Its answers are short, so that prefill decides.
ROUTING = {
    "slots": 4,
    "prefill_tokens_per_s": 10000,
    "prefill_base_s": 0.05,
    "decode_tokens_per_s": 200,
    "answer_tokens": 16,
    "block_tokens": 16,
    "kv_blocks": 6 * 188 + 64,
    "max_model_len": 8192,
}
#: One card of the first recipe: 80,000 tokens take 187 s cold and about 7.3 s warm, then 50 tokens/s.
LONG_PREFILL = {
    "slots": 4,
    "prefill_tokens_per_s": 445,
    "prefill_base_s": 7.2,
    "decode_tokens_per_s": 50,
    "block_tokens": 1056,
    "kv_blocks": 496,
}


class FleetError(Exception):
    """An engine did not start, or did not do what was waited for."""


def flags(options: dict[str, object]) -> list[str]:
    """Options as a command line: True is a switch, False its ``--no-`` form, a list several values."""
    out = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            out.append("--{0}{1}".format("" if value else "no-", flag))
        else:
            out += ["--" + flag, *([str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)])]
    return out


@dataclasses.dataclass
class Engine:
    """One running stand-in. ``url`` has no path; ``truth`` is its log, ``errors`` what it wrote to standard error."""

    name: str
    url: str
    port: int
    pid: int
    truth: pathlib.Path
    errors: pathlib.Path
    process: subprocess.Popen

    def records(self) -> list[dict]:
        """What it wrote down about requests until now, in the order in which they ended."""
        lines = self.truth.read_text(encoding="utf-8").splitlines()
        # The first line of a start is about the engine.
        return [record for record in map(json.loads, lines) if "options" not in record]

    def metrics(self) -> dict[str, float]:
        """Its metrics: the sum over the series of each name."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        out: dict[str, float] = {}
        for line in lines:
            if line and not line.startswith("#"):
                series, _space, value = line.rpartition(" ")
                name = series.partition("{")[0]
                out[name] = out.get(name, 0.0) + float(value)
        return out

    def wait_for(self, found: Callable[[Engine], object], seconds: float = 5.0, told: str = "what was waited for") -> object:
        """Ask ``found`` until it gives something; returns that. Raises FleetError when time is up or the engine ended."""
        end = time.monotonic() + seconds
        while True:
            value = found(self)
            if value:
                return value
            if time.monotonic() > end or self.process.poll() is not None:
                raise FleetError("{0}: {1} did not happen within {2:g} s".format(self.name, told, seconds))
            time.sleep(0.02)


class Fleet:
    """Engines that end with this object, with this process, or by ``stop``; never others. A context manager.

    ``engines`` is their number, or a list with options for each beside the common ones; ``more`` are flags as they stand.
    """

    def __init__(
        self,
        engines: int | list[dict[str, object]],
        directory: str | os.PathLike,
        start_s: float = 30.0,
        more: tuple[str, ...] = (),
        **common: object,
    ) -> None:
        each = [{} for _index in range(engines)] if isinstance(engines, int) else engines
        if not 0 < len(each) <= LIMIT:
            raise FleetError("a fleet has 1 to {0} engines, not {1}".format(LIMIT, len(each)))
        self._options = [{**common, **own} for own in each]
        self._directory = pathlib.Path(directory)
        self._start_s = start_s
        self._more = more
        self._begun: list[tuple[str, pathlib.Path, pathlib.Path, subprocess.Popen]] = []
        self.engines: list[Engine] = []

    def __enter__(self) -> Fleet:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all at once, and wait until each listens. Raises FleetError with what a failed one said; then none is left."""
        try:
            for index, options in enumerate(self._options):
                self._begin("e{0}".format(index), options)
            end = time.monotonic() + self._start_s
            for name, truth, errors, process in self._begun:
                ready = self._ready(name, process, errors, end)
                self.engines.append(Engine(name, ready["url"], ready["port"], process.pid, truth, errors, process))
        except BaseException:
            self.stop()
            raise

    def _begin(self, name: str, options: dict[str, object]) -> None:
        truth, errors = self._directory / (name + ".truth.jsonl"), self._directory / (name + ".err")
        truth.unlink(missing_ok=True)
        # Without site-packages: the engine needs none, and many start at once.
        command = [
            sys.executable,
            "-I",
            "-S",
            str(ENGINE),
            "--port",
            "0",
            "--truth",
            str(truth),
            "--end-with-stdin",
            *flags(options),
            *self._more,
        ]
        # Its standard input is ours: when this process goes, in whatever way, the engine goes.
        with errors.open("wb") as sink:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink)
        self._begun.append((name, truth, errors, process))

    @staticmethod
    def _ready(name: str, process: subprocess.Popen, errors: pathlib.Path, end: float) -> dict:
        if select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            line = process.stdout.readline()
            if line:
                return json.loads(line)
        said = errors.read_text(errors="replace").strip().splitlines()[-3:]
        raise FleetError("{0} does not listen; it said: {1}".format(name, " | ".join(said) or "nothing"))

    def stop(self) -> None:
        """End every engine that was started here, by its process; kill what does not end in time."""
        for _name, _truth, _errors, process in self._begun:
            if process.poll() is None:
                process.terminate()
            process.stdin.close()
        end = time.monotonic() + END_S
        for _name, _truth, _errors, process in self._begun:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        self._begun = []

    def records(self) -> list[dict]:
        """The records of all engines, each with ``engine``, by arrival."""
        found = [dict(record, engine=engine.name) for engine in self.engines for record in engine.records()]
        return sorted(found, key=lambda record: record["arrival"])


def main() -> None:
    """Run a fleet until ended."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--engines", type=int, required=True)
    parser.add_argument("--directory", required=True, help="for the logs of truth")
    parser.add_argument("flags", nargs="*", help="for every engine, after --")
    options = parser.parse_args()
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_args: over.set())
    try:
        with Fleet(options.engines, options.directory, more=tuple(options.flags)) as fleet:
            shown = [{"name": e.name, "url": e.url, "port": e.port, "pid": e.pid, "truth": str(e.truth)} for e in fleet.engines]
            print(json.dumps({"engines": shown}), flush=True)
            while not over.wait(0.2):
                if select.select([0], [], [], 0)[0] and not os.read(0, 4096):
                    break
    except FleetError as exc:
        sys.exit("fleet: {0}".format(exc))


if __name__ == "__main__":
    main()
