# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ``nvidia-smi`` prints, as data: text in, dataclasses out. Private to the collection.

Header words decide what a column is. A line that fits no known form raises UnknownOutput that shows it; a text that does not end with
a newline was cut. A placeholder such as ``[N/A]`` is None and never 0. Lines about lost cards and corrupted infoROMs may stand
anywhere in a good output; the parsers step over them, ``read_notes`` reads them.

Source: nvidia-smi(1); captures of drivers 580 to 610.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import FAULT, OK, WARNING
from ansible_collections.ironserve.llm.plugins.module_utils._checks import UNKNOWN
from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import first_odd_line, pci_address

#: Placeholders that say that there is nothing to say.
SILENT = ("[N/A]", "N/A", "[Not Supported]", "[Requested functionality has been deprecated]")
#: Placeholders of a card that is ill. Any other text in brackets is not understood, so the card's health is unknown.
ILL = {"[GPU is lost]": FAULT, "[GPU requires reset]": FAULT, "[Unknown Error]": UNKNOWN}
HIDDEN = "[Insufficient Permissions]"

#: Unit of each figure, as its header and its cells show it.
UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "used_gpu_memory": "MiB",
    "utilization.gpu": "%",
    "power.draw": "W",
    "temperature.gpu": "",
    "ecc.errors.uncorrected.volatile.total": "",
    "count": "",
}

#: Words of a health field -> health and what it means. Others are not understood.
HEALTH_WORDS = {
    "gpu_recovery_action": {
        "None": (OK, ""),
        "Reset": (FAULT, "the driver asks for a reset of the GPU"),
        "Reboot": (FAULT, "the driver asks for a reboot"),
        "Drain P2P": (FAULT, "the driver asks to end what talks to other GPUs through it"),
        "Drain and Reset": (FAULT, "the driver asks to drain and reset the GPU"),
    },
    "retired_pages.pending": {"No": (OK, ""), "Yes": (WARNING, "memory pages wait for a reset to be retired")},
    "remapped_rows.pending": {"No": (OK, ""), "Yes": (WARNING, "memory rows wait for a reset to be remapped")},
    "remapped_rows.failure": {"No": (OK, ""), "Yes": (FAULT, "memory rows could not be remapped, the card must be replaced")},
    "compute_mode": {
        "Default": (OK, ""),
        "Exclusive_Process": (OK, ""),
        "Exclusive_Thread": (OK, ""),
        "Prohibited": (FAULT, "compute mode is Prohibited, nothing may run (nvidia-smi -c DEFAULT)"),
    },
    "fabric.state": {
        "Completed": (OK, ""),
        "In Progress": (FAULT, "the NVLink fabric is not ready, CUDA does not start (is nvidia-fabricmanager running?)"),
        "Not Started": (FAULT, "the NVLink fabric is not ready, CUDA does not start (is nvidia-fabricmanager running?)"),
    },
    "fabric.status": {"Success": (OK, "")},
    "mig.mode.current": {"Enabled": (OK, ""), "Disabled": (OK, "")},
}
_SEVERITY = (OK, WARNING, UNKNOWN, FAULT)

#: Product name -> architecture, for drivers that do not know ``compute_cap``. The first that fits.
_ARCHITECTURES = (
    (r"\bG?B300\b", "sm_103"),
    (r"\bG?B[12]00\b", "sm_100"),
    (r"\bG?H(?:100|200|800|20|800L)\b", "sm_90"),
    (r"\bRTX PRO \d{4} Blackwell|\bRTX 50\d0\b", "sm_120"),
    (r"\bL(?:2|4|20|40|40S|40G)\b|\bRTX 40\d0\b|\bRTX \d{4} Ada\b", "sm_89"),
    (r"\bA(?:100|800|30|30X)\b", "sm_80"),
    (r"\bA(?:2|10|10G|10M|16|40)\b|\bRTX 30\d0\b|\bRTX A\d{4}\b", "sm_86"),
    (r"\bT(?:4|4G|10)\b|\bRTX 20\d0\b|\bTITAN RTX\b|\bQuadro RTX\b", "sm_75"),
    (r"\b(?:PG5\d\d-\d+|V100|V100S|TITAN V|GV100)\b", "sm_70"),
    (r"\b(?:P4|P6|P40|GTX 10\d0|TITAN Xp)\b", "sm_61"),
    (r"\bP100\b", "sm_60"),
)

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_GPU_UUID = "GPU-" + _UUID
_MIG_UUID = "MIG-(?:{0}|GPU-{0}/\\d+/\\d+)".format(_UUID)
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_DRIVER = r"\d{3}\.\d{2,3}(?:\.\d{2})?"
_CUDA = r"\d{1,2}\.\d"
_LOST = re.compile(
    r"^Unable to determine the device handle for GPU\s*(?:({0})|(\d+)(?::\s*({0}))?)(?::\s*(.*))?$".format(_ADDRESS), re.IGNORECASE
)
_INFOROM = re.compile(r"^WARNING: infoROM is corrupted at gpu ({0})$".format(_ADDRESS), re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\ufffd]")


