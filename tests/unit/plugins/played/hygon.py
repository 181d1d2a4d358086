# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plays hosts with Hygon cards in a directory: a tool that answers from files, sysfs, /dev, /proc and the DTK's files.

What a query prints is a capture where there is one. The shapes of ``--showbus`` and of whole ``--showproductname``,
``--showmeminfo`` and ``--healthcheck`` outputs are put together from the line forms that are known.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._run import Completed
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "accelerators" / "hygon"
HY_SMI = "/opt/hyhal/bin/hy-smi"
ROCM_SMI = "/opt/dtk/bin/rocm-smi"
TOOLS = {"hy-smi": [HY_SMI, "/usr/local/hyhal/bin/hy-smi", ROCM_SMI], "rocminfo": ["/opt/dtk/bin/rocminfo"]}
NO_FORMAT = "This command does not support to set print format\n"

#: Answers from files beside it, by its arguments; notes each call; knows nothing else.
SCRIPT = """#!/bin/sh
here="$0.answers"
printf '%s\\n' "$*" >> "$here/asked"
at="$here/${*:-bare}"
if [ ! -f "$at.out" ]; then
    echo "usage: hy-smi [-h] [-i] [-v]" >&2
    echo "hy-smi: error: unrecognized arguments: $*" >&2
    exit 2
fi
cat "$at.out"
cat "$at.err" >&2
[ ! -f "$at.hang" ] || exec sleep 600
exit "$(cat "$at.rc")"
"""


def capture(name: str) -> str:
    """Text of a fixture."""
    return (FIXTURES / name).read_text(encoding="utf-8")


@dataclasses.dataclass
class Answer:
    """What the tool does when it is asked something."""

    out: str = ""
    err: str = ""
    rc: int = 0
    hang: bool = False


@dataclasses.dataclass
class Function:
    """One PCI function: chip id, class, driver, NUMA node, numbers of /dev/dri nodes (None: it has no such node)."""

    chip: str = "6210"
    kind: str = "0x0b4000"
    driver: str = "hycu"
    numa: int = -1
    card: int | None = None
    render: int | None = None
    vendor: str = "0x1d94"


@dataclasses.dataclass
class Host:
    """A host before it is played; change what a test is about, then ``play`` it.

    Attributes:
        answers: what the tool says, by its arguments joined with blanks; what is missing it does not know.
        bus: PCI functions by address.
        module, module_state, module_version: the kernel module; empty name for none.
        files: other files, by absolute path.
        processes: pid -> name.
        nodes: device nodes beside those of the cards.
        tool: where the tool lies.
    """

    answers: dict[str, Answer]
    bus: dict[str, Function]
    module: str = "hycu"
    module_state: str = "live"
    module_version: str = "6.3.31-V1.5.0a"
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    processes: dict[int, str] = dataclasses.field(default_factory=dict)
    nodes: list[str] = dataclasses.field(default_factory=lambda: ["/dev/kfd"])
    tool: str = HY_SMI


def frame(lines: list[str]) -> str:
    """Lines as a whole output of the tool."""
    rule = "=" * 96
    return "\n".join(["", " System Management Interface ".center(96, "="), rule, *lines, rule, " End of SMI Log ".center(96, "="), ""])


def listing(query: str, values: dict[int, dict[str, str]], word: str = "HCU", speaks_json: bool = True) -> dict[str, Answer]:
    """The answers to one query, as text and as JSON (or as the refusal to print JSON)."""
    text = frame([f"{word}[{index}]\t\t: {key}: {value}" for index, fields in values.items() for key, value in fields.items()])
    data = json.dumps({f"card{index}": fields for index, fields in values.items()}) + "\n"
    return {query: Answer(text), f"{query} --json": Answer(data if speaks_json else NO_FORMAT)}


def no_processes() -> Answer:
    return Answer(capture("hy-smi-showpids__driver-6.3.31__no-process.txt"))


def health(addresses: list[str], word: str = "HCU", says: str = "Healthy") -> Answer:
    return Answer(frame([f"{word}[{index}]          : Bus Id : {address}         : {says}" for index, address in enumerate(addresses)]))


def loaded_module(lsmod: str) -> str:
    """Name of the driver's own module in a capture of lsmod: the one that others do not use."""
    return next(line.split()[0] for line in capture(lsmod).splitlines() if len(line.split()) == 3)


