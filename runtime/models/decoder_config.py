"""What the configs of decoders have in common, and the whole reading of those in the manner of Llama and Qwen."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from runtime.errors import ConfigError
from runtime.kernels.routing import RoutingRule
from runtime.models.decoder import DecoderArch, Mixture
from runtime.models.fields import Fields

log = logging.getLogger(__name__)

# Fields that change the computation, with the only values built.
LLAMA_BUILT: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "rope_scaling": (None,),
    "quantization_config": (None,),
    "pretraining_tp": (1, None),
}
# Fields that another part reads (text, dtype) or that say nothing about a forward pass.
LLAMA_ELSEWHERE = frozenset(
    """
    model_type architectures auto_map torch_dtype dtype transformers_version _name_or_path pad_token_id bos_token_id
    attention_dropout initializer_range use_cache max_window_layers sliding_window fuse_cross_entropy
    output_router_logits router_aux_loss_coef
    """.split()  # noqa: SIM905
)
LLAMA_HONOURED = frozenset(
    """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    attention_bias max_position_embeddings rope_theta rope_parameters partial_rotary_factor layer_types rms_norm_eps
    tie_word_embeddings block_size mask_token_id eos_token_id
    """.split()  # noqa: SIM905
)
EXPERTS_HONOURED = frozenset(
    """
    num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob mlp_only_layers decoder_sparse_step
    """.split()  # noqa: SIM905
)


def llama_like(
    config: Mapping[str, Any],
    family: str,
    *,
    qk_norm: bool,
    block_size: int,
    max_positions: int,
    experts: bool = False,
) -> DecoderArch:
    """A config.json with the fields of Llama, Qwen3 or, with `experts`, Qwen3-MoE.

    `block_size` and `max_positions` are the family's own, for a config that names none. Raises ConfigError, naming the
    field, for what is missing, wrong, inconsistent or not built.
    """
    fields = Fields(config)
    fields.only(LLAMA_BUILT)
    honoured = LLAMA_HONOURED | EXPERTS_HONOURED if experts else LLAMA_HONOURED
    tell_unknown(config, family, LLAMA_BUILT.keys() | LLAMA_ELSEWHERE | honoured)
    hidden, heads, kv_heads, head_dim = head_shape(fields)
    layers = fields.whole("num_hidden_layers")
    if any(kind != "full_attention" for kind in fields.texts("layer_types")):
        raise ConfigError("config.json: layer_types names a layer that is no 'full_attention', which is not built")
    mixture = _mixture(fields, layers) if experts else None
    theta, rotary_dim = rotary(config, head_dim)
    bias = fields.flag("attention_bias", False)
    return DecoderArch(
        vocab_size=fields.whole("vocab_size", low=2),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=theta,
        max_positions=fields.whole("max_position_embeddings", max_positions),
        eps=fields.number("rms_norm_eps"),
        qk_norm=qk_norm,
        qkv_bias=bias,
        out_bias=bias,
        width=0 if mixture and len(mixture.layers) == layers else fields.whole("intermediate_size"),
        mixture=mixture,
        tied=fields.flag("tie_word_embeddings", False),
        block_size=fields.whole("block_size", block_size),
        mask_id=fields.id("mask_token_id"),
        eos_ids=fields.ids("eos_token_id"),
    )


def tell_unknown(config: Mapping[str, Any], family: str, known: Collection[str]) -> None:
    """Say aloud which fields of the config the family does not know."""
    unknown = sorted(config.keys() - set(known))
    if unknown:
        log.warning("config.json holds fields that the %s family does not know: %s", family, ", ".join(unknown))


def head_shape(fields: Fields) -> tuple[int, int, int, int]:
    """Hidden size, query heads, key heads and a head's dimensions."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", 0, low=0) or heads  # 0 or absent: as many as query heads
    if heads % kv_heads:
        raise ConfigError(f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if not fields.has("head_dim") and hidden % heads:
        raise ConfigError(f"config.json: hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    return hidden, heads, kv_heads, fields.whole("head_dim", hidden // heads)


def rotary(config: Mapping[str, Any], head_dim: int) -> tuple[float, int]:
    """theta and how many of a head's first dimensions turn; newer configs keep both in `rope_parameters`."""
    nested = config.get("rope_parameters") or {}
    if not isinstance(nested, Mapping):
        raise ConfigError(f"config.json: rope_parameters must be an object, not {nested!r}")
    Fields(nested).only({"rope_type": ("default",)})
    if surplus := sorted(nested.keys() - {"rope_type", "rope_theta", "partial_rotary_factor"}):
        raise ConfigError(f"config.json: rope_parameters holds {', '.join(surplus)}, which is not built")
    for name in ("rope_theta", "partial_rotary_factor"):
        outer, inner = config.get(name), nested.get(name)
        if outer is not None and inner is not None and outer != inner:
            raise ConfigError(f"config.json: {name} {outer!r} contradicts rope_parameters, which says {inner!r}")
    fields = Fields({**nested, **{k: v for k, v in config.items() if v is not None}})
    share = fields.number("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * share)
    if fields.has("rotary_dim"):
        given = fields.whole("rotary_dim")
        if fields.has("partial_rotary_factor") and given != rotary_dim:
            raise ConfigError(f"config.json: rotary_dim {given} contradicts partial_rotary_factor {share}")
        rotary_dim = given
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ConfigError(f"config.json: {rotary_dim} of a head's {head_dim} dimensions are rotary; they must be even")
    return fields.number("rope_theta"), rotary_dim


def _mixture(fields: Fields, layers: int) -> Mixture | None:
    """Qwen3-MoE's: every `decoder_sparse_step`-th layer has experts, but for those of `mlp_only_layers`."""
    step, dense = fields.whole("decoder_sparse_step", 1), fields.ids("mlp_only_layers", "layer")
    if any(layer >= layers for layer in dense):
        raise ConfigError(f"config.json: mlp_only_layers {list(dense)} names a layer beyond the {layers} there are")
    sparse = frozenset(n for n in range(layers) if (n + 1) % step == 0 and n not in dense)
    if not sparse:
        return None
    experts, top_k = fields.whole("num_experts"), fields.whole("num_experts_per_tok")
    if top_k > experts:
        raise ConfigError(f"config.json: num_experts_per_tok {top_k} is more than num_experts {experts}")
    return Mixture(
        layers=sparse,
        experts=experts,
        width=fields.whole("moe_intermediate_size"),
        shared_width=0,
        rule=RoutingRule(top_k, 1, 1, fields.flag("norm_topk_prob", False), 1.0, "softmax"),
        router_bias=False,
    )
