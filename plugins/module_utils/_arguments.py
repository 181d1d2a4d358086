# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How an engine spells a setting on its command line. Spelling is catalog data. Private to the collection."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest


def spell(engine: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Turn settings into the engine's command line, in the order the engine's ``arguments`` lists them.

    A setting of None is left out. Kinds: ``positional`` (the value first of all), ``value`` (flag, value), ``list`` (flag, each
    value), ``json`` (flag, canonical JSON), ``switch`` (the word for true, the word for false if there is one).

    Raises LLMError for a setting the engine has no word for, for an implied setting with another value, and for a value that is
    not of the argument's kind: the text "false" would switch on what it is meant to switch off.
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
            raise LLMError("engine '{0}' cannot run with {1}={2!r}, only {3}".format(engine["name"], name, value, implied[name]))
    front: list[str] = []
    words: list[str] = []
    for name, how in known.items():
        value = settings.get(name)
        if value is None:
            continue
        kind = how["kind"]
        if (kind == "switch" and not isinstance(value, bool)) or (kind == "list" and not isinstance(value, list)):
            raise LLMError("setting '{0}' must be {1}, found {2!r}".format(name, "true or false" if kind == "switch" else "a list", value))
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
