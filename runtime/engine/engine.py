"""The loop: plan a step, run it, write its results into the requests, say what is new."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from runtime.algorithms.base import algorithms_with_edit_tokens
from runtime.engine.async_scheduling import Ahead
from runtime.engine.engine_outputs import news
from runtime.engine.grammar_queue import ConstraintError, Entrance, reason_of
from runtime.engine.kv_cache_manager import KVCacheManager
from runtime.engine.lora_manager import Adapters
from runtime.engine.output_processor import Writing
from runtime.engine.page_table import PageTable
from runtime.engine.request import Request, Status
from runtime.engine.request_defaults import orders_of
from runtime.engine.scheduler import Scheduler, TurnError
from runtime.engine.step_plan import NO_RESULTS
from runtime.engine.step_stats import Observed
from runtime.errors import ReplicaLost
from runtime.request.engine_messages import EagerReason, EngineInfo, EngineOutput, EngineStats, RequestSpec
from runtime.strategies.base import Strategy, max_request_len
from runtime.structured_output.grammar_cache import GrammarCache, GrammarError
from runtime.worker.input_builder import Planner
from runtime.worker.model_runner import Runner

log = logging.getLogger(__name__)


class Engine:
    """Serves many requests at once, a step at a time. Not thread-safe: one loop owns it.

    Built by ``runtime.engine.setup.load_engine`` from a configuration, or directly around any runner. `grammars`: that
    answers can keep to, where `info` says that they can.
    """

    def __init__(
        self, *, info: EngineInfo, runner: Runner, strategy: Strategy, adapters: Adapters | None = None,
        grammars: GrammarCache | None = None,
    ) -> None:  # fmt: skip
        self.info = info
        self.runner = runner
        self.strategy = strategy
        self.rules = algorithms_with_edit_tokens(orders_of(info))
        self.cache = KVCacheManager(
            num_pages=info.num_pages,
            page_size=info.page_size,
            block_size=info.block_layout.alignment,
            prefix_caching=info.prefix_caching,
        )
        self.table = PageTable(
            rows=info.max_num_reqs,
            units=self.cache.units_for(max_request_len(strategy, info.max_model_len)),
            pages_per_unit=self.cache.pages_per_unit,
            page_size=info.page_size,
        )
        self.adapters = adapters or Adapters()
        self.planner = Planner(self.table, strategy, self.adapters)
        self.scheduler = Scheduler(
            cache=self.cache,
            table=self.table,
            strategy=strategy,
            budget=info.max_num_batched_tokens,
            max_requests=info.max_num_reqs,
            adapters=self.adapters,
        )
        self.grammars = grammars
        self.entrance = Entrance(self.scheduler, grammars)
        self._ahead = Ahead(self.entrance, self.scheduler)
        self._requests: dict[str, Request] = {}  # those not answered yet
        self._failed: list[EngineOutput] = []  # what is told of requests that ended with an error
        self._tell: Callable[[], None] | None = None  # see `set_overlap_callback`
        self._arrivals = 0
        self._ended = 0.0  # the last step, time.perf_counter
        self._closed = False
        self._stats = EngineStats(pages_total=info.num_pages)
        self._observed = Observed()
        self._writing = Writing(
            strategy, self.scheduler, self._stats, self._observed, self._requests, self._strategy_failed
        )

    def add(self, spec: RequestSpec) -> None:
        """Queue a request; ValueError if its id is in use or its adapter gone, RuntimeError once closed. Everything
        else was checked by ``runtime.request.resolve``."""
        if self._closed:
            raise RuntimeError("the engine is closed")
        if spec.id in self._requests:
            raise ValueError(f"request id {spec.id!r} is in use")
        if spec.adapter and not self.adapters.offers(spec.adapter):
            raise ValueError(f"there is no adapter {spec.adapter!r}")
        request = Request(
            spec,
            size=self.strategy.total_len(len(spec.prompt), spec.max_tokens),
            num_final_tokens=self.strategy.initial_final_len(len(spec.prompt)),
            mask_id=self.info.mask_token_id or 0,  # without a mask a strategy fills the positions itself
            arrival_index=self._arrivals,
            get_algorithm=self.rules,
            eos_ids=self.info.eos_token_ids,
        )
        request.cache_salt = self.adapters.salt(spec.adapter, spec.cache_salt)
        self._arrivals += 1
        self.entrance.enter(request)
        self._requests[spec.id] = request
        self._stats.prompt_tokens += request.prompt_len

    def abort(self, request_id: str) -> None:
        """Forget a request and free its pages, whatever it is doing. Unknown ids are ignored: it may have ended."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.entrance.leave(request)
        self._writing.forget(request_id)  # one that has ended too: its id may be another's from now on
        self._failed = [output for output in self._failed if output.id != request_id]

    def unload_adapter(self, name: str) -> bool:
        """No new request may name it; once the last one that does has ended, it is forgotten: True then."""
        self.adapters.leaving.add(name)
        held = self.adapters.held(name) or any(request.adapter == name for request in self._requests.values())
        if not held:
            self.adapters.unload(name)
        return not held

    def has_work(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting or self.entrance.waiting)

    def settle(self) -> None:
        """Compute what answered requests leave to others, and hold their adapters for, unless answers are under way."""
        while not self._requests and self.has_work():
            self.advance()

    def step(self) -> list[EngineOutput]:
        """`advance`, and the news of it."""
        self.advance()
        return self.news()

    def advance(self) -> None:
        """One forward for whoever has a turn, if anybody has one.

        An exception while running it ends the requests of this step with ``finish_reason="error"``, and no others; one
        of the strategy about a request, only that request.

        Raises:
            torch.AcceleratorError: the device failed; nothing can run in this process any more.
            ReplicaLost: nor where another process of the replica failed.
        """
        if not self._advance():
            self._tell_now()

    def _advance(self) -> bool:
        """Whether there was a step, and it went well."""
        if self.entrance.waiting:
            wrong = self.entrance.let_in()
            for request, error in wrong:
                self._fail([request], error)
            if wrong:
                return False
        entered, begun = time.perf_counter(), self._ahead.take()
        try:
            batch = begun or self.scheduler.schedule()
        except TurnError as error:
            self._strategy_failed(error.request, error.__cause__ or error)
            return False
        if not batch:
            return False
        started = time.perf_counter()
        try:
            make = self.planner.again if begun else self.planner.plan
            plan = make(batch, self._writing.finish, self._ahead.after(batch))
            results = self.runner.run(plan)
            self._tell_now()  # of a step without results: it has no time for it
            self._writing.write(batch, results or NO_RESULTS)
        except (torch.AcceleratorError, ReplicaLost):
            raise
        except Exception as error:
            log.exception("a step failed; its %d requests end with an error", len(batch))
            self._writing.finish()
            self._fail([scheduled.request for scheduled in batch], error)
            return False
        self._stats.steps += 1
        ended = time.perf_counter()
        self.scheduler.pace.learn(len(plan.tokens), ended - started)
        if begun:  # while the step before it was written
            entered = started = self._ended
        self._observed.step(
            len(batch), ended - started, whole=ended - entered, device=self.runner.stats.last_device_seconds
        )
        self._ended = ended
        return True

    def _tell_now(self) -> None:
        """Have told what has not been, where that is done while the device is busy."""
        if self._tell is not None and (self._writing.untold or self._failed):
            self._tell()

    def news(self) -> list[EngineOutput]:
        """What steps brought since the last call, as each request asked to be told. It is best asked for while the
        device is at the next step, which need not wait for it then."""
        outputs = []
        for request in self._writing.hand_over():
            if (
                request.reason is not None
                or request.stream_steps
                or request.num_stable_tokens > request.num_sent_tokens
            ):
                outputs.append(news(request))
                self._stats.generated_tokens += len(outputs[-1].new_tokens)
        outputs += self._failed
        self._failed = []
        return outputs

    def _strategy_failed(self, request: Request, error: BaseException) -> None:
        """Ends this request alone; what the others brought to the step stands."""
        log.error("the strategy failed on a request, which ends with an error", exc_info=error)
        self._fail([request], error)

    def _fail(self, requests: list[Request], error: BaseException) -> None:
        for request in requests:
            if request.status is not Status.FINISHED:
                self.entrance.leave(request)
            if self._requests.get(request.spec.id) is request:  # an answered one's id may be another's by now
                del self._requests[request.spec.id]
                refused = isinstance(error, ConstraintError | GrammarError)
                failed = EngineOutput(
                    id=request.spec.id,
                    nfe=request.nfe,
                    finish_reason="error",
                    error=reason_of(error) if refused else f"{type(error).__name__}: {error}",
                    refused=refused,
                )
                if refused and request.constraint is not None and request.constraint.overrun:
                    assert self.grammars is not None
                    self.grammars.add_overrun(request.spec.grammar, request.constraint.overrun)
                self._failed.append(failed)

    def set_overlap_callback(self, work: Callable[[], None], heard: Callable[[], bool] = bool) -> bool:
        """See Runner. `work` does not fail, and asks nothing of the engine but its news. `heard`: whether somebody
        waits to tell the engine something: no step begins early then."""
        self._ahead.heard = heard
        if not self.runner.set_overlap_callback(work):
            return False
        self._tell = work
        return True

    def close(self) -> None:
        """Drop all requests, the model and its cache. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        self.entrance.close()
        self._ahead.take()
        if self.grammars is not None:
            self.grammars.close()
        for request in (*self.scheduler.running, *self.scheduler.waiting):
            self.scheduler.release(request)
        self._requests.clear()
        del self.runner

    def stats(self) -> EngineStats:
        """Totals since start, gauges now, and the observations since the last call (the latest, if very many)."""
        self._writing.finish()
        stats = self._stats
        stats.waiting = len(self.scheduler.waiting) + self.entrance.waiting
        stats.adapters_waiting = self.adapters.wanted(self.scheduler.waiting)
        stats.adapter_evictions = self.adapters.evictions
        stats.pages_used = self.cache.pages_used
        stats.pages_cached = self.cache.pages_cached
        stats.preemptions = self.scheduler.preemptions
        stats.prefix_hit_tokens = self.scheduler.prefix_hit_tokens
        runner_stats = self.runner.stats
        stats.steps_replayed, stats.graph_bytes = runner_stats.replayed, runner_stats.graph_bytes
        for reason in EagerReason:
            setattr(stats, reason.stats_field, runner_stats.eager[reason])
        report = EngineStats(**{name: getattr(stats, name) for name in EngineStats.__struct_fields__})
        self._observed.report(report)
        return report
