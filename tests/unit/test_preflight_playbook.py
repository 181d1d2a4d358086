# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/preflight.yml over a mixed fleet: a vendor nobody knows, brought by one YAML file and one probe, hosts that are played from
directories, this machine's own cores, and a host that is away. Each planted fault is named, and nothing else is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ansible_collections.ironserve.llm.plugins.module_utils import _ports

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

#: Everything the new vendor needs: this, and the probe below.
PLATFORM = """---
name: acme
title: Acme A1
probe: acme
tools: {acme-smi: [/opt/acme/acme-smi]}
engines: [vllm]
card: {memory_mib: 1000, memory_share: 0.9, products: [A1], architectures: [a1], idle_mib: 10}
container: {shm_mib: 2048, stop_timeout_s: 60, pids_limit: 512, devices_shared: [/dev/acmectl], devices_per_card: [acme]}
host: {governor: performance, kernel_modules: [acme]}
"""
PROBE = """
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Accelerators, Card, Holder


def probe(vendor):
    cards = []
    for line in vendor.ask("acme-smi").splitlines():
        index, address, used, health, pid = line.split(",")
        holders = [Holder(int(pid))] if pid else []
        cards.append(
            Card(address, int(index), "A1", "Acme A1", "a1", 1000, int(used), health=health, holders=holders, devices={"acme": "/dev/acme" + index})
        )
    return Accelerators("acme", "acme-smi", cards, driver_version=vendor.read("/sys/module/acme/version").strip(), driver_live=True)
"""
CARDS = ["0,0000:01:00.0,2,ok,", "1,0000:02:00.0,2,ok,"]


