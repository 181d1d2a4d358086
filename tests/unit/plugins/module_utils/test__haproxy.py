# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""HAProxy's file and output, read without a HAProxy. With a real one: tests/unit/roles/gateway."""

from __future__ import annotations

import hashlib
import socket
import threading

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput

CONFIG = """\
global
    description ironserve.llm gateway @CONFIG_ID@
frontend ironserve_api
    bind 127.0.0.1:8000
    http-request set-var(txn.key) req.hdr(x),map(/etc/a/keys.map) if a
    http-request set-header Authorization "Bearer %[str(engine),map(/etc/a/engine.map)]"
backend other
    server stranger 10.9.9.9:1 maxconn 1
backend ironserve_replicas
    default-server check
    server node-1-c0 10.0.0.1:8001 maxconn 4
    server node-c0 [fd00::1]:8002 maxconn 2 disabled
frontend ironserve_stats
    bind 127.0.0.1:8404
"""

HEADER = (
    "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_time_since_last_change"
    " srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn"
    " srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr srv_agent_addr srv_agent_port"
)


def dump(*servers, backend="ironserve_replicas"):
    lines = ["1", HEADER]
    for number, (name, address, port, op, admin) in enumerate(servers, 1):
        lines.append(f"3 {backend} {number} {name} {address} {op} {admin} 1 1 5 15 3 3 6 0 0 0 - {port} - 0 0 - - 0")
    return "\n".join(lines) + "\n\n"


def test_config_servers_are_those_of_the_backend_in_order():
    first, second = _haproxy.config_servers(CONFIG)
    assert first.as_dict() == {"name": "node-1-c0", "address": "10.0.0.1", "port": 8001, "max_num_seqs": 4, "proven": True, "models": []}
    assert second.as_dict() == {"name": "node-c0", "address": "fd00::1", "port": 8002, "max_num_seqs": 2, "proven": False, "models": []}
    assert _haproxy.config_servers("") == []


def test_config_server_with_an_unknown_figure_is_unknown_not_zero():
    with pytest.raises(UnknownOutput, match="node-c0"):
        _haproxy.config_servers("backend ironserve_replicas\n    server node-c0 10.0.0.1:1 maxconn many\n")


def test_kept_servers_belong_to_the_longest_host_name():
    present = _haproxy.config_servers(CONFIG)
    hosts = ["node", "node-1"]
    assert [server.name for server in _haproxy.kept_servers(present, hosts, ["node-1"])] == ["node-1-c0"]
    assert [server.name for server in _haproxy.kept_servers(present, hosts, ["node"])] == ["node-c0"]
    assert _haproxy.kept_servers(present, ["elsewhere"], []) == []


def test_planned_servers_are_held_back_without_proof():
    replica = {"name": "n-c0", "address": "10.0.0.1", "port": "8001", "max_num_seqs": "4", "cards": ["x"]}
    out = {"plan": {"replicas": [replica, dict(replica, name="n-c1")]}}
    assert [s["proven"] for s in _haproxy.planned_servers({"n": out})] == [False, False]
    assert [s["proven"] for s in _haproxy.planned_servers({"n": out}, assume_proven=True)] == [True, True]
    # A check run leaves an empty list: it must not show every server as held back.
    assert [s["proven"] for s in _haproxy.planned_servers({"n": dict(out, proven=[])}, assume_proven=True)] == [True, True]
    judged = _haproxy.planned_servers({"n": dict(out, proven=["n-c1"])})
    assert judged[0] == {"name": "n-c0", "address": "10.0.0.1", "port": 8001, "max_num_seqs": 4, "proven": False, "models": []}
    assert judged[1]["proven"] is True


def test_planned_servers_say_which_model_they_have():
    replica = {"name": "n-c0", "address": "10.0.0.1", "port": 1, "max_num_seqs": 1}
    outs = {"n": {"plan": {"replicas": [replica], "served_names": ["m", "alias"]}}}
    assert _haproxy.planned_servers(outs)[0]["models"] == ["m", "alias"]


