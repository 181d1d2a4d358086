# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every capture of Hygon's tools says exactly what it says; what is not understood is an error that shows the line."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from unit.plugins.played import hygon

from ansible_collections.ironserve.llm.plugins.module_utils import _hy_smi
from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

EXPECTED = yaml.safe_load(hygon.capture("expected.yml"))


def each(kind):
    return list(EXPECTED[kind].items())


def test_every_capture_has_its_expected_values_and_its_origin():
    files = {path.name for path in hygon.FIXTURES.iterdir()} - {"INDEX.md", "expected.yml"}
    told = [name for kind in EXPECTED.values() for name in kind]
    assert sorted(told) == sorted(files)
    index = hygon.capture("INDEX.md")
    assert [name for name in files if f"| `{name}` |" not in index] == []
    assert len(files) == 38


@pytest.mark.parametrize(("name", "rows"), each("tables"))
def test_table(name, rows):
    table = _hy_smi.parse_table(hygon.capture(name))
    assert {index: list(dataclasses.astuple(row)) for index, row in table.rows.items()} == rows
    assert table.notes == []


@pytest.mark.parametrize(("name", "cards"), each("lines"))
def test_lines(name, cards):
    assert _hy_smi.parse_lines(hygon.capture(name)) == _hy_smi.Listing(cards, [])


@pytest.mark.parametrize(("name", "cards"), each("json"))
def test_json(name, cards):
    assert _hy_smi.parse_json(hygon.capture(name)) == _hy_smi.Listing(cards, [])


@pytest.mark.parametrize(("name", "processes"), each("processes"))
def test_processes(name, processes):
    assert [list(dataclasses.astuple(one)) for one in _hy_smi.parse_processes(hygon.capture(name))] == processes


@pytest.mark.parametrize(("name", "version"), each("driver_versions"))
def test_driver_version(name, version):
    assert _hy_smi.parse_driver_version(hygon.capture(name)) == version


@pytest.mark.parametrize(("name", "cards"), each("health"))
def test_health(name, cards):
    assert _hy_smi.parse_health(hygon.capture(name)) == {index: tuple(pair) for index, pair in cards.items()}


@pytest.mark.parametrize(("name", "agents"), each("agents"))
def test_rocminfo(name, agents):
    assert [list(dataclasses.astuple(one)) for one in _hy_smi.parse_rocminfo(hygon.capture(name))] == agents


@pytest.mark.parametrize(("name", "names"), each("cdi_names"))
def test_cdi_names(name, names):
    assert _hy_smi.parse_cdi_names(hygon.capture(name)) == names


@pytest.mark.parametrize(("name", "cards"), each("tracked"))
def test_tracker(name, cards):
    assert {index: list(dataclasses.astuple(one)) for index, one in _hy_smi.parse_tracker(hygon.capture(name)).items()} == cards


@pytest.mark.parametrize(("name", "remedy"), each("tool_errors"))
def test_error_of_the_tool_is_no_answer_and_has_a_meaning(name, remedy):
    text = hygon.capture(name)
    assert remedy in _hy_smi.explain(text)
    for parse in (_hy_smi.parse_table, _hy_smi.parse_lines, _hy_smi.parse_json, _hy_smi.parse_processes, _hy_smi.parse_driver_version):
        with pytest.raises(UnknownOutput):
            parse(text)


@pytest.mark.parametrize(("name", "expected"), each("container_errors"))
def test_error_of_a_container_names_its_cause(name, expected):
    cause, remedy = _hy_smi.container_fault("Traceback (most recent call last):\n" + hygon.capture(name))
    assert cause == expected[0]
    assert expected[1] in remedy


def test_errors_nobody_knows_have_no_meaning():
    assert _hy_smi.explain("something new") == ""
    assert _hy_smi.container_fault("ImportError: libother.so.1: cannot open shared object file") == ("", "")


