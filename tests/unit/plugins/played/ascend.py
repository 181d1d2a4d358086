# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plays hosts with Ascend cards in a directory: npu-smi and hccn_tool that answer from files, sysfs, /dev, the driver's files.

A host is made from the capture of a table and what ``expected.yml`` says it says. Captures of the other queries are of single cards, mostly
of other hosts; they are put to each card with its number and address. What no capture shows is put together from the line forms known.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import yaml

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._run import Completed
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "accelerators" / "ascend"
NPU_SMI = "/usr/local/sbin/npu-smi"
HCCN_TOOL = "/usr/local/Ascend/driver/tools/hccn_tool"
PATHS = {"npu-smi": NPU_SMI, "hccn_tool": HCCN_TOOL}
TOOLS = {"npu-smi": ["/usr/local/bin/npu-smi", NPU_SMI], "hccn_tool": [HCCN_TOOL]}
ROOT = "/usr/local/Ascend"
ENVIRONMENT = {"LD_LIBRARY_PATH": f"{ROOT}/driver/lib64:{ROOT}/driver/lib64/common:{ROOT}/driver/lib64/driver"}
DRIVER, MODULE = "devdrv_device_driver", "drv_pcie_host"
UNKNOWN_QUERY = "Error parameter of -t\nUsage: npu-smi info <watch|proc|-h|-m|-l|-t type> [Options...]\n"

#: Answers from files beside it, by its arguments; notes each call; finds no library without a path; knows nothing else.
SCRIPT = """#!/bin/sh
here="$0.answers"
printf '%s\\n' "$*" >> "$here/asked"
case ":$LD_LIBRARY_PATH:" in
*:/usr/local/Ascend/driver/lib64:*) ;;
*)
    cat "$here/no_library" >&2
    exit 127 ;;
esac
at="$here/$*"
if [ ! -f "$at.out" ]; then
    cat "$here/unknown"
    exit 1
fi
cat "$at.out"
cat "$at.err" >&2
[ ! -f "$at.hang" ] || exec sleep 600
exit "$(cat "$at.rc")"
"""


def capture(name: str) -> str:
    """Text of a fixture, every byte of it."""
    return (FIXTURES / name).read_bytes().decode("utf-8")


@functools.cache
def expected() -> dict:
    """What the captures say, as somebody read them."""
    return yaml.safe_load((FIXTURES / "expected.yml").read_text(encoding="utf-8"))


def whole(name: str) -> str:
    """Text of a capture of a table; one whose paste was cut short gets the border that closes it."""
    text = capture(name)
    return text + text.splitlines()[0] + "\n" if expected()["tables"][name].get("cut_short") else text


@dataclasses.dataclass
class Answer:
    """What a tool does when it is asked something."""

    out: str = ""
    err: str = ""
    rc: int = 0
    hang: bool = False


@dataclasses.dataclass
class Function:
    """One PCI function."""

    device: str = "0xd802"
    kind: str = "0x120000"
    driver: str = DRIVER
    numa: int = 0
    vendor: str = "0x19e5"
    physfn: str = ""


@dataclasses.dataclass
class Host:
    """A host before it is played; change what a test is about, then ``play`` it.

    Attributes:
        answers: tool -> what it says, by its arguments joined with blanks; what is missing it does not know.
        bus: PCI functions by address.
        modules: kernel module -> state.
        files: other files, by absolute path; device nodes are empty ones.
        tools: the tools that are there.
    """

    answers: dict[str, dict[str, Answer]]
    bus: dict[str, Function]
    modules: dict[str, str] = dataclasses.field(default_factory=lambda: {MODULE: "live"})
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    tools: list[str] = dataclasses.field(default_factory=lambda: list(PATHS))

    @property
    def smi(self) -> dict[str, Answer]:
        """What npu-smi says."""
        return self.answers["npu-smi"]

    @property
    def hccn(self) -> dict[str, Answer]:
        """What hccn_tool says."""
        return self.answers["hccn_tool"]


