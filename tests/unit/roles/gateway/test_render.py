# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the options make of the gateway's file. What HAProxy and nginx make of it is in tests/integration."""

from __future__ import annotations

import re

import pytest
from unit.roles.gateway.rendering import ROLE, evaluator, render, server

from ansible_collections.ironserve.llm.plugins.module_utils import _nginx

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


def test_servers_of_several_models_have_numbers_of_their_own() -> None:
    servers = [dict(server(name), models=[model]) for name, model in (("n-c0", "alpha"), ("n-c1", "alpha"), ("n-c2", "beta"))]
    text = render("haproxy.cfg.j2", servers, gateway_balance="prefix_affinity")
    assert ids(text) == {"n-c0": 1, "n-c1": 2, "n-c2": 1001}
    assert "set-var(txn.enough) int(" in text and "{ var(txn.home_1) -m int eq 1001 }" in text


@pytest.mark.parametrize(("balance", "oldest"), [("leastconn", "2.4"), ("prefix_affinity", "2.4"), ("prefix_hash", "2.6")])
def test_the_oldest_haproxy_is_that_of_the_balancing(balance: str, oldest: str) -> None:
    assert evaluator(PAIR, gateway_balance=balance)("{{ __gateway_oldest_haproxy }}") == oldest


def test_addresses_of_ipv6_are_in_brackets() -> None:
    text = render("haproxy.cfg.j2", [server("n-c0", address="fd00::1")], gateway_bind_address="::")
    assert "    bind [::]:8000\n" in text and "    server n-c0 [fd00::1]:8101 maxconn 4\n" in text


# nginx


def nginx(servers=None, **options) -> str:
    return render("nginx.conf.j2", servers or PAIR, gateway_software="nginx", **options)


def test_nginx_gets_what_its_file_is_read_for() -> None:
    text, identity = _nginx.with_identity(nginx([*PAIR, server("n-c2", 8103, address="fd00::1")], gateway_bind_address="::"))
    assert [(item.name, item.address, item.port, item.maxconn, item.disabled, item.models) for item in _nginx.config_servers(text)] == [
        ("n-c0", "127.0.0.1", 8101, 4, False, ("m",)),
        ("n-c1", "127.0.0.1", 8102, 4, True, ("m",)),
        ("n-c2", "fd00::1", 8103, 4, False, ("m",)),
    ]
    assert f'"ironserve {identity} n-c0=ready n-c1=maint n-c2=ready\\n"' in text
    assert _nginx.binds(text) == [("::", 8000), ("127.0.0.1", 8404)]
    assert _nginx.included(text) == ["/etc/ironserve/gateway/keys.map", "/etc/ironserve/gateway/engine.map"]
    assert (_nginx.setting(text, "pid"), _nginx.binary(text)) == ("/run/ironserve/gateway.pid", "/usr/sbin/nginx")
    assert _nginx.temp_dir(text) == "/run/ironserve/gateway-nginx"


def test_nginx_streams_waits_and_never_repeats() -> None:
    text = nginx()
    for line in (
        "proxy_buffering off;",
        "proxy_http_version 1.1;",
        "proxy_read_timeout 3600s;",
        "proxy_next_upstream error timeout;",
        "proxy_next_upstream_tries 3;",
        "proxy_pass_request_headers off;",
    ):
        assert text.count(f"            {line}\n") == 3, line
    assert "non_idempotent" not in text and "client_max_body_size 16m;" in text and "keepalive 1" not in text
    # One place for each of what the options open, and one for all else.
    assert re.findall(r"(?m)^        location (\S.*) \{$", text)[:4] == ["/", "= /v1/chat/completions", "= /v1/completions", "= /v1/models"]


def test_nginx_without_an_engine_key_or_limits_has_none() -> None:
    text = nginx(gateway_engine_key_file="", gateway_stats_port=0)
    assert (
        "Authorization $" not in text
        and "engine.map;" not in text
        and "limit_req" not in text
        and "limit_conn" not in text
        and ":8404" not in text
    )
    limited = nginx(gateway_rate_limit_per_minute=1, gateway_client_concurrency=2)
    assert "limit_req zone=ironserve_rate;" in limited and "limit_conn ironserve_at_once 2;" in limited


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, []),
        (
            {"gateway_max_queue": "1000", "gateway_client_keys": [{"name": "me", "key": "k" * 16, "expires": "2027-01-31", "models": []}]},
            [],
        ),
        ({"gateway_balance": "prefix_affinity", "gateway_max_queue": 5}, ["gateway_balance (nginx has", "gateway_max_queue (nginx has no"]),
        ({"gateway_ip_connections": 5, "gateway_check_path": "/x"}, ["gateway_ip_connections (", "gateway_check_path ("]),
        ({"gateway_tls_certificate": "/c.pem"}, ["gateway_tls_certificate (nginx is set up"]),
        (
            {"gateway_client_keys": [{"name": "me", "key": "k" * 16, "models": ["m"], "concurrent": 2}]},
            ["models of the client key me (", "concurrent of the client key me ("],
        ),
    ],
)
def test_what_nginx_cannot_is_named(options: dict, asked: list[str]) -> None:
    found = list(evaluator(PAIR, gateway_software="nginx", **options)("{{ __gateway_not_nginx }}"))
    assert sorted(item.partition("(")[0] for item in found) == sorted(item.partition("(")[0] for item in asked)
    assert all(any(item.startswith(word) for item in found) for word in asked)


def test_what_nginx_cannot_is_in_the_docs() -> None:
    lacks = evaluator(PAIR)("{{ __gateway_nginx_lacks }}")
    docs = (ROLE / "../../docs/gateway.md").read_text(encoding="utf-8").partition("## nginx instead")[2]
    assert [option for option in lacks if f"`{option}`" not in docs] == []


@pytest.mark.parametrize("software", ["haproxy", "nginx"])
@pytest.mark.parametrize("manager", ["systemd", "sysv"])
def test_the_service_is_that_of_the_software(software: str, manager: str) -> None:
    files = list(evaluator(PAIR, gateway_software=software, gateway_service_manager=manager)("{{ __gateway_files }}"))
    assert ["/etc/ironserve/gateway/save_server_state.py"] * (software == "haproxy") == [
        item["path"] for item in files if "save_server_state" in item["path"]
    ]
    service = files[-1]
    assert service["path"] == ("/etc/systemd/system/ironserve-gateway.service" if manager == "systemd" else "/etc/init.d/ironserve-gateway")
    assert f"/usr/sbin/{software}" in service["content"]
    assert ("/etc/ironserve/gateway/nginx.conf" in service["content"]) == (software == "nginx")
