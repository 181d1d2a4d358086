# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether what says how weights are quantized agrees with the tensors, and saying it for weights that do not. Private.

Engines start on a wrong description and answer garbage: int8 numbers are read as if they were bfloat16, or without their
scale. What the tensors are stands in the headers of the shards, so that is the truth here, and the description (the block
``quantization_config`` of config.json, or Ascend's file) is held against it.

Sources: vLLM 0.18.1, compressed_tensors/utils.py (how entries match), qwen3_5.py and qwen3_5_mtp.py (names and fused modules at
run time); vllm-ascend 0.17.0rc1 (name, keys and types of the description).
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterable

from ansible_collections.ironserve.llm.plugins.module_utils._errors import UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._safetensors import Tensor

#: The only name Ascend's engine reads; its tool once wrote others.
DESCRIPTION = "quant_model_description.json"

#: What a caller may ask for. ``auto`` takes what the weights say, ``none`` does not look.
METHODS = ("auto", "none", "ascend", "compressed-tensors", "fp8")

#: Where config.json keeps the block. The second is for older readers and must be the same.
KEYS = ("quantization_config", "compression_config")

#: Modules that the engine joins, in the order in which it looks at their parts.
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
_PART_OF = {part: whole for whole, parts in FUSED.items() for part in parts}
#: A part that some models have on its own.
_ALONE = {"qkv_proj": "q_proj", "gate_up_proj": "up_proj"}

_TOWERS = (
    ("model.visual.", "visual."),
    ("lm_head.", "language_model.lm_head."),
    ("model.language_model.", "language_model.model."),
)
_TEXT = (("model.language_model.", "model."),)
#: Architecture -> how the names in the shards begin at run time.
_RUNTIME = {
    "Qwen3_5MoeForConditionalGeneration": _TOWERS,
    "Qwen3_5ForConditionalGeneration": _TOWERS,
    "Qwen3_5MoeForCausalLM": _TEXT,
    "Qwen3_5ForCausalLM": _TEXT,
}
#: Names that are the same at run time, whatever the architecture.
_FLAT = re.compile(r"\A(model\.(layers|embed_tokens|norm)\b|lm_head\b|mtp\.)")

_EXPERT = re.compile(r"\A(?P<experts>.*\.experts)\.(?P<number>\d+)\.(?P<part>[^.]+)\Z")
_EXPERT_PARTS = ("gate_proj", "up_proj", "down_proj")
_LAYER = re.compile(r"\A(?P<stem>.*\blayers)\.(?P<number>\d+)\.(?P<rest>.+)\Z")
_PLAIN = ("BF16", "F16", "F32")
_INT8 = "I8"
_FP8 = ("F8_E4M3", "F8_E5M2")
#: Last parts of names of matrices that are looked up and not multiplied.
_TABLES = ("wte", "wpe")
_SYMMETRIC_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}
_MOST_LINES = 20


