# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""replica_firewall with real rules and real packets: a host with a container, a gateway and a third host, each a network namespace.

The host's own rules are those that a container engine makes for a published port. None of it touches this machine's own network.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import json
import os
import pathlib
import shutil
import socket
import subprocess
import threading

import pytest
from ansible.module_utils.testing import patch_module_args
from unit.plugins.played.engine import play

from ansible_collections.ironserve.llm.plugins.modules import replica_firewall

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "roles/replica/templates"
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
NUMBERS = itertools.count(1)
INSIDE = "10.98.0.0/24"

#: What a container engine sets for port 8001 of the host and port 8000 of the container.
ENGINE = """*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 10.98.0.0/24 ! -o inner -j MASQUERADE
-A DOCKER ! -i inner -d {host} -p tcp -m tcp --dport 8001 -j DNAT --to-destination {container}:8000
COMMIT
*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -o inner -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o inner -j DOCKER
-A FORWARD -i inner ! -o inner -j ACCEPT
-A DOCKER -d {container} ! -i inner -o inner -p tcp -m tcp --dport 8000 -j ACCEPT
-A DOCKER-USER -s 10.99.0.77/32 -m comment --comment foreign -j DROP
-A DOCKER-USER -j RETURN
COMMIT
"""


def run(*command, stdin=None):
    return subprocess.run(command, input=stdin, check=True, capture_output=True, text=True, timeout=60).stdout


def possible():
    """What this machine lacks, or ""."""
    if os.geteuid():
        return "root is needed"
    for name in ("ip", "iptables", "ip6tables"):
        if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            return "no " + name
    return ""


pytestmark = pytest.mark.skipif(possible() != "", reason=possible())


@pytest.fixture(autouse=True)
def _programs(monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"] + ":/usr/sbin:/sbin")


class Space:
    """A network namespace."""

    def __init__(self, name):
        self.name = name
        run("ip", "netns", "add", name)

    def do(self, work):
        """Run ``work`` in a thread that lives in this namespace, as do the commands that it starts; returns what it returns."""
        kept = {}

        def inside():
            with open("/run/netns/" + self.name, "rb") as handle:
                if LIBC.setns(handle.fileno(), CLONE_NEWNET):
                    kept["error"] = OSError(ctypes.get_errno(), "setns")
                    return
            try:
                kept["value"] = work()
            except BaseException as exc:
                kept["error"] = exc

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if "error" in kept:
            raise kept["error"]
        return kept["value"]

    def run(self, *command, stdin=None):
        return self.do(lambda: run(*command, stdin=stdin))

    def reaches(self, address, port):
        """Whether whoever listens there answers with its name: that name, "refused" or "silence"."""

        def connect():
            try:
                with socket.create_connection((address, port), timeout=0.4) as door:
                    return door.recv(100).decode()
            except ConnectionRefusedError:
                return "refused"
            except (TimeoutError, OSError):
                return "silence"

        return self.do(connect)


class Site:
    """A host with a container and two ports of its own, a gateway, and a third host on the same wire."""

    host, gateway, third, container = "10.99.0.1", "10.99.0.2", "10.99.0.3", "10.98.0.2"
    host6, gateway6, third6 = "fd99::1", "fd99::2", "fd99::3"

    def __init__(self, place):
        self.place = place
        self.directory = place / "etc/firewall"
        self.stack = contextlib.ExitStack()
        tag = f"fw{os.getpid()}n{next(NUMBERS)}"
        self.spaces = {}
        try:
            for name in ("wire", "host", "gateway", "third", "container"):
                self.spaces[name] = Space(tag + name[0])
                self.spaces[name].run("ip", "link", "set", "lo", "up")
            wire, host, container = self.spaces["wire"], self.spaces["host"], self.spaces["container"]
            wire.run("ip", "link", "add", "br0", "type", "bridge")
            wire.run("ip", "link", "set", "br0", "up")
            for number, name in enumerate(("host", "gateway", "third"), 1):
                wire.run("ip", "link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", tag + name[0])
                wire.run("ip", "link", "set", f"p{number}", "master", "br0", "up")
                self.spaces[name].run("ip", "addr", "add", f"10.99.0.{number}/24", "dev", "eth0")
                self.spaces[name].run("ip", "addr", "add", f"fd99::{number}/64", "dev", "eth0", "nodad")
                self.spaces[name].run("ip", "link", "set", "eth0", "up")
            host.run("ip", "link", "add", "inner", "type", "veth", "peer", "name", "eth0", "netns", container.name)
            for space, device, address in ((host, "inner", "10.98.0.1/24"), (container, "eth0", self.container + "/24")):
                space.run("ip", "addr", "add", address, "dev", device)
                space.run("ip", "link", "set", device, "up")
            container.run("ip", "route", "add", "default", "via", "10.98.0.1")
            # Which namespace's switch this is depends on who opens it.
            host.do(lambda: pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii"))
            host.run("iptables-restore", stdin=ENGINE.format(host=self.host, container=self.container))
            self.listen("container", "0.0.0.0", 8000, "published")
            self.listen("host", "0.0.0.0", 8002, "own")
            self.listen("host", "0.0.0.0", 9000, "other")
            self.listen("host", "::", 8003, "six")
            # Whoever is on the same wire can route there by way of the host.
            self.spaces["third"].run("ip", "route", "add", INSIDE, "via", self.host)
            network = {"Name": "ironserve", "Id": "1", "IPAM": {"Config": [{"Subnet": INSIDE, "Gateway": "10.98.0.1"}]}}
            self.engine = Answers(networks=[network, {"Name": "ironserve-2", "Id": "2", "IPAM": {}}])
            self.stack.enter_context(play(place, self.engine))
        except BaseException:
            self.close()
            raise

    def listen(self, name, address, port, word):
        """Answer every connection with one word."""

        def make():
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            door = socket.socket(family)
            if family == socket.AF_INET6:
                door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind((address, port))
            door.listen(16)
            return door

        door = self.spaces[name].do(make)

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    peer, _address = door.accept()
                    with peer, contextlib.suppress(OSError):
                        peer.sendall(word.encode())

        threading.Thread(target=serve, daemon=True).start()
        # A listener that is only closed goes on accepting.
        self.stack.callback(door.close)
        self.stack.callback(door.shutdown, socket.SHUT_RDWR)

    def close(self):
        self.stack.close()
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "del", space.name], check=False, capture_output=True)

    def firewall(self, check=False, **options):
        """Run the module on the host, as Ansible does."""
        arguments = {"address": self.host, "ports": [8001, 8002], "admitted": [self.gateway], "network": "ironserve"}
        arguments.update(directory=str(self.directory), socket=str(self.place / "var/run/docker.sock"), _ansible_check_mode=check)
        out = io.StringIO()

        def main():
            with patch_module_args({**arguments, **options}), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
                replica_firewall.main()

        self.spaces["host"].do(main)
        result = json.loads(out.getvalue())
        assert not result.get("failed"), result["msg"]
        return result

    def listing(self, program="iptables"):
        return self.spaces["host"].run(program, "-t", "raw", "-S")

    def seen(self, who):
        """What one of them gets from the published port, the host's own, another of the host, and the container itself."""
        space = self.spaces[who]
        places = [(self.host, 8001), (self.host, 8002), (self.host, 9000), (self.container, 8000)]
        return [space.reaches(*place) for place in places]


