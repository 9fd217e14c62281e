"""Holds the requests of one service until a pod is Ready, and wakes the service."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from unmask_operator.activator.head import Refusal
from unmask_operator.activator.targets import Target
from unmask_operator.kube.errors import ApiError

POLL_SECONDS = 0.5  # between lists of the pods while requests wait
LONGEST_ANSWER_SECONDS = 10.0  # from the release of a request to its answer, after which it no longer delays others

Address = tuple[str, int]  # host and port of a Ready pod

log = logging.getLogger(__name__)


@dataclass
class Holder:
    """The held requests of one service.

    A pod that has just started gets as many requests as it runs at once. Each answer lets the next one pass.

    Attributes:
        target: the service; replaced when the resource changes.
        wake: sets one replica.
        pods: lists the addresses of the Ready pods.
        woken: called after each wake-up.
    """

    target: Target
    wake: Callable[[Target], Awaitable[None]]
    pods: Callable[[Target], Awaitable[Sequence[Address]]]
    woken: Callable[[], None]
    _waiting: deque[asyncio.Future[Address]] = field(default_factory=deque)
    _ready: Sequence[Address] = ()
    _unanswered: set[asyncio.Future[Address]] = field(default_factory=set)  # released requests
    _open: Counter[Address] = field(default_factory=Counter)  # connections by pod
    _failed: set[Address] = field(default_factory=set)  # pods without a connection since the last list
    _poll: asyncio.Task[None] | None = None

    def held(self) -> int:
        return sum(not request.done() for request in self._waiting)

    def hold(self) -> asyncio.Future[Address]:
        """Returns a future with the pod that takes the request. The caller cancels it if the client leaves.

        Raises:
            Refusal: too many requests wait.
        """
        limit = self.target.zero.max_held_requests
        if self.held() >= limit:
            raise Refusal(429, "full", f"{limit} requests wait for the service to start")
        request = asyncio.get_running_loop().create_future()
        self._waiting.append(request)
        self._release()
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._poll_pods())
        return request

    def answered(self, request: asyncio.Future[Address]) -> None:
        """Notes that a released request has an answer, or takes long. The next one may pass."""
        self._unanswered.discard(request)
        self._release()

    def closed(self, request: asyncio.Future[Address]) -> None:
        """Notes that the connection of a released request has ended."""
        self._open[request.result()] -= 1
        self.answered(request)

    def failed(self, pod: Address) -> None:
        """Notes that a pod accepts no connection, so that others get the requests until the pods are listed again."""
        self._failed.add(pod)

    def stop(self) -> None:
        """Refuses all held requests, because the service is suspended or deleted."""
        for request in self._waiting:
            if not request.done():
                request.set_exception(Refusal(503, "stopped", "the service has been stopped"))
        self._waiting.clear()

    async def _poll_pods(self) -> None:
        """Wakes the service, and releases requests to its Ready pods, until none waits."""
        while self.held():
            self._waiting = deque(request for request in self._waiting if not request.done())
            try:
                self._ready = await self.pods(self.target)
                self._failed.clear()
                if not self._ready and not self.target.replicas:
                    await self.wake(self.target)
                    self.woken()
            except ApiError as error:
                if not error.conflict:  # the resource has changed; its watch reports that
                    log.warning("cannot wake the service: %s", error, extra={"service": self.target.key})
            self._release()
            await asyncio.sleep(POLL_SECONDS)
        self._ready, self._waiting = (), deque()

    def _release(self) -> None:
        limit = self.target.requests_per_pod * len(self._ready)
        while self._waiting and len(self._unanswered) < limit:
            request = self._waiting.popleft()
            if request.done():
                continue
            pod = min(self._ready, key=lambda one: (one in self._failed, self._open[one]))
            self._open[pod] += 1
            self._unanswered.add(request)
            request.set_result(pod)
