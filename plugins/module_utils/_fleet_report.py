# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The checks of many hosts as one report: equal hosts once, the odd one with what makes it odd. Pure. Private to the collection."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._checks import UNKNOWN, Check
from ansible_collections.ironserve.llm.plugins.module_utils._names import fold
from ansible_collections.ironserve.llm.plugins.module_utils._preflight import COULD_NOT_TELL, FAILED, OK, lines, status

VERDICTS = {OK: "ok", FAILED: "FAILED", COULD_NOT_TELL: "COULD NOT TELL"}

#: Version of the report's form.
FORMAT = 1

#: What differs between equal hosts and means nothing: PCI addresses, uuids, process ids, and figures with a unit. Version numbers have
#: none, and four numbers with dots may be one.
_PASSING = re.compile(
    r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b"
    r"|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b"
    r"|(?<=\bpid )\d+|(?<=\bprocess )\d+"
    r"|[-+]?\b\d+(?:\.\d+)?(?=\s?(?:MiB|GiB|KiB|MB|GB|bytes|%|s|ms|W|C)(?![A-Za-z]))"
)


@dataclasses.dataclass
class Group:
    """Hosts that a person need not tell apart.

    Attributes:
        hosts: their names, in the order they came.
        platform: platform they have in common.
        status: 0 ok, 1 failed, 2 could not tell.
        checks: per host its checks.
    """

    hosts: list[str]
    platform: str
    status: int
    checks: list[list[Check]]


def mask(text: str, host: str = "") -> str:
    """A check's detail without what may differ between equal hosts; several such things in a row become one."""
    if host:
        text = re.sub(r"(?<![\w.-]){0}(?![\w-])".format(re.escape(host)), "…", text)
    return re.sub(r"…(?:, …)+", "…", _PASSING.sub("…", text))


def _signature(host: str, checks: list[Check]) -> tuple[tuple[str, str, str], ...]:
    return tuple((check.name, check.status, mask(check.detail, host)) for check in checks)


def group(results: list[dict[str, Any]]) -> list[Group]:
    """Put equal hosts together. The largest group of a platform comes first, then those that differ from it, at last who was not reached.

    Args:
        results: per host ``{"host", "platform", "checks"}``; a host without checks could not be told about.
    """
    found: dict[tuple[Any, ...], Group] = {}
    for result in results:
        checks = [Check(**item) for item in result["checks"]]
        if not checks:
            checks = [Check("host", UNKNOWN, "nothing was found out", "look at the messages above for this host")]
        key = (result.get("platform", ""),) + _signature(result["host"], checks)
        member = found.setdefault(key, Group([], result.get("platform", ""), status(checks), []))
        member.hosts.append(result["host"])
        member.checks.append(checks)
    groups = list(found.values())
    platforms = list(dict.fromkeys(item.platform for item in groups))
    # A host that could not be looked at is nobody's standard.
    rank = {OK: 0, FAILED: 1, COULD_NOT_TELL: 2}
    return sorted(
        groups, key=lambda item: (platforms.index(item.platform), item.status == COULD_NOT_TELL, -len(item.hosts), rank[item.status])
    )


def _shown(item: Group, wanted: list[tuple[str, str, str]] | None) -> list[Check]:
    """The checks of a group to be printed: one per check, and one per wording of what is not good; with ``wanted``, only those."""
    first = item.checks[0]
    shown = []
    for number, check in enumerate(first):
        if wanted is not None and check.good and _signature(item.hosts[0], [check])[0] not in wanted:
            continue
        wordings: dict[str, list[str]] = {}
        for host, checks in zip(item.hosts, item.checks):
            wordings.setdefault(checks[number].detail, []).append(host)
        if len(wordings) == 1:
            shown.append(check)
        elif check.good:
            shown.append(Check(check.name, check.status, mask(check.detail, item.hosts[0]), check.fix))
        else:
            for detail, hosts in wordings.items():
                shown.append(Check(check.name, check.status, "{0}: {1}".format(fold(hosts), detail), check.fix))
    return shown


def _title(item: Group) -> str:
    size = "{0} hosts, ".format(len(item.hosts)) if len(item.hosts) > 1 else ""
    return "{0} ({1}{2}): {3}".format(fold(item.hosts), size, item.platform or "platform unknown", VERDICTS[item.status])


def render(results: list[dict[str, Any]]) -> list[str]:
    """The report as lines: a summary, then each group; a group that is not its platform's largest shows what differs."""
    groups = group(results)
    counts = {code: sum(len(item.hosts) for item in groups if item.status == code) for code in VERDICTS}
    total = sum(counts.values())
    text = [
        "preflight of {0} {1}: {2} ok, {3} failed, {4} could not tell".format(total, "host" if total == 1 else "hosts", *counts.values())
    ]
    standards: dict[str, Group] = {}
    for item in groups:
        standard = standards.setdefault(item.platform, item)
        if standard is item:
            text += ["", _title(item)] + ["  " + line for line in lines(_shown(item, None))]
            continue
        own, usual = _signature(item.hosts[0], item.checks[0]), _signature(standard.hosts[0], standard.checks[0])
        differs = [entry for entry in own if entry not in usual]
        gone = [name for name in dict.fromkeys(entry[0] for entry in usual) if name not in {entry[0] for entry in own}]
        text += ["", "{0}; unlike {1}:".format(_title(item), fold(standard.hosts))]
        text += ["  " + line for line in lines(_shown(item, differs))]
        if gone:
            text.append("  not checked: {0}".format(", ".join(gone)))
    return text


def fleet_status(results: list[dict[str, Any]]) -> int:
    """0, 1 or 2 over all hosts: a failed one beats one that could not be told about; no host at all is no good news."""
    codes = {item.status for item in group(results)}
    if FAILED in codes:
        return FAILED
    return OK if codes == {OK} else COULD_NOT_TELL


def build(results: list[dict[str, Any]], date: str) -> dict[str, Any]:
    """The report as data, to be written as JSON.

    Returns ``{"format", "date", "status", "verdict", "counts", "hosts", "groups"}``: every check of every host, and which hosts are equal.
    """
    groups = group(results)
    code = fleet_status(results)
    return {
        "format": FORMAT,
        "date": date,
        "status": code,
        "verdict": VERDICTS[code].lower(),
        "counts": {VERDICTS[key].lower(): sum(len(item.hosts) for item in groups if item.status == key) for key in VERDICTS},
        "hosts": {
            host: {"platform": item.platform, "status": item.status, "checks": [check.as_dict() for check in checks]}
            for item in groups
            for host, checks in zip(item.hosts, item.checks)
        },
        "groups": [{"hosts": item.hosts, "pattern": fold(item.hosts), "platform": item.platform, "status": item.status} for item in groups],
    }
