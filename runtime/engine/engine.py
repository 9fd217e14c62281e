"""The engine loop: plan a step, run it, apply its output to the requests, and return new tokens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from runtime.algorithms.base import EditTokens, algorithms_with_edit_tokens
from runtime.engine.output_processor import OutputProcessor, holds_of, make_output
from runtime.engine.step_stats import StepStats
from runtime.errors import AdapterNotLoadedError, ReplicaLost
from runtime.request.eager_reason import EagerReason
from runtime.request.engine_messages import EngineInfo, EngineOutput, EngineStats, RequestSpec
from runtime.scheduling.grammar_queue import GrammarQueue
from runtime.scheduling.lora_manager import LoRAManager
from runtime.scheduling.request import Following, Request, ScheduledRequest
from runtime.scheduling.scheduler import Scheduler, SchedulingError
from runtime.scheduling.step_plan import BlockResults, Ints32
from runtime.scheduling.strategy import Strategy, max_request_len
from runtime.structured_output.grammar_cache import GrammarCache
from runtime.worker.input_batch import InputBuilder
from runtime.worker.model_runner import Runner
from runtime.worker.next_step import NextStep

log = logging.getLogger(__name__)


class Engine:
    """Serves many requests in batches. Not thread-safe: one loop owns it.

    ``runtime.engine.setup.load_engine`` builds one from a configuration. Any runner can be used directly.

    Args:
        grammars: cache of compiled grammars. None: structured output is not available.
    """

    def __init__(
        self, *, info: EngineInfo, runner: Runner, strategy: Strategy, lora_manager: LoRAManager | None = None,
        grammars: GrammarCache | None = None,
    ) -> None:  # fmt: skip
        self.info = info
        self.runner = runner
        self.strategy = strategy
        self.get_algorithm = algorithms_with_edit_tokens(EditTokens.of(info))
        self.lora_manager = lora_manager or LoRAManager()
        self.scheduler = Scheduler(info, strategy, self.lora_manager)
        self.cache, self.table = self.scheduler.cache, self.scheduler.table
        self.input_builder = InputBuilder(self.table, strategy, self.lora_manager)
        self.grammars = grammars
        self.grammar_queue = GrammarQueue(self.scheduler, grammars)
        self._launched: tuple[list[Following], Ints32] | None = None  # requests and segments of the next forward
        self._requests: dict[str, Request] = {}  # unfinished requests by id
        self._on_outputs: Callable[[], object] = bool  # the overlap callback; the default has no effect
        self._num_arrivals = 0
        self._last_step_end = 0.0  # time.perf_counter()
        self._closed = False
        self._stats = EngineStats(pages_total=info.num_pages)
        self._step_stats = StepStats()
        self._output_processor = OutputProcessor(
            strategy, self.scheduler, self._stats, self._step_stats, self._requests, self.grammar_queue, grammars
        )

    def add(self, spec: RequestSpec) -> None:
        """Adds a request that ``runtime.request.resolve`` has validated.

        Raises:
            AdapterNotLoadedError: the adapter is not loaded, or is being unloaded.
            ValueError: the id is in use, or the request is longer than the model's length, which replicas of a server
                may lower one after another.
            RuntimeError: the engine is closed.
        """
        if self._closed:
            raise RuntimeError("the engine is closed")
        if spec.id in self._requests:
            raise ValueError(f"request id {spec.id!r} is in use")
        if spec.adapter and not self.lora_manager.is_available(spec.adapter):
            raise AdapterNotLoadedError(f"adapter {spec.adapter!r} is not loaded")
        size = self.strategy.total_len(len(spec.prompt), spec.max_tokens, spec.decoding.values)
        if size > max_request_len(self.strategy, self.info.max_model_len):
            raise ValueError(f"the request is longer than max_model_len {self.info.max_model_len} of this replica")
        request = Request(
            spec,
            size=size,
            num_final_tokens=self.strategy.initial_final_len(len(spec.prompt)),
            mask_id=self.info.mask_token_id or 0,  # without a mask id the strategy fills the positions
            arrival_index=self._num_arrivals,
            get_algorithm=self.get_algorithm,
            eos_ids=self.info.eos_token_ids,
        )
        request.kv.cache_salt = self.lora_manager.cache_salt(spec.adapter, spec.cache_salt)
        self._num_arrivals += 1
        self.grammar_queue.submit(request)
        self._requests[spec.id] = request
        if spec.counts_prompt:  # as a response's usage counts it: pinned and scored tokens are part of the prompt
            self._stats.prompt_tokens += len(spec.prompt) + len(spec.pinned_tokens) + len(spec.forced_token_ids)

    def abort(self, request_id: str) -> EngineOutput | None:
        """Removes a request in any state and frees its pages. Ignores unknown ids, as the request may have finished.

        Returns:
            Its last output, with the tokens that no output had, and with a finish reason; None for an unknown id.
        """
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.grammar_queue.remove(request)
        found = self._output_processor.discard(request_id)  # also if it is finished, because its id may be reused
        if found is None and request is not None:
            found = make_output(request)
        if found is not None and found.finish_reason is None:
            found.finish_reason = "abort"
        return found

    def unload_adapter(self, name: str) -> bool:
        """Rejects new requests for an adapter, and unloads it when no request uses it.

        Returns:
            Whether it was unloaded.
        """
        self.lora_manager.unloading.add(name)
        held = self.lora_manager.num_running(name) or any(
            request.spec.adapter == name for request in self._requests.values()
        )
        if not held:
            self.lora_manager.unload(name)
        return not held

    def has_work(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting or self.grammar_queue.waiting)

    def drain(self) -> None:
        """If no request waits for output, computes the K/V that only the prefix cache needs.

        This also releases the adapters of these requests.
        """
        while not self._requests and self.has_work():
            self.execute_step()

    def step(self) -> list[EngineOutput]:
        """Runs a step. Returns its outputs."""
        self.execute_step()
        return self.take_outputs()

    def execute_step(self) -> None:
        """Runs one forward for the scheduled requests, if there are any; `take_outputs` returns the outputs.

        If the step fails, its requests end with ``finish_reason="error"``. If the strategy fails on a request, only
        that request does.

        The rows of the next step depend on which blocks have ended. Once the device has said that, the next forward is
        launched, and the results of this step are processed while it runs.

        Raises:
            torch.AcceleratorError: the device failed. The process cannot run further steps.
            ReplicaLost: another process of the replica failed. The process cannot run further steps.
        """
        schedule_start, runner, outputs = time.perf_counter(), self.runner, self._output_processor
        batch, launched = self._schedule()
        if not batch:
            self._on_outputs()
            return
        started = time.perf_counter()
        try:
            plan = self.input_builder.plan(batch, launched)
            with runner.step_context():
                runner.launch_forward(plan)  # no launch if it was launched in the previous step
                blocks = self.input_builder.blocks()
                if blocks is not None and runner.must_split(blocks):
                    blocks = self.input_builder.split(blocks, batch)
                following = self._prepare_next(batch) if runner.launches_next and blocks is not None else None
                runner.launch_sampling(blocks, following)
                if following is not None:  # not earlier, as an eager sampling would wait for this transfer
                    runner.write(*self.input_builder.take_writes(following.requests))
                self._on_outputs()  # outputs of the previous step
                results = self._finish(batch, following)
                device_seconds = runner.stats.last_device_seconds
            outputs.update_from_output(batch, results)
        except (torch.AcceleratorError, ReplicaLost):
            raise
        except Exception as error:
            log.exception("Step failed: ending its %d requests with an error", len(batch))
            self._launched = None
            outputs.fail([scheduled.request for scheduled in batch], error)
            self._on_outputs()
            return
        ended = time.perf_counter()
        self.scheduler.step_time.update(plan.num_rows, ended - started)
        if launched is not None:  # during the output processing of the previous step
            schedule_start = started = self._last_step_end
        self._record_step(len(batch), schedule_start, started, ended, device_seconds)

    def _schedule(self) -> tuple[list[ScheduledRequest], Ints32 | None]:
        """Returns the requests of the next step, and the segments of its forward if that was launched already.

        The list is empty if no request can run, or if a request has just failed.
        """
        if self.grammar_queue.compiling:
            failed = self.grammar_queue.poll()
            for request, error in failed:
                self._output_processor.fail([request], error)
            if failed:
                return [], None
        launched, self._launched = self._launched, None
        try:
            if launched is not None:
                batch = self.scheduler.confirm(*launched)
                if batch is not None:
                    return batch, launched[1]
            return self.scheduler.schedule(), None
        except SchedulingError as error:
            self._output_processor.fail_request(error.request, error.__cause__ or error)
            return [], None

    def _finish(self, batch: list[ScheduledRequest], following: NextStep | None) -> BlockResults:
        """Waits for the sampled blocks, launches the next forward if it is known, and returns the results."""
        plan = self.runner.wait()
        if plan is not None and following is not None:
            self._launched = following.batch, plan.segments
        return self.runner.results()

    def _prepare_next(self, batch: list[ScheduledRequest]) -> NextStep | None:
        """Returns the outcomes of the step, and allocates their pages; None if they are not known."""
        try:
            planned = self.scheduler.plan_next(batch)
        except SchedulingError as error:
            self._output_processor.fail_request(error.request, error.__cause__ or error)
            return None
        if planned is None:
            return None
        may_leave = not self.scheduler.waiting.count
        following = self.input_builder.prepare(planned, self.scheduler.max_step_rows, may_leave=may_leave)
        holds = holds_of(batch)
        return following if holds is None else replace(following, holds=holds)

    def _record_step(
        self, requests: int, schedule_start: float, started: float, ended: float, device_seconds: float | None
    ) -> None:
        self._stats.steps += 1
        self._last_step_end = ended
        self._step_stats.record(
            requests, ended - started, total_seconds=ended - schedule_start, device_seconds=device_seconds
        )

    def take_outputs(self) -> list[EngineOutput]:
        """Returns the outputs since the last call, in the stream mode of each request.

        If it is called in the overlap callback, the device runs the next step meanwhile.
        """
        outputs = []
        for request in self._output_processor.take_updated():
            has_new_tokens = request.output.num_stable_tokens > request.output.num_sent_tokens
            if has_new_tokens or request.finish_reason is not None or request.spec.stream_mode == "denoise":
                outputs.append(make_output(request))
        return outputs + self._output_processor.take_failed()

    def set_overlap_callback(self, callback: Callable[[], object]) -> bool:
        """Sets a callback that runs while the device runs a step. Returns False if nothing overlaps on this device.

        Args:
            callback: must not raise, and may call only `take_outputs`.
        """
        if not self.runner.overlaps:
            return False
        self._on_outputs = callback
        return True

    def capture_next(self) -> bool:
        """Captures a CUDA graph that was not captured at start, if there is one. Call it while `has_work` is false.

        Returns:
            Whether there are more.
        """
        return self.runner.stats.graphs_pending > 0 and self.runner.capture_next() > 0

    def close(self) -> None:
        """Drops all requests, the model and its KV cache. Further calls have no effect."""
        if self._closed:
            return
        self._closed = True
        self.grammar_queue.close()
        self._launched = None
        if self.grammars is not None:
            self.grammars.close()
        for request in (*self.scheduler.running, *self.scheduler.waiting):
            self.scheduler.release(request)
        self._requests.clear()
        self.take_outputs()  # those of the last step belong to requests that are dropped
        del self.runner

    def progress(self) -> list[EngineOutput]:
        """Returns the counts so far of requests that have no output before their end."""
        return [
            EngineOutput(
                id=request.spec.id,
                nfe=request.nfe,
                generated=request.output.num_generated,
                forwards=request.output.num_forwards,
            )
            for request in self._requests.values()
            if request.spec.stream_mode == "final" and request.output.num_forwards
        ]

    def stats(self) -> EngineStats:
        """Returns totals since the start, current gauges, and the latest observations since the last call."""
        stats = self._stats
        stats.waiting = len(self.scheduler.waiting) + self.grammar_queue.waiting
        stats.adapters_waiting = self.lora_manager.num_waiting(self.scheduler.waiting)
        stats.adapter_evictions = self.lora_manager.evictions
        stats.adapter_bytes = self.lora_manager.host_bytes(self.lora_manager.digests)
        stats.pages_used = self.cache.pages_used
        stats.pages_cached = self.cache.pages_cached
        stats.preemptions = self.scheduler.preemptions
        stats.prefix_hit_tokens = self.scheduler.prefix_hit_tokens
        runner_stats = self.runner.stats
        stats.steps_replayed, stats.graph_bytes = runner_stats.replayed, runner_stats.graph_bytes
        stats.graphs_pending = runner_stats.graphs_pending
        for reason in EagerReason:
            setattr(stats, reason.stats_field, runner_stats.eager[reason])
        report = EngineStats(**{name: getattr(stats, name) for name in EngineStats.__struct_fields__})
        self._step_stats.flush_to(report)
        return report
