"""Reads config.json of decoders: common parts, the rotary embedding, and Llama-like configs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from runtime.errors import ConfigError
from runtime.kernels.moe_router import RoutingConfig
from runtime.layers.rotary import Yarn
from runtime.models.config_reader import ConfigReader
from runtime.models.decoder import DecoderConfig, MoEConfig, QueryLengthScaling, RopeConfig

log = logging.getLogger(__name__)

ROPE, SCALING = "rope_parameters", "rope_scaling"
YARN_READ = frozenset(
    """
    factor original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim attention_factor
    llama_4_scaling_beta
    """.split()  # noqa: SIM905
)


# Fields that change the computation, with the supported values.
LLAMA_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "pretraining_tp": (1, None),
}


def rotary(config: Mapping[str, Any], head_dim: int, *, yarn: bool = False) -> RopeConfig:
    """Reads fields of the config, `rope_parameters` (transformers 5) or `rope_scaling` (transformers 4).

    Raises:
        ConfigError: the scaling is not supported, or values contradict each other; the message names the field.
    """
    name, nested = _rope_object(config)
    file = f"config.json's {name}"
    kinds = ("default", "yarn") if yarn else ("default",)
    ConfigReader(nested, file).reject_unsupported({"rope_type": kinds, "type": kinds})
    is_yarn = "yarn" in (nested.get("rope_type"), nested.get("type"))
    read_fields = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *(YARN_READ if is_yarn else ())}
    if surplus := sorted(nested.keys() - read_fields):
        raise ConfigError(f"config.json: {name} holds {', '.join(surplus)}, which is not supported")
    for field in ("rope_theta", "partial_rotary_factor"):
        outer, inner = config.get(field), nested.get(field)
        if outer is None or inner is None or outer == inner:
            continue
        if name == SCALING and not is_yarn:  # transformers 4 ignores the object if it scales nothing
            log.warning("config.json: %s %r of %s ignored: the config's own is %r", field, inner, name, outer)
        else:
            raise ConfigError(f"config.json: {field} {outer!r} contradicts {name}, which says {inner!r}")
    fields = ConfigReader({**nested, **{k: v for k, v in config.items() if v is not None}})
    rotary_factor = fields.number("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * rotary_factor)
    source = f"a head's size of {head_dim}"
    if fields.has("partial_rotary_factor"):
        source = f"partial_rotary_factor {rotary_factor:g}"
    if fields.has("rotary_dim"):
        rotary_dim_field = fields.integer("rotary_dim")
        if fields.has("partial_rotary_factor") and rotary_dim_field != rotary_dim:
            raise ConfigError(
                f"config.json: rotary_dim {rotary_dim_field} contradicts partial_rotary_factor {rotary_factor}"
            )
        rotary_dim, source = rotary_dim_field, f"rotary_dim {rotary_dim_field}"
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ConfigError(
            f"config.json: with {source}, {rotary_dim} of a head's {head_dim} dimensions are rotary; it must be an "
            "even number of them, and not more than there are"
        )
    rope = RopeConfig(fields.number("rope_theta"), rotary_dim)
    return _with_yarn(rope, ConfigReader(nested, file), file) if is_yarn else rope


def _rope_object(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns name and content of the rope object: `rope_parameters`, `rope_scaling`, or both merged if they agree."""
    found: dict[str, dict[str, Any]] = {}
    for name in (ROPE, SCALING):
        value = config.get(name)
        if value is False and name == SCALING:  # RND1 writes "none" so
            value = None
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"config.json: {name} must be an object, not {value!r}")
        # transformers 5 writes one per layer type if a config has layer_types; other types are refused.
        inner = (value or {}).get("full_attention")
        found[name] = _without_identity(inner if isinstance(inner, Mapping) else value or {})
    newer, older = found[ROPE], found[SCALING]
    if not older or not newer:
        return (ROPE, newer) if newer or not older else (SCALING, older)
    for key in sorted({_rope_key(key) for key in newer} & {_rope_key(key) for key in older}):
        one, other = (next(v for k, v in each.items() if _rope_key(k) == key) for each in (newer, older))
        if one != other:
            raise ConfigError(
                f"config.json: {ROPE}'s {key} is {one!r}, but {SCALING}'s is {other!r}; remove the wrong one"
            )
    return ROPE, older | newer


