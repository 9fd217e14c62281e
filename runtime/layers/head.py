"""The head's product, whose result is never rounded below float32, and what can be asked of it without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from runtime.kernels.greedy_head import likeliest_reference
from runtime.kernels.precision import wide

if TYPE_CHECKING:
    from runtime.kernels.dispatch import Kernels
    from runtime.layers.weight import Weight

HEAD_CHUNK = 8192  # vocabulary rows widened at a time where the device cannot accumulate wide by itself


def head_logits(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[n, hidden] times [vocab, hidden]^T -> [n, vocab], float32 from the accumulator on (decoding.md 1); float64 for
    float64."""
    up = wide(hidden.dtype)
    if hidden.dtype == up:
        return F.linear(hidden, weight)
    if hidden.is_cuda:
        return torch.mm(hidden, weight.t(), out_dtype=up)
    hidden = hidden.to(up)
    return torch.cat([F.linear(hidden, part.to(up)) for part in torch.split(weight, HEAD_CHUNK)], dim=-1)


class CappedHead:
    """A head whose logits are kept within `cap` by a tanh; those of its product alone are `raw`."""

    def __init__(self, weight: Weight, kernels: Kernels, cap: float) -> None:
        self.weight = weight
        self.kernels = kernels
        self.cap = cap

    def raw(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, vocab], see `head_logits`."""
        return self.weight.logits(hidden)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.raw(hidden).div_(self.cap).tanh_().mul_(self.cap)


class PlainHead:
    """A head that is one product with `weight` and no more: it gives logits, and the likeliest tokens, `direct` without
    them."""

    def __init__(self, weight: Weight, kernels: Kernels) -> None:
        self.weight = weight
        self.kernels = kernels
        self.direct = kernels.likeliest is not likeliest_reference

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, vocab], see `head_logits`."""
        return self.weight.logits(hidden)

    def likeliest(
        self, hidden: torch.Tensor, *, mask_id: int | None, max_token_id: int, spared: Sequence[int] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, hidden] -> token int64 [n] and its probability [n], see ``kernels.greedy_head.likeliest_reference``."""
        return self.kernels.likeliest(
            hidden, self.weight.tensor, mask_id=mask_id, max_token_id=max_token_id, spared=spared
        )
