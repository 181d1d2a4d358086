#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_benchmark
short_description: Measure LLM endpoints under load, with figures that can be trusted
version_added: "0.1.0"
description:
  - Sends streamed chat requests by a fixed protocol and tells time to first token, time per token, throughput and more, over repeats
    and levels of load, directly and through a gateway in the same run. docs/benchmark-result.md of the collection explains every figure.
  - Tokens are counted by C(usage), never by chunks. Warm-up requests count nowhere. Whether the engine's prefix cache knew the prompts
    is part of the protocol, and checked where the engine tells it.
  - The measuring client watches itself. When it was too late for the figures of a run, when a request failed, or when the cache was
    not in the state that was asked for, these figures are not published, and the reason is given instead.
  - Measures speed only. Garbage is often the fastest, so use M(ironserve.llm.inference_verify) first.
author:
  - ironserve.llm contributors (@ironserve)
requirements:
  - Linux
  - docker >= 5.0.3, for endpoints that name a container
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    support: partial
    description: What is done in check mode.
    details: Measuring is load on what may be in use, so in check mode nothing is sent; the result then has no runs.
  diff_mode:
    support: none
    description: There is nothing to change. A result is no state of the host, so writing it to O(path) is no change either.
options:
  endpoints:
    description: What to measure. Endpoints take turns, level by level and repeat by repeat.
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
      kind:
        description: Whether this is a replica on its own port, or a gateway in front of replicas.
        type: str
        choices: [replica, gateway]
        default: replica
      api_key_file:
        description: File on the host that holds the API key, one line. Empty for no key.
        type: str
        default: ""
      ca_file:
        description: Certificates that are trusted for an https address, instead of the system's.
        type: str
        default: ""
      container:
        description: The replica's container on this host. Without it its cards cannot be watched.
        type: str
        default: ""
      cards:
        description: The cards the replica holds, such as V(cpu:0).
        type: list
        elements: str
        default: []
      platform:
        description: The cards' platform.
        type: str
        default: ""
  model:
    description: The served model name to ask for.
    type: str
    required: true
  prompts:
    description: What is asked.
    type: dict
    default: {}
    suboptions:
      kind:
        description:
          - V(synthetic) is made-up prose of O(prompts.input_tokens) tokens, as the engine itself counts them.
          - V(sharegpt) are the first questions of conversations in the format of ShareGPT, from O(prompts.path) or O(prompts.conversations).
          - V(texts) are O(prompts.texts).
        type: str
        choices: [synthetic, sharegpt, texts]
        default: synthetic
      path:
        description: A file on the host.
        type: path
      conversations:
        description: Conversations, each with a list C(conversations) of C(from) and C(value).
        type: list
        elements: dict
        default: []
      texts:
        description: Prompts as they stand.
        type: list
        elements: str
        default: []
      count:
        description: How many different prompts are used; with fewer than O(requests) they come again.
        type: int
        default: 32
      input_tokens:
        description: Length of a synthetic prompt.
        type: int
        default: 512
  output_tokens:
    description: Length of every answer (C(max_tokens)).
    type: int
    default: 128
  ignore_eos:
    description: Whether the engine is told not to end an answer earlier (C(ignore_eos)). Set it to V(false) for engines that refuse this.
    type: bool
    default: true
  request:
    description: Members added to every request body, such as C(chat_template_kwargs).
    type: dict
    default: {}
  load:
    description:
      - V(closed) keeps O(concurrency) requests at work. V(open) sends O(rates) requests a second at random times (Poisson), whoever is still
        at work, as many independent users do.
    type: str
    choices: [closed, open]
    default: closed
  concurrency:
    description: Levels of a closed load, requests at a time, in the order given.
    type: list
    elements: int
    default: [1]
  rates:
    description: Levels of an open load, requests a second on average.
    type: list
    elements: float
    default: [1.0]
  requests:
    description: Requests of one run, as many as the highest O(concurrency) or more. Several times as many measure a steady load.
    type: int
    default: 32
  repeats:
    description: Runs of each level. Their spread is the noise that later comparisons have to respect.
    type: int
    default: 3
  warmup:
    description: Requests before each level that count nowhere.
    type: int
    default: 2
  cache:
    description:
      - V(cold) begins every prompt with a code that was never used before. V(warm) sends every prompt twice before it is measured.
      - Figures of a run are not published when C(usage) tells that the cache was in another state.
    type: str
    choices: [cold, warm]
    default: cold
  seed:
    description: Decides prompts, their order and the times of arrival.
    type: int
    default: 0
  together:
    description:
      - Whether endpoints of kind V(replica) are loaded at the same time, each with every level. There is then another row that puts them together.
    type: bool
    default: false
  slo:
    description: Limits that a good request keeps; without any there is no goodput.
    type: dict
    default: {}
    suboptions:
      ttft_ms:
        description: Milliseconds to the first chunk.
        type: float
      tpot_ms:
        description: Milliseconds per token after the first.
        type: float
      e2el_ms:
        description: Milliseconds for the whole answer.
        type: float
  stop_when_saturated:
    description: Whether levels that are higher still are left out once a level brings less than O(saturation_gain_pct) more tokens, or fails.
    type: bool
    default: true
  saturation_gain_pct:
    description: Growth of throughput below which a level is not worth having, in per cent.
    type: float
    default: 5.0
  timeouts:
    description: How long to wait.
    type: dict
    default: {}
    suboptions:
      connect_s:
        description: Seconds until a connection stands.
        type: float
        default: 5
      silence_s:
        description: Seconds without any byte.
        type: float
        default: 120
      request_s:
        description: Seconds for one answer.
        type: float
        default: 600
      run_s:
        description: Seconds for one run.
        type: float
        default: 3600
  card_interval_s:
    description: Seconds between two looks at the cards.
    type: float
    default: 1.0
  probe:
    description: How the cards of other platforms than C(cpu) are read; what the catalog says about the platform.
    type: dict
    default: {}
    suboptions:
      name:
        description: Name of the probe; empty for none.
        type: str
        default: ""
      tools:
        description: Where the vendor's tools may lie.
        type: dict
        default: {}
      environment:
        description: Variables every call of a tool gets.
        type: dict
        default: {}
      options:
        description: What the platform says to its probe.
        type: dict
        default: {}
  clients:
    description:
      - Load clients of others that are run after our own and whose figures stand beside ours, in rows of C(runs) with their name as C(tool).
      - Where a word means something else there it gets our word for what it is, see docs/benchmark-result.md.
      - One that is not there or fails has a row that says why, and no figures.
    type: list
    elements: dict
    default: []
    suboptions:
      tool:
        description:
          - V(vllm) runs C(vllm bench serve) in a container of O(clients.image), V(guidellm) and V(evalscope) run where they are installed on the host
            (0.8 and 1.14 or later).
        type: str
        choices: [vllm, guidellm, evalscope]
        required: true
      endpoint:
        description: Name of the endpoint.
        type: str
        required: true
      image:
        description: Engine image that has C(vllm bench serve).
        type: str
        default: ""
      weights:
        description: Folder on the host with the model's tokenizer, which each of them needs.
        type: str
        default: ""
      requests:
        description: Requests of the run.
        type: int
        default: 1000
      rate:
        description: Requests a second on average (Poisson); V(0) for a closed load.
        type: float
        default: 0
      concurrency:
        description: At most so many at a time; V(0) for no limit.
        type: int
        default: 0
      timeout_s:
        description: Seconds until it must be over.
        type: float
        default: 3600
  detail:
    description: Whether the result has a row for every request and every second.
    type: bool
    default: true
  path:
    description: File on the host that takes the result as JSON. Its directory is made where it is not there.
    type: path
  fail_on_refusal:
    description: Whether the task fails when the figures of any run may not be published.
    type: bool
    default: true
