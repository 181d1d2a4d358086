# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the gateway adds: engine stand-ins asked straight and through it, at the same time; 1,000 slow streams; prompts of 500 KB.

    .venv/bin/python benchmarks/gateway_transparency.py [--rounds 10] [--streams 8] [--held 1000] [--json FILE]

Needs root and HAProxy (IRONSERVE_HAPROXY names another binary than /usr/sbin/haproxy). Loopback only. The exit status is 1 when a
goal is missed. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests")]

from unit.conftest import install_loader  # noqa: E402

install_loader()

from integration.gateway import gateway_lab, transparency  # noqa: E402

FIRST_CHUNK_MS = 1.0
CHUNK_LAG_MS = 3.0
TTFT_RATIO = 1.02
ENGINES = 4


def main() -> int:
    """Run it and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--streams", type=int, default=8, help="on each side at a time")
    parser.add_argument("--tokens", type=int, default=100, help="of each answer")
    parser.add_argument("--rate", type=float, default=50, help="tokens a second of each stream")
    parser.add_argument("--prefill", type=float, default=0.05, help="seconds of each prefill; they are one after the other")
    parser.add_argument("--held", type=int, default=1000, help="slow streams at once, on four engines")
    parser.add_argument("--held-tokens", type=int, default=40, help="of each slow stream, at 2 a second")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    if gateway_lab.missing():
        print("cannot run: " + gateway_lab.missing(), file=sys.stderr)
        return 2
    missed = []

    def judge(good: bool, line: str) -> None:
        print(line, flush=True)
        if not good:
            missed.append(line)

    print(f"load average at the start {os.getloadavg()[0]:.1f}; {gateway_lab.version()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="transparency-") as name:
        folder = Path(name)
        seen = transparency.compare(folder, options.rounds, options.streams, options.tokens, options.rate, options.prefill)
        for side, what in ((seen.straight, "straight"), (seen.through, "through")):
            lags = " / ".join(f"{transparency.percentile(side.lags, share):.2f}" for share in (0.5, 0.99, 1.0))
            print(
                f"{what}: TTFT {statistics.median(side.ttft):.1f} ms, of it not the engine's {statistics.median(side.overhead):.2f};"
                f" chunk lag p50 / p99 / worst {lags} ms, {len(side.lags)} chunks"
            )
        print(f"an engine was late by {1000 * seen.late_s:.1f} ms at worst")
        judge(seen.first_chunk <= FIRST_CHUNK_MS, f"first chunk: {seen.first_chunk:+.2f} ms at p50 (goal {FIRST_CHUNK_MS})")
        judge(seen.chunk_lag <= CHUNK_LAG_MS, f"chunk lag: {seen.chunk_lag:+.2f} ms at p99 (goal {CHUNK_LAG_MS})")
        judge(seen.ttft <= TTFT_RATIO, f"TTFT: {seen.ttft:.3f} of asked straight (goal {TTFT_RATIO})")
        slots = options.held // ENGINES
        most, shares, cpu = transparency.hold(folder, ENGINES, slots, options.held_tokens, 2.0)
        judge(
            most == ENGINES * slots and shares == [slots] * ENGINES,
            f"slow streams at once: {most} of {ENGINES * slots}, by engine {shares}; gateway {cpu:.1f} s of CPU time",
        )
        prompts = transparency.long_prompts(folder)
        for language, (size, good) in prompts.items():
            judge(good, f"a prompt of {size:,} bytes ({language}): {'answered as straight' if good else 'answered in another way'}")
    if options.json:
        figures = {"first_chunk_ms": seen.first_chunk, "chunk_lag_p99_ms": seen.chunk_lag, "ttft_ratio": seen.ttft, "late_s": seen.late_s}
        figures.update(held=most, shares=shares, gateway_cpu_s=cpu, prompts=prompts)
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for line in missed:
        print("MISSED: " + line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
