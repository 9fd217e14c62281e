"""`full`: denoises a canvas of prompt and answer block by block (docs/decoding-rules.md#strategy-full).

Every row sees the complete canvas, so the K/V of all positions is outdated once a token changes. `decoding.cache`
selects which rows the later steps of a block forward again.

No position is settled, because K/V is valid for one state of the canvas only and no other request can use it.
`Request.reused_kv_spans` stores the ids of the first step of the block, which are forwarded again after a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from runtime.engine.request import FIXED, Block, KVSpan, Request
from runtime.engine.scheduled_request import ForwardSpan
from runtime.engine.step_plan import BlockResults, Ints
from runtime.request.block_layout import Tiling
from runtime.request.field_spec import BLOCK_LENGTH, Field
from runtime.strategies.base import DecodingContext, check_one_at_a_time, register_strategy
from runtime.strategies.block_strategy import TiledBlocks
from runtime.strategies.block_update import advance, complete, finish, looked_at, write_block
from runtime.strategies.step_schedule import shares

VICINITY = 16  # rows on either side of a block that the mode of this name renews with it
CACHE = "cache"


@register_strategy("full")
class FullCanvas(TiledBlocks):
    fields: tuple[Field, ...] = (
        Field(
            name=CACHE, kind="choice", choices=("none", "prefix", "dual", "vicinity"), default="none",
            flag="full_cache",
            help="what a block's later steps do not compute again: nothing, the rows before the block, all but its "
            "own, or all but 16 on either side",
        ),
        Field(
            name=BLOCK_LENGTH, kind="integer", default=1, per_block=True, low=1, high=2**31,
            help="tokens of a block; default the server's",
        ),
    )  # fmt: skip
    buffer_size = 1
    shares_prefixes = False
    whole_prompts = True
    default_max_tokens: int | None = 256

    def __init__(self, context: DecodingContext) -> None:
        check_one_at_a_time(context)
        self.tiling = Tiling(context.block_size, from_prompt=True, cut=True)
        self.max_model_len = context.max_model_len
        self.shift = int(context.shift)

    def max_rows(self) -> int:
        return self.max_model_len

    def settled(self, prompt_len: int) -> int:
        return 0

    def reach(self, request: Request) -> int:
        return request.end

    def chunk(self, request: Request, room: int) -> int:
        return 0  # nothing is settled

    def open(self, request: Request) -> ForwardSpan:
        while not request.blocks:
            self._open_block(request)
            if _whole(request) and request.next_start < request.end:
                request.blocks = []  # all of it was given
        first, last, part = 0, request.end, request.blocks[0]
        if request.reused_kv_spans:
            part = request.blocks[-1]
            first, last = self._renewed(request)
        return ForwardSpan(first, last, [] if complete(request, part) else [part])

    def steady(self, request: Request, span: ForwardSpan) -> bool:
        # with a cache a block's first step forwards more than its others
        follows = bool(request.reused_kv_spans) or request.values[CACHE] == "none"
        return follows and span.blocks == request.blocks[-1:] and not looked_at(request)

    def _renewed(self, request: Request) -> tuple[int, int]:
        """First position and end of what the open block's later steps forward."""
        start, end = request.blocks[0].start, request.next_start
        mode = request.values[CACHE]
        if mode == "vicinity":
            return max(start - VICINITY, 0), min(end + VICINITY, request.end)
        return start, end if mode == "dual" else request.end

    def _open_block(self, request: Request) -> None:
        """The next block, as one part; or as two, where the row before it is forwarded only once: its first position
        is sampled then, and all others from rows of the block itself."""
        length = int(request.values[BLOCK_LENGTH])
        start = max(request.next_start, request.prompt_len)
        end = request.next_start = min(start + length, request.end)
        alone = self.shift and request.values[CACHE] in ("prefix", "dual")
        bounds = (start, start + 1, end) if alone else (start, end)
        request.blocks = [Block(request, first, last, shift=self.shift) for first, last in pairwise(bounds)]
        total = request.spec.decoding.total_steps
        steps = int(request.values.get("steps", 0)) if total is None else self._share(request, total, start, length)
        before = sum(part.masks for part in request.blocks[:-1])  # steps of the block that the last part does not get
        request.blocks[-1].step_budget = max(steps - before, 1) if steps else 0

    def _share(self, request: Request, total: int, start: int, length: int) -> int:
        """Of the request's total of steps, those of the block at `start`."""
        first = request.prompt_len
        masks = np.add.reduceat(request.state[first : request.end] != FIXED, range(0, request.end - first, length))
        return shares(total, masks.tolist())[(start - first) // length]

    def visible_end(self, requests: Sequence[Request], owner: Ints, positions: Ints) -> Ints:
        """The canvas's end."""
        return np.array([request.end for request in requests])[owner]

    def apply(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        if not request.reused_kv_spans and request.values[CACHE] != "none":
            request.reused_kv_spans = [KVSpan(0, request.tokens[: request.end].copy())]
        request.nfe += bool(sampled)
        for i, part in enumerate(sampled, first):
            write_block(request, part, results, i)
        whole, start, last = _whole(request), request.blocks[0].start, request.blocks[-1]
        for part in sampled:
            if part is not last:  # the block's steps are those of its last part
                part.finished = whole
                last.steps = part.steps
        end = advance(request, shown=start, final=request.next_start if whole else start)
        if end is not None:
            finish(request, *end)
        elif whole:
            request.blocks = []
        if whole:
            request.reused_kv_spans = []  # the next block's first step forwards everything


def _whole(request: Request) -> bool:
    """Whether the open block is final; a first position by itself stays as it was filled."""
    return complete(request, request.blocks[-1]) and not request.blocks[0].masks
