# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Played hosts with Ascend cards: what tools, bus and files say together, and what happens when one of them does not fit the others."""

from __future__ import annotations

import dataclasses
import re

import pytest
from unit.plugins.played import ascend
from unit.plugins.played.ascend import Answer, Function

from ansible_collections.ironserve.llm.plugins.module_utils import _npu_smi, _probe_ascend
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Card, Holder, preflight
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.modules import accelerator_info

EXPECTED = ascend.expected()
BUSY = "npu-smi-info__23.0.rc3.3__8x-910b3__busy.txt"
A3 = "npu-smi-info__25.2.3__atlas-a3-8cards-16dies__busy-many-procs.txt"
DUO = "npu-smi-info__25.5.1__2x-310p3-dual-chip__idle__no-process-table.txt"
SPARSE = "npu-smi-info__25.2.1__4x-310p3-sparse-ids__paste-cut-short.txt"
OLD_310 = "npu-smi-info__21.0.4__310-4chips-npu-6__device-ne-logic-id.txt"
ALARM = "npu-smi-info__23.0.0__310b4__health-alarm__bus-id-na.txt"
A910 = "npu-smi-info__22.0.3.1__8x-910a__idle__narrow-table.txt"


def read(host, **options):
    return _probe_ascend.probe(ascend.Quick(host)) if not options else _probe_ascend.probe(with_options(host, options))


def with_options(host, options):
    vendor = ascend.Quick(host)
    vendor.options = options
    return vendor


def checks(found):
    return {check.name: check for check in found.checks}


def bad(found):
    """Checks that are neither passed nor beside the point: name -> status."""
    return {check.name: check.status for check in found.checks if check.status not in ("pass", "not_applicable")}


# ---- whole hosts


def test_eight_910b2_with_real_tools_that_really_run(tmp_path):
    host = ascend.a2()
    root = ascend.play(tmp_path, host)
    found = _probe_ascend.probe(ascend.vendor(root))
    lines = ascend.capture("910b2-index-to-physical-id-bdf__8x-910b2__driver-25.5.1.tsv").splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    assert [[str(one.index), str(one.physical_id), one.id, one.name] for one in found.cards] == [row[:4] for row in rows]
    assert [one.memory_used_mib for one in found.cards] == [3432, 3427, 3420, 3421, 3421, 3420, 3419, 3426]
    assert found.cards[3] == Card(
        id="0000:02:00.0",
        index=3,
        name="910B2",
        name_raw="910B2",
        architecture="910B2",
        memory_total_mib=65536,
        memory_used_mib=3421,
        utilisation_pct=0,
        temperature_c=40,
        power_w=95,
        health="ok",
        devices={"davinci": "/dev/davinci3"},
        numa_node=0,
        physical_id=3,
        logical_id=3,
        link="up",
        link_detail="address 192.168.40.11/255.255.255.0; gateway 192.168.6.1; netdetect 192.168.6.1; net health Success; TLS off",
    )
    assert (found.probe, found.tool, found.tool_version) == ("ascend", "npu-smi 25.5.1", "25.5.1")
    assert (found.driver_version, found.driver_live, found.firmware_version) == ("25.5.1", True, "7.8.0.6.201")
    assert found.runtime_version is None
    assert bad(found) == {}
    assert {name: check.detail for name, check in checks(found).items()} == {
        "driver_live": "driver devdrv_device_driver, module drv_pcie_host is live",
        "driver_version": "25.5.1",
        "firmware_version": "7.8.0.6.201",
        "runtime_version": "no CANN below /usr/local/Ascend: it comes with the image",
        "tool_listings": "the table, -l and -m name the same 8 chips of 8 NPUs",
        "cards_on_bus": "8 PCI functions, as on the bus",
        "card_processes": "0 processes",
        "links": "8 up",
        "link_health": "8 Success",
        "link_tls": "off on all",
        "link_addresses": "as in /etc/hccn.conf",
        "driver_package": "completely installed",
    }
    assert ascend.asked(root)[:3] == ["info", "info -m", "info -l"]
    assert all(line.startswith("info") and not line.startswith("info -t health") for line in ascend.asked(root))
    assert {line.split()[2] for line in ascend.asked(root, "hccn_tool")} == {
        "-link",
        "-ip",
        "-gateway",
        "-netdetect",
        "-net_health",
        "-tls",
    }
    # The two ways to play a host are one host.
    assert read(host) == found


@pytest.mark.parametrize("name", list(EXPECTED["tables"]))
def test_host_of_every_table(name):
    table = EXPECTED["tables"][name]
    found = read(ascend.host(name))
    by_davinci = {one.devices["davinci"]: one for one in found.cards}
    assert len(by_davinci) == len(table["chips"]) == len({one.id for one in found.cards}) == len({one.index for one in found.cards})
    for npu, chip, column, bus, product, _word, power, temperature, use, used, total, ddr_used, ddr_total in table["chips"]:
        number = npu if column is None else column
        card = by_davinci[f"/dev/davinci{number}"]
        alone = [other[3] for other in table["chips"]].count(bus) == 1
        assert card.id == (f"npu:{number}" if bus is None else bus if alone else f"{bus}/{chip}")
        assert (card.index, card.physical_id) == (number, number)
        assert card.die == (chip if [other[0] for other in table["chips"]].count(npu) > 1 else None)
        assert (card.name_raw, card.memory_used_mib, card.memory_total_mib) == (product, used, total)
        assert (card.ddr_used_mib, card.ddr_total_mib) == (ddr_used, ddr_total)
        assert (card.power_w, card.temperature_c, card.utilisation_pct) == (power, temperature, use)
        holders = [Holder(pid, "", process, mib) for one, other, pid, process, mib in table["processes"] if (one, other) == (npu, chip)]
        assert card.holders == holders
        assert (card.link is None) == ("310" in name)
    known = {"card_memory_holders": "warn"} if name.startswith("npu-smi-info__23.0.2.1") else {}
    assert bad(found) == known
    assert [one.index for one in found.cards] == sorted(one.index for one in found.cards)
    others = ("card_health",) if name == ALARM else ()
    assert [check.name for check in preflight(found, len(found.cards), 1024, {}) if not check.good] == list(others)


