"""LLaDA2's config.json (models.md 1): what is honoured, and what is refused because it is not built."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.errors import ConfigError
from runtime.kernels.routing import RoutingRule
from runtime.models.fields import Fields

log = logging.getLogger(__name__)

# Fields that change the computation, with the only values built.
BUILT: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "use_qk_norm": (True,),
    "use_rmsnorm": (True,),
    "norm_head": (False,),
    "norm_softmax": (False,),
    "score_function": ("sigmoid",),
    "router_dtype": ("fp32", "float32", None),
    "moe_router_enable_routed_scaling": (True,),
    "using_split_qkv_in_self_attention": (False,),
    "use_sliding_window": (False,),
    "rope_scaling": (None,),
    "quantization_config": (None,),
    "num_nextn_predict_layers": (0, None),
    "is_causal": (False, None),
}
# Fields that another part reads (text, dtype) or that say nothing about a forward pass.
ELSEWHERE = frozenset(
    """
    model_type architectures auto_map torch_dtype dtype transformers_version _name_or_path
    pad_token_id bos_token_id attention_dropout embedding_dropout output_dropout
    initializer_range use_cache output_router_logits router_aux_loss_coef max_window_layers sliding_window
    """.split()  # noqa: SIM905
)
HONOURED = frozenset(
    """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    use_bias use_qkv_bias num_experts num_shared_experts num_experts_per_tok n_group topk_group
    moe_intermediate_size first_k_dense_replace max_position_embeddings rope_theta rope_parameters
    partial_rotary_factor rotary_dim routed_scaling_factor norm_topk_prob rms_norm_eps tie_word_embeddings
    moe_router_enable_expert_bias moe_router_enable_shared_expert block_size mask_token_id eos_token_id
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class LLaDA2Arch:
    """Everything the modules are built from. Widths are of one expert; layers below `dense_layers` have no experts."""

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    max_positions: int
    eps: float
    dense_layers: int
    dense_width: int
    experts: int
    expert_width: int
    shared_experts: int
    routing: RoutingRule
    router_bias: bool
    qkv_bias: bool
    out_bias: bool
    tied: bool
    block_size: int
    mask_id: int | None
    eos_ids: tuple[int, ...]


def parse(config: Mapping[str, Any]) -> LLaDA2Arch:
    """ConfigError, naming the field, for what is missing, wrong, inconsistent or not built."""
    fields = Fields(config)
    fields.only(BUILT)
    unknown = sorted(config.keys() - BUILT.keys() - ELSEWHERE - HONOURED)
    if unknown:
        log.warning("config.json holds fields that the llada2 family does not know: %s", ", ".join(unknown))
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", 0, low=0) or heads  # 0 or absent: as many as query heads
    if heads % kv_heads:
        raise ConfigError(f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if config.get("head_dim") is None and hidden % heads:
        raise ConfigError(f"config.json: hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    head_dim = fields.whole("head_dim", hidden // heads)
    layers = fields.whole("num_hidden_layers")
    dense_layers = min(layers, fields.whole("first_k_dense_replace", 0, low=0))
    theta, rotary_dim = _rotary(config, head_dim)
    shared = fields.whole("num_shared_experts", 0, low=0)
    return LLaDA2Arch(
        vocab_size=fields.whole("vocab_size", low=2),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=theta,
        max_positions=fields.whole("max_position_embeddings"),
        eps=fields.number("rms_norm_eps"),
        dense_layers=dense_layers,
        dense_width=fields.whole("intermediate_size") if dense_layers else 0,
        **_experts(fields, moe=dense_layers < layers),
        shared_experts=shared if fields.flag("moe_router_enable_shared_expert", True) else 0,
        router_bias=fields.flag("moe_router_enable_expert_bias", True),
        qkv_bias=fields.flag("use_qkv_bias", False),
        out_bias=fields.flag("use_bias", False),
        tied=fields.flag("tie_word_embeddings", False),
        block_size=fields.whole("block_size", 32),
        mask_id=fields.id("mask_token_id"),
        eos_ids=fields.ids("eos_token_id"),
    )


def _rotary(config: Mapping[str, Any], head_dim: int) -> tuple[float, int]:
    """theta and how many of a head's first dimensions turn; newer configs keep both in `rope_parameters`."""
    nested = config.get("rope_parameters") or {}
    if not isinstance(nested, Mapping):
        raise ConfigError(f"config.json: rope_parameters must be an object, not {nested!r}")
    Fields(nested).only({"rope_type": ("default",)})
    if surplus := sorted(nested.keys() - {"rope_type", "rope_theta", "partial_rotary_factor"}):
        raise ConfigError(f"config.json: rope_parameters holds {', '.join(surplus)}, which is not built")
    fields = Fields({**nested, **{k: v for k, v in config.items() if v is not None}})
    share = fields.number("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * share)
    if config.get("rotary_dim") is not None:
        given = fields.whole("rotary_dim")
        if (nested.get("partial_rotary_factor") or config.get("partial_rotary_factor")) and given != rotary_dim:
            raise ConfigError(f"config.json: rotary_dim {given} contradicts partial_rotary_factor {share}")
        rotary_dim = given
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ConfigError(f"config.json: {rotary_dim} of a head's {head_dim} dimensions are rotary; they must be even")
    return fields.number("rope_theta"), rotary_dim


def _experts(fields: Fields, *, moe: bool) -> dict[str, Any]:
    if not moe:
        return {"experts": 0, "expert_width": 0, "routing": RoutingRule(1, 1, 1, True, 1.0)}
    experts, top_k = fields.whole("num_experts"), fields.whole("num_experts_per_tok")
    groups, kept = fields.whole("n_group", 1), fields.whole("topk_group", 1)
    if experts % groups:
        raise ConfigError(f"config.json: num_experts {experts} is no multiple of n_group {groups}")
    if kept > groups:
        raise ConfigError(f"config.json: topk_group {kept} is more than n_group {groups}")
    if top_k > experts // groups * kept:
        raise ConfigError(
            f"config.json: num_experts_per_tok {top_k} is more than the {experts // groups * kept} experts of "
            f"topk_group {kept} groups"
        )
    rule = RoutingRule(
        top_k, groups, kept, fields.flag("norm_topk_prob", True), fields.number("routed_scaling_factor", 1.0)
    )
    return {"experts": experts, "expert_width": fields.whole("moe_intermediate_size"), "routing": rule}