def served(name, *models):
    return {"name": name, "address": "10.0.0.1", "port": 1, "max_num_seqs": 1, "proven": True, "models": list(models)}


def test_one_model_has_the_one_backend_and_takes_servers_that_say_nothing():
    assert _haproxy.model_groups([]) == []
    group = _haproxy.model_groups([served("a"), served("b")])
    assert [(g["model"], g["names"], g["backend"], len(g["servers"])) for g in group] == [("", [], "ironserve_replicas", 2)]
    group = _haproxy.model_groups([served("a", "m", "x"), served("b"), served("c", "m", "y")])
    assert [(g["model"], g["names"], g["backend"]) for g in group] == [("m", ["m", "x", "y"], "ironserve_replicas")]
    assert [server["name"] for server in group[0]["servers"]] == ["a", "b", "c"]
    assert group[0]["known"] == {"m": "m", "x": "m", "y": "m"}


def test_several_models_have_backends_of_their_own_whose_names_differ():
    groups = _haproxy.model_groups([served("a", "org/m"), served("b", "org_m"), served("c", "org:m"), served("d", "org_m", "m")])
    assert [(g["model"], [s["name"] for s in g["servers"]]) for g in groups] == [("org/m", ["a"]), ("org:m", ["c"]), ("org_m", ["b", "d"])]
    backends = [g["backend"] for g in groups]
    assert len(set(backends)) == 3
    assert backends[2] == "ironserve_replicas.org_m"
    assert all(_haproxy.belongs(name, "ironserve_replicas") for name in backends)
    assert not _haproxy.belongs("ironserve_replicas2", "ironserve_replicas")


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ([served("a", "m", "x"), served("b", "n", "x")], '"x" is a name of both models "m" and "n"'),
        ([served("a", "m"), served("b", "n"), served("c")], r"several models \(m, n\).* on c"),
        ([served("a", "m 1")], 'server "a".*model "m 1"'),
        ([served("a", "m'")], "has no blanks, quotes"),
        ([served("a", "m,n")], "has no blanks, quotes"),
        ([served("a", "")], "has no blanks, quotes"),
    ],
)
def test_models_that_cannot_be_told_apart_are_errors(servers, says):
    with pytest.raises(LLMError, match=says):
        _haproxy.model_groups(servers)


def test_servers_of_several_models_come_back_from_the_file_with_their_names():
    text = (
        "backend ironserve_replicas.m\n    # models: m org/m\n    server a 10.0.0.1:1 maxconn 1\n"
        "backend ironserve_replicas.n\n    # models: n\n    server b 10.0.0.1:2 maxconn 1\n"
        "backend ironserve_affinity\n    stick-table type string\nbackend other.m\n    # models: z\n    server z 10.0.0.1:3 maxconn 1\n"
    )
    found = _haproxy.config_servers(text)
    assert [(server.name, server.models) for server in found] == [("a", ("m", "org/m")), ("b", ("n",))]
    assert [server.name for server in _haproxy.config_servers(text, "other")] == ["z"]


def test_the_affinity_table():
    text = (
        "# table: ironserve_affinity, type: string, size:102400, used:3\n"
        "0x1: key=AA00 use=0 exp=100 shard=0 server_id=2 server_key=n-c1\n"
        "0x2: key=BB00 use=1 exp=200 server_id=0 server_key=-\n"
        "0x3: key=CC00 use=0 exp=300 server_id=1\n"
    )
    assert _haproxy.parse_table(text) == {"AA00": "n-c1"}
    # As it was given back after a reload, and is given back after the next one.
    assert _haproxy.parse_table(text, {1: "n-c0", 2: "n-c7"}) == {"AA00": "n-c1", "CC00": "n-c0"}
    for odd in ("", "Unknown command", "# table: x\n0x1: use=1\n"):
        with pytest.raises(UnknownOutput):
            _haproxy.parse_table(odd)


