# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where requests go: prefixes to the replica that knows them, models to their own replicas, keys within their limits."""

from __future__ import annotations

import calendar
import contextlib
import json
import subprocess
import sys
import threading
import time

import pytest
from integration.gateway.gateway_lab import HAPROXY, ROLE, free_port, server, until

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy


def chat(text, **more):
    """A request whose first user message is ``text``, behind a long system prompt that all share."""
    system = {"role": "system", "content": "You are helpful. " * 200}
    return {"messages": [system, {"role": "user", "content": text}], **more}


def raw_post(gateway, body, key=None, path="/v1/chat/completions", **headers):
    """Send a body of bytes; return status, answer, headers."""
    door = gateway.connect()
    try:
        door.request("POST", path, body, {"Authorization": "Bearer " + (key or gateway.key), **headers})
        answer = door.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers
    finally:
        door.close()


@pytest.fixture
def sticky(make):
    """A gateway with prefix affinity and four engines."""
    gateway = make(gateway_balance="prefix_affinity")
    engines = [make.engine() for _number in range(4)]
    servers = [server(f"n-c{number}", engine.port) for number, engine in enumerate(engines)]
    gateway.put(servers)
    return gateway, engines, servers


# What is read out of a body


CASES = [
    (b'{"model":"m1","messages":[{"role":"user","content":"hi"}]}', "m1", "hi"),
    (b'{"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}],"model":"m2"}', "m2", "hi"),
    (b' { "messages" : [ { "content" : "hi" , "role" : "user" } ] , "model" : "a\\u002fb" } ', "a/b", "hi"),
    (json.dumps({"model": "m", "prompt": "你好 😀"}).encode(), "m", "你好 😀"),
    (json.dumps({"model": "m", "prompt": "你好 😀"}, ensure_ascii=False).encode(), "m", "你好 😀"),
    (b'{"model":"m","prompt":["p1","p2"]}', "m", "p1"),
    (b'{"model":"m","prompt":[1, 2, 3]}', "m", "[1, 2, 3]}"),
    (
        b'{"model":"m","input":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"t"}]}]}',
        "m",
        "t",
    ),
    (b'{"messages":[{"role":"user","content":"\\"}],\\"model\\":\\"evil\\" \\\\"}],"model":"m"}', "m", '"}],"model":"evil" \\'),
    (b'{"x":{"model":"no"},"y":[{"model":"no"}],"model":"m","z":1.5e3}', "m", ""),
    (b'{"model":"a","mod\\u0065l":"b"}', "two models", ""),
    (b'{"model":null,"messages":[{"role":"assistant","content":"hi"}]}', "", ""),
    (b'{"model":7}', "", ""),
    (b'[{"model":"m"}]', "", ""),
    (b"model=m", "", ""),
    # Malformed, not cut: the engine says what is wrong with it.
    (b'{"model": "x", "messages": [', "", ""),
    (b'{"model": "x", "messages": [}', "", ""),
    (b'{"model": "x"', "", ""),
    (b'{"model": "x"} ', "x", ""),
    # Longer than the buffer, and named at the beginning: it is read.
    (b'{"model": "early", "prompt": "' + b"y" * 200_000 + b'"}', "early", "y" * 1024),
    (b'{"messages":[{"role":"user","content":"cut her', "", ""),
    (b'{"messages":[{"role":"user","content":"' + b"z" * 3000, "", "z" * 1024),
]


