# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Played Hygon hosts, with a tool that really runs: exact cards, and every way a host can be wrong has its line."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re

import pytest
from unit.plugins.played import hygon
from unit.plugins.played.hygon import Answer, Quick

from ansible_collections.ironserve.llm.plugins.module_utils import _probe_hygon
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Card, Holder, preflight
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARN, all_good
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.modules import accelerator_info

K100AI = ["0000:07:00.0", "0000:0a:00.0", "0000:0f:00.0", "0000:16:00.0", "0000:1d:00.0", "0000:20:00.0", "0000:25:00.0", "0000:2c:00.0"]
TEMPERATURES = [59.0, 61.0, 60.0, 59.0, 60.0, 62.0, 58.0, 58.0]
POWERS = [114.0, 109.0, 106.0, 107.0, 118.0, 113.0, 106.0, 115.0]


def k100ai_card(index, **changes):
    fields = {
        "id": K100AI[index],
        "index": index,
        "name": "K100_AI",
        "name_raw": "K100_AI",
        "architecture": "gfx928",
        "memory_total_mib": 65520,
        "memory_used_mib": 2,
        "utilisation_pct": 0.0,
        "temperature_c": TEMPERATURES[index],
        "power_w": POWERS[index],
        "health": "ok",
        "devices": {"card": f"/dev/dri/card{index + 1}", "render": f"/dev/dri/renderD{index + 128}"},
        "numa_node": 0 if index < 4 else 1,
    }
    return Card(**dict(fields, **changes))


@pytest.fixture
def look(tmp_path):
    """Play a host and read it; ``quick`` without starting the tool for real."""

    def read(host, quick=True):
        root = hygon.play(tmp_path, host)
        return _probe_hygon.probe(Quick(root, host) if quick else hygon.vendor(root))

    return read


def checks(found):
    return {check.name: check for check in found.checks}


def statuses(found):
    return {check.name: check.status for check in found.checks}


FINE = {"driver_live": PASS, "kfd": PASS, "driver_version": PASS, "cards_on_bus": PASS, "tool_listings": PASS}


# ---- whole hosts


@pytest.mark.parametrize("speaks_json", [True, False])
def test_eight_idle_k100ai(tmp_path, speaks_json):
    host = hygon.k100ai(speaks_json)
    root = hygon.play(tmp_path, host)
    found = _probe_hygon.probe(hygon.vendor(root))
    assert found.cards == [k100ai_card(index) for index in range(8)]
    assert statuses(found) == FINE
    assert (found.probe, found.tool, found.driver_version, found.driver_live) == ("hygon", hygon.HY_SMI, "6.3.31-V1.5.0a", True)
    assert (found.runtime_version, found.firmware_version, found.tool_version) == ("25.04.4", None, None)
    assert all_good(preflight(found, 8, 65520, {}))
    calls = hygon.asked(root, host)
    assert calls[0] == "", "the table first"
    assert len(calls) == (8 if speaks_json else 12)


def test_busy_card_has_its_process(look):
    found = look(hygon.k100ai(busy=True))
    busy = k100ai_card(1, memory_used_mib=9703, holders=[Holder(2004092, "", "python3", 9649)])
    assert found.cards == [busy if index == 1 else k100ai_card(index) for index in range(8)]
    assert statuses(found) == FINE


def test_older_driver_with_dcu_wordings_and_rocm_smi(look):
    found = look(hygon.k100ai_dcu(), quick=False)
    powers, temperatures = [118.0, 120.0, 116.0, 138.0], [49.0, 48.0, 53.0, 49.0]
    assert found.cards == [
        k100ai_card(index, name_raw="DCU K100_AI", temperature_c=temperatures[index], power_w=powers[index], numa_node=None)
        for index in range(4)
    ]
    assert statuses(found) == {**FINE, "health_source": WARN, "runtime": NOT_APPLICABLE}
    assert "knows no --healthcheck" in checks(found)["health_source"].detail
    assert (found.tool, found.driver_version, found.runtime_version) == (hygon.ROCM_SMI, "rock-5.7.1-6.2.26-V1.5", None)


