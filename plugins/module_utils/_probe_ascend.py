# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Probe of Huawei's Ascend NPUs, by ``npu-smi``, ``hccn_tool``, the driver's files and sysfs. Private to the collection.

A chip is a card: an Atlas A3 has two per NPU, a 310P Duo too. The tool leaves out a card whose ids it cannot read, without a word, so
nothing it lists is believed alone: the table, ``-l``, ``-m`` and the PCI bus must name the same cards.
"""

from __future__ import annotations

import re
from typing import Callable, Iterable, TypeVar

from ansible_collections.ironserve.llm.plugins.module_utils import _hccn_tool, _npu_smi
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import FAULT, OK, WARNING, Accelerators, Card, Holder
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARN, Check
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._run import Completed
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor, first_odd_line

TOOL = "npu-smi"
LINK_TOOL = "hccn_tool"
PCI_VENDOR = "0x19e5"

#: Device ids of NPUs (d500 310P, d801 910A, d802 910B, d803 A3). The PCI class cannot tell: the vendor's processors have compression
#: engines of the same class. A function with the device id of a card that the tool lists is a card as well, whatever it is.
CHIP_IDS = re.compile(r"0xd[0-9a-f]{3}")

#: Words of the tool, in lower case. It says UNKNOWN of a chip that is absent or did not start.
HEALTH = {"ok": OK, "warning": WARNING, "alarm": FAULT, "critical": FAULT}
SEVERITY = (OK, WARNING, UNKNOWN, FAULT)

INSTALL_INFO = "/etc/ascend_install.info"
LINK_CONF = "/etc/hccn.conf"
DEFAULT_ROOT = "/usr/local/Ascend"

#: What hccn_tool means by an error about an address or a gateway.
NOT_SET = "not set"

#: Share of HBM that is more than a driver keeps for itself: 5 % on 64 GB, 9 % on 32 GB.
IDLE_SHARE = 0.2

T = TypeVar("T")


# ---- the tools


class Tool:
    """A tool of the vendor whose answers are understood or are errors."""

    def __init__(self, vendor: Vendor, name: str, explain: Callable[..., str]) -> None:
        self.vendor = vendor
        self.name = name
        self.explain = explain
        self.remarks: list[str] = []

    def read(self, parse: Callable[[str], T], *arguments: str) -> T:
        """What ``parse`` makes of an answer. Raises LLMError with tool, status, line and meaning when there is none."""
        return self._understand(self.vendor.run(self.name, *arguments), parse, arguments)

    def try_read(self, parse: Callable[[str], T], *arguments: str) -> tuple[T | None, str]:
        """The same, or None and why not. A tool that is missing or hangs is an error here too."""
        done = self.vendor.run(self.name, *arguments)
        try:
            return self._understand(done, parse, arguments), ""
        except LLMError as exc:
            return None, str(exc)

    def _understand(self, done: Completed, parse: Callable[[str], T], arguments: tuple[str, ...]) -> T:
        shown = " ".join([self.vendor.tool(self.name)] + list(arguments))
        meaning = self.explain(done.rc, done.stdout, done.stderr)
        meaning = "; " + meaning if meaning else ""
        if done.rc != 0:
            said = first_odd_line(done.stdout, done.stderr)
            raise LLMError("{0} ended with status {1} and said {2}{3}".format(shown, done.rc, said, meaning))
        try:
            found = parse(done.stdout)
        except UnknownOutput as exc:
            raise UnknownOutput("{0} ended with status 0 and is not understood: {1}{2}".format(shown, exc, meaning)) from exc
        self.remarks += [line.strip() for line in done.stderr.splitlines() if line.strip() and line.strip() not in self.remarks]
        return found


def _report(kind: str, npu: int, view: Callable[[_npu_smi.Report], T]) -> Callable[[str], T]:
    """A parser of ``-t <kind> -i <npu>`` that refuses a report of another card."""

    def parse(text: str) -> T:
        reports = _npu_smi.parse_reports(kind, text)
        if len(reports) != 1 or reports[0].npu not in (None, npu):
            raise UnknownOutput("it speaks of NPU {0} when asked for {1}".format(_join(one.npu for one in reports), npu))
        return view(reports[0])

    return parse


def _board(npu: int) -> Callable[[str], dict[str, str]]:
    """A parser of ``-t board -i <npu>`` that refuses the board of another card."""

    def parse(text: str) -> dict[str, str]:
        board = _npu_smi.parse_board(text)
        if int(board["NPU ID"]) != npu:
            raise UnknownOutput("it speaks of NPU {0} when asked for {1}".format(board["NPU ID"], npu))
        return board

    return parse


def _join(words: Iterable[object]) -> str:
    return ", ".join(str(word) for word in words) or "none"


def _phrases(words: Iterable[object]) -> str:
    return "; ".join(str(word) for word in words)


# ---- which chip is which


def physical_ids(table: _npu_smi.Table, mapped: list[_npu_smi.Mapped]) -> dict[tuple[int, int], int]:
    """The physical id of each chip of the table (NPU, chip): the N of its ``/dev/davinciN``.

    The node is numbered by the physical id, which is neither the place in a list nor the logical id; on one host logical ids were
    3, 4, 6, 7, 2, 0, 1, 5. So it is read, in this order, and never counted:

    1. ``Chip Phy-ID`` of ``-m``. A ``Phy-ID`` of the table must say the same.
    2. ``Phy-ID`` of the table.
    3. ``Device`` of the table (310 family), if ``-m`` has the same number for the chip: were the two to differ, either could be it.
    4. The NPU id (910A and 910B, which have no such column), if ``-m`` gives every chip of the table its NPU id for a logical id: then
       each card has one chip, and no id was moved by a card that is missing.

    Raises LLMError that names the chip for which none of these holds, or two chips with one id.
    """
    lines = {(line.npu, line.chip): line for line in mapped}
    straight = all((chip.npu, chip.chip) in lines and lines[chip.npu, chip.chip].logical == chip.npu for chip in table.chips)
    found: dict[tuple[int, int], int] = {}
    for chip in table.chips:
        key = (chip.npu, chip.chip)
        line = lines.get(key)
        physical = None
        if line and line.physical is not None:
            physical = line.physical if chip.physical in (None, line.physical) else None
        elif chip.physical is not None:
            physical = chip.physical
        elif chip.device is not None:
            physical = chip.device if line and line.logical == chip.device else None
        elif straight:
            physical = chip.npu
        if physical is None:
            raise LLMError(
                "NPU {0}, chip {1}: its physical id, and so its /dev/davinci node, cannot be told: the table says Phy-ID {2}, Device {3}; "
                "-m says {4}. Restart the host if a card is missing, or install a driver whose 'npu-smi info -m' has Chip Phy-ID".format(
                    chip.npu,
                    chip.chip,
                    chip.physical,
                    chip.device,
                    "Phy-ID {0}, logical id {1}".format(line.physical, line.logical) if line else "nothing of it",
                )
            )
        for twin in [other for other, number in found.items() if number == physical]:
            raise LLMError(
                "NPU {0}, chip {1} has the physical id {2} of NPU {3}, chip {4}, as in a container that has one die of a card only. "
                "Read the cards on the host itself".format(chip.npu, chip.chip, physical, twin[0], twin[1])
            )
        found[key] = physical
    return found


def product(raw: str, dies: bool) -> tuple[str, str]:
    """Name in our normal form and architecture, of a name as the tool spells it.

    The ``Ascend`` before it is dropped, except where it is all there is: an A3's die is an ``Ascend910``, known from a real 910 by
    ``dies``, that is by the table's ``Phy-ID`` column. 910B3 is an Atlas A2, not an A3.
    """
    compact = raw.replace(" ", "")
    bare = compact[len("Ascend") :] if compact.startswith("Ascend") else compact
    if bare.startswith("910_93"):
        return compact, "910_93"
    return ("Ascend910", "910_93") if bare == "910" and dies else (bare, bare)


def health(word: str) -> str:
    """One of our words for one of the tool's; what is not known is unknown."""
    return HEALTH.get(word.lower(), UNKNOWN)


