# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What acceptance found, as one document: data, lines for a terminal, Markdown and JUnit XML. Pure. Private to the collection.

Answers of models stand in evidence, and a model may answer anything: every text goes through ``clean`` and the escaping of its form.
The page is made by ``_report_page``.
"""

from __future__ import annotations

import math
import re
import unicodedata
import xml.etree.ElementTree as ET

from ansible_collections.ironserve.llm.plugins.module_utils import _baseline
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, GOOD, NOT_APPLICABLE, PASS, UNKNOWN, WARN
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest
from ansible_collections.ironserve.llm.plugins.module_utils._names import fold
from ansible_collections.ironserve.llm.plugins.module_utils._verdicts import VERDICTS

#: Version of the report's form.
FORMAT = 1

#: What a run ends with.
OK = 0
FAILED = 1
COULD_NOT_TELL = 2
WORDS = {OK: "accepted", FAILED: "refused", COULD_NOT_TELL: "could not tell"}

#: Version of a benchmark's result that is read here.
BENCHMARK_VERSION = 1

#: Figures that are held against a baseline, with unit, better direction and name. Medians: a tail of a few runs is noise.
COMPARED = (
    ("median_ttft_ms", "ms", _baseline.LOWER, "median time to the first token"),
    ("median_tpot_ms", "ms", _baseline.LOWER, "median time per token"),
    ("output_throughput", "tokens/s", _baseline.HIGHER, "generated tokens"),
)

#: Longest text that is shown of one answer or message.
TEXT_LIMIT = 4000

_SECRET = re.compile(r"(?:^|[-_.])(?:api[-_]?key|key|token|secret|password|passwd|passphrase|credentials?|auth)$", re.IGNORECASE)
_KEPT = "(not shown)"

#: The parts of a baseline comparison that stop a run.
_BASELINE_STATUS = {_baseline.WORSE: FAILED, _baseline.UNCLEAR: COULD_NOT_TELL, _baseline.REFUSED: COULD_NOT_TELL}


# ---- text


def clean(value: object, limit: int = TEXT_LIMIT) -> str:
    """Text that may be shown: what is invisible or turns the reading direction is spelled out, and an endless one is cut."""
    text = str(value)
    more = len(text) - limit
    if more > 0:
        text = text[:limit]
    # Only these categories can do harm; a letter of any script stays as it is.
    if not text.isprintable():
        text = "".join(
            char if char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") else _spell(char)
            for char in text
        )
    return "{0}… ({1} more characters)".format(text, more) if more > 0 else text


def _spell(char: str) -> str:
    # A joiner makes one emoji of several, and shows as nothing where there is none to make.
    if char in "\u200d\u200c":
        return char
    return {"\t": " ", "\r": "\\r"}.get(char) or ("\\u{0:04x}" if ord(char) < 0x10000 else "\\U{0:08x}").format(ord(char))


def number(value: object, unit: str = "", digits: int = 3, trim: bool = False) -> str:
    """A figure for people: its digits that count, its unit, and a dash for what is not known. A whole number is shown whole.

    ``trim`` leaves out zeros at the end, as on an axis; in a column they say how exact a figure is.
    """
    if not is_number(value):
        return "–"
    if isinstance(value, int) or value == 0:
        text = "{0:,.0f}".format(value)
    else:
        # What rounds up to one digit more has one place less.
        size = int(math.floor(math.log10(float("{0:.{1}e}".format(abs(value), digits - 1)))))
        text = "{0:,.{1}f}".format(value, max(0, min(digits - 1 - size, 6)))
        if trim and "." in text:
            text = text.rstrip("0").rstrip(".")
    return "{0} {1}".format(text, unit) if unit else text


def moment(date: str) -> str:
    """A date of ISO 8601 as people read it: ``2026-03-01 10:00 UTC``."""
    found = re.match(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d+)?)?(Z|[+-]\d\d:\d\d)$", date)
    if not found:
        return clean(date, 40)
    day, time, zone = found.groups()
    return "{0} {1} {2}".format(day, time, "UTC" if zone in ("Z", "+00:00") else "UTC" + zone)


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number."""
    # Not isfinite: it takes no whole number that no float holds.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300


# ---- what ran where


def hide_secrets(words: list) -> list:
    """Arguments without the values of those that name a secret; files that hold one may be named."""
    shown, hide = [], False
    for word in words:
        text = str(word)
        if hide and not text.startswith("-"):
            shown.append(_KEPT)
            hide = False
            continue
        name, equals, _value = text.partition("=")
        secret = text.startswith("-") and bool(_SECRET.search(name))
        shown.append("{0}={1}".format(name, _KEPT) if secret and equals else text)
        hide = secret and not equals
    return shown


def hide_environment(environment: dict) -> dict:
    """Environment variables without the values of those that name a secret."""
    return {name: _KEPT if _SECRET.search(name) and value else str(value) for name, value in sorted(environment.items())}