@dataclasses.dataclass
class Linear:
    """One matrix that is multiplied: its name in the shards, where it lies, and what lies beside it (suffix -> tensor)."""

    name: str
    shard: str
    weight: Tensor
    beside: dict[str, Tensor]

    @property
    def quantized(self) -> bool:
        """Whether its numbers are of a quantized type."""
        return self.weight.dtype == _INT8 or self.weight.dtype in _FP8

    @property
    def scales(self) -> list[str]:
        """Suffixes beside it that speak of scales or zero points."""
        return sorted(suffix for suffix in self.beside if "scale" in suffix or "zero_point" in suffix or "offset" in suffix)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One disagreement: a word for the check, the module and the shard it was seen in (either may be ""), and what is wrong."""

    check: str
    module: str
    shard: str
    detail: str


@dataclasses.dataclass
class Verdict:
    """The outcome.

    Attributes:
        method: what says how the weights are quantized: ``ascend``, a ``quant_method``, or "" for weights that are not.
        problems: one line per kind of disagreement, with the first module and shard and how many more there are.
        checks: words of the checks that failed, sorted.
        notes: what could not or need not be judged.
        quantized, plain: numbers of matrices.
        linear_attention: ``none``, ``quantized``, ``plain`` or ``mixed``, as the headers say.
        ignore: modules the engine must leave alone, as derived from the headers.
    """

    method: str
    problems: list[str]
    checks: list[str]
    notes: list[str]
    quantized: int
    plain: int
    linear_attention: str
    ignore: list[str]


# ---- what the headers say


@dataclasses.dataclass
class Tensors:
    """Everything the headers say, sorted by what it is for.

    Attributes:
        linears: module name -> matrix.
        findings: what is odd whatever the description says.
    """

    linears: dict[str, Linear]
    findings: list[Finding]


def _natural(name: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _is_table(module: str) -> bool:
    last = module.rpartition(".")[2]
    return "embed" in last or last in _TABLES


def read_tensors(shards: dict[str, list[Tensor]]) -> Tensors:
    """Sort the tensors of all shards (path -> tensors) by module."""
    modules: dict[str, dict[str, tuple[str, Tensor]]] = {}
    for path, tensors in shards.items():
        for tensor in tensors:
            module, _dot, suffix = tensor.name.rpartition(".")
            modules.setdefault(module, {})[suffix] = (path, tensor)
    linears, findings = {}, []
    for module, parts in modules.items():
        weight = parts.pop("weight", None)
        if weight is not None and len(weight[1].shape) == 2 and not _is_table(module):
            beside = {suffix: tensor for suffix, (_path, tensor) in parts.items()}
            linears[module] = Linear(module, weight[0], weight[1], beside)
            if not linears[module].quantized and weight[1].dtype not in _PLAIN:
                text = "weight is {0}, a type that this collection does not know how engines read".format(weight[1].dtype)
                findings.append(Finding("unknown_layout", module, weight[0], text))
            continue
        for suffix, (path, tensor) in sorted(([("weight", weight)] if weight else []) + list(parts.items())):
            if suffix in ("weight_packed", "qweight"):
                findings.append(Finding("unknown_layout", module, path, "has {0}, which this collection cannot judge".format(suffix)))
            elif tensor.dtype == _INT8 or tensor.dtype in _FP8:
                text = "{0} is {1} of shape {2}: no matrix that this collection knows how engines read".format(
                    suffix, tensor.dtype, list(tensor.shape)
                )
                findings.append(Finding("unknown_layout", module, path, text))
            elif weight is None and suffix.startswith("weight_"):
                findings.append(Finding("scale_orphan", module, path, "has {0} and no weight: the weight was left out".format(suffix)))
    return Tensors(linears, findings)


def _linear_attention(linears: Iterable[Linear]) -> str:
    kinds = {linear.quantized for linear in linears if ".linear_attn." in linear.name}
    if not kinds:
        return "none"
    return "mixed" if len(kinds) == 2 else "quantized" if kinds.pop() else "plain"


def _is_output(module: str) -> bool:
    return module.rpartition(".")[2] == "lm_head"


# ---- how the engine sees modules


class _Matcher:
    """Matches entries of a list against run-time names as the engine does.

    Exact entries with a dot are first renamed from the shards' names to those at run time. Patterns (``re:``) are not
    renamed, and need only match the beginning.
    """

    def __init__(self, entries: list[str], runtime: _Runtime, findings: list[Finding]) -> None:
        self.exact: dict[str, str] = {}
        self.patterns: list[tuple[str, Any]] = []
        for entry in entries:
            if not isinstance(entry, str):
                findings.append(Finding("bad_entry", "", "config.json", "entry {0!r} is no text".format(entry)))
            elif not entry.startswith("re:"):
                self.exact.setdefault(runtime.name(entry) if "." in entry else entry, entry)
            else:
                try:
                    self.patterns.append((entry, re.compile(entry[3:])))
                except re.error as exc:
                    findings.append(Finding("bad_entry", "", "config.json", "{0!r} is no regular expression: {1}".format(entry, exc)))
                if not runtime.known and not entry.startswith("re:.*"):
                    text = (
                        "{0!r} is matched from the beginning of run-time names, and those of this architecture are not known here; "
                        "write re:.* in front"
                    )
                    findings.append(Finding("bad_entry", "", "config.json", text.format(entry)))

    def idle(self, units: list[_Unit]) -> list[str]:
        """Entries that match no module."""
        seen = {name for unit in units for name in unit.names + ([] if unit.joined else [unit.name])}
        known = seen | {unit.name for unit in units}
        idle = [entry for name, entry in self.exact.items() if name not in known]
        return idle + [entry for entry, pattern in self.patterns if not any(pattern.match(name) for name in seen)]

    def first(self, name: str) -> str:
        """The entry that matches a run-time name, or ""."""
        if name in self.exact:
            return self.exact[name]
        for entry, pattern in self.patterns:
            if pattern.match(name):
                return entry
        return ""


class _Runtime:
    """Names of modules at run time."""

    def __init__(self, config: dict[str, Any], modules: Iterable[str]) -> None:
        architectures = config.get("architectures")
        name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
        self.prefixes = _RUNTIME.get(name, ())
        self.known = name in _RUNTIME or all(_FLAT.match(module) for module in modules)

    def name(self, module: str) -> str:
        for old, new in self.prefixes:
            if module.startswith(old):
                return new + module[len(old) :]
        return module


@dataclasses.dataclass
class _Unit:
    """What the engine builds as one module: its run-time name, its parts, their run-time names, whether it is one of FUSED."""

    name: str
    parts: list[Linear]
    names: list[str]
    joined: bool = False


def _units(linears: dict[str, Linear], runtime: _Runtime, findings: list[Finding]) -> list[_Unit]:
    """Join matrices as the engine does; what cannot be joined because a part is missing is a finding."""
    units: list[_Unit] = []
    joined: dict[tuple[str, str], dict[str, Linear]] = {}
    experts: dict[str, dict[int, dict[str, Linear]]] = {}
    for module, linear in linears.items():
        expert = _EXPERT.match(module)
        parent, _dot, last = module.rpartition(".")
        if expert:
            experts.setdefault(expert.group("experts"), {}).setdefault(int(expert.group("number")), {})[expert.group("part")] = linear
        elif last in _PART_OF:
            joined.setdefault((parent, _PART_OF[last]), {})[last] = linear
        else:
            units.append(_Unit(runtime.name(module), [linear], [runtime.name(module)]))
    for (parent, whole), parts in joined.items():
        absent = [part for part in FUSED[whole] if part not in parts]
        if absent and list(parts) == [_ALONE.get(whole)]:
            absent = []
        if absent:
            some = next(iter(parts.values()))
            text = "has {0} without {1}, and the engine joins them to {2}".format(" and ".join(parts), " and ".join(absent), whole)
            findings.append(Finding("incomplete", parent, some.shard, text))
        held = [part for part in FUSED[whole] if part in parts]
        name = whole if len(held) > 1 else held[0]
        names = [runtime.name("{0}.{1}".format(parent, part)) for part in held]
        units.append(_Unit(runtime.name("{0}.{1}".format(parent, name)), [parts[part] for part in held], names, len(held) > 1))
    for stem, numbers in experts.items():
        parts = [linear for number in sorted(numbers) for linear in numbers[number].values()]
        names = [runtime.name("{0}.0.{1}".format(stem, part)) for part in _EXPERT_PARTS]
        units.append(_Unit(runtime.name(stem), parts, names))
    return units


def _decide(unit: _Unit, matcher: _Matcher) -> tuple[str, str]:
    """Whether the engine leaves a unit alone: ``(entry, "")`` when it does, ``("", "")`` when not.

    ``(entry, part)`` when an entry names some parts only and ``part`` is one that it does not: the engine then stops.
    """
    # of a joined module only an exact entry is asked for the whole name; patterns see its parts
    whole = matcher.exact.get(unit.name, "") if unit.joined else matcher.first(unit.name)
    if whole or len(unit.names) == 1:
        return whole, ""
    entries = [matcher.first(name) for name in unit.names]
    if all(entries):
        return entries[0], ""
    if any(entries):
        return next(entry for entry in entries if entry), unit.names[entries.index("")].rpartition(".")[2]
    return "", ""


# ---- completeness


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def _check_layers(config: dict[str, Any], linears: dict[str, Linear], findings: list[Finding], notes: list[str]) -> None:
    """Every layer the config promises is there with all its projections, and every expert."""
    settings = _settings(config)
    layers: dict[str, dict[int, dict[str, str]]] = {}
    for module, linear in linears.items():
        match = _LAYER.match(module)
        if match:
            layers.setdefault(match.group("stem"), {}).setdefault(int(match.group("number")), {})[match.group("rest")] = linear.shard
    mtp = settings.get("mtp_num_hidden_layers")
    for stem, numbers in sorted(layers.items()):
        draft = stem.startswith("mtp.")
        wanted = mtp if draft else settings.get("num_hidden_layers") if stem == _main(layers) else None
        absent, first = _absent(wanted, numbers) if isinstance(wanted, int) else (0, 0)
        if absent:
            text = "config.json promises {0} layers, {1} are not there, first {2}".format(wanted, absent, first)
            findings.append(Finding("incomplete", stem, "config.json", text))
        if stem == _main(layers) or draft:
            for number, rests in sorted(numbers.items()):
                kind = "full_attention" if draft else _kind(settings, number)
                _check_attention("{0}.{1}".format(stem, number), rests, kind, findings)
        _check_experts(stem, numbers, settings.get("num_experts"), findings)
    if isinstance(mtp, int) and mtp > 0 and not any(stem.startswith("mtp.") for stem in layers):
        notes.append(
            "config.json promises {0} layers of multi-token prediction and the shards have none: speculation will not work".format(mtp)
        )


def _main(layers: dict[str, dict[int, dict[str, str]]]) -> str:
    """The stem of the language model's layers: the longest stack that is no draft."""
    return max((stem for stem in layers if not stem.startswith("mtp.")), key=lambda stem: (len(layers[stem]), stem), default="")


