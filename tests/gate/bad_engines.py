#!/usr/bin/env python3
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Offer the demo's site engines that are up and useless, and require that each is refused and the fleet goes on serving.

One never answers, one dies at its first request; both list the model and say 200 to /health. A healthy engine does not show
such faults, so a scripted one plays them, in the real engine's image and container. With --turned it is the real engines that
turn bad: one is made to hang, then all are held to a speed they do not have. Needs the converged demo, run as root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

from garbage import ROOT, gateway_state, open_ports, say, site

PLACE = ROOT / ".cache" / "bad-engines"
HEALTHY = ROOT / "inventories/local"
BEHAVIOURS = ("never_answers", "dies_at_first_request")


def docker(*arguments: str) -> str:
    """Run the docker command and return what it printed."""
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def build(behaviour: str) -> dict[str, str]:
    """Build an image that misbehaves, on top of the engine image that serves now; return it as ``replica_image``."""
    base = json.loads(docker("inspect", "ironserve-c0"))[0]["Config"]["Image"]
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    shutil.copy(ROOT / "tests/faults/engines/scripted.py", PLACE)
    entrypoint = json.dumps(["/usr/bin/python3", "/opt/faults/scripted.py", "--behaviour", behaviour])
    (PLACE / "scripted.py").chmod(0o644)
    (PLACE / "Dockerfile").write_text(f"FROM {base}\nCOPY scripted.py /opt/faults/scripted.py\nENTRYPOINT {entrypoint}\n")
    reference = f"ironserve-faults/{behaviour.replace('_', '-')}:test"
    # The classic builder: a machine without the buildx plugin has no other.
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", reference, str(PLACE)],
        check=True,
        capture_output=True,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
    )
    return {
        "source": "archive",
        "archive": "/already/loaded.tar",
        "reference": reference,
        "id": docker("inspect", "--format", "{{.Id}}", reference),
    }


def admitted(reference: str) -> set[int]:
    """Ports of containers of this image that the gateway sends traffic to."""
    ports = set()
    for identity in docker("ps", "--quiet", "--filter", f"ancestor={reference}").split():
        inspected = json.loads(docker("inspect", identity))[0]
        ports |= {int(item["HostPort"]) for bindings in (inspected["NetworkSettings"]["Ports"] or {}).values() for item in bindings or []}
    state = gateway_state()
    return ports & open_ports(state) if state else set()


def offered() -> list[str]:
    """Offer the scripted engines; return what went wrong."""
    problems = []
    for behaviour in BEHAVIOURS:
        image = build(behaviour)
        status, output = site(HEALTHY, "-e", json.dumps({"replica_image": image, "replica_warmup_timeout_s": 20}))
        if status == 0:
            problems.append(f"{behaviour}: the site accepted the engine")
        if "local-c0 refused" not in output:
            problems.append(f"{behaviour}: nothing says that local-c0 was refused")
        if admitted(image["reference"]):
            problems.append(f"{behaviour}: the gateway sends traffic to it")
    return problems


def turned() -> list[str]:
    """Have real engines turn bad; return what went wrong. The fleet is whole again at the end."""
    problems = []
    say("one replica that hangs must leave the gateway, and its neighbours must stay in it")
    before = open_ports(gateway_state() or "")
    hung = json.loads(docker("inspect", "ironserve-c1"))[0]
    os.kill(hung["State"]["Pid"], signal.SIGSTOP)
    status, _output = site(HEALTHY, "-e", json.dumps({"replica_warmup_timeout_s": 10}))
    port = int(hung["HostConfig"]["PortBindings"]["8000/tcp"][0]["HostPort"])
    if status == 0:
        problems.append("hung: the site went on with a replica that does not answer")
    if open_ports(gateway_state() or "") != before - {port}:
        problems.append(f"hung: the gateway should send to all but port {port}, it sends to {sorted(open_ports(gateway_state() or ''))}")
    if "ironserve-c1" in docker("ps", "--format", "{{.Names}}").split():
        problems.append("hung: the replica still runs")
    status, _output = site(HEALTHY)
    if status != 0 or open_ports(gateway_state() or "") != before:
        problems.append("hung: the replica did not come back")

    say("a fleet that proved itself and does not any more must leave the gateway, and stay out of it")
    status, _output = site(HEALTHY, "-e", json.dumps({"replica_acceptance": {"floor_decode_tokens_per_s": 1e6}}))
    if status == 0:
        problems.append("too slow: the site went on with replicas that failed their proof")
    if open_ports(gateway_state() or ""):
        problems.append("too slow: the gateway still sends traffic to them")
    if docker("ps", "--quiet", "--filter", "name=^ironserve-c"):
        problems.append("too slow: they still run, and a gateway that restarts would find them")
    status, _output = site(HEALTHY)
    if status != 0 or open_ports(gateway_state() or "") != before:
        problems.append("too slow: the fleet did not come back whole with a bearable floor")
    return problems


def main(arguments: list[str]) -> int:
    problems = turned() if arguments == ["--turned"] else offered()
    say("the healthy engines must still be there, and nothing must be left to do")
    status, output = site(HEALTHY)
    if status != 0 or "changed=0 " not in output:
        problems.append("the healthy fleet was not left as it had been")
    for behaviour in BEHAVIOURS:
        reference = f"ironserve-faults/{behaviour.replace('_', '-')}:test"
        if docker("images", "--quiet", reference):
            docker("image", "rm", "--force", reference)
    shutil.rmtree(PLACE, ignore_errors=True)
    for problem in problems:
        print(f"FAILED: {problem}")
    print(f"useless engines: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