@dataclasses.dataclass
class Lost:
    """A card that the tool names and cannot open.

    Attributes:
        index: its number, None where the message has none.
        address: PCI address as sysfs writes it; empty where the message has none.
        reason: what the driver says.
    """

    index: int | None
    address: str
    reason: str


@dataclasses.dataclass
class Notes:
    """Lines that are no part of a table.

    Attributes:
        lost: cards that cannot be opened.
        inforom: PCI addresses of cards with a corrupted infoROM.
        warnings: other warnings, as printed.
    """

    lost: list[Lost] = dataclasses.field(default_factory=list)
    inforom: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Gpu:
    """A row of ``--query-gpu``. A field that was not asked for, or has a placeholder, is None or empty.

    Attributes:
        index: number of the card.
        name, uuid, address, driver_version, compute_cap: as printed, the PCI address as sysfs writes it.
        count: how many cards the tool counts on the host.
        memory_total_mib, memory_used_mib, memory_free_mib: MiB.
        utilisation_pct, temperature_c, power_w: percent, degrees Celsius, watts.
        ecc_uncorrected: uncorrected memory errors since the driver was loaded.
        words: health field -> its word.
        odd: field -> its placeholder, where that is none of ``SILENT``.
    """

    index: int
    name: str = ""
    uuid: str = ""
    address: str = ""
    driver_version: str = ""
    compute_cap: str = ""
    count: int | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None
    utilisation_pct: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    ecc_uncorrected: int | None = None
    words: dict[str, str] = dataclasses.field(default_factory=dict)
    odd: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class MigDevice:
    """A MIG device as ``-L`` lists it: its number on the GPU, its profile (``3g.40gb``) and its uuid."""

    device: int
    profile: str
    uuid: str


@dataclasses.dataclass
class Listed:
    """A card as ``-L`` lists it."""

    index: int
    name: str
    uuid: str
    mig: list[MigDevice] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Process:
    """A process on a card.

    Attributes:
        gpu: number of the card; None where the row names it otherwise.
        gi, ci: numbers of GPU instance and compute instance; None where there is no MIG.
        uuid, address: uuid and PCI address of the card, empty where the row does not name them.
        pid: process id; 0 where the tool hides it.
        kind: ``C``, ``G``, ``C+G`` or ``M+C``; empty where the row does not say.
        name: name as printed, the table cuts it; empty where the tool hides it.
        memory_mib: device memory, MiB; None where the tool does not say.
    """

    gpu: int | None = None
    gi: int | None = None
    ci: int | None = None
    uuid: str = ""
    address: str = ""
    pid: int = 0
    kind: str = ""
    name: str = ""
    memory_mib: int | None = None


@dataclasses.dataclass
class Versions:
    """Versions of the tool, the driver and the newest CUDA that the driver carries (not of an installed toolkit)."""

    tool: str
    driver: str
    cuda: str


@dataclasses.dataclass
class TableGpu:
    """A card of the table that the bare tool prints; its name may be cut, ``ERR!`` and ``N/A`` are None."""

    index: int
    name: str
    address: str
    fan_pct: int | None
    temperature_c: int | None
    power_w: int | None
    power_limit_w: int | None
    memory_used_mib: int | None
    memory_total_mib: int | None
    utilisation_pct: int | None
    ecc: str
    compute_mode: str
    mig: bool | None


@dataclasses.dataclass
class MigRow:
    """A MIG device of the table: the memory is that of its GPU instance, which several compute instances may share."""

    gpu: int
    gi: int
    ci: int
    device: int
    memory_used_mib: int
    memory_total_mib: int


@dataclasses.dataclass
class Table:
    """What the bare tool prints."""

    versions: Versions
    gpus: list[TableGpu]
    mig: list[MigRow]
    processes: list[Process]


@dataclasses.dataclass
class QueryGpu:
    """What is used of a card in ``-q``; ``mig`` and ``ecc`` are None where the card has none."""

    address: str
    uuid: str
    minor: int | None
    mig: bool | None
    ecc: bool | None


@dataclasses.dataclass
class QueryLog:
    """What is used of ``-q``."""

    driver: str
    cuda: str
    gpus: list[QueryGpu]


def _odd(what: str, number: int, line: str, why: str) -> UnknownOutput:
    return UnknownOutput("nvidia-smi {0}: line {1}, {2}: {3!r}".format(what, number, why, line[:200]))


def read_notes(line: str, notes: Notes) -> bool:
    """Put a line about a lost card, an infoROM or another warning into ``notes``; returns whether it was one."""
    text = line.strip()
    if not text.startswith(("Unable to", "WARNING:")):
        return False
    lost = _LOST.match(text)
    inforom = _INFOROM.match(text)
    if lost:
        address = lost.group(1) or lost.group(3) or ""
        notes.lost.append(
            Lost(
                int(lost.group(2)) if lost.group(2) else None,
                pci_address(address) if address else "",
                (lost.group(4) or "no reason given").strip(),
            )
        )
    elif inforom:
        notes.inforom.append(pci_address(inforom.group(1)))
    elif text.startswith("WARNING:"):
        notes.warnings.append(text)
    else:
        return False
    return True