def test_queued_requests_count_the_backends_and_the_servers_own_queue():
    rows = [
        {"pxname": "ironserve_replicas.m", "svname": "a", "qcur": "2"},
        {"pxname": "ironserve_replicas.m", "svname": "BACKEND", "qcur": "3"},
        {"pxname": "ironserve_replicas.n", "svname": "BACKEND", "qcur": ""},
        {"pxname": "ironserve_api", "svname": "FRONTEND", "qcur": "9"},
    ]
    assert _haproxy.queued_requests(rows, "ironserve_replicas") == {"ironserve_replicas.m": 5, "ironserve_replicas.n": 0}


def test_planned_servers_refuse_two_replicas_of_one_name():
    out = {"plan": {"replicas": [{"name": "c0", "address": "a", "port": 1, "max_num_seqs": 1}]}}
    with pytest.raises(LLMError, match='"a" and "b" both have a replica "c0"'):
        _haproxy.planned_servers({"a": out, "b": out})


def test_identity_ignores_only_what_the_socket_can_change():
    text, identity = _haproxy.with_identity(CONFIG)
    assert "gateway " + identity in text and "@" not in text
    assert _haproxy.with_identity(CONFIG.replace(" disabled", ""))[1] == identity
    assert _haproxy.with_identity(CONFIG.replace("maxconn 4", "maxconn 5"))[1] != identity
    assert _haproxy.with_identity(CONFIG.replace(":8001", ":8011"))[1] != identity
    assert _haproxy.loaded_identity({"description": "ironserve.llm gateway " + identity}) == identity
    assert _haproxy.loaded_identity({}) == ""
    with pytest.raises(LLMError):
        _haproxy.with_identity(text)


def test_binds():
    assert _haproxy.binds(CONFIG + "frontend x\n    bind [::1]:8000\n    bind *:9\n    bind 127.0.0.1:8404 name y\n") == [
        ("127.0.0.1", 8000),
        ("127.0.0.1", 8404),
        ("::1", 8000),
        ("*", 9),
    ]


def test_map_paths():
    assert _haproxy.map_paths(CONFIG) == ["/etc/a/keys.map", "/etc/a/engine.map"]


def test_validation_error_is_the_line_of_haproxy_with_the_real_path():
    output = (
        "[NOTICE]   (1) : haproxy version is 2.6.12\n"
        "[ALERT]    (1) : config : parsing [/tmp/x/haproxy.cfg:7] : 'nbthread' value must be between 1 and 64 (was 9).\n"
        "[ALERT]    (1) : config : Error(s) found in configuration file : /tmp/x/haproxy.cfg\n"
        "[ALERT]    (1) : config : Fatal errors found in configuration.\n"
    )
    said = _haproxy.validation_error(output, "/tmp/x/haproxy.cfg", "/etc/g/haproxy.cfg")
    assert said == "parsing [/etc/g/haproxy.cfg:7] : 'nbthread' value must be between 1 and 64 (was 9)"
    assert _haproxy.validation_error("one\nlast words\n", "/tmp/x", "/etc/x") == "last words"
    assert _haproxy.validation_error("", "/tmp/x", "/etc/x") == "haproxy gave no reason"


def test_maxconn_fits_under_the_limit():
    limits = "Limit                Soft Limit  Hard Limit  Units\nMax open files       1024        20000       files\n"
    assert _haproxy.nofile_hard(limits) == 20000
    for servers in (1, 64):
        maxconn = _haproxy.maxconn_for(20000, servers, 50000)
        assert _haproxy.needed_nofile(maxconn, servers) <= 20000 < _haproxy.needed_nofile(maxconn + 1, servers)
    assert _haproxy.maxconn_for(2**31 - 1, 4, 10000) == 10000
    assert _haproxy.nofile_hard(limits.replace("20000", "unlimited")) > 10**6
    with pytest.raises(LLMError, match="limit of open files on this host is 256"):
        _haproxy.maxconn_for(256, 4, 10000)
    with pytest.raises(UnknownOutput):
        _haproxy.nofile_hard("Max processes 1 1\n")


