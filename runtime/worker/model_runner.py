"""Executes a StepPlan: forward, sampling, and unmasking algorithms. It does not access requests."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from runtime.algorithms.vocab_parallel import VocabParallelLogitsOps
from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.next_segments import HEADER, OUTCOMES, BlockCounters, Offer
from runtime.kernels.ops import select_kernels
from runtime.kernels.segments import FIELDS, RowTables
from runtime.kernels.uniform_numbers import CANVAS
from runtime.kernels.unmask import BlockInputs, SampledRows
from runtime.layers.embedding import soft_token_embeddings
from runtime.layers.kv_pool import KVPool
from runtime.models.base import Model, SelfConditioned
from runtime.request.eager_reason import EagerReason
from runtime.scheduling.step_plan import (
    COUNTERS,
    FIXED,
    MASKED,
    MUST_ADVANCE,
    NO_RESULTS,
    NUM_STEPS,
    BlockResults,
    DenoiseBlocks,
    Ints32,
    PageWrites,
    StateWrite,
    StepPlan,
)
from runtime.worker.candidates import FullLogits, SamplerConfig, Tensors
from runtime.worker.constrained_decoding import ConstrainedDecoding, forced_writes
from runtime.worker.host_buffers import Arrays, PinnedBuffer, make_timing_event
from runtime.worker.input_batch import ForwardDescriptor, SampleDescriptor, forward_inputs, sample_inputs
from runtime.worker.logprobs import compute_logprobs, compute_reads
from runtime.worker.next_step import NextStep
from runtime.worker.request_states import RequestStates
from runtime.worker.sampler import (
    FINISHED,
    HostOutput,
    Sampler,
    SamplerOutput,
    concat_results,
    make_sampler_output,
    sampled_blocks,
    to_block_results,
)

SOFT_EMBEDDING_CHUNK_ROWS = 32  # rows per chunk of soft embeddings in batch-invariant mode
OBSERVATIONS = 2**14  # maximum number of stored observations, as they may never be collected


class Runner(Protocol):
    """The interface that the engine requires; the benchmark of the host part implements it without a model.

    In each step the engine calls, within `step_context`: `launch_forward`, `launch_sampling`, `wait` and `results`.
    The methods that launch do not wait for the device, so that the host can do other work meanwhile.

    Attributes:
        overlaps: whether the device runs while the host does other work.
        launches_next: whether `wait` launches the next forward.
    """

    @property
    def stats(self) -> RunnerStats: ...

    @property
    def overlaps(self) -> bool: ...

    @property
    def launches_next(self) -> bool: ...

    def step_context(self) -> AbstractContextManager[None]:
        """Returns the context in which a step runs."""
        ...

    def launch_forward(self, plan: StepPlan) -> None:
        """Launches the forward of a step, unless `wait` has launched the same one."""
        ...

    def must_split(self, blocks: DenoiseBlocks) -> bool:
        """Returns whether `blocks` needs ``DenoiseBlocks.per_request``, because results may depend on the batch."""
        ...

    def launch_sampling(self, blocks: DenoiseBlocks | None, following: NextStep | None = None) -> None:
        """Launches the sampling of the step.

        Args:
            blocks: None: the step samples none.
            following: the next step, whose forward the device chooses from what it samples. None: it is not known.
        """
        ...

    def wait(self) -> StepPlan | None:
        """Waits for the sampled blocks, and launches the next forward.

        Returns:
            Its plan; None: it depends on more than the counters, so nothing was launched.
        """
        ...

    def write(self, writes: tuple[StateWrite, ...], page_writes: PageWrites | None) -> None:
        """Stores content and pages of requests, once the launched step has run."""
        ...

    def results(self) -> BlockResults:
        """Returns the results of the sampled blocks. Their arrays are valid until the next step samples."""
        ...

    def capture_next(self) -> int:
        """Captures a CUDA graph that was not captured at start. Call it between steps, while no request runs.

        Returns:
            How many are left.
        """
        ...


@runtime_checkable
class SupportsLogits(Protocol):
    """A runner with a model."""

    def logits(self, plan: StepPlan, pages: int) -> torch.Tensor:
        """Returns logits [rows, vocab] on the CPU, computed with a separate KV pool of `pages` pages."""
        ...


class LaunchedForward(NamedTuple):
    """A forward on the device.

    Attributes:
        hidden_states: [rows, hidden], before the final norm.
        eager_reason: why it runs eagerly; None: it was replayed.
    """

    plan: StepPlan
    hidden_states: torch.Tensor
    eager_reason: EagerReason | None

    def serves(self, plan: StepPlan) -> bool:
        """Returns whether the forward of `plan` would be the same."""
        return plan.page_writes is None and not plan.writes and self.has_rows_of(plan)

    def has_rows_of(self, plan: StepPlan) -> bool:
        """Returns whether the forward of `plan` has the same rows. The tables of their requests may have changed."""
        own = self.plan
        if not (plan.reads_tables and own.reads_tables):
            return False
        if plan.segments is not own.segments and plan.segments.tobytes() != own.segments.tobytes():
            return False
        return plan.active_lora_modules == own.active_lora_modules


class ModelRunner:
    """Runs each step eagerly.

    Args:
        pool: the KV pool, on the device of the model.
        num_staged: see ``RequestStates``.
    """

    def __init__(self, model: Model, pool: KVPool, config: SamplerConfig, *, num_staged: int = 0) -> None:
        self.model = model
        self.pool = pool
        self.device = pool.device
        self.block_size = config.block_size
        self.mask_id = config.mask_id
        self.batch_invariant = config.batch_invariant
        self.states = RequestStates(
            config.max_num_reqs, config.max_request_len, pool.device,
            max_pages=config.max_request_pages, num_staged=num_staged,
        )  # fmt: skip
        self.model_step = ModelStep(model, pool, self.states, config)
        self.notify_ranks: Callable[[np.ndarray], None] | None = None  # on the driver rank, see FullLogits
        self.notify_next: Callable[[], None] | None = None  # on the driver rank: precedes the launch of `launch_next`
        self.notify_writes: Callable[[tuple[StateWrite, ...]], None] | None = None  # on the driver rank, of grammars
        self.last_logits: FullLogits | None = None  # logits of the last step, for messages of the driver rank
        self.stats = RunnerStats()
        self.timer = DeviceTimer(self.device, self.stats)
        self.h2d, self.d2h = PinnedBuffer(self.device), PinnedBuffer(self.device)
        self._forced_h2d = PinnedBuffer(self.device)  # of forced tokens: other transfers need not wait for the forward
        # State of the current step.
        self.hidden_states: torch.Tensor | None = None
        self.blocks: DenoiseBlocks | None = None
        self._launched: list[tuple[DenoiseBlocks, SampleDescriptor, SamplerOutput]] = []
        self._outputs: list[HostOutput] = []  # host outputs of `_launched`
        self._constrained: ConstrainedDecoding | None = None  # blocks with structured output
        self._results: BlockResults | None = None  # if `wait` needed them
        self._output_buffer = self.d2h  # buffer through which `_outputs` were copied
        self._eager_reason: EagerReason | None = None  # of its forward
        self._following: NextStep | None = None  # the next step, if the device chooses its forward
        self._choice: Ints32 | None = None  # that choice, int32 [at least HEADER + n] (``kernels.next_segments``)
        self._next: LaunchedForward | None = None  # forward of the next step

    @property
    def overlaps(self) -> bool:
        return self.device.type == "cuda"

    @property
    def launches_next(self) -> bool:
        return self.overlaps

    def step_context(self) -> AbstractContextManager[None]:
        return torch.inference_mode()

    def launch_forward(self, plan: StepPlan) -> None:
        launched, self._next = self._next, None
        self.write(plan.writes, plan.page_writes)
        if launched is None or not launched.serves(plan):
            launched = self._forward(plan)
        _, self.hidden_states, self._eager_reason = launched

    def write(self, writes: tuple[StateWrite, ...], page_writes: PageWrites | None) -> None:
        self.states.write_pages(page_writes, self.h2d)
        self.states.write(writes, self.h2d)

    def next_plan(self) -> StepPlan | None:
        """Returns the plan of the forward that the device has chosen."""
        return None if self._following is None or self._choice is None else self._following.plan(self._choice)

    def launch_next(self) -> StepPlan | None:
        """Launches the forward that the device has chosen, as `wait` does. Returns its plan."""
        plan = self.next_plan()
        if plan is not None:
            if self.notify_next is not None:
                self.notify_next()
            self._next = self._forward(plan)
        return plan

    def has_launched(self, plan: StepPlan) -> bool:
        """Returns whether `wait` has launched the forward of `plan`."""
        return self._next is not None and self._next.serves(plan)

    def _forward(self, plan: StepPlan) -> LaunchedForward:
        self.timer.begin()
        hidden_states = self.model_step.forward(*self._forward_inputs(plan))
        return LaunchedForward(plan, hidden_states, EagerReason.GRAPHS_DISABLED)

    def must_split(self, blocks: DenoiseBlocks) -> bool:
        return self.batch_invariant and not self.model_step.sampler.is_batch_invariant(blocks)

    def launch_sampling(self, blocks: DenoiseBlocks | None, following: NextStep | None = None) -> None:
        self.stats.count(self._eager_reason)
        self._begin_sampling(blocks, following)
        if self._following is not None:
            self._offer(self._following)
        self._sample_eagerly()

    def _offer(self, step: NextStep) -> None:
        """Gives the device the outcomes between which it chooses."""
        found = self.h2d.to_device({"offer": np.array(step.offer, np.int32), "outcomes": step.outcomes})
        self.model_step.offer, self.model_step.outcomes = found["offer"], found["outcomes"]

    def _begin_sampling(self, blocks: DenoiseBlocks | None, following: NextStep | None) -> None:
        self.blocks, self._launched, self._choice = blocks, [], None
        self._constrained = self._results = None
        together = blocks is not None and len(blocks.per_request or (blocks,)) == 1
        self._following = following if together else None
        if blocks is not None and blocks.forced_tokens:  # behind the forward, and before the masks are counted
            self.states.write(forced_writes(blocks), self._forced_h2d)

    def wait(self) -> StepPlan | None:
        self._begin_constraints()
        choice = {} if self._following is None else {"choice": self.model_step.choice}
        self._outputs = [self.d2h.to_host({**output, **choice}) for _, _, output in self._launched]
        self._output_buffer = self.d2h
        if self._following is None:
            return None
        self._choice = self._outputs[0]["choice"]  # type: ignore[assignment]  # HostOutput does not state the dtype
        return self._follow()

    def _follow(self) -> StepPlan | None:
        """Launches the next forward, as far as the host does not need the results first. Returns its plan."""
        if self._constrained is not None:
            self._results = self._sampled_results()
        if self._is_held():
            return None
        if self._results is not None:  # grammars have changed the counters
            numbers = np.array([getattr(self._results, name) for name in COUNTERS], dtype=np.int64)
            self.model_step.choose(self.h2d.to_device({"numbers": numbers})["numbers"])
            self._choice = self.d2h.to_host({"choice": self.model_step.choice})["choice"]
        return self.launch_next()

    def _is_held(self) -> bool:
        """Returns whether the next forward must wait for what the host does with the sampled blocks."""
        holds = None if self._following is None else self._following.holds
        return holds is not None and holds(sampled_blocks(self._outputs[0]))

    def results(self) -> BlockResults:
        blocks, hidden_states = self.blocks, self.hidden_states
        if blocks is None or hidden_states is None:
            self.timer.skip()
            return NO_RESULTS
        self.timer.end(self._output_buffer, next_launched=self._next is not None)
        results = self._results or self._sampled_results()
        self._launched, self.hidden_states = [], None  # frees device memory
        if self.model_step.logits_ops.is_sharded and self.notify_ranks is None:
            self.last_logits = self._full_logits(hidden_states)  # rank 0 sends the rows to compute
        elif blocks.reads or blocks.reads_logits:
            results = self._add_logprobs(blocks, hidden_states, results)
        return results

    def _add_logprobs(self, blocks: DenoiseBlocks, hidden_states: torch.Tensor, results: BlockResults) -> BlockResults:
        full_logits = self._full_logits(hidden_states)
        if blocks.reads:
            results = replace(results, reads=compute_reads(full_logits, blocks))
        if blocks.reads_logits:
            logprobs, candidates = compute_logprobs(full_logits, blocks, results)
            results = replace(results, logprobs=logprobs, candidates=candidates)
        return results

    def _begin_constraints(self) -> None:
        """Begins with the blocks that have a grammar, behind the sampling of the others."""
        if self.blocks is not None and self.blocks.grammar_blocks:
            assert self.hidden_states is not None
            self._constrained = ConstrainedDecoding(self._full_logits(self.hidden_states), self.blocks)

    def _sampled_results(self) -> BlockResults:
        """Returns the results with what grammars have accepted, which it stores too."""
        parts = [
            to_block_results(descriptor, output, [group.members for group in part.groups])
            for (part, descriptor, _), output in zip(self._launched, self._outputs, strict=True)
        ]
        results = concat_results(parts)
        if self._constrained is not None:
            writes = self._constrained.finish(results)
            self._constrained = None
            if self.notify_writes is not None:
                self.notify_writes(writes)
            self.states.write(writes, self.h2d)
        return results

    def capture_next(self) -> int:
        return 0

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> BlockResults:
        """Runs a step with the blocks of its plan eagerly; it is not counted."""
        self.write(plan.writes, plan.page_writes)
        self.hidden_states = ModelRunner._forward(self, plan).hidden_states
        self._begin_sampling(plan.blocks, None)
        self._sample_eagerly()
        ModelRunner.wait(self)
        return ModelRunner.results(self)

    def run(self, plan: StepPlan) -> BlockResults:
        """Runs a step with the blocks of its plan, as benchmarks do."""
        with self.step_context():
            self.launch_forward(plan)
            self.launch_sampling(plan.blocks)
            self.wait()
            return self.results()

    def batch(self, plan: StepPlan) -> ForwardBatch:
        """Returns the plan's forward batch on the device, after its writes."""
        self.write(plan.writes, plan.page_writes)
        return self.model_step.batch(*self._forward_inputs(plan))

    @torch.inference_mode()
    def logits(self, plan: StepPlan, pages: int) -> torch.Tensor:
        """See `SupportsLogits`."""
        model, batch, logits_ops = self.model, self.batch(plan), self.model_step.logits_ops
        hidden_states = model.forward(model.embed(batch.tokens), batch, self.pool.like(pages))
        parts = torch.split(hidden_states, 1024)
        return torch.cat(
            [logits_ops.all_gather(model.lm_head(model.final_hidden_states(part))).cpu() for part in parts]
        )

    def _forward_inputs(self, plan: StepPlan) -> tuple[ForwardDescriptor, Tensors]:
        descriptor, arrays = forward_inputs(plan, page_size=self.pool.page_size)
        return descriptor, self.h2d.to_device(arrays)

    def _sample_eagerly(self) -> None:
        blocks = self.blocks
        if blocks is None:
            return
        for part in blocks.per_request or (blocks,):
            self._launch_sample(part, *sample_inputs(part, self.states))

    def _launch_sample(self, blocks: DenoiseBlocks, descriptor: SampleDescriptor, arrays: Arrays) -> None:
        assert self.hidden_states is not None
        output = self.model_step.sample(descriptor, self.h2d.to_device(arrays), self.hidden_states)
        if self._following is not None:
            self.model_step.choose(output["numbers"])
        self._launched.append((blocks, descriptor, output))

    def _full_logits(self, hidden_states: torch.Tensor) -> FullLogits:
        candidates, final_norm = self.model_step.sampler.candidates, self.model.final_hidden_states
        return FullLogits(candidates, final_norm, hidden_states, self.notify_ranks, self.batch_invariant)


