# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The config an engine sees: put in, left alone, put back; on real files, with a disk that ends and runs that are killed."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import stat
import sys

import pytest
from faults import tiny_w8a8
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _config_file, _quantization
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


class Site:
    """Weights in a directory, and a place outside for the config that is mounted over theirs."""

    def __init__(self, base, fault: str = "no_config") -> None:
        self.root = base / "weights" / "m"
        tiny_w8a8.write(self.root, fault)
        self.config = self.root / "config.json"
        self.dest = base / "config" / "m.json"
        self.backup = self.root / "config.json.original"
        self.first = self.config.read_bytes()

    def settle(self, state: str = "present", over: bool = False, **more):
        return _config_file.settle(str(self.root), state, str(self.dest) if over else "", **more)

    def everything(self) -> dict:
        return {str(path): path.read_bytes() for path in self.root.parent.parent.rglob("*") if path.is_file()}


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def block(raw: bytes) -> dict:
    return json.loads(raw)["quantization_config"]


# ---- in place


def test_the_block_is_put_in_and_nothing_else_changes(site):
    os.chmod(site.config, 0o444)
    done = site.settle()
    assert (done.changed, done.verdict.problems, done.config_path) == (True, [], str(site.config))
    raw = site.config.read_bytes()
    old, new = json.loads(site.first), json.loads(raw)
    assert list(new) == [*old, "quantization_config", "compression_config"]
    assert {key: new[key] for key in old} == old
    assert new["quantization_config"] == new["compression_config"]
    assert new["quantization_config"]["ignore"] == done.verdict.ignore
    assert (done.before, done.after) == (site.first, raw)
    assert done.sha256 == hashlib.sha256(raw).hexdigest() and done.original_sha256 == hashlib.sha256(site.first).hexdigest()
    assert site.backup.read_bytes() == site.first
    assert stat.S_IMODE(site.config.stat().st_mode) == 0o444 == stat.S_IMODE(site.backup.stat().st_mode)
    assert not [name for name in os.listdir(site.root) if name.startswith(".")]


