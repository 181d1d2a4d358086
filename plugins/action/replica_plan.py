# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ironserve.llm.replica_plan: everything it computes with is there."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._plan import PlanInput, make_plan, render


class ActionModule(ActionBase):
    """Compute a host's plan without a round trip to it."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; see its documentation."""
        super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "host": {"type": "str", "required": True},
                "address": {"type": "str", "default": "127.0.0.1"},
                "catalog": {"type": "dict", "required": True},
                "cards": {"type": "list", "elements": "dict", "required": True},
                "device_nodes": {"type": "dict", "default": {}},
                "image": {"type": "str", "required": True},
                "weights_path": {"type": "path", "required": True},
                "weights_id": {"type": "str", "default": ""},
                "weights_config": {"type": "path", "default": ""},
                "weights_config_id": {"type": "str", "default": ""},
                "weights_found": {"type": "dict", "default": {}},
                "key_file": {"type": "path", "required": True, "no_log": False},
                "key_id": {"type": "str", "default": "", "no_log": False},
                "cache_dir": {"type": "path", "required": True},
                "files_dir": {"type": "path", "default": "/var/lib/ironserve/files"},
                "port_base": {"type": "int", "default": 8001},
                "uid": {"type": "int", "default": 64064},
                "network": {"type": "str", "default": "ironserve"},
                "settings": {"type": "dict", "default": {}},
                "environment": {"type": "dict", "default": {}},
                "enhancements": {"type": "dict", "default": {}},
                "allow_forbidden": {"type": "list", "elements": "str", "default": []},
                "count": {"type": "int", "default": 0},
                "min_count": {"type": "int", "default": 1},
                "allow_degraded": {"type": "bool", "default": False},
                "aliases": {"type": "list", "elements": "str", "default": []},
                "engine_version": {"type": "str", "default": ""},
                "card_groups": {"type": "list", "elements": "list", "default": []},
            }
        )
        try:
            plan = make_plan(PlanInput(**args))
        except LLMError as exc:
            raise AnsibleActionFail(str(exc)) from exc
        return {"changed": False, "plan": plan, "lines": render(plan)}
