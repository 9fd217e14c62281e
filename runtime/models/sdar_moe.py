"""The family SDAR-MoE: Qwen3-MoE for block diffusion (docs/models/recipes.md)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from runtime.models.base import register_family
from runtime.models.decoder_config import llama_like, qwen_experts
from runtime.models.sdar import KNOWN, SDAR

SDAR_MOE = register_family(
    replace(
        SDAR,
        key="sdar_moe",
        detect=lambda config: config.get("model_type") == "sdar_moe",
        architectures=("SDARMoeForCausalLM",),
        parse=partial(
            llama_like,
            family="sdar_moe",
            qk_norm=True,
            block_size=4,
            max_positions=32768,
            mixture=qwen_experts,
            known=KNOWN,
        ),
    )
)
