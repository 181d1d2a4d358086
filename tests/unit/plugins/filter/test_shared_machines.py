# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filters as a play calls them."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.ironserve.llm.plugins.filter import plan_conflicts, shared_machines


def test_only_what_tells_machines_apart_is_asked_of_a_host():
    class Asked(dict):
        def __getitem__(self, key):
            assert key in shared_machines.KEYS
            return super().__getitem__(key)

    hostvars = {"a": Asked(ansible_host="192.0.2.1", secret="x"), "b": Asked(ansible_host="192.0.2.1"), "c": Asked()}
    found = shared_machines.FilterModule().filters()["shared_machines"](["a", "b", "c", "a", "d"], hostvars)
    assert found == {"a": ["a", "b"], "b": ["a", "b"]}


def test_what_is_no_plan_is_said():
    ask = plan_conflicts.FilterModule().filters()["plan_conflicts"]
    assert ask({"host": "a", "replicas": []}, [{"host": "b", "replicas": []}]) == []
    with pytest.raises(AnsibleFilterError, match="no plan of replica_plan: KeyError\\('replicas'\\)"):
        ask({"host": "a"}, [{"host": "b", "replicas": []}])
