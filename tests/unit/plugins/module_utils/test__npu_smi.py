# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every capture of npu-smi says exactly what it says; what is not understood is an error that shows the line."""

from __future__ import annotations

import dataclasses

import pytest
from unit.plugins.played import ascend

from ansible_collections.ironserve.llm.plugins.module_utils import _npu_smi
from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput

EXPECTED = ascend.expected()
BUSY = "npu-smi-info__23.0.rc3.3__8x-910b3__busy.txt"
DUO = "npu-smi-info__25.5.1__2x-310p3-dual-chip__idle__no-process-table.txt"
CUT = "npu-smi-info__25.2.1__4x-310p3-sparse-ids__paste-cut-short.txt"
ALARM = "npu-smi-info-t-health__alarm__multi-line.txt"


def each(kind):
    return list(EXPECTED[kind].items())


def test_every_capture_has_its_expected_values_and_its_origin():
    files = {path.name for path in ascend.FIXTURES.iterdir()} - {"INDEX.md", "expected.yml"}
    told = [name for kind in EXPECTED.values() for name in kind]
    assert sorted(told) == sorted(files)
    index = ascend.capture("INDEX.md")
    assert [name for name in files if f"| `{name}` |" not in index] == []
    assert len(files) == 74


def test_what_is_read_elsewhere_is_read():
    here = ascend.FIXTURES.parents[2] / "unit" / "plugins"
    texts = "\n".join(path.read_text(encoding="utf-8") for path in (*here.glob("module_utils/*.py"), here / "played/ascend.py"))
    assert [name for name in EXPECTED["elsewhere"] if f'"{name}"' not in texts] == []


# ---- the table


@pytest.mark.parametrize(("name", "table"), each("tables"))
def test_table(name, table):
    found = _npu_smi.parse_table(ascend.whole(name))
    assert (found.tool_version, found.driver_version) == (table["tool"], table["driver"])
    rows = []
    for one in found.chips:
        column = one.physical if table["column"] == "Phy-ID" else one.device
        assert (one.physical is None, one.device is None) == (table["column"] != "Phy-ID", table["column"] != "Device")
        figures = [one.power_w, one.temperature_c, one.utilisation_pct]
        memory = [one.memory_used_mib, one.memory_total_mib, one.ddr_used_mib, one.ddr_total_mib]
        rows.append([one.npu, one.chip, column, one.bus, one.name, one.health, *figures, *memory])
    assert rows == table["chips"]
    assert found.has_hbm == ("910" in name.split("__")[2] or "a3" in name)
    assert found.has_chips
    assert found.remarks == []


@pytest.mark.parametrize(("name", "table"), each("tables"))
def test_processes_of_the_table(name, table):
    chips = _npu_smi.parse_table(ascend.whole(name)).chips
    told = sorted({one.npu for one in chips if one.processes is not None})
    assert told == (table["told"] or [])
    assert [[one.npu, one.chip, *dataclasses.astuple(held)] for one in chips for held in one.processes or []] == table["processes"]


def test_paste_that_was_cut_short_is_an_error():
    with pytest.raises(UnknownOutput, match=r"^npu-smi info stopped before the table's end, after 4 chips$"):
        _npu_smi.parse_table(ascend.capture(CUT))


def changed(old, new, name=BUSY, count=1):
    text = ascend.whole(name)
    assert text.count(old) >= 1
    return text.replace(old, new, count)


