# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host is and whether it will do; an engine is asked over a real socket."""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import threading

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _checks, _host
from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

VERSION = {"Version": "20.10.24+dfsg1", "ApiVersion": "1.41"}
INFO = {"CgroupDriver": "systemd", "CgroupVersion": "2", "Driver": "overlay2", "DockerRootDir": "/data/docker", "Containers": 3}


@pytest.fixture
def engine(tmp_path):
    """An engine on a unix socket; answers are looked up in ``answers`` by path."""
    answers = {"/version": (200, json.dumps(VERSION)), "/info": (200, json.dumps(INFO))}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, text = answers[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def address_string(self):
            return "unix"

        def log_message(self, *args):
            pass

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    server = Server(str(tmp_path / "engine.sock"), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.answers = answers
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_engine_that_answers_is_described(engine):
    report = _host.engine_report(engine.server_address)
    assert report["reachable"] and report["installed"] and report["error"] == ""
    assert (report["version"], report["api_version"], report["cgroup_version"]) == ("20.10.24+dfsg1", "1.41", "2")
    assert (report["storage_driver"], report["root_dir"], report["containers"]) == ("overlay2", "/data/docker", 3)


@pytest.mark.parametrize(("answer", "words"), [((500, "boom"), "HTTP 500: boom"), ((200, "<html>"), "not answered with JSON")])
def test_an_engine_that_answers_nonsense_is_not_reachable(engine, answer, words):
    engine.answers["/info"] = answer
    report = _host.engine_report(engine.server_address)
    assert not report["reachable"] and words in report["error"]


def test_a_socket_nobody_listens_on_is_named(tmp_path):
    assert "there is no such socket" in _host.engine_report(str(tmp_path / "none.sock"))["error"]


@pytest.mark.parametrize(("text", "expected"), [("20.10.24+dfsg1", (20, 10)), ("28.2.2", (28, 2)), ("v27.0", (27, 0))])
def test_versions(text, expected):
    assert _host.version_tuple(text) == expected


def test_a_version_without_numbers_is_unknown():
    with pytest.raises(UnknownOutput):
        _host.version_tuple("dev")


def facts(**changes):
    good = {
        "python": {"executable": "/usr/bin/python3", "version": "3.11.2", "version_info": [3, 11, 2]},
        "uid": 0,
        "os": {"family": "debian", "pretty": "Debian 12"},
        "architecture": "x86_64",
        "init": "systemd",
        "memory_total_mib": 8000,
        "memory_available_mib": 7000,
        "disks": [{"path": "/var/lib/x", "parent": "/var/lib", "free_mib": 5000}],
        "ports": [],
        "clock": 1000.0,
        "engine": {
            "installed": True,
            "running": True,
            "reachable": True,
            "version": "20.10.24",
            "storage_driver": "overlay2",
            "cgroup_version": "2",
            "cgroup_driver": "systemd",
            "containers": 0,
            "pids": [9],
            "error": "",
        },
    }
    good["engine"].update(changes.pop("engine", {}))
    return dict(good, **changes)


NEEDS = {"memory_mib": 4000, "disk_mib": 3000, "controller_clock": 1000.0}
TAKEN = {"port": 8000, "free": False, "own": False, "address": "0.0.0.0", "pid": 5, "command": "nginx: master", "container": ""}


def test_a_good_host_passes_every_check():
    assert {check.status for check in _host.host_checks(facts(), NEEDS)} == {_checks.PASS}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"python": {"executable": "/usr/bin/python3", "version": "3.6.9", "version_info": [3, 6, 9]}}, "ansible_python_interpreter"),
        ({"uid": 1000}, "become: true"),
        ({"memory_total_mib": 3999}, "3999 MiB in all"),
        ({"disks": [{"path": "/var/lib/x", "parent": "/var/lib", "free_mib": 2999}]}, "/var/lib/x: 2999 MiB free, 3000 MiB needed"),
        ({"ports": [TAKEN]}, r"0.0.0.0:8000 is taken by nginx: master \(pid 5\)"),
        ({"clock": 1400.0}, r"\+400 s from the controller"),
        ({"engine": {"version": "19.03.15"}}, "too old"),
        ({"engine": {"version": "dev"}}, "UNKNOWN .* engine"),
        ({"engine": {"reachable": False, "error": "no answer"}}, r"runs \(pid 9\) but is broken: no answer"),
        (
            {"os": {"family": "other", "pretty": "openEuler"}, "engine": {"installed": False, "running": False, "reachable": False}},
            "install a container engine",
        ),
    ],
)
def test_each_fault_is_one_clear_line(changes, words):
    import re

    lines = _checks.failures(_host.host_checks(facts(**changes), NEEDS))
    assert len(lines) == 1
    assert re.search(words, lines[0])


