# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What prefix affinity is worth: shared-prefix traces on four engine stand-ins through the gateway, beside leastconn in the same run.

    .venv/bin/python benchmarks/gateway_affinity.py [--seeds 5] [--requests 720] [--trace NAME ...] [--json FILE]

Needs root and HAProxy (IRONSERVE_HAPROXY names another binary than /usr/sbin/haproxy). Loopback only. The exit status is 1 when a
goal is missed. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import dataclasses
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

from integration.gateway import gateway_lab, traces  # noqa: E402

#: Throughput against leastconn, medians over the seeds.
GOALS = {"documents": 2.2, "hot document": 2.0, "chat": 1.35, "unrelated": 0.97}
#: Hit rate against the router that knows everything; nothing is to be hit in unrelated prompts.
HIT_GOAL = 0.90
MOVED_GOAL = 1.02
POLICIES = ("leastconn", "prefix_affinity", "knowing")


def main() -> int:
    """Run it and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=720, help="of each trace; a third of unrelated ones")
    parser.add_argument("--time-scale", type=float, default=0.5, help="seconds of the engines' in each; less, where the machine is busy")
    parser.add_argument("--trace", choices=sorted(GOALS), action="append")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    if gateway_lab.missing():
        print("cannot run: " + gateway_lab.missing(), file=sys.stderr)
        return 2
    figures: dict[str, list[dict[str, dict]]] = {}
    missed = []
    print(f"load average at the start {os.getloadavg()[0]:.1f}; {gateway_lab.version()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="affinity-") as folder:
        for name in options.trace or GOALS:
            rounds = figures.setdefault(name, [])
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                # Nothing in unrelated prompts can be known, and each costs seven times as much.
                requests, policies = (options.requests // 3, POLICIES[:2]) if name == "unrelated" else (options.requests, POLICIES)
                played = {policy: traces.run(name, seed, requests, policy, Path(folder), options.time_scale) for policy in policies}
                rounds.append({policy: dataclasses.asdict(result) for policy, result in played.items()})
                shown = ", ".join(f"{policy} {result.rate:.1f}/s ({result.hits:.2f})" for policy, result in played.items())
                print(f"{name}, seed {seed}: {shown}; engines late by {max(item.late_s for item in played.values()):.3f} s", flush=True)
                if any(result.bad for result in played.values()):
                    missed.append(f"{name}, seed {seed}: answers other than 200")
            ratio = statistics.median(item["prefix_affinity"]["rate"] / item["leastconn"]["rate"] for item in rounds)
            line = f"{name}: throughput {ratio:.2f} of leastconn (goal {GOALS[name]})"
            if ratio < GOALS[name]:
                missed.append(line)
            if name != "unrelated":
                hits = statistics.median(item["prefix_affinity"]["hits"] / item["knowing"]["hits"] for item in rounds)
                line += f", hit rate {hits:.2f} of full knowledge (goal {HIT_GOAL})"
                if hits < HIT_GOAL:
                    missed.append(line)
            print(line, flush=True)
        held, own, others = traces.lose_one(Path(folder))
        moved = (own + others) / held
        print(
            f"loss of one of {traces.ENGINES}: {own + others} prefixes moved, it had {held}: {moved:.2f} (goal {MOVED_GOAL}), {others} of others"
        )
        if own != held or moved > MOVED_GOAL:
            missed.append("prefixes moved at a loss")
    if options.json:
        options.json.write_text(json.dumps({"rounds": figures, "moved": moved}, indent=1) + "\n", encoding="utf-8")
    for line in missed:
        print("MISSED: " + line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
