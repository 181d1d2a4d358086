# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Detectors against real rubbish and real prose, English and Chinese."""

from __future__ import annotations

import json

import pytest
from faults.engines.scripted import GARBAGE, PROSE, PROSE_ZH
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _quality

# What SmolLM2-135M really wrote, greedy, Q4_1 weights.
SMOL_BREAD = (
    "The history of bread is a long and winding tale of innovation, tradition, and the relentless pursuit of perfection. Bread has been "
    "a staple of human civilization for thousands of years, with evidence of its origins dating back to ancient Mesopotamia. The earliest "
    "evidence of bread-making dates back to around 10,000 BC, when early humans discovered that by fermenting flour, they could create a "
    "sweet and nourishing food.\n\nThe ancient Egyptians are credited with developing a method of bread-making that involved mixing flour "
    "with water and yeast, which allowed them to create a bread that was both sweet and savory. This discovery laid the foundation"
)
SMOL_BEACH = (
    "The day was a mix of relaxation and adventure. I woke up early, feeling the warmth of the sun on my skin, and I headed to the beach. "
    "I chose a spot near the ocean, where the sound of the waves was calming. I spent the morning snorkeling with a local, watching the "
    "sunset over the horizon. The smell of the sea and the sound of the waves were a perfect blend of relaxation and adventure.\n\nAfter "
    "the snorkeling, I headed to the beach to relax and enjoy the sunset. I spent the evening exploring the beach, taking in the sights and "
    "sounds of the ocean. I even had a picnic"
)
# What the same model wrote with the attn_k tensors of layers 0-2 zeroed.
DAMAGED = 'The\n\n\n a to_ out to_ out to_ out toThen- to the " the " to the " out' + "\n" * 60
# What the healthy model does when asked in Chinese, which it does not know.
SMOL_ZH = "日本！！！！！！！！！！！！"

HEALTHY = {
    "prose": (PROSE, "en"),
    "prose_zh": (PROSE_ZH, "zh"),
    "smol_bread": (SMOL_BREAD, "en"),
    "smol_beach": (SMOL_BEACH, "en"),
    "short": ("Tokyo", "en"),
    "short_zh": ("东京。", "zh"),
    "number": ("418362", "zh"),
    "accents": ("Crème brûlée, naïve façade, Łódź, Ø", "en"),
    "emoji": ("Done \U0001f600 \U0001fae8 \u2764\ufe0f!", "en"),
    "formula": ("The energy is E = mc², with c ≈ 3·10⁸ m/s and an angle of 30°.", "en"),
    "units": ("ａｂｃ ＡＢＣ ５０％", "zh"),
    "indented": ("def f():\n                return 1\n", ""),
    "mixed_zh": ("HAProxy 的 leastconn 算法会把新请求交给连接最少的服务器。", "zh"),
    "dots": ("Well... let me think...", "en"),
}


def names(text, **options):
    return sorted({finding.name for finding in _quality.inspect(text, **options)})


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_healthy_text_passes(name):
    text, language = HEALTHY[name]
    assert names(text, language=language) == []


@pytest.mark.parametrize(
    "text, wanted",
    [
        (GARBAGE["garbage_run"], "equal_run"),
        (GARBAGE["garbage_replacement"], "bad_characters"),
        (GARBAGE["garbage_control"], "bad_characters"),
        (GARBAGE["garbage_soup"], "foreign_script"),
        (GARBAGE["garbage_loop"], "compression"),
        (GARBAGE["garbage_loop"], "distinct_3"),
        (GARBAGE["garbage_loop"], "tail_loop"),
        (GARBAGE["garbage_line_loop"], "tail_loop"),
        (GARBAGE["garbage_newlines"], "equal_run"),
        (DAMAGED, "equal_run"),
        (SMOL_ZH, "equal_run"),
        ("面包很好吃，" * 20, "tail_loop"),
        (PROSE + " very" * 60, "tail_loop"),
        ("", "empty"),
        (" \n\t", "empty"),
    ],
)
def test_rubbish_is_found_by_name(text, wanted):
    assert wanted in names(text, language="en")


def test_lists_in_lists_without_end_are_rubbish_and_no_error():
    assert "equal_run" in [finding.name for finding in _quality.inspect("[" * 200000)]


def test_each_finding_carries_its_figure_and_limit():
    found = {finding.name: finding for finding in _quality.inspect("!" * 64)}
    assert (found["equal_run"].figure, found["equal_run"].limit) == (64, 8)
    assert found["tail_loop"].figure == 64
    soup = _quality.inspect("ab жж")[0]
    assert (soup.name, soup.figure, soup.limit) == ("foreign_script", 0.5, 0.01)


def test_a_script_that_the_prompt_uses_is_welcome():
    assert names("Привет is hello", prompt="What does Привет mean?") == []
    assert names("Привет is hello", prompt="What does hello mean?") == ["foreign_script"]


def test_a_long_answer_in_the_other_language_is_wrong():
    assert names(PROSE, language="zh") == ["wrong_language"]
    assert names(PROSE_ZH, language="en") == ["wrong_language"]


def test_an_answer_in_the_wrong_field_is_found_and_every_field_is_judged():
    assert names("", reasoning="Tokyo") == ["wrong_field"]
    assert names("", tool='{"city": "Tokyo"}') == []
    assert names("Tokyo", reasoning="!" * 20) == ["equal_run"]


