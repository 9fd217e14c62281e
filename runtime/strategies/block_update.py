"""Applies sampling results to blocks, divides steps between blocks, and finds the end of the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.request.block_layout import BlockLayout
from runtime.scheduling.request import Block, Request
from runtime.scheduling.step_plan import MASKED, UNMASKED, BlockResults

if TYPE_CHECKING:  # machines for benchmarks do not have msgspec
    from runtime.request.engine_messages import FinishReason


def record_step(request: Request, block: Block, results: BlockResults, i: int) -> None:
    """Records step and candidates of result `i`, if requested, before it is written into the block."""
    output = request.output
    if output.step_map is not None:
        after = results.tokens[i, : block.size], results.state[i, : block.size]
        output.step_map.add(block.start, (block.tokens, block.state), after, request.nfe)
    if results.candidates is not None and output.candidates is not None:
        output.candidates.add(block.start, results.candidates, i)


def write_block(request: Request, block: Block, results: BlockResults, i: int) -> None:
    """Writes result `i` of the step into the block and the arrays of the request. `Request.nfe` counts the step."""
    size = block.size
    tokens, state = results.tokens[i], results.state[i]
    if size < len(tokens):
        tokens, state = tokens[:size], state[:size]
    record_step(request, block, results, i)
    block.tokens[...] = tokens  # takes half the time of [:]
    block.state[...] = state
    if not block.masks:
        block.numbers.post_edit_steps += 1
    if results.logprobs is not None and request.output.logprobs is not None:
        request.output.logprobs.add(block.start, results.logprobs, i)
    if results.remasks[i]:
        remasked = results.remasked[i, :size]
        block.memory.remasked = remasked if block.memory.remasked is None else block.memory.remasked | remasked
    masks = block.masks = results.masks[i]
    if request.algorithm.edits:  # docs/research/decoding-rules.md#same-token-ratio
        num_unmasked = block.numbers.initial_masks - masks
        block.same_token_ratio = (num_unmasked - results.num_updated[i]) / num_unmasked if num_unmasked else 0.0
    block.steps += 1
    block.numbers.num_steps += block.numbers.must_advance
    block.finished = results.finished[i]
    block.first_masked = results.first_masked[i] if masks else size
    first_eos = results.first_eos[i]
    if first_eos > size:  # no EOS, in a block that is smaller than others of the step
        first_eos = size
    if request.spec.stop_ids:
        first_eos = request.first_stop_offset(block, first_eos)
    if first_eos != block.first_eos:
        block.first_eos = first_eos
        found = first_eos < size and block.start + first_eos < request.end
        block.has_eos = found and (bool(request.spec.stop_ids) or not request.spec.ignore_eos)
        request.output.eos_generated |= block.has_eos
    update_generated(request, block, masks, first_eos if block.has_eos else size)


def update_generated(request: Request, block: Block, masks: int, first_eos: int) -> None:
    """Sets `num_generated` of a block after a step that left `masks` MASKED positions in it.

    Args:
        first_eos: offset of the first token that ends the output, the size of the block if there is none.
    """
    limit = min(first_eos, request.end - block.start)
    if limit < block.size:
        block.num_generated = block.state[:limit].tobytes().count(UNMASKED)
    else:
        block.num_generated = block.size - masks - block.num_fixed


def is_finished(request: Request, block: Block) -> bool:
    """Returns whether the block is finished, provided that all blocks before it are final.

    With remasking, an earlier call is not valid.
    """
    return block.finished or not (block.masks or request.algorithm.edits)


def has_output_masks(request: Request, start: int, end: int) -> bool:
    """Returns whether one of the positions ``[start, end)`` is MASKED and in the output."""
    return MASKED in request.state[start : min(end, request.end)].tobytes()


def unmasked_prefix_len(request: Request) -> int:
    """Returns the position of the first mask, or the end of the open blocks."""
    end = request.next_start
    for block in request.blocks:
        end = block.start + block.first_masked
        if block.masks:
            break
    return end if end < request.end else request.end


def update_progress(request: Request, *, event_start: int, finished_end: int) -> tuple[FinishReason, int] | None:
    """Updates the stable prefix after a step, and returns the finish reason and the end of the answer, if it ends.

    docs/research/decoding-rules.md#end-of-an-answer has the conditions.

    Args:
        event_start: first position of the denoise event of this step.
        finished_end: end of the finished blocks. No step changes the tokens before it.
    """
    if request.spec.stream_mode == "denoise":
        request.record_step_event(event_start)
    stable = min(finished_end, request.end) if request.resolved.may_revise else unmasked_prefix_len(request)
    if stable > request.output.num_stable_tokens:
        request.output.num_stable_tokens = stable
    limited = request.spec.max_nfe is not None or request.spec.max_repetition_run is not None
    if limited or request.output.eos_generated or request.output.num_stable_tokens >= request.end:
        return _find_end(request)
    return None


def finish_request(
    request: Request, finish_reason: FinishReason, end: int, *, committed: BlockLayout | None = None
) -> None:
    """Finishes the request at `end`.

    Args:
        committed: layout of the blocks whose final tokens are still forwarded for the prefix cache. None: none are.
    """
    keep = 0 if committed is None else cacheable_len(request, finish_reason, end, block_layout=committed)
    request.finish_reason = finish_reason
    request.output.hit_eos = _hits_eos(request, finish_reason, end)
    request.end = request.output.num_stable_tokens = end
    request.blocks = []
    request.num_final_tokens = max(request.num_computed_tokens, keep)


def cacheable_len(request: Request, finish_reason: FinishReason, end: int, *, block_layout: BlockLayout) -> int:
    """Returns the end of the blocks of a finished answer that are committed.

    See docs/research/decoding-rules.md#commit.
    """
    if finish_reason not in ("stop", "length"):
        return 0
    answer_end = end + _hits_eos(request, finish_reason, end)  # includes the EOS
    return min(request.num_final_tokens, block_layout.block_start(request.prompt_len, answer_end))


def _hits_eos(request: Request, finish_reason: FinishReason, end: int) -> bool:
    """Returns whether an EOS ends an unfinished request: a complete format at its maximum length has none."""
    return finish_reason == "stop" and end < request.end


def _find_end(request: Request) -> tuple[FinishReason, int] | None:
    for block in request.blocks:
        if block.has_eos:
            if block.start + block.first_eos < request.output.num_stable_tokens:
                return "stop", block.start + block.first_eos
            break
    if request.output.num_stable_tokens >= request.end:
        complete = request.constraint is not None and request.constraint.is_complete
        return "stop" if complete else "length", request.end
    spec = request.spec
    at_limit = spec.max_nfe is not None and request.nfe >= spec.max_nfe
    if not at_limit and spec.max_repetition_run is None:
        return None
    unmasked = max(unmasked_prefix_len(request), request.prompt_len)
    unmasked = min([unmasked, *(b.start + b.first_eos for b in request.blocks if b.has_eos)])
    if at_limit:
        return "max_nfe", unmasked
    assert spec.max_repetition_run is not None
    cut = request.output.repetition_run.advance(
        request.tokens, min(request.output.num_stable_tokens, unmasked), spec.max_repetition_run
    )
    if cut is None:  # a copy scans the tokens that may change, because they must not advance the state
        cut = request.output.repetition_run.copy().advance(request.tokens, unmasked, spec.max_repetition_run)
    return ("repetition", cut) if cut is not None else None


def split_steps(total: int, masks: Sequence[int]) -> list[int]:
    """Returns the number of steps of each block.

    Steps are divided evenly, and the remainder goes to the first blocks. A block gets at most as many steps as it has
    masks; its excess goes to the other blocks. The sum is `total`, or the number of all masks if that is less.

    Args:
        total: number of steps.
        masks: masks of each block, at least 1.
    """
    result = list(masks)
    left, open_blocks = min(total, sum(masks)), list(range(len(masks)))
    while open_blocks:
        each, more = divmod(left, len(open_blocks))
        steps_of = {block: each + (i < more) for i, block in enumerate(open_blocks)}
        full = [block for block in open_blocks if masks[block] < steps_of[block]]
        if not full:
            for block, steps in steps_of.items():
                result[block] = steps
            break
        left -= sum(masks[block] for block in full)
        open_blocks = [block for block in open_blocks if masks[block] >= steps_of[block]]
    return result
