"""Work beside the loop: in whose turn, at whose cost, and given up with its client."""

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
    """A request whose client goes away when told to."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.state = object()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def settle() -> None:
    """Lets every task go as far as it can without a thread or the clock."""
    for _ in range(20):
        await asyncio.sleep(0)


class Held:
    """Work that goes on until it is released, or told that nobody wants it."""

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


def test_the_shortest_goes_first_and_equals_in_order() -> None:
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


def test_a_client_that_goes_away_gives_up_its_work_and_its_slot() -> None:
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
def test_a_disconnected_client_and_a_cancelled_task_differ(
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


def test_a_task_goes_on_after_a_disconnect_that_its_work_replaced_by_another_error() -> None:
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


def test_a_slot_that_is_free_as_the_client_goes_is_passed_on() -> None:
    async def everything() -> None:
        executor, head = SingleThreadExecutor("test"), Held()
        one = asyncio.create_task(executor.run(1, head))
        await head.until_begun()
        two = asyncio.create_task(executor.run(1, lambda _: 2))
        three = asyncio.create_task(executor.run(1, lambda _: 3))
        await settle()
        executor._queue.release()  # as the end of the first would
        two.cancel()
        head.release.set()
        assert await asyncio.wait_for(three, TIMEOUT) == 3
        assert await one == "done"
        assert two.cancelled()

    asyncio.run(everything())


def test_a_waiter_that_goes_as_the_one_before_it_ends_blocks_nobody() -> None:
    async def everything() -> None:
        executor, head = SingleThreadExecutor("test"), Held()
        one = asyncio.create_task(executor.run(1, head))
        await head.until_begun()
        two = asyncio.create_task(executor.run(1, lambda _: 2))
        three = asyncio.create_task(executor.run(1, lambda _: 3))
        await settle()
        head.release.set()
        # the thread is done with the first: its end is now the loop's next step, and its callback the one after
        executor._thread.submit(lambda: None).result(TIMEOUT)
        asyncio.get_running_loop().call_soon(two.cancel)  # between them, so that `two` has not run by then
        assert await one == "done"
        assert await asyncio.wait_for(three, TIMEOUT) == 3
        assert two.cancelled()
        assert await asyncio.wait_for(executor.run(1, lambda _: 4), TIMEOUT) == 4

    asyncio.run(everything())


def test_a_line_of_nothing_but_cancelled_waiters_is_free() -> None:
    async def everything() -> None:
        line = AdmissionQueue(100, "waiters are there")
        await line.acquire(1)
        waiting = [asyncio.create_task(line.acquire(1)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        line.release()  # before any of them has run
        await asyncio.wait_for(line.acquire(100), TIMEOUT)
        await asyncio.gather(*waiting, return_exceptions=True)
        assert all(task.cancelled() for task in waiting)

    asyncio.run(everything())


def test_what_waits_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_error_of_the_work_is_its_clients() -> None:
    async def everything() -> None:
        executor = SingleThreadExecutor("test")

        def fail(_: Any) -> None:
            raise RequestError("no", param="prompt")

        with pytest.raises(RequestError, match="no"):
            await cancel_on_disconnect(Client(), executor.run(1, fail))  # type: ignore[arg-type]
        assert await executor.run(1, lambda _: 1) == 1

    asyncio.run(everything())


class Body(str):
    """Text that can be seen to be gone."""


@pytest.mark.parametrize("size", [1, LONG + 1])
def test_an_error_of_the_work_keeps_no_body(size: int) -> None:
    """No reference cycle keeps it until the collector's next long run."""

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


def test_who_fills_a_line_gives_way_to_other_owners() -> None:
    async def everything() -> None:
        line = AdmissionQueue(100, "waiters are there")
        await line.acquire(1)
        greedy = [asyncio.create_task(line.acquire(20, "a")) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="too many waiters are there"):
            await line.acquire(20, "a")  # the greedy one itself has no more room
        modest = asyncio.create_task(line.acquire(30, "b"))
        await settle()
        assert [task.done() for task in greedy] == [False, False, False, True, True]  # the last who came
        for task in greedy[3:]:
            with pytest.raises(RequestError) as refused:
                await task
            assert refused.value.status == 429
        with pytest.raises(RequestError):
            await line.acquire(60, "b")  # more than what the greediest holds
        for task in (*greedy[:3], modest):
            line.release()
            await asyncio.wait_for(task, TIMEOUT)
        line.release()
        await asyncio.wait_for(line.acquire(100, "a"), TIMEOUT)

    asyncio.run(everything())


def test_a_waiter_displaced_while_it_is_cancelled_ends_no_other_job() -> None:
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
    """Seconds that pass when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("runtime.server.preprocessing.executors.time.perf_counter", lambda: self.now)


async def order_of(
    line: AdmissionQueue, clock: Clock, waiting: list[tuple[str, int, float]], served: float
) -> list[str]:
    """The tenants in the order of service, of waiters with a size and seconds of service each, behind one of tenant a
    whose service takes `served` seconds."""
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
def test_another_owner_is_next_whatever_the_size_of_what_it_brings(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    clock = Clock(monkeypatch)
    waiting = [("a", 10, 1.0)] * 100 + [("b", size, 0.1)]
    found = asyncio.run(order_of(AdmissionQueue(10_000, "waiters"), clock, waiting, served=1.0))
    assert found.index("b") == 0


def test_owners_get_equal_seconds_and_not_equal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    waiting = [("a", 10, 1.0)] * 6 + [("b", 10, 0.25)] * 12
    found = asyncio.run(order_of(AdmissionQueue(10_000, "waiters"), clock, waiting, served=0.0))
    for end in range(4, len(found)):
        seconds = {tenant: found[:end].count(tenant) * each for tenant, each in (("a", 1.0), ("b", 0.25))}
        assert "a" not in found[end:] or "b" not in found[end:] or abs(seconds["a"] - seconds["b"]) <= 1.25


def test_an_owner_that_was_away_has_saved_up_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, line = Clock(monkeypatch), AdmissionQueue(10_000, "waiters")

    async def everything() -> list[str]:
        for _ in range(100):
            async with line.slot(1, "a"):
                clock.now += 1
        return await order_of(line, clock, [("a", 10, 1.0)] * 4 + [("b", 10, 1.0)] * 4, served=1.0)

    found = asyncio.run(everything())
    assert "a" in found[:4]
    assert "b" in found[:2]


def test_few_requests_of_an_owner_may_wait_where_their_number_is_limited() -> None:
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


def test_many_owners_that_come_once_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, line = Clock(monkeypatch), AdmissionQueue(10_000, "waiters")

    async def everything() -> None:
        for number in range(5000):
            async with line.slot(1, f"tenant {number}"):
                clock.now += 1

    asyncio.run(everything())
    assert len(line._used) <= MAX_TENANTS
