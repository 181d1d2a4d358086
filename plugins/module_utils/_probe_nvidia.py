# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Probe of NVIDIA GPUs: ``nvidia-smi``, checked against its own second listing and against the PCI bus. Private to the collection.

What was decided where more than one way was open:

- A card's id is its PCI address. Its device node is that of the driver's ``Device Minor`` for this address; the minor need not be the
  index. ``physical_id`` is the minor, ``logical_id`` the index, which is what ``--gpus device=`` takes.
- A MIG device is a card of its own: its id is its uuid, its index ``100 + 10 * GPU + device``, so that switching MIG on or off on one
  GPU renumbers no other. Memory and holders are those of its own row in the bare tool's table; use and power exist for the whole GPU
  only and are None. Compute instances that share the memory of one GPU instance cannot be promised that memory twice: a FAIL check.
  Where the list and the table do not tell the same devices, the GPU stays one card of unknown health, with a FAIL check.
- A GPU with MIG on and no MIG device runs nothing: a fault.
- Use without memory is a lie: a kernel that runs has a context, and a context has memory. An idle GPU whose driver has just woken says
  100 % with 0 MiB; such use is None.
- Cards that the tool cannot open stay in the list as faults, with what the driver's files still know of them.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from ansible_collections.ironserve.llm.plugins.module_utils import _nvidia_smi
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import FAULT, OK, WARNING, Accelerators, Card, Holder
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, PASS, UNKNOWN, WARN, Check
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._nvidia_smi import Gpu, Listed, Lost, MigRow, Process
from ansible_collections.ironserve.llm.plugins.module_utils._run import Completed
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

TOOL = "nvidia-smi"
VENDOR_ID = "0x10de"
DRIVER_FILES = "/proc/driver/nvidia"

#: PCI base classes of what else this vendor makes or puts beside a GPU: storage, network, audio, memory, bridges (NVSwitch), USB.
#: Anything else of this vendor counts as a card, whatever its class says.
OTHER_CLASSES = ("01", "02", "04", "05", "06", "0c")

#: Fields by the age of the driver that knows them. One unknown field fails the whole query, so the smaller list is asked next.
#: The uuid is last: its form shows when a row is cut.
_OLD = (
    "count",
    "index",
    "pci.bus_id",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
    "pstate",
    "compute_mode",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending",
)
_LATER = ("mig.mode.current", "compute_cap", "remapped_rows.pending", "remapped_rows.failure")
_NEW = ("gpu_recovery_action", "fabric.state", "fabric.status")
FIELD_SETS = (_OLD + _LATER + _NEW + ("uuid",), _OLD + _LATER + ("uuid",), _OLD + ("uuid",))

#: The name is last, because it may hold commas.
APP_FIELDS = ("gpu_uuid", "gpu_bus_id", "pid", "used_gpu_memory", "process_name")

#: Memory in use that no listed process explains, MiB; above it somebody holds the card unseen. Contexts and displays stay below.
UNEXPLAINED_MIB = 512

#: Index of the first MIG device of a host, and how far those of two GPUs are apart.
MIG_BASE = 100
MIG_STEP = 10

_CUDA_GONE = "new CUDA processes fail on the healthy GPUs of this host too"
_MEND_LOST = "drain the host, look for Xid in the kernel log, reset the GPU or reboot; power-cycle the host if it stays lost"


