"""`diffusion_gemma`: denoises one canvas of noise at a time (docs/research/decoding-rules.md#strategy-diffusion_gemma).

A canvas has no more positions than the answer may have left, unless these are few or the request wants full canvases.

Every step may change all positions of a canvas, so all are MASKED after each step. The step that finishes a canvas
draws the noise of the next one on the device. A preemption restarts the canvas with the same random numbers, because
its self-conditioning exists only on the device.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from runtime.kernels.uniform_numbers import CANVAS, uniform_numbers_reference
from runtime.request.block_layout import CANVAS_UNIT, BlockLayout
from runtime.request.field_spec import CANVAS_LENGTH, FULL_CANVAS, MIN_CANVAS_LENGTH, Field
from runtime.scheduling.request import Block, ForwardSpan, NextForward, Request, Successors, draws_of
from runtime.scheduling.step_plan import MASKED, UNMASKED, BlockResults, Ints
from runtime.scheduling.strategy import (
    DecodingContext,
    Strategy,
    VisibleKeys,
    require_single_block,
)
from runtime.strategies import block_update
from runtime.strategies.registry import register_strategy

MIN_CANVAS = 64  # default of MIN_CANVAS_LENGTH
SHORT_SIZES = 4  # 16, 32, 64 and 128 positions


@register_strategy("diffusion_gemma")
class Canvas(Strategy):
    uniform_noise = True
    supports_grammar = False
    shared_window = True

    def __init__(self, context: DecodingContext) -> None:
        require_single_block(context)
        self.size = size = context.block_size
        unit, least = math.gcd(size, CANVAS_UNIT), min(size, CANVAS_UNIT)
        self.fields = (
            Field(
                name=CANVAS_LENGTH, kind="integer", default=size, low=least, high=size, multiple_of=unit,
                help="maximum positions of a canvas",
            ),
            Field(
                name=MIN_CANVAS_LENGTH, kind="integer", default=min(MIN_CANVAS, size), low=least, high=size,
                multiple_of=unit, help="minimum positions of a canvas that is shortened to what is left of the answer",
            ),
            Field(
                name=FULL_CANVAS, kind="flag", default=False,
                help="all canvases have `canvas_length` positions, also the last one",
            ),
        )  # fmt: skip
        self.short_blocks = tuple(CANVAS_UNIT << n for n in range(SHORT_SIZES) if CANVAS_UNIT << n < size)
        self.block_layout = BlockLayout(size, from_prompt=True)
        self.vocab_size = context.vocab_size
        self.prefix_caching = context.prefix_caching

    def max_rows(self) -> int:
        return 2 * self.size  # the first step of a canvas commits the previous one

    def plan_forward(self, request: Request) -> ForwardSpan:
        while not request.blocks and request.next_start < request.end:
            self._open(request)
            for block in request.blocks:  # otherwise pinned tokens cover it
                masked = block.state == MASKED
                block.tokens[masked] = self._noise(request, block.start, block.size)[masked]
                request.pending_writes.append((block.start, request.next_start))
        return ForwardSpan(request.num_final_tokens, request.next_start, request.blocks)

    def successors(self, request: Request, span: ForwardSpan) -> Successors:
        start, end = request.num_final_tokens, request.next_start
        continues = NextForward(start, end, start)
        drawn = self._is_drawn(request)
        return Successors(continues, NextForward(start, end + self._size_at(request, end), end) if drawn else None)

    def _is_drawn(self, request: Request) -> bool:
        """Returns whether the step that finishes the open canvas draws the next one: pinned tokens do not cover it."""
        start = request.next_start
        return MASKED in request.state[start : start + self._size_at(request, start)].tobytes()

    def _open(self, request: Request) -> None:
        """Opens the next canvas. If pinned tokens cover it, it is final at once."""
        start = request.num_final_tokens
        request.next_start = start + self._size_at(request, start)
        _mask(request, start, request.next_start)
        block = Block(request, start, request.next_start)
        if block.finished:
            request.num_final_tokens = request.next_start
        else:
            request.blocks = [block]

    def _size_at(self, request: Request, start: int) -> int:
        """Returns the positions of the canvas at `start`, at most those of the canvas before it."""
        return self.block_layout.of_request(request.values).size_at(request.end - start)

    def _noise(self, request: Request, start: int, size: int) -> Ints:
        """Returns uniformly random token ids for a new canvas, int64 [size], from the random numbers of this step."""
        draws = torch.from_numpy(np.array([draws_of(request, start)]))
        at = torch.arange(size)
        numbers = uniform_numbers_reference(draws, torch.zeros_like(at), at, CANVAS)
        return (numbers * self.vocab_size).long().numpy()

    def visible_keys(self, request: Request, num_final_tokens: int) -> VisibleKeys:
        """Returns those up to the end of the canvas for open rows. Other rows are causal."""
        return VisibleKeys(num_final_tokens, self._size_at(request, num_final_tokens), num_final_tokens)

    def update(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        event_start = request.num_final_tokens
        if any(block not in request.blocks for block in sampled):
            return  # a preemption has restarted the canvas
        for block in sampled:
            request.nfe += 1
            if results.finished[first]:
                block_update.write_block(request, block, results, first)
                request.num_final_tokens = request.next_start
            else:
                self._write_open(request, block, results, first)
        end = block_update.update_progress(request, event_start=event_start, finished_end=request.num_final_tokens)
        if end is not None:
            block_update.finish_request(request, *end, committed=BlockLayout(1) if self.prefix_caching else None)
        elif request.num_final_tokens == request.next_start:
            request.blocks = []
            if self._is_drawn(request):
                self._open(request)
        else:
            for block in request.blocks:
                _mask(request, block.start, block.start + block.size)

    def _write_open(self, request: Request, block: Block, results: BlockResults, i: int) -> None:
        """Writes the content of a canvas that continues. It is not finished, so an EOS does not count."""
        block_update.record_step(request, block, results, i)
        block.tokens[:] = results.tokens[i, : block.size]
        block.state[:] = results.state[i, : block.size]
        first_eos = block.size if request.spec.ignore_eos else results.first_eos[i]
        block_update.update_generated(request, block, results.masks[i], first_eos)
        block.steps += 1
        block.numbers.num_steps += 1


def _mask(request: Request, start: int, end: int) -> None:
    """Sets the state of all positions that are not FIXED to MASKED."""
    state = request.state[start:end]
    state[state == UNMASKED] = MASKED
