# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role acceptance prints at the end, with a real ansible-playbook: figures in columns, and a command that can be copied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
COLLECTIONS = ROOT.parents[2] if ROOT.parts[-3:] == ("ansible_collections", "ironserve", "llm") else ROOT / "collections"
pytestmark = pytest.mark.slow


def proof(name: str, ttft: float) -> dict:
    return {"name": name, "verdict": "ok", "ttft_ms": ttft, "decode_tokens_per_s": 38.25, "card_use_pct": 97.1}


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("summary")
    variables = {
        "ansible_python_interpreter": sys.executable,
        "catalog_out": {"model": {"served_names": ["smollm2-135m"]}},
        "__proofs": {"proofs": [proof("local-c0", 95.5), proof("local-c1", 1204.0)], "plan": {}},
        "acceptance_node_group": "all",
        "acceptance_client_key_file": "/etc/ironserve/keys/client-default.key",
        "acceptance_gateway_url": "http://127.0.0.1:8000",
        "__acceptance_gateway": {"stat": {"exists": True}},
        "__acceptance_proof": {"summary": ["replica  verdict", "gateway  ok"]},
        "__acceptance_release": {"id": "abcd"},
    }
    tasks = [
        {"ansible.builtin.set_fact": {"replica_out": "{{ __proofs }}"}},
        {"ansible.builtin.import_role": {"name": "ironserve.llm.acceptance", "tasks_from": "summary"}},
    ]
    (folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "vars": variables, "tasks": tasks}]))
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "one,", "-c", "local", "play.json"],
        cwd=folder,
        env=dict(
            os.environ,
            HOME=str(folder),
            ANSIBLE_COLLECTIONS_PATH=str(COLLECTIONS),
            ANSIBLE_NOCOLOR="1",
            # As the shipped ansible.cfg has it.
            ANSIBLE_CALLBACK_RESULT_FORMAT="yaml",
        ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_is_one_line_that_a_shell_takes_as_it_stands(said, tmp_path):
    (line,) = [line.strip() for line in said.splitlines() if "curl" in line]
    # The shell runs it with stand-ins in place of the key and of curl, which prints what it was given.
    (tmp_path / "curl").write_text('#!/bin/sh\ncat\nprintf "\\n%s" "$@"\n')
    (tmp_path / "curl").chmod(0o755)
    (tmp_path / "key").write_text("sk-right")
    line = line.replace("/etc/ironserve/keys/client-default.key", str(tmp_path / "key"))
    path = f"{tmp_path}:{os.environ['PATH']}"
    heard = subprocess.run(["sh", "-c", line], env={"PATH": path}, capture_output=True, text=True, check=True).stdout.splitlines()
    assert heard[0] == "Authorization: Bearer sk-right"
    assert "http://127.0.0.1:8000/v1/chat/completions" in heard and "Content-Type: application/json" in heard
    assert json.loads(heard[-1]) == {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
        "max_tokens": 64,
    }


def test_figures_of_replicas_stand_below_each_other(said):
    first, second = [line for line in said.splitlines() if "local-c" in line]
    assert first.index("ms to the first token") == second.index("ms to the first token")
    assert "95.5 ms" in first and "1204.0 ms" in second and "38.25 tokens/s" in first and "97.1 %" in second
