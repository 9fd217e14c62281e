"""Sampling with temperature, min-p, top-k and top-p without sorting.

Top-k and top-p keep all logits above a threshold, and the first ones equal to it. The threshold is found by a parallel
search: each pass counts or sums what is at least as large as several candidates. A row is read about ten times, and
only the result is written.
"""

from __future__ import annotations

import torch

from runtime.kernels.common import tl, triton

SLAB = 4096  # logits per iteration
NARROW = 2048  # logits per iteration of the search
NUM_THRESHOLDS = 4  # candidates per pass of the search
WARPS = 8


@triton.jit
def _key(x):
    """32-bit integer whose order is that of the floats."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _keys(logits_ptr, at, ok, temperature):
    """Tempered logits and their keys."""
    x = tl.load(logits_ptr + at, mask=ok, other=float("-inf"))
    x = tl.div_rn(x, temperature) + 0.0  # -0 is 0
    return x, _key(x)


@triton.jit
def _value(key):
    """Inverse of `_key`."""
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.int32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _weights(x, max_logit):
    """e^(x - best)."""
    return tl.exp2((x - max_logit) * 1.4426950408889634)


@triton.jit
def _sum_allowed(logits_ptr, row_start, vocab, temperature, max_logit, threshold, ties, SLAB: tl.constexpr):
    """Sum of weights of all logits with a key above `threshold`, plus at most `ties` of those equal to it."""
    weighed, equal = tl.zeros([SLAB], tl.float32), tl.zeros([SLAB], tl.int32)
    for first in range(0, vocab, SLAB):
        token = first + tl.arange(0, SLAB)
        x, key = _keys(logits_ptr, row_start + token, token < vocab, temperature)
        weighed += tl.where(key > threshold, _weights(x, max_logit), 0.0)
        equal += (key == threshold).to(tl.int32)
    own = _weights(_value(threshold), max_logit).to(tl.float64)
    return tl.sum(weighed, 0).to(tl.float64) + tl.minimum(tl.sum(equal, 0), ties).to(tl.float64) * own


@triton.jit
def _search(
    logits_ptr, row_start, vocab, temperature, max_logit, low, high, target,
    WEIGHTED: tl.constexpr, NUM_THRESHOLDS: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Finds the largest key, from `low` on, such that logits with keys at least as large reach `target`.

    They are counted, or with WEIGHTED their weights are summed. Also returns the count or sum of strictly larger keys.
    `target` is reached at `low` and not at `high`.
    """
    excess = target * 0.0
    while high - low > 1:
        threshold = low + (high - low) * (1 + tl.arange(0, NUM_THRESHOLDS).to(tl.int64)) // (NUM_THRESHOLDS + 1)
        sums = tl.zeros([NUM_THRESHOLDS, NARROW], tl.float32)
        for first in range(0, vocab, NARROW):
            token = first + tl.arange(0, NARROW)
            x, key = _keys(logits_ptr, row_start + token, token < vocab, temperature)
            each = tl.full([NARROW], 1.0, tl.float32)  # float32 counts exactly up to 2^24
            if WEIGHTED:
                each = _weights(x, max_logit)
            sums += tl.where(key[None, :] >= threshold.to(tl.int32)[:, None], each[None, :], 0.0)
        found = tl.sum(sums, 1).to(tl.float64)
        reached = found >= target
        excess = tl.maximum(excess, tl.max(tl.where(reached, 0.0, found), 0))
        low = tl.maximum(low, tl.max(tl.where(reached, threshold, low), 0))
        high = tl.minimum(high, tl.min(tl.where(reached, high, threshold), 0))
    return low, excess


