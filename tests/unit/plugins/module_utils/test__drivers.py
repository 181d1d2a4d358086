# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is to be done about a package, from everything a host can show."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _drivers
from ansible_collections.ironserve.llm.plugins.module_utils._drivers import (
    FAILED,
    FOUND,
    INSTALL,
    INSTALLED,
    NOTHING,
    REBOOT,
    REFUSE,
    RESUME,
    STARTED,
    UPGRADE,
    WAIT,
    Reading,
    Seen,
)
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

SHA = "ab" * 32
DRIVER = {
    "name": "driver",
    "kind": "run",
    "file": "/srv/driver.run",
    "sha256": SHA,
    "version": "25.5.1",
    "provides": "driver",
    "installed_version": {"file": "/opt/driver/version.info", "pattern": r"^Version=(\S+)"},
    "live_version": {"module": ["drv"]},
    "complete": {"file": "/etc/record", "pattern": "complete"},
}
TOOLKIT = dict(DRIVER, name="toolkit", provides="toolkit", live_version=None, complete=None)
BOOT, EARLIER = "boot-2", "boot-1"


def package(base=None, **changes):
    return _drivers.read_packages([dict(base or DRIVER, **changes)])[0]


def seen(installed=None, live=None, entry=None, **changes):
    """A host; versions are texts, or an LLMError's words behind a question mark."""

    def reading(text):
        return Reading(None, text[1:]) if text and text.startswith("?") else Reading(text)

    values = {"complete": True, "boot_id": BOOT, "kernel": "5.10"}
    values.update(changes)
    return Seen(installed=reading(installed), live=reading(live), entry=entry or {}, **values)


def entry(status, **changes):
    return dict({"status": status, "version": "25.5.1", "at": "noon", "boot_id": BOOT, "kernel": "5.10", "cause": "it broke"}, **changes)


DUE = entry(INSTALLED, reboot_due=BOOT, why_reboot="its installer asks for it")
DONE = entry(INSTALLED, reboot_due="")
OVER = entry(INSTALLED, reboot_due=EARLIER, boot_id=EARLIER)


@pytest.mark.parametrize(
    ("host", "action", "words"),
    [
        (seen(), INSTALL, "not installed"),
        (seen("25.5.1", "25.5.1"), NOTHING, "installed and live"),
        (seen("25.5.1", "25.5.1", DONE), NOTHING, "installed and live"),
        (seen("25.5.1", "25.5.1", OVER), NOTHING, "installed and live"),
        # Vendors mix upper and lower case.
        (seen("25.5.1 ", "25.5.1"), NOTHING, "live"),
        (seen("23.0.7", "23.0.7"), UPGRADE, "23.0.7 is installed"),
        (seen("25.5.2", "25.5.2"), REFUSE, "25.5.1 is older than what is installed, 25.5.2; set allow_downgrade"),
        (seen("rock-5.7.1", "x"), REFUSE, "cannot be told to be newer"),
        # Installed by somebody, by us, and not yet live.
        (seen("25.5.1", "23.0.7"), REBOOT, "/sys/module/drv/version says 23.0.7"),
        (seen("25.5.1", None), REBOOT, "says none"),
        (seen("25.5.1", "?the tool hangs"), REBOOT, "the tool hangs"),
        (seen("25.5.1", "23.0.7", DUE), REBOOT, "its installer asks for it"),
        # A tool may read the new version from the disk: what was asked for still counts.
        (seen("25.5.1", "25.5.1", DUE), REBOOT, "its installer asks for it"),
        # The reboot came, the driver did not.
        (seen("25.5.1", "23.0.7", OVER), REFUSE, "restarted since, but /sys/module/drv/version says 23.0.7"),
        (seen("25.5.1", None, OVER), REFUSE, "restarted since"),
        (seen("25.5.1", None, entry(FOUND, reboot_due=EARLIER)), REFUSE, "restarted since"),
        # Another kernel: the module was built for the old one.
        (seen("25.5.1", None, OVER, kernel="6.6"), RESUME, "installed for kernel 5.10, but 6.6 runs"),
        (seen("25.5.1", "25.5.1", DONE, kernel="6.6"), NOTHING, "live"),
        # Half an installation, told by the vendor's own record.
        (seen("25.5.1", "25.5.1", complete=False), RESUME, "half-installed: 25.5.1 is on the disk, but /etc/record"),
        # Runs that were cut short.
        (seen("25.5.1", "25.5.1", entry(STARTED)), RESUME, "cut short here at noon; what it left cannot be trusted"),
        (seen("?torn", None, entry(STARTED)), RESUME, "says unreadable"),
        (seen(None, None, entry(STARTED), working=7), WAIT, "still works (pid 7, since noon)"),
        (seen(None, None, entry(STARTED), left_status=True), WAIT, "ended after that run was cut short"),
        # Failures.
        (seen("23.0.7", "23.0.7", entry(FAILED)), RESUME, "the last attempt failed at noon: it broke"),
        (seen("25.5.1", None, entry(FAILED)), RESUME, "failed"),
        (seen("25.5.1", "25.5.1", entry(FAILED), complete=False), RESUME, "failed"),
        # A person put it right since.
        (seen("25.5.1", "25.5.1", entry(FAILED)), NOTHING, "live"),
        (seen(None, None, DONE), INSTALL, "was installed at noon and is gone"),
        (seen(None, None, entry(INSTALLED, version="24.0")), INSTALL, "not installed"),
        (seen("?no version in it", None), REFUSE, "nobody can tell what is installed: no version in it"),
    ],
)
def test_what_is_to_be_done(host, action, words):
    decision = _drivers.decide(package(), host)
    assert (decision.action, words in decision.reason) == (action, True), decision.reason
    assert decision.line().startswith(action.upper()) and "25.5.1" in decision.line()


