"""Softmax statistics of logits for the renoising algorithms: sampled token, argmax, entropy and optionally
probabilities.

Each logit is read once, and each probability written once. A program reduces one piece of the vocabulary. A second
kernel merges the pieces of a row, finds the piece that contains the sample and looks it up there.

Probabilities are written before their sum and the row's maximum are known. The softcap bounds all logits, so a weight
is 2^(logit - bound), and the consumer divides by the sum of weights. A third kernel rewrites rows whose weights are too
small for that, which happens if even the largest logit is far below the bound. It also writes all rows in float16,
whose range is too small: there the weights are scaled by the row's maximum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.common import tl, triton, wide

PIECE, WRITE_PIECE = 2048, 4096  # vocabulary per program, of the statistics and of the third kernel
WRITERS = 4  # programs per row of the third kernel: few, because they do nothing for most rows
# A logit at the bound has the weight 2^MAX_EXPONENT. A row is valid if its largest weight is at least
# 2^MIN_EXPONENT. Then sums of 2^18 weights do not overflow with embeddings up to 2^29, and a weight of 2^-60 times the
# largest is not zero.
MAX_EXPONENT, MIN_EXPONENT = 80.0, -60.0
HALF_MAX = 2.0**15  # the row's largest weight in float16; small probabilities would underflow


class StatsRequest(NamedTuple):
    """Parameters of the statistics of rows of logits.

    Logits are soft-capped (``cap * tanh(logits / cap)``), forbidden ids are set to -inf, and the rest is divided by
    `temperature`.
    """

    temperature: torch.Tensor  # float [rows]
    uniform: torch.Tensor | None  # float64 [rows]: random number of each row; < 0: take the argmax
    cap: float
    mask_id: int | None  # forbidden, as are ids above the next
    max_token_id: int
    probs: torch.dtype | None  # dtype of the returned probabilities; None: not returned


class SoftmaxStats(NamedTuple):
    token: torch.Tensor  # int64 [rows], sampled: the first id whose cumulative probability exceeds `uniform`
    conf: torch.Tensor  # float [rows], its probability
    argmax: torch.Tensor  # int64 [rows], the lowest id of equal logits
    entropy: torch.Tensor  # float [rows], in nats
    probs: torch.Tensor | None  # [rows, vocab], the probabilities times `divisor`
    divisor: torch.Tensor | None  # float [rows], > 0: the sum of `probs`, or 1


def softmax_stats_reference(logits: torch.Tensor, request: StatsRequest) -> SoftmaxStats:
    """Returns the statistics of `logits`, float32 or float64 [rows, vocab], which are not modified."""
    up = wide(logits.dtype)
    scaled = (logits.to(up) / request.cap).tanh() * request.cap
    if request.mask_id is not None:
        scaled[:, request.mask_id] = float("-inf")
    scaled[:, request.max_token_id + 1 :] = float("-inf")
    scaled = scaled / request.temperature.to(up)[:, None]
    probs, argmax = scaled.softmax(1), scaled.argmax(1)
    token = argmax
    if request.uniform is not None:
        below = probs.cumsum(1, dtype=torch.float64) <= request.uniform[:, None]
        # The last possible id is sampled if rounding keeps the sum below `uniform`.
        last = probs.shape[1] - 1 - (probs > 0).flip(1).int().argmax(1)
        token = torch.where(request.uniform < 0, argmax, torch.minimum(below.sum(1), last))
    conf = probs.gather(1, token[:, None])[:, 0]
    entropy = torch.special.entr(probs).sum(1)
    if request.probs is None:
        return SoftmaxStats(token, conf, argmax, entropy, None, None)
    return SoftmaxStats(token, conf, argmax, entropy, probs.to(request.probs), torch.ones_like(conf))


@triton.jit
def _scaled(logits_ptr, row, token, vocab, cap, temperature, mask_id, max_id):
    """Returns the capped, masked and tempered logits of `token` in units of log 2, relative to their upper bound.

    Forbidden ids are loaded too, because a mask that ends anywhere would split the vector loads.
    """
    x = tl.load(logits_ptr + row.to(tl.int64) * vocab + token, mask=token < vocab, other=0.0)
    high = 1.4426950408889634 * cap / temperature
    x = -2.0 * high / (tl.exp2(2.8853900817779268 / cap * x) + 1.0)  # cap * tanh(x / cap) - cap
    return tl.where((token < vocab) & (token <= max_id) & (token != mask_id), x, float("-inf"))


@triton.jit(do_not_specialize=["pieces", "mask_id", "max_id"])
def _piece_stats(
    logits_ptr, temperature_ptr, max_logit_ptr, token_ptr, sum_exp_ptr, weighted_ptr, prob_sum_ptr, probs_ptr, vocab,
    pieces, cap, mask_id, max_id, PIECE: tl.constexpr, MAX_EXPONENT: tl.constexpr, WRITE_PROBS: tl.constexpr,
):  # fmt: skip
    """Reduces one piece of a row per program.

    Stores the maximum and its id, the sum of 2^(x - max), the sum of that times (x - max), and the sum of weights, each
    to [rows, pieces]; and the weights.
    """
    piece, row = tl.program_id(0), tl.program_id(1)
    token = piece * PIECE + tl.arange(0, PIECE)
    x = _scaled(logits_ptr, row, token, vocab, cap, tl.load(temperature_ptr + row), mask_id, max_id)
    max_logit = tl.max(x, 0)
    found = tl.min(tl.where(x == max_logit, token, 2147483647), 0)
    # 2^-200 is 0 in float32, as is the weight of a forbidden id
    below = tl.maximum(x - tl.where(max_logit == float("-inf"), 0.0, max_logit), -200.0)
    part = tl.exp2(below)
    at = row * pieces + piece
    tl.store(max_logit_ptr + at, max_logit)
    tl.store(token_ptr + at, found)
    tl.store(sum_exp_ptr + at, tl.sum(part, 0))
    tl.store(weighted_ptr + at, tl.sum(part * below, 0))
    if WRITE_PROBS:
        weight = (part * tl.exp2(max_logit + MAX_EXPONENT)).to(probs_ptr.dtype.element_ty)
        tl.store(probs_ptr + row.to(tl.int64) * vocab + token, weight, mask=token < vocab)
        # The sum is that of the rounded weights, so that a row with one dominant id gets exactly that id's embedding.
        tl.store(prob_sum_ptr + at, tl.sum(weight.to(tl.float32), 0))


@triton.jit(do_not_specialize=["pieces", "mask_id", "max_id"])
def _merge_pieces(
    logits_ptr, temperature_ptr, uniform_ptr, max_logit_ptr, token_ptr, sum_exp_ptr, weighted_ptr, prob_sum_ptr,
    sampled_ptr, conf_ptr, argmax_ptr, entropy_ptr, largest_ptr, sum_ptr, divisor_ptr, vocab, pieces, cap, mask_id,
    max_id, PIECE: tl.constexpr, PIECES: tl.constexpr, DRAWS: tl.constexpr, MAX_EXPONENT: tl.constexpr,
    MIN_EXPONENT: tl.constexpr, HALF_MAX: tl.constexpr, WRITE_PROBS: tl.constexpr,
):  # fmt: skip
    """Merges the pieces of one row per program."""
    row = tl.program_id(0)
    piece = tl.arange(0, PIECES)
    inside = piece < pieces
    at = row * pieces + piece
    max_logits = tl.load(max_logit_ptr + at, mask=inside, other=float("-inf"))
    max_logit = tl.max(max_logits, 0)
    tokens = tl.load(token_ptr + at, mask=inside, other=2147483647)
    argmax = tl.min(tl.where(max_logits == max_logit, tokens, 2147483647), 0)
    some = max_logits > float("-inf")
    below = tl.where(some, max_logits - max_logit, 0.0)
    scale = tl.where(some, tl.exp2(below), 0.0)
    sum_exps = tl.load(sum_exp_ptr + at, mask=inside, other=0.0)
    weighted = tl.load(weighted_ptr + at, mask=inside, other=0.0)
    sum_exp = tl.sum(sum_exps * scale, 0)
    entropy = 0.6931471805599453 * (tl.log2(sum_exp) - tl.sum((weighted + sum_exps * below) * scale, 0) / sum_exp)
    token, conf = argmax, 1.0 / sum_exp
    if DRAWS:
        uniform = tl.load(uniform_ptr + row)
        if uniform >= 0.0:
            piece_sums = sum_exps.to(tl.float64) * scale.to(tl.float64)
            target = uniform * tl.sum(piece_sums, 0)
            sums = tl.cumsum(piece_sums, 0)
            last = tl.max(tl.where(piece_sums > 0, piece, 0), 0)
            chosen = tl.minimum(tl.min(tl.where(sums > target, piece, PIECES), 0), last)
            target -= tl.sum(tl.where(piece < chosen, piece_sums, 0.0), 0)
            one = chosen * PIECE + tl.arange(0, PIECE)
            x = _scaled(logits_ptr, row, one, vocab, cap, tl.load(temperature_ptr + row), mask_id, max_id)
            part = tl.where(x == float("-inf"), 0.0, tl.exp2(x - max_logit))
            first = tl.min(tl.where(tl.cumsum(part.to(tl.float64), 0) > target, one, 2147483647), 0)
            token = tl.minimum(first, tl.max(tl.where(part > 0, one, 0), 0))
            conf = tl.sum(tl.where(one == token, part, 0.0), 0) / sum_exp
    tl.store(sampled_ptr + row, token.to(tl.int64))
    tl.store(conf_ptr + row, conf)
    tl.store(argmax_ptr + row, argmax.to(tl.int64))
    tl.store(entropy_ptr + row, entropy)
    tl.store(largest_ptr + row, max_logit)
    tl.store(sum_ptr + row, sum_exp)
    divisor = sum_exp * HALF_MAX
    if WRITE_PROBS:
        prob_sum = tl.sum(tl.load(prob_sum_ptr + at, mask=inside, other=0.0), 0)
        divisor = tl.where(max_logit + MAX_EXPONENT >= MIN_EXPONENT, prob_sum, 1.0)
    tl.store(divisor_ptr + row, divisor)


@triton.jit(do_not_specialize=["mask_id", "max_id"])
def _write_probs(
    logits_ptr, temperature_ptr, largest_ptr, sum_ptr, divisor_ptr, probs_ptr, vocab, cap, mask_id, max_id,
    PIECE: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Writes the probabilities of all rows with ALL, otherwise only of rows whose divisor is 1.

    Each row has WRITERS programs, which write its pieces in turn. A row whose weights sum up to exactly 1 is written
    again with the same result.
    """
    row = tl.program_id(1)
    divisor = tl.load(divisor_ptr + row)
    if (divisor == 1.0) | ALL:
        temperature, largest = tl.load(temperature_ptr + row), tl.load(largest_ptr + row)
        scale = divisor / tl.load(sum_ptr + row)
        for start in range(tl.program_id(0) * PIECE, vocab, tl.num_programs(0) * PIECE):
            token = start + tl.arange(0, PIECE)
            x = _scaled(logits_ptr, row, token, vocab, cap, temperature, mask_id, max_id)
            part = tl.exp2(x - largest) * scale
            at = probs_ptr + row.to(tl.int64) * vocab + token
            tl.store(at, part.to(probs_ptr.dtype.element_ty), mask=token < vocab)


