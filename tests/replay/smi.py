#!/usr/bin/env python3
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""hy-smi, npu-smi or nvidia-smi of a played host: prints its capture, in which the cards follow the containers that really run here.

A copy of this file lies where the tool would lie. Beside it, in ``<tool>.replay/``:

- ``host.json``: which tool this is, what the idle host's tool says to each question, and the cards;
- ``state.json``: the faults that are planted now, see ``Faults``; may be missing, is read at every call;
- ``seen.json``: what the tool remembers for ``stuck_s``.

A container is on a card when it runs and its label ``ironserve.cards`` names the card's id. Its memory, times ``scale``, lies on the card
above what an idle card shows; the card's use is the container's CPU time in a short window, one core being a whole card; the pids are its
own. It must run on Python 3.9 with nothing but the standard library.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import re
import socket
import sys
import time
import urllib.parse
from typing import Any

LABEL = "ironserve.cards"
SOCKET = "/var/run/docker.sock"
#: How long CPU time is watched, seconds.
WINDOW_S = 0.2
#: Status of a tool that cannot play its part; no vendor's tool ends so.
BROKEN = 99


class Broken(Exception):
    """This file, not the tool it plays, has a problem."""


@dataclasses.dataclass
class Faults:
    """What is planted on a host. Cards are named by their number in the tool.

    Attributes:
        missing: the tool is not there: status 127, as a shell would end.
        hang: it says nothing and does not end.
        exit: its status, with all that it says as usual, or with ``says`` alone.
        says: what it says instead, on standard output, as npu-smi does.
        unhealthy: cards the tool calls ill.
        lost: cards that fell off the bus: gone from what the tool lists, not from sysfs.
        idle: cards whose use stays 0, whatever runs on them.
        stuck_s: how long memory stays taken after its container ended, seconds.
    """

    missing: bool = False
    hang: bool = False
    exit: int | None = None
    says: str = ""
    unhealthy: list[int] = dataclasses.field(default_factory=list)
    lost: list[int] = dataclasses.field(default_factory=list)
    idle: list[int] = dataclasses.field(default_factory=list)
    stuck_s: float = 0.0


@dataclasses.dataclass
class Card:
    """A card of the played host; memory in MiB, ``idle_mib`` of it taken when nothing runs. ``uuid`` only where the vendor has one."""

    id: str
    number: int
    total_mib: int
    idle_mib: int
    uuid: str = ""


@dataclasses.dataclass
class Container:
    """A container that runs: the cards of its label, bytes of memory, CPU cores in use, and pid and name of its processes."""

    cards: list[str]
    memory_bytes: int
    cores: float
    processes: list[tuple[int, str]]