seealso:
  - module: ironserve.llm.inference_verify
"""

EXAMPLES = r"""
- name: How fast is one replica, alone and with up to 32 requests at a time
  ironserve.llm.inference_benchmark:
    model: smollm2-135m
    endpoints:
      - name: node1-c0
        url: http://127.0.0.1:8001
        api_key_file: /etc/ironserve/keys/engine.key
        container: ironserve-c0
        cards: ["cpu:0"]
        platform: cpu
    prompts: {input_tokens: 256}
    concurrency: [1, 2, 4, 8, 16, 32]
    path: /var/lib/ironserve/reports/benchmark.json

- name: What the gateway adds, with conversations of our own and users that come at random
  ironserve.llm.inference_benchmark:
    model: qwen3.6-35b-a3b
    endpoints:
      - {name: gateway, kind: gateway, url: "http://127.0.0.1:8000", api_key_file: /etc/ironserve/keys/client-default.key}
      - {name: node1-c0, url: "http://10.0.0.11:8001", api_key_file: /etc/ironserve/keys/engine.key}
    prompts: {kind: sharegpt, path: /srv/sharegpt.json, count: 200}
    load: open
    rates: [0.5, 1, 2]
    requests: 200
    slo: {ttft_ms: 2000, tpot_ms: 50}

