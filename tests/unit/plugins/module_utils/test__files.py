# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A file is replaced at once or stays as it was, and no copy of a secret is left."""

from __future__ import annotations

import os

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _files
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def test_a_private_file_is_put_at_once_and_leaves_no_copy_of_a_secret(tmp_path):
    path = tmp_path / "keys.map"
    _files.put(str(path), "secret\n")
    assert path.read_text() == "secret\n" and _files.is_private(str(path))
    path.chmod(0o640)
    assert not _files.is_private(str(path))
    # A directory in its place cannot be replaced by a file.
    taken = tmp_path / "taken"
    (taken / "x").mkdir(parents=True)
    with pytest.raises(LLMError, match="taken cannot be written: "):
        _files.put(str(taken), "secret\n")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["keys.map", "taken"]


def test_what_is_replaced_gets_the_mode_that_is_asked_for(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    path.chmod(0o600)
    _files.put(str(path), "new", _files.PUBLIC)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o644)


def test_directories_are_made_only_when_that_is_wanted(tmp_path):
    path = tmp_path / "a" / "b" / "x"
    with pytest.raises(LLMError, match="a/b/x cannot be written: No such file"):
        _files.put(str(path), "x")
    _files.put(str(path), "x", folder_mode=0o700)
    assert path.read_text() == "x" and path.parent.stat().st_mode & 0o777 == 0o700


def test_a_failed_write_keeps_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "keys.map"
    path.write_text("old")

    def full(_number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LLMError, match="keys.map cannot be written: No space left on device"):
        _files.put(str(path), "secret")
    assert path.read_text() == "old" and os.listdir(str(tmp_path)) == ["keys.map"]


def test_half_of_a_pair_is_written_as_its_escape(tmp_path):
    _files.put(str(tmp_path / "x"), "a\ud83db")
    assert (tmp_path / "x").read_text() == "a\\ud83db"


def test_a_name_without_a_directory_is_a_file_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _files.put("x", "here")
    assert (tmp_path / "x").read_text() == "here"
