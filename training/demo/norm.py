"""RMS norm for training: fused on GPUs, few passes over memory on CPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class FewPassNorm(torch.autograd.Function):
    """RMS norm of the last dimension for CPUs, with as few passes over memory as eager torch allows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [tokens, ..., size]; weight [..., size], without the tokens' axis."""
        size = x.shape[-1]
        scale = (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_() / size + eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        weighted = grad * x
        dot = (weighted * weight).sum(-1, keepdim=True)
        weight_grad = weighted.mul_(scale).sum(0)
        inner = (grad * weight).mul_(scale)
        return inner.addcmul_(x, scale.pow(3) * dot, value=-1 / x.shape[-1]), weight_grad, None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Returns the RMS norm of the last dimension of x [tokens, ..., size]; weight [..., size]."""
    if x.is_cuda:
        return F.rms_norm(x, x.shape[-1:], None, eps) * weight.to(x.dtype)
    return FewPassNorm.apply(x, weight, eps)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.flatten(0, -2), self.weight, self.eps).view_as(x)
