# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What Hygon's tools print: hy-smi (or rocm-smi of a DTK), rocminfo, hcu-ctk. Text in, plain data out. Private to the collection.

The tool says DCU or HCU in any mix, whatever its version. A whole output has a frame: a banner line and an end line. Inside the frame
every line must be understood. Outside of it there may be warnings, which are kept as notes. An output without a frame is taken as all
inside. Everything not understood raises UnknownOutput that shows the line.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import first_odd_line, pci_address

_ANSI = re.compile("\x1b\\[[0-9;]*m")
_BANNER = re.compile(r"^=+ (?:ROCm )?System Management Interface =+$")
_END = re.compile(r"^=+ End of (?:ROCm )?SMI Log =+$")
#: A line of one sign, or with a title such as ``=== Numa Nodes ===``, which the tool this one grew from prints above its sections.
_RULE = re.compile(r"^(?:={3,}|-{3,}|\.{3,}|={3,} [A-Z][A-Za-z ()/]* ={3,})$")
_CARD = re.compile(r"^(?:HCU|DCU|GPU)\[(0|[1-9]\d*)\]\s*:\s*(.*)$")
#: ``pcie clock level 1 (16.0GT/s, ...)`` is the one line of its kind without a colon.
_CLOCK = re.compile(r"^(\w+ clock level):? (\d+ \(.+\))$")
#: What would be data if it stood inside the frame.
_LIKE_DATA = re.compile(r"^\d+\s|^(?:HCU|DCU|GPU)\b|(?:HCU|DCU|GPU)\[|^PID:")

#: Series as the vendor's own monitor lists them by chip id (PCI device id).
CHIPS = {
    "54b7": "Z100",
    "55b7": "Z100L",
    "55c7": "Z200SM_71",
    "55d7": "Z200SM_71_S",
    "61a7": "K500SM_B",
    "61b7": "K500SM",
    "61c7": "K500SM_B",
    "61d7": "K500SM",
    "61e7": "K500SM",
    "61f7": "K500",
    "6210": "K100_AI",
    "6211": "K100_LC_E_AI",
    "6212": "K100_LC_AI",
    "6213": "K100_AI_i",
    "6214": "K500",
    "62a0": "K500SM_AI",
    "62b0": "K500SM_AI",
    "62b7": "K100",
    "62c7": "K100_LC",
    "6310": "BW200",
    "6311": "BW200_LC",
    "631a": "BW1000_H",
    "6320": "BW150",
    "6321": "BW100_LC",
    "632a": "BW151",
    "6330": "BW500SM",
    "6360": "BW10",
    "636a": "BW11",
    "6370": "BW100",
    "637a": "BW101",
    "6423": "BW1500B",
    "6430": "BW1100",
    "6431": "BW1000_LC",
    "6436": "BW3000B",
    "6437": "BW3000B_LC",
}
#: Series that were also seen with the chip id of another one.
_ALSO = {"K500SM_AI": ("6210",), "BW1000": ("631a", "6431")}

#: Series -> architecture; what is not here is asked of rocminfo.
ARCHITECTURES = {
    "Z100": "gfx906",
    "Z100L": "gfx906",
    "K100": "gfx926",
    "K100_LC": "gfx926",
    "K100_AI": "gfx928",
    "K100_LC_E_AI": "gfx928",
    "K100_LC_AI": "gfx928",
    "K100_AI_i": "gfx928",
    "K500SM_AI": "gfx928",
    "BW1000": "gfx936",
    "BW1000_H": "gfx936",
    "BW1000_LC": "gfx936",
}

