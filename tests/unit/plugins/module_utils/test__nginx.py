# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""nginx's file, its maps and its connections. What a real nginx makes of them is in tests/integration/nginx."""

from __future__ import annotations

import socket

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _nginx
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

TEXT = """\
# nginx: /usr/sbin/nginx
pid /run/ironserve/gateway.pid;
error_log /run/ironserve/gateway-error.log crit;
http {
    client_body_temp_path /run/ironserve/gateway-nginx/body;
    map $ironserve_hash $ironserve_entry {
        include /etc/ironserve/gateway/keys.map;
    }
    upstream ironserve_replicas {
        # models: m alias
        zone ironserve_replicas 1m;
        server 127.0.0.1:8101 max_conns=4 max_fails=1 fail_timeout=10s; # n-c0
        server [::1]:8102 max_conns=8 max_fails=1 fail_timeout=10s down; # n-c1
    }
    upstream other {
        server 127.0.0.1:9 max_conns=1 max_fails=1 fail_timeout=10s; # x
    }
    server {
        listen 0.0.0.0:8000;
        listen [::]:8000;
    }
    server {
        listen unix:/run/ironserve/gateway.sock;
            return 200 "@CONFIG_ID@\\n";
    }
}
"""


def test_servers_of_the_file() -> None:
    assert [server.as_dict() for server in _nginx.config_servers(TEXT)] == [
        {"name": "n-c0", "address": "127.0.0.1", "port": 8101, "max_num_seqs": 4, "proven": True, "models": ["m", "alias"]},
        {"name": "n-c1", "address": "::1", "port": 8102, "max_num_seqs": 8, "proven": False, "models": ["m", "alias"]},
    ]
    assert _nginx.config_servers("") == []
    with pytest.raises(UnknownOutput, match="was not written here"):
        _nginx.config_servers(TEXT.replace("max_conns=4 ", ""))


def test_a_state_is_a_word_in_the_file_and_in_what_it_says() -> None:
    text, first = _nginx.with_identity(TEXT, files=["keys"])
    assert f'return 200 "ironserve {first} n-c0=ready n-c1=maint\\n";' in text
    changed, second = _nginx.with_identity(_nginx.with_down(text, {"n-c0": True, "n-c1": False}), files=["keys"])
    assert second != first
    assert f'return 200 "ironserve {second} n-c0=maint n-c1=ready\\n";' in changed
    assert changed.count(" down;") == 1 and "8101 max_conns=4 max_fails=1 fail_timeout=10s down; # n-c0\n" in changed
    # Back again it is the same file, and what it says is no part of its identity.
    assert _nginx.with_identity(_nginx.with_down(changed, {"n-c0": False, "n-c1": True}), files=["keys"]) == (text, first)
    assert _nginx.with_identity(TEXT, files=["other keys"])[1] != first
    assert _nginx.with_identity(TEXT, files=["ke", "ys"])[1] != first
    with pytest.raises(LLMError, match="does not say which file it is"):
        _nginx.with_identity("http {}")


def test_what_a_running_one_says() -> None:
    assert _nginx.parse_said("ironserve 0123456789abcdef a=ready b=c=maint\n") == ("0123456789abcdef", {"a": "ready", "b=c": "maint"})
    for text in ("", "<html>", "ironserve", "ironserve 0123 a=drain", "ironserve 0123 a"):
        with pytest.raises(UnknownOutput):
            _nginx.parse_said(text)


def test_what_the_file_names() -> None:
    assert _nginx.binds(TEXT) == [("0.0.0.0", 8000), ("::", 8000)]
    assert _nginx.included(TEXT) == ["/etc/ironserve/gateway/keys.map"]
    assert (_nginx.binary(TEXT), _nginx.setting(TEXT, "pid")) == ("/usr/sbin/nginx", "/run/ironserve/gateway.pid")
    assert _nginx.temp_dir(TEXT) == "/run/ironserve/gateway-nginx"
    for reads in (_nginx.binary, _nginx.temp_dir, lambda text: _nginx.setting(text, "pid")):
        with pytest.raises(UnknownOutput):
            reads("http {}")


def test_a_copy_for_judging_touches_nothing_of_the_gateways() -> None:
    text = _nginx.in_room(TEXT, "/tmp/gw-1", {"/etc/ironserve/gateway/keys.map": "/tmp/gw-1/0.map"})
    assert "/run/ironserve" not in text and "/etc/ironserve" not in text
    assert "error_log stderr crit;\n" in text and "listen unix:/tmp/gw-1/gateway.sock;\n" in text


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (
            'nginx: [emerg] unknown directive "x" in /t/new:3\nnginx: configuration file /t/new test failed\n',
            'unknown directive "x" in /n.conf:3',
        ),
        ("2026/11/30 23:00:00 [emerg] 7#7: bind() to 1.2.3.4:80 failed.\nnginx: test failed", "bind() to 1.2.3.4:80 failed"),
        ("something else\n", "something else"),
        ("", "nginx gave no reason"),
    ],
)
def test_a_refusal_in_its_own_words(output: str, says: str) -> None:
    assert _nginx.validation_error(output, "/t/new", "/n.conf") == says


def test_either_file_may_be_named(tmp_path) -> None:
    haproxy, nginx = str(tmp_path / "haproxy.cfg"), str(tmp_path / "nginx.conf")
    assert _nginx.present(haproxy) == haproxy and _nginx.present(nginx) == nginx
    (tmp_path / "nginx.conf").write_text("")
    assert _nginx.present(haproxy) == _nginx.present(nginx) == nginx
    (tmp_path / "haproxy.cfg").write_text("")
    assert _nginx.present(haproxy) == haproxy and _nginx.present(nginx) == nginx
    (tmp_path / "nginx.conf").unlink()
    assert _nginx.present(nginx) == haproxy


