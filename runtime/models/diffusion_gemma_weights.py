"""Maps tensor names of DiffusionGemma to parameters (docs/models/architecture-notes.md#diffusiongemma-layers).

Encoder and decoder have all tensors in common but a scale per layer. A file may hold the common ones once, under the
name of either, or twice.
"""

from __future__ import annotations

import math

import torch

from runtime.models.diffusion_gemma_config import DiffusionGemmaConfig
from runtime.models.weight_map import WeightMap, WeightTarget

DECODER, ENCODER = "model.decoder.", "model.encoder.language_model."
VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
EMBEDDING = f"{DECODER}embed_tokens.weight"
LAYER = {  # tensors of a layer that are complete parameters
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attn.q_norm.weight": "self_attn.q_weight",
    "self_attn.k_norm.weight": "self_attn.k_weight",
    "self_attn.o_proj.weight": "self_attn.o_proj.weight",
    "post_attention_layernorm.weight": "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight": "pre_feedforward_layernorm.weight",
    "mlp.down_proj.weight": "mlp.down_proj.weight",
    "post_feedforward_layernorm_1.weight": "post_feedforward_layernorm_1.weight",
    "router.per_expert_scale": "experts.expert_scale",
    "pre_feedforward_layernorm_2.weight": "experts.pre_feedforward_layernorm_2.weight",
    "experts.gate_up_proj": "experts.gate_up_proj",
    "experts.down_proj": "experts.down_proj",
    "post_feedforward_layernorm_2.weight": "post_feedforward_layernorm_2.weight",
    "post_feedforward_layernorm.weight": "post_feedforward_layernorm.weight",
}


def weights(config: DiffusionGemmaConfig) -> WeightMap:
    slots = {EMBEDDING: WeightTarget("embed_tokens.weight"), f"{DECODER}norm.weight": WeightTarget("norm.weight")}
    conditioning = f"{DECODER}self_conditioning."
    slots[f"{conditioning}pre_norm.weight"] = WeightTarget("self_conditioning.pre_norm.weight")
    slots[f"{conditioning}down_proj.weight"] = WeightTarget("self_conditioning.mlp.down_proj.weight")
    slots |= _halves(conditioning, "self_conditioning.mlp.gate_up_proj.weight", config.width)
    for index, kind in enumerate(config.layers):
        checkpoint_prefix, prefix = f"{DECODER}layers.{index}.", f"layers.{index}."
        slots |= {checkpoint_prefix + name: WeightTarget(prefix + param) for name, param in LAYER.items()}
        slots |= _halves(f"{checkpoint_prefix}mlp.", f"{prefix}mlp.gate_up_proj.weight", config.width)
        slots[f"{checkpoint_prefix}router.proj.weight"] = WeightTarget(
            f"{prefix}experts.router.weight",
            transform=_folded,
            combine_with={f"{checkpoint_prefix}router.scale": (config.hidden,)},
        )
        slots |= _attention(config, kind, checkpoint_prefix, prefix)
        slots[f"{ENCODER}layers.{index}.layer_scalar"] = WeightTarget("scales", (index, slice(0, 1)))
        slots[f"{checkpoint_prefix}layer_scalar"] = WeightTarget("scales", (index, slice(1, 2)))
    return WeightMap(slots, _canonical, lambda name: name.startswith(VISION), copies=True)


def _canonical(name: str) -> str:
    if name == "lm_head.weight":
        return EMBEDDING
    if name.startswith(ENCODER) and not name.endswith(".layer_scalar"):
        return DECODER + name.removeprefix(ENCODER)
    return name


def _attention(config: DiffusionGemmaConfig, kind: int, checkpoint_prefix: str, prefix: str) -> dict[str, WeightTarget]:
    shape = config.kinds[kind]
    names = ("q", "k") if shape.window is None else ("q", "k", "v")
    slots, first = {}, 0
    for name in names:
        last = first + (config.heads if name == "q" else shape.kv_heads) * shape.head_dim
        slots[f"{checkpoint_prefix}self_attn.{name}_proj.weight"] = WeightTarget(
            f"{prefix}self_attn.qkv_proj.weight", (slice(first, last),)
        )
        first = last
    return slots


def _folded(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Folds the scale of the router's input norm into the router's weight."""
    return weight.double() * (scale.double() / math.sqrt(weight.shape[-1]))


def _halves(checkpoint_prefix: str, prefix: str, width: int) -> dict[str, WeightTarget]:
    return {
        f"{checkpoint_prefix}gate_proj.weight": WeightTarget(prefix, (slice(0, width),)),
        f"{checkpoint_prefix}up_proj.weight": WeightTarget(prefix, (slice(width, 2 * width),)),
    }
