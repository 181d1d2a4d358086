# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The replayed tools: cards that follow containers, and planted faults, read back by the real probes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import yaml
from replay import hosts, smi
from unit.plugins.played import engine as played_engine

from ansible_collections.ironserve.llm.plugins.module_utils import _nvidia_smi, _probe_ascend, _probe_hygon, _probe_nvidia
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Accelerators, preflight
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._run import Completed
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

ROOT = Path(__file__).resolve().parents[2]
PROBES = {"k100": _probe_hygon, "a910b": _probe_ascend, "h200": _probe_nvidia}
#: Total and idle memory of card 1, MiB, and MiB of a container's that is one on the card.
CARD_1 = {"k100": (65520, 2, 63), "a910b": (65536, 3427, 64), "h200": (143771, 0, 140)}


def view(root: Path, kind: str) -> Vendor:
    """A played host as the role would have it read."""
    platform = yaml.safe_load((ROOT / f"roles/catalog/platforms/{hosts.KINDS[kind].platform}.yml").read_text(encoding="utf-8"))
    return Vendor(tools=platform["tools"], environment=platform.get("tool_environment"), timeout_s=60, root=str(root))


class Inside(Vendor):
    """The same, whose vendor's tool answers in this process, with the containers a test gives it."""

    def __init__(self, vendor: Vendor, told: dict[str, Any], containers: list[smi.Container], faults: smi.Faults) -> None:
        super().__init__(tools=vendor.tools, environment=vendor.environment, root=vendor.root)
        self.told, self.faults = told, faults
        cards = [smi.Card(**card) for card in told["cards"]]
        self.uses = smi.follow(cards, containers, told["scale"], faults)

    def run(self, name: str, *arguments: str) -> Completed:
        if self.tool(name) != self.told["tool"]:
            return super().run(name, *arguments)
        said = smi.answer(self.told, list(arguments), self.uses, self.faults)
        return Completed([self.told["tool"], *arguments], said.rc, said.out, said.err)


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """One good host of each kind, and what its tool knows."""
    place = tmp_path_factory.mktemp("played")
    return {kind: (place / kind, hosts.write(place / kind, kind + "-01", {})) for kind in hosts.KINDS}


@pytest.fixture(params=list(hosts.KINDS))
def kind(request) -> str:
    return request.param


@pytest.fixture
def probe(roots, kind):
    """Reads a host of this kind on which containers run and faults are planted."""
    root, told = roots[kind]

    def read(*containers: smi.Container, **faults: Any) -> Accelerators:
        return PROBES[kind].probe(Inside(view(root, kind), told, list(containers), smi.Faults(**faults)))

    return read


def bad(found: Accelerators) -> dict[str, str]:
    return {check.name: check.status for check in preflight(found, 8, 0, {}) if check.status not in ("pass", "not_applicable")}


def ids(roots, kind: str) -> list[str]:
    return [card["id"] for card in roots[kind][1]["cards"]]


# ---- cards follow containers


def two_cards() -> list[smi.Card]:
    return [smi.Card("a", 0, 1000, 10), smi.Card("b", 1, 1000, 20)]


def test_an_idle_card_shows_what_idle_cards_show():
    uses = smi.follow(two_cards(), [], 4, smi.Faults())
    assert uses == {"a": smi.Use(10, 0.0, []), "b": smi.Use(20, 0.0, [])}


def test_a_container_lies_on_its_card_and_on_no_other():
    container = smi.Container(["b"], 100 * 2**20, 0.5, [(7, "engine"), (8, "worker"), (9, "worker")])
    uses = smi.follow(two_cards(), [container], 4, smi.Faults())
    assert uses["a"] == smi.Use(10, 0.0, [])
    assert uses["b"] == smi.Use(420, 50.0, [(7, "engine", 134), (8, "worker", 133), (9, "worker", 133)])


def test_a_container_on_two_cards_is_spread_over_them():
    uses = smi.follow(two_cards(), [smi.Container(["a", "b"], 101 * 2**20, 1.0, [(7, "engine")])], 1, smi.Faults())
    assert uses == {"a": smi.Use(61, 50.0, [(7, "engine", 51)]), "b": smi.Use(70, 50.0, [(7, "engine", 50)])}


def test_a_card_holds_no_more_than_it_has():
    load = smi.Container(["a"], 900 * 2**20, 0.7, [(7, "engine")])
    uses = smi.follow(two_cards(), [load, load], 1, smi.Faults())
    assert uses["a"] == smi.Use(1000, 100.0, [(7, "engine", 900), (7, "engine", 90)])