def test_bw_cards_are_told_by_their_chip(look):
    found = look(hygon.bw())
    first, second = found.cards
    assert first == Card(
        id="0000:09:00.0",
        index=0,
        name="BW1000_H",
        name_raw="BW",
        architecture="gfx936",
        memory_total_mib=65520,
        memory_used_mib=9703,
        utilisation_pct=0.0,
        temperature_c=51.0,
        power_w=87.0,
        health="ok",
        devices={"card": "/dev/dri/card1", "render": "/dev/dri/renderD128"},
        numa_node=0,
    )
    assert second.holders == [Holder(2004092, "", "python3", 9649)]
    assert (second.memory_used_mib, second.power_w, second.numa_node) == (9651, 91.0, 1), "the tool says node 0 of the first card only"
    assert statuses(found) == {**FINE, "runtime": NOT_APPLICABLE}


def test_chip_6210_alone_makes_no_k100ai(look):
    found = look(hygon.z200sm())
    (card,) = found.cards
    assert (card.id, card.name, card.architecture, card.memory_total_mib) == ("0000:04:00.0", "Z200SM 80", "unknown", 16368)
    assert (card.health, card.power_w, card.temperature_c) == ("ok", 22.0, 47.0)
    assert statuses(found)["card_architecture"] == WARN
    assert statuses(found)["driver_version"] == WARN, "neither module nor tool tells it"
    assert found.driver_version is None


def test_rocminfo_tells_the_architecture_of_a_series_that_is_not_known(tmp_path):
    host = hygon.z200sm()
    root = hygon.play(tmp_path, host)
    target = root / "opt/dtk/bin/rocminfo"
    target.parent.mkdir(parents=True)
    text = hygon.capture("rocminfo__dtk-24.04.3__1x-k100ai__author-redacted.txt")
    (root / "agents").write_text(text.replace("BDFID:                   15 ", "BDFID:                   1024 "), encoding="utf-8")
    target.write_text(f"#!/bin/sh\ncat {root}/agents\n", encoding="utf-8")
    target.chmod(0o755)
    found = _probe_hygon.probe(hygon.vendor(root))
    assert found.cards[0].architecture == "gfx928"
    assert "card_architecture" not in statuses(found)
    (root / "agents").write_text(text, encoding="utf-8")
    assert _probe_hygon.probe(hygon.vendor(root)).cards[0].architecture == "unknown", "another address, another card"
    (root / "agents").write_text("ROCk module is NOT loaded\n", encoding="utf-8")
    assert _probe_hygon.probe(hygon.vendor(root)).cards[0].architecture == "unknown"


def test_index_is_the_tools_and_not_the_order_on_the_bus(look):
    host = hygon.k100ai_dcu()
    swapped = {
        0: {"PCI Bus": "0000:16:00.0"},
        1: {"PCI Bus": "0000:0A:00.0"},
        2: {"PCI Bus": "0000:0f:00.0"},
        3: {"PCI Bus": "0000:07:00.0"},
    }
    host.answers.update(hygon.listing("--showbus", swapped, "DCU"))
    found = look(host)
    assert [(card.index, card.id) for card in found.cards] == [
        (0, "0000:16:00.0"),
        (1, "0000:0a:00.0"),
        (2, "0000:0f:00.0"),
        (3, "0000:07:00.0"),
    ]
    assert found.cards[0].devices == {"card": "/dev/dri/card4", "render": "/dev/dri/renderD131"}


def test_the_modules_own_entry_reads_a_played_host(run_module, tmp_path):
    root = hygon.play(tmp_path, hygon.k100ai())
    arguments = {
        "probe": "hygon",
        "expected_cards": 8,
        "minimum_memory_mib": 65520,
        "tools": hygon.TOOLS,
        "device_nodes": ["/dev/kfd"],
        "root": str(root),
    }
    result = run_module(accelerator_info, arguments)
    assert result["ok"] is True, result["lines"]
    assert result["cards"] == [dataclasses.asdict(k100ai_card(index)) for index in range(8)]
    assert len(result["device_nodes"]) == 1 + 16


# ---- cards that are not where they should be


