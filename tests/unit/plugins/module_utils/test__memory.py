# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The arithmetic of what fits, against figures worked out by hand, its limits, and what an engine's log says of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils._catalog import resolve
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._geometry import Serving, layouts, read_config
from ansible_collections.ironserve.llm.plugins.module_utils._memory import Need, compare, fit, largest_context, read_log, weights_mib
from ansible_collections.ironserve.llm.plugins.module_utils._plan import choose_enhancements, enhanced_memory, need_of

FIGURES = {"kv_bytes_per_token": 20480, "state_mib_per_sequence": 124, "overhead_mib": 4096}


def blocks_of(shipped, memory=None, weights=35838, pipeline_parallel=1, **serving):
    """A need in the engine's own blocks, for Qwen3.6-35B-A3B."""
    geometry = read_config(shipped["models"]["qwen3.6-35b-a3b"]["config"], "it")
    rule = shipped["engines"]["vllm"]["kv_cache"]
    how = Serving(pipeline_parallel=pipeline_parallel, **serving)
    return Need(weights, memory or FIGURES, how.tensor_parallel, pipeline_parallel, layouts(geometry, how, rule))


# By the recipe's figures


def test_w8a8_on_a_64_gb_card():
    """65520 x 0.9 - 35830 - 4096 = 19042 MiB; 131072 tokens x 20 KiB + 124 MiB = 2684 MiB."""
    figures = fit(65520, 0.9, Need(35830, FIGURES), 131072)
    assert (figures.usable, figures.available, figures.per_sequence) == (58968, 19042, 2684)
    assert figures.concurrency == pytest.approx(7.09, abs=0.01)
    assert "7.1 at once" in figures.line(131072)
    assert "131072 tokens" in figures.line(131072)
    assert "blocks" not in figures.line(131072)


def test_part_of_a_mebibyte_counts_as_one():
    tiny = {"kv_bytes_per_token": 2**20 + 1, "state_mib_per_sequence": 0, "overhead_mib": 0}
    assert fit(1024, 1, Need(1, tiny), 1).per_sequence == 2


def test_bf16_needs_two_cards():
    assert fit(65520, 0.9, Need(68567, FIGURES), 131072).concurrency == 0
    two = fit(65520, 0.9, Need(68567, FIGURES, 2), 131072)
    assert two.weights == 34284
    assert two.per_sequence == 1342
    assert two.concurrency > 10


def test_more_cards_than_kv_heads_hold_copies_of_the_kv_cache():
    """2 heads over 4 cards: 131072 x 20 KiB / 2 = 1280 MiB; the state is cut in four, 124 / 4 = 31 MiB."""
    heads = dict(FIGURES, kv_heads=2)
    assert [fit(65520, 0.9, Need(35838, heads, cards), 131072).per_sequence for cards in (1, 2, 4)] == [2684, 1342, 1311]
    assert fit(65520, 0.9, Need(35838, FIGURES, 4), 131072).per_sequence == 671, "without heads, over any number of cards"


def test_stages_divide_weights_cache_and_state():
    half = fit(65520, 0.9, Need(35838, dict(FIGURES, kv_heads=2), 1, 2), 131072)
    assert (half.weights, half.per_sequence) == (17919, 1342)


def test_stated_size_goes_before_files_and_files_round_up():
    assert weights_mib({"size_mib": 7, "files": [{"size": 1}]}) == 7
    assert weights_mib({"files": [{"size": 2**20}, {"size": 1}]}) == 2


@pytest.mark.parametrize("variant", [{"name": "w4"}, {"name": "w4", "files": []}, {"name": "w4", "size_mib": 0}])
def test_unknown_size_is_not_size_zero(variant):
    with pytest.raises(LLMError, match="weights 'w4' state neither"):
        weights_mib(variant)


@given(card=st.integers(1024, 200000), length=st.integers(1, 262144), cards=st.sampled_from([1, 2, 4, 8]))
def test_sequences_said_to_fit_do_fit(card, length, cards):
    figures = fit(card, 0.9, Need(35830, FIGURES, cards), length)
    assert figures.concurrency >= 0
    used = figures.weights + figures.overhead + int(figures.concurrency) * figures.per_sequence
    assert figures.concurrency < 1 or used <= figures.usable <= card
    assert figures.weights * cards >= 35830
    assert figures.per_sequence * cards * 2**20 >= length * 20480


