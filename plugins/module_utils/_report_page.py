# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The acceptance report as one HTML file that needs nothing else: no script, no font, no picture from elsewhere. Pure. Private.

Its own policy forbids the browser to load anything, so that a hostile answer which slipped through escaping would still do nothing.
"""

from __future__ import annotations

import math
import re

from ansible_collections.ironserve.llm.plugins.module_utils import _baseline, _plots, _report
from ansible_collections.ironserve.llm.plugins.module_utils._names import fold
from ansible_collections.ironserve.llm.plugins.module_utils._plots import Series, escape
from ansible_collections.ironserve.llm.plugins.module_utils._report import is_number, number

#: Colours by theme. Text keeps a contrast of 4.5 to 1 on ``bg`` and ``panel``, lines one of 3 to 1; series differ for colour-blind eyes too.
LIGHT = {
    "bg": "#ffffff",
    "panel": "#f4f6f8",
    "text": "#17212b",
    "muted": "#4f5b67",
    "line": "#d5dbe2",
    "grid": "#e3e7ec",
    "ok": "#06664a",
    "bad": "#a8201a",
    "unsure": "#7a4b00",
    "link": "#00588f",
    "s0": "#0067a5",
    "s1": "#b94a00",
    "s2": "#00806a",
    "s3": "#8e3f86",
    "s4": "#6b5b00",
    "s5": "#45576b",
}
DARK = {
    "bg": "#0f151b",
    "panel": "#18212a",
    "text": "#e7edf3",
    "muted": "#a8b4c0",
    "line": "#35424f",
    "grid": "#26313c",
    "ok": "#52d3a8",
    "bad": "#ff8f85",
    "unsure": "#f2c14e",
    "link": "#7cc4f5",
    "s0": "#62b6f0",
    "s1": "#ff9350",
    "s2": "#35cfae",
    "s3": "#e6a0d8",
    "s4": "#e3cf57",
    "s5": "#b7c5d3",
}

#: More replicas than this are drawn together, as their mean and range.
ALONE = 3
#: Up to so many replicas have a row each in the plots of the proof.
ROWS = 24
#: More endpoints than this are folded away on the screen; those that did not prove themselves are shown all the same.
FOLDED = 40
#: Up to so many causes are written out in a box before the rest is folded away.
SHOWN = 6

_VERDICT_CLASS = {"ok": "ok", "pass": "ok", "same": "ok", "better": "ok", "warn": "unsure", "unknown": "unsure", "refused": "unsure"}
_ICONS = {
    "ok": '<circle cx="8" cy="8" r="7"/><path d="M4.6 8.3l2.3 2.4 4.5-5"/>',
    "bad": '<rect x="1" y="1" width="14" height="14" rx="2"/><path d="M5 5l6 6m0-6l-6 6"/>',
    "unsure": '<path d="M8 1.2L15.3 14.4H.7z"/><path d="M8 6v3.6M8 11.9v.1"/>',
    "none": '<path d="M3 8h10"/>',
}


def _style() -> str:
    def variables(theme: dict) -> str:
        return "".join("--{0}:{1};".format(name, colour) for name, colour in theme.items())

    series = "".join(".s{0}{{--c:var(--s{0})}}".format(index) for index in range(_plots.STYLES))
    return (
        ":root{{color-scheme:light dark;{0}}}@media (prefers-color-scheme:dark){{:root{{{1}}}}}"
        "@media print{{:root{{color-scheme:light;{0}}}}}{2}{3}"
    ).format(variables(LIGHT), variables(DARK), series, _RULES)


_RULES = """
*{box-sizing:border-box}
html{scroll-behavior:smooth;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Noto Sans CJK SC",
"PingFang SC","Microsoft YaHei","WenQuanYi Micro Hei",sans-serif;font-variant-numeric:tabular-nums}
main,header,footer,nav{max-width:1180px;margin:0 auto;padding:0 24px}
a{color:var(--link)}
h1{font-size:30px;line-height:1.2;margin:0;letter-spacing:-.01em}
h2{font-size:21px;margin:44px 0 12px;padding-top:10px;border-top:1px solid var(--line)}
h3{font-size:16px;margin:26px 0 8px}
p{margin:8px 0;max-width:78ch}
code,pre,.mono{font-family:ui-monospace,"SF Mono","Cascadia Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:13px}
pre{background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:12px 14px;overflow:auto;white-space:pre-wrap;
overflow-wrap:anywhere;margin:8px 0}
header{padding-top:30px}
.banner{display:flex;gap:18px;align-items:center;border-left:6px solid var(--v);padding:6px 0 6px 18px}
.banner svg{width:44px;height:44px;flex:none}
.banner p{margin:4px 0 0;font-size:16px}
.sub{color:var(--muted);margin:14px 0 0}
.ok{--v:var(--ok)}.bad{--v:var(--bad)}.unsure{--v:var(--unsure)}.none{--v:var(--muted)}
.i{width:15px;height:15px;vertical-align:-2px;fill:var(--v);stroke:var(--bg);stroke-width:1.8;stroke-linecap:round;stroke-linejoin:round;flex:none}
.i.none{stroke:var(--v)}
.chip{color:var(--v);font-weight:600;white-space:nowrap}
nav{margin-top:20px}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 20px;padding:9px 0;margin:0;border-top:1px solid var(--line);
border-bottom:1px solid var(--line)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin:22px 0 0}
.tile{background:var(--panel);border-radius:8px;padding:12px 14px}
.tile b{display:block;font-size:20px;line-height:1.3;white-space:nowrap;font-weight:650;letter-spacing:-.01em}
.tile b small{font-size:13px;font-weight:500;color:var(--muted)}
.tile span{color:var(--muted);font-size:13px}
.box{border:1px solid var(--line);border-left:5px solid var(--v);border-radius:6px;padding:12px 16px;margin:12px 0;break-inside:avoid}
.box h3{margin:0 0 4px}
.box ul{margin:6px 0;padding-left:20px}
.next{background:var(--panel);border-radius:5px;padding:7px 11px;margin:8px 0 0;max-width:none}
.t,bdi,td,li,.box h3{overflow-wrap:break-word;unicode-bidi:isolate}
.box,p.t,li{overflow-wrap:anywhere}
.any{display:block;min-width:22ch;overflow-wrap:anywhere;unicode-bidi:isolate}
td .mono,tbody th{white-space:nowrap}tbody th{max-width:44ch;overflow-wrap:anywhere;white-space:normal;min-width:12ch}
td .mono.any{white-space:normal}
.wrap{overflow-x:auto;margin:10px 0}
table{border-collapse:collapse;width:100%;font-size:14px}
caption{text-align:left;color:var(--muted);padding:0 0 6px;font-size:13px}
th,td{text-align:left;padding:6px 12px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
thead th{color:var(--muted);font-weight:600;font-size:13px;vertical-align:bottom}
tbody th{font-weight:600}
.n{text-align:right;white-space:nowrap}
.c{text-align:center}
td.status{white-space:nowrap;width:1%}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,470px),1fr));gap:18px 26px;margin:14px 0}
figure{margin:0;break-inside:avoid}
.plots.three{grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr))}
figure.wide{max-width:1000px}
figcaption{font-weight:600;font-size:14px;margin:0 0 4px}
figcaption small{font-weight:400;color:var(--muted);font-size:13px}
.plot{display:block;width:100%;max-width:700px;height:auto;overflow:visible}
.plots.three .plot{max-width:420px}figure.wide .plot{max-width:none}
.plot text{fill:var(--text);font-size:12px;font-family:inherit}
.plot .a{fill:var(--muted)}
.grid{stroke:var(--grid);stroke-width:1;fill:none}
.axis{stroke:var(--muted);stroke-width:1;fill:none}
.l{stroke:var(--c);stroke-width:2;fill:none;stroke-linejoin:round}
.m>*{fill:var(--c);stroke:var(--c);stroke-width:1.6}
.m path[d*="m0"]{fill:none}
.b{fill:var(--c);fill-opacity:.16;stroke:none}
.bar{fill:var(--c)}
.stem{stroke:var(--c);stroke-opacity:.35;stroke-width:2}
.limit{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:5 4;fill:none}
.span0{fill:none}.span1{fill:var(--panel)}
.v-same,.v-better,.v-new{--c:var(--ok)}.v-worse{--c:var(--bad)}.v-unknown{--c:var(--unsure)}
details{border-bottom:1px solid var(--line)}
details>summary{cursor:pointer;padding:9px 2px;display:flex;gap:10px;align-items:baseline;flex-wrap:wrap}
details>summary::-webkit-details-marker{display:none}
details>summary::before{content:"";width:7px;height:7px;border-right:2px solid var(--muted);border-bottom:2px solid var(--muted);
transform:rotate(-45deg) translate(-1px,-1px);flex:none}
details[open]>summary::before{transform:rotate(45deg) translate(-2px,-1px)}
details>div,details>ul{padding:0 0 14px 19px}
.muted{color:var(--muted)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:5px 20px;margin:10px 0}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere}
footer{margin-top:44px;padding-top:14px;padding-bottom:40px;border-top:1px solid var(--line);color:var(--muted);font-size:13px}
@media (max-width:640px){main,header,footer,nav{padding-left:14px;padding-right:14px}h1{font-size:25px}dl{grid-template-columns:1fr;gap:0}
dd{margin-bottom:8px}}
@media print{@page{size:A4;margin:14mm}body{font-size:10.5pt}main,header,footer,nav{max-width:none;padding:0}nav{display:none}
h2,h3,figcaption,summary{break-after:avoid}tr,.tile,.box{break-inside:avoid}thead{display:table-header-group}
.plots{grid-template-columns:1fr 1fr;gap:10px 18px}.wrap{overflow:visible}table{font-size:9pt}th,td{padding:3px 8px 3px 0}
details::details-content{content-visibility:visible;block-size:auto}details>summary::before{display:none}
.tile,.next,pre,.span1,.bar,.b{print-color-adjust:exact;-webkit-print-color-adjust:exact}h2{margin-top:22px}}
"""


# ---- pieces


def icon(kind: str) -> str:
    """A small sign whose shape says the same as its colour; the words stand beside it."""
    return '<svg class="i {0}" aria-hidden="true" viewBox="0 0 16 16"><use href="#i-{0}"/></svg>'.format(kind)


def kind_of(word: str) -> str:
    """``ok``, ``bad``, ``unsure`` or ``none`` for a verdict or a status."""
    if word in ("not_applicable", "none", "new", "left_out", ""):
        return "none"
    return _VERDICT_CLASS.get(word, "bad")


def chip(word: str, shown: str = "") -> str:
    """A verdict or status with its sign."""
    kind = kind_of(word)
    return '<span class="chip {0}">{1} {2}</span>'.format(kind, icon(kind), escape(shown or word.replace("_", " ")))


def _list(items: list) -> str:
    return "<ul>{0}</ul>".format("".join("<li>{0}</li>".format(escape(item)) for item in items)) if items else ""


def table(head: list, rows: list, caption: str = "", numeric: tuple = ()) -> str:
    """A table; cells are HTML already, the first of each row heads it. ``numeric`` are the columns that stand right."""
    classes = ['<{{0}} class="n"{0}>'.format("") if index in numeric else "<{0}>" for index in range(len(head))]
    text = ['<div class="wrap"><table>', "<caption>{0}</caption>".format(escape(caption)) if caption else "", "<thead><tr>"]
    text += [
        '<th scope="col"{0}>{1}</th>'.format(' class="n"' if index in numeric else "", escape(title)) for index, title in enumerate(head)
    ]
    text.append("</tr></thead><tbody>")
    for row in rows:
        text.append('<tr><th scope="row">{0}</th>'.format(row[0]))
        text += ["{0}{1}</td>".format(classes[index].format("td"), cell) for index, cell in enumerate(row) if index]
        text.append("</tr>")
    return "".join(text) + "</tbody></table></div>"


def figure(plot: str, title: str, note: str = "", wide: bool = False) -> str:
    """A plot with its title; nothing where there is no plot."""
    if not plot:
        return ""
    small = " <small>{0}</small>".format(escape(note)) if note else ""
    return "<figure{0}><figcaption>{1}{2}</figcaption>{3}</figure>".format(' class="wide"' if wide else "", escape(title), small, plot)


def _plots_of(figures: list, three: bool = False) -> str:
    inside = "".join(figures)
    return '<div class="plots{0}">{1}</div>'.format(" three" if three else "", inside) if inside else ""


def _section(name: str, title: str, *content: str) -> tuple:
    inside = "".join(content)
    return (name, title, inside)


# ---- summary


def _span(values: list) -> str:
    known = [value for value in values if is_number(value)]
    if not known:
        return ""
    low, high = number(min(known)), number(max(known))
    return low if low == high else "{0}–{1}".format(low, high)


def tiles(report: dict) -> str:
    """The figures one looks for first."""
    counts = report["counts"]
    checks = counts["checks"]
    replicas = [row for row in report["results"] if row.get("name") in _replica_names(report)] or report["results"]
    shown = [
        ("{0} <small>of {1}</small>".format(counts["ok"], counts["endpoints"] + len(report["unproved"])), "endpoints proved"),
        (
            "{0} <small>of {1}</small>".format(checks["pass"] + checks["warn"], sum(checks.values()) - checks["not_applicable"]),
            "checks passed"
            + (", {0} with a warning".format(checks["warn"]) if checks["warn"] else "")
            + (", {0} not applicable".format(checks["not_applicable"]) if checks["not_applicable"] else ""),
        ),
        (_span([row.get("ttft_ms") for row in replicas]), "ms to the first token, by replica"),
        (_span([row.get("decode_tokens_per_s") for row in replicas]), "tokens/s of one stream, by replica"),
        (_span([row.get("card_use_pct") for row in replicas]), "% card use during the proof"),
    ]
    scores = [row["score"] for row in report["accuracy"] if is_number(row.get("score"))]
    if scores:
        shown.append((escape(_report.percent(min(scores))), "word problems right" + (", at least" if len(scores) > 1 else "")))
    benchmark = report["benchmark"]
    if benchmark and benchmark.get("ok"):
        best = [
            (level["figures"].get("output_throughput") or {}).get("mean")
            for level in benchmark["summary"].get("levels") or []
            if level.get("figures")
        ]
        best = [value for value in best if is_number(value)]
        if best:
            shown.append((number(max(best)), "tokens/s at most, all streams together"))
    baseline = report["baseline"]
    if baseline:
        words = {
            "same": "as before",
            "better": "better",
            "worse": "worse",
            "unknown": "not clear",
            "refused": "refused",
            "none": "none yet",
        }
        if baseline.get("recorded_now"):
            words["none"] = "recorded"
        shown.append((chip(baseline["status"], words.get(baseline["status"], baseline["status"])), "against the baseline"))
    return '<div class="tiles">{0}</div>'.format(
        "".join('<div class="tile"><b>{0}</b><span>{1}</span></div>'.format(value, escape(label)) for value, label in shown if value)
    )


def _replica_names(report: dict) -> dict:
    """Planned replicas by name: ``(host, replica)``."""
    return {replica["name"]: (row["host"], replica) for row in report["fleet"] for replica in row["replicas"]}


def _troubles(report: dict) -> str:
    text = []
    for row in _report.troubles(report):
        kind = "unsure" if row["verdict"] in ("unknown", "refused") else "bad"
        shown, more = row["evidence"][:SHOWN], row["evidence"][SHOWN:]
        rest = "<details><summary>{0} more</summary>{1}</details>".format(len(more), _list(more)) if more else ""
        step = '<p class="next"><b>Next:</b> {0}</p>'.format(escape(row["next_step"])) if row["next_step"] else ""
        text.append(
            '<div class="box {0}"><h3>{1} <bdi>{2}</bdi></h3>{3}{4}{5}</div>'.format(
                kind, chip(row["verdict"]), escape(row["who"], 400), _list(shown), rest, step
            )
        )
    return "".join(text)


# ---- verdicts


def _verdicts(report: dict) -> str:
    known = _replica_names(report)
    rows = []
    for result in report["results"]:
        name = str(result.get("name", ""))
        host, replica = known.get(name, ("", None))
        checks = result.get("checks") or []
        good = sum(1 for check in checks if check.get("status") in ("pass", "warn"))
        counted = sum(1 for check in checks if check.get("status") != "not_applicable")
        rows.append(
            [
                "<bdi>{0}</bdi>".format(escape(name)),
                chip(str(result.get("verdict") or "unknown")),
                "{0} of {1}".format(good, counted),
                number(result.get("ttft_ms"), "ms"),
                number(result.get("decode_tokens_per_s"), "tokens/s"),
                number(result.get("card_use_pct"), "%"),
                escape(", ".join(replica["cards"])) if replica else '<span class="muted">–</span>',
                '<span class="mono">{0}</span>'.format(escape(result.get("url", ""))),
            ]
        )
    for name in report["unproved"]:
        host, replica = known[name]
        rows.append([escape(name), chip("unknown"), "–", "–", "–", "–", escape(", ".join(replica["cards"])), "not asked"])
    # Where there is little room, the last columns are those that are out of sight.
    head = ["endpoint", "verdict", "checks passed", "first token", "decode, one stream", "card use", "cards", "asked at"]
    if len(rows) <= FOLDED:
        return table(head, rows, numeric=(2, 3, 4, 5)) if rows else "<p>No endpoint was asked.</p>"
    # Of a large fleet one wants to see those that are not like the others.
    odd = [row for row, result in zip(rows, report["results"]) if result.get("verdict") != "ok"] + rows[len(report["results"]) :]
    text = table(head, odd, numeric=(2, 3, 4, 5)) if odd else ""
    return text + "<details><summary>All {0} endpoints</summary><div>{1}</div></details>".format(
        len(rows), table(head, rows, numeric=(2, 3, 4, 5))
    )


def _proof_plots(report: dict) -> str:
    known = _replica_names(report)
    replicas = [row for row in report["results"] if row.get("name") in known] or report["results"]
    drawn = []
    for key, title, unit, top in (
        ("ttft_ms", "Time to the first token", "ms", None),
        ("decode_tokens_per_s", "Decode speed of one stream", "tokens/s", None),
        ("card_use_pct", "Card use during the proof", "%", 100.0),
    ):
        rows = [(str(row.get("name", "")), row.get(key)) for row in replicas]
        name = "proof-{0}".format(key.replace("_", "-"))
        # What plays a card may be shared, and is then used by more than one.
        top = top and max([top] + [_plots.nice_top(value) for _label, value in rows if is_number(value)])
        if len(rows) <= ROWS:
            drawn.append(figure(_plots.dot_chart(name, title, unit, rows, top=top), title))
        else:
            drawn.append(figure(_plots.strip_chart(name, title, unit, rows, top=top), title, "replicas by value"))
    return _plots_of(drawn, len(rows) <= ROWS)


# ---- accuracy


def _accuracy(report: dict) -> str:
    rows = []
    for row, cells in zip(report["accuracy"], _report.score_rows(report["accuracy"])):
        verdict = _report.score_verdict(row)
        shown = chip("none" if verdict == "not_judged" else verdict, cells[1])
        rows.append(["<bdi>{0}</bdi>".format(escape(cells[0])), shown] + [escape(cell) for cell in cells[2:]])
    text = [table(list(_report.SCORE_HEAD), rows, numeric=(2, 3, 4, 5, 6))]
    for row in report["accuracy"]:
        text.append("<p><bdi>{0}</bdi>: {1}</p>".format(escape(row["name"]), escape(_report.score_line(row))))
        told = _report.wrong_lines(row)
        if told:
            text.append("<details><summary>what was not right</summary><div>{0}</div></details>".format(_list(told)))
    return "".join(text)


# ---- speed


def _entry(level: dict, benchmark: dict) -> tuple:
    """``(name, kind)`` of the endpoint of a level or run, its tool included."""
    tool = level.get("tool") or "ironserve"
    name = str(level.get("endpoint", ""))
    return name + ("" if tool == "ironserve" else " ({0})".format(tool)), _report.kind_of(name, benchmark), tool


def _x(level: dict) -> object:
    return level.get("request_rate") if level.get("request_rate") is not None else level.get("concurrency")


def by_level(benchmark: dict, key: str, fallback: str = "") -> list:
    """Lines of a figure over the levels of the sweep: the mean of the repeats with their range; many replicas are one line."""
    found, kinds = {}, {}
    for level in benchmark["summary"].get("levels") or []:
        figures = level.get("figures") or {}
        values = figures.get(key) or {}
        if not is_number(values.get("mean")) and fallback:
            values = figures.get(fallback) or {}
        if not is_number(values.get("mean")) or not is_number(_x(level)):
            continue
        name, kind, tool = _entry(level, benchmark)
        kinds[name] = (kind, tool)
        found.setdefault(name, []).append((_x(level), values["mean"], values.get("min"), values.get("max")))
    lines = []
    single = [name for name in found if kinds[name][0] == "replica"]
    apart = single if len(single) <= ALONE else []
    for name in [name for name in found if kinds[name][0] != "replica"] + apart:
        rows = sorted(found[name])
        band = [(x, low, high) for x, _mean, low, high in rows if is_number(low) and is_number(high)]
        lines.append(Series(name, [(x, mean) for x, mean, _low, _high in rows], band))
    if single and not apart:
        pool = {}
        for name in single:
            for x, mean, _low, _high in found[name]:
                pool.setdefault(x, []).append(mean)
        rows = sorted(pool.items())
        label = "one replica, mean of {0}".format(len(single))
        points = [(x, math.fsum(means) / len(means)) for x, means in rows]
        lines.append(Series(label, points, [(x, min(means), max(means)) for x, means in rows]))
    return _styled(lines)


def _styled(lines: list) -> list:
    for index, line in enumerate(lines):
        line.style = index % _plots.STYLES
    return lines[: _plots.STYLES]


def start_of(benchmark: dict) -> float:
    """Seconds since the epoch at which the first run began."""
    starts = [run["started_unix"] for run in benchmark["runs"] if is_number(run.get("started_unix"))]
    return min(starts) if starts else 0.0


def _together(rows: dict, kinds: dict) -> list:
    """Lines over time: each of a few endpoints alone, many replicas as their mean and range in each second."""
    single = [name for name in rows if kinds[name] == "replica"]
    apart = single if len(single) <= ALONE else []
    lines = []
    for name in [name for name in rows if kinds[name] != "replica"] + apart:
        points, band = _plots.thin(rows[name])
        if any(point[1] is not None for point in points):
            lines.append(Series(name, points, band, markers=False))
    if single and not apart:
        seconds = {}
        breaks = set()
        for name in single:
            for at, value in rows[name]:
                if value is None:
                    breaks.add(int(at))
                else:
                    seconds.setdefault(int(at), []).append(value)
        points, band, last = [], [], None
        for second in sorted(seconds):
            if last is not None and any(moment in breaks and moment not in seconds for moment in range(last, second + 1)):
                points.append((second - 0.5, None))
            values = seconds[second]
            points.append((second + 0.5, math.fsum(values) / len(values)))
            band.append((second + 0.5, min(values), max(values)))
            last = second
        if len(points) > _plots.POINTS:
            points, band = _plots.thin(points)
        lines.append(Series("replicas, mean of {0}".format(len(single)), points, band, markers=False))
    return _styled(lines)


def over_time(benchmark: dict, key: str) -> list:
    """Lines of one column of the runs' timelines, in seconds from the first run on; runs are not joined."""
    begin = start_of(benchmark)
    rows, kinds = {}, {}
    for run in sorted(benchmark["runs"], key=lambda item: item.get("started_unix") or 0.0):
        if not run.get("publishable") or not is_number(run.get("started_unix")):
            continue
        name, kind, _tool = _entry(run, benchmark)
        points = [
            (run["started_unix"] - begin + row["at_s"] + 0.5, row[key] if is_number(row.get(key)) else None)
            for row in run.get("timeline") or []
            if is_number(row.get("at_s"))
        ]
        if points:
            kinds[name] = kind
            rows.setdefault(name, []).extend(points + [(points[-1][0] + 0.5, None)])
    return _together(rows, kinds)


