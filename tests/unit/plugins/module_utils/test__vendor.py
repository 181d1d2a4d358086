# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A played host: tools, files and sysfs under a directory; whatever a tool does wrong is one clear error."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor, first_odd_line, pci_address


@pytest.mark.parametrize(
    "text, expected",
    [
        ("07:00.0", "0000:07:00.0"),
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00000000:83:00.0", "0000:83:00.0"),
        (" 0001:0a:1f.7\n", "0001:0a:1f.7"),
    ],
)
def test_pci_address(text, expected):
    assert pci_address(text) == expected


@pytest.mark.parametrize("text", ["", "NA", "0000:07:00", "0000:07:00.8", "00010000:07:00.0", "0000:09:00.0 --> SN: 1"])
def test_no_pci_address(text):
    with pytest.raises(UnknownOutput, match="is no PCI address"):
        pci_address(text)


def test_first_odd_line():
    assert first_odd_line("\n \n", "  a \nb") == "'a'"
    assert first_odd_line("", "\n") == "nothing"


@pytest.fixture
def host(tmp_path):
    def script(path, text):
        target = tmp_path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("#!/bin/sh\n" + text)
        target.chmod(0o755)

    script("/opt/bin/good", 'echo "$GREETING $1"')
    script("/opt/bin/bad", "echo out; echo; echo broken >&2; exit 9")
    script("/opt/bin/quiet", "exit 14")
    script("/opt/bin/slow", "sleep 60")
    (tmp_path / "opt/bin/plain").write_text("")
    device = tmp_path / "sys/bus/pci/devices/0000:07:00.0"
    (device / "drm/renderD128").mkdir(parents=True)
    (device / "drm/card1").mkdir()
    (device / "drm/card1-VGA-1").mkdir()
    (device / "vendor").write_text("0x1d94\n")
    (device / "device").write_text("0x6210\n")
    (device / "class").write_text("0x0b4000\n")
    (device / "numa_node").write_text("3\n")
    (device / "driver").symlink_to("../../../bus/pci/drivers/hycu")
    other = tmp_path / "sys/bus/pci/devices/0000:00:01.0"
    other.mkdir()
    (other / "vendor").write_text("0x8086\n")
    (other / "numa_node").write_text("-1\n")
    names = ("good", "bad", "quiet", "slow", "plain")
    tools = {name: ["/nowhere/" + name, "/opt/bin/" + name] for name in names}
    return Vendor(tools=tools, environment={"GREETING": "hello"}, timeout_s=0.5, root=str(tmp_path))


def test_tool_by_its_place_and_environment(host):
    assert host.tool("good") == "/opt/bin/good"
    assert host.ask("good", "you") == "hello you\n"


@pytest.mark.parametrize(
    "tool, words",
    [
        ("bad", "/opt/bin/bad -x ended with status 9 and said 'broken'"),
        ("quiet", "/opt/bin/quiet -x ended with status 14 and said nothing"),
        ("slow", "no end after 0.5 s; it hangs"),
        ("plain", "plain: not found (looked for /nowhere/plain, /opt/bin/plain)"),
        ("absent", "absent: not found (looked for no path at all)"),
    ],
)
def test_tool_that_is_missing_hangs_or_fails(host, tool, words):
    with pytest.raises(LLMError) as caught:
        host.ask(tool, "-x")
    assert words in str(caught.value)
    assert host.has_tool(tool) == (tool in ("bad", "quiet", "slow"))


def test_sysfs(host):
    assert host.pci_devices("0x1D94") == {"0000:07:00.0": {"device": "0x6210", "class": "0x0b4000", "driver": "hycu", "numa_node": "3"}}
    assert host.drm_nodes("0000:07:00.0") == {"card": "/dev/dri/card1", "render": "/dev/dri/renderD128"}
    assert (host.numa_node("0000:07:00.0"), host.numa_node("0000:00:01.0"), host.numa_node("0000:ff:00.0")) == (3, None, None)


def test_files(host):
    assert host.read("/sys/bus/pci/devices/0000:07:00.0/device") == "0x6210\n"
    assert host.read("/etc/absent") is None
    assert host.names("/absent") == []
    with pytest.raises(LLMError, match=r"/opt/bin: cannot be read"):
        host.read("/opt/bin")


def test_the_real_host_is_the_default():
    assert Vendor().path("/dev/kfd") == "/dev/kfd"
    assert Vendor().path("/sys/module") == "/sys/module"
    assert Vendor(sysfs="/opt/played").path("/sys/module") == "/opt/played/module"
