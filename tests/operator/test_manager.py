"""What the leading pod does beside reconciles."""

import asyncio

import pytest

from tests.operator.samples import resource
from tests.simulated_time import now, run_simulated
from unmask_operator.controller.manager import Manager
from unmask_operator.controller.workqueue import WorkQueue
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import DLMS
from unmask_operator.metrics import Metrics
from unmask_operator.settings import Settings


def test_everything_is_looked_at_again_without_a_request():
    cache, queue = Cache(), WorkQueue(lambda: 0.0)
    one = Manager(None, cache, queue, Settings(), Metrics(cache, lambda: 0), None)
    cache.put(DLMS, resource() | {"metadata": resource()["metadata"] | {"resourceVersion": "1"}})
    asyncio.run(one._requeue_all())
    assert len(queue) == 1


class Client:
    """Lists nothing; its discovery lags behind."""

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


def test_kopf_starts_once_the_cache_is_synced_and_discovery_shows_the_resource():
    away = ApiError(0, "Unreachable", "no answer from the API server")
    started = []

    async def watch(events, resync):
        assert one.synced.is_set()
        started.append(now())
        raise RuntimeError("kopf has ended")

    async def scene():
        nonlocal one
        cache = Cache()
        one = Manager(
            Client(False, away, False, True), cache, WorkQueue(), Settings(), Metrics(cache, lambda: 0), watch
        )
        await one.run()

    one = None
    with pytest.raises(BaseExceptionGroup) as ended:
        run_simulated(scene())
    assert [str(error) for error in ended.value.exceptions] == ["kopf has ended"]
    assert started[0] > 1 + 2 + 4, "the pauses between four looks"
