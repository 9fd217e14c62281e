"""Linear layers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from runtime.distributed.process_group import TensorParallelGroup
from runtime.layers.layer_factory import ForwardCall, LayerFactory
from runtime.layers.norm import RMSNorm, add_own_rows
from runtime.parameters.sharding import Shard
from runtime.parameters.weight import UnquantizedWeight, Weight, tensor_of


class Linear(nn.Module):
    """x W^T (+ b), with x [rows, inputs] and W [outputs, inputs], uninitialized.

    Args:
        weight: an existing weight; None creates one, with LoRA if enabled.
        outputs_shard, inputs_shard: the shard of W (dim -2 or -1) that this rank stores. With sharded outputs (column
            parallel) it returns the local outputs. With sharded inputs (row parallel) it takes the local inputs, and
            ranks sum their partial results with all-reduce.
        partial: leave the all-reduce to the caller.
    """

    __call__: ForwardCall[[torch.Tensor], torch.Tensor]

    def __init__(
        self, factory: LayerFactory, inputs: int, outputs: int, *, bias: bool, weight: Weight | None = None,
        outputs_shard: Shard | None = None, inputs_shard: Shard | None = None, partial: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        weight_shard = outputs_shard or inputs_shard
        self.weight = (
            factory.with_lora(factory.weight(outputs, inputs, shard=weight_shard)) if weight is None else weight
        )
        bias_shard = None if outputs_shard is None else replace(outputs_shard, dim=-1)
        self.bias = factory.parameter(outputs, shard=bias_shard) if bias else None
        self.group = None if inputs_shard is None or partial else factory.group
        self.shards_residual = self.group is not None and factory.shards_residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.tensor
        if self.group is None:
            return self.weight.matmul(x, bias)
        out = self.group.all_reduce_out(self._partial(x, self.group))
        return out if bias is None else out.add_(bias)

    def _partial(self, x: torch.Tensor, group: TensorParallelGroup) -> torch.Tensor:
        """Returns the partial results of this rank, without bias."""
        return self.weight.matmul_out(x, group.output_buffer((len(x), self.weight.shape[-2]), x.dtype))

    def _biased_partial(self, x: torch.Tensor, group: TensorParallelGroup) -> torch.Tensor:
        """Returns the partial results of this rank; those of rank 0 have the bias."""
        out = self._partial(x, group)
        return out if self.bias is None or group.rank else out.add_(self.bias.tensor)

    def forward_add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Returns ``residual + self(x)``; all rows are valid, also if ranks shard the residual stream."""
        if self.group is None or not self.shards_residual:
            return residual + self(x)
        partial = add_own_rows(self._biased_partial(x, self.group), residual, self.group)
        return self.group.all_reduce_out(partial).clone()  # the caller keeps it

    def forward_add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, norm: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ``norm.add(self(x), residual)``, fused if possible."""
        if self.group is not None and self.shards_residual:
            return norm.add_reduced(self._biased_partial(x, self.group), residual, self.group)
        fused, weight = norm.kernels.gemm_add_norm, self.weight.active
        if fused is not None and isinstance(weight, UnquantizedWeight) and self.bias is None and self.group is None:
            return fused(x, weight.tensor, residual, tensor_of(norm.weight), norm.eps)
        return norm.add(self(x), residual)


def attention_shards(
    factory: LayerFactory, heads: int, kv_heads: int, head_dim: int, *, values: bool = True
) -> tuple[int, int, Shard | None, Shard | None]:
    """Returns the local number of query and KV heads, and the shards of the QKV projection and of the output
    projection.

    `values`: the QKV projection includes V.
    """
    local = factory.local_heads(heads, kv_heads, head_dim)
    if factory.group.is_single:
        return heads, kv_heads, None, None
    ranges = local.qkv_ranges(heads, kv_heads, values=values)
    rows = Shard(-2, (heads + (2 if values else 1) * kv_heads) * head_dim, ranges)
    return *local.counts, rows, Shard(-1, heads * head_dim, ranges[:1])