def fleet_row(host: str, accelerator: dict, replica: dict, catalog: dict) -> dict:
    """What runs on one host, from the facts that the roles leave; ``running`` in ``replica`` says what the containers really are.

    Returns ``{"host", "platform", "driver", "runtime", "firmware", "tool", "cards", "model", "weights", "engine", "enhancements",
    "replicas", "left_out", "error"}``. Raises nothing: what is missing is empty, and an error names it.
    """
    plan = replica.get("plan") or {}
    running = {item.get("name"): item for item in replica.get("running") or []}
    own = sorted(((catalog.get("platform") or {}).get("container") or {}).get("environment_per_card") or {})
    replicas = []
    for item in plan.get("replicas") or []:
        spec = item.get("spec") or {}
        found = running.get(item.get("container")) or {}
        replicas.append(
            {
                "name": item.get("name", ""),
                "container": item.get("container", ""),
                "cards": list(item.get("cards") or []),
                "port": item.get("port"),
                "tensor_parallel_size": item.get("tensor_parallel_size"),
                "max_model_len": item.get("max_model_len"),
                "max_num_seqs": item.get("max_num_seqs"),
                "image": spec.get("image") or plan.get("image") or "",
                "image_id": found.get("image_id") or replica.get("image_id") or "",
                "weights_id": found.get("weights_id") or (spec.get("labels") or {}).get("ironserve.weights") or "",
                "command": hide_secrets(list(spec.get("command") or [])),
                "environment": hide_environment(
                    {name: value for name, value in (spec.get("environment") or {}).items() if name not in own}
                ),
            }
        )
    return {
        "host": host,
        "platform": plan.get("platform") or accelerator.get("platform") or "",
        "driver": accelerator.get("driver_version") or "",
        "runtime": accelerator.get("runtime_version") or "",
        "firmware": accelerator.get("firmware_version") or "",
        "tool": accelerator.get("source") or "",
        "cards": [
            {key: card.get(key) for key in ("id", "index", "name", "architecture", "memory_total_mib")}
            for card in accelerator.get("cards") or []
        ],
        "model": plan.get("model") or "",
        "weights": plan.get("weights") or "",
        "engine": plan.get("engine") or "",
        "enhancements": [
            str(item.get("name", "")) if isinstance(item, dict) else str(item)
            for item in plan.get("enhancements") or []
            if not isinstance(item, dict) or item.get("state") != "off"
        ],
        "replicas": replicas,
        "left_out": list(plan.get("left_out") or []),
        "error": str(replica.get("error") or ""),
    }


_ROW = dict.fromkeys(("host", "platform", "driver", "runtime", "firmware", "tool", "model", "weights", "engine", "error"), "")
_REPLICA = dict.fromkeys(("name", "container", "image", "image_id", "weights_id"), "")
_SIZES = dict.fromkeys(("port", "tensor_parallel_size", "max_model_len", "max_num_seqs"))


def whole_fleet(rows: list) -> list:
    """Rows of ``fleet_row`` with everything in place that a caller left out; what is left out could not be told."""
    fleet = []
    for row in rows:
        replicas = [
            dict(_REPLICA, **dict(_SIZES, **dict({"cards": [], "command": [], "environment": {}}, **item)))
            for item in row.get("replicas") or []
        ]
        lists = {"cards": [], "enhancements": [], "left_out": []}
        fleet.append(dict(_ROW, **dict(lists, **dict(row, replicas=replicas))))
    return fleet


def _one(values: list) -> str:
    """What all agree on; all of them where they do not; nothing where one of them could not be told."""
    return ", ".join(sorted(set(values))) if values and all(values) and _baseline.UNKNOWN_PART not in values else ""


def _cards(fleet: list) -> str:
    counts = {}
    replicas = 0
    for row in fleet:
        cards = {card["id"]: card for card in row["cards"]}
        for replica in row["replicas"]:
            replicas += 1
            for card in replica["cards"]:
                known = cards.get(card)
                if not known or not known.get("name") or not known.get("memory_total_mib"):
                    return ""
                kind = "{0} {1} {2} MiB".format(known["name"], known.get("architecture") or "", known["memory_total_mib"])
                counts[kind] = counts.get(kind, 0) + 1
    if not counts:
        return ""
    kinds = " + ".join("{0} x {1}".format(count, kind) for kind, count in sorted(counts.items()))
    return "{0}, in {1} {2}".format(kinds, replicas, "replica" if replicas == 1 else "replicas")


def _image(replica: dict) -> str:
    """What tells one image from another: its id, or a digest in its name; a tag alone tells nothing."""
    return replica["image_id"] or (replica["image"] if "@sha256:" in replica["image"] else "")


def _arguments(replica: dict) -> str:
    words = ["{0}={1}".format(name, value) for name, value in replica["environment"].items()] + replica["command"]
    return " ".join(words)


def fingerprint(fleet: list, protocol: dict | None = None) -> dict:
    """What the figures of this fleet depend on, see ``_baseline.KEYS``."""
    replicas = [replica for row in fleet for replica in row["replicas"]]
    asked = {key: value for key, value in (protocol or {}).items() if key != "id"}
    return _baseline.fingerprint(
        {
            "model": _one(["{0} {1}".format(row["model"], row["weights"]) if row["model"] and row["weights"] else "" for row in fleet]),
            "card": _cards(fleet),
            "driver": _one([row["driver"] for row in fleet]),
            "runtime": _one([row["runtime"] for row in fleet]),
            "image": _one([_image(replica) for replica in replicas]),
            "weights": _one([replica["weights_id"] for replica in replicas]),
            "arguments": " | ".join(sorted({_arguments(replica) for replica in replicas})),
            "protocol": asked or _baseline.NO_PART,
        }
    )


# ---- figures of a benchmark


def check_benchmark(data: dict) -> dict:
    """The result of a benchmark, if it is one that can be read. Raises LLMError."""
    if data.get("version") != BENCHMARK_VERSION:
        raise LLMError(
            "the benchmark's result has version {0!r}, this report reads {1}: update the collection, or measure again".format(
                data.get("version"), BENCHMARK_VERSION
            )
        )
    for key, kind in (("protocol", dict), ("endpoints", list), ("runs", list), ("summary", dict), ("cards", list)):
        if not isinstance(data.get(key), kind):
            raise LLMError("the benchmark's result has no {0}".format(key))
    for key in ("endpoints", "runs", "cards"):
        _check_member("the benchmark's result", data, key, _LIST, _MAPPING)
    _check_member("the benchmark's summary", data["summary"], "levels", _LIST, _MAPPING)
    return data


def level_name(level: dict) -> str:
    """A level of a sweep for people: ``8 at a time``, ``2.5 requests/s``."""
    if level.get("request_rate") is not None:
        return "{0} requests/s".format(number(level["request_rate"], trim=True))
    return "{0} at a time".format(number(level.get("concurrency"), trim=True))