def test_lines_of_two_machines_are_not_taken_as_one():
    (name,) = EXPECTED["parts"]
    text = hygon.capture(name)
    with pytest.raises(UnknownOutput, match="'vram Total Memory .MiB.' is both '65520' and '16368'"):
        _hy_smi.parse_lines(text)
    lines = text.splitlines(keepends=True)
    parts = [_hy_smi.parse_lines("".join(lines[:2])), _hy_smi.parse_lines(lines[2])]
    assert [part.cards for part in parts] == EXPECTED["parts"][name]
    assert _hy_smi.memories(parts[0]) == {0: (65520, 51920)}
    with pytest.raises(UnknownOutput, match=r"card 0 has the key 'vram Total Used Memory \(MiB\)' 0 times; it has: vram Total Memory"):
        _hy_smi.memories(parts[1])


# ---- values out of listings


def json_of(name):
    return _hy_smi.parse_json(hygon.capture(name))


def test_values_of_captured_listings():
    old, new = (json_of(name) for name in list(EXPECTED["json"])[:2])
    assert (_hy_smi.uses(old), _hy_smi.uses(new)) == ({0: 0.0}, {0: 0.0})
    assert (_hy_smi.products(old), _hy_smi.products(new)) == ({0: "DCU xxxx"}, {0: "K100_AI"})
    assert _hy_smi.memories(new) == {0: (65520, 2)}
    assert _hy_smi.memories(json_of("hy-smi-a-json__bw__2-of-8__malformed-json.txt")) == {0: (65520, 64169), 1: (65520, 64104)}
    assert _hy_smi.numa_nodes(json_of("hy-smi-showtoponuma-json__first-card-only.json")) == {0: 0}
    assert _hy_smi.uses(_hy_smi.parse_lines(hygon.capture("hy-smi-util-lines__text-line-forms.txt"))) == {0: 88.5}


def listing(**fields):
    return _hy_smi.Listing({0: fields}, [])


def test_addresses():
    two = _hy_smi.Listing({0: {"PCI Bus": "0000:09:00.0 --> SN: T1 --> OAM ID: 1"}, 3: {"PCI Bus": "0000:2C:00.0"}}, [])
    assert _hy_smi.addresses(two) == {0: "0000:09:00.0", 3: "0000:2c:00.0"}
    two.cards[3]["PCI Bus"] = "0000:09:00.0"
    with pytest.raises(UnknownOutput, match="cards 0, 3 all have the PCI address 0000:09:00.0"):
        _hy_smi.addresses(two)
    with pytest.raises(UnknownOutput, match="'0000:09:0' is no PCI address"):
        _hy_smi.addresses(listing(**{"PCI Bus": "0000:09:0"}))


@pytest.mark.parametrize(
    ("total", "used", "expected"),
    [("65520", "2", (65520, 2)), ("N/A", "N/A", (None, None)), ("65520", "N/A", (65520, None))],
)
def test_memories(total, used, expected):
    assert _hy_smi.memories(listing(**{"vram Total Memory (MiB)": total, "vram Total Used Memory (MiB)": used})) == {0: expected}


