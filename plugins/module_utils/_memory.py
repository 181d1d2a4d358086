# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Does the plan fit the card, and what the engine says of it. Pure. Private to the collection.

Where the model's geometry and the engine's ways are known, the arithmetic is the engine's own, in its blocks; else it goes by the recipe's
figures.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._geometry import Layout

#: Part by which the engine's own figure may differ from the plan's before that is worth a word.
TOLERANCE = 0.02

#: What the engine says of its memory at its start, the same words from 0.17 to 0.32; GiB, tokens, times.
_LOG = {
    "loaded_gib": re.compile(r"Model loading took ([\d.]+) GiB memory"),
    "kv_gib": re.compile(r"Available KV cache memory: (-?[\d.]+) GiB"),
    "block_tokens": re.compile(r"Setting attention block size to (\d+) tokens"),
    "tokens": re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: [\d.]+x"),
    "concurrency": re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
}


@dataclasses.dataclass
class Fit:
    """What one replica needs of each of its cards, and what the card gives. All figures in MiB unless named otherwise.

    Attributes:
        usable: what the engine may fill: card memory x share.
        weights: weights on one card.
        overhead: activations, graphs and runtime.
        per_sequence: KV cache and state of one sequence of full length.
        available: what is left for sequences; negative when the weights alone do not fit.
        concurrency: full-length sequences that fit at once.
        block_tokens: tokens of one block of the cache; 0 when the figures are the recipe's.
        blocks: blocks that are left for sequences.
        blocks_per_sequence: blocks of one sequence of full length.
        told: cache that the engine is told to make (kv_cache_memory_bytes); 0 when it takes what is left.
    """

    usable: int
    weights: int
    overhead: int
    per_sequence: int
    available: int
    concurrency: float
    block_tokens: int = 0
    blocks: int = 0
    blocks_per_sequence: int = 0
    told: int = 0

    def line(self, max_model_len: int) -> str:
        """Say the arithmetic in one line."""
        left = self.usable - self.weights - self.overhead
        text = "{0} MiB usable - {1} weights - {2} overhead = {3} MiB".format(self.usable, self.weights, self.overhead, left)
        if self.told:
            text += ", {0} of them (kv_cache_memory_bytes)".format(self.told)
        text += " for sequences of {0} tokens at {1} MiB: {2:.1f} at once".format(max_model_len, self.per_sequence, self.concurrency)
        if self.block_tokens:
            text += " ({0} blocks of {1} tokens, {2} a sequence)".format(self.blocks, self.block_tokens, self.blocks_per_sequence)
        return text


@dataclasses.dataclass
class Need:
    """What a replica needs of its cards.

    Attributes:
        weights: MiB of the whole model's weights.
        memory: the recipe's figures: ``kv_bytes_per_token`` (bytes), ``state_mib_per_sequence``, ``overhead_mib``, and ``kv_heads``,
            over which the KV cache can be divided at most; without it, over any number of cards.
        tensor_parallel, pipeline_parallel: cards per replica; weights, state and, as far as its heads go, KV cache are divided by them.
        layouts: the engine's own cache, one layout for each pipeline stage; empty when only the recipe's figures are known.
        on_card: MiB of weights on each card, as their tensors say; 0 when only the size of them all is known.
        kv_cache_bytes: cache that the engine is told to make on each card; 0 when it takes what is left.
    """

    weights: int
    memory: dict[str, Any]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    layouts: list[Layout] = dataclasses.field(default_factory=list)
    kv_cache_bytes: int = 0
    on_card: int = 0


