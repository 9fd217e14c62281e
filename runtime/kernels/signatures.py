"""Signatures of the kernels; the docstring of each reference implementation is the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from runtime.kernels import sandwich_norm
from runtime.kernels.activation import Activation
from runtime.kernels.fp8 import Fp8
from runtime.kernels.fused_argmax import ArgmaxOutput
from runtime.kernels.fused_moe.moe_sum import TopKOutputs
from runtime.kernels.fused_softmax_stats import SoftmaxStats, StatsRequest
from runtime.kernels.group_quantized import GroupQuantized
from runtime.kernels.moe_router import RoutingConfig
from runtime.kernels.unmask import BlockInputs, SampledRows, UnmaskOutput

TensorPair = tuple[torch.Tensor, torch.Tensor]
LinearKernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor
]  # the signature of ``F.linear``
TableKernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # rows [n, size], table [ids, size] -> [n, ids]


class SoftEmbeddingKernel(Protocol):
    def __call__(
        self, probs: torch.Tensor, table: torch.Tensor, divisor: torch.Tensor | None = None
    ) -> torch.Tensor: ...


class RMSNormKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor: ...


class AddRMSNormKernel(Protocol):
    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
    ) -> TensorPair: ...


class QKNormRopeAndCacheKernel(Protocol):
    def __call__(
        self, qkv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None, heads: int, kv_heads: int, eps: float, clip: float | None = None, *,
        slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
        pair_stride: int | None = None, v_norm: bool = False, v_from_k: bool = False,
    ) -> torch.Tensor: ...  # fmt: skip


class ActAndMulKernel(Protocol):
    def __call__(self, gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor: ...


class FusedGateUpKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor, activation: Activation = "silu") -> torch.Tensor: ...


class RouterLogitsKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor: ...


class SelectExpertsKernel(Protocol):
    def __call__(
        self, logits: torch.Tensor, bias: torch.Tensor | None, config: RoutingConfig, first: torch.Tensor | None = None
    ) -> TensorPair: ...


class MoEKernel(Protocol):
    """`gate_up` and `down` are kernel arguments of the quantization format (``Weight.operand``)."""

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Any, down: Any,
        shared: torch.Tensor | None, activation: Activation = "silu", out: torch.Tensor | None = None,
    ) -> torch.Tensor: ...  # fmt: skip


class GemmAddNormKernel(Protocol):
    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float
    ) -> TensorPair: ...


class MoEAddNormKernel(Protocol):
    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Any, down: Any,
        shared: torch.Tensor | None, residual: torch.Tensor, norm: torch.Tensor | None, eps: float,
    ) -> TensorPair: ...  # fmt: skip


class LMHeadArgmaxKernel(Protocol):
    def __call__(
        self, hidden: torch.Tensor, weight: torch.Tensor, *, mask_id: int | None, max_token_id: int,
        allowed_ids: Sequence[int] = (), num_valid: torch.Tensor | None = None,
    ) -> ArgmaxOutput: ...  # fmt: skip


class UnmaskKernel(Protocol):
    def __call__(
        self, blocks: BlockInputs, sampled: SampledRows, mask_id: int | None, eos_ids: torch.Tensor
    ) -> UnmaskOutput: ...


class TopKTopPSampleKernel(Protocol):
    def __call__(
        self, logits: torch.Tensor, limits: torch.Tensor, uniform: torch.Tensor, *, free: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class PreMlpNormsKernel(Protocol):
    def __call__(
        self, mixed: torch.Tensor, x: torch.Tensor, post_attention: torch.Tensor, dense: torch.Tensor,
        experts: torch.Tensor, eps: float,
    ) -> sandwich_norm.NormOutputs: ...  # fmt: skip


class PostMlpNormsKernel(Protocol):
    def __call__(
        self, dense: torch.Tensor, chosen: torch.Tensor | TopKOutputs, x: torch.Tensor, scale: torch.Tensor,
        weights: tuple[torch.Tensor, ...], eps: float,
    ) -> TensorPair: ...  # fmt: skip


class FusedExpertsKernel(Protocol):
    """`MoEKernel` without the sum over the experts of a row."""

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, gate_up: Any, down: Any, activation: Activation
    ) -> torch.Tensor: ...


class SandwichNormOps(NamedTuple):
    """Fused norms of sandwich-norm layers (``kernels.sandwich_norm``), and experts that leave their sum to them."""

    pre_mlp_norms: PreMlpNormsKernel
    post_mlp_norms: PostMlpNormsKernel
    fused_experts: FusedExpertsKernel


class SoftmaxStatsKernel(Protocol):
    def __call__(self, logits: torch.Tensor, request: StatsRequest) -> SoftmaxStats: ...


class Fp8LinearKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: Fp8, bias: torch.Tensor | None) -> torch.Tensor: ...


class GroupQuantizedLinearKernel(Protocol):
    def __call__(self, x: torch.Tensor, weight: GroupQuantized, bias: torch.Tensor | None) -> torch.Tensor: ...
