#!/usr/bin/env python3
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Bring the lab up and down: a gateway node, card nodes and a registry, as containers on this machine.

Usage: lab.py up [--nodes N] [--engine NAME] [--played] | lab.py down | lab.py left

``up`` makes what is missing, replaces what differs and leaves the rest alone; cut short, the next run finishes it.
``down`` removes whatever carries the label, the generated key and the generated state; ``left`` names what is still there and
ends with 1 when anything is. What stays in .cache/lab is input only (images and packages), so that the next ``up`` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import ipaddress
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "lab"
#: What one lab is, as opposed to what it is made from: gone after ``down``.
LIVE = CACHE / "live"
STATE = LIVE / "lab.json"
KEY = LIVE / "ssh_key"
KNOWN_HOSTS = LIVE / "known_hosts"
#: Storage of the registry; only blobs and manifests, named by their digests.
REGISTRY = CACHE / "registry"
#: Writes the played hosts; where the nodes keep them.
PLAYED = ROOT / "tests/replay/hosts.py"
PLAYED_PLACE = "/opt/played"
#: Where the role host keeps its ledger when it had to install or start a container engine for the lab.
HOST_STATE = CACHE / "host"

LABEL = "ironserve.lab"
PREFIX = "ironserve-lab"
NETWORK = PREFIX
REGISTRY_NAME = "registry.lab"
USER = "llm"
CARDS = 4

#: The first that overlaps no route of this machine is taken; the engine itself refuses its own networks' ranges.
SUBNETS = ["172.31.77.0/24", "172.30.77.0/24", "10.213.77.0/24", "192.168.213.0/24"]

PACKAGES = (
    "systemd systemd-sysv dbus openssh-server sudo python3 python3-apt python3-docker python3-requests docker.io docker-registry "
    "haproxy iproute2 iptables procps ca-certificates curl"
).split()

#: A node may do all that systemd and a container engine need inside it, and nothing to this machine: its control groups are
#: its own, /proc/sys stays read-only, and what reaches the kernel itself (modules, clock, raw memory, reboot) is taken away.
#: SYS_RESOURCE is missing from the outset on some machines, where asking for it fails.
#: seccomp and apparmor profiles of the outer engine would forbid the mounts of the inner one.
NODE_FLAGS = [
    "--cgroupns=private",
    "--cap-add=ALL",
    *(
        f"--cap-drop={name}"
        for name in ("SYS_RESOURCE", "SYS_MODULE", "SYS_TIME", "SYS_RAWIO", "SYS_BOOT", "SYSLOG", "MAC_ADMIN", "MAC_OVERRIDE")
    ),
    "--security-opt=seccomp=unconfined",
    "--security-opt=apparmor=unconfined",
    "--sysctl=net.ipv4.ip_forward=1",
    "--tmpfs=/run:rw,nosuid,nodev,size=256m",
    "--tmpfs=/run/lock",
]

BOOT_TIMEOUT_S = 90


class LabError(Exception):
    """What went wrong, where, and what to do: one line for a person."""


def say(text: str) -> None:
    print(f"==> lab: {text}", file=sys.stderr, flush=True)


def die(text: str) -> NoReturn:
    print(f"ironserve: {text}", file=sys.stderr)
    sys.exit(1)


# ---- commands


def as_root(*command: str) -> list[str]:
    return list(command) if os.geteuid() == 0 else ["sudo", "--", *command]


@functools.cache
def sudo_asks() -> bool:
    """Whether sudo wanted a password when it was first asked."""
    return os.geteuid() != 0 and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode != 0


def require_root() -> None:
    """Ask for sudo's password once, at the start, or say that it is needed."""
    if os.geteuid() == 0:
        return
    if shutil.which("sudo") is None:
        raise LabError("root is needed on this machine and there is no sudo: run this as root")
    if sudo_asks() and (not sys.stdin.isatty() or subprocess.run(["sudo", "--validate"]).returncode):
        raise LabError("root is needed on this machine: sudo wants a password and did not get it. Run this as root or from a terminal")


