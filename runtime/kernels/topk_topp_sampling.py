"""A token drawn from each of some rows of logits, under a temperature, min-p, top-k and top-p, without sorting them.

What top-k and top-p leave of a row is all above some value, and of those that equal it the first ones. The value is
found by counting, or adding up, what lies above each of a few at once, between two that come closer: a row is read some
ten times, and nothing is written but what was drawn.
"""

from __future__ import annotations

import torch

from runtime.kernels.triton_import import tl, triton

SLAB = 4096  # of the vocabulary, that a program reads at a time,
NARROW = 2048  # and where it compares each number with
CUTS = 4  # of these
WARPS = 8


@triton.jit
def _key(x):
    """An integer of 32 bits; those of numbers lie in the numbers' order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _keys(logits_ptr, at, ok, heat):
    """Logits by the temperature, and their keys."""
    x = tl.load(logits_ptr + at, mask=ok, other=float("-inf"))
    x = tl.div_rn(x, heat) + 0.0  # -0 is 0
    return x, _key(x)


@triton.jit
def _value(key):
    """The number that a key is of."""
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.int32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _weights(x, best):
    """e^(x - best)."""
    return tl.exp2((x - best) * 1.4426950408889634)


@triton.jit
def _kept(logits_ptr, begin, vocab, heat, best, cut, ties, SLAB: tl.constexpr):
    """What all of a row weigh whose keys are above `cut`, with at most `ties` of those that are equal to it."""
    weighed, equal = tl.zeros([SLAB], tl.float32), tl.zeros([SLAB], tl.int32)
    for first in range(0, vocab, SLAB):
        token = first + tl.arange(0, SLAB)
        x, key = _keys(logits_ptr, begin + token, token < vocab, heat)
        weighed += tl.where(key > cut, _weights(x, best), 0.0)
        equal += (key == cut).to(tl.int32)
    own = _weights(_value(cut), best).to(tl.float64)
    return tl.sum(weighed, 0).to(tl.float64) + tl.minimum(tl.sum(equal, 0), ties).to(tl.float64) * own


@triton.jit
def _search(
    logits_ptr, begin, vocab, heat, best, low, high, goal,
    WEIGHED: tl.constexpr, CUTS: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Of a row, the largest key from `low` on with at least `goal` in those that are no smaller, and how much is in
    those that are larger: how many there are, or what they weigh. All have `goal`; those from `high` on have not."""
    over = goal * 0.0
    while high - low > 1:
        cut = low + (high - low) * (1 + tl.arange(0, CUTS).to(tl.int64)) // (CUTS + 1)
        sums = tl.zeros([CUTS, NARROW], tl.float32)
        for first in range(0, vocab, NARROW):
            token = first + tl.arange(0, NARROW)
            x, key = _keys(logits_ptr, begin + token, token < vocab, heat)
            each = tl.full([NARROW], 1.0, tl.float32)  # up to 2^24 of them are counted so
            if WEIGHED:
                each = _weights(x, best)
            sums += tl.where(key[None, :] >= cut.to(tl.int32)[:, None], each[None, :], 0.0)
        found = tl.sum(sums, 1).to(tl.float64)
        enough = found >= goal
        over = tl.maximum(over, tl.max(tl.where(enough, 0.0, found), 0))
        low = tl.maximum(low, tl.max(tl.where(enough, cut, low), 0))
        high = tl.minimum(high, tl.min(tl.where(enough, high, cut), 0))
    return low, over


