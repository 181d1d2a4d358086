# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which versions go together and which have known holes: rows of data, judged for one host. Pure. Private to the collection.

A row says ``when`` it applies and its ``verdict``. What is not known about a host is None, and a row that hangs on it is undecided:
an undecided refusal is ``unknown``, never ok. A question that was not asked (no model chosen) is absent, and its rows do not apply.
"""

from __future__ import annotations

import dataclasses
import datetime
import fnmatch
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._catalog import GRADES as FACT_GRADES
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARN, Check
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput, nearest

VERDICTS = {"ok": PASS, "warn": WARN, "refuse": FAIL}

#: ``reported``: read in a public report and measured by nobody we know; may warn, never refuses, and vouches for nothing.
GRADES = FACT_GRADES + ("reported",)

#: Conditions on numbers, ``>=6.3,<7``, and conditions on words, ``910B*``.
VERSION_KEYS = ("driver", "firmware", "runtime", "engine_version", "tensor_parallel_size")
TEXT_KEYS = ("platform", "product", "architecture", "engine", "image", "model", "weights", "enhancement")
#: Conditions on one setting or variable, as ``settings.dtype``; what is not set is an empty text.
DOTTED_KEYS = ("settings", "environment")

#: Keys of a row, and whether it must have them.
ROW_KEYS = {"when": True, "verdict": True, "reason": True, "source": True, "date": True, "grade": True, "fix": False}
HOLE_KEYS = {
    "engine": True,
    "since": False,
    "below": False,
    "through": False,
    "when": False,
    "severity": True,
    "verdict": True,
    "reason": True,
    "fix": True,
    "source": True,
    "date": True,
    "grade": True,
}

YES, NO, UNDECIDED = "yes", "no", "undecided"

_PHASES = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "rc": 3, "post": 5}
_FINAL = 4
_NUMBER = re.compile(r"^\d+(?:\.\d+)*", re.ASCII)
# A lone letter behind a number is somebody's revision, not an alpha.
_PHASE = re.compile(r"^[.-]?(?:(dev|alpha|beta|rc|post)\.?(\d+(?:\.\d+)*)?|(a|b)(\d+))", re.ASCII)
_BUILD = re.compile(r"-v(\d+(?:\.\d+)*)([a-z]?)$", re.ASCII)
_LOCAL = re.compile(r"\+[a-z0-9]+(?:[._-][a-z0-9]+)*$", re.ASCII)
_OPERATOR = re.compile(r"^(>=|<=|==|!=|>|<)?\s*(\S+)$")


@dataclasses.dataclass(frozen=True)
class Version:
    """A version that can be compared.

    Attributes:
        release: the numbers, without zeros at their end.
        phase: what the numbers are followed by, in order: ``(rank, numbers)`` of dev, alpha, beta, rc, nothing, post.
        build: the vendor's build behind the version (``V1.5.0a``), empty where there is none.
    """

    release: tuple[int, ...]
    phase: tuple[Any, ...]
    build: tuple[Any, ...] = ()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def parse_version(text: Any) -> Version:
    """Read a version as drivers, runtimes and engines spell it.

    Known: ``25.5.1``, ``580.95.05``, ``24.1.rc2``, ``23.0.RC3.3``, ``v0.17.0rc1``, ``0.19.1rc1.dev3``, ``0.18.1+das.dtk2604``,
    ``6.3.31-V1.5.0a``, ``rock-5.7.1-6.2.26-V1.5`` (the driver is the second number), ``DTK-26.04-rc4``, ``CANN 8.5.1``, ``26.04``.
    Raises UnknownOutput for anything else.
    """
    rest = str(text).strip().lower()
    rest = re.sub(r"^rock-(?:\d+(?:\.\d+)+-)?(?=\d)", "", rest)
    rest = re.sub(r"^(?:v|(?:dtk|cann|cuda)[ -]?)(?=\d)", "", rest)
    # What stands behind a plus says who built it, not how new it is.
    rest = _LOCAL.sub("", rest)
    build: tuple[Any, ...] = ()
    match = _BUILD.search(rest)
    if match:
        build = (_numbers(match.group(1)), match.group(2))
        rest = rest[: match.start()]
    match = _NUMBER.match(rest)
    if not match:
        raise UnknownOutput("{0!r} is no version this collection knows".format(text))
    release = _numbers(match.group(0))
    rest = rest[match.end() :]
    phases = []
    while rest:
        match = _PHASE.match(rest)
        if not match or len(phases) == 3:
            raise UnknownOutput("{0!r} is no version this collection knows".format(text))
        word, number = match.group(1) or match.group(3), match.group(2) or match.group(4)
        phases.append((_PHASES[word], _numbers(number or "0")))
        rest = rest[match.end() :]
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    # The mark of an end makes rc1.dev3 come before rc1, and 1.0.dev1 before 1.0.
    return Version(release, tuple(phases) + ((_FINAL, ()),), build)


def compare(left: Version, right: Version) -> int:
    """-1, 0 or 1. The vendor's build counts only where both sides name one."""
    pairs = [(left.release, right.release), (left.phase, right.phase)]
    if left.build and right.build:
        pairs.append((left.build, right.build))
    for one, other in pairs:
        if one != other:
            return -1 if one < other else 1
    return 0


