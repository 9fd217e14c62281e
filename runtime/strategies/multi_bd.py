"""`multi_bd`: denoises several blocks at once (docs/decoding-rules.md#the-multi-block-loop).

The unmasking algorithms have decided before `apply` runs. `apply` writes their decisions, settles blocks, and finds the
end of the answer.
"""

from __future__ import annotations

from runtime.engine.request import FIXED, Block, Request
from runtime.engine.scheduled_request import ForwardSpan
from runtime.engine.step_plan import BlockResults
from runtime.request.block_layout import Tiling
from runtime.request.field_spec import Field, share
from runtime.strategies.base import DecodingContext, register_strategy
from runtime.strategies.block_strategy import TiledBlocks
from runtime.strategies.block_update import advance, complete, finish, looked_at, worth_caching, write_block
from runtime.strategies.step_schedule import shares


@register_strategy("multi_bd")
class MultiBlock(TiledBlocks):
    fields: tuple[Field, ...] = (
        share("add_block_threshold", 0.1, "progress of the newest block at which the next opens"),
        share("semi_complete_threshold", 0.9, "progress of a block at which its successor may force a token"),
        share("token_stability_threshold", 0.0, "share of unchanged tokens at which the next block opens"),
    )

    buffers = 1  # default of --buffer-size
    shift = 0  # how far before a position the row stands whose logits are its own

    def __init__(self, context: DecodingContext) -> None:
        self.block_size = context.block_size
        self.tiling = Tiling(context.block_size)
        self.buffer_size = context.buffer_size or self.buffers
        self.prefix_caching = context.prefix_caching and self.shares_prefixes

    def max_rows(self) -> int:
        return (self.buffer_size + 1) * self.block_size  # docs/decoding-rules.md#token-budget

    def reach(self, request: Request) -> int:
        return request.num_final_tokens + max(len(request.blocks), 1) * self.block_size

    def chunk(self, request: Request, room: int) -> int:
        return room // self.block_size * self.block_size  # docs/decoding-rules.md#prefill

    def open(self, request: Request) -> ForwardSpan:
        """See docs/decoding-rules.md#opening-blocks and docs/decoding-rules.md#unaligned-prompts."""
        if self.buffer_size == 1 and request.blocks and request.last_scheduled is not None:
            span = request.last_scheduled.span
            if span is not None and span.blocks == request.blocks and not request.blocks[0].finished:
                return span  # its block is the only one that may be open, and goes on
        if not request.blocks_opened:
            request.blocks_opened = True
            if not request.blocks and request.next_start < request.prompt_len:
                self._append(request)  # it contains the end of an unaligned prompt
            while len(request.blocks) < self._most(request) and self._may_open(request):
                self._append(request)
                if request.blocks:  # else all of it was given: the next one opens too
                    break
        return ForwardSpan(request.num_final_tokens - self.shift, request.next_start, self._sampled(request))

    def steady(self, request: Request, span: ForwardSpan) -> bool:
        if self.buffer_size > 1 or len(span.blocks) != 1 or span.blocks != request.blocks:
            return False
        return not looked_at(request) and span.blocks[0].start + span.blocks[0].size <= request.end

    def _most(self, request: Request) -> int:
        """ACTIVE blocks; a grammar, or a text that is recited, fills them from the left, one at a time."""
        return 1 if request.decodes_left_to_right else self.buffer_size

    def _append(self, request: Request) -> None:
        start = request.next_start
        request.next_start = start + self.block_size
        block = Block(request, start, request.next_start, shift=self.shift)
        if request.spec.decoding.total_steps is not None:
            block.step_budget = self._share(request, start)
        request.blocks.append(block)
        if not block.masks:  # all of it was given
            del request.blocks[: self._settle(request)]

    def _share(self, request: Request, start: int) -> int:
        """Of the request's total of steps, those of the block at `start`."""
        assert request.spec.decoding.total_steps is not None
        first = self.tiling.start(request.prompt_len, request.prompt_len)
        masks = (request.state[first:] != FIXED).reshape(-1, self.block_size).sum(axis=1)
        return shares(request.spec.decoding.total_steps, masks.tolist())[(start - first) // self.block_size]

    def _may_open(self, request: Request) -> bool:
        if request.next_start >= request.end:
            return False
        blocks = request.blocks
        if not blocks:
            return True
        newest, values = blocks[-1], request.values
        return (
            newest.progress >= values["add_block_threshold"]
            and newest.same_token_ratio >= values["token_stability_threshold"]
            and not any(block.has_eos for block in blocks)
        )

    def _settle(self, request: Request) -> int:
        """Blocks that are final, up to the first that is not, are settled; how many. They still have to leave."""
        n = 0
        for block in request.blocks:
            if not complete(request, block):
                break
            block.finished = True
            request.num_final_tokens = block.start + block.size
            n += 1
        return n

    def _sampled(self, request: Request) -> list[Block]:
        """Returns the blocks that can still change, and sets their `may_force` (docs/decoding-rules.md#forcing)."""
        chosen: list[Block] = []
        before: Block | None = None
        for block in request.blocks:
            if not block.finished:
                block.may_force = before is None or before.progress >= request.values["semi_complete_threshold"]
                chosen.append(block)
            before = block
        return chosen

    def apply(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        """See docs/decoding-rules.md#denoising-step and docs/decoding-rules.md#end-of-an-answer."""
        request.blocks_opened = False
        if sampled:
            request.nfe += 1
        for i, block in enumerate(sampled, first):
            write_block(request, block, results, i)
        shown, blocks = request.num_final_tokens, request.blocks
        settled = self._settle(request) if blocks and complete(request, blocks[0]) else 0
        end = advance(request, shown=shown, final=request.num_final_tokens)
        if end is not None:
            keep = worth_caching(request, *end, tiling=self.tiling) if self.prefix_caching else 0
            finish(request, *end, keep=keep)
        if settled:
            del request.blocks[:settled]
