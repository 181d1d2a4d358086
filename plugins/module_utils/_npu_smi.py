# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ``npu-smi`` prints, as facts: text in, dataclasses out. Private to the collection.

There is no machine form: a box table (``npu-smi info``), a list with a header (``-m``) and ``key : value`` lines (the rest), in every
width and with other columns per generation. All is read by header words and keys, never by position, and strictly: a line that does
not fit is an UnknownOutput that names it, and so is a text that stops before its end.
"""

from __future__ import annotations

import dataclasses
import re

from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import pci_address

#: Chips on a card that are no NPU, by their name in ``-m``: the board's controller and a video processor.
OTHER_CHIPS = ("mcu", "3559")

#: What it means when a question is not known to the tool.
NO_QUERY = "this npu-smi, driver or card does not have this query"

#: Part of the remark it prints after a good table when ``/etc/ascend_install.info`` does not say that the installation was completed.
INCOMPLETE = "driver package may not be completely installed"

#: What the tool says when it fails -> what it means and what to do. Most of it goes to standard output, some with exit status 0.
COMPLAINTS = (
    (
        r"ret is -8020\b|because the device is used",
        "code -8020, a card is held by another container: without sharing, only one container may have a card, and one whose set of cards "
        "overlaps with another's sees none at all. Find the container that has the same /dev/davinci node and give each its own cards, "
        "or stop it",
    ),
    (
        r"ret is -8005\b",
        "code -8005, the driver's interface does not start: the driver is not loaded, was replaced without a restart, this user may not "
        "open /dev/davinci_manager, or another container holds the cards. Look into dmesg, restart after an upgrade, run as root",
    ),
    (
        r"ret is -9005\b",
        "code -9005, the kind of board cannot be read: usually because the cards are in use or the driver did not start. "
        "Mend that first, then restart the host",
    ),
    (
        r"error while loading shared libraries",
        "a library of the driver is not found: a shell that is not interactive has no library path. Put the driver's lib64, lib64/common "
        "and lib64/driver into LD_LIBRARY_PATH of the platform's 'tool_environment'",
    ),
    (
        r"There is no NPU card on this server",
        "the driver runs and finds no card: see whether the PCI bus still has them, then power cycle the host",
    ),
    (
        r"Invalid card id|Error parameter of -i",
        "no card has this id: it fell off the bus, or the ids changed since they were listed. See whether the PCI bus still has it",
    ),
    (r"ret is -8255\b|does not support", NO_QUERY),
    (r"\bret is (-[0-9]+)", "an error code of the driver that is not known here. Look into dmesg and the driver's log"),
    (r"^Usage: |Error parameter of -|Command or option is not found", NO_QUERY),
)

#: A status is the low byte of the driver's negative code.
STATUSES = {172: "ret is -8020", 187: "ret is -8005", 211: "ret is -9005"}

_BORDER = re.compile(r"\+[-=+]{2,}\+")
_REMARK = re.compile(r"\[WARNING\]|DrvMngGetConsoleLogLevel failed")
_VERSION = re.compile(r"\s*npu-smi\s+({0})\s+Version:\s*({0})\s*".format(r"[0-9]\w*(?:[.+-]\w+)*"), re.ASCII)
_NO_PROCESS = re.compile(r"\s*No running processes found in NPU\s+([0-9]+)\s*")
_PROCESS = re.compile(r"Process id:\s*([0-9]+)\s+Process name:(.*?)\s*Process memory\(MB\):\s*([0-9]+)")
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_FIGURE = r"-?[0-9]+(?:\.[0-9]+)?|NA|N/A|-"
_AMOUNT = r"[0-9]+|NA|N/A|-"
_PAIR = r"(?P<{0}_used>" + _AMOUNT + r")\s*/\s*(?P<{0}_total>" + _AMOUNT + r")"
_NPU = r"(?P<npu>[0-9]+)"

#: Words of the table's headers -> what stands under them.
_FIELDS = {
    "NPU": _NPU,
    "NPU ID": _NPU,
    "Name": r"(?P<name>[A-Za-z0-9][\w.-]*)",
    "Health": r"(?P<health>[A-Za-z]+)",
    "Power(W)": r"(?P<power>" + _FIGURE + r")",
    "Temp(C)": r"(?P<temperature>" + _FIGURE + r")",
    "Hugepages-Usage(page)": _PAIR.format("pages"),
    "Chip": r"(?P<chip>[0-9]+)",
    "Phy-ID": r"(?P<physical>[0-9]+)",
    "Device": r"(?P<device>[0-9]+)",
    "Bus-Id": r"(?P<bus>[0-9A-Fa-f:.]+|NA)",
    "AICore(%)": r"(?P<utilisation>" + _FIGURE + r")",
    "NPU Util(%)": r"(?P<utilisation>" + _FIGURE + r")",
    "Memory-Usage(MB)": _PAIR.format("memory"),
    "HBM-Usage(MB)": _PAIR.format("hbm"),
    "Process id": r"(?P<pid>[0-9]+)",
    "Process id in container": r"(?:[0-9]+|NA|-)",
    "Process name": r"(?P<process>.*?)",
    "Process memory(MB)": r"(?P<process_mib>[0-9]+)",
}
_HEADER_WORD = re.compile("|".join(re.escape(word) for word in sorted(_FIELDS, key=len, reverse=True)))

_MAP_WORDS = {"NPU ID": "npu", "Slot ID": "", "Chip ID": "chip", "Chip Logic ID": "logical", "Chip Phy-ID": "physical", "Chip Name": "name"}
_MAP_WORD = re.compile("|".join(re.escape(word) for word in _MAP_WORDS))


@dataclasses.dataclass
class Process:
    """A process on a chip. ``name`` is empty where the tool hides it; ``memory_mib`` is device memory, MiB."""

    pid: int
    name: str
    memory_mib: int


@dataclasses.dataclass
class Chip:
    """A chip of the table of ``npu-smi info``; a figure that is absent or a mere placeholder is None.

    Attributes:
        npu, chip: the tool's numbers of the card and of the chip on it.
        physical, device: what stands under ``Phy-ID`` and under ``Device``, where the table has the column.
        name, health: as the tool spells them.
        bus: PCI address as sysfs writes it; None where the tool says NA.
        power_w, temperature_c, utilisation_pct: watts, degrees Celsius, percent. 0 W is no measurement of a chip that answers.
        memory_used_mib, memory_total_mib: HBM where the table has the column, else the chip's DDR, MiB.
        ddr_used_mib, ddr_total_mib: DDR beside HBM, MiB; a constant 0 / 0 is None.
        processes: holders of the chip; None where the table does not speak of the card.
    """

    npu: int
    chip: int
    physical: int | None
    device: int | None
    name: str
    health: str
    bus: str | None
    power_w: float | None
    temperature_c: float | None
    utilisation_pct: float | None
    memory_used_mib: int | None
    memory_total_mib: int | None
    ddr_used_mib: int | None
    ddr_total_mib: int | None
    processes: list[Process] | None = None


@dataclasses.dataclass
class Table:
    """The table of ``npu-smi info``.

    Attributes:
        tool_version, driver_version: of the tool, and of the driver that runs.
        chips: in the table's order.
        has_hbm: whether the table has a column for HBM.
        has_chips: whether it numbers the chips of a card; then ``-t`` queries know ``-c``.
        remarks: warnings that stand around the table.
    """

    tool_version: str
    driver_version: str
    chips: list[Chip]
    has_hbm: bool
    has_chips: bool
    remarks: list[str]


@dataclasses.dataclass
class Mapped:
    """A chip of ``npu-smi info -m``; ``logical`` or ``physical`` is None where the list has no such column."""

    npu: int
    chip: int
    logical: int | None
    physical: int | None


@dataclasses.dataclass
class Report:
    """What ``npu-smi info -t <type>`` says of one card.

    Attributes:
        npu: the card; None where the output does not say.
        chips: chip -> key -> value, as text.
        mcu: the same for the board's controller.
    """

    npu: int | None
    chips: dict[int, dict[str, str]]
    mcu: dict[str, str]


@dataclasses.dataclass
class Health:
    """A chip's state: ``status`` as the tool spells it, its error codes, and what the tool says about them, each possibly empty."""

    status: str
    codes: list[str]
    information: str


