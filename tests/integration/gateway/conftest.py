# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Gateways and engines that are gone after the test."""

from __future__ import annotations

import pytest
from integration.gateway import gateway_lab


def pytest_collection_modifyitems(items):
    lacks = gateway_lab.missing()
    for item in items:
        if lacks and "integration/gateway" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=lacks))


@pytest.fixture
def make():
    """Make gateways and engines that are gone after the test."""
    with gateway_lab.maker(gateway_lab.Gateway) as made:
        yield made


@pytest.fixture
def pair(make):
    """A gateway with two healthy engines behind it."""
    return gateway_lab.with_two_engines(make)
