# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the module does before and around the engine: no engine, busy ports, cache directories, the order of a replacement.

The whole life of a container on a real engine is in tests/integration.
"""

from __future__ import annotations

import os
import socket

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.modules import replica_containers


class NoContainers:
    """An engine that runs nothing."""

    def containers(self, **_filters):
        return []


def spec(name="ironserve-c0", **changes):
    values = {
        "name": name,
        "spec_hash": "new",
        "image": "img",
        "command": ["serve"],
        "stop_timeout_s": 1,
        "network": "ironserve",
        "own_devices": [],
        "mounts": [],
        "publish": {"address": "127.0.0.1", "port": 0, "container_port": 8000},
    }
    values.update(changes)
    return values


@pytest.fixture
def arguments(tmp_path):
    return {"specs": [spec()], "cache_dir": str(tmp_path / "cache"), "socket": str(tmp_path / "no.sock")}


def test_dry_run_on_a_virgin_host_says_what_would_come(run_module, arguments, tmp_path):
    result = run_module(replica_containers, arguments, check_mode=True)
    assert result["changed"] is True
    assert result["actions"] == [{"name": "ironserve-c0", "action": "create", "reason": "there is no such container"}]
    assert '"spec_hash": "new"' in result["diff"][0]["after"]
    assert list(tmp_path.iterdir()) == [], "a dry run makes nothing"


def test_without_an_engine_nothing_can_be_made(run_module, arguments):
    result = run_module(replica_containers, arguments)
    assert result["failed"] is True
    assert "no container engine answers on " + arguments["socket"] in result["msg"]


def test_without_an_engine_everything_is_absent(run_module, arguments):
    result = run_module(replica_containers, dict(arguments, state="absent"))
    assert result["changed"] is False
    assert result["actions"][0]["action"] == "keep"
    assert result["orphans"] == []


class Fleet:
    """An engine that has containers of replicas, by name and label, and runs none of them."""

    def __init__(self, **replicas):
        self.replicas = {name.replace("_", "-"): label for name, label in replicas.items()}

    def containers(self, **options):
        labels = {"ironserve.cards": "0000:0f:00.0"}
        if not options.get("filters"):
            return []
        return [{"Names": ["/" + name], "Labels": dict(labels, **{"ironserve.replica": label})} for name, label in self.replicas.items()]

    def inspect_container(self, name):
        raise replica_containers._docker.docker.errors.NotFound("gone")


def labelled(name, replica, card):
    return spec(name, labels={"ironserve.replica": replica, "ironserve.cards": card})


def test_what_another_name_of_the_inventory_made_is_no_orphan(run_module, arguments, monkeypatch):
    fleet = Fleet(ironserve_c1="a-chat-c1", ironserve_c2="a-large-c2", ironserve_c3="a-gone-c3", ironserve_c3_previous="a-gone-c3")
    monkeypatch.setattr(replica_containers._docker, "connect", lambda socket: fleet)
    arguments["specs"] = [labelled("ironserve-c0", "a-chat-c0", "0000:07:00.0")]
    result = run_module(replica_containers, dict(arguments, neighbours=["a-large", "b"]), check_mode=True)
    # Its own, and those of a name that is in the inventory no more.
    assert result["orphans"] == ["ironserve-c1", "ironserve-c3", "ironserve-c3-previous"]
    assert result["orphan_replicas"] == ["a-chat-c1", "a-gone-c3"], "what the gateway calls them"
    assert "ironserve-c2" in run_module(replica_containers, arguments, check_mode=True)["orphans"], "nobody was named"


def test_a_card_that_another_name_has_is_refused_before_anything_is_made(run_module, arguments, monkeypatch, tmp_path):
    monkeypatch.setattr(replica_containers._docker, "connect", lambda socket: Fleet(ironserve_c2="a-large-c2"))
    arguments["specs"] = [labelled("ironserve-c2", "a-chat-c2", "0000:0f:00.0")]
    result = run_module(replica_containers, dict(arguments, neighbours=["a-large"]))
    assert result["failed"] is True
    assert "a-chat-c2: card 0000:0f:00.0 has container ironserve-c2 of a-large" in result["msg"] and "--limit a-large" in result["msg"]
    assert not (tmp_path / "cache").exists()


def test_predecessor_named_on_its_own_goes_with_its_successor(run_module, arguments):
    arguments["specs"] = [spec("ironserve-c0-previous"), spec("ironserve-c0"), spec("ironserve-c1-previous")]
    result = run_module(replica_containers, dict(arguments, state="absent"))
    assert [item["name"] for item in result["actions"]] == ["ironserve-c0", "ironserve-c1-previous"]


def test_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert replica_containers.busy_port(NoContainers(), "127.0.0.1", port) == ""


def test_busy_port_names_the_process():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        text = replica_containers.busy_port(NoContainers(), "127.0.0.1", port)
    assert text.startswith("127.0.0.1:{0} is taken by ".format(port))
    assert "(pid {0})".format(os.getpid()) in text


def test_busy_port_names_the_container():
    class Engine:
        def containers(self, **_filters):
            return [{"Names": ["/grafana"], "Ports": [{"Type": "tcp", "PublicPort": port}]}]

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert "is taken by container grafana" in replica_containers.busy_port(Engine(), "127.0.0.1", port)


def test_address_that_is_not_ours_is_said():
    assert "cannot be bound" in replica_containers.busy_port(NoContainers(), "192.0.2.1", 1)


def test_cache_directory_is_private_and_the_engines(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("giving a directory to another user takes root")
    below = tmp_path / "cache"
    wanted = spec(mounts=[{"source": str(below / "c0/abc"), "owner": 64064}, {"source": "/nowhere"}])
    replica_containers.make_cache_dirs(wanted, str(below))
    for path, owner in ((below / "c0", 0), (below / "c0/abc", 64064)):
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (owner, owner, 0o700)


@pytest.mark.parametrize(
    "path", ["elsewhere", "elsewhere/a/b", "cache", "cache/c0", "cache/c0/a/b", "cache/../elsewhere/a", "cache-of-another/c0/a"]
)
def test_no_directory_is_made_or_emptied_elsewhere(tmp_path, path):
    wanted = spec(mounts=[{"source": str(tmp_path / path), "owner": 64064}])
    for act in (replica_containers.make_cache_dirs, replica_containers.drop_old_caches):
        with pytest.raises(LLMError, match="below"):
            act(wanted, str(tmp_path / "cache"))
    assert list(tmp_path.iterdir()) == []


def test_only_a_proved_image_s_cache_is_kept_and_nothing_behind_links_is_lost(tmp_path):
    below, treasure = tmp_path / "cache", tmp_path / "treasure"
    for path in (below / "c0/old/inductor/kernel", below / "c0/new/kernel", below / "c1/old/kernel", treasure / "kept"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (below / "c0/link").symlink_to(treasure)
    (below / "c0/of-an-older-version").write_text("x")
    replica_containers.drop_old_caches(spec(mounts=[{"source": str(below / "c0/new"), "owner": 64064}]), str(below))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "cache/c0/new/kernel",
        "cache/c1/old/kernel",
        "treasure/kept",
    ]


# Cards are free before the next engine starts on them


@pytest.fixture
def engine(monkeypatch):
    """An engine that only notes what it is told, and the containers it has; the wait for cards is noted too, and may fail."""

    class Engine:
        steps = []
        there = {}
        held = ""

        def start(self, name):
            self.steps.append(("start", name))

        def rename(self, name, other):
            self.steps.append(("rename", name, other))

        # What is waited for.
        def demand(self, cards):
            self.steps.append(("demand", *cards))
            if self.held:
                raise LLMError(self.held)

        def wait(self, cards):
            self.steps.append(("wait", *cards))
            return self.held

    client = Engine()
    client.steps, client.there = [], {}
    for word in ("stop", "remove"):
        monkeypatch.setattr(replica_containers._docker, word, lambda _client, name, *_more, word=word: client.steps.append((word, name)))
    monkeypatch.setattr(replica_containers._docker, "inspect", lambda _client, name: client.there.get(name))
    monkeypatch.setattr(replica_containers._docker, "create", lambda _client, spec: client.steps.append(("create", spec["name"])))
    return client


TWO_CARDS = {"labels": {"ironserve.cards": "0000:07:00.0,0000:0a:00.0"}}


def test_a_replacement_starts_when_its_cards_are_free(engine, tmp_path):
    replica_containers.apply(engine, spec(**TWO_CARDS), "replace", str(tmp_path), engine)
    assert engine.steps == [
        ("stop", "ironserve-c0"),
        ("rename", "ironserve-c0", "ironserve-c0-previous"),
        ("demand", "0000:07:00.0", "0000:0a:00.0"),
        ("create", "ironserve-c0"),
    ]


def test_cards_that_stay_held_leave_the_way_back(engine, tmp_path):
    engine.held = "card is held"
    with pytest.raises(LLMError, match="card is held"):
        replica_containers.apply(engine, spec(**TWO_CARDS), "replace", str(tmp_path), engine)
    assert ("rename", "ironserve-c0", "ironserve-c0-previous") in engine.steps, "what is to come back is known by its name"
    assert ("create", "ironserve-c0") not in engine.steps


def test_what_was_replaced_waits_for_its_cards_and_comes_back_in_any_case(engine, tmp_path):
    engine.held, engine.there = "card is held", {"ironserve-c0": {"State": {}}}
    replica_containers.apply(engine, spec(**TWO_CARDS), "revert", str(tmp_path), engine)
    assert engine.steps[2:] == [
        ("wait", "0000:07:00.0", "0000:0a:00.0"),
        ("start", "ironserve-c0-previous"),
        ("rename", "ironserve-c0-previous", "ironserve-c0"),
    ]


def test_a_first_start_waits_for_nothing(engine, tmp_path):
    replica_containers.apply(engine, spec(**TWO_CARDS), "create", str(tmp_path), engine)
    assert engine.steps == [("create", "ironserve-c0")]
    engine.steps, engine.there = [], {"ironserve-c0-previous": {"State": {}}}
    replica_containers.apply(engine, spec(**TWO_CARDS), "create", str(tmp_path), engine)
    assert engine.steps == [("stop", "ironserve-c0-previous"), ("demand", "0000:07:00.0", "0000:0a:00.0"), ("create", "ironserve-c0")]


@pytest.mark.parametrize("option", ["free_timeout_s", "idle_mib"])
def test_a_wait_below_nothing_is_refused(run_module, arguments, option):
    result = run_module(replica_containers, dict(arguments, **{option: -1}), check_mode=True)
    assert result["failed"] is True and "must be 0 or more" in result["msg"]