# ---- complaints


def explain(status: int, *texts: str) -> str:
    """What a failed call means and what to do about it; empty when it is not among the known complaints.

    Args:
        status: exit status; it stands for the driver's code where no text does.
        texts: what the tool said, on both streams.
    """
    said = "\n".join(texts)
    for text in (said, STATUSES.get(status, "")):
        for pattern, meaning in COMPLAINTS:
            if re.search(pattern, text, re.MULTILINE):
                return meaning
    return ""


def remark_meaning(remark: str) -> str:
    """What a line beside a good answer means; empty when it is unknown."""
    if remark.startswith("DrvMngGetConsoleLogLevel"):
        return "the driver's log level cannot be read; harmless beside a good table, and the first sign of a card that is held elsewhere"
    return ""


# ---- lines


def _odd(what: str, number: int, line: str, why: str) -> UnknownOutput:
    return UnknownOutput("{0}, line {1} {2}: {3!r}".format(what, number, why, line.strip()[:200]))


def _lines(what: str, text: str) -> list[tuple[int, str]]:
    """Numbered lines without the blanks at their ends. Raises UnknownOutput for no text, bytes that are none, and a last line cut off."""
    if not text.strip():
        raise UnknownOutput("{0} said nothing".format(what))
    if not text.endswith("\n"):
        raise UnknownOutput("{0} stopped in the middle of its last line: {1!r}".format(what, text.splitlines()[-1].strip()[:200]))
    found = []
    for number, line in enumerate(text[:-1].split("\n"), 1):
        line = line[:-1] if line.endswith("\r") else line
        if _NOT_TEXT.search(line):
            raise _odd(what, number, line, "has bytes that are no text")
        found.append((number, line.rstrip(" \t")))
    return found


