# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a model's config.json and the headers of its weights say about memory. Pure. Private to the collection.

Source: vLLM 0.18.1 ``v1/core/kv_cache_utils.py``, ``v1/kv_cache_interface.py``, ``model_executor/models/config.py``; 0.32.0
``platforms/interface.py``; vllm-ascend 0.17.0rc1 ``patch/platform/patch_mamba_config.py``.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterable

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput, nearest
from ansible_collections.ironserve.llm.plugins.module_utils._safetensors import DTYPE_BITS

#: Word for a number format, in a configuration or on a command line -> bytes of one number.
DTYPE_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float32": 4,
    "float": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}

#: How a platform sizes a hybrid model's block: by a token's whole KV entry, or by its key alone.
PAGES = ("whole", "key")

#: Keys of a configuration that mean a cache whose size nobody here can work out.
_STRANGE = ("index_topk", "mamba_d_state", "ssm_cfg", "state_size", "layers_block_type", "attn_layer_period", "attention_chunk_size")

_LAYER = re.compile(r"(?:\A|\.)layers\.(\d+)\.")
_VISION = re.compile(r"(?:\A|\.)(?:visual|vision_tower|vision_model|vision_encoder)\.")
_MTP = re.compile(r"(?:\A|\.)mtp\.")
#: Matrices that every card of a tensor-parallel group holds whole.
_WHOLE = re.compile(r"\.(?:mlp\.gate|shared_expert_gate|q_a_proj|kv_a_proj_with_mqa)\.|norm")
_KV_HEADS = re.compile(r"\.[kv]_proj\.")


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The shape of a model, as far as memory depends on it.

    Attributes:
        kinds: one word for each layer: ``full`` or ``linear``.
        mtp_layers: layers for speculative decoding in the weights; each has full attention.
        heads, kv_heads, head_dim: of full attention.
        latent: numbers that a token leaves in a layer instead of keys and values (MLA); 0 without.
        key_heads, value_heads, key_dim, value_dim, kernel: of linear attention; 0 without.
        dtype_bytes: bytes of a number of the model.
        state_bytes: bytes of a number of the recurrent state; 0 when it is as the model's others.
        experts: how many; 0 for a dense model.
        max_position: longest context the model was made for, tokens; 0 when it does not say.
    """

    kinds: tuple[str, ...]
    mtp_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    dtype_bytes: int
    state_bytes: int
    experts: int
    max_position: int

    def layers(self, kind: str) -> int:
        """How many layers are of ``kind``."""
        return self.kinds.count(kind)


@dataclasses.dataclass(frozen=True)
class Serving:
    """How the model is served, as far as the cache depends on it.

    Attributes:
        tensor_parallel, pipeline_parallel: cards that share one replica: within layers, and by layers.
        spec_tokens: tokens guessed ahead (MTP); 0 without.
        align: whether prefix caching keeps states at block boundaries (``mamba_cache_mode`` align).
        dtype_bytes: bytes of a number of the model; 0 as the model says.
        kv_bytes: bytes of a number in the cache; 0 as the model's others.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    spec_tokens: int = 0
    align: bool = False
    dtype_bytes: int = 0
    kv_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Layout:
    """The cache of one card: blocks of one size, shared by groups of layers.

    Attributes:
        block_tokens: tokens of a block of a layer with full attention.
        block_bytes: bytes of one block, for all layers of a group.
        full_groups: groups of layers with full attention: each takes a block for every ``block_tokens`` tokens.
        state_groups: groups of layers with linear attention.
        state_blocks: blocks that a sequence takes in each of them, whatever its length.
        token_bytes: what a token leaves in all layers with full attention.
        state_bytes: what a sequence leaves in all layers with linear attention, before blocks are rounded up.
    """

    block_tokens: int
    block_bytes: int
    full_groups: int
    state_groups: int
    state_blocks: int
    token_bytes: int
    state_bytes: int

    def count(self, kv_bytes: int) -> int:
        """How many blocks ``kv_bytes`` bytes hold."""
        return max(0, kv_bytes // self.block_bytes)

    def blocks(self, tokens: int) -> int:
        """How many blocks a sequence of ``tokens`` tokens takes."""
        return self.full_groups * -(-tokens // self.block_tokens) + self.state_groups * self.state_blocks

    def largest_context(self, blocks: int, sequences: int = 1) -> int:
        """The longest context that ``sequences`` sequences can have at once in ``blocks`` blocks, one of which is the engine's own."""
        left = (blocks - 1) // sequences - self.state_groups * self.state_blocks
        return max(0, left // self.full_groups * self.block_tokens) if self.full_groups else 0


def number_bytes(word: Any, where: str) -> int:
    """Bytes of one number of a format; ``auto`` and None are 0. Raises UnknownOutput naming ``where``."""
    if word in (None, "auto"):
        return 0
    if word not in DTYPE_BYTES:
        raise UnknownOutput("{0}: number format {1!r}; {2}".format(where, word, nearest(str(word), list(DTYPE_BYTES))))
    return DTYPE_BYTES[word]


def _whole(text: dict[str, Any], key: str, label: str, least: int = 1, default: int | None = None) -> int:
    value = text.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LLMError("{0}: '{1}' must be a whole number, {2} or more, found {3!r}".format(label, key, least, value))
    return value


def _kinds(text: dict[str, Any], label: str) -> tuple[str, ...]:
    layers = _whole(text, "num_hidden_layers", label)
    if text.get("layer_types") is not None:
        words = {"full_attention": "full", "linear_attention": "linear"}
        strange = [word for word in text["layer_types"] if word not in words]
        if strange:
            raise UnknownOutput("{0}: layer_types has {1!r}; {2}".format(label, strange[0], nearest(str(strange[0]), list(words))))
        if len(text["layer_types"]) != layers:
            raise LLMError("{0}: {1} layer_types for {2} layers".format(label, len(text["layer_types"]), layers))
        return tuple(words[word] for word in text["layer_types"])
    if text.get("linear_num_value_heads") is not None:
        interval = _whole(text, "full_attention_interval", label)
        return tuple("linear" if (number + 1) % interval else "full" for number in range(layers))
    return ("full",) * layers


def read_config(config: dict[str, Any], label: str) -> Geometry:
    """Read the geometry from a ``config.json``: the part about text, where there are several.

    Args:
        label: what the configuration is called in messages.
    Raises LLMError for what is missing or senseless, UnknownOutput for an architecture whose cache nobody here can work out.
    """
    text = config.get("text_config") or config
    for key in _STRANGE:
        if text.get(key) is not None:
            raise UnknownOutput("{0}: has '{1}', so its layers keep something this collection cannot size".format(label, key))
    if text.get("sliding_window") is not None and text.get("use_sliding_window") is not False:
        raise UnknownOutput("{0}: has a sliding window, whose cache this collection cannot size".format(label))
    kinds = _kinds(text, label)
    heads = _whole(text, "num_attention_heads", label)
    head_dim = text.get("head_dim")
    if head_dim is None:
        head_dim = _whole(text, "hidden_size", label) // heads
    latent = 0
    if text.get("kv_lora_rank") is not None:
        latent = _whole(text, "kv_lora_rank", label) + _whole(text, "qk_rope_head_dim", label)
    linear = {"key_heads": 0, "value_heads": 0, "key_dim": 0, "value_dim": 0, "kernel": 0}
    if "linear" in kinds:
        linear = {
            "key_heads": _whole(text, "linear_num_key_heads", label),
            "value_heads": _whole(text, "linear_num_value_heads", label),
            "key_dim": _whole(text, "linear_key_head_dim", label),
            "value_dim": _whole(text, "linear_value_head_dim", label),
            "kernel": _whole(text, "linear_conv_kernel_dim", label),
        }
    dtype = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    dtype_bytes = number_bytes(dtype, "{0}: dtype".format(label))
    if not dtype_bytes:
        raise LLMError("{0}: says no 'dtype'".format(label))
    # Qwen3-Next has the layer in its weights and not in its configuration.
    mtp = 1 if text.get("model_type") == "qwen3_next" else 0
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        mtp = _whole(text, key, label, 0, mtp)
    experts = 0
    for key in ("num_local_experts", "n_routed_experts", "num_experts"):
        experts = _whole(text, key, label, 0, experts)
    return Geometry(
        kinds=kinds,
        mtp_layers=mtp,
        heads=heads,
        kv_heads=_whole(text, "num_key_value_heads", label, 1, heads),
        head_dim=head_dim,
        latent=latent,
        dtype_bytes=dtype_bytes,
        state_bytes=number_bytes(text.get("mamba_ssm_dtype"), "{0}: mamba_ssm_dtype".format(label)),
        experts=experts,
        max_position=_whole(text, "max_position_embeddings", label, 1, 0),
        **linear,
    )


def stages(layers: int, pipeline_parallel: int) -> list[range]:
    """Which layers each pipeline stage holds. What does not divide goes to the stages before the last one, from the back.

    Raises LLMError for more stages than layers.
    """
    if pipeline_parallel > layers:
        raise LLMError("{0} layers cannot be cut into {1} pipeline stages".format(layers, pipeline_parallel))
    sizes = [layers // pipeline_parallel] * pipeline_parallel
    for number in range(2, layers % pipeline_parallel + 2):
        sizes[-number] += 1
    first, result = 0, []
    for size in sizes:
        result.append(range(first, first + size))
        first += size
    return result


def _check_division(geometry: Geometry, cards: int) -> None:
    for what, count in (
        ("attention heads", geometry.heads),
        ("linear key heads", geometry.key_heads),
        ("linear value heads", geometry.value_heads),
    ):
        if count % cards:
            raise LLMError("{0} {1} cannot be divided over tensor_parallel_size {2}".format(count, what, cards))
    if not geometry.latent and geometry.kv_heads % cards and cards % geometry.kv_heads:
        raise LLMError("{0} KV heads cannot be divided over tensor_parallel_size {1}, nor copied evenly".format(geometry.kv_heads, cards))


def _groups(full: int, linear: int) -> tuple[int, int, int]:
    """Layers of one group, groups of full attention, groups of linear attention; groups are equal, the last is padded."""
    if not full or not linear:
        return max(full, linear), int(full > 0), int(linear > 0)
    least, most = sorted((full, linear))
    size = most if most < 1.5 * least else least
    return size, -(-full // size), -(-linear // size)


def layouts(geometry: Geometry, serving: Serving, rule: dict[str, Any]) -> list[Layout]:
    """How the engine lays out the cache, one layout for each pipeline stage.

    Args:
        rule: the engine's ways on the platform: ``block`` (tokens of a block when all layers are alike), ``align`` (tokens to which a
            hybrid model's block is rounded up) and ``page`` (what such a block is sized by, one of ``PAGES``).
    Raises LLMError when heads or layers cannot be divided.
    """
    cards = serving.tensor_parallel
    _check_division(geometry, cards)
    if rule["page"] not in PAGES:
        raise LLMError("kv_cache page '{0}'; {1}".format(rule["page"], nearest(str(rule["page"]), list(PAGES))))
    dtype = serving.dtype_bytes or geometry.dtype_bytes
    number = serving.kv_bytes or dtype
    # What a token leaves in one layer: keys and values of this card's heads, or the one latent vector that every card holds.
    key = max(1, geometry.kv_heads // cards) * geometry.head_dim * number
    token = geometry.latent * number if geometry.latent else 2 * key
    width = 2 * geometry.key_dim * geometry.key_heads + geometry.value_dim * geometry.value_heads
    conv = (geometry.kernel - 1 + serving.spec_tokens) * width // cards * dtype
    ssm = geometry.value_heads // cards * geometry.value_dim * geometry.key_dim * (geometry.state_bytes or dtype)
    result = []
    parts = stages(len(geometry.kinds), serving.pipeline_parallel)
    for number_of_stage, part in enumerate(parts):
        kinds = [geometry.kinds[layer] for layer in part]
        full, linear = kinds.count("full"), kinds.count("linear")
        if serving.spec_tokens and number_of_stage == len(parts) - 1:
            full += geometry.mtp_layers
        size, full_groups, state_groups = _groups(full, linear)
        block, page = rule["block"], rule["block"] * token
        if "linear" in geometry.kinds:
            if rule["page"] == "key":
                block = rule["align"] * -(-ssm // (rule["align"] * key))
                page = 2 * key * block + conv
            else:
                block = rule["align"] * -(-(conv + ssm) // (rule["align"] * token))
                page = block * token
        result.append(
            Layout(
                block_tokens=block,
                block_bytes=page * size,
                full_groups=full_groups,
                state_groups=state_groups,
                state_blocks=(2 if serving.align else 1) + serving.spec_tokens,
                token_bytes=token * full,
                state_bytes=(conv + ssm) * linear,
            )
        )
    return result


def tally(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> list[list[Any]]:
    """Add tensors up to what ``weights_on_card`` must tell apart: some hundred rows for any model, small enough to hand on.

    Args:
        tensors: name, dtype and shape of each tensor, as headers of safetensors files say.
    Returns rows of part (``vision``, ``mtp``, ``embed``, ``output``, ``layer`` or ``other``), number of the layer (-1 for none), how it is
    spread over cards (``whole`` on each, ``kv`` as far as there are KV heads, ``split``) and size in bits.
    Raises UnknownOutput for a dtype of unknown size.
    """
    rows: dict[tuple[str, int, str], int] = {}
    for name, dtype, shape in tensors:
        if dtype not in DTYPE_BITS:
            raise UnknownOutput("tensor {0!r}: dtype {1!r}, which this collection does not know".format(name, dtype))
        found = _LAYER.search(name)
        if _VISION.search(name):
            part = "vision"
        elif _MTP.search(name):
            part = "mtp"
        elif "embed_tokens" in name:
            part = "embed"
        elif found:
            part = "layer"
        else:
            part = "output" if "lm_head" in name else "other"
        spread = "split"
        if len(shape) < 2 or _WHOLE.search(name):
            spread = "whole"
        elif _KV_HEADS.search(name) and part != "vision":
            spread = "kv"
        size = DTYPE_BITS[dtype]
        for extent in shape:
            size *= extent
        key = (part, int(found.group(1)) if found else -1, spread)
        rows[key] = rows.get(key, 0) + size
    return [[part, layer, spread, size] for (part, layer, spread), size in rows.items()]


def weights_on_card(
    rows: Iterable[list[Any]],
    geometry: Geometry,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    text_only: bool = False,
    mtp: bool = True,
) -> list[int]:
    """Bytes of weights on one card, one figure for each pipeline stage.

    Matrices are divided over the cards of a stage; vectors, routers and down-projections to a latent are on every card, and keys and
    values are divided as far as their heads go.

    Args:
        rows: as ``tally`` gives them.
        text_only: without the vision tower.
        mtp: with the layers for speculative decoding; an engine that does not guess ahead does not load them.
    """
    parts = stages(len(geometry.kinds), pipeline_parallel)
    totals = [0] * len(parts)
    embeddings, has_output = 0, False
    cards = {"whole": 1, "kv": min(tensor_parallel, geometry.kv_heads), "split": tensor_parallel}
    for part, layer, spread, bits in rows:
        # A layer beyond the last is one for guessing ahead.
        is_mtp = part == "mtp" or (part != "vision" and layer >= len(geometry.kinds))
        if (part == "vision" and text_only) or (is_mtp and not mtp):
            continue
        size = -(-bits // (8 * cards[spread]))
        if part == "vision":
            totals[0] += size
        elif is_mtp or part in ("output", "other"):
            has_output = has_output or part == "output"
            totals[-1] += size
        elif part == "embed":
            totals[0] += size
            embeddings += size
        else:
            totals[next(stage for stage, held in enumerate(parts) if layer in held)] += size
    if not has_output and len(parts) > 1:
        # The output shares the embeddings, and the last stage needs them too.
        totals[-1] += embeddings
    return totals
