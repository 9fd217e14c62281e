"""`python -m runtime.bench steps --live`: wall clock of ``Engine.step`` beside the device's own time.

Requests are live: prefilled, scheduled, planned, and their results applied. What a step writes into a block is
discarded, so that every step finds the same: each position of the open block masked with probability .5, the others
random ids. The wall clock has all of the host's work in it, copies, forward, head and rules.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from runtime.engine.adapting import Adapters
from runtime.engine.engine import Engine
from runtime.engine.model_runner import ModelRunner
from runtime.engine.ran import Ran
from runtime.engine.recording import GraphRecorder
from runtime.engine.replaying import ReplayingRunner
from runtime.engine.sizes import Sizes
from runtime.layers.kv_pool import KVPool
from runtime.layers.moe import Router
from runtime.models.base import Facts, Model
from runtime.request.description import RuleInfo, with_defaults
from runtime.request.io import EngineInfo, RequestSpec
from runtime.samplers import get_rule, rules
from runtime.state.plan import BlockResults, StepPlan
from runtime.state.request import FILLED, MASKED
from runtime.strategies import Strategy, longest_request

ACCEPT = 0.95  # a threshold that random weights do not reach
IDS = 1000, 150_000  # of what is not masked, as far as the vocabulary reaches
SETTLE = 12  # steps before those that are timed


@dataclass
class Live:
    """What the cases share. `strategy`: made for requests as long as the longest case's."""

    model: Model
    pool: KVPool
    strategy: Strategy
    facts: Facts
    block_size: int
    mask_id: int | None
    max_len: int
    eager: bool
    adapters: Adapters

    def case(self, batch: int, context: int, repeats: int, loras: int = 0) -> dict[str, Any]:
        """Milliseconds of a step of `batch` requests with `context` tokens before the open block, medians. `loras`: of
        the adapters that they have in turn."""
        info = self._info(batch)
        runner = self._runner(info)
        discarding = Discarding(runner)
        engine = Engine(info=info, runner=discarding, strategy=self.strategy, adapters=self.adapters)
        random = np.random.default_rng(batch * 1_000_003 + context)
        last = self.facts.vocab_size - 1
        low, high = min(IDS[0], last // 2), min(IDS[1], last)
        for n in range(batch):
            prompt = random.integers(low, high, context).tolist()
            asked = RequestSpec(
                id=str(n), prompt=prompt, max_tokens=self.block_size, ignore_eos=True, seed=n,
                temperature=float(self.strategy.noisy), decoding=info.defaults(),
                adapter=str(n % loras) if loras else "",
            )  # fmt: skip
            engine.add(asked)
        running = engine.scheduler.running
        while engine.scheduler.waiting or any(request.prefilling for request in running):
            engine.step()
        engine.step()
        for request in running:
            for block in request.blocks if not self.strategy.noisy else []:
                block.state[:] = np.where(random.random(block.size) < 0.5, MASKED, FILLED)
                drawn = random.integers(low, high, block.size)
                block.tokens[:] = np.where(block.state == MASKED, self.mask_id, drawn)
                block.masks = int((block.state == MASKED).sum())
                block.first_masked = int((block.state == MASKED).argmax())
        discarding.same = None
        experts = Experts(self.model, runner) if isinstance(self.model, torch.nn.Module) else None
        for _ in range(SETTLE):
            engine.step()
        if experts is not None:
            experts.listen(discarding.plan)
        before = runner.ran.replayed
        runner.ran.device_seconds.clear()
        walls = []
        for _ in range(repeats):
            started = time.perf_counter()
            engine.step()
            walls.append((time.perf_counter() - started) * 1e3)
        if len(running) != batch or discarding.rows != batch * self.block_size:
            raise RuntimeError(f"the batch was not steady: {len(running)} requests, {discarding.rows} rows")
        device = [seconds * 1e3 for seconds in runner.ran.device_seconds]
        row: dict[str, Any] = {"case": "live", "batch": batch, "context": context}
        if self.adapters.slots:
            row["loras"] = loras
        engine.close()
        row["wall_ms"] = round(statistics.median(walls), 3)
        if device:
            row["device_ms"] = round(statistics.median(device), 3)
            row["host_ms"] = round(statistics.median(w - d for w, d in zip(walls, device, strict=True)), 3)
            row["ratio"] = round(row["wall_ms"] / row["device_ms"], 3)
        row["replayed"] = runner.ran.replayed - before
        if experts is not None and experts.counts:
            row["experts"] = round(statistics.mean(experts.counts), 1)
        return row

    def _runner(self, info: EngineInfo) -> ModelRunner:
        named: dict[str, Any] = {
            "block_size": self.block_size,
            "mask_id": self.mask_id,
            "max_token_id": info.max_token_id,
            "eos_ids": (0,),
            "places": info.max_num_reqs,
        }
        if self.eager or self.pool.device.type != "cuda":
            return ModelRunner(self.model, self.pool, **named)
        pages = -(-longest_request(self.strategy, self.max_len) // self.pool.page_size)
        rows = info.max_num_reqs * self.block_size
        sizes = Sizes(self.block_size, pages, self.pool.page_size, rows, info.max_num_reqs, apart=self.adapters.apart)
        recorder = GraphRecorder(self.pool.device)
        return ReplayingRunner(self.model, self.pool, **named, sizes=sizes, record=recorder, uses=2)

    def _info(self, batch: int) -> EngineInfo:
        fitting = [key for key in rules() if get_rule(key).noisy == self.strategy.noisy]
        rule = get_rule("threshold" if "threshold" in fitting else fitting[0])
        size = self.block_size
        return EngineInfo(
            family="bench",
            strategy="bench",
            device=self.pool.device.type,
            dtype=str(self.pool.dtype),
            vocab_size=self.facts.vocab_size,
            max_token_id=self.facts.vocab_size - 1,
            mask_token_id=self.mask_id,
            eos_token_ids=[0],
            block_size=size,
            buffer_size=self.strategy.buffer_size,
            page_size=self.pool.page_size,
            num_pages=self.pool.num_pages,
            max_model_len=self.max_len,
            max_num_reqs=batch,
            max_num_batched_tokens=8192,
            prefix_caching=False,
            blocks_from_prompt=self.strategy.tiling.from_prompt,
            blocks_cut=self.strategy.tiling.cut,
            strategy_fields=list(with_defaults(self.strategy.fields, size)),
            rules=[RuleInfo(key=rule.key, fields=with_defaults(rule.fields, size, {"accept_threshold": ACCEPT}))],
            default_rule=rule.key,
        )


class Discarding:
    """A runner whose results say that nothing has changed."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.plan: StepPlan
        self.rows = 0
        self.same: BlockResults | None = None  # made anew in the first step after it was taken away

    @property
    def ran(self) -> Ran:
        return self.runner.ran

    def while_busy(self, work: Callable[[], None]) -> bool:
        return self.runner.while_busy(work)

    def run(self, plan: StepPlan) -> BlockResults | None:
        self.plan, self.rows = plan, len(plan.tokens)
        results = self.runner.run(plan)
        blocks = plan.blocks
        if results is None or blocks is None:
            return results
        if self.same is None or len(self.same.masks) != len(results.masks):
            masked = blocks.state == MASKED
            none = [0] * len(masked)
            self.same = replace(
                results, tokens=blocks.tokens.copy(), state=blocks.state.copy(),
                remasked=np.zeros_like(masked), masks=masked.sum(1).tolist(),
                first_masked=masked.argmax(1).tolist(), first_eos=[masked.shape[1]] * len(masked), written=none,
                edits=none, remasks=none, forced=none, ended=none,
            )  # fmt: skip
        return self.same


class Experts:
    """How many experts of each layer the rows of a step choose."""

    def __init__(self, model: torch.nn.Module, runner: ModelRunner) -> None:
        self.routers = [part for part in model.modules() if isinstance(part, Router)]
        self.runner = runner
        self.counts: list[int] = []

    def listen(self, plan: StepPlan) -> None:
        """Launch a step once more and count."""

        def heard(router: torch.nn.Module, _: Any, out: tuple[torch.Tensor, torch.Tensor]) -> None:
            assert isinstance(router, Router)
            chosen = out[0].unique()
            self.counts.append(int((chosen < router.weight.shape[0]).sum()))  # one that all share may come after them

        hooks = [router.register_forward_hook(heard) for router in self.routers]
        self.runner.launch(plan)
        for hook in hooks:
            hook.remove()