#: What a text means -> what to do. The first that matches counts.
_MEANINGS = (
    (
        r"libhcu_smi\.so: undefined symbol",
        "tool and library are of different driver releases; install one driver release over /opt/hyhal and restart the host",
    ),
    (r"command not found", "the tool is not on the PATH; it lies in /opt/hyhal/bin and comes with the driver"),
    (
        r"Driver not initialized|module is not loaded|not found in modules",
        "the kernel module is not loaded; start hymgr or restart the host",
    ),
    (
        r"error while loading shared libraries|cannot open shared object file",
        "a library of the tool is missing; set the platform's tool_environment",
    ),
)
#: The same for what an engine's container says when it starts.
_CONTAINER_MEANINGS = (
    (
        r"librocm_smi64\.so\S*: cannot open shared object file",
        "hyhal_not_mounted",
        "the host's /opt/hyhal is not in the container; mount it (or what it links to) at /opt/hyhal, read-only",
    ),
    (
        r"libgalaxyhip\.so\S*: cannot open shared object file",
        "dtk_environment_not_sourced",
        "the DTK environment is not set; keep the image's entrypoint, or source /opt/dtk/env.sh before the command",
    ),
)

MODES = ("Normal", "MIG", "N/A")


@dataclasses.dataclass
class Row:
    """One card in the table that hy-smi prints without arguments. A figure printed as N/A is None.

    Attributes:
        temperature_c, power_w, power_cap_w: degrees Celsius, watts.
        perf: performance level, as printed.
        memory_pct, use_pct: 0 to 100.
        mode: ``Normal``, ``MIG`` or ``N/A``.
    """

    temperature_c: float | None
    power_w: float | None
    power_cap_w: float | None
    perf: str
    memory_pct: float | None
    use_pct: float | None
    mode: str


@dataclasses.dataclass
class Table:
    """The table: rows by card index, and what was printed around it."""

    rows: dict[int, Row]
    notes: list[str]


@dataclasses.dataclass
class Listing:
    """What a query said of each card, keys and values as printed, by card index; and what was printed around it."""

    cards: dict[int, dict[str, str]]
    notes: list[str]


@dataclasses.dataclass
class Process:
    """A process that holds cards.

    Attributes:
        pid: process id on the host.
        indices: numbers of its cards.
        addresses: PCI addresses of its cards, in the same order.
        memory_mib: device memory it holds on all of them, MiB; None where the tool does not say.
        memory_pct: the same as a share; None where the tool does not say or prints ``inf``.
    """

    pid: int
    indices: list[int]
    addresses: list[str]
    memory_mib: int | None
    memory_pct: float | None


@dataclasses.dataclass
class Agent:
    """One compute agent that is not a CPU, as rocminfo lists it: architecture, name, chip id, PCI address in domain 0."""

    architecture: str
    name: str
    chip: str
    address: str


@dataclasses.dataclass
class Tracked:
    """One card in the container toolkit's tracker: access is ``Shared`` or ``Exclusive``; containers are ids."""

    uuid: str
    access: str
    containers: list[str]


def _odd(line: str, why: str) -> UnknownOutput:
    return UnknownOutput("{0}: {1!r}".format(why, line[:200]))


def _lines(text: str) -> list[str]:
    """The lines with something on them, without colours and blanks around. A last line without its end was cut."""
    if not text.strip():
        raise UnknownOutput("it printed nothing")
    if not text.endswith("\n"):
        raise _odd(text.split("\n")[-1], "the output ends in the middle of a line")
    return [line for line in (_ANSI.sub("", raw).strip(" \t\r") for raw in text.split("\n")) if line]


def _plain(line: str) -> str:
    """The same line; raises UnknownOutput when it holds anything but printable ASCII and tabs."""
    if not line.isascii() or not line.replace("\t", " ").isprintable():
        raise _odd(line, "not plain text")
    return line


def _body(text: str) -> tuple[list[str], list[str]]:
    """Lines inside the frame and lines around it, without rules. Without a frame all lines are inside."""
    lines = _lines(text)
    banners = [number for number, line in enumerate(lines) if _BANNER.match(line)]
    ends = [number for number, line in enumerate(lines) if _END.match(line)]
    if len(banners) != len(ends) or len(banners) > 1 or (banners and banners[0] > ends[0]):
        raise UnknownOutput("{0} begin and {1} end lines, so the output is cut or mixed up".format(len(banners), len(ends)))
    inside, around = lines, []
    if banners:
        inside, around = lines[banners[0] + 1 : ends[0]], lines[: banners[0]] + lines[ends[0] + 1 :]
    for line in around:
        if _LIKE_DATA.search(line):
            raise _odd(line, "data outside the frame")
    return [_plain(line) for line in inside if not _RULE.match(line)], [line for line in around if not _RULE.match(line)]


