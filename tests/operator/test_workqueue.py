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


def test_keys_run_once_and_first_come_first_served(queue):
    for key in "cacb":
        queue.add(key)
    assert [queue.try_get() for _ in range(4)] == ["c", "a", "b", None]


def test_a_running_key_waits_for_its_end_and_then_runs_again(queue):
    queue.add("a")
    assert queue.try_get() == "a"
    queue.add("a")
    queue.add("b")
    assert queue.try_get() == "b"  # the second run of a does not delay b
    assert queue.try_get() is None
    queue.done("a")
    assert queue.try_get() == "a"


def test_the_earlier_of_two_times_counts(queue, clock):
    for seconds in (10, 2, 5):
        queue.add("a", seconds)
    clock.now = 1.9
    assert queue.try_get() is None
    clock.now = 2
    assert queue.try_get() == "a"
    queue.done("a")
    clock.now = 20
    assert queue.try_get() is None


def test_pauses_after_failures_grow_up_to_five_minutes(queue, clock):
    pauses = []
    queue.add("a")
    for _ in range(12):
        assert queue.try_get() == "a"
        pauses.append(queue.add_rate_limited("a"))
        clock.now += pauses[-1] - 0.01
        assert queue.try_get() is None
        clock.now += 0.02
    assert pauses[:5] == [1, 2, 4, 8, 16]
    assert pauses[-1] == 300


def test_success_resets_the_back_off_of_that_key_only(queue, clock):
    for key in "ab":
        queue.add(key)
        queue.try_get()
    queue.add_rate_limited("a")
    assert queue.add_rate_limited("b") == 1
    clock.now = 1
    assert {queue.try_get(), queue.try_get()} == {"a", "b"}
    queue.done("a")
    assert queue.add_rate_limited("b") == 2
    queue.add("a")
    assert queue.try_get() == "a"
    assert queue.add_rate_limited("a") == 1


def test_the_servers_retry_after_is_a_lower_bound(queue):
    queue.add("a")
    queue.try_get()
    assert queue.add_rate_limited("a", at_least=7) == 7


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


def test_a_key_with_requeue_after_runs_again_at_that_time(queue, clock):
    queue.add("a")
    queue.try_get()
    queue.done("a", requeue_after=30)
    clock.now = 29
    assert queue.try_get() is None
    clock.now = 30
    assert queue.try_get() == "a"


def test_other_tasks_run_between_reconciles_that_never_wait():
    """Checks this with 1000 unchanged resources, 5 ms each by the test's clock."""
    spent, worst = [0.0], [0.0]

    async def scene() -> None:
        queue: WorkQueue[int] = WorkQueue(lambda: 0.0)

        async def work() -> None:
            while True:
                key = await queue.get()
                spent[0] += 0.005
                queue.done(key)

        async def everything_else() -> None:
            while True:
                before = spent[0]
                await asyncio.sleep(0)
                worst[0] = max(worst[0], spent[0] - before)

        for key in range(1000):
            queue.add(key)
        tasks = [asyncio.create_task(work()) for _ in range(16)] + [asyncio.create_task(everything_else())]
        await wait_until_async(lambda: not len(queue), interval=0)
        for task in tasks:
            task.cancel()

    asyncio.run(scene())
    assert spent[0] == pytest.approx(5.0)
    assert worst[0] == pytest.approx(0.005), "two reconciles ran in one iteration of the event loop"


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
