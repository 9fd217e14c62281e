"""The family Fast-dLLM v2: Qwen2.5 with blocks of 32 and shifted logits (docs/models/recipes.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.models.base import ModelFamily, ModelInfo, register_family
from runtime.models.decoder import Decoder, DecoderConfig, decoder_info, llama_weights
from runtime.models.decoder_config import llama_like

KNOWN = frozenset({"conplemenrary_mask"})  # a training field, misspelled by its authors


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    return llama_like(
        config, "fast_dllm_v2", qkv_bias=True, block_size=32, block_field="bd_size", max_positions=32768, known=KNOWN
    )


def model_info(config: DecoderConfig) -> ModelInfo:
    return replace(decoder_info(config), shift=True)


FAST_DLLM_V2 = register_family(
    ModelFamily(
        key="fast_dllm_v2",
        aliases=(),
        detect=lambda config: config.get("model_type") == "Fast_dLLM_Qwen",
        architectures=("Fast_dLLM_QwenForCausalLM",),
        parse=parse,
        facts=model_info,
        make=Decoder,
        weights=llama_weights,
        strategies=("fast_dllm_v2",),
        turn_end_tokens=("<|im_end|>",),
        mask_tokens=("|<MASK>|",),
        mask_id=151665,
        eos_ids=(151645,),
    )
)