def kind_of(endpoint: str, benchmark: dict) -> str:
    """``gateway``, ``replica``, or ``replicas`` for the row that puts those together that ran at the same time."""
    for item in benchmark.get("endpoints") or []:
        if item.get("name") == endpoint:
            return item.get("kind") or "replica"
    return "replicas"


#: Whose figures those of an endpoint are, by its kind.
_WHO = {"gateway": "gateway", "replica": "one replica", "replicas": "all replicas"}


def figures_of(benchmark: dict) -> list:
    """Figures of a benchmark that a baseline is made of, one value per repeat.

    Hosts have no name here: single replicas are one figure, the mean of all, so that a baseline fits every fleet of the same make.
    """
    pools = {}
    for level in (benchmark.get("summary") or {}).get("levels") or []:
        if not level.get("publishable") or not level.get("figures"):
            continue
        who = _WHO[kind_of(level.get("endpoint", ""), benchmark)]
        tool = level.get("tool") or "ironserve"
        place = "{0}, {1}{2}".format(who, level_name(level), "" if tool == "ironserve" else " ({0})".format(tool))
        for key, unit, better, label in COMPARED:
            values = (level["figures"].get(key) or {}).get("values") or []
            if values and all(is_number(value) and value > 0 for value in values):
                pools.setdefault(("{0}: {1}".format(place, label), unit, better), []).append(values)
    figures = []
    for (name, unit, better), rows in pools.items():
        # A replica that made fewer runs than the others makes all of them uneven; what every one has is what counts.
        repeats = min(len(row) for row in rows)
        samples = tuple(math.fsum(row[index] for row in rows) / len(rows) for index in range(repeats))
        figures.append(_baseline.Figure(name, unit, better, samples))
    return figures


def left_out_of(benchmark: dict) -> frozenset:
    """Names of the figures of levels that a sweep left out: those of its protocol that it has no row for."""
    measured = {}
    for level in (benchmark.get("summary") or {}).get("levels") or []:
        if (level.get("tool") or "ironserve") == "ironserve":
            measured.setdefault(_WHO[kind_of(level.get("endpoint", ""), benchmark)], set()).add(level_name(level))
    protocol = benchmark.get("protocol") or {}
    key = "request_rate" if protocol.get("load") == "open" else "concurrency"
    wanted = [level_name({key: level}) for level in protocol.get("levels") or []]
    places = ["{0}, {1}".format(who, name) for who, names in measured.items() for name in wanted if name not in names]
    return frozenset("{0}: {1}".format(place, label) for place in places for _key, _unit, _better, label in COMPARED)


# ---- what is handed in

_TEXT, _LIST, _MAPPING, _NUMBER = "text", "a list", "a mapping", "a number"


def _is(value: object, kind: str) -> bool:
    if kind == _NUMBER:
        return is_number(value)
    return isinstance(value, {_TEXT: str, _LIST: list, _MAPPING: dict}[kind])


def _check_member(where: str, data: dict, key: str, kind: str, of: str = "") -> None:
    """Raise LLMError unless ``data[key]`` is missing or of this kind, with members of the kind ``of``. A number may be null: not known."""
    value = data.get(key)
    if key not in data or (value is None and kind == _NUMBER):
        return
    if not _is(value, kind):
        raise LLMError("{0}: '{1}' must be {2}, not {3}".format(where, key, kind, clean(repr(value), 60)))
    for index, item in enumerate(value if of else []):
        if not _is(item, of):
            raise LLMError("{0}: '{1}[{2}]' must be {3}, not {4}".format(where, key, index, of, clean(repr(item), 60)))


def _check_word(where: str, data: dict, key: str, known: tuple) -> None:
    value = data.get(key)
    if not isinstance(value, str) or value not in known:
        raise LLMError("{0}: '{1}' is {2}; {3}".format(where, key, clean(repr(value), 60), nearest(str(value), list(known))))


def at_odds(result: dict) -> str:
    """Why the verdict ``ok`` of an endpoint can't be believed, by its own checks; empty when they bear it out."""
    checks = result.get("checks") or []
    for check in checks:
        if check.get("status") not in GOOD:
            return "its check {0} is {1}".format(check_name(check), check.get("status"))
    return "" if not checks or any(check.get("status") == PASS for check in checks) else "none of its checks has passed"


def check_results(results: list) -> None:
    """Raise LLMError naming the endpoint and the key where ``results`` are not what ``inference_verify`` returns, or contradict themselves."""
    for index, result in enumerate(results):
        where = "results[{0}]".format(index)
        if not isinstance(result, dict) or not isinstance(result.get("name"), str) or not result["name"].strip():
            raise LLMError("{0} must be a mapping with the endpoint's 'name'".format(where))
        where = "{0} ({1})".format(where, clean(result["name"], 60))
        _check_word(where, result, "verdict", VERDICTS)
        for key in ("url", "next_step"):
            _check_member(where, result, key, _TEXT)
        for key in ("ttft_ms", "decode_tokens_per_s", "card_use_pct"):
            _check_member(where, result, key, _NUMBER)
        _check_member(where, result, "evidence", _LIST, _TEXT)
        _check_member(where, result, "checks", _LIST, _MAPPING)
        for number, check in enumerate(result.get("checks") or []):
            place = "{0}, checks[{1}]".format(where, number)
            if not isinstance(check.get("check"), str) or not check["check"]:
                raise LLMError("{0}: the key 'check' is missing or no text".format(place))
            _check_word(place, check, "status", (PASS, WARN, FAIL, UNKNOWN, NOT_APPLICABLE))
            for key in ("id", "detail", "sign", "language", "unit"):
                _check_member(place, check, key, _TEXT)
            _check_member(place, check, "figure", _NUMBER)
        if result["verdict"] == "ok" and at_odds(result):
            raise LLMError("{0}: the verdict is ok, yet {1}: nothing is accepted on it, verify again".format(where, at_odds(result)))


