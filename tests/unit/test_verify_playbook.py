# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/verify.yml and benchmark.yml over a fleet that is played: a host whose cards lie in a directory, engines and a gateway that are
scripted. Their exit status says it all, their report says why, and nothing is changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from faults.engines.scripted import Engine

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

PLATFORM = """---
name: acme
title: Acme A1
probe: acme
tools: {acme-smi: [/opt/acme/acme-smi]}
engines: [vllm]
card: {memory_mib: 8000, memory_share: 0.9, products: [A1], architectures: [a1], idle_mib: 10}
container: {shm_mib: 2048, stop_timeout_s: 60, pids_limit: 512, devices_shared: [/dev/acmectl], devices_per_card: [acme]}
host: {governor: performance, kernel_modules: [acme]}
"""
PROBE = """
from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Accelerators, Card


def probe(vendor):
    cards = []
    for line in vendor.ask("acme-smi").splitlines():
        index, address = line.split(",")
        cards.append(Card(address, int(index), "A1", "Acme A1", "a1", 8000, 2, health="ok", devices={"acme": "/dev/acme" + index}))
    return Accelerators("acme", "acme-smi", cards, driver_version=vendor.read("/sys/module/acme/version").strip(), driver_live=True)
"""
ENGINE = """---
name: vllm
images: {acme: {source: registry, reference: example/vllm, digest: "sha256:%s"}}
""" % ("1" * 64)
MODEL = """---
name: tiny
title: A model that is scripted
served_names: [scripted]
weights:
  default: plain
  variants:
    plain:
      format: safetensors
      source: {kind: host, path: /nowhere}
      entry: "."
      files: [{path: model.safetensors, size: 1000000, sha256: "%s"}]
memory: {kv_bytes_per_token: 1000, state_mib_per_sequence: 0, overhead_mib: 100}
platforms:
  acme: {engine: vllm, weights: plain}
settings: {max_model_len: 2048, max_num_seqs: 2, tensor_parallel_size: 1}
enhancements: {}
forbidden: []
acceptance:
  floor_decode_tokens_per_s: 5
  checks:
    - {check: exact, id: japan, language: en, prompt: "What is the capital of Japan?", expect: [Tokyo]}
    - {check: quality, id: bread, language: en, prompt: "Tell me about the history of bread."}
  not_applicable:
    - {check: card_use, reason: nobody samples these cards, measured: they are files}
""" % ("0" * 64)

OTHER = MODEL.replace("name: tiny", "name: other").replace("[scripted]", "[another]").replace("Japan", "Greece").replace("Tokyo", "Athens")


