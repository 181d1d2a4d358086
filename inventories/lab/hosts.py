#!/usr/bin/env python3
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Inventory of the lab that runs now: the nodes, and how to reach them. Everything else about it is in group_vars.

Which nodes there are and on which addresses is decided by ``make lab``, which writes it to .cache/lab/live/lab.json.
"""

from __future__ import annotations

import json
import pathlib
import sys

STATE = pathlib.Path(__file__).resolve().parents[2] / ".cache/lab/live/lab.json"


def inventory(state: dict) -> dict:
    """The form that Ansible asks of an inventory script. A played host is reached as the node that it lies on."""

    def reach(node: str) -> dict:
        return {
            "ansible_host": state["addresses"][node],
            "ansible_user": state["user"],
            "ansible_ssh_private_key_file": state["key"],
            "ansible_ssh_common_args": state["ssh_arguments"],
            "lab_image": state["image"],
        }

    played = state.get("played", {})
    return {
        "all": {"children": ["llm_gateway", "llm_nodes"]},
        "llm_gateway": {"hosts": state["gateway"]},
        "llm_nodes": {"hosts": [*state["nodes"], *played]},
        "_meta": {
            "hostvars": {
                **{name: reach(name) for name in state["addresses"]},
                **{name: {**reach(name), **state.get("engine", {})} for name in state["nodes"]},
                **{name: {**reach(host["node"]), **host["vars"]} for name, host in played.items()},
            }
        },
    }


def main() -> int:
    try:
        state = json.loads(STATE.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print(f"the lab is not up ({STATE} does not exist): run make lab", file=sys.stderr)
        return 1
    print(json.dumps(inventory(state), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