def check_fleet(fleet: list) -> None:
    """Raise LLMError naming the host and the key where ``fleet`` has not the types of ``fleet_row``."""
    for index, row in enumerate(fleet):
        where = "fleet[{0}]".format(index)
        if not isinstance(row, dict) or not isinstance(row.get("host"), str) or not row["host"]:
            raise LLMError("{0} must be a mapping with the key 'host'".format(where))
        where = "{0} ({1})".format(where, clean(row["host"], 60))
        for key in _ROW:
            _check_member(where, row, key, _TEXT)
        for key in ("cards", "replicas"):
            _check_member(where, row, key, _LIST, _MAPPING)
        _check_member(where, row, "enhancements", _LIST, _TEXT)
        _check_member(where, row, "left_out", _LIST)
        for number, card in enumerate(row.get("cards") or []):
            if not isinstance(card.get("id"), str):
                raise LLMError("{0}, cards[{1}]: the key 'id' is missing or no text".format(where, number))
        for number, replica in enumerate(row.get("replicas") or []):
            place = "{0}, replicas[{1}]".format(where, number)
            if not isinstance(replica.get("name"), str) or not replica["name"]:
                raise LLMError("{0}: the key 'name' is missing or no text".format(place))
            for key in _REPLICA:
                _check_member(place, replica, key, _TEXT)
            for key in ("cards", "command"):
                _check_member(place, replica, key, _LIST, _TEXT)
            _check_member(place, replica, "environment", _MAPPING)


def check_accuracy(rows: list) -> None:
    """Raise LLMError naming the endpoint and the key where ``rows`` are not what ``inference_accuracy`` returns, or contradict themselves."""
    for index, row in enumerate(rows):
        where = "accuracy[{0}]".format(index)
        if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not row["name"].strip():
            raise LLMError("{0} must be a mapping with the endpoint's 'name'".format(where))
        where = "{0} ({1})".format(where, clean(row["name"], 60))
        for key in ("score", "recorded", "tolerance", "right", "count"):
            _check_member(where, row, key, _NUMBER)
        _check_member(where, row, "why", _TEXT)
        _check_member(where, row, "errors", _LIST, _TEXT)
        _check_member(where, row, "wrong", _LIST, _MAPPING)
        for number, item in enumerate(row.get("wrong") or []):
            _check_member("{0}, wrong[{1}]".format(where, number), item, "question", _TEXT)
        if "ok" not in row or not (row["ok"] is None or isinstance(row["ok"], bool)):
            raise LLMError("{0}: 'ok' must be true, false or null, not {1}".format(where, clean(repr(row.get("ok")), 60)))
        if row["ok"] and score_at_odds(row):
            raise LLMError("{0}: the verdict is ok, yet {1}: nothing is accepted on it, ask again".format(where, score_at_odds(row)))


_COMPARED_STATUS = (_baseline.SAME, _baseline.BETTER, _baseline.WORSE, _baseline.UNCLEAR, _baseline.REFUSED, _baseline.NONE)


def check_comparison(comparison: dict) -> None:
    """Raise LLMError where ``comparison`` is not what this module said of a baseline."""
    _check_word("comparison", comparison, "status", _COMPARED_STATUS)
    for key in ("differs", "figures"):
        _check_member("comparison", comparison, key, _LIST, _MAPPING)


# ---- the score on word problems

#: Wrong answers that a page or a text shows; the JSON has all of them.
WRONG_SHOWN = 50

_SCORE_CODES = {"ok": OK, "inaccurate": FAILED, "unanswered": FAILED, "unknown": COULD_NOT_TELL}
_SCORE_STEPS = {
    "inaccurate": "Compare with the same model unquantized, or with enhancements off: one of them lost some of its mind. Where another score is "
    "right, such as with another set, record that one",
    "unanswered": "Read the logs of gateway and engine for these requests, or ask fewer at a time",
    "unknown": "Remove the cause and ask again",
}


def score_at_odds(row: dict) -> str:
    """Why the verdict ``ok`` of a score can't be believed; empty when score and record bear it out."""
    if row.get("errors"):
        return "{0} of its questions were not answered".format(len(row["errors"]))
    for key in ("score", "recorded", "tolerance"):
        if not is_number(row.get(key)):
            return "it has no {0}".format(key)
    # As it was judged: 0.8 less 0.1 is a little more than 0.7.
    least = round(row["recorded"] - row["tolerance"], 9)
    return "" if row["score"] >= least else "its score {0:g} is below {1:g}".format(row["score"], least)


def score_verdict(row: dict) -> str:
    """``ok``, ``inaccurate``, ``unanswered`` (some questions), ``unknown``, or ``not_judged`` where no score was recorded."""
    told = is_number(row.get("score")) and not row.get("errors")
    if row.get("ok") is None:
        return "not_judged" if told and row.get("recorded") is None else "unknown"
    if not row["ok"]:
        return "inaccurate" if told else "unanswered"
    return "unknown" if score_at_odds(row) else "ok"


def percent(share: object) -> str:
    """A share as percent, as the probe itself writes it."""
    return "{0:.1f} %".format(100 * share) if is_number(share) else "–"


def score_line(row: dict) -> str:
    """A score in one line."""
    return "{0} of {1} right; {2}".format(number(row.get("right")), number(row.get("count")), row.get("why") or "why is not known")


def wrong_line(item: dict) -> str:
    """A wrong answer in short."""
    question = clean(" ".join(str(item.get("question", "")).split()), 100)
    found = item.get("found")
    return "{0} → {1}, not {2}".format(question, "no number" if found is None else clean(found, 60), clean(item.get("expected"), 60))


