# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Chains of hosts with real modules, jobs and sockets, one loopback address a host: what is sent, what is refused, what goes on after a kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from faults.fleet import Fleet, Wires, wait_until

from ansible_collections.ironserve.llm.plugins.action import weights_download
from ansible_collections.ironserve.llm.plugins.action import weights_fanout as action
from ansible_collections.ironserve.llm.plugins.module_utils import _fanout, _jobs
from ansible_collections.ironserve.llm.plugins.modules import weights_fanout

pytestmark = pytest.mark.slow

MIB = 1 << 20
FILES = {"a.safetensors": os.urandom(9 * MIB + 11), "sub/b.safetensors": os.urandom(3 * MIB), "empty": b"", "config.json": b"{}"}
EIGHT = [f"h{number}" for number in range(8)]


@pytest.fixture
def fleet(tmp_path):
    with Fleet(tmp_path, FILES, ["a", "b", "c"]) as made:
        yield made


@pytest.fixture
def chain(fleet):
    """The first two hosts have everything and give on; the third has not begun."""
    fleet.give()
    for number in (0, 1):
        fleet.hosts[number].join(*fleet.chain(number))
    assert all(result["changed"] for result in fleet.fetch_all(fleet.hosts[:2]))
    return fleet


def arguments(host, state: str, **more) -> dict:
    base = {"path": str(host.path), "manifest": host.fleet.manifest, "state": state, "address": host.address, "port": host.fleet.port}
    return {**base, "token": host.fleet.token, **more}


# ---- one host, in this process


@pytest.mark.parametrize("state", ["served", "joined", "fetched"])
def test_what_a_state_needs_is_asked_for(run_module, tmp_path, state):
    result = run_module(weights_fanout, {"path": str(tmp_path), "state": state})
    assert result["failed"] and "manifest" in result["msg"]


def test_check_mode_starts_nothing_and_says_what_is_missing(run_module, fleet):
    host = fleet.hosts[0]
    host.path.mkdir(parents=True)
    (host.path / "config.json").write_bytes(b"{}")
    assert run_module(weights_fanout, arguments(host, "served"), check_mode=True)["table"] == ""
    sources = {"sources": [fleet.origin.line], "table": ""}
    assert run_module(weights_fanout, arguments(host, "joined", **sources), check_mode=True)["changed"] is False
    result = run_module(weights_fanout, arguments(host, "fetched", table=""), check_mode=True)
    assert result["changed"] and result["fetched"] == ["a.safetensors", "empty", "sub/b.safetensors"] and result["kept"] == ["config.json"]
    assert run_module(weights_fanout, arguments(host, "ended"), check_mode=True)["sent_bytes"] == 0
    assert [path.name for path in host.path.parent.iterdir()] == ["q"]


def test_waiting_for_nothing_is_an_error_and_ending_nothing_is_none(run_module, fleet):
    host = fleet.hosts[0]
    result = run_module(weights_fanout, arguments(host, "fetched", table="0" * 64))
    assert result["failed"] and "no job takes these weights there" in result["msg"] and "Run again" in result["msg"]
    assert run_module(weights_fanout, arguments(host, "ended"))["sent_bytes"] == 0


def test_wrong_weights_are_not_given(run_module, fleet):
    (fleet.origin.path / "config.json").write_bytes(b"[]")
    result = run_module(weights_fanout, arguments(fleet.origin, "served"))
    assert result["failed"] and "config.json: wrong_sha256" in result["msg"] and str(fleet.origin.path) in result["msg"]


def test_a_port_in_use_is_one_message(run_module, fleet):
    with socket.socket() as other:
        other.bind((fleet.origin.address, fleet.port))
        other.listen()
        result = run_module(weights_fanout, arguments(fleet.origin, "served"))
    assert result["failed"] and f"port {fleet.port} of {fleet.origin.address} is in use" in result["msg"]
    assert "weights_fanout_port" in result["msg"]


