"""Interface between routes and engines: readiness, limits, submission of requests and queues of outputs.

One HTTP request may consist of several engine requests (``n`` completions, a list of prompts). They have one
`OutputQueue`, whose reader wakes up once for all outputs that have arrived.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo, EngineOutput, RequestSpec
from runtime.server.engine_client.adapter_registry import AdapterRegistry
from runtime.server.engine_client.profiler import Profiler
from runtime.server.metrics import RequestMetrics


class Unavailable(RequestError):
    """No engine process can serve the request now. The client may retry."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=503, code="no_backend")


class OutputSink(Protocol):
    """Receives outputs and errors of requests."""

    def put(self, item: tuple[int, EngineOutput] | RequestError) -> None: ...


def fail_queues(inboxes: Iterable[OutputSink], error: RequestError) -> int:
    """Puts `error` into each queue once. Returns the number of queues."""
    each = {id(inbox): inbox for inbox in inboxes}
    for inbox in each.values():
        inbox.put(error)
    return len(each)


class OutputQueue:
    """Outputs of one HTTP request in the order of arrival, for one reader."""

    def __init__(self) -> None:
        self.items: deque[tuple[int, EngineOutput] | RequestError] = deque()
        self.waiter: asyncio.Future[None] | None = None

    def put(self, item: tuple[int, EngineOutput] | RequestError) -> None:
        self.items.append(item)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self) -> None:
        """Return once something is there."""
        if not self.items:
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None


class EngineClient(ABC):
    """Client of the engine processes.

    Attributes:
        observed: what this process observes of its requests.
        info: of the first engine that loaded; replicas are equal.
    """

    def __init__(
        self, config: ServerConfig, request_metrics: RequestMetrics, adapters: AdapterRegistry, profiler: Profiler
    ) -> None:
        self.config = config
        self.request_metrics = request_metrics
        self.adapters = adapters
        self.profiler = profiler
        self.info: EngineInfo | None = None

    # -- what is known of all requests

    @property
    @abstractmethod
    def ready(self) -> list[int]:
        """Indices of the replicas that serve."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether every process that speaks HTTP can serve, or could once."""

    @property
    @abstractmethod
    def live(self) -> int:
        """Engine requests that have not ended."""

    @abstractmethod
    def live_of_key(self, owner: str) -> int:
        """Of these, those of an owner (key)."""

    @abstractmethod
    def progress(self) -> tuple[str, int, int]:
        """Phase, bytes done and bytes in all of the replica that is furthest with its loading."""

    @abstractmethod
    async def metrics_text(self) -> bytes:
        """What /metrics shows."""

    # -- requests

    @abstractmethod
    def submit(self, specs: list[RequestSpec]) -> OutputQueue:
        """Submits requests; outputs of ``specs[i]`` arrive in the queue as ``(i, output)``.

        Raises RequestError: 429 when the queue is full, 503 when no backend serves.
        """

    @abstractmethod
    def abort(self, ids: list[str]) -> None:
        """Aborts requests and frees their pages. Ids of finished requests are ignored."""

    @abstractmethod
    def fail_all(self, error: RequestError) -> int:
        """Ends all live requests of this process with `error`. Returns their number."""

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
        slots = self.require().max_num_reqs * self.config.data_parallel_size + self.config.max_queue
        return max(1, slots // 2)

    def check_capacity(self, count: int, owner: str = "") -> None:
        """Raises RequestError 429 unless `count` more requests fit now, and Unavailable.

        Apart from a single request, a key may hold at most as many slots as remain free for others. Without keys this
        holds for each HTTP request.

        Args:
            count: engine requests to add.
            owner: id of the API key, "" on a server without keys.
        """
        info = self.require()
        queue, live = self.config.max_queue, self.live
        left = info.max_num_reqs * len(self.ready) + queue - live
        held = self.live_of_key(owner) if owner else 0
        if count > left or (held + count > 1 and held + count > left - count):
            whose = f" ({held} of this API key)" if owner else ""
            raise RequestError(
                f"queue full: {live} active{whose}, {max(left, 0)} slots free, this request needs {count} "
                f"(--max-queue {queue}, at most half of the slots per key or request); retry later",
                status=429,
                code="queue_full",
            )