def _number(word: str, unit: str, line: str, most: float | None = None) -> float | None:
    """A figure with its unit; None for ``N/A``."""
    if word == "N/A":
        return None
    match = re.match(r"^(\d+(?:\.\d+)?){0}$".format(unit), word)
    if not match or (most is not None and float(match.group(1)) > most):
        raise _odd(line, "{0!r} is no figure in {1}".format(word, unit or "numbers"))
    return float(match.group(1))


def parse_table(text: str) -> Table:
    """Read the table, by its header words. Columns that are not known are passed over; those that are must all be there.

    Raises UnknownOutput that shows the line.
    """
    body, notes = _body(text)
    if not body:
        raise UnknownOutput("there is no table in it, first line {0}".format(first_odd_line(text)))
    header = body[0].split()
    names = ["use" if re.match(r"^(?:HCU|DCU|GPU)%$", word) else word for word in header]
    names[0] = "index" if header[0] in ("HCU", "DCU", "GPU") else names[0]
    for name in ("index", "Temp", "AvgPwr", "Perf", "PwrCap", "VRAM%", "use", "Mode"):
        if names.count(name) != 1:
            raise _odd(body[0], "no table header (column {0} is there {1} times)".format(name, names.count(name)))
    rows: dict[int, Row] = {}
    for line in body[1:]:
        words = line.split()
        if len(words) != len(names):
            raise _odd(line, "{0} words in a row of {1} columns".format(len(words), len(names)))
        cell = dict(zip(names, words))
        if not re.match(r"^(?:0|[1-9]\d{0,3})$", cell["index"]):
            raise _odd(line, "no card number at the start of a row")
        if int(cell["index"]) in rows:
            raise _odd(line, "a second row for card {0}".format(cell["index"]))
        if cell["Mode"] not in MODES:
            raise _odd(line, "unknown mode {0!r} (known: {1})".format(cell["Mode"], ", ".join(MODES)))
        rows[int(cell["index"])] = Row(
            temperature_c=_number(cell["Temp"], "C", line),
            power_w=_number(cell["AvgPwr"], "W", line),
            power_cap_w=_number(cell["PwrCap"], "W", line),
            perf=cell["Perf"],
            memory_pct=_number(cell["VRAM%"], "%", line, 100),
            use_pct=_number(cell["use"], "%", line, 100),
            mode=cell["Mode"],
        )
    if not rows:
        raise UnknownOutput("the table has a header and no card")
    return Table(rows, notes)


def _add(card: dict[str, str], key: str, value: str, line: str) -> None:
    if card.setdefault(key, value) != value:
        raise _odd(line, "{0!r} is both {1!r} and {2!r}".format(key, card[key], value))


def parse_lines(text: str) -> Listing:
    """Read ``HCU[0] : key: value`` lines of any query that prints them. Raises UnknownOutput that shows the line."""
    body, notes = _body(text)
    cards: dict[int, dict[str, str]] = {}
    for line in body:
        match = _CARD.match(line)
        if not match:
            raise _odd(line, "no line about a card")
        pair = _CLOCK.match(match.group(2)) or re.match(r"^([A-Za-z(][\w ()/%.-]*?)\s*:\s*(\S.*)$", match.group(2))
        if not pair:
            raise _odd(line, "no key and value")
        _add(cards.setdefault(int(match.group(1)), {}), pair.group(1), pair.group(2), line)
    if not cards:
        raise UnknownOutput("no card in it, first line {0}".format(first_odd_line(text)))
    return Listing(cards, notes)


_TOKEN = re.compile(r'\s*(?:("(?:[^"\\\x00-\x1f\x7f-\U0010ffff]|\\["\\/bfnrt])*")|(-?\d+(?:\.\d+)?|null|true|false)(?![\w.])|([{}:,]))')