def test_memory_in_bytes_is_what_amds_own_tool_says():
    fields = {"VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "2097152"}
    assert _hy_smi.memories(listing(**fields)) == {0: (65520, 2)}


@pytest.mark.parametrize(("total", "used"), [("0", "0"), ("100", "101"), ("64 GB", "2"), ("-1", "2"), ("65520.5", "2"), ("", "2")])
def test_memory_that_cannot_be(total, used):
    with pytest.raises(UnknownOutput, match="card 0"):
        _hy_smi.memories(listing(**{"vram Total Memory (MiB)": total, "vram Total Used Memory (MiB)": used}))


@pytest.mark.parametrize(
    ("key", "value", "expected"), [("HCU use (%)", "97.5", 97.5), ("DCU use (%)", "3", 3.0), ("GPU use (%)", "N/A", None)]
)
def test_uses(key, value, expected):
    assert _hy_smi.uses(listing(**{key: value})) == {0: expected}


@pytest.mark.parametrize(
    "fields", [{"HCU use (%)": "101"}, {"HCU use (%)": "x"}, {"use (%)": "1"}, {"HCU use (%)": "1", "DCU use (%)": "2"}, {}]
)
def test_uses_that_are_not_understood(fields):
    with pytest.raises(UnknownOutput, match="use"):
        _hy_smi.uses(listing(**fields))


@pytest.mark.parametrize(("value", "expected"), [("3", 3), ("-1", None), ("N/A", None)])
def test_numa_nodes(value, expected):
    assert _hy_smi.numa_nodes(listing(**{"(Topology) Numa Node": value})) == {0: expected}


def test_a_numa_node_that_is_none():
    with pytest.raises(UnknownOutput, match="'-2' is no NUMA node"):
        _hy_smi.numa_nodes(listing(**{"(Topology) Numa Node": "-2"}))


# ---- the table

HEADER = "HCU Temp AvgPwr Perf PwrCap VRAM% HCU% Mode\n"


def test_columns_are_found_by_their_words():
    text = "DCU Mode New HCU% VRAM% PwrCap Perf AvgPwr Temp\n3 N/A ? 5.5% 7% N/A manual 9.0W 41C\n"
    assert _hy_smi.parse_table(text).rows == {3: _hy_smi.Row(41.0, 9.0, None, "manual", 7.0, 5.5, "N/A")}


def test_what_is_said_around_the_table_is_kept():
    framed = hygon.frame([HEADER.strip(), "0 47.0C 22.0W auto 300.0W 0% 0% N/A"])
    table = _hy_smi.parse_table("WARNING: 某 old library\n" + framed + "Please update the firmware\n")
    assert list(table.rows) == [0]
    assert table.notes == ["WARNING: 某 old library", "Please update the firmware"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it printed nothing"),
        (" \n\n", "it printed nothing"),
        (HEADER, "the table has a header and no card"),
        (HEADER + "0 59.0C 114.0W auto 400.0W 0% 0.0%\n", "7 words in a row of 8 columns: '0 59.0C"),
        (HEADER + "0 59.0C 114.0W auto 400.0W 0% 0.0% Normal", "ends in the middle of a line: '0 59.0C"),
        (HEADER + "0 59.0C 114.0W auto 400.0W 0% 0.0% Norma\n", "unknown mode 'Norma'"),
        (HEADER + "0 59.0 114.0W auto 400.0W 0% 0.0% Normal\n", "'59.0' is no figure in C"),
        (HEADER + "0 59.0C 114.0 auto 400.0W 0% 0.0% Normal\n", "'114.0' is no figure in W"),
        (HEADER + "0 59.0C 114.0W auto 400.0W 101% 0.0% Normal\n", "'101%' is no figure in %"),
        (HEADER + "0 59.0C 114.0W auto 400.0W inf% 0.0% Normal\n", "'inf%' is no figure in %"),
        (HEADER + "x 59.0C 114.0W auto 400.0W 0% 0.0% Normal\n", "no card number"),
        (HEADER + "0 59.0C 114.0W auto 400.0W 0% 0.0% Normal\n" * 2, "a second row for card 0"),
        (HEADER.replace("Mode", "Mod") + "0 59.0C 114.0W auto 400.0W 0% 0.0% Normal\n", "column Mode is there 0 times"),
        (HEADER.replace("Perf", "Temp") + "0 59.0C 114.0W 9C 400.0W 0% 0.0% Normal\n", "column Temp is there 2 times"),
        (HEADER + "0 59.0C 114.0W auto 400.0W 0% 0.0% Nor\x00mal\n", "not plain text"),
        (hygon.frame([HEADER.strip()]) + "0 59.0C 114.0W auto 400.0W 0% 0.0% Normal\n", "data outside the frame: '0 59.0C"),
        ("\n".join(hygon.frame([HEADER.strip(), "0 1C 1W a 4W 0% 0% MIG"]).split("\n")[:-2]) + "\n", "1 begin and 0 end lines"),
        (hygon.frame([HEADER.strip(), "0 1C 1W a 4W 0% 0% MIG"]) * 2, "2 begin and 2 end lines"),
    ],
)
def test_table_that_is_not_understood(text, says):
    with pytest.raises(UnknownOutput) as caught:
        _hy_smi.parse_table(text)
    assert says in str(caught.value)


