"""How each kernel is called (its reference's docstring is the contract)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from runtime.kernels import sandwich_norm
from runtime.kernels.activation import Activation
from runtime.kernels.fp8 import Fp8
from runtime.kernels.fused_argmax import Likeliest
from runtime.kernels.fused_moe.moe_sum import Choices
from runtime.kernels.fused_softmax_stats import Asked, Described
from runtime.kernels.group_quantized import Grouped
from runtime.kernels.moe_router import RoutingRule
from runtime.kernels.unmask import After, Blocks, Sampled

Two = tuple[torch.Tensor, torch.Tensor]
LinearKernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]  # as ``F.linear``
TableKernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of rows, and a table [ids, size]


class MeanKernel(Protocol):
    def __call__(
        self, probs: torch.Tensor, table: torch.Tensor, divisor: torch.Tensor | None = None
    ) -> torch.Tensor: ...


class RMSNormKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor: ...


class AddRMSNormKernel(Protocol):
    def __call__(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float) -> Two: ...


class QKVToPagesKernel(Protocol):
    def __call__(
        self, qkv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None, heads: int, kv_heads: int, eps: float, clip: float | None = None, *,
        slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
        apart: int | None = None, v_norm: bool = False, v_from_k: bool = False,
    ) -> torch.Tensor: ...  # fmt: skip


class GateKernel(Protocol):
    def __call__(self, gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor: ...


class GatedProductKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor, activation: Activation = "silu") -> torch.Tensor: ...


class RouterLogitsKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor: ...


class RouteKernel(Protocol):
    def __call__(
        self, logits: torch.Tensor, bias: torch.Tensor | None, rule: RoutingRule, first: torch.Tensor | None = None
    ) -> Two: ...


class MoEKernel(Protocol):
    """`gate_up`, `down`: operands of the format that it is for (``Weight.operand``)."""

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Any, down: Any,
        shared: torch.Tensor | None, activation: Activation = "silu", out: torch.Tensor | None = None,
    ) -> torch.Tensor: ...  # fmt: skip


class ProductAddNormKernel(Protocol):
    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float
    ) -> Two: ...


class MoEAddNormKernel(Protocol):
    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Any, down: Any,
        shared: torch.Tensor | None, residual: torch.Tensor, norm: torch.Tensor | None, eps: float,
    ) -> Two: ...  # fmt: skip


class LikeliestKernel(Protocol):
    def __call__(
        self, hidden: torch.Tensor, weight: torch.Tensor, *, mask_id: int | None, max_token_id: int,
        spared: Sequence[int] = (), live: torch.Tensor | None = None,
    ) -> Likeliest: ...  # fmt: skip


class FillKernel(Protocol):
    def __call__(self, blocks: Blocks, sampled: Sampled, mask_id: int | None, eos_ids: torch.Tensor) -> After: ...


class DrawKernel(Protocol):
    def __call__(
        self, logits: torch.Tensor, limits: torch.Tensor, uniform: torch.Tensor, *, free: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class BeforeKernel(Protocol):
    def __call__(
        self, mixed: torch.Tensor, x: torch.Tensor, after: torch.Tensor, dense: torch.Tensor, experts: torch.Tensor,
        eps: float,
    ) -> sandwich_norm.Fillings: ...  # fmt: skip


class AfterKernel(Protocol):
    def __call__(
        self, dense: torch.Tensor, chosen: torch.Tensor | Choices, x: torch.Tensor, scale: torch.Tensor,
        weights: tuple[torch.Tensor, ...], eps: float,
    ) -> Two: ...  # fmt: skip


class ProductsKernel(Protocol):
    """`moe`, but for the sum of each row's choices."""

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, gate_up: Any, down: Any, activation: Activation
    ) -> torch.Tensor: ...


class Sandwich(NamedTuple):
    """The norms between the parts of a layer that are normed before and after, see ``kernels.sandwich_norm``;
    and what gives them its choices as they are."""

    before: BeforeKernel
    after: AfterKernel
    products: ProductsKernel


class DescribeKernel(Protocol):
    def __call__(self, logits: torch.Tensor, asked: Asked) -> Described: ...


class Fp8LinearKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: Fp8, bias: torch.Tensor | None) -> torch.Tensor: ...


class GroupedLinearKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: Grouped, bias: torch.Tensor | None) -> torch.Tensor: ...
