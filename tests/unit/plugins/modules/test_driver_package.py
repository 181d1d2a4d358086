# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module's own entry point, on a host played from a directory, with installers that really run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from unit.plugins.played import installers

from ansible_collections.ironserve.llm.plugins.module_utils import _lock
from ansible_collections.ironserve.llm.plugins.modules import driver_package


@pytest.fixture
def host(tmp_path):
    return installers.Host(tmp_path / "root")


@pytest.fixture
def call(run_module, host):
    def call(packages, state="planned", check_mode=False, **changes):
        arguments = {"packages": packages, "state": state, "directory": str(host.packages), "root": str(host.root)}
        return run_module(driver_package, dict(arguments, **changes), check_mode)

    return call


def actions(result):
    return {decision["name"]: decision["action"] for decision in result["decisions"]}


def listing(path: Path) -> dict[str, bytes]:
    return {str(item.relative_to(path)): item.read_bytes() for item in sorted(path.rglob("*")) if item.is_file()}


def test_the_plan_is_in_order_and_changes_nothing(call, host):
    host.write("opt/vendor/firmware/version.info", "Version=7.1\n")
    packages = [host.offer("toolkit"), host.offer("firmware", "7.8"), host.offer()]
    before = listing(host.root)
    result = call(packages)
    assert list(actions(result).items()) == [("driver", "install"), ("firmware", "upgrade"), ("toolkit", "install")]
    assert (result["changed"], result["refusals"], result["reboot"], result["said"]) == (False, [], [], [])
    assert result["lines"][1] == "UPGRADE  firmware                 7.8: 7.1 is installed"
    assert result["diff"]["before"] == "driver none, live none\nfirmware 7.1\ntoolkit none\n"
    assert result["diff"]["after"] == "driver 25.5.1, live 25.5.1\nfirmware 7.8\ntoolkit 25.5.1\n"
    assert result["journal"] == str(host.packages / "journal.json")
    assert listing(host.root) == before


def test_it_installs_once(call, host):
    packages = [host.offer()]
    result = call(packages, "installed", name="driver")
    assert result["changed"] is True and actions(result) == {"driver": "nothing"}
    assert "installed successfully" in result["said"][-1]
    assert result["diff"]["before"] == "driver none, live none\n"
    assert result["diff"]["after"] == "driver 25.5.1, live 25.5.1\n"
    before = listing(host.root)
    again = call(packages, "installed", name="driver")
    assert (again["changed"], again["said"]) == (False, [])
    assert again["diff"]["before"] == again["diff"]["after"]
    assert listing(host.root) == before


@pytest.mark.parametrize("state", ["installed", "begun", "ended", "rebooting"])
def test_a_dry_run_tells_and_touches_nothing(call, host, state):
    packages = [host.offer(kind="run" if state == "installed" else "deb")]
    before = listing(host.root)
    result = call(packages, state, check_mode=True, name="driver")
    assert result["changed"] is (state == "installed")
    assert actions(result) == {"driver": "install"} and "driver 25.5.1" in result["diff"]["after"]
    assert listing(host.root) == before and host.runs() == []


def test_the_diff_of_a_pending_reboot_is_what_is_there(call, host):
    host.write("opt/vendor/driver/version.info", "Version=23.0.7\n")
    host.boot()
    packages = [host.offer(behaviour="status2")]
    result = call(packages, "installed", name="driver")
    assert result["changed"] is True and result["reboot"] == ["driver"]
    assert result["diff"] == {
        "before_header": "packages",
        "after_header": "packages",
        "before": "driver 23.0.7, live 23.0.7\n",
        "after": "driver 25.5.1, live 23.0.7\n",
    }
    result = call(packages, "rebooting")
    assert (result["changed"], result["reboot"]) == (False, ["driver"])
    host.boot()
    assert actions(call(packages)) == {"driver": "nothing"}


def test_what_is_refused_fails_and_says_why(call, host):
    packages = [host.offer()]
    with host.engine(["ironserve-c0"]):
        planned = call(packages)
        assert "failed" not in planned and len(planned["refusals"]) == 1
        result = call(packages, "installed", name="driver")
    assert result["failed"] and "this collection's replicas run here (ironserve-c0)" in result["msg"]
    assert host.runs() == []


def test_a_failed_installer_fails_the_task_with_its_words(call, host):
    result = call([host.offer(behaviour="full")], "installed", name="driver")
    assert result["failed"] and "the disk is full" in result["msg"] and "No space left on device" in result["msg"]


def test_what_another_module_installs_is_begun_and_ended(call, host):
    packages = [host.offer("toolkit", kind="archive", directory="/opt/vendor/toolkit")]
    begun = call(packages, "begun", name="toolkit")
    assert begun["changed"] is False and actions(begun) == {"toolkit": "resume"}
    host.write("opt/vendor/toolkit/version.info", "Version=25.5.1\n")
    ended = call(packages, "ended", name="toolkit")
    assert ended["changed"] is False and actions(ended) == {"toolkit": "nothing"}
    # Begun where there is nothing to do: it stays as it is.
    assert actions(call(packages, "begun", name="toolkit")) == {"toolkit": "nothing"}


@pytest.mark.parametrize(
    ("state", "name", "words"),
    [
        ("installed", "drvier", "no package is called 'drvier': did you mean \"driver\"?"),
        ("begun", "driver", "state begun is not for packages of kind run"),
        ("ended", "driver", "state ended is not for packages of kind run"),
        ("installed", "debian", "state installed is not for packages of kind deb"),
        ("installed", None, "name"),
    ],
)
def test_a_call_that_means_nothing_is_refused(call, host, state, name, words):
    packages = [host.offer(), dict(host.offer("toolkit"), name="debian", kind="deb")]
    result = call(packages, state, **({"name": name} if name else {}))
    assert result["failed"] and words in result["msg"]
    assert host.runs() == []


def test_two_at_once_do_not_both_install(call, host):
    packages = [host.offer()]
    with _lock.guard(str(host.packages)):
        result = call(packages, "installed", name="driver")
    assert result["failed"] and "another process keeps it locked" in result["msg"] and host.runs() == []


def test_what_lies_there_is_roots_alone(call, host):
    packages = [host.offer(place=host.root / "offered")]
    host.packages.parent.mkdir(parents=True)
    result = call(packages, "installed", name="driver")
    # The copy is made by the role; the module finds none.
    assert result["failed"] and "vendor-driver_25.5.1.run: cannot be read" in result["msg"]
    assert os.stat(host.packages).st_mode & 0o777 == 0o700
