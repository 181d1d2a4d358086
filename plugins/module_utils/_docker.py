# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The door to the container engine: the only file that imports the ``docker`` library (>= 5.0.3). Private to the collection."""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import os
import time
from typing import Any, Iterator

from ansible_collections.ironserve.llm.plugins.module_utils._container_request import request
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

try:
    import docker
    import docker.errors

    HAS_DOCKER = True
except ImportError:
    HAS_DOCKER = False

#: Errors of the engine and of the connection to it. ``requests`` raises OSErrors.
ENGINE_ERRORS: tuple[type[BaseException], ...] = (OSError,)
if HAS_DOCKER:
    ENGINE_ERRORS = (docker.errors.DockerException, OSError)

DEFAULT_SOCKET = "/var/run/docker.sock"
#: A directory that every host has.
RUN_DIR = "/run"


class EngineAbsent(LLMError):
    """There is no engine to talk to: not installed, not running, or without its Python library."""


def connect(socket: str = DEFAULT_SOCKET, timeout_s: int = 120) -> Any:
    """Return a low-level API client for the engine behind ``socket``.

    Raises EngineAbsent when the library or the engine is missing.
    """
    if not HAS_DOCKER:
        raise EngineAbsent("this host has no Python library 'docker' >= 5.0.3 (Debian: python3-docker); the host role installs it")
    try:
        client = docker.APIClient(base_url="unix://" + socket, version="auto", timeout=timeout_s)
        client.ping()
        return client
    except ENGINE_ERRORS as exc:
        raise EngineAbsent(
            "no container engine answers on {0}: {1}. Fix: start it (systemctl start docker), or run site.yml again, which starts the one "
            "it installed; its log tells why it ended".format(socket, exc)
        ) from exc


def inspect(client: Any, name: str) -> dict[str, Any] | None:
    """The engine's full description of container ``name``, or None when there is none of exactly that name."""
    try:
        found = client.inspect_container(name)
    except docker.errors.NotFound:
        return None
    # The engine also resolves id prefixes; a name must match as a name.
    return found if found["Name"].lstrip("/") == name else None


def log_tail(client: Any, name: str, lines: int = 400) -> str:
    """The last ``lines`` lines the container wrote, both streams, as text; by default enough to hold the root of a traceback."""
    raw = client.logs(name, stdout=True, stderr=True, tail=lines)
    return raw.decode("utf-8", "replace").rstrip()


def last_log(name: str, socket: str = DEFAULT_SOCKET) -> str:
    """``log_tail`` of a container by its name alone."""
    return log_tail(connect(socket), name)


def start_log(name: str, most_bytes: int = 4 * 2**20, socket: str = DEFAULT_SOCKET) -> str:
    """What the container wrote since its last start, at most the first ``most_bytes`` bytes, as text; empty when there is no such container."""
    client = connect(socket)
    found = inspect(client, name)
    if found is None:
        return ""
    parts, size = [], 0
    since = calendar.timegm(time.strptime(found["State"]["StartedAt"][:19], "%Y-%m-%dT%H:%M:%S"))
    for part in client.logs(name, stdout=True, stderr=True, stream=True, follow=False, since=since):
        parts.append(part)
        size += len(part)
        if size >= most_bytes:
            break
    return b"".join(parts).decode("utf-8", "replace")


def container_pid(name: str, socket: str = DEFAULT_SOCKET) -> int:
    """The host's process id of the container's main process.

    Raises LLMError when there is no such container or it does not run.
    """
    found = inspect(connect(socket), name)
    if found is None:
        raise LLMError("container {0} does not exist".format(name))
    pid = int(found["State"]["Pid"])
    if pid == 0:
        raise LLMError("container {0} does not run (exit code {1})".format(name, found["State"]["ExitCode"]))
    return pid


def container_state(name: str, socket: str = DEFAULT_SOCKET) -> dict[str, Any]:
    """Whether the container lives, and what it said last.

    Returns ``{"running": bool, "pid": int, "exit_code": int, "oom_killed": bool, "restarts": int, "log_tail": str}``; ``pid`` is 0 when it
    does not run, ``log_tail`` is empty while it does.
    Raises LLMError when there is no such container.
    """
    client = connect(socket)
    found = inspect(client, name)
    if found is None:
        raise LLMError("container {0} does not exist".format(name))
    state = found["State"]
    running = bool(state["Running"]) and not state.get("Restarting", False)
    return {
        "running": running,
        "pid": int(state["Pid"]) if running else 0,
        "exit_code": int(state["ExitCode"]),
        "oom_killed": bool(state.get("OOMKilled", False)),
        "restarts": int(found.get("RestartCount", 0)),
        "log_tail": "" if running else log_tail(client, name),
    }


