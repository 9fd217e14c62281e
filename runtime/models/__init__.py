"""Model families, one file each. Importing this package registers them; add yours with one line here."""

from runtime.models import (
    diffucoder,
    diffullama,
    diffusion_gemma,
    dream,
    dream_reasoner,
    fast_dllm_v2,
    illada,
    llada,
    llada2,
    llada2dot2,
    llada_moe,
    nemotron_diffusion,
    sdar,
    sdar_moe,
    stable_diffcoder,
)
from runtime.models.base import ModelFamily, ModelInfo, families, register_family, resolve_family

__all__ = [
    "ModelFamily",
    "ModelInfo",
    "diffucoder",
    "diffullama",
    "diffusion_gemma",
    "dream",
    "dream_reasoner",
    "families",
    "fast_dllm_v2",
    "illada",
    "llada",
    "llada2",
    "llada2dot2",
    "llada_moe",
    "nemotron_diffusion",
    "register_family",
    "resolve_family",
    "sdar",
    "sdar_moe",
    "stable_diffcoder",
]
