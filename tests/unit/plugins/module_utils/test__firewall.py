# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rules that keep others than the gateways out, and how a host's own rules are read. With real packets: tests/integration."""

from __future__ import annotations

import ipaddress

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _firewall
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

WANTED = [
    "-A IRONSERVE -i lo -j RETURN",
    "-A IRONSERVE ! -s 172.18.0.0/16 -d 172.18.0.0/16 -j DROP",
    "-A IRONSERVE -s 192.0.2.10/32 -j RETURN",
    "-A IRONSERVE -s 198.51.100.0/24 -j RETURN",
    "-A IRONSERVE -d 192.0.2.11/32 -p tcp -m tcp --dport 8001:8004 -j DROP",
]

#: As iptables 1.8.9 lists a table in which others have rules, too.
LISTED = """-P PREROUTING ACCEPT
-P OUTPUT ACCEPT
-N FOREIGN
-N IRONSERVE
-A PREROUTING -j IRONSERVE
-A PREROUTING -d 172.19.0.2/32 ! -i br-1 -m comment --comment "not; \\"ours\\" -j ACCEPT" -j DROP
-A FOREIGN -j ACCEPT
"""


def rules(family=4, address="192.0.2.11", ports=(8001, 8002, 8003, 8004), admitted=(), inside=()):
    return _firewall.rules(family, [(address, port) for port in ports], list(admitted), list(inside))


def listed(*chain, text=LISTED):
    return text + "".join(line + "\n" for line in chain)


def test_only_the_admitted_and_the_host_itself_pass():
    assert rules(admitted=["198.51.100.7/24", "192.0.2.10", "2001:db8::10"], inside=["172.18.0.0/16", "fd00:18::/64"]) == WANTED


def test_each_family_has_its_own_rules():
    many = {"admitted": ["192.0.2.10", "2001:db8::10"], "inside": ["172.18.0.0/16"]}
    assert rules(6, **many) == []
    assert rules(6, address="2001:db8::11", ports=[8001], **many) == [
        "-A IRONSERVE -i lo -j RETURN",
        "-A IRONSERVE -s 2001:db8::10/128 -j RETURN",
        "-A IRONSERVE -d 2001:db8::11/128 -p tcp -m tcp --dport 8001 -j DROP",
    ]
    # A network of containers is guarded whatever the ports are bound to.
    assert rules(4, address="2001:db8::11", **many) == WANTED[:2]


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
@pytest.mark.parametrize("family", [4, 6])
def test_all_addresses_are_those_of_both_families(address, family):
    assert rules(family, address, [8001])[-1] == "-A IRONSERVE -m addrtype --dst-type LOCAL -p tcp -m tcp --dport 8001 -j DROP"


def test_doors_on_several_addresses_each_have_their_rules_and_loopback_needs_none():
    doors = [("192.0.2.11", 8002), ("127.0.0.1", 8101), ("192.0.2.11", 8001), ("192.0.2.12", 8001), ("::1", 8102)]
    assert _firewall.rules(4, doors, [], []) == [
        "-A IRONSERVE -i lo -j RETURN",
        "-A IRONSERVE -d 192.0.2.11/32 -p tcp -m tcp --dport 8001:8002 -j DROP",
        "-A IRONSERVE -d 192.0.2.12/32 -p tcp -m tcp --dport 8001 -j DROP",
    ]
    assert _firewall.rules(6, doors, [], []) == rules(address="127.0.0.1") == []
    assert rules(address="127.0.0.1", inside=["172.18.0.0/16"], admitted=["192.0.2.10"]) == WANTED[:2]


def test_what_is_no_address_cannot_be_guarded():
    with pytest.raises(LLMError, match="replica_address: 'node1' is no address"):
        rules(address="node1")


@pytest.mark.parametrize(
    ("ports", "texts"),
    [([8001], ["8001"]), ([8003, 8001, 8002, 8001], ["8001:8003"]), ([8001, 8003, 8004, 9000], ["8001", "8003:8004", "9000"]), ([], [])],
)
def test_neighbouring_ports_are_one_rule(ports, texts):
    assert _firewall.spans(ports) == texts


def test_a_host_that_has_them_is_as_wanted():
    live = _firewall.read(listed(*WANTED))
    assert (live.hooks, live.first, live.chain) == (1, True, WANTED)
    assert _firewall.as_wanted(live, WANTED)
    assert not _firewall.as_wanted(live, [])


