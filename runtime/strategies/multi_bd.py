"""`multi_bd`: multi-block diffusion, with several open blocks (docs/research/decoding-rules.md#the-multi-block-loop).

`buffer_size` (--buffer-size) is the maximum number of open blocks.

The unmasking algorithms have run before `update`. `update` writes their results, moves `num_final_tokens` past
finished blocks, and finds the end of the output.
"""

from __future__ import annotations

from runtime.request.block_layout import BlockLayout
from runtime.request.field_spec import Field, fraction_field
from runtime.scheduling.request import Block, ForwardSpan, NextForward, Request, Successors
from runtime.scheduling.step_plan import FIXED, BlockResults
from runtime.scheduling.strategy import DecodingContext, Strategy
from runtime.strategies import block_update
from runtime.strategies.registry import register_strategy


@register_strategy("multi_bd")
class MultiBlock(Strategy):
    """The multi-block loop. Its public methods are the rules that another strategy may replace, one at a time.

    Attributes:
        default_buffer_size: default of --buffer-size.
        shift_by: the logits of a position are those of the row `shift_by` positions before it.
    """

    fields: tuple[Field, ...] = (
        fraction_field("add_block_threshold", 0.1, "progress of the last block from which the next block opens"),
        fraction_field(
            "semi_complete_threshold", 0.9, "progress of a block from which its successor may force a token"
        ),
        fraction_field(
            "token_stability_threshold", 0.0, "fraction of unchanged tokens from which the next block opens"
        ),
    )

    default_buffer_size = 1
    shift_by = 0

    def __init__(self, context: DecodingContext) -> None:
        self.block_size = context.block_size
        self.block_layout = BlockLayout(context.block_size)
        self.buffer_size = context.buffer_size or self.default_buffer_size
        self.prefix_caching = context.prefix_caching and self.prefix_cacheable

    def max_rows(self) -> int:
        return (self.buffer_size + 1) * self.block_size  # docs/research/decoding-rules.md#token-budget

    def required_tokens(self, request: Request) -> int:
        return min(request.num_final_tokens + max(len(request.blocks), 1) * self.block_size, len(request.tokens))

    def plan_forward(self, request: Request) -> ForwardSpan:
        """See docs/research/decoding-rules.md#opening-blocks and docs/research/decoding-rules.md#unaligned-prompts."""
        if self.buffer_size == 1 and request.blocks and request.last_scheduled is not None:
            span = request.last_scheduled.span
            if span is not None and span.blocks == request.blocks and not request.blocks[0].finished:
                return span  # its block is the only one that may be open, and it continues
        if not request.blocks_opened:
            request.blocks_opened = True
            if not request.blocks and request.next_start < request.prompt_len:
                self.open_block(request)  # this block contains the end of an unaligned prompt
            while request.next_start < request.end and len(request.blocks) < self.max_open_blocks(request):
                if request.blocks and not self.may_open(request):
                    break
                self.open_block(request)
                if request.blocks:  # otherwise it has no masks, and the next block opens too
                    break
        return ForwardSpan(request.num_final_tokens - self.shift_by, request.next_start, self.choose_blocks(request))

    def successors(self, request: Request, span: ForwardSpan) -> Successors:
        start, end, max_open = request.num_final_tokens, request.next_start, self.max_open_blocks(request)
        continues = NextForward(start - self.shift_by, end, start)
        if max_open > 1 or span.blocks != request.blocks:
            if self._opens_none(request, max_open):
                return Successors(continues)
            newest = request.blocks[-1]
            if newest is not span.blocks[-1]:  # it is finished, perhaps by pinned tokens
                return Successors()
            return Successors(continues, opens_at=self._opening_masks(request, newest))
        if not block_update.has_output_masks(request, end, end + self.block_size):
            return Successors(continues)
        return Successors(continues, NextForward(min(start, end - self.shift_by), end + self.block_size, end))

    def _opens_none(self, request: Request, max_open: int) -> bool:
        """Returns whether no further block opens after this step, as long as the first open one is not final."""
        if len(request.blocks) >= max_open or request.next_start >= request.end:
            return True
        return not request.resolved.may_revise and any(block.has_eos for block in request.blocks)

    def _opening_masks(self, request: Request, newest: Block) -> int:
        """Returns the largest number of masks of the newest block with which `may_open` may be true; -1: none is."""
        masks, threshold = newest.numbers.initial_masks, request.values["add_block_threshold"]
        return next((left for left in range(masks, -1, -1) if (masks - left) / masks >= threshold), -1)

    def max_open_blocks(self, request: Request) -> int:
        """Returns the maximum number of open blocks: 1 if a grammar or forced tokens unmask from left to right."""
        return 1 if request.decodes_left_to_right else self.buffer_size

    def open_block(self, request: Request) -> None:
        """Opens the next block. If pinned tokens cover it, it is finished, and may be final at once."""
        start = request.next_start
        request.next_start = start + self.block_size
        block = Block(request, start, request.next_start, shift_by=self.shift_by)
        if request.spec.decoding.total_steps is not None:
            block.numbers.step_budget = self._step_budget(request, start)
        request.blocks.append(block)
        if not block.masks:
            del request.blocks[: self.advance_final(request)]

    def _step_budget(self, request: Request, start: int) -> int:
        """Returns the steps of the block at `start` out of the total of the request."""
        assert request.spec.decoding.total_steps is not None
        first = self.block_layout.block_start(request.prompt_len, request.prompt_len)
        masks = (request.state[first:] != FIXED).reshape(-1, self.block_size).sum(axis=1)
        steps = block_update.split_steps(request.spec.decoding.total_steps, masks.tolist())
        return steps[(start - first) // self.block_size]

    def may_open(self, request: Request) -> bool:
        """Returns whether the next block opens while others are open. Without an open block it opens in any case."""
        blocks = request.blocks
        newest, values = blocks[-1], request.values
        return (
            newest.progress >= values["add_block_threshold"]
            and newest.same_token_ratio >= values["token_stability_threshold"]
            and not any(block.has_eos for block in blocks)
        )

    def advance_final(self, request: Request) -> int:
        """Moves `num_final_tokens` past the leading finished blocks. Returns their number; the caller removes them."""
        n = 0
        for block in request.blocks:
            if not block_update.is_finished(request, block):
                break
            block.finished = True
            request.num_final_tokens = block.start + block.size
            n += 1
        return n

    def choose_blocks(self, request: Request) -> list[Block]:
        """Returns the blocks to sample, those whose `finished` is not set, and sets their `must_advance`.

        With a buffer size of 1 the choice for a block stays until it is finished. See
        docs/research/decoding-rules.md#forcing.
        """
        chosen: list[Block] = []
        before: Block | None = None
        for block in request.blocks:
            if not block.finished:
                advances = before is None or before.progress >= request.values["semi_complete_threshold"]
                block.numbers.must_advance = advances
                chosen.append(block)
            before = block
        return chosen

    def update(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        """See docs/research/decoding-rules.md#denoising-step and docs/research/decoding-rules.md#end-of-an-answer."""
        request.blocks_opened = False
        if sampled:
            request.nfe += 1
        for i, block in enumerate(sampled, first):
            block_update.write_block(request, block, results, i)
        event_start, blocks = request.num_final_tokens, request.blocks
        num_final = self.advance_final(request) if blocks and block_update.is_finished(request, blocks[0]) else 0
        end = block_update.update_progress(request, event_start=event_start, finished_end=request.num_final_tokens)
        if end is not None:
            block_update.finish_request(request, *end, committed=self.block_layout if self.prefix_caching else None)
        if num_final:
            del request.blocks[:num_final]
