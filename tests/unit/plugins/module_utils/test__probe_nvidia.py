# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Played hosts with NVIDIA GPUs: every machine that was captured, eight-card hosts, and what can go wrong with them."""

from __future__ import annotations

import pytest
from unit.plugins.played import nvidia as played
from unit.plugins.played.nvidia import ADDRESSES, MINORS, Answer, Function, Quick, asked, capture, lose, play, recorded, several, uuid

from ansible_collections.ironserve.llm.plugins.module_utils import _probe_nvidia
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Card, Holder, preflight
from ansible_collections.ironserve.llm.plugins.module_utils._checks import all_good
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.modules import accelerator_info


@pytest.fixture
def probe(tmp_path):
    """Probe a played host whose tool answers at once."""
    return lambda host: _probe_nvidia.probe(Quick(play(tmp_path, host), host))


@pytest.fixture
def run(tmp_path):
    """Probe a played host whose tool is run."""
    return lambda host, **more: _probe_nvidia.probe(play(tmp_path, host, **more))


def check(found, name):
    """The one check of this name; None where there is none."""
    checks = [item for item in found.checks if item.name == name]
    assert len(checks) <= 1
    return checks[0] if checks else None


def bad(found):
    return sorted(item.name for item in found.checks if not item.good)


def h200(**more):
    fixed = {
        "id": "0000:83:00.0",
        "index": 0,
        "name": "H200",
        "name_raw": "NVIDIA H200",
        "architecture": "sm_90",
        "memory_total_mib": 143771,
        "health": "ok",
        "devices": {"nvidia": "/dev/nvidia0"},
        "numa_node": 1,
        "physical_id": 0,
        "logical_id": 0,
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    }
    return Card(**dict(fixed, **more))


def mig(number, profile, total, used, kind="h200", holders=()):
    common = {
        "h200": {"temperature_c": 28},
        "h200 under load": {"temperature_c": 36},
        "h100": {"temperature_c": 42, "devices": {"nvidia": "/dev/nvidia3"}, "numa_node": None, "physical_id": 3},
    }[kind]
    name = "H100 80GB HBM3" if kind == "h100" else "H200"
    return h200(
        id="MIG-{0:08d}-0000-0000-0000-{0:012d}".format(number),
        index=100 + number,
        name="{0} MIG {1}".format(name, profile),
        name_raw="NVIDIA {0} MIG {1}".format(name, profile),
        memory_total_mib=total,
        memory_used_mib=used,
        holders=list(holders),
        uuid="MIG-{0:08d}-0000-0000-0000-{0:012d}".format(number),
        **common,
    )


L40S = {"id": "0000:01:00.0", "name": "L40S", "name_raw": "NVIDIA L40S", "architecture": "sm_89", "memory_total_mib": 46068, "numa_node": 0}
RTX = {
    "id": "0000:0c:00.0",
    "name": "GeForce RTX 2080 SUPER",
    "name_raw": "NVIDIA GeForce RTX 2080 SUPER",
    "architecture": "sm_75",
    "memory_total_mib": 8192,
    "numa_node": 0,
}
LOADED_MIG = [
    Holder(12249, "", "/root/tools/memhog", 2194),
    Holder(12250, "", "/root/tools/memhog", 1170),
    Holder(12267, "", "./gpu_burn", 13526),
]

MACHINES = {
    ("590.48.01__1x-h200", "idle"): [h200(memory_used_mib=0, utilisation_pct=0, temperature_c=28, power_w=77.71)],
    ("590.48.01__1x-h200", "load"): [
        h200(
            memory_used_mib=32362,
            utilisation_pct=100,
            temperature_c=52,
            power_w=627.4,
            holders=[
                Holder(10291, "", "/root/tools/memhog", 2566),
                Holder(10293, "", "/root/tools/memhog", 1542),
                Holder(10309, "", "./gpu_burn", 28234),
            ],
        )
    ],
    ("590.48.01__1x-h200-mig", "idle"): [
        mig(0, "1c.3g.71gb", 71424, 22),
        mig(1, "2c.3g.71gb", 71424, 22),
        mig(2, "2g.35gb", 33280, 17),
        mig(3, "1g.18gb", 16384, 9),
        mig(4, "1g.18gb", 16384, 9),
    ],
    ("590.48.01__1x-h200-mig", "load"): [
        mig(0, "1c.3g.71gb", 71424, 16925, "h200 under load"),
        mig(1, "2c.3g.71gb", 71424, 16925, "h200 under load", LOADED_MIG),
        mig(2, "2g.35gb", 33280, 17, "h200 under load"),
        mig(3, "1g.18gb", 16384, 9, "h200 under load"),
        mig(4, "1g.18gb", 16384, 9, "h200 under load"),
    ],
    ("590.48.01__1x-h100-mig", "idle"): [
        mig(0, "3g.40gb", 40448, 26, "h100"),
        mig(1, "2g.20gb", 20096, 17, "h100"),
        mig(2, "1g.10gb", 9984, 9, "h100"),
        mig(3, "1g.10gb", 9984, 9, "h100"),
    ],
    # 100 % of nothing: not believed.
    ("595.80__1x-l40s", "idle"): [h200(**L40S, memory_used_mib=0, utilisation_pct=None, temperature_c=63, power_w=144.97)],
    ("595.80__1x-l40s", "load"): [
        h200(
            **L40S,
            memory_used_mib=1235,
            utilisation_pct=9,
            temperature_c=54,
            power_w=110.23,
            holders=[Holder(20037, "", "ffmpeg", 538), Holder(20038, "", "ffmpeg", 681)],
        )
    ],
    ("610.57.04__1x-rtx2080s", "idle"): [h200(**RTX, memory_used_mib=211, utilisation_pct=0, temperature_c=33, power_w=39.17)],
    ("610.57.04__1x-rtx2080s", "load"): [
        h200(
            **RTX,
            memory_used_mib=815,
            utilisation_pct=8,
            temperature_c=38,
            power_w=98.14,
            holders=[Holder(28512, "", "ffmpeg", 370), Holder(28511, "", "ffmpeg", 230)],
        )
    ],
}
VERSIONS = {"590": ("590.48.01", "13.1", "590.48.01"), "595": ("595.80", "13.2", "595.80"), "610": ("610.57.04", "13.3", None)}


