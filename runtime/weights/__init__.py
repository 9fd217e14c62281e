"""Checkpoints: where they are, what they hold, and how their tensors get into a model."""

from __future__ import annotations

from typing import Any

import torch

from runtime.models.base import Family, Model
from runtime.weights.checkpoint import Checkpoint, resolve_checkpoint
from runtime.weights.loader import Progress, fill
from runtime.weights.tokens import TokenIds, read_tokens

__all__ = ["Checkpoint", "TokenIds", "load_model", "read_tokens", "resolve_checkpoint"]


def load_model(
    checkpoint: Checkpoint,
    family: Family,
    arch: Any,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    attn_impl: str,
    progress: Progress | None = None,
) -> Model:
    """Build the family's model for `arch` (what ``family.parse(checkpoint.config)`` returned) and fill it.

    `progress(phase, bytes_done, bytes_total)` is called after each tensor. Raises ConfigError as `loader.fill` does.
    """
    model = family.build(arch, device=torch.device(device), dtype=dtype, attn_impl=attn_impl)
    fill(model, checkpoint, family.weights(arch), progress)
    return model
