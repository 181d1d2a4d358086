# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role's driver tasks, by ansible-playbook, on two hosts played from directories; their ssh is a shell on this machine."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import yaml
from unit.plugins.played import installers

ROOT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.slow

PLAY = """---
- name: Have the drivers
  hosts: all
  gather_facts: false
  tasks:
    - name: Have the drivers
      ansible.builtin.include_role:
        name: ironserve.llm.accelerator
        tasks_from: drivers
"""


class Fleet:
    """Two hosts and an inventory of them."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.hosts = {name: installers.Host(tmp / name) for name in ("h1", "h2")}
        self.packages: dict[str, list[dict]] = {name: [] for name in self.hosts}
        self.offered = tmp / "offered"
        ssh = tmp / "ssh"
        # What comes last is the command; everything before it is about a network that is not there.
        ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec /bin/sh -c "$last"\n')
        ssh.chmod(0o755)
        self.common = {
            "ansible_ssh_executable": str(ssh),
            "ansible_ssh_transfer_method": "piped",
            "ansible_python_interpreter": sys.executable,
            "ansible_remote_tmp": str(tmp / "remote"),
            "catalog_out": {"platform": {"probe": "played"}},
            "accelerator_engine_socket": "/var/run/docker.sock",
            "llm_run_dir": str(tmp / "run"),
        }

    def offer(self, *arguments, **changes) -> None:
        """The same package for every host, on the controller."""
        for name, host in self.hosts.items():
            self.packages[name].append(host.offer(*arguments, place=self.offered / name, **changes))

    def start(self, *arguments: str, play: str = PLAY, limit: str = "all", **values) -> subprocess.Popen:
        """Begin a run of ansible-playbook, in a process group of its own."""
        inventory = {
            "all": {
                "vars": dict(self.common, **values),
                "hosts": {
                    name: {
                        "accelerator_root": str(host.root),
                        "accelerator_reboot_command": host.reboot_command(),
                        "accelerator_packages": self.packages[name],
                    }
                    for name, host in self.hosts.items()
                },
            }
        }
        (self.tmp / "hosts.yml").write_text(yaml.safe_dump(inventory))
        (self.tmp / "play.yml").write_text(play)
        command = [str(Path(sys.executable).with_name("ansible-playbook")), str(self.tmp / "play.yml"), "-i", str(self.tmp / "hosts.yml")]
        environment = dict(
            os.environ,
            ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
            ANSIBLE_COLLECTIONS_PATH=str(ROOT / "collections"),
            ANSIBLE_LOCALHOST_WARNING="false",
            ANSIBLE_NOCOLOR="1",
            ANSIBLE_SSH_CONTROL_PATH_DIR=str(self.tmp / "cp"),
        )
        return subprocess.Popen(
            command + ["--limit", limit, *arguments],
            cwd=self.tmp,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, rc: int = 0, **values) -> str:
        """Run to the end; returns what was said, with single spaces."""
        process = self.start(*arguments, **values)
        said, _none = process.communicate()
        assert process.returncode == rc, said
        return re.sub(r"\s+", " ", said)

    def order(self) -> list[str]:
        """What happened on the fleet, one after the other."""
        path = self.tmp / "order"
        return path.read_text().splitlines() if path.exists() else []

    def turns(self) -> list[list[str]]:
        """What happened on each host, one after the other and never by turns; which host came first is not said."""
        turns = [[line.partition(" ")[2] for line in lines] for _host, lines in itertools.groupby(self.order(), key=lambda line: line[:2])]
        assert len(turns) <= len(self.hosts)
        return turns


@pytest.fixture
def fleet(tmp_path):
    return Fleet(tmp_path)


def recap(said: str, host: str) -> dict[str, int]:
    """The last line about a host: ``{"ok": 3, "changed": 0, ...}``."""
    found = re.search(host + r" : ((?:[a-z]+=\d+ ?)+)", said)
    return {key: int(value) for key, value in (pair.split("=") for pair in found.group(1).split())}


def listing(path: Path) -> list[str]:
    return sorted(str(item.relative_to(path)) for item in path.rglob("*") if item.is_file() and item.name != "reboot")


def archive(fleet: Fleet) -> None:
    """A runtime that is an archive, for every host."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        member = tarfile.TarInfo("dtk/.info/version")
        member.size = 6
        packed.addfile(member, io.BytesIO(b"26.04\n"))
    path = fleet.offered / "dtk-26.04.tar.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())
    for name, host in fleet.hosts.items():
        fleet.packages[name].append(
            {
                "name": "dtk",
                "kind": "archive",
                "file": str(path),
                "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
                "version": "26.04",
                "provides": "runtime",
                "directory": str(host.root / "opt"),
                "installed_version": {"file": "/opt/dtk/.info/version"},
            }
        )