def wrong_lines(row: dict, limit: int = WRONG_SHOWN) -> list:
    """What was not answered, or not right, in short lines; the last one says how many are left out."""
    told = list(row.get("errors") or []) + [wrong_line(item) for item in row.get("wrong") or []]
    return told[:limit] + (["and {0} more, all are in the JSON form".format(len(told) - limit)] if len(told) > limit else [])


def score_rows(rows: list) -> list:
    """One row of texts per score: endpoint, verdict, score, right, questions, recorded, tolerance."""
    return [
        [str(row["name"]), score_verdict(row).replace("_", " "), percent(row.get("score"))]
        + [number(row.get("right")), number(row.get("count")), percent(row.get("recorded"))]
        + [percent(row.get("tolerance")) if is_number(row.get("recorded")) else "–"]
        for row in rows
    ]


SCORE_HEAD = ("endpoint", "verdict", "score", "right", "questions", "recorded", "tolerance")


# ---- the document


def _endpoint_code(result: dict) -> int:
    verdict = result.get("verdict")
    if verdict == "ok" and at_odds(result):
        return COULD_NOT_TELL
    return OK if verdict == "ok" else COULD_NOT_TELL if verdict in ("unknown", None, "") else FAILED


def worst(codes: list) -> int:
    """A failure beats what could not be told; nothing at all is no good news."""
    return FAILED if FAILED in codes else OK if codes and set(codes) == {OK} else COULD_NOT_TELL


def proof_status(fleet: list, results: list) -> int:
    """0, 1 or 2 of what was proved, before any figure: all answered right, one did not, or one could not be told about."""
    codes = [_endpoint_code(result) for result in results]
    codes += [COULD_NOT_TELL for _name in unproved(fleet, results)] + [COULD_NOT_TELL for row in fleet if row["error"]]
    return worst(codes)


def quality_status(fleet: list, results: list, accuracy: list, unscored: str) -> int:
    """0, 1 or 2 of what was proved and scored, before any figure. A score that was only told counts for nothing."""
    verdicts = [score_verdict(row) for row in accuracy] + (["unknown"] if unscored else [])
    return worst([proof_status(fleet, results)] + [_SCORE_CODES[verdict] for verdict in verdicts if verdict != "not_judged"])


def unproved(fleet: list, results: list) -> list:
    """Names of planned replicas of which nothing was found out."""
    judged = {result.get("name") for result in results}
    return [replica["name"] for row in fleet for replica in row["replicas"] if replica["name"] not in judged]


def build(
    results: list,
    fleet: list,
    date: str,
    benchmark: dict | None = None,
    comparison: dict | None = None,
    release: str = "",
    host: str = "",
    unmeasured: str = "",
    accuracy: list | None = None,
    unscored: str = "",
) -> dict:
    """Put everything together.

    Args:
        results: what ``inference_verify`` returned per endpoint.
        fleet: one ``fleet_row`` per host.
        date: ISO 8601 with its offset.
        benchmark: the result of a benchmark, if one was made.
        comparison: what ``_baseline.compare`` said, with ``recorded_now`` where this run became the baseline.
        release: id of the release record.
        host: the gateway's host.
        unmeasured: why there are no figures where some were asked for; such a run is not ok.
        accuracy: what ``inference_accuracy`` returned per endpoint.
        unscored: why there is no score where one was asked for; such a run is not ok.

    Returns ``{"format", "date", "status", "verdict", "ok", "counts", "lines", "release", "host", "fingerprint", "fingerprint_id", "fleet",
    "unproved", "results", "accuracy", "unscored", "benchmark", "unmeasured", "discarded", "baseline"}``. Figures of a run that failed are not
    in it.
    """
    accuracy = accuracy or []
    proved = quality_status(fleet, results, accuracy, unscored)
    codes = [proved]
    discarded = ""
    if benchmark:
        check_benchmark(benchmark)
        if proved != OK:
            discarded = "Not everything proved itself in this run, so its figures are thrown away: garbage is often the fastest."
        elif not benchmark.get("ok"):
            codes.append(COULD_NOT_TELL)
    if unmeasured:
        codes.append(COULD_NOT_TELL)
    if comparison and not discarded:
        codes.append(_BASELINE_STATUS.get(comparison["status"], OK))
    status = FAILED if FAILED in codes else COULD_NOT_TELL if COULD_NOT_TELL in codes else OK
    parts = fingerprint(fleet, (benchmark or {}).get("protocol") if not discarded else None)
    checks = [check for result in results for check in result.get("checks") or []]
    report = {
        "format": FORMAT,
        "date": date,
        "status": status,
        "verdict": WORDS[status],
        # Whether every endpoint proved itself and no score stands against it, whatever the figures say.
        "ok": proved == OK,
        "counts": {
            "endpoints": len(results),
            "ok": sum(1 for result in results if result.get("verdict") == "ok"),
            "checks": {
                word: sum(1 for check in checks if check.get("status") == word) for word in (PASS, WARN, FAIL, UNKNOWN, NOT_APPLICABLE)
            },
        },
        "release": release,
        "host": host,
        "fingerprint": parts,
        "fingerprint_id": _baseline.identity(parts),
        "fleet": fleet,
        "unproved": unproved(fleet, results),
        "results": results,
        "accuracy": accuracy,
        "unscored": unscored,
        "benchmark": None if discarded or not benchmark else _without_requests(benchmark),
        "unmeasured": unmeasured,
        "discarded": discarded,
        "baseline": None if discarded else comparison,
    }
    report["lines"] = lines(report)
    return report


def _without_requests(benchmark: dict) -> dict:
    """What the report tells of a benchmark; its single requests are in its own result."""
    kept = {key: benchmark.get(key) for key in ("version", "ok", "protocol", "endpoints", "runs", "summary", "cards")}
    kept["runs"] = [{key: value for key, value in run.items() if key != "requests"} for run in kept["runs"]]
    return kept


