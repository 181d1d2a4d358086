# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plays hosts with NVIDIA GPUs in a directory: a tool that answers from files, sysfs, the driver's files under /proc, /dev.

What the tool prints is a capture. Columns that a capture was cut of are ``[N/A]``. Hosts with several cards are made from the capture of
one card: each gets its own index, uuid and address.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._run import Completed
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "accelerators" / "nvidia"
NVIDIA_SMI = "/usr/bin/nvidia-smi"
TOOLS = {"nvidia-smi": [NVIDIA_SMI, "/usr/local/bin/nvidia-smi"]}
MASKED = "GPU-00000000-0000-0000-0000-000000000000"

#: Answers from files beside it; notes each call; picks the columns it is asked for.
SCRIPT = """#!/bin/sh
here="$0.answers"
printf '%s\\n' "$*" >> "$here/asked"
fields=
case "$1" in
--query-gpu=*) at=$here/query fields=${1#*=} ;;
--query-compute-apps=*) at=$here/apps fields=${1#*=} ;;
-L) at=$here/list ;;
--version) at=$here/version ;;
-q) at=$here/log ;;
topo) at=$here/topology ;;
"") at=$here/table ;;
*) at=$here/none ;;
esac
if [ ! -f "$at.out" ]; then
    echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."
    exit 2
fi
if [ -n "$fields" ] && grep -Eq '^[a-z_.]+( \\[[A-Za-z%]+\\])?, ' "$at.out"; then
    while read -r field; do
        case ",$fields," in
        *",$field,"*)
            printf 'Field "%s" is not a valid field to query.\\n\\n' "$field"
            exit 2
            ;;
        esac
    done < "$here/unknown"
    awk -F ', ' -v fields="$fields" -f "$here/columns.awk" "$at.out"
else
    cat "$at.out"
fi
[ ! -s "$at.err" ] || cat "$at.err" >&2
[ ! -f "$at.hang" ] || exec sleep 600
read -r rc < "$at.rc"
exit "$rc"
"""

