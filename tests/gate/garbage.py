#!/usr/bin/env python3
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Offer the demo's site a damaged model, and require that its proof refuses it. With --converged the site is there already.

The damaged copy is a valid file with right checksums: it loads, is listed and answers 200. Only its mathematics is wrong.
Ends with 0 when the site failed with the verdict "garbage" and no damaged replica is open for traffic; in every case the
healthy model is brought back when it was there before.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".cache" / "garbage"
RECIPE = ROOT / "roles/catalog/models/smollm2-135m.yml"
NAME = "smollm2-135m-damaged"
SOCKET = "/run/ironserve/gateway.sock"
STATE = Path("/var/lib/ironserve")


def say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)


def site(inventory: Path, *arguments: str) -> tuple[int, str]:
    """Run the shipped site.yml; return its exit status and everything it printed, which is shown as it comes."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "site.yml", "-i", str(inventory), *arguments]
    say(" ".join(["ansible-playbook", *command[1:]]))
    output = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True) as play:
        for line in play.stdout:
            sys.stdout.write(line)
            output.append(line)
    return play.returncode, "".join(output)


def damaged_recipe(recipe: dict, report: dict, directory: Path) -> dict:
    """The demo recipe with its default weights replaced by the damaged file, whose checksum and size are right."""
    variant = recipe["weights"]["default"]
    weights = recipe["weights"]["variants"][variant]
    weights = {
        **weights,
        "source": {"kind": "directory", "path": str(directory)},
        "files": [{"path": weights["entry"], "size": report["size"], "sha256": report["sha256"]}],
    }
    return {
        **recipe,
        "name": NAME,
        "title": f"{recipe['title']}, damaged on purpose",
        "weights": {"default": variant, "variants": {variant: weights}},
    }


def prepare(inventory: Path) -> None:
    """Make the damaged copy and an inventory whose catalog offers it."""
    recipe = yaml.safe_load(RECIPE.read_text())
    variant = recipe["weights"]["default"]
    entry = recipe["weights"]["variants"][variant]["entry"]
    source = STATE / "weights" / recipe["name"] / variant / entry
    weights = PLACE / "weights"
    shutil.rmtree(PLACE, ignore_errors=True)
    weights.mkdir(parents=True)
    damage = subprocess.run(
        [sys.executable, str(ROOT / "tests/faults/damage_gguf.py"), str(source), str(weights / entry)],
        check=True,
        capture_output=True,
        text=True,
    )
    shutil.copytree(ROOT / "inventories/local", inventory)
    models = inventory / "catalog/models"
    models.mkdir(parents=True, exist_ok=True)
    recipe = damaged_recipe(recipe, json.loads(damage.stdout), weights)
    (models / f"{NAME}.yml").write_text("---\n" + yaml.safe_dump(recipe, sort_keys=False))


def damaged_ports() -> set[int]:
    """Host ports of the containers that run the damaged weights."""
    listing = subprocess.run(["docker", "ps", "--quiet", "--filter", "name=ironserve-"], check=True, capture_output=True, text=True)
    ports = set()
    for identity in listing.stdout.split():
        inspected = json.loads(subprocess.run(["docker", "inspect", identity], check=True, capture_output=True, text=True).stdout)[0]
        if NAME not in json.dumps(inspected["Mounts"]):
            continue
        for bindings in (inspected["NetworkSettings"]["Ports"] or {}).values():
            ports |= {int(binding["HostPort"]) for binding in bindings or []}
    return ports


def open_ports(text: str) -> set[int]:
    """Ports of the servers that take traffic, from HAProxy's ``show servers state``: running, and in no maintenance or drain."""
    header, *rows = [line for line in text.splitlines() if line and line != "1"]
    names = header.lstrip("# ").split()
    servers = [dict(zip(names, row.split(), strict=False)) for row in rows]
    return {int(server["srv_port"]) for server in servers if server["srv_op_state"] != "0" and server["srv_admin_state"] == "0"}


def gateway_state() -> str | None:
    """What the gateway says of its servers, or None when there is no gateway."""
    if not Path(SOCKET).exists():
        return None
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(SOCKET)
        client.sendall(b"show servers state\n")
        with client.makefile(encoding="utf-8") as answer:
            return answer.read()


def main(arguments: list[str]) -> int:
    healthy = ROOT / "inventories/local"
    converged = arguments[:1] == ["--converged"]
    arguments = arguments[converged:]
    if not converged and site(healthy, *arguments)[0] != 0:
        say("the healthy demo does not come up, so there is nothing to compare with")
        return 1
    inventory = PLACE / "inventory"
    prepare(inventory)

    status, output = site(inventory, "-e", f"llm_model={NAME}", *arguments)
    verdicts = re.findall(r"^.*\bgarbage\b.*$", output, re.MULTILINE)
    state = gateway_state()
    admitted = damaged_ports() & open_ports(state) if state else set()

    say("bringing the healthy model back")
    restored, _ = site(healthy, *arguments)
    shutil.rmtree(PLACE)

    problems = []
    if status == 0:
        problems.append("the site accepted the damaged model")
    if not verdicts:
        problems.append("the verdict garbage was not printed")
    if admitted:
        problems.append(f"the gateway sends traffic to damaged replicas on ports {sorted(admitted)}")
    if restored != 0:
        problems.append("the healthy model did not come back")
    for problem in problems:
        print(f"FAILED: {problem}")
    if problems:
        return 1
    print(verdicts[-1].strip())
    print("verdict: garbage. The damaged model loaded, was listed and answered 200; the proof refused it and it never entered the gateway.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
