"""Tests of the resync in simulated time: each kind is listed at the start, after lists by kopf, and periodically."""

import asyncio
import itertools
import sys

import pytest

from tests.simulated_time import now, run_simulated
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


class Lists:
    """Fake client that lists the `objects` of a kind, or raises its error in `errors`.

    Each list takes a millisecond.
    """

    def __init__(self, objects=(), errors=()):
        self.objects, self.errors = dict(objects), dict(errors)
        self.version = 7
        self.tries = []  # time, kind and namespace
        self.at_once = self.max_at_once = 0

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


class Scene:
    """Runs a resync and records what it enqueues."""

    def __init__(self, client, cache=None, **settings):
        self.client, self.cache, self.enqueued = client, cache or Cache(), []
        self.metrics = Metrics(self.cache, lambda: 0)
        events = EventHandler(self.cache, lambda key, seconds: self.enqueued.append(key))
        self.resync = Resync(client, self.cache, events, Settings(**settings), self.metrics)

    def run(self, act):
        """Runs the resync while `act(self)` runs, and returns this scene."""

        async def scene():
            task = asyncio.create_task(self.resync.run())
            await act(self)
            assert not task.done()
            task.cancel()

        run_simulated(scene())
        return self


async def pass_minutes(scene, minutes=3.0):
    await asyncio.sleep(60 * minutes)


def test_the_number_of_concurrent_lists_is_limited():
    scene = Scene(Lists(), watch_namespaces=("a", "b")).run(pass_minutes)
    assert scene.resync.synced.is_set()
    listed = [(kind, namespace) for _, kind, namespace in scene.client.tries]
    assert sorted(map(str, listed)) == sorted(str((kind, name)) for kind in CACHED for name in ("a", "b"))
    assert scene.client.max_at_once == module.LISTS_AT_ONCE


CANNOT_BE_LISTED = [
    *((kind, REFUSALS[0]) for kind in CACHED),
    *((kind, error) for kind in (PODS, POD_MONITORS) for error in REFUSALS[1:]),
]


@pytest.mark.parametrize(("kind", "error"), CANNOT_BE_LISTED, ids=lambda one: getattr(one, "kind", None) or one.reason)
def test_a_kind_that_cannot_be_listed_is_named_and_prevents_the_sync_only_if_needed(kind, error, caplog):
    objects = {one: [obj(7, one.kind)] for one in (kind_of("v1", "Service"), PODS) if one is not kind}
    scene = Scene(Lists(objects, {kind: error})).run(pass_minutes)
    assert scene.resync.synced.is_set() == (kind not in NEEDED)
    assert {need.kind for need in NEEDED} == {"DiffusionLMService", "Pod", "Deployment", "ControllerRevision"}
    assert f"cannot list {kind.plural}: {error}" in caplog.text
    failures = {"status": str(error.status)}
    assert scene.metrics.registry.get_sample_value("unmask_operator_api_errors_total", failures) >= 1
    assert scene.enqueued == [KEY] * len(objects), "objects of the other lists were not enqueued"


def test_the_cache_is_not_synced_before_every_kind_was_attempted():
    """Checks this because a new leader with an incomplete cache would try to create children that exist."""
    client = Lists()

    async def slow(kind, namespace, selector, transform, answer=client.list):
        if kind is CHILDREN[0]:
            await asyncio.Event().wait()
        return await answer(kind, namespace, selector, transform)

    client.list = slow
    assert not Scene(client).run(pass_minutes).resync.synced.is_set()


def test_a_list_that_fails_for_ten_minutes_is_tried_after_growing_pauses_and_then_succeeds():
    client = Lists({PODS: [obj(3)]}, {PODS: REFUSALS[0]})

    async def ten_minutes(scene):
        await asyncio.sleep(600)
        assert not scene.resync.synced.is_set()
        assert not scene.cache.pods(KEY)
        del client.errors[PODS]
        await asyncio.sleep(2 * LONGEST_RETRY_SECONDS)
        assert scene.resync.synced.is_set()
        assert scene.cache.pods(KEY)

    Scene(client).run(ten_minutes)
    pauses = [later - earlier for earlier, later in itertools.pairwise(client.times(PODS))]
    assert pauses[:5] == [1, 2, 4, 8, 16]
    assert set(pauses[5:]) == {LONGEST_RETRY_SECONDS}


def test_every_kind_is_listed_periodically():
    scene = Scene(Lists()).run(lambda scene: pass_minutes(scene, 35))
    for kind in CACHED:
        assert scene.client.times(kind) == [0, PERIOD_SECONDS, 2 * PERIOD_SECONDS, 3 * PERIOD_SECONDS], kind


@pytest.mark.parametrize("kind", [DLMS, PODS, *CHILDREN], ids=lambda kind: kind.kind)
def test_objects_deleted_while_no_watch_was_open_are_removed_after_a_list_by_kopf(kind):
    """Simulates kopf after an expired version: it lists again and reports no deletions."""
    client = Lists({kind: [obj(3, "demo"), obj(4, "gone")]})

    async def relist(scene):
        await asyncio.sleep(100)
        scene.enqueued.clear()
        client.objects[kind], client.version = [obj(3, "demo")], 20
        for _ in range(3):  # one call per page
            scene.resync.kopf_has_listed(kind.path(None))
        await asyncio.sleep(AFTER_KOPF_SECONDS + 2 * STEP_SECONDS)

    scene = Scene(client).run(relist)
    if kind is not POD_MONITORS:  # it is also listed each minute
        first, second = client.times(kind)
        assert (first, second) == (0, pytest.approx(100 + AFTER_KOPF_SECONDS, abs=STEP_SECONDS))
    assert scene.enqueued == [Key("ns", "gone") if kind is DLMS else KEY]
    names = [one["metadata"]["name"] for one in scene.cache._objects[kind.api].values()]
    assert names == ["demo"]


