"""The family LLaDA2.2: LLaDA2 with an expert pool per block (docs/models/architecture-notes.md#llada22-expert-pool).

Its answers are edited by docs/research/decoding-rules.md#insert-and-delete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.models.base import ModelInfo, register_family
from runtime.models.decoder import DecoderConfig
from runtime.models.llada2 import LLADA2, MODEL_TYPES, parse_pooled


def detect(config: Mapping[str, Any]) -> bool:
    """Detects LLaDA2.2 by its expert pool; its model type is LLaDA2's."""
    return config.get("model_type") in MODEL_TYPES and config.get("expert_capacity") is not None


def model_info(config: DecoderConfig) -> ModelInfo:
    """Returns the model info. Decoding blocks are multiples of the config's block, which is the routing block."""
    return replace(config, block_multiple=config.block_size)


LLADA2DOT2 = register_family(
    replace(
        LLADA2,
        key="llada2dot2",
        aliases=(),
        detect=detect,
        parse=parse_pooled,
        facts=model_info,
        strategies=("multi_bd",),
        sampling_modes=("edit",),
        eos_ids=(156892, 156900),
        needs_edit=frozenset(),
    )
)
