# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Integration tests import the collection as the unit tests do."""

from __future__ import annotations

from unit.conftest import install_loader

install_loader()