def test_lists_of_other_paths_by_kopf_are_ignored():
    async def strange(scene):
        await asyncio.sleep(1)
        for path in ("/apis", "/api/v1/nodes", "/api/v1/namespaces/other/pods", ""):
            scene.resync.kopf_has_listed(path)
        await asyncio.sleep(60)

    assert len(Scene(Lists()).run(strange).client.tries) == len(CACHED)


@pytest.mark.parametrize(
    ("namespace", "items", "version"),
    [("other", [], 700), ("ns", [obj(10)], 20)],
    ids=["of another namespace", "of an etcd that was restored from a backup"],
)
def test_a_list_keeps_objects_that_it_says_nothing_about(namespace, items, version):
    client = Lists({PODS: [obj(600)]})
    client.version = 600

    async def relist(scene):
        await asyncio.sleep(10)
        client.objects[PODS], client.version = items, version
        scene.resync.kopf_has_listed(PODS.path(namespace))
        await asyncio.sleep(60)

    (pod,) = Scene(client, watch_namespaces=("ns", "other")).run(relist).cache.pods(KEY)
    assert pod["metadata"]["resourceVersion"] == "600"


def waiting(missing=True):
    conditions = [{"type": "UpToDate", "status": "False", "reason": MISSING_CRD}] if missing else []
    return obj(3, "demo", status={"conditions": conditions})


@pytest.mark.parametrize("waits", [True, False])
def test_a_missing_kind_is_listed_often_if_a_resource_waits_for_it_and_else_rarely(waits):
    client = Lists({DLMS: [waiting(waits)]}, {POD_MONITORS: NOT_FOUND})
    scene = Scene(client).run(lambda scene: pass_minutes(scene, 11))
    assert scene.resync.synced.is_set()
    assert scene.resync.apis == frozenset()
    pauses = {later - earlier for earlier, later in itertools.pairwise(client.times(POD_MONITORS))}
    assert pauses == {DISCOVERY_SECONDS if waits else PERIOD_SECONDS}


def test_a_kind_is_listed_soon_after_a_resource_begins_to_wait_for_it():
    client = Lists(errors={POD_MONITORS: NOT_FOUND})

    async def begin(scene):
        await asyncio.sleep(100)
        scene.cache.put(DLMS, waiting())
        await asyncio.sleep(DISCOVERY_SECONDS)

    assert len(Scene(client).run(begin).client.times(POD_MONITORS)) == 2


def test_a_kind_that_may_be_absent_is_listed_every_minute_while_it_is_used():
    client = Lists({POD_MONITORS: [obj(3)]})
    Scene(client).run(lambda scene: pass_minutes(scene, 5.5))
    assert client.times(POD_MONITORS) == [OPTIONAL_SECONDS * number for number in range(6)]


def test_a_kind_that_is_installed_and_removed_is_noticed_and_every_resource_reconciled():
    client = Lists({DLMS: [waiting()], POD_MONITORS: [obj(9, "monitor")]}, {POD_MONITORS: NOT_FOUND})

    async def come_and_go(scene):
        await asyncio.sleep(5)
        assert scene.resync.apis == frozenset()
        scene.enqueued.clear()
        del client.errors[POD_MONITORS]
        await wait_until_async(lambda: scene.resync.apis, interval=1.0)
        assert scene.resync.apis == {POD_MONITORS.api}
        assert len(scene.cache.children(KEY)) == 1
        assert scene.enqueued == [KEY, KEY], "the new kind and its object must each enqueue the resource"
        scene.enqueued.clear()
        client.errors[POD_MONITORS] = NOT_FOUND
        await wait_until_async(lambda: not scene.resync.apis, interval=1.0)
        assert scene.cache.children(KEY) == {}
        assert scene.enqueued == [KEY, KEY]

    Scene(client).run(come_and_go)


def test_a_failed_list_does_not_mean_that_a_kind_is_absent():
    client = Lists({POD_MONITORS: [obj(9, "monitor")]})

    async def fail(scene):
        await asyncio.sleep(10)
        client.errors[POD_MONITORS] = REFUSALS[0]
        await asyncio.sleep(2 * PERIOD_SECONDS)
        assert scene.resync.apis == {POD_MONITORS.api}
        assert len(scene.cache.children(KEY)) == 1

    Scene(client).run(fail)


def test_objects_of_a_kind_that_was_not_served_for_a_short_time_return():
    """Checks the case that a list fails as not found, so that no version of a list shows which objects are newer."""
    cache = Cache()
    monitor = {"metadata": {"namespace": "ns", "name": "a", "uid": "u", "resourceVersion": "5", "labels": {}}}
    cache.put(POD_MONITORS, monitor)
    cache.replace(POD_MONITORS, None, set(), sys.maxsize)
    assert not cache.holds(POD_MONITORS)
    cache.put(POD_MONITORS, {"metadata": {**monitor["metadata"], "resourceVersion": "9"}})
    assert cache.holds(POD_MONITORS)