# ---- the table


class _Row:
    """One kind of row, read by the words of its header."""

    def __init__(self, columns: list[list[str]]) -> None:
        self.columns = columns
        self.words = [word for words in columns for word in words]
        self._cells = [re.compile(r"\s*" + r"\s+".join(_FIELDS[word] for word in words) + r"\s*", re.ASCII) for words in columns]

    def read(self, cells: list[str]) -> dict[str, str] | None:
        """The values of a row; None when it does not fit."""
        if ["Process name"] in self.columns and len(cells) > len(self.columns):
            # The name is anybody's choice and may hold the table's own separator.
            at, end = self.columns.index(["Process name"]), len(cells) - len(self.columns) + 1
            cells = cells[:at] + ["|".join(cells[at : at + end])] + cells[at + end :]
        if len(cells) != len(self._cells):
            return None
        values = {}
        for pattern, cell in zip(self._cells, cells):
            match = pattern.fullmatch(cell)
            if not match:
                return None
            values.update(match.groupdict())
        return values


def _header(cells: list[str], needed: tuple[str, ...]) -> _Row | None:
    """The row that a header announces; None for an unknown word, or when one of ``needed`` is not there."""
    columns = []
    for cell in cells:
        words, rest = [], cell.strip()
        while rest:
            match = _HEADER_WORD.match(rest)
            if not match:
                return None
            words.append(match.group())
            rest = rest[match.end() :].lstrip()
        columns.append(words)
    row = [word for words in columns for word in words]
    return _Row(columns) if all(word in row for word in needed) and len(set(row)) == len(row) else None


def _figure(text: str | None, low: float, high: float) -> float | None:
    """A figure within reason; None for NA, ``-``, and the large numbers that stand for nothing."""
    if text in (None, "NA", "N/A", "-"):
        return None
    value = float(text)
    return value if low <= value <= high else None


def _memory(values: dict[str, str], kind: str) -> tuple[int | None, int | None]:
    """Used and total of one kind of memory, MiB; (None, None) where there is none."""
    used, total = (_figure(values[kind + "_" + word], 0, 2**31) for word in ("used", "total"))
    if not total:
        return None, None
    return (None if used is None or used > total else int(used)), int(total)


