"""The family DiffuLLaMA: Llama 2, full attention, shifted logits (docs/models/recipes.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.models.base import ModelFamily, ModelInfo, register_family
from runtime.models.decoder import Decoder, DecoderConfig, decoder_info, llama_weights
from runtime.models.decoder_config import llama_like


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    return llama_like(config, "diffullama", block_size=32, max_positions=4096)


def model_info(config: DecoderConfig) -> ModelInfo:
    return replace(decoder_info(config), shift=True, bos_id=config.bos_id)


DIFFULLAMA = register_family(
    ModelFamily(
        key="diffullama",
        aliases=(),
        detect=lambda config: False,  # config.json is the same as for any Llama
        parse=parse,
        facts=model_info,
        make=Decoder,
        weights=llama_weights,
        strategies=("full",),
    )
)