@triton.jit(do_not_specialize=["limited_from"])
def _sample(
    logits_ptr, limits_ptr, uniform_ptr, token_ptr, conf_ptr, stride, limits_stride, vocab, limited_from,
    NUM_THRESHOLDS: tl.constexpr, NARROW: tl.constexpr, SLAB: tl.constexpr,
):  # fmt: skip
    """One program per row. It keeps logits above the threshold and the first `ties` of those equal to it."""
    row = tl.program_id(0)
    row_start = row.to(tl.int64) * stride
    limits_at = limits_ptr + row * limits_stride
    temperature = tl.load(limits_at).to(tl.float32)
    max_logits = tl.full([SLAB], float("-inf"), tl.float32)
    for first in range(0, vocab, SLAB):
        token = first + tl.arange(0, SLAB)
        x, _ = _keys(logits_ptr, row_start + token, token < vocab, temperature)
        max_logits = tl.maximum(max_logits, x)
    max_logit = tl.max(max_logits, 0)
    least = max_logit - 104.0  # smaller logits have weight 0 in float32
    threshold = tl.full([], -2139095041, tl.int64)  # -inf
    ties = tl.full([], 0, tl.int32)
    if row >= limited_from:
        high = _key(max_logit).to(tl.int64) + 1
        least = tl.maximum(least, max_logit + tl.log(tl.load(limits_at + 3)).to(tl.float32))
        low = _key(least + 0.0).to(tl.int64)
        threshold = low - 1
        top_p, top_k = tl.load(limits_at + 1), tl.load(limits_at + 2)
        if top_k > 0:
            found, excess = _search(
                logits_ptr, row_start, vocab, temperature, max_logit, low, high, top_k, False, NUM_THRESHOLDS, NARROW
            )
            threshold, ties = found, (top_k - excess).to(tl.int32)
        if top_p < 1:
            target = top_p * _sum_allowed(logits_ptr, row_start, vocab, temperature, max_logit, threshold, ties, SLAB)
            found, excess = _search(
                logits_ptr, row_start, vocab, temperature, max_logit, tl.maximum(threshold, low), high, target, True,
                NUM_THRESHOLDS, NARROW,
            )  # fmt: skip
            own = _weights(_value(found), max_logit).to(tl.float64)
            num_ties = tl.maximum(tl.ceil((target - excess) / own), 1.0)  # the one that crosses the target is kept
            num_ties = tl.minimum(num_ties, 2147483647.0).to(tl.int32)
            ties = tl.where(found > threshold, num_ties, tl.minimum(ties, num_ties))
            threshold = found
    total = _sum_allowed(logits_ptr, row_start, vocab, temperature, max_logit, threshold, ties, SLAB)
    target = tl.load(uniform_ptr + row) * total
    sum, passed, sampled, first = target * 0.0, ties * 0, ties * 0 - 1, ties * 0
    done = ties < 0
    while (done == 0) & (first < vocab):
        token = first + tl.arange(0, SLAB)
        x, key = _keys(logits_ptr, row_start + token, token < vocab, temperature)
        equals = key == threshold
        num_equal = tl.sum(equals.to(tl.int32), 0)
        allowed = key > threshold
        if num_equal > 0:
            allowed = allowed | (equals & (passed + tl.cumsum(equals.to(tl.int32), 0) <= ties))
        part = tl.where(allowed, _weights(x, max_logit), 0.0).to(tl.float64)
        last_allowed = tl.max(tl.where(part > 0, token, -1), 0)
        sampled = tl.maximum(sampled, last_allowed)  # the last one, if rounding keeps the sum below the target
        after = sum + tl.sum(part, 0)
        if after > target:
            crossing = (sum + tl.cumsum(part, 0) > target) & (part > 0)
            sampled = tl.minimum(last_allowed, tl.min(tl.where(crossing, token, 2147483647), 0))
            done = after > target
        sum, passed, first = after, passed + num_equal, first + SLAB
    x, _ = _keys(logits_ptr, row_start + sampled, sampled >= 0, temperature)
    tl.store(token_ptr + row, sampled.to(tl.int64))
    tl.store(conf_ptr + row, (_weights(x, max_logit).to(tl.float64) / total).to(tl.float32))


def topk_topp_sample(
    logits: torch.Tensor, limits: torch.Tensor, uniform: torch.Tensor, *, free: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """`filtered_probs` and `multinomial` of ``algorithms.sampling`` for float32 logits [rows, vocab] with contiguous
    rows on a GPU.

    Args:
        limits: float64 [rows, 4]: temperature, top-p, top-k, min-p. uniform: float64 [rows].
        free: `num_unfiltered` of ``algorithms.sampling``.

    Returns:
        Token int64 [rows], and its probability [rows].
    """
    rows, vocab = logits.shape
    token = torch.empty(rows, dtype=torch.int64, device=logits.device)
    conf = torch.empty(rows, dtype=torch.float32, device=logits.device)
    slab = min(SLAB, triton.next_power_of_2(vocab))
    _sample[(rows,)](
        logits, limits, uniform, token, conf, logits.stride(0), limits.stride(0), vocab, free,
        NUM_THRESHOLDS=NUM_THRESHOLDS, NARROW=min(NARROW, slab), SLAB=slab, num_warps=WARPS,
    )  # fmt: skip
    return token, conf
