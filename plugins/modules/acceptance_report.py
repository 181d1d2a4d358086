#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: acceptance_report
short_description: Sum up what was proved and measured, against what was recorded
version_added: "0.1.0"
description:
  - Puts the proofs of M(ironserve.llm.inference_verify), the scores of M(ironserve.llm.inference_accuracy), what ran where, and the figures
    of a benchmark into one report, and writes it as one HTML file that needs nothing else, as JSON, as JUnit XML and as Markdown.
  - Compares the benchmark with the baseline of the same fingerprint (model, card, driver, runtime, image, weights, arguments and measuring
    protocol). How sure a change is follows from the spread of the repeated runs. A baseline of anything else is refused as evidence, and what
    differs is named.
  - Figures of a run in which not everything proved itself, or a score is too low, are thrown away, neither shown nor compared nor recorded.
  - It does not fail by itself. RV(status) is what a run should end with.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    description: Can run in check mode. Judges the same and writes nothing; says so when it would record a baseline.
    support: full
  diff_mode:
    support: none
options:
  results:
    description: What M(ironserve.llm.inference_verify) returned as C(results), for all endpoints.
    type: list
    elements: dict
    required: true
  hosts:
    description:
      - Hosts with cards. What ran there is read on the controller, from the facts C(catalog_out), C(accelerator_out) and C(replica_out) that
        the roles leave. A host that left nothing could not be told about, and neither could a planned replica that O(results) does not have.
    type: list
    elements: str
    default: []
  fleet:
    description: What ran on each host, instead of O(hosts); see RV(report).
    type: list
    elements: dict
    default: []
  accuracy:
    description:
      - What M(ironserve.llm.inference_accuracy) returned as C(results), for all endpoints. A score that is too low, or a question without an
        answer, is a refusal; a score with nothing recorded to hold it against is only told.
    type: list
    elements: dict
    default: []
  unscored:
    description: Why there is no O(accuracy) where one was asked for. Such a run could not be told; empty where nobody asked for a score.
    type: str
    default: ""
  benchmark:
    description: The result of a benchmark; empty for none.
    type: dict
    default: {}
  unmeasured:
    description: Why there is no O(benchmark) where one was asked for. Such a run could not be told; empty where nobody asked for figures.
    type: str
    default: ""
  comparison:
    description:
      - What this module said of the baseline on the host that keeps the baselines, its RV(baseline), for a report that is written elsewhere.
        Nothing is then compared or recorded here.
    type: dict
    default: {}
  release:
    description: Name of the release record, for the report.
    type: str
    default: ""
  gateway_host:
    description: Host of the gateway, for the report.
    type: str
    default: ""
  path:
    description:
      - File that gets the report as JSON. The others are put beside it, with C(.html), C(.xml) and C(.md) in place of C(.json). Empty writes none.
    type: path
    default: ""
  baseline_dir:
    description: Directory of the baselines, one file per fingerprint; empty knows none.
    type: path
    default: ""
  baseline_file:
    description: A baseline to be measured against instead of the one in O(baseline_dir). If it is one of something else, the run could not be told.
    type: path
    default: ""
  baseline:
    description:
      - V(missing) makes this run the baseline where there is none. V(add) also adds it to one that it holds, so that the difference between
        days becomes known. V(replace) makes it the baseline in any case. V(never) records nothing.
      - A run that did not prove itself, or with fewer than 3 repeats, is never recorded.
    type: str
    choices: [missing, add, replace, never]
    default: missing
  tolerance_pct:
    description: A figure is worse when it is surely worse by more than this, in percent.
    type: float
    default: 3
  material_pct:
    description: A figure has held when it is surely not worse by this, in percent. Between the two nothing can be told.
    type: float
    default: 10
"""

EXAMPLES = r"""
---
- name: Sum up
  ironserve.llm.acceptance_report:
    results: "{{ proof.results }}"
    hosts: "{{ groups['llm_nodes'] }}"
    benchmark: "{{ benchmark.result }}"
    path: /var/lib/ironserve/reports/acceptance.json
    baseline_dir: /var/lib/ironserve/baselines
  register: accepted

