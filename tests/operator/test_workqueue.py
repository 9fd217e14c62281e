"""Tests of the work queue, with a clock that the tests advance and in simulated time."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.simulated_time import simulated
from tests.wait import wait_until_async
from unmask_operator.controller.workqueue import WorkQueue


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def queue(clock):
    return WorkQueue(lambda: clock.now)


def test_keys_run_once_first_come_first_served_and_again_after_their_end(queue):
    for key in "cacb":
        queue.add(key)
    assert [queue.try_get() for _ in range(4)] == ["c", "a", "b", None]
    for key in "ad":
        queue.add(key)
    assert [queue.try_get(), queue.try_get()] == ["d", None]  # the second run of a does not delay d
    queue.done("a")
    assert queue.try_get() == "a"


def test_the_earlier_of_two_times_counts(queue, clock):
    for seconds in (10, 2, 5):
        queue.add("a", seconds)
    for clock.now, key in ((1.9, None), (2, "a")):
        assert queue.try_get() == key
    queue.done("a", requeue_after=28)
    for clock.now, key in ((29.9, None), (30, "a"), (60, None)):
        assert queue.try_get() == key


def test_pauses_after_failures_grow_for_each_key_until_it_succeeds(queue):
    for key, pause in (("a", 1), ("a", 2), ("b", 1), ("a", 4)):
        queue.add(key)
        assert queue.try_get() == key
        assert queue.add_rate_limited(key) == pause
    queue.done("a")
    assert queue.add_rate_limited("a") == 1
    assert queue.add_rate_limited("b") == 2


@pytest.mark.parametrize("during_the_run", [True, False])
def test_an_edit_does_not_wait_for_the_pause_of_a_failure(queue, during_the_run):
    queue.add("a")
    queue.try_get()
    if during_the_run:
        queue.add("a")
    queue.add_rate_limited("a")
    if not during_the_run:
        queue.add("a")
    assert queue.try_get() == "a"
    queue.done("a")
    assert len(queue) == 0


@simulated
async def test_other_tasks_run_between_reconciles_that_never_wait():
    queue, runs, burst = WorkQueue(lambda: 0.0), [], 0

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
