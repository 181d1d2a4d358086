# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every capture of hccn_tool and of its file says exactly what it says; nothing, and what is new, is an error that shows the line."""

from __future__ import annotations

import pytest
from unit.plugins.played import ascend

from ansible_collections.ironserve.llm.plugins.module_utils import _hccn_tool
from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

EXPECTED = ascend.expected()
TLS = ascend.capture("hccn_tool-tls__switch-line.txt")


@pytest.mark.parametrize(("name", "pair"), list(EXPECTED["links"].items()))
def test_link(name, pair):
    found = getattr(_hccn_tool, pair[0])(ascend.capture(name))
    assert (list(found) if isinstance(found, tuple) else found) == pair[1]


@pytest.mark.parametrize(("name", "fields"), list(EXPECTED["fields"].items()))
def test_fields(name, fields):
    assert _hccn_tool.parse_fields("-x", ascend.capture(name)) == fields


def test_gateway_and_mac_address():
    mac, gateway = ascend.capture("hccn_tool-gateway-mac__doc-example.txt").split("\n\n")
    assert _hccn_tool.parse_fields("-mac_addr", mac + "\n") == {"mac addr": "xx:xx:xx:xx:xx:xx"}
    assert _hccn_tool.parse_gateway(gateway) == "192.168.6.1"


def test_what_is_not_set_is_told_from_what_failed():
    said = ascend.capture("hccn_tool-ip__not-configured__error.txt")
    assert _hccn_tool.unset("", said)
    assert _hccn_tool.unset("Get gateway failed, because no gateway was preset there!\n")
    assert not _hccn_tool.unset("Command execute failed!", "")
    with pytest.raises(UnknownOutput, match="hccn_tool -ip said 'Get ipconf failed"):
        _hccn_tool.parse_ip(said)


def test_history_of_a_link():
    text = ascend.capture("hccn_tool-link_stat__per-device-history.txt")
    changes = [
        ("Tue Aug  1 14:44:40 2022", "down"),
        ("Tue Aug  1 14:43:40 2022", "up"),
        ("Tue Aug  1 14:43:40 2022", "down"),
        ("Tue Aug  1 14:43:26 2022", "up"),
    ]
    assert _hccn_tool.parse_link_history(text) == _hccn_tool.LinkHistory(2, changes)
    assert _hccn_tool.parse_link_history(text.replace("[devid 0]", "[device 0]")) == _hccn_tool.LinkHistory(2, changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("link up count : many\n", "'link up count : many'"),
        ("link up count : 1\n  Tue Aug 1 14:44:40 2022  LINK LOST\n", "LINK LOST"),
        ("current time : now\n", "'current time : now'"),
    ],
)
def test_history_that_is_not_understood(text, words):
    with pytest.raises(UnknownOutput) as error:
        _hccn_tool.parse_link_history(text)
    assert words in str(error.value)


@pytest.mark.parametrize("word", _hccn_tool.NET_HEALTH)
def test_every_word_of_net_health(word):
    assert _hccn_tool.parse_net_health(f"net health status: {word}\n") == word


def test_other_spellings():
    assert _hccn_tool.parse_net_health("net health status: Socket failed\n") == "Socket fail"
    assert _hccn_tool.parse_netdetect("netdetect address: 11.12.165.1\n") == "11.12.165.1"
    assert _hccn_tool.parse_netdetect("netdetect addr: 0.0.0.0\n") is None
    assert _hccn_tool.parse_tls(TLS.replace("dev_id:0", "device 3").replace("switch[0]", "switch[1]")) is True


def test_tls_with_its_certificates():
    text = TLS + "dev_id:0, [pub cert] info:\n\t subject[/C=CN/O=x]\n\t start_time[Sat Jan 31 03:10:27 2026 GMT]\n"
    text += "\t tls expiration status[0](0:normal, 1:near expiration, 2:has expired)\n"
    assert _hccn_tool.parse_tls(text) is False


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        ("parse_link", "", "hccn_tool -link said nothing"),
        ("parse_link", "link status: UP", "stopped in the middle of a line: 'link status: UP'"),
        ("parse_link", "link status: U\n", "said 'link status: U'"),
        ("parse_link", "link status: UP\nlink status: UP\n", "said 'link status: UP'"),
        ("parse_link", "link: UP\n", "said 'link: UP'"),
        ("parse_net_health", "net health status: Succ\n", "said 'net health status: Succ'"),
        ("parse_ip", "ipaddr:10.10.0\nnetmask:255.255.255.0\n", "has '10.10.0' for an address"),
        ("parse_ip", "ipaddr:10.10.0.10\n", "said 'ipaddr:10.10.0.10'"),
        ("parse_gateway", "default gateway:192.168.6.1\n", "said 'default gateway:192.168.6.1'"),
        ("parse_gateway", "default gateway:192.168.6.1, Iface:eth0\nmore\n", "said 'default gateway"),
        ("parse_gateway", "default gateway:192.168.6.300, Iface:eth0\n", "has '192.168.6.300' for an address"),
        ("parse_netdetect", "netdetect address: x\n", "has 'x' for an address"),
        ("parse_tls", TLS + TLS, "said 'dev_id:0, tls switch"),
        ("parse_tls", TLS.replace("switch[0]", "switch[2]"), "said 'dev_id:0, tls switch[2]"),
        ("parse_tls", TLS[:60] + "\n", "said 'dev_id:0, tls switch"),
        ("parse_tls", "dev_id:0, [pub cert] info:\n", "said 'dev_id:0, [pub cert] info:'"),
    ],
)
def test_what_is_not_understood(parse, text, words):
    with pytest.raises(UnknownOutput) as error:
        getattr(_hccn_tool, parse)(text)
    assert words in str(error.value)


def test_fields_that_are_none():
    for text in ("optical info:\n", "a: 1\na: 2\n", "no colon\n", ": 1\n"):
        with pytest.raises(UnknownOutput, match="hccn_tool -optical said"):
            _hccn_tool.parse_fields("-optical", text)


def test_conf():
    found = _hccn_tool.parse_conf(ascend.capture("hccn.conf__8-devices.txt"))
    addresses = "192.168.10.11 192.168.20.11 192.168.30.11 192.168.40.11 192.168.10.12 192.168.20.12 192.168.30.12 192.168.40.12".split()
    assert found == {number: {"address": address, "netmask": "255.255.255.0"} for number, address in enumerate(addresses)}


def test_conf_in_any_order_and_with_other_settings():
    text = "# by hand\nnetmask_1=255.255.0.0\n\naddress_0=10.0.0.1\nsend_arp_status_0=1\naddress_1=10.0.0.2"
    assert _hccn_tool.parse_conf(text) == {
        0: {"address": "10.0.0.1", "send_arp_status": "1"},
        1: {"netmask": "255.255.0.0", "address": "10.0.0.2"},
    }
    assert _hccn_tool.parse_conf("") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("address_0=10.0.0.1\naddress_0=10.0.0.1\n", "line 2 does not fit or sets a thing again"),
        ("address=10.0.0.1\n", "line 1 does not fit"),
        ("address_0 10.0.0.1\n", "line 1 does not fit"),
        ("\naddress_0=10.0.0\n", "/etc/hccn.conf, line 2 has '10.0.0' for an address"),
    ],
)
def test_conf_that_is_not_understood(text, words):
    with pytest.raises(UnknownOutput) as error:
        _hccn_tool.parse_conf(text)
    assert words in str(error.value)
