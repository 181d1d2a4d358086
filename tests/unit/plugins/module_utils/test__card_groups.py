# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which cards share a replica: neighbours, within a NUMA node, or by hand, and never others because one died."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils._card_groups import choose_groups, warnings
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._plan import group_cards, make_plan


def cards_on(nodes, **changes):
    """One card for each entry: its NUMA node, or None."""
    return [
        {"id": f"0000:{index:02x}:00.0", "index": index, "health": "ok", "memory_total_mib": 65520, "numa_node": node, **changes}
        for index, node in enumerate(nodes)
    ]


TURNS = [0, 1, 0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("nodes", "size", "groups"),
    [
        ([None] * 4, 2, [(0, [0, 1]), (1, [2, 3])]),
        ([0, 0, 1, 1], 2, [(0, [0, 1]), (1, [2, 3])]),
        ([0, 0, 0, 1], 1, [(0, [0]), (1, [1]), (2, [2]), (3, [3])]),
        # Nodes in turns: within a node, each numbered by its first card.
        (TURNS, 2, [(0, [0, 2]), (1, [1, 3]), (4, [4, 6]), (5, [5, 7])]),
        (TURNS, 4, [(0, [0, 2, 4, 6]), (1, [1, 3, 5, 7])]),
        (TURNS, 8, [(0, list(range(8)))]),
        # Within the nodes not every card would be used.
        ([0, 0, 0, 1], 2, [(0, [0, 1]), (1, [2, 3])]),
        # Half-known is not known.
        ([0, 1, 0, None], 2, [(0, [0, 1]), (1, [2, 3])]),
        ([1, 0, 0, 1], 2, [(0, [0, 3]), (1, [1, 2])]),
    ],
)
def test_who_shares_a_replica(nodes, size, groups):
    assert choose_groups(cards_on(nodes), size, []) == groups


def test_by_hand():
    cards = cards_on(TURNS)
    assert choose_groups(cards, 2, [[7, 6], [0, 1]]) == [(0, [0, 1]), (3, [6, 7])], "as groups of neighbours are numbered"
    assert choose_groups(cards, 2, [[0, 4], [1, 5]]) == [(0, [0, 4]), (1, [1, 5])]
    assert choose_groups(cards, 1, [[3], [5]]) == [(3, [3]), (5, [5])]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ([[0]], "group [0] has 1 cards, a replica takes 2"),
        ([[0, 1], [1, 2]], "card 1 is in it twice"),
        ([[0, 0]], "card 0 is in it twice"),
        ([["0", 1]], "is a list of lists of card numbers"),
        ([0, 1], "is a list of lists of card numbers"),
        ([[True, 0]], "is a list of lists of card numbers"),
    ],
)
def test_groups_that_are_none(wanted, says):
    with pytest.raises(LLMError, match="replica_card_groups.*" + re.escape(says)):
        choose_groups(cards_on(TURNS), 2, wanted)


def outcome(cards, size):
    groups, left_out = group_cards(cards, size, True, [])
    assert len(left_out) == len(cards) - sum(len(members) for _number, members in groups)
    return {number: [card["index"] for card in members] for number, members in groups}


@given(
    nodes=st.lists(st.sampled_from([None, 0, 1, 2]), min_size=1, max_size=16),
    size=st.sampled_from([1, 2, 4, 8]),
    dead=st.sets(st.integers(0, 15)),
)
def test_cards_that_die_change_nobody_elses_group(nodes, size, dead):
    """Whatever the host looks like: what is left are groups there were, under their numbers, and all of those that are whole."""
    whole = dict(choose_groups(cards_on(nodes), size, []))
    cards = cards_on(nodes)
    for card in cards:
        card["health"] = "fault" if card["index"] in dead else "ok"
    assert outcome(cards, size) == {number: indexes for number, indexes in whole.items() if set(indexes) <= set(range(len(nodes))) - dead}


