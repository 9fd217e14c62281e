"""Tests of the resync in simulated time: each kind is listed at the start, after lists by kopf, and periodically."""

import asyncio
import contextlib
import itertools
import sys

import pytest

from tests.simulated_time import now, simulated
from tests.wait import wait_until_async
from unmask_operator.controller import resync as module
from unmask_operator.controller.event_handler import EventHandler
from unmask_operator.controller.resync import (
    AFTER_KOPF_SECONDS,
    DISCOVERY_SECONDS,
    LONGEST_RETRY_SECONDS,
    NEEDED,
    OPTIONAL_SECONDS,
    PERIOD_SECONDS,
    STEP_SECONDS,
    Resync,
)
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import CACHED, CHILDREN, DLMS, POD_MONITORS, PODS, kind_of
from unmask_operator.metrics import Metrics
from unmask_operator.objects import SERVICE_LABEL, Key
from unmask_operator.plan.plan import MISSING_CRD
from unmask_operator.settings import Settings

KEY = Key("ns", "demo")
NOT_FOUND = ApiError(404, "NotFound", "the server could not find the requested resource")
REFUSALS = [
    ApiError(403, "Forbidden", "pods is forbidden"),
    ApiError(410, "Expired", "the continue token is too old"),
    ApiError(429, "TooManyRequests", "try again later", 1.0),
    ApiError(500, "InternalError", "no"),
    ApiError(0, "Unreachable", "no answer from the API server"),
]


def obj(version, name="p", **more):
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": meta | {"labels": {SERVICE_LABEL: "demo"}}, **more}


