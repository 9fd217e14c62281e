"""The head's product, whose result is never rounded below float32, and what can be asked of it without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from runtime.kernels.fused_argmax import likeliest_reference
from runtime.kernels.precision import wide

if TYPE_CHECKING:
    from runtime.kernels.ops import Kernels
    from runtime.layers.parameter import Weight
    from runtime.layers.sharding import Ids

HEAD_CHUNK = 8192  # vocabulary rows widened at a time where the device cannot accumulate wide by itself


def head_logits(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns logits [n, vocab] of [n, hidden] and [vocab, hidden], float32, or float64 for float64.

    The accumulator is never rounded to a narrower dtype; see docs/decoding-rules.md#logits.
    """
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
        logits = self.kernels.logits
        return self.weight.logits(hidden) if logits is None else logits(hidden, self.weight.tensor)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.raw(hidden).div_(self.cap).tanh_().mul_(self.cap)


class PlainHead:
    """A head that is one product with `weight` and no more: it gives logits, and the likeliest tokens, `direct` without
    them. `ids`: those of the vocabulary whose logits it gives, if not all."""

    def __init__(self, weight: Weight, kernels: Kernels, ids: Ids | None = None) -> None:
        self.weight = weight
        self.kernels = kernels
        self.ids = ids
        self.direct = kernels.likeliest is not likeliest_reference

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, vocab], see `head_logits`."""
        return self.weight.logits(hidden)

    def likeliest(
        self, hidden: torch.Tensor, *, mask_id: int | None, max_token_id: int, spared: Sequence[int] = (),
        live: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """[n, hidden] -> token int64 [n] and its probability [n], see ``kernels.fused_argmax.likeliest_reference``."""
        if self.ids is not None:
            return self._joined(self.ids, hidden, mask_id, max_token_id, spared, live)
        found = self.kernels.likeliest(
            hidden, self.weight.tensor, mask_id=mask_id, max_token_id=max_token_id, spared=spared, live=live
        )
        return found.token, found.conf

    def _joined(
        self, ids: Ids, hidden: torch.Tensor, mask_id: int | None, max_token_id: int, spared: Sequence[int],
        live: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """The likeliest of all processes' likeliest."""
        first = ids.here.start
        token, conf, peak = self.kernels.likeliest(
            hidden, self.weight.tensor, mask_id=mask_id - first if mask_id in ids.here else None,  # type: ignore[operator]
            max_token_id=max_token_id - first, spared=[token - first for token in spared if token in ids.here],
            live=live,
        )  # fmt: skip
        numbers = torch.stack([peak, 1 / conf, (token + first).to(conf.dtype)])
        peaks, sums, tokens = ids.group.all_gather(numbers).unbind(1)
        peak, best = peaks.max(0, keepdim=True)  # the first of equal values: the lowest ids
        there = peaks > -torch.inf  # where anything may be predicted; its sum is by its own peak
        total = torch.where(there, sums * (peaks - peak).exp(), 0).sum(0)
        return tokens.gather(0, best)[0].long(), 1 / total
