"""Applies sampler output to request state, and makes the outputs that the engine returns."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import numpy as np

from runtime.engine.step_stats import StepStats
from runtime.request.engine_messages import MIN_LOGPROB, EngineOutput, EngineStats, TokenLogprobs, TokenSteps
from runtime.scheduling.grammar_queue import ConstraintError, GrammarQueue, error_message
from runtime.scheduling.request import LogprobTable, Request, ScheduledRequest, Status
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.step_plan import UNMASKED, BlockResults, SampledBlocks
from runtime.scheduling.strategy import Strategy
from runtime.structured_output.grammar_cache import GrammarCache, GrammarError

log = logging.getLogger(__name__)


class OutputProcessor:
    """Updates the requests of a step from its results.

    Args:
        unfinished: requests without a finish reason, by id; finished ones are removed from it.
        grammars: the engine's cache of compiled grammars. None: structured output is not available.

    Attributes:
        updated_requests: requests with new output since `take_updated`, in order.
    """

    def __init__(
        self, strategy: Strategy, scheduler: Scheduler, stats: EngineStats, step_stats: StepStats,
        unfinished: dict[str, Request], grammar_queue: GrammarQueue, grammars: GrammarCache | None,
    ) -> None:  # fmt: skip
        self.strategy = strategy
        self.scheduler = scheduler
        self.updated_requests: dict[Request, None] = {}
        self._uncached: list[Request] = []  # requests with final page groups that are not cached yet
        self._stats = stats
        self._step_stats = step_stats
        self._unfinished = unfinished
        self._grammar_queue = grammar_queue
        self._grammars = grammars
        self._failed: list[EngineOutput] = []  # of requests that ended with an error

    def update_from_output(self, batch: list[ScheduledRequest], results: BlockResults) -> None:
        """Applies the results of a step. Must run before the next step samples, which reuses their memory."""
        first = 0
        for scheduled in batch:
            if scheduled.request.status is not Status.RELEASED:
                self._update(scheduled, results, first)
            first += len(scheduled.blocks)
        stats = self._stats
        stats.edits += sum(results.edits)
        stats.remasks += sum(results.remasks)
        stats.forced += sum(results.forced)

    def take_updated(self) -> list[Request]:
        """Returns the requests with new output, and adds their final page groups to the prefix cache."""
        for request in self._uncached:
            if request.status is Status.RUNNING:
                self.scheduler.cache_pages(request)
        updated = list(self.updated_requests)
        self.updated_requests, self._uncached = {}, []
        return updated

    def discard(self, request_id: str) -> EngineOutput | None:
        """Drops the new output of a request, and returns it; None if there is none."""
        found = None
        for request in [request for request in self.updated_requests if request.spec.id == request_id]:
            del self.updated_requests[request]
            found = make_output(request)
        for output in [output for output in self._failed if output.id == request_id]:
            self._failed.remove(output)
            found = output
        return found

    def take_failed(self) -> list[EngineOutput]:
        """Returns the outputs of the requests that ended with an error."""
        failed, self._failed = self._failed, []
        return failed

    def fail_request(self, request: Request, error: BaseException) -> None:
        """Ends a request with an error. The other requests of the step keep its results."""
        log.error("The decoding strategy failed: ending the request with an error", exc_info=error)
        self.fail([request], error)

    def fail(self, requests: list[Request], error: BaseException) -> None:
        """Ends requests with an error, except those that are finished."""
        for request in requests:
            if request.status is not Status.RELEASED:
                self._grammar_queue.remove(request)
            if self._unfinished.get(request.spec.id) is request:  # the id of a finished request may be reused
                del self._unfinished[request.spec.id]
                refused = isinstance(error, ConstraintError | GrammarError)
                if refused and request.constraint is not None and request.constraint.overrun:
                    assert self._grammars is not None
                    self._grammars.add_overrun(request.spec.grammar, request.constraint.overrun)
                message = error_message(error) if refused else f"{type(error).__name__}: {error}"
                failed = EngineOutput(
                    id=request.spec.id,
                    nfe=request.nfe,
                    generated=request.output.num_generated,
                    forwards=request.output.num_forwards,
                    finish_reason="error",
                    error=message,
                    refused=refused,
                )
                self._failed.append(failed)

    def _update(self, scheduled: ScheduledRequest, results: BlockResults, first: int) -> None:
        request, span, stats = scheduled.request, scheduled.span, self._stats
        num_computed, num_final = request.num_computed_tokens, request.num_final_tokens
        if scheduled.recompute is not None:
            stats.forwards_prefill += 1
            request.kv.recompute_spans.pop(0)
        elif num_computed < num_final:
            if request.prefilling:
                stats.forwards_prefill += 1
                times = request.times
                if not request.nfe and times.queue_seconds is not None:  # otherwise this prefill follows a preemption
                    times.prefill_seconds = time.perf_counter() - times.arrival - times.queue_seconds
            elif not scheduled.is_denoise_step:
                stats.forwards_commit += 1
            request.num_computed_tokens = min(scheduled.end, num_final)
        elif not scheduled.is_denoise_step and scheduled.start < scheduled.end:
            stats.forwards_prefill += 1
        if span is not None and not self._update_blocks(scheduled, results, first):
            return
        if request.num_computed_tokens != num_computed:
            if request.prefilling or num_computed < request.prefill_len or request.finish_reason is not None:
                self.scheduler.cache_pages(request)
            else:
                self._uncached.append(request)
        if request.finish_reason is not None:
            if span is not None:  # this step finished the request; later ones only write K/V for the prefix cache
                del self._unfinished[request.spec.id]
            if request.num_computed_tokens >= request.num_final_tokens:
                self.scheduler.release(request)

    def _update_blocks(self, scheduled: ScheduledRequest, results: BlockResults, first: int) -> bool:
        """Applies the results from index `first` on to the blocks of a request. Returns False on an error."""
        request, blocks, stats = scheduled.request, scheduled.blocks, self._stats
        if results.history:
            for i, block in enumerate(blocks, first):
                history = results.history.get(i)
                block.memory.history = None if history is None else history[: block.size]
        if results.soft_tokens:
            for i, block in enumerate(blocks, first):
                if i in results.soft_tokens:
                    ids, probs = results.soft_tokens[i]
                    block.memory.soft_tokens = ids[: block.size], probs[: block.size]
        try:
            if request.tool_names is not None:
                for i, block in enumerate(blocks, first):
                    found = request.tool_names.update(block.start, block.size, results, i, request.constraint)
                    request.constraint = found
                    if found is not None:  # positions may be masked again
                        request.pending_writes.append((block.start, block.start + block.size))
            elif request.constraint is not None and request.constraint.error:  # the matcher failed in this step
                raise ConstraintError(request.constraint.error)
            if request.spec.read_ids and blocks:
                request.finish_read(np.maximum(results.reads[first], MIN_LOGPROB).tolist())
            else:
                self.strategy.update(request, blocks, results, first)
        except Exception as error:
            self.fail_request(request, error)
            return False
        if request.output.read is not None:
            stats.forwards_read += 1
            request.output.num_forwards += 1
        elif scheduled.is_denoise_step:
            stats.forwards_denoise += 1
            request.output.num_forwards += 1
        generated = request.count_generated()
        if generated > request.output.num_generated:
            stats.generated_tokens += generated - request.output.num_generated
            request.output.num_generated = generated
        if request.finish_reason is not None or (blocks and request.spec.stream_mode != "final"):
            self.updated_requests[request] = None
        if scheduled.is_denoise_step:
            for block in blocks:
                if block.finished:
                    self._step_stats.block_steps.append(block.steps)
        return True


def holds_of(batch: list[ScheduledRequest]) -> Callable[[SampledBlocks], bool] | None:
    """Returns ``NextStep.holds`` for the requests of a step.

    A stop id may end an output, and positions after the start of a tool call may be masked again.
    """
    blocks = [(scheduled.request, block) for scheduled in batch for block in scheduled.blocks]
    stopping = [i for i, (request, _) in enumerate(blocks) if request.spec.stop_ids]
    stop_ids = np.array([token for i in stopping for token in blocks[i][0].spec.stop_ids], dtype=np.int64)
    calling = [(request.tool_names, block, i) for i, (request, block) in enumerate(blocks) if request.tool_names]
    if not stopping and not calling:
        return None

    def holds(sampled: SampledBlocks) -> bool:
        ends = np.isin(sampled.tokens[stopping], stop_ids) & (sampled.state[stopping] == UNMASKED)
        if ends.any():
            return True
        return any(names.may_mask(block.start, block.size, sampled, i) for names, block, i in calling)

    return holds


def make_output(request: Request) -> EngineOutput:
    """Returns the tokens that have become stable since the last output, and the state of the request."""
    output = EngineOutput(
        id=request.spec.id,
        nfe=request.nfe,
        generated=request.output.num_generated,
        forwards=request.output.num_forwards,
        new_tokens=request.tokens[request.output.num_sent_tokens : request.output.num_stable_tokens].tolist(),
        finish_reason=request.finish_reason,
        eos=request.output.hit_eos,
        forced_end=request.forced_end,
        read=request.output.read,
        cached_tokens=request.kv.cached_tokens,
        queue_seconds=request.times.queue_seconds,
        prefill_seconds=request.times.prefill_seconds,
    )
    if request.output.logprobs is not None:
        output.logprobs = _make_logprobs(request)
    if request.output.step_map is not None:
        steps = request.output.step_map.between(request.output.num_sent_tokens, request.output.num_stable_tokens)
        output.steps = TokenSteps(*steps)
    if request.spec.stream_mode == "denoise":
        output.start, output.tokens, output.masked = request.output.last_step_event
        if request.output.candidates is not None:
            output.candidates, output.confidence = _make_candidates(
                request.output.candidates, output.start, output.masked
            )
    request.output.num_sent_tokens = request.output.num_stable_tokens
    return output


def _make_candidates(table: LogprobTable, start: int, masked: list[int]) -> tuple[list[list[int]], list[list[float]]]:
    """Returns the most probable tokens of the masked positions, and their probabilities, without impossible ones."""
    end = start + masked[-1] + 1 if masked else start
    _, ids, values = table.between(start, end)
    table.clear(start, end)  # the next step may not sample all of these positions
    found = [
        [(id, value) for id, value in zip(ids[at], values[at], strict=True) if value > MIN_LOGPROB] for at in masked
    ]
    return [[id for id, _ in each] for each in found], [[math.exp(value) for _, value in each] for each in found]


def _make_logprobs(request: Request) -> TokenLogprobs:
    """Returns the logprobs of the new tokens, and of the end-of-sequence token."""
    assert request.output.logprobs is not None
    end = request.output.num_stable_tokens + request.output.hit_eos
    found = TokenLogprobs(*request.output.logprobs.between(request.output.num_sent_tokens, end))
    if request.output.hit_eos:
        found.end = int(request.tokens[request.output.num_stable_tokens])
    return found