@pytest.mark.parametrize(
    ("bits", "state"),
    [
        (0, "ready"),
        (1, "maint"),
        (2, "maint"),
        (4, "ready"),
        (5, "maint"),
        (8, "drain"),
        (16, "drain"),
        (9, "maint"),
        (32, "maint"),
        (64, "ready"),
    ],
)
def test_admin_state(bits, state):
    assert _haproxy.admin_state(bits) == state


def test_an_unknown_admin_bit_is_unknown():
    with pytest.raises(UnknownOutput, match="128"):
        _haproxy.admin_state(128)


def test_live_servers():
    text = dump(("n-c0", "10.0.0.1", 8001, 2, 0), ("n-c1", "10.0.0.1", 8002, 0, 8))
    live = _haproxy.live_servers(text)
    assert (live["n-c0"].admin, live["n-c0"].op, live["n-c0"].port) == ("ready", "running", 8001)
    assert (live["n-c1"].admin, live["n-c1"].op) == ("drain", "stopped")
    assert _haproxy.live_servers(text, "another") == {}
    for broken in ("", "2\n" + HEADER, "Permission denied\n", dump(("n-c0", "10.0.0.1", 8001, 7, 0))):
        with pytest.raises(UnknownOutput):
            _haproxy.live_servers(broken)


def test_lost_states_leave_out_what_was_meant_to_change():
    before = _haproxy.live_servers(
        dump(("a", "h", 1, 2, 8), ("b", "h", 2, 2, 1), ("c", "h", 3, 2, 8), ("d", "h", 4, 2, 8), ("e", "h", 5, 2, 0))
    )
    after = _haproxy.live_servers(dump(("a", "h", 1, 2, 0), ("b", "h", 2, 2, 1), ("c", "h", 33, 2, 0), ("e", "h", 5, 2, 5)))
    assert _haproxy.lost_states(before, after, set(), {"e"}) == {"a": "drain"}
    assert _haproxy.lost_states(before, after, set(), set()) == {"a": "drain", "e": "ready"}


def test_open_sessions_by_the_names_of_the_header():
    text = "# pxname,svname,new,scur,qcur,\nironserve_replicas,n-c0,x,3,1,\nironserve_replicas,BACKEND,x,3,9,\nother,n-c0,x,7,0,\n"
    assert _haproxy.open_sessions(_haproxy.parse_stat(text), "ironserve_replicas") == {"n-c0": 4}
    with pytest.raises(UnknownOutput):
        _haproxy.parse_stat("Unknown command\n")


def test_old_workers():
    text = (
        "#<PID> <type> <reloads> <uptime> <version>\n1 master 2 [failed: 0] 0d 2.6\n# workers\n9 worker 0 0d 2.6\n"
        "# old workers\n5 worker 1 0d 2.6\n7 worker 2 0d 2.6\n# programs\n"
    )
    assert _haproxy.old_workers(text) == [5, 7]
    assert _haproxy.old_workers("") == []


def test_info_of_something_else_is_unknown():
    assert _haproxy.parse_info("Name: HAProxy\nVersion: 2.6.12\ndescription: a b\n")["description"] == "a b"
    with pytest.raises(UnknownOutput):
        _haproxy.parse_info("hello\n")


def test_keys_are_stored_as_hashes():
    keys = [{"name": "a", "key": "k" * 16}, {"name": "a", "key": "K" * 16}, {"name": "b", "key": "x" * 20}]
    entries = _haproxy.checked_keys(keys)
    assert entries[hashlib.sha256(b"k" * 16).hexdigest()] == "a"
    assert _haproxy.parse_map_file(_haproxy.map_text(entries)) == entries
    assert "k" * 16 not in _haproxy.map_text(entries)
    assert all(len(line.split("sha256:")[1]) < 10 for line in _haproxy.masked_keys(entries).splitlines())


