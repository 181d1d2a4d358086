# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role weights from end to end, with a real ansible-playbook and a hub on this machine: what comes, what is refused, what stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.hub_server import Hub, sha256
from faults.tiny_gguf import tiny_gguf

from ansible_collections.ironserve.llm.plugins.module_utils import _manifest

ROOT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.slow
COLLECTIONS = ROOT.parents[2] if ROOT.parts[-3:] == ("ansible_collections", "ironserve", "llm") else ROOT / "collections"
NAME = "org/model"
FILES = {"model.gguf": tiny_gguf(("a.weight",)), "notes.txt": b"one\n"}
NEWER = {"model.gguf": tiny_gguf(("a.weight",), fill=0x55), "notes.txt": b"two\n"}


def manifest(files) -> list[dict]:
    return [{"path": path, "size": len(data), "sha256": sha256(data)} for path, data in files.items()]


class Site:
    """One or two hosts, all on this machine, a hub, and the role."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder, self.hub = folder, hub
        self.env = dict(os.environ, HOME=str(folder), ANSIBLE_COLLECTIONS_PATH=str(COLLECTIONS), ANSIBLE_NOCOLOR="1")
        self.env.update(ANSIBLE_LOCALHOST_WARNING="false", ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default", HF_HUB_OFFLINE="0")

    def weights(self, host: str = "one") -> Path:
        return self.folder / host / "weights" / "m" / "v"

    def play(self, source: dict, files=(), host: str = "one", fails: bool = False, **variables) -> str:
        recipe = {"name": "v", "format": "gguf", "entry": ".", "files": manifest(files) if files else [], "source": source}
        hosts = {name: {"weights_dir": str(self.folder / name / "weights")} for name in ("one", "two")}
        common = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        inventory = {"all": {"hosts": hosts, "vars": common}}
        settings = {
            "catalog_out": {"weights": recipe, "model": {"name": "m"}},
            "weights_download_dir": str(self.folder / "cache"),
            "weights_disk_margin_mib": 0,
            "weights_download_retries": 1,
            **variables,
        }
        tasks = [{"ansible.builtin.import_role": {"name": "ironserve.llm.weights"}}]
        tasks.append({"ansible.builtin.debug": {"var": "weights_out"}})
        (self.folder / "inventory.json").write_text(json.dumps(inventory))
        (self.folder / "play.json").write_text(json.dumps([{"hosts": host, "gather_facts": False, "vars": settings, "tasks": tasks}]))
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "inventory.json", "play.json"]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=300, check=False)
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def content(self, host: str = "one") -> dict:
        root = self.weights(host)
        return {path: (root / path).read_bytes() for path in _manifest.tree_files(str(root))}


@pytest.fixture
def site(tmp_path):
    with Hub() as hub:
        hub.commit = hub.repo(NAME, FILES)
        yield Site(tmp_path, hub)


def test_from_the_hub_to_nothing_left(site):
    """A recipe without files takes the hub's list once; wrong bytes never touch what serves; absent leaves nothing."""
    source = {"kind": "modelscope", "repo": NAME, "endpoint": site.hub.url}
    said = site.play(source)
    assert site.content() == FILES
    document = _manifest.read_document(str(site.weights()) + ".manifest.json")
    assert document["source"]["commit"] == site.hub.commit and document["manifest_id"] in said
    assert "m/v: 2 of 2 files are to come, 196.00 Bytes, from modelscope org/model;" in said
    assert sorted(path.name for path in site.weights().parent.iterdir()) == ["v", "v.manifest.json"]
    # The branch moves, the hub goes away: what was listed is the recipe, and nobody is asked.
    site.hub.repo(NAME, NEWER)
    asked, inode = len(site.hub.requests), (site.weights() / "model.gguf").stat().st_ino
    said = site.play(source, weights_offline=True)
    assert "changed=0" in said and site.content() == FILES and len(site.hub.requests) == asked
    # The new list is taken when asked for, but the hub gives wrong bytes for it.
    site.hub.fault("model.gguf", flip=True)
    said = site.play(source, weights_refresh=True, fails=True)
    assert "model.gguf: modelscope org/model at master" in said and "delivered wrong bytes" in said
    assert site.content() == FILES and (site.weights() / "model.gguf").stat().st_ino == inode
    site.hub.faults.clear()
    site.play(source)
    assert site.content() == NEWER
    site.play(source, weights_state="absent", weights_keep_downloads=False)
    assert not (site.folder / "one" / "weights").exists() and not (site.folder / "cache" / "weights").exists()


def test_small_files_without_a_digest_are_marked(site):
    site.play({"kind": "huggingface", "repo": NAME, "endpoint": site.hub.url})
    assert site.content() == FILES
    document = _manifest.read_document(str(site.weights()) + ".manifest.json")
    assert {item["path"]: item["origin"] for item in document["files"]} == dict.fromkeys(FILES, "computed")
    assert document["source"]["commit"] == site.hub.commit


def test_a_mirror_and_then_another_host(site):
    """The mirror serves host one; host two takes from host one what was verified there."""
    site.play({"kind": "http", "url": f"{site.hub.url}/mirror/{NAME}"}, FILES)
    assert site.content("one") == FILES
    sent = site.hub.sent("model.gguf")
    # Their directories differ here, for both are this machine.
    said = site.play({"kind": "host", "host": "one", "path": str(site.weights("one"))}, FILES, host="two")
    assert site.content("two") == FILES and site.hub.sent("model.gguf") == sent, said


def test_user_and_password_of_a_mirror_are_used_and_kept_nowhere(site):
    url = site.hub.url.replace("://", "://bob:pass-4711@") + "/mirror/" + NAME
    said = site.play({"kind": "http", "url": url}, FILES)
    assert site.content() == FILES
    held = [path for path in (site.folder / "one").rglob("*") if path.is_file() and b"pass-4711" in path.read_bytes()]
    assert "pass-4711" not in said and held == []
    stored = json.loads((site.weights().parent / "v.manifest.json").read_text())
    assert stored["source"] == {"kind": "http", "url": site.hub.url + "/mirror/" + NAME}
