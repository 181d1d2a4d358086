# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The shipped platforms, engines and recipes, held to the rules of data: every fact from outside says whence, every image has its slot,
and whatever goes together can be planned with words that its image understands."""

from __future__ import annotations

import datetime
import itertools
import re

import pytest

from ansible_collections.ironserve.llm.plugins.action.catalog_info import SHIPPED, entry_files, read_catalog, read_yaml
from ansible_collections.ironserve.llm.plugins.module_utils._catalog import GRADES, resolve
from ansible_collections.ironserve.llm.plugins.module_utils._plan import PlanInput, make_plan
from ansible_collections.ironserve.llm.plugins.module_utils._verify import read_acceptance

CATALOG = read_catalog([])
KINDS = ("platforms", "engines", "models")
FILES = [(kind, path.stem) for kind in KINDS for path in entry_files(SHIPPED / kind)]

#: What each probe reads with, and the kinds of device node that it finds for a card.
TOOLS = {"cpu": set(), "hygon": {"hy-smi", "rocminfo"}, "ascend": {"npu-smi", "hccn_tool"}, "nvidia": {"nvidia-smi"}}
NODES = {"cpu": set(), "hygon": {"card", "render"}, "ascend": {"davinci"}, "nvidia": {"nvidia"}}

VENDOR = sorted(name for name, entry in CATALOG["platforms"].items() if entry["probe"] != "cpu")

#: Every platform, model and engine that the catalog says go together, with each of the model's weights for that platform's default.
CHOICES = [
    (platform, model, engine)
    for model, recipe in sorted(CATALOG["models"].items())
    for platform, fit in sorted(recipe["platforms"].items())
    for engine in sorted({fit["engine"], *fit.get("engines", {})})
]


def unsourced(entry: dict) -> list[str]:
    """Findings about statements of an entry that come from outside and do not say whence, when and how sure."""
    findings = []
    for statement in entry.get("facts", []) + entry.get("forbidden", []):
        what = statement.get("fact") or "+".join(statement.get("enhancements", []))
        if not str(what).strip() or not str(statement.get("source", "")).strip():
            findings.append(f"{what}: no source")
        try:
            if datetime.date.fromisoformat(statement.get("date", "")) < datetime.date(2025, 1, 1):
                findings.append(f"{what}: the date {statement['date']} is before any of this")
        except (TypeError, ValueError):
            findings.append(f"{what}: the date {statement.get('date')!r} is no date")
        if statement.get("grade") not in GRADES:
            findings.append(f"{what}: the grade {statement.get('grade')!r} is unknown")
    return findings


def badly_pinned(image: dict) -> list[str]:
    """Findings about a vendor's image: a reference with a tag, and a slot for the digest, filled right or empty."""
    findings = []
    if image.get("source") != "registry":
        findings.append(f"source is {image.get('source')!r}")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.:/_-]+:[A-Za-z0-9._-]+", image.get("reference", "")):
        findings.append(f"reference {image.get('reference')!r} names no repository with a tag")
    if not re.fullmatch(r"(sha256:[0-9a-f]{64})?", image.get("digest", "no slot")):
        findings.append(f"digest {image.get('digest')!r}")
    if not re.fullmatch(r"\d+\.\d+\.\d+(\.post\d+)?", image.get("version", "")):
        findings.append(f"version {image.get('version')!r}")
    return findings


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def card(platform: dict, index: int) -> dict:
    """A card as the platform's probe would describe it."""
    return {
        "id": f"0000:{index:02x}:00.0",
        "index": index,
        "health": "ok",
        "memory_total_mib": platform["card"]["memory_mib"],
        "devices": {kind: f"/dev/{kind}{index}" for kind in NODES[platform["probe"]]},
        "uuid": f"GPU-{index}" if platform["probe"] == "nvidia" else "",
        "cpuset": "0" if platform["probe"] == "cpu" else "",
    }


def planned(platform: str, model: str, engine: str, weights: str = "", **changes) -> dict:
    """The plan of a host with eight such cards."""
    chosen = resolve(CATALOG, platform, model, engine, weights)
    cards = [card(chosen["platform"], index) for index in range(8)]
    if platform == "cpu":
        # The real vLLM needs larger cards than the demo has; its inventory says so.
        cards = [dict(item, memory_total_mib=3072) for item in cards]
    return make_plan(PlanInput("host", "127.0.0.1", chosen, cards, image="i", weights_path="/w", key_file="/k", cache_dir="/c", **changes))


