# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What of a host decides how containers reach cards, disks and clients: engine, toolkits, image, space, ports, firewalls.

Reads only, with the standard library alone, from the host or from a directory that plays it. Private to the collection.
Source: Docker Engine API 1.41 (``GET /version``, ``/info``, ``/images/<name>/json``, ``/containers/json``); dockerd configuration file;
dpkg(1), rpm(8); firewalld and ufw documentation.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any
from urllib.parse import quote

from ansible_collections.ironserve.llm.plugins.module_utils import _host, _ports
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._kernel import Tree
from ansible_collections.ironserve.llm.plugins.module_utils._run import run
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

#: Containers of this collection carry a label that begins so.
OWN_LABEL = "ironserve."

DAEMON_JSON = "/etc/docker/daemon.json"
#: Where the engine keeps images unless it says otherwise.
ENGINE_ROOT = "/var/lib/docker"

#: Packages of the vendors' container toolkits, by the start of the package's name.
TOOLKITS = ("nvidia-container-toolkit", "hcu-container-toolkit", "ascend-docker-runtime")

#: Variables of an image by which a vendor's runtime chooses cards, or recognises an image that wants some.
CARD_VARIABLES = (
    "ROCM_VERSION",
    "HCU_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
)

#: Time limit of the package manager, seconds.
TIMEOUT_S = 20.0


def read_engine(tree: Tree, socket: str) -> dict[str, Any]:
    """The container engine behind ``socket``; texts are empty where it did not say."""
    real = tree.path(socket)
    played = tree.root != "/"
    report: dict[str, Any] = {
        "installed": False,
        "running": False,
        "reachable": False,
        "version": "",
        "default_runtime": "",
        "runtimes": [],
        "cgroup_version": "",
        "storage_driver": "",
        "root_dir": "",
        "live_restore": False,
        "warnings": [],
        "pids": _host.processes_named("dockerd", tree.path("/proc")) if tree.exists("/proc") else [],
        "error": "",
    }
    report.update(read_daemon_json(tree))
    report["running"] = bool(report["pids"])
    directories = tuple(tree.path(path) for path in _host.BINARY_DIRS) if played else _host.BINARY_DIRS
    report["installed"] = report["running"] or bool(_host.find_program("dockerd", directories))
    if not os.path.exists(real):
        report["error"] = "{0}: there is no such socket".format(socket)
        return report
    try:
        version = _host.engine_get(real, "/version")
        info = _host.engine_get(real, "/info")
    except (OSError, UnknownOutput) as exc:
        report["error"] = str(exc) if isinstance(exc, UnknownOutput) else "{0}: {1}".format(socket, exc.strerror or exc)
        return report
    report.update(
        installed=True,
        reachable=True,
        version=str(version.get("Version", "")),
        default_runtime=str(info.get("DefaultRuntime", "")),
        runtimes=sorted(info.get("Runtimes") or {}),
        cgroup_version=str(info.get("CgroupVersion", "")),
        storage_driver=str(info.get("Driver", "")),
        root_dir=str(info.get("DockerRootDir", "")),
        live_restore=bool(info.get("LiveRestoreEnabled", False)),
        warnings=[str(item) for item in info.get("Warnings") or []],
    )
    return report


def read_daemon_json(tree: Tree) -> dict[str, str]:
    """What the engine's configuration file says: ``{"configured_runtime", "configuration_error"}``, empty where it says nothing."""
    text = tree.read(DAEMON_JSON)
    answer = {"configured_runtime": "", "configuration_error": ""}
    if text is None or not text.strip():
        return answer
    try:
        values = json.loads(text)
    except ValueError as exc:
        answer["configuration_error"] = "{0} is no JSON: {1}".format(DAEMON_JSON, exc)
        return answer
    if not isinstance(values, dict):
        answer["configuration_error"] = "{0} holds no JSON object".format(DAEMON_JSON)
        return answer
    answer["configured_runtime"] = str(values.get("default-runtime", ""))
    return answer


def running_containers(vendor: Vendor, socket: str) -> list[dict[str, Any]]:
    """Full descriptions of all running containers; none where no engine runs.

    A container that ends meanwhile is left out. Raises LLMError when the engine is there and does not answer.
    """
    real = vendor.path(socket)
    if not os.path.exists(real):
        return []
    try:
        listed = _host.engine_get(real, "/containers/json")
        found = []
        for item in listed:
            try:
                found.append(_host.engine_get(real, "/containers/{0}/json".format(item["Id"])))
            except UnknownOutput as exc:
                if "HTTP 404" not in str(exc):
                    raise
    except ConnectionRefusedError:
        # The socket of an engine that does not run; it runs no container either.
        return []
    except OSError as exc:
        raise LLMError("the container engine on {0} does not say what it runs: {1}".format(socket, exc.strerror or exc)) from exc
    return found


