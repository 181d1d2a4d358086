# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Vendor packages that really run on a host played from a directory, and what a killed run, a full disk or a reboot leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from unit.plugins.played import installers

from ansible_collections.ironserve.llm.plugins.module_utils import _drivers, _installer, _lock, _run
from ansible_collections.ironserve.llm.plugins.module_utils._drivers import Reader, Reading
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

ROOT = Path(__file__).resolve().parents[4]
PINNED = "25.5.1"


@pytest.fixture
def host(tmp_path):
    played = installers.Host(tmp_path / "root")
    yield played
    # No test may leave an installer behind.
    for pid_file in played.packages.glob("*.pid"):
        try:
            os.killpg(int(pid_file.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass


def site_of(host, **changes) -> _installer.Site:
    return _installer.Site(Vendor(root=str(host.root)), str(host.packages), **dict({"grace_s": 1.0}, **changes))


def package_of(entry) -> _drivers.Package:
    return _drivers.read_packages([entry])[0]


def until(condition, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def action(host, package) -> str:
    return site_of(host).decide(package).action


def old_driver(host, version: str = "23.0.7") -> None:
    """The host runs an older driver."""
    host.write("opt/vendor/driver/version.info", "Version={0}\n".format(version))
    host.boot()


# ---- installed, already there, needs reboot


def test_it_is_installed_and_live_at_once(host):
    package = package_of(host.offer())
    assert action(host, package) == "install"
    said = site_of(host).install(package)
    assert "package installed successfully! The new version takes effect immediately." in said[-1]
    assert host.version("driver") == PINNED and host.read("sys/module/vendor_drv/version") == PINNED + "\n"
    assert host.runs() == ["driver 25.5.1 began --full --quiet", "driver 25.5.1 ended"]
    entry = host.journal()["driver"]
    assert (entry["status"], entry["version"], entry["before"], entry["rc"], entry["reboot_due"]) == ("installed", PINNED, "none", 0, "")
    # The copy has done its work, and the second time nothing runs.
    assert not (host.packages / "vendor-driver_25.5.1.run").exists()
    assert action(host, package) == "nothing"
    assert site_of(host).install(package) == []
    assert len(host.runs()) == 2


def test_what_somebody_installed_is_left_alone(host):
    package = package_of(host.offer())
    old_driver(host, PINNED)
    assert action(host, package) == "nothing"
    assert site_of(host).install(package) == []
    assert host.runs() == [] and not (host.packages / "journal.json").exists()


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("status2", "its installer asks for it"),
        ("text", "its installer asks for it"),
        # It says nothing at all: what runs tells.
        ("silent", "/sys/module/vendor_drv/version says 23.0.7"),
    ],
)
def test_it_waits_for_a_reboot_and_is_live_after_it(host, behaviour, why):
    old_driver(host)
    package = package_of(host.offer(behaviour=behaviour))
    assert action(host, package) == "upgrade"
    site_of(host).install(package)
    for _again in range(2):
        decision = site_of(host).decide(package)
        assert (decision.action, decision.installed, decision.live) == ("reboot", PINNED, "23.0.7")
        assert why in decision.reason
    assert site_of(host).install(package) == []
    host.boot()
    assert action(host, package) == "nothing"
    assert host.runs() == ["driver 25.5.1 began --full --quiet", "driver 25.5.1 ended"]


def test_a_driver_that_does_not_come_up_is_told_and_not_rebooted_again(host):
    old_driver(host)
    package = package_of(host.offer(behaviour="status2"))
    site_of(host).install(package)
    host.boot()
    (host.root / "sys/module/vendor_drv/version").unlink()
    (host.root / "sys/module/vendor_drv").rmdir()
    decision = site_of(host).decide(package)
    assert decision.action == "refuse"
    assert "restarted since, but /sys/module/vendor_drv/version says none; see /var/log/vendor/install.log" in decision.reason


def test_a_driver_somebody_else_installed_is_rebooted_once(host):
    old_driver(host)
    host.write("opt/vendor/driver/version.info", "Version=25.5.1\n")
    package = package_of(host.offer())
    site = site_of(host)
    assert site.decide(package).action == "reboot"
    assert [decision.name for decision in site.expect_reboot([package])] == ["driver"]
    assert action(host, package) == "reboot"
    host.boot()
    host.write("sys/module/vendor_drv/version", "23.0.7\n")
    assert action(host, package) == "refuse"
    host.boot()
    assert action(host, package) == "nothing"


def test_no_reboot_is_expected_where_none_is_due(host):
    package = package_of(host.offer())
    assert site_of(host).expect_reboot([package]) == []
    assert not (host.packages / "journal.json").exists()


def test_upgrade_and_first_installation_have_arguments_of_their_own(host):
    old_driver(host)
    site_of(host).install(package_of(host.offer(upgrade_arguments=["--upgrade", "--quiet"])))
    site_of(host).install(package_of(host.offer("firmware", "7.8", upgrade_arguments=["--upgrade"])))
    assert [line for line in host.runs() if "began" in line] == [
        "driver 25.5.1 began --upgrade --quiet",
        "firmware 7.8 began --full --quiet",
    ]


def test_another_kernel_gets_the_driver_again(host):
    package = package_of(host.offer())
    site_of(host).install(package)
    host.write("proc/sys/kernel/osrelease", "6.6.0\n")
    host.boot()
    (host.root / "sys/module/vendor_drv/version").unlink()
    (host.root / "sys/module/vendor_drv").rmdir()
    decision = site_of(host).decide(package)
    assert decision.action == "resume" and "installed for kernel {0}, but 6.6.0 runs".format(installers.KERNEL) in decision.reason


# ---- failures, told truthfully


def failure(host, package, **changes) -> str:
    with pytest.raises(LLMError) as caught:
        site_of(host, **changes).install(package)
    assert host.journal()[package.name]["status"] == "failed"
    return str(caught.value)


def test_a_full_disk_is_named_with_what_is_left(host):
    old_driver(host)
    package = package_of(host.offer(behaviour="full"))
    message = failure(host, package)
    assert message.startswith("driver: the installer ended with status 1: the disk is full. Before, 23.0.7 was installed; now none.")
    assert "Fix: free space under /usr/local (" in message and "No space left on device" in message
    # Its own log has only what this run added.
    assert "Its log (/var/log/vendor/install.log):\n[Vendor] [INFO]Start time\n" in message
    decision = site_of(host).decide(package)
    assert decision.action == "resume" and "the disk is full" in decision.reason and decision.installed == "none"


def test_the_log_shown_is_of_this_run(host):
    host.write("var/log/vendor/install.log", "[Vendor] what was long ago\n")
    message = failure(host, package_of(host.offer(behaviour="headers")))
    assert "long ago" not in message and "[Vendor] [ERROR]driver installation failed" in message
    # A log that was begun anew is shown whole.
    site = site_of(host)
    package = package_of(host.offer(behaviour="headers"))
    assert site.own_log(package, {"log_from": 10**9}).startswith("[Vendor] what was long ago")


def test_wrong_headers_found_by_the_installer_name_the_package_to_install(host):
    old_driver(host)
    message = failure(host, package_of(host.offer(behaviour="headers")))
    assert "the kernel module could not be built. As before, 23.0.7 is installed." in message
    assert "linux-headers-" + installers.KERNEL in message


def test_an_account_the_vendor_wants_is_named(host):
    message = failure(host, package_of(host.offer(behaviour="rejects")))
    assert "an account the package wants is missing. Nothing is installed, as before." in message and "HwCardUser" in message


def test_a_status_of_0_is_not_believed(host):
    message = failure(host, package_of(host.offer(behaviour="liar")))
    assert "claims to be done, but /opt/vendor/driver/version.info says 0.0.1" in message
    assert "see whether the file is the version that is pinned, 25.5.1" in message


def test_half_an_installation_is_told(host):
    whole = {"file": "/etc/vendor_install.info", "pattern": "^driver_Status=complete$"}
    package = package_of(host.offer(behaviour="half", complete=whole))
    message = failure(host, package)
    assert "claims to be done, but /etc/vendor_install.info does not say that the installation is whole" in message
    assert "Half-installed: /opt/vendor/driver/version.info says 25.5.1" in message
    assert action(host, package) == "resume"
    # The good one of the same version puts it right.
    package = package_of(host.offer(complete=whole))
    site_of(host).install(package)
    assert action(host, package) == "nothing"


def test_a_failure_that_leaves_the_pinned_version_is_not_trusted(host):
    package = package_of(host.offer(behaviour="noisy"))
    message = failure(host, package)
    assert message.startswith("driver: the installer ended with status 3. /opt/vendor/driver/version.info says 25.5.1 all the same")
    assert "which is not to be trusted. See what it said" in message
    assert action(host, package) == "resume"


def test_one_that_needs_no_reboot_and_is_not_live_failed(host):
    old_driver(host)
    message = failure(host, package_of(host.offer(behaviour="silent", needs_reboot=False)))
    assert "claims to be done and needs no reboot, but /sys/module/vendor_drv/version says 23.0.7" in message


def test_wrong_bytes_are_never_run(host):
    entry = host.offer()
    path = Path(entry["file"])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(LLMError) as caught:
        site_of(host).install(package_of(entry))
    assert str(path) in str(caught.value) and "pinned is " + entry["sha256"] in str(caught.value)
    assert host.runs() == [] and not (host.packages / "journal.json").exists()
    path.unlink()
    with pytest.raises(LLMError, match="cannot be read: No such file"):
        site_of(host).install(package_of(entry))


def test_a_hang_ends_in_time_with_everything_it_started(host):
    package = package_of(host.offer(behaviour="hang", timeout_s=1))
    begin = time.monotonic()
    message = failure(host, package)
    assert time.monotonic() - begin < 15
    assert "the installer did not end within 1 s and was stopped. Nothing is installed, as before. Fix: see what it waits for" in message
    assert not _lock.process_start(int(host.read("waits")))
    assert "did not end within 1 s" in site_of(host).decide(package).reason


def test_a_question_nobody_answers_ends_too(host):
    package = package_of(host.offer(behaviour="asks", arguments=["--full"]))
    message = failure(host, package, flood_bytes=100_000)
    assert "it asks what nobody answers" in message and "--quiet, --silent" in message and "do you want to continue? [y/n]" in message
    site_of(host).install(package_of(host.offer(behaviour="asks")))
    assert host.version("driver") == PINNED


# ---- killed in the middle


def test_a_killed_installer_is_told_and_installed_anew(host):
    old_driver(host)
    package = package_of(host.offer(behaviour="slow"))
    errors: list[str] = []

    def run() -> None:
        try:
            site_of(host).install(package)
        except LLMError as exc:
            errors.append(str(exc))

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: host.read("waits"), "the installer does not come to its middle")
    assert host.version("driver") == "" and host.journal()["driver"]["status"] == "started"
    os.killpg(int((host.packages / "driver.status.pid").read_text()), signal.SIGKILL)
    thread.join()
    assert "the installer left no exit status: it was killed. Before, 23.0.7 was installed; now none." in errors[0]
    assert action(host, package) == "resume"
    host.write("go", "")
    site_of(host).install(package)
    assert action(host, package) == "nothing"
    assert host.runs()[-1] == "driver 25.5.1 ended" and len(host.runs()) == 3


