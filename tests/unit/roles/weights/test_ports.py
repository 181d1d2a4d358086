# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""At which ports the hosts of one play take and give weights, by the role's own expressions: no two at one port of one machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

try:
    from ansible.template import trust_as_template as trust
except ImportError:

    def trust(text):
        return text


ROLE = Path(__file__).resolve().parents[4] / "roles" / "weights"
BASE = 8470


def trusted(value):
    """Marked as a template, where ansible-core asks for that."""
    if isinstance(value, dict):
        return {key: trusted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [trusted(item) for item in value]
    return trust(value) if isinstance(value, str) else value


#: What the ports are made of.
VARIABLES = {
    name: trusted(value)
    for name, value in yaml.safe_load((ROLE / "vars" / "main.yml").read_text(encoding="utf-8")).items()
    if re.match("__weights_(own|names|before|twin|from|hold|ids|chain|is_local)", name)
}


class Play:
    """A play in which every host needs its weights.

    ``wanted`` says for each host which ones, ``holders`` for each of them who has the files (empty: the first host gets them by itself),
    ``machines`` for some hosts which names are one machine with it.
    """

    def __init__(self, wanted: dict, holders: dict, machines: dict | None = None) -> None:
        self.wanted, self.holders, self.machines = wanted, holders, machines or {}
        self.known: dict = {"localhost": {}, "hub": {}}
        for host, name in wanted.items():
            own = {"model": {"name": name}, "weights": {"name": "v"}, "machine": self.machines.get(host, [host])}
            self.known[host] = {"catalog_out": own, "__weights_found": {"manifest_id": name}}
        for host in wanted:
            self.known[host]["__weights_seat"] = {**self.ask(host, "__weights_own_seat"), "needs": True}

    def ask(self, host: str, name: str):
        """The value of a variable on ``host``."""
        hosts = list(self.wanted)
        takers = [self.known[one].get("__weights_seat", {}) for one in hosts if self.wanted[one] == self.wanted[host]]
        more = {
            "__weights_fan": {"takers": [seat for seat in takers if seat.get("fans")], "origin": {}},
            "__weights_wanted": ["x"],
            "__weights_path": "/w",
            "__weights_marker": "/m",
            "__weights_found": {"manifest_id": self.wanted[host], "bytes_ok": False},
            "__weights_holder": self.holders.get(self.wanted[host], ""),
            "__weights_held": {"path": "/held"},
            "weights_fanout": True,
            "weights_fanout_port": BASE,
            "weights_fanout_address": f"{host}.lan",
            "weights_fanout_controller": "controller.lan",
            "weights_recipe": {"source": {"kind": "modelscope"}},
            "weights_model": self.wanted[host],
            "weights_variant": "v",
            "catalog_out": self.known[host]["catalog_out"],
            "inventory_hostname": host,
            "hostvars": self.known,
            "ansible_play_hosts_all": hosts,
        }
        return Templar(loader=DataLoader(), variables={**VARIABLES, **more}).template(trust("{{ %s }}" % name))

    def machine(self, host: str) -> str:
        return self.machines.get(host, [host])[0]

    def ends(self) -> dict:
        """Who is at which port of which machine."""
        found: dict = {}
        for host, name in self.wanted.items():
            if not self.known[host]["__weights_seat"]["fans"]:
                continue
            giver = self.ask(host, "__weights_from")
            found.setdefault((self.machine(giver["host"]), giver["line"]["port"]), set()).add(f"{giver['host']} gives {name}")
            if host != giver["host"]:
                found.setdefault((self.machine(host), self.known[host]["__weights_seat"]["line"]["port"]), set()).add(
                    f"{host} takes {name}"
                )
        return found


@pytest.mark.parametrize("holder", ["", "localhost", "hub", "a"])
def test_one_model_goes_by_the_port_that_was_asked_for(holder):
    play = Play({"a": "m", "b": "m", "c": "m"}, {"m": holder})
    assert set(play.ends()) == {(host, BASE) for host in ("a", "b", "c", *([holder] if holder else []))}


def test_a_holder_gives_each_model_at_a_port_of_its_own():
    play = Play({"a": "m", "b": "n", "c": "m", "d": "o"}, {"m": "localhost", "n": "localhost", "o": "localhost"})
    assert [play.ask(host, "__weights_from")["line"]["port"] for host in "abcd"] == [BASE, BASE + 1, BASE, BASE + 2]
    assert play.ask("a", "__weights_from")["line"]["address"] == "controller.lan"


def test_a_host_that_takes_gives_others_at_the_next_ports():
    machine = ["a", "b"]
    play = Play({"a": "m", "b": "n", "c": "o", "d": "p"}, {"o": "a", "p": "a"}, dict.fromkeys(machine, machine))
    assert [play.ask(host, "__weights_own_seat")["line"]["port"] for host in "abcd"] == [BASE, BASE + 1, BASE, BASE]
    # Two names take on that machine, and m and n stand before o and p.
    assert [play.ask(host, "__weights_from")["line"]["port"] for host in "cd"] == [BASE + 4, BASE + 5]


@pytest.mark.parametrize(
    ("names", "holders", "shared"),
    [
        ("mnmn", {"m": "localhost", "n": "localhost"}, False),
        ("mnmn", {"m": "hub", "n": "localhost"}, True),
        ("mnno", {"m": "a", "n": "a", "o": "a"}, False),
        ("mno", {"n": "a", "o": "b"}, True),
        ("mnmo", {"m": "b", "n": "a", "o": "a"}, True),
        ("mmnn", {"m": "a", "n": "a"}, True),
    ],
)
def test_no_two_are_at_one_port(names, holders, shared):
    machine = ["a", "b"]
    play = Play({"abcd"[number]: name for number, name in enumerate(names)}, holders, dict.fromkeys(machine, machine) if shared else {})
    twice = {place: sorted(who) for place, who in play.ends().items() if len(who) > 1}
    assert twice == {}
