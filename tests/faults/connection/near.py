# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A connection to this machine that does not call itself local: hosts that are played here are then hosts of their own."""

from __future__ import annotations

DOCUMENTATION = """
name: near
short_description: This machine as if it were another one
description:
  - Does what P(ansible.builtin.local#connection) does, under another name.
author: ironserve.llm contributors (@ironserve)
"""

from ansible.plugins.connection.local import Connection as Local  # noqa: E402


class Connection(Local):
    """This machine, under another name."""

    transport = "near"