def test_a3_dies_are_cards():
    found = read(ascend.host(A3))
    assert {(one.name, one.name_raw, one.architecture) for one in found.cards} == {("Ascend910", "Ascend910", "910_93")}
    die = found.cards[13]
    assert (die.id, die.index, die.physical_id, die.logical_id, die.die) == ("0000:87:00.0", 13, 13, 13, 1)
    assert (die.devices, die.power_w, die.holders) == ({"davinci": "/dev/davinci13"}, None, [Holder(3085961, "", "", 47416)])
    assert (found.cards[0].numa_node, die.numa_node) == (0, 1)


def test_chips_of_a_310p_duo_share_a_function():
    found = read(ascend.host(DUO))
    assert [one.id for one in found.cards] == ["0000:01:00.0/0", "0000:01:00.0/1", "0000:02:00.0/0", "0000:02:00.0/1"]
    assert [one.index for one in found.cards] == [0, 1, 2, 3]
    assert {(one.name, one.architecture, one.link) for one in found.cards} == {("310P3", "310P3", None)}
    assert checks(found)["links"].detail == "cards of this family have no network port"
    assert checks(found)["cards_on_bus"].detail == "2 PCI functions, as on the bus"


def test_950_whose_physical_ids_are_in_the_list_only():
    chips = [
        ascend.Chip(npu, 0, 5 - npu, npu, f"0000:{npu + 1:02x}:00.0", "Ascend950PR", health=health)
        for npu, health in ((0, "OK"), (1, "Alarm"))
    ]
    host = ascend.make(ascend.table(chips, "950", "25.7.rc1"), chips, "25.7.rc1", device="0xd806")
    rows = ["NPU ID Slot ID Chip ID Chip Phy-ID Chip Name", "0 1 0 5 Ascend950PR", "1 2 0 4 Ascend950PR"]
    host.smi["info -m"] = Answer("".join(row + "\n" for row in rows))
    host.smi["info -l"] = Answer("\tTotal Count : 2\n\n\tNPU ID : 0\n\n\tNPU ID : 1\n")
    host.smi["info -t health -i 1"] = Answer("\tHealth Status : Alarm\n\tError Code : 80E01801\n")
    found = read(host)
    assert bad(found) == {}
    assert [(one.index, one.physical_id, one.logical_id, one.devices["davinci"], one.die) for one in found.cards] == [
        (0, 5, None, "/dev/davinci5", None),
        (1, 4, None, "/dev/davinci4", None),
    ]
    assert (found.cards[1].name, found.cards[1].health_detail) == ("950PR", "Alarm; error codes 80E01801")


def test_sparse_npu_ids_do_not_become_indexes():
    found = read(ascend.host(SPARSE))
    assert [(one.index, one.id) for one in found.cards] == [
        (0, "0000:01:00.0"),
        (1, "0000:02:00.0"),
        (2, "0000:81:00.0"),
        (3, "0000:82:00.0"),
    ]


@pytest.mark.parametrize(
    ("raw", "dies", "name", "architecture"),
    [
        ("910B3", False, "910B3", "910B3"),
        ("Ascend 910B2C", False, "910B2C", "910B2C"),
        ("Ascend910", True, "Ascend910", "910_93"),
        ("Ascend910", False, "910", "910"),
        ("910ProB", False, "910ProB", "910ProB"),
        ("Ascend910_9392", True, "Ascend910_9392", "910_93"),
        ("310P3", False, "310P3", "310P3"),
        ("Ascend950PR", False, "950PR", "950PR"),
    ],
)
def test_names(raw, dies, name, architecture):
    assert _probe_ascend.product(raw, dies) == (name, architecture)


def test_names_of_processes_that_the_tool_hides():
    host = ascend.host(A3)
    host.files["/proc/3085961/comm"] = "VLLM::Worker\n"
    found = read(host)
    assert [holder.name for holder in found.cards[13].holders] == ["VLLM::Worker"]
    assert {holder.name for holder in found.cards[0].holders} == {""}


# ---- which chip is which


def numbers(chips, mapped):
    """Physical ids of chips (npu, chip, Phy-ID, Device) with a list (npu, chip, logical, physical)."""
    made = [_npu_smi.Chip(one[0], one[1], one[2], one[3], "910B", "OK", *[None] * 8) for one in chips]
    table = _npu_smi.Table("1", "1", made, True, True, [])
    return _probe_ascend.physical_ids(table, [_npu_smi.Mapped(*one) for one in mapped])


def test_physical_ids_are_read_in_order_of_trust():
    # Where -m has them, it decides, whatever the logical ids are: here as on a host of which the vendor's own tests tell.
    logical = [3, 4, 6, 7, 2, 0, 1, 5]
    mapped = [(npu, 0, logical[npu], npu) for npu in range(8)]
    assert numbers([(npu, 0, None, None) for npu in range(8)], mapped) == {(npu, 0): npu for npu in range(8)}
    assert numbers([(0, 0, None, None)], [(0, 0, 0, 7)]) == {(0, 0): 7}
    assert numbers([(2, 0, 4, None), (2, 1, 5, None)], [(2, 0, 0, 4), (2, 1, 1, 5)]) == {(2, 0): 4, (2, 1): 5}
    assert numbers([(2, 0, 4, None), (2, 1, 5, None)], [(2, 0, 0, None), (2, 1, 1, None)]) == {(2, 0): 4, (2, 1): 5}
    assert numbers([(2, 0, 4, None)], []) == {(2, 0): 4}
    assert numbers([(32768, 0, None, 2)], [(32768, 0, 2, None)]) == {(32768, 0): 2}
    assert numbers([(0, 0, None, None), (5, 0, None, None)], [(0, 0, 0, None), (5, 0, 5, None)]) == {(0, 0): 0, (5, 0): 5}