@dataclasses.dataclass
class Chip:
    """A chip as ``expected.yml`` has it, or as a test makes it up.

    Attributes:
        number: its physical id.
        processes: pid, name and MiB of each.
        memory: used and total, MiB: HBM where the kind of table has it.
    """

    npu: int
    chip: int
    number: int
    logical: int
    bus: str | None
    name: str
    processes: list[tuple[int, str, int]] = dataclasses.field(default_factory=list)
    health: str = "OK"
    power: str = "95.0"
    temperature: int = 40
    use: int = 0
    memory: tuple[int, int] = (3400, 65536)


def chips_of(name: str) -> list[Chip]:
    """The chips of a capture of a table, logical ids as on a host from which none is missing."""
    table = expected()["tables"][name]
    found = []
    for npu, chip, number, bus, product, *_figures in table["chips"]:
        held = [(pid, process, mib) for one, other, pid, process, mib in table["processes"] if (one, other) == (npu, chip)]
        number = npu if number is None else number
        found.append(Chip(npu, chip, number, number, bus, product, held))
    return found


def mapping(chips: list[Chip], physical: bool = False) -> str:
    """``npu-smi info -m``."""
    words = ["NPU ID", "Chip ID", "Chip Logic ID"] + ["Chip Phy-ID"] * physical + ["Chip Name"]
    rows = [words]
    for npu in dict.fromkeys(chip.npu for chip in chips):
        own = [chip for chip in chips if chip.npu == npu]
        for one in own:
            name = one.name if one.name.startswith("Ascend") else "Ascend " + one.name
            rows.append([npu, one.chip, one.logical] + [one.number] * physical + [name])
        rows.append([npu, len(own), "-"] + ["-"] * physical + ["Mcu"])
    return "".join("\t" + " ".join(f"{word:<30}" for word in row) + "\n" for row in rows)


def listing(chips: list[Chip]) -> str:
    """``npu-smi info -l``."""
    npus = [chip.npu for chip in chips]
    text = f"\n\t{'Total Count':<30} : {len(set(npus))}\n"
    return text + "".join(f"\n\t{'NPU ID':<30} : {npu}\n\t{'Chip Count':<30} : {npus.count(npu)}\n" for npu in dict.fromkeys(npus))


def head(chips: list[Chip]) -> str:
    """How a report of one card begins."""
    return f"\n\t{'NPU ID':<30} : {chips[0].npu}\n\t{'Chip Count':<30} : {len(chips)}\n"


def proc_mem(chips: list[Chip]) -> str:
    """``npu-smi info -t proc-mem`` of one card."""
    text = head(chips)
    for chip in chips:
        lines = [f"Process id:{pid} Process name:{name:<17} Process memory(MB):{mib}" for pid, name, mib in chip.processes]
        text += "".join(f"\n\t{line}" for line in lines or ["No process in device."]) + f"\n\t{'Chip ID':<30} : {chip.chip}\n"
    return text


def per_chip(kind: str, chips: list[Chip], key: str, value: str) -> str:
    """``npu-smi info -t <kind>`` of one card, for kinds whose blocks end with the chip."""
    return head(chips) + "".join(f"\n\t{key:<30} : {value}\n\t{'Chip ID':<30} : {chip.chip}\n" for chip in chips)


def board(chips: list[Chip]) -> str:
    """``npu-smi info -t board`` of one card: a capture of another, with this one's number and address."""
    text = capture("npu-smi-info-t-board__25.5.1__910b.txt").replace("0000:C1:00.0", (chips[0].bus or "NA").upper())
    text = text.replace("NPU ID                         : 0", f"NPU ID                         : {chips[0].npu}")
    return text.replace("Chip Count                     : 1", f"Chip Count                     : {len(chips)}")


def ecc(chips: list[Chip]) -> str:
    """``npu-smi info -t ecc`` of one card: a capture of another, with this one's number and chips."""
    lines = capture("npu-smi-info-t-ecc__910a__doc-example.txt").split("\n\n")[1].splitlines()[:-1]
    body = "\n".join(lines)
    return head(chips) + "".join(f"\n{body}\n{'Chip ID':<40} : {chip.chip}\n" for chip in chips)


def address_of(number: int) -> str:
    """Address of a port, as the captured hccn.conf gives them out."""
    return f"192.168.{10 + 10 * (number % 4)}.{11 + number // 4}"