def cards_over_time(benchmark: dict, column: int) -> list:
    """Lines of the cards' samples: column 1 is use in percent, 2 memory in GiB, 3 power in watts."""
    begin = start_of(benchmark)
    rows, kinds = {}, {}
    for entry in benchmark["cards"]:
        index = entry.get("run")
        if not isinstance(index, int) or not 0 <= index < len(benchmark["runs"]):
            continue
        started = benchmark["runs"][index].get("started_unix")
        if not is_number(started):
            continue
        points = [
            (started - begin + sample[0], sample[column] / (1024.0 if column == 2 else 1.0) if is_number(sample[column]) else None)
            for sample in entry.get("samples") or []
            if len(sample) > column and is_number(sample[0])
        ]
        if points:
            name = str(entry.get("endpoint", ""))
            kinds[name] = "replica"
            rows.setdefault(name, []).extend(points + [(points[-1][0] + 0.01, None)])
    for name in rows:
        rows[name].sort(key=lambda point: point[0])
    return _together(rows, kinds)


def spans_of(benchmark: dict) -> list:
    """Stretches of time with the same level, as ``(from, to, label)``, one after the other."""
    begin = start_of(benchmark)
    spans = []
    for run in sorted(benchmark["runs"], key=lambda item: item.get("started_unix") or 0.0):
        start, length, level = run.get("started_unix"), run.get("duration_s"), _x(run)
        if not is_number(start) or not is_number(length) or not is_number(level):
            continue
        start -= begin
        label = number(level, trim=True)
        if spans and spans[-1][2] == label:
            spans[-1] = (spans[-1][0], max(spans[-1][1], start + length), label)
        elif not spans or start + length > spans[-1][1]:
            spans.append((max(start, spans[-1][1]) if spans else start, start + length, label))
    return spans


