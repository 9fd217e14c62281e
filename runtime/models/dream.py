"""The family Dream, with Dream-Coder: Qwen2 with full attention and shifted logits.

docs/models/recipes.md describes it. Apple's DiffuCoder has the same config.json and is
detected as this family; `diffucoder` selects it by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.models.base import ModelFamily, ModelInfo, architectures, register_family
from runtime.models.decoder import Decoder, DecoderConfig, decoder_info, llama_weights
from runtime.models.decoder_config import llama_like


def detect(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "Dream" and "DreamModel" in architectures(config)


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    return llama_like(config, "dream", qkv_bias=True, block_size=32, max_positions=131072)


def model_info(config: DecoderConfig) -> ModelInfo:
    """config.json allows 131072 positions, but the authors trained the model on 2048."""
    return replace(decoder_info(config), shift=True, max_model_len=2048)


DREAM = register_family(
    ModelFamily(
        key="dream",
        aliases=(),
        detect=detect,
        architectures=("DreamModel",),
        parse=parse,
        facts=model_info,
        make=Decoder,
        weights=llama_weights,
        strategies=("full", "d2f"),
        turn_end_tokens=("<|im_end|>", "<|endoftext|>", "<|dlm_pad|>"),  # the last: DiffuCoder
        mask_tokens=("<|mask|>",),
        mask_id=151666,
        eos_ids=(151643, 151645),
    )
)
