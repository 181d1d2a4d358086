# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""weights_verify as Ansible runs it: what it answers, when it fails, that it writes its marker and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from faults import tiny_w8a8
from faults.tiny_gguf import tiny_gguf

from ansible_collections.ironserve.llm.plugins.module_utils import _structure, _weights_verify
from ansible_collections.ironserve.llm.plugins.modules import quantization_config, weights_verify

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


def test_a_touched_file_is_read_again_and_nothing_is_missing(tree, tmp_path):
    marker = str(tmp_path / "m.json")
    verify(tree, marker=marker)
    os.utime(tree / "one.gguf", ns=(5, 5))
    code, result = verify(tree, marker=marker)
    assert (code, result["ok"], result["hashed_bytes"], result["needed_bytes"]) == (0, True, len(GOOD["one.gguf"]), 0)
    assert verify(tree, marker=marker)[1]["hashed_bytes"] == 0


def test_a_byte_flipped_behind_the_marker_is_found_when_deep(tree, tmp_path):
    marker, path = str(tmp_path / "m.json"), tree / "one.gguf"
    verify(tree, marker=marker)
    status = path.stat()
    with open(path, "r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        handle.write(b"\x01")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert verify(tree, marker=marker)[0] == 0
    code, result = verify(tree, marker=marker, deep=True)
    assert code == 1 and "one.gguf: wrong_sha256" in result["msg"]
    assert result["needed_bytes"] == len(GOOD["one.gguf"])


# ---- safetensors: structure without a manifest, and quantization


@pytest.fixture
def model(tmp_path) -> Path:
    root = tmp_path / "weights" / "m"
    tiny_w8a8.write(root)
    return root


def judge(root: Path, run_module, **more) -> dict:
    return run_module(weights_verify, {"path": str(root), "format": "safetensors", **more})


def whole(root: Path) -> list[dict]:
    return manifest({path.name: path.read_bytes() for path in root.iterdir()})


def test_without_a_manifest_bytes_stay_unknown(model, run_module, tmp_path):
    result = judge(model, run_module)
    assert (result["ok"], result["bytes_ok"], result["structure_ok"], result["quantization_ok"]) == (True, None, True, True)
    assert result["manifest_id"] is None and result["config_path"] == str(model / "config.json")
    assert result["config_sha256"] == hashlib.sha256((model / "config.json").read_bytes()).hexdigest()
    assert {item["path"]: item["verdict"] for item in result["files"]} == {path.name: "ok" for path in model.iterdir()}
    (model / "generation_config.json").unlink()
    result = judge(model, run_module)
    assert result["failed"] and "generation_config.json: missing" in result["msg"]
    assert judge(model, run_module, needs=["config", "tokenizer"])["ok"]
    assert "writable" in judge(model, run_module, needs=[], read_only=True)["msg"]
    assert "no such directory" in judge(tmp_path / "nowhere", run_module)["msg"]
    assert "nothing would be checked" in judge(model, run_module, structure=False)["msg"]


@pytest.mark.parametrize("with_manifest", [False, True])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("ignored_int8", "ignored_but_quantized"),
        ("no_config", "no_description"),
        ("half_of_a_pair_ignored", "part_ignored"),
        ("scale_missing", "scale_missing"),
        ("scale_renamed", "scale_name"),
        ("wrong_format", "wrong_format"),
        ("shard_truncated", "model-00002-of-00002.safetensors: truncated"),
        ("shard_missing", "model-00002-of-00002.safetensors: missing"),
    ],
)
def test_broken_variants_are_refused_with_the_right_reason(tmp_path, run_module, fault, says, with_manifest):
    """Also when every byte is the manifest's: a checksum does not make weights right."""
    tiny_w8a8.write(tmp_path / "m", fault)
    more = {"manifest": whole(tmp_path / "m")} if with_manifest else {}
    result = judge(tmp_path / "m", run_module, **more)
    assert result["failed"] and says in result["msg"] and result["bytes_ok"] is (True if with_manifest else None)
    assert result["structure_ok"] is (not fault.startswith("shard_"))
    assert result["quantization_ok"] is (None if fault.startswith("shard_") else False)
    if not fault.startswith("shard_"):
        assert judge(tmp_path / "m", run_module, **more, quantization="none")["ok"]


def test_what_the_engine_is_told_is_held_against_the_weights(model, run_module):
    assert judge(model, run_module, quantization="compressed-tensors")["quantization_ok"]
    assert "the engine is told ascend" in judge(model, run_module, quantization="ascend")["msg"]


