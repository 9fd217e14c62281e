"""Maps tensor names of LLaDA2 to parameters (docs/models/architecture-notes.md#llada2-layers)."""

from __future__ import annotations

from functools import partial

from runtime.models.decoder import DecoderConfig
from runtime.models.weight_map import WeightMap, WeightTarget
from runtime.models.weight_names import TensorNames, decoder_weights

NAMES = TensorNames(embedding="model.word_embeddings")


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