def test_card_on_the_bus_that_the_tool_does_not_list(look):
    host = hygon.k100ai()
    host.bus["0000:30:00.0"] = dataclasses.replace(host.bus[K100AI[7]], card=9, render=136)
    found = look(host)
    check = checks(found)["cards_on_bus"]
    assert check.status == FAIL
    assert f"hy-smi lists {', '.join(K100AI)}; the PCI bus has {', '.join([*K100AI, '0000:30:00.0'])}; " in check.detail
    assert check.detail.endswith("only on the bus: 0000:30:00.0; only in hy-smi: none")
    assert len(found.cards) == 8


@pytest.mark.parametrize(
    ("function", "status"),
    [
        (hygon.Function(driver="hycu", chip="ffff", kind="0x060000"), FAIL),
        (hygon.Function(driver="", chip="6320", kind="0x060400"), FAIL),
        (hygon.Function(driver="", chip="ffff", kind="0x0b4000"), FAIL),
        (hygon.Function(driver="", chip="ffff", kind="0x120000"), FAIL),
        (hygon.Function(driver="", chip="ffff", kind="0x038000"), FAIL),
        (hygon.Function(driver="pcieport", chip="1453", kind="0x060400"), PASS),
        (hygon.Function(driver="ccp", chip="1456", kind="0x108000"), PASS),
        (hygon.Function(driver="", chip="6210", kind="0x0b4000", vendor="0x10de"), PASS),
    ],
)
def test_no_class_decides_alone_what_is_a_card(look, function, status):
    host = hygon.k100ai()
    host.bus["0000:30:00.0"] = function
    assert statuses(look(host))["cards_on_bus"] == status


def test_listed_card_of_an_unknown_kind_is_a_card(look):
    host = hygon.k100ai()
    for address in K100AI:
        host.bus[address] = dataclasses.replace(host.bus[address], kind="0x060000", chip="ffff")
    found = look(host)
    assert statuses(found) == FINE
    assert len(found.cards) == 8


def test_listed_card_that_left_the_bus_is_a_fault(look):
    host = hygon.k100ai()
    del host.bus[K100AI[3]]
    found = look(host)
    assert [card.health for card in found.cards] == ["ok"] * 3 + ["fault"] + ["ok"] * 4
    assert (found.cards[3].health_detail, found.cards[3].devices) == ("gone from the PCI bus", {})
    assert checks(found)["cards_on_bus"].detail.endswith("only on the bus: none; only in hy-smi: 0000:16:00.0")
    assert statuses(found)["card_nodes"] == FAIL


def test_bus_without_any_card_of_the_vendor(look):
    host = hygon.k100ai()
    host.bus = {"0000:03:00.0": host.bus["0000:03:00.0"]}
    found = look(host)
    assert {card.health for card in found.cards} == {"fault"}
    assert checks(found)["cards_on_bus"].status == FAIL
    assert "the PCI bus has none" in checks(found)["cards_on_bus"].detail


def test_card_of_a_virtual_machine_is_a_warning(look):
    host = hygon.k100ai()
    host.bus["0000:30:00.0"] = hygon.Function(driver="vfio-pci")
    found = look(host)
    assert statuses(found) == {**FINE, "cards_of_virtual_machines": WARN}
    assert "0000:30:00.0" in checks(found)["cards_of_virtual_machines"].detail


@pytest.mark.parametrize("driver", ["", "vfio-pci", "amdgpu"])
def test_listed_card_that_is_bound_to_something_else(look, driver):
    host = hygon.k100ai()
    host.bus[K100AI[2]].driver = driver
    card = look(host).cards[2]
    assert (card.health, card.health_detail) == ("unknown", "bound to {}".format(driver or "no driver"))


