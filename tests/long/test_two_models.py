# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Two models on this machine, from nothing to nothing, as a site has them: one name of the inventory for each, one gateway before both.

The models are the demo model and the same under another name. Needs what the demo needs, and the demo's ports.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FIRST, TWIN = "smollm2-135m", "smollm2-twin"
URL = "http://127.0.0.1:8000"

pytestmark = pytest.mark.long


def as_root(*command: str) -> str:
    """What a command prints that only root may give."""
    words = [*(["sudo", "-n"] if os.geteuid() else []), *command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Site:
    """The inventory, and what can be asked of the fleet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        recipe = yaml.safe_load((ROOT / "roles/catalog/models" / (FIRST + ".yml")).read_text(encoding="utf-8"))
        recipe.update(name=TWIN, served_names=[TWIN], title="The demo model under another name, for tests")
        (folder / "catalog/models").mkdir(parents=True)
        (folder / "catalog/models" / (TWIN + ".yml")).write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")
        self.names = {
            "here-first": {"llm_model": FIRST, "llm_aliases": ["first"], "replica_card_groups": [[0]]},
            "here-twin": {"llm_model": TWIN, "replica_card_groups": [[1]]},
        }

    def play(self, playbook: str, *arguments: str) -> tuple[int, str]:
        """Exit status and output of a playbook, as one line of single spaces."""
        everywhere = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_become": os.geteuid() != 0,
            "llm_platform": "cpu",
            "llm_engine": "llama_cpp",
            "accelerator_cpu_cards": 2,
            "gateway_bind_address": "127.0.0.1",
            "gateway_port": 8000,
        }
        groups = {"llm_nodes": {"hosts": self.names}, "llm_gateway": {"hosts": {"here-first": {}}}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": everywhere, "children": groups}}), encoding="utf-8")
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        command = [program, playbook, "-i", str(self.folder), *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)

    def containers(self) -> dict[str, tuple[str, str, str]]:
        """Id, replica and model of each replica's container that runs, by name."""
        shape = '{{.Names}} {{.ID}} {{.Label "ironserve.replica"}} {{.Label "ironserve.model"}}'
        rows = as_root("docker", "ps", "--filter", "label=ironserve.replica", "--format", shape).splitlines()
        return {name: (identity, replica, model) for name, identity, replica, model in map(str.split, rows)}

    def ask(self, model: str) -> tuple[int, str]:
        """Status and answer of the gateway to a question for a model."""
        key = as_root("cat", "/etc/ironserve/keys/client-default.key").strip()
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
            "temperature": 0,
            "max_tokens": 24,
        }
        headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
        asked = urllib.request.Request(URL + "/v1/chat/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(asked, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read().decode()

    def answered(self) -> dict[str, int]:
        """How many requests each server of the gateway has had, by backend and name."""
        with urllib.request.urlopen("http://127.0.0.1:8404/stats;csv", timeout=10) as reply:
            rows = csv.DictReader(reply.read().decode().removeprefix("# ").splitlines())
        servers = [row for row in rows if row["pxname"].startswith("ironserve_replicas") and row["svname"] not in ("BACKEND", "FRONTEND")]
        return {"{0}/{1}".format(row["pxname"], row["svname"]): int(row["stot"]) for row in servers}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    assert not Path("/var/lib/ironserve").exists(), "a site is on this machine; take it down first (make down)"
    made = Site(folder)
    names = dict(made.names)
    try:
        status, printed = made.play("site.yml")
        assert status == 0, printed[-6000:]
        yield made
    finally:
        made.names = names
        status, printed = made.play("playbooks/teardown.yml")
    assert status == 0, printed[-3000:]
    assert not Path("/var/lib/ironserve").exists() and not Path("/etc/ironserve").exists()


BOTH = {"ironserve-c0": ("here-first-c0", FIRST), "ironserve-c1": ("here-twin-c1", TWIN)}


def test_each_model_has_its_card_and_its_proof_and_a_second_run_changes_nothing(site):
    before = site.containers()
    assert {name: about[1:] for name, about in before.items()} == BOTH
    report = json.loads(as_root("cat", "/var/lib/ironserve/reports/acceptance.json"))
    names = {"gateway " + FIRST, "gateway " + TWIN, "here-first-c0", "here-twin-c1"}
    assert {row["name"]: row["verdict"] for row in report["results"]} == dict.fromkeys(names, "ok")
    status, printed = site.play("site.yml")
    assert status == 0 and len(re.findall(r"here-(?:first|twin) : ok=\d+ changed=0 unreachable=0 failed=0", printed)) == 2, printed[-3000:]
    assert site.containers() == before


def test_a_request_goes_to_the_model_that_it_names(site):
    for model, server in ((FIRST, "here-first-c0"), ("first", "here-first-c0"), (TWIN, "here-twin-c1")):
        before = site.answered()
        status, answer = site.ask(model)
        assert status == 200 and "Tokyo" in answer, answer
        rose = [name for name, count in site.answered().items() if count > before[name]]
        assert [name.split("/")[1] for name in rose] == [server]
    status, answer = site.ask("smollm2")
    assert status == 404 and FIRST in answer and TWIN in answer


def test_a_run_of_one_name_leaves_the_other_alone(site):
    before = site.containers()
    status, printed = site.play("site.yml", "--limit", "here-twin")
    assert status == 0 and re.search(r"here-twin : ok=\d+ changed=0 unreachable=0 failed=0", printed), printed[-3000:]
    assert site.containers() == before
    assert [site.ask(model)[0] for model in (FIRST, TWIN)] == [200, 200]


def test_a_card_that_the_other_name_has_is_refused_and_nothing_changes(site):
    before, good = site.containers(), site.names
    site.names = {**good, "here-twin": {**good["here-twin"], "replica_card_groups": [[0]]}}
    try:
        status, printed = site.play("site.yml")
        assert status != 0 and "here-first-c0 and here-twin-c0 both take card cpu:0" in printed, printed[-3000:]
        # Alone it does not know the other's plan, but it sees the other's container.
        status, printed = site.play("site.yml", "--limit", "here-twin")
        assert status != 0 and "here-twin-c0: card cpu:0 has container ironserve-c0 of here-first" in printed, printed[-3000:]
    finally:
        site.names = good
    assert site.containers() == before
    assert [site.ask(model)[0] for model in (FIRST, TWIN)] == [200, 200]


def test_half_of_a_machine_is_not_taken_down(site):
    before = site.containers()
    status, printed = site.play("playbooks/teardown.yml", "--limit", "here-twin")
    assert status != 0 and "here-twin is one machine with here-first" in printed
    assert site.containers() == before


def test_a_name_that_leaves_the_inventory_takes_its_model_with_it(site):
    """Last, for it leaves one model."""
    before = site.containers()
    del site.names["here-twin"]
    status, printed = site.play("site.yml")
    assert status == 0, printed[-3000:]
    assert site.containers() == {"ironserve-c0": before["ironserve-c0"]}
    assert site.ask(FIRST)[0] == 200 and site.ask(TWIN)[0] == 404
    assert list(site.answered()) == ["ironserve_replicas/here-first-c0"]