def _rope_key(key: str) -> str:
    return "rope_type" if key == "type" else key


def _without_identity(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Drops nulls, and scaling by factor 1."""
    present = {key: value for key, value in rope.items() if value is not None}
    scaling = present.keys() - {"rope_theta", "partial_rotary_factor"}
    kinds = {present[key] for key in ("rope_type", "type") if isinstance(present.get(key), str)}
    if kinds == {"linear"} and scaling <= {"rope_type", "type", "factor"} and present.get("factor") == 1:
        return {key: value for key, value in present.items() if key not in scaling}
    return present


def _with_yarn(rope: RopeConfig, fields: ConfigReader, file: str) -> RopeConfig:
    """Adds YaRN, and query scaling if the config has it."""
    factor, original = fields.number("factor"), fields.integer("original_max_position_embeddings")
    if factor < 1:  # Nemotron-Labs-Diffusion-3B-Base has 0.25; transformers computes it too
        log.warning("%s: factor %g is below 1: low frequencies are multiplied by %g", file, factor, 1 / factor)
    fast, slow = fields.number("beta_fast", 32.0), fields.number("beta_slow", 1.0)
    if fast <= slow:
        raise ConfigError(f"{file}: beta_fast {fast:g} is not more than beta_slow {slow:g}")

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(max(factor, 1)) + 1

    if fields.has("attention_factor"):
        size = fields.number("attention_factor")
    elif fields.has("mscale") and fields.has("mscale_all_dim"):
        size = magnitude(fields.number("mscale")) / magnitude(fields.number("mscale_all_dim"))
    else:
        size = magnitude(1.0)
    query_scaling = None
    if fields.has("llama_4_scaling_beta"):
        query_scaling = QueryLengthScaling(fields.number("llama_4_scaling_beta"), original)
    return replace(rope, yarn=Yarn(factor, original, fast, slow, size), query_scaling=query_scaling)


def llama_like(
    config: Mapping[str, Any],
    family: str,
    *,
    block_size: int,
    max_positions: int | None,
    fields: ConfigReader | None = None,
    qk_norm: bool = False,
    qkv_bias: bool = False,
    tied: bool = False,
    yarn: bool = False,
    mixture: Callable[[ConfigReader, int], MoEConfig | None] | None = None,
    width_field: str = "intermediate_size",
    block_field: str = "block_size",
    supported: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
    known: frozenset[str] = frozenset(),
    shift: bool = False,
    begins_with_bos: bool = False,
    max_model_len: int | None = None,
) -> DecoderConfig:
    """Reads a Llama-like config.json.

    Args:
        block_size, max_positions, tied: defaults of the family; without `max_positions` the config must have it.
        fields: reader of `config`, if the family reads further fields.
        qkv_bias: Qwen2's: queries, keys and values have a bias that no field mentions.
        yarn: rope_parameters may request YaRN.
        mixture: (fields, layers) -> the experts of a family that has some.
        supported: further fields like those of LLAMA_SUPPORTED.
        known: further fields that the family reads itself or ignores.
        shift, max_model_len: as in ``ModelInfo``.
        begins_with_bos: plain prompts begin with `bos_token_id`.

    Raises:
        ConfigError: a field is missing, wrong, inconsistent or not supported; the message names it.
    """
    fields = fields or ConfigReader(config)
    supported_values = {**LLAMA_SUPPORTED, **({"attention_bias": (True, None)} if qkv_bias else {}), **supported}
    fields.reject_unsupported(supported_values)
    hidden, heads, kv_heads, head_dim = head_shape(fields)
    layers = fields.layers("num_hidden_layers")
    require_full_attention(fields)
    experts = None if mixture is None else mixture(fields, layers)
    bias = False if qkv_bias else fields.flag("attention_bias", False)
    positions = fields.positions("max_position_embeddings", max_positions)
    bos_id = fields.id("bos_token_id")
    parsed = DecoderConfig(
        vocab_size=fields.integer("vocab_size", low=2),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=rotary(config, head_dim, yarn=yarn),
        max_positions=positions,
        eps=fields.number("rms_norm_eps"),
        qk_norm=qk_norm,
        qkv_bias=qkv_bias or bias,
        out_bias=bias,
        width=0 if experts and len(experts.layers) == layers else fields.integer(width_field),
        mixture=experts,
        tied=fields.flag("tie_word_embeddings", tied),
        block_size=fields.integer(block_field, block_size),
        mask_id=fields.id("mask_token_id"),
        eos_ids=fields.ids("eos_token_id"),
        bos_id=bos_id if begins_with_bos else None,
        shift=shift,
        max_model_len=max_model_len,
    )
    fields.warn_unread(family, known | {width_field})  # unread if all layers are sparse
    return parsed


def require_full_attention(fields: ConfigReader) -> None:
    """Raises ConfigError for layers with a sliding window or other restricted attention."""
    if any(kind != "full_attention" for kind in fields.strings("layer_types")):
        raise ConfigError(
            "config.json: layer_types names a layer type other than 'full_attention', which is not supported"
        )


def sparse_layers(fields: ConfigReader, layers: int, from_older_fields: frozenset[int], names: str) -> frozenset[int]:
    """Returns the MoE layers: from `mlp_layer_types` of transformers 5, else `from_older_fields`.

    Raises:
        ConfigError: both are present and differ; `names` are the older fields.
    """
    kinds = fields.strings("mlp_layer_types")
    if not kinds:
        return from_older_fields
    if len(kinds) != layers or set(kinds) - {"dense", "sparse"}:
        raise ConfigError(
            f"config.json: mlp_layer_types must have 'dense' or 'sparse' for each of the {layers} layers, not {kinds!r}"
        )
    found = frozenset(layer for layer, kind in enumerate(kinds) if kind == "sparse")
    if found != from_older_fields and any(fields.has(name) for name in names.split()):
        raise ConfigError(f"config.json: mlp_layer_types contradicts {' and '.join(names.split())}; remove it or them")
    return found


def head_shape(fields: ConfigReader) -> tuple[int, int, int, int]:
    """Returns hidden size, query heads, KV heads and head_dim."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", 0, low=0) or heads  # 0 or absent: as many as query heads
    if heads % kv_heads:
        raise ConfigError(f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if not fields.has("head_dim") and hidden % heads:
        raise ConfigError(f"config.json: hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    return hidden, heads, kv_heads, fields.integer("head_dim", hidden // heads)


def expert_counts(fields: ConfigReader) -> tuple[int, int]:
    """Returns the number of experts and top_k."""
    experts, top_k = fields.experts("num_experts"), fields.integer("num_experts_per_tok")
    if top_k > experts:
        raise ConfigError(f"config.json: num_experts_per_tok {top_k} is more than num_experts {experts}")
    return experts, top_k


def qwen_experts(fields: ConfigReader, layers: int) -> MoEConfig | None:
    """Experts of Qwen3-MoE: every `decoder_sparse_step`-th layer has some, except `mlp_only_layers`."""
    step, dense = fields.integer("decoder_sparse_step", 1), fields.ids("mlp_only_layers", "layer")
    if any(layer >= layers for layer in dense):
        raise ConfigError(f"config.json: mlp_only_layers {list(dense)} names a layer beyond the {layers} there are")
    from_older_fields = frozenset(n for n in range(layers) if (n + 1) % step == 0 and n not in dense)
    sparse = sparse_layers(fields, layers, from_older_fields, "mlp_only_layers decoder_sparse_step")
    if not sparse:
        return None
    experts, top_k = expert_counts(fields)
    return MoEConfig(
        layers=sparse,
        experts=experts,
        width=fields.integer("moe_intermediate_size"),
        shared_width=0,
        routing=RoutingConfig(top_k, 1, 1, fields.flag("norm_topk_prob", False), 1.0, "softmax"),
        router_bias=False,
    )
