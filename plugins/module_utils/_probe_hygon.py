# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Probe of Hygon DCU/HCU cards: hy-smi (or rocm-smi of a DTK) against the PCI bus and the kernel module. Private to the collection.

The tool offers dangerous setters beside its queries, so it is called with one query of ``QUERIES`` at a time and with nothing else.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Callable, TypeVar

from ansible_collections.ironserve.llm.plugins.module_utils import _hy_smi
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import FAULT, OK, Accelerators, Card, Holder
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARN, Check
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor, first_odd_line

T = TypeVar("T")

#: Name of the tool in the platform's ``tools``; its paths may lead to a rocm-smi.
TOOL = "hy-smi"
PCI_VENDOR = "0x1d94"

#: Everything this probe may ever say to the tool; ``--json`` may follow, and nothing else.
QUERIES = (
    (),
    ("--showbus",),
    ("--showproductname",),
    ("--showmeminfo", "vram"),
    ("--showuse",),
    ("--showpids",),
    ("--showdriverversion",),
    ("--showtoponuma",),
    ("--healthcheck",),
)

#: Names of the kernel module: since driver 6.3, before.
MODULES = ("hycu", "hydcu")

#: PCI classes cards were seen with: display, co-processor, processing accelerator. A hint, never the only judge.
CARD_CLASSES = ("0x03", "0x0b40", "0x12")

#: How far the share of memory in the table may lie from the figures in MiB, percentage points (it is a rounded number).
SHARE_SLACK = 1.5

#: No card in any capture draws less than 7 % of its cap or less than 22 W, idle ones included.
LEAST_POWER_SHARE = 0.05
LEAST_POWER_W = 15.0

DTK_FILES = ("/opt/dtk/.info/rocm_version", "/opt/dtk/.info/version-dev", "/opt/dtk/.dtk_version")

_UNKNOWN_FLAG = re.compile(r".*(?:unrecognized arguments|no such option|unknown option|invalid option).*", re.IGNORECASE)

HEALTH = {"Healthy": OK, "Unhealthy": FAULT}


class FlagUnknown(LLMError):
    """The tool is of a version that does not know this query."""


class Tool:
    """The tool on one host. ``notes`` gathers what it said around its answers."""

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor
        self.path = vendor.tool(TOOL)
        self.notes: list[str] = []

    def _say(self, arguments: tuple[str, ...]) -> str:
        """Standard output of one query. Raises FlagUnknown, or LLMError that names tool, exit status and the first odd line."""
        if (arguments[:-1] if arguments[-1:] == ("--json",) else arguments) not in QUERIES:
            raise LLMError("{0} must not be called with {1!r}: it is none of the probe's queries".format(self.path, " ".join(arguments)))
        done = self.vendor.run(TOOL, *arguments)
        if done.rc != 0:
            said = done.stderr + done.stdout
            unknown = _UNKNOWN_FLAG.search(said)
            text = "{0} ended with status {1} and said {2}".format(
                self._shown(arguments), done.rc, first_odd_line(unknown.group() if unknown else "", done.stderr, done.stdout)
            )
            if unknown:
                raise FlagUnknown(text)
            raise LLMError(_with_meaning(text, said))
        self._note(done.stderr.splitlines())
        return done.stdout

    def _shown(self, arguments: tuple[str, ...]) -> str:
        return " ".join((self.path,) + arguments)

    def _note(self, lines: list[str]) -> None:
        self.notes += [line.strip()[:200] for line in lines if line.strip() and line.strip()[:200] not in self.notes]

    def text(self, read: Callable[[str], T], *arguments: str) -> T:
        """What ``read`` makes of a query's text. Raises UnknownOutput that names the query and the line."""
        said = self._say(arguments)
        try:
            return read(said)
        except UnknownOutput as exc:
            text = "{0} ended with status 0 and is not understood: {1}".format(self._shown(arguments), exc)
            raise UnknownOutput(_with_meaning(text, said)) from exc

    def table(self) -> dict[int, _hy_smi.Row]:
        """The table it prints without arguments."""
        found = self.text(_hy_smi.parse_table)
        self._note(found.notes)
        return found.rows

    def cards(self, read: Callable[[_hy_smi.Listing], dict[int, T]], *arguments: str) -> dict[int, T]:
        """One value per card, from JSON where the tool honours it for this query, else from text."""

        def through(parse: Callable[[str], _hy_smi.Listing]) -> Callable[[str], dict[int, T]]:
            def values(said: str) -> dict[int, T]:
                listing = parse(said)
                self._note(listing.notes)
                return read(listing)

            return values

        before = list(self.notes)
        try:
            return self.text(through(_hy_smi.parse_json), *arguments, "--json")
        except (FlagUnknown, UnknownOutput):
            # That it has no JSON for this query is nothing to warn of.
            self.notes = before
            return self.text(through(_hy_smi.parse_lines), *arguments)


