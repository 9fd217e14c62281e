"""Maps tensor names of LLaDA2 to parameters (docs/models.md#llada2-layers)."""

from __future__ import annotations

from functools import partial

from runtime.models.decoder import DecoderArch
from runtime.models.weight_map import Slot, WeightMap
from runtime.models.weight_names import Names, decoder_weights

NAMES = Names(embedding="model.word_embeddings")


def weights(arch: DecoderArch) -> WeightMap:
    return decoder_weights(arch, NAMES, partial(_attention, arch), _canonical)


def _canonical(name: str) -> str:
    return name.replace(".gate.e_score_correction_bias", ".gate.expert_bias")


def _attention(arch: DecoderArch, theirs: str, ours: str) -> dict[str, Slot]:
    theirs += "attention."
    slots = {
        theirs + "query_key_value.weight": Slot(ours + "qkv.weight"),
        theirs + "query_layernorm.weight": Slot(ours + "q_norm.weight"),
        theirs + "key_layernorm.weight": Slot(ours + "k_norm.weight"),
        theirs + "dense.weight": Slot(ours + "out.weight"),
    }
    if arch.qkv_bias:
        slots[theirs + "query_key_value.bias"] = Slot(ours + "qkv.bias")
    if arch.out_bias:
        slots[theirs + "dense.bias"] = Slot(ours + "out.bias")
    return slots