@pytest.mark.parametrize(("machine", "load"), MACHINES)
def test_machine_that_was_captured(run, machine, load):
    found = run(recorded(machine, load))
    assert found.cards == MACHINES[machine, load]
    driver, cuda, firmware = VERSIONS[machine[:3]]
    assert (found.driver_version, found.tool_version, found.runtime_version) == (driver, driver, cuda)
    assert (found.firmware_version, found.driver_live) == (firmware, True)
    assert (found.probe, found.tool) == ("nvidia", "/usr/bin/nvidia-smi " + driver)
    # Two compute instances of the H200 share memory.
    assert bad(found) == (["mig_memory"] if "h200-mig" in machine else [])
    assert check(found, "driver_live").detail == "module nvidia {0} is live".format(driver)
    assert check(found, "versions").status == "pass"
    assert check(found, "card_list").detail == "1 cards, the same in nvidia-smi, its -L and on the PCI bus"


def test_every_captured_machine_is_played():
    names = {path.name.split("__", 1)[1] for path in played.FIXTURES.glob("nvidia-smi-query-gpu__*columns-cut.csv")}
    assert {"{0}__{1}__columns-cut.csv".format(*key) for key in MACHINES} == names


def test_every_column_of_the_driver(probe):
    host = recorded("590.48.01__1x-h200")
    host.answers["query"].out = capture("nvidia-smi-query-gpu__590.48.01__1x-h200__idle__all-columns.csv")
    assert probe(host).cards == MACHINES["590.48.01__1x-h200", "idle"]


def test_eight_cards(run, tmp_path):
    found = run(several())
    assert bad(found) == []
    assert [card.id for card in found.cards] == ADDRESSES
    assert [card.index for card in found.cards] == list(range(8)) == [card.logical_id for card in found.cards]
    # The node is found by address, not by index.
    assert [card.devices for card in found.cards] == [{"nvidia": "/dev/nvidia{0}".format(minor)} for minor in MINORS]
    assert [card.physical_id for card in found.cards] == MINORS
    assert [card.numa_node for card in found.cards] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [[holder.pid for holder in card.holders] for card in found.cards] == [
        [10000 * (index + 1) + rest for rest in (291, 293, 309)] for index in range(8)
    ]
    assert {card.link for card in found.cards} == {"up"}
    assert found.cards[2].link_detail == "NV18 to 0 1 3 4 5 6 7"
    assert all_good(preflight(found, 8, 143771, {}))


def test_only_questions_are_asked(run, tmp_path):
    run(several(2))
    words = [line.split(" ")[0].split("=")[0] for line in asked(tmp_path)]
    assert words == ["-L", "--query-gpu", "--query-compute-apps", "--version", "topo"]
    assert [line for line in asked(tmp_path) if "query" in line] == [
        "--query-gpu={0} --format=csv".format(",".join(_probe_nvidia.FIELD_SETS[0])),
        "--query-compute-apps=gpu_uuid,gpu_bus_id,pid,used_gpu_memory,process_name --format=csv",
    ]


def test_module_knows_the_probe():
    assert accelerator_info.shipped_probe("nvidia") is _probe_nvidia.probe


# Lost and ill cards


