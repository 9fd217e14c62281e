"""Runs steps as CUDA graphs: inputs are padded to one of few sizes, so that a step is two graph launches.

A step is one step of the engine: a forward, and the sampling of its blocks. Each has a graph, whose size is a
`ForwardDescriptor` or a `SampleDescriptor`. The graph of sampling depends on the number of blocks and of sampled
positions, which the host computes while the forward runs. `model_step` runs both parts on the device.

`GraphCapturer` captures work and returns its replay. ``CudaGraphRunner.capture_graph`` captures one graph, and
`launch_forward` and `launch_sampling` replay the graph of a step or run it eagerly.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from runtime.distributed.process_group import AllReduceBuffer
from runtime.errors import ReplicaLost
from runtime.kernels.next_segments import CHOSEN_ROWS, HEADER, UNKNOWN, Offer
from runtime.layers.kv_pool import KVPool
from runtime.models.base import Model
from runtime.request.eager_reason import EagerReason
from runtime.scheduling.step_plan import DenoiseBlocks, StepPlan
from runtime.worker.candidates import SamplerConfig
from runtime.worker.graph_padding import (
    CaptureSizes,
    Views,
    forward_buffer_specs,
    pad_forward_inputs,
    pad_sample_inputs,
    sample_buffer_specs,
    sample_output_nbytes,
)
from runtime.worker.host_buffers import (
    ALIGNMENT,
    ArraySpecs,
    BufferLayout,
    BufferView,
    StaticBuffer,
    pack,
    tensor_specs,
)
from runtime.worker.input_batch import (
    ForwardDescriptor,
    SampleDescriptor,
    forward_arrays,
    forward_descriptor,
    sample_inputs,
)
from runtime.worker.model_runner import LaunchedForward, ModelRunner
from runtime.worker.next_step import NextStep

log = logging.getLogger(__name__)

CAPTURE_AFTER = 3  # a graph that was not captured at start is captured in the third step that needs it
MAX_GRAPHS = 2048
MIN_BUFFER_BYTES = 1 << 23  # bytes

Work = Callable[[], None]


class GraphCapturer:
    """Captures work that launches the same kernels on the same addresses each time.

    All graphs share one memory pool. Therefore only one runs at a time, and no result in the pool is read later.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Libraries allocate a workspace per stream. The GEMM allocates it now, outside the pool of the graphs.
        with torch.cuda.stream(self._stream):
            some = torch.ones(16, 16, device=device)
            torch.mm(some, some)
        torch.cuda.synchronize(device)

    def __call__(self, work: Work) -> Work:
        """Runs the work once, so that kernels are compiled and loaded; then captures it and returns its replay."""
        work()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # no memory may be freed during capture
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        return graph.replay


def run_eagerly(work: Work) -> Work:
    """Replaces a `GraphCapturer` where capture is impossible: each replay runs the work again."""
    work()
    return work


class LockstepCapturer:
    """Captures work that has collective operations, which all ranks have to launch equally often and at equal sizes.

    If a rank cannot capture work that it can run, its replays run the work instead. Other ranks replay their graphs.

    Args:
        buffer: buffers of the all-reduces. Ranks access those of each other, so that all have to use the same ones.

    Raises:
        ReplicaLost: The work itself fails. The other ranks wait in one of its collective operations.
    """

    def __init__(self, capture: Callable[[Work], Work], buffer: AllReduceBuffer | None = None) -> None:
        self._capture = capture
        self._buffer = buffer

    def __call__(self, work: Work) -> Work:
        buffer, num_runs = self._buffer, 0
        before = after = 0 if buffer is None else buffer.num_puts  # before and after the run that precedes the capture

        def counted() -> None:
            nonlocal num_runs, after
            work()
            num_runs += 1
            if num_runs == 1 and buffer is not None:
                after = buffer.num_puts

        try:
            return self._capture(counted)
        except RuntimeError as error:
            if not num_runs:
                raise ReplicaLost(f"a rank failed while it ran work for a CUDA graph: {error}") from error
            log.warning("CUDA graph capture failed on this rank, which runs this shape eagerly", exc_info=True)
        if buffer is None:
            return work
        buffer.num_puts = 2 * after - before  # after two runs, as on ranks that captured the work
        num_sizes = len(buffer.buffers)

        def replay() -> None:
            with buffer.repeated(num_sizes, after):
                work()

        return replay


