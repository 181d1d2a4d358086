# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""weights_download as Ansible runs it, against a hub of its own: killed, twice at once, on a full disk, offline, and as a task that shows how far it is."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.hub_server import Hub, sha256

from ansible_collections.ironserve.llm.plugins.module_utils import _jobs, _manifest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[4]
COLLECTIONS = ROOT.parents[2] if ROOT.parts[-3:] == ("ansible_collections", "ironserve", "llm") else ROOT / "collections"
NAME = "org/model"
BIG = "model.safetensors"
# Larger than what a client keeps in memory before it writes.
FILES = {BIG: random.Random(1).randbytes(40_000_000), "config.json": b"{}\n"}
CLIENTS = ("modelscope", "huggingface")
MODULE = str(ROOT / "plugins" / "modules" / "weights_download.py")


def manifest(files) -> list[dict]:
    return [{"path": path, "size": len(data), "sha256": sha256(data)} for path, data in files.items()]


class Site:
    """A target, a hub, and the module in a process of its own."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.hub, self.folder = hub, folder
        self.path = folder / "weights" / "q"
        self.job = folder / "weights" / "q.job"
        self.part = folder / "weights" / "q.part"
        self.stored = folder / "manifests" / "q.json"
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), "PYTHONPATH": str(COLLECTIONS)}

    def arguments(self, kind: str, **more) -> dict:
        source = {"kind": kind, "repo": NAME, "endpoint": self.hub.url}
        if kind == "http":
            source = {"kind": "http", "url": f"{self.hub.url}/mirror/{NAME}"}
        known = {"path": str(self.path), "source": source, "retries": 1, "margin_mib": 0}
        if more.get("state") == "listed":
            return {**known, "manifest_file": str(self.stored), **more}
        return {**known, "manifest": manifest(FILES), **more}

    def start(self, kind: str, **more) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-B", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            text=True,
        )
        process.stdin.write(json.dumps({"ANSIBLE_MODULE_ARGS": self.arguments(kind, **more)}))
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, kind: str, **more) -> dict:
        return ended(self.start(kind, **more))

    def content(self) -> dict:
        return {path: (self.part / path).read_bytes() for path in _manifest.tree_files(str(self.part))}


def ended(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=60)
    assert out.strip().startswith("{"), err
    result = json.loads(out)
    assert "Traceback" not in result.get("msg", "") and bool(process.returncode) == bool(result.get("failed"))
    return result


@pytest.fixture
def site(tmp_path):
    (tmp_path / "home").mkdir()
    with Hub() as hub:
        hub.commit = hub.repo(NAME, FILES)
        yield Site(tmp_path, hub)


@pytest.mark.parametrize("kind", CLIENTS)
def test_list_then_fetch_then_nothing(site, kind):
    listed = site.run(kind, state="listed")
    assert listed["changed"] and listed["files"] == sorted(manifest(FILES), key=lambda item: item["path"])
    assert (listed["source"]["commit"], listed["computed"]) == (site.hub.commit, ["config.json"] if kind == "huggingface" else [])
    document = _manifest.read_document(str(site.stored))
    assert document["manifest_id"] == listed["manifest_id"] and document["source"]["commit"] == site.hub.commit
    asked = len(site.hub.requests)
    again = site.run(kind, state="listed")
    # the stored list counts, whatever the branch does: the hub is not even asked
    assert not again["changed"] and again["files"] == listed["files"] and len(site.hub.requests) == asked
    fetched = site.run(kind, manifest=listed["files"], source=listed["source"])
    assert fetched["changed"] and BIG in fetched["fetched"] and site.content() == FILES
    assert fetched["fetched_bytes"] == sum(len(FILES[path]) for path in fetched["fetched"])
    # what the clients keep for themselves is not left in the user's home
    assert list((site.folder / "home").rglob("*token*")) == list((site.folder / "home").glob(".modelscope")) == []


def test_check_mode_lists_and_writes_nothing(site):
    listed = site.run("huggingface", state="listed", _ansible_check_mode=True)
    assert listed["changed"] and [item["path"] for item in listed["files"]] == sorted(FILES)
    assert not site.stored.exists() and not site.path.parent.exists()
    asked = len(site.hub.requests)
    result = site.run("huggingface", _ansible_check_mode=True)
    assert (result["changed"], result["fetched"]) == (True, sorted(FILES))
    assert not site.path.parent.exists() and len(site.hub.requests) == asked


def test_a_new_list_is_taken_when_asked_for_and_a_wrong_one_is_named(site):
    first = site.run("modelscope", state="listed")
    commit = site.hub.repo(NAME, {"config.json": b"{ }\n"})
    assert site.run("modelscope", state="listed")["files"] == first["files"]
    fresh = site.run("modelscope", state="listed", refresh=True)
    assert fresh["changed"] and fresh["source"]["commit"] == commit and len(fresh["files"]) == 1
    assert not site.run("modelscope", state="listed", refresh=True)["changed"]
    site.stored.write_text("{")
    assert str(site.stored) in site.run("modelscope", state="listed")["msg"]


@pytest.mark.parametrize("kind", (*CLIENTS, "http"))
def test_killed_in_the_middle_it_goes_on_where_it_was(site, kind):
    """kill -9 of the worker and of the module at 60 %: the next run takes what is there, and asks for the rest only."""
    hold = site.hub.fault(BIG, hold=0.6, times=1)
    process = site.start(kind)
    assert hold.reached.wait(30)
    # what was sent has arrived when the half on disk does not grow any more
    half = wait_until(lambda: sum(path.stat().st_size for path in site.job.rglob(BIG + "*")) >= 10_000_000 and still(site.job))
    os.kill(_jobs.look(str(site.job)).pid, signal.SIGKILL)
    process.kill()
    process.communicate()
    hold.release.set()
    assert half and BIG not in site.content()
    size = len(FILES[BIG])
    result = site.run(kind)
    assert BIG in result["fetched"] and site.content() == FILES
    asked = site.hub.ranges(BIG)[-1]
    begin = int(asked.partition("=")[2].partition("-")[0])
    # of what was sent before, at most what was in flight or in a buffer of 10 MB comes again
    assert 10_000_000 <= begin < size and site.hub.sent(BIG) <= size + 15_000_000


def wait_until(condition, limit_s: float = 30.0):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def still(folder: Path) -> bool:
    """Whether no file in a folder grew for a moment."""
    sizes = {path: path.stat().st_size for path in folder.rglob(BIG + "*")}
    time.sleep(0.2)
    return sizes == {path: path.stat().st_size for path in folder.rglob(BIG + "*")}


def test_a_worker_that_was_killed_is_said_so(site):
    hold = site.hub.fault(BIG, hold=0.3, times=1)
    process = site.start("http")
    assert hold.reached.wait(30)
    os.kill(_jobs.look(str(site.job)).pid, signal.SIGKILL)
    result = ended(process)
    assert "download of mirror" in result["msg"] and "it was killed" in result["msg"] and "run again" in result["msg"]


def test_the_module_may_die_and_the_download_goes_on(site):
    hold = site.hub.fault(BIG, hold=0.3, times=1)
    process = site.start("modelscope")
    assert hold.reached.wait(30)
    process.kill()
    process.communicate()
    hold.release.set()
    state = _jobs.wait(str(site.job), _jobs.look(str(site.job)).nonce, 30)
    assert _jobs.value_of(str(site.job), state)["fetched"] and site.content() == FILES


def test_two_at_once_download_once(site):
    hold = site.hub.fault(BIG, hold=0.3, times=1)
    first = site.start("modelscope")
    assert hold.reached.wait(30)
    assert site.run("modelscope", detach=True)["job"]["mine"]
    others = [site.start("modelscope"), site.start("modelscope")]
    hold.release.set()
    assert ended(first)["fetched"] == sorted(FILES)
    # one that came when all was over finds it done
    assert all(ended(other)["fetched"] in (sorted(FILES), []) for other in others)
    assert site.content() == FILES and site.hub.sent(BIG) == len(FILES[BIG])


def test_another_download_into_the_same_place_is_named_and_left_alone(site):
    hold = site.hub.fault(BIG, hold=0.3, times=1)
    first = site.start("modelscope")
    assert hold.reached.wait(30)
    pid = _jobs.look(str(site.job)).pid
    result = site.run("http", lock_timeout=0)
    assert result["failed"] and f"another download is at work there: download of modelscope {NAME} at master" in result["msg"]
    assert f"pid {pid}, started 2" in result["msg"] and f"kill {pid}" in result["msg"]
    hold.release.set()
    assert BIG in ended(first)["fetched"] and site.content() == FILES


@pytest.mark.parametrize("kind", (*CLIENTS, "http"))
def test_a_disk_that_fills_up_in_the_middle(site, kind, tmp_path):
    """A real file system of 60 MB that somebody else fills while the download is half done; then it has room again."""
    mount = tmp_path / "mount"
    mount.mkdir()
    arguments = site.arguments(kind, path=str(mount / "weights" / "q"))
    (tmp_path / "arguments.json").write_text(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    script = f"""
        set -e
        mount -t tmpfs -o size=60m tmpfs {mount}
        module() {{ {sys.executable} -B {MODULE} < {tmp_path}/arguments.json > {tmp_path}/$1.json || true; }}
        module first &
        while ! [ -e {tmp_path}/fill ]; do sleep 0.02; done
        cat /dev/zero > {mount}/filler 2>/dev/null || true
        touch {tmp_path}/filled
        wait
        ls {mount}/weights/q.part > {tmp_path}/kept
        rm {mount}/filler
        module second
        cp -r {mount}/weights/q.part {tmp_path}/result
    """
    if subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        pytest.skip("this machine lets nobody mount in a namespace of its own")
    hold = site.hub.fault(BIG, hold=0.5, times=1)
    # The other file first, so that there is something to keep.
    process = subprocess.Popen(["unshare", "-Urm", "sh", "-c", script], env=site.env, stderr=subprocess.PIPE, text=True)
    assert hold.reached.wait(30)
    time.sleep(0.5)
    (tmp_path / "fill").touch()
    assert wait_until((tmp_path / "filled").exists)
    hold.release.set()
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("first", "second"))
    assert first["failed"] and first["msg"].startswith(BIG + ": no space left on the disk") and "run again" in first["msg"]
    assert "config.json" in (tmp_path / "kept").read_text()
    assert BIG in second["fetched"] and (tmp_path / "result" / BIG).read_bytes() == FILES[BIG]
    assert site.hub.ranges(BIG)[-1].startswith("bytes="), site.hub.ranges(BIG)


@pytest.mark.parametrize("by", ["HF_HUB_OFFLINE", "option"])
def test_offline_means_nobody_is_asked(site, by):
    site.run("huggingface", state="listed")
    site.run("huggingface")
    asked = len(site.hub.requests)
    more = {"offline": True} if by == "option" else {}
    if by != "option":
        site.env[by] = "1"
    name = "offline=true" if by == "option" else f"{by}=1"
    assert not site.run("huggingface", state="listed", **more)["changed"]
    assert site.run("huggingface", **more)["kept"] == sorted(FILES)
    shutil.rmtree(site.part)
    result = site.run("huggingface", **more)
    assert result["failed"] and f"2 of 2 files are missing: config.json, {BIG}" in result["msg"] and name in result["msg"]
    site.stored.unlink()
    result = site.run("huggingface", state="listed", **more)
    assert result["failed"] and "is not known yet" in result["msg"] and name in result["msg"]
    assert len(site.hub.requests) == asked


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_token_is_nowhere_but_in_its_file(site, kind, tmp_path):
    canary = "hf_canary_0815"
    site.hub.token = canary
    token = tmp_path / "token"
    token.write_text(canary + "\n")
    token.chmod(0o600)
    site.env.update(HF_TOKEN="hf_wrong", MODELSCOPE_API_TOKEN="hf_wrong")
    hold = site.hub.fault(BIG, hold=0.3, times=1)
    process = site.start(kind, token_file=str(token))
    assert hold.reached.wait(30)
    worker = _jobs.look(str(site.job)).pid
    for pid in (process.pid, worker):
        for name in ("cmdline", "environ"):
            assert canary not in Path(f"/proc/{pid}/{name}").read_bytes().decode()
    hold.release.set()
    text = json.dumps(ended(process))
    assert canary not in text and site.content() == FILES
    for path in site.folder.rglob("*"):
        if path.is_file() and path != token:
            assert canary.encode() not in path.read_bytes(), path
    shutil.rmtree(site.part)
    # the same out of a vault: an argument that is not logged
    result = site.run(kind, token=canary)
    assert BIG in result["fetched"] and canary not in json.dumps(result)
    token.chmod(0o644)
    assert "chmod 600" in site.run(kind, token_file=str(token), state="listed")["msg"]


def test_a_python_without_the_client_is_named(site, tmp_path):
    lonely = tmp_path / "python"
    lonely.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    lonely.chmod(0o755)
    result = site.run("modelscope", python=str(lonely))
    assert result["failed"] and "library modelscope is missing" in result["msg"] and "requirements-hubs.txt" in result["msg"]
    assert site.run("http", python=str(lonely))["changed"] and site.content() == FILES
    assert "no-such-python: not found" in site.run("http", python="/no-such-python", path=str(tmp_path / "x"))["msg"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"source": {"kind": "ftp"}}, "one of"),
        ({"source": {"kind": "modelscope"}}, "repo"),
        ({"source": {"kind": "http"}}, "url"),
        ({"manifest": [{"path": "../x", "size": 1, "sha256": "1" * 64}]}, "must stay inside"),
        ({"manifest": manifest({"a": b"x"}) * 2}, "occurs twice"),
        ({"margin_mib": 1 << 40}, "not enough disk space"),
        ({"token": "canary", "token_file": "/b"}, "mutually exclusive"),
    ],
)
def test_bad_arguments_are_one_message(site, more, says):
    result = site.run("http", **more)
    assert result["failed"] and says in result["msg"]
    assert not site.hub.sent(BIG) and not site.content()


def test_detached_it_comes_back_at_once_and_the_end_is_the_same(site):
    hold = site.hub.fault(BIG, hold=0.3, times=1)
    first = site.run("modelscope", detach=True)
    assert first["job"]["running"] and first["job"]["mine"] and "fetched" not in first and not first["changed"]
    # It may have said nothing yet.
    assert first["job"]["progress"].get("phase", "download") == "download"
    other = site.run("http", detach=True)
    assert other["job"]["running"] and not other["job"]["mine"]
    hold.release.set()
    assert wait_until(lambda: not _jobs.look(str(site.job)).running)
    last = site.run("modelscope", detach=True, job=first["job"]["nonce"])
    assert "job" not in last and BIG in last["fetched"] and site.content() == FILES


def test_as_a_task_it_shows_file_share_and_rate(site, tmp_path):
    """A real ansible-playbook: lines come while the download is at work, and the result is the module's."""
    hold = site.hub.fault(BIG, hold=0.5, times=1)
    arguments = site.arguments("modelscope", manifest="{{ files }}")
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [{"ironserve.llm.weights_download": arguments, "register": "done"}]}]
    play[0]["tasks"].append({"ansible.builtin.debug": {"msg": "fetched {{ done.fetched | sort }} {{ done.job is defined }}"}})
    (tmp_path / "play.json").write_text(json.dumps(play))
    (tmp_path / "vars.json").write_text(json.dumps({"files": manifest(FILES)}))
    env = dict(site.env, ANSIBLE_COLLECTIONS_PATH=str(COLLECTIONS), ANSIBLE_LOCALHOST_WARNING="false", ANSIBLE_NOCOLOR="1")
    env["ANSIBLE_LOG_PATH"] = str(tmp_path / "log")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "play.json", "-e", "@vars.json", "-c", "local", "-i", "localhost,"]
    command += ["-e", "ansible_python_interpreter=" + sys.executable]
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert hold.reached.wait(60)
    lines = [process.stdout.readline()]
    while f"localhost: downloading {BIG}" not in lines[-1]:
        assert lines[-1], "".join(lines)
        lines.append(process.stdout.readline())
    # the task has not ended: half of the file has not even been sent
    assert process.poll() is None and "% of 40.0 MB" in lines[-1]
    hold.release.set()
    rest, _err = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert f"fetched ['config.json', '{BIG}'] False" in rest
    assert "downloading" in (tmp_path / "log").read_text()
    assert site.content() == FILES