class Site:
    """A host with two cards, an engine for each, and a gateway."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report = path / "out/report.json"
        files = {
            "inventory/catalog/platforms/acme.yml": PLATFORM,
            "inventory/catalog/probes/acme.py": PROBE,
            "inventory/catalog/models/tiny.yml": MODEL,
            "inventory/catalog/models/other.yml": OTHER,
            "inventory/catalog/engines/vllm.yml": ENGINE,
            "host/opt/acme/acme-smi": "#!/bin/sh\necho 0,0000:01:00.0\necho 1,0000:02:00.0\n",
            "host/dev/acmectl": "",
            "host/dev/acme0": "",
            "host/dev/acme1": "",
            "host/proc/1/limits": "Max open files 1048576 1048576 files\nMax locked memory unlimited unlimited bytes\n",
            "host/proc/meminfo": "MemTotal: 64000000 kB\n",
            "host/proc/modules": "acme 1 0 - Live 0x0\n",
            "host/proc/net/tcp": "  sl  local_address\n",
            "host/proc/sys/kernel/osrelease": "5.10.0\n",
            "host/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
            "host/sys/module/acme/version": "1.2.3\n",
            "etc/keys/engine.key": "sk-engine\n",
            "etc/keys/client-default.key": "sk-client\n",
            "gateway.sock": "",
        }
        for name, text in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text, encoding="utf-8")
        for name in ("etc/keys/engine.key", "etc/keys/client-default.key"):
            (path / name).chmod(0o600)
        (path / "host/opt/acme/acme-smi").chmod(0o755)
        self.away = path / "no_way"
        self.away.write_text("#!/bin/sh\necho 'ssh: connect to host: No route to host' >&2\nexit 255\n", encoding="utf-8")
        self.away.chmod(0o755)

    def verify(self, port: int, gateway: str, *more_hosts: str, **variables: object) -> tuple[int, str, dict]:
        """Run verify.yml; returns its exit status, what it printed, and the report (empty where it wrote none)."""
        return self.play("verify", port, gateway, *more_hosts, **variables)

    def benchmark(self, port: int, gateway: str, **variables: object) -> tuple[int, str, dict]:
        """Run benchmark.yml with a small protocol; returns the same."""
        # Scripted engines know no other end of an answer than their own.
        small = {"concurrency": [1], "requests": 2, "repeats": 3, "warmup": 0, "output_tokens": 10, "ignore_eos": False, "together": False}
        small["prompts"] = {"kind": "texts", "texts": ["Tell me about {0}.".format(what) for what in ("bread", "salt")]}
        # A baseline needs to know the weights, which the containers of a real fleet tell.
        told = {"acceptance_benchmark_protocol": small, "weights_out": {"manifest_id": "ab" * 32, "format": "played"}}
        for _try in range(2):
            found = self.play("benchmark", port, gateway, **{**told, **variables})
            if "the measuring client itself was late" not in found[1]:
                break
        return found

    def play(
        self, playbook: str, port: int, gateway: str, *more_hosts: str, own: dict[str, dict] | None = None, **variables: object
    ) -> tuple[int, str, dict]:
        """Run a playbook; returns the same. ``own`` has variables of single hosts, which are names of this machine."""
        here = {"ansible_connection": "local", "accelerator_root": str(self.path / "host")}
        inventory = {
            "all": {
                "vars": {
                    "llm_platform": "acme",
                    "llm_model": "tiny",
                    "llm_config_dir": str(self.path / "etc"),
                    "llm_state_dir": str(self.path / "state"),
                    "replica_address": "127.0.0.1",
                    "replica_port_base": port,
                    "replica_image": {"source": "registry", "reference": "example/vllm", "digest": "sha256:" + "1" * 64},
                    "acceptance_gateway_url": gateway,
                    "acceptance_gateway_socket": str(self.path / "gateway.sock"),
                    "acceptance_closed_paths": ["/nowhere"],
                    "accelerator_space_mib": {str(self.path): 1},
                    "ansible_python_interpreter": sys.executable,
                    **variables,
                },
                "children": {
                    "llm_nodes": {
                        "hosts": {
                            "node1": here,
                            **{name: {} for name in more_hosts},
                            **{name: {**here, **more} for name, more in (own or {}).items()},
                        }
                    },
                    "llm_gateway": {"hosts": {"gw": {"ansible_connection": "local"}}},
                },
            }
        }
        (self.path / "inventory/hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
        self.report.unlink(missing_ok=True)
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        command = [program, "playbooks/{0}.yml".format(playbook), "-i", str(self.path / "inventory")]
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_SSH_EXECUTABLE": str(self.away),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.path / "tmp"),
            # The containers are somebody else's.
            "DOCKER_HOST": "unix://" + str(self.path / "no.sock"),
        }
        result = subprocess.run(
            [*command, "-e", "{0}_report={1}".format(playbook, self.report)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        data = json.loads(self.report.read_text(encoding="utf-8")) if self.report.exists() else {}
        return result.returncode, result.stdout + result.stderr, data


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


#: Seconds between tokens of a "slow" engine that is not slow here: steady enough to be measured on a busy machine.
STEADY_S = 0.08


def neighbours(first: str, second: str) -> tuple[Engine, Engine]:
    """Two engines on neighbouring ports, as a plan has them."""
    for _attempt in range(50):
        one = Engine(first, key="sk-engine", slow_s=STEADY_S)
        try:
            return one, Engine(second, port=one.server_address[1] + 1, key="sk-engine", slow_s=STEADY_S)
        except OSError:
            one.server_close()
    raise AssertionError("no two free ports side by side")


@pytest.mark.parametrize(
    ("second", "status", "verdict", "word"),
    [
        ("healthy", 0, "ok", "accepted"),
        ("garbage_run", 1, "garbage", "refused"),
    ],
)
def test_the_exit_status_says_it_all(site: Site, second: str, status: int, verdict: str, word: str) -> None:
    one, two = neighbours("healthy", second)
    with one, two, Engine("healthy", key="sk-client") as gateway:
        before = {path: path.stat().st_mtime_ns for path in site.path.rglob("*") if "out" not in path.parts and "tmp" not in path.parts}
        code, printed, report = site.verify(one.server_address[1], gateway.url)
    assert code == status, printed
    assert report["verdict"] == word and report["status"] == status
    verdicts = {row["name"]: row["verdict"] for row in report["results"]}
    assert verdicts == {"gateway": "ok", "node1-c0": "ok", "node1-c1": verdict}
    assert "acceptance: {0}".format(word.upper() if status else word) in printed
    root = ET.parse(site.report.with_suffix(".xml")).getroot()
    assert (root.get("failures") != "0", root.get("errors") != "0") == (status == 1, status == 2)
    assert word.capitalize() in site.report.with_suffix(".html").read_text(encoding="utf-8")
    # What ran where is in it, and no key.
    assert report["fingerprint"]["driver"] == "1.2.3" and report["fingerprint"]["runtime"] == "none"
    assert (
        report["fingerprint"]["card"] == "2 x A1 a1 8000 MiB, in 2 replicas" and "example/vllm@sha256:111" in report["fingerprint"]["image"]
    )
    everything = "".join(path.read_text(encoding="utf-8") for path in site.report.parent.iterdir())
    assert "sk-engine" not in everything and "sk-client" not in everything
    # Nothing but the inventory, which the test itself wrote, is newer than before.
    after = {path: path.stat().st_mtime_ns for path in site.path.rglob("*") if "out" not in path.parts and "tmp" not in path.parts}
    assert {path.name for path in after if before.get(path) != after[path]} <= {"inventory", "hosts.yml", site.path.name}
    assert "changed=0" in printed and "changed=1" not in printed


def test_two_names_of_one_machine_are_two_models_and_both_are_asked_through_the_gateway(site: Site) -> None:
    one, two = neighbours("healthy", "healthy")
    names = {"node1": {"replica_card_groups": [[0]]}, "node2": {"replica_card_groups": [[1]], "llm_model": "other"}}
    with one, two, Engine("healthy", key="sk-client") as gateway:
        two.model, gateway.model = "another", "scripted another"
        code, printed, report = site.verify(one.server_address[1], gateway.url, own=names)
    assert code == 0, printed
    verdicts = dict.fromkeys(("gateway scripted", "gateway another", "node1-c0", "node2-c1"), "ok")
    assert {row["name"]: row["verdict"] for row in report["results"]} == verdicts
    assert {row["host"]: row["model"] for row in report["fleet"]} == {"node1": "tiny", "node2": "other"}
    # Each by its own name, with its own questions, at the gateway and on its own port.
    for engines, model, country in (((one, gateway), "scripted", "Japan"), ((two, gateway), "another", "Greece")):
        for engine in engines:
            asked = [body["messages"][-1]["content"] for body in engine.asked if body["model"] == model]
            assert f"What is the capital of {country}?" in asked
    assert {body["model"] for body in one.asked} == {"scripted"} and {body["model"] for body in two.asked} == {"another"}


def test_what_is_away_or_silent_could_not_be_told(site: Site) -> None:
    one, two = neighbours("healthy", "healthy")
    with one, two, Engine("healthy", key="sk-client") as gateway:
        (site.path / "gateway.sock").unlink()
        code, printed, report = site.verify(one.server_address[1], gateway.url, "node2")
    assert code == 2, printed
    told = "\n".join(report["lines"])
    assert "node2: unknown" in told and "not reached: " in told and "No route to host" in told
    assert "gateway: unknown" in told and "gateway.sock is not there" in told
    assert [row["verdict"] for row in report["results"]] == ["unknown", "ok", "ok"]


def test_a_run_without_hosts_is_no_good_news(site: Site) -> None:
    code, printed, report = site.verify(1, "http://127.0.0.1:1", llm_node_group="nobody")
    assert code == 2 and report == {} and "nothing can be proved" in printed


def figures_of(report: dict) -> dict[str, float]:
    """Generated tokens per second, by endpoint."""
    return {level["endpoint"]: level["figures"]["output_throughput"]["mean"] for level in report["benchmark"]["summary"]["levels"]}


def test_what_is_measured_ends_in_a_report_with_proof_and_figures(site: Site) -> None:
    one, two = neighbours("slow", "slow")
    with one, two, Engine("slow", key="sk-client", slow_s=STEADY_S) as gateway:
        code, printed, report = site.benchmark(one.server_address[1], gateway.url)
    assert code == 0, printed
    assert report["verdict"] == "accepted" and report["unmeasured"] == "" and report["host"] == "gw"
    assert {row["name"]: row["verdict"] for row in report["results"]} == dict.fromkeys(("gateway", "node1-c0", "node1-c1"), "ok")
    assert set(figures_of(report)) == {"gateway", "node1-c0", "node1-c1"} and min(figures_of(report).values()) > 0
    assert report["baseline"]["recorded_now"] is True and len(list((site.path / "state/baselines").iterdir())) == 1
    assert "Speed under load" in site.report.with_suffix(".html").read_text(encoding="utf-8")
    assert ET.parse(site.report.with_suffix(".xml")).getroot().get("errors") == "0"


@pytest.mark.long
def test_what_is_measured_again_is_held_against_the_first_time(site: Site) -> None:
    one, two = neighbours("slow", "slow")
    with one, two, Engine("slow", key="sk-client", slow_s=STEADY_S) as gateway:
        _code, printed, report = site.benchmark(one.server_address[1], gateway.url)
        assert (report["baseline"] or {}).get("recorded_now") is True, printed
        (baseline,) = (site.path / "state/baselines").iterdir()
        before = baseline.read_bytes()
        code, printed, report = site.benchmark(one.server_address[1], gateway.url)
        # How two runs of a busy machine compare is another matter.
        assert (
            report["baseline"] and report["baseline"]["figures"] and code == {"worse": 1, "unknown": 2}.get(report["baseline"]["status"], 0)
        ), printed
        assert baseline.read_bytes() == before and "changed=0" in printed
        # One of another image is no evidence.
        image = {"source": "registry", "reference": "example/vllm", "digest": "sha256:" + "2" * 64}
        code, printed, report = site.benchmark(
            one.server_address[1], gateway.url, acceptance_baseline_file=str(baseline), replica_image=image
        )
    assert code == 2 and report["baseline"]["status"] == "refused", printed


@pytest.mark.long
def test_what_did_not_prove_itself_is_not_measured(site: Site) -> None:
    one, two = neighbours("healthy", "garbage_run")
    with one, two, Engine("healthy", key="sk-client") as gateway:
        code, printed, report = site.benchmark(one.server_address[1], gateway.url)
        asked = len(gateway.asked)
    assert code == 1 and report["verdict"] == "refused" and report["benchmark"] is None, printed
    # Only the questions of the proof, and no baseline.
    assert asked < 5 and not (site.path / "state").exists()


@pytest.mark.long
def test_what_could_not_be_measured_could_not_be_told(site: Site) -> None:
    one, two = neighbours("healthy", "healthy")
    with one, two, Engine("healthy", key="sk-client") as gateway:
        code, printed, report = site.benchmark(one.server_address[1], gateway.url, acceptance_benchmark_protocol={"streams": 3})
    assert code == 2 and report["verdict"] == "could not tell" and report["benchmark"] is None, printed
    assert "acceptance_benchmark_protocol: unknown streams" in report["unmeasured"]
    assert "benchmark: unknown" in report["lines"] and "nothing was measured" in report["lines"][0]
    root = ET.parse(site.report.with_suffix(".xml")).getroot()
    assert (root.get("failures"), root.get("errors")) == ("0", "1")