def test_one_process_of_the_installer_is_killed(host):
    package = package_of(host.offer(behaviour="slow"))
    thread = threading.Thread(target=lambda: pytest.raises(LLMError, site_of(host).install, package))
    thread.start()
    until(lambda: host.read("waits"), "the installer does not come to its middle")
    os.kill(int(host.read("waits")), signal.SIGKILL)
    thread.join()
    assert "was killed by signal 9" in host.journal()["driver"]["cause"]


def test_a_status_that_cannot_be_written_is_known_to_its_parent(host):
    """The disk became full meanwhile."""
    package = package_of(host.offer(behaviour="slow"))
    thread = threading.Thread(target=site_of(host).install, args=(package,))
    thread.start()
    until(lambda: host.read("waits"), "the installer does not come to its middle")
    (host.packages / "driver.status.new").mkdir()
    host.write("go", "")
    thread.join()
    assert not (host.packages / "driver.status").exists()
    assert action(host, package) == "nothing" and host.journal()["driver"]["rc"] == 0


def start_run(host, entry) -> subprocess.Popen:
    """An installation in a process of its own, as a module is one."""
    source = (
        "import json, sys\n"
        "sys.path.insert(0, {0!r})\n"
        "from ansible_collections.ironserve.llm.plugins.module_utils import _drivers, _installer, _vendor\n"
        "site = _installer.Site(_vendor.Vendor(root={1!r}), {2!r})\n"
        "site.install(_drivers.read_packages(json.loads(sys.argv[1]))[0])\n"
    ).format(str(ROOT / "collections"), str(host.root), str(host.packages))
    return subprocess.Popen([sys.executable, "-c", source, json.dumps([entry])])