def test_the_second_time_nothing_is_written(site):
    first = site.settle()
    before = site.config.stat()
    again = site.settle()
    assert not again.changed and again.original_sha256 == first.original_sha256 and again.sha256 == first.sha256
    assert (site.config.stat().st_ino, site.config.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_original_comes_back_byte_for_byte(site):
    site.settle()
    done = site.settle("absent")
    assert done.changed and site.config.read_bytes() == site.first and not site.backup.exists()
    assert (done.before != site.first, done.after) == (True, site.first)
    assert not site.settle("absent").changed


def test_looking_only_writes_nothing_and_says_what_would_come(site):
    before = site.everything()
    done = site.settle(look_only=True)
    assert done.changed and block(done.after)["format"] == "int-quantized"
    assert site.everything() == before
    site.settle()
    before = site.everything()
    assert site.settle("absent", look_only=True).changed
    assert site.everything() == before


def test_a_second_block_keeps_the_first_original(site):
    site.settle()
    other = block(site.config.read_bytes())
    other["ignore"] = ["lm_head", r"re:.*mlp\.gate$", "re:.*shared_expert_gate$", r"re:.*visual\..*", "mtp.fc"]
    assert site.settle(block=other).changed
    assert block(site.config.read_bytes()) == other and site.backup.read_bytes() == site.first
    # what is there and right is not replaced by what would have been derived
    assert not site.settle().changed
    assert not site.settle(block=other).changed


def test_an_original_of_another_model_is_never_put_back(site):
    site.settle()
    other = json.loads(site.config.read_bytes())
    other["text_config"]["hidden_size"] = 4096
    site.config.write_text(json.dumps(other))
    before = site.everything()
    for state in ("present", "checked", "absent"):
        with pytest.raises(LLMError, match=r"config.json.original: is the original of another config .* nothing was changed"):
            site.settle(state)
    assert site.everything() == before


def test_a_config_that_came_again_gets_its_block_again(site):
    site.settle()
    site.config.write_bytes(site.first)
    assert site.settle().changed
    assert site.backup.read_bytes() == site.first


# ---- mounted over


def test_beside_the_weights_nothing_in_their_directory_changes(site):
    before = site.everything()
    done = site.settle(over=True)
    assert done.changed and done.config_path == str(site.dest)
    assert {path: raw for path, raw in site.everything().items() if path != str(site.dest)} == before
    assert stat.S_IMODE(site.dest.stat().st_mode) == 0o644
    assert done.original_sha256 == hashlib.sha256(site.first).hexdigest()
    assert not site.settle(over=True).changed
    assert site.settle("checked", over=True).verdict.problems == []
    assert _config_file.look(str(site.root), str(site.dest)).problems == []
    assert site.settle("absent", over=True).changed and site.everything() == before
    assert not site.settle("absent", over=True).changed


def test_a_config_that_is_not_needed_any_more_goes(site):
    site.settle(over=True)
    tiny_w8a8.write(site.root)
    done = site.settle(over=True, look_only=True)
    assert done.changed and site.dest.exists()
    done = site.settle(over=True)
    assert (done.changed, done.config_path, site.dest.exists()) == (True, str(site.config), False)
    assert not site.settle(over=True).changed


def test_a_config_made_for_another_model_is_made_again_and_never_judged_as_if_it_were_this_one(site):
    site.settle(over=True)
    other = json.loads(site.dest.read_bytes())
    other["text_config"]["hidden_size"] = 4096
    site.dest.write_text(json.dumps(other))
    for ask in (lambda: site.settle("checked", over=True), lambda: _config_file.look(str(site.root), str(site.dest))):
        with pytest.raises(LLMError, match="says other things about the model"):
            ask()
    assert site.settle(over=True).changed
    assert site.settle("checked", over=True).verdict.problems == []


def test_it_must_lie_outside(site):
    with pytest.raises(LLMError, match="lies inside"):
        _config_file.settle(str(site.root), "present", str(site.root / "patched.json"))


# ---- what is left alone, and what is refused


def test_weights_that_say_it_right_are_left_alone(tmp_path):
    site = Site(tmp_path, "")
    before = site.everything()
    for over in (False, True):
        done = site.settle(over=over)
        assert (done.changed, done.config_path, done.verdict.problems) == (False, str(site.config), [])
    assert site.everything() == before


def test_plain_and_ascend_weights_are_left_alone(tmp_path):
    plain, ascend = tmp_path / "plain" / "m", tmp_path / "ascend" / "m"
    tiny_w8a8.write(plain, "no_config", plain=("",))
    tiny_w8a8.write_ascend(ascend)
    for root, method in ((plain, ""), (ascend, "ascend")):
        done = _config_file.settle(str(root), "present")
        assert (done.changed, done.verdict.method, done.verdict.problems) == (False, method, [])


@pytest.mark.parametrize("fault", ["ignored_int8", "half_of_a_pair_ignored", "wrong_format", "not_ignored"])
def test_a_wrong_block_is_refused_when_looking_and_replaced_when_asked(tmp_path, fault):
    site = Site(tmp_path, fault)
    assert site.settle("checked").verdict.problems
    done = site.settle()
    assert done.changed and done.verdict.problems == []
    assert "the block that came with the weights was wrong" in done.verdict.notes[0]
    assert site.settle("checked").verdict.problems == []
    site.settle("absent")
    assert site.config.read_bytes() == site.first


@pytest.mark.parametrize("fault", ["scale_missing", "scale_renamed"])
def test_no_block_makes_missing_scales_right(tmp_path, fault):
    site = Site(tmp_path, fault)
    before = site.everything()
    done = site.settle()
    assert not done.changed and done.verdict.checks == [fault.replace("renamed", "name")]
    assert site.everything() == before


@pytest.mark.parametrize("fault", ["shard_truncated", "shard_missing"])
def test_files_that_are_not_sound_are_not_judged(tmp_path, fault):
    site = Site(tmp_path, fault)
    for state in ("present", "checked"):
        with pytest.raises(LLMError, match="not sound.*\n.*model-00002-of-00002"):
            site.settle(state)


def test_a_block_that_is_given_and_wrong_is_refused(site):
    before = site.everything()
    wrong = {**tiny_w8a8.SCHEME, "ignore": ["lm_head", "re:.*linear_attn.*"]}
    done = site.settle(block=wrong)
    assert not done.changed and set(done.verdict.checks) == {"ignored_but_quantized", "not_ignored"}
    assert site.everything() == before


def test_a_config_that_is_no_json_is_named(site):
    site.config.write_text("{")
    with pytest.raises(LLMError, match="config.json: is no valid JSON"):
        site.settle()
    site.config.unlink()
    with pytest.raises(LLMError, match="config.json: missing"):
        site.settle()
    with pytest.raises(LLMError, match="no such directory"):
        _config_file.settle(str(site.root / "x"), "present")


# ---- a disk that ends, a run that is killed, a second writer


def in_child(work) -> int:
    """Run ``work`` in a process of its own; returns its wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        work()
        os._exit(0)
    except LLMError as exc:
        sys.stderr.write(str(exc))
        os._exit(3)
    finally:
        os._exit(9)


@pytest.mark.parametrize("over", [False, True])
def test_a_disk_that_is_full_in_the_middle_of_the_write_leaves_the_old_file(site, over, capfd):
    """The kernel refuses to let any file grow past 1,000 bytes: the config is longer."""
    before = site.everything()

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        site.settle(over=over)

    assert os.WEXITSTATUS(in_child(work)) == 3
    message = capfd.readouterr().err
    assert "cannot be written: File too large; it is what it was" in message
    assert str(site.dest if over else site.backup) in message
    assert site.everything() == before
    assert site.settle(over=over).changed


@pytest.mark.parametrize("moment", range(3))
def test_killed_at_any_moment_it_converges(site, moment):
    """Killed just before each of the renames, and after the last."""

    def work():
        real, calls = os.replace, []

        def rename(source, target):
            if len(calls) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            calls.append(target)
            real(source, target)

        os.replace = rename
        site.settle()
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.WTERMSIG(in_child(work)) == signal.SIGKILL
    assert site.config.read_bytes() == site.first or block(site.config.read_bytes())
    assert site.settle().verdict.problems == []
    assert block(site.config.read_bytes()) and site.backup.read_bytes() == site.first
    assert not [name for name in os.listdir(site.root) if name.startswith(".")]
    site.settle("absent")
    assert site.config.read_bytes() == site.first


def test_a_second_writer_is_waited_for_and_then_named(site):
    import fcntl

    number = os.open(site.root.parent, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        with pytest.raises(LLMError, match="another process"):
            site.settle(wait_s=0.1)
    finally:
        os.close(number)


# ---- the text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES, max_size=6), st.dictionaries(st.text(), VALUES, max_size=3))
def test_whatever_a_config_holds_reads_back_as_it_was(config, new):
    again = json.loads(_config_file.patch(config, new))
    kept = {key: value for key, value in config.items() if key not in _quantization.KEYS}
    assert list(again) == [*kept, *_quantization.KEYS]
    assert {key: again[key] for key in kept} == kept and again["quantization_config"] == new == again["compression_config"]


def test_a_config_that_would_not_read_back_is_not_written():
    with pytest.raises(LLMError, match="does not read back"):
        _config_file.patch({"rope_theta": float("nan")}, {})
