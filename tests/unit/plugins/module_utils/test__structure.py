# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Structure of a set of weights without any manifest: what is damaged, missing, extra or mixed up has its message."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import pytest
from faults import tiny_w8a8
from faults.tiny_gguf import tiny_gguf

from ansible_collections.ironserve.llm.plugins.module_utils import _structure
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def shard(names) -> bytes:
    header = {name: {"dtype": "U8", "shape": [4], "data_offsets": [4 * at, 4 * at + 4]} for at, name in enumerate(names)}
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(4 * len(names))


NAMES = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
SET = {
    NAMES[0]: shard(["a", "b"]),
    NAMES[1]: shard(["c"]),
    INDEX: json.dumps({"weight_map": {"a": NAMES[0], "b": NAMES[0], "c": NAMES[1]}}).encode(),
    "config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}\n',
    "tokenizer_config.json": b"{}",
    "generation_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"<html>a model card may well be a page</html>",
}


def fill(root: Path, files) -> str:
    for name, data in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return str(root)


def lines(folder: Path, files, weights_format: str = "safetensors", needs=_structure.NEEDS) -> list[str]:
    root = fill(folder, files)
    return _structure.inspect(root, _structure.files_of(root), weights_format, needs).lines()


def changed(change: dict) -> dict:
    return {name: data for name, data in {**SET, **change}.items() if data is not None}


def test_a_whole_set_is_good_and_gives_its_tensors(tmp_path):
    root = fill(tmp_path, SET)
    found = _structure.inspect(root, _structure.files_of(root), "safetensors")
    assert found.problems == {}
    assert {path: [one.name for one in tensors] for path, tensors in found.shards.items()} == {NAMES[0]: ["a", "b"], NAMES[1]: ["c"]}
    assert found.documents["config.json"] == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({NAMES[1]: None}, ["model-00002-of-00002.safetensors: missing", "names shard model-00002-of-00002"]),
        ({NAMES[1]: shard(["b"])}, ["tensor 'b' is in", "1 tensors are not in shard", "holds 1 tensors the index does not"]),
        ({NAMES[1]: shard(["c"])[:-1]}, [NAMES[1] + ": truncated"]),
        ({NAMES[1]: shard(["c"]) + b"x"}, [NAMES[1] + ": 1 bytes after the last tensor"]),
        ({NAMES[1]: b"<html>"}, [NAMES[1] + ": this is an HTML page"]),
        ({NAMES[1]: b"version https://git-lfs.github.com/spec/v1\n"}, [NAMES[1] + ": this is a Git LFS pointer"]),
        ({NAMES[1]: b""}, [NAMES[1] + ": is empty"]),
        ({"extra.safetensors": shard(["x"])}, ["shard extra.safetensors is beside it and named by nobody"]),
        ({INDEX: None}, ["2 shards and no index"]),
        ({INDEX: b"{"}, ["no valid JSON"]),
        ({INDEX: b"<!doctype html><title>Sign in</title>"}, [INDEX + ": this is an HTML page", "2 shards and no index"]),
        ({INDEX: b'{"weight_map": {"a": "model.bin"}}'}, ["names shard model.bin", NAMES[0], NAMES[1]]),
        ({"config.json": None}, ["config.json: missing"]),
        ({"config.json": b"[]"}, ["config.json: is no JSON object"]),
        ({"config.json": b'{"a": 1, "a": 2}'}, ["config.json: is no valid JSON (name 'a' occurs twice)"]),
        ({"tokenizer.json": None}, ["no tokenizer"]),
        ({"tokenizer.json": b'{"version": "1'}, ["tokenizer.json: does not begin and end"]),
        ({"tokenizer.json": None, "qwen.tiktoken": b"IQ== 0"}, []),
        ({"generation_config.json": None}, ["generation_config.json: missing"]),
        ({"generation_config.json": b"no"}, ["generation_config.json: is no valid JSON"]),
        ({"chat_template.jinja": None}, ["no chat template is there"]),
        ({"chat_template.jinja": b""}, ["chat_template.jinja: is empty"]),
        ({"chat_template.jinja": None, "tokenizer_config.json": b'{"chat_template": "{{ x }}"}'}, []),
        ({"chat_template.jinja": None, "tokenizer_config.json": b'{"chat_template": ""}'}, ["no chat template is there"]),
        # one fault, one line: a file that cannot be read is not also said to lack something
        ({"chat_template.jinja": None, "tokenizer_config.json": b"{"}, ["tokenizer_config.json: is no valid JSON"]),
        ({"chat_template.jinja": None, "tokenizer_config.json": None}, ["no chat template is there"]),
        ({"._____temp/model-00003.safetensors": b"half"}, ["._____temp/model-00003.safetensors: is what a hub client left"]),
        ({".cache/huggingface/download/x.incomplete": b"half"}, ["x.incomplete: is what a hub client left"]),
        ({".cache/huggingface/download/x.metadata": b"fine", ".msc": b"fine"}, []),
        ({"model-00003-of-00003.safetensors": shard(["d"])}, ["names say there are 2 and 3 parts", "named by nobody"]),
        ({NAMES[1]: None, "model-00003-of-00002.safetensors": shard(["c"])}, ["no such part", "missing", "names shard", "named by nobody"]),
    ],
)
def test_each_fault_is_named_and_nothing_else(tmp_path, change, says):
    found = lines(tmp_path, changed(change))
    assert len(found) == len(says), found
    for word in says:
        assert any(word in line for line in found), found


