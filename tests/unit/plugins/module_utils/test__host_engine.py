# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Engine, images, toolkits, disks, ports and firewalls of a host that is played; the engine answers on a real socket."""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import tempfile

import pytest
from unit.plugins.played import engine as played_engine

from ansible_collections.ironserve.llm.plugins.module_utils import _host_engine
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._kernel import Tree

SOCKET = "/var/run/docker.sock"
VERSION = {"Version": "24.0.7", "ApiVersion": "1.43"}
INFO = {
    "DefaultRuntime": "hcu",
    "Runtimes": {"runc": {}, "hcu": {"path": "hcu-container-runtime"}},
    "CgroupVersion": "2",
    "Driver": "overlay2",
    "DockerRootDir": "/data/docker",
    "LiveRestoreEnabled": True,
    "Warnings": ["WARNING: No swap limit support"],
}


@pytest.fixture
def root():
    """A short path: sockets under it have short names."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="isv"))
    yield path
    shutil.rmtree(path)


def write(root, path, text, mode=0o644):
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    target.chmod(mode)


def test_an_engine_that_answers(root):
    write(root, "/etc/docker/daemon.json", '{"default-runtime": "hcu", "live-restore": true}')
    with played_engine.play(root, {"/version": VERSION, "/info": INFO}):
        found = _host_engine.read_engine(Tree(str(root)), SOCKET)
    assert found["reachable"] is True and found["installed"] is True
    assert (found["version"], found["default_runtime"], found["configured_runtime"]) == ("24.0.7", "hcu", "hcu")
    assert found["runtimes"] == ["hcu", "runc"]
    assert (found["root_dir"], found["storage_driver"], found["cgroup_version"]) == ("/data/docker", "overlay2", "2")
    assert (found["live_restore"], found["warnings"]) == (True, ["WARNING: No swap limit support"])


def test_no_engine_at_all(root):
    found = _host_engine.read_engine(Tree(str(root)), SOCKET)
    assert (found["installed"], found["running"], found["reachable"]) == (False, False, False)
    assert found["error"] == "/var/run/docker.sock: there is no such socket"


def test_an_engine_that_is_installed_and_does_not_run(root):
    write(root, "/usr/bin/dockerd", "#!/bin/sh\n", 0o755)
    found = _host_engine.read_engine(Tree(str(root)), SOCKET)
    assert (found["installed"], found["running"], found["reachable"]) == (True, False, False)


def test_an_engine_that_runs_and_says_nonsense(root):
    write(root, "/proc/77/comm", "dockerd\n")
    write(root, "/proc/77/stat", "77 (dockerd) S 1 77 77 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n")
    with played_engine.play(root, {"/version": b"<html>"}):
        found = _host_engine.read_engine(Tree(str(root)), SOCKET)
    assert (found["running"], found["reachable"], found["pids"]) == (True, False, [77])
    assert "was not answered with JSON" in found["error"]


@pytest.mark.parametrize(
    ("text", "runtime", "error"),
    [
        ("", "", ""),
        ("{}", "", ""),
        ('{"default-runtime": "nvidia"}', "nvidia", ""),
        ('{"default-runtime": "nvidia",}', "", "/etc/docker/daemon.json is no JSON"),
        ("[]", "", "/etc/docker/daemon.json holds no JSON object"),
    ],
)
def test_the_engine_s_own_file(root, text, runtime, error):
    write(root, "/etc/docker/daemon.json", text)
    found = _host_engine.read_daemon_json(Tree(str(root)))
    assert found["configured_runtime"] == runtime
    assert found["configuration_error"].startswith(error) and bool(found["configuration_error"]) is bool(error)


LISTED = [
    {"Id": "a" * 64, "Names": ["/ironserve-c0"], "Labels": {"ironserve.replica": "n-c0"}},
    {"Id": "b" * 64, "Names": ["/x"], "Labels": {}},
]


def test_running_containers_in_full(root):
    full = {"Id": "a" * 64, "Name": "/ironserve-c0", "Config": {"Labels": {"ironserve.replica": "n-c0"}}}
    # The second has ended meanwhile.
    with played_engine.play(root, {"/containers/json": LISTED, "/containers/{0}/json".format("a" * 64): full}) as asked:
        assert _host_engine.running_containers(Tree(str(root)), SOCKET) == [full]
        assert len(asked) == 3
    other = {"Name": "/x", "Config": {"Labels": {"com.example.ironserve.": "no"}}}
    assert _host_engine.own_names([other, full, {"Name": "/y", "Config": {"Labels": None}}], "ironserve.") == ["ironserve-c0"]


def test_no_engine_runs_no_container(root):
    assert _host_engine.running_containers(Tree(str(root)), SOCKET) == []


def test_an_engine_that_does_not_run_runs_no_container(root):
    path = root / SOCKET.lstrip("/")
    path.parent.mkdir(parents=True)
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    assert _host_engine.running_containers(Tree(str(root)), SOCKET) == []


@pytest.mark.parametrize("answers", [{}, {"/containers/json": (500, {})}, {"/containers/json": b"oops"}])
def test_an_engine_that_does_not_say_what_it_runs_is_unknown(root, answers):
    with played_engine.play(root, answers), pytest.raises(UnknownOutput):
        _host_engine.running_containers(Tree(str(root)), SOCKET)


def test_a_socket_that_may_not_be_used_is_an_error(root, monkeypatch):
    write(root, SOCKET, "")

    def refuse(*_args):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(_host_engine._host, "engine_get", refuse)
    with pytest.raises(LLMError, match="does not say what it runs: Permission denied"):
        _host_engine.running_containers(Tree(str(root)), SOCKET)


REFERENCE = "r.example:5443/dcu/vllm:0.18@sha256:" + "0" * 64


def test_an_image_that_is_there(root):
    image = {
        "RepoDigests": ["r/b@sha256:1", "r/a@sha256:1"],
        "Config": {"Env": ["PATH=/bin", "ROCM_VERSION=6.3", "HCU_VISIBLE_DEVICES=", "SECRET=x"]},
    }
    with played_engine.play(root, {"/images/" + REFERENCE + "/json": image}):
        found = _host_engine.read_image(Tree(str(root)), SOCKET, {"reachable": True}, REFERENCE)
    assert found == {
        "present": True,
        "digests": ["r/a@sha256:1", "r/b@sha256:1"],
        "environment": {"ROCM_VERSION": "6.3", "HCU_VISIBLE_DEVICES": ""},
    }


@pytest.mark.parametrize(("reachable", "reference", "present"), [(True, REFERENCE, False), (True, "", None), (False, REFERENCE, None)])
def test_an_image_that_is_not(root, reachable, reference, present):
    with played_engine.play(root, {}):
        assert _host_engine.read_image(Tree(str(root)), SOCKET, {"reachable": reachable}, reference)["present"] is present


def test_an_engine_that_fails_over_an_image_is_unknown(root):
    with played_engine.play(root, {"/images/x/json": (500, {})}), pytest.raises(UnknownOutput, match="HTTP 500"):
        _host_engine.read_image(Tree(str(root)), SOCKET, {"reachable": True}, "x")


def test_what_lies_in_a_directory_already(tmp_path):
    for name, size in (("a", 3), ("sub/b", 2)):
        target = tmp_path / "w" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb") as handle:
            handle.truncate(size * 2**20)
    (tmp_path / "w" / "link").symlink_to(tmp_path / "w" / "a")
    disks = _host_engine.read_disks(Tree(str(tmp_path)), ["/w", "/absent/x"], ["/w"])
    assert [(disk["path"], disk["present_mib"]) for disk in disks] == [("/w", 5), ("/absent/x", None)]
    assert disks[0]["device"] == disks[1]["device"] == os.stat(tmp_path).st_dev
    assert disks[1]["parent"] == str(tmp_path)
    assert disks[0]["free_mib"] > 0


TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0
"""


