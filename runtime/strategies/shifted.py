"""Base of `fast_dllm_v2` and `nemotron_diffusion`: one open block, whose first token comes from the row before it.

docs/decoding-rules.md#first-token-of-a-block defines the first token, here called the seed. The seed is a `Block` of
one position. A strategy may decode a block in parts from left to right. Each part is a `Block` to the unmasking
algorithm.
"""

from __future__ import annotations

from runtime.engine.request import FIXED, MASKED, Block, Request
from runtime.engine.scheduled_request import ForwardSpan
from runtime.engine.step_plan import BlockResults
from runtime.request.block_layout import Tiling
from runtime.strategies.base import DecodingContext, check_one_at_a_time
from runtime.strategies.block_strategy import TiledBlocks
from runtime.strategies.block_update import advance, complete, finish, worth_caching, write_block
from runtime.strategies.step_schedule import shares


class SeededBlocks(TiledBlocks):
    buffer_size = 1
    from_prompt = False
    shift = 0  # how far before a position the row stands whose logits are its own; a seed's is always the one before

    def __init__(self, context: DecodingContext) -> None:
        check_one_at_a_time(context)
        self.block_size = context.block_size
        self.tiling = Tiling(context.block_size, self.from_prompt)
        self.prefix_caching = context.prefix_caching

    def max_rows(self) -> int:
        return self.block_size

    def tail(self, request: Request) -> int:
        return int(self._wants_seed(request))

    def reach(self, request: Request) -> int:
        return request.num_final_tokens + self.block_size

    def chunk(self, request: Request, room: int) -> int:
        return room // self.block_size * self.block_size

    def part(self, request: Request) -> int:
        """Positions of a part of a block; the block's size is a multiple of it."""
        return self.block_size

    def rows(self, request: Request, part: Block) -> tuple[int, int]:
        """First position and end of what is forwarded to sample `part`."""
        return request.num_final_tokens, request.next_start

    def write(self, request: Request, part: Block, results: BlockResults, i: int) -> None:
        write_block(request, part, results, i)

    def open(self, request: Request) -> ForwardSpan:
        while not request.blocks and request.next_start < request.end:
            if self._wants_seed(request):
                start = request.num_final_tokens
                seed = Block(request, start, start + 1, shift=1)
                return ForwardSpan(start, start, [seed])
            self._open(request)
            if self._settle(request):  # all of it was given
                request.blocks = []
        part = current(request)
        if part is None:
            return ForwardSpan(request.num_final_tokens, request.num_final_tokens, [])
        first, last = self.rows(request, part)
        part.num_skipped = max(first - part.logits_start, int(part.start == request.num_final_tokens))
        return ForwardSpan(first, last, [part])

    def _wants_seed(self, request: Request) -> bool:
        at = request.num_final_tokens
        return not request.blocks and at < request.end and bool(request.state[at] == MASKED)

    def _open(self, request: Request) -> None:
        size, start = self.part(request), request.next_start
        request.next_start = start + self.block_size
        request.blocks = [
            Block(request, at, at + size, shift=self.shift) for at in range(start, request.next_start, size)
        ]
        if request.spec.decoding.total_steps is not None:
            steps = self._steps(request, request.spec.decoding.total_steps, size)
            for part in request.blocks:
                part.step_budget = steps.get(part.start, 0)

    def _steps(self, request: Request, total: int, size: int) -> dict[int, int]:
        """Of the request's total, the steps of each part that has to be stepped through, by where it starts."""
        first = self.tiling.start(request.prompt_len, request.prompt_len)
        free = request.state[first:] != FIXED
        free[:: self.block_size] = False  # seeds
        masks = free.reshape(-1, size).sum(axis=1).tolist()
        free[request.end - first :] = False
        asked = free.reshape(-1, size).any(axis=1)
        steps = shares(total, [masks[n] for n in asked.nonzero()[0]])
        return {first + n * size: share for n, share in zip(asked.nonzero()[0].tolist(), steps, strict=True)}

    def _settle(self, request: Request) -> bool:
        """Whether the open block is final; then it is settled, and still has to leave."""
        if not request.blocks or current(request) is not None:
            return False
        request.num_final_tokens = request.next_start
        return True

    def _final(self, request: Request) -> int:
        """Positions below cannot change: finished parts, and the seed."""
        part = current(request)
        return request.num_final_tokens if part is None else part.start + int(part.start == request.num_final_tokens)

    def apply(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        shown = request.num_final_tokens
        for block in sampled:
            if request.blocks:
                request.nfe += 1
                self.write(request, block, results, first)
            else:
                self._seed(request, block, results, first)
        settled = self._settle(request)
        end = advance(request, shown=shown, final=self._final(request))
        if end is not None:
            keep = worth_caching(request, *end, tiling=self.tiling) if self.prefix_caching else 0
            finish(request, *end, keep=keep)
        elif settled:
            request.blocks = []

    def _seed(self, request: Request, seed: Block, results: BlockResults, i: int) -> None:
        """Write the seed, and open its block."""
        write_block(request, seed, results, i)
        self._open(request)
        if seed.has_eos:
            request.blocks[0].first_eos, request.blocks[0].has_eos = 0, True


def current(request: Request) -> Block | None:
    """The first part of the open block that can still change."""
    for part in request.blocks:
        if not complete(request, part):
            return part
    return None
