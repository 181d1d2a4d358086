# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every capture of nvidia-smi against what was read from it by eye, and the forms that no capture has."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from unit.plugins.played.nvidia import FIXTURES, capture

from ansible_collections.ironserve.llm.plugins.module_utils import _nvidia_smi
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._nvidia_smi import Gpu, Lost, Notes

EXPECTED = yaml.safe_load((FIXTURES / "expected.yml").read_text(encoding="utf-8"))
SAMPLES = sorted(path.name for path in FIXTURES.iterdir() if path.name.startswith("nvidia-smi"))

PARSERS = {
    "nvidia-smi-query-gpu_": _nvidia_smi.parse_gpus,
    "nvidia-smi-query-compute-apps_": _nvidia_smi.parse_processes,
    "nvidia-smi-L_": _nvidia_smi.parse_list,
    "nvidia-smi-version_": _nvidia_smi.parse_versions,
    "nvidia-smi-q_": _nvidia_smi.parse_query_log,
    "nvidia-smi-topo-m_": _nvidia_smi.parse_topology,
    "nvidia-smi_": _nvidia_smi.parse_table,
}


def parser(name):
    """The parser of a capture, by its file name."""
    return next(parse for start, parse in PARSERS.items() if name.startswith(start))


def plain(found):
    """What a parser gave as data, without what is None or empty. Lists of rows stay."""
    if dataclasses.is_dataclass(found):
        fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        rows = ("gpus", "processes") + (("mig",) if isinstance(found, _nvidia_smi.Table) else ())
        return {name: plain(value) for name, value in fields.items() if value not in (None, "", {}, []) or name in rows}
    return [plain(item) for item in found] if isinstance(found, list) else found


def is_failure(name):
    return isinstance(EXPECTED[name], dict) and "status" in EXPECTED[name]


DATA = [name for name in SAMPLES if not is_failure(name)]
FAILURES = [name for name in SAMPLES if is_failure(name)]


def test_every_capture_is_expected_and_listed():
    assert sorted(EXPECTED) == SAMPLES
    assert len(SAMPLES) == 47
    index = (FIXTURES / "INDEX.md").read_text(encoding="utf-8")
    assert [name for name in SAMPLES if "| `{0}` |".format(name) not in index] == []


@pytest.mark.parametrize("name", DATA)
def test_capture(name):
    assert plain(parser(name)(capture(name))) == EXPECTED[name]


@pytest.mark.parametrize("name", FAILURES)
def test_failure_is_named_with_what_to_do(name):
    text, expected = capture(name), EXPECTED[name]
    assert _nvidia_smi.is_failure(text)
    for out, err in ((text, ""), ("", text)):
        message = _nvidia_smi.failure("/usr/bin/nvidia-smi -L", expected["status"], out, err)
        assert message.startswith("/usr/bin/nvidia-smi -L ended with status {0} and said ".format(expected["status"]))
        assert text.splitlines()[0] in message.replace('"', "")
        assert expected["words"] in message


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("parse", PARSERS.values())
def test_failure_is_never_data(name, parse):
    with pytest.raises(UnknownOutput):
        parse(capture(name))


@pytest.mark.parametrize("name", DATA)
def test_data_is_no_failure(name):
    assert not _nvidia_smi.is_failure(capture(name))


@pytest.mark.parametrize(
    ("rc", "words"), [(12, "libnvidia-ml.so.1 is not found"), (8, "power cable"), (15, "fell off the bus"), (77, "Xid")]
)
def test_failure_by_its_status_alone(rc, words):
    message = _nvidia_smi.failure("nvidia-smi", rc, "", "odd\n")
    assert "status {0} and said 'odd'".format(rc) in message
    assert words in message


def test_library_of_a_mismatch_is_named_and_is_no_card():
    text = capture("nvidia-smi__driver-library-mismatch__error.txt")
    assert "(library 580.159)" in _nvidia_smi.failure("nvidia-smi", 18, text, "")


# Notes

LOST_LINES = [
    ("Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error", Lost(1, "0000:34:00.0", "Unknown Error")),
    ("Unable to determine the device handle for GPU 0000:04:00.0: Not Found", Lost(None, "0000:04:00.0", "Not Found")),
    ("Unable to determine the device handle for GPU0000:25:00.0: Unknown Error", Lost(None, "0000:25:00.0", "Unknown Error")),
    ("Unable to determine the device handle for GPU2: Unknown Error", Lost(2, "", "Unknown Error")),
    ("Unable to determine the device handle for GPU0", Lost(0, "", "no reason given")),
    (
        "Unable to determine the device handle for gpu 00000000:5F:00.0: GPU is lost.  Reboot the system to recover this GPU",
        Lost(None, "0000:5f:00.0", "GPU is lost.  Reboot the system to recover this GPU"),
    ),
]


