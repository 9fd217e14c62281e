"""Tests of d2f, fast_dllm_v2 and nemotron_diffusion in addition to test_oracle.py and test_invariants.py."""

from __future__ import annotations

import pytest

from tests.engine.harness import Ask, Run, Setup
from tests.oracle.block import Params


@pytest.mark.parametrize(
    ("strategy", "block_cache"), [("d2f", False), ("fast_dllm_v2", True), ("nemotron_diffusion", False)]
)
def test_preemption_at_any_step_changes_nothing(strategy: str, block_cache: bool) -> None:
    """This includes steps that read K/V of forwards with other tokens than the current ones of the request.

    Pinned tokens at the starts of sub-blocks cause several REFINE steps in a row.
    """
    setup = Setup(strategy=strategy, block=16, page=8, pages=8, max_len=32, buffer=1 if strategy != "d2f" else 2)
    p = Params(max_tokens=15, ignore_eos=True, accept_threshold=0.95, sub_block_size=4, block_cache=block_cache)
    ask = Ask((1, 2, 4), p, pinned=((1, 5), (5, 6), (9, 6)))
    steps, reused = 0, 0
    while True:
        run = Run(setup)
        run.add(ask)
        (request,) = run.engine.scheduler.waiting
        for _ in range(steps):
            run.step()
        if request.finished:
            break
        reused = max(reused, len(request.reused_kv_spans))
        if steps:
            run.engine.scheduler._preempt(request)
        run.drain()
        run.compare()
        steps += 1
    assert steps > 4
    assert reused == (3 if block_cache and strategy == "fast_dllm_v2" else 0)


def test_fast_dllm_v2_forwards_again_what_a_preemption_drops() -> None:
    """Before a REFINE step after a preemption, the forward of the complete block is repeated with its earlier ids."""
    setup = Setup(strategy="fast_dllm_v2", block=8, page=8, pages=8, budget=64, prefix_caching=False)
    p = Params(max_tokens=16, ignore_eos=True, accept_threshold=1.0, sub_block_size=4, block_cache=True)
    run = Run(setup)
    run.add(Ask((1, 2, 4), p))
    (request,) = run.engine.scheduler.waiting
    while not request.reused_kv_spans:
        run.step()
    (reused,) = request.reused_kv_spans
    nfe = request.nfe
    assert (reused.start, len(reused.tokens)) == (request.num_final_tokens, 8)
    assert reused.tokens.tolist() != request.tokens[reused.start : reused.start + 8].tolist()
    run.engine.scheduler._preempt(request)
    run.step()
    assert (request.num_computed_tokens, len(request.recompute_spans)) == (8, 1)
    run.step()
    assert (request.nfe, request.recompute_spans) == (nfe, [])
    run.step()
    assert request.nfe == nfe + 1
    run.drain()
    run.compare()


def test_an_unaligned_prompt_of_fast_dllm_v2_finds_all_its_blocks() -> None:
    """The last row of a cached prompt is forwarded again only if the first token of a block is sampled from it."""
    setup = Setup(strategy="fast_dllm_v2", block=4, page=4)
    run = Run(setup)
    p = Params(max_tokens=4, sub_block_size=2)
    for prompt, cached in (
        ((1, 2, 4, 5, 6, 7, 8, 9), 0),
        ((1, 2, 4, 5, 6, 7, 8, 9), 4),
        ((1, 2, 4, 5, 6, 7, 8, 9, 0), 8),
    ):
        id = run.add(Ask(prompt, p))
        run.drain()
        assert run.received[id].outputs[-1].cached_tokens == cached
    run.compare()
