# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A container that is as it was asked for stays, however its engine spells it; a real difference is seen, whoever made it.

What is asked for on each platform is in tests/unit/container_requests.
"""

from __future__ import annotations

import copy

import pytest
from unit.plugins.played.container import SPEC, described
from unit.test_container_requests import SITES, make

from ansible_collections.ironserve.llm.plugins.module_utils._container_request import differences, for_host, request

#: One card of an NVIDIA host, which the toolkit is asked for.
ASKING = dict(SPEC, device_requests=[{"driver": "nvidia", "device_ids": ["GPU-0"], "capabilities": ["gpu"]}], cap_add=["SYS_PTRACE"])


@pytest.mark.parametrize("platform", sorted(SITES))
def test_what_was_made_from_a_plan_is_as_planned(platform):
    for replica in make(platform):
        assert differences(replica["spec"], described(replica["spec"])) == {}


def changed_host(spec=SPEC, **fields):
    """The description of the container of ``spec`` with other fields of HostConfig."""
    found = described(spec)
    found["HostConfig"].update(fields)
    return found


NODES = ["/dev/kfd", "/dev/dri/card1"]


def nodes(*paths, permissions="rw"):
    return [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": permissions} for path in paths]


def mounts(*items):
    return [{"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only} for source, target, read_only in items]


@pytest.mark.parametrize(
    "fields",
    [
        {"Devices": nodes(*NODES[::-1])},
        {"Devices": nodes("/dev//kfd", "/dev/dri/./card1", permissions="wr")},
        {"Ulimits": None},
        {"Ulimits": [{"Name": "memlock", "Hard": -1, "Soft": -1}, {"Name": "nofile", "Hard": 1, "Soft": 1}]},
        {"Mounts": mounts(("/c/", "/cache", False), ("/w", "/models", True))},
        {"SecurityOpt": ["no-new-privileges"]},
        {"SecurityOpt": ["no-new-privileges=true"]},
        # Said by the engine itself for ipc host.
        {"SecurityOpt": ["no-new-privileges:true", "label=disable"]},
        {"CapDrop": ["all"]},
        {"Tmpfs": {"/tmp": "size=512m,mode=1777,nodev,nosuid,exec,rw"}},
        {"Runtime": "nvidia", "CgroupnsMode": "host"},
        # Kernels that cannot keep a limit: the engine leaves it out when it makes the container.
        {"MemorySwap": -1},
        {"Memory": 0, "MemorySwap": -1},
        {"PidsLimit": None},
        {"CpusetCpus": ""},
    ],
    ids=str,
)
def test_another_spelling_is_no_difference(fields):
    assert differences(SPEC, changed_host(**fields)) == {}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"Devices": nodes("/dev/kfd", "/dev/dri/card2")}, "Devices"),
        ({"Devices": nodes("/dev/kfd")}, "Devices"),
        ({"Devices": None}, "Devices"),
        ({"Devices": nodes(*NODES, "/dev/dri/card2")}, "Devices"),
        ({"Devices": nodes(*NODES, permissions="rwm")}, "Devices"),
        ({"Devices": [dict(nodes("/dev/kfd")[0], PathOnHost="/dev/dri/card2"), nodes("/dev/dri/card1")[0]]}, "Devices"),
        ({"DeviceRequests": [{"Driver": "nvidia", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}]}, "DeviceRequests"),
        ({"GroupAdd": ["44", "0"]}, "GroupAdd"),
        ({"NetworkMode": "host"}, "NetworkMode"),
        ({"NetworkMode": "bridge"}, "NetworkMode"),
        ({"PortBindings": {"8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8002"}]}}, "PortBindings"),
        ({"PortBindings": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8003"}]}}, "PortBindings"),
        ({"Mounts": mounts(("/w", "/models", False), ("/c", "/cache", False))}, "Mounts"),
        ({"Mounts": mounts(("/w2", "/models", True), ("/c", "/cache", False))}, "Mounts"),
        ({"Mounts": mounts(("/w", "/models", True))}, "Mounts"),
        ({"Binds": ["/:/host"]}, "Binds"),
        ({"Privileged": True}, "Privileged"),
        ({"CapAdd": ["CAP_SYS_ADMIN"]}, "CapAdd"),
        ({"CapDrop": None}, "CapDrop"),
        ({"SecurityOpt": ["no-new-privileges:false"]}, "SecurityOpt"),
        ({"SecurityOpt": ["no-new-privileges", "seccomp=unconfined"]}, "SecurityOpt"),
        ({"IpcMode": "host"}, "IpcMode"),
        ({"PidMode": "host"}, "PidMode"),
        ({"ReadonlyRootfs": False}, "ReadonlyRootfs"),
        ({"Tmpfs": {"/tmp": "rw,noexec,nosuid,nodev,mode=1777,size=512m"}}, "Tmpfs"),
        # What docker update changes of a container that runs.
        ({"Memory": 2**29}, "Memory"),
        ({"PidsLimit": 64}, "PidsLimit"),
        ({"CpusetCpus": "0"}, "CpusetCpus"),
        ({"NanoCpus": 500000000}, "NanoCpus"),
        ({"CpuQuota": 50000}, "CpuQuota"),
        ({"RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}}, "RestartPolicy"),
        ({"ShmSize": 2**25}, "ShmSize"),
        ({"LogConfig": {"Type": "json-file", "Config": {}}}, "LogConfig"),
    ],
    ids=str,
)
def test_a_real_difference_is_seen_and_nothing_beside_it(fields, field):
    assert list(differences(SPEC, changed_host(**fields))) == ["HostConfig." + field]


@pytest.mark.parametrize(("asked", "seen"), [(["GPU-0"], []), (["GPU-1"], ["HostConfig.DeviceRequests"]), (["GPU-0", "GPU-1"], 1)])
def test_another_card_from_the_toolkit_is_seen(asked, seen):
    found = described(dict(ASKING, device_requests=[dict(ASKING["device_requests"][0], device_ids=asked)]))
    off = list(differences(ASKING, found))
    assert off == seen or len(off) == seen


def test_cards_in_another_order_are_the_same_cards():
    two = dict(ASKING, device_requests=[dict(ASKING["device_requests"][0], device_ids=["GPU-0", "GPU-1"])])
    found = described(two)
    found["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] = ["GPU-1", "GPU-0"]
    assert differences(two, found) == {}


def test_an_address_has_many_spellings():
    spec = dict(SPEC, publish=dict(SPEC["publish"], address="fd00:0:0::1"))
    found = changed_host(spec, PortBindings={"8000/tcp": [{"HostIp": "fd00::1", "HostPort": "8002"}]})
    assert differences(spec, found) == {}
    found["HostConfig"]["PortBindings"]["8000/tcp"][0]["HostIp"] = "fd00::2"
    assert list(differences(spec, found)) == ["HostConfig.PortBindings"]


def test_variables_are_compared_by_name_and_never_told():
    found = described(SPEC)
    found["Config"]["Env"] = ["USER=hush", "PATH=/elsewhere"]
    off = differences(SPEC, found)
    assert off == {"Env": (["HOME is missing", "USER is another"], ["HOME", "USER"])}
    assert "hush" not in str(off)


@pytest.mark.parametrize(
    ("field", "value"),
    [("User", "0:0"), ("Cmd", ["serve", "--more"]), ("StopTimeout", 10), ("Labels", {"ironserve.spec": "new"})],
)
def test_what_the_program_gets_is_compared_too(field, value):
    found = described(SPEC)
    found["Config"][field] = value
    assert list(differences(SPEC, found)) == [field]


def test_the_start_program_counts_where_it_is_asked_for():
    asking = dict(SPEC, entrypoint=["/bin/sh", "-c", "true"])
    found = described(asking)
    assert differences(asking, found) == {}
    found["Config"]["Entrypoint"] = ["/entry.sh"]
    assert list(differences(asking, found)) == ["Entrypoint"]


def test_the_order_of_words_counts():
    found = described(dict(SPEC, command=["serve", "--a", "--b"]))
    assert list(differences(dict(SPEC, command=["serve", "--b", "--a"]), found)) == ["Cmd"]


def test_no_limits_where_the_platform_sets_none():
    host = request(dict(SPEC, memory_mib=0, cpuset=""))["HostConfig"]
    assert "Memory" not in host and "MemorySwap" not in host and "CpusetCpus" not in host
    assert list(differences(dict(SPEC, memory_mib=0), described(SPEC))) == ["HostConfig.Memory", "HostConfig.MemorySwap"]


def test_rights_that_a_platform_adds_arrive():
    host = request(dict(SPEC, cap_add=["SYS_PTRACE"], security_opt=["seccomp=unconfined"], ipc="host"))["HostConfig"]
    assert (host["CapAdd"], host["IpcMode"]) == (["SYS_PTRACE"], "host")
    assert host["SecurityOpt"] == ["no-new-privileges:true", "seccomp=unconfined"]


def test_an_optional_mount_is_there_where_the_host_has_it():
    spec = copy.deepcopy(SPEC)
    spec["mounts"].append({"source": "/etc/hccn.conf", "target": "/etc/hccn.conf", "read_only": True, "optional": True})
    here, there = for_host(spec, lambda path: True), for_host(spec, lambda path: False)
    assert [item["Target"] for item in request(here)["HostConfig"]["Mounts"]] == ["/models", "/cache", "/etc/hccn.conf"]
    assert [item["Target"] for item in request(there)["HostConfig"]["Mounts"]] == ["/models", "/cache"]
    assert list(differences(here, described(there))) == ["HostConfig.Mounts"]


def test_a_mount_that_is_needed_is_asked_for_though_its_source_is_missing():
    """The engine refuses it by name; leaving it out would start a replica without its weights."""
    assert for_host(SPEC, lambda path: False) == SPEC
