# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What check mode and diff mode are, for the documentation of every module.

A module says whether it supports them, and describes one itself where more is to be said; what it says comes first.
"""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of documentation, by name."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Can run in check mode and return changed status prediction without modifying target.
  diff_mode:
    description: Returns what has changed or would change.
"""

    # A module that reads only.
    READS = r"""
attributes:
  check_mode:
    description: Can run in check mode and gives the same result.
    support: full
  diff_mode:
    description: Returns what has changed or would change.
    support: none
"""
