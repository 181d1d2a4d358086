# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An engine stand-in: vLLM's HTTP surface over a model of an engine, with a log of what truly happened.

It plays what real engines are too slow to show: slots and a waiting queue, serial prefill, a prefix cache, known answers,
token streams whose every moment is written down. It infers nothing. ``README.md`` says what is modelled and what is not.

    engine.py --port 0 --slots 4 --prefill-tokens-per-s 8000 --decode-tokens-per-s 50 --truth truth.jsonl

One token is up to 4 ASCII characters in a row, or one other character.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import gc
import hashlib
import heapq
import itertools
import json
import math
import os
import random
import re
import select
import selectors
import signal
import sys
import time
import traceback
import urllib.parse
from collections.abc import Callable, Iterator

VERSION = "0.32.0"
#: Says in every answer that no model made it.
FINGERPRINT = "vllm-0.32.0-standin"
TOKENIZER = "up to 4 ASCII characters in a row, or one other character"
#: Bytes of a request's head and body that are taken.
HEAD_LIMIT = 64 << 10
BODY_LIMIT = 64 << 20

# ---- tokens


_PIECE = re.compile(rb"[\x00-\x7f]{1,4}|[\xc0-\xff][\x80-\xbf]*")


def tokens(text: str) -> list[bytes]:
    """Cut a text into tokens; joined they are its UTF-8 again. What has no UTF-8 (half a surrogate pair) becomes ``?``."""
    return _PIECE.findall(text.encode("utf-8", "replace"))


