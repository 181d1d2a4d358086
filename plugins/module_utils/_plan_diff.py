# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a plan would change of what runs. Pure. Private to the collection."""

from __future__ import annotations

import dataclasses
import posixpath
from typing import Any, Iterable

from ansible_collections.ironserve.llm.plugins.module_utils._container_request import differences
from ansible_collections.ironserve.llm.plugins.module_utils._containers import PREVIOUS_SUFFIX
from ansible_collections.ironserve.llm.plugins.module_utils._plan import CACHE_TARGET

#: What becomes of a replica.
SAME = "same"
START = "start"
NEW = "new"
CHANGE = "change"
GONE = "gone"
#: It may be the same: what differs is known on the host only.
OPEN = "open"

#: Sources of an image whose reference the host alone knows.
_LATER = ("build:", "archive:")


@dataclasses.dataclass
class Difference:
    """One replica, planned or running.

    Attributes:
        container: name of its container.
        state: ``same``, ``start`` (it stands still), ``new``, ``change``, ``gone`` (it is in no plan) or ``open``.
        details: what differs, one line each.
    """

    container: str
    state: str
    details: list[str] = dataclasses.field(default_factory=list)

    def lines(self) -> list[str]:
        """For a person."""
        return ["{0:<6} {1}".format(self.state, self.container)] + ["         " + line for line in self.details]


def _flags(command: list[str]) -> dict[str, str]:
    """Words of a command line by flag; what stands before the first flag is under an empty one."""
    flags: dict[str, list[str]] = {"": []}
    flag = ""
    for word in command:
        if word.startswith("--"):
            flag, _equals, value = word.partition("=")
            flags.setdefault(flag, []).extend([value] if value else [])
        else:
            flags[flag].append(word)
    return {name: " ".join(values) for name, values in flags.items()}


def _maps(what: str, before: dict[str, str], after: dict[str, str]) -> list[str]:
    lines = []
    for name in sorted(set(before) | set(after)):
        label = " ".join(filter(None, [what, name]))
        if name not in after:
            lines.append("- {0} {1}".format(label, before[name]).rstrip())
        elif name not in before:
            lines.append("+ {0} {1}".format(label, after[name]).rstrip())
        elif before[name] != after[name]:
            lines.append("~ {0} {1} -> {2}".format(label, before[name], after[name]))
    return lines


def _sources(mounts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Sources of mounts by target, without the description of the weights, which is known on the host only.

    Of a cache only whose it is: there is one for each image, and the image has a line of its own.
    """
    return {
        target: posixpath.dirname(source) if target == CACHE_TARGET else source
        for target, source in mounts
        if not target.endswith("/config.json")
    }


def _one(replica: dict[str, Any], found: dict[str, Any]) -> Difference:
    spec, labels = replica["spec"], found["labels"]
    if labels.get("ironserve.spec") == spec["spec_hash"]:
        off = differences(spec, found["inspected"])
        if not off:
            return Difference(spec["name"], SAME if found["running"] else START)
        lines = ["~ {0} {1} -> {2}".format(field, *off[field]) for field in sorted(off)]
        return Difference(spec["name"], CHANGE, ["not as planned, although its hash is:"] + lines)
    later, lines = [], []
    if spec["image"].startswith(_LATER):
        later.append("image (now {0})".format(found["image"]))
    elif spec["image"] != found["image"]:
        lines.append("~ image {0} -> {1}".format(found["image"], spec["image"]))
    lines += _maps("", _flags(found["command"]), _flags(spec["command"]))
    # The image brings variables of its own; only those that a plan has, or had, are compared.
    planned = spec["environment"]
    lines += _maps("environment", {name: value for name, value in found["environment"].items() if name in planned}, planned)
    publish = spec["publish"]
    before = {
        "port": "{0[address]}:{0[port]}".format(found["publish"]) if found["publish"] else "none",
        "cards": labels.get("ironserve.cards", ""),
    }
    after = {"port": "{0[address]}:{0[port]}".format(publish), "cards": spec["labels"]["ironserve.cards"]}
    before["devices"], after["devices"] = " ".join(sorted(found["devices"])), " ".join(sorted(spec["devices"]))
    lines += _maps("", before, after)
    mounted = (found["inspected"].get("HostConfig") or {}).get("Mounts") or []
    lines += _maps(
        "mount",
        _sources((item["Target"], item.get("Source") or "") for item in mounted),
        _sources((item["target"], item["source"]) for item in spec["mounts"]),
    )
    wanted = spec["labels"]["ironserve.weights"]
    if not wanted:
        later.append("weights (now {0})".format(labels.get("ironserve.weights", "")[:12] or "unknown"))
    elif wanted != labels.get("ironserve.weights"):
        lines.append("~ weights {0} -> {1}".format(labels.get("ironserve.weights", "")[:12], wanted[:12]))
    if lines:
        return Difference(spec["name"], CHANGE, lines)
    later += ["key", "description of the weights", "limits"]
    return Difference(
        spec["name"], OPEN, ["nothing that a plan without the host knows; site.yml --check compares {0}".format(", ".join(later))]
    )


def compare(plan: dict[str, Any], containers: list[dict[str, Any]]) -> list[Difference]:
    """Hold a plan against the replicas' containers on its host.

    Args:
        containers: as ``describe`` gives them; what was replaced and is kept for the way back is passed over.
    Returns one difference for each replica of the plan, in its order, then those that are in no plan.
    """
    found = {item["name"]: item for item in containers if not item["name"].endswith(PREVIOUS_SUFFIX)}
    result = []
    for replica in plan["replicas"]:
        name = replica["container"]
        result.append(_one(replica, found.pop(name)) if name in found else Difference(name, NEW))
    return result + [Difference(name, GONE) for name in sorted(found)]


def describe(inspected: dict[str, Any]) -> dict[str, Any]:
    """What ``compare`` needs of a container, from the container engine's own description.

    Returns ``{"name", "running", "image", "labels", "command", "environment", "publish", "devices", "inspected"}``; ``publish`` is the
    first published port (``address``, ``port``) or empty, ``inspected`` the whole description.
    """
    config, host = inspected["Config"], inspected["HostConfig"]
    bindings = [item for items in (host.get("PortBindings") or {}).values() for item in items or []]
    return {
        "name": inspected["Name"].lstrip("/"),
        "running": bool(inspected["State"]["Running"]),
        "image": config["Image"],
        "labels": config.get("Labels") or {},
        "command": config.get("Cmd") or [],
        "environment": dict(item.split("=", 1) for item in config.get("Env") or [] if "=" in item),
        "publish": {"address": bindings[0]["HostIp"], "port": int(bindings[0]["HostPort"])} if bindings else {},
        "devices": [item["PathOnHost"] for item in host.get("Devices") or []],
        "inspected": inspected,
    }
