# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Overlays state only what differs, a wrong entry is named by file and key, and only what goes together is chosen."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils._catalog import SHAPES, check_entry, collect, merge, pick, resolve, same_record
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._verify import read_acceptance

KINDS = {"platforms": "cpu", "engines": "llama_cpp", "models": "qwen3.6-35b-a3b"}
TREES = st.recursive(st.integers() | st.lists(st.integers()), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8)
MAPPINGS = st.dictionaries(st.sampled_from("abc"), TREES)


def test_mappings_merge_and_everything_else_is_replaced():
    base = {"card": {"memory_mib": 1, "share": 2}, "engines": ["a", "b"]}
    over = {"card": {"memory_mib": 9}, "engines": ["c"]}
    assert merge(base, over) == {"card": {"memory_mib": 9, "share": 2}, "engines": ["c"]}


@given(MAPPINGS, MAPPINGS)
def test_merge_keeps_its_inputs_and_lets_the_overlay_win(base, over):
    base_before, over_before = copy.deepcopy(base), copy.deepcopy(over)
    merged = merge(base, over)
    assert (base, over) == (base_before, over_before)
    assert set(merged) == set(base) | set(over)
    assert merge(merged, over) == merged
    for key, value in over.items():
        if not isinstance(value, dict):
            assert merged[key] == value


def test_merge_shares_nothing_with_its_inputs():
    base = {"a": {"b": [1]}}
    merge(base, {"c": 1})["a"]["b"].append(2)
    assert base == {"a": {"b": [1]}}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_shipped_entries_pass(shipped, kind):
    for name, entry in shipped[kind].items():
        check_entry(kind, entry, name)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_required_key_is_missed_by_name(catalog, kind):
    for key, (_type, required) in SHAPES[kind].items():
        if required:
            entry = dict(catalog[kind][KINDS[kind]])
            del entry[key]
            with pytest.raises(LLMError, match="mine.yml: the key '{0}' is missing".format(key)):
                check_entry(kind, entry, "mine.yml")


def broken(entry, path, value):
    """The entry with one inner value replaced, or taken out when ``value`` is Ellipsis."""
    entry = copy.deepcopy(entry)
    inner = entry
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return entry


