# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which number a model's words give as the answer, and what a score is worth. The packaged set is right in every step."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _accuracy
from ansible_collections.ironserve.llm.plugins.module_utils._accuracy import Problem, extract, judge
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

PACKAGED = Path(__file__).resolve().parents[4] / "roles" / "acceptance" / "files" / "arithmetic.jsonl"


@pytest.mark.parametrize(
    "said, number",
    [
        ("First 3 * 4 = 12.\n#### 12", 12),
        ("#### 5\nNo, wait.\n#### 7", 7),
        ("**#### $1,250.50**", Fraction("1250.5")),
        ("#### The answer is 42 apples", 42),
        ("#### -3", -3),
        ("So \\boxed{17} it is, out of 20.", 17),
        ("The answer is 42. That took 3 steps.", 42),
        ("The answer is: **42**", 42),
        ("Answer: 8\nbecause 2 + 6", 8),
        ("12 - 5 makes 7 rolls.", 7),
        ("It costs 1,200 dollars.", 1200),
        ("It is 2.50", Fraction("2.5")),
        ("\u7b54\u6848\u662f42\u4e2a\uff0c\u7528\u4e863\u6b65\u3002", 42),
        ("\u7b54\uff1a\uff14\uff12\u4e2a", 42),
        ("\u4e00\u5171\u8fd8\u526983\u4e2a\u3002", 83),
        ("\uff03\uff03\uff03\uff03 1\uff10", 10),
        ("5-3", 3),
        ("about 3.14 or x2", Fraction("3.14")),
        ("#### .5", Fraction(1, 2)),
        ("#### about. 5", 5),
        ("#### -.25 each", Fraction(-1, 4)),
        ("So it is 3/4", Fraction(3, 4)),
        ("\\boxed{1.5/2}", Fraction(3, 4)),
        ("#### 7/0", 7),
        ("#### 1.5e3", 1500),
        ("#### " + "1" * 40, int("1" * 40)),
        # Rubbish of digits: Python reads no more than 4300, and no float holds 400.
        ("#### " + "1" * 5000, None),
        ("it is " + "1" * 400 + ".5", None),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_the_number_that_is_given_as_the_answer(said, number):
    assert extract(said) == number


@given(st.integers(-(10**9), 10**9), st.text(max_size=30))
def test_a_marked_number_is_found_behind_anything(number, before):
    assert extract("{0}\n#### {1:,}".format(before, number)) == number
    assert extract("{0}\n#### {1}.00".format(before, number)) == number


def problem(answer=4, language="en"):
    return Problem("What is 2 + 2?", Fraction(answer), language)


def test_a_set_is_read_and_asked_in_its_language():
    lines = [
        json.dumps({"question": " Two and two? ", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"}),
        "",
        json.dumps({"question": "q", "answer": "#### 1,000", "language": "zh", "more": 1}),
    ]
    first, second = _accuracy.read("\n".join(lines), "set")
    assert first == Problem("Two and two?", Fraction(4), "en") and second.answer == 1000
    assert (
        first.prompt().startswith("Two and two?\n\nThink step by step") and "####" in second.prompt() and "\u6570\u5b57" in second.prompt()
    )


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "set has no problem"),
        ("{", "set, line 1: a problem is"),
        ('{"question": "a", "answer": "#### 1"}\n{"question": "a", "answer": "1"}', "set, line 2: a problem is"),
        ('{"question": " ", "answer": "#### 1"}', "line 1"),
        # Read to its middle it would be another number.
        ('{"question": "a", "answer": "#### 1,2"}', "line 1: a problem is"),
        ('{"question": "a", "answer": "#### 1.200.000"}', "line 1: a problem is"),
        ('{"question": "a", "answer": "#### ' + "1" * 41 + '"}', "line 1: a problem is"),
        ('{"question": "a \\ud800", "answer": "#### 1"}', "line 1: the question has half a character"),
        ("[" * 100000, "line 1: a problem is"),
        ('{"question": "a", "answer": "#### 1", "language": "fr"}', "language must be one of en, zh, not 'fr'"),
    ],
)
def test_a_set_that_is_not_understood_is_refused(text, said):
    with pytest.raises(LLMError, match=re.escape(said)):
        _accuracy.read(text, "set")


def test_a_line_ends_only_where_json_lets_it():
    """Line ends of typography may stand in a JSON text as they are."""
    line = json.dumps({"question": "a\u2028b\x85c", "answer": "#### 1"}, ensure_ascii=False)
    assert [item.question for item in _accuracy.read(line + "\r\n" + line, "set")] == ["a\u2028b\x85c"] * 2


def test_a_score_at_the_limit_is_good():
    """0.8 less 0.1 is 0.7000000000000001, and 7 of 10 are still 70 %."""
    found = judge([problem()] * 10, [("#### 4", "")] * 7 + [("#### 5", "")] * 3, 0.8, 0.1)
    assert found["ok"] is True and found["why"] == "70.0 % right, 80.0 % recorded, 70.0 % allowed"
    assert "0.0 % allowed" in judge([problem()], [("", "")], 0.01, 0.05)["why"]


@pytest.mark.parametrize(("right", "recorded", "ok"), [(9, 0.9, True), (9, 0.95, True), (8, 0.9, False), (10, 0.2, True), (9, None, None)])
def test_a_score_is_held_against_the_recorded_one(right, recorded, ok):
    answers = [("#### 4", "")] * right + [("#### 5", "")] * (10 - right)
    found = judge([problem()] * 10, answers, recorded, 0.06)
    assert (found["score"], found["right"], found["count"], found["ok"]) == (right / 10, right, 10, ok)
    assert (len(found["wrong"]), found["recorded"], found["tolerance"]) == (10 - right, recorded, 0.06)
    if recorded == 0.95:
        assert found["why"] == "90.0 % right, 95.0 % recorded, 89.0 % allowed"


def test_what_was_not_answered_is_no_score():
    found = judge([problem()] * 3, [("#### 4", "")] * 2 + [("", "connection refused")], 0.1, 0.05)
    assert found["ok"] is False and found["score"] is None and found["interval"] is None
    assert "1 of 3 questions were not answered" in found["why"] and "connection refused" in found["errors"][0]


def test_languages_are_scored_apart_and_wrong_answers_shown():
    found = judge([problem(), problem(Fraction(5, 2), "zh")], [("#### 4", ""), ("well, 3.5", "")], None, 0)
    assert found["by_language"] == {"en": 1.0, "zh": 0.0}
    assert found["wrong"] == [{"question": "What is 2 + 2?", "expected": "2.5", "found": "3.5", "said": "well, 3.5"}]


def test_how_sure_a_score_is():
    """Wilson's interval: 81 of 263 from the literature, and both ends of the scale."""
    assert _accuracy.interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=0.0001)
    assert _accuracy.interval(0, 20)[0] == 0.0 and _accuracy.interval(0, 20)[1] == pytest.approx(0.1611, abs=0.0001)
    assert _accuracy.interval(20, 20)[1] == 1.0


