# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Gateways of nginx and engines that are gone after the test."""

from __future__ import annotations

import pytest
from integration.gateway.gateway_lab import Engine, server
from integration.nginx import nginx_lab
from integration.nginx.nginx_lab import NginxGateway


def pytest_collection_modifyitems(items):
    lacks = nginx_lab.missing()
    for item in items:
        if lacks and "integration/nginx" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=lacks))


@pytest.fixture
def make():
    """Make gateways and engines that are gone after the test."""
    made = []

    def gateway(**options):
        made.append(NginxGateway(**options))
        return made[-1]

    def engine(*arguments, **options):
        made.append(Engine(*arguments, **options))
        return made[-1]

    gateway.engine = engine
    yield gateway
    for thing in reversed(made):
        getattr(thing, "remove", getattr(thing, "stop", None))()


@pytest.fixture
def pair(make):
    """A gateway with two engines behind it."""
    gateway = make()
    engines = [make.engine(), make.engine()]
    servers = [server("n-c0", engines[0].port, models=["m", "alias"]), server("n-c1", engines[1].port, models=["m", "alias"])]
    assert gateway.put(servers)["action"] == "started"
    return gateway, engines, servers
