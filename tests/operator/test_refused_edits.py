"""Tests of edits that the API server refuses: they change nothing, and replicas are still written."""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.fake_api import DENIED, DEPLOYMENT, PATCHED, SERVICE, FakeApi, of, patched
from tests.operator.samples import SETTINGS, edit, make, observe, resource, running, settled
from unmask_operator.controller.apply import Applier, Outcome
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import RESTARTED_AT, Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import last_accepted, plan

TYPED = ApiError(500, "Unknown", "failed to create typed patch object (default/demo; apps/v1, Kind=Deployment): .x")
TOO_LARGE = ApiError(500, "Unknown", "etcdserver: request is too large")
QUOTA = ApiError(403, "Forbidden", "exceeded quota: q")
AWAY = ApiError(500, "InternalError", 'Internal error occurred: failed calling webhook "w"')
BUDGET = Ref("policy/v1", "PodDisruptionBudget", "demo-engine")
NETWORK_POLICY = Ref("networking.k8s.io/v1", "NetworkPolicy", "demo-engine")


def reconcile(api: FakeApi, observed: Observed, writer: Applier | None = None) -> Outcome:
    """Runs one reconcile with the API server's children. The default writer is a new leader's."""
    seen = Observed(observed.resource, observed.now, dict(api.objects), apis=observed.apis)
    planned = (writer or new_writer(api)).apply(
        lambda known: plan(known, SETTINGS), lambda known: last_accepted(known, SETTINGS), seen
    )
    return asyncio.run(planned)


def refusing(wrong: Any = lambda verb, child: None, **spec: Any) -> tuple[Observed, FakeApi]:
    """Returns a running service with two replicas, and its API server, which refuses some requests from now on."""
    observed = running(replicas=2, **spec)
    api = FakeApi(observed)
    api.wrong = wrong
    return observed, api


def new_writer(api: FakeApi) -> Applier:
    return Applier(api, Cache(), lambda verb: None)  # type: ignore[arg-type]


def content(api: FakeApi) -> dict[Ref, Obj]:
    """Returns the objects without their resourceVersion."""
    found = copy.deepcopy(api.objects)
    for obj in found.values():
        obj["metadata"].pop("resourceVersion")
    return found


QUOTA_OF_WRITES = "a quota that only counts real writes"
# What refuses the edit: the dry run, or (quotas, etcd's limit) only the real write.
EDITS = {
    "a denial": of("Deployment", "dry-apply", "apply", error=DENIED, form=patched),
    "a denial of the real write": of("Deployment", "apply", error=DENIED, form=patched),
    "a revision too large for etcd": of("ControllerRevision", "create", error=TOO_LARGE),
    "another child": of("NetworkPolicy", "dry-create", "create", error=TYPED),
    QUOTA_OF_WRITES: of("NetworkPolicy", "create", error=QUOTA),
}
ONLY_WRITES = ("a denial of the real write", "a revision too large for etcd")
TIMEOUT = ApiError(504, "Timeout", "request did not complete within requested timeout")
ERRORS = {"denied": DENIED, "typed": TYPED, "timeout": TIMEOUT}
ANY_ERROR = pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)


def written_names(api: FakeApi) -> list[str]:
    return [obj["metadata"]["name"] for _, obj in api.writes]


SCALED = {"autoscaling": {"minReplicas": 3, "maxReplicas": 4, "targets": {"runningRequestsPerReplica": 8}}}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize(
    ("change", "replicas"), [({}, 2), ({"suspend": True}, 0), ({"replicas": 5}, 5), (SCALED, 2)], ids=str
)
def test_an_edit_that_is_refused_in_part_is_reverted_except_for_replicas(name: str, change: Obj, replicas: int) -> None:
    """Bounds of the autoscaler are refused with the edit, so that those of the last accepted spec apply."""
    observed, api = refusing(EDITS[name])
    before = content(api)
    outcome = reconcile(api, edit(observed, service={"port": 81}, networkPolicy={}, **PATCHED, **change))
    assert outcome.observed.refusals
    assert not outcome.observed.failures
    assert not outcome.failures
    assert api.objects[DEPLOYMENT]["spec"]["replicas"] == replicas
    if replicas == 2:
        assert content(api) == before
        assert "quota" in name or "demo" not in written_names(api), "a child was written before the refusal"


