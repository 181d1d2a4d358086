# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A container as its engine describes it after it was made from a specification: lists in another order, defaults filled in, what image
and daemon add."""

from __future__ import annotations

import copy

from ansible_collections.ironserve.llm.plugins.module_utils._container_request import request

#: A specification with everything a specification has.
SPEC = {
    "name": "ironserve-c1",
    "image": "img",
    "entrypoint": None,
    "command": ["serve"],
    "environment": {"HOME": "/cache", "USER": "engine"},
    "mounts": [
        {"source": "/w", "target": "/models", "read_only": True},
        {"source": "/c", "target": "/cache", "read_only": False, "owner": 64064},
    ],
    "devices": ["/dev/kfd", "/dev/dri/card1"],
    "own_devices": ["/dev/dri/card1"],
    "device_requests": [],
    "cap_add": [],
    "security_opt": [],
    "ipc": "private",
    "groups": [44],
    "cpuset": "1",
    "memory_mib": 1024,
    "shm_mib": 64,
    "pids_limit": 256,
    "stop_timeout_s": 20,
    "user": "64064:64064",
    "network": "ironserve",
    "publish": {"address": "127.0.0.1", "port": 8002, "container_port": 8000},
    "spec_hash": "new",
    "labels": {"ironserve.replica": "local-c1", "ironserve.spec": "new"},
}


def described(spec: dict, running: bool = True) -> dict:
    """What the engine says of the container of ``spec``; the result can be changed."""
    body = copy.deepcopy(request(spec))
    host = body.pop("HostConfig")
    for name in ("Devices", "DeviceRequests", "Mounts", "GroupAdd", "SecurityOpt"):
        # An engine keeps an empty list as null.
        host[name] = host[name][::-1] or None
    host["CapAdd"] = ["CAP_" + name for name in host["CapAdd"]] or None
    for item in host["Mounts"]:
        if not item["ReadOnly"]:
            del item["ReadOnly"]
    for item in host["DeviceRequests"] or []:
        item.update(Count=0, Options={})
    host["RestartPolicy"]["MaximumRetryCount"] = 0
    host.update(
        # default-ulimits of the daemon.
        Ulimits=[{"Name": "nofile", "Hard": 64000, "Soft": 64000}],
        Binds=None,
        CgroupnsMode="private",
        ConsoleSize=[0, 0],
        CpuQuota=0,
        NanoCpus=0,
        OomScoreAdj=0,
        PidMode="",
        Privileged=False,
        Runtime="runc",
        UTSMode="",
        UsernsMode="",
        MaskedPaths=["/proc/kcore"],
    )
    for name, value in (("Memory", 0), ("MemorySwap", 0), ("CpusetCpus", "")):
        host.setdefault(name, value)
    body["Env"] = body["Env"][::-1] + ["PATH=/usr/bin:/bin"]
    body["Labels"]["org.opencontainers.image.version"] = "22.04"
    body.setdefault("Entrypoint", ["/entry.sh"])
    body.update(Hostname="0123456789ab", Tty=False, WorkingDir="/work")
    return {
        "Id": "1",
        "Name": "/" + spec["name"],
        "State": {"Running": running},
        "Config": body,
        "HostConfig": host,
        "NetworkSettings": {"Networks": {spec["network"]: {"Aliases": ["0123456789ab"], "IPAddress": "172.18.0.2"}}},
    }