def test_ports_of_a_played_host(root):
    write(root, "/proc/net/tcp", TCP)
    write(root, "/proc/9/cmdline", "nginx\0-g\0")
    (root / "proc/9/fd").mkdir()
    (root / "proc/9/fd/3").symlink_to("socket:[4242]")
    found = _host_engine.read_ports(Tree(str(root)), [8001, 8002], ["ironserve"], {"reachable": False}, SOCKET)
    assert [(port["port"], port["free"], port["own"], port["pid"]) for port in found] == [(8001, False, False, 9), (8002, True, False, 0)]
    assert found[0]["command"] == "nginx -g"


def test_a_port_of_our_own_container(root):
    write(root, "/proc/net/tcp", TCP)
    listed = [{"Id": "a", "Names": ["/ironserve-c0"], "Ports": [{"Type": "tcp", "PublicPort": 8001}]}]
    with played_engine.play(root, {"/containers/json": listed}):
        (port,) = _host_engine.read_ports(Tree(str(root)), [8001], ["ironserve"], {"reachable": True}, SOCKET)
    assert (port["own"], port["container"]) == (True, "ironserve-c0")


def test_a_kernel_that_does_not_show_its_sockets(root):
    assert _host_engine.read_ports(Tree(str(root)), [8001], [], {"reachable": False}, SOCKET) is None
    assert _host_engine.read_ports(Tree(str(root)), [], [], {"reachable": False}, SOCKET) == []


