# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role acceptance from the questions to the release record, with a real ansible-playbook, a scripted gateway, and the facts that the roles
before it leave. The report is written whatever comes out, a second run changes nothing, a dry run writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from faults.engines.scripted import Engine
from samples import acceptance

ROOT = Path(__file__).resolve().parents[4]
COLLECTIONS = ROOT.parents[2] if ROOT.parts[-3:] == ("ansible_collections", "ironserve", "llm") else ROOT / "collections"
pytestmark = pytest.mark.slow

CATALOG = {
    "model": {
        "name": "tiny",
        "served_names": ["scripted"],
        "acceptance": {
            "checks": [
                {"check": "exact", "id": "japan", "prompt": "What is the capital of Japan?", "expect": ["Tokyo"]},
                {"check": "quality", "id": "bread", "prompt": "Tell me about bread."},
            ],
            "not_applicable": [{"check": "card_use", "reason": "a gateway has no card"}],
        },
    },
    "weights": {"name": "w8a8"},
    "platform": {"name": "hygon_k100ai", "container": {"environment_per_card": {"HIP_VISIBLE_DEVICES": "{index}"}}},
    "engine": {"name": "vllm"},
}


class Site:
    """A gateway's host, and what the roles before left on it."""

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.url = path, url
        self.reports = path / "state/reports"
        (path / "etc/keys").mkdir(parents=True)
        (path / "etc/keys/client-default.key").write_text("sk-client\n")
        (path / "etc/keys/client-default.key").chmod(0o600)
        (path / "gateway.sock").touch()

    def play(self, *arguments: str, benchmark: dict | None = None, **variables: object) -> tuple[int, str]:
        """Run the role; returns exit status and output."""
        facts = {
            "catalog_out": CATALOG,
            "accelerator_out": {
                "cards": [
                    {
                        "id": "0000:0{0}:00.0".format(card + 4),
                        "index": card,
                        "name": "K100-AI",
                        "architecture": "gfx928",
                        "memory_total_mib": 65520,
                    }
                    for card in range(2)
                ],
                "driver_version": "6.3.8",
                "runtime_version": "DTK 25.04",
                "platform": "hygon_k100ai",
            },
            "replica_out": {
                "plan": acceptance.plan(1, 2),
                "image_id": "sha256:" + "cd" * 32,
                "proofs": acceptance.results(1, 2)[1:],
                "proven": [],
            },
        }
        if benchmark:
            facts["__acceptance_benchmark"] = {"result": benchmark}
        given = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "llm_config_dir": str(self.path / "etc"),
            "llm_state_dir": str(self.path / "state"),
            "acceptance_node_group": "all",
            "llm_node_group": "all",
            "acceptance_gateway_url": self.url,
            "acceptance_gateway_socket": str(self.path / "gateway.sock"),
            "acceptance_closed_paths": ["/nowhere"],
            **variables,
        }
        tasks = [{"ansible.builtin.set_fact": facts}, {"ansible.builtin.import_role": {"name": "ironserve.llm.acceptance"}}]
        # An expression in an answer is only text, so the play is handed over as data.
        (self.path / "facts.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "vars": given, "tasks": tasks}]))
        result = subprocess.run(
            [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "one,", "facts.json", *arguments],
            cwd=self.path,
            env=dict(os.environ, HOME=str(self.path), ANSIBLE_COLLECTIONS_PATH=str(COLLECTIONS), ANSIBLE_NOCOLOR="1"),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return result.returncode, result.stdout + result.stderr


def changed(printed: str) -> int:
    return int(re.search(r"changed=(\d+)", printed).group(1))


def write_problems(folder: Path, right: int, wrong: int) -> str:
    """A set for the scripted engine, which gives back a number of four digits: so many it has right, and so many it has not."""
    lines = [{"question": f"Say {4000 + n} back.", "answer": f"#### {4000 + n}"} for n in range(right)]
    lines += [{"question": f"Say {5000 + n} back, and one more.", "answer": f"#### {5001 + n}"} for n in range(wrong)]
    (folder / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder / "set.jsonl")


def test_the_report_is_written_compared_and_changes_nothing_the_second_time(tmp_path: Path) -> None:
    def measured(**more):
        return acceptance.benchmark(1, 2, levels=(1, 8), **more)

    with Engine("healthy", key="sk-client") as gateway:
        site = Site(tmp_path, gateway.url)
        scored = {"acceptance_accuracy": True, "acceptance_accuracy_probe": {"path": write_problems(tmp_path, 6, 2), "recorded": 0.8}}
        code, printed = site.play("--check")
        assert code == 0 and not (tmp_path / "state").exists(), printed
        code, printed = site.play(benchmark=measured(seed=3), **scored)
        assert code == 0, printed
        assert {path.name for path in site.reports.iterdir()} == {"acceptance.json", "acceptance.html", "acceptance.xml", "acceptance.md"}
        report = json.loads((site.reports / "acceptance.json").read_text())
        (record,) = [path.stem for path in (tmp_path / "state/releases").iterdir() if path.stem != "current"]
        assert report["verdict"] == "accepted" and report["release"] == record and report["ok"] is True
        assert [row["name"] for row in report["results"]] == ["gateway", "node01-c0", "node01-c1"]
        # 75 % are just enough, where 5 % may be lost.
        assert [(row["name"], row["score"], row["ok"]) for row in report["accuracy"]] == [("gateway", 0.75, True)]
        assert report["baseline"]["recorded_now"] is True and len(list((tmp_path / "state/baselines").iterdir())) == 1
        assert "acceptance.html, beside it .json, .xml and .md" in printed
        code, printed = site.play(benchmark=measured(seed=4), **scored)
        assert code == 0 and changed(printed) == 0, printed
        code, printed = site.play(benchmark=measured(slow=1.2))
        assert code != 0 and "more than the 3 % allowed" in printed and changed(printed) == 0


def test_a_gateway_that_answers_rubbish_is_refused_with_a_report_and_without_a_record(tmp_path: Path) -> None:
    with Engine("garbage_run", key="sk-client") as gateway:
        site = Site(tmp_path, gateway.url)
        code, printed = site.play(benchmark=acceptance.benchmark(1, 2, levels=(1, 8)))
    assert code != 0 and "The report is one:" in printed, printed
    report = json.loads((site.reports / "acceptance.json").read_text())
    assert (report["status"], report["ok"], report["benchmark"], report["baseline"]) == (1, False, None, None)
    assert "Refused" in (site.reports / "acceptance.html").read_text(encoding="utf-8")
    assert not (tmp_path / "state/baselines").exists() and not (tmp_path / "state/releases").exists()


def test_a_low_score_is_refused_with_a_report_and_without_a_record(tmp_path: Path) -> None:
    with Engine("healthy", key="sk-client") as gateway:
        site = Site(tmp_path, gateway.url)
        probe = {"path": write_problems(tmp_path, 6, 2), "recorded": 0.84}
        code, printed = site.play(benchmark=acceptance.benchmark(1, 2), acceptance_accuracy=True, acceptance_accuracy_probe=probe)
    assert code != 0 and "accuracy of gateway: inaccurate" in printed and "The report is one:" in printed, printed
    report = json.loads((site.reports / "acceptance.json").read_text())
    assert (report["status"], report["verdict"], report["ok"], report["benchmark"]) == (1, "refused", False, None)
    (score,) = report["accuracy"]
    kept = [score[key] for key in ("name", "score", "right", "count", "recorded", "tolerance", "ok")]
    assert kept == ["gateway", 0.75, 6, 8, 0.84, 0.05, False]
    assert [(row["expected"], row["found"]) for row in score["wrong"]] == [("5001", "5000"), ("5002", "5001")]
    for name in ("html", "xml", "md"):
        told = (site.reports / f"acceptance.{name}").read_text(encoding="utf-8")
        assert "75.0 % right, 84.0 % recorded, 79.0 % allowed" in told and "Say 5001 back, and one more." in told, name
    assert not (tmp_path / "state/baselines").exists() and not (tmp_path / "state/releases").exists()


def test_what_could_not_be_scored_could_not_be_told(tmp_path: Path) -> None:
    with Engine("healthy", key="sk-client") as gateway:
        site = Site(tmp_path, gateway.url)
        code, printed = site.play(acceptance_accuracy=True, acceptance_accuracy_probe={"path": str(tmp_path / "nowhere")})
        assert code != 0 and "accuracy: unknown" in printed, printed
        report = json.loads((site.reports / "acceptance.json").read_text())
        assert report["status"] == 2 and "nowhere can't be read" in report["unscored"] and report["accuracy"] == []
        assert not (tmp_path / "state/releases").exists()


@pytest.mark.long
def test_what_is_mistyped_or_left_out_is_not_thereby_passed(tmp_path: Path) -> None:
    with Engine("healthy", key="sk-client") as gateway:
        site = Site(tmp_path, gateway.url)
        code, printed = site.play("--check", acceptance_accuracy=True, acceptance_accuracy_probe={"pth": "x"})
        assert code != 0 and "acceptance_accuracy_probe: unknown pth; known: concurrency" in printed
        code, printed = site.play("--skip-tags", "acceptance_accuracy", acceptance_accuracy=True)
        assert code != 0 and "this run left the word problems out" in printed


def test_removal_takes_reports_baselines_and_records(tmp_path: Path) -> None:
    site = Site(tmp_path, "http://127.0.0.1:1")
    for name in (
        "reports/acceptance.json",
        "reports/acceptance.html",
        "reports/acceptance.md",
        "reports/mine.txt",
        "baselines/x.json",
        "releases/x",
    ):
        (tmp_path / "state" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "state" / name).touch()
    code, printed = site.play(acceptance_state="absent")
    assert code == 0, printed
    left = sorted(str(path.relative_to(tmp_path / "state")) for path in (tmp_path / "state").rglob("*"))
    assert left == ["reports", "reports/mine.txt"]
