"""Reads config.json of decoders: common parts, and the reading of Llama-like configs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from runtime.errors import ConfigError
from runtime.kernels.moe_router import RoutingConfig
from runtime.models.config_reader import ConfigReader
from runtime.models.decoder import DecoderConfig, MoEConfig
from runtime.models.rope_config import rotary

log = logging.getLogger(__name__)

# Fields that change the computation, with the supported values.
LLAMA_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "pretraining_tp": (1, None),
}
# Fields that other modules read (tokenizer, dtype) or that do not affect the forward pass.
LLAMA_IGNORED = frozenset(
    """
    model_type architectures auto_map torch_dtype dtype transformers_version _name_or_path pad_token_id
    attention_dropout initializer_range use_cache max_window_layers sliding_window fuse_cross_entropy
    output_router_logits router_aux_loss_coef
    quantization_config
    """.split()  # noqa: SIM905
)
LLAMA_READ = frozenset(
    """
    vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim attention_bias
    max_position_embeddings rope_theta rope_parameters rope_scaling partial_rotary_factor layer_types rms_norm_eps
    tie_word_embeddings mask_token_id eos_token_id bos_token_id
    """.split()  # noqa: SIM905
)
EXPERTS_READ = frozenset(
    """
    num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob mlp_only_layers decoder_sparse_step
    mlp_layer_types
    """.split()  # noqa: SIM905
)
NOTHING: frozenset[str] = frozenset()


def llama_like(
    config: Mapping[str, Any],
    family: str,
    *,
    block_size: int,
    max_positions: int,
    qk_norm: bool = False,
    qkv_bias: bool = False,
    tied: bool = False,
    yarn: bool = False,
    mixture: Callable[[ConfigReader, int], MoEConfig | None] | None = None,
    width_field: str = "intermediate_size",
    block_field: str = "block_size",
    supported: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
    known: frozenset[str] = NOTHING,
) -> DecoderConfig:
    """Reads a Llama-like config.json.

    Args:
        block_size, max_positions, tied: defaults of the family.
        qkv_bias: Qwen2's: queries, keys and values have a bias that no field mentions.
        yarn: rope_parameters may request YaRN.
        mixture: (fields, layers) -> the experts of a family that has some.
        supported: further fields like those of LLAMA_SUPPORTED.
        known: further fields that the family reads itself or ignores.

    Raises:
        ConfigError: a field is missing, wrong, inconsistent or not supported; the message names it.
    """
    fields = ConfigReader(config)
    supported_values = {**LLAMA_SUPPORTED, **({"attention_bias": (True, None)} if qkv_bias else {}), **supported}
    fields.reject_unsupported(supported_values)
    extra_fields = {width_field, block_field, *known}
    warn_unknown_fields(config, family, supported_values.keys() | LLAMA_IGNORED | LLAMA_READ | extra_fields)
    hidden, heads, kv_heads, head_dim = head_shape(fields)
    layers = fields.layers("num_hidden_layers")
    require_full_attention(fields)
    experts = None if mixture is None else mixture(fields, layers)
    rope = rotary(config, head_dim, yarn=yarn)
    bias = False if qkv_bias else fields.flag("attention_bias", False)
    positions = fields.positions("max_position_embeddings", max_positions)
    return DecoderConfig(
        vocab_size=fields.integer("vocab_size", low=2),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rope.dim,
        rope_theta=rope.theta,
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
        bos_id=fields.id("bos_token_id"),
        yarn=rope.yarn,
        query_scaling=rope.query_scaling,
    )


def require_full_attention(fields: ConfigReader) -> None:
    """Raises ConfigError for layers with a sliding window or other restricted attention."""
    if any(kind != "full_attention" for kind in fields.strings("layer_types")):
        raise ConfigError("config.json: layer_types names a layer that is no 'full_attention', which is not built")


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
        raise ConfigError(f"config.json: mlp_layer_types contradicts {' and '.join(names.split())}; keep what is right")
    return found


def warn_unknown_fields(config: Mapping[str, Any], family: str, known: Collection[str]) -> None:
    """Logs a warning with the fields that the family does not know."""
    unknown = sorted(config.keys() - set(known))
    if unknown:
        log.warning("config.json holds fields that the %s family does not know: %s", family, ", ".join(unknown))


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
