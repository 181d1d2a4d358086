# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How an engine spells a setting on its command line. Spelling is catalog data. Private to the collection."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._compatibility import satisfies
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest


def depends_on_version(engine: dict[str, Any]) -> bool:
    """Whether some of the engine's words are not those of every version."""
    return any(key in how for how in engine["arguments"].values() for key in ("since", "until", "versions"))


def in_version(how: dict[str, Any], version: str) -> dict[str, Any]:
    """One argument as this version spells it; as it is without a known version."""
    for other in how.get("versions", []) if version else ():
        if satisfies(version, other["when"]):
            return dict(how, **{key: value for key, value in other.items() if key != "when"})
    return how


def known_in(how: dict[str, Any], version: str) -> str:
    """Why this version does not know the argument; empty when it does, or when no version is known."""
    if version and "since" in how and not satisfies(version, ">=" + how["since"]):
        return "known from {0} on".format(how["since"])
    if version and "until" in how and satisfies(version, ">=" + how["until"]):
        return "gone since {0}".format(how["until"])
    return ""


def spell(engine: dict[str, Any], settings: dict[str, Any], version: str = "") -> list[str]:
    """Turn settings into the engine's command line, in the order the engine's ``arguments`` lists them.

    An argument may say which versions know it (``since``, ``until`` the first that does not), how some spell it (``versions``: a list of
    ``when`` with what differs), how many of a list it takes at ``most``, and which keys of a mapping no version takes (``refused_keys``: key -> why).

    A setting of None is left out. Kinds: ``positional`` (the value first of all), ``value`` (flag, value), ``list`` (flag, each
    value), ``json`` (flag, canonical JSON), ``switch`` (the word for true, the word for false if there is one).

    Args:
        version: the engine's own; empty when nobody knows it, then words are not held against it.
    Raises LLMError for a setting that the engine, or this version of it, has no word for, for an implied setting with another value, for a
    key that is refused, and for a value that is not of the argument's kind: the text "false" would switch on what it is meant to switch off.
    """
    known = engine["arguments"]
    implied = engine.get("implied", {})
    for name, value in settings.items():
        if value is None or name in known:
            continue
        if name not in implied:
            raise LLMError(
                "engine '{0}' has no word for the setting '{1}'; {2}. Give it one in the engine's 'arguments'".format(
                    engine["name"], name, nearest(name, list(known))
                )
            )
        if value not in implied[name]:
            raise LLMError(
                "engine '{0}' cannot run with {1}={2!r}, only {3}; say so in llm_settings, or in the recipe's block for this engine".format(
                    engine["name"], name, value, implied[name]
                )
            )
    front: list[str] = []
    words: list[str] = []
    for name, how in known.items():
        value = settings.get(name)
        if value is None:
            continue
        how = in_version(how, version)
        kind = how["kind"]
        if (kind == "switch" and not isinstance(value, bool)) or (kind == "list" and not isinstance(value, list)):
            raise LLMError("setting '{0}' must be {1}, found {2!r}".format(name, "true or false" if kind == "switch" else "a list", value))
        if kind != "switch" or how.get("on" if value else "off"):
            why = known_in(how, version)
            if why:
                raise LLMError(
                    "engine '{0}' {1} does not know the setting '{2}' ({3}); leave it out (null in llm_settings), or take another image".format(
                        engine["name"], version, name, why
                    )
                )
        if kind == "list" and len(value) > how.get("most", len(value)):
            raise LLMError(
                "engine '{0}' takes {1} of '{2}', found {3}".format(engine["name"], how["most"], name, ", ".join(map(str, value)))
            )
        for key, why in how.get("refused_keys", {}).items():
            if isinstance(value, dict) and key in value:
                raise LLMError("setting '{0}' must not have the key '{1}': {2}".format(name, key, why))
        if kind == "positional":
            front.append(str(value))
        elif kind == "value":
            words += [how["flag"], str(value)]
        elif kind == "list":
            words += [how["flag"]] + [str(item) for item in value]
        elif kind == "json":
            words += [how["flag"], json.dumps(value, sort_keys=True, separators=(",", ":"))]
        elif kind == "switch":
            word = how.get("on" if value else "off")
            words += [word] if word else []
        else:
            raise LLMError("engine '{0}': argument '{1}' has the unknown kind '{2}'".format(engine["name"], name, kind))
    return front + words