def softmax_stats(logits: torch.Tensor, request: StatsRequest) -> SoftmaxStats:
    """Computes `softmax_stats_reference` for contiguous float32 logits on a GPU; `probs` may have another divisor."""
    rows, vocab = logits.shape
    piece = min(PIECE, max(16, triton.next_power_of_2(vocab)))
    pieces = triton.cdiv(vocab, piece)
    max_logit, sum_exp, weighted, prob_sum = logits.new_empty(4, rows, pieces)
    tokens = torch.empty(rows, pieces, dtype=torch.int32, device=logits.device)
    conf, entropy, largest, sum_exp_row, divisor = logits.new_empty(5, rows)
    token, argmax = torch.empty(2, rows, dtype=torch.int64, device=logits.device)
    probs = None
    if request.probs is not None:
        probs = torch.empty(rows, vocab, dtype=request.probs, device=logits.device)
    write_probs = request.probs in (torch.float32, torch.bfloat16)
    temperature = request.temperature.to(torch.float32)
    banned = -1 if request.mask_id is None else request.mask_id
    _piece_stats[(pieces, rows)](
        logits, temperature, max_logit, tokens, sum_exp, weighted, prob_sum, max_logit if probs is None else probs,
        vocab, pieces, request.cap, banned, request.max_token_id, PIECE=piece, MAX_EXPONENT=MAX_EXPONENT,
        WRITE_PROBS=write_probs, num_warps=2,
    )  # fmt: skip
    _merge_pieces[(rows,)](
        logits, temperature, temperature if request.uniform is None else request.uniform, max_logit, tokens, sum_exp,
        weighted, prob_sum, token, conf, argmax, entropy, largest, sum_exp_row, divisor, vocab, pieces, request.cap,
        banned, request.max_token_id, PIECE=piece, PIECES=triton.next_power_of_2(pieces),
        DRAWS=request.uniform is not None, MAX_EXPONENT=MAX_EXPONENT, MIN_EXPONENT=MIN_EXPONENT, HALF_MAX=HALF_MAX,
        WRITE_PROBS=write_probs, num_warps=4,
    )  # fmt: skip
    if probs is None:
        return SoftmaxStats(token, conf, argmax, entropy, None, None)
    _write_probs[(min(WRITERS, triton.cdiv(vocab, WRITE_PIECE)), rows)](
        logits, temperature, largest, sum_exp_row, divisor, probs, vocab, request.cap, banned, request.max_token_id,
        PIECE=WRITE_PIECE, ALL=not write_probs, num_warps=8,
    )  # fmt: skip
    return SoftmaxStats(token, conf, argmax, entropy, probs, divisor)
