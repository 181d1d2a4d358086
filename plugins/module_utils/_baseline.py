# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Recorded speed of a release, and whether a new run is as fast. Private to the collection.

A baseline belongs to one fingerprint: model, card, driver, runtime, image, weights, arguments and measuring protocol. A figure of
anything else is no evidence and is refused with the key that differs.

Runs differ from each other without a reason. So no change is judged by a percentage alone: the spread of repeated runs says how sure
it is. A figure is worse when it is surely worse by more than ``Limits.tolerance_pct``; it has held when it is surely not worse by
``Limits.material_pct``; in between nothing can be told, and unknown is not ok.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import os

from ansible_collections.ironserve.llm.plugins.module_utils import _files
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: Version of the file's form.
FORMAT = 1

#: What a figure depends on. A fingerprint has each of them, as text.
KEYS = ("model", "card", "driver", "runtime", "image", "weights", "arguments", "protocol")

#: What a part is called that could not be told. It equals nothing, itself included.
UNKNOWN_PART = "unknown"
#: What a part is called that the platform does not have, such as the driver of a CPU.
NO_PART = "none"

LOWER = "lower"
HIGHER = "higher"

BETTER = "better"
SAME = "same"
WORSE = "worse"
UNCLEAR = "unknown"
REFUSED = "refused"
NONE = "none"
NEW = "new"
LEFT_OUT = "left_out"

#: Fewer repeated runs than this have no spread worth the name.
MIN_RUNS = 3
#: From this many sessions on the difference between days is known, and counts too.
MIN_SESSIONS = 3
#: More sessions than this teach nothing new; the oldest one after the first goes.
MAX_SESSIONS = 20

_NEXT = {
    WORSE: "Compare what the fingerprint cannot see: card clocks and throttling, other load on the host, cooling. "
    "If the new speed is to be the reference, record it with acceptance_baseline=replace",
    UNCLEAR: "Repeat with more runs, or with nothing else on the host: the runs differ too much from each other",
    REFUSED: "Record a baseline of this very release, or measure the one that was recorded",
}


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured quantity.

    Attributes:
        name: what it is, such as ``ttft_p50 at 8``.
        unit: such as ``ms`` or ``tokens/s``.
        better: ``lower`` or ``higher``.
        samples: one value per repeated run, all above 0.
    """

    name: str
    unit: str
    better: str
    samples: tuple

    def as_dict(self) -> dict:
        """Plain data, as it is stored."""
        return {"unit": self.unit, "better": self.better, "samples": list(self.samples)}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Percent of a figure: the change nobody minds, the change nobody must miss; and how sure a verdict has to be."""

    tolerance_pct: float = 3.0
    material_pct: float = 10.0
    confidence: float = 0.95


# ---- the fingerprint


def fingerprint(parts: dict) -> dict:
    """The parts as text, every key of ``KEYS`` and no other. What is empty or null could not be told.

    Raises LLMError for a key that is missing or not known: a fingerprint that leaves something out would equal too much.
    """
    wrong = sorted(set(KEYS) ^ set(parts))
    if wrong:
        raise LLMError("a fingerprint has the keys {0}; missing or too many: {1}".format(", ".join(KEYS), ", ".join(wrong)))
    return {key: _text(parts[key]) for key in KEYS}


def _text(value: object) -> str:
    if value is None or value == "" or value == [] or value == {}:
        return UNKNOWN_PART
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(", ", ": "))


