"""Tests of the resync in simulated time: each kind is listed at the start, after lists by kopf, and periodically."""

import asyncio
import contextlib
import itertools
import sys

import pytest

from tests.operator.samples import seen as obj
from tests.simulated_time import now, simulated
from tests.wait import wait_until_async
from unmask_operator.controller import resync as module
from unmask_operator.controller.resync import (
    AFTER_KOPF_SECONDS,
    DISCOVERY_SECONDS,
    LONGEST_RETRY_SECONDS,
    PERIOD_SECONDS,
    EventHandler,
)
from unmask_operator.kinds import (
    CACHED,
    CHILDREN,
    DLMS,
    GRANTED,
    HTTP_ROUTES,
    OPTIONAL,
    POD_MONITORS,
    PODS,
    kind_of,
)
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.metrics import Metrics
from unmask_operator.objects import Key
from unmask_operator.plan.optional_kinds import MISSING_CRD
from unmask_operator.settings import Settings

KEY = Key("ns", "demo")
GRANTS = dict.fromkeys(GRANTED.values(), True)
NOT_FOUND = ApiError(404, "NotFound", "the server could not find the requested resource")
FORBIDDEN = ApiError(403, "Forbidden", "pods is forbidden")
AWAY = ApiError(0, "Unreachable", "no answer from the API server")


def waiting(missing=True, kind="UpToDate", reason=MISSING_CRD):
    conditions = [{"type": kind, "status": "False", "reason": reason}] if missing else []
    return obj(3, "demo", status={"conditions": conditions})


class Scene:
    """Runs a resync with a fake client and records what it enqueues.

    The client lists the `objects` of a kind, or raises its error in `errors` (by kind, or by kind and namespace), or
    never answers about `silent` ones. Each list takes a millisecond. `tries` has the time, kind and namespace of each.
    """

    def __init__(self, objects=(), errors=(), version=7, silent=(), **settings):
        self.objects, self.errors, self.version, self.silent = dict(objects), dict(errors), version, silent
        self.tries, self.enqueued = [], []
        self.at_once = self.max_at_once = 0
        self.cache = Cache()
        self.metrics = Metrics(self.cache, lambda: 0)
        events = EventHandler(self.cache, lambda key, seconds: self.enqueued.append(key))
        self.resync = module.Resync(
            self, self.cache, events, Settings(**{"gateway": True, "dra": True, **settings}), self.metrics
        )

    async def list(self, kind, namespace, selector, transform):
        self.tries.append((now(), kind, namespace))
        self.at_once += 1
        self.max_at_once = max(self.at_once, self.max_at_once)
        await asyncio.sleep(1e9 if kind in self.silent else 0.001)
        self.at_once -= 1
        if error := self.errors.get(kind) or self.errors.get((kind, namespace)):
            raise error
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
async def test_every_kind_is_listed_in_each_namespace_and_few_at_once():
    for grants in (True, False):  # kinds without a grant of the chart are not listed
        async with running(watch_namespaces=("a", "b"), **dict.fromkeys(GRANTS, grants)) as scene:
            assert scene.resync.synced.is_set()
        listed, kinds = [tried[1:] for tried in scene.tries], [one for one in CACHED if grants or one not in GRANTED]
        assert sorted(map(str, listed)) == sorted(str((kind, name)) for kind in kinds for name in ("a", "b"))
        assert scene.max_at_once == module.LISTS_AT_ONCE


CANNOT_BE_LISTED = [*((kind, FORBIDDEN) for kind in CACHED), (PODS, AWAY), (PODS, NOT_FOUND)]


@pytest.mark.parametrize(("kind", "error"), CANNOT_BE_LISTED, ids=lambda one: getattr(one, "kind", None) or one.reason)
@simulated
async def test_a_kind_that_cannot_be_listed_is_named_and_prevents_the_sync_only_if_needed(kind, error, caplog):
    objects = {one: [obj(7, one.kind)] for one in (kind_of("v1", "Service"), PODS) if one is not kind}
    async with running(objects, {kind: error}, **GRANTS) as scene:
        assert scene.resync.synced.is_set() == (kind not in module.NEEDED)
    assert {need.kind for need in module.NEEDED} == {"DiffusionLMService", "Pod", "Deployment", "ControllerRevision"}
    assert f"cannot list {kind.plural}: {error}" in caplog.text
    assert ("CustomResourceDefinition" in caplog.text) == (error is NOT_FOUND)
    failures = {"status": str(error.status)}
    assert scene.metrics.registry.get_sample_value("unmask_operator_api_errors_total", failures) >= 1
    assert scene.enqueued == [KEY] * len(objects), "objects of the other lists were not enqueued"