def test_a_stalled_card_is_idle_though_it_is_held():
    load = smi.Container(["a"], 900 * 2**20, 0.7, [(7, "engine")])
    assert smi.follow(two_cards(), [load], 1, smi.Faults(idle=[0]))["a"] == smi.Use(910, 0.0, [(7, "engine", 900)])


def test_memory_stays_as_long_as_it_is_stuck_and_no_longer():
    held = {"a": smi.Use(910, 70.0, [(7, "engine", 900)]), "b": smi.Use(20)}
    seen = smi.remember(held, {}, 5, 100.0)
    assert seen == {"a": {"mib": 910, "gone": 0.0}} and held["a"].used_mib == 910
    for now, used in ((103.0, 910), (107.9, 910), (108.0, 10), (200.0, 10)):
        free = {"a": smi.Use(10), "b": smi.Use(20)}
        seen = smi.remember(free, seen, 5, now)
        assert (free["a"].used_mib, free["a"].processes, free["b"].used_mib) == (used, [], 20), now
    assert seen == {}


# ---- read back by the probes


def test_an_idle_host_is_good(probe, kind):
    found = probe()
    assert bad(found) == {}
    card = found.cards[1]
    assert (card.memory_total_mib, card.memory_used_mib, card.holders) == (*CARD_1[kind][:2], [])


def test_rows_follow_the_container(probe, roots, kind):
    mine = smi.Container([ids(roots, kind)[1]], 300 * 2**20, 0.42, [(4711, "llama-server"), (4712, "worker")])
    found = probe(mine)
    total, idle, scale = CARD_1[kind]
    card = next(card for card in found.cards if card.id == mine.cards[0])
    assert (card.index, card.memory_total_mib, card.memory_used_mib, card.utilisation_pct) == (1, total, idle + 300 * scale, 42.0)
    assert [(holder.pid, holder.memory_mib) for holder in card.holders] == [(4711, 150 * scale), (4712, 150 * scale)]
    for other in found.cards:
        if other is not card:
            assert (other.holders, other.utilisation_pct) == ([], 0.0)
    # Of these processes this host knows nothing; everything else is as before.
    assert bad(found) == ({"card_process_ids": "warn"} if kind == "k100" else {})


def test_a_full_card_is_understood(probe, roots, kind):
    mine = smi.Container([ids(roots, kind)[7]], 2**40, 8.0, [(1234567, "a process with a long name")])
    card = next(card for card in probe(mine).cards if card.id == mine.cards[0])
    assert (card.memory_used_mib, card.utilisation_pct) == (card.memory_total_mib, 100.0)


def test_a_process_on_two_cards_is_on_both(probe, roots, kind):
    first, second = ids(roots, kind)[2:4]
    found = probe(smi.Container([first, second], 200 * 2**20, 1.0, [(4711, "engine")]))
    held = {card.id: [holder.pid for holder in card.holders] for card in found.cards if card.holders}
    assert held == {first: [4711], second: [4711]}
    assert {card.utilisation_pct for card in found.cards if card.holders} == {50.0}


def test_the_table_for_people_follows_too(roots):
    _root, told = roots["h200"]
    cards = [smi.Card(**card) for card in told["cards"]]
    mine = smi.Container([cards[3].id], 1000 * 2**20, 1.0, [(4711, "engine")])
    said = smi.answer(told, [], smi.follow(cards, [mine], told["scale"], smi.Faults()), smi.Faults())
    table = _nvidia_smi.parse_table(said.out)
    assert [(gpu.address, gpu.memory_used_mib, gpu.utilisation_pct) for gpu in table.gpus] == [
        (card.id, 140000 if card.number == 3 else 0, 100 if card.number == 3 else 0) for card in cards
    ]
    assert [(process.gpu, process.pid, process.name, process.memory_mib) for process in table.processes] == [(3, 4711, "engine", 140000)]


def test_free_memory_is_what_is_neither_used_nor_reserved(roots):
    _root, told = roots["h200"]
    cards = [smi.Card(**card) for card in told["cards"]]
    mine = smi.Container([cards[0].id], 1000 * 2**20, 1.0, [(4711, "engine")])
    uses = smi.follow(cards, [mine], told["scale"], smi.Faults())
    said = smi.answer(told, ["--query-gpu=index,memory.used,memory.free,fan.speed", "--format=csv"], uses, smi.Faults())
    lines = said.out.splitlines()
    assert lines[0] == "index, memory.used [MiB], memory.free [MiB], fan.speed"
    assert lines[1:3] == ["0, 140000 MiB, 3157 MiB, [N/A]", "1, 0 MiB, 143157 MiB, [N/A]"] and len(lines) == 9


# ---- planted faults