@pytest.mark.parametrize(
    ("query", "changes", "says"),
    [
        ("bare", {"utilisation_pct": None, "temperature_c": None, "power_w": None, "health_detail": "not in the table"}, "the table"),
        ("--showproductname", {"name": "", "name_raw": "", "architecture": "unknown"}, "--showproductname"),
        ("--showmeminfo vram", {"memory_total_mib": 0, "memory_used_mib": None}, "--showmeminfo vram"),
        ("--healthcheck", {}, "--healthcheck"),
        ("--showbus", {"id": "hygon:5", "devices": {}}, "--showbus"),
    ],
)
@pytest.mark.parametrize("speaks_json", [True, False])
def test_card_that_one_query_drops_stays_in_the_list(look, speaks_json, query, changes, says):
    host = hygon.k100ai(speaks_json)
    for name in (query, query + " --json"):
        if name in host.answers:
            text = re.sub(r"(?m)^(?:5 |HCU\[5\]).*\n", "", host.answers[name].out)
            host.answers[name] = Answer(re.sub(r'"card5": \{[^}]*\}, ', "", text))
    found = look(host)
    changes = {"health": "unknown", "health_detail": f"not in {says}", **changes}
    assert found.cards == [k100ai_card(index, **(changes if index == 5 else {})) for index in range(8)]
    who = "hygon:5" if query == "--showbus" else K100AI[5]
    assert checks(found)["tool_listings"].status == FAIL
    assert f"{who} is not in {says}" in checks(found)["tool_listings"].detail


# ---- health


@pytest.mark.parametrize(
    ("word", "health"), [("Healthy", "ok"), ("Unhealthy", "fault"), ("Health", "unknown"), ("Degraded (ECC)", "unknown")]
)
def test_health_words(look, word, health):
    host = hygon.k100ai()
    host.answers["--healthcheck"].out = host.answers["--healthcheck"].out.replace(
        "0000:0f:00.0         : Healthy", f"0000:0f:00.0 : {word}"
    )
    found = look(host)
    assert [card.health for card in found.cards] == ["ok", "ok", health] + ["ok"] * 5
    assert (word in found.cards[2].health_detail) == (health != "ok")


def test_health_of_another_address_is_a_contradiction(look):
    host = hygon.k100ai()
    host.answers["--healthcheck"] = hygon.health([K100AI[1], K100AI[0], *K100AI[2:]])
    check = checks(look(host))["tool_listings"]
    assert (check.status, "0000:07:00.0 is 0000:0a:00.0 in --healthcheck" in check.detail) == (FAIL, True)


def test_without_a_health_check_a_card_that_cannot_be_read_is_unknown(look):
    host = hygon.k100ai_dcu()
    host.answers["bare"].out = host.answers["bare"].out.replace("49.0C    138.0W", "N/A      N/A   ")
    found = look(host)
    assert [card.health for card in found.cards] == ["ok", "ok", "ok", "unknown"]
    assert found.cards[3].health_detail == "its temperature is not readable"


def test_memory_that_is_not_readable_is_no_healthy_card(look):
    host = hygon.k100ai()
    silent = {index: {"vram Total Memory (MiB)": "65520", "vram Total Used Memory (MiB)": "2"} for index in range(8)}
    silent[6] = {"vram Total Memory (MiB)": "N/A", "vram Total Used Memory (MiB)": "N/A"}
    host.answers.update(hygon.listing("--showmeminfo vram", silent))
    card = look(host).cards[6]
    assert (card.health, card.health_detail, card.memory_total_mib, card.memory_used_mib) == (
        "unknown",
        "its memory is not readable",
        0,
        None,
    )


# ---- driver


@pytest.mark.parametrize(
    ("module", "state", "says"),
    [
        ("", "", "no module hycu or hydcu is loaded"),
        ("hycu", "coming", "module hycu is coming"),
        ("hydcu", "going", "module hydcu is going"),
    ],
)
def test_module_that_is_not_live(look, module, state, says):
    host = hygon.k100ai()
    host.module, host.module_state = module, state
    found = look(host)
    assert found.driver_live is False
    assert (checks(found)["driver_live"].status, checks(found)["driver_live"].detail) == (FAIL, says)
    assert {card.health for card in found.cards} == {"unknown"}
    assert found.cards[0].health_detail == "the kernel module is not live"


def test_no_kfd(look):
    host = hygon.k100ai()
    host.nodes = []
    assert checks(look(host))["kfd"].status == FAIL


