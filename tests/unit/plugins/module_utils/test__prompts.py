# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Prompts: the same for the same seed, codes never, and every conversation that is no use is counted."""

from __future__ import annotations

import json

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _prompts
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def conversation(*turns):
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in turns]}


def test_prose_has_so_many_words_and_follows_its_seed():
    for words in (1, 7, 100):
        assert len(_prompts.prose(words, 1).split()) == words
    assert _prompts.prose(50, 1) == _prompts.prose(50, 1) != _prompts.prose(50, 2)
    # Beginnings differ, so that no two share more than a few tokens of a cache.
    starts = {_prompts.task(50, seed)[:40] for seed in range(50)}
    assert len(starts) > 45 and all(_prompts.task(50, seed).endswith("as you can.") for seed in range(3))


def test_a_fresh_prompt_begins_as_none_did_before():
    assert len({_prompts.fresh("text") for _number in range(1000)}) == 1000
    assert _prompts.fresh("text").endswith("] text") and _prompts.fresh("text").startswith("[")


def test_first_questions_are_taken_and_what_is_no_use_is_counted():
    data = [
        conversation(("human", " one "), ("gpt", "a"), ("human", "more")),
        conversation(("user", "two"), ("assistant", "b")),
        conversation(("human", "nobody answers")),
        conversation(("gpt", "begins"), ("human", "late")),
        conversation(("human", "asks"), ("human", "again")),
        conversation(("human", "  "), ("gpt", "c")),
        {"id": "none"},
        "text",
    ]
    assert _prompts.read_sharegpt(json.dumps(data), "file") == (["one", "two"], 6)


@pytest.mark.parametrize(
    "text, said",
    [("{", "file is not JSON"), ("{}", "must hold a JSON list"), ("[]", "no conversation that begins"), ('[{"a": 1}]', "no conversation")],
)
def test_a_file_of_another_kind_is_refused(text, said):
    with pytest.raises(LLMError, match=said):
        _prompts.read_sharegpt(text, "file")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for name, said in (("none", "No such file"), ("latin", "not UTF-8")):
        with pytest.raises(LLMError, match="prompts.path {0}.* can't be read: {1}".format(tmp_path / name, said)):
            _prompts.read_file(str(tmp_path / name), "prompts.path")
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbf[]")
    assert _prompts.read_file(str(tmp_path / "marked"), "prompts.path") == "[]"
    with pytest.raises(LLMError, match="deep is not JSON"):
        _prompts.read_sharegpt("[" * 100000, "deep")


def test_a_choice_follows_its_seed_and_never_doubles():
    texts = [str(number) for number in range(100)]
    assert _prompts.choose(texts, 10, 1) == _prompts.choose(texts, 10, 1) != _prompts.choose(texts, 10, 2)
    assert len(set(_prompts.choose(texts, 10, 1))) == 10
    assert sorted(_prompts.choose(texts, 1000, 1)) == sorted(texts)
