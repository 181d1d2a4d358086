# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files over an image's own: what may be one, where it is found, and that another content is never taken for the one that was tested."""

from __future__ import annotations

import hashlib

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._overlay_files import chosen, find, mounts

CONTENT = b'{"1": {"BLOCK_SIZE_M": 16}}\n'
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NAME = "E=256,N=512,device_name=K100_AI.json"
PLACE = "/opt/vllm/fused_moe/configs/" + NAME
ENTRY = {"source": "moe/" + NAME, "sha256": DIGEST}


def test_what_an_overlay_took_away_is_not_there():
    assert chosen({PLACE: ENTRY, "/etc/other": None}) == {PLACE: ENTRY}
    assert chosen({}) == {}


@pytest.mark.parametrize("place", ["relative", "/", "/a/../b", "/a//b", "/a/", "", 5])
def test_a_place_that_is_none(place):
    with pytest.raises(LLMError, match="must be a plain absolute path"):
        chosen({place: ENTRY})


@pytest.mark.parametrize(
    "place", ["/models", "/models/chat_template.jinja", "/cache/x", "/run/secrets/engine.key", "/tmp/x", "/dev/kfd", "/proc/1"]
)
def test_a_place_that_is_taken(place):
    with pytest.raises(LLMError, match="container file '{0}': /.* is not part of the image".format(place)):
        chosen({place: ENTRY})


def test_a_name_that_only_begins_like_a_taken_place_is_free():
    assert chosen({"/models-of-mine/x": ENTRY, "/development": ENTRY})


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("x", "it is a mapping"),
        (dict(ENTRY, mode="0644"), "unknown key 'mode'; "),
        ({"sha256": DIGEST}, "'source' is a path below"),
        (dict(ENTRY, source="/etc/shadow"), "'source' is a path below"),
        (dict(ENTRY, source="../../etc/shadow"), "'source' is a path below"),
        ({"source": "x"}, "'sha256' must be the 64 hex digits"),
        (dict(ENTRY, sha256=DIGEST.upper()), "'sha256' must be the 64 hex digits"),
        (dict(ENTRY, sha256=DIGEST + "\n"), "'sha256' must be the 64 hex digits"),
    ],
)
def test_an_entry_that_is_none(entry, says):
    with pytest.raises(LLMError, match="container file '{0}': .*{1}".format(PLACE, says)):
        chosen({PLACE: entry})


@pytest.fixture
def folders(tmp_path):
    """Two folders; the content lies in the first."""
    for name in ("shipped", "mine"):
        (tmp_path / name / "moe").mkdir(parents=True)
    (tmp_path / "shipped" / "moe" / NAME).write_bytes(CONTENT)
    return [str(tmp_path / "shipped"), str(tmp_path / "mine")]


def test_a_file_is_found_and_held_against_its_digest(folders):
    assert find({PLACE: ENTRY}, folders) == {PLACE: dict(ENTRY, local="{0}/moe/{1}".format(folders[0], NAME))}


def test_the_last_folder_that_has_it_wins_and_its_content_counts(folders):
    with open("{0}/moe/{1}".format(folders[1], NAME), "wb") as handle:
        handle.write(CONTENT + b" ")
    with pytest.raises(
        LLMError, match=r"{0}/moe/.*: its sha256 is [0-9a-f]{{64}}, and the catalog pins {1} for /opt".format(folders[1], DIGEST)
    ):
        find({PLACE: ENTRY}, folders)


def test_a_file_that_is_nowhere_names_the_places(folders):
    with pytest.raises(LLMError, match="none of {0}/moe/none, {1}/moe/none is there".format(*folders)):
        find({PLACE: dict(ENTRY, source="moe/none")}, folders)
    with pytest.raises(LLMError, match="is there"):
        find({PLACE: dict(ENTRY, source="moe")}, folders)


def test_mounts_are_read_only_and_another_content_is_another_place():
    assert mounts({PLACE: ENTRY}, "/var/lib/x") == [
        {"source": "/var/lib/x/{0}/{1}".format(DIGEST, NAME), "target": PLACE, "read_only": True}
    ]
    other = mounts({PLACE: dict(ENTRY, sha256="0" * 64)}, "/var/lib/x")
    assert other[0]["source"] != mounts({PLACE: ENTRY}, "/var/lib/x")[0]["source"]
