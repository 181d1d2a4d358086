# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""weights_verify as Ansible runs it: what it answers, when it fails, that it writes its marker and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.tiny_gguf import tiny_gguf

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


GOOD = {"one.gguf": tiny_gguf()}


@pytest.fixture
def tree(tmp_path) -> Path:
    root = tmp_path / "weights"
    root.mkdir()
    (root / "one.gguf").write_bytes(GOOD["one.gguf"])
    return root


def verify(root: Path, **more) -> tuple[int, dict]:
    return run("weights_verify", path=str(root), manifest=manifest(GOOD), format="gguf", **more)


def test_good_weights_are_remembered_and_not_read_again(tree, tmp_path):
    marker = tmp_path / ".verified" / "m.json"
    code, first = verify(tree, marker=str(marker))
    assert (code, first["ok"], first["changed"], first["hashed_bytes"]) == (0, True, False, len(GOOD["one.gguf"]))
    assert first["files"][0]["verdict"] == "ok" and len(first["manifest_id"]) == 64 and first["free_bytes"] > 0
    assert verify(tree, marker=str(marker))[1]["hashed_bytes"] == 0
    assert verify(tree, marker=str(marker), deep=True)[1]["hashed_bytes"] == len(GOOD["one.gguf"])


def test_check_mode_answers_the_same_and_writes_no_marker(tree, tmp_path):
    code, result = verify(tree, marker=str(tmp_path / "m.json"), _ansible_check_mode=True)
    assert (code, result["ok"]) == (0, True)
    assert sorted(os.listdir(tmp_path)) == ["weights"]


def test_every_bad_file_is_listed_in_one_message(tree, tmp_path):
    (tree / "one.gguf").write_bytes(GOOD["one.gguf"][:-1] + b"x")
    (tree / "stray.gguf").write_bytes(b"")
    code, result = verify(tree, marker=str(tmp_path / "m.json"))
    assert code == 1 and result["failed"] and not result["ok"] and not result["bytes_ok"]
    for word in ("one.gguf: wrong_sha256", "stray.gguf: extra", "2 problems", str(tree), "again"):
        assert word in result["msg"]
    assert result["needed_bytes"] == len(GOOD["one.gguf"])
    assert not (tmp_path / "m.json").exists()


def test_a_caller_may_ask_first(tmp_path):
    code, result = verify(tmp_path / "nowhere", fail_on_problem=False)
    assert (code, result["ok"], result["files"][0]["verdict"]) == (0, False, "missing")


def test_a_writable_file_is_a_problem_only_when_asked(tree):
    assert verify(tree)[0] == 0
    code, result = verify(tree, read_only=True)
    assert code == 1 and result["bytes_ok"] and "mode is 0644" in result["msg"]
    os.chmod(tree / "one.gguf", 0o444)
    assert verify(tree, read_only=True)[0] == 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"marker": "{root}/m.json"}, "inside"),
        ({"manifest": [{"path": "../x", "size": 1, "sha256": "0" * 64}]}, "stay inside"),
        ({"manifest": []}, "empty"),
        ({"format": "onnx"}, "one of: gguf, safetensors"),
    ],
)
def test_bad_arguments_are_one_message_and_no_traceback(tree, more, says):
    more = {key: value.format(root=tree) if isinstance(value, str) else value for key, value in more.items()}
    code, result = run("weights_verify", **{"path": str(tree), "manifest": manifest(GOOD), "format": "gguf", **more})
    assert code == 1 and says in result["msg"] and "Traceback" not in result["msg"]