def split(text: str, what: str) -> tuple[list[tuple[int, str]], Notes]:
    """Split an output into its numbered lines, without blank ones, and its notes.

    Raises UnknownOutput when the text is cut or holds anything but text.
    """
    notes = Notes()
    body = []
    if text and not text.endswith("\n"):
        raise UnknownOutput("nvidia-smi {0}: the output ends in the middle of a line: {1!r}".format(what, text.splitlines()[-1][:200]))
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if _CONTROL.search(line):
            raise _odd(what, number, line, "not text")
        if line.strip() and not read_notes(line, notes):
            body.append((number, line.rstrip()))
    return body, notes


# ---- CSV


def _placeholder(cell: str) -> bool:
    return cell in SILENT or (cell.startswith("[") and cell.endswith("]"))


@dataclasses.dataclass
class _Row:
    """One row of a CSV: field -> cell, and where it stands."""

    what: str
    number: int
    line: str
    cells: dict[str, str]

    def odd(self, why: str) -> UnknownOutput:
        return _odd(self.what, self.number, self.line, why)

    def text(self, field: str, pattern: str = "") -> str:
        """A cell that fits ``pattern``; empty where it was not asked for or is a placeholder."""
        cell = self.cells.get(field, "")
        if field in self.cells and not cell:
            raise self.odd("{0} is empty".format(field))
        if _placeholder(cell):
            return ""
        if cell and pattern and not re.match("^(?:{0})$".format(pattern), cell):
            raise self.odd("{0} {1!r} is not understood".format(field, cell))
        return cell

    def figure(self, field: str) -> Any:
        """A whole number, or watts with their fraction, in the field's unit; None like an empty text."""
        unit = UNITS[field]
        pattern = r"-?\d+" + (r"\.\d+" if unit == "W" else "") + (" " + unit if unit else "")
        cell = self.text(field, pattern)
        number = cell.split(" ")[0]
        return None if not cell else float(number) if unit == "W" else int(number)

    def address(self, field: str) -> str:
        cell = self.text(field, _ADDRESS)
        return pci_address(cell) if cell else ""


def _csv(text: str, what: str, needed: tuple[str, ...]) -> tuple[list[_Row], Notes]:
    """Rows of a CSV with header and units.

    A process name may hold commas: where it is the last column, it takes all that is left.
    """
    body, notes = split(text, what)
    if not body:
        if notes.lost:
            return [], notes
        raise UnknownOutput("nvidia-smi {0}: the output is empty".format(what))
    number, header = body[0]
    fields = []
    for cell in header.split(","):
        match = re.match(r"^([a-z][A-Za-z0-9_.]*)(?: \[([^\]]+)\])?$", cell.strip())
        if not match:
            raise _odd(what, number, header, "{0!r} is no column header".format(cell.strip()))
        name, unit = match.groups()
        if UNITS.get(name, unit or "") != (unit or ""):
            raise _odd(what, number, header, "{0} in {1!r}, not {2!r}".format(name, unit, UNITS[name]))
        fields.append(name)
    absent = [name for name in needed if name not in fields]
    if absent or len(set(fields)) < len(fields):
        raise _odd(what, number, header, "the header lacks {0}".format(", ".join(absent)) if absent else "a column stands twice")
    rows = []
    for number, line in body[1:]:
        cells = line.split(",", len(fields) - 1) if fields[-1] == "process_name" else line.split(",")
        if len(cells) != len(fields):
            raise _odd(what, number, line, "{0} cells under {1} headers".format(len(cells), len(fields)))
        rows.append(_Row(what, number, line, dict(zip(fields, (cell.strip() for cell in cells)))))
    return rows, notes


