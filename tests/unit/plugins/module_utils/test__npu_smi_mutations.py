# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Damaged output of npu-smi and hccn_tool: the same truth or a clean error, never a shorter list or another figure in silence.

Two judges. A text that is damaged must read as before or be an UnknownOutput. Where one text alone cannot tell (a card whose rows are
gone without a trace is a good table of fewer cards), the whole probe decides, on a host whose other answers are sound: it must find the
same cards, raise an LLMError, or say so in a check that is not passed. Cases are the same in every run.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.plugins.played import ascend
from unit.plugins.played.ascend import Chip, Host

from ansible_collections.ironserve.llm.plugins.module_utils import _hccn_tool, _npu_smi, _probe_ascend
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import OK, Accelerators
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

EXPECTED = ascend.expected()

# ---- damage


def _lines(text):
    return text.splitlines(keepends=True)


def cut_row(text, rng):
    """A line that ends in its middle; the others are whole."""
    lines = _lines(text)
    at = rng.choice([number for number, line in enumerate(lines) if len(line) > 2])
    lines[at] = lines[at][: rng.randrange(1, len(lines[at]) - 1)] + "\n"
    return "".join(lines)


def cut_text(text, rng):
    """An output that stops somewhere."""
    return text[: rng.randrange(len(text))]


def cut_lines(text, rng):
    """An output that stops after a whole line."""
    lines = _lines(text)
    return "".join(lines[: rng.randrange(len(lines))])


def lose_middle(text, rng):
    """A line that lost a piece of its middle."""
    lines = _lines(text)
    at = rng.choice([number for number, line in enumerate(lines) if len(line) > 6])
    start = rng.randrange(1, len(lines[at]) - 4)
    end = start + rng.randrange(1, min(30, len(lines[at]) - start - 1))
    lines[at] = lines[at][:start] + lines[at][end:]
    return "".join(lines)


def widen_row(text, rng):
    """A value that is padded more than usual."""
    places = [match.end() for match in re.finditer(r"(?<=\S)[ \t]+(?=\S)", text)]
    if not places:
        return " " + text
    at = rng.choice(places)
    return text[:at] + " " * rng.randrange(1, 12) + text[at:]


def widen_column(text, rng):
    """A column that is wider in every line: in a box each line gets more of what stands at the column's end."""
    more = rng.randrange(1, 12)
    lines = _lines(text)
    if not text.startswith("+"):
        at = rng.randrange(2)
        return "".join(
            re.sub(r"(?<=\S)[ \t]{2,}(?=\S)|(?<=\w) :", lambda match: match.group() + " " * more, line, count=1 + at) for line in lines
        )
    at = rng.choice([position for position, sign in enumerate(lines[3]) if sign == "|"][1:])
    return "".join(line[:at] + (line[at - 1] if line[at - 1] in "-=" else " ") * more + line[at:] for line in lines)


def drop_line(text, rng):
    lines = _lines(text)
    del lines[rng.randrange(len(lines))]
    return "".join(lines)


def double_line(text, rng):
    lines = _lines(text)
    at = rng.randrange(len(lines))
    return "".join(lines[: at + 1] + lines[at:])


def junk_first(text, rng):
    junk = [
        "junk\n",
        "| 9     910B3               | OK            |\n",
        "bash: warning: setlocale\n",
        "\x1b[32mok\x1b[0m\n",
        "Chip ID : 9\n",
    ]
    return rng.choice(junk) + text


def noise(text, rng):
    """Bytes that are no text, put in or over."""
    data = bytearray(text.encode("utf-8"))
    odd = bytes(rng.choice([*range(9), *range(14, 32), *range(127, 256)]) for _number in range(rng.randrange(1, 6)))
    at = rng.randrange(len(data))
    data[at : at + rng.choice((0, len(odd)))] = odd
    return data.decode("utf-8", "replace")


def other_line_ends(text, rng):
    return text.replace("\n", "\r\n")


def no_padding(text, rng):
    return "".join(line.rstrip() + " " * rng.randrange(3) + "\n" for line in text.splitlines())


def empty(text, rng):
    return rng.choice(["", "\n", "  \n\n", "\t"])


DAMAGES = [
    cut_row, cut_text, cut_lines, lose_middle, widen_row, widen_column, drop_line, double_line, junk_first, noise, other_line_ends,
    no_padding, empty,
]  # fmt: skip
SEEDS = 9