@pytest.mark.parametrize(("line", "lost"), LOST_LINES)
def test_lost_card(line, lost):
    notes = Notes()
    assert _nvidia_smi.read_notes(line, notes)
    assert notes == Notes(lost=[lost])


def test_other_notes():
    notes = Notes()
    assert _nvidia_smi.read_notes("WARNING: infoROM is corrupted at gpu 0000:3B:00.0  ", notes)
    assert _nvidia_smi.read_notes("WARNING: something else", notes)
    assert notes == Notes(inforom=["0000:3b:00.0"], warnings=["WARNING: something else"])
    for line in ("", "Unable to do anything", "Unable to determine the device handle for everything", "GPU 0: X"):
        assert not _nvidia_smi.read_notes(line, notes)


@pytest.mark.parametrize("name", [name for name in DATA if "-query-compute-apps" not in name])
@pytest.mark.parametrize("line", [LOST_LINES[0][0], "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"])
@pytest.mark.parametrize("place", [0, -1])
def test_a_note_changes_nothing_of_a_good_output(name, line, place):
    lines = capture(name).splitlines()
    lines.insert(len(lines) if place else 0, line)
    assert plain(parser(name)("\n".join(lines) + "\n")) == EXPECTED[name]


# Cards

ROW = "index, name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], temperature.gpu, power.draw [W]"


def gpus(*rows, header=ROW):
    return _nvidia_smi.parse_gpus("\n".join((header,) + rows) + "\n")


@pytest.mark.parametrize(
    "word", ["[N/A]", "[Not Supported]", "[Insufficient Permissions]", "[GPU is lost]", "[Unknown Error]", "[New Word]"]
)
def test_placeholder_is_never_a_figure(word):
    (gpu,) = gpus(", ".join(["3", "NVIDIA X"] + [word] * 5))
    assert (gpu.index, gpu.name) == (3, "NVIDIA X")
    figures = (gpu.memory_total_mib, gpu.memory_used_mib, gpu.utilisation_pct, gpu.temperature_c, gpu.power_w)
    assert figures == (None,) * 5
    assert set(gpu.odd.values()) == (set() if word in ("[N/A]", "[Not Supported]") else {word})


def test_row_of_a_lost_card_keeps_its_place():
    ill, well = gpus(", ".join(["0"] + ["[GPU is lost]"] * 6), "1, NVIDIA X, 100 MiB, 1 MiB, 0 %, 30, 9.50 W")
    assert (ill.index, ill.name, ill.memory_total_mib) == (0, "", None)
    assert _nvidia_smi.judge(ill)[0] == "fault"
    assert (well.index, well.memory_used_mib, well.power_w) == (1, 1, 9.5)
    assert _nvidia_smi.judge(well) == ("ok", "")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0, X, 100 MiB, 1 MiB, 0 %, 30", "6 cells under 7 headers"),
        ("0, X, Y, 100 MiB, 1 MiB, 0 %, 30, 9.50 W", "8 cells under 7 headers"),
        ("0, X, 100, 1 MiB, 0 %, 30, 9.50 W", "memory.total '100' is not understood"),
        ("0, X, 100 GiB, 1 MiB, 0 %, 30, 9.50 W", "memory.total '100 GiB' is not understood"),
        ("0, X, 100 MiB, 1.5 MiB, 0 %, 30, 9.50 W", "memory.used '1.5 MiB' is not understood"),
        ("0, X, 100 MiB, 101 MiB, 0 %, 30, 9.50 W", "more memory used and free than there is"),
        ("0, X, 100 MiB, 1 MiB, 101 %, 30, 9.50 W", "use is no percentage"),
        ("0, X, 100 MiB, 1 MiB, -1 %, 30, 9.50 W", "use is no percentage"),
        ("0, X, 100 MiB, 1 MiB, 0 %, , 9.50 W", "temperature.gpu is empty"),
        ("0, X, 100 MiB, 1 MiB, 0 %, 30 C, 9.50 W", "temperature.gpu '30 C' is not understood"),
        ("0, X, 100 MiB, 1 MiB, 0 %, 30, 9 W", "power.draw '9 W' is not understood"),
        (", X, 100 MiB, 1 MiB, 0 %, 30, 9.50 W", "index is empty"),
        ("[N/A], X, 100 MiB, 1 MiB, 0 %, 30, 9.50 W", "no index"),
        ("zero, X, 100 MiB, 1 MiB, 0 %, 30, 9.50 W", "index 'zero' is not understood"),
        ("No devices were found", "1 cells under 7 headers"),
    ],
)
def test_row_that_does_not_fit_names_the_line(row, words):
    with pytest.raises(UnknownOutput, match="nvidia-smi --query-gpu: line 3, ") as caught:
        gpus("7, X, 100 MiB, 1 MiB, 0 %, 30, 9.50 W", row)
    assert words in str(caught.value)
    assert repr(row) in str(caught.value)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("index, name, memory.used [MiB]", "the header lacks memory.total"),
        ("index, name, memory.total [GiB]", "memory.total in 'GiB', not 'MiB'"),
        ("index, name, memory.total", "memory.total in None, not 'MiB'"),
        ("index, name, name, memory.total [MiB]", "a column stands twice"),
        ("0, NVIDIA H200, 143771 MiB", "'0' is no column header"),
        ("hello", "the header lacks index"),
    ],
)
def test_header_that_is_not_known(header, words):
    with pytest.raises(UnknownOutput, match="line 1, ") as caught:
        gpus("0, X, 100 MiB", header=header)
    assert words in str(caught.value)


