"""RMSNorm layer."""

from __future__ import annotations

import torch
from torch import nn

from runtime.distributed.process_group import TensorParallelGroup
from runtime.layers.layer_factory import ForwardCall, LayerFactory
from runtime.parameters.weight import tensor_of


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension of [rows, size], uninitialized; without weights unless `weighted`."""

    __call__: ForwardCall[[torch.Tensor], torch.Tensor]

    def __init__(self, factory: LayerFactory, size: int, eps: float, *, weighted: bool = True) -> None:
        super().__init__()
        self.weight = factory.parameter(size) if weighted else None
        self.eps = eps
        self.kernels = factory.kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x, tensor_of(self.weight), self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (norm(x + residual), x + residual)."""
        return self.kernels.add_rms_norm(x, residual, tensor_of(self.weight), self.eps)

    def add_reduced(
        self, x: torch.Tensor, residual: torch.Tensor, group: TensorParallelGroup
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns `add` of the sum of all ranks' partial results `x`. See `LayerFactory.shards_residual`.

        A reduce-scatter, the norm of a rank's own rows, and an all-gather. Only these rows of `residual` are read, and
        of the returned sum only these are valid.
        """
        kernel, weight = self.kernels.reduce_add_norm, tensor_of(self.weight)
        assert kernel is not None
        total = torch.empty_like(residual)
        normed = group.reduce_own_rows(x, lambda ranks, rows: kernel(ranks, rows, residual, weight, self.eps, total))
        if normed is not None:
            return normed, total
        total = group.all_reduce(add_own_rows(x, residual, group))
        return self(total), total


def add_own_rows(x: torch.Tensor, residual: torch.Tensor, group: TensorParallelGroup) -> torch.Tensor:
    """Adds this rank's own rows of `residual` to `x` in place. The sum of `x` of all ranks then has all of them."""
    rows = group.own_rows(len(x))
    x[rows] += residual[rows]
    return x