def worsen(card: Card, state: str, why: str) -> None:
    """Add a reason to a card's health, which becomes ``state`` if that is worse."""
    card.health = max(card.health, state, key=SEVERITY.index)
    card.health_detail = _phrases(text for text in (card.health_detail, why) if text)


def make_cards(table: _npu_smi.Table, mapped: list[_npu_smi.Mapped]) -> dict[tuple[int, int], Card]:
    """The table's chips as cards: (NPU, chip) -> card.

    The identity is the PCI address; with the chip's number, where chips of one NPU share the function (310P Duo); ``npu:<physical id>``
    only where the tool has no address. The index is the NPU id where a card is one chip, and the physical id on hosts whose table
    numbers chips by another column: there NPU ids are shared or sparse (0, 32, 32768). Which of the two does not depend on the cards
    that are alive. Raises LLMError when a physical id cannot be told.
    """
    physical = physical_ids(table, mapped)
    logical = {(line.npu, line.chip): line.logical for line in mapped}
    npus = [chip.npu for chip in table.chips]
    buses = [chip.bus for chip in table.chips]
    dies = any(chip.physical is not None for chip in table.chips)
    by_physical = dies or any(chip.device is not None for chip in table.chips) or len(set(npus)) < len(npus)
    cards = {}
    for chip in table.chips:
        number = physical[chip.npu, chip.chip]
        name, architecture = product(chip.name, dies)
        identity = chip.bus or "npu:{0}".format(number)
        if chip.bus and buses.count(chip.bus) > 1:
            identity = "{0}/{1}".format(chip.bus, chip.chip)
        card = Card(
            id=identity,
            index=number if by_physical else chip.npu,
            name=name,
            name_raw=chip.name,
            architecture=architecture,
            # A card without a figure stays in the list; it is not ok then, and 0 is too little for anything.
            memory_total_mib=chip.memory_total_mib or 0,
            memory_used_mib=chip.memory_used_mib,
            ddr_total_mib=chip.ddr_total_mib,
            ddr_used_mib=chip.ddr_used_mib,
            utilisation_pct=chip.utilisation_pct,
            temperature_c=chip.temperature_c,
            power_w=chip.power_w,
            health=health(chip.health),
            health_detail="" if health(chip.health) == OK else chip.health,
            devices={"davinci": "/dev/davinci{0}".format(number)},
            physical_id=number,
            logical_id=logical.get((chip.npu, chip.chip)),
            die=chip.chip if npus.count(chip.npu) > 1 else None,
        )
        if chip.memory_total_mib is None:
            worsen(card, UNKNOWN, "npu-smi gives no memory")
        cards[chip.npu, chip.chip] = card
    return cards


