"""`multi_bd`: several blocks denoised at once, each opened by its predecessor's progress (decoding.md 3).

Rule numbers are those of that section. A block's own acceptance rule (3.1, 3.2) has already decided when `apply` runs;
here the decisions become state: which blocks are final, which opens next, where the answer ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.engine.description import Field, share
from runtime.engine.io import FinishReason
from runtime.engine.plan import BlockResults, Ints
from runtime.engine.request import Block, BlockStatus, Request
from runtime.engine.shares import shares
from runtime.strategies.base import DecodingContext, register_strategy

ACTIVE, TO_CACHE = BlockStatus.ACTIVE, BlockStatus.TO_CACHE


@register_strategy("multi_bd")
class MultiBlock:
    fields: tuple[Field, ...] = (
        share("add_block_threshold", 0.1, "progress of the newest block at which the next opens"),
        share("semi_complete_threshold", 0.9, "progress of a block at which its successor may force a token"),
        share("token_stability_threshold", 0.0, "share of unchanged tokens at which the next block opens"),
    )

    def __init__(self, context: DecodingContext) -> None:
        self.block_size = context.block_size
        self.buffer_size = context.buffer_size
        self.prefix_caching = context.prefix_caching

    def max_rows(self) -> int:
        return (self.buffer_size + 1) * self.block_size  # rule 7

    def open(self, request: Request) -> int:
        """Rules 3 and 4."""
        if not request.opened and not request.committing:
            request.opened = True
            if not request.blocks and request.prompt_len % self.block_size:
                self._append(request)  # ACTIVE from the start: rule 4 applies to it already
            if self._may_open(request):
                self._append(request)
        return len(request.blocks) * self.block_size

    def _append(self, request: Request) -> None:
        start = request.next_start
        block = Block(start, self.block_size - max(0, request.prompt_len - start), self.block_size)
        if request.spec.decoding.total_steps is not None:
            block.given_steps = self._share(request, start)
        block.same_token_ratio = 0.0 if request.editing else 1.0  # rule 8
        request.blocks.append(block)
        request.next_start = start + self.block_size

    def _share(self, request: Request, start: int) -> int:
        """Of the request's total of steps, those of the block at `start`."""
        assert request.spec.decoding.total_steps is not None
        first = request.prompt_len // self.block_size * self.block_size
        blocks = -(-(request.end - first) // self.block_size)
        masks = [self.block_size - (request.prompt_len - first), *[self.block_size] * (blocks - 1)]
        return shares(request.spec.decoding.total_steps, masks)[(start - first) // self.block_size]

    def _may_open(self, request: Request) -> bool:
        if request.next_start >= request.end:
            return False
        blocks = request.blocks
        if not blocks or blocks[-1].status is TO_CACHE:  # nothing is ACTIVE: TO_CACHE blocks come first
            return True
        if self.buffer_size == 1 or sum(block.status is ACTIVE for block in blocks) >= self.buffer_size:
            return False
        newest, values = blocks[-1], request.values
        return (
            newest.progress >= values["add_block_threshold"]
            and newest.same_token_ratio >= values["token_stability_threshold"]
            and not any(block.has_eos for block in blocks)
        )

    def visible_end(self, requests: Sequence[Request], owner: Ints, positions: Ints) -> Ints:
        """Block-causal: rows come in whole blocks, and see to the end of their own."""
        return (positions // self.block_size + 1) * self.block_size

    def sampled(self, request: Request) -> list[Block]:
        """ACTIVE blocks that can still change; one may force when its predecessor is final or semi-complete (3.1)."""
        chosen: list[Block] = []
        before: Block | None = None
        for block in request.blocks:
            if block.status is ACTIVE:
                block.may_force = (
                    before is None
                    or before.status is TO_CACHE
                    or before.progress >= request.values["semi_complete_threshold"]
                )
                if not block.ended:
                    chosen.append(block)
            before = block
        return chosen

    def apply(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        """Rules 5, 8 and 9."""
        request.nfe += 1
        self.commit(request)
        for i, block in enumerate(sampled, first):
            self._write(request, block, results, i)
        blocks = request.blocks
        for block in blocks:  # all that were TO_CACHE are gone: left to right, until one is not done
            if not block.ended and (block.masks or request.editing):
                break
            block.status = TO_CACHE
        if request.spec.report == "denoise":
            request.show()
        stable = self._filled_prefix(request, final_only=request.unstable)  # what can change is not stable text
        if stable > request.stable:
            request.stable = stable
        if request.watched or request.eos_seen or request.stable >= request.end:
            end = self._find_end(request)
            if end is not None:
                self._finish(request, *end)

    def commit(self, request: Request) -> None:
        """Rule 5: the blocks that this forward carried TO_CACHE are in the cache."""
        request.opened = False
        blocks = request.blocks
        while blocks and blocks[0].status is TO_CACHE:
            request.target = blocks.pop(0).start + self.block_size
        request.cached = request.target

    def _write(self, request: Request, block: Block, results: BlockResults, i: int) -> None:
        start = block.start
        end = start + self.block_size
        request.tokens[start:end] = results.tokens[i]
        request.state[start:end] = results.state[i]
        if not block.masks:
            block.post_edit_steps += 1
        if results.remasks[i]:
            seen = results.remasked[i]
            block.remasked = seen if block.remasked is None else block.remasked | seen
        masks = block.masks = results.masks[i]
        filled = block.free - masks
        block.progress = filled / block.free
        if request.editing:
            block.same_token_ratio = (filled - results.written[i]) / filled if filled else 0.0
        block.steps += 1
        block.advanced += block.may_force
        block.ended = results.ended[i]
        block.first_masked = results.first_masked[i]
        first_eos = results.first_eos[i]
        if first_eos != block.first_eos:
            block.first_eos = first_eos
            found = first_eos < self.block_size and start + first_eos < request.end
            block.has_eos = found and not request.spec.ignore_eos
            request.eos_seen |= block.has_eos

    def _filled_prefix(self, request: Request, final_only: bool) -> int:
        """Where the contiguous FILLED run from the prompt on ends; with `final_only` its part in final blocks."""
        end = request.target
        for block in request.blocks:
            if final_only and block.status is not TO_CACHE:
                break
            end = block.start + block.first_masked
            if block.masks:
                break
        return end if end < request.end else request.end

    def _find_end(self, request: Request) -> tuple[FinishReason, int] | None:
        """Rule 9: why and where the answer ends, if it does."""
        for block in request.blocks:
            if block.has_eos:
                if block.start + block.first_eos < request.stable:
                    return "stop", block.start + block.first_eos
                break
        if request.stable >= request.end:
            return "length", request.end
        spec = request.spec
        at_cap = spec.max_nfe is not None and request.nfe >= spec.max_nfe
        if not at_cap and spec.max_repetition_run is None:
            return None
        filled = max(self._filled_prefix(request, final_only=False), request.prompt_len)
        filled = min([filled, *(b.start + b.first_eos for b in request.blocks if b.has_eos)])
        if at_cap:
            return "max_nfe", filled
        assert spec.max_repetition_run is not None
        cut = request.run.advance(request.tokens, min(request.stable, filled), spec.max_repetition_run)
        if cut is None:  # what is not final yet may change: look at it without remembering
            cut = request.run.copy().advance(request.tokens, filled, spec.max_repetition_run)
        return ("repetition", cut) if cut is not None else None

    def _finish(self, request: Request, reason: FinishReason, end: int) -> None:
        request.reason = reason
        request.hit_eos = reason == "stop"
        request.end = request.stable = end
        covered = end + 1 if request.hit_eos else end
        whole = [b for b in request.blocks if b.status is TO_CACHE and b.start + self.block_size <= covered]
        request.committing = self.prefix_caching and reason in ("stop", "length") and bool(whole)
        request.blocks = whole  # rule 6: what the answer covers to the end is worth caching