def _steep(series: list) -> bool:
    """Whether values lie so far apart that small ones would be one flat line: a queue makes the first token ten times later."""
    values = [point[1] for line in series for point in line.points if point[1] is not None]
    return bool(values) and min(values) > 0 and max(values) / min(values) >= 8


def _speed_plots(benchmark: dict) -> str:
    rate = any(level.get("request_rate") is not None for level in benchmark["summary"].get("levels") or [])
    x_label = "requests/s that arrive" if rate else "requests at a time"
    levels = sorted({_x(level) for level in benchmark["summary"].get("levels") or [] if is_number(_x(level))})
    log = len(levels) > 2 and levels[0] > 0 and levels[-1] / levels[0] >= 8
    drawn = []
    for key, fallback, title, unit in (
        ("median_ttft_ms", "", "Time to the first token, median", "ms"),
        ("p99_ttft_ms", "", "Time to the first token, 99th percentile", "ms"),
        ("median_itl_ms", "median_gap_ms", "Time between tokens (ITL), median", "ms"),
        ("p99_itl_ms", "p99_gap_ms", "Time between tokens (ITL), 99th percentile", "ms"),
        ("output_throughput", "", "Generated tokens, all streams together", "tokens/s"),
        ("median_decode_tokens_per_s", "", "Decode speed of one stream, median", "tokens/s"),
        ("request_goodput", "", "Goodput: requests within every limit", "requests/s"),
    ):
        name = "level-{0}".format(key.replace("_", "-"))
        series = by_level(benchmark, key, fallback)
        plot = _plots.line_chart(name, title, x_label, unit, series, levels, log, y_log=unit == "ms" and _steep(series))
        drawn.append(figure(plot, title))
    first = _plots_of(drawn)
    spans = spans_of(benchmark)
    timed = []
    for key, title, unit in (
        ("output_tokens_per_s", "Generated tokens over time", "tokens/s"),
        ("ttft_ms", "Time to the first token over time", "ms"),
        ("gap_ms", "Time between chunks over time", "ms"),
        ("running", "Requests at work over time", "requests"),
    ):
        name = "time-{0}".format(key.replace("_", "-"))
        series = over_time(benchmark, key)
        plot = _plots.line_chart(
            name, title, "seconds since the first run", unit, series, spans=spans, x_unit="s", y_log=unit == "ms" and _steep(series)
        )
        timed.append(figure(plot, title))
    for column, title, unit, top in (
        (1, "Card use over time", "%", 100.0),
        (2, "Card memory over time", "GiB", None),
        (3, "Power of the cards over time", "W", None),
    ):
        series = cards_over_time(benchmark, column)
        if top:
            top = max([top] + [_plots.nice_top(point[1]) for line in series for point in line.points if point[1] is not None])
        plot = _plots.line_chart(
            "cards-{0}".format(column), title, "seconds since the first run", unit, series, spans=spans, y_top=top, x_unit="s"
        )
        timed.append(figure(plot, title))
    text = ""
    if first:
        text += '<h3>By load</h3><p class="muted">Lines are means of the repeats, bars and bands their range.</p>' + first
    second = _plots_of(timed)
    if second:
        what = "requests/s" if rate else "requests at a time"
        text += '<h3>Over time</h3><p class="muted">The figures at the top of each plot are {0}.</p>{1}'.format(what, second)
    return text