def identity(parts: dict) -> str:
    """The fingerprint's short name: 16 hex digits that follow from its parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode("utf-8")).hexdigest()[:16]


def untold(parts: dict) -> list:
    """Keys of what could not be told; with one of these a run is evidence of nothing."""
    return [key for key in KEYS if parts.get(key, UNKNOWN_PART) == UNKNOWN_PART]


def differences(here: dict, there: dict) -> list:
    """``{"key", "here", "there"}`` for every part that differs. What could not be told differs from everything."""
    return [
        {"key": key, "here": here.get(key, UNKNOWN_PART), "there": there.get(key, UNKNOWN_PART)}
        for key in KEYS
        if here.get(key) != there.get(key) or here.get(key, UNKNOWN_PART) == UNKNOWN_PART
    ]


def explain(difference: dict, longest: int = 60) -> str:
    """A difference as words: short parts whole, of long ones only where they part ways."""
    here, there = difference["here"], difference["there"]
    if max(len(here), len(there)) > longest:
        start = len(os.path.commonprefix([here, there]))
        # From the beginning of the word, so that it can be recognised.
        start = max(here.rfind(" ", 0, start), there.rfind(" ", 0, start)) + 1
        here, there = _cut(here, start, longest), _cut(there, start, longest)
    return "{0}: here {1}, there {2}".format(difference["key"], here or "nothing", there or "nothing")


def _cut(text: str, start: int, longest: int) -> str:
    shown = text[start : start + longest]
    return "{0}{1}{2}".format("…" if start else "", shown, "…" if start + longest < len(text) else "")


# ---- statistics


def t_within(value: float, degrees: int) -> float:
    """Probability that Student's t with ``degrees`` of freedom (1 or more) lies within plus and minus ``value``."""
    angle = math.atan(value / math.sqrt(degrees))
    cosine = math.cos(angle)
    if degrees == 1:
        return 2.0 * angle / math.pi
    term = total = 1.0 if degrees % 2 == 0 else cosine
    step = 1 if degrees % 2 == 0 else 2
    while step + 1 < degrees:
        term *= cosine * cosine * step / (step + 1.0)
        total += term
        step += 2
    total *= math.sin(angle)
    return total if degrees % 2 == 0 else 2.0 * (angle + total) / math.pi


def t_limit(confidence: float, degrees: int) -> float:
    """The value within plus and minus which t lies with the probability ``confidence``."""
    low, high = 0.0, 1.0
    while t_within(high, degrees) < confidence:
        high *= 2.0
    for _step in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if t_within(middle, degrees) < confidence else (low, middle)
    return high


def _mean(values: list) -> float:
    return math.fsum(values) / len(values)


def _variance(values: list) -> float:
    middle = _mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


def _spread(sessions: list, now: list) -> list:
    """``(standard error, degrees of freedom)`` of the change between ``sessions`` and ``now``, by every way it can be had."""
    pooled = [value - _mean(session) for session in sessions for value in session]
    count = len(pooled)
    degrees = count - len(sessions)
    first = math.fsum(value * value for value in pooled) / degrees / count
    second = _variance(now) / len(now)
    total = first + second
    # Welch: the two sides need not be equally noisy.
    welch = total * total / (first * first / degrees + second * second / (len(now) - 1)) if total > 0 else degrees + len(now) - 1
    ways = [(math.sqrt(total), max(1, int(welch)))]
    if len(sessions) >= MIN_SESSIONS:
        means = [_mean(session) for session in sessions]
        # This session is one more draw of what sessions differ by.
        ways.append((math.sqrt(_variance(means) * (1.0 + 1.0 / len(means))), len(means) - 1))
    return ways


def change(sessions: list, now: list, better: str, confidence: float) -> tuple:
    """By how many percent ``now`` is worse than ``sessions``, as ``(middle, least, most)``; below 0 is better.

    Args:
        sessions: recorded values, one list per session.
        now: values of this run.
        better: ``lower`` or ``higher``.
        confidence: how sure the range is.

    Figures are compared by their logarithms: twice as slow and twice as fast are equally far away.
    """
    sign = 1.0 if better == LOWER else -1.0
    before = [[math.log(value) for value in session] for session in sessions]
    after = [math.log(value) for value in now]
    shift = sign * (_mean(after) - _mean([_mean(session) for session in before]))
    reach = max(error * t_limit(confidence, degrees) for error, degrees in _spread(before, after))
    return tuple(_worsening(value, better) for value in (shift, shift - reach, shift + reach))


