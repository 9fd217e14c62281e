"""Sampling with temperature, min-p, top-k and top-p: in torch, and as a Triton kernel that does not sort.

See docs/research/decoding-rules.md#candidates-and-confidence. ``CandidateSampler`` in `worker/candidates.py`
runs the kernel `topk_topp_sample` where it can, else `filtered_probs` and `multinomial`. ``algorithms.vocab_parallel``
has these two for a vocabulary that is sharded over ranks.

In the kernel, top-k and top-p keep all logits above a threshold, and the first ones equal to it. The threshold is found
by a parallel search: each pass counts or sums what is at least as large as several candidates. A row is read about ten
times, and only the result is written.
"""

from __future__ import annotations

import torch

from runtime.kernels.common import tl, triton

TILE = 4096  # logits per iteration
SEARCH_TILE = 2048  # logits per iteration of the search
NUM_THRESHOLDS = 4  # candidates per pass of the search
WARPS = 8


def min_p_filter(scaled: torch.Tensor, max_logit: torch.Tensor, min_p: torch.Tensor) -> None:
    """Sets logits to -inf in place if their probability is below `min_p` times the highest probability of the row.

    Args:
        scaled: [rows, vocab], logits divided by the temperature.
        max_logit: [rows], the largest of them over the full vocabulary.
        min_p: float64 [rows]; 0 disables the filter.
    """
    lowest = max_logit + min_p.log().to(scaled.dtype)  # -inf if disabled
    scaled.masked_fill_(scaled < lowest[:, None], float("-inf"))


