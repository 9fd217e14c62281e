"""How soon news leads to a reconcile, and when nodes are listed."""

import asyncio
from types import SimpleNamespace

import pytest

from unmask_operator.client.errors import ApiError
from unmask_operator.client.kinds import CHILDREN, NODES, PODS, SERVICES
from unmask_operator.client.store import Store
from unmask_operator.controller import leader
from unmask_operator.controller.leader import (
    RESYNC_SECONDS,
    SECOND_RESYNC_SECONDS,
    SETTLE_READY_SECONDS,
    SETTLE_SECONDS,
    Leader,
    settle_seconds,
)
from unmask_operator.controller.queue import WorkQueue
from unmask_operator.objects import SERVICE_LABEL
from unmask_operator.process.metrics import Metrics
from unmask_operator.settings import Settings
from unmask_operator.state.plan import NODES_SECONDS


def _pod(ready: str) -> dict:
    return {"status": {"conditions": [{"type": "Ready", "status": ready}]}}


@pytest.mark.parametrize(
    ("kind", "obj", "seconds"),
    [
        (SERVICES, {}, 0.0),
        (PODS, {}, SETTLE_SECONDS),
        (PODS, _pod("False"), SETTLE_SECONDS),
        (PODS, _pod("True"), SETTLE_READY_SECONDS),
        *((kind, {}, SETTLE_SECONDS) for kind in CHILDREN),
    ],
)
def test_an_edit_is_carried_out_at_once_and_a_burst_of_changes_is_waited_for(kind, obj, seconds):
    assert settle_seconds(kind, obj) == seconds


class Lists:
    """A client that answers with another node for each list of nodes."""

    def __init__(self):
        self.count = 0

    async def list(self, kind):
        assert kind is NODES
        self.count += 1
        return [{"metadata": {"name": f"node-{self.count}"}}], "1"


@pytest.mark.parametrize("granted", [True, False])
def test_nodes_are_listed_for_a_pod_that_finds_none_and_again_when_the_list_is_old(monkeypatch, granted):
    now, client, store = [100.0], Lists(), Store()
    monkeypatch.setattr(leader, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def known(reason):
        pod = {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}]}}
        found = await one._nodes_for([pod])
        return found and found[0]["metadata"]["name"]

    one = Leader(client, store, WorkQueue(lambda: now[0]), Settings(read_nodes=granted), Metrics(store, lambda: 0))
    seen = []
    for reason, later in [("", 0), ("Unschedulable", 0), ("Unschedulable", NODES_SECONDS - 1), ("Unschedulable", 2)]:
        now[0] += later
        seen.append(asyncio.run(known(reason)))
    assert seen == ([None, "node-1", "node-1", "node-2"] if granted else [None] * 4)
    assert client.count == (2 if granted else 0)


def test_one_list_of_nodes_serves_all_who_ask_at_once():
    client, store = Lists(), Store()
    one = Leader(client, store, WorkQueue(lambda: 0.0), Settings(read_nodes=True), Metrics(store, lambda: 0))
    pod = {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}

    async def at_once():
        await asyncio.gather(*(one._nodes_for([pod]) for _ in range(16)))

    asyncio.run(at_once())
    assert client.count == 1


class Fallible:
    """A client whose lists hold one Service and fail for the kinds of `fails`."""

    def __init__(self):
        self.fails: set = set()
        self.looks = 0

    async def has_api(self, kind):
        return False

    async def list(self, kind, namespace=None, selector=""):
        self.looks += kind is SERVICES
        if kind in self.fails:
            raise ApiError(500, "InternalError", "no")
        meta = {"name": "demo", "namespace": "ns", "uid": kind.kind, "resourceVersion": "7"}
        items = {"Service": [{"metadata": meta | {"labels": {SERVICE_LABEL: "demo"}}}]}
        return items.get(kind.kind, []), 7


def test_what_one_list_brings_is_news_though_another_fails():
    client, store, queue = Fallible(), Store(), WorkQueue(lambda: 0.0)
    one = Leader(client, store, queue, Settings(), Metrics(store, lambda: 0))
    client.fails = {PODS}

    async def scene():
        with pytest.raises(ApiError):
            await one.resync()
        await asyncio.sleep(0)
        return await asyncio.wait_for(queue.get(), 1)

    assert asyncio.run(scene()) == ("ns", "demo")


def test_a_round_that_failed_is_soon_made_again(monkeypatch):
    client, store, pauses = Fallible(), Store(), []
    one = Leader(client, store, WorkQueue(lambda: 0.0), Settings(), Metrics(store, lambda: 0))

    async def sleep(seconds):
        pauses.append(seconds)
        client.fails = {PODS} if len(pauses) < 3 else set()
        if len(pauses) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(leader.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(one._resync_for_ever())
    assert pauses == [SECOND_RESYNC_SECONDS] * 3 + [RESYNC_SECONDS]
