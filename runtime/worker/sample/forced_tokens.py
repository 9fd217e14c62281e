"""Blocks that are not filled by their rule: by a walk through a grammar, or by reciting a text that is to be scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runtime.engine.request import UNMASKED, Block, Request
from runtime.engine.step_plan import BlockResults, DenoiseBlocks, ForcedTokens, GrammarBlock


def walks(owners: Sequence[Request], blocks: Sequence[Block]) -> tuple[GrammarBlock, ...]:
    """Of each request that keeps to a grammar, its first block with a mask."""
    found = []
    for i, request, block in _first_masked(owners, blocks):
        if request.constraint is not None:
            threshold = float(request.values["accept_threshold"])
            found.append(GrammarBlock(i, block.first_masked, block.size, threshold, request.constraint))
    return tuple(found)


def recitals(owners: Sequence[Request], blocks: Sequence[Block]) -> tuple[ForcedTokens, ...]:
    """Of each request that recites, the same, and what stands there next."""
    found = []
    for i, request, block in _first_masked(owners, blocks):
        text = request.spec.forced_token_ids
        if text:
            start = block.start + block.first_masked - request.prompt_len
            most = min(request.spec.forced_tokens_per_step, block.size - block.first_masked)
            found.append(ForcedTokens(i, block.first_masked, tuple(text[start : start + most])))
    return tuple(found)


def _first_masked(owners: Sequence[Request], blocks: Sequence[Block]) -> Iterator[tuple[int, Request, Block]]:
    seen = set()
    for i, (request, block) in enumerate(zip(owners, blocks, strict=True)):
        if request.decodes_left_to_right and block.masks and request.arrival_index not in seen:
            seen.add(request.arrival_index)
            yield i, request, block


def recite(plan: DenoiseBlocks, results: BlockResults) -> None:
    """Write what is recited into `results`, where its blocks are as they were."""
    for i, first, tokens in plan.forced_tokens:
        last = first + len(tokens)
        results.tokens[i, first:last] = tokens
        results.state[i, first:last] = UNMASKED
        results.masks[i] -= len(tokens)
        results.num_updated[i] += len(tokens)
        results.first_masked[i] = last if results.masks[i] else results.tokens.shape[1]
        results.finished[i] = not results.masks[i]
