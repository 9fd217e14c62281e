"""lm_head: logits that are never rounded below float32, and the argmax without logits in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from runtime.errors import ConfigError
from runtime.kernels.common import wide
from runtime.kernels.fused_argmax import ArgmaxOutput, lm_head_argmax_reference
from runtime.kernels.quantized_tensor import Fp8, quantize_fp8

if TYPE_CHECKING:
    from runtime.kernels.ops import KernelSet
    from runtime.parameters.sharding import VocabShard
    from runtime.parameters.weight import Weight

WIDE_CHUNK = 8192  # vocabulary rows converted to float32 at once on devices that cannot accumulate in float32


def head_logits(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns logits [n, vocab] of [n, hidden] and [vocab, hidden], float32, or float64 for float64.

    The accumulator is never rounded to a narrower dtype; see docs/research/decoding-rules.md#logits.
    """
    up = wide(hidden.dtype)
    if hidden.dtype == up:
        return F.linear(hidden, weight)
    if hidden.is_cuda:
        return torch.mm(hidden, weight.t(), out_dtype=up)
    hidden = hidden.to(up)
    return torch.cat([F.linear(hidden, part.to(up)) for part in torch.split(weight, WIDE_CHUNK)], dim=-1)


class SoftcapLMHead:
    """lm_head with soft-capped logits: cap * tanh(logits / cap); `uncapped` returns the logits before.

    Raises:
        ConfigError: the argmax is to be found with e4m3 products, but every request of such a model needs its logits.
    """

    def __init__(self, weight: Weight, kernels: KernelSet, cap: float) -> None:
        if kernels.fp8_lm_head_argmax is not None:
            raise ConfigError(
                "--quantized-lm-head: no kernel multiplies an LM head with soft-capped logits in e4m3; leave it out"
            )
        self.weight = weight
        self.kernels = kernels
        self.cap = cap

    def uncapped(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns logits [n, vocab] before soft-capping for `hidden` [n, hidden]; see `head_logits`."""
        return (self.kernels.head_logits or head_logits)(hidden, self.weight.tensor)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.uncapped(hidden).div_(self.cap).tanh_().mul_(self.cap)


class LMHead:
    """lm_head without soft-capping.

    Attributes:
        fused_argmax: `argmax` computes no logits in memory.
        vocab_shard: this rank's part of the vocabulary; None if not sharded. Logits are those of its ids.
    """

    def __init__(self, weight: Weight, kernels: KernelSet, vocab_shard: VocabShard | None = None) -> None:
        self.weight = weight
        self.kernels = kernels
        self.vocab_shard = vocab_shard
        self.fused_argmax = kernels.lm_head_argmax is not lm_head_argmax_reference
        self._codes: Fp8 | None = None  # the weight in e4m3, see `prepare`

    def prepare(self) -> None:
        """Quantizes a copy of the loaded weight, if the kernel of the argmax multiplies in e4m3.

        Call it before `argmax`, and not while a CUDA graph is captured.
        """
        if self.kernels.fp8_lm_head_argmax is not None and self._codes is None:
            self._codes = quantize_fp8(self.weight.tensor)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns logits [n, vocab] for `hidden` [n, hidden]; see `head_logits`."""
        return head_logits(hidden, self.weight.tensor)

    def argmax(
        self, hidden: torch.Tensor, *, mask_id: int | None, max_token_id: int, allowed_ids: Sequence[int] = (),
        num_valid: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Returns the argmax token, int64 [n], and its probability [n] for `hidden` [n, hidden].

        ``kernels.fused_argmax.lm_head_argmax_reference`` documents the arguments.
        """
        if self.vocab_shard is not None:
            return self._merge_ranks(self.vocab_shard, hidden, mask_id, max_token_id, allowed_ids, num_valid)
        found = self._argmax(hidden, mask_id, max_token_id, allowed_ids, num_valid)
        return found.token, found.conf

    def _argmax(
        self, hidden: torch.Tensor, mask_id: int | None, max_token_id: int, allowed_ids: Sequence[int],
        num_valid: torch.Tensor | None,
    ) -> ArgmaxOutput:  # fmt: skip
        """Returns the argmax over this rank's ids, which the arguments count from its first one."""
        kernel, weight = self.kernels.fp8_lm_head_argmax, self.weight.tensor
        if kernel is not None:
            assert self._codes is not None
            return kernel(
                hidden, weight, self._codes, mask_id=mask_id, max_token_id=max_token_id, allowed_ids=allowed_ids,
                num_valid=num_valid,
            )  # fmt: skip
        return self.kernels.lm_head_argmax(
            hidden, weight, mask_id=mask_id, max_token_id=max_token_id, allowed_ids=allowed_ids, num_valid=num_valid
        )

    def _merge_ranks(
        self, shard: VocabShard, hidden: torch.Tensor, mask_id: int | None, max_token_id: int,
        allowed_ids: Sequence[int], num_valid: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Computes the argmax over the full vocabulary from the argmax of each rank."""
        first = shard.local.start
        token, conf, peak = self._argmax(
            hidden, mask_id - first if mask_id in shard.local else None,  # type: ignore[operator]
            max_token_id - first, [token - first for token in allowed_ids if token in shard.local], num_valid,
        )  # fmt: skip
        numbers = torch.stack([peak, 1 / conf, (token + first).to(conf.dtype)])
        peaks, sums, tokens = shard.group.all_gather(numbers).unbind(1)
        peak, best = peaks.max(0, keepdim=True)  # the first of equal values: the lowest id
        has_allowed = peaks > -torch.inf  # whether the rank has an allowed id; its sum is relative to its own peak
        total = torch.where(has_allowed, sums * (peaks - peak).exp(), 0).sum(0)
        return tokens.gather(0, best)[0].long(), 1 / total
