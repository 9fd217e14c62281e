"""Tests that the history of `credit` (`UnmaskingAlgorithm.history_fields`) stays with its block between steps."""

from __future__ import annotations

from dataclasses import replace

from runtime.algorithms.base import algorithms_for
from runtime.scheduling.step_plan import BlockResults, DenoiseBlocks
from tests.engine.harness import Ask, Run, Setup
from tests.oracle.block import Params

CREDIT = Params(max_tokens=24, ignore_eos=True, algorithm="credit", accept_threshold=1.0, credit_weight=3.0)
THRESHOLD = replace(CREDIT, algorithm="threshold", accept_threshold=0.7)
OTHER = next(rule.key for rule in algorithms_for("multi_bd") if not rule.history_fields and not rule.edits)


def test_only_blocks_of_credit_have_a_history() -> None:
    """Their history has a record for each token that was the argmax of a position, and no more records."""
    run = Run(Setup(block=8, page=8))
    runner, records, mine = run.engine.runner, [0], list[int]()
    launch_sampling, make_results = runner.launch_sampling, runner.results

    def watch(blocks: DenoiseBlocks | None) -> None:
        mine.clear()
        launch_sampling(blocks)
        if blocks is None:
            return
        for group in blocks.groups:
            if group.algorithm.key != "credit":
                assert group.history is None
                continue
            assert group.history is not None
            assert not group.history[:, :, -1].any(), "the history has no capacity for the records of this step"
            assert group.history.shape[2] <= blocks.num_advance_steps[group.members].max() + 1
            mine.extend(group.members.tolist())

    def watch_results() -> BlockResults:
        results = make_results()
        assert list(results.history) == mine
        records.extend(history.shape[1] for history in results.history.values())
        return results

    runner.launch_sampling, runner.results = watch, watch_results  # type: ignore[method-assign]
    for n, p in enumerate((CREDIT, THRESHOLD, replace(CREDIT, seed=1), replace(THRESHOLD, algorithm=OTHER))):
        run.add(Ask(tuple(range(n, n + 9)), p))
    run.drain()
    run.compare()
    assert max(records) > 1


def test_credit_survives_a_preemption() -> None:
    """With too few pages for all requests, the answers still equal the oracle's. Without credit they would differ."""
    asks = [Ask(tuple(range(n, n + 5)), replace(CREDIT, seed=n)) for n in range(4)]
    crowded = Run(Setup(block=8, page=8, pages=8, max_len=32))
    for ask in asks:
        crowded.add(ask)
    crowded.drain()
    assert crowded.engine.scheduler.preemptions > 0
    crowded.compare()
    baseline = Run(Setup(block=8, page=8, pages=8, max_len=32))
    for ask in asks:
        baseline.add(replace(ask, params=replace(ask.params, algorithm="threshold")))
    baseline.drain()
    outputs = [[run.received[id].tokens for id in run.received] for run in (crowded, baseline)]
    assert outputs[0] != outputs[1], "the answers are the same without credit"