@pytest.mark.parametrize(
    ("chips", "mapped", "words"),
    [
        # The table and -m contradict each other.
        ([(2, 0, 4, None)], [(2, 0, 0, 5)], "NPU 2, chip 0: .* the table says Phy-ID 4, Device None; -m says Phy-ID 5, logical id 0"),
        # Device and logical id differ: which of the two names the node?
        ([(6, 0, None, 3)], [(6, 0, 0, None)], "NPU 6, chip 0: .* Device 3; -m says Phy-ID None, logical id 0"),
        ([(6, 0, None, 3)], [], "NPU 6, chip 0: .* Device 3; -m says nothing of it"),
        # Logical ids that a missing card moved, on cards without any other number.
        ([(0, 0, None, None), (2, 0, None, None)], [(0, 0, 0, None), (2, 0, 1, None)], "NPU 0, chip 0: .* logical id 0"),
        ([(0, 0, None, None)], [], "-m says nothing of it"),
        ([(0, 0, None, None)], [(0, 0, None, None)], "logical id None"),
        # Two chips of one NPU can not both be its number.
        ([(0, 0, None, None), (0, 1, None, None)], [(0, 0, 0, None), (0, 1, 1, None)], "NPU 0, chip 0: "),
        # A container with one die of an A3 shows it twice.
        (
            [(0, 0, 0, None), (0, 1, 0, None)],
            [(0, 0, 0, 0), (0, 1, 0, 0)],
            "chip 1 has the physical id 0 of NPU 0, chip 0, as in a container",
        ),
    ],
)
def test_physical_ids_are_never_guessed(chips, mapped, words):
    with pytest.raises(LLMError, match=words):
        numbers(chips, mapped)


def test_old_310_whose_device_is_not_its_logical_id():
    host = ascend.host(OLD_310)
    host.smi["info -m"] = Answer(ascend.capture("npu-smi-info-m__21.0.4__310-4chips-npu-6.txt"))
    with pytest.raises(LLMError, match=r"NPU 6, chip 0: its physical id.*Device 3; -m says Phy-ID None, logical id 0.*the PCI bus has 4 "):
        read(host)


# ---- cards that are missing somewhere


def without(text, first, last):
    """A text without some of its lines."""
    lines = text.splitlines(True)
    return "".join(lines[: first - 1] + lines[last:])


def test_tool_that_drops_a_card_from_its_table():
    host = ascend.host(A3)
    # NPU 3 whole, with the line that says nobody holds it: the text is a good table by itself.
    table = without(without(host.smi["info"].out, 69, 70), 25, 30)
    host.smi["info"].out = table
    assert len(_npu_smi.parse_table(table).chips) == 14
    found = read(host)
    assert bad(found) == {"tool_listings": "fail", "cards_on_bus": "fail", "nodes_without_card": "warn", "link_addresses": "warn"}
    assert checks(found)["tool_listings"].detail == (
        "npu-smi contradicts itself: NPU 3, chip 0 is in -m and not in the table; NPU 3, chip 1 is in -m and not in the table; "
        "NPU 3 is in -l and not in the table"
    )
    detail = checks(found)["cards_on_bus"].detail
    assert "only on the bus: 0000:91:00.0 (devdrv_device_driver), 0000:93:00.0 (devdrv_device_driver); only in npu-smi: none" in detail
    assert checks(found)["nodes_without_card"].detail == "no card is listed for /dev/davinci6, /dev/davinci7"


def test_tool_that_drops_a_card_everywhere():
    host = ascend.host(A3)
    chips = [one for one in ascend.chips_of(A3) if one.npu != 3]
    host.smi["info"].out = without(without(host.smi["info"].out, 69, 70), 25, 30)
    host.smi["info -m"] = Answer(ascend.mapping(chips, True))
    host.smi["info -l"] = Answer(ascend.listing(chips))
    found = read(host)
    assert bad(found) == {"cards_on_bus": "fail", "nodes_without_card": "warn", "link_addresses": "warn"}
    assert "npu-smi lists 0000:81:00.0" in checks(found)["cards_on_bus"].detail
    assert "the PCI bus has 0000:81:00.0" in checks(found)["cards_on_bus"].detail


def test_card_that_fell_off_the_bus():
    host = ascend.host(A910)
    seen = re.findall(r"^(\S+) Processing", ascend.capture("lspci__910a__7-of-8-cards-visible.txt"), re.MULTILINE)
    for address in [one for one, function in host.bus.items() if function.device == "0xd801" and one[5:] not in seen]:
        del host.bus[address]
    host.smi["info -t board -i 0"] = Answer(ascend.capture("npu-smi-info-t-board__card-missing__error.txt"))
    found = read(host)
    assert len(seen) == 7
    assert len(found.cards) == 8
    assert bad(found) == {"driver_live": "fail", "card_boards": "unknown", "cards_on_bus": "fail"}
    assert (found.cards[0].id, found.cards[0].health) == ("0000:61:00.0", "fault")
    assert found.cards[0].health_detail == "gone from the PCI bus; npu-smi says nothing of its board"
    assert {one.health for one in found.cards[1:]} == {"ok"}
    assert "only on the bus: none; only in npu-smi: 0000:61:00.0" in checks(found)["cards_on_bus"].detail
    assert "no card has this id: it fell off the bus" in checks(found)["card_boards"].detail


def test_bus_without_any_card():
    host = ascend.a2()
    host.bus = {"0000:75:00.0": Function("0xa250", "0x120000", "hisi_zip")}
    found = read(host)
    assert found.driver_live is False
    assert {"driver_live": "fail", "cards_on_bus": "fail"}.items() <= bad(found).items()
    assert "the PCI bus has none" in checks(found)["cards_on_bus"].detail
    assert {one.health for one in found.cards} == {"fault"}


def test_card_of_a_virtual_machine():
    host = ascend.a2()
    host.bus["0000:c5:00.0"] = Function(driver="vfio-pci")
    found = read(host)
    assert bad(found) == {"cards_of_virtual_machines": "warn"}
    assert checks(found)["cards_of_virtual_machines"].detail == "owned by a virtual machine (vfio-pci): 0000:c5:00.0"
    host.bus["0000:c5:00.0"].driver = ""
    found = read(host)
    assert bad(found) == {"cards_on_bus": "fail"}
    assert "only on the bus: 0000:c5:00.0 (no driver)" in checks(found)["cards_on_bus"].detail


