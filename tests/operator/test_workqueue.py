"""Tests of the work queue, in simulated time."""

import asyncio
from collections import Counter

import pytest

from tests.simulated_time import now, simulated
from tests.wait import wait_until_async
from unmask_operator.controller.workqueue import WorkQueue


async def take(queue: WorkQueue[str]) -> str | None:
    """Returns the next key, or None if none is due. Takes a millisecond of simulated time then."""
    try:
        return await asyncio.wait_for(queue.get(), 0.001)
    except TimeoutError:
        return None


async def wait_until(time: float) -> None:
    await asyncio.sleep(time - now())


@simulated
async def test_keys_run_once_first_come_first_served_and_again_after_their_end():
    queue = WorkQueue()
    for key in "cacb":
        queue.add(key)
    assert [await take(queue) for _ in range(4)] == ["c", "a", "b", None]
    for key in "ad":
        queue.add(key)
    assert [await take(queue), await take(queue)] == ["d", None]  # the second run of a does not delay d
    queue.done("a")
    assert await take(queue) == "a"


@simulated
async def test_the_earlier_of_two_times_counts():
    queue = WorkQueue()
    for seconds in (10, 2, 5):
        queue.add("a", seconds)
    for time, key in ((1.9, None), (2, "a")):
        await wait_until(time)
        assert await take(queue) == key
    queue.done("a", requeue_after=28)
    for time, key in ((29.9, None), (30, "a"), (60, None)):
        await wait_until(time)
        assert await take(queue) == key


@simulated
async def test_pauses_after_failures_grow_for_each_key_until_it_succeeds():
    queue = WorkQueue()
    for key, pause in (("a", 1), ("a", 2), ("b", 1), ("a", 4)):
        queue.add(key)
        assert await take(queue) == key
        assert queue.add_rate_limited(key) == pause
    queue.done("a")
    assert queue.add_rate_limited("a") == 1
    assert queue.add_rate_limited("b") == 2


@pytest.mark.parametrize("during_the_run", [True, False])
@simulated
async def test_an_edit_does_not_wait_for_the_pause_of_a_failure(during_the_run):
    queue = WorkQueue()
    queue.add("a")
    await take(queue)
    if during_the_run:
        queue.add("a")
    queue.add_rate_limited("a")
    if not during_the_run:
        queue.add("a")
    assert await take(queue) == "a"
    queue.done("a")
    assert len(queue) == 0


@simulated
async def test_other_tasks_run_between_reconciles_that_never_wait():
    queue, runs, burst = WorkQueue(), [], 0

    async def work():
        while True:
            runs.append(await queue.get())
            queue.done(runs[-1])

    for key in range(1000):
        queue.add(key)
    workers = [asyncio.create_task(work()) for _ in range(16)]
    for _ in range(5000):
        before = len(runs)
        await asyncio.sleep(0)
        burst = max(burst, len(runs) - before)
    assert len(runs) == 1000
    assert burst == 1, "two reconciles ran in one iteration of the event loop"
    for worker in workers:
        worker.cancel()


@simulated
async def test_concurrent_workers_never_run_a_key_twice_at_once_and_miss_none():
    queue, running, runs = WorkQueue(), set(), Counter()

    async def work():
        while True:
            key = await queue.get()
            assert key not in running
            running.add(key)
            await asyncio.sleep(0.001)
            running.discard(key)
            runs[key] += 1
            queue.done(key, requeue_after=0.01 if runs[key] == 1 and key % 5 == 0 else None)

    workers = [asyncio.create_task(work()) for _ in range(8)]
    for key in range(50):
        queue.add(key)
        if key % 7 == 0:
            await asyncio.sleep(0)
    await wait_until_async(lambda: not (len(queue) or running))
    assert set(runs) == set(range(50))
    assert all(runs[key] >= 2 for key in range(0, 50, 5))
    for worker in workers:
        worker.cancel()
