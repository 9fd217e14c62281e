"""Which implementation of attention a model uses (``--attn-impl``): chosen when it is built."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.errors import ConfigError
from runtime.layers.attention import Attention, AttentionShape
from runtime.layers.layer_factory import Build

Factory = Callable[[AttentionShape, Build], Attention]


def _torch(shape: AttentionShape, build: Build) -> Attention:
    from runtime.layers.attention_batch_invariant import RowAttention
    from runtime.layers.attention_torch import TorchAttention

    if build.kernels.batch_invariant:
        return RowAttention(shape)
    return TorchAttention(shape, build.dtype)


def _triton(shape: AttentionShape, build: Build) -> Attention:
    from runtime.layers.attention_triton import TritonAttention

    name = build.attn_impl
    if build.device.type != "cuda":
        raise ConfigError(f"--attn-impl {name} needs a CUDA device, not {build.device.type}; use --attn-impl torch")
    if build.dtype == torch.float64:
        raise ConfigError(f"--attn-impl {name} does not compute in float64; use --attn-impl torch")
    return TritonAttention(shape, grouped=name == "triton_grouped", batch_invariant=build.kernels.batch_invariant)


_IMPLEMENTATIONS: dict[str, Factory] = {
    "triton_grouped": _triton,
    "triton": _triton,
    "torch": _torch,
    "naive": _torch,  # an alias
}


def attention_names() -> list[str]:
    return list(_IMPLEMENTATIONS)


def make_attention(shape: AttentionShape, build: Build) -> Attention:
    """The implementation that `build` names; ConfigError where there is none, or it cannot run there."""
    name = build.attn_impl
    if name not in _IMPLEMENTATIONS:
        raise ConfigError(f"--attn-impl {name!r} is not known; known: {', '.join(_IMPLEMENTATIONS)}")
    return _IMPLEMENTATIONS[name](shape, build)
