"""Maps tensor names of LLaDA2 to parameters (docs/models.md#llada2-layers)."""

from __future__ import annotations

from functools import partial

from runtime.models.decoder import DecoderConfig
from runtime.models.weight_map import WeightMap, WeightTarget
from runtime.models.weight_names import TensorNames, decoder_weights

NAMES = TensorNames(embedding="model.word_embeddings")


def weights(arch: DecoderConfig) -> WeightMap:
    return decoder_weights(arch, NAMES, partial(_attention, arch), _canonical)


def _canonical(name: str) -> str:
    return name.replace(".gate.e_score_correction_bias", ".gate.expert_bias")


def _attention(arch: DecoderConfig, theirs: str, ours: str) -> dict[str, WeightTarget]:
    theirs += "attention."
    slots = {
        theirs + "query_key_value.weight": WeightTarget(ours + "qkv_proj.weight"),
        theirs + "query_layernorm.weight": WeightTarget(ours + "q_norm.weight"),
        theirs + "key_layernorm.weight": WeightTarget(ours + "k_norm.weight"),
        theirs + "dense.weight": WeightTarget(ours + "o_proj.weight"),
    }
    if arch.qkv_bias:
        slots[theirs + "query_key_value.bias"] = WeightTarget(ours + "qkv_proj.bias")
    if arch.out_bias:
        slots[theirs + "dense.bias"] = WeightTarget(ours + "o_proj.bias")
    return slots
