# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan of the first recipe, printed from recorded card facts while its hosts cannot be reached."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def printed() -> str:
    """What playbooks/plan.yml prints for inventories/k100, as one line of single spaces."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/plan.yml", "-i", "inventories/k100"]
    # An ssh that cannot connect: a task that needs the host fails the test instead of waiting for a network.
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_SSH_EXECUTABLE": "/bin/false",
        "ANSIBLE_NOCOLOR": "1",
    }
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stdout + result.stderr
    return re.sub(r"\s+", " ", result.stdout)


def test_every_card_gets_one_replica(printed: str) -> None:
    rows = re.findall(r"k100-01-c(\d) (\d) \(0000:[0-9a-f:.]+\) 127\.0\.0\.1:(\d+) (\d) (\d+) x (\d+) ironserve-c(\d)", printed)
    assert rows == [(str(card), str(card), str(8001 + card), "1", "131072", "4", str(card)) for card in range(4)]


def test_the_recipe_decides_the_rest(printed: str) -> None:
    assert "W8A8" in printed
    assert "--tensor-parallel-size 1" in printed
    assert "--enable-prefix-caching" in printed and "--mamba-cache-mode align" in printed
    assert "speculative-config" not in printed


def test_a_forbidden_pair_is_off_with_its_reason(printed: str) -> None:
    assert re.search(r"off mtp: mtp and prefix_caching forbidden together \(.{40,}?\)", printed)


def test_the_gateway_is_planned_too(printed: str) -> None:
    assert re.search(r"\b8000\b", printed.replace("--port 8000", ""))


def test_nothing_changes(printed: str) -> None:
    assert re.search(r"k100-01 : ok=\d+ changed=0 unreachable=0 failed=0", printed)