@pytest.mark.parametrize(
    ("kind", "path", "value", "message"),
    [
        ("platforms", ["titel"], "x", "unknown key 'titel'; did you mean \"title\""),
        ("platforms", ["engines"], "llama_cpp", "key 'engines' must be a list, found 'llama_cpp'"),
        ("platforms", ["card", "memory_share"], ..., "the key 'card.memory_share' is missing"),
        ("platforms", ["card", "memory_share"], "0.9", "key 'card.memory_share' must be a int or float, found '0.9'"),
        ("platforms", ["container", "shm_mib"], ..., "the key 'container.shm_mib' is missing"),
        ("platforms", ["container", "pids_limit"], True, "key 'container.pids_limit' must be a int"),
        ("platforms", ["container", "shm_mb"], 64, "unknown key 'container.shm_mb'; did you mean \"shm_mib\""),
        ("platforms", ["container", "privileged"], True, "unknown key 'container.privileged'; "),
        ("platforms", ["container", "mounts"], "/opt", "key 'container.mounts' must be a list, found '/opt'"),
        ("platforms", ["container", "limit_memory"], "no", "key 'container.limit_memory' must be a bool, found 'no'"),
        ("platforms", ["card", "product"], "K100_AI", "unknown key 'card.product'; did you mean \"products\""),
        ("engines", ["images", "cpu", "diget"], "sha256:0", "unknown key 'images.cpu.diget'; did you mean \"digest\""),
        ("engines", ["images", "cpu", "version"], 0.32, "key 'images.cpu.version' must be a str, found 0.32"),
        ("engines", ["platforms"], {"cpu": {"container": {"shm": 1}}}, "unknown key 'platforms.cpu.container.shm'; "),
        ("models", ["weights", "variants", "w8a8", "expected"], {"count": 8}, "unknown key 'weights.variants.w8a8.expected'; "),
        (
            "models",
            ["weights", "variants", "w8a8", "quantization", "injct"],
            True,
            "unknown key 'weights.variants.w8a8.quantization.injct'; did you mean \"inject\"",
        ),
        (
            "models",
            ["weights", "variants", "w8a8", "size_mib"],
            "35 GB",
            "key 'weights.variants.w8a8.size_mib' must be a int, found '35 GB'",
        ),
        ("models", ["enhancements", "mtp", "setting"], {}, "unknown key 'enhancements.mtp.setting'; did you mean \"settings\""),
        ("models", ["enhancements", "mtp", "default"], 1, "key 'enhancements.mtp.default' must be a bool, found 1"),
        ("models", ["platforms", "hygon_k100ai", "setting"], {}, "unknown key 'platforms.hygon_k100ai.setting'; "),
        ("models", ["platforms", "ascend_a3", "image", "diget"], "", "unknown key 'platforms.ascend_a3.image.diget'; "),
        (
            "models",
            ["platforms", "ascend_910b", "enhancements", "mtp", "of"],
            1,
            "unknown key 'platforms.ascend_910b.enhancements.mtp.of'; ",
        ),
        ("engines", ["container_port"], "8000", "key 'container_port' must be a int, found '8000'"),
        ("engines", ["arguments", "port"], {"flag": "--port"}, "the key 'arguments.port.kind' is missing"),
        ("engines", ["arguments", "port"], "--port", "key 'arguments.port' must be a dict"),
        ("engines", ["images", "cpu"], "an-image", "key 'images.cpu' must be a dict"),
        ("models", ["memory", "kv_bytes_per_token"], ..., "the key 'memory.kv_bytes_per_token' is missing"),
        ("models", ["weights", "variants"], ..., "the key 'weights.variants' is missing"),
        ("models", ["platforms", "hygon_k100ai"], None, "key 'platforms.hygon_k100ai' must be a dict, found None"),
        ("models", ["forbidden", 0, "give_up"], ..., "the key 'forbidden.0.give_up' is missing"),
        ("models", ["forbidden", 0], "mtp+prefix_caching", "key 'forbidden.0' must be a dict"),
        ("platforms", ["facts", 0, "source"], ..., "a fact lacks its 'source'"),
        ("platforms", ["facts", 0], "it is fast", "a fact is a mapping with the keys fact, source, date and grade, found 'it is fast'"),
        ("platforms", ["facts", 0, "grade"], "measured", "unknown grade 'measured'; did you mean \""),
        ("platforms", ["facts", 0, "grade"], None, "unknown grade 'None'"),
    ],
)
def test_wrong_entry_names_file_and_key(catalog, kind, path, value, message):
    entry = broken(catalog[kind][KINDS[kind]], path, value)
    with pytest.raises(LLMError) as caught:
        check_entry(kind, entry, "/inv/catalog/x.yml")
    assert str(caught.value).startswith("/inv/catalog/x.yml: " + message)


def test_overlay_states_only_what_differs(catalog):
    files = [("shipped/cpu.yml", catalog["platforms"]["cpu"]), ("mine/cpu.yml", {"name": "cpu", "container": {"shm_mib": 128}})]
    entry = collect("platforms", files)["cpu"]
    assert entry["container"]["shm_mib"] == 128
    assert entry["container"]["pids_limit"] == catalog["platforms"]["cpu"]["container"]["pids_limit"]


def test_fault_of_an_overlay_is_blamed_on_the_overlay(catalog):
    files = [("shipped/cpu.yml", catalog["platforms"]["cpu"]), ("mine/cpu.yml", {"name": "cpu", "probe": 7})]
    with pytest.raises(LLMError, match="^mine/cpu.yml: key 'probe' must be a str, found 7"):
        collect("platforms", files)


