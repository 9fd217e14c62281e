"""Muon for the matrices, AdamW for the rest, and an exponential average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn


def orthogonalize(matrix: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """Applies Newton-Schulz iterations towards the nearest matrix with equal singular values; [..., rows, columns]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrix.dtype)


class Muon(torch.optim.Optimizer):
    """Applies momentum, orthogonalized per matrix. Stacked matrices [n, rows, columns] are a batch of matrices."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            same: dict[tuple[int, ...], list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    same.setdefault(tuple(p.shape), []).append(p)
            for shape, params in same.items():  # equal shapes in one batched GEMM: few, large launches
                gradients, momenta = [], []
                for p in params:
                    state = self.state[p]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(p)
                    gradients.append(p.grad)
                    momenta.append(state["momentum"])
                torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
                updates = torch._foreach_lerp(gradients, momenta, group["momentum"])
                stacked = orthogonalize(torch.stack(updates))
                scale = group["lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5
                torch._foreach_mul_(params, 1 - group["lr"] * group["decay"])
                torch._foreach_add_(params, stacked.unbind(), alpha=-scale)


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Returns the matrices inside the layers, and all other parameters: embedding, head, router, norms."""
    inside, rest = [], []
    for name, p in model.named_parameters():
        matrix = p.dim() >= 2 and not any(part in name for part in ("word_embeddings", "lm_head", "gate.weight"))
        (inside if matrix else rest).append(p)
    return inside, rest


class Average:
    """Exponential moving average of weights and buffers, with a smaller decay at the start."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.count = decay, 0
        self.weights = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.count += 1
        decay = min(self.decay, (1 + self.count) / (10 + self.count))
        own, new = list(self.weights.values()), [model.state_dict()[k] for k in self.weights]
        torch._foreach_lerp_(own, new, 1 - decay)


def cosine(progress: float, warm: float = 0.02, floor: float = 0.01) -> float:
    """Returns the learning rate factor at a fraction of the training: a short linear warmup, then a cosine."""
    if progress < warm:
        return max(progress / warm, 0.02)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warm) / (1 - warm))))