def _absent(count: int, held: Iterable[int]) -> tuple[int, int]:
    """How many of the numbers below ``count`` are not in ``held``, and the first of them. A damaged config may promise any number."""
    there = {number for number in held if 0 <= number < count}
    first = next(number for number in range(len(there) + 1) if number not in there)
    return max(count, 0) - len(there), first


def _kind(settings: dict[str, Any], number: int) -> str:
    """Kind of attention of a layer, for hybrid models; empty when the config does not tell."""
    kinds, every, count = settings.get("layer_types"), settings.get("full_attention_interval"), settings.get("num_hidden_layers")
    if isinstance(kinds, list):
        return str(kinds[number]) if "linear_attention" in kinds and number < len(kinds) else ""
    if isinstance(every, int) and every > 0 and isinstance(count, int) and number < count:
        return "linear_attention" if (number + 1) % every else "full_attention"
    return ""


def _check_attention(layer: str, rests: dict[str, str], kind: str, findings: list[Finding]) -> None:
    ways = {
        "full_attention": [
            ["self_attn." + part for part in ("q_proj", "k_proj", "v_proj", "o_proj")],
            ["self_attn.qkv_proj", "self_attn.o_proj"],
        ],
        "linear_attention": [
            ["linear_attn." + part for part in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")],
            ["linear_attn." + part for part in ("in_proj_qkvz", "in_proj_ba", "out_proj")],
        ],
    }.get(kind)
    if not ways:
        return
    absent = min(([part for part in way if part not in rests] for way in ways), key=len)
    if absent:
        shard = next(iter(rests.values()))
        findings.append(Finding("incomplete", layer, shard, "is {0} and lacks {1}".format(kind, ", ".join(absent))))


def _check_experts(stem: str, numbers: dict[int, dict[str, str]], promised: Any, findings: list[Finding]) -> None:
    for number, rests in sorted(numbers.items()):
        held: dict[int, set[str]] = {}
        for rest in rests:
            match = _EXPERT.match(rest)
            if match:
                held.setdefault(int(match.group("number")), set()).add(match.group("part"))
        if not held:
            continue
        name = "{0}.{1}.mlp.experts".format(stem, number)
        shard = next(shard for rest, shard in rests.items() if _EXPERT.match(rest))
        count = promised if isinstance(promised, int) and not isinstance(promised, bool) else max(held) + 1
        absent, first = _absent(count, held)
        if absent:
            findings.append(Finding("incomplete", name, shard, "{0} of {1} experts are not there, first {2}".format(absent, count, first)))
        for expert, parts in sorted(held.items()):
            lacks = [part for part in _EXPERT_PARTS if part not in parts]
            if lacks and parts & set(_EXPERT_PARTS):
                findings.append(Finding("incomplete", "{0}.{1}".format(name, expert), shard, "lacks {0}".format(", ".join(lacks))))


# ---- compressed-tensors


def block_of(config: dict[str, Any], findings: list[Finding]) -> dict[str, Any] | None:
    """The block of config.json that says how the weights are quantized, or None."""
    found = [(key, place[key]) for place in (config, _settings(config)) for key in KEYS if place.get(key) is not None]
    for key, block in found:
        if not isinstance(block, dict):
            findings.append(Finding("bad_block", "", "config.json", "{0} is {1!r}, not an object".format(key, block)))
            return None
        if block != found[0][1]:
            findings.append(
                Finding("two_descriptions", "", "config.json", "{0} and {1} differ, and engines read either".format(found[0][0], key))
            )
    return found[0][1] if found else None


def _check_scheme(name: str, group: Any, dtypes: set[str], findings: list[Finding]) -> None:
    """One entry of ``config_groups`` against the type of numbers in the shards."""

    def wrong(detail: str) -> None:
        findings.append(Finding("wrong_scheme", "", "config.json", "config_groups.{0}: {1}".format(name, detail)))

    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict) or not isinstance(group.get("targets"), list):
        wrong("needs weights and targets")
        return
    weights, inputs = group["weights"], group.get("input_activations")
    if dtypes == {_INT8}:
        for key, value in _SYMMETRIC_INT8.items():
            if weights.get(key, False if key == "dynamic" else None) != value:
                wrong(
                    "weights.{0} is {1!r}, the shards hold int8 numbers with one scale a row and no zero point".format(
                        key, weights.get(key)
                    )
                )
        if weights.get("strategy") not in ("channel", "tensor"):
            wrong("weights.strategy is {0!r}, engines take int8 by channel or by tensor".format(weights.get("strategy")))
        if not isinstance(inputs, dict) or inputs.get("num_bits") != 8 or inputs.get("type") != "int":
            wrong("input_activations must be int8 too")
        elif (inputs.get("strategy"), bool(inputs.get("dynamic"))) not in (("token", True), ("tensor", False)):
            wrong("input_activations must be dynamic by token or static by tensor")
    elif weights.get("type") != "float" or weights.get("num_bits") != 8:
        wrong(
            "weights are {0} of {1} bits, the shards hold {2}".format(
                weights.get("type"), weights.get("num_bits"), ", ".join(sorted(dtypes))
            )
        )


