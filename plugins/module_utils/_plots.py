# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plots as SVG text: lines with bands, dots in rows, ranges around zero. Pure. Private to the collection.

Colours are classes (``s0`` ... ``s5``), so that the page decides them for light, dark and paper. No series is told by its colour alone:
each has its own marker and dash too. Every text is escaped here.
"""

from __future__ import annotations

import dataclasses
import html
import math

from ansible_collections.ironserve.llm.plugins.module_utils._report import clean, is_number, number

#: Size of a plot in its own units; the page scales it.
WIDTH, HEIGHT = 620, 300
#: Plots that stand three in a row, and alone.
NARROW, WIDE = 400, 960
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 14, 42
#: Mean width of a character of the plots' text.
_CHAR = 6.4

STYLES = 6
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2")
#: More points than this are not seen apart.
POINTS = 240


@dataclasses.dataclass
class Series:
    """One line of a plot.

    Attributes:
        name: for the legend.
        points: ``(x, y)`` in order of x; a ``y`` of None breaks the line.
        band: ``(x, low, high)``, the range around the line; may be empty.
        style: 0 to 5.
        markers: whether every point is marked, and can be pointed at; else the first of each run is.
    """

    name: str
    points: list
    band: list = dataclasses.field(default_factory=list)
    style: int = 0
    markers: bool = True


def escape(text: object, limit: int = 4000) -> str:
    """Text for any place in a page: between tags and in quoted attributes."""
    return html.escape(clean(text, limit), quote=True)


def shorten(text: object, limit: int) -> str:
    """The end of a text that is too long for its place: names differ there."""
    shown = clean(text, 1000)
    return shown if len(shown) <= limit else "…" + shown[-(limit - 1) :]


def _at(value: float) -> str:
    """A coordinate, to a tenth, without a tail of zeros."""
    return "{0:.1f}".format(value).rstrip("0").rstrip(".")


def ticks(low: float, high: float, about: int = 5) -> list:
    """Round values from ``low`` to ``high``, some ``about`` of them."""
    span = high - low
    if span <= 0:
        return [low]
    rough = span / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float("{0:.12g}".format(index * step)) for index in range(int(first), int(math.floor(high / step + 1e-9)) + 1)]


def log_ticks(low: float, high: float) -> list:
    """Values 1, 2 and 5 times a power of ten, from the last one not above ``low`` (over 0) to the first one not below ``high``."""
    marks = []
    for power in range(int(math.floor(math.log10(low))) - 1, int(math.floor(math.log10(high))) + 2):
        marks += [float("{0}e{1}".format(factor, power)) for factor in (1, 2, 5)]
    first = max(mark for mark in marks if mark <= low * 1.0000001)
    last = min(mark for mark in marks if mark >= high * 0.9999999 and mark > first)
    return [mark for mark in marks if first <= mark <= last]


def nice_top(value: float) -> float:
    """The first round value that is not below ``value``."""
    if value < 1e-9:
        return 1.0
    steps = ticks(0.0, value)
    step = steps[1] - steps[0] if len(steps) > 1 else value
    return step * math.ceil(value / step - 1e-9)


def thin(points: list, limit: int = POINTS) -> tuple:
    """Points for a line that has too many, as ``(points, band)``: means of equal shares, and the range each of them covers.

    A break (None) stays one. Few points come back as they are, without a band.
    """
    if len(points) <= limit:
        return list(points), []
    size = int(math.ceil(len(points) / float(limit)))
    line, band = [], []
    for start in range(0, len(points), size):
        share = points[start : start + size]
        known = [item for item in share if item[1] is not None]
        if known:
            x = math.fsum(item[0] for item in known) / len(known)
            line.append((x, math.fsum(item[1] for item in known) / len(known)))
            band.append((x, min(item[1] for item in known), max(item[1] for item in known)))
        if len(known) < len(share):
            line.append((share[-1][0], None))
    return line, band


def marker(style: int, x: float, y: float, size: float = 3.4) -> str:
    """The shape of a series at a place: circle, square, triangle, diamond, cross, plus."""
    a, b = _at(x), _at(y)
    if style == 0:
        return '<circle cx="{0}" cy="{1}" r="{2}"/>'.format(a, b, _at(size))
    paths = {
        1: "M{0} {1}h{2}v{2}h-{2}z".format(_at(x - size), _at(y - size), _at(2 * size)),
        2: "M{0} {1}l{2} {3}h-{4}z".format(a, _at(y - size * 1.2), _at(size * 1.2), _at(size * 2.1), _at(size * 2.4)),
        3: "M{0} {1}l{2} {2}l-{2} {2}l-{2} -{2}z".format(a, _at(y - size * 1.3), _at(size * 1.3)),
        4: "M{0} {1}l{2} {2}m0 -{2}l-{2} {2}".format(_at(x - size), _at(y - size), _at(2 * size)),
        5: "M{0} {1}v{2}M{3} {4}h{2}".format(a, _at(y - size), _at(2 * size), _at(x - size), b),
    }
    return '<path d="{0}"/>'.format(paths[style % STYLES])


def legend(entries: list, x: float, y: float, width: float) -> tuple:
    """Sample and name of each ``(name, style)``, in as many rows as they need: ``(svg, height)``."""
    parts = []
    left, top = x, y
    for name, style in entries:
        text = clean(name, 40)
        need = 34 + _CHAR * len(text) + 14
        if left > x and left + need > x + width:
            left, top = x, top + 18
        parts.append(
            '<g class="s{0}"><path class="l" d="M{1} {2}h24" stroke-dasharray="{3}"/><g class="m">{4}</g></g>'
            '<text x="{5}" y="{6}">{7}</text>'.format(
                style % STYLES,
                _at(left),
                _at(top),
                _DASHES[style % STYLES],
                marker(style, left + 12, top),
                _at(left + 30),
                _at(top + 4),
                html.escape(text),
            )
        )
        left += need
    return "".join(parts), (top - y + 18 if entries else 0)


def _open(title: str, description: str, height: float, name: str, width: float = WIDTH) -> str:
    return (
        '<svg class="plot" role="img" viewBox="0 0 {0} {1}" aria-labelledby="{2}-t {2}-d"><title id="{2}-t">{3}</title>'
        '<desc id="{2}-d">{4}</desc>'.format(_at(width), _at(height), escape(name), escape(title), escape(description))
    )


def _segments(points: list) -> list:
    """Runs of points without a break."""
    runs = [[]]
    for point in points:
        if point[1] is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def line_chart(
    name: str,
    title: str,
    x_label: str,
    unit: str,
    series: list,
    x_ticks: list | None = None,
    x_log: bool = False,
    spans: list | None = None,
    y_top: float | None = None,
    x_unit: str = "",
    y_log: bool = False,
) -> str:
    """Lines over common axes; that of the values begins at zero unless it is logarithmic.

    Args:
        name: id of the plot in its page, letters, digits and hyphens.
        title: what is shown, for those who cannot see it.
        x_label: below the axis, with its unit.
        unit: of the values.
        series: list of Series; those without any value are left out.
        x_ticks: places of the ticks; None chooses round ones.
        x_log: whether equal ratios are equally far apart.
        spans: ``(from, to, label)`` of stretches on the x axis to be told apart.
        y_top: the axis ends here; None chooses.
        x_unit: unit of x when a point is pointed at.
        y_log: whether equal ratios of values are equally far apart; the axis then begins below the smallest value, which must be above 0.

    Returns the SVG, or an empty string where there is nothing to draw.
    """
    series = [item for item in series if any(point[1] is not None for point in item.points)]
    if not series:
        return ""
    xs = [point[0] for item in series for point in item.points if point[1] is not None]
    ys = [point[1] for item in series for point in item.points if point[1] is not None]
    highs = ys + [high for item in series for _x, _low, high in item.band]
    low_x, high_x = min(xs), max(xs)
    if spans:
        low_x, high_x = min(low_x, spans[0][0]), max(high_x, spans[-1][1])
    if not x_log and x_ticks is None:
        low_x = min(0.0, low_x)
    top_y = y_top or nice_top(max(highs))
    y_log = y_log and min(ys) >= 1e-9
    y_marks = (
        log_ticks(min(ys + [low for item in series for _x, low, _high in item.band if low > 0]), max(highs)) if y_log else ticks(0.0, top_y)
    )
    low_y = y_marks[0] if y_log else 0.0
    top_y = y_marks[-1] if y_log else top_y
    edge = max(float(_LEFT), 26 + _CHAR * max(len(number(value, digits=4, trim=True)) for value in y_marks))
    many = len(series) > 1 or bool(series[0].name)
    described, above = legend([(item.name, item.style) for item in series] if many else [], edge, 10, WIDTH - edge - _RIGHT)
    over = _TOP + above + (14 if spans else 0)
    height = HEIGHT + above
    bottom, right = height - _BOTTOM, WIDTH - _RIGHT

    def place_x(value: float) -> float:
        inner = 12 if x_ticks is not None else 0
        if high_x <= low_x:
            return (edge + right) / 2.0
        if x_log:
            share = (math.log(value) - math.log(low_x)) / (math.log(high_x) - math.log(low_x))
        else:
            share = (value - low_x) / float(high_x - low_x)
        return edge + inner + share * (right - edge - 2 * inner)

    def place_y(value: float) -> float:
        share = math.log(max(value, low_y) / low_y) / math.log(top_y / low_y) if y_log else value / top_y
        return bottom - min(1.0, max(0.0, share)) * (bottom - over)

    said = "; ".join(
        "{0}: {1} to {2}".format(
            item.name or title,
            number(min(point[1] for point in item.points if point[1] is not None)),
            number(max(point[1] for point in item.points if point[1] is not None), unit),
        )
        for item in series
    )
    parts = [_open(title, said, height, name)]
    for index, (start, end, label) in enumerate(spans or []):
        a, b = place_x(start), place_x(end)
        parts.append(
            '<rect class="span{0}" x="{1}" y="{2}" width="{3}" height="{4}"/>'.format(
                index % 2, _at(a), _at(over - 14), _at(max(0.5, b - a)), _at(bottom - over + 14)
            )
        )
        if b - a > _CHAR * len(clean(label)) + 2:
            parts.append(
                '<text class="a" x="{0}" y="{1}" text-anchor="middle">{2}</text>'.format(_at((a + b) / 2), _at(over - 3), escape(label))
            )
    for value in y_marks:
        y = place_y(value)
        parts.append(
            '<path class="{0}" d="M{1} {2}H{3}"/>'.format("axis" if value == y_marks[0] else "grid", _at(edge), _at(y), _at(right))
        )
        parts.append(
            '<text class="a" x="{0}" y="{1}" text-anchor="end">{2}</text>'.format(
                _at(edge - 7), _at(y + 4), number(value, digits=4, trim=True)
            )
        )
    taken = -1e9
    for value in x_ticks if x_ticks is not None else ticks(low_x, high_x, 8):
        x, label = place_x(value), number(value, digits=4, trim=True)
        # Levels may lie close together; a label that would touch its neighbour is left out, its tick is not.
        parts.append('<path class="axis" d="M{0} {1}v4"/>'.format(_at(x), _at(bottom)))
        if x - taken > _CHAR * len(label) + 6:
            parts.append('<text class="a" x="{0}" y="{1}" text-anchor="middle">{2}</text>'.format(_at(x), _at(bottom + 17), label))
            taken = x
    parts.append(
        '<text class="a" x="{0}" y="{1}" text-anchor="middle">{2}</text>'.format(
            _at((edge + right) / 2.0), _at(height - 7), escape(x_label)
        )
    )
    parts.append(
        '<text class="a" transform="translate(13 {0}) rotate(-90)" text-anchor="middle">{1}</text>'.format(
            _at((over + bottom) / 2.0), escape(unit + (", logarithmic" if y_log else ""))
        )
    )
    parts.append(described)
    for item in series:
        style = item.style % STYLES
        parts.append('<g class="s{0}">'.format(style))
        for run in _segments(list(item.band)):
            there = " ".join("{0},{1}".format(_at(place_x(x)), _at(place_y(high))) for x, _low, high in run)
            back = " ".join("{0},{1}".format(_at(place_x(x)), _at(place_y(low))) for x, low, _high in reversed(run))
            if len(run) > 1:
                parts.append('<polygon class="b" points="{0} {1}"/>'.format(there, back))
            else:
                x, low, high = run[0]
                parts.append('<path class="l" d="M{0} {1}V{2}"/>'.format(_at(place_x(x)), _at(place_y(low)), _at(place_y(high))))
        runs = _segments(item.points)
        # Enough marks to tell the line by, not so many that they hide it.
        step = int(math.ceil(len(runs) / 8.0))
        for index, run in enumerate(runs):
            if len(run) > 1:
                path = "L".join("{0} {1}".format(_at(place_x(x)), _at(place_y(y))) for x, y in run)
                parts.append('<path class="l" d="M{0}" stroke-dasharray="{1}"/>'.format(path, _DASHES[style] if item.markers else ""))
            for x, y in run if item.markers else run[: int(index % step == 0)]:
                parts.append(
                    '<g class="m">{0}<title>{1}</title></g>'.format(
                        marker(style, place_x(x), place_y(y)),
                        escape("{0}, {1}: {2}".format(item.name or title, number(x, x_unit), number(y, unit))),
                    )
                )
        parts.append("</g>")
    parts.append("</svg>")
    return "".join(parts)


def dot_chart(name: str, title: str, unit: str, rows: list, limit: tuple | None = None, top: float | None = None) -> str:
    """A dot per row on an axis from zero.

    Args:
        rows: ``(label, value)``; a value of None has no dot, and says so.
        limit: ``(value, label)`` of a line to be kept, if any.
        top: end of the axis; None chooses.
    """
    known = [value for _label, value in rows if is_number(value)]
    if not known:
        return ""
    top_x = top or nice_top(max(known + ([limit[0]] if limit else [])))
    left = min(190.0, 16 + _CHAR * max(min(24, len(clean(label, 24))) for label, _value in rows))
    right, step = NARROW - 52, 22
    bottom = 18 + step * len(rows)
    height = bottom + 40

    def place(value: float) -> float:
        return left + min(1.0, max(0.0, value / top_x)) * (right - left)

    parts = [_open(title, "from {0} to {1}".format(number(min(known)), number(max(known), unit)), height, name, NARROW)]
    for value in ticks(0.0, top_x, 4):
        x = _at(place(value))
        parts.append('<path class="{0}" d="M{1} 10V{2}"/>'.format("axis" if value == 0 else "grid", x, _at(bottom)))
        parts.append(
            '<text class="a" x="{0}" y="{1}" text-anchor="middle">{2}</text>'.format(
                x, _at(bottom + 15), number(value, digits=4, trim=True)
            )
        )
    parts.append(
        '<text class="a" x="{0}" y="{1}" text-anchor="middle">{2}</text>'.format(_at((left + right) / 2.0), _at(height - 6), escape(unit))
    )
    for index, (label, value) in enumerate(rows):
        y = 10 + step * (index + 0.5)
        parts.append('<text x="{0}" y="{1}" text-anchor="end">{2}</text>'.format(_at(left - 10), _at(y + 4), escape(shorten(label, 24))))
        if is_number(value):
            parts.append('<g class="s0"><path class="stem" d="M{0} {1}H{2}"/>'.format(_at(left), _at(y), _at(place(value))))
            parts.append(
                '<g class="m">{0}<title>{1}</title></g></g>'.format(
                    marker(0, place(value), y, 4.2), escape("{0}: {1}".format(label, number(value, unit)))
                )
            )
            parts.append('<text x="{0}" y="{1}">{2}</text>'.format(_at(place(value) + 9), _at(y + 4), number(value)))
        else:
            parts.append('<text class="a" x="{0}" y="{1}">no figure</text>'.format(_at(left + 6), _at(y + 4)))
    if limit:
        x = place(limit[0])
        parts.append('<path class="limit" d="M{0} 6V{1}"/>'.format(_at(x), _at(bottom)))
        parts.append('<text class="a" x="{0}" y="8" text-anchor="start">{1}</text>'.format(_at(x + 4), escape(limit[1])))
    parts.append("</svg>")
    return "".join(parts)


def strip_chart(name: str, title: str, unit: str, rows: list, top: float | None = None) -> str:
    """Many values at once: how often each stretch of the axis occurs, with the extremes named.

    ``rows`` are ``(label, value)``; those without a value are left out.
    """
    known = sorted((value, str(label)) for label, value in rows if is_number(value))
    if not known:
        return ""
    top_x = top or nice_top(known[-1][0])
    bins = 40
    counts = [0] * bins
    for value, _label in known:
        counts[min(bins - 1, int(value / top_x * bins))] += 1
    left, right, over, bottom = float(_LEFT), float(WIDTH - _RIGHT), 26.0, 170.0
    most = nice_top(max(counts))
    width = (right - left) / bins
    said = "{0} values from {1} ({2}) to {3} ({4})".format(
        len(known), number(known[0][0], unit), known[0][1], number(known[-1][0], unit), known[-1][1]
    )
    parts = [_open(title, said, 210, name)]
    for value in ticks(0.0, most, 4):
        y = bottom - value / most * (bottom - over)
        parts.append('<path class="{0}" d="M{1} {2}H{3}"/>'.format("axis" if value == 0 else "grid", _at(left), _at(y), _at(right)))
        parts.append(
            '<text class="a" x="{0}" y="{1}" text-anchor="end">{2}</text>'.format(_at(left - 7), _at(y + 4), number(value, trim=True))
        )
    parts.append('<g class="s0">')
    for index, count in enumerate(counts):
        if count:
            tall = count / most * (bottom - over)
            parts.append(
                '<rect class="bar" x="{0}" y="{1}" width="{2}" height="{3}"><title>{4}</title></rect>'.format(
                    _at(left + index * width + 0.7),
                    _at(bottom - tall),
                    _at(width - 1.4),
                    _at(tall),
                    escape("{0} between {1} and {2}".format(count, number(index * top_x / bins), number((index + 1) * top_x / bins, unit))),
                )
            )
    parts.append("</g>")
    for value in ticks(0.0, top_x, 8):
        x = _at(left + value / top_x * (right - left))
        parts.append(
            '<text class="a" x="{0}" y="{1}" text-anchor="middle">{2}</text>'.format(
                x, _at(bottom + 16), number(value, digits=4, trim=True)
            )
        )
    parts.append('<text class="a" x="{0}" y="204" text-anchor="middle">{1}</text>'.format(_at((left + right) / 2), escape(unit)))
    parts.append('<text class="a" x="{0}" y="14">{1}</text>'.format(_at(left), escape(said, 90)))
    parts.append("</svg>")
    return "".join(parts)


def range_chart(name: str, title: str, rows: list, tolerance: float, material: float) -> str:
    """Changes with how sure they are, around zero: right is worse.

    ``rows`` are ``(label, middle, low, high, verdict)`` in percent; a middle of None has no mark. The shaded stretch is the change nobody
    minds, the broken line the one nobody must miss.
    """
    known = [row for row in rows if is_number(row[1])]
    if not known:
        return ""
    reach = nice_top(min(60.0, max([material * 1.3] + [abs(value) for row in known for value in row[1:4]])))
    left = min(430.0, 16 + _CHAR * max(len(shorten(row[0], 64)) for row in rows))
    right, step = float(WIDE - 16), 22
    over = 24
    bottom = over + step * len(rows)
    height = bottom + 38

    def place(value: float) -> float:
        return left + (min(reach, max(-reach, value)) + reach) / (2 * reach) * (right - left)

    worse = sum(1 for row in known if row[4] == "worse")
    parts = [_open(title, "{0} figures, {1} of them worse".format(len(rows), worse), height, name, WIDE)]
    parts.append(
        '<rect class="span1" x="{0}" y="{1}" width="{2}" height="{3}"/>'.format(
            _at(place(-tolerance)), over - 4, _at(place(tolerance) - place(-tolerance)), _at(bottom - over + 4)
        )
    )
    for value in ticks(-reach, reach, 8):
        x = _at(place(value))
        parts.append('<path class="{0}" d="M{1} {2}V{3}"/>'.format("axis" if value == 0 else "grid", x, over - 4, _at(bottom)))
        parts.append(
            '<text class="a" x="{0}" y="{1}" text-anchor="middle">{2}</text>'.format(
                x, _at(bottom + 15), "{0:+g}".format(value) if value else "0"
            )
        )
    parts.append('<path class="limit" d="M{0} {1}V{2}"/>'.format(_at(place(material)), over - 4, _at(bottom)))
    parts.append('<text class="a" x="{0}" y="13" text-anchor="start">← better</text>'.format(_at(left)))
    parts.append('<text class="a" x="{0}" y="13" text-anchor="end">worse →</text>'.format(_at(right)))
    parts.append(
        '<text class="a" x="{0}" y="{1}" text-anchor="middle">change in %, with its range</text>'.format(
            _at((left + right) / 2.0), _at(height - 6)
        )
    )
    for index, (label, middle, low, high, verdict) in enumerate(rows):
        y = over + step * (index + 0.5) - 2
        parts.append('<text x="{0}" y="{1}" text-anchor="end">{2}</text>'.format(_at(left - 10), _at(y + 4), escape(shorten(label, 64))))
        if not is_number(middle):
            parts.append('<text class="a" x="{0}" y="{1}">not compared</text>'.format(_at(left + 6), _at(y + 4)))
            continue
        shape = {"worse": 3, "unknown": 2, "better": 1}.get(verdict, 0)
        parts.append(
            '<g class="v-{0}"><path class="l" d="M{1} {2}H{3}"/>'.format(
                escape(verdict), _at(place(low)), _at(y), _at(max(place(high), place(low) + 0.5))
            )
        )
        parts.append(
            '<g class="m">{0}<title>{1}</title></g></g>'.format(
                marker(shape, place(middle), y, 4.2), escape("{0}: {1:+.1f} % ({2:+.1f} to {3:+.1f})".format(label, middle, low, high))
            )
        )
    parts.append("</svg>")
    return "".join(parts)
