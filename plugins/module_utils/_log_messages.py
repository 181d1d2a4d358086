# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine's last words mean: its log without secrets, and the causes and remedies that a table knows. Pure. Private to the collection."""

from __future__ import annotations

import re
from typing import Any, Iterable

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest

#: Lines of a log that a message shows.
TAIL_LINES = 50
#: Causes that a message names, at most: the first is nearest to the root.
MOST_CAUSES = 3

HIDDEN = "********"

#: Keys of a message of the table -> whether it must be there.
KEYS = {"pattern": True, "cause": True, "fix": True, "engine": False, "source": True, "date": True, "grade": True}

_NAME = r"[\w-]*(?:api[_-]?keys?|(?<!eos_)(?<!bos_)(?<!pad_)(?<!unk_)token|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|credentials?)"
#: Each finds what stands before a secret, and the secret.
_SECRETS = (
    # name=value, name: value, "name": ["value", ...]; a list whole.
    re.compile(r"(?i)((?<![\w-])" + _NAME + r"[\"']?\s*[=:]\s*)(\[[^\]]*\]|\"[^\"]*\"|'[^']*'|[^\s,;}\])]+)"),
    re.compile(r"(?i)((?<![\w-])--?" + _NAME + r"\s+)(\S+)"),
    re.compile(r"(?i)(\bauthorization[\"']?\s*[=:]\s*[\"']?(?:bearer|basic)\s+)([^\s\"',]+)"),
    re.compile(r"(?i)(\bbearer\s+)([A-Za-z0-9._~+/=-]{8,})"),
    re.compile(r"(://[^/\s:@]+:)([^@\s/]+)(?=@)"),
    re.compile(r"()(\b(?:sk|hf|ms|ghp|glpat)[-_][A-Za-z0-9_-]{16,})"),
)
#: Words that stand where a value would, and tell nothing.
_PLAIN = ("none", "null", "true", "false", "[]", "''", '""')


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """Hide what looks like a key, a token or a password, and each of ``secrets`` wherever it stands."""
    for secret in secrets:
        # Less would hide half of any text.
        if len(secret) >= 4:
            text = text.replace(secret, HIDDEN)
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: found.group(1) + (found.group(2) if found.group(2).lower() in _PLAIN else HIDDEN), text)
    return text


def tail(log: str, secrets: Iterable[str] = (), lines: int = TAIL_LINES) -> str:
    """The last ``lines`` lines of a log, without secrets; ``(none)`` for an empty one."""
    return mask("\n".join(log.rstrip().splitlines()[-lines:]), secrets) or "(none)"


def check_messages(messages: dict[str, Any], where: str) -> None:
    """Check the messages of one table. Raises LLMError that names ``where``, the message and the key."""
    for name, message in messages.items():
        if not isinstance(message, dict):
            raise LLMError("{0}: message '{1}' must be a mapping, found {2!r}".format(where, name, message))
        for key, value in message.items():
            if key not in KEYS:
                raise LLMError("{0}: unknown key '{1}.{2}'; {3}".format(where, name, key, nearest(str(key), list(KEYS))))
            if not isinstance(value, str):
                raise LLMError("{0}: key '{1}.{2}' must be text, found {3!r}".format(where, name, key, value))
        for key, needed in KEYS.items():
            if needed and key not in message:
                raise LLMError("{0}: message '{1}' lacks its '{2}'".format(where, name, key))
        try:
            groups = re.compile(message["pattern"]).groupindex
            for key in ("cause", "fix"):
                message[key].format(**dict.fromkeys(groups, ""))
        except re.error as exc:
            raise LLMError(
                "{0}: message '{1}': pattern {2!r} is no regular expression: {3}".format(where, name, message["pattern"], exc)
            ) from exc
        except (KeyError, IndexError, ValueError) as exc:
            raise LLMError("{0}: message '{1}' names {2}, which its pattern does not find".format(where, name, exc)) from exc


def collect_messages(tables: dict[str, Any], engine: str = "") -> dict[str, Any]:
    """Join tables to one, in the order of their names, with what ``translate`` needs and nothing else.

    Args:
        tables: name -> entry of the catalog with ``messages``.
        engine: leave out what only other engines say; empty keeps all.
    Raises LLMError for a message that is none, or stands in two tables.
    """
    result: dict[str, Any] = {}
    for table in sorted(tables):
        check_messages(tables[table]["messages"], "log_messages '{0}'".format(table))
        for name, message in tables[table]["messages"].items():
            if name in result:
                raise LLMError("log_messages '{0}': message '{1}' stands in another table too".format(table, name))
            if not engine or message.get("engine", engine) == engine:
                result[name] = {key: message[key] for key in ("pattern", "cause", "fix")}
    return result


def translate(log: str, messages: dict[str, Any]) -> list[str]:
    """Say what a log means: ``cause. Fix: remedy`` for each message of the table that is found in it, in the table's order.

    Args:
        messages: name -> ``pattern`` (searched for line by line), ``cause`` and ``fix``, in which ``{name}`` stands for what the pattern's
            group of this name found last; a group that found nothing is empty there.
    """
    lines, said = [], log.splitlines()[::-1]
    for message in messages.values():
        pattern = re.compile(message["pattern"])
        # Line by line: the next line's path is not what this line is about.
        found = next(filter(None, (pattern.search(line) for line in said)), None)
        if not found:
            continue
        words = {name: value or "" for name, value in found.groupdict().items()}
        lines.append("{0}. Fix: {1}".format(message["cause"].format(**words), message["fix"].format(**words)))
        if len(lines) == MOST_CAUSES:
            break
    return lines


def exit_line(exit_code: int, oom_killed: bool) -> str:
    """What the way a container ended says by itself; empty when it says nothing."""
    if oom_killed:
        return "the kernel ended it, because its memory limit was reached. Fix: a higher limit, or less host memory per replica"
    if exit_code == 137:
        return "it was killed (SIGKILL): by the kernel for lack of host memory, see dmesg, or by someone"
    if exit_code in (134, 139):
        return "it crashed in native code (signal {0}): a driver, a kernel or a library that do not go together".format(exit_code - 128)
    if exit_code == 127:
        return "a command was not found: this image has another engine than the plan believes"
    return ""


def last_words(log: str, messages: dict[str, Any], exit_code: int, oom_killed: bool, secrets: Iterable[str] = ()) -> str:
    """The message about a container that ended: what its end means, then its last lines; nothing of it secret."""
    known = translate(log, messages)
    own = exit_line(exit_code, oom_killed)
    causes = ["It means: " + mask(line, secrets) for line in known + ([own] if own else [])]
    return "\n".join(causes + ["Its last log lines:", tail(log, secrets)])