@pytest.mark.parametrize(
    ("loaded", "said", "status"),
    [
        ("6.3.31-V1.5.0a", "6.3.31-V1.5.0a", PASS),
        ("rock-5.7.1-6.2.26-V1.5", "6.2.26-V1.5", PASS),
        ("6.3.31-V1.5.0a", "6.3.32-V1.6.0", WARN),
        ("", "6.3.31-V1.5.0a", PASS),
    ],
)
def test_driver_version(look, loaded, said, status):
    host = hygon.k100ai()
    host.module_version = loaded
    host.answers["--showdriverversion"].out = hygon.frame([f"Driver Version: {said}"])
    found = look(host)
    assert statuses(found)["driver_version"] == status
    assert found.driver_version == (loaded or said)


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"/opt/dtk/.info/rocm_version": "\n26.04\n", "/opt/dtk/.dtk_version": "DTK-26.04-rc4\n"}, "26.04"),
        ({"/opt/dtk/.info/version-dev": "25.04.1\nbuild 7\n"}, "25.04.1"),
        ({"/opt/dtk/.info/rocm_version": "\n", "/opt/dtk/.dtk_version": "DTK-26.04-rc4\n"}, "DTK-26.04-rc4"),
        ({}, None),
    ],
)
def test_runtime_version(look, files, version):
    host = hygon.k100ai()
    host.files = files
    found = look(host)
    assert found.runtime_version == version
    assert statuses(found).get("runtime") == (NOT_APPLICABLE if version is None else None)


def test_runtime_version_by_the_link(tmp_path):
    host = hygon.k100ai()
    host.files = {}
    root = hygon.play(tmp_path, host)
    (root / "opt/dtk").symlink_to("dtk-26.04-DCC2602-0317")
    assert _probe_hygon.probe(Quick(root, host)).runtime_version == "dtk-26.04-DCC2602-0317"


# ---- figures


def test_power_that_cannot_be_true(look):
    host = hygon.k100ai(busy=True)
    host.answers["bare"].out = host.answers["bare"].out.replace("109.0W ", "8.0W   ")
    found = look(host)
    assert [card.power_w for card in found.cards] == [114.0, None, *POWERS[2:]]
    assert checks(found)["power_reading"].detail == "not believed, lower than any idle card: 0000:0a:00.0 (8 W)"
    assert checks(found)["power_reading"].status == WARN


@pytest.mark.parametrize(
    ("power", "cap", "believed"),
    [
        (8.0, 400.0, None),
        (8.0, 150.0, None),
        (14.9, 100.0, None),
        (22.0, 300.0, 22.0),
        (80.0, 1000.0, 80.0),
        (49.0, 1000.0, None),
        (20.0, None, 20.0),
        (8.0, None, None),
        (None, 400.0, None),
        (0.0, 400.0, None),
    ],
)
def test_believed_power(power, cap, believed):
    row = _probe_hygon._hy_smi.Row(50.0, power, cap, "auto", 0.0, 0.0, "Normal")
    assert _probe_hygon.believed_power(row) == believed


@pytest.mark.parametrize("name", ["hy-smi__dtk-24.04__4x-z100-class__idle__mode-na.txt", "hy-smi__8x-bw1000__idle__dec-enc-columns.txt"])
def test_power_of_every_idle_capture_is_believed(name):
    rows = _probe_hygon._hy_smi.parse_table(hygon.capture(name)).rows
    assert all(_probe_hygon.believed_power(row) == row.power_w for row in rows.values())


def test_memory_that_changes_while_a_replica_loads_is_asked_again(tmp_path):
    host = hygon.k100ai(busy=True)
    root = hygon.play(tmp_path, host)
    early = hygon.k100ai().answers["bare"]

    class Loading(Quick):
        def run(self, name, *arguments):
            self.host.answers["bare"] = early if self.asked == [] else late
            return super().run(name, *arguments)

    late = host.answers["bare"]
    vendor = Loading(root, host)
    found = _probe_hygon.probe(vendor)
    assert statuses(found) == FINE
    assert vendor.asked[:4] == ["", "--showmeminfo vram --json"] * 2