class Span:
    """A run of tokens that is cut on its own, as text between a chat template's special tokens is."""

    def __init__(self, text: str) -> None:
        # Plain ASCII needs no list: a document of 500 KB is only sliced where it is hashed.
        if text.isascii():
            self._raw, self._list = text.encode(), None
            self.count = -(-len(self._raw) // 4)
        else:
            self._raw, self._list = b"", tokens(text)
            self.count = len(self._list)

    @classmethod
    def of(cls, pieces: list[bytes]) -> Span:
        """A span of tokens that are cut already."""
        span = cls("")
        span._list, span.count = pieces, len(pieces)
        return span

    def part(self, start: int, stop: int) -> bytes:
        """The bytes of tokens ``start`` to ``stop``."""
        return self._raw[4 * start : 4 * stop] if self._list is None else b"".join(self._list[start:stop])


def special(name: str) -> Span:
    """One special token, which no text can contain."""
    return Span.of([b"\0" + name.encode()])


def block_keys(spans: list[Span], size: int, known: tuple[int, ...] = ()) -> list[int]:
    """A key for every full block of ``size`` tokens; a key stands for the block and everything before it.

    ``known`` are the keys of the first blocks, when they were made before.
    """
    keys = list(known)
    previous = keys[-1] if keys else 0
    skip = size * len(keys)
    room, parts = size, []
    for span in spans:
        start = min(skip, span.count)
        skip -= start
        while start < span.count:
            stop = min(start + room, span.count)
            parts.append(span.part(start, stop))
            room -= stop - start
            start = stop
            if not room:
                previous = hash((previous, *parts))
                keys.append(previous)
                room, parts = size, []
    return keys


# ---- the block pool: memory and prefix cache in one


class BlockPool:
    """KV blocks: held by one sequence (private), shared by some (busy), or kept for who comes next (idle, oldest first)."""

    def __init__(self, total: int, caching: bool = True) -> None:
        self.total = total
        self.caching = caching
        self.private = 0
        self.busy: dict[int, int] = {}
        self.idle: collections.OrderedDict[int, None] = collections.OrderedDict()
        self.evicted = 0

    @property
    def used(self) -> int:
        """Blocks that running sequences need."""
        return self.private + len(self.busy)

    def match(self, keys: list[int]) -> list[int]:
        """The leading keys whose blocks are here."""
        if not self.caching:
            return []
        return list(itertools.takewhile(lambda key: key in self.busy or key in self.idle, keys))

    def take(self, hits: list[int], private: int) -> bool:
        """Hold the blocks of ``hits`` and as many ``private`` ones, evicting the oldest idle ones; False if there is no room."""
        wake = [key for key in hits if key in self.idle]
        if private > self.total - self.used - len(wake):
            return False
        for key in wake:
            del self.idle[key]
        for key in hits:
            self.busy[key] = self.busy.get(key, 0) + 1
        self.private += private
        while self.used + len(self.idle) > self.total:
            self.idle.popitem(last=False)
            self.evicted += 1
        return True

    def publish(self, key: int) -> None:
        """Turn a private block into one that others may share; the caller now holds it by its key."""
        self.private -= 1
        self.idle.pop(key, None)
        self.busy[key] = self.busy.get(key, 0) + 1

    def release(self, keys: list[int], private: int) -> None:
        """Let go. The last block of a prefix becomes the oldest, so that a prefix is evicted from its end."""
        self.private -= private
        for key in reversed(keys):
            self.busy[key] -= 1
            if not self.busy[key]:
                del self.busy[key]
                self.idle[key] = None


# ---- truth: what is answered, token by token

CAPITALS = {
    "China": "Beijing",
    "Egypt": "Cairo",
    "England": "London",
    "France": "Paris",
    "Germany": "Berlin",
    "Greece": "Athens",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Norway": "Oslo",
    "Poland": "Warsaw",
    "Russia": "Moscow",
    "Spain": "Madrid",
}
CAPITALS_ZH = {"中国": "北京", "日本": "东京", "法国": "巴黎", "德国": "柏林", "英国": "伦敦", "俄罗斯": "莫斯科", "意大利": "罗马"}

_PROSE = (
    "before the sun was up|late in the autumn|on market days|after the long rain|in the third week of May|when the bells had rung|"
    "towards evening|in the year of the flood|by the light of one lamp|between two harvests|long before the railway|most winters",
    "the baker|her elder brother|a clerk from town|the ferryman|an old carpenter|the schoolmaster|nobody but the miller|two travellers|"
    "the widow next door|a young surveyor|the gardener|my grandfather|the harbour pilot|a quiet student",
    "carried|counted|mended|painted|sold|borrowed|weighed|forgot|measured|described|found|kept|traded|washed|wrapped|drew",
    "a basket of pears|the brass clock|seven wooden crates|the map of the valley|a jar of honey|the broken gate|some letters|"
    "an iron stove|twelve loaves|the blue shutters|a ledger|ropes and nets|a violin case|fresh paper|the garden wall",
    "near the bridge|behind the chapel|at the edge of the orchard|under a canvas roof|across the square|beside the canal|in the loft|"
    "along the quay|on the upper terrace|outside the inn|by the well|at the crossroads|in a narrow courtyard",
)
# Chinese packs so densely that a small stock of words looks like a loop: names and numbers of single characters keep it apart.
_PROSE_ZH = (
    "清晨|傍晚|雨后|秋收前|集市那天|多年以前|天没亮|入冬时|钟响过后|月初|黄昏|春分|夜里|午后|腊月|涨水那年",
    "面包师|木匠|摆渡人|教书先生|旅客|磨坊主|测量员|园丁|铁匠|裁缝|船长|账房|医生|画家|邮差|牧羊人",
    "搬走|数清|修好|借来|称过|画下|找到|卖掉|洗净|包好|记住|送出|拆开|换掉|留下|点亮|磨光|烧毁|量过|补上",
    "篮梨|座铜钟|只木箱|张地图|罐蜂蜜|扇院门|封旧信|个铁炉|条面包|块窗板|本账簿|盏油灯|匹粗布|袋麦子|把锯子|副眼镜|根绳索|坛酱菜|面鼓|支笔",
    "桥边|教堂后面|果园尽头|广场对面|运河岸上|阁楼里|码头旁|客栈门外|井台边|路口|城墙下|渡口|山坡上|戏台前|谷仓里|竹林深处",
)
_NAMES_ZH = (
    "赵钱孙李周吴郑王冯陈蒋沈韩杨朱秦许何吕张孔曹严华金魏陶姜",
    "明秀兰文志远春梅国庆海燕建平玉珍德胜淑芬学军桂英永福彩霞少康素云伯仲世昌若水子衿怀瑾长庚晚晴月娥思源景行博雅",
    "一二三四五六七八九十",
    "东西南北上下大小青白石柳桃松竹梅龙凤马牛沙溪泉岭塘湾",
)


def prose(rng: random.Random, chinese: bool) -> Iterator[str]:
    """Sentences without end, in an order that ``rng`` alone decides; healthy to every detector of garbage."""
    slots = [choices.split("|") for choices in (_PROSE_ZH if chinese else _PROSE)]
    family, given, digits, places = _NAMES_ZH
    while True:
        when, who, did, what, where = (rng.choice(choices) for choices in slots)
        if chinese:
            who += rng.choice(family) + rng.choice(given) + rng.choice(given)
            where = rng.choice(places) + rng.choice(given) + rng.choice("村镇街巷里") + where
            forms = ("{0}，{1}在{4}{2}了{5}{3}。", "{1}{0}{2}了{5}{3}，就在{4}。", "在{4}，{1}{2}了{5}{3}，那是{0}的事。")
            yield rng.choice(forms).format(when, who, did, what, where, rng.choice(digits))
            continue
        text = rng.choice(("{0}, {1} {2} {3} {4}. ", "{1} {2} {3} {4} {0}. ", "{4}, {0}, {1} {2} {3}. ")).format(
            when, who, did, what, where
        )
        yield text[0].upper() + text[1:]


def prose_tokens(rng: random.Random, count: int, chinese: bool) -> list[bytes]:
    """Exactly ``count`` tokens of prose."""
    sentences = prose(rng, chinese)
    text = ""
    while len(text) < 4 * count:
        text += next(sentences)
    return tokens(text)[:count]


def text_of(content: object) -> str:
    """The text of a message's content: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def has_han(text: str) -> bool:
    """Whether Chinese characters stand in it."""
    return re.search("[\u4e00-\u9fff]", text) is not None


def _fact(question: str) -> str:
    """An exact answer from the tables, or an empty string."""
    if "capital" in question:
        for country, capital in CAPITALS.items():
            if country in question:
                return "The capital of {0} is {1}.".format(country, capital)
    if "首都" in question:
        for country, capital in CAPITALS_ZH.items():
            if country in question:
                return "{0}的首都是{1}。".format(country, capital)
    found = re.search(r"(-?\d{1,9}) ?([-+*×x]) ?(-?\d{1,9}) ?(?:=|\?|等于|$)", question)
    if found:
        first, sign, second = int(found.group(1)), found.group(2), int(found.group(3))
        return str({"+": first + second, "-": first - second}.get(sign, first * second))
    return ""


_VALUE = re.compile("\\s*[\"'`\u201c\u2018]?([\\w.@/-]*\\w)")


def _recall(question: str, said: list[str]) -> str:
    """What the conversation says about the thing that is asked for, or an empty string.

    ``said`` are the texts of the conversation but the assistant's own, latest first, the question's message included.
    """
    wanted = [(name, " is ") for name in re.findall(r"(?i)what(?:'s| is| was) (?:the |a |an )?([^?.!,\n]{1,80}?) ?\?", question)[-1:]]
    for clause in re.findall("([\u4e00-\u9fff\\w]{1,40}?)是(?:什么|多少|哪)", question)[-1:]:
        wanted += [(clause[start:], "是") for start in range(max(0, len(clause) - 12), len(clause))]
    lowered = [text.lower() for text in said] if wanted else []
    for name, verb in wanted:
        for text, low in zip(said, lowered, strict=True):
            at = low.rfind((name + verb).lower())
            value = _VALUE.match(text, at + len(name) + len(verb)) if at >= 0 else None
            if value and value.group(1) not in ("什么", "多少", "哪里", "the", "what"):
                if verb == "是" or re.search(r"(?i)\bonly\b|one word", question):
                    return value.group(1)
                told = re.sub("(?i)^my ", "Your ", name) if name[:3].lower() == "my " else "The " + name
                return "{0} is {1}.".format(told, value.group(1))
    if re.search("(?i)code|number|nonce|word|remember|repeat|密码|暗号|数字|编号|重复|记住", question):
        for text in said:
            codes = re.findall(r"[A-Za-z0-9-]*\d[A-Za-z0-9-]{3,}|[A-Za-z0-9-]{3,}\d[A-Za-z0-9-]*", text[-4000:])
            if codes:
                return codes[-1]
    return ""


def answer(messages: list[dict]) -> str:
    """The right answer, from the tables or from the conversation; empty when prose will do."""
    last = messages[-1]
    question = text_of(last.get("content"))
    if last.get("role") == "tool":
        return "The tool says: {0}".format(question)
    # A document is no question: what is asked stands at the end of the message.
    tail = question[-1000:]
    echo = re.search(r"(?i)(?:repeat|say|echo)(?: exactly| after me)?: *(.+)", tail)
    if echo:
        return echo.group(1)
    said = [text_of(message.get("content")) for message in reversed(messages) if message.get("role") != "assistant"]
    return _fact(tail) or _recall(tail, said)


def instance(schema: object, hint: str, root: dict | None = None, depth: int = 0) -> object:
    """A value that satisfies a JSON schema (the common part of it), filled from the words of ``hint``."""
    if not isinstance(schema, dict) or depth > 16:
        return {}
    root = schema if root is None else root
    if "$ref" in schema:
        found: object = root
        for step in str(schema["$ref"]).lstrip("#/").split("/"):
            found = found.get(step, {}) if isinstance(found, dict) else {}
        return instance(found, hint, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        named = [value for value in schema["enum"] if isinstance(value, str) and value.lower() in hint.lower()]
        return (named or schema["enum"])[0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return instance(schema[key][0], hint, root, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "array":
        return [instance(schema.get("items", {"type": "string"}), hint, root, depth + 1)] * max(1, schema.get("minItems", 1))
    if kind in ("integer", "number"):
        found = re.search(r"\d+", hint)
        value = int(found.group()) if found else 1
        return min(max(value, schema.get("minimum", value)), schema.get("maximum", max(value, schema.get("minimum", value))))
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    if kind == "string":
        quoted = re.search("[\"'\u201c\u2018\u300c]([^\"'\u201d\u2019\u300d]{1,80})[\"'\u201d\u2019\u300d]", hint)
        names = [name for name in (*CAPITALS.values(), *CAPITALS, *CAPITALS_ZH.values(), *CAPITALS_ZH) if name in hint]
        words = re.findall(r"\b[A-Z]\w+", hint) or re.findall(r"\w+", hint) or ["value"]
        text = quoted.group(1) if quoted else names[0] if names else words[-1]
        return text[: schema.get("maxLength", 200)].ljust(schema.get("minLength", 0), ".")
    properties = schema.get("properties", {})
    return {
        name: instance(value, hint, root, depth + 1) for name, value in properties.items() if name in schema.get("required", properties)
    }


class Refused(Exception):
    """A request that gets an error body, as vLLM words it. Becomes ``{"error": {message, type, param, code}}``."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


FIRST_DELTAS = ("vllm", "early", "empty")


@dataclasses.dataclass
class Script:
    """How one request is played; from the engine's options, then the script file, then the request's own ``standin`` object.

    Attributes:
        text: the visible answer; None answers from the tables, the conversation or with prose.
        tokens: exactly so many tokens in all, of prose; 0 leaves the length to the answer.
        reasoning_tokens: tokens of reasoning before the answer.
        spec_tokens, spec_acceptance: tokens drafted per step, and the chance of each to be accepted after the one before it.
        decode_tokens_per_s: steps per second of this sequence; a step is one token and what speculation adds.
        jitter: how far a step may be off its place, in steps (0 to below 1); the places themselves never move.
        prefill_s: seconds for a prompt of which nothing is cached, instead of the engine's rate; -1 keeps the rate.
        first_delta: ``vllm`` (role with the first token), ``early`` (role at once), ``empty`` (a first token without text).
        tool: {name, arguments} to call instead of what the request's tools suggest; False never calls.
    """

    text: str | None = None
    tokens: int = 0
    reasoning_tokens: int = 0
    spec_tokens: int = 0
    spec_acceptance: float = 1.0
    decode_tokens_per_s: float = 50.0
    jitter: float = 0.0
    prefill_s: float = -1.0
    first_delta: str = "vllm"
    tool: dict | bool | None = None

    def with_changes(self, changes: object, where: str) -> Script:
        """A copy with ``changes``. Raises ValueError that names ``where`` and the key."""
        if not isinstance(changes, dict):
            raise ValueError("{0} must be an object".format(where))
        known = {field.name: field for field in dataclasses.fields(Script)}
        for key, value in changes.items():
            if key not in known:
                raise ValueError("{0}: unknown key {1}; known: {2}".format(where, key, ", ".join(known)))
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            good = {
                "text": isinstance(value, str),
                "tool": value is False or (isinstance(value, dict) and isinstance(value.get("name"), str)),
                "first_delta": value in FIRST_DELTAS,
                "spec_acceptance": number and 0 <= value <= 1,
                "jitter": number and 0 <= value < 1,
                "decode_tokens_per_s": number and value > 0,
                "prefill_s": number and value >= 0,
            }.get(key, isinstance(value, int) and number and value >= 0)
            if not good:
                raise ValueError("{0}: {1} cannot be {2!r}".format(where, key, value))
        return dataclasses.replace(self, **changes)


def read_rules(path: str) -> list[dict]:
    """Read a script file: a JSON list of objects with ``match`` (a pattern for the last user message) and keys of Script."""
    with open(path, encoding="utf-8") as handle:
        rules = json.load(handle)
    if not isinstance(rules, list):
        raise ValueError("{0} must hold a JSON list".format(path))
    for index, rule in enumerate(rules):
        where = "{0}[{1}]".format(path, index)
        if not isinstance(rule, dict) or not isinstance(rule.get("match"), str):
            raise ValueError("{0} needs the key match".format(where))
        re.compile(rule["match"])
        Script().with_changes({key: value for key, value in rule.items() if key != "match"}, where)
    return rules


@dataclasses.dataclass
class Plan:
    """Every token of one answer, made before the first is due.

    ``kinds[i]`` is reasoning, content, tool_name, tool or hidden (a token that no client sees); ``texts[i]`` what token ``i``
    adds to its channel; ``raws[i]`` its bytes in the KV cache.
    """

    kinds: list[str] = dataclasses.field(default_factory=list)
    texts: list[str] = dataclasses.field(default_factory=list)
    raws: list[bytes] = dataclasses.field(default_factory=list)
    finish: str = "stop"
    stop_reason: str | None = None
    tool: dict | None = None
    parsed: bool = False

    def add(self, kind: str, text: str, raw: bytes) -> None:
        """Append one token."""
        self.kinds.append(kind)
        self.texts.append(text)
        self.raws.append(raw)

    def __len__(self) -> int:
        return len(self.kinds)

    def cut(self, count: int) -> None:
        """Drop what comes after ``count`` tokens."""
        del self.kinds[count:], self.texts[count:], self.raws[count:]

    def channel(self, kind: str, made: int | None = None) -> str:
        """The text of a channel in the first ``made`` tokens."""
        return "".join(text for text, own in zip(self.texts[:made], self.kinds[:made], strict=True) if own == kind)

    def spans(self, made: int) -> list[Span]:
        """The first ``made`` tokens as spans, so that the next turn's prompt finds them in the cache."""
        out, run = [], []
        for raw in self.raws[:made]:
            if raw.startswith(b"\0"):
                out += [Span.of(run), Span.of([raw])]
                run = []
            else:
                run.append(raw)
        return [*out, Span.of(run)]


END = b"\0end"
END_OF_THOUGHT = b"\0/think"


def tool_source(name: str, arguments: str) -> tuple[str, str, str, str]:
    """A tool call as the model writes it, in the parts that a parser tells apart: name, gap, arguments, end."""
    return '<tool_call>\n{"name": ' + json.dumps(name), ', "arguments": ', arguments, "}\n</tool_call>"


def _add_tool_call(plan: Plan, name: str, arguments: str) -> None:
    head, gap, middle, tail = (part.encode("utf-8", "replace") for part in tool_source(name, arguments))
    begin = len(head) + len(gap)
    at, named = 0, False
    for raw in tokens((head + gap + middle + tail).decode()):
        stop = at + len(raw)
        inside = raw[max(0, begin - at) : max(0, begin + len(middle) - at)]
        if not named and stop >= len(head):
            named = True
            plan.add("tool_name", "", raw)
        else:
            plan.add("tool" if inside else "hidden", inside.decode(), raw)
        at = stop


def _apply_stop(plan: Plan, stops: list[str], keep: bool) -> None:
    """End the visible text at the first stop string; ``keep`` leaves the string in."""
    text = plan.channel("content")
    found = min(((text.find(stop) + len(stop), stop) for stop in stops if stop in text), default=None)
    if found is None:
        return
    end, stop = found
    left = end if keep else end - len(stop)
    seen = 0
    for index, kind in enumerate(plan.kinds):
        if kind != "content":
            continue
        length = len(plan.texts[index])
        plan.texts[index] = plan.texts[index][: max(0, left - seen)]
        seen += length
        if seen >= end:
            plan.cut(index + 1)
            break
    plan.finish, plan.stop_reason = "stop", stop


def make_plan(
    script: Script,
    rng: random.Random,
    messages: list[dict],
    max_tokens: int,
    default_tokens: int,
    tool: dict | None = None,
    schema: dict | None = None,
    stops: tuple[str, ...] = (),
    keep_stop: bool = False,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    thinking: bool = True,
) -> Plan:
    """Decide every token of an answer.

    ``tool`` is {id, name, arguments (text), content (beside the call), finish}; ``schema`` a JSON schema that the text must satisfy; ``default_tokens``
    the length of an answer that nothing else decides.
    """
    question = next((text_of(message.get("content")) for message in reversed(messages) if message.get("role") == "user"), "")
    chinese = has_han(question)
    plan = Plan(tool=tool, parsed=tool is not None)
    if script.reasoning_tokens and thinking:
        plan.parsed = True
        for raw in prose_tokens(rng, script.reasoning_tokens, chinese):
            plan.add("reasoning", raw.decode(), raw)
        plan.add("hidden", "", END_OF_THOUGHT)
    wanted = script.tokens
    if tool is not None:
        _add_tool_call(plan, tool["name"], tool["arguments"])
    else:
        if script.text is not None:
            text = script.text
        elif wanted:
            text = ""
        elif schema is not None:
            text = json.dumps(instance(schema, question), ensure_ascii=False)
        else:
            text = answer(messages)
            wanted = 0 if text else default_tokens
        for raw in tokens(text):
            plan.add("content", raw.decode(), raw)
    ignore_eos = ignore_eos and tool is None
    if ignore_eos:
        wanted = max_tokens
    # The last token of an answer that ends by itself says so and has no text.
    missing = max(wanted, min_tokens) - len(plan) - (0 if ignore_eos else 1)
    if missing > 0 and tool is None:
        for raw in prose_tokens(rng, missing, chinese):
            plan.add("content", raw.decode(), raw)
    if not ignore_eos:
        plan.add("hidden", "", END)
    plan.finish = tool["finish"] if tool is not None else "stop"
    if len(plan) > max_tokens:
        plan.cut(max_tokens)
        plan.finish = "length"
    elif ignore_eos:
        plan.finish = "length"
    if stops:
        _apply_stop(plan, list(stops), keep_stop)
    if script.first_delta == "empty" and len(plan) > 1 and plan.kinds[0] == plan.kinds[1]:
        plan.texts[1], plan.texts[0] = plan.texts[0] + plan.texts[1], ""
    return plan


# ---- the engine: slots, queue, serial prefill, decode; no sockets, no clock of its own


@dataclasses.dataclass(eq=False)
class Sequence:
    """One request inside the engine. Times are the engine's seconds."""

    spans: list[Span]
    plan: Plan
    script: Script
    rng: random.Random
    sink: Callable[[Sequence, int, float], None]
    keys: list[int] = dataclasses.field(default_factory=list)
    state: str = "new"
    prompt_tokens: int = 0
    cached: int = 0
    created: int = 0
    arrival: float = 0.0
    prefill_start: float | None = None
    prefill_end: float | None = None
    prefill_chunks: int = 0
    made: int = 0
    steps: int = 0
    decode_start: float = 0.0
    blocks: int = 0
    held: list[int] = dataclasses.field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the last token was made."""
        return self.made >= len(self.plan)


@dataclasses.dataclass
class CoreOptions:
    """What the engine has and how fast it is.

    Attributes:
        slots: sequences that run at a time (vLLM's ``max_num_seqs``).
        prefill_tokens_per_s, prefill_base_s: a prefill takes base + uncached tokens / rate.
        prefill_pauses_decode: whether running sequences stand still while a prompt is computed.
        kv_blocks, block_tokens: the KV memory, and the grain of the prefix cache.
        batched_tokens: prompt tokens of one engine step (only the step counter knows).
    """

    slots: int = 4
    prefill_tokens_per_s: float = 8000.0
    prefill_base_s: float = 0.0
    prefill_pauses_decode: bool = False
    kv_blocks: int = 16384
    block_tokens: int = 16
    prefix_caching: bool = True
    batched_tokens: int = 2048


class Core:
    """The model of the engine. Everything happens at its due time, however late ``run`` is called, so nothing drifts."""

    def __init__(self, options: CoreOptions) -> None:
        self.options = options
        self.pool = BlockPool(options.kv_blocks, options.prefix_caching)
        self.waiting: collections.deque[Sequence] = collections.deque()
        self.running: set[Sequence] = set()
        self.count: collections.Counter[str] = collections.Counter()
        self.accepted_at: collections.Counter[int] = collections.Counter()
        #: Tokens of every engine step since this was last emptied.
        self.iterations: list[int] = []
        self._prefill: Sequence | None = None
        self._prefill_due = 0.0
        self._heap: list[tuple[float, int, Sequence]] = []
        self._order = itertools.count()
        # Decode time stands still while prefill pauses decode: it was _decode_base at engine time _decode_since.
        self._decode_base = 0.0
        self._decode_since: float | None = 0.0

    def submit(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence."""
        self.run(now)
        sequence.prompt_tokens = sum(span.count for span in sequence.spans)
        sequence.keys = block_keys(sequence.spans, self.options.block_tokens)
        sequence.arrival = now
        sequence.state = "waiting"
        self.waiting.append(sequence)
        self._start(now)

    def abort(self, sequence: Sequence, now: float) -> str:
        """Forget a sequence; returns where it was: waiting, prefill, decode, or done."""
        self.run(now)
        state, sequence.state = sequence.state, "done"
        if state == "waiting":
            self.waiting.remove(sequence)
        elif state in ("prefill", "decode"):
            if state == "prefill":
                self._step_counts(now)
                self._prefill = None
                self._thaw(now)
            self._release(sequence, now)
        return state

    def next_due(self) -> float | None:
        """When something happens next, or None."""
        while self._heap and self._heap[0][2].state != "decode":
            heapq.heappop(self._heap)
        due = self._prefill_due if self._prefill is not None else None
        if self._heap and self._decode_since is not None:
            decode = self._decode_since + (self._heap[0][0] - self._decode_base)
            due = decode if due is None else min(due, decode)
        return due

    def run(self, now: float) -> None:
        """Let everything happen that is due, each at its own time."""
        decoded = 0
        while True:
            due = self.next_due()
            if due is None or due > now:
                break
            if self._prefill is not None and self._prefill_due <= due:
                self._end_prefill(due)
            else:
                decoded += self._decode(heapq.heappop(self._heap)[2], due)
        if decoded:
            self.iterations.append(decoded)

    def step_counts(self, now: float) -> list[int]:
        """Tokens of the engine steps since the last call, those of the running prefill included."""
        self.run(now)
        self._step_counts(now)
        counts, self.iterations = self.iterations, []
        return counts

    # ---- inside

    def _decode_now(self, at: float) -> float:
        return self._decode_base + (0.0 if self._decode_since is None else at - self._decode_since)

    def _freeze(self, at: float) -> None:
        if self.options.prefill_pauses_decode:
            self._decode_base, self._decode_since = self._decode_now(at), None

    def _thaw(self, at: float) -> None:
        if self.options.prefill_pauses_decode:
            self._decode_since = at

    def _start(self, at: float) -> None:
        """Begin the prefill of the first in the queue, if a slot, the prefill unit and memory are free."""
        if self._prefill is not None or not self.waiting or len(self.running) >= self.options.slots:
            return
        sequence = self.waiting[0]
        size = self.options.block_tokens
        # At least one token of a prompt is always computed: the answer's first token comes from it.
        hits = self.pool.match(sequence.keys[: (sequence.prompt_tokens - 1) // size])
        blocks = -(-(sequence.prompt_tokens + len(sequence.plan)) // size) - len(hits)
        if not self.pool.take(hits, blocks):
            return
        self.waiting.popleft()
        self.running.add(sequence)
        sequence.state, sequence.prefill_start = "prefill", at
        sequence.held, sequence.blocks = hits, blocks
        sequence.cached = len(hits) * size
        computed = sequence.prompt_tokens - sequence.cached
        sequence.created = (sequence.prompt_tokens // size) * size - sequence.cached if self.pool.caching else 0
        if sequence.script.prefill_s >= 0:
            seconds = sequence.script.prefill_s * computed / sequence.prompt_tokens
        else:
            seconds = computed / self.options.prefill_tokens_per_s
        if self.pool.caching:
            self.count["prefix_queries"] += sequence.prompt_tokens
            self.count["prefix_hits"] += sequence.cached
        self._prefill, self._prefill_due = sequence, at + self.options.prefill_base_s + seconds
        self._freeze(at)

    def _step_counts(self, now: float) -> None:
        """Count the steps that the running prefill has made until now."""
        sequence = self._prefill
        if sequence is None:
            return
        whole = self._prefill_due - sequence.prefill_start
        share = (now - sequence.prefill_start) / whole if whole > 0 else 1.0
        chunks = int(min(1.0, share) * (sequence.prompt_tokens - sequence.cached)) // self.options.batched_tokens
        self.iterations += [self.options.batched_tokens] * (chunks - sequence.prefill_chunks)
        sequence.prefill_chunks = chunks

    def _end_prefill(self, at: float) -> None:
        sequence, self._prefill = self._prefill, None
        computed = sequence.prompt_tokens - sequence.cached
        left = computed - sequence.prefill_chunks * self.options.batched_tokens
        while left > self.options.batched_tokens:
            self.iterations.append(self.options.batched_tokens)
            left -= self.options.batched_tokens
        # The step that computes the last of the prompt makes the first token too.
        self.iterations.append(left + 1)
        sequence.prefill_end, sequence.state = at, "decode"
        if self.pool.caching:
            for key in sequence.keys[len(sequence.held) :]:
                self.pool.publish(key)
                sequence.held.append(key)
                sequence.blocks -= 1
        self.count["prompt_tokens"] += sequence.prompt_tokens
        self.count["prompt_tokens_cached"] += sequence.cached
        self._thaw(at)
        sequence.decode_start = self._decode_now(at)
        self._emit(sequence, 1, at)
        self._start(at)

    def _decode(self, sequence: Sequence, at: float) -> int:
        count = 1
        drafted = sequence.script.spec_tokens
        if drafted:
            while count <= drafted and sequence.rng.random() < sequence.script.spec_acceptance:
                count += 1
            count = min(count, len(sequence.plan) - sequence.made)
            self.count["drafts"] += 1
            self.count["draft_tokens"] += drafted
            self.count["accepted_tokens"] += count - 1
            self.accepted_at.update(range(count - 1))
        self._emit(sequence, count, at)
        return count

    def _emit(self, sequence: Sequence, count: int, at: float) -> None:
        sequence.made += count
        self.count["generation_tokens"] += count
        sequence.sink(sequence, count, at)
        if sequence.done:
            sequence.state = "done"
            self._release(sequence, at)
            return
        sequence.steps += 1
        offset = sequence.script.jitter * (sequence.rng.random() - 0.5) if sequence.script.jitter else 0.0
        due = sequence.decode_start + (sequence.steps + offset) / sequence.script.decode_tokens_per_s
        heapq.heappush(self._heap, (due, next(self._order), sequence))

    def _release(self, sequence: Sequence, at: float) -> None:
        """Give back slot and memory, and leave what was computed in the cache."""
        self.running.discard(sequence)
        if self.pool.caching and sequence.prefill_end is not None:
            spans = sequence.spans + sequence.plan.spans(sequence.made)
            for key in block_keys(spans, self.options.block_tokens, tuple(sequence.keys))[len(sequence.held) :]:
                self.pool.publish(key)
                sequence.held.append(key)
                sequence.blocks -= 1
        self.pool.release(sequence.held, sequence.blocks)
        sequence.held, sequence.blocks = [], 0
        self._start(at)


# ---- metrics

_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
#: Histograms in vLLM's order; None stands for buckets of 1, 2, 5, 10, ... up to the model's context.
HISTOGRAMS = {
    "request_prompt_tokens": None,
    "request_generation_tokens": None,
    "iteration_tokens_total": tuple(float(2**power) for power in (0, *range(3, 15))),
    "request_max_num_generation_tokens": None,
    "request_params_n": (1.0, 2.0, 5.0, 10.0, 20.0),
    "request_params_max_tokens": None,
    "time_to_first_token_seconds": _TTFT,
    "inter_token_latency_seconds": _GAP,
    "request_time_per_output_token_seconds": _GAP,
    "e2e_request_latency_seconds": _LATENCY,
    "request_queue_time_seconds": _LATENCY,
    "request_inference_time_seconds": _LATENCY,
    "request_prefill_time_seconds": _LATENCY,
    "request_decode_time_seconds": _LATENCY,
    "request_num_preemptions": (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    "request_prefill_kv_computed_tokens": None,
}
#: Labels of vLLM's cache_config_info that say nothing about a stand-in.
CACHE_LABELS = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "True",
}


def _figure(value: float) -> str:
    """A number as Prometheus clients print it: 20.0, 1.7959987103354623e+09."""
    text = repr(float(value))
    dot = text.find(".")
    if "e" in text or dot <= 6:
        return text
    return "{0}.{1}e+{2:02d}".format(text[0], (text[1:dot] + text[dot + 1 :]).rstrip("0") or "0", dot - 1)


class Histogram:
    """Counts by bucket, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = (*bounds, math.inf)
        self.counts = [0] * len(self.bounds)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[next(index for index, bound in enumerate(self.bounds) if value <= bound)] += 1
        self.sum += value


class Metrics:
    """What vLLM 0.32 exposes under ``vllm:``, in its order and with its labels; figures a stand-in cannot have are 0."""

    def __init__(self, core: Core, model: str, max_model_len: int, spec_tokens: int) -> None:
        self._core = core
        self._model = model
        self._spec = spec_tokens
        self._max_model_len = max_model_len
        self._created = time.time()
        tens = [float(step * 10**power) for power in range(9) for step in (1, 2, 5)]
        counts = tuple(bound for bound in tens if bound <= max_model_len)
        self.histograms = {name: Histogram(counts if bounds is None else bounds) for name, bounds in HISTOGRAMS.items()}
        self.finished: collections.Counter[str] = collections.Counter()
        self.http: collections.Counter[tuple[str, str, str]] = collections.Counter()

    def observe(self, name: str, value: float) -> None:
        """Count one value of a histogram."""
        self.histograms[name].observe(value)

    def _labels(self, more: dict[str, str] | None = None, engine: bool = True) -> str:
        pairs = dict({"engine": "0"} if engine else {}, model_name=self._model, **(more or {}))
        return "{" + ",".join('{0}="{1}"'.format(name, pairs[name]) for name in sorted(pairs)) + "}"

    def render(self, now: float) -> str:
        """The text of ``/metrics``."""
        core, out = self._core, []
        for tokens_of_step in core.step_counts(now):
            self.observe("iteration_tokens_total", tokens_of_step)

        def head(name: str, kind: str, about: str) -> None:
            out.append("# HELP {0} {1}".format(name, about))
            out.append("# TYPE {0} {1}".format(name, kind))

        def gauge(name: str, about: str, series: dict[str, float]) -> None:
            head("vllm:" + name, "gauge", about)
            out.extend("vllm:{0}{1} {2}".format(name, labels, _figure(value)) for labels, value in series.items())

        def counter(name: str, about: str, series: dict[str, float]) -> None:
            head("vllm:{0}_total".format(name), "counter", about)
            out.extend("vllm:{0}_total{1} {2}".format(name, labels, _figure(value)) for labels, value in series.items())
            gauge(name + "_created", about, dict.fromkeys(series, self._created))

        plain = self._labels()

        def by(label: str, values: dict[str, float]) -> dict[str, float]:
            return {self._labels({label: name}): value for name, value in values.items()}

        for name in ("flops", "read_bytes", "write_bytes"):
            counter("estimated_{0}_per_gpu".format(name), "Not estimated by a stand-in.", {plain: 0})
        waiting = len(core.waiting)
        gauge("num_requests_running", "Requests that hold a slot.", {plain: len(core.running)})
        gauge("num_requests_waiting", "Requests in the queue.", {plain: waiting})
        gauge("num_requests_waiting_by_reason", "Requests in the queue, by reason.", by("reason", {"capacity": waiting, "deferred": 0}))
        gauge("engine_sleep_state", "Whether the engine sleeps.", by("sleep_state", {"awake": 1, "weights_offloaded": 0, "discard_all": 0}))
        gauge("kv_cache_usage_perc", "Share of the KV blocks that running requests hold.", {plain: core.pool.used / core.pool.total})
        counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", {plain: core.count["prefix_queries"]})
        counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.", {plain: core.count["prefix_hits"]})
        for name in ("external_prefix_cache", "mm_cache"):
            counter(name + "_queries", "There is no such cache.", {plain: 0})
            counter(name + "_hits", "There is no such cache.", {plain: 0})
        counter("num_preemptions", "Requests that lost their memory.", {plain: 0})
        prompt, cached = core.count["prompt_tokens"], core.count["prompt_tokens_cached"]
        counter("prompt_tokens", "Prompt tokens of requests whose prefill ended.", {plain: prompt})
        sources = {"local_compute": prompt - cached, "local_cache_hit": cached, "external_kv_transfer": 0}
        counter("prompt_tokens_by_source", "Prompt tokens by where they came from.", by("source", sources))
        counter("prompt_tokens_cached", "Prompt tokens out of a cache.", {plain: cached})
        sources = {"device": cached, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0}
        counter("prompt_tokens_cached_by_source", "Prompt tokens out of a cache, by cache.", by("source", sources))
        counter("generation_tokens", "Tokens made.", {plain: core.count["generation_tokens"]})
        reasons = {name: self.finished[name] for name in ("stop", "length", "abort", "error", "repetition")}
        counter("request_success", "Requests that ended, by reason.", by("finished_reason", reasons))
        series = {self._labels({"reason": name}, False): 0.0 for name in ("max_num_queued_reqs", "max_num_queued_tokens")}
        counter("admission_rejections", "The queue has no limit.", series)
        for name, histogram in self.histograms.items():
            head("vllm:" + name, "histogram", "Distribution of {0}.".format(name.replace("_", " ")))
            total = 0
            for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
                total += count
                bound_text = "+Inf" if bound == math.inf else repr(bound)
                out.append("vllm:{0}_bucket{1} {2}".format(name, self._labels({"le": bound_text}), _figure(total)))
            out.append("vllm:{0}_count{1} {2}".format(name, plain, _figure(total)))
            out.append("vllm:{0}_sum{1} {2}".format(name, plain, _figure(histogram.sum)))
            gauge(name + "_created", "Distribution of {0}.".format(name.replace("_", " ")), {plain: self._created})
        if self._spec:
            for name in ("drafts", "draft_tokens", "accepted_tokens"):
                counter("spec_decode_num_" + name, "Speculative decoding.", {plain: core.count[name]})
            positions = {str(position): core.accepted_at[position] for position in range(self._spec)}
            counter("spec_decode_num_accepted_tokens_per_pos", "Speculative decoding.", by("position", positions))
        size = core.options.block_tokens
        capacity = core.options.kv_blocks * size
        labels = dict(
            CACHE_LABELS,
            block_size=str(size),
            effective_attention_block_size=str(size),
            enable_prefix_caching=str(core.options.prefix_caching),
            engine="0",
            kv_cache_max_concurrency=str(capacity / self._max_model_len),
            kv_cache_size_tokens=str(capacity),
            num_gpu_blocks=str(core.options.kv_blocks),
        )
        text = "{" + ",".join('{0}="{1}"'.format(name, labels[name]) for name in sorted(labels)) + "}"
        gauge("cache_config_info", "The engine's cache.", {text: 1})
        head("process_start_time_seconds", "gauge", "When the process began, since the epoch.")
        out.append("process_start_time_seconds {0}".format(_figure(self._created)))
        head("process_cpu_seconds_total", "counter", "User and system CPU time.")
        out.append("process_cpu_seconds_total {0}".format(_figure(time.process_time())))
        head("http_requests_total", "counter", "Requests by handler, method and status.")
        for (handler, method, status), count in sorted(self.http.items()):
            out.append('http_requests_total{{handler="{0}",method="{1}",status="{2}"}} {3}'.format(handler, method, status, _figure(count)))
        return "\n".join(out) + "\n"


# ---- HTTP

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Payload Too Large",
    500: "Internal Server Error",
}
#: The fields that are read, and what each must be when it is there.
_TYPES = {
    "model": (str, "string"),
    "stream": (bool, "boolean"),
    "stream_options": (dict, "dictionary"),
    "stop": ((str, list), "string"),
    "min_tokens": (int, "integer"),
    "ignore_eos": (bool, "boolean"),
    "tools": (list, "list"),
    "tool_choice": ((str, dict), "string"),
    "response_format": (dict, "dictionary"),
    "chat_template_kwargs": (dict, "dictionary"),
}


def compact(value: object) -> str:
    """JSON as vLLM's server writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Connection(asyncio.Protocol):
    """One client connection: requests in, one answer at a time out."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._head: tuple[str, str, dict[str, str]] | None = None
        self._body = bytearray()
        self._chunked = False
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None
        self._keep = True
        self._method = ""
        self._old = False
        self.first_byte = 0.0
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.job: Job | None = None

    # ---- in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember who it is."""
        self.transport = transport
        self.peer = "{0}:{1}".format(*transport.get_extra_info("peername")[:2])
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went: what it asked for is dropped."""
        self._server.connections.discard(self)
        self._stop_timer()
        if self.job is not None:
            job, self.job = self.job, None
            job.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes; a request that comes while another is answered waits."""
        self._stop_timer()
        if not self._buffer and self._head is None:
            self.first_byte = time.monotonic()
        self._buffer += data
        self._parse()

    def _parse(self) -> None:
        while self.job is None and self._buffer and not self.transport.is_closing():
            if self._head is None and not self._parse_head():
                return
            if not self._parse_body():
                return
            method, target, headers = self._head
            body, self._body, self._head = bytes(self._body), bytearray(), None
            self._server.handle(self, method, target, headers, body)

    def _parse_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_LIMIT:
                self._bad()
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        found = re.fullmatch(r"([A-Z]+) (\S+) HTTP/1\.([01])", lines[0])
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            name = name.lower()
            if not colon or not name or name != name.strip() or (name in ("content-length", "transfer-encoding") and name in headers):
                found = None
                break
            headers[name] = value.strip()
        length, encoding = headers.get("content-length"), headers.get("transfer-encoding")
        if length is not None and (encoding is not None or not length.isdigit()):
            found = None
        if found is None or (encoding is not None and encoding.lower() != "chunked"):
            self._bad()
            return False
        self._chunked = encoding is not None
        self._left = int(length or 0)
        if self._left > BODY_LIMIT:
            self._bad(413)
            return False
        self._old = found.group(3) == "0"
        connection = headers.get("connection", "").lower()
        self._keep = "close" not in connection and not self._old
        self._method = found.group(1)
        self._head = (self._method, found.group(2), headers)
        if headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _parse_body(self) -> bool:
        """Whether the body is complete."""
        if not self._chunked:
            if len(self._buffer) < self._left:
                return False
            self._body += self._buffer[: self._left]
            del self._buffer[: self._left]
            return True
        while True:
            end = self._buffer.find(b"\r\n")
            if end < 0:
                return False
            size_text = bytes(self._buffer[:end]).partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size_text) or len(self._body) > BODY_LIMIT:
                self._bad()
                return False
            size = int(size_text, 16)
            if len(self._buffer) < end + 2 + size + 2:
                return False
            if self._buffer[end + 2 + size : end + 4 + size] != b"\r\n":
                # Trailers are not taken either.
                self._bad()
                return False
            self._body += self._buffer[end + 2 : end + 2 + size]
            del self._buffer[: end + 4 + size]
            if not size:
                return True

    def _bad(self, status: int = 400) -> None:
        self._buffer.clear()
        self._keep = False
        self._method = ""
        self.answer(status, b"Invalid HTTP request received.", "text/plain; charset=utf-8")

    # ---- out

    def _write_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        lines = ["HTTP/1.1 {0} {1}".format(status, _REASONS[status])]
        lines += ["{0}: {1}".format(name, value) for name, value in [("date", self._server.date()), ("server", "uvicorn"), *headers]]
        if not self._keep:
            lines.append("connection: close")
        self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def answer(self, status: int, body: bytes, content_type: str = "application/json", more: tuple[tuple[str, str], ...] = ()) -> None:
        """Send a whole answer and take the next request."""
        headers = [("content-length", str(len(body)))]
        if content_type:
            headers.append(("content-type", content_type))
        self._write_head(status, [*headers, *more])
        if body and self._method != "HEAD":
            self.transport.write(body)
        self.end()

    def begin_stream(self) -> None:
        """Send the head of an event stream."""
        headers = [("content-type", "text/event-stream; charset=utf-8")]
        if not self._old:
            headers.append(("transfer-encoding", "chunked"))
        self._write_head(200, headers)

    def event(self, data: str) -> None:
        """Send one event."""
        raw = "data: {0}\n\n".format(data).encode("utf-8", "replace")
        self.transport.write(b"%x\r\n%s\r\n" % (len(raw), raw) if not self._old else raw)

    def end_stream(self) -> None:
        """Say that the stream is over."""
        if not self._old:
            self.transport.write(b"0\r\n\r\n")
        self.end()

    def end(self) -> None:
        """The answer is complete: close, or take the next request."""
        self.job = None
        self._head = None
        if not self._keep or self.transport.is_closing():
            self.transport.close()
            return
        if self._buffer:
            self.first_byte = time.monotonic()
            asyncio.get_running_loop().call_soon(self._parse)
        else:
            self._timer = asyncio.get_running_loop().call_later(self._server.options.keep_alive_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Job:
    """One generation: its place in the engine, what the client gets, and the truth about both."""

    def __init__(self, server: Server, connection: Connection, path: str, request: dict, chat: bool, ident: str, key: int | None) -> None:
        self._server = server
        self._connection = connection
        self._chat = chat
        self._stream = bool(request.get("stream"))
        usage = request.get("stream_options") or {}
        self._usage_wanted = bool(usage.get("include_usage"))
        self._usage_always = self._usage_wanted and bool(usage.get("continuous_usage_stats"))
        self._ident = ident
        self._model = request.get("model") or server.options.model[0]
        self._created = int(time.time())
        self._prefix = compact(
            {
                "id": ident,
                "object": "chat.completion.chunk" if self._chat else "text_completion",
                "created": self._created,
                "model": self._model,
            }
        )[:-1]
        self._max_tokens = 0
        self._role_sent = False
        self._last_at = 0.0
        self._late = 0.0
        self.sequence: Sequence | None = None
        self.events: list[list] = []
        self.record = {
            "request": ident,
            "path": path,
            "peer": connection.peer,
            "key": key,
            "model": self._model,
            "stream": self._stream,
            "status": 200,
            "unix": round(time.time(), 6),
            "arrival": round(connection.first_byte, 6),
        }

    def start(self, sequence: Sequence, max_tokens: int) -> None:
        """Give the work to the engine."""
        self.sequence = sequence
        self._max_tokens = max_tokens
        self._connection.job = self
        self.record["submitted"] = round(time.monotonic(), 6)
        if self._stream:
            self._connection.begin_stream()
            if sequence.script.first_delta == "early" and self._chat:
                self._send_role()
        self._server.submit(sequence)

    # ---- steps

    def _stamp(self, kind: str, count: int) -> None:
        # Before the bytes leave: no client can have seen them earlier.
        self.events.append([round(time.monotonic(), 6), kind, count])

    def _send_role(self) -> None:
        self._role_sent = True
        self._stamp("role", 0)
        choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        usage = self._running_usage(0)
        self._connection.event('{0},"choices":[{1}],"prompt_token_ids":null,"prompt_text":null{2}}}'.format(self._prefix, choice, usage))

    def _running_usage(self, made: int) -> str:
        if not self._usage_always:
            return ""
        prompt = self.sequence.prompt_tokens
        return ',"usage":' + compact({"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made})

    def step(self, sequence: Sequence, count: int, at: float) -> None:
        """Tokens were made at engine time ``at``: send what a client may see of them."""
        plan, stop = sequence.plan, sequence.made
        first = stop - count
        self._late = max(self._late, time.monotonic() - self._server.wall(at))
        self._observe_step(sequence, first, at)
        kinds = list(dict.fromkeys(plan.kinds[first:stop]))
        seen = [kind for kind in kinds if kind != "hidden"]
        kind = "+".join(seen) or "hidden"
        last = sequence.done
        if not self._stream:
            self._stamp(kind, count)
            if last:
                self._finish_whole()
            return
        if self._chat and not self._role_sent:
            self._send_role()
        self._stamp(kind, count)
        if self._chat:
            delta = self._delta(plan, first, stop, seen)
            # A parser swallows tokens that nobody is to see; without one their empty text is sent.
            if delta is not None or last:
                self._send_choice(plan, {} if delta is None else delta, last, stop)
        else:
            text = "".join(plan.texts[first:stop])
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": plan.finish if last else None}
            choice.update(stop_reason=plan.stop_reason if last else None, prompt_token_ids=None, token_ids=None)
            self._send_chunk(compact(choice), last, stop)
        if last:
            self._finish_stream()

    def _delta(self, plan: Plan, first: int, stop: int, seen: list[str]) -> dict | None:
        delta: dict[str, object] = {}
        if not plan.parsed:
            return {"content": "".join(plan.texts[first:stop])}
        for kind in seen:
            text = "".join(plan.texts[index] for index in range(first, stop) if plan.kinds[index] == kind)
            if kind == "reasoning":
                for field in self._server.reasoning_fields:
                    delta[field] = text
            elif kind == "content":
                delta["content"] = text
            elif kind == "tool_name":
                call = {"id": plan.tool["id"], "type": "function", "index": 0, "function": {"name": plan.tool["name"]}}
                delta["tool_calls"] = [call]
            elif "tool_calls" in delta:
                delta["tool_calls"][0]["function"]["arguments"] = text
            else:
                delta["tool_calls"] = [{"index": 0, "function": {"arguments": text}}]
        return delta or None

    def _send_choice(self, plan: Plan, delta: dict, last: bool, made: int) -> None:
        if last:
            ending = '"finish_reason":{0},"stop_reason":{1}'.format(compact(plan.finish), compact(plan.stop_reason))
        else:
            ending = '"finish_reason":null'
        self._send_chunk('{{"index":0,"delta":{0},"logprobs":null,{1},"token_ids":null}}'.format(compact(delta), ending), last, made)

    def _send_chunk(self, choice: str, last: bool, made: int) -> None:
        mark = ',"system_fingerprint":"{0}"'.format(FINGERPRINT) if last and not self._usage_wanted else ""
        self._connection.event('{0},"choices":[{1}]{2}{3}}}'.format(self._prefix, choice, self._running_usage(made), mark))

    # ---- ends

    def _usage(self, whole: bool) -> dict:
        sequence = self.sequence
        usage = {
            "prompt_tokens": sequence.prompt_tokens,
            "total_tokens": sequence.prompt_tokens + sequence.made,
            "completion_tokens": sequence.made,
        }
        details: dict[str, object] | None = None
        if self._server.options.prompt_tokens_details:
            details = {"cached_tokens": sequence.cached}
            if self._chat:
                details["created_cache_tokens"] = sequence.created
                if whole:
                    details["multimodal_tokens"] = None
        reasoning = sequence.plan.kinds.count("reasoning")
        thought = {"reasoning_tokens": reasoning} if reasoning else None
        if whole or details is not None:
            usage["prompt_tokens_details"] = details
        if whole or thought is not None:
            usage["completion_tokens_details"] = thought
        return usage

    def _finish_stream(self) -> None:
        if self._usage_wanted:
            self._stamp("usage", 0)
            ending = ',"choices":[],"usage":{0},"system_fingerprint":"{1}"}}'.format(compact(self._usage(False)), FINGERPRINT)
            self._connection.event(self._prefix + ending)
        self._stamp("done", 0)
        # The log comes before the last bytes: who has seen the end finds the truth about it.
        self._close("")
        self._connection.event("[DONE]")
        self._connection.end_stream()

    def _finish_whole(self) -> None:
        plan = self.sequence.plan
        content = plan.channel("content")
        if self._chat:
            message: dict[str, object] = {"role": "assistant", "content": content}
            message.update(refusal=None, annotations=None, audio=None, function_call=None)
            if plan.tool is not None:
                function = {"name": plan.tool["name"], "arguments": plan.channel("tool")}
                message["tool_calls"] = [{"id": plan.tool["id"], "type": "function", "function": function}]
                message["content"] = content or plan.tool["content"]
            elif plan.parsed:
                message["content"] = content or None
            message.update(dict.fromkeys(self._server.reasoning_fields, plan.channel("reasoning") or None))
            choice: dict[str, object] = {"index": 0, "message": message, "logprobs": None, "finish_reason": plan.finish}
            choice.update(stop_reason=plan.stop_reason, token_ids=None, routed_experts=None)
            rest = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        else:
            choice = {"index": 0, "text": content, "logprobs": None, "finish_reason": plan.finish, "stop_reason": plan.stop_reason}
            choice.update(token_ids=None, prompt_logprobs=None, prompt_token_ids=None, routed_experts=None)
            rest = {}
        body = {
            "id": self._ident,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self._usage(True),
            **rest,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
        self._stamp("answer", 0)
        self._close("")
        self._connection.answer(200, compact(body).encode("utf-8", "replace"))

    def abort(self) -> None:
        """The client is gone."""
        state = self._server.abort(self.sequence)
        # Its last bytes may have been on their way: then it was not aborted.
        if state != "done":
            self._server.metrics.finished["abort"] += 1
            self._close(state)

    def _observe_step(self, sequence: Sequence, first: int, at: float) -> None:
        observe, scale = self._server.metrics.observe, self._server.options.time_scale
        if not first:
            observe("time_to_first_token_seconds", (at - sequence.arrival) / scale)
        else:
            observe("inter_token_latency_seconds", (at - self._last_at) / scale)
        self._last_at = at
        if not sequence.done:
            return
        self._server.metrics.finished["length" if sequence.plan.finish == "length" else "stop"] += 1
        decode = at - sequence.prefill_end
        observe("request_prompt_tokens", sequence.prompt_tokens)
        observe("request_generation_tokens", sequence.made)
        observe("request_max_num_generation_tokens", sequence.made)
        observe("request_params_n", 1)
        observe("request_params_max_tokens", self._max_tokens)
        if sequence.made > 1:
            observe("request_time_per_output_token_seconds", decode / (sequence.made - 1) / scale)
        observe("e2e_request_latency_seconds", (at - sequence.arrival) / scale)
        observe("request_queue_time_seconds", (sequence.prefill_start - sequence.arrival) / scale)
        observe("request_inference_time_seconds", (at - sequence.prefill_start) / scale)
        observe("request_prefill_time_seconds", (sequence.prefill_end - sequence.prefill_start) / scale)
        observe("request_decode_time_seconds", decode / scale)
        observe("request_num_preemptions", 0)
        observe("request_prefill_kv_computed_tokens", sequence.prompt_tokens - sequence.cached)

    def _close(self, aborted_in: str) -> None:
        """Write the truth about this request, with the figures a client should have found."""
        sequence, record, wall = self.sequence, self.record, self._server.wall
        plan, made = sequence.plan, sequence.made
        reasoning = plan.kinds[:made].count("reasoning")
        record.update(
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached,
            completion_tokens=made,
            reasoning_tokens=reasoning,
            finish="abort" if aborted_in else plan.finish,
            stop_reason=None if aborted_in else plan.stop_reason,
            aborted_in=aborted_in or None,
            queue_s=None if sequence.prefill_start is None else round(wall(sequence.prefill_start) - wall(sequence.arrival), 6),
            prefill_start=None if sequence.prefill_start is None else round(wall(sequence.prefill_start), 6),
            prefill_end=None if sequence.prefill_end is None else round(wall(sequence.prefill_end), 6),
            end=round(time.monotonic(), 6),
            late_s=round(self._late, 6),
            events=self.events,
        )
        if self._stream and not aborted_in:
            record.update(figures(record))
        record.update(
            reasoning=plan.channel("reasoning", made), content=plan.channel("content", made), arguments=plan.channel("tool", made)
        )
        self._server.log(record)


def figures(record: dict) -> dict:
    """The true figures of a streamed request, in seconds from its arrival, by the rules that clients use.

    ``ttft_s`` counts the first chunk with choices, ``ttft_token_s`` the first token that can be seen, ``ttft_content_s`` the first
    visible content (None without any); ``tpot_s`` is (last choices chunk - ttft) / (tokens - 1), ``chunks`` the chunks with tokens.
    """
    start = record["arrival"]
    chunks = [event for event in record["events"] if event[1] not in ("usage", "done")]
    seen = [event for event in chunks if event[1] not in ("role", "hidden")]
    content = [event for event in seen if "content" in event[1]]
    ttft, last, made = chunks[0][0], chunks[-1][0], record["completion_tokens"]
    return {
        "ttft_s": round(ttft - start, 6),
        "ttft_token_s": round(seen[0][0] - start, 6) if seen else None,
        "ttft_content_s": round(content[0][0] - start, 6) if content else None,
        "tpot_s": round((last - ttft) / (made - 1), 9) if made > 1 else None,
        "e2e_s": round(last - start, 6),
        "chunks": len(seen),
    }


class Server:
    """The HTTP surface, the clock, and the log of truth."""

    #: Paths that need the key are those below these; the rest of vLLM's surface is open.
    PROTECTED = ("/v1", "/v2", "/inference")
    #: Questions of monitors, which the log leaves out.
    QUIET = ("/health", "/ping", "/load", "/metrics", "/version")
    #: What is answered by POST.
    POSTS = ("/v1/chat/completions", "/v1/completions", "/invocations", "/tokenize", "/detokenize")
    KNOWN = (*QUIET, *POSTS, "/v1/models")

    def __init__(self, options: argparse.Namespace, core_options: CoreOptions, script: Script, rules: list[dict], keys: list[str]) -> None:
        self.options = options
        self.core = Core(core_options)
        self.metrics = Metrics(self.core, options.model[0], options.max_model_len, script.spec_tokens)
        self.connections: set[Connection] = set()
        self.reasoning_fields = ("reasoning", "reasoning_content") if options.reasoning_field == "both" else (options.reasoning_field,)
        self._script = script
        self._rules = rules
        self._keys = keys
        self._started = int(time.time())
        self._zero = time.monotonic()
        self._handle: asyncio.TimerHandle | None = None
        self._armed: float | None = None
        self._date = (0, "")
        self._idents = random.Random("{0} {1} {2}".format(options.seed, os.getpid(), time.time_ns()))
        self._log = open(options.truth, "a", encoding="utf-8", buffering=1) if options.truth else None
        self.log({"started": round(self._zero, 6), "unix": round(time.time(), 6), "pid": os.getpid(), "options": vars(options)})

    # ---- clock

    def now(self) -> float:
        """Engine time: seconds since the start, ``time_scale`` of them in one second."""
        return (time.monotonic() - self._zero) * self.options.time_scale

    def wall(self, at: float) -> float:
        """The ``time.monotonic()`` of an engine time."""
        return self._zero + at / self.options.time_scale

    def _arm(self) -> None:
        due = self.core.next_due()
        if due == self._armed:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._armed = due
        self._handle = None if due is None else asyncio.get_running_loop().call_at(self.wall(due), self._tick)

    def _tick(self) -> None:
        # The timer may fire a rounding error early.
        due, self._armed, self._handle = self._armed, None, None
        self.core.run(max(self.now(), due))
        self._arm()

    def submit(self, sequence: Sequence) -> None:
        """Hand a sequence to the engine."""
        self.core.submit(sequence, self.now())
        self._arm()

    def abort(self, sequence: Sequence) -> str:
        """Take a sequence back; returns where it was."""
        state = self.core.abort(sequence, self.now())
        self._arm()
        return state

    def date(self) -> str:
        """The Date header."""
        second = int(time.time())
        if self._date[0] != second:
            self._date = (second, time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second)))
        return self._date[1]

    def log(self, record: dict) -> None:
        """Append one line to the log of truth."""
        if self._log is not None:
            self._log.write(json.dumps(record, ensure_ascii=False) + "\n")

    # ---- requests

    def handle(self, connection: Connection, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        """Answer one request, or start to."""
        if target.lower().startswith(("http://", "https://")):
            target = "/" + target.split("/", 3)[3] if target.count("/") > 2 else "/"
        path = urllib.parse.unquote(target.partition("?")[0])
        key, status = None, 200
        try:
            if self._keys and path.startswith(self.PROTECTED) and method != "OPTIONS":
                word, _space, given = headers.get("authorization", "").partition(" ")
                if word != "Bearer" or given not in self._keys:
                    status = 401
                    self._note(connection, method, path, status)
                    connection.answer(status, b'{"error":"Unauthorized"}')
                    return
                key = self._keys.index(given)
            status = self._route(connection, method, path, headers, body, key)
        except Refused as refused:
            status = refused.status
            self._note(connection, method, path, status)
            connection.answer(status, compact(refused.body).encode("utf-8", "replace"))
        except Exception:
            # A fault of the stand-in itself: seen by the client at once and by whoever reads its standard error.
            status = 500
            traceback.print_exc()
            self._note(connection, method, path, status)
            connection.answer(status, b"Internal Server Error", "text/plain; charset=utf-8")
        finally:
            if path not in self.QUIET:
                handler = path if path in self.KNOWN else "none"
                self.metrics.http[(handler, method, "{0}xx".format(status // 100))] += 1

    def _note(self, connection: Connection, method: str, path: str, status: int) -> None:
        if path not in self.QUIET:
            self.log(
                {"method": method, "path": path, "peer": connection.peer, "status": status, "arrival": round(connection.first_byte, 6)}
            )

    def _route(self, connection: Connection, method: str, path: str, headers: dict[str, str], body: bytes, key: int | None) -> int:
        gets = {
            "/health": lambda: None,
            "/ping": lambda: None,
            "/version": lambda: {"version": VERSION},
            "/load": lambda: {"server_load": self._load() if self.options.enable_server_load_tracking else 0},
            "/metrics": lambda: self.metrics.render(self.now()),
            "/v1/models": self._models,
        }
        if not self.options.metrics:
            del gets["/metrics"]
        if path not in gets and path not in self.POSTS:
            self._note(connection, method, path, 404)
            connection.answer(404, b'{"detail":"Not Found"}')
            return 404
        allowed = "GET" if path in gets else "POST"
        if method != allowed and (path, method) != ("/ping", "POST"):
            self._note(connection, method, path, 405)
            connection.answer(405, b'{"detail":"Method Not Allowed"}', more=(("allow", allowed),))
            return 405
        if path in gets:
            value = gets[path]()
            self._note(connection, method, path, 200)
            if value is None:
                connection.answer(200, b"", "")
            elif isinstance(value, str):
                connection.answer(200, value.encode(), "text/plain; version=0.0.4; charset=utf-8")
            else:
                connection.answer(200, compact(value).encode())
            return 200
        request = self._read(headers, body)
        if path in ("/tokenize", "/detokenize"):
            value = self._tokenize(request) if path == "/tokenize" else self._detokenize(request)
            self._note(connection, method, path, 200)
            connection.answer(200, compact(value).encode("utf-8", "replace"))
            return 200
        chat = path == "/v1/chat/completions" or (path == "/invocations" and "messages" in request)
        self._generate(connection, path, headers, request, chat, key)
        return 200

    def _load(self) -> int:
        return sum(connection.job is not None for connection in self.connections)

    def _models(self) -> dict:
        permission = {"object": "model_permission", "created": self._started, "allow_create_engine": False, "allow_sampling": True}
        permission.update(allow_logprobs=True, allow_search_indices=False, allow_view=True, allow_fine_tuning=False)
        permission.update(organization="*", group=None, is_blocking=False)
        data = []
        for name in self.options.model:
            ident = "modelperm-{0:016x}".format(self._idents.getrandbits(64))
            card = {"id": name, "object": "model", "created": self._started, "owned_by": "vllm", "root": name, "parent": None}
            card.update(max_model_len=self.options.max_model_len, permission=[dict({"id": ident}, **permission)])
            data.append(card)
        return {"object": "list", "data": data}

    @staticmethod
    def _invalid(kind: str, loc: str, message: str, value: object, more: dict | None = None) -> Refused:
        detail = dict({"type": kind, "loc": loc, "msg": message, "input": value}, **(more or {}))
        return Refused("1 validation error:\n  {0}".format(detail), loc, 400, "Bad Request")

    def _read(self, headers: dict[str, str], body: bytes) -> dict:
        if headers.get("content-type", "application/json").partition(";")[0].strip().lower() != "application/json":
            raise Refused("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", None, 400, "Bad Request")
        try:
            request = json.loads(body)
        except json.JSONDecodeError as exc:
            context = {"ctx": {"error": exc.msg}}
            raise self._invalid("json_invalid", "body.{0}".format(exc.pos), "JSON decode error", "<dict of 0 items>", context) from None
        except (UnicodeDecodeError, RecursionError):
            raise Refused("There was an error parsing the body", None, 400, "Bad Request") from None
        if not isinstance(request, dict):
            message = "Input should be a valid dictionary or object to extract fields from"
            raise self._invalid("model_attributes_type", "body", message, request)
        for name, (types, told) in _TYPES.items():
            value = request.get(name)
            if value is not None and (not isinstance(value, types) or (isinstance(value, bool) and types is not bool)):
                raise self._invalid(told + "_type", "body." + name, "Input should be a valid " + told, value)
        return request

    def _tokenize(self, request: dict) -> dict:
        text = request.get("prompt")
        if not isinstance(text, str):
            raise self._invalid("string_type", "body.prompt", "Input should be a valid string", text)
        # The leading 1 keeps zero bytes at the front of a token.
        numbers = [int.from_bytes(b"\x01" + piece, "big") for piece in tokens(text)]
        return {"count": len(numbers), "max_model_len": self.options.max_model_len, "tokens": numbers, "token_strs": None}

    def _detokenize(self, request: dict) -> dict:
        numbers = request.get("tokens")
        if not isinstance(numbers, list) or not all(isinstance(number, int) and number > 0 for number in numbers):
            raise self._invalid("list_type", "body.tokens", "Input should be a valid list", numbers)
        return {"prompt": b"".join(n.to_bytes(-(-n.bit_length() // 8), "big")[1:] for n in numbers).decode("utf-8", "replace")}

    # ---- generation

    def _generate(self, connection: Connection, path: str, headers: dict[str, str], request: dict, chat: bool, key: int | None) -> None:
        messages, spans = self._prompt(request, chat)
        model = request.get("model")
        if model is not None and model not in self.options.model:
            text = "The model `{0}` does not exist. Valid aliases: {1}.".format(model, ", ".join(self.options.model))
            raise Refused(text, "model", 404, "NotFoundError")
        self._check_played(request)
        question = next((text_of(message.get("content")) for message in reversed(messages) if message.get("role") == "user"), "")
        script = self._script
        for rule in self._rules:
            if re.search(rule["match"], question):
                script = script.with_changes({name: value for name, value in rule.items() if name != "match"}, "script")
                break
        if "standin" in request:
            try:
                script = script.with_changes(request["standin"], "standin")
            except ValueError as exc:
                raise Refused(str(exc), "standin") from None
        prompt_tokens = sum(span.count for span in spans)
        max_tokens = self._max_tokens(request, chat, prompt_tokens)
        ident = headers.get("x-request-id") or "{0:016x}".format(self._idents.getrandbits(64))
        # What is answered depends on the request and the seed, never on when or where it was asked.
        asked = hashlib.sha256(json.dumps([self.options.seed, messages], sort_keys=True).encode()).hexdigest()
        rng = random.Random(asked)
        stops = request.get("stop") or []
        kwargs = request.get("chat_template_kwargs") or {}
        plan = make_plan(
            script,
            rng,
            messages,
            max_tokens,
            self.options.answer_tokens,
            tool=self._tool(request, messages, script, question) if chat else None,
            schema=self._schema(request),
            stops=tuple([stops] if isinstance(stops, str) else stops),
            keep_stop=bool(request.get("include_stop_str_in_output")),
            min_tokens=min(int(request.get("min_tokens") or 0), max_tokens),
            ignore_eos=bool(request.get("ignore_eos")),
            thinking=chat and kwargs.get("enable_thinking") is not False,
        )
        job = Job(self, connection, path, request, chat, ("chatcmpl-" if chat else "cmpl-") + ident, key)
        job.start(Sequence(spans, plan, script, rng, job.step), max_tokens)

    def _prompt(self, request: dict, chat: bool) -> tuple[list[dict], list[Span]]:
        """The conversation, and the tokens a chat template makes of it."""
        if not chat:
            prompt = request.get("prompt")
            if isinstance(prompt, list):
                raise Refused("The stand-in plays one prompt of text only", "prompt")
            if not isinstance(prompt, str) or not prompt:
                raise Refused("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
            return [{"role": "user", "content": prompt}], [Span(prompt)]
        if "messages" not in request:
            raise self._invalid("missing", "body.messages", "Field required", "<dict of {0} items>".format(len(request)))
        messages = request["messages"]
        if not isinstance(messages, list) or not messages:
            raise self._invalid("list_type", "body.messages", "Input should be a valid list", messages)
        spans = []
        if request.get("tools") and request.get("tool_choice") != "none":
            spans += [special("tools"), Span(json.dumps(request["tools"])), special("end")]
        for index, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise self._invalid("missing", "body.messages.{0}.role".format(index), "Field required", message)
            spans += [special(message["role"]), Span(text_of(message.get("content")))]
            for call in message.get("tool_calls") or []:
                function = call.get("function", {}) if isinstance(call, dict) else {}
                spans.append(Span("".join(tool_source(str(function.get("name")), str(function.get("arguments"))))))
            spans.append(special("end"))
        return messages, [*spans, special("assistant")]

    @staticmethod
    def _check_played(request: dict) -> None:
        """Refuse what a stand-in cannot play, rather than pass over it."""
        for name in ("n", "best_of"):
            if request.get(name) not in (None, 1):
                raise Refused("The stand-in plays {0}=1 only".format(name), name)
        for name in ("logprobs", "top_logprobs", "prompt_logprobs", "echo", "use_beam_search", "logit_bias", "suffix"):
            if request.get(name):
                raise Refused("The stand-in does not play {0}".format(name), name)
        if request.get("stream_options") and not request.get("stream"):
            raise Refused("Stream options can only be defined when `stream=True`.", "stream_options")

    def _max_tokens(self, request: dict, chat: bool, prompt_tokens: int) -> int:
        limit = self.options.max_model_len
        if prompt_tokens >= limit:
            text = (
                "This model's maximum context length is {0} tokens. However, your prompt contains at least {1} input tokens, which exceeds "
                "this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={1})"
            )
            raise Refused(text.format(limit, min(prompt_tokens, limit + 1)), "input_tokens")
        wanted = request.get("max_completion_tokens") if chat else None
        wanted = request.get("max_tokens") if wanted is None else wanted
        if wanted is None:
            return limit - prompt_tokens if chat else min(16, limit - prompt_tokens)
        if isinstance(wanted, bool) or not isinstance(wanted, int):
            raise self._invalid("int_type", "body.max_tokens", "Input should be a valid integer", wanted)
        if wanted < 1:
            raise Refused("max_tokens must be at least 1, got {0}. (parameter=max_tokens, value={0})".format(wanted), "max_tokens")
        if wanted > limit:
            text = "max_tokens={0} cannot be greater than max_model_len={1}. Please request fewer output tokens. "
            raise Refused((text + "(parameter=max_tokens, value={0})").format(wanted, limit), "max_tokens")
        if prompt_tokens + wanted > limit:
            text = (
                "This model's maximum context length is {0} tokens. However, you requested {1} output tokens and your prompt contains "
                "{2} input tokens, for a total of {3} tokens. Please reduce the length of the input prompt or the number of requested "
                "output tokens. (parameter=input_tokens, value={2})"
            )
            raise Refused(text.format(limit, wanted, prompt_tokens, prompt_tokens + wanted), "input_tokens")
        return wanted

    @staticmethod
    def _schema(request: dict) -> dict | None:
        wanted = request.get("response_format") or {}
        if wanted.get("type") == "json_schema":
            return (wanted.get("json_schema") or {}).get("schema") or {}
        if wanted.get("type") == "json_object":
            return {"type": "object", "properties": {"answer": {"type": "string"}}}
        return None

    def _tool(self, request: dict, messages: list[dict], script: Script, question: str) -> dict | None:
        """The call that this request gets, or None: a tool's result is answered in words."""
        offered = request.get("tools") or []
        choice = request.get("tool_choice", "auto" if offered else "none")
        if not offered or choice == "none":
            return None
        if choice == "auto" and not (self.options.enable_auto_tool_choice and self.options.tool_call_parser):
            raise Refused('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        if script.tool is False or (choice == "auto" and messages[-1].get("role") == "tool"):
            return None
        functions = [tool.get("function") or {} for tool in offered if isinstance(tool, dict)]
        named = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else None
        function = next((item for item in functions if named in (None, item.get("name"))), None)
        if function is None:
            raise Refused("The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice")
        call = script.tool if isinstance(script.tool, dict) else {"name": function.get("name", "")}
        arguments = call.get("arguments", instance(function.get("parameters") or {"type": "object"}, question))
        return {
            "id": "chatcmpl-tool-{0:016x}".format(self._idents.getrandbits(64)),
            "name": call["name"],
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
            "content": None if choice == "auto" else "",
            # vLLM says stop, not tool_calls, when the request named the tool.
            "finish": "stop" if named else "tool_calls",
        }

    # ---- life

    async def serve(self) -> None:
        """Listen until a signal comes, or standard input ends where that was asked for."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, over.set)
        if self.options.end_with_stdin:
            os.set_blocking(0, False)
            loop.add_reader(0, lambda: os.read(0, 4096) or over.set())
        listener = await loop.create_server(lambda: Connection(self), self.options.host, self.options.port, backlog=4096)
        port = listener.sockets[0].getsockname()[1]
        url = "http://{0}:{1}".format(self.options.host, port)
        print(compact({"ready": True, "url": url, "port": port, "pid": os.getpid(), "tokenizer": TOKENIZER}), flush=True)
        await over.wait()
        listener.close()
        for connection in list(self.connections):
            connection.transport.abort()
        # One turn of the loop lets every connection say that it is lost, and the log what was cut off.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if self._log is not None:
            self._log.close()


class _FineSelector(selectors.EpollSelector):
    """Waits as long as it is told to: epoll alone rounds up to whole milliseconds."""

    def select(self, timeout: float | None = None) -> list:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def _positive(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise argparse.ArgumentTypeError("must be above 0, not {0}".format(text))
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError("must be 0 or more, not {0}".format(text))
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more, not {0}".format(text))
    return value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(
        description="Engine stand-in: vLLM's HTTP surface over a model of an engine. One token is " + TOKENIZER + ".",
        allow_abbrev=False,
    )
    switch = argparse.BooleanOptionalAction
    out.add_argument("--host", default="127.0.0.1")
    out.add_argument("--port", type=int, default=8000, help="0 takes a free one; the first line on standard output says which")
    out.add_argument("--model", "--served-model-name", dest="model", nargs="+", default=["standin"], help="names it is served under")
    out.add_argument("--key-file", help="keys, one a line; without it /v1 is open")
    out.add_argument("--truth", help="file to append the log of truth to, JSON lines")
    out.add_argument("--seed", type=int, default=0, help="decides prose, accepted drafts and jitter")
    out.add_argument("--time-scale", type=_positive, default=1.0, help="engine seconds that pass in one second")
    out.add_argument("--end-with-stdin", action="store_true", help="end when standard input ends: with whoever started it")
    engine = out.add_argument_group("the engine (seconds and rates are the engine's)")
    engine.add_argument("--slots", "--max-num-seqs", dest="slots", type=_count, default=4, help="sequences that run at a time")
    engine.add_argument("--max-model-len", type=_count, default=131072)
    engine.add_argument("--prefill-tokens-per-s", type=_positive, default=8000.0)
    engine.add_argument("--prefill-base-s", type=_not_negative, default=0.0, help="what every prefill costs besides")
    engine.add_argument("--prefill-pauses-decode", action="store_true", help="running sequences stand still during a prefill")
    engine.add_argument("--decode-tokens-per-s", type=_positive, default=50.0, help="steps a second of each sequence")
    engine.add_argument("--kv-blocks", type=_count, default=16384)
    engine.add_argument("--block-tokens", "--block-size", dest="block_tokens", type=_count, default=16)
    engine.add_argument("--enable-prefix-caching", action=switch, default=True)
    engine.add_argument("--max-num-batched-tokens", type=_count, default=2048, help="prompt tokens of one step, for the step counter")
    play = out.add_argument_group("what it plays")
    play.add_argument("--answer-tokens", type=_count, default=128, help="length of an answer in prose, its end token included")
    play.add_argument("--reasoning-tokens", type=int, default=0, help="reasoning before every answer")
    play.add_argument("--reasoning-field", choices=("reasoning", "reasoning_content", "both"), default="reasoning")
    play.add_argument("--spec-tokens", type=int, default=0, help="tokens drafted per step; they come in one chunk with the step's own")
    play.add_argument("--spec-acceptance", type=float, default=1.0, help="chance of a draft, given the one before it")
    play.add_argument("--jitter", type=float, default=0.0, help="how far a step may be off its place, in steps")
    play.add_argument("--first-delta", choices=FIRST_DELTAS, default="vllm")
    play.add_argument("--script", help="JSON list of {match, ...}: how requests whose last user message matches are played")
    play.add_argument("--enable-auto-tool-choice", action="store_true")
    play.add_argument("--tool-call-parser")
    surface = out.add_argument_group("the HTTP surface")
    surface.add_argument("--metrics", action=switch, default=True)
    surface.add_argument("--prompt-tokens-details", action=switch, default=True, help="say in usage what came out of the cache")
    surface.add_argument("--enable-server-load-tracking", action="store_true", help="let /load count; else it says 0, as vLLM does")
    surface.add_argument("--keep-alive-s", type=_positive, default=5.0, help="until an idle connection is closed")
    return out


def build(arguments: list[str] | None = None) -> Server:
    """A server from a command line. Ends the process with a message when it cannot work."""
    line = parser()
    options = line.parse_args(arguments)
    core = CoreOptions(
        options.slots,
        options.prefill_tokens_per_s,
        options.prefill_base_s,
        options.prefill_pauses_decode,
        options.kv_blocks,
        options.block_tokens,
        options.enable_prefix_caching,
        options.max_num_batched_tokens,
    )
    if core.kv_blocks * core.block_tokens < options.max_model_len:
        needed = -(-options.max_model_len // core.block_tokens)
        line.error("--kv-blocks {0} cannot hold one sequence of --max-model-len; {1} can".format(core.kv_blocks, needed))
    keys = []
    try:
        names = ("reasoning_tokens", "spec_tokens", "spec_acceptance", "decode_tokens_per_s", "jitter", "first_delta")
        script = Script().with_changes({name: getattr(options, name) for name in names}, "options")
        rules = read_rules(options.script) if options.script else []
        if options.key_file:
            with open(options.key_file, encoding="utf-8") as handle:
                keys = handle.read().split()
            if not keys:
                raise ValueError("{0} holds no key".format(options.key_file))
    except (OSError, ValueError, re.error) as exc:
        line.error(str(exc))
    return Server(options, core, script, rules, keys)


def main() -> None:
    """Serve until ended."""
    server = build()
    # What was made until now stays: no collection needs to look at it again.
    gc.freeze()
    loop = asyncio.SelectorEventLoop(_FineSelector())
    try:
        loop.run_until_complete(server.serve())
    except OSError as exc:
        sys.exit("engine: {0}".format(exc))
    finally:
        loop.close()


if __name__ == "__main__":
    main()
