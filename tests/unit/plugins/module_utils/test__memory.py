# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The arithmetic of what fits, against figures worked out by hand, and its limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._memory import fit, weights_mib

QWEN = {"kv_bytes_per_token": 20480, "state_mib_per_sequence": 124, "overhead_mib": 4096}


def test_w8a8_on_a_64_gb_card():
    """65520 x 0.9 - 35830 - 4096 = 19042 MiB; 131072 tokens x 20 KiB + 124 MiB = 2684 MiB."""
    figures = fit(65520, 0.9, {"size_mib": 35830}, QWEN, 131072, 1)
    assert (figures.usable, figures.available, figures.per_sequence) == (58968, 19042, 2684)
    assert figures.concurrency == pytest.approx(7.09, abs=0.01)
    assert "7.1 at once" in figures.line(131072)
    assert "131072 tokens" in figures.line(131072)


def test_part_of_a_mebibyte_counts_as_one():
    assert (
        fit(1024, 1, {"size_mib": 1}, {"kv_bytes_per_token": 2**20 + 1, "state_mib_per_sequence": 0, "overhead_mib": 0}, 1, 1).per_sequence
        == 2
    )


def test_bf16_needs_two_cards():
    assert fit(65520, 0.9, {"size_mib": 68567}, QWEN, 131072, 1).concurrency == 0
    two = fit(65520, 0.9, {"size_mib": 68567}, QWEN, 131072, 2)
    assert two.weights == 34284
    assert two.per_sequence == 1342
    assert two.concurrency > 10


def test_more_cards_than_kv_heads_hold_copies_of_the_kv_cache():
    """2 heads over 4 cards: 131072 x 20 KiB / 2 = 1280 MiB; the state is cut in four, 124 / 4 = 31 MiB."""
    heads = dict(QWEN, kv_heads=2)
    assert [fit(65520, 0.9, {"size_mib": 35838}, heads, 131072, cards).per_sequence for cards in (1, 2, 4)] == [2684, 1342, 1311]
    assert fit(65520, 0.9, {"size_mib": 35838}, QWEN, 131072, 4).per_sequence == 671, "without heads, over any number of cards"


def test_stated_size_goes_before_files_and_files_round_up():
    assert weights_mib({"size_mib": 7, "files": [{"size": 1}]}) == 7
    assert weights_mib({"files": [{"size": 2**20}, {"size": 1}]}) == 2


@pytest.mark.parametrize("variant", [{"name": "w4"}, {"name": "w4", "files": []}, {"name": "w4", "size_mib": 0}])
def test_unknown_size_is_not_size_zero(variant):
    with pytest.raises(LLMError, match="weights 'w4' state neither"):
        weights_mib(variant)


@given(card=st.integers(1024, 200000), length=st.integers(1, 262144), cards=st.sampled_from([1, 2, 4, 8]))
def test_sequences_said_to_fit_do_fit(card, length, cards):
    figures = fit(card, 0.9, {"size_mib": 35830}, QWEN, length, cards)
    assert figures.concurrency >= 0
    used = figures.weights + figures.overhead + int(figures.concurrency) * figures.per_sequence
    assert figures.concurrency < 1 or used <= figures.usable <= card
    assert figures.weights * cards >= 35830
    assert figures.per_sequence * cards * 2**20 >= length * 20480
