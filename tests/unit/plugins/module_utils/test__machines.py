# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Several names of the inventory that are one machine: which they are, what two plans both take, whose a container is."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy, _machines
from ansible_collections.ironserve.llm.plugins.module_utils._catalog import resolve
from ansible_collections.ironserve.llm.plugins.module_utils._plan import make_plan


def test_names_with_one_address_are_one_machine():
    names = {
        "a-chat": {"ansible_host": "192.0.2.1"},
        "b": {"ansible_host": "192.0.2.2"},
        "a-large": {"ansible_host": "192.0.2.1"},
        # Named by its address itself.
        "192.0.2.1": {},
    }
    whole = ["a-chat", "a-large", "192.0.2.1"]
    assert _machines.shared_machines(names) == dict.fromkeys(whole, whole)


def test_names_of_a_local_connection_are_the_machine_that_ansible_runs_on():
    names = {"one": {"ansible_connection": "local"}, "two": {"ansible_connection": "ansible.builtin.local", "ansible_host": "192.0.2.9"}}
    assert _machines.shared_machines(names) == {"one": ["one", "two"], "two": ["one", "two"]}


@pytest.mark.parametrize(
    "second",
    [
        {"ansible_host": "192.0.2.2"},
        {"ansible_host": "192.0.2.1", "ansible_port": 2222},
        # A host that is played is a directory of the machine it lies on.
        {"ansible_host": "192.0.2.1", "accelerator_root": "/opt/played/k100-01"},
        {"ansible_connection": "local"},
        {},
    ],
)
def test_names_that_are_reached_otherwise_are_other_machines(second):
    assert _machines.shared_machines({"one": {"ansible_host": "192.0.2.1"}, "two": second}) == {}


@pytest.mark.parametrize(
    ("label", "whose"), [("k100-01-c0", "k100-01"), ("k100-01-chat-c12", "k100-01-chat"), ("a-c0-c3", "a-c0"), ("", ""), ("odd", "")]
)
def test_a_container_says_whose_it_is(label, whose):
    assert _machines.owner({"ironserve.replica": label}) == whose
    assert _machines.owner(None) == ""


@pytest.fixture
def two(k100, catalog):
    """Plans of two names of one machine: ``two(cards of chat, cards of control, changes of control)``."""

    def make(chat, control, **changes):
        small = resolve(catalog, "hygon_k100ai", "qwen2.5-0.5b")
        return (
            make_plan(k100(host="k1-chat", card_groups=chat, aliases=["chat"])),
            make_plan(k100(host="k1-control", card_groups=control, catalog=small, aliases=["small"], **changes)),
        )

    return make


def test_plans_with_cards_of_their_own_have_nothing_in_common(two):
    chat, control = two([[0], [1], [2]], [[3]])
    assert _machines.plan_conflicts(chat, [control]) == [] == _machines.plan_conflicts(control, [chat])
    ports = [replica["port"] for plan in (chat, control) for replica in plan["replicas"]]
    assert ports == [8001, 8002, 8003, 8004]
    assert [replica["name"] for replica in control["replicas"]] == ["k1-control-c3"]


def test_a_card_that_two_plans_take_is_told_once_with_the_way_out(two):
    chat, control = two([[0], [1]], [[1], [2]])
    (line,) = _machines.plan_conflicts(chat, [control])
    assert line.startswith("k1-chat-c1 and k1-control-c1 both take card 0000:0a:00.0")
    assert "replica_card_groups" in line and "k1-chat and k1-control" in line


def test_a_port_that_two_plans_take_is_told_with_the_way_out(two):
    chat, control = two([[0]], [[3]], port_base=7998)
    (line,) = _machines.plan_conflicts(control, [chat])
    assert line == "k1-control-c3 and k1-chat-c0 both take port 8001; give k1-control or k1-chat another replica_port_base"


def containers(plan):
    return [{"name": replica["container"], "labels": replica["spec"]["labels"]} for replica in plan["replicas"]]


def test_a_card_that_another_name_has_is_held(two):
    chat, control = two([[0], [1]], [[3]])
    wanted, _control = two([[0], [1], [3]], [[2]])
    specs = [replica["spec"] for replica in wanted["replicas"]]
    (line,) = _machines.held_cards(specs, containers(chat) + containers(control), ["k1-control"])
    assert line.startswith("k1-chat-c3: card 0000:16:00.0 has container ironserve-c3 of k1-control")
    assert "run with --limit k1-control" in line
    # Its own containers, and those of a name that the inventory does not know any more, are its own business.
    assert _machines.held_cards(specs, containers(chat) + containers(control), ["k1-other"]) == []


def test_a_name_alone_holds_a_container_too(two):
    chat, control = two([[0]], [[0]])
    unsaid = [{"name": "ironserve-c0", "labels": {"ironserve.replica": "k1-control-c0"}}]
    (line,) = _machines.held_cards([chat["replicas"][0]["spec"]], unsaid, ["k1-control"])
    assert "container ironserve-c0 of k1-control" in line


def test_behind_the_gateway_each_model_has_a_backend_with_its_replicas_and_names(two):
    chat, control = two([[0], [1], [2]], [[3]])
    outs = {"k1-chat": {"plan": chat, "proven": ["k1-chat-c0", "k1-chat-c2"]}, "k1-control": {"plan": control, "proven": ["k1-control-c3"]}}
    servers = _haproxy.planned_servers(outs)
    groups = {group["model"]: group for group in _haproxy.model_groups(servers)}
    assert {model: group["names"] for model, group in groups.items()} == {
        "qwen3.6-35b-a3b": ["qwen3.6-35b-a3b", "chat"],
        "qwen2.5-0.5b": ["qwen2.5-0.5b", "small"],
    }
    members = {
        model: [(server["name"], server["port"], server["proven"]) for server in group["servers"]] for model, group in groups.items()
    }
    assert members == {
        "qwen3.6-35b-a3b": [("k1-chat-c0", 8001, True), ("k1-chat-c1", 8002, False), ("k1-chat-c2", 8003, True)],
        "qwen2.5-0.5b": [("k1-control-c3", 8004, True)],
    }
    assert len({group["backend"] for group in groups.values()}) == 2
    # A run of one name keeps the other's servers as the file has them.
    present = [_haproxy.ConfigServer(server["name"], "127.0.0.1", server["port"], 4, False, tuple(server["models"])) for server in servers]
    kept = _haproxy.kept_servers(present, ["k1-chat", "k1-control"], ["k1-chat"])
    assert [server.name for server in kept] == ["k1-chat-c0", "k1-chat-c1", "k1-chat-c2"]