def headline(report: dict) -> str:
    """The one sentence that matters."""
    counts = report["counts"]
    said = "{0} of {1} {2} proved real inference".format(
        counts["ok"], counts["endpoints"] + len(report["unproved"]), "endpoint" if counts["endpoints"] == 1 else "endpoints"
    )
    verdicts = {score_verdict(row) for row in report["accuracy"]} | ({"unknown"} if report["unscored"] else set())
    for verdict, words in (
        ("inaccurate", "; not as accurate as recorded"),
        ("unanswered", "; word problems were not answered"),
        ("unknown", "; accuracy could not be told"),
    ):
        said += words if verdict in verdicts else ""
    if verdicts == {"ok"}:
        said += "; as accurate as recorded"
    if report["discarded"]:
        return said + "; the figures of this run are thrown away"
    if report["benchmark"] and not report["benchmark"].get("ok"):
        said += "; figures could not be published"
    if report["unmeasured"]:
        said += "; nothing was measured"
    status = (report["baseline"] or {}).get("status")
    if status in (_baseline.SAME, _baseline.BETTER):
        said += ", and {0} against the baseline".format(
            {_baseline.SAME: "the speed has held", _baseline.BETTER: "the speed is better"}[status]
        )
    if status in _BASELINE_STATUS:
        said += "; against the baseline: {0}".format(
            {
                _baseline.WORSE: "slower",
                _baseline.UNCLEAR: "not clear",
                _baseline.REFUSED: "recorded of something else",
            }[status]
        )
    return said


def troubles(report: dict) -> list:
    """Everything that stands in the way, as ``{"who", "verdict", "evidence", "next_step"}``; equal troubles of many replicas once."""
    found = {}
    for result in report["results"]:
        if result.get("verdict") == "ok":
            continue
        verdict = str(result.get("verdict") or "unknown")
        evidence = [str(line) for line in result.get("evidence") or []]
        key = (verdict, tuple(evidence), str(result.get("next_step") or ""))
        found.setdefault(key, []).append(str(result.get("name", "")))
    rows = [
        {"who": fold(names), "verdict": verdict, "evidence": list(evidence), "next_step": step}
        for (verdict, evidence, step), names in found.items()
    ]
    if report["unproved"]:
        rows.append(
            {
                "who": fold(report["unproved"]),
                "verdict": "unknown",
                "evidence": ["planned, but nothing was found out about it"],
                "next_step": "See why its host was not reached, or why its proof was not made, and verify again",
            }
        )
    for row in report["fleet"]:
        if row["error"]:
            step = "Remove the cause on the host and verify again"
            rows.append({"who": row["host"], "verdict": "unknown", "evidence": [row["error"]], "next_step": step})
    if not report["results"] and not rows:
        step = "Check the inventory and the limits of this run"
        rows.append({"who": "fleet", "verdict": "unknown", "evidence": ["no endpoint was asked"], "next_step": step})
    for row in report["accuracy"]:
        verdict = score_verdict(row)
        if verdict in _SCORE_STEPS:
            # A few of them tell what it is like; the others have a section of their own.
            told = [score_line(row)] + wrong_lines(row, 5)
            rows.append({"who": _score_of(row), "verdict": verdict, "evidence": told, "next_step": _SCORE_STEPS[verdict]})
    if report["unscored"]:
        rows.append({"who": "accuracy", "verdict": "unknown", "evidence": [report["unscored"]], "next_step": _SCORE_STEPS["unknown"]})
    benchmark = report["benchmark"]
    if benchmark and not benchmark.get("ok"):
        reasons = []
        for run in benchmark["runs"]:
            for reason in run.get("refused") or []:
                text = "{0}, {1}: {2}".format(_whose(run), level_name(run), reason)
                if not run.get("publishable") and text not in reasons:
                    reasons.append(text)
        step = "Remove what spoiled the figures and measure again"
        rows.append({"who": "benchmark", "verdict": "unknown", "evidence": reasons or ["its figures may not be used"], "next_step": step})
    if report["unmeasured"]:
        step = "Remove the cause and measure again"
        rows.append({"who": "benchmark", "verdict": "unknown", "evidence": [report["unmeasured"]], "next_step": step})
    baseline = report["baseline"]
    if baseline and baseline["status"] in _BASELINE_STATUS:
        bad = [item for item in baseline["figures"] if item["verdict"] in (_baseline.WORSE, _baseline.UNCLEAR)]
        evidence = ["{0}: {1}".format(item["name"], item["detail"]) for item in bad] or [baseline["detail"]]
        rows.append({"who": "baseline", "verdict": baseline["status"], "evidence": evidence, "next_step": baseline.get("next_step") or ""})
    return rows


def _score_of(row: dict) -> str:
    return "accuracy of {0}".format(row["name"])


def lines(report: dict) -> list:
    """The report for a terminal."""
    text = ["acceptance: {0}. {1}".format(report["verdict"].upper() if report["status"] else report["verdict"], headline(report))]
    for row in troubles(report):
        text.append("{0}: {1}".format(row["who"], row["verdict"]))
        text += ["  {0}".format(clean(line, 400)) for line in row["evidence"][:8]]
        if len(row["evidence"]) > 8:
            text.append("  … and {0} more".format(len(row["evidence"]) - 8))
        if row["next_step"]:
            text.append("  next: {0}".format(row["next_step"]))
    for row in report["accuracy"]:
        if score_verdict(row) not in _SCORE_STEPS:
            text.append("{0}: {1}".format(_score_of(row), clean(score_line(row), 400)))
    baseline = report["baseline"]
    if baseline and baseline["status"] not in _BASELINE_STATUS:
        text.append("baseline: {0}".format(clean(baseline["detail"], 1000)))
    return text


# ---- Markdown


