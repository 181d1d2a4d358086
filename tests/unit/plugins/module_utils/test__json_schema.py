# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The part of JSON Schema that our questions use."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _json_schema
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["celsius", "kelvin"]},
        "rows": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["name", "count"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "value",
    [{"name": "a", "count": 1}, {"name": "", "count": 9, "unit": "kelvin", "rows": []}, {"name": "a", "count": 2, "rows": [1, 2.5]}],
)
def test_what_fits(value):
    assert _json_schema.misfit(value, FORM) == ""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "it is [], not of type object"),
        ({"name": "a"}, 'it lacks "count"'),
        ({"name": "a", "count": "1"}, "\"count\" is '1', not of type integer"),
        ({"name": "a", "count": True}, '"count" is True, not of type integer'),
        ({"name": "a", "count": 1.0}, '"count" is 1.0, not of type integer'),
        ({"name": "a", "count": 0}, '"count" is 0, the minimum is 1'),
        ({"name": "a", "count": 10}, '"count" is 10, the maximum is 9'),
        ({"name": "a", "count": 1, "unit": "fahrenheit"}, "\"unit\" is 'fahrenheit', not one of celsius, kelvin"),
        ({"name": "a", "count": 1, "rows": [1, "2"]}, "\"rows\"[1] is '2', not of type number"),
        ({"name": "a", "count": 1, "more": 2}, 'it has "more", which nobody asked for'),
    ],
)
def test_what_does_not_fit_is_named(value, said):
    assert _json_schema.misfit(value, FORM) == said


def test_a_keyword_that_is_not_checked_is_an_error_and_never_passed_over():
    with pytest.raises(LLMError, match='"pattern"'):
        _json_schema.misfit("x", {"type": "string", "pattern": "y"})
