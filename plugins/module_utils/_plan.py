# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From cards and catalog to the list of replicas that will run. Pure: the same input gives the same plan. Private to the collection.

Everything after the plan (containers, proof, gateway, reports) reads it; nothing recomputes it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _overlay_files
from ansible_collections.ironserve.llm.plugins.module_utils._arguments import depends_on_version, spell
from ansible_collections.ironserve.llm.plugins.module_utils._card_groups import choose_groups, warnings
from ansible_collections.ironserve.llm.plugins.module_utils._catalog import merge
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, WARN
from ansible_collections.ironserve.llm.plugins.module_utils._compatibility import image_versions, judge, parse_version
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest
from ansible_collections.ironserve.llm.plugins.module_utils._geometry import Serving, layouts, number_bytes, read_config, weights_on_card
from ansible_collections.ironserve.llm.plugins.module_utils._memory import Need, fit, largest_context, weights_mib

#: Where a replica's container finds its weights, its cache and its key.
WEIGHTS_TARGET = "/models"
CACHE_TARGET = "/cache"
KEY_TARGET = "/run/secrets/engine.key"

#: Where a key goes that the engine takes from a configuration file only; in the container's own memory, gone with it.
KEY_CONFIG = "/tmp/engine-key.yaml"

#: Kind of key -> the one-line shell that hands it over and becomes the engine. Only builtins see the key, so no process list shows it.
KEY_SCRIPTS = {
    "environment": '{name}="$(cat {key})" && export {name} && exec "$@"',
    "config_file": """key="$(sed "s/'/''/g" {key})" && (umask 077 && printf "{name}: '%s'\\n" "$key" > {config}) && exec "$@" {flag} {config}""",
}

#: Shared environment of every engine: a user without a home breaks several libraries.
BASE_ENVIRONMENT = {"HOME": CACHE_TARGET, "USER": "engine", "XDG_CACHE_HOME": CACHE_TARGET}

#: Environment that would open the engine to anybody, or move its ports.
REFUSED_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "it opens remote procedure calls to every client",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "it lets clients load weights",
    "VLLM_API_KEY": "the key belongs in its 0600 file, not in the environment",
    "VLLM_PORT": "it moves the engine to another replica's port",
}

HIGHEST_PORT = 65535

#: Whose shared memory a container may see.
IPC_MODES = ("private", "host")

#: Settings that the plan makes itself -> what a user has for them.
OWN_SETTINGS = {
    "model_path": "llm_model and llm_weights",
    "served_names": "llm_aliases",
    "host": "replica_address",
    "port": "replica_port_base",
    "api_key_file": "replica_engine_key",
}

#: What makes a container as good as privileged: capabilities, devices that are whole directories, and sources of mounts.
REFUSED_RIGHTS = {
    "cap_add": {
        "ALL": "it is as much as privileged",
        "SYS_ADMIN": "it is nearly as much as privileged",
        "SYS_MODULE": "it loads kernel modules",
    },
    "devices_shared": {"/dev": "it gives every device", "/dev/dri": "it gives every card; devices_per_card names those of one"},
    "mounts": {
        "/": "it gives the whole host",
        "/dev": "it gives every device",
        "/var/run/docker.sock": "who has the container engine's socket has the host",
        "/run/docker.sock": "who has the container engine's socket has the host",
    },
}
#: Lists of a platform's container -> whose refusals apply.
_RIGHTS_LIKE = {"devices_optional": "devices_shared", "mounts_optional": "mounts"}

_VARIABLE = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)

_SERVED = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\Z")

#: What a plan needs to know of each card.
CARD_KEYS = ("id", "index", "health", "memory_total_mib")


