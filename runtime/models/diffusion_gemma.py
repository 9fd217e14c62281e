"""DiffusionGemma: a canvas of noise denoised with experts, sliding windows and self-conditioning (models.md 2)."""

from __future__ import annotations

from runtime.models.base import Facts, Family, register_family
from runtime.models.diffusion_gemma_config import GemmaArch, parse
from runtime.models.diffusion_gemma_model import DiffusionGemma
from runtime.models.diffusion_gemma_weights import weights


def facts(arch: GemmaArch) -> Facts:
    return Facts(
        vocab_size=arch.vocab_size,
        max_positions=arch.max_positions,
        block_size=arch.canvas,
        mask_id=None,
        eos_ids=arch.eos_ids,
        bos_id=arch.bos_id,
    )


DIFFUSION_GEMMA = register_family(
    Family(
        key="diffusion_gemma",
        aliases=(),
        detect=lambda config: config.get("model_type") == "diffusion_gemma",
        architectures=("DiffusionGemmaForBlockDiffusion",),
        parse=parse,
        facts=facts,
        make=DiffusionGemma,
        weights=weights,
        strategies=("diffusion_gemma",),
    )
)
