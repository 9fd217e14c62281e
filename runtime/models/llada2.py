"""The family LLaDA2: a block-diffusion mixture of experts (docs/models/architecture-notes.md#llada2-layers)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.models.base import ModelFamily, register_family
from runtime.models.decoder import Decoder, decoder_info
from runtime.models.llada2_config import parse
from runtime.models.llada2_weights import weights


def detect(config: Mapping[str, Any]) -> bool:
    """Detects LLaDA2.0 and 2.1. LLaDA2.2 has the same model_type and an expert pool; it is another family."""
    return config.get("model_type") == "llada2_moe" and config.get("expert_capacity") is None


LLADA2 = register_family(
    ModelFamily(
        key="llada2",
        aliases=("llada2_mini", "llada2_moe", "llada2_flash", "llada2dot1_mini"),
        detect=detect,
        parse=parse,
        facts=decoder_info,
        make=Decoder,
        weights=weights,
        strategies=("multi_bd", "dmax"),
        sampling_modes=("naive", "edit"),
        accept_threshold=0.95,
        turn_end_tokens=("<|role_end|>",),
        mask_tokens=("<|mask|>",),
        mask_id=156895,
        eos_ids=(156892,),
        reasoning="think",
        needs_edit=frozenset({"llada2dot1_mini"}),
    )
)
