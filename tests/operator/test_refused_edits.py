"""Tests of edits that the API server refuses: they change nothing, and replicas are still written."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.samples import SETTINGS, edit, make, observe, resource, running, settled
from tests.operator.test_apply import Api
from unmask_operator.controller.apply import WRITTEN_ONCE, Applier, Outcome, with_applied_hash
from unmask_operator.controller.reconciler import Reconciler
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import DLMS, kind_of
from unmask_operator.metrics import Metrics
from unmask_operator.objects import RESTARTED_AT, Key, Obj, Ref
from unmask_operator.plan.drift import clashes
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import last_accepted, plan
from unmask_operator.status import status

KEY = Key("default", "demo")
DEPLOYMENT = Ref("apps/v1", "Deployment", "demo")
TYPED = ApiError(500, "Unknown", "failed to create typed patch object (default/demo; apps/v1, Kind=Deployment): .x")
TOO_LARGE = ApiError(500, "Unknown", "etcdserver: request is too large")
DENIED = ApiError(401, "Unauthorized", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")
QUOTA = ApiError(403, "Forbidden", "exceeded quota: q")
AWAY = ApiError(500, "InternalError", 'Internal error occurred: failed calling webhook "w"')
PATCHED = {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}


class Cluster(Api):
    """Fake API with refusals: `wrong(verb, child)` returns the error of a request, or None.

    Verbs are create and apply, and their dry runs dry-create and dry-apply.
    """

    def __init__(self, observed: Observed) -> None:
        super().__init__()
        self.wrong: Any = lambda verb, child: None
        self.scaled: list[int] = []
        self.scale_error: ApiError | None = None
        written = [c if c["kind"] in WRITTEN_ONCE else with_applied_hash(c) for c in observed.children.values()]
        for child in written:
            self.put(child)

    def _check(self, verb: str, obj: Obj) -> None:
        if error := self.wrong(verb, obj):
            raise error

    async def create(self, obj: Obj, dry_run: bool = False) -> Obj:
        self._check("dry-create" if dry_run else "create", obj)
        return await super().create(obj, dry_run)

    async def apply(self, obj: Obj, uid: str, dry_run: bool = False) -> Obj:
        self._check("dry-apply" if dry_run else "apply", obj)
        return await super().apply(obj, uid, dry_run)

    async def patch_deployment_scale(self, namespace: str, name: str, uid: str, replicas: int) -> Obj:
        if self.scale_error:
            raise self.scale_error
        assert self.objects[DEPLOYMENT]["metadata"]["uid"] == uid
        self.scaled.append(replicas)
        self.put({**self.objects[DEPLOYMENT], "spec": {**self.objects[DEPLOYMENT]["spec"], "replicas": replicas}})
        return {"kind": "Scale"}


def reconcile(cluster: Cluster, observed: Observed, writer: Applier | None = None) -> Outcome:
    """Runs one reconcile of the resource, whose children are the cluster's. The default writer is a new leader's."""
    seen = Observed(observed.resource, observed.now, dict(cluster.objects), apis=observed.apis)
    writer = writer or Applier(cluster, Cache(), lambda verb: None)  # type: ignore[arg-type]
    return asyncio.run(
        writer.apply(lambda known: plan(known, SETTINGS), lambda known: last_accepted(known, SETTINGS), seen)
    )


def content(cluster: Cluster) -> dict[Ref, Obj]:
    """Returns the objects without their resourceVersion."""
    found = copy.deepcopy(cluster.objects)
    for obj in found.values():
        obj["metadata"].pop("resourceVersion")
    return found


def of(kind: str, *verbs: str, error: ApiError, form: Any = lambda child: True) -> Any:
    """Returns a function that fails requests with these verbs for a kind. `form` may restrict it to some contents."""
    return lambda verb, child: error if child["kind"] == kind and verb in verbs and form(child) else None


def patched(child: Obj) -> bool:
    return "a" in child["spec"]["template"]["metadata"].get("annotations", {})


# What refuses the edit: the dry run, or (quotas, etcd's limit) only the real write.
EDITS = {
    "a value of a wrong type": of("Deployment", "dry-apply", "apply", error=TYPED, form=patched),
    "a denial": of("Deployment", "dry-apply", "apply", error=DENIED, form=patched),
    "a denial of the real write": of("Deployment", "apply", error=DENIED, form=patched),
    "a workload too large for etcd": of("Deployment", "apply", error=TOO_LARGE, form=patched),
    "a pin too large for etcd": of("ControllerRevision", "create", error=TOO_LARGE),
    "a quota of pins": of("ControllerRevision", "create", error=QUOTA),
    "another child": of("NetworkPolicy", "dry-create", "create", error=TYPED),
    "a quota that only counts real writes": of("NetworkPolicy", "create", error=QUOTA),
}


@pytest.mark.parametrize("wrong", EDITS.values(), ids=EDITS)
def test_an_edit_that_is_refused_in_part_is_reverted(wrong: Any) -> None:
    observed = running(replicas=2)
    cluster = Cluster(observed)
    before = content(cluster)
    cluster.wrong = wrong
    edited = edit(observed, service={"port": 81}, networkPolicy={}, **PATCHED)
    outcome = reconcile(cluster, edited)
    assert list(outcome.observed.refusals.values()), "the error was not reported as a refusal"
    assert not outcome.failures
    assert content(cluster) == before


@pytest.mark.parametrize("name", [name for name in EDITS if "quota that" not in name])
def test_no_other_child_is_written_before_the_refusal(name: str) -> None:
    observed = running()
    cluster = Cluster(observed)
    cluster.wrong = EDITS[name]
    reconcile(cluster, edit(observed, service={"port": 81}, networkPolicy={}, **PATCHED))
    assert {verb for verb, child in cluster.calls if child == "demo" and not verb.startswith("dry-")} == set()


def test_retries_of_an_edit_that_only_real_writes_refuse_start_no_rollout() -> None:
    """Checks this because otherwise each retry changes the Deployment and reverts it.

    Updates of its status cause the retries.
    """
    observed = running(replicas=2)
    cluster = Cluster(observed)
    cluster.wrong = EDITS["a quota that only counts real writes"]
    edited = edit(observed, networkPolicy={}, **PATCHED)
    writer = Applier(cluster, Cache(), lambda verb: None)  # type: ignore[arg-type]
    assert reconcile(cluster, edited, writer).observed.refusals
    cluster.calls.clear()
    for _ in range(3):
        assert reconcile(cluster, edited, writer).observed.refusals
    assert not [verb for verb, _ in cluster.calls if verb in ("apply", "delete")]
    cluster.wrong = lambda verb, child: None
    assert not reconcile(cluster, edited, writer).observed.refusals
    assert patched(cluster.objects[DEPLOYMENT])
    assert "NetworkPolicy" in {ref.kind for ref in cluster.objects}
    assert not writer.refused_writes
    writer.refused_writes[KEY] = {DEPLOYMENT}
    writer.forget(KEY)
    assert not writer.refused_writes


@pytest.mark.parametrize(
    "name", ["a denial of the real write", "a workload too large for etcd", "a pin too large for etcd"]
)
def test_retries_of_a_refused_edit_write_only_the_revision(name: str) -> None:
    observed = running()
    cluster = Cluster(observed)
    cluster.wrong = EDITS[name]
    edited = edit(observed, serviceAccount={"annotations": {"a": "b"}}, **PATCHED)
    writer = Applier(cluster, Cache(), lambda verb: None)  # type: ignore[arg-type]
    reconcile(cluster, edited, writer)
    cluster.calls.clear()
    reconcile(cluster, edited, writer)
    written = [call for call in cluster.calls if not call[0].startswith("dry-")]
    assert written in ([], [("create", "demo-r2"), ("delete", "demo-r2")])
    cluster.wrong = lambda verb, child: None
    cluster.calls.clear()
    reconcile(cluster, edited, writer)
    assert [name for verb, name in cluster.calls if not verb.startswith("dry-")][:2] == ["demo-r2", "demo"]


@pytest.mark.parametrize("wrong", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize(
    ("change", "replicas"),
    [
        ({"suspend": True}, 0),
        ({"replicas": 5}, 5),
        ({"autoscaling": {"minReplicas": 3, "maxReplicas": 4, "targets": {"runningRequestsPerReplica": 8}}}, 2),
    ],
    ids=["suspend", "scale", "autoscaling of the refused edit"],
)
def test_replicas_are_scaled_despite_a_refused_edit(wrong: Any, change: Obj, replicas: int) -> None:
    """Checks that bounds of the autoscaler are refused with the edit, so that those of the last accepted spec apply."""
    observed = running(replicas=2)
    cluster = Cluster(observed)
    cluster.wrong = wrong
    reconcile(cluster, edit(observed, service={"port": 81}, networkPolicy={}, **PATCHED, **change))
    assert cluster.objects[DEPLOYMENT]["spec"]["replicas"] == replicas


TIMEOUT = ApiError(504, "Timeout", "request did not complete within requested timeout")
ERRORS = {"webhook away": AWAY, "denied": DENIED, "quota": QUOTA, "typed": TYPED, "timeout": TIMEOUT}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize(("change", "replicas"), [({"suspend": True}, 0), ({"replicas": 5}, 5)])
def test_only_replicas_are_written_if_every_form_of_the_workload_is_refused(
    error: ApiError, change: Obj, replicas: int
) -> None:
    observed = running(replicas=2)
    cluster = Cluster(observed)
    cluster.wrong = of("Deployment", "dry-apply", "apply", error=error)
    for _ in range(2):
        outcome = reconcile(cluster, edit(observed, service={"port": 81}, **change))
        assert cluster.scaled == [replicas], "the replicas were not written exactly once"
    assert outcome.plan.replicas == replicas


def test_replicas_are_written_before_an_error_that_the_queue_retries() -> None:
    observed = running(replicas=2)
    cluster = Cluster(observed)
    cluster.wrong = of("Deployment", "dry-apply", "apply", error=AWAY)
    edited = edit(observed, replicas=3)
    edited.resource["metadata"]["resourceVersion"] = "1"
    cache = Cache()
    cache.put(DLMS, edited.resource)
    for child in cluster.objects.values():
        cache.put(kind_of(child["apiVersion"], child["kind"]), child)

    async def gather(service: Obj, children: Any, pods: Any) -> Observed:
        return replace(edited, resource=service, children=children, pods=pods)

    reconciler = Reconciler(cluster, cache, SETTINGS, gather, Metrics(cache, lambda: 0))  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="failed calling webhook"):
        asyncio.run(reconciler.reconcile(Key("default", "demo"), first_attempt=True))
    assert cluster.scaled == [3]


def test_unchanged_replicas_are_not_written() -> None:
    observed = running(replicas=2)
    cluster = Cluster(observed)
    cluster.wrong = of("Deployment", "dry-apply", "apply", error=AWAY)
    reconcile(cluster, edit(observed, **PATCHED))
    assert cluster.scaled == []


@pytest.mark.parametrize("owner", ["another's uid", ""])
def test_replicas_of_a_foreign_deployment_are_not_changed(owner: str) -> None:
    observed = running(replicas=2)
    cluster = Cluster(observed)
    cluster.objects[DEPLOYMENT]["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True}] if owner else []
    outcome = reconcile(cluster, edit(observed, replicas=7))
    assert [problem.reason for problem in outcome.plan.problems] == ["NameConflict"]
    assert cluster.scaled == []


@pytest.mark.parametrize("error", [AWAY, TIMEOUT])
def test_only_replicas_are_written_if_no_revision_can_be_written(error: ApiError) -> None:
    """Checks that the Deployment with the revision's template is then not applied either."""
    observed = running(replicas=2)
    cluster = Cluster(observed)
    cluster.wrong = of("ControllerRevision", "create", error=error)
    outcome = reconcile(cluster, edit(observed, replicas=4, **PATCHED))
    assert list(outcome.observed.failures.values()) == [error.message]
    assert cluster.scaled == [4]
    assert not patched(cluster.objects[DEPLOYMENT])