def test_a_config_mounted_over_counts_in_place_of_theirs_and_is_part_of_what_is_remembered(tmp_path, run_module, monkeypatch):
    root, over, marker = tmp_path / "m", tmp_path / "m.config.json", str(tmp_path / "v.json")
    tiny_w8a8.write(root, "no_config")
    more = {"manifest": whole(root), "marker": marker, "engine_config": str(over)}
    first = judge(root, run_module, **more)
    assert first["failed"] and first["bytes_ok"] and first["config_path"] == str(root / "config.json")
    assert run_module(quantization_config, {"path": str(root), "dest": str(over)})["changed"]
    second = judge(root, run_module, **more)
    # the bytes were good before, and are not read again because a description was wrong
    assert second["ok"] and second["hashed_bytes"] == 0 and second["config_path"] == str(over)
    assert second["config_sha256"] == hashlib.sha256(over.read_bytes()).hexdigest() != first["config_sha256"]
    with monkeypatch.context() as patch:
        patch.setattr(_structure, "inspect", lambda *args: pytest.fail("read again"))
        assert judge(root, run_module, **more)["quantization_ok"] is True
    wrong = json.loads(over.read_text())
    wrong["quantization_config"]["ignore"] = []
    wrong["compression_config"]["ignore"] = []
    over.write_text(json.dumps(wrong))
    assert "not_ignored" in judge(root, run_module, **more)["msg"]
    over.write_text("{")
    assert str(over) in judge(root, run_module, **more)["msg"]
    assert "lies inside" in judge(root, run_module, **{**more, "engine_config": str(root / "x.json")})["msg"]


# ---- as a job


def test_a_job_hashes_tells_how_far_it_is_and_leaves_nothing(model, run_module, tmp_path, monkeypatch):
    monkeypatch.setattr(_weights_verify, "JOB_BYTES", 0)
    monkeypatch.setattr(_weights_verify, "LINGER_S", 0.0)
    more = {"manifest": whole(model), "marker": str(tmp_path / "v.json"), "detach": True}
    answer = judge(model, run_module, **more)
    assert answer["job"]["mine"] and answer["job"]["nonce"]
    monkeypatch.setattr(_weights_verify, "LINGER_S", 60.0)
    result = judge(model, run_module, **more, job=answer["job"]["nonce"])
    assert result["ok"] and result["hashed_bytes"] == sum(item["size"] for item in more["manifest"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.json", "weights"]
    assert [path.name for path in model.parent.iterdir()] == ["m"]
    # nothing is left to hash: no job
    monkeypatch.setattr(_weights_verify, "JOB_BYTES", 1)
    monkeypatch.setattr(_weights_verify, "followed", lambda *args: pytest.fail("a job for nothing"))
    assert judge(model, run_module, **more)["hashed_bytes"] == 0


def test_a_job_tells_of_bad_files_as_the_module_itself_does(model, run_module, monkeypatch):
    monkeypatch.setattr(_weights_verify, "JOB_BYTES", 0)
    monkeypatch.setattr(_weights_verify, "LINGER_S", 60.0)
    files = whole(model)
    files[0]["sha256"] = "0" * 64
    result = judge(model, run_module, manifest=files, detach=True)
    assert result["failed"] and files[0]["path"] + ": wrong_sha256" in result["msg"]


def test_what_must_be_hashed_is_known_from_sizes_and_times(model, tmp_path):
    files = whole(model)
    arguments = {"path": str(model), "manifest": files, "marker": "", "deep": False}
    total = sum(item["size"] for item in files)
    assert _weights_verify.to_hash(arguments) == total
    (model / files[0]["path"]).unlink()
    assert _weights_verify.to_hash(arguments) == total - files[0]["size"]
    # a file of the wrong size is wrong already
    with open(model / files[1]["path"], "ab") as handle:
        handle.write(b"x")
    assert _weights_verify.to_hash(arguments) == total - files[0]["size"] - files[1]["size"]


@pytest.mark.long
def test_while_a_big_file_is_hashed_a_user_sees_how_far_it_is(tmp_path):
    """The real thing: ansible-playbook, its action plugin, a job, and 17 GB that are only a hole."""
    root = tmp_path / "w"
    root.mkdir()
    size = 16 << 30
    with open(root / "big.gguf", "wb") as handle:
        handle.truncate(size)
    task = {
        "path": str(root),
        "format": "gguf",
        "structure": False,
        "fail_on_problem": False,
        "manifest": [{"path": "big.gguf", "size": size, "sha256": "0" * 64}],
    }
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [{"ironserve.llm.weights_verify": task, "register": "found"}]}]
    play[0]["tasks"].append({"ansible.builtin.debug": {"msg": "verdict {{ found.files[0].verdict }} of {{ found.hashed_bytes }}"}})
    (tmp_path / "play.yml").write_text(json.dumps(play))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local"]
    done = subprocess.run(
        [*command, "-e", f"ansible_python_interpreter={sys.executable}", str(tmp_path / "play.yml")],
        env=dict(os.environ, ANSIBLE_COLLECTIONS_PATH=str(collections_path()), ANSIBLE_LOCALHOST_WARNING="false", COLUMNS="200"),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"localhost: hashing big.gguf, \d+ % of 17.2 GB", done.stdout), done.stdout
    assert f"verdict wrong_sha256 of {size}" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["play.yml", "w"]
