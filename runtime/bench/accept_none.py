"""A runner whose steps change nothing, so that each finds what the one before it found; and what is counted of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from runtime.engine.request import MASKED
from runtime.engine.step_plan import BlockResults, StepPlan
from runtime.layers.moe import Router
from runtime.worker.cuda_graph_runner import CudaGraphRunner
from runtime.worker.model_runner import ModelRunner
from runtime.worker.runner_stats import RunnerStats


class AcceptNoneRunner:
    """A runner whose results say that nothing has changed."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        if isinstance(runner, CudaGraphRunner):
            runner.next_tokens_fn = lambda plan, _: plan.tokens
        self.plan: StepPlan
        self.rows: list[int] = []  # of each step
        self._held = False
        self._same: BlockResults | None = None

    def hold(self) -> None:
        """From now on every step samples the same blocks, as they are now: results are made once for all of them."""
        self._held, self._same = True, None

    @property
    def stats(self) -> RunnerStats:
        return self.runner.stats

    def set_overlap_callback(self, work: Callable[[], None]) -> bool:
        return self.runner.set_overlap_callback(work)

    def run(self, plan: StepPlan) -> BlockResults | None:
        self.plan = plan
        self.rows.append(len(plan.tokens))
        results = self.runner.run(plan)
        blocks = plan.blocks
        if results is None or blocks is None:
            if self.runner.device.type == "cuda":
                torch.cuda.synchronize(self.runner.device)  # a step with results waits for them
            return results
        if self._same is None or not self._held:
            masked = blocks.state == MASKED
            none = [0] * len(masked)
            self._same = replace(
                results, tokens=blocks.tokens.copy(), state=blocks.state.copy(),
                remasked=np.zeros_like(masked), masks=masked.sum(1).tolist(),
                first_masked=masked.argmax(1).tolist(), first_eos=[masked.shape[1]] * len(masked), num_updated=none,
                edits=none, remasks=none, forced=none, finished=none,
            )  # fmt: skip
        return self._same


def count_experts(model: torch.nn.Module, runner: ModelRunner, plan: StepPlan) -> list[int]:
    """How many experts of each layer the rows of a step choose: it is launched once more."""
    routers = [part for part in model.modules() if isinstance(part, Router)]
    chosen: dict[torch.nn.Module, set[int]] = {router: set() for router in routers}

    def record_experts(router: torch.nn.Module, _: Any, out: tuple[torch.Tensor, torch.Tensor]) -> None:
        assert isinstance(router, Router)
        ids = out[0].unique().tolist()
        chosen[router] |= {n for n in ids if 0 <= n < router.weight.shape[0]}  # one that all share may come after them

    hooks = [router.register_forward_hook(record_experts) for router in routers]
    if hooks:
        runner.launch(plan)
    for hook in hooks:
        hook.remove()
    return [len(ids) for ids in chosen.values()]