def test_memory_figures_that_never_agree(look):
    host = hygon.k100ai(busy=True)
    host.answers["bare"] = hygon.k100ai().answers["bare"]
    check = checks(look(host))["memory_figures"]
    assert (check.status, check.detail) == (UNKNOWN, "table and --showmeminfo vram disagree three times on 0000:0a:00.0")


def test_cards_of_one_series_with_different_memory(look):
    host = hygon.k100ai()
    memory = {index: {"vram Total Memory (MiB)": "65520", "vram Total Used Memory (MiB)": "2"} for index in range(8)}
    memory[3]["vram Total Memory (MiB)"] = "6552"
    host.answers.update(hygon.listing("--showmeminfo vram", memory))
    check = checks(look(host))["card_memory_sizes"]
    assert (check.status, check.detail) == (UNKNOWN, "cards of series K100_AI have 6552 and 65520 MiB")


def test_series_that_contradicts_its_chip(look):
    host = hygon.k100ai()
    host.answers.update(
        hygon.listing("--showproductname", {index: {"Card Series": "K100" if index == 4 else "K100_AI"} for index in range(8)})
    )
    check = checks(look(host))["card_product"]
    assert (check.status, check.detail) == (UNKNOWN, "0000:1d:00.0 says K100, its chip 6210 is K100_AI")


def test_use_is_asked_for_where_the_table_has_none(tmp_path):
    host = hygon.k100ai()
    host.answers["bare"].out = host.answers["bare"].out.replace("0.0%      Normal   ", "N/A       Normal   ", 1)
    host.answers.update(hygon.listing("--showuse", {index: {"HCU use (%)": str(index + 40)} for index in range(8)}))
    vendor = Quick(hygon.play(tmp_path, host), host)
    assert [card.utilisation_pct for card in _probe_hygon.probe(vendor).cards] == [40.0] + [0.0] * 7
    assert "--showuse --json" in vendor.asked


def test_numa_node_of_the_tool_goes_first(look):
    host = hygon.k100ai()
    for function in host.bus.values():
        function.numa = 0
    found = look(host)
    assert [card.numa_node for card in found.cards] == [0] * 4 + [1] * 4
    assert checks(found)["numa_node"].status == WARN
    assert "0000:1d:00.0: 1 and 0" in checks(found)["numa_node"].detail


# ---- slices and virtual cards


def test_card_cut_into_slices(look):
    host = hygon.k100ai()
    head, row, tail = host.answers["bare"].out.partition("2       60.0C    106.0W     auto     400.0W     0%         0.0%      ")
    host.answers["bare"].out = head + row + tail.replace("Normal", "MIG   ", 1)
    check = checks(look(host))["mig"]
    assert (check.status, check.detail) == (FAIL, "cut into slices: 0000:0f:00.0")


def test_virtual_cards_are_told(look):
    host = hygon.k100ai()
    host.files.update({"/etc/vdev/vdev0.conf": "PciBusId: 0000:07:00.0\n", "/etc/vdev/vdev1.conf": "PciBusId: 0000:0a:00.0\n"})
    check = checks(look(host))["virtual_cards"]
    assert check.status == WARN
    assert check.detail.startswith("2 virtual cards are cut from 0000:07:00.0, 0000:0a:00.0;")


def test_card_without_nodes(look):
    host = hygon.k100ai()
    host.bus[K100AI[0]].render = None
    check = checks(look(host))["card_nodes"]
    assert (check.status, "0000:07:00.0" in check.detail) == (FAIL, True)


# ---- processes


def processes(*blocks):
    return Answer(hygon.frame(["PIDs for KFD processes:", *[line for block in blocks for line in block]]))


def block(pid, buses, indices, mib, pct):
    return [f"PID: {pid}", f"\tHCU Index: {indices} ", f"\tPCI BUS: {buses} ", f"\tVRAM USED(MiB): {mib}", f"\tVRAM USED(%): {pct}"]


