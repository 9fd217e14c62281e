"""Tests of the application of plans, with an API server in memory."""

import asyncio
import copy

import pytest

from tests.operator.fake_api import FakeApi
from unmask_operator.controller.apply import Applier, OwnershipError
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Ref, controller_uid
from unmask_operator.plan.drift import written_form
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan

UID = "service-uid"
SERVICE = {"metadata": {"name": "demo", "namespace": "ns", "uid": UID}}


def child(name, kind="Service", uid=UID, **data):
    owners = [{"uid": uid, "controller": True}] if uid else []
    api = "v1" if kind == "Service" else "apps/v1"
    labels = {"serving.unmask.dev/service": "demo"}
    meta = {"name": name, "namespace": "ns", "ownerReferences": owners, "labels": labels}
    return {"apiVersion": api, "kind": kind, "metadata": meta, **data}


def spec(name, **members):
    return child(name, spec=members)


def ref(name):
    return Ref("v1", "Service", name)


def stored(*objects, **errors):
    """Returns an API server with these objects. Writes of the names in `errors` fail."""
    api = FakeApi(Observed(SERVICE, now=None))
    for obj in objects:
        api.put(obj)
    api.wrong = lambda verb, obj: errors.get(obj["metadata"]["name"]) if verb != "get" else None
    return api


def apply(api, *desired, delete=(), known=None, last_accepted=()):
    """Applies `desired`. `known` are the children in the cache (default: all that exist)."""
    observed = Observed(SERVICE, now=None, children=dict(api.objects if known is None else known))

    def make_plan(seen):
        foreign = any(controller_uid(seen.children[ref]) != UID for ref in map(Ref.of, desired) if ref in seen.children)
        return Plan() if foreign else Plan(children=tuple(desired), delete=tuple(delete))

    writer = Applier(api, Cache(), lambda verb: None)
    return asyncio.run(writer.apply(make_plan, lambda seen: Plan(children=tuple(last_accepted)), observed))


WEBHOOK = ApiError(500, "InternalError", "failed calling webhook")
REFUSAL = ApiError(422, "Invalid", "b is wrong")
PIN, WORKLOAD = child("pin", "ControllerRevision"), child("c", "Deployment")
LIVE_A = {**written_form(spec("a", x=1)), "spec": {"x": 1, "defaulted": True}}
A = spec("a", x=1)
# The live objects, those in the cache (None: the live ones), the desired and the obsolete ones, and the requests.
WRITES = {
    "new children, after a dry run of all but the first": (
        [], None, [child("a"), child("b"), child("c")], [],
        ["dry-create b", "dry-create c", "create a", "create b", "create c"],
    ),
    "a revision without a dry run": (
        [], None, [child("a"), PIN, WORKLOAD], [], ["dry-create c", "create a", "create pin", "create c"],
    ),
    "the desired state": ([LIVE_A], None, [A], [], []),
    "one difference": ([LIVE_A, written_form(spec("b"))], None, [spec("a", x=2), spec("b")], [], ["apply a"]),
    "a field that is no longer desired": ([written_form(spec("a", x=1, y=2))], None, [A], [], ["apply a"]),
    "an obsolete object": ([child("old")], None, [child("new")], [ref("old")], ["create new", "delete old"]),
    "a live object that the cache lacks": ([A], [], [spec("a", x=2)], [], ["create a", "get a", "apply a"]),
    "a cached object that is gone": ([], [A], [spec("a", x=2)], [], ["apply a", "get a", "create a"]),
}  # fmt: skip


@pytest.mark.parametrize(("live", "known", "desired", "obsolete", "requests"), WRITES.values(), ids=WRITES)
def test_only_differences_are_written(live, known, desired, obsolete, requests):
    api = stored(*live)
    outcome = apply(api, *desired, delete=obsolete, known=None if known is None else stored(*known).objects)
    assert [" ".join(call) for call in api.calls] == requests
    assert set(api.objects) == {Ref.of(obj) for obj in desired}
    for obj in desired:
        assert api.objects[Ref.of(obj)].get("spec", {}).items() >= obj.get("spec", {}).items()
    answered = requests[requests.index("get a") + 1 :] if "get a" in requests else requests
    assert outcome.writes == sum("dry" not in request for request in answered)