def markdown_text(value: object, limit: int = TEXT_LIMIT) -> str:
    """Text that Markdown shows as it stands, in a table too: nothing in it is markup, a link or a mention."""
    text = clean(value, limit).replace("\n", " ⏎ ")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Only what begins a construct is escaped in words and figures, so that the source stays readable.
    return re.sub(r"([\\`*_\[\]|~$#])|((?<=^)[-+>]|(?<=\d)[.)](?=\s))|@|(?<=\w)://|(?<=www)\.", _escaped, text)


def _escaped(match: object) -> str:
    found = match.group(0)
    # A link that nobody wrote is made from an address in plain text; an entity breaks it.
    return {"://": "&#58;//", "@": "&#64;", ".": "&#46;"}.get(found) or "\\" + found


def _row(cells: list) -> str:
    return "| {0} |".format(" | ".join(cells))


def markdown(report: dict) -> str:
    """The report as Markdown: what one would paste into a ticket."""
    text = [
        "# Acceptance: {0}".format(report["verdict"]),
        "",
        "{0}, {1}.".format(markdown_text(headline(report)), markdown_text(moment(report["date"]))),
        "",
    ]
    rows = troubles(report)
    if rows:
        text += ["## What needs a person", ""]
        for row in rows:
            text += ["**{0}: {1}**".format(markdown_text(row["who"]), markdown_text(row["verdict"])), ""]
            text += ["- {0}".format(markdown_text(line)) for line in row["evidence"]]
            text += ["", "Next: {0}".format(markdown_text(row["next_step"])), ""] if row["next_step"] else [""]
    text += ["## Verdicts", "", _row(["endpoint", "verdict", "first token", "decode", "card use"]), "|---|---|--:|--:|--:|"]
    for result in report["results"]:
        text.append(
            _row(
                [
                    markdown_text(result.get("name", "")),
                    markdown_text(result.get("verdict", "")),
                    number(result.get("ttft_ms"), "ms"),
                    number(result.get("decode_tokens_per_s"), "tokens/s"),
                    number(result.get("card_use_pct"), "%"),
                ]
            )
        )
    if report["accuracy"]:
        text += ["", "## Accuracy", "", _row(list(SCORE_HEAD)), "|---|---|--:|--:|--:|--:|--:|"]
        text += [_row([markdown_text(cell) for cell in row]) for row in score_rows(report["accuracy"])]
        for row in report["accuracy"]:
            text += ["", "{0}: {1}".format(markdown_text(row["name"]), markdown_text(score_line(row)))]
            told = wrong_lines(row)
            text += ([""] if told else []) + ["- {0}".format(markdown_text(line)) for line in told]
    text += ["", "## What ran where", "", _row(["part", "value"]), "|---|---|"]
    text += [_row([key, markdown_text(value, 600)]) for key, value in report["fingerprint"].items()]
    text += ["", "Fingerprint {0}.".format(report["fingerprint_id"]), ""]
    if report["discarded"]:
        text += ["## Speed", "", markdown_text(report["discarded"]), ""]
    elif report["benchmark"]:
        text += ["## Speed", "", _row([name for name, _unit in _LEVEL_HEAD]), "|---|---|" + "--:|" * (len(_LEVEL_HEAD) - 2)]
        text += [_row([markdown_text(cell) for cell in row]) for row in level_rows(report["benchmark"])]
        text.append("")
    if report["baseline"]:
        text += ["## Against the baseline", "", markdown_text(report["baseline"]["detail"]), ""]
        if report["baseline"]["figures"]:
            text += [_row(["figure", "recorded", "now", "change for the worse", "verdict"]), "|---|--:|--:|--:|---|"]
            text += [_row([markdown_text(cell) for cell in row]) for row in baseline_rows(report["baseline"])]
            text.append("")
    text += ["## Every check", "", _row(["endpoint", "check", "status", "finding"]), "|---|---|---|---|"]
    for result in report["results"]:
        for check in result.get("checks") or []:
            text.append(
                _row(
                    [
                        markdown_text(result.get("name", "")),
                        markdown_text(check_name(check)),
                        markdown_text(str(check.get("status", "")).replace("_", " ")),
                        markdown_text(check.get("detail", ""), 600),
                    ]
                )
            )
    return "\n".join(text).rstrip() + "\n"


def check_name(check: dict) -> str:
    """A check and which one of its kind."""
    return "{0} {1}".format(check.get("check", ""), check["id"]) if check.get("id") else str(check.get("check", ""))


_LEVEL_HEAD = (
    ("endpoint", ""),
    ("level", ""),
    ("first token, median", "ms"),
    ("first token, p99", "ms"),
    ("per token, median", "ms"),
    ("between tokens, p99", "ms"),
    ("generated", "tokens/s"),
    ("spread of it", "%"),
)


def _whose(row: dict) -> str:
    """The endpoint of a run or level, with the tool where it is not ours."""
    tool = row.get("tool") or "ironserve"
    return "{0}{1}".format(row.get("endpoint", ""), "" if tool == "ironserve" else " ({0})".format(tool))


def level_rows(benchmark: dict) -> list:
    """One row of texts per endpoint and level, in the order of ``_LEVEL_HEAD``."""
    rows = []
    for level in benchmark["summary"].get("levels") or []:
        figures = level.get("figures") or {}

        def mean(key: str, figures: dict = figures) -> object:
            return (figures.get(key) or {}).get("mean")

        rows.append(
            [
                _whose(level),
                level_name(level),
                number(mean("median_ttft_ms"), "ms"),
                number(mean("p99_ttft_ms"), "ms"),
                number(mean("median_tpot_ms"), "ms"),
                number(mean("p99_itl_ms") if is_number(mean("p99_itl_ms")) else mean("p99_gap_ms"), "ms"),
                number(mean("output_throughput"), "tokens/s"),
                number((figures.get("output_throughput") or {}).get("spread_pct"), "%", 2),
            ]
        )
    return rows