#: Limits of a good request, in words.
_LIMITS = (("ttft_ms", "first token"), ("tpot_ms", "per token"), ("e2el_ms", "whole answer"))


def _protocol(protocol: dict) -> list:
    """What was asked and how, as ``(label, text)``."""
    prompts = protocol.get("prompts") or {}
    length = " of {0}".format(number(prompts["input_tokens"], "tokens", 6)) if is_number(prompts.get("input_tokens")) else ""
    slo = protocol.get("slo") or {}
    limits = ", ".join("{0} {1}".format(words, number(slo[name], "ms")) for name, words in _LIMITS if is_number(slo.get(name)))
    levels = ", ".join(number(value, trim=True) for value in protocol.get("levels") or [])
    rows = [
        ("prompts", "{0} {1}{2}".format(number(prompts.get("count"), digits=6), prompts.get("kind") or "", length)),
        (
            "answer",
            "{0}{1}".format(
                number(protocol.get("output_tokens"), "tokens", 6), ", never ended sooner" if protocol.get("ignore_eos") else ""
            ),
        ),
        (
            "load",
            "{0}: {1}".format(
                {"closed": "so many at a time", "open": "arrivals per second"}.get(protocol.get("load"), protocol.get("load")), levels
            ),
        ),
        (
            "per level",
            "{0} repeats of {1} requests, after {2} that count nowhere".format(
                number(protocol.get("repeats")), number(protocol.get("requests"), digits=6), number(protocol.get("warmup"), digits=6)
            ),
        ),
        (
            "cache",
            {"cold": "cold: every prompt is new", "warm": "warm: every beginning was sent before"}.get(
                protocol.get("cache"), protocol.get("cache") or "–"
            ),
        ),
        ("limits of a good request", limits or "none"),
        ("protocol", protocol.get("id") or "–"),
    ]
    return rows


