"""Most probable token of each row among those that a grammar allows, in one launch.

The bitmask of a grammar has one bit per token, as grammar libraries fill it. So the host transfers 4 bytes for 32
tokens, and the device neither unpacks the mask nor writes masked logits.
"""

from __future__ import annotations

import torch

from runtime.kernels.common import tl, triton

TILE = 4096  # tokens per iteration


def bitmask_argmax_reference(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> torch.Tensor:
    """Returns the most probable allowed token of some rows (of equal ones, the lowest id), and its probability.

    Args:
        logits: float32 or float64 [n, vocab].
        rows: int64 [m], rows of `logits`.
        bitmask: int32 [m, ceil(vocab / 32)]. Bit t % 32 of word t // 32 says whether token t is allowed.

    Returns:
        float64 [2, m], one tensor for one transfer: the tokens, and their softmax probabilities among the allowed ones.
        Token 0 and NaN where no allowed token has a finite logit.
    """
    masked = mask_logits(logits, rows, bitmask)
    token = masked.argmax(1)  # the first of equal values
    probability = (masked.gather(1, token[:, None])[:, 0] - masked.logsumexp(1)).exp()
    return torch.stack([token.double(), probability.double()])


def mask_logits(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> torch.Tensor:
    """Returns `logits[rows]` with -inf for tokens that are not allowed. See `bitmask_argmax_reference`."""
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((bitmask[:, :, None] >> shifts) & 1).flatten(1)[:, : logits.shape[1]].bool()
    return logits[rows].masked_fill(~allowed, float("-inf"))


@triton.jit(do_not_specialize=["vocab", "words", "count"])  # one compilation for all models
def _bitmask_argmax(logits_ptr, rows_ptr, bitmask_ptr, out_ptr, vocab, words, count, TILE: tl.constexpr):
    """Reduces one row per program. Each lane keeps its maximum, the token of that, and its sum of exponentials."""
    i = tl.program_id(0).to(tl.int64)
    logits_ptr += tl.load(rows_ptr + i) * vocab
    bitmask_ptr += i * words
    lane = tl.arange(0, TILE)
    largest = tl.full([TILE], float("-inf"), tl.float32)
    tokens, sums = lane, tl.zeros([TILE], tl.float32)
    for first in range(0, vocab, TILE):
        token = first + lane
        inside = token < vocab
        word = tl.load(bitmask_ptr + token // 32, mask=inside, other=0)
        x = tl.load(logits_ptr + token, mask=inside & ((word >> (token % 32)) & 1 != 0), other=float("-inf"))
        x *= 1.4426950408889634  # in units of log 2
        greater = x > largest
        before, largest = largest, tl.maximum(largest, x)
        base = tl.where(largest == float("-inf"), 0.0, largest)
        sums = sums * tl.exp2(before - base) + tl.exp2(x - base)
        tokens = tl.where(greater, token, tokens)
    highest = tl.max(largest, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(sums * tl.exp2(largest - base), 0)
    best = tl.min(tl.where(largest == highest, tokens, 2147483647), 0)
    tl.store(out_ptr + i, best.to(tl.float64))
    tl.store(out_ptr + count + i, (1.0 / tl.where(total > 0, total, float("nan"))).to(tl.float64))


def bitmask_argmax(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> torch.Tensor:
    """Computes `bitmask_argmax_reference` for contiguous float32 logits on a GPU."""
    out = torch.empty(2, len(rows), dtype=torch.float64, device=logits.device)
    _bitmask_argmax[(len(rows),)](
        logits, rows, bitmask, out, logits.shape[1], bitmask.shape[1], len(rows), TILE=TILE, num_warps=8
    )
    return out