def test_the_next_run_waits_for_the_installer_of_a_killed_one(host):
    entry = host.offer(behaviour="slow")
    package = package_of(entry)
    run = start_run(host, entry)
    until(lambda: host.read("waits"), "the installer does not come to its middle")
    run.kill()
    run.wait()
    decision = site_of(host).decide(package)
    assert decision.action == "wait"
    assert "still works (pid {0}, ".format((host.packages / "driver.status.pid").read_text().strip()) in decision.reason
    host.write("go", "")
    assert "takes effect immediately" in site_of(host).install(package)[-1]
    assert host.runs() == ["driver 25.5.1 began --full --quiet", "driver 25.5.1 ended"]
    assert action(host, package) == "nothing"


def test_the_next_run_judges_an_installer_that_ended_meanwhile(host):
    old_driver(host)
    entry = host.offer(behaviour="slow")
    package = package_of(entry)
    run = start_run(host, entry)
    until(lambda: host.read("waits"), "the installer does not come to its middle")
    run.kill()
    run.wait()
    host.write("go", "")
    until(lambda: not _run.alive(str(host.packages / "driver.status")), "the installer does not end")
    decision = site_of(host).decide(package)
    assert decision.action == "wait" and "ended after that run was cut short" in decision.reason
    site_of(host).install(package)
    assert action(host, package) == "nothing" and len(host.runs()) == 2


