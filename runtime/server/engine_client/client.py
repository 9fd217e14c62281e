"""Interface between routes and engines: readiness, limits, routing to replicas, and queues of outputs.

One HTTP request may consist of several engine requests (``n`` completions, a list of prompts). They have one queue of
outputs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo, EngineOutput, EngineStats, RequestSpec
from runtime.server.engine_client.adapter_registry import AdapterRegistry, LocalAdapterRegistry, no_longer_served
from runtime.server.engine_client.ipc_protocol import Abort, Add
from runtime.server.engine_client.profiler import LocalProfiler, Profiler
from runtime.server.metrics import Metrics, RequestMetrics

if TYPE_CHECKING:
    from runtime.server.engine_client.supervisor import Supervisor

CHUNK = 32  # tokens of a prompt that are compared at a time
TYPICAL_TOKENS = 128.0  # tokens of an answer, before any has been seen
WEIGHT = 0.05  # of the newest answer in what is typical
# Fraction of a cached prefix that counts: it may have been evicted, and one replica should not get all requests.
HIT_DISCOUNT = 0.9


class Unavailable(RequestError):
    """No engine process can serve the request now. The client may retry."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=503, code="no_backend")


OutputQueue = asyncio.Queue[tuple[int, EngineOutput] | RequestError]  # of one HTTP request, in the order of arrival


def fail_queues(queues: Iterable[OutputQueue], error: RequestError) -> int:
    """Puts `error` into each queue once. Returns the number of queues."""
    each = set(queues)
    for queue in each:
        queue.put_nowait(error)
    return len(each)


@dataclass(slots=True, eq=False)
class RequestState:
    """One engine request at a backend."""

    id: str
    api_key_id: str
    adapter: str
    index: int  # which choice of the HTTP request
    queue: OutputQueue
    replica: int
    work: int  # estimated tokens left
    tokens: int = 0  # of its answer so far


class Router:
    """The work of each replica, and the prefixes that it was sent last, as far as its cache has room for them."""

    def __init__(self, replicas: int, first: int = 0) -> None:
        """`first`: the replica that is chosen if all are equal; it differs between frontend processes."""
        self.first = first
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
        count = len(self.work)
        best = min(ready, key=lambda r: (self.work[r] + costs[r], load[r], (r - self.first) % count))
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


class Backends(Protocol):
    """Sends messages to the engine processes. `ready`: indices of the replicas that serve."""

    ready: list[int]

    def send(self, index: int, message: Any) -> None: ...


Defer = Callable[[Callable[[], None]], object]


