# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The errors this collection raises. Private to the collection: may change at any time."""

from __future__ import annotations


class LLMError(Exception):
    """A fault a person can act on.

    The message names what is wrong (file, host, card, key or port) and what to do about it. Modules turn it
    into ``fail_json(msg=...)``; nothing else in the collection is allowed to reach the user as a traceback.
    """


class UnknownOutput(LLMError):
    """A tool, file or endpoint said something this collection does not know: a failed check, never a default."""


def nearest(word: str, known: list[str], cutoff: float = 0.5) -> str:
    """Say which of ``known`` a mistyped ``word`` probably meant, and list them all.

    Returns a sentence fragment such as ``did you mean "cpu"? Known: ascend_910b, cpu``.
    """
    import difflib

    close = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    hint = 'did you mean "{0}"? '.format(close[0]) if close else ""
    return "{0}Known: {1}".format(hint, ", ".join(sorted(known)) or "none")
