"""A step's results become the state of its requests: at once what the next step is planned by, and the rest of it while
the device is at that step's forward."""

from __future__ import annotations

import time
from collections.abc import Callable

from runtime.engine.grammar_queue import check_kept
from runtime.engine.request import Request, Status
from runtime.engine.scheduled_request import ScheduledRequest
from runtime.engine.scheduler import Scheduler
from runtime.engine.step_plan import NO_RESULTS, BlockResults
from runtime.engine.step_stats import Observed
from runtime.request.engine_messages import EngineStats
from runtime.strategies.base import Strategy


class Writing:
    """Args:
    live: the requests that are not answered, by their ids; one that is leaves. failed: hears of a request that the
    strategy failed on.

    Attributes:
        untold: requests that steps brought something, in their order, since they were handed over.
    """

    def __init__(
        self, strategy: Strategy, scheduler: Scheduler, stats: EngineStats, observed: Observed,
        live: dict[str, Request], failed: Callable[[Request, BaseException], None],
    ) -> None:  # fmt: skip
        self.strategy = strategy
        self.scheduler = scheduler
        self.untold: dict[Request, None] = {}
        self._unpublished: list[Request] = []  # what they decoded and is in the cache now, others may not share yet
        self._stats = stats
        self._observed = observed
        self._live = live
        self._failed = failed
        self._left: list[tuple[ScheduledRequest, int]] = []  # turns that go on, and their blocks' numbers in
        self._results = NO_RESULTS  # the last step's

    def write(self, batch: list[ScheduledRequest], results: BlockResults) -> None:
        """Of a turn that goes on (``Strategy.steady``) the tokens alone: `finish` does the rest."""
        self.finish()  # by now it has been, where somebody asked for the step's blocks
        stats, left, self._results = self._stats, self._left, results
        calm = results.continuing
        first = 0
        for scheduled in batch:
            if scheduled.request.status is Status.FINISHED:  # the strategy failed on what was left of the step before
                first += len(scheduled.blocks)
                continue
            if scheduled.stable_layout and calm[first]:
                (block,) = scheduled.blocks
                block.tokens[...] = results.tokens[first, : block.size]
                scheduled.request.output_deferred = True
                left.append((scheduled, first))
                first += 1
                continue
            self._write(scheduled, results, first)
            first += len(scheduled.blocks)
        stats.edits += sum(results.edits)
        stats.remasks += sum(results.remasks)
        stats.forced += sum(results.forced)

    def finish(self) -> None:
        """What `write` left of the last step, if it has not been done. Before the results' memory is written again."""
        if not self._left:
            return
        left, self._left = self._left, []
        results, self._results = self._results, NO_RESULTS
        for scheduled, first in left:
            request = scheduled.request
            request.output_deferred = False
            if request.status is not Status.FINISHED:  # it may have been aborted
                self._decide(scheduled, results, first)

    def hand_over(self) -> list[Request]:
        """Those that are untold, which are so no more; what they have in the cache others may share from now on."""
        self.finish()
        for request in self._unpublished:
            if request.status is Status.RUNNING:
                self.scheduler.publish(request)
        untold = list(self.untold)
        self.untold, self._unpublished = {}, []
        return untold

    def forget(self, request_id: str) -> None:
        """Nothing more is told of this id."""
        for request in [request for request in self.untold if request.spec.id == request_id]:
            del self.untold[request]

    def _write(self, scheduled: ScheduledRequest, results: BlockResults, first: int) -> None:
        request, span, stats = scheduled.request, scheduled.span, self._stats
        cached, settled = request.num_computed_tokens, request.num_final_tokens
        if scheduled.recompute is not None:
            stats.forwards_prefill += 1
            request.recompute_spans.pop(0)
        elif cached < settled:
            if request.prefilling:
                stats.forwards_prefill += 1
                if not request.nfe and request.queue_seconds is not None:  # else it was preempted since
                    request.prefill_seconds = time.perf_counter() - request.arrival_time - request.queue_seconds
            elif not scheduled.is_denoise_step:
                stats.forwards_commit += 1
            request.num_computed_tokens = min(scheduled.last, settled)
        elif not scheduled.is_denoise_step and scheduled.first < scheduled.last:
            stats.forwards_prefill += 1
        if span is not None and not self._decide(scheduled, results, first):
            return
        if request.num_computed_tokens != cached:
            if request.prefilling or cached < request.prefill_len or request.reason is not None:
                self.scheduler.publish(request)
            else:
                self._unpublished.append(request)
        if request.reason is not None:
            if span is not None:  # the step that answered it
                del self._live[request.spec.id]
            if request.num_computed_tokens >= request.num_final_tokens:
                self.scheduler.release(request)

    def _decide(self, scheduled: ScheduledRequest, results: BlockResults, first: int) -> bool:
        """What became of the turn's blocks, the results' from `first` on; False if the strategy failed on it."""
        request, blocks = scheduled.request, scheduled.blocks
        if results.history:
            for i, block in enumerate(blocks, first):
                kept = results.history.get(i)
                block.history = None if kept is None else kept[: block.size]
        if results.soft_tokens:
            for i, block in enumerate(blocks, first):
                if i in results.soft_tokens:
                    ids, probs = results.soft_tokens[i]
                    block.soft_tokens = ids[: block.size], probs[: block.size]
        try:
            if request.constraint is not None:
                check_kept(request)
            self.strategy.update(request, blocks, results, first)
        except Exception as error:
            self._failed(request, error)
            return False
        if request.reason is not None or (blocks and request.wants_updates):
            self.untold[request] = None
        if scheduled.is_denoise_step:
            self._stats.forwards_denoise += 1
            for block in blocks:
                if block.finished:
                    self._observed.block_steps.append(block.steps)
        return True
