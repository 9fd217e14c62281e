"""RMSNorm layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from runtime.distributed.process_group import ReduceRows, TensorParallelGroup
from runtime.layers.layer_factory import ForwardCall, LayerFactory
from runtime.layers.parameter import tensor_of


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
        total = torch.empty_like(residual)
        normed = group.reduce_own_rows(x, self._reduce(residual, total))
        if normed is not None:
            return normed, total
        total = group.all_reduce(add_own_rows(x, residual, group))
        return self(total), total

    def add_reduced_parts(
        self, partial: Callable[[slice, torch.Tensor], torch.Tensor], out: torch.Tensor, residual: torch.Tensor,
        group: TensorParallelGroup,
    ) -> tuple[list[Callable[[], None]], torch.Tensor]:  # fmt: skip
        """`add_reduced` part by part. The reduction of a part overlaps with the computation of the next one.

        Args:
            partial: computes the partial results of a part, in the rows of `out` that it gets if possible.
            out: [rows, size] of `TensorParallelGroup.take_buffer`, receives the normed rows.

        Returns:
            A function per part that lets later work wait for its rows of `out`, and the sum.
        """
        total = torch.empty_like(residual)
        reduce, waits = self._reduce(residual, total), []
        for part in group.row_parts(len(out)):
            result = partial(part, out[part])
            if result.data_ptr() != out[part].data_ptr():
                out[part] = result
            waits.append(group.start_reduce(out, part, reduce))
        return waits, total

    def _reduce(self, residual: torch.Tensor, total: torch.Tensor) -> ReduceRows:
        kernel, weight = self.kernels.reduce_add_norm, tensor_of(self.weight)
        assert kernel is not None
        return lambda ranks, rows: kernel(ranks, rows, residual, weight, self.eps, total)


def add_own_rows(x: torch.Tensor, residual: torch.Tensor, group: TensorParallelGroup) -> torch.Tensor:
    """Adds this rank's own rows of `residual` to `x` in place. The sum of `x` of all ranks then has all of them."""
    for part in group.row_parts(len(x)):
        rows = group.own_rows(part)
        x[rows] += residual[rows]
    return x
