"""The family DiffusionGemma (docs/models/recipes.md#diffusiongemma)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.errors import ConfigError
from runtime.models.base import ModelFamily, ModelInfo, register_family
from runtime.models.config_reader import ConfigReader
from runtime.models.diffusion_gemma_config import DiffusionGemmaConfig, parse
from runtime.models.diffusion_gemma_model import DiffusionGemma
from runtime.models.diffusion_gemma_weights import weights
from runtime.request.field_spec import Value


def generation(config: Mapping[str, Any]) -> dict[str, Value]:
    """The published generation's settings, by the names of our fields."""
    fields = ConfigReader(config, "generation_config.json")
    found: dict[str, Value] = {}
    for name in ("t_min", "t_max", "confidence_threshold"):
        if fields.has(name):
            found[name] = fields.number(name)
    for name, low in (("max_denoising_steps", 1), ("stability_threshold", 0)):
        if fields.has(name):
            found[name] = fields.integer(name, low=low)
    sampler = config.get("sampler_config") or {}
    if not isinstance(sampler, Mapping):
        raise ConfigError(f"generation_config.json: sampler_config must be an object, not {sampler!r}")
    inner = ConfigReader(sampler, "generation_config.json's sampler_config")
    inner.reject_unsupported({"_cls_name": ("EntropyBoundSamplerConfig",)})
    if inner.has("entropy_bound"):
        found["entropy_bound"] = inner.number("entropy_bound")
    return found


def model_info(config: DiffusionGemmaConfig) -> ModelInfo:
    return ModelInfo(
        vocab_size=config.vocab_size,
        max_positions=config.max_positions,
        block_size=config.canvas,
        mask_id=None,
        eos_ids=config.eos_ids,
        bos_id=config.bos_id,
    )


DIFFUSION_GEMMA = register_family(
    ModelFamily(
        key="diffusion_gemma",
        aliases=(),
        detect=lambda config: config.get("model_type") == "diffusion_gemma",
        architectures=("DiffusionGemmaForBlockDiffusion",),
        parse=parse,
        facts=model_info,
        make=DiffusionGemma,
        weights=weights,
        strategies=("diffusion_gemma",),
        masks=False,
        generation=generation,
        tool_calls="gemma4",
        reasoning="gemma4",
    )
)