def _chip(top: dict[str, str], bottom: dict[str, str]) -> Chip:
    memory = _memory(bottom, "memory")
    ddr = (None, None)
    if "hbm_used" in bottom:
        memory, ddr = _memory(bottom, "hbm"), memory
    return Chip(
        npu=int(top["npu"]),
        chip=int(bottom.get("chip", 0)),
        physical=int(bottom["physical"]) if "physical" in bottom else None,
        device=int(bottom["device"]) if "device" in bottom else None,
        name=top["name"],
        health=top["health"],
        bus=None if bottom["bus"] == "NA" else pci_address(bottom["bus"]),
        power_w=_figure(top.get("power"), 0.1, 10000),
        temperature_c=_figure(top.get("temperature"), -60, 200),
        utilisation_pct=_figure(bottom.get("utilisation"), 0, 100),
        memory_used_mib=memory[0],
        memory_total_mib=memory[1],
        ddr_used_mib=ddr[0],
        ddr_total_mib=ddr[1],
    )


class _TableReader:
    """Reads the box line by line: a title, a header of two lines, two lines per chip, and then perhaps the processes."""

    what = "npu-smi info"

    def __init__(self) -> None:
        self.title: tuple[str, str] | None = None
        self.kinds: list[_Row] = []
        self.holders: _Row | None = None
        self.pending: dict[str, str] | None = None
        self.chips: dict[tuple[int, int], Chip] = {}
        self.idle: set[int] = set()
        self.remarks: list[str] = []
        self.width = 0
        self.borders = 0

    def line(self, number: int, line: str) -> None:
        """Take one line."""
        if not line.strip():
            return
        if _REMARK.match(line):
            self.remarks.append(line)
        elif _BORDER.fullmatch(line):
            self.width = len(line)
            self.borders += 1
        elif not (len(line) > 1 and line.startswith("|") and line.endswith("|")):
            raise _odd(self.what, number, line, "is neither a border nor a whole row")
        elif not self.width or len(line) < self.width:
            # Values are padded to the border's width, so a row may run over it and never falls short.
            raise _odd(self.what, number, line, "is shorter than its border")
        else:
            self.borders = 0
            if not self._row(line[1:-1].split("|")):
                raise _odd(self.what, number, line, "does not fit its header, or stands where it should not")

    def _row(self, cells: list[str]) -> bool:
        """Take one row; whether it fits."""
        if self.title is None:
            match = _VERSION.fullmatch(cells[0]) if len(cells) == 1 else None
            self.title = match.groups() if match else None
            return match is not None
        if len(self.kinds) < 2:
            header = _header(cells, ("Bus-Id", "Memory-Usage(MB)") if self.kinds else ("Name", "Health"))
            if header is None or not (self.kinds or header.words[0] in ("NPU", "NPU ID")):
                return False
            self.kinds.append(header)
            return True
        if self.holders is None:
            self.holders = _header(cells, ("Process id", "Process name", "Process memory(MB)"))
            return self.pending is None if self.holders else self._chip_row(cells)
        return self._process_row(cells)

    def _chip_row(self, cells: list[str]) -> bool:
        if self.pending is None:
            self.pending = self.kinds[0].read(cells)
            return self.pending is not None
        bottom = self.kinds[1].read(cells)
        if bottom is None:
            return False
        chip = _chip(self.pending, bottom)
        self.pending = None
        return self.chips.setdefault((chip.npu, chip.chip), chip) is chip

    def _process_row(self, cells: list[str]) -> bool:
        none = _NO_PROCESS.fullmatch(cells[0]) if len(cells) == 1 else None
        values = {"npu": none.group(1)} if none else self.holders.read(cells)
        if values is None:
            return False
        npu = int(values["npu"])
        chips = [chip for chip in self.chips.values() if chip.npu == npu]
        if not chips or npu in self.idle or (none and chips[0].processes is not None):
            return False
        for chip in chips:
            chip.processes = chip.processes or []
        if none:
            self.idle.add(npu)
            return True
        chip = self.chips.get((npu, int(values.get("chip", 0))))
        process = Process(int(values["pid"]), values["process"], int(values["process_mib"]))
        if chip is None or any(other.pid == process.pid and other != process for other in chip.processes):
            return False
        if process not in chip.processes:
            chip.processes.append(process)
        return True

    def end(self) -> Table:
        """What was read. Raises UnknownOutput when the box is not whole."""
        wrong = ""
        if self.title is None or len(self.kinds) < 2:
            wrong = "has no table with a title and a header"
        elif self.pending is not None:
            wrong = "has NPU {0} with its first row only".format(self.pending["npu"])
        elif not self.chips:
            wrong = "has a table without a chip"
        elif self.borders == 0 or (self.holders is None and self.borders > 1):
            wrong = "stopped before the table's end, after {0} chips".format(len(self.chips))
        if wrong:
            raise UnknownOutput("{0} {1}".format(self.what, wrong))
        words = self.kinds[1].words
        return Table(self.title[0], self.title[1], list(self.chips.values()), "HBM-Usage(MB)" in words, "Chip" in words, self.remarks)