def ask_health(tool: Tool, card: Card, npu: int, chip: int | None) -> None:
    """Ask for what is behind a health that is not ok; it can only get worse by that."""
    arguments = ["info", "-t", "health", "-i", str(npu)] + (["-c", str(chip)] if chip is not None else [])
    found, why = tool.try_read(_npu_smi.parse_health, *arguments)
    if found is None:
        worsen(card, card.health, why)
        return
    if found.status.lower() != card.health_detail.split(";")[0].lower():
        worsen(card, health(found.status), "-t health says {0}".format(found.status))
    if found.codes:
        worsen(card, card.health, "error codes {0}".format(" ".join(found.codes)))
    if found.information:
        worsen(card, card.health, found.information)


# ---- what must agree


def listing_check(chips: list[tuple[int, int]], mapped: list[_npu_smi.Mapped], listed: dict[int, int | None]) -> Check:
    """Compare the table's chips (NPU, chip) with those of ``-m``, and with the cards and chip counts of ``-l``."""
    lines = {(line.npu, line.chip) for line in mapped}
    wrong = ["NPU {0}, chip {1} is in -m and not in the table".format(*key) for key in sorted(lines - set(chips))]
    wrong += ["NPU {0}, chip {1} is in the table and not in -m".format(*key) for key in sorted(set(chips) - lines)]
    logical = [line.logical for line in mapped if line.logical is not None]
    wrong += ["several chips have the logical id {0} in -m".format(one) for one in sorted(set(logical)) if logical.count(one) > 1]
    npus = [npu for npu, _chip in chips]
    for npu in sorted(set(npus) | set(listed)):
        if npu not in listed:
            wrong.append("NPU {0} is in the table and not in -l".format(npu))
        elif npu not in npus:
            wrong.append("NPU {0} is in -l and not in the table".format(npu))
        elif listed[npu] not in (None, npus.count(npu)):
            wrong.append("NPU {0} has {1} chips in -l and {2} in the table".format(npu, listed[npu], npus.count(npu)))
    if wrong:
        fix = "look into dmesg for a lost card, and restart the host"
        return Check("tool_listings", FAIL, "npu-smi contradicts itself: {0}".format(_phrases(wrong)), fix)
    return Check("tool_listings", PASS, "the table, -l and -m name the same {0} chips of {1} NPUs".format(len(chips), len(set(npus))))


def bus_checks(buses: dict[tuple[int, int], str | None], functions: dict[str, dict[str, str]], parents: dict[str, str]) -> list[Check]:
    """Compare the PCI addresses that the tool gives, by (NPU, chip), with the vendor's functions on the bus.

    Args:
        functions: address -> what sysfs says of it.
        parents: address of a virtual function -> address of the card it was cut from.
    """
    listed = {bus for bus in buses.values() if bus}
    ids = {functions[bus]["device"] for bus in listed if bus in functions}
    chips = {address for address, one in functions.items() if CHIP_IDS.fullmatch(one["device"]) or one["device"] in ids}
    virtual = sorted(address for address in chips - listed if parents.get(address) in listed)
    away = sorted(address for address in chips - listed - set(virtual) if functions[address]["driver"] == "vfio-pci")
    only_bus = sorted(chips - listed - set(virtual) - set(away))
    only_tool = sorted(listed - set(functions))
    shared = sorted({bus for one, bus in buses.items() for other, twin in buses.items() if bus and bus == twin and one[0] != other[0]})
    silent = ["NPU {0}, chip {1}".format(*key) for key, bus in sorted(buses.items()) if not bus]
    checks = []
    if virtual:
        text = "cards are cut into virtual functions, which are no cards here: {0}".format(_join(virtual))
        checks.append(Check("virtual_functions", WARN, text))
    if away:
        checks.append(Check("cards_of_virtual_machines", WARN, "owned by a virtual machine (vfio-pci): {0}".format(_join(away))))
    if only_bus or only_tool or shared or (silent and listed):
        text = "npu-smi lists {0}; the PCI bus has {1}; only on the bus: {2}; only in npu-smi: {3}".format(
            _join(sorted(listed)),
            _join(sorted(chips)),
            _join("{0} ({1})".format(address, functions[address]["driver"] or "no driver") for address in only_bus),
            _join(only_tool),
        )
        text += "; listed for several NPUs: {0}".format(_join(shared)) if shared else ""
        text += "; listed without an address: {0}".format(_join(silent)) if silent else ""
        fix = "look into dmesg for what took the cards away; restart the host, and power cycle it if they stay away"
        checks.append(Check("cards_on_bus", FAIL, text, fix))
    elif listed:
        checks.append(Check("cards_on_bus", PASS, "{0} PCI functions, as on the bus".format(len(listed))))
    else:
        checks.append(Check("cards_on_bus", NOT_APPLICABLE, "npu-smi gives no PCI address (NA), and the bus has no Ascend"))
    return checks


