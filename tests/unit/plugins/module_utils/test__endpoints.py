# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Endpoints that can be told apart and shown."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint, check_endpoints
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


@pytest.mark.parametrize(
    ("url", "trouble"),
    [
        ("http://joe:hunter2@node1:8000", "holds a user or a password"),
        ("http://hunter2@node1", "holds a user or a password"),
        ("https://joe:hunter2@[::1]:8000", "holds a user or a password"),
        ("joe:hunter2@node1:8000", "holds a user or a password"),
        ("http:/joe:hunter2@node1", "holds a user or a password"),
        ("http://node1\\joe:hunter2@other", "holds a user or a password"),
        ("http://node1:8000/?api_key=hunter2", "holds a query or a fragment"),
        ("http://node1:8000?hunter2", "holds a query or a fragment"),
        ("http://node1:8000/#hunter2", "holds a query or a fragment"),
        ("http://node1:hunter2", "is no address"),
        ("http://[hunter2", "is no address"),
        ("http://node1:0/hunter2", "is no address"),
        ("ftp://hunter2", "is no address"),
        ("http://", "is no address"),
        ("", "is no address"),
        ("http://node1 hunter2", "is no address"),
        ("http://node1/\thunter2", "is no address"),
        ("http://node1\\hunter2", "is no address"),
    ],
)
def test_an_address_that_must_not_be_shown_is_refused_and_not_shown(url, trouble):
    with pytest.raises(LLMError) as caught:
        check_endpoints([Endpoint("good", "http://node1:8000"), Endpoint("node1-c0", url)])
    assert str(caught.value).startswith("endpoint node1-c0: its url {0} (not shown here). ".format(trouble))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://node1.example", "http://[::1]:8000/", "http://node1:8000/llm"])
def test_an_address_is_taken(url):
    check_endpoints([Endpoint("gateway", url)])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["c0", "c1", "c0"], 'endpoints[2]: the name "c0" is given twice: '),
        (["c0", ""], "endpoints[1] has an empty name: "),
        (["c0", " "], "endpoints[1] has an empty name: "),
    ],
)
def test_endpoints_that_cannot_be_told_apart_are_refused(names, message):
    with pytest.raises(LLMError) as caught:
        check_endpoints([Endpoint(name, "http://node{0}:8000".format(number)) for number, name in enumerate(names)])
    assert str(caught.value).startswith(message)
    check_endpoints([Endpoint("c0", "http://node1:8000"), Endpoint("C0", "http://node1:8000")])