@pytest.mark.parametrize("name", [*ONLY_WRITES, QUOTA_OF_WRITES])
def test_retries_of_an_edit_that_only_real_writes_refuse_start_no_rollout(name: str) -> None:
    """Updates of the Deployment's status cause retries, so writing and reverting it would not end."""
    observed, api = refusing(EDITS[name])
    edited = edit(observed, networkPolicy={}, **PATCHED)
    writer = new_writer(api)
    reconcile(api, edited, writer)
    api.writes.clear()
    for _ in range(2):
        assert reconcile(api, edited, writer).observed.refusals
    if name == QUOTA_OF_WRITES:
        assert not api.written("apply") + api.written("delete")
    else:
        assert {*written_names(api)} <= {"demo-r2"}
    api.wrong = lambda verb, child: None
    api.writes.clear()
    assert not reconcile(api, edited, writer).observed.refusals
    assert patched(api.objects[DEPLOYMENT])
    assert NETWORK_POLICY in api.objects
    written = written_names(api)
    assert "demo-r2" not in written or written.index("demo-r2") < written.index("demo")
    assert not writer.refused_writes


@ANY_ERROR
@pytest.mark.parametrize(
    ("change", "scaled"), [({"suspend": True}, [0]), ({"replicas": 5}, [5]), ({"service": {"port": 81}}, [])]
)
def test_only_replicas_are_written_if_every_form_of_the_workload_is_refused(
    error: ApiError, change: Obj, scaled: list[int]
) -> None:
    observed, api = refusing(of("Deployment", "dry-apply", "apply", error=error))
    edited = edit(observed, **PATCHED, **change)
    for _ in range(2):
        assert reconcile(api, edited).plan.replicas == (scaled or [2])[0]
        assert api.scaled == scaled, "the replicas were not written exactly once"


def test_only_replicas_are_written_if_no_revision_can_be_written() -> None:
    observed, api = refusing(of("ControllerRevision", "create", error=AWAY))
    outcome = reconcile(api, edit(observed, replicas=4, **PATCHED))
    assert (list(outcome.observed.failures.values()), api.scaled) == ([AWAY.message], [4])
    assert not patched(api.objects[DEPLOYMENT])


def test_replicas_are_written_before_an_error_that_the_queue_retries() -> None:
    _, api = refusing(of("Deployment", "dry-apply", "apply", error=AWAY))
    api.edit(replicas=3)
    with pytest.raises(ApiError, match="failed calling webhook"):
        api.reconcile(first_attempt=True)
    assert api.scaled == [3]


@pytest.mark.parametrize("owner", ["another's uid", ""])
def test_replicas_of_a_foreign_deployment_are_not_changed(owner: str) -> None:
    observed, api = refusing()
    api.objects[DEPLOYMENT]["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True}] if owner else []
    outcome = reconcile(api, edit(observed, replicas=7))
    assert [problem.reason for problem in outcome.plan.problems] == ["NameConflict"]
    assert api.scaled == []


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (ApiError(500, "InternalError", "second"), "; its replicas cannot be written either: second"),
        (ApiError(409, "Conflict", "Precondition failed: UID"), ""),  # the Deployment was deleted
        (ApiError(404, "NotFound", "gone"), ""),
    ],
)
def test_an_error_of_the_scale_subresource_is_reported_with_the_first_one(error: ApiError, reported: str) -> None:
    observed, api = refusing(lambda verb, obj: {"apply": AWAY, "scale": error}.get(verb))
    outcome = reconcile(api, edit(observed, replicas=3))
    assert outcome.observed.failures == {DEPLOYMENT: AWAY.message + reported}


@ANY_ERROR
@pytest.mark.parametrize("broken", [DEPLOYMENT, SERVICE], ids=lambda ref: ref.kind)
def test_a_refused_child_does_not_prevent_the_repair_of_others(broken: Ref, error: ApiError) -> None:
    observed, api = refusing(networkPolicy={})
    before = content(api)
    drifted = {DEPLOYMENT, SERVICE, BUDGET, NETWORK_POLICY}
    for ref in drifted:
        api.objects[ref]["metadata"]["labels"] = {"serving.unmask.dev/service": "demo"}
    api.wrong = of(broken.kind, "dry-apply", "apply", error=error)
    outcome = reconcile(api, observed)
    assert {*outcome.observed.refusals, *outcome.observed.failures} == {broken}
    after = content(api)
    assert {r for r in drifted if after[r]["metadata"]["labels"] != before[r]["metadata"]["labels"]} == {broken}


def test_a_repaired_revision_is_not_withdrawn() -> None:
    """It was accepted earlier, although another child is refused now."""
    observed, api = refusing(networkPolicy={})
    (revision,) = (ref for ref in api.objects if ref.kind == "ControllerRevision")
    api.objects[revision]["metadata"]["labels"] = {"serving.unmask.dev/service": "demo"}
    del api.objects[NETWORK_POLICY]
    api.wrong = of("NetworkPolicy", "create", error=QUOTA)
    reconcile(api, observed)
    assert len(api.objects[revision]["metadata"]["labels"]) > 1, "the labels were not repaired"


