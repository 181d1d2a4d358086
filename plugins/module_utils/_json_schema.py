# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The part of JSON Schema that our own questions use: does a value fit. Pure; private to the collection."""

from __future__ import annotations

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

_TYPES = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = ("type", "properties", "required", "additionalProperties", "enum", "items", "minimum", "maximum", "description")


def misfit(value: object, schema: dict, where: str = "it") -> str:
    """Why ``value`` does not fit ``schema``, in one line; empty when it fits. Raises LLMError for a keyword that is not known here."""
    for keyword in schema:
        if keyword not in _KNOWN:
            raise LLMError('JSON schema keyword "{0}" is not checked here'.format(keyword))
    kind = schema.get("type")
    if kind is not None:
        fits = isinstance(value, _TYPES[kind])
        # JSON tells true from 1; Python does not.
        if isinstance(value, bool) and kind != "boolean":
            fits = False
        if not fits:
            return "{0} is {1!r}, not of type {2}".format(where, value, kind)
    if "enum" in schema and value not in schema["enum"]:
        return "{0} is {1!r}, not one of {2}".format(where, value, ", ".join(str(item) for item in schema["enum"]))
    for keyword, broken in (("minimum", lambda limit: value < limit), ("maximum", lambda limit: value > limit)):
        if keyword in schema and broken(schema[keyword]):
            return "{0} is {1!r}, the {2} is {3}".format(where, value, keyword, schema[keyword])
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            found = misfit(item, schema["items"], "{0}[{1}]".format(where, index))
            if found:
                return found
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name in schema.get("required", []):
            if name not in value:
                return '{0} lacks "{1}"'.format(where, name)
        for name in value:
            if name in properties:
                found = misfit(value[name], properties[name], '"{0}"'.format(name))
                if found:
                    return found
            elif schema.get("additionalProperties", True) is False:
                return '{0} has "{1}", which nobody asked for'.format(where, name)
    return ""