@settings(max_examples=400)
@given(
    count=st.sampled_from([4, 8, 16]),
    size=st.sampled_from([1, 2, 4]),
    gone=st.sets(st.integers(0, 15)),
    layout=st.sampled_from(["unknown", "halves", "turns"]),
)
def test_cards_that_vanish_change_nobody_elses_group(count, size, gone, layout):
    """As hosts are built: a group there was, or the plan says that it cannot know."""
    nodes = {
        "unknown": [None] * count,
        "halves": [2 * index // count for index in range(count)],
        "turns": [index % 2 for index in range(count)],
    }
    whole = dict(choose_groups(cards_on(nodes[layout]), size, []))
    left = [card for card in cards_on(nodes[layout]) if card["index"] not in gone]
    try:
        found = outcome(left, size)
    except LLMError as exc:
        assert gone & set(range(count)) and "missing" in str(exc) and layout != "unknown"
        return
    indexes = [card["index"] for card in left]
    if indexes == list(range(len(left))) and len(left) < count:
        # A host that lost its last cards looks like a smaller one; accelerator_expected_cards tells them apart.
        return
    assert all(whole.get(number) == indexes for number, indexes in found.items())


def test_a_dead_card_takes_its_group_along_and_no_other():
    cards = cards_on(TURNS)
    cards[2]["health"] = "fault"
    groups, left_out = group_cards(cards, 2, True, [])
    assert [(number, [card["index"] for card in members]) for number, members in groups] == [(1, [1, 3]), (4, [4, 6]), (5, [5, 7])]
    assert [item["reason"] for item in left_out] == ["card 2 (0000:02:00.0) has health 'fault'", "its group 0 has 1 of 2 cards"]


def test_a_missing_card_among_nodes_in_turns_is_asked_about():
    cards = [card for card in cards_on(TURNS) if card["index"] != 2]
    with pytest.raises(LLMError, match=r"cards \[2\] are missing.*replica_card_groups"):
        choose_groups(cards, 2, [])
    assert choose_groups(cards, 2, [[1, 3], [5, 7]]) == [(0, [1, 3]), (2, [5, 7])]


def test_cards_in_no_group_are_left_alone():
    groups, left_out = group_cards(cards_on([None] * 4), 1, False, [[1], [3]])
    assert [(number, members[0]["index"]) for number, members in groups] == [(1, 1), (3, 3)]
    assert [item["reason"] for item in left_out] == ["replica_card_groups does not name it"] * 2


def test_a_card_that_is_not_there_is_left_out_only_when_asked():
    with pytest.raises(LLMError, match="replica_card_groups names card 9, which this host does not have"):
        group_cards(cards_on([None] * 4), 2, False, [[0, 1], [2, 9]])
    groups, left_out = group_cards(cards_on([None] * 4), 2, True, [[0, 1], [2, 9]])
    assert [number for number, _members in groups] == [0]
    assert [item["card"] for item in left_out] == ["0000:02:00.0", "0000:03:00.0"]


def test_what_is_doubtful_is_said():
    across = [(0, cards_on([0, 1])), (1, cards_on([0, 0]))]
    assert warnings(across) == ["cards 0, 1 share a replica across NUMA nodes 0 and 1; other groups: replica_card_groups"]
    down = cards_on([0, 0], link="up")
    down[1]["link"] = "down"
    assert warnings([(0, down)]) == ["cards 0, 1 share a replica while the link of 1 is down"]
    assert warnings([(0, down[1:])]) == [], "a replica on one card needs no link"
    assert warnings([(0, cards_on([None, None]))]) == []


def test_the_plan_says_it_and_keeps_names_and_ports(k100):
    data = k100(settings={"tensor_parallel_size": 2}, weights="bf16", card_groups=[[0, 1], [2, 3]])
    assert make_plan(data) == make_plan(k100(settings={"tensor_parallel_size": 2}, weights="bf16"))
    for card, node in zip(data.cards, (0, 1, 0, 1), strict=True):
        card["numa_node"] = node
    assert make_plan(data)["reasons"][0].startswith("cards 0, 1 share a replica across NUMA nodes 0 and 1")
    data.card_groups = []
    plan = make_plan(data)
    assert [(replica["card_indexes"], replica["port"]) for replica in plan["replicas"]] == [([0, 2], 8001), ([1, 3], 8002)]
    assert not any("NUMA" in reason for reason in plan["reasons"])
