# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Listening ports and who has them."""

from __future__ import annotations

import os
import socket

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _ports
from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINE = "   0: {0}:1F40 00000000:0000 {1} 00000000:00000000 00:00000000 00000000     0        0 4242 1 0000000000000000 100 0 0 10 0\n"


def test_a_listening_socket_is_read_and_an_open_connection_is_not():
    text = HEAD + LINE.format("0100007F", "0A") + LINE.format("0100007F", "01")
    assert _ports.parse_listeners(text) == [_ports.Listener(8000, "127.0.0.1", "4242")]


@pytest.mark.parametrize(("text", "address"), [("00000000", "0.0.0.0"), ("0" * 32, "::"), ("00000000000000000000000001000000", "::1")])
def test_addresses(text, address):
    assert _ports.decode_address(text) == address


@pytest.mark.parametrize("text", [HEAD + "something new\n", HEAD + LINE.format("XYZ", "0A")])
def test_what_is_not_understood_is_an_error(text):
    with pytest.raises(UnknownOutput):
        _ports.parse_listeners(text)


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_real_listener_is_found_with_its_process(family, address):
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip("this machine has no {0}".format(address))
    with server:
        port = server.getsockname()[1]
        listeners = _ports.read_listeners()
        owners = _ports.socket_owners({item.inode for item in listeners if item.port == port})
        entry = _ports.port_report([port], listeners, owners, {}, ["no such marker"])[0]
        assert (entry["free"], entry["own"], entry["address"], entry["pid"]) == (False, False, address, os.getpid())
        assert "python" in entry["command"]
        assert "(pid {0})".format(os.getpid()) in _ports.describe(entry)
        assert _ports.port_report([port], listeners, owners, {port: "ironserve-c0"}, ["ironserve"])[0]["own"] is True
    assert _ports.port_report([port], _ports.read_listeners(), {}, {}, [])[0]["free"] is True


def test_container_names_come_from_published_tcp_ports_only():
    containers = [
        {
            "Names": ["/web"],
            "Ports": [{"PublicPort": 80, "Type": "tcp"}, {"PublicPort": 53, "Type": "udp"}, {"PrivatePort": 9, "Type": "tcp"}],
        }
    ]
    assert _ports.container_ports(containers) == {80: "web"}
