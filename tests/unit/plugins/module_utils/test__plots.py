# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _plots
from ansible_collections.ironserve.llm.plugins.module_utils._plots import Series

NUMBERS = st.floats(0.001, 1e7)


def parse(svg):
    return ET.fromstring(svg)


def texts(svg):
    return [item.text for item in parse(svg).iter("text")]


def path_of(svg, style=0):
    """Places of the line of a style, as numbers."""
    for group in parse(svg).findall("g[@class='s{0}']".format(style)):
        for item in group.findall("path[@class='l']"):
            if not item.get("d").endswith("h24"):
                return [tuple(float(word) for word in point.split(" ")) for point in item.get("d")[1:].split("L")]
    return []


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0, 7, [0, 2, 4, 6]),
        (0, 0.3, [0, 0.1, 0.2, 0.3]),
        (-15, 15, [-15, -10, -5, 0, 5, 10, 15]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round(low, high, values):
    assert _plots.ticks(low, high, 6 if low < 0 else 5) == pytest.approx(values)


def test_an_axis_ends_at_a_round_value_that_is_not_below():
    assert [_plots.nice_top(value) for value in (0, 0.9, 50, 51, 1139, 99.9)] == pytest.approx([1, 1, 50, 60, 1250, 100])


def test_a_logarithmic_axis_has_its_ends_outside():
    assert _plots.log_ticks(196, 3961) == [100, 200, 500, 1000, 2000, 5000]
    assert _plots.log_ticks(0.2, 0.2) == [0.2, 0.5]


@given(NUMBERS, NUMBERS)
def test_axes_hold_every_value(one, other):
    low, high = sorted((one, other))
    assert _plots.nice_top(high) >= high * 0.999999
    marks = _plots.log_ticks(low, high)
    assert marks[0] <= low * 1.0001 and marks[-1] >= high * 0.9999 and len(marks) > 1


def test_places_are_proportional_to_values():
    svg = _plots.line_chart("a", "A", "x", "ms", [Series("one", [(1, 0.0), (2, 50.0), (3, 100.0)])], [1, 2, 3])
    (x1, y1), (x2, y2), (x3, y3) = path_of(svg)
    assert x2 - x1 == pytest.approx(x3 - x2) and y1 - y2 == pytest.approx(y2 - y3) and y1 > y2 > y3
    axis = [item for item in parse(svg).iter("path") if item.get("class") == "axis" and "H" in item.get("d")]
    assert "M58 {0:g}".format(y1) in axis[0].get("d")


def test_equal_ratios_are_equally_far_apart_on_logarithmic_axes():
    svg = _plots.line_chart("a", "A", "x", "ms", [Series("one", [(1, 10.0), (8, 100.0), (64, 1000.0)])], [1, 8, 64], True, y_log=True)
    (x1, y1), (x2, y2), (x3, y3) = path_of(svg)
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2) and y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    assert "ms, logarithmic" in texts(svg)


def test_nothing_to_draw_is_no_plot():
    assert _plots.line_chart("a", "A", "x", "ms", [Series("one", [(1, None)])]) == ""
    assert _plots.dot_chart("a", "A", "ms", [("one", None)]) == _plots.strip_chart("a", "A", "ms", []) == ""
    assert _plots.range_chart("a", "A", [("one", None, None, None, "unknown")], 3, 10) == ""


def test_a_single_point_is_drawn_and_a_break_breaks_the_line():
    assert len(path_of(_plots.line_chart("a", "A", "x", "ms", [Series("", [(1, 5.0)])], [1]))) == 0
    svg = _plots.line_chart("a", "A", "x", "ms", [Series("", [(1, 5.0), (2, 6.0), (3, None), (4, 5.0), (5, 6.0)])])
    lines = [item for item in parse(svg).iter("path") if item.get("class") == "l"]
    assert len(lines) == 2
    assert "<circle" in _plots.line_chart("a", "A", "x", "ms", [Series("", [(1, 5.0)])], [1])


def test_every_series_has_its_own_dash_and_marker_and_is_named():
    series = [Series("line {0}".format(style), [(1, 1.0 + style), (2, 2.0 + style)], style=style) for style in range(_plots.STYLES)]
    svg = _plots.line_chart("a", "A", "x", "ms", series, [1, 2])
    groups = [
        group for group in parse(svg).findall("g") if group.get("class", "").startswith("s") and group.find("path[@class='l']") is not None
    ]
    looks = {}
    for group in groups:
        line = group.find("path[@class='l']")
        shape = group.find("g[@class='m']")[0]
        commands = "".join(char for char in shape.get("d", "o") if char.isalpha())
        looks.setdefault(group.get("class"), set()).add((line.get("stroke-dasharray"), commands))
    # In the legend and in the plot the same, and different for each.
    assert all(len(look) == 1 for look in looks.values()), looks
    assert len({look.pop() for look in looks.values()}) == _plots.STYLES
    assert {"line {0}".format(style) for style in range(_plots.STYLES)} <= set(texts(svg))


