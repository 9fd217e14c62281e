"""Tests that objects of watches and lists update the cache and enqueue their resource."""

import pytest

from tests.operator.samples import seen as obj
from unmask_operator.controller.event_handler import DEBOUNCE_READY_SECONDS, DEBOUNCE_SECONDS, EventHandler
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.kinds import CHILDREN, DLMS, PODS
from unmask_operator.objects import Key

KEY = Key("ns", "demo")


def handler():
    cache, enqueued = Cache(), []
    return cache, EventHandler(cache, lambda key, seconds: enqueued.append((key, seconds))), enqueued


def ready(value):
    return {"status": {"conditions": [{"type": "Ready", "status": value}]}}


@pytest.mark.parametrize(
    ("kind", "more", "seconds"),
    [
        (DLMS, {}, 0.0),
        (PODS, ready("False"), DEBOUNCE_SECONDS),
        (PODS, ready("True"), DEBOUNCE_READY_SECONDS),
        (CHILDREN[0], {}, DEBOUNCE_SECONDS),
    ],
)
def test_every_change_concerns_the_resource_and_only_those_of_others_are_debounced(kind, more, seconds):
    cache, events, enqueued = handler()
    for change, version in (("ADDED", 3), ("MODIFIED", 4), ("MODIFIED", 4), ("DELETED", 5)):
        events.on_event(kind, change, obj(version, **more))
        assert bool(cache.holds(kind)) == (change != "DELETED")
    assert enqueued == [(KEY, seconds)] * 3


def test_objects_of_a_list_replace_older_ones_and_missing_ones_are_removed_unless_they_are_newer():
    cache, events, enqueued = handler()
    events.on_event(DLMS, "MODIFIED", obj(3, spec={}))
    events.on_event(DLMS, None, obj(3, spec={"new": 1}))  # the watch lacks a new field
    assert cache.resource(KEY)["spec"] == {"new": 1}
    for version, name in ((3, "stays"), (4, "old"), (90, "newer")):
        events.on_event(PODS, "ADDED", obj(version, name))
    enqueued.clear()
    events.on_list(PODS, None, {(Key("ns", "stays"), "u-stays")}, 50)
    assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["newer", "stays"]
    assert enqueued == [(KEY, 0.0)]