def k100ai(speaks_json: bool = True, busy: bool = False) -> Host:
    """Eight K100_AI with driver 6.3: table, products, lspci and lsmod of one server, nodes of another with the same PCI list.

    They are idle; ``busy`` puts the process of the busy capture onto card 1.
    """
    rows = [line.split("\t") for line in capture("k100ai-index-to-bdf-card-renderd__8x-k100ai__dtk-24.04.3.tsv").splitlines()[1:]]
    seen = [re.match(r"(\S+) Co-processor: .* KONGMING", line).group(1) for line in capture("lspci__8x-k100ai__uos20.txt").splitlines()]
    bus = {
        "0000:" + address: Function(card=int(row[2]), render=int(row[3]), numa=0 if number < 4 else 1)
        for number, (address, row) in enumerate(zip(seen, rows, strict=True))
    }
    bus["0000:00:01.0"] = Function(chip="1453", kind="0x060400", driver="pcieport")
    bus["0000:03:00.0"] = Function(chip="2000", kind="0x030000", driver="ast", vendor="0x1a03")
    used = {"1": "9703"} if busy else {}
    products = [line for line in capture("hy-smi-a__driver-6.3__8x-k100ai__product-lines-only.txt").splitlines() if line != "......"]
    named = {index: {"Card Series": "K100_AI", "Card Vendor": "Chengdu C-3000 IC Design Co., Ltd."} for index in range(len(rows))}
    answers = {
        "bare": Answer(capture("hy-smi__driver-6.3__8x-k100ai__idle.txt")),
        **listing("--showbus", {int(row[0]): {"PCI Bus": row[1]} for row in rows}, speaks_json=speaks_json),
        **listing("--showproductname", named, speaks_json=speaks_json),
        "--showproductname": Answer(frame(products)),
        **listing(
            "--showmeminfo vram",
            {int(row[0]): {"vram Total Memory (MiB)": row[6], "vram Total Used Memory (MiB)": used.get(row[0], "2")} for row in rows},
            speaks_json=speaks_json,
        ),
        **listing("--showuse", {int(row[0]): {"HCU use (%)": "0.0"} for row in rows}, speaks_json=speaks_json),
        "--showpids": no_processes(),
        "--showdriverversion": Answer(capture("hy-smi-showdriverversion__driver-6.3.31.txt")),
        **listing(
            "--showtoponuma",
            {int(row[0]): {"(Topology) Numa Node": "0" if int(row[0]) < 4 else "1"} for row in rows},
            speaks_json=speaks_json,
        ),
        "--healthcheck": health([row[1] for row in rows]),
    }
    host = Host(answers, bus, module=loaded_module("lsmod__hygon-driver-6.3-and-newer__hycu.txt"))
    host.files["/opt/dtk/.info/rocm_version"] = "25.04.4\n"
    if busy:
        idle = "109.0W     auto     400.0W     0%  "
        answers["bare"].out = answers["bare"].out.replace(idle, idle.replace(" 0% ", " 15%"))
        processes = capture("hy-smi-showpids__driver-6.3.31__busy.txt").replace("0000:36:00.0", rows[1][1])
        answers["--showpids"] = Answer(frame(processes.splitlines()[:-1]))
        host.processes[2004092] = "python3"
    return host


def k100ai_dcu() -> Host:
    """Four idle K100_AI with DTK 24.04.1 and a driver before 6.3: DCU wordings, rocm-smi, neither health check nor topology."""
    addresses = ["0000:07:00.0", "0000:0a:00.0", "0000:0f:00.0", "0000:16:00.0"]
    bus = {address: Function(driver="hydcu", card=number + 1, render=128 + number) for number, address in enumerate(addresses)}
    cards = range(4)
    answers = {
        "bare": Answer(capture("hy-smi__dtk-24.04.1__4x-k100ai__idle__dcu-header.txt")),
        **listing("--showbus", {index: {"PCI Bus": addresses[index]} for index in cards}, "DCU"),
        **listing("--showproductname", {index: {"Card Series": "DCU K100_AI"} for index in cards}, "DCU"),
        **listing(
            "--showmeminfo vram",
            {index: {"vram Total Memory (MiB)": "65520", "vram Total Used Memory (MiB)": "2"} for index in cards},
            "DCU",
        ),
        "--showpids": no_processes(),
    }
    module = loaded_module("lsmod__hygon-driver-6.2-and-older__hydcu.txt")
    return Host(answers, bus, module=module, module_version="rock-5.7.1-6.2.26-V1.5", tool=ROCM_SMI)


