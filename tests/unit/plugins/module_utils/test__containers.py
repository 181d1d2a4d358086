# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What happens to a container for every wanted state and everything that can be there, crash points included."""

from __future__ import annotations

import itertools

import pytest
from unit.plugins.played import container as played

from ansible_collections.ironserve.llm.plugins.module_utils._containers import STATES, decide, device_conflicts

SPEC = dict(played.SPEC, name="ironserve-c0", image="img:2")


def container(spec_hash, running=True):
    found = played.described(SPEC, running)
    found["Config"]["Labels"]["ironserve.spec"] = spec_hash
    found["Config"]["Env"].append("SECRET=hush")
    if spec_hash != "new":
        found["Config"].update(Image="img:1", Cmd=["serve", "--old"])
    return found


def limited(running=True):
    """As planned by its hash, and changed by hand since: another limit, another variable."""
    found = container("new", running)
    found["HostConfig"]["PidsLimit"] = 64
    found["Config"]["Env"].append("USER=hush")
    return found


NOTHING = None
AS_PLANNED = container("new")
STOPPED = container("new", running=False)
OLD = container("old")
OLD_STOPPED = container("old", running=False)
PREVIOUS = container("older", running=False)
LIMITED = limited()
LIMITED_STOPPED = limited(running=False)


@pytest.mark.parametrize(
    ("state", "current", "previous", "action"),
    [
        ("present", NOTHING, NOTHING, "create"),
        ("present", AS_PLANNED, NOTHING, "keep"),
        ("present", STOPPED, NOTHING, "start"),
        ("present", OLD, NOTHING, "replace"),
        ("present", OLD_STOPPED, NOTHING, "replace"),
        # The hash says as planned, the engine says otherwise.
        ("present", LIMITED, NOTHING, "replace"),
        ("present", LIMITED_STOPPED, NOTHING, "replace"),
        ("present", LIMITED, PREVIOUS, "replace"),
        ("reverted", LIMITED, NOTHING, "untouched"),
        ("reverted", LIMITED, PREVIOUS, "revert"),
        # Killed after the old one was put aside, before the new one was there.
        ("present", NOTHING, PREVIOUS, "create"),
        # Killed between making and starting the new one.
        ("present", STOPPED, PREVIOUS, "start"),
        # Killed before its proof was noted: proof comes again, the way back stays.
        ("present", AS_PLANNED, PREVIOUS, "keep"),
        ("present", OLD, PREVIOUS, "replace"),
        ("reverted", AS_PLANNED, PREVIOUS, "revert"),
        ("reverted", STOPPED, PREVIOUS, "revert"),
        # Killed in a revert, after the failed one was gone.
        ("reverted", NOTHING, PREVIOUS, "revert"),
        ("reverted", NOTHING, container("older", running=True), "revert"),
        ("reverted", AS_PLANNED, NOTHING, "stop"),
        ("reverted", STOPPED, NOTHING, "keep"),
        # A change that failed before it began: what runs is what was proved, and runs on.
        ("reverted", OLD, NOTHING, "untouched"),
        ("stopped", OLD, NOTHING, "stop"),
        ("stopped", AS_PLANNED, PREVIOUS, "stop"),
        ("stopped", STOPPED, NOTHING, "keep"),
        ("stopped", NOTHING, NOTHING, "keep"),
        ("reverted", NOTHING, NOTHING, "keep"),
        ("committed", AS_PLANNED, PREVIOUS, "commit"),
        ("committed", AS_PLANNED, NOTHING, "keep"),
        ("committed", NOTHING, NOTHING, "keep"),
        # The way back is all there is, or all that can run: it stays.
        ("committed", NOTHING, PREVIOUS, "keep"),
        ("committed", STOPPED, PREVIOUS, "keep"),
        ("absent", AS_PLANNED, PREVIOUS, "remove"),
        ("absent", OLD_STOPPED, NOTHING, "remove"),
        ("absent", NOTHING, PREVIOUS, "remove"),
        ("absent", NOTHING, NOTHING, "keep"),
    ],
)
def test_decision(state, current, previous, action):
    decision = decide(state, SPEC, current, previous)
    assert decision.action == action
    assert decision.name == "ironserve-c0"
    assert decision.reason