def test_an_error_of_the_scale_subresource_is_reported_with_the_first_one() -> None:
    observed = running(replicas=2)
    cluster = Cluster(observed)
    cluster.wrong = of("Deployment", "dry-apply", "apply", error=AWAY)
    cluster.scale_error = ApiError(500, "InternalError", "the second sentence")
    outcome = reconcile(cluster, edit(observed, replicas=3))
    sentence = outcome.observed.failures[DEPLOYMENT]
    assert sentence == f"{AWAY.message}; its replicas cannot be written either: the second sentence"


@pytest.mark.parametrize(
    "error", [ApiError(409, "Conflict", "Precondition failed: UID"), ApiError(404, "NotFound", "gone")]
)
def test_a_scale_error_of_a_deleted_deployment_is_not_reported(error: ApiError) -> None:
    observed = running(replicas=2)
    cluster = Cluster(observed)
    cluster.wrong = of("Deployment", "dry-apply", "apply", error=AWAY)
    cluster.scale_error = error
    assert list(reconcile(cluster, edit(observed, replicas=3)).observed.failures.values()) == [AWAY.message]


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("broken", ["Deployment", "Service", "PodDisruptionBudget"])
def test_a_refused_child_does_not_prevent_the_repair_of_others(broken: str, error: ApiError) -> None:
    observed = running(podDisruptionBudget={}, networkPolicy={})
    cluster = Cluster(observed)
    drifted = [DEPLOYMENT, Ref("v1", "Service", "demo"), Ref("policy/v1", "PodDisruptionBudget", "demo-engine")]
    drifted.append(Ref("networking.k8s.io/v1", "NetworkPolicy", "demo-engine"))
    before = content(cluster)
    for ref in drifted:
        cluster.objects[ref]["metadata"]["labels"] = {"serving.unmask.dev/service": "demo"}
    cluster.wrong = of(broken, "dry-apply", "apply", error=error)
    outcome = reconcile(cluster, observed)
    assert {ref.kind for ref in (*outcome.observed.refusals, *outcome.observed.failures)} == {broken}
    after = content(cluster)
    assert {ref.kind for ref in drifted if after[ref]["metadata"]["labels"] != before[ref]["metadata"]["labels"]} == {
        broken
    }


