"""Tests of the application of plans, with an API server in memory that records the calls."""

import asyncio
import copy

import pytest

from unmask_operator.controller.apply import Applier, OwnershipError, with_applied_hash
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan

UID = "service-uid"
SERVICE = {"metadata": {"name": "demo", "namespace": "ns", "uid": UID}}


def child(name, kind="Service", uid=UID, **data):
    owners = [{"uid": uid, "controller": True}] if uid else []
    api = "v1" if kind == "Service" else "apps/v1"
    meta = {
        "name": name,
        "namespace": "ns",
        "ownerReferences": owners,
        "labels": {"serving.unmask.dev/service": "demo"},
    }
    return {"apiVersion": api, "kind": kind, "metadata": meta, **data}


class Api:
    """Fake API server with objects by Ref.

    `refuse`, `fail` (once) and `away` select the writes that fail; `calls` lists (verb, name).
    """

    def __init__(self, *objects):
        self.objects = {}
        self.calls = []
        self.refuse = set()
        self.fail = {}
        self.away = {}
        self.version = 0
        for obj in objects:
            self.put(obj)

    def put(self, obj):
        self.version += 1
        ref = Ref.of(obj)
        uid = obj["metadata"].get("uid") or f"uid-{self.version}"
        stored = copy.deepcopy(obj)
        stored["metadata"] |= {"uid": uid, "resourceVersion": str(self.version)}
        self.objects[ref] = stored
        return stored

    def _call(self, verb, obj):
        self.calls.append((verb, obj["metadata"]["name"]))
        if (verb.removeprefix("dry-"), obj["metadata"]["name"]) in self.fail:
            raise self.fail.pop((verb.removeprefix("dry-"), obj["metadata"]["name"]))
        if obj["metadata"]["name"] in self.away:
            raise self.away[obj["metadata"]["name"]]
        if obj["metadata"]["name"] in self.refuse:
            raise ApiError(422, "Invalid", f"{obj['metadata']['name']} is wrong")

    async def create(self, obj, dry_run=False):
        self._call("dry-create" if dry_run else "create", obj)
        if Ref.of(obj) in self.objects:
            raise ApiError(409, "AlreadyExists", "exists")
        return obj if dry_run else self.put(obj)

    async def apply(self, obj, uid, dry_run=False):
        self._call("dry-apply" if dry_run else "apply", obj)
        live = self.objects.get(Ref.of(obj))
        if live is None or live["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", "uid")
        return obj if dry_run else self.put({**obj, "metadata": {**obj["metadata"], "uid": uid}})

    async def upgrade_managed_fields(self, live):
        return live

    async def replace(self, live, clashes, dry_run=False):
        self._call("dry-replace" if dry_run else "replace", live)
        changed = copy.deepcopy(self.objects[Ref.of(live)])
        for clash in clashes:
            *parents, last = (int(part) if part.isdigit() else part for part in clash.pointer.split("/")[1:])
            inner = changed
            for part in parents:
                inner = inner[part]
            assert inner[last] == clash.live
            inner[last] = clash.desired
        return changed if dry_run else self.put(changed)

    async def get(self, kind, namespace, name):
        self.calls.append(("get", name))
        ref = Ref(kind.api_version, kind.kind, name)
        if ref not in self.objects:
            raise ApiError(404, "NotFound", "gone")
        return self.objects[ref]

    async def delete(self, kind, namespace, name, uid):
        self._call("delete", {"metadata": {"name": name}})
        ref = Ref(kind.api_version, kind.kind, name)
        if self.objects.get(ref, {}).get("metadata", {}).get("uid") == uid:
            del self.objects[ref]


def apply(api, *desired, delete=(), known=None, last_accepted=()):
    """Applies `desired`. `known` are the children in the cache (default: all that exist)."""
    observed = Observed(SERVICE, now=None, children=dict(api.objects if known is None else known))

    def make_plan(seen):
        foreign = [o for o in desired if Ref.of(o) in seen.children and not owned(seen.children[Ref.of(o)])]
        return Plan() if foreign else Plan(children=tuple(desired), delete=tuple(delete))

    writer = Applier(api, Cache(), lambda verb: None)
    return asyncio.run(writer.apply(make_plan, lambda seen: Plan(children=tuple(last_accepted)), observed))


