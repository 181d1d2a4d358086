# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The recipes' memory figures, worked out again from the models' architecture by the engines' own arithmetic, block by block."""

from __future__ import annotations

import dataclasses
import math

import pytest

from ansible_collections.ironserve.llm.plugins.action.catalog_info import read_catalog
from ansible_collections.ironserve.llm.plugins.module_utils._catalog import resolve
from ansible_collections.ironserve.llm.plugins.module_utils._memory import Need, fit
from ansible_collections.ironserve.llm.plugins.module_utils._plan import enhanced_memory

CATALOG = read_catalog([])
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """A hybrid model's architecture, as its config.json states it; every fourth layer has full attention."""

    layers: int
    experts: int
    vocabulary: int
    state_bytes: int  # per element of the recurrent state
    vision: bool
    hidden: int = 2048
    heads: int = 16
    kv_heads: int = 2
    head: int = 256
    key_heads: int = 16
    value_heads: int = 32
    linear_head: int = 128
    kernel: int = 4
    expert: int = 512

    @property
    def full(self) -> int:
        return self.layers // 4

    # ---- parameters: (all, those in linear modules that are quantised, rows of these, which have one scale each)

    def moe(self) -> tuple[int, int, int]:
        quantised = 3 * (self.experts + 1) * self.hidden * self.expert
        return quantised + (self.experts + 1) * self.hidden, quantised, (self.experts + 1) * (2 * self.expert + self.hidden)

    def attention(self) -> tuple[int, int, int]:
        width, kv = self.heads * self.head, self.kv_heads * self.head
        quantised = 2 * self.hidden * width + 2 * self.hidden * kv + width * self.hidden
        return quantised + 2 * self.head, quantised, 2 * width + 2 * kv + self.hidden

    def linear(self) -> tuple[int, int, int]:
        keys, values = self.key_heads * self.linear_head, self.value_heads * self.linear_head
        quantised = self.hidden * (2 * keys + 2 * values + 2 * self.value_heads) + values * self.hidden
        own = (2 * keys + values) * self.kernel + 2 * self.value_heads + self.linear_head
        return quantised + own, quantised, 2 * keys + 2 * values + 2 * self.value_heads + self.hidden

    def tower(self) -> int:
        """The vision tower: 27 blocks, 1152 wide."""
        width, inner, merged = 1152, 4304, 4 * 1152
        block = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
        patches = 3 * 2 * 16 * 16 * width + width + 2304 * width
        merger = merged * merged + merged + merged * self.hidden + self.hidden + 2 * width
        return 27 * block + patches + merger if self.vision else 0

    def sizes(self, int8: bool, mtp_int8: bool = True) -> int:
        """Bytes of the weights: bfloat16, or int8 with a float32 scale for each row where quantised."""
        norms = 2 * self.hidden
        groups = [
            (self.full, self.attention(), int8),
            (self.layers - self.full, self.linear(), int8),
            (1, self.attention(), int8 and mtp_int8),
        ]
        total = 2 * (2 * self.vocabulary * self.hidden + self.hidden + self.tower())
        for count, mixer, small in groups:
            everything, quantised, rows = (left + right for left, right in zip(mixer, self.moe(), strict=True))
            total += count * (2 * (everything + norms) + (4 * rows - quantised if small else 0))
        return total + 2 * (2 * self.hidden * self.hidden + 3 * self.hidden)

    # ---- the engines' cache

    def convolution(self, cards: int, tokens: int) -> float:
        channels = 2 * self.linear_head * self.key_heads + self.linear_head * self.value_heads
        return (self.kernel - 1 + tokens) * channels / cards * 2

    def recurrence(self, cards: int) -> float:
        return self.value_heads / cards * self.linear_head * self.linear_head * self.state_bytes

    def block(self, ascend: bool, cards: int, tokens: int) -> tuple[int, float]:
        """Tokens in a block, and its bytes over all layers of a group; ``tokens`` are speculative ones, 0 without MTP."""
        group = self.full + bool(tokens)
        half = max(1, self.kv_heads // cards) * self.head * 2
        if ascend:
            size = 128 * math.ceil(self.recurrence(cards) / (128 * half))
            return size, group * (2 * half * size + self.convolution(cards, tokens))
        size = 16 * math.ceil((self.recurrence(cards) + self.convolution(cards, tokens)) / (16 * 2 * half))
        return size, group * 2 * half * size

    def blocks(self, context: int, size: int, tokens: int, aligned: bool) -> int:
        """Blocks of one sequence: its tokens once, its state three times over, for each step that may be taken back."""
        groups = math.ceil((self.layers - self.full) / (self.full + bool(tokens)))
        return math.ceil(context / size) + groups * (1 + tokens + aligned)


QWEN35 = Hybrid(layers=40, experts=256, vocabulary=248320, state_bytes=4, vision=True)
NEXT = Hybrid(layers=48, experts=512, vocabulary=151936, state_bytes=2, vision=False)
MODELS = {"qwen3.5-35b-a3b": QWEN35, "qwen3.6-35b-a3b": QWEN35, "qwen3-next-80b-a3b": NEXT}


def figures(model: str, platform: str, mtp: bool, aligned: bool) -> tuple[dict, int]:
    """The recipe's memory figures on a platform, and the number of speculative tokens."""
    recipe = resolve(CATALOG, platform, model)["model"]
    known = recipe["enhancements"]
    wanted = {"mtp": mtp, "prefix_caching": aligned}
    decisions = [{"name": name, "state": "on" if wanted.get(name) else "off", "reason": ""} for name in known]
    tokens = known["mtp"]["settings"]["speculative"]["num_speculative_tokens"] if mtp else 0
    return enhanced_memory(recipe["memory"], known, decisions), tokens


CASES = [(model, platform) for model in sorted(MODELS) for platform in sorted(CATALOG["models"][model]["platforms"])]


# ---- weights


def test_the_architecture_has_the_parameters_it_is_named_after() -> None:
    assert QWEN35.sizes(int8=False) / 2 / 1e9 == pytest.approx(35.95, abs=0.005)
    assert NEXT.sizes(int8=False) / 2 / 1e9 == pytest.approx(81.3, abs=0.05)


@pytest.mark.parametrize(
    ("model", "variant", "size"),
    [
        ("qwen3.6-35b-a3b", "bf16", QWEN35.sizes(int8=False)),
        ("qwen3.6-35b-a3b", "w8a8", QWEN35.sizes(int8=True)),
        ("qwen3.6-35b-a3b", "w8a8_ascend", QWEN35.sizes(int8=True, mtp_int8=False)),
        ("qwen3.5-35b-a3b", "bf16", QWEN35.sizes(int8=False)),
        ("qwen3.5-35b-a3b", "int8_channel", QWEN35.sizes(int8=True, mtp_int8=False)),
        ("qwen3.5-35b-a3b", "w8a8_mtp", QWEN35.sizes(int8=True, mtp_int8=False)),
        ("qwen3-next-80b-a3b", "bf16", NEXT.sizes(int8=False)),
        # 24 layers of 896 with 14 and 2 heads of 64 and 4864 in between, biases on q, k and v, embeddings used twice.
        ("qwen2.5-0.5b", "bf16", 2 * (151936 * 896 + 24 * (2 * 896 * 896 + 2 * 896 * 128 + 896 + 256 + 3 * 896 * 4864 + 2 * 896) + 896)),
    ],
)
def test_stated_size_is_that_of_the_architecture(model: str, variant: str, size: int) -> None:
    assert CATALOG["models"][model]["weights"]["variants"][variant]["size_mib"] == math.ceil(size / MIB)


@pytest.mark.parametrize("model", ["qwen3.5-35b-a3b", "qwen3.6-35b-a3b"])
def test_fp8_lies_between_all_int8_and_int8_but_for_mtp(model: str) -> None:
    """Its scales are one for a block, not for a row, and nothing says whether the MTP layer is FP8: 35.5 GiB is what was seen."""
    size = CATALOG["models"][model]["weights"]["variants"]["fp8"]["size_mib"]
    assert QWEN35.sizes(int8=True) < size * MIB < QWEN35.sizes(int8=True, mtp_int8=False)


def test_kv_cache_of_the_control() -> None:
    assert CATALOG["models"]["qwen2.5-0.5b"]["memory"]["kv_bytes_per_token"] == 24 * 2 * 2 * 64 * 2


# ---- KV cache and state


@pytest.mark.parametrize(("model", "platform"), CASES)
@pytest.mark.parametrize("mtp", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
def test_figures_are_those_of_the_engine(model: str, platform: str, mtp: bool, aligned: bool) -> None:
    memory, tokens = figures(model, platform, mtp, aligned)
    size, held = MODELS[model].block(platform.startswith("ascend_"), 1, tokens)
    assert memory["kv_bytes_per_token"] == pytest.approx(held / size, abs=1)
    state = MODELS[model].blocks(0, size, tokens, aligned) * held / MIB
    if mtp and aligned:
        # Forbidden together; the sum of both may say a little less than the pair takes.
        assert memory["state_mib_per_sequence"] == pytest.approx(state, rel=0.04)
    else:
        assert state <= memory["state_mib_per_sequence"] < state + 1.5


@pytest.mark.parametrize(("model", "platform"), CASES)
@pytest.mark.parametrize("cards", [1, 2, 4])
@pytest.mark.parametrize("mtp", [False, True])
def test_a_sequence_over_several_cards_takes_what_the_engine_takes(model: str, platform: str, cards: int, mtp: bool) -> None:
    """At 131072 tokens, within 2 %: the engine rounds the context up to whole blocks."""
    memory, tokens = figures(model, platform, mtp, not mtp)
    size, held = MODELS[model].block(platform.startswith("ascend_"), cards, tokens)
    exact = MODELS[model].blocks(131072, size, tokens, not mtp) * held / MIB
    ours = fit(1, 1, Need(1, memory, cards), 131072).per_sequence
    assert ours == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    ("model", "platform", "cards", "mtp", "aligned", "blocks", "concurrency"),
    [
        # Blocks that the engine's own code had on such a card, and sequences of 32K, 128K and 256K it then said to fit.
        ("qwen3.6-35b-a3b", "hygon_k100ai", 1, False, False, 912, (26.1, 7.1, 3.6)),
        ("qwen3.6-35b-a3b", "hygon_k100ai", 1, False, True, 912, (24.0, 7.0, 3.6)),
        ("qwen3.6-35b-a3b", "hygon_k100ai", 1, True, True, 817, (19.0, 6.1, 3.2)),
        ("qwen3.5-35b-a3b", "hygon_k100ai", 1, True, True, 959, (20.9, 7.0, 3.7)),
        ("qwen3.6-35b-a3b", "hygon_k100ai", 2, False, True, 1944, (51, 14.8, 7.6)),
        ("qwen3.6-35b-a3b", "nvidia_h100", 1, False, True, 160, (4.2, 1.2, 0.6)),
        ("qwen3.6-35b-a3b", "nvidia_h100", 1, True, True, 1499, (34.9, 11.1, 5.8)),
        ("qwen3.5-35b-a3b", "ascend_910b", 1, True, True, 395, (12.7, 5.0, 2.8)),
        ("qwen3.5-35b-a3b", "ascend_910b", 2, True, False, 1578, (56, 20.8, 11.3)),
    ],
)
def test_concurrency_is_that_of_the_engine(
    model: str, platform: str, cards: int, mtp: bool, aligned: bool, blocks: int, concurrency: tuple[float, float, float]
) -> None:
    memory, tokens = figures(model, platform, mtp, aligned)
    size, held = MODELS[model].block(platform.startswith("ascend_"), cards, tokens)
    for context, expected in zip((32768, 131072, 262144), concurrency, strict=True):
        exact = blocks / MODELS[model].blocks(context, size, tokens, aligned)
        assert exact == pytest.approx(expected, abs=0.06 if expected < 50 else 0.6), "this test's own arithmetic"
        ours = blocks * held / MIB / fit(1, 1, Need(1, memory, cards), context).per_sequence
        assert ours == pytest.approx(exact, rel=0.03 if context == 32768 else 0.02)


def test_the_sizes_of_a_block() -> None:
    assert [QWEN35.block(False, 1, tokens)[0] for tokens in (0, 2, 3)] == [1056, 1072, 1072]
    assert [QWEN35.block(True, cards, 3)[0] for cards in (1, 2, 4)] == [2048, 2048, 1024]
    assert NEXT.block(False, 1, 0)[0] == 544
    assert [QWEN35.block(False, 1, tokens)[1] for tokens in (0, 2)] == [21626880, 24150016]