- name: Ours, and beside it vllm bench serve with 1000 conversations at 5 requests a second
  ironserve.llm.inference_benchmark:
    model: qwen3.6-35b-a3b
    endpoints:
      - {name: node1-c0, url: "http://10.0.0.11:8001", api_key_file: /etc/ironserve/keys/engine.key}
    prompts: {kind: sharegpt, path: /srv/sharegpt.json, count: 200}
    clients:
      - tool: vllm
        endpoint: node1-c0
        image: vllm/vllm-openai:v0.32.0
        weights: /var/lib/ironserve/weights/qwen3.6-35b-a3b/w8a8
        requests: 1000
        rate: 5
"""

RETURN = r"""
version:
  description: Version of the result's shape.
  returned: always
  type: int
  sample: 1
ok:
  description: Whether the figures of every run may be published. False when nothing was measured.
  returned: always
  type: bool
protocol:
  description: What was asked, how often and in which state. Two results can be compared when C(id) is equal.
  returned: when measured
  type: dict
endpoints:
  description: What was measured, with C(name), C(url), C(kind), C(container), C(cards) and C(platform).
  returned: when measured
  type: list
  elements: dict
runs:
  description: One row per endpoint, level and repeat, in the order in which they ran.
  returned: always
  type: list
  elements: dict
  contains:
    endpoint:
      description: Its name, or C(all replicas) for a row that puts together what ran at the same time.
      type: str
    tool:
      description: What measured.
      type: str
    load:
      description: V(closed) or V(open).
      type: str
    concurrency:
      description: Requests at a time; null in an open load.
      type: int
    request_rate:
      description: Requests a second; null in a closed load.
      type: float
    repeat:
      description: Which repeat, from 1.
      type: int
    started_unix:
      description: When it began, seconds of the epoch.
      type: float
    duration_s:
      description: Seconds from the first request to the last event.
      type: float
    completed:
      description: Requests that were answered.
      type: int
    failed:
      description: Requests that were not.
      type: int
    errors:
      description: Each C(error) once with its C(count).
      type: list
      elements: dict
    publishable:
      description: Whether the figures may be used.
      type: bool
    refused:
      description: Why not.
      type: list
      elements: str
    figures:
      description:
        - Null unless publishable. Flat, with the names of C(vllm bench serve), such as C(mean_ttft_ms), C(p99_tpot_ms), C(output_throughput),
          and more, see docs/benchmark-result.md.
      type: dict
    cache:
      description: C(wanted), C(cached_share), C(verified).
      type: dict
    client:
      description: What the measuring client says about itself, with C(stamps), C(lag_p99_ms), C(limit_ms), C(cpu_pct) of one core.
      type: dict
    notes:
      description: What a reader should know.
      type: list
      elements: str
    timeline:
      description: One row per second, with C(at_s), C(running), C(output_tokens_per_s), C(ttft_ms), C(gap_ms).
      type: list
      elements: dict
    requests:
      description: One row per request.
      type: list
      elements: dict
summary:
  description: The repeats of each level put together (C(levels)), C(saturation), what a gateway adds (C(gateway)), and C(lines) for people.
  returned: when measured
  type: dict
cards:
  description:
    - What the cards did in the window of each run, with C(run), C(endpoint), C(utilisation_pct), C(memory_used_mib), C(power_w), C(samples)
      and C(why). A figure the platform does not have is null.
  returned: when measured
  type: list
  elements: dict
