# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host is: service manager, system, memory, disks, packages, container engine. Private to the collection.

The engine is asked over its socket with the standard library alone, so that this works before anything is installed.
Source: Docker Engine API 1.41 (``GET /version``, ``GET /info``, ``GET /containers/json``); proc(5); os-release(5);
sources.list(5); deb822(5).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import socket
import stat
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _checks, _lock, _ports
from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

#: The oldest container engine that has all we use; older ones also lack security fixes.
OLDEST_ENGINE = (20, 10)
#: Where an engine's daemon may lie; an engine from elsewhere than the distribution counts as well.
BINARY_DIRS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin", "/opt/bin", "/snap/bin")
#: Clock differences in seconds: below the first nobody cares, above the second certificates fail.
CLOCK_WARN_S = 30
CLOCK_FAIL_S = 300


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def engine_get(sock: str, path: str, timeout_s: float = 5.0) -> Any:
    """Ask the engine one thing and return the parsed JSON.

    Raises OSError when it cannot be reached or does not answer in time, UnknownOutput when the answer is none we know.
    """
    connection = _UnixConnection(sock, timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode("utf-8", "replace")
    except http.client.HTTPException as exc:
        raise UnknownOutput("{0}: {1} was not answered with HTTP: {2!r}".format(sock, path, exc)) from exc
    finally:
        connection.close()
    if response.status != 200:
        raise UnknownOutput("{0}: {1} was answered with HTTP {2}: {3}".format(sock, path, response.status, body[:200].strip()))
    try:
        return json.loads(body)
    except ValueError as exc:
        raise UnknownOutput("{0}: {1} was not answered with JSON: {2!r}".format(sock, path, body[:80])) from exc


def find_program(name: str, directories: tuple[str, ...] = BINARY_DIRS) -> str:
    """The path of a program, or an empty text. The PATH of a module run is not to be relied on."""
    for directory in directories:
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return ""


def processes_named(name: str, proc: str = "/proc") -> list[int]:
    """The pids of living processes with this short name; a zombie is none."""
    found = []
    for entry in os.listdir(proc):
        if entry.isdigit():
            try:
                with open(os.path.join(proc, entry, "comm"), encoding="utf-8", errors="replace") as handle:
                    if handle.read().strip() == name and _lock.process_start(int(entry), proc):
                        found.append(int(entry))
            except OSError:
                continue
    return sorted(found)


def engine_report(sock: str) -> dict:
    """Describe the container engine behind ``sock``.

    Returns ``{installed, reachable, running, version, api_version, cgroup_driver, cgroup_version, storage_driver,
    root_dir, containers, pids, program, error}``; texts are empty and counts 0 where the engine did not say.
    """
    program = find_program("dockerd")
    pids = processes_named("dockerd")
    report = {
        "installed": bool(program or pids),
        "running": bool(pids),
        "reachable": False,
        "version": "",
        "api_version": "",
        "cgroup_driver": "",
        "cgroup_version": "",
        "storage_driver": "",
        "root_dir": "",
        "containers": 0,
        "pids": pids,
        "program": program,
        "error": "",
    }
    if not os.path.exists(sock):
        report["error"] = "{0}: there is no such socket".format(sock)
        return report
    try:
        version = engine_get(sock, "/version")
        info = engine_get(sock, "/info")
    except (OSError, UnknownOutput) as exc:
        report["error"] = str(exc) if isinstance(exc, UnknownOutput) else "{0}: {1}".format(sock, exc.strerror or exc)
        return report
    report.update(
        installed=True,
        reachable=True,
        version=str(version.get("Version", "")),
        api_version=str(version.get("ApiVersion", "")),
        cgroup_driver=str(info.get("CgroupDriver", "")),
        cgroup_version=str(info.get("CgroupVersion", "")),
        storage_driver=str(info.get("Driver", "")),
        root_dir=str(info.get("DockerRootDir", "")),
        containers=int(info.get("Containers", 0)),
    )
    return report


def version_tuple(text: str) -> tuple[int, int]:
    """The first two numbers of an engine version such as ``20.10.24+dfsg1``; UnknownOutput when there are none."""
    match = re.match(r"v?(\d+)\.(\d+)", text)
    if not match:
        raise UnknownOutput("the container engine calls its version {0!r}, which this collection does not know".format(text))
    return int(match.group(1)), int(match.group(2))


def init_kind(systemd_dir: str = "/run/systemd/system", proc: str = "/proc", init_d: str = "/etc/init.d") -> str:
    """What starts services: ``systemd``, ``sysv`` (a SysV or busybox init as PID 1) or ``direct`` (nothing does)."""
    if os.path.isdir(systemd_dir):
        return "systemd"
    try:
        with open(os.path.join(proc, "1", "comm"), encoding="utf-8", errors="replace") as handle:
            name = handle.read().strip()
    except OSError:
        return "direct"
    # A test machine may call its own PID 1 init, so scripts to start with must be there as well as something to run them.
    return "sysv" if name == "init" and os.path.isdir(init_d) and os.path.exists("/etc/inittab") else "direct"


def parse_os_release(text: str) -> dict[str, str]:
    """Read ``/etc/os-release``: ``{ID: debian, VERSION_CODENAME: bookworm, ...}``."""
    values = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            values[key] = value.strip().strip("\"'")
    return values


def parse_meminfo(text: str) -> tuple[int, int]:
    """Total and available memory in MiB from ``/proc/meminfo``."""
    values = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", text, re.M))
    if len(values) != 2:
        raise UnknownOutput("/proc/meminfo has no MemTotal and MemAvailable in kB")
    return int(values["MemTotal"]) // 1024, int(values["MemAvailable"]) // 1024


def installed_packages(status: str) -> list[str]:
    """Names of the installed packages, from the text of ``/var/lib/dpkg/status``."""
    names = set()
    for stanza in status.split("\n\n"):
        if re.search(r"^Status: \S+ \S+ installed$", stanza, re.M):
            match = re.search(r"^Package: (\S+)$", stanza, re.M)
            if match:
                names.add(match.group(1))
    return sorted(names)


def disk_report(paths: list[str]) -> list[dict]:
    """Free space where each path lies or would lie: ``{path, parent, device, free_mib, total_mib}``."""
    report = []
    for path in paths:
        parent = os.path.abspath(path)
        while not os.path.exists(parent):
            parent = os.path.dirname(parent)
        figures = os.statvfs(parent)
        report.append(
            {
                "path": path,
                "parent": parent,
                # Two paths of one file system have to share its space.
                "device": os.stat(parent).st_dev,
                "free_mib": figures.f_bavail * figures.f_frsize // 2**20,
                "total_mib": figures.f_blocks * figures.f_frsize // 2**20,
            }
        )
    return report


def is_wanting(path: str, mode: int) -> bool:
    """Whether ``path`` has to be made or set right to be root's directory with the permissions ``mode``; a link to one will do."""
    try:
        found = os.stat(path)
    except OSError:
        return True
    return not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) != mode or (found.st_uid, found.st_gid) != (0, 0)


