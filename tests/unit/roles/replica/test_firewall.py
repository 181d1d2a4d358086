# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""When the role sets a firewall, whom it admits, and who must be refused: the role's own expressions over small inventories."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROLE = Path(__file__).resolve().parents[4] / "roles" / "replica"


def trusted(value):
    """Marked as a template, where ansible-core asks for that."""
    try:
        from ansible.template import trust_as_template
    except ImportError:
        return value
    if isinstance(value, dict):
        return {key: trusted(item) for key, item in value.items()}
    return trust_as_template(value) if isinstance(value, str) else value


def evaluate(name, host, gateways, nodes, options=None, addresses=None, outs=None):
    """The value of a variable of the role on ``host``."""
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar

    variables = {}
    for part in ("defaults", "vars"):
        variables.update(yaml.safe_load((ROLE / part / "main.yml").read_text(encoding="utf-8")))
    known = {other: ({"ansible_host": address} if address else {}) for other, address in (addresses or {}).items()}
    for other, out in (outs or {}).items():
        known[other]["replica_out"] = out
    variables.update(groups={"llm_gateway": gateways, "llm_nodes": nodes}, inventory_hostname=host, ansible_play_hosts=nodes)
    variables.update(options or {}, hostvars=known, **known.get(host, {}))
    return Templar(loader=DataLoader(), variables=trusted(variables)).template(trusted("{{ %s }}" % name))


FLEET = {"gw1": "192.0.2.1", "gw2": "", "n1": "192.0.2.11", "n2": "192.0.2.12"}


@pytest.mark.parametrize(
    ("gateways", "options", "wanted"),
    [
        (["n1"], {}, False),
        (["gw1"], {}, True),
        (["n1", "gw1"], {}, True),
        (["gw1"], {"replica_firewall": "never"}, False),
        (["n1"], {"replica_firewall": "always"}, True),
        (["gw1"], {"replica_address": "127.0.0.1"}, False),
        (["gw1"], {"replica_address": "::1"}, False),
        (["gw1"], {"replica_address": "::"}, True),
        (["gw1"], {"replica_address": "::10"}, True),
        (["n1"], {"replica_address": "0.0.0.0"}, True),
    ],
)
def test_it_is_there_where_others_could_reach_the_replicas(gateways, options, wanted):
    assert evaluate("__replica_firewall_wanted", "n1", gateways, ["n1", "n2"], options, FLEET) is wanted


@pytest.mark.parametrize(
    ("gateways", "admitted"), [([], []), (["gw1"], ["192.0.2.1"]), (["gw1", "gw2"], ["192.0.2.1", "gw2"]), (["n1", "n2"], ["192.0.2.12"])]
)
def test_gateways_are_admitted_by_address_or_by_name_and_the_host_needs_no_admission(gateways, admitted):
    assert evaluate("replica_firewall_gateways", "n1", gateways, ["n1", "n2"], addresses=FLEET) == admitted


@pytest.mark.parametrize(
    ("gateways", "options", "stranger"),
    [
        (["gw1"], {}, "n2"),
        (["n2"], {}, ""),
        (["gw1"], {"catalog_out": {"machine": ["n1", "n2"]}}, ""),
        (["gw1"], {"replica_firewall_admitted": ["192.0.2.0/24"]}, ""),
    ],
)
def test_the_one_who_must_be_refused_is_no_gateway_and_nobody_who_may_be_admitted(gateways, options, stranger):
    assert evaluate("__replica_firewall_stranger", "n1", gateways, ["n1", "n2"], options, FLEET) == stranger


def test_a_machine_with_two_names_is_guarded_once_with_the_ports_of_both():
    both = {"catalog_out": {"machine": ["n1", "n2"]}, "ansible_play_hosts_all": ["n1", "n2", "n3"]}
    addresses = dict.fromkeys(("n1", "n2", "n3"), "192.0.2.11")
    outs = {name: {"plan": {"replicas": [{"port": port}]}} for name, port in (("n1", 8001), ("n2", 8101), ("n3", 8201))}
    assert evaluate("__replica_firewall_ports", "n1", ["gw1"], ["n1", "n2", "n3"], both, addresses, outs) == [8001, 8101]
    assert evaluate("replica_firewall_gateways", "n1", ["n2", "gw1"], ["n1", "n2"], both, FLEET) == ["192.0.2.1"]


def test_every_service_manager_has_what_restores_the_rules():
    files = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))["__replica_firewall_files"]
    assert sorted(path.name for path in (ROLE / "templates").glob("firewall.*.j2")) == sorted("firewall.%s.j2" % name for name in files)