ROW = "| 3     910B3               | OK            | 206.1       43                0    / 0             |\n"
SECOND = "| 0                         | 0000:82:00.0  | 89          0    / 0          60058/ 65536         |\n"
HELD = "| 3       0                 | 683935        | python                   | 55754                   |\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "npu-smi info said nothing"),
        (changed("+\n", "+ \x00\n"), "line 1 has bytes that are no text"),
        ("junk\n" + ascend.whole(BUSY), "line 1 is neither a border nor a whole row: 'junk'"),
        (changed(ROW, ROW[:60] + "\n"), "line 16 is neither a border nor a whole row"),
        (changed(ROW, ROW[:46] + "\n"), "line 16 is shorter than its border"),
        (changed(ROW, ""), "line 16 does not fit its header"),
        (changed(SECOND, ""), "line 18 does not fit its header"),
        (changed(ROW, ROW.replace("43  ", "4 3 ")), "line 16 does not fit its header"),
        (changed(SECOND, SECOND.replace("60058/ 65536", "600 58/ 65536")), "line 17 does not fit its header"),
        (changed(SECOND, SECOND.replace("82:00.0", "82:00.9")), "'0000:82:00.9' is no PCI address"),
        (changed(ROW, ROW.replace("| 3 ", "| 2 ")), "line 17 does not fit its header"),
        (changed(HELD, HELD.replace("| 3 ", "| 9 ")), "line 40 does not fit its header"),
        (changed(HELD, HELD.replace("| 3       0", "| 3       1")), "line 40 does not fit its header"),
        (changed(HELD, HELD + HELD.replace("55754", "12345")), "line 41 does not fit its header"),
        (changed(HELD, HELD + f"| {'No running processes found in NPU 3':<94} |\n"), "line 41 does not fit its header"),
        (changed(HELD, f"| {'No running processes found in NPU 3':<94} |\n" + HELD), "line 41 does not fit its header"),
        (changed("HBM-Usage(MB) ", "HBM-Use(MB)   "), "line 5 does not fit its header"),
        (changed("| NPU   Name ", "| NPU   NPU  "), "line 4 does not fit its header"),
        (changed("| npu-smi 23.0.rc3.3", "| gpu-smi 23.0.rc3.3"), "line 2 does not fit its header"),
        (ascend.whole(BUSY)[:300], "stopped in the middle of its last line: '| N'"),
        ("".join(ascend.whole(BUSY).splitlines(True)[:6]), "has a table without a chip"),
        ("".join(ascend.whole(BUSY).splitlines(True)[:4]), "has no table with a title and a header"),
        ("".join(ascend.whole(BUSY).splitlines(True)[:7]), "has NPU 0 with its first row only"),
        ("".join(ascend.whole(BUSY).splitlines(True)[:8]), "stopped before the table's end, after 1 chips"),
        ("".join(ascend.whole(BUSY).splitlines(True)[:31]), "stopped before the table's end, after 8 chips"),
        ("".join(ascend.whole(BUSY).splitlines(True)[:34]), "stopped before the table's end, after 8 chips"),
    ],
)
def test_table_that_is_not_whole(text, words):
    with pytest.raises(UnknownOutput) as error:
        _npu_smi.parse_table(text)
    assert words in str(error.value)


def test_warning_after_a_good_table_is_kept():
    warning = ascend.capture("npu-smi__driver-package-incomplete__warning-line.txt")
    found = _npu_smi.parse_table("DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n" + ascend.whole(BUSY) + warning)
    assert len(found.chips) == 8
    assert found.remarks == ["DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)", warning.strip()]
    assert _npu_smi.INCOMPLETE in warning
    assert "first sign of a card that is held elsewhere" in _npu_smi.remark_meaning(found.remarks[0])


def test_wider_columns_and_rows_that_run_over_their_border():
    row = HELD.replace("| python                   |", "| a_name_longer_than_its_column |")
    found = _npu_smi.parse_table(changed(HELD, row))
    assert found.chips[3].processes == [_npu_smi.Process(683935, "a_name_longer_than_its_column", 55754)]
    found = _npu_smi.parse_table(changed(SECOND, SECOND.replace("60058/ 65536 ", "60058/ 131072")))
    assert found.chips[3].memory_total_mib == 131072


def test_name_of_a_process_may_hold_the_separator():
    found = _npu_smi.parse_table(changed(HELD, HELD.replace("python  ", "py | | n")))
    assert found.chips[3].processes == [_npu_smi.Process(683935, "py | | n", 55754)]


