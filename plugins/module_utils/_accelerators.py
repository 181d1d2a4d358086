# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One schema for the cards of every platform, and the checks a host must pass before it is planned. Private to the collection."""

from __future__ import annotations

import dataclasses
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, PASS, UNKNOWN, WARN, Check

OK = "ok"
WARNING = "warning"
FAULT = "fault"


@dataclasses.dataclass
class Holder:
    """Who holds a card: a process, a container, or both (the other is then 0 or empty).

    Attributes:
        pid: process id as the tool shows it; 0 when only the container is known.
        container: name of the container.
        name: name of the process; empty where the tool hides it.
        memory_mib: device memory it holds, MiB; None where the tool does not say.
    """

    pid: int
    container: str = ""
    name: str = ""
    memory_mib: int | None = None


@dataclasses.dataclass
class Card:
    """One accelerator device. A figure the tool does not give, or lies about, is None.

    Attributes:
        id: stable identity: PCI address as sysfs writes it (``0000:07:00.0``), the vendor's uuid for a slice of a card, or
            ``<probe>:<number>`` where there is neither.
        index: number of the card on its host, unique, by which replicas and ports are named: what the vendor's tool shows, or the
            physical id where a card has several dies.
        name: product name in our normal form.
        name_raw: product name as the tool spells it.
        architecture: ``gfx928``, ``910B2``, ``sm_90``, ``x86_64``.
        memory_total_mib, memory_used_mib: device memory (HBM where there is any), MiB; a lost card may no longer say even the first.
        ddr_total_mib, ddr_used_mib: second memory of the card, MiB; None where there is none or the tool prints a constant.
        utilisation_pct: use over the sampling window, 0 to 100.
        temperature_c, power_w: degrees Celsius, watts.
        health: ``ok``, ``warning``, ``fault`` or ``unknown``.
        health_detail: what the tool said when it did not say ok, in one line.
        holders: processes or containers on the card.
        devices: device nodes the card owns: kind -> path.
        cpuset: cores the card stands for; only on platform ``cpu``.
        numa_node: NUMA node.
        physical_id, logical_id: the vendor's numbers where they can differ.
        die: number of the die on a card that has several.
        link: ``up``, ``down`` or ``unknown``; None where the card has no link of its own.
        link_detail: address and network health of the link, in one line.
        uuid: the vendor's own name of the card, by which its container toolkit is asked for it; empty where there is none.
    """

    id: str
    index: int
    name: str
    name_raw: str
    architecture: str
    memory_total_mib: int | None
    memory_used_mib: int | None = None
    ddr_total_mib: int | None = None
    ddr_used_mib: int | None = None
    utilisation_pct: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    health: str = UNKNOWN
    health_detail: str = ""
    holders: list[Holder] = dataclasses.field(default_factory=list)
    devices: dict[str, str] = dataclasses.field(default_factory=dict)
    cpuset: str = ""
    numa_node: int | None = None
    physical_id: int | None = None
    logical_id: int | None = None
    die: int | None = None
    link: str | None = None
    link_detail: str = ""
    uuid: str = ""


@dataclasses.dataclass
class Accelerators:
    """What a probe found on one host.

    Attributes:
        probe: name of the probe.
        tool: tool that was read, with its version where it has one of its own.
        cards: the cards, by index.
        driver_version, runtime_version, firmware_version, tool_version: None where the platform has none.
        driver_live: whether the kernel runs the driver; None where the platform has none.
        aliases: other names by which a container may ask for a card, such as a uuid: name -> card id.
        checks: what the probe itself saw, beyond the cards.
    """

    probe: str
    tool: str
    cards: list[Card]
    driver_version: str | None = None
    driver_live: bool | None = None
    runtime_version: str | None = None
    firmware_version: str | None = None
    tool_version: str | None = None
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)
    checks: list[Check] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for module results."""
        return dataclasses.asdict(self)


def preflight(found: Accelerators, expected: int, minimum_mib: int, device_errors: dict[str, str]) -> list[Check]:
    """Check what a probe found, one line per check.

    Args:
        expected: how many cards the host must have; 0 means any number but none.
        minimum_mib: least memory of each card, MiB.
        device_errors: device nodes that must open and do not: path -> reason.
    """
    cards = found.cards
    checks = [Check("probe", PASS, "{0} ({1})".format(found.probe, found.tool))] + found.checks

    wanted = str(expected) if expected else "at least 1"
    enough = len(cards) == expected if expected else bool(cards)
    fix = "" if enough else "find out what took the cards away, or set accelerator_expected_cards to what the host should have"
    checks.append(Check("card_count", PASS if enough else FAIL, "{0} cards, {1} expected".format(len(cards), wanted), fix))

    twice = sorted({card.id for card in cards if [other.id for other in cards].count(card.id) > 1})
    checks.append(
        Check("card_identity", FAIL, "identities given twice: {0}".format(", ".join(twice)), "report the tool's output")
        if twice
        else Check("card_identity", PASS, "{0}".format(", ".join(card.id for card in cards) or "none"))
    )

    small = [
        "{0} {1}".format(card.id, "does not say how much" if card.memory_total_mib is None else "has {0} MiB".format(card.memory_total_mib))
        for card in cards
        if card.memory_total_mib is None or card.memory_total_mib < minimum_mib
    ]
    checks.append(
        Check("card_memory", FAIL, "{0}, {1} MiB needed".format("; ".join(small), minimum_mib), "choose the platform that fits these cards")
        if small
        else Check("card_memory", PASS, "{0} MiB each or more".format(minimum_mib))
    )

    statuses = {OK: PASS, WARNING: WARN, FAULT: FAIL}
    for health in sorted({card.health for card in cards} - {OK}):
        status = statuses.get(health, UNKNOWN)
        ill = [card.id for card in cards if card.health == health]
        fix = "" if status == WARN else "mend the card, or leave it out with replica_allow_degraded"
        checks.append(Check("card_health", status, "{0}: {1}".format(health, ", ".join(ill)), fix))
    if cards and all(card.health == OK for card in cards):
        checks.append(Check("card_health", PASS, "all ok"))

    if device_errors:
        text = "; ".join("{0}: {1}".format(path, why) for path, why in sorted(device_errors.items()))
        checks.append(Check("device_nodes", FAIL, text, "load the driver and check the nodes' owners and modes"))
    else:
        nodes = sum(len(card.devices) for card in cards)
        checks.append(Check("device_nodes", PASS, "{0} nodes of cards open".format(nodes)))
    return checks
