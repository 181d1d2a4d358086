# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Weights that are converted on the way: pinned like any others, and a wrong conversion replaces nothing."""

from __future__ import annotations

import hashlib
import os

import pytest
from faults.tiny_llama import model

from ansible_collections.ironserve.llm.plugins.module_utils import _conversion, _manifest, _weights
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


@pytest.fixture
def site(tmp_path):
    """A GGUF file, what it converts to, and a place for the result."""
    model(str(tmp_path / "m.gguf"))
    (tmp_path / "made").mkdir()
    _conversion.convert(str(tmp_path / "m.gguf"), str(tmp_path / "made"))
    return tmp_path


def entries(site, **changes):
    rows = []
    for name in _conversion.FILES:
        raw = (site / "made" / name).read_bytes()
        rows.append({"path": name, "size": len(raw), "sha256": changes.get(name, hashlib.sha256(raw).hexdigest())})
    return _manifest.parse_manifest(rows)


def put(site, wanted, source=None, **options):
    path = source or str(site / "m.gguf")
    return _weights.place(
        str(site / "out"), wanted, "safetensors", {"kind": "convert", "path": path}, str(site / "marker.json"), 0, **options
    )


def test_the_pinned_result_is_put_in_place_and_only_once(site):
    assert put(site, entries(site)).changed
    assert sorted(os.listdir(site / "out")) == sorted(_conversion.FILES)
    assert not put(site, entries(site)).changed


def test_a_result_with_another_checksum_replaces_nothing(site):
    with pytest.raises(LLMError, match=r"config\.json"):
        put(site, entries(site, **{"config.json": "0" * 64}))
    assert not (site / "out").exists()


def test_nothing_of_the_work_stays(site):
    put(site, entries(site))
    assert [name for name in os.listdir(site) if "convert" in name or name.endswith(".part")] == []


def test_a_file_that_is_not_there_is_named(site):
    with pytest.raises(LLMError, match=r"none\.gguf: the file to convert is not there"):
        put(site, entries(site), str(site / "none.gguf"))


def test_a_manifest_that_wants_other_files_is_named(site):
    wanted = entries(site) + _manifest.parse_manifest([{"path": "merges.txt", "size": 1, "sha256": "1" * 64}])
    with pytest.raises(LLMError, match=r"a conversion makes .*, not merges\.txt"):
        put(site, wanted)