@pytest.mark.parametrize(
    ("state", "current", "previous"),
    list(itertools.product(STATES, [NOTHING, AS_PLANNED, STOPPED, OLD, OLD_STOPPED, LIMITED], [NOTHING, PREVIOUS])),
)
def test_diff_tells_the_truth(state, current, previous):
    """A kept container shows no difference, every other one does; neither shows environment."""
    decision = decide(state, SPEC, current, previous)
    assert (decision.before == decision.after) == (decision.action in ("keep", "untouched"))
    assert "hush" not in str(decision)


def test_replacement_shows_old_and_new():
    decision = decide("present", SPEC, OLD, None)
    assert decision.before == {"spec_hash": "old", "image": "img:1", "command": ["serve", "--old"], "running": True}
    assert decision.after == {"spec_hash": "new", "image": "img:2", "command": ["serve"], "running": True}


def test_a_change_by_hand_is_named_with_both_sides():
    decision = decide("present", SPEC, LIMITED, None)
    assert decision.reason == "it is not as planned: Env, HostConfig.PidsLimit"
    assert (decision.before["HostConfig.PidsLimit"], decision.after["HostConfig.PidsLimit"]) == (64, 256)
    assert decision.before["Env"] == ["USER is another"]


def test_revert_shows_the_predecessor_running():
    decision = decide("reverted", SPEC, AS_PLANNED, PREVIOUS)
    assert decision.after["spec_hash"] == "older"
    assert decision.after["running"] is True


def test_container_of_our_name_without_our_labels_is_replaced():
    foreign = container("new")
    foreign["Config"]["Labels"] = None
    assert decide("present", SPEC, foreign, None).action == "replace"


def holder(name, devices=(), privileged=False):
    return {"Name": "/" + name, "HostConfig": {"Privileged": privileged, "Devices": [{"PathOnHost": path} for path in devices] or None}}


REPLICA = {"name": "ironserve-c1", "own_devices": ["/dev/dri/card1", "/dev/dri/renderD129"]}


def test_card_held_by_a_foreign_container_is_named_with_its_holder():
    assert device_conflicts([REPLICA], [holder("jupyter", ["/dev/kfd", "/dev/dri/renderD129"])]) == [
        "ironserve-c1: card node /dev/dri/renderD129 is held by container jupyter"
    ]


@pytest.mark.parametrize("folder", ["/dev/dri", "/dev/dri/", "/dev"])
def test_folder_of_devices_holds_what_is_in_it(folder):
    (line,) = device_conflicts([REPLICA], [holder("jupyter", [folder])])
    assert line.endswith("/dev/dri/card1, /dev/dri/renderD129 is held by container jupyter")


@pytest.mark.parametrize("path", ["/dev/kfd", "/dev/dri/card10", "/dev/dri/card", "/dev/dr"])
def test_shared_and_similar_nodes_are_no_conflict(path):
    assert device_conflicts([REPLICA], [holder("other", [path])]) == []


def test_privileged_container_holds_every_card():
    assert device_conflicts([REPLICA], [holder("admin", privileged=True)]) == [
        "ironserve-c1: container admin is privileged and so holds every card"
    ]


def test_privileged_container_is_no_conflict_where_cards_have_no_nodes():
    assert device_conflicts([{"name": "ironserve-c0", "own_devices": []}], [holder("admin", privileged=True)]) == []


def test_every_pair_is_reported():
    second = {"name": "ironserve-c2", "own_devices": ["/dev/dri/card2"]}
    assert len(device_conflicts([REPLICA, second], [holder("a", ["/dev/dri/card1"]), holder("b", privileged=True)])) == 3
