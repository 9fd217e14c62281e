"""Tests of work outside the event loop: its order, its fairness among tenants, its end with its client."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from runtime.errors import RequestError
from runtime.server.http_responses import ClientGone
from runtime.server.preprocessing import executors
from runtime.server.preprocessing.executors import (
    LONG,
    AdmissionQueue,
    PreprocessingExecutors,
    SingleThreadExecutor,
    cancel_on_disconnect,
)
from runtime.server.preprocessing.request_body import until_disconnect
from runtime.structured_output.service_time import MAX_TENANTS
from tests.wait import TIMEOUT


class Client:
    """A request whose client disconnects when the test sets `gone`."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.state = object()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


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


def test_the_shortest_is_first_and_similar_sizes_stay_in_order() -> None:
    async def everything() -> list[str]:
        executor, first = SingleThreadExecutor("test"), Held()
        order: list[str] = []
        head = asyncio.create_task(executor.run(1, first))
        await first.until_begun()
        sizes = {"long": 60_000, "a": 1_500, "b": 1_100, "short": 10}
        rest = [
            asyncio.create_task(executor.run(size, lambda _, n=name: order.append(n))) for name, size in sizes.items()
        ]
        await asyncio.sleep(0)
        first.release.set()
        assert await head == "done"
        await asyncio.gather(*rest)
        return order

    assert asyncio.run(everything()) == ["short", "a", "b", "long"]


def test_short_work_does_not_wait_for_long_work() -> None:
    async def everything() -> None:
        both, client, long = PreprocessingExecutors(), Client(), Held()
        waiting = asyncio.create_task(both.run(client, LONG + 1, long))  # type: ignore[arg-type]
        await long.until_begun()
        assert await both.run(client, LONG, lambda _: 5) == 5  # type: ignore[arg-type]
        long.release.set()
        assert await waiting == "done"

    asyncio.run(everything())


def test_a_client_that_disconnects_ends_its_work_and_frees_its_slot() -> None:
    async def everything() -> None:
        executor, first, second, third = SingleThreadExecutor("test"), Client(), Client(), Client()
        running, never = Held(), Held()
        one = asyncio.create_task(cancel_on_disconnect(first, executor.run(1, running)))  # type: ignore[arg-type]
        await running.until_begun()
        two = asyncio.create_task(cancel_on_disconnect(second, executor.run(1, never)))  # type: ignore[arg-type]
        three = asyncio.create_task(cancel_on_disconnect(third, executor.run(1, lambda _: 3)))  # type: ignore[arg-type]
        await settle()
        second.gone.set()
        with pytest.raises(ClientGone):
            await two
        first.gone.set()
        with pytest.raises(ClientGone):
            await one
        assert await asyncio.wait_for(three, TIMEOUT) == 3
        assert running.abandoned
        assert not never.begun.is_set()

    asyncio.run(everything())


@pytest.mark.parametrize(
    ("disconnects", "cancelled", "raised"),
    [(True, False, ClientGone), (False, True, asyncio.CancelledError), (True, True, asyncio.CancelledError)],
)
def test_a_disconnected_client_and_a_canceled_task_differ(
    disconnects: bool, cancelled: bool, raised: type[BaseException]
) -> None:
    async def everything() -> None:
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

    asyncio.run(everything())


def test_a_task_continues_after_a_disconnect_that_its_work_replaced_by_another_error() -> None:
    async def everything() -> None:
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
        assert task is not None
        assert not task.cancelling()

    asyncio.run(everything())


def test_a_slot_that_is_freed_as_the_client_disconnects_is_passed_on() -> None:
    async def everything() -> None:
        executor, head = SingleThreadExecutor("test"), Held()
        one = asyncio.create_task(executor.run(1, head))
        await head.until_begun()
        two = asyncio.create_task(executor.run(1, lambda _: 2))
        three = asyncio.create_task(executor.run(1, lambda _: 3))
        await settle()
        executor._queue.release()  # as at the end of the first
        two.cancel()
        head.release.set()
        assert await asyncio.wait_for(three, TIMEOUT) == 3
        assert await one == "done"
        assert two.cancelled()

    asyncio.run(everything())


def test_a_waiter_canceled_as_the_previous_job_ends_blocks_no_other() -> None:
    async def everything() -> None:
        executor, head = SingleThreadExecutor("test"), Held()
        one = asyncio.create_task(executor.run(1, head))
        await head.until_begun()
        two = asyncio.create_task(executor.run(1, lambda _: 2))
        three = asyncio.create_task(executor.run(1, lambda _: 3))
        await settle()
        head.release.set()
        # The thread has finished the first job. The loop handles its end next, and its callback in the step after that.
        executor._thread.submit(lambda: None).result(TIMEOUT)
        asyncio.get_running_loop().call_soon(two.cancel)  # between the two, before `two` runs
        assert await one == "done"
        assert await asyncio.wait_for(three, TIMEOUT) == 3
        assert two.cancelled()
        assert await asyncio.wait_for(executor.run(1, lambda _: 4), TIMEOUT) == 4

    asyncio.run(everything())


def test_a_queue_with_only_canceled_waiters_is_free() -> None:
    async def everything() -> None:
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

    asyncio.run(everything())


def test_the_size_of_waiting_work_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "MAX_WAITING_CHARS", 100)

    async def everything() -> None:
        executor, head = SingleThreadExecutor("test"), Held()
        one = asyncio.create_task(executor.run(1000, head))
        await head.until_begun()
        two = asyncio.create_task(executor.run(60, lambda _: 2))
        await settle()
        with pytest.raises(RequestError) as refused:
            await executor.run(60, lambda _: 3)
        assert refused.value.status == 429
        head.release.set()
        assert await two == 2
        assert await one == "done"
        assert await executor.run(60, lambda _: 4) == 4

    asyncio.run(everything())


