# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kernel's own files, as they are written, from a directory that plays a host and from this very machine."""

from __future__ import annotations

import os

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._kernel import (
    Tree,
    acs_control,
    bridges_above,
    count_list,
    parse_chosen,
    parse_hugepages,
    parse_limits,
    parse_modules,
    read_acs,
    read_kernel,
)

MODULES = """hycu 7123456 0 - Live 0xffffffffc0a00000 (OE)
vfio_pci 65536 2 - Live 0xffffffffc0900000
amdkcl 32768 1 hycu, Live 0xffffffffc0800000 (OE)
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 1048576              files
Max locked memory         65536                unlimited            bytes
"""
MEMINFO = """MemTotal:       1056467524 kB
MemAvailable:   900000000 kB
HugePages_Total:    1024
HugePages_Free:      512
Hugepagesize:       2048 kB
"""


def write(root, path, text):
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, bytes):
        target.write_bytes(text)
    else:
        target.write_text(text, encoding="utf-8")


@pytest.fixture
def played(tmp_path):
    files = {
        "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 iommu=pt\n",
        "/proc/modules": MODULES,
        "/proc/meminfo": MEMINFO,
        "/proc/1/limits": LIMITS,
        "/proc/sys/kernel/osrelease": "5.10.0-136\n",
        "/proc/sys/vm/swappiness": "60\n",
        "/proc/sys/kernel/numa_balancing": "1\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
        "/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor": "powersave\n",
        "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "ondemand\n",
        "/sys/devices/system/node/online": "0-1\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "/sys/class/iommu/dmar0/x": "",
        "/sys/kernel/iommu_groups/0/type": "identity\n",
        "/sys/kernel/iommu_groups/1/type": "DMA-FQ\n",
        "/sys/kernel/iommu_groups/2/type": "DMA-FQ\n",
    }
    for path, text in files.items():
        write(tmp_path, path, text)
    return tmp_path


def test_a_played_host(played):
    found = read_kernel(Tree(str(played)), 1, [])
    assert found["release"] == "5.10.0-136"
    assert found["arguments"] == ["BOOT_IMAGE=/vmlinuz", "root=/dev/sda1", "iommu=pt"]
    assert found["modules"] == ["amdkcl", "hycu", "vfio_pci"]
    assert found["sysctl"]["vm.swappiness"] == "60"
    assert found["sysctl"]["kernel.numa_balancing"] == "1"
    assert found["sysctl"]["fs.file-max"] is None
    assert found["governors"] == {"performance": 1, "powersave": 2}
    assert found["hugepages"] == {"reserved_mib": 2048, "transparent": "madvise"}
    assert found["memory_total_mib"] == 1031706
    assert found["numa_nodes"] == 2
    assert found["limits"] == {"nofile": [1024, 1048576], "memlock": [65536, -1]}
    assert found["iommu"] == {"active": True, "groups": {"identity": 1, "DMA-FQ": 2}}


def test_an_empty_host_shows_nothing(tmp_path):
    found = read_kernel(Tree(str(tmp_path)), 1, ["0000:07:00.0"])
    assert (found["release"], found["arguments"], found["modules"], found["limits"]) == (None, None, None, None)
    assert found["governors"] == {} and found["iommu"] == {"active": False, "groups": {}}
    assert found["hugepages"] == {"reserved_mib": 0, "transparent": ""}
    assert (found["memory_total_mib"], found["numa_nodes"]) == (0, 1)