def test_card_that_the_tool_lists_though_a_virtual_machine_has_it():
    host = ascend.a2()
    host.bus["0000:c1:00.0"].driver = "vfio-pci"
    found = read(host)
    assert bad(found) == {"driver_live": "fail"}
    assert checks(found)["driver_live"].detail == "0000:c1:00.0: bound to vfio-pci, for a virtual machine"


def test_virtual_functions_are_no_cards():
    host = ascend.a2()
    host.bus["0000:c1:00.1"] = Function(driver="vfio-pci", physfn="0000:c1:00.0")
    found = read(host)
    assert bad(found) == {"virtual_functions": "warn"}
    host.bus["0000:c1:00.1"].physfn = ""
    assert bad(read(host)) == {"cards_of_virtual_machines": "warn"}


def test_device_id_of_a_listed_card_makes_a_card():
    host = ascend.a2()
    for address in ("0000:c1:00.0", "0000:c9:00.0"):
        host.bus[address] = Function("0x1234", "0x020000")
    assert bad(read(host)) == {"cards_on_bus": "fail"}
    del host.bus["0000:c1:00.0"]
    assert "only on the bus: none; only in npu-smi: 0000:c1:00.0" in checks(read(host))["cards_on_bus"].detail


def test_addresses_that_do_not_fit():
    host = ascend.a2()
    host.smi["info"].out = host.smi["info"].out.replace("0000:01:00.0", "NA          ")
    host.smi["info -t board -i 4"].out = host.smi["info -t board -i 4"].out.replace("0000:81:00.0", "0000:82:00.0")
    found = read(host)
    assert bad(found) == {"card_addresses": "fail", "cards_on_bus": "fail"}
    assert checks(found)["card_addresses"].detail == (
        "NPU 1 is 0000:01:00.0 in -t board and none in the table; NPU 4 is 0000:82:00.0 in -t board and 0000:81:00.0 in the table"
    )
    assert checks(found)["cards_on_bus"].detail.endswith("listed without an address: NPU 1, chip 0")
    assert found.cards[1].id == "npu:1"


def test_two_npus_with_one_address():
    host = ascend.a2()
    host.smi["info"].out = host.smi["info"].out.replace("0000:01:00.0", "0000:C1:00.0")
    found = read(host)
    assert {"cards_on_bus": "fail", "card_addresses": "fail"}.items() <= bad(found).items()
    assert checks(found)["cards_on_bus"].detail.endswith("listed for several NPUs: 0000:c1:00.0")
    assert "card_identity" in [check.name for check in preflight(found, 8, 1, {}) if not check.good]


@pytest.mark.parametrize(
    ("other", "words"), [(None, "; listed without an address: NPU 1, chip 0"), ("0000:c1:00.0", "; listed for several NPUs: 0000:c1:00.0")]
)
def test_card_without_an_address_of_its_own_that_the_bus_has_not_either(other, words):
    function = {"device": "0xd802", "driver": ascend.DRIVER}
    found = _probe_ascend.bus_checks({(0, 0): "0000:c1:00.0", (1, 0): other}, {"0000:c1:00.0": function}, {})
    assert [(check.name, check.status) for check in found] == [("cards_on_bus", "fail")]
    assert found[0].detail.endswith("only on the bus: none; only in npu-smi: none" + words)


def test_listings_that_contradict_each_other():
    table, mapped = (
        [(0, 0), (0, 1), (1, 0)],
        [_npu_smi.Mapped(0, 0, 0, None), _npu_smi.Mapped(0, 1, 1, None), _npu_smi.Mapped(2, 0, 1, None)],
    )
    detail = _probe_ascend.listing_check(table, mapped, {0: 1, 1: None, 2: 1}).detail
    assert detail == (
        "npu-smi contradicts itself: NPU 2, chip 0 is in -m and not in the table; NPU 1, chip 0 is in the table and not in -m; "
        "several chips have the logical id 1 in -m; "
        "NPU 0 has 1 chips in -l and 2 in the table; NPU 2 is in -l and not in the table"
    )
    assert _probe_ascend.listing_check(table[:2], mapped[:2], {1: 1}).status == "fail"
    assert _probe_ascend.listing_check(table[:2], mapped[:2], {0: 2}).status == "pass"
    assert _probe_ascend.listing_check(table[:2], mapped[:2], {0: None}).status == "pass"


# ---- health


def test_health_that_is_not_ok_is_asked_for(tmp_path):
    host = ascend.host(ALARM)
    host.smi["info -t health -i 0 -c 0"] = Answer(ascend.capture("npu-smi-info-t-health__alarm__multi-line.txt"))
    card = _probe_ascend.probe(ascend.vendor(ascend.play(tmp_path, host))).cards[0]
    assert (card.id, card.health, card.power_w) == ("npu:0", "fault", None)
    assert card.health_detail == (
        "Alarm; error codes A4025021 8C03A000 8C084E00; ascend_monitor adda heart beat lost error; node type=process-manager, "
        "sensor type=General Software, event state=The process start failed or exit abnormally; node type=adda, "
        "sensor type=Heartbeat Sensor, event state=Heartbeat Lost"
    )


