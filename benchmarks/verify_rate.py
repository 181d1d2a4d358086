# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How fast weights are verified, beside what the machine can give and what others take, in one run.

    .venv/bin/python benchmarks/verify_rate.py [--gib 4] [--rounds 5] [--folder DIR] [--hf PATH] [--json]

Contestants take turns in every round, and the best round of each counts: whatever else runs on the machine can only slow one
down. A disk that others share is now quick and now slow by itself: what is read from it is set against what it gave in the same
round, the two in turn first, and the middle one of these shares counts. On a machine that is busy with other things no figure is
worth quoting; the shares of CPU time still hold there. The exit status is 1 when a goal is missed. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests")]

from faults import tiny_w8a8  # noqa: E402

from ansible_collections.ironserve.llm.plugins.module_utils import (  # noqa: E402
    _config_file,
    _hashing,
    _manifest,
    _structure,
    _weights,
)

RATE_GOAL = 0.90
RECHECK_GOAL_S = 1.0
STRUCTURE_GOAL_S = 2.0
PIECE = 1 << 20


# ---- what the machine can give


def one_thread(path: Path) -> float:
    """Bytes a second of a plain loop over one file in the page cache: the ceiling of one core."""
    digest, buffer, size = hashlib.sha256(), memoryview(bytearray(PIECE)), 0
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as handle:
        while count := handle.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return size / (time.perf_counter() - start)