@pytest.mark.parametrize("escaped", [False, True])
def test_bodies_are_read_as_json(tmp_path, escaped):
    port = free_port()
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        f"global\n    tune.bufsize 65536\n    lua-load-per-thread {ROLE}/files/requests.lua\n"
        "defaults\n    mode http\n    timeout client 10s\n    timeout connect 1s\n    timeout server 10s\n"
        f"frontend f\n    bind 127.0.0.1:{port}\n    http-request wait-for-body time 5s\n"
        "    http-request set-var(txn.m) lua.ironserve_model,hex\n    http-request set-var(txn.p) req.body,lua.ironserve_prefix,hex\n"
        "    http-request return status 200 content-type text/plain lf-string '%[var(txn.m)] %[var(txn.p)]'\n",
        encoding="utf-8",
    )
    process = subprocess.Popen([HAPROXY, "-db", "-f", str(config)], stderr=subprocess.DEVNULL)
    try:
        import requests

        def ask(body):
            model, prefix = requests.post(f"http://127.0.0.1:{port}/", data=body, timeout=10).text.split(" ")
            return bytes.fromhex(model).decode(), bytes.fromhex(prefix).decode(errors="ignore")

        def answers():
            try:
                return ask(b"{}") == ("", "")
            except requests.ConnectionError:
                return False

        until(answers)
        if escaped:
            # Long ones, in which every character is an escape: raw or not, they have one beginning.
            text = "面包" * 2000
            assert ask(json.dumps({"prompt": text}).encode()) == ask(json.dumps({"prompt": text}, ensure_ascii=False).encode())
            assert ask(json.dumps({"prompt": text}).encode())[1] == text.encode()[:1024].decode(errors="ignore")
        else:
            assert {body: ask(body) for body, _model, _prefix in CASES} == {body: (model, prefix) for body, model, prefix in CASES}
    finally:
        process.terminate()
        process.wait(10)


# Prefix affinity


def test_a_prefix_stays_where_it_is_known_and_new_ones_spread(sticky):
    gateway, engines, _servers = sticky
    first = {number: gateway.post(chat(f"document {number}"))[1]["port"] for number in range(24)}
    for number, port in first.items():
        assert [gateway.post(chat(f"document {number}"))[1]["port"] for _again in range(3)] == [port] * 3
    assert set(first.values()) == {engine.port for engine in engines}
    counts = sorted(list(first.values()).count(engine.port) for engine in engines)
    # Idle ones in turn; from 3.0 on not quite.
    assert counts[0] >= 3
    # The second turn of a chat begins like its first.
    turns = chat("document 5")
    turns["messages"] += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}]
    assert gateway.post(turns)[1]["port"] == first[5]
    assert len(gateway.door.affinity()) == 24


def test_raw_and_escaped_chinese_are_one_key_at_any_length(sticky):
    gateway, _engines, _servers = sticky
    places = {}
    for length in (3, 700, 170_000):
        for begin in "甲乙丙丁":
            wish = {"prompt": begin + "字" * length, "model": "m"}
            ports = {raw_post(gateway, json.dumps(wish, ensure_ascii=ascii).encode())[1]["port"] for ascii in (True, False) * 2}
            assert len(ports) == 1, (length, begin)
            places[length, begin] = ports.pop()
    assert len(set(places.values())) == 4
    # 700 and 170,000 of one character begin alike.
    assert len(gateway.door.affinity()) == 8


def test_a_session_header_outweighs_the_prompt_and_belongs_to_its_key(sticky):
    gateway, _engines, _servers = sticky
    ports = {gateway.post(chat(f"question {number}"), **{"X-Session-Id": "s1"})[1]["port"] for number in range(8)}
    assert len(ports) == 1
    gateway.keys(client_keys=[{"name": "other", "key": "key-of-another-client"}])
    gateway.post(chat("question"), key="key-of-another-client", **{"X-Session-Id": "s1"})
    assert len(gateway.door.affinity()) == 2


def test_requests_without_a_prefix_are_balanced(sticky):
    gateway, engines, _servers = sticky
    ports = [gateway.post({"messages": [{"role": "assistant", "content": "a"}]})[1]["port"] for _number in range(8)]
    assert set(ports) == {engine.port for engine in engines}
    assert gateway.door.affinity() == {}