@pytest.mark.parametrize("away", [(), ("c",)], ids=["", "next to a server error"])
def test_after_a_refusal_the_last_accepted_form_is_maintained(away):
    api = stored(spec("a", x=0), spec("b", x=1), b=REFUSAL, **dict.fromkeys(away, WEBHOOK))
    outcome = apply(api, spec("a", x=2), spec("b", x=2), child("c"), last_accepted=[spec("a", x=1)])
    assert api.objects[ref("a")]["spec"] == {"x": 1}
    assert ref("c") not in api.objects
    assert list(outcome.observed.refusals.values()) == ["b is wrong"]
    assert outcome.plan.children == (spec("a", x=1),)


def test_foreign_objects_with_childrens_names_are_read_once_and_not_written():
    api = stored(*(child(name, uid="someone-else") for name in "bc"))
    before = copy.deepcopy(api.objects)
    outcome = apply(api, *(child(name) for name in "abc"), known={})
    assert api.objects == before == outcome.observed.children
    requests = [" ".join(call) for call in api.calls]
    assert requests == ["dry-create b", "get b", "dry-create c", "get c", "dry-create a"]


def test_a_plan_can_neither_delete_nor_write_foreign_objects():
    api = stored(child("theirs", uid="someone-else"))
    with pytest.raises(OwnershipError):
        apply(api, delete=[ref("theirs")])
    observed = Observed(SERVICE, now=None, children=dict(api.objects))
    blind = Plan(children=(spec("theirs", x=1),))
    with pytest.raises(OwnershipError):
        asyncio.run(Applier(api, Cache(), print).apply(lambda _: blind, lambda _: blind, observed))
    assert api.calls == []


def errors_by_name(outcome):
    return {ref.name: sentence for ref, sentence in outcome.observed.failures.items()}


@pytest.mark.parametrize("broken", ["a", "b", "c", "old"])
def test_a_server_error_on_one_child_is_reported_and_all_others_are_written_or_deleted(broken):
    api = stored(child("old"), child("older"), **{broken: WEBHOOK})
    outcome = apply(api, *(child(name) for name in "abc"), delete=[ref("old"), ref("older")])
    assert {one.name for one in api.objects} == {"a", "b", "c"} ^ {broken}
    assert errors_by_name(outcome) == {broken: "failed calling webhook"}
    assert [name for _, name in api.calls].count(broken) == 1, "the failing write must be attempted once per reconcile"


def test_a_server_error_while_reading_a_conflicting_child_is_reported():
    api = stored(spec("b", x=1))
    api.wrong = lambda verb, obj: WEBHOOK if verb == "get" else None
    outcome = apply(api, child("a"), spec("b", x=2), known={})
    assert errors_by_name(outcome) == {"b": "failed calling webhook"}


@pytest.mark.parametrize("broken", ["pin", "c"])
def test_a_revision_and_its_workload_are_both_written_or_not_at_all(broken):
    api = stored(**{broken: WEBHOOK})
    outcome = apply(api, child("a"), PIN, WORKLOAD, child("z"))
    assert {one.name for one in api.objects} == {"a", "z"}
    assert errors_by_name(outcome) == {broken: "failed calling webhook"}


@pytest.mark.parametrize("status", [0, 401, 429])
def test_an_error_about_no_child_ends_the_reconcile(status):
    api = stored(b=ApiError(status, "Unreachable", "no answer"))
    with pytest.raises(ApiError):
        apply(api, child("a"), child("b"), child("c"))
    assert api.objects == {}


def test_a_child_that_changes_during_every_write_is_reported():
    api = stored(a=ApiError(409, "AlreadyExists", "exists"))
    assert errors_by_name(apply(api, child("a"))) == {"a": "it changed during every try to write it"}