def run(*command: str, **options: Any) -> str:
    """Standard output of a command, stripped; LabError with the end of what it said when it fails."""
    options.setdefault("stdout", subprocess.PIPE)
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, **options)
    if result.returncode:
        said = "\n".join(((result.stdout or "") + result.stderr).strip().splitlines()[-15:])
        raise LabError(f"{' '.join(command[:8])}: failed with status {result.returncode}\n{said}")
    return (result.stdout or "").strip()


def docker_command() -> list[str]:
    reachable = os.geteuid() == 0 or os.access("/var/run/docker.sock", os.W_OK)
    return ["docker"] if reachable else ["sudo", "--", "docker"]


def docker(*arguments: str, **options: Any) -> str:
    return run(*docker_command(), *arguments, **options)


def inspect(kind: str, name: str) -> dict[str, Any] | None:
    """What the engine knows of a container, image, volume or network; None when there is none of that name."""
    result = subprocess.run([*docker_command(), kind, "inspect", name], capture_output=True, text=True)
    return json.loads(result.stdout)[0] if result.returncode == 0 else None


def labelled(kind: str) -> list[str]:
    """Names of everything of a kind that belongs to the lab."""
    listing = {"container": ["ps", "--all", "--format={{.Names}}"], "image": ["images", "--format={{.ID}}"]}
    words = listing.get(kind, [kind, "ls", "--format={{.Name}}"])
    return sorted(set(docker(*words, "--filter", f"label={LABEL}").split()))


def engine_answers() -> bool:
    return shutil.which("docker") is not None and subprocess.run([*docker_command(), "version"], capture_output=True).returncode == 0


def playbook(name: str, *arguments: str) -> None:
    """Run one of the lab's playbooks on this machine, with host state of its own, so that a demo beside it is not touched."""
    say(f"ansible-playbook {name}")
    HOST_STATE.mkdir(parents=True, exist_ok=True)
    variables = {
        "llm_state_dir": str(HOST_STATE / "lib"),
        "llm_config_dir": str(HOST_STATE / "etc"),
        "llm_run_dir": str(HOST_STATE / "run"),
    }
    program = pathlib.Path(sys.executable).with_name("ansible-playbook")
    command = [str(program), str(HERE / name), "-i", str(ROOT / "inventories/local"), "-e", json.dumps(variables), *arguments]
    # What sudo remembers for this terminal does not hold for Ansible's own.
    if sudo_asks():
        command.append("--ask-become-pass")
    if subprocess.run(command, cwd=ROOT, stdout=sys.stderr, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}).returncode:
        raise LabError(f"{name} failed (see above)")


# ---- the image of the nodes


@dataclasses.dataclass(frozen=True)
class Mirror:
    """Where this machine's own packages come from."""

    url: str
    suite: str
    keyring: str


def mirror() -> Mirror:
    """The first source of this machine that carries its own release; read from apt, which knows both notations."""
    release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines() if "=" in line)
    suite = release.get("VERSION_CODENAME", "").strip('"')
    for line in run("apt-get", "indextargets", "--format", "$(CODENAME)|$(REPO_URI)|$(SIGNED_BY)", "Created-By: Packages").splitlines():
        codename, url, keyring = line.split("|")
        if codename == suite:
            return Mirror(url.rstrip("/"), suite, keyring if keyring.startswith("/") else "")
    raise LabError(f"no package source of this machine carries {suite or 'its release'}: see apt-get indextargets, and apt-get update")


def digest_of(*parts: str | pathlib.Path) -> str:
    """Twelve hex digits for texts and files; a directory counts with its files' names, modes and contents."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            total.update(part.encode() + b"\0")
            continue
        for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
            if path.is_file() and "__pycache__" not in path.parts:
                total.update(f"{path.relative_to(ROOT)} {path.stat().st_mode & 0o111}\0".encode() + path.read_bytes())
    return total.hexdigest()[:12]


@contextlib.contextmanager
def scratch(name: str) -> Iterator[pathlib.Path]:
    """A directory that is empty at the start and gone at the end, whoever owns what is in it."""
    place = CACHE / name
    run(*as_root("rm", "-rf", "--one-file-system", str(place)))
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        run(*as_root("rm", "-rf", "--one-file-system", str(place)))


def write_whole(path: pathlib.Path, write: Callable[[Any], Any]) -> None:
    """Write a file so that it is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        write(file)
    part.replace(path)