class _Json:
    """A reader of the tool's JSON that forgives exactly one fault: a comma missing between a value and the next key."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def token(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        if not match:
            rest = self.text[self.at :].strip()
            raise UnknownOutput("JSON that {0}".format("goes wrong at {0}".format(first_odd_line(rest)) if rest else "ends too early"))
        self.at = match.end()
        return match.group().strip()

    def peek(self) -> str:
        at = self.at
        token = self.token()
        self.at = at
        return token

    def mapping(self, depth: int) -> list[tuple[str, Any]]:
        """Pairs of the mapping whose opening brace was read."""
        pairs: list[tuple[str, Any]] = []
        while True:
            token = self.token()
            if token == "}" and not pairs:
                return pairs
            if not token.startswith('"') or self.token() != ":":
                raise UnknownOutput("JSON with {0} where a key belongs".format(token))
            value = self.token()
            if value == "{" and depth:
                pairs.append((json.loads(token), self.mapping(depth - 1)))
            elif value in ("{", "}", ":", ","):
                raise UnknownOutput("JSON with {0} where the value of {1} belongs".format(value, token))
            elif value == "null":
                pairs.append((json.loads(token), "N/A"))
            else:
                pairs.append((json.loads(token), json.loads(value) if value.startswith('"') else value))
            after = self.peek()
            if after == "}":
                self.token()
                return pairs
            if after == ",":
                self.token()
            elif not (after.startswith('"') and value.startswith('"')):
                raise UnknownOutput("JSON with {0} after the value of {1}".format(after, token))


def parse_json(text: str) -> Listing:
    """Read the JSON of any query: ``{"card0": {key: value}}``. Lines before and after it are notes.

    Keys without a name, which the tool prints for clocks it does not have, are dropped while they are empty.
    Raises UnknownOutput that shows where it goes wrong.
    """
    if "{" not in text:
        raise UnknownOutput("no JSON in it, first line {0}".format(first_odd_line(text)))
    start = text.index("{")
    reader = _Json(text[start + 1 :])
    pairs = reader.mapping(1)
    around = [line.strip() for part in (text[:start], reader.text[reader.at :]) for line in part.split("\n") if line.strip()]
    for line in around:
        if re.search(r'[{}"]', line) or _LIKE_DATA.search(line):
            raise _odd(line, "data outside the JSON")
    cards: dict[int, dict[str, str]] = {}
    for name, fields in pairs:
        match = re.match(r"^card(0|[1-9]\d*)$", name)
        if name == "system" and isinstance(fields, list):
            continue
        if not match or not isinstance(fields, list) or int(match.group(1)) in cards:
            raise UnknownOutput("JSON with the key {0!r} twice or where a card belongs".format(name))
        card = cards[int(match.group(1))] = {}
        for key, value in fields:
            if key or value:
                if not key:
                    raise UnknownOutput("JSON with the value {0!r} without a key in {1}".format(value, name))
                _add(card, key, value, name)
    if not cards:
        raise UnknownOutput("JSON without any card")
    return Listing(cards, around)


def _field(listing: Listing, index: int, label: str, pattern: str = "") -> tuple[str, str]:
    """Key and value of a card, the key as ``pattern`` has it (default: the label itself), whatever its case."""
    wanted = re.compile("(?:{0})$".format(pattern or re.escape(label)), re.IGNORECASE)
    found = [(key, value) for key, value in listing.cards[index].items() if wanted.match(key)]
    if len(found) != 1:
        raise UnknownOutput(
            "card {0} has the key '{1}' {2} times; it has: {3}".format(index, label, len(found), ", ".join(listing.cards[index]) or "none")
        )
    return found[0]


def products(listing: Listing) -> dict[int, str]:
    """Product name of each card, as spelled by the tool."""
    return {index: _field(listing, index, "Card Series")[1] for index in listing.cards}


def addresses(listing: Listing) -> dict[int, str]:
    """PCI address of each card, as sysfs writes it. Newer boards print more after the address: it is cut at the first blank."""
    found = {index: pci_address(_field(listing, index, "PCI Bus")[1].split(" ")[0]) for index in listing.cards}
    for address in found.values():
        same = [str(index) for index in found if found[index] == address]
        if len(same) > 1:
            raise UnknownOutput("cards {0} all have the PCI address {1}".format(", ".join(same), address))
    return found


def memories(listing: Listing) -> dict[int, tuple[int | None, int | None]]:
    """Total and used memory of each card, MiB; None where the tool prints N/A. AMD's own tool counts in bytes."""
    found: dict[int, tuple[int | None, int | None]] = {}
    for index in listing.cards:
        pair: list[int | None] = []
        for what in ("Total", "Total Used"):
            key, value = _field(listing, index, "vram {0} Memory (MiB)".format(what), r"vram {0} Memory \((?:MiB|B)\)".format(what))
            if not re.match(r"^(?:\d+|N/A)$", value):
                raise UnknownOutput("card {0}: '{1}' is {2!r}".format(index, key, value))
            pair.append(int(value) // (2**20 if key.endswith("(B)") else 1) if value != "N/A" else None)
        total, used = pair
        if total == 0 or (total is not None and used is not None and used > total):
            raise UnknownOutput("card {0} uses {1} of {2} MiB".format(index, used, total))
        found[index] = (total, used)
    return found


def uses(listing: Listing) -> dict[int, float | None]:
    """Use of each card at this moment, percent."""
    found = {}
    for index in listing.cards:
        key, value = _field(listing, index, "HCU use (%)", r"(?:HCU|DCU|GPU) use \(%\)")
        found[index] = _number(value, "", "{0}: {1}".format(key, value), 100)
    return found


def numa_nodes(listing: Listing) -> dict[int, int | None]:
    """NUMA node of each card; None where the tool prints -1 or N/A."""
    found: dict[int, int | None] = {}
    for index in listing.cards:
        word = _field(listing, index, "(Topology) Numa Node")[1]
        if not re.match(r"^(?:\d{1,4}|-1|N/A)$", word):
            raise UnknownOutput("card {0}: {1!r} is no NUMA node".format(index, word))
        found[index] = int(word) if word.isdigit() else None
    return found


def _words(value: str, line: str) -> list[str]:
    """Items of a Python list of strings, as the tool prints it."""
    if not re.match(r"^\[(?:'[^']+'(?:, *'[^']+')*)?\]$", value):
        raise _odd(line, "no list")
    return re.findall(r"'([^']+)'", value)


def parse_processes(text: str) -> list[Process]:
    """Read the processes of ``--showpids``; empty when the tool says that there are none. Names are not in it.

    An output without a frame must end in a rule line, or it was cut. Raises UnknownOutput that shows the line.
    """
    body, _notes = _body(text)
    if body == ["No KFD PIDs currently running"]:
        return []
    if body[:1] != ["PIDs for KFD processes:"]:
        raise UnknownOutput("no list of processes in it, first line {0}".format(first_odd_line(text)))
    last = _lines(text)[-1]
    if "System Management Interface" not in text and not _RULE.match(last):
        raise _odd(last, "the list of processes was cut")
    blocks: list[dict[str, str]] = []
    for line in body[1:]:
        key, colon, value = line.partition(": ")
        if not colon or not value.strip() or not re.match(r"^[A-Za-z][\w ()/%]*$", key):
            raise _odd(line, "no key and value of a process")
        if key == "PID":
            blocks.append({})
        elif not blocks:
            raise _odd(line, "a value before the first process")
        _add(blocks[-1], re.sub(r"^(?:HCU|DCU|GPU) ", "", key), value.strip(), line)
    found = []
    for block in blocks:
        shown = "PID: {0}".format(block["PID"])
        for key in ("Index", "PCI BUS", "VRAM USED(MiB)"):
            if key not in block:
                raise _odd(shown, "a process without {0}".format(key))
        if not re.match(r"^[1-9]\d{0,9}$", block["PID"]):
            raise _odd(shown, "no process id")
        indices = _words(block["Index"], shown)
        buses = [pci_address(word) for word in _words(block["PCI BUS"], shown)]
        if len(indices) != len(buses) or not all(word.isdigit() for word in indices):
            raise _odd(shown, "cards {0} and addresses {1} do not go together".format(block["Index"], block["PCI BUS"]))
        memory = _number(block["VRAM USED(MiB)"], "", shown)
        share = block.get("VRAM USED(%)", "N/A")
        found.append(
            Process(
                pid=int(block["PID"]),
                indices=[int(word) for word in indices],
                addresses=buses,
                memory_mib=None if memory is None else int(memory),
                memory_pct=None if share in ("inf", "nan") else _number(share, "", shown, 100 * max(1, len(buses))),
            )
        )
    twice = sorted({one.pid for one in found if [other.pid for other in found].count(one.pid) > 1})
    if twice:
        raise UnknownOutput("process {0} is listed twice".format(twice[0]))
    return found


def parse_driver_version(text: str) -> str:
    """Read the version of ``--showdriverversion``. Raises UnknownOutput that shows the line."""
    body, _notes = _body(text)
    match = re.match(r"^Driver [Vv]ersion ?: (\S+)$", body[0]) if len(body) == 1 else None
    if not match:
        raise UnknownOutput("no driver version in it, first line {0}".format(first_odd_line("\n".join(body), text)))
    return match.group(1)


def parse_health(text: str) -> dict[int, tuple[str, str]]:
    """Read ``--healthcheck``: card index -> PCI address and the tool's word. Raises UnknownOutput that shows the line."""
    body, _notes = _body(text)
    found: dict[int, tuple[str, str]] = {}
    for line in body:
        match = re.match(r"^(?:HCU|DCU|GPU)\[(0|[1-9]\d*)\]\s*:\s*Bus Id\s*:\s*(\S+)\s*:\s*(\S.*)$", line)
        if not match or int(match.group(1)) in found:
            raise _odd(line, "no health of a card, or a second one")
        found[int(match.group(1))] = (pci_address(match.group(2)), match.group(3))
    if not found:
        raise UnknownOutput("no card in it, first line {0}".format(first_odd_line(text)))
    return found


def parse_rocminfo(text: str) -> list[Agent]:
    """Read the agents of ``rocminfo`` that are not CPUs. Raises UnknownOutput that shows the line."""
    lines = [_plain(line) for line in _lines(text)]
    if lines[-1] != "*** Done ***":
        raise _odd(lines[-1], "rocminfo did not come to its end")
    parts = re.split(r"(?m)^\*+[ \t]*\nAgent (\d+)[ \t]*\n\*+[ \t]*\n", text.replace("\r", ""))
    if [int(number) for number in parts[1::2]] != list(range(1, len(parts[1::2]) + 1)) or len(parts) < 2:
        raise UnknownOutput("the agents are not numbered from 1 on: {0}".format(", ".join(parts[1::2]) or "none"))
    found = []
    for number, part in zip(parts[1::2], parts[2::2]):
        fields: dict[str, str] = {}
        for line in part.split("\n"):
            match = re.match(r"^  (\S[^:]*):[ \t]*(.*?)[ \t]*$", line)
            if match:
                _add(fields, match.group(1), match.group(2), line)
        for key in ("Name", "Marketing Name", "Device Type", "Chip ID", "BDFID"):
            if not fields.get(key):
                raise UnknownOutput("agent {0} of rocminfo has no {1}".format(number, key))
        if fields["Device Type"] == "CPU":
            continue
        if fields["Device Type"] not in ("HCU", "DCU", "GPU"):
            raise UnknownOutput("agent {0} of rocminfo is of unknown type {1!r}".format(number, fields["Device Type"]))
        chip = re.match(r"^(\d+)\(0x([0-9a-f]+)\)$", fields["Chip ID"])
        if not chip or int(chip.group(1)) != int(chip.group(2), 16) or not re.match(r"^\d{1,5}$", fields["BDFID"]):
            raise UnknownOutput("agent {0} of rocminfo has chip {1!r}, BDFID {2!r}".format(number, fields["Chip ID"], fields["BDFID"]))
        if not re.search(r"(?m)^ +Name: +amdgcn-amd-amdhsa--{0}(?::\S*)?[ \t]*$".format(re.escape(fields["Name"])), part):
            raise UnknownOutput("agent {0} of rocminfo has no instruction set for {1!r}".format(number, fields["Name"]))
        bdf = int(fields["BDFID"])
        address = pci_address("{0:02x}:{1:02x}.{2}".format(bdf >> 8 & 0xFF, bdf >> 3 & 0x1F, bdf & 7))
        found.append(Agent(fields["Name"], fields["Marketing Name"], chip.group(2), address))
    return found


def parse_cdi_names(text: str) -> list[str]:
    """Read the names of ``hcu-ctk cdi list``, such as ``hygon.com/hcu=0``. Its count is half the number of names, rounded down."""
    counts, names = [], []
    for line in _lines(text):
        head = re.match(r"^INFO\[\d+\] Found (\d+) CDI devices$", _plain(line))
        if head:
            counts.append(int(head.group(1)))
        elif re.match(r"^[\w.-]+/[\w.-]+=\S+$", line) and line not in names:
            names.append(line)
        else:
            raise _odd(line, "no name of a CDI device, or one twice")
    if counts != [len(names) // 2]:
        raise UnknownOutput("{0} names listed, counted {1}".format(len(names), counts))
    return names


def parse_tracker(text: str) -> dict[int, Tracked]:
    """Read ``hcu-ctk hcu-tracker status``: card number -> who has it; empty when the tracker is disabled.

    That command sets the tracker up where it is not, so no probe calls it. Raises UnknownOutput that shows the line.
    """
    lines = [_plain(line) for line in _lines(text) if not _RULE.match(line)]
    if lines == ["HCU Tracker is disabled"]:
        return {}
    if not lines or lines[0].split() != ["HCU", "Id", "UUID", "Accessibility", "Container", "Ids"]:
        raise UnknownOutput("no header of the tracker in it, first line {0}".format(first_odd_line(text)))
    found: dict[int, Tracked] = {}
    for line in lines[1:]:
        words = line.split()
        ids = [words[-1]] if words[-1] != "None" else []
        fits = all(len(one) >= 12 for one in ids)
        if fits and ids and len(words) == 1 and found and found[max(found)].containers:
            found[max(found)].containers += ids
        elif fits and len(words) == 4 and words[0] == str(len(found)) and words[2] in ("Shared", "Exclusive"):
            found[len(found)] = Tracked(words[1], words[2], ids)
        else:
            raise _odd(line, "no row of the tracker")
    if not found:
        raise UnknownOutput("the tracker lists no card")
    return found


def explain(text: str) -> str:
    """What a text of the tool means and what to do, for those that are known; otherwise empty."""
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, text):
            return meaning
    return ""


def container_fault(text: str) -> tuple[str, str]:
    """Cause (a snake_case name) and remedy of what an engine's container said, for causes that are known; otherwise two empty texts."""
    for pattern, cause, remedy in _CONTAINER_MEANINGS:
        if re.search(pattern, text):
            return cause, remedy
    return "", ""


def _squash(name: str) -> str:
    return re.sub(r"^(?:hcu|dcu)", "", re.sub(r"[-_ ]", "", name.lower()))


_SERIES = {_squash(name): name for name in list(CHIPS.values()) + list(ARCHITECTURES)}


def normal_name(raw: str, chip: str) -> str:
    """The series in our spelling (``K100_AI``), whatever dashes, blanks and prefixes the tool uses; as spelled where it is not known.

    The tool prints only ``BW`` for a whole family; there the chip id (four hex digits) tells more.
    """
    name = _SERIES.get(_squash(raw), raw)
    return CHIPS[chip] if name == "BW" and CHIPS.get(chip, "").startswith("BW") else name


def chip_fits(name: str, chip: str) -> bool | None:
    """Whether a series may have this chip id; None where either is not known.

    A chip id alone does not tell a series: 6210 is K100_AI, and some K500SM_AI report it too.
    """
    own = [one for one in CHIPS if CHIPS[one] == name] + list(_ALSO.get(name, ()))
    return chip in own if own and chip in CHIPS else None