def satisfies(text: Any, condition: str) -> bool:
    """Whether a version fulfils ``>=6.3,<7``, ``0.18.*``, ``!=8.5.1`` or ``8.5.1``; commas mean and.

    Raises UnknownOutput for a version of unknown form, on either side.
    """
    version = parse_version(text)
    for part in condition.split(","):
        match = _OPERATOR.match(part.strip())
        if not match:
            raise UnknownOutput("{0!r} is no condition on a version".format(condition))
        operator, bound = match.group(1) or "==", match.group(2)
        if bound.endswith(".*"):
            prefix = _numbers(bound[:-2]) if _NUMBER.fullmatch(bound[:-2]) else ()
            if not prefix or operator not in ("==", "!="):
                raise UnknownOutput("{0!r} is no condition on a version".format(condition))
            padded = version.release + (0,) * len(prefix)
            held = padded[: len(prefix)] == prefix
            held = held if operator == "==" else not held
        else:
            order = compare(version, parse_version(bound))
            held = {
                "==": order == 0,
                "!=": order != 0,
                "<": order < 0,
                "<=": order <= 0,
                ">": order > 0,
                ">=": order >= 0,
            }[operator]
        if not held:
            return False
    return True


def _listed(value: Any) -> list[str]:
    return [str(item) for item in (value if isinstance(value, (list, tuple)) else [value])]


def fits_text(values: list[str], wanted: list[str]) -> bool:
    """Whether words fit patterns: one of the plain ones, and none of those behind a ``!``. Case does not matter."""

    def any_fits(pattern: str) -> bool:
        return any(fnmatch.fnmatchcase(value.lower(), pattern.lower()) for value in values)

    plain = [item for item in wanted if not item.startswith("!")]
    return (not plain or any(any_fits(item) for item in plain)) and not any(any_fits(item[1:]) for item in wanted if item.startswith("!"))


def _check_condition(key: str, value: Any, where: str) -> None:
    if key in VERSION_KEYS:
        for condition in _listed(value):
            try:
                satisfies("1", condition)
            except UnknownOutput as exc:
                raise LLMError("{0}: when.{1}: {2}".format(where, key, exc)) from exc
    elif key not in TEXT_KEYS and key.split(".", 1)[0] not in DOTTED_KEYS:
        known = list(VERSION_KEYS) + list(TEXT_KEYS) + [name + ".<name>" for name in DOTTED_KEYS]
        raise LLMError("{0}: unknown condition '{1}'; {2}".format(where, key, nearest(key, known)))


