"""Maps tensor names of DiffusionGemma to parameters (docs/models.md#diffusiongemma-layers).

Encoder and decoder have all tensors in common but a scale per layer. A file may hold the common ones once, under the
name of either, or twice.
"""

from __future__ import annotations

import math

import torch

from runtime.models.diffusion_gemma_config import GemmaArch
from runtime.models.weight_map import Slot, WeightMap

DECODER, ENCODER = "model.decoder.", "model.encoder.language_model."
VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
EMBEDDING = f"{DECODER}embed_tokens.weight"
LAYER = {  # a layer's tensors that are whole parameters
    "input_layernorm.weight": "input_norm.weight",
    "self_attn.q_norm.weight": "attention.q_weight",
    "self_attn.k_norm.weight": "attention.k_weight",
    "self_attn.o_proj.weight": "attention.out.weight",
    "post_attention_layernorm.weight": "attention_norm.weight",
    "pre_feedforward_layernorm.weight": "dense_before.weight",
    "mlp.down_proj.weight": "dense.down.weight",
    "post_feedforward_layernorm_1.weight": "dense_after.weight",
    "router.per_expert_scale": "experts.expert_scale",
    "pre_feedforward_layernorm_2.weight": "experts.norm.weight",
    "experts.gate_up_proj": "experts.gate_up",
    "experts.down_proj": "experts.down",
    "post_feedforward_layernorm_2.weight": "experts_after.weight",
    "post_feedforward_layernorm.weight": "output_norm.weight",
}


def weights(arch: GemmaArch) -> WeightMap:
    slots = {EMBEDDING: Slot("embedding.weight"), f"{DECODER}norm.weight": Slot("norm.weight")}
    conditioning = f"{DECODER}self_conditioning."
    slots[f"{conditioning}pre_norm.weight"] = Slot("conditioning.before.weight")
    slots[f"{conditioning}down_proj.weight"] = Slot("conditioning.gated.down.weight")
    slots |= _halves(conditioning, "conditioning.gated.gate_up.weight", arch.width)
    for index, kind in enumerate(arch.layers):
        theirs, ours = f"{DECODER}layers.{index}.", f"layers.{index}."
        slots |= {theirs + name: Slot(ours + param) for name, param in LAYER.items()}
        slots |= _halves(f"{theirs}mlp.", f"{ours}dense.gate_up.weight", arch.width)
        slots[f"{theirs}router.proj.weight"] = Slot(
            f"{ours}experts.router.weight", through=_folded, beside={f"{theirs}router.scale": (arch.hidden,)}
        )
        slots |= _attention(arch, kind, theirs, ours)
        slots[f"{ENCODER}layers.{index}.layer_scalar"] = Slot("scales", (index, slice(0, 1)))
        slots[f"{theirs}layer_scalar"] = Slot("scales", (index, slice(1, 2)))
    return WeightMap(slots, _canonical, lambda name: name.startswith(VISION), copies=True)


def _canonical(name: str) -> str:
    if name == "lm_head.weight":
        return EMBEDDING
    if name.startswith(ENCODER) and not name.endswith(".layer_scalar"):
        return DECODER + name.removeprefix(ENCODER)
    return name


def _attention(arch: GemmaArch, kind: int, theirs: str, ours: str) -> dict[str, Slot]:
    shape = arch.kinds[kind]
    names = ("q", "k") if shape.window is None else ("q", "k", "v")
    slots, first = {}, 0
    for name in names:
        last = first + (arch.heads if name == "q" else shape.kv_heads) * shape.head_dim
        slots[f"{theirs}self_attn.{name}_proj.weight"] = Slot(f"{ours}attention.qkv.weight", (slice(first, last),))
        first = last
    return slots


def _folded(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """What the router's normed rows are multiplied by before its product, multiplied into that instead."""
    return weight.double() * (scale.double() / math.sqrt(weight.shape[-1]))


def _halves(theirs: str, ours: str, width: int) -> dict[str, Slot]:
    return {
        f"{theirs}gate_proj.weight": Slot(ours, (slice(0, width),)),
        f"{theirs}up_proj.weight": Slot(ours, (slice(width, 2 * width),)),
    }
