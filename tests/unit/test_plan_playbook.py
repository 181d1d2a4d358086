# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plans of the shipped inventories, printed from recorded card facts while their hosts cannot be reached."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

#: Inventory -> host, cards of each replica, PCI address of its first, context, sequences, memory of a sequence in MiB, how many fit at once.
PLANS = {
    "k100": ("k100-01", [[0], [1], [2], [3]], ["07", "0a", "0f", "16"], 131072, 4, 2702, "7.0"),
    "ascend910b": ("a2-01", [[0, 1], [2, 3], [4, 5], [6, 7]], ["c1", "c2", "81", "82"], 133000, 16, 1734, "20.5"),
    "ascend_a3": ("a3-01", [list(range(first, first + 4)) for first in (0, 4, 8, 12)], ["9d", "95", "8d", "85"], 133000, 16, 1599, "28.0"),
    "h100": ("h100-01", [[card] for card in range(8)], [f"{card}0" for card in range(1, 9)], 262144, 16, 5260, "6.3"),
}

IMAGES = {
    "k100": "harbor.sourcefind.cn:5443/dcu/admin/base/custom:vllm018-ubuntu22.04-dtk26.04-qwen3.6-20260423"
    "@sha256:13ce550647063a7fe76e87fd173986175946e5046bd36980c4289c60a4bdd811",
    "ascend910b": "quay.io/ascend/vllm-ascend:v0.17.0rc1",
    "ascend_a3": "quay.io/ascend/vllm-ascend:v0.17.0rc1-a3",
    "h100": "vllm/vllm-openai:v0.32.0",
}


@functools.cache
def play(playbook: str, inventory: str, *arguments: str) -> tuple[int, str]:
    """Exit status and output of a playbook for an inventory, as one line of single spaces, without a host to reach."""
    ansible = str(Path(sys.executable).with_name("ansible-playbook"))
    # An ssh that cannot connect: a task that needs the host fails the test instead of waiting for a network.
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_SSH_EXECUTABLE": "/bin/false",
        "ANSIBLE_NOCOLOR": "1",
    }
    command = [ansible, playbook, "-i", str(ROOT / "inventories" / inventory), *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return result.returncode, re.sub(r"\s+", " ", result.stdout + result.stderr)


def plan(inventory: str) -> str:
    """What playbooks/plan.yml prints for an inventory."""
    status, printed = play("playbooks/plan.yml", inventory)
    assert status == 0, printed
    return printed


def words(inventory: str) -> str:
    """The command line of the first replica, as the plan prints it."""
    return plan(inventory).split("- arguments ")[1].split(" - ")[0].strip("'")


@pytest.fixture(params=sorted(PLANS))
def inventory(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_group_of_cards_gets_one_replica(inventory: str) -> None:
    host, groups, addresses, context, sequences, _each, _fit = PLANS[inventory]
    rows = re.findall(
        rf"{host}-c(\d+) ((?:\d+ \(0000:[0-9a-f:.]+\),?)+) 127\.0\.0\.1:(\d+) (\d) (\d+) x (\d+) ironserve-c(\d+) [0-9a-f]{{12}}",
        plan(inventory),
    )
    assert rows == [
        (str(cards[0]), row[1], str(8001 + number), str(len(cards)), str(context), str(sequences), str(cards[0]))
        for number, (cards, row) in enumerate(zip(groups, rows, strict=True))
    ]
    for cards, address, row in zip(groups, addresses, rows, strict=True):
        assert re.findall(r"(\d+) \(", row[1]) == [str(card) for card in cards]
        assert row[1].startswith(f"{cards[0]} (0000:{address}:00.0)")


def test_the_plan_says_what_fits(inventory: str) -> None:
    _host, groups, _addresses, context, sequences, each, fit = PLANS[inventory]
    assert plan(inventory).count(f"for sequences of {context} tokens at {each} MiB: {fit} at once") == len(groups)
    waits = f"{sequences} sequences of full length do not fit at once; more wait in the engine"
    assert plan(inventory).count(waits) == (len(groups) if float(fit) < sequences else 0)


def test_the_image_is_that_of_the_platform_and_one_without_digest_is_called_so(inventory: str) -> None:
    assert f"- image {IMAGES[inventory]} " in plan(inventory)
    assert ("not pinned: the image has no digest" in plan(inventory)) == ("@sha256:" not in IMAGES[inventory])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gateway_client_keys": [{"name": "me", "key": "sk-2short"}]}, "gateway_client_keys: .* which is not so for me. Make one"),
        (
            {"gateway_client_keys": [{"name": "me", "key": "sk-with a blank in it"}]},
            "gateway_client_keys: .* which is not so for me. Make one",
        ),
        ({"gateway_client_keys": [{"key": "sk-2nameless-but-long-enough"}]}, "name found in gateway_client_keys"),
        ({"gateway_client_keys": "sk-2text-instead-of-a-list"}, "gateway_client_keys"),
        ({"gateway_port": "abc"}, "gateway_port"),
        (
            {
                "gateway_software": "nginx",
                "gateway_balance": "prefix_hash",
                "gateway_client_keys": [{"name": "me", "key": "sk-2" * 6, "concurrent": 2}],
            },
            r"gateway_software is nginx, which cannot do gateway_balance \(.*; concurrent of the client key me \(",
        ),
        (
            {
                "gateway_software": "nginx",
                "gateway_servers": [
                    {"name": name, "address": "127.0.0.1", "port": 1, "max_num_seqs": 1, "proven": True, "models": [name]} for name in "ba"
                ],
            },
            "gateway_software is nginx, which serves one model, and behind it were a, b",
        ),
        ({"gateway_hash_bound_percent": 100}, "gateway_hash_bound_percent is 100; it has to be more than 100"),
        ({"gateway_tls_certificate": "/c.pem", "gateway_tls_port": 8000}, "have to be different ports, not 8000, 8404, 8000"),
    ],
)
def test_gateway_options_that_cannot_work_are_refused_by_name_and_without_the_key(tmp_path, options: dict, says: str) -> None:
    """Options of the gateway's own group, which the card nodes do not see."""
    inventory = tmp_path / "site"
    shutil.copytree(ROOT / "inventories/h100", inventory)
    (inventory / "group_vars/llm_gateway").mkdir(parents=True)
    (inventory / "group_vars/llm_gateway/options.json").write_text(json.dumps(options))
    status, printed = play("playbooks/plan.yml", str(inventory))
    assert status == 2 and re.search(says, printed), printed
    assert "sk-" not in printed