def memory(size: int) -> float:
    """Bytes a second of one thread over the same megabyte again and again: SHA-256 without any file."""
    digest, piece = hashlib.sha256(), os.urandom(PIECE)
    start = time.perf_counter()
    for _number in range(size // PIECE):
        digest.update(piece)
    return size / (time.perf_counter() - start)


def disk(paths: list[Path]) -> float | None:
    """Bytes a second of reads past the page cache, as many at a time as there are cores; None where that cannot be done."""

    def read(path: Path) -> int:
        number = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            size = 0
            with mmap.mmap(-1, 4 * PIECE) as buffer:
                while count := os.readv(number, [buffer]):
                    size += count
            return size
        finally:
            os.close(number)

    start = time.perf_counter()
    try:
        size = sum(_hashing.side_by_side(read, paths))
    except OSError:
        return None
    return size / (time.perf_counter() - start)


# ---- contestants


def forget(paths: list[Path]) -> None:
    """Drop these files from the page cache."""
    for path in paths:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(number)


def warm(paths: list[Path]) -> None:
    for path in paths:
        with open(path, "rb", buffering=0) as handle:
            while handle.read(PIECE):
                pass


def ours(folder: Path, entries: list[_manifest.Entry]) -> float:
    """Bytes a second of this collection's verification, every byte hashed."""
    start = time.perf_counter()
    results = _manifest.check_tree(str(folder), entries)
    seconds = time.perf_counter() - start
    if any(result.verdict != _manifest.OK or not result.hashed for result in results):
        raise SystemExit(f"the verification itself failed: {[result.line() for result in results]}")
    return sum(entry.size for entry in entries) / seconds


def timed(command: list[str], folder: Path, size: int, env: dict[str, str] | None = None) -> float:
    """Bytes a second of a command, its start included."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return size / seconds


class Hub(http.server.BaseHTTPRequestHandler):
    """The one answer of a hub that ``hf cache verify`` asks for: the tree of a revision with its digests."""

    tree: list[dict] = []

    def do_GET(self) -> None:
        raw = json.dumps(self.tree).encode()
        self.send_response(200 if "/tree/" in self.path else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args: object) -> None:
        pass


def hub(entries: list[_manifest.Entry]) -> http.server.ThreadingHTTPServer:
    Hub.tree = [
        {
            "type": "file",
            "path": entry.path,
            "size": entry.size,
            "oid": "0" * 40,
            "lfs": {"oid": entry.sha256, "size": entry.size, "pointerSize": 134},
        }
        for entry in entries
    ]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def rates(folder: Path, gib: float, rounds: int, hf: str) -> dict:
    """Rates of every contestant, best of the rounds, in bytes a second."""
    cores = _hashing.cores()
    shards = max(8, 2 * cores)
    size = int(gib * (1 << 30)) // shards // PIECE * PIECE
    paths = [folder / f"model-{number + 1:05d}-of-{shards:05d}.safetensors" for number in range(shards)]
    entries = []
    for path in paths:
        digest = hashlib.sha256()
        with open(path, "wb") as handle:
            for _piece in range(size // PIECE):
                piece = os.urandom(PIECE)
                digest.update(piece)
                handle.write(piece)
        entries.append(_manifest.Entry(path.name, size, digest.hexdigest()))
    total = size * shards
    # beside the shards, not among them: hf would call it an extra file
    sums = folder.with_suffix(".sums")
    sums.write_text("".join(f"{entry.sha256}  {entry.path}\n" for entry in entries))
    server = hub(entries)
    contestants: dict[str, Callable[[], float | None]] = {
        "memory": lambda: memory(size),
        "one_thread": lambda: one_thread(paths[0]),
        "ours_cached": lambda: ours(folder, entries),
        "sha256sum": lambda: timed(["sha256sum", "--quiet", "-c", str(sums)], folder, total),
    }
    if hf:
        environment = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [hf, "cache", "verify", "bench/bench", "--local-dir", str(folder)]
        contestants["hf_cache_verify"] = lambda: timed(command, folder, total, environment)
    cold: dict[str, Callable[[], float | None]] = {"disk": lambda: disk(paths), "ours_from_disk": lambda: ours(folder, entries)}
    best: dict[str, list[float]] = {name: [] for name in [*contestants, *cold]}
    effort: dict[str, list[float]] = {"one_thread": [], "ours_cached": []}
    for number in range(rounds):
        warm(paths)
        for name, work in contestants.items():
            spent = time.process_time()
            best[name].append(work() or 0.0)
            if name in effort:
                effort[name].append(time.process_time() - spent)
        for name in sorted(cold, reverse=number % 2 == 1):
            forget(paths)
            best[name].append(cold[name]() or 0.0)
    server.shutdown()
    sums.unlink()
    rate = {name: max(values) for name, values in best.items()}
    cpu = cores * rate["one_thread"]
    shares = []
    if all(best["disk"]):
        shares = [ours / min(disk, cpu) for ours, disk in zip(best["ours_from_disk"], best["disk"], strict=True)]
    return {
        "bytes": total,
        "shards": shards,
        "cores": cores,
        "rounds": rounds,
        "rates": rate,
        "worst": {name: min(values) for name, values in best.items()},
        "limit_cached": cpu,
        "ratio_cached": rate["ours_cached"] / cpu,
        "ratio_from_disk": statistics.median(shares) if shares else None,
        "ratios_from_disk": shares,
        "peers": {name: rate[name] / cpu for name in ("sha256sum", "hf_cache_verify") if name in rate},
        "ratio_memory": rate["ours_cached"] / (cores * rate["memory"]),
        "ratio_cpu_time": (total / min(effort["ours_cached"])) / (size / min(effort["one_thread"])),
        "load": os.getloadavg()[0],
    }


def big(folder: Path, rounds: int) -> dict:
    """35 GB in 40 shards with 64,198 tensors: how long headers take, and how long it takes to see that nothing changed.

    The shards are sparse, real headers and holes for data, so their digests are made up and the marker is written by hand, as
    if they had been hashed before.
    """
    tensors = tiny_w8a8.names(tiny_w8a8.FULL)
    shards = tiny_w8a8.split(tensors, 40)
    for name, held in shards.items():
        head, size = tiny_w8a8.header(held)
        (folder / name).write_bytes(head)
        os.truncate(folder / name, len(head) + size)
    config = {**tiny_w8a8.config(tiny_w8a8.FULL), "quantization_config": {**tiny_w8a8.SCHEME, "ignore": tiny_w8a8.ignored(tensors)}}
    files = {
        **tiny_w8a8.BESIDE,
        "config.json": json.dumps(config).encode(),
        tiny_w8a8.INDEX: json.dumps({"weight_map": {tensor: name for name, held in shards.items() for tensor in held}}).encode(),
    }
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    paths = sorted(path.name for path in folder.iterdir())
    entries, results = [], []
    for path in paths:
        status = os.stat(folder / path)
        entry = _manifest.Entry(path, status.st_size, hashlib.sha256(path.encode()).hexdigest())
        entries.append(entry)
        results.append(_manifest.FileResult(path, _manifest.OK, "", status.st_size, entry.sha256, _manifest.stamp_of(status)))
    marker = str(folder) + ".marker.json"
    checks = _structure.checks("safetensors", quantization="auto")
    _manifest.write_marker(marker, str(folder), _manifest.manifest_id(entries), results, checks)
    arguments = {
        "path": str(folder),
        "manifest": [{"path": entry.path, "size": entry.size, "sha256": entry.sha256} for entry in entries],
        "format": "safetensors",
        "marker": marker,
    }
    module = [sys.executable, str(ROOT / "plugins" / "modules" / "weights_verify.py")]
    times: dict[str, list[float]] = {"structure": [], "quantization": [], "recheck": [], "recheck_module": []}
    for _round in range(rounds):
        start = time.perf_counter()
        found = _structure.inspect(str(folder), paths, "safetensors")
        times["structure"].append(time.perf_counter() - start)
        start = time.perf_counter()
        verdict = _config_file.look(str(folder), found=found)
        times["quantization"].append(time.perf_counter() - start)
        start = time.perf_counter()
        report = _weights.verify(str(folder), entries, "safetensors", marker, quantization="auto")
        times["recheck"].append(time.perf_counter() - start)
        start = time.perf_counter()
        done = subprocess.run(
            module,
            input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
            capture_output=True,
            text=True,
            check=False,
        )
        times["recheck_module"].append(time.perf_counter() - start)
        answer = json.loads(done.stdout)
        if found.problems or verdict.problems or not report.ok or report.hashed_bytes or not answer.get("ok") or answer["hashed_bytes"]:
            raise SystemExit(f"the check itself failed: {found.lines()} {verdict.problems} {report.problems()} {done.stdout[-500:]}")
    os.unlink(marker)
    return {
        "bytes": sum(entry.size for entry in entries),
        "shards": len(shards),
        "tensors": len(tensors),
        "seconds": {name: min(values) for name, values in times.items()},
    }


def goals(rate: dict, times: dict) -> list[tuple[str, float, str, bool]]:
    """Name, figure, goal and whether it was reached."""
    lines = [("verify / (cores x one-thread sha256), files cached", rate["ratio_cached"], f">= {RATE_GOAL:.2f}", True)]
    if rate["ratio_from_disk"] is not None:
        lines.append(
            ("verify / min(disk, cores x one-thread sha256), files not cached", rate["ratio_from_disk"], f">= {RATE_GOAL:.2f}", True)
        )
    lines.append(("no-change re-check of 35 GB, seconds", times["seconds"]["recheck"], f"<= {RECHECK_GOAL_S:g}", False))
    lines.append(
        ("the same as a module, Python's start included, seconds", times["seconds"]["recheck_module"], f"<= {RECHECK_GOAL_S:g}", False)
    )
    lines.append(("structure of a 40-shard index, seconds", times["seconds"]["structure"], f"< {STRUCTURE_GOAL_S:g}", False))
    out = []
    for name, figure, goal, at_least in lines:
        limit = float(goal.split()[1])
        out.append((name, figure, goal, figure >= limit if at_least else figure <= limit))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gib", type=float, default=4.0, help="bytes to hash, in GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=None, help="where to put them; the filesystem that is measured")
    parser.add_argument("--hf", default=None, help="the hf command of huggingface_hub; 'none' leaves it out")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")
    options = parser.parse_args()
    beside = Path(sys.executable).with_name("hf")
    hf = options.hf or (str(beside) if beside.exists() else shutil.which("hf")) or ""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="verify-rate-") as base:
        for name in ("rate", "big"):
            (Path(base) / name).mkdir()
        rate = rates(Path(base) / "rate", options.gib, options.rounds, "" if hf == "none" else hf)
        shutil.rmtree(Path(base) / "rate")
        times = big(Path(base) / "big", options.rounds)
    reached = goals(rate, times)
    if options.json:
        print(json.dumps({"rate": rate, "times": times, "goals": reached}, indent=1))
    else:
        tell(rate, times, reached)
    raise SystemExit(0 if all(good for _name, _figure, _goal, good in reached) else 1)


def tell(rate: dict, times: dict, reached: list[tuple[str, float, str, bool]]) -> None:
    print(f"{rate['bytes'] / 1e9:.1f} GB in {rate['shards']} files, {rate['cores']} cores, best (and worst) of {rate['rounds']} rounds\n")
    names = {
        "memory": "sha256 of memory, one thread",
        "one_thread": "sha256 of one cached file, one thread",
        "disk": "reads past the cache, one a core",
        "ours_cached": "this collection, files cached",
        "ours_from_disk": "this collection, files not cached",
        "sha256sum": "sha256sum -c, files cached",
        "hf_cache_verify": "hf cache verify, files cached",
    }
    for name, text in names.items():
        if rate["rates"].get(name):
            print(f"{text:<44}{rate['rates'][name] / 1e9:6.2f} GB/s  ({rate['worst'][name] / 1e9:.2f})")
        else:
            print(f"{text:<44}not measured")
    print("\nshare of cores x one-thread sha256:")
    print(f"  this collection {rate['ratio_cached']:.2f}, " + ", ".join(f"{name} {share:.2f}" for name, share in rate["peers"].items()))
    print(f"  this collection, of cores x sha256 of memory (no file at all): {rate['ratio_memory']:.2f}")
    if rate["ratios_from_disk"]:
        print(f"  files not cached, of min(disk, the same), by round: {' '.join(f'{share:.2f}' for share in rate['ratios_from_disk'])}")
    print(f"  this collection, bytes a second of CPU time against one thread's: {rate['ratio_cpu_time']:.2f}")
    print(
        f"\n{times['bytes'] / 1e9:.1f} GB in {times['shards']} sparse shards with {times['tensors']} tensors, best of {rate['rounds']} rounds:"
    )
    for name, seconds in times["seconds"].items():
        print(f"  {name:<16}{seconds:6.3f} s")
    print()
    if rate["load"] > rate["cores"] + 1:
        print(f"load average {rate['load']:.1f} on {rate['cores']} cores: others were at work, do not quote these figures")
    for name, figure, goal, good in reached:
        print(f"{'reached' if good else 'MISSED '}  {figure:6.3f}  {goal:<8} {name}")


if __name__ == "__main__":
    main()
