#!/usr/bin/env python3
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write a fleet of played hosts, each a directory that stands for a host's root; ``smi.py`` is their vendors' tool.

Usage: hosts.py DIRECTORY: writes DIRECTORY/<host>/... and prints, per host, its number within its vendor and its inventory variables.

Hosts are whole: what their kernel, driver and tool say comes from captures (tests/unit/plugins/played), and the rest is what a good server
of that kind has. ``FLEET`` plants the faults.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
# Makes the collection importable from the checkout.
import unit.conftest  # noqa: E402, F401
from unit.plugins.played import ascend, hygon, nvidia  # noqa: E402

SMI = pathlib.Path(__file__).with_name("smi.py")
#: Where the lab's nodes keep them.
PLACE = "/opt/played"
#: Memory of a card that CPU cores play, MiB: a container that fills one fills a played card.
CORE_MIB = 1024

#: What every good server has besides its cards: two sockets, tuned, no firewall, nobody on the ports.
SERVER = {
    "/proc/1/limits": "Limit                     Soft Limit           Hard Limit           Units\n"
    "Max open files            1048576              1048576              files\n"
    "Max locked memory         unlimited            unlimited            bytes\n",
    "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda2 ro iommu=pt\n",
    "/proc/meminfo": "MemTotal:       1056492132 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n",
    "/proc/modules": "",
    "/proc/net/tcp": "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n",
    "/proc/sys/kernel/numa_balancing": "0\n",
    "/proc/sys/kernel/osrelease": "5.10.0-216.0.0.115.oe2203sp4.x86_64\n",
    "/proc/sys/vm/swappiness": "0\n",
    "/sys/devices/system/node/online": "0-1\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/var/lib/dpkg/status": "",
    **{f"/sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor": "performance\n" for number in range(4)},
}

Answers = dict[str, dict[str, Any]]


@dataclasses.dataclass
class Kind:
    """Hosts of one vendor.

    Attributes:
        platform: their platform in the catalog.
        play: writes one under a directory and returns what ``smi.py`` needs to know.
    """

    platform: str
    play: Callable[[pathlib.Path], dict[str, Any]]


def plain(answers: dict[str, Any], names: dict[str, str] | None = None) -> Answers:
    """Answers of a played tool as ``smi.py`` reads them, some under other names."""
    return {
        (names or {}).get(name, name): {"out": answer.out, "err": answer.err, "rc": answer.rc}
        for name, answer in answers.items()
        if not names or name in names
    }


def card(identity: str, number: int, total_mib: int, idle_mib: int, uuid: str = "") -> dict[str, Any]:
    return {"id": identity, "number": number, "total_mib": total_mib, "idle_mib": idle_mib, "uuid": uuid}


def play_hygon(root: pathlib.Path) -> dict[str, Any]:
    """Eight idle K100_AI."""
    host = hygon.k100ai()
    hygon.play(root, host)
    rows = [line.split("\t") for line in hygon.capture("k100ai-index-to-bdf-card-renderd__8x-k100ai__dtk-24.04.3.tsv").splitlines()[1:]]
    names = {name: "" if name == "bare" else name for name in host.answers}
    block = hygon.capture("hy-smi-showpids__driver-6.3.31__busy.txt")
    return {
        "vendor": "hygon",
        "tool": hygon.HY_SMI,
        "answers": plain(host.answers, names),
        "unknown": {"out": "", "err": "usage: hy-smi [-h] [-i] [-v]\nhy-smi: error: unrecognized arguments\n", "rc": 2},
        "cards": [card(row[1], int(row[0]), int(row[6]), 2) for row in rows],
        "process": block[block.index("PID: ") : block.index("\n\n=") + 2],
    }


def play_ascend(root: pathlib.Path) -> dict[str, Any]:
    """Eight idle 910B2."""
    host = ascend.a2()
    ascend.play(root, host)
    lines = [line.split("\t") for line in ascend.capture("910b2-index-to-physical-id-bdf__8x-910b2__driver-25.5.1.tsv").splitlines()[1:]]
    return {
        "vendor": "ascend",
        "tool": ascend.NPU_SMI,
        "answers": plain(host.smi),
        "unknown": {"out": ascend.UNKNOWN_QUERY, "err": "", "rc": 1},
        "cards": [card(line[2], int(line[0]), int(line[4]), int(line[5])) for line in lines],
        "library": ascend.ENVIRONMENT["LD_LIBRARY_PATH"].split(":")[0],
        "no_library": ascend.capture("npu-smi__libdrvdsmi_host-missing__error.txt"),
        "alarm": ascend.capture("npu-smi-info-t-health__alarm__multi-line.txt"),
        "well": ascend.capture("npu-smi-info-t-health__ok.txt"),
        "no_card": ascend.capture("npu-smi-info-t-board__card-missing__error.txt"),
    }