"""

import json
import os
import tempfile
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _card_watch, _http, _load_tools, _prompts
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import check_endpoints, unshown
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._load import VERSION, Bench, Endpoint, Protocol, summary
from ansible_collections.ironserve.llm.plugins.module_utils._stream import Limits
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor
from ansible_collections.ironserve.llm.plugins.module_utils._words import sendable


def texts_of(prompts: dict[str, Any]) -> tuple[list[str], int]:
    """The prompts that the options name, and how many conversations were no use. Empty for synthetic ones."""
    kind = prompts["kind"]
    given = [name for name in ("path", "conversations", "texts") if prompts[name]]
    allowed = {"synthetic": [], "sharegpt": ["path", "conversations"], "texts": ["texts"]}[kind]
    odd = [name for name in given if name not in allowed]
    if odd:
        raise LLMError("prompts.{0} is of no use with prompts.kind {1}".format(odd[0], kind))
    if allowed and len(given) != 1:
        raise LLMError("prompts.kind {0} needs {1}".format(kind, " or ".join("prompts." + name for name in allowed)))
    if kind == "texts":
        return list(prompts["texts"]), 0
    if kind == "sharegpt" and prompts["path"]:
        return _prompts.read_sharegpt(_prompts.read_file(prompts["path"], "prompts.path"), prompts["path"])
    if kind == "sharegpt":
        return _prompts.pick_sharegpt(prompts["conversations"], "prompts.conversations")
    return [], 0


def protocol_of(options: dict[str, Any], texts: list[str]) -> Protocol:
    """The protocol that the options describe."""
    same = ("model", "output_tokens", "ignore_eos", "request", "load", "requests", "repeats", "warmup", "cache", "seed", "together", "slo")
    more = ("stop_when_saturated", "saturation_gain_pct")
    levels = options["concurrency"] if options["load"] == "closed" else options["rates"]
    prompts = options["prompts"]
    return Protocol(
        levels=tuple(levels),
        kind=prompts["kind"],
        texts=tuple(texts),
        count=prompts["count"],
        input_tokens=prompts["input_tokens"],
        **{name: options[name] for name in same + more},
    )


def dataset_of(prompts: dict[str, Any]) -> str:
    """The conversations of the options as a file in the format of ShareGPT; empty without any."""
    if prompts["kind"] != "sharegpt":
        return ""
    return (
        _prompts.read_file(prompts["path"], "prompts.path") if prompts["path"] else json.dumps(prompts["conversations"], ensure_ascii=False)
    )


def jobs_of(options: dict[str, Any], endpoints: list[Endpoint]) -> list[tuple[_load_tools.Job, Endpoint]]:
    """What other clients are to do, and to whom. Raises LLMError before anything is measured."""
    known = {endpoint.name: endpoint for endpoint in endpoints}
    out = []
    for item in options["clients"]:
        if item["endpoint"] not in known:
            raise LLMError("clients: no endpoint is named {0!r}; known: {1}".format(item["endpoint"], ", ".join(known)))
        endpoint = known[item["endpoint"]]
        same = {name: item[name] for name in ("tool", "image", "weights", "requests", "rate", "concurrency", "timeout_s")}
        job = _load_tools.Job(
            url=endpoint.url,
            model=options["model"],
            dataset=dataset_of(options["prompts"]) if item["tool"] == _load_tools.VLLM else "",
            input_tokens=options["prompts"]["input_tokens"],
            output_tokens=options["output_tokens"],
            seed=options["seed"],
            **same,
        )
        job.check()
        out.append((job, endpoint))
    return out


def run_others(module: AnsibleModule, jobs: list[tuple[_load_tools.Job, Endpoint]]) -> list[dict[str, Any]]:
    """Rows of what other clients measured, and of those that could not."""
    rows = []
    for job, endpoint in jobs:
        started = time.time()
        try:
            with tempfile.TemporaryDirectory(dir=module.tmpdir) as folder:
                found = _load_tools.run(job, _http.read_key(endpoint.api_key_file), folder)
        except LLMError as exc:
            rows.append(_load_tools.failed_row(job, endpoint.name, exc, started))
        else:
            rows.append(_load_tools.row(job, endpoint.name, found, started))
    return rows


def write(module: AnsibleModule, path: str, result: dict[str, Any]) -> None:
    """Write the result so that a reader meets the old one or the new one."""
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=os.path.dirname(path) or ".", delete=False) as handle:
            json.dump(result, handle, indent=1, sort_keys=True)
            handle.write("\n")
        os.chmod(handle.name, 0o644)
        module.atomic_move(handle.name, path)
    except OSError as exc:
        raise LLMError("{0} can't be written: {1}".format(path, exc.strerror)) from None


def main() -> None:
    """Run the module."""
    seconds = {"connect_s": 5, "silence_s": 120, "request_s": 600, "run_s": 3600}
    module = AnsibleModule(
        argument_spec={
            "endpoints": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "url": {"type": "str", "required": True},
                    "kind": {"type": "str", "choices": ["replica", "gateway"], "default": "replica"},
                    "api_key_file": {"type": "str", "default": "", "no_log": False},
                    "ca_file": {"type": "str", "default": ""},
                    "container": {"type": "str", "default": ""},
                    "cards": {"type": "list", "elements": "str", "default": []},
                    "platform": {"type": "str", "default": ""},
                },
            },
            "model": {"type": "str", "required": True},
            "prompts": {
                "type": "dict",
                "default": {},
                "options": {
                    "kind": {"type": "str", "choices": ["synthetic", "sharegpt", "texts"], "default": "synthetic"},
                    "path": {"type": "path"},
                    "conversations": {"type": "list", "elements": "dict", "default": []},
                    "texts": {"type": "list", "elements": "str", "default": []},
                    "count": {"type": "int", "default": 32},
                    "input_tokens": {"type": "int", "default": 512, "no_log": False},
                },
            },
            "output_tokens": {"type": "int", "default": 128, "no_log": False},
            "ignore_eos": {"type": "bool", "default": True},
            "request": {"type": "dict", "default": {}},
            "load": {"type": "str", "choices": ["closed", "open"], "default": "closed"},
            "concurrency": {"type": "list", "elements": "int", "default": [1]},
            "rates": {"type": "list", "elements": "float", "default": [1.0]},
            "requests": {"type": "int", "default": 32},
            "repeats": {"type": "int", "default": 3},
            "warmup": {"type": "int", "default": 2},
            "cache": {"type": "str", "choices": ["cold", "warm"], "default": "cold"},
            "seed": {"type": "int", "default": 0},
            "together": {"type": "bool", "default": False},
            "slo": {
                "type": "dict",
                "default": {},
                "options": {"ttft_ms": {"type": "float"}, "tpot_ms": {"type": "float"}, "e2el_ms": {"type": "float"}},
            },
            "stop_when_saturated": {"type": "bool", "default": True},
            "saturation_gain_pct": {"type": "float", "default": 5.0},
            "timeouts": {
                "type": "dict",
                "default": {},
                "options": {name: {"type": "float", "default": default} for name, default in seconds.items()},
            },
            "card_interval_s": {"type": "float", "default": 1.0},
            "probe": {
                "type": "dict",
                "default": {},
                "options": {
                    "name": {"type": "str", "default": ""},
                    "tools": {"type": "dict", "default": {}},
                    "environment": {"type": "dict", "default": {}},
                    "options": {"type": "dict", "default": {}},
                },
            },
            "clients": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "tool": {"type": "str", "choices": ["vllm", "guidellm", "evalscope"], "required": True},
                    "endpoint": {"type": "str", "required": True},
                    "image": {"type": "str", "default": ""},
                    "weights": {"type": "str", "default": ""},
                    "requests": {"type": "int", "default": 1000},
                    "rate": {"type": "float", "default": 0},
                    "concurrency": {"type": "int", "default": 0},
                    "timeout_s": {"type": "float", "default": 3600},
                },
            },
            "detail": {"type": "bool", "default": True},
            "path": {"type": "path"},
            "fail_on_refusal": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    options = module.params
    probe = options["probe"]
    environment = {name: str(value) for name, value in probe["environment"].items()}
    vendor = Vendor(tools=probe["tools"], environment=environment, options=probe["options"])
    period = options["card_interval_s"]

    def watch(one: Endpoint) -> _card_watch.Watch:
        return _card_watch.watch(one.platform, one.container, one.cards, probe["name"], vendor, period)

    try:
        for name, value in dict(options["timeouts"], card_interval_s=period).items():
            if not 0 < value <= _http.LONGEST_S:
                raise LLMError("{0} must be above 0 s and at most {1:g} s, not {2:g}".format(name, _http.LONGEST_S, value))
        texts, skipped = texts_of(options["prompts"])
        endpoints = [Endpoint(**dict(item, cards=tuple(item["cards"]))) for item in options["endpoints"]]
        module.no_log_values.update(unshown(endpoints))
        check_endpoints(endpoints)
        bench = Bench(protocol_of(options, texts), endpoints, Limits(**options["timeouts"]), watch)
        jobs = jobs_of(options, endpoints)
        if module.check_mode:
            module.exit_json(changed=False, ok=False, version=VERSION, runs=[], msg="check mode: no load was sent, nothing was measured")
        result = bench.run()
        if jobs:
            result["runs"] += run_others(module, jobs)
            result["ok"] = all(run["publishable"] for run in result["runs"])
            result["summary"] = summary(result["runs"], endpoints, options["saturation_gain_pct"])
        if skipped:
            module.warn("{0} conversations have no question with an answer and were left out".format(skipped))
        if not options["detail"]:
            for run in result["runs"]:
                run.update(timeline=[], requests=[])
        result = sendable(result)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    try:
        if options["path"]:
            write(module, options["path"], result)
    except LLMError as exc:
        # What was measured may have taken hours.
        module.fail_json(msg=str(exc), **result)
    if not result["ok"] and options["fail_on_refusal"]:
        module.fail_json(msg="not all figures may be published:\n" + "\n".join(result["summary"]["lines"]), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