def test_process_on_two_cards_and_two_on_one(look):
    host = hygon.k100ai()
    host.processes = {7: "VLLM::Worker", 8: "python3"}
    host.answers["--showpids"] = processes(block(7, K100AI[:2], ["0", "1"], 20, "inf"), block(8, K100AI[:1], ["0"], 10, 0))
    found = look(host)
    assert found.cards[0].holders == [Holder(7, "", "VLLM::Worker", None), Holder(8, "", "python3", 10)]
    assert found.cards[1].holders == [Holder(7, "", "VLLM::Worker", None)]
    assert statuses(found) == FINE


def test_process_on_a_card_that_is_not_listed(look):
    host = hygon.k100ai()
    host.processes = {7: "python3"}
    host.answers["--showpids"] = processes(block(7, ["0000:99:00.0"], ["0"], 20, 0))
    check = checks(look(host))["card_processes"]
    assert (check.status, check.detail) == (UNKNOWN, "process 7 is on 0000:99:00.0, which is no card listed")


def test_process_whose_figures_do_not_agree(look):
    host = hygon.k100ai()
    host.processes = {7: "python3"}
    host.answers["--showpids"] = processes(block(7, K100AI[:1], ["0"], 96, 15))
    found = look(host)
    assert found.cards[0].holders == [Holder(7, "", "python3", None)]
    assert checks(found)["card_processes"].detail == "process 7 holds 96 MiB and 15 % of 0000:07:00.0"


def test_process_that_this_host_does_not_have_and_a_number_that_differs(look):
    host = hygon.k100ai()
    host.answers["--showpids"] = processes(block(7, K100AI[2:3], ["5"], 20, 0))
    found = look(host)
    assert found.cards[2].holders == [Holder(7, "", "", 20)], "the address counts, not the number"
    check = checks(found)["card_process_ids"]
    assert check.status == WARN
    assert "this host has no process 7" in check.detail
    assert "process 7 is on 0000:0f:00.0, card 2, called 5 there" in check.detail


# ---- a tool that fails


def test_tool_that_is_missing_names_its_places_and_the_module(tmp_path):
    host = hygon.k100ai()
    host.module, host.nodes = "", []
    root = hygon.play(tmp_path, host)
    (root / hygon.HY_SMI.lstrip("/")).unlink()
    with pytest.raises(LLMError) as caught:
        _probe_hygon.probe(hygon.vendor(root))
    assert "hy-smi: not found (looked for /opt/hyhal/bin/hy-smi, /usr/local/hyhal/bin/hy-smi, /opt/dtk/bin/rocm-smi)" in str(caught.value)
    assert str(caught.value).endswith("(no module hycu or hydcu is loaded, /dev/kfd is not there)")


def test_tool_that_hangs_is_killed(tmp_path):
    host = hygon.k100ai()
    host.answers["--showpids"].hang = True
    with pytest.raises(LLMError, match=r"hy-smi --showpids: no end after 1 s; it hangs \(module hycu is live, /dev/kfd is there\)"):
        _probe_hygon.probe(hygon.vendor(hygon.play(tmp_path, host), timeout_s=1.0))


@pytest.mark.parametrize("query", ["bare", "--showbus --json", "--showpids", "--healthcheck"])
def test_tool_that_ends_badly_after_a_good_answer(look, query):
    host = hygon.k100ai()
    host.answers[query].rc = 14
    host.answers[query].err = "\nERROR: sensor 3\n"
    with pytest.raises(LLMError) as caught:
        look(host, quick=False)
    flags = "" if query == "bare" else f" {query}"
    assert f"{hygon.HY_SMI}{flags} ended with status 14 and said 'ERROR: sensor 3'" in str(caught.value)


@pytest.mark.parametrize("rc", [0, 127])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hy-smi__libhcu_smi-mismatch__error-fragment.txt", "install one driver release over /opt/hyhal"),
        ("hy-smi__not-in-path__error.txt", "it lies in /opt/hyhal/bin"),
    ],
)
def test_known_errors_come_with_what_to_do(look, name, says, rc):
    host = hygon.k100ai()
    host.answers["bare"] = Answer(hygon.capture(name), rc=rc)
    with pytest.raises(LLMError) as caught:
        look(host)
    assert f"ended with status {rc} and" in str(caught.value)
    assert hygon.capture(name).strip() in str(caught.value)
    assert says in str(caught.value)