def base_tar(source: Mirror) -> pathlib.Path:
    """A minimal system of this machine's own release, packed."""
    tar = CACHE / f"base-{digest_of(source.url, source.suite)}.tar"
    if tar.exists():
        return tar
    say(f"debootstrap of {source.suite} from {source.url}")
    with scratch("base") as place:
        keyring = [f"--keyring={source.keyring}"] if source.keyring else []
        tree = place / "tree"
        settings = place / "wgetrc"
        settings.write_text(f"ca_certificate = {authorities()}\n", encoding="utf-8")
        run(
            *as_root(
                "env",
                f"WGETRC={settings}",
                "debootstrap",
                "--variant=minbase",
                "--include=ca-certificates",
                *keyring,
                source.suite,
                str(tree),
                source.url,
            )
        )
        pack = as_root("tar", "--numeric-owner", "--one-file-system", "--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*")
        pack += ["--exclude=./var/cache/apt/archives/*.deb", "-C", str(tree), "-cf", "-", "."]
        write_whole(tar, lambda file: run(*pack, stdout=file))
    return tar


def authorities() -> str:
    """The bundle of certificate authorities that this machine trusts."""
    return os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt"


def node_image() -> str:
    """Reference of the node image, built or loaded if this machine does not have it."""
    source = mirror()
    tag = digest_of(HERE / "node", " ".join(PACKAGES), source.suite, os.uname().machine)
    reference = f"{PREFIX}/node:{tag}"
    kept = CACHE / f"node-{tag}.tar"
    if inspect("image", reference):
        return reference
    if kept.exists():
        say(f"loading {reference}")
        docker("load", "--quiet", "--input", str(kept))
        return reference
    base = base_tar(source)
    say(f"building {reference}")
    with scratch("context") as context:
        shutil.copytree(HERE / "node", context, dirs_exist_ok=True)
        os.link(base, context / "base.tar")
        shutil.copy(authorities(), context / "build-ca.crt")
        # The classic builder: the other one is a plugin that not every installation has.
        words = [
            "build",
            "--quiet",
            "--network=host",
            "--force-rm",
            f"--tag={reference}",
            f"--label={LABEL}=1",
            "--build-arg",
            "PACKAGES=" + " ".join(PACKAGES),
        ]
        words += [word for name in ("http_proxy", "https_proxy", "no_proxy") if name in os.environ for word in ("--build-arg", name)]
        docker(*words, str(context), env={**os.environ, "DOCKER_BUILDKIT": "0"})
    for old in CACHE.glob("node-*.tar"):
        old.unlink()
    write_whole(kept, lambda file: docker("save", reference, stdout=file))
    return reference


# ---- network and containers


def routes(table: str) -> list[ipaddress.IPv4Network]:
    """Networks that a table as in /proc/net/route leads to, the default route left out."""
    found = []
    for line in table.splitlines()[1:]:
        _, destination, _, _, _, _, _, mask, *_ = line.split()
        if destination != "00000000":
            address, netmask = (ipaddress.IPv4Address(bytes.fromhex(word)[::-1]) for word in (destination, mask))
            found.append(ipaddress.IPv4Network(f"{address}/{netmask}"))
    return found


def network() -> ipaddress.IPv4Network:
    """The lab's network, made if it is not there."""
    there = inspect("network", NETWORK)
    if there:
        if LABEL not in there["Labels"]:
            raise LabError(
                f"container network {NETWORK} exists and is not the lab's: remove it (docker network rm {NETWORK}) and run again"
            )
        return ipaddress.IPv4Network(there["IPAM"]["Config"][0]["Subnet"])
    refused = "each overlaps a route of this machine"
    taken = routes(pathlib.Path("/proc/net/route").read_text(encoding="ascii"))
    for subnet in map(ipaddress.IPv4Network, SUBNETS):
        if any(subnet.overlaps(route) for route in taken):
            continue
        try:
            docker("network", "create", f"--label={LABEL}=1", f"--subnet={subnet}", NETWORK)
            return subnet
        except LabError as exc:
            refused = str(exc)
    raise LabError(f"none of {', '.join(SUBNETS)} is free for the lab: {refused}")


