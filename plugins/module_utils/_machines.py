# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Several names of an inventory that are one machine, each for one model. Pure. Private to the collection.

A name of the inventory runs one model. A machine with two models stands in it under two names with one address, each with cards of its own.
"""

from __future__ import annotations

from typing import Any

#: Connections that reach the machine that Ansible runs on, whatever the name.
LOCAL = ("local", "ansible.builtin.local")

#: Label of a container that names its replica.
REPLICA_LABEL = "ironserve.replica"


def machine_of(name: str, variables: dict[str, Any]) -> tuple[str, ...]:
    """What two names of one machine have in common: how they are reached, and, where a host is played, the directory that it is."""
    root = str(variables.get("accelerator_root") or "/").rstrip("/")
    if variables.get("ansible_connection") in LOCAL:
        return ("", "", root)
    return (str(variables.get("ansible_host") or name), str(variables.get("ansible_port") or ""), root)


def shared_machines(variables: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Find the names that are one machine, by the variables of each name.

    Returns for each such name all names of its machine, itself included, in the order given. A name with a machine of its own is not in it.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for name, own in variables.items():
        found.setdefault(machine_of(name, own), []).append(name)
    return {name: names for names in found.values() if len(names) > 1 for name in names}


def owner(labels: dict[str, str] | None) -> str:
    """The name of the inventory that made a container, by its labels; empty when they do not say."""
    return (labels or {}).get(REPLICA_LABEL, "").rpartition("-c")[0]


def plan_conflicts(plan: dict[str, Any], others: list[dict[str, Any]]) -> list[str]:
    """Say which cards and ports of ``plan`` other plans of the same machine take too; one line for each, with what to do."""
    lines = []
    for other in others:
        for mine in plan["replicas"]:
            for theirs in other["replicas"]:
                cards = [card for card in mine["cards"] if card in theirs["cards"]]
                if cards:
                    lines.append(
                        "{0} and {1} both take card {2}: one card, one replica; say with replica_card_groups which cards "
                        "{3} and {4} have".format(mine["name"], theirs["name"], ", ".join(cards), plan["host"], other["host"])
                    )
                elif mine["port"] == theirs["port"]:
                    lines.append(
                        "{0} and {1} both take port {2}; give {3} or {4} another replica_port_base".format(
                            mine["name"], theirs["name"], mine["port"], plan["host"], other["host"]
                        )
                    )
    return lines


def held_cards(specs: list[dict[str, Any]], containers: list[dict[str, Any]], neighbours: list[str]) -> list[str]:
    """Find cards of ``specs`` that replicas of other names of this inventory have on this very machine, running or not.

    Args:
        specs: container specifications of the plan, with their labels.
        containers: ``{"name", "labels"}`` of the replicas' containers on the machine.
        neighbours: the other names of the inventory.
    Returns one line for each, with what to do.
    """
    lines = []
    for spec in specs:
        wanted = spec["labels"]["ironserve.cards"].split(",")
        for item in containers:
            whose = owner(item["labels"])
            taken = [card for card in item["labels"].get("ironserve.cards", "").split(",") if card in wanted]
            if whose in neighbours and (taken or item["name"] == spec["name"]):
                lines.append(
                    "{0}: card {1} has container {2} of {3}, which is another name of this machine. Let {3} give it up first: change its "
                    "replica_card_groups and run with --limit {3}; or leave the card out here".format(
                        spec["labels"][REPLICA_LABEL], ", ".join(taken or wanted), item["name"], whose
                    )
                )
    return lines
