# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names of the inventory that are one machine. Documentation: shared_machines.yml."""

from __future__ import annotations

from ansible_collections.ironserve.llm.plugins.module_utils import _machines

#: All that tells one machine from another.
KEYS = ("ansible_connection", "ansible_host", "ansible_port", "accelerator_root")


def shared_machines(hosts, hostvars):
    """Return, for each name that shares its machine, all names of it."""
    known = {}
    for host in dict.fromkeys(hosts):
        own = hostvars[host] if host in hostvars else {}
        known[host] = {key: own[key] for key in KEYS if key in own}
    return _machines.shared_machines(known)


class FilterModule:
    """The filters of this file."""

    def filters(self):
        """Return them by name."""
        return {"shared_machines": shared_machines}