def test_the_time_limit_of_an_installer_counts_from_its_own_beginning(host):
    entry = host.offer(behaviour="slow")
    run = start_run(host, entry)
    until(lambda: host.read("waits"), "the installer does not come to its middle")
    run.kill()
    run.wait()
    package = package_of(entry)
    site_of(host).record(package, dict(host.journal()["driver"], began=time.time() - 900))
    begin = time.monotonic()
    assert "did not end within 900 s" in failure(host, package, timeout_s=900)
    assert time.monotonic() - begin < 60 and not _run.alive(str(host.packages / "driver.status"))


def test_a_power_cut_in_the_middle_means_again(host):
    entry = host.offer(behaviour="slow")
    package = package_of(entry)
    run = start_run(host, entry)
    until(lambda: host.read("waits"), "the installer does not come to its middle")
    run.kill()
    run.wait()
    os.killpg(int((host.packages / "driver.status.pid").read_text()), signal.SIGKILL)
    until(lambda: not _run.alive(str(host.packages / "driver.status")), "the installer lives")
    host.boot()
    decision = site_of(host).decide(package)
    assert decision.action == "resume" and "a run was cut short here" in decision.reason


def test_a_reboot_between_installer_and_judgement_is_the_reboot(host):
    """The installer ended and asked for a reboot, the run was killed, the host was restarted: no second reboot."""
    old_driver(host)
    package = package_of(host.offer(behaviour="status2"))
    site_of(host).install(package)
    entry = host.journal()["driver"]
    site_of(host).record(package, dict(entry, status="started"))
    assert action(host, package) == "wait"
    host.boot()
    site_of(host).install(package)
    assert action(host, package) == "nothing"


