"""Tests of the input builder, which reuses the layout of the previous plan."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runtime.scheduling.request import ScheduledRequest
from runtime.scheduling.step_plan import StepPlan
from runtime.strategies.registry import strategies
from runtime.worker.input_batch import InputBuilder
from tests.engine.harness import Ask, Run, Setup
from tests.engine.samples import asks, setups
from tests.examples import examples
from tests.oracle.block import Params

WHERE = ("positions", "slots", "visible_end", "window_pos", "is_editable", "query_tiles", "page_table")


class Comparing(InputBuilder):
    """Compares each plan that reuses a layout with a new one."""

    made = 0
    num_reused = 0

    def plan(self, batch: list[ScheduledRequest]) -> StepPlan:
        before = self._layout
        plan = super().plan(batch)
        self.made += 1
        self.num_reused += before is not None and self._layout is before
        return plan

    def replan(self, batch: list[ScheduledRequest]) -> StepPlan:
        plan = super().replan(batch)
        fresh = InputBuilder(self.table, self.strategy).plan(batch)
        assert (plan.tokens is None) == (fresh.tokens is None)
        assert plan.tokens is None or np.array_equal(plan.tokens, fresh.tokens)
        for name in (*WHERE, "req_slots"):
            assert np.array_equal(getattr(plan.layout, name), getattr(fresh.layout, name)), name
        return plan


OF_EACH_KIND = [key for key in ("multi_bd", "d2f", "full", "nemotron_diffusion") if key in strategies()]


@examples(12)
@given(st.data())
def test_reused_layouts_equal_new_ones(data: st.DataObject) -> None:
    strategy = data.draw(st.sampled_from(OF_EACH_KIND))
    setup = data.draw(setups(strategy=strategy))
    run = Run(setup)
    run.engine.input_builder = Comparing(run.engine.table, run.engine.strategy)
    run.finish(*data.draw(st.lists(asks(setup), min_size=1, max_size=4)))


def test_a_denoising_batch_of_fixed_reuses_its_layout() -> None:
    run = Run(Setup(block=8, page=8))
    run.engine.input_builder = planner = Comparing(run.engine.table, run.engine.strategy)
    for n in range(3):
        run.add(Ask((1, 2, n), Params(max_tokens=20, algorithm="fixed", steps=8, seed=n)))
    run.drain()
    assert planner.num_reused > planner.made / 2
