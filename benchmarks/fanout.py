# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How long weights take from one host to eight, and how often the first host sends them, beside what others do, in one run.

    .venv/bin/python benchmarks/fanout.py [--targets 8] [--mib 80] [--mbit 200] [--rounds 3] [--rsync PATH] [--json]

Every host is a network namespace with a link of its own, shaped in both directions with ``tc tbf``, all at one switch. Needs root. The
contestants take turns in every round, and the best round of each counts: whatever else runs can only slow one down. Everything is taken
down again, whatever happens. The exit status is 1 when a goal is missed. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests")]

from faults.fleet import Fleet, Wires, wait_until  # noqa: E402

from ansible_collections.ironserve.llm.plugins.module_utils import _jobs  # noqa: E402

TIME_GOAL = 1.5
ORIGIN_GOAL = 1.05
SHARDS = 4

#: Serves a directory with the standard library's server, as many at a time as ask; the star of plain HTTP.
SERVER = """
import functools, http.server, sys
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer((sys.argv[1], 8471), functools.partial(Quiet, directory=sys.argv[2])).serve_forever()
"""
CLIENT = """
import pathlib, shutil, sys, urllib.request
for name in sys.argv[3:]:
    with urllib.request.build_opener().open("http://{}:8471/{}".format(sys.argv[1], name)) as reply, open(pathlib.Path(sys.argv[2]) / name, "wb") as out:
        shutil.copyfileobj(reply, out, 1 << 20)
"""


def listening(fleet: Fleet, port: int) -> bool:
    """Whether something listens on a port of the origin."""
    table = subprocess.run([*fleet.origin.prefix, "cat", "/proc/net/tcp"], check=True, capture_output=True, text=True).stdout
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in table.splitlines()[1:])


def check(files: dict[str, bytes], folder: Path, who: str) -> None:
    """End the run when a target does not hold the right bytes: such a contestant has no speed."""
    for name, data in files.items():
        if hashlib.sha256((folder / name).read_bytes()).digest() != hashlib.sha256(data).digest():
            raise SystemExit(f"{who}: {folder / name} has wrong bytes")


def ours(folder: Path, files: dict[str, bytes], wires: Wires, targets: int) -> dict:
    """From the moment the first host may give until the last one has everything verified. All targets stand ready before."""
    with Fleet(folder / "ours", files, [f"t{number}" for number in range(targets)], wires.places()) as fleet:
        fleet.give()
        fleet.origin.end("giver")
        fleet.join_all(patience=600)
        before = wires.sent(0)
        fleet.give()
        giving = fleet.origin.folder()
        began = os.stat(giving / "ready").st_mtime
        words = [host.job / "fetched" for host in fleet.hosts]
        if not wait_until(lambda: all(word.exists() or not _jobs.look(str(word.parent)).running for word in words), 600):
            raise SystemExit("ours: no end after ten minutes")
        results = fleet.fetch_all()
        failed = [result["msg"] for result in results if result.get("failed")]
        if failed:
            raise SystemExit(f"ours: {failed[0]}")
        seconds = max(os.stat(word).st_mtime for word in words) - began
        wire = wires.sent(0) - before
        for host in fleet.hosts:
            check(files, host.part, "ours")
        sent = fleet.end_all()
        assert not any(_jobs.look(str(host.folder())).running for host in fleet.hosts)
    return {"seconds": seconds, "origin_bytes": sent["origin"], "origin_wire": wire}


def star(
    folder: Path, files: dict[str, bytes], wires: Wires, targets: int, server: list[str], client: list[str], port: int, who: str
) -> dict:
    """Every target fetches everything from the first host, all at once. ``client`` may name the target's directory as ``{target}``."""
    with Fleet(folder / who, files, [f"t{number}" for number in range(targets)], wires.places()) as fleet:
        words = {"origin": str(fleet.origin.path), "address": fleet.origin.address}
        serving = subprocess.Popen([*fleet.origin.prefix, *(word.format(**words) for word in server)])
        try:
            if not wait_until(lambda: listening(fleet, port), 20):
                raise SystemExit(f"{who}: its server does not listen")
            for host in fleet.hosts:
                host.part.mkdir(parents=True)
            before, began = wires.sent(0), time.time()
            clients = [
                subprocess.Popen([*host.prefix, *(word.format(target=str(host.part), **words) for word in client)]) for host in fleet.hosts
            ]
            if sum(process.wait(1200) for process in clients):
                raise SystemExit(f"{who}: a client failed")
            seconds, wire = time.time() - began, wires.sent(0) - before
        finally:
            serving.kill()
            serving.wait()
        for host in fleet.hosts:
            check(files, host.part, who)
    return {"seconds": seconds, "origin_bytes": None, "origin_wire": wire}


