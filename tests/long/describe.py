#!/usr/bin/env python3
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the recipe of a cut model: describe.py GGUF RECIPE

The recipe has both layouts of the model, pinned like any other: the second is converted once here, to know its checksums.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPOSITORY, "collections"))

from ansible_collections.ironserve.llm.plugins.module_utils import _conversion  # noqa: E402
from ansible_collections.ironserve.llm.plugins.module_utils._manifest import sha256_of  # noqa: E402

#: Per token: 2 layers x 2 x 3 heads x 64 x 2 bytes.
KV_BYTES = 1536
WINDOW = 65536


def entry(path: str) -> dict:
    """The manifest entry of a file."""
    digest, status, _stable = sha256_of(path)
    return {"path": os.path.basename(path), "size": status.st_size, "sha256": digest}


def recipe(gguf: str) -> dict:
    """The recipe of the model in the file ``gguf``."""
    with tempfile.TemporaryDirectory() as folder:
        _conversion.convert(gguf, folder)
        converted = [entry(os.path.join(folder, name)) for name in _conversion.FILES]
    source = {"kind": "directory", "path": os.path.dirname(gguf)}
    plain = {"format": "gguf", "source": source, "entry": os.path.basename(gguf), "files": [entry(gguf)]}
    other = {"format": "safetensors", "source": {"kind": "convert", "variant": "q4_1", "base": plain}, "entry": ".", "files": converted}
    real = {
        "weights": "hf_bf16",
        "memory": {"overhead_mib": 1800},
        "settings": {"kv_cache_memory_bytes": 2 * KV_BYTES * WINDOW, "enable_prefix_caching": True},
    }
    return {
        "name": "smollm2-135m-cut",
        "title": "Two layers of SmolLM2-135M-Instruct with a long window, for tests of transport",
        "served_names": ["smollm2-135m-cut"],
        "weights": {"default": "q4_1", "variants": {"q4_1": plain, "hf_bf16": other}},
        "memory": {"kv_bytes_per_token": KV_BYTES, "state_mib_per_sequence": 0, "overhead_mib": 400},
        "platforms": {"cpu": {"engine": "llama_cpp", "weights": "q4_1", "engines": {"vllm": real}}},
        "settings": {"max_model_len": WINDOW, "max_num_seqs": 1, "tensor_parallel_size": 1},
        "acceptance": {"checks": [{"check": "exact", "id": "none", "prompt": "What?", "expect": ["noise"]}]},
    }


if __name__ == "__main__":
    os.makedirs(os.path.dirname(sys.argv[2]), exist_ok=True)
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        json.dump(recipe(os.path.abspath(sys.argv[1])), out, indent=1)