def parse_gpus(text: str, needed: tuple[str, ...] = ("index", "name", "memory.total")) -> list[Gpu]:
    """Parse ``--query-gpu=... --format=csv`` of whatever fields; those ``needed`` must be among them.

    No row at all is allowed only where a note says that cards are lost.
    """
    what = "--query-gpu"
    rows, notes = _csv(text, what, needed)
    if not rows and not notes.lost:
        raise UnknownOutput("nvidia-smi {0}: a header without a card".format(what))
    gpus = []
    for row in rows:
        index = row.text("index", r"\d+")
        if not index:
            raise row.odd("no index")
        gpu = Gpu(
            index=int(index),
            name=row.text("name"),
            uuid=row.text("uuid", _GPU_UUID),
            address=row.address("pci.bus_id"),
            driver_version=row.text("driver_version", _DRIVER),
            compute_cap=row.text("compute_cap", r"\d{1,2}\.\d"),
            count=row.figure("count"),
            memory_total_mib=row.figure("memory.total"),
            memory_used_mib=row.figure("memory.used"),
            memory_free_mib=row.figure("memory.free"),
            utilisation_pct=row.figure("utilization.gpu"),
            temperature_c=row.figure("temperature.gpu"),
            power_w=row.figure("power.draw"),
            ecc_uncorrected=row.figure("ecc.errors.uncorrected.volatile.total"),
        )
        for field, known in HEALTH_WORDS.items():
            word = row.text(field)
            if word and word not in known and any(whole.startswith(word) for whole in known):
                raise row.odd("{0} {1!r} is cut".format(field, word))
            if word:
                gpu.words[field] = word
        gpu.odd = {field: cell for field, cell in row.cells.items() if _placeholder(cell) and cell not in SILENT}
        parts = [part for part in (gpu.memory_used_mib, gpu.memory_free_mib) if part is not None]
        if gpu.memory_total_mib is not None and sum(parts) > gpu.memory_total_mib:
            raise row.odd("more memory used and free than there is")
        if gpu.utilisation_pct is not None and not 0 <= gpu.utilisation_pct <= 100:
            raise row.odd("use is no percentage")
        gpus.append(gpu)
    for key in ("index", "uuid", "address"):
        values = [getattr(gpu, key) for gpu in gpus if getattr(gpu, key) not in (None, "")]
        twice = sorted({str(value) for value in values if values.count(value) > 1})
        if twice:
            raise UnknownOutput("nvidia-smi {0}: two cards with the {1} {2}".format(what, key, ", ".join(twice)))
    return gpus


def parse_processes(text: str, needed: tuple[str, ...] = ("pid", "gpu_uuid")) -> list[Process]:
    """Parse ``--query-compute-apps=... --format=csv``; the fields ``needed`` must be among the columns. No process is no row."""
    processes: list[Process] = []
    for row in _csv(text, "--query-compute-apps", needed)[0]:
        uuid = row.text("gpu_uuid", _GPU_UUID + "|" + _MIG_UUID)
        if not uuid:
            raise row.odd("no card")
        processes.append(
            Process(
                uuid=uuid,
                address=row.address("gpu_bus_id"),
                pid=int(row.text("pid", r"\d+") or "0"),
                name=row.text("process_name"),
                memory_mib=row.figure("used_gpu_memory"),
            )
        )
        if processes[-1].pid and processes[-1] in processes[:-1]:
            raise row.odd("a process that stands twice")
    return processes


# ---- -L and --version


def parse_list(text: str) -> list[Listed]:
    """Parse ``-L``: cards and, indented under each, its MIG devices."""
    what = "-L"
    body, notes = split(text, what)
    cards: list[Listed] = []
    for number, line in body:
        card = re.match(r"^GPU (\d+): (\S.*\S) \(UUID: ({0})\)$".format(_GPU_UUID), line)
        mig = re.match(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: ({0})\)$".format(_MIG_UUID), line)
        if card:
            cards.append(Listed(int(card.group(1)), card.group(2), card.group(3)))
        elif mig and cards:
            cards[-1].mig.append(MigDevice(int(mig.group(2)), mig.group(1), mig.group(3)))
        else:
            raise _odd(what, number, line, "neither a GPU nor a MIG device")
    if not cards and not notes.lost:
        raise UnknownOutput("nvidia-smi {0}: no card".format(what))
    numbers: dict[str, list[Any]] = {
        "number": [card.index for card in cards],
        "uuid": [card.uuid for card in cards] + [device.uuid for card in cards for device in card.mig],
        "MIG device": [(card.index, device.device) for card in cards for device in card.mig],
    }
    for key, values in numbers.items():
        if len(set(values)) < len(values):
            raise UnknownOutput("nvidia-smi {0}: a {1} stands twice".format(what, key))
    return cards


def parse_versions(text: str) -> Versions:
    """Parse ``--version``. Since driver 610 the driver is the ``KMD`` and CUDA the ``CUDA UMD``; the old lines say so."""
    what = "--version"
    found: dict[str, str] = {}
    for number, line in split(text, what)[0]:
        key, colon, value = line.partition(":")
        key, value = " ".join(key.split()).lower(), value.strip()
        if not colon or key in found or not value:
            raise _odd(what, number, line, "no line of a version")
        found[key] = value
    chosen = []
    for keys, pattern in (
        (("nvidia-smi version",), _DRIVER),
        (("nvml version",), _DRIVER),
        (("driver version", "kmd version"), _DRIVER),
        (("cuda version", "cuda umd version"), _CUDA),
    ):
        values = [found[key] for key in keys if key in found and not found[key].startswith("Deprecated")]
        if len(values) != 1 or not re.match("^{0}$".format(pattern), values[0]):
            raise UnknownOutput("nvidia-smi {0}: {1} is {2}".format(what, " or ".join(keys), ", ".join(map(repr, values)) or "not there"))
        chosen += values
    tool, library, driver, cuda = chosen
    # One version is never the beginning of another, and the library says the driver's version without its last part.
    if tool != driver and (tool.startswith(driver + ".") or driver.startswith(tool + ".")):
        raise UnknownOutput("nvidia-smi {0}: tool {1} and driver {2}, one of them is cut".format(what, tool, driver))
    if library != driver and not driver.startswith(library + "."):
        raise UnknownOutput("nvidia-smi {0}: library {1} and driver {2} differ".format(what, library, driver))
    return Versions(tool, driver, cuda)


