# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The catalog: platforms, engines and model recipes as data, merged and checked. Private to the collection.

An entry is a mapping with the key ``name``. Entries of a user's overlay replace shipped entries of the same name key by key
(mappings merge, everything else is replaced), so that an overlay states only what differs.
"""

from __future__ import annotations

import copy
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest
from ansible_collections.ironserve.llm.plugins.module_utils._overlay_files import chosen

#: kind -> key -> (type, required)
SHAPES: dict[str, dict[str, tuple[Any, bool]]] = {
    "platforms": {
        "name": (str, True),
        "title": (str, True),
        "probe": (str, True),
        "probe_options": (dict, False),
        "tools": (dict, False),
        "tool_environment": (dict, False),
        "engines": (list, True),
        "card": (dict, True),
        "container": (dict, True),
        "settings": (dict, False),
        "host": (dict, False),
        "facts": (list, False),
    },
    "engines": {
        "name": (str, True),
        "title": (str, True),
        "container_port": (int, True),
        "health_path": (str, True),
        "metrics_path": (str, True),
        "images": (dict, True),
        "arguments": (dict, True),
        "implied": (dict, False),
        "key": (dict, True),
        "environment": (dict, False),
        "kv_cache": (dict, False),
        "warm_up": (dict, False),
        "version": (dict, False),
        "platforms": (dict, False),
        "facts": (list, False),
    },
    "models": {
        "name": (str, True),
        "title": (str, True),
        "served_names": (list, True),
        "weights": (dict, True),
        "memory": (dict, True),
        "config": (dict, False),
        "platforms": (dict, True),
        "settings": (dict, True),
        "enhancements": (dict, False),
        "forbidden": (list, False),
        "acceptance": (dict, True),
        "facts": (list, False),
    },
    "compatibility": {
        "name": (str, True),
        "title": (str, True),
        "rows": (dict, False),
        "vulnerabilities": (dict, False),
    },
    "log_messages": {
        "name": (str, True),
        "title": (str, True),
        "messages": (dict, True),
    },
}

#: kind -> keys inside an entry that the plan cannot do without -> type. ``*`` stands for every key of a mapping or item of a list.
INNER: dict[str, dict[tuple[str, ...], Any]] = {
    "platforms": {
        ("card", "memory_mib"): int,
        ("card", "memory_share"): (int, float),
        ("container", "shm_mib"): int,
        ("container", "pids_limit"): int,
        ("container", "stop_timeout_s"): int,
    },
    "engines": {
        ("images", "*"): dict,
        ("arguments", "*", "kind"): str,
        ("key", "kind"): str,
        ("platforms", "*"): dict,
    },
    "models": {
        ("weights", "variants", "*"): dict,
        ("memory", "kv_bytes_per_token"): int,
        ("memory", "state_mib_per_sequence"): int,
        ("memory", "overhead_mib"): int,
        ("platforms", "*"): dict,
        ("enhancements", "*"): dict,
        ("forbidden", "*", "enhancements"): list,
        ("forbidden", "*", "give_up"): str,
        ("forbidden", "*", "reason"): str,
        ("forbidden", "*", "source"): str,
        ("forbidden", "*", "date"): str,
    },
    # What a row must have is said where rows are judged.
    "compatibility": {
        ("rows", "*"): dict,
        ("vulnerabilities", "*"): dict,
    },
    "log_messages": {("messages", "*"): dict},
}

#: kind -> part of an entry -> keys it may have -> type. ``*`` as above. A key that nobody reads must not look as if somebody did.
PARTS: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {
    "platforms": {
        ("card",): {"products": list, "architectures": list, "memory_mib": int, "memory_share": (int, float), "idle_mib": int},
        ("host",): {
            "governor": str,
            "swappiness": int,
            "numa_balancing": int,
            "kernel_arguments": list,
            "kernel_modules": list,
            "kernel_modules_refused": list,
        },
        ("container",): {
            "shm_mib": int,
            "stop_timeout_s": int,
            "pids_limit": int,
            "limit_memory": bool,
            "devices_shared": list,
            "devices_optional": list,
            "devices_per_card": list,
            "device_requests": list,
            "mounts": list,
            "mounts_optional": list,
            "files": dict,
            "cap_add": list,
            "security_opt": list,
            "ipc": str,
            "environment": dict,
            "environment_per_card": dict,
        },
    },
    "engines": {
        ("images", "*"): {
            "source": str,
            "reference": str,
            "digest": str,
            "build": str,
            "archive": str,
            "id": str,
            "version": str,
            "runtime": str,
        },
        ("arguments", "*"): {
            "flag": str,
            "kind": str,
            "on": str,
            "off": str,
            "since": str,
            "until": str,
            "versions": list,
            "refused_keys": dict,
            "most": int,
        },
        ("version",): {"command": list, "pattern": str},
        ("kv_cache",): {"block": int, "align": int, "page": str},
        ("warm_up",): {"prompt_tokens": list},
    },
    "models": {
        ("weights",): {"default": str, "variants": dict},
        # Which files there must be, a list with digests or the hub says, and the check of the structure what belongs together.
        ("weights", "variants", "*"): {
            "format": str,
            "source": dict,
            "entry": str,
            "files": list,
            "size_mib": int,
            "settings": dict,
            "quantization": dict,
        },
        ("weights", "variants", "*", "quantization"): {"method": str, "inject": bool},
        ("enhancements", "*"): {"default": bool, "settings": dict, "without": dict, "memory": dict},
        ("platforms", "*"): {
            "engine": str,
            "weights": str,
            "image": dict,
            "settings": dict,
            "environment": dict,
            "files": dict,
            "memory": dict,
            "checks": list,
            "enhancements": dict,
            "engines": dict,
        },
    },
    "compatibility": {},
    "log_messages": {},
}
#: The same words wherever the same thing is said: what an engine adds to a container, a recipe's own image, what differs by engine.
PARTS["engines"][("platforms", "*", "kv_cache")] = PARTS["engines"][("kv_cache",)]
PARTS["engines"][("platforms", "*", "warm_up")] = PARTS["engines"][("warm_up",)]
PARTS["engines"][("platforms", "*", "container")] = PARTS["platforms"][("container",)]
PARTS["models"][("platforms", "*", "image")] = PARTS["engines"][("images", "*")]
PARTS["models"][("platforms", "*", "engines", "*")] = PARTS["models"][("platforms", "*")]
PARTS["models"][("platforms", "*", "enhancements", "*")] = PARTS["models"][("enhancements", "*")]

GRADES = ("vendor_verified", "recipe_measured", "locally_measured")


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lay ``over`` upon ``base``: mappings merge, everything else is replaced. Neither input is changed."""
    result = copy.deepcopy(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merge(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def check_inner(value: Any, path: tuple[str, ...], wanted: Any, where: str, walked: str = "") -> None:
    """Check that ``path`` leads from ``value`` to something of type ``wanted``; the error names ``where`` and the dotted key."""
    if not path:
        if (isinstance(value, bool) and wanted is not bool) or not isinstance(value, wanted):
            names = " or ".join(item.__name__ for item in (wanted if isinstance(wanted, tuple) else (wanted,)))
            raise LLMError("{0}: key '{1}' must be a {2}, found {3!r}".format(where, walked, names, value))
        return
    key = path[0]
    if key == "*" and isinstance(value, (dict, list)):
        for number, name in enumerate(value):
            item = value[name] if isinstance(value, dict) else name
            label = name if isinstance(value, dict) else number
            check_inner(item, path[1:], wanted, where, "{0}.{1}".format(walked, label))
    elif not isinstance(value, dict):
        raise LLMError("{0}: key '{1}' must be a dict, found {2!r}".format(where, walked, value))
    elif key not in value:
        raise LLMError("{0}: the key '{1}' is missing".format(where, ".".join(filter(None, [walked, key]))))
    else:
        check_inner(value[key], path[1:], wanted, where, ".".join(filter(None, [walked, key])))


def parts_at(value: Any, path: tuple[str, ...], walked: tuple[str, ...] = ()) -> list[tuple[str, dict[str, Any]]]:
    """The mappings that ``path`` leads to, each with its dotted key; what is not there or is no mapping is passed over."""
    if not isinstance(value, dict):
        return []
    if not path:
        return [(".".join(walked), value)]
    names = [str(name) for name in value] if path[0] == "*" else [path[0]]
    return [found for name in names for found in parts_at(value.get(name), path[1:], walked + (name,))]


def check_entry(kind: str, entry: Any, where: str) -> None:
    """Check one merged entry against the shape of its kind.

    Raises LLMError that names ``where`` (the file), the key, and the known keys.
    """
    if not isinstance(entry, dict):
        raise LLMError("{0}: expected a mapping with the key 'name', found {1}".format(where, type(entry).__name__))
    shape = SHAPES[kind]
    for key, value in entry.items():
        if key not in shape:
            raise LLMError("{0}: unknown key '{1}'; {2}".format(where, key, nearest(str(key), list(shape))))
        if not isinstance(value, shape[key][0]):
            raise LLMError("{0}: key '{1}' must be a {2}, found {3!r}".format(where, key, shape[key][0].__name__, value))
    for key, (_type, required) in shape.items():
        if required and key not in entry:
            raise LLMError("{0}: the key '{1}' is missing".format(where, key))
    for path, wanted in INNER[kind].items():
        # An optional key may be absent as a whole.
        if path[0] in entry:
            check_inner(entry, path, wanted, where)
    for path, known in PARTS[kind].items():
        for walked, part in parts_at(entry, path):
            for key, value in part.items():
                if key not in known:
                    raise LLMError("{0}: unknown key '{1}.{2}'; {3}".format(where, walked, key, nearest(str(key), list(known))))
                check_inner(value, (), known[key], where, "{0}.{1}".format(walked, key))
    for fact in entry.get("facts", []):
        if not isinstance(fact, dict):
            raise LLMError("{0}: a fact is a mapping with the keys fact, source, date and grade, found {1!r}".format(where, fact))
        for key in ("fact", "source", "date", "grade"):
            if key not in fact:
                raise LLMError("{0}: a fact lacks its '{1}': {2}".format(where, key, fact.get("fact", fact)))
        if fact["grade"] not in GRADES:
            raise LLMError("{0}: unknown grade '{1}'; {2}".format(where, fact["grade"], nearest(str(fact["grade"]), list(GRADES))))


def collect(kind: str, files: list[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
    """Merge the parsed files of one kind, in order, into entries by name.

    Args:
        kind: ``platforms``, ``engines``, ``models``, ``compatibility`` or ``log_messages``.
        files: pairs of file name and parsed content; shipped files first, overlays after them.
    Raises LLMError naming the file for anything that is not an entry, or that leaves an entry incomplete.
    """
    entries: dict[str, dict[str, Any]] = {}
    last_file: dict[str, str] = {}
    for where, content in files:
        if not isinstance(content, dict) or not isinstance(content.get("name"), str):
            raise LLMError("{0}: a file of the catalog is one mapping with the key 'name'".format(where))
        name = content["name"]
        entries[name] = merge(entries.get(name, {}), content)
        last_file[name] = where
    for name, entry in entries.items():
        check_entry(kind, entry, last_file[name])
    return entries


def pick(kind: str, entries: dict[str, dict[str, Any]], name: str, variable: str) -> dict[str, Any]:
    """Return the entry called ``name``; the error lists the known ones and names the variable that chose it."""
    if name not in entries:
        raise LLMError("unknown {0} '{1}' (variable {2}): {3}".format(kind.rstrip("s"), name, variable, nearest(name, list(entries))))
    return entries[name]


def same_record(models: dict[str, dict[str, Any]], model: str, variant: str) -> list[tuple[str, str]]:
    """Other pairs of model and weights variant that hosts would record under the name of this one, ``<model>-<variant>``."""
    pairs = [(name, other) for name, recipe in models.items() for other in recipe["weights"].get("variants", {})]
    return sorted(pair for pair in pairs if pair != (model, variant) and "-".join(pair) == "{0}-{1}".format(model, variant))


def resolve(
    catalog: dict[str, dict[str, dict[str, Any]]],
    platform: str,
    model: str,
    engine: str = "",
    weights: str = "",
) -> dict[str, Any]:
    """Choose one platform, model, engine and weights variant that go together.

    Args:
        catalog: kind -> name -> entry, as from ``collect``.
        model: wanted recipe; empty chooses the platform alone, and leaves engine, model and weights empty.
        engine: wanted engine; empty takes the recipe's choice for the platform.
        weights: wanted weights variant; empty takes the recipe's choice for the platform.
    Returns ``{"platform", "engine", "model", "weights", "settings"}``; ``engine.image`` is the recipe's own image for this platform, or
    the engine's, ``weights.name`` the variant's name, ``settings`` the baseline (platform, engine on it, recipe, recipe for this platform
    and engine, weights). What an engine needs on the platform is merged into ``platform.container``, ``engine.kv_cache`` and
    ``engine.warm_up``, the recipe's own files into ``platform.container.files``; what the recipe says of the platform and the engine (memory,
    enhancements, more checks) into ``model``.
    Raises LLMError for anything unknown or not made for each other.
    """
    chosen_platform = pick("platforms", catalog["platforms"], platform, "llm_platform")
    if not model:
        # Enough to look at the cards of a host: nothing is going to run.
        settings = copy.deepcopy(chosen_platform.get("settings", {}))
        return {"platform": copy.deepcopy(chosen_platform), "engine": {}, "model": {}, "weights": {}, "settings": settings}
    recipe = pick("models", catalog["models"], model, "llm_model")
    if platform not in recipe["platforms"]:
        raise LLMError(
            "model '{0}' has no recipe for platform '{1}'; it has one for: {2}. Add a block 'platforms.{1}' to the recipe "
            "in <inventory>/catalog/models/".format(model, platform, ", ".join(sorted(recipe["platforms"])))
        )
    fit = recipe["platforms"][platform]
    engine_name = engine or fit.get("engine") or ""
    # What the recipe says of this engine in particular, over what it says of the platform.
    fit = merge(fit, fit.get("engines", {}).get(engine_name, {}))
    if engine_name not in chosen_platform["engines"]:
        raise LLMError(
            "engine '{0}' does not run on platform '{1}' (variable llm_engine): {2}".format(
                engine_name, platform, nearest(engine_name, chosen_platform["engines"])
            )
        )
    chosen_engine = copy.deepcopy(pick("engines", catalog["engines"], engine_name, "llm_engine"))
    if platform not in chosen_engine["images"]:
        raise LLMError("engine '{0}' names no image for platform '{1}'; add 'images.{1}' to it".format(engine_name, platform))
    # Never merged: a digest belongs to its own reference.
    chosen_engine["image"] = copy.deepcopy(fit.get("image") or chosen_engine["images"][platform])
    del chosen_engine["images"]
    needs = chosen_engine.pop("platforms", {}).get(platform, {})
    for part in ("kv_cache", "warm_up"):
        if part in chosen_engine:
            chosen_engine[part] = merge(chosen_engine[part], needs.get(part, {}))
    variants = recipe["weights"].get("variants", {})
    variant = weights or fit.get("weights") or recipe["weights"].get("default", "")
    if variant not in variants:
        raise LLMError(
            "model '{0}' has no weights '{1}' (variable llm_weights): {2}".format(model, variant, nearest(variant, list(variants)))
        )
    twins = same_record(catalog["models"], model, variant)
    if twins:
        raise LLMError(
            "weights '{1}' of model '{0}' and weights '{3}' of model '{2}' would be one on a host: both are recorded as '{0}-{1}'. Rename one "
            "of them in <inventory>/catalog/models/; nothing was changed".format(model, variant, *twins[0])
        )
    settings = merge(
        merge(merge(chosen_platform.get("settings", {}), needs.get("settings", {})), recipe["settings"]), fit.get("settings", {})
    )
    # How the weights are quantised is a property of the weights.
    settings = merge(settings, variants[variant].get("settings", {}))
    platform_out = copy.deepcopy(chosen_platform)
    container = merge(merge(platform_out["container"], needs.get("container", {})), {"environment": fit.get("environment", {})})
    files = chosen(merge(container.pop("files", {}), fit.get("files", {})))
    platform_out["container"] = dict(container, files=files) if files else container
    model_out = copy.deepcopy(recipe)
    model_out["memory"] = merge(recipe["memory"], fit.get("memory", {}))
    model_out["enhancements"] = merge(recipe.get("enhancements", {}), fit.get("enhancements", {}))
    model_out["acceptance"]["checks"] = model_out["acceptance"].get("checks", []) + copy.deepcopy(fit.get("checks", []))
    return {
        "platform": platform_out,
        "engine": chosen_engine,
        "model": model_out,
        "weights": dict(copy.deepcopy(variants[variant]), name=variant),
        "settings": settings,
    }
