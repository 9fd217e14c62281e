"""Fused lm_head and argmax: the argmax token of each row and its probability, without logits in memory.

A program reduces one piece of the vocabulary to its largest logit, that logit's id and the sum of exponentials. A
second kernel merges the pieces as online softmax does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from runtime.kernels.common import has_descriptor, make_descriptor, tl, tma_load, triton, wide

NO_ID = 2147483647  # matches no id
MAX_ALLOWED_IDS = 2  # ids above `max_token_id` that the kernel can allow


class ArgmaxOutput(NamedTuple):
    """Result per row, each [n]."""

    token: torch.Tensor  # int64
    conf: torch.Tensor  # softmax probability of `token`
    logit: torch.Tensor  # logit of `token`


def lm_head_argmax_reference(
    hidden: torch.Tensor, weight: torch.Tensor, *, mask_id: int | None, max_token_id: int,
    allowed_ids: Sequence[int] = (), num_valid: torch.Tensor | None = None,
) -> ArgmaxOutput:  # fmt: skip
    """Returns the argmax token of each row (the lowest id of equal logits), its probability and its logit.

    A row without any allowed id has logit -inf and a probability that is not finite.

    Args:
        hidden: [n, hidden_size]; weight: [vocab, hidden_size].
        mask_id: forbidden id unless in `allowed_ids`; None if the model has none.
        max_token_id: largest id that may be predicted.
        allowed_ids: ids that may be predicted although they are the mask or above `max_token_id`.
        num_valid: int32 [1], number of rows before the padding; results of padding rows are undefined.

    Returns:
        float32 probabilities and logits (float64 for float64).
    """
    up = wide(hidden.dtype)
    logits = torch.nn.functional.linear(hidden.to(up), weight.to(up))
    ids = torch.arange(len(weight), device=hidden.device)
    banned = ids > max_token_id
    if mask_id is not None:
        banned |= ids == mask_id
    for token in allowed_ids:
        banned &= ids != token
    logits = logits.masked_fill(banned, float("-inf"))
    token = logits.argmax(dim=1)  # the first of equal values
    logit = logits.gather(1, token[:, None])[:, 0]
    return ArgmaxOutput(token, (logit - logits.logsumexp(dim=1)).exp(), logit)


class ArgmaxConfig(NamedTuple):
    """Tile sizes of one program, for a GEMM of m rows, n tokens of the vocabulary and k elements of the hidden size.

    `tail_m`: rows behind the last full tile that its program computes too, so that the weights are read once for both.
    `tail_stages`: pipeline stages of such a program.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    swap_ab: bool  # the weights are the first operand, which takes 64 rows at a time
    tail_m: int = 0
    tail_stages: int = 0


def select_config(rows: int, hidden_size: int, element_size: int, *, batch_invariant: bool = False) -> ArgmaxConfig:
    """Selects the tile by the number of rows. With few rows, reading the weights dominates.

    Args:
        batch_invariant: pieces of the vocabulary and their sums do not depend on the number of rows.
    """
    if element_size == 4:
        config = ArgmaxConfig(16, 32, 32, 4, 2, True)
    elif batch_invariant:
        config = ArgmaxConfig(16 if rows <= 16 else 64 if rows <= 64 else 128, 128, 64, 4, 4 if rows <= 64 else 3, True)
    elif rows <= 16:
        config = ArgmaxConfig(16, 64, 128, 4, 4, True)
    elif rows <= 64:
        config = ArgmaxConfig(64, 128, 64, 4, 4, True)
    elif 160 < rows <= 192:
        config = ArgmaxConfig(128, 128, 64, 8, 3, False, tail_m=64, tail_stages=4)
    elif 192 < rows <= 256:
        config = ArgmaxConfig(256, 128, 64, 8, 4, False)
    else:
        config = ArgmaxConfig(128, 128, 64, 4, 3, False, tail_m=32, tail_stages=3)
    return config._replace(block_k=min(config.block_k, max(16, triton.next_power_of_2(hidden_size))))


@triton.jit
def is_allowed(token, vocab, mask_id, max_id, allowed_id_a, allowed_id_b):
    """Returns which tokens may be predicted."""
    allowed = (token <= max_id) & (token != mask_id) | (token == allowed_id_a) | (token == allowed_id_b)
    return allowed & (token < vocab)


def allowed_id_args(mask_id: int | None, allowed_ids: Sequence[int]) -> tuple[int, int, int]:
    """Returns the arguments `mask_id`, `allowed_id_a` and `allowed_id_b` of `is_allowed`; `NO_ID` for none."""
    assert len(allowed_ids) <= MAX_ALLOWED_IDS
    first, second = (*allowed_ids, NO_ID, NO_ID)[:MAX_ALLOWED_IDS]
    return NO_ID if mask_id is None else mask_id, first, second