def _pairs(rows: list, mono: tuple = ()) -> str:
    return "<dl>{0}</dl>".format(
        "".join(
            "<dt>{0}</dt><dd{1}>{2}</dd>".format(escape(label), ' class="mono"' if label in mono else "", escape(value))
            for label, value in rows
        )
    )


def _speed(report: dict) -> str:
    if report["discarded"]:
        return '<div class="box unsure"><p class="t">{0}</p></div>'.format(escape(report["discarded"]))
    benchmark = report["benchmark"]
    if not benchmark:
        return ""
    numeric = tuple(range(2, len(_report._LEVEL_HEAD)))
    text = [_pairs(_protocol(benchmark["protocol"]), ("protocol",)), _speed_plots(benchmark)]
    rows = [[escape(cell) for cell in row] for row in _report.level_rows(benchmark)]
    if rows:
        text.append("<h3>Levels</h3>" + table([name for name, _unit in _report._LEVEL_HEAD], rows, "Means of the repeats", numeric))
    saturation = [
        "{0}: {1}{2}".format(
            row.get("endpoint", ""),
            "{0} tokens/s at {1}".format(number(row.get("output_throughput")), number(row.get("level"))),
            ", {0}".format(row["why"]) if row.get("why") else "",
        )
        for row in benchmark["summary"].get("saturation") or []
    ]
    if saturation:
        text.append("<h3>Where it is worth no more</h3>" + _list(saturation))
    gateway = [
        [
            escape("{0} instead of {1}".format(row.get("through", ""), row.get("direct", ""))),
            escape(_report.level_name(row)),
            number(row.get("ttft_added_ms"), "ms"),
            number(row.get("ttft_ratio"), "x"),
            number(row.get("gap_p99_added_ms"), "ms"),
        ]
        for row in benchmark["summary"].get("gateway") or []
    ]
    if gateway:
        head = ["way", "level", "first token, added", "first token, ratio", "between chunks p99, added"]
        text.append("<h3>What the gateway adds</h3>" + table(head, gateway, numeric=(2, 3, 4)))
    text.append(_client(benchmark))
    return "".join(text)