def parse_table(text: str) -> Table:
    """Read the output of ``npu-smi info``.

    Raises UnknownOutput that names the first line that does not fit, or says where the output stopped. A text that was cut exactly
    between two cards is whole by itself: the caller compares with ``-l``, ``-m`` and the PCI bus.
    """
    reader = _TableReader()
    for number, line in _lines(reader.what, text):
        reader.line(number, line)
    return reader.end()


# ---- lists


def parse_map(text: str) -> list[Mapped]:
    """Read the output of ``npu-smi info -m``: one chip a line; chips that are no NPU are left out.

    The header decides: four columns, five with ``Chip Phy-ID``, or five with ``Slot ID`` and no ``Chip Logic ID``.
    """
    what = "npu-smi info -m"
    columns: list[str] = []
    found: dict[tuple[int, int], Mapped] = {}
    for number, line in _lines(what, text):
        if not line.strip() or _REMARK.match(line):
            continue
        if not columns:
            columns = _MAP_WORD.findall(line)
            ends = columns[:1] + columns[-1:] == ["NPU ID", "Chip Name"] and columns.count("Chip ID") == 1
            if not ends or line.split() != " ".join(columns).split() or len(set(columns)) != len(columns):
                raise _odd(what, number, line, "is no header that is known")
            continue
        words = line.split(None, len(columns) - 1)
        if len(words) != len(columns):
            raise _odd(what, number, line, "has too few columns")
        values = {_MAP_WORDS[column]: word for column, word in zip(columns, words)}
        other = values["name"].lower() in OTHER_CHIPS
        for column, word in zip(columns[:-1], words):
            own = column in ("NPU ID", "Chip ID")
            if not re.fullmatch("[0-9]+" if own or not other else "-", word) and not (column == "Slot ID" and word == "-1"):
                raise _odd(what, number, line, "has no number under {0}".format(column))
        key = (int(values["npu"]), int(values["chip"]))
        if key in found:
            raise _odd(what, number, line, "names a chip again")
        if not other:
            found[key] = Mapped(
                key[0],
                key[1],
                int(values["logical"]) if "logical" in values else None,
                int(values["physical"]) if "physical" in values else None,
            )
    if not found:
        raise UnknownOutput("{0} names no chip".format(what))
    return list(found.values())


def parse_list(text: str) -> dict[int, int | None]:
    """Read the output of ``npu-smi info -l``: card -> number of its chips, None where the list does not count them."""
    what = "npu-smi info -l"
    total = None
    found: dict[int, int | None] = {}
    last = None
    for number, key, value in _pairs(what, text):
        if key in ("Total Count", "Card Count") and total is None and value.isdigit():
            total = int(value)
        elif key == "NPU ID" and value.isdigit() and int(value) not in found:
            last = int(value)
            found[last] = None
        elif key == "Chip Count" and value.isdigit() and last is not None and found[last] is None:
            found[last] = int(value)
        elif key not in ("", "Product Name", "Serial Number") or (key and last is None):
            raise _odd(what, number, "{0} : {1}".format(key, value), "does not fit")
    counted = [count is not None for count in found.values()]
    if total is None or total != len(found) or (any(counted) and not all(counted)):
        raise UnknownOutput("{0} counts {1} cards and lists {2}".format(what, total, _numbers(found)))
    return found