def test_columns_in_another_order_and_columns_nobody_knows():
    (gpu,) = gpus("12 KB/s, 5 MiB, NVIDIA X, 100 MiB, 4", header="pcie.tx [KB/s], memory.used [MiB], name, memory.total [MiB], index")
    assert (gpu.index, gpu.memory_used_mib, gpu.memory_total_mib) == (4, 5, 100)


@pytest.mark.parametrize("parse", [_nvidia_smi.parse_gpus, _nvidia_smi.parse_list, _nvidia_smi.parse_processes])
def test_no_card_is_told_only_where_a_card_is_lost(parse):
    assert parse(LOST_LINES[0][0] + "\n") == []
    for text in ("", "\n", "WARNING: something else\n"):
        with pytest.raises(UnknownOutput):
            parse(text)


def test_header_without_a_card():
    with pytest.raises(UnknownOutput, match="a header without a card"):
        gpus()
    assert gpus(LOST_LINES[0][0]) == []


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("index", ("0", "0"), "two cards with the index 0"),
        ("pci.bus_id", ("00000000:83:00.0", "0000:83:00.0"), "two cards with the address 0000:83:00.0"),
        ("uuid", ("GPU-" + 8 * "0" + 3 * "-0000" + "-" + 12 * "0",) * 2, "two cards with the uuid GPU-0"),
    ],
)
def test_card_that_stands_twice(column, values, words):
    others = [name for name in ("index", "pci.bus_id") if name != column]
    header = ", ".join([column] + others + ["name", "memory.total [MiB]"])
    rows = [
        ", ".join([value] + [str(row) if name == "index" else "0000:0{0}:00.0".format(row) for name in others] + ["X", "9 MiB"])
        for row, value in enumerate(values)
    ]
    with pytest.raises(UnknownOutput, match=words):
        gpus(*rows, header=header)


# Health