def _client(benchmark: dict) -> str:
    """What the measuring client says about itself and what runs had to note."""
    lag = [run["client"]["lag_p99_ms"] for run in benchmark["runs"] if is_number((run.get("client") or {}).get("lag_p99_ms"))]
    cpu = [run["client"]["cpu_pct"] for run in benchmark["runs"] if is_number((run.get("client") or {}).get("cpu_pct"))]
    failed = sum(run.get("failed") or 0 for run in benchmark["runs"] if not run.get("members"))
    done = sum(run.get("completed") or 0 for run in benchmark["runs"] if not run.get("members"))
    rows = [("requests", "{0} completed, {1} failed".format(number(done, digits=9), number(failed, digits=9)))]
    if lag:
        rows.append(("client's own delay, p99", "{0} at most".format(number(max(lag), "ms"))))
    if cpu:
        rows.append(("client's CPU", "{0} of a core at most".format(number(max(cpu), "%"))))
    notes, errors = {}, {}
    for run in benchmark["runs"]:
        for note in run.get("notes") or []:
            notes[str(note)] = notes.get(str(note), 0) + 1
        for error in run.get("errors") or []:
            if isinstance(error, dict):
                errors[str(error.get("text") or error.get("error") or "")] = errors.get(
                    str(error.get("text") or error.get("error") or ""), 0
                ) + (error.get("count") or 1)
    text = "<h3>How far the figures can be trusted</h3>" + _pairs(rows)
    text += _list(["{0} ({1} runs)".format(note, count) for note, count in notes.items()])
    if errors:
        text += "<h3>Failed requests</h3>" + _list(["{0} x {1}".format(count, error) for error, count in errors.items()])
    return text


