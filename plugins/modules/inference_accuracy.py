#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_accuracy
short_description: Score LLM endpoints on word problems and hold the score against the recorded one
version_added: "0.1.0"
description:
  - Asks every endpoint a set of word problems in the format of GSM8K, finds the number in each answer, and compares the score with the one
    that was recorded for this model. A quantization or an engine that lost some of the model's mind shows here, while it still answers simple
    questions.
  - A problem that gets no answer at all (an error, a timeout) makes the probe fail, whatever the score is.
  - Nothing on the host is changed.
author:
  - ironserve.llm contributors (@ironserve)
requirements:
  - Linux
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    support: partial
    description: What is done in check mode.
    details: Asking is load on what may be in use, so in check mode nothing is sent and nothing is judged.
  diff_mode:
    support: none
    description: There is nothing to change.
options:
  endpoints:
    description: What is asked, one after the other.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name shown in results, unique in the list.
        type: str
        required: true
      url:
        description: Where it answers, such as V(http://127.0.0.1:8001) or an https address.
        type: str
        required: true
      api_key_file:
        description: File on the host that holds the API key, one line. Empty for no key.
        type: str
        default: ""
      ca_file:
        description: Certificates that are trusted for an https address, instead of the system's.
        type: str
        default: ""
  model:
    description: The served model name to ask for.
    type: str
    required: true
  path:
    description:
      - File on the host with the problems, one JSON object a line with C(question), C(answer) (which ends in C(####) and a number) and, if it is
        not V(en), C(language) V(zh). GSM8K's own files are like this.
    type: path
  problems:
    description: The same as text, instead of O(path).
    type: str
    default: ""
  limit:
    description: How many of the problems are asked, from the first. V(0) is all.
    type: int
    default: 0
  recorded:
    description: The share of right answers that was recorded for this model, from V(0) to V(1). Without it the score is told and not judged.
    type: float
  tolerance:
    description: How far below O(recorded) the score may be, a share from V(0) to V(1).
    type: float
    default: 0.05
  max_tokens:
    description: Length at which an answer is cut.
    type: int
    default: 512
  concurrency:
    description: How many problems are asked at a time.
    type: int
    default: 4
  request:
    description: Members added to every request body, such as C(chat_template_kwargs).
    type: dict
    default: {}
  timeout_s:
    description: Seconds for one answer.
    type: float
    default: 600
  fail_on_score:
    description: Whether the task fails when a score is too low or could not be found out.
    type: bool
    default: true
seealso:
  - module: ironserve.llm.acceptance_report
  - module: ironserve.llm.inference_verify
"""

EXAMPLES = r"""
- name: Is the model still what it was
  ironserve.llm.inference_accuracy:
    model: qwen3.6-35b-a3b
    path: /srv/gsm8k/test.jsonl
    limit: 200
    recorded: 0.955
    tolerance: 0.02
    concurrency: 16
    endpoints:
      - {name: node1-c0, url: "http://10.0.0.11:8001", api_key_file: /etc/ironserve/keys/engine.key}
"""

RETURN = r"""
ok:
  description: Whether every endpoint scored well enough. Null when there is nothing to hold the scores against.
  returned: always
  type: bool
results:
  description: One entry per endpoint, in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The endpoint's name.
      type: str
    score:
      description: Share of right answers. Null when not every problem was answered.
      type: float
    right:
      description: Right answers.
      type: int
    count:
      description: Problems asked.
      type: int
    recorded:
      description: The O(recorded) share that the score was held against, or null.
      type: float
    tolerance:
      description: How far below it the score might be.
      type: float
    interval:
      description: The share such a sample stands for, 95 % sure, from and to.
      type: list
      elements: float
    by_language:
      description: Share of right answers by language.
      type: dict
    wrong:
      description: Wrong answers with C(question), C(expected), C(found) and the end of what was said (C(said)).
      type: list
      elements: dict
    errors:
      description: Problems that got no answer, and why.
      type: list
      elements: str
    ok:
      description: Whether this endpoint scored well enough, or null.
      type: bool
    why:
      description: The comparison in words.
      type: str
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _accuracy, _http, _prompts, _stream
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint, check_endpoints, unshown
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._words import sendable

PATH = "/v1/chat/completions"

#: What the option ``request`` could only break.
RESERVED = {"messages", "model", "stream", "max_tokens"}


def problems_of(options: dict[str, Any]) -> list[_accuracy.Problem]:
    """The problems that the options name."""
    if bool(options["path"]) == bool(options["problems"]):
        raise LLMError("either path or problems must be given")
    text = _prompts.read_file(options["path"], "path") if options["path"] else options["problems"]
    found = _accuracy.read(text, options["path"] or "problems")
    return found[: options["limit"]] if options["limit"] else found


def ask(endpoint: dict[str, Any], options: dict[str, Any], problems: list[_accuracy.Problem]) -> list[tuple[str, str]]:
    """Ask one endpoint everything; returns text and error of each answer."""
    target = _stream.target(endpoint["url"], PATH, _http.read_key(endpoint["api_key_file"]), endpoint["ca_file"])
    bodies = []
    for problem in problems:
        body = {
            "model": options["model"],
            "messages": [{"role": "user", "content": problem.prompt()}],
            "max_tokens": options["max_tokens"],
            "temperature": 0,
            "stream": True,
        }
        body.update(options["request"])
        bodies.append(json.dumps(body, ensure_ascii=False).encode("utf-8"))
    seconds = options["timeout_s"]
    limits = _stream.Limits(silence_s=seconds, request_s=seconds, run_s=seconds * len(problems))
    outcome = _stream.Client(limits).run([_stream.Lane(target, bodies, options["concurrency"])])
    return [(answer.content, answer.error) for answer in outcome.answers[0]]


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
                    "ca_file": {"type": "str", "default": ""},
                },
            },
            "model": {"type": "str", "required": True},
            "path": {"type": "path"},
            "problems": {"type": "str", "default": ""},
            "limit": {"type": "int", "default": 0},
            "recorded": {"type": "float"},
            "tolerance": {"type": "float", "default": 0.05},
            "max_tokens": {"type": "int", "default": 512, "no_log": False},
            "concurrency": {"type": "int", "default": 4},
            "request": {"type": "dict", "default": {}},
            "timeout_s": {"type": "float", "default": 600},
            "fail_on_score": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    options = module.params
    endpoints = [Endpoint(item["name"], item["url"]) for item in options["endpoints"]]
    module.no_log_values |= unshown(endpoints)
    results = []
    try:
        for name, least in (("concurrency", 1), ("max_tokens", 1), ("limit", 0), ("timeout_s", 0.001), ("tolerance", 0)):
            # Not the other way round: what is no number (NaN) is not less, either.
            if not options[name] >= least:
                raise LLMError("{0} must be {1:g} or more, not {2:g}".format(name, least, options[name]))
        if options["recorded"] is not None and not 0 <= options["recorded"] <= 1:
            raise LLMError("recorded is a share from 0 to 1, not {0:g}".format(options["recorded"]))
        if options["tolerance"] > 1:
            raise LLMError("tolerance is a share from 0 to 1, not {0:g}: 2 % is 0.02".format(options["tolerance"]))
        if options["timeout_s"] > _http.LONGEST_S:
            raise LLMError("timeout_s must be at most {0:g} s, not {1:g}".format(_http.LONGEST_S, options["timeout_s"]))
        if not options["endpoints"]:
            raise LLMError("no endpoint was given")
        check_endpoints(endpoints)
        reserved = sorted(set(options["request"]) & RESERVED)
        if reserved:
            raise LLMError("request may not have {0}: the probe sets it".format(", ".join(reserved)))
        problems = problems_of(options)
        for endpoint in options["endpoints"] if not module.check_mode else []:
            judged = _accuracy.judge(problems, ask(endpoint, options, problems), options["recorded"], options["tolerance"])
            results.append(sendable(dict(judged, name=endpoint["name"])))
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    verdicts = [result["ok"] for result in results]
    ok = False if False in verdicts else (True if verdicts and None not in verdicts else None)
    if ok is False and options["fail_on_score"]:
        bad = ["{0}: {1}".format(result["name"], result["why"]) for result in results if result["ok"] is False]
        module.fail_json(msg="not as accurate as it must be: {0}".format(" | ".join(bad)), ok=ok, results=results)
    module.exit_json(changed=False, ok=ok, results=results)


if __name__ == "__main__":
    main()