def test_what_is_not_alive_needs_no_life():
    assert _drivers.decide(package(TOOLKIT), dataclasses.replace(seen("25.5.1"), live=None, complete=None)).action == NOTHING
    asked = dataclasses.replace(seen("25.5.1", entry=DUE), live=None)
    assert _drivers.decide(package(TOOLKIT), asked).action == REBOOT
    assert _drivers.decide(package(TOOLKIT), dataclasses.replace(asked, boot_id="boot-3")).action == NOTHING


def test_one_that_needs_no_reboot_is_never_rebooted():
    plain = package(needs_reboot=False)
    assert _drivers.decide(plain, seen("25.5.1", "25.5.1", DUE)).action == NOTHING
    refused = _drivers.decide(plain, seen("25.5.1", "23.0.7"))
    assert refused.action == REFUSE and "needs_reboot is false" in refused.reason


def test_an_older_version_comes_only_when_it_is_allowed():
    assert _drivers.decide(package(allow_downgrade=True), seen("25.5.2", "25.5.2")).action == UPGRADE
    assert _drivers.decide(package(allow_downgrade=True), seen("rock-5.7.1", None)).action == UPGRADE


@pytest.mark.parametrize(
    ("host", "stopped"),
    [
        (seen(), True),
        (seen("23.0.7", "23.0.7"), True),
        (seen(None, None, entry(STARTED)), True),
        (seen("25.5.1", "23.0.7"), True),
        # What goes on anyhow is not stopped by it, and what needs nothing is not refused.
        (seen(None, None, entry(STARTED), working=7), False),
        (seen("25.5.1", "25.5.1"), False),
    ],
)
def test_nothing_is_touched_while_replicas_run(host, stopped):
    decision = _drivers.decide(package(), dataclasses.replace(host, held=["replicas run here: c0, c1"]))
    assert (decision.action == REFUSE and "replicas run here: c0, c1" in decision.reason) == stopped


def test_what_hinders_an_installation_hinders_no_reboot():
    hindered = {"obstacles": ["no headers", "no space"]}
    refused = _drivers.decide(package(), dataclasses.replace(seen(), **hindered))
    assert refused.action == REFUSE and refused.reason == "to install (not installed), but no headers; and no space"
    assert _drivers.decide(package(), dataclasses.replace(seen("25.5.1", "23.0.7"), **hindered)).action == REBOOT
    assert _drivers.decide(package(), dataclasses.replace(seen("25.5.1", "25.5.1"), **hindered)).action == NOTHING


def test_over_everything_a_host_can_show_only_proof_is_nothing():
    """Every combination: NOTHING is said only of a whole, pinned, live installation with no reboot due; and never both ways."""
    entries = [{}, DUE, DONE, OVER, entry(STARTED), entry(FAILED), entry(FOUND, reboot_due=EARLIER), entry(FOUND, reboot_due=BOOT)]
    readings = ["25.5.1", "23.0.7", None, "?odd"]
    counted = 0
    for installed, live, known, complete, working, left in itertools.product(
        readings, readings, entries, [True, False, None], [0, 7], [False, True]
    ):
        host = seen(installed, live, known, complete=complete, working=working, left_status=left)
        decision = _drivers.decide(package(), host)
        good = (
            installed == live == "25.5.1" and complete is not False and known.get("status") != STARTED and known.get("reboot_due") != BOOT
        )
        assert (decision.action == NOTHING) == good, (host, decision)
        if decision.action == REBOOT:
            assert installed == "25.5.1" and complete is not False and known.get("reboot_due") in (None, "", BOOT)
        counted += 1
    assert counted == 4 * 4 * 8 * 3 * 2 * 2


# ---- the packages as given


