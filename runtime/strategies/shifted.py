"""Base of `fast_dllm_v2` and `nemotron_diffusion`: one open block, whose first token comes from the row before it.

docs/research/decoding-rules.md#first-token-of-a-block defines the first token, which is a `Block` of one position here.
A strategy may decode a block in sub-blocks from left to right. Each is a `Block` object, and the block of the unmasking
algorithm. `Request.blocks` has all sub-blocks of the open block.
"""

from __future__ import annotations

from runtime.request.block_layout import BlockLayout
from runtime.scheduling.request import Block, ForwardSpan, NextForward, Request, Successors
from runtime.scheduling.step_plan import FIXED, MASKED, BlockResults
from runtime.scheduling.strategy import DecodingContext, Strategy, require_single_block
from runtime.strategies import block_update


class ShiftedBlockStrategy(Strategy):
    from_prompt = False
    shift_by = 0  # logits shift of all positions but the first of a block, whose shift is 1

    def __init__(self, context: DecodingContext) -> None:
        require_single_block(context)
        self.block_size = context.block_size
        self.block_layout = BlockLayout(context.block_size, self.from_prompt)
        self.prefix_caching = context.prefix_caching

    def max_rows(self) -> int:
        return self.block_size

    def uncacheable_tail(self, request: Request) -> int:
        return 1 if self._needs_first_token(request) else super().uncacheable_tail(request)

    def sub_block_size(self, request: Request) -> int:
        """Returns the positions per sub-block. The block size is a multiple of it."""
        return self.block_size

    def forward_range(self, request: Request, sub_block: Block) -> tuple[int, int]:
        """Returns the first position and the end of the rows to forward to sample `sub_block`."""
        return request.num_final_tokens, request.next_start

    def write_result(self, request: Request, sub_block: Block, results: BlockResults, i: int) -> None:
        block_update.write_block(request, sub_block, results, i)

    def plan_forward(self, request: Request) -> ForwardSpan:
        while not request.blocks and request.next_start < request.end:
            if self._needs_first_token(request):
                start = request.num_final_tokens
                return ForwardSpan(start, start, [Block(request, start, start + 1, shift_by=1)])
            self._open(request)
            if self._advance_final(request):  # pinned tokens cover it
                request.blocks = []
        sub_block = first_open_sub_block(request)
        if sub_block is None:
            return ForwardSpan(request.num_final_tokens, request.num_final_tokens, [])
        start, end = self.forward_range(request, sub_block)
        sub_block.num_skipped = max(start - sub_block.logits_start, int(sub_block.start == request.num_final_tokens))
        return ForwardSpan(start, end, [sub_block])

    def successors(self, request: Request, span: ForwardSpan) -> Successors:
        start, end = request.num_final_tokens, request.next_start
        if not request.blocks:  # the step samples the first token of a block
            opens = block_update.has_output_masks(request, start + 1, start + self.block_size)
            opened = NextForward(start, start + self.block_size, start) if opens else None
            return Successors(opened, opened)
        same = NextForward(start, end, start)
        (block,) = span.blocks
        if block_update.has_output_masks(request, block.start + block.size, end):
            return Successors(same, same)
        # the step after the block only writes its K/V, and samples the first token of the next one
        first_token = end < request.end and request.state[end] == MASKED
        return Successors(same, NextForward(start, end, end) if first_token else None)

    def _needs_first_token(self, request: Request) -> bool:
        at = request.num_final_tokens
        return not request.blocks and at < request.end and bool(request.state[at] == MASKED)

    def _open(self, request: Request) -> None:
        size, start = self.sub_block_size(request), request.next_start
        request.next_start = start + self.block_size
        request.blocks = [
            Block(request, at, at + size, shift_by=self.shift_by) for at in range(start, request.next_start, size)
        ]
        if request.spec.decoding.total_steps is not None:
            steps = self._steps(request, request.spec.decoding.total_steps, size)
            for sub_block in request.blocks:
                sub_block.numbers.step_budget = steps.get(sub_block.start, 0)

    def _steps(self, request: Request, total: int, size: int) -> dict[int, int]:
        """Returns the steps of each sub-block with masks, out of the total of the request, by its first position."""
        first = self.block_layout.block_start(request.prompt_len, request.prompt_len)
        editable = request.state[first:] != FIXED
        editable[:: self.block_size] = False  # first tokens of blocks
        masks = editable.reshape(-1, size).sum(axis=1).tolist()
        editable[request.end - first :] = False
        sub_blocks = editable.reshape(-1, size).any(axis=1)
        steps = block_update.split_steps(total, [masks[n] for n in sub_blocks.nonzero()[0]])
        return {first + n * size: count for n, count in zip(sub_blocks.nonzero()[0].tolist(), steps, strict=True)}

    def _advance_final(self, request: Request) -> bool:
        """Moves `num_final_tokens` past the open block if it is finished; the caller then removes it."""
        if not request.blocks or first_open_sub_block(request) is not None:
            return False
        request.num_final_tokens = request.next_start
        return True

    def _finished_end(self, request: Request) -> int:
        """Returns the end of the tokens that no step changes: those of finished sub-blocks, and the first token."""
        sub_block = first_open_sub_block(request)
        if sub_block is None:
            return request.num_final_tokens
        return sub_block.start + int(sub_block.start == request.num_final_tokens)

    def update(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        event_start = request.num_final_tokens
        for block in sampled:
            if request.blocks:
                request.nfe += 1
                self.write_result(request, block, results, first)
            else:
                self._write_first_token(request, block, results, first)
        finished = self._advance_final(request)
        end = block_update.update_progress(request, event_start=event_start, finished_end=self._finished_end(request))
        if end is not None:
            block_update.finish_request(request, *end, committed=self.block_layout if self.prefix_caching else None)
        elif finished:
            request.blocks = []

    def _write_first_token(self, request: Request, first_token: Block, results: BlockResults, i: int) -> None:
        """Writes the first token, and opens its block."""
        block_update.write_block(request, first_token, results, i)
        self._open(request)
        if first_token.has_eos:
            request.blocks[0].first_eos, request.blocks[0].has_eos = 0, True


def first_open_sub_block(request: Request) -> Block | None:
    """Returns the first sub-block of the open block that can still change; None if there is none."""
    for sub_block in request.blocks:
        if not block_update.is_finished(request, sub_block):
            return sub_block
    return None
