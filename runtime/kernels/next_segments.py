"""Chooses the segments of the next forward on the device, from the counters of the step that has just sampled.

The host prepares the segments of each request for both outcomes of its block while the device runs. After the counters
it only has to launch the graph of so many rows, so the device hardly waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runtime.kernels.common import tl, triton
from runtime.kernels.forward_batch import MAX_TILE_ROWS
from runtime.kernels.segments import COUNT, FIELDS, PADDING, REMAINDER, SLOT, START

REQUESTS = 128  # requests per iteration of the kernel


class BlockEnd(NamedTuple):
    """When the block of a request ends, and when its output does: the first columns of its outcomes.

    The segment of the next forward follows for a block that continues, and then for one that is final. Its `count` is
    UNKNOWN if that forward is not known. ``strategies.block_update`` has the same rules.

    Attributes:
        block: index of the block among those sampled. NO_BLOCK: none is, so the first segment follows in any case.
        size: positions of the block.
        without_masks: 1: a block without masks is final. 0: its algorithm says when it is.
        at_eos: 1: an end-of-sequence id before the first mask ends the output.
        output_end: offset of the end of the output in the block. It may be larger than the block.
        is_revised: 1: tokens may change until the block is final, so the output ends in no other block.
        newest: with several open blocks, the number of those sampled from `block` to the last one.
        opens_at: with at most so many masks in that one, another block may open, so the next forward is not known.
    """

    block: int
    size: int
    without_masks: int
    at_eos: int
    output_end: int
    is_revised: int
    newest: int = 0
    opens_at: int = -1


class Offer(NamedTuple):
    """What a choice depends on besides outcomes.

    Attributes:
        requests: number of outcomes. 0: the next forward is not known.
        max_rows: maximum number of rows of the next forward.
        may_leave: 1: a request whose output ends has no rows in the next forward. 0: that forward is not known,
            because another request may take the place.
    """

    requests: int
    max_rows: int
    may_leave: int


NO_BLOCK = UNKNOWN = -1
ENDS = len(BlockEnd._fields)
OUTCOMES = ENDS + 2 * FIELDS  # columns

# Elements of a choice, before one per request.
CONTINUES, FINAL, LEFT = 0, 1, 2
CHOSEN_ROWS = 0  # rows of the next forward; UNKNOWN: it depends on more than the counters, or has too many rows
CHOSEN_TILES, CHOSEN_TILE_ROWS = 1, 2  # see ``worker.input_batch.ForwardDescriptor``
HEADER = 3


class BlockCounters(NamedTuple):
    """Counters of sampled blocks after a step, int64 [blocks] each, as in ``scheduling.step_plan.BlockResults``."""

    masks: torch.Tensor
    first_masked: torch.Tensor
    first_eos: torch.Tensor
    finished: torch.Tensor


def choose_segments_reference(
    counters: BlockCounters, outcomes: torch.Tensor, offer: torch.Tensor, segments: torch.Tensor, choice: torch.Tensor
) -> None:
    """Writes the segments of the next forward, and behind them that of the padding, if the forward is known.

    Args:
        outcomes: int32 [at least n, OUTCOMES], where `n` is ``Offer.requests``.
        offer: int32 [len(Offer._fields)].
        segments: int32 [at least n + 1, FIELDS].
        choice: int32 [at least HEADER + n].
    """
    n, max_rows, may_leave = offer.tolist()
    if not n:
        choice[CHOSEN_ROWS] = UNKNOWN
        return
    outcomes = outcomes[:n]
    block, size, without_masks, at_eos, output_end, is_revised, newest, opens_at = outcomes[:, :ENDS].unbind(1)
    samples = block != NO_BLOCK
    masks, first_masked, first_eos, finished = (counter[block.clamp(min=0)] for counter in counters)
    filled = torch.where(masks > 0, first_masked, size)  # positions before the first mask
    final = samples & ((finished > 0) | ((without_masks > 0) & (masks == 0)))
    ended = samples & ((filled >= output_end) | ((at_eos > 0) & (first_eos < filled))) & (final | (is_revised == 0))
    left = ended & bool(may_leave)
    opens = samples & (counters.masks[torch.where(samples, block + newest, 0)] <= opens_at) & ~left
    pairs = outcomes[:, ENDS:].view(n, 2, FIELDS)
    found = torch.where((final & ~left)[:, None], pairs[:, 1], pairs[:, 0])
    counts = found[:, COUNT] = torch.where(left, 0, found[:, COUNT])
    tile_rows = counts.amax().clamp(min=1, max=MAX_TILE_ROWS)
    unknown = (ended & ~left) | (counts == UNKNOWN) | opens
    known = ~unknown.any() & (counts.sum() > 0) & (counts.sum() <= max_rows)
    choice[CHOSEN_ROWS] = torch.where(known, counts.sum(), UNKNOWN)
    choice[CHOSEN_TILES] = (-(-counts // tile_rows)).sum()
    choice[CHOSEN_TILE_ROWS] = tile_rows
    choice[HEADER : HEADER + n] = torch.where(left, LEFT, torch.where(final, FINAL, CONTINUES))
    padding = found.new_zeros(1, FIELDS)
    padding[0, SLOT], padding[0, START], padding[0, COUNT] = found[0, SLOT], PADDING, REMAINDER
    segments[: n + 1] = torch.where(known, torch.cat([found, padding]), segments[: n + 1])


# Rows of an odd number of counters are aligned differently, which must not lead to another variant of the kernel.
@triton.jit(
    do_not_specialize_on_alignment=["masks_ptr", "first_masked_ptr", "first_eos_ptr", "finished_ptr"],
)
def _choose_segments(
    masks_ptr, first_masked_ptr, first_eos_ptr, finished_ptr, outcomes_ptr, offer_ptr, segments_ptr, choice_ptr,
    ENDS: tl.constexpr, FIELDS: tl.constexpr, HEADER: tl.constexpr, MAX_TILE_ROWS: tl.constexpr,
    PADDING: tl.constexpr, REMAINDER: tl.constexpr, REQUESTS: tl.constexpr,
):  # fmt: skip
    n, max_rows, may_leave = tl.load(offer_ptr), tl.load(offer_ptr + 1), tl.load(offer_ptr + 2)
    rows, largest, unknown = 0, 1, 0
    for begin in range(0, n, REQUESTS):
        at = begin + tl.arange(0, REQUESTS)
        inside = at < n
        own = outcomes_ptr + at * (ENDS + 2 * FIELDS)  # a `BlockEnd` and two segments, of which column 2 is `count`
        block = tl.load(own, mask=inside, other=-1)
        samples = block >= 0
        masks = tl.load(masks_ptr + block, mask=samples, other=0)
        first_masked = tl.load(first_masked_ptr + block, mask=samples, other=0)
        filled = tl.where(masks > 0, first_masked, tl.load(own + 1, mask=samples, other=0))
        first_eos = tl.load(first_eos_ptr + block, mask=samples, other=0)
        at_eos = tl.load(own + 3, mask=samples, other=0) > 0
        ended = samples & ((filled >= tl.load(own + 4, mask=samples, other=0)) | (at_eos & (first_eos < filled)))
        without_masks = tl.load(own + 2, mask=samples, other=0) > 0
        finished = tl.load(finished_ptr + block, mask=samples, other=0) > 0
        final = (samples & (finished | (without_masks & (masks == 0)))).to(tl.int32)
        ended = ended & ((final > 0) | (tl.load(own + 5, mask=samples, other=0) == 0))
        left = ended & (may_leave > 0)
        newest = tl.load(own + 6, mask=samples, other=0)
        left_masks = tl.load(masks_ptr + block + newest, mask=samples, other=0)
        opens = samples & (left_masks <= tl.load(own + 7, mask=samples, other=-1)) & (left == 0)
        count = tl.load(own + ENDS + final * FIELDS + 2, mask=inside & (left == 0), other=0)
        rows += tl.sum(count, 0)
        largest = tl.maximum(largest, tl.max(count, 0))
        unknown += tl.sum(((ended & (left == 0)) | (count < 0) | opens).to(tl.int32), 0)
        tl.store(choice_ptr + HEADER + at, tl.where(left, 2, final), mask=inside)
    tile_rows = tl.minimum(largest, MAX_TILE_ROWS)
    known = (rows > 0) & (unknown == 0) & (rows <= max_rows)
    tl.debug_barrier()  # other threads may read what these have stored
    tiles = 0
    for begin in range(0, n, REQUESTS):
        at = begin + tl.arange(0, REQUESTS)
        inside = at < n
        chosen = tl.load(choice_ptr + HEADER + at, mask=inside, other=2)
        stays = chosen < 2
        own = outcomes_ptr + at * (ENDS + 2 * FIELDS) + ENDS + tl.where(chosen == 1, FIELDS, 0)
        tiles += tl.sum(tl.cdiv(tl.load(own + 2, mask=stays, other=0), tile_rows), 0)
        for column in tl.static_range(FIELDS):  # one that has left has no rows
            value = tl.load(own + column, mask=stays if column == 2 else inside, other=0)
            tl.store(segments_ptr + at * FIELDS + column, value, mask=inside & known)
    column = tl.arange(0, 16)
    slot = tl.load(outcomes_ptr + ENDS)
    value = tl.where(column == 0, slot, tl.where(column == 1, PADDING, tl.where(column == 2, REMAINDER, 0)))
    tl.store(segments_ptr + n * FIELDS + column, value, mask=(column < FIELDS) & known)
    tl.store(choice_ptr, tl.where(known, rows, -1))
    tl.store(choice_ptr + 1, tiles)
    tl.store(choice_ptr + 2, tile_rows)


def choose_segments(
    counters: BlockCounters, outcomes: torch.Tensor, offer: torch.Tensor, segments: torch.Tensor, choice: torch.Tensor
) -> None:
    """Computes `choose_segments_reference` on a GPU."""
    _choose_segments[(1,)](
        *counters, outcomes, offer, segments, choice, ENDS=ENDS, FIELDS=FIELDS, HEADER=HEADER,
        MAX_TILE_ROWS=MAX_TILE_ROWS, PADDING=PADDING, REMAINDER=REMAINDER, REQUESTS=REQUESTS, num_warps=4,
    )  # fmt: skip