def test_a_giver_that_nobody_asks_ends_by_itself(run_module, fleet):
    assert len(run_module(weights_fanout, arguments(fleet.origin, "served", idle_timeout=1))["table"]) == 64
    folder = str(fleet.origin.folder())
    assert _jobs.look(folder).running and wait_until(lambda: not _jobs.look(folder).running, 20)
    assert _jobs.look(folder).result["value"] == {"sent_bytes": 0}
    assert run_module(weights_fanout, arguments(fleet.origin, "ended", role="giver"))["sent_bytes"] == 0
    assert not os.path.exists(folder)


def test_the_controller_waits_with_a_line_now_and_then():
    assert issubclass(action.ActionModule, weights_download.ActionModule)


# ---- chains


def test_a_chain_of_three(fleet, run_module):
    fleet.give()
    fleet.join_all()
    for result, before in zip(fleet.fetch_all(), ["origin", "a", "b"], strict=True):
        assert result["changed"] and result["fetched"] == sorted(FILES) and result["given"] == {before: fleet.size}
        assert (result["fetched_bytes"], result["resumed_bytes"], result["wrong"], result["notes"]) == (fleet.size, 0, [], [])
    assert all(host.content() == FILES for host in fleet.hosts)
    # asked again, it says the same
    assert fleet.hosts[0].fetch()["fetched"] == sorted(FILES)
    assert fleet.end_all() == {"origin": fleet.size, "a": fleet.size, "b": fleet.size, "c": 0}
    assert not any(_jobs.look(str(host.folder())).running for host in [fleet.origin, *fleet.hosts])
    # whole files are not fetched twice
    fleet.give()
    fleet.hosts[2].join(fleet.origin)
    result = fleet.hosts[2].fetch()
    assert not result["changed"] and result["kept"] == sorted(FILES) and fleet.origin.end("giver")["sent_bytes"] == 0


def test_no_room_is_said_before_a_byte_comes(fleet):
    fleet.give()
    fleet.hosts[0].join(fleet.origin, margin_mib=1 << 40)
    result = fleet.hosts[0].fetch()
    assert result["failed"] and "not enough disk space" in result["msg"] and fleet.origin.end("giver")["sent_bytes"] == 0