# ---- lines and JSON


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("HCU[0] : Card Series:\n", "no key and value: 'HCU[0] : Card Series:'"),
        ("HCU[0] : Card Series\n", "no key and value"),
        ("HCU[0\n", "no line about a card"),
        ("HCU[00] : a: b\n", "no line about a card"),
        ("NPU[0] : a: b\n", "no line about a card"),
        ("WARNING: something\nHCU[0] : a: b\n", "no line about a card: 'WARNING"),
        ("HCU[0] : a: b\nDCU[0] : a: c\n", "'a' is both 'b' and 'c'"),
        (hygon.frame([]), "no card in it"),
    ],
)
def test_lines_that_are_not_understood(text, says):
    with pytest.raises(UnknownOutput) as caught:
        _hy_smi.parse_lines(text)
    assert says in str(caught.value)


def test_titles_of_sections_carry_no_meaning():
    text = hygon.frame(["=================== Numa Nodes ===================", "HCU[0]\t\t: (Topology) Numa Node: 3"])
    assert _hy_smi.numa_nodes(_hy_smi.parse_lines(text)) == {0: 3}


def test_wordings_may_be_mixed_and_coloured():
    assert _hy_smi.parse_lines("DCU[0] : a: b\r\n\x1b[31mHCU[1]\t: a : c\x1b[0m\nGPU[10]: a: d\n").cards == {
        0: {"a": "b"},
        1: {"a": "c"},
        10: {"a": "d"},
    }


def test_json_with_lines_before_and_after():
    text = 'ERROR: no such sensor\n{"card0": {"a": 1, "b": null, "": "", "c": "x\\/y"}, "system": {"Driver version": "6"}}\nbye\n'
    assert _hy_smi.parse_json(text) == _hy_smi.Listing({0: {"a": "1", "b": "N/A", "c": "x/y"}}, ["ERROR: no such sensor", "bye"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("This command does not support to set print format\n", "no JSON in it, first line 'This command"),
        ("{}\n", "JSON without any card"),
        ('{"card0": {"a": "1"}', "JSON that ends too early"),
        ('{"card0": {"a": "1}}', "JSON that goes wrong at '\"1}}'"),
        ('{"card0": {"a": 1"b": "2"}}', 'JSON with "b" after the value of "a"'),
        ('{"card0": {"a": 1 "b": "2"}}', 'JSON with "b" after the value of "a"'),
        ('{"card0": {"a": "1"} "card1": {"a": "1"}}', 'JSON with "card1" after the value of "card0"'),
        ('{"card0": {"a": "1",}}', "JSON with } where a key belongs"),
        ('{"card0": {"a": , "b": "1"}}', 'JSON with , where the value of "a" belongs'),
        ('{"card0": {"a": {"b": "1"}}}', 'JSON with { where the value of "a" belongs'),
        ('{"card0": {"a" "1"}}', "where a key belongs"),
        ('{"card0": {"a": "1", "a": "2"}}', "'a' is both '1' and '2'"),
        ('{"card0": {"": "2"}}', "the value '2' without a key in card0"),
        ('{"card0": {"a": "1"}, "card0": {"a": "1"}}', "the key 'card0' twice"),
        ('{"card0": {"a": "1"}, "npu1": {"a": "1"}}', "the key 'npu1'"),
        ('{"card0": "x"}', "the key 'card0'"),
        ('{"card0": {"a": "1\ufffd"}}', "goes wrong at"),
        ('{"card0": {"a": "1"}}, "card1": {"a": "1"}}', 'data outside the JSON: \', "card1"'),
    ],
)
def test_json_that_is_not_understood(text, says):
    with pytest.raises(UnknownOutput) as caught:
        _hy_smi.parse_json(text)
    assert says in str(caught.value)


