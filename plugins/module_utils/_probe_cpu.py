# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Probe of platform ``cpu``: a card is one core and a memory limit, its use the CPU time of the containers on it. Private to the collection."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _cgroup, _docker
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import OK, Accelerators, Card, Holder
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

#: Memory left to the host itself, MiB.
HOST_RESERVE_MIB = 1024

#: How long use is measured, seconds.
WINDOW_S = 0.2


def parse_memory_total_mib(meminfo: str) -> int:
    """Read ``MemTotal`` (kB) from the text of ``/proc/meminfo`` as MiB."""
    for line in meminfo.splitlines():
        words = line.split()
        if words[:1] == ["MemTotal:"] and len(words) == 3 and words[2] == "kB":
            return int(words[1]) // 1024
    raise UnknownOutput("/proc/meminfo has no MemTotal line in kB")


def lay_out(cores: list[int], memory_total_mib: int, cards: int, card_mib: int, reserve_mib: int = HOST_RESERVE_MIB) -> list[Card]:
    """Cut a host into cards: as many of the ``cards`` asked for as memory holds, cores shared in turn.

    The host's total memory decides, not what is free just now, so that a running fleet does not change its own plan.
    """
    room = max(0, (memory_total_mib - reserve_mib) // card_mib)
    return [
        Card(
            id="cpu:{0}".format(index),
            index=index,
            name="CPU core",
            name_raw=platform.machine(),
            architecture=platform.machine(),
            memory_total_mib=card_mib,
            cpuset=str(cores[index % len(cores)]),
            health=OK,
        )
        for index in range(min(cards, room))
    ]


def _containers_by_card() -> dict[str, list[dict[str, Any]]]:
    """Running containers of ours by card id; none where there is no engine to hold a card."""
    try:
        client = _docker.connect()
    except _docker.EngineAbsent:
        return {}
    found: dict[str, list[dict[str, Any]]] = {}
    for item in client.containers(filters={"label": "ironserve.cards", "status": "running"}):
        inspected = _docker.inspect(client, item["Names"][0].lstrip("/"))
        if inspected and inspected["State"]["Pid"]:
            for card in item["Labels"]["ironserve.cards"].split(","):
                found.setdefault(card, []).append({"name": inspected["Name"].lstrip("/"), "pid": int(inspected["State"]["Pid"])})
    return found


def _cpu_seconds(accounts: list[str]) -> float:
    return sum(_cgroup.cpu_seconds(path) for path in accounts)


def probe(vendor: Vendor) -> Accelerators:
    """Read this host's cards.

    Args:
        vendor: its options are ``cards`` (how many to play) and ``card_memory_mib`` (MiB each).
    Raises LLMError when memory does not hold a single card, or a figure cannot be read.
    """
    options = vendor.options
    for name in ("cards", "card_memory_mib"):
        if int(options.get(name, 0)) < 1:
            raise LLMError("accelerator_cpu_{0} must be 1 or more, found {1}".format(name, options.get(name)))
    cores = sorted(os.sched_getaffinity(0))
    with open("/proc/meminfo", encoding="ascii") as handle:
        total = parse_memory_total_mib(handle.read())
    cards = lay_out(cores, total, int(options["cards"]), int(options["card_memory_mib"]))
    if not cards:
        raise LLMError(
            "this host has {0} MiB of memory; one card of {1} MiB and {2} MiB for the host itself do not fit. "
            "Lower accelerator_cpu_card_memory_mib or add memory".format(total, options["card_memory_mib"], HOST_RESERVE_MIB)
        )
    try:
        held = _containers_by_card()
    except _docker.ENGINE_ERRORS as exc:
        raise LLMError("the container engine does not say what it runs: {0}".format(exc)) from exc
    try:
        began = time.monotonic()
        accounts = {card.id: [_cgroup.account_of(item["pid"], "cpu") for item in held.get(card.id, [])] for card in cards}
        before = {card.id: _cpu_seconds(accounts[card.id]) for card in cards}
        if held:
            time.sleep(WINDOW_S)
        window = max(time.monotonic() - began, 1e-3)
        for card in cards:
            containers = held.get(card.id, [])
            card.holders = [Holder(pid=item["pid"], container=item["name"]) for item in containers]
            card.memory_used_mib = sum(_cgroup.memory_bytes(item["pid"]) for item in containers) // 2**20
            card.utilisation_pct = round(100.0 * (_cpu_seconds(accounts[card.id]) - before[card.id]) / window, 1) if containers else 0.0
    except OSError as exc:
        raise LLMError("a replica ended while its control group was read: {0}; run again".format(exc)) from exc
    return Accelerators(probe="cpu", tool="{0} cores, {1} MiB".format(len(cores), total), cards=cards)
