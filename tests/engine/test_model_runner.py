"""How the runner cuts its work, and what warming it up goes through."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.engine import head
from runtime.engine.model_runner import ModelRunner
from runtime.engine.warmup import warm_up
from runtime.layers.kv_pool import UnifiedPool
from runtime.samplers import choose
from runtime.state.plan import BlockResults, StepPlan
from tests.engine.harness import Run, Setup
from tests.engine.hash_model import HashModel
from tests.engine.samples import asks, setups


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_how_rows_are_cut_for_head_and_draws_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(head, "HEAD_ROWS", data.draw(st.integers(1, 9)))
    monkeypatch.setattr(head, "DRAW_ROWS", data.draw(st.integers(1, 4)))
    setup = data.draw(setups())
    run = Run(setup)
    for ask in data.draw(st.lists(asks(setup), min_size=1, max_size=4)):
        run.add(ask)
    run.drain()
    run.compare()


class Listening(ModelRunner):
    """Keeps the rows of every plan, of each sequence and sampled, and what came of it."""

    heard: list[tuple[int, int, int]]

    def launch(self, plan: StepPlan) -> BlockResults | None:
        assert plan.blocks is not None
        rows = np.bincount(plan.tiles[:, 0], plan.tiles[:, 2]).max()
        self.heard.append((len(plan.tokens), int(rows), int(plan.blocks.sampled.sum())))
        return super().launch(plan)


def test_warming_up_goes_through_every_size_and_draws_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(block=4, page=8)
    model = HashModel(setup.vocab)
    runner = Listening(
        model,
        UnifiedPool(model.kv_shapes, num_pages=3, page_size=setup.page, dtype=torch.float64, device="cpu"),
        block_size=setup.block,
        mask_id=setup.mask,
        max_token_id=setup.max_token,
        eos_ids=(),
    )
    runner.heard = []
    drawn: list[int] = []
    distribution = choose.distribution

    def counted(logits: torch.Tensor, **limits: torch.Tensor) -> torch.Tensor:
        assert bool((limits["top_p"] < 1).all())
        drawn.append(len(logits))
        return distribution(logits, **limits)

    monkeypatch.setattr(choose, "distribution", counted)
    warm_up(runner, rows=45, longest=22)
    assert runner.heard == [(4, 4, 4), (8, 8, 8), (16, 16, 16), (32, 20, 32), (44, 20, 44)]
    assert drawn == [4, 8, 16, 32, 44]