@pytest.mark.parametrize(
    "length, found",
    [(7, False), (8, True)],
)
def test_the_run_limit_is_exact(length, found):
    assert ("equal_run" in names("a" + "!" * length)) is found


def test_a_loop_must_be_long_and_repeat_often():
    block = [str(number) for number in range(16)]
    assert _quality.tail_loop(block * 3) == (16, 3.0, 48)
    assert _quality.tail_loop([*block * 4, *block[:8]]) == (16, 4.5, 72)
    assert _quality.tail_loop(["x", *block]) == (0, 0.0, 0)
    assert "tail_loop" not in names(" ".join(block * 3))
    assert "tail_loop" in names(" ".join(block * 4))
    assert "tail_loop" not in names("ha " * 40)


def test_a_long_healthy_text_is_judged_by_windows():
    # A whole page of prose compresses beyond the limit although none of its parts does.
    page = SMOL_BREAD + " " + SMOL_BEACH + " " + PROSE
    assert max(_quality.compression(part) for part in _quality.windows(page)) < _quality.ZLIB_LIMIT
    assert names(page, language="en") == []


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=800), st.sampled_from(["", "en", "zh"]))
def test_any_text_is_judged_without_error(text, language):
    for finding in _quality.inspect(text, prompt="", language=language):
        assert finding.detail
        assert finding.detail.isprintable()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from("abcdefghij"), min_size=12, max_size=40, unique=False), st.integers(4, 8))
def test_any_block_repeated_at_the_end_is_a_loop(block, copies):
    _period, times, covered = _quality.tail_loop([*PROSE.split(), *block * copies])
    assert times >= copies
    assert covered >= len(block) * copies


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(PROSE)), st.characters(categories=["Cc"], exclude_characters="\t\n\r"))
def test_one_control_character_anywhere_is_enough(place, char):
    assert names(PROSE[:place] + char + PROSE[place:]) == ["bad_characters"]


@given(st.text(min_size=1, max_size=3000), st.integers(10, 700))
def test_windows_cover_the_text(text, size):
    parts = _quality.windows(text, size)
    assert all(len(part) <= size for part in parts)
    assert parts[0] == text[:size]
    assert text.endswith(parts[-1])
    assert sum(len(part) for part in parts) >= len(text)


ROWS = "\n".join("| {0} | {1} | open |".format(n, n * 7 % 31) for n in range(30))
CODE = "def f(row):\n    row = row + 1\n    row = row + 2\n    row = row + 3\n    return row\n" * 5


@pytest.mark.parametrize(
    "text, form",
    [
        ('{"a": 1}', "json"),
        ("```json\n[1, 2]\n```", "json"),
        ("[1, 2", "prose"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "table"),
        ("| a | b |\nwords\n| 1 | 2 |", "prose"),
        ("```python\nx = 1\n```", "code"),
        ("Take `x` and ```y```.", "prose"),
        ("", "prose"),
        ("{" * 50, "prose"),
    ],
)
def test_the_form_is_seen_only_where_it_is_whole(text, form):
    assert _quality.form(text) == form


def test_lists_tables_and_code_may_repeat_themselves_but_not_the_same_line():
    listed = json.dumps([{"station": n, "open": True} for n in range(40)])
    assert names(listed) == []
    assert names(listed, kind="prose") == ["compression", "distinct_3"]
    assert names(ROWS) == []
    assert names(CODE, kind="code") == ["inner_loop"]
    assert names("-" * 40 + "\n" + ROWS, kind="table") == []
    assert "equal_lines" in names("| 1 | 2 | open |\n" * 5 + ROWS, kind="table")
    assert names("| 1 | 2 | open |\n" * 3 + ROWS, kind="table") == []
    assert "equal_run" in names("| 1 |\n" + "!" * 9 + "\n| 2 |", kind="table")


@pytest.mark.parametrize("rule", ["# " + "=" * 76, "// " + "-" * 75, "/" * 80, "    # " + "-" * 60])
def test_a_rule_in_a_comment_is_drawn_and_no_loop(rule):
    """Seventy signs are seventy tokens; a row of them without end is rubbish all the same, and so are rules and nothing else."""
    code = "```\n{0}\nprint(1)\n{0}\n```"
    assert names(code.format(rule)) == []
    assert "inner_loop" in names(code.format(rule[-1] * 161))
    assert "equal_lines" in names("```\n" + (rule + "\n") * 4 + "```")


def test_rubbish_can_not_hide_behind_a_form():
    assert "inner_loop" in names("```\n" + "x = 1; " * 40 + "\n```")
    assert "equal_run" in names(json.dumps({"a": "!" * 20}))
    assert "bad_characters" in names(json.dumps({"a": "\ufffd"}, ensure_ascii=False))


def test_a_chinese_character_weighs_two():
    assert _quality.weight("ab 面包 かな 한글 1。") == len("ab 面包 かな 한글 1。") + 6
    # 110 characters of Chinese are as much as 220 of English: the language is judged.
    assert names(PROSE_ZH[:110], language="en") == ["wrong_language"]
    assert names(PROSE[:150], language="zh") == []


def test_a_loop_is_found_wherever_it_stands():
    block = [str(number) for number in range(16)]
    other = ["a", "b", "c"]
    assert _quality.longest_loop([*other, *block * 3, *other]) == (16, 3.0, 48)
    assert _quality.longest_loop([*other, *block, *other]) == (0, 0.0, 0)
    assert _quality.tail_loop([*other, *block * 3, *other]) == (0, 0.0, 0)
