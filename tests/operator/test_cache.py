"""Tests of the cache: the newest state remains for any order of events, lists and answers."""

from itertools import permutations

import pytest

from tests.operator import samples
from unmask_operator.controller.resync import DEBOUNCE_READY_SECONDS, DEBOUNCE_SECONDS, EventHandler
from unmask_operator.kinds import CHILDREN, DLMS, PODS, kind_of
from unmask_operator.kube.cache import Cache
from unmask_operator.objects import SERVICE_LABEL, Key, Ref

DEPLOYMENTS = kind_of("apps/v1", "Deployment")
KEY, ELSE = Key("ns", "demo"), Key("ns", "else")


def obj(kind, name, version, uid=None, label="demo", namespace="ns", **more):
    meta = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    if label and kind is not DLMS:
        meta["labels"] = {SERVICE_LABEL: label}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **more}


def pod(version, name="p", **how):
    return obj(PODS, name, version, **how)


@pytest.fixture
def cache():
    return Cache()


def listed(cache, kind, namespace, items, version):
    """Returns the resources that a list changes by its items and by missing items."""
    changed = {cache.put(kind, item, answered=True) for item in items}
    names = {(Key(item["metadata"]["namespace"], item["metadata"]["name"]), item["metadata"]["uid"]) for item in items}
    return (changed | cache.replace(kind, namespace, names, version)) - {None}


def test_an_event_names_the_resource_it_concerns(cache):
    assert cache.put(DLMS, obj(DLMS, "demo", 1)) == KEY
    assert cache.put(DEPLOYMENTS, obj(DEPLOYMENTS, "demo", 2)) == KEY
    assert cache.put(PODS, pod(3)) == KEY
    assert cache.put(DEPLOYMENTS, obj(DEPLOYMENTS, "other", 4, label=None)) is None
    assert cache.resource(KEY)["metadata"]["resourceVersion"] == "1"
    assert set(cache.children(KEY)) == {Ref("apps/v1", "Deployment", "demo")}
    assert [one["metadata"]["name"] for one in cache.pods(KEY)] == ["p"]


# Puts and deletions, each with the resource that it changes, and the remaining version.
STEPS = {
    "the watch repeats an answer": ([("put", pod(5), KEY), ("put", pod(5), None), ("put", pod(4), None)], "5"),
    "deletion": ([("put", pod(5), KEY), ("delete", pod(6), KEY)], None),
    "deletion of an older object": ([("put", pod(5, uid="b"), KEY), ("delete", pod(4, uid="a"), None)], "5"),
    "deletion of an older version": ([("put", pod(5), KEY), ("delete", pod(4), None)], "5"),
    "the label is lost and returns": ([("put", pod(5), KEY), ("delete", pod(6), KEY), ("put", pod(7), KEY)], "7"),
    "the label changes": ([("put", pod(1), KEY), ("put", pod(2, label="else"), ELSE)], None),
    "a late event after a deletion": ([("put", pod(1), KEY), ("delete", pod(9), KEY), ("put", pod(8), None)], None),
}


@pytest.mark.parametrize(("steps", "left"), STEPS.values(), ids=STEPS)
def test_only_newer_states_change_a_resource(cache, steps, left):
    for step, seen, changed in steps:
        assert getattr(cache, step)(PODS, seen) == changed
    assert [one["metadata"]["resourceVersion"] for one in cache.pods(KEY)] == ([left] if left else [])
    assert bool(cache.pods(ELSE)) == (ELSE in [changed for *_, changed in steps])


def test_events_in_any_order_lead_to_the_same_state():
    """Events of different watches have no common order."""
    steps = [("put", 1, "a"), ("put", 2, "a"), ("delete", 3, "a"), ("put", 4, "b")]
    for order in permutations(steps):
        cache = Cache()
        for step, version, uid in order:
            getattr(cache, step)(DEPLOYMENTS, obj(DEPLOYMENTS, "demo", version, uid=uid))
        (only,) = cache.children(KEY).values()
        assert only["metadata"]["uid"] == "b", order