@dataclasses.dataclass
class Member:
    """One container of the lab."""

    name: str
    address: str
    flags: list[str]
    command: list[str] = dataclasses.field(default_factory=list)
    volume: str = ""

    @property
    def container(self) -> str:
        return f"{PREFIX}-{self.name.split('.')[0]}"

    def ensure(self, image: str, image_id: str) -> None:
        """Have it running as described; what differs from the description is made anew, with an empty volume."""
        spec = digest_of(json.dumps([dataclasses.asdict(self), image_id]))
        there = inspect("container", self.container)
        if there:
            if LABEL not in there["Config"]["Labels"]:
                raise LabError(f"container {self.container} exists and is not the lab's: rename or remove it and run again")
            if there["Config"]["Labels"].get(f"{LABEL}.spec") == spec:
                if not there["State"]["Running"]:
                    say(f"starting {self.name}")
                    docker("start", self.container)
                return
            self.remove()
        say(f"making {self.name}")
        words = ["run", "--detach", f"--name={self.container}", f"--hostname={self.name}", f"--network={NETWORK}", f"--ip={self.address}"]
        words += [f"--label={LABEL}=1", f"--label={LABEL}.spec={spec}", *self.flags]
        if self.volume:
            docker("volume", "create", f"--label={LABEL}=1", self.volume)
            words.append(f"--volume={self.volume}:/var/lib/docker")
        docker(*words, image, *self.command)

    def remove(self) -> None:
        say(f"removing {self.name}")
        docker("rm", "--force", "--volumes", self.container)
        if self.volume and inspect("volume", self.volume):
            docker("volume", "rm", self.volume)

    def require_running(self) -> None:
        """A wait that only looks for success would wait for the dead."""
        there = inspect("container", self.container)
        if not there or not there["State"]["Running"]:
            logs = subprocess.run([*docker_command(), "logs", "--tail=15", self.container], capture_output=True, text=True)
            raise LabError(f"{self.name} died while it started:\n{(logs.stdout + logs.stderr).strip()}")


def registry_member(subnet: ipaddress.IPv4Network) -> Member:
    REGISTRY.mkdir(parents=True, exist_ok=True)
    flags = ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only", "--memory=512m", f"--user={os.geteuid()}:{os.getegid()}"]
    flags += [f"--network-alias={REGISTRY_NAME}", f"--volume={REGISTRY}:/registry", "--publish=127.0.0.1::5000"]
    return Member(REGISTRY_NAME, str(subnet[2]), flags, ["docker-registry", "serve", "/etc/docker-registry/lab.yml"])