LOCK = {
    "run_id": "earlier",
    "user": "ann",
    "controller": "ctl",
    "controller_id": "ctl",
    "pid": 1,
    "pid_start": "1",
    "started": 1.0,
    "expires": 2.0,
    "host_boot_id": "",
}


def test_from_nothing_over_a_reboot_to_the_second_run_that_changes_nothing(fleet):
    """Two hosts get their driver one after the other, without leave to reboot; one goes on with it, and once more."""
    fleet.offer("toolkit", needs_reboot=False)
    fleet.offer("driver", behaviour="status2", needs_kernel_headers=True, free_mib=1)
    said = fleet.run(rc=2)
    # Toolkits wait for the driver.
    assert fleet.turns() == [["driver"], ["driver"]]
    for host in ("h1", "h2"):
        assert host + " must be rebooted for driver: REBOOT driver 25.5.1: installed; its installer asks for it" in said
        assert recap(said, host)["failed"] == 1
    assert "Set accelerator_reboot_allowed: true, or reboot it by hand; then run again" in said

    (fleet.tmp / "run").mkdir()
    (fleet.tmp / "run" / "lock.json").write_text(json.dumps(LOCK))
    fleet.run(limit="h1", accelerator_reboot_allowed=True)
    assert fleet.order()[2:] == ["h1 reboot", "h1 toolkit"]
    host = fleet.hosts["h1"]
    assert host.read("sys/module/vendor_drv/version") == "25.5.1\n"
    assert json.loads(host.read("etc/docker/daemon.json"))["runtimes"].keys() == {"vendor"}
    assert "default-runtime" not in json.loads(host.read("etc/docker/daemon.json"))
    # What was carried there is gone again, the journal stays.
    assert sorted(path.name for path in host.packages.iterdir() if path.suffix not in (".log", ".status", ".pid")) == ["journal.json"]
    assert {name: entry["status"] for name, entry in host.journal().items()} == {"driver": "installed", "toolkit": "installed"}
    # The lock of a run does not survive a reboot, so it is taken again.
    assert json.loads((fleet.tmp / "run" / "lock.json").read_text())["run_id"] != LOCK["run_id"]

    assert recap(fleet.run(limit="h1"), "h1")["changed"] == 0
    assert len(fleet.order()) == 4


def test_a_dry_run_tells_and_touches_nothing(fleet):
    fleet.offer("toolkit")
    fleet.offer("driver")
    before = listing(fleet.hosts["h1"].root)
    said = fleet.run("--check", "--diff", limit="h1")
    assert "INSTALL driver 25.5.1: not installed" in said and "+driver 25.5.1, live 25.5.1" in said and "+toolkit 25.5.1" in said
    assert recap(said, "h1")["changed"] == 1
    assert listing(fleet.hosts["h1"].root) == before and fleet.order() == []


@pytest.mark.long
def test_a_whole_set_comes_in_its_order(fleet):
    """Driver, firmware, an archive and a toolkit, on two hosts, each with its reboot, in one run."""
    fleet.offer("toolkit", needs_reboot=False)
    archive(fleet)
    fleet.offer("firmware", "7.8")
    fleet.offer("driver", behaviour="status2")
    fleet.run(accelerator_reboot_allowed=True)
    assert fleet.turns() == [["driver", "firmware", "reboot", "toolkit"]] * 2
    for host in fleet.hosts.values():
        assert host.read("opt/dtk/.info/version") == "26.04\n"
        assert {entry["status"] for entry in host.journal().values()} == {"installed"} and len(host.journal()) == 4
    said = fleet.run(accelerator_reboot_allowed=True)
    assert {recap(said, host)["changed"] for host in ("h1", "h2")} == {0}


