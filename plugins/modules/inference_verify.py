#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_verify
short_description: Prove that LLM endpoints really infer
version_added: "0.1.0"
description:
  - Asks every endpoint the questions of a model's recipe and gives each a named verdict. Right answers come first, then
    speed, then whether the cards worked for it; wrong answers throw the figures away, because garbage is often the fastest.
  - A server that accepts and never answers is V(stalled), one that dies at its first request is V(dead), HTTP 200 with rubbish
    is V(garbage), one under its floor of tokens per second is V(slow).
  - Every run contains a fresh random code that the model must give back, so canned and cached answers are noticed.
  - Nothing on the host is changed. One call proves all endpoints of a host, at the same time if wanted.
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
    description: The module changes nothing, so it proves the same in check mode.
  diff_mode:
    support: none
    description: There is nothing to change.
options:
  endpoints:
    description: What to prove.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name shown in results, unique in the list.
        type: str
        required: true
      url:
        description: Where it answers, without a path, such as V(http://127.0.0.1:8001). One with a user, a password or a query is refused and not shown.
        type: str
        required: true
      api_key_file:
        description: File on the host that holds the API key, one line. Empty for no key.
        type: str
        default: ""
      container:
        description: The replica's container. It is needed for card use, and to say why a replica died. Empty for a gateway.
        type: str
        default: ""
      cards:
        description: The cards the replica holds, such as V(cpu:0).
        type: list
        elements: str
        default: []
      platform:
        description: The cards' platform, which decides how card use is sampled. Where it cannot be sampled it is unknown, and the verdict with it.
        type: str
        default: ""
  card_tools:
    description:
      - How the cards of other platforms than C(cpu) are read while the questions are asked. Without it, card use of such a platform
        is unknown, and nothing that is unknown is proved.
    type: dict
    default: {}
    suboptions:
      probe:
        description: Name of the collection's probe, V(ascend), V(hygon) or V(nvidia).
        type: str
        default: ""
      tools:
        description: The vendor's tools with the paths where each may lie, as in the platform's entry of the catalog.
        type: dict
        default: {}
      environment:
        description: Variables every call of a tool gets.
        type: dict
        default: {}
      timeout_s:
        description: Seconds after which a call of a tool counts as hung.
        type: float
        default: 30
      root:
        description: Directory that stands for the host's root, to read a host that is played.
        type: path
        default: /
      sysfs:
        description: Directory that stands for the host's /sys. Empty takes C(sys) under O(card_tools.root).
        type: path
        default: ""
  model:
    description: The served model name to ask for.
    type: str
    required: true
  acceptance:
    description:
      - The C(acceptance) block of the model's recipe, with the keys C(checks), C(not_applicable), C(floor_decode_tokens_per_s)
        (default 5), C(ttft_limit_s) (default 10), C(exact_pass_share) (default 1.0) and C(request) (members added to every
        request body).
      - Questions are C(exact), C(exact_set) (ten packaged exact questions and two codes, half of them Chinese), C(nonce_recall),
        C(quality) (with C(form), one of C(prose), C(code), C(json), C(table)), C(stream_equals_unary), C(multi_turn) (C(turns), in
        C(language) C(en) or C(zh)), C(tool_loop) (C(rounds)), C(system_message) (what only it says must be known), C(kept_connection) (C(times)
        questions over one connection, each with a code of its own), C(json_schema), C(stop), C(max_tokens), C(reasoning) and C(errors)
        (C(skip) leaves out C(unknown_model), C(bad_json), C(bad_key) or C(too_long)). At least one C(exact) or C(nonce_recall) is
        demanded.
      - Only when all of these are right, it goes on with C(speed), C(prefix_cache), C(cache_hit) (C(tokens), C(times)), C(long_context)
        (C(tokens) by the engine's own count, codes at C(depths) from 0 to 1), C(cancel) (C(streams), C(release_s)) and C(concurrency)
        (C(streams) at once for C(seconds)), after which the questions are asked once more.
        C(cache_hit) and C(long_context) may wait C(timeout_s) for a first token, whatever O(timeouts) says.
      - C(counters) reads what the engine counted meanwhile, answers of NaN logits and accepted drafts (C(acceptance_min),
        C(speculative) if there must be drafts); C(agreement) compares the exact answers of all endpoints (C(least), the share that must
        be equal). C(models), C(speed) and C(card_use) are always made.
      - C(prefix_cache) asks the same long prompt three times and wants the first token C(factor) (default 2) times sooner once the
        prompt's beginning is cached. It applies to endpoints with cards only; behind a gateway several caches may answer.
    type: dict
    required: true
  parallel:
    description: How many endpoints are proved at the same time. V(0) is all.
    type: int
    default: 0
  abreast:
    description:
      - How many questions one endpoint is asked at the same time. More than one makes sense where several replicas answer, so at a
        gateway. The order of the outcomes does not depend on it, and the answer whose speed is measured is asked for by itself.
    type: int
    default: 1
  max_num_seqs:
    description:
      - How many requests each endpoint runs at a time, the plan's C(max_num_seqs) of a replica, or the sum of them at a gateway. So many
        streams are cancelled by C(cancel) and ask in C(concurrency), unless the recipe has a number of its own (C(streams)).
      - With V(0) nobody knows. C(cancel) then takes one, and C(concurrency) without C(streams) could not be told.
    type: int
    default: 0
  fail_on_verdict:
    description: Whether the task fails when any verdict is not V(ok).
    type: bool
    default: true
  timeouts:
    description: How long to wait.
    type: dict
    default: {}
    suboptions:
      first_token_s:
        description: Seconds until the first token, and between tokens, after which an endpoint counts as stalled.
        type: float
        default: 60
      request_s:
        description: Seconds for one request.
        type: float
        default: 120
      total_s:
        description: Seconds for the whole proof of one endpoint.
        type: float
        default: 600
  extra_checks:
    description: Checks of the doors, for a gateway.
    type: dict
    default: {}
    suboptions:
      bad_key:
        description: Whether a wrong key, and no key, must get HTTP 401.
        type: bool
        default: false
      closed_paths:
        description: Paths that must get HTTP 404 even with the right key.
        type: list
        elements: str
        default: []
"""

EXAMPLES = r"""
- name: Prove two replicas on their own ports
  ironserve.llm.inference_verify:
    model: smollm2-135m
    acceptance: "{{ catalog_out.model.acceptance }}"
    endpoints:
      - name: node1-c0
        url: http://127.0.0.1:8001
        api_key_file: /etc/ironserve/keys/engine.key
        container: ironserve-c0
        cards: ["cpu:0"]
        platform: cpu
      - name: node1-c1
        url: http://127.0.0.1:8002
        api_key_file: /etc/ironserve/keys/engine.key
        container: ironserve-c1
        cards: ["cpu:1"]
        platform: cpu

- name: Prove the way through the gateway, and that its doors are closed
  ironserve.llm.inference_verify:
    model: smollm2-135m
    acceptance: "{{ catalog_out.model.acceptance }}"
    endpoints:
      - name: gateway
        url: http://127.0.0.1:8000
        api_key_file: /etc/ironserve/keys/client.key
    extra_checks:
      bad_key: true
      closed_paths: [/invocations, /metrics]
"""

RETURN = r"""
ok:
  description: Whether every endpoint has the verdict V(ok).
  returned: always
  type: bool
summary:
  description: Lines of a table for people, with evidence and the next step below each endpoint that failed.
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
    verdict:
      description: One of V(ok), V(stalled), V(slow), V(saturated), V(garbage), V(partial), V(not_loaded), V(dead), V(unknown).
      type: str
    evidence:
      description: Lines that show why.
      type: list
      elements: str
    next_step:
      description: What a person should do; empty when the verdict is V(ok).
      type: str
    checks:
      description: Every check with C(check), C(id), C(status), C(detail), C(sign), C(language), C(figure) and C(unit).
      type: list
      elements: dict
    ttft_ms:
      description: Milliseconds to the first token. Null unless the verdict is V(ok).
      type: float
    decode_tokens_per_s:
      description: Tokens per second after the first, counted by usage. Null unless the verdict is V(ok).
      type: float
    card_use_pct:
      description: Use of the replica's cards during the proof, in percent of all of them. Null when unknown.
      type: float
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _http
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint, check_endpoints, unshown
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._verify import (
    Limits,
    prove_all,
    read_acceptance,
    table,
)
from ansible_collections.ironserve.llm.plugins.module_utils._words import sendable


def endpoint_of(item: dict, tools: dict) -> Endpoint:
    """Make an Endpoint from one entry of the option."""
    return Endpoint(item["name"], item["url"], item["api_key_file"], item["container"], tuple(item["cards"]), item["platform"], tools)


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
            "card_tools": {
                "type": "dict",
                "default": {},
                "options": {
                    "probe": {"type": "str", "default": ""},
                    "tools": {"type": "dict", "default": {}},
                    "environment": {"type": "dict", "default": {}},
                    "timeout_s": {"type": "float", "default": 30},
                    "root": {"type": "path", "default": "/"},
                    "sysfs": {"type": "path", "default": ""},
                },
            },
            "model": {"type": "str", "required": True},
            "acceptance": {"type": "dict", "required": True},
            "parallel": {"type": "int", "default": 0},
            "abreast": {"type": "int", "default": 1},
            "max_num_seqs": {"type": "int", "default": 0},
            "fail_on_verdict": {"type": "bool", "default": True},
            "timeouts": {
                "type": "dict",
                "default": {},
                "options": {
                    "first_token_s": {"type": "float", "default": 60, "no_log": False},
                    "request_s": {"type": "float", "default": 120},
                    "total_s": {"type": "float", "default": 600},
                },
            },
            "extra_checks": {
                "type": "dict",
                "default": {},
                "options": {
                    "bad_key": {"type": "bool", "default": False, "no_log": False},
                    "closed_paths": {"type": "list", "elements": "str", "default": []},
                },
            },
        },
        supports_check_mode=True,
    )
    options = module.params
    try:
        if options["parallel"] < 0:
            raise LLMError("parallel must be 0 (all at once) or more, not {0}".format(options["parallel"]))
        if options["abreast"] < 1:
            raise LLMError("abreast must be 1 or more, not {0}".format(options["abreast"]))
        if options["max_num_seqs"] < 0:
            raise LLMError("max_num_seqs must be 0 (not known) or more, not {0}".format(options["max_num_seqs"]))
        for name, seconds in options["timeouts"].items():
            if not 0 < seconds <= _http.LONGEST_S:
                raise LLMError("timeouts.{0} must be above 0 s and at most {1:g} s, not {2:g}".format(name, _http.LONGEST_S, seconds))
        endpoints = [endpoint_of(item, options["card_tools"]) for item in options["endpoints"]]
        module.no_log_values.update(unshown(endpoints))
        check_endpoints(endpoints)
        proofs = prove_all(
            endpoints,
            options["model"],
            read_acceptance(options["acceptance"]),
            Limits(**options["timeouts"]),
            options["parallel"],
            options["extra_checks"]["bad_key"],
            tuple(options["extra_checks"]["closed_paths"]),
            options["abreast"],
            options["max_num_seqs"],
        )
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    # No endpoint proves nothing, so an empty list is not ok.
    good = bool(proofs) and all(proof.ok for proof in proofs)
    result = sendable({"results": [proof.as_dict() for proof in proofs], "ok": good, "summary": table(proofs)})
    if not good and options["fail_on_verdict"]:
        bad = [
            "{0} is {1} ({2})".format(row["name"], row["verdict"], "; ".join(row["evidence"][:2]))
            for row, proof in zip(result["results"], proofs)
            if not proof.ok
        ]
        module.fail_json(msg="not proved: {0}".format(" | ".join(bad) or "no endpoint was given"), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