def test_unknown_answer_shows_tool_status_and_line(look):
    host = hygon.k100ai()
    host.answers["bare"].out = host.answers["bare"].out.replace("61.0C", "61.0F")
    with pytest.raises(UnknownOutput) as caught:
        look(host)
    assert f"{hygon.HY_SMI} ended with status 0 and is not understood: '61.0F' is no figure in C: '1       61.0F" in str(caught.value)


@pytest.mark.parametrize("query", ["bare", "--showbus", "--showproductname", "--showmeminfo vram", "--showpids"])
def test_query_that_cannot_be_done_without(look, query):
    host = hygon.k100ai()
    for name in (query, f"{query} --json"):
        host.answers.pop(name, None)
    with pytest.raises(LLMError, match="ended with status 2 and said 'hy-smi: error: unrecognized arguments"):
        look(host)


def test_malformed_json_of_one_query_is_read_as_text(look):
    host = hygon.k100ai()
    host.answers["--showbus --json"].out = host.answers["--showbus --json"].out.replace('"card1": {', '"card1": ')
    found = look(host)
    assert found.cards == [k100ai_card(index) for index in range(8)]
    assert statuses(found) == FINE


def test_refusal_to_print_json_is_no_warning(look):
    host = hygon.k100ai()
    for query in [name for name in host.answers if name.endswith("--json")]:
        host.answers[query] = Answer(err=hygon.NO_FORMAT)
    found = look(host)
    assert found.cards == [k100ai_card(index) for index in range(8)]
    assert statuses(found) == FINE


def test_what_the_tool_says_around_its_answers_is_told(look):
    host = hygon.k100ai()
    host.answers["bare"].out = "WARNING: old firmware\n" + host.answers["bare"].out
    host.answers["--showbus --json"].out += "WARNING: old firmware\n"
    host.answers["--healthcheck"].err = "cannot read ECC of card 4\n"
    found = look(host, quick=False)
    check = checks(found)["tool_warnings"]
    assert (check.status, check.detail) == (WARN, "hy-smi also says: WARNING: old firmware; cannot read ECC of card 4")
    assert statuses(found) == {**FINE, "tool_warnings": WARN}


# ---- nothing but queries


@pytest.mark.parametrize("make", [hygon.k100ai, lambda: hygon.k100ai(False), hygon.k100ai_dcu, hygon.bw, hygon.z200sm])
def test_only_known_queries_are_ever_asked(tmp_path, make):
    host = make()
    root = hygon.play(tmp_path, host)
    _probe_hygon.probe(hygon.vendor(root))
    allowed = {" ".join((*query, *json)) for query in _probe_hygon.QUERIES for json in ((), ("--json",))}
    calls = hygon.asked(root, host)
    assert set(calls) <= allowed
    assert len(calls) >= 8


def test_the_queries_are_queries():
    assert _probe_hygon.QUERIES == (
        (),
        ("--showbus",),
        ("--showproductname",),
        ("--showmeminfo", "vram"),
        ("--showuse",),
        ("--showpids",),
        ("--showdriverversion",),
        ("--showtoponuma",),
        ("--healthcheck",),
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--setmemiovol", "800"),
        ("--rasinject", "umc"),
        ("--unloaddriver",),
        ("--showbus", "--unloaddriver"),
        ("--showmeminfo",),
        ("--showmeminfo", "all"),
        ("--json", "--json"),
        ("-d", "0"),
    ],
)
def test_anything_else_is_refused_before_it_is_run(tmp_path, arguments):
    host = hygon.k100ai()
    root = hygon.play(tmp_path, host)
    tool = _probe_hygon.Tool(hygon.vendor(root))
    with pytest.raises(LLMError, match="must not be called with"):
        tool.text(str, *arguments)
    assert hygon.asked(root, host) == []


def test_the_tool_is_run_at_one_place_only():
    tree = ast.parse(inspect.getsource(_probe_hygon))
    runs = [
        (function.name, ast.unparse(node))
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("run", "ask")
    ]
    assert sorted(runs) == [("_architectures", "vendor.ask('rocminfo')"), ("_say", "self.vendor.run(TOOL, *arguments)")]
