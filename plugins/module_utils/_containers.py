# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What to do with each replica's container, decided from what is wanted and what is there. Pure. Private to the collection."""

from __future__ import annotations

import dataclasses
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._container_request import differences

KEEP = "keep"
CREATE = "create"
START = "start"
REPLACE = "replace"
REMOVE = "remove"
REVERT = "revert"
STOP = "stop"
COMMIT = "commit"
#: A change that failed before it began: the container of before runs on.
UNTOUCHED = "untouched"

#: The container a replica had before its present, not yet proven one.
PREVIOUS_SUFFIX = "-previous"

STATES = ("present", "absent", "reverted", "committed", "stopped")

#: Actions that do nothing.
IDLE = (KEEP, UNTOUCHED)


@dataclasses.dataclass
class Decision:
    """One replica's next step.

    Attributes:
        name: name of the container.
        action: keep, create, start, replace, remove, revert, untouched, stop or commit.
        reason: why, for a person.
        before, after: what a diff shows; neither holds a secret.
    """

    name: str
    action: str
    reason: str
    before: dict[str, Any]
    after: dict[str, Any]


def describe(inspected: dict[str, Any] | None) -> dict[str, Any]:
    """What a diff shows of a container: spec, image, command, state."""
    if inspected is None:
        return {}
    return {
        "spec_hash": (inspected["Config"].get("Labels") or {}).get("ironserve.spec", ""),
        "image": inspected["Config"]["Image"],
        "command": inspected["Config"].get("Cmd") or [],
        "running": bool(inspected["State"]["Running"]),
    }


def wanted(spec: dict[str, Any]) -> dict[str, Any]:
    """What a diff shows of a container to be."""
    return {"spec_hash": spec["spec_hash"], "image": spec["image"], "command": spec["command"], "running": True}


def changed(spec: dict[str, Any], current: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Where a container differs from its specification, as ``{field: (found, wanted)}``: another hash says it all, under the same one
    each field is compared."""
    found = describe(current)["spec_hash"]
    return {"spec_hash": (found, spec["spec_hash"])} if found != spec["spec_hash"] else differences(spec, current)


def decide(state: str, spec: dict[str, Any], current: dict[str, Any] | None, previous: dict[str, Any] | None) -> Decision:
    """Choose the step that leads container ``spec["name"]`` to ``state``.

    Args:
        state: ``present`` (runs with this spec), ``absent``, ``reverted`` (runs as before the last replacement), ``committed``
            (the replacement stays, what it replaced goes) or ``stopped`` (is kept for its logs).
        current, previous: the engine's descriptions of the container and of the one it replaced; None where there is none.
    """
    name = spec["name"]
    before = describe(current)
    if state == "present":
        after = wanted(spec)
        if current is None:
            return Decision(name, CREATE, "there is no such container", before, after)
        off = changed(spec, current)
        if "spec_hash" in off:
            return Decision(name, REPLACE, "its specification changed", before, after)
        if off:
            before.update((field, pair[0]) for field, pair in off.items())
            after.update((field, pair[1]) for field, pair in off.items())
            return Decision(name, REPLACE, "it is not as planned: {0}".format(", ".join(sorted(off))), before, after)
        if not before["running"]:
            return Decision(name, START, "it does not run", before, after)
        return Decision(name, KEEP, "it runs as planned", before, before)
    if state == "reverted":
        if previous is not None:
            return Decision(name, REVERT, "the replica it replaced comes back", before, dict(describe(previous), running=True))
        if current is not None and before["running"] and changed(spec, current):
            return Decision(name, UNTOUCHED, "it was not replaced yet", before, before)
        if current is not None and before["running"]:
            return Decision(name, STOP, "it has no predecessor to come back", before, dict(before, running=False))
        return Decision(name, KEEP, "nothing to take back", before, before)
    if state == "stopped":
        if current is not None and before["running"]:
            return Decision(name, STOP, "it is to be stopped", before, dict(before, running=False))
        return Decision(name, KEEP, "it does not run", before, before)
    if state == "committed":
        # A predecessor is the way back, so it goes only when what replaced it is really there.
        if previous is not None and current is not None and before["running"]:
            return Decision(name, COMMIT, "its predecessor is not needed any more", describe(previous), {})
        return Decision(name, KEEP, "nothing to commit" if previous is None else "its replacement does not run", before, before)
    if current is None and previous is None:
        return Decision(name, KEEP, "there is no such container", before, before)
    return Decision(name, REMOVE, "it is to be absent", before or describe(previous), {})


def device_conflicts(specs: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[str]:
    """Find foreign containers on the replicas' own cards. One card, one replica.

    Args:
        specs: container specifications with ``own_devices``.
        others: the engine's descriptions of all other running containers.
    Returns one line for each conflict, naming holder and device node.
    """
    lines = []
    for spec in specs:
        for other in others:
            holder = other["Name"].lstrip("/")
            host_config = other["HostConfig"]
            held = {device["PathOnHost"] for device in host_config.get("Devices") or []}
            # A directory given as a device (--device /dev/dri) holds every node in it.
            folders = tuple(path.rstrip("/") + "/" for path in held)
            taken = sorted(path for path in spec.get("own_devices", []) if path in held or path.startswith(folders))
            if taken:
                lines.append("{0}: card node {1} is held by container {2}".format(spec["name"], ", ".join(taken), holder))
            elif host_config.get("Privileged") and spec.get("own_devices"):
                lines.append("{0}: container {1} is privileged and so holds every card".format(spec["name"], holder))
    return lines
