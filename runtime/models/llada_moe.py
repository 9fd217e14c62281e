"""The family LLaDA-MoE: Qwen3-MoE with another router and full attention.

See docs/models/architecture-notes.md#llada-moe-layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from runtime.errors import ConfigError
from runtime.kernels.moe_router import RoutingConfig
from runtime.models.base import architectures, register_family
from runtime.models.config_reader import ConfigReader
from runtime.models.decoder import DecoderConfig, DecoderFamily, MoEConfig, TensorNames, llama_weights
from runtime.models.decoder_config import expert_counts, llama_like, sparse_layers

SUPPORTED: dict[str, tuple[Any, ...]] = {
    "moe_router_score_function": ("softmax", None),
    "norm_topk_prob": (False, None),
    "routed_scaling_factor": (1, None),
    "router_num_group": (None,),
    "router_topk_group": (None,),
}
NAMES = TensorNames(router_bias="mlp.expert_bias", shared="shared_expert")


def detect(config: Mapping[str, Any]) -> bool:
    """Detects LLaDA-MoE. The published checkpoints have LLaDA's model type; another distribution has "lladamoe"."""
    kind = config.get("model_type")
    return kind == "lladamoe" or (kind == "llada" and "LLaDAMoEModelLM" in architectures(config))


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    fields = ConfigReader(config)
    clip = fields.number("clip_qkv") if fields.has("clip_qkv") else None
    parsed = llama_like(
        config, "llada_moe", fields=fields, qk_norm=fields.flag("qk_layernorm", False), block_size=32,
        max_positions=8192, mixture=_mixture, width_field="dense_intermediate_size", supported=SUPPORTED,
    )  # fmt: skip
    return replace(parsed, clip=clip)


def _mixture(fields: ConfigReader, layers: int) -> MoEConfig | None:
    if not fields.has("moe_layer_freq") and not fields.has("mlp_layer_types"):
        raise ConfigError("config.json lacks moe_layer_freq, which this model family needs")
    kinds = fields.ids("moe_layer_freq", "number for a layer")
    if fields.has("moe_layer_freq") and len(kinds) != layers:
        raise ConfigError(f"config.json: moe_layer_freq has {len(kinds)} entries, but num_hidden_layers is {layers}")
    sparse = sparse_layers(
        fields, layers, frozenset(layer for layer, kind in enumerate(kinds) if kind), "moe_layer_freq"
    )
    if not sparse:
        return None
    experts, top_k = expert_counts(fields)
    return MoEConfig(
        layers=sparse,
        experts=experts,
        width=fields.integer("expert_intermediate_size"),
        shared_width=fields.integer("shared_expert_intermediate_size", 0, low=0),
        routing=RoutingConfig(top_k, 1, 1, False, 1.0, "softmax", bias_in_weights=True),
        router_bias=fields.flag("moe_router_enable_expert_bias", False),
    )


LLADA_MOE = register_family(
    DecoderFamily(
        key="llada_moe",
        detect=detect,
        architectures=("LLaDAMoEModelLM",),
        parse=parse,
        weights=partial(llama_weights, names=NAMES),
        strategies=("full",),
        turn_end_tokens=("<|role_end|>",),
        mask_tokens=("<|mask|>",),
        mask_id=156895,
        eos_ids=(156892,),
    )
)