@pytest.mark.long
def test_a_failure_on_one_host_spares_the_others(fleet):
    fleet.offer("driver", behaviour="headers")
    said = fleet.run(rc=2)
    assert fleet.turns() == [["driver"]]
    assert "the kernel module could not be built" in said and "linux-headers-" + installers.KERNEL in said
    # The next run says so before it tries again, and the right package puts it right.
    fleet.packages = {name: [] for name in fleet.hosts}
    fleet.offer("driver")
    said = fleet.run()
    assert "RESUME driver 25.5.1: the last attempt failed" in said
    assert sorted(fleet.order()[1:]) == ["h1 driver", "h2 driver"]
    assert {recap(said, host)["changed"] >= 1 for host in ("h1", "h2")} == {True}


def test_wrong_bytes_anywhere_touch_nothing(fleet):
    fleet.offer("driver")
    fleet.offer("toolkit")
    pinned = fleet.packages["h1"][1]["sha256"]
    fleet.packages["h1"][1]["sha256"] = "0" * 64
    fleet.offer("firmware")
    fleet.packages["h1"][2].update(on_host=True, file=str(fleet.tmp / "none.run"))
    before = listing(fleet.hosts["h1"].root)
    said = fleet.run(limit="h1", rc=2)
    file = fleet.packages["h1"][1]["file"]
    assert "h1: {0} on the controller has sha256 {1}, pinned is {2}".format(file, pinned, "0" * 64) in said
    assert "correct toolkit in accelerator_packages. Nothing was installed" in said
    assert "h1: {0}/none.run on the host is not there; fetch it again, or correct firmware".format(fleet.tmp) in said
    assert fleet.order() == [] and listing(fleet.hosts["h1"].root) == before


@pytest.mark.long
def test_a_run_that_is_killed_is_gone_on_with(fleet):
    fleet.offer("driver", behaviour="slow")
    host = fleet.hosts["h1"]
    process = fleet.start(limit="h1")
    deadline = time.monotonic() + 90
    while not host.read("waits"):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    # The run on the controller and the module on the host; the installer has a session of its own.
    worker = (host.packages / "driver.status.pid").read_text().strip()
    module = int(Path("/proc", worker, "stat").read_text().rpartition(")")[2].split()[1])
    assert module > 1
    os.killpg(process.pid, signal.SIGKILL)
    os.kill(module, signal.SIGKILL)
    process.communicate()
    assert host.journal()["driver"]["status"] == "started"
    process = fleet.start(limit="h1")
    host.write("go", "")
    said = re.sub(r"\s+", " ", process.communicate()[0])
    assert process.returncode == 0, said
    assert "WAIT driver 25.5.1: an installer of an earlier run" in said
    assert fleet.order() == ["h1 driver"] and host.version("driver") == "25.5.1"


def test_a_host_that_serves_is_left_alone(fleet):
    fleet.offer("driver")
    with fleet.hosts["h1"].engine(["ironserve-c0", "ironserve-c3"]):
        said = fleet.run(rc=2)
    assert "h1: nothing was installed: REFUSE driver 25.5.1: to install (not installed), but " in said
    assert "this collection's replicas run here (ironserve-c0, ironserve-c3); drain them from the gateway and stop them" in said
    assert fleet.order() == []


@pytest.mark.long
def test_the_machine_this_runs_on_is_not_rebooted(fleet):
    fleet.offer("driver", behaviour="status2")
    said = fleet.run(limit="h1", rc=2, accelerator_reboot_allowed=True, ansible_connection="local")
    assert "h1 is the machine this runs on, and must be rebooted for driver" in said
    assert fleet.order() == ["h1 driver"]
    # Rebooted by hand, it goes on.
    fleet.hosts["h1"].boot()
    said = fleet.run(limit="h1", ansible_connection="local")
    assert recap(said, "h1")["changed"] == 0


@pytest.mark.long
def test_a_driver_that_does_not_come_up_is_no_reason_to_reboot_again(fleet):
    fleet.offer("driver", behaviour="status2", live_version={"file": "/run/driver"})
    said = fleet.run(limit="h1", rc=2, accelerator_reboot_allowed=True)
    assert "h1 was rebooted, and not everything runs as pinned" in said and "/run/driver says none" in said
    said = fleet.run(limit="h1", rc=2, accelerator_reboot_allowed=True)
    assert "nothing was installed: REFUSE driver 25.5.1: on the disk, and the host was restarted since" in said
    assert fleet.order() == ["h1 driver", "h1 reboot"]


WHOLE = """---
- name: Plan
  hosts: all
  gather_facts: false
  roles:
    - role: ironserve.llm.catalog
    - role: ironserve.llm.accelerator
      vars:
        accelerator_source: recorded
        accelerator_recorded: {cards: [{id: x}], device_nodes: {}}
"""


