"""`fast_dllm_v2`: blocks of 32 in sub-blocks of 8, with a logits shift.

See docs/research/decoding-rules.md#strategy-fast_dllm_v2.

With `block_cache`, a step may read K/V of the block that an earlier step wrote. `Request.kv.reused_spans` stores the
ids of that forward pass, because they are forwarded again after a preemption.
"""

from __future__ import annotations

from runtime.errors import ConfigError
from runtime.request.field_spec import SUB_BLOCK, Field
from runtime.scheduling.request import Block, ForwardSpan, KVSpan, NextForward, Request, Successors
from runtime.scheduling.step_plan import MASKED, BlockResults
from runtime.scheduling.strategy import DecodingContext
from runtime.strategies import block_update
from runtime.strategies.registry import register_strategy
from runtime.strategies.shifted import ShiftedBlockStrategy, first_open_sub_block

SUB_BLOCK_SIZE = 8


@register_strategy("fast_dllm_v2")
class FastDLLMv2(ShiftedBlockStrategy):
    shift_by = 1

    def __init__(self, context: DecodingContext) -> None:
        super().__init__(context)
        size = min(SUB_BLOCK_SIZE, self.block_size)
        if self.block_size % size:
            raise ConfigError(
                f"--block-size {self.block_size}: must be a multiple of fast_dllm_v2's sub-blocks of {size}"
            )
        self.fields: tuple[Field, ...] = (
            Field(
                name=SUB_BLOCK, kind="integer", default=size, low=1, high=self.block_size, divides=self.block_size,
                help="positions per sub-block; per-block fields of algorithms apply to sub-blocks",
            ),
            Field(
                name="block_cache", kind="flag", default=False,
                help="forward only the sub-block once its first token is unmasked",
            ),
        )  # fmt: skip

    def sub_block_size(self, request: Request) -> int:
        return int(request.values[SUB_BLOCK])

    def forward_range(self, request: Request, sub_block: Block) -> tuple[int, int]:
        """Returns the rows of a refine step or of a full step."""
        if request.kv.reused_spans:
            return sub_block.start, sub_block.start + sub_block.size
        return super().forward_range(request, sub_block)

    def successors(self, request: Request, span: ForwardSpan) -> Successors:
        """The rows of a step depend on the first token of its sub-block, which the step before may change."""
        found = super().successors(request, span)
        if not request.blocks or not request.values["block_cache"]:
            return found
        (block,) = span.blocks
        start, end, num_final = block.start, block.start + block.size, request.num_final_tokens
        may_change = start > num_final and request.resolved.may_revise
        known = request.state[start] != MASKED and not may_change
        following = next((each for each in request.blocks if each.start >= end and each.masks), None)
        return Successors(
            NextForward(start, end, num_final) if known else None,
            found.if_final if following is None or request.state[following.start] == MASKED else None,
        )

    def write_result(self, request: Request, sub_block: Block, results: BlockResults, i: int) -> None:
        first, last = self.forward_range(request, sub_block)
        forwarded = request.tokens[first:last].copy()
        block_update.write_block(request, sub_block, results, i)
        following = first_open_sub_block(request)
        if not request.values["block_cache"] or following is None or request.state[following.start] == MASKED:
            request.kv.reused_spans = []  # the next step forwards everything
        elif not request.kv.reused_spans or following is not sub_block:  # otherwise the next step overwrites these rows
            request.kv.reused_spans = [*request.kv.reused_spans, KVSpan(first, forwarded)]