@triton.jit
def _store_partial(
    acc, offs_m, num_valid, rows, piece, max_logit_ptr, token_ptr, sum_exp_ptr, vocab, mask_id, max_id, allowed_id_a,
    allowed_id_b, BLOCK_N: tl.constexpr, SWAP_AB: tl.constexpr,
):  # fmt: skip
    """Reduces one piece of the logits of the rows `offs_m` and stores the result to [pieces, rows]."""
    offs_n = piece * BLOCK_N + tl.arange(0, BLOCK_N)
    allowed = is_allowed(offs_n, vocab, mask_id, max_id, allowed_id_a, allowed_id_b)
    if SWAP_AB:
        logits = tl.where(allowed[:, None], acc, float("-inf"))
        max_logit = tl.max(logits, 0)
        argmax = tl.min(tl.where(logits == max_logit[None, :], offs_n[:, None], 2147483647), 0)
        anchor = tl.where(max_logit == float("-inf"), 0.0, max_logit)
        sum_exp = tl.sum(tl.exp(logits - anchor[None, :]), 0)
    else:
        logits = tl.where(allowed[None, :], acc, float("-inf"))
        max_logit = tl.max(logits, 1)
        argmax = tl.min(tl.where(logits == max_logit[:, None], offs_n[None, :], 2147483647), 1)
        anchor = tl.where(max_logit == float("-inf"), 0.0, max_logit)
        sum_exp = tl.sum(tl.exp(logits - anchor[:, None]), 1)
    at = piece.to(tl.int64) * rows + offs_m
    tl.store(max_logit_ptr + at, max_logit, mask=offs_m < num_valid)
    tl.store(token_ptr + at, argmax, mask=offs_m < num_valid)
    tl.store(sum_exp_ptr + at, sum_exp, mask=offs_m < num_valid)