def test_an_error_of_the_work_is_raised_for_its_client() -> None:
    async def everything() -> None:
        executor = SingleThreadExecutor("test")

        def fail(_: Any) -> None:
            raise RequestError("no", param="prompt")

        with pytest.raises(RequestError, match="no"):
            await cancel_on_disconnect(Client(), executor.run(1, fail))  # type: ignore[arg-type]
        assert await executor.run(1, lambda _: 1) == 1

    asyncio.run(everything())


class Body(str):
    """Text with weak references, by which a test sees that it was freed."""


@pytest.mark.parametrize("size", [1, LONG + 1])
def test_an_error_of_the_work_keeps_no_body(size: int) -> None:
    """Checks that no reference cycle keeps the body until the next full collection."""

    async def fails(body: Body) -> None:
        def work(_: Any) -> None:
            raise RequestError(f"prompt: has {len(body)} characters")

        with pytest.raises(RequestError):
            await PreprocessingExecutors().run(Client(), size, work)  # type: ignore[arg-type]

    async def all_of_it() -> None:
        body = Body("x" * 100)
        held = weakref.ref(body)
        await fails(body)
        del body
        await settle()
        assert held() is None

    gc.collect()
    gc.disable()
    try:
        asyncio.run(all_of_it())
    finally:
        gc.enable()


def test_waiters_of_the_largest_tenant_are_evicted_for_others() -> None:
    async def everything() -> None:
        line = AdmissionQueue(100, "waiters are there")
        await line.acquire(1)
        greedy = [asyncio.create_task(line.acquire(20, "a")) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="too many waiters are there"):
            await line.acquire(20, "a")  # the tenant with the largest waiting size gets no more capacity
        modest = asyncio.create_task(line.acquire(30, "b"))
        await settle()
        assert [task.done() for task in greedy] == [False, False, False, True, True]  # the last two are evicted
        for task in greedy[3:]:
            with pytest.raises(RequestError) as refused:
                await task
            assert refused.value.status == 429
        with pytest.raises(RequestError):
            await line.acquire(60, "b")  # more than the largest tenant has
        for task in (*greedy[:3], modest):
            line.release()
            await asyncio.wait_for(task, TIMEOUT)
        line.release()
        await asyncio.wait_for(line.acquire(100, "a"), TIMEOUT)

    asyncio.run(everything())


def test_a_waiter_displaced_while_it_is_canceled_ends_no_other_job() -> None:
    async def everything() -> None:
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

    asyncio.run(everything())


class Clock:
    """A clock that advances only when a test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("runtime.server.preprocessing.executors.time.perf_counter", lambda: self.now)


async def order_of(
    line: AdmissionQueue, clock: Clock, waiting: list[tuple[str, int, float]], served: float
) -> list[str]:
    """Returns the tenants in the order of service.

    Args:
        line: The queue.
        clock: The clock of the queue.
        waiting: Tenant, size and seconds of service of each waiter.
        served: Seconds of service of the request of tenant a that they wait for.
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
def test_another_tenant_is_next_whatever_the_size_of_its_work(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    clock = Clock(monkeypatch)
    waiting = [("a", 10, 1.0)] * 100 + [("b", size, 0.1)]
    found = asyncio.run(order_of(AdmissionQueue(10_000, "waiters"), clock, waiting, served=1.0))
    assert found.index("b") == 0


def test_tenants_get_equal_seconds_and_not_equal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    waiting = [("a", 10, 1.0)] * 6 + [("b", 10, 0.25)] * 12
    found = asyncio.run(order_of(AdmissionQueue(10_000, "waiters"), clock, waiting, served=0.0))
    for end in range(4, len(found)):
        seconds = {tenant: found[:end].count(tenant) * each for tenant, each in (("a", 1.0), ("b", 0.25))}
        assert "a" not in found[end:] or "b" not in found[end:] or abs(seconds["a"] - seconds["b"]) <= 1.25


def test_an_idle_tenant_saves_up_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, line = Clock(monkeypatch), AdmissionQueue(10_000, "waiters")

    async def everything() -> list[str]:
        for _ in range(100):
            async with line.slot(1, "a"):
                clock.now += 1
        return await order_of(line, clock, [("a", 10, 1.0)] * 4 + [("b", 10, 1.0)] * 4, served=1.0)

    found = asyncio.run(everything())
    assert "a" in found[:4]
    assert "b" in found[:2]


def test_the_number_of_waiting_requests_per_tenant_may_be_limited() -> None:
    async def everything() -> None:
        line = AdmissionQueue(10_000, "grammars to compile", per_tenant=2)
        await line.acquire(1, "a")
        waiting = [asyncio.create_task(line.acquire(1, tenant)) for tenant in ("a", "a", "b", "b", "")]
        await settle()
        for tenant, whose in (("a", "of this API key "), ("b", "of this API key ")):
            with pytest.raises(
                RequestError, match=f"^2 grammars to compile {whose}wait already.*retry later"
            ) as refused:
                await line.acquire(1, tenant)
            assert (refused.value.status, refused.value.code) == (429, "queue_full")
        assert not any(task.done() for task in waiting)
        for _ in waiting:
            line.release()
        await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT)

    asyncio.run(everything())


def test_old_tenants_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, line = Clock(monkeypatch), AdmissionQueue(10_000, "waiters")

    async def everything() -> None:
        for number in range(5000):
            async with line.slot(1, f"tenant {number}"):
                clock.now += 1

    asyncio.run(everything())
    assert len(line._used) <= MAX_TENANTS
