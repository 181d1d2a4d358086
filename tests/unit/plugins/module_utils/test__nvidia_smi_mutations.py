# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Damaged outputs of nvidia-smi give the same truth or a clean error, and never a shorter list.

A whole row that is taken out cleanly cannot be seen in most single outputs. Those cases are held against the whole probe, which knows a
second listing and the PCI bus.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.plugins.played.nvidia import ADDRESSES, Quick, capture, play, recorded, several, uuid

from ansible_collections.ironserve.llm.plugins.module_utils import _nvidia_smi, _probe_nvidia
from ansible_collections.ironserve.llm.plugins.module_utils._checks import all_good
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

JUNK = ["No devices were found", "Segmentation fault (core dumped)", "0", "|", "+---+", "hello, world", "GPU 9: ghost", "\tGPU0", " : "]
#: No byte of it is text in UTF-8, so it can be no other figure or name.
NOISE = [b"\x00", b"\xff\xfe", b"\x01\x9f\x92\x96", b"\x1b[31m\x00", bytes(range(128, 160)), b"\x7f\x00"]


def samples():
    """Name -> (parser as the probe calls it, text) of every capture that is data."""
    found = {}
    for machine in ("590.48.01__1x-h200", "590.48.01__1x-h200-mig", "590.48.01__1x-h100-mig", "595.80__1x-l40s", "610.57.04__1x-rtx2080s"):
        found["nvidia-smi-L__{0}.txt".format(machine)] = _nvidia_smi.parse_list
        found["nvidia-smi-version__{0}.txt".format(machine)] = _nvidia_smi.parse_versions
        for load in ("idle", "load"):
            found["nvidia-smi__{0}__{1}.txt".format(machine, load)] = _nvidia_smi.parse_table
            found["nvidia-smi-query-compute-apps__{0}__{1}.csv".format(machine, load)] = _nvidia_smi.parse_processes
            found["nvidia-smi-query-gpu__{0}__{1}__columns-cut.csv".format(machine, load)] = _nvidia_smi.parse_gpus
    del found["nvidia-smi-query-gpu__590.48.01__1x-h100-mig__load__columns-cut.csv"]
    found["nvidia-smi-query-gpu__590.48.01__1x-h200__idle__all-columns.csv"] = _nvidia_smi.parse_gpus
    found["nvidia-smi-query-gpu__580.95.05__8x-a800__mixed__header.csv"] = _nvidia_smi.parse_gpus
    found["nvidia-smi-q__590.48.01__1x-h200__idle.txt"] = _nvidia_smi.parse_query_log
    found["nvidia-smi-topo-m__590.48.01__1x-h200.txt"] = _nvidia_smi.parse_topology
    whole = {}
    for name, parse in found.items():
        text = capture(name)
        if name.endswith(".csv"):
            needed = tuple(cell.split(" [")[0] for cell in text.split("\n", 1)[0].split(", "))
            parse = functools.partial(parse, needed=needed)
        whole[name] = (parse, text)
    return whole


SAMPLES = samples()
TRUTH = {name: parse(text) for name, (parse, text) in SAMPLES.items()}


def atoms(found):
    """A result as what is there once, and its rows: cards, processes, MIG devices."""
    if isinstance(found, _nvidia_smi.Table):
        return dataclasses.replace(found, processes=[]), found.processes
    if isinstance(found, list):
        bare = [dataclasses.replace(item, mig=[]) if hasattr(item, "mig") else item for item in found]
        return None, bare + [device for item in found for device in getattr(item, "mig", [])]
    return found, []


def rows_less(found, truth):
    """Whether a result is the truth without some of its rows, and else the same."""
    (rest, rows), (whole, all_rows) = atoms(found), atoms(truth)
    return rest == whole and len(rows) < len(all_rows) and [row for row in all_rows if row in rows] == rows


def verdict(name, text):
    """``same``, ``error`` or ``wrong`` for a damaged text."""
    try:
        found = SAMPLES[name][0](text)
    except LLMError:
        return "error", None
    return ("same" if found == TRUTH[name] else "wrong"), found


def cuts(name, text):
    """Every line cut at several places, its newline kept."""
    lines = text.splitlines(True)
    steps = 2 if len(lines) > 100 else 7
    for number, line in enumerate(lines):
        body = line.rstrip("\n")
        for step in range(steps):
            place = len(body) * step // steps
            if 0 < place < len(body):
                yield "".join([*lines[:number], body[:place] + "\n", *lines[number + 1 :]])