def _worsening(shift: float, better: str) -> float:
    """Percent worse, in the words of the figure itself: a time that doubles is 100 % worse, a rate that halves 50 %."""
    capped = max(-20.0, min(20.0, shift))
    return 100.0 * (math.exp(capped) - 1.0) if better == LOWER else 100.0 * (1.0 - math.exp(-capped))


def signed(percent: float) -> str:
    """Percent with its sign, to a tenth; nothing has none."""
    text = "{0:+.1f}".format(percent)
    return "0.0" if text in ("+0.0", "-0.0") else text


def compare_figure(sessions: list, now: Figure, limits: Limits, figures: int = 1) -> dict:
    """Judge one figure against its recorded ``sessions`` (a list of values each).

    ``figures`` is how many are judged together: one of many must be worse more surely than one alone, or chance would find one.

    Returns ``{"name", "unit", "better", "baseline", "now", "runs", "baseline_runs", "change_pct", "low_pct", "high_pct", "verdict",
    "detail"}``; percent are those of getting worse, ``baseline`` and ``now`` geometric means.
    """
    result = {
        "name": now.name,
        "unit": now.unit,
        "better": now.better,
        "baseline": None,
        "now": _geometric(now.samples),
        "runs": len(now.samples),
        "baseline_runs": sum(len(session) for session in sessions),
        "change_pct": None,
        "low_pct": None,
        "high_pct": None,
        "verdict": UNCLEAR,
        "detail": "",
    }
    result["baseline"] = _geometric([value for session in sessions for value in session])
    if len(now.samples) < MIN_RUNS or any(len(session) < MIN_RUNS for session in sessions) or not sessions:
        result["detail"] = "{0} runs now, {1} recorded: below {2} there is no spread to judge by".format(
            len(now.samples), min([len(session) for session in sessions] or [0]), MIN_RUNS
        )
        return result
    middle, low, high = change(sessions, list(now.samples), now.better, limits.confidence)
    surely = change(sessions, list(now.samples), now.better, 1.0 - (1.0 - limits.confidence) / max(1, figures))
    result.update(change_pct=middle, low_pct=low, high_pct=high)
    span = "{0} % (between {1} and {2} %)".format(signed(middle), signed(low), signed(high))
    if surely[1] > limits.tolerance_pct:
        result.update(verdict=WORSE, detail="{0} worse, more than the {1:g} % allowed".format(span, limits.tolerance_pct))
    elif high <= limits.material_pct:
        gained = surely[2] < -limits.tolerance_pct
        result.update(verdict=BETTER if gained else SAME, detail="{0} worse".format(span))
    else:
        result["detail"] = "{0} worse: the runs differ too much to rule out {1:g} %".format(span, limits.material_pct)
    return result


def _geometric(values: object) -> float | None:
    values = list(values)
    return math.exp(_mean([math.log(value) for value in values])) if values else None


# ---- comparing


def answer(status: str, detail: str, **more: object) -> dict:
    """What a comparison came to, in the shape of ``compare``; ``more`` fills it in."""
    result = {
        "status": status,
        "id": "",
        "recorded": "",
        "sessions": 0,
        "figures": [],
        "differs": [],
        "detail": detail,
        "next_step": _NEXT.get(status, ""),
    }
    result.update(more)
    return result