@simulated
async def test_a_namespace_that_cannot_be_listed_stops_no_other_one_and_is_reconciled_once_it_can(caplog):
    kind, mine, other = kind_of("apps/v1", "Deployment"), Key("a", "demo"), Key("b", "demo")
    resources = [waiting(), waiting()]
    for one, key in zip(resources, (mine, other), strict=True):
        one["metadata"] |= {"namespace": key.namespace, "uid": key.namespace}
    async with running({DLMS: resources}, {(kind, "b"): FORBIDDEN}, watch_namespaces=("a", "b")) as scene:
        unlisted = "unmask_operator_unlisted_namespaces"
        assert scene.resync.synced.is_set()
        assert [scene.resync.is_synced(key) for key in (mine, other)] == [True, False]
        assert "namespace b was deleted" in caplog.text
        assert scene.metrics.registry.get_sample_value(unlisted) == 1
        scene.enqueued.clear()
        scene.errors.clear()
        await asyncio.sleep(LONGEST_RETRY_SECONDS)
        assert scene.resync.is_synced(other)
        assert other in scene.enqueued
        assert scene.metrics.registry.get_sample_value(unlisted) == 0
        scene.errors[kind, "b"] = FORBIDDEN  # a namespace that is deleted later
        scene.resync.kopf_has_listed(kind.path("b"))
        await asyncio.sleep(2 * AFTER_KOPF_SECONDS)
        assert scene.resync.is_synced(other), "its objects are in the cache"
        assert scene.metrics.registry.get_sample_value(unlisted) == 1


@simulated
async def test_the_cache_is_not_synced_before_every_kind_was_attempted():
    """A new leader with an incomplete cache would try to create children that exist."""
    async with running(silent=[CHILDREN[0]]) as scene:
        assert not scene.resync.synced.is_set()


@simulated
async def test_a_list_that_fails_for_ten_minutes_is_tried_after_growing_pauses_and_then_succeeds():
    async with running({PODS: [obj(3)]}, {PODS: FORBIDDEN}, seconds=600) as scene:
        assert not scene.resync.synced.is_set()
        assert not scene.cache.pods(KEY)
        assert scene.pauses(PODS)[:5] == [1, 2, 4, 8, 16]
        assert set(scene.pauses(PODS)[5:]) == {LONGEST_RETRY_SECONDS}
        del scene.errors[PODS]
        await asyncio.sleep(2 * LONGEST_RETRY_SECONDS)
        assert scene.resync.synced.is_set()
        assert scene.cache.pods(KEY)


# The objects and errors of lists, the kind, and the pauses between its lists.
PAUSES = {
    "a kind": ({}, {}, PODS, PERIOD_SECONDS),
    "a kind that may be absent and is used": ({POD_MONITORS: [obj(3)]}, {}, POD_MONITORS, module.OPTIONAL_SECONDS),
    "one that is not used": ({}, {}, POD_MONITORS, PERIOD_SECONDS),
    "one that is absent": ({DLMS: [waiting(False)]}, {POD_MONITORS: NOT_FOUND}, POD_MONITORS, PERIOD_SECONDS),
    "a route that Gateways have accepted": (
        {DLMS: [waiting(kind="RouteReady", reason="Accepted")], HTTP_ROUTES: [obj(3)]}, {},
        HTTP_ROUTES, module.OPTIONAL_SECONDS,
    ),
    "one on which no Gateway has reported": (
        {DLMS: [waiting(kind="RouteReady", reason="Waiting")], HTTP_ROUTES: [obj(3)]}, {},
        HTTP_ROUTES, DISCOVERY_SECONDS,
    ),
    "one that is not there": (
        {DLMS: [waiting(kind="RouteReady", reason="Waiting")]}, {}, HTTP_ROUTES, DISCOVERY_SECONDS,
    ),
    "one of which a write may have failed": (
        {DLMS: [waiting(reason="ApiError")]}, {}, POD_MONITORS, module.OPTIONAL_SECONDS
    ),
    "one that a resource waits for": ({DLMS: [waiting()]}, {POD_MONITORS: NOT_FOUND}, POD_MONITORS, DISCOVERY_SECONDS),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "errors", "kind", "pause"), PAUSES.values(), ids=PAUSES)