def running_containers(client: Any) -> list[dict[str, Any]]:
    """Full descriptions of all running containers; one that ends meanwhile is left out."""
    found = []
    for item in client.containers():
        try:
            found.append(client.inspect_container(item["Id"]))
        except docker.errors.NotFound:
            continue
    return found


def replicas(client: Any) -> list[dict[str, Any]]:
    """All containers of this collection's replicas, running or not, by name: ``{"name", "labels"}``."""
    found = client.containers(all=True, filters={"label": "ironserve.replica"})
    return sorted(
        ({"name": item["Names"][0].lstrip("/"), "labels": item.get("Labels") or {}} for item in found), key=lambda item: item["name"]
    )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Do something with the engine's networks while no other module of this host does: the engine takes two of one name, and then knows
    neither. What is locked is a directory that every host has, so nothing is left behind."""
    number = os.open(RUN_DIR, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def ensure_network(client: Any, name: str) -> bool:
    """Make the replicas' bridge network, on which containers do not reach each other. Returns whether it had to be made."""
    with _alone():
        if any(item["Name"] == name for item in client.networks(names=[name])):
            return False
        try:
            client.create_network(
                name,
                driver="bridge",
                options={"com.docker.network.bridge.enable_icc": "false"},
                labels={"ironserve.network": name},
                check_duplicate=True,
            )
        except docker.errors.APIError as exc:
            # Somebody else was a moment earlier.
            if exc.status_code != 409:
                raise
            return False
    return True


def subnets(client: Any, name: str) -> list[str]:
    """The addresses of a network, as ``172.18.0.0/16``; none when there is no such network or the host's own."""
    found = [item for item in client.networks(names=[name]) if item["Name"] == name]
    return [config["Subnet"] for item in found for config in item["IPAM"].get("Config") or [] if config.get("Subnet")]


def published(client: Any) -> list[tuple[str, int]]:
    """Address and port on the host of every port of this collection's replicas, running or not; no address is all of them."""
    found = set()
    for item in replicas(client):
        for bindings in ((inspect(client, item["name"]) or {}).get("HostConfig", {}).get("PortBindings") or {}).values():
            found |= {(binding.get("HostIp") or "0.0.0.0", int(binding["HostPort"])) for binding in bindings or []}
    return sorted(found)


def remove_network(client: Any, name: str) -> bool:
    """Remove the replicas' network if this collection made it and nothing is on it, and every other one of ours with this name: an engine
    may have two. Returns whether one was removed."""
    removed = False
    for item in client.networks(names=[name], filters={"label": "ironserve.network=" + name}):
        # What another name of this machine removed a moment earlier is as good.
        with contextlib.suppress(docker.errors.NotFound):
            if item["Name"] == name and not client.inspect_network(item["Id"]).get("Containers"):
                client.remove_network(item["Id"])
                removed = True
    return removed


def create(client: Any, spec: dict[str, Any]) -> None:
    """Create and start the container of ``spec``, exactly as ``request`` says: a proxy of this host's own settings is not handed in."""
    client.create_container_from_config(request(spec), spec["name"])
    client.start(spec["name"])


def run_once(client: Any, image: str, command: list[str], timeout_s: int) -> tuple[int, str]:
    """Run one command in a container of ``image`` that can reach nothing and write nothing, and remove it again.

    Returns the exit status and what it printed, both streams.
    """
    host_config = client.create_host_config(
        read_only=True,
        tmpfs={"/tmp": "rw,nosuid,nodev,mode=1777,size=64m"},
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        network_mode="none",
        pids_limit=256,
    )
    made = client.create_container(image, entrypoint=command, command=[], host_config=host_config, user="65534:65534")
    try:
        client.start(made["Id"])
        status = int(client.wait(made["Id"], timeout=timeout_s)["StatusCode"])
        return status, log_tail(client, made["Id"], 100)
    finally:
        remove(client, made["Id"])


def stop(client: Any, name: str, timeout_s: int) -> None:
    """Stop a container; its engine has ``timeout_s`` seconds to finish what it answers."""
    client.stop(name, timeout=timeout_s)


def remove(client: Any, name: str) -> None:
    """Remove a stopped container; a missing one is as good."""
    try:
        client.remove_container(name, force=True)
    except docker.errors.NotFound:
        pass
