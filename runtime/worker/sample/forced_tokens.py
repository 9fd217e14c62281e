"""Blocks whose tokens come from a grammar or from forced tokens (prompt scoring) instead of the unmasking algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runtime.engine.request import Block, Request
from runtime.engine.step_plan import UNMASKED, BlockResults, DenoiseBlocks, ForcedTokens, GrammarBlock


def grammar_blocks(owners: Sequence[Request], blocks: Sequence[Block]) -> tuple[GrammarBlock, ...]:
    """Returns the first block with a mask of each request with structured output.

    Args:
        owners: request of each block.
        blocks: blocks of the step.
    """
    found = []
    for i, request, block in _first_masked(owners, blocks):
        if request.constraint is not None:
            threshold = float(request.values["accept_threshold"])
            found.append(GrammarBlock(i, block.first_masked, block.size, threshold, request.constraint))
    return tuple(found)


def forced_blocks(owners: Sequence[Request], blocks: Sequence[Block]) -> tuple[ForcedTokens, ...]:
    """Returns the first block with a mask of each request with forced tokens, and the next of these tokens."""
    found = []
    for i, request, block in _first_masked(owners, blocks):
        text = request.spec.forced_token_ids
        if text:
            start = block.start + block.first_masked - request.prompt_len
            count = min(request.spec.forced_tokens_per_step, block.size - block.first_masked)
            found.append(ForcedTokens(i, block.first_masked, tuple(text[start : start + count])))
    return tuple(found)


def _first_masked(owners: Sequence[Request], blocks: Sequence[Block]) -> Iterator[tuple[int, Request, Block]]:
    """Yields index, request and block of each request's first block with a mask, if no algorithm fills it."""
    seen = set()
    for i, (request, block) in enumerate(zip(owners, blocks, strict=True)):
        if request.decodes_left_to_right and block.masks and request.arrival_index not in seen:
            seen.add(request.arrival_index)
            yield i, request, block


def force_tokens(plan: DenoiseBlocks, results: BlockResults) -> None:
    """Writes the forced tokens to `results`, which has these blocks unchanged."""
    for i, first, tokens in plan.forced_tokens:
        last = first + len(tokens)
        results.tokens[i, first:last] = tokens
        results.state[i, first:last] = UNMASKED
        results.masks[i] -= len(tokens)
        results.num_updated[i] += len(tokens)
        results.first_masked[i] = last if results.masks[i] else results.tokens.shape[1]
        results.finished[i] = not results.masks[i]
