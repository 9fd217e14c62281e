"""The plainest rule and all that is told of its blocks, in one launch: a masked position is filled whose token is sure
enough, or the surest where none is and one has to be, or every one where the block's steps are used up.

A rule's decision takes about fifty small launches in general (``algorithms.common``,
``worker.sample.sampler_output``). At one request they are a thirtieth of a step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.triton_import import tl, triton

MASKED, UNMASKED = 1, 2  # states of a position; 0: fixed
NUMBERS = 8
ROWS, COMPARED = 128, 4096  # most sampled rows that a program looks through at a time, and times positions


class Blocks(NamedTuple):
    """`n` blocks of `B` positions before a step."""

    tokens: torch.Tensor  # int64 [n, B]
    state: torch.Tensor  # int8 [n, B]
    may_force: torch.Tensor  # bool [n]
    advanced: torch.Tensor  # int64 [n]
    params: torch.Tensor  # float64 [n, any], of which
    threshold: int  # this column is what a probability must be above,
    most_steps: int  # and this one how many steps there are


class Sampled(NamedTuple):
    """Rows that were sampled: all masked positions, and some of a block that has none, of which nothing comes."""

    token: torch.Tensor  # int64 [rows]
    conf: torch.Tensor  # float [rows], its probability
    block: torch.Tensor  # int64 [rows]
    at: torch.Tensor  # int64 [rows], its offset there


class After(NamedTuple):
    """The blocks after it. `numbers`, int64 [NUMBERS, n]: masked positions; those written; 0; 0; the first masked one,
    the first that is filled with an end of sequence (B: none); whether one was forced; whether none is masked."""

    numbers: torch.Tensor
    tokens: torch.Tensor
    state: torch.Tensor


def fill_reference(blocks: Blocks, sampled: Sampled, mask_id: int | None, eos_ids: torch.Tensor) -> After:
    tokens, masked = blocks.tokens, blocks.state == MASKED
    choice = tokens.clone()
    conf = torch.full(tokens.shape, float("-inf"), dtype=sampled.conf.dtype, device=tokens.device)
    choice[sampled.block, sampled.at], conf[sampled.block, sampled.at] = sampled.token, sampled.conf
    conf = conf.masked_fill(~masked, float("-inf"))
    passed = masked & (conf > blocks.params[:, blocks.threshold, None])
    forced = blocks.may_force & masked.any(1) & ~passed.any(1)
    best = torch.nn.functional.one_hot(conf.argmax(1), conf.shape[1]).bool()  # of equals the first
    last = blocks.may_force & (blocks.advanced + 1 >= blocks.params[:, blocks.most_steps])
    taken = passed | (best & forced[:, None]) | (masked & last[:, None])
    left = masked & ~taken
    after = torch.where(taken, choice, tokens)
    filled = (blocks.state > 0) & ~left
    is_eos = (after[:, :, None] == eos_ids).any(2) & filled
    size = tokens.shape[1]
    at = torch.arange(size, device=tokens.device)
    none = torch.zeros_like(blocks.advanced)
    numbers = [
        left.sum(1), taken.sum(1), none, none, torch.where(left, at, size).amin(1),
        torch.where(is_eos, at, size).amin(1), forced.long(), (~left.any(1)).long(),
    ]  # fmt: skip
    if mask_id is not None:
        after = torch.where(left, mask_id, after)
    return After(torch.stack(numbers), after, (blocks.state > 0).to(torch.int8) + filled)


@triton.jit(do_not_specialize=["rows", "blocks", "mask_id"])
def _fill(
    tokens_ptr, state_ptr, force_ptr, advanced_ptr, params_ptr, token_ptr, conf_ptr, block_ptr, at_ptr, eos_ptr,
    numbers_ptr, after_ptr, left_ptr, rows, blocks, mask_id,
    COLUMNS: tl.constexpr, THRESHOLD: tl.constexpr, STEPS: tl.constexpr, SIZE: tl.constexpr, SIZE_P2: tl.constexpr,
    ROWS: tl.constexpr, EOS: tl.constexpr,
):  # fmt: skip
    """One program a block."""
    block = tl.program_id(0)
    at = tl.arange(0, SIZE_P2)
    ok = at < SIZE
    place = block * SIZE + at
    tokens = tl.load(tokens_ptr + place, mask=ok, other=0)
    state = tl.load(state_ptr + place, mask=ok, other=0)
    masked = state == 1
    choice = tokens
    conf = tl.full([SIZE_P2], float("-inf"), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        mine = tl.load(block_ptr + row, mask=row < rows, other=-1) == block
        if tl.max(mine.to(tl.int32), 0) > 0:
            here = mine[:, None] & (tl.load(at_ptr + row, mask=mine, other=-1)[:, None] == at[None, :])
            found = tl.max(here.to(tl.int32), 0) > 0
            token = tl.load(token_ptr + row, mask=mine, other=0)
            sure = tl.load(conf_ptr + row, mask=mine, other=0.0)
            choice = tl.where(found, tl.max(tl.where(here, token[:, None], -1), 0), choice)
            conf = tl.where(found, tl.max(tl.where(here, sure[:, None], float("-inf")), 0), conf)
    conf = tl.where(masked, conf, float("-inf"))
    force = tl.load(force_ptr + block) != 0
    threshold = tl.load(params_ptr + block * COLUMNS + THRESHOLD)
    steps = tl.load(params_ptr + block * COLUMNS + STEPS)
    passed = masked & (conf.to(tl.float64) > threshold)
    some, any_passed = tl.max(masked.to(tl.int32), 0) > 0, tl.max(passed.to(tl.int32), 0) > 0
    forced = force & some & (any_passed == 0)
    best = tl.min(tl.where(conf == tl.max(conf, 0), at, SIZE_P2), 0)
    last = force & ((tl.load(advanced_ptr + block) + 1).to(tl.float64) >= steps)
    taken = passed | ((at == best) & forced) | (masked & last)
    left = masked & (taken == 0)
    after = tl.where(taken, choice, tokens)
    filled = (state > 0) & (left == 0)
    is_eos = tl.zeros([SIZE_P2], tl.int1)
    for i in tl.static_range(EOS):
        is_eos = is_eos | (after == tl.load(eos_ptr + i))
    is_eos = is_eos & filled
    masks = tl.sum(left.to(tl.int32), 0)
    tl.store(numbers_ptr + block, masks.to(tl.int64))
    tl.store(numbers_ptr + blocks + block, tl.sum(taken.to(tl.int32), 0).to(tl.int64))
    nothing = masks.to(tl.int64) * 0
    tl.store(numbers_ptr + 2 * blocks + block, nothing)
    tl.store(numbers_ptr + 3 * blocks + block, nothing)
    tl.store(numbers_ptr + 4 * blocks + block, tl.min(tl.where(left, at, SIZE), 0).to(tl.int64))
    tl.store(numbers_ptr + 5 * blocks + block, tl.min(tl.where(is_eos, at, SIZE), 0).to(tl.int64))
    tl.store(numbers_ptr + 6 * blocks + block, forced.to(tl.int64))
    tl.store(numbers_ptr + 7 * blocks + block, (masks == 0).to(tl.int64))
    if mask_id >= 0:
        after = tl.where(left, mask_id, after)
    tl.store(after_ptr + place, after, mask=ok)
    tl.store(left_ptr + place, ((state > 0).to(tl.int8) + filled.to(tl.int8)), mask=ok)


def together(size_p2: int) -> int:
    """Sampled rows that a program compares at a time with a block's positions."""
    return max(1, min(ROWS, COMPARED // size_p2))


def fill(blocks: Blocks, sampled: Sampled, mask_id: int | None, eos_ids: torch.Tensor) -> After:
    """`fill_reference` for contiguous tensors and float32 probabilities on a GPU."""
    n, size = blocks.tokens.shape
    numbers = torch.empty(NUMBERS, n, dtype=torch.int64, device=blocks.tokens.device)
    after, left = torch.empty_like(blocks.tokens), torch.empty_like(blocks.state)
    rows, size_p2 = len(sampled.token), triton.next_power_of_2(size)
    _fill[(n,)](
        blocks.tokens, blocks.state, blocks.may_force, blocks.advanced, blocks.params, sampled.token, sampled.conf,
        sampled.block, sampled.at, eos_ids, numbers, after, left, rows, n, -1 if mask_id is None else mask_id,
        COLUMNS=blocks.params.shape[1], THRESHOLD=blocks.threshold, STEPS=blocks.most_steps, SIZE=size,
        SIZE_P2=size_p2, ROWS=together(size_p2), EOS=len(eos_ids), num_warps=4,
    )  # fmt: skip
    return After(numbers, after, left)
