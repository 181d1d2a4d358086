# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of a chain of hosts: waits for the job of one of them and tells how far it is, as a download does."""

from __future__ import annotations

from ansible_collections.ironserve.llm.plugins.action.weights_download import ActionModule as Following


class ActionModule(Following):
    """Wait for a job of the module of the same name, and show its progress."""