@pytest.mark.parametrize("verbs", [("dry-create", "create"), ("create",)])
def test_a_repaired_revision_is_not_withdrawn(verbs: tuple[str, ...]) -> None:
    """Checks that the revision stays, because it was accepted earlier, although another child is refused now."""
    observed = running(networkPolicy={})
    cluster = Cluster(observed)
    (pin,) = (ref for ref in cluster.objects if ref.kind == "ControllerRevision")
    cluster.objects[pin]["metadata"]["labels"] = {"serving.unmask.dev/service": "demo"}
    del cluster.objects[Ref("networking.k8s.io/v1", "NetworkPolicy", "demo-engine")]
    cluster.wrong = of("NetworkPolicy", *verbs, error=QUOTA)
    reconcile(cluster, observed)
    assert len(cluster.objects[pin]["metadata"]["labels"]) > 1, "the labels of the revision were not repaired"


def test_refusals_and_failures_are_reported_together() -> None:
    observed = running()
    service, budget = Ref("v1", "Service", "demo"), Ref("policy/v1", "PodDisruptionBudget", "demo-engine")
    observed = replace(observed, refusals={service: "no"}, failures={budget: "away"})
    (found,) = (c for c in status(observed, make(observed))["conditions"] if c["type"] == "Accepted")
    assert (found["status"], found["reason"]) == ("False", "Refused")
    assert found["message"] == (
        "Service demo was refused: no; "
        "the API server failed on PodDisruptionBudget demo-engine: away; the operator retries"
    )