@pytest.mark.parametrize(
    ("word", "said", "state", "detail"),
    [
        ("Warning", "Health Status : Warning\nError Code : 80CD8008\n", "warning", "Warning; error codes 80CD8008"),
        ("Warning", "Health Status : Critical\n", "fault", "Warning; -t health says Critical"),
        ("Critical", "Health Status : OK\n", "fault", "Critical; -t health says OK"),
        ("UNKNOWN", "Health Status : UNKNOWN\n", "unknown", "UNKNOWN"),
        ("Strange", "Health Status : Warning\n", "unknown", "Strange; -t health says Warning"),
        ("Alarm", "what\n", "fault", "Alarm; /usr/local/sbin/npu-smi info -t health -i 2 -c 0 ended with status 0 and is not understood: "),
    ],
)
def test_words_of_health(word, said, state, detail):
    host = ascend.a2()
    rows = host.smi["info"].out.splitlines(True)
    place = [number for number, row in enumerate(rows) if row.startswith("| 2     910B2")][0]
    rows[place] = rows[place].replace("OK" + " " * (len(word) - 2), word, 1)
    host.smi["info"].out = "".join(rows)
    host.smi["info -t health -i 2 -c 0"] = Answer(said)
    found = read(host)
    assert found.cards[2].health == state
    assert found.cards[2].health_detail.startswith(detail)
    assert {one.health for one in found.cards if one.index != 2} == {"ok"}
    assert "card_health" in [check.name for check in preflight(found, 8, 1, {}) if check.status != "pass"]


def test_card_without_a_figure_for_its_memory_stays_and_is_not_ok():
    host = ascend.a2()
    host.smi["info"].out = host.smi["info"].out.replace("3420 / 65536", "0    / 0    ")
    found = read(host)
    assert [(one.health, one.memory_total_mib, one.memory_used_mib) for one in found.cards if one.health != "ok"] == 2 * [
        ("unknown", 0, None)
    ]
    assert found.cards[2].health_detail == "npu-smi gives no memory"


def test_use_that_the_table_hides_is_asked_for():
    host = ascend.a2()
    row = "| 0                         | 0000:81:00.0  | {:<11}"
    host.smi["info"].out = host.smi["info"].out.replace(row.format(0), row.format("NA"))
    assert read(host).cards[4].utilisation_pct is None
    host.smi["info -t usages -i 4"] = Answer(ascend.per_chip("usages", ascend.chips_of(BUSY)[4:5], "Aicore Usage Rate(%)", "37"))
    assert [one.utilisation_pct for one in read(host).cards] == [0, 0, 0, 0, 37, 0, 0, 0]


# ---- processes


def test_processes_of_table_and_query_are_put_together():
    host = ascend.host(BUSY)
    chips = ascend.chips_of(BUSY)
    chips[3].processes = [(683935, "python", 55754), (4711, "late", 12)]
    host.smi["info -t proc-mem -i 3"] = Answer(ascend.proc_mem(chips[3:4]))
    found = read(host)
    assert found.cards[3].holders == [Holder(683935, "", "python", 55754), Holder(4711, "", "late", 12)]
    assert bad(found) == {"card_processes": "warn"}
    assert checks(found)["card_processes"].detail.endswith("both are kept: 0000:82:00.0: 683935 and 4711 683935")


def test_names_that_differ_and_names_that_are_cut_off():
    host = ascend.host(BUSY)
    name = "Process name:python  "
    host.smi["info -t proc-mem -i 3"].out = host.smi["info -t proc-mem -i 3"].out.replace(name, name.replace("python", "pyth  "))
    assert bad(read(host)) == {}
    host.smi["info -t proc-mem -i 4"].out = host.smi["info -t proc-mem -i 4"].out.replace(name, name.replace("python", "ruby  "))
    found = read(host)
    assert bad(found) == {"card_processes": "warn"}
    assert checks(found)["card_processes"].detail.endswith("both are kept: 0000:01:00.0: 683936 is 'python' and 'ruby'")
    assert found.cards[4].holders == [Holder(683936, "", "python", 55755)]


def test_name_that_only_one_of_them_has():
    host = ascend.host(BUSY)
    host.smi["info"].out = host.smi["info"].out.replace("python  ", "        ")
    assert {holder.name for one in read(host).cards for holder in one.holders} == {"python"}


def test_card_of_which_nobody_says_who_holds_it():
    host = ascend.host(DUO)
    del host.smi["info -t proc-mem -i 2"]
    found = read(host)
    assert bad(found) == {"card_processes": "unknown"}
    assert checks(found)["card_processes"].detail == "npu-smi does not say who holds 0000:02:00.0/0, 0000:02:00.0/1"
    host = ascend.host(BUSY)
    for npu in range(8):
        del host.smi[f"info -t proc-mem -i {npu}"]
    found = read(host)
    assert bad(found) == {}
    assert checks(found)["queries_absent"].detail.startswith("8 of them, such as /usr/local/sbin/npu-smi info -t proc-mem -i 0 ended with")
    assert len(found.cards[0].holders) == 1


def test_answers_that_are_not_understood_are_told():
    host = ascend.a2()
    host.smi["info -t ecc -i 1"].out = "new words\n"
    host.smi["info -t device-share -i 2"].out = ascend.per_chip("device-share", ascend.chips_of(BUSY)[3:4], "Device-share Status", "False")
    host.smi["info -t board -i 3"].out = ascend.board(ascend.chips_of(BUSY)[4:5])
    found = read(host)
    assert bad(found) == {"queries_unanswered": "warn", "card_boards": "unknown"}
    detail = checks(found)["queries_unanswered"].detail
    assert (
        "info -t ecc -i 1 ended with status 0 and is not understood: npu-smi info -t ecc, line 1 is no 'key : value': 'new words'" in detail
    )
    assert "info -t device-share -i 2 ended with status 0 and is not understood: it speaks of NPU 3 when asked for 2" in detail
    assert found.cards[3].health == "unknown"


def test_driver_without_the_newer_queries():
    host = ascend.a2()
    for npu in range(8):
        del host.smi[f"info -t device-share -i {npu}"], host.smi[f"info -t board -i {npu}"]
    found = read(host)
    assert bad(found) == {"firmware_version": "warn"}
    assert found.firmware_version == "7.8.0.6.201"
    assert checks(found)["queries_absent"].detail.startswith("16 of them")
    assert {one.health for one in found.cards} == {"ok"}