def test_what_a_caller_does_not_need_is_not_missed(tmp_path):
    bare = changed({"chat_template.jinja": None, "generation_config.json": None})
    assert len(lines(tmp_path, bare)) == 2
    assert lines(tmp_path, bare, needs=("config", "tokenizer")) == []
    with pytest.raises(LLMError, match="'readme' is none this collection knows"):
        lines(tmp_path, bare, needs=("readme",))


def test_two_indexes_share_the_shards_of_a_directory(tmp_path):
    more = {
        "draft.safetensors.index.json": json.dumps({"weight_map": {"d": "draft.safetensors"}}).encode(),
        "draft.safetensors": shard(["d"]),
    }
    assert lines(tmp_path, {**SET, **more}) == []
    (found,) = lines(tmp_path, {**SET, **more, "draft.safetensors": shard(["d", "e"])})
    assert found.startswith("draft.safetensors.index.json: shard draft.safetensors holds 1 tensors")


def test_a_link_and_a_pipe_are_said_and_not_opened(tmp_path):
    root = fill(tmp_path / "w", SET)
    (tmp_path / "w" / NAMES[0]).rename(tmp_path / "blob")
    (tmp_path / "w" / NAMES[0]).symlink_to(tmp_path / "blob")
    os.unlink(tmp_path / "w" / "config.json")
    os.mkfifo(tmp_path / "w" / "config.json")
    found = _structure.inspect(root, _structure.files_of(root), "safetensors").problems
    assert found == {
        NAMES[0]: [NAMES[0] + ": is a symbolic link (to {0}) that a container would not see".format(tmp_path / "blob")],
        "config.json": ["config.json: is no regular file"],
    }


def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(LLMError, match="no such directory"):
        _structure.files_of(str(tmp_path / "nowhere"))


def test_an_empty_directory_is_no_weights(tmp_path):
    assert any("no file of format safetensors is among the files" in line for line in lines(tmp_path, {}))


# ---- GGUF


def part(number: int, count: int, total: int, names) -> bytes:
    return tiny_gguf(names, keys={"split.no": number, "split.count": count, "split.tensors.count": total})


PARTS = {"m-00001-of-00002.gguf": part(0, 2, 3, ("a", "b")), "m-00002-of-00002.gguf": part(1, 2, 3, ("c",))}


def test_a_split_file_whose_parts_agree(tmp_path):
    assert lines(tmp_path, PARTS, "gguf") == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"m-00002-of-00002.gguf": part(0, 2, 3, ("c",))}, "m-00002-of-00002.gguf: its header says it is part 0 of 2"),
        ({"m-00002-of-00002.gguf": part(1, 3, 3, ("c",))}, "m-00002-of-00002.gguf: its header says it is part 1 of 3"),
        ({"m-00002-of-00002.gguf": part(1, 2, 3, ("c", "d"))}, "the parts hold 4 tensors, its header says 3"),
        ({"m-00002-of-00002.gguf": part(1, 2, 3, ("b",))}, "tensor 'b' is in m-00001-of-00002.gguf as well"),
        ({"other.gguf": part(0, 2, 3, ("x",))}, "other.gguf: is one of 2 parts, and its name does not say which"),
        ({"m-00002-of-00002.gguf": b"<html>"}, "m-00002-of-00002.gguf: this is an HTML page"),
    ],
)
def test_a_split_file_whose_parts_disagree(tmp_path, change, says):
    assert any(says in line for line in lines(tmp_path, {**PARTS, **change}, "gguf"))


def test_two_models_in_one_directory_may_have_the_same_tensors(tmp_path):
    assert lines(tmp_path, {"a.gguf": tiny_gguf(), "b.gguf": tiny_gguf()}, "gguf") == []


# ---- names of checks


def test_a_marker_of_fewer_or_older_checks_does_not_cover_more():
    whole = _structure.checks("safetensors", quantization="auto")
    assert _structure.covers(whole, _structure.checks("safetensors"))
    assert _structure.covers(whole, _structure.checks("safetensors", ("config",)))
    assert not _structure.covers(_structure.checks("safetensors"), whole)
    assert not _structure.covers(_structure.checks("safetensors", ("config",)), _structure.checks("safetensors"))
    assert not _structure.covers("safetensors", _structure.checks("safetensors", ()))
    assert not _structure.covers(_structure.checks("gguf"), _structure.checks("safetensors", ()))
    assert _structure.covers("", "")


# ---- size


@pytest.mark.slow
def test_no_tensor_data_is_read_and_forty_shards_of_64000_tensors_take_seconds(tmp_path):
    """35 GB that are only holes: a read of them would take minutes, the headers take well under two seconds of a core."""
    shards = tiny_w8a8.split(tiny_w8a8.names(tiny_w8a8.FULL), 40)
    for name, tensors in shards.items():
        head, size = tiny_w8a8.header(tensors)
        (tmp_path / name).write_bytes(head)
        os.truncate(tmp_path / name, len(head) + size)
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    fill(tmp_path, {**tiny_w8a8.BESIDE, "config.json": b"{}", INDEX: json.dumps({"weight_map": weight_map}).encode()})
    start = time.process_time()
    assert lines(tmp_path, {}) == []
    assert time.process_time() - start < 10
    os.truncate(tmp_path / sorted(shards)[7], 10**6)
    (found,) = lines(tmp_path, {})
    assert found.startswith(sorted(shards)[7] + ": truncated")