def test_column_of_the_process_id_in_a_container():
    text = ascend.whole(BUSY)
    text = text.replace("| Process id    |", "| Process id    | Process id in container |")
    for pid in range(683932, 683940):
        text = text.replace(f"| {pid}        |", f"| {pid}        | {pid - 683900:<23} |")
    assert [one.processes[0].pid for one in _npu_smi.parse_table(text).chips] == list(range(683932, 683940))


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("206.1 ", "NA    ", "power_w", None),
        ("206.1 ", "0.0   ", "power_w", None),
        ("206.1      ", "429496729.5", "power_w", None),
        ("43  ", "NA  ", "temperature_c", None),
        ("43  ", "-5  ", "temperature_c", -5),
        ("43         ", "2147483647 ", "temperature_c", None),
        ("89         ", "4294967295 ", "utilisation_pct", None),
        ("60058/ 65536", "NA   / 65536", "memory_used_mib", None),
        ("60058/ 65536", "65537/ 65536", "memory_used_mib", None),
        ("60058/ 65536", "0    / 0    ", "memory_total_mib", None),
        ("60058/ 65536", "NA   / NA   ", "memory_total_mib", None),
        ("0    / 0          60058", "7    / 15137      60058", "ddr_used_mib", 7),
        ("| OK   ", "| Alarm", "health", "Alarm"),
        ("0000:82:00.0", "NA          ", "bus", None),
    ],
)
def test_placeholders_are_no_figures(old, new, field, value):
    rows = ROW + SECOND
    assert old in rows
    chip = _npu_smi.parse_table(changed(rows, rows.replace(old, new, 1))).chips[3]
    assert getattr(chip, field) == value
    assert (chip.npu, chip.chip) == (3, 0)


@pytest.mark.parametrize(("name", "kind"), [(BUSY, "910b"), ("npu-smi-info__25.3.rc1__atlas-a3-8cards-16dies__busy.txt", "a3")])
def test_tables_put_together_are_as_the_captured(name, kind):
    table = EXPECTED["tables"][name]
    chips = ascend.chips_of(name)
    for chip, (_npu, _chip, _column, _bus, _name, _health, power, temperature, use, *memory) in zip(chips, table["chips"], strict=True):
        chip.power, chip.temperature, chip.use, chip.memory = power, temperature, use, tuple(memory[:2])
    assert ascend.table(chips, kind, table["tool"]) == ascend.capture(name)


def test_table_of_a_950_which_numbers_no_chips():
    made = [
        ascend.Chip(0, 0, 0, 0, "0000:9d:00.0", "Ascend950PR", [(4711, "python", 5000)], use=3, memory=(5120, 131072)),
        ascend.Chip(1, 0, 1, 1, None, "Ascend950PR"),
    ]
    found = _npu_smi.parse_table(ascend.table(made, "950", "25.7.rc1"))
    chip, other = found.chips
    assert (chip.npu, chip.chip, chip.bus, chip.utilisation_pct, chip.memory_used_mib, chip.memory_total_mib) == (
        0,
        0,
        "0000:9d:00.0",
        3,
        5120,
        131072,
    )
    assert (chip.ddr_total_mib, chip.physical, chip.processes) == (None, None, [_npu_smi.Process(4711, "python", 5000)])
    assert (other.npu, other.bus, other.processes) == (1, None, [])
    assert (found.has_hbm, found.has_chips) == (True, False)


# ---- lists


@pytest.mark.parametrize(("name", "rows"), each("maps"))
def test_map(name, rows):
    assert [list(dataclasses.astuple(one)) for one in _npu_smi.parse_map(ascend.capture(name))] == rows