def test_they_come_in_the_order_they_need():
    given_order = [
        dict(TOOLKIT, name="b-toolkit"),
        dict(TOOLKIT, name="a-toolkit"),
        dict(TOOLKIT, name="firmware", provides="firmware"),
        dict(TOOLKIT, name="runtime", provides="runtime"),
        DRIVER,
    ]
    assert [item.name for item in _drivers.read_packages(given_order)] == ["driver", "firmware", "runtime", "b-toolkit", "a-toolkit"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sha256": ""}, "sha256 is missing"),
        ({"sha256": "abc"}, "sha256 must be 64 hex digits, not 'abc'"),
        ({"version": ""}, "version is missing"),
        ({"kind": "exe"}, "unknown kind 'exe'"),
        ({"provides": "drive"}, 'did you mean "driver"'),
        ({"name": "../etc"}, "a name is made of"),
        ({"installed_version": {}}, "installed_version is missing"),
        ({"installed_version": {"pattern": "x"}}, "exactly one of file, command, module and package, found none"),
        ({"installed_version": {"file": "/a", "package": "b"}}, "found file, package"),
        ({"installed_version": {"file": "/a", "pattern": "("}}, "no regular expression"),
        ({"installed_version": {"file": "/a", "pattern": "(a)(b)"}}, "has 2 groups"),
        ({"live_version": None}, "a driver needs live_version"),
        ({"complete": {"file": "/a", "pattern": ""}}, "name a file and a pattern"),
        ({"kind": "archive"}, "needs the directory"),
        ({"needs_reboot": "perhaps"}, "must be auto, true or false, not 'perhaps'"),
    ],
)
def test_a_package_nobody_could_judge_is_refused(changes, words):
    with pytest.raises(LLMError) as caught:
        package(**changes)
    assert words in str(caught.value) and "accelerator_packages[0] (" in str(caught.value)


def test_a_name_is_there_once():
    with pytest.raises(LLMError, match="there twice"):
        _drivers.read_packages([DRIVER, dict(TOOLKIT, name="driver")])


def test_a_kernel_module_shows_what_runs():
    both = package(installed_version={"module": ["hycu", "hydcu"]}, live_version=None)
    assert both.live is both.installed and both.live.where == "/sys/module/hycu|hydcu/version"


def test_digests_are_compared_in_lower_case():
    assert package(sha256=SHA.upper()).sha256 == SHA


# ---- versions


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("25.5.1", "23.0.7", True),
        ("23.0.7", "25.5.1", False),
        ("25.5.10", "25.5.9", True),
        ("24.1.rc3", "24.1.RC2", True),
        ("24.1.0", "24.1.rc3", True),
        ("24.1.rc3", "24.1.0", False),
        ("24.1.rc2.2", "24.1.rc2", True),
        ("25.5.1", "25.5", True),
        ("25.5.rc1", "25.5", False),
        ("6.3.32-V1.6.0", "6.3.31-V1.5.0a", True),
        ("6.3.31-V1.5.0b", "6.3.31-V1.5.0a", True),
        ("rock-5.7.1-6.2.26-V1.5", "6.3.31-V1.5.0a", None),
        ("580.95.05", "580.9.5", True),
        ("7.8.0.6.201", "7.1.0.11.220", True),
        ("1.17.8-1", "1.17.8-1", None),
        ("1.0a", "1.0.2", None),
    ],
)
def test_which_version_is_newer(left, right, expected):
    assert _drivers.newer(left, right) is expected


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_numbers_are_ordered_as_numbers(left, right):
    texts = [".".join(str(number) for number in numbers) for numbers in (left, right)]
    assert _drivers.newer(*texts) is (None if left == right else left > right)


def reader(**values):
    return _drivers.Reader(**values)


def test_a_version_is_taken_from_a_text():
    board = "\tSoftware Version               : 25.5.1\n\tFirmware Version               : 7.8.0.6.201\n"
    assert _drivers.extract(board, reader(file="x", pattern=r"Firmware Version\s*:\s*(\S+)")) == "7.8.0.6.201"
    # Eight cards that agree have one version.
    assert _drivers.extract(board * 8, reader(file="x", pattern=r"Firmware Version\s*:\s*(\S+)")) == "7.8.0.6.201"
    assert _drivers.extract("\n  25.04.4 \nmore\n", reader(file="x")) == "25.04.4"
    assert _drivers.extract("driver 580.95.05", reader(file="x", pattern=r"\d+\.\d+\.\d+")) == "580.95.05"


@pytest.mark.parametrize(
    ("text", "pattern", "words"),
    [
        ("", "", "x: no version in it; it begins with ''"),
        ("Versio=1", r"^Version=(\S+)", "no version in it; it begins with 'Versio=1'"),
        ("V: 1\nV: 2", r"V: (\d)", "several versions in it: 1, 2"),
    ],
)
def test_a_text_without_one_version_is_unknown(text, pattern, words):
    with pytest.raises(UnknownOutput) as caught:
        _drivers.extract(text, reader(file="x", pattern=pattern))
    assert words in str(caught.value)


