"""Selects the requests of the next step and the rows of each.

Admission is fair between clients (request_queue.py). If the token budget does not suffice for all running requests,
those that were not served last time come first. If pages run out, a request is preempted;
docs/decoding-rules.md#preemption states which. The rows of a request follow docs/decoding-rules.md#prefill,
docs/decoding-rules.md#commit and docs/decoding-rules.md#token-budget.
"""

from __future__ import annotations

import time

from runtime.engine.in_batch_prefix_cache import Sharing
from runtime.engine.kv_cache_manager import KVCacheManager, OutOfPages
from runtime.engine.lora_manager import Adapters
from runtime.engine.page_table import PageTable
from runtime.engine.request import Request, Status
from runtime.engine.request_queue import FairQueue, deal, served_longest_ago
from runtime.engine.scheduled_request import ScheduledRequest
from runtime.engine.step_time_budget import Pace
from runtime.strategies.base import Strategy


class TurnError(Exception):
    """The strategy failed (the cause) on what this one request feeds."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.spec.id)
        self.request = request


class Scheduler:
    """Holds the waiting and the running requests; hands out pages; never touches a tensor of the device.

    Args:
        budget: rows of one forward. max_requests: requests that hold pages at a time.
    """

    def __init__(
        self,
        *,
        cache: KVCacheManager,
        table: PageTable,
        strategy: Strategy,
        budget: int,
        max_requests: int,
        adapters: Adapters | None = None,
    ) -> None:
        self.cache = cache
        self.table = table
        self.strategy = strategy
        self.budget = budget
        self.max_requests = max_requests
        self.adapters = adapters or Adapters()
        self.least = strategy.max_rows()  # rows that any request's turn fits in, its prefill apart
        self.pace = Pace(2 * self.least)
        self.sharing = Sharing(cache, table, strategy.uncacheable_tail)
        self.waiting = FairQueue()
        self.running: list[Request] = []  # in order of arrival
        self.preemptions = 0
        self._found = 0  # tokens that requests found in the prefix cache when they were admitted
        self._step = 0
        self._left_out = False  # the budget did not reach everybody last time
        self._passed_over: Request | None = None  # it wants forwards of its own, and others had the last one
        self._refused_at: tuple[int, int] | None = None  # request and free units when admission last failed

    def add(self, request: Request) -> None:
        self.waiting.add(request)

    @property
    def prefix_hit_tokens(self) -> int:
        """Tokens of prompts that did not have to be computed."""
        return self._found + self.sharing.taken_over

    def schedule(self) -> list[ScheduledRequest]:
        """The turns of the next step; empty when there is nothing to do.

        Raises:
            TurnError: no step comes of it, and what was handed out so far stays with its requests.
        """
        self._step += 1
        self._admit()
        self.sharing.begin_step()
        batch: dict[int, ScheduledRequest] = {}
        left = self.budget
        left_out = False
        # while several share the engine, what one of them has beyond its first turn must not make steps long
        shared = 1 < self.waiting.parties < len(self.running)
        order, firsts = self._deal() if shared else (self._order(), 0)
        spare = self.pace.bound(left) if shared else left
        first, self._passed_over = self._passed_over, None
        if first is not None and first.status is Status.RUNNING:  # whoever came since would go before it for ever
            order = [first, *(request for request in order if request is not first)]
        running, step = Status.RUNNING, self._step
        for n, request in enumerate(order):
            if request.status is not running:
                continue  # made way for somebody in this very loop
            alone = request.exclusive_batch
            if alone and batch:
                self._passed_over = self._passed_over or request
                left_out = True
                continue
            prefilling = request.num_computed_tokens < request.prefill_len
            if prefilling and self.sharing.holds_back(request):
                continue
            room = left
            if shared:
                room = min(left, max(spare, self.least if n < firsts else 0))
                if not room:
                    left_out = True
                    break
            scheduled = self._turn(request, room)
            if scheduled is None:
                left_out = True
                continue
            last = scheduled.last
            if last > request.num_allocated_tokens and not self._hold_pages(request, last, batch):
                continue
            batch[request.arrival_index] = scheduled
            if prefilling:
                self.sharing.computes(request)
            rows = last - scheduled.first
            left -= rows
            spare -= rows
            request.last_served_step = step
            if alone:
                left_out = len(order) > 1
                break
        self._left_out = left_out
        return list(batch.values())

    def _order(self) -> list[Request]:
        """Decoding before prefilling; whoever was left out last time goes first."""
        if self._left_out:
            return sorted(self.running, key=served_longest_ago)
        prefilling = [r for r in self.running if r.num_computed_tokens < r.prefill_len]
        if not prefilling:
            return list(self.running)
        return [r for r in self.running if not r.prefilling] + prefilling

    def _deal(self) -> tuple[list[Request], int]:
        """Everybody's first turn, then everybody's second ...; how many are the first ones."""
        rounds = deal(self.running)
        return [request for round in rounds for request in round], len(rounds[0])

    def _turn(self, request: Request, left: int) -> ScheduledRequest | None:
        """As much as fits `left` rows: of what is settled a chunk, of the open part all or nothing."""
        if request.output_deferred:
            scheduled = request.last_scheduled
            return scheduled if scheduled is not None and scheduled.last - scheduled.first <= left else None
        cached, settled = request.num_computed_tokens, request.num_final_tokens
        dropped = request.recompute_spans
        if dropped and cached == settled:
            again = dropped[0]
            last = again.start + len(again.tokens)
            return ScheduledRequest(request, again.start, last, None, again) if last - again.start <= left else None
        try:
            if settled - cached <= left and request.reason is None and not dropped:
                span = self.strategy.plan_forward(request)
                first, last = span.first, span.last
                if cached < first and cached < request.num_final_tokens:
                    first = cached
                if last - first <= left:
                    scheduled = request.last_scheduled
                    if scheduled is None or scheduled.span is not span or scheduled.first != first:
                        alone = (
                            first == span.first and request.num_computed_tokens >= request.num_final_tokens
                        )  # nothing else is forwarded
                        steady = alone and self.strategy.is_layout_stable(request, span)
                        scheduled = request.last_scheduled = ScheduledRequest(
                            request, first, last, span, stable_layout=steady
                        )
                    return scheduled
            chunk = request.num_final_tokens - cached
            if chunk > left:
                chunk = self.strategy.prefill_chunk_size(request, left)
        except Exception as error:
            raise TurnError(request) from error
        return ScheduledRequest(request, cached, cached + chunk, None) if chunk else None

    def _hold_pages(self, request: Request, tokens: int, batch: dict[int, ScheduledRequest]) -> bool:
        """Pages for the first `tokens` positions, if need be another's; False if `request` itself has to give way."""
        missing = self.cache.units_for(tokens) - len(request.page_groups)
        while missing > self.cache.available:
            last = self._last()
            batch.pop(last.arrival_index, None)
            self._preempt(last)
            if last is request:
                return False
        self._extend(request, self.cache.take(missing))
        return True

    def _last(self) -> Request:
        """Who gives way: the newest of whoever runs most. Never the oldest of all, unless it is alone."""
        return max(self.running, key=lambda r: (r.answered, *self.waiting.running(r), r.arrival_index))

    def _preempt(self, request: Request) -> None:
        if request.answered:
            self.release(request)  # it was answered; only sharing its last blocks is lost
            return
        self._let_go(request)
        request.reset_kv()
        request.status = Status.WAITING
        self.waiting.give_back(request)
        self.preemptions += 1

    def _admit(self) -> None:
        while (request := self.adapters.first(self.waiting)) is not None:
            if len(self.running) >= self.max_requests:
                if not self._make_room(request):
                    return
                continue
            if self._refused_at == (request.arrival_index, self.cache.available):
                return  # nothing has changed since
            try:
                self.adapters.bring(request.adapter)
            except Exception as error:
                raise TurnError(request) from error
            units = self._match(request)
            # What it really needs: all that is to be prefilled, and the blocks its first step feeds.
            need = self.cache.units_for(self.strategy.required_tokens(request))
            try:
                fresh = self.cache.admit(units, need - len(units))
            except OutOfPages:
                if self._make_room(request):
                    continue
                self._refused_at = (request.arrival_index, self.cache.available)
                return
            self._refused_at = None
            self.waiting.admit(request)
            request.status = Status.RUNNING
            request.lora_slot = self.adapters.hold(request.adapter)
            request.req_slot = self.table.take_row()
            request.num_cached_page_groups = len(units)
            request.num_computed_tokens = len(units) * self.cache.unit
            self._extend(request, units + fresh)
            if request.cached_tokens is None:
                request.cached_tokens = request.num_computed_tokens
                self._found += request.num_computed_tokens
                request.queue_seconds = time.perf_counter() - request.arrival_time
            at = len(self.running)
            while at and self.running[at - 1].arrival_index > request.arrival_index:
                at -= 1
            self.running.insert(at, request)

    def _make_room(self, request: Request) -> bool:
        """Let one of those who run several give way to a waiting request whose group has nothing running."""
        owner, group = self.waiting.running(request)
        if group or owner == len(self.running) == self.waiting.parties:
            return False  # it has something running, or all that runs is its owner's, one request a group
        last = self._last()
        if last.answered or not self.waiting.may_displace(request, last):
            return False  # who is answered is gone after this step
        self._preempt(last)
        return True

    def _match(self, request: Request) -> list[int]:
        """Units of other requests that hold what this one would prefill."""
        if not self.cache.prefix_caching:
            return []
        self.cache.extend_chain(request.block_hashes, request.cache_salt, request.tokens, request.num_final_tokens)
        own = self.strategy.uncacheable_tail(request)
        return self.cache.match(request.block_hashes[: max(request.num_final_tokens - own, 0) // self.cache.unit])

    def _extend(self, request: Request, units: list[int]) -> None:
        self.table.append(request.req_slot, len(request.page_groups), units)
        request.page_groups.extend(units)
        request.num_allocated_tokens = len(request.page_groups) * self.cache.unit

    def publish(self, request: Request) -> None:
        """Let later requests share what has become final: whole units below ``request.num_computed_tokens``."""
        if not self.cache.prefix_caching:
            return
        final = request.num_computed_tokens // self.cache.unit
        if final > request.num_cached_page_groups:
            self.cache.extend_chain(
                request.block_hashes, request.cache_salt, request.tokens, request.num_computed_tokens
            )
            for n in range(request.num_cached_page_groups, final):
                self.cache.publish(request.page_groups[n], request.block_hashes[n])
            request.num_cached_page_groups = final

    def release(self, request: Request) -> None:
        """Give back all that the request holds, wherever it is."""
        if request.status is Status.RUNNING:
            self._let_go(request)
            self.waiting.end(request)
        elif request.status is Status.WAITING:
            self.waiting.remove(request)
        request.status = Status.FINISHED

    def _let_go(self, request: Request) -> None:
        self.running.remove(request)
        self.publish(request)  # what the last step made final
        self.cache.release(request.page_groups)
        self.adapters.let_go(request.adapter)
        request.lora_slot = -1
        request.last_scheduled = None
        request.output_deferred = False
        self.table.give_back(request.req_slot)
        request.req_slot = -1
        self._refused_at = None
