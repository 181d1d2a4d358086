# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import html.parser
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import acceptance

from ansible_collections.ironserve.llm.plugins.module_utils import _baseline, _report, _report_page

VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}


class Reader(html.parser.HTMLParser):
    """What a browser would make of a page: tags with their attributes, texts, and tags that do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.faults, self.open = [], [], [], []
        self.feed(text)
        self.close()
        self.faults += ["never closed: " + tag for tag in self.open]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append("closed but not open: " + tag)

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return "\n".join(self.texts)


def compared(**more):
    bench = acceptance.benchmark(**more)
    parts = _report.fingerprint(acceptance.fleet(), bench["protocol"])
    session = _baseline.session_of(_report.figures_of(acceptance.benchmark(seed=3)), acceptance.DATE)
    baseline = {"format": 1, "id": _baseline.identity(parts), "fingerprint": parts, "sessions": [session]}
    return bench, _baseline.compare(baseline, parts, _report.figures_of(bench))


def full(**more):
    bench, comparison = compared(**more)
    return _report.build(acceptance.results(), acceptance.fleet(), acceptance.DATE, bench, comparison, "a1b2c3", "gw01")


def hostile(text):
    """A report in which a text stands wherever one can come from outside."""
    rows, fleet, bench = acceptance.results(1, 2), acceptance.fleet(1, 2), acceptance.benchmark(1, 2, 3)
    for row in rows:
        for check in row["checks"]:
            check.update(detail=text, id=text, language=text, unit=text)
        row["evidence"], row["next_step"], row["url"] = [text], text, text
    bench["runs"][0].update(notes=[text], errors=[{"text": text, "count": 2}])
    bench["summary"]["saturation"][0]["why"] = text
    bench["summary"]["levels"][0]["endpoint"] = text
    bench["protocol"]["cache"] = text
    fleet[0].update(platform=text, driver=text)
    fleet[0]["cards"][0]["name"] = text
    fleet[0]["replicas"][0]["command"].append(text)
    fleet[0]["replicas"][0]["environment"][text] = text
    fleet[0]["left_out"] = [{"card": text, "reason": text}]
    comparison = dict(_baseline.answer("refused", text), differs=[{"key": "driver", "here": text, "there": text}], path=text)
    scores = [acceptance.score(2, 1, recorded=None, text=text, name=text or "gateway")]
    good = _report.build(rows, fleet, text, bench, comparison, text, text, accuracy=scores)
    rows = copy.deepcopy(rows)
    rows[1].update(verdict=text or "bad", name=text)
    return [_report_page.page(good), _report_page.page(_report.build(rows, fleet, text, bench, comparison, text, text, "", scores, text))]


@pytest.fixture(scope="module")
def page():
    return _report_page.page(full())


@pytest.fixture(scope="module")
def plain_tags(page):
    read = Reader(page)
    return {tag for tag, _attributes in read.tags}


def test_the_page_is_whole(page):
    read = Reader(page)
    assert read.faults == []
    assert page.startswith("<!doctype html>") and ("html", {"lang": "en"}) in read.tags and ("meta", {"charset": "utf-8"}) in read.tags
    names = [attributes["id"] for _tag, attributes in read.tags if "id" in attributes]
    assert len(names) == len(set(names))
    for _tag, attributes in read.tags:
        target = attributes.get("href", "")
        assert not target.startswith("#") or target[1:] in names, target


def test_the_page_asks_for_nothing(page):
    read = Reader(page)
    assert not {tag for tag, _attributes in read.tags} & {
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "audio",
        "video",
        "base",
        "form",
        "image",
    }
    for tag, attributes in read.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "background", "ping")], (
            tag,
            attributes,
        )
        assert attributes.get("href", "#").startswith("#") or attributes == {"rel": "icon", "href": "data:,"}
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL).group(1)
    assert "url(" not in style and "@import" not in style
    policy = next(attributes["content"] for tag, attributes in read.tags if attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';") and "script" not in policy


def test_every_part_of_the_story_is_there(page):
    read = Reader(page)
    for words in ("Accepted", "9 of 9 endpoints proved real inference", "node02-c3", "41,207 tokens by usage", "2026-03-01 10:00 UTC"):
        assert words in read.text, words
    # What ran where: card, driver, runtime, image, weights, arguments, protocol.
    for words in ("K100-AI", "6.3.8", "DTK 25.04", "sha256:" + "cd" * 32, "5e" * 32, "--max-model-len 131072", '"cache": "cold"'):
        assert words in read.text, words
    plots = [attributes["aria-labelledby"].split(" ")[0][:-2] for tag, attributes in read.tags if attributes.get("class") == "plot"]
    for name in (
        "proof-ttft-ms", "proof-decode-tokens-per-s", "proof-card-use-pct", "level-median-ttft-ms", "level-p99-ttft-ms", "level-median-itl-ms",
        "level-output-throughput", "time-output-tokens-per-s", "time-ttft-ms", "time-gap-ms", "cards-1", "cards-2", "cards-3", "baseline-ranges",
    ):  # fmt: skip
        assert name in plots, name
    assert "never" not in re.sub("never ended sooner|never a zero", "", read.text)


def test_a_failing_run_shows_what_to_do_and_no_figure_of_the_benchmark():
    bench, comparison = compared()
    rows = acceptance.results()
    rows[2] = acceptance.fail(rows[2], "garbage", ["exact: zzz"], "Verify the weights", exact_capital_japan="zzz")
    read = Reader(_report_page.page(_report.build(rows, acceptance.fleet(), acceptance.DATE, bench, comparison)))
    assert read.faults == [] and "Refused" in read.text and "Verify the weights" in read.text and "thrown away" in read.text
    assert not [tag for tag, attributes in read.tags if attributes.get("id", "").startswith(("level-", "time-", "baseline"))]
    opened = [attributes for tag, attributes in read.tags if tag == "details"]
    assert sum("open" in attributes for attributes in opened) == 1


def test_scores_have_a_section_of_their_own():
    scores = [acceptance.score(16, 4), acceptance.score(1, 1, recorded=None, name="gateway b")]
    read = Reader(_report_page.page(_report.build(acceptance.results(), acceptance.fleet(), acceptance.DATE, accuracy=scores)))
    assert read.faults == [] and ("section", {"id": "accuracy"}) in read.tags and "Refused" in read.text
    for words in ("80.0 %", "90.0 %", "5.0 %", "16 of 20 right; 80.0 % right, 90.0 % recorded, 85.0 % allowed", "accuracy of gateway"):
        assert words in read.texts, words
    assert sum(words == "What is 2 + 2? → 5, not 4" for words in read.texts) == 4 + 4 + 1
    chips = [attributes["class"] for _tag, attributes in read.tags if attributes.get("class", "").startswith("chip")]
    assert chips.count("chip bad") == 2 and [words.strip() for words in read.texts].count("not judged") == 1
    assert "50.0 %" in read.texts and "word problems right, at least" in read.texts


def test_a_run_without_a_benchmark_or_without_anything_is_a_page_too():
    read = Reader(_report_page.page(_report.build(acceptance.results(), acceptance.fleet(), acceptance.DATE)))
    assert read.faults == [] and "Speed under load" not in read.text and "Accuracy" not in read.text
    read = Reader(_report_page.page(_report.build([], [], acceptance.DATE)))
    assert read.faults == [] and "Could not tell" in read.text and "no endpoint was asked" in read.text


def test_a_large_fleet_is_drawn_as_its_mean_and_range():
    bench = acceptance.benchmark(16, 8, 2)
    text = _report_page.page(_report.build(acceptance.results(16, 8), acceptance.fleet(16, 8), acceptance.DATE, bench))
    read = Reader(text)
    assert read.faults == [] and "replicas, mean of 128" in read.text and "128 values from" in read.text
    # The matrix has a column for those that are alike.
    assert "node01-c[0-7], node02-c[0-7]" in read.text
    assert len(text) < 1_500_000


def test_a_slow_run_is_shown_right_of_zero_with_its_table_open():
    read = Reader(_report_page.page(full(slow=1.12)))
    assert "Refused" in read.text and "v-worse" in {attributes.get("class") for _tag, attributes in read.tags}


@pytest.mark.parametrize("text", acceptance.HOSTILE)
def test_hostile_texts_are_only_text(text, plain_tags):
    for made in hostile(text):
        read = Reader(made)
        assert read.faults == []
        assert {tag for tag, _attributes in read.tags} <= plain_tags | {"p", "ul", "li", "details", "summary", "pre"}
        assert not [name for _tag, attributes in read.tags for name in attributes if name.startswith("on")]
        assert _report.clean(text) in read.text
        made.encode("utf-8")


@settings(max_examples=8, deadline=None)
@given(st.text(st.characters(exclude_categories=[]), max_size=40))
def test_any_text_is_only_text(text):
    expected = [Reader(made).tags for made in hostile("x")]
    for made, tags in zip(hostile(text), expected, strict=True):
        read = Reader(made)
        assert read.faults == []
        # The same elements whatever the text is; classes tell verdicts apart and may differ.
        assert {tag for tag, _attributes in read.tags} <= {tag for tag, _attributes in tags}
        assert not set(made) & {chr(code) for code in list(range(9)) + list(range(11, 32)) + [0x202E, 0x2066, 0xD800]}


# ---- colours


def linear(colour):
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour):
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


#: How people without long, middle or short wave cones see linear colours; the full deficiency of Machado, Oliveira and Fernandes, 2009.
EYES = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no middle": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour, eye):
    red, green, blue = (
        max(0.0, min(1.0, sum(weight * part for weight, part in zip(row, linear(colour), strict=True)))) for row in EYES[eye]
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    cube = [value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z)]
    return 116 * cube[1] - 16, 500 * (cube[0] - cube[1]), 200 * (cube[1] - cube[2])


def distance(one, other, eye):
    return sum((a - b) ** 2 for a, b in zip(lab(one, eye), lab(other, eye), strict=True)) ** 0.5


def test_the_measures_of_colour_are_right():
    assert contrast("#000000", "#ffffff") == pytest.approx(21) and contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert distance("#000000", "#ffffff", "all cones") == pytest.approx(100, abs=0.5)
    # The pair that everybody knows: far apart for most, close for those without middle wave cones.
    assert distance("#c04040", "#707020", "no middle") < distance("#c04040", "#707020", "all cones") / 2


@pytest.mark.parametrize("theme", [_report_page.LIGHT, _report_page.DARK], ids=["light", "dark"])
def test_text_and_lines_can_be_read(theme):
    assert set(theme) == set(_report_page.LIGHT)
    for ground in ("bg", "panel"):
        for name in ("text", "muted", "ok", "bad", "unsure", "link"):
            assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
        for name in ("s0", "s1", "s2", "s3", "s4", "s5"):
            assert contrast(theme[name], theme[ground]) >= 3, (name, ground)


@pytest.mark.parametrize("eye", list(EYES))
@pytest.mark.parametrize("theme", [_report_page.LIGHT, _report_page.DARK], ids=["light", "dark"])
def test_the_first_series_and_the_verdicts_differ_for_every_eye(theme, eye):
    names = ("s0", "s1", "s2", "s3")
    for index, one in enumerate(names):
        for other in names[index + 1 :]:
            assert distance(theme[one], theme[other], eye) > 10, (one, other)
    assert distance(theme["ok"], theme["bad"], eye) > 10
