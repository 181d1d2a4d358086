# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who holds a card: from process ids to containers, and containers that own a card without a process. Private to the collection.

Source: cgroups(7); systemd.slice(5); Docker Engine API 1.41 (``GET /containers/json``, ``GET /containers/<id>/json``); the manuals of the
vendors' container runtimes for their variables.
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Card, Holder
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

#: A container's id as the last word of a control group's name: ``docker-<id>.scope``, ``cri-containerd:<id>``, ``libpod-<id>``, ``<id>``.
_ID = re.compile(r"^(?:(.*)[-:_])?([0-9a-f]{64})(?:\.scope|\.service|\.slice)?$")

#: What stands before the id of a container's monitor, which runs beside it, and of a pod, which is around it.
_NO_CONTAINER = ("conmon", "_pod")
#: What the kernel adds where the group was removed and the process lives on.
_DELETED = " (deleted)"

#: Length of an id as people and the engine's own lists write it.
SHORT = 12

#: Runtime of a container -> the variable by which it gives cards, and what of a card the numbers in it are.
RUNTIMES = {
    "nvidia": ("NVIDIA_VISIBLE_DEVICES", "logical_id"),
    "hcu": ("HCU_VISIBLE_DEVICES", "index"),
    "ascend": ("ASCEND_VISIBLE_DEVICES", "physical_id"),
}
#: Driver of a device request, or vendor of a CDI device -> what of a card the numbers in it are.
NUMBERS = {"nvidia": "logical_id", "hygon": "index", "hcu": "index", "huawei": "physical_id", "ascend": "physical_id"}

_NOTHING = ("", "none", "void", "no-gpu-has-this")


def container_ids(cgroup: str) -> list[str]:
    """Ids of the containers a process is in, the outermost first, from the text of ``/proc/<pid>/cgroup``.

    Knows cgroup v1 and v2, with and without systemd's slices, of Docker, containerd, CRI-O, Kubernetes and Podman. Empty for a process
    that is in none. Raises UnknownOutput for a line that is none.
    """
    best: list[str] = []
    for line in cgroup.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or not parts[0].isdigit() or not parts[2].startswith("/"):
            raise UnknownOutput("/proc/<pid>/cgroup has a line this collection does not know: {0!r}".format(line))
        found = []
        path = parts[2][: -len(_DELETED)] if parts[2].endswith(_DELETED) else parts[2]
        for name in path.split("/"):
            match = _ID.match(name)
            if match and not (match.group(1) or "").endswith(_NO_CONTAINER) and match.group(2) not in found:
                found.append(match.group(2))
        # A controller may be left at the top; the line that goes deepest is the process's place.
        if len(found) > len(best):
            best = found
    return best


def container_of(pid: int, proc: str = "/proc") -> str:
    """Id of the outermost container of process ``pid``, the one that the host's engine knows; empty for a process in none.

    A process that has ended is in none. Raises LLMError when the kernel does not say.
    """
    path = "{0}/{1}/cgroup".format(proc, pid)
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            text = handle.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError as exc:
        raise LLMError("{0}: cannot be read: {1}".format(path, exc.strerror or exc)) from exc
    return (container_ids(text) or [""])[0]


def _name(container: dict[str, Any]) -> str:
    """Name of a container as ``inspect`` (``Name``) or a list (``Names``) has it; its short id where it has none."""
    names = [container.get("Name") or ""] + list(container.get("Names") or [])
    # A link to another container is a second name with another slash.
    plain = [name.lstrip("/") for name in names if name.lstrip("/") and "/" not in name.lstrip("/")]
    return plain[0] if plain else str(container.get("Id", ""))[:SHORT]


def _runs(container: dict[str, Any]) -> bool:
    """Whether a container may hold a card just now; a paused one does."""
    state = container.get("State")
    if isinstance(state, dict):
        return bool(state.get("Running") or state.get("Paused") or state.get("Restarting"))
    return state in (None, "running", "paused", "restarting")


def _own_nodes(cards: list[Card]) -> dict[str, list[str]]:
    """Device nodes by which a card is told from the others: card id -> paths. A node that MIG devices share tells none of them."""
    found = {}
    for card in cards:
        paths = list(card.devices.values())
        others = {path for other in cards if other.id != card.id for path in other.devices.values()}
        found[card.id] = [path for path in paths if path not in others] or paths
    return found


