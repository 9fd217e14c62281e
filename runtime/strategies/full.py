"""`full`: denoises a canvas of prompt and answer block by block (docs/research/decoding-rules.md#strategy-full).

Every row sees the complete canvas, so the K/V of all positions is outdated once a token changes. `decoding.cache`
selects which rows the later steps of a block forward again.

A block consists of one or two sub-blocks, as in `shifted.py`: `Block` objects in `Request.blocks`. A finished block is
not final, because its K/V is valid for one state of the canvas only and no other request can use it.
`Request.kv.reused_spans` stores the ids of the first step of the block, which are forwarded again after a preemption.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from runtime.request.block_layout import BlockLayout
from runtime.request.field_spec import BLOCK_LENGTH, Field
from runtime.scheduling.request import Block, ForwardSpan, KVSpan, NextForward, Request, Successors
from runtime.scheduling.step_plan import FIXED, BlockResults
from runtime.scheduling.strategy import (
    DecodingContext,
    Strategy,
    VisibleKeys,
    require_single_block,
)
from runtime.strategies import block_update
from runtime.strategies.registry import register_strategy

VICINITY = 16  # rows on either side of a block that the cache mode of this name forwards again with it
CACHE = "cache"


@register_strategy("full")
class FullCanvas(Strategy):
    fields: tuple[Field, ...] = (
        Field(
            name=CACHE, kind="choice", choices=("none", "prefix", "dual", "vicinity"), default="none",
            flag="full_cache",
            help="rows that later steps of a block do not forward again: none, those before the block, all outside the "
            "block, or all but 16 on either side of it",
        ),
        Field(
            name=BLOCK_LENGTH, kind="integer", default=1, per_block=True, low=1, high=2**31,
            help="block size of the request; default that of the server",
        ),
    )  # fmt: skip
    prefix_cacheable = False
    requires_full_prompt = True
    sees_suffix = True
    default_max_tokens: int | None = 256

    def __init__(self, context: DecodingContext) -> None:
        require_single_block(context)
        self.block_layout = BlockLayout(context.block_size, from_prompt=True, truncate_last=True)
        self.max_model_len = context.max_model_len
        self.shift_by = int(context.shift)

    def max_rows(self) -> int:
        return self.max_model_len

    def initial_final_len(self, prompt_len: int) -> int:
        return 0

    def required_tokens(self, request: Request) -> int:
        return request.end

    def prefill_chunk_size(self, request: Request, budget: int) -> int:
        return 0  # no token is final

    def plan_forward(self, request: Request) -> ForwardSpan:
        while not request.blocks:
            self._open_block(request)
            if _is_block_finished(request) and request.next_start < request.end:
                request.blocks = []  # pinned tokens cover it
        start, end, sub_block = 0, request.end, request.blocks[0]
        if request.kv.reused_spans:
            sub_block = request.blocks[-1]
            start, end = self._refreshed_range(request)
        return ForwardSpan(start, end, [] if block_update.is_finished(request, sub_block) else [sub_block])

    def successors(self, request: Request, span: ForwardSpan) -> Successors:
        everything = 0, request.end
        rows = everything if request.values[CACHE] == "none" else self._refreshed_range(request)
        continues = NextForward(*rows, request.num_final_tokens)
        if span.blocks != request.blocks[-1:]:  # the next step samples the last sub-block, in any case
            known = request.blocks[-1].masks and not request.resolved.may_revise
            return Successors(continues, continues) if known else Successors()
        if not block_update.has_output_masks(request, request.next_start, request.end):
            return Successors(continues)
        return Successors(continues, NextForward(*everything, request.num_final_tokens))

    def _refreshed_range(self, request: Request) -> tuple[int, int]:
        """Returns the first position and the end of the rows that later steps of the open block forward."""
        start, end = request.blocks[0].start, request.next_start
        mode = request.values[CACHE]
        if mode == "vicinity":
            return max(start - VICINITY, 0), min(end + VICINITY, request.end)
        return start, end if mode == "dual" else request.end

    def _open_block(self, request: Request) -> None:
        """Opens the next block, as one sub-block or as two.

        With a logits shift, the logits of the first position are those of the row before the block. If the cache mode
        forwards that row in the first step only, this step samples the first position, as a sub-block of its own. Later
        steps sample the other positions.
        """
        length = int(request.values[BLOCK_LENGTH])
        start = max(request.next_start, request.prompt_len)
        end = request.next_start = min(start + length, request.end)
        first_separately = self.shift_by and request.values[CACHE] in ("prefix", "dual")
        bounds = (start, start + 1, end) if first_separately else (start, end)
        request.blocks = [Block(request, start, end, shift_by=self.shift_by) for start, end in pairwise(bounds)]
        total = request.spec.decoding.total_steps
        steps = (
            int(request.values.get("steps", 0)) if total is None else self._step_budget(request, total, start, length)
        )
        before = sum(block.masks for block in request.blocks[:-1])  # steps that the last sub-block does not get
        request.blocks[-1].numbers.step_budget = max(steps - before, 1) if steps else 0

    def _step_budget(self, request: Request, total: int, start: int, length: int) -> int:
        """Returns the steps of the block at `start` out of the total of the request."""
        first = request.prompt_len
        masks = np.add.reduceat(request.state[first : request.end] != FIXED, range(0, request.end - first, length))
        return block_update.split_steps(total, masks.tolist())[(start - first) // length]

    def visible_keys(self, request: Request, num_final_tokens: int) -> VisibleKeys:
        """Returns those up to the end of the canvas."""
        return VisibleKeys(0, request.end)

    def update(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        if not request.kv.reused_spans and request.values[CACHE] != "none":
            request.kv.reused_spans = [KVSpan(0, request.tokens[: request.end].copy())]
        request.nfe += bool(sampled)
        for i, sub_block in enumerate(sampled, first):
            block_update.write_block(request, sub_block, results, i)
        finished, start, last = _is_block_finished(request), request.blocks[0].start, request.blocks[-1]
        for sub_block in sampled:
            if sub_block is not last:  # the last sub-block counts the steps of the block
                sub_block.finished = finished
                last.steps = sub_block.steps
        end = block_update.update_progress(
            request, event_start=start, finished_end=request.next_start if finished else start
        )
        if end is not None:
            block_update.finish_request(request, *end)
        elif finished:
            request.blocks = []
        if finished:
            request.kv.reused_spans = []  # the first step of the next block forwards everything


def _is_block_finished(request: Request) -> bool:
    """Returns whether the sub-blocks of the open block are finished. The first of two is, once it has no mask."""
    return block_update.is_finished(request, request.blocks[-1]) and not request.blocks[0].masks
