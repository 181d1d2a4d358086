# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The text of answers: whether it says a word, and how it can be passed on. Pure; private to the collection."""

from __future__ import annotations

import re
from typing import Any


def contains(text: str, word: str) -> bool:
    """Whether ``word`` stands in ``text``, whatever the case; Latin words and numbers only as whole ones."""
    word = word.casefold()
    before = "(?<![0-9a-z])" if re.match("[0-9a-z]", word) else ""
    after = "(?![0-9a-z])" if re.search("[0-9a-z]$", word) else ""
    return re.search(before + re.escape(word) + after, text.casefold()) is not None


def sendable(value: Any) -> Any:
    """The same data with every text one that can be sent: an answer may hold half a surrogate pair, which no encoding takes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {sendable(key): sendable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [sendable(item) for item in value]
    return value
