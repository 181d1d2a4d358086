# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""host_info on this very machine: what it says must agree with what the machine says."""

from __future__ import annotations

import hashlib
import os
import socket

import pytest

from ansible_collections.ironserve.llm.plugins.modules import host_info


def test_figures_agree_with_the_machine(run_module, tmp_path):
    result = run_module(host_info, {"paths": [str(tmp_path / "not" / "there" / "yet")]})
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    assert abs(result["memory_total_mib"] - pages) <= pages // 10
    assert result["cpus"] == len(os.sched_getaffinity(0))
    free = os.statvfs(str(tmp_path))
    assert abs(result["disks"][0]["free_mib"] - free.f_bavail * free.f_frsize // 2**20) < 2048
    assert result["changed"] is False


def test_a_taken_port_is_named_with_its_holder(run_module):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = run_module(host_info, {"ports": [port], "own_markers": ["nobody-has-this-in-a-command-line"]})
    assert result["ports"][0]["pid"] == os.getpid()
    assert any(str(port) in line and str(os.getpid()) in line for line in result["failures"])


def test_our_own_listener_is_no_failure(run_module):
    with open("/proc/self/cmdline", "rb") as handle:
        marker = handle.read().split(b"\0")[0].decode()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = run_module(host_info, {"ports": [port], "own_markers": [marker]})
    assert result["ports"][0]["own"] is True
    assert not any(str(port) in line for line in result["failures"])


def test_a_free_port_is_free(run_module):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    result = run_module(host_info, {"ports": [port]})
    assert result["ports"][0]["free"] is True


def test_too_little_memory_and_disk_are_failures_with_numbers(run_module, tmp_path):
    result = run_module(host_info, {"paths": [str(tmp_path)], "needs": {"memory_mib": 10**9, "disk_mib": 10**9}})
    assert sum("1000000000 MiB" in line for line in result["failures"]) == 2


def test_no_engine_is_said_and_no_traceback(run_module, tmp_path):
    result = run_module(host_info, {"engine_socket": str(tmp_path / "none.sock")})
    assert result["engine"]["reachable"] is False


def test_directories_that_are_not_there_are_given_back_as_they_were_asked_for(run_module, tmp_path):
    wanted = [{"path": str(tmp_path / "keys"), "mode": "0700"}, {"path": "/", "mode": oct(os.stat("/").st_mode & 0o777).replace("0o", "0")}]
    assert run_module(host_info, {"directories": wanted})["directories_wanting"] == wanted[:1]


def test_files_that_are_not_as_they_shall_be_are_named(run_module, tmp_path, monkeypatch):
    def wanting(path, mode="0640", content=b"a\n"):
        asked = {"path": str(path), "mode": mode, "sha256": hashlib.sha256(content).hexdigest()}
        return run_module(host_info, {"files": [asked]})["files_wanting"] == [str(path)]

    file, link = tmp_path / "file", tmp_path / "link"
    assert wanting(file)
    file.write_bytes(b"a\n")
    file.chmod(0o640)
    link.symlink_to(file)
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **more: owned(real(path, **more), 0, 0))
    assert not wanting(file) and not wanting(link)
    assert wanting(file, mode="0600") and wanting(file, content=b"b\n") and wanting(tmp_path)
    monkeypatch.setattr(os, "stat", lambda path, **more: owned(real(path, **more), 0, 7))
    assert wanting(file)


def owned(found, uid, gid):
    """The same as if it were that user's."""
    return os.stat_result((*found[:4], uid, gid, *found[6:]))


@pytest.mark.parametrize("option", ["directories", "files"])
def test_a_mode_that_is_no_octal_number_is_named(run_module, option):
    item = {"path": "/keys", "mode": "u=rwx"}
    result = run_module(host_info, {option: [item if option == "directories" else dict(item, sha256="0")]})
    assert result["failed"] and option + ": the mode of /keys" in result["msg"] and "u=rwx" in result["msg"]
