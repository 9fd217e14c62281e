"""Selects the attention implementation of a model (``--attn-impl``)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.errors import ConfigError
from runtime.layers.attention import Attention, AttentionShape
from runtime.layers.layer_factory import LayerFactory

MakeAttention = Callable[[AttentionShape, LayerFactory], Attention]


def _torch(shape: AttentionShape, factory: LayerFactory) -> Attention:
    from runtime.layers.attention_batch_invariant import BatchInvariantAttention
    from runtime.layers.attention_torch import TorchAttention

    if factory.kernels.batch_invariant:
        return BatchInvariantAttention(shape)
    return TorchAttention(shape, factory.dtype)


def _triton(shape: AttentionShape, factory: LayerFactory) -> Attention:
    from runtime.layers.attention_triton import TritonAttention

    name = factory.attn_impl
    if factory.device.type != "cuda":
        raise ConfigError(f"--attn-impl {name} needs a CUDA device, not {factory.device.type}; use --attn-impl torch")
    if factory.dtype == torch.float64:
        raise ConfigError(f"--attn-impl {name} does not compute in float64; use --attn-impl torch")
    return TritonAttention(shape, grouped=name == "triton_grouped", batch_invariant=factory.kernels.batch_invariant)


_IMPLEMENTATIONS: dict[str, MakeAttention] = {
    "triton_grouped": _triton,
    "triton": _triton,
    "torch": _torch,
    "naive": _torch,  # an alias
}


def attention_names() -> list[str]:
    return list(_IMPLEMENTATIONS)


def make_attention(shape: AttentionShape, factory: LayerFactory) -> Attention:
    """Returns the implementation that the factory names.

    Raises:
        ConfigError: unknown implementation, or one that the device or dtype does not support.
    """
    name = factory.attn_impl
    if name not in _IMPLEMENTATIONS:
        raise ConfigError(f"--attn-impl {name!r} is not known; known: {', '.join(_IMPLEMENTATIONS)}")
    return _IMPLEMENTATIONS[name](shape, factory)
