# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Int8 weights that do not say so, described by the roles and served by the real vLLM on a CPU; and what it makes of them otherwise.

The model is Qwen3.5's dense form, four layers of random numbers: full and linear attention, int8 throughout, the draft layer too. What
it says is noise, so its probabilities are held against those of the same numbers multiplied out to bfloat16 beforehand. The form with
experts is not served here: vLLM's int8 experts need a CPU with AMX.
"""

from __future__ import annotations

import copy
import hashlib
import http.client
import json
import math
import statistics
from pathlib import Path

import pytest
from faults import tiny_w8a8

from ansible_collections.ironserve.llm.plugins.module_utils import _config_file

MODEL = "tiny-w8a8"
LONG = Path(__file__).resolve().parent
WINDOW = 1024
#: A word for every byte, so some 340 positions to compare.
TEXT = " ".join(f"Line {at}: nothing here was ever read by {name}." for at, name in enumerate("Ann Bo Cy Di Ed Flo Gus Hal".split()))

pytestmark = pytest.mark.long


def recipe(folder: Path) -> dict:
    """The recipe of the checkpoint in ``folder``, as one for weights whose config.json says nothing of their numbers."""
    files = [
        {"path": path.name, "size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.iterdir())
    ]
    weights = {
        "format": "safetensors",
        "source": {"kind": "directory", "path": str(folder)},
        "entry": ".",
        "files": files,
        "quantization": {"method": "compressed-tensors", "inject": True},
    }
    return {
        "name": MODEL,
        "title": "Random int8 numbers in the form of Qwen3.5, for tests",
        "served_names": [MODEL],
        "weights": {"default": "w8a8", "variants": {"w8a8": weights}},
        # Per token: 1 layer x 2 x 2 heads x 64 x 2 bytes.
        "memory": {"kv_bytes_per_token": 512, "state_mib_per_sequence": 1, "overhead_mib": 1800},
        "platforms": {"cpu": {"engine": "vllm", "weights": "w8a8"}},
        "settings": {
            "max_model_len": WINDOW,
            "max_num_seqs": 2,
            "tensor_parallel_size": 1,
            "language_model_only": True,
            "enable_prefix_caching": False,
            "kv_cache_memory_bytes": 64 << 20,
        },
        "acceptance": {"checks": [{"check": "exact", "id": "none", "prompt": "What?", "expect": ["noise"]}]},
    }


class Answer:
    """What an engine makes of TEXT and 16 tokens of its own after it: probabilities, likeliest tokens, text."""

    def __init__(self, said: dict) -> None:
        choice = said["choices"][0]
        # the first position has nothing before it; an entry has the token that is there, then the likeliest
        positions = choice["prompt_logprobs"][1:]
        self.logprobs = [next(iter(position.values()))["logprob"] for position in positions]
        self.likeliest = [next(token for token, about in position.items() if about["rank"] == 1) for position in positions]
        self.own = choice["logprobs"]["token_logprobs"]
        self.text = choice["text"]

    def likeness(self, other: Answer) -> tuple[float, float]:
        """Correlation of the probabilities with another's, and the share of positions with the same likeliest token."""
        same = sum(mine == its for mine, its in zip(self.likeliest, other.likeliest, strict=True))
        return statistics.correlation(self.logprobs, other.logprobs), same / len(self.likeliest)


