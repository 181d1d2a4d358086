# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Detectors that tell an answer from rubbish. Pure; private to the collection.

No single detector is enough (token soup compresses like prose, a loop has clean letters), so an answer goes through all
of them and each finding carries its figure. They are meant for verification prompts, whose answers are prose, exact words, or
of a form that was asked for: code, JSON and tables repeat themselves by nature and are judged by other signs of a loop.
"Write it a hundred times" is legitimate text that they would flag.
Limits and error rates: ``docs/quality-detectors.md``.
"""

from __future__ import annotations

import dataclasses
import json
import re
import unicodedata
import zlib

#: Equal characters in a row; spaces and tabs are not counted, code and tables are full of them.
RUN_LIMIT = 8
#: Share of letters in scripts neither expected nor in the prompt.
FOREIGN_LIMIT = 0.01
#: Least share of letters in the expected language's script.
OWN_LIMIT = 0.3
#: Repetition is judged on texts of at least this many characters: shorter ones vary too much.
LONG_TEXT = 200
#: Characters of one window: the ratio of healthy prose grows with its length, so long texts are judged by parts.
WINDOW = 600
ZLIB_LIMIT = 2.4
DISTINCT_LIMIT = 0.5
#: A tail loop: at least this many copies of one block that cover at least this many tokens.
LOOP_COPIES = 4
LOOP_TOKENS = 48
LOOP_PERIOD = 128
#: In code, JSON and tables: so many equal lines in a row, of so many characters at least.
LINE_COPIES = 4
LINE_LENGTH = 8
#: What a text can be asked to be. Prose unless its own shape says otherwise.
FORMS = ("prose", "code", "json", "table")
#: Characters of which rules, underlined headings and the frames of comments are made.
_RULE = frozenset("-=_*#~.+|:/ ")
#: Nobody draws a longer one.
RULE_LENGTH = 160

_SCRIPTS = {"en": ("LATIN",), "zh": ("CJK",)}
_TOKEN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af]|\\w+|[^\\w\\s]")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One reason not to believe an answer.

    Attributes:
        name: the detector, ``snake_case``.
        figure: what was measured, in the detector's own unit.
        limit: the limit it broke.
        detail: one line for a person.
    """

    name: str
    figure: float
    limit: float
    detail: str


def weight(text: str) -> int:
    """How much a text says, in characters of an alphabet: Han, kana and hangul count twice."""
    return len(text) + sum(1 for char in text if script(char) in ("CJK", "HIRAGANA", "KATAKANA", "HANGUL"))


def form(text: str) -> str:
    """The form that a text shows by itself: ``json``, ``table`` (Markdown), ``code`` (fenced), else ``prose``."""
    stripped = text.strip()
    fenced = stripped.startswith("```") and stripped.endswith("```") and stripped.count("```") == 2
    inner = stripped.split("\n", 1)[-1].rsplit("```", 1)[0].strip() if fenced else stripped
    if inner[:1] in ("{", "["):
        try:
            json.loads(inner)
        except (ValueError, RecursionError):
            pass
        else:
            return "json"
    lines = [line.strip() for line in inner.splitlines() if line.strip()]
    if len(lines) >= 3 and all(line.startswith("|") and line.endswith("|") for line in lines):
        return "table"
    return "code" if fenced else "prose"


def equal_lines(text: str) -> tuple[int, str]:
    """The longest row of equal lines of some length, and that line."""
    best, best_line, count, last = 0, "", 0, ""
    for line in text.splitlines():
        count = count + 1 if line == last else 1
        last = line
        if len(line.strip()) >= LINE_LENGTH and count > best:
            best, best_line = count, line.strip()
    return best, best_line


def _without_rules(text: str) -> str:
    """The text without lines that are drawn, not written: rules, underlines, table borders."""
    return "\n".join(line for line in text.splitlines() if len(line) > RULE_LENGTH or not set(line) <= _RULE or not line.strip())


