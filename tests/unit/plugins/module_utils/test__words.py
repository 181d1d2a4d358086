# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Words are found whole."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _words


@pytest.mark.parametrize(
    ("text", "word", "found"),
    [
        ("It is 42.", "42", True),
        ("It is 142.", "42", False),
        ("It is 42nd.", "42", False),
        ("**TOKYO**", "Tokyo", True),
        ("答案是42。", "42", True),
        ("首都是北京市", "北京", True),
        ('He said {"open": true}', '{"open": true}', True),
    ],
)
def test_words_are_found_whole(text, word, found):
    assert _words.contains(text, word) is found
