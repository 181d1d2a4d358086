# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module's own entry point on this very machine: cards, device nodes, checks, and errors as messages."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile

import pytest
from unit.plugins.played import engine as played_engine

from ansible_collections.ironserve.llm.plugins.module_utils import _docker, _probe_cpu
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
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


HELD = "\n".join(
    [
        "from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Accelerators, Card, Holder",
        "def probe(vendor):",
        "    cards = [Card('x:%d' % n, n, 'X1', 'X1', 'x', 7, health='ok', devices={'x': '/dev/x%d' % n}) for n in range(3)]",
        "    cards[0].holders = [Holder(41)]",
        "    cards[1].holders = [Holder(42)]",
        "    return Accelerators('made_up', 'x-smi', cards)",
    ]
)


@pytest.fixture
def root():
    """A played host with three nodes and two processes; a short path, as sockets under it have short names."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="isv"))
    files = {
        "dev/x0": "",
        "dev/x1": "",
        "dev/x2": "",
        "proc/41/cgroup": "0::/system.slice/docker-{0}.scope\n".format("a" * 64),
        "proc/42/cgroup": "0::/user.slice\n",
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    yield path
    shutil.rmtree(path)


def container(letter, name, labels, devices=()):
    return {
        "Id": letter * 64,
        "Name": "/" + name,
        "State": {"Running": True},
        "Config": {"Labels": labels},
        "HostConfig": {"Devices": [{"PathOnHost": path} for path in devices]},
    }


def test_containers_on_the_cards_are_named(run_module, root):
    own = container("a", "ironserve-c0", {"ironserve.replica": "n-c0"}, ["/dev/x0"])
    other = container("b", "jupyter", {}, ["/dev/x2"])
    answers = {"/containers/{0}/json".format(one["Id"]): one for one in (own, other)}
    answers["/containers/json"] = [{"Id": own["Id"]}, {"Id": other["Id"]}]
    with played_engine.play(root, answers):
        result = run_module(accelerator_info, {"probe": "made_up", "probe_source": HELD, "root": str(root)})
    held = [[(holder["pid"], holder["container"]) for holder in card["holders"]] for card in result["cards"]]
    assert held == [[(41, "ironserve-c0")], [(42, "")], [(0, "jupyter")]]
    assert result["own_containers"] == ["ironserve-c0"]
    assert result["ok"] is True


def test_a_process_in_a_container_nobody_knows_has_its_id(run_module, root):
    result = run_module(accelerator_info, {"probe": "made_up", "probe_source": HELD, "root": str(root)})
    assert [card["holders"][0]["container"] for card in result["cards"][:2]] == ["a" * 12, ""]
    assert result["own_containers"] == []


def test_an_engine_that_does_not_say_what_it_runs_is_a_check(run_module, root):
    with played_engine.play(root, {"/containers/json": (500, {})}):
        result = run_module(accelerator_info, {"probe": "made_up", "probe_source": HELD, "root": str(root)})
    assert result["ok"] is False
    assert [check["status"] for check in result["checks"] if check["name"] == "card_containers"] == ["unknown"]


def test_holders_of_cores_are_our_own(run_module, monkeypatch):
    held = {"cpu:0": [{"name": "ironserve-c0", "pid": os.getpid()}]}
    monkeypatch.setattr(_probe_cpu, "_containers_by_card", lambda: held)
    monkeypatch.setattr(_probe_cpu, "_cpu_seconds", lambda _containers: 0.0)
    monkeypatch.setattr(_probe_cpu._cgroup, "memory_bytes", lambda _pid: 0)
    result = run_module(accelerator_info, dict(SMALL, engine_socket="/nowhere.sock"))
    assert result["own_containers"] == ["ironserve-c0"]


def test_broken_probe_is_a_message(run_module, monkeypatch):
    monkeypatch.setattr(_probe_cpu, "lay_out", lambda *_args: [])
    result = run_module(accelerator_info, SMALL)
    assert result["failed"] is True
    assert "one card of 1 MiB" in result["msg"]


@pytest.mark.parametrize("name", accelerator_info.PROBES)
def test_every_shipped_probe_is_the_one_of_its_name(name):
    assert accelerator_info.shipped_probe(name).__module__.endswith("._probe_" + name)


def test_a_probe_that_is_not_shipped_is_never_another_one():
    with pytest.raises(LLMError, match="probe 'acme'"):
        accelerator_info.shipped_probe("acme")
