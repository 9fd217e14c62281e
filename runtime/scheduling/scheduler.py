"""Selects the requests of the next step and the rows of each.

Admission is fair between tenants (request_queue.py). If the token budget does not suffice for all running requests,
those that were not served last time come first. If pages run out, a request is preempted;
docs/research/decoding-rules.md#preemption states which. The rows of a request follow
docs/research/decoding-rules.md#prefill, docs/research/decoding-rules.md#commit and
docs/research/decoding-rules.md#token-budget.
"""

from __future__ import annotations

import itertools
import math
import time

from runtime.kernels.next_segments import NO_BLOCK
from runtime.kernels.segments import COUNT
from runtime.request.engine_messages import EngineInfo
from runtime.scheduling.kv_cache_manager import KVCacheManager, OutOfPages, PageTable, PrefillDeduplicator
from runtime.scheduling.lora_manager import LoRAManager
from runtime.scheduling.request import Following, Request, ScheduledRequest, Status, Successors
from runtime.scheduling.request_queue import FairQueue, round_robin, served_longest_ago
from runtime.scheduling.step_plan import Ints32
from runtime.scheduling.strategy import Strategy

SHARED_STEP_SECONDS = 0.1  # target if one tenant has several requests in a step with other tenants
DECAY = 0.8  # weight of earlier steps, per step