def is_file_wanting(path: str, mode: int, sha256: str) -> bool:
    """Whether ``path`` has to be brought or set right to be root's file with the permissions ``mode`` and the content with this digest."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != mode or (found.st_uid, found.st_gid) != (0, 0):
            return True
        with open(path, "rb") as handle:
            return hashlib.sha256(handle.read()).hexdigest() != sha256
    except OSError:
        return True


def _deb822(text: str) -> list[dict[str, str]]:
    """The stanzas of a ``.sources`` file, keys in lower case, comments left out."""
    stanzas = []
    current = {}
    last = ""
    for line in text.splitlines() + [""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if current:
                stanzas.append(current)
            current, last = {}, ""
        elif line[0].isspace() and last:
            current[last] += " " + line.strip()
        elif ":" in line:
            key, _colon, value = line.partition(":")
            last = key.strip().lower()
            current[last] = value.strip()
    return stanzas


def apt_sources(name: str, text: str) -> list[dict]:
    """The binary package sources of one file: ``{uri, suite, components, keyring}``, in file order.

    ``name`` tells the format: ``.sources`` is deb822, anything else one line per source. Switched-off ones are left out.
    """
    found = []
    if name.endswith(".sources"):
        for stanza in _deb822(text):
            if stanza.get("enabled", "yes").lower() in ("no", "false", "0") or "deb" not in stanza.get("types", "").split():
                continue
            keyring = stanza.get("signed-by", "")
            for uri in stanza.get("uris", "").split():
                for suite in stanza.get("suites", "").split():
                    found.append(
                        {
                            "uri": uri,
                            "suite": suite,
                            "components": stanza.get("components", "").split(),
                            # The key itself may stand there in place of a path.
                            "keyring": keyring if keyring.startswith("/") and " " not in keyring else "",
                        }
                    )
        return found
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if match:
            options = dict(part.partition("=")[::2] for part in (match.group(1) or "").split())
            keyring = options.get("signed-by", "")
            found.append(
                {
                    "uri": match.group(2),
                    "suite": match.group(3),
                    "components": match.group(4).split(),
                    "keyring": keyring if keyring.startswith("/") else "",
                }
            )
    return found


def distribution_source(sources: list[dict], codename: str, distribution: str) -> dict[str, str]:
    """The source the host itself was installed from: its own release, component ``main``.

    Returns ``{mirror, keyring}``, both empty when no source has that.
    """
    default = {"debian": "/usr/share/keyrings/debian-archive-keyring.gpg", "ubuntu": "/usr/share/keyrings/ubuntu-archive-keyring.gpg"}
    for source in sources:
        uri = re.sub(r"^mirror\+", "", source["uri"])
        if source["suite"] == codename and "main" in source["components"] and uri.startswith(("http://", "https://", "file:", "copy:")):
            return {"mirror": uri, "keyring": source["keyring"] or default.get(distribution, "")}
    return {"mirror": "", "keyring": ""}


def read_apt_sources(root: str = "/etc/apt") -> list[dict]:
    """All package sources of the host, in the order apt reads them."""
    directory = os.path.join(root, "sources.list.d")
    paths = [os.path.join(root, "sources.list")]
    if os.path.isdir(directory):
        paths += [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith((".list", ".sources"))]
    found = []
    for path in paths:
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as handle:
                found.extend(apt_sources(path, handle.read()))
    return found


def host_checks(facts: dict, needs: dict) -> list[_checks.Check]:
    """Judge a host. Pure: ``facts`` is what ``host_info`` returns, ``needs`` its option of that name.

    Every check says what it found; what cannot be known is ``unknown``, which stops a deployment.
    """
    checks = []

    def add(name: str, good: bool, detail: str, fix: str, bad: str = _checks.FAIL) -> None:
        checks.append(_checks.Check(name, _checks.PASS if good else bad, detail, "" if good else fix))

    add(
        "python",
        tuple(facts["python"]["version_info"]) >= (3, 7),
        "{0} is Python {1}".format(facts["python"]["executable"], facts["python"]["version"]),
        "set ansible_python_interpreter to a Python 3.7 or newer on this host",
    )
    add(
        "root",
        facts["uid"] == 0,
        "modules run as uid {0}".format(facts["uid"]),
        "run with become: true as a user who may use sudo, or as root",
    )
    engine = facts["engine"]
    system = facts["os"]
    supported = system["family"] == "debian"
    if supported or engine["installed"]:
        status, fix = (_checks.PASS, "") if supported else (_checks.WARN, "")
        text = system["pretty"] or "unknown system"
        checks.append(
            _checks.Check(
                "system",
                status,
                "{0} on {1}, services by {2}".format(text, facts["architecture"], facts["init"])
                + ("" if supported else "; packages are not managed here, the engine is used as it is"),
                fix,
            )
        )
    else:
        checks.append(
            _checks.Check(
                "system",
                _checks.FAIL,
                "{0}: packages are managed on Debian and Ubuntu only".format(system["pretty"] or "unknown system"),
                "install a container engine (Docker 20.10 or newer) and Python's requests there, then run again",
            )
        )
    checks.append(_engine_check(engine))
    if needs.get("memory_mib"):
        add(
            "memory",
            facts["memory_total_mib"] >= needs["memory_mib"],
            "{0} MiB in all, {1} MiB available, {2} MiB needed".format(
                facts["memory_total_mib"], facts["memory_available_mib"], needs["memory_mib"]
            ),
            "plan fewer or smaller replicas, or take a host with more memory",
        )
    else:
        checks.append(
            _checks.Check(
                "memory", _checks.PASS, "{0} MiB in all, {1} MiB available".format(facts["memory_total_mib"], facts["memory_available_mib"])
            )
        )
    for disk in facts["disks"]:
        wanted = needs.get("disk_mib") or 0
        add(
            "disk",
            disk["free_mib"] >= wanted,
            "{0}: {1} MiB free, {2} MiB needed".format(disk["path"], disk["free_mib"], wanted),
            "free space in the file system of {0}, or put this directory elsewhere".format(disk["parent"]),
        )
    for port in facts["ports"]:
        if port["free"]:
            detail = "port {0} is free".format(port["port"])
        elif port["own"]:
            detail = "port {0} is ours".format(port["port"])
        else:
            detail = _ports.describe(port)
        add("port", port["free"] or port["own"], detail, "stop that process, or choose another port (the gateway's is gateway_port)")
    if needs.get("controller_clock"):
        apart = facts["clock"] - needs["controller_clock"]
        status = _checks.FAIL if abs(apart) > CLOCK_FAIL_S else _checks.WARN if abs(apart) > CLOCK_WARN_S else _checks.PASS
        checks.append(
            _checks.Check(
                "clock",
                status,
                "{0:+.0f} s from the controller's".format(apart),
                "set the clock (timedatectl set-ntp true); certificates and tokens fail otherwise" if status != _checks.PASS else "",
            )
        )
    return checks


def _engine_check(engine: dict) -> _checks.Check:
    if engine["reachable"]:
        try:
            old = version_tuple(engine["version"]) < OLDEST_ENGINE
        except UnknownOutput as exc:
            return _checks.Check("engine", _checks.UNKNOWN, str(exc), "look at `docker version`; Docker 20.10 or newer is needed")
        detail = "Docker {0}, {1}, cgroup v{2} by {3}, {4} containers".format(
            engine["version"], engine["storage_driver"], engine["cgroup_version"], engine["cgroup_driver"], engine["containers"]
        )
        if old:
            return _checks.Check(
                "engine",
                _checks.FAIL,
                detail + ": too old",
                "upgrade Docker to 20.10 or newer; it is not touched here, other containers may need it",
            )
        return _checks.Check("engine", _checks.PASS, detail)
    if engine["running"]:
        return _checks.Check(
            "engine",
            _checks.FAIL,
            "Docker runs (pid {0}) but is broken: {1}".format(", ".join(map(str, engine["pids"])), engine["error"]),
            "look at its log, repair or restart it; it is neither reinstalled nor restarted here",
        )
    if engine["installed"]:
        return _checks.Check("engine", _checks.PASS, "Docker is installed and not running; it will be started")
    return _checks.Check("engine", _checks.PASS, "no container engine; Docker will be installed")
