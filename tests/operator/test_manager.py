"""Tests of the leader's tasks, and of its retries in simulated time."""

import asyncio
import itertools

import pytest

from tests.operator.samples import resource
from tests.simulated_time import now, simulated
from unmask_operator.controller.manager import Manager
from unmask_operator.controller.workqueue import WorkQueue
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import DLMS
from unmask_operator.metrics import Metrics
from unmask_operator.objects import Key
from unmask_operator.settings import Settings

SERVICE = resource() | {"metadata": resource()["metadata"] | {"resourceVersion": "1"}}


def test_every_resource_is_enqueued_again_without_a_request():
    cache, queue = Cache(), WorkQueue(lambda: 0.0)
    cache.put(DLMS, SERVICE)
    asyncio.run(manager(None, cache, queue)._requeue_all())
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


class FailingWrites:
    """Fake API that fails to create children until `seconds` have passed.

    `tries` and `created` are the times of attempts and of creations.
    """

    def __init__(self, error, seconds):
        self.error, self.seconds = error, seconds
        self.tries, self.created, self.statuses = [], [], []
        self.version = 1

    def _numbered(self, obj):
        self.version += 1
        return {**obj, "metadata": {"uid": "a", **obj["metadata"], "resourceVersion": str(self.version)}}

    async def create(self, obj, dry_run=False):
        if obj["kind"] == "Event":
            return self._numbered(obj)
        self.tries.append(now())
        if now() < self.seconds:
            raise self.error
        if not dry_run:
            self.created.append(now())
        return self._numbered(obj)

    async def patch_status(self, namespace, name, uid, patch):
        self.statuses.append(patch)
        return self._numbered({**SERVICE, "status": patch})


@pytest.mark.parametrize(
    ("error", "seconds", "first_retry"),
    [
        (ApiError(403, "Forbidden", "services is forbidden"), 600, 1),
        (ApiError(429, "TooManyRequests", "too many requests", 120.0), 100, 120),
        (ApiError(0, "Unreachable", "no answer from the API server"), 300, 1),
        (ApiError(503, "ServiceUnavailable", "apiserver is shutting down"), 300, 1),
    ],
)
@simulated
async def test_writes_that_fail_for_minutes_are_retried_after_growing_pauses_and_then_succeed(
    error, seconds, first_retry
):
    cache, queue, client = Cache(), WorkQueue(), FailingWrites(error, seconds)
    cache.put(DLMS, SERVICE)
    worker = asyncio.create_task(manager(client, cache, queue)._work())
    queue.add(Key("default", "demo"))
    while not client.created:
        await asyncio.sleep(1)
        assert not worker.done()
        assert now() < 2 * seconds + 300
    await asyncio.sleep(1)
    worker.cancel()
    times = sorted(set(client.tries))
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[0] == pytest.approx(first_retry, abs=0.5)
    assert len(times) <= 13
    assert client.created[0] <= 2 * seconds + 60
    accepted = [c for c in client.statuses[-1]["conditions"] if c["type"] == "Accepted"]
    assert accepted[0]["status"] == "True"
