"""DiffuLLaMA: Llama 2, every row of which sees the whole canvas and scores the position after it.

See docs/models/recipes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.models.base import ModelFamily, ModelInfo, register_family
from runtime.models.decoder import Decoder, DecoderConfig, decoder_info
from runtime.models.decoder_config import llama_like
from runtime.models.weight_names import llama_weights


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    return llama_like(config, "diffullama", block_size=32, max_positions=4096)


def facts(arch: DecoderConfig) -> ModelInfo:
    return replace(decoder_info(arch), shift=True, bos_id=arch.bos_id)


DIFFULLAMA = register_family(
    ModelFamily(
        key="diffullama",
        aliases=(),
        detect=lambda config: False,  # its config.json is that of any Llama
        parse=parse,
        facts=facts,
        make=Decoder,
        weights=llama_weights,
        strategies=("full",),
    )
)