def _baseline_part(report: dict) -> str:
    comparison = report["baseline"]
    if not comparison:
        return ""
    limits = comparison.get("limits") or {}
    tolerance, material = limits.get("tolerance_pct", 3.0), limits.get("material_pct", 10.0)
    text = [
        '<p class="t">{0} {1}</p>'.format(chip(comparison["status"], _WORDS.get(comparison["status"], "")), escape(comparison["detail"]))
    ]
    if comparison["differs"]:
        rows = [[escape(item["key"]), escape(item["here"], 600), escape(item["there"], 600)] for item in comparison["differs"]]
        text.append(table(["part that differs", "here", "in the baseline"], rows))
    if comparison["figures"]:
        drawn = [(item["name"], item["change_pct"], item["low_pct"], item["high_pct"], item["verdict"]) for item in comparison["figures"]]
        note = "shaded: within {0} %, which nobody minds; broken line: {1} %, which nobody must miss".format(
            number(tolerance, trim=True), number(material, trim=True)
        )
        text.append(
            figure(
                _plots.range_chart("baseline-ranges", "Change against the baseline", drawn, tolerance, material),
                "Change against the baseline",
                note,
                True,
            )
        )
        rows = []
        for row, item in zip(_report.baseline_rows(comparison), comparison["figures"]):
            rows.append([escape(cell) for cell in row[:-1]] + [chip(item["verdict"], row[-1])])
        figures = table(["figure", "recorded", "now", "change for the worse", "verdict"], rows, numeric=(1, 2, 3))
        shut = comparison["status"] in (_baseline.SAME, _baseline.BETTER)
        text.append(
            "<details{0}><summary>{1} figures</summary><div>{2}</div></details>".format("" if shut else " open", len(rows), figures)
        )
        text.append(
            '<p class="muted">A change counts when it is surely more than {0} %, by the spread of the repeated runs on both sides. It has held '
            "when it is surely less than {1} %. Where the runs differ too much for either, nothing is claimed.</p>".format(
                number(tolerance, trim=True), number(material, trim=True)
            )
        )
    rows = [
        ("recorded", _report.moment(comparison.get("recorded") or "–")),
        ("sessions", number(comparison.get("sessions"))),
        ("file", comparison.get("path") or "–"),
    ]
    text.append(_pairs(rows, ("file",)))
    text.append(_list(comparison.get("problems") or []))
    return "".join(text)


_WORDS = {
    _baseline.SAME: "as before",
    _baseline.BETTER: "better",
    _baseline.WORSE: "worse",
    _baseline.UNCLEAR: "not clear",
    _baseline.REFUSED: "refused",
    _baseline.NONE: "none yet",
}


# ---- evidence


def groups_of(results: list) -> list:
    """Endpoints whose checks came out alike, as lists of results; the first ones first."""
    found = {}
    for result in results:
        key = tuple((_report.check_name(check), check.get("status")) for check in result.get("checks") or []) + (result.get("verdict"),)
        found.setdefault(key, []).append(result)
    return list(found.values())


def _name_of(check: dict) -> str:
    """The name of a check, which may be broken after an underscore."""
    return escape(_report.check_name(check)).replace("_", "_<wbr>")


def _matrix(report: dict) -> str:
    groups = groups_of(report["results"])
    names = []
    for group in groups:
        for check in group[0].get("checks") or []:
            name = _name_of(check)
            if name not in names:
                names.append(name)
    if not names or len(groups) > 14:
        return ""
    rows = []
    for name in names:
        row = [name]
        for group in groups:
            found = [check.get("status") or "unknown" for check in group[0].get("checks") or [] if _name_of(check) == name]
            # A check that was made more than once shows its worst.
            worst = next((word for word in ("fail", "unknown", "warn", "pass", "not_applicable") if word in found), "")
            row.append(chip(worst, {"not_applicable": "n/a"}.get(worst, worst)) if worst else '<span class="muted">not made</span>')
        rows.append(row)
    head = ["check"] + [fold([str(item.get("name", "")) for item in group]) for group in groups]
    return table(head, rows, "Endpoints with the same outcome share a column")


def _evidence(report: dict) -> str:
    odd, alike = [], []
    for result in report["results"]:
        checks = result.get("checks") or []
        rows = []
        for check in checks:
            found = escape(check.get("detail", ""))
            rows.append(
                [
                    _name_of(check)
                    + (' <span class="muted">{0}</span>'.format(escape(check["language"])) if check.get("language") else ""),
                    chip(str(check.get("status") or "unknown")),
                    '<span class="any">{0}</span>'.format(found),
                    number(check.get("figure"), escape(check.get("unit") or "")),
                ]
            )
        verdict = str(result.get("verdict") or "unknown")
        (alike if verdict == "ok" else odd).append(
            '<details{0}><summary>{1} <b><bdi>{2}</bdi></b> <span class="muted">{3} checks</span></summary><div>{4}{5}</div></details>'.format(
                "" if verdict == "ok" else " open",
                chip(verdict),
                escape(result.get("name", "")),
                len(checks),
                table(["check", "status", "finding", "figure"], rows, numeric=(3,)) if rows else _list(result.get("evidence") or []),
                '<p class="next"><b>Next:</b> {0}</p>'.format(escape(result["next_step"])) if result.get("next_step") else "",
            )
        )
    inside = "".join(odd + alike)
    if len(alike) > FOLDED:
        inside = "".join(odd) + "<details><summary>{0} endpoints that proved themselves</summary><div>{1}</div></details>".format(
            len(alike), "".join(alike)
        )
    return _matrix(report) + "<h3>What each check found</h3>" + inside


# ---- what ran where


