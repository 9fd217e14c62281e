"""Tests of work outside the event loop: its order, its fairness among tenants, its end with its client."""

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.errors import RequestError
from runtime.server.serving import executors
from runtime.server.serving.executors import (
    LONG,
    AdmissionQueue,
    PreprocessingExecutors,
    SingleThreadExecutor,
    cancel_on_disconnect,
)
from runtime.server.serving.request_body import ClientGone, until_disconnect
from runtime.structured_output.service_time import MAX_TENANTS
from tests.on_loop import on_loop
from tests.wait import TIMEOUT


class Client:
    """A request whose client disconnects when the test sets `gone`."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.state = object()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    def until_gone(self, work: Any) -> asyncio.Task[Any]:
        """Runs work that ends when the client disconnects."""
        return asyncio.create_task(cancel_on_disconnect(cast(Any, self), work))


async def settle() -> None:
    """Runs every task as far as possible without a thread or the clock."""
    for _ in range(20):
        await asyncio.sleep(0)


class Held:
    """Work that runs until the test releases it, or until it is no longer needed."""

    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        self.abandoned = False

    def __call__(self, is_needed: Any) -> str:
        self.begun.set()
        while not self.release.wait(0.005):
            if not is_needed():
                self.abandoned = True
                raise RuntimeError("abandoned")
        return "done"

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, TIMEOUT)


@contextlib.asynccontextmanager
async def busy(size: int = 1) -> AsyncIterator[tuple[SingleThreadExecutor, threading.Event]]:
    """Yields an executor with a running job, and the event that ends the job. It has ended after the block."""
    executor, head = SingleThreadExecutor("test"), Held()
    running = asyncio.create_task(executor.run(size, head))
    await head.until_begun()
    yield executor, head.release
    head.release.set()
    assert await running == "done"


def jobs(executor: SingleThreadExecutor, *results: int) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(executor.run(1, lambda _, n=n: n)) for n in results]


@on_loop
async def test_the_shortest_is_first_and_similar_sizes_stay_in_order() -> None:
    order: list[str] = []
    sizes = {"long": 60_000, "a": 1_500, "b": 1_100, "short": 10}
    async with busy() as (executor, _):
        rest = [
            asyncio.create_task(executor.run(size, lambda _, n=name: order.append(n))) for name, size in sizes.items()
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*rest)
    assert order == ["short", "a", "b", "long"]


@on_loop
async def test_short_work_does_not_wait_for_long_work() -> None:
    both, client, long = PreprocessingExecutors(), cast(Any, Client()), Held()
    waiting = asyncio.create_task(both.run(client, LONG + 1, long))
    await long.until_begun()
    assert await both.run(client, LONG, lambda _: 5) == 5
    long.release.set()
    assert await waiting == "done"


@on_loop
async def test_a_client_that_disconnects_ends_its_work_and_frees_its_slot() -> None:
    executor, first, second = SingleThreadExecutor("test"), Client(), Client()
    running, never = Held(), Held()
    one = first.until_gone(executor.run(1, running))
    await running.until_begun()
    two = second.until_gone(executor.run(1, never))
    three = Client().until_gone(executor.run(1, lambda _: 3))
    await settle()
    for client, task in ((second, two), (first, one)):
        client.gone.set()
        with pytest.raises(ClientGone):
            await task
    assert await asyncio.wait_for(three, TIMEOUT) == 3
    assert running.abandoned
    assert not never.begun.is_set()


@pytest.mark.parametrize(
    ("disconnects", "cancelled", "raised"),
    [(True, False, ClientGone), (False, True, asyncio.CancelledError), (True, True, asyncio.CancelledError)],
)
@on_loop
async def test_a_disconnected_client_and_a_canceled_task_differ(
    disconnects: bool, cancelled: bool, raised: type[BaseException]
) -> None:
    client = Client()

    async def wait() -> None:
        async with until_disconnect(client.receive):  # type: ignore[arg-type]
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await settle()
    if disconnects:
        client.gone.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    if cancelled:
        task.cancel()
    with pytest.raises(raised):
        await task


@on_loop
async def test_a_task_continues_after_a_disconnect_that_its_work_replaced_by_another_error() -> None:
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RequestError("no") from None

    for _ in range(2):
        client = Client()
        client.gone.set()
        with pytest.raises(RequestError, match="no"):
            async with until_disconnect(client.receive):  # type: ignore[arg-type]
                await wait()
    task = asyncio.current_task()
    assert not task.cancelling()


@on_loop
async def test_a_slot_that_is_freed_as_the_client_disconnects_is_passed_on() -> None:
    async with busy() as (executor, _):
        two, three = jobs(executor, 2, 3)
        await settle()
        executor._queue.release()  # as at the end of the first
        two.cancel()
    assert await asyncio.wait_for(three, TIMEOUT) == 3
    assert two.cancelled()


@on_loop
async def test_a_waiter_canceled_as_the_previous_job_ends_blocks_no_other() -> None:
    async with busy() as (executor, release):
        two, three = jobs(executor, 2, 3)
        await settle()
        release.set()
        # The thread has finished the first job. The loop handles its end next, and its callback in the step after that.
        executor._thread.submit(lambda: None).result(TIMEOUT)
        asyncio.get_running_loop().call_soon(two.cancel)  # between the two, before `two` runs
    assert await asyncio.wait_for(three, TIMEOUT) == 3
    assert two.cancelled()
    assert await asyncio.wait_for(jobs(executor, 4)[0], TIMEOUT) == 4


@on_loop
async def test_a_queue_with_only_canceled_waiters_is_free() -> None:
    line = AdmissionQueue(100, "waiters are there")
    await line.acquire(1)
    waiting = [asyncio.create_task(line.acquire(1)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    line.release()  # before any canceled task runs
    await asyncio.wait_for(line.acquire(100), TIMEOUT)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert all(task.cancelled() for task in waiting)


@on_loop
async def test_the_size_of_waiting_work_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "MAX_WAITING_CHARS", 100)
    async with busy(1000) as (executor, _):
        two = asyncio.create_task(executor.run(60, lambda _: 2))
        await settle()
        with pytest.raises(RequestError) as refused:
            await executor.run(60, lambda _: 3)
        assert refused.value.status == 429
    assert await two == 2
    assert await executor.run(60, lambda _: 4) == 4


@on_loop
async def test_an_error_of_the_work_is_raised_for_its_client() -> None:
    executor = SingleThreadExecutor("test")

    def fail(_: Any) -> None:
        raise RequestError("no", param="prompt")

    with pytest.raises(RequestError, match="no"):
        await Client().until_gone(executor.run(1, fail))
    assert await executor.run(1, lambda _: 1) == 1


class Body(str):
    """Text with weak references, by which a test sees that it was freed."""


@pytest.mark.parametrize("size", [1, LONG + 1])
@on_loop
async def test_an_error_of_the_work_keeps_no_body(size: int) -> None:
    """Checks that no reference cycle keeps the body until the next full collection."""

    async def fails(body: Body) -> None:
        def work(_: Any) -> None:
            raise RequestError(f"prompt: has {len(body)} characters")

        with pytest.raises(RequestError):
            await PreprocessingExecutors().run(cast(Any, Client()), size, work)

    gc.collect()
    gc.disable()
    try:
        body = Body("x" * 100)
        held = weakref.ref(body)
        await fails(body)
        del body
        await settle()
        assert held() is None
    finally:
        gc.enable()


@on_loop
async def test_waiters_of_the_largest_tenant_are_evicted_for_others() -> None:
    line = AdmissionQueue(100, "waiters are there")
    await line.acquire(1)
    greedy = [asyncio.create_task(line.acquire(20, "a")) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="too many waiters are there"):
        await line.acquire(20, "a")  # the tenant with the largest waiting size gets no more capacity
    modest = asyncio.create_task(line.acquire(30, "b"))
    await settle()
    assert [task.done() for task in greedy] == [False, False, False, True, True]  # the last two are evicted
    refused = await asyncio.gather(*greedy[3:], return_exceptions=True)
    assert [cast(RequestError, each).status for each in refused] == [429] * 2
    with pytest.raises(RequestError):
        await line.acquire(60, "b")  # more than the largest tenant has
    for task in (*greedy[:3], modest):
        line.release()
        await asyncio.wait_for(task, TIMEOUT)
    line.release()
    await asyncio.wait_for(line.acquire(100, "a"), TIMEOUT)


@on_loop
async def test_a_waiter_displaced_while_it_is_canceled_ends_no_other_job() -> None:
    line = AdmissionQueue(100, "waiters are there")
    await line.acquire(1)
    greedy = asyncio.create_task(line.acquire(90, "a"))
    await asyncio.sleep(0)
    line._evict_for(20, "b")
    greedy.cancel()
    with pytest.raises((asyncio.CancelledError, RequestError)):
        await greedy
    other = asyncio.create_task(line.acquire(20, "b"))
    await settle()
    assert not other.done()
    line.release()
    await asyncio.wait_for(other, TIMEOUT)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Returns the clock of queues, which advances only when a test sets `now`."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("runtime.server.serving.executors.time.perf_counter", lambda: clock.now)
    return clock


async def order_of(
    line: AdmissionQueue, clock: SimpleNamespace, waiting: list[tuple[str, int, float]], served: float
) -> list[str]:
    """Returns the tenants in the order of service, after tenant a was served for `served` seconds.

    `waiting` has the tenant, size and seconds of service of each waiter.
    """
    await line.acquire(1, "a")
    found: list[str] = []

    async def wait(tenant: str, size: int, seconds: float) -> None:
        async with line.slot(size, tenant):
            found.append(tenant)
            clock.now += seconds

    tasks = [asyncio.create_task(wait(*each)) for each in waiting]
    await settle()
    clock.now += served
    line.release()
    await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT)
    return found


@pytest.mark.parametrize("size", [1, 10, 1000])
@on_loop
async def test_another_tenant_is_next_whatever_the_size_of_its_work(clock: SimpleNamespace, size: int) -> None:
    waiting = [("a", 10, 1.0)] * 100 + [("b", size, 0.1)]
    assert (await order_of(AdmissionQueue(10_000, "waiters"), clock, waiting, served=1.0)).index("b") == 0


@on_loop
async def test_tenants_get_equal_seconds_and_not_equal_numbers(clock: SimpleNamespace) -> None:
    waiting = [("a", 10, 1.0)] * 6 + [("b", 10, 0.25)] * 12
    found = await order_of(AdmissionQueue(10_000, "waiters"), clock, waiting, served=0.0)
    for end in range(4, len(found)):
        seconds = {tenant: found[:end].count(tenant) * each for tenant, each in (("a", 1.0), ("b", 0.25))}
        assert "a" not in found[end:] or "b" not in found[end:] or abs(seconds["a"] - seconds["b"]) <= 1.25


@on_loop
async def test_an_idle_tenant_saves_up_no_time(clock: SimpleNamespace) -> None:
    line = AdmissionQueue(10_000, "waiters")
    for _ in range(100):
        async with line.slot(1, "a"):
            clock.now += 1
    found = await order_of(line, clock, [("a", 10, 1.0)] * 4 + [("b", 10, 1.0)] * 4, served=1.0)
    assert "a" in found[:4]
    assert "b" in found[:2]


@on_loop
async def test_the_number_of_waiting_requests_per_tenant_may_be_limited() -> None:
    line = AdmissionQueue(10_000, "grammars to compile", per_tenant=2)
    await line.acquire(1, "a")
    waiting = [asyncio.create_task(line.acquire(1, tenant)) for tenant in ("a", "a", "b", "b", "")]
    await settle()
    for tenant, whose in (("a", "of this API key "), ("b", "of this API key ")):
        with pytest.raises(RequestError, match=f"^2 grammars to compile {whose}wait already.*retry later") as refused:
            await line.acquire(1, tenant)
        assert (refused.value.status, refused.value.code) == (429, "queue_full")
    assert not any(task.done() for task in waiting)
    for _ in waiting:
        line.release()
    await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT)


@on_loop
async def test_old_tenants_are_forgotten(clock: SimpleNamespace) -> None:
    line = AdmissionQueue(10_000, "waiters")
    for number in range(MAX_TENANTS + 10):
        async with line.slot(1, f"tenant {number}"):
            clock.now += 1
    assert len(line._used) <= MAX_TENANTS