def own_names(containers: list[dict[str, Any]], label: str) -> list[str]:
    """Names of the containers, described in full, that carry a label beginning with ``label``."""
    names = []
    for item in containers:
        if any(name.startswith(label) for name in (item.get("Config") or {}).get("Labels") or {}):
            names.append(item["Name"].lstrip("/"))
    return sorted(names)


def read_image(tree: Tree, socket: str, engine: dict[str, Any], reference: str) -> dict[str, Any]:
    """An image as the engine knows it: ``{"present", "digests", "environment"}``; ``present`` is None where it cannot be asked."""
    answer: dict[str, Any] = {"present": None, "digests": [], "environment": {}}
    if not reference or not engine["reachable"]:
        return answer
    try:
        image = _host.engine_get(tree.path(socket), "/images/{0}/json".format(quote(reference, safe="/:@")))
    except UnknownOutput as exc:
        if "HTTP 404" not in str(exc):
            raise
        answer["present"] = False
        return answer
    pairs = [item.partition("=")[::2] for item in (image.get("Config") or {}).get("Env") or []]
    answer.update(
        present=True,
        digests=sorted(image.get("RepoDigests") or []),
        environment={name: value for name, value in pairs if name in CARD_VARIABLES},
    )
    return answer


def tree_mib(path: str) -> int:
    """Size of the regular files under a directory, MiB; 0 where there is none. Links are not followed."""
    total = 0
    for directory, _folders, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except OSError:
                continue
    return total // 2**20


def read_disks(tree: Tree, paths: list[str], measured: list[str]) -> list[dict[str, Any]]:
    """Free space where each path lies or would lie; for those of ``measured`` also what is in it already, else None."""
    report = []
    for path in paths:
        entry = _host.disk_report([tree.path(path)])[0]
        entry.update(path=path, present_mib=tree_mib(tree.path(path)) if path in measured else None)
        report.append(entry)
    return report


def read_ports(tree: Tree, ports: list[int], own_markers: list[str], engine: dict[str, Any], socket: str) -> list[dict[str, Any]] | None:
    """Who has each port; None where the kernel does not show its sockets."""
    proc = tree.path("/proc")
    if not ports:
        return []
    if not tree.exists("/proc/net/tcp"):
        return None
    listeners = _ports.read_listeners(proc)
    owners = _ports.socket_owners({item.inode for item in listeners if item.port in ports}, proc)
    published = _ports.container_ports(_host.engine_get(tree.path(socket), "/containers/json")) if engine["reachable"] else {}
    return _ports.port_report(ports, listeners, owners, published, own_markers, proc)


def read_firewalls(tree: Tree) -> list[str]:
    """Firewalls that manage rules on this host. Rules without a manager (plain nft) are not seen."""
    found = []
    if tree.exists("/proc") and _host.processes_named("firewalld", tree.path("/proc")):
        found.append("firewalld")
    if re.search(r"^\s*ENABLED\s*=\s*[\"']?yes", tree.read("/etc/ufw/ufw.conf") or "", re.M | re.I):
        found.append("ufw")
    if any(tree.exists("/etc/systemd/system/{0}.wants/nftables.service".format(name)) for name in ("sysinit.target", "multi-user.target")):
        found.append("nftables")
    return found


def dpkg_versions(status: str, names: tuple[str, ...]) -> dict[str, str]:
    """Version of each installed package whose name begins with one of ``names``, from the text of ``/var/lib/dpkg/status``."""
    found = {}
    for stanza in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.+)$", stanza, re.M))
        if fields.get("Status", "").endswith(" installed") and fields.get("Package", "").startswith(names):
            found[fields["Package"]] = fields.get("Version", "")
    return found


def read_toolkits(tree: Tree) -> dict[str, str] | None:
    """Version of each installed toolkit package, None where neither dpkg nor rpm can be asked."""
    status = tree.read("/var/lib/dpkg/status")
    if status is not None:
        return dpkg_versions(status, TOOLKITS)
    rpm = _host.find_program("rpm") if tree.root == "/" else ""
    if not rpm:
        return None
    # A pattern that fits nothing ends with status 0 and says nothing.
    done = run([rpm, "-qa", "--qf", "%{NAME} %{VERSION}\n"] + [name + "*" for name in TOOLKITS], TIMEOUT_S)
    if done.rc != 0:
        raise LLMError("rpm -qa ended with status {0}: {1}".format(done.rc, (done.stderr or done.stdout).strip()[:200]))
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