def _maps(host_path: str, card: Card, nodes: list[str]) -> bool:
    """Whether a mapped path is one of the card's nodes, a directory of it, or a link that is named after its PCI address."""
    path = "/" + host_path.strip("/")
    return any(node == path or node.startswith(path + "/") for node in nodes) or "pci-{0}-".format(card.id) in path


def _names_card(word: str, card: Card, number: str, aliases: dict[str, str]) -> bool:
    if word.isdigit():
        value = getattr(card, number)
        return (card.index if value is None else value) == int(word)
    return word in (card.id, "all") or aliases.get(word) == card.id


def _expand(words: str) -> list[str]:
    """Words of a list with ranges: ``0-2,5`` -> 0, 1, 2, 5."""
    found = []
    for word in words.split(","):
        span = re.match(r"^(\d+)-(\d+)$", word.strip())
        found += [str(number) for number in range(int(span.group(1)), int(span.group(2)) + 1)] if span else [word.strip()]
    return found


def _requests(container: dict[str, Any]) -> list[tuple[list[str], str]]:
    """Cards that a container asks its runtime for: words (numbers, uuids, ``all``), and what of a card the numbers are."""
    host = container.get("HostConfig") or {}
    found = []
    for request in host.get("DeviceRequests") or []:
        driver = str(request.get("Driver") or "")
        wanted = [str(word) for word in request.get("DeviceIDs") or []]
        if driver == "cdi":
            for word in wanted:
                kind, _equals, device = word.partition("=")
                found.append(([device], NUMBERS.get(kind.split(".")[0], "index")))
        elif wanted:
            found.append((wanted, NUMBERS.get(driver or "nvidia", "index")))
        elif request.get("Count"):
            # -1 is all; which ones a smaller count gets, only the runtime knows.
            found.append((["all"], "index"))
    runtime = str(host.get("Runtime") or "")
    if runtime in RUNTIMES:
        variable, number = RUNTIMES[runtime]
        for entry in (container.get("Config") or {}).get("Env") or []:
            name, _equals, words = str(entry).partition("=")
            if name == variable and words not in _NOTHING:
                found.append((_expand(words), number))
    return found


def owned(cards: list[Card], container: dict[str, Any], aliases: dict[str, str] | None = None) -> list[str]:
    """Ids of the cards that a container may use, from its description (``inspect``); a list entry does not say and gives none.

    A card that is asked for by a name nobody knows may be any of them, so it is all of them.

    Args:
        aliases: other names of the cards, such as a whole GPU's uuid: name -> card id.
    """
    host = container.get("HostConfig") or {}
    if host.get("Privileged"):
        return [card.id for card in cards]
    nodes = _own_nodes(cards)
    paths = [str(device.get("PathOnHost") or "") for device in host.get("Devices") or []]
    found = {card.id for card in cards for path in paths if path and _maps(path, card, nodes[card.id])}
    for words, number in _requests(container):
        for word in words:
            those = [card.id for card in cards if _names_card(word, card, number, aliases or {})]
            found.update(those or [card.id for card in cards])
    return [card.id for card in cards if card.id in found]


def name_holders(cards: list[Card], containers: list[dict[str, Any]], aliases: dict[str, str] | None = None, proc: str = "/proc") -> None:
    """Name the container of each process that holds a card, and add the running containers that own a card without a process on it.

    A container that the list does not have is named by its short id. Holders are changed in place.

    Args:
        containers: what the engine says of its containers, ``inspect`` or list entries; only the former tell which devices they own.
        aliases: other names of the cards: name -> card id.
    """
    names = {str(container.get("Id", "")): _name(container) for container in containers}
    for card in cards:
        for holder in card.holders:
            if holder.pid and not holder.container:
                identity = container_of(holder.pid, proc)
                holder.container = names.get(identity, identity[:SHORT])
    for container in containers:
        if not _runs(container):
            continue
        name = _name(container)
        for identity in owned(cards, container, aliases):
            for card in cards:
                if card.id == identity and name not in [holder.container for holder in card.holders]:
                    card.holders.append(Holder(pid=0, container=name))