# ---- the table


@dataclasses.dataclass
class _Box:
    """A box of the table: groups of rows (line number, line, cells) between borders, before and after the double line."""

    head: list[list[tuple[int, str, list[str]]]]
    groups: list[list[tuple[int, str, list[str]]]]

    def words(self) -> list[str]:
        return [word for group in self.head for _number, _line, cells in group for cell in cells for word in cell.split()]

    def place(self, words: str) -> tuple[int, int]:
        """Row and cell of the last head group that hold these header words; (-1, -1) where none does."""
        for row, (_number, _line, cells) in enumerate(self.head[-1]):
            for number, cell in enumerate(cells):
                if words in " ".join(cell.split()):
                    return row, number
        return -1, -1


def _boxes(body: list[tuple[int, str]]) -> list[_Box]:
    what = "table"
    boxes: list[_Box] = []
    bordered = False
    for number, line in body:
        text = line.strip()
        if re.match(r"^[+|]-[-+]*-[+|]$", text):
            # A border right after a border opens the next box; otherwise it ends a group of rows.
            if bordered or not boxes:
                boxes.append(_Box([], [[]]))
            elif boxes[-1].groups[-1]:
                boxes[-1].groups.append([])
        elif re.match(r"^\|=[=+|]*=\|$", text) and boxes and not boxes[-1].head and boxes[-1].groups[-1]:
            boxes[-1].head, boxes[-1].groups = boxes[-1].groups, [[]]
        elif text.startswith("|") and text.endswith("|") and len(text) > 1 and boxes:
            boxes[-1].groups[-1].append((number, line, text[1:-1].split("|")))
        elif boxes or not re.match(r"^\w{3} \w{3} +\d{1,2} \d\d:\d\d:\d\d \d{4}$", text):
            raise _odd(what, number, line, "no row of a table")
        bordered = text.startswith("+-") and bool(boxes[-1].head)
    for box in boxes:
        if not box.head:
            raise UnknownOutput("nvidia-smi {0}: a box without a header".format(what))
        if box.groups[-1]:
            number, line, _cells = box.groups[-1][-1]
            raise _odd(what, number, line, "the box ends here without its border")
        box.groups.pop()
    return boxes


def _whole(text: str, unit: str) -> int | None:
    match = re.match(r"^(\d+)" + unit + "$", text)
    return int(match.group(1)) if match else None


def _match(pattern: str, text: str, row: tuple[int, str, list[str]]) -> Any:
    found = re.match("^" + pattern + "$", " ".join(text.split()))
    if not found:
        raise _odd("table", row[0], row[1], "{0!r} does not fit its header".format(text.strip()))
    return found


_HEADLINE = "NVIDIA-SMI ({0}) (?:Driver|KMD) Version: ({0}) CUDA (?:UMD )?Version: ({1})".format(_DRIVER, _CUDA)

#: Header words of a card -> what stands under them. ``{0}`` is anything the table prints where it has no figure.
_CARD_CELLS = {
    "GPU Name": r"(\d+) (\S.*?)(?: (?:On|Off|N/A|ERR!))?",
    "Bus-Id": r"(" + _ADDRESS + r") (?:On|Off|N/A|ERR!)",
    "ECC": r"(\d+|On|Off|{0})",
    "Fan Temp Perf": r"(\d+%|{0}) (\d+C|{0}) (?:P\d+|{0}) (\d+W|Off|{0}) / (\d+W|{0})",
    "Memory-Usage": r"(?:(\d+)MiB / (\d+)MiB|(?:{0})(?: / (?:{0}))?)",
    "GPU-Util Compute M.": r"(\d+%|{0}) (\S.*)",
    "MIG M.": r"(Enabled|Disabled|{0})\*?",
}
_NO_FIGURE = r"N/A|ERR!|Unknown Error|Not Supported|\[[^\]]*\]"


def _table_gpu(box: _Box, group: list[tuple[int, str, list[str]]]) -> TableGpu:
    head = box.head[-1]
    shape = [len(cells) for _number, _line, cells in group]
    if shape != [len(cells) for _number, _line, cells in head]:
        raise _odd("table", group[0][0], group[0][1], "not as many rows and cells as the header")
    at: dict[str, Any] = {}
    for words, pattern in _CARD_CELLS.items():
        row, cell = box.place(words)
        if row >= 0:
            at[words] = _match(pattern.replace("{0}", _NO_FIGURE), group[row][2][cell], group[row])
        elif words != "MIG M.":
            raise _odd("table", head[0][0], head[0][1], "the header lacks {0}".format(words))
    state, memory = at["Fan Temp Perf"], at["Memory-Usage"]
    return TableGpu(
        index=int(at["GPU Name"].group(1)),
        name=at["GPU Name"].group(2),
        address=pci_address(at["Bus-Id"].group(1)),
        fan_pct=_whole(state.group(1), "%"),
        temperature_c=_whole(state.group(2), "C"),
        power_w=_whole(state.group(3), "W"),
        power_limit_w=_whole(state.group(4), "W"),
        memory_used_mib=int(memory.group(1)) if memory.group(1) else None,
        memory_total_mib=int(memory.group(2)) if memory.group(2) else None,
        utilisation_pct=_whole(at["GPU-Util Compute M."].group(1), "%"),
        ecc=at["ECC"].group(1),
        compute_mode=at["GPU-Util Compute M."].group(2),
        mig={"Enabled": True, "Disabled": False}.get(at["MIG M."].group(1)) if "MIG M." in at else None,
    )


