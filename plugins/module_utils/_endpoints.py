# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where inference is asked for. A file of its own: who only wants to know where needs none of what asks. Private to the collection."""

from __future__ import annotations

import dataclasses
import urllib.parse
from typing import Iterable

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where one replica, or the gateway, answers. ``url`` has no path."""

    name: str
    url: str
    api_key_file: str = ""
    container: str = ""
    cards: tuple = ()
    platform: str = ""
    #: How the platform's cards are read, as ``_card_use.sampler`` takes it.
    tools: dict = dataclasses.field(default_factory=dict)


def _address_trouble(url: str) -> str:
    """What is wrong with an address, without a word of it; empty when nothing is."""
    try:
        parts = urllib.parse.urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "is no address"
    if "@" in url:
        return "holds a user or a password"
    if "?" in url or "#" in url:
        return "holds a query or a fragment"
    if not whole or not url.isprintable() or any(char.isspace() or char == "\\" for char in url):
        return "is no address"
    return ""


def unshown(endpoints: Iterable) -> set:
    """The addresses that ``check_endpoints`` refuses, for a module's ``no_log_values``: Ansible adds a module's options to its result."""
    # A word of a few letters would be taken out of the middle of others.
    return {endpoint.url for endpoint in endpoints if len(endpoint.url) > 7 and _address_trouble(endpoint.url)}


def check_endpoints(endpoints: Iterable) -> None:
    """Refuse addresses that must not be shown, and endpoints that can't be told apart by their names.

    Addresses stand in results, messages and reports, and a key may be in them; reports, plan and gateway know endpoints by name alone.
    Raises LLMError naming the endpoint and never its address.
    """
    seen = set()
    for number, endpoint in enumerate(endpoints):
        if not endpoint.name.strip():
            raise LLMError("endpoints[{0}] has an empty name: give each endpoint a name of its own".format(number))
        if endpoint.name in seen:
            raise LLMError(
                'endpoints[{0}]: the name "{1}" is given twice: a verdict could belong to either, so give each endpoint a name of '
                "its own".format(number, endpoint.name)
            )
        seen.add(endpoint.name)
        trouble = _address_trouble(endpoint.url)
        if trouble:
            raise LLMError(
                "endpoint {0}: its url {1} (not shown here). Write http://host:port or https://host:port, and a key into its "
                "api_key_file".format(endpoint.name, trouble)
            )