def port(number: int) -> dict[str, Answer]:
    """What hccn_tool says of one port that is up."""
    gateway = capture("hccn_tool-gateway-mac__doc-example.txt").splitlines()[2] + "\n"
    tls = capture("hccn_tool-tls__switch-line.txt").replace("dev_id:0", f"dev_id:{number}")
    said = {
        "-link": capture("hccn_tool-link__up.txt"),
        "-ip": f"ipaddr:{address_of(number)}\nnetmask:255.255.255.0\n",
        "-gateway": gateway,
        "-netdetect": "netdetect addr: 192.168.6.1\n",
        "-net_health": "net health status: Success\n",
        "-tls": tls,
        "-optical": capture("hccn_tool-optical__910a.txt"),
        "-link_stat": capture("hccn_tool-link_stat__per-device-history.txt"),
    }
    return {f"-i {number} {option} -g": Answer(text) for option, text in said.items()}


def by_npu(chips: list[Chip]) -> dict[int, list[Chip]]:
    """Chips by card."""
    return {npu: [chip for chip in chips if chip.npu == npu] for npu in dict.fromkeys(chip.npu for chip in chips)}


def make(text: str, chips: list[Chip], driver: str, physical: bool = False, device: str = "0xd802") -> Host:
    """A whole host around a table."""
    smi = {"info": Answer(text), "info -m": Answer(mapping(chips, physical)), "info -l": Answer(listing(chips))}
    hccn: dict[str, Answer] = {}
    for npu, own in by_npu(chips).items():
        smi[f"info -t board -i {npu}"] = Answer(board(own))
        smi[f"info -t proc-mem -i {npu}"] = Answer(proc_mem(own))
        smi[f"info -t ecc -i {npu}"] = Answer(ecc(own))
        smi[f"info -t device-share -i {npu}"] = Answer(per_chip("device-share", own, "Device-share Status", "False"))
    for chip in chips:
        hccn.update(port(chip.number))
    buses = list(dict.fromkeys(chip.bus for chip in chips if chip.bus))
    bus = {address: Function(device=device, numa=2 * place // len(buses)) for place, address in enumerate(buses)}
    # What else of the vendor such servers have: a network card, the console's graphics, a processor's compression engine.
    bus["0000:04:00.0"] = Function("0x0222", "0x020000", "hinic3")
    bus["0000:05:00.0"] = Function("0x1711", "0x030000", "")
    bus["0000:75:00.0"] = Function("0xa250", "0x120000", "hisi_zip")
    bus["0000:00:00.0"] = Function("0x2020", "0x060000", "", vendor="0x8086")
    files = {f"/dev/davinci{chip.number}": "" for chip in chips}
    files.update({f"/dev/{name}": "" for name in ("davinci_manager", "devmm_svm", "hisi_hdc")})
    files["/etc/ascend_install.info"] = capture("ascend_install.info__etc.txt")
    files["/etc/hccn.conf"] = "".join(
        f"address_{one.number}={address_of(one.number)}\nnetmask_{one.number}=255.255.255.0\n" for one in chips
    )
    files[ROOT + "/driver/version.info"] = capture("ascend-driver-version.info__23.0.7.txt").replace("23.0.7", driver)
    files[ROOT + "/firmware/version.info"] = capture("ascend-firmware-version.info__7.1.0.11.220.txt").replace(
        "7.1.0.11.220", "7.8.0.6.201"
    )
    return Host({"npu-smi": smi, "hccn_tool": hccn}, bus, files=files)


def host(name: str) -> Host:
    """The host of a capture of a table."""
    table = expected()["tables"][name]
    device = "0xd500" if "310" in name else "0xd801" if "910a" in name else "0xd803" if "a3" in name else "0xd802"
    made = make(whole(name), chips_of(name), table["driver"], table["column"] == "Phy-ID", device)
    if not any(chip.bus for chip in chips_of(name)):
        made.modules = {}
    return made


def _rule(widths: list[int], mark: str) -> str:
    return "+" + "+".join(mark * width for width in widths) + "+\n"


def table(chips: list[Chip], kind: str, version: str) -> str:
    """``npu-smi info`` as it looks for chips of a kind (``910b``, ``a3``, ``310p`` or ``950``), widths and paddings as in the captures.

    No capture of a 950's table is known; its columns are those of the tool's source.
    """
    widths = {"310p": [31, 17, 54], "950": [8, 18, 15, 53]}.get(kind, [27, 15, 52])
    total = sum(widths) + len(widths) - 1
    single, double, die = _rule(widths, "-"), _rule(widths, "="), _rule([total], "-")
    heads = {
        "310p": (f"| {'NPU     Name':<30}| {'Health':<16}| ", f"| {'Chip    Device':<30}| {'Bus-Id':<16}| ", "Memory-Usage(MB)"),
        "950": (f"| NPU ID | {'Name':<17}| {'Health':<14}| ", f"|{'':8}|{'':18}| {'Bus-Id':<14}| ", "Memory-Usage(MB)  HBM-Usage(MB)"),
    }
    second = "Chip  Phy-ID" if kind == "a3" else "Chip"
    usual = (f"| {'NPU   Name':<26}| {'Health':<14}| ", f"| {second:<26}| {'Bus-Id':<14}| ", "Memory-Usage(MB)  HBM-Usage(MB)")
    first, second, memory = heads.get(kind, usual)
    use = "NPU Util(%)" if kind == "950" else "AICore(%)"
    last = widths[-1] - 1
    lines = [die, f"| {f'npu-smi {version:<24} Version: {version}':<{total - 1}}|\n", single]
    lines += [
        f"{first}{'Power(W)    Temp(C)           Hugepages-Usage(page)':<{last}}|\n",
        f"{second}{use + '   ' + memory:<{last}}|\n",
        double,
    ]
    for place, chip in enumerate(chips):
        bus = (chip.bus or "NA").upper()
        power = "-" if kind == "a3" and chip.chip else "NA" if kind == "310p" else chip.power
        figures = f"{power:<11} {chip.temperature:<17} {0:<5}/ {0}"
        used, size = chip.memory
        pair = f"{used:<5}/ {size}"
        memory = f"{chip.use:<11} {pair}" if kind == "310p" else f"{chip.use:<11} {0:<5}/ {0:<10} {pair}"
        if kind == "310p":
            tops = f"| {chip.npu:<7} {chip.name:<22}| {chip.health:<15} | ", f"| {chip.chip:<7} {chip.number:<22}| {bus:<15} | "
        elif kind == "950":
            tops = f"| {chip.npu:<7}| {chip.name:<17}| {chip.health:<13} | ", f"|{'':8}|{'':18}| {bus:<13} | "
        else:
            own = f"{chip.chip:<5} {chip.number:<20}" if kind == "a3" else f"{chip.chip:<26}"
            tops = f"| {chip.npu:<5} {chip.name:<20}| {chip.health:<13} | ", f"| {own}| {bus:<13} | "
        lines += [f"{tops[0]}{figures:<{last}}|\n", f"{tops[1]}{memory:<{last}}|\n"]
        lines.append(die if place + 1 < len(chips) and chips[place + 1].npu == chip.npu else double)
    widths = widths if kind != "950" else [27, 15, 53]
    single, double = _rule(widths, "-"), _rule(widths, "=")
    names = widths[-1] - 26
    whose = "NPU ID" if kind == "950" else "NPU     Chip"
    lines += [
        single,
        f"| {whose:<{widths[0] - 1}}| {'Process id':<{widths[1] - 1}}| {'Process name':<24} | {'Process memory(MB)':<{names - 2}}|\n",
        double,
    ]
    for npu, own in by_npu(chips).items():
        for chip in own:
            place = f"{npu}" if kind == "950" else f"{npu:<7} {chip.chip}"
            for pid, name, mib in chip.processes:
                lines.append(f"| {place:<{widths[0] - 1}}| {pid:<{widths[1] - 1}}| {name:<24} | {mib:<{names - 2}}|\n")
        if not any(chip.processes for chip in own):
            lines.append(f"| {f'No running processes found in NPU {npu}':<{total - 1}}|\n")
        lines.append(double)
    return "".join(lines)


def a2() -> Host:
    """Eight idle 910B2, driver 25.5.1: ids, addresses and memory of one server, which are not in the order of the bus."""
    lines = [line.split("\t") for line in capture("910b2-index-to-physical-id-bdf__8x-910b2__driver-25.5.1.tsv").splitlines()[1:]]
    chips = [Chip(int(line[0]), 0, int(line[1]), int(line[0]), line[2], line[3], memory=(int(line[5]), int(line[4]))) for line in lines]
    made = make(table(chips, "910b", "25.5.1"), chips, "25.5.1")
    made.smi["info -l"] = Answer(capture("npu-smi-info-l__25.5.1__8x-910b.txt"))
    made.smi["info -m"] = Answer(capture("npu-smi-info-m__910b-8-cards-with-mcu__doc.txt"))
    made.files["/etc/hccn.conf"] = capture("hccn.conf__8-devices.txt")
    return made


def entries(made: Host) -> tuple[dict[str, str], dict[str, str]]:
    """Files and symbolic links of a host, by absolute path, without its tools."""
    files = dict(made.files)
    links = {}
    for address, function in made.bus.items():
        here = f"/sys/bus/pci/devices/{address}"
        files[here + "/vendor"] = function.vendor + "\n"
        files[here + "/device"] = function.device + "\n"
        files[here + "/class"] = function.kind + "\n"
        files[here + "/numa_node"] = f"{function.numa}\n"
        if function.driver:
            links[here + "/driver"] = f"../../../../bus/pci/drivers/{function.driver}"
        if function.physfn:
            links[here + "/physfn"] = f"../{function.physfn}"
    for module, state in made.modules.items():
        files[f"/sys/module/{module}/initstate"] = state + "\n"
    if MODULE in made.modules:
        links[f"/sys/bus/pci/drivers/{DRIVER}/module"] = f"../../../../module/{MODULE}"
    return files, links


def play(root: Path, made: Host) -> Path:
    """Write a host under ``root``; returns it."""

    def place(path: str) -> Path:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    files, links = entries(made)
    for tool in made.tools:
        stem = PATHS[tool] + ".answers/"
        files.update({PATHS[tool]: SCRIPT, stem + "asked": "", stem + "unknown": UNKNOWN_QUERY})
        files[stem + "no_library"] = capture("npu-smi__libdrvdsmi_host-missing__error.txt").replace("npu-smi", tool)
        for arguments, answer in made.answers[tool].items():
            files.update(
                {f"{stem}{arguments}.out": answer.out, f"{stem}{arguments}.err": answer.err, f"{stem}{arguments}.rc": str(answer.rc)}
            )
            if answer.hang:
                files[f"{stem}{arguments}.hang"] = ""
    for path, text in files.items():
        place(path).write_bytes(text.encode("utf-8"))
    for path, target in links.items():
        place(path).symlink_to(target)
    for tool in made.tools:
        place(PATHS[tool]).chmod(0o755)
    return root


def vendor(root: Path, timeout_s: float = 20.0, options: dict | None = None) -> Vendor:
    """The probe's view of a played host."""
    return Vendor(tools=TOOLS, environment=ENVIRONMENT, timeout_s=timeout_s, root=str(root), options=options)


def asked(root: Path, tool: str = "npu-smi") -> list[str]:
    """What a played tool was called with, in order."""
    return (root / (PATHS[tool] + ".answers").lstrip("/") / "asked").read_text(encoding="utf-8").splitlines()


class Quick(Vendor):
    """The same view without a directory and without starting a process for each query."""

    def __init__(self, made: Host) -> None:
        super().__init__(tools=TOOLS, environment=ENVIRONMENT)
        self.host = made
        self.files, self.links = entries(made)

    def exists(self, path: str) -> bool:
        return path in self.files

    def names(self, path: str) -> list[str]:
        stem = path.rstrip("/") + "/"
        return sorted({one[len(stem) :].split("/")[0] for one in (*self.files, *self.links) if one.startswith(stem)})

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def link(self, path: str) -> str:
        return self.links.get(path, "").rsplit("/", 1)[-1]

    def tool(self, name: str) -> str:
        if name in self.host.tools:
            return PATHS[name]
        raise LLMError(f"{name}: not found")

    def run(self, name: str, *arguments: str) -> Completed:
        path = self.tool(name)
        answer = self.host.answers[name].get(" ".join(arguments), Answer(UNKNOWN_QUERY, rc=1))
        if answer.hang:
            raise LLMError(f"{path}: no end after {self.timeout_s:g} s; it hangs")
        return Completed([path, *arguments], answer.rc, answer.out, answer.err)