class Answers(dict):
    """An engine of any version that has these networks."""

    def get(self, path, default=None):
        what = path.partition("?")[0].rpartition("/")[2]
        if "/containers/" in path:
            what = path.partition("?")[0].partition("/containers/")[2]
        return {"_ping": b"OK", "version": {"ApiVersion": "1.41"}, **self}.get(what, [] if what == "json" else default)


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    yield made
    made.close()


SHUT = ["silence", "silence", "other", "silence"]
OPEN = ["published", "own", "other", "published"]


def test_the_gateway_is_answered_and_the_third_host_is_not(site):
    # So it is without: a published port, and the way past it that engines before 28 leave.
    assert site.seen("third") == OPEN
    result = site.firewall()
    assert result["changed"] is True
    assert site.seen("third") == SHUT
    assert site.seen("gateway")[:3] == OPEN[:3]
    # The host itself, and a container's way out with its answers.
    assert site.seen("host")[1:] == OPEN[1:]
    site.listen("third", "0.0.0.0", 7000, "outside")
    assert site.spaces["container"].reaches(site.third, 7000) == "outside"
    assert site.spaces["container"].reaches(site.host, 8002) == "silence"


def test_a_second_time_changes_nothing(site):
    before = site.listing()
    assert site.firewall(check=True)["changed"] is True
    assert site.listing() == before and not site.directory.exists()
    site.firewall()
    after = site.listing()
    for check in (True, False):
        again = site.firewall(check=check)
        assert (again["changed"], again["diff"]) == (False, [])
    assert site.listing() == after
    assert site.seen("third") == SHUT


def test_what_others_set_stays(site):
    host = site.spaces["host"]
    host.run("iptables", "-t", "raw", "-A", "PREROUTING", "-s", "10.99.0.88", "-j", "DROP")
    host.run("iptables", "-t", "raw", "-A", "OUTPUT", "-p", "udp", "-j", "NOTRACK")
    before = [host.run("iptables", "-t", table, "-S") for table in ("filter", "nat")]
    site.firewall()
    assert [host.run("iptables", "-t", table, "-S") for table in ("filter", "nat")] == before
    assert "--comment foreign" in before[0]
    lines = site.listing().splitlines()
    assert any(line.startswith("-A OUTPUT -p udp ") for line in lines)
    assert lines.index("-A PREROUTING -j IRONSERVE") < lines.index("-A PREROUTING -s 10.99.0.88/32 -j DROP")
    assert site.firewall(state="absent")["changed"] is True
    assert "IRONSERVE" not in site.listing() and "10.99.0.88" in site.listing()
    assert not site.directory.exists()
    assert site.firewall(state="absent")["changed"] is False
    assert site.seen("third") == OPEN


