# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a benchmark asks: made-up prose of a wanted length, texts as given, or conversations in the format of ShareGPT. Private to the collection.

Nothing here is random from run to run but codes that must never have been used before.
"""

from __future__ import annotations

import binascii
import json
import os
import random
from typing import Any, Sequence

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

SYNTHETIC = "synthetic"
SHAREGPT = "sharegpt"
TEXTS = "texts"
KINDS = (SYNTHETIC, SHAREGPT, TEXTS)

#: Who asks, in the dialects of the format.
_HUMAN = ("human", "user")

_WORDS = (
    "river stone bridge window garden market morning letter engine copper valley winter summer harbour castle forest paper silver "
    "kitchen teacher doctor farmer sailor painter village mountain meadow station railway journey evening shadow candle mirror table "
    "carpet basket ladder hammer needle thread button pocket blanket pillow saddle wagon barrel bottle kettle oven bread butter honey "
    "apple cherry walnut barley pepper ginger salmon sparrow rabbit badger beetle spider feather"
).split()
_VERBS = "carries crosses follows watches remembers repairs measures paints borrows returns gathers opens closes visits describes".split()


def prose(words: int, seed: int) -> str:
    """So many words of sentences that mean little; the same for the same seed."""
    rng = random.Random(seed)
    out = []
    while len(out) < words:
        out += ["The", rng.choice(_WORDS), rng.choice(_VERBS), "the", rng.choice(_WORDS), "near", "the", rng.choice(_WORDS) + "."]
    return " ".join(out[:words])


def task(words: int, seed: int) -> str:
    """A prompt around prose: what is to be done with it comes last, so that beginnings differ."""
    return prose(words, seed) + "\n\nContinue this text with as many new sentences as you can."


def nonce() -> str:
    """A code that was never used before."""
    return binascii.hexlify(os.urandom(8)).decode("ascii")


def fresh(text: str) -> str:
    """``text`` with a beginning that no cache can know."""
    return "[{0}] {1}".format(nonce(), text)


def read_sharegpt(text: str, where: str) -> tuple[list[str], int]:
    """First questions of the conversations in ``text``, and how many conversations were left out because nobody asks and is answered.

    The format: a JSON list of ``{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}, ...]}``.
    Raises LLMError that names ``where``.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise LLMError("{0} is not JSON: {1}".format(where, exc)) from None
    return pick_sharegpt(data, where)


def pick_sharegpt(data: Any, where: str) -> tuple[list[str], int]:
    """The same from a list that was read already."""
    if not isinstance(data, list):
        raise LLMError("{0} must hold a JSON list of conversations, as ShareGPT files do".format(where))
    out, skipped = [], 0
    for entry in data:
        turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
        usable = isinstance(turns, list) and len(turns) >= 2 and all(isinstance(turn, dict) for turn in turns[:2])
        if usable and turns[0].get("from") in _HUMAN and turns[1].get("from") not in _HUMAN and isinstance(turns[0].get("value"), str):
            value = turns[0]["value"].strip()
            if value:
                out.append(value)
                continue
        skipped += 1
    if not out:
        raise LLMError("{0} has no conversation that begins with a question and its answer".format(where))
    return out, skipped


def read_file(path: str, what: str) -> str:
    """A text file, without the mark that some editors begin it with. Raises LLMError that names it."""
    try:
        with open(path, encoding="utf-8-sig") as handle:
            return handle.read()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
        raise LLMError("{0} {1} can't be read: {2}".format(what, path, reason)) from None


def choose(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """``count`` of the texts, chosen by ``seed``; all of them in an order of its own when there are no more."""
    rng = random.Random(seed)
    return rng.sample(list(texts), min(count, len(texts)))
