"""Executes a StepPlan: the forward, the head for the rows that are sampled, each rule's decision. Knows no request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from runtime.algorithms.base import Orders
from runtime.algorithms.logits_ops import WHOLE, Vocabulary
from runtime.engine.step_plan import BlockPlan, BlockResults, StepPlan
from runtime.kernels.forward_batch import ForwardBatch
from runtime.layers.kv_pool import KVPool
from runtime.models.base import Model
from runtime.worker.host_buffers import Staging
from runtime.worker.input_batch import ForwardShape, forward_inputs, sample_inputs
from runtime.worker.model_step import DeviceStep
from runtime.worker.runner_stats import Clock, Ran
from runtime.worker.sample.constrained_decoding import walk
from runtime.worker.sample.forced_tokens import recite
from runtime.worker.sample.full_logits import FullLogits
from runtime.worker.sample.logprobs import tell
from runtime.worker.sample.sampler_output import end_to_end, results


class Runner(Protocol):
    """What the engine needs of a runner; the host benchmark puts one without a model here."""

    ran: Ran

    def run(self, plan: StepPlan) -> BlockResults | None:
        """Results of the plan's sampled blocks, None if it sampled none."""
        ...

    def while_busy(self, work: Callable[[], None]) -> bool:
        """From now on do `work` in each step that has results, when all of it has been launched and the host waits;
        False where the host has no such time."""
        ...


@runtime_checkable
class GivesLogits(Protocol):
    """A runner that has a model."""

    def logits(self, plan: StepPlan, pages: int) -> torch.Tensor:
        """[rows, vocab] on the CPU, of a step over a cache of its own of so many pages."""
        ...


class ModelRunner:
    """Launches each step's work anew. Args: see DeviceStep; `apart`: what of head and rules may depend on the blocks
    beside is done for each request by itself."""

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        *,
        block_size: int,
        mask_id: int | None,
        max_token_id: int,
        eos_ids: tuple[int, ...],
        orders: Orders | None = None,
        places: int = 0,
        apart: bool = False,
        vocabulary: Vocabulary = WHOLE,
    ) -> None:
        self.model = model
        self.pool = pool
        self.device = pool.device
        self.block_size = block_size
        self.mask_id = mask_id
        self.apart = apart
        self.step = DeviceStep(
            model, pool, block_size=block_size, mask_id=mask_id, max_token_id=max_token_id, eos_ids=eos_ids,
            orders=orders, places=places, apart=apart, vocabulary=vocabulary,
        )  # fmt: skip
        self.meanwhile: Callable[[], None] | None = None
        self.others: Callable[[np.ndarray], None] | None = None  # of a leading rank, see Looking
        self.last: FullLogits | None = None  # at the last step's rows, where a leading rank may ask for more of them
        self.ran = Ran()
        self.clock = Clock(self.device, self.ran)
        self.going, self.coming = Staging(self.device), Staging(self.device)

    def batch(self, plan: StepPlan) -> ForwardBatch:
        """The plan's rows on the device."""
        shape, given = self._rows(plan)
        return self.step.batch(shape, given)

    def _rows(self, plan: StepPlan) -> tuple[ForwardShape, dict[str, torch.Tensor]]:
        shape, arrays = forward_inputs(plan, told=self.step.signal is not None, block_size=self.block_size)
        return shape, self.going.put(arrays)

    def run(self, plan: StepPlan) -> BlockResults | None:
        self.ran.count("off")
        return self.launch(plan)

    def while_busy(self, work: Callable[[], None]) -> bool:
        if self.device.type != "cuda":
            return False
        self.meanwhile = work
        return True

    @torch.inference_mode()
    def logits(self, plan: StepPlan, pages: int) -> torch.Tensor:
        """See `GivesLogits`."""
        model, batch, vocabulary = self.model, self.batch(plan), self.step.vocabulary
        left = model.forward(model.embed(batch.tokens), batch, self.pool.like(pages))
        parts = torch.split(left, 1024)
        return torch.cat([vocabulary.every(model.head(model.finish(part))).cpu() for part in parts])

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> BlockResults | None:
        """The step's work, nothing of it recorded."""
        self.clock.begin()
        left = self.step.forward(*self._rows(plan))
        blocks = plan.blocks  # worked out only now: a GPU is at the forward meanwhile
        return None if blocks is None else self._sample(plan, blocks, left)

    def _sample(self, plan: StepPlan, blocks: BlockPlan, left: torch.Tensor) -> BlockResults:
        shape, arrays = sample_inputs(blocks, self.step.sampler.get_algorithm)
        parts = [blocks]
        if self.apart and not self.step.sampler.is_batch_invariant(shape):
            parts = plan.apart() or parts
        launched = []
        for part in parts:
            if part is not blocks:
                shape, arrays = sample_inputs(part, self.step.sampler.get_algorithm)
            launched.append((shape, self.step.sample(shape, self.going.put(arrays), left)))
        if self.meanwhile is not None:
            self.meanwhile()
        members = [[group.members for group in part.groups] for part in parts]
        told = [self.coming.take(found) for _, found in launched]
        self.clock.end(self.coming)
        shapes = [shape for shape, _ in launched]
        found = end_to_end([results(*each) for each in zip(shapes, told, members, strict=True)])
        return self._walked(blocks, left, found)

    def _walked(self, plan: BlockPlan, left: torch.Tensor, found: BlockResults) -> BlockResults:
        """With what grammars let through and what is recited, and what is told of it; nothing of that is recorded."""
        looking = FullLogits(self.step.sampler, self.model.finish, left, self.others, self.apart)
        if looking.vocab_parallel and self.others is None:
            self.last = looking
        if plan.walks:
            walk(looking, plan, found)
        if plan.recitals:
            recite(plan, found)
        if plan.told is not None:
            tell(looking, plan, found)
        return found