@pytest.mark.parametrize(
    ("words", "odd", "ecc", "health", "detail"),
    [
        ({}, {}, None, "ok", ""),
        ({"gpu_recovery_action": "None", "fabric.state": "Completed", "fabric.status": "Success"}, {}, 0, "ok", ""),
        ({"gpu_recovery_action": "Reset"}, {}, 0, "fault", "the driver asks for a reset of the GPU"),
        ({"gpu_recovery_action": "Polish"}, {}, 0, "unknown", "gpu_recovery_action says 'Polish'"),
        ({"fabric.state": "In Progress"}, {}, 0, "fault", "nvidia-fabricmanager"),
        ({"fabric.status": "Failure 7"}, {}, 0, "unknown", "fabric.status says 'Failure 7'"),
        ({"compute_mode": "Prohibited"}, {}, 0, "fault", "compute mode is Prohibited"),
        ({"compute_mode": "Exclusive_Process"}, {}, 0, "ok", ""),
        ({"remapped_rows.pending": "Yes"}, {}, 0, "warning", "wait for a reset to be remapped"),
        ({"retired_pages.pending": "Yes"}, {}, 0, "warning", "wait for a reset to be retired"),
        ({"remapped_rows.failure": "Yes"}, {}, 0, "fault", "must be replaced"),
        ({"mig.mode.current": "Enabled"}, {}, 0, "ok", ""),
        ({}, {}, 4, "warning", "4 uncorrected memory errors"),
        ({}, {"temperature.gpu": "[GPU requires reset]"}, 0, "fault", "temperature.gpu [GPU requires reset]"),
        ({}, {"pstate": "[GPU is lost]"}, 0, "fault", "pstate [GPU is lost]"),
        ({}, {"power.draw": "[Unknown Error]"}, 0, "unknown", "power.draw [Unknown Error]"),
        ({}, {"power.draw": "[New Word]"}, 0, "unknown", "power.draw [New Word]"),
        ({}, {"power.draw": "[Insufficient Permissions]"}, 0, "ok", ""),
        ({}, {"remapped_rows.failure": "[Insufficient Permissions]"}, 0, "unknown", "remapped_rows.failure"),
        ({}, {"ecc.errors.uncorrected.volatile.total": "[Insufficient Permissions]"}, None, "unknown", "ecc.errors"),
        ({"gpu_recovery_action": "Polish", "remapped_rows.pending": "Yes"}, {"pstate": "[GPU is lost]"}, 1, "fault", "says 'Polish'"),
        ({"gpu_recovery_action": "Polish", "remapped_rows.pending": "Yes"}, {}, 1, "unknown", "wait for a reset"),
    ],
)
def test_health(words, odd, ecc, health, detail):
    found, why = _nvidia_smi.judge(Gpu(0, words=words, odd=odd, ecc_uncorrected=ecc))
    assert found == health
    assert detail in why and bool(detail) == bool(why)


@pytest.mark.parametrize(
    ("field", "ok", "warning", "fault"),
    [
        ("gpu_recovery_action", ["None"], [], ["Reset", "Reboot", "Drain P2P", "Drain and Reset"]),
        ("retired_pages.pending", ["No"], ["Yes"], []),
        ("remapped_rows.pending", ["No"], ["Yes"], []),
        ("remapped_rows.failure", ["No"], [], ["Yes"]),
        ("compute_mode", ["Default", "Exclusive_Process", "Exclusive_Thread"], [], ["Prohibited"]),
        ("fabric.state", ["Completed"], [], ["In Progress", "Not Started"]),
        ("fabric.status", ["Success"], [], []),
        ("mig.mode.current", ["Enabled", "Disabled"], [], []),
    ],
)
def test_every_word_of_health(field, ok, warning, fault):
    found = {word: _nvidia_smi.judge(Gpu(0, words={field: word})) for word in [*ok, *warning, *fault, "new"]}
    assert sorted(_nvidia_smi.HEALTH_WORDS[field]) == sorted(ok + warning + fault)
    assert {word: health for word, (health, _why) in found.items()} == dict(
        dict.fromkeys(ok, "ok"), **dict.fromkeys(warning, "warning"), **dict.fromkeys(fault, "fault"), new="unknown"
    )
    assert [word for word, (health, why) in found.items() if bool(why) == (health == "ok")] == [], "what is not ok says why"


def test_health_from_elsewhere_counts_too():
    assert _nvidia_smi.judge(Gpu(0), (("warning", "its infoROM is corrupted"),)) == ("warning", "its infoROM is corrupted")


@pytest.mark.parametrize(("field", "word"), [("gpu_recovery_action", "Non"), ("remapped_rows.failure", "N"), ("mig.mode.current", "Enabl")])
def test_word_that_is_cut(field, word):
    with pytest.raises(UnknownOutput, match="{0} '{1}' is cut".format(field, word)):
        gpus("0, X, 9 MiB, " + word, header="index, name, memory.total [MiB], " + field)