def test_the_packaged_set_is_right_in_every_step():
    if not PACKAGED.is_file():
        pytest.skip("the role is not here")
    text = PACKAGED.read_text(encoding="utf-8")
    problems = _accuracy.read(text, "packaged")
    assert len({item.question for item in problems}) == len(problems) >= 40
    assert {language: [item.language for item in problems].count(language) for language in ("en", "zh")} == {"en": 24, "zh": 24}
    for line, item in zip(text.splitlines(), problems, strict=True):
        solution = json.loads(line)["answer"].partition("####")[0]
        steps = re.findall(r"([\d.]+(?: [-+*/] [\d.]+)+) = ([\d.]+?)(?=[.\u3002]? |[.\u3002]?$|\u3002)", solution.strip())
        assert len(steps) == solution.count("=") > 0, solution
        for expression, result in steps:
            parts = expression.split()
            value = Fraction(parts[0])
            for sign, operand in zip(parts[1::2], parts[2::2], strict=True):
                other = Fraction(operand)
                if sign in "*/":
                    value = value * other if sign == "*" else value / other
                else:
                    # Steps that mix signs multiply first.
                    value = value + other if sign == "+" else value - other
            assert value == Fraction(result.rstrip(".")), (solution, expression)
        if "bottles can be made" not in item.question and "full boxes" not in item.question:
            assert Fraction(steps[-1][1].rstrip(".")) == item.answer, solution
