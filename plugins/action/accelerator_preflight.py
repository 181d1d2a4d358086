# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ironserve.llm.accelerator_preflight: catalog and wishes are the controller's, so the judgement is made there."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.ironserve.llm.plugins.module_utils import _preflight
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, UNKNOWN, Check
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._host_engine import ENGINE_ROOT

#: How Ansible words a module that broke, instead of one that failed with a message of its own.
BROKEN = ("MODULE FAILURE", "Module failed", "Task failed: Module failed", "Module result deserialization failed")


def missing_result(name: str, result: dict[str, Any]) -> Check:
    """What the result of a module that gave none says: the host is away, the module broke, or it said why it failed."""
    message = " ".join(str(result.get("msg") or "it said nothing").split())[:400]
    if result.get("unreachable"):
        return Check("host", UNKNOWN, "not reached: {0}".format(message), "see that the host is on and that Ansible may log in")
    if message.startswith(BROKEN) or not result.get("msg"):
        detail = str(result.get("module_stderr") or result.get("exception") or message).strip().splitlines()[-1][:200]
        return Check(name, UNKNOWN, "the module broke: {0}".format(detail), "report it, with -vvv")
    # Errors of this collection say what to do.
    return Check(name, FAIL, message)


def judge(args: dict[str, Any]) -> list[Check]:
    """Every check of one host, from what was read there and what the controller knows."""
    probed, host, catalog = args["probe_result"], args["host_result"], args["catalog"]
    checks = []
    found: dict[str, Any] = {}
    if "cards" in probed:
        found = probed
        checks += [Check(**item) for item in probed["checks"]]
    else:
        checks.append(missing_result("probe", probed))
        if probed.get("unreachable"):
            return checks
    try:
        choice = _preflight.choose(
            catalog, args["settings"], args["environment"], args["enhancements"], args["allow_forbidden"], args["image"]
        )
    except LLMError as exc:
        checks.append(Check("settings", FAIL, str(exc)))
        choice = _preflight.choose(dict(catalog, model={}, weights={}))
    card = choice.platform["card"]
    if "cards" in probed:
        products, architectures = (
            card.get(name, []) if args["expected_" + name] is None else args["expected_" + name] for name in ("products", "architectures")
        )
        checks += _preflight.card_checks(found, choice, products, architectures, args["expected_versions"])
    if "kernel" in host:
        space = {path: int(mib) for path, mib in args["space_mib"].items()}
        if not host["image"]["present"]:
            space[host["engine"]["root_dir"] or ENGINE_ROOT] = args["image_mib"]
        checks += _preflight.host_checks(host, choice, choice.platform.get("host", {}), space, args["address"])
    else:
        checks.append(missing_result("host", host))
    return checks + _preflight.wish_checks(choice, found, catalog.get("compatibility", {}))


class ActionModule(ActionBase):
    """Judge what was read of a host, without a round trip to it."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; see its documentation."""
        super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "probe_result": {"type": "dict", "required": True},
                "host_result": {"type": "dict", "required": True},
                "catalog": {"type": "dict", "required": True},
                "settings": {"type": "dict", "default": {}},
                "environment": {"type": "dict", "default": {}},
                "enhancements": {"type": "dict", "default": {}},
                "allow_forbidden": {"type": "list", "elements": "str", "default": []},
                "image": {"type": "dict", "default": {}},
                "expected_products": {"type": "list", "elements": "str"},
                "expected_architectures": {"type": "list", "elements": "str"},
                "expected_versions": {"type": "dict", "default": {}},
                "space_mib": {"type": "dict", "default": {}},
                "image_mib": {"type": "int", "default": 0},
                "address": {"type": "str", "default": ""},
            }
        )
        try:
            checks = judge(args)
        except LLMError as exc:
            raise AnsibleActionFail(str(exc)) from exc
        return {
            "changed": False,
            "checks": [check.as_dict() for check in checks],
            "lines": _preflight.lines(checks),
            "status": _preflight.status(checks),
            "ok": _preflight.status(checks) == _preflight.OK,
        }