def _numbers(numbers: dict[int, int | None]) -> str:
    return ", ".join(str(number) for number in sorted(numbers)) or "none"


# ---- key : value


def _pairs(what: str, text: str) -> list[tuple[int, str, str]]:
    """Line number, key and value of each line, with single blanks; a blank line has neither, and a line that goes on has no key."""
    found = []
    for number, line in _lines(what, text):
        if _REMARK.match(line):
            continue
        key, colon, value = line.partition(":")
        if line.strip() and not colon:
            raise _odd(what, number, line, "is no 'key : value'")
        found.append((number, " ".join(key.split()), " ".join(value.split())))
    return found


def _blocks(what: str, text: str) -> list[dict[str, str]]:
    """Blocks of key -> value between blank lines; no key twice in a block."""
    blocks: list[dict[str, str]] = [{}]
    for number, key, value in _pairs(what, text):
        if not key and not value:
            blocks.append({})
        elif not key or key in blocks[-1]:
            raise _odd(what, number, "{0} : {1}".format(key, value), "stands twice in its block, or goes on nothing")
        else:
            blocks[-1][key] = value
    return [block for block in blocks if block]


def _integer(what: str, block: dict[str, str], key: str) -> int:
    value = block.get(key, "")
    if not value.isdigit():
        raise UnknownOutput("{0} has {1!r} for {2!r}".format(what, value, key))
    return int(value)


def parse_reports(kind: str, text: str) -> list[Report]:
    """Read the output of ``npu-smi info -t <kind>``, for kinds that speak of chips: usages, common, temp, power, ecc, device-share.

    ``Chip ID`` ends a block in most of them and begins it in ``common``; blank lines part the blocks either way. A card whose
    ``Chip Count`` is not the number of its blocks is an error.
    """
    what = "npu-smi info -t {0}".format(kind)
    found: list[Report] = []
    counts: list[int | None] = []
    for block in _blocks(what, text):
        block = dict(block)
        if "NPU ID" in block or not found:
            found.append(Report(_integer(what, block, "NPU ID") if "NPU ID" in block else None, {}, {}))
            counts.append(_integer(what, block, "Chip Count") if "Chip Count" in block else None)
            block.pop("NPU ID", None)
            block.pop("Chip Count", None)
        if "Chip ID" in block:
            chip = _integer(what, block, "Chip ID")
            del block["Chip ID"]
            if chip in found[-1].chips or not block:
                raise UnknownOutput("{0} speaks twice of chip {1}, or says nothing about it".format(what, chip))
            found[-1].chips[chip] = block
        elif block.get("Chip Name", "").lower() == "mcu" and not found[-1].mcu:
            found[-1].mcu = {key: value for key, value in block.items() if key != "Chip Name"}
        elif block:
            raise UnknownOutput("{0} has a block that says of no chip: {1!r}".format(what, " ".join(sorted(block))[:200]))
    for report, count in zip(found, counts):
        if not report.chips or count not in (None, len(report.chips)):
            raise UnknownOutput("{0} counts {1} chips and speaks of {2}".format(what, count, _numbers(dict.fromkeys(report.chips))))
    return found


def parse_board(text: str) -> dict[str, str]:
    """Read the output of ``npu-smi info -t board`` of a card or of a chip: key -> value.

    ``PCIe Bus Info``, where it is there and not NA, is in sysfs's spelling.
    """
    what = "npu-smi info -t board"
    blocks = _blocks(what, text)
    if len(blocks) != 1:
        raise UnknownOutput("{0} speaks of {1} things at once".format(what, len(blocks)))
    board = blocks[0]
    _integer(what, board, "NPU ID")
    if not re.fullmatch(r"[\w.+-]*", board.get("Firmware Version", ""), re.ASCII):
        raise UnknownOutput("{0} has {1!r} for a version of the firmware".format(what, board["Firmware Version"][:200]))
    if board.get("PCIe Bus Info", "NA") != "NA":
        board["PCIe Bus Info"] = pci_address(board["PCIe Bus Info"])
    return board