# Names


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA  A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
        ("", ""),
    ],
)
def test_normal_form_of_a_product(raw, name):
    assert _nvidia_smi.product(raw) == name


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("NVIDIA H100 80GB HBM3", "sm_90"),
        ("NVIDIA H100 NVL", "sm_90"),
        ("NVIDIA H200", "sm_90"),
        ("NVIDIA H20-3e", "sm_90"),
        ("NVIDIA H800", "sm_90"),
        ("NVIDIA GH200 480GB", "sm_90"),
        ("NVIDIA B200", "sm_100"),
        ("NVIDIA GB200", "sm_100"),
        ("NVIDIA B300 SXM6 AC", "sm_103"),
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
        ("NVIDIA A800-SXM4-80GB", "sm_80"),
        ("NVIDIA A30", "sm_80"),
        ("NVIDIA A10", "sm_86"),
        ("NVIDIA A40", "sm_86"),
        ("NVIDIA RTX A6000", "sm_86"),
        ("NVIDIA GeForce RTX 3090", "sm_86"),
        ("NVIDIA L40S", "sm_89"),
        ("NVIDIA L4", "sm_89"),
        ("NVIDIA L20", "sm_89"),
        ("NVIDIA RTX 6000 Ada Generation", "sm_89"),
        ("NVIDIA GeForce RTX 4090 D", "sm_89"),
        ("NVIDIA GeForce RTX 5090", "sm_120"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm_120"),
        ("Tesla T4", "sm_75"),
        ("NVIDIA GeForce RTX 2080 SUPER", "sm_75"),
        ("Quadro RTX 8000", "sm_75"),
        ("Tesla V100-SXM2-32GB", "sm_70"),
        ("Tesla P100-PCIE-16GB", "sm_60"),
        ("Tesla P40", "sm_61"),
        ("NVIDIA X1000", "unknown"),
        ("", "unknown"),
    ],
)
def test_architecture(name, architecture):
    assert _nvidia_smi.architecture("", name) == architecture
    assert _nvidia_smi.architecture("12.1", name) == "sm_121", "what the driver says comes first"


@pytest.mark.parametrize("name", [name for name in DATA if "-query-gpu" in name])
def test_table_of_products_agrees_with_the_captures(name):
    for gpu in _nvidia_smi.parse_gpus(capture(name)):
        assert _nvidia_smi.architecture("", gpu.name) == _nvidia_smi.architecture(gpu.compute_cap, "")


# Processes

APPS = "gpu_uuid, gpu_bus_id, pid, used_gpu_memory [MiB], process_name"
UUID = "GPU-00000000-0000-0000-0000-00000000000a"
MIG = "MIG-00000000-0000-0000-0000-00000000000b"


def apps(*rows, header=APPS):
    return _nvidia_smi.parse_processes("\n".join((header,) + rows) + "\n")


def test_process_name_with_commas():
    (process,) = apps(UUID + ", 00000000:83:00.0, 12, 5 MiB, ray::Worker(a, b, c)")
    assert (process.pid, process.memory_mib, process.name) == (12, 5, "ray::Worker(a, b, c)")


def test_process_that_the_tool_hides_is_still_there():
    hidden, mig, old = apps(
        UUID + ", 00000000:83:00.0, [Insufficient Permissions], [N/A], [Insufficient Permissions]",
        MIG + ", 00000000:83:00.0, 13, 7 MiB, [Not Found]",
        "MIG-" + UUID + "/3/0, 00000000:83:00.0, 14, [N/A], x",
    )
    assert (hidden.pid, hidden.memory_mib, hidden.name, hidden.address) == (0, None, "", "0000:83:00.0")
    assert (mig.uuid, mig.pid, mig.memory_mib, mig.name) == (MIG, 13, 7, "")
    assert old.uuid == "MIG-" + UUID + "/3/0"


@pytest.mark.parametrize(
    "row",
    [
        "GPU-1, 00000000:83:00.0, 12, 5 MiB, x",
        "[N/A], 00000000:83:00.0, 12, 5 MiB, x",
        UUID + ", 83, 12, 5 MiB, x",
        UUID + ", 00000000:83:00.0, -12, 5 MiB, x",
        UUID + ", 00000000:83:00.0, 12, 5, x",
        UUID + ", 00000000:83:00.0, 12, 5 MiB, ",
        UUID + ", 00000000:83:00.0, 12, 5 MiB",
        "[Not Supported]",
    ],
)
def test_process_that_does_not_fit(row):
    with pytest.raises(UnknownOutput, match="nvidia-smi --query-compute-apps: line 2, "):
        apps(row)


def test_process_that_stands_twice():
    row = UUID + ", 00000000:83:00.0, 12, 5 MiB, x"
    with pytest.raises(UnknownOutput, match="line 3, a process that stands twice"):
        apps(row, row)
    hidden = UUID + ", 00000000:83:00.0, [Insufficient Permissions], 5 MiB, x"
    assert len(apps(hidden, hidden)) == 2, "two that are hidden may be two"