def test_our_own_port_and_a_stopped_or_missing_engine_do_not_stop_a_run():
    gone = {"reachable": False, "running": False, "pids": []}
    assert not _checks.failures(_host.host_checks(facts(ports=[dict(TAKEN, own=True)]), NEEDS))
    assert not _checks.failures(_host.host_checks(facts(engine=gone), NEEDS))
    assert not _checks.failures(_host.host_checks(facts(engine=dict(gone, installed=False)), NEEDS))


def test_a_small_clock_difference_warns():
    assert [c.status for c in _host.host_checks(facts(clock=1060.0), NEEDS) if c.name == "clock"] == [_checks.WARN]


@pytest.mark.parametrize(("comm", "systemd", "kind"), [("systemd", True, "systemd"), ("sleep", False, "direct"), ("init", True, "systemd")])
def test_what_starts_services(tmp_path, comm, systemd, kind):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text(comm + "\n")
    if systemd:
        (tmp_path / "systemd").mkdir()
    assert _host.init_kind(str(tmp_path / "systemd"), str(tmp_path), str(tmp_path)) == kind


def test_installed_packages_are_told_from_removed_ones():
    status = (
        "Package: a\nStatus: install ok installed\n\nPackage: b\nStatus: deinstall ok config-files\n\n"
        "Package: c\nStatus: hold ok installed\n\nPackage: d\nStatus: install ok half-configured\n"
    )
    assert _host.installed_packages(status) == ["a", "c"]


DEB822 = """# a comment
Types: deb deb-src
URIs: http://mirror.example.com/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/k.gpg

Types: deb
URIs: http://off.example.com/debian
Suites: bookworm
Components: main
Enabled: no
"""
ONE_LINE = """# deb http://commented.example.com/debian bookworm main
deb-src http://src.example.com/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] https://other.example.com/tool bookworm stable
deb http://mirror.example.com/debian bookworm main contrib # the one
"""


@pytest.mark.parametrize(
    ("name", "text", "keyring"),
    [("debian.sources", DEB822, "/usr/share/keyrings/k.gpg"), ("sources.list", ONE_LINE, "/usr/share/keyrings/debian-archive-keyring.gpg")],
)
def test_the_mirror_of_the_host_itself_is_found(name, text, keyring):
    found = _host.distribution_source(_host.apt_sources(name, text), "bookworm", "debian")
    assert found == {"mirror": "http://mirror.example.com/debian", "keyring": keyring}


def test_without_a_source_of_this_release_there_is_no_mirror():
    assert _host.distribution_source(_host.apt_sources("debian.sources", DEB822), "trixie", "debian") == {"mirror": "", "keyring": ""}


def test_free_space_is_that_of_the_nearest_parent(tmp_path):
    entry = _host.disk_report([str(tmp_path / "a" / "b")])[0]
    assert entry["parent"] == str(tmp_path) and entry["free_mib"] > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make root's directories")
def test_a_directory_is_wanting_until_it_is_roots_own_with_its_permissions(tmp_path):
    place = tmp_path / "place"
    assert _host.is_wanting(str(place), 0o700)
    place.write_text("a file")
    place.chmod(0o700)
    assert _host.is_wanting(str(place), 0o700)
    place.unlink()
    place.mkdir(0o700)
    assert not _host.is_wanting(str(place), 0o700)
    assert _host.is_wanting(str(place), 0o755)
    (tmp_path / "link").symlink_to(place)
    assert not _host.is_wanting(str(tmp_path / "link"), 0o700)
    for owner, group in ((65534, 0), (0, 65534)):
        os.chown(place, owner, group)
        assert _host.is_wanting(str(place), 0o700)


def test_memory_without_its_lines_is_unknown():
    assert _host.parse_meminfo("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:  1024 kB\n") == (2, 1)
    with pytest.raises(UnknownOutput):
        _host.parse_meminfo("MemTotal: 2048 kB\n")
