# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module as Ansible calls it: what it keeps, what it points to, what it refuses."""

from __future__ import annotations

import json
import os
import stat

import pytest

from ansible_collections.ironserve.llm.plugins.modules import release_record


@pytest.fixture
def call(run_module, tmp_path):
    """Record a release: ``call(name, check_mode=False, proof=...)``."""

    def run(name, check_mode=False, proof=(), **more):
        arguments = {
            "directory": str(tmp_path / "state" / "releases"),
            "record": {"id": name, "model": "demo", **more},
            "proof": list(proof),
        }
        return run_module(release_record, arguments, check_mode)

    return run


def test_a_record_is_kept_with_its_first_proof_and_named_the_current_one(call, tmp_path):
    folder = tmp_path / "state" / "releases"
    result = call("a1", proof=[{"name": "c0", "verdict": "ok"}])
    assert (result["changed"], result["written"], result["previous"], result["path"]) == (True, True, "", str(folder / "a1.json"))
    assert json.loads((folder / "a1.json").read_text()) == {"id": "a1", "model": "demo", "proof": [{"name": "c0", "verdict": "ok"}]}
    assert os.readlink(folder / "current.json") == "a1.json"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755 and stat.S_IMODE((folder / "a1.json").stat().st_mode) == 0o644

    result = call("a1", proof=[{"name": "c0", "verdict": "ok", "ttft_ms": 7}])
    assert (result["changed"], result["written"], result["previous"]) == (False, False, "a1")
    assert json.loads((folder / "a1.json").read_text())["proof"] == [{"name": "c0", "verdict": "ok"}]


def test_another_release_becomes_the_current_one_and_an_old_one_again(call, tmp_path):
    folder = tmp_path / "state" / "releases"
    call("a1")
    assert call("b2")["previous"] == "a1"
    result = call("a1")
    assert (result["changed"], result["written"], result["previous"]) == (True, False, "b2")
    assert os.readlink(folder / "current.json") == "a1.json"
    assert sorted(item.name for item in folder.iterdir()) == ["a1.json", "b2.json", "current.json"]


def test_a_dry_run_says_what_it_would_do(call, tmp_path):
    folder = tmp_path / "state" / "releases"
    result = call("a1", check_mode=True)
    assert result["changed"] and result["diff"] == {"before": "current: none\n", "after": "current: a1\n"}
    assert not folder.exists()
    call("a1")
    assert call("b2", check_mode=True)["diff"] == {"before": "current: a1\n", "after": "current: b2\n"}
    assert not call("a1", check_mode=True)["changed"]
    assert os.readlink(folder / "current.json") == "a1.json"


def test_a_directory_that_is_there_keeps_its_permissions(call, tmp_path):
    folder = tmp_path / "state" / "releases"
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    call("a1")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".a", "current", "a\n"])
def test_an_id_that_is_no_name_is_refused(call, tmp_path, name):
    result = call(name)
    assert result["failed"] and "record.id is" in result["msg"]
    assert not (tmp_path / "state").exists()


def test_something_else_in_the_links_place_is_left_alone(call, tmp_path):
    folder = tmp_path / "state" / "releases"
    folder.mkdir(parents=True)
    (folder / "current.json").write_text("mine")
    result = call("a1")
    assert result["failed"] and "current.json is no link to a record" in result["msg"]
    assert [item.name for item in folder.iterdir()] == ["current.json"] and (folder / "current.json").read_text() == "mine"