def compare(baseline: dict, parts: dict, figures: list, limits: Limits = Limits(), left_out: frozenset = frozenset()) -> dict:
    """Judge a run's ``figures`` against a recorded ``baseline``.

    ``left_out`` has names of figures that a sweep had no reason to measure any more, as it stopped below: where that is, is noise, and what
    it says of the speed is in the figures below.

    Returns ``{"status", "id", "recorded", "sessions", "figures", "differs", "detail", "next_step"}``; status is ``same``, ``better``,
    ``worse``, ``unknown`` (noise, or a figure that is missing) or ``refused`` (it was recorded of something else).
    """
    known = {
        "id": baseline["id"],
        "recorded": baseline["sessions"][0]["date"],
        "sessions": len(baseline["sessions"]),
    }
    differs = differences(parts, baseline["fingerprint"])
    if differs:
        why = "; ".join(explain(item) for item in differs)
        return answer(REFUSED, "recorded of something else, so it is no evidence: {0}".format(why), differs=differs, **known)
    recorded = [session["figures"] for session in baseline["sessions"]]
    names = list(recorded[0])
    given = {figure.name: figure for figure in figures}
    judged = []
    for name in names:
        figure = given.get(name)
        stored = recorded[0][name]
        if figure is None or (figure.unit, figure.better) != (stored["unit"], stored["better"]):
            skipped = figure is None and name in left_out
            why = "not measured this time" if figure is None else "measured in {0}, recorded in {1}".format(figure.unit, stored["unit"])
            judged.append(
                dict(
                    compare_figure([], Figure(name, stored["unit"], stored["better"], ()), limits),
                    verdict=LEFT_OUT if skipped else UNCLEAR,
                    baseline=_geometric(stored["samples"]),
                    baseline_runs=len(stored["samples"]),
                    detail="the sweep stopped below, as more load brought no more" if skipped else why,
                )
            )
            continue
        sessions = [session[name]["samples"] for session in recorded if name in session]
        judged.append(compare_figure(sessions, figure, limits, len(names)))
    for name, figure in given.items():
        if name not in names:
            judged.append(dict(compare_figure([], figure, limits), verdict=NEW, detail="not in the baseline"))
    verdicts = [item["verdict"] for item in judged if item["verdict"] not in (NEW, LEFT_OUT)]
    status = next((word for word in (WORSE, UNCLEAR, BETTER) if word in verdicts), SAME if verdicts else UNCLEAR)
    detail = ", ".join(
        "{0} {1}".format(verdicts.count(word), label)
        for word, label in ((WORSE, "worse"), (UNCLEAR, "not clear"), (SAME, "as before"), (BETTER, "better"))
        if word in verdicts
    )
    return answer(
        status, "{0} figures: {1}".format(len(verdicts), detail) if detail else "the baseline holds no figure", figures=judged, **known
    )


# ---- files


def path_of(directory: str, parts: dict) -> str:
    """Where the baseline of a fingerprint lies."""
    return os.path.join(directory, identity(parts) + ".json")


def _check_session(where: str, session: object) -> None:
    if not isinstance(session, dict) or not isinstance(session.get("date"), str) or not isinstance(session.get("figures"), dict):
        raise LLMError("{0} must have a date and figures".format(where))
    for name, item in session["figures"].items():
        good = isinstance(item, dict) and isinstance(item.get("unit"), str) and item.get("better") in (LOWER, HIGHER)
        samples = item.get("samples") if good else None
        if not isinstance(samples, list) or not samples or not all(_is_figure(value) for value in samples):
            raise LLMError(
                "{0}: '{1}' must have a unit, better ({2} or {3}) and samples, numbers above 0".format(where, name, LOWER, HIGHER)
            )


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e300


