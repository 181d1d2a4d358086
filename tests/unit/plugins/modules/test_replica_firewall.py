# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""replica_firewall where no rule can be set. With real rules and packets: tests/integration/test_replica_firewall.py."""

from __future__ import annotations

import pytest
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.modules import replica_firewall


@pytest.fixture
def call(run_module, tmp_path, monkeypatch):
    """Run it on a host without iptables."""
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _module, _name, **_more: None)

    def run(check=False, **options):
        arguments = {"address": "192.0.2.11", "ports": [8001, 8002], "admitted": ["192.0.2.10"], "directory": str(tmp_path / "firewall")}
        return run_module(replica_firewall, {**arguments, "socket": str(tmp_path / "no.sock"), **options}, check_mode=check)

    return run


def test_a_dry_run_on_a_virgin_host_shows_the_rules_and_makes_nothing(call, tmp_path):
    result = call(check=True, network="ironserve")
    assert result["changed"] is True
    assert result["rules"]["ip6tables"] == []
    assert [(part["before"], part["after"].splitlines()[-1]) for part in result["diff"]] == [
        ("", "-A IRONSERVE -d 192.0.2.11/32 -p tcp -m tcp --dport 8001:8002 -j DROP")
    ]
    assert list(tmp_path.iterdir()) == []


def test_without_iptables_it_says_what_to_do(call, tmp_path):
    told = call()["msg"]
    assert told.startswith("iptables: not found on this host. Install it (package iptables), or guard the ports 8001:8002 by other means")
    assert "replica_firewall to never" in told
    assert "ip6tables: not found" in call(address="2001:db8::11")["msg"]
    assert list(tmp_path.iterdir()) == []


def test_where_it_never_was_it_is_absent(call, tmp_path):
    for check in (True, False):
        assert call(state="absent", check=check)["changed"] is False
    assert list(tmp_path.iterdir()) == []


def test_rules_that_may_still_be_there_are_not_called_absent(call, tmp_path):
    (tmp_path / "firewall").mkdir()
    (tmp_path / "firewall/rules.v4").write_text("*raw\n", encoding="ascii")
    assert call(state="absent", check=True)["changed"] is True
    assert "may still be there" in call(state="absent")["msg"]
    assert (tmp_path / "firewall/rules.v4").exists()


def test_without_the_containers_network_nothing_is_guarded_by_half(call):
    assert "no container engine answers on" in call(network="ironserve")["msg"]


@pytest.mark.parametrize(
    ("gateway", "told"),
    [
        ("no host", "no host: this host knows no address of it"),
        ("127.0.0.1", "127.0.0.1 is 127.0.0.1 on this host, which is this host itself"),
        ("localhost", "localhost is "),
    ],
)
def test_a_gateway_that_nobody_can_be_is_refused(call, gateway, told):
    message = call(admitted=["192.0.2.10", gateway])["msg"]
    assert message.startswith(told) and "replica_firewall_gateways" in message


def test_a_name_counts_with_all_its_addresses(call, monkeypatch):
    entries = [(0, 0, 0, "", (address, 0)) for address in ("192.0.2.21", "127.0.1.1", "192.0.2.20", "2001:db8::20", "fe80::1%eth0")]
    monkeypatch.setattr(replica_firewall.socket, "getaddrinfo", lambda *_arguments: entries)
    found = call(check=True, admitted=["gw"])["rules"]["iptables"]
    assert [line.split()[3] for line in found if "-s" in line] == ["192.0.2.20/32", "192.0.2.21/32"]


def test_no_ports_is_a_mistake(call):
    assert "no ports to guard" in call(ports=[])["msg"]
