# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A damaged capture gives the same truth or a clean error: never fewer cards, never another figure, in silence.

What one text cannot tell (a card's rows cleanly gone, a value shortened at the end of its line) is put to the whole probe, which holds
the queries against each other and against the bus.
"""

from __future__ import annotations

import dataclasses
import random
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.plugins.module_utils.test__hy_smi import EXPECTED
from unit.plugins.played import hygon

from ansible_collections.ironserve.llm.plugins.module_utils import _hy_smi
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import preflight
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._probe_hygon import probe

READ = {
    "tables": lambda text: _hy_smi.parse_table(text).rows,
    "lines": lambda text: _hy_smi.parse_lines(text).cards,
    "json": lambda text: _hy_smi.parse_json(text).cards,
    "processes": _hy_smi.parse_processes,
    "driver_versions": _hy_smi.parse_driver_version,
    "health": _hy_smi.parse_health,
    "agents": _hy_smi.parse_rocminfo,
    "tracked": _hy_smi.parse_tracker,
    "cdi_names": _hy_smi.parse_cdi_names,
}
SAMPLES = [(kind, name) for kind in READ for name in EXPECTED[kind]]
#: Kinds in which a value stands at the end of its line, so that nothing shows where it ended.
OPEN_ENDED = ("lines", "processes", "driver_versions", "health", "agents", "tracked", "cdi_names")
NOISE = [bytes([number]) for number in (*range(9), *range(14, 32), *range(127, 256))]
JUNK = [
    "WARNING: library is old",
    "junk",
    "0 junk",
    "9 51.0C",
    "HCU[9]",
    "HCU[0] : x",
    "====",
    "{",
    "}",
    '"',
    "\x00\x01",
    "Traceback:",
    "PID: 9",
]


def spots(rng, text, count):
    return [rng.randrange(len(text)) for _number in range(count)]


def split(rng, text, count):
    """``count`` times the lines, and the number of one that has something on it."""
    lines = text.split("\n")
    full = [number for number, line in enumerate(lines) if len(line.strip()) > 1]
    return [(list(lines), rng.choice(full)) for _number in range(count)]


def cut_off(rng, text):
    """The end is missing. Where nothing marks the end, a cut between two lines is not among them: one text cannot tell it."""
    marked = "{" in text or "End of SMI Log" in text or "*** Done ***" in text
    return [text[:at] for at in spots(rng, text, 30) if marked or at == 0 or text[at - 1] != "\n" and text[at] != "\n"]


def cut_line(rng, text):
    made = []
    for lines, at in split(rng, text, 30):
        start = len(lines[at]) - len(lines[at].lstrip())
        lines[at] = lines[at][: start + rng.randrange(1, len(lines[at].strip()))]
        made.append("\n".join(lines))
    return made


def junk_first(_rng, text):
    return [f"{junk}\n{text}" for junk in JUNK]


def junk_between(rng, text):
    made = []
    for (lines, at), junk in zip(split(rng, text, len(JUNK)), JUNK, strict=True):
        made.append("\n".join([*lines[:at], junk, *lines[at:]]))
    return made


def junk_last(_rng, text):
    return [f"{text}{junk}\n" for junk in JUNK]


def line_twice(rng, text):
    return ["\n".join([*lines[: at + 1], *lines[at:]]) for lines, at in split(rng, text, 10)]


def noise(rng, text):
    made = []
    for at in spots(rng, text, 40):
        raw = text.encode()
        put = b"".join(rng.choice(NOISE) for _number in range(rng.randint(1, 3)))
        made.append((raw[:at] + put + raw[at + rng.choice((0, len(put))) :]).decode("utf-8", "replace"))
    return made


def other_ends(_rng, text):
    return [text.replace("\n", "\r\n"), text.rstrip("\n") + "\n\n\n", "\n\n" + text]


def widened(rng, text):
    """A column gets wider or narrower, by the blanks between columns."""
    wide = [re.sub(r"(?<=\S) {2,}(?=\S)", lambda match: match.group() + " " * rng.randint(0, 9), text) for _number in range(5)]
    return [*wide, re.sub(r"(?<=\S) {2,}(?=\S)", "  ", text), re.sub(r"[ \t]+\n", "\n", text)]


MUTATIONS = [cut_off, cut_line, junk_first, junk_between, junk_last, line_twice, noise, other_ends, widened]


def mutants(kind, name, mutation):
    rng = random.Random(zlib.crc32(f"{kind} {name} {mutation.__name__}".encode()))
    return mutation(rng, hygon.capture(name))


def leaves(value, path=()):
    """Plain data as path -> text of each value."""
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(value)
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {path: str(value)}
    return {where: leaf for key, item in value.items() for where, leaf in leaves(item, (*path, key)).items()}


def shortened(truth, got):
    """Whether all is as it was but one value, which lost its end."""
    before, after = leaves(truth), leaves(got)
    if list(before) != list(after):
        return False
    changed = [path for path in before if before[path] != after[path]]
    return len(changed) == 1 and before[changed[0]].startswith(after[changed[0]].removesuffix(".0"))


def judge(kind, text, mutant, allow_shortened=False):
    """True for the same truth, False for a clean error; anything else is a failure."""
    truth = READ[kind](text)
    try:
        got = READ[kind](mutant)
    except LLMError as exc:
        assert str(exc) and "\n" not in str(exc)
        return False
    if allow_shortened and shortened(truth, got):
        return True
    assert got == truth, mutant
    return True


def test_there_are_enough_of_them():
    assert sum(len(mutants(kind, name, mutation)) for kind, name in SAMPLES for mutation in MUTATIONS) >= 3500


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
@pytest.mark.parametrize(("kind", "name"), SAMPLES)
def test_the_same_truth_or_a_clean_error(kind, name, mutation):
    text = hygon.capture(name)
    same = [judge(kind, text, mutant, mutation is cut_line and kind in OPEN_ENDED) for mutant in mutants(kind, name, mutation)]
    if mutation in (other_ends, widened):
        assert all(same), "blanks and line ends carry no meaning"


@pytest.mark.parametrize(("kind", "name"), SAMPLES)
@pytest.mark.parametrize("text", ["", "\n", " \t\n\n", "\x00", "\ufffd\ufffd\n", "{\n", "====\n"])
def test_nothing_is_an_error(kind, name, text):
    assert judge(kind, hygon.capture(name), text) is False


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(SAMPLES), st.data())
def test_any_piece_of_noise_anywhere(sample, data):
    kind, name = sample
    raw = hygon.capture(name).encode()
    at = data.draw(st.integers(0, len(raw)))
    put = b"".join(data.draw(st.lists(st.sampled_from(NOISE), min_size=1, max_size=20)))
    judge(kind, raw.decode(), (raw[:at] + put + raw[at:]).decode("utf-8", "replace"))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(READ)), st.text(alphabet=st.sampled_from("HCUD[]01 :{}\"',=%\n\tPIDcardNormal.WC"), max_size=200))
def test_any_text_is_an_answer_or_a_clean_error(kind, text):
    try:
        READ[kind](text)
    except LLMError:
        pass


@pytest.mark.parametrize("name", EXPECTED["tables"])
def test_order_of_rows_and_wording_carry_no_meaning(name):
    text = hygon.capture(name)
    lines = text.split("\n")
    rows = [number for number, line in enumerate(lines) if re.match(r"\d", line)]
    turned = list(lines)
    for number, other in zip(rows, reversed(rows), strict=True):
        turned[number] = lines[other]
    assert judge("tables", text, "\n".join(turned))
    for word in ("HCU", "DCU"):
        assert judge("tables", text, re.sub("[DH]CU", word, text))


# ---- what one text cannot tell


@pytest.fixture(scope="module", params=["json", "text"])
def played(request, tmp_path_factory):
    """A played host with a busy card, its directory, and what the probe finds there."""
    host = hygon.k100ai(speaks_json=request.param == "json", busy=True)
    root = hygon.play(tmp_path_factory.mktemp("host"), host)
    found = probe(hygon.Quick(root, host))
    assert [card.index for card in found.cards] == list(range(8))
    assert [holder.pid for card in found.cards for holder in card.holders] == [2004092]
    assert all(check.good for check in found.checks)
    return host, root, found


def judge_host(played, query, text):
    """True for the same cards; False for an error, or for a check that says what is wrong. Fewer cards are never good."""
    host, root, truth = played
    changed = dataclasses.replace(host, answers={**host.answers, query: dataclasses.replace(host.answers[query], out=text)})
    try:
        found = probe(hygon.Quick(root, changed))
    except LLMError:
        return False
    if found.cards == truth.cards:
        return True
    checks = preflight(found, 8, 65520, {})
    assert checks != preflight(truth, 8, 65520, {}), (query, text)
    if [card.id for card in found.cards] != [card.id for card in truth.cards]:
        assert any(check.status == FAIL for check in checks), (query, text)
    return False


def without_card(query, text, index):
    """An answer from which one card is gone as if it had never been there."""
    if query.endswith("--json"):
        return re.sub(rf'(, )?"card{index}": {{[^}}]*}}(?(1)|(, )?)', "", text)
    return re.sub(rf"(?m)^(?:{index} |[HD]CU\[{index}\]).*\n", "", text)


def per_card(host):
    return [query for query, answer in host.answers.items() if re.search(r"(?m)card7|CU\[7\]|^7 ", answer.out)]


def test_a_card_that_a_query_drops_is_never_lost(played):
    host, _root, _truth = played
    asked = set(played_queries(played))
    seen = 0
    for query in asked & set(per_card(host)):
        for index in range(8):
            text = without_card(query, host.answers[query].out, index)
            assert text != host.answers[query].out
            same = judge_host(played, query, text)
            assert same == query.startswith("--showtoponuma"), query
            seen += 1
    assert seen >= 6 * 8


def played_queries(played):
    """What the probe asks of this host."""
    host, root, _truth = played
    vendor = hygon.Quick(root, host)
    probe(vendor)
    return [arguments or "bare" for arguments in vendor.asked]


def test_a_card_that_every_query_drops_is_still_on_the_bus(played):
    host, root, truth = played
    for index in range(8):
        answers = {
            query: dataclasses.replace(answer, out=without_card(query, answer.out, index) if query in per_card(host) else answer.out)
            for query, answer in host.answers.items()
        }
        found = probe(hygon.Quick(root, dataclasses.replace(host, answers=answers)))
        assert len(found.cards) == 7
        (check,) = [check for check in found.checks if check.name == "cards_on_bus"]
        assert check.status == FAIL
        assert f"only on the bus: {truth.cards[index].id};" in check.detail


@pytest.mark.parametrize("mutation", [cut_line, cut_off, line_twice, noise], ids=lambda mutation: mutation.__name__)
def test_a_damaged_answer_is_never_a_silent_wrong_one(played, mutation):
    host, _root, _truth = played
    rng = random.Random(7)
    for query in set(played_queries(played)) & set(host.answers):
        for text in mutation(rng, host.answers[query].out)[:12]:
            judge_host(played, query, text)


def test_a_piece_cut_out_of_an_answer_is_never_a_silent_wrong_one(played):
    host, _root, _truth = played
    rng = random.Random(8)
    for query in sorted(set(played_queries(played)) & set(host.answers)):
        text = host.answers[query].out
        for _number in range(15):
            start = rng.randrange(len(text))
            # Fewer characters may be one digit of a temperature, which nothing can tell.
            end = start + rng.randrange(8, 300)
            judge_host(played, query, text[:start] + text[end:])