def drop_card(text, npu):
    """The table without a trace of one card: its rows, the border after each of them, and its processes."""
    kept, mine, process, first = [], False, False, True
    for line in _lines(text):
        cells = line.split("|")
        process = process or "Process id" in line
        if line.startswith("+"):
            kept += [] if mine and not process else [line]
            mine, first = False, True
        elif len(cells) < 4:
            kept += [] if line.startswith(f"| No running processes found in NPU {npu} ") else [line]
        else:
            mine = cells[1].split()[:1] == [str(npu)] if first or process else mine
            first = False
            kept += [] if mine else [line]
    return "".join(kept)


# ---- judges


def _plain(value):
    """A reading as plain data, without the remarks around a table."""
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key != "remarks"}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


@dataclasses.dataclass
class Tally:
    """What became of the cases of one text."""

    cases: int = 0
    errors: int = 0
    same: int = 0
    told_by_the_host: int = 0


@functools.lru_cache(maxsize=8)
def truth_of(parse, text):
    """What the sound text says."""
    return _plain(parse(text))


def judge(parse, text, damaged, tally):
    """Whether a damaged text is an error or reads as the sound one does."""
    tally.cases += 1
    try:
        found = parse(damaged)
    except UnknownOutput:
        tally.errors += 1
        return True
    if _plain(found) == truth_of(parse, text):
        tally.same += 1
        return True
    return False


def facts(found: Accelerators):
    """What a probe says of the cards and of the host, without its checks.

    The order of holders means nothing, and a name that shows its damage (the sign for bad bytes, no letter at all) deceives nobody.
    """
    data = found.as_dict()
    del data["checks"]
    for card in data["cards"]:
        names = {
            one["pid"]: one["name"] if re.search(r"\w", one["name"]) and "\ufffd" not in one["name"] else "" for one in card["holders"]
        }
        card["holders"] = sorted((one["pid"], one["memory_mib"], names[one["pid"]]) for one in card["holders"])
    return data


def silent_lie(host: Host, sound: Accelerators) -> bool:
    """Whether the probe finds other facts on this host than on the sound one, and nothing tells."""
    try:
        found = _probe_ascend.probe(ascend.Quick(host))
    except LLMError:
        return False
    known = {(check.name, check.status) for check in sound.checks}
    if any(check.status not in ("pass", "not_applicable") and (check.name, check.status) not in known for check in found.checks):
        return False
    ill = {card.id for card in sound.cards if card.health != OK}
    if any(card.health != OK and card.id not in ill for card in found.cards):
        return False
    return facts(found) != facts(sound)


class Sound:
    """A sound host and what the probe finds on it; the tool of its ports is there only where they are what it is about."""

    def __init__(self, host: Host, links: bool = False) -> None:
        host.tools = ["npu-smi", "hccn_tool"] if links else ["npu-smi"]
        self.host = host
        self.found = _probe_ascend.probe(ascend.Quick(host))

    def lies_with(self, tool: str, question: str, damaged: str) -> bool:
        answers = {name: dict(said) for name, said in self.host.answers.items()}
        answers[tool][question] = dataclasses.replace(answers[tool][question], out=damaged)
        return silent_lie(dataclasses.replace(self.host, answers=answers), self.found)


@functools.cache
def sound_host(name) -> Sound:
    """The sound host of a captured table."""
    return Sound(ascend.host(name))


def cases(name, text, damages=None, seeds=SEEDS):
    """Damaged versions of a text that differ from it; each with its name."""
    for damage in DAMAGES if damages is None else damages:
        for seed in range(seeds):
            damaged = damage(text, random.Random(f"{name} {damage.__name__} {seed}"))
            if damaged != text:
                yield f"{damage.__name__} {seed}", damaged


# ---- the table

TALLIES: dict[str, Tally] = {}


@pytest.mark.parametrize("name", list(EXPECTED["tables"]))
def test_damaged_table(name):
    text = ascend.whole(name)
    sound = sound_host(name)
    tally = TALLIES.setdefault(name, Tally())
    lies = []
    for case, damaged in cases(name, text, seeds=16):
        if not judge(_npu_smi.parse_table, text, damaged, tally):
            tally.told_by_the_host += 1
            if sound.lies_with("npu-smi", "info", damaged):
                lies.append(case)
    assert lies == []
    assert tally.cases > 150
    assert tally.errors > tally.cases // 2
    assert tally.same > 10


