# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The collection is importable from the checkout, as in the unit tests: what a tool prints is read by the real parsers."""

from __future__ import annotations

import unit.conftest  # noqa: F401
