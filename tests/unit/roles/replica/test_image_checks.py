# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A wrong engine image ends before anything is drained or stopped: the role's own conditions, and the order of its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

try:
    from ansible.template import trust_as_template as trust
except ImportError:

    def trust(text):
        return text


TASKS = Path(__file__).resolve().parents[4] / "roles" / "replica" / "tasks"
GOOD, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def tasks_of(name: str) -> list[dict]:
    return yaml.safe_load((TASKS / f"{name}.yml").read_text(encoding="utf-8"))


def judged(file: str, **variables) -> tuple[bool, str]:
    """Whether the last check of a file of tasks holds, and what it says when it does not."""
    check = [task["ansible.builtin.assert"] for task in tasks_of(file) if "ansible.builtin.assert" in task][-1]
    templar = Templar(loader=DataLoader(), variables=variables)
    holds = [templar.template(trust("{{ %s }}" % condition)) for condition in check["that"]]
    return all(value is True or value == "True" for value in holds), templar.template(trust(check["fail_msg"]))


@pytest.mark.parametrize(
    ("digests", "holds"),
    [
        ([f"registry.lan/vllm@{GOOD}"], True),
        # A mirror has its own name and the same bytes.
        ([f"mirror.lan/vllm@{OTHER}", f"registry.lan/vllm@{GOOD}"], True),
        ([f"registry.lan/vllm@{OTHER}"], False),
        ([f"registry.lan/vllm@{GOOD}0"], False),
        ([], False),
    ],
)
def test_a_pulled_image_has_the_digest_that_was_asked_for(digests, holds):
    found = {"image": {"Id": OTHER, "RepoDigests": digests}}
    image = {"source": "registry", "reference": "registry.lan/vllm:1", "digest": GOOD}
    known = {"replica_image": image, "__replica_image_found": found, "__replica_image_reference": f"registry.lan/vllm@{GOOD}"}
    result, said = judged("image_registry", **known)
    assert result is holds
    assert f"registry.lan/vllm@{GOOD}: the engine has an image of that name with another digest ({', '.join(digests)})" in said


@pytest.mark.parametrize(("ids", "holds"), [([GOOD], True), ([OTHER], False), ([], False)])
def test_a_loaded_image_has_the_id_that_was_asked_for(ids, holds):
    image = {"source": "archive", "archive": "/srv/vllm.tar", "reference": "vllm:1", "id": GOOD}
    found = {"images": [{"Id": identity} for identity in ids]}
    result, said = judged("image_archive", replica_image=image, __replica_image_reference="vllm:1", __replica_image_found=found)
    assert result is holds
    assert said.startswith("/srv/vllm.tar: loaded, but vllm:1 is ") and said.rstrip().endswith(f"not {GOOD}")
    assert (ids[0] if ids else "not among its images") in said


def test_the_image_is_there_and_right_before_anything_is_taken_out():
    """Drains and stops are in these files only; the image, the weights it is planned with and the plan itself come before."""
    (block,) = [task["block"] for task in tasks_of("main") if "block" in task]
    files = [(task.get("ansible.builtin.include_tasks") or task.get("ansible.builtin.import_tasks")) for task in block]
    order = [item["file"] if isinstance(item, dict) else item for item in files]
    acting = [name for name in order if name in ("change.yml", "turn.yml", "prove.yml", "orphans.yml")]
    assert acting == ["change.yml", "turn.yml", "prove.yml", "orphans.yml"]
    first = order.index(acting[0])
    assert order.index("image.yml") < order.index("plan.yml") < first
    for name in order[:first]:
        text = (TASKS / name).read_text(encoding="utf-8")
        assert "gateway_servers" not in text and "gateway.yml" not in text, name