_FORMATS = {_INT8: "int-quantized", "F8_E4M3": "float-quantized", "F8_E5M2": "float-quantized"}


def judge_compressed(config: dict[str, Any], block: dict[str, Any], tensors: Tensors, findings: list[Finding], notes: list[str]) -> None:
    """Hold a compressed-tensors block against the headers, module by module."""
    linears = tensors.linears
    dtypes = {linear.weight.dtype for linear in linears.values() if linear.quantized}
    if not dtypes:
        findings.append(Finding("not_quantized", "", "config.json", "says the weights are quantized, and no matrix in the shards is"))
        return
    if len(dtypes) > 1:
        findings.append(Finding("unknown_layout", "", "", "the shards mix {0}".format(" and ".join(sorted(dtypes)))))
        return
    wanted = _FORMATS[next(iter(dtypes))]
    if block.get("format") != wanted:
        text = "format is {0!r}, the shards hold {1}, which is {2!r}; the engine would choose another kernel and stop"
        findings.append(Finding("wrong_format", "", "config.json", text.format(block.get("format"), next(iter(dtypes)), wanted)))
    groups = block.get("config_groups")
    ignore = block.get("ignore", [])
    if not isinstance(groups, dict) or not groups or not isinstance(ignore, list):
        findings.append(Finding("bad_block", "", "config.json", "needs config_groups (at least one) and ignore (a list)"))
        return
    for name, group in groups.items():
        _check_scheme(name, group, dtypes, findings)
    usable = [group for group in groups.values() if isinstance(group, dict) and isinstance(group.get("targets"), list)]
    runtime = _Runtime(config, linears)
    ignored = _Matcher(ignore, runtime, findings)
    targets = [(_Matcher(group["targets"], runtime, findings), group) for group in usable]
    units = _units(linears, runtime, findings)
    for unit in units:
        _judge_unit(unit, ignored, targets, findings)
    idle = [entry for entry in ignored.idle(units) if not _is_output(entry)]
    if idle:
        notes.append("{0} entries of ignore match no module, first {1!r}".format(len(idle), idle[0]))