# ---- what installers say


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[INFO]\x1b[32mDriver package installed successfully! \x1b[0m\x1b[31mReboot needed for installation/upgrade to take effect! \x1b[0m",
            True,
        ),
        ("Please reboot the system to finish the installation.", True),
        ("A reboot is required.", True),
        ("[WARNING]Do not power off or restart the system during the installation/upgrade", False),
        ("Driver package installed successfully! The new version takes effect immediately.", False),
        ("please reboot daemon and container engine to take effect", False),
        (
            "Driver package uninstalled successfully! Reboot needed for uninstallation to take effect!\nThe new version takes effect immediately.",
            False,
        ),
        ("The new version takes effect immediately.\nReboot needed", True),
        ("", False),
    ],
)
def test_an_installer_asks_for_a_reboot(text, expected):
    assert _drivers.says_reboot(text) is expected


@pytest.mark.parametrize(
    ("text", "cause", "fix"),
    [
        ("cp: error writing 'x': No space left on device", "the disk is full", "/usr/local (3 MiB free now)"),
        ("[ERROR]free space only 100M, cannot install driver package (greater than 300M)", "the disk is full", "free space"),
        ("ERROR: Unable to find the kernel source tree for the currently running kernel.", "could not be built", "linux-headers-5.10"),
        ("[WARNING]rebuild ko has something wrong, detail in /var/log/x", "could not be built", "kernel-devel-5.10"),
        ("[ERROR]ERR_NO:0x0091;ERR_DES:HwHiAiUser not exists! Please add HwHiAiUser", "an account", "make the account"),
        ("rmmod: ERROR: Module hycu is in use", "still uses the old driver", "stop what uses"),
        ("ERR_NO:0x0094;ERR_DES:There is already a process being executed", "another installation", "wait"),
        ("Error in MD5 checksums: a is different from b", "own check of its content", "fetch the package again"),
        ("something new", "", ""),
    ],
)
def test_a_failure_has_a_cause_and_a_remedy(text, cause, fix):
    found = _drivers.diagnose("before\n" + text + "\nafter", "/usr/local", 3, "5.10")
    assert cause in found[0] and fix in found[1] and bool(found[0]) == bool(cause)


@pytest.mark.parametrize(
    ("rc", "words"), [(1, "ended with status 1"), (137, "killed by signal 9"), (-15, "killed by signal 15"), (None, "left no exit status")]
)
def test_an_exit_status_in_words(rc, words):
    assert words in _drivers.status_text(rc)


def test_the_tail_is_short_and_plain():
    lines = _drivers.tail("".join("line {0}\r\n\n".format(number) for number in range(50)) + "\x1b[31m" + "x" * 1000)
    assert lines[0] == "line 31" and lines[-1] == "x" * 300 and len(lines) == 20


# ---- the container engine


def test_a_toolkit_stays_registered_and_becomes_no_default():
    text = '{"default-runtime": "vendor", "runtimes": {"vendor": {"path": "/x"}}, "log-level": "info"}'
    kept = json.loads(_drivers.keep_engine_default("", text, "d"))
    assert kept == {"runtimes": {"vendor": {"path": "/x"}}, "log-level": "info"}
    assert json.loads(_drivers.keep_engine_default("kata", text, "d"))["default-runtime"] == "kata"
    # One that was removed comes back, one that is as it was is left alone.
    assert json.loads(_drivers.keep_engine_default("kata", "{}", "d")) == {"default-runtime": "kata"}
    assert _drivers.keep_engine_default("vendor", text, "d") is None
    assert _drivers.keep_engine_default("", None, "d") is None


@pytest.mark.parametrize("text", ["{", "[]", '"x"'])
def test_a_broken_configuration_is_named(text):
    with pytest.raises(UnknownOutput, match="daemon.json: not "):
        _drivers.engine_default(text, "/etc/docker/daemon.json")


# ---- the journal


def test_the_journal_comes_back_as_it_was():
    entries = {"driver": DUE, "toolkit": entry(STARTED)}
    assert _drivers.parse_journal(_drivers.render_journal(entries), "j") == entries
    assert _drivers.parse_journal(None, "j") == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 2, "packages": {}}', '{"format": 1, "packages": {"a": {"status": "new"}}}', "null"]
)
def test_a_journal_of_somebody_else_is_an_error(text):
    with pytest.raises(LLMError, match="/j/journal.json: not a journal"):
        _drivers.parse_journal(text, "/j/journal.json")


@given(st.text(max_size=200))
def test_noise_is_no_journal(text):
    try:
        assert isinstance(_drivers.parse_journal(text, "j"), dict)
    except LLMError:
        pass
