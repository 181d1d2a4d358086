# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether an answer says a word. Pure; private to the collection."""

from __future__ import annotations

import re


def contains(text: str, word: str) -> bool:
    """Whether ``word`` stands in ``text``, whatever the case; Latin words and numbers only as whole ones."""
    word = word.casefold()
    before = "(?<![0-9a-z])" if re.match("[0-9a-z]", word) else ""
    after = "(?![0-9a-z])" if re.search("[0-9a-z]$", word) else ""
    return re.search(before + re.escape(word) + after, text.casefold()) is not None
