# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a check of the proof gives back. Private to the collection.

The files ``_checks_*.py`` hold one function per kind of check: it takes a prover and the check's entry in the recipe and returns
``Found``. The prover asks, judges text and stops the proof when the replica is dead, silent or busy:

- ``ask(messages, max_tokens, extra={}, patience_s=0)`` -> Transcript of a streamed answer;
- ``whole(messages, max_tokens, extra={}, patience_s=0)`` -> Whole, an answer that is not streamed;
- ``text_trouble(item, messages, answer, max_tokens)`` -> what is wrong with the form and text of either, or an empty string;
- ``on_one_connection(questions, max_tokens)`` -> Whole of each, and how many connections were needed;
- ``max_num_seqs``, ``tools``: requests at a time (0: unknown), and whether the recipe has the model call tools;
- ``open(messages, max_tokens)`` -> an open stream; ``post(body, key)``, ``get(path, key)`` -> Reply, whatever the status;
- ``metrics()`` -> figures as in ``_engine_metrics``, empty where the engine gives none.
"""

from __future__ import annotations

import dataclasses
import secrets

from ansible_collections.ironserve.llm.plugins.module_utils import _verdicts


@dataclasses.dataclass
class Found:
    """The outcome of one check.

    Attributes:
        trouble: what is wrong, one line; empty when nothing is.
        good: what was shown, one line.
        sign: the verdict that trouble points to.
        status: as in ``_checks``; empty follows from ``trouble``.
        figure, unit: the measured number, if there is one.
    """

    trouble: str = ""
    good: str = ""
    sign: str = _verdicts.PARTIAL
    status: str = ""
    figure: float | None = None
    unit: str = ""


@dataclasses.dataclass
class Whole:
    """An answer that came in one piece; has what a Transcript has, as far as a check asks for it."""

    content: str
    reasoning: str
    calls: list
    reasoning_fields: list
    finish: str
    prompt_tokens: int | None
    completion_tokens: int | None

    @property
    def tool(self) -> str:
        """The joined argument text of tool calls."""
        return "".join(call["arguments"] for call in self.calls)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def read_whole(body: object) -> Whole | None:
    """Read the body of a chat completion; None when it has no ``choices[0].message``."""
    try:
        choice = body["choices"][0]
        message = choice["message"]
        message.get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            # Some engines give the arguments as an object; the interface says text.
            calls.append({"id": _text(call.get("id")), "name": _text(function.get("name")), "arguments": _text(function.get("arguments"))})
    fields = [name for name in ("reasoning", "reasoning_content") if _text(message.get(name))]
    usage = body.get("usage") if isinstance(body.get("usage"), dict) else {}
    counts = [usage.get(key) if isinstance(usage.get(key), int) else None for key in ("prompt_tokens", "completion_tokens")]
    reasoning = _text(message.get(fields[0])) if fields else ""
    return Whole(_text(message.get("content")), reasoning, calls, fields, _text(choice.get("finish_reason")), counts[0], counts[1])


def code(digits: int = 6) -> str:
    """A random number that no answer can have had before."""
    return str(10 ** (digits - 1) + secrets.randbelow(9 * 10 ** (digits - 1)))


def user(text: str) -> dict:
    """A message of the user."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict:
    """A message of the model."""
    return {"role": "assistant", "content": text}