@pytest.mark.parametrize("name", list(EXPECTED["tables"]))
def test_every_card_that_is_taken_out_of_a_table_is_missed(name):
    text = ascend.whole(name)
    sound = sound_host(name)
    npus = sorted({row[0] for row in EXPECTED["tables"][name]["chips"]})
    for npu in npus:
        damaged = drop_card(text, npu)
        if len(npus) > 1:
            assert {chip.npu for chip in _npu_smi.parse_table(damaged).chips} == set(npus) - {npu}
        assert not sound.lies_with("npu-smi", "info", damaged)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(list(EXPECTED["tables"])), st.floats(0, 1), st.integers(1, 400), st.text(alphabet=" |+=\n\t\x00\ufffd", max_size=5))
def test_damage_of_any_kind_to_a_table(name, place, length, put):
    """Something is taken out, or something is put in that is no part of a value: another figure of the same width is another truth."""
    text = ascend.whole(name)
    at = int(place * len(text))
    damaged = text[:at] + put + text[at:] if put else text[:at] + text[at + length :]
    if damaged != text and not judge(_npu_smi.parse_table, text, damaged, TALLIES.setdefault("any", Tally())):
        assert not sound_host(name).lies_with("npu-smi", "info", damaged)


# ---- the lists


def host_of_map(name) -> Host:
    """A host whose ``-m`` is the capture."""
    rows = EXPECTED["maps"][name]
    kind = "310p" if "310" in name else "a3" if "a3" in name else "950" if "950" in name else "910b"
    product = {"310p": "310P3", "a3": "Ascend910", "950": "Ascend950PR", "910b": "910B2"}[kind]
    chips = []
    for place, (npu, chip, logical, physical) in enumerate(rows):
        number = logical if physical is None else physical
        chips.append(Chip(npu, chip, number, number if logical is None else logical, f"0000:{place + 1:02x}:00.0", product))
    host = ascend.make(ascend.table(chips, kind, "25.5.1"), chips, "25.5.1")
    host.smi["info -m"] = ascend.Answer(ascend.capture(name))
    return host


@pytest.mark.parametrize("name", list(EXPECTED["maps"]))
def test_damaged_map(name):
    text = ascend.capture(name)
    sound = Sound(host_of_map(name))
    tally = TALLIES.setdefault(name, Tally())
    lies = []
    for case, damaged in cases(name, text, seeds=12):
        if not judge(_npu_smi.parse_map, text, damaged, tally):
            tally.told_by_the_host += 1
            if sound.lies_with("npu-smi", "info -m", damaged):
                lies.append(case)
    assert lies == []
    assert tally.told_by_the_host > 0


@pytest.mark.parametrize("name", list(EXPECTED["lists"]))
def test_damaged_list(name):
    text = ascend.capture(name)
    sound = Sound(ascend.a2())
    tally = TALLIES.setdefault(name, Tally())
    lies = []
    for case, damaged in cases(name, text, seeds=40):
        if not judge(_npu_smi.parse_list, text, damaged, tally) and sound.lies_with("npu-smi", "info -l", damaged):
            lies.append(case)
    assert lies == []
    assert tally.errors > tally.cases // 2


# ---- key : value

#: Kinds whose values stand in no other answer: a line that was cut within a figure is another figure, and only the chips can be held.
VIEWS = {
    "usages": lambda reports: [(one.npu, sorted(one.chips)) for one in reports],
    "common": lambda reports: [(one.npu, sorted(one.chips)) for one in reports],
    "temp": lambda reports: [(one.npu, sorted(one.chips)) for one in reports],
    "power": lambda reports: [(one.npu, sorted(one.chips)) for one in reports],
    "ecc": lambda reports: [(one.npu, _npu_smi.double_bit_errors(one)) for one in reports],
    "device-share": lambda reports: [(one.npu, _npu_smi.shared(one)) for one in reports],
}

#: What never changes the number of a card or a chip, which stand in the last line or a line of their own.
IN_PLACE = [damage for damage in DAMAGES if damage not in (cut_row, lose_middle, cut_lines)]


