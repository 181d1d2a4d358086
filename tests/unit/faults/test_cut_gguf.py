# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A cut model keeps what it keeps byte for byte, and says so in its header."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from faults import cut_gguf
from faults.tiny_llama import F32, Q4_1, TENSORS, model

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._gguf import read_header

SECOND = [(name.replace("blk.0.", "blk.1."), shape, kind) for name, shape, kind in TENSORS if name.startswith("blk.0.")]
#: Bytes that are no multiple of the alignment, so that every later offset depends on the padding.
ODD = [("blk.0.odd.weight", (5,), F32), ("blk.0.odder.weight", (32,), Q4_1)]


def two_layers(path):
    model(str(path), [*TENSORS, *ODD, *SECOND], **{"llama.block_count": (4, (2).to_bytes(4, "little"))})


def header(path):
    with open(path, "rb") as handle:
        return read_header(handle, path.stat().st_size, str(path), arrays=True)


def data(path):
    raw = path.read_bytes()
    return {tensor.name: raw[tensor.offset : tensor.offset + tensor.size] for tensor in header(path).tensors}


def test_layers_go_and_the_rest_stays_byte_for_byte(tmp_path):
    two_layers(tmp_path / "m.gguf")
    made = cut_gguf.cut(str(tmp_path / "m.gguf"), str(tmp_path / "cut.gguf"), 1, 65536)
    before, after = header(tmp_path / "m.gguf"), header(tmp_path / "cut.gguf")
    assert (after.metadata["llama.block_count"], after.metadata["llama.context_length"]) == (1, 65536)
    for key in set(before.metadata) - {"llama.block_count", "llama.context_length"}:
        assert after.metadata[key] == before.metadata[key]
    whole = data(tmp_path / "m.gguf")
    assert data(tmp_path / "cut.gguf") == {name: raw for name, raw in whole.items() if not name.startswith("blk.1.")}
    assert made["sha256"] == hashlib.sha256((tmp_path / "cut.gguf").read_bytes()).hexdigest()


@pytest.mark.parametrize("layers", [0, 3])
def test_layers_that_are_not_there_are_refused(tmp_path, layers):
    two_layers(tmp_path / "m.gguf")
    with pytest.raises(LLMError, match="has 2 layers"):
        cut_gguf.cut(str(tmp_path / "m.gguf"), str(tmp_path / "cut.gguf"), layers, 65536)


def test_the_command_prints_a_manifest_entry(tmp_path):
    two_layers(tmp_path / "m.gguf")
    script = Path(cut_gguf.__file__)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "m.gguf"), str(tmp_path / "cut.gguf"), "1", "4096"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["size"] == (tmp_path / "cut.gguf").stat().st_size
    assert subprocess.run([sys.executable, str(script), "x"], capture_output=True, check=False).returncode == 2