HEADER = "\tNPU ID   Chip ID   Chip Logic ID   Chip Name\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "said nothing"),
        (HEADER, "names no chip"),
        (HEADER + "0 1 - Mcu\n", "names no chip"),
        ("0 0 0 Ascend 910B\n", "line 1 is no header that is known"),
        (HEADER.replace("Chip Logic ID", "Chip Kind"), "line 1 is no header that is known"),
        (HEADER.replace("Chip ID ", ""), "line 1 is no header that is known"),
        (HEADER.replace("Chip ID", "NPU ID"), "line 1 is no header that is known"),
        (HEADER + "0 0 0\n", "line 2 has too few columns: '0 0 0'"),
        (HEADER + "0 0 - Ascend 910B\n", "line 2 has no number under Chip Logic ID"),
        (HEADER + "0 0 -1 Ascend 910B\n", "line 2 has no number under Chip Logic ID"),
        (HEADER + "0 1 4 Mcu\n", "line 2 has no number under Chip Logic ID"),
        (HEADER + "0 1 - Mc\n", "line 2 has no number under Chip Logic ID"),
        (HEADER + "0 0 0 Ascend 910B\n0 0 1 Ascend 910B\n", "line 3 names a chip again"),
        (HEADER + "0 0 0 Ascend 910B", "stopped in the middle of its last line: '0 0 0 Ascend 910B'"),
    ],
)
def test_map_that_is_not_understood(text, words):
    with pytest.raises(UnknownOutput) as error:
        _npu_smi.parse_map(text)
    assert words in str(error.value)


def test_map_of_other_chips_and_slots():
    text = "\tNPU ID Slot ID Chip ID Chip Phy-ID Chip Name\n\t0 -1 0 5 Ascend950PR\n"
    assert _npu_smi.parse_map(text) == [_npu_smi.Mapped(0, 0, None, 5)]
    assert _npu_smi.parse_map(HEADER + "0 0 0 Ascend 310\n0 1 - Mcu\n0 2 - 3559\n") == [_npu_smi.Mapped(0, 0, 0, None)]


@pytest.mark.parametrize(("name", "cards"), each("lists"))
def test_list(name, cards):
    assert _npu_smi.parse_list(ascend.capture(name)) == cards


def test_list_of_other_boards():
    text = "\tCard Count : 1\n\n\tNPU ID : 6\n\tProduct Name : Atlas\n\tSerial Number : S\n\tChip Count : 4\n"
    assert _npu_smi.parse_list(text) == {6: 4}
    assert _npu_smi.parse_list("\tTotal Count : 2\n\n\tNPU ID : 0\n\n\tNPU ID : 1\n") == {0: None, 1: None}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Total Count : 2\nNPU ID : 0\nChip Count : 1\n", "counts 2 cards and lists 0"),
        ("Total Count : 2\nNPU ID : 0\nChip Count : 1\nNPU ID : 1\n", "counts 2 cards and lists 0, 1"),
        ("NPU ID : 0\nChip Count : 1\n", "counts None cards"),
        ("Total Count : x\n", "line 1 does not fit"),
        ("Total Count : 1\nNPU ID : 0\nNPU ID : 0\n", "line 3 does not fit"),
        ("Total Count : 1\nChip Count : 1\n", "line 2 does not fit"),
        ("Total Count : 1\nNPU ID : 0\nChip Count\n", "line 3 is no 'key : value'"),
        ("There is no NPU card on this server.\n", "line 1 is no 'key : value'"),
    ],
)
def test_list_that_is_not_understood(text, words):
    with pytest.raises(UnknownOutput) as error:
        _npu_smi.parse_list(text)
    assert words in str(error.value)


# ---- key : value


@pytest.mark.parametrize(("name", "report"), each("reports"))
def test_report(name, report):
    assert [dataclasses.asdict(one) for one in _npu_smi.parse_reports(report["kind"], ascend.capture(name))] == report["cards"]