@dataclasses.dataclass
class Answers:
    """What the tool said, by card index; None for a query its version does not know."""

    addresses: dict[int, str]
    products: dict[int, str]
    rows: dict[int, _hy_smi.Row]
    memories: dict[int, tuple[int | None, int | None]]
    processes: list[_hy_smi.Process]
    uses: dict[int, float | None]
    numa: dict[int, int | None] | None
    health: dict[int, tuple[str, str]] | None
    driver_version: str | None

    def listings(self) -> dict[str, Any]:
        """The queries that must list every card."""
        return {
            "the table": self.rows,
            "--showbus": self.addresses,
            "--showproductname": self.products,
            "--showmeminfo vram": self.memories,
            "--healthcheck": self.rows if self.health is None else self.health,
        }

    def indices(self) -> list[int]:
        """Every card that any of them lists."""
        return sorted({index for listing in self.listings().values() for index in listing})


def _with_meaning(text: str, said: str) -> str:
    meaning = _hy_smi.explain(said)
    return "{0}; {1}".format(text, meaning) if meaning else text


def _optional(ask: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return ask(*arguments)
    except FlagUnknown:
        return None


def _share_off(row: _hy_smi.Row | None, memory: tuple[int | None, int | None] | None) -> bool:
    """Whether the table's share of memory contradicts the figures in MiB."""
    if row is None or memory is None or row.memory_pct is None or memory[0] is None or memory[1] is None:
        return False
    return abs(100.0 * memory[1] / memory[0] - row.memory_pct) > SHARE_SLACK


def ask_all(tool: Tool) -> Answers:
    """Put every query to the tool. A replica that loads just now changes memory between two of them, so these are put up to three times."""
    for _attempt in range(3):
        rows = tool.table()
        memories = tool.cards(_hy_smi.memories, "--showmeminfo", "vram")
        if not any(_share_off(rows.get(index), memory) for index, memory in memories.items()):
            break
    silent = any(row.use_pct is None for row in rows.values())
    return Answers(
        addresses=tool.cards(_hy_smi.addresses, "--showbus"),
        products=tool.cards(_hy_smi.products, "--showproductname"),
        rows=rows,
        memories=memories,
        processes=tool.text(_hy_smi.parse_processes, "--showpids"),
        uses=tool.cards(_hy_smi.uses, "--showuse") if silent else {},
        numa=_optional(tool.cards, _hy_smi.numa_nodes, "--showtoponuma"),
        health=_optional(tool.text, _hy_smi.parse_health, "--healthcheck"),
        driver_version=_optional(tool.text, _hy_smi.parse_driver_version, "--showdriverversion"),
    )


def believed_power(row: _hy_smi.Row) -> float | None:
    """The table's power, W, or None where it cannot be true: some drivers print 8.0 W on busy cards.

    A reading under 15 W or under 5 % of the card's cap is not believed: no card was seen so low, not even idle.
    """
    least = max(LEAST_POWER_W, LEAST_POWER_SHARE * (row.power_cap_w or 0.0))
    return row.power_w if row.power_w is not None and row.power_w >= least else None


def module_state(vendor: Vendor) -> tuple[str, str]:
    """Name and state of the kernel module, ``("hycu", "live")``; two empty texts where none is loaded."""
    for name in MODULES:
        state = (vendor.read("/sys/module/{0}/initstate".format(name)) or "").strip()
        if state:
            return name, state
    return "", ""


def _release(version: str) -> str:
    """A driver version without the kernel release some drivers put before it: ``rock-5.7.1-6.2.26-V1.5`` is ``6.2.26-V1.5``."""
    return re.sub(r"^rock-[0-9.]+-", "", version.strip())


def runtime_version(vendor: Vendor) -> str | None:
    """Version of the DTK on the host, as one of its files or the link /opt/dtk spells it; None where there is none."""
    for path in DTK_FILES:
        lines = [line.strip() for line in (vendor.read(path) or "").splitlines() if line.strip()]
        if lines:
            return lines[0][:100]
    return vendor.link("/opt/dtk") or None


def is_card(function: dict[str, str]) -> bool:
    """Whether a PCI function of the vendor is a card. Its processors' own bridges carry the same vendor id.

    The module's hold, a known chip id or a class of cards each suffice, so that no list decides alone.
    """
    known = function["device"][2:] in _hy_smi.CHIPS
    return known or function["driver"] in MODULES or function["class"].startswith(CARD_CLASSES)


def bus_checks(listed: dict[int, str], functions: dict[str, dict[str, str]]) -> list[Check]:
    """Compare the cards the tool lists (index -> PCI address) with the vendor's functions on the bus."""
    on_bus = {address for address in functions if is_card(functions[address])}
    held = sorted(address for address in on_bus - set(listed.values()) if functions[address]["driver"] == "vfio-pci")
    only_bus = sorted(on_bus - set(listed.values()) - set(held))
    only_tool = sorted(set(listed.values()) - set(functions))
    checks = []
    if held:
        text = "owned by a virtual machine (vfio-pci): {0}".format(", ".join(held))
        checks.append(Check("cards_of_virtual_machines", WARN, text))
    if only_bus or only_tool:
        detail = "{0} lists {1}; the PCI bus has {2}; only on the bus: {3}; only in {0}: {4}".format(
            TOOL, _join(sorted(listed.values())), _join(sorted(on_bus)), _join(only_bus), _join(only_tool)
        )
        checks.append(Check("cards_on_bus", FAIL, detail, "find out what took the cards away (dmesg); restart the host if they stay away"))
    else:
        checks.append(Check("cards_on_bus", PASS, "{0} cards, as on the PCI bus".format(len(listed))))
    return checks


def _join(words: list[str]) -> str:
    return ", ".join(words) or "none"


def _listing_check(answers: Answers, who: dict[int, str]) -> Check:
    missing = [
        "{0} is not in {1}".format(who[index], name)
        for name, listing in answers.listings().items()
        for index in answers.indices()
        if index not in listing
    ]
    if answers.health is not None:
        missing += [
            "{0} is {1} in --healthcheck".format(who[index], address)
            for index, (address, _word) in sorted(answers.health.items())
            if answers.addresses.get(index, address) != address
        ]
    if missing:
        fix = "look for a lost card (dmesg), and run again"
        return Check("tool_listings", FAIL, "{0} contradicts itself: {1}".format(TOOL, "; ".join(missing)), fix)
    return Check("tool_listings", PASS, "every query lists the same {0} cards".format(len(who)))


def _health(index: int, answers: Answers, functions: dict[str, dict[str, str]], live: bool) -> tuple[str, str]:
    """Health of one card and why. The tool's word counts only while nothing else speaks against it."""
    address = answers.addresses.get(index)
    word = None if answers.health is None else answers.health.get(index, ("", ""))[1]
    if word and HEALTH.get(word) != OK:
        return HEALTH.get(word, UNKNOWN), "{0} --healthcheck says {1}".format(TOOL, word[:100])
    if address is not None and address not in functions:
        return FAULT, "gone from the PCI bus"
    for name, listing in answers.listings().items():
        if index not in listing:
            return UNKNOWN, "not in {0}".format(name)
    if not live:
        return UNKNOWN, "the kernel module is not live"
    driver = functions[address]["driver"] if address else ""
    if driver not in MODULES:
        return UNKNOWN, "bound to {0}".format(driver or "no driver")
    if answers.memories[index][0] is None:
        return UNKNOWN, "its memory is not readable"
    if answers.health is None and answers.rows[index].temperature_c is None:
        return UNKNOWN, "its temperature is not readable"
    return OK, ""


def _holders(vendor: Vendor, answers: Answers, cards: dict[str, Card]) -> list[Check]:
    """Put the processes onto their cards, by PCI address; checks about those that do not fit."""
    wrong, absent, numbers = [], [], []
    for process in answers.processes:
        for index, address in zip(process.indices, process.addresses):
            card = cards.get(address)
            if card is None:
                wrong.append("process {0} is on {1}, which is no card listed".format(process.pid, address))
                continue
            if card.index != index:
                numbers.append("process {0} is on {1}, card {2}, called {3} there".format(process.pid, address, card.index, index))
            memory = process.memory_mib if len(process.addresses) == 1 else None
            if memory is not None and process.memory_pct is not None and card.memory_total_mib:
                if abs(100.0 * memory / card.memory_total_mib - process.memory_pct) > SHARE_SLACK:
                    wrong.append("process {0} holds {1} MiB and {2:g} % of {3}".format(process.pid, memory, process.memory_pct, address))
                    memory = None
            name = (vendor.read("/proc/{0}/comm".format(process.pid)) or "").strip()
            card.holders.append(Holder(pid=process.pid, name=name, memory_mib=memory))
        if not vendor.exists("/proc/{0}".format(process.pid)):
            absent.append(str(process.pid))
    checks = []
    if wrong:
        checks.append(Check("card_processes", UNKNOWN, "; ".join(wrong), "run again; report the output of {0} --showpids".format(TOOL)))
    if absent or numbers:
        ended = ["this host has no process {0} (ended, or in another namespace)".format(", ".join(absent))] if absent else []
        checks.append(Check("card_process_ids", WARN, "; ".join(ended + numbers)))
    return checks


def _architectures(vendor: Vendor, unknown: list[str]) -> dict[str, str]:
    """PCI address -> architecture from rocminfo, for cards whose series does not tell; empty where it is not installed."""
    if not unknown or not vendor.has_tool("rocminfo"):
        return {}
    try:
        agents = _hy_smi.parse_rocminfo(vendor.ask("rocminfo"))
    except LLMError:
        return {}
    return {agent.address: agent.architecture for agent in agents}


def _product_checks(cards: list[Card], functions: dict[str, dict[str, str]]) -> list[Check]:
    strange, unknown = [], []
    for card in cards:
        chip = functions[card.id]["device"][2:] if card.id in functions else ""
        if _hy_smi.chip_fits(card.name, chip) is False:
            strange.append("{0} says {1}, its chip {2} is {3}".format(card.id, card.name_raw, chip, _hy_smi.CHIPS[chip]))
        if card.architecture == "unknown":
            unknown.append("{0} ({1})".format(card.id, card.name_raw or "no name"))
    checks = []
    if strange:
        fix = "find out which card it is before anything is planned for it"
        checks.append(Check("card_product", UNKNOWN, "; ".join(strange), fix))
    if unknown:
        checks.append(Check("card_architecture", WARN, "not known of {0}".format(", ".join(unknown))))
    totals = {(card.name, card.memory_total_mib) for card in cards if card.memory_total_mib}
    for name in sorted({name for name, _total in totals}):
        sizes = sorted(total for one, total in totals if one == name)
        if len(sizes) > 1:
            text = "cards of series {0} have {1} MiB".format(name, " and ".join(str(size) for size in sizes))
            checks.append(Check("card_memory_sizes", UNKNOWN, text, "run again; find out which card lost memory, or is another product"))
    return checks


def _driver_checks(vendor: Vendor, module: str, state: str, said: str | None, loaded: str) -> list[Check]:
    checks = []
    if state == "live":
        checks.append(Check("driver_live", PASS, "module {0} is live".format(module)))
    else:
        text = "module {0} is {1}".format(module, state) if module else "no module {0} is loaded".format(" or ".join(MODULES))
        checks.append(Check("driver_live", FAIL, text, "start the service hymgr, or install the driver and restart the host"))
    if vendor.exists("/dev/kfd"):
        checks.append(Check("kfd", PASS, "/dev/kfd is there"))
    else:
        checks.append(Check("kfd", FAIL, "/dev/kfd is not there", "load the driver; without it no card can be used"))
    if said and loaded and _release(said) != _release(loaded):
        text = "{0} says {1}, the loaded module {2}; restart the host if the driver was just replaced".format(TOOL, said, loaded)
        checks.append(Check("driver_version", WARN, text))
    elif said or loaded:
        checks.append(Check("driver_version", PASS, loaded or said or ""))
    else:
        checks.append(Check("driver_version", WARN, "neither the module nor {0} tells it".format(TOOL)))
    return checks


def _table_checks(answers: Answers, who: dict[int, str]) -> list[Check]:
    checks = []
    off = [who[index] for index in sorted(answers.rows) if _share_off(answers.rows[index], answers.memories.get(index))]
    if off:
        text = "table and --showmeminfo vram disagree three times on {0}".format(", ".join(off))
        checks.append(Check("memory_figures", UNKNOWN, text, "run again when no replica is starting"))
    lies = [
        "{0} ({1:g} W)".format(who[index], row.power_w)
        for index, row in sorted(answers.rows.items())
        if row.power_w is not None and believed_power(row) is None
    ]
    if lies:
        checks.append(Check("power_reading", WARN, "not believed, lower than any idle card: {0}".format(", ".join(lies))))
    cut = [who[index] for index, row in sorted(answers.rows.items()) if row.mode == "MIG"]
    if cut:
        fix = "turn MIG off on these cards; replicas are planned for whole cards"
        checks.append(Check("mig", FAIL, "cut into slices: {0}".format(", ".join(cut)), fix))
    return checks


def _vdev_check(vendor: Vendor) -> list[Check]:
    parts = [name for name in vendor.names("/etc/vdev") if re.match(r"^vdev\d+\.conf$", name)]
    shared = sorted({match for name in parts for match in re.findall(r"[0-9a-fA-F:]{5,}\.[0-7]", vendor.read("/etc/vdev/" + name) or "")})
    if not parts:
        return []
    text = "{0} virtual cards are cut from {1}; replicas are planned for whole cards".format(len(parts), _join(shared))
    return [Check("virtual_cards", WARN, text)]


def probe(vendor: Vendor) -> Accelerators:
    """Read this host's cards.

    A card is identified by its PCI address, and its device nodes are those sysfs gives for that address; the index is the tool's.
    A card that some queries of the tool list and others do not stays in the list, with health ``unknown`` (``fault`` when it left the
    bus) and, where that is what is missing, the id ``hygon:<index>`` and 0 MiB of memory.
    Raises LLMError when the tool is missing, hangs, fails or says something that is not understood; the message names the state of the
    kernel module too, for that is most often why.
    """
    module, state = module_state(vendor)
    try:
        tool = Tool(vendor)
        answers = ask_all(tool)
    except LLMError as exc:
        where = "module {0} is {1}".format(module, state) if module else "no module {0} is loaded".format(" or ".join(MODULES))
        kfd = "there" if vendor.exists("/dev/kfd") else "not there"
        raise type(exc)("{0} ({1}, /dev/kfd is {2})".format(exc, where, kfd)) from exc

    functions = vendor.pci_devices(PCI_VENDOR)
    who = {index: answers.addresses.get(index, "hygon:{0}".format(index)) for index in answers.indices()}
    cards = []
    numa_differs = []
    for index, address in who.items():
        row = answers.rows.get(index)
        total, used = answers.memories.get(index, (None, None))
        raw = answers.products.get(index, "")
        chip = functions.get(address, {}).get("device", "")[2:]
        name = _hy_smi.normal_name(raw, chip)
        health, detail = _health(index, answers, functions, state == "live")
        said, kernel = (answers.numa or {}).get(index), vendor.numa_node(address)
        if said is not None and kernel is not None and said != kernel:
            numa_differs.append("{0}: {1} and {2}".format(address, said, kernel))
        cards.append(
            Card(
                id=address,
                index=index,
                name=name,
                name_raw=raw,
                architecture=_hy_smi.ARCHITECTURES.get(name, "unknown"),
                memory_total_mib=total or 0,
                memory_used_mib=used,
                utilisation_pct=None if row is None else row.use_pct if row.use_pct is not None else answers.uses.get(index),
                temperature_c=None if row is None else row.temperature_c,
                power_w=None if row is None else believed_power(row),
                health=health,
                health_detail=detail,
                devices=vendor.drm_nodes(address),
                # lspci and sysfs were seen to give node 0 for every card, so the tool's own word goes first.
                numa_node=kernel if said is None else said,
            )
        )
    found = _architectures(vendor, [card.id for card in cards if card.architecture == "unknown"])
    for card in cards:
        if card.architecture == "unknown":
            card.architecture = found.get(card.id, "unknown")

    loaded = (vendor.read("/sys/module/{0}/version".format(module)) or "").strip() if module else ""
    checks = _driver_checks(vendor, module, state, answers.driver_version, loaded)
    checks += bus_checks(answers.addresses, functions)
    checks.append(_listing_check(answers, who))
    checks += _product_checks(cards, functions)
    checks += _table_checks(answers, who)
    checks += _holders(vendor, answers, {card.id: card for card in cards})
    checks += _vdev_check(vendor)
    nodeless = [card.id for card in cards if set(card.devices) != {"card", "render"}]
    if nodeless:
        fix = "load the driver; a card without its own nodes cannot be given to a replica"
        checks.append(Check("card_nodes", FAIL, "no card and render node in sysfs for {0}".format(", ".join(nodeless)), fix))
    if numa_differs:
        checks.append(Check("numa_node", WARN, "{0} and sysfs differ on {1}".format(TOOL, "; ".join(numa_differs))))
    if answers.health is None:
        text = "this {0} knows no --healthcheck; ok means: in every listing, readable, on the bus, bound to the live module".format(TOOL)
        checks.append(Check("health_source", WARN, text))
    if tool.notes:
        checks.append(Check("tool_warnings", WARN, "{0} also says: {1}".format(TOOL, "; ".join(tool.notes))))
    runtime = runtime_version(vendor)
    if runtime is None:
        checks.append(Check("runtime", NOT_APPLICABLE, "no DTK on the host; the engine's image brings its own"))
    return Accelerators(
        probe="hygon",
        tool=tool.path,
        cards=cards,
        driver_version=loaded or answers.driver_version,
        driver_live=state == "live",
        runtime_version=runtime,
        checks=checks,
    )
