# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role's templates with its own variables, and a host that is told, not asked."""

from __future__ import annotations

from pathlib import Path

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

try:
    from ansible.template import trust_as_template as trust
except ImportError:

    def trust(text):
        return text


ROLE = Path(__file__).resolve().parents[4] / "roles/gateway"
#: What gateway_info says about a host where nothing runs yet.
HOST = {
    "installed": True,
    "version": "2.6.12",
    "lua": True,
    "prometheus": True,
    "maxconn": 10000,
    "nofile": 20340,
    "python": "/usr/bin/python3",
    "kept": [],
    "pids": [],
    "states": {},
    "service_manager": "direct",
}


def trusted(value):
    """Return a value whose texts may be templates."""
    if isinstance(value, dict):
        return {key: trusted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [trusted(item) for item in value]
    return trust(value) if isinstance(value, str) else value


def evaluator(servers, **options):
    """Return what evaluates a text with the role's variables. ``servers`` are elements of gateway_servers."""
    variables = {}
    for part in ("defaults", "vars"):
        variables.update(yaml.safe_load((ROLE / part / "main.yml").read_text(encoding="utf-8")))
    variables.update(__gateway_info=dict(HOST), groups={"llm_nodes": []}, hostvars={}, role_path=str(ROLE), ansible_check_mode=False)
    variables.update(inventory_hostname="gw", gateway_servers=servers, **options)
    templar = Templar(loader=DataLoader(), variables=trusted(variables))
    return lambda text: templar.template(trust(text))


def render(name, servers, **options):
    """Return the text that a template of the role makes."""
    return evaluator(servers, **options)("{{ lookup('ansible.builtin.template', '%s') }}" % (ROLE / "templates" / name))


def server(name, port=8101, proven=True, places=4, models=("m",), address="127.0.0.1"):
    return {"name": name, "address": address, "port": port, "max_num_seqs": places, "proven": proven, "models": list(models)}
