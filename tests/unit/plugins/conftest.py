# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What several plugin tests share: the shipped catalog, the recorded K100_AI cards, plan inputs, and a module's real entry point."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def shipped():
    """The catalog as shipped: kind -> name -> entry. Tests that change it copy it."""
    from ansible_collections.ironserve.llm.plugins.action.catalog_info import read_catalog

    return read_catalog([])


@pytest.fixture
def catalog(shipped):
    """A private copy of the shipped catalog."""
    return copy.deepcopy(shipped)


@pytest.fixture
def recorded():
    """Recorded facts of the K100_AI host, as its inventory holds them."""
    path = ROOT / "inventories" / "k100" / "host_vars" / "k100-01" / "cards.yml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))["accelerator_recorded"]


@pytest.fixture
def k100(catalog, recorded):
    """Make the plan's input for the K100_AI host: ``k100(weights="bf16", settings={...}, ...)``."""
    from ansible_collections.ironserve.llm.plugins.module_utils._catalog import resolve
    from ansible_collections.ironserve.llm.plugins.module_utils._plan import PlanInput

    def make(weights="w8a8", **changes):
        values = {
            "host": "k100-01",
            "address": "127.0.0.1",
            "catalog": resolve(catalog, "hygon_k100ai", "qwen3.6-35b-a3b", weights=weights),
            "cards": copy.deepcopy(recorded["cards"]),
            "device_nodes": dict(recorded["device_nodes"]),
            "image": "registry.example/vllm@sha256:" + "0" * 64,
            "weights_path": "/var/lib/ironserve/weights/qwen3.6-35b-a3b/" + weights,
            "weights_id": "w" * 64,
            "key_file": "/etc/ironserve/keys/engine.key",
            "key_id": "k" * 12,
            "cache_dir": "/var/lib/ironserve/cache",
        }
        values.update(changes)
        return PlanInput(**values)

    return make


@pytest.fixture
def run_module(capsys):
    """Run a module's own ``main`` with arguments as Ansible hands them over; returns its result."""
    from ansible.module_utils.testing import patch_module_args

    def run(module, arguments, check_mode=False):
        capsys.readouterr()
        with patch_module_args(dict(arguments, _ansible_check_mode=check_mode)), pytest.raises(SystemExit) as ended:
            module.main()
        result = json.loads(capsys.readouterr().out)
        assert bool(ended.value.code) == bool(result.get("failed", False))
        # ansible-core refuses a result that no encoding takes, whatever it says.
        json.dumps(result, ensure_ascii=False).encode("utf-8")
        return result

    return run