- name: Stop unless all is well
  ansible.builtin.assert:
    that: accepted.status == 0
    fail_msg: "{{ accepted.lines | join('\n') }}"
"""

RETURN = r"""
status:
  description: V(0) when all is accepted, V(1) when something was refused, V(2) when nothing was refused but something could not be told.
  returned: success
  type: int
verdict:
  description: The same as a word, V(accepted), V(refused) or V(could not tell).
  returned: success
  type: str
lines:
  description: The report for a terminal.
  returned: success
  type: list
  elements: str
files:
  description: What was written, or would be in check mode.
  returned: success
  type: list
  elements: str
fingerprint:
  description: What figures depend on, by C(model), C(card), C(driver), C(runtime), C(image), C(weights), C(arguments) and C(protocol).
  returned: success
  type: dict
fingerprint_id:
  description: Short name of the fingerprint.
  returned: success
  type: str
baseline:
  description:
    - C(status) (V(same), V(better), V(worse), V(unknown), V(refused) or V(none)), C(detail), C(next_step), C(differs) (what differs, each
      with C(key), C(here) and C(there)), C(figures), C(recorded) and C(path). Null where nothing was compared.
    - Each of C(figures) has C(name), C(unit), C(baseline), C(now), C(change_pct), C(low_pct), C(high_pct) (percent worse, below 0 is better),
      C(verdict) (as C(status), or V(new) or V(left_out), which do not count) and C(detail).
  returned: success
  type: dict
report:
  description:
    - What the JSON file holds but for the benchmark, the scores and the results, C(format), C(date), C(status), C(verdict), C(ok) (whether
      every endpoint proved itself and no score stands against it), C(counts), C(release), C(fleet) (per host C(host), C(platform),
      C(driver), C(runtime), C(cards), C(replicas) and C(error)), C(unproved) (planned replicas that nobody proved), C(unscored) (why there
      is no score), C(unmeasured) (why there are no figures) and C(discarded) (why figures were thrown away).
  returned: success
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _baseline, _files, _report, _report_page
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def compare(params: dict, parts: dict, benchmark: dict, accepted: bool, date: str, dry: bool) -> tuple:
    """Measure against the baseline and record one where that is wanted: ``(comparison, recorded)``."""
    figures, left_out = _report.figures_of(benchmark), _report.left_out_of(benchmark)
    limits = _baseline.Limits(params["tolerance_pct"], params["material_pct"])
    known = {"limits": {"tolerance_pct": limits.tolerance_pct, "material_pct": limits.material_pct}, "problems": []}
    if params["baseline_file"]:
        path = params["baseline_file"]
        return dict(_baseline.compare(_baseline.read(path), parts, figures, limits, left_out), path=path, **known), False
    if _baseline.untold(parts):
        what = ", ".join(_baseline.untold(parts))
        step = "Find out the {0} of every host: see what its cards' tool says, or pin what runs".format(what)
        return dict(
            _baseline.answer(_baseline.UNCLEAR, "no baseline without knowing {0}".format(what), next_step=step), path="", **known
        ), False
    path = _baseline.path_of(params["baseline_dir"], parts)
    own, nearest, known["problems"] = _baseline.look_up(params["baseline_dir"], parts)
    replacing = params["baseline"] == "replace"
    if own and not replacing:
        found = _baseline.compare(own, parts, figures, limits, left_out)
        adding = params["baseline"] == "add" and found["status"] in (_baseline.SAME, _baseline.BETTER)
        if adding and not dry:
            _baseline.record(path, parts, figures, date, accepted, add=True)
        return dict(found, path=path, added_now=adding, **known), adding
    detail = "no baseline of this release"
    differs = []
    if nearest:
        differs = _baseline.differences(parts, nearest["fingerprint"])
        told = "; ".join(_baseline.explain(item) for item in differs)
        detail += "; the nearest one, of {0}, is none: {1}".format(_report.moment(nearest["sessions"][0]["date"]), told)
    recording = params["baseline"] != "never"
    if recording:
        try:
            _baseline.recordable(parts, figures, accepted)
        except LLMError as exc:
            recording, detail = False, "{0}; not recorded: {1}".format(detail, exc)
    if recording:
        detail = "recorded {0}".format("in place of the one before" if own else "now: " + detail)
        if not dry:
            _baseline.record(path, parts, figures, date, accepted)
    return dict(_baseline.answer(_baseline.NONE, detail, differs=differs), path=path, recorded_now=recording, **known), recording


