# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Word problems with one number as the answer: read a set, find the number in what a model says, judge the score. Pure. Private to the collection.

A set is in the format of GSM8K: a JSON object a line, with ``question`` and ``answer``, which ends in ``#### <number>``; ``language`` may be
``en`` or ``zh``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from fractions import Fraction
from typing import Any, Sequence

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

LANGUAGES = ("en", "zh")

#: What is added to a question.
HOW = {
    "en": "Think step by step. End with a line that has #### and then the final number only.",
    "zh": "\u8bf7\u4e00\u6b65\u4e00\u6b65\u5730\u8ba1\u7b97\u3002\u6700\u540e\u4e00\u884c\u53ea\u5199 #### \u548c\u6700\u7ec8\u7684\u6570\u5b57\u3002",
}

#: More characters than this are no answer but rubbish, which no arithmetic here has to take.
LONGEST = 40

_PLAIN_NUMBER = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_NUMBER = r"[-+]?" + _PLAIN_NUMBER + r"(?:[eE][-+]?\d{1,2}|/0*[1-9]\d*)?"
# The point of .5 is part of the number, not of what stands before it.
_MARKED = re.compile(r"####[^\d+\-\n]*(?<!\.)(" + _NUMBER + r")")
#: Behind a number: what shows that it was read only to its middle.
_MORE = re.compile(r"[,./]?\d")
_BOXED = re.compile(r"\\boxed\{[^{}\d+\-]*(" + _NUMBER + r")")
_SAID = re.compile(
    r"(?:answer|total|result)\s*(?:is|=|:)\s*[*$\s]*(" + _NUMBER + r")"
    r"|(?:\u7b54\u6848|\u7ed3\u679c|\u7b54)\s*(?:\u662f|\u4e3a|[:\uff1a=])\s*[*$\s]*(" + _NUMBER + r")",
    re.IGNORECASE,
)
_ANY = re.compile(r"(?<![A-Za-z0-9_.])" + _NUMBER)

#: Digits and signs of full width, the minus sign of typography, and the comma of full width.
_PLAIN = {0xFF10 + digit: str(digit) for digit in range(10)}
_PLAIN.update({0xFF0D: "-", 0x2212: "-", 0xFF0E: ".", 0xFF0C: " ", 0xFF03: "#", 0x00A0: " ", 0x202F: " "})


@dataclasses.dataclass(frozen=True)
class Problem:
    """One question, its answer and its language."""

    question: str
    answer: Fraction
    language: str

    def prompt(self) -> str:
        """What is asked."""
        return "{0}\n\n{1}".format(self.question, HOW[self.language])


def number(text: str) -> Fraction | None:
    """The number that ``text`` writes: ``1,200``, ``-3``, ``2.50``, ``3/4``, ``2e3``; None for one that is too long to be an answer."""
    if len(text) > LONGEST:
        return None
    above, _slash, below = text.replace(",", "").partition("/")
    return Fraction(above) / Fraction(below or 1)


def extract(text: str) -> Fraction | None:
    """The number a model gives as its answer, or None.

    In this order: the last one behind ``####``, the last one in a box, the last one that is called the answer, the last one at all.
    """
    plain = text.translate(_PLAIN)
    for pattern in (_MARKED, _BOXED, _SAID):
        found = [group for match in pattern.finditer(plain) for group in match.groups() if group]
        if found:
            return number(found[-1])
    found = _ANY.findall(plain)
    return number(found[-1]) if found else None


def _last(answer: str) -> Fraction | None:
    """The number behind the last ``####``; None where there is none, or one that is written in a way that is not read here."""
    marked = list(_MARKED.finditer(answer))
    return number(marked[-1].group(1)) if marked and not _MORE.match(answer, marked[-1].end()) else None


def read(text: str, where: str) -> list[Problem]:
    """The problems of a set. Raises LLMError that names ``where`` and the line."""
    out = []
    # Not splitlines: a JSON text may hold line ends of typography.
    for place, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            item = None
        good = isinstance(item, dict) and all(isinstance(item.get(key), str) for key in ("question", "answer"))
        answer = _last(item["answer"]) if good else None
        if answer is None or not item["question"].strip():
            raise LLMError(
                '{0}, line {1}: a problem is a JSON object with "question" and an "answer" that ends in "#### <number>"'.format(
                    where, place
                )
            )
        if any("\ud800" <= char <= "\udfff" for char in item["question"]):
            raise LLMError("{0}, line {1}: the question has half a character in it (a lone surrogate)".format(where, place))
        language = item.get("language", "en")
        if language not in LANGUAGES:
            raise LLMError("{0}, line {1}: language must be one of {2}, not {3!r}".format(where, place, ", ".join(LANGUAGES), language))
        out.append(Problem(item["question"].strip(), answer, language))
    if not out:
        raise LLMError("{0} has no problem in it".format(where))
    return out


def interval(right: int, count: int) -> tuple[float, float]:
    """The share that such a sample stands for, 95 % sure (Wilson)."""
    z = 1.959964
    share = right / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4.0 * count * count))
    return (max(0.0, (middle - half) / (1 + z * z / count)), min(1.0, (middle + half) / (1 + z * z / count)))


def _text(value: Fraction | None) -> str | None:
    if value is None:
        return None
    return str(value.numerator) if value.denominator == 1 else "{0:g}".format(float(value))


def judge(problems: Sequence[Problem], answers: Sequence[tuple[str, str]], recorded: float | None, tolerance: float) -> dict[str, Any]:
    """Score answers, each ``(text, error)``, and hold the score against the ``recorded`` one.

    Returns ``score``, ``right``, ``count``, ``recorded``, ``tolerance``, ``interval``, ``by_language``, ``wrong`` (question, expected, found,
    said), ``errors``, ``ok`` and ``why``.
    ``ok`` is None without a recorded score, False when a question was not answered at all: that is no score.
    """
    wrong, errors = [], []
    counts = {language: [0, 0] for language in LANGUAGES}
    for problem, (said, error) in zip(problems, answers):
        counts[problem.language][1] += 1
        if error:
            errors.append("{0}: {1}".format(problem.question[:60], error))
            continue
        found = extract(said)
        if found == problem.answer:
            counts[problem.language][0] += 1
        else:
            wrong.append(
                {"question": problem.question, "expected": _text(problem.answer), "found": _text(found), "said": said.strip()[-160:]}
            )
    right, count = sum(pair[0] for pair in counts.values()), len(problems)
    score = None if errors else right / count
    ok, why = None, "there is no recorded score to hold it against"
    if errors:
        ok, why = False, "{0} of {1} questions were not answered: {2}".format(len(errors), count, errors[0])
    elif recorded is not None:
        # 0.8 less 0.1 is a little more than 0.7.
        least = max(0.0, round(recorded - tolerance, 9))
        ok = score >= least
        why = "{0:.1f} % right, {1:.1f} % recorded, {2:.1f} % allowed".format(100 * score, 100 * recorded, 100 * least)
    return {
        "score": score,
        "right": right,
        "count": count,
        "recorded": recorded,
        "tolerance": tolerance,
        "interval": None if errors else [round(value, 4) for value in interval(right, count)],
        "by_language": {language: pair[0] / pair[1] for language, pair in counts.items() if pair[1]} if not errors else None,
        "wrong": wrong,
        "errors": errors,
        "ok": ok,
        "why": why,
    }
