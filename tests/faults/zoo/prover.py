# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A prover whose engine is a function: the questions of a check in, answers out, no sockets."""

from __future__ import annotations

import json
from collections.abc import Callable

from ansible_collections.ironserve.llm.plugins.module_utils import _http
from ansible_collections.ironserve.llm.plugins.module_utils._checks_found import Whole


def said(
    text: str = "", calls: tuple = (), finish: str = "stop", reasoning: str = "", field: str = "reasoning", prompt: int = 100, made: int = 5
) -> Whole:
    """One answer."""
    return Whole(text, reasoning, list(calls), [field] if reasoning else [], finish, prompt, made)


class Prover:
    """What a check sees of a proof. ``answer(messages, max_tokens, extra, streamed)`` gives a Whole."""

    def __init__(self, answer: Callable | None = None, key: str = "", context: int = 0, post: Callable | None = None) -> None:
        self.answer = answer
        self.key = key
        self.model = "m"
        self.asked: list = []
        self.figures: list[dict] = []
        self.metrics_at_start: dict = {}
        self.max_num_seqs = 0
        self.tools = False
        self.connections = 1
        self.trouble: Callable = lambda answer: ""
        self._context = context
        self._post = post

    def context(self) -> int:
        """The context the engine says it takes."""
        return self._context

    def ask(self, messages: list, max_tokens: int, extra: dict | None = None, patience_s: float = 0.0) -> Whole:
        """A streamed answer; its first token took no time."""
        self.asked.append((json.loads(json.dumps(messages)), max_tokens, extra or {}, patience_s))
        found = self.answer(messages, max_tokens, extra or {}, True)
        found.ttft_s = 0.01
        return found

    def whole(self, messages: list, max_tokens: int, extra: dict | None = None, patience_s: float = 0.0) -> Whole:
        """An answer in one piece."""
        return self.answer(messages, max_tokens, extra or {}, False)

    def on_one_connection(self, questions: list, max_tokens: int) -> tuple[list[Whole], int]:
        """Answers in one piece, each."""
        return [self.answer(messages, max_tokens, {}, False) for messages in questions], self.connections

    def text_trouble(self, item: dict, messages: list, answer: Whole, max_tokens: int) -> str:
        """What the test says is wrong."""
        return self.trouble(answer)

    def post(self, body: object, key: str | None = None) -> _http.Reply:
        """What the test answers to a bad request."""
        status, text = self._post(body, key)
        return _http.Reply(status, "application/json", text.encode(), 0.0)

    def metrics(self) -> dict:
        """The next figures."""
        return self.figures.pop(0) if len(self.figures) > 1 else (self.figures or [{}])[0]