def test_other_spellings_are_the_same_rules():
    spelled = [
        "-A IRONSERVE -i lo -j RETURN",
        "-A IRONSERVE -d 172.18.0.0/16 ! --source 172.18.0.0/16 -j DROP",
        "-A IRONSERVE -s 192.0.2.10 -j RETURN",
        "-A IRONSERVE -s 198.51.100.0/24 -j RETURN",
        "-A IRONSERVE -p 6 -d 192.0.2.11 -m tcp --dport 8001:8004 --jump DROP",
    ]
    assert _firewall.as_wanted(_firewall.read(listed(*spelled)), WANTED)
    v6 = ["-A IRONSERVE -s 2001:db8:0:0::10/128 -j RETURN"]
    assert _firewall.as_wanted(_firewall.read(listed(*v6)), ["-A IRONSERVE -s 2001:db8::10/128 -j RETURN"])


@pytest.mark.parametrize("number", range(len(WANTED)))
def test_any_difference_in_a_rule_is_one(number):
    others = {
        "another target": WANTED[number].replace("DROP", "ACCEPT").replace("RETURN", "ACCEPT"),
        "a condition more": WANTED[number].replace("-j", "-m limit --limit 5/sec -j"),
        "turned round": WANTED[number].replace("IRONSERVE ", "IRONSERVE ! ", 1).replace("! ! ", ""),
        "another number": WANTED[number].replace("8004", "8003").replace("192.0.2.10", "192.0.2.12").replace("/16", "/17"),
    }
    for what, line in others.items():
        chain = WANTED[:number] + [line] + WANTED[number + 1 :]
        assert chain == WANTED or not _firewall.as_wanted(_firewall.read(listed(*chain)), WANTED), what
    assert not _firewall.as_wanted(_firewall.read(listed(*WANTED[:number], *WANTED[number + 1 :])), WANTED)


def test_another_order_or_a_rule_more_is_another_chain():
    assert not _firewall.as_wanted(_firewall.read(listed(*WANTED[::-1])), WANTED)
    assert not _firewall.as_wanted(_firewall.read(listed(*WANTED, "-A IRONSERVE -j ACCEPT")), WANTED)


JUMP = "-A PREROUTING -j IRONSERVE\n"


@pytest.mark.parametrize(
    ("text", "hooks", "first"),
    [
        (LISTED.replace(JUMP, ""), 0, False),
        (LISTED + JUMP, 2, True),
        (LISTED.replace(JUMP, "-A PREROUTING -s 203.0.113.0/24 -j ACCEPT\n" + JUMP), 1, False),
        # A jump under a condition is none.
        (LISTED.replace(JUMP, "-A PREROUTING -i eth0 -j IRONSERVE\n"), 0, False),
    ],
)
def test_rules_that_packets_pass_by_are_not_as_wanted(text, hooks, first):
    live = _firewall.read(listed(*WANTED, text=text))
    assert (live.hooks, live.first) == (hooks, first)
    assert not _firewall.as_wanted(live, WANTED)


def test_rules_ahead_that_let_nothing_pass_are_in_nobodys_way():
    text = LISTED.replace(JUMP, "-A PREROUTING -d 172.19.0.2/32 -j DROP\n-A PREROUTING -p udp -j CT --notrack\n" + JUMP)
    assert _firewall.as_wanted(_firewall.read(listed(*WANTED, text=text)), WANTED)


def test_a_chain_that_is_there_is_filled_anew_and_jumped_to_once():
    new = "*raw\n:IRONSERVE - [0:0]\n" + "".join(line + "\n" for line in WANTED)
    assert _firewall.file_text(WANTED) == new + "COMMIT\n"
    hooked = _firewall.Live([], 1, True)
    assert _firewall.transaction(hooked, WANTED) == new + "COMMIT\n"
    assert _firewall.transaction(_firewall.Live(None, 0, False), WANTED) == new + "-I PREROUTING 1 -j IRONSERVE\nCOMMIT\n"
    again = "-D PREROUTING -j IRONSERVE\n" * 2 + "-I PREROUTING 1 -j IRONSERVE\nCOMMIT\n"
    assert _firewall.transaction(_firewall.Live([], 2, True), WANTED) == new + again


def test_nothing_is_left_where_nothing_is_wanted():
    assert _firewall.file_text([]) == ""
    gone = "*raw\n-D PREROUTING -j IRONSERVE\n-F IRONSERVE\n-X IRONSERVE\nCOMMIT\n"
    assert _firewall.transaction(_firewall.read(listed(*WANTED)), []) == gone
    assert _firewall.as_wanted(_firewall.read("-P PREROUTING ACCEPT\n-P OUTPUT ACCEPT\n"), [])


def test_names_are_no_networks():
    assert _firewall.network_of("gw.example.org") is None
    assert _firewall.network_of("192.0.2.9/24") == ipaddress.ip_network("192.0.2.0/24")