def parse_health(text: str) -> Health:
    """Read the output of ``npu-smi info -t health`` of one chip; its information may run over several lines."""
    what = "npu-smi info -t health"
    values: dict[str, list[str]] = {}
    last = ""
    for number, key, value in _pairs(what, text):
        if key in values or (not key and value and last != "Error Information"):
            raise _odd(what, number, "{0} : {1}".format(key, value), "does not fit")
        if key:
            last = key
            values[key] = [value]
        elif value:
            values[last].append(value)
    if "Health Status" not in values or not re.fullmatch("[A-Za-z]+", values["Health Status"][0]):
        raise UnknownOutput("{0} has no Health Status".format(what))
    codes = " ".join(values.get("Error Code", [])).split()
    information = "; ".join(text.rstrip(".") for text in values.get("Error Information", []) if text)
    return Health(values["Health Status"][0], [code for code in codes if code != "NA"], "" if information == "NA" else information)


def parse_processes(text: str) -> dict[int, list[Process]]:
    """Read the output of ``npu-smi info -t proc-mem`` of one card: chip -> its processes."""
    what = "npu-smi info -t proc-mem"
    found: dict[int, list[Process]] = {}
    held: list[Process] | None = None
    count = None
    idle = False
    for number, line in _lines(what, text):
        words = line.strip()
        process = _PROCESS.fullmatch(words)
        key, colon, value = (part.strip() for part in words.partition(":"))
        if process and not idle:
            held = (held or []) + [Process(int(process.group(1)), process.group(2).strip(), int(process.group(3)))]
        elif words == "No process in device." and held is None:
            held, idle = [], True
        elif colon and key == "Chip ID" and value.isdigit() and held is not None and int(value) not in found:
            found[int(value)] = held
            held, idle = None, False
        elif colon and key == "Chip Count" and value.isdigit() and count is None:
            count = int(value)
        elif words and not _REMARK.match(words) and not (colon and key == "NPU ID" and value.isdigit() and not found and held is None):
            raise _odd(what, number, line, "does not fit")
    if not found or held is not None or count not in (None, len(found)):
        raise UnknownOutput("{0} stopped in the middle of a chip, or speaks of {1} chips and counts {2}".format(what, len(found), count))
    return found


def aicore_pct(report: Report) -> dict[int, float | None]:
    """Chip -> use of its cores, percent, of a ``usages`` or ``common`` report."""
    return {chip: _figure(_text(report, chip, "Aicore Usage Rate(%)"), 0, 100) for chip in report.chips}


def double_bit_errors(report: Report) -> dict[int, dict[str, int]]:
    """Chip -> counter -> count, of an ``ecc`` report, for the counters of errors that memory could not mend and that are not 0."""
    found = {}
    for chip, values in report.chips.items():
        counters = {key: value for key, value in values.items() if "Double Bit" in key}
        if not counters or not all(re.fullmatch("[0-9]+|NA", value) for value in counters.values()):
            raise UnknownOutput("npu-smi info -t ecc has no counters of double bit errors for chip {0}: {1!r}".format(chip, counters))
        found[chip] = {key: int(value) for key, value in counters.items() if value.strip("0") not in ("", "NA")}
    return found


def shared(report: Report) -> dict[int, bool]:
    """Chip -> whether several containers may hold it, of a ``device-share`` report."""
    words = {"True": True, "False": False}
    found = {}
    for chip in report.chips:
        word = _text(report, chip, "Device-share Status")
        if word not in words:
            raise UnknownOutput("npu-smi info -t device-share says {0!r} of chip {1}".format(word, chip))
        found[chip] = words[word]
    return found


def _text(report: Report, chip: int, key: str) -> str:
    value = report.chips[chip].get(key, "")
    if not re.fullmatch(_FIGURE + "|True|False", value):
        raise UnknownOutput("npu-smi says {0!r} for {1!r} of chip {2}".format(value, key, chip))
    return value