def _check_row(row: Any, keys: dict[str, bool], where: str) -> None:
    if not isinstance(row, dict):
        raise LLMError("{0}: a row is a mapping with the keys {1}, found {2!r}".format(where, ", ".join(keys), row))
    for key in row:
        if key not in keys:
            raise LLMError("{0}: unknown key '{1}'; {2}".format(where, key, nearest(str(key), list(keys))))
    for key, required in keys.items():
        if required and not row.get(key):
            raise LLMError("{0}: the key '{1}' is missing or empty".format(where, key))
    for key, known in (("verdict", list(VERDICTS)), ("grade", list(GRADES))):
        if row[key] not in known:
            raise LLMError("{0}: unknown {1} '{2}'; {3}".format(where, key, row[key], nearest(str(row[key]), known)))
    if row["grade"] == "reported" and row["verdict"] == "refuse":
        raise LLMError("{0}: what is only reported may warn, not refuse".format(where))
    try:
        datetime.datetime.strptime(str(row["date"]), "%Y-%m-%d")
    except ValueError as exc:
        raise LLMError("{0}: the date must be written as 2026-11-30, found {1!r}".format(where, row["date"])) from exc
    when = row.get("when", {})
    if not isinstance(when, dict) or ("when" in row and not when):
        raise LLMError("{0}: 'when' must be a mapping of conditions, found {1!r}".format(where, when))
    for key, value in when.items():
        _check_condition(str(key), value, where)
    for key in ("since", "below", "through"):
        if key in row:
            try:
                parse_version(row[key])
            except UnknownOutput as exc:
                raise LLMError("{0}: {1}: {2}".format(where, key, exc)) from exc


