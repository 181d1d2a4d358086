# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role weights with int8 weights, with a real ansible-playbook: described when the recipe says so, else refused with the reason."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults import tiny_w8a8

ROOT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.slow
COLLECTIONS = ROOT.parents[2] if ROOT.parts[-3:] == ("ansible_collections", "ironserve", "llm") else ROOT / "collections"


class Site:
    """This machine as a host, a directory of weights to take from, and the role."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.origin = folder / "origin"
        self.weights = folder / "weights" / "m" / "v"
        self.config = folder / "weights" / "m" / "v.config.json"

    def play(self, quantization: dict | None, fails: bool = False, check: bool = False, **variables) -> str:
        files = [
            {"path": path.name, "size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in sorted(self.origin.iterdir())
        ]
        source = {"kind": "directory", "path": str(self.origin)}
        recipe = {"name": "v", "format": "safetensors", "entry": ".", "files": files, "source": source}
        if quantization is not None:
            recipe["quantization"] = quantization
        settings = {
            "catalog_out": {"weights": recipe, "model": {"name": "m"}},
            "weights_dir": str(self.folder / "weights"),
            "weights_download_dir": str(self.folder / "cache"),
            "weights_disk_margin_mib": 0,
            "ansible_python_interpreter": sys.executable,
            **variables,
        }
        tasks = [{"ansible.builtin.import_role": {"name": "ironserve.llm.weights"}}]
        tasks.append({"ansible.builtin.debug": {"msg": "config={{ weights_out.config | default('') }}"}})
        (self.folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "vars": settings, "tasks": tasks}]))
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "one,", "-c", "local", "play.json"]
        done = subprocess.run(
            command + (["--check", "--diff"] if check else []),
            cwd=self.folder,
            env=dict(os.environ, HOME=str(self.folder), ANSIBLE_COLLECTIONS_PATH=str(COLLECTIONS), ANSIBLE_NOCOLOR="1"),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_weights_without_a_word_get_it_beside_them_and_go_with_it(site):
    tiny_w8a8.write(site.origin, "no_config")
    described = {"method": "compressed-tensors", "inject": True}
    site.play(described, check=True)
    assert not site.weights.exists() and not site.config.exists()
    said = site.play(described)
    assert f"config={site.config}" in said
    assert json.loads(site.config.read_text())["quantization_config"]["format"] == "int-quantized"
    assert (site.weights / "config.json").read_bytes() == (site.origin / "config.json").read_bytes()
    again = site.play(described)
    assert "changed=0" in again and f"config={site.config}" in again
    site.play(described, weights_state="absent")
    assert not (site.folder / "weights").exists()


def test_weights_that_say_it_right_go_as_they_are(site):
    tiny_w8a8.write(site.origin)
    said = site.play({"method": "compressed-tensors"})
    assert f"config={site.weights / 'config.json'}" in said and not site.config.exists()
    assert "the engine is told ascend, and the weights say compressed-tensors" in site.play({"method": "ascend"}, fails=True)


def test_weights_that_are_described_wrongly_have_no_name(site):
    """Every byte is the recipe's, and every time it is refused: at first, and when they are there already."""
    tiny_w8a8.write(site.origin, "scale_missing")
    for _time in range(2):
        said = site.play(None, fails=True)
        assert "linear_attn.out_proj: scale_missing" in said and "config=" not in said
