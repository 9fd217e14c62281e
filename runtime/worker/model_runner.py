"""Executes a StepPlan: forward, sampling, and unmasking algorithms. It does not access requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from runtime.algorithms.base import EditTokens
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS, LogitsOps
from runtime.engine.step_plan import BlockResults, DenoiseBlocks, StepPlan
from runtime.kernels.forward_batch import ForwardBatch
from runtime.layers.kv_pool import KVPool
from runtime.models.base import Model
from runtime.worker.host_buffers import PinnedBuffer
from runtime.worker.input_batch import ForwardDescriptor, forward_inputs, sample_inputs
from runtime.worker.model_step import ModelStep
from runtime.worker.runner_stats import DeviceTimer, RunnerStats
from runtime.worker.sample.constrained_decoding import apply_grammar, force_tokens
from runtime.worker.sample.full_logits import FullLogits
from runtime.worker.sample.logprobs import compute_logprobs
from runtime.worker.sample.sampler_output import concat_results, to_block_results


class Runner(Protocol):
    """The interface that the engine requires; the benchmark of the host part implements it without a model."""

    stats: RunnerStats

    def run(self, plan: StepPlan) -> BlockResults | None:
        """Returns the results of the sampled blocks; None if the plan samples none."""
        ...

    def set_overlap_callback(self, work: Callable[[], None]) -> bool:
        """Sets a callback that runs in each step with results after all launches, while the host would wait.

        Returns False if nothing overlaps on this device; the callback is never called then.
        """
        ...


@runtime_checkable
class SupportsLogits(Protocol):
    """A runner with a model."""

    def logits(self, plan: StepPlan, pages: int) -> torch.Tensor:
        """Returns logits [rows, vocab] on the CPU, computed with a separate KV pool of `pages` pages."""
        ...


class ModelRunner:
    """Runs each step eagerly.

    Args:
        batch_invariant: sample each request separately where results may depend on the batch.
        The other arguments are those of `ModelStep`.
    """

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        *,
        block_size: int,
        mask_id: int | None,
        max_token_id: int,
        eos_ids: tuple[int, ...],
        edit_tokens: EditTokens | None = None,
        max_num_reqs: int = 0,
        batch_invariant: bool = False,
        logits_ops: LogitsOps = DEFAULT_LOGITS_OPS,
    ) -> None:
        self.model = model
        self.pool = pool
        self.device = pool.device
        self.block_size = block_size
        self.mask_id = mask_id
        self.batch_invariant = batch_invariant
        self.step = ModelStep(
            model, pool, block_size=block_size, mask_id=mask_id, max_token_id=max_token_id, eos_ids=eos_ids,
            edit_tokens=edit_tokens, max_num_reqs=max_num_reqs, batch_invariant=batch_invariant, logits_ops=logits_ops,
        )  # fmt: skip
        self.overlap_callback: Callable[[], None] | None = None
        self.notify_ranks: Callable[[np.ndarray], None] | None = None  # on the driver rank, see FullLogits
        self.last_logits: FullLogits | None = None  # of the last step, for requests of the driver rank
        self.stats = RunnerStats()
        self.timer = DeviceTimer(self.device, self.stats)
        self.h2d, self.d2h = PinnedBuffer(self.device), PinnedBuffer(self.device)

    def batch(self, plan: StepPlan) -> ForwardBatch:
        """Returns the plan's forward batch on the device."""
        shape, inputs = self._rows(plan)
        return self.step.batch(shape, inputs)

    def _rows(self, plan: StepPlan) -> tuple[ForwardDescriptor, dict[str, torch.Tensor]]:
        shape, arrays = forward_inputs(
            plan, self_conditioning=self.step.self_conditioning is not None, block_size=self.block_size
        )
        return shape, self.h2d.to_device(arrays)

    def run(self, plan: StepPlan) -> BlockResults | None:
        self.stats.count("off")
        return self.launch(plan)

    def set_overlap_callback(self, work: Callable[[], None]) -> bool:
        if self.device.type != "cuda":
            return False
        self.overlap_callback = work
        return True

    @torch.inference_mode()
    def logits(self, plan: StepPlan, pages: int) -> torch.Tensor:
        """See `SupportsLogits`."""
        model, batch, logits_ops = self.model, self.batch(plan), self.step.logits_ops
        hidden_states = model.forward(model.embed(batch.tokens), batch, self.pool.like(pages))
        parts = torch.split(hidden_states, 1024)
        return torch.cat(
            [logits_ops.all_gather(model.lm_head(model.final_hidden_states(part))).cpu() for part in parts]
        )

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> BlockResults | None:
        """Runs the step eagerly."""
        self.timer.begin()
        hidden_states = self.step.forward(*self._rows(plan))
        blocks = plan.blocks  # computed now, to overlap with the forward
        return None if blocks is None else self._sample(plan, blocks, hidden_states)

    def _sample(self, plan: StepPlan, blocks: DenoiseBlocks, hidden_states: torch.Tensor) -> BlockResults:
        shape, arrays = sample_inputs(blocks, self.step.sampler.get_algorithm)
        parts = [blocks]
        if self.batch_invariant and not self.step.sampler.is_batch_invariant(shape):
            parts = plan.make_blocks_per_request() or parts
        launched = []
        for part in parts:
            if part is not blocks:
                shape, arrays = sample_inputs(part, self.step.sampler.get_algorithm)
            launched.append((shape, self.step.sample(shape, self.h2d.to_device(arrays), hidden_states)))
        if self.overlap_callback is not None:
            self.overlap_callback()
        members = [[group.members for group in part.groups] for part in parts]
        outputs = [self.d2h.to_host(found) for _, found in launched]
        self.timer.end(self.d2h)
        shapes = [shape for shape, _ in launched]
        found = concat_results([to_block_results(*each) for each in zip(shapes, outputs, members, strict=True)])
        return self._apply_constraints(blocks, hidden_states, found)

    def _apply_constraints(
        self, plan: DenoiseBlocks, hidden_states: torch.Tensor, to_block_results: BlockResults
    ) -> BlockResults:
        """Applies grammars and forced tokens to the results, and computes logprobs. None of it is captured."""
        full_logits = FullLogits(
            self.step.sampler, self.model.final_hidden_states, hidden_states, self.notify_ranks, self.batch_invariant
        )
        if full_logits.vocab_parallel and self.notify_ranks is None:
            self.last_logits = full_logits
        if plan.grammar_blocks:
            apply_grammar(full_logits, plan, to_block_results)
        if plan.forced_tokens:
            force_tokens(plan, to_block_results)
        if plan.num_logprobs is not None:
            compute_logprobs(full_logits, plan, to_block_results)
        return to_block_results