def test_an_older_exit_status_is_not_taken_for_a_new_one(host):
    """Killed after the journal was written and before the installer was started."""
    package = package_of(host.offer())
    site_of(host).install(package)
    (host.root / "opt/vendor/driver/version.info").unlink()
    package = package_of(host.offer())
    site_of(host).begin(package, "install")
    assert action(host, package) == "resume"


# ---- what stands in the way


def test_replicas_that_run_are_named_and_nothing_is_touched(host):
    package = package_of(host.offer())
    with host.engine(["ironserve-c1", "ironserve-c0"]) as asked:
        decision = site_of(host).decide(package)
    assert decision.action == "refuse"
    assert "this collection's replicas run here (ironserve-c0, ironserve-c1); drain them from the gateway and stop them" in decision.reason
    assert asked == ["/containers/json?filters=%7B%22label%22%3A%20%5B%22ironserve.replica%22%5D%7D"]
    with host.engine([]):
        assert action(host, package) == "install"
    with host.engine([], status=500):
        assert "does not say whether replicas run (/var/run/docker.sock: " in site_of(host).decide(package).reason
    host.write("var/run/docker.sock", "")
    decision = site_of(host).decide(package)
    assert decision.action == "refuse" and "does not say whether replicas run" in decision.reason


def test_headers_of_another_kernel_are_found_before_anything_runs(host):
    package = package_of(host.offer(needs_kernel_headers=True))
    assert action(host, package) == "install"
    host.headers("5.10.0-60.18.0.50")
    reason = site_of(host).decide(package).reason
    assert "are for kernel 5.10.0-60.18.0.50, and {0} runs; install kernel-devel-{0}".format(installers.KERNEL) in reason
    build = host.root / "lib/modules" / installers.KERNEL / "build"
    (build / "include/config/kernel.release").unlink()
    assert "do not say which kernel they are for" in site_of(host).decide(package).reason
    host.write(
        "lib/modules/{0}/build/include/generated/utsrelease.h".format(installers.KERNEL),
        '#define UTS_RELEASE "{0}"\n'.format(installers.KERNEL),
    )
    assert action(host, package) == "install"
    host.write("proc/sys/kernel/osrelease", "6.6.0\n")
    assert "no headers of the running kernel (/lib/modules/6.6.0/build is not there)" in site_of(host).decide(package).reason


def test_space_is_looked_at_before_anything_runs(host):
    free = os.statvfs(host.root).f_bavail * os.statvfs(host.root).f_frsize // 2**20
    package = package_of(host.offer(free_mib=free + 100_000, free_paths=["/opt/not/yet/there"]))
    reason = site_of(host).decide(package).reason
    assert "/opt/not/yet/there has " in reason and " {0} MiB needed".format(free + 100_000) in reason
    assert action(host, package_of(host.offer(free_mib=1))) == "install"


def test_without_the_kernels_own_word_nothing_is_decided(host):
    package = package_of(host.offer())
    host.write("proc/sys/kernel/random/boot_id", "")
    with pytest.raises(LLMError, match="/proc/sys/kernel/random/boot_id: not there or empty"):
        site_of(host).decide(package)


# ---- toolkits and the container engine


def engine_configuration(host):
    return json.loads(host.read("etc/docker/daemon.json"))