@pytest.mark.parametrize(("name", "report"), list(EXPECTED["reports"].items()))
def test_damaged_report_never_has_fewer_chips(name, report):
    kind = report["kind"]
    tally = TALLIES.setdefault(name, Tally())

    def view(text):
        return VIEWS[kind](_npu_smi.parse_reports(kind, text))

    text = ascend.capture(name)
    wrong = [case for case, damaged in cases(name, text, IN_PLACE) if not judge(view, text, damaged, tally)]
    # A report without its head says of no card which it is: the probe asked for one, and the figures are those of one.
    assert [case for case in wrong if not case.startswith("drop_line")] == []
    for case, damaged in cases(name, text, [drop_line]):
        if case in wrong:
            assert sum(len(one.chips) for one in _npu_smi.parse_reports(kind, damaged)) == sum(len(one["chips"]) for one in report["cards"])


#: Hosts whose later answers are damaged, and the card they are about: one chip, two dies, and one whose table names no processes.
LATER = {
    "npu-smi-info__25.5.1__910b3__idle-and-vllm-busy__excerpt-2-of-8.txt": 5,
    "npu-smi-info__24.1.rc3.7__atlas-a3__container-sees-only-npu-2.txt": 2,
    "npu-smi-info__25.5.1__2x-310p3-dual-chip__idle__no-process-table.txt": 1,
}


@pytest.mark.parametrize("question", ["board", "proc-mem", "ecc", "device-share"])
@pytest.mark.parametrize("name", list(LATER))
def test_damaged_answer_about_one_card(name, question):
    sound = sound_host(name)
    asked = f"info -t {question} -i {LATER[name]}"
    text = sound.host.smi[asked].out
    tally = TALLIES.setdefault(f"{name} {question}", Tally())
    lies = []
    for case, damaged in cases(f"{name} {question}", text, seeds=5):
        tally.cases += 1
        if sound.lies_with("npu-smi", asked, damaged):
            lies.append(case)
    assert lies == []


def test_processes_that_only_one_answer_names():
    """The captured answer about an A3's processes: the table says the same, so a damaged one is noticed."""
    name = "npu-smi-info-t-proc-mem__a3__from-a-parser-test.txt"
    chips = [
        Chip(0, 0, 0, 0, "0000:9d:00.0", "Ascend910"),
        Chip(0, 1, 1, 1, "0000:9f:00.0", "Ascend910", [(3229095, "", 48208)], memory=(51000, 65536)),
    ]
    host = ascend.make(ascend.table(chips, "a3", "25.2.3"), chips, "25.2.3", True, "0xd803")
    text = ascend.capture(name)
    host.smi["info -t proc-mem -i 0"] = ascend.Answer(text)
    sound = Sound(host)
    assert [[holder.pid for holder in card.holders] for card in sound.found.cards] == [[], [3229095]]
    tally = TALLIES.setdefault(name, Tally())
    lies = []
    for case, damaged in cases(name, text):
        if not judge(_npu_smi.parse_processes, text, damaged, tally) and sound.lies_with("npu-smi", "info -t proc-mem -i 0", damaged):
            lies.append(case)
    assert lies == []


@pytest.mark.parametrize("name", list(EXPECTED["boards"]))
def test_damaged_board_says_less_and_nothing_else(name):
    text = ascend.capture(name)
    keys = ("NPU ID", "Firmware Version", "PCIe Bus Info")
    truth = _npu_smi.parse_board(text)
    tally = TALLIES.setdefault(name, Tally())
    for case, damaged in cases(name, text, IN_PLACE):
        tally.cases += 1
        try:
            found = _npu_smi.parse_board(damaged)
        except UnknownOutput:
            tally.errors += 1
            continue
        assert {key: found[key] for key in keys if key in found}.items() <= truth.items(), case
    assert tally.errors > 20


@pytest.mark.parametrize("name", list(EXPECTED["health"]))
def test_damaged_health_is_never_a_better_one(name):
    text = ascend.capture(name)
    tally = TALLIES.setdefault(name, Tally())
    for case, damaged in cases(name, text, seeds=20):
        tally.cases += 1
        try:
            found = _npu_smi.parse_health(damaged)
        except UnknownOutput:
            continue
        truth = _probe_ascend.health(_npu_smi.parse_health(text).status)
        assert _probe_ascend.SEVERITY.index(_probe_ascend.health(found.status)) >= min(_probe_ascend.SEVERITY.index(truth), 2), case