@pytest.mark.parametrize("rc", [0, 15, 255])
@pytest.mark.parametrize("stream", ["out", "err"])
@pytest.mark.parametrize(
    "message",
    [
        "Unable to determine the device handle for GPU3: 0000:5D:00.0: Unknown Error",
        "Unable to determine the device handle for GPU 0000:5D:00.0: Unknown Error",
        "Unable to determine the device handle for gpu 0000:5D:00.0: Unknown Error",
        "Unable to determine the device handle for GPU0000:5D:00.0: Unknown Error",
        "Unable to determine the device handle for GPU3: Unknown Error",
    ],
)
def test_lost_card_stays_in_the_list(probe, rc, stream, message):
    host = several()
    lose(host, 3, message + "\n")
    for name in ("query", "list", "apps"):
        host.answers[name].rc = rc
        if stream == "out":
            host.answers[name].out = message + "\n" + host.answers[name].out
            host.answers[name].err = ""
    found = probe(host)
    assert [card.id for card in found.cards] == ADDRESSES
    assert [card.index for card in found.cards] == list(range(8))
    lost = found.cards[3]
    assert (lost.health, lost.health_detail) == ("fault", "cannot be opened: Unknown Error")
    assert (lost.name, lost.memory_total_mib, lost.memory_used_mib) == ("H200", None, None)
    assert (lost.utilisation_pct, lost.temperature_c, lost.power_w, lost.holders) == (None, None, None, [])
    assert lost.devices == {"nvidia": "/dev/nvidia0"}
    assert {card.health for card in found.cards if card is not lost} == {"ok"}
    assert bad(found) == ["lost_card"]
    assert check(found, "lost_card").detail == (
        "GPU 3 (0000:5d:00.0) cannot be opened: Unknown Error; new CUDA processes fail on the healthy GPUs of this host too"
    )
    assert check(found, "card_list").status == "pass"
    assert "card_memory" in [item.name for item in preflight(found, 8, 0, {}) if not item.good]


@pytest.mark.parametrize("index", [0, 7])
def test_lost_card_at_the_ends_gets_its_number_by_its_place(probe, index):
    host = several()
    address = lose(host, index, "Unable to determine the device handle for GPU {0}: Unknown Error\n".format(ADDRESSES[index]))
    assert address == ADDRESSES[index]
    found = probe(host)
    assert [(card.index, card.id) for card in found.cards] == list(enumerate(ADDRESSES))
    assert found.cards[index].health == "fault"


@pytest.mark.parametrize("order", [(2, 5), (5, 2)])
def test_two_lost_cards(probe, order):
    host = several()
    lose(host, 2, "")
    message = "".join("Unable to determine the device handle for GPU {0}: Unknown Error\n".format(ADDRESSES[index]) for index in order)
    lose(host, 5, message)
    found = probe(host)
    assert [(card.index, card.id) for card in found.cards] == list(enumerate(ADDRESSES))
    assert [card.index for card in found.cards if card.health == "fault"] == [2, 5]


def test_lost_cards_that_are_only_numbered_have_no_address_made_up(probe):
    host = several()
    lose(host, 2, "")
    lose(host, 5, "".join("Unable to determine the device handle for GPU{0}: Unknown Error\n".format(index) for index in (2, 5)))
    found = probe(host)
    assert [found.cards[2].id, found.cards[5].id] == ["nvidia:2", "nvidia:5"]
    assert found.cards[2].devices == {}
    assert bad(found) == ["card_list", "lost_card"]
    assert "0000:3a:00.0 is on the PCI bus (driver nvidia) and not in nvidia-smi" in check(found, "card_list").detail


def test_the_only_card_is_lost(run):
    host = recorded("590.48.01__1x-h200")
    for name in ("list", "query", "apps"):
        host.answers[name] = Answer("", "Unable to determine the device handle for GPU0000:83:00.0: Unknown Error\n", 255)
    (card,) = run(host).cards
    assert (card.id, card.index, card.name, card.architecture, card.health) == ("0000:83:00.0", 0, "H200", "sm_90", "fault")


def test_list_that_still_has_the_lost_card(probe):
    host = several()
    listing = host.answers["list"].out
    lose(host, 3, "Unable to determine the device handle for GPU3: Unknown Error\n")
    host.answers["list"] = Answer(listing)
    found = probe(host)
    assert [card.id for card in found.cards] == ADDRESSES
    assert found.cards[3].health == "fault"
    assert bad(found) == ["lost_card"]


def test_card_that_is_lost_between_two_calls_is_a_fault_though_it_has_its_row(probe):
    host = several()
    host.answers["apps"].err = "Unable to determine the device handle for GPU3: 0000:5D:00.0: GPU is lost\n"
    found = probe(host)
    assert [card.index for card in found.cards if card.health == "fault"] == [3]
    assert found.cards[3].memory_total_mib == 143771
    assert len(found.cards) == 8
    assert bad(found) == ["lost_card"]


def test_lost_card_whose_number_another_has_got_takes_a_free_one(probe):
    host = several()
    lose(host, 3, "Unable to determine the device handle for GPU3: 0000:5D:00.0: Unknown Error\n")
    for index in range(4, 8):
        host.edit("query", "\n8, {0}, ".format(index), "\n8, {0}, ".format(index - 1))
        host.edit("list", "GPU {0}: ".format(index), "GPU {0}: ".format(index - 1))
    found = probe(host)
    assert [(card.index, card.id) for card in found.cards if card.health == "fault"] == [(7, "0000:5d:00.0")]
    assert sorted(card.id for card in found.cards) == ADDRESSES
    assert [card.index for card in found.cards] == list(range(8))
    assert bad(found) == ["lost_card"]