@dataclass
class CapturedGraph:
    """A CUDA graph with its input and output buffers.

    Attributes:
        host_inputs, device_inputs: views of the input buffers on the host and on the device.
        inputs: the transfer of the inputs.
        replay: launches the graph. None: not captured yet.
        output_layout: layout of the outputs in their buffer.
        outputs: the transfer of the choice of the next forward, and of the outputs.
        host_outputs: views of the outputs on the host.
    """

    host_inputs: Views
    device_inputs: dict[str, torch.Tensor]
    inputs: BufferView
    replay: Work | None = None
    output_layout: BufferLayout = field(default_factory=lambda: BufferLayout({}))
    outputs: BufferView | None = None
    host_outputs: Views = field(default_factory=dict)


class CudaGraphRunner(ModelRunner):
    """A `ModelRunner` that captures steps as CUDA graphs and replays them where possible.

    Args:
        capture: runs work once and returns its replay.
        capture_sampling: capture sampling too, not only forwards.
        capture_after: number of the step that captures a graph, of those that need it.
    """

    def __init__(
        self, model: Model, pool: KVPool, config: SamplerConfig, sizes: CaptureSizes, capture: Callable[[Work], Work],
        *, capture_sampling: bool = True, capture_after: int = CAPTURE_AFTER,
    ) -> None:  # fmt: skip
        largest = sizes.forward_descriptors()[0]
        super().__init__(model, pool, config, num_staged=largest.rows)
        self.self_conditioned = self.model_step.self_conditioning_state is not None  # the model is `SelfConditioned`
        self.sizes = sizes = replace(sizes, self_conditioned=self.self_conditioned)
        self.capture = capture
        self.capture_sampling = capture_sampling
        self.capture_after = capture_after
        self._graphs: dict[Hashable, CapturedGraph] = {}
        self._num_uses: Counter[Hashable] = Counter()  # number of steps that needed a graph that is not captured
        self._pending: dict[ForwardDescriptor | SampleDescriptor, None] = {}  # see `capture_later`, in this order
        self._may_capture = True  # no step is delayed by more than one capture
        self._last_forward: LaunchedForward | None = None  # if a replay would read the tables of its requests
        self._last_graph: CapturedGraph | None = None  # the graph of that forward, which holds its inputs
        self._static_hidden_states: torch.Tensor | None = None  # of the last replayed forward, [max rows, hidden]
        self._sample_graph: CapturedGraph | None = None  # graph of the current step's sampling, if it was replayed
        self._max_rows = largest.rows
        nbytes = BufferLayout(forward_buffer_specs(sizes.forward_descriptors()[0])).nbytes
        self._forward_memory, self._sample_memory, self._output_memory = (
            StaticBuffer(self.device, max(2 * nbytes, MIN_BUFFER_BYTES)) for _ in range(3)
        )
        self._offer_memory = StaticBuffer(self.device, ALIGNMENT + self.model_step.outcomes.nbytes)
        self._offered: NextStep | None = None  # the device has its outcomes
        step, numbers = self.model_step, self._offer_memory.device.view(torch.int32)
        step.offer = numbers[: len(Offer._fields)]
        step.outcomes = numbers[ALIGNMENT // numbers.itemsize :].view(step.outcomes.shape)
        # The choice precedes the output of sampling, so that one copy has both.
        memory = self._output_memory
        nbytes = step.choice.nbytes
        step.choice = memory.device[:nbytes].view(torch.int32)
        self._host_choice = memory.numbers[:nbytes].view(np.int32)
        self._chosen: dict[tuple[int, int], dict[bytes, CapturedGraph]] = {}  # requests, modules -> header -> graph
        self._choices: dict[bytes, CapturedGraph] = {}  # those of `_following`
        self._outputs_start = -(-nbytes // ALIGNMENT) * ALIGNMENT
        first = self._forward_memory.device[: step.next_segments.nbytes]  # segments are the first input of a forward
        step.next_segments = first.view(torch.int32).view(step.next_segments.shape)

    @property
    def launches_next(self) -> bool:
        return True  # also where tests run captured work without a GPU

    def _forward(self, plan: StepPlan) -> LaunchedForward:
        self._may_capture = True  # once per forward, so that all ranks capture the same
        hidden_states = self._replay(plan)
        if hidden_states is not None:
            return LaunchedForward(plan, hidden_states, None)
        return LaunchedForward(plan, *self._forward_new_rows(plan))

    def launch_sampling(self, blocks: DenoiseBlocks | None, following: NextStep | None = None) -> None:
        self._begin_sampling(blocks, following)
        self._sample_graph = None
        if self._following is not None:
            self._last_forward = self._last_graph = None  # the choice overwrites the input of the last forward
        if blocks is None:
            self.stats.count(self._eager_reason)
            return
        if blocks.per_request:
            self.stats.count(self._eager_reason or EagerReason.BATCH_INVARIANT)
            self._sample_eagerly()
            return
        reason = self._eager_reason
        self._offer(self._following)
        descriptor, arrays = sample_inputs(blocks, self.states)
        padded = None
        if descriptor.has_logits_processors:
            reason = reason or EagerReason.LOGITS_PROCESSORS
        elif self.capture_sampling and self.hidden_states is self._static_hidden_states:
            padded = self.sizes.pad_sample(descriptor)
        elif not self.capture_sampling:
            reason = reason or EagerReason.SAMPLING_EAGER
        if padded is not None:
            self._sample_graph = self._launch_sample_graph(
                padded, lambda into: pad_sample_inputs(into, descriptor, arrays, padded, self.sizes)
            )
        if padded is None or self._sample_graph is None:
            self.stats.count(reason or EagerReason.NOT_CAPTURED)
            self._launch_sample(blocks, descriptor, arrays)
        else:
            self._launched = [(blocks, padded, {})]  # `wait` has the outputs
            self.stats.count(reason)
        if blocks.reads_logits and self.hidden_states is self._static_hidden_states:
            assert self.hidden_states is not None
            end = int((blocks.rows + blocks.size).max())
            self.hidden_states = self.hidden_states[:end].clone()  # the next forward may precede the logprobs

    def _offer(self, step: NextStep | None) -> None:
        """Gives the device the outcomes between which it chooses. None: it chooses no forward."""
        offered, self._offered, memory = self._offered, step, self._offer_memory
        if offered is step or (step and offered and step.outcomes is offered.outcomes and step.offer == offered.offer):
            return
        memory.wait()
        numbers, outcomes = memory.numbers.view(np.int32), np.empty(0, np.int32) if step is None else step.outcomes
        end = ALIGNMENT // numbers.itemsize + outcomes.size
        numbers[: len(Offer._fields)] = Offer(0, 0, 0) if step is None else step.offer
        numbers[end - outcomes.size : end] = outcomes.ravel()
        memory.slice(end * numbers.itemsize).upload()

    def wait(self) -> StepPlan | None:
        graph, step, pinned = self._sample_graph, self._following, self._output_memory.pinned
        self._choices = {}
        if step is not None:
            self._choices = self._chosen.setdefault((len(step.batch), step.active_lora_modules), {})
        self.timer.prepare()
        if graph is None:
            self._offer_memory.pending &= not self._launched
            return super().wait()
        assert graph.outputs is not None
        self._begin_constraints()
        graph.outputs.download()
        self._forward_memory.pending = self._sample_memory.pending = self._offer_memory.pending = False
        self._outputs, self._output_buffer = [graph.host_outputs], pinned
        if step is None:
            pinned.wait()
            return None
        self._choice = self._host_choice
        pinned.wait()  # the device idles from here on, until a forward is launched
        return self._follow()

    def launch_next(self) -> StepPlan | None:
        assert self._choice is not None
        graph = self._choices.get(self._choice[:HEADER].tobytes()) or self._chosen_graph()
        if graph is None:
            return super().launch_next()
        assert graph.replay is not None
        if self.notify_next is not None:
            self.notify_next()
        self.timer.begin()
        graph.replay()
        plan = self.next_plan()  # while the device runs
        assert plan is not None
        assert self._static_hidden_states is not None
        self._may_capture = True  # as in `_forward`
        self._next = self._last_forward = LaunchedForward(plan, self._static_hidden_states, None)
        self._last_graph = graph
        return plan

    def _chosen_graph(self) -> CapturedGraph | None:
        """Returns the graph of the forward that the device has chosen, whose input the device has written."""
        step = self._following
        if step is None or self._choice is None or self._choice[CHOSEN_ROWS] == UNKNOWN:
            return None
        header = self._choice[:HEADER]
        rows, tiles, tile_rows = header.tolist()
        modules = step.active_lora_modules
        chosen = ForwardDescriptor(rows, tiles, len(step.batch), 0, tile_rows, 0, active_lora_modules=modules)
        padded = self.sizes.pad_forward(chosen)
        graph = None if padded is None else self._graphs.get(padded)
        if graph is not None:
            self._choices[header.tobytes()] = graph  # so that the next steps find it at once
        return graph

    def _replay(self, plan: StepPlan) -> torch.Tensor | None:
        """Replays the last forward, if only tokens and pages have changed since then. Returns its hidden states."""
        last = self._last_forward
        if last is None or not last.has_rows_of(plan):
            return None
        assert self._last_graph is not None
        assert self._last_graph.replay is not None
        self.timer.begin()
        self._last_graph.replay()
        return last.hidden_states

    def _forward_new_rows(self, plan: StepPlan) -> tuple[torch.Tensor, EagerReason | None]:
        """Returns the hidden states [rows, hidden], and why the forward ran eagerly (None: it was replayed)."""
        descriptor = forward_descriptor(plan)
        padded = self.sizes.pad_forward(descriptor) if plan.page_table is None else None
        self._last_forward = self._last_graph = None
        began = False
        if padded is not None:
            arrays = forward_arrays(plan)
            if plan.tokens is not None:
                arrays["segments"] = self.states.stage(plan, self.h2d)

            def fill(into: Views) -> None:
                pad_forward_inputs(into, descriptor, arrays, padded)
                nonlocal began
                self.timer.begin()  # the device is idle before
                began = True

            if self._launch_forward_graph(padded, fill):
                assert self._static_hidden_states is not None
                graph = self._graphs.get(padded)  # None: its capture failed after a run
                reason = None if graph is not None else EagerReason.NOT_CAPTURED
                if graph is not None:
                    self._last_graph = graph
                    self._last_forward = LaunchedForward(plan, self._static_hidden_states, reason)
                return self._static_hidden_states, reason
        if not began:
            self.timer.begin()
        reason = EagerReason.TOO_LARGE if padded is None else EagerReason.NOT_CAPTURED
        return self.model_step.forward(*self._forward_inputs(plan)), reason

    def _launch_forward_graph(self, descriptor: ForwardDescriptor, fill: Callable[[Views], None]) -> bool:
        """Launches the graph of a forward; False if there is none."""

        def work() -> None:
            hidden_states = self.model_step.forward(descriptor, inputs)
            if self._static_hidden_states is None:
                self._static_hidden_states = hidden_states.new_zeros(self._max_rows, *hidden_states.shape[1:])
            self._static_hidden_states[: descriptor.rows].copy_(hidden_states)

        graph = self._get_graph(descriptor, lambda: forward_buffer_specs(descriptor), self._forward_memory)
        if graph is None:
            return False
        inputs = graph.device_inputs
        return self._launch(descriptor, graph, self._forward_memory, fill, work)

    def _launch_sample_graph(self, descriptor: SampleDescriptor, fill: Callable[[Views], None]) -> CapturedGraph | None:
        """Launches the graph of sampling and returns it; None if there is none."""

        memory, start = self._output_memory, self._outputs_start

        def work() -> None:
            assert self._static_hidden_states is not None
            found = self.model_step.sample(descriptor, inputs, self._static_hidden_states, graph_safe=True)
            self.model_step.choose(found["numbers"])
            if not out.specs:
                out.set_specs(tensor_specs(found))
            pack(found, out, memory.device[start:])

        graph = None
        if start + sample_output_nbytes(descriptor) <= len(memory):
            graph = self._get_graph(descriptor, lambda: sample_buffer_specs(descriptor), self._sample_memory)
        if graph is None:
            return None
        inputs, out = graph.device_inputs, graph.output_layout
        if not self._launch(descriptor, graph, self._sample_memory, fill, work):
            return None
        if graph.outputs is None:
            graph.outputs = memory.slice(start + out.nbytes)
            graph.host_outputs = out.on_host(memory.numbers[start:])
        return graph

    def _get_graph(
        self, descriptor: Hashable, specs: Callable[[], ArraySpecs], buffer: StaticBuffer
    ) -> CapturedGraph | None:
        """Returns the graph of a forward or sampling. It has no replay if it is due for capture. None: not yet."""
        found = self._graphs.get(descriptor)
        if found is not None:
            return found
        self._num_uses[descriptor] += 1
        if self._num_uses[descriptor] < self.capture_after or not self._may_capture or len(self._graphs) >= MAX_GRAPHS:
            return None
        layout = BufferLayout(specs())
        if layout.nbytes > len(buffer):
            return None
        return CapturedGraph(
            layout.on_host(buffer.numbers), layout.on_device(buffer.device), buffer.slice(layout.nbytes)
        )

    def _launch(
        self, descriptor: ForwardDescriptor | SampleDescriptor, graph: CapturedGraph, buffer: StaticBuffer,
        fill: Callable[[Views], None], work: Work,
    ) -> bool:  # fmt: skip
        buffer.wait()
        fill(graph.host_inputs)
        graph.inputs.upload()
        if graph.replay is not None:
            graph.replay()
        else:
            self._may_capture = False
            self._pending.pop(descriptor, None)
            self.stats.graphs_pending = len(self._pending)
            num_runs = 0

            def counted() -> None:
                nonlocal num_runs
                work()
                num_runs += 1

            try:
                graph.replay = self.capture(counted)  # this has run it, and sampling must not run twice
            except RuntimeError:
                log.warning("CUDA graph capture failed, this shape runs eagerly: %s", descriptor, exc_info=True)
                self._num_uses[descriptor] = -(2**62)
                return num_runs > 0
            self._graphs[descriptor] = graph
        return True

    def capture_later(self, descriptors: list[ForwardDescriptor | SampleDescriptor]) -> None:
        """Leaves graphs to `capture_next`, which captures them in this order.

        If a step needs one of them earlier, that step captures it, without two eager steps before.
        """
        self._pending |= dict.fromkeys(descriptors)
        self._num_uses.update(dict.fromkeys(descriptors, self.capture_after - 1))
        self.stats.graphs_pending = len(self._pending)

    def capture_next(self) -> int:
        descriptor = next(iter(self._pending), None)
        if descriptor is None:
            return 0
        self._last_forward = self._last_graph = self._next = None  # the capture uses the same buffers
        before = used_outside_allocator(self.device)
        self.capture_graph(descriptor)
        self._pending.pop(descriptor, None)
        self.stats.graphs_pending = len(self._pending)
        # Memory of the allocator does not count: the graph's results reuse those of the largest graph, and the run
        # before the capture leaves its memory in the allocator's cache.
        self.stats.graph_bytes += max(used_outside_allocator(self.device) - before, 0)
        return len(self._pending)

    @torch.inference_mode()
    def capture_graph(self, descriptor: ForwardDescriptor | SampleDescriptor) -> None:
        """Captures a graph. Call it between steps, for sampling after a forward was captured."""
        sizes, self._may_capture = self.sizes, True
        self._num_uses[descriptor] = self.capture_after
        if isinstance(descriptor, ForwardDescriptor):
            empty = _empty_arrays(forward_buffer_specs(descriptor))
            none = ForwardDescriptor(0, 0, 0, 0, 0, 0, (0, descriptor.soft_embedding_shape[1]))
            self._launch_forward_graph(descriptor, lambda into: pad_forward_inputs(into, none, empty, descriptor))
            return
        self._offer(None)  # the outcomes of the last step are of blocks that this descriptor may not have
        empty = _empty_arrays(sample_buffer_specs(descriptor))
        groups = tuple(replace(group, blocks=0, rows=0, num_random=0, num_filtered=0) for group in descriptor.groups)
        no_blocks = SampleDescriptor(0, descriptor.size, groups)
        self._launch_sample_graph(descriptor, lambda into: pad_sample_inputs(into, no_blocks, empty, descriptor, sizes))

    def discard_graphs(self) -> None:
        """Forgets all graphs. Call it before the first step."""
        self._graphs.clear()
        self._chosen.clear()
        self._num_uses.clear()

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)


def used_outside_allocator(device: torch.device) -> int:
    """Returns the bytes of used device memory that torch's allocator does not manage; 0 without CUDA."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))


def _empty_arrays(kinds: ArraySpecs) -> dict[str, np.ndarray]:
    """Returns arrays of length 0 with the dtypes of `kinds`."""
    return {name: np.zeros((0, *shape[1:]), dtype) for name, (dtype, shape) in kinds.items()}