def process_check(
    chips: list[_npu_smi.Chip], cards: dict[tuple[int, int], Card], asked: dict[int, dict[int, list[_npu_smi.Process]]]
) -> Check:
    """Compare the table's processes with those of ``-t proc-mem``, and give each card both: the table cuts long lists off.

    Args:
        asked: NPU -> chip -> processes, for the NPUs that answered.
    """
    unknown, differ = [], []
    for chip in chips:
        card = cards[chip.npu, chip.chip]
        told = asked.get(chip.npu, {}).get(chip.chip)
        if told is None and chip.processes is None:
            unknown.append(card.id)
        elif told is not None and chip.processes is not None and _pids(told) != _pids(chip.processes):
            differ.append("{0}: {1} and {2}".format(card.id, _pids(chip.processes), _pids(told)))
        holders: dict[int, Holder] = {}
        for one in (chip.processes or []) + (told or []):
            holder = holders.setdefault(one.pid, Holder(pid=one.pid, name=one.name, memory_mib=one.memory_mib))
            holder.name = holder.name or one.name
            # Either may cut a long name off.
            if one.name and not (holder.name.startswith(one.name) or one.name.startswith(holder.name)):
                differ.append("{0}: {1} is {2!r} and {3!r}".format(card.id, one.pid, holder.name, one.name))
        card.holders = list(holders.values())
    if unknown:
        fix = "find out what runs there before anything is started on it"
        return Check("card_processes", UNKNOWN, "npu-smi does not say who holds {0}".format(_join(unknown)), fix)
    if differ:
        text = "the table and -t proc-mem name different processes, both are kept: {0}".format(_phrases(differ))
        return Check("card_processes", WARN, text)
    return Check("card_processes", PASS, "{0} processes".format(len({one.pid for card in cards.values() for one in card.holders})))


def _pids(processes: list[_npu_smi.Process]) -> str:
    return " ".join(str(pid) for pid in sorted({one.pid for one in processes})) or "none"


def memory_checks(cards: list[Card], has_hbm: bool) -> list[Check]:
    """Warn of cards whose HBM is in use by nobody: a process of another namespace, or memory that was not given back."""
    held = [
        "{0} has {1} of {2} MiB in use".format(card.id, card.memory_used_mib, card.memory_total_mib)
        for card in cards
        if has_hbm and not card.holders and (card.memory_used_mib or 0) > IDLE_SHARE * card.memory_total_mib
    ]
    return [Check("card_memory_holders", WARN, "no process is known for memory in use: {0}".format(_phrases(held)))] if held else []


def node_checks(nodes: set[str], cards: list[Card]) -> list[Check]:
    """Warn of device nodes without a card: one may have fallen off the bus after the driver made its node."""
    orphans = sorted(nodes - {card.devices["davinci"] for card in cards})
    return [Check("nodes_without_card", WARN, "no card is listed for {0}".format(_join(orphans)))] if orphans else []


# ---- the driver and its files


