"""Tests that objects of watches and lists update the cache and enqueue their resource."""

import pytest

from unmask_operator.controller.event_handler import DEBOUNCE_READY_SECONDS, DEBOUNCE_SECONDS, EventHandler
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.kinds import CHILDREN, DLMS, PODS, kind_of
from unmask_operator.objects import SERVICE_LABEL, Key

KEY = Key("ns", "demo")
DEPLOYMENTS = kind_of("apps/v1", "Deployment")


def obj(version, name="demo", **more):
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": meta | {"labels": {SERVICE_LABEL: "demo"}}, **more}


def handler():
    cache, enqueued = Cache(), []
    return cache, EventHandler(cache, lambda key, seconds: enqueued.append((key, seconds))), enqueued


READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
UNREADY = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}


@pytest.mark.parametrize(
    ("kind", "name", "more", "seconds"),
    [
        (DLMS, "demo", {}, 0.0),
        (PODS, "a-pod", UNREADY, DEBOUNCE_SECONDS),
        (PODS, "a-pod", READY, DEBOUNCE_READY_SECONDS),
        *((kind, "child", {}, DEBOUNCE_SECONDS) for kind in CHILDREN),
    ],
)
def test_every_change_concerns_the_resource_and_only_those_of_others_are_debounced(kind, name, more, seconds):
    cache, events, enqueued = handler()
    for change, version in (("ADDED", 3), ("MODIFIED", 4), ("DELETED", 5)):
        events.on_event(kind, change, obj(version, name, **more))
        assert bool(cache.holds(kind)) == (change != "DELETED")
    assert enqueued == [(KEY, seconds)] * 3


def test_an_unchanged_object_enqueues_nothing():
    _, events, enqueued = handler()
    for change in ("ADDED", "MODIFIED", None):
        events.on_event(DEPLOYMENTS, change, obj(3))
    assert len(enqueued) == 1
    events.on_event(DEPLOYMENTS, "DELETED", obj(4, "another"))
    assert len(enqueued) == 1


def test_an_object_of_a_list_replaces_one_without_a_new_field():
    cache, events, enqueued = handler()
    events.on_event(DLMS, "MODIFIED", obj(3, spec={}))
    events.on_event(DLMS, None, obj(3, spec={"new": 1}))
    assert cache.resource(KEY)["spec"] == {"new": 1}
    assert enqueued == [(KEY, 0.0)] * 2


def test_objects_missing_in_a_complete_list_are_removed_unless_they_are_newer():
    cache, events, enqueued = handler()
    for version, name in ((3, "stays"), (4, "old"), (90, "newer")):
        events.on_event(PODS, "ADDED", obj(version, name))
    enqueued.clear()
    events.on_list(PODS, None, {(Key("ns", "stays"), "u-stays")}, 50)
    assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["newer", "stays"]
    assert enqueued == [(KEY, 0.0)]
