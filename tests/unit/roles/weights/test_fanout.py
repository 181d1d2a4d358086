# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role weights with several hosts, in a real play: the bytes come once, the hosts send them on, and what fails says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.fleet import free_port, manifest
from faults.hub_server import Hub
from faults.tiny_gguf import tiny_gguf

from ansible_collections.ironserve.llm.plugins.module_utils import _jobs, _manifest

ROOT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.slow
COLLECTIONS = ROOT.parents[2] if ROOT.parts[-3:] == ("ansible_collections", "ironserve", "llm") else ROOT / "collections"
NAME = "org/model"
FILES = {"model.gguf": tiny_gguf(("a.weight",)), "notes.txt": b"one\n" * 300_000}
NEWER = {"model.gguf": tiny_gguf(("a.weight",), fill=0x55), "notes.txt": b"two\n" * 300_000}
HOSTS = {"a": "127.0.0.21", "b": "127.0.0.22", "c": "127.0.0.23", "d": "127.0.0.24"}


class Site:
    """Four hosts, each an address and a directory of this machine, a hub, and the role."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder, self.hub, self.port = folder, hub, free_port([*HOSTS.values(), "127.0.0.20"])
        self.env = dict(os.environ, HOME=str(folder), ANSIBLE_COLLECTIONS_PATH=str(COLLECTIONS), ANSIBLE_NOCOLOR="1")
        self.env.update(ANSIBLE_LOCALHOST_WARNING="false", ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default", HF_HUB_OFFLINE="0")
        self.env.update(ANSIBLE_CONNECTION_PLUGINS=str(ROOT / "tests" / "faults" / "connection"))

    def weights(self, host: str) -> Path:
        return self.folder / host / "weights" / "m" / "v"

    def play(
        self, source: dict, files: dict, hosts: str = "all", fails: bool = False, options=(), play=None, other=None, **variables
    ) -> str:
        """Run the role on ``hosts``; those of ``other`` have the variables that it names besides."""
        recipe = {"name": "v", "format": "gguf", "entry": ".", "files": manifest(files), "source": source}
        common = {"ansible_connection": "near", "ansible_python_interpreter": sys.executable, "weights_fanout_port": self.port}
        common["catalog_out"] = {"weights": recipe, "model": {"name": "m"}}
        inventory = {host: {"weights_dir": str(self.folder / host / "weights"), "ansible_host": address} for host, address in HOSTS.items()}
        for host, own in (other or {}).items():
            inventory[host].update(own)
        settings = {
            "weights_download_dir": str(self.folder / "cache"),
            "weights_disk_margin_mib": 0,
            "llm_state_dir": str(self.folder / "state"),
            **variables,
        }
        tasks = [{"ansible.builtin.import_role": {"name": "ironserve.llm.weights"}}, {"ansible.builtin.debug": {"var": "weights_out.path"}}]
        (self.folder / "inventory.json").write_text(json.dumps({"all": {"hosts": inventory, "vars": common}}))
        plays = [{"hosts": hosts, "gather_facts": False, "any_errors_fatal": True, "vars": settings, "tasks": tasks, **(play or {})}]
        (self.folder / "play.json").write_text(json.dumps(plays))
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "inventory.json", "play.json", *options]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=600, check=False)
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def content(self, host: str) -> dict:
        root = self.weights(host)
        return {path: (root / path).read_bytes() for path in _manifest.tree_files(str(root))}

    def have(self, files: dict, hosts: str = "abcd") -> None:
        """Every host has exactly these weights, no job is left, and nothing else lies beside them."""
        for host in hosts:
            assert self.content(host) == files, host
            beside = {path.name for path in self.weights(host).parent.iterdir()} - {"v.kept"}
            assert beside == {"v", "v.manifest.json"}, host


@pytest.fixture
def site(tmp_path):
    with Hub() as hub:
        hub.commit = hub.repo(NAME, FILES)
        made = Site(tmp_path, hub)
        yield made
        for folder in tmp_path.rglob("*.job"):
            state = _jobs.look(str(folder))
            if state.running:
                os.killpg(state.pid, 9)


def mirror(site: Site) -> dict:
    return {"kind": "http", "url": f"{site.hub.url}/mirror/{NAME}"}


@pytest.mark.long
def test_one_download_for_all_and_then_a_ninth_host_and_the_way_back(site):
    said = site.play(mirror(site), FILES, hosts="a:b:c", options=["--check"])
    assert "m/v: a -> b -> c" in said and not site.weights("a").parent.exists()
    said = site.play(mirror(site), FILES, hosts="a:b:c", options=["--forks", "2", "-vvv"])
    site.have(FILES, "abc")
    assert "m/v: a -> b -> c" in said and site.hub.sent("notes.txt") == len(FILES["notes.txt"])
    # Nothing to do, nobody asked.
    said = site.play(mirror(site), FILES, hosts="a:b:c")
    assert said.count("changed=0") == 3
    # One more: from a host of the play that has them, whatever the source says.
    said = site.play({"kind": "http", "url": "http://127.0.0.1:9/gone"}, FILES)
    assert "m/v: a -> d" in said and said.count("changed=0") == 3
    site.have(FILES)
    # Others in their place, and back without any source.
    site.hub.repo(NAME, NEWER)
    site.play(mirror(site), NEWER)
    site.have(NEWER)
    said = site.play({"kind": "http", "url": "http://127.0.0.1:9/gone"}, FILES)
    site.have(FILES)
    assert "->" not in said
    site.play(mirror(site), FILES, weights_state="absent")
    assert not any((site.folder / host / "weights").exists() for host in HOSTS)


@pytest.mark.long
def test_from_the_controller_with_and_without_an_address_of_its_own(site):
    """A hub's files lie on the controller: the first host gets them over Ansible's connection, or from the controller like the others."""
    source = {"kind": "modelscope", "repo": NAME, "endpoint": site.hub.url}
    said = site.play(source, FILES, hosts="a:b:c")
    assert "m/v: a -> b -> c" in said
    site.have(FILES, "abc")
    site.hub.repo(NAME, NEWER)
    said = site.play(source, NEWER, hosts="a:b", weights_fanout_controller="127.0.0.20", weights_keep=0)
    assert "m/v: localhost -> a -> b" in said
    site.have(NEWER, "ab")
    # Not at all, when that is wanted.
    said = site.play(source, NEWER, hosts="c:d", weights_fanout=False, weights_keep=0)
    assert "->" not in said.replace("-> localhost", "")
    site.have(NEWER, "cd")


@pytest.mark.long
def test_one_holder_gives_two_models_at_once(site):
    """Two chains begin at the controller, or at one host, in the same tasks: each has a port of its own there."""
    recipe = {"name": "v", "format": "gguf", "entry": ".", "files": manifest(NEWER)}
    site.hub.repo("org/other", NEWER)
    hub = {"kind": "modelscope", "endpoint": site.hub.url}
    others = {"weights": dict(recipe, source=dict(hub, repo="org/other")), "model": {"name": "m"}}
    both = {host: {"catalog_out": others} for host in "cd"}
    said = site.play(dict(hub, repo=NAME), FILES, other=both, weights_fanout_controller="127.0.0.20")
    assert "m/v: localhost -> a -> b" in said and "m/v: localhost -> c -> d" in said
    site.have(FILES, "ab")
    site.have(NEWER, "cd")
    # The host that gives both takes weights of its own meanwhile, at the port that comes first.
    for host in "bcd":
        site.weights(host).rename(site.folder / f"away-{host}")
    third = dict(FILES, **{"notes.txt": b"three\n" * 300_000})
    site.hub.repo("org/third", third)
    from_a = {"kind": "host", "host": "a", "path": str(site.weights("a"))}
    from_other = dict(from_a, path=str(site.folder / "away-c"))
    own = {
        "a": {"catalog_out": {"weights": dict(recipe, files=manifest(third), source=dict(hub, repo="org/third")), "model": {"name": "n"}}},
        "b": {"catalog_out": {"weights": dict(recipe, files=manifest(FILES), source=from_a), "model": {"name": "m"}}},
        "c": {"catalog_out": {"weights": dict(recipe, source=from_other), "model": {"name": "m"}}},
    }
    said = site.play(from_other, NEWER, hosts="a:b:c", other=own, weights_fanout_controller="127.0.0.20")
    assert "n/v: localhost -> a" in said and "m/v: a -> b" in said and "m/v: a -> c" in said
    site.have(FILES, "b")
    site.have(NEWER, "c")
    assert (site.folder / "a/weights/n/v/notes.txt").read_bytes() == third["notes.txt"]


def test_batches_and_another_host_as_the_source(site):
    """One batch after the other: the second takes from a host of the first. And hosts of which some have the weights already."""
    said = site.play(mirror(site), FILES, play={"serial": 2})
    assert "m/v: a -> b" in said and "m/v: a -> c -> d" in said and site.hub.sent("notes.txt") == len(FILES["notes.txt"])
    site.have(FILES)
    source = {"kind": "host", "host": "d", "path": str(site.weights("d"))}
    for host in "bc":
        os.rename(site.weights(host), site.folder / f"away-{host}")
    said = site.play(source, FILES, hosts="b:c")
    assert "m/v: d -> b -> c" in said
    site.have(FILES)


def test_a_chain_that_cannot_begin_is_one_message_and_touches_nothing(site):
    site.play(mirror(site), FILES, hosts="a:b:c")
    before = {host: (site.weights(host) / "model.gguf").stat().st_ino for host in "abc"}
    site.hub.repo(NAME, NEWER)
    said = site.play(mirror(site), NEWER, hosts="a:b:c", fails=True, weights_fanout_address="192.0.2.1")
    assert "192.0.2.1 is no address of this host: set weights_fanout_address" in said
    # The first has them, for it needs nobody; the others serve what they had.
    assert site.content("a") == NEWER
    assert all(site.content(host) == FILES and (site.weights(host) / "model.gguf").stat().st_ino == before[host] for host in "bc")
    said = site.play(mirror(site), NEWER, hosts="a:b:c")
    assert "m/v: a -> b -> c" in said
    site.have(NEWER, "abc")