def weights_mib(variant: dict[str, Any]) -> int:
    """Size of a weights variant in MiB: its stated ``size_mib``, else the sum of its files.

    Raises LLMError when there is neither: weights of unknown size fit nowhere.
    """
    if variant.get("size_mib"):
        return int(variant["size_mib"])
    if not variant.get("files"):
        raise LLMError(
            "weights '{0}' state neither 'size_mib' nor 'files' in their recipe, so nobody can say whether they fit".format(
                variant.get("name", "")
            )
        )
    return -(-sum(int(item["size"]) for item in variant["files"]) // 2**20)


def _left(card_mib: int, share: float, need: Need) -> tuple[int, int, int, int]:
    """Of one card: MiB usable, of weights and of overhead, and bytes that are left for sequences, negative when nothing is."""
    usable = int(card_mib * share)
    weights = need.on_card or -(-need.weights // (need.tensor_parallel * need.pipeline_parallel))
    overhead = int(need.memory["overhead_mib"])
    left = (usable - weights - overhead) * 2**20
    if need.kv_cache_bytes:
        # Told to take more than there is, the engine ends; the shortfall is what the plan shows.
        left = need.kv_cache_bytes if left >= need.kv_cache_bytes else min(0, left - need.kv_cache_bytes)
    return usable, weights, overhead, left


def _figures_bytes(need: Need, tokens: int) -> float:
    """Bytes of one sequence on one card, by the recipe's figures. More cards than KV heads hold copies of them."""
    kv_cards = min(need.tensor_parallel, need.memory.get("kv_heads", need.tensor_parallel)) * need.pipeline_parallel
    state = need.memory["state_mib_per_sequence"] * 2**20 / (need.tensor_parallel * need.pipeline_parallel)
    return need.memory["kv_bytes_per_token"] * tokens / kv_cards + state


def fit(card_mib: int, share: float, need: Need, max_model_len: int) -> Fit:
    """Compute the fit of one replica on cards of ``card_mib`` MiB each, of which the engine may fill the part ``share`` (0 to 1)."""
    usable, weights, overhead, left = _left(card_mib, share, need)
    available, told = -(-left // 2**20), -(-need.kv_cache_bytes // 2**20)
    if not need.layouts:
        per_sequence = max(1, math.ceil(_figures_bytes(need, max_model_len) / 2**20))
        return Fit(usable, weights, overhead, per_sequence, available, max(0.0, available / per_sequence), told=told)
    # The stage that holds the fewest sequences decides.
    tightest = min(need.layouts, key=lambda item: item.count(left) / item.blocks(max_model_len))
    blocks, each = tightest.count(left), tightest.blocks(max_model_len)
    per_sequence = max(1, math.ceil(each * tightest.block_bytes / 2**20))
    return Fit(usable, weights, overhead, per_sequence, available, blocks / each, tightest.block_tokens, blocks, each, told)


def largest_context(card_mib: int, share: float, need: Need, sequences: int = 1) -> int:
    """The longest context, in tokens, that ``sequences`` sequences can have at once; 0 when there is none."""
    left = max(0, _left(card_mib, share, need)[3])
    if need.layouts:
        return min(item.largest_context(item.count(left), sequences) for item in need.layouts)
    state, token = _figures_bytes(need, 0), _figures_bytes(need, 1)
    # Whole MiB, as the plan counts a sequence.
    return max(0, int((left // 2**20 // sequences * 2**20 - state) / (token - state)))


def read_log(log: str) -> dict[str, float]:
    """What an engine's log says of its memory: ``loaded_gib``, ``kv_gib``, ``block_tokens``, ``tokens`` and ``concurrency``.

    The last word counts: a log may hold several starts. What is not said is not in the result. From 0.24 on one line says tokens and
    concurrency after the size of the cache, before it is a line of its own; the size itself is wrong for hybrid models and not read.
    """
    result: dict[str, float] = {}
    for name, pattern in _LOG.items():
        found = pattern.findall(log)
        if found:
            result[name] = float(found[-1].replace(",", ""))
    return result


def compare(planned: Fit, said: dict[str, float], max_model_len: int) -> list[str]:
    """Hold what an engine said (see ``read_log``) against the plan: one line for the concurrency, one for an overhead that was measured.

    Returns no lines when the engine said nothing of it. A line begins with ``ok``, ``differs`` or ``too small``: then not even one
    request of full length fits, and some versions start all the same.
    """
    lines = []
    if "concurrency" in said:
        text = "the engine holds {0:g} requests of {1:.0f} tokens at once, the plan said {2:.2f} of {3}".format(
            said["concurrency"], said["tokens"], planned.concurrency, max_model_len
        )
        off = said["concurrency"] / planned.concurrency - 1 if planned.concurrency else math.inf
        if said["concurrency"] < 1:
            word = "too small"
        elif said["tokens"] != max_model_len or abs(off) > TOLERANCE:
            word = "differs"
        else:
            word = "ok"
        lines.append("{0}: {1} ({2:+.1%})".format(word, text, off))
    if "kv_gib" in said and "loaded_gib" in said:
        overhead = planned.usable - (said["kv_gib"] + said["loaded_gib"]) * 1024
        lines.append(
            "measured: {0:.0f} MiB weights and {1:.0f} MiB overhead on a card, planned {2} and {3} (memory.overhead_mib)".format(
                said["loaded_gib"] * 1024, overhead, planned.weights, planned.overhead
            )
        )
    return lines