# ---- files


def test_there_are_the_platforms_engines_and_models_that_were_asked_for() -> None:
    assert set(CATALOG["platforms"]) == {"cpu", "hygon_k100ai", "ascend_910b", "ascend_a3", "nvidia_h100", "nvidia_h200"}
    assert set(CATALOG["engines"]) == {"llama_cpp", "sglang", "vllm"}
    assert set(CATALOG["models"]) == {"smollm2-135m", "qwen2.5-0.5b", "qwen3-next-80b-a3b", "qwen3.5-35b-a3b", "qwen3.6-35b-a3b"}


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_file_is_named_after_its_entry(kind: str, name: str) -> None:
    (path,) = (path for path in entry_files(SHIPPED / kind) if path.stem == name)
    assert read_yaml(path)["name"] == name


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_every_fact_from_outside_has_source_date_and_grade(kind: str, name: str) -> None:
    assert unsourced(CATALOG[kind][name]) == []


@pytest.mark.parametrize("name", VENDOR)
def test_a_vendors_platform_rests_on_facts(name: str) -> None:
    assert CATALOG["platforms"][name]["facts"]


GOOD = {"fact": "a", "source": "s", "date": "2026-10-01", "grade": "vendor_verified"}


@pytest.mark.parametrize(
    "change",
    [{"source": " "}, {"date": "2026-10"}, {"date": None}, {"date": "1970-01-01"}, {"grade": "sure"}, {"grade": None}, {"fact": ""}],
)
def test_rule_of_sources_fails(change: dict) -> None:
    assert unsourced({"facts": [GOOD]}) == unsourced({}) == []
    assert len(unsourced({"facts": [dict(GOOD, **change)]})) == 1
    assert len(unsourced({"forbidden": [dict(GOOD, enhancements=["a", "b"], grade="")]})) == 1


# ---- platforms


@pytest.mark.parametrize("name", sorted(CATALOG["platforms"]))
def test_platform_has_the_tools_of_its_probe(name: str) -> None:
    platform = CATALOG["platforms"][name]
    tools = platform.get("tools", {})
    assert set(tools) == TOOLS[platform["probe"]]
    for paths in tools.values():
        assert paths and all(path.startswith("/") for path in paths) and len(set(paths)) == len(paths)


@pytest.mark.parametrize("name", sorted(CATALOG["platforms"]))
def test_platform_asks_only_for_nodes_that_its_probe_finds(name: str) -> None:
    platform = CATALOG["platforms"][name]
    container = platform["container"]
    assert set(container["devices_per_card"]) <= NODES[platform["probe"]]
    assert bool(container["devices_per_card"]) == (name in VENDOR), "a replica gets its own card's nodes, or there are none"
    shared = container["devices_shared"] + container["devices_optional"]
    assert all(re.fullmatch(r"/dev/[a-z_-]+", path) for path in shared), "a folder or a numbered node would hand over other cards"


@pytest.mark.parametrize("name", VENDOR)
def test_platform_names_what_it_expects_and_grants_no_more_than_its_cards(name: str) -> None:
    platform = CATALOG["platforms"][name]
    assert platform["card"]["products"] and platform["card"]["architectures"]
    assert 0 <= platform["card"]["idle_mib"] < platform["card"]["memory_mib"] / 10
    container = platform["container"]
    assert (container["cap_add"], container["security_opt"], container["ipc"]) == ([], [], "private")
    assert all(mount["read_only"] is True for mount in container["mounts"] + container.get("mounts_optional", []))
    assert container["shm_mib"] >= 8192, "64 MiB, the default, ends engines with a bus error"
    visible = {
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "ASCEND_VISIBLE_DEVICES",
    }
    assert not visible & set(container["environment"]), "a card that is mapped alone is index 0"


def test_ascend_tools_have_the_drivers_libraries() -> None:
    for name in ("ascend_910b", "ascend_a3"):
        folders = CATALOG["platforms"][name]["tool_environment"]["LD_LIBRARY_PATH"].split(":")
        assert folders == ["/usr/local/Ascend/driver/lib64" + end for end in ("", "/common", "/driver")]


