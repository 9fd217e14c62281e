"""All that a rule of noise asks of a vocabulary, from logits as the product leaves them: each number is read once, and
written once where the distribution itself is wanted.

A program keeps of its piece of the vocabulary what `greedy_head` does and the entropy's sum; a second kernel joins the
pieces of a row, finds the piece that the draw falls into and looks it up there. The distribution is written before its
sum is known, and before its largest is: the cap bounds all logits, so each weighs a power of 2 by what it lacks of that
bound, and whoever multiplies with these weights divides by their sum at last. A third kernel reads those rows again
whose weights are too small for it, as they are where even the largest is far from the bound; and all rows of float16,
which has no room for powers of unknown size: there they are multiples by a power of 2 of the largest's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton

PIECE, WRITTEN = 2048, 4096  # of the vocabulary, that a program reads, and writes probabilities of
WRITERS = 4  # programs a row that write probabilities: most rows have theirs, and many would only begin and end
# A logit at the bound weighs 2^HIGHEST, and a row's weights serve if its largest is at least 2^LOWEST. Then sums of
# 2^18 ids' weights have room for embeddings up to 2^29, and a weight of 2^-60 times the largest is no zero yet.
HIGHEST, LOWEST = 80.0, -60.0
HALF = 2.0**15  # of float16, what a row's largest weighs: probabilities of 2^18 ids are next to its smallest numbers


class Asked(NamedTuple):
    """Of rows of logits. They are capped first (``cap * tanh(logits / cap)``), then what is banned is taken out, and
    the rest divided by `heat` [rows]."""

    heat: torch.Tensor  # float [rows]
    uniform: torch.Tensor | None  # float64 [rows]: what each row draws with, less than 0: it takes the likeliest
    cap: float
    mask_id: int | None  # banned, as are those above
    max_token_id: int
    probs: torch.dtype | None  # the distribution is wanted, of this type


class Described(NamedTuple):
    token: torch.Tensor  # int64 [rows], drawn: the first id in id order whose cumulative probability exceeds `uniform`
    conf: torch.Tensor  # float [rows], its probability
    best: torch.Tensor  # int64 [rows], the likeliest (of equals the lowest id)
    entropy: torch.Tensor  # float [rows], in nats
    probs: torch.Tensor | None  # [rows, vocab], as many times the distribution as the next says
    divisor: torch.Tensor | None  # float [rows], above 0: what they sum up to, or 1


def describe_reference(logits: torch.Tensor, asked: Asked) -> Described:
    """logits: float32 or float64 [rows, vocab], left as they are."""
    up = wide(logits.dtype)
    scaled = (logits.to(up) / asked.cap).tanh() * asked.cap
    if asked.mask_id is not None:
        scaled[:, asked.mask_id] = float("-inf")
    scaled[:, asked.max_token_id + 1 :] = float("-inf")
    scaled = scaled / asked.heat.to(up)[:, None]
    probs, best = scaled.softmax(1), scaled.argmax(1)
    token = best
    if asked.uniform is not None:
        below = probs.cumsum(1, dtype=torch.float64) <= asked.uniform[:, None]
        last = probs.shape[1] - 1 - (probs > 0).flip(1).int().argmax(1)  # if rounding leaves the sum short of it
        token = torch.where(asked.uniform < 0, best, torch.minimum(below.sum(1), last))
    conf = probs.gather(1, token[:, None])[:, 0]
    entropy = torch.special.entr(probs).sum(1)
    if asked.probs is None:
        return Described(token, conf, best, entropy, None, None)
    return Described(token, conf, best, entropy, probs.to(asked.probs), torch.ones_like(conf))


@triton.jit
def _scaled(logits_ptr, row, token, vocab, cap, heat, mask_id, max_id):
    """A row's logits of `token`, capped, banned and divided, for powers of 2 in e's place, less the most that they can
    be. Banned ones are loaded too: a mask that ends anywhere would split the loads."""
    x = tl.load(logits_ptr + row.to(tl.int64) * vocab + token, mask=token < vocab, other=0.0)
    high = 1.4426950408889634 * cap / heat
    x = -2.0 * high / (tl.exp2(2.8853900817779268 / cap * x) + 1.0)  # cap * tanh(x / cap) - cap
    return tl.where((token < vocab) & (token <= max_id) & (token != mask_id), x, float("-inf"))


@triton.jit(do_not_specialize=["pieces", "mask_id", "max_id"])
def _survey(
    logits_ptr, heat_ptr, best_ptr, token_ptr, total_ptr, weighed_ptr, written_ptr, probs_ptr, vocab, pieces, cap,
    mask_id, max_id, PIECE: tl.constexpr, HIGHEST: tl.constexpr, WRITES: tl.constexpr,
):  # fmt: skip
    """One program: a piece of a row. Beside the largest and where it is the sum of 2^(x - largest), and of that times
    (x - largest), and of the weights, to [rows, pieces]; and what each id weighs."""
    piece, row = tl.program_id(0), tl.program_id(1)
    token = piece * PIECE + tl.arange(0, PIECE)
    x = _scaled(logits_ptr, row, token, vocab, cap, tl.load(heat_ptr + row), mask_id, max_id)
    best = tl.max(x, 0)
    found = tl.min(tl.where(x == best, token, 2147483647), 0)
    # 2^-200 is 0, and so is what a banned one weighs
    below = tl.maximum(x - tl.where(best == float("-inf"), 0.0, best), -200.0)
    part = tl.exp2(below)
    at = row * pieces + piece
    tl.store(best_ptr + at, best)
    tl.store(token_ptr + at, found)
    tl.store(total_ptr + at, tl.sum(part, 0))
    tl.store(weighed_ptr + at, tl.sum(part * below, 0))
    if WRITES:
        weight = (part * tl.exp2(best + HIGHEST)).to(probs_ptr.dtype.element_ty)
        tl.store(probs_ptr + row.to(tl.int64) * vocab + token, weight, mask=token < vocab)
        # as they are rounded: a row that is all but sure of one id has its embedding, whatever that one's weight became
        tl.store(written_ptr + at, tl.sum(weight.to(tl.float32), 0))


@triton.jit(do_not_specialize=["pieces", "mask_id", "max_id"])
def _join(
    logits_ptr, heat_ptr, uniform_ptr, best_ptr, token_ptr, total_ptr, weighed_ptr, written_ptr,
    drawn_ptr, conf_ptr, likeliest_ptr, entropy_ptr, largest_ptr, sum_ptr, divisor_ptr, vocab, pieces, cap, mask_id,
    max_id, PIECE: tl.constexpr, PIECES: tl.constexpr, DRAWS: tl.constexpr, HIGHEST: tl.constexpr, LOWEST: tl.constexpr,
    HALF: tl.constexpr, WRITES: tl.constexpr,
):  # fmt: skip
    """One program a row."""
    row = tl.program_id(0)
    piece = tl.arange(0, PIECES)
    inside = piece < pieces
    at = row * pieces + piece
    bests = tl.load(best_ptr + at, mask=inside, other=float("-inf"))
    best = tl.max(bests, 0)
    tokens = tl.load(token_ptr + at, mask=inside, other=2147483647)
    likeliest = tl.min(tl.where(bests == best, tokens, 2147483647), 0)
    some = bests > float("-inf")
    below = tl.where(some, bests - best, 0.0)
    share = tl.where(some, tl.exp2(below), 0.0)
    totals = tl.load(total_ptr + at, mask=inside, other=0.0)
    weighed = tl.load(weighed_ptr + at, mask=inside, other=0.0)
    total = tl.sum(totals * share, 0)
    entropy = 0.6931471805599453 * (tl.log2(total) - tl.sum((weighed + totals * below) * share, 0) / total)
    token, conf = likeliest, 1.0 / total
    if DRAWS:
        uniform = tl.load(uniform_ptr + row)
        if uniform >= 0.0:
            masses = totals.to(tl.float64) * share.to(tl.float64)
            goal = uniform * tl.sum(masses, 0)
            sums = tl.cumsum(masses, 0)
            last = tl.max(tl.where(masses > 0, piece, 0), 0)
            chosen = tl.minimum(tl.min(tl.where(sums > goal, piece, PIECES), 0), last)
            goal -= tl.sum(tl.where(piece < chosen, masses, 0.0), 0)
            one = chosen * PIECE + tl.arange(0, PIECE)
            x = _scaled(logits_ptr, row, one, vocab, cap, tl.load(heat_ptr + row), mask_id, max_id)
            part = tl.where(x == float("-inf"), 0.0, tl.exp2(x - best))
            first = tl.min(tl.where(tl.cumsum(part.to(tl.float64), 0) > goal, one, 2147483647), 0)
            token = tl.minimum(first, tl.max(tl.where(part > 0, one, 0), 0))
            conf = tl.sum(tl.where(one == token, part, 0.0), 0) / total
    tl.store(drawn_ptr + row, token.to(tl.int64))
    tl.store(conf_ptr + row, conf)
    tl.store(likeliest_ptr + row, likeliest.to(tl.int64))
    tl.store(entropy_ptr + row, entropy)
    tl.store(largest_ptr + row, best)
    tl.store(sum_ptr + row, total)
    divisor = total * HALF
    if WRITES:
        written = tl.sum(tl.load(written_ptr + at, mask=inside, other=0.0), 0)
        divisor = tl.where(best + HIGHEST >= LOWEST, written, 1.0)
    tl.store(divisor_ptr + row, divisor)


@triton.jit(do_not_specialize=["mask_id", "max_id"])
def _distribution(
    logits_ptr, heat_ptr, largest_ptr, sum_ptr, divisor_ptr, probs_ptr, vocab, cap, mask_id, max_id,
    PIECE: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """One of a row's programs: pieces in turns, of all rows or where the divisor says that probabilities are to be
    there. A row whose weights sum up to 1 by chance is written again, as right as before."""
    row = tl.program_id(1)
    divisor = tl.load(divisor_ptr + row)
    if (divisor == 1.0) | ALL:
        heat, largest, share = tl.load(heat_ptr + row), tl.load(largest_ptr + row), divisor / tl.load(sum_ptr + row)
        for start in range(tl.program_id(0) * PIECE, vocab, tl.num_programs(0) * PIECE):
            token = start + tl.arange(0, PIECE)
            x = _scaled(logits_ptr, row, token, vocab, cap, heat, mask_id, max_id)
            part = tl.exp2(x - largest) * share
            at = probs_ptr + row.to(tl.int64) * vocab + token
            tl.store(at, part.to(probs_ptr.dtype.element_ty), mask=token < vocab)


def describe(logits: torch.Tensor, asked: Asked) -> Described:
    """`describe_reference` for contiguous float32 logits on a GPU, but for what `probs` are a multiple of."""
    rows, vocab = logits.shape
    piece = min(PIECE, max(16, triton.next_power_of_2(vocab)))
    pieces = triton.cdiv(vocab, piece)
    best, total, weighed, written = logits.new_empty(4, rows, pieces)
    tokens = torch.empty(rows, pieces, dtype=torch.int32, device=logits.device)
    conf, entropy, largest, whole, divisor = logits.new_empty(5, rows)
    token, likeliest = torch.empty(2, rows, dtype=torch.int64, device=logits.device)
    probs = None
    if asked.probs is not None:
        probs = torch.empty(rows, vocab, dtype=asked.probs, device=logits.device)
    writes = asked.probs in (torch.float32, torch.bfloat16)
    heat = asked.heat.to(torch.float32)
    banned = -1 if asked.mask_id is None else asked.mask_id
    _survey[(pieces, rows)](
        logits, heat, best, tokens, total, weighed, written, best if probs is None else probs, vocab, pieces, asked.cap,
        banned, asked.max_token_id, PIECE=piece, HIGHEST=HIGHEST, WRITES=writes, num_warps=2,
    )  # fmt: skip
    _join[(rows,)](
        logits, heat, heat if asked.uniform is None else asked.uniform, best, tokens, total, weighed, written, token,
        conf, likeliest, entropy, largest, whole, divisor, vocab, pieces, asked.cap, banned, asked.max_token_id,
        PIECE=piece, PIECES=triton.next_power_of_2(pieces), DRAWS=asked.uniform is not None, HIGHEST=HIGHEST,
        LOWEST=LOWEST, HALF=HALF, WRITES=writes, num_warps=4,
    )  # fmt: skip
    if probs is None:
        return Described(token, conf, likeliest, entropy, None, None)
    _distribution[(min(WRITERS, triton.cdiv(vocab, WRITTEN)), rows)](
        logits, heat, largest, whole, divisor, probs, vocab, asked.cap, banned, asked.max_token_id, PIECE=WRITTEN,
        ALL=not writes, num_warps=8,
    )  # fmt: skip
    return Described(token, conf, likeliest, entropy, probs, divisor)