class Scene:
    """Runs a resync with a fake client and records what it enqueues.

    The client lists the `objects` of a kind, or raises its error in `errors`. Each list takes a millisecond.

    Attributes:
        tries: time, kind and namespace of each list.
    """

    def __init__(self, objects=(), errors=(), version=7, **settings):
        self.objects, self.errors, self.version = dict(objects), dict(errors), version
        self.tries, self.enqueued = [], []
        self.at_once = self.max_at_once = 0
        self.cache = Cache()
        self.metrics = Metrics(self.cache, lambda: 0)
        events = EventHandler(self.cache, lambda key, seconds: self.enqueued.append(key))
        self.resync = Resync(self, self.cache, events, Settings(**settings), self.metrics)

    async def list(self, kind, namespace, selector, transform):
        self.tries.append((now(), kind, namespace))
        self.at_once += 1
        self.max_at_once = max(self.at_once, self.max_at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if kind in self.errors:
            raise self.errors[kind]
        return [transform(item) for item in self.objects.get(kind, ())], self.version

    def times(self, kind):
        return [round(at) for at, tried, _ in self.tries if tried is kind]

    def pauses(self, kind):
        return [later - earlier for earlier, later in itertools.pairwise(self.times(kind))]


@contextlib.asynccontextmanager
async def running(*args, seconds=180.0, **kwargs):
    """Yields a scene whose resync has run for this time and continues."""
    scene = Scene(*args, **kwargs)
    task = asyncio.create_task(scene.resync.run())
    await asyncio.sleep(seconds)
    yield scene
    assert not task.done()
    task.cancel()


@simulated
async def test_the_number_of_concurrent_lists_is_limited():
    async with running(watch_namespaces=("a", "b")) as scene:
        assert scene.resync.synced.is_set()
    listed = [(kind, namespace) for _, kind, namespace in scene.tries]
    assert sorted(map(str, listed)) == sorted(str((kind, name)) for kind in CACHED for name in ("a", "b"))
    assert scene.max_at_once == module.LISTS_AT_ONCE


CANNOT_BE_LISTED = [
    *((kind, REFUSALS[0]) for kind in CACHED),
    *((kind, error) for kind in (PODS, POD_MONITORS) for error in REFUSALS[1:]),
]


@pytest.mark.parametrize(("kind", "error"), CANNOT_BE_LISTED, ids=lambda one: getattr(one, "kind", None) or one.reason)
@simulated
async def test_a_kind_that_cannot_be_listed_is_named_and_prevents_the_sync_only_if_needed(kind, error, caplog):
    objects = {one: [obj(7, one.kind)] for one in (kind_of("v1", "Service"), PODS) if one is not kind}
    async with running(objects, {kind: error}) as scene:
        assert scene.resync.synced.is_set() == (kind not in NEEDED)
    assert {need.kind for need in NEEDED} == {"DiffusionLMService", "Pod", "Deployment", "ControllerRevision"}
    assert f"cannot list {kind.plural}: {error}" in caplog.text
    failures = {"status": str(error.status)}
    assert scene.metrics.registry.get_sample_value("unmask_operator_api_errors_total", failures) >= 1
    assert scene.enqueued == [KEY] * len(objects), "objects of the other lists were not enqueued"


@simulated
async def test_the_cache_is_not_synced_before_every_kind_was_attempted(monkeypatch):
    """Checks this because a new leader with an incomplete cache would try to create children that exist."""
    answer = Scene.list

    async def slow(self, kind, *args, **kwargs):
        if kind is CHILDREN[0]:
            await asyncio.Event().wait()
        return await answer(self, kind, *args, **kwargs)

    monkeypatch.setattr(Scene, "list", slow)
    async with running() as scene:
        assert not scene.resync.synced.is_set()


@simulated
async def test_a_list_that_fails_for_ten_minutes_is_tried_after_growing_pauses_and_then_succeeds():
    async with running({PODS: [obj(3)]}, {PODS: REFUSALS[0]}, seconds=600) as scene:
        assert not scene.resync.synced.is_set()
        assert not scene.cache.pods(KEY)
        assert scene.pauses(PODS)[:5] == [1, 2, 4, 8, 16]
        assert set(scene.pauses(PODS)[5:]) == {LONGEST_RETRY_SECONDS}
        del scene.errors[PODS]
        await asyncio.sleep(2 * LONGEST_RETRY_SECONDS)
        assert scene.resync.synced.is_set()
        assert scene.cache.pods(KEY)


@simulated
async def test_every_kind_is_listed_periodically():
    async with running(seconds=35 * 60) as scene:
        for kind in CACHED:
            assert scene.times(kind) == [0, PERIOD_SECONDS, 2 * PERIOD_SECONDS, 3 * PERIOD_SECONDS], kind


@pytest.mark.parametrize("kind", [DLMS, PODS, *CHILDREN], ids=lambda kind: kind.kind)
@simulated
async def test_objects_deleted_while_no_watch_was_open_are_removed_after_a_list_by_kopf(kind):
    """Simulates kopf after an expired version: it lists again and reports no deletions."""
    async with running({kind: [obj(3, "demo"), obj(4, "gone")]}, seconds=100) as scene:
        scene.enqueued.clear()
        scene.objects[kind], scene.version = [obj(3, "demo")], 20
        for _ in range(3):  # one call per page
            scene.resync.kopf_has_listed(kind.path(None))
        await asyncio.sleep(AFTER_KOPF_SECONDS + 2 * STEP_SECONDS)
    if kind is not POD_MONITORS:  # it is also listed each minute
        assert scene.times(kind) == [0, pytest.approx(100 + AFTER_KOPF_SECONDS, abs=STEP_SECONDS)]
    assert scene.enqueued == [Key("ns", "gone") if kind is DLMS else KEY]
    assert [one["metadata"]["name"] for one in scene.cache._objects[kind.api].values()] == ["demo"]


@simulated
async def test_lists_of_other_paths_by_kopf_are_ignored():
    async with running(seconds=1) as scene:
        for path in ("/apis", "/api/v1/nodes", "/api/v1/namespaces/other/pods", ""):
            scene.resync.kopf_has_listed(path)
        await asyncio.sleep(60)
        assert len(scene.tries) == len(CACHED)


@pytest.mark.parametrize(
    ("namespace", "items", "version"),
    [("other", [], 700), ("ns", [obj(10)], 20)],
    ids=["of another namespace", "of an etcd that was restored from a backup"],
)
@simulated
async def test_a_list_keeps_objects_that_it_says_nothing_about(namespace, items, version):
    async with running({PODS: [obj(600)]}, version=600, seconds=10, watch_namespaces=("ns", "other")) as scene:
        scene.objects[PODS], scene.version = items, version
        scene.resync.kopf_has_listed(PODS.path(namespace))
        await asyncio.sleep(60)
    (pod,) = scene.cache.pods(KEY)
    assert pod["metadata"]["resourceVersion"] == "600"


def waiting(missing=True):
    conditions = [{"type": "UpToDate", "status": "False", "reason": MISSING_CRD}] if missing else []
    return obj(3, "demo", status={"conditions": conditions})


@pytest.mark.parametrize("waits", [True, False])
@simulated
async def test_a_missing_kind_is_listed_often_if_a_resource_waits_for_it_and_else_rarely(waits):
    async with running({DLMS: [waiting(waits)]}, {POD_MONITORS: NOT_FOUND}, seconds=660) as scene:
        assert scene.resync.synced.is_set()
        assert scene.resync.apis == frozenset()
        assert set(scene.pauses(POD_MONITORS)) == {DISCOVERY_SECONDS if waits else PERIOD_SECONDS}


@simulated
async def test_a_kind_is_listed_soon_after_a_resource_begins_to_wait_for_it():
    async with running(errors={POD_MONITORS: NOT_FOUND}, seconds=100) as scene:
        scene.cache.put(DLMS, waiting())
        await asyncio.sleep(DISCOVERY_SECONDS)
        assert len(scene.times(POD_MONITORS)) == 2


@simulated
async def test_a_kind_that_may_be_absent_is_listed_every_minute_while_it_is_used():
    async with running({POD_MONITORS: [obj(3)]}, seconds=330) as scene:
        assert scene.times(POD_MONITORS) == [OPTIONAL_SECONDS * number for number in range(6)]


@simulated
async def test_a_kind_that_is_installed_and_removed_is_noticed_and_every_resource_reconciled():
    objects = {DLMS: [waiting()], POD_MONITORS: [obj(9, "monitor")]}
    async with running(objects, {POD_MONITORS: NOT_FOUND}, seconds=5) as scene:
        assert scene.resync.apis == frozenset()
        scene.enqueued.clear()
        del scene.errors[POD_MONITORS]
        await wait_until_async(lambda: scene.resync.apis, interval=1.0)
        assert scene.resync.apis == {POD_MONITORS.api}
        assert len(scene.cache.children(KEY)) == 1
        assert scene.enqueued == [KEY, KEY], "the new kind and its object must each enqueue the resource"
        scene.enqueued.clear()
        scene.errors[POD_MONITORS] = REFUSALS[0]
        await asyncio.sleep(2 * PERIOD_SECONDS)
        assert scene.resync.apis == {POD_MONITORS.api}, "a failed list does not mean that the kind is absent"
        assert len(scene.cache.children(KEY)) == 1
        scene.errors[POD_MONITORS] = NOT_FOUND
        await wait_until_async(lambda: not scene.resync.apis, interval=1.0)
        assert scene.cache.children(KEY) == {}
        assert scene.enqueued == [KEY, KEY]


def test_objects_of_a_kind_that_was_not_served_for_a_short_time_return():
    """Checks the case that a list fails as not found, so that no version of a list shows which objects are newer."""
    cache = Cache()
    monitor = {"metadata": {"namespace": "ns", "name": "a", "uid": "u", "resourceVersion": "5", "labels": {}}}
    cache.put(POD_MONITORS, monitor)
    cache.replace(POD_MONITORS, None, set(), sys.maxsize)
    assert not cache.holds(POD_MONITORS)
    cache.put(POD_MONITORS, {"metadata": {**monitor["metadata"], "resourceVersion": "9"}})
    assert cache.holds(POD_MONITORS)