def parse_info(path: str, text: str) -> dict[str, str]:
    """Read ``key=value`` lines of a version.info or install.info file; keys in lower case. Raises UnknownOutput for another line."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        key, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not re.fullmatch(r"\w+", key.strip(), re.ASCII) or key.strip().lower() in found:
            raise UnknownOutput("{0}, line {1} is no 'key=value' or sets a key again: {2!r}".format(path, number, line.strip()[:200]))
        found[key.strip().lower()] = value.strip()
    return found


def read_info(vendor: Vendor, path: str) -> tuple[dict[str, str], str]:
    """What such a file says; and why it says nothing: it is not there, or not understood."""
    text = vendor.read(path)
    if text is None:
        return {}, "{0} is not there".format(path)
    try:
        return parse_info(path, text), ""
    except UnknownOutput as exc:
        return {}, str(exc)


def read_version(vendor: Vendor, path: str) -> tuple[str | None, str]:
    """The version that such a file names; and why it names none."""
    info, why = read_info(vendor, path)
    version = info.get("version", "")
    if not why and not re.fullmatch(r"[0-9][\w.+-]*", version, re.ASCII):
        why = "{0} has {1!r} for a version".format(path, version[:200])
    return (None, why) if why else (version, "")


def driver_check(vendor: Vendor, buses: list[str], functions: dict[str, dict[str, str]]) -> tuple[bool | None, Check]:
    """Whether the kernel runs the driver, and the check of it; None where that cannot be told.

    The module is the one whose driver holds the cards' PCI functions, whatever its name. Boards without PCI have the driver's device.
    """
    wrong, seen = [], set()
    for bus in buses:
        driver = functions[bus]["driver"] if bus in functions else ""
        module = vendor.link("/sys/bus/pci/drivers/{0}/module".format(driver)) if driver else ""
        state = (vendor.read("/sys/module/{0}/initstate".format(module)) or "").strip() if module else ""
        if driver == "vfio-pci":
            wrong.append("{0}: bound to vfio-pci, for a virtual machine".format(bus))
        elif module and state == "live":
            seen.add("driver {0}, module {1} is live".format(driver, module))
        elif driver and not module:
            seen.add("driver {0} is part of the kernel".format(driver))
        else:
            wrong.append("{0}: driver {1}, module {2} is {3}".format(bus, driver or "none", module or "none", state or "not loaded"))
    fix = "load the driver (its installer's log and dmesg say why it is not), or restart the host"
    if wrong:
        return False, Check("driver_live", FAIL, _phrases(wrong), fix)
    if seen:
        return True, Check("driver_live", PASS, _phrases(sorted(seen)))
    if vendor.exists("/dev/davinci_manager"):
        return True, Check("driver_live", PASS, "npu-smi answers and /dev/davinci_manager is there; the cards are not on the PCI bus")
    return None, Check("driver_live", UNKNOWN, "no card has a PCI address, and /dev/davinci_manager is not there", fix)


def version_check(running: str, installed: str | None, why: str) -> Check:
    """Compare the driver that runs with the one that is installed, or say ``why`` that is not known."""
    if installed is None:
        return Check("driver_version", WARN, "{0} runs; nothing to compare with: {1}".format(running, why))
    # 21.0.4.B030 is a build of 21.0.4.
    builds = [re.sub(r"\.b[0-9]+$", "", version.lower()) for version in (running, installed)]
    if running.lower() != installed.lower() and not (builds[0] == builds[1] and builds[0] in (running.lower(), installed.lower())):
        text = "{0} runs and {1} is installed".format(running, installed)
        return Check("driver_version", FAIL, text, "restart the host, so that the installed driver runs")
    return Check("driver_version", PASS, running)


def package_checks(info: dict[str, str], why: str, remarks: list[str]) -> list[Check]:
    """Whether the driver's installation was finished, and one line per remark that the tools made beside a good answer.

    Args:
        info: what ``/etc/ascend_install.info`` says; ``why`` is why it says nothing.
    """
    status = info.get("driver_install_status", "")
    fix = "install the driver package again, with --full"
    reasons = [why] if why else [] if status else ["{0} has no Driver_Install_Status".format(INSTALL_INFO)]
    reasons += ["npu-smi says {0!r}".format(remark) for remark in remarks if _npu_smi.INCOMPLETE in remark]
    if status.lower() not in ("", "complete"):
        checks = [Check("driver_package", FAIL, "{0} says Driver_Install_Status={1}".format(INSTALL_INFO, status), fix)]
    elif reasons:
        checks = [Check("driver_package", WARN, "not known to be completely installed: {0}; {1}".format(_phrases(reasons), fix))]
    else:
        checks = [Check("driver_package", PASS, "completely installed")]
    for remark in remarks:
        if _npu_smi.INCOMPLETE not in remark:
            meaning = _npu_smi.remark_meaning(remark)
            checks.append(Check("tool_remark", WARN, "{0!r}{1}".format(remark[:200], ": " + meaning if meaning else "")))
    return checks


def board_checks(
    boards: dict[int, dict[str, str]], silent: dict[int, str], buses: dict[int, set[str]], installed: str | None
) -> tuple[str | None, list[Check]]:
    """Firmware version, and checks of what ``-t board`` says of each NPU.

    Args:
        silent: NPU -> why it has no board report.
        buses: NPU -> PCI addresses the table gives it.
        installed: version of the firmware package on the host, None where it is not known.
    """
    checks = []
    versions: dict[str, list[int]] = {}
    for npu, board in boards.items():
        versions.setdefault(board.get("Firmware Version") or "NA", []).append(npu)
    known = sorted(version for version in versions if version != "NA")
    if len(versions) > 1:
        shown = _phrases("{0} on NPU {1}".format(version, _join(npus)) for version, npus in sorted(versions.items()))
        checks.append(Check("firmware_version", WARN, "the cards run different firmware: {0}".format(shown)))
    elif not known:
        checks.append(Check("firmware_version", WARN, "npu-smi does not tell it"))
    elif installed and installed != known[0]:
        checks.append(Check("firmware_version", WARN, "{0} runs and {1} is installed; restart the host".format(known[0], installed)))
    else:
        checks.append(Check("firmware_version", PASS, known[0]))

    bad = ["NPU {0}: {1}".format(npu, board["Compatibility"]) for npu, board in boards.items() if board.get("Compatibility", "OK") != "OK"]
    if bad:
        fix = "install the firmware that goes with the driver"
        checks.append(Check("firmware_compatibility", FAIL, "driver and firmware do not fit: {0}".format(_phrases(bad)), fix))

    moved = [
        "NPU {0} is {1} in -t board and {2} in the table".format(npu, board["PCIe Bus Info"], _join(sorted(buses[npu])))
        for npu, board in boards.items()
        if board.get("PCIe Bus Info", "NA") != "NA" and board["PCIe Bus Info"] not in buses[npu]
    ]
    if moved:
        checks.append(Check("card_addresses", FAIL, _phrases(moved), "run again; restart the host if it stays so"))
    if silent:
        text = _phrases("NPU {0}: {1}".format(npu, why) for npu, why in sorted(silent.items()))
        checks.append(Check("card_boards", UNKNOWN, text, "look into dmesg for a lost card, and restart the host"))
    return ", ".join(known) or installed, checks


def runtime(vendor: Vendor, root: str) -> tuple[str | None, Check]:
    """Version of CANN on the host, if it is there at all: it usually comes with the image.

    Looks below ``cann`` and ``cann-<version>`` (from 8.5 on; the newest first), ``ascend-toolkit/latest`` and ``nnae/latest``. The first
    that is found counts.
    """
    newer = [name for name in vendor.names(root) if re.fullmatch(r"cann-[0-9].*", name)]
    newer.sort(key=lambda name: [int(number) for number in re.findall("[0-9]+", name)], reverse=True)
    found, odd = [], []
    for place in ["cann"] + newer + ["ascend-toolkit/latest", "nnae/latest"]:
        base = "{0}/{1}".format(root, place)
        folders = [base] + ["{0}/{1}".format(base, name) for name in vendor.names(base) if name.endswith("-linux")]
        files = ["{0}/ascend_{1}_install.info".format(folder, kind) for folder in folders for kind in ("toolkit", "nnae")]
        for path in files + [base + "/share/info/runtime/version.info"]:
            version, why = read_version(vendor, path)
            if version:
                found.append((version, path))
            elif vendor.exists(path):
                odd.append(why)
    version = found[0][0] if found else None
    places = _phrases(odd + ["CANN {0} ({1})".format(*one) for one in found])
    if odd or len(dict(found)) > 1:
        return version, Check("runtime_version", WARN, "{0}, the first of several or not all understood: {1}".format(version, places))
    if not found:
        return None, Check("runtime_version", NOT_APPLICABLE, "no CANN below {0}: it comes with the image".format(root))
    return version, Check("runtime_version", PASS, places)


def chip_checks(tool: Tool, cards: dict[tuple[int, int], Card], npus: list[int], silent: list[str]) -> list[Check]:
    """Checks of memory errors and of sharing, NPU by NPU.

    What was not answered, here or before (``silent``), stops nothing and is said: that a driver does not have a question is one thing,
    that its answer is not understood another.
    """
    errors, open_to_all, silent = [], [], list(silent)
    for npu in npus:
        counters, why = tool.try_read(_report("ecc", npu, _npu_smi.double_bit_errors), "info", "-t", "ecc", "-i", str(npu))
        silent += [why] if why else []
        for chip, counts in sorted((counters or {}).items()):
            name = cards[npu, chip].id if (npu, chip) in cards else "NPU {0}, chip {1}".format(npu, chip)
            errors += ["{0}: {1} {2}".format(name, counter, count) for counter, count in sorted(counts.items())]
        sharing, why = tool.try_read(_report("device-share", npu, _npu_smi.shared), "info", "-t", "device-share", "-i", str(npu))
        silent += [why] if why else []
        open_to_all += [cards[npu, chip].id for chip, on in sorted((sharing or {}).items()) if on and (npu, chip) in cards]
    checks = []
    if errors:
        checks.append(Check("memory_errors", WARN, "errors that memory could not mend: {0}".format(_phrases(errors))))
    if open_to_all:
        text = "several containers may hold one card, so only the plan keeps replicas apart: {0}".format(_join(open_to_all))
        checks.append(Check("card_sharing", WARN, text))
    absent = [why for why in silent if why.endswith(_npu_smi.NO_QUERY)]
    odd = [why for why in silent if why not in absent]
    if absent:
        checks.append(Check("queries_absent", NOT_APPLICABLE, "{0} of them, such as {1}".format(len(absent), absent[0])))
    if odd:
        checks.append(Check("queries_unanswered", WARN, _phrases(odd)))
    return checks


# ---- links


def links(vendor: Vendor, cards: list[Card], has_port: bool) -> list[Check]:
    """Read the network port of each card into ``link`` and ``link_detail``, and check them against each other and ``/etc/hccn.conf``.

    The platform's option ``links_needed`` makes a failure of a port that is not up; else it is a warning, as replicas on one card and
    those on several cards of one host need none.
    """
    needed = bool(vendor.options.get("links_needed", False))
    bad = FAIL if needed else WARN
    if not has_port:
        return [Check("links", NOT_APPLICABLE, "cards of this family have no network port")]
    if not vendor.has_tool(LINK_TOOL):
        if needed:
            return [Check("links", FAIL, "{0} is not there to read them".format(LINK_TOOL), "name its place in the platform's 'tools'")]
        return [Check("links", NOT_APPLICABLE, "{0} is not there; a replica on one card needs no link".format(LINK_TOOL))]

    tool = Tool(vendor, LINK_TOOL, lambda status, *texts: NOT_SET if _hccn_tool.unset(*texts) else "")
    not_up, not_healthy, switches, addresses = [], [], {}, {}
    for card in cards:
        number = str(card.physical_id)

        def ask(parse: Callable[[str], T], option: str, number: str = number) -> tuple[T | None, str]:
            value, why = tool.try_read(parse, "-i", number, option, "-g")
            return value, NOT_SET if why.endswith("; " + NOT_SET) else why

        state, no_link = ask(_hccn_tool.parse_link, "-link")
        address, no_address = ask(_hccn_tool.parse_ip, "-ip")
        gateway, no_gateway = ask(_hccn_tool.parse_gateway, "-gateway")
        target, no_target = ask(_hccn_tool.parse_netdetect, "-netdetect")
        word, no_word = ask(_hccn_tool.parse_net_health, "-net_health")
        tls, no_tls = ask(_hccn_tool.parse_tls, "-tls")

        card.link = state or UNKNOWN
        cause = "" if card.link == "up" else no_link or _why_down(tool, number)
        if card.link != "up":
            not_up.append("{0} is {1}{2}".format(card.id, card.link, " ({0})".format(cause) if cause else ""))
        if word != _hccn_tool.NET_HEALTH[0]:
            not_healthy.append("{0}: {1}".format(card.id, word or no_word))
        switches.setdefault("unknown ({0})".format(no_tls) if no_tls else "on" if tls else "off", []).append(card.id)
        addresses[card.physical_id] = "/".join(address) if address else no_address
        parts = [
            cause,
            "address {0}".format(addresses[card.physical_id]),
            "gateway {0}".format(gateway or no_gateway),
            "netdetect {0}".format(target or no_target or NOT_SET),
            "net health {0}".format(word or no_word),
            "TLS {0}".format(no_tls or ("on" if tls else "off")),
        ]
        card.link_detail = _phrases(part for part in parts if part)

    fix = "see to cable, switch and the card's port" if needed else ""
    checks = [Check("links", PASS, "{0} up".format(len(cards)))]
    if not_up:
        checks = [Check("links", bad, "not up: {0}".format(_phrases(not_up)), fix)]
    if not_healthy:
        checks.append(Check("link_health", bad, "not {0}: {1}".format(_hccn_tool.NET_HEALTH[0], _phrases(not_healthy)), fix))
    else:
        checks.append(Check("link_health", PASS, "{0} {1}".format(len(cards), _hccn_tool.NET_HEALTH[0])))
    if list(switches) in (["on"], ["off"]):
        checks.append(Check("link_tls", PASS, "{0} on all".format(list(switches)[0])))
    else:
        shown = _phrases("{0} on {1}".format(word, _join(ids)) for word, ids in sorted(switches.items()))
        text = "TLS is not known to be alike, and cards that differ cannot speak to each other: {0}".format(shown)
        checks.append(Check("link_tls", bad, text, "set it alike on every card" if needed else ""))
    checks.append(_address_check(vendor.read(LINK_CONF), addresses, bad, "bring file and cards into line" if needed else ""))
    return checks


def _why_down(tool: Tool, number: str) -> str:
    """Why a link may be down, as far as its own reports tell."""
    parts = []
    optical, _why = tool.try_read(lambda text: _hccn_tool.parse_fields("-optical", text), "-i", number, "-optical", "-g")
    if optical and optical.get("present"):
        parts.append("optical module {0}".format(optical["present"]))
    history, _why = tool.try_read(_hccn_tool.parse_link_history, "-i", number, "-link_stat", "-g")
    if history and history.changes:
        parts.append("last change {0} {1}".format(history.changes[0][1], history.changes[0][0]))
    return ", ".join(parts)


def _address_check(conf: str | None, addresses: dict[int, str], bad: str, fix: str) -> Check:
    """Compare the addresses of the cards (address/netmask by physical id) with those in ``/etc/hccn.conf``."""
    if conf is None:
        if set(addresses.values()) == {NOT_SET}:
            return Check("link_addresses", NOT_APPLICABLE, "none are set, and there is no {0}".format(LINK_CONF))
        return Check("link_addresses", bad, "{0} is not there: addresses that are set now are gone after a restart".format(LINK_CONF), fix)
    try:
        wanted = _hccn_tool.parse_conf(conf)
    except UnknownOutput as exc:
        return Check("link_addresses", bad, str(exc), fix)
    wrong = []
    for number in sorted(set(addresses) | set(wanted)):
        setting = wanted.get(number, {})
        then = "/".join(setting[name] for name in ("address", "netmask") if name in setting) or NOT_SET
        now = addresses.get(number, "no such card")
        if now != then:
            wrong.append("device {0}: {1}, in the file {2}".format(number, now, then))
    if wrong:
        return Check("link_addresses", bad, "{0} differs: {1}".format(LINK_CONF, _phrases(wrong)), fix)
    return Check("link_addresses", PASS, "as in {0}".format(LINK_CONF))


# ---- all of it


def _bus_line(functions: dict[str, dict[str, str]]) -> str:
    chips = ["{0} ({1})".format(bus, one["driver"] or "no driver") for bus, one in functions.items() if CHIP_IDS.fullmatch(one["device"])]
    return "the PCI bus has {0} Ascend functions: {1}".format(len(chips), _join(sorted(chips)))


def probe(vendor: Vendor) -> Accelerators:
    """Read this host's Ascend cards.

    Args:
        vendor: its tools are ``npu-smi`` and, for cards with a network port, ``hccn_tool``; its environment needs the driver's library
            path. Its option ``links_needed`` says that a port that is not up is a failure.
    Raises LLMError when a tool is missing where it is needed, hangs, fails or prints something unknown, and when the physical id of a
    chip cannot be told. What tools and bus disagree about is a failed check.
    """
    tool = Tool(vendor, TOOL, _npu_smi.explain)
    functions = vendor.pci_devices(PCI_VENDOR)
    try:
        table = tool.read(_npu_smi.parse_table, "info")
        mapped = tool.read(_npu_smi.parse_map, "info", "-m")
        listed = tool.read(_npu_smi.parse_list, "info", "-l")
        by_key = make_cards(table, mapped)
    except UnknownOutput as exc:
        raise UnknownOutput("{0}; {1}".format(exc, _bus_line(functions))) from exc
    except LLMError as exc:
        raise LLMError("{0}; {1}".format(exc, _bus_line(functions))) from exc
    cards = sorted(by_key.values(), key=lambda card: card.index)
    npus = sorted({chip.npu for chip in table.chips})

    boards, silent, processes, unasked = {}, {}, {}, []
    for npu in npus:
        board, why = tool.try_read(_board(npu), "info", "-t", "board", "-i", str(npu))
        if board is not None:
            boards[npu] = board
        elif why.endswith(_npu_smi.NO_QUERY):
            unasked.append(why)
        else:
            silent[npu] = why
        held, why = tool.try_read(_npu_smi.parse_processes, "info", "-t", "proc-mem", "-i", str(npu))
        if held is not None:
            processes[npu] = held
        else:
            unasked.append(why)
    for chip in table.chips:
        card = by_key[chip.npu, chip.chip]
        if chip.bus:
            card.numa_node = vendor.numa_node(chip.bus)
        if chip.utilisation_pct is None:
            usages = _report("usages", chip.npu, _npu_smi.aicore_pct)
            uses, _why = tool.try_read(usages, "info", "-t", "usages", "-i", str(chip.npu))
            card.utilisation_pct = (uses or {}).get(chip.chip)
        if health(chip.health) != OK:
            ask_health(tool, card, chip.npu, chip.chip if table.has_chips else None)
        if chip.bus and chip.bus not in functions:
            worsen(card, FAULT, "gone from the PCI bus")
        if chip.npu in silent:
            worsen(card, UNKNOWN, "npu-smi says nothing of its board")

    info, no_info = read_info(vendor, INSTALL_INFO)
    root = info.get("driver_install_path_param") or DEFAULT_ROOT
    firmware_root = info.get("firmware_install_path_param") or root
    buses = {npu: {chip.bus for chip in table.chips if chip.npu == npu and chip.bus} for npu in npus}
    parents = {address: vendor.link("/sys/bus/pci/devices/{0}/physfn".format(address)) for address in functions}
    nodes = {"/dev/" + name for name in vendor.names("/dev") if re.fullmatch("davinci[0-9]+", name)}

    live, check = driver_check(vendor, sorted(set().union(*buses.values())), functions)
    checks = [check, version_check(table.driver_version, *read_version(vendor, root + "/driver/version.info"))]
    firmware, found = board_checks(boards, silent, buses, read_version(vendor, firmware_root + "/firmware/version.info")[0])
    runtime_version, check = runtime(vendor, root)
    checks += found + [check]
    checks.append(listing_check(list(by_key), mapped, listed))
    checks += bus_checks({(chip.npu, chip.chip): chip.bus for chip in table.chips}, functions, parents)
    checks += node_checks(nodes, cards)
    checks.append(process_check(table.chips, by_key, processes))
    for holder in [holder for card in cards for holder in card.holders if not holder.name]:
        holder.name = (vendor.read("/proc/{0}/comm".format(holder.pid)) or "").strip()
    checks += memory_checks(cards, table.has_hbm)
    checks += chip_checks(tool, by_key, npus, unasked)
    checks += links(vendor, cards, table.has_hbm)
    checks += package_checks(info, no_info, table.remarks + [remark for remark in tool.remarks if remark not in table.remarks])
    return Accelerators(
        probe="ascend",
        tool="{0} {1}".format(TOOL, table.tool_version),
        cards=cards,
        driver_version=table.driver_version,
        driver_live=live,
        runtime_version=runtime_version,
        firmware_version=firmware,
        tool_version=table.tool_version,
        checks=checks,
    )