@pytest.mark.parametrize(
    ("word", "health", "failed"),
    [
        ("[GPU is lost]", "fault", ["lost_card"]),
        ("[GPU requires reset]", "fault", []),
        ("[Unknown Error]", "unknown", []),
        ("[Something new]", "unknown", []),
    ],
)
def test_row_of_placeholders(probe, word, health, failed):
    host = several()
    lines = host.answers["query"].out.splitlines()
    cells = lines[4].split(", ")
    assert cells[1] == "3"
    kept = [cell if place in (0, 1, 2, 3, 4, 5) else word for place, cell in enumerate(cells)]
    lines[4] = ", ".join(kept)
    host.answers["query"].out = "\n".join(lines) + "\n"
    found = probe(host)
    ill = found.cards[3]
    assert (ill.id, ill.health, ill.memory_total_mib, ill.utilisation_pct, ill.power_w) == (ADDRESSES[3], health, None, None, None)
    assert word in ill.health_detail
    assert ill.architecture == "sm_90", "by the product's name"
    assert bad(found) == failed
    assert {card.health for card in found.cards if card is not ill} == {"ok"}


def test_row_that_hides_even_its_address_is_found_by_its_uuid(probe):
    host = several()
    lines = host.answers["query"].out.splitlines()
    lines[4] = ", ".join(["8", "3"] + ["[GPU is lost]"] * (len(lines[4].split(", ")) - 2))
    host.answers["query"].out = "\n".join(lines) + "\n"
    found = probe(host)
    assert [card.id for card in found.cards] == ADDRESSES
    assert (found.cards[3].name, found.cards[3].devices, found.cards[3].health) == ("H200", {"nvidia": "/dev/nvidia0"}, "fault")


def test_infoROM_after_a_good_table(run):
    host = several()
    for name in ("query", "list", "apps", "topology"):
        host.answers[name].out += "WARNING: infoROM is corrupted at gpu 0000:9A:00.0\n"
        host.answers[name].rc = 14
    found = run(host)
    assert [card.id for card in found.cards] == ADDRESSES
    assert [(card.index, card.health_detail) for card in found.cards if card.health == "warning"] == [(4, "its infoROM is corrupted")]
    assert bad(found) == []
    assert (check(found, "inforom").status, check(found, "inforom").detail) == (
        "warn",
        "corrupted on 0000:9a:00.0; it computes, have it looked at",
    )
    assert all_good(preflight(found, 8, 143771, {}))


def test_status_14_and_15_without_a_word(probe):
    host = several(2)
    host.answers["list"].rc = 14
    assert check(probe(host), "inforom").detail.startswith("corrupted on a card that is not named")


def test_status_15_alone_is_a_lost_card(probe):
    host = several(2)
    host.answers["query"].rc = 15
    found = probe(host)
    assert len(found.cards) == 2
    assert "status 15: a GPU fell off the bus; new CUDA processes fail" in check(found, "lost_card").detail
    assert bad(found) == ["lost_card"]


def test_process_on_a_lost_card_is_its_holder(probe):
    host = several(8)
    apps = host.answers["apps"].out
    lose(host, 3, "Unable to determine the device handle for GPU3: 0000:5D:00.0: Unknown Error\n")
    host.answers["apps"].out = apps
    found = probe(host)
    assert [holder.pid for holder in found.cards[3].holders] == [40291, 40293, 40309]


# A tool that fails


@pytest.mark.parametrize(
    ("name", "rc", "words"),
    [
        ("driver-not-loaded__error__exit-9", 9, "status 9 and said .*couldn't communicate.*load the module nvidia"),
        ("no-devices__error__exit-6", 6, "status 6 and said 'No devices were found': the driver runs and has no GPU"),
        ("driver-library-mismatch__error", 18, r"mismatch' \(library 580.159\).*reload the module or reboot.*kernel module: 580.95.05"),
        ("in-container-nvml-unknown-error", 255, "make the container anew"),
    ],
)
@pytest.mark.parametrize("said", ["list", "query", "apps", "version"])
@pytest.mark.parametrize("lie", [False, True])
def test_failure_is_named_and_is_no_empty_list(probe, name, rc, words, said, lie):
    host = several(2)
    host.module = "580.95.05"
    host.answers[said] = Answer(capture("nvidia-smi__{0}.txt".format(name)), rc=0 if lie else rc)
    with pytest.raises(LLMError, match="/usr/bin/nvidia-smi .*" + (words.replace("status {0} ".format(rc), "status 0 ") if lie else words)):
        probe(host)


def test_library_that_is_missing(run):
    host = several(2)
    host.answers["list"] = Answer(rc=12, err="NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n")
    with pytest.raises(LLMError, match=r"-L ended with status 12 and said .NVIDIA-SMI couldn't find .*libnvidia-ml.so.1 is not found"):
        run(host)


@pytest.mark.parametrize("said", ["list", "query", "apps", "version"])
def test_tool_that_hangs(run, said):
    host = recorded("590.48.01__1x-h200")
    host.answers[said].hang = True
    with pytest.raises(LLMError, match="no end after 1 s; it hangs"):
        run(host, timeout_s=1)


