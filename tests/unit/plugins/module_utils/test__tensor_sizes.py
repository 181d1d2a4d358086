# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Directories of weights as hubs hand them out: what an engine would load is counted, and nothing beside it."""

from __future__ import annotations

import json
import struct

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._tensor_sizes import read, shards

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "quantization_config": {"ignore": ["x"] * 1000}}


def shard(path, tensors):
    """Write a file of safetensors whose data are zeros; tensors are name -> shape of bfloat16."""
    header, position = {}, 0
    for name, shape in tensors.items():
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(position))


@pytest.fixture
def weights(tmp_path):
    """Two shards with an index, and a third file that repeats them under other names, as some makers add."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    first = {"model.embed_tokens.weight": (10, 4), "model.layers.0.self_attn.k_proj.weight": (2, 4)}
    second = {"model.layers.1.self_attn.k_proj.weight": (2, 4), "model.norm.weight": (4,)}
    shard(tmp_path / "model-00001-of-00002.safetensors", first)
    shard(tmp_path / "model-00002-of-00002.safetensors", second)
    shard(tmp_path / "consolidated.safetensors", {"tok_embeddings.weight": (10, 4)})
    where = dict.fromkeys(first, "model-00001-of-00002.safetensors")
    where.update(dict.fromkeys(second, "model-00002-of-00002.safetensors"))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return tmp_path


def test_what_the_index_names_is_counted(weights):
    assert sorted(read(str(weights))["tensors"]) == [
        ["embed", -1, "split", 640],
        ["layer", 0, "kv", 128],
        ["layer", 1, "kv", 128],
        ["other", -1, "whole", 64],
    ]


def test_without_an_index_every_file_is_counted(weights):
    (weights / "model.safetensors.index.json").unlink()
    assert shards(str(weights)) == [
        "consolidated.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_the_config_is_the_one_that_the_engine_sees(weights, tmp_path):
    assert read(str(weights))["config"] == {"model_type": "llama", "num_hidden_layers": 2}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(dict(CONFIG, num_hidden_layers=3)))
    assert read(str(weights), str(other))["config"]["num_hidden_layers"] == 3


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00002.safetensors"])
def test_what_is_missing_is_named(weights, name):
    (weights / name).unlink()
    with pytest.raises(LLMError, match=name + ": cannot be read: No such file"):
        read(str(weights))


def test_a_shard_that_was_cut_is_named_and_never_counted_as_less(weights):
    path = weights / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LLMError, match="model-00001-of-00002.safetensors: truncated"):
        read(str(weights))


def test_a_directory_without_weights_is_no_model_of_no_size(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LLMError, match="holds no safetensors files"):
        read(str(tmp_path))