@pytest.mark.parametrize(
    "damage",
    [
        ["-F", "IRONSERVE"],
        ["-D", "IRONSERVE", "1"],
        ["-I", "IRONSERVE", "1", "-j", "RETURN"],
        ["-D", "PREROUTING", "-j", "IRONSERVE"],
        ["-I", "PREROUTING", "1", "-s", "10.99.0.0/24", "-j", "ACCEPT"],
        ["-I", "PREROUTING", "1", "-j", "IRONSERVE"],
    ],
    ids=" ".join,
)
def test_what_was_changed_by_hand_is_set_right(site, damage):
    site.firewall()
    whole = [line for line in site.listing().splitlines() if "IRONSERVE" in line]
    site.spaces["host"].run("iptables", "-t", "raw", *damage)
    assert site.firewall(check=True)["changed"] is True
    assert site.firewall()["changed"] is True
    assert [line for line in site.listing().splitlines() if "IRONSERVE" in line] == whole
    assert site.seen("third")[:2] == SHUT[:2]
    assert site.firewall()["changed"] is False


def test_whom_it_admits_can_change(site):
    site.firewall()
    result = site.firewall(admitted=[site.gateway, "10.99.0.3/32"])
    assert result["changed"] is True
    assert "-A IRONSERVE -s 10.99.0.3/32 -j RETURN\n" in result["diff"][0]["after"]
    assert "10.99.0.3" not in result["diff"][0]["before"]
    assert site.seen("third")[:3] == OPEN[:3]
    site.firewall(ports=[8001])
    assert site.seen("third") == ["silence", "own", "other", "silence"]


def test_what_is_published_already_is_guarded_until_it_has_gone(site):
    """Another name of the machine that is not in this run, or the port that a replica had until now."""
    described = {"Name": "/ironserve-c9", "HostConfig": {"PortBindings": {"8000/tcp": [{"HostIp": site.host, "HostPort": "9000"}]}}}
    site.engine.update({"ironserve-c9/json": described, "json": [{"Names": ["/ironserve-c9"], "Id": "9"}]})
    assert site.firewall()["besides"] == [9000]
    assert site.seen("third") == ["silence", "silence", "silence", "silence"]
    assert site.firewall()["changed"] is False
    del site.engine["json"]
    result = site.firewall()
    assert (result["changed"], result["besides"]) == (True, [])
    assert site.seen("third") == SHUT


def test_replicas_on_six(site):
    third, gateway = site.spaces["third"], site.spaces["gateway"]
    site.firewall()
    assert third.reaches(site.host6, 8003) == "six"
    site.firewall(address=site.host6, ports=[8003], admitted=[site.gateway6])
    assert (third.reaches(site.host6, 8003), gateway.reaches(site.host6, 8003)) == ("silence", "six")
    # All addresses are both families; what is wanted of one only is gone from the other.
    site.firewall(address="0.0.0.0", ports=[8002, 8003], admitted=[site.gateway6])
    assert third.reaches(site.host6, 8003) == "silence" and gateway.reaches(site.host, 8002) == "silence"
    site.firewall()
    assert "IRONSERVE" not in site.listing("ip6tables")
    assert third.reaches(site.host6, 8003) == "six"
    assert sorted(path.name for path in site.directory.iterdir()) == ["rules.v4"]


def starter(manager, directory, place):
    """What the role brings to restore the rules at a boot, as commands."""
    from jinja2 import Environment

    text = (TEMPLATES / f"firewall.{manager}.j2").read_text(encoding="utf-8")
    text = Environment().from_string(text).render(__replica_firewall_dir=str(directory), __replica_firewall_name="ironserve-firewall")
    if manager == "sysv":
        script = place / "ironserve-firewall"
        script.write_text(text, encoding="utf-8")
        return [["/bin/sh", str(script), "start"]]
    lines = [line.partition("=")[2] for line in text.splitlines() if line.startswith("ExecStart=")]
    assert len(lines) == 2 and all(line.startswith("/bin/sh -c '") and line.endswith("'") for line in lines)
    return [["/bin/sh", "-c", line[len("/bin/sh -c '") : -1]] for line in lines]


@pytest.mark.parametrize("manager", ["systemd", "sysv"])
def test_it_is_back_after_a_boot(site, manager):
    site.firewall()
    host = site.spaces["host"]
    for command in ("-F", "-X"):
        host.run("iptables", "-t", "raw", command)
    assert site.seen("third") == OPEN
    # Once more is no harm.
    for _time in range(2):
        for command in starter(manager, site.directory, site.place):
            host.run(*command)
    assert site.seen("third") == SHUT
    assert site.firewall()["changed"] is False


def test_a_restarted_engine_opens_nothing(site):
    """It sets its own rules anew, its chains before those of others."""
    site.firewall()
    host = site.spaces["host"]
    host.run("iptables-restore", stdin=ENGINE.format(host=site.host, container=site.container))
    host.run("iptables", "-I", "FORWARD", "1", "-o", "inner", "-j", "ACCEPT")
    assert site.seen("third") == SHUT
    assert site.seen("gateway")[0] == "published"