UNHEALTHY = {
    "k100": "hy-smi --healthcheck says Unhealthy",
    "a910b": "Alarm; error codes A4025021 8C03A000 8C084E00",
    "h200": "the driver asks for a reset of the GPU",
}


def test_an_unhealthy_card_is_a_fault_and_no_other_is(probe, kind):
    found = probe(unhealthy=[5])
    assert bad(found) == {"card_health": "fail"}
    assert [card.index for card in found.cards if card.health != "ok"] == [5]
    assert found.cards[5].health == "fault" and found.cards[5].health_detail.startswith(UNHEALTHY[kind])


def test_a_lost_card_is_missed(probe, kind):
    found = probe(lost=[3])
    expected = {
        "k100": {"cards_on_bus": "fail", "card_count": "fail"},
        "a910b": {"cards_on_bus": "fail", "card_count": "fail", "nodes_without_card": "warn", "link_addresses": "warn"},
        # nvidia-smi says which card it cannot open, so it stays a card.
        "h200": {"lost_card": "fail", "card_memory": "fail", "card_health": "fail"},
    }
    assert bad(found) == expected[kind]


def test_nvidia_smi_ends_with_15_and_says_which_card_it_cannot_open(roots):
    _root, told = roots["h200"]
    cards = [smi.Card(**card) for card in told["cards"]]
    said = smi.answer(told, ["-L"], smi.follow(cards, [], 1, smi.Faults()), smi.Faults(lost=[3]))
    assert said.rc == 15 and said.err == "Unable to determine the device handle for GPU3: 0000:5D:00.0: Unknown Error\n"
    assert [card.index for card in _nvidia_smi.parse_list(said.out)] == [0, 1, 2, 4, 5, 6, 7]


def test_a_status_and_what_was_said(probe, kind):
    with pytest.raises(LLMError, match="ended with status 172 and said 'dcmi model"):
        probe(exit=172, says="dcmi model initialized failed, because the device is used. ret is -8020\n")


def test_a_status_beside_good_answers(probe, kind):
    if kind == "h200":
        assert bad(probe(exit=14)) == {"inforom": "warn"}
    else:
        with pytest.raises(LLMError, match="ended with status 14"):
            probe(exit=14)


# ---- the tool as a program


