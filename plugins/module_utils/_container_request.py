# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the container engine is asked to make for a replica, and whether a container still is that. Pure. Private to the collection.

Source: Docker Engine API 1.41, ``POST /containers/create`` and ``GET /containers/<id>/json``; moby 20.10 for what it leaves out.
"""

from __future__ import annotations

import ipaddress
import posixpath
from typing import Any, Callable

_NEW_PRIVILEGES = "no-new-privileges"

#: Limits that an engine leaves out, with a warning, where the kernel cannot keep them: field -> what it says then.
_UNLIMITED = {
    "HostConfig.Memory": (0,),
    "HostConfig.MemorySwap": (0, -1),
    "HostConfig.PidsLimit": (0, -1),
    "HostConfig.CpusetCpus": ("",),
}

#: What nobody asks for, and what would give a container more than was planned, or less time: not there in any replica.
_NEVER = ("Privileged", "Binds", "VolumesFrom", "Links", "DeviceCgroupRules", "PidMode", "UTSMode", "UsernsMode", "NanoCpus", "CpuQuota")


def for_host(spec: dict[str, Any], exists: Callable[[str], bool]) -> dict[str, Any]:
    """The specification as a host can have it: without the optional mounts whose source it lacks."""
    return dict(spec, mounts=[item for item in spec["mounts"] if not item.get("optional") or exists(item["source"])])


def request(spec: dict[str, Any]) -> dict[str, Any]:
    """The body of the request that makes the container of ``spec``, with no more rights than it needs.

    No capability, no new privileges, the default seccomp profile, a read-only root, only the replica's own devices; what a platform adds
    to that, its file says. ``/tmp`` is executable because compiled kernels are loaded from it.
    """
    publish = spec["publish"]
    port = "{0}/tcp".format(publish["container_port"])
    host: dict[str, Any] = {
        "NetworkMode": spec["network"],
        "PortBindings": {port: [{"HostIp": publish["address"], "HostPort": str(publish["port"])}]},
        "Devices": [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"} for path in spec["devices"]],
        "DeviceRequests": [
            {"Driver": item["driver"], "DeviceIDs": item["device_ids"], "Capabilities": [item["capabilities"]]}
            for item in spec["device_requests"]
        ],
        "GroupAdd": [str(gid) for gid in spec["groups"]],
        "Mounts": [
            {"Type": "bind", "Source": item["source"], "Target": item["target"], "ReadOnly": bool(item.get("read_only"))}
            for item in spec["mounts"]
        ],
        "ReadonlyRootfs": True,
        "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777,size=512m"},
        "CapDrop": ["ALL"],
        "CapAdd": spec["cap_add"],
        "SecurityOpt": [_NEW_PRIVILEGES + ":true"] + spec["security_opt"],
        "IpcMode": spec["ipc"],
        "ShmSize": spec["shm_mib"] * 2**20,
        "PidsLimit": spec["pids_limit"],
        "RestartPolicy": {"Name": "unless-stopped"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "16m", "max-file": "3"}},
    }
    if spec["cpuset"]:
        host["CpusetCpus"] = spec["cpuset"]
    if spec["memory_mib"]:
        # No swap beside it.
        host["Memory"] = host["MemorySwap"] = spec["memory_mib"] * 2**20
    body = {
        "Image": spec["image"],
        "Cmd": spec["command"],
        "Env": ["{0}={1}".format(*item) for item in spec["environment"].items()],
        "Labels": spec["labels"],
        "User": spec["user"],
        "ExposedPorts": {port: {}},
        "StopTimeout": spec["stop_timeout_s"],
        "HostConfig": host,
    }
    if spec["entrypoint"]:
        body["Entrypoint"] = spec["entrypoint"]
    return body


def _address(text: str) -> str:
    """An address in its one spelling; what is none stays."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text


def _capabilities(names: list[str] | None) -> list[str]:
    return sorted(name.upper().replace("CAP_", "") for name in names or [])


def _option(text: str) -> str:
    """A security option in its one spelling: ``a``, ``a:true`` and ``a=true`` are one."""
    name, _separator, value = text.replace("=", ":", 1).partition(":")
    return "{0}:{1}".format(name, value or "true")


