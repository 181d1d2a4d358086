# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's side of a verification: it calls the module until the real job has ended."""

from __future__ import annotations

import hashlib

from faults.tiny_gguf import tiny_gguf

from ansible_collections.ironserve.llm.plugins.action.weights_verify import ActionModule
from ansible_collections.ironserve.llm.plugins.module_utils import _weights_verify
from ansible_collections.ironserve.llm.plugins.modules import weights_verify


def test_it_waits_for_the_job_and_gives_its_result(tmp_path, run_module, monkeypatch):
    monkeypatch.setattr(_weights_verify, "JOB_BYTES", 0)
    monkeypatch.setattr(_weights_verify, "LINGER_S", 0.0)
    raw = tiny_gguf()
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "one.gguf").write_bytes(raw)
    arguments = {
        "path": str(tmp_path / "w"),
        "format": "gguf",
        "manifest": [{"path": "one.gguf", "size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}],
    }
    calls = []

    def execute(module_args, task_vars):
        calls.append(module_args)
        return run_module(weights_verify, module_args)

    action = ActionModule.__new__(ActionModule)
    action._execute_module = execute
    result = action.follow("host", arguments, {})
    assert result["ok"] and result["hashed_bytes"] == len(raw) and "job" not in result
    assert len(calls) >= 2 and calls[0]["job"] == "" and len({call["job"] for call in calls[1:]}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