@simulated
async def test_a_kind_is_listed_more_often_if_no_watch_reports_it_and_a_resource_needs_it(objects, errors, kind, pause):
    async with running(objects, errors, seconds=35 * 60) as scene:
        assert scene.resync.synced.is_set()
        assert (POD_MONITORS.api in scene.resync.apis) == (not errors)
        assert set(scene.pauses(kind)) == {pause}


@pytest.mark.parametrize("kind", [DLMS, PODS, CHILDREN[0]], ids=lambda kind: kind.kind)
@simulated
async def test_objects_deleted_while_no_watch_was_open_are_removed_after_a_list_by_kopf(kind):
    """After an expired version kopf lists again and reports no deletions."""
    async with running({kind: [obj(3, "demo"), obj(4, "gone")]}, seconds=100) as scene:
        scene.enqueued.clear()
        scene.objects[kind], scene.version = [obj(3, "demo")], 20
        tries = len(scene.tries)
        for path in ("/apis", "/api/v1/nodes", "/api/v1/namespaces/other/pods", "", *[kind.path(None)] * 3):
            scene.resync.kopf_has_listed(path)  # one call per page
        await asyncio.sleep(AFTER_KOPF_SECONDS + 2 * module.STEP_SECONDS)
        listed = [one for _, one, _ in scene.tries[tries:] if one not in OPTIONAL]  # those each minute
    assert listed == [kind]
    assert scene.times(kind)[-1] == pytest.approx(100 + AFTER_KOPF_SECONDS, abs=module.STEP_SECONDS)
    assert scene.enqueued == [Key("ns", "gone") if kind is DLMS else KEY]
    assert [one["metadata"]["name"] for one in scene.cache._objects[kind.api].values()] == ["demo"]


@pytest.mark.parametrize(
    ("listed", "items", "version"),
    [("other", [], 700), ("ns", [obj(10)], 20)],
    ids=["of another namespace", "of an etcd that was restored from a backup"],
)
@simulated
async def test_a_list_keeps_objects_that_it_says_nothing_about(listed, items, version):
    async with running({PODS: [obj(600)]}, version=600, seconds=10, watch_namespaces=("ns", "other")) as scene:
        scene.objects[PODS], scene.version = items, version
        scene.resync.kopf_has_listed(PODS.path(listed))
        await asyncio.sleep(60)
    (pod,) = scene.cache.pods(KEY)
    assert pod["metadata"]["resourceVersion"] == "600"


@simulated
async def test_a_kind_that_is_installed_and_removed_is_noticed_and_every_resource_reconciled():
    async with running({POD_MONITORS: [obj(9, "monitor")]}, {POD_MONITORS: NOT_FOUND}, seconds=100) as scene:
        scene.objects[DLMS] = [waiting()]
        scene.cache.put(DLMS, waiting())
        await asyncio.sleep(DISCOVERY_SECONDS)
        assert len(scene.times(POD_MONITORS)) == 2, "it was not listed soon after a resource began to wait for it"
        assert POD_MONITORS.api not in scene.resync.apis
        del scene.errors[POD_MONITORS]
        await wait_until_async(lambda: POD_MONITORS.api in scene.resync.apis, interval=1.0)
        assert POD_MONITORS.api in scene.resync.apis
        assert len(scene.cache.children(KEY)) == 1
        assert scene.enqueued == [KEY, KEY], "the new kind and its object must each enqueue the resource"
        scene.enqueued.clear()
        scene.errors[POD_MONITORS] = FORBIDDEN
        await asyncio.sleep(2 * PERIOD_SECONDS)
        assert POD_MONITORS.api in scene.resync.apis, "a failed list does not mean that the kind is absent"
        assert len(scene.cache.children(KEY)) == 1
        scene.errors[POD_MONITORS] = NOT_FOUND
        scene.enqueued.clear()
        await wait_until_async(lambda: POD_MONITORS.api not in scene.resync.apis, interval=1.0)
        assert scene.cache.children(KEY) == {}
        assert scene.enqueued == [KEY, KEY]


def test_objects_of_a_kind_that_was_not_served_for_a_short_time_return():
    """A list that fails as not found has no version that shows which objects are newer."""
    cache = Cache()
    cache.put(POD_MONITORS, obj(5))
    cache.replace(POD_MONITORS, None, set(), sys.maxsize)
    assert not cache.holds(POD_MONITORS)
    cache.put(POD_MONITORS, obj(9))
    assert cache.holds(POD_MONITORS)