def node_members(subnet: ipaddress.IPv4Network, count: int, alone: bool = False) -> list[Member]:
    """The gateway node first. The fleet is mixed on purpose: one engine runs before the site comes, the others must be started.

    With ``alone`` card nodes have one core each, in turn, as far as there are cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    members = [Member("gw", str(subnet[10]), list(NODE_FLAGS), volume=f"{PREFIX}-gw-docker")]
    for number in range(1, count + 1):
        flags = [*NODE_FLAGS, f"--env=LAB_CARDS={CARDS}", f"--env=LAB_ENGINE={'running' if number == 1 else 'installed'}"]
        if alone:
            flags.append(f"--cpuset-cpus={cores[(number - 1) % len(cores)]}")
        members.append(Member(f"node{number}", str(subnet[10 + number]), flags, volume=f"{PREFIX}-node{number}-docker"))
    return members


def until(what: str, deadline: float, ready: Callable[[], bool], alive: Callable[[], None]) -> None:
    """Ask until it is so, as long as it can still become so."""
    while not ready():
        alive()
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {BOOT_TIMEOUT_S} s")
        time.sleep(0.1)


def boot(member: Member) -> str:
    """Wait until a node is up and lets us in; returns its line for known_hosts."""
    deadline = time.monotonic() + BOOT_TIMEOUT_S

    def inside(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*docker_command(), "exec", "--interactive", member.container, *command], capture_output=True, text=True, **options
        )

    def booted() -> bool:
        return inside("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")

    until(f"{member.name}: systemd", deadline, booted, member.require_running)
    failed = inside("systemctl", "list-units", "--failed", "--plain", "--no-legend").stdout.strip()
    if failed:
        raise LabError(f"{member.name}: units failed at boot:\n{failed}")
    if "--env=LAB_ENGINE=running" in member.flags:
        until(f"{member.name}: container engine", deadline, lambda: inside("docker", "version").returncode == 0, member.require_running)
    # Written again at every run: a run that was cut short may have left a node without it.
    keys = inside(
        "sh",
        "-c",
        "umask 022; cat >/etc/ssh/lab_authorized_keys; cat /etc/ssh/ssh_host_ed25519_key.pub",
        input=KEY.with_suffix(".pub").read_text(),
    )
    if keys.returncode:
        raise LabError(f"{member.name}: cannot exchange ssh keys: {keys.stderr.strip()}")
    return f"{member.address} {' '.join(keys.stdout.split()[:2])}\n"


def ssh_arguments() -> list[str]:
    return ["-F", "none", "-o", f"UserKnownHostsFile={KNOWN_HOSTS}", "-o", "GlobalKnownHostsFile=none", "-o", "StrictHostKeyChecking=yes"]


def admit(member: Member) -> None:
    """Wait until a node answers over ssh as it will be asked by Ansible."""
    command = [
        "ssh",
        *ssh_arguments(),
        "-i",
        str(KEY),
        "-o",
        "BatchMode=yes",
        "-o",
        "ConnectTimeout=3",
        f"{USER}@{member.address}",
        "sudo -n true",
    ]
    answer: subprocess.CompletedProcess[str] | None = None

    def answers() -> bool:
        nonlocal answer
        answer = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return answer.returncode == 0

    try:
        until(f"{member.name}: ssh", time.monotonic() + BOOT_TIMEOUT_S, answers, member.require_running)
    except LabError as exc:
        raise LabError(f"{exc}: {answer.stderr.strip() if answer else ''}") from None


def side_by_side(work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Results in order; the first failure is raised once all are done."""
    results: list[Any] = [None] * len(items)
    failures: list[BaseException] = []

    def one(index: int, item: Any) -> None:
        try:
            results[index] = work(item)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(items)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


# ---- the engine image of the replicas


def registry_url() -> str:
    return "http://" + docker("port", f"{PREFIX}-registry", "5000/tcp").splitlines()[0]


def registry_answers(path: str) -> bool:
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    try:
        with urllib.request.urlopen(urllib.request.Request(registry_url() + path, headers={"Accept": kind}), timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError, LabError):
        return False


def engine_builds() -> dict[str, str]:
    """Image build of each engine that runs on CPU cores, by the engine's name."""
    engines = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / "roles/catalog/engines").glob("*.yml")]
    return {engine["name"]: engine["images"]["cpu"]["build"] for engine in engines if "build" in engine["images"].get("cpu", {})}


def engine_made_from(build: str) -> str:
    """Digest of everything the engine image is made from."""
    role = ROOT / "roles/replica"
    images = role / "files/images"
    shared = sorted(path for path in images.iterdir() if path.is_file())
    return digest_of(images / build, *shared, *sorted((role / "tasks").glob("image_*.yml")), mirror().suite, os.uname().machine)


def engine_noted(build: str) -> dict[str, str]:
    """Repository and digest of the engine image as it was pushed last; empty when there is none, or it was made from something else."""
    note = CACHE / f"engine-{build}.json"
    known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    return known if known.get("made_from") == engine_made_from(build) else {}


def built_engine(build: str) -> str:
    """Reference of the engine image on this machine, made by the role replica if it is not there."""
    told = LIVE / "engine_image.json"
    # Not replaced when it is there: then an earlier run was cut short, and its list is the true one.
    before = HOST_STATE / "images_before.json"
    if not before.exists():
        HOST_STATE.mkdir(parents=True, exist_ok=True)
        images = docker("images", "--format={{.Repository}}:{{.Tag}}").split()
        write_whole(before, lambda file: file.write(json.dumps(images).encode()))
    playbook("engine.yml", "-e", json.dumps({"lab_told": str(told), "lab_build": build}))
    return json.loads(told.read_text(encoding="utf-8"))["reference"]


