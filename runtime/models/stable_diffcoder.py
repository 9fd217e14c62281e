"""The family Stable-DiffCoder: Llama with blocks of 4 (docs/models/recipes.md).

The mask is id 5, which the files of a checkpoint may omit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.models.base import ModelFamily, architectures, register_family
from runtime.models.decoder import Decoder, DecoderConfig, decoder_info, llama_weights
from runtime.models.decoder_config import llama_like


def detect(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "llama" and "StableDiffcoderForCausalLM" in architectures(config)


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    return llama_like(config, "stable_diffcoder", block_size=4, max_positions=8192)


STABLE_DIFFCODER = register_family(
    ModelFamily(
        key="stable_diffcoder",
        aliases=(),
        detect=detect,
        architectures=("StableDiffcoderForCausalLM",),
        parse=parse,
        facts=decoder_info,
        make=Decoder,
        weights=llama_weights,
        strategies=("multi_bd",),
        mask_id=5,
    )
)