def test_a_hot_prefix_spills_when_its_replica_has_a_long_queue(make):
    gateway = make(gateway_balance="prefix_affinity", gateway_affinity_spill=1, gateway_affinity_copies=1)
    engines = [make.engine(), make.engine()]
    gateway.put([server("n-c0", engines[0].port), server("n-c1", engines[1].port)])
    home = gateway.post(chat("hot"))[1]["port"]
    owner, other = engines if engines[0].port == home else engines[::-1]
    name = "n-c0" if owner is engines[0] else "n-c1"
    for engine in engines:
        engine.gate.clear()
    threads = [threading.Thread(target=gateway.post, args=(chat("hot"),)) for _number in range(4)]
    try:
        for thread in threads[:2]:
            thread.start()
        until(lambda: owner.busy == 2)
        # Two places taken, two may wait, as many as it has places; none goes elsewhere, though elsewhere all is idle.
        for thread in threads[2:]:
            thread.start()
        until(lambda: gateway.door.sessions()[name] == 4)
        assert (owner.busy, other.busy) == (2, 0)
        threads.append(threading.Thread(target=gateway.post, args=(chat("hot"),)))
        threads[-1].start()
        until(lambda: other.busy == 1)
        assert owner.most == 2
    finally:
        for engine in engines:
            engine.gate.set()
        for thread in threads:
            thread.join(20)


def test_a_hot_prefix_is_learned_by_a_second_replica_and_a_reload_forgets_neither(make):
    gateway = make(gateway_balance="prefix_affinity")
    engines = [make.engine(), make.engine(), make.engine()]
    servers = [server(f"n-c{place}", engine.port) for place, engine in enumerate(engines)]
    gateway.put(servers)
    home = gateway.post(chat("hot"))[1]["port"]
    owner = next(engine for engine in engines if engine.port == home)
    others = [engine for engine in engines if engine is not owner]
    for engine in engines:
        engine.gate.clear()
    threads = [threading.Thread(target=gateway.post, args=(chat("hot"),)) for _number in range(5)]
    try:
        # Two places and half as many again: no more than one waits.
        for thread in threads[:3]:
            thread.start()
        until(lambda: sum(gateway.door.sessions().values()) == 3 and owner.busy == 2)
        assert [engine.busy for engine in others] == [0, 0]
        threads[3].start()
        until(lambda: sum(engine.busy for engine in others) == 1)
        threads[4].start()
        until(lambda: sum(engine.busy for engine in others) == 2)
        assert owner.most == 2
    finally:
        for engine in engines:
            engine.gate.set()
        for thread in threads:
            thread.join(20)
    first, second = (gateway.door.affinity(table) for table in _haproxy.AFFINITY_TABLES[:2])
    assert set(first) == set(second) and len(first) == 1
    (learner,) = second.values()
    assert first[next(iter(second))] != learner
    # Nothing is under way: the first one has it, as before.
    assert {gateway.post(chat("hot"))[1]["port"] for _number in range(4)} == {home}
    # Others keep the first one busy, beyond its places: the second has room.
    other = next(number for number in range(99) if gateway.post(chat(f"document {number}"))[1]["port"] == home)
    for engine in engines:
        engine.gate.clear()
    threads = [threading.Thread(target=gateway.post, args=(chat(f"document {other}"),)) for _number in range(3)]
    threads.append(threading.Thread(target=gateway.post, args=(chat("hot"),)))
    try:
        for thread in threads[:3]:
            thread.start()
        until(lambda: gateway.door.sessions()[f"n-c{engines.index(owner)}"] == 3)
        threads[3].start()
        until(lambda: engines[int(learner[-1])].busy == 1)
    finally:
        for engine in engines:
            engine.gate.set()
        for thread in threads:
            thread.join(20)
    # Whoever is out gets none of it, neither as the first nor as a later one.
    gateway.set(**{f"n-c{engines.index(owner)}": "maint"})
    assert gateway.post(chat("hot"))[1]["port"] != home
    before = [gateway.door.affinity(table) for table in _haproxy.AFFINITY_TABLES]
    result = gateway.put([*servers, server("n-c9", make.engine().port)])
    assert result["action"] == "reloaded"
    assert [gateway.door.affinity(table) for table in _haproxy.AFFINITY_TABLES] == before
    assert result["affinity_restored"] == sum(len(known) for known in before) > 2


@contextlib.contextmanager
def held(gateway, engines, wish, count):
    """Send ``count`` equal requests that are all under way, none of them answered, in the block."""
    for engine in engines:
        engine.gate.clear()
    threads = [threading.Thread(target=gateway.post, args=(wish,)) for _number in range(count)]
    try:
        for number, thread in enumerate(threads):
            before = sum(gateway.door.sessions().values())
            thread.start()
            until(lambda before=before: sum(gateway.door.sessions().values()) > before)
            assert before == number
        yield
    finally:
        for engine in engines:
            engine.gate.set()
        for thread in threads:
            thread.join(20)
        until(lambda: not sum(gateway.door.sessions().values()))


