"""The family LLaDA2.2: LLaDA2 with an expert pool per block (docs/models/architecture-notes.md#llada22-expert-pool).

Its answers are edited by docs/research/decoding-rules.md#insert-and-delete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.models.base import ModelInfo, register_family
from runtime.models.decoder import DecoderConfig, decoder_info
from runtime.models.llada2 import LLADA2
from runtime.models.llada2_config import parse_pooled


def detect(config: Mapping[str, Any]) -> bool:
    """The model type is LLaDA2's; the pool tells it."""
    return config.get("model_type") == "llada2_moe" and config.get("expert_capacity") is not None


def facts(arch: DecoderConfig) -> ModelInfo:
    """The config's blocks are those of the routing: a decoded block is one, or several."""
    return replace(decoder_info(arch), block_multiple=arch.block_size, delete_id=arch.delete_id, split_id=arch.split_id)


LLADA2DOT2 = register_family(
    replace(
        LLADA2,
        key="llada2dot2",
        aliases=(),
        detect=detect,
        parse=parse_pooled,
        facts=facts,
        strategies=("multi_bd",),
        sampling_modes=("edit",),
        accept_threshold=0.5,
        eos_ids=(156892, 156900),
        needs_edit=frozenset(),
    )
)