def engine_image(registry: Member, build: str, built: str) -> dict[str, str]:
    """Repository and digest of an engine image in the lab's registry. ``built``: its reference where it was just made, or empty."""
    until("registry", time.monotonic() + BOOT_TIMEOUT_S, lambda: registry_answers("/v2/"), registry.require_running)
    known = engine_noted(build)
    if known and registry_answers(f"/v2/{known['repository']}/manifests/{known['digest']}"):
        return known
    built = built or built_engine(build)
    repository = built.rsplit(":", 1)[0]
    alias = registry_url().removeprefix("http://") + "/" + built
    say(f"pushing {built} to {REGISTRY_NAME}")
    docker("tag", built, alias)
    docker("push", "--quiet", alias)
    image = inspect("image", alias) or {}
    digest = next(name.split("@")[1] for name in image["RepoDigests"] if name.startswith(alias.rsplit(":", 1)[0] + "@"))
    docker("rmi", alias)
    if built not in json.loads((HOST_STATE / "images_before.json").read_text(encoding="utf-8")):
        # Refused where something else on this machine has begun to use it: then it is no longer the lab's alone.
        subprocess.run([*docker_command(), "rmi", built], capture_output=True)
    known = {"made_from": engine_made_from(build), "repository": repository, "digest": digest}
    write_whole(CACHE / f"engine-{build}.json", lambda file: file.write(json.dumps(known).encode()))
    return known


# ---- played hosts


def inside(member: Member, *command: str, **options: Any) -> str:
    """Standard output of a command in a node."""
    options.setdefault("stdin", subprocess.DEVNULL)
    return docker("exec", "--interactive", member.container, *command, **options)


def players(told: dict[str, Any], nodes: list[Member]) -> dict[str, dict[str, Any]]:
    """Played host -> the card node it lies on, and its variables. Equal hosts of one vendor go to different nodes, as far as there are any."""
    names = [member.name for member in nodes]
    return {name: {"node": names[(host["number"] - 1) % len(names)], "vars": host["vars"]} for name, host in told.items()}


def play_hosts(nodes: list[Member]) -> dict[str, dict[str, Any]]:
    """Write the played hosts onto the card nodes, with their faults as at the start, and let the nodes' engines run."""
    with scratch("played") as place:
        told = json.loads(run(sys.executable, str(PLAYED), str(place)))
        found = players(told, nodes)

        def write(member: Member) -> None:
            own = [name for name, host in found.items() if host["node"] == member.name]
            packed = place / f"{member.name}.tar"
            run("tar", "--owner=0", "--group=0", "-C", str(place), "-cf", str(packed), "--files-from=-", input="\n".join(own))
            with open(packed, "rb") as file:
                unpack = f"rm -rf {PLAYED_PLACE} && mkdir -p {PLAYED_PLACE} && tar -C {PLAYED_PLACE} -xf -"
                inside(member, "sh", "-c", unpack, stdin=file)
            inside(member, "systemctl", "start", "docker")

        side_by_side(write, nodes)
    return found


def unplay_hosts(nodes: list[Member]) -> None:
    """Remove played hosts from the nodes. Their engines stay as they are."""
    side_by_side(lambda member: inside(member, "rm", "-rf", PLAYED_PLACE), nodes)


# ---- up, down, left


def engine_variables(name: str) -> dict[str, Any]:
    """What the inventory says of the card nodes' engine.

    An engine that needs fewer and larger cards than the lab has (``inventories/engines``) gets one on each node, and so a core of its own.
    """
    said = yaml.safe_load((ROOT / f"inventories/engines/{name}.yml").read_text(encoding="utf-8"))
    return {**said, "accelerator_cpu_cards": 1} if "accelerator_cpu_cards" in said else said


