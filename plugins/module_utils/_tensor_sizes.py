# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What weights that lie on a host say of their size: config.json and the headers of their shards. Private to the collection.

Reads no tensor data: some 10 MB for a model of 35 GB.
"""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _safetensors
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._geometry import tally

#: Parts of a configuration that say nothing of memory, and are long.
_PASSED_OVER = ("quantization_config", "compression_config", "vision_config")


def shards(path: str) -> list[str]:
    """Names of the shards that an engine loads from directory ``path``: those of its index, else all there are.

    Raises LLMError when there is none.
    """
    names = sorted(os.listdir(path))
    held: set[str] = set()
    for name in names:
        if name.endswith(".safetensors.index.json"):
            where = os.path.join(path, name)
            with open(where, "rb") as handle:
                held.update(_safetensors.parse_index(handle.read(), where).values())
    found = sorted(held) or [name for name in names if name.endswith(".safetensors")]
    if not found:
        raise LLMError("{0}: holds no safetensors files".format(path))
    return found


def read(path: str, config: str = "") -> dict[str, Any]:
    """Add up what lies in a directory of safetensors.

    Args:
        config: the configuration that the engine sees; empty for the directory's own.
    Returns ``{"config", "tensors"}``: the configuration, without what is long and says nothing of memory, and rows of ``_geometry.tally``.
    Raises LLMError, naming the file, for one that is missing or damaged.
    """
    where = config or os.path.join(path, "config.json")
    tensors = []
    try:
        with open(where, "rb") as handle:
            content = _safetensors.parse_json(handle.read(), where)
        for name in shards(path):
            shard = os.path.join(path, name)
            with open(shard, "rb") as handle:
                tensors += [item[:3] for item in _safetensors.read_header(handle, os.path.getsize(shard), shard)]
    except OSError as exc:
        raise LLMError("{0}: cannot be read: {1}".format(exc.filename or path, exc.strerror or exc)) from exc
    return {"config": {key: value for key, value in content.items() if key not in _PASSED_OVER}, "tensors": tally(tensors)}
