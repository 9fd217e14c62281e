"""Threads for work outside the event loop, and the fair queue in front of each.

Prompts have two threads, for short and for long work. Python threads share the GIL, so that work must release it, as
batch calls of the tokenizers library do, or consist of small steps, as a template does. A third thread waits for the
sandbox of grammars. Work that is no longer needed leaves the queue, or ends at its next step.

Tenants (API keys) get equal seconds of service. Within a tenant, and among tenants with about the same use, the
shortest request is first. The queue is limited. If it is full, a new request displaces the last one of the tenant with
the largest waiting size, unless its own tenant would then have a larger one.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from runtime.errors import RequestError
from runtime.server.serving.request_body import until_disconnect
from runtime.structured_output.service_time import ServiceTime

QUANTUM = 0.05  # seconds of service by which tenants may differ and count as equal


@dataclass(order=True)
class Waiter:
    """In the order of service: the shortest, within a factor of two the first."""

    magnitude: int
    number: int
    size: int = field(compare=False)
    tenant: str = field(compare=False)
    granted: asyncio.Future[None] = field(compare=False)


class AdmissionQueue:
    """A fair queue in front of one worker. A cancelled waiter leaves it."""

    def __init__(self, capacity: int, what: str, per_tenant: int | None = None) -> None:
        """Creates an empty queue.

        Args:
            capacity: Maximum size of all waiting requests, in the unit of `acquire`.
            what: Name of the waiting requests in errors.
            per_tenant: Maximum number of waiting requests per tenant; None for any number.
        """
        self._capacity, self._description, self._per_tenant = capacity, what, per_tenant
        self._waiting: dict[str, list[Waiter]] = {}  # a heap per tenant with waiting requests
        self._numbers = itertools.count()
        self._waiting_size: Counter[str] = Counter()  # of the waiting requests, by tenant
        self._busy = False
        self._served = ""  # the tenant of the running request
        self._since = 0.0
        self._used = ServiceTime()

    async def acquire(self, size: int, tenant: str = "") -> None:
        """Waits for service, which `release` ends. Raises RequestError 429 if too much waits, at once or later."""
        if not self._busy:
            self._busy = True
            self._used.join(tenant, ())
            self._begin(tenant)
            return
        if self._per_tenant is not None and len(self._waiting.get(tenant, ())) >= self._per_tenant:
            whose = "of this API key " if tenant else ""
            raise RequestError(
                f"{self._per_tenant} {self._description} {whose}wait already, which is the limit; retry later",
                status=429,
                code="queue_full",
            )
        self._evict_for(size, tenant)
        granted = asyncio.get_running_loop().create_future()
        waiter = Waiter(size.bit_length(), next(self._numbers), size, tenant, granted)
        if tenant not in self._waiting and tenant != self._served:
            self._used.join(tenant, self._waiting)
        heapq.heappush(self._waiting.setdefault(tenant, []), waiter)
        self._waiting_size[tenant] += size
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                if waiter in self._waiting.get(tenant, ()):
                    self._remove(waiter)
            elif granted.exception() is None:
                self.release()  # its service had begun
            raise
        finally:
            del waiter, granted  # the frames of an error would form a reference cycle with it, and keep the body

    def release(self) -> None:
        """Ends the service, and begins that of the next request."""
        self._used.end(self._served, time.perf_counter() - self._since, idle=not self._waiting)
        while self._waiting:
            bound = self._used.least(self._waiting) + QUANTUM
            waiter = min(heap[0] for tenant, heap in self._waiting.items() if self._used[tenant] <= bound)
            self._remove(waiter)
            if not waiter.granted.done():  # a waiter that was cancelled stays in the queue until it runs
                self._begin(waiter.tenant)
                waiter.granted.set_result(None)
                return
        self._busy = False

    @asynccontextmanager
    async def slot(self, size: int, tenant: str = "") -> AsyncIterator[None]:
        """Acquires and releases the queue."""
        await self.acquire(size, tenant)
        try:
            yield
        finally:
            self.release()

    def _begin(self, tenant: str) -> None:
        self._used.begin(tenant)
        self._served, self._since = tenant, time.perf_counter()

    def _evict_for(self, size: int, tenant: str) -> None:
        while self._waiting_size.total() + size > self._capacity:
            largest, held = self._waiting_size.most_common(1)[0] if self._waiting_size else ("", 0)
            if held <= self._waiting_size[tenant] + size:
                raise self._rejection()
            last = max(self._waiting[largest], key=lambda waiter: waiter.number)
            self._remove(last)
            if not last.granted.done():
                last.granted.set_exception(self._rejection())

    def _rejection(self) -> RequestError:
        return RequestError(f"too many {self._description} at the moment; retry later", status=429, code="queue_full")

    def _remove(self, waiter: Waiter) -> None:
        waiting = self._waiting[waiter.tenant]
        waiting.remove(waiter)
        heapq.heapify(waiting)
        if not waiting:
            del self._waiting[waiter.tenant]
        self._waiting_size[waiter.tenant] -= waiter.size
        if not self._waiting_size[waiter.tenant]:
            del self._waiting_size[waiter.tenant]


LONG = 2**16  # characters from which work runs in the thread for long work
MAX_WAITING_GRAMMARS = 128  # of one API key, or of all clients of a server without keys
MAX_WAITING_CHARS = 2**23  # characters that wait for a thread, together: they are memory

T = TypeVar("T")
Work = Callable[[Callable[[], bool]], T]  # gets a function that returns whether the result is still needed


class SingleThreadExecutor:
    """One thread with a fair queue."""

    def __init__(self, name: str, what: str = "long prompts are being prepared", per_tenant: int | None = None) -> None:
        """Creates an idle thread. `what`, `per_tenant`: see `AdmissionQueue`."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._queue = AdmissionQueue(MAX_WAITING_CHARS, what, per_tenant)

    async def run(self, size: int, work: Work[T], tenant: str = "") -> T:
        """Returns the result of `work`. Raises RequestError 429 if too much waits."""
        await self._queue.acquire(size, tenant)
        needed = True
        done = asyncio.get_running_loop().run_in_executor(self._thread, work, lambda: needed)
        done.add_done_callback(self._ended)
        try:
            return await asyncio.shield(done)
        finally:
            needed = False
            del done  # the frames of an error would form a reference cycle with it, and keep the body

    def _ended(self, done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()  # retrieved, even if the client has disconnected
        self._queue.release()


def api_key_id(request: Request) -> str:
    """Returns the public id of the key of a request; "" on a server without keys."""
    return getattr(request.state, "api_key_id", "")


class PreprocessingExecutors:
    """The threads of a server: two for prompts, and one for grammars, which another process compiles."""

    def __init__(self) -> None:
        self._short, self._long = SingleThreadExecutor("short"), SingleThreadExecutor("long")
        self._grammars = SingleThreadExecutor("grammars", "grammars to compile", MAX_WAITING_GRAMMARS)

    async def run(self, request: Request, size: int, work: Work[T]) -> T:
        """Runs `work` of about `size` characters in a thread. Raises ClientGone if the client disconnects."""
        executor = self._long if size > LONG else self._short
        return await cancel_on_disconnect(request, executor.run(size, work, api_key_id(request)))

    async def compile(self, request: Request, size: int, work: Work[T]) -> T:
        """Runs `work` on a grammar of `size` characters, which waits for another process."""
        return await cancel_on_disconnect(request, self._grammars.run(size, work, api_key_id(request)))


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, or cancels it and raises ClientGone when the client disconnects."""
    async with until_disconnect(request.receive):
        return await work