def bw() -> Host:
    """Two BW cards with driver 6.3.31, one with a process: table, products, memory, processes and driver version of one server."""
    addresses = ["0000:09:00.0", "0000:36:00.0"]
    answers = {
        "bare": Answer(frame(capture("hy-smi-mig__driver-6.3.31__bw__2-of-8__same-table-as-default.txt").splitlines())),
        **listing("--showbus", {0: {"PCI Bus": addresses[0] + " --> SN: S0 --> OAM ID: 1"}, 1: {"PCI Bus": addresses[1]}}),
        "--showproductname --json": Answer(capture("hy-smi-showproductname-json__driver-6.3.31__bw__2-of-8.json")),
        "--showmeminfo vram --json": Answer(capture("hy-smi-showmeminfo-vram-json__driver-6.3.31__bw__2-of-8.json")),
        "--showpids": Answer(capture("hy-smi-showpids__driver-6.3.31__busy.txt")),
        "--showdriverversion": Answer(capture("hy-smi-showdriverversion__driver-6.3.31.txt")),
        "--showtoponuma --json": Answer(capture("hy-smi-showtoponuma-json__first-card-only.json")),
        "--healthcheck": health(addresses),
    }
    bus = {
        addresses[0]: Function(chip="631a", card=1, render=128, numa=0),
        addresses[1]: Function(chip="631a", card=2, render=129, numa=1),
    }
    return Host(answers, bus, processes={2004092: "python3"})


def z200sm() -> Host:
    """One card that lspci calls Z200SM 80, of 16 GB, with the chip id of K100_AI."""
    match = re.match(r"(\S+) Display controller \[(\d+)\]: .* \[1d94:(\w+)\]", capture("lspci-nn__z200sm__haiguang-vendor-name.txt"))
    address, kind, chip = match.groups()
    memory = capture("hy-smi-showmeminfo-vram__text-line-forms.txt").splitlines()[2]
    answers = {
        "bare": Answer(frame(["DCU Temp AvgPwr Perf PwrCap VRAM% DCU% Mode", "0 47.0C 22.0W auto 300.0W 0% 0% N/A"])),
        "--showbus": Answer(frame(["DCU[0]          : PCI Bus: " + address])),
        "--showproductname": Answer(frame(["DCU[0]          : Card Series: Z200SM 80"])),
        "--showmeminfo vram": Answer(frame([memory, "DCU[0]          : vram Total Used Memory (MiB): 2"])),
        "--showpids": no_processes(),
    }
    return Host(answers, {address: Function(chip, f"0x{kind}00", "hydcu", card=1, render=128)}, module="hydcu", module_version="")


def play(root: Path, host: Host) -> Path:
    """Write a host under ``root``; returns it."""

    def write(path: str, text: str) -> Path:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target

    write(host.tool, SCRIPT).chmod(0o755)
    write(host.tool + ".answers/asked", "")
    for arguments, answer in host.answers.items():
        stem = f"{host.tool}.answers/{arguments}"
        write(stem + ".out", answer.out)
        write(stem + ".err", answer.err)
        write(stem + ".rc", str(answer.rc))
        if answer.hang:
            write(stem + ".hang", "")
    for address, function in host.bus.items():
        here = f"/sys/bus/pci/devices/{address}"
        write(here + "/vendor", function.vendor + "\n")
        write(here + "/device", f"0x{function.chip}\n")
        write(here + "/class", function.kind + "\n")
        write(here + "/numa_node", f"{function.numa}\n")
        if function.driver:
            (root / here.lstrip("/") / "driver").symlink_to(f"../../../../bus/pci/drivers/{function.driver}")
        for name, number in (("card", function.card), ("renderD", function.render)):
            if number is not None:
                (root / here.lstrip("/") / "drm" / f"{name}{number}").mkdir(parents=True)
                write(f"/dev/dri/{name}{number}", "")
    if host.module:
        write(f"/sys/module/{host.module}/initstate", host.module_state + "\n")
        if host.module_version:
            write(f"/sys/module/{host.module}/version", host.module_version + "\n")
    for pid, name in host.processes.items():
        write(f"/proc/{pid}/comm", name + "\n")
    for path, text in host.files.items():
        write(path, text)
    for path in host.nodes:
        write(path, "")
    return root


def vendor(root: Path, timeout_s: float = 20.0) -> Vendor:
    """The probe's view of a played host."""
    return Vendor(tools=TOOLS, timeout_s=timeout_s, root=str(root))


def asked(root: Path, host: Host) -> list[str]:
    """What the played tool was called with, in order."""
    return (root / (host.tool + ".answers").lstrip("/") / "asked").read_text(encoding="utf-8").splitlines()


class Quick(Vendor):
    """The same view without starting a process for each query: answers come from the host as it is now."""

    def __init__(self, root: Path, host: Host) -> None:
        super().__init__(tools=TOOLS, root=str(root))
        self.host = host
        self.asked: list[str] = []

    def run(self, name: str, *arguments: str) -> Completed:
        path = self.tool(name)
        self.asked.append(" ".join(arguments))
        answer = self.host.answers.get(" ".join(arguments) or "bare")
        if answer is None:
            return Completed([path], 2, "", f"usage: hy-smi [-h]\nhy-smi: error: unrecognized arguments: {' '.join(arguments)}\n")
        if answer.hang:
            raise LLMError(f"{path}: no end after {self.timeout_s:g} s; it hangs")
        return Completed([path, *arguments], answer.rc, answer.out, answer.err)