def bad_characters(text: str) -> list[str]:
    """Characters no healthy answer has: U+FFFD, controls (all but tab and line ends), surrogates, private use, U+xxFFFE/F.

    Unassigned code points are left alone: this Python's Unicode tables may be older than the newest emoji.
    """
    found = []
    for char in text:
        bad = char == "\ufffd" or ord(char) & 0xFFFE == 0xFFFE or unicodedata.category(char) in ("Cc", "Cs", "Co")
        if bad and char not in "\t\n\r":
            found.append(char)
    return found


def longest_run(text: str) -> tuple[int, str]:
    """The longest row of one character, and that character; spaces and tabs are left out."""
    best, best_char, count, last = 0, "", 0, ""
    for char in text:
        count = count + 1 if char == last else 1
        last = char
        if char not in " \t" and count > best:
            best, best_char = count, char
    return best, best_char


def script(char: str) -> str:
    """The script of a letter by its Unicode name (``LATIN``, ``CJK``, ``CYRILLIC``...); empty for what is no letter."""
    if not char.isalpha():
        return ""
    name = unicodedata.name(char, "UNKNOWN")
    if unicodedata.category(char) in ("Lm", "Lo") and name.startswith(("MODIFIER", "FEMININE", "MASCULINE", "IDEOGRAPHIC")):
        return ""
    word = name.split(" ", 1)[0].split("-", 1)[0]
    # Full-width Latin and mathematical alphabets are Latin in other clothes.
    return "LATIN" if word in ("FULLWIDTH", "MATHEMATICAL", "DOUBLE", "SCRIPT") else word


def script_shares(text: str) -> dict[str, float]:
    """The share of each script among the letters of ``text``; empty without letters."""
    counts = {}
    for char in text:
        name = script(char)
        if name:
            counts[name] = counts.get(name, 0) + 1
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}


def tokens(text: str) -> list[str]:
    """Cut text into words, single Han/kana/hangul characters, and single punctuation marks."""
    return _TOKEN.findall(text)


