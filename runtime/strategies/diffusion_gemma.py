"""`diffusion_gemma`: denoises one canvas of noise at a time (docs/decoding-rules.md#strategy-diffusion_gemma).

Every step may change all positions of a canvas, so all are MASKED after each step. A preemption restarts the canvas
with the same random numbers, because its self-conditioning exists only on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.algorithms.rng import CANVAS, uniforms
from runtime.engine.request import MASKED, UNMASKED, Block, Request
from runtime.engine.scheduled_request import ForwardSpan
from runtime.engine.step_plan import BlockResults, Ints
from runtime.request.block_layout import Tiling
from runtime.strategies.base import DecodingContext, check_one_at_a_time, register_strategy
from runtime.strategies.block_strategy import TiledBlocks
from runtime.strategies.block_update import advance, finish, worth_caching, write_block


@register_strategy("diffusion_gemma")
class Canvas(TiledBlocks):
    buffer_size = 1
    noisy = True
    walks = False
    one_window = True

    def __init__(self, context: DecodingContext) -> None:
        check_one_at_a_time(context)
        self.size = context.block_size
        self.tiling = Tiling(context.block_size, from_prompt=True)
        self.vocab_size = context.vocab_size
        self.prefix_caching = context.prefix_caching

    def max_rows(self) -> int:
        return 2 * self.size  # the next canvas's first step commits the last one

    def reach(self, request: Request) -> int:
        return request.num_final_tokens + self.size

    def chunk(self, request: Request, room: int) -> int:
        return room

    def open(self, request: Request) -> ForwardSpan:
        while not request.blocks and request.next_start < request.end:
            self._open(request)
        return ForwardSpan(request.num_final_tokens, request.next_start, request.blocks)

    def steady(self, request: Request, span: ForwardSpan) -> bool:
        # its first step is the only one that is told of none before it
        return (
            not (request.has_step_limits or request.decodes_left_to_right)
            and len(span.blocks) == 1
            and span.blocks[0].num_steps_forcing > 0
        )

    def _open(self, request: Request) -> None:
        start = request.num_final_tokens
        end = request.next_start = start + self.size
        state = self._all_may_change(request, start)
        block = Block(request, start, end)
        if block.finished:  # all of it was given
            request.num_final_tokens = end
        else:
            request.blocks = [block]
            block.tokens[state == MASKED] = self._noise(request, start)[state == MASKED]

    def _all_may_change(self, request: Request, start: int) -> npt.NDArray[np.int8]:
        """[size]: the state of the canvas at `start`, whatever a step has left there."""
        state = request.state[start : start + self.size]
        state[state == UNMASKED] = MASKED
        return state

    def _noise(self, request: Request, start: int) -> Ints:
        """[size]: what a canvas at `start` begins as, drawn uniformly at the request's present step."""
        seed, step = np.array([request.spec.seed], dtype=np.uint64), np.array([request.nfe])
        return (uniforms(seed, start + np.arange(self.size), step, CANVAS) * self.vocab_size).astype(np.int64)

    def visible_end(self, requests: Sequence[Request], owner: Ints, positions: Ints) -> Ints:
        """Open rows see their whole canvas, the others themselves and what is before them."""
        settled = np.array([request.num_final_tokens for request in requests], dtype=np.int64)[owner]
        return np.where(positions < settled, positions + 1, settled + self.size)

    def apply(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        shown = request.num_final_tokens
        if any(block not in request.blocks for block in sampled):
            return  # a preemption has begun the canvas again since
        for block in sampled:
            if results.finished[first]:
                write_block(request, block, results, first)
                request.num_final_tokens = request.next_start
            else:
                self._write_open(request, block, results, first)
            request.nfe += 1
        end = advance(request, shown=shown, final=request.num_final_tokens)
        if end is not None:
            keep = worth_caching(request, *end, tiling=Tiling(1)) if self.prefix_caching else 0
            finish(request, *end, keep=keep)
        elif request.num_final_tokens == request.next_start:
            request.blocks = []
        else:
            for block in request.blocks:
                self._all_may_change(request, block.start)

    def _write_open(self, request: Request, block: Block, results: BlockResults, i: int) -> None:
        """What the next step finds. Nothing of it counts yet, no end of sequence either."""
        block.tokens[:] = results.tokens[i, : block.size]
        block.state[:] = results.state[i, : block.size]
        block.steps += 1
        block.num_steps_forcing += 1
