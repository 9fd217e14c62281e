"""Tests of single strategies and algorithms in addition to test_oracle.py: preemptions at any step, and histories."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.scheduling.step_plan import NUM_STEPS, BlockResults
from runtime.worker.model_runner import ModelRunner
from tests.engine.harness import Ask, Run, Setup
from tests.engine.samples import ORDERS, SPLIT
from tests.matrix import marked
from tests.oracle.block import Params

LONG = Params(max_tokens=15, ignore_eos=True, accept_threshold=0.95)
SUB_BLOCKS = replace(LONG, sub_block_size=4, block_cache=True)
DMAX = {"algorithm": "dmax", "accept_threshold": 0.9, "token_merge_top_k": 3, "max_steps_per_block": 8}
MERGED = replace(LONG, max_tokens=21, **DMAX)
SMOOTH = replace(MERGED, token_merge_mode="iter_smooth_topk", token_merge_weight=0.5, token_merge_top_k=1)
EDIT = replace(LONG, max_tokens=14, algorithm="edit", accept_threshold=0.7, edit_threshold=0.1, max_post_edit_steps=6)
CREDIT = replace(LONG, max_tokens=24, algorithm="credit", accept_threshold=1.0, credit_weight=3.0)
BLOCK_16, BLOCK_8 = {"block": 16, "page": 8, "max_len": 32}, {"block": 8, "page": 8, "max_len": 40}
EDITING = BLOCK_8 | {"orders": ORDERS}
PREEMPTED: dict[str, tuple[str, Params, dict[str, Any]]] = {
    "d2f": ("d2f", LONG, BLOCK_16 | {"buffer": 2}), "fast_dllm_v2": ("fast_dllm_v2", SUB_BLOCKS, BLOCK_16),
    "nemotron_diffusion": ("nemotron_diffusion", LONG, BLOCK_16), "dmax": ("dmax", MERGED, BLOCK_8),
    "dmax smooth": ("dmax", SMOOTH, BLOCK_8 | {"buffer": 2}), "credit": ("multi_bd", CREDIT, BLOCK_8),
    "insert_delete": ("multi_bd", EDIT, EDITING),
    "insert_delete in three blocks": ("multi_bd", EDIT, EDITING | {"buffer": 3}),
}  # fmt: skip
LATER = ("dmax", "insert_delete", "insert_delete in three blocks")


@pytest.mark.parametrize("case", marked(PREEMPTED, quick=set(PREEMPTED) - set(LATER)))
def test_preemption_at_any_step_changes_nothing(case: str) -> None:
    """This includes steps that read K/V of forwards with other tokens than the current ones of the request."""
    strategy, p, server = PREEMPTED[case]
    setup = Setup(strategy=strategy, pages=8, **server)
    ask = Ask((1, SPLIT, 4), p, pinned=((1, 5), (5, 6), (9, 6)) if p.algorithm == "threshold" else ())
    steps = reused = remembered = 0
    while True:
        run = Run(setup)
        run.add(ask)
        (request,) = run.engine.scheduler.waiting
        for _ in range(steps):
            run.step()
        if request.finished:
            break
        reused = max(reused, len(request.kv.reused_spans))
        remembered = max(
            [remembered, *(b.memory.history.shape[1] for b in request.blocks if b.memory.history is not None)]
        )
        soft = [block.memory.soft_tokens for block in request.blocks]
        if steps:
            run.engine.scheduler._preempt(request)
            assert [block.memory.soft_tokens for block in request.blocks] == soft
        run.finish()
        steps += 1
    assert steps > 4
    assert reused == (3 if strategy == "fast_dllm_v2" else 0)
    assert (remembered > 6) == (p.algorithm in ("credit", "edit"))


def test_fast_dllm_v2_forwards_again_what_a_preemption_drops() -> None:
    """Before a REFINE step after a preemption, the forward of the complete block is repeated with its earlier ids."""
    setup = Setup(strategy="fast_dllm_v2", block=8, page=8, pages=8, budget=64, prefix_caching=False)
    p = Params(max_tokens=16, ignore_eos=True, accept_threshold=1.0, sub_block_size=4, block_cache=True)
    run = Run(setup)
    run.add(Ask((1, 2, 4), p))
    (request,) = run.engine.scheduler.waiting
    while not request.kv.reused_spans:
        run.step()
    (reused,) = request.kv.reused_spans
    nfe = request.nfe
    assert (reused.start, len(reused.tokens)) == (request.num_final_tokens, 8)
    assert reused.tokens.tolist() != request.tokens[reused.start : reused.start + 8].tolist()
    run.engine.scheduler._preempt(request)
    run.step()
    assert (request.num_computed_tokens, len(request.kv.recompute_spans)) == (8, 1)
    run.step()
    assert (request.nfe, request.kv.recompute_spans) == (nfe, [])
    run.step()
    assert request.nfe == nfe + 1
    run.finish()


def test_an_unaligned_prompt_of_fast_dllm_v2_finds_all_its_blocks() -> None:
    """The last row of a cached prompt is forwarded again only if the first token of a block is sampled from it."""
    run = Run(Setup(strategy="fast_dllm_v2", block=4, page=4))
    prompt = (1, 2, 4, 5, 6, 7, 8, 9)
    for asked, cached in ((prompt, 0), (prompt, 4), ((*prompt, 0), 8)):
        id = run.add(Ask(asked, Params(max_tokens=4, sub_block_size=2)))
        run.drain()
        assert run.received[id].outputs[-1].cached_tokens == cached
    run.compare()


@pytest.mark.parametrize("p", [CREDIT, EDIT], ids=["credit", "edit-insert_delete"])
def test_only_blocks_of_an_algorithm_with_a_history_have_one(p: Params) -> None:
    """In a batch with another algorithm. It has a record for each step that it remembers, and no more records."""
    run = Run(Setup(block=8, page=8, orders=ORDERS if p is EDIT else None))
    runner = run.engine.runner
    assert isinstance(runner, ModelRunner)
    make_results, records = runner.results, [0]
    seen: set[str] = set()

    def watch() -> BlockResults:
        results = make_results()
        for group in runner.blocks.groups if runner.blocks is not None else ():
            remembers = group.algorithm.key == p.algorithm
            seen.add(group.algorithm.key)
            assert (group.history is not None) == remembers
            assert all((i in results.history) == remembers for i in group.members.tolist())
            if p is CREDIT and group.history is not None:
                assert not group.history[:, :, -1].any(), "the history has no capacity for the records of this step"
                assert group.history.shape[2] <= runner.blocks.numbers[group.members, NUM_STEPS].max() + 1
        records.extend(history.shape[1] for history in results.history.values())
        return results

    runner.results = watch  # type: ignore[method-assign]
    for n, algorithm in enumerate((p.algorithm, "threshold", p.algorithm)):
        run.add(Ask(tuple(range(n, n + 9)), replace(p, algorithm=algorithm, seed=n)))
    run.finish()
    assert seen == {p.algorithm, "threshold"}
    assert max(records) > 1