def test_tool_that_is_missing(probe, tmp_path):
    vendor = play(tmp_path, several(1))
    (tmp_path / "usr/bin/nvidia-smi").unlink()
    with pytest.raises(LLMError, match="nvidia-smi: not found .looked for /usr/bin/nvidia-smi, /usr/local/bin/nvidia-smi"):
        _probe_nvidia.probe(vendor)


@pytest.mark.parametrize("said", ["list", "query", "apps", "version"])
@pytest.mark.parametrize("text", ["", "Segmentation fault\n"])
def test_words_that_nobody_knows(probe, said, text):
    host = several(2)
    host.answers[said] = Answer(text)
    with pytest.raises(UnknownOutput, match="nvidia-smi -"):
        probe(host)


def test_warnings_beside_a_good_table_are_told(probe):
    host = several(2)
    host.answers["list"].err = "ERROR: ld.so: object 'x.so' cannot be preloaded: ignored.\n"
    found = probe(host)
    assert (check(found, "tool_messages").status, bad(found)) == ("warn", [])
    assert "ld.so: object 'x.so'" in check(found, "tool_messages").detail


@pytest.mark.parametrize(
    ("unknown", "told", "architecture"),
    [
        (("gpu_recovery_action",), "gpu_recovery_action, fabric.state, fabric.status", "sm_90"),
        (
            ("fabric.state", "compute_cap"),
            "mig.mode.current, compute_cap, remapped_rows.pending, remapped_rows.failure, gpu_recovery",
            "sm_90",
        ),
    ],
)
def test_driver_that_does_not_know_a_field_is_asked_for_less(probe, unknown, told, architecture):
    host = several()
    host.unknown = unknown
    found = probe(host)
    assert [(card.id, card.health, card.architecture) for card in found.cards] == [(each, "ok", architecture) for each in ADDRESSES]
    assert check(found, "query").status == "warn"
    assert check(found, "query").detail.startswith("this driver does not know " + told)


def test_driver_that_does_not_even_know_the_old_fields(run):
    host = several(2)
    host.unknown = ("memory.total",)
    with pytest.raises(
        LLMError, match='status 2 and said .Field "memory.total" is not a valid field to query.*an argument that this version'
    ):
        run(host)


def test_column_that_was_asked_for_and_is_not_there(probe):
    host = several(2)
    # Without blanks the played tool picks no columns.
    host.answers["query"].out = host.answers["query"].out.replace(", ", ",")
    with pytest.raises(UnknownOutput, match="the header lacks compute_mode, retired_pages.pending, "):
        probe(host)


def test_tool_too_old_for_version(run):
    host = recorded("590.48.01__1x-h200")
    del host.answers["version"]
    found = run(host)
    assert (found.tool_version, found.driver_version, found.runtime_version) == ("590.48.01", "590.48.01", "13.1")


# The PCI bus and the second listing


def test_card_on_the_bus_that_the_tool_does_not_list(probe):
    host = several()
    lose(host, 3, "")
    host.edit("query", "\n8, ", "\n7, ")
    found = probe(host)
    assert [card.id for card in found.cards] == [each for each in ADDRESSES if each != "0000:5d:00.0"]
    assert bad(found) == ["card_list"]
    detail = check(found, "card_list").detail
    assert "0000:5d:00.0 is on the PCI bus (driver nvidia) and not in nvidia-smi" in detail
    assert "nvidia-smi: 0000:18:00.0, 0000:2a:00.0, 0000:3a:00.0, 0000:9a:00.0" in detail
    assert "PCI bus: " + ", ".join(ADDRESSES) in detail


@pytest.mark.parametrize("kind", ["0x030000", "0x030200", "0x0b4000", "0x120000", "0xff0000"])
@pytest.mark.parametrize("driver", ["", "nouveau"])
def test_no_list_of_classes_decides_what_a_card_is(probe, kind, driver):
    host = several(2)
    host.bus["0000:c1:00.0"] = Function(None, driver=driver, kind=kind)
    found = probe(host)
    assert bad(found) == ["card_list"]
    assert "0000:c1:00.0 is on the PCI bus (driver {0})".format(driver or "none") in check(found, "card_list").detail


def test_function_of_another_class_counts_where_the_driver_has_it(probe):
    host = several(2)
    host.bus["0000:c1:00.0"] = Function(None, driver="nvidia", kind="0x058000")
    assert bad(probe(host)) == ["card_list"]


@pytest.mark.parametrize(
    "function",
    [
        Function(None, driver="snd_hda_intel", kind="0x040300"),
        Function(None, driver="nvidia-nvswitch", kind="0x068000"),
        Function(None, driver="nvidia-gpu", kind="0x0c8000"),
        Function(None, driver="nvidia-vgpu-vfio", kind="0x030200", virtual=True),
    ],
)
def test_what_is_no_card_of_its_own(probe, function):
    host = several(2)
    host.bus["0000:c1:00.1"] = function
    assert bad(probe(host)) == []


