# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module's own entry point on this very machine: cards, device nodes, checks, and errors as messages."""

from __future__ import annotations

import os

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _docker, _probe_cpu
from ansible_collections.ironserve.llm.plugins.modules import accelerator_info

SMALL = {"probe": "cpu", "options": {"cards": 1, "card_memory_mib": 1}}


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    def absent(*_args):
        raise _docker.EngineAbsent("no engine here")

    monkeypatch.setattr(_docker, "connect", absent)


@pytest.mark.parametrize("check_mode", [False, True])
def test_this_machine(run_module, check_mode):
    result = run_module(accelerator_info, SMALL, check_mode)
    assert result["changed"] is False
    assert result["ok"] is True
    assert [card["id"] for card in result["cards"]] == ["cpu:0"]
    assert len(result["lines"]) == len(result["checks"])
    assert result["driver_version"] is None


def test_unknown_probe_lists_the_known(run_module):
    result = run_module(accelerator_info, {"probe": "cpuu"})
    assert result["msg"].startswith("unknown probe 'cpuu': did you mean \"cpu\"? Known: ")
    assert "catalog/probes/cpuu.py" in result["msg"]


def test_probe_of_an_overlay(run_module):
    source = "\n".join(
        [
            "from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Accelerators, Card",
            "def probe(vendor):",
            "    card = Card('x:0', 0, 'X1', 'X1', 'x', vendor.options['mib'], health='ok')",
            "    return Accelerators('made_up', 'x-smi', [card])",
        ]
    )
    result = run_module(accelerator_info, {"probe": "made_up", "probe_source": source, "options": {"mib": 7}})
    assert (result["probe"], result["cards"][0]["memory_total_mib"], result["ok"]) == ("made_up", 7, True)


@pytest.mark.parametrize("source", ["def probe(:", "import absent_module", "answer = 42"])
def test_probe_of_an_overlay_that_cannot_be_used(run_module, source):
    result = run_module(accelerator_info, {"probe": "made_up", "probe_source": source})
    assert result["msg"].startswith("probe 'made_up' of the catalog's overlay cannot be used: ")


def test_too_few_cards_is_told_and_not_ok(run_module):
    result = run_module(accelerator_info, dict(SMALL, expected_cards=8))
    assert result["ok"] is False
    assert any("1 cards, 8 expected" in line for line in result["lines"])


def test_device_nodes_are_opened_for_real(run_module, tmp_path):
    there, absent = tmp_path / "node", tmp_path / "absent"
    there.write_text("")
    result = run_module(accelerator_info, dict(SMALL, device_nodes=[str(there)], optional_device_nodes=[str(absent)]))
    assert result["ok"] is True
    assert result["device_nodes"] == {str(there): there.stat().st_gid}
    result = run_module(accelerator_info, dict(SMALL, device_nodes=[str(there), str(absent)]))
    assert result["ok"] is False
    assert any("{0}: No such file or directory".format(absent) in line for line in result["lines"])


def test_node_that_is_listed_and_does_not_open(run_module, tmp_path):
    result = run_module(accelerator_info, dict(SMALL, device_nodes=[str(tmp_path)]))
    assert result["ok"] is False
    assert os.strerror(21) in "".join(result["lines"])


def test_broken_probe_is_a_message(run_module, monkeypatch):
    monkeypatch.setattr(_probe_cpu, "lay_out", lambda *_args: [])
    result = run_module(accelerator_info, SMALL)
    assert result["failed"] is True
    assert "one card of 1 MiB" in result["msg"]