# ---- links


def test_damaged_answers_about_a_port():
    """One of two ports with each of its answers damaged: other facts are told by a check that is not passed."""
    sound = Sound(ascend.host("npu-smi-info__25.5.1__910b3__idle-and-vllm-busy__excerpt-2-of-8.txt"), links=True)
    tally = TALLIES.setdefault("hccn_tool", Tally())
    lies = []
    for option in ("-link", "-ip", "-gateway", "-netdetect", "-net_health", "-tls"):
        asked = f"-i 5 {option} -g"
        text = sound.host.hccn[asked].out
        for case, damaged in cases(asked, text, [damage for damage in DAMAGES if damage is not lose_middle], seeds=5):
            tally.cases += 1
            # The detail of a link shows what was not understood.
            if sound.lies_with("hccn_tool", asked, damaged):
                found = _probe_ascend.probe(ascend.Quick(damaged_host(sound.host, asked, damaged)))
                if "not understood" not in found.cards[1].link_detail:
                    lies.append(f"{option} {case}")
    assert lies == []


def damaged_host(host, asked, damaged):
    host = copy.deepcopy(host)
    host.hccn[asked].out = damaged
    return host


HCCN = {
    "hccn_tool-link__up.txt": _hccn_tool.parse_link,
    "hccn_tool-link__down.txt": _hccn_tool.parse_link,
    "hccn_tool-net_health__init.txt": _hccn_tool.parse_net_health,
    "hccn_tool-tls__switch-line.txt": _hccn_tool.parse_tls,
}


@pytest.mark.parametrize("name", list(HCCN))
def test_damaged_words_of_a_port(name):
    text = ascend.capture(name)
    tally = TALLIES.setdefault(name, Tally())
    assert [case for case, damaged in cases(name, text, seeds=20) if not judge(HCCN[name], text, damaged, tally)] == []


# ---- the judges themselves


def sloppy_table(text):
    """As tables are often read: what looks like a row is one, the rest is passed over."""
    chips, name = [], ""
    for line in text.splitlines():
        cells = line.split("|")
        head = re.match(r"\s*(\d+)\s+(\S+)", cells[1]) if len(cells) > 3 else None
        address = re.search(r"0000:\S+", line)
        pairs = re.findall(r"(\d+)\s*/\s*(\d+)", line)
        if head and not address:
            name = head.group(2)
        elif address and pairs:
            chips.append((address.group(), name, *map(int, pairs[-1])))
    return chips


def test_judge_of_texts_finds_a_reader_that_passes_lines_over():
    name = "npu-smi-info__23.0.rc3.3__8x-910b3__busy.txt"
    text = ascend.capture(name)
    assert len(sloppy_table(text)) == 8
    wrong = {case.split()[0] for case, damaged in cases(name, text, seeds=20) if not judge(sloppy_table, text, damaged, Tally())}
    assert {"cut_row", "cut_text", "cut_lines", "lose_middle", "drop_line"} <= wrong


def test_judge_of_hosts_finds_a_probe_that_compares_nothing(monkeypatch):
    name = "npu-smi-info__23.0.rc3.3__8x-910b3__busy.txt"
    sound = sound_host(name)
    damaged = drop_card(ascend.capture(name), 5)
    assert not sound.lies_with("npu-smi", "info", damaged)
    for compare in ("bus_checks", "node_checks"):
        monkeypatch.setattr(_probe_ascend, compare, lambda *_args: [])
    assert not sound.lies_with("npu-smi", "info", damaged)
    monkeypatch.setattr(_probe_ascend, "listing_check", lambda *_args: _probe_ascend.Check("tool_listings", "pass", ""))
    assert sound.lies_with("npu-smi", "info", damaged)


def test_there_were_enough_cases():
    """Runs last: at least 4000 in this file, and the host was needed for some."""
    if len(TALLIES) < 55:
        pytest.skip("counts the cases of the whole file")
    assert sum(tally.cases for tally in TALLIES.values()) >= 5000
    assert sum(tally.told_by_the_host for tally in TALLIES.values()) > 100