def test_card_of_a_virtual_machine(probe):
    host = several()
    lose(host, 3, "")
    host.edit("query", "\n8, ", "\n7, ")
    host.bus["0000:5d:00.0"] = Function(None, driver="vfio-pci")
    found = probe(host)
    assert len(found.cards) == 7
    assert check(found, "card_list").detail == "7 cards, the same in nvidia-smi, its -L and on the PCI bus"
    assert bad(found) == []
    assert (check(found, "virtual_machine").status, check(found, "virtual_machine").detail) == (
        "warn",
        "owned by virtual machines (vfio-pci): 0000:5d:00.0",
    )


def test_card_of_the_tool_that_is_not_on_the_bus(probe):
    host = several()
    del host.bus["0000:5d:00.0"]
    found = probe(host)
    assert [card.id for card in found.cards] == ADDRESSES
    assert "0000:5d:00.0 is in nvidia-smi and not on the PCI bus" in check(found, "card_list").detail
    assert sorted(bad(found)) == ["card_list", "device_minor"]


def test_bus_without_any_card(probe):
    host = several(2)
    host.bus = {}
    found = probe(host)
    assert len(found.cards) == 2
    assert "PCI bus: none" in check(found, "card_list").detail


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("list", "GPU 3: NVIDIA H200 (UUID: {0})\n".format(uuid(3)), "", "GPU 3 (0000:5d:00.0) is in the query and not in -L"),
        ("list", uuid(3), uuid(13), "GPU 3 is NVIDIA H200 {0} in the query and NVIDIA H200 {1} in -L".format(uuid(3), uuid(13))),
        ("list", "GPU 3: NVIDIA H200", "GPU 3: NVIDIA H20", "in the query and NVIDIA H20 "),
        ("query", "8, 3, ", "9, 3, ", "the tool counts 8, 9 GPUs and lists 8"),
    ],
)
def test_listings_that_differ(probe, name, old, new, words):
    host = several()
    host.edit(name, old, new)
    found = probe(host)
    assert len(found.cards) == 8
    if name == "query":
        assert bad(found) == [], "one count that fits is enough"
    else:
        assert bad(found) == ["card_list"]
        assert words in check(found, "card_list").detail


def test_count_of_the_tool_that_no_row_fits(probe):
    host = several()
    host.edit("query", "\n8, ", "\n9, ")
    assert "the tool counts 9 GPUs and lists 8" in check(probe(host), "card_list").detail


def test_row_that_is_missing_from_the_query_alone(probe):
    host = several()
    lines = host.answers["query"].out.splitlines()
    del lines[4]
    host.answers["query"].out = "\n".join(lines) + "\n"
    host.answers["apps"].out = "\n".join(line for line in host.answers["apps"].out.splitlines() if uuid(3) not in line) + "\n"
    found = probe(host)
    detail = check(found, "card_list").detail
    assert "GPU 3 ({0}) is in -L and not in the query".format(uuid(3)) in detail
    assert "the tool counts 8 GPUs and lists 7" in detail
    assert "0000:5d:00.0 is on the PCI bus" in detail


# Processes


def test_process_on_a_card_that_nobody_listed(probe):
    host = several(2)
    host.edit("apps", "00000000:18:00.0", "00000000:C1:00.0", 1)
    with pytest.raises(UnknownOutput, match="process 10291 holds GPU-.* 0000:c1:00.0, which nvidia-smi does not list"):
        probe(host)


def test_memory_that_no_process_explains(probe):
    host = several()
    host.answers["apps"].out = "\n".join(line for line in host.answers["apps"].out.splitlines() if uuid(3) not in line) + "\n"
    found = probe(host)
    assert found.cards[3].holders == []
    hidden = check(found, "hidden_holders")
    assert hidden.status == "warn"
    assert hidden.detail.startswith("0000:5d:00.0 has 32362 MiB in use that no process explains")


def test_process_whose_memory_is_hidden_explains_any(probe):
    host = several(2)
    host.edit("apps", "28234 MiB", "[N/A]")
    found = probe(host)
    assert check(found, "hidden_holders") is None
    assert found.cards[0].holders[2] == Holder(10309, "", "./gpu_burn", None)


# MIG


def with_parts(host):
    host.capabilities = {"gpu3/mig/gi2": 21, "gpu3/mig/gi2/ci0": 22, "gpu3/mig/gi3": 30, "gpu3/mig/gi3/ci0": 31}
    return host


def test_nodes_of_mig_devices(probe):
    found = probe(with_parts(recorded("590.48.01__1x-h100-mig")))
    assert [card.devices for card in found.cards] == [
        {"nvidia": "/dev/nvidia3", "mig_gi": "/dev/nvidia-caps/nvidia-cap21", "mig_ci": "/dev/nvidia-caps/nvidia-cap22"},
        {"nvidia": "/dev/nvidia3", "mig_gi": "/dev/nvidia-caps/nvidia-cap30", "mig_ci": "/dev/nvidia-caps/nvidia-cap31"},
        {"nvidia": "/dev/nvidia3"},
        {"nvidia": "/dev/nvidia3"},
    ]