def baseline_rows(comparison: dict) -> list:
    """One row of texts per figure: name, recorded, now, change with its range, verdict."""
    return [
        [
            item["name"],
            number(item["baseline"], item["unit"]),
            number(item["now"], item["unit"]),
            "{0} % ({1} to {2})".format(*(_baseline.signed(item[key]) for key in ("change_pct", "low_pct", "high_pct")))
            if item["change_pct"] is not None
            else "–",
            {"same": "as before", "unknown": "not clear", "left_out": "left out"}.get(item["verdict"], item["verdict"]),
        ]
        for item in comparison["figures"]
    ]


# ---- JUnit


def _case(suite: object, owner: str, name: str, status: str, detail: str, more: str = "") -> None:
    case = ET.SubElement(suite, "testcase", {"classname": clean(owner), "name": clean(name)})
    tag = {FAIL: "failure", UNKNOWN: "error", NOT_APPLICABLE: "skipped"}.get(status)
    if tag:
        entry = ET.SubElement(case, tag, {"message": clean(detail)})
        if more and tag != "skipped":
            entry.text = clean(more)
    elif detail:
        ET.SubElement(case, "system-out").text = clean(detail)


def _status_of(code: int) -> str:
    return {OK: PASS, FAILED: FAIL}.get(code, UNKNOWN)


def junit(report: dict) -> str:
    """The report as JUnit XML: a suite per endpoint, its verdict and its checks as cases; one for what is missing, one per score, one for speed."""
    root = ET.Element("testsuites", {"name": "acceptance"})
    properties = dict(report["fingerprint"], release=report["release"], verdict=report["verdict"], date=report["date"])
    for result in report["results"]:
        name = str(result.get("name", ""))
        suite = ET.SubElement(root, "testsuite", {"name": clean(name), "timestamp": clean(report["date"])[:19]})
        kept = ET.SubElement(suite, "properties")
        for key, value in sorted(properties.items()):
            ET.SubElement(kept, "property", {"name": key, "value": clean(value)})
        verdict = "verdict {0}".format(result.get("verdict") or "unknown")
        told = "\n".join([str(line) for line in result.get("evidence") or []] + [str(result.get("next_step") or "")]).strip()
        _case(suite, name, "verdict", _status_of(_endpoint_code(result)), verdict, told)
        for check in result.get("checks") or []:
            status = check.get("status") if check.get("status") in (PASS, WARN, FAIL, UNKNOWN, NOT_APPLICABLE) else UNKNOWN
            _case(suite, name, check_name(check), status, str(check.get("detail", "")))
    suite = ET.SubElement(root, "testsuite", {"name": "fleet"})
    _case(suite, "fleet", "endpoints were asked", PASS if report["results"] else UNKNOWN, "{0} endpoints".format(len(report["results"])))
    for name in report["unproved"]:
        _case(suite, "fleet", "{0} is proved".format(name), UNKNOWN, "planned, but nothing was found out about it")
    for row in report["fleet"]:
        if row["error"]:
            _case(suite, "fleet", "{0} was read".format(row["host"]), UNKNOWN, row["error"])
    if report["unscored"]:
        _case(suite, "fleet", "accuracy was scored", UNKNOWN, report["unscored"])
    if report["unmeasured"]:
        _case(suite, "fleet", "something was measured", UNKNOWN, report["unmeasured"])
    if report["discarded"]:
        _case(suite, "fleet", "figures may be used", NOT_APPLICABLE, report["discarded"])
    elif report["benchmark"]:
        good = bool(report["benchmark"].get("ok"))
        told = "\n".join(line for row in troubles(report) if row["who"] == "benchmark" for line in row["evidence"])
        _case(suite, "fleet", "figures may be used", PASS if good else UNKNOWN, "benchmark", told)
    for row in report["accuracy"]:
        verdict = score_verdict(row)
        suite = ET.SubElement(root, "testsuite", {"name": clean(_score_of(row)), "timestamp": clean(report["date"])[:19]})
        kept = ET.SubElement(suite, "properties")
        for key in ("score", "recorded", "tolerance", "right", "count"):
            ET.SubElement(kept, "property", {"name": key, "value": "" if row.get(key) is None else str(row[key])})
        status = NOT_APPLICABLE if verdict == "not_judged" else _status_of(_SCORE_CODES[verdict])
        told = "\n".join(wrong_lines(row))
        _case(suite, _score_of(row), "score", status, score_line(row), told)
        # A case that passed or was skipped has no room for them.
        if told and status not in (FAIL, UNKNOWN):
            ET.SubElement(suite, "system-out").text = clean(told)
    if report["baseline"]:
        suite = ET.SubElement(root, "testsuite", {"name": "baseline"})
        comparison = report["baseline"]
        states = {_baseline.WORSE: FAIL, _baseline.UNCLEAR: UNKNOWN, _baseline.REFUSED: UNKNOWN, _baseline.NONE: NOT_APPLICABLE}
        _case(suite, "baseline", "baseline", states.get(comparison["status"], PASS), comparison["detail"])
        for item in comparison["figures"]:
            states[_baseline.NEW] = states[_baseline.LEFT_OUT] = NOT_APPLICABLE
            _case(suite, "baseline", item["name"], states.get(item["verdict"], PASS), item["detail"])
    for suite in root:
        cases = suite.findall("testcase")
        suite.set("tests", str(len(cases)))
        for tag, label in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(label, str(sum(1 for case in cases if case.find(tag) is not None)))
    for label in ("tests", "failures", "errors", "skipped"):
        root.set(label, str(sum(int(suite.get(label)) for suite in root)))
    return '<?xml version="1.0" encoding="utf-8"?>\n{0}\n'.format(ET.tostring(root, encoding="unicode"))
