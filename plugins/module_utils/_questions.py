# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The packaged set of questions with one right answer, half of them Chinese. Pure; private to the collection.

Made for models of some billions of parameters; what a smaller one can't answer its recipe excludes by id, with the measurement.
"""

from __future__ import annotations

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

MAX_TOKENS = 256

#: id, language, question, what the answer must contain.
EXACT = (
    ("capital_japan", "en", "What is the capital of Japan? Answer in one word.", "Tokyo"),
    ("capital_greece", "en", "What is the capital of Greece? Answer in one word.", "Athens"),
    ("sum", "en", "What is 17 + 25? Answer with the number only.", "42"),
    ("product", "en", "What is 12 * 12? Answer with the number only.", "144"),
    ("echo_json", "en", 'Repeat exactly: {"station": 7, "open": true}', '{"station": 7, "open": true}'),
    ("capital_japan_zh", "zh", "日本的首都是哪里？只回答城市名。", "东京"),
    ("capital_france_zh", "zh", "法国的首都是哪里？只回答城市名。", "巴黎"),
    ("sum_zh", "zh", "17 + 25 等于多少？只回答数字。", "42"),
    ("product_zh", "zh", "12 * 12 等于多少？只回答数字。", "144"),
    ("capital_china_zh", "zh", "中国的首都是哪里？只回答城市名。", "北京"),
)
NONCES = (
    ("code_en", "en", "The secret code is {nonce}. What is the secret code? Answer with the code only.", "{nonce}"),
    ("code_zh", "zh", "密码是 {nonce}。密码是什么？只回答密码。", "{nonce}"),
)


def expand(item: dict) -> list[dict]:
    """The checks that ``exact_set`` stands for."""
    if item.get("id") or item.get("language"):
        raise LLMError("acceptance: exact_set has neither 'id' nor 'language', its questions have them")
    tokens = item.get("max_tokens", MAX_TOKENS)
    out = [
        {"check": "exact", "id": ident, "language": language, "prompt": prompt, "expect": [answer], "finish": "stop", "max_tokens": tokens}
        for ident, language, prompt, answer in EXACT
    ]
    out += [
        {"check": "nonce_recall", "id": ident, "language": language, "prompt": prompt, "answer": answer, "max_tokens": tokens}
        for ident, language, prompt, answer in NONCES
    ]
    return out
