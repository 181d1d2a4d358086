# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine says of itself in ``/metrics``, under one set of names whatever the engine. Pure; private to the collection.

Sources: metrics of vLLM 0.17 to 0.32, SGLang with ``--enable-metrics`` and llama.cpp; names are stable over these.
"""

from __future__ import annotations

import math

RUNNING = "running"
WAITING = "waiting"
#: Tokens made, and prompt tokens read, since the engine began: they grow while it works, for whomever.
GENERATED = "generated"
PROMPT = "prompt"
#: Steps of the engine's loop: they go on during a long prefill, when no token comes for a minute.
STEPS = "steps"
#: Requests whose logits were not numbers.
CORRUPTED = "corrupted"
#: Speculative decoding: tokens drafted, and those of them that were right.
DRAFTED = "drafted"
ACCEPTED = "accepted"

_NAMES = {
    "vllm:num_requests_running": RUNNING,
    "vllm:num_requests_waiting": WAITING,
    "vllm:generation_tokens_total": GENERATED,
    "vllm:prompt_tokens_total": PROMPT,
    "vllm:iteration_tokens_total_count": STEPS,
    "vllm:corrupted_requests_total": CORRUPTED,
    "vllm:spec_decode_num_draft_tokens_total": DRAFTED,
    "vllm:spec_decode_num_accepted_tokens_total": ACCEPTED,
    "sglang:num_running_reqs": RUNNING,
    "sglang:num_queue_reqs": WAITING,
    "sglang:generation_tokens_total": GENERATED,
    "sglang:prompt_tokens_total": PROMPT,
    "llamacpp:requests_processing": RUNNING,
    "llamacpp:requests_deferred": WAITING,
    "llamacpp:tokens_predicted_total": GENERATED,
    "llamacpp:prompt_tokens_total": PROMPT,
    "llamacpp:n_decode_total": STEPS,
}


def read(text: str) -> dict[str, float]:
    """Read the text of ``/metrics``: our name -> value, summed over labels. What is not there or no number is left out."""
    found = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name not in _NAMES:
            continue
        words = line[line.rfind("}") + 1 :].split() if "{" in line else line.split()[1:]
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            found[_NAMES[name]] = found.get(_NAMES[name], 0.0) + value
    return found


def grown(before: dict[str, float], after: dict[str, float], name: str) -> float | None:
    """How much a counter grew; None when one of the two does not say, or it began anew."""
    if name not in before or name not in after or after[name] < before[name]:
        return None
    return after[name] - before[name]


def progress(before: dict[str, float], after: dict[str, float]) -> float | None:
    """How much the engine did between two readings, in tokens and steps; None when it does not say."""
    found = [grown(before, after, name) for name in (GENERATED, PROMPT, STEPS)]
    known = [value for value in found if value is not None]
    return sum(known) if known else None


def acceptance(before: dict[str, float], after: dict[str, float]) -> float | None:
    """Share of drafted tokens that were accepted between two readings; None when nothing was drafted."""
    drafted, accepted = grown(before, after, DRAFTED), grown(before, after, ACCEPTED)
    return accepted / drafted if drafted and accepted is not None else None


def load(figures: dict[str, float]) -> str:
    """What runs and waits, for a person; empty when the engine does not say."""
    if RUNNING not in figures:
        return ""
    return "the engine says {0:.0f} running, {1:.0f} waiting".format(figures[RUNNING], figures.get(WAITING, 0.0))