# -L and --version


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  MIG 1g.10gb Device 0: (UUID: {0})\n".format(MIG), "line 1, neither a GPU nor a MIG device"),
        ("GPU 0: NVIDIA X (UUID: {0})\nGPU 0: NVIDIA X (UUID: {1})\n".format(UUID, UUID.replace("a", "c")), "a number stands twice"),
        ("GPU 0: NVIDIA X (UUID: {0})\nGPU 1: NVIDIA X (UUID: {0})\n".format(UUID), "a uuid stands twice"),
        (
            "GPU 0: NVIDIA X (UUID: {0})\n  MIG 1g.10gb  Device 0: (UUID: {1})\n  MIG 1g.10gb  Device 0: (UUID: {2})\n".format(
                UUID, MIG, MIG.replace("b", "c")
            ),
            "a MIG device stands twice",
        ),
        ("GPU 0: NVIDIA X\n", "line 1, neither"),
        ("GPU 0: NVIDIA X (UUID: GPU-1)\n", "line 1, neither"),
        ("No devices found.\n", "line 1, neither"),
    ],
)
def test_list_that_is_not_understood(text, words):
    with pytest.raises(UnknownOutput) as caught:
        _nvidia_smi.parse_list(text)
    assert words in str(caught.value)


def versions(**changes):
    lines = dict({"NVIDIA-SMI": "590.48.01", "NVML": "590.48", "DRIVER": "590.48.01", "CUDA": "13.1"}, **changes)
    text = "".join("{0} version : {1}\n".format(key, value) for key, value in lines.items() if value)
    return _nvidia_smi.parse_versions(text)


def test_versions():
    assert versions() == _nvidia_smi.Versions("590.48.01", "590.48.01", "13.1")
    assert versions(**{"NVIDIA-SMI": "535.129.03"}).tool == "535.129.03", "a tool of another package"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"DRIVER": "590.48"}, "one of them is cut"),
        ({"NVIDIA-SMI": "590.48"}, "one of them is cut"),
        ({"DRIVER": "590.48.0"}, "driver version or kmd version is '590.48.0'"),
        ({"DRIVER": "580.95.05"}, "library 590.48 and driver 580.95.05 differ"),
        ({"DRIVER": ""}, "driver version or kmd version is not there"),
        ({"DRIVER": 'Deprecated, see "KMD version" instead'}, "driver version or kmd version is not there"),
        ({"KMD": "590.48.01"}, "driver version or kmd version is '590.48.01', '590.48.01'"),
        ({"CUDA": "13."}, "cuda version or cuda umd version is '13.'"),
        ({"CUDA": "N/A"}, "cuda version or cuda umd version is 'N/A'"),
        ({"NVML": ""}, "nvml version is not there"),
        ({"NVIDIA-SMI": "latest"}, "nvidia-smi version is 'latest'"),
    ],
)
def test_versions_that_are_not_understood(changes, words):
    with pytest.raises(UnknownOutput) as caught:
        versions(**changes)
    assert words in str(caught.value)


@pytest.mark.parametrize("line", ["NVML version : 590.48", "CUDA version :", "hello"])
def test_line_that_is_no_version(line):
    text = capture("nvidia-smi-version__590.48.01__1x-h200.txt")
    with pytest.raises(UnknownOutput, match="line 5, no line of a version: '{0}'".format(line)):
        _nvidia_smi.parse_versions(text + line + "\n")


# The table: forms of other drivers, and of ill cards

OLD_TABLE = """Fri Mar  6 20:23:45 2020
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.87.00    Driver Version: 418.87.00    CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-PCIE...  Off  | 00000000:3B:00.0 Off |                    0 |
| N/A   44C    P0    27W / 250W |      0MiB / 16130MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
|   1  Tesla V100-PCIE...  Off  | 00000000:AF:00.0 Off |                    2 |
| N/A   46C    P0    39W / 250W |  15871MiB / 16130MiB |     87%   E. Process |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    1     78799      C   python                                     15861MiB |
+-----------------------------------------------------------------------------+
WARNING: infoROM is corrupted at gpu 0000:AF:00.0
"""


def test_table_of_an_old_driver():
    table = _nvidia_smi.parse_table(OLD_TABLE)
    assert table.versions == _nvidia_smi.Versions("418.87.00", "418.87.00", "10.1")
    assert [(gpu.index, gpu.name, gpu.address, gpu.utilisation_pct, gpu.ecc, gpu.compute_mode, gpu.mig) for gpu in table.gpus] == [
        (0, "Tesla V100-PCIE...", "0000:3b:00.0", 0, "0", "Default", None),
        (1, "Tesla V100-PCIE...", "0000:af:00.0", 87, "2", "E. Process", None),
    ]
    (process,) = table.processes
    assert (process.gpu, process.gi, process.pid, process.kind, process.name, process.memory_mib) == (1, None, 78799, "C", "python", 15861)


