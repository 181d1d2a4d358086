# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make the collection importable here as it is for the unit tests, and run playbooks of this directory."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
runpy.run_path(str(ROOT / "tests" / "unit" / "conftest.py"), run_name="long_conftest")


@pytest.fixture(scope="session")
def play():
    """A function that runs a playbook of this directory with every directory below ``folder``."""

    def run(book: str, folder: Path, engine: str, **more: object) -> None:
        options = {
            "long_dir": str(folder),
            "long_tests": str(ROOT / "tests"),
            "llm_state_dir": str(folder / "state"),
            "llm_config_dir": str(folder / "etc"),
            "llm_run_dir": str(folder / "run"),
            "accelerator_cpu_cards": 1,
            "replica_min_count": 1,
            **more,
        }
        argv = [str(Path(sys.executable).with_name("ansible-playbook")), str(Path(__file__).with_name(book))]
        argv += ["-i", str(ROOT / "inventories" / "local"), "-e", "@" + str(ROOT / "inventories" / "engines" / (engine + ".yml"))]
        argv += ["-e", json.dumps(options)]
        environment = dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"))
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

    return run