def _table_mig(box: _Box) -> list[MigRow]:
    ids, memory = box.place("GPU GI CI MIG"), box.place("Memory-Usage")
    if ids[0] < 0 or box.place("ID ID Dev") != (ids[0] + 1, ids[1]) or memory[0] != ids[0]:
        number, line, _cells = box.head[-1][0]
        raise _odd("table", number, line, "a MIG header that is not known")
    rows = []
    for group in box.groups:
        row = group[0]
        if len(group) == 1 and "No MIG devices found" in row[1]:
            continue
        if len(group) != 2 or len(row[2]) != len(box.head[-1][ids[0]][2]):
            raise _odd("table", row[0], row[1], "not the two rows of a MIG device")
        gpu, gi, ci, device = _match(r"(\d+) (\d+) (\d+) (\d+)", row[2][ids[1]], row).groups()
        used, total = _match(r"(\d+)MiB / (\d+)MiB", row[2][memory[1]], row).groups()
        rows.append(MigRow(int(gpu), int(gi), int(ci), int(device), int(used), int(total)))
    return rows


def _table_processes(box: _Box) -> list[Process]:
    words = box.words()
    with_mig = "GI" in words
    found = []
    rows = [row for group in box.groups for row in group]
    if not rows or not {"PID", "Type", "Usage"} <= set(words):
        number, line, _cells = box.head[-1][0]
        raise _odd("table", number, line, "a list of processes without an end")
    for row in rows:
        text = " ".join("|".join(row[2]).split())
        if text == "No running processes found" and len(rows) == 1:
            continue
        number = r"(\d+|N/A)"
        pattern = r"(\d+) {0}(\d+) ([A-Z](?:\+[A-Z])*)(?: (.*?))? (\d+MiB|N/A)".format("{0} {0} ".format(number) if with_mig else "()()")
        gpu, gi, ci, pid, kind, name, memory = _match(pattern, text, row).groups()
        found.append(
            Process(
                gpu=int(gpu),
                gi=int(gi) if gi and gi.isdigit() else None,
                ci=int(ci) if ci and ci.isdigit() else None,
                pid=int(pid),
                kind=kind,
                name=name or "",
                memory_mib=_whole(memory, "MiB"),
            )
        )
        if found[-1] in found[:-1]:
            raise _odd("table", row[0], row[1], "a process that stands twice")
    return found


def parse_table(text: str) -> Table:
    """Parse what the bare tool prints: versions, cards, MIG devices, processes."""
    body, notes = split(text, "table")
    boxes = _boxes(body)
    if not boxes:
        raise UnknownOutput("nvidia-smi table: no table in {0}".format(first_odd_line(text)))
    if len(boxes[0].head) != 2 or len(boxes[0].head[0]) != 1:
        raise UnknownOutput("nvidia-smi table: the first box is no box of cards")
    row = boxes[0].head[0][0]
    versions = Versions(*_match(_HEADLINE, "|".join(row[2]), row).groups())
    table = Table(versions, [_table_gpu(boxes[0], group) for group in boxes[0].groups], [], [])
    seen = ["cards"]
    for box in boxes[1:]:
        words = box.words()
        kind = "mig" if words[:2] == ["MIG", "devices:"] else "processes" if words[:1] == ["Processes:"] else "unknown"
        if kind == "unknown" or kind in seen:
            number, line, _cells = box.head[0][0]
            raise _odd("table", number, line, "a box that is not known, or stands twice")
        seen.append(kind)
        if kind == "mig":
            table.mig = _table_mig(box)
        else:
            table.processes = _table_processes(box)
    if "processes" not in seen or (any(gpu.mig for gpu in table.gpus) and "mig" not in seen):
        raise UnknownOutput("nvidia-smi table: the list of {0} is missing".format("MIG devices" if "processes" in seen else "processes"))
    numbers: list[list[Any]] = [
        [gpu.index for gpu in table.gpus],
        [gpu.address for gpu in table.gpus],
        [(mig.gpu, mig.device) for mig in table.mig],
        [(mig.gpu, mig.gi, mig.ci) for mig in table.mig],
    ]
    if (not table.gpus and not notes.lost) or any(len(set(values)) < len(values) for values in numbers):
        raise UnknownOutput("nvidia-smi table: no card, or one that stands twice")
    places = {(mig.gpu, mig.gi, mig.ci) for mig in table.mig}
    indexes = {gpu.index for gpu in table.gpus}
    for process in table.processes:
        place = (process.gpu, process.gi, process.ci)
        if process.gpu not in indexes or (process.gi is not None and place not in places):
            raise UnknownOutput("nvidia-smi table: process {0} is on a card that is not in the table".format(process.pid))
    return table


