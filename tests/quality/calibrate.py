# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Error rates of every detector: ``PYTHONPATH=tests python3 -m quality.calibrate`` rewrites them in docs/quality-detectors.md.

Healthy text is real where it can be (``data/``: this project's own English prose and code, Chinese prose written for it) and made where
form is what matters (JSON lists, tables). Rubbish is made from the same text, so that nothing but the fault differs. Every sample follows
from its number; nothing is drawn anew between two runs.
"""

from __future__ import annotations

import json
import math
import pathlib
import random
from collections.abc import Callable

import unit.conftest

from ansible_collections.ironserve.llm.plugins.module_utils import _quality

#: The first import also makes the collection importable from the checkout.
HERE = pathlib.Path(unit.conftest.__file__).parents[1] / "quality"
PAGE = HERE.parents[1] / "docs/quality-detectors.md"
BEGIN, END = "<!-- begin: measured by tests/quality/calibrate.py -->", "<!-- end -->"
SAMPLES = 60
DETECTORS = (
    "bad_characters", "equal_run", "foreign_script", "wrong_language", "compression", "distinct_3", "tail_loop", "equal_lines", "inner_loop", "empty",
)  # fmt: skip


def read(name: str) -> str:
    """A file of real text."""
    return (HERE / "data" / name).read_text(encoding="utf-8").strip()


EN, ZH, CODE = read("prose_en.txt"), read("prose_zh.txt"), read("code.txt")
WORDS = sorted(set(EN.split()))


def cut(text: str, size: int) -> list[str]:
    """Pieces of ``size`` characters that begin at a word."""
    places = [0] + [text.find(" ", place) + 1 if " " in text else place for place in range(size, len(text) - size, size)]
    return [text[place : place + size].strip("\n") for place in places]


def records(rng: random.Random) -> str:
    """A JSON list of 10 to 40 objects of one shape, as a model prints it."""
    rows = [
        {"id": number, "city": rng.choice(("Lima", "Oslo", "Quito", "Dakar")), "open": rng.random() < 0.7, "rain": rng.randrange(31)}
        for number in range(1, rng.randrange(10, 40))
    ]
    return json.dumps(rows, indent=rng.choice((None, 1, 2)))


def table(rng: random.Random) -> str:
    """A Markdown table of 8 to 40 rows."""
    out = ["| city | rain | sun | open |", "|---|---|---|---|"]
    for number in range(rng.randrange(8, 40)):
        row = (rng.choice(("Lima", "Oslo", "Quito", "Dakar")), number * 7 % 31, rng.randrange(300), rng.choice(("yes", "no")))
        out.append("| {0} | {1} | {2} | {3} |".format(*row))
    return "\n".join(out)


#: Healthy text: name -> (samples, language, form).
HEALTHY = {
    "English prose, 300 characters": (cut(EN, 300), "en", ""),
    "English prose, 600 characters": (cut(EN, 600), "en", ""),
    "English prose, 1500 characters": (cut(EN, 1500), "en", ""),
    "Chinese prose, paragraphs": (ZH.split("\n\n"), "zh", ""),
    "Chinese prose, 300 characters": (cut(ZH.replace("\n\n", ""), 300), "zh", ""),
    "Python code, 600 characters, form code": (cut(CODE, 600), "", "code"),
    "Python code, 600 characters, judged as prose": (cut(CODE, 600), "", "prose"),
    "JSON lists": ([records(random.Random(number)) for number in range(SAMPLES)], "", ""),
    "JSON lists, judged as prose": ([records(random.Random(number)) for number in range(SAMPLES)], "", "prose"),
    "Markdown tables": ([table(random.Random(number)) for number in range(SAMPLES)], "", ""),
    "Markdown tables, judged as prose": ([table(random.Random(number)) for number in range(SAMPLES)], "", "prose"),
}


def _start(rng: random.Random, text: str, low: int = 20, high: int = 200) -> str:
    place = rng.randrange(len(text) - 400)
    return text[place : place + rng.randrange(low, high)]


def _drift(rng: random.Random) -> str:
    few = rng.sample(("and", "the", "of", "English", "a", "to", "in", "is"), 4)
    return _start(rng, EN) + " " + " ".join(rng.choice(few) for _number in range(120))


def _sprinkle(rng: random.Random, chars: str) -> str:
    text = list(_start(rng, EN, 150, 300))
    for _number in range(rng.randrange(1, 6)):
        text.insert(rng.randrange(len(text)), rng.choice(chars))
    return "".join(text)


SCRIPTS = ((0x0430, 32), (0x0E01, 40), (0x0905, 50), (0x0621, 30), (0x05D0, 27), (0x10D0, 33), (0xAC00, 500), (0x1200, 90))


def _soup(rng: random.Random) -> str:
    out = []
    for _number in range(80):
        first, count = rng.choice(SCRIPTS)
        out.append("".join(chr(first + rng.randrange(count)) for _letter in range(rng.randrange(2, 8))))
    return " ".join(out)


def _loop(rng: random.Random, text: str, low: int, high: int) -> str:
    words = _quality.tokens(text)
    place = rng.randrange(len(words) - 60)
    block = words[place : place + rng.randrange(low, high)]
    glue = "" if text is ZH else " "
    return _start(rng, text) + glue + glue.join(block * rng.randrange(12, 40))


def _row_loop(rng: random.Random) -> str:
    rows = table(rng).split("\n")
    place = rng.randrange(3, len(rows))
    return "\n".join(rows[:place] + [rows[place]] * rng.randrange(6, 20))


def _json_loop(rng: random.Random) -> str:
    rows = json.loads(records(rng))
    return json.dumps(rows[:4] + [rows[4]] * rng.randrange(6, 20), indent=1)


def _code_loop(rng: random.Random) -> str:
    lines = [line for line in CODE.split("\n") if len(line) > 20]
    place = rng.randrange(len(lines) - 40)
    return "\n".join(lines[place : place + 6] + lines[place + 6 : place + 6 + rng.randrange(1, 4)] * rng.randrange(8, 20))


#: Rubbish: name -> (maker, language, form).
RUBBISH: dict[str, tuple[Callable[[random.Random], str], str, str]] = {
    "rows of one character after healthy text": (lambda rng: _start(rng, EN) + rng.choice("!.0的\n") * rng.randrange(8, 64), "en", ""),
    "U+FFFD in prose, 1 to 5": (lambda rng: _sprinkle(rng, "\ufffd"), "en", ""),
    "control characters in prose, 1 to 5": (lambda rng: _sprinkle(rng, "\x00\x01\x02\x08\x1b\x7f"), "en", ""),
    "letters of ten scripts": (_soup, "en", ""),
    "loop of 1 to 13 words": (lambda rng: _loop(rng, EN, 1, 14), "en", ""),
    "loop of 14 to 40 words": (lambda rng: _loop(rng, EN, 14, 41), "en", ""),
    "loop of 2 to 20 Chinese characters": (lambda rng: _loop(rng, ZH, 2, 21), "zh", ""),
    "four words in any order": (_drift, "en", ""),
    "Chinese prose where English was asked for": (lambda rng: _start(rng, ZH, 150, 300), "en", ""),
    "English prose where Chinese was asked for": (lambda rng: _start(rng, EN, 250, 400), "zh", ""),
    "one row of a table over and over": (_row_loop, "", "table"),
    "one object of a JSON list over and over": (_json_loop, "", "json"),
    "one to three lines of code over and over": (_code_loop, "", "code"),
    "empty": (lambda rng: " " * rng.randrange(3), "en", ""),
    "English words in any order": (lambda rng: " ".join(rng.choice(WORDS) for _number in range(100)), "en", ""),
    "Chinese characters in any order": (lambda rng: "".join(rng.sample(ZH.replace("\n", ""), 200)), "zh", ""),
}


def found(text: str, language: str, form: str) -> set[str]:
    """The detectors that raise an alarm."""
    return {finding.name for finding in _quality.inspect(text, prompt="", language=language, kind=form)}


def measure(samples: list[str], language: str, form: str) -> dict[str, float]:
    """Share of samples that each detector flags, and ``any``."""
    sets = [found(text, language, form) for text in samples]
    out = {name: sum(name in flagged for flagged in sets) / len(sets) for name in DETECTORS}
    out["any"] = sum(bool(flagged) for flagged in sets) / len(sets)
    return out


def upper(share: float, count: int) -> float:
    """Upper end of the 95 % interval of a share (Wilson)."""
    z = 1.96
    middle = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle + spread) / (1 + z * z / count)


def rubbish(name: str) -> list[str]:
    """The samples of one kind of rubbish."""
    make, _language, _form = RUBBISH[name]
    return [make(random.Random("{0} {1}".format(name, number))) for number in range(SAMPLES)]


#: Detectors with a figure: name -> (figure of a text, thresholds, whether larger is worse).
FIGURES: dict[str, tuple[Callable[[str], float], tuple[float, ...], bool]] = {
    "compression": (lambda text: max(_quality.compression(part) for part in _quality.windows(text)), (1.8, 2.1, 2.4, 2.7, 3.2), True),
    "distinct_3": (lambda text: min(_quality.distinct3(part) for part in _quality.windows(text)), (0.3, 0.4, 0.5, 0.6, 0.7), False),
    "tail_loop": (lambda text: float(_tail(text)), (16, 32, 48, 64, 96), True),
    "equal_run": (lambda text: float(_quality.longest_run(text)[0]), (4, 6, 8, 12, 24), True),
}


def _tail(text: str) -> int:
    _period, copies, covered = _quality.tail_loop(_quality.tokens(text))
    return covered if copies >= _quality.LOOP_COPIES else 0


#: What the figures are asked to tell apart.
_PROSE = ("English prose, 300 characters", "English prose, 600 characters", "Chinese prose, 300 characters")
_LOOPS = ("loop of 1 to 13 words", "loop of 14 to 40 words", "loop of 2 to 20 Chinese characters", "four words in any order")
_RUNS = ("rows of one character after healthy text",)


def roc() -> list[tuple[str, float, list[tuple[float, float, float]]]]:
    """Per figure: its name, the area under its curve, and ``(limit, share of rubbish found, share of prose flagged)``."""
    out = []
    well = [text for name in _PROSE for text in HEALTHY[name][0]]
    for name, (figure, limits, larger) in FIGURES.items():
        bad = [text for kind in (_RUNS if name == "equal_run" else _LOOPS) for text in rubbish(kind)]
        good_values, bad_values = [figure(text) for text in well], [figure(text) for text in bad]
        if not larger:
            good_values, bad_values = [-value for value in good_values], [-value for value in bad_values]
        wins = sum((worse > better) + 0.5 * (worse == better) for worse in bad_values for better in good_values)
        points = []
        for limit in limits:
            edge = limit if larger else -limit
            # Lengths count from their limit on, ratios beyond it.
            reached = (
                (lambda value, edge=edge: value >= edge) if name in ("tail_loop", "equal_run") else (lambda value, edge=edge: value > edge)
            )
            points.append((limit, sum(map(reached, bad_values)) / len(bad_values), sum(map(reached, good_values)) / len(good_values)))
        out.append((name, wins / (len(good_values) * len(bad_values)), points))
    return out


def _percent(share: float) -> str:
    return "{0:.1f} %".format(100 * share) if 0 < share < 0.1 else "{0:.0f} %".format(100 * share)


def _named(rates: dict[str, float]) -> str:
    hits = sorted(((share, name) for name, share in rates.items() if name != "any" and share), reverse=True)
    return ", ".join("`{0}` {1}".format(name, _percent(share)) for share, name in hits)


def block() -> str:
    """The measured part of the page."""
    lines = [BEGIN, "", "False alarms on healthy text (95 %: the upper end of the interval that this many samples allow):", ""]
    lines += ["| healthy text | samples | flagged | 95 % | by |", "|---|---|---|---|---|"]
    for name, (samples, language, form) in HEALTHY.items():
        rates = measure(samples, language, form)
        row = (name, len(samples), _percent(rates["any"]), _percent(upper(rates["any"], len(samples))), _named(rates))
        lines.append("| {0} | {1} | {2} | {3} | {4} |".format(*row))
    lines += ["", "Rubbish found, {0} samples of each kind:".format(SAMPLES), "", "| rubbish | found | by |", "|---|---|---|"]
    for name, (_make, language, form) in RUBBISH.items():
        rates = measure(rubbish(name), language, form)
        lines.append("| {0} | {1} | {2} |".format(name, _percent(rates["any"]), _named(rates)))
    lines += [
        "",
        "Each figure by itself, on prose against loops (`equal_run`: against rows of one character); the limit in use is bold:",
        "",
    ]
    lines += ["| figure | area under the curve | limit: rubbish found / prose flagged |", "|---|---|---|"]
    used = {
        "compression": _quality.ZLIB_LIMIT,
        "distinct_3": _quality.DISTINCT_LIMIT,
        "tail_loop": _quality.LOOP_TOKENS,
        "equal_run": _quality.RUN_LIMIT,
    }
    for name, area, points in roc():
        cells = []
        for limit, hit, alarm in points:
            text = "{0:g}: {1} / {2}".format(limit, _percent(hit), _percent(alarm))
            cells.append("**{0}**".format(text) if limit == used[name] else text)
        lines.append("| `{0}` | {1:.3f} | {2} |".format(name, area, "; ".join(cells)))
    return "\n".join([*lines, "", END])


def written() -> str:
    """The measured part as the page has it."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) : text.index(END) + len(END)]


def main() -> None:
    """Measure, and write it into the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.replace(written(), block()), encoding="utf-8")


if __name__ == "__main__":
    main()
