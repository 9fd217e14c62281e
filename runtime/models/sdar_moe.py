"""The family SDAR-MoE: Qwen3-MoE for block diffusion (docs/models/recipes.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.models.base import register_family
from runtime.models.decoder import DecoderConfig
from runtime.models.decoder_config import EXPERTS_READ, llama_like, qwen_experts
from runtime.models.sdar import SDAR


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    return llama_like(
        config, "sdar_moe", qk_norm=True, block_size=4, max_positions=32768, mixture=qwen_experts,
        known=EXPERTS_READ,
    )  # fmt: skip


SDAR_MOE = register_family(
    replace(
        SDAR,
        key="sdar_moe",
        detect=lambda config: config.get("model_type") == "sdar_moe",
        architectures=("SDARMoeForCausalLM",),
        parse=parse,
    )
)