@triton.jit(do_not_specialize=["rows", "vocab", "mask_id", "max_id", "allowed_id_a", "allowed_id_b"])
def _partial_argmax(
    hidden, tail_hidden, weights, num_valid_ptr, max_logit_ptr, token_ptr, sum_exp_ptr, rows, vocab, mask_id, max_id,
    allowed_id_a, allowed_id_b, HIDDEN_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, SWAP_AB: tl.constexpr, TAIL_M: tl.constexpr,
    TAIL_STAGES: tl.constexpr, HAS_NUM_VALID: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Reduces the logits of BLOCK_M rows and BLOCK_N tokens of the vocabulary per program.

    The program also reduces up to TAIL_M further rows if they are the last.

    HAS_NUM_VALID: the number of rows is read from `num_valid_ptr`. `tail_hidden`: `hidden` with a descriptor of
    TAIL_M rows.
    """
    first_row, piece = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    first_token = piece * BLOCK_N
    num_valid = rows
    if HAS_NUM_VALID:
        num_valid = tl.load(num_valid_ptr)
    remaining = num_valid - first_row
    if remaining <= 0:
        return
    if TAIL_M > 0:
        if (first_row > 0) & (remaining <= TAIL_M):  # computed by the previous program
            return
        if (remaining > BLOCK_M) & (remaining <= BLOCK_M + TAIL_M):
            acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            tail_acc = tl.zeros([BLOCK_N, TAIL_M], tl.float32)
            for start in tl.range(0, HIDDEN_SIZE, BLOCK_K, num_stages=TAIL_STAGES):
                weight = tma_load(weights, first_token, start, vocab, HIDDEN_SIZE, BLOCK_N, BLOCK_K, TMA)
                x = tma_load(hidden, first_row, start, rows, HIDDEN_SIZE, BLOCK_M, BLOCK_K, TMA)
                tail_x = tma_load(tail_hidden, first_row + BLOCK_M, start, rows, HIDDEN_SIZE, TAIL_M, BLOCK_K, TMA)
                acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
                tail_acc = tl.dot(weight, tl.trans(tail_x), tail_acc, input_precision="ieee")
            offs_m = first_row + tl.arange(0, BLOCK_M)
            _store_partial(
                acc, offs_m, num_valid, rows, piece, max_logit_ptr, token_ptr, sum_exp_ptr, vocab, mask_id, max_id,
                allowed_id_a, allowed_id_b, BLOCK_N, True,
            )  # fmt: skip
            offs_m = first_row + BLOCK_M + tl.arange(0, TAIL_M)
            _store_partial(
                tail_acc, offs_m, num_valid, rows, piece, max_logit_ptr, token_ptr, sum_exp_ptr, vocab, mask_id, max_id,
                allowed_id_a, allowed_id_b, BLOCK_N, True,
            )  # fmt: skip
            return
    if SWAP_AB:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, HIDDEN_SIZE, BLOCK_K, num_stages=STAGES):
        x = tma_load(hidden, first_row, start, rows, HIDDEN_SIZE, BLOCK_M, BLOCK_K, TMA)
        weight = tma_load(weights, first_token, start, vocab, HIDDEN_SIZE, BLOCK_N, BLOCK_K, TMA)
        if SWAP_AB:
            acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    offs_m = first_row + tl.arange(0, BLOCK_M)
    _store_partial(
        acc, offs_m, num_valid, rows, piece, max_logit_ptr, token_ptr, sum_exp_ptr, vocab, mask_id, max_id,
        allowed_id_a, allowed_id_b, BLOCK_N, SWAP_AB,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "pieces"])
def _merge_partials(
    num_valid_ptr, max_logit_ptr, token_ptr, sum_exp_ptr, out_ptr, conf_ptr, logit_ptr, rows, pieces,
    BLOCK_M: tl.constexpr, PIECES: tl.constexpr, HAS_NUM_VALID: tl.constexpr,
):  # fmt: skip
    """Merges BLOCK_M rows per program, PIECES pieces per iteration. Padding rows get token 0 with probability 1."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    num_valid = rows
    if HAS_NUM_VALID:
        num_valid = tl.load(num_valid_ptr)
    ok = row < num_valid
    max_logit = tl.full([BLOCK_M], float("-inf"), tl.float32)
    token = tl.full([BLOCK_M], 2147483647, tl.int32)
    sum_exp = tl.zeros([BLOCK_M], tl.float32)
    for first in range(0, pieces, PIECES):
        piece = first + tl.arange(0, PIECES)
        at = piece.to(tl.int64)[:, None] * rows + row[None, :]
        inside = (piece < pieces)[:, None] & ok[None, :]
        max_logits = tl.load(max_logit_ptr + at, mask=inside, other=float("-inf"))
        tokens = tl.load(token_ptr + at, mask=inside, other=2147483647)
        sum_exps = tl.load(sum_exp_ptr + at, mask=inside, other=0.0)
        new_max = tl.maximum(tl.max(max_logits, 0), max_logit)
        argmax = tl.min(tl.where(max_logits == new_max[None, :], tokens, 2147483647), 0)
        token = tl.minimum(tl.where(max_logit == new_max, token, 2147483647), argmax)
        anchor = tl.where(new_max == float("-inf"), 0.0, new_max)
        sum_exp = sum_exp * tl.exp(max_logit - anchor) + tl.sum(sum_exps * tl.exp(max_logits - anchor[None, :]), 0)
        max_logit = new_max
    tl.store(out_ptr + row, tl.where(ok, token, 0).to(tl.int64), mask=row < rows)
    tl.store(conf_ptr + row, 1.0 / tl.where(ok, sum_exp, 1.0), mask=row < rows)
    tl.store(logit_ptr + row, tl.where(ok, max_logit, 0.0), mask=row < rows)


def lm_head_argmax(
    hidden: torch.Tensor, weight: torch.Tensor, *, mask_id: int | None, max_token_id: int,
    allowed_ids: Sequence[int] = (), num_valid: torch.Tensor | None = None, batch_invariant: bool = False,
) -> ArgmaxOutput:  # fmt: skip
    """Computes `lm_head_argmax_reference` for contiguous float32, float16 and bfloat16 on a GPU.

    Logits are accumulated in float32.

    Args:
        batch_invariant: the bits of a row do not depend on the other rows.
    """
    (rows, hidden_size), vocab = hidden.shape, len(weight)
    config = select_config(rows, hidden_size, hidden.element_size(), batch_invariant=batch_invariant)
    pieces = triton.cdiv(vocab, config.block_n)
    max_logit, sum_exp = hidden.new_empty(2, pieces, rows, dtype=torch.float32)
    partial_ids = hidden.new_empty(pieces, rows, dtype=torch.int32)
    hidden_desc = make_descriptor(hidden, config.block_m, config.block_k)
    weights = make_descriptor(weight, config.block_n, config.block_k)
    tail_hidden = make_descriptor(hidden, config.tail_m or config.block_m, config.block_k)
    if not (has_descriptor(hidden_desc) and has_descriptor(weights)):
        hidden_desc, tail_hidden, weights = hidden, hidden, weight
    banned, first, second = allowed_id_args(mask_id, allowed_ids)
    num_valid_ptr = partial_ids if num_valid is None else num_valid
    _partial_argmax[(triton.cdiv(rows, config.block_m), pieces)](
        hidden_desc, tail_hidden, weights, num_valid_ptr, max_logit, partial_ids, sum_exp, rows, vocab,
        banned, max_token_id, first, second, HIDDEN_SIZE=hidden_size,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, STAGES=config.stages,
        SWAP_AB=config.swap_ab, TAIL_M=config.tail_m, TAIL_STAGES=config.tail_stages,
        HAS_NUM_VALID=num_valid is not None, TMA=has_descriptor(weights), num_warps=config.warps,
    )  # fmt: skip
    token = hidden.new_empty(rows, dtype=torch.int64)
    conf, logit = hidden.new_empty(2, rows, dtype=torch.float32)
    _merge_partials[(triton.cdiv(rows, 4),)](
        num_valid_ptr, max_logit, partial_ids, sum_exp, token, conf, logit, rows, pieces, BLOCK_M=4, PIECES=256,
        HAS_NUM_VALID=num_valid is not None, num_warps=4,
    )  # fmt: skip
    return ArgmaxOutput(token, conf, logit)
