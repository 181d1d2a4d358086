# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine's start script: what it refuses, and that keys come from a file only."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SERVE = Path(__file__).resolve().parents[4] / "roles" / "replica" / "files" / "images" / "llama_cpp" / "serve.py"


@pytest.fixture(scope="module")
def serve():
    spec = importlib.util.spec_from_file_location("ironserve_serve", SERVE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("flag", ["--bogus", "--api-key", "--tensor-parallel-size"])
def test_an_unknown_flag_is_refused_by_name(flag):
    done = subprocess.run([sys.executable, str(SERVE), "--model", "/m", flag, "x"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert flag in done.stderr


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_counts_must_be_above_zero(value):
    done = subprocess.run(
        [sys.executable, str(SERVE), "--model", "/m", "--max-num-seqs", value], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2 and "--max-num-seqs" in done.stderr


def test_defaults_and_several_names(serve):
    options = serve.arguments(["--model", "/m.gguf", "--served-model-name", "a", "b"])
    assert options.served_model_name == ["a", "b"]
    assert options.chat_template.endswith("/llama_cpp/chat_template.jinja") and Path(options.chat_template).is_file()


def test_keys_are_read_line_by_line(serve, tmp_path):
    path = tmp_path / "key"
    path.write_text("sk-one\n\n sk-two \n")
    assert serve.read_keys(str(path)) == ["sk-one", "sk-two"]


def test_an_empty_key_file_never_opens_the_server(serve, tmp_path):
    path = tmp_path / "key"
    path.write_text("\n")
    with pytest.raises(ValueError, match="no key"):
        serve.read_keys(str(path))