def test_firewalls(root):
    tree = Tree(str(root))
    assert _host_engine.read_firewalls(tree) == []
    write(root, "/etc/ufw/ufw.conf", "# x\nENABLED=no\n")
    assert _host_engine.read_firewalls(tree) == []
    write(root, "/etc/ufw/ufw.conf", "# x\nENABLED=yes\n")
    write(root, "/proc/5/comm", "firewalld\n")
    write(root, "/proc/5/stat", "5 (firewalld) S 1 5 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n")
    write(root, "/etc/systemd/system/sysinit.target.wants/nftables.service", "")
    assert _host_engine.read_firewalls(tree) == ["firewalld", "ufw", "nftables"]


DPKG = """Package: nvidia-container-toolkit
Status: install ok installed
Version: 1.17.8-1

Package: nvidia-container-toolkit-base
Status: install ok installed
Version: 1.17.8-1

Package: hcu-container-toolkit
Status: deinstall ok config-files
Version: 1.3.0

Package: nvidia-containerish
Status: install ok installed
Version: 1
"""


def test_toolkits_by_dpkg(root):
    write(root, "/var/lib/dpkg/status", DPKG)
    assert _host_engine.read_toolkits(Tree(str(root))) == {
        "nvidia-container-toolkit": "1.17.8-1",
        "nvidia-container-toolkit-base": "1.17.8-1",
    }


def test_packages_that_cannot_be_listed(root):
    assert _host_engine.read_toolkits(Tree(str(root))) is None


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'hcu-container-toolkit 1.3.1'", {"hcu-container-toolkit": "1.3.1"}),
        ("true", {}),
        ("echo 'rpmdb: damaged' >&2; exit 1", "rpm -qa ended with status 1: rpmdb: damaged"),
    ],
)
def test_toolkits_by_rpm(root, monkeypatch, script, expected):
    write(root, "/rpm", "#!/bin/sh\n{0}\n".format(script), 0o755)
    monkeypatch.setattr(_host_engine._host, "find_program", lambda name: str(root / name))
    tree = Tree("/")
    monkeypatch.setattr(tree, "read", lambda _path: None)
    if isinstance(expected, str):
        with pytest.raises(LLMError, match=expected):
            _host_engine.read_toolkits(tree)
    else:
        assert _host_engine.read_toolkits(tree) == expected