USAGES = "NPU ID : 0\nChip Count : 2\n\nAicore Usage Rate(%) : 7\nChip ID : 0\n\nAicore Usage Rate(%) : NA\nChip ID : 1\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (USAGES.replace("\nAicore Usage Rate(%) : NA\nChip ID : 1\n", ""), "counts 2 chips and speaks of 0"),
        (USAGES.replace("Chip ID : 1", "Chip ID : 0"), "speaks twice of chip 0"),
        (USAGES.replace("Chip ID : 1\n", ""), "has a block that says of no chip: 'Aicore Usage Rate(%)'"),
        (USAGES.replace("Chip ID : 1\n", "Chip ID : \n"), "has '' for 'Chip ID'"),
        (USAGES.replace("\n\nAicore Usage Rate(%) : NA", "\nAicore Usage Rate(%) : NA"), "stands twice in its block"),
        (USAGES.replace("Aicore Usage Rate(%) : NA\n", ""), "says nothing about it"),
        ("NPU ID : 0\nChip Count : 1\n", "counts 1 chips and speaks of none"),
        ("NPU ID : 0\n\n : 5\nChip ID : 0\n", "goes on nothing"),
    ],
)
def test_report_that_is_not_understood(text, words):
    with pytest.raises(UnknownOutput) as error:
        _npu_smi.parse_reports("usages", text)
    assert words in str(error.value)


def test_use_of_cores():
    assert _npu_smi.aicore_pct(_npu_smi.parse_reports("usages", USAGES)[0]) == {0: 7, 1: None}
    dual = _npu_smi.parse_reports("usages", ascend.capture("npu-smi-info-t-usages__310p-dual-chip__doc.txt"))[0]
    assert _npu_smi.aicore_pct(dual) == {0: 0, 1: 0}
    with pytest.raises(UnknownOutput, match="npu-smi says '' for 'Aicore Usage Rate"):
        _npu_smi.aicore_pct(_npu_smi.parse_reports("usages", USAGES.replace("Aicore Usage", "Aicpu Usage"))[0])


def test_errors_that_memory_could_not_mend():
    text = ascend.capture("npu-smi-info-t-ecc__910a__doc-example.txt")
    assert _npu_smi.double_bit_errors(_npu_smi.parse_reports("ecc", text)[0]) == {0: {}}
    ill = text.replace("HBM Double Bit Error Count               : 0", "HBM Double Bit Error Count               : 10")
    ill = ill.replace("DDR Double Bit Error Count               : 0", "DDR Double Bit Error Count               : NA")
    assert _npu_smi.double_bit_errors(_npu_smi.parse_reports("ecc", ill)[0]) == {0: {"HBM Double Bit Error Count": 10}}
    with pytest.raises(UnknownOutput, match="no counters of double bit errors for chip 0"):
        _npu_smi.double_bit_errors(_npu_smi.parse_reports("ecc", text.replace("Double", "Triple"))[0])
    with pytest.raises(UnknownOutput, match="no counters of double bit errors for chip 0"):
        _npu_smi.double_bit_errors(_npu_smi.parse_reports("ecc", ill.replace(": 10", ": many"))[0])


def test_sharing():
    reports = _npu_smi.parse_reports("device-share", ascend.capture("npu-smi-info-t-device-share__2-cards-shared.txt"))
    assert [_npu_smi.shared(one) for one in reports] == [{0: True}, {0: True}]
    assert _npu_smi.shared(_npu_smi.Report(4, {0: {"Device-share Status": "False"}}, {})) == {0: False}
    for word in ("true", "NA", "7", ""):
        with pytest.raises(UnknownOutput, match="says '{0}'".format(word)):
            _npu_smi.shared(_npu_smi.Report(4, {0: {"Device-share Status": word}}, {}))


@pytest.mark.parametrize(("name", "board"), each("boards"))
def test_board(name, board):
    assert _npu_smi.parse_board(ascend.capture(name)) == board


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Firmware Version : 1\n", "has '' for 'NPU ID'"),
        ("NPU ID : 0\nPCIe Bus Info : 0000:61:00\n", "'0000:61:00' is no PCI address"),
        ("NPU ID : 0\n\nNPU ID : 1\n", "speaks of 2 things at once"),
        ("NPU ID : 0\nFirmware Version : 7.8\ufffd\n", "has '7.8\ufffd' for a version of the firmware"),
    ],
)
def test_board_that_is_not_understood(text, words):
    with pytest.raises(UnknownOutput) as error:
        _npu_smi.parse_board(text)
    assert words in str(error.value)