def test_node_of_a_mig_device_that_was_not_made_is_not_promised(probe, tmp_path):
    vendor = play(tmp_path, with_parts(recorded("590.48.01__1x-h100-mig")))
    (tmp_path / "dev/nvidia-caps/nvidia-cap22").unlink()
    assert _probe_nvidia.probe(vendor).cards[0].devices == {"nvidia": "/dev/nvidia3", "mig_gi": "/dev/nvidia-caps/nvidia-cap21"}


def test_mig_on_and_no_mig_device_runs_nothing(probe):
    host = recorded("590.48.01__1x-h100-mig")
    host.answers["list"].out = host.answers["list"].out.splitlines()[0] + "\n"
    host.answers["apps"].out = capture("nvidia-smi-query-compute-apps__590.48.01__1x-h100-mig__load.csv")
    found = probe(host)
    (card,) = found.cards
    assert [holder.pid for holder in card.holders] == [21180, 21181, 21198]
    assert (card.id, card.index, card.health, card.health_detail) == (
        "0000:00:09.0",
        0,
        "fault",
        "MIG is on and no MIG device is made",
    )
    assert bad(found) == ["mig"]


@pytest.mark.parametrize("name", ["list", "table"])
def test_mig_devices_that_cannot_be_told_leave_the_gpu_one_card(probe, name):
    host = recorded("590.48.01__1x-h100-mig")
    lines = host.answers[name].out.splitlines(True)
    if name == "list":
        del lines[2]
    else:
        first = next(number for number, line in enumerate(lines) if line.startswith("|  0    3   0   1  |"))
        del lines[first : first + 3]
    host.answers[name].out = "".join(lines)
    found = probe(host)
    (card,) = found.cards
    assert (card.id, card.index, card.health, card.memory_total_mib) == ("0000:00:09.0", 0, "unknown", 81559)
    assert card.health_detail == "its MIG devices cannot be told"
    listed, table = ("0, 2, 3", "0, 1, 2, 3") if name == "list" else ("0, 1, 2, 3", "0, 2, 3")
    assert check(found, "mig").detail == "GPU 0 has the MIG devices {0} in -L and {1} in the table".format(listed, table)
    assert bad(found) == ["mig"]


def test_mig_devices_of_a_sick_gpu_are_sick(probe):
    host = recorded("590.48.01__1x-h100-mig")
    host.edit("query", "Enabled, Enabled, None", "Enabled, Enabled, Reset")
    assert [card.health for card in probe(host).cards] == ["fault"] * 4


def test_process_of_which_the_mig_device_is_not_told(probe):
    host = recorded("590.48.01__1x-h200-mig", "load")
    lines = [line for line in host.answers["table"].out.splitlines() if " 12250 " not in line]
    host.answers["table"].out = "\n".join(lines) + "\n"
    found = probe(host)
    assert [holder.pid for holder in found.cards[1].holders] == [12249, 12267]
    assert check(found, "mig_holders").detail == "GPU 0: on which MIG device is process 12250 is not told"


@pytest.mark.parametrize("name", [played.MASKED, "MIG-00000001-0000-0000-0000-000000000001"])
def test_process_that_is_named_by_a_uuid_alone(probe, name):
    host = recorded("590.48.01__1x-h200-mig", "load")
    host.edit("apps", "00000000:83:00.0", "[N/A]")
    host.edit("apps", played.MASKED, name)
    assert probe(host).cards == MACHINES["590.48.01__1x-h200-mig", "load"]


def mixed():
    """Two H200, the second without MIG."""
    host = recorded("590.48.01__1x-h200-mig", "load")
    plain = recorded("590.48.01__1x-h200", "load")
    for name in ("query", "apps", "list"):
        more = plain.answers[name].out.replace(played.MASKED, uuid(1)).replace("00000000:83:00.0", "00000000:C1:00.0")
        more = more.replace("GPU 0:", "GPU 1:").replace("\n0, ", "\n1, ")
        host.answers[name].out += more if name == "list" else more.split("\n", 1)[1]
    block = plain.answers["table"].out.splitlines()[8:12]
    block[0] = block[0].replace("|   0  ", "|   1  ").replace("00000000:83:00.0", "00000000:C1:00.0")
    lines = host.answers["table"].out.splitlines()
    lines[12:12] = block
    host.answers["table"].out = "\n".join(lines) + "\n"
    host.answers["topology"] = several(2).answers["topology"]
    host.bus["0000:c1:00.0"] = Function(1, uuid(1))
    return host