# ---- processes, versions, health

BLOCK = "PID: 7\n\tHCU Index: ['0', '3'] \n\tPCI BUS: ['0000:07:00.0', '0000:16:00.0'] \n\tVRAM USED(MiB): 10\n\tVRAM USED(%): inf\n"


def test_process_on_two_cards():
    assert _hy_smi.parse_processes(f"PIDs for KFD processes:\n{BLOCK}====\n") == [
        _hy_smi.Process(7, [0, 3], ["0000:07:00.0", "0000:16:00.0"], 10, None)
    ]
    assert _hy_smi.parse_processes("No KFD PIDs currently running\n") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing here\n", "no list of processes in it, first line 'nothing here'"),
        (f"PIDs for KFD processes:\n{BLOCK}", "the list of processes was cut"),
        ("PIDs for KFD processes:\n\tPASID: 1\n====\n", "a value before the first process"),
        ("PIDs for KFD processes:\nPID: 7\n====\n", "a process without Index: 'PID: 7'"),
        (f"PIDs for KFD processes:\n{BLOCK.replace('PID: 7', 'PID: x')}====\n", "no process id: 'PID: x'"),
        (f"PIDs for KFD processes:\n{BLOCK.replace(', 0000:16:00.0', '')}====\n".replace(", '0000:16:00.0'", ""), "do not go together"),
        (f"PIDs for KFD processes:\n{BLOCK.replace(chr(39) + '3' + chr(39) + '] ', chr(39) + '3')}====\n", "no list"),
        (f"PIDs for KFD processes:\n{BLOCK.replace(' 10', ' ten')}====\n", "'ten' is no figure"),
        (f"PIDs for KFD processes:\n{BLOCK.replace('inf', '250')}====\n", "'250'"),
        (f"PIDs for KFD processes:\n{BLOCK}{BLOCK}====\n", "process 7 is listed twice"),
        (f"PIDs for KFD processes:\n{BLOCK}and more\n====\n", "no key and value of a process: 'and more'"),
    ],
)
def test_processes_that_are_not_understood(text, says):
    with pytest.raises(UnknownOutput) as caught:
        _hy_smi.parse_processes(text)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["Driver Version:\n", "Driver Version: 1 2\n", "Driver Version: 1\nDriver Version: 1\n", "6.3\n"])
def test_driver_version_that_is_not_there(text):
    with pytest.raises(UnknownOutput, match="no driver version in it, first line"):
        _hy_smi.parse_driver_version(text)


TWICE = "HCU[0] : Bus Id : 0000:09:00.0 : Healthy\nHCU[0] : Bus Id : 0000:09:00.0 : Unhealthy\n"


@pytest.mark.parametrize("text", [TWICE, "HCU[0] : Bus Id : 0000:09:00.0 :\n", "HCU[0] : Bus Id : 09 : Healthy\n", hygon.frame([])])
def test_health_that_is_not_understood(text):
    with pytest.raises(UnknownOutput):
        _hy_smi.parse_health(text)


# ---- rocminfo and the container toolkit

ROCMINFO = hygon.capture("rocminfo__dtk-24.04.3__1x-k100ai__author-redacted.txt")


@pytest.mark.parametrize(("bdf", "address"), [("1792", "0000:07:00.0"), ("11264", "0000:2c:00.0"), ("15", "0000:00:01.7")])
def test_agent_address(bdf, address):
    (agent,) = _hy_smi.parse_rocminfo(ROCMINFO.replace("BDFID:                   15 ", f"BDFID:                   {bdf} "))
    assert agent.address == address


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("*** Done ***", "", "rocminfo did not come to its end"),
        ("Agent 2  ", "Agent 3  ", "not numbered from 1 on: 1, 3"),
        ("  Name:                    gfx928", "  Name:                    gfx92", "no instruction set for 'gfx92'"),
        ("25104(0x6210)", "25104(0x6211)", "has chip '25104(0x6211)'"),
        ("Device Type:             DCU", "Device Type:             XPU", "of unknown type 'XPU'"),
        ("  Marketing Name:          K1xx_AI  ", "", "agent 2 of rocminfo has no Marketing Name"),
    ],
)
def test_rocminfo_that_is_not_understood(old, new, says):
    assert ROCMINFO.count(old) == 1
    with pytest.raises(UnknownOutput) as caught:
        _hy_smi.parse_rocminfo(ROCMINFO.replace(old, new))
    assert says in str(caught.value)


