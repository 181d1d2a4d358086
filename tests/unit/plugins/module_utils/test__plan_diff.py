# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a plan would change of what runs: the hash decides, and where it differs every part is named with before and after."""

from __future__ import annotations

import pytest
from unit.plugins.played.container import described

from ansible_collections.ironserve.llm.plugins.module_utils._plan import make_plan
from ansible_collections.ironserve.llm.plugins.module_utils._plan_diff import compare, describe


def running(data):
    return [describe(described(replica["spec"])) for replica in make_plan(data)["replicas"]]


def states(differences):
    return [(item.container[-2:], item.state) for item in differences]


def test_what_was_made_from_the_plan_is_the_same(k100):
    differences = compare(make_plan(k100()), running(k100()))
    assert states(differences) == [("c0", "same"), ("c1", "same"), ("c2", "same"), ("c3", "same")]
    assert differences[0].lines() == ["same   ironserve-c0"]


def test_what_was_changed_by_hand_is_no_more_the_same(k100):
    plan = make_plan(k100(count=1))
    found = described(plan["replicas"][0]["spec"])
    found["HostConfig"]["Devices"] = found["HostConfig"]["Devices"][1:]
    (difference,) = compare(plan, [describe(found)])
    assert difference.state == "change"
    assert difference.details[0] == "not as planned, although its hash is:"
    assert difference.details[1].startswith("~ HostConfig.Devices ['/dev/dri/card1")


def test_nothing_runs_and_too_much_runs(k100):
    assert states(compare(make_plan(k100()), [])) == [(name, "new") for name in ("c0", "c1", "c2", "c3")]
    fewer = make_plan(k100(count=2))
    assert states(compare(fewer, running(k100()))) == [("c0", "same"), ("c1", "same"), ("c2", "gone"), ("c3", "gone")]


def test_what_stands_still_and_what_is_kept_for_the_way_back(k100):
    plan = make_plan(k100(count=1))
    still = describe(described(plan["replicas"][0]["spec"], running=False))
    assert states(compare(plan, [still])) == [("c0", "start")]
    assert states(compare(plan, running(k100(count=1)) + [dict(still, name="ironserve-c0-previous")])) == [("c0", "same")]


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"settings": {"max_model_len": 65536}}, ["~ --max-model-len 131072 -> 65536"]),
        ({"settings": {"max_num_batched_tokens": 8192}}, ["+ --max-num-batched-tokens 8192"]),
        (
            {"enhancements": {"prefix_caching": False, "mtp": False}},
            ["- --enable-prefix-caching", "- --mamba-cache-mode align", "+ --no-enable-prefix-caching"],
        ),
        (
            {"image": "registry.example/vllm@sha256:" + "1" * 64},
            ["~ image registry.example/vllm@sha256:{0} -> registry.example/vllm@sha256:{1}".format("0" * 64, "1" * 64)],
        ),
        ({"environment": {"VLLM_LOGGING_LEVEL": "DEBUG"}}, ["+ environment VLLM_LOGGING_LEVEL DEBUG"]),
        ({"environment": {"HF_HUB_OFFLINE": "0"}}, ["~ environment HF_HUB_OFFLINE 1 -> 0"]),
        ({"port_base": 9001}, ["~ port 127.0.0.1:8001 -> 127.0.0.1:9001"]),
        ({"weights_id": "x" * 64}, ["~ weights wwwwwwwwwwww -> xxxxxxxxxxxx"]),
    ],
)
def test_every_difference_is_named_with_before_and_after(k100, change, lines):
    first = compare(make_plan(k100(**change)), running(k100()))[0]
    assert (first.state, first.details) == ("change", lines)
    assert first.lines()[0] == "change ironserve-c0"


def test_another_file_over_the_images_own_is_named(k100):
    def over(digit):
        data = k100(count=1, files_dir="/f")
        data.catalog["platform"]["container"]["files"] = {"/opt/t.jinja": {"source": "t.jinja", "sha256": digit * 64}} if digit else {}
        return data

    old, new = ("/f/{0}/t.jinja".format(digit * 64) for digit in "12")
    for before, after, line in (
        ("1", "2", f"~ mount /opt/t.jinja {old} -> {new}"),
        ("1", "", f"- mount /opt/t.jinja {old}"),
        ("", "2", f"+ mount /opt/t.jinja {new}"),
    ):
        first = compare(make_plan(over(after)), running(over(before)))[0]
        assert (first.state, first.details) == ("change", [line])


def test_a_description_that_only_the_host_has_is_no_difference(k100):
    described_by = {"weights_config": "/etc/ironserve/config.json", "weights_config_id": "d" * 64}
    assert compare(make_plan(k100()), running(k100(**described_by)))[0].state == "open"


def test_other_cards_and_nodes(k100):
    data = k100()
    data.cards[0]["id"], data.cards[0]["devices"]["card"] = "0000:99:00.0", "/dev/dri/card9"
    details = compare(make_plan(data), running(k100()))[0].details
    assert details[0] == "~ cards 0000:07:00.0 -> 0000:99:00.0"
    assert details[1].startswith("~ devices /dev/dri/card1 ") and "-> /dev/dri/card9 " in details[1]


def test_what_only_the_host_knows_is_left_open(k100):
    """A plan without the host knows neither key nor weights, and no image that is built there."""
    first = compare(make_plan(k100(key_id="", weights_id="")), running(k100()))[0]
    assert first.state == "open"
    assert first.details[0].endswith("site.yml --check compares weights (now wwwwwwwwwwww), key, description of the weights, limits")
    built = compare(make_plan(k100(image="build:llama_cpp")), running(k100()))[0]
    assert built.state == "open" and "image (now registry.example/vllm@sha256:000" in built.details[0]
    both = compare(make_plan(k100(image="build:llama_cpp", settings={"max_num_seqs": 2})), running(k100()))[0]
    assert (both.state, both.details) == ("change", ["~ --max-num-seqs 4 -> 2"])


def test_a_container_of_another_hand_is_described_all_the_same():
    bare = {
        "Name": "/ironserve-c0",
        "State": {"Running": True},
        "Config": {"Image": "i", "Cmd": None, "Env": None, "Labels": None},
        "HostConfig": {"PortBindings": None, "Devices": None},
    }
    assert describe(bare) == {
        "name": "ironserve-c0",
        "running": True,
        "image": "i",
        "labels": {},
        "command": [],
        "environment": {},
        "publish": {},
        "devices": [],
        "inspected": bare,
    }


def test_a_container_without_labels_is_a_change(k100):
    found = dict(running(k100())[0], labels={}, publish={}, command=[])
    first = compare(make_plan(k100()), [found])[0]
    assert first.state == "change"
    assert "~ port none -> 127.0.0.1:8001" in first.details and "~ weights  -> wwwwwwwwwwww" in first.details