def ends(name, text):
    """The whole output cut, as when the tool is killed."""
    places = range(0, len(text), max(1, len(text) // 40))
    for place in places:
        yield text[:place]


def junk(name, text):
    """A line that does not belong, at the start, at the end and in between."""
    lines = text.splitlines(True)
    for word in JUNK:
        for place in sorted({0, 1, len(lines) // 2, len(lines)}):
            yield "".join([*lines[:place], word + "\n", *lines[place:]])


def removals(name, text):
    """Each line taken out."""
    lines = text.splitlines(True)
    for number in range(len(lines)):
        yield "".join([*lines[:number], *lines[number + 1 :]])


def repeats(name, text):
    """Each line twice."""
    lines = text.splitlines(True)
    for number, line in enumerate(lines):
        yield "".join([*lines[: number + 1], line, *lines[number + 1 :]])


def widenings(name, text):
    """A column made wider with blanks, everywhere and in one line, and a cell that nobody announced."""
    for old, new in ((", ", ",    "), (" |", "    |"), ("| ", "|   "), (" : ", "    : "), ("\t", "\t\t"), (" (", "   (")):
        if old in text:
            yield text.replace(old, new)
            parts = text.split(old)
            for place in range(1, len(parts), max(1, len(parts) // 6)):
                yield old.join(parts[:place]) + new + old.join(parts[place:])
    for number, line in enumerate(text.splitlines()):
        for separator in (", ", "\t", "|"):
            cells = line.split(separator)
            if len(cells) > 1:
                middle = len(cells) // 2
                wide = separator.join([*cells[:middle], "7", *cells[middle:]])
                lines = text.splitlines()
                lines[number] = wide
                yield "\n".join(lines) + "\n"


def noises(name, text):
    """Bytes that are no text, put into the middle or written over it."""
    chance = random.Random(name)
    raw = text.encode()
    for noise in NOISE:
        for _round in range(4):
            place = chance.randrange(len(raw) + 1)
            yield (raw[:place] + noise + raw[place:]).decode("utf-8", "replace")
            yield (raw[:place] + noise + raw[place + len(noise) :]).decode("utf-8", "replace")
    yield bytes(chance.randrange(256) for _byte in range(2000)).decode("utf-8", "replace")
    yield ""
    yield "\n \n"
    yield "\x00" * 100 + "\n"


KINDS = [cuts, ends, junk, removals, repeats, widenings, noises]
#: Damage that can leave whole lines only: then a row may be gone unseen.
CLEAN = (removals, ends)
seen = {kind.__name__: {"same": 0, "error": 0, "undecidable": 0} for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
@pytest.mark.parametrize("name", SAMPLES)
def test_damage_is_the_truth_or_an_error(name, kind):
    for text in kind(name, SAMPLES[name][1]):
        result, found = verdict(name, text)
        if result == "wrong" and kind in CLEAN and text.endswith("\n") and rows_less(found, TRUTH[name]):
            result = "undecidable"
        assert result != "wrong", "{0}:\n{1}\ngave {2}".format(kind.__name__, text, found)
        seen[kind.__name__][result] += 1


def test_enough_cases_were_tried_and_every_outcome_happens():
    total = sum(sum(counts.values()) for counts in seen.values())
    if not total:
        pytest.skip("the cases themselves were not run")
    assert total >= 4000
    for kind, counts in seen.items():
        assert counts["error"] > 100, kind
        assert (counts["undecidable"] > 0) == (kind in [each.__name__ for each in CLEAN]), kind
    assert seen["removals"]["undecidable"] < 60


# The same against the whole probe


def told(found, truth):
    """What a found host says that the true one does not: checks, and cards that are not ok."""
    known = [(item.name, item.status, item.detail) for item in truth.checks]
    new = [item for item in found.checks if (item.name, item.status, item.detail) not in known and item.status != "pass"]
    return new, [card for card in found.cards if card.health != "ok"]


def judge(found, truth):
    """Hold a host that was found through damaged outputs against the true one."""
    new, ill = told(found, truth)
    if found.cards == truth.cards:
        return "told" if new else "same"
    ids = [card.id for card in found.cards]
    if [card.id for card in truth.cards if card.id not in ids] or len(ids) != len(truth.cards):
        assert not all_good(new) and new, "fewer cards, and no check fails: {0}".format(ids)
    assert new or ill, "other figures, and nobody says so: {0}".format(found.cards)
    return "told"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Played hosts and what is true of them."""
    found = {}
    for name, host in (
        ("eight H200", several()),
        ("H200 with MIG under load", recorded("590.48.01__1x-h200-mig", "load")),
        ("H100 with MIG", recorded("590.48.01__1x-h100-mig")),
    ):
        vendor = Quick(play(tmp_path_factory.mktemp("host"), host), host)
        found[name] = (vendor, copy.deepcopy(host), _probe_nvidia.probe(vendor))
    return found


def damaged(hosts, name, change):
    """Probe a host after ``change`` of its answers."""
    vendor, host, truth = hosts[name]
    vendor.host = copy.deepcopy(host)
    change(vendor.host)
    try:
        return judge(_probe_nvidia.probe(vendor), truth)
    except LLMError:
        return "error"


def test_quick_answers_are_those_of_the_script(hosts, tmp_path):
    for name, (vendor, host, truth) in hosts.items():
        vendor.host = host
        assert _probe_nvidia.probe(play(tmp_path / name, host)) == dataclasses.replace(truth, tool=truth.tool)


@pytest.mark.parametrize(
    ("name", "answer"),
    [("eight H200", answer) for answer in ("list", "query", "apps", "version", "topology")]
    + [
        (name, answer) for name in ("H200 with MIG under load", "H100 with MIG") for answer in ("list", "query", "apps", "version", "table")
    ],
)
def test_any_line_that_is_gone_is_told(hosts, name, answer):
    lines = hosts[name][1].answers[answer].out.splitlines(True)
    results = []
    for number in range(len(lines)):

        def without(host, number=number):
            host.answers[answer].out = "".join([*lines[:number], *lines[number + 1 :]])

        results.append(damaged(hosts, name, without))
    assert set(results) & {"told", "error"}


@pytest.mark.parametrize("answers", [("query",), ("list",), ("query", "apps"), ("query", "list"), ("query", "list", "apps")])
@pytest.mark.parametrize("index", range(8))
def test_card_that_is_gone_from_several_answers_is_told(hosts, answers, index):
    def without(host):
        for answer in answers:
            kept = [line for line in host.answers[answer].out.splitlines() if uuid(index) not in line]
            host.answers[answer].out = "\n".join(kept) + "\n"

    # A process on a card that nobody lists is an error.
    assert damaged(hosts, "eight H200", without) == ("told" if answers == ("list",) or "apps" in answers else "error")


def test_card_that_is_gone_from_everywhere_but_the_bus_is_told_by_both_addresses(hosts):
    vendor, host, _truth = hosts["eight H200"]
    vendor.host = copy.deepcopy(host)
    for answer in ("query", "list", "apps"):
        kept = [line.replace("8, ", "7, ", 1) if line.startswith("8, ") else line for line in host.answers[answer].out.splitlines()]
        vendor.host.answers[answer].out = "\n".join(line for line in kept if uuid(5) not in line) + "\n"
    (failed,) = [item for item in _probe_nvidia.probe(vendor).checks if not item.good]
    assert failed.name == "card_list"
    assert all(address in failed.detail.split("PCI bus: ")[1] for address in ADDRESSES)
    assert ADDRESSES[5] not in failed.detail.split("nvidia-smi: ")[1].split(";")[0]


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_of_any_answer(hosts, data):
    name = data.draw(st.sampled_from(sorted(hosts)))
    answer = data.draw(st.sampled_from(sorted(hosts[name][1].answers)))
    text = hosts[name][1].answers[answer].out
    lines = text.splitlines(True)
    number = data.draw(st.integers(0, len(lines) - 1))
    kind = data.draw(st.sampled_from(["cut", "end", "gone", "several gone", "twice", "junk", "noise", "nothing"]))
    if kind == "cut":
        body = lines[number].rstrip("\n")
        lines[number] = body[: data.draw(st.integers(0, len(body)))] + "\n"
    elif kind == "gone":
        del lines[number]
    elif kind == "several gone":
        del lines[number : data.draw(st.integers(number, len(lines)))]
    elif kind == "twice":
        lines.insert(number, lines[number])
    elif kind == "junk":
        lines.insert(number, data.draw(st.sampled_from(JUNK)) + "\n")
    new = "".join(lines)
    if kind == "end":
        new = text[: data.draw(st.integers(0, len(text)))]
    elif kind == "noise":
        place = data.draw(st.integers(0, len(text)))
        new = text[:place] + data.draw(st.sampled_from(NOISE)).decode("utf-8", "replace") + text[place:]
    elif kind == "nothing":
        new = data.draw(st.sampled_from(["", "\n", " "]))

    def change(host):
        host.answers[answer].out = new

    damaged(hosts, name, change)