def port_of_the_service(obj: Obj) -> None:
    obj["spec"]["ports"][0]["port"] = 8080


def protocol_of_the_service(obj: Obj) -> None:
    obj["spec"]["ports"][0]["protocol"] = "UDP"


def protocol_of_the_engine(obj: Obj) -> None:
    obj["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"] = "UDP"


def port_of_the_engine(obj: Obj) -> None:
    containers = obj["spec"]["template"]["spec"]["containers"]
    containers[0]["ports"][0]["containerPort"] = 8001
    containers.insert(0, {"name": "sidecar", "ports": [{"containerPort": 9}]})


def probe(obj: Obj) -> None:
    readiness = obj["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]
    del readiness["httpGet"]
    readiness["exec"] = {"command": ["true"]}


def variable(obj: Obj) -> None:
    entry = next(e for e in obj["spec"]["template"]["spec"]["containers"][0]["env"] if "value" in e)
    del entry["value"]
    entry["valueFrom"] = {"fieldRef": {"fieldPath": "metadata.name"}}


def volume(obj: Obj) -> None:
    entry = next(e for e in obj["spec"]["template"]["spec"]["volumes"] if "emptyDir" in e)
    del entry["emptyDir"]
    entry["hostPath"] = {"path": "/x"}


def budget(obj: Obj) -> None:
    del obj["spec"]["maxUnavailable"]
    obj["spec"]["minAvailable"] = 1


ALTERNATIVES: dict[str, tuple[Ref, Any]] = {
    "a Service's port": (Ref("v1", "Service", "demo"), port_of_the_service),
    "a Service's protocol": (Ref("v1", "Service", "demo"), protocol_of_the_service),
    "a container's port": (DEPLOYMENT, port_of_the_engine),
    "a container's protocol": (DEPLOYMENT, protocol_of_the_engine),
    "a probe's handler": (DEPLOYMENT, probe),
    "a variable's source": (DEPLOYMENT, variable),
    "a volume's source": (DEPLOYMENT, volume),
    "a budget's number": (Ref("policy/v1", "PodDisruptionBudget", "demo-engine"), budget),
}


@pytest.mark.parametrize(("ref", "change"), ALTERNATIVES.values(), ids=ALTERNATIVES)
@pytest.mark.parametrize("spec", [{}, {"service": {"port": 81}, **PATCHED}], ids=["repair", "edit"])
def test_an_alternative_that_another_client_set_is_replaced(ref: Ref, change: Any, spec: Obj) -> None:
    """Checks that the other member is removed.

    Server-side apply keeps it next to the desired member, and the API server refuses both together.
    """
    observed = running()
    cluster = Cluster(observed)
    live = copy.deepcopy(cluster.objects[ref])
    change(live)
    cluster.put(live)

    def wrong(verb: str, child: Obj) -> ApiError | None:
        found = cluster.objects.get(Ref.of(child))
        both = found is not None and "apply" in verb and Ref.of(child) == ref and list(clashes(child, found))
        return ApiError(422, "Invalid", "may not specify more than 1 handler type") if both else None

    cluster.wrong = wrong
    edited = edit(observed, **spec)
    outcome = reconcile(cluster, edited)
    assert not outcome.observed.refusals
    assert not outcome.failures
    after = replace(edited, children=cluster.objects)
    assert settled(make(after), after)
    assert not cluster.objects[ref]["spec"].get("minAvailable")
    if ref == DEPLOYMENT and change is port_of_the_engine:
        assert cluster.calls.count(("replace", "demo")) == 1


def test_values_of_the_same_alternative_are_no_clash() -> None:
    observed = running()
    for ref, child in observed.children.items():
        live = copy.deepcopy(child)
        assert not list(clashes(child, live))
        live["metadata"]["labels"] = {}
        if ref == DEPLOYMENT:
            live["spec"]["replicas"] = 9
            live["spec"]["template"]["spec"]["containers"][0]["image"] = "x"
            live["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] = 77
            live["spec"]["template"]["spec"]["containers"].append({"name": "y", "ports": [{"containerPort": 1}]})
            del live["spec"]["template"]["spec"]["securityContext"]
        assert not list(clashes(child, live))


def test_a_resource_that_was_never_accepted_gets_no_child() -> None:
    observed = observe(resource(podDisruptionBudget={}))
    cluster = Cluster(observed)
    cluster.wrong = of("Deployment", "dry-create", "create", error=TYPED)
    reconcile(cluster, observed)
    assert cluster.objects == {}
    assert cluster.scaled == []


def invalid(observed: Observed) -> Observed:
    """Restarts a resource with an invalid spec, so that no revision can be made of it.

    Tests combine it with an unreadable current revision.
    """
    service = copy.deepcopy(observed.resource)
    service["metadata"]["annotations"] = {RESTARTED_AT: "now"}
    service["spec"]["engine"] = {"blockSize": "no number"}
    return replace(observed, resource=service)


def unknown_pin(cluster: Cluster) -> None:
    (pin,) = (obj for ref, obj in cluster.objects.items() if ref.kind == "ControllerRevision")
    pin["data"] = {"format": 9}


@pytest.mark.parametrize("spec", [lambda observed: observed, invalid], ids=["valid", "invalid"])
@pytest.mark.parametrize(("change", "replicas"), [({"suspend": True}, 0), ({"replicas": 5}, 5)])
def test_replicas_are_scaled_with_a_revision_of_an_unknown_format(spec: Any, change: Obj, replicas: int) -> None:
    observed = running(replicas=2)
    cluster = Cluster(observed)
    unknown_pin(cluster)
    outcome = reconcile(cluster, spec(edit(observed, **change)))
    assert cluster.objects[DEPLOYMENT]["spec"]["replicas"] == replicas
    assert outcome.plan.replicas == replicas


def test_bounds_of_an_autoscaler_apply_although_the_rest_of_the_spec_cannot_be_used() -> None:
    observed = running(replicas=2)
    cluster = Cluster(observed)
    unknown_pin(cluster)
    scaling = {"minReplicas": 3, "maxReplicas": 4}
    for change in (
        {"replicas": 9, "autoscaling": scaling},
        {"replicas": 1, "autoscaling": scaling},
        {"replicas": None},  # without a value the replicas stay unchanged
        {"suspend": True, "replicas": None},
        {"replicas": None},
    ):
        reconcile(cluster, invalid(edit(observed, **change)))
    assert cluster.scaled == [4, 3, 0, 1]


def test_a_spec_that_was_never_accepted_has_no_replicas() -> None:
    assert make(observe(resource(engine={"blockSize": "x"}, replicas=4))).replicas == 0