def nvidia_table(count: int) -> str:
    """The bare tool's table of several cards: the box of the captured one, with each one's number and address."""
    lines = nvidia.capture("nvidia-smi__590.48.01__1x-h200__idle.txt").splitlines(True)
    at = next(number for number, line in enumerate(lines) if "00000000:83:00.0" in line)
    boxes = ""
    for index in range(count):
        box = "".join(lines[at : at + 4]).replace("00000000:83:00.0", "0000" + nvidia.ADDRESSES[index].upper())
        boxes += box.replace("|   0  NVIDIA", f"|{index:>4}  NVIDIA")
    return "".join(lines[:at]) + boxes + "".join(lines[at + 4 :])


def play_nvidia(root: pathlib.Path) -> dict[str, Any]:
    """Eight idle H200 with NVLink."""
    host = nvidia.several(8, "idle")
    host.answers["table"].out = nvidia_table(8)
    nvidia.play(root, host)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        (root / "dev" / name).touch()
    names = {
        "query": "--query-gpu",
        "apps": "--query-compute-apps",
        "list": "-L",
        "version": "--version",
        "table": "",
        "topology": "topo -m",
    }
    return {
        "vendor": "nvidia",
        "tool": nvidia.NVIDIA_SMI,
        "answers": plain(host.answers, names),
        "unknown": {"out": "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", "err": "", "rc": 2},
        "cards": [card(nvidia.ADDRESSES[number], number, 143771, 0, nvidia.uuid(number)) for number in range(8)],
        "product": "NVIDIA H200",
    }


KINDS = {
    "k100": Kind("hygon_k100ai", play_hygon),
    "a910b": Kind("ascend_910b", play_ascend),
    "h200": Kind("nvidia_h200", play_nvidia),
}

#: Host -> what is planted on it, as smi.py's Faults have it. Of each vendor the first two are good and equal.
FLEET: dict[str, dict[str, Any]] = {
    "k100-01": {},
    "k100-02": {},
    "k100-03": {"hang": True},
    "k100-04": {"missing": True},
    "a910b-01": {},
    "a910b-02": {},
    "a910b-03": {"unhealthy": [5]},
    "a910b-04": {"exit": 172, "says": ascend.capture("npu-smi__device-used-8020__error.txt")},
    "h200-01": {},
    "h200-02": {},
    "h200-03": {"lost": [3]},
    "h200-04": {"exit": 14},
}


def kind_of(name: str) -> Kind:
    return KINDS[name.rsplit("-", 1)[0]]


def write(root: pathlib.Path, name: str, faults: dict[str, Any]) -> dict[str, Any]:
    """Write one host under ``root``, with ``faults`` planted; returns its ``host.json``."""
    root.mkdir(parents=True)
    told = kind_of(name).play(root)
    told["scale"] = told["cards"][0]["total_mib"] // CORE_MIB
    files = dict(SERVER)
    if told["vendor"] == "nvidia":
        files["/var/lib/dpkg/status"] = "Package: nvidia-container-toolkit\nStatus: install ok installed\nVersion: 1.18.1-1\n"
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    # The engine of the host is that of the node it is played on.
    (root / "var/run").mkdir(parents=True)
    (root / "var/run/docker.sock").symlink_to("/var/run/docker.sock")

    tool = root / told["tool"].lstrip("/")
    shutil.rmtree(f"{tool}.answers")
    tool.unlink()
    if not faults.get("missing"):
        shutil.copyfile(SMI, tool)
        tool.chmod(0o755)
    here = pathlib.Path(f"{tool}.replay")
    here.mkdir()
    (here / "host.json").write_text(json.dumps(told), encoding="utf-8")
    (here / "state.json").write_text(json.dumps(faults) + "\n", encoding="utf-8")
    return told


def variables(name: str, faults: dict[str, Any], cards: int) -> dict[str, Any]:
    """Inventory variables of a host. With an image that nobody pinned a site refuses it before it touches any host; preflight needs none."""
    return {
        "llm_platform": kind_of(name).platform,
        "llm_model": "",
        "accelerator_root": f"{PLACE}/{name}",
        "accelerator_expected_cards": cards,
        "replica_count": 0,
        "replica_min_count": 0,
        "replica_image": {"source": "registry"},
        "accelerator_image_mib": 0,
        # A tool that hangs is waited for in vain.
        **({"accelerator_tool_timeout_s": 3} if faults.get("hang") else {}),
    }


def main(directory: str) -> int:
    told = {}
    for name, faults in FLEET.items():
        host = write(pathlib.Path(directory) / name, name, faults)
        number = int(re.search(r"\d+$", name).group())
        told[name] = {"number": number, "vars": variables(name, faults, len(host["cards"]))}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