class ModelStep:
    """Runs the forward and the sampling of a step.

    Args:
        pool: the KV pool, on the device of the model.
        states: tokens and states of the requests, which sampling updates.
        config: its `logits_ops` are those of a model without vocabulary sharding.
    """

    def __init__(self, model: Model, pool: KVPool, states: RequestStates, config: SamplerConfig) -> None:
        self.model = model
        self.pool = pool
        self.states = states
        kernels = select_kernels(pool.device, pool.dtype)
        self.expand_segments, self.choose_segments = kernels.expand_segments, kernels.choose_segments
        num_reqs = max(config.max_num_reqs, 1)  # the warm-up chooses for one
        self.next_segments = torch.zeros(num_reqs + 1, FIELDS, dtype=torch.int32, device=pool.device)
        self.choice = torch.zeros(HEADER + num_reqs, dtype=torch.int32, device=pool.device)
        self.offer = torch.zeros(len(Offer._fields), dtype=torch.int32, device=pool.device)
        self.outcomes = torch.zeros(num_reqs, OUTCOMES, dtype=torch.int32, device=pool.device)
        self.mask_id = config.mask_id
        self.soft_embedding_chunk_rows = None
        if config.batch_invariant:
            self.soft_embedding_chunk_rows = 1 if pool.device.type == "cpu" else SOFT_EMBEDDING_CHUNK_ROWS
        self.self_conditioning_state: torch.Tensor | None = None  # [slots, block, width], of the last step of each slot
        self_conditioning_fn = None
        if isinstance(model, SelfConditioned):  # the last slot is for padding
            self_conditioning_fn = model.compute_self_conditioning
            shape = (config.max_num_reqs + 1, config.block_size, model.self_conditioning_size)
            self.self_conditioning_state = torch.zeros(shape, dtype=pool.dtype, device=pool.device)
        if model.vocab_shard is not None:
            config = replace(config, logits_ops=VocabParallelLogitsOps(model.vocab_shard))
        self.logits_ops = config.logits_ops
        self.sampler = Sampler(model.lm_head, config, pool.device, self_conditioning_fn)
        self.eos_ids = self.sampler.eos_ids

    def batch(self, descriptor: ForwardDescriptor, inputs: Tensors) -> ForwardBatch:
        tokens, pages = inputs.get("tokens"), inputs.get("page_table")
        tables = RowTables(
            self.states.tokens if tokens is None else tokens,
            self.states.max_len,
            self.states.pages[:, : descriptor.pages] if pages is None else pages,
            self.pool.page_size,
        )
        rows = self.expand_segments(
            inputs["segments"], tables, descriptor.rows, descriptor.tiles, descriptor.tile_rows
        )._asdict()
        conditioning = rows.pop("conditioning")
        if not descriptor.active_lora_modules:
            rows["lora_slots"] = None
        return ForwardBatch(
            **rows,
            page_table=tables.pages,
            page_size=self.pool.page_size,
            tile_rows=descriptor.tile_rows,
            max_seq_len=descriptor.reach,
            self_conditioning=self._conditioning_of(conditioning) if descriptor.self_conditioned else None,
            active_lora_modules=descriptor.active_lora_modules,
        )

    def forward(self, descriptor: ForwardDescriptor, inputs: Tensors) -> torch.Tensor:
        """Returns hidden states [rows, hidden] before the final norm, and writes the K/V of the rows to the pool."""
        batch = self.batch(descriptor, inputs)
        x = self.model.embed(batch.tokens)
        if descriptor.soft_embedding_shape[0]:
            self._apply_soft_embeddings(x, inputs)
        return self.model.forward(x, batch, self.pool)

    def sample(
        self, descriptor: SampleDescriptor, inputs: Tensors, hidden_states: torch.Tensor, *, graph_safe: bool = False
    ) -> SamplerOutput:
        """Samples the blocks of a step, and applies their unmasking algorithms.

        Args:
            hidden_states: [rows, hidden], the result of `forward`.
            graph_safe: see ``SamplingStep``.
        """
        hidden = self.model.final_hidden_states(hidden_states[inputs["rows"]]) if descriptor.rows else hidden_states[:0]
        fused = self._fused_unmask(descriptor, inputs, hidden)
        if fused is not None:
            return fused
        before = self.states.gather(inputs["block_first"], inputs["block_size"], descriptor.size)
        inputs = {**inputs, **before.inputs()}
        state, self_conditioning = self.self_conditioning_state, None
        if state is not None and descriptor.self_conditioned:
            self_conditioning = state.new_zeros(descriptor.blocks, descriptor.size, state.shape[2])
        decided = []
        history: SamplerOutput = {}
        groups = self.sampler.block_batches(descriptor, inputs, hidden, self_conditioning, graph_safe=graph_safe)
        for i, (algorithm, members, blocks) in enumerate(groups):
            decided.append((members, algorithm.decide(blocks)))
            if blocks.history is not None:
                history[f"history{i}"] = blocks.history
        if state is not None and self_conditioning is not None:
            state[inputs["req_slot"], : descriptor.size] = self_conditioning
        found = make_sampler_output(before.tokens, before.state, decided, mask_id=self.mask_id, eos_ids=self.eos_ids)
        after = found["state"]
        if descriptor.uniform_noise:  # all of a canvas is masked before each step
            continues = found["numbers"][FINISHED][:, None] == 0
            after = torch.where(continues & (before.state != FIXED), MASKED, after)
        self.states.scatter(before, found["tokens"], after, found["remasked"])
        if descriptor.uniform_noise:
            self._draw_next_canvases(inputs, found["numbers"][FINISHED] > 0, descriptor.size)
        return found | history

    def _draw_next_canvases(self, inputs: Tensors, finished: torch.Tensor, width: int) -> None:
        """Writes the noise of the canvas behind each finished one, so that its forward need not wait for the host.

        Args:
            finished: bool [n].
            width: positions of the largest canvas.
        """
        size, draws = inputs["block_size"], inputs["draws"].clone()
        draws[:, 1] += 1  # noise of the step that opens the canvas
        draws[:, 2] += size
        left = self.states.max_len - draws[:, 2]  # positions of the slot, which may be none
        size, first = torch.where(finished, size.minimum(left), 0), inputs["block_first"] + size
        before = self.states.gather(first, size, width)
        noise = self.sampler.noise(draws, width, CANVAS)
        self.states.scatter(
            before, torch.where(before.state == MASKED, noise, before.tokens), before.state, before.remasked
        )

    def choose(self, numbers: torch.Tensor) -> None:
        """Chooses the next forward from `outcomes` (``kernels.next_segments``).

        Args:
            numbers: int64 [len(COUNTERS), blocks].
        """
        counters = BlockCounters(*(numbers[COUNTERS.index(name)] for name in BlockCounters._fields))
        self.choose_segments(counters, self.outcomes, self.offer, self.next_segments, self.choice)

    def _fused_unmask(
        self, descriptor: SampleDescriptor, inputs: Tensors, hidden: torch.Tensor
    ) -> SamplerOutput | None:
        """Returns the output of the fused unmasking kernel, for one threshold algorithm without further statistics;
        None where it does not apply.

        Args:
            hidden: [n, hidden] of the sampled positions.
        """
        group, lm_head = descriptor.groups[0], self.sampler.candidates.fused_lm_head
        algorithm = group.algorithm
        kernel = None if lm_head is None else lm_head.kernels.threshold_unmask
        if lm_head is None or kernel is None or algorithm.fused_threshold is None or not descriptor.rows:
            return None
        if (
            len(descriptor.groups) > 1
            or group.required_stats
            or descriptor.num_random
            or descriptor.uniform_noise
            or descriptor.self_conditioned
            or descriptor.has_logits_processors
        ):
            return None
        token, conf = self.sampler.candidates.greedy(lm_head, hidden, inputs["num_valid"])
        threshold, steps = (algorithm.columns[field.name] for field in algorithm.fused_threshold)
        after = kernel(
            BlockInputs(
                self.states.tokens, self.states.states, inputs["block_first"], inputs["block_size"], descriptor.size,
                inputs["numbers"], MUST_ADVANCE, NUM_STEPS, inputs["params0"], threshold, steps,
            ),
            SampledRows(token, conf, inputs["block"], inputs["at"]), self.mask_id, self.eos_ids,
        )  # fmt: skip
        return after._asdict()

    def _conditioning_of(self, index: torch.Tensor) -> torch.Tensor:
        """Returns the self-conditioning of rows [rows, width]; 0 where the index is -1."""
        assert self.self_conditioning_state is not None
        found = self.self_conditioning_state.flatten(0, 1)[index.clamp(min=0)]
        return torch.where(index[:, None] >= 0, found, 0)

    def _apply_soft_embeddings(self, x: torch.Tensor, inputs: Tensors) -> None:
        """Replaces the embeddings `x` [rows, hidden] of rows with soft embeddings in place."""
        rows = inputs["soft_embedding_rows"]
        arguments = [inputs[f"soft_embedding_{name}"] for name in ("ids", "probs", "params")]
        if self.soft_embedding_chunk_rows is None:
            x[rows] = self._blend(x[rows], *arguments)
            return
        embeds = x[rows]
        for first in range(0, len(rows), self.soft_embedding_chunk_rows):
            part = torch.arange(first, first + self.soft_embedding_chunk_rows, device=x.device).clamp(max=len(rows) - 1)
            few = self._blend(embeds[part], *(each[part] for each in arguments))
            embeds[first : first + self.soft_embedding_chunk_rows] = few[: len(rows) - first]
        x[rows] = embeds

    def _blend(self, own: torch.Tensor, ids: torch.Tensor, probs: torch.Tensor, how: torch.Tensor) -> torch.Tensor:
        assert self.mask_id is not None  # soft embeddings mix with the mask's embedding
        smooth, weight, renormalize = how.unbind(1)
        return soft_token_embeddings(
            self.model.embed, own, ids, probs, self.mask_id, smooth=smooth > 0, weight=weight,
            renormalize=renormalize > 0,
        )  # fmt: skip