def test_memory_in_use_by_nobody():
    host = ascend.host(BUSY)
    for npu in range(8):
        host.smi["info"].out = re.sub(rf"\| {npu}       0                 \| 68.*\n", "", host.smi["info"].out)
        host.smi[f"info -t proc-mem -i {npu}"].out = host.smi["info -t proc-mem -i 0"].out.replace(
            "NPU ID                         : 0", f"NPU ID : {npu}"
        )
    found = read(host)
    assert len(found.cards[1].holders) == 1
    for npu in range(8):
        chip = dataclasses.replace(ascend.chips_of(BUSY)[npu], processes=[])
        host.smi[f"info -t proc-mem -i {npu}"] = Answer(ascend.proc_mem([chip]))
    found = read(host)
    assert bad(found) == {"card_memory_holders": "warn"}
    assert "0000:82:00.0 has 60058 of 65536 MiB in use" in checks(found)["card_memory_holders"].detail


def test_memory_errors_and_sharing():
    host = ascend.a2()
    counter = "HBM Double Bit Isolated Pages Count      : "
    host.smi["info -t ecc -i 5"].out = host.smi["info -t ecc -i 5"].out.replace(counter + "0", counter + "3")
    host.smi["info -t device-share -i 4"].out = host.smi["info -t device-share -i 4"].out.replace("False", "True")
    found = read(host)
    assert bad(found) == {"memory_errors": "warn", "card_sharing": "warn"}
    assert checks(found)["memory_errors"].detail.endswith("0000:41:00.0: HBM Double Bit Isolated Pages Count 3")
    assert checks(found)["card_sharing"].detail.endswith("0000:81:00.0")


# ---- driver, firmware, files


@pytest.mark.parametrize(
    ("modules", "driver", "live", "detail"),
    [
        ({ascend.MODULE: "coming"}, ascend.DRIVER, False, "0000:01:00.0: driver devdrv_device_driver, module drv_pcie_host is coming"),
        ({}, ascend.DRIVER, True, "driver devdrv_device_driver is part of the kernel"),
        ({ascend.MODULE: "live"}, "", False, "0000:01:00.0: driver none, module none is not loaded"),
    ],
)
def test_driver_that_is_or_is_not_live(modules, driver, live, detail):
    host = ascend.a2()
    host.modules = modules
    host.bus["0000:01:00.0"].driver = driver
    found = read(host)
    assert found.driver_live is live
    assert checks(found)["driver_live"].detail.startswith(detail)
    assert checks(found)["driver_live"].status == ("pass" if live else "fail")


def test_board_without_pci_needs_the_drivers_device():
    host = ascend.host("npu-smi-info__23.0.rc3__310b4__another-table-width.txt")
    found = read(host)
    assert (found.driver_live, checks(found)["cards_on_bus"].status) == (True, "not_applicable")
    assert (found.cards[0].id, found.cards[0].numa_node) == ("npu:0", None)
    del host.files["/dev/davinci_manager"]
    found = read(host)
    assert (found.driver_live, bad(found)) == (None, {"driver_live": "unknown"})
    host.bus["0000:01:00.0"] = Function("0xd500")
    assert bad(read(host))["cards_on_bus"] == "fail"


@pytest.mark.parametrize(
    ("installed", "status", "detail"),
    [
        ("25.5.2", "fail", "25.5.1 runs and 25.5.2 is installed"),
        ("25.5.1.B030", "pass", "25.5.1"),
        ("25.5", "fail", "25.5.1 runs and 25.5 is installed"),
        ("", "warn", "25.5.1 runs; nothing to compare with: /usr/local/Ascend/driver/version.info has '' for a version"),
        (None, "warn", "25.5.1 runs; nothing to compare with: /usr/local/Ascend/driver/version.info is not there"),
    ],
)
def test_driver_that_runs_and_driver_that_is_installed(installed, status, detail):
    host = ascend.a2()
    path = "/usr/local/Ascend/driver/version.info"
    host.files[path] = host.files[path].replace("Version=25.5.1", f"Version={installed}", 1)
    if installed is None:
        del host.files[path]
    check = checks(read(host))["driver_version"]
    assert (check.status, check.detail) == (status, detail)


def test_versions_of_a_build_that_differ():
    assert _probe_ascend.version_check("21.0.4.B030", "21.0.4", "").status == "pass"
    assert _probe_ascend.version_check("21.0.4.B030", "21.0.4.b030", "").status == "pass"
    assert _probe_ascend.version_check("21.0.4.B030", "21.0.4.B020", "").status == "fail"
    assert _probe_ascend.version_check("24.1.RC2", "24.1.rc2", "").status == "pass"


def test_firmware():
    host = ascend.a2()
    path = "/usr/local/Ascend/firmware/version.info"
    host.files[path] = host.files[path].replace("7.8.0.6.201", "7.8.0.7.220")
    assert checks(read(host))["firmware_version"].detail == "7.8.0.6.201 runs and 7.8.0.7.220 is installed; restart the host"
    host.smi["info -t board -i 7"].out = host.smi["info -t board -i 7"].out.replace("7.8.0.6.201", "7.8.0.7.220")
    host.smi["info -t board -i 6"].out = host.smi["info -t board -i 6"].out.replace(": OK", ": Not OK")
    found = read(host)
    assert found.firmware_version == "7.8.0.6.201, 7.8.0.7.220"
    assert bad(found) == {"firmware_version": "warn", "firmware_compatibility": "fail"}
    assert checks(found)["firmware_version"].detail.endswith("7.8.0.6.201 on NPU 0, 1, 2, 3, 4, 5, 6; 7.8.0.7.220 on NPU 7")
    assert checks(found)["firmware_compatibility"].detail == "driver and firmware do not fit: NPU 6: Not OK"


@pytest.mark.parametrize(("name", "values"), list(EXPECTED["info"].items()))
def test_info_files(name, values):
    version, key, value = values
    found = _probe_ascend.parse_info(name, ascend.capture(name))
    assert (found.get("version"), found[key]) == (version, value)


@pytest.mark.parametrize("text", ["version 8\n", "Version=1\nversion=2\n", "ver sion=1\n", "=1\n"])
def test_info_files_that_are_not_understood(text):
    with pytest.raises(UnknownOutput, match=r"^/x, line \d is no 'key=value' or sets a key again"):
        _probe_ascend.parse_info("/x", text)