def play(
    root: Path,
    cards: list[str],
    script: str = "",
    driver: str = "1.2.3",
    governor: str = "performance",
    modules: str = "acme",
    node: str = "",
) -> None:
    """A host with two Acme cards. ``script`` stands before the tool's answer; ``node`` is a device node that is not there."""
    files = {
        "opt/acme/acme-smi": "#!/bin/sh\n{0}\ncat <<END\n{1}\nEND\n".format(script, "\n".join(cards)),
        "dev/acmectl": "",
        "dev/acme0": "",
        "dev/acme1": "",
        "proc/1/limits": "Max open files 1048576 1048576 files\nMax locked memory unlimited unlimited bytes\n",
        "proc/meminfo": "MemTotal: 64000000 kB\n",
        "proc/modules": "{0} 1 0 - Live 0x0\n".format(modules),
        "proc/net/tcp": "  sl  local_address\n",
        "proc/sys/kernel/osrelease": "5.10.0\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": governor + "\n",
        "sys/module/acme/version": driver + "\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name != node:
            path.write_text(text, encoding="utf-8")
    (root / "opt/acme/acme-smi").chmod(0o755)


def free_ports(count: int) -> int:
    """The first of ``count`` neighbouring ports on which nobody listens."""
    taken = {item.port for item in _ports.read_listeners()}
    return next(port for port in range(20000, 30000) if not taken & set(range(port, port + count)))


class Site:
    """An inventory with a catalog of its own beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hosts: dict[str, dict] = {}
        self.away = path / "no_way"
        for name, text in (("platforms/acme.yml", PLATFORM), ("probes/acme.py", PROBE)):
            target = path / "inventory/catalog" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        # What ssh ends with when nobody answers.
        self.away.write_text("#!/bin/sh\necho 'ssh: connect to host: No route to host' >&2\nexit 255\n", encoding="utf-8")
        self.away.chmod(0o755)

    def add(self, name: str, **played) -> None:
        """A host of the new vendor."""
        play(self.path / name, **dict({"cards": CARDS}, **played))
        self.hosts[name] = {"ansible_connection": "local", "accelerator_root": str(self.path / name)}

    def preflight(self, *arguments: str, group: str = "llm_nodes", playbook: str = "playbooks/preflight.yml") -> tuple[int, str, dict]:
        """Run the playbook; returns its exit status, what it printed, and the report (empty where it wrote none)."""
        inventory = {
            "all": {
                "vars": {
                    "llm_platform": "acme",
                    "accelerator_expected_cards": 2,
                    "llm_state_dir": str(self.path / "state"),
                    "accelerator_space_mib": {str(self.path): 1},
                    "ansible_python_interpreter": sys.executable,
                },
                "children": {group: {"hosts": self.hosts}},
            }
        }
        (self.path / "inventory/hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
        report = self.path / "report.json"
        report.unlink(missing_ok=True)
        command = [str(Path(sys.executable).with_name("ansible-playbook")), playbook, "-i", str(self.path / "inventory")]
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_SSH_EXECUTABLE": str(self.away),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.path / "tmp"),
        }
        result = subprocess.run(
            [*command, "-e", "preflight_report=" + str(report), *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return (
            result.returncode,
            result.stdout + result.stderr,
            json.loads(report.read_text(encoding="utf-8")) if report.exists() else {},
        )


def bad(report: dict, host: str) -> list[tuple[str, str]]:
    """What is not good on a host, warnings included."""
    return [
        (check["name"], check["status"]) for check in report["hosts"][host]["checks"] if check["status"] not in ("pass", "not_applicable")
    ]


#: A host without a container engine of its own says so; site.yml installs one.
NO_ENGINE = ("container_engine", "warn")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tuple[int, str, dict]:
    site = Site(tmp_path_factory.mktemp("mixed"))
    site.add("node01")
    site.add("node02")
    site.add("node04", cards=[CARDS[0], CARDS[1].replace("ok", "fault")])
    site.add("node06", script="sleep 60")
    site.hosts["node06"]["accelerator_tool_timeout_s"] = 2
    site.add("node07", cards=[CARDS[0], "1,0000:02:00.0,900,ok,4242"])
    site.add("node08", governor="powersave", modules="other", node="dev/acme1")
    site.add("node09", driver="1.2.4")
    site.hosts["node10"] = {"ansible_connection": "ssh", "ansible_host": "192.0.2.10"}
    site.hosts["core01"] = {"ansible_connection": "local", "llm_platform": "cpu", "llm_model": "smollm2-135m"}
    # Nothing of what else runs on this machine shall matter.
    site.hosts["core01"].update(accelerator_cpu_cards=2, accelerator_cpu_card_memory_mib=1, accelerator_port_base=free_ports(2))
    site.hosts["typo01"] = {"ansible_connection": "local", "llm_platform": "acmee"}
    return site.preflight()


def test_a_failed_check_beats_one_that_could_not_tell(mixed):
    status, printed, report = mixed
    assert (status, report["status"], report["verdict"]) == (1, 1, "failed"), printed
    assert report["counts"] == {"ok": 4, "failed": 5, "could not tell": 1}, printed


@pytest.mark.parametrize(
    ("host", "expected", "words"),
    [
        ("node01", [], ""),
        ("node04", [("card_health", "fail")], "fault: 0000:02:00.0"),
        ("node06", [("probe", "fail")], "no end after 2 s; it hangs"),
        ("node07", [("card_holders", "fail")], "0000:02:00.0 is held by process 4242"),
        ("node08", [("device_nodes", "fail"), ("kernel_modules", "fail"), ("governor", "warn")], "/dev/acme1: No such file or directory"),
        ("node09", [], "driver 1.2.4"),
    ],
)
def test_each_planted_fault_is_named_and_nothing_else_is(mixed, host, expected, words):
    report = mixed[2]
    assert [item for item in bad(report, host) if item != NO_ENGINE] == expected
    assert any(words in check["detail"] for check in report["hosts"][host]["checks"])


def test_a_host_that_is_away_could_not_be_told_about(mixed):
    report = mixed[2]
    assert bad(report, "node10") == [("host", "unknown")]
    assert "No route to host" in report["hosts"]["node10"]["checks"][0]["detail"]
    assert report["hosts"]["node10"]["platform"] == "acme"


def test_a_host_with_a_mistyped_platform_keeps_nobody_from_being_looked_at(mixed):
    report = mixed[2]
    assert bad(report, "typo01") == [("catalog", "fail")]
    assert 'did you mean "acme"' in report["hosts"]["typo01"]["checks"][0]["detail"]


def test_this_machine_s_cores_are_in_the_same_fleet(mixed):
    report = mixed[2]
    assert [item for item in bad(report, "core01") if item != NO_ENGINE] == []
    details = [check["detail"] for check in report["hosts"]["core01"]["checks"] if check["name"] == "compatibility"]
    assert details and details[0].startswith("row cpu/llama_cpp: ")


def test_equal_hosts_print_once_and_the_odd_ones_stand_out(mixed):
    _status, printed, report = mixed
    assert [group["pattern"] for group in report["groups"] if group["platform"] == "acme"][0] == "node[01-02]"
    for line in (
        "preflight of 10 hosts: 4 ok, 5 failed, 1 could not tell",
        "node[01-02] (2 hosts, acme): ok",
        "node09 (acme): ok; unlike node[01-02]:",
        "node04 (acme): FAILED; unlike node[01-02]:",
        "node10 (acme): COULD NOT TELL; unlike node[01-02]:",
        "core01 (cpu): ok",
    ):
        assert printed.count(line) == 1, line
    assert printed.count("PASS     expected_product         A1") == 1


def test_nothing_changes_and_the_right_hosts_fail(mixed):
    recap = mixed[1].split("PLAY RECAP")[1]
    figures = {line.split()[0]: line for line in recap.splitlines() if "failed=" in line}
    assert len(figures) == 11
    assert all("changed=0" in line and "unreachable=0" in line for line in figures.values())
    assert sorted(name for name, line in figures.items() if "failed=0" not in line) == [
        "node04",
        "node06",
        "node07",
        "node08",
        "node10",
        "typo01",
    ]


def test_a_good_fleet_ends_with_0_in_check_mode_too(tmp_path):
    site = Site(tmp_path)
    site.add("node01")
    status, printed, report = site.preflight("--check", "--diff")
    assert (status, report["status"]) == (0, 0), printed
    assert bad(report, "node01") == [NO_ENGINE]


def test_a_host_that_is_away_ends_with_2(tmp_path):
    site = Site(tmp_path)
    site.hosts["node01"] = {"ansible_connection": "ssh", "ansible_host": "192.0.2.10"}
    status, printed, report = site.preflight()
    assert (status, report["status"], report["verdict"]) == (2, 2, "could not tell"), printed


def test_the_role_itself_stops_where_a_check_is_not_good(tmp_path):
    site = Site(tmp_path)
    site.add("node01")
    site.add("node02", cards=[CARDS[0], CARDS[1].replace("ok", "fault")])
    playbook = tmp_path / "deploy.yml"
    playbook.write_text(
        "- hosts: llm_nodes\n  gather_facts: false\n  roles:\n    - {role: ironserve.llm.catalog, catalog_model: ''}\n"
        "    - ironserve.llm.accelerator\n  tasks: [{ansible.builtin.debug: {msg: 'goes on with {{ accelerator_out.cards | length }} cards'}}]\n",
        encoding="utf-8",
    )
    status, printed, _report = site.preflight(playbook=str(playbook))
    assert status == 2, printed
    assert printed.count("goes on with 2 cards") == 1
    assert "node02 is not fit to serve:" in printed and "fault: 0000:02:00.0" in printed
    assert "unreachable=0    failed=0" in [line for line in printed.splitlines() if line.startswith("node01 ")][0]


def test_a_fleet_without_cards_is_no_good_news(tmp_path):
    site = Site(tmp_path)
    site.add("node01")
    status, printed, report = site.preflight(group="other")
    assert (status, report) == (2, {}), printed
    assert "the inventory has no hosts in group llm_nodes" in printed
