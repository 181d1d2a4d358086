# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The packaged questions: half Chinese, with an answer that can't be part of the question."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _questions, _verify
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def test_half_of_ten_are_chinese_and_all_are_different():
    assert len(_questions.EXACT) == 10
    assert [item[1] for item in _questions.EXACT].count("zh") == 5
    assert [item[1] for item in _questions.NONCES] == ["en", "zh"]
    assert len({item[0] for item in _questions.EXACT}) == len({item[2] for item in _questions.EXACT}) == 10


def test_no_question_holds_its_own_answer_but_the_echo():
    inside = [ident for ident, _language, prompt, answer in _questions.EXACT if answer in prompt]
    assert inside == ["echo_json"]


def test_sums_are_right():
    for ident, _language, prompt, answer in _questions.EXACT:
        if ident.startswith(("sum", "product")):
            first, sign, second = prompt.split("?", maxsplit=1)[0].replace("What is ", "").split(" ")[:3]
            assert str({"+": int(first) + int(second), "*": int(first) * int(second)}[sign]) == answer


def test_a_recipe_can_ask_for_the_set_and_exclude_from_it_by_id():
    data = {"checks": [{"check": "exact_set", "max_tokens": 32}], "not_applicable": [{"check": "exact", "id": "sum", "reason": "none"}]}
    checks = _verify.read_acceptance(data).checks
    assert [item["check"] for item in checks] == ["exact"] * 10 + ["nonce_recall"] * 2
    assert {item["max_tokens"] for item in checks} == {32}
    assert all(set(item) <= set(_verify.KINDS[item["check"]]) | {"check", "id", "language"} for item in checks)
    with pytest.raises(LLMError, match="exact_set has neither"):
        _questions.expand({"check": "exact_set", "id": "mine"})