def test_this_machine():
    found = read_kernel(Tree(), os.getpid(), [])
    assert found["release"] == os.uname().release
    assert found["memory_total_mib"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    assert found["limits"]["nofile"][1] >= found["limits"]["nofile"][0] > 0


def test_proc_has_a_place_of_its_own(tmp_path):
    write(tmp_path, "elsewhere/sys/kernel/osrelease", "1.2.3\n")
    tree = Tree(str(tmp_path / "root"), str(tmp_path / "sysfs"), str(tmp_path / "elsewhere"))
    assert tree.word("/proc/sys/kernel/osrelease") == "1.2.3"
    assert tree.path("/sys/class") == str(tmp_path / "sysfs/class")
    assert tree.path("/etc/x") == str(tmp_path / "root/etc/x")
    assert tree.path("/process") == str(tmp_path / "root/process")


@pytest.mark.parametrize("text", ["hycu\n", "hycu big 0 - Live 0x0\n", "hycu 1 0 -\n"])
def test_modules_of_another_form(text):
    with pytest.raises(UnknownOutput, match="/proc/modules has a line"):
        parse_modules(text)


def test_a_word_in_brackets():
    assert parse_chosen("[always] madvise never\n") == "always"
    with pytest.raises(UnknownOutput, match="no word in brackets"):
        parse_chosen("always\n")


@pytest.mark.parametrize(
    ("text", "mib"), [(MEMINFO, 2048), ("MemTotal: 1 kB\n", 0), ("HugePages_Total: 3\nHugepagesize: 1048576 kB\n", 3072)]
)
def test_huge_pages(text, mib):
    assert parse_hugepages(text) == mib


def test_limits_of_another_form():
    with pytest.raises(UnknownOutput, match="no line 'Max locked memory'"):
        parse_limits(LIMITS.replace("locked", "lockable"))


@pytest.mark.parametrize(("text", "count"), [("0", 1), ("0-3,8", 5), ("0,2,4-5\n", 4)])
def test_lists_of_numbers(text, count):
    assert count_list(text) == count


@pytest.mark.parametrize("text", ["", "a", "0-", "0..3"])
def test_lists_of_another_form(text):
    with pytest.raises(UnknownOutput, match="no list of numbers"):
        count_list(text)


def config(*capabilities, size=4096):
    """Configuration space with extended capabilities (id, control) one after the other, 16 bytes each."""
    space = bytearray(size)
    for number, (identity, control) in enumerate(capabilities):
        offset = 0x100 + 16 * number
        following = offset + 16 if number + 1 < len(capabilities) else 0
        space[offset : offset + 4] = (identity | 1 << 16 | following << 20).to_bytes(4, "little")
        space[offset + 4 : offset + 6] = (0x5F).to_bytes(2, "little")
        space[offset + 6 : offset + 8] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "control"),
    [
        (config((0x0001, 0), (0x000D, 0x1D), (0x0019, 0)), 0x1D),
        (config((0x000D, 0)), 0),
        (config((0x0001, 0x1D)), None),
        (config(), None),
        (bytes(256), None),
        (b"\xff" * 4096, None),
    ],
)
def test_access_control(space, control):
    assert acs_control(space) == control


@pytest.mark.parametrize("size", [0, 64, 255])
def test_a_space_that_only_root_sees_is_unknown(size):
    with pytest.raises(UnknownOutput, match="{0} bytes of the configuration space".format(size)):
        acs_control(bytes(size))


def test_a_chain_that_bites_its_tail_is_unknown():
    space = bytearray(config((0x0001, 0)))
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    with pytest.raises(UnknownOutput, match="does not end"):
        acs_control(bytes(space))


@pytest.mark.parametrize("following", [0x40, 0xFFC])
def test_a_chain_that_leads_out_of_its_space_is_unknown(following):
    space = bytearray(config((0x0001, 0)))
    space[0x100:0x104] = (0x0001 | 1 << 16 | following << 20).to_bytes(4, "little")
    with pytest.raises(UnknownOutput, match="does not end"):
        acs_control(bytes(space))


@pytest.fixture
def bus(tmp_path):
    """A card behind two bridges, as sysfs lays it out."""
    devices = tmp_path / "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:07:00.0"
    devices.mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for address, path in (("0000:00:01.0", devices.parents[1]), ("0000:01:00.0", devices.parents[0]), ("0000:07:00.0", devices)):
        (tmp_path / "sys/bus/pci/devices" / address).symlink_to(path)
    return tmp_path


@pytest.mark.parametrize(
    ("root_port", "bridge", "redirecting", "unreadable"),
    [
        (0x00, 0x00, [], []),
        (0x04, 0x00, ["0000:00:01.0"], []),
        (0x00, 0x08, ["0000:01:00.0"], []),
        (0x11, 0x53, [], []),
        (None, 0x1D, ["0000:01:00.0"], ["0000:00:01.0"]),
    ],
)
def test_bridges_that_send_traffic_up(bus, root_port, bridge, redirecting, unreadable):
    for address, control in (("0000:00:01.0", root_port), ("0000:01:00.0", bridge)):
        space = bytes(64) if control is None else config((0x0001, 0), (0x000D, control))
        write(bus, "/sys/bus/pci/devices/{0}/config".format(address), space)
    found = read_acs(Tree(str(bus)), ["0000:07:00.0"])
    assert found == {"bridges": ["0000:00:01.0", "0000:01:00.0"], "redirecting": redirecting, "unreadable": unreadable}


def test_a_card_without_bridges_has_none(tmp_path):
    (tmp_path / "sys/bus/pci/devices/0000:07:00.0").mkdir(parents=True)
    assert bridges_above(Tree(str(tmp_path)), ["0000:07:00.0"]) == []


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "proc/cmdline").mkdir(parents=True)
    with pytest.raises(LLMError, match="/proc/cmdline: cannot be read"):
        read_kernel(Tree(str(tmp_path)), 1, [])