def test_incomplete_new_entry_is_refused():
    with pytest.raises(LLMError, match="^mine/new.yml: the key 'title' is missing"):
        collect("platforms", [("mine/new.yml", {"name": "new_card"})])


@pytest.mark.parametrize("content", [None, [], "text", {"title": "no name"}, {"name": 5}])
def test_file_that_is_no_entry_is_named(content):
    with pytest.raises(LLMError, match="^mine/odd.yml: a file of the catalog is one mapping with the key 'name'"):
        collect("models", [("mine/odd.yml", content)])


def test_pick_names_variable_nearest_and_known(shipped):
    with pytest.raises(LLMError) as caught:
        pick("platforms", shipped["platforms"], "hygon_k100", "llm_platform")
    text = str(caught.value)
    assert "unknown platform 'hygon_k100' (variable llm_platform)" in text
    assert 'did you mean "hygon_k100ai"?' in text
    assert "Known: ascend_910b, ascend_a3, cpu, hygon_k100ai, nvidia_h100, nvidia_h200" in text


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("gpu", "smollm2-135m"), ["unknown platform 'gpu'", "llm_platform", "Known: ascend_910b, ascend_a3, cpu, hygon_k100ai"]),
        (("cpu", "smollm"), ["unknown model 'smollm'", "llm_model", 'did you mean "smollm2-135m"', "qwen3.6-35b-a3b"]),
        (
            ("cpu", "qwen3.6-35b-a3b"),
            ["no recipe for platform 'cpu'", "it has one for: ascend_910b, ascend_a3, hygon_k100ai", "platforms.cpu"],
        ),
        (("cpu", "smollm2-135m", "sglang"), ["engine 'sglang' does not run on platform 'cpu'", "llm_engine", "Known: llama_cpp, vllm"]),
        (("cpu", "smollm2-135m", "", "q4_2"), ["no weights 'q4_2'", "llm_weights", 'did you mean "q4_1"']),
    ],
)
def test_what_is_unknown_or_does_not_go_together(shipped, arguments, parts):
    with pytest.raises(LLMError) as caught:
        resolve(shipped, *arguments)
    for part in parts:
        assert part in str(caught.value)


def models_of(pairs) -> dict:
    """Recipes with nothing but these pairs of model and weights variant."""
    models: dict = {}
    for model, variant in pairs:
        models.setdefault(model, {"weights": {"variants": {}}})["weights"]["variants"][variant] = {}
    return models


#: Names that meet when they are joined.
JOINED = st.text("ab-", min_size=1, max_size=4)


@given(st.sets(st.tuples(JOINED, JOINED), min_size=1, max_size=8))
def test_two_weights_have_one_name_on_a_host_only_where_it_is_told(pairs):
    for pair in pairs:
        others = same_record(models_of(pairs), *pair)
        assert others == sorted(other for other in pairs if other != pair and other[0] + "-" + other[1] == pair[0] + "-" + pair[1])


@pytest.mark.parametrize(
    ("model", "variant", "other", "others"),
    [("smollm2-135m", "q4_1", "smollm2", "135m-q4_1"), ("smollm2-135m-x", "q", "smollm2-135m", "x-q")],
)
def test_weights_whose_record_would_be_that_of_others_are_refused(catalog, model, variant, other, others):
    """Marker, download and list of files bear both names with a dash between; under one name one would be lost."""
    recipe = catalog["models"]["smollm2-135m"]
    for name, weights in ((model, variant), (other, others)):
        entry = catalog["models"].setdefault(name, dict(copy.deepcopy(recipe), name=name))
        entry["weights"]["variants"][weights] = copy.deepcopy(recipe["weights"]["variants"]["q4_1"])
    for one, two in (((model, variant), (other, others)), ((other, others), (model, variant))):
        with pytest.raises(LLMError) as caught:
            resolve(catalog, "cpu", one[0], weights=one[1])
        assert str(caught.value) == (
            f"weights '{one[1]}' of model '{one[0]}' and weights '{two[1]}' of model '{two[0]}' would be one on a host: both are recorded as "
            f"'{one[0]}-{one[1]}'. Rename one of them in <inventory>/catalog/models/; nothing was changed"
        )
    # The others of the same recipes are nobody's twins.
    assert resolve(catalog, "cpu", "smollm2-135m", weights="hf_bf16", engine="vllm")["weights"]["name"] == "hf_bf16"


