# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whoever proves replicas on their own ports sees their cards work too: a proof without is unknown on every platform but cpu."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[4]
MODULE = "ironserve.llm.inference_verify"


def tasks(node):
    """Every task in a file, whatever it is nested in."""
    if isinstance(node, list):
        return [found for item in node for found in tasks(item)]
    if not isinstance(node, dict):
        return []
    return [node] + [found for key in ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always") for found in tasks(node.get(key))]


def proofs(folder):
    files = sorted((ROOT / folder).glob("*.yml"))
    assert files
    return [
        (path.name, task[MODULE]) for path in files for task in tasks(yaml.safe_load(path.read_text(encoding="utf-8"))) if MODULE in task
    ]


def test_every_proof_of_replicas_watches_their_cards_alike():
    found = proofs("roles/replica/tasks")
    assert [name for name, _arguments in found] == ["proof.yml", "verify.yml"]
    assert {arguments["card_tools"] for _name, arguments in found} == {"{{ __replica_card_tools }}"}
    options = ("acceptance", "fail_on_verdict", "model", "parallel")
    assert len({tuple(arguments[name] for name in options) for _name, arguments in found}) == 1


def test_every_start_after_a_stop_waits_for_free_cards():
    """What makes containers anew, or brings them back, can see the cards; without it the wait is left out in silence."""
    found = []
    for path in sorted((ROOT / "roles/replica/tasks").glob("*.yml")):
        for task in tasks(yaml.safe_load(path.read_text(encoding="utf-8"))):
            arguments = task.get("ironserve.llm.replica_containers")
            if arguments and not task.get("check_mode") and arguments.get("state", "present") in ("present", "reverted"):
                found.append((path.name, *(arguments.get(name) for name in ("card_tools", "idle_mib", "free_timeout_s"))))
    limit = "{{ replica_free_timeout_s if catalog_out.platform.card.idle_mib is defined else 0 }}"
    wanted = ("{{ __replica_card_tools }}", "{{ catalog_out.platform.card.idle_mib | default(0) }}", limit)
    assert found == [("change.yml", *wanted), ("revert.yml", *wanted)]


def test_playbooks_prove_through_the_role():
    assert proofs("playbooks") == []