@dataclasses.dataclass
class PlanInput:
    """What the plan is made from.

    Attributes:
        host: inventory name of the host.
        address: where the gateway reaches this host's replicas; also what their ports are bound to.
        catalog: the outcome of ``_catalog.resolve``.
        cards: cards as ``accelerator_info`` returns them.
        device_nodes: numeric group id of each device node on the host, by path.
        image: reference of the engine image, as the host knows it or will know it.
        weights_path: directory of the weights on the host.
        weights_id: manifest id of the weights; empty when not known yet.
        weights_config: the config.json the engine must see, on the host; one that lies elsewhere than with the weights is mounted over theirs.
        weights_config_id: sha256 of it, so that another description is a new spec; empty when there is none.
        weights_found: what lies on the host, as ``_tensor_sizes.read`` gives it; empty when that is not known, and the recipe's figures count.
        key_file: the engine key's 0600 file on the host.
        key_id: fingerprint of the key, so that a new key is a new spec; empty when not known yet.
        cache_dir: directory on the host that holds one cache directory per replica and image.
        files_dir: directory on the host that holds the files which lie over an image's own.
        port_base: port of the first card group.
        uid: numeric user and group the engines run as.
        network: container network.
        settings: the user's settings, laid over the recipe's.
        environment: the user's environment, laid over the engine's.
        enhancements: name -> bool, the user's choice.
        allow_forbidden: pairs, as ``mtp+prefix_caching``, that may run although the recipe forbids them.
        count: most replicas to plan; 0 means one per card group.
        min_count: fewest replicas worth serving with.
        allow_degraded: leave cards out that are not healthy, instead of stopping.
        aliases: names beside the recipe's under which the model is served.
        engine_version: the engine's version, as it was read or stated; empty takes what the image's tag says, if that.
        card_groups: numbers of the cards that share a replica, group by group; cards in none are left alone. Empty groups them all.
    """

    host: str
    address: str
    catalog: dict[str, Any]
    cards: list[dict[str, Any]]
    image: str
    weights_path: str
    key_file: str
    cache_dir: str
    files_dir: str = "/var/lib/ironserve/files"
    device_nodes: dict[str, int] = dataclasses.field(default_factory=dict)
    weights_id: str = ""
    weights_config: str = ""
    weights_config_id: str = ""
    weights_found: dict[str, Any] = dataclasses.field(default_factory=dict)
    key_id: str = ""
    port_base: int = 8001
    uid: int = 64064
    network: str = "ironserve"
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    enhancements: dict[str, bool] = dataclasses.field(default_factory=dict)
    allow_forbidden: list[str] = dataclasses.field(default_factory=list)
    count: int = 0
    min_count: int = 1
    allow_degraded: bool = False
    aliases: list[str] = dataclasses.field(default_factory=list)
    engine_version: str = ""
    card_groups: list[list[int]] = dataclasses.field(default_factory=list)


def setting_number(settings: dict[str, Any], name: str, kind: Any, lowest: float, highest: float = float("inf")) -> Any:
    """Read one setting as a number of type ``kind`` (int or float) within bounds, in the setting's own unit.

    Raises LLMError naming the setting.
    """
    value = settings.get(name)
    try:
        result = kind(value)
    except (TypeError, ValueError, OverflowError):
        result = None
    # The engine gets the word as it is: what is cut off here, 1.5 to 1, would end it.
    whole = kind is not int or not isinstance(value, float)
    if result is None or isinstance(value, bool) or not whole or not lowest <= result <= highest:
        bounds = "{0} or more".format(lowest) if highest == float("inf") else "from {0} to {1}".format(lowest, highest)
        what = "whole number" if kind is int else "number"
        raise LLMError("setting '{0}' must be a {1}, {2}, found {3!r} (recipe or variable llm_settings)".format(name, what, bounds, value))
    return result


def _why(rule: dict[str, Any]) -> str:
    return "{0} forbidden together ({1}; {2}, {3})".format(" and ".join(rule["enhancements"]), rule["reason"], rule["source"], rule["date"])


def _is_allowed(pair: list[str], allowed: list[str]) -> bool:
    return "+".join(pair) in allowed or "+".join(reversed(pair)) in allowed


def choose_enhancements(recipe: dict[str, Any], wanted: dict[str, bool], allowed: list[str]) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """Decide which enhancements are on.

    A recipe's own pair that is forbidden gives one up; a pair the user asked for by name is refused, with the way out.

    Returns the decisions (``name``, ``state`` on or off, ``reason``) and the settings they add up to.
    Raises LLMError for an unknown enhancement and for a forbidden pair the user asked for.
    """
    known = recipe.get("enhancements", {})
    for name in wanted:
        if name not in known:
            raise LLMError(
                "unknown enhancement '{0}' (variable llm_enhancements) for model '{1}': {2}".format(
                    name, recipe["name"], nearest(str(name), list(known))
                )
            )
        if not isinstance(wanted[name], bool):
            raise LLMError("enhancement '{0}' (variable llm_enhancements) must be true or false, found {1!r}".format(name, wanted[name]))
    on = {name: bool(wanted.get(name, item.get("default", False))) for name, item in known.items()}
    reasons = {name: "asked for" if name in wanted else "the recipe's default" for name in known}
    for rule in recipe.get("forbidden", []):
        pair = rule["enhancements"]
        if not all(on.get(name, False) for name in pair):
            continue
        label, why = "+".join(pair), _why(rule)
        if _is_allowed(pair, allowed):
            for name in pair:
                reasons[name] += "; DANGER, allowed by llm_allow_forbidden: " + why
            continue
        if all(wanted.get(name, False) for name in pair):
            raise LLMError(
                "{0}. Switch one off in llm_enhancements, or allow the pair with llm_allow_forbidden: [{1}] and prove it under your own load".format(
                    why, label
                )
            )
        gives_up = rule["give_up"]
        if wanted.get(gives_up, False):
            gives_up = next(name for name in pair if not wanted.get(name, False))
        on[gives_up] = False
        reasons[gives_up] = why
    settings: dict[str, Any] = {}
    for name, item in known.items():
        settings = merge(settings, item.get("settings", {}) if on[name] else item.get("without", {}))
    return [{"name": name, "state": "on" if on[name] else "off", "reason": reasons[name]} for name in known], settings