# Keys


HASHES = ["a" * 64, "b" * 64]


def test_keys_and_what_nginx_cannot_keep_of_them() -> None:
    entries = {HASHES[1]: "me", HASHES[0]: "you|1801440000|0|0|-|-"}
    text = _nginx.keys_text(entries)
    assert text == f'{HASHES[1]} "me";\n{HASHES[0]} "you|1801440000|0|0|-|-";\n'
    assert _nginx.parse_keys(text) == entries
    for entry in ("me|0|60|0|-|-", "me|0|0|2|-|-", "me|0|0|0|,m,|m", "me|0|0|0|-|m"):
        with pytest.raises(LLMError, match='client key "me": nginx knows one limit'):
            _nginx.keys_text({HASHES[0]: entry})


def test_the_engine_key_is_a_value_and_never_read_as_more() -> None:
    assert _nginx.engine_text("sk-0aZ_~+/=.") == 'default "Bearer sk-0aZ_~+/=.";\n'
    assert _nginx.engine_text("") == ""
    for key in ('a"b', "a$b", "a;b", "a\\b", "a b", "a}b", "a\nb"):
        with pytest.raises(LLMError, match="make it of letters, digits") as fault:
            _nginx.engine_text(key)
        assert key not in str(fault.value)


# Processes and connections


def proc(tmp_path, processes: dict[int, dict]) -> str:
    """A /proc of nginx's processes: title, parent, and sockets by inode, each (here, there, state)."""
    for pid, what in processes.items():
        home = tmp_path / str(pid)
        (home / "fd").mkdir(parents=True)
        (home / "net").mkdir()
        (home / "cmdline").write_text(what["title"] + "\0")
        (home / "stat").write_text(f"{pid} (nginx) S {what['parent']} 1 1")
        lines = ["  sl  local_address rem_address   st"]
        for inode, (here, there, state) in what.get("sockets", {}).items():
            (home / "fd" / str(inode)).symlink_to(f"socket:[{inode}]")
            lines.append(f"   0: {here} {there} {state} 0:0 0:0 0 0 0 {inode} 1")
        (home / "net" / "tcp").write_text("\n".join(lines) + "\n")
        (home / "net" / "tcp6").write_text(lines[0] + "\n")
    return str(tmp_path)


def side(port: int) -> str:
    return "0100007F:%04X" % port


WORKER = "nginx: worker process"
MASTER = "nginx: master process /usr/sbin/nginx -c /etc/g/nginx.conf"


def test_the_family_is_the_master_with_our_file_and_its_children(tmp_path) -> None:
    home = proc(
        tmp_path,
        {5: {"title": MASTER, "parent": 1}, 6: {"title": WORKER, "parent": 5}, 7: {"title": WORKER, "parent": 4}},
    )
    (tmp_path / "pid").write_text("5\n")
    assert _nginx.family(str(tmp_path / "pid"), "/etc/g/nginx.conf", home) == [5, 6]
    # Another file is another nginx; so is another program with the number of ours.
    assert _nginx.family(str(tmp_path / "pid"), "/etc/nginx.conf", home) == []
    assert _nginx.family(str(tmp_path / "none"), "/etc/g/nginx.conf", home) == []
    (tmp_path / "pid").write_text("")
    assert _nginx.family(str(tmp_path / "pid"), "/etc/g/nginx.conf", home) == []


def test_open_requests_are_connections_and_undecided_ones_count_for_each(tmp_path) -> None:
    new = {
        11: (side(8000), side(50001), "01"),
        12: (side(40001), side(8101), "01"),
        13: (side(40002), side(8101), "08"),
        15: (side(8000), side(50002), "01"),
        16: (side(40003), side(9999), "01"),
    }
    old = {
        21: (side(8000), side(50003), "01"),
        22: (side(40004), side(8102), "01"),
        23: (side(8000), side(50004), "01"),
        # Not closed yet, and no client.
        24: (side(8000), "00000000:0000", "0A"),
    }
    home = proc(
        tmp_path,
        {
            6: {"title": WORKER, "parent": 5, "sockets": new},
            7: {"title": WORKER + " is shutting down", "parent": 5, "sockets": old},
            8: {"title": WORKER, "parent": 5},
        },
    )
    servers = {name: {("127.0.0.1", port)} for name, port in (("n-c0", 8101), ("n-c1", 8102), ("n-c2", 8103))}
    # The old worker has two clients and sent one of them on: the other one may still go to any.
    assert _nginx.open_requests([6, 7, 8, 9], servers, {8000}, home) == {"n-c0": 3, "n-c1": 2, "n-c2": 1}
    assert _nginx.open_requests([6, 8], servers, {8000}, home) == {"n-c0": 2, "n-c1": 0, "n-c2": 0}
    assert (_nginx.takes_no_more(6, home), _nginx.takes_no_more(7, home), _nginx.takes_no_more(99, home)) == (False, True, True)


def test_an_address_of_ipv4_on_a_socket_of_both_is_one() -> None:
    assert _nginx._side("0000000000000000FFFF00000100007F:1FA5") == ("127.0.0.1", 8101)
    assert _nginx._side("00000000000000000000000001000000:1FA5") == ("::1", 8101)
    assert _nginx.places("127.0.0.1", 8101) == {("127.0.0.1", 8101)}


def test_nobody_behind_a_socket_is_no_gateway_and_nonsense_is_unknown(tmp_path) -> None:
    path = str(tmp_path / "s")
    assert _nginx.loaded(path) is None
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        assert _nginx.loaded(path) is None
        door.listen()
        with pytest.raises(LLMError, match="cannot be used: timed out"):
            _nginx.said(path, timeout_s=0.05)