@dataclass
class RunnerStats:
    """Statistics of steps.

    Attributes:
        replayed: steps that were replayed from CUDA graphs entirely.
        eager: number of steps not replayed from a CUDA graph, by reason.
        graph_bytes: device memory of CUDA graphs.
        graphs_pending: CUDA graphs that `capture_next` has yet to capture.
        last_device_seconds: device time of the last step. None: unknown.
        device_seconds: device time of each step that sampled.
        gap_seconds: time between the end of a step that sampled and the forward of the next one. Writes of the host
            lie in it, except those of pages for an early forward, and so does a forward that was launched in vain.
    """

    replayed: int = 0
    eager: Counter[EagerReason] = field(default_factory=Counter)
    graph_bytes: int = 0
    graphs_pending: int = 0
    last_device_seconds: float | None = None
    device_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=OBSERVATIONS))
    gap_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=OBSERVATIONS))

    def count(self, reason: EagerReason | None) -> None:
        """Counts a step that ran eagerly for `reason`; None: it was replayed."""
        if reason is None:
            self.replayed += 1
        else:
            self.eager[reason] += 1


class DeviceTimer:
    """Measures the device time of each step that has results with CUDA events, without synchronization."""

    def __init__(self, device: torch.device, stats: RunnerStats) -> None:
        self.stats = stats
        self._device = device
        self._stream: torch.cuda.Stream | None = None  # of `begin`
        self._begins: list[torch.cuda.Event] = []  # starts of this step, and of the previous or the next one
        self._last_done: torch.cuda.Event | None = None  # end of the previous step, if it sampled
        if device.type == "cuda":
            self._begins = [make_timing_event() for _ in range(2)]

    def prepare(self) -> None:
        """Finds out what `begin` needs, which takes longer than the call itself."""
        if self._begins:
            self._stream = torch.cuda.current_stream(self._device)

    def begin(self) -> None:
        self._begins.reverse()
        if self._begins:
            self._begins[0].record(self._stream)

    def skip(self) -> None:
        """Ends a step without results."""
        self.stats.last_device_seconds = self._last_done = None

    def end(self, buffer: PinnedBuffer, *, next_launched: bool = False) -> None:
        """Ends the measurement of a step whose results were copied through `buffer`.

        Args:
            next_launched: the forward of the next step was launched already.
        """
        if self._begins and buffer.done is not None:
            began = self._begins[next_launched]
            self.stats.last_device_seconds = began.elapsed_time(buffer.done) / 1e3
            self.stats.device_seconds.append(self.stats.last_device_seconds)
            if self._last_done is not None:
                self.stats.gap_seconds.append(self._last_done.elapsed_time(began) / 1e3)
            self._last_done = buffer.done
