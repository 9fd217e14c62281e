"""Client of the engine processes: limits on new requests, routing to replicas, and the queue of outputs per request.

An HTTP request may consist of several engine requests (``n`` completions, a list of prompts), which share one queue of
outputs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo, EngineOutput, EngineStats, RequestSpec
from runtime.server.engine_client.adapter_registry import AdapterRegistry, LocalAdapterRegistry, no_longer_served
from runtime.server.engine_client.ipc_protocol import Abort, Add
from runtime.server.engine_client.profiler import Profiler
from runtime.server.metrics import Metrics, RequestMetrics

if TYPE_CHECKING:
    from runtime.server.engine_client.supervisor import Supervisor

PREFIX_CHUNK = 32  # tokens per hash of a prompt's prefix
INITIAL_OUTPUT_LEN = 128.0  # tokens; assumed length of an output before the first one has finished
OUTPUT_LEN_WEIGHT = 0.05  # weight of the newest output in the moving average of output lengths
# Factor of the tokens of a cached prefix. It is below 1 because the prefix may have been evicted, and so that not all
# requests are sent to one replica.
HIT_DISCOUNT = 0.9


class Unavailable(RequestError):
    """No engine process can serve the request now. The client may retry."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=503, code="no_backend")


# Outputs of one HTTP request in the order of arrival, each with the index of its choice.
OutputQueue = asyncio.Queue[tuple[int, EngineOutput] | RequestError]


def fail_queues(queues: Iterable[OutputQueue], error: RequestError) -> int:
    """Puts `error` into each queue once. Returns the number of queues."""
    distinct = set(queues)
    for queue in distinct:
        queue.put_nowait(error)
    return len(distinct)


@dataclass(slots=True, eq=False)
class RequestState:
    """One engine request at a backend.

    Attributes:
        choice_index: index of the choice in the HTTP request.
        queue: queue of the HTTP request.
        replica: index of the replica.
        work: estimated number of tokens that the replica still has to compute.
        tokens: number of output tokens so far.
        progress: last report on an answer that is sent at its end.
    """

    spec: RequestSpec
    choice_index: int
    queue: OutputQueue
    replica: int
    work: int
    tokens: int = 0
    progress: EngineOutput | None = None


