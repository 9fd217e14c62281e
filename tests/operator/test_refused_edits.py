"""Tests of edits that the API server refuses: they change nothing, and replicas are still written."""

import asyncio
import copy
from collections.abc import Callable
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

KEY = Key("default", "demo")
DEPLOYMENT = Ref("apps/v1", "Deployment", "demo")
TYPED = ApiError(500, "Unknown", "failed to create typed patch object (default/demo; apps/v1, Kind=Deployment): .x")
TOO_LARGE = ApiError(500, "Unknown", "etcdserver: request is too large")
DENIED = ApiError(401, "Unauthorized", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")
QUOTA = ApiError(403, "Forbidden", "exceeded quota: q")
AWAY = ApiError(500, "InternalError", 'Internal error occurred: failed calling webhook "w"')
SERVICE, BUDGET = Ref("v1", "Service", "demo"), Ref("policy/v1", "PodDisruptionBudget", "demo-engine")
NETWORK_POLICY = Ref("networking.k8s.io/v1", "NetworkPolicy", "demo-engine")
PATCHED = {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}


class Cluster(Api):
    """Fake API. `wrong` returns the error of a request or None, by verb (also dry-create, dry-apply) and child."""

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
    planned = (writer or new_writer(cluster)).apply(
        lambda known: plan(known, SETTINGS), lambda known: last_accepted(known, SETTINGS), seen
    )
    return asyncio.run(planned)


def refusing(wrong: Any = lambda verb, child: None, **spec: Any) -> tuple[Observed, Cluster]:
    """Returns a running service with two replicas, and its cluster, which refuses some requests from now on."""
    observed = running(replicas=2, **spec)
    cluster = Cluster(observed)
    cluster.wrong = wrong
    return observed, cluster


def new_writer(cluster: Cluster) -> Applier:
    return Applier(cluster, Cache(), lambda verb: None)  # type: ignore[arg-type]


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


def real_writes(cluster: Cluster) -> list[str]:
    """Returns the names of the objects in requests without dry runs."""
    return [name for verb, name in cluster.calls if not verb.startswith("dry-")]


SCALED = {"autoscaling": {"minReplicas": 3, "maxReplicas": 4, "targets": {"runningRequestsPerReplica": 8}}}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize(
    ("change", "replicas"), [({}, 2), ({"suspend": True}, 0), ({"replicas": 5}, 5), (SCALED, 2)], ids=str
)
def test_an_edit_that_is_refused_in_part_is_reverted_except_for_replicas(name: str, change: Obj, replicas: int) -> None:
    """Bounds of the autoscaler are refused with the edit, so that those of the last accepted spec apply."""
    observed, cluster = refusing(EDITS[name])
    before = content(cluster)
    outcome = reconcile(cluster, edit(observed, service={"port": 81}, networkPolicy={}, **PATCHED, **change))
    assert outcome.observed.refusals
    assert not outcome.observed.failures
    assert not outcome.failures
    assert cluster.objects[DEPLOYMENT]["spec"]["replicas"] == replicas
    if replicas == 2:
        assert content(cluster) == before
        assert "quota" in name or "demo" not in real_writes(cluster), "a child was written before the refusal"


@pytest.mark.parametrize("name", [*ONLY_WRITES, QUOTA_OF_WRITES])
def test_retries_of_an_edit_that_only_real_writes_refuse_start_no_rollout(name: str) -> None:
    """Updates of the Deployment's status cause retries, so writing and reverting it would not end."""
    observed, cluster = refusing(EDITS[name])
    edited = edit(observed, networkPolicy={}, **PATCHED)
    writer = new_writer(cluster)
    reconcile(cluster, edited, writer)
    cluster.calls.clear()
    for _ in range(2):
        assert reconcile(cluster, edited, writer).observed.refusals
    if name == QUOTA_OF_WRITES:
        assert not [verb for verb, _ in cluster.calls if verb in ("apply", "delete")]
    else:
        assert {*real_writes(cluster)} <= {"demo-r2"}
    cluster.wrong = lambda verb, child: None
    cluster.calls.clear()
    assert not reconcile(cluster, edited, writer).observed.refusals
    assert patched(cluster.objects[DEPLOYMENT])
    assert NETWORK_POLICY in cluster.objects
    written = real_writes(cluster)
    assert "demo-r2" not in written or written.index("demo-r2") < written.index("demo")
    assert not writer.refused_writes
    writer.refused_writes[KEY] = {DEPLOYMENT}
    writer.forget(KEY)
    assert not writer.refused_writes


@ANY_ERROR
@pytest.mark.parametrize(
    ("change", "scaled"), [({"suspend": True}, [0]), ({"replicas": 5}, [5]), ({"service": {"port": 81}}, [])]
)
def test_only_replicas_are_written_if_every_form_of_the_workload_is_refused(
    error: ApiError, change: Obj, scaled: list[int]
) -> None:
    observed, cluster = refusing(of("Deployment", "dry-apply", "apply", error=error))
    edited = edit(observed, **PATCHED, **change)
    for _ in range(2):
        assert reconcile(cluster, edited).plan.replicas == (scaled or [2])[0]
        assert cluster.scaled == scaled, "the replicas were not written exactly once"


def test_only_replicas_are_written_if_no_revision_can_be_written() -> None:
    observed, cluster = refusing(of("ControllerRevision", "create", error=AWAY))
    outcome = reconcile(cluster, edit(observed, replicas=4, **PATCHED))
    assert (list(outcome.observed.failures.values()), cluster.scaled) == ([AWAY.message], [4])
    assert not patched(cluster.objects[DEPLOYMENT])


def test_replicas_are_written_before_an_error_that_the_queue_retries() -> None:
    observed, cluster = refusing(of("Deployment", "dry-apply", "apply", error=AWAY))
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
        asyncio.run(reconciler.reconcile(KEY, first_attempt=True))
    assert cluster.scaled == [3]


@pytest.mark.parametrize("owner", ["another's uid", ""])
def test_replicas_of_a_foreign_deployment_are_not_changed(owner: str) -> None:
    observed, cluster = refusing()
    cluster.objects[DEPLOYMENT]["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True}] if owner else []
    outcome = reconcile(cluster, edit(observed, replicas=7))
    assert [problem.reason for problem in outcome.plan.problems] == ["NameConflict"]
    assert cluster.scaled == []


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (ApiError(500, "InternalError", "second"), "; its replicas cannot be written either: second"),
        (ApiError(409, "Conflict", "Precondition failed: UID"), ""),  # the Deployment was deleted
        (ApiError(404, "NotFound", "gone"), ""),
    ],
)
def test_an_error_of_the_scale_subresource_is_reported_with_the_first_one(error: ApiError, reported: str) -> None:
    observed, cluster = refusing(of("Deployment", "dry-apply", "apply", error=AWAY))
    cluster.scale_error = error
    outcome = reconcile(cluster, edit(observed, replicas=3))
    assert outcome.observed.failures == {DEPLOYMENT: AWAY.message + reported}


