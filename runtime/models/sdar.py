"""The family SDAR: Qwen3, trained further for block diffusion (docs/models/recipes.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.models.base import ModelFamily, register_family
from runtime.models.decoder import Decoder, DecoderConfig, decoder_info, llama_weights
from runtime.models.decoder_config import llama_like


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    return llama_like(config, "sdar", qk_norm=True, block_size=4, max_positions=32768)


SDAR = register_family(
    ModelFamily(
        key="sdar",
        aliases=(),
        detect=lambda config: config.get("model_type") == "sdar",
        architectures=("SDARForCausalLM",),
        parse=parse,
        facts=decoder_info,
        make=Decoder,
        weights=llama_weights,
        strategies=("multi_bd",),
        turn_end_tokens=("<|im_end|>", "<|endoftext|>"),
        mask_tokens=("<|MASK|>", "<|mask|>"),
        mask_id=151669,
        eos_ids=(151643, 151645),
        reasoning="think",
    )
)