def test_planning_installs_nothing_and_the_options_are_what_the_specs_say(fleet):
    fleet.offer(
        "driver", needs_reboot=True, reboot_status=[2], free_paths=["/usr/local"], timeout_s=10, complete={"file": "/a", "pattern": "b"}
    )
    said = fleet.run(limit="h1", play=WHOLE)
    assert fleet.order() == [] and recap(said, "h1")["changed"] == 0


@pytest.mark.parametrize("name", ["plan", "preflight"])
def test_the_playbooks_that_only_look_install_nothing(name):
    def uses(node):
        """Every use of the role in a playbook, as a role or by include or import."""
        if isinstance(node, list):
            return [use for item in node for use in uses(item)]
        if not isinstance(node, dict):
            return []
        calls = [node] + [node[key] for key in node if key.endswith(("include_role", "import_role"))]
        here = [node] if any(call.get("role", call.get("name")) == "ironserve.llm.accelerator" for call in calls) else []
        return here + [use for value in node.values() for use in uses(value) if use is not node and not here]

    found = uses(yaml.safe_load((ROOT / "playbooks" / (name + ".yml")).read_text()))
    assert len(found) == 1 and found[0]["vars"]["accelerator_packages"] == []


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("dpkg-deb") or not Path("/usr/bin/python3").exists(), reason="no dpkg here")
def test_a_deb_goes_through_the_package_manager(fleet):
    """A real deb, by the real apt module and dpkg, on a host whose package manager keeps its records in a directory."""
    if subprocess.run(["/usr/bin/python3", "-c", "import apt"], capture_output=True, check=False).returncode:
        pytest.skip("the system's Python has no apt")
    host = fleet.hosts["h1"]
    tree = fleet.tmp / "deb"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "opt/vendor/toolkit").mkdir(parents=True)
    (tree / "opt/vendor/toolkit/tool").write_text("x\n")
    control = "Package: vendor-toolkit\nVersion: 1.17.8-1\nArchitecture: all\nMaintainer: nobody <nobody@example.invalid>\nDescription: stand-in\n"
    (tree / "DEBIAN/control").write_text(control)
    postinst = tree / "DEBIAN/postinst"
    postinst.write_text(
        '#!/bin/sh\nmkdir -p {0}/etc/docker\necho \'{{"default-runtime": "vendor"}}\' >{0}/etc/docker/daemon.json\n'.format(host.root)
    )
    postinst.chmod(0o755)
    path = fleet.tmp / "vendor-toolkit_1.17.8-1_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(tree), str(path)], check=True, capture_output=True)
    for name in ("var/lib/dpkg/status", "var/lib/dpkg/available", "var/lib/apt/lists/lock", "var/cache/apt/archives/partial/x"):
        host.write(name, "")
    for name in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists/partial"):
        (host.root / name).mkdir(parents=True, exist_ok=True)
    configuration = host.root / "apt.conf"
    configuration.write_text(
        'Dir "{0}/";\nDir::State::status "{0}/var/lib/dpkg/status";\nDPkg::Options {{"--root={0}"; "--force-script-chrootless";}};\n'.format(
            host.root
        )
    )
    fleet.packages["h1"] = [
        {
            "name": "vendor-toolkit",
            "kind": "deb",
            "file": str(path),
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "version": "1.17.8-1",
            "provides": "toolkit",
            "installed_version": {"package": "vendor-toolkit"},
        }
    ]
    play = PLAY + "  environment: {0}\n".format(
        json.dumps({"APT_CONFIG": str(configuration), "DPKG_ROOT": str(host.root), "DPKG_FORCE": "script-chrootless,not-root"})
    )
    values = {"ansible_python_interpreter": "/usr/bin/python3"}
    said = fleet.run(limit="h1", play=play, **values)
    assert recap(said, "h1")["changed"] >= 1
    assert host.read("opt/vendor/toolkit/tool") == "x\n" and json.loads(host.read("etc/docker/daemon.json")) == {}
    said = fleet.run(limit="h1", play=play, **values)
    assert recap(said, "h1")["changed"] == 0 and "NOTHING vendor-toolkit 1.17.8-1: installed" in said
    # Nothing of it came to this machine.
    assert "vendor-toolkit" not in Path("/var/lib/dpkg/status").read_text() and not Path("/opt/vendor").exists()