class _Smi:
    """The tool on one host, and what it said beside its tables."""

    def __init__(self, vendor: Vendor, module: str) -> None:
        self._vendor = vendor
        self._module = module
        self.path = vendor.tool(TOOL)
        self.notes = _nvidia_smi.Notes()
        self.statuses: set[int] = set()

    def run(self, *arguments: str) -> Completed:
        return self._vendor.run(TOOL, *arguments)

    def take(self, done: Completed, parse: Callable[[str], Any]) -> Any:
        """Parse what a call said. Beside a message about a lost card, or with status 14 or 15, a good table is a good table.

        Raises LLMError that says what any other failure means.
        """
        said = _nvidia_smi.Notes()
        text = done.stdout
        for line in done.stdout.splitlines():
            _nvidia_smi.read_notes(line, said)
        for line in done.stderr.splitlines():
            if _nvidia_smi.read_notes(line, said):
                text += line + "\n"
            elif line.strip():
                said.warnings.append(line.strip())
        if _nvidia_smi.is_failure(done.stdout + done.stderr) or (done.rc not in (0, 14, 15) and not said.lost):
            raise LLMError(self.failure(done))
        self.statuses.add(done.rc)
        for old, new in ((self.notes.lost, said.lost), (self.notes.inforom, said.inforom), (self.notes.warnings, said.warnings)):
            old += [item for item in new if item not in old]
        return parse(text)

    def ask(self, parse: Callable[[str], Any], *arguments: str) -> Any:
        return self.take(self.run(*arguments), parse)

    def failure(self, done: Completed) -> str:
        command = " ".join([self.path] + done.argv[1:])
        return "{0} (kernel module: {1})".format(_nvidia_smi.failure(command, done.rc, done.stdout, done.stderr), self._module or "none")


def _module(vendor: Vendor) -> tuple[bool, str]:
    """Whether the kernel runs the driver, and its version; empty where nobody says."""
    state = vendor.read("/sys/module/nvidia/initstate")
    live = state.strip() == "live" if state is not None else vendor.exists(DRIVER_FILES + "/version")
    return live, (vendor.read("/sys/module/nvidia/version") or "").strip()


def _query(smi: _Smi) -> tuple[list[Gpu], list[Check]]:
    """Ask for every field, then for fewer. A driver that does not know the fewest is an error."""
    checks: list[Check] = []
    for fields in FIELD_SETS:
        done = smi.run("--query-gpu=" + ",".join(fields), "--format=csv")
        if done.rc == 2 or "is not a valid field to query" in done.stdout + done.stderr:
            continue
        unknown = [field for field in FIELD_SETS[0] if field not in fields]
        if unknown:
            checks.append(Check("query", WARN, "this driver does not know {0}; health is judged without".format(", ".join(unknown))))
        return smi.take(done, functools.partial(_nvidia_smi.parse_gpus, needed=fields)), checks
    raise LLMError(smi.failure(done))


def _versions(smi: _Smi) -> _nvidia_smi.Versions:
    """From ``--version``, or from the table of a tool that is too old for it."""
    done = smi.run("--version")
    if done.rc == 2:
        return smi.ask(_nvidia_smi.parse_table).versions
    return smi.take(done, _nvidia_smi.parse_versions)