def by_hand(item: dict[str, Any], baseline: dict[str, Any], final: dict[str, Any], own: dict[str, Any]) -> tuple[list[str], bool]:
    """What the user's own settings make of one enhancement: those of them that switch it, and whether it is on then.

    What it sets ``without`` decides, where it says that; else what it sets and the baseline has no value for: a setting with a value in the
    baseline, such as the context, is a matter of more or less. A switch that is left to the engine (null) counts as on.
    """
    without, given = item.get("without", {}), item.get("settings", {})
    names = list(without) or [name for name in given if baseline.get(name) is None]
    if without:
        on = any(final.get(name) != value for name, value in without.items())
    else:
        on = any(final.get(name) not in (None, False) for name in names)
    return [name for name in names if name in own], on


def settle(
    catalog: dict[str, Any], wanted: dict[str, bool], allowed: list[str], own: dict[str, Any]
) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """Decide which enhancements are on and lay the user's settings over it all; the decisions are what the settings come to in the end.

    Args:
        catalog: the outcome of ``_catalog.resolve``.
        wanted, allowed: as for ``choose_enhancements``.
        own: the user's settings.
    Returns the decisions, as ``choose_enhancements`` does, and the settings whole.
    Raises LLMError as ``choose_enhancements`` does, and for a forbidden pair that settings switch on past it.
    """
    recipe, baseline = catalog["model"], catalog["settings"]
    decisions, extra = choose_enhancements(recipe, wanted, allowed)
    final = merge(merge(baseline, extra), own)
    hands: dict[str, str] = {}
    for item in decisions:
        names, on = by_hand(recipe["enhancements"][item["name"]], baseline, final, own)
        if names and on != (item["state"] == "on"):
            hands[item["name"]] = "llm_settings has {0}".format(", ".join(names))
            item.update(state="on" if on else "off", reason=hands[item["name"]])
    on_now = {item["name"]: item for item in decisions if item["state"] == "on"}
    for rule in recipe.get("forbidden", []):
        pair = rule["enhancements"]
        forced = [name for name in pair if name in hands]
        if not forced or not all(name in on_now for name in pair):
            continue
        if not _is_allowed(pair, allowed):
            raise LLMError(
                "{0}; {1}. Take that out of llm_settings, switch the other off in llm_enhancements, or allow the pair with "
                "llm_allow_forbidden: [{2}] and prove it under your own load".format(
                    _why(rule), "; ".join("{0} is on because {1}".format(name, hands[name]) for name in forced), "+".join(pair)
                )
            )
        for name in pair:
            if "DANGER" not in on_now[name]["reason"]:
                on_now[name]["reason"] += "; DANGER, allowed by llm_allow_forbidden: " + _why(rule)
    return decisions, final


def enhanced_memory(memory: dict[str, Any], known: dict[str, Any], decisions: list[dict[str, str]]) -> dict[str, Any]:
    """The recipe's memory figures with what each enhancement that is on adds to them.

    Raises LLMError for a figure that is added to nothing, or is no number.
    """
    total = dict(memory)
    for item in decisions:
        for figure, more in known[item["name"]].get("memory", {}).items() if item["state"] == "on" else ():
            if figure not in memory or isinstance(more, bool) or not isinstance(more, (int, float)):
                raise LLMError(
                    "enhancement '{0}' cannot add {1!r} to the memory figure '{2}'; {3}".format(
                        item["name"], more, figure, nearest(figure, list(memory))
                    )
                )
            total[figure] += more
    return total


def serving_of(settings: dict[str, Any]) -> Serving:
    """What settings say of the cache. Raises LLMError naming a setting that is no such thing."""
    ahead = settings.get("speculative") or {}
    if not isinstance(ahead, dict):
        raise LLMError("setting 'speculative' must be a mapping, found {0!r}".format(ahead))
    return Serving(
        tensor_parallel=setting_number(dict({"tensor_parallel_size": 1}, **settings), "tensor_parallel_size", int, 1),
        pipeline_parallel=setting_number(dict({"pipeline_parallel_size": 1}, **settings), "pipeline_parallel_size", int, 1),
        spec_tokens=setting_number(ahead, "num_speculative_tokens", int, 1) if ahead else 0,
        align=settings.get("enable_prefix_caching") is True,
        dtype_bytes=number_bytes(settings.get("dtype"), "setting 'dtype'"),
        kv_bytes=number_bytes(settings.get("kv_cache_dtype"), "setting 'kv_cache_dtype'"),
    )


