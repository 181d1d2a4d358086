# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Gateways of nginx and engines that are gone after the test."""

from __future__ import annotations

import pytest
from integration.gateway import gateway_lab
from integration.nginx import nginx_lab


def pytest_collection_modifyitems(items):
    lacks = nginx_lab.missing()
    for item in items:
        if lacks and "integration/nginx" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=lacks))


@pytest.fixture
def make():
    """Make gateways and engines that are gone after the test."""
    with gateway_lab.maker(nginx_lab.NginxGateway) as made:
        yield made


@pytest.fixture
def pair(make):
    """A gateway with two healthy engines behind it."""
    return gateway_lab.with_two_engines(make, models=["m", "alias"])