class EngineClient(ABC):
    """Client of the engine processes, with the live requests of this process.

    Attributes:
        request_metrics: what this process observes of its requests.
        info: of the first engine that loaded; replicas are equal.
        backends: the engine processes.
        complete: every process that serves HTTP can serve requests, or could once.
    """

    def __init__(
        self,
        config: ServerConfig,
        request_metrics: RequestMetrics,
        backends: Backends,
        adapters: AdapterRegistry,
        profiler: Profiler,
        defer: Defer | None = None,
        index: int = 0,
    ) -> None:
        """Creates a client without requests.

        Args:
            config: of the server.
            request_metrics: of this process.
            backends: the engine processes.
            adapters: the adapters that requests may name.
            profiler: starts and stops profiles.
            defer: Runs a call in the next iteration of the event loop.
            index: of this frontend process.
        """
        self.config = config
        self.request_metrics = request_metrics
        self.adapters = adapters
        self.profiler = profiler
        self.info: EngineInfo | None = None
        self.complete = True
        self.backends = backends
        self.defer = defer or (lambda work: asyncio.get_running_loop().call_soon(work))
        self.requests: dict[str, RequestState] = {}
        self.pending: dict[int, list[RequestSpec]] = {}  # submitted in this iteration of the loop, by replica
        self.router = Router(config.data_parallel_size, index % config.data_parallel_size)
        self.live_by_replica = [0] * config.data_parallel_size  # live requests of each replica
        self.live_by_key: Counter[str] = Counter()  # live requests of each owner (key)
        self.live_by_adapter: Counter[str] = Counter()  # live requests of each adapter

    # -- what is known of all requests

    @property
    def ready(self) -> list[int]:
        """Indices of the replicas that serve."""
        return self.backends.ready

    @abstractmethod
    def progress(self) -> tuple[str, int, int]:
        """Phase, bytes done and bytes in all of the replica that is furthest with its loading."""

    @abstractmethod
    async def metrics_text(self) -> bytes:
        """What /metrics shows."""

    # -- requests

    def submit(self, specs: list[RequestSpec]) -> OutputQueue:
        """Submits requests; outputs of ``specs[i]`` arrive in the queue as ``(i, output)``.

        Raises RequestError: 404 for an unloaded adapter, 429 when the queue is full, 503 when no backend serves.
        """
        queue: OutputQueue = asyncio.Queue()
        if not specs:
            return queue
        adapter = specs[0].adapter
        if adapter and not self.adapters.is_available(adapter):  # unloaded while the request was prepared
            raise no_longer_served(adapter)
        self.check_capacity(len(specs), specs[0].tenant)
        ready, info = self.ready, self.require()
        by_replica: dict[int, list[RequestSpec]] = {}
        for index, spec in enumerate(specs):
            replica, work = self.router.assign(spec, ready, self.live_by_replica, info)
            state = RequestState(spec.id, spec.tenant, spec.adapter, index, queue, replica, work)
            self.requests[spec.id] = state
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
        return queue

    def flush(self) -> None:
        """Sends the requests of one iteration of the event loop to each backend as one message."""
        due, self.pending = self.pending, {}
        for replica, specs in due.items():
            self.backends.send(replica, Add.of(specs))

    def abort(self, ids: list[str]) -> None:
        """Aborts requests and frees their pages. Ids of finished requests are ignored."""
        self.flush()  # requests must not arrive after their abort
        by_replica: dict[int, list[str]] = {}
        for request_id in ids:
            live = self._remove(request_id)
            if live is not None:
                by_replica.setdefault(live.replica, []).append(request_id)
        for replica, group in by_replica.items():
            self.backends.send(replica, Abort(group))

    def fail_all(self, error: RequestError) -> int:
        """Ends all live requests of this process with `error`. Returns their number."""
        queues = [live.queue for live in self.requests.values()]
        self.abort(list(self.requests))
        return fail_queues(queues, error)

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

    # -- events of the backends

    def on_outputs(self, replica: int, outputs: list[EngineOutput]) -> None:
        requests = self.requests
        for output in outputs:
            live = requests.get(output.id)
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
            live.queue.put_nowait((live.index, output))

    def fail_replica(self, replica: int, reason: str) -> None:
        """Ends the requests of a backend that exited."""
        self.router.on_lost(replica)
        self.pending.pop(replica, None)
        lost = [live for live in self.requests.values() if live.replica == replica]
        for live in lost:
            self._remove(live.id)
        gone = Unavailable(f"the engine process of this request exited ({reason}); retry")
        fail_queues((live.queue for live in lost), gone)

    # -- limits

    @property
    def available(self) -> bool:
        """Whether a backend serves."""
        return bool(self.ready)

    def require(self) -> EngineInfo:
        """The engine's facts. Raises Unavailable when no backend serves."""
        if self.info is None:
            raise Unavailable("the model is being loaded; GET /startup shows the progress")
        if not self.available:
            raise Unavailable("no engine process is ready; the server restarts failed ones, so retry later")
        return self.info

    def check_count(self, prompts: int, n: int) -> None:
        """Raises RequestError 400 if one request may never have so many answers; Unavailable."""
        count, limit = prompts * max(n, 1), self.max_choices()
        if count > limit:
            param = "n" if prompts == 1 or n > limit else "prompt"
            what = f"n={n}" if prompts == 1 else f"{prompts} prompts" + (f" with n={n}" if n > 1 else "")
            raise RequestError(
                f"{param}: {what}: {count} completions exceed the limit of {limit} per request "
                "((max_num_reqs + max_queue) / 2); send several requests",
                param=param,
            )

    def max_choices(self) -> int:
        """Returns how many completions one request may have: half of all running and queued requests."""
        return max(1, self._capacity(self.config.data_parallel_size) // 2)

    def _capacity(self, replicas: int) -> int:
        """Running and queued requests that this process may have; frontend processes divide those of the server."""
        slots = self.require().max_num_reqs * replicas + self.config.max_queue
        return -(-slots // self.config.frontend_processes)

    def check_capacity(self, count: int, owner: str = "") -> None:
        """Raises RequestError 429 unless `count` more requests fit now, and Unavailable.

        Apart from a single request, a key may hold at most as many slots as remain free for others. Without keys this
        holds for each HTTP request.

        Args:
            count: engine requests to add.
            owner: id of the API key, "" on a server without keys.
        """
        queue, live = self.config.max_queue, len(self.requests)
        left = self._capacity(len(self.ready)) - live
        held = self.live_by_key[owner] if owner else 0
        if count > left or (held + count > 1 and held + count > left - count):
            whose = f" ({held} of this API key)" if owner else ""
            processes = self.config.frontend_processes
            divided = f", divided by --frontend-processes {processes}" if processes > 1 else ""
            raise RequestError(
                f"queue full: {live} active{whose}, {max(left, 0)} slots free, this request needs {count} "
                f"(--max-queue {queue}{divided}, at most half of the slots per key or request); retry later",
                status=429,
                code="queue_full",
            )


class LocalEngineClient(EngineClient):
    """Client of the engine processes that this process supervises."""

    adapters: LocalAdapterRegistry
    profiler: LocalProfiler

    def __init__(
        self,
        config: ServerConfig,
        request_metrics: RequestMetrics,
        metrics: Metrics,
        supervisor: Supervisor,
        defer: Defer | None = None,
    ) -> None:
        """Creates the client, which becomes the observer of `supervisor`. `metrics`: of the server."""
        adapters, profiler = LocalAdapterRegistry(config, supervisor), LocalProfiler(config, supervisor)
        super().__init__(config, request_metrics, supervisor, adapters, profiler, defer)
        self.metrics = metrics
        self.supervisor = supervisor
        supervisor.observer, supervisor.engine_config = self, adapters.engine_config
        self.on_change: Callable[[], None] = lambda: None  # called when an engine becomes ready or exits
        engine_metrics = metrics.engine_metrics
        engine_metrics.live_by_replica = self.live_by_replica
        engine_metrics.work_by_replica = self.router.work
        engine_metrics.live_by_adapter, engine_metrics.adapters = self.live_by_adapter, self.adapters.entries

    def progress(self) -> tuple[str, int, int]:
        loading = max((r.loading for r in self.supervisor.replicas), key=lambda phase: phase.done_bytes)
        return loading.phase, loading.done_bytes, loading.total_bytes

    async def metrics_text(self) -> bytes:
        return self.metrics.text()

    # -- calls of the supervisor

    def on_ready(self, replica: int, info: EngineInfo, load_seconds: float) -> None:
        self.info = info
        self.metrics.on_loaded(info, load_seconds)
        self.adapters.on_ready(replica)
        self.on_change()

    def on_stats(self, replica: int, stats: EngineStats) -> None:
        self.metrics.record_stats(replica, stats)

    def on_down(self, replica: int, reason: str) -> None:
        self.metrics.retire_engine(replica)
        self.profiler.on_down(replica)
        self.fail_replica(replica, reason)
        self.on_change()
