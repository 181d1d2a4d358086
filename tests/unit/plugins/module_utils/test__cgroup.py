# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""CPU time and memory of a control group, on v1, v2 and hybrid hosts; what is not understood is an error, never 0."""

from __future__ import annotations

import os
import time

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _cgroup
from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

V1 = "12:cpuset:/docker/abc\n5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n1:name=systemd:/docker/abc\n"
V2 = "0::/system.slice/docker-abc.scope\n"
HYBRID = "5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/system.slice/docker.service\n"


@pytest.mark.parametrize(
    ("text", "account", "path"),
    [
        (V1, "cpu", "/sys/fs/cgroup/cpuacct/docker/abc/cpuacct.usage"),
        (V1, "memory", "/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes"),
        (V2, "cpu", "/sys/fs/cgroup/system.slice/docker-abc.scope/cpu.stat"),
        (V2, "memory", "/sys/fs/cgroup/system.slice/docker-abc.scope/memory.current"),
        (HYBRID, "cpu", "/sys/fs/cgroup/cpuacct/docker/abc/cpuacct.usage"),
        ("0::/\n" + V1, "memory", "/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes"),
        ("4:cpuacct:/a:b\n", "cpu", "/sys/fs/cgroup/cpuacct/a:b/cpuacct.usage"),
    ],
)
def test_account_path(text, account, path):
    assert _cgroup.account_path(text, account) == path


def test_only_a_whole_controller_name_counts():
    with pytest.raises(UnknownOutput, match="neither a memory nor a unified group"):
        _cgroup.account_path("3:hugememory:/x\n1:name=systemd:/x\n", "memory")


def test_unknown_line_is_named():
    with pytest.raises(UnknownOutput, match="gibberish"):
        _cgroup.account_path("gibberish\n", "cpu")


def test_cpu_seconds_units():
    assert _cgroup.parse_cpu_seconds("/x/cpuacct.usage", "1500000000\n") == 1.5
    assert _cgroup.parse_cpu_seconds("/x/cpu.stat", "user_usec 9\nusage_usec 2500000\nsystem_usec 1\n") == 2.5


@pytest.mark.parametrize(
    ("path", "text"), [("/x/cpuacct.usage", ""), ("/x/cpuacct.usage", "-1"), ("/x/cpu.stat", "usage_usec many\n"), ("/x/cpu.stat", "")]
)
def test_unreadable_cpu_time_names_the_file(path, text):
    with pytest.raises(UnknownOutput, match=path):
        _cgroup.parse_cpu_seconds(path, text)


def test_memory_bytes():
    assert _cgroup.parse_memory_bytes("/x/memory.current", "1048576\n") == 1048576
    with pytest.raises(UnknownOutput, match="/x/memory.current"):
        _cgroup.parse_memory_bytes("/x/memory.current", "max\n")


def test_this_process_uses_cpu_time():
    """The real files of this machine: the group of this very process has burned time, and burns more."""
    try:
        account = _cgroup.account_of(os.getpid(), "cpu")
        before = _cgroup.cpu_seconds(account)
    except OSError as exc:
        pytest.skip("the control group of this process is not visible here: {0}".format(exc))
    ends = time.process_time() + 0.05
    while time.process_time() < ends:
        pass
    assert _cgroup.cpu_seconds(account) >= before + 0.04