def _judge_unit(unit: _Unit, ignored: _Matcher, targets: list[tuple[_Matcher, dict[str, Any]]], findings: list[Finding]) -> None:
    first = unit.parts[0]
    if _is_output(first.name):
        # the output layer is no Linear to the engine, whatever the lists say
        if first.quantized:
            text = "is {0}, and engines read the output layer unquantized".format(first.weight.dtype)
            findings.append(Finding("output_quantized", first.name, first.shard, text))
        return
    kinds = {part.quantized for part in unit.parts}
    if len(kinds) == 2:
        one = next(part for part in unit.parts if part.quantized)
        other = next(part for part in unit.parts if not part.quantized)
        text = "is {0} while {1} (in {2}) is {3}, and the engine joins them to {4}".format(
            one.weight.dtype, other.name, other.shard, other.weight.dtype, unit.name.rpartition(".")[2]
        )
        findings.append(Finding("mixed_parts", one.name, one.shard, text))
        return
    entry, left_out = _decide(unit, ignored)
    if left_out:
        text = "ignore entry {0!r} names a part of {1} and not {2}: the engine joins them and stops at different schemes".format(
            entry, unit.name.rpartition(".")[2], left_out
        )
        findings.append(Finding("part_ignored", first.name, first.shard, text))
    elif first.quantized and entry:
        text = "weight is {0} and ignore entry {1!r} makes the engine read it as plain numbers: garbage; take the entry out".format(
            first.weight.dtype, entry
        )
        findings.extend(Finding("ignored_but_quantized", part.name, part.shard, text) for part in unit.parts)
    elif first.quantized:
        scheme = next((group for matcher, group in targets if _is_target(unit, matcher)), None)
        if scheme is None:
            findings.append(Finding("no_target", first.name, first.shard, "no target of config_groups names it: the engine stops"))
            return
        for part in unit.parts:
            _judge_scales(part, scheme, findings)
    elif not entry:
        text = "weight is {0} and no ignore entry names it: the engine would look for int8 numbers and a scale; add it to ignore".format(
            first.weight.dtype
        )
        findings.extend(Finding("not_ignored", part.name, part.shard, text) for part in unit.parts)
    else:
        for part in unit.parts:
            if part.scales:
                text = "is left alone and {0}, yet has {1} beside it: weight and scale are not of one checkpoint".format(
                    part.weight.dtype, ", ".join(part.scales)
                )
                findings.append(Finding("scale_stray", part.name, part.shard, text))