def swap(entry: Obj, old: str, **new: Any) -> None:
    del entry[old]
    entry.update(new)


def two_ports(spec: Obj, main: Obj) -> None:
    main["ports"][0]["containerPort"] = 8001
    spec["template"]["spec"]["containers"].insert(0, {"name": "sidecar", "ports": [{"containerPort": 9}]})


# Changes of another client to a spec, and to the container of a Deployment: an alternative of a desired member.
ALTERNATIVES: dict[str, tuple[Ref, Callable[[Obj, Obj], None]]] = {
    "a Service's port": (SERVICE, lambda spec, main: spec["ports"][0].update(port=8080)),
    "a container's protocol": (DEPLOYMENT, lambda spec, main: main["ports"][0].update(protocol="UDP")),
    "a container's port": (DEPLOYMENT, two_ports),
    "a probe's handler": (DEPLOYMENT, lambda spec, main: swap(main["readinessProbe"], "httpGet", exec={})),
    "a variable's source": (DEPLOYMENT, lambda spec, main: swap(main["env"][0], "value", valueFrom={"fieldRef": {}})),
    "a budget's number": (BUDGET, lambda spec, main: swap(spec, "maxUnavailable", minAvailable=1)),
}


@pytest.mark.parametrize("name", ALTERNATIVES)
@pytest.mark.parametrize("spec", [{}, {"service": {"port": 81}, **PATCHED}], ids=["repair", "edit"])
def test_an_alternative_that_another_client_set_is_replaced(name: str, spec: Obj) -> None:
    """Server-side apply keeps it next to the desired member, and the API server refuses both together."""
    observed, api = refusing()
    ref, change = ALTERNATIVES[name]
    live = copy.deepcopy(api.objects[ref])
    change(live["spec"], live["spec"]["template"]["spec"]["containers"][0] if ref == DEPLOYMENT else {})
    api.put(live)

    def wrong(verb: str, child: Obj) -> ApiError | None:
        both = "apply" in verb and Ref.of(child) == ref and api.objects[ref]["spec"] == live["spec"]
        return ApiError(422, "Invalid", "may not specify more than 1 handler type") if both else None

    api.wrong = wrong
    edited = edit(observed, **spec)
    outcome = reconcile(api, edited)
    assert not outcome.observed.refusals
    assert not outcome.failures
    after = replace(edited, children=api.objects)
    assert settled(make(after), after)
    assert not api.objects[ref]["spec"].get("minAvailable")
    if name == "a container's port":
        assert api.calls.count(("replace", "demo")) == 1


def test_a_resource_that_was_never_accepted_gets_no_child() -> None:
    observed = observe(resource(podDisruptionBudget={}))
    api = FakeApi(observed)
    api.wrong = of("Deployment", "dry-create", "create", error=TYPED)
    reconcile(api, observed)
    assert api.objects == {}
    assert api.scaled == []


def invalid(observed: Observed) -> Observed:
    """Restarts a resource with an invalid spec, so that no revision can be made of it."""
    service = copy.deepcopy(observed.resource)
    service["metadata"]["annotations"] = {RESTARTED_AT: "now"}
    service["spec"]["engine"] = {"blockSize": "no number"}
    return replace(observed, resource=service)


def with_unknown_revision() -> tuple[Observed, FakeApi]:
    observed, api = refusing()
    (revision,) = (obj for ref, obj in api.objects.items() if ref.kind == "ControllerRevision")
    revision["data"] = {"format": 9}
    return observed, api


@pytest.mark.parametrize("spec", [lambda observed: observed, invalid], ids=["valid", "invalid"])
def test_replicas_are_scaled_with_a_revision_of_an_unknown_format(spec: Any) -> None:
    observed, api = with_unknown_revision()
    outcome = reconcile(api, spec(edit(observed, replicas=5)))
    assert api.objects[DEPLOYMENT]["spec"]["replicas"] == outcome.plan.replicas == 5


def test_bounds_of_an_autoscaler_apply_although_the_rest_of_the_spec_cannot_be_used() -> None:
    observed, api = with_unknown_revision()
    scaling = {"minReplicas": 3, "maxReplicas": 4}
    for change in (
        {"replicas": 9, "autoscaling": scaling},
        {"replicas": 1, "autoscaling": scaling},
        {"replicas": None},  # without a value the replicas stay unchanged
        {"suspend": True, "replicas": None},
        {"replicas": None},
    ):
        reconcile(api, invalid(edit(observed, **change)))
    assert api.scaled == [4, 3, 0, 1]