def owned(obj):
    return any(o["uid"] == UID for o in obj["metadata"]["ownerReferences"])


def test_children_are_created_in_order_after_a_dry_run_of_all_but_the_first():
    api = Api()
    outcome = apply(api, child("a"), child("b"), child("c"))
    assert api.calls == [("dry-create", "b"), ("dry-create", "c"), ("create", "a"), ("create", "b"), ("create", "c")]
    assert outcome.writes == 3
    assert set(outcome.observed.children) == set(api.objects)


def test_an_object_in_its_desired_state_is_not_written():
    api = Api({**with_applied_hash(child("a", spec={"x": 1})), "spec": {"x": 1, "defaulted": True}})
    assert apply(api, child("a", spec={"x": 1})).writes == 0
    assert api.calls == []


def test_one_difference_is_one_request():
    api = Api(with_applied_hash(child("a", spec={"x": 1})), with_applied_hash(child("b", spec={"x": 1})))
    apply(api, child("a", spec={"x": 2}), child("b", spec={"x": 1}))
    assert api.calls == [("apply", "a")]


def test_a_field_that_is_no_longer_desired_is_a_difference():
    api = Api(with_applied_hash(child("a", spec={"x": 1, "y": 2})))
    apply(api, child("a", spec={"x": 1}))
    assert api.calls == [("apply", "a")]


def test_a_revision_needs_no_dry_run():
    api = Api()
    apply(api, child("a"), child("pin", "ControllerRevision"), child("c", "Deployment"))
    assert api.calls == [("dry-create", "c"), ("create", "a"), ("create", "pin"), ("create", "c")]


@pytest.mark.parametrize("wrong", ["a", "b", "c"])
def test_a_refusal_of_any_child_writes_none_and_is_reported(wrong):
    api = Api()
    api.refuse = {wrong}
    outcome = apply(api, child("a"), child("b"), child("c"))
    assert api.objects == {}
    assert list(outcome.observed.refusals.values()) == [f"{wrong} is wrong"]


def test_after_a_refusal_the_last_accepted_form_is_maintained():
    api = Api(child("a", spec={"x": 0}), child("b", spec={"x": 1}))
    api.refuse = {"b"}
    outcome = apply(
        api, child("a", spec={"x": 2}), child("b", spec={"x": 2}), last_accepted=[child("a", spec={"x": 1})]
    )
    assert api.objects[Ref("v1", "Service", "a")]["spec"] == {"x": 1}
    assert list(outcome.observed.refusals.values()) == ["b is wrong"]
    assert outcome.plan.children == (child("a", spec={"x": 1}),)


def test_a_foreign_object_with_a_childs_name_is_read_once_and_not_written():
    foreign = child("b", uid="someone-else")
    api = Api(foreign)
    before = copy.deepcopy(api.objects)
    outcome = apply(api, child("a"), child("b"), known={})
    assert api.objects == before
    assert api.calls == [("dry-create", "b"), ("get", "b"), ("dry-create", "a")]
    assert Ref.of(foreign) in outcome.observed.children


def test_all_foreign_objects_are_found_in_one_attempt():
    foreign = [child(name, uid="someone-else") for name in ("a", "b", "c")]
    outcome = apply(Api(*foreign), *(child(name) for name in ("a", "b", "c")), known={})
    assert {Ref.of(one) for one in foreign} == set(outcome.observed.children)


def test_an_owned_object_that_is_missing_in_the_cache_is_applied():
    api = Api(child("a", spec={"x": 1}))
    outcome = apply(api, child("a", spec={"x": 2}), known={})
    assert api.calls == [("create", "a"), ("get", "a"), ("apply", "a")]
    assert outcome.writes == 1


def test_an_object_that_has_gone_is_created_anew():
    api = Api(child("a", spec={"x": 1}))
    known = dict(api.objects)
    api.objects.clear()
    apply(api, child("a", spec={"x": 2}), known=known)
    assert [verb for verb, _ in api.calls] == ["apply", "get", "create"]
    assert api.objects[Ref("v1", "Service", "a")]["spec"] == {"x": 2}


def test_obsolete_objects_are_deleted_last():
    api = Api(child("old"))
    apply(api, child("new"), delete=[Ref("v1", "Service", "old")])
    assert api.calls == [("create", "new"), ("delete", "old")]