def test_table_of_an_ill_card():
    text = capture("nvidia-smi__590.48.01__1x-h200__idle.txt")
    text = text.replace("| N/A   28C    P0             77W /  700W |", "| ERR!  ERR! ERR!            N/A /  N/A   |")
    text = text.replace("0MiB / 143771MiB |      0%      Default", "Unknown Error    |     ERR!     Default")
    (gpu,) = _nvidia_smi.parse_table(text).gpus
    assert (gpu.index, gpu.fan_pct, gpu.temperature_c, gpu.power_w, gpu.power_limit_w) == (0, None, None, None, None)
    assert (gpu.memory_used_mib, gpu.memory_total_mib, gpu.utilisation_pct) == (None, None, None)


def damage(name, old, new):
    text = capture(name)
    assert old in text
    return text.replace(old, new, 1)


MIG_TABLE = "nvidia-smi__590.48.01__1x-h100-mig__load.txt"
NO_MIG_ROWS = "|  0    2   0   0  |           11091MiB / 40448MiB    | 60      0 |  3   0    3    0    3 |\n"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Memory-Usage | GPU-Util", "Storage      | GPU-Util", "the header lacks Memory-Usage"),
        ("| GPU  Name ", "| GPU  Card ", "line 5, the header lacks GPU Name: '| GPU  Card "),
        ("11125MiB /  81559MiB", "11125MiB /  81559KiB", "line 10, '11125MiB /  81559KiB' does not fit its header: '| N/A   52C "),
        ("11091MiB / 40448MiB", "11091MiB / N/A     ", "does not fit its header"),
        ("Driver Version: 590.48.01", "Driver Version: 590.48.0 ", "does not fit its header"),
        ("| GPU  GI  CI  MIG |", "| GPU  CI  GI  MIG |", "a MIG header that is not known"),
        (NO_MIG_ROWS, "", "not the two rows of a MIG device"),
        ("|  0    3   0   1  |", "|  0    2   0   1  |", "one that stands twice"),
        ("|  0    3   0   1  |", "|  0    3   0   0  |", "one that stands twice"),
        ("|    0    2    0            21198", "|    0    7    0            21198", "process 21198 is on a card that is not in the table"),
        ("|    0    2    0            21198", "|    1    2    0            21198", "process 21198 is on a card that is not in the table"),
        ("| Processes:", "| Programs: ", "a box that is not known"),
        ("| MIG devices:", "| Processes:  ", "a list of processes without an end"),
        ("|                                         |                        |              Enabled |\n", "", "not as many rows and cells"),
        ("81559MiB |     N/A ", "81559MiB       N/A ", "line 9, not as many rows and cells as the header: '|   0  NVIDIA H100"),
        ("7484MiB |", "7484MiB  ", "no row of a table"),
    ],
)
def test_table_that_is_not_understood(old, new, words):
    with pytest.raises(UnknownOutput) as caught:
        _nvidia_smi.parse_table(damage(MIG_TABLE, old, new))
    assert words in str(caught.value)


def test_text_before_the_table():
    with pytest.raises(UnknownOutput, match="line 1, no row of a table: 'hello'"):
        _nvidia_smi.parse_table("hello\n" + capture(MIG_TABLE))
    with pytest.raises(UnknownOutput, match="the first box is no box of cards"):
        _nvidia_smi.parse_table(capture(MIG_TABLE).split("\n\n")[2])


@pytest.mark.parametrize("name", DATA)
def test_text_that_lacks_its_last_newline(name):
    with pytest.raises(UnknownOutput, match="the output ends in the middle of a line"):
        parser(name)(capture(name)[:-1])


def test_table_without_one_of_its_lists():
    text = capture(MIG_TABLE)
    boxes = text.split("\n\n")
    with pytest.raises(UnknownOutput, match="the list of MIG devices is missing"):
        _nvidia_smi.parse_table("\n\n".join([boxes[0], boxes[2]]))
    with pytest.raises(UnknownOutput, match="a box that is not known, or stands twice"):
        _nvidia_smi.parse_table("\n\n".join([*boxes, boxes[2]]))
    with pytest.raises(UnknownOutput, match="the list of processes is missing"):
        _nvidia_smi.parse_table("\n\n".join(boxes[:2]) + "\n")
    start = text.index(NO_MIG_ROWS)
    end = text.index("\n\n", start)
    none = "|  No MIG devices found                                                                   |\n+---------+"
    table = _nvidia_smi.parse_table(
        text[:start] + none + text[end:].split("|    0    2    0 ")[0] + "|  No running processes found |\n+---+\n"
    )
    assert (table.mig, table.processes, table.gpus[0].mig) == ([], [], True)