# ---- -q and topo -m


def parse_query_log(text: str) -> QueryLog:
    """Parse what is used of ``-q``: versions, and of each card its uuid, minor number, MIG and ECC mode."""
    what = "-q"
    top: dict[str, str] = {}
    cards: list[tuple[str, dict[str, str]]] = []
    path: list[tuple[int, str]] = []
    for number, line in split(text, what)[0]:
        card = re.match("^GPU ({0})$".format(_ADDRESS), line)
        if card:
            cards.append((pci_address(card.group(1)), {}))
            path = []
        elif not re.match(r"^=+NVSMI LOG=+$", line):
            depth = len(line) - len(line.lstrip())
            key, colon, value = (part.strip() for part in line.partition(" : "))
            if bool(cards) != bool(depth) or not (colon or cards):
                raise _odd(what, number, line, "neither a value of the host nor one of a card")
            # A line without a value is the title of those that are further in.
            path = [(other, name) for other, name in path if other < depth] + [(depth, key)]
            if colon:
                (cards[-1][1] if cards else top)[" / ".join(name for _depth, name in path)] = value
    driver = top.get("Driver Version") or top.get("KMD Version") or ""
    cuda = top.get("CUDA Version") or top.get("CUDA UMD Version") or ""
    if not re.match("^{0}$".format(_DRIVER), driver) or not re.match("^{0}$".format(_CUDA), cuda):
        raise UnknownOutput("nvidia-smi {0}: driver {1!r} and CUDA {2!r} are no versions".format(what, driver, cuda))
    if not cards or top.get("Attached GPUs") != str(len(cards)):
        raise UnknownOutput("nvidia-smi {0}: {1} cards, {2} attached".format(what, len(cards), top.get("Attached GPUs", "unknown")))
    gpus = []
    modes = {"Enabled": True, "Disabled": False, "N/A": None}
    for address, values in cards:
        keys = ("GPU UUID", "Minor Number", "MIG Mode / Current", "ECC Mode / Current", "PCI / Bus Id")
        absent = [key for key in keys if key not in values]
        if absent:
            raise UnknownOutput("nvidia-smi {0}: card {1} has no {2}".format(what, address, ", ".join(absent)))
        uuid, minor, mig, ecc, bus = (values[key] for key in keys)
        fits = re.match("^{0}$".format(_GPU_UUID), uuid) and (minor.isdigit() or minor == "N/A") and mig in modes and ecc in modes
        if not fits or pci_address(bus) != address:
            raise UnknownOutput(
                "nvidia-smi {0}: card {1} has uuid {2!r}, minor {3!r}, MIG {4!r}, ECC {5!r}, bus id {6!r}".format(
                    what, address, uuid, minor, mig, ecc, bus
                )
            )
        # The firmware of the GPU's own processor is the driver's.
        firmware = values.get("GSP Firmware Version", "")
        if firmware != driver and firmware.startswith(driver + "."):
            raise UnknownOutput("nvidia-smi {0}: driver {1} is cut, the firmware is {2}".format(what, driver, firmware))
        gpus.append(QueryGpu(address, uuid, int(minor) if minor.isdigit() else None, modes[mig], modes[ecc]))
    return QueryLog(driver, cuda, gpus)


def parse_topology(text: str) -> dict[int, dict[int, str]]:
    """Parse ``topo -m``: card -> other card -> how they are connected (``NV18``, ``PIX``, ``SYS``, ...). NICs are left out.

    The affinity columns have a tab too many in some versions; only the matrix is read, and it must be symmetric.
    """
    what = "topo -m"
    body = split(re.sub("\x1b\\[[0-9;]*m", "", text), what)[0]
    if not body:
        raise UnknownOutput("nvidia-smi {0}: the output is empty".format(what))
    number, header = body[0]
    columns = []
    for cell in [cell.strip() for cell in header.split("\t")][1:]:
        if not re.match(r"^(?:GPU|NIC)\d+$|^(?:mlx|bnxt|irdma|cxgb|rocep|ib)\w*$", cell):
            break
        columns.append(cell)
    if not columns or "CPU Affinity" not in header:
        raise _odd(what, number, header, "no header of a matrix")
    matrix: dict[str, dict[str, str]] = {}
    for number, line in body[1:]:
        cells = [cell.strip() for cell in line.split("\t")]
        if cells[0] == "Legend:":
            break
        if cells[0] not in columns or cells[0] in matrix or len(cells) <= len(columns):
            raise _odd(what, number, line, "no row of the matrix")
        row = dict(zip(columns, cells[1:]))
        for other, word in row.items():
            if not re.match(r"^(?:NV\d+|SYS|NODE|PHB|PXB|PIX|PSB|N/A)$", word) and not (word == "X" and other == cells[0]):
                raise _odd(what, number, line, "{0!r} is no connection".format(word))
        matrix[cells[0]] = row
    if sorted(matrix) != sorted(columns):
        raise UnknownOutput("nvidia-smi {0}: rows {1}, columns {2}".format(what, ", ".join(matrix), ", ".join(columns)))
    for one in columns:
        for other in columns:
            if matrix[one][other] != matrix[other][one]:
                raise UnknownOutput("nvidia-smi {0}: {1} and {2} do not agree how they are connected".format(what, one, other))
    return {
        int(one[3:]): {int(other[3:]): word for other, word in matrix[one].items() if other.startswith("GPU") and other != one}
        for one in columns
        if one.startswith("GPU")
    }


