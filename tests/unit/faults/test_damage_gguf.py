# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The damaged model: valid in structure, wrong in exactly the tensors it names, the same every time."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.tiny_gguf import tiny_gguf

from ansible_collections.ironserve.llm.plugins.module_utils._gguf import read_header

SCRIPT = Path(__file__).resolve().parents[2] / "faults" / "damage_gguf.py"
KEYS = tuple(f"blk.{layer}.attn_k.weight" for layer in range(4))


@pytest.fixture
def model(tmp_path) -> Path:
    """The real model where IRONSERVE_TEST_GGUF names one, else a tiny one."""
    real = os.environ.get("IRONSERVE_TEST_GGUF")
    if real:
        return Path(real)
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf(("token_embd.weight", *KEYS, "output.weight")))
    return path


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-I", str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def tensors(raw: bytes) -> dict[str, bytes]:
    return {one.name: raw[one.offset : one.offset + one.size] for one in read_header(io.BytesIO(raw), len(raw), "x").tensors}


def test_only_the_named_tensors_are_zero_and_everything_else_is_the_same(model, tmp_path):
    done = run(model, tmp_path / "bad.gguf")
    assert done.returncode == 0, done.stderr
    before, after = tensors(model.read_bytes()), tensors((tmp_path / "bad.gguf").read_bytes())
    assert list(before) == list(after)
    assert sorted(name for name in before if before[name] != after[name]) == list(KEYS[:3])
    assert not any(any(after[name]) for name in KEYS[:3])


def test_the_entry_it_prints_is_the_one_of_the_file_and_the_same_every_time(model, tmp_path):
    (tmp_path / "again").mkdir()
    first, second = run(model, tmp_path / "bad.gguf"), run(model, tmp_path / "again" / "bad.gguf")
    raw = (tmp_path / "bad.gguf").read_bytes()
    assert json.loads(first.stdout) == {"path": "bad.gguf", "size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert first.stdout == second.stdout
    assert len(raw) == model.stat().st_size


def test_what_has_no_such_tensors_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "other.gguf").write_bytes(tiny_gguf(KEYS[:2]))
    done = run(tmp_path / "other.gguf", tmp_path / "bad.gguf")
    assert (done.returncode, done.stdout) == (1, "")
    assert "blk.2.attn_k.weight" in done.stderr
    (tmp_path / "none.gguf").write_bytes(b"nothing")
    assert run(tmp_path / "none.gguf", tmp_path / "bad.gguf").returncode == 1
    assert run(tmp_path / "absent.gguf", tmp_path / "bad.gguf").returncode == 1
    assert run().returncode == 2
    assert sorted(os.listdir(tmp_path)) == ["none.gguf", "other.gguf"]
