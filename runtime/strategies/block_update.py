"""What all strategies do with a step's results: write them into blocks, see how far the answer is and where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.engine.request import Block, Request
from runtime.engine.step_plan import BlockResults
from runtime.request.block_layout import Tiling

if TYPE_CHECKING:  # strategies are timed where the messages' package is not installed
    from runtime.request.engine_messages import FinishReason


def write_block(request: Request, block: Block, results: BlockResults, i: int) -> None:
    """Result `i` of the step, into the block and the request's arrays."""
    size = block.size
    tokens, state = results.tokens[i], results.state[i]
    if size < len(tokens):
        tokens, state = tokens[:size], state[:size]
    block.tokens[...] = tokens  # half the time of [:]
    block.state[...] = state
    if not block.masks:
        block.post_edit_steps += 1
    if i in results.logprobs and request.logprobs is not None:
        request.logprobs.update(block.start, results.logprobs[i])
    if results.remasks[i]:
        seen = results.remasked[i, :size]
        block.remasked = seen if block.remasked is None else block.remasked | seen
    masks = block.masks = results.masks[i]
    filled = block.num_editable - masks
    block.progress = filled / block.num_editable
    if request.editing:  # docs/decoding-rules.md#same-token-ratio
        block.same_token_ratio = (filled - results.num_updated[i]) / filled if filled else 0.0
    block.steps += 1
    block.num_steps_forcing += block.may_force
    block.finished = results.finished[i]
    block.first_masked = results.first_masked[i] if masks else size
    first_eos = results.first_eos[i]
    if first_eos > size:  # none in a block that is smaller than others of the step
        first_eos = size
    if request.spec.stop_ids:
        first_eos = request.first_stop_offset(block, first_eos)
    if first_eos != block.first_eos:
        block.first_eos = first_eos
        found = first_eos < size and block.start + first_eos < request.end
        block.has_eos = found and request.has_stop_tokens
        request.eos_generated |= block.has_eos


def complete(request: Request, block: Block) -> bool:
    """Whether nothing in the block will change, once what comes before it is final too."""
    return block.finished or not (block.masks or request.editing)


def looked_at(request: Request) -> bool:
    """Whether each of the request's steps has to be written before the next is planned: it may end the answer, or say
    what else the next one is made of."""
    return (
        request.has_step_limits
        or request.decodes_left_to_right
        or bool(request.spec.stop_ids)
        or request.soft_embedding_params is not None
    )


def filled_prefix(request: Request) -> int:
    """Where the contiguous run without a mask from the prompt on ends."""
    end = request.next_start
    for block in request.blocks:
        end = block.start + block.first_masked
        if block.masks:
            break
    return end if end < request.end else request.end


def advance(request: Request, *, shown: int, final: int) -> tuple[FinishReason, int] | None:
    """Updates the stable prefix after a step, and returns the finish reason and the end of the answer, if it ends.

    docs/decoding-rules.md#end-of-an-answer has the conditions.

    Args:
        shown: the position from which a denoise event shows the blocks. final: positions below it cannot change.
    """
    if request.stream_steps:
        request.record_step_event(shown)
    stable = min(final, request.end) if request.may_revise else filled_prefix(request)  # what can change is not stable
    if stable > request.num_stable_tokens:
        request.num_stable_tokens = stable
    if request.has_step_limits or request.eos_generated or request.num_stable_tokens >= request.end:
        return _find_end(request)
    return None


def finish(request: Request, reason: FinishReason, end: int, *, keep: int = 0) -> None:
    """The answer ends at `end`; what is final below `keep` may still have to reach the cache, for others."""
    request.reason = reason
    request.hit_eos = reason == "stop"
    request.end = request.num_stable_tokens = end
    request.blocks = []
    request.num_final_tokens = max(request.num_computed_tokens, keep)


def worth_caching(request: Request, reason: FinishReason, end: int, *, tiling: Tiling) -> int:
    """Returns the end of the blocks of a finished answer that are committed (docs/decoding-rules.md#commit)."""
    if reason not in ("stop", "length"):
        return 0
    covered = end + (reason == "stop")  # the EOS too
    return min(request.num_final_tokens, tiling.start(request.prompt_len, covered))


def _find_end(request: Request) -> tuple[FinishReason, int] | None:
    for block in request.blocks:
        if block.has_eos:
            if block.start + block.first_eos < request.num_stable_tokens:
                return "stop", block.start + block.first_eos
            break
    if request.num_stable_tokens >= request.end:
        return "length", request.end
    spec = request.spec
    at_cap = spec.max_nfe is not None and request.nfe >= spec.max_nfe
    if not at_cap and spec.max_repetition_run is None:
        return None
    filled = max(filled_prefix(request), request.prompt_len)
    filled = min([filled, *(b.start + b.first_eos for b in request.blocks if b.has_eos)])
    if at_cap:
        return "max_nfe", filled
    assert spec.max_repetition_run is not None
    cut = request.repetition_run.advance(
        request.tokens, min(request.num_stable_tokens, filled), spec.max_repetition_run
    )
    if cut is None:  # what is not final yet may change: look at it without remembering
        cut = request.repetition_run.copy().advance(request.tokens, filled, spec.max_repetition_run)
    return ("repetition", cut) if cut is not None else None