def cann(host, name, path):
    host.files[ascend.ROOT + path] = ascend.capture(name)


@pytest.mark.parametrize(
    ("name", "path", "version"),
    [
        ("ascend_toolkit_install.info__8.2.RC1.txt", "/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info", "8.2.RC1"),
        ("ascend_toolkit_install.info__7.0.T10.txt", "/ascend-toolkit/latest/x86_64-linux/ascend_toolkit_install.info", "7.0.T10"),
        ("ascend_toolkit_install.info__8.5.0__new-cann-path.txt", "/cann-8.5.0/aarch64-linux/ascend_toolkit_install.info", "8.5.0"),
        ("ascend_toolkit_install.info__8.5.0__new-cann-path.txt", "/cann/share/info/runtime/version.info", "8.5.0"),
        ("ascend_nnae_install.info__8.0.RC3.txt", "/nnae/latest/ascend_nnae_install.info", "8.0.RC3"),
    ],
)
def test_cann_on_the_host(name, path, version):
    host = ascend.a2()
    cann(host, name, path)
    found = read(host)
    assert (found.runtime_version, bad(found)) == (version, {})
    assert checks(found)["runtime_version"].detail == f"CANN {version} ({ascend.ROOT}{path})"


def test_several_cann_and_one_that_is_not_understood():
    host = ascend.a2()
    cann(host, "ascend_toolkit_install.info__8.2.RC1.txt", "/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info")
    cann(host, "ascend_toolkit_install.info__8.5.0__new-cann-path.txt", "/cann-8.5.0/aarch64-linux/ascend_toolkit_install.info")
    found = read(host)
    assert (found.runtime_version, bad(found)) == ("8.5.0", {"runtime_version": "warn"})
    host.files[ascend.ROOT + "/cann-10.0.0/share/info/runtime/version.info"] = "Version=10.0.0\n"
    assert read(host).runtime_version == "10.0.0"
    host.files = {path: text for path, text in host.files.items() if "toolkit" not in path and "10.0.0" not in path}
    host.files[ascend.ROOT + "/cann/share/info/runtime/version.info"] = "new\n"
    found = read(host)
    assert (found.runtime_version, bad(found)) == (None, {"runtime_version": "warn"})


def test_driver_in_another_place():
    host = ascend.a2()
    for path in [one for one in host.files if one.startswith("/usr/local/Ascend/")]:
        host.files["/opt/ascend" + path[len("/usr/local/Ascend") :]] = host.files.pop(path)
    assert checks(read(host))["driver_version"].status == "warn"
    host.files["/etc/ascend_install.info"] = host.files["/etc/ascend_install.info"].replace("/usr/local/Ascend", "/opt/ascend")
    assert bad(read(host)) == {}


WARNING = ascend.capture("npu-smi__driver-package-incomplete__warning-line.txt")


@pytest.mark.parametrize(
    ("info", "warning", "status", "words"),
    [
        ("Driver_Install_Status=complete\n", WARNING, "warn", "npu-smi says '[WARNING]The driver package may not be"),
        ("Driver_Install_Status=complete\n", "", "pass", "completely installed"),
        ("UserName=HwHiAiUser\n", "", "warn", "/etc/ascend_install.info has no Driver_Install_Status"),
        (None, WARNING, "warn", "/etc/ascend_install.info is not there; npu-smi says"),
        ("what\n", "", "warn", "/etc/ascend_install.info, line 1 is no 'key=value'"),
        ("Driver_Install_Status=incomplete\n", WARNING, "fail", "/etc/ascend_install.info says Driver_Install_Status=incomplete"),
    ],
)
def test_installation_that_was_not_finished(info, warning, status, words):
    host = ascend.a2()
    host.smi["info"].out += warning
    host.files["/etc/ascend_install.info"] = info
    if info is None:
        del host.files["/etc/ascend_install.info"]
    check = checks(read(host))["driver_package"]
    assert check.status == status
    assert words in check.detail
    assert status == "pass" or "install the driver package again, with --full" in check.detail + check.fix


def test_remarks_beside_good_answers_are_told():
    host = ascend.a2()
    host.smi["info"].out = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n" + host.smi["info"].out
    host.smi["info -l"].err = "something new\n"
    remarks = [check.detail for check in read(host).checks if check.name == "tool_remark"]
    assert len(remarks) == 2
    assert "the driver's log level cannot be read" in remarks[0]
    assert remarks[1] == "'something new'"


# ---- links


def test_link_that_is_down():
    host = ascend.a2()
    host.hccn["-i 3 -link -g"].out = ascend.capture("hccn_tool-link__down.txt")
    host.hccn["-i 3 -net_health -g"].out = ascend.capture("hccn_tool-net_health__init.txt")
    found = read(host)
    assert (found.cards[3].link, found.cards[2].link) == ("down", "up")
    cause = "optical module not present, last change down Tue Aug  1 14:44:40 2022"
    assert found.cards[3].link_detail.startswith(cause + "; address 192.168.40.11/")
    assert bad(found) == {"links": "warn", "link_health": "warn"}
    assert checks(found)["links"].detail == f"not up: 0000:02:00.0 is down ({cause})"
    assert checks(found)["link_health"].detail == "not Success: 0000:02:00.0: Init"
    found = read(host, links_needed=True)
    assert bad(found) == {"links": "fail", "link_health": "fail"}
    assert checks(found)["links"].fix == "see to cable, switch and the card's port"


def test_ports_where_nothing_is_set():
    host = ascend.a2()
    unset = ascend.capture("hccn_tool-ip__not-configured__error.txt")
    for number in range(8):
        host.hccn[f"-i {number} -ip -g"] = Answer(unset, rc=13)
        host.hccn[f"-i {number} -gateway -g"] = Answer("", unset.replace("ipconf", "gateway").replace("no ip", "no gateway"), rc=12)
        host.hccn[f"-i {number} -netdetect -g"].out = "netdetect addr: 0.0.0.0\n"
    found = read(host)
    assert found.cards[0].link_detail == "address not set; gateway not set; netdetect not set; net health Success; TLS off"
    assert bad(found) == {"link_addresses": "warn"}
    assert "device 0: not set, in the file 192.168.10.11/255.255.255.0; device 1: " in checks(found)["link_addresses"].detail
    del host.files["/etc/hccn.conf"]
    assert bad(read(host)) == {}