@pytest.mark.parametrize("before", [None, {"log-level": "warn"}, {"default-runtime": "kata"}])
def test_a_toolkit_becomes_no_default_runtime(host, before):
    if before is not None:
        host.write("etc/docker/daemon.json", json.dumps(before))
        os.chmod(host.root / "etc/docker/daemon.json", 0o640)
    package = package_of(host.offer("toolkit"))
    site_of(host).install(package)
    found = engine_configuration(host)
    assert found["runtimes"] == {"vendor": {"path": "/opt/vendor/runtime"}}
    assert found.get("default-runtime") == (before or {}).get("default-runtime")
    assert action(host, package) == "nothing"
    if before is not None:
        assert os.stat(host.root / "etc/docker/daemon.json").st_mode & 0o777 == 0o640


def test_a_toolkit_that_fails_becomes_none_either(host):
    message = failure(host, package_of(host.offer("toolkit", behaviour="breaks")))
    assert "ended with status 1" in message and "the hook cannot be registered" in message
    assert "default-runtime" not in engine_configuration(host)


def test_a_toolkit_that_was_cut_short_becomes_none_either(host):
    host.write("etc/docker/daemon.json", '{"default-runtime": "kata"}')
    package = package_of(host.offer("toolkit"))
    site_of(host).begin(package, "install")
    # The installer wrote its default, and then all was killed.
    host.write("etc/docker/daemon.json", '{"default-runtime": "vendor"}')
    assert action(host, package) == "resume"
    site_of(host).install(package)
    assert engine_configuration(host)["default-runtime"] == "kata"


def test_a_choice_of_the_users_own_stays(host):
    host.write("etc/docker/daemon.json", '{"default-runtime": "vendor"}')
    package = package_of(host.offer("toolkit"))
    site_of(host).install(package)
    assert engine_configuration(host)["default-runtime"] == "vendor"


def test_a_broken_engine_configuration_stops_a_toolkit_and_no_driver(host):
    host.write("etc/docker/daemon.json", "{,}")
    decision = site_of(host).decide(package_of(host.offer("toolkit")))
    assert decision.action == "refuse" and "/etc/docker/daemon.json: not JSON" in decision.reason
    assert action(host, package_of(host.offer())) == "install"


# ---- package managers do the work


def test_what_a_package_manager_does_is_begun_and_judged(host):
    entry = host.offer("toolkit", kind="deb")
    package = package_of(entry)
    site = site_of(host)
    with pytest.raises(LLMError, match="nothing was begun"):
        site.finish(package)
    site.begin(package, "install")
    assert action(host, package) == "resume"
    with pytest.raises(LLMError, match="toolkit: the installer claims to be done, but /opt/vendor/toolkit/version.info says none"):
        site.finish(package)
    site_of(host).begin(package, "install")
    host.write("opt/vendor/toolkit/version.info", "Version=25.5.1\n")
    host.write("etc/docker/daemon.json", '{"default-runtime": "vendor", "runtimes": {}}')
    site_of(host).finish(package)
    assert action(host, package) == "nothing" and engine_configuration(host) == {"runtimes": {}}