@pytest.mark.parametrize(("name", "health"), each("health"))
def test_health(name, health):
    assert dataclasses.asdict(_npu_smi.parse_health(ascend.capture(name))) == health


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Error Code : NA\n", "has no Health Status"),
        ("Health Status : \n", "has no Health Status"),
        ("Health Status : OK\n : more\n", "line 2 does not fit"),
        ("Health Status : OK\nHealth Status : Alarm\n", "line 2 does not fit"),
    ],
)
def test_health_that_is_not_understood(text, words):
    with pytest.raises(UnknownOutput) as error:
        _npu_smi.parse_health(text)
    assert words in str(error.value)


@pytest.mark.parametrize(("name", "chips"), each("processes"))
def test_processes(name, chips):
    found = _npu_smi.parse_processes(ascend.capture(name))
    assert {chip: [list(dataclasses.astuple(one)) for one in held] for chip, held in found.items()} == chips


def test_processes_of_a_whole_answer():
    text = "\n\tNPU ID : 0\n\tChip Count : 1\n\n\tProcess id:1 Process name:a b Process memory(MB):2\n"
    text += "\tProcess id:3 Process name:c Process memory(MB):4\n\tChip ID : 0\n"
    assert _npu_smi.parse_processes(text) == {0: [_npu_smi.Process(1, "a b", 2), _npu_smi.Process(3, "c", 4)]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No process in device.\n", "stopped in the middle of a chip"),
        ("Chip ID : 0\n", "line 1 does not fit"),
        ("Chip Count : 2\nNo process in device.\nChip ID : 0\n", "speaks of 1 chips and counts 2"),
        ("No process in device.\nNo process in device.\nChip ID : 0\n", "line 2 does not fit"),
        ("No process in device.\nProcess id:1 Process name:a Process memory(MB):2\nChip ID : 0\n", "line 2 does not fit"),
        ("No process in device.\nChip ID : 0\nNo process in device.\n", "stopped in the middle of a chip"),
        ("Process id:1 Process name:a Process memory(MB):\nChip ID : 0\n", "line 1 does not fit"),
        ("Process id:x Process name:a Process memory(MB):2\nChip ID : 0\n", "line 1 does not fit"),
    ],
)
def test_processes_that_are_not_understood(text, words):
    with pytest.raises(UnknownOutput) as error:
        _npu_smi.parse_processes(text)
    assert words in str(error.value)


# ---- complaints


@pytest.mark.parametrize(("name", "complaint"), each("complaints"))
def test_complaint(name, complaint):
    status, stream, words = complaint
    text = ascend.capture(name)
    said = (text, "") if stream == "stdout" else ("", text)
    assert words in _npu_smi.explain(status, *said)
    with pytest.raises(UnknownOutput):
        _npu_smi.parse_table(text)


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (172, "", "code -8020"),
        (187, "", "code -8005"),
        (211, "", "code -9005"),
        (211, "npu get board type failed. ret is -9005\n", "code -9005"),
        (1, "Failed to execute npu-smi info. ret is -8255.\n", _npu_smi.NO_QUERY),
        (1, "dcmi module initialize failed. ret is -8006\n", "an error code of the driver that is not known here"),
        (1, "Error parameter of -t\nUsage: npu-smi info\n", _npu_smi.NO_QUERY),
        (1, "what is this", ""),
        (0, "", ""),
    ],
)
def test_meaning_of_a_status_or_a_text(status, text, words):
    found = _npu_smi.explain(status, text)
    assert found.startswith(words) if words else found == ""


def test_question_of_a_setting_is_no_answer_to_anything():
    text = ascend.capture("npu-smi-set-device-share__prompt-on-stdout.txt")
    for parse in (_npu_smi.parse_table, _npu_smi.parse_map, _npu_smi.parse_list, _npu_smi.parse_board, _npu_smi.parse_health):
        with pytest.raises(UnknownOutput, match="Are you sure"):
            parse(text)