def test_the_answer_to_a_request_replaces_a_watch_event_that_lacks_a_new_field(cache):
    watched, answer = obj(DLMS, "demo", 7, spec={}), obj(DLMS, "demo", 7, spec={"new": 1})
    found = [cache.put(DLMS, one, answered=one is answer) for one in (watched, answer, answer, watched)]
    assert found == [KEY, KEY, None, None]
    assert cache.resource(KEY)["spec"] == {"new": 1}


def test_a_list_neither_restores_what_was_deleted_later_nor_reports_what_did_not_change(cache):
    cache.put(PODS, pod(1))
    cache.put(DLMS, obj(DLMS, "demo", 1))
    cache.delete(PODS, pod(9))
    assert listed(cache, PODS, None, [pod(1)], version=5) == set()
    assert not cache.pods(KEY)
    assert listed(cache, DLMS, None, [obj(DLMS, "demo", 1)], version=5) == set()


def test_managed_fields_are_reduced_to_the_managers(cache):
    fields = [{"manager": "kubectl", "operation": "Update", "fieldsV1": {}}, {"manager": "us", "operation": "Apply"}]
    for kind in (DEPLOYMENTS, PODS):
        seen = obj(kind, "demo", 1)
        seen["metadata"]["managedFields"] = fields
        cache.put(kind, seen)
        assert "fieldsV1" in seen["metadata"]["managedFields"][0]  # the caller's object does not change
    (child,) = cache.children(KEY).values()
    assert child["metadata"]["managedFields"] == [{"manager": "kubectl", "operation": "Update"}, fields[1]]
    assert "managedFields" not in cache.pods(KEY)[0]["metadata"]
    scale = {"manager": "hpa", "subresource": "scale", "time": "now"}
    seen = obj(DLMS, "demo", 1)
    seen["metadata"]["managedFields"] = [*fields, {**scale, "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    cache.put(DLMS, seen)
    assert cache.resource(KEY)["metadata"]["managedFields"] == [scale]


def test_ages_count_from_the_last_event():
    now = [100.0]
    cache = Cache(lambda: now[0])
    cache.put(PODS, pod(1))
    now[0] = 130.0
    cache.replace(DLMS, None, set(), version=2)
    assert cache.ages() == {PODS.api: 30.0, DLMS.api: 0.0}


# The handler of events and lists, which also enqueues their resource


def handler():
    cache, enqueued = Cache(), []
    return cache, EventHandler(cache, lambda key, seconds: enqueued.append((key, seconds))), enqueued


def ready(value):
    return {"status": {"conditions": [{"type": "Ready", "status": value}]}}


@pytest.mark.parametrize(
    ("kind", "more", "seconds"),
    [
        (DLMS, {}, 0.0), (PODS, ready("False"), DEBOUNCE_SECONDS), (PODS, ready("True"), DEBOUNCE_READY_SECONDS),
        (CHILDREN[0], {}, DEBOUNCE_SECONDS),
    ],
)  # fmt: skip
def test_every_change_concerns_the_resource_and_only_those_of_others_are_debounced(kind, more, seconds):
    cache, events, enqueued = handler()
    for change, version in (("ADDED", 3), ("MODIFIED", 4), ("MODIFIED", 4), ("DELETED", 5)):
        events.on_event(kind, change, samples.seen(version, **more))
        assert bool(cache.holds(kind)) == (change != "DELETED")
    assert enqueued == [(KEY, seconds)] * 3


def test_objects_of_a_list_replace_older_ones_and_missing_ones_are_removed_unless_they_are_newer():
    cache, events, enqueued = handler()
    events.on_event(DLMS, "MODIFIED", samples.seen(3, spec={}))
    events.on_event(DLMS, None, samples.seen(3, spec={"new": 1}))  # the watch lacks a new field
    assert cache.resource(KEY)["spec"] == {"new": 1}
    for version, name in ((3, "stays"), (4, "old"), (90, "newer")):
        events.on_event(PODS, "ADDED", samples.seen(version, name))
    enqueued.clear()
    events.on_list(PODS, None, {(Key("ns", "stays"), "u-stays")}, 50)
    assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["newer", "stays"]
    assert enqueued == [(KEY, 0.0)]
