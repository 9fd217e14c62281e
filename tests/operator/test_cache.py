"""Tests of the cache: the newest state remains for any order of events, lists and answers."""

from itertools import permutations

import pytest

from unmask_operator.kube.cache import Cache
from unmask_operator.kube.kinds import DLMS, PODS, kind_of
from unmask_operator.objects import SERVICE_LABEL, Key, Ref

DEPLOYMENTS = kind_of("apps/v1", "Deployment")
KEY = Key("ns", "demo")


def obj(kind, name, version, uid=None, label="demo", namespace="ns", **more):
    meta = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    if label and kind is not DLMS:
        meta["labels"] = {SERVICE_LABEL: label}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **more}


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
    assert cache.put(PODS, obj(PODS, "demo-x", 3)) == KEY
    assert cache.put(DEPLOYMENTS, obj(DEPLOYMENTS, "other", 4, label=None)) is None
    assert cache.resource(KEY)["metadata"]["resourceVersion"] == "1"
    assert set(cache.children(KEY)) == {Ref("apps/v1", "Deployment", "demo")}
    assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["demo-x"]


def test_an_object_that_is_already_cached_is_no_change(cache):
    written = obj(DEPLOYMENTS, "demo", 5)
    assert cache.put(DEPLOYMENTS, written) == KEY
    assert cache.put(DEPLOYMENTS, written) is None  # the watch repeats the operator's own write
    assert cache.put(DEPLOYMENTS, obj(DEPLOYMENTS, "demo", 4)) is None
    assert cache.children(KEY)[Ref.of(written)]["metadata"]["resourceVersion"] == "5"


def test_a_deletion_removes_only_the_object_with_that_uid(cache):
    cache.put(DEPLOYMENTS, obj(DEPLOYMENTS, "demo", 5, uid="new"))
    assert cache.delete(DEPLOYMENTS, obj(DEPLOYMENTS, "demo", 4, uid="old")) is None
    assert cache.children(KEY)
    assert cache.delete(DEPLOYMENTS, obj(DEPLOYMENTS, "demo", 6, uid="new")) == KEY
    assert not cache.children(KEY)


def test_events_in_any_order_lead_to_the_same_state():
    """Checks this because events of different watches have no common order."""
    steps = [
        ("put", obj(DEPLOYMENTS, "demo", 1, uid="a")),
        ("put", obj(DEPLOYMENTS, "demo", 2, uid="a")),
        ("delete", obj(DEPLOYMENTS, "demo", 3, uid="a")),
        ("put", obj(DEPLOYMENTS, "demo", 4, uid="b")),
    ]
    for order in permutations(steps):
        cache = Cache()
        for step, seen in order:
            getattr(cache, step)(DEPLOYMENTS, seen)
        (only,) = cache.children(KEY).values()
        assert only["metadata"]["uid"] == "b", order


def test_an_object_that_loses_the_label_is_removed_and_may_return(cache):
    cache.put(DEPLOYMENTS, obj(DEPLOYMENTS, "demo", 5))
    assert cache.delete(DEPLOYMENTS, obj(DEPLOYMENTS, "demo", 6)) == KEY  # as a watch with a selector reports it
    assert cache.put(DEPLOYMENTS, obj(DEPLOYMENTS, "demo", 7)) == KEY
    assert cache.children(KEY)


def test_an_object_that_moves_to_another_resource_is_removed_from_the_first(cache):
    cache.put(PODS, obj(PODS, "p", 1))
    assert cache.put(PODS, obj(PODS, "p", 2, label="else")) == Key("ns", "else")
    assert not cache.pods(KEY)
    assert cache.pods(Key("ns", "else"))


def test_a_list_removes_missing_objects_but_none_newer_than_itself(cache):
    for name, version in (("kept", 1), ("gone", 2), ("newer", 30)):
        cache.put(PODS, obj(PODS, name, version))
    cache.put(PODS, obj(PODS, "elsewhere", 3, namespace="other"))
    assert listed(cache, PODS, "ns", [obj(PODS, "kept", 1), obj(PODS, "found", 4)], version=20) == {KEY}
    assert [p["metadata"]["name"] for p in cache.pods(KEY)] == ["found", "kept", "newer"]
    assert cache.pods(Key("other", "demo"))


def test_a_list_neither_restores_what_was_deleted_later_nor_reports_what_did_not_change(cache):
    cache.put(PODS, obj(PODS, "p", 1))
    cache.put(DLMS, obj(DLMS, "demo", 1))
    cache.delete(PODS, obj(PODS, "p", 9))
    assert listed(cache, PODS, None, [obj(PODS, "p", 1)], version=5) == set()
    assert not cache.pods(KEY)
    assert listed(cache, DLMS, None, [obj(DLMS, "demo", 1)], version=5) == set()


def test_managed_fields_are_reduced_to_the_managers():
    fields = [{"manager": "kubectl", "operation": "Update", "fieldsV1": {}}, {"manager": "us", "operation": "Apply"}]
    cache = Cache()
    for kind in (DEPLOYMENTS, PODS):
        seen = obj(kind, "demo", 1)
        seen["metadata"]["managedFields"] = fields
        cache.put(kind, seen)
        assert "fieldsV1" in seen["metadata"]["managedFields"][0]  # the caller's object does not change
    (child,) = cache.children(KEY).values()
    assert [f["manager"] for f in child["metadata"]["managedFields"]] == ["kubectl", "us"]
    assert "fieldsV1" not in child["metadata"]["managedFields"][0]
    assert "managedFields" not in cache.pods(KEY)[0]["metadata"]


def test_ages_count_from_the_last_event():
    now = [100.0]
    cache = Cache(lambda: now[0])
    cache.put(PODS, obj(PODS, "p", 1))
    now[0] = 130.0
    cache.replace(DLMS, None, set(), version=2)
    assert cache.ages() == {PODS.api: 30.0, DLMS.api: 0.0}
