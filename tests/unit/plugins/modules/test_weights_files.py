# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""weights_files as Ansible runs it: present, absent, purged, check and diff mode."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.tiny_gguf import tiny_gguf

from ansible_collections.ironserve.llm.plugins.modules import weights_files

# Each starts the module as a process of its own, many times.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]


def run(module: str, **arguments) -> tuple[int, dict]:
    """Run the module as Ansible does, in a process of its own; returns exit status and result."""
    done = subprocess.run(
        [sys.executable, "-B", str(ROOT / "plugins" / "modules" / (module + ".py"))],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        env=dict(os.environ, PYTHONPATH=str(collections_path())),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip().startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


def collections_path() -> Path:
    """The directory that holds ``ansible_collections``, in the checkout as in an installed collection."""
    return ROOT.parents[2] if ROOT.parts[-3:] == ("ansible_collections", "ironserve", "llm") else ROOT / "collections"


def manifest(files) -> list[dict]:
    return [{"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()]


GOOD = {"one.gguf": tiny_gguf(), "sub/two.gguf": tiny_gguf(("x.weight",))}


class Site:
    """A target below a weights directory and a source directory."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "weights"
        self.path = self.base / "demo" / "q"
        self.marker = self.base / ".verified" / "demo-q.json"
        self.origin = folder / "origin"
        for name, data in GOOD.items():
            (self.origin / name).parent.mkdir(parents=True, exist_ok=True)
            (self.origin / name).write_bytes(data)

    def present(self, **more) -> tuple[int, dict]:
        arguments = {"source": {"kind": "directory", "path": str(self.origin)}, "manifest": manifest(GOOD), "format": "gguf"}
        return run("weights_files", **{"path": str(self.path), "marker": str(self.marker), **arguments, **more})


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def test_present_changes_once_and_shows_the_difference(site):
    code, result = site.present(_ansible_diff=True)
    assert (code, result["changed"], result["fetched"], result["kept"]) == (0, True, ["one.gguf", "sub/two.gguf"], [])
    assert result["fetched_bytes"] == sum(map(len, GOOD.values()))
    assert (result["diff"]["before"], result["diff"]["after"].count("\n")) == ("", 2)
    code, result = site.present()
    assert (code, result["changed"], result["fetched"]) == (0, False, [])
    assert result["diff"]["before"] == result["diff"]["after"] != ""


def test_check_mode_tells_the_truth_and_writes_nothing(site):
    code, result = site.present(_ansible_check_mode=True)
    assert (code, result["changed"], result["fetched"]) == (0, True, ["one.gguf", "sub/two.gguf"])
    assert not site.base.exists()
    site.present()
    assert site.present(_ansible_check_mode=True)[1]["changed"] is False


def test_check_mode_says_that_a_source_is_not_there(site):
    code, result = site.present(source={"kind": "directory", "path": "/nonexistent"}, _ansible_check_mode=True)
    assert code == 1 and "/nonexistent" in result["msg"]


def test_absent_and_purged_change_once(site):
    site.present()
    assert run("weights_files", path=str(site.path), marker=str(site.marker), state="absent", _ansible_check_mode=True)[1]["changed"]
    assert site.path.exists()
    assert run("weights_files", path=str(site.path), marker=str(site.marker), state="absent")[1]["changed"]
    assert not site.base.exists()
    assert not run("weights_files", path=str(site.path), marker=str(site.marker), state="absent")[1]["changed"]
    site.present()
    assert run("weights_files", path=str(site.base), state="purged", _ansible_check_mode=True)[1]["changed"]
    assert site.path.exists()
    result = run("weights_files", path=str(site.base), state="purged")[1]
    assert result["changed"] and "demo/q/one.gguf" in result["diff"]["before"]
    assert not site.base.exists()
    assert not run("weights_files", path=str(site.base), state="purged")[1]["changed"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"source": {"kind": "directory"}}, "path"),
        ({"source": {"kind": "pypi", "project": "x"}}, "version"),
        ({"source": {"kind": "ftp"}}, "one of"),
        ({"source": {"kind": "directory", "path": "/nonexistent"}}, "/nonexistent"),
        ({"margin_mib": 1 << 40}, "not enough disk space"),
    ],
)
def test_bad_arguments_are_one_message_and_no_traceback(site, more, says):
    code, result = site.present(**more)
    assert code == 1 and says in result["msg"] and "Traceback" not in result["msg"]
    assert not site.path.exists()


def test_a_large_set_is_placed_by_a_job_that_is_waited_for(site, run_module, monkeypatch):
    monkeypatch.setattr(weights_files, "JOB_BYTES", 1)
    monkeypatch.setattr(weights_files, "LINGER_S", 0.0)
    arguments = {"source": {"kind": "directory", "path": str(site.origin)}, "manifest": manifest(GOOD), "format": "gguf"}
    arguments.update(path=str(site.path), marker=str(site.marker), detach=True)
    answer = run_module(weights_files, arguments)
    assert answer["job"]["mine"] and not answer["changed"] and "placing of" in answer["job"]["who"]
    nonce, looks = answer["job"]["nonce"], 0
    while "job" in answer:
        looks += 1
        assert looks < 1000 and answer["job"]["nonce"] == nonce
        time.sleep(0.02)
        answer = run_module(weights_files, dict(arguments, job=nonce))
    assert (answer["changed"], answer["fetched"]) == (True, ["one.gguf", "sub/two.gguf"])
    assert sorted(os.listdir(site.path.parent)) == ["q", "q.manifest.json"]
    # nothing is left to do, so no job either
    assert run_module(weights_files, arguments)["changed"] is False


def test_a_job_that_fails_is_one_message(site, run_module, monkeypatch):
    monkeypatch.setattr(weights_files, "JOB_BYTES", 1)
    arguments = {"source": {"kind": "directory", "path": "/nonexistent"}, "manifest": manifest(GOOD), "format": "gguf"}
    monkeypatch.setattr(weights_files, "LINGER_S", 30.0)
    answer = run_module(weights_files, dict(arguments, path=str(site.path), detach=True))
    assert answer["failed"] and answer["msg"].startswith("/nonexistent: source directory of the weights")


@pytest.mark.parametrize("state", ["absent", "purged"])
def test_removal_waits_for_who_is_at_work_only_as_long_as_it_may(site, state):
    site.present()
    folder = site.path.parent / "q.job"
    folder.mkdir()
    with open(folder / "lock", "w") as worker:
        fcntl.flock(worker, fcntl.LOCK_EX)
        path = str(site.base if state == "purged" else site.path)
        code, result = run("weights_files", path=path, marker=str(site.marker), state=state, lock_timeout=0)
        assert code == 1 and result["msg"] == "{0}: a job is at work there: wait for its end, and run again".format(folder)
        assert sorted(os.listdir(site.path)) == ["one.gguf", "sub"] and site.marker.exists()
    assert run("weights_files", path=path, marker=str(site.marker), state=state, lock_timeout=0)[1]["changed"]
    assert not site.base.exists()


def test_replaced_weights_are_kept_come_back_and_are_purged(site):
    site.present(keep=1)
    other = {"one.gguf": tiny_gguf(("y.weight",)), "sub/two.gguf": GOOD["sub/two.gguf"]}
    (site.origin / "one.gguf").write_bytes(other["one.gguf"])
    code, result = site.present(keep=1, manifest=manifest(other))
    assert code == 0 and [item["used"] for item in result["versions"]] == [""] and result["fetched"] == ["one.gguf"]
    for check in (True, False):
        code, result = site.present(state="recalled", source=None, keep=1, _ansible_check_mode=check, _ansible_diff=True)
        assert (code, result["changed"], result["recalled"]) == (0, True, True) and result["diff"]["before"] != ""
        assert ((site.path / "one.gguf").read_bytes() == GOOD["one.gguf"]) is not check
    code, result = site.present(state="recalled", keep=1, manifest=manifest({"one.gguf": GOOD["sub/two.gguf"]}))
    assert (code, result["changed"], result["recalled"]) == (0, False, False)
    assert sorted(os.listdir(site.path.parent)) == ["q", "q.kept", "q.manifest.json"]
    assert run("weights_files", path=str(site.base), state="purged")[1]["changed"] and not site.base.exists()