def test_a_plot_says_what_it_shows_to_those_who_cannot_see_it():
    svg = _plots.line_chart("a", "First token", "x", "ms", [Series("gateway", [(1, 200.0), (2, 350.0)])], [1, 2])
    root = parse(svg)
    assert root.get("role") == "img" and root.get("aria-labelledby") == "a-t a-d"
    assert root.find("title").text == "First token" and root.find("desc").text == "gateway: 200 to 350 ms"
    assert [item.text for item in root.iter("title")][1:] == ["gateway, 1: 200 ms", "gateway, 2: 350 ms"]


def test_many_points_are_thinned_to_means_with_their_range():
    points = [(float(index), float(index % 10)) for index in range(2400)]
    line, band = _plots.thin(points)
    assert len(line) == 240 and all(value == pytest.approx(4.5) for _x, value in line) and set(band[0][1:]) == {0.0, 9.0}
    assert _plots.thin(points[:50]) == (points[:50], [])
    broken = points[:1200] + [(1200.0, None)] + points[1201:]
    assert [value for _x, value in _plots.thin(broken)[0]].count(None) == 1


def test_dots_stand_where_their_value_is_and_a_missing_one_is_said():
    svg = _plots.dot_chart("a", "A", "%", [("c0", 25.0), ("c1", 100.0), ("c2", None)], top=100.0)
    first, second = [float(item.get("cx")) for item in parse(svg).iter("circle")]
    left = float(re.search(r'class="axis" d="M([\d.]+) ', svg).group(1))
    assert (first - left) / (second - left) == pytest.approx(0.25, abs=0.01)
    assert "no figure" in texts(svg) and "25.0" in texts(svg)


def test_bars_count_every_value_once():
    svg = _plots.strip_chart("a", "A", "ms", [("r{0}".format(index), float(index)) for index in range(100)] + [("none", None)])
    counts = [int(item.find("title").text.split(" ")[0]) for item in parse(svg).iter("rect")]
    assert sum(counts) == 100
    assert "100 values from 0 ms (r0) to 99.0 ms (r99)" in texts(svg)


def test_a_range_is_drawn_right_of_zero_when_it_is_worse():
    svg = _plots.range_chart("a", "A", [("good", -5.0, -6.0, -4.0, "better"), ("bad", 8.0, 7.0, 9.0, "worse")], 3, 10)
    root = parse(svg)
    zero = float(re.search(r'class="axis" d="M([\d.]+) ', svg).group(1))
    places = {
        group.get("class"): float(re.match(r"M([\d.]+) [\d.]+H", group.find("path").get("d")).group(1)) for group in root.findall("g")
    }
    assert places["v-better"] < zero < places["v-worse"]


def test_a_name_that_is_too_long_keeps_its_end():
    assert _plots.shorten("a-very-long-host-name-c7", 10) == "…t-name-c7" and _plots.shorten("short", 10) == "short"


HOSTILE = '"><script>alert(1)</script>\x00\u202e&'


@pytest.mark.parametrize(
    "svg",
    [
        _plots.line_chart("a", HOSTILE, HOSTILE, HOSTILE, [Series(HOSTILE, [(1, 1.0), (2, 2.0)])], spans=[(0, 2, HOSTILE)], x_unit=HOSTILE),
        _plots.dot_chart("a", HOSTILE, HOSTILE, [(HOSTILE, 1.0)], limit=(1.0, HOSTILE)),
        _plots.strip_chart("a", HOSTILE, HOSTILE, [(HOSTILE, 1.0)]),
        _plots.range_chart("a", HOSTILE, [(HOSTILE, 1.0, 0.0, 2.0, HOSTILE)], 3, 10),
    ],
    ids=["lines", "dots", "bars", "ranges"],
)
def test_hostile_names_are_only_text(svg):
    root = parse(svg)
    assert {item.tag for item in root.iter()} <= {"svg", "title", "desc", "g", "path", "text", "circle", "rect", "polygon"}
    assert not any(name.startswith("on") for item in root.iter() for name in item.attrib)
    assert any("<script>alert(1)</script>\\u0000\\u202e&" in (item.text or "") for item in root.iter())


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.one_of(st.none(), st.floats(0, 1e9))), max_size=30), st.booleans())
def test_any_values_make_a_sound_plot_without_infinities(points, markers):
    svg = _plots.line_chart("a", "A", "x", "ms", [Series("one", sorted(points, key=lambda item: item[0]), markers=markers)])
    if svg:
        parse(svg)
        assert "nan" not in svg and "inf" not in svg.replace("info", "")
