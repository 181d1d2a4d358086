# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One set of names for what engines say of themselves."""

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _engine_metrics

VLLM = """# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b}c"} 2.0
vllm:num_requests_running{engine="1",model_name="x"} 1.0
vllm:num_requests_waiting{engine="0"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 3.0
vllm:generation_tokens_total{engine="0"} 1.7959987e+03
vllm:spec_decode_num_draft_tokens_total{engine="0"} 100.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 61.0
vllm:corrupted_requests_total{engine="0"} NaN
vllm:prompt_tokens_total{engine="0"}
odd line
"""


def test_vllm_figures_are_summed_over_labels_and_what_is_no_number_is_left_out():
    assert _engine_metrics.read(VLLM) == {
        "running": 3.0,
        "waiting": 3.0,
        "generated": 1795.9987,
        "drafted": 100.0,
        "accepted": 61.0,
    }


def test_llama_cpp_and_sglang_have_the_same_names():
    llama = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\nllamacpp:tokens_predicted_total 30\n"
    assert _engine_metrics.read(llama) == {"running": 1.0, "waiting": 2.0, "generated": 30.0}
    sglang = 'sglang:num_running_reqs{model_name="x"} 4.0\nsglang:num_queue_reqs{model_name="x"} 0.0\n'
    assert _engine_metrics.read(sglang) == {"running": 4.0, "waiting": 0.0}


def test_a_real_scrape_of_vllm_is_understood():
    found = sorted((pathlib.Path(__file__).resolve().parents[3] / "fixtures/vllm").glob("*.prom"))
    assert found
    for path in found:
        figures = _engine_metrics.read(path.read_text())
        assert {"running", "waiting", "generated", "prompt", "steps"} <= set(figures), path.name


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [
        ({"drafted": 100, "accepted": 61}, {"drafted": 300, "accepted": 63}, 0.01),
        ({"drafted": 100, "accepted": 61}, {"drafted": 100, "accepted": 61}, None),
        ({}, {"drafted": 100, "accepted": 61}, None),
    ],
)
def test_acceptance_is_of_the_time_between(before, after, rate):
    assert _engine_metrics.acceptance(before, after) == rate


def test_growth_of_what_is_not_said_or_began_anew_is_unknown():
    assert _engine_metrics.grown({"generated": 5}, {"generated": 9}, "generated") == 4
    assert _engine_metrics.grown({"generated": 9}, {"generated": 5}, "generated") is None
    assert _engine_metrics.grown({}, {"generated": 5}, "generated") is None
    assert _engine_metrics.progress({}, {}) is None
    assert _engine_metrics.progress({"steps": 3, "generated": 1}, {"steps": 5, "generated": 1}) == 2


def test_load_is_said_only_when_known():
    assert _engine_metrics.load({"running": 2.0}) == "the engine says 2 running, 0 waiting"
    assert _engine_metrics.load({"waiting": 2.0}) == ""