def write(path: str, report: dict) -> None:
    """Write the report in its four forms, each in one step. Raises LLMError."""
    texts = forms(report)
    for name, text in zip(files_of(path), texts):
        _files.put(name, text, _files.PUBLIC, 0o755)


def forms(report: dict) -> list:
    """The report as JSON, HTML, JUnit XML and Markdown."""
    return [
        json.dumps(report, indent=2, ensure_ascii=True) + "\n",
        _report_page.page(report),
        _report.junit(report),
        _report.markdown(report),
    ]


def files_of(path: str) -> list:
    """Where the four forms go."""
    if not path:
        return []
    stem = path[: -len(".json")] if path.endswith(".json") else path
    return [path if path.endswith(".json") else path + ".json", stem + ".html", stem + ".xml", stem + ".md"]


def run(params: dict, dry: bool) -> dict:
    """Judge, compare, record and write. Raises LLMError."""
    if not 0 <= params["tolerance_pct"] <= params["material_pct"] < 100:
        raise LLMError(
            "0 <= tolerance_pct <= material_pct < 100 must hold, not {0:g} and {1:g}".format(
                params["tolerance_pct"], params["material_pct"]
            )
        )
    _report.check_results(params["results"])
    _report.check_fleet(params["fleet"])
    _report.check_accuracy(params["accuracy"])
    if params["comparison"]:
        _report.check_comparison(params["comparison"])
    date = _baseline.now()
    results, fleet, benchmark = params["results"], _report.whole_fleet(params["fleet"]), params["benchmark"]
    scores = params["accuracy"], params["unscored"]
    accepted = _report.quality_status(fleet, results, *scores) == _report.OK
    comparison, recorded = None, False
    if benchmark:
        _report.check_benchmark(benchmark)
        if params["comparison"]:
            comparison = params["comparison"]
        elif accepted and benchmark.get("ok") and (params["baseline_dir"] or params["baseline_file"]):
            parts = _report.fingerprint(fleet, benchmark["protocol"])
            comparison, recorded = compare(params, parts, benchmark, accepted, date, dry)
    elif params["comparison"]:
        raise LLMError("comparison is of no use without benchmark: give the figures that were compared")
    about = params["release"], params["gateway_host"], params["unmeasured"]
    report = _report.build(results, fleet, date, benchmark, comparison, *about, *scores)
    if params["path"] and not dry:
        write(params["path"], report)
    return {
        # A report tells of this run; it is no state of the host. A baseline is.
        "changed": recorded,
        "status": report["status"],
        "verdict": report["verdict"],
        "lines": report["lines"],
        "files": files_of(params["path"]),
        "fingerprint": report["fingerprint"],
        "fingerprint_id": report["fingerprint_id"],
        "baseline": report["baseline"],
        "report": {key: value for key, value in report.items() if key not in ("benchmark", "results", "accuracy", "baseline", "lines")},
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "results": {"type": "list", "elements": "dict", "required": True},
            "hosts": {"type": "list", "elements": "str", "default": []},
            "fleet": {"type": "list", "elements": "dict", "default": []},
            "accuracy": {"type": "list", "elements": "dict", "default": []},
            "unscored": {"type": "str", "default": ""},
            "benchmark": {"type": "dict", "default": {}},
            "unmeasured": {"type": "str", "default": ""},
            "comparison": {"type": "dict", "default": {}},
            "release": {"type": "str", "default": ""},
            "gateway_host": {"type": "str", "default": ""},
            "path": {"type": "path", "default": ""},
            "baseline_dir": {"type": "path", "default": ""},
            "baseline_file": {"type": "path", "default": ""},
            "baseline": {"type": "str", "choices": ["missing", "add", "replace", "never"], "default": "missing"},
            "tolerance_pct": {"type": "float", "default": 3},
            "material_pct": {"type": "float", "default": 10},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module.params, module.check_mode)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
