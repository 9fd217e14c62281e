"""Fused kernel of the `threshold` algorithm: unmasks positions and computes the step's results in one launch.

A masked position is unmasked if its confidence exceeds the threshold. If none does and the block may not stall, the
most confident one is unmasked, and all if the block has used its steps. The general path (``algorithms.base``,
``worker.sampler``) takes about fifty small launches, at one request 3 % of a step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.common import tl, triton

MASKED, UNMASKED = 1, 2  # states of a position; 0: FIXED
STATE_BITS = 3
NUMBERS = 8
ROWS, MAX_COMPARISONS = 128, 4096  # maximum sampled rows per iteration, and rows times positions


class BlockInputs(NamedTuple):
    """`n` blocks of at most `B` positions before a step, in the tables of ``worker.request_states``.

    Entry 0 of the tables is for padding: token 0, state 0.
    """

    tokens: torch.Tensor  # int32 [entries]
    states: torch.Tensor  # int8 [entries]; bits above STATE_BITS are not changed
    first: torch.Tensor  # int64 [n], entry of the first position
    size: torch.Tensor  # int64 [n], number of positions
    width: int  # B
    numbers: torch.Tensor  # int64 [n, any]
    must_advance: int  # column of `numbers`: whether the step must unmask a position
    num_steps: int  # column of `numbers` with the earlier steps that had to
    params: torch.Tensor  # float64 [n, any]
    threshold: int  # column of `params` with the confidence threshold
    max_steps: int  # column of `params` with the number of steps


class SampledRows(NamedTuple):
    """Sampled rows: all masked positions, and possibly rows of blocks without any, which have no effect."""

    token: torch.Tensor  # int64 [rows]
    conf: torch.Tensor  # float [rows], its probability
    block: torch.Tensor  # int64 [rows], index of the row's block
    at: torch.Tensor  # int64 [rows], offset in the block


class UnmaskOutput(NamedTuple):
    """The blocks after a step, [n, B]. Positions behind a smaller block have token 0 and are FIXED.

    `numbers`, int64 [NUMBERS, n]: masked positions; unmasked ones; 0; 0; the first masked position; the first position
    filled with an end-of-sequence token (B if none); whether one was forced; whether none is masked.
    """

    numbers: torch.Tensor
    tokens: torch.Tensor
    state: torch.Tensor


def threshold_unmask_reference(
    blocks: BlockInputs, sampled: SampledRows, mask_id: int | None, eos_ids: torch.Tensor
) -> UnmaskOutput:
    """Returns the blocks after a step, and writes them to the tables."""
    at = torch.arange(blocks.width, device=blocks.tokens.device)
    inside = at < blocks.size[:, None]
    index = torch.where(inside, blocks.first[:, None] + at, 0)
    stored = blocks.states[index]
    tokens, state = blocks.tokens[index].long(), stored & STATE_BITS
    masked = state == MASKED
    must_advance, num_steps = blocks.numbers[:, blocks.must_advance] > 0, blocks.numbers[:, blocks.num_steps]
    choice = tokens.clone()
    conf = torch.full(tokens.shape, float("-inf"), dtype=sampled.conf.dtype, device=tokens.device)
    choice[sampled.block, sampled.at], conf[sampled.block, sampled.at] = sampled.token, sampled.conf
    conf = conf.masked_fill(~masked, float("-inf"))
    passed = masked & (conf > blocks.params[:, blocks.threshold, None])
    forced = must_advance & masked.any(1) & ~passed.any(1)
    best = torch.nn.functional.one_hot(conf.argmax(1), conf.shape[1]).bool()  # the first of equal values
    last = must_advance & (num_steps + 1 >= blocks.params[:, blocks.max_steps])
    unmasked = passed | (best & forced[:, None]) | (masked & last[:, None])
    remaining = masked & ~unmasked
    new_tokens = torch.where(unmasked, choice, tokens)
    filled = (state > 0) & ~remaining
    is_eos = (new_tokens[:, :, None] == eos_ids).any(2) & filled
    size = blocks.width
    none = torch.zeros_like(num_steps)
    numbers = [
        remaining.sum(1), unmasked.sum(1), none, none, torch.where(remaining, at, size).amin(1),
        torch.where(is_eos, at, size).amin(1), forced.long(), (~remaining.any(1)).long(),
    ]  # fmt: skip
    if mask_id is not None:
        new_tokens = torch.where(remaining, mask_id, new_tokens)
    new_state = (state > 0).to(torch.int8) + filled
    blocks.tokens[index], blocks.states[index] = new_tokens.int(), new_state + (stored & ~STATE_BITS)
    return UnmaskOutput(torch.stack(numbers), new_tokens, new_state)


@triton.jit(do_not_specialize=["rows", "blocks", "mask_id"])
def _threshold_unmask(
    tokens_ptr, states_ptr, first_ptr, size_ptr, block_numbers_ptr, params_ptr, token_ptr, conf_ptr, block_ptr, at_ptr,
    eos_ptr, numbers_ptr, new_tokens_ptr, new_state_ptr, rows, blocks, mask_id,
    BLOCK_NUMBERS: tl.constexpr, MUST_ADVANCE: tl.constexpr, NUM_STEPS: tl.constexpr, COLUMNS: tl.constexpr,
    THRESHOLD: tl.constexpr, STEPS: tl.constexpr, SIZE: tl.constexpr, SIZE_P2: tl.constexpr, ROWS: tl.constexpr,
    EOS: tl.constexpr,
):  # fmt: skip
    """Processes one block per program, in place.

    Warps that hold the same positions load them before one of them stores: the search for rows, at least one, has a
    barrier.
    """
    block = tl.program_id(0)
    at = tl.arange(0, SIZE_P2)
    flat = block * SIZE + at
    inside = at < tl.load(size_ptr + block)
    entry = tl.load(first_ptr + block) + at
    tokens = tl.load(tokens_ptr + entry, mask=inside, other=0).to(tl.int64)
    stored = tl.load(states_ptr + entry, mask=inside, other=0).to(tl.int32)
    state = stored & 3
    masked = state == 1
    choice = tokens
    conf = tl.full([SIZE_P2], float("-inf"), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        in_block = tl.load(block_ptr + row, mask=row < rows, other=-1) == block
        if tl.max(in_block.to(tl.int32), 0) > 0:
            matches = in_block[:, None] & (tl.load(at_ptr + row, mask=in_block, other=-1)[:, None] == at[None, :])
            found = tl.max(matches.to(tl.int32), 0) > 0
            token = tl.load(token_ptr + row, mask=in_block, other=0)
            row_conf = tl.load(conf_ptr + row, mask=in_block, other=0.0)
            choice = tl.where(found, tl.max(tl.where(matches, token[:, None], -1), 0), choice)
            conf = tl.where(found, tl.max(tl.where(matches, row_conf[:, None], float("-inf")), 0), conf)
    conf = tl.where(masked, conf, float("-inf"))
    force = tl.load(block_numbers_ptr + block * BLOCK_NUMBERS + MUST_ADVANCE) != 0
    threshold = tl.load(params_ptr + block * COLUMNS + THRESHOLD)
    steps = tl.load(params_ptr + block * COLUMNS + STEPS)
    passed = masked & (conf.to(tl.float64) > threshold)
    any_masked, any_passed = tl.max(masked.to(tl.int32), 0) > 0, tl.max(passed.to(tl.int32), 0) > 0
    forced = force & any_masked & (any_passed == 0)
    best = tl.min(tl.where(conf == tl.max(conf, 0), at, SIZE_P2), 0)
    last = force & ((tl.load(block_numbers_ptr + block * BLOCK_NUMBERS + NUM_STEPS) + 1).to(tl.float64) >= steps)
    unmasked = passed | ((at == best) & forced) | (masked & last)
    remaining = masked & (unmasked == 0)
    new_tokens = tl.where(unmasked, choice, tokens)
    filled = (state > 0) & (remaining == 0)
    is_eos = tl.zeros([SIZE_P2], tl.int1)
    for i in tl.static_range(EOS):
        is_eos = is_eos | (new_tokens == tl.load(eos_ptr + i))
    is_eos = is_eos & filled
    masks = tl.sum(remaining.to(tl.int32), 0)
    tl.store(numbers_ptr + block, masks.to(tl.int64))
    tl.store(numbers_ptr + blocks + block, tl.sum(unmasked.to(tl.int32), 0).to(tl.int64))
    nothing = masks.to(tl.int64) * 0
    tl.store(numbers_ptr + 2 * blocks + block, nothing)
    tl.store(numbers_ptr + 3 * blocks + block, nothing)
    tl.store(numbers_ptr + 4 * blocks + block, tl.min(tl.where(remaining, at, SIZE), 0).to(tl.int64))
    tl.store(numbers_ptr + 5 * blocks + block, tl.min(tl.where(is_eos, at, SIZE), 0).to(tl.int64))
    tl.store(numbers_ptr + 6 * blocks + block, forced.to(tl.int64))
    tl.store(numbers_ptr + 7 * blocks + block, (masks == 0).to(tl.int64))
    if mask_id >= 0:
        new_tokens = tl.where(remaining, mask_id, new_tokens)
    new_state = (state > 0).to(tl.int32) + filled.to(tl.int32)
    tl.store(tokens_ptr + entry, new_tokens.to(tl.int32), mask=inside)
    tl.store(states_ptr + entry, (new_state + stored - state).to(tl.int8), mask=inside)
    tl.store(new_tokens_ptr + flat, new_tokens, mask=at < SIZE)
    tl.store(new_state_ptr + flat, new_state.to(tl.int8), mask=at < SIZE)


def rows_per_iteration(size_p2: int) -> int:
    """Returns the number of sampled rows that a program compares with the positions of a block per iteration."""
    return max(1, min(ROWS, MAX_COMPARISONS // size_p2))


def threshold_unmask(
    blocks: BlockInputs, sampled: SampledRows, mask_id: int | None, eos_ids: torch.Tensor
) -> UnmaskOutput:
    """Computes `threshold_unmask_reference` for contiguous tensors and float32 probabilities on a GPU."""
    n, size, device = len(blocks.first), blocks.width, blocks.tokens.device
    numbers = torch.empty(NUMBERS, n, dtype=torch.int64, device=device)
    new_tokens = torch.empty(n, size, dtype=torch.int64, device=device)
    new_state = torch.empty(n, size, dtype=torch.int8, device=device)
    rows, size_p2 = len(sampled.token), triton.next_power_of_2(size)
    _threshold_unmask[(n,)](
        blocks.tokens, blocks.states, blocks.first, blocks.size, blocks.numbers, blocks.params, sampled.token,
        sampled.conf, sampled.block, sampled.at, eos_ids, numbers, new_tokens, new_state, rows, n,
        -1 if mask_id is None else mask_id,
        BLOCK_NUMBERS=blocks.numbers.shape[1], MUST_ADVANCE=blocks.must_advance, NUM_STEPS=blocks.num_steps,
        COLUMNS=blocks.params.shape[1], THRESHOLD=blocks.threshold, STEPS=blocks.max_steps, SIZE=size, SIZE_P2=size_p2,
        ROWS=rows_per_iteration(size_p2), EOS=len(eos_ids), num_warps=4,
    )  # fmt: skip
    return UnmaskOutput(numbers, new_tokens, new_state)