@dataclasses.dataclass
class Use:
    """A card now: memory in MiB, percent, and pid, name and MiB of what holds it."""

    used_mib: int
    percent: float = 0.0
    processes: list[tuple[int, str, int]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Said:
    """What a tool printed, and its status."""

    out: str
    err: str = ""
    rc: int = 0


# ---- cards follow containers


def shares(total: int, count: int) -> list[int]:
    """A whole number in ``count`` parts that differ by 1 at most, the larger first."""
    return [total // count + (number < total % count) for number in range(count)]


def follow(cards: list[Card], containers: list[Container], scale: int, faults: Faults) -> dict[str, Use]:
    """What each card shows, by id. A container on several cards is spread evenly; a card never holds more than it has."""
    uses = {card.id: Use(card.idle_mib) for card in cards}
    by_id = {card.id: card for card in cards}
    for container in containers:
        if not container.cards or not container.processes:
            continue
        parts = shares(container.memory_bytes * scale // 2**20, len(container.cards))
        for identity, part in zip(container.cards, parts):
            if identity not in by_id:
                continue
            card, use = by_id[identity], uses[identity]
            part = min(part, card.total_mib - use.used_mib)
            use.used_mib += part
            use.percent = min(100.0, use.percent + 100.0 * container.cores / len(container.cards))
            held = shares(part, len(container.processes))
            use.processes += [(pid, name, mib) for (pid, name), mib in zip(container.processes, held)]
    for card in cards:
        uses[card.id].percent = 0.0 if card.number in faults.idle else round(uses[card.id].percent, 1)
    return uses


def remember(uses: dict[str, Use], seen: dict[str, dict[str, float]], stuck_s: float, now: float) -> dict[str, dict[str, float]]:
    """Keep the memory of what ended less than ``stuck_s`` ago: ``uses`` is changed. Returns what to remember for the next call.

    The end is when it is first seen; a container that no call of the tool saw leaves nothing behind.

    Args:
        seen: card id -> ``{"mib", "gone"}``: memory while it was held, and when it was first seen to be held no more (0: it is held).
    """
    kept: dict[str, dict[str, float]] = {}
    for identity, use in uses.items():
        last = seen.get(identity)
        if use.processes:
            kept[identity] = {"mib": use.used_mib, "gone": 0.0}
        elif last is not None:
            gone = last["gone"] or now
            if now - gone < stuck_s:
                use.used_mib = int(last["mib"])
                kept[identity] = {"mib": last["mib"], "gone": gone}
    return kept


# ---- hy-smi


_HYGON_ROW = re.compile(r"^(\d+)((?:\s+\S+){4}\s+)(\S+%\s+)(\S+%\s+)(\S+\s*)$")
_HYGON_LINE = re.compile(r"^\w+\[(\d+)\]\s*:")
_RULE = re.compile(r"^=+$")


def _hygon_pids(out: str, block: str, cards: list[Card], uses: dict[str, Use]) -> str:
    """The list of processes with one block per process, whatever its number of cards, before the rule that ends it."""
    held: dict[int, list[tuple[Card, int]]] = {}
    for card in cards:
        for pid, _name, mib in uses[card.id].processes:
            held.setdefault(pid, []).append((card, mib))
    text = ""
    for place, (pid, parts) in enumerate(sorted(held.items())):
        mib = sum(part for _card, part in parts)
        percent = round(100.0 * mib / sum(card.total_mib for card, _part in parts))
        lists = {
            "HCU Node(Include CPU sort)": [str(card.number + 8) for card, _part in parts],
            "HCU Index": [str(card.number) for card, _part in parts],
            "GPUID": [str(34430 + card.number) for card, _part in parts],
            "PCI BUS": [card.id for card, _part in parts],
        }
        values = {"PID": pid, "PASID": 32770 + place, "VRAM USED(MiB)": mib, "VRAM USED(%)": percent, **lists}
        for line in block.splitlines(True):
            key = line.split(":")[0].strip()
            text += (
                re.sub(r":.*?(\s*)$", lambda end, value=values[key]: ": {0}{1}".format(value, end.group(1)), line)
                if key in values
                else line
            )
    head, title, rest = out.partition("PIDs for KFD processes:\n")
    if not title:
        raise Broken("no list of processes to put them into: {0!r}".format(out[:80]))
    return head + title + "\n" * bool(text) + text + rest


def hygon(host: dict[str, Any], arguments: str, said: Said, cards: list[Card], uses: dict[str, Use], faults: Faults) -> Said:
    """An answer of hy-smi, with the cards as they are."""
    by_number = {card.number: card for card in cards}
    if said.out.startswith("{"):
        data = json.loads(said.out)
        for name in list(data):
            number = int(name[len("card") :])
            if number in faults.lost:
                del data[name]
                continue
            use = uses[by_number[number].id]
            fields = {"vram Total Used Memory (MiB)": str(use.used_mib), "HCU use (%)": "{0:.1f}".format(use.percent)}
            data[name].update({key: value for key, value in fields.items() if key in data[name]})
        return dataclasses.replace(said, out=json.dumps(data) + "\n")
    lines = []
    for line in said.out.split("\n"):
        row, own = _HYGON_ROW.match(line), _HYGON_LINE.match(line)
        number = int((row or own).group(1)) if row or own else -1
        if number in faults.lost:
            continue
        if number in by_number:
            card, use = by_number[number], uses[by_number[number].id]
            if row:
                share = "{0}%".format(round(100.0 * use.used_mib / card.total_mib)).ljust(len(row.group(3)))
                percent = "{0:.1f}%".format(use.percent).ljust(len(row.group(4)))
                line = row.group(1) + row.group(2) + share + percent + row.group(5)
            line = re.sub(r"(vram Total Used Memory \(MiB\): )\d+$", r"\g<1>{0}".format(use.used_mib), line)
            line = re.sub(r"(HCU use \(%\): )\S+$", r"\g<1>{0:.1f}".format(use.percent), line)
            if number in faults.unhealthy:
                line = re.sub(r": Healthy$", ": Unhealthy", line)
        lines.append(line)
    out = "\n".join(lines)
    if arguments == "--showpids":
        out = _hygon_pids(out, host["process"], [card for card in cards if card.number not in faults.lost], uses)
    return dataclasses.replace(said, out=out)


# ---- npu-smi


_ASCEND_TOP = re.compile(r"^\| (\d+)(\s+\S+\s*\| )(\S+\s*)(\|.*)$")
_ASCEND_BOTTOM = re.compile(r"^(\| \d+\s*\| \S+\s*\| )(\S+\s+)(\d+\s*/ \d+\s+)(\d+\s*)(/ \d+.*)$")
_ASCEND_NONE = re.compile(r"^\| No running processes found in NPU (\d+)\s*\|$")
_ASCEND_ASKED = re.compile(r"^info -t (\S+) -i (\d+)(?: -c 0)?$")


def _ascend_table(out: str, cards: list[Card], uses: dict[str, Use], faults: Faults) -> str:
    """The table: a top and a bottom row per card, then its processes."""
    by_number = {card.number: card for card in cards}
    lines: list[str] = []
    number, drop_border, widths = -1, False, []
    for line in out.split("\n"):
        top, bottom, none = _ASCEND_TOP.match(line), _ASCEND_BOTTOM.match(line), _ASCEND_NONE.match(line)
        if line.startswith("+"):
            widths = [len(part) for part in line.strip("+").split("+")] if line.count("+") > 2 else widths
            if not drop_border:
                lines.append(line)
            drop_border = False
        elif bottom and number >= 0:
            use = uses[by_number[number].id]
            percent = str(round(use.percent)).ljust(len(bottom.group(2)))
            used = str(use.used_mib).ljust(len(bottom.group(4)))
            if number in faults.lost:
                drop_border = True
            else:
                lines.append(bottom.group(1) + percent + bottom.group(3) + used + bottom.group(5))
            number = -1
        elif top:
            number = int(top.group(1))
            word = "Alarm".ljust(len(top.group(3))) if number in faults.unhealthy else top.group(3)
            if number not in faults.lost:
                lines.append("| " + top.group(1) + top.group(2) + word + top.group(4))
        elif none:
            card = by_number[int(none.group(1))]
            if card.number in faults.lost:
                drop_border = True
                continue
            rows = [
                "| {0}| {1}| {2:<24} | {3}|".format(
                    "{0:<7} 0".format(card.number).ljust(widths[0] - 1),
                    str(pid).ljust(widths[1] - 1),
                    name[:24],
                    str(mib).ljust(widths[2] - 28),
                )
                for pid, name, mib in uses[card.id].processes
            ]
            lines += rows or [line]
        else:
            lines.append(line)
    return "\n".join(lines)


def ascend(host: dict[str, Any], arguments: str, said: Said, cards: list[Card], uses: dict[str, Use], faults: Faults) -> Said:
    """An answer of npu-smi, with the cards as they are. Every NPU has one chip."""
    if arguments == "info":
        return dataclasses.replace(said, out=_ascend_table(said.out, cards, uses, faults))
    if arguments == "info -m":
        kept = [line for line in said.out.split("\n") if not line.strip() or line.split()[0] not in [str(one) for one in faults.lost]]
        return dataclasses.replace(said, out="\n".join(kept))
    if arguments == "info -l":
        # A blank line, the total, then a paragraph per card.
        parts = re.split(r"\n(?=\n)", said.out)
        kept = [part for part in parts if not any(re.search(r"NPU ID\s+: {0}$".format(one), part, re.M) for one in faults.lost)]
        out = "\n".join(kept)
        total = len(cards) - len(faults.lost)
        return dataclasses.replace(said, out=re.sub(r"(Total Count\s+: )\d+", r"\g<1>{0}".format(total), out))
    asked = _ASCEND_ASKED.match(arguments)
    if asked and int(asked.group(2)) in faults.lost:
        return Said(host["no_card"], rc=1)
    if asked and asked.group(1) == "health":
        return Said(host["alarm" if int(asked.group(2)) in faults.unhealthy else "well"])
    if asked and asked.group(1) == "proc-mem":
        card = next(card for card in cards if card.number == int(asked.group(2)))
        rows = ["Process id:{0} Process name:{1:<17} Process memory(MB):{2}".format(*one) for one in uses[card.id].processes]
        return dataclasses.replace(said, out=said.out.replace("No process in device.", "\n\t".join(rows) or "No process in device."))
    return said


# ---- nvidia-smi


def _columns(text: str) -> tuple[list[str], list[dict[str, str]]]:
    """Heads and rows of a CSV, by the name of the column without its unit."""
    heads, *rows = [line.split(", ") for line in text.splitlines()]
    names = [head.split(" [")[0] for head in heads]
    return heads, [dict(zip(names, row)) for row in rows]


def _csv(heads: list[str], rows: list[dict[str, str]], wanted: list[str]) -> str:
    """The columns that were asked for; those that a capture was cut of are not available."""
    by_name = {head.split(" [")[0]: head for head in heads}
    lines = [", ".join(by_name.get(name, name) for name in wanted)]
    return "\n".join(lines + [", ".join(row.get(name, "[N/A]") for name in wanted) for row in rows]) + "\n"


def _nvidia_table(out: str, cards: list[Card], uses: dict[str, Use], faults: Faults) -> str:
    """The bare tool's table: the box of each card, then the processes."""
    lines, box, card = [], 0, None
    for line in out.split("\n"):
        found = re.match(r"^\|\s+(\d+)  .*[0-9A-Fa-f:]{11,}\.\d ", line)
        if found:
            box, card = 4, next(one for one in cards if one.number == int(found.group(1)))
        if box:
            box -= 1
            if card.number in faults.lost:
                continue
            use = uses[card.id]
            figures = re.match(r"^(\|[^|]*\|)\s+\d+MiB( / \s*\d+MiB \|)\s+\d+%(.*)$", line)
            if figures:
                start, total, end = figures.groups()
                line = "{0}{1:>8}MiB{2}{3:>7}%{4}".format(start, use.used_mib, total, round(use.percent), end)
        if "No running processes found" in line:
            rows = [
                "|{0:>5}   N/A  N/A{1:>16}      C   {2:<37}{3:>6}MiB |".format(one.number, pid, name[:37], mib)
                for one in cards
                if one.number not in faults.lost
                for pid, name, mib in uses[one.id].processes
            ]
            lines += rows or [line]
            continue
        lines.append(line)
    return "\n".join(lines)


def nvidia(host: dict[str, Any], arguments: str, said: Said, cards: list[Card], uses: dict[str, Use], faults: Faults) -> Said:
    """An answer of nvidia-smi, with the cards as they are."""
    word, _equals, fields = arguments.split(" ")[0].partition("=")
    wanted = fields.split(",") if fields else []
    here = [card for card in cards if card.number not in faults.lost]
    out = said.out
    if word == "--query-gpu":
        heads, rows = _columns(out)
        by_uuid = {card.uuid: card for card in here}
        rows = [row for row in rows if row["uuid"] in by_uuid]
        for row in rows:
            card = by_uuid[row["uuid"]]
            use = uses[card.id]
            reserved = int(row["memory.reserved"].split()[0])
            row["memory.used"] = "{0} MiB".format(use.used_mib)
            row["memory.free"] = "{0} MiB".format(max(0, card.total_mib - reserved - use.used_mib))
            row["utilization.gpu"] = "{0} %".format(round(use.percent))
            if card.number in faults.unhealthy:
                row["gpu_recovery_action"] = "Reset"
        out = _csv(heads, rows, wanted)
    elif word == "--query-compute-apps":
        heads, _rows = _columns(out)
        rows = [
            {
                "gpu_name": host["product"],
                "gpu_bus_id": "0000" + card.id.upper(),
                "gpu_uuid": card.uuid,
                "pid": str(pid),
                "process_name": name,
                "used_gpu_memory": "{0} MiB".format(mib),
            }
            for card in here
            for pid, name, mib in uses[card.id].processes
        ]
        out = _csv(heads, rows, wanted)
    elif word == "-L":
        out = "".join(line for line in out.splitlines(True) if any(card.uuid in line for card in here))
    elif not word:
        out = _nvidia_table(out, cards, uses, faults)
    gone = [card for card in cards if card.number in faults.lost and word != "--version"]
    err = "".join(
        "Unable to determine the device handle for GPU{0}: {1}: Unknown Error\n".format(card.number, card.id.upper()) for card in gone
    )
    return Said(out, said.err + err, 15 if gone else said.rc)


# ---- one call of the tool


VENDORS = {"hygon": hygon, "ascend": ascend, "nvidia": nvidia}


def question(vendor: str, argv: list[str]) -> str:
    """Under what an answer is kept: the arguments joined with blanks, but not the fields of a query."""
    if vendor == "nvidia" and argv[:1] and argv[0].startswith("--query-"):
        return argv[0].partition("=")[0]
    return " ".join(argv)


def answer(host: dict[str, Any], argv: list[str], uses: dict[str, Use], faults: Faults) -> Said:
    """What the tool says and its status, for anything but ``hang``."""
    if faults.missing:
        return Said("", "{0}: command not found\n".format(os.path.basename(host["tool"])), 127)
    if faults.says:
        return Said(faults.says, rc=faults.exit or 0)
    cards = [Card(**card) for card in host["cards"]]
    arguments = question(host["vendor"], argv)
    asked = _ASCEND_ASKED.match(arguments) if host["vendor"] == "ascend" else None
    if arguments not in host["answers"] and not (asked and asked.group(1) == "health"):
        return Said(**host["unknown"])
    said = Said(**host["answers"].get(arguments, {"out": ""}))
    said = VENDORS[host["vendor"]](host, " ".join(argv), said, cards, uses, faults)
    return said if faults.exit is None else dataclasses.replace(said, rc=faults.exit)


# ---- what really runs here


def ask_engine(path: str, sock: str = SOCKET) -> Any:
    """Parsed JSON of one question to the container engine. Raises OSError where none listens, Broken for any other answer."""
    connection = http.client.HTTPConnection("localhost", timeout=5)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(5)
        connection.sock.connect(sock)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except http.client.HTTPException as exc:
        raise Broken("{0}: {1} was not answered with HTTP: {2!r}".format(sock, path, exc)) from exc
    finally:
        connection.close()
    if response.status == 404:
        return None
    if response.status != 200:
        raise Broken("{0}: {1} was answered with {2}".format(sock, path, response.status))
    return json.loads(body)


def group_file(cgroup: str, controller: str, names: tuple[str, str], root: str) -> str:
    """Path of a file of a control group: the first of ``names`` is that of version 1, the second that of version 2."""
    unified = ""
    for line in cgroup.splitlines():
        _number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            for directory in (controllers, controller):
                if os.path.isdir(os.path.join(root, directory)):
                    return os.path.join(root, directory, path.lstrip("/"), names[0])
        elif not controllers:
            unified = path
    return os.path.join(root, unified.lstrip("/"), names[1])


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as handle:
        return handle.read()


def cpu_seconds(text: str) -> float:
    """From ``cpuacct.usage`` (nanoseconds) or ``cpu.stat``."""
    found = re.search(r"^usage_usec (\d+)$", text, re.M)
    return int(found.group(1)) / 1e6 if found else int(text) / 1e9


def look(cards: list[Card], sock: str = SOCKET, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> list[Container]:
    """The containers on these cards. None where no engine listens; one that ends meanwhile is left out."""
    own = {card.id for card in cards}
    query = urllib.parse.quote(json.dumps({"label": [LABEL], "status": ["running"]}))
    try:
        listed = ask_engine("/containers/json?filters=" + query, sock) or []
    except (FileNotFoundError, ConnectionRefusedError):
        return []
    begun: list[tuple[list[str], str, float, float]] = []
    for item in listed:
        wanted = [word.strip() for word in item["Labels"][LABEL].split(",") if word.strip()]
        described = ask_engine("/containers/{0}/json".format(item["Id"]), sock) if own & set(wanted) else None
        if not described:
            continue
        try:
            cgroup = _read("{0}/{1}/cgroup".format(proc, described["State"]["Pid"]))
            path = group_file(cgroup, "cpuacct", ("cpuacct.usage", "cpu.stat"), cgroups)
            begun.append((wanted, cgroup, time.monotonic(), cpu_seconds(_read(path))))
        except (FileNotFoundError, ProcessLookupError):
            continue
    if begun:
        time.sleep(WINDOW_S)
    found = []
    for wanted, cgroup, at, seconds in begun:
        try:
            path = group_file(cgroup, "cpuacct", ("cpuacct.usage", "cpu.stat"), cgroups)
            cores = max(0.0, cpu_seconds(_read(path)) - seconds) / (time.monotonic() - at)
            memory = int(_read(group_file(cgroup, "memory", ("memory.usage_in_bytes", "memory.current"), cgroups)))
            pids = sorted(int(word) for word in _read(group_file(cgroup, "memory", ("cgroup.procs", "cgroup.procs"), cgroups)).split())
        except (FileNotFoundError, ProcessLookupError):
            continue
        processes = []
        for pid in pids:
            try:
                processes.append((pid, _read("{0}/{1}/comm".format(proc, pid)).strip()))
            except (FileNotFoundError, ProcessLookupError):
                continue
        found.append(Container(wanted, memory, cores, processes))
    return found


def show_processes(root: str, uses: dict[str, Use]) -> None:
    """Let the played host's /proc lead to the processes the tool names, and to no other."""
    place = os.path.join(root, "proc")
    shown = {str(pid) for use in uses.values() for pid, _name, _mib in use.processes}
    links = {name for name in os.listdir(place) if name.isdigit() and os.path.islink(os.path.join(place, name))}
    for name in links - shown:
        os.unlink(os.path.join(place, name))
    for name in shown - links:
        # A second call at the same time may be first.
        if not os.path.lexists(os.path.join(place, name)):
            os.symlink("/proc/" + name, os.path.join(place, name))


def load(path: str, default: Any) -> Any:
    """JSON of a file, or ``default`` where there is none."""
    try:
        return json.loads(_read(path))
    except FileNotFoundError:
        return default


def main(argv: list[str], tool: str) -> int:
    here = tool + ".replay"
    host = load(os.path.join(here, "host.json"), None)
    if host is None:
        raise Broken("{0} has no host.json".format(here))
    planted = load(os.path.join(here, "state.json"), {})
    try:
        faults = Faults(**planted)
    except TypeError as exc:
        raise Broken("{0}/state.json plants what nobody can play: {1}".format(here, exc)) from exc
    if faults.hang:
        while True:
            time.sleep(3600)
    library = host.get("library", "")
    if library and library not in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        sys.stderr.write(host["no_library"])
        return 127
    cards = [Card(**card) for card in host["cards"]]
    uses = follow(cards, look(cards), host["scale"], faults)
    if faults.stuck_s:
        place = os.path.join(here, "seen.json")
        kept = remember(uses, load(place, {}), faults.stuck_s, time.time())
        part = "{0}.{1}".format(place, os.getpid())
        with open(part, "w", encoding="utf-8") as handle:
            json.dump(kept, handle)
        os.replace(part, place)
    root = tool[: -len(host["tool"])]
    if root and tool.endswith(host["tool"]):
        show_processes(root, uses)
    said = answer(host, argv, uses, faults)
    sys.stdout.write(said.out)
    sys.stderr.write(said.err)
    return said.rc


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], os.path.abspath(sys.argv[0])))
    except (Broken, OSError, ValueError) as problem:
        print("replay: {0}".format(problem), file=sys.stderr)
        sys.exit(BROKEN)