@ANY_ERROR
@pytest.mark.parametrize("broken", [DEPLOYMENT, SERVICE], ids=lambda ref: ref.kind)
def test_a_refused_child_does_not_prevent_the_repair_of_others(broken: Ref, error: ApiError) -> None:
    observed, cluster = refusing(networkPolicy={})
    before = content(cluster)
    drifted = {DEPLOYMENT, SERVICE, BUDGET, NETWORK_POLICY}
    for ref in drifted:
        cluster.objects[ref]["metadata"]["labels"] = {"serving.unmask.dev/service": "demo"}
    cluster.wrong = of(broken.kind, "dry-apply", "apply", error=error)
    outcome = reconcile(cluster, observed)
    assert {*outcome.observed.refusals, *outcome.observed.failures} == {broken}
    after = content(cluster)
    assert {r for r in drifted if after[r]["metadata"]["labels"] != before[r]["metadata"]["labels"]} == {broken}


def test_a_repaired_revision_is_not_withdrawn() -> None:
    """It was accepted earlier, although another child is refused now."""
    observed, cluster = refusing(networkPolicy={})
    (revision,) = (ref for ref in cluster.objects if ref.kind == "ControllerRevision")
    cluster.objects[revision]["metadata"]["labels"] = {"serving.unmask.dev/service": "demo"}
    del cluster.objects[NETWORK_POLICY]
    cluster.wrong = of("NetworkPolicy", "create", error=QUOTA)
    reconcile(cluster, observed)
    assert len(cluster.objects[revision]["metadata"]["labels"]) > 1, "the labels were not repaired"


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
    observed, cluster = refusing()
    ref, change = ALTERNATIVES[name]
    live = copy.deepcopy(cluster.objects[ref])
    change(live["spec"], live["spec"]["template"]["spec"]["containers"][0] if ref == DEPLOYMENT else {})
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
    if name == "a container's port":
        assert cluster.calls.count(("replace", "demo")) == 1


def test_values_of_the_same_alternative_are_no_clash() -> None:
    live = copy.deepcopy(running().children[DEPLOYMENT])
    live["metadata"]["labels"] = {}
    live["spec"]["replicas"] = 9
    pod = live["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = "x"
    pod["containers"][0]["readinessProbe"]["periodSeconds"] = 77
    pod["containers"].append({"name": "y", "ports": [{"containerPort": 1}]})
    del pod["securityContext"]
    assert not list(clashes(running().children[DEPLOYMENT], live))


def test_a_resource_that_was_never_accepted_gets_no_child() -> None:
    observed = observe(resource(podDisruptionBudget={}))
    cluster = Cluster(observed)
    cluster.wrong = of("Deployment", "dry-create", "create", error=TYPED)
    reconcile(cluster, observed)
    assert cluster.objects == {}
    assert cluster.scaled == []


def invalid(observed: Observed) -> Observed:
    """Restarts a resource with an invalid spec, so that no revision can be made of it."""
    service = copy.deepcopy(observed.resource)
    service["metadata"]["annotations"] = {RESTARTED_AT: "now"}
    service["spec"]["engine"] = {"blockSize": "no number"}
    return replace(observed, resource=service)


def with_unknown_revision() -> tuple[Observed, Cluster]:
    observed, cluster = refusing()
    (revision,) = (obj for ref, obj in cluster.objects.items() if ref.kind == "ControllerRevision")
    revision["data"] = {"format": 9}
    return observed, cluster


@pytest.mark.parametrize("spec", [lambda observed: observed, invalid], ids=["valid", "invalid"])
def test_replicas_are_scaled_with_a_revision_of_an_unknown_format(spec: Any) -> None:
    observed, cluster = with_unknown_revision()
    outcome = reconcile(cluster, spec(edit(observed, replicas=5)))
    assert cluster.objects[DEPLOYMENT]["spec"]["replicas"] == outcome.plan.replicas == 5


def test_bounds_of_an_autoscaler_apply_although_the_rest_of_the_spec_cannot_be_used() -> None:
    observed, cluster = with_unknown_revision()
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
