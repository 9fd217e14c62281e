"""The family LLaDA2: a block-diffusion mixture of experts (docs/models/architecture-notes.md#llada2-layers).

LLaDA2.2 has an expert pool in addition (docs/models/architecture-notes.md#llada22-expert-pool)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from runtime.errors import ConfigError
from runtime.kernels.moe_router import RoutingConfig
from runtime.models.base import WeightMap, WeightTarget, register_family
from runtime.models.config_reader import ConfigReader
from runtime.models.decoder import DecoderConfig, DecoderFamily, MoEConfig, TensorNames, decoder_weights
from runtime.models.decoder_config import llama_like, sparse_layers

# Fields that change the computation, with the supported values.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "use_qk_norm": (True,),
    "use_rmsnorm": (True,),
    "norm_softmax": (False,),
    "score_function": ("sigmoid",),
    "router_dtype": ("fp32", "float32", None),
    "moe_router_enable_routed_scaling": (True,),
    "using_split_qkv_in_self_attention": (False,),
    "use_sliding_window": (False,),
    "num_nextn_predict_layers": (0, None),
    "is_causal": (False, None),
}


NAMES = TensorNames(embedding="model.word_embeddings")


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    """Reads config.json of LLaDA2.0 and 2.1. Raises ConfigError that names the field."""
    fields = ConfigReader(config)
    fields.reject_unsupported({"expert_capacity": (None,)})
    return _parse(config, "llada2", fields, _grouped)


def parse_pooled(config: Mapping[str, Any]) -> DecoderConfig:
    """Reads config.json of LLaDA2.2, where a block shares an expert pool. Raises ConfigError as `parse`."""
    fields = ConfigReader(config)
    delete, split = fields.id("delete_token_id"), fields.id("split_token_id")
    if (delete is None) != (split is None):
        raise ConfigError(
            f"config.json: delete_token_id is {delete} and split_token_id is {split}; a model that edits has both"
        )
    return replace(_parse(config, "llada2dot2", fields, _pooled), delete_id=delete, split_id=split)


def _parse(
    config: Mapping[str, Any],
    family: str,
    fields: ConfigReader,
    read_routing: Callable[[ConfigReader, int], RoutingConfig],
) -> DecoderConfig:
    norm_head = fields.flag("norm_head", False)
    if norm_head and fields.flag("tie_word_embeddings", False):
        raise ConfigError(
            "config.json: norm_head is not supported with tie_word_embeddings: a tied head has no separate weights to "
            "normalize"
        )
    qkv_bias, out_bias = fields.flag("use_qkv_bias", False), fields.flag("use_bias", False)
    parsed = llama_like(
        config, family, fields=fields, qk_norm=True, block_size=32, max_positions=None, supported=SUPPORTED,
        mixture=partial(_mixture, read_routing),
    )  # fmt: skip
    return replace(parsed, qkv_bias=qkv_bias, out_bias=out_bias, norm_head=norm_head)


def _mixture(
    read_routing: Callable[[ConfigReader, int], RoutingConfig], fields: ConfigReader, layers: int
) -> MoEConfig | None:
    first = min(layers, fields.integer("first_k_dense_replace", 0, low=0))
    sparse = sparse_layers(fields, layers, frozenset(range(first, layers)), "first_k_dense_replace")
    shared = (
        fields.integer("num_shared_experts", 0, low=0) if fields.flag("moe_router_enable_shared_expert", True) else 0
    )
    biased = fields.flag("moe_router_enable_expert_bias", True)
    if not sparse:
        return None
    experts, width = fields.experts("num_experts"), fields.integer("moe_intermediate_size")
    return MoEConfig(
        layers=sparse,
        experts=experts,
        width=width,
        shared_width=shared * fields.integer("moe_shared_expert_intermediate_size", width),
        routing=read_routing(fields, experts),
        router_bias=biased,
    )


def _grouped(fields: ConfigReader, experts: int) -> RoutingConfig:
    top_k = fields.integer("num_experts_per_tok")
    groups, topk_group = fields.integer("n_group", 1), fields.integer("topk_group", 1)
    if experts % groups:
        raise ConfigError(f"config.json: num_experts {experts} is no multiple of n_group {groups}")
    if topk_group > groups:
        raise ConfigError(f"config.json: topk_group {topk_group} is more than n_group {groups}")
    if top_k > experts // groups * topk_group:
        raise ConfigError(
            f"config.json: num_experts_per_tok {top_k} is more than the {experts // groups * topk_group} experts of "
            f"topk_group {topk_group} groups"
        )
    scale = fields.number("routed_scaling_factor", 1.0)
    return RoutingConfig(top_k, groups, topk_group, fields.flag("norm_topk_prob", True), scale)


def _pooled(fields: ConfigReader, experts: int) -> RoutingConfig:
    """Returns the routing with an expert pool per block of the config. It does not use groups."""
    top_k, capacity = fields.integer("num_experts_per_tok"), fields.integer("expert_capacity")
    if not top_k <= capacity <= experts:
        raise ConfigError(
            f"config.json: expert_capacity {capacity} is not from num_experts_per_tok {top_k} to num_experts {experts}"
        )
    scale, block = fields.number("routed_scaling_factor", 1.0), fields.integer("block_size", 32)
    return RoutingConfig(top_k, 1, 1, fields.flag("norm_topk_prob", True), scale, capacity=capacity, block=block)


def weights(config: DecoderConfig) -> WeightMap:
    return decoder_weights(config, NAMES, partial(_attention, config), _canonical)


def _canonical(name: str) -> str:
    return name.replace(".gate.e_score_correction_bias", ".gate.expert_bias")


def _attention(config: DecoderConfig, checkpoint_prefix: str, prefix: str) -> dict[str, WeightTarget]:
    checkpoint_prefix += "attention."
    slots = {
        checkpoint_prefix + "query_key_value.weight": WeightTarget(prefix + "qkv_proj.weight"),
        checkpoint_prefix + "query_layernorm.weight": WeightTarget(prefix + "q_norm.weight"),
        checkpoint_prefix + "key_layernorm.weight": WeightTarget(prefix + "k_norm.weight"),
        checkpoint_prefix + "dense.weight": WeightTarget(prefix + "o_proj.weight"),
    }
    if config.qkv_bias:
        slots[checkpoint_prefix + "query_key_value.bias"] = WeightTarget(prefix + "qkv_proj.bias")
    if config.out_bias:
        slots[checkpoint_prefix + "dense.bias"] = WeightTarget(prefix + "o_proj.bias")
    return slots


# The second one is written by dFactory's recipes.
MODEL_TYPES = ("llada2_moe", "llada2_moe_veomni")


def detect(config: Mapping[str, Any]) -> bool:
    """Detects LLaDA2.0 and 2.1. LLaDA2.2 has the same model_type and an expert pool; it is another family."""
    return config.get("model_type") in MODEL_TYPES and config.get("expert_capacity") is None


LLADA2 = register_family(
    DecoderFamily(
        key="llada2",
        aliases=("llada2_mini", "llada2_moe", "llada2_flash", "llada2dot1_mini", "llada2dot1_flash"),
        detect=detect,
        parse=parse,
        weights=weights,
        strategies=("multi_bd", "dmax"),
        sampling_modes=("naive", "edit"),
        turn_end_tokens=("<|role_end|>",),
        mask_tokens=("<|mask|>",),
        mask_id=156895,
        eos_ids=(156892,),
        reasoning="think",
        needs_edit=frozenset({"llada2dot1_mini", "llada2dot1_flash"}),
    )
)