@given(card=st.integers(45000, 200000), sequences=st.integers(1, 32))
def test_the_largest_context_by_figures_fits_and_one_more_mebibyte_does_not(card, sequences):
    need = Need(35830, FIGURES)
    tokens = largest_context(card, 0.9, need, sequences)
    assert tokens == 0 or fit(card, 0.9, need, tokens).concurrency >= sequences
    assert fit(card, 0.9, need, tokens + 52).concurrency < sequences, "52 tokens are more than a MiB"


# In the engine's own blocks


def test_blocks_decide_where_they_are_known(shipped):
    """58968 - 35838 - 4096 = 19034 MiB = 922 blocks of 1056 tokens; 131072 tokens are 125 of them, and 3 x 2 for the states."""
    figures = fit(65520, 0.9, blocks_of(shipped, align=True), 131072)
    assert (figures.block_tokens, figures.blocks, figures.blocks_per_sequence) == (1056, 922, 131)
    assert figures.concurrency == 922 / 131
    assert figures.per_sequence == 2702
    assert "at 2702 MiB: 7.0 at once (922 blocks of 1056 tokens, 131 a sequence)" in figures.line(131072)


def test_bf16_on_one_64_gb_card_leaves_less_than_nothing(shipped):
    """66.96 GiB and 4 GiB of overhead in 0.95 of 63.98 GiB: 10.2 GiB are missing."""
    figures = fit(65520, 0.95, blocks_of(shipped, weights=68573), 131072)
    assert (figures.available, figures.blocks, figures.concurrency) == (-10425, 0, 0)


def test_the_stage_with_the_least_room_decides(shipped):
    """With MTP the last stage has an eleventh layer of full attention."""
    need = blocks_of(shipped, pipeline_parallel=2, spec_tokens=2)
    assert [item.token_bytes for item in need.layouts] == [10240, 12288]
    figures = fit(65520, 0.9, need, 131072)
    alone = [need.layouts[stage].count(figures.available * 2**20) / need.layouts[stage].blocks(131072) for stage in (0, 1)]
    assert figures.concurrency == min(alone) < max(alone)


def test_the_engine_may_be_told_how_much_to_take(shipped):
    need = blocks_of(shipped)
    need.kv_cache_bytes = 10 * 21626880
    assert fit(65520, 0.9, need, 1056).blocks == 10
    need.kv_cache_bytes = 20000 * 2**20
    figures = fit(65520, 0.9, need, 1056)
    assert (figures.available, figures.concurrency) == (19034 - 20000, 0), "more than there is: it ends at its start"
    assert fit(1024, 0.9, Need(100, dict(FIGURES, overhead_mib=100), kv_cache_bytes=100 * 2**20), 1).available == 100


def test_the_line_says_what_is_left_and_what_the_engine_is_told_to_take(shipped):
    need = blocks_of(shipped)
    need.kv_cache_bytes = 4096 * 2**20
    figures = fit(65520, 0.9, need, 131072)
    assert (figures.available, figures.told) == (4096, 4096)
    said = (
        "58968 MiB usable - 35838 weights - 4096 overhead = 19034 MiB, 4096 of them (kv_cache_memory_bytes) for sequences of 131072 tokens"
    )
    assert figures.line(131072).startswith(said)
    need.kv_cache_bytes = 20000 * 2**20
    figures = fit(65520, 0.9, need, 131072)
    assert "= 19034 MiB, 20000 of them (kv_cache_memory_bytes)" in figures.line(131072) and ": 0.0 at once" in figures.line(131072)
    by_figures = fit(65520, 0.9, Need(35838, FIGURES, kv_cache_bytes=2**30), 131072)
    assert "= 19034 MiB, 1024 of them (kv_cache_memory_bytes)" in by_figures.line(131072)


@given(card=st.integers(45000, 200000), sequences=st.integers(1, 16))
def test_the_largest_context_is_one_that_fits(shipped, card, sequences):
    need = blocks_of(shipped, align=True)
    tokens = largest_context(card, 0.9, need, sequences)
    assert tokens == 0 or fit(card, 0.9, need, tokens).concurrency >= sequences
    # One block is the engine's own.
    assert fit(card, 0.9, need, tokens + 2 * 1056 * sequences).concurrency < sequences + 1