class Site:
    """The model on this machine, planned by the roles, and containers that take the planned one's place in turn."""

    def __init__(self, folder: Path, play) -> None:
        self.folder, self.play = folder, play
        self.origin = folder / "origin"
        words = tiny_w8a8.tokenizer()
        tiny_w8a8.write(self.origin, "no_config", tiny_w8a8.SERVED, files=words)
        tiny_w8a8.write(folder / "scale_missing", "scale_missing", tiny_w8a8.SERVED, files=words)
        tiny_w8a8.write_plain(folder / "plain", tiny_w8a8.SERVED, files=words)
        stand_in = {"source": str(LONG / "without_vision" / "torchvision"), "target": "/opt/engine/torchvision", "read_only": True}
        engine = {"name": "vllm", "platforms": {"cpu": {"container": {"mounts": [stand_in]}}}}
        for kind, entry in (("models", recipe(self.origin)), ("engines", engine)):
            (folder / "catalog" / kind).mkdir(parents=True)
            (folder / "catalog" / kind / (entry["name"] + ".yml")).write_text(json.dumps(entry), encoding="utf-8")
        play("quantized.yml", folder, "vllm")
        self.planned = json.loads((folder / "replica.json").read_text(encoding="utf-8"))
        self.key = (folder / "etc" / "keys" / "engine.key").read_text(encoding="utf-8").strip()
        self.weights = Path(self.planned["weights"]["path"])
        self.config = Path(self.planned["weights"]["config"])
        self._known: dict[tuple[Path, Path | None], tuple[list[Answer], dict]] = {}

    def serve(self, weights: Path, config: Path | None) -> tuple[list[Answer], dict]:
        """Start the planned container with these weights and this config over theirs: two answers, or none, and what it came to."""
        if (weights, config) not in self._known:
            wanted = copy.deepcopy(self.planned)
            mounts = [mount for mount in wanted["spec"]["mounts"] if mount["target"] != "/models/config.json"]
            next(mount for mount in mounts if mount["target"] == "/models")["source"] = str(weights)
            if config:
                mounts.append({"source": str(config), "target": "/models/config.json", "read_only": True})
            wanted["spec"]["mounts"] = mounts
            path = self.folder / "wanted.json"
            path.write_text(json.dumps(wanted), encoding="utf-8")
            self.play("swap.yml", self.folder, "vllm", long_replica=str(path))
            came_to = json.loads((self.folder / "came_to.json").read_text(encoding="utf-8"))
            # Noise may begin with its own end: an answer without a token is one, too.
            dead = came_to["warm"]["error"] and "HTTP 200 without one token" not in came_to["warm"]["error"]
            answers = [] if dead else [answer for answer in (self.ask(), self.ask()) if answer]
            self._known[weights, config] = (answers, came_to)
        return self._known[weights, config]

    def ask(self) -> Answer | None:
        """The engine's answer, or None when it has none."""
        door = http.client.HTTPConnection("127.0.0.1", self.planned["port"], timeout=300)
        body = {"model": MODEL, "prompt": TEXT, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "logprobs": 1, "prompt_logprobs": 1}
        try:
            headers = {"Authorization": "Bearer " + self.key, "Content-Type": "application/json"}
            door.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = door.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            door.close()
        return Answer(json.loads(said)) if answer.status == 200 else None


@pytest.fixture(scope="module")
def site(tmp_path_factory, play):
    folder = tmp_path_factory.mktemp("quantized")
    try:
        yield Site(folder, play)
    finally:
        play("remove.yml", folder, "vllm")


@pytest.fixture(scope="module")
def right(site):
    """The answer of the same numbers without int8."""
    answers, came_to = site.serve(site.folder / "plain", None)
    assert answers, came_to
    return answers[0]


def test_the_description_lies_beside_the_weights_and_is_mounted_over_theirs(site):
    over = {"source": str(site.config), "target": "/models/config.json", "read_only": True}
    assert over in site.planned["spec"]["mounts"]
    assert site.config.parent != site.weights
    assert "quantization_config" in json.loads(site.config.read_text(encoding="utf-8"))
    for path in site.origin.iterdir():
        assert (site.weights / path.name).read_bytes() == path.read_bytes()


def test_the_engine_serves_the_int8_numbers(site, right, capsys):
    answers, came_to = site.serve(site.weights, site.config)
    assert len(answers) == 2, came_to
    assert "CPUInt8ScaledMMLinearKernel" in came_to["log"]
    assert "not found in params_dict" not in came_to["log"]
    first, second = answers
    assert all(math.isfinite(value) for value in first.logprobs + first.own) and len(first.own) == 16
    # the same question, the same answer
    assert (first.logprobs, first.own, first.text) == (second.logprobs, second.own, second.text)
    # int8 activations are a little off; not at all would mean that somebody multiplied the numbers out
    assert first.logprobs != right.logprobs
    correlation, same = first.likeness(right)
    with capsys.disabled():
        print(f"\nint8 against the same numbers in bfloat16, {len(first.logprobs)} positions: {correlation:.4f}, {same:.0%} same likeliest")
    assert correlation > 0.97 and same > 0.65


@pytest.mark.parametrize("wrong", ["no_description", "ignored_but_quantized", "scale_missing"])
def test_what_the_check_refuses_the_engine_does_not_serve_rightly(site, right, wrong, capsys):
    """Each starts in some version of vLLM, and its /health says 200. The other faults are in tests/faults/tiny_w8a8.py."""
    weights, config = site.weights, site.folder / "none.json"
    if wrong == "ignored_but_quantized":
        content = json.loads(site.config.read_text(encoding="utf-8"))
        for key in ("quantization_config", "compression_config"):
            content[key]["ignore"].append("re:.*linear_attn.*")
        config = site.folder / "wide.json"
        config.write_text(json.dumps(content), encoding="utf-8")
    elif wrong == "scale_missing":
        weights = site.folder / "scale_missing"
    assert wrong in _config_file.look(str(weights), str(config)).checks
    answers, came_to = site.serve(weights, config if config.exists() else None)
    likeness = answers[0].likeness(right) if answers and all(map(math.isfinite, answers[0].logprobs)) else None
    with capsys.disabled():
        print(f"\n{wrong}: {likeness or came_to['warm']['error'][:200] or 'no numbers'}")
    assert likeness is None or likeness[0] < 0.9