def up(count: int, engine: str, played: bool) -> None:
    build, variables = engine_builds()[engine], engine_variables(engine)
    begun = time.monotonic()
    if not engine_answers() or not (shutil.which("debootstrap") or list(CACHE.glob("node-*.tar"))):
        playbook("engine.yml", "--tags", "host")
        if not engine_answers():
            raise LabError("the role host ended well and yet no container engine answers: see docker version")
    LIVE.mkdir(parents=True, exist_ok=True)
    if not KEY.with_suffix(".pub").exists():
        KEY.unlink(missing_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ironserve-lab", "-f", str(KEY))

    # Neither needs the other, and each keeps one core busy.
    image, built = side_by_side(lambda make: make(), [node_image, lambda: "" if engine_noted(build) else built_engine(build)])
    image_id = (inspect("image", image) or {})["Id"]
    subnet = network()
    registry, nodes = registry_member(subnet), node_members(subnet, count, variables.get("accelerator_cpu_cards") == 1)
    wanted = {member.container for member in [registry, *nodes]}
    for name in sorted(set(labelled("container")) - wanted):
        Member(name.removeprefix(f"{PREFIX}-"), "", [], volume=f"{name}-docker").remove()
    side_by_side(lambda member: member.ensure(image, image_id), [registry, *nodes])

    lines = side_by_side(boot, nodes)
    write_whole(KNOWN_HOSTS, lambda file: file.write("".join(lines).encode()))
    side_by_side(admit, nodes)

    pushed = engine_image(registry, build, built)
    hosts = play_hosts(nodes[1:]) if played else {}
    if not played:
        unplay_hosts(nodes[1:])
    state = {
        "gateway": [nodes[0].name],
        "nodes": [member.name for member in nodes[1:]],
        "played": hosts,
        "addresses": {member.name: member.address for member in nodes},
        "user": USER,
        "key": str(KEY),
        "ssh_arguments": " ".join(ssh_arguments()),
        "image": {"source": "registry", "reference": f"{REGISTRY_NAME}:5000/{pushed['repository']}", "digest": pushed["digest"]},
        "engine": variables,
    }
    text = json.dumps(state, indent=2) + "\n"
    if not STATE.exists() or STATE.read_text(encoding="utf-8") != text:
        write_whole(STATE, lambda file: file.write(text.encode()))
    say(f"up after {time.monotonic() - begun:.1f} s: {', '.join(f'{node.name} {node.address}' for node in nodes)}")
    say(f"next: .venv/bin/ansible-playbook {'playbooks/preflight.yml' if played else 'site.yml'} -i inventories/lab")


def down() -> None:
    if engine_answers():
        containers = labelled("container")
        if containers:
            say(f"removing {', '.join(containers)}")
            docker("rm", "--force", "--volumes", *containers)
        for volume in labelled("volume"):
            docker("volume", "rm", volume)
        for net in labelled("network"):
            docker("network", "rm", net)
        images = labelled("image")
        if images:
            docker("rmi", "--force", *images)
    shutil.rmtree(LIVE, ignore_errors=True)
    if HOST_STATE.exists():
        playbook("engine_absent.yml")
        run(*as_root("rm", "-rf", "--one-file-system", str(HOST_STATE)))
    say("down")


def left() -> list[str]:
    """What is still there of a lab, one line each."""
    found = []
    if engine_answers():
        found += [f"{kind} {name}" for kind in ("container", "volume", "network", "image") for name in labelled(kind)]
        names = (
            docker("ps", "--all", "--format={{.Names}}")
            + "\n"
            + docker("volume", "ls", "--quiet")
            + "\n"
            + docker("network", "ls", "--format={{.Name}}")
        )
        found += [
            f"unlabelled {name}"
            for name in names.split()
            if name.startswith(PREFIX) and not any(line.endswith(" " + name) for line in found)
        ]
    found += [f"directory {path}" for path in (LIVE, HOST_STATE) if path.exists()]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["up", "down", "left"])
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="card nodes (default: 2)")
    parser.add_argument(
        "--engine", default="llama_cpp", choices=sorted(engine_builds()), help="engine of the replicas (default: llama_cpp)"
    )
    parser.add_argument("--played", action="store_true", help="put played hosts of all vendors onto the card nodes, for the preflight")
    arguments = parser.parse_args()
    if not 1 <= arguments.nodes <= 100:
        die(f"--nodes {arguments.nodes}: a lab has 1 to 100 card nodes")
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            die("another lab.py is at work in this checkout: wait until it has ended")
        try:
            require_root()
            if arguments.action == "up":
                up(arguments.nodes, arguments.engine, arguments.played)
            elif arguments.action == "down":
                down()
            else:
                found = left()
                print("\n".join(found) or "nothing is left of the lab")
                return 1 if found else 0
        except LabError as exc:
            die(str(exc))
        except KeyboardInterrupt:
            die(f"interrupted; run again to finish: {arguments.action}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
