# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action plugin, run as Ansible runs it: overlays from real directories, mistyped variables, errors that name their file."""

from __future__ import annotations

import hashlib

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins.loader import connection_loader
from ansible.template import Templar

from ansible_collections.ironserve.llm.plugins.action.catalog_info import ActionModule, read_catalog, role_options
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


@pytest.fixture
def run():
    """Run the plugin on a real task: ``run({arguments}, {variables})``."""

    def call(arguments, variables=None):
        loader, context = DataLoader(), PlayContext()
        task = Task.load({"action": {"module": "ironserve.llm.catalog_info", **arguments}})
        plugin = ActionModule(
            task=task,
            connection=connection_loader.get("ansible.builtin.local", context, new_stdin=None),
            play_context=context,
            loader=loader,
            templar=Templar(loader=loader, variables=variables or {}),
            shared_loader_obj=None,
        )
        return plugin.run(None, variables or {})

    return call


@pytest.fixture
def overlay(tmp_path):
    """Write overlay entries: ``overlay("models", "mine.yml", {...})``; returns the directory."""

    def write(kind, name, content):
        folder = tmp_path / "catalog" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
        return str(tmp_path / "catalog")

    return write


DEMO = {"platform": "cpu", "model": "smollm2-135m"}


def test_the_shipped_demo(run):
    result = run(DEMO)
    assert result["changed"] is False
    assert result["catalog"]["engine"]["name"] == "llama_cpp"
    assert result["known"]["platforms"] == ["ascend_910b", "ascend_a3", "cpu", "hygon_k100ai", "nvidia_h100", "nvidia_h200"]


@pytest.mark.parametrize("name", ["mine.yml", "mine.yaml"])
def test_overlay_lies_upon_the_shipped_entry(run, overlay, name):
    folder = overlay("models", name, {"name": "smollm2-135m", "settings": {"max_num_seqs": 7}})
    settings = run(dict(DEMO, overlays=[folder]))["catalog"]["settings"]
    assert (settings["max_num_seqs"], settings["max_model_len"]) == (7, 4096)


def test_later_overlay_wins_over_an_earlier_one(run, tmp_path):
    for folder, value in (("first", 3), ("second", 5)):
        (tmp_path / folder / "models").mkdir(parents=True)
        (tmp_path / folder / "models" / "a.yml").write_text("name: smollm2-135m\nsettings: {max_num_seqs: %d}\n" % value, encoding="utf-8")
    overlays = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert run(dict(DEMO, overlays=overlays))["catalog"]["settings"]["max_num_seqs"] == 5


def test_a_file_of_an_overlay_is_found_and_held_against_its_digest(run, overlay):
    overlay("files", "template.jinja", "{{ messages }}")
    digest = hashlib.sha256(b"{{ messages }}").hexdigest()
    entry = {"source": "template.jinja", "sha256": digest}
    folder = overlay("models", "mine.yml", {"name": "smollm2-135m", "platforms": {"cpu": {"files": {"/opt/t.jinja": entry}}}})
    files = run(dict(DEMO, overlays=[folder]))["catalog"]["platform"]["container"]["files"]
    assert files == {"/opt/t.jinja": dict(entry, local=folder + "/files/template.jinja")}
    overlay("files", "template.jinja", "{{ messages[0] }}")
    with pytest.raises(AnsibleActionFail, match="template.jinja: its sha256 is .* pins " + digest):
        run(dict(DEMO, overlays=[folder]))
    assert "files" not in run({"platform": "cpu", "overlays": [folder]})["catalog"]["platform"]["container"], "nothing is going to run"


def test_overlay_that_is_not_there_is_passed_over(run, tmp_path):
    assert run(dict(DEMO, overlays=[str(tmp_path / "absent")]))["catalog"]


def test_own_model_is_known(run, overlay, catalog):
    folder = overlay("models", "mine.yml", dict(catalog["models"]["smollm2-135m"], name="mine"))
    result = run({"platform": "cpu", "model": "mine", "overlays": [folder]})
    assert result["catalog"]["model"]["name"] == "mine"
    assert "mine" in result["known"]["models"]


def test_broken_yaml_names_file_and_line(run, overlay):
    folder = overlay("models", "bad.yml", "name: x\n  title: [\n")
    with pytest.raises(AnsibleActionFail, match=r"(?s)models/bad\.yml: cannot be read as YAML: .*line 2"):
        run(dict(DEMO, overlays=[folder]))


@pytest.mark.parametrize("text", ["", "- a list\n", "just text\n"])
def test_file_that_is_no_entry_is_named(run, overlay, text):
    folder = overlay("platforms", "odd.yml", text)
    with pytest.raises(AnsibleActionFail, match=r"platforms/odd\.yml: a file of the catalog is one mapping"):
        run(dict(DEMO, overlays=[folder]))


def test_mistyped_key_in_an_overlay(run, overlay):
    folder = overlay("platforms", "cpu.yml", {"name": "cpu", "contaner": {}})
    with pytest.raises(AnsibleActionFail, match=r"platforms/cpu\.yml: unknown key 'contaner'; did you mean \"container\""):
        run(dict(DEMO, overlays=[folder]))


def test_mistyped_folder_is_not_passed_over(overlay):
    folder = overlay("model", "mine.yml", {"name": "mine"})
    with pytest.raises(LLMError, match='catalog/model: the catalog has no folder of this name; did you mean "models"'):
        read_catalog([folder])


def test_unknown_model_lists_the_known(run):
    with pytest.raises(AnsibleActionFail, match="unknown model 'smolm2' .variable llm_model.: did you mean \"smollm2-135m\""):
        run({"platform": "cpu", "model": "smolm2"})


def test_mistyped_variable_stops(run):
    with pytest.raises(AnsibleActionFail, match="unknown variable 'replica_port_bas'; did you mean \"replica_port_base\""):
        run(DEMO, {"replica_port_bas": 9001, "replica_port_base": 8001, "inventory_hostname": "local"})


def test_the_look_at_variables_can_be_switched_off(run):
    assert run(dict(DEMO, check_variables=False), {"replica_port_bas": 9001})["catalog"]


def test_every_role_is_looked_at():
    options = role_options()
    assert {"catalog", "accelerator", "replica"} <= set(options)
    assert all(name.startswith(role + "_") for role, names in options.items() for name in names)