def _where(report: dict) -> str:
    text = []
    rows = []
    for row in report["fleet"]:
        kinds = {}
        for card in row["cards"]:
            label = "{0} {1}".format(card.get("name") or "unknown card", number(card.get("memory_total_mib"), "MiB", 7))
            kinds[label] = kinds.get(label, 0) + 1
        rows.append(
            [
                "<bdi>{0}</bdi>".format(escape(row["host"])),
                escape(row["platform"] or "–"),
                escape(", ".join("{0} x {1}".format(count, label) for label, count in kinds.items()) or "–"),
                escape(row["driver"] or "unknown"),
                escape(row["runtime"] or "unknown"),
                escape(", ".join(item["name"] for item in row["replicas"]) or "–"),
                escape("; ".join("{0}: {1}".format(item.get("card", ""), item.get("reason", "")) for item in row["left_out"]) or "none"),
            ]
        )
    if rows:
        text.append(table(["host", "platform", "cards", "driver", "runtime", "replicas", "cards left out"], rows))
    groups = {}
    for row in report["fleet"]:
        for replica in row["replicas"]:
            key = (
                replica["image"],
                replica["image_id"],
                replica["weights_id"],
                tuple(replica["command"]),
                tuple(sorted(replica["environment"].items())),
            )
            groups.setdefault(key, (row, []))[1].append(replica)
    for (image, image_id, weights_id, command, environment), (row, replicas) in groups.items():
        first = replicas[0]
        told = [
            ("model", "{0}, weights {1}, engine {2}".format(row["model"], row["weights"], row["engine"])),
            ("enhancements", ", ".join(row["enhancements"]) or "none"),
            ("image", image or "unknown"),
            ("image id", image_id or "unknown"),
            ("weights manifest", weights_id or "unknown"),
            (
                "sizes",
                "context {0}, {1} sequences, {2} per replica".format(
                    number(first["max_model_len"], "tokens", 7),
                    number(first["max_num_seqs"], digits=6),
                    "1 card" if first["tensor_parallel_size"] == 1 else number(first["tensor_parallel_size"], "cards"),
                ),
            ),
        ]
        text.append("<h3><bdi>{0}</bdi></h3>".format(escape(fold([item["name"] for item in replicas]), 600)))
        text.append(_pairs(told, ("image", "image id", "weights manifest")))
        if command:
            text.append("<pre>{0}</pre>".format(escape(break_arguments(list(command)))))
        if environment:
            inside = escape("\n".join("{0}={1}".format(name, value) for name, value in environment))
            text.append(
                "<details><summary>environment, {0} variables</summary><div><pre>{1}</pre></div></details>".format(len(environment), inside)
            )
    rows = [[escape(key), '<span class="mono any">{0}</span>'.format(escape(value, 1500))] for key, value in report["fingerprint"].items()]
    text.append("<h3>Fingerprint <code>{0}</code></h3>".format(escape(report["fingerprint_id"])))
    text.append("<p>Figures belong to this and to nothing else: where one part differs, a baseline is no evidence.</p>")
    text.append(table(["part", "value"], rows))
    return "".join(text)


def break_arguments(words: list) -> str:
    """A command with one option and its value on each line."""
    lines = []
    for word in words:
        if lines and (word.startswith("-") and not re.match(r"^-\d", word) or not lines[-1].startswith("-") or " " in lines[-1]):
            lines.append(word)
        elif lines:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return "\n".join(lines)


# ---- the page


def page(report: dict) -> str:
    """The report as one HTML file."""
    kind = {_report.OK: "ok", _report.FAILED: "bad"}.get(report["status"], "unsure")
    models = sorted({row["model"] for row in report["fleet"] if row["model"]})
    platforms = sorted({row["platform"] for row in report["fleet"] if row["platform"]})
    title = "Acceptance: {0}".format(report["verdict"])
    about = [", ".join(models), "on {0}".format(", ".join(platforms)) if platforms else ""]
    about += ["release {0}".format(report["release"]) if report["release"] else "", _report.moment(report["date"])]
    speed = _speed(report)
    baseline = _baseline_part(report)
    sections = [
        _section("troubles", "What needs a person", _troubles(report)) if report["status"] else None,
        _section("verdicts", "Verdicts", _verdicts(report), _proof_plots(report)),
        _section("accuracy", "Accuracy", _accuracy(report)) if report["accuracy"] else None,
        _section("speed", "Speed under load", speed) if speed else None,
        _section("baseline", "Against the baseline", baseline) if baseline else None,
        _section("evidence", "Evidence", _evidence(report)) if report["results"] else None,
        _section("where", "What ran where", _where(report)),
    ]
    sections = [item for item in sections if item]
    symbols = "".join('<symbol id="i-{0}" viewBox="0 0 16 16">{1}</symbol>'.format(name, shape) for name, shape in _ICONS.items())
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
            "base-uri 'none'; form-action 'none'\">\n",
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n',
            '<meta name="generator" content="ironserve.llm, report format {0}">\n'.format(_report.FORMAT),
            '<link rel="icon" href="data:,">\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n'.format(escape(title), _style()),
            '<svg width="0" height="0" style="position:absolute" aria-hidden="true">{0}</svg>\n'.format(symbols),
            '<header><div class="banner {0}"><svg class="i {0}" aria-hidden="true" viewBox="0 0 16 16"><use href="#i-{0}"/></svg>'.format(
                kind
            ),
            "<div><h1>{0}</h1><p>{1}</p></div></div>".format(escape(report["verdict"].capitalize()), escape(_report.headline(report))),
            '<p class="sub">{0}</p>{1}</header>\n'.format(escape(" · ".join(item for item in about if item)), tiles(report)),
            '<nav aria-label="Sections"><ul>{0}</ul></nav>\n<main>\n'.format(
                "".join('<li><a href="#{0}">{1}</a></li>'.format(name, escape(text)) for name, text, _content in sections)
            ),
            "".join(
                '<section id="{0}"><h2>{1}</h2>{2}</section>\n'.format(name, escape(text), content) for name, text, content in sections
            ),
            "</main>\n<footer>Made by ironserve.llm, report format {0}. What is not known is a dash, never a zero; what could not be told is not "
            "good. The same is in the files beside this one, as JSON, JUnit XML and Markdown.</footer>\n</body>\n</html>\n".format(
                _report.FORMAT
            ),
        ]
    )