def test_no_two_shipped_weights_have_one_name(shipped):
    pairs = [(name, variant) for name, recipe in shipped["models"].items() for variant in recipe["weights"]["variants"]]
    assert len(pairs) > 10 and [pair for pair in pairs if same_record(shipped["models"], *pair)] == []


def test_platform_naming_an_engine_nobody_has(catalog):
    catalog["platforms"]["cpu"]["engines"] = ["tgi"]
    with pytest.raises(LLMError, match="unknown engine 'tgi' .variable llm_engine.*Known: llama_cpp, sglang, vllm"):
        resolve(catalog, "cpu", "smollm2-135m", "tgi")


def test_engine_without_an_image_for_the_platform(catalog):
    catalog["engines"]["llama_cpp"]["images"] = {}
    with pytest.raises(LLMError, match="engine 'llama_cpp' names no image for platform 'cpu'; add 'images.cpu'"):
        resolve(catalog, "cpu", "smollm2-135m")


def test_the_demo_is_chosen_whole(shipped):
    chosen = resolve(shipped, "cpu", "smollm2-135m")
    assert set(chosen) == {"platform", "engine", "model", "weights", "settings"}
    assert chosen["engine"]["name"] == "llama_cpp"
    assert chosen["engine"]["image"]["source"] == "build"
    assert chosen["weights"]["name"] == "q4_1"
    assert chosen["weights"]["files"][0]["sha256"].startswith("b179c952")
    assert chosen["settings"]["threads"] == 1, "the platform's settings are part of the baseline"


def test_settings_of_recipe_for_platform_win_over_recipe_and_platform(catalog):
    catalog["platforms"]["cpu"]["settings"] = {"a": "platform", "b": "platform", "c": "platform"}
    recipe = catalog["models"]["smollm2-135m"]
    recipe["settings"] = {"b": "recipe", "c": "recipe"}
    recipe["platforms"]["cpu"]["settings"] = {"c": "fit"}
    assert resolve(catalog, "cpu", "smollm2-135m")["settings"] == {"a": "platform", "b": "recipe", "c": "fit"}


def test_enhancements_differ_by_platform_and_engine(catalog):
    recipe = catalog["models"]["smollm2-135m"]
    recipe["enhancements"] = {"fast": {"default": True, "settings": {"a": 1, "b": 1}}, "long": {"default": True}}
    recipe["platforms"]["cpu"]["enhancements"] = {"fast": {"settings": {"b": 2}}, "own": {"default": True}}
    recipe["platforms"]["cpu"]["engines"]["vllm"]["enhancements"] = {"fast": {"default": False}}
    quick = resolve(catalog, "cpu", "smollm2-135m")["model"]["enhancements"]
    assert quick == {"fast": {"default": True, "settings": {"a": 1, "b": 2}}, "long": {"default": True}, "own": {"default": True}}
    assert resolve(catalog, "cpu", "smollm2-135m", "vllm")["model"]["enhancements"]["fast"]["default"] is False


def test_recipe_with_an_image_of_its_own_takes_nothing_from_the_platforms(catalog):
    pinned = {"source": "registry", "reference": "old", "digest": "sha256:" + "0" * 64, "version": "1"}
    catalog["engines"]["llama_cpp"]["images"]["cpu"] = pinned
    assert resolve(catalog, "cpu", "smollm2-135m")["engine"]["image"] == pinned
    own = {"source": "registry", "reference": "new"}
    catalog["models"]["smollm2-135m"]["platforms"]["cpu"]["image"] = own
    assert resolve(catalog, "cpu", "smollm2-135m")["engine"]["image"] == own, "above all not the digest of another image"


