# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filter says what is wrong in Ansible's words; what it returns is tested with ``_haproxy.model_groups``."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.ironserve.llm.plugins.filter import servers_by_model


def test_groups_and_errors():
    by_model = servers_by_model.FilterModule().filters()["servers_by_model"]
    servers = [{"name": "a", "models": ["m"]}, {"name": "b", "models": ["n"]}]
    assert [(group["model"], group["backend"]) for group in by_model(servers)] == [
        ("m", "ironserve_replicas.m"),
        ("n", "ironserve_replicas.n"),
    ]
    assert [group["backend"] for group in by_model(servers[:1], "mine")] == ["mine"]
    with pytest.raises(AnsibleFilterError, match="cannot tell which of them is on c"):
        by_model([*servers, {"name": "c"}])
    with pytest.raises(AnsibleFilterError, match="not what gateway_servers describes"):
        by_model(["a"])
