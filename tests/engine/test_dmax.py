"""Tests of soft embeddings in dmax, in addition to test_oracle.py and test_strategies.py."""

from dataclasses import replace

import numpy as np

from runtime.kernels.segments import COUNT, START
from runtime.scheduling.step_plan import UNMASKED, StepPlan
from tests.engine.harness import Ask, Run, Setup
from tests.engine.test_strategies import MERGED as SLOW
from tests.engine.test_strategies import SMOOTH

SERVER = Setup(strategy="dmax", block=8, buffer=2, page=8, pages=8, max_len=40)


class Watched(Run):
    """Records the plan of each step."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.plans: list[StepPlan] = []
        launch = self.engine.runner.launch_forward

        def watched(plan: StepPlan) -> None:
            self.plans.append(plan)
            launch(plan)

        self.engine.runner.launch_forward = watched  # type: ignore[method-assign]


def test_rows_with_soft_embeddings() -> None:
    """These are the UNMASKED positions of open blocks after their first step, with the tokens of their last step."""
    run = Watched(replace(SERVER, pages=40, budget=256))
    for n, p in enumerate((SLOW, SMOOTH, replace(SLOW, token_merge_top_k=2, token_merge_renormalize=False))):
        run.add(Ask(tuple(range(n, n + 9)), p))
    requests = list(run.engine.scheduler.waiting)
    seen = 0
    while run.engine.has_work():
        before = {
            request.arrival_index: [
                (b.start, b.size, b.memory.soft_tokens, request.state.copy()) for b in request.blocks
            ]
            for request in requests
        }
        run.step()
        merged = run.plans[-1].soft_embeddings
        expected = sorted(
            (start + i, *mixture[0][i, :1], mixture[1][i, 0])
            for request in requests
            for start, size, mixture, state in before[request.arrival_index]
            if mixture is not None
            for i in range(size)
            if state[start + i] == UNMASKED
        )
        if merged is None:
            assert not expected
            continue
        seen += 1
        plan = run.plans[-1]
        starts, counts = plan.segments[:, START].tolist(), plan.segments[:, COUNT].tolist()
        spans = [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        positions = np.concatenate(spans)[merged.rows]
        assert sorted(zip(positions, merged.ids[:, 0], merged.probs[:, 0], strict=True)) == expected
        assert set(map(tuple, merged.params.tolist())) <= {(0, 1, 1), (1, 0.5, 1), (0, 1, 0)}
        assert not (merged.probs[merged.params[:, 0] == 1, 1:]).any()
        assert not (merged.probs[merged.params[:, 2] == 0, 2:]).any()
    assert seen > 6
    run.finish()


def test_other_rows_of_a_step_have_no_soft_embeddings() -> None:
    """These are the rows of a prompt in the same forward, and a step with only the first forward of a block."""
    run = Watched(replace(SERVER, pages=20, prefix_caching=False))
    run.add(Ask((1, 2, 4), SLOW))
    run.step()
    assert run.plans[-1].soft_embeddings is None
    run.step()
    run.add(Ask(tuple(range(18)), SLOW))
    run.step()
    plan = run.plans[-1]
    assert plan.soft_embeddings is not None
    assert set(plan.soft_embeddings.rows) < set(range(16))
    assert plan.num_rows > 16
    run.finish()


def test_cached_kv_depends_only_on_token_ids() -> None:
    """A block that was denoised with soft embeddings is committed with ordinary ones. `Run` checks each step."""
    setup = replace(SERVER, page=4, block=4, pages=40)
    run = Run(setup)
    first = run.add(Ask((1, 2, 4, 5, 6), SLOW))
    run.drain()
    prompt = (1, 2, 4, 5, 6, *run.received[first].tokens)
    second = run.add(Ask((*prompt, 7), replace(SLOW, max_tokens=6)))
    run.drain()
    assert run.received[second].outputs[-1].cached_tokens == 24
    run.compare()


def test_embeddings_matter() -> None:
    """Each field changes the answer, because another embedding changes all logits of the hash model."""
    outputs = set()
    changes = [{}, {"token_merge_top_k": 2}, {"token_merge_renormalize": False}, {"token_merge_weight": 0.25}]
    changes += [{"token_merge_mode": "iter_smooth_topk", "token_merge_weight": weight} for weight in (0.0, 0.25, 1.0)]
    for change in changes:
        run = Run(SERVER)
        id = run.add(Ask((1, 2, 4), replace(SLOW, **change)))
        run.finish()
        outputs.add(tuple(run.received[id].tokens))
    assert len(outputs) == len(changes) - 1, "token_merge_weight changed dmax_topk, or another field changed nothing"
