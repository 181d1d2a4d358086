# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The planner against the real vLLM on a CPU: how many requests of full length fit at once, within 2 %.

Two models. A small one whose cache is that of Qwen3.5-35B-A3B, layer by layer: the true numbers and sizes of its heads, one layer of full
attention after three of linear attention, a state in float32; few layers, narrow ones, and random numbers. And the demo model as it is,
whose 30 layers have full attention with 9 heads over 3. The cache is counted in the layers' own blocks, so what is narrow beside the heads
is no matter.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import pytest
from faults import tiny_w8a8

MODEL = "tiny-hybrid"
LONG = Path(__file__).resolve().parent
#: Heads and states of Qwen3.5-35B-A3B; what its cache does not depend on is as small as the engine's kernels take it.
TRUE = dataclasses.replace(
    tiny_w8a8.SERVED, heads=16, kv_heads=2, head=256, k_heads=16, v_heads=32, k_dim=128, v_dim=128, mtp=False, intermediate=128
)
CACHE = 256 << 20

pytestmark = pytest.mark.long


def recipe(folder: Path, content: dict) -> dict:
    """The recipe of the checkpoint in ``folder``, whose config.json is ``content``."""
    files = [
        {"path": path.name, "size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.iterdir())
    ]
    weights = {"format": "safetensors", "source": {"kind": "directory", "path": str(folder)}, "entry": ".", "files": files}
    return {
        "name": MODEL,
        "title": "Random numbers with the cache of Qwen3.5-35B-A3B, for tests",
        "served_names": [MODEL],
        "weights": {"default": "bf16", "variants": {"bf16": weights}},
        # Per token: 1 layer x 2 x 2 heads x 256 x 2 bytes.
        "memory": {"kv_bytes_per_token": 2048, "state_mib_per_sequence": 7, "overhead_mib": 1800},
        "config": content,
        "platforms": {"cpu": {"engine": "vllm", "weights": "bf16"}},
        "settings": {
            "max_model_len": 16384,
            "max_num_seqs": 2,
            "tensor_parallel_size": 1,
            "language_model_only": True,
            "enable_prefix_caching": False,
            "kv_cache_memory_bytes": CACHE,
        },
        "acceptance": {"checks": [{"check": "exact", "id": "none", "prompt": "What?", "expect": ["noise"]}]},
    }


class Site:
    """Both models on this machine, planned and started by the roles, one after the other."""

    def __init__(self, folder: Path, play) -> None:
        self.folder, self.play = folder, play
        origin = folder / "origin"
        tiny_w8a8.write_plain(origin, TRUE, files=tiny_w8a8.tokenizer())
        content = tiny_w8a8.config(TRUE)
        content["text_config"].update(mamba_ssm_dtype="float32", max_position_embeddings=262144)
        (origin / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        stand_in = {"source": str(LONG / "without_vision" / "torchvision"), "target": "/opt/engine/torchvision", "read_only": True}
        engine = {"name": "vllm", "platforms": {"cpu": {"container": {"mounts": [stand_in]}}}}
        for kind, entry in (("models", recipe(origin, content)), ("engines", engine)):
            (folder / "catalog" / kind).mkdir(parents=True)
            (folder / "catalog" / kind / (entry["name"] + ".yml")).write_text(json.dumps(entry), encoding="utf-8")

    def start(self, model: str, settings: dict) -> dict:
        """Plan and start a replica: the plan's replica, what the role said of its memory, and the engine's log."""
        self.play("concurrency.yml", self.folder, "vllm", llm_model=model, llm_settings=settings)
        return json.loads((self.folder / "came_to.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def site(tmp_path_factory, play):
    folder = tmp_path_factory.mktemp("concurrency")
    try:
        yield Site(folder, play)
    finally:
        play("remove.yml", folder, "vllm")


# Blocks by hand. Hybrid: a state of 3 x 8192 x 2 bytes of convolution and 32 x 128 x 128 x 4 of recurrence needs a block of 1152 tokens at
# 2048 bytes; 113 of them fit; 16384 tokens take 15, and each of three layers of linear attention one, or two with prefix caching. The demo
# model: 128 tokens of 30 x 768 bytes; 91 fit; 4096 tokens take 32.
CASES = [
    pytest.param(MODEL, {}, 1152, 113, 18, id="hybrid"),
    pytest.param(MODEL, {"enable_prefix_caching": True}, 1152, 113, 21, id="hybrid with prefix caching"),
    pytest.param(MODEL, {"max_model_len": 65536}, 1152, 113, 60, id="hybrid with a long context"),
    pytest.param("smollm2-135m", {}, 128, 91, 32, id="grouped heads"),
]


@pytest.mark.parametrize(("model", "settings", "tokens", "fit", "each"), CASES)
def test_the_plan_says_what_the_engine_says(site, model, settings, tokens, fit, each, capsys):
    came_to = site.start(model, settings)
    planned = came_to["replica"]["fit"]
    assert (planned["block_tokens"], planned["blocks"], planned["blocks_per_sequence"]) == (tokens, fit, each)
    assert any(line.startswith("weights: ") and "by the tensors on the host" in line for line in came_to["reasons"])
    # The engine's own line, read here by itself.
    said = re.findall(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x", came_to["log"])
    assert said, came_to["log"][-3000:]
    context, times = int(said[-1][0].replace(",", "")), float(said[-1][1])
    with capsys.disabled():
        print(f"\n{model} {settings}: planned {planned['concurrency']:.3f}, the engine says {times} of {context} tokens")
    assert context == came_to["replica"]["max_model_len"]
    assert times == pytest.approx(planned["concurrency"], rel=0.02)
    # And the role compares, and says so.
    (line,) = [line for line in came_to["memory"] if "requests of" in line]
    assert f": ok: the engine holds {times:g} requests of {context} tokens at once, the plan said {planned['concurrency']:.2f}" in line