def teach(gateway, *names):
    """Have replicas know a prompt that one knows already, the first one in the first table; "" for none in a table."""
    (key,) = gateway.door.affinity()
    servers = gateway.door.servers()
    for table, name in zip(_haproxy.AFFINITY_TABLES, names, strict=False):
        gateway.door.ask(f"clear table {table} key {key}")
        if name:
            gateway.door.order(f"set table {table} key {key} data.server_id {servers[name].number}", "teach")


@pytest.mark.parametrize("lost", ["maint", "dead"])
def test_a_hot_prefix_goes_to_the_rest_that_know_it_when_one_is_lost(sticky, lost):
    gateway, engines, _servers = sticky
    gateway.post(chat("hot"))
    teach(gateway, "n-c0", "n-c3")
    if lost == "dead":
        engines[0].stop()
        # The first who is refused there takes it out.
        until(lambda: gateway.post({})[0] == 200 and gateway.info()["down"] == ["n-c0"])
    else:
        gateway.set(**{"n-c0": "maint"})
    # No answer has said yet who has it from now on.
    with held(gateway, engines, chat("hot"), 2):
        until(lambda: sum(engine.busy for engine in engines) == 2)
        assert [engine.busy for engine in engines] == [0, 0, 0, 2]


def test_a_prefix_that_only_a_later_table_holds_is_known(sticky):
    gateway, engines, _servers = sticky
    gateway.post(chat("hot"))
    teach(gateway, "", "", "n-c2")
    assert [gateway.post(chat("hot"))[1]["port"] for _number in range(6)] == [engines[2].port] * 6


def test_a_replica_that_knows_a_prefix_twice_is_no_second_one(sticky):
    gateway, engines, _servers = sticky
    gateway.post(chat("hot"))
    teach(gateway, "n-c1", "n-c1", "n-c1")
    with held(gateway, engines, chat("hot"), 4):
        until(lambda: sum(engine.busy for engine in engines) == 3)
        assert engines[1].busy == 2
    assert len({next(iter(gateway.door.affinity(table).values())) for table in _haproxy.AFFINITY_TABLES}) == 2


def test_a_small_replica_is_full_and_hot_by_its_own_places(make):
    gateway = make(gateway_balance="prefix_affinity", gateway_affinity_copies=2, gateway_affinity_spill=2)
    engines = [make.engine() for _number in range(3)]
    gateway.put(
        [server(f"n-c{place}", engine.port, places=places) for place, (engine, places) in enumerate(zip(engines, (1, 2, 8), strict=True))]
    )
    gateway.post(chat("hot"))
    teach(gateway, "n-c0")
    # One place, and half as many again is less than two: the second is hot, long before it would be on the largest one.
    with held(gateway, engines, chat("hot"), 2):
        until(lambda: sum(engine.busy for engine in engines) == 2)
        assert engines[0].busy == 1
    teach(gateway, "n-c0", "n-c1")
    # One of one is full, one of two is not.
    with held(gateway, engines, chat("hot"), 3):
        assert [gateway.door.sessions()[f"n-c{place}"] for place in range(3)] == [1, 2, 0]


