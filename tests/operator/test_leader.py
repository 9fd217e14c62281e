"""What the leading pod does without the API server."""

import asyncio

from tests.operator.samples import resource
from unmask_operator.client.kinds import SERVICES
from unmask_operator.client.store import Store
from unmask_operator.controller.leader import Leader
from unmask_operator.controller.queue import WorkQueue
from unmask_operator.process.metrics import Metrics
from unmask_operator.settings import Settings


def test_everything_is_looked_at_again_without_a_request():
    store, queue = Store(), WorkQueue(lambda: 0.0)
    one = Leader(None, store, queue, Settings(), Metrics(store, lambda: 0))
    store.put(SERVICES, resource() | {"metadata": resource()["metadata"] | {"resourceVersion": "1"}})
    asyncio.run(one._look_at_all())
    assert len(queue) == 1
