# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A mistyped name is answered with what was probably meant and everything there is."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput, nearest


def test_near_word_is_suggested_and_all_are_listed_in_order():
    assert nearest("cpuu", ["hygon_k100ai", "cpu"]) == 'did you mean "cpu"? Known: cpu, hygon_k100ai'


def test_far_word_suggests_nothing_but_still_lists():
    assert nearest("zzzz", ["b", "a"]) == "Known: a, b"


def test_nothing_known_says_so():
    assert nearest("x", []) == "Known: none"


def test_unknown_output_is_caught_where_our_errors_are():
    with pytest.raises(LLMError):
        raise UnknownOutput("hy-smi printed something new")