def test_gpu_beside_one_with_mig_keeps_its_number(probe):
    found = probe(mixed())
    assert [(card.index, card.name) for card in found.cards] == [
        (1, "H200"),
        (100, "H200 MIG 1c.3g.71gb"),
        (101, "H200 MIG 2c.3g.71gb"),
        (102, "H200 MIG 2g.35gb"),
        (103, "H200 MIG 1g.18gb"),
        (104, "H200 MIG 1g.18gb"),
    ]
    assert [[holder.pid for holder in card.holders] for card in found.cards] == [
        [10291, 10293, 10309],
        [],
        [12249, 12250, 12267],
        [],
        [],
        [],
    ]
    assert [card.logical_id for card in found.cards] == [1, 0, 0, 0, 0, 0]
    assert [card.physical_id for card in found.cards] == [1, 0, 0, 0, 0, 0]
    assert bad(found) == ["mig_memory"]


# Driver, versions, nodes, links


def test_driver_that_the_kernel_does_not_show(probe):
    host = several(2)
    host.module = ""
    found = probe(host)
    assert found.driver_live is False
    assert bad(found) == ["driver_live"]


def test_driver_that_is_going(probe, tmp_path):
    vendor = play(tmp_path, several(2))
    (tmp_path / "sys/module/nvidia/initstate").write_text("going\n")
    assert _probe_nvidia.probe(vendor).driver_live is False


def test_driver_of_another_version_than_the_kernel_runs(probe):
    host = several(2)
    host.module = "580.95.05"
    found = probe(host)
    assert bad(found) == ["versions"]
    assert check(found, "versions").detail.endswith("while kernel or cards say 580.95.05")


def without_minors(host):
    for function in host.bus.values():
        function.minor = None
    return host


def test_minor_from_the_tool_where_the_driver_has_no_file(probe):
    host = without_minors(recorded("590.48.01__1x-h200"))
    host.answers["log"] = Answer(capture("nvidia-smi-q__590.48.01__1x-h200__idle.txt").replace("Minor Number  ", "Minor Number : 5 #", 1))
    assert "minor '5" in check(probe(host), "tool_messages").detail


def test_minor_from_the_tool(probe):
    host = without_minors(recorded("590.48.01__1x-h200"))
    host.answers["log"] = Answer(capture("nvidia-smi-q__590.48.01__1x-h200__idle.txt"))
    found = probe(host)
    assert found.cards[0].devices == {"nvidia": "/dev/nvidia0"}
    assert bad(found) == []


def test_minor_that_nobody_says_is_not_the_index(probe):
    found = probe(without_minors(recorded("590.48.01__1x-h200")))
    assert (found.cards[0].devices, found.cards[0].physical_id) == ({}, None)
    assert bad(found) == ["device_minor"]
    assert check(found, "device_minor").status == "unknown"


def test_two_cards_with_one_minor(probe):
    host = several(2)
    for function in host.bus.values():
        function.minor = None if function.minor is None else 0
    with pytest.raises(UnknownOutput, match="two GPUs with the device minor 0"):
        probe(host)


def test_product_that_nobody_knows(probe):
    host = recorded("590.48.01__1x-h200")
    host.edit("query", "NVIDIA H200", "NVIDIA X9")
    host.edit("query", ", 9.0,", ", [N/A],")
    host.edit("list", "NVIDIA H200", "NVIDIA X9")
    found = probe(host)
    assert found.cards[0].architecture == "unknown"
    assert bad(found) == ["architecture"]
    assert check(found, "architecture").status == "unknown"


def test_link_that_is_down_while_others_have_theirs(probe):
    host = several(3)
    out = host.answers["topology"].out
    rows = out.splitlines()
    rows[3] = rows[3].replace("NV18", "SYS")
    rows[1:3] = [row.rsplit("NV18", 1)[0] + "SYS" + row.rsplit("NV18", 1)[1] for row in rows[1:3]]
    host.answers["topology"].out = "\n".join(rows) + "\n"
    found = probe(host)
    assert [(card.link, card.link_detail) for card in found.cards] == [
        ("up", "NV18 to 1; SYS to 2"),
        ("up", "NV18 to 0; SYS to 2"),
        ("down", "SYS to 0 1"),
    ]
    assert (check(found, "links").status, check(found, "links").detail) == (
        "warn",
        "no NVLink on 0000:3a:00.0, while others of its kind have it",
    )


def test_cards_without_any_link_of_their_own(probe):
    host = several(2)
    host.edit("topology", "NV18", "PHB")
    found = probe(host)
    assert [(card.link, card.link_detail) for card in found.cards] == [(None, "PHB to 1"), (None, "PHB to 0")]
    assert check(found, "links") is None


@pytest.mark.parametrize("damage", ["gone", "odd", "short"])
def test_topology_that_nobody_can_tell(probe, damage):
    host = several(2)
    if damage == "gone":
        del host.answers["topology"]
    elif damage == "odd":
        host.answers["topology"] = Answer("?\n")
    else:
        host.answers["topology"] = several(1).answers["topology"]
    found = probe(host)
    assert "unknown" in [card.link for card in found.cards]
    assert check(found, "topology").status == "warn"
    assert bad(found) == []


def test_other_names_of_the_cards(tmp_path):
    vendor = play(tmp_path, several(3))
    names = {uuid(index): ADDRESSES[index] for index in range(3)}
    assert _probe_nvidia.aliases(vendor) == names
    assert _probe_nvidia.probe(vendor).aliases == names
