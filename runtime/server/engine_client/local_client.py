"""Client of the engine processes of this server: admission, routing to replicas, and delivery of outputs."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo, EngineOutput, EngineStats, RequestSpec
from runtime.server.engine_client.adapter_registry import LocalAdapterRegistry
from runtime.server.engine_client.client import EngineClient, OutputQueue, OutputSink, Unavailable, fail_queues
from runtime.server.engine_client.ipc_protocol import Abort, AdapterResult, Add, ProfileResult
from runtime.server.engine_client.profiler import LocalProfiler
from runtime.server.metrics import Metrics, RequestMetrics

if TYPE_CHECKING:
    from runtime.request.engine_messages import EngineInfo, RequestSpec
    from runtime.server.engine_client.supervisor import Supervisor


Defer = Callable[[Callable[[], None]], object]


class RequestState:
    """One engine request at a backend."""

    __slots__ = ("adapter", "api_key_id", "id", "index", "queue", "replica", "tokens", "work")

    def __init__(self, spec: RequestSpec, index: int, inbox: OutputSink, replica: int, work: int) -> None:
        self.id = spec.id
        self.api_key_id = spec.tenant
        self.adapter = spec.adapter
        self.index = index  # which choice of the HTTP request
        self.queue = inbox
        self.replica = replica
        self.work = work  # estimated tokens left
        self.tokens = 0  # of its answer so far


class LocalEngineClient(EngineClient):
    """Live requests of this server and the state of its engines.

    `supervisor` is set once it exists. `defer`: runs a call in the next iteration of the event loop.
    """

    adapters: LocalAdapterRegistry
    profiler: LocalProfiler

    def __init__(
        self, config: ServerConfig, request_metrics: RequestMetrics, metrics: Metrics, defer: Defer | None = None
    ) -> None:
        super().__init__(config, request_metrics, LocalAdapterRegistry(config), LocalProfiler(config))
        self.metrics = metrics
        self.supervisor: Supervisor | None = None
        self.on_change: Callable[[], None] = lambda: None  # called when an engine becomes ready or exits
        self.requests: dict[str, RequestState] = {}
        self.defer = defer or (lambda work: asyncio.get_running_loop().call_soon(work))
        self.pending: dict[int, list[RequestSpec]] = {}  # submitted in this turn of the loop, by the replica
        self.live_by_replica = [0] * config.data_parallel_size  # live requests of each replica
        self.router = Router(config.data_parallel_size)
        self.live_by_key: Counter[str] = Counter()  # live requests of each owner (key)
        self.live_by_adapter: Counter[str] = Counter()  # live requests of each adapter
        metrics.engine_metrics.live_by_replica = self.live_by_replica
        metrics.engine_metrics.work_by_replica = self.router.work
        metrics.engine_metrics.live_by_adapter, metrics.engine_metrics.adapters = (
            self.live_by_adapter,
            self.adapters.entries,
        )

    @property
    def ready(self) -> list[int]:
        return [] if self.supervisor is None else self.supervisor.ready

    @property
    def complete(self) -> bool:
        return True

    @property
    def live(self) -> int:
        return len(self.requests)

    def live_of_key(self, owner: str) -> int:
        return self.live_by_key[owner]

    def progress(self) -> tuple[str, int, int]:
        assert self.supervisor is not None
        loading = max((r.loading for r in self.supervisor.replicas), key=lambda phase: phase.done_bytes)
        return loading.phase, loading.done_bytes, loading.total_bytes

    async def metrics_text(self) -> bytes:
        return self.metrics.text()

    # -- requests

    def submit(self, specs: list[RequestSpec]) -> OutputQueue:
        inbox = OutputQueue()
        self.submit_to(specs, inbox)
        return inbox

    def submit_to(self, specs: list[RequestSpec], inbox: OutputSink) -> None:
        """Submits requests with an existing queue."""
        if not specs:
            return
        self.check_capacity(len(specs), specs[0].tenant)
        ready, info = self.ready, self.require()
        by_replica: dict[int, list[RequestSpec]] = {}
        for index, spec in enumerate(specs):
            replica, work = self.router.assign(spec, ready, self.live_by_replica, info)
            self.requests[spec.id] = RequestState(spec, index, inbox, replica, work)
            self.live_by_replica[replica] += 1
            self.router.work[replica] += work
            self.live_by_key[spec.tenant] += 1
            self.live_by_adapter[spec.adapter] += 1
            by_replica.setdefault(replica, []).append(spec)
        first = not self.pending
        for replica, group in by_replica.items():
            self.pending.setdefault(replica, []).extend(group)
        if first:
            self.defer(self.flush)

    def flush(self) -> None:
        """Sends the requests of one iteration of the event loop to each backend as one message."""
        due, self.pending = self.pending, {}
        for replica, specs in due.items():
            assert self.supervisor is not None
            self.supervisor.send(replica, Add.of(specs))

    def abort(self, ids: list[str]) -> None:
        self.flush()  # requests must not arrive after their abort
        by_replica: dict[int, list[str]] = {}
        for request_id in ids:
            live = self._remove(request_id)
            if live is not None:
                by_replica.setdefault(live.replica, []).append(request_id)
        for replica, group in by_replica.items():
            assert self.supervisor is not None
            self.supervisor.send(replica, Abort(group))

    def fail_all(self, error: RequestError) -> int:
        inboxes = [live.queue for live in self.requests.values()]
        self.abort(list(self.requests))
        return fail_queues(inboxes, error)

    def _remove(self, request_id: str) -> RequestState | None:
        live = self.requests.pop(request_id, None)
        if live is not None:
            self.live_by_replica[live.replica] -= 1
            self.router.work[live.replica] -= live.work
            self.live_by_adapter[live.adapter] -= 1
            self.live_by_key[live.api_key_id] -= 1
            if not self.live_by_key[live.api_key_id]:
                del self.live_by_key[live.api_key_id]
        return live

    # -- calls of the supervisor

    def on_ready(self, replica: int, info: EngineInfo, load_seconds: float) -> None:
        self.info = info
        self.metrics.on_loaded(info, load_seconds)
        self.adapters.on_ready(replica)
        self.on_change()

    def on_result(self, replica: int, result: AdapterResult | ProfileResult) -> None:
        if isinstance(result, ProfileResult):
            self.profiler.on_result(replica, result)
        else:
            self.adapters.on_result(replica, result)

    def on_outputs(self, replica: int, outputs: list[EngineOutput]) -> None:
        table = self.requests
        for output in outputs:
            live = table.get(output.id)
            if live is None:  # aborted a moment ago
                continue
            done = len(output.new_tokens)
            live.tokens += done
            if output.finish_reason is not None:
                self._remove(output.id)
                self.router.on_answer(live.tokens)
            elif done:
                done = min(done, live.work - 1)
                live.work -= done
                self.router.work[live.replica] -= done
            live.queue.put((live.index, output))

    def on_stats(self, replica: int, stats: EngineStats) -> None:
        self.metrics.record_stats(replica, stats)

    def on_down(self, replica: int, reason: str) -> None:
        self.metrics.retire_engine(replica)
        self.router.on_lost(replica)
        self.pending.pop(replica, None)
        self.adapters.on_down(replica)
        self.profiler.on_down(replica)
        lost = [live for live in self.requests.values() if live.replica == replica]
        for live in lost:
            self._remove(live.id)
        gone = Unavailable(f"the engine process of this request exited ({reason}); retry")
        fail_queues((live.queue for live in lost), gone)
        self.on_change()


CHUNK = 32  # tokens of a prompt that are compared at a time
TYPICAL_TOKENS = 128.0  # tokens of an answer, before any has been seen
WEIGHT = 0.05  # of the newest answer in what is typical
HIT_DISCOUNT = (
    0.9  # of a prefix counts where it is held: it may have made way, and one replica should not have everybody
)


class Router:
    """The work of each replica, and the prefixes that it was sent last, as far as its cache has room for them."""

    def __init__(self, replicas: int) -> None:
        self.work = [0] * replicas
        self.typical = TYPICAL_TOKENS
        self._cached_prefixes: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]
        self._last: tuple[Sequence[int], str, list[int]] | None = None  # choices of a request have one prompt

    def assign(self, spec: RequestSpec, ready: Sequence[int], load: Sequence[int], info: EngineInfo) -> tuple[int, int]:
        """The replica of those that are `ready`, and the work that it is there. `load`: requests of each."""
        answer = round(min(spec.max_tokens, self.typical))
        total = len(spec.prompt) + answer
        if len(ready) == 1 and len(self.work) == 1:
            return ready[0], total
        chain = self._chain(spec) if info.prefix_caching else []
        costs = {
            replica: max(total - round(HIT_DISCOUNT * self._cached_tokens(replica, chain)), 1) for replica in ready
        }
        best = min(ready, key=lambda replica: (self.work[replica] + costs[replica], load[replica], replica))
        cached, capacity = self._cached_prefixes[best], max(info.num_pages * info.page_size // CHUNK, 1)
        for prefix in chain:
            cached[prefix] = None
            cached.move_to_end(prefix)
        while len(cached) > capacity:
            cached.popitem(last=False)
        return best, costs[best]

    def on_answer(self, tokens: int) -> None:
        """An answer was so long."""
        self.typical += WEIGHT * (tokens - self.typical)

    def on_lost(self, replica: int) -> None:
        """Forgets the prefixes of a replica that exited."""
        self._cached_prefixes[replica].clear()

    def _chain(self, spec: RequestSpec) -> list[int]:
        """Of each whole chunk of the prompt, a number for it and all before it."""
        if self._last is not None and self._last[0] is spec.prompt and self._last[1] == spec.cache_salt:
            return self._last[2]
        prompt, chain, number = spec.prompt, [], hash(spec.cache_salt)
        for first in range(0, len(prompt) - CHUNK + 1, CHUNK):
            number = hash((number, *prompt[first : first + CHUNK]))
            chain.append(number)
        self._last = prompt, spec.cache_salt, chain
        return chain

    def _cached_tokens(self, replica: int, chain: Sequence[int]) -> int:
        """Tokens of the prompt that the replica should find in its cache."""
        cached, found = self._cached_prefixes[replica], 0
        for prefix in chain:
            if prefix not in cached:
                break
            found += CHUNK
        return found