def test_the_gateway_is_planned_too(inventory: str) -> None:
    host, groups, *_rest = PLANS[inventory]
    replicas = ", ".join(f"{host}-c{cards[0]}" for cards in groups)
    assert f"gateway {host} on 0.0.0.0:8000, leastconn over {replicas} " in plan(inventory)


def test_nginx_is_planned_as_well(tmp_path) -> None:
    inventory = tmp_path / "site"
    shutil.copytree(ROOT / "inventories/h100", inventory)
    (inventory / "group_vars/llm_gateway").mkdir(parents=True)
    (inventory / "group_vars/llm_gateway/options.json").write_text('{"gateway_software": "nginx"}')
    status, printed = play("playbooks/plan.yml", str(inventory))
    assert status == 0 and re.search(r"gateway \S+ \(nginx\) on 0\.0\.0\.0:8000, leastconn over ", printed), printed


def test_nothing_changes(inventory: str) -> None:
    assert re.search(rf"{PLANS[inventory][0]} : ok=\d+ changed=0 unreachable=0 failed=0", plan(inventory))


def test_a_plan_without_the_hosts_says_that_it_compared_nothing(inventory: str) -> None:
    assert "not compared with what runs: -e plan_compare=true asks the hosts" in plan(inventory)


def test_a_host_that_cannot_be_asked_is_said_and_the_plan_is_written(tmp_path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'ssh: connect to host 192.0.2.11 port 22: Connection timed out' >&2\nexit 255\n")
    ssh.chmod(0o755)
    written = tmp_path / "plan.json"
    status, printed = play(
        "playbooks/plan.yml", "k100", "-e", "plan_compare=true", "-e", f"plan_output={written}", "-e", f"ansible_ssh_executable={ssh}"
    )
    assert status == 0, printed
    assert re.search("not compared with what runs: k100-01 cannot be reached: .{0,80}192.0.2.11 port 22: Connection timed out", printed)
    plans = json.loads(written.read_text())
    assert [replica["port"] for replica in plans["k100-01"]["replicas"]] == [8001, 8002, 8003, 8004]
    assert plans["k100-01"]["replicas"][0]["fit"]["blocks_per_sequence"] == 131
    assert written.stat().st_mode & 0o777 == 0o600
    assert "gateway k100-01 on 0.0.0.0:8000" in printed


def test_the_first_recipe() -> None:
    assert "qwen3.6-35b-a3b W8A8 on hygon_k100ai (vllm)" in plan("k100")
    for part in ("--tensor-parallel-size 1", "--quantization compressed-tensors", "--enable-prefix-caching", "--mamba-cache-mode align"):
        assert part in words("k100")
    assert "speculative-config" not in words("k100")


@pytest.mark.parametrize("name", ["k100", "h100"])
def test_a_forbidden_pair_is_off_with_its_reason(name: str) -> None:
    assert re.search(r"off mtp: mtp and prefix_caching forbidden together \(.{40,}?\)", plan(name))


@pytest.mark.parametrize(("name", "platform", "cards"), [("ascend910b", "ascend_910b", 2), ("ascend_a3", "ascend_a3", 4)])
def test_the_second_recipe(name: str, platform: str, cards: int) -> None:
    assert f"qwen3.5-35b-a3b W8A8_MTP on {platform} (vllm)" in plan(name)
    for part in (
        f"--tensor-parallel-size {cards} ",
        "--quantization ascend ",
        "--max-model-len 133000 ",
        "--max-num-batched-tokens 8096 ",
        "--gpu-memory-utilization 0.9 ",
        "--no-enable-prefix-caching ",
        '--speculative-config {"enforce_eager":true,"method":"qwen3_5_mtp","num_speculative_tokens":3} ',
    ):
        assert part in words(name)
    assert "threshold" not in words(name), "engines refuse the key"
    assert "--shutdown-timeout" not in words(name), "0.17 does not know the word"


def test_the_h100_runs_fp8_on_one_card() -> None:
    assert "qwen3.6-35b-a3b FP8 on nvidia_h100 (vllm)" in plan("h100")
    assert "--tensor-parallel-size 1 " in words("h100") and "--quantization" not in words("h100")
    assert "73403 MiB usable - 36352 weights - 4096 overhead = 32955 MiB" in plan("h100")


def test_weights_that_lie_on_the_host_count_as_they_are(tmp_path) -> None:
    """The model's own config.json, and forty layers of 2 MiB whose data are holes."""
    shutil.copy(ROOT / "tests/fixtures/models/qwen3.6-35b-a3b.config.json", tmp_path / "config.json")
    size = 2 * 1024 * 1024
    header = json.dumps(
        {
            f"model.language_model.layers.{number}.mlp.experts.down_proj": {
                "dtype": "BF16",
                "shape": [1024, 1024],
                "data_offsets": [number * size, (number + 1) * size],
            }
            for number in range(40)
        }
    ).encode()
    with open(tmp_path / "model.safetensors", "wb") as handle:
        handle.write(len(header).to_bytes(8, "little") + header)
        handle.truncate(8 + len(header) + 40 * size)
    found = {"path": str(tmp_path), "entry": ".", "format": "safetensors", "config": "", "manifest_id": "m", "config_sha256": ""}
    here = {"weights_out": found, "ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
    status, printed = play("playbooks/plan.yml", "k100", "-e", json.dumps(here))
    assert status == 0, printed
    assert "why weights: 80 MiB on a card, by the tensors on the host; by the recipe 35838" in printed
    assert "58968 MiB usable - 80 weights - 4096 overhead" in printed
    assert re.search(r"k100-01 : ok=\d+ changed=0 unreachable=0 failed=0", printed)


def test_bf16_on_an_h100_takes_two_cards() -> None:
    status, printed = play(
        "playbooks/plan.yml",
        "h100",
        "-e",
        '{"llm_weights": "bf16", "llm_settings": {"tensor_parallel_size": 2}, "replica_count": 4, "replica_min_count": 4}',
    )
    assert status == 0, printed
    assert "h100-01-c6 6 (0000:70:00.0),7 (0000:80:00.0) 127.0.0.1:8004 2 262144 x 16 ironserve-c6" in printed
    status, printed = play("playbooks/plan.yml", "h100", "-e", "llm_weights=bf16")
    assert status != 0 and "qwen3.6-35b-a3b bf16 does not fit card 0000:10:00.0 of host h100-01" in printed


def test_an_image_that_nobody_pinned_is_refused_before_any_host_is_touched() -> None:
    name = "ascend_a3"
    status, printed = play("site.yml", name)
    host = PLANS[name][0]
    assert status != 0
    assert f"{host}: the engine image {IMAGES[name]} is not pinned (digest '')" in printed
    assert "Nothing was changed" in printed and "replica_image: {source: registry" in printed
    assert re.search(rf"{host} : ok=\d+ changed=0 unreachable=0 failed=1", printed)
    assert "Let nobody else deploy meanwhile" not in printed, "the first task that needs the host"


@pytest.mark.parametrize(("digest", "refused"), [("sha256:" + "0" * 64, False), ("sha256:12", True)])
def test_an_image_that_somebody_pinned_is_not(digest: str, refused: bool) -> None:
    image = f'{{"replica_image": {{"source": "registry", "reference": "a/b:v1", "digest": "{digest}"}}}}'
    _status, printed = play("site.yml", "ascend910b", "-e", image)
    assert ("is not pinned" in printed) == refused
    assert ("TASK [Let nobody else deploy meanwhile]" in printed) != refused


def test_a_server_with_two_names_serves_two_models_each_on_cards_of_its_own() -> None:
    printed = plan("h100_two_models")
    assert "h100-01-chat: qwen3.6-35b-a3b FP8 on nvidia_h100 (vllm)" in printed
    assert "h100-01-large: qwen3-next-80b-a3b BF16 on nvidia_h100 (vllm)" in printed
    # On the gateway's own machine, whatever its name there.
    for name, card, port in (("chat", 0, 8001), ("chat", 3, 8004), ("large", 4, 8102)):
        assert re.search(rf"h100-01-{name}-c{card} {card} \(0000:{card + 1}0:00.0\).{{0,80}} 127\.0\.0\.1:{port} ", printed)
    replicas = ", ".join([*(f"h100-01-chat-c{card}" for card in range(4)), "h100-01-large-c4"])
    assert f"gateway h100-01-chat on 0.0.0.0:8000, leastconn over {replicas} " in printed
    assert printed.count("changed=0 unreachable=0 failed=0") == 2


@pytest.mark.parametrize(
    ("group", "options", "says"),
    [
        ("large", {"replica_card_groups": [[3, 4, 5, 6]]}, "h100-01-chat-c3 and h100-01-large-c3 both take card 0000:40:00.0"),
        ("large", {"replica_port_base": 8001}, "h100-01-chat-c1 and h100-01-large-c4 both take port 8002"),
    ],
)
def test_what_two_names_of_one_server_both_take_is_refused(tmp_path, group: str, options: dict, says: str) -> None:
    inventory = tmp_path / "site"
    shutil.copytree(ROOT / "inventories/h100_two_models", inventory)
    variables = inventory / "group_vars" / f"{group}.yml"
    kept = [line for line in variables.read_text().splitlines() if not line.startswith(tuple(options))]
    variables.write_text("\n".join([*kept, *(f"{name}: {json.dumps(value)}" for name, value in options.items())]) + "\n")
    status, printed = play("playbooks/plan.yml", str(inventory))
    assert status == 2 and f"h100-01-chat and h100-01-large are one machine: {says}" in printed, printed
    assert "Nothing was changed" in printed


def test_a_teardown_takes_whole_machines() -> None:
    status, printed = play("playbooks/teardown.yml", "h100_two_models", "--limit", "h100-01-large")
    assert status == 2 and "h100-01-large is one machine with h100-01-chat" in printed and "Nothing was changed" in printed, printed
