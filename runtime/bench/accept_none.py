"""A runner whose steps need not change blocks, so that all have the same input, and the count of selected experts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from runtime.layers.moe import Router
from runtime.scheduling.step_plan import (
    MUST_ADVANCE,
    BlockResults,
    DenoiseBlocks,
    PageWrites,
    StateWrite,
    StepPlan,
)
from runtime.worker.model_runner import ModelRunner, RunnerStats
from runtime.worker.next_step import NextStep


class AcceptNoneRunner:
    """Runs a model runner whose blocks need not advance, so a threshold that nothing exceeds leaves them unchanged.

    Args:
        rewinds: requests are reset before each step, so no forward can be launched before that.

    Attributes:
        plan: that of the last step, with its blocks.
        rows: number of rows of each step.
    """

    def __init__(self, runner: ModelRunner, *, rewinds: bool) -> None:
        self.runner = runner
        self.launches_next = runner.launches_next and not rewinds
        self.plan: StepPlan
        self.rows: list[int] = []

    @property
    def stats(self) -> RunnerStats:
        return self.runner.stats

    @property
    def overlaps(self) -> bool:
        return self.runner.overlaps

    def step_context(self) -> AbstractContextManager[None]:
        return self.runner.step_context()

    def launch_forward(self, plan: StepPlan) -> None:
        self.plan = plan
        self.rows.append(plan.num_rows)
        self.runner.launch_forward(plan)

    def must_split(self, blocks: DenoiseBlocks) -> bool:
        return self.runner.must_split(blocks)

    def launch_sampling(self, blocks: DenoiseBlocks | None, following: NextStep | None = None) -> None:
        if blocks is not None:
            blocks = _not_advancing(blocks)
        self.plan = replace(self.plan, blocks=blocks)
        self.runner.launch_sampling(blocks, following)

    def wait(self) -> StepPlan | None:
        return self.runner.wait()

    def write(self, writes: tuple[StateWrite, ...], page_writes: PageWrites | None) -> None:
        self.runner.write(writes, page_writes)

    def capture_next(self) -> int:
        return self.runner.capture_next()

    def results(self) -> BlockResults:
        results = self.runner.results()
        if self.plan.blocks is None and self.runner.device.type == "cuda":
            torch.cuda.synchronize(self.runner.device)  # a step with sampled blocks waits for its results
        return results


def _not_advancing(blocks: DenoiseBlocks) -> DenoiseBlocks:
    parts = tuple(_not_advancing(part) for part in blocks.per_request)
    numbers = blocks.numbers.copy()
    numbers[:, MUST_ADVANCE] = 0
    return replace(blocks, numbers=numbers, per_request=parts)


def count_experts(model: torch.nn.Module, runner: ModelRunner, plan: StepPlan) -> list[int]:
    """Returns the number of experts per MoE layer that the rows of a step select. Launches the step once more."""
    routers = [part for part in model.modules() if isinstance(part, Router)]
    chosen: dict[torch.nn.Module, set[int]] = {router: set() for router in routers}

    def record_experts(router: torch.nn.Module, _: Any, out: tuple[torch.Tensor, torch.Tensor]) -> None:
        assert isinstance(router, Router)
        ids = out[0].unique().tolist()  # type: ignore[no-untyped-call]
        chosen[router] |= {n for n in ids if 0 <= n < router.weight.shape[0]}  # a fused shared expert has the next id

    hooks = [router.register_forward_hook(record_experts) for router in routers]
    if hooks:
        runner.launch(plan)
    for hook in hooks:
        hook.remove()
    return [len(ids) for ids in chosen.values()]