# -q and topo -m

LOG = "nvidia-smi-q__590.48.01__1x-h200__idle.txt"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Attached GPUs                                          : 1", "Attached GPUs : 2", "1 cards, 2 attached"),
        ("    Minor Number                                       : 0\n", "", "has no Minor Number"),
        ("Minor Number                                       : 0", "Minor Number : zero", "minor 'zero'"),
        ("GPU UUID                                           : GPU-0", "GPU UUID : GPU0", "uuid 'GPU0"),
        (
            "        Bus Id                                         : 00000000:83",
            "        Bus Id : 00000000:84",
            "bus id '00000000:84:00.0'",
        ),
        ("CUDA Version                                           : 13.1", "CUDA Version : 13", "CUDA '13'"),
        ("Driver Version                                         : 590.48.01\n", "", "driver ''"),
        (
            "Driver Version                                         : 590.48.01",
            "Driver Version : 590.48",
            "590.48 is cut, the firmware is 590.48.01",
        ),
        ("GPU 00000000:83:00.0\n", "GPU somewhere\n", "line 8, neither a value of the host nor one of a card"),
        ("GPU 00000000:83:00.0\n", "", "line 8, neither a value of the host nor one of a card"),
        ("    Product Brand                                      : NVIDIA", "Brand : x", "neither a value of the host nor one of a card"),
    ],
)
def test_query_log_that_is_not_understood(old, new, words):
    with pytest.raises(UnknownOutput) as caught:
        _nvidia_smi.parse_query_log(damage(LOG, old, new))
    assert words in str(caught.value)


def test_query_log_in_the_words_of_driver_610():
    text = damage(LOG, "Driver Version  ", "KMD Version     ").replace("CUDA Version    ", "CUDA UMD Version", 1)
    assert plain(_nvidia_smi.parse_query_log(text)) == EXPECTED[LOG]


MATRIX = "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n{0}\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
ROWS = [
    "GPU0\t X \tNV12\tSYS\tPXB\t0-31\t0\t\tN/A",
    "GPU1\tNV12\t X \tPIX\tSYS\t0-31\t0\t\tN/A",
    "GPU2\tSYS\tPIX\t X \tNODE\t32-63\t1\t\tN/A",
    "NIC0\tPXB\tSYS\tNODE\t X \t\t\t\t",
]


def topology(rows):
    return _nvidia_smi.parse_topology(MATRIX.format("\n".join(rows) + "\n"))


def test_topology():
    assert topology(ROWS) == {0: {1: "NV12", 2: "SYS"}, 1: {0: "NV12", 2: "PIX"}, 2: {0: "SYS", 1: "PIX"}}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (ROWS[:2] + ROWS[3:], "rows GPU0, GPU1, NIC0, columns"),
        (ROWS[:3] + [ROWS[0]], "line 5, no row of the matrix"),
        ([ROWS[0].replace("NV12", "NV6")] + ROWS[1:], "GPU0 and GPU1 do not agree"),
        ([ROWS[0].replace("NV12", "NVX")] + ROWS[1:], "'NVX' is no connection"),
        ([ROWS[0].replace("SYS", " X ")] + ROWS[1:], "'X' is no connection"),
        (["GPU0\t X \tNV12"] + ROWS[1:], "line 2, no row of the matrix"),
        (ROWS + ["GPU9\t X \tNV12\tSYS\tPXB\t0-31\t0\t\tN/A"], "line 6, no row of the matrix"),
    ],
)
def test_topology_that_is_not_understood(rows, words):
    with pytest.raises(UnknownOutput) as caught:
        topology(rows)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "GPU0\n", "\tCPU Affinity\n"])
def test_topology_without_a_matrix(text):
    with pytest.raises(UnknownOutput):
        _nvidia_smi.parse_topology(text)


@pytest.mark.parametrize("parse", PARSERS.values())
def test_text_that_was_cut_or_is_none(parse):
    for text in ("GPU 0: NVIDIA", "x\x00y\n", "caf\ufffd\n", ""):
        with pytest.raises(LLMError):
            parse(text)