def top_k_top_p_mask(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Returns which tokens top-k and then top-p allow, bool [rows, vocab].

    Of equal logits, the lowest ids are allowed. The token whose cumulative probability crosses `top_p` is allowed.
    """
    ordered, ids = scaled.sort(dim=1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[1], device=scaled.device)
    allowed = (rank < top_k[:, None]) | (top_k <= 0)[:, None]
    probs = ordered.masked_fill(~allowed, float("-inf")).softmax(dim=1)
    before = probs.cumsum(dim=1, dtype=torch.float64) - probs
    allowed &= (before < top_p[:, None]) | (top_p >= 1)[:, None]
    return torch.zeros_like(allowed).scatter_(1, ids, allowed)


def filtered_probs(logits: torch.Tensor, params: torch.Tensor, num_unfiltered: int = 0) -> torch.Tensor:
    """Returns probabilities to sample from, [rows, vocab], after temperature, min-p, top-k, top-p, in this order.

    Args:
        logits: [rows, vocab].
        params: float64 [rows, 4]: temperature; top-p, 1 disables it; top-k, 0 disables it; min-p, 0 disables it.
        num_unfiltered: number of rows at the start that have no filter. Only the other rows are sorted.
    """
    temperature, top_p, top_k, min_p = params.unbind(1)
    scaled = logits / temperature.to(logits.dtype)[:, None]
    if num_unfiltered < len(scaled):
        filtered = scaled[num_unfiltered:]
        min_p_filter(filtered, filtered.amax(1), min_p[num_unfiltered:])
        allowed = top_k_top_p_mask(filtered, top_k[num_unfiltered:].long(), top_p[num_unfiltered:])
        filtered.masked_fill_(~allowed, float("-inf"))
    return scaled.softmax(dim=1)


def multinomial(probs: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples one token per row: the first id whose cumulative probability exceeds the random number.

    Args:
        probs: [rows, vocab].
        uniform: float64 [rows], random numbers in [0, 1).

    Returns:
        Token int64 [rows], and its probability [rows].
    """
    below = probs.cumsum(dim=1, dtype=torch.float64) <= uniform[:, None]
    # The last possible id is sampled if rounding keeps the sum below `uniform`.
    last = probs.shape[1] - 1 - (probs > 0).flip(1).int().argmax(dim=1)
    token = torch.minimum(below.sum(dim=1), last)
    return token, probs.gather(1, token[:, None])[:, 0]


@triton.jit
def _key(x):
    """Returns a 32-bit integer; the order of keys is the order of the floats."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _keys(logits_ptr, at, ok, temperature):
    """Returns the tempered logits and their keys."""
    x = tl.load(logits_ptr + at, mask=ok, other=float("-inf"))
    x = tl.div_rn(x, temperature) + 0.0  # -0 is 0
    return x, _key(x)


@triton.jit
def _value(key):
    """Inverts `_key`."""
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.int32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _weights(x, max_logit):
    """Returns e^(x - max_logit)."""
    return tl.exp2((x - max_logit) * 1.4426950408889634)


@triton.jit
def _sum_allowed(logits_ptr, row_start, vocab, temperature, max_logit, threshold, ties, TILE: tl.constexpr):
    """Sums the weights of all logits with a key above `threshold`, and of at most `ties` of those equal to it."""
    weighted, equal = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.int32)
    for first in range(0, vocab, TILE):
        token = first + tl.arange(0, TILE)
        x, key = _keys(logits_ptr, row_start + token, token < vocab, temperature)
        weighted += tl.where(key > threshold, _weights(x, max_logit), 0.0)
        equal += (key == threshold).to(tl.int32)
    tie_weight = _weights(_value(threshold), max_logit).to(tl.float64)
    return tl.sum(weighted, 0).to(tl.float64) + tl.minimum(tl.sum(equal, 0), ties).to(tl.float64) * tie_weight


@triton.jit
def _search(
    logits_ptr, row_start, vocab, temperature, max_logit, low, high, target,
    WEIGHTED: tl.constexpr, NUM_THRESHOLDS: tl.constexpr, SEARCH_TILE: tl.constexpr,
):  # fmt: skip
    """Finds the largest key, from `low` on, such that logits with keys at least as large reach `target`.

    They are counted, or with WEIGHTED their weights are summed. Also returns the count or sum of strictly larger keys.
    `target` is reached at `low` and not at `high`.
    """
    excess = target * 0.0
    while high - low > 1:
        threshold = low + (high - low) * (1 + tl.arange(0, NUM_THRESHOLDS).to(tl.int64)) // (NUM_THRESHOLDS + 1)
        sums = tl.zeros([NUM_THRESHOLDS, SEARCH_TILE], tl.float32)
        for first in range(0, vocab, SEARCH_TILE):
            token = first + tl.arange(0, SEARCH_TILE)
            x, key = _keys(logits_ptr, row_start + token, token < vocab, temperature)
            each = tl.full([SEARCH_TILE], 1.0, tl.float32)  # float32 counts exactly up to 2^24
            if WEIGHTED:
                each = _weights(x, max_logit)
            sums += tl.where(key[None, :] >= threshold.to(tl.int32)[:, None], each[None, :], 0.0)
        found = tl.sum(sums, 1).to(tl.float64)
        reached = found >= target
        excess = tl.maximum(excess, tl.max(tl.where(reached, 0.0, found), 0))
        low = tl.maximum(low, tl.max(tl.where(reached, threshold, low), 0))
        high = tl.minimum(high, tl.min(tl.where(reached, high, threshold), 0))
    return low, excess


@triton.jit(do_not_specialize=["num_unfiltered"])
def _sample(
    logits_ptr, params_ptr, uniform_ptr, token_ptr, conf_ptr, stride, params_stride, vocab, num_unfiltered,
    NUM_THRESHOLDS: tl.constexpr, SEARCH_TILE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Samples one row per program, from the logits above the threshold and the first `ties` of those equal to it."""
    row = tl.program_id(0)
    row_start = row.to(tl.int64) * stride
    params_at = params_ptr + row * params_stride
    temperature = tl.load(params_at).to(tl.float32)
    max_logits = tl.full([TILE], float("-inf"), tl.float32)
    for first in range(0, vocab, TILE):
        token = first + tl.arange(0, TILE)
        x, _ = _keys(logits_ptr, row_start + token, token < vocab, temperature)
        max_logits = tl.maximum(max_logits, x)
    max_logit = tl.max(max_logits, 0)
    least = max_logit - 104.0  # smaller logits have weight 0 in float32
    threshold = tl.full([], -2139095041, tl.int64)  # -inf
    ties = tl.full([], 0, tl.int32)
    if row >= num_unfiltered:
        high = _key(max_logit).to(tl.int64) + 1
        least = tl.maximum(least, max_logit + tl.log(tl.load(params_at + 3)).to(tl.float32))
        low = _key(least + 0.0).to(tl.int64)
        threshold = low - 1
        top_p, top_k = tl.load(params_at + 1), tl.load(params_at + 2)
        if top_k > 0:
            found, excess = _search(
                logits_ptr, row_start, vocab, temperature, max_logit, low, high, top_k, False, NUM_THRESHOLDS,
                SEARCH_TILE,
            )  # fmt: skip
            threshold, ties = found, (top_k - excess).to(tl.int32)
        if top_p < 1:
            target = top_p * _sum_allowed(logits_ptr, row_start, vocab, temperature, max_logit, threshold, ties, TILE)
            found, excess = _search(
                logits_ptr, row_start, vocab, temperature, max_logit, tl.maximum(threshold, low), high, target, True,
                NUM_THRESHOLDS, SEARCH_TILE,
            )  # fmt: skip
            tie_weight = _weights(_value(found), max_logit).to(tl.float64)
            num_ties = tl.maximum(tl.ceil((target - excess) / tie_weight), 1.0)  # with the one that crosses `target`
            num_ties = tl.minimum(num_ties, 2147483647.0).to(tl.int32)
            ties = tl.where(found > threshold, num_ties, tl.minimum(ties, num_ties))
            threshold = found
    total = _sum_allowed(logits_ptr, row_start, vocab, temperature, max_logit, threshold, ties, TILE)
    target = tl.load(uniform_ptr + row) * total
    sum, passed, sampled, first = target * 0.0, ties * 0, ties * 0 - 1, ties * 0
    done = ties < 0
    while (done == 0) & (first < vocab):
        token = first + tl.arange(0, TILE)
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
        sum, passed, first = after, passed + num_equal, first + TILE
    x, _ = _keys(logits_ptr, row_start + sampled, sampled >= 0, temperature)
    tl.store(token_ptr + row, sampled.to(tl.int64))
    tl.store(conf_ptr + row, (_weights(x, max_logit).to(tl.float64) / total).to(tl.float32))


def topk_topp_sample(
    logits: torch.Tensor, params: torch.Tensor, uniform: torch.Tensor, *, num_unfiltered: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `filtered_probs` and `multinomial` for float32 logits [rows, vocab] with contiguous rows on a GPU.

    Args:
        params, uniform, num_unfiltered: see `filtered_probs` and `multinomial`.

    Returns:
        Token int64 [rows], and its probability [rows].
    """
    rows, vocab = logits.shape
    token = torch.empty(rows, dtype=torch.int64, device=logits.device)
    conf = torch.empty(rows, dtype=torch.float32, device=logits.device)
    tile = min(TILE, triton.next_power_of_2(vocab))
    _sample[(rows,)](
        logits, params, uniform, token, conf, logits.stride(0), params.stride(0), vocab, num_unfiltered,
        NUM_THRESHOLDS=NUM_THRESHOLDS, SEARCH_TILE=min(SEARCH_TILE, tile), TILE=tile, num_warps=WARPS,
    )  # fmt: skip
    return token, conf