@triton.jit(do_not_specialize=["limited_from"])
def _draw(
    logits_ptr, limits_ptr, uniform_ptr, token_ptr, conf_ptr, stride, limits_stride, vocab, limited_from,
    CUTS: tl.constexpr, NARROW: tl.constexpr, SLAB: tl.constexpr,
):  # fmt: skip
    """One program a row. Kept is what is above a cut, and the first `ties` of what equals it."""
    row = tl.program_id(0)
    begin = row.to(tl.int64) * stride
    limits_at = limits_ptr + row * limits_stride
    heat = tl.load(limits_at).to(tl.float32)
    bests = tl.full([SLAB], float("-inf"), tl.float32)
    for first in range(0, vocab, SLAB):
        token = first + tl.arange(0, SLAB)
        x, _ = _keys(logits_ptr, begin + token, token < vocab, heat)
        bests = tl.maximum(bests, x)
    best = tl.max(bests, 0)
    least = best - 104.0  # what is further below weighs nothing in 32 bits
    cut = tl.full([], -2139095041, tl.int64)  # -inf
    ties = tl.full([], 0, tl.int32)
    if row >= limited_from:
        high = _key(best).to(tl.int64) + 1
        least = tl.maximum(least, best + tl.log(tl.load(limits_at + 3)).to(tl.float32))
        low = _key(least + 0.0).to(tl.int64)
        cut = low - 1
        top_p, top_k = tl.load(limits_at + 1), tl.load(limits_at + 2)
        if top_k > 0:
            found, over = _search(logits_ptr, begin, vocab, heat, best, low, high, top_k, False, CUTS, NARROW)
            cut, ties = found, (top_k - over).to(tl.int32)
        if top_p < 1:
            goal = top_p * _kept(logits_ptr, begin, vocab, heat, best, cut, ties, SLAB)
            found, over = _search(
                logits_ptr, begin, vocab, heat, best, tl.maximum(cut, low), high, goal, True, CUTS, NARROW
            )
            own = _weights(_value(found), best).to(tl.float64)
            fit = tl.maximum(tl.ceil((goal - over) / own), 1.0)  # the one that crosses it stays
            fit = tl.minimum(fit, 2147483647.0).to(tl.int32)
            ties = tl.where(found > cut, fit, tl.minimum(ties, fit))
            cut = found
    total = _kept(logits_ptr, begin, vocab, heat, best, cut, ties, SLAB)
    goal = tl.load(uniform_ptr + row) * total
    sum, passed, drawn, first = goal * 0.0, ties * 0, ties * 0 - 1, ties * 0
    done = ties < 0
    while (done == 0) & (first < vocab):
        token = first + tl.arange(0, SLAB)
        x, key = _keys(logits_ptr, begin + token, token < vocab, heat)
        equals = key == cut
        some = tl.sum(equals.to(tl.int32), 0)
        kept = key > cut
        if some > 0:
            kept = kept | (equals & (passed + tl.cumsum(equals.to(tl.int32), 0) <= ties))
        part = tl.where(kept, _weights(x, best), 0.0).to(tl.float64)
        here = tl.max(tl.where(part > 0, token, -1), 0)
        drawn = tl.maximum(drawn, here)  # the last one, if rounding leaves the sum short of the goal
        after = sum + tl.sum(part, 0)
        if after > goal:
            crossing = (sum + tl.cumsum(part, 0) > goal) & (part > 0)
            drawn = tl.minimum(here, tl.min(tl.where(crossing, token, 2147483647), 0))
            done = after > goal
        sum, passed, first = after, passed + some, first + SLAB
    x, _ = _keys(logits_ptr, begin + drawn, drawn >= 0, heat)
    tl.store(token_ptr + row, drawn.to(tl.int64))
    tl.store(conf_ptr + row, (_weights(x, best).to(tl.float64) / total).to(tl.float32))


def draw(
    logits: torch.Tensor, limits: torch.Tensor, uniform: torch.Tensor, *, free: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``algorithms.sampling``'s `distribution` and `pick` do, for float32 logits [rows, vocab] on a GPU whose rows
    are contiguous: token int64 [rows], and its probability [rows].

    Args:
        limits: float64 [rows, 4]: temperature, top-p, top-k, min-p. uniform: float64 [rows]. free: as there.
    """
    rows, vocab = logits.shape
    token = torch.empty(rows, dtype=torch.int64, device=logits.device)
    conf = torch.empty(rows, dtype=torch.float32, device=logits.device)
    slab = min(SLAB, triton.next_power_of_2(vocab))
    _draw[(rows,)](
        logits, limits, uniform, token, conf, logits.stride(0), limits.stride(0), vocab, free, CUTS=CUTS,
        NARROW=min(NARROW, slab), SLAB=slab, num_warps=WARPS,
    )  # fmt: skip
    return token, conf