# ---- meanings


def judge(gpu: Gpu, more: tuple[tuple[str, str], ...] = ()) -> tuple[str, str]:
    """Health of a card and why it is not ok: the worst of what its fields say and of ``more``. What is not understood is ``unknown``."""
    found = list(more)
    for field, text in sorted(gpu.odd.items()):
        if text in ILL:
            found.append((ILL[text], "{0} {1}".format(field, text)))
        elif text != HIDDEN or field in HEALTH_WORDS or field.startswith("ecc."):
            found.append((UNKNOWN, "{0} {1}".format(field, text)))
    for field, word in sorted(gpu.words.items()):
        found.append(HEALTH_WORDS[field].get(word, (UNKNOWN, "{0} says {1!r}".format(field, word))))
    if gpu.ecc_uncorrected:
        found.append((WARNING, "{0} uncorrected memory errors since the driver was loaded".format(gpu.ecc_uncorrected)))
    worst = max([health for health, _detail in found] or [OK], key=_SEVERITY.index)
    return worst, "; ".join(detail for health, detail in found if health != OK)


def product(name: str) -> str:
    """Normal form of a product name: without the vendor's, which drivers before 470 do not print."""
    words = name.split()
    return " ".join(words[1:] if words[:1] == ["NVIDIA"] else words)


def architecture(compute_cap: str, name: str) -> str:
    """``sm_90`` from the compute capability, or from the product's name; ``unknown`` for a product that is not known."""
    if compute_cap:
        return "sm_" + compute_cap.replace(".", "")
    for pattern, found in _ARCHITECTURES:
        if re.search(pattern, name):
            return found
    return "unknown"


#: Words of a failure -> what it means and what to do; then exit statuses.
_MEANINGS = (
    (
        "Driver/library version mismatch",
        "the loaded kernel module is not of the library's version; after a driver update reload the module or reboot",
    ),
    (
        "Failed to initialize NVML: Unknown Error",
        "in a container: its device nodes were taken away, as 'systemctl daemon-reload' on the host does, so make the container anew; "
        "on a host: look for NVRM and Xid in the kernel log",
    ),
    (
        "couldn't communicate with the NVIDIA driver",
        "the kernel does not run the driver; load the module nvidia, after a kernel update build it anew",
    ),
    (
        "No devices were found",
        "the driver runs and has no GPU; look for NVRM and Xid in the kernel log, and who else holds the PCI devices",
    ),
)
_STATUSES = {
    2: "an argument that this version does not know",
    3: "not available on these cards",
    4: "no permission; run as root",
    6: "no such object; look for NVRM and Xid in the kernel log",
    8: "a power cable is missing or loose; check the cards' power",
    9: "the kernel does not run the driver; load the module nvidia, after a kernel update build it anew",
    10: "interrupts of a card do not arrive; look for NVRM in the kernel log",
    12: "the library libnvidia-ml.so.1 is not found; install the driver's libraries, or name their place in the platform's tool environment",
    13: "the library libnvidia-ml.so.1 is too old for the tool; install both from one driver version",
    14: "the infoROM of a card is corrupted",
    15: "a GPU fell off the bus, new CUDA processes fail on the healthy GPUs too; reset it or reboot",
}


def is_failure(text: str) -> bool:
    """Whether an output is one of the tool's known failures, whatever its exit status."""
    return any(words in text for words, _meaning in _MEANINGS)


def failure(command: str, rc: int, stdout: str, stderr: str) -> str:
    """What a call that gave no data means and what to do, in one sentence with the tool, the status and the first line it said."""
    meaning = _STATUSES.get(rc, "look for NVRM and Xid in the kernel log")
    for words, text in _MEANINGS:
        if words in stdout or words in stderr:
            meaning = text
            break
    library = re.search(r"NVML library version: (\S+)", stdout + "\n" + stderr)
    return "{0} ended with status {1} and said {2}{3}: {4}".format(
        command, rc, first_odd_line(stderr, stdout), " (library {0})".format(library.group(1)) if library else "", meaning
    )
