"""Paged block-diffusion attention: what an implementation offers, and the registry of them (``--attn-impl``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from runtime.errors import ConfigError
from runtime.kernels.batch import ForwardBatch
from runtime.layers.build import Build
from runtime.layers.kv_pool import LayerKV


@dataclass(frozen=True)
class AttentionShape:
    """`heads` query heads share `kv_heads` key heads, heads/kv_heads consecutive ones each; scores are scaled by
    `scale`."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


class Attention(Protocol):
    """One implementation, built for one shape, device and dtype. The K/V of the batch's rows are in the pool already.

    What a row sees is the batch's to say (``ForwardBatch``). Softmax and sums run in float32 (float64 for float64).
    """

    def plan(self, batch: ForwardBatch, window: int | None = None) -> Any:
        """What depends on the batch alone, made once a forward and used by every layer."""
        ...

    def attend(self, q: torch.Tensor, kv: LayerKV, plan: Any) -> torch.Tensor:
        """q [rows, heads, head_dim] over one layer's pages -> like q."""
        ...


Factory = Callable[[AttentionShape, Build], Attention]


def _torch(shape: AttentionShape, build: Build) -> Attention:
    from runtime.layers.attention_torch import TorchAttention

    return TorchAttention(shape, build.dtype)


def _triton(shape: AttentionShape, build: Build) -> Attention:
    from runtime.layers.attention_triton import TritonAttention

    name = build.attn_impl
    if build.device.type != "cuda":
        raise ConfigError(f"--attn-impl {name} needs a CUDA device, not {build.device.type}; use --attn-impl torch")
    if build.dtype == torch.float64:
        raise ConfigError(f"--attn-impl {name} does not compute in float64; use --attn-impl torch")
    return TritonAttention(shape, grouped=name == "triton_grouped")


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
