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
extends_documentation_fragment:
  - ironserve.llm.attributes
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
  prompt_tokens:
    description:
      - Lengths of prompts, about, in tokens, that are asked in rounds once the replica generates. Empty makes no rounds.
      - A round asks each length alone, then the shortest 2, 4 and so on up to O(max_num_seqs) at once, then all lengths mixed. No prompt
        is ever sent twice, so that no cache answers for a kernel. Lengths above half of O(max_model_len) are left out.
    type: list
    elements: int
    default: []
  max_num_seqs:
    description: Most sequences at once in a round; what the engine was started with.
    type: int
    default: 1
  rounds:
    description: Most rounds. They end when two in a row agree in time within 25 percent.
    type: int
    default: 6
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
    description: The longest context in tokens, for O(fits) and O(prompt_tokens); V(0) where nobody knows.
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
lines:
  description: What the rounds came to, for a person, one line for each endpoint that was asked in rounds.
  returned: always
  type: list
  elements: str
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
    cold_ttft_s:
      description: Time to first token of the very first request, seconds. Null when there was none.
      type: float
    warm_ttft_s:
      description: Time to first token of the shortest prompt alone in the last round, seconds. Null without rounds.
      type: float
    rounds_s:
      description: What each round took, seconds.
      type: list
      elements: float
    steady:
      description: Whether the last two rounds agree in time. Null without rounds.
      type: bool
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

from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint, check_endpoints, unshown
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._warmup import Knowledge, Sweep, warm_all
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
            "prompt_tokens": {"type": "list", "elements": "int", "default": [], "no_log": False},
            "max_num_seqs": {"type": "int", "default": 1},
            "rounds": {"type": "int", "default": 6},
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
        if options["timeout_s"] <= 0 or options["stall_s"] < 0:
            raise LLMError("timeout_s must be above 0, and stall_s 0 or more")
        if any(length < 1 for length in options["prompt_tokens"]) or options["max_num_seqs"] < 1 or options["rounds"] < 2:
            raise LLMError("prompt_tokens and max_num_seqs must be 1 or more, and rounds 2 or more")
        endpoints = [Endpoint(item["name"], item["url"], item["api_key_file"], item["container"]) for item in options["endpoints"]]
        module.no_log_values.update(unshown(endpoints))
        check_endpoints(endpoints)
        knowledge = Knowledge(options["messages"], options["fits"], options["max_model_len"], options["stall_s"])
        sweep = Sweep(options["prompt_tokens"], options["max_num_seqs"], options["rounds"])
        found = warm_all(endpoints, options["model"], sweep, options["timeout_s"], options["health_path"], knowledge)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    results = sendable([warmth.as_dict() for warmth in found])
    lines = [line for line in sendable([warmth.line() for warmth in found]) if line]
    errors = [row["error"] for row in results if row["error"]]
    if errors:
        module.fail_json(msg="\n".join(errors), results=results, lines=lines)
    module.exit_json(changed=False, results=results, lines=lines)


if __name__ == "__main__":
    main()
