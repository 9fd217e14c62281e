"""lm_head and argmax in 8 bits: candidates from e4m3 logits, whose exact logits decide.

A program multiplies one piece of the vocabulary in e4m3 and keeps its two largest logits and the sum of exponentials.
A second kernel selects the CANDIDATES largest logits of each row, computes them again from the 16-bit weights and
hidden states, and takes the largest. The rounding to e4m3 moves a logit by about 4 % of the logits' standard deviation.
The largest of 150,000 normal logits and the twelfth largest differ by more than half a standard deviation, so the true
argmax is one of the candidates. The probability of the token has the exact logits of the candidates; the rest of the
sum is that of the e4m3 logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from runtime.kernels.common import has_descriptor, make_descriptor, tl, tma_load, triton
from runtime.kernels.fused_argmax import ArgmaxOutput, allowed_id_args, is_allowed
from runtime.kernels.quantized_tensor import Fp8, quantized_of

CANDIDATES = 12  # logits of a row that are computed again
FIELDS = 4  # of a piece: largest logit, the two ids, second largest logit, sum of exponentials


class Fp8ArgmaxConfig(NamedTuple):
    """Tile of one program: rows, tokens of the vocabulary, elements of the hidden size."""

    rows: int
    tokens: int
    depth: int
    warps: int
    stages: int


def select_config(rows: int, hidden_size: int) -> Fp8ArgmaxConfig:
    """Selects the tile by the number of rows. With few rows, reading the weights dominates."""
    depth = min(128, max(32, triton.next_power_of_2(hidden_size)))
    if rows <= 64:
        return Fp8ArgmaxConfig(max(16, triton.next_power_of_2(rows)), 128, depth, 4, 5)
    return Fp8ArgmaxConfig(128, 128, depth, 4, 3)


@triton.jit(do_not_specialize=["rows", "vocab", "mask_id", "max_id", "allowed_id_a", "allowed_id_b"])
def _two_largest(
    hidden, hidden_scales_ptr, weights, scales_ptr, num_valid_ptr, found_ptr, rows, vocab, mask_id, max_id,
    allowed_id_a, allowed_id_b, HIDDEN_SIZE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, FIELDS: tl.constexpr, HAS_NUM_VALID: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Reduces the logits of ROWS rows and TOKENS tokens per program, and stores FIELDS numbers to [rows, pieces].

    HAS_NUM_VALID: the number of rows is read from `num_valid_ptr`.
    """
    first_row, piece = tl.program_id(0) * ROWS, tl.program_id(1)
    num_valid = rows
    if HAS_NUM_VALID:
        num_valid = tl.load(num_valid_ptr)
    if first_row >= num_valid:
        return
    acc = tl.zeros([TOKENS, ROWS], tl.float32)
    for start in tl.range(0, HIDDEN_SIZE, DEPTH, num_stages=STAGES):
        weight = tma_load(weights, piece * TOKENS, start, vocab, HIDDEN_SIZE, TOKENS, DEPTH, TMA)
        x = tma_load(hidden, first_row, start, rows, HIDDEN_SIZE, ROWS, DEPTH, TMA)
        acc = tl.dot(weight, tl.trans(x), acc)
    row, offset = first_row + tl.arange(0, ROWS), tl.arange(0, TOKENS)
    token, ok = piece * TOKENS + offset, row < num_valid
    allowed = is_allowed(token, vocab, mask_id, max_id, allowed_id_a, allowed_id_b)
    scale = tl.load(scales_ptr + token, mask=token < vocab, other=0.0)
    logits = acc * scale[:, None] * tl.load(hidden_scales_ptr + row, mask=ok, other=0.0)[None, :]
    logits = tl.where(allowed[:, None], logits, float("-inf"))
    largest = tl.max(logits, 0)
    anchor = tl.where(largest == float("-inf"), 0.0, largest)
    sum_exp = tl.sum(tl.exp(logits - anchor[None, :]), 0)
    best = tl.min(tl.where(logits == largest[None, :], offset[:, None], TOKENS), 0)
    logits = tl.where(offset[:, None] == best[None, :], float("-inf"), logits)
    second = tl.max(logits, 0)
    next_best = tl.min(tl.where(logits == second[None, :], offset[:, None], TOKENS), 0)
    ids = (best | next_best << 16).to(tl.float32, bitcast=True)
    numbers = tl.reshape(tl.join(tl.join(largest, second), tl.join(ids, sum_exp)), [ROWS, FIELDS])
    at = found_ptr + (row.to(tl.int64) * tl.num_programs(1) + piece) * FIELDS
    tl.store(at[:, None] + tl.arange(0, FIELDS)[None, :], numbers, mask=ok[:, None])