def information(vendor: Vendor, address: str) -> dict[str, str]:
    """What the driver's own file says of a GPU: ``Model``, ``GPU UUID``, ``Device Minor``, ``GPU Firmware``; empty without the file."""
    found = {}
    for line in (vendor.read("{0}/gpus/{1}/information".format(DRIVER_FILES, address)) or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found[key.strip()] = value.strip()
    return found


def aliases(vendor: Vendor) -> dict[str, str]:
    """Other names of the cards: uuid of each whole GPU -> PCI address, from the driver's files."""
    found = {}
    for address in vendor.names(DRIVER_FILES + "/gpus"):
        uuid = information(vendor, address).get("GPU UUID", "")
        if uuid:
            found[uuid] = address
    return found


def _on_bus(vendor: Vendor) -> dict[str, str]:
    """GPUs on the PCI bus: address -> driver. Virtual functions belong to their GPU and are left out."""
    known = vendor.names(DRIVER_FILES + "/gpus")
    return {
        address: entry["driver"]
        for address, entry in vendor.pci_devices(VENDOR_ID).items()
        if (entry["class"][2:4] not in OTHER_CLASSES or entry["driver"] == "nvidia" or address in known)
        and not vendor.exists("/sys/bus/pci/devices/{0}/physfn".format(address))
    }


def _merge_lost(notes: list[Lost]) -> list[Lost]:
    """One entry per card that cannot be opened; messages name it by index, by address, or by both."""
    merged: list[Lost] = []
    # Those that say both come first, so that the others find their match.
    for lost in sorted(notes, key=lambda item: (item.index is None, not item.address)):
        for other in merged:
            if (lost.address and lost.address == other.address) or (lost.index is not None and lost.index == other.index):
                break
        else:
            merged.append(lost)
    return merged


def _names(lost: Lost, gpu: Gpu) -> bool:
    """Whether a message is about the card of a row; the number decides only where one of them has no address."""
    return lost.address == gpu.address if lost.address and gpu.address else lost.index == gpu.index


def _find_places(vendor: Vendor, gpus: list[Gpu], lost: list[Lost], listed: list[Listed], bus: dict[str, str]) -> None:
    """Give rows and lost cards the address and the index that the tool kept back, where it can be known."""
    everyone: list[Any] = [*gpus, *lost]
    uuids = {card.index: card.uuid for card in listed}
    names = aliases(vendor)
    for item in everyone:
        if not item.address:
            uuid = (item.uuid if isinstance(item, Gpu) else "") or uuids.get(item.index, "")
            item.address = names.get(uuid, "")
    left = [address for address in bus if address not in [item.address for item in everyone]]
    without = [item for item in everyone if not item.address]
    if len(without) == 1 and len(left) == 1:
        without[0].address = left[0]
    # The tool counts by PCI address. A lost card gets the number of its place, unless that is another's.
    order = sorted(item.address for item in everyone if item.address)
    for item in lost:
        if item.index is None or item.index in [gpu.index for gpu in gpus]:
            used = [other.index for other in everyone if other is not item]
            free = [number for number in range(len(everyone)) if number not in used]
            place = order.index(item.address) if item.address else -1
            item.index = place if place in free else free[0]


def _compare(gpus: list[Gpu], lost: list[Lost], listed: list[Listed], bus: dict[str, str]) -> list[Check]:
    """Whether the query, ``-L``, the tool's own count and the PCI bus tell the same cards."""
    checks = []
    problems = []
    rows = {gpu.index: gpu for gpu in gpus}
    names = {card.index: card for card in listed}
    gone = [item.index for item in lost]
    for index in sorted(set(names) - set(rows) - set(gone)):
        problems.append("GPU {0} ({1}) is in -L and not in the query".format(index, names[index].uuid))
    for index in sorted(set(rows) - set(names)):
        problems.append("GPU {0} ({1}) is in the query and not in -L".format(index, rows[index].address))
    for index in sorted(set(rows) & set(names)):
        gpu, name = rows[index], names[index]
        if (gpu.uuid and gpu.uuid != name.uuid) or (gpu.name and gpu.name != name.name):
            problems.append("GPU {0} is {1} {2} in the query and {3} {4} in -L".format(index, gpu.name, gpu.uuid, name.name, name.uuid))
    counts = {gpu.count for gpu in gpus} - {None}
    if counts and not counts & {len(gpus), len(gpus) + len(lost)}:
        problems.append("the tool counts {0} GPUs and lists {1}".format(", ".join(map(str, sorted(counts))), len(gpus)))
    told = {gpu.address for gpu in gpus if gpu.address} | {item.address for item in lost if item.address}
    machines = sorted(address for address in set(bus) - told if bus[address] == "vfio-pci")
    for address in sorted(set(bus) - told - set(machines)):
        problems.append("{0} is on the PCI bus (driver {1}) and not in nvidia-smi".format(address, bus[address] or "none"))
    for address in sorted(told - set(bus)):
        problems.append("{0} is in nvidia-smi and not on the PCI bus".format(address))
    if problems:
        both = "nvidia-smi: {0}; PCI bus: {1}".format(", ".join(sorted(told)) or "none", ", ".join(sorted(bus)) or "none")
        checks.append(
            Check(
                "card_list",
                FAIL,
                "{0} ({1})".format("; ".join(problems), both),
                "find out which is right: look for NVRM and Xid in the kernel log, and for another driver on the card",
            )
        )
    else:
        checks.append(
            Check("card_list", PASS, "{0} cards, the same in nvidia-smi, its -L and on the PCI bus".format(len(gpus) + len(lost)))
        )
    if machines:
        checks.append(Check("virtual_machine", WARN, "owned by virtual machines (vfio-pci): {0}".format(", ".join(machines))))
    return checks


def _holder(process: Process) -> Holder:
    return Holder(pid=process.pid, name=process.name, memory_mib=process.memory_mib)


def _processes_by_card(processes: list[Process], gpus: list[Gpu], lost: list[Lost], listed: list[Listed]) -> dict[str, list[Process]]:
    """Processes by the address of their GPU. Raises UnknownOutput for one on a GPU that nobody listed."""
    addresses = {item.address: item.address for item in lost}
    addresses.update({gpu.uuid: gpu.address for gpu in gpus})
    addresses.update({device.uuid: gpu.address for gpu in gpus for card in listed if card.index == gpu.index for device in card.mig})
    found: dict[str, list[Process]] = {}
    for process in processes:
        address = process.address or addresses.get(process.uuid, "")
        if address not in addresses.values():
            raise UnknownOutput("process {0} holds {1} {2}, which nvidia-smi does not list".format(process.pid, process.uuid, address))
        found.setdefault(address, []).append(process)
    return found


def _check_memory(gpus: list[Gpu], held: dict[str, list[Process]]) -> list[Check]:
    hidden = []
    for gpu in gpus:
        figures = [process.memory_mib for process in held.get(gpu.address, [])]
        if gpu.memory_used_mib is not None and None not in figures:
            rest = gpu.memory_used_mib - sum(figure for figure in figures if figure)
            if rest > UNEXPLAINED_MIB:
                hidden.append("{0} has {1} MiB in use".format(gpu.address, rest))
    if not hidden:
        return []
    return [Check("hidden_holders", WARN, "{0} that no process explains: one the tool cannot see, or an orphan".format("; ".join(hidden)))]


def _also(detail: str, more: str) -> str:
    return "; ".join(text for text in (detail, more) if text)


def _mig_nodes(vendor: Vendor, minor: int | None, row: MigRow) -> dict[str, str]:
    """Nodes that open one MIG device, as far as they have been made: the driver names their minors by GPU, instance and part."""
    nodes = {}
    here = "{0}/capabilities/gpu{1}/mig/gi{2}".format(DRIVER_FILES, minor, row.gi)
    for kind, path in (("mig_gi", here + "/access"), ("mig_ci", "{0}/ci{1}/access".format(here, row.ci))):
        for line in (vendor.read(path) or "").splitlines():
            key, _colon, value = line.partition(":")
            node = "/dev/nvidia-caps/nvidia-cap" + value.strip()
            if key == "DeviceFileMinor" and value.strip().isdigit() and vendor.exists(node):
                nodes[kind] = node
    return nodes


def _mig_cards(
    vendor: Vendor, parent: Card, listed: Listed, table: _nvidia_smi.Table, held: list[Process]
) -> tuple[list[Card], list[Check]]:
    """The MIG devices of one GPU as cards, or the GPU itself where they cannot be told."""
    number = listed.index
    parent.holders = [_holder(process) for process in held]
    if not listed.mig:
        parent.health, parent.health_detail = FAULT, _also(parent.health_detail, "MIG is on and no MIG device is made")
        return [parent], [
            Check(
                "mig",
                FAIL,
                "GPU {0} has MIG on and no MIG device".format(number),
                "make MIG devices, or switch MIG off (nvidia-smi -mig 0)",
            )
        ]
    rows = {row.device: row for row in table.mig if row.gpu == number}
    if sorted(rows) != sorted(device.device for device in listed.mig) or max(rows) >= MIG_STEP:
        if parent.health in (OK, WARNING):
            parent.health = UNKNOWN
        parent.health_detail = _also(parent.health_detail, "its MIG devices cannot be told")
        text = "GPU {0} has the MIG devices {1} in -L and {2} in the table".format(
            number, ", ".join(str(device.device) for device in listed.mig), ", ".join(map(str, sorted(rows))) or "none"
        )
        return [parent], [Check("mig", FAIL, text, "run again; do not change MIG devices meanwhile")]

    cards = []
    full = {process.pid: process for process in held}
    placed = set()
    for device in listed.mig:
        row = rows[device.device]
        own = [process for process in table.processes if (process.gpu, process.gi, process.ci) == (number, row.gi, row.ci)]
        placed.update(process.pid for process in own)
        cards.append(
            Card(
                id=device.uuid,
                index=MIG_BASE + MIG_STEP * number + device.device,
                name="{0} MIG {1}".format(parent.name, device.profile),
                name_raw="{0} MIG {1}".format(parent.name_raw, device.profile),
                architecture=parent.architecture,
                memory_total_mib=row.memory_total_mib,
                memory_used_mib=row.memory_used_mib,
                temperature_c=parent.temperature_c,
                health=parent.health,
                health_detail=parent.health_detail,
                # The table cuts long names.
                holders=[_holder(full.get(process.pid, process)) for process in own],
                devices=dict(parent.devices, **_mig_nodes(vendor, parent.physical_id, row)),
                numa_node=parent.numa_node,
                physical_id=parent.physical_id,
                logical_id=parent.logical_id,
                uuid=device.uuid,
            )
        )
    checks = [Check("mig", PASS, "GPU {0} is {1} cards".format(number, len(cards)))]
    stray = sorted(set(full) - placed)
    if stray:
        text = "GPU {0}: on which MIG device is process {1} is not told".format(number, ", ".join(map(str, stray)))
        checks.append(Check("mig_holders", WARN, text))
    shared = sorted({row.gi for row in rows.values() if len([other for other in rows.values() if other.gi == row.gi]) > 1})
    for gi in shared:
        devices = [row for row in rows.values() if row.gi == gi]
        text = "GPU {0}: MIG devices {1} share {2} MiB of one GPU instance".format(
            number, ", ".join(str(row.device) for row in devices), devices[0].memory_total_mib
        )
        checks.append(Check("mig_memory", FAIL, text, "make one compute instance per GPU instance, so that each card has its own memory"))
    return cards, checks


def _topology(smi: _Smi) -> tuple[dict[int, dict[int, str]], list[Check]]:
    """How the cards are connected; empty with a check that says why where that is not known."""
    try:
        return smi.ask(_nvidia_smi.parse_topology, "topo", "-m"), []
    except LLMError as exc:
        return {}, [Check("topology", WARN, "how the cards are connected is not known: {0}".format(exc))]


def _link(cards: list[Card], matrix: dict[int, dict[int, str]]) -> list[Check]:
    """Fill in the links of whole GPUs. One without NVLink among others of its kind that have it is down; else it has none."""
    linked = {card.name for card in cards if any(word.startswith("NV") for word in matrix.get(card.index, {}).values())}
    for card in cards:
        ways: dict[str, list[str]] = {}
        for other, word in sorted(matrix.get(card.index, {}).items()):
            ways.setdefault(word, []).append(str(other))
        up = any(word.startswith("NV") for word in ways)
        card.link = UNKNOWN if card.index not in matrix else "up" if up else "down" if card.name in linked else None
        card.link_detail = "; ".join("{0} to {1}".format(word, " ".join(others)) for word, others in sorted(ways.items()))
    checks = []
    down = [card.id for card in cards if card.link == "down"]
    silent = [card.id for card in cards if card.link == UNKNOWN]
    if down:
        checks.append(Check("links", WARN, "no NVLink on {0}, while others of its kind have it".format(", ".join(down))))
    if silent and matrix:
        checks.append(Check("topology", WARN, "topo -m does not tell {0}".format(", ".join(silent))))
    return checks


def _card(vendor: Vendor, gpu: Gpu, listed: Listed | None, minors: dict[str, int], more: tuple[tuple[str, str], ...]) -> Card:
    """A whole GPU as a card; ``more`` are findings about its health that its row does not hold."""
    about = information(vendor, gpu.address) if gpu.address else {}
    name = gpu.name or (listed.name if listed else "") or about.get("Model", "") or "unknown"
    health, detail = _nvidia_smi.judge(gpu, more)
    minor = minors.get(gpu.address)
    idle = gpu.memory_used_mib == 0 and gpu.utilisation_pct
    return Card(
        id=gpu.address or "nvidia:{0}".format(gpu.index),
        index=gpu.index,
        name=_nvidia_smi.product(name),
        name_raw=name,
        architecture=_nvidia_smi.architecture(gpu.compute_cap, name),
        memory_total_mib=gpu.memory_total_mib,
        memory_used_mib=gpu.memory_used_mib,
        utilisation_pct=None if idle else gpu.utilisation_pct,
        temperature_c=gpu.temperature_c,
        power_w=gpu.power_w,
        health=health,
        health_detail=detail,
        devices={} if minor is None else {"nvidia": "/dev/nvidia{0}".format(minor)},
        numa_node=vendor.numa_node(gpu.address) if gpu.address else None,
        physical_id=minor,
        logical_id=gpu.index,
        uuid=gpu.uuid or (listed.uuid if listed else "") or about.get("GPU UUID", ""),
    )


def _minors(vendor: Vendor, smi: _Smi, addresses: list[str]) -> dict[str, int]:
    """Minor numbers of the device nodes by PCI address: the driver's file says them, or else ``-q``. Nothing is counted."""
    found = {}
    for address in addresses:
        text = information(vendor, address).get("Device Minor", "")
        if text.isdigit():
            found[address] = int(text)
    if set(found) < set(addresses):
        try:
            log = smi.ask(_nvidia_smi.parse_query_log, "-q")
        except LLMError as exc:
            smi.notes.warnings.append(str(exc))
        else:
            found.update({gpu.address: gpu.minor for gpu in log.gpus if gpu.minor is not None and gpu.address not in found})
    twice = sorted({minor for minor in found.values() if list(found.values()).count(minor) > 1})
    if twice:
        raise UnknownOutput("two GPUs with the device minor {0}: {1}".format(", ".join(map(str, twice)), found))
    return found


def _tell_lost(lost: list[Lost], gpus: list[Gpu], statuses: set[int]) -> list[Check]:
    told = ["GPU {0} ({1}) cannot be opened: {2}".format(item.index, item.address or "no address", item.reason) for item in lost]
    told += ["GPU {0} ({1}) is lost".format(gpu.index, gpu.address) for gpu in gpus if "[GPU is lost]" in gpu.odd.values()]
    if not told and 15 in statuses:
        told = ["nvidia-smi ended with status 15: a GPU fell off the bus"]
    return [Check("lost_card", FAIL, "{0}; {1}".format("; ".join(told), _CUDA_GONE), _MEND_LOST)] if told else []


def _tell_versions(live: bool, module: str, versions: _nvidia_smi.Versions, gpus: list[Gpu]) -> list[Check]:
    """Whether the driver is live, and whether kernel, tool and cards name one driver."""
    if live:
        checks = [Check("driver_live", PASS, "module nvidia {0} is live".format(module or "of unknown version"))]
    else:
        text = "nvidia-smi answers, and the kernel shows no live module nvidia"
        checks = [Check("driver_live", FAIL, text, "load the module nvidia, and run this on the host itself")]
    text = "driver {0}, CUDA up to {1}, nvidia-smi {2}".format(versions.driver, versions.cuda, versions.tool)
    others = sorted(({gpu.driver_version for gpu in gpus} | {module}) - {"", versions.driver})
    if others:
        text += ", while kernel or cards say {0}".format(", ".join(others))
        return checks + [Check("versions", FAIL, text, "reload the module nvidia or reboot, so that driver and library are of one version")]
    return checks + [Check("versions", PASS, text)]


def probe(vendor: Vendor) -> Accelerators:
    """Read this host's GPUs and MIG devices.

    Raises LLMError when the tool is missing, hangs, fails or says something unknown.
    """
    live, module = _module(vendor)
    smi = _Smi(vendor, module)
    listed = {card.index: card for card in smi.ask(_nvidia_smi.parse_list, "-L")}
    gpus, checks = _query(smi)
    parse = functools.partial(_nvidia_smi.parse_processes, needed=APP_FIELDS)
    processes = smi.ask(parse, "--query-compute-apps=" + ",".join(APP_FIELDS), "--format=csv")
    versions = _versions(smi)
    matrix, more = _topology(smi) if len(gpus) > 1 else ({}, [])
    checks += more
    cut = [gpu.index for gpu in gpus if gpu.words.get("mig.mode.current") == "Enabled" or (gpu.index in listed and listed[gpu.index].mig)]
    table = smi.ask(_nvidia_smi.parse_table) if cut else None

    bus = _on_bus(vendor)
    lost = _merge_lost(smi.notes.lost)
    # The driver may lose a card between two calls, so that one of them still has its row.
    ill = [item for item in lost if any(_names(item, gpu) for gpu in gpus)]
    lost = [item for item in lost if item not in ill]
    _find_places(vendor, gpus, lost, list(listed.values()), bus)
    checks += _tell_lost(lost + ill, gpus, smi.statuses)
    held = _processes_by_card(processes, gpus, lost, list(listed.values()))
    checks += _check_memory(gpus, held)
    minors = _minors(vendor, smi, [item.address for item in [*gpus, *lost] if item.address])

    cards = []
    for row in gpus + [Gpu(index=item.index or 0, address=item.address) for item in lost]:
        entry = listed.get(row.index, Listed(row.index, row.name, row.uuid))
        findings = [(FAULT, "cannot be opened: {0}".format(item.reason)) for item in lost + ill if _names(item, row)]
        if row.address in smi.notes.inforom:
            findings.append((WARNING, "its infoROM is corrupted"))
        card = _card(vendor, row, entry, minors, tuple(findings))
        if table and row.index in cut:
            parts, more = _mig_cards(vendor, card, entry, table, held.get(row.address, []))
            cards += parts
            checks += more
        else:
            card.holders = [_holder(process) for process in held.get(row.address, [])]
            cards.append(card)
    if len(gpus) > 1:
        checks += _link([card for card in cards if card.index in {gpu.index for gpu in gpus} - set(cut)], matrix)

    firmware = sorted({information(vendor, gpu.address).get("GPU Firmware", "N/A") for gpu in gpus} - {"N/A"})
    known = _tell_versions(live, module, versions, gpus) + _compare(gpus, lost, list(listed.values()), bus)
    return Accelerators(
        probe="nvidia",
        tool="{0} {1}".format(smi.path, versions.tool),
        cards=sorted(cards, key=lambda card: card.index),
        driver_version=versions.driver,
        driver_live=live,
        runtime_version=versions.cuda,
        firmware_version=", ".join(firmware) or None,
        tool_version=versions.tool,
        aliases=aliases(vendor),
        checks=known + checks + _tell_gaps(smi, cards),
    )


def _tell_gaps(smi: _Smi, cards: list[Card]) -> list[Check]:
    """What nobody said about the cards, and what the tool said beside its tables."""
    checks = []
    well = [card for card in cards if card.health != FAULT]
    nodeless = [card.id for card in well if not card.devices]
    if nodeless:
        text = "the driver does not say the minor number of {0}".format(", ".join(nodeless))
        checks.append(Check("device_minor", UNKNOWN, text, "look for {0}/gpus/<address>/information".format(DRIVER_FILES)))
    strange = sorted({card.name_raw for card in well if card.architecture == "unknown"})
    if strange:
        text = "neither compute_cap nor a known product: {0}".format(", ".join(strange))
        checks.append(Check("architecture", UNKNOWN, text, "update the driver, or report the product's name"))
    corrupted = ", ".join(smi.notes.inforom) or ("a card that is not named" if 14 in smi.statuses else "")
    if corrupted:
        checks.append(Check("inforom", WARN, "corrupted on {0}; it computes, have it looked at".format(corrupted)))
    if smi.notes.warnings:
        checks.append(Check("tool_messages", WARN, "nvidia-smi also said: {0}".format("; ".join(smi.notes.warnings))))
    return checks