class Router:
    """Selects the replica of each request, by the work of the replicas and their cached prefixes.

    The router does not know the prefix caches. It assumes that a cache holds the prefixes that were sent to its replica
    last, up to the capacity of the KV pool.

    Attributes:
        work: estimated tokens that each replica still has to compute.
        mean_output_len: moving average of the tokens per output.
    """

    def __init__(self, replicas: int, preferred: int = 0) -> None:
        """Creates a router without work.

        Args:
            replicas: number of replicas.
            preferred: replica to select if all are equal. It differs between frontend processes.
        """
        self.preferred = preferred
        self.work = [0] * replicas
        self.mean_output_len = INITIAL_OUTPUT_LEN
        self._cached_prefixes: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]
        # prompt, salt and hashes of the last call: all choices of a request have the same prompt
        self._last: tuple[Sequence[int], str, list[int]] | None = None

    def assign(self, spec: RequestSpec, ready: Sequence[int], load: Sequence[int], info: EngineInfo) -> tuple[int, int]:
        """Selects the replica of a request.

        Args:
            ready: indices of the ready replicas.
            load: number of live requests of each replica.
            info: properties of the engines.

        Returns:
            Index of the replica, and the estimated work of the request there in tokens.
        """
        total = len(spec.prompt) + round(min(spec.max_tokens, self.mean_output_len))
        if len(ready) == 1 and len(self.work) == 1:
            return ready[0], total
        chain = self._prefix_hashes(spec) if info.prefix_caching else []
        costs = {
            replica: max(total - round(HIT_DISCOUNT * self._cached_tokens(replica, chain)), 1) for replica in ready
        }
        count = len(self.work)
        best = min(ready, key=lambda r: (self.work[r] + costs[r], load[r], (r - self.preferred) % count))
        cached, capacity = self._cached_prefixes[best], max(info.num_pages * info.page_size // PREFIX_CHUNK, 1)
        for prefix in chain:
            cached[prefix] = None
            cached.move_to_end(prefix)
        while len(cached) > capacity:
            cached.popitem(last=False)
        return best, costs[best]

    def record_output_len(self, tokens: int) -> None:
        """Updates the mean output length with a finished output of `tokens` tokens."""
        self.mean_output_len += OUTPUT_LEN_WEIGHT * (tokens - self.mean_output_len)

    def forget_replica(self, replica: int) -> None:
        """Forgets the prefixes of a replica that exited."""
        self._cached_prefixes[replica].clear()

    def _prefix_hashes(self, spec: RequestSpec) -> list[int]:
        """Returns a hash per complete chunk of the prompt. It covers the salt, this chunk and all chunks before it."""
        if self._last is not None and self._last[0] is spec.prompt and self._last[1] == spec.cache_salt:
            return self._last[2]
        prompt, chain, number = spec.prompt, [], hash(spec.cache_salt)
        for first in range(0, len(prompt) - PREFIX_CHUNK + 1, PREFIX_CHUNK):
            number = hash((number, *prompt[first : first + PREFIX_CHUNK]))
            chain.append(number)
        self._last = prompt, spec.cache_salt, chain
        return chain

    def _cached_tokens(self, replica: int, chain: Sequence[int]) -> int:
        """Returns how many tokens of the prompt the cache of the replica probably contains."""
        cached, found = self._cached_prefixes[replica], 0
        for prefix in chain:
            if prefix not in cached:
                break
            found += PREFIX_CHUNK
        return found


Method = Literal["metrics", "load_adapter", "unload_adapter", "start_profile", "stop_profile"]


class EngineClient(ABC):
    """Client of the engine processes, with the live requests of this process.

    Attributes:
        request_metrics: metrics of the requests of this process.
        info: properties of the model and the engine, which are equal in all replicas. None: no engine has loaded yet.
        complete: startup is complete: since the start of the server, every frontend process has been ready once.
        requests: live requests by id.
        aborted: aborted requests whose last output, which has the count of their tokens, has not arrived.
        pending: requests that were submitted in this iteration of the event loop, by replica.
        live_by_replica, live_by_tenant, live_by_adapter: numbers of live requests.
    """

    def __init__(
        self,
        config: ServerConfig,
        request_metrics: RequestMetrics,
        adapters: AdapterRegistry,
        frontend_index: int = 0,
    ) -> None:
        """Creates a client without requests.

        Args:
            config: configuration of the server.
            request_metrics: metrics of the requests of this process.
            adapters: adapters that requests may name.
            frontend_index: index of this frontend process.
        """
        self.config = config
        self.request_metrics = request_metrics
        self.adapters = adapters
        self.info: EngineInfo | None = None
        self.complete = True
        self.requests: dict[str, RequestState] = {}
        self.aborted: dict[str, RequestState] = {}
        self.pending: dict[int, list[RequestSpec]] = {}
        self.router = Router(config.data_parallel_size, frontend_index % config.data_parallel_size)
        self.live_by_replica = [0] * config.data_parallel_size
        self.live_by_tenant: Counter[str] = Counter()
        self.live_by_adapter: Counter[str] = Counter()

    # -- state of the engines

    @property
    @abstractmethod
    def ready(self) -> list[int]:
        """Indices of the ready replicas."""

    @abstractmethod
    def progress(self) -> tuple[str, int, int]:
        """Returns phase, loaded bytes and total bytes of the replica that has loaded most."""

    @abstractmethod
    def send(self, replica: int, message: Any) -> None:
        """Sends a message to the engine process of a replica, and drops it if there is none."""

    @abstractmethod
    async def call(self, method: Method, *arguments: str) -> Any:
        """Calls a method of the server's main process, and returns its result. Raises the RequestError of the method.

        Methods and arguments: see `LocalEngineClient.call`.
        """

    # -- requests

    def submit(self, specs: list[RequestSpec]) -> OutputQueue:
        """Submits the engine requests of one HTTP request.

        Returns:
            A queue that receives the outputs of ``specs[i]`` as ``(i, output)``.

        Raises:
            RequestError: 404 if the adapter is unloaded, 429 if the queue is full, 503 if no backend is ready.
        """
        queue: OutputQueue = asyncio.Queue()
        if not specs:
            return queue
        adapter = specs[0].adapter
        if adapter and not self.adapters.is_available(adapter):  # unloaded while the request was prepared
            raise no_longer_served(adapter)
        self.check_capacity(len(specs), specs[0].tenant)
        ready, info = self.ready, self.require()
        flush_scheduled = bool(self.pending)
        for choice_index, spec in enumerate(specs):
            replica, work = self.router.assign(spec, ready, self.live_by_replica, info)
            self.requests[spec.id] = RequestState(spec, choice_index, queue, replica, work)
            self.live_by_replica[replica] += 1
            self.router.work[replica] += work
            self.live_by_tenant[spec.tenant] += 1
            self.live_by_adapter[spec.adapter] += 1
            self.pending.setdefault(replica, []).append(spec)
        if not flush_scheduled:
            self.schedule(self.flush)
        return queue

    def schedule(self, call: Callable[[], None]) -> None:
        """Makes a call in the next iteration of the event loop."""
        asyncio.get_running_loop().call_soon(call)

    def flush(self) -> None:
        """Sends the requests of one iteration of the event loop to each backend as one message."""
        due, self.pending = self.pending, {}
        for replica, specs in due.items():
            self.send(replica, Add.of(specs))

    def abort(self, ids: list[str]) -> None:
        """Aborts requests and frees their pages. Ids of finished requests are ignored."""
        self.flush()  # a backend must receive a request before its abort
        by_replica: dict[int, list[str]] = {}
        for request_id in ids:
            live = self._remove(request_id)
            if live is not None:
                by_replica.setdefault(live.replica, []).append(request_id)
                self.aborted[request_id] = live
        for replica, live_ids in by_replica.items():
            self.send(replica, Abort(live_ids))

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
            self.live_by_adapter[live.spec.adapter] -= 1
            self.live_by_tenant[live.spec.tenant] -= 1
            if not self.live_by_tenant[live.spec.tenant]:
                del self.live_by_tenant[live.spec.tenant]
        return live

    # -- events of the backends

    def on_outputs(self, replica: int, outputs: list[EngineOutput]) -> None:
        """Puts outputs into the queues of their requests, and removes requests that have finished."""
        requests = self.requests
        for output in outputs:
            live = requests.get(output.id)
            if live is None:  # aborted before the output arrived
                if (aborted := self.aborted.get(output.id)) is not None:
                    aborted.queue.put_nowait((aborted.choice_index, output))
                    if output.finish_reason is not None:
                        del self.aborted[output.id]
                continue
            if live.spec.stream_mode == "final" and output.finish_reason is None:
                live.progress = output
                continue
            done = len(output.new_tokens)
            live.tokens += done
            if output.finish_reason is not None:
                self._remove(output.id)
                if not live.spec.read_ids:
                    self.router.record_output_len(live.tokens)
            elif done:
                done = min(done, live.work - 1)
                live.work -= done
                self.router.work[live.replica] -= done
            live.queue.put_nowait((live.choice_index, output))

    def fail_replica(self, replica: int, reason: str) -> None:
        """Ends the requests of a backend that exited with an Unavailable error."""
        self.router.forget_replica(replica)
        self.pending.pop(replica, None)
        lost = [live for live in (*self.requests.values(), *self.aborted.values()) if live.replica == replica]
        for live in lost:
            self._remove(live.spec.id)
            self.aborted.pop(live.spec.id, None)
            if live.progress is not None:
                live.queue.put_nowait((live.choice_index, live.progress))
        gone = Unavailable(f"the engine process of this request exited ({reason}); retry")
        fail_queues((live.queue for live in lost), gone)

    # -- limits

    def require(self) -> EngineInfo:
        """Returns the properties of the model and the engine.

        Raises:
            Unavailable: no backend is ready.
        """
        if self.info is None:
            raise Unavailable("the model is being loaded; GET /startup shows the progress")
        if not self.ready:
            raise Unavailable("no engine process is ready; the server restarts failed ones, so retry later")
        return self.info

    def check_count(self, prompts: int, n: int) -> None:
        """Checks the number of completions of one request against `max_choices`.

        Args:
            prompts: number of prompts.
            n: completions per prompt.

        Raises:
            RequestError: 400 if the number exceeds the limit; a retry would fail too.
            Unavailable: no backend is ready.
        """
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
        """Returns the maximum number of completions per request: half of all slots.

        A slot is one running or queued engine request.
        """
        return max(1, self._capacity(self.config.data_parallel_size) // 2)

    def _capacity(self, replicas: int) -> int:
        """Returns the slots of this process if `replicas` replicas are ready. Frontend processes divide all slots."""
        slots = self.require().max_num_reqs * replicas + self.config.max_queue
        return -(-slots // self.config.frontend_processes)

    def check_capacity(self, count: int, tenant: str = "") -> None:
        """Checks whether `count` engine requests fit into the queue now.

        The first engine request of a tenant may use any free slot. A tenant with more requests may use at most as many
        slots as then remain free. On a server without keys this limit applies to each HTTP request instead.

        Args:
            count: number of engine requests to add.
            tenant: id of the API key, "" on a server without keys.

        Raises:
            RequestError: 429 if they do not fit; a later retry may succeed.
            Unavailable: no backend is ready.
        """
        queue, live = self.config.max_queue, len(self.requests)
        left = self._capacity(len(self.ready)) - live
        held = self.live_by_tenant[tenant] if tenant else 0
        if count > left or (held + count > 1 and held + count > left - count):
            whose = f" ({held} of this API key)" if tenant else ""
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

    def __init__(
        self, config: ServerConfig, request_metrics: RequestMetrics, metrics: Metrics, supervisor: Supervisor
    ) -> None:
        """Creates the client and registers it as the observer of `supervisor`. `metrics`: metrics of the server."""
        adapters = LocalAdapterRegistry(config, supervisor)
        super().__init__(config, request_metrics, adapters)
        self.profiler = Profiler(config, supervisor)
        self.metrics = metrics
        self.supervisor = supervisor
        self.lengths: dict[int, int] = {}  # max_model_len by replica; memory may limit each to another one
        supervisor.observer, supervisor.engine_config = self, adapters.engine_config
        self.on_change: Callable[[], None] = lambda: None  # called when an engine becomes ready or exits
        engine_metrics = metrics.engine_metrics
        engine_metrics.live_by_replica = self.live_by_replica
        engine_metrics.work_by_replica = self.router.work
        engine_metrics.live_by_adapter, engine_metrics.adapters = self.live_by_adapter, self.adapters.entries

    @property
    def ready(self) -> list[int]:
        return self.supervisor.ready

    def progress(self) -> tuple[str, int, int]:
        loading = max((r.loading for r in self.supervisor.replicas), key=lambda phase: phase.done_bytes)
        return loading.phase, loading.done_bytes, loading.total_bytes

    def send(self, replica: int, message: Any) -> None:
        self.supervisor.send(replica, message)

    async def call(self, method: Method, *arguments: str) -> Any:
        match method:
            case "metrics":
                return self.metrics.text()
            case "load_adapter":
                return await self.adapters.load(*arguments, by="route")
            case "unload_adapter":
                return await self.adapters.unload(*arguments)
            case "start_profile":
                return await self.profiler.start()
            case "stop_profile":
                return await self.profiler.stop()

    # -- methods of `ReplicaObserver`, which the supervisor calls

    def on_ready(self, replica: int, info: EngineInfo, load_seconds: float) -> None:
        self.lengths[replica] = info.max_model_len
        self.info = msgspec.structs.replace(info, max_model_len=min(self.lengths.values()))
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