def test_choosing_does_not_change_the_catalog(catalog):
    before = copy.deepcopy(catalog)
    chosen = resolve(catalog, "cpu", "smollm2-135m")
    chosen["model"]["settings"]["max_model_len"] = 1
    chosen["platform"]["container"]["environment"]["X"] = "1"
    chosen["settings"]["threads"] = 64
    assert catalog == before


def test_a_large_models_recipe_is_complete(shipped):
    """Source, format and size of all weights, what describes quantised ones, parsers, context, enhancements with their price, acceptance, sources."""
    for name, recipe in shipped["models"].items():
        assert read_acceptance(recipe["acceptance"]), name
        assert recipe["config"] and recipe["memory"]["kv_bytes_per_token"], name
        if name == "smollm2-135m":
            continue
        for variant, weights in recipe["weights"]["variants"].items():
            assert {"format", "source", "entry", "size_mib"} <= set(weights), (name, variant)
            assert {"kind", "repo", "revision"} <= set(weights["source"]), (name, variant)
            # What is not bfloat16 says how it is quantised.
            assert ("quantization" in weights) == (variant != "bf16"), (name, variant)
        assert {"max_model_len", "max_num_seqs", "tool_call_parser", "enable_auto_tool_choice"} <= set(recipe["settings"]), name
        assert {"prefix_caching", "long_context", "cudagraph"} <= set(recipe["enhancements"]), name
        assert recipe["facts"], name
        if "linear_num_value_heads" in recipe["config"].get("text_config", recipe["config"]):
            assert {"mtp", "chunked_prefill"} <= set(recipe["enhancements"]), name
            assert recipe["forbidden"][0]["enhancements"] == ["mtp", "prefix_caching"], name
            assert {"multi_turn", "tool_loop", "exact_set", "quality"} <= {item["check"] for item in recipe["acceptance"]["checks"]}, name
            assert all(recipe["enhancements"][item]["memory"] for item in ("mtp", "prefix_caching")), name


# Files over an image's own


def file_of(name, digit):
    return {"source": name, "sha256": digit * 64}


def test_files_of_platform_engine_and_recipe_come_together_and_the_recipe_wins(catalog):
    catalog["platforms"]["hygon_k100ai"]["container"]["files"] = {"/a": file_of("platform", "1"), "/b": file_of("platform", "1")}
    catalog["engines"]["vllm"]["platforms"]["hygon_k100ai"]["container"]["files"] = {
        "/b": file_of("engine", "2"),
        "/c": file_of("engine", "2"),
    }
    own = catalog["models"]["qwen3.6-35b-a3b"]["platforms"]["hygon_k100ai"]
    own["files"] = {"/c": file_of("recipe", "3"), "/a": None}
    own["engines"] = {"vllm": {"files": {"/d": file_of("both", "4")}}}
    for kind, name in (("platforms", "hygon_k100ai"), ("engines", "vllm"), ("models", "qwen3.6-35b-a3b")):
        check_entry(kind, catalog[kind][name], "it")
    files = resolve(catalog, "hygon_k100ai", "qwen3.6-35b-a3b")["platform"]["container"]["files"]
    assert {place: entry["source"] for place, entry in files.items()} == {"/b": "engine", "/c": "recipe", "/d": "both"}


def test_a_file_that_is_none_stops_the_choice(catalog):
    catalog["models"]["qwen3.6-35b-a3b"]["platforms"]["hygon_k100ai"]["files"] = {"/a": {"source": "x"}}
    with pytest.raises(LLMError, match="container file '/a': 'sha256'"):
        resolve(catalog, "hygon_k100ai", "qwen3.6-35b-a3b")
    assert resolve(catalog, "nvidia_h100", "qwen3.6-35b-a3b")