def test_a_wrong_byte_at_one_host_is_named_and_goes_nowhere(chain):
    a, b, c = chain.hosts
    where = b.part / "a.safetensors"
    with open(where, "r+b") as handle:
        handle.seek(5 * MIB + 3)
        handle.write(bytes([FILES["a.safetensors"][5 * MIB + 3] ^ 0x10]))
    c.join(*chain.chain(2))
    result = c.fetch()
    assert c.content() == FILES and result["given"] == {"b": chain.size - MIB // 2, "a": MIB // 2}
    assert len(result["wrong"]) == 1 and "a.safetensors: bytes from 5242880 on, sent by b, were wrong" in result["wrong"][0]
    assert any("sent by b" in str(line) for line in result["warnings"])
    assert a.end()["sent_bytes"] == chain.size + MIB // 2


def test_a_host_that_is_gone_is_passed_by(chain):
    _a, b, c = chain.hosts
    b.kill()
    c.join(*chain.chain(2), patience=0)
    assert c.fetch()["given"] == {"a": chain.size} and c.content() == FILES
    assert chain.origin.end("giver")["sent_bytes"] == chain.size


def test_two_runs_at_once_share_one_job(fleet):
    fleet.give(rate_mib=6)
    host, results = fleet.hosts[0], []
    host.join(fleet.origin)
    pid = _jobs.look(str(host.job)).pid
    # Another controller, with a secret of its own, on both hosts.
    assert fleet.origin.give(token="another")["table"] == fleet.table
    host.join(fleet.origin, token="another")
    assert _jobs.look(str(host.job)).pid == pid
    threads = [threading.Thread(target=lambda: results.append(host.fetch())) for _number in range(2)]
    for thread in threads:
        thread.start()
    # What waits behind the second run knows its secret only.
    fleet.hosts[1].join(host, fleet.origin, token="another")
    for thread in threads:
        thread.join()
    assert [result["fetched_bytes"] for result in results] == [fleet.size, fleet.size]
    assert fleet.hosts[1].fetch()["given"] == {"a": fleet.size}
    assert fleet.origin.end("giver")["sent_bytes"] == fleet.size


def test_another_job_in_the_directory_is_waited_for_and_then_named(fleet):
    fleet.give(rate_mib=1)
    host = fleet.hosts[0]
    host.join(fleet.origin)
    pid = _jobs.look(str(host.job)).pid
    other = [item for item in fleet.manifest if item["path"] != "empty"]
    result = host.join(fleet.origin, manifest=other, lock_timeout=1)
    assert result["failed"] and f"another job is at work there: taking of {host.path}, pid {pid}" in result["msg"]
    assert _jobs.look(str(host.job)).running


def test_the_secret_is_nowhere(fleet):
    fleet.token = "canary0815canary"
    fleet.give(rate_mib=4)
    fleet.hosts[0].join(fleet.origin)
    fleet.origin.give(token="canary4711canary")
    for host in (fleet.origin, fleet.hosts[0]):
        pid = _jobs.look(str(host.folder())).pid
        for name in ("cmdline", "environ"):
            assert b"canary" not in Path(f"/proc/{pid}/{name}").read_bytes()
    fleet.hosts[0].fetch()
    for folder in (fleet.origin.folder(), fleet.hosts[0].folder()):
        assert (folder.stat().st_mode & 0o777) == 0o700
        for path in folder.rglob("*"):
            assert not path.is_file() or b"canary" not in path.read_bytes(), path


def test_old_weights_stay_until_the_new_ones_are_whole(fleet):
    """Nothing is written to the directory that serves, not even when what comes is broken off."""
    host = fleet.hosts[0]
    host.path.mkdir(parents=True)
    (host.path / "a.safetensors").write_bytes(b"old")
    fleet.give(rate_mib=4)
    host.join(fleet.origin)
    assert wait_until(lambda: host.progress() > 0.3)
    host.kill()
    assert (host.path / "a.safetensors").read_bytes() == b"old" and len(list(host.path.iterdir())) == 1


# ---- many processes


def test_eight_targets_one_of_them_killed_at_thirty_per_cent(tmp_path):
    """The others go on past it; run again, it goes on where it was, and no piece comes twice."""
    files = {"a.safetensors": os.urandom(20 * MIB), "b.safetensors": os.urandom(12 * MIB + 5), "config.json": b"{}"}
    with Fleet(tmp_path, files, EIGHT) as fleet:
        fleet.give()
        fleet.origin.end("giver")
        # All stand in their places before the first byte goes, and it goes slowly enough to be met half way.
        fleet.join_all(patience=300)
        fleet.give(rate_mib=4)
        victim = fleet.hosts[3]
        assert wait_until(lambda: victim.progress() >= 0.3)
        victim.kill()
        assert victim.progress() < 0.95
        others = [host for host in fleet.hosts if host is not victim]
        results = fleet.fetch_all(others)
        assert all(host.content() == files for host in others)
        assert {host.name: result["given"] for host, result in zip(others[:3], results[:3], strict=True)} == {
            "h0": {"origin": fleet.size},
            "h1": {"h0": fleet.size},
            "h2": {"h1": fleet.size},
        }
        after = results[3]["given"]
        assert sum(after.values()) == fleet.size and after["h3"] > 0 and after["h2"] > 0
        failed = victim.fetch()
        assert failed["failed"] and "ended without a result: it was killed" in failed["msg"] and "run again" in failed["msg"]
        assert not victim.path.exists()
        # Run again: the play finds that only this one needs them.
        victim.join(*fleet.chain(3))
        result = victim.fetch()
        assert result["resumed_bytes"] >= 0.25 * fleet.size and result["resumed_bytes"] + result["fetched_bytes"] == fleet.size
        assert victim.content() == files
        sent = fleet.end_all()
        assert sent["origin"] == fleet.size, sent


def test_a_disk_that_fills_up_in_the_middle(tmp_path):
    """A real file system that somebody else fills while pieces come; then it has room again, and the rest comes."""
    if subprocess.run(["unshare", "-Urm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount in a namespace of its own")
    with Fleet(tmp_path, FILES, ["a"]) as fleet:
        fleet.give(rate_mib=3)
        host = fleet.hosts[0]
        mount = host.path.parent
        mount.mkdir(parents=True)
        ready, go = tmp_path / "ready", tmp_path / "go"
        os.mkfifo(go)
        script = f"mount -t tmpfs -o size=30m tmpfs {mount} && echo $$ > {ready}.new && mv {ready}.new {ready} && read line < {go}"
        holder = subprocess.Popen(["unshare", "-Urm", "sh", "-c", script])
        try:
            assert wait_until(ready.exists)
            host.prefix = ("nsenter", "-U", "-m", "--preserve-credentials", "-t", str(holder.pid))
            inside = Path(f"/proc/{holder.pid}/root")
            answer = host.join(fleet.origin)
            assert not answer.get("failed"), answer
            progress = inside / str(host.job / "progress.json").lstrip("/")

            def share() -> float:
                try:
                    found = json.loads(progress.read_text())
                except (OSError, ValueError):
                    return 0.0
                return found["done_bytes"] / found["total_bytes"] if found["phase"] == "download" else 0.0

            assert wait_until(lambda: share() > 0.2)
            subprocess.run([*host.prefix, "sh", "-c", f"cat /dev/zero > {mount}/filler"], check=False, capture_output=True)
            result = host.fetch()
            assert result["failed"] and "no space left on the disk while it came from origin" in result["msg"], result
            assert result["msg"].startswith(("a.safetensors: ", "sub/b.safetensors: ")) and "run again, it goes on" in result["msg"]
            (inside / str(mount / "filler").lstrip("/")).unlink()
            host.join(fleet.origin)
            result = host.fetch()
            assert result["resumed_bytes"] >= 0.15 * fleet.size and result["resumed_bytes"] + result["fetched_bytes"] == fleet.size
            assert (inside / str(host.part / "a.safetensors").lstrip("/")).read_bytes() == FILES["a.safetensors"]
            assert host.end()["sent_bytes"] == 0
        finally:
            pid = _jobs.look(str(Path(f"/proc/{holder.pid}/root") / str(host.job).lstrip("/"))).pid
            if pid:
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            go.write_text("over\n")
            holder.wait(30)


@pytest.mark.long
def test_eight_targets_over_links_of_their_own(tmp_path):
    """A network namespace and a shaped link a host: the origin's link carries the bytes once, and so does every other."""
    if not Wires.possible():
        pytest.skip("needs root, ip, tc and network namespaces")
    files = {"a.safetensors": os.urandom(16 * MIB), "b.safetensors": os.urandom(8 * MIB)}
    with Wires(9, mbit=400) as wires, Fleet(tmp_path, files, EIGHT, wires.places()) as fleet:
        fleet.give()
        before = wires.sent(0)
        fleet.join_all()
        results = fleet.fetch_all()
        wire = wires.sent(0) - before
        assert all(host.content() == files for host in fleet.hosts)
        assert [list(result["given"]) for result in results] == [["origin"], *([name] for name in EIGHT[:-1])]
        sent = fleet.end_all()
        assert sent == {**dict.fromkeys(["origin", *EIGHT[:-1]], fleet.size), "h7": 0}
        # as its network interface counts, answers and repeats included
        assert fleet.size <= wire <= 1.05 * fleet.size, wire / fleet.size


def test_a_job_starts_with_nothing_but_its_archive():
    """What the worker needs is in the files the module loads; see ``_jobs.pack``."""
    assert _fanout.take_job.__module__.startswith(_jobs.PACKAGE + ".")
