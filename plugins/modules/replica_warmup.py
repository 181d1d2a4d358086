#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: replica_warmup
short_description: Wait until replicas really generate
version_added: "0.1.0"
description:
  - Waits until each replica answers its health path, then makes real warm-up requests. Health alone means little, an engine
    may say 200 and die at its first request.
  - A container that ends meanwhile is noticed within 10 seconds. The error says what its end means, as far as O(messages) knows, and shows
    its last 50 log lines, keys and tokens hidden.
  - A container that uses no CPU time and whose memory does not change stands still, and is given up after O(stall_s) seconds. Its last log
    lines are shown. One that works is waited for until the deadline, however long its log is silent.
  - What an engine says of its memory at its start is held against the plan.
  - A warm replica costs well below a second. Nothing on the host is changed.
author:
  - ironserve.llm contributors (@ironserve)
requirements:
  - requests
  - docker >= 5.0.3, for endpoints that name a container
attributes:
  check_mode:
    support: full
    description: The module changes nothing, so it does the same in check mode.
  diff_mode:
    support: none
    description: There is nothing to change.
options:
  endpoints:
    description: What to warm up.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name shown in results, unique in the list.
        type: str
        required: true
      url:
        description: Where it answers, without a path, such as V(http://127.0.0.1:8001).
        type: str
        required: true
      api_key_file:
        description: File on the host that holds the API key, one line. Empty for no key.
        type: str
        default: ""
      container:
        description: The replica's container, to notice its death. Empty when there is none.
        type: str
        default: ""
      cards:
        description: The cards the replica holds. Not used, taken so that the same list serves M(ironserve.llm.inference_verify).
        type: list
        elements: str
        default: []
      platform:
        description: The cards' platform. Not used, taken so that the same list serves M(ironserve.llm.inference_verify).
        type: str
        default: ""
  model:
    description: The served model name to ask for.
    type: str
    required: true
  requests:
    description: How many warm-up requests each replica gets, one after the other.
    type: int
    default: 1
  timeout_s:
    description: Seconds within which every replica must have generated. The default covers a big model from a cold disk.
    type: float
    default: 2700
  stall_s:
    description:
      - Seconds without a sign of life (1 percent of a core, or 16 MiB of memory that came or went) after which a container is given up.
      - V(0) waits for the deadline. Needs a container.
    type: float
    default: 600
  health_path:
    description: Path that answers 200 when the engine has loaded.
    type: str
    default: /health
  messages:
    description:
      - What an engine's last words mean, by name, with C(pattern), C(cause) and C(fix), as M(ironserve.llm.catalog_info) returns them.
    type: dict
    default: {}
  fits:
    description: What the plan expects of each endpoint's memory, by its name, the C(fit) of the plan's replicas.
    type: dict
    default: {}
  max_model_len:
    description: The longest context in tokens, with O(fits).
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Warm up a replica
  ironserve.llm.replica_warmup:
    model: smollm2-135m
    endpoints:
      - name: node1-c0
        url: http://127.0.0.1:8001
        api_key_file: /etc/ironserve/keys/engine.key
        container: ironserve-c0
"""

RETURN = r"""
results:
  description: One entry per endpoint, in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The endpoint's name.
      type: str
    url:
      description: The endpoint's address.
      type: str
    health_s:
      description: Seconds from the start of this task until the health path answered 200. Null when it never did.
      type: float
    first_token_s:
      description: Seconds from the start of this task until the first token. Null when there was none.
      type: float
    memory:
      description:
        - What the engine said of its memory, held against O(fits). The first word after the name is V(ok), V(differs) (by more than 2 percent),
          V(too small) (not even one request of full length fits) or V(measured) (the overhead that was assumed, measured).
      type: list
      elements: str
    error:
      description: What went wrong, with what the container's last log lines mean, and these, if it ended. Empty when the replica generates.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._warmup import Knowledge, warm_all
from ansible_collections.ironserve.llm.plugins.module_utils._words import sendable


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "endpoints": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "url": {"type": "str", "required": True},
                    "api_key_file": {"type": "str", "default": "", "no_log": False},
                    "container": {"type": "str", "default": ""},
                    "cards": {"type": "list", "elements": "str", "default": []},
                    "platform": {"type": "str", "default": ""},
                },
            },
            "model": {"type": "str", "required": True},
            "requests": {"type": "int", "default": 1},
            "timeout_s": {"type": "float", "default": 2700},
            "stall_s": {"type": "float", "default": 600},
            "health_path": {"type": "str", "default": "/health"},
            "messages": {"type": "dict", "default": {}},
            "fits": {"type": "dict", "default": {}},
            "max_model_len": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    options = module.params
    try:
        if options["requests"] < 1 or options["timeout_s"] <= 0 or options["stall_s"] < 0:
            raise LLMError("requests must be 1 or more, timeout_s above 0, and stall_s 0 or more")
        endpoints = [Endpoint(item["name"], item["url"], item["api_key_file"], item["container"]) for item in options["endpoints"]]
        knowledge = Knowledge(options["messages"], options["fits"], options["max_model_len"], options["stall_s"])
        found = warm_all(endpoints, options["model"], options["requests"], options["timeout_s"], options["health_path"], knowledge)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    results = sendable([warmth.as_dict() for warmth in found])
    errors = [row["error"] for row in results if row["error"]]
    if errors:
        module.fail_json(msg="\n".join(errors), results=results)
    module.exit_json(changed=False, results=results)


if __name__ == "__main__":
    main()
