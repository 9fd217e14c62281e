"""`multi_bd`: several blocks denoised at once, each opened by its predecessor's progress (decoding.md 3).

Rule numbers are those of that section. A block's own acceptance rule (3.1, 3.2) has already decided when `apply` runs;
here the decisions become state: which blocks are final, which opens next, where the answer ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.engine.description import Field, share
from runtime.engine.io import FinishReason
from runtime.engine.plan import BlockResults, Ints
from runtime.engine.request import FIXED, Block, Request
from runtime.engine.shares import shares
from runtime.strategies.base import DecodingContext, Feed, register_strategy


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

    def layout(self, prompt_len: int, max_tokens: int) -> tuple[int, int]:
        size = self.block_size
        return -(-(prompt_len + max_tokens) // size) * size, prompt_len // size * size

    def reach(self, request: Request) -> int:
        return request.settled + max(len(request.blocks), 1) * self.block_size

    def chunk(self, request: Request, room: int) -> int:
        return room // self.block_size * self.block_size  # rule 2

    def open(self, request: Request) -> Feed:
        """Rules 3 and 4."""
        if not request.opened:
            request.opened = True
            if not request.blocks and request.next_start < request.prompt_len:
                self._append(request)  # open from the start: rule 4 applies to it already
            while self._may_open(request):
                self._append(request)
                if request.blocks:  # else all of it was given: the next one opens too
                    break
        return Feed(request.settled, request.next_start, self._sampled(request))

    def _append(self, request: Request) -> None:
        start = request.next_start
        request.next_start = start + self.block_size
        block = Block(start, request.state[start : request.next_start], editing=request.editing)
        if request.spec.decoding.total_steps is not None:
            block.given_steps = self._share(request, start)
        request.blocks.append(block)
        del request.blocks[: self._settle(request)]

    def _share(self, request: Request, start: int) -> int:
        """Of the request's total of steps, those of the block at `start`."""
        assert request.spec.decoding.total_steps is not None
        first = request.prompt_len // self.block_size * self.block_size
        masks = (request.state[first:] != FIXED).reshape(-1, self.block_size).sum(axis=1)
        return shares(request.spec.decoding.total_steps, masks.tolist())[(start - first) // self.block_size]

    def _may_open(self, request: Request) -> bool:
        if request.next_start >= request.end:
            return False
        blocks = request.blocks
        if not blocks:
            return True
        if len(blocks) >= self.buffer_size:
            return False
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
            if not block.ended and (block.masks or request.editing):
                break
            block.ended = True
            request.settled = block.start + block.size
            n += 1
        return n

    def _sampled(self, request: Request) -> list[Block]:
        """Open blocks that can still change; one may force when its predecessor is settled or semi-complete (3.1)."""
        chosen: list[Block] = []
        before: Block | None = None
        for block in request.blocks:
            if not block.ended:
                block.may_force = before is None or before.progress >= request.values["semi_complete_threshold"]
                chosen.append(block)
            before = block
        return chosen

    def visible_end(self, requests: Sequence[Request], owner: Ints, positions: Ints) -> Ints:
        """Block-causal: rows come in whole blocks, and see to the end of their own."""
        return (positions // self.block_size + 1) * self.block_size

    def apply(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        """Rules 5, 8 and 9."""
        request.opened = False
        request.nfe += bool(sampled)
        for i, block in enumerate(sampled, first):
            self._write(request, block, results, i)
        shown = request.settled
        settled = self._settle(request)
        if request.spec.report == "denoise":
            request.show(shown)
        stable = request.settled if request.unstable else self._filled_prefix(request)  # what can change is not stable
        stable = min(stable, request.end)
        if stable > request.stable:
            request.stable = stable
        if request.watched or request.eos_seen or request.stable >= request.end:
            end = self._find_end(request)
            if end is not None:
                self._finish(request, *end)
        del request.blocks[:settled]

    def _write(self, request: Request, block: Block, results: BlockResults, i: int) -> None:
        start, size = block.start, block.size
        request.tokens[start : start + size] = results.tokens[i, :size]
        request.state[start : start + size] = results.state[i, :size]
        if not block.masks:
            block.post_edit_steps += 1
        if results.remasks[i]:
            seen = results.remasked[i, :size]
            block.remasked = seen if block.remasked is None else block.remasked | seen
        masks = block.masks = results.masks[i]
        filled = block.free - masks
        block.progress = filled / block.free
        if request.editing:
            block.same_token_ratio = (filled - results.written[i]) / filled if filled else 0.0
        block.steps += 1
        block.advanced += block.may_force
        block.ended = results.ended[i]
        block.first_masked = min(results.first_masked[i], size)
        first_eos = min(results.first_eos[i], size)
        if first_eos != block.first_eos:
            block.first_eos = first_eos
            found = first_eos < size and start + first_eos < request.end
            block.has_eos = found and not request.spec.ignore_eos
            request.eos_seen |= block.has_eos

    def _filled_prefix(self, request: Request) -> int:
        """Where the contiguous run without a mask from the prompt on ends."""
        end = request.settled
        for block in request.blocks:
            end = block.start + block.first_masked
            if block.masks:
                break
        return min(end, request.end)

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
        filled = max(self._filled_prefix(request), request.prompt_len)
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
        request.blocks = []
        keep = request.cached  # what the answer covers to the end of a block is worth caching (rule 6)
        if self.prefix_caching and reason in ("stop", "length"):
            covered = end + 1 if request.hit_eos else end
            keep = max(keep, min(request.settled, covered // self.block_size * self.block_size))
        request.settled = keep
