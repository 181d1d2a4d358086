# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fleet's tests are about several hosts at once, so they share the lab and not one host."""

from __future__ import annotations

import pytest
from fleet_lab import Lab


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