def read_table(entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Check the entries of the catalog's folder ``compatibility`` and lay them together.

    Args:
        entries: entries by name, each with ``rows`` and ``vulnerabilities`` by id.
    Returns ``{"rows", "vulnerabilities"}``, each by id (``<entry>/<id>`` for rows, the plain id for vulnerabilities).
    Raises LLMError that names entry, row and key.
    """
    table: dict[str, dict[str, dict[str, Any]]] = {"rows": {}, "vulnerabilities": {}}
    for name, entry in sorted(entries.items()):
        for kind, keys in (("rows", ROW_KEYS), ("vulnerabilities", HOLE_KEYS)):
            for identity, row in sorted((entry.get(kind) or {}).items()):
                _check_row(row, keys, "compatibility '{0}', {1} '{2}'".format(name, kind, identity))
                table[kind]["{0}/{1}".format(name, identity) if kind == "rows" else str(identity)] = row
    return table


def select(table: dict[str, dict[str, dict[str, Any]]], platform: str, engine: str) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows that can apply to one platform and engine at all; the others would only travel along."""

    def concerns(row: dict[str, Any]) -> bool:
        when = row.get("when", {})
        fits = "platform" not in when or fits_text([platform], _listed(when["platform"]))
        return fits and ("engine" not in when or fits_text([engine], _listed(when["engine"])))

    return {
        "rows": {name: row for name, row in table["rows"].items() if concerns(row)},
        "vulnerabilities": {name: row for name, row in table["vulnerabilities"].items() if row["engine"] == engine and concerns(row)},
    }


def applies(when: dict[str, Any], situation: dict[str, Any]) -> tuple[str, str]:
    """Whether conditions hold: ``yes``, ``no`` or ``undecided``, and what an undecided one hangs on.

    One condition that surely fails settles it, whatever is not known about the others.
    """
    undecided = []
    for key, wanted in when.items():
        base, dot, name = key.partition(".")
        if dot:
            value = situation.get(base, {}).get(name)
            # Settings and variables are all known; what is absent is not set.
            value = "" if value is None else str(value)
        elif key not in situation:
            return NO, ""
        else:
            value = situation[key]
        if value is None:
            undecided.append("the {0} is not known".format(key.replace("_", " ")))
            continue
        if key in VERSION_KEYS:
            try:
                held = any(satisfies(value, condition) for condition in _listed(wanted))
            except UnknownOutput as exc:
                undecided.append("{0}: {1}".format(key.replace("_", " "), exc))
                continue
        else:
            held = fits_text(_listed(value), _listed(wanted))
        if not held:
            return NO, ""
    return (UNDECIDED, "; ".join(undecided)) if undecided else (YES, "")


def _origin(row: dict[str, Any]) -> str:
    return "{0}, {1}, {2}".format(row["source"], row["date"], row["grade"])


def judge(rows: dict[str, dict[str, Any]], situation: dict[str, Any]) -> list[Check]:
    """One check per row that applies or may apply, each naming its row.

    Args:
        rows: by id.
        situation: the keys of ``VERSION_KEYS`` and ``TEXT_KEYS`` that are asked about, None where the answer is not known;
            ``settings`` and ``environment`` as mappings.
    """
    checks = []
    vouched = False
    for name, row in sorted(rows.items()):
        held, hangs_on = applies(row["when"], situation)
        verdict = row["verdict"]
        if held == YES:
            vouched = vouched or (verdict == "ok" and row["grade"] != "reported")
            fix = row.get("fix", "take a combination that the table vouches for" if verdict == "refuse" else "")
            checks.append(Check("compatibility", VERDICTS[verdict], "row {0}: {1} ({2})".format(name, row["reason"], _origin(row)), fix))
        elif held == UNDECIDED and verdict != "ok":
            status = UNKNOWN if verdict == "refuse" else WARN
            fix = "find out what is missing, or state it: version and runtime of replica_image, or of the engine's image in the catalog"
            checks.append(
                Check(
                    "compatibility",
                    status,
                    "row {0} cannot be ruled out, {1}: {2} ({3})".format(name, hangs_on, row["reason"], _origin(row)),
                    fix if status == UNKNOWN else "",
                )
            )
    if not vouched:
        asked = [
            "{0} {1}".format(key.replace("_", " "), situation[key] or "unknown")
            for key in ("engine", "engine_version", "model")
            if key in situation
        ]
        if asked:
            checks.append(
                Check(
                    "compatibility",
                    WARN,
                    "no row vouches for {0} on {1}; the proof decides".format(", ".join(asked), situation["platform"]),
                )
            )
        elif not checks:
            checks.append(Check("compatibility", NOT_APPLICABLE, "no engine is chosen"))
    return checks


def known_holes(rows: dict[str, dict[str, Any]], engine: str, version: str | None, situation: dict[str, Any]) -> list[Check]:
    """One check per known vulnerability of an engine version; one in all when there is none, or none can be ruled out.

    A vendor's fork counts as the version it is built on: whether it carries a fix cannot be seen from outside.
    """
    mine = {name: row for name, row in rows.items() if row["engine"] == engine and applies(row.get("when", {}), situation)[0] != NO}
    if not mine:
        return [Check("vulnerabilities", NOT_APPLICABLE, "none are recorded for {0}".format(engine))]
    try:
        if version is None:
            raise UnknownOutput("its version is not known")
        parse_version(version)
    except UnknownOutput as exc:
        return [
            Check(
                "vulnerabilities",
                UNKNOWN,
                "{0}: {1}, so none of {2} recorded ones can be ruled out".format(engine, exc, len(mine)),
                "read the version inside the image and state it as version in replica_image, or in the engine's catalog entry",
            )
        ]
    checks = []
    for name, row in sorted(mine.items()):
        bounds = [operator + str(row[key]) for key, operator in (("since", ">="), ("below", "<"), ("through", "<=")) if key in row]
        if not bounds or satisfies(version, ",".join(bounds)):
            detail = "{0} {1} has {2} (severity {3}): {4} ({5})".format(engine, version, name, row["severity"], row["reason"], _origin(row))
            checks.append(Check("vulnerabilities", VERDICTS[row["verdict"]], detail, row["fix"]))
    return checks or [Check("vulnerabilities", PASS, "{0} {1} has none of {2} recorded ones".format(engine, version, len(mine)))]


def image_versions(image: dict[str, Any]) -> tuple[str | None, str | None]:
    """Versions of engine and vendor runtime in an image: what the catalog states, else what the tag says, else None.

    Tags lag behind what is inside, so the catalog's ``version`` and ``runtime`` go first.
    """
    reference = str(image.get("reference") or "").partition("@")[0]
    tag = reference.rsplit("/", 1)[-1].partition(":")[2]
    engine = re.match(r"^(?:vllm|sglang)?-?v?(\d+\.\d+\.\d+(?:\.\d+)*(?:\.?(?:rc|post|dev)\d+)?)(?![\d.])", tag)
    runtime = re.search(r"(?:^|-)(?:dtk|cann|cu)(\d\d?)\.?(\d\d?(?:\.\d+)?)(?:-|$)", tag)
    return (
        str(image.get("version") or "") or (engine.group(1) if engine else None),
        str(image.get("runtime") or "") or ("{0}.{1}".format(*runtime.groups()) if runtime else None),
    )
