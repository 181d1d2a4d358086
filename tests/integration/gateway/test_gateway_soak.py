# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nothing is lost while the gateway is reloaded every second, its keys change every two and replicas go out and come back."""

from __future__ import annotations

import pytest
from integration.gateway import soak


def held(directory, requests, least):
    """Nothing was lost, and everything that could have lost it really went on."""
    told = soak.Soak(directory, requests, least).run()
    print(told.line())
    assert told.trouble == []
    assert told.failures == []
    assert told.truncated == 0
    assert told.trespasses == []
    asked = told.short + told.streams
    assert asked >= requests and told.streams >= requests // 10
    assert all(told.served.values()) and sum(told.served.values()) == asked
    assert told.reloads >= least[0] and told.rotations >= least[1] and told.drains >= least[2]
    assert told.refused >= told.rotations - 1
    assert told.again <= told.reloads


@pytest.mark.slow
def test_500_requests(tmp_path):
    held(tmp_path, 500, (4, 3, 2))


@pytest.mark.long
def test_10000_requests(tmp_path):
    held(tmp_path, 10_000, (60, 30, 2 * soak.ENGINES))