KNOWN = {"alpha": "alpha", "a": "alpha", "beta": "beta"}


@pytest.mark.parametrize(
    ("item", "entry"),
    [
        ({}, "me"),
        ({"expires": "2027-01-31"}, "me|1801353600|0|0|-|-"),
        ({"expires": "2027-01-31T12:00:01Z", "requests_per_minute": 7}, "me|1801396801|7|0|-|-"),
        ({"concurrent": 3}, "me|0|0|3|-|-"),
        ({"models": ["a"]}, "me|0|0|0|,alpha,|alpha"),
        ({"models": ["beta", "a", "alpha"]}, "me|0|0|0|,alpha,beta,|-"),
        ({"models": ["beta", "a"], "default_model": "alpha"}, "me|0|0|0|,alpha,beta,|alpha"),
        ({"default_model": "a"}, "me|0|0|0|-|alpha"),
    ],
)
def test_a_key_with_limits_has_them_in_its_entry(item, entry):
    found = _haproxy.checked_keys([{"name": "me", "key": "0123456789abcdef", **item}], KNOWN)
    assert list(found.values()) == [entry]
    assert _haproxy.entry_name(entry) == "me"


@pytest.mark.parametrize(
    ("item", "known", "says"),
    [
        ({"models": ["gamma"]}, KNOWN, 'client key "me": there is no model "gamma" here: .*Known: a, alpha, beta'),
        ({"models": ["alpha"]}, None, "do not say which models"),
        ({"models": ["beta"], "default_model": "a"}, KNOWN, 'default_model "a" is none of its models'),
        ({"expires": "31.1.2027"}, KNOWN, 'expires is a day such as .* not "31.1.2027"'),
        ({"requests_per_minute": -1}, KNOWN, "requests_per_minute is -1"),
        ({"concurrent": -1}, KNOWN, "concurrent is -1"),
    ],
)
def test_limits_that_mean_nothing_are_refused(item, known, says):
    with pytest.raises(LLMError, match=says):
        _haproxy.checked_keys([{"name": "me", "key": "0123456789abcdef", **item}], known)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ([{"name": "a", "key": "short-and-secret"[:9]}], 'client key "a"'),
        ([{"name": "a", "key": "with blanks in the secret"}], 'client key "a"'),
        ([{"name": "a b", "key": "k" * 16}], "number 1"),
        ([{"name": "", "key": "k" * 16}], "number 1"),
        ([{"name": "a", "key": "k" * 16}, {"name": "b", "key": "k" * 16}], '"a" and "b" are the same key'),
    ],
)
def test_bad_keys_are_named_and_never_shown(keys, says):
    with pytest.raises(LLMError) as caught:
        _haproxy.checked_keys(keys)
    assert says in str(caught.value)
    assert not any(item["key"] in str(caught.value) for item in keys)


def test_show_map():
    assert _haproxy.parse_show_map("0x55d8 abc name\n0x55d9 engine Bearer x\n") == {"abc": "name", "engine": "Bearer x"}
    assert _haproxy.parse_show_map("") == {}
    with pytest.raises(UnknownOutput):
        _haproxy.parse_show_map("Unknown map identifier.\n")


def test_nobody_behind_a_socket_is_no_gateway(tmp_path):
    path = str(tmp_path / "s")
    assert _haproxy.running(path) is None
    left_over = socket.socket(socket.AF_UNIX)
    left_over.bind(path)
    left_over.close()
    assert _haproxy.running(path) is None


