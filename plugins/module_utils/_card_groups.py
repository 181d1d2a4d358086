# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which cards share a replica, by numbers that never change when a card dies. Pure. Private to the collection."""

from __future__ import annotations

from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: Option by which a user groups cards by hand; named in messages.
OPTION = "replica_card_groups"


def check_wanted(wanted: list[list[int]], size: int) -> None:
    """Refuse groups that are none: of another size than a replica's, or with a card in two places. Raises LLMError."""
    seen: set[int] = set()
    for group in wanted:
        if not isinstance(group, list) or any(isinstance(index, bool) or not isinstance(index, int) for index in group):
            raise LLMError("{0} is a list of lists of card numbers, such as [[0, 1], [2, 3]]; found {1!r}".format(OPTION, group))
        if len(group) != size:
            raise LLMError("{0}: group {1} has {2} cards, a replica takes {3}".format(OPTION, group, len(group), size))
        twice = sorted(seen.intersection(group)) or sorted({index for index in group if group.count(index) > 1})
        if twice:
            raise LLMError("{0}: card {1} is in it twice; one card, one replica".format(OPTION, twice[0]))
        seen.update(group)


def _runs(indexes: list[int], size: int) -> list[list[int]]:
    return [indexes[start : start + size] for start in range(0, len(indexes), size)]


def _numbered(groups: list[list[int]], size: int) -> list[tuple[int, list[int]]]:
    """Give each group the number its first card has among groups of neighbours, or, where two would share one, that card's own."""
    numbers = [min(group) // size for group in groups]
    if len(set(numbers)) < len(numbers):
        numbers = [min(group) for group in groups]
    return sorted(zip(numbers, groups))


def _neighbours(cards: list[dict[str, Any]], size: int) -> list[tuple[int, list[int]]]:
    numbers = sorted({card["index"] // size for card in cards})
    return [(number, list(range(number * size, (number + 1) * size))) for number in numbers]


def choose_groups(cards: list[dict[str, Any]], size: int, wanted: list[list[int]]) -> list[tuple[int, list[int]]]:
    """Say which cards belong together: pairs of group number and card numbers, some of which may be missing or dead.

    Neighbours by number, unless such a group would reach over NUMA nodes and groups within the nodes are possible; those then. By hand
    where ``wanted`` says so. Cards count whether they live or not, so that none changes its group when another dies. How many a host
    should have is not known here: accelerator_expected_cards stops one that lost its last.

    Raises LLMError for groups by hand that are none, and where cards are missing without whom nobody knows who belongs to whom.
    """
    check_wanted(wanted, size)
    if wanted:
        return _numbered([sorted(group) for group in wanted], size)
    nodes = {card["index"]: card.get("numa_node") for card in cards}
    plain = _neighbours(cards, size)
    crossing = [group for _number, group in plain if len({nodes[index] for index in group if index in nodes}) > 1]
    if not crossing or None in nodes.values():
        return plain
    by_node: dict[int, list[int]] = {}
    for index in sorted(nodes):
        by_node.setdefault(nodes[index], []).append(index)
    whole = sorted(nodes) == list(range(len(nodes)))
    if whole and any(len(indexes) % size for indexes in by_node.values()):
        # No grouping within the nodes uses every card: neighbours, with a word about it.
        return plain
    if not whole:
        missing = sorted(set(range(max(nodes))) - set(nodes))
        raise LLMError(
            "cards {0} are missing, and cards of a NUMA node are no neighbours here, so nobody knows who shares a replica with whom; say it: "
            "{1}: [[...], ...]".format(missing, OPTION)
        )
    return _numbered([run for indexes in by_node.values() for run in _runs(indexes, size)], size)


def warnings(groups: list[tuple[int, list[dict[str, Any]]]]) -> list[str]:
    """What is doubtful about the cards that share a replica: other NUMA nodes, links that are down; one line for each group."""
    lines = []
    for _number, members in groups:
        if len(members) < 2:
            continue
        who = "cards {0}".format(", ".join(str(card["index"]) for card in members))
        nodes = sorted({card["numa_node"] for card in members if card.get("numa_node") is not None})
        if len(nodes) > 1:
            lines.append(
                "{0} share a replica across NUMA nodes {1}; other groups: {2}".format(
                    who, " and ".join(str(node) for node in nodes), OPTION
                )
            )
        down = [str(card["index"]) for card in members if card.get("link") == "down"]
        if down:
            lines.append("{0} share a replica while the link of {1} is down".format(who, ", ".join(down)))
    return lines
