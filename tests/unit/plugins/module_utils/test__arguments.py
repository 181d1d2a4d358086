# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Settings become exactly the engine's words; what has no word is an error."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._arguments import spell
from ansible_collections.ironserve.llm.plugins.module_utils._catalog import merge, resolve
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._plan import choose_enhancements

ENGINE = {
    "name": "toy",
    "arguments": {
        "max_model_len": {"flag": "--max-model-len", "kind": "value"},
        "model_path": {"kind": "positional"},
        "served_names": {"flag": "--served-model-name", "kind": "list"},
        "speculative": {"flag": "--speculative-config", "kind": "json"},
        "caching": {"kind": "switch", "on": "--caching", "off": "--no-caching"},
        "text_only": {"kind": "switch", "on": "--text-only"},
    },
    "implied": {"tensor_parallel_size": [1]},
}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 4096}, ["--max-model-len", "4096"]),
        ({"max_model_len": 0}, ["--max-model-len", "0"]),
        ({"served_names": ["a", "b"]}, ["--served-model-name", "a", "b"]),
        ({"speculative": {"n": 2, "method": "mtp"}}, ["--speculative-config", '{"method":"mtp","n":2}']),
        ({"caching": True}, ["--caching"]),
        ({"caching": False}, ["--no-caching"]),
        ({"text_only": True}, ["--text-only"]),
        ({"text_only": False}, []),
        ({"max_model_len": None, "no_such_setting": None}, []),
        ({"tensor_parallel_size": 1}, []),
        ({"max_model_len": 1, "model_path": "/models"}, ["/models", "--max-model-len", "1"]),
    ],
)
def test_words(settings, words):
    assert spell(ENGINE, settings) == words


def test_order_is_the_engines_not_the_settings():
    settings = {"caching": True, "served_names": ["a"], "max_model_len": 1}
    assert spell(ENGINE, settings) == spell(ENGINE, dict(reversed(list(settings.items()))))


def test_unknown_setting_names_engine_setting_and_nearest():
    with pytest.raises(LLMError, match="engine 'toy' has no word for the setting 'max_model_lenn'; did you mean \"max_model_len\""):
        spell(ENGINE, {"max_model_lenn": 1})


def test_implied_setting_with_another_value_is_refused():
    with pytest.raises(LLMError, match="tensor_parallel_size=2"):
        spell(ENGINE, {"tensor_parallel_size": 2})


@pytest.mark.parametrize("value", ["false", "true", 0, 1, "no"])
def test_switch_takes_only_booleans(value):
    with pytest.raises(LLMError, match="setting 'caching' must be true or false"):
        spell(ENGINE, {"caching": value})


def test_list_does_not_take_a_text_apart():
    with pytest.raises(LLMError, match="setting 'served_names' must be a list"):
        spell(ENGINE, {"served_names": "demo"})


def test_unknown_kind_of_argument():
    engine = {"name": "toy", "arguments": {"x": {"flag": "--x", "kind": "vlaue"}}}
    with pytest.raises(LLMError, match="argument 'x' has the unknown kind 'vlaue'"):
        spell(engine, {"x": 1})


def test_every_shipped_recipe_can_be_spelled(shipped):
    """No recipe or platform uses a setting its engine has no word for, in any enhancement, on or off."""
    from ansible_collections.ironserve.llm.plugins.module_utils._catalog import merge, resolve

    spelled = 0
    for model, recipe in shipped["models"].items():
        for platform in recipe["platforms"]:
            chosen = resolve(shipped, platform, model)
            variants = [chosen["settings"]]
            for item in recipe.get("enhancements", {}).values():
                variants += [merge(chosen["settings"], item.get("settings", {})), merge(chosen["settings"], item.get("without", {}))]
            for settings in variants:
                spelled += bool(spell(chosen["engine"], settings))
    assert spelled >= 2


# By version

VERSIONED = {
    "name": "toy",
    "arguments": {
        "patience": {"flag": "--patience", "kind": "value", "since": "0.18.0"},
        "swap": {"flag": "--swap", "kind": "value", "until": "0.18.0"},
        "caching": {"kind": "switch", "on": "--caching", "since": "0.15.0"},
        "guess": {
            "flag": "--guess",
            "kind": "json",
            "versions": [{"when": "<0.11", "flag": "--guess-old"}, {"when": ">=0.22", "flag": "--guess-new"}],
            "refused_keys": {"threshold": "no version knows it"},
        },
    },
}


@pytest.mark.parametrize(
    ("version", "settings", "words"),
    [
        ("0.18.0", {"patience": 60}, ["--patience", "60"]),
        ("0.18.1+das.fa71803.dtk2604", {"patience": 60}, ["--patience", "60"]),
        ("0.17.1", {"swap": 4}, ["--swap", "4"]),
        ("0.10.2", {"guess": {"n": 1}}, ["--guess-old", '{"n":1}']),
        ("0.18.1", {"guess": {"n": 1}}, ["--guess", '{"n":1}']),
        ("0.32.0", {"guess": {"n": 1}}, ["--guess-new", '{"n":1}']),
        # Nobody knows the version: words as they are.
        ("", {"patience": 60, "swap": 4}, ["--patience", "60", "--swap", "4"]),
        # What is not said needs no word.
        ("0.10.2", {"caching": False, "patience": None}, []),
    ],
)
def test_words_of_a_version(version, settings, words):
    assert spell(VERSIONED, settings, version) == words


@pytest.mark.parametrize(
    ("version", "settings", "says"),
    [
        ("0.17.0", {"patience": 60}, "engine 'toy' 0.17.0 does not know the setting 'patience' .known from 0.18.0 on.; leave it out .null"),
        ("0.18.0rc1", {"patience": 60}, "known from 0.18.0 on"),
        ("0.18.0", {"swap": 4}, "engine 'toy' 0.18.0 does not know the setting 'swap' .gone since 0.18.0."),
        ("0.14.0", {"caching": True}, "does not know the setting 'caching'"),
        ("0.18.0", {"guess": {"n": 1, "threshold": 0.8}}, "setting 'guess' must not have the key 'threshold': no version knows it"),
        ("latest", {"patience": 60}, "'latest' is no version"),
    ],
)
def test_a_version_that_does_not_know_a_word(version, settings, says):
    with pytest.raises(LLMError, match=says):
        spell(VERSIONED, settings, version)


def test_every_recipe_says_only_what_its_image_knows(shipped):
    """All shipped recipes on all their platforms and engines, with every enhancement on and off."""
    seen = set()
    for name, recipe in shipped["models"].items():
        for platform, own in recipe["platforms"].items():
            for engine in {own["engine"], *own.get("engines", {})}:
                catalog = resolve(shipped, platform, name, engine)
                version = catalog["engine"]["image"].get("version", "")
                assert version or engine == "llama_cpp", (name, platform, engine)
                for on in (True, False):
                    for enhancement in ["", *catalog["model"]["enhancements"]]:
                        wanted = {enhancement: on} if enhancement else {}
                        _decisions, extra = choose_enhancements(catalog["model"], wanted, [])
                        spell(catalog["engine"], merge(catalog["settings"], extra), version)
                        seen.add((name, platform, engine))
    assert len(seen) >= 17


def test_an_engine_that_takes_one_name(shipped):
    assert spell(shipped["engines"]["sglang"], {"served_names": ["a"]}) == ["--served-model-name", "a"]
    with pytest.raises(LLMError, match="engine 'sglang' takes 1 of 'served_names', found a, b"):
        spell(shipped["engines"]["sglang"], {"served_names": ["a", "b"]})