def normal(config: dict[str, Any], host: dict[str, Any]) -> dict[str, Any]:
    """What makes a container, in one form for what is asked and for what is found: spelled one way, without order where none counts.

    Args:
        config: the body of a request, or ``Config`` of a description.
        host: its ``HostConfig``.
    Returns the value of each field, ``Env`` and ``Labels`` by name.
    """
    result: dict[str, Any] = {
        "User": config.get("User") or "",
        "Entrypoint": list(config.get("Entrypoint") or []),
        "Cmd": list(config.get("Cmd") or []),
        "StopTimeout": config.get("StopTimeout"),
        "Env": {item.partition("=")[0]: item.partition("=")[2] for item in config.get("Env") or []},
        "Labels": dict(config.get("Labels") or {}),
    }
    fields: dict[str, Any] = {
        "NetworkMode": host.get("NetworkMode") or "",
        "PortBindings": sorted(
            "{0}:{1}->{2}".format(_address(item.get("HostIp") or ""), item.get("HostPort"), port)
            for port, items in (host.get("PortBindings") or {}).items()
            for item in items or []
        ),
        "Devices": sorted(
            "{0}:{1}:{2}".format(
                posixpath.normpath(item["PathOnHost"]),
                posixpath.normpath(item["PathInContainer"]),
                "".join(sorted(item.get("CgroupPermissions") or "")),
            )
            for item in host.get("Devices") or []
        ),
        "DeviceRequests": sorted(
            "{0}:{1}:{2}:{3}".format(
                item.get("Driver") or "",
                item.get("Count") or 0,
                ",".join(sorted(item.get("DeviceIDs") or [])),
                "|".join(sorted(",".join(sorted(group)) for group in item.get("Capabilities") or [])),
            )
            for item in host.get("DeviceRequests") or []
        ),
        "GroupAdd": sorted(str(item) for item in host.get("GroupAdd") or []),
        "Mounts": sorted(
            "{0}:{1}:{2}:{3}".format(
                item.get("Type"),
                posixpath.normpath(item.get("Source") or ""),
                posixpath.normpath(item["Target"]),
                "ro" if item.get("ReadOnly") else "rw",
            )
            for item in host.get("Mounts") or []
        ),
        "ReadonlyRootfs": bool(host.get("ReadonlyRootfs")),
        "Tmpfs": {path: sorted(options.split(",")) for path, options in (host.get("Tmpfs") or {}).items()},
        "CapDrop": _capabilities(host.get("CapDrop")),
        "CapAdd": _capabilities(host.get("CapAdd")),
        # An engine adds this one itself to a container with the host's shared memory.
        "SecurityOpt": sorted({_option(item) for item in host.get("SecurityOpt") or []} - {"label:disable"}),
        "IpcMode": host.get("IpcMode") or "",
        "ShmSize": host.get("ShmSize") or 0,
        "PidsLimit": host.get("PidsLimit") or 0,
        "RestartPolicy": (host.get("RestartPolicy") or {}).get("Name") or "",
        "LogConfig": host.get("LogConfig") or {},
        "CpusetCpus": host.get("CpusetCpus") or "",
        "Memory": host.get("Memory") or 0,
        "MemorySwap": host.get("MemorySwap") or 0,
    }
    fields.update((name, host.get(name) or None) for name in _NEVER)
    result.update(("HostConfig." + name, value) for name, value in fields.items())
    return result


def differences(spec: dict[str, Any], inspected: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Where a container is not what ``request(spec)`` makes, although it may carry that specification's hash: it was changed, made by
    hand, or made by another version of this collection.

    What an image or the engine's own settings add (variables, labels, a start program, ulimits) is no difference.

    Args:
        inspected: the engine's description of the container.
    Returns ``{field: (found, wanted)}``, empty for a container that is as it was asked for; of variables only names are told.
    """
    body = request(spec)
    wanted = normal(body, body["HostConfig"])
    found = normal(inspected["Config"], inspected["HostConfig"])
    result = {}
    for field, value in wanted.items():
        if field in ("Env", "Labels"):
            off = sorted(name for name in value if found[field].get(name) != value[name])
            if off:
                result[field] = (["{0} is {1}".format(name, "another" if name in found[field] else "missing") for name in off], off)
        elif field == "Entrypoint" and not value:
            continue
        elif found[field] != value and found[field] not in _UNLIMITED.get(field, ()):
            result[field] = (found[field], value)
    return result