class SchedulingError(Exception):
    """The strategy raised an error (the cause) while one request was scheduled."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.spec.id)
        self.request = request


class Scheduler:
    """Selects the rows of each step and allocates KV pages. It does not access device tensors.

    Attributes:
        token_budget: maximum number of rows of one forward.
        max_num_reqs: maximum number of running requests.
        max_decode_rows: rows that suffice for any request that is not prefilling.
        running: running requests in the order of their arrival.
    """

    def __init__(self, info: EngineInfo, strategy: Strategy, lora_manager: LoRAManager) -> None:
        self.cache = KVCacheManager(
            num_pages=info.num_pages,
            page_size=info.page_size,
            block_size=info.block_layout.alignment,
            prefix_caching=info.prefix_caching,
        )
        self.table = PageTable(rows=info.max_num_reqs, pages_per_group=self.cache.pages_per_group)
        self.strategy = strategy
        self.token_budget = info.max_num_batched_tokens
        self.max_num_reqs = info.max_num_reqs
        self.lora_manager = lora_manager
        self.max_decode_rows = strategy.max_rows()
        self.step_time = StepTimeEstimator(2 * self.max_decode_rows)
        self.prefill_deduplicator = PrefillDeduplicator(self.cache, self.table, strategy.uncacheable_tail)
        self.waiting = FairQueue()
        self.running: list[Request] = []
        self.preemptions = 0
        self._num_prefix_hit_tokens = 0  # found at admission; `prefill_deduplicator` counts those found later
        self._step = 0
        self._budget_exhausted = False  # the last step had no budget left for some request
        self._deferred_exclusive: Request | None = None  # the last batch had other requests; it runs alone
        self._failed_admission: tuple[int, int] | None = None  # arrival index, and available page groups

    def add(self, request: Request) -> None:
        self.waiting.add(request)

    @property
    def prefix_hit_tokens(self) -> int:
        """Prompt tokens whose K/V was found in the prefix cache."""
        return self._num_prefix_hit_tokens + self.prefill_deduplicator.num_adopted_tokens

    def schedule(self) -> list[ScheduledRequest]:
        """Returns the requests of the next step with their rows; empty if there is nothing to run.

        Raises:
            SchedulingError: a request cannot be scheduled. All requests keep what was allocated to them.
        """
        self._step += 1
        self._admit()
        batch: dict[int, ScheduledRequest] = {}
        computing: set[bytes] = set()  # hashes of the page groups that this step computes
        remaining = self.token_budget
        budget_exhausted = False
        # With several tenants, further requests of a tenant must not make the steps of the others long.
        shared = self._is_shared
        order, num_first = self._round_robin_order() if shared else (self._order(), 0)
        remaining_in_time = self.max_step_rows
        deferred, self._deferred_exclusive = self._deferred_exclusive, None
        if deferred is not None and deferred.status is Status.RUNNING:  # first: else newer ones may precede it forever
            order = [deferred, *(request for request in order if request is not deferred)]
        running, step = Status.RUNNING, self._step
        for n, request in enumerate(order):
            if request.status is not running:
                continue  # it was preempted in this loop
            exclusive = request.spec.decoding.force_single_batch
            if exclusive and batch:
                self._deferred_exclusive = self._deferred_exclusive or request
                budget_exhausted = True
                continue
            prefilling = request.num_computed_tokens < request.prefill_len
            if prefilling:
                self.prefill_deduplicator.adopt_cached(request)
                if self.prefill_deduplicator.must_wait(request, computing):
                    continue
            max_rows = remaining
            if shared:
                max_rows = min(remaining, max(remaining_in_time, self.max_decode_rows if n < num_first else 0))
                if not max_rows:
                    budget_exhausted = True
                    break
            scheduled = self._schedule_request(request, max_rows, request.num_computed_tokens)
            if scheduled is None:
                budget_exhausted = True
                continue
            end = scheduled.end
            if end > request.kv.num_allocated_tokens and not self._allocate(request, end, batch):
                continue
            batch[request.arrival_index] = scheduled
            if prefilling:
                self.prefill_deduplicator.mark_computing(request, computing)
            rows = end - scheduled.start
            remaining -= rows
            remaining_in_time -= rows
            request.last_served_step = step
            if exclusive:
                budget_exhausted = len(order) > 1
                break
        self._budget_exhausted = budget_exhausted
        return list(batch.values())

    @property
    def _is_shared(self) -> bool:
        """Whether several tenants or groups have running requests, and some of them has several."""
        return len(self.running) > 2 and 1 < self.waiting.num_competing < len(self.running)

    @property
    def max_step_rows(self) -> int:
        """Maximum number of rows of a step, or of one in the time of a shared step."""
        return self.step_time.max_rows(self.token_budget) if self._is_shared else self.token_budget

    def plan_next(self, batch: list[ScheduledRequest]) -> list[Following] | None:
        """Returns the requests of the next step while the device runs this one, which samples blocks.

        It admits requests, and reserves the pages of both outcomes of each block, but preempts none for them. An
        outcome without pages is not known.

        Returns:
            None if the results of this step are needed first.

        Raises:
            SchedulingError: the strategy failed on a request.
        """
        found: list[Following] = []
        max_rows = self.max_step_rows
        sampled = [each for each in batch if each.blocks]
        leading = itertools.accumulate([len(each.blocks) for each in sampled], initial=0)
        for n, scheduled in zip(leading, sampled, strict=False):
            request = scheduled.request
            if request.resolved.soft_embedding_params is not None or request.spec.read_ids:
                return None
            if scheduled.is_last_step:
                if self.waiting.count:
                    return None  # another request may take its place
                continue
            if not self._find_successors(scheduled):
                return None
            assert scheduled.successors is not None
            max_rows -= max([each.end - each.start for each in scheduled.successors.known])
            found.append(Following(scheduled, n))
        if len(found) == len(self.running) and not self.waiting.count:
            return found
        others = self._plan_others(batch, max_rows) if self._admit_at_once() else None
        return None if others is None else found + others

    def _find_successors(self, scheduled: ScheduledRequest) -> bool:
        """Sets the `successors` of a request. Returns False if none is known."""
        known, request = scheduled.successors, scheduled.request
        if known is not None and None not in known:
            return True  # otherwise pages may have been missing
        assert scheduled.span is not None
        try:
            outcomes = self.strategy.successors(request, scheduled.span)
        except Exception as error:
            raise SchedulingError(request) from error
        self._reserve(request, max([each.end for each in outcomes.known], default=0))
        held = request.kv.num_allocated_tokens
        continues, final = (each if each is not None and each.end <= held else None for each in outcomes[:2])
        found = Successors(continues, final, outcomes.opens_at)
        if found != known:
            scheduled.successors, scheduled.outcomes = found, None
        return bool(found.known)

    def _plan_others(self, batch: list[ScheduledRequest], max_rows: int) -> list[Following] | None:
        """Returns the next rows of the requests without a sampled block: of prompts, and of those that sat out a step.

        Returns:
            None if they need more than `max_rows` rows or the results of this step.
        """
        current = {scheduled.request.arrival_index: scheduled for scheduled in batch}
        computing: set[bytes] = set()  # hashes of the page groups that this step and the next one compute
        for scheduled in batch:
            if scheduled.request.prefilling:
                self.prefill_deduplicator.mark_computing(scheduled.request, computing)
        found: list[Following] = []
        for request in self.running:
            now = current.get(request.arrival_index)
            if now is not None and now.blocks:
                continue
            num_computed = request.num_computed_tokens if now is None else min(now.end, request.num_final_tokens)
            if request.finished and num_computed >= request.num_final_tokens:
                if self.waiting.count:
                    return None  # another request may take its place
                continue  # its last blocks are cached by this step
            planned = self._plan_other(request, now, num_computed, computing, max_rows)
            if planned is None:
                return None
            max_rows -= planned.end - planned.start
            found.append(Following(planned))
        alone = len(self.running) > 1 and any(each.spec.decoding.force_single_batch for each in self.running)
        return None if found and (alone or self._is_shared) else found

    def _plan_other(
        self, request: Request, now: ScheduledRequest | None, num_computed: int, computing: set[bytes], max_rows: int
    ) -> ScheduledRequest | None:
        """Returns the next rows of a request, whose rows `now` this step forwards; None if they do not fit."""
        if now is not None and (now.span is not None or now.recompute is not None):
            return None
        if request.prefilling:
            if now is None:
                self.prefill_deduplicator.adopt_cached(request)
                num_computed = request.num_computed_tokens
                if self.prefill_deduplicator.must_wait(request, computing):
                    return None
            self.prefill_deduplicator.mark_computing(request, computing)
        scheduled = self._schedule_request(request, max_rows, num_computed)
        if scheduled is None or scheduled.recompute is not None:
            return None
        if scheduled.span is None and scheduled.end < request.num_final_tokens:
            return None  # more rows may fit once the blocks of this step are known
        self._reserve(request, scheduled.end)
        return scheduled if scheduled.end <= request.kv.num_allocated_tokens else None

    def confirm(self, following: list[Following], segments: Ints32) -> list[ScheduledRequest] | None:
        """Returns the rows of a step whose forward was launched for these requests; None if it has to be scheduled.

        Those that have ended meanwhile are left out.

        Args:
            segments: int32 [n, columns], those of the forward.
        """
        self._step += 1
        batch = []
        remaining = self.token_budget
        for (now, block), count in zip(following, segments[:, COUNT].tolist(), strict=True):
            request = now.request
            ended = request.finished and block != NO_BLOCK
            if request.status is not Status.RUNNING or ended or not count:
                continue
            max_rows = now.end - now.start if block == NO_BLOCK else remaining
            scheduled = self._schedule_request(request, max_rows, request.num_computed_tokens)
            if scheduled is None or scheduled.end > request.kv.num_allocated_tokens:
                return None
            remaining -= scheduled.end - scheduled.start
            request.last_served_step = self._step
            batch.append(scheduled)
        return batch or None

    def _reserve(self, request: Request, tokens: int) -> None:
        """Allocates the page groups for the first `tokens` positions, if there are enough."""
        missing = self.cache.page_groups_for(tokens) - len(request.kv.page_groups)
        if 0 < missing <= self.cache.num_available:
            self._append_page_groups(request, self.cache.allocate(missing))

    def _admit_at_once(self) -> bool:
        """Admits waiting requests while the device runs a step.

        Returns:
            False if a preemption or a copy of an adapter has to come first.
        """
        while self.waiting.count:
            if self.lora_manager.slot_victims(self.waiting.first(), self.running, self.waiting):
                return False
            request = self.lora_manager.next_request(self.waiting)
            if request is None:
                return True
            failed = self._failed_admission == (request.arrival_index, self.cache.num_available)
            if failed or len(self.running) >= self.max_num_reqs:
                return self._victim_for(request) is None
            if not self.lora_manager.is_active(request.spec.adapter):
                return False
            self._try_to_admit(request)
        return True

    def _order(self) -> list[Request]:
        """Returns the running requests, decoding before prefilling; after a full budget, longest waiting first."""
        if self._budget_exhausted:
            return sorted(self.running, key=served_longest_ago)
        prefilling = [r for r in self.running if r.num_computed_tokens < r.prefill_len]
        if not prefilling:
            return list(self.running)
        return [r for r in self.running if not r.prefilling] + prefilling

    def _round_robin_order(self) -> tuple[list[Request], int]:
        """Returns the running requests in rounds over tenants or groups, and the size of the first round."""
        rounds = round_robin(self.running)
        return [request for round in rounds for request in round], len(rounds[0])

    def _schedule_request(self, request: Request, max_rows: int, num_computed: int) -> ScheduledRequest | None:
        """Returns the rows of a request within `max_rows` after its first `num_computed`; None if nothing fits.

        A prefill of final tokens may be split into chunks. Open blocks are forwarded entirely or not at all.
        """
        num_final = request.num_final_tokens
        recompute_spans = request.kv.recompute_spans
        if recompute_spans and num_computed == num_final:
            recompute = recompute_spans[0]
            if len(recompute.tokens) > max_rows:
                return None
            end = recompute.start + len(recompute.tokens)
            return ScheduledRequest(request, recompute.start, end, None, recompute)
        try:
            if num_final - num_computed <= max_rows and request.finish_reason is None and not recompute_spans:
                span = self.strategy.plan_forward(request)
                start, end = span.start, span.end
                if num_computed < start and num_computed < request.num_final_tokens:
                    start = num_computed
                if end - start <= max_rows:
                    scheduled = request.last_scheduled
                    if scheduled is None or scheduled.span is not span or scheduled.start != start:
                        scheduled = request.last_scheduled = ScheduledRequest(request, start, end, span)
                    return scheduled
            chunk = request.num_final_tokens - num_computed
            if chunk > max_rows:
                chunk = self.strategy.prefill_chunk_size(request, max_rows)
        except Exception as error:
            raise SchedulingError(request) from error
        return ScheduledRequest(request, num_computed, num_computed + chunk, None) if chunk else None

    def _allocate(self, request: Request, tokens: int, batch: dict[int, ScheduledRequest]) -> bool:
        """Allocates page groups for the first `tokens` positions, by preemption if necessary.

        Returns:
            False if the request itself was preempted.
        """
        missing = self.cache.page_groups_for(tokens) - len(request.kv.page_groups)
        while missing > self.cache.num_available:
            victim = self._preemption_victim()
            batch.pop(victim.arrival_index, None)
            self._preempt(victim)
            if request.status is not Status.RUNNING:
                return False
        self._append_page_groups(request, self.cache.allocate(missing))
        return True

    def _preemption_victim(self) -> Request:
        """Returns the newest request of the tenant and group with the most running requests."""
        return max(self.running, key=lambda r: (r.finished, *self.waiting.running_counts(r), r.arrival_index))

    def _preempt(self, request: Request) -> None:
        """Frees the pages of a running request, which waits again. A finished request is released."""
        if request.finished:
            self.release(request)  # its last blocks are not cached; that is not counted as a preemption
            return
        self._free(request)
        request.reset_kv()
        request.status = Status.WAITING
        self.waiting.requeue(request)
        self.preemptions += 1

    def _admit(self) -> None:
        while self.waiting.count and (request := self._next_request()) is not None:
            if len(self.running) >= self.max_num_reqs:
                if not self._preempt_for(request):
                    return
                continue
            if self._failed_admission == (request.arrival_index, self.cache.num_available):
                return  # as many page groups are available as when its admission failed
            try:
                self.lora_manager.activate(request.spec.adapter)
            except Exception as error:
                raise SchedulingError(request) from error
            if not self._try_to_admit(request) and not self._preempt_for(request):
                return

    def _try_to_admit(self, request: Request) -> bool:
        """Admits a request whose adapter is in a slot. Returns False if there are too few pages."""
        page_groups = self._find_cached_prefix(request)
        # The prefill and the blocks of the first step must fit.
        need = self.cache.page_groups_for(self.strategy.required_tokens(request))
        try:
            fresh = self.cache.allocate_with_prefix(page_groups, need - len(page_groups))
        except OutOfPages:
            self._failed_admission = (request.arrival_index, self.cache.num_available)
            return False
        self._failed_admission = None
        self.waiting.admit(request)
        request.status = Status.RUNNING
        request.lora_slot = self.lora_manager.acquire(request.spec.adapter)
        request.req_slot = self.table.allocate_row()
        request.pending_writes = [(0, len(request.tokens))]
        request.kv.num_cached_page_groups = len(page_groups)
        request.num_computed_tokens = len(page_groups) * self.cache.page_group_size
        self._append_page_groups(request, page_groups + fresh)
        if request.kv.cached_tokens is None:
            request.kv.cached_tokens = request.num_computed_tokens
            if request.spec.counts_prompt:
                self._num_prefix_hit_tokens += request.num_computed_tokens
            request.times.queue_seconds = time.perf_counter() - request.times.arrival
        at = len(self.running)
        while at and self.running[at - 1].arrival_index > request.arrival_index:
            at -= 1
        self.running.insert(at, request)
        return True

    def _next_request(self) -> Request | None:
        """Returns the next request to admit, after others were preempted for a slot of its adapter if it may do so."""
        for victim in self.lora_manager.slot_victims(self.waiting.first(), self.running, self.waiting):
            self._preempt(victim)
        return self.lora_manager.next_request(self.waiting)

    def _preempt_for(self, request: Request) -> bool:
        """Preempts a request for a waiting one whose group has no running request, see ``FairQueue.may_preempt``."""
        victim = self._victim_for(request)
        if victim is not None:
            self._preempt(victim)
        return victim is not None

    def _victim_for(self, request: Request) -> Request | None:
        tenant_running, group_running = self.waiting.running_counts(request)
        if group_running or tenant_running == len(self.running) == self.waiting.num_competing:
            return None  # its group runs already, or all running requests are of its tenant, one per group
        victim = self._preemption_victim()
        if victim.finished or not self.waiting.may_preempt(request, victim):
            return None  # a finished request leaves after this step
        return victim

    def _find_cached_prefix(self, request: Request) -> list[int]:
        """Returns the cached page groups with the longest prefix of the tokens to prefill."""
        if not self.cache.prefix_caching:
            return []
        self.cache.extend_page_group_hashes(
            request.kv.page_group_hashes, request.kv.cache_salt, request.tokens, request.num_final_tokens
        )
        uncacheable = self.strategy.uncacheable_tail(request)
        return self.cache.find_longest_prefix(
            request.kv.page_group_hashes[: max(request.num_final_tokens - uncacheable, 0) // self.cache.page_group_size]
        )

    def _append_page_groups(self, request: Request, page_groups: list[int]) -> None:
        self.table.write(request.req_slot, len(request.kv.page_groups), page_groups)
        request.kv.page_groups.extend(page_groups)
        request.kv.num_allocated_tokens = len(request.kv.page_groups) * self.cache.page_group_size

    def cache_pages(self, request: Request) -> None:
        """Adds the page groups that are computed and not cached yet to the prefix cache."""
        if not self.cache.prefix_caching:
            return
        computed = request.num_computed_tokens // self.cache.page_group_size
        if computed > request.kv.num_cached_page_groups:
            self.cache.extend_page_group_hashes(
                request.kv.page_group_hashes, request.kv.cache_salt, request.tokens, request.num_computed_tokens
            )
            for n in range(request.kv.num_cached_page_groups, computed):
                self.cache.cache_page_group(request.kv.page_groups[n], request.kv.page_group_hashes[n])
            request.kv.num_cached_page_groups = computed

    def release(self, request: Request) -> None:
        """Removes a request in any state and frees its pages, its page table row and its adapter."""
        if request.status is Status.RUNNING:
            self._free(request)
            self.waiting.end(request)
        elif request.status is Status.WAITING:
            self.waiting.remove(request)
        request.status = Status.RELEASED

    def _free(self, request: Request) -> None:
        self.running.remove(request)
        self.cache_pages(request)
        self.cache.free(request.kv.page_groups)
        self.lora_manager.release(request.spec.adapter)
        request.lora_slot = -1
        request.last_scheduled = None
        self.table.free_row(request.req_slot)
        request.req_slot = -1
        self._failed_admission = None


class StepTimeEstimator:
    """Estimates rows per second from earlier steps, weighted by their size.

    On GPUs the limit is above the token budget and has no effect, as larger forwards take little longer. If even the
    smallest step is slow, as with large weights on a CPU, a step may take twice as long as that.

    Args:
        small: maximum number of rows of a step with about one request.
        seconds: target time of a shared step.
    """

    def __init__(self, small: int, seconds: float = SHARED_STEP_SECONDS) -> None:
        self.small = small
        self.seconds = seconds
        self._smallest = math.inf  # seconds of the fastest small step
        self._rows = 0.0
        self._seconds = 0.0

    def update(self, rows: int, seconds: float) -> None:
        """Adds the time of a step."""
        self._rows = DECAY * self._rows + rows
        self._seconds = DECAY * self._seconds + seconds
        if rows <= self.small and seconds < self._smallest:
            self._smallest = seconds

    def max_rows(self, budget: int) -> int:
        """Returns the rows of a step that takes about `seconds`, at most `budget`; `budget` before the first step."""
        if not self._seconds:
            return budget
        seconds = self.seconds if math.isinf(self._smallest) else max(self.seconds, 2 * self._smallest)
        return min(budget, int(seconds * self._rows / self._seconds))
