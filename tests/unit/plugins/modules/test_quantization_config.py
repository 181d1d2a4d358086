# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""quantization_config as Ansible runs it: what it answers, refuses, shows as a diff, and leaves alone in check mode."""

from __future__ import annotations

import hashlib
import json

import pytest
from faults import tiny_w8a8

from ansible_collections.ironserve.llm.plugins.modules import quantization_config


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "weights" / "m"
    tiny_w8a8.write(folder, "no_config")
    return folder


def test_int8_weights_get_their_description_beside_them(root, tmp_path, run_module):
    dest = tmp_path / "config" / "m.json"
    arguments = {"path": str(root), "dest": str(dest)}
    first = (root / "config.json").read_bytes()
    planned = run_module(quantization_config, arguments, check_mode=True)
    assert planned["changed"] and not dest.exists()
    result = run_module(quantization_config, arguments)
    assert result["diff"] == planned["diff"] and result["diff"]["before"] == "" and '"int-quantized"' in result["diff"]["after"]
    assert (result["changed"], result["config_path"], result["method"]) == (True, str(dest), "compressed-tensors")
    assert (result["quantized"], result["plain"], result["linear_attention"], len(result["ignore"])) == (68, 18, "quantized", 18)
    assert result["sha256"] == hashlib.sha256(dest.read_bytes()).hexdigest()
    assert result["original_sha256"] == hashlib.sha256(first).hexdigest() and (root / "config.json").read_bytes() == first
    again = run_module(quantization_config, arguments)
    assert not again["changed"] and again["diff"]["before"] == again["diff"]["after"]
    assert run_module(quantization_config, {**arguments, "state": "checked", "method": "compressed-tensors"})["method"]
    gone = run_module(quantization_config, {**arguments, "state": "absent"})
    assert gone["changed"] and not dest.exists() and "method" not in gone


def test_in_place_the_diff_shows_both_and_absent_brings_the_original_back(root, run_module):
    first = (root / "config.json").read_text()
    result = run_module(quantization_config, {"path": str(root)})
    assert result["diff"]["before"] == first and result["diff"]["after"] == (root / "config.json").read_text()
    assert run_module(quantization_config, {"path": str(root), "state": "absent"})["diff"]["after"] == first
    assert (root / "config.json").read_text() == first


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("ignored_int8", "ignored_but_quantized"),
        ("no_config", "no_description"),
        ("half_of_a_pair_ignored", "part_ignored"),
        ("scale_missing", "scale_missing"),
        ("scale_renamed", "scale_name"),
        ("wrong_format", "wrong_format"),
        ("not_ignored", "not_ignored"),
    ],
)
def test_each_broken_variant_is_one_message(tmp_path, run_module, fault, check):
    tiny_w8a8.write(tmp_path / "m", fault)
    result = run_module(quantization_config, {"path": str(tmp_path / "m"), "state": "checked"})
    assert result["failed"] and not result["changed"] and result["failed_checks"] == [check]
    assert str(tmp_path / "m") in result["msg"] and check in result["msg"] and "Traceback" not in result["msg"]
    assert result["problems"] and all(line in result["msg"] for line in result["problems"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"path": "/nowhere/at/all"}, "no such directory"),
        ({"dest": "{root}/x.json"}, "lies inside"),
        ({"dest": "/tmp/x.json", "backup": "/tmp/y"}, "mutually exclusive"),
        ({"method": "gptq"}, "must be one of"),
        ({"method": "ascend"}, "the engine is told ascend"),
        ({"config": {"quant_method": "compressed-tensors"}}, "wrong_format"),
    ],
)
def test_bad_arguments_are_one_message(root, run_module, arguments, says):
    first = (root / "config.json").read_bytes()
    arguments = {key: value.format(root=root) if isinstance(value, str) else value for key, value in arguments.items()}
    result = run_module(quantization_config, {"path": str(root), **arguments})
    assert result["failed"] and says in result["msg"] and "Traceback" not in result["msg"]
    assert (root / "config.json").read_bytes() == first and json.loads(first)
