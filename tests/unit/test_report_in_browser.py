# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The acceptance report in a real browser: it opens, asks for nothing, draws its plots, fits every width, light, dark and paper.

Pictures of it are kept where IRONSERVE_PICTURES names a directory: a person has to look at them, too.
"""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path

import pytest
from samples import acceptance, browser

from ansible_collections.ironserve.llm.plugins.module_utils import _baseline, _report, _report_page

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(browser.find() is None, reason="no Chromium here: run tests/gate/browser.sh, or name one in IRONSERVE_CHROMIUM"),
]


def compared(bench: dict, fleet: list) -> dict:
    parts = _report.fingerprint(fleet, bench["protocol"])
    session = _baseline.session_of(_report.figures_of(acceptance.benchmark(seed=3)), acceptance.DATE)
    baseline = {"format": 1, "id": _baseline.identity(parts), "fingerprint": parts, "sessions": [session]}
    return _baseline.compare(baseline, parts, _report.figures_of(bench))


def accepted() -> dict:
    fleet, bench, scores = acceptance.fleet(), acceptance.benchmark(), [acceptance.score(19, 1)]
    return _report.build(
        acceptance.results(), fleet, acceptance.DATE, bench, compared(bench, fleet), "a1b2c3d4e5f60718", "gw01", accuracy=scores
    )


def slower() -> dict:
    fleet, bench = acceptance.fleet(), acceptance.benchmark(slow=1.12, seed=9)
    return _report.build(acceptance.results(), fleet, acceptance.DATE, bench, compared(bench, fleet), "a1b2c3d4e5f60718", "gw01")


def refused() -> dict:
    rows = acceptance.results()[:-1]
    for index, text in enumerate(acceptance.HOSTILE):
        rows[index + 1] = acceptance.fail(rows[index + 1], "garbage", ["exact capital_japan: " + text], text, exact_capital_japan=text)
    scores = [acceptance.score(10, 8, unanswered=2, text=acceptance.HOSTILE[0])]
    return _report.build(rows, acceptance.fleet(), acceptance.DATE, acceptance.benchmark(), None, "", "gw01", accuracy=scores)


def large() -> dict:
    bench = acceptance.benchmark(16, 8, 3)
    return _report.build(acceptance.results(16, 8), acceptance.fleet(16, 8), acceptance.DATE, bench, None, "a1b2", "gw01")


def plain() -> dict:
    return _report.build(acceptance.results(1, 4), acceptance.fleet(1, 4), acceptance.DATE, release="a1b2")


REPORTS = {"accepted": accepted, "slower": slower, "refused": refused, "large": large, "plain": plain}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, build in REPORTS.items():
        made[name] = folder / (name + ".html")
        made[name].write_text(_report_page.page(build()), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def tab():
    with browser.Browser() as opened:
        yield opened


def show(tab, path: Path, **look) -> None:
    for kept in (tab.requests, tab.messages, tab.dialogs):
        kept.clear()
    tab.look(**look)
    tab.open(path.as_uri())


def picture(tab, name: str, path: Path) -> None:
    """Keep what is seen for whoever wants to look at it."""
    folder = Path(os.environ.get("IRONSERVE_PICTURES") or path)
    folder.mkdir(parents=True, exist_ok=True)
    tab.picture(folder / (name + ".png"))
    assert (folder / (name + ".png")).stat().st_size > 20_000


#: Of every plot: its size, the size of the largest thing drawn in it that shows a value, texts out of it, texts upon each other.
PLOTS = """
[...document.querySelectorAll('svg.plot')].map(svg => {
  const own = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll('text')].map(item => [item.textContent, item.getBoundingClientRect()]);
  const marks = [...svg.querySelectorAll('.m > :not(title), .l, .bar')].map(item => item.getBoundingClientRect());
  const out = boxes.filter(([, box]) => box.left < own.left - 2 || box.right > own.right + 2 || box.top < own.top - 2 || box.bottom > own.bottom + 2);
  const pairs = [];
  boxes.forEach(([one, a], index) => boxes.slice(index + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left), high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    // Lines of text have air around them: what touches by less than a third of a line does not hide anything.
    if (wide > 1 && high > Math.min(a.height, b.height) / 3) pairs.push(one + ' | ' + other);
  }));
  return {
    name: svg.getAttribute('aria-labelledby').split(' ')[0].slice(0, -2),
    size: [own.width, own.height],
    marks: marks.filter(box => box.width + box.height > 2).length,
    inside: marks.every(box => box.left >= own.left - 8 && box.right <= own.right + 8 && box.top >= own.top - 8 && box.bottom <= own.bottom + 8),
    paint: [...new Set([...svg.querySelectorAll('.l, .m > :not(title)')].map(item => getComputedStyle(item).stroke))],
    out: out.map(([text]) => text),
    pairs,
  };
})
"""


#: Words of names at the head of a row that are broken in the middle; what hyphens, spaces and underscores part may stand on two lines.
BROKEN = r"""
[...document.querySelectorAll('tbody th')].filter(cell => cell.checkVisibility()).flatMap(cell => {
  const pieces = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
  for (let node; (node = pieces.nextNode()); ) {
    for (const word of node.data.matchAll(/[^\s_-]+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (range.getClientRects().length > 1) found.push(word[0]);
    }
  }
  return found;
})
"""
#: The height of the tallest line of text in a plot, in pixels.
TALLEST = "Math.max(...[...document.querySelectorAll('svg.plot text')].map(item => item.getBBox().height * item.getScreenCTM().a))"


@pytest.mark.parametrize("name", list(REPORTS))
def test_the_page_opens_and_asks_for_nothing(tab, pages, name, tmp_path):
    show(tab, pages[name])
    assert tab.requests == [pages[name].as_uri()], "the page asked for something"
    assert tab.messages == [] and tab.dialogs == []
    verdict = {"accepted": "accepted", "slower": "refused", "refused": "refused", "large": "accepted", "plain": "accepted"}[name]
    assert tab.ask("document.title") == "Acceptance: " + verdict
    assert tab.ask("document.querySelector('h1').textContent") == verdict.capitalize()
    assert tab.ask("document.scripts.length") == 0
    picture(tab, name, tmp_path)


@pytest.mark.parametrize(
    ("name", "width"),
    [("accepted", 1280), ("accepted", 700), ("accepted", 390), ("slower", 1280), ("large", 1280), ("refused", 390), ("plain", 700)],
)
def test_every_plot_is_drawn_and_can_be_read_and_nothing_runs_out_of_the_page(tab, pages, name, width):
    show(tab, pages[name], width=width)
    assert tab.ask("document.documentElement.scrollWidth") <= width
    assert tab.ask(BROKEN) == []
    assert tab.ask(TALLEST) < 20
    plots = {plot["name"]: plot for plot in tab.ask(PLOTS)}
    wanted = ["proof-ttft-ms", "proof-decode-tokens-per-s", "proof-card-use-pct"]
    if name in ("accepted", "slower", "large"):
        wanted += ["level-median-ttft-ms", "level-median-itl-ms", "level-output-throughput", "time-ttft-ms", "time-gap-ms"]
        wanted += ["time-output-tokens-per-s", "cards-1", "cards-2", "cards-3"]
    if name in ("accepted", "slower"):
        wanted += ["baseline-ranges"]
    assert set(wanted) <= set(plots)
    for plot in plots.values():
        assert plot["size"][0] > 200 and plot["size"][1] > 40, plot
        assert plot["marks"] > 0 and plot["inside"], plot
        assert "none" not in plot["paint"] or len(plot["paint"]) > 1, plot
        assert plot["out"] == [], plot
        assert plot["pairs"] == [], plot


@pytest.mark.parametrize(("dark", "ground"), [(False, _report_page.LIGHT["bg"]), (True, _report_page.DARK["bg"])])
def test_light_and_dark_are_those_that_were_checked(tab, pages, dark, ground, tmp_path):
    show(tab, pages["accepted"], dark=dark)
    red, green, blue = (int(ground[index : index + 2], 16) for index in (1, 3, 5))
    assert tab.ask("getComputedStyle(document.body).backgroundColor") == "rgb({0}, {1}, {2})".format(red, green, blue)
    picture(tab, "dark" if dark else "light", tmp_path)


def test_paper_has_everything_also_what_is_folded_on_the_screen(tab, pages, tmp_path):
    shown = "[...document.querySelectorAll('#evidence details')].map(item => item.querySelector('table').checkVisibility())"
    show(tab, pages["accepted"], dark=True)
    assert tab.ask(shown) == [False] * 9
    show(tab, pages["accepted"], dark=True, media="print")
    # Somebody who reads dark screens prints on white paper all the same.
    assert tab.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.ask("[...document.querySelectorAll('#evidence details')].length") == 9
    assert tab.ask(shown) == [True] * 9
    picture(tab, "print", tmp_path)
    folder = Path(os.environ.get("IRONSERVE_PICTURES") or tmp_path)
    tab.paper(folder / "paper.pdf")
    data = (folder / "paper.pdf").read_bytes()
    pages_of = max(int(count) for count in re.findall(rb"/Count (\d+)", data))
    assert data.startswith(b"%PDF") and 4 <= pages_of <= 16


def test_this_test_would_see_a_request_a_script_and_an_empty_plot(tab, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><title>x</title><img src='http://127.0.0.1:9/pixel.png'><script>document.title = 'owned'</script>"
        "<svg class='plot' aria-labelledby='a-t a-d' width=300 height=80 viewBox='0 0 300 80'><text x=9 y=30>one</text><text x=9 y=30>two</text>"
        "<g class=m><circle r=0 /></g></svg>",
        encoding="utf-8",
    )
    show(tab, bad)
    assert tab.requests[1:] == ["http://127.0.0.1:9/pixel.png"] and tab.ask("document.title") == "owned"
    (plot,) = tab.ask(PLOTS)
    assert plot["marks"] == 0 and plot["pairs"] == ["one | two"]


def test_the_policy_of_the_page_stops_what_escaping_would_miss(tab, pages, tmp_path):
    alive = "<img src=http://127.0.0.1:9/pixel.png><script>document.title = 'owned'</script></main>"
    bad = tmp_path / "bad.html"
    bad.write_text(copy.copy(pages["plain"].read_text(encoding="utf-8")).replace("</main>", alive), encoding="utf-8")
    show(tab, bad)
    assert tab.ask("document.title") == "Acceptance: accepted"
    assert any("Content Security Policy" in text for text in tab.messages)