# Recipes


def combinations(shipped):
    for name, recipe in shipped["models"].items():
        for platform in recipe["platforms"]:
            for wanted in ({}, {"mtp": False}, {"prefix_caching": False, "mtp": True}, {"prefix_caching": False, "mtp": False}):
                yield name, platform, {key: value for key, value in wanted.items() if key in recipe["enhancements"]}


def test_the_figures_of_recipes_agree_with_the_models_geometry(shipped):
    """What a site's own recipe has, and what is counted for engines of another kind, within two parts in a hundred, whatever is on."""
    seen = 0
    for name, platform, wanted in combinations(shipped):
        catalog = resolve(shipped, platform, name, "vllm")
        decisions, extra = choose_enhancements(catalog["model"], wanted, [])
        settings = dict(catalog["settings"], **extra)
        memory = enhanced_memory(catalog["model"]["memory"], catalog["model"]["enhancements"], decisions)
        need = need_of(catalog, settings, memory, 1000)
        assert need.layouts, (name, platform)
        figures = Need(1000, memory, need.tensor_parallel)
        exact, stated = (fit(200000, 1, item, settings["max_model_len"]).per_sequence for item in (need, figures))
        assert stated == pytest.approx(exact, rel=0.02), (name, platform, wanted)
        seen += 1
    assert seen >= 40


# What the engine says

START = """\
INFO 11-30 15:00:01 [gpu_model_runner.py:4712] Model loading took 35.04 GiB memory and 61.203 seconds
INFO 11-30 15:00:02 [interface.py:1121] Setting attention block size to 1056 tokens to ensure that attention page size is >= mamba page size.
INFO 11-30 15:00:03 [interface.py:1135] Padding mamba page size by 0.76% to ensure that mamba page size and attention page size are exactly equal.
INFO 11-30 15:01:40 [gpu_worker.py:456] Available KV cache memory: 18.41 GiB
INFO 11-30 15:01:40 [kv_cache_utils.py:1319] GPU KV cache size: 240,768 tokens
INFO 11-30 15:01:40 [kv_cache_utils.py:1324] Maximum concurrency for 131,072 tokens per request: 6.96x
"""


def test_a_log_is_read():
    assert read_log(START) == {"loaded_gib": 35.04, "kv_gib": 18.41, "block_tokens": 1056, "tokens": 131072, "concurrency": 6.96}


def test_from_0_24_one_line_says_both():
    line = "CPU KV cache size: 709,973 tokens, Maximum concurrency for 16,384 tokens per request: 43.33x"
    assert read_log(line) == {"tokens": 16384, "concurrency": 43.33}


def test_the_last_start_counts_and_silence_is_nothing():
    assert read_log(START + START.replace("6.96x", "5.00x"))["concurrency"] == 5
    assert read_log("INFO: Started server process [1]") == {}
    assert compare(fit(65520, 0.9, Need(35838, FIGURES), 131072), {}, 131072) == []


def test_what_was_measured_takes_the_place_of_what_was_assumed(shipped):
    """0.9 of 65520 MiB less 35.04 and 18.41 GiB: 4235 MiB that are neither weights nor cache."""
    lines = compare(fit(65520, 0.9, blocks_of(shipped, align=True), 131072), read_log(START), 131072)
    assert lines[0] == "ok: the engine holds 6.96 requests of 131072 tokens at once, the plan said 7.04 of 131072 (-1.1%)"
    assert lines[1].startswith("measured: 35881 MiB weights and 4235 MiB overhead on a card, planned 35838 and 4096")


@pytest.mark.parametrize(
    ("said", "tokens", "word"),
    [
        (7.04, 131072, "ok"),
        (6.91, 131072, "ok"),
        (6.8, 131072, "differs"),
        (7.3, 131072, "differs"),
        (7.04, 32768, "differs"),
        (0.34, 131072, "too small"),
    ],
)
def test_two_parts_in_a_hundred_are_worth_a_word(shipped, said, tokens, word):
    figures = fit(65520, 0.9, blocks_of(shipped, align=True), 131072)
    (line,) = compare(figures, {"concurrency": said, "tokens": tokens}, 131072)
    assert line.startswith(word + ": ")
