# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Does the plan fit the card? Arithmetic on the recipe's memory facts. Private to the collection."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


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
    """

    usable: int
    weights: int
    overhead: int
    per_sequence: int
    available: int
    concurrency: float

    def line(self, max_model_len: int) -> str:
        """Say the arithmetic in one line."""
        return "{0} MiB usable - {1} weights - {2} overhead = {3} MiB for sequences of {4} tokens at {5} MiB: {6:.1f} at once".format(
            self.usable, self.weights, self.overhead, self.available, max_model_len, self.per_sequence, self.concurrency
        )


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


def fit(card_mib: int, share: float, variant: dict[str, Any], memory: dict[str, Any], max_model_len: int, tensor_parallel: int) -> Fit:
    """Compute the fit of one replica on cards of ``card_mib`` MiB each.

    Args:
        share: part of the card an engine may fill, 0 to 1.
        memory: the recipe's figures: ``kv_bytes_per_token`` (bytes), ``state_mib_per_sequence``, ``overhead_mib``, and ``kv_heads``,
            over which the KV cache can be divided at most; without it, over any number of cards.
        tensor_parallel: cards per replica; weights, state and, as far as its heads go, KV cache are divided by it.
    """
    usable = int(card_mib * share)
    weights = -(-weights_mib(variant) // tensor_parallel)
    overhead = int(memory["overhead_mib"])
    # More cards than KV heads hold copies of them.
    kv_cards = min(tensor_parallel, memory.get("kv_heads", tensor_parallel))
    card_bytes = memory["kv_bytes_per_token"] * max_model_len / kv_cards + memory["state_mib_per_sequence"] * 2**20 / tensor_parallel
    per_sequence = max(1, math.ceil(card_bytes / 2**20))
    available = usable - weights - overhead
    return Fit(usable, weights, overhead, per_sequence, available, max(0.0, available / per_sequence))