DPKG = """Package: libvendor
Status: install ok installed
Version: 9.9

Package: vendor-toolkit
Status: {0}
Version: 1.17.8-1

Package: vendor-toolkit-base
Status: install ok installed
Version: 2.0
"""


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("install ok installed", Reading("1.17.8-1")),
        ("deinstall ok config-files", Reading()),
        (
            "install ok half-configured",
            Reading(None, "dpkg says that vendor-toolkit is half-configured; run dpkg --configure -a, or reinstall it"),
        ),
    ],
)
def test_a_deb_is_read_from_the_package_managers_own_record(host, status, expected):
    host.write("var/lib/dpkg/status", DPKG.format(status))
    assert site_of(host).read(Reader(package="vendor-toolkit"), "deb") == expected
    assert site_of(host).read(Reader(package="vendor-toolkit")) == expected
    assert site_of(host).read(Reader(package="vendor"), "deb") == Reading()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('[ "$1 $2 $6" = "--root {root} vendor-toolkit" ] && echo 1.17.8-1', "1.17.8-1"),
        ('echo "package $6 is not installed"; exit 1', None),
        ('echo "error: cannot open Packages database"; exit 1', "?"),
    ],
)
def test_an_rpm_is_asked_for(host, tmp_path, monkeypatch, script, expected):
    tool = tmp_path / "bin" / "rpm"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n" + script.format(root=host.root) + "\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", "{0}:{1}".format(tool.parent, os.environ["PATH"]))
    found = site_of(host).read(Reader(package="vendor-toolkit"), "rpm")
    if expected == "?":
        assert found.value is None and "rpm -q vendor-toolkit ended with status 1 and said 'error: cannot open" in found.problem
    else:
        assert found == Reading(expected)


# ---- reading versions


def test_a_kernel_modules_version_is_the_running_one(host):
    site, reader = site_of(host), Reader(module=["hycu", "hydcu"])
    assert site.read(reader) == Reading()
    host.write("sys/module/hydcu/version", "6.2.26-V1.5\n")
    assert site.read(reader) == Reading("6.2.26-V1.5")
    host.write("sys/module/hycu/initstate", "live\n")
    assert "kernel module hycu is loaded and gives no version" in site.read(reader).problem


def test_a_command_that_is_not_there_means_nothing_and_one_that_fails_is_a_problem(host):
    site = site_of(host)
    assert site.read(Reader(command=["/usr/local/bin/npu-smi", "info"])) == Reading()
    assert site.read(Reader(command=["no-such-tool-of-anybody"])) == Reading()
    host.write(
        "usr/local/bin/npu-smi", "#!/bin/sh\n[ $# = 1 ] && echo \"Software Version : 25.5.1\" && exit 0\necho 'ret is -8005'; exit 187\n"
    )
    (host.root / "usr/local/bin/npu-smi").chmod(0o755)
    pattern = r"Software Version\s*:\s*(\S+)"
    assert site.read(Reader(command=["/usr/local/bin/npu-smi", "info"], pattern=pattern)) == Reading("25.5.1")
    failed = Reader(command=["/usr/local/bin/npu-smi", "info", "-m"], pattern=pattern)
    assert site.read(failed) == Reading(None, "/usr/local/bin/npu-smi info -m ended with status 187 and said 'ret is -8005'")
    failed.absent_status = [187]
    assert site.read(failed) == Reading()


def test_a_kernel_module_as_the_only_witness_is_helped_by_the_journal(host):
    """Before the reboot the module still shows the old version; the journal knows what was put on the disk."""
    old_driver(host)
    package = package_of(host.offer(behaviour="status2", installed_version={"module": ["vendor_drv"]}, live_version=None))
    site_of(host).install(package)
    decision = site_of(host).decide(package)
    assert (decision.action, decision.installed, decision.live) == ("reboot", PINNED, "23.0.7")
    host.boot()
    assert action(host, package) == "nothing"


# ---- the journal on the disk


def test_a_journal_that_is_none_stops_everything(host):
    package = package_of(host.offer())
    (host.packages / "journal.json").write_text("{}")
    with pytest.raises(LLMError, match="journal.json: not a journal of this collection"):
        site_of(host).install(package)
    (host.packages / "journal.json").write_bytes(b"\xff\xfe")
    with pytest.raises(LLMError, match="journal.json: cannot be read"):
        site_of(host).install(package)
    assert host.runs() == []


def test_files_are_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "journal.json"
    path.write_text("before")
    with pytest.raises(LLMError, match="cannot be written: No such file"):
        _installer.write_whole(str(tmp_path / "none" / "x"), "after")
    _installer.write_whole(str(path), "after")
    assert path.read_text() == "after" and os.listdir(tmp_path) == ["journal.json"]
