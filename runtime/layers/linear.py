"""Matrix products."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from runtime.layers.layer_factory import Build, Calls
from runtime.layers.norm import RMSNorm
from runtime.layers.parameter import PlainWeight, Weight, tensor_of
from runtime.layers.sharding import Share


class Linear(nn.Module):
    """x W^T (+ b), with x [rows, inputs] and W [outputs, inputs], unfilled: `weight`, or one of its own that adapters
    may change.

    `outputs_share`, `inputs_share`: of W (dim -2, -1), where this process keeps one. With a share of the outputs it
    gives these outputs alone; with a share of the inputs it is given these, and all processes' results are added up,
    unless `partial`: whoever asks for that does it.
    """

    __call__: Calls[[torch.Tensor], torch.Tensor]

    def __init__(
        self, build: Build, inputs: int, outputs: int, *, bias: bool, weight: Weight | None = None,
        outputs_share: Share | None = None, inputs_share: Share | None = None, partial: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        own = outputs_share or inputs_share
        self.weight = build.adapted(build.weight(outputs, inputs, share=own)) if weight is None else weight
        of_bias = None if outputs_share is None else replace(outputs_share, dim=-1)
        self.bias = build.parameter(outputs, share=of_bias) if bias else None
        self.group = None if inputs_share is None or partial else build.group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.tensor
        if self.group is None:
            return self.weight.matmul(x, bias)
        room = self.group.output_buffer((len(x), self.weight.shape[-2]), x.dtype)
        out = self.group.all_reduce_out(self.weight.into(x, room))
        return out if bias is None else out.add_(bias)

    def add_normed(self, x: torch.Tensor, residual: torch.Tensor, norm: RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
        """What `norm.add` makes of what this gives, and `residual`."""
        fused, weight = norm.kernels.product_add_norm, self.weight.current
        if fused is None or self.group is not None or self.bias is not None or not isinstance(weight, PlainWeight):
            return norm.add(self(x), residual)
        return fused(x, weight.tensor, residual, tensor_of(norm.weight), norm.eps)


def attention_shares(
    build: Build, heads: int, kv_heads: int, head_dim: int, *, values: bool = True
) -> tuple[int, int, Share | None, Share | None]:
    """How many query and key heads are here, and the shares that they are of the product before attention, of queries,
    keys and (`values`) values, and of the product behind it."""
    here = build.heads(heads, kv_heads, head_dim)
    if build.group.is_single:
        return heads, kv_heads, None, None
    runs = here.runs(heads, kv_heads, values=values)
    rows = Share(-2, (heads + (2 if values else 1) * kv_heads) * head_dim, runs)
    return *here.counts, rows, Share(-1, heads * head_dim, runs[:1])