def run(root: Path, told: dict[str, Any], *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    tool = root / told["tool"].lstrip("/")
    environment = {**os.environ, "LD_LIBRARY_PATH": told.get("library", "")}
    return subprocess.run([str(tool), *arguments], capture_output=True, text=True, env=environment, check=False, **options)


@pytest.mark.slow
def test_the_program_says_what_the_probe_understands(roots, kind):
    root, _told = roots[kind]
    found = PROBES[kind].probe(view(root, kind))
    assert bad(found) == {} and len(found.cards) == 8


def test_an_unknown_question_is_refused(roots, kind):
    root, told = roots[kind]
    done = run(root, told, "--resetfans")
    words = {"k100": (2, "unrecognized arguments"), "a910b": (1, "Error parameter"), "h200": (2, "Invalid combination")}
    assert done.returncode == words[kind][0] and words[kind][1] in done.stdout + done.stderr


def test_a_fault_nobody_can_play_is_told(roots, tmp_path):
    told = hosts.write(tmp_path / "k100-01", "k100-01", {"hangs": True})
    done = run(tmp_path / "k100-01", told)
    assert done.returncode == smi.BROKEN and "state.json" in done.stderr and "hangs" in done.stderr


def test_a_tool_hangs_and_says_nothing(roots, tmp_path):
    told = hosts.write(tmp_path / "k100-01", "k100-01", {"hang": True})
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run(tmp_path / "k100-01", told, timeout=2)
    assert not caught.value.stdout


def test_a_missing_tool_is_not_there_or_says_so(roots, tmp_path):
    told = hosts.write(tmp_path / "h200-01", "h200-01", {"missing": True})
    assert not (tmp_path / "h200-01" / told["tool"].lstrip("/")).exists()
    said = smi.answer(told, ["-L"], {}, smi.Faults(missing=True))
    assert (said.rc, said.err) == (127, "nvidia-smi: command not found\n")


# ---- what really runs


GROUPS = {
    "v1": (
        "4:memory:/docker/{0}\n3:cpuset:/docker/{0}\n2:cpu,cpuacct:/docker/{0}\n0::/docker/{0}\n",
        {"cpu,cpuacct/docker/{0}/cpuacct.usage": "2000000000\n", "memory/docker/{0}/memory.usage_in_bytes": "1048576\n"},
        "memory/docker/{0}/cgroup.procs",
    ),
    "v2": (
        "0::/system.slice/docker-{0}.scope\n",
        {
            "system.slice/docker-{0}.scope/cpu.stat": "usage_usec 2000000\nuser_usec 1\n",
            "system.slice/docker-{0}.scope/memory.current": "1048576\n",
        },
        "system.slice/docker-{0}.scope/cgroup.procs",
    ),
}


@pytest.mark.parametrize("version", list(GROUPS))
def test_containers_are_those_that_run_on_the_cards(tmp_path, version):
    cgroup, files, procs = GROUPS[version]
    for name, text in {**files, procs: "44\n43\n"}.items():
        path = tmp_path / "cgroup" / name.format("one")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for pid, name in ((43, "engine"), (44, "worker")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/comm").write_text(name + "\n", encoding="utf-8")
        (tmp_path / f"proc/{pid}/cgroup").write_text(cgroup.format("one"), encoding="utf-8")
    query = urllib.parse.quote(json.dumps({"label": ["ironserve.cards"], "status": ["running"]}))
    answers = {
        f"/containers/json?filters={query}": [
            {"Id": "one", "Labels": {"ironserve.cards": "a,b"}},
            {"Id": "other", "Labels": {"ironserve.cards": "cpu:0"}},
            {"Id": "ended", "Labels": {"ironserve.cards": "a"}},
            {"Id": "gone", "Labels": {"ironserve.cards": "b"}},
        ],
        "/containers/one/json": {"State": {"Pid": 43}},
        "/containers/ended/json": {"State": {"Pid": 99}},
    }
    with played_engine.play(tmp_path, answers) as asked:
        found = smi.look(two_cards(), str(tmp_path / "var/run/docker.sock"), str(tmp_path / "proc"), str(tmp_path / "cgroup"))
    assert found == [smi.Container(["a", "b"], 1048576, 0.0, [(43, "engine"), (44, "worker")])]
    assert "/containers/other/json" not in asked


def test_no_engine_is_no_container_and_a_sick_one_is_told(tmp_path):
    sock = str(tmp_path / "var/run/docker.sock")
    assert smi.look(two_cards(), sock) == []
    query = urllib.parse.quote(json.dumps({"label": ["ironserve.cards"], "status": ["running"]}))
    with played_engine.play(tmp_path, {f"/containers/json?filters={query}": (500, {"message": "sick"})}):
        with pytest.raises(smi.Broken, match="answered with 500"):
            smi.look(two_cards(), sock)


def test_this_process_s_own_time_is_counted():
    with open("/proc/self/cgroup", encoding="utf-8") as handle:
        path = smi.group_file(handle.read(), "cpuacct", ("cpuacct.usage", "cpu.stat"), "/sys/fs/cgroup")
    if not os.path.exists(path):
        pytest.skip(f"{path}: control groups are not shown here")
    with open(path, encoding="utf-8") as handle:
        before = smi.cpu_seconds(handle.read())
    assert sum(number * number for number in range(300000)) and before > 0
    with open(path, encoding="utf-8") as handle:
        assert smi.cpu_seconds(handle.read()) > before


def test_the_played_proc_leads_to_the_processes_that_are_named(tmp_path):
    (tmp_path / "proc/1").mkdir(parents=True)
    smi.show_processes(str(tmp_path), {"a": smi.Use(5, 1.0, [(43, "engine", 5), (44, "worker", 0)])})
    smi.show_processes(str(tmp_path), {"a": smi.Use(5, 1.0, [(44, "worker", 5)])})
    assert sorted(os.listdir(tmp_path / "proc")) == ["1", "44"]
    assert os.readlink(tmp_path / "proc/44") == "/proc/44"


# ---- the fleet


def test_the_fleet_has_two_equal_good_hosts_of_each_vendor_and_each_kind_of_fault():
    for kind in hosts.KINDS:
        assert hosts.FLEET[f"{kind}-01"] == hosts.FLEET[f"{kind}-02"] == {}
    planted = [faults for faults in hosts.FLEET.values() if faults]
    assert sorted(key for faults in planted for key in faults) == ["exit", "exit", "hang", "lost", "missing", "says", "unhealthy"]
    for faults in planted:
        smi.Faults(**faults)


def test_the_variables_say_where_a_host_lies_and_keep_a_site_off_it(tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / "tests/replay/hosts.py"), str(tmp_path / "out")], capture_output=True, check=True)
    told = json.loads(done.stdout)
    assert list(told) == list(hosts.FLEET)
    for name, host in told.items():
        assert host["vars"]["accelerator_root"] == f"/opt/played/{name}" and (tmp_path / "out" / name).is_dir()
        assert host["vars"]["llm_model"] == "" and host["vars"]["accelerator_expected_cards"] == 8
        assert host["vars"]["replica_image"] == {"source": "registry"}
    assert told["h200-03"]["number"] == 3
