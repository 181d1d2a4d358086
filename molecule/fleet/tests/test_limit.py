# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The site on a part of the fleet."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from fleet_lab import CARDS, ROOT, Lab


def test_a_run_limited_to_one_node_leaves_the_others_alone(lab: Lab) -> None:
    # With the gateway, which then knows the plan of one node only: the harder case.
    limit = "node1:gw"
    others = [name for name in lab.servers() if not name.startswith("node1-")]
    assert len(others) == CARDS * (len(lab.nodes) - 1)
    before = lab.servers()
    started = {node: [replica["State"]["StartedAt"] for replica in lab.replicas(node)] for node in lab.nodes}

    program = pathlib.Path(sys.executable).with_name("ansible-playbook")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
    command = [str(program), "site.yml", "-i", "inventories/lab", "--limit", limit]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:]
    recap = [line for line in result.stdout.splitlines() if "changed=" in line]
    assert recap and all("changed=0 " in line and "failed=0 " in line for line in recap), recap

    after = lab.servers()
    assert sorted(after) == sorted(before)
    assert {after[name]["status"] for name in after} == {"UP"}
    # Neither drained nor forgotten: no change of state was counted for them, and the gateway was not restarted.
    for name in others:
        assert after[name]["chkdown"] == before[name]["chkdown"], name
        assert int(after[name]["lastchg"]) >= int(before[name]["lastchg"]), name
        assert int(after[name]["stot"]) >= int(before[name]["stot"]), name
    assert {node: [replica["State"]["StartedAt"] for replica in lab.replicas(node)] for node in lab.nodes} == started