COLUMNS = """
BEGIN { count = split(fields, wanted, ",") }
/^(Unable|WARNING:)/ { print; next }
!header {
    header = 1
    for (i = 1; i <= NF; i++) { name = $i; sub(/ \\[.*/, "", name); at[name] = i; heads[name] = $i }
    line = ""
    for (i = 1; i <= count; i++) line = line (i > 1 ? ", " : "") (wanted[i] in heads ? heads[wanted[i]] : wanted[i])
    print line
    next
}
NF == 1 { print; next }
{
    line = ""
    for (i = 1; i <= count; i++) line = line (i > 1 ? ", " : "") (wanted[i] in at ? $(at[wanted[i]]) : "[N/A]")
    print line
}
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
    """One PCI function; ``minor`` None: the driver has no file about it."""

    minor: int | None = 0
    uuid: str = MASKED
    model: str = "NVIDIA H200"
    numa: int = 1
    driver: str = "nvidia"
    kind: str = "0x030200"
    device: str = "0x2335"
    firmware: str = "590.48.01"
    virtual: bool = False


@dataclasses.dataclass
class Host:
    """A host before it is played; change what a test is about, then ``play`` it.

    Attributes:
        answers: ``query``, ``apps``, ``list``, ``version``, ``table``, ``log`` (-q) and ``topology``; what is missing it does not know.
        bus: PCI functions by address.
        module: version of the kernel module; empty for none.
        unknown: fields that the driver does not know.
        capabilities: MIG parts under /proc/driver/nvidia/capabilities -> minor of their node.
    """

    answers: dict[str, Answer]
    bus: dict[str, Function]
    module: str
    unknown: tuple[str, ...] = ()
    capabilities: dict[str, int] = dataclasses.field(default_factory=dict)

    def edit(self, name: str, old: str, new: str, count: int = -1) -> None:
        """Change what the tool says; what is changed must be there."""
        assert old in self.answers[name].out, "{0!r} is not in {1}".format(old, name)
        self.answers[name].out = self.answers[name].out.replace(old, new, count)


MACHINES = {
    "590.48.01__1x-h200": {"0000:83:00.0": Function()},
    "590.48.01__1x-h200-mig": {"0000:83:00.0": Function()},
    "590.48.01__1x-h100-mig": {"0000:00:09.0": Function(3, model="NVIDIA H100 80GB HBM3", device="0x2330", numa=-1)},
    "595.80__1x-l40s": {"0000:01:00.0": Function(0, model="NVIDIA L40S", device="0x26b9", numa=0, firmware="595.80")},
    "610.57.04__1x-rtx2080s": {
        "0000:0c:00.0": Function(0, model="NVIDIA GeForce RTX 2080 SUPER", device="0x1e81", kind="0x030000", numa=0, firmware="N/A"),
        "0000:0c:00.1": Function(None, driver="snd_hda_intel", kind="0x040300", device="0x10f8"),
        "0000:0c:00.2": Function(None, driver="xhci_hcd", kind="0x0c0330", device="0x1ad8"),
        "0000:0c:00.3": Function(None, driver="nvidia-gpu", kind="0x0c8000", device="0x1ad9"),
    },
}


def recorded(machine: str, load: str = "idle") -> Host:
    """A host that was captured, ``idle`` or under ``load``."""
    names = {
        "query": "nvidia-smi-query-gpu__{0}__{1}__columns-cut.csv",
        "apps": "nvidia-smi-query-compute-apps__{0}__{1}.csv",
        "list": "nvidia-smi-L__{0}.txt",
        "version": "nvidia-smi-version__{0}.txt",
        "table": "nvidia-smi__{0}__{1}.txt",
    }
    answers = {name: Answer(capture(file.format(machine, load))) for name, file in names.items()}
    bus = {address: dataclasses.replace(function) for address, function in MACHINES[machine].items()}
    return Host(answers, bus, machine.split("__")[0])


#: Addresses of the GPUs of an eight-card host, and the minors that its driver gave them.
ADDRESSES = ["0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0", "0000:5d:00.0", "0000:9a:00.0", "0000:ab:00.0", "0000:ba:00.0", "0000:db:00.0"]
MINORS = [3, 2, 1, 0, 7, 6, 5, 4]


def uuid(index: int) -> str:
    return "GPU-{0:08d}-0000-0000-0000-{0:012d}".format(index + 1)


def several(count: int = 8, load: str = "load") -> Host:
    """A host with several H200 and NVLink between all of them, made from the capture of one."""
    host = recorded("590.48.01__1x-h200", load)
    header, row = host.answers["query"].out.splitlines()
    rows = [
        row.replace("0, " + MASKED, "{0}, {1}".format(index, uuid(index)), 1).replace("00000000:83:00.0", "0000" + ADDRESSES[index].upper())
        for index in range(count)
    ]
    host.answers["query"].out = "\n".join(["count, " + header] + ["{0}, {1}".format(count, line) for line in rows]) + "\n"
    header, *apps = host.answers["apps"].out.splitlines()
    host.answers["apps"].out = "\n".join(
        [header]
        + [
            # Process ids differ by card.
            line.replace(MASKED + ", 1", "{0}, {1}".format(uuid(index), index + 1)).replace(
                "00000000:83:00.0", "0000" + ADDRESSES[index].upper()
            )
            for index in range(count)
            for line in apps
        ]
        + [""]
    )
    line = host.answers["list"].out
    host.answers["list"].out = "".join(
        line.replace("GPU 0:", "GPU {0}:".format(index)).replace(MASKED, uuid(index)) for index in range(count)
    )
    names = ["GPU{0}".format(index) for index in range(count)]
    matrix = ["\t\x1b[4m" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"]
    for index, name in enumerate(names):
        cells = [" X " if other == index else "NV18" for other in range(count)]
        matrix.append("\t".join([name, *cells, "0-23" if index < 4 else "24-47", str(index // 4), "", "N/A"]))
    legend = capture("nvidia-smi-topo-m__590.48.01__1x-h200.txt").split("\n\n", 1)[1]
    host.answers["topology"] = Answer("\n".join(matrix) + "\n\n" + legend)
    host.bus = {ADDRESSES[index]: Function(MINORS[index], uuid(index), numa=index // 4) for index in range(count)}
    # NVSwitches are of the same vendor and no cards.
    host.bus["0000:07:00.0"] = Function(None, driver="nvidia-nvswitch", kind="0x068000", device="0x22a3")
    return host


def lose(host: Host, index: int, message: str) -> str:
    """Take a card out of every listing, as the tool does with one that it cannot open, and return its address."""
    address = [line for line in host.answers["query"].out.splitlines() if line.startswith("{0}, {1}, ".format(len(ADDRESSES), index))][0]
    for name in ("query", "list", "apps"):
        kept = [line for line in host.answers[name].out.splitlines() if uuid(index) not in line]
        host.answers[name].out = "\n".join(kept) + "\n"
        host.answers[name].err = message
    return address.split(", ")[3].lower()[4:]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def play(root: Path, host: Host, timeout_s: float = 20.0) -> Vendor:
    """Write a host under ``root`` and return the view of it that probes get."""
    script = root / NVIDIA_SMI.lstrip("/")
    write(script, SCRIPT)
    script.chmod(0o755)
    here = Path("{0}.answers".format(script))
    write(here / "asked", "")
    write(here / "columns.awk", COLUMNS)
    write(here / "unknown", "".join(field + "\n" for field in host.unknown))
    for name, answer in host.answers.items():
        write(here / (name + ".out"), answer.out)
        write(here / (name + ".err"), answer.err)
        write(here / (name + ".rc"), "{0}\n".format(answer.rc))
        if answer.hang:
            write(here / (name + ".hang"), "")
    proc = root / "proc/driver/nvidia"
    if host.module:
        write(root / "sys/module/nvidia/initstate", "live\n")
        write(root / "sys/module/nvidia/version", host.module + "\n")
        write(proc / "version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {0}  Release Build\n".format(host.module))
    for address, function in host.bus.items():
        device = root / "sys/bus/pci/devices" / address
        write(device / "vendor", "0x10de\n")
        write(device / "device", function.device + "\n")
        write(device / "class", function.kind + "\n")
        write(device / "numa_node", "{0}\n".format(function.numa))
        if function.driver:
            (device / "driver").symlink_to("../../../bus/pci/drivers/" + function.driver)
        if function.virtual:
            (device / "physfn").mkdir()
        if function.minor is not None:
            lines = [
                ("Model", function.model),
                ("IRQ", "121"),
                ("GPU UUID", function.uuid),
                ("Bus Type", "PCIe"),
                ("Bus Location", address),
                ("Device Minor", str(function.minor)),
                ("GPU Firmware", function.firmware),
                ("GPU Excluded", "No"),
            ]
            write(proc / "gpus" / address / "information", "".join("{0}: \t\t {1}\n".format(*line) for line in lines))
            write(root / "dev" / "nvidia{0}".format(function.minor), "")
    for part, minor in host.capabilities.items():
        write(proc / "capabilities" / part / "access", "DeviceFileMinor: {0}\nDeviceFileMode: 292\nDeviceFileModify: 1\n".format(minor))
        write(root / "dev/nvidia-caps/nvidia-cap{0}".format(minor), "")
    return Vendor(tools=TOOLS, timeout_s=timeout_s, root=str(root))


def asked(root: Path) -> list[str]:
    """What the tool was asked, in order."""
    return Path("{0}/{1}.answers/asked".format(root, NVIDIA_SMI.lstrip("/"))).read_text(encoding="utf-8").splitlines()


class Quick(Vendor):
    """The view of a played host whose tool answers without being run; for thousands of cases. ``SCRIPT`` is what it stands for."""

    def __init__(self, vendor: Vendor, host: Host) -> None:
        super().__init__(tools=vendor.tools, root=vendor.root)
        self.host = host

    def run(self, name: str, *arguments: str) -> Completed:
        argv = [self.path(self.tool(name)), *arguments]
        names = {"-L": "list", "--version": "version", "-q": "log", "topo": "topology", "": "table"}
        word, _equals, fields = (arguments or ("",))[0].partition("=")
        at = {"--query-gpu": "query", "--query-compute-apps": "apps"}.get(word) or names.get(word, "none")
        if at not in self.host.answers:
            return Completed(argv, 2, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", "")
        answer = self.host.answers[at]
        if answer.hang:
            raise LLMError("{0}: no end after {1:g} s; it hangs".format(" ".join(argv), self.timeout_s))
        wanted = fields.split(",") if fields else []
        for field in self.host.unknown:
            if field in wanted:
                return Completed(argv, 2, 'Field "{0}" is not a valid field to query.\n\n'.format(field), "")
        return Completed(argv, answer.rc, pick(answer.out, wanted), answer.err)


def pick(text: str, wanted: list[str]) -> str:
    """The columns of a CSV that were asked for; what is no CSV stays."""
    heads: list[str] = []
    lines = []
    for line in text.split("\n"):
        cells = line.split(", ")
        if not wanted or len(cells) == 1 or line.startswith(("Unable", "WARNING:")):
            lines.append(line)
            continue
        if not heads:
            heads = cells
            plain = [head.split(" [")[0] for head in heads]
            lines.append(", ".join(heads[plain.index(field)] if field in plain else field for field in wanted))
            continue
        row = dict(zip(plain, cells, strict=False))
        lines.append(", ".join(row.get(field, "[N/A]" if field not in plain else "") for field in wanted))
    return "\n".join(lines)
