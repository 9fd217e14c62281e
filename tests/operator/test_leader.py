"""How soon news leads to a reconcile, and what the looks at everything bring."""

import asyncio

import pytest

from tests.operator.samples import resource
from unmask_operator.client.errors import ApiError
from unmask_operator.client.kinds import CHILDREN, PODS, SERVICES
from unmask_operator.client.store import Store, WentBack
from unmask_operator.controller import leader
from unmask_operator.controller.leader import (
    LOOK_AGAIN_SECONDS,
    RESYNC_SECONDS,
    SECOND_RESYNC_SECONDS,
    SETTLE_READY_SECONDS,
    SETTLE_SECONDS,
    UNWATCHED_RESYNC_SECONDS,
    Leader,
    settle_seconds,
)
from unmask_operator.controller.queue import WorkQueue
from unmask_operator.objects import SERVICE_LABEL
from unmask_operator.process.metrics import Metrics
from unmask_operator.settings import Settings


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


class Fallible:
    """A client whose lists hold one Service and fail for the kinds of `fails`."""

    def __init__(self):
        self.fails: set = set()
        self.looks = 0
        self.version = 7

    async def has_api(self, kind):
        return False

    async def list(self, kind, namespace=None, selector="", keep=None):
        self.looks += kind is SERVICES
        if kind in self.fails:
            raise ApiError(500, "InternalError", "no")
        meta = {"name": "demo", "namespace": "ns", "uid": kind.kind, "resourceVersion": "7"}
        items = {"Service": [{"metadata": meta | {"labels": {SERVICE_LABEL: "demo"}}}]}
        return items.get(kind.kind, []), self.version


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


def test_a_list_that_went_back_ends_the_lead():
    """The process with it: kopf's watches would wait for resource versions that are long in coming."""
    client, store = Fallible(), Store()
    one = Leader(client, store, WorkQueue(lambda: 0.0), Settings(), Metrics(store, lambda: 0))
    asyncio.run(one.resync())
    client.version = 6
    with pytest.raises(WentBack):
        asyncio.run(one.resync())


def test_everything_is_looked_at_again_and_again_without_a_list(monkeypatch):
    client, store, queue, pauses = Fallible(), Store(), WorkQueue(lambda: 0.0), []
    one = Leader(client, store, queue, Settings(), Metrics(store, lambda: 0))
    store.put(SERVICES, resource() | {"metadata": resource()["metadata"] | {"resourceVersion": "1"}})

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(leader.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(one._look_again_for_ever())
    assert (len(queue), client.looks, pauses) == (1, 0, [LOOK_AGAIN_SECONDS] * 2)


@pytest.mark.parametrize("late", [False, True])
def test_lists_are_rare_but_where_a_kind_is_not_watched(monkeypatch, late):
    client, store, pauses = Fallible(), Store(), []
    one = Leader(client, store, WorkQueue(lambda: 0.0), Settings(), Metrics(store, lambda: 0))
    asyncio.run(one._first_resync())

    async def has_api(kind):
        return late

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    client.has_api = has_api
    monkeypatch.setattr(leader.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(one._resync_for_ever())
    assert pauses == [SECOND_RESYNC_SECONDS] + [UNWATCHED_RESYNC_SECONDS if late else RESYNC_SECONDS] * 2