def test_prefixes_that_are_not_hot_have_one_replica_each(sticky):
    gateway, _engines, _servers = sticky
    threads = [threading.Thread(target=gateway.post, args=(chat(f"document {number % 8}"),)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(gateway.door.affinity()) == 8
    assert [gateway.door.affinity(table) for table in _haproxy.AFFINITY_TABLES[1:]] == [{}, {}]


def test_maintenance_moves_the_keys_of_its_server_and_no_others(sticky):
    gateway, engines, _servers = sticky
    first = {number: gateway.post(chat(f"document {number}"))[1]["port"] for number in range(16)}
    stream = gateway.connect()
    stream.request("POST", "/v1/chat/completions", json.dumps(chat("document 0", stream=3)), {"Authorization": "Bearer " + gateway.key})
    answer = stream.getresponse()
    assert answer.readline() == b"data: 0\n"
    gone = first[0]
    name = f"n-c{[engine.port for engine in engines].index(gone)}"
    # A drain that let known prefixes in would wait until its time is over; the open stream is reported.
    result = gateway.set(wait_s=0.2, **{name: "drain"})
    assert (result["open_sessions"], result["servers"][0]["after"]) == (1, "maint")
    second = {number: gateway.post(chat(f"document {number}"))[1]["port"] for number in range(16)}
    moved = [number for number in first if first[number] != second[number]]
    assert moved == [number for number in first if first[number] == gone]
    assert gone not in second.values()
    engines[[engine.port for engine in engines].index(gone)].step.set()
    assert answer.read().endswith(b"data: 2\n\n")
    # Back again, it gets what is new; what moved stays.
    gateway.set(**{name: "ready"})
    assert {number: gateway.post(chat(f"document {number}"))[1]["port"] for number in range(16)} == second


def test_drain_under_load_ends_though_its_prefixes_go_on_coming(sticky):
    gateway, engines, _servers = sticky
    home = gateway.post(chat("hot"))[1]["port"]
    name = f"n-c{[engine.port for engine in engines].index(home)}"
    statuses, stop = [], threading.Event()

    def loop():
        while not stop.is_set():
            statuses.append(gateway.post(chat("hot"))[0])

    threads = [threading.Thread(target=loop) for _number in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(statuses) > 10)
    result = gateway.set(wait_s=20, **{name: "drain"})
    stop.set()
    for thread in threads:
        thread.join(20)
    assert result["open_sessions"] == 0
    assert result["waited_s"] < 10
    assert set(statuses) == {200}


def test_a_reload_forgets_no_prefix_even_when_servers_are_renumbered(sticky, make):
    gateway, engines, servers = sticky
    first = {number: gateway.post(chat(f"document {number}"))[1]["port"] for number in range(250)}
    result = gateway.put([server("a-c0", make.engine().port), *servers[1:]])
    kept = {number: port for number, port in first.items() if port != engines[0].port}
    assert result["action"] == "reloaded"
    assert result["affinity_restored"] == len(kept)
    assert {number: gateway.post(chat(f"document {number}"))[1]["port"] for number in kept} == kept


def test_prefixes_of_several_models_outlive_reloads_that_nobody_used_them_between(make):
    gateway = make(gateway_balance="prefix_affinity")
    engines = [make.engine() for _number in range(4)]
    servers = [server(f"n-c{place}", engine.port, models=[("alpha", "beta")[place // 2]]) for place, engine in enumerate(engines)]
    gateway.put(servers)
    wishes = [chat(f"document {number}", model=model) for number in range(10) for model in ("alpha", "beta")]
    first = [gateway.post(wish)[1]["port"] for wish in wishes]
    assert set(first) == {engine.port for engine in engines}
    for seconds in (7, 8):
        assert gateway.put(servers, gateway_retry_after_s=seconds)["affinity_restored"] == len(wishes)
    assert [gateway.post(wish)[1]["port"] for wish in wishes] == first


def test_without_copies_and_spill_a_prefix_never_goes_elsewhere(make):
    gateway = make(gateway_balance="prefix_affinity", gateway_affinity_copies=1, gateway_affinity_spill=0)
    engines = [make.engine(), make.engine()]
    gateway.put([server(f"n-c{place}", engine.port, places=1) for place, engine in enumerate(engines)])
    gateway.post(chat("hot"))
    teach(gateway, "n-c1")
    with held(gateway, engines, chat("hot"), 8):
        assert [gateway.door.sessions()[f"n-c{place}"] for place in range(2)] == [0, 8]


def test_an_unreadable_table_is_unknown():
    with pytest.raises(_haproxy.UnknownOutput):
        _haproxy.parse_table("something else")


# Several models


@pytest.fixture
def models(make):
    """Two models with two names each, two engines for the first and one for the second."""
    gateway = make()
    engines = [make.engine() for _number in range(3)]
    servers = [
        server("n-c0", engines[0].port, models=["alpha", "org/alpha-1.0"]),
        server("n-c1", engines[1].port, models=["alpha", "org/alpha-1.0"]),
        server("n-c2", engines[2].port, models=["beta/b", "b"]),
    ]
    gateway.put(servers)
    return gateway, engines, servers


def test_each_model_has_its_own_replicas_under_all_its_names(models):
    gateway, engines, _servers = models
    alpha, beta = {engines[0].port, engines[1].port}, {engines[2].port}
    for name, ports in (("alpha", alpha), ("org/alpha-1.0", alpha), ("beta/b", beta), ("b", beta)):
        assert {gateway.post(chat("x", model=name))[1]["port"] for _number in range(6)} == ports, name
        # After messages longer than any buffer was, as the openai client sends it; escaped too.
        body = json.dumps({"messages": [{"role": "user", "content": "字" * 120_000}], "model": name}).encode()
        assert len(body) > 700_000
        assert raw_post(gateway, body)[1]["port"] in ports, name


def test_an_unknown_model_is_refused_with_the_known_ones(models):
    gateway, engines, _servers = models
    for name in ("gamma", "Alpha", "alpha ", "alph", "字", "alpha\n", 'x"y'):
        status, body, _headers = gateway.post(chat("x", model=name))
        assert (status, body["error"]["code"]) == (404, "model_not_found"), name
        assert body["error"]["message"] == "The model does not exist here. Known: alpha, b, beta/b, org/alpha-1.0"
    for body in (b'{"model":"alpha","model":"beta/b"}', b'{"model":"alpha","messages":[],"m\\u006fdel":"beta/b"}'):
        assert raw_post(gateway, body)[0] == 404
    assert not any(engine.seen for engine in engines)


def test_a_model_that_cannot_be_read_goes_to_the_keys_own_or_nowhere(models):
    gateway, engines, _servers = models
    gateway.keys(
        models=gateway.names,
        client_keys=[
            {"name": "one", "key": "key-for-one-model-only", "models": ["b"]},
            {"name": "two", "key": "key-with-a-default-one", "default_model": "org/alpha-1.0"},
        ],
    )
    late = json.dumps({"messages": [{"role": "user", "content": "x" * 1_200_000}], "model": "beta/b"}).encode()
    for body in (b"{}", b'{"model":null}', b"not json", late):
        status, answer, _headers = raw_post(gateway, body)
        assert (status, answer["error"]["code"]) == (400, "model_required")
        assert "Put model before messages. Known: alpha, b" in answer["error"]["message"]
    assert not any(engine.seen for engine in engines)
    assert raw_post(gateway, late, key="key-for-one-model-only")[1]["port"] == engines[2].port
    assert raw_post(gateway, late, key="key-with-a-default-one")[1]["port"] in (engines[0].port, engines[1].port)


def test_a_key_is_good_for_its_models_only(models):
    gateway, engines, _servers = models
    narrow = {"name": "one", "key": "key-for-one-model-only", "models": ["b"]}
    assert gateway.keys(models=gateway.names, client_keys=[narrow])["added"] == ["one"]

    def listed(key):
        door = gateway.connect()
        door.request("GET", "/v1/models", headers={"Authorization": "Bearer " + key})
        answer = json.loads(door.getresponse().read())
        door.close()
        assert answer["object"] == "list"
        return [item["id"] for item in answer["data"]]

    assert listed(narrow["key"]) == ["beta/b"]
    assert listed(gateway.key) == ["alpha", "beta/b"]
    assert [gateway.post(chat("x", model=name), key=narrow["key"])[0] for name in ("b", "beta/b", "alpha", "org/alpha-1.0")] == [
        200,
        200,
        403,
        403,
    ]
    assert gateway.post(chat("x", model="alpha"), key=narrow["key"])[1]["error"]["code"] == "model_not_allowed"
    assert not engines[0].seen and not engines[1].seen
    # Without a reload it may use another, and no longer the first.
    pids = gateway.info()["pids"]
    result = gateway.keys(models=gateway.names, client_keys=[dict(narrow, models=["alpha"])])
    assert (result["added"], result["removed"], result["limits_changed"]) == ([], [], ["one"])
    assert [gateway.post(chat("x", model=name), key=narrow["key"])[0] for name in ("b", "alpha")] == [403, 200]
    assert gateway.info()["pids"] == pids


def test_states_and_drains_know_every_models_servers(models):
    gateway, engines, servers = models
    assert gateway.info()["states"] == {"n-c0": "ready", "n-c1": "ready", "n-c2": "ready"}
    gateway.set(**{"n-c2": "drain", "n-c0": "maint"})
    status, body, headers = gateway.post(chat("x", model="b"))
    assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "overloaded", "5")
    assert {gateway.post(chat("x", model="alpha"))[1]["port"] for _number in range(4)} == {engines[1].port}
    # The reload keeps them, and the file says which models its servers have.
    assert gateway.put(servers, gateway_retry_after_s=9)["restored"] == {}
    assert gateway.info()["states"] == {"n-c0": "maint", "n-c1": "ready", "n-c2": "maint"}
    assert [item["models"] for item in gateway.info()["servers"]] == [["alpha", "org/alpha-1.0"]] * 2 + [["beta/b", "b"]]


def test_a_second_model_joins_and_leaves_without_a_lost_request_or_state(make):
    gateway = make()
    engines = [make.engine() for _number in range(3)]
    one = [server("n-c0", engines[0].port, models=["alpha"]), server("n-c1", engines[1].port, models=["alpha"])]
    one[1]["proven"] = False
    gateway.put(one)
    statuses, stop = [], threading.Event()

    def loop():
        while not stop.is_set():
            statuses.append(gateway.post(chat("x", model="alpha"))[0])

    thread = threading.Thread(target=loop)
    thread.start()
    for servers in ([*one, server("n-c2", engines[2].port, models=["beta"])], one):
        assert gateway.put(servers)["action"] == "reloaded"
        assert gateway.info()["states"]["n-c1"] == "maint"
        at = len(statuses)
        until(lambda at=at: len(statuses) > at + 10)
    stop.set()
    thread.join(20)
    assert set(statuses) == {200}
    assert not engines[1].seen


def test_one_model_stays_simple_and_an_unknown_name_is_refused(make):
    gateway, engine = make(), make.engine()
    gateway.put([server("n-c0", engine.port, models=["alpha", "a"])])
    assert gateway.config.read_text(encoding="utf-8").count("\nbackend ") == 1
    for wish in (chat("x", model="alpha"), chat("x", model="a"), chat("x"), {}):
        assert gateway.post(wish)[0] == 200
    assert raw_post(gateway, b"not json")[0] == raw_post(gateway, b'{"model": "x", "messages": [')[0] == 200
    status, body, _headers = gateway.post(chat("x", model="gpt-5"))
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert body["error"]["message"].endswith("Known: a, alpha")
    door = gateway.connect()
    door.request("GET", "/v1/models", headers={"Authorization": "Bearer " + gateway.key})
    assert json.loads(door.getresponse().read())["port"] == engine.port
    door.close()


def test_the_log_says_which_key_used_which_model(make):
    gateway = make(gateway_access_log=True)
    engines = [make.engine(), make.engine()]
    gateway.put([server("n-c0", engines[0].port, models=["alpha", "a"]), server("n-c1", engines[1].port, models=["beta"])])
    gateway.keys(models=gateway.names, client_keys=[{"name": "me", "key": "key-of-a-client-0001"}])
    wishes = [chat("x", model=name) for name in ("a", "alpha", "beta", "gamma")]
    assert [gateway.post(wish, key="key-of-a-client-0001")[0] for wish in wishes] == [200, 200, 200, 404]
    said = gateway.door.ask("show events ironserve_log")
    result = subprocess.run(
        [sys.executable, ROLE / "files/usage.py", "--json"], input=said, capture_output=True, text=True, check=True, timeout=30
    )
    rows = [(row["key"], row["model"], row["requests"], row["failed"]) for row in json.loads(result.stdout)]
    assert rows == [("me", "alpha", 2, 0), ("me", "-", 1, 1), ("me", "beta", 1, 0)]
    assert "You are helpful" not in said and "key-of-a-client-0001" not in said and "gamma" not in said


# Limits


def test_an_expired_key_is_refused_from_that_second_on(make):
    gateway, engine = make(), make.engine()
    gateway.put([server("n-c0", engine.port)])
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2.5))
    gateway.keys(client_keys=[{"name": "short", "key": "key-that-ends-in-two-s", "expires": end}])
    assert gateway.post(key="key-that-ends-in-two-s")[0] == 200
    until(lambda: gateway.post(key="key-that-ends-in-two-s")[0] == 401)
    assert time.time() >= calendar.timegm(time.strptime(end, "%Y-%m-%dT%H:%M:%SZ"))
    assert gateway.post(key="key-that-ends-in-two-s")[1]["error"]["code"] == "expired_api_key"
    assert gateway.post()[0] == 200


def test_a_key_has_its_own_rate_and_the_others_theirs(make):
    gateway, engine = make(gateway_rate_limit_per_minute=5), make.engine()
    gateway.put([server("n-c0", engine.port)])
    # Two keys of one name count together, which is how a key is changed.
    keys = [{"name": "slow", "key": f"key-number-{number}-of-slow", "requests_per_minute": 2} for number in (1, 2)]
    gateway.keys(client_keys=keys)
    assert [gateway.post(key=keys[number % 2]["key"])[0] for number in range(4)] == [200, 200, 429, 429]
    answers = [gateway.post() for _number in range(6)]
    assert [status for status, _body, _headers in answers] == [200] * 5 + [429]
    assert answers[-1][2]["Retry-After"] == "5"
    gateway.keys(client_keys=[dict(keys[0], requests_per_minute=100)])
    assert gateway.post(key=keys[0]["key"])[0] == 200


def test_a_key_has_so_many_requests_at_a_time(make):
    gateway, engine = make(), make.engine()
    gateway.put([server("n-c0", engine.port, places=8)])
    gateway.keys(client_keys=[{"name": "two", "key": "key-with-two-at-a-time", "concurrent": 2}])
    engine.gate.clear()
    threads = [threading.Thread(target=gateway.post, kwargs={"key": "key-with-two-at-a-time"}) for _number in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: engine.busy == 2)
    status, body, headers = gateway.post(key="key-with-two-at-a-time")
    assert (status, body["error"]["code"], headers["Retry-After"]) == (429, "concurrency_limit_exceeded", "5")
    engine.gate.set()
    for thread in threads:
        thread.join(20)
    until(lambda: gateway.post(key="key-with-two-at-a-time")[0] == 200)


def test_an_address_has_so_many_requests_and_connections(make):
    gateway, engine = make(gateway_ip_rate_limit_per_minute=4, gateway_ip_connections=3), make.engine()
    gateway.put([server("n-c0", engine.port)])
    # Guessing keys counts too.
    answers = [gateway.post(key=f"wrong-key-number-{number}") for number in range(6)]
    assert [status for status, _body, _headers in answers] == [401] * 4 + [429] * 2
    assert answers[-1][2]["Retry-After"] == "5"
    until(lambda: "\nCurrConns: 0" in gateway.door.ask("show info"))
    doors = [gateway.connect() for _number in range(3)]
    for door in doors:
        door.connect()
    until(lambda: "\nCurrConns: 3" in gateway.door.ask("show info"))
    with pytest.raises((ConnectionError, OSError)):
        gateway.post()
    for door in doors:
        door.close()
    until(lambda: "\nCurrConns: 0" in gateway.door.ask("show info"))
    assert gateway.post()[0] == 429


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(make):
    gateway, engine = make(gateway_max_queue=2), make.engine()
    gateway.put([server("n-c0", engine.port, places=1)])
    engine.gate.clear()
    statuses = []
    threads = [threading.Thread(target=lambda: statuses.append(gateway.post()[0])) for _number in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: gateway.door.queued() == {"ironserve_replicas": 2})
    status, body, headers = gateway.post()
    assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "queue_full", "5")
    engine.gate.set()
    for thread in threads:
        thread.join(20)
    assert statuses == [200] * 3
    assert gateway.info()["queued"] == {"ironserve_replicas": 0}