def windows(text: str, size: int = WINDOW) -> list[str]:
    """Half-overlapping windows of ``size`` characters; the last one ends with the text."""
    if len(text) <= size:
        return [text]
    starts = list(range(0, len(text) - size, size // 2)) + [len(text) - size]
    return [text[start : start + size] for start in starts]


def compression(text: str) -> float:
    """Bytes of UTF-8 text over bytes of its zlib stream; high means repetitive. 0 for empty text."""
    data = text.encode("utf-8", "replace")
    return len(data) / len(zlib.compress(data)) if data else 0.0


def distinct3(text: str) -> float:
    """Distinct token triples over all token triples; 1 below three tokens."""
    words = tokens(text)
    triples = list(zip(words, words[1:], words[2:]))
    return len(set(triples)) / len(triples) if triples else 1.0


def tail_loop(words: list[str], max_period: int = LOOP_PERIOD) -> tuple[int, float, int]:
    """Find the block that the end of ``words`` repeats.

    Returns ``(period, copies, covered)`` in tokens of the repetition that covers most, the last copy may be cut;
    ``(0, 0.0, 0)`` when the tail repeats nothing twice.
    """
    best = (0, 0.0, 0)
    for period in range(1, min(max_period, len(words) // 2) + 1):
        index = len(words) - 1
        while index >= period and words[index] == words[index - period]:
            index -= 1
        covered = len(words) - 1 - index + period
        if covered >= 2 * period and covered > best[2]:
            best = (period, covered / period, covered)
    return best


def longest_loop(words: list[str], max_period: int = LOOP_PERIOD) -> tuple[int, float, int]:
    """As ``tail_loop``, but anywhere in ``words``: rubbish in a fence or a list may end well."""
    best = (0, 0.0, 0)
    for period in range(1, min(max_period, len(words) // 2) + 1):
        run = 0
        for index in range(period, len(words)):
            run = run + 1 if words[index] == words[index - period] else 0
            covered = run + period
            if run >= period and covered > best[2]:
                best = (period, covered / period, covered)
    return best


def _scripts_finding(text: str, prompt: str, language: str) -> list[Finding]:
    shares = script_shares(text)
    found = []
    expected = set(script_shares(prompt)) | {"LATIN", "CJK"}
    foreign = {name: share for name, share in shares.items() if name not in expected}
    total = sum(foreign.values())
    if total > FOREIGN_LIMIT:
        names = ", ".join(sorted(foreign))
        found.append(Finding("foreign_script", total, FOREIGN_LIMIT, "{0:.1%} of the letters are {1}".format(total, names)))
    own = sum(shares.get(name, 0.0) for name in _SCRIPTS.get(language, ()))
    if language in _SCRIPTS and shares and weight(text) >= LONG_TEXT and own < OWN_LIMIT:
        found.append(Finding("wrong_language", own, OWN_LIMIT, "only {0:.1%} of the letters belong to language {1}".format(own, language)))
    return found


def _repetition_findings(text: str, kind: str) -> list[Finding]:
    found = []
    structured = kind in ("code", "json", "table")
    # Seventy signs in a row are one line that was drawn, for runs and for loops.
    written = _without_rules(text) if structured else text
    length, char = longest_run(written)
    if length >= RUN_LIMIT:
        found.append(Finding("equal_run", length, RUN_LIMIT, "{0} times {1!r} in a row".format(length, char)))
    if structured:
        copies, line = equal_lines(text)
        if copies >= LINE_COPIES:
            found.append(Finding("equal_lines", copies, LINE_COPIES, "{0} times the line {1!r}".format(copies, line[:60])))
    elif len(text) >= LONG_TEXT:
        parts = windows(text)
        ratio = max(compression(part) for part in parts)
        if ratio > ZLIB_LIMIT:
            found.append(Finding("compression", ratio, ZLIB_LIMIT, "a part compresses {0:.2f} times".format(ratio)))
        novelty = min(distinct3(part) for part in parts)
        if novelty < DISTINCT_LIMIT:
            found.append(Finding("distinct_3", novelty, DISTINCT_LIMIT, "only {0:.0%} of the word triples are new".format(novelty)))
    # Prose that loops somewhere compresses too well; only what is structured must be searched to its middle.
    period, copies, covered = (longest_loop if structured else tail_loop)(tokens(written))
    if copies >= LOOP_COPIES and covered >= LOOP_TOKENS:
        where = "a part" if structured else "the end"
        detail = "{0} repeats a block of {1} tokens {2:.1f} times".format(where, period, copies)
        found.append(Finding("inner_loop" if structured else "tail_loop", covered, LOOP_TOKENS, detail))
    return found


def inspect(content: str, reasoning: str = "", tool: str = "", prompt: str = "", language: str = "", kind: str = "") -> list[Finding]:
    """Put one answer through every detector.

    ``language`` is ``en``, ``zh`` or empty (no expectation); ``kind`` one of FORMS, or empty: the text's own shape decides. Text
    of every channel is judged; an answer that is only in the reasoning channel is misplaced. Returns an empty list for a
    believable answer.
    """
    if not (content + reasoning + tool).strip():
        return [Finding("empty", 0, 1, "no text in any field")]
    found = []
    if not (content + tool).strip():
        found.append(Finding("wrong_field", 0, 1, "text only in the reasoning field, none in the answer"))
    for text in (content, reasoning):
        bad = bad_characters(text)
        if bad:
            codes = ", ".join(sorted({"U+{0:04X}".format(ord(char)) for char in bad})[:4])
            found.append(Finding("bad_characters", len(bad), 0, "{0} characters no text has ({1})".format(len(bad), codes)))
        found.extend(_scripts_finding(text, prompt, language))
        found.extend(_repetition_findings(text, kind or form(text)))
    return found
