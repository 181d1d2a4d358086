# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module's own entry point: on this machine, and on a host that is played."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
import time

import pytest
from unit.plugins.played import engine as played_engine

from ansible_collections.ironserve.llm.plugins.modules import accelerator_host_info


@pytest.fixture
def root():
    """A short path: sockets under it have short names."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="isv"))
    yield path
    shutil.rmtree(path)


def write(root, path, text):
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("check_mode", [False, True])
def test_this_machine(run_module, tmp_path, check_mode):
    arguments = {
        "paths": [str(tmp_path)],
        "ports": [1],
        "engine_socket": str(tmp_path / "none.sock"),
        "controller_clock": time.time() - 100,
    }
    result = run_module(accelerator_host_info, arguments, check_mode)
    assert result["changed"] is False
    assert result["kernel"]["release"] == os.uname().release
    assert [disk["path"] for disk in result["disks"]] == [str(tmp_path), "/var/lib/docker"]
    assert result["ports"][0]["port"] == 1
    assert 99 < result["clock_skew_s"] < 160
    assert result["image"]["present"] is None


def test_a_played_host(run_module, root):
    write(root, "/proc/sys/kernel/osrelease", "4.19.90\n")
    write(root, "/proc/77/comm", "dockerd\n")
    write(root, "/proc/77/stat", "77 (dockerd) S 1 77 77 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n")
    limits = "Max open files            1024                 4096                 files\nMax locked memory         65536 65536 bytes\n"
    write(root, "/proc/77/limits", limits)
    write(root, "/proc/1/limits", limits.replace("4096", "8192"))
    write(root, "/proc/net/tcp", "  sl  local_address\n")
    write(root, "/data/docker/x", "")
    answers = {
        "/version": {"Version": "24.0.7"},
        "/info": {"DefaultRuntime": "runc", "Runtimes": {"runc": {}}, "DockerRootDir": "/data/docker"},
        "/containers/json": [],
        "/images/r/x:1/json": {"Config": {"Env": ["ROCM_VERSION=6.3"]}},
    }
    with played_engine.play(root, answers):
        result = run_module(
            accelerator_host_info, {"root": str(root), "paths": ["/w"], "measured_paths": ["/w"], "ports": [8001], "image": "r/x:1"}
        )
    assert result["kernel"]["release"] == "4.19.90"
    assert (result["kernel"]["limits"]["nofile"], result["kernel"]["limits_of"]) == ([1024, 4096], "the container engine")
    assert [(disk["path"], disk["present_mib"]) for disk in result["disks"]] == [("/w", 0), ("/data/docker", None)]
    assert result["image"] == {"present": True, "digests": [], "environment": {"ROCM_VERSION": "6.3"}}
    assert result["engine"]["version"] == "24.0.7"
    assert result["toolkits"] is None
    assert result["clock_skew_s"] is None


def test_limits_of_process_1_where_no_engine_runs(run_module, root):
    write(root, "/proc/1/limits", "Max open files            1 2 files\nMax locked memory         3 4 bytes\n")
    result = run_module(accelerator_host_info, {"root": str(root)})
    assert (result["kernel"]["limits"], result["kernel"]["limits_of"]) == ({"nofile": [1, 2], "memlock": [3, 4]}, "process 1")
    assert result["ports"] == []


def test_what_cannot_be_understood_is_a_message(run_module, root):
    write(root, "/proc/modules", "what is this\n")
    result = run_module(accelerator_host_info, {"root": str(root)})
    assert result["failed"] is True
    assert "/proc/modules has a line this collection does not know: 'what is this'" in result["msg"]