def _is_target(unit: _Unit, matcher: _Matcher) -> bool:
    """Whether a group's targets name a unit: by class (every one of these is some Linear to the engine) or by name."""
    if any(target.lower() in "linear" for target in matcher.exact if target):
        return True
    return bool(matcher.first(unit.name)) or all(matcher.first(name) for name in unit.names)


def _judge_scales(part: Linear, scheme: dict[str, Any], findings: list[Finding]) -> None:
    """The scale of one quantized matrix: there, under its name, of the right shape and type, and nothing else beside it."""

    def say(check: str, detail: str) -> None:
        findings.append(Finding(check, part.name, part.shard, detail))

    rows, columns = part.weight.shape
    weights = scheme["weights"] if isinstance(scheme.get("weights"), dict) else {}
    strategy = str(weights.get("strategy"))
    scale = part.beside.get("weight_scale")
    if scale is None:
        others = [suffix for suffix in part.scales if "scale" in suffix and "input" not in suffix]
        if others:
            text = "weight is {0} and its scale is called {1}, where the engine looks for weight_scale: it would read no scale at all"
            say("scale_name", text.format(part.weight.dtype, ", ".join(others)))
        else:
            text = "weight is {0} and there is no weight_scale in any shard: every engine starts on this and answers one word over and over"
            say("scale_missing", text.format(part.weight.dtype))
        return
    shapes = {"channel": [(rows, 1), (rows,)], "tensor": [(1,), (), (1, 1)]}.get(strategy)
    if strategy == "block":
        block = weights.get("block_structure")
        if isinstance(block, list) and len(block) == 2 and all(isinstance(size, int) and size > 0 for size in block):
            shapes = [(-(-rows // block[0]), -(-columns // block[1]))]
    if shapes is not None and scale.shape not in shapes:
        text = "weight_scale has shape {0}, strategy {1} needs {2}".format(list(scale.shape), strategy, list(shapes[0]))
        say("scale_shape", text)
    if scale.dtype not in _PLAIN:
        say("scale_type", "weight_scale is {0}, which is no plain number".format(scale.dtype))
    inputs = scheme.get("input_activations")
    static = isinstance(inputs, dict) and inputs.get("dynamic") is False
    if static and "input_scale" not in part.beside:
        say("scale_missing", "activations are static and there is no input_scale")
    allowed = {"weight_scale", "input_scale", "input_zero_point"} if static else {"weight_scale"}
    more = [suffix for suffix in part.scales if suffix not in allowed]
    if more:
        say("scale_stray", "has {0} beside its weight_scale, which the scheme in config.json does not have".format(", ".join(more)))


# ---- fp8 and Ascend


def judge_fp8(tensors: Tensors, findings: list[Finding], notes: list[str]) -> None:
    """Hold the block-wise fp8 layout against the headers: every matrix of that type has its scale."""
    for part in tensors.linears.values():
        if part.weight.dtype == _INT8:
            findings.append(Finding("wrong_method", part.name, part.shard, "weight is I8 and config.json says fp8"))
        elif part.quantized and not {"weight_scale", "weight_scale_inv"} & set(part.beside):
            findings.append(
                Finding("scale_missing", part.name, part.shard, "weight is {0} and has no weight_scale_inv".format(part.weight.dtype))
            )
        elif not part.quantized and part.scales:
            text = "is {0}, yet has {1} beside it".format(part.weight.dtype, ", ".join(part.scales))
            findings.append(Finding("scale_stray", part.name, part.shard, text))
    notes.append("which modules fp8 leaves alone is not held against the headers")


#: Type in Ascend's description -> what must lie beside the int8 matrix.
ASCEND_TYPES = {
    "FLOAT": (),
    "W8A8_DYNAMIC": ("weight_scale", "weight_offset"),
    "W8A8": ("input_scale", "input_offset", "deq_scale", "quant_bias"),
    "W4A8_DYNAMIC": ("weight_scale", "weight_offset"),
}


def judge_ascend(config: dict[str, Any], described: dict[str, Any], tensors: Tensors, findings: list[Finding]) -> None:
    """Hold Ascend's description (tensor name -> type) against the headers, both ways."""
    linears = tensors.linears
    for name, kind in described.items():
        module, _dot, suffix = name.rpartition(".")
        if suffix == "weight" and module and kind != "FLOAT" and module not in linears:
            findings.append(Finding("key_stray", module, DESCRIPTION, "is described as {0} and no shard holds such a matrix".format(kind)))
    for module, part in linears.items():
        kind = described.get(module + ".weight")
        if kind is None:
            text = "{0} does not describe its weight: the engine stops at it".format(DESCRIPTION)
            findings.append(Finding("key_missing", module, part.shard, text))
        elif not isinstance(kind, str) or kind not in ASCEND_TYPES:
            text = "is described as {0!r}, which this collection does not know; it knows {1}".format(kind, ", ".join(sorted(ASCEND_TYPES)))
            findings.append(Finding("unknown_type", module, part.shard, text))
        elif (kind != "FLOAT") != part.quantized:
            text = "is described as {0} and its weight is {1}".format(kind, part.weight.dtype)
            findings.append(Finding("type_differs", module, part.shard, text))
        else:
            absent = [suffix for suffix in ASCEND_TYPES[kind] if suffix not in part.beside]
            if absent:
                findings.append(Finding("scale_missing", module, part.shard, "is {0} and lacks {1}".format(kind, ", ".join(absent))))
            if kind == "FLOAT" and part.scales:
                text = "is described as FLOAT, yet has {0} beside it".format(", ".join(part.scales))
                findings.append(Finding("scale_stray", module, part.shard, text))
    for unit in _units(linears, _Runtime(config, linears), findings):
        kinds = {part.name: str(described.get(part.name + ".weight")) for part in unit.parts}
        if len(set(kinds.values())) > 1:
            one = unit.parts[0]
            other = next(part for part in unit.parts if kinds[part.name] != kinds[one.name])
            text = "is described as {0} and {1} as {2}, and the engine joins them to {3}".format(
                kinds[one.name], other.name, kinds[other.name], unit.name.rpartition(".")[2]
            )
            findings.append(Finding("part_differs", one.name, one.shard, text))


# ---- the whole judgement


def judge(
    config: dict[str, Any],
    shards: dict[str, list[Tensor]],
    described: dict[str, Any] | None = None,
    wanted: str = "auto",
    names: Iterable[str] = (),
) -> Verdict:
    """Hold what says how weights are quantized against their headers.

    Args:
        config: content of config.json as the engine will read it.
        shards: path -> tensors of every shard.
        described: content of Ascend's description, when there is one.
        wanted: one of METHODS without ``none``: what the engine will be told to expect.
        names: files of the directory, to recognize a description under another name.
    """
    tensors = read_tensors(shards)
    findings, notes = list(tensors.findings), []
    linears = tensors.linears
    quantized = [linear for linear in linears.values() if linear.quantized]
    block = block_of(config, findings)
    said = block.get("quant_method") if block is not None else None
    if block is not None and said is None and "config_groups" in block:
        said = "compressed-tensors"
    method = "ascend" if described is not None else said or ""
    if described is not None and block is not None:
        text = "{0} and {1} are both there, and which one an engine takes depends on its version".format(DESCRIPTION, KEYS[0])
        findings.append(Finding("two_descriptions", "", "config.json", text))
    if wanted != "auto" and wanted != method:
        text = "the engine is told {0}, and the weights say {1}".format(wanted, method or "nothing")
        findings.append(Finding("wrong_method", "", DESCRIPTION if wanted == "ascend" else "config.json", text))
    if any(finding.check == "unknown_layout" for finding in findings):
        # every other line would be about matrices that were not understood
        findings = [finding for finding in findings if finding.check == "unknown_layout"]
        notes.append("quantization 'none' leaves this judgement out")
    elif method == "ascend":
        judge_ascend(config, described or {}, tensors, findings)
    elif method == "compressed-tensors":
        judge_compressed(config, block or {}, tensors, findings, notes)
    elif method == "fp8":
        judge_fp8(tensors, findings, notes)
    elif method:
        text = "quant_method is {0!r}, which this collection cannot hold against the tensors; 'none' leaves this out".format(method)
        findings.append(Finding("unknown_method", "", "config.json", text))
    elif quantized:
        _nothing_said(quantized, names, findings)
    else:
        for linear in linears.values():
            if linear.scales:
                text = "is {0} and nothing says that anything is quantized, yet it has {1} beside it".format(
                    linear.weight.dtype, ", ".join(linear.scales)
                )
                findings.append(Finding("scale_stray", linear.name, linear.shard, text))
    if not any(finding.check == "unknown_layout" for finding in findings):
        _check_layers(config, linears, findings, notes)
    return Verdict(
        method,
        _lines(findings),
        sorted({finding.check for finding in findings}),
        notes,
        len(quantized),
        len(linears) - len(quantized),
        _linear_attention(linears.values()),
        derive_ignore(tensors),
    )


def _nothing_said(quantized: list[Linear], names: Iterable[str], findings: list[Finding]) -> None:
    first = quantized[0]
    alike = sorted(name for name in names if re.search(r"quant.*desc.*\.json\Z", name))
    if alike:
        text = "is Ascend's description under a name that engines do not read; rename it to {0}".format(DESCRIPTION)
        findings.append(Finding("description_name", "", alike[0], text))
        return
    text = (
        "weight is {0} and neither config.json nor {1} says so: the engine would read the numbers as if they were plain; "
        "ironserve.llm.quantization_config can say it"
    ).format(first.weight.dtype, DESCRIPTION)
    findings.extend(Finding("no_description", linear.name, linear.shard, text) for linear in quantized)


def _lines(findings: list[Finding]) -> list[str]:
    """One line per kind of fault: where it was seen first, and how often."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.check, finding.detail), []).append(finding)
    lines = []
    per_check: dict[str, int] = {}
    for (check, detail), alike in kinds.items():
        per_check[check] = per_check.get(check, 0) + 1
        if per_check[check] > _MOST_LINES:
            continue
        first = alike[0]
        parts = [part for part in (first.shard, first.module, check, detail) if part]
        lines.append(": ".join(parts) + (" ({0} more like it)".format(len(alike) - 1) if len(alike) > 1 else ""))
    for check, count in per_check.items():
        if count > _MOST_LINES:
            lines.append("{0}: {1} more lines of this kind".format(check, count - _MOST_LINES))
    return lines


# ---- deriving


def derive_ignore(tensors: Tensors) -> list[str]:
    """The modules an engine must leave alone: every plain matrix that is multiplied, in natural order, output layer first."""
    plain = [module for module, linear in tensors.linears.items() if not linear.quantized]
    return sorted(plain, key=lambda module: (not _is_output(module), _natural(module)))


def derive(config: dict[str, Any], shards: dict[str, list[Tensor]]) -> dict[str, Any]:
    """The block that describes int8 weights with dynamic int8 activations, from their headers alone.

    Raises LLMError with every line of the judgement when no block could be right.
    """
    tensors = read_tensors(shards)
    quantized = [linear for linear in tensors.linears.values() if linear.quantized]
    if not quantized or {linear.weight.dtype for linear in quantized} != {_INT8}:
        raise UnknownOutput(
            "no block can be derived: the shards hold {0} matrices of int8".format(sum(one.weight.dtype == _INT8 for one in quantized))
        )
    if any("input_scale" in linear.beside for linear in quantized):
        raise UnknownOutput("no block can be derived: activations are static (input_scale is there); give the block its maker used")
    rows = {linear.beside["weight_scale"].shape not in ((1,), (), (1, 1)) for linear in quantized if "weight_scale" in linear.beside}
    common = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None}
    tail = {"observer": "minmax", "observer_kwargs": {}}
    block = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**common, "strategy": "tensor" if rows == {False} else "channel", "dynamic": False, **tail},
                "input_activations": {**common, "strategy": "token", "dynamic": True, **tail},
            }
        },
        "ignore": derive_ignore(tensors),
    }
    return block


def complaint(root: str, verdict: Verdict) -> str:
    """One message that lists every disagreement and ends with what to do."""
    return "{0}: what says how these weights are quantized disagrees with their tensors:\n{1}\nCorrect it, or get other weights.".format(
        root, "\n".join("  - " + line for line in verdict.problems)
    )