def test_addresses_and_the_file():
    host = ascend.a2()
    host.files["/etc/hccn.conf"] += "address_8=10.0.0.1\n"
    assert checks(read(host))["link_addresses"].detail == "/etc/hccn.conf differs: device 8: no such card, in the file 10.0.0.1"
    host.files["/etc/hccn.conf"] = "what\n"
    assert "line 1 does not fit" in checks(read(host))["link_addresses"].detail
    del host.files["/etc/hccn.conf"]
    assert checks(read(host, links_needed=True))["link_addresses"].status == "fail"


def test_tls_that_is_not_alike_and_answers_that_are_none():
    host = ascend.a2()
    host.hccn["-i 1 -tls -g"].out = host.hccn["-i 1 -tls -g"].out.replace("switch[0]", "switch[1]")
    found = read(host)
    assert bad(found) == {"link_tls": "warn"}
    assert "; on on 0000:01:00.0" in checks(found)["link_tls"].detail
    # The tool is known to answer nothing with status 0.
    for option in ("-link", "-ip", "-gateway", "-netdetect", "-net_health", "-tls"):
        host.hccn[f"-i 2 {option} -g"].out = ""
    found = read(host)
    assert found.cards[2].link == "unknown"
    assert bad(found) == dict.fromkeys(("links", "link_health", "link_tls", "link_addresses"), "warn")
    assert "hccn_tool -link said nothing" in checks(found)["links"].detail


def test_host_without_hccn_tool():
    host = ascend.a2()
    host.tools.remove("hccn_tool")
    found = read(host)
    assert {one.link for one in found.cards} == {None}
    assert (bad(found), checks(found)["links"].status) == ({}, "not_applicable")
    assert checks(found)["links"].detail == "hccn_tool is not there; a replica on one card needs no link"
    assert bad(read(host, links_needed=True)) == {"links": "fail"}


# ---- tools that fail


@pytest.mark.parametrize(("name", "complaint"), list(EXPECTED["complaints"].items()))
def test_tool_that_complains(name, complaint, tmp_path):
    status, stream, words = complaint
    host = ascend.a2()
    text = ascend.capture(name)
    host.smi["info"] = Answer(text, "", status) if stream == "stdout" else Answer("", text, status)
    with pytest.raises(LLMError) as error:
        _probe_ascend.probe(ascend.vendor(ascend.play(tmp_path, host)))
    message = str(error.value)
    assert (
        f"/usr/local/sbin/npu-smi info ended with status {status} " in message
        or f"{ascend.NPU_SMI} info ended with status {status} " in message
    )
    assert words in message
    assert text.splitlines()[0][:60] in message
    assert "the PCI bus has 8 Ascend functions: 0000:01:00.0 (devdrv_device_driver), " in message


def test_shell_without_the_library_path(tmp_path):
    vendor = ascend.vendor(ascend.play(tmp_path, ascend.a2()))
    vendor.environment = {}
    with pytest.raises(LLMError, match="ended with status 127 and said .*libdrvdsmi_host.so.*LD_LIBRARY_PATH of the platform's 'tool_env"):
        _probe_ascend.probe(vendor)


def test_tool_that_is_missing():
    host = ascend.a2()
    host.tools.remove("npu-smi")
    with pytest.raises(LLMError, match="^npu-smi: not found.*; the PCI bus has 8 Ascend functions"):
        read(host)


def test_tool_that_really_hangs(tmp_path):
    host = ascend.a2()
    host.smi["info"].hang = True
    with pytest.raises(LLMError, match="npu-smi info: no end after 1 s; it hangs; the PCI bus has 8 "):
        _probe_ascend.probe(ascend.vendor(ascend.play(tmp_path, host), timeout_s=1))


@pytest.mark.parametrize(
    ("tool", "question"), [("npu-smi", "info -t board -i 7"), ("npu-smi", "info -t ecc -i 0"), ("hccn_tool", "-i 0 -link -g")]
)
def test_tool_that_hangs_over_a_later_question(tool, question):
    host = ascend.a2()
    host.answers[tool][question].hang = True
    with pytest.raises(LLMError, match="it hangs"):
        read(host)


@pytest.mark.parametrize("question", ["info", "info -m", "info -l"])
@pytest.mark.parametrize(
    "answer", [Answer("what is this\n"), Answer("what is this\n", rc=1), Answer(""), Answer("", "what is this\n", 139)]
)
def test_listing_that_is_none(question, answer):
    host = ascend.a2()
    host.smi[question] = answer
    with pytest.raises(LLMError) as error:
        read(host)
    assert f"npu-smi {question} ended with status {answer.rc} and " in str(error.value)
    assert ("'what is this'" in str(error.value)) == bool(answer.out + answer.err)


# ---- the module


def test_module_with_the_platforms_own_tools(run_module, tmp_path, shipped):
    platform = shipped["platforms"]["ascend_910b"]
    root = ascend.play(tmp_path, ascend.a2())
    arguments = {
        "probe": platform["probe"],
        "tools": platform["tools"],
        "tool_environment": platform["tool_environment"],
        "device_nodes": platform["container"]["devices_shared"],
        "expected_cards": 8,
        "minimum_memory_mib": platform["card"]["memory_mib"],
        "root": str(root),
    }
    result = run_module(accelerator_info, arguments)
    assert result["ok"] is True
    assert [card["id"] for card in result["cards"]][:2] == ["0000:c1:00.0", "0000:01:00.0"]
    assert len(result["device_nodes"]) == 3 + 8
    (root / "dev/davinci5").unlink()
    result = run_module(accelerator_info, arguments)
    assert result["ok"] is False
    assert any("/dev/davinci5: No such file or directory" in line for line in result["lines"])
