# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The proof of real inference: right answers, then speed, then card use. Private to the collection.

Every question is asked as a stream, greedy, on a connection of its own, so that a replica which is slow, hangs or dies
in the middle is told apart by what had arrived until then.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import secrets
import time

from ansible_collections.ironserve.llm.plugins.module_utils import _card_use, _http, _quality, _sse, _verdicts
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARN
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest
from ansible_collections.ironserve.llm.plugins.module_utils._verdicts import Outcome

#: Options of each kind of check: name -> whether it must be given.
KINDS = {
    "models": {},
    "exact": {"prompt": True, "expect": True, "max_tokens": False, "finish": False, "margin_nats": False},
    "nonce_recall": {"prompt": True, "answer": True, "shots": True, "digits": False, "max_tokens": False, "margin_nats": False},
    "quality": {"prompt": True, "max_tokens": False},
    "stream_equals_unary": {"prompt": True, "max_tokens": False},
    "speed": {"prompt": False, "max_tokens": False},
    "card_use": {"floor_pct": False},
}
_COMMON = ("check", "id", "language")
#: Checks every proof makes, listed in the recipe or not, unless the recipe says they are not applicable.
IMPLIED = ("models", "speed", "card_use")

#: After this many seconds of tokens a stream that is hopelessly under the floor is not waited for any longer.
SLOW_WINDOW_S = 5.0
#: One event may hold several tokens under speculative decoding, so a cut stream must be this many times under the floor.
BURST = 4.0
#: Tokens a stream must have for its speed to mean something.
SPEED_TOKENS = 16
CARD_FLOOR_PCT = 5.0


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where one replica, or the gateway, answers. ``url`` has no path."""

    name: str
    url: str
    api_key_file: str = ""
    container: str = ""
    cards: tuple = ()
    platform: str = ""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds: until the first token and between tokens; for one request; for one whole proof."""

    first_token_s: float = 60.0
    request_s: float = 120.0
    total_s: float = 600.0
    slow_window_s: float = SLOW_WINDOW_S


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """What a model must show, from its recipe."""

    checks: list
    not_applicable: list
    floor_decode_tokens_per_s: float
    ttft_limit_s: float
    exact_pass_share: float = 1.0
    request: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Proof:
    """The verdict on one endpoint. Figures are None unless the verdict is ``ok``: figures of a failed run are no figures."""

    name: str
    url: str
    verdict: str
    evidence: list
    next_step: str
    checks: list
    ttft_ms: float | None = None
    decode_tokens_per_s: float | None = None
    card_use_pct: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the endpoint proved that it really infers."""
        return self.verdict == _verdicts.OK

    def as_dict(self) -> dict:
        """Plain data for module results."""
        return dataclasses.asdict(self)


class _Stop(Exception):
    """Carries the outcome after which asking further makes no sense."""

    def __init__(self, sign: str, detail: str) -> None:
        super().__init__(detail)
        self.sign = sign
        self.detail = detail


def _number(data: dict, key: str, default: float | None) -> float:
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise LLMError("acceptance.{0} must be a number above 0, not {1!r}".format(key, value))
    return float(value)


def _check_item(index: int, item: object) -> dict:
    where = "acceptance.checks[{0}]".format(index)
    if not isinstance(item, dict) or "check" not in item:
        raise LLMError("{0} must be a mapping with the key 'check'".format(where))
    kind = str(item["check"])
    where = "{0} ({1} {2})".format(where, kind, item.get("id", "")).replace(" )", ")")
    if kind not in KINDS:
        raise LLMError('{0}: unknown check "{1}"; {2}'.format(where, kind, nearest(kind, list(KINDS))))
    known = KINDS[kind]
    for key in item:
        if key not in known and key not in _COMMON:
            raise LLMError('{0}: unknown key "{1}"; {2}'.format(where, key, nearest(str(key), list(known) + list(_COMMON))))
    for key, required in known.items():
        if required and not item.get(key):
            raise LLMError("{0}: the key '{1}' is missing or empty".format(where, key))
    for key in ("expect", "shots"):
        if key in item and not isinstance(item[key], list):
            raise LLMError("{0}: '{1}' must be a list".format(where, key))
    for key in ("prompt", "answer"):
        if kind == "nonce_recall" and "{nonce}" not in str(item[key]):
            raise LLMError("{0}: '{1}' must contain {{nonce}}".format(where, key))
    for key in ("max_tokens", "digits"):
        value = item.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise LLMError("{0}: '{1}' must be a whole number above 0, not {2!r}".format(where, key, value))
    return dict(item)


def read_acceptance(data: dict) -> Acceptance:
    """Check a recipe's ``acceptance`` block. Raises LLMError naming the key at fault.

    At least one ``exact`` or ``nonce_recall`` check is demanded: nothing else can prove that answers are right.
    """
    known = [field.name for field in dataclasses.fields(Acceptance)]
    for key in data:
        if key not in known:
            raise LLMError('acceptance has the unknown key "{0}"; {1}'.format(key, nearest(str(key), known)))
    raw = data.get("checks")
    if not isinstance(raw, list):
        raise LLMError("acceptance.checks must be a list of checks")
    checks = [_check_item(index, item) for index, item in enumerate(raw)]
    if not any(item["check"] in ("exact", "nonce_recall") for item in checks):
        raise LLMError("acceptance.checks needs at least one 'exact' or 'nonce_recall' check: nothing else proves right answers")
    excluded = data.get("not_applicable") or []
    for index, item in enumerate(excluded):
        if not isinstance(item, dict) or not item.get("check") or not item.get("reason"):
            raise LLMError("acceptance.not_applicable[{0}] must have the keys 'check' and 'reason'".format(index))
    return Acceptance(
        checks,
        excluded,
        _number(data, "floor_decode_tokens_per_s", 5.0),
        _number(data, "ttft_limit_s", 10.0),
        _number(data, "exact_pass_share", 1.0),
        data.get("request") or {},
    )


def contains(text: str, word: str) -> bool:
    """Whether ``word`` stands in ``text``, as a whole word where its script has words, whatever the case."""
    text, word = text.casefold(), word.casefold()
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        before = text[start - 1 : start] if word[:1].isascii_alnum_like() else "" if False else text[max(start - 1, 0) : start]
        after = text[end : end + 1]
        if not (_joins(word[0], before) or _joins(word[-1], after)):
            return True
        start = text.find(word, start + 1)
    return False
