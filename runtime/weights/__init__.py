"""Checkpoints: resolving, reading, and loading into a model.

Names resolve on use: a process without torch reads checkpoints' files through ``runtime.weights.checkpoint``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.weights.checkpoint import Checkpoint, resolve_checkpoint
    from runtime.weights.loader import load_model
    from runtime.weights.special_tokens import TokenIds, resolve_token_ids

_HOMES = {
    "Checkpoint": "checkpoint",
    "TokenIds": "special_tokens",
    "load_model": "loader",
    "resolve_token_ids": "special_tokens",
    "resolve_checkpoint": "checkpoint",
}
__all__ = ["Checkpoint", "TokenIds", "load_model", "resolve_checkpoint", "resolve_token_ids"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"runtime.weights.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'runtime.weights' has no attribute {name!r}")
