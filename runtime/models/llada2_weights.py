"""LLaDA2's tensor names (models.md 1) and the parameters they fill."""

from __future__ import annotations

from runtime.models.decoder import DecoderArch
from runtime.models.names import feed_forward, is_derived
from runtime.weights.loader import Slot, WeightMap


def weights(arch: DecoderArch) -> WeightMap:
    slots = {"model.word_embeddings.weight": Slot("embedding.weight"), "model.norm.weight": Slot("norm.weight")}
    if not arch.tied:
        slots["lm_head.weight"] = Slot("lm_head")
    for index in range(arch.layers):
        slots |= _layer(arch, index)
    return WeightMap(slots, rename=_canonical, skip=lambda name: is_derived(arch, name))


def _canonical(name: str) -> str:
    return name.replace(".gate.e_score_correction_bias", ".gate.expert_bias")


def _layer(arch: DecoderArch, index: int) -> dict[str, Slot]:
    theirs, ours = f"model.layers.{index}.", f"layers.{index}."
    slots = {
        theirs + "input_layernorm.weight": Slot(ours + "input_norm.weight"),
        theirs + "post_attention_layernorm.weight": Slot(ours + "post_norm.weight"),
        theirs + "attention.query_key_value.weight": Slot(ours + "attention.qkv.weight"),
        theirs + "attention.query_layernorm.weight": Slot(ours + "attention.q_norm.weight"),
        theirs + "attention.key_layernorm.weight": Slot(ours + "attention.k_norm.weight"),
        theirs + "attention.dense.weight": Slot(ours + "attention.out.weight"),
    }
    if arch.qkv_bias:
        slots[theirs + "attention.query_key_value.bias"] = Slot(ours + "attention.qkv.bias")
    if arch.out_bias:
        slots[theirs + "attention.dense.bias"] = Slot(ours + "attention.out.bias")
    return slots | feed_forward(arch, index, theirs + "mlp.", ours + "mlp.")