def test_a_socket_that_never_answers_is_an_error_and_not_absent(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(path)
        mute.listen(1)
        with pytest.raises(LLMError, match="did not answer on"):
            _haproxy.AdminSocket(path, timeout_s=0.1).ask("show info")


def test_a_server_is_marked_disabled_and_back_and_no_other_line_changes():
    marked = _haproxy.with_disabled(CONFIG, {"node-1-c0": True})
    changed = [pair for pair in zip(CONFIG.splitlines(), marked.splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 1 and changed[0][1] == changed[0][0] + " disabled" and " node-1-c0 " in changed[0][0]
    assert _haproxy.with_disabled(marked, {"node-1-c0": True}) == marked
    assert _haproxy.with_disabled(marked, {"node-1-c0": False}) == CONFIG
    assert _haproxy.with_disabled(CONFIG, {"node": True, "nobody": True}) == CONFIG


SHOWN = """Filename: /etc/ironserve/gateway/tls.pem
Status: Used
Serial: 5E
notBefore: Nov 30 20:20:23 2026 GMT
notAfter: Dec 30 20:20:23 2026 GMT
Subject Alternative Name: IP Address:127.0.0.1
Algorithm: EC256
SHA1 FingerPrint: 0A1B2C3D4E5F60718293A4B5C6D7E8F901234567
Subject: /CN=first
"""


def test_certificate_in_use_is_known_by_its_fingerprint():
    assert _haproxy.certificate_fingerprint(SHOWN) == "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"
    assert _haproxy.certificate_fingerprint("Can't display the certificate: Not found or the certificate is a bundle!") == ""
    for text in ("", "Unknown command: 'show ssl'", SHOWN.replace("0A1B", "0A")):
        with pytest.raises(UnknownOutput, match="show ssl cert"):
            _haproxy.certificate_fingerprint(text)


def test_without_tls_only_the_certificates_go():
    text = "    bind 127.0.0.1:8000\n    bind [::]:8443 ssl crt /a b/c.pem alpn http/1.1\n    # ssl crt\n    bind *:9 ssl crt x\n"
    assert _haproxy.without_tls(text) == "    bind 127.0.0.1:8000\n    bind [::]:8443\n    # ssl crt\n    bind *:9\n"
    assert _haproxy.binds(text) == _haproxy.binds(_haproxy.without_tls(text)) == [("127.0.0.1", 8000), ("::", 8443), ("*", 9)]


def test_a_port_that_the_gateway_holds_may_move_to_another_address():
    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("0.0.0.0", 0))
        ours.listen(1)
        port = ours.getsockname()[1]
        _haproxy.require_bindable([("127.0.0.1", port)], {port})
        with pytest.raises(LLMError, match="cannot bind"):
            _haproxy.require_bindable([("127.0.0.1", port)])
    with socket.socket() as foreign:
        foreign.bind(("0.0.0.0", 0))
        foreign.listen(1)
        port = foreign.getsockname()[1]
        with pytest.raises(LLMError, match="cannot bind"):
            _haproxy.require_bindable([("127.0.0.1", port)], {port})


def test_one_changes_the_gateway_at_a_time(tmp_path):
    door = tmp_path / "gateway.sock"
    with _haproxy.turn(str(door)):
        assert list(tmp_path.iterdir()) == [], "nobody is behind it, so nobody is to be waited for"
    door.touch()
    order = []

    def second():
        with _haproxy.turn(str(door)):
            order.append("second")

    waits = threading.Thread(target=second)
    with _haproxy.turn(str(door)):
        assert (tmp_path / "gateway.sock.lock").stat().st_mode & 0o777 == 0o600
        waits.start()
        with pytest.raises(LLMError, match=r"gateway.sock: somebody else has been changing this gateway for 0.05 s"):
            with _haproxy.turn(str(door), wait_s=0.05):
                pass
        # A dry run changes nothing, so it need not wait.
        with _haproxy.turn(str(door), check=True):
            order.append("dry")
        order.append("first")
    waits.join(10)
    assert order == ["dry", "first", "second"]


def test_a_turn_ends_with_what_went_wrong_in_it(tmp_path):
    (tmp_path / "gateway.sock").touch()
    for _time in range(2):
        with pytest.raises(ValueError, match="wrong"), _haproxy.turn(str(tmp_path / "gateway.sock"), wait_s=0.05):
            raise ValueError("wrong")
