# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gateway's servers by their models. Documentation: servers_by_model.yml."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def servers_by_model(servers, backend=_haproxy.BACKEND):
    """Return one element for each model, with its names, its backend and its servers."""
    try:
        return _haproxy.model_groups([dict(server) for server in servers], backend)
    except LLMError as exc:
        raise AnsibleFilterError(str(exc)) from exc
    except (KeyError, TypeError, ValueError) as exc:
        raise AnsibleFilterError("a server of the gateway is not what gateway_servers describes: {0!r}".format(exc)) from exc


class FilterModule:
    """The filters of this file."""

    def filters(self):
        """Return them by name."""
        return {"servers_by_model": servers_by_model}