def test_tracker_with_several_containers_and_switched_off():
    head = "HCU Id    UUID     Accessibility       Container Ids\n"
    one, two = "1" * 64, "2" * 64
    text = head + f"0  0xA  Exclusive  {one}\n               {two}\n1  0xB  Shared  None\n"
    assert _hy_smi.parse_tracker(text) == {0: _hy_smi.Tracked("0xA", "Exclusive", [one, two]), 1: _hy_smi.Tracked("0xB", "Shared", [])}
    assert _hy_smi.parse_tracker("HCU Tracker is disabled\n") == {}


@pytest.mark.parametrize(
    "rows",
    [
        "",
        "0 0xA Shared\n",
        "0 0xA Sharing None\n",
        "1 0xA Shared None\n",
        "0 0xA Shared None\n" + "c" * 64,
        "0 0xA Shared Non\n",
        "c" * 64,
        "no such command",
    ],
)
def test_tracker_that_is_not_understood(rows):
    with pytest.raises(UnknownOutput, match="tracker"):
        _hy_smi.parse_tracker("HCU Id    UUID     Accessibility       Container Ids\n" + rows + "\n")


@pytest.mark.parametrize(
    "text", ["hygon.com/hcu=0\n", "INFO[0000] Found 2 CDI devices\nhygon.com/hcu=0\n", "INFO[0000] Found 1 CDI devices\nhcu0\nhcu1\n"]
)
def test_cdi_names_that_do_not_add_up(text):
    with pytest.raises(UnknownOutput):
        _hy_smi.parse_cdi_names(text)


# ---- names


@pytest.mark.parametrize(
    ("raw", "chip", "name"),
    [
        ("K100_AI", "6210", "K100_AI"),
        ("K100-AI", "6210", "K100_AI"),
        ("DCU K100_AI", "6210", "K100_AI"),
        ("DCU-K100_AI", "", "K100_AI"),
        ("k100 ai", "", "K100_AI"),
        ("K100-LC", "62c7", "K100_LC"),
        ("BW", "631a", "BW1000_H"),
        ("BW", "6430", "BW1100"),
        ("BW", "6210", "BW"),
        ("BW", "", "BW"),
        ("BW1000", "6430", "BW1000"),
        ("DCU xxxx", "6210", "DCU xxxx"),
        ("Z200SM 80", "6210", "Z200SM 80"),
    ],
)
def test_normal_name(raw, chip, name):
    assert _hy_smi.normal_name(raw, chip) == name


@pytest.mark.parametrize(
    ("name", "chip", "fits"),
    [
        ("K100_AI", "6210", True),
        ("K100", "6210", False),
        ("K500SM_AI", "62b0", True),
        ("K500SM_AI", "6210", True),
        ("Z200SM 80", "6210", None),
        ("K100_AI", "ffff", None),
        ("K100_AI", "", None),
        ("BW1000", "631a", True),
    ],
)
def test_chip_fits(name, chip, fits):
    assert _hy_smi.chip_fits(name, chip) is fits


def test_architectures_are_of_known_series():
    assert {_hy_smi.ARCHITECTURES[name] for name in ("K100_AI", "K100_LC_AI", "K500SM_AI")} == {"gfx928"}
    assert {name: _hy_smi.ARCHITECTURES[name] for name in ("Z100", "K100", "K100_LC", "BW1000_H")} == {
        "Z100": "gfx906",
        "K100": "gfx926",
        "K100_LC": "gfx926",
        "BW1000_H": "gfx936",
    }
