# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module as Ansible calls it."""

from __future__ import annotations

import json
import struct

import pytest

from ansible_collections.ironserve.llm.plugins.modules import weights_info


@pytest.mark.parametrize("check_mode", [False, True])
def test_weights_that_are_there_are_told(run_module, tmp_path, check_mode):
    header = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    result = run_module(weights_info, {"path": str(tmp_path)}, check_mode)
    assert result["changed"] is False
    assert result["found"] == {"config": {"model_type": "llama"}, "tensors": [["output", -1, "whole", 64]]}


def test_weights_that_are_not_there_yet_are_nothing(run_module, tmp_path):
    assert run_module(weights_info, {"path": str(tmp_path / "later")})["found"] == {}


def test_weights_that_cannot_be_read_fail(run_module, tmp_path):
    assert "config.json: cannot be read" in run_module(weights_info, {"path": str(tmp_path)})["msg"]
