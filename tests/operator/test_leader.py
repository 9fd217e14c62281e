"""How soon news leads to a reconcile, and what the looks at everything bring."""

import asyncio

import pytest

from tests.operator.samples import resource
from unmask_operator.client.errors import ApiError
from unmask_operator.client.kinds import CHILDREN, PODS, SERVICES
from unmask_operator.client.store import Store
from unmask_operator.controller import leader
from unmask_operator.controller.leader import (
    KINDS,
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
        self.listed: list = []
        self.version = 7
        self.late = False

    async def has_api(self, kind):
        return self.late

    async def list(self, kind, namespace=None, selector="", keep=None):
        self.listed.append(kind)
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
        assert await one.resync() == [PODS]
        await asyncio.sleep(0)
        return await asyncio.wait_for(queue.get(), 1)

    assert asyncio.run(scene()) == ("ns", "demo")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_kind_that_cannot_be_listed_is_named_and_holds_up_only_what_needs_it(kind, caplog):
    client, store = Fallible(), Store()
    client.fails, client.late = {kind}, True
    metrics = Metrics(store, lambda: 0)
    one = Leader(client, store, WorkQueue(lambda: 0.0), Settings(), metrics)
    assert asyncio.run(one.resync()) == [kind]
    assert one.known.is_set() == (kind.kind not in ("DiffusionLMService", "Pod", "Deployment", "ControllerRevision"))
    assert f"cannot list {kind.plural}: no (500 InternalError)" in caplog.text
    assert metrics.registry.get_sample_value("unmask_operator_api_errors_total", {"status": "500"}) == 1


def rounds(monkeypatch, one, count, fails=None):
    """The pauses between so many rounds; `fails` tells which kinds fail after each."""
    pauses: list[float] = []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == count:
            raise asyncio.CancelledError
        if fails:
            one._client.fails = fails(len(pauses))

    monkeypatch.setattr(leader.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(one._resync_for_ever())
    return pauses


def test_what_could_not_be_listed_is_soon_tried_again_and_nothing_else(monkeypatch):
    client, store = Fallible(), Store()
    one = Leader(client, store, WorkQueue(lambda: 0.0), Settings(), Metrics(store, lambda: 0))
    client.fails = {PODS}
    pauses = rounds(monkeypatch, one, 9, lambda past: {PODS} if past < 7 else set())
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, SECOND_RESYNC_SECONDS, RESYNC_SECONDS]
    assert [client.listed.count(kind) for kind in (SERVICES, PODS)] == [2, 9]


def test_everything_is_looked_at_again_without_a_list():
    client, store, queue = Fallible(), Store(), WorkQueue(lambda: 0.0)
    one = Leader(client, store, queue, Settings(), Metrics(store, lambda: 0))
    store.put(SERVICES, resource() | {"metadata": resource()["metadata"] | {"resourceVersion": "1"}})
    asyncio.run(one._look_at_all())
    assert (len(queue), client.listed) == (1, [])


@pytest.mark.parametrize("late", [False, True])
def test_lists_are_rare_but_where_a_kind_is_not_watched(monkeypatch, late):
    client, store = Fallible(), Store()
    one = Leader(client, store, WorkQueue(lambda: 0.0), Settings(), Metrics(store, lambda: 0))

    def comes(past):
        client.late = late
        return set()

    pauses = rounds(monkeypatch, one, 3, comes)
    assert pauses == [SECOND_RESYNC_SECONDS] + [UNWATCHED_RESYNC_SECONDS if late else RESYNC_SECONDS] * 2
