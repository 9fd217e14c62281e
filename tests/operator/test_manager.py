"""Tests of the leader's tasks, and of its retries in simulated time."""

import asyncio

import pytest

from tests.operator.samples import resource
from tests.simulated_time import now, simulated
from unmask_operator.controller.manager import Manager
from unmask_operator.controller.reconciler import Result
from unmask_operator.controller.workqueue import WorkQueue
from unmask_operator.kinds import DLMS
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.metrics import Metrics
from unmask_operator.objects import Key
from unmask_operator.settings import Settings

SERVICE = resource() | {"metadata": resource()["metadata"] | {"resourceVersion": "1"}}


@simulated
async def test_every_resource_is_enqueued_again_without_a_request():
    cache, queue = Cache(), WorkQueue()
    cache.put(DLMS, SERVICE)
    await manager(None, cache, queue)._requeue_all()
    assert len(queue) == 1


def manager(client, cache, queue, watch=None):
    return Manager(client, cache, queue, Settings(), Metrics(cache, lambda: 0), watch)


class Client:
    """Fake client with empty lists. Its discovery may not contain the resource yet."""

    def __init__(self, *discoveries):
        self.discoveries = list(discoveries)

    async def list(self, *asked, **how):
        await asyncio.sleep(0.1)
        return [], 7

    async def discovers(self, kind):
        assert kind is DLMS
        found = self.discoveries.pop(0)
        if isinstance(found, ApiError):
            raise found
        return found


@simulated
async def test_kopf_starts_once_the_cache_is_synced_and_discovery_shows_the_resource():
    away = ApiError(0, "Unreachable", "no answer from the API server")
    started = []

    async def watch(events, resync):
        assert one.synced.is_set()
        started.append(now())
        raise RuntimeError("kopf has ended")

    one = manager(Client(False, away, False, True), Cache(), WorkQueue(), watch)
    with pytest.raises(BaseExceptionGroup) as ended:
        await one.run()
    assert [str(error) for error in ended.value.exceptions] == ["kopf has ended"]
    assert started[0] > 1 + 2 + 4, "kopf started before the pauses between the four discovery requests had passed"


class Reconciles:
    """Fake reconciler: each reconcile raises the next error, or returns the next result. `at` has their times."""

    def __init__(self, *results):
        self.results, self.at, self.first = list(results), [], []

    async def reconcile(self, key, first_attempt):
        self.at.append(round(now()))
        self.first.append(first_attempt)
        result = self.results.pop(0) if self.results else Result()
        if isinstance(result, Exception):
            raise result
        return result


AWAY = ApiError(503, "ServiceUnavailable", "apiserver is shutting down")
THROTTLED = ApiError(429, "TooManyRequests", "too many requests", 120.0)
# Results of reconciles, and the times of all reconciles.
RESULTS = {
    "no requeue": ([Result()], [0]),
    "a requeue": ([Result(requeue_after=30.0)], [0, 30]),
    "refusals": ([Result(refused=True)] * 3, [0, 1, 3, 7]),
    "errors": ([AWAY] * 10, [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811]),
    "an error with Retry-After": ([THROTTLED, AWAY], [0, 120, 122]),
    "a bug": ([ValueError("no"), Result()], [0, 1]),
}


@pytest.mark.parametrize(("results", "times"), RESULTS.values(), ids=RESULTS)
@simulated
async def test_reconciles_are_repeated_after_growing_pauses_until_they_succeed(results, times):
    queue = WorkQueue()
    one, reconciles = manager(None, Cache(), queue), Reconciles(*results)
    one._reconciler = reconciles
    one._resync.is_synced = lambda key: True
    worker = asyncio.create_task(one._work())
    queue.add(Key("default", "demo"))
    await asyncio.sleep(2000)
    assert not worker.done()
    worker.cancel()
    assert reconciles.at == times
    failed = [not isinstance(result, Result) or result.refused for result in results]
    assert reconciles.first == [True, *(not one for one in failed)][: len(times)]