def read(path: str) -> dict:
    """Read a baseline file.

    Returns ``{"format", "id", "fingerprint", "sessions"}``; each session is ``{"date", "figures"}``, figures by name are ``{"unit",
    "better", "samples"}``. Raises LLMError, naming the file, for anything that was not written by ``write``.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as exc:
        raise LLMError("baseline {0} cannot be read: {1}".format(path, exc.strerror or exc)) from exc
    except (ValueError, RecursionError) as exc:
        raise LLMError("baseline {0} is no JSON: {1}. Remove it and record it again".format(path, exc)) from exc
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        version = data.get("format") if isinstance(data, dict) else None
        raise LLMError(
            "baseline {0} has format {1!r}, this version of the collection reads {2}: update the collection, or record it again".format(
                path, version, FORMAT
            )
        )
    parts = data.get("fingerprint")
    if not isinstance(parts, dict) or sorted(parts) != sorted(KEYS) or not all(isinstance(value, str) for value in parts.values()):
        raise LLMError("baseline {0}: its fingerprint must have the keys {1}, as text".format(path, ", ".join(KEYS)))
    if data.get("id") != identity(parts):
        raise LLMError("baseline {0}: its id does not follow from its fingerprint, so it was changed by hand; record it again".format(path))
    sessions = data.get("sessions")
    if not isinstance(sessions, list) or not sessions:
        raise LLMError("baseline {0} holds no session".format(path))
    for number, session in enumerate(sessions):
        _check_session("baseline {0}: sessions[{1}]".format(path, number), session)
    return data


def write(path: str, data: dict) -> None:
    """Write a baseline in one step, readable for all: whoever reads it never sees half of it. Raises LLMError."""
    _files.put(path, json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n", _files.PUBLIC, 0o755)


def session_of(figures: list, date: str) -> dict:
    """A run as it is stored."""
    return {"date": date, "figures": {figure.name: figure.as_dict() for figure in figures}}


def recordable(parts: dict, figures: list, accepted: bool) -> None:
    """Raise LLMError when a run proves nothing: it was not accepted, a part of its fingerprint could not be told, or it has too few runs."""
    if not accepted:
        raise LLMError("figures of a run that was not accepted are thrown away: garbage is often the fastest")
    if untold(parts):
        raise LLMError("no baseline without knowing {0}".format(", ".join(untold(parts))))
    if not figures:
        raise LLMError("no baseline without figures")
    for figure in figures:
        if len(figure.samples) < MIN_RUNS or not all(_is_figure(value) for value in figure.samples):
            raise LLMError(
                "no baseline from {0} runs of '{1}': {2} or more are needed, each above 0".format(
                    len(figure.samples), figure.name, MIN_RUNS
                )
            )


def record(path: str, parts: dict, figures: list, date: str, accepted: bool, add: bool = False) -> dict:
    """Make a run the baseline of its fingerprint, or with ``add`` one more session of it. Returns what was written.

    Raises LLMError when the run proves nothing, see ``recordable``. Such figures are never stored.
    """
    recordable(parts, figures, accepted)
    sessions = [session_of(figures, date)]
    if add:
        before = read(path)["sessions"]
        # The first session is what all are measured against; it stays.
        sessions = (before[:1] + before[1:][-(MAX_SESSIONS - 2) :] if len(before) >= MAX_SESSIONS else before) + sessions
    data = {"format": FORMAT, "id": identity(parts), "fingerprint": parts, "sessions": sessions}
    write(path, data)
    return data


def look_up(directory: str, parts: dict) -> tuple:
    """Find the baseline of a fingerprint, as ``(baseline, nearest, problems)``.

    Where there is none, ``nearest`` is the one that differs in the fewest parts. ``problems`` are lines about files that cannot be used.
    Raises LLMError when the very baseline is there and broken.
    """
    own = path_of(directory, parts)
    if os.path.exists(own):
        return read(own), None, []
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".json") and not name.startswith("."))
    except FileNotFoundError:
        names = []
    except OSError as exc:
        raise LLMError("baselines in {0} cannot be listed: {1}".format(directory, exc.strerror or exc)) from exc
    found, problems = [], []
    for name in names:
        try:
            found.append(read(os.path.join(directory, name)))
        except LLMError as exc:
            problems.append(str(exc))
    nearest = min(found, key=lambda item: (len(differences(parts, item["fingerprint"])), item["id"])) if found else None
    return None, nearest, problems


def now() -> str:
    """This moment, in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