def need_of(
    catalog: dict[str, Any], settings: dict[str, Any], memory: dict[str, Any], weights: int, found: dict[str, Any] | None = None
) -> Need:
    """What a replica needs of its cards: by the model's geometry where recipe and engine state what that takes, else by ``memory``.

    Args:
        weights: size of the weights, MiB.
        found: ``PlanInput.weights_found`` of these weights; their own configuration and tensors count then.
    Raises LLMError for settings at which the engine would end: a context beyond the model's own, a step shorter than a block.
    """
    serving, name = serving_of(settings), catalog["model"]["name"]
    fixed = 0
    if settings.get("kv_cache_memory_bytes") is not None:
        fixed = setting_number(settings, "kv_cache_memory_bytes", int, 1)
    need = Need(weights, memory, serving.tensor_parallel, serving.pipeline_parallel, [], fixed)
    rule, config = catalog["engine"].get("kv_cache"), catalog["model"].get("config")
    if not rule or not config:
        return need
    geometry = read_config(config, "model '{0}': config".format(name))
    if found:
        geometry = read_config(found["config"], "config.json of the weights on the host")
        stages_bytes = weights_on_card(
            found["tensors"],
            geometry,
            serving.tensor_parallel,
            serving.pipeline_parallel,
            settings.get("language_model_only") is True,
            serving.spec_tokens > 0,
        )
        # One figure for all cards: the fullest stage's.
        need.on_card = -(-max(stages_bytes) // 2**20)
    need.layouts = layouts(geometry, serving, rule)
    longest = setting_number(settings, "max_model_len", int, 1)
    if geometry.max_position and longest > geometry.max_position and not settings.get("hf_overrides"):
        raise LLMError(
            "max_model_len {0} is beyond the {1} tokens that '{2}' was made for, and the engine refuses it; for more it takes hf_overrides with "
            "rope parameters, and VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 in llm_environment".format(longest, geometry.max_position, name)
        )
    block = max(item.block_tokens for item in need.layouts)
    if serving.align and "linear" in geometry.kinds and settings.get("max_num_batched_tokens") is not None:
        if setting_number(settings, "max_num_batched_tokens", int, 1) < block:
            raise LLMError(
                "max_num_batched_tokens {0} is less than a block of this hybrid model, {1} tokens, and the engine ends at its start; set it to {1} "
                "or more, or switch prefix_caching off".format(settings["max_num_batched_tokens"], block)
            )
    return need


def ways_out(data: PlanInput, settings: dict[str, Any], memory: dict[str, Any], card_mib: int, share: float) -> list[str]:
    """The changes after which a replica fits its cards, each alone, with what it gives then; nothing that does not help."""
    catalog, wanted = data.catalog, setting_number(settings, "max_model_len", int, 1)
    recipe, chosen = catalog["model"], catalog["weights"]
    own = recipe["platforms"].get(catalog["platform"]["name"], {})
    weights = weights_mib(chosen)
    lines = []

    def given(changed: dict[str, Any], size: int, found: dict[str, Any] | None = None) -> str:
        figures = fit(card_mib, share, need_of(catalog, dict(settings, **changed), memory, size, found), wanted)
        return "{0:.1f} at once".format(figures.concurrency) if figures.concurrency >= 1 else ""

    # Only what the recipe names for this platform: another format may need another card.
    name = own.get("engines", {}).get(catalog["engine"]["name"], {}).get("weights") or own.get("weights")
    variants = recipe["weights"]["variants"]
    if name in variants and name != chosen["name"]:
        gives = given({}, weights_mib(variants[name]))
        lines += ["smaller weights, llm_weights: {0} ({1} MiB): {2}".format(name, weights_mib(variants[name]), gives)] if gives else []
    size = settings.get("tensor_parallel_size") or 1
    knows = "tensor_parallel_size" in catalog["engine"]["arguments"]
    for more in (size * 2, size * 4, size * 8) if knows else ():
        try:
            gives = given({"tensor_parallel_size": more}, weights, data.weights_found) if more <= len(data.cards) else ""
        except LLMError:
            # This model's heads cannot be divided so.
            gives = ""
        if gives:
            lines.append("more cards per replica, llm_settings: {{tensor_parallel_size: {0}}}: {1}".format(more, gives))
            break
    if settings.get("kv_cache_memory_bytes") is not None:
        gives = given({"kv_cache_memory_bytes": None}, weights, data.weights_found)
        lines += ["kv_cache_memory_bytes: null, and the engine takes what is left: {0}".format(gives)] if gives else []
    shorter = largest_context(card_mib, share, need_of(catalog, settings, memory, weights, data.weights_found))
    if 0 < shorter < wanted:
        lines.append("a shorter context, max_model_len: {0}".format(shorter))
    if catalog["platform"]["name"] == "cpu":
        lines.append("larger cards, accelerator_cpu_card_memory_mib")
    return lines


def group_cards(
    cards: list[dict[str, Any]], size: int, allow_degraded: bool, wanted: list[list[int]]
) -> tuple[list[tuple[int, list[dict[str, Any]]]], list[dict[str, str]]]:
    """Put cards into groups of ``size`` (see ``choose_groups``), so that one dead card never renumbers the others.

    Returns ``(group number, cards)`` pairs and the cards left out, each with its reason.
    Raises LLMError when a card is not healthy and degraded plans were not asked for, and when cards are not described well enough.
    """
    for card in cards:
        # A card that is left out anyway may no longer say how much memory it has.
        needed = CARD_KEYS if card.get("health") in ("ok", "warning", None) else CARD_KEYS[:-1]
        missing = [key for key in needed if card.get(key) is None]
        if missing:
            who = card.get("id", card)
            raise LLMError("card {0} lacks {1}; see accelerator_recorded, or read the cards anew".format(who, ", ".join(missing)))
        for key in ("index", "memory_total_mib"):
            value = card.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise LLMError(
                    "card {0}: '{1}' must be a whole number, 0 or more, found {2!r}; see accelerator_recorded, or read the cards anew".format(
                        card["id"], key, value
                    )
                )
    for key in ("id", "index"):
        values = [card[key] for card in cards]
        twice = sorted({str(value) for value in values if values.count(value) > 1})
        if twice:
            raise LLMError("several cards have the {0} {1}; each has its own".format(key, ", ".join(twice)))
    chosen = choose_groups(cards, size, wanted)
    left_out: list[dict[str, str]] = []
    alive: dict[int, dict[str, Any]] = {}
    for card in sorted(cards, key=lambda item: item["index"]):
        if card["health"] not in ("ok", "warning"):
            reason = "card {0} ({1}) has health '{2}'".format(card["index"], card["id"], card["health"])
            if not allow_degraded:
                raise LLMError("{0}; mend it, or plan without it: replica_allow_degraded: true".format(reason))
            left_out.append({"card": card["id"], "reason": reason})
            continue
        alive[card["index"]] = card
    complete = []
    for number, indexes in chosen:
        members = [alive.pop(index) for index in indexes if index in alive]
        if len(members) == size:
            complete.append((number, members))
            continue
        if wanted and not allow_degraded:
            missing = [index for index in indexes if index not in {card["index"] for card in members}]
            raise LLMError(
                "replica_card_groups names card {0}, which this host does not have; plan without its group: "
                "replica_allow_degraded: true".format(", ".join(str(index) for index in missing))
            )
        for card in members:
            reason = "its group {0} has {1} of {2} cards".format(number, len(members), size)
            left_out.append({"card": card["id"], "reason": reason})
    left_out += [{"card": card["id"], "reason": "replica_card_groups does not name it"} for card in alive.values()]
    return complete, left_out


def digest(value: Any) -> str:
    """Sha256 over the canonical JSON of plain data, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("utf-8")).hexdigest()


def served_names(data: PlanInput) -> list[str]:
    """Names under which the model is served: the recipe's, then the user's. Raises LLMError for one that no request could name."""
    names = list(data.catalog["model"]["served_names"])
    for alias in data.aliases:
        if not isinstance(alias, str) or not _SERVED.match(alias):
            raise LLMError(
                "alias {0!r} (variable llm_aliases) is no name of a model: letters, digits and . _ : / -, up to 128 of them".format(alias)
            )
        names += [] if alias in names else [alias]
    return names


def version_of(data: PlanInput) -> str:
    """The engine's version; empty when nobody knows it. Raises LLMError for one that cannot be compared."""
    version = data.engine_version or image_versions({"reference": data.image})[0] or ""
    try:
        if version:
            parse_version(version)
    except LLMError as exc:
        raise LLMError("the engine's version, as image {0} or replica_image.version says it: {1}".format(data.image, exc)) from exc
    return version


def device_requests(data: PlanInput, members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a vendor's container toolkit is asked for: exactly these cards, by what the platform says never changes of them.

    Raises LLMError for a card that is not known by that.
    """
    requests = []
    for item in data.catalog["platform"]["container"].get("device_requests", []):
        nameless = [card["id"] for card in members if not card.get(item["per_card"])]
        if nameless:
            raise LLMError(
                "card {0} of host {1} has no known '{2}', by which the {3} toolkit is asked for it; read the cards anew".format(
                    ", ".join(nameless), data.host, item["per_card"], item["driver"]
                )
            )
        ids = [str(card[item["per_card"]]) for card in members]
        requests.append({"driver": item["driver"], "capabilities": list(item["capabilities"]), "device_ids": ids})
    return requests


def check_rights(needs: dict[str, Any]) -> None:
    """Refuse what a platform's ``container`` may not give. Raises LLMError naming the key."""
    for key in list(REFUSED_RIGHTS) + list(_RIGHTS_LIKE):
        for item in needs.get(key, []):
            value = str(item.get("source", "") if isinstance(item, dict) else item)
            value = value.upper().replace("CAP_", "") if key == "cap_add" else posixpath.normpath(value)
            why = REFUSED_RIGHTS[_RIGHTS_LIKE.get(key, key)].get(value)
            if why:
                raise LLMError("container.{0} of the platform has {1}: {2}".format(key, value, why))
    if needs.get("ipc", "private") not in IPC_MODES:
        raise LLMError("container.ipc of the platform is {0!r}; it is one of {1}".format(needs["ipc"], ", ".join(IPC_MODES)))
    for option in needs.get("security_opt", []):
        if str(option).startswith("no-new-privileges"):
            raise LLMError("container.security_opt of the platform says {0}; every replica has no-new-privileges:true".format(option))


def container_spec(data: PlanInput, settings: dict[str, Any], number: int, members: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe the one container of a replica, engine-neutral, without any secret.

    Raises LLMError when a card's device node is not known, or an environment variable would open the engine.
    """
    engine, platform = data.catalog["engine"], data.catalog["platform"]
    needs = platform["container"]
    check_rights(needs)
    entry = data.catalog["weights"].get("entry", ".")
    words = dict(
        settings,
        model_path=posixpath.normpath(posixpath.join(WEIGHTS_TARGET, entry)),
        served_names=served_names(data),
        host="0.0.0.0",
        port=engine["container_port"],
    )
    key = engine["key"]
    entrypoint: list[str] | None = None
    if key["kind"] == "argument":
        words["api_key_file"] = KEY_TARGET
        command = spell(engine, words, version_of(data))
    elif key["kind"] in KEY_SCRIPTS:
        script = KEY_SCRIPTS[key["kind"]].format(name=key["name"], flag=key.get("flag", ""), key=KEY_TARGET, config=KEY_CONFIG)
        entrypoint = ["/bin/sh", "-c", script, "engine"]
        command = list(key["command"]) + spell(engine, words, version_of(data))
    else:
        known = ["argument"] + list(KEY_SCRIPTS)
        raise LLMError(
            "engine '{0}': its key has the unknown kind '{1}'; {2}".format(engine["name"], key["kind"], nearest(key["kind"], known))
        )

    cpuset = ",".join(sorted({card["cpuset"] for card in members if card.get("cpuset")}))
    own_environment = {name: template.replace("{cpuset}", cpuset) for name, template in needs.get("environment_per_card", {}).items()}
    environment = merge(
        merge(merge(merge(BASE_ENVIRONMENT, engine.get("environment", {})), needs.get("environment", {})), own_environment),
        data.environment,
    )
    for name, why in REFUSED_ENVIRONMENT.items():
        if name in environment:
            raise LLMError("environment variable {0} is refused: {1}".format(name, why))
    for name, value in environment.items():
        if not _VARIABLE.match(str(name)):
            raise LLMError("environment variable {0!r} has a name that no program could read (variable llm_environment)".format(name))
        if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int, float))):
            raise LLMError(
                "environment variable {0} must be text, found {1!r}; quote it as the program wants it (variable llm_environment)".format(
                    name, value
                )
            )

    shared = list(needs.get("devices_shared", [])) + [path for path in needs.get("devices_optional", []) if path in data.device_nodes]
    own = []
    for card in members:
        for kind in needs.get("devices_per_card", []):
            path = card.get("devices", {}).get(kind)
            if not path:
                raise LLMError(
                    "card {0} ({1}) of host {2} has no known '{3}' device node".format(card["index"], card["id"], data.host, kind)
                )
            own.append(path)
    devices = shared + own
    described = []
    if data.weights_config and data.weights_config != posixpath.normpath(posixpath.join(data.weights_path, entry, "config.json")):
        described = [{"source": data.weights_config, "target": posixpath.join(words["model_path"], "config.json"), "read_only": True}]
    spec = {
        "name": "ironserve-c{0}".format(members[0]["index"]),
        "image": data.image,
        "entrypoint": entrypoint,
        "command": command,
        "environment": {name: str(value) for name, value in sorted(environment.items()) if value is not None},
        "mounts": [
            {"source": data.weights_path, "target": WEIGHTS_TARGET, "read_only": True},
            {
                # One for each image: what another one compiled is neither found nor trusted, and the way back finds its own.
                "source": "{0}/c{1}/{2}".format(data.cache_dir, members[0]["index"], hashlib.sha256(data.image.encode()).hexdigest()[:12]),
                "target": CACHE_TARGET,
                "read_only": False,
                "owner": data.uid,
            },
            {"source": data.key_file, "target": KEY_TARGET, "read_only": True},
        ]
        + described
        + _overlay_files.mounts(needs.get("files", {}), data.files_dir)
        + needs.get("mounts", [])
        # Only the host knows whether it has these.
        + [dict(item, optional=True) for item in needs.get("mounts_optional", [])],
        "devices": devices,
        "own_devices": own,
        "device_requests": device_requests(data, members),
        "cap_add": list(needs.get("cap_add", [])),
        "security_opt": list(needs.get("security_opt", [])),
        "ipc": needs.get("ipc", "private"),
        # Root's group opens far more than a node.
        "groups": sorted({data.device_nodes[path] for path in devices if path in data.device_nodes} - {0}),
        "cpuset": cpuset,
        "memory_mib": sum(card["memory_total_mib"] for card in members) if needs.get("limit_memory") else 0,
        "shm_mib": needs["shm_mib"],
        "pids_limit": needs["pids_limit"],
        "stop_timeout_s": needs["stop_timeout_s"],
        "user": "{0}:{0}".format(data.uid),
        "network": data.network,
        "publish": {"address": data.address, "port": data.port_base + number, "container_port": engine["container_port"]},
    }
    spec["spec_hash"] = digest({"spec": spec, "weights": data.weights_id, "config": data.weights_config_id, "key": data.key_id})
    spec["labels"] = {
        "ironserve.replica": "{0}-c{1}".format(data.host, members[0]["index"]),
        "ironserve.cards": ",".join(card["id"] for card in members),
        "ironserve.model": data.catalog["model"]["name"],
        "ironserve.weights": data.weights_id,
        "ironserve.spec": spec["spec_hash"],
    }
    return spec


def crowded(members: list[dict[str, Any]], share: float) -> list[str]:
    """Cards of a replica on which less is free than the engine's share, though nobody is seen on them: it may end at its start."""
    lines = []
    for card in members:
        used = card.get("memory_used_mib")
        wants = int(card["memory_total_mib"] * share)
        if used is None or card.get("holders") or card["memory_total_mib"] - used >= wants:
            continue
        lines.append(
            "card {0} has {1} MiB in use with nobody on it, so {2} are free and the share of the engine is {3}; where it ends at its start "
            "for that, gpu_memory_utilization: {4:.2f}".format(
                card["id"], used, card["memory_total_mib"] - used, wants, int(100 * (1 - used / card["memory_total_mib"])) / 100
            )
        )
    return lines


def known_of(data: PlanInput, settings: dict[str, Any], environment: dict[str, str], enhancements: list[dict[str, str]]) -> list[str]:
    """What the compatibility table knows of this plan, as far as it hangs on nothing that only the host tells: one line for each row that
    refuses or warns. The preflight judges it with the host's driver and runtime, and stops a deployment."""
    catalog = data.catalog
    words = {FAIL: "refused by the preflight", WARN: "in doubt"}
    asked = {
        "platform": catalog["platform"]["name"],
        "architecture": sorted({str(card.get("architecture")) for card in data.cards}) or None,
        "product": sorted({str(card.get("name")) for card in data.cards}) or None,
        "engine": catalog["engine"]["name"],
        "engine_version": version_of(data) or None,
        "image": data.image,
        "model": catalog["model"]["name"],
        "weights": catalog["weights"]["name"],
        "tensor_parallel_size": settings.get("tensor_parallel_size", 1),
        "enhancement": [item["name"] for item in enhancements if item["state"] == "on"],
        "settings": settings,
        "environment": environment,
    }
    rows = {name: row for name, row in catalog.get("compatibility", {}).get("rows", {}).items() if row["verdict"] != "ok"}
    return [
        "{0}: {1}{2}".format(words[check.status], check.detail, ". Fix: " + check.fix if check.fix else "")
        for check in judge(rows, asked)
        # What cannot be ruled out hangs on a version that nobody knows, and that is said once.
        if check.status in words and check.detail.startswith("row ") and "cannot be ruled out" not in check.detail
    ]


def make_plan(data: PlanInput) -> dict[str, Any]:
    """Compute the plan of one host.

    Returns ``{"host", "platform", "engine", "model", "weights", "served_names", "image", "enhancements", "replicas", "left_out",
    "reasons"}``; each replica is ``{"name", "container", "cards", "card_indexes", "host", "address", "port", "max_num_seqs",
    "max_model_len", "tensor_parallel_size", "endpoint", "fit", "spec"}``; ``endpoint`` is what warm-up and proof talk to.

    Raises LLMError, naming host, card or key, when nothing sensible can run.
    """
    catalog = data.catalog
    recipe, platform = catalog["model"], catalog["platform"]
    enhancements, settings = settle(catalog, data.enhancements, data.allow_forbidden, data.settings)
    for name, instead in OWN_SETTINGS.items():
        if name in data.settings:
            raise LLMError("setting '{0}' (variable llm_settings) is the plan's own; use {1}".format(name, instead))
    serving = serving_of(settings)
    size = serving.tensor_parallel * serving.pipeline_parallel
    groups, left_out = group_cards(data.cards, size, data.allow_degraded, data.card_groups)
    for option, value in (("replica_count", data.count), ("replica_min_count", data.min_count), ("replica_uid", data.uid)):
        if value < 0:
            raise LLMError("{0} must be 0 or more, found {1}".format(option, value))
    last = data.port_base + max([number for number, _members in groups], default=0)
    if data.port_base < 1 or last > HIGHEST_PORT:
        raise LLMError(
            "ports {0} to {1} of host {2}: a port is a number from 1 to {3}; choose another replica_port_base".format(
                data.port_base, last, data.host, HIGHEST_PORT
            )
        )
    if data.count and len(groups) > data.count:
        for _number, members in groups[data.count :]:
            left_out += [{"card": card["id"], "reason": "replica_count is {0}".format(data.count)} for card in members]
        groups = groups[: data.count]

    memory = enhanced_memory(recipe["memory"], recipe.get("enhancements", {}), enhancements)
    share = platform["card"]["memory_share"]
    if settings.get("gpu_memory_utilization") is not None:
        share = setting_number(settings, "gpu_memory_utilization", float, 0.01, 1)
    max_model_len, max_num_seqs = (setting_number(settings, name, int, 1) for name in ("max_model_len", "max_num_seqs"))
    stated = weights_mib(catalog["weights"])
    need = need_of(catalog, settings, memory, stated, data.weights_found)
    reasons = warnings(groups)
    for target, entry in sorted(platform["container"].get("files", {}).items()):
        reasons.append("{0} of the image is covered by {1} (sha256 {2})".format(target, entry["source"], entry["sha256"][:12]))
    if need.on_card:
        text = "weights: {0} MiB on a card, by the tensors on the host; by the recipe {1}"
        reasons.append(text.format(need.on_card, -(-stated // size)))
    replicas = []
    for number, members in groups:
        card_mib = min(card["memory_total_mib"] for card in members)
        figures = fit(card_mib, share, need, max_model_len)
        if figures.concurrency < 1:
            raise LLMError(
                "{0} {1} does not fit card {2} of host {3}: {4}. Ways out: {5}".format(
                    recipe["name"],
                    catalog["weights"]["name"],
                    members[0]["id"],
                    data.host,
                    figures.line(max_model_len),
                    "; ".join(ways_out(data, settings, memory, card_mib, share)) or "smaller weights (llm_weights) or larger cards",
                )
            )
        spec = container_spec(data, settings, number, members)
        replicas.append(
            {
                "name": spec["labels"]["ironserve.replica"],
                "container": spec["name"],
                "cards": [card["id"] for card in members],
                "card_indexes": [card["index"] for card in members],
                "host": data.host,
                "address": data.address,
                "port": spec["publish"]["port"],
                "max_num_seqs": max_num_seqs,
                "max_model_len": max_model_len,
                "tensor_parallel_size": serving.tensor_parallel,
                "endpoint": {
                    "name": spec["labels"]["ironserve.replica"],
                    "url": "http://{0}:{1}".format(data.address, spec["publish"]["port"]),
                    "api_key_file": data.key_file,
                    "container": spec["name"],
                    "cards": [card["id"] for card in members],
                    "platform": platform["name"],
                },
                "fit": dataclasses.asdict(figures),
                "spec": spec,
            }
        )
        reasons.append("{0}: {1}".format(spec["name"], figures.line(max_model_len)))
        reasons += crowded(members, share)
        if figures.concurrency < max_num_seqs:
            reasons.append(
                "{0}: {1} sequences of full length do not fit at once; more wait in the engine. For no wait: max_num_seqs {2}, or "
                "max_model_len {3}".format(
                    spec["name"], max_num_seqs, int(figures.concurrency), largest_context(card_mib, share, need, max_num_seqs)
                )
            )
    reasons += known_of(data, settings, replicas[0]["spec"]["environment"] if replicas else {}, enhancements)
    if not version_of(data) and depends_on_version(catalog["engine"]):
        reasons.append(
            "the engine's version is not known, so nobody checked whether it knows these arguments; state it: replica_image: {version: ...}"
        )
    if len(replicas) < max(1, data.min_count):
        whys = list(dict.fromkeys(item["reason"] for item in left_out))
        raise LLMError(
            "host {0} can run {1} of the {2} replicas asked for as the fewest ({3} cards, {4} per replica){5}. Fix: cards, "
            "replica_min_count, or fewer cards per replica (tensor_parallel_size in llm_settings)".format(
                data.host, len(replicas), max(1, data.min_count), len(data.cards), size, "".join("; " + why for why in whys)
            )
        )
    return {
        "host": data.host,
        "platform": platform["name"],
        "engine": catalog["engine"]["name"],
        "model": recipe["name"],
        "weights": catalog["weights"]["name"],
        "served_names": served_names(data),
        "image": data.image,
        "enhancements": enhancements,
        "replicas": replicas,
        "left_out": left_out,
        "reasons": reasons,
    }


def table(rows: list[list[str]]) -> list[str]:
    """Lay rows out in columns; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def render(plan: dict[str, Any]) -> list[str]:
    """Write the plan as the lines a person reads before saying yes."""
    lines = [
        "{0}: {1} {2} on {3} ({4})".format(plan["host"], plan["model"], plan["weights"].upper(), plan["platform"], plan["engine"]),
        "image {0}".format(plan["image"]),
    ]
    rows = [["REPLICA", "CARDS", "PORT", "TP", "CONTEXT x SEQUENCES", "CONTAINER", "SPEC"]]
    for replica in plan["replicas"]:
        rows.append(
            [
                replica["name"],
                ",".join("{0} ({1})".format(index, card) for index, card in zip(replica["card_indexes"], replica["cards"])),
                "{0}:{1}".format(replica["address"], replica["port"]),
                str(replica["tensor_parallel_size"]),
                "{0} x {1}".format(replica["max_model_len"], replica["max_num_seqs"]),
                replica["container"],
                replica["spec"]["spec_hash"][:12],
            ]
        )
    lines += table(rows)
    lines += ["{0:<4}{1}: {2}".format(item["state"], item["name"], item["reason"]) for item in plan["enhancements"]]
    lines += ["left out {0}: {1}".format(item["card"], item["reason"]) for item in plan["left_out"]]
    lines += ["why {0}".format(reason) for reason in plan["reasons"]]
    if plan["replicas"]:
        lines.append("arguments {0}".format(" ".join(plan["replicas"][0]["spec"]["command"])))
    return lines
