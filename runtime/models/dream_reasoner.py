"""The family DreamReasoner: Qwen3 with blocks of 32 (docs/models/recipes.md).

It has Dream's model type, but block-causal attention and no shifted logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.models.base import ModelFamily, architectures, register_family
from runtime.models.decoder import Decoder, DecoderConfig, decoder_info, llama_weights
from runtime.models.decoder_config import llama_like


def detect(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "Dream" and "DreamForCausalLM" in architectures(config)


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    return llama_like(config, "dream_reasoner", qk_norm=True, block_size=32, max_positions=32768)


DREAM_REASONER = register_family(
    ModelFamily(
        key="dream_reasoner",
        aliases=(),
        detect=detect,
        architectures=("DreamForCausalLM",),
        parse=parse,
        facts=decoder_info,
        make=Decoder,
        weights=llama_weights,
        strategies=("multi_bd",),
        turn_end_tokens=("<|im_end|>", "<|endoftext|>"),
        mask_tokens=("<|mask|>", "<|MASK|>"),
        mask_id=151669,
        reasoning="think",
    )
)