def test_a_plan_can_neither_delete_nor_write_foreign_objects():
    api = Api(child("theirs", uid="someone-else"))
    with pytest.raises(OwnershipError):
        apply(api, delete=[Ref("v1", "Service", "theirs")])
    observed = Observed(SERVICE, now=None, children=dict(api.objects))
    blind = Plan(children=(child("theirs", spec={"x": 1}),))
    with pytest.raises(OwnershipError):
        asyncio.run(Applier(api, Cache(), print).apply(lambda _: blind, lambda _: blind, observed))
    assert api.calls == []


WEBHOOK = ApiError(500, "InternalError", "failed calling webhook")


def errors_by_name(outcome):
    return {ref.name: sentence for ref, sentence in outcome.observed.failures.items()}


@pytest.mark.parametrize("broken", ["a", "b", "c"])
def test_a_server_error_on_one_child_is_reported_and_all_others_are_written(broken):
    api = Api(child("old"))
    api.away = {broken: WEBHOOK}
    outcome = apply(api, *(child(name) for name in "abc"), delete=[Ref("v1", "Service", "old")])
    assert {ref.name for ref in api.objects} == {"a", "b", "c"} - {broken}
    assert errors_by_name(outcome) == {broken: "failed calling webhook"}
    tried = [name for verb, name in api.calls if name == broken]
    assert len(tried) == 1, "the failing write was not attempted exactly once per reconcile"


def test_a_server_error_on_a_deletion_is_reported_and_the_others_are_deleted():
    api = Api(child("x"), child("y"))
    api.away = {"x": WEBHOOK}
    outcome = apply(api, child("a"), delete=[Ref("v1", "Service", name) for name in "xy"])
    assert {ref.name for ref in api.objects} == {"a", "x"}
    assert errors_by_name(outcome) == {"x": "failed calling webhook"}


def test_a_server_error_while_reading_a_conflicting_child_is_reported():
    api = Api(child("b", spec={"x": 1}))

    async def get(kind, namespace, name):
        raise WEBHOOK

    api.get = get
    assert errors_by_name(apply(api, child("a"), child("b", spec={"x": 2}), known={})) == {
        "b": "failed calling webhook"
    }


@pytest.mark.parametrize("broken", ["pin", "workload"])
def test_a_revision_and_its_workload_are_both_written_or_not_at_all(broken):
    """Checks that neither is written if one of them fails, because a revision means that its spec was accepted."""
    api = Api()
    api.away = {broken: WEBHOOK}
    pin, workload = child("pin", "ControllerRevision"), child("workload", "Deployment")
    outcome = apply(api, child("a"), pin, workload, child("z"))
    assert {ref.name for ref in api.objects} == {"a", "z"}
    assert errors_by_name(outcome) == {broken: "failed calling webhook"}


def test_a_refusal_counts_for_more_than_a_server_error():
    api = Api(child("a", spec={"x": 1}))
    api.away, api.refuse = {"b": WEBHOOK}, {"c"}
    outcome = apply(api, child("a", spec={"x": 2}), child("b"), child("c"), last_accepted=[child("a", spec={"x": 1})])
    assert api.objects[Ref("v1", "Service", "a")]["spec"] == {"x": 1}
    assert list(outcome.observed.refusals.values()) == ["c is wrong"]


@pytest.mark.parametrize("status", [0, 401, 429])
def test_an_error_about_no_child_ends_the_reconcile(status):
    api = Api()
    api.away = {"b": ApiError(status, "Unreachable", "no answer")}
    with pytest.raises(ApiError):
        apply(api, child("a"), child("b"), child("c"))
    assert api.objects == {}


def test_a_child_that_changes_during_every_write_is_reported():
    api = Api()

    async def create(obj, dry_run=False):
        raise ApiError(409, "AlreadyExists", "exists")

    api.create = create
    assert errors_by_name(apply(api, child("a"))) == {"a": "it changed during every try to write it"}


def test_the_reconcile_after_a_server_error_finishes():
    api = Api()
    api.fail = {("create", "b"): WEBHOOK}
    apply(api, child("a"), child("b", "Deployment"))
    apply(api, child("a"), child("b", "Deployment"))
    assert len(api.objects) == 2
