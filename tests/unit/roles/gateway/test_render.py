# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the options make of haproxy.cfg. What HAProxy makes of it is in tests/integration/gateway."""

from __future__ import annotations

import re

import pytest
from unit.roles.gateway.rendering import evaluator, render, server

PAIR = [server("n-c0", 8101), server("n-c1", 8102, proven=False)]


def ids(text: str) -> dict[str, int]:
    return {
        name: int(number) for name, number in re.findall(r"^    server (\S+) \S+ maxconn 4 id (\d+)(?: disabled)?$", text, re.MULTILINE)
    }


def test_prefix_hash_has_a_ring_without_a_table_or_a_queue_of_a_server() -> None:
    text = render("haproxy.cfg.j2", PAIR, gateway_balance="prefix_hash")
    assert "balance hash var(txn.prefix)\n    hash-type consistent sdbm avalanche\n    hash-balance-factor 200\n" in text
    assert "lua.ironserve_prefix" in text and "stick" not in text.replace("stick-table type string len 64", "")
    assert not re.search(r"^ +(default-server|server) .*maxqueue", text, re.MULTILINE)
    assert "balance leastconn" not in text
    assert text.rstrip().count(" disabled\n") == 1
    # The number comes from the name alone: others come and go.
    assert ids(text).keys() == {"n-c0", "n-c1"}
    assert ids(render("haproxy.cfg.j2", [server("a-c0"), *PAIR], gateway_balance="prefix_hash")).items() > ids(text).items()


def test_prefix_hash_without_a_bound_names_none() -> None:
    assert "hash-balance-factor" not in render("haproxy.cfg.j2", PAIR, gateway_balance="prefix_hash", gateway_hash_bound_percent=0)


@pytest.mark.parametrize("balance", ["leastconn", "prefix_affinity"])
def test_the_others_have_no_ring(balance: str) -> None:
    text = render("haproxy.cfg.j2", PAIR, gateway_balance=balance)
    assert "    balance leastconn\n" in text and "hash-" not in text and "weight 100" not in text
    assert ids(text) == {}


@pytest.mark.parametrize(("balance", "oldest"), [("leastconn", "2.4"), ("prefix_affinity", "2.4"), ("prefix_hash", "2.6")])
def test_the_oldest_haproxy_is_that_of_the_balancing(balance: str, oldest: str) -> None:
    assert evaluator(PAIR, gateway_balance=balance)("{{ __gateway_oldest_haproxy }}") == oldest