def test_ascend_memory_is_not_fragmented_by_a_pair_of_options_that_exclude_each_other() -> None:
    for name in ("ascend_910b", "ascend_a3"):
        assert CATALOG["platforms"][name]["container"]["environment"]["PYTORCH_NPU_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize(("one", "other"), [("ascend_910b", "ascend_a3"), ("nvidia_h100", "nvidia_h200")])
def test_sister_platforms_differ_in_their_cards_only(one: str, other: str) -> None:
    """They are written twice, so that each can be read alone; a change of one must not forget the other."""
    first, second = (dict(CATALOG["platforms"][name], name="", title="", card={}, facts=[]) for name in (one, other))
    assert first == second


# ---- images


def images() -> list[tuple[str, str, dict]]:
    """Every image of a vendor's platform: who names it, the platform, the image."""
    found = [(name, platform, image) for name, engine in CATALOG["engines"].items() for platform, image in engine["images"].items()]
    for name, recipe in CATALOG["models"].items():
        found += [(name, platform, fit["image"]) for platform, fit in recipe["platforms"].items() if "image" in fit]
    return [item for item in found if item[1] in VENDOR]


def test_every_vendor_image_has_a_reference_and_a_slot_for_its_digest() -> None:
    assert len(images()) >= 9
    assert {f"{who} {platform}": badly_pinned(image) for who, platform, image in images() if badly_pinned(image)} == {}


@pytest.mark.parametrize(
    "change",
    [{"source": "build"}, {"reference": "quay.io/ascend/vllm-ascend"}, {"digest": "sha256:12"}, {"digest": None}, {"version": "v1"}],
)
def test_rule_of_images_fails(change: dict) -> None:
    good = {"source": "registry", "reference": "quay.io/a/b:v1", "digest": "", "version": "0.17.0"}
    assert badly_pinned(good) == badly_pinned(dict(good, digest="sha256:" + "0" * 64)) == []
    image = {key: value for key, value in dict(good, **change).items() if value is not None}
    assert len(badly_pinned(image)) == 1


def test_an_ascend_image_has_the_suffix_of_its_hardware() -> None:
    references = [(platform, image["reference"]) for _who, platform, image in images() if platform.startswith("ascend_")]
    assert len(references) == 4
    for platform, reference in references:
        assert reference.endswith("-a3") == (platform == "ascend_a3") and "-310p" not in reference


def test_platforms_and_engines_agree_on_each_other() -> None:
    offered = {(platform, engine) for platform, entry in CATALOG["platforms"].items() for engine in entry["engines"]}
    imaged = {(platform, engine) for engine, entry in CATALOG["engines"].items() for platform in entry["images"]}
    needed = {(platform, engine) for engine, entry in CATALOG["engines"].items() for platform in entry.get("platforms", {})}
    assert offered == imaged
    assert needed <= offered


# ---- recipes


@pytest.mark.parametrize(("platform", "model", "engine"), CHOICES)
def test_whatever_goes_together_can_be_planned_and_runs_one_sequence_of_full_length(platform: str, model: str, engine: str) -> None:
    plan = planned(platform, model, engine)
    size = plan["replicas"][0]["tensor_parallel_size"]
    assert len(plan["replicas"]) == 8 // size
    assert all(replica["fit"]["concurrency"] >= 1 for replica in plan["replicas"])
    if platform in VENDOR:
        kinds = CATALOG["platforms"][platform]["container"]["devices_per_card"]
        assert all(len(replica["spec"]["own_devices"]) == size * len(kinds) for replica in plan["replicas"])


@pytest.mark.parametrize(("platform", "model", "engine"), CHOICES)
def test_image_understands_every_word_that_the_plan_would_say(platform: str, model: str, engine: str) -> None:
    """With the recipe's defaults, and with any one enhancement the other way round."""
    chosen = resolve(CATALOG, platform, model, engine)
    version = numbers(chosen["engine"]["image"].get("version", "999"))
    since = {how.get("flag", how.get("on")): how["since"] for how in chosen["engine"]["arguments"].values() if "since" in how}
    known = chosen["model"]["enhancements"]
    for turned in [{}] + [{name: not known[name].get("default", False)} for name in known]:
        if engine == "sglang" and turned == {"mtp": True}:
            continue  # not offered: SGLang has other settings for it
        command = planned(platform, model, engine, enhancements=turned)["replicas"][0]["spec"]["command"]
        too_new = [word for word in command if word in since and numbers(since[word]) > version]
        assert too_new == [], f"{turned}: {chosen['engine']['image']['version']} does not know {too_new}"


def test_word_that_an_image_does_not_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = CATALOG["models"]["qwen3.5-35b-a3b"]["platforms"]["ascend_910b"]
    monkeypatch.setitem(fit["settings"], "shutdown_timeout", 60)
    with pytest.raises(AssertionError, match="0.17.0 does not know .*--shutdown-timeout"):
        test_image_understands_every_word_that_the_plan_would_say("ascend_910b", "qwen3.5-35b-a3b", "vllm")


@pytest.mark.parametrize("model", sorted(CATALOG["models"]))
def test_recipe_states_its_weights_and_its_questions(model: str) -> None:
    recipe = CATALOG["models"][model]
    read_acceptance(recipe["acceptance"])
    assert recipe["weights"]["default"] in recipe["weights"]["variants"]
    for name, variant in recipe["weights"]["variants"].items():
        assert variant["source"]["kind"] in ("modelscope", "huggingface", "pypi", "convert"), name
        assert variant.get("size_mib") or variant["files"], f"{name}: weights of unknown size fit nowhere"
        described = variant.get("quantization", {"method": "none"})
        assert described["method"] in ("none", "ascend", "compressed-tensors", "fp8"), f"{name}: what the module quantization_config knows"
        told = variant.get("settings", {}).get("quantization")
        assert told in (None, described["method"]), f"{name}: an engine that is told another method than its weights say does not start"
        assert variant["source"].get("revision") or variant["source"]["kind"] in ("pypi", "convert"), name


@pytest.mark.parametrize(
    "model", [name for name, recipe in sorted(CATALOG["models"].items()) if recipe["memory"]["state_mib_per_sequence"]]
)
def test_hybrid_model_never_runs_mtp_with_prefix_caching_unasked(model: str) -> None:
    assert ["mtp", "prefix_caching"] in [rule["enhancements"] for rule in CATALOG["models"][model]["forbidden"]]
    for platform, _model, engine in [choice for choice in CHOICES if choice[1] == model]:
        command = planned(platform, model, engine)["replicas"][0]["spec"]["command"]
        assert not ("--speculative-config" in command and "--enable-prefix-caching" in command)


def test_a_multimodal_checkpoint_serves_text_only() -> None:
    for platform, model, engine in CHOICES:
        if model.startswith(("qwen3.5", "qwen3.6")):
            assert "--language-model-only" in planned(platform, model, engine)["replicas"][0]["spec"]["command"]


def test_no_plan_trusts_code_that_comes_with_weights() -> None:
    words = itertools.chain.from_iterable(planned(*choice)["replicas"][0]["spec"]["command"] for choice in CHOICES)
    assert "--trust-remote-code" not in set(words)


def test_sglang_spells_its_own_words() -> None:
    spec = planned("nvidia_h100", "qwen3-next-80b-a3b", "sglang")["replicas"][0]["spec"]
    command = spec["command"]
    assert command[:5] == ["python3", "-m", "sglang.launch_server", "--model-path", "/models"]
    values = dict(zip(command, command[1:], strict=False))
    assert {word: values[word] for word in ("--context-length", "--max-running-requests", "--tensor-parallel-size", "--port")} == {
        "--context-length": "131072",
        "--max-running-requests": "8",
        "--tensor-parallel-size": "4",
        "--port": "30000",
    }
    assert values["--mamba-scheduler-strategy"] == "extra_buffer"
    assert "--enable-metrics" in command and "--disable-radix-cache" not in command and "--api-key" not in command
    assert spec["publish"]["container_port"] == 30000
    control = planned("nvidia_h200", "qwen2.5-0.5b", "sglang")["replicas"][0]["spec"]["command"]
    assert "--disable-radix-cache" in control