@triton.jit(do_not_specialize=["rows", "pieces"])
def _decide(
    hidden_ptr, weight_ptr, num_valid_ptr, found_ptr, token_ptr, conf_ptr, logit_ptr, rows, pieces,
    HIDDEN_SIZE: tl.constexpr, HIDDEN_P2: tl.constexpr, TOKENS: tl.constexpr, PIECES: tl.constexpr,
    FIELDS: tl.constexpr, CANDIDATES: tl.constexpr, HAS_NUM_VALID: tl.constexpr,
):  # fmt: skip
    """Decides one row per program. Padding rows get token 0 with probability 1."""
    row = tl.program_id(0).to(tl.int64)
    num_valid = rows
    if HAS_NUM_VALID:
        num_valid = tl.load(num_valid_ptr)
    if row >= num_valid:
        tl.store(token_ptr + row, row * 0)
        tl.store(conf_ptr + row, 1.0)
        tl.store(logit_ptr + row, 0.0)
        return
    piece, column = tl.arange(0, PIECES), tl.arange(0, HIDDEN_P2)
    inside, ok = piece < pieces, column < HIDDEN_SIZE
    at = found_ptr + (row * pieces + piece) * FIELDS
    first = tl.load(at, mask=inside, other=float("-inf"))
    ids = tl.load(at + 1, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    second = tl.load(at + 2, mask=inside, other=float("-inf"))
    sums = tl.load(at + 3, mask=inside, other=0.0)
    highest = tl.max(first, 0)
    anchor = tl.where(highest == float("-inf"), 0.0, highest)
    rest = tl.sum(sums * tl.exp(first - anchor), 0)
    x = tl.load(hidden_ptr + row * HIDDEN_SIZE + column, mask=ok, other=0.0).to(tl.float32)
    token, logit, total = 2147483647, float("-inf"), 0.0
    for _ in range(CANDIDATES):
        best = tl.max(first, 0)
        chosen = tl.min(tl.where(first == best, piece, PIECES), 0)
        is_chosen = piece == chosen
        some = best > float("-inf")  # an allowed token is left
        candidate = tl.where(some, chosen * TOKENS + tl.sum(tl.where(is_chosen, ids & 0xFFFF, 0), 0), 0)
        w = tl.load(weight_ptr + candidate.to(tl.int64) * HIDDEN_SIZE + column, mask=ok, other=0.0)
        exact = tl.where(some, tl.sum(w.to(tl.float32) * x, 0), float("-inf"))
        rest -= tl.where(some, tl.exp(best - anchor), 0.0)
        total += tl.where(some, tl.exp(exact - anchor), 0.0)
        token = tl.where((exact > logit) | (exact == logit) & (candidate < token), candidate, token)
        logit = tl.maximum(logit, exact)
        ids = tl.where(is_chosen, ids >> 16, ids)
        first = tl.where(is_chosen, second, first)
        second = tl.where(is_chosen, float("-inf"), second)
    total += tl.maximum(rest, 0.0)
    tl.store(token_ptr + row, token.to(tl.int64))
    tl.store(conf_ptr + row, tl.exp(logit - anchor) / total)
    tl.store(logit_ptr + row, logit)


def fp8_lm_head_argmax(
    hidden: torch.Tensor, weight: torch.Tensor, codes: Fp8, *, mask_id: int | None, max_token_id: int,
    allowed_ids: Sequence[int] = (), num_valid: torch.Tensor | None = None,
) -> ArgmaxOutput:  # fmt: skip
    """Computes `lm_head_argmax_reference` for contiguous bfloat16 and float16 on a GPU, with e4m3 products.

    A row without any allowed id has logit -inf.

    Args:
        hidden: [n, hidden_size]; weight: [vocab, hidden_size].
        codes: `weight`, quantized per row.
    """
    (rows, hidden_size), vocab, x = hidden.shape, len(weight), quantized_of(hidden)
    config = select_config(rows, hidden_size)
    pieces = triton.cdiv(vocab, config.tokens)
    found = torch.empty(rows, pieces, FIELDS, dtype=torch.float32, device=hidden.device)
    hidden_desc = make_descriptor(x.values, config.rows, config.depth)
    weights = make_descriptor(codes.values, config.tokens, config.depth)
    if not (has_descriptor(hidden_desc) and has_descriptor(weights)):
        hidden_desc, weights = x.values, codes.values
    banned, first, second = allowed_id_args(mask_id, allowed_ids)
    num_valid_ptr = found if num_valid is None else num_valid
    _two_largest[(triton.cdiv(rows, config.rows), pieces)](
        hidden_desc, x.scales, weights, codes.scales, num_valid_ptr, found, rows, vocab,
        banned, max_token_id, first, second, HIDDEN_SIZE=hidden_size, ROWS=config.rows,
        TOKENS=config.tokens, DEPTH=config.depth, STAGES=config.stages, FIELDS=FIELDS,
        HAS_NUM_VALID=num_valid is not None, TMA=has_descriptor(weights), num_warps=config.warps,
    )  # fmt: skip
    token = torch.empty(rows, dtype=torch.int64, device=hidden.device)
    conf, logit = torch.empty(2, rows, dtype=torch.float32, device=hidden.device)
    _decide[(rows,)](
        hidden, weight, num_valid_ptr, found, token, conf, logit, rows, pieces, HIDDEN_SIZE=hidden_size,
        HIDDEN_P2=triton.next_power_of_2(hidden_size), TOKENS=config.tokens, PIECES=triton.next_power_of_2(pieces),
        FIELDS=FIELDS, CANDIDATES=CANDIDATES, HAS_NUM_VALID=num_valid is not None, num_warps=8,
    )  # fmt: skip
    return ArgmaxOutput(token, conf, logit)