def measure(targets: int, mib: int, mbit: int, rounds: int, rsync: str) -> dict:
    """Seconds and origin bytes of every contestant, best of the rounds."""
    files = {f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors": os.urandom((mib << 20) // SHARDS) for number in range(SHARDS)}
    size = sum(map(len, files.values()))
    python = [sys.executable, "-c"]
    found: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory(prefix="fanout-") as name, Wires(targets + 1, mbit, "fanb") as wires:
        folder = Path(name)
        config = folder / "rsyncd.conf"
        for number in range(rounds):
            rounds_of = folder / str(number)
            contestants = {
                "ours": lambda where: ours(where, files, wires, targets),
                "star_http": lambda where: star(
                    where,
                    files,
                    wires,
                    targets,
                    [*python, SERVER.replace("{", "{{").replace("}", "}}"), "{address}", "{origin}"],
                    [*python, CLIENT.replace("{", "{{").replace("}", "}}"), "{address}", "{target}", *files],
                    8471,
                    "star_http",
                ),
            }
            if rsync:
                config.write_text(
                    f"port = 8472\nuse chroot = no\nreverse lookup = no\n[w]\npath = {rounds_of}/star_rsync/origin/weights/q\nuid = 0\n"
                )
                contestants["star_rsync"] = lambda where: star(
                    where,
                    files,
                    wires,
                    targets,
                    [rsync, "--daemon", "--no-detach", f"--config={config}"],
                    [rsync, "--archive", "--whole-file", "rsync://{address}:8472/w/", "{target}/"],
                    8472,
                    "star_rsync",
                )
            for contestant, work in contestants.items():
                found.setdefault(contestant, []).append(work(rounds_of))
            shutil.rmtree(rounds_of)
    best = {contestant: min(results, key=lambda result: result["seconds"]) for contestant, results in found.items()}
    limit = size / (mbit * 1e6 / 8)
    mine = best["ours"]
    return {
        "bytes": size,
        "targets": targets,
        "mbit": mbit,
        "rounds": rounds,
        "limit_s": limit,
        "best": best,
        "worst_s": {contestant: max(result["seconds"] for result in results) for contestant, results in found.items()},
        "time_ratio": mine["seconds"] / limit,
        "origin_ratio": max(result["origin_bytes"] for result in found["ours"]) / size,
        "origin_wire_ratio": max(result["origin_wire"] for result in found["ours"]) / size,
        "stars": {
            contestant: {
                "time_ratio": result["seconds"] / limit,
                "origin_wire_ratio": result["origin_wire"] / size,
                "slower_than_ours": result["seconds"] / mine["seconds"],
            }
            for contestant, result in best.items()
            if contestant != "ours"
        },
        "load": os.getloadavg()[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", type=int, default=8, help="hosts that need the weights")
    parser.add_argument("--mib", type=int, default=80, help="size of the weights, MiB")
    parser.add_argument("--mbit", type=int, default=200, help="rate of every link, Mbit/s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rsync", default=shutil.which("rsync") or "", help="the rsync to compare with; empty for none")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    options = parser.parse_args()
    if not Wires.possible():
        raise SystemExit("needs root, ip, tc with tbf, and network namespaces")
    found = measure(options.targets, options.mib, options.mbit, options.rounds, options.rsync)
    goals = [
        ("time / (bytes / link)", found["time_ratio"], TIME_GOAL),
        ("bytes the first host sent / bytes", found["origin_ratio"], ORIGIN_GOAL),
        ("the same as its network interface counts", found["origin_wire_ratio"], ORIGIN_GOAL),
    ]
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(
            f"{found['bytes'] >> 20} MiB to {found['targets']} hosts over {found['mbit']} Mbit/s each, best of {found['rounds']} rounds, "
            f"load {found['load']:.1f}; one host alone needs {found['limit_s']:.2f} s"
        )
        for text, figure, goal in goals:
            print(f"{'ok  ' if figure <= goal else 'MISS'} {text}: {figure:.3f} (goal <= {goal:g})")
        for contestant, result in found["stars"].items():
            print(
                f"     {contestant}: {result['time_ratio']:.2f} x bytes / link, origin {result['origin_wire_ratio']:.2f} x bytes; "
                f"{result['slower_than_ours']:.1f} x as long as ours"
            )
        if "star_rsync" not in found["stars"]:
            print("     star_rsync: no rsync here (--rsync PATH)")
    return 0 if all(figure <= goal for _text, figure, goal in goals) else 1


if __name__ == "__main__":
    raise SystemExit(main())
