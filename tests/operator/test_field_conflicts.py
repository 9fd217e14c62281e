"""Tests of another client or webhook that keeps changing a child: reports, and repairs at increasing intervals."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.samples import SETTINGS, edit, make, observe, running
from tests.operator.test_refused_edits import DENIED, DEPLOYMENT, PATCHED, Cluster, of, patched
from unmask_operator.controller.field_conflicts import (
    LAST_ADMISSION_PAUSE_SECONDS,
    LAST_PAUSE_SECONDS,
    SETTLED_SECONDS,
    WINDOW_SECONDS,
    other_manager,
)
from unmask_operator.controller.reconciler import Reconciler, Result
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import DLMS, kind_of
from unmask_operator.metrics import Metrics
from unmask_operator.objects import FIELD_MANAGER, Key, Obj, Ref
from unmask_operator.plan.drift import ListKey, differences, field_name
from unmask_operator.plan.observed import FieldConflict, Observed
from unmask_operator.status import status

KEY = Key("default", "demo")
SERVICE = Ref("v1", "Service", "demo")
IMAGE = "registry.example.com/other:1"
Change = Callable[[Obj], None]


def deployment_image(obj: Obj) -> None:
    obj["spec"]["template"]["spec"]["containers"][0]["image"] = IMAGE


def deployment_args(obj: Obj) -> None:
    obj["spec"]["template"]["spec"]["containers"][0]["args"] = ["--other"]


def deployment_replicas(obj: Obj) -> None:
    obj["spec"]["replicas"] = 7


def deployment_label(obj: Obj) -> None:
    obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"


def variable_removed(obj: Obj) -> None:
    del obj["spec"]["template"]["spec"]["containers"][0]["env"][0]


def service_port(obj: Obj) -> None:
    obj["spec"]["ports"][0]["port"] = 8080


CHANGES: dict[str, tuple[Ref, Change, Any, str]] = {
    "replicas": (DEPLOYMENT, deployment_replicas, {"f:spec": {"f:replicas": {}}}, "spec.replicas"),
    "image": (
        DEPLOYMENT,
        deployment_image,
        {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"main"}': {".": {}, "f:image": {}}}}}}},
        "spec.template.spec.containers[main].image",
    ),
    "arguments": (
        DEPLOYMENT,
        deployment_args,
        {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"main"}': {"f:args": {}}}}}}},
        "spec.template.spec.containers[main].args",
    ),
    "label": (
        DEPLOYMENT,
        deployment_label,
        {"f:metadata": {"f:labels": {"f:app.kubernetes.io/managed-by": {}}}},
        "metadata.labels[app.kubernetes.io/managed-by]",
    ),
    "port": (SERVICE, service_port, {"f:spec": {"f:ports": {}}}, "spec.ports[80]"),
}


class World(Cluster):
    """A cluster with a reconciled resource, a clock, and another client that may change its children.

    `mutate` changes every written object, as a mutating webhook does.
    """

    def __init__(self, **spec: Any) -> None:
        observed = running(**spec)
        super().__init__(observed)
        self.now = 1000.0
        self.events: list[Obj] = []
        self.mutate: Callable[[Obj], None] = lambda obj: None
        self.service = observed.resource
        self.service["metadata"]["resourceVersion"] = "1"
        self.apis = observed.apis
        self.pods: list[Obj] = []
        self.restart()

    def restart(self) -> None:
        """Replaces the reconciler and its cache, as a new leader does."""
        self.cache = Cache()
        metrics = Metrics(self.cache, lambda: 0)
        clock = lambda: self.now  # noqa: E731
        client: Any = self
        self.reconciler = Reconciler(client, self.cache, SETTINGS, self._observe, metrics, clock)

    async def _observe(self, service: Obj, children: Any, pods: Any) -> Observed:
        return replace(observe(service), children=children, apis=self.apis, pods=self.pods)

    async def create(self, obj: Obj, dry_run: bool = False) -> Obj:
        if obj["kind"] == "Event":
            self.events.append(obj)
            return obj
        mutated = copy.deepcopy(obj)
        self.mutate(mutated)
        return await super().create(mutated, dry_run)

    async def apply(self, obj: Obj, uid: str, dry_run: bool = False) -> Obj:
        mutated = copy.deepcopy(obj)
        self.mutate(mutated)
        return await super().apply(mutated, uid, dry_run)

    async def patch_status(self, namespace: str, name: str, uid: str, patch: Obj) -> Obj:
        stored = {**(self.service.get("status") or {}), **patch}
        self.version += 1
        self.service = {**self.service, "status": {m: v for m, v in stored.items() if v is not None}}
        self.service["metadata"] = {**self.service["metadata"], "resourceVersion": str(self.version)}
        return self.service

    def edit(self, **spec: Any) -> None:
        self.service = edit(replace(running(), resource=self.service), **spec).resource
        self.version += 1
        self.service["metadata"]["resourceVersion"] = str(self.version)

    def change(self, ref: Ref, change: Change, fields: Any = None, manager: str = "argocd-controller") -> None:
        """Changes an object as another client."""
        obj = copy.deepcopy(self.objects[ref])
        change(obj)
        entry = {"manager": manager, "operation": "Update", "fieldsV1": fields or {}, "time": "2026-01-01T00:00:02Z"}
        ours = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {}, "time": "2026-01-01T00:00:01Z"}
        obj["metadata"]["managedFields"] = [ours, entry]
        self.put(obj)

    def reconcile(self) -> Result:
        self.cache.put(DLMS, self.service, answered=True)
        for ref, obj in self.cache.children(KEY).items():
            if ref not in self.objects:
                self.cache.delete(kind_of(ref.api_version, ref.kind), obj)
        for obj in self.objects.values():
            self.cache.put(kind_of(obj["apiVersion"], obj["kind"]), obj)
        return asyncio.run(self.reconciler.reconcile(KEY))

    def applied(self) -> int:
        return sum(verb == "apply" for verb, _ in self.calls)

    @property
    def up_to_date(self) -> Obj:
        (found,) = (c for c in self.service["status"]["conditions"] if c["type"] == "UpToDate")
        return dict(found)

    def fight(self, ref: Ref, change: Change, fields: Any, times: int, seconds: float = 1.0, **who: str) -> Result:
        """Lets the other client change the field `times` times, and reconciles after each change."""
        for _ in range(times):
            self.now += seconds
            self.change(ref, change, fields, **who)
            result = self.reconcile()
        return result


@pytest.mark.parametrize(("ref", "change", "fields", "name"), CHANGES.values(), ids=CHANGES)
def test_a_field_that_is_changed_repeatedly_is_reported_with_its_manager(
    ref: Ref, change: Change, fields: Any, name: str
) -> None:
    world = World(replicas=2)
    world.reconcile()
    world.fight(ref, change, fields, times=2)
    assert world.up_to_date["reason"] == "UpToDate", "a conflict was reported after only two changes"
    world.fight(ref, change, fields, times=1)
    found = world.up_to_date
    assert (found["status"], found["reason"]) == ("False", "FieldConflict")
    for part in (f"{ref.kind} demo", name, "argocd-controller"):
        assert part in found["message"]
    assert world.service["status"]["conditions"]
    (event,) = [event for event in world.events if event["reason"] == "FieldConflict"]
    assert event["type"] == "Warning"
    assert event["note"] == found["message"]
    world.fight(ref, change, fields, times=5, seconds=100)
    assert len([event for event in world.events if event["reason"] == "FieldConflict"]) == 1


def test_a_scaler_of_the_deployment_is_reported_with_what_to_do() -> None:
    world = World(replicas=2)
    ref, change, fields, _ = CHANGES["replicas"]
    world.fight(ref, change, fields, times=4, seconds=15, manager="kube-controller-manager")
    message = world.up_to_date["message"]
    assert "kube-controller-manager" in message
    assert "HorizontalPodAutoscaler" in message
    assert world.scaled == [], "the operator wrote the scale subresource during the pause"


def test_repairs_of_a_field_in_conflict_back_off_to_five_minutes() -> None:
    world = World()
    ref, change, fields, _ = CHANGES["image"]
    world.fight(ref, change, fields, times=3)
    pauses, written = [], world.applied()
    for _ in range(10):
        world.change(ref, change, fields)
        start = world.now
        while world.applied() == written:
            result = world.reconcile()
            if world.applied() == written:
                assert result.requeue_after is not None
                world.now += result.requeue_after
        written = world.applied()
        pauses.append(world.now - start)
    assert pauses == [4, 8, 16, 32, 64, 128, 256, *[LAST_PAUSE_SECONDS] * 3]
    assert world.up_to_date["reason"] == "FieldConflict"


def test_a_field_in_conflict_is_not_repaired_during_its_pause() -> None:
    world = World()
    ref, change, fields, _ = CHANGES["image"]
    world.fight(ref, change, fields, times=3)
    written = world.applied()
    for _ in range(20):
        world.change(ref, change, fields)
        world.now += 0.01
        result = world.reconcile()
        assert result.requeue_after is not None
        assert 0 < result.requeue_after <= 4
    assert world.applied() == written


def test_another_field_of_the_child_is_repaired_meanwhile() -> None:
    world = World()
    ref, change, fields, _ = CHANGES["image"]
    world.fight(ref, change, fields, times=3)
    world.change(ref, change, fields)
    world.change(ref, deployment_label)
    written = world.applied()
    world.reconcile()
    assert world.applied() == written + 1
    world.change(SERVICE, service_port)
    world.reconcile()
    assert world.objects[SERVICE]["spec"]["ports"][0]["port"] == 80


@pytest.mark.parametrize("spec", [{"suspend": True}, {"replicas": 3}, PATCHED], ids=["suspend", "scale", "edit"])
def test_an_edit_does_not_wait_for_a_pause(spec: Obj) -> None:
    world = World(replicas=2)
    ref, change, fields, _ = CHANGES["replicas"]
    world.fight(ref, change, fields, times=6)
    world.change(ref, change, fields)
    world.edit(**spec)
    world.reconcile()
    live = world.objects[DEPLOYMENT]
    assert live["spec"]["replicas"] == {"suspend": 0, "replicas": 3}.get(next(iter(spec)), 2)
    assert spec is not PATCHED or patched(live)


def test_the_conflict_ends_when_the_field_stays_as_applied() -> None:
    world = World()
    ref, change, fields, _ = CHANGES["label"]
    world.fight(ref, change, fields, times=4)
    assert world.up_to_date["reason"] == "FieldConflict"
    result = world.reconcile()
    for _ in range(9):
        assert result.requeue_after is not None, "no requeue is scheduled, so no reconcile ends the conflict"
        world.now += result.requeue_after
        result = world.reconcile()
        if world.up_to_date["status"] == "True":
            break
    assert world.up_to_date["reason"] == "UpToDate"
    assert result.requeue_after is None


def test_the_conflict_does_not_end_between_two_changes_by_a_periodic_tool() -> None:
    """Checks this with a tool that changes the field every three minutes."""
    world = World()
    ref, change, fields, _ = CHANGES["label"]
    world.reconcile()
    states = []
    for _ in range(8):
        for _ in range(18):
            world.now += 10
            world.reconcile()
            states.append(world.up_to_date["reason"])
        world.change(ref, change, fields)
        world.reconcile()
    reasons = [reason for reason, _ in itertools.groupby(states)]
    assert reasons == ["UpToDate", "FieldConflict"]


@pytest.mark.parametrize("minutes", [3, 5, 10])
def test_a_tool_that_acts_every_few_minutes_is_reported(minutes: int) -> None:
    """Checks intervals of GitOps tools. The conflict does not end between two of their writes."""
    world = World()
    ref, change, fields, _ = CHANGES["image"]
    world.fight(ref, change, fields, times=3, seconds=60 * minutes)
    for _ in range(6):
        assert world.up_to_date["reason"] == "FieldConflict"
        assert world.objects[ref]["spec"]["template"]["spec"]["containers"][0]["image"] != IMAGE
        world.now += 30 * minutes
        world.reconcile()
        assert world.up_to_date["reason"] == "FieldConflict"
        world.fight(ref, change, fields, times=1, seconds=30 * minutes)


def test_repairs_at_long_intervals_are_no_conflict() -> None:
    world = World()
    ref, change, fields, _ = CHANGES["image"]
    world.fight(ref, change, fields, times=9, seconds=WINDOW_SECONDS / 2 + 1)
    assert world.up_to_date["reason"] == "UpToDate"


def test_edits_are_no_repairs() -> None:
    world = World()
    for number in range(9):
        world.edit(service={"port": 81 + number})
        world.reconcile()
        world.now += 1
    assert world.up_to_date["reason"] == "UpToDate"


def test_a_tool_that_also_removes_the_operators_annotation_is_reported() -> None:
    world = World()

    def change(obj: Obj) -> None:
        deployment_image(obj)
        obj["metadata"]["annotations"] = {}

    world.fight(DEPLOYMENT, change, CHANGES["image"][2], times=4)
    assert world.up_to_date["reason"] == "FieldConflict"
    assert "containers[main].image" in world.up_to_date["message"]


def test_a_removed_field_is_attributed_to_the_manager_that_wrote_after_the_operator() -> None:
    world = World()
    world.fight(DEPLOYMENT, variable_removed, {"f:spec": {"f:paused": {}}}, times=3)
    assert "containers[main].env[" in world.up_to_date["message"]
    assert "argocd-controller" in world.up_to_date["message"]


def test_a_conflict_is_reported_without_a_manager_where_none_can_be_read() -> None:
    world = World()

    async def get(kind: Any, namespace: str, name: str) -> Obj:
        raise ApiError(500, "InternalError", "no answer")

    world.get = get  # type: ignore[assignment]
    ref, change, fields, name = CHANGES["image"]
    world.fight(ref, change, fields, times=3)
    assert name in world.up_to_date["message"]
    assert "a client without a field manager" in world.up_to_date["message"]


def test_replicas_of_a_refused_edit_back_off_too() -> None:
    world = World(replicas=2)
    world.wrong = of("Deployment", "dry-apply", "apply", error=DENIED)
    world.edit(**PATCHED)
    ref, change, fields, _ = CHANGES["replicas"]
    for _ in range(20):
        world.now += 0.5
        world.change(ref, change, fields)
        world.reconcile()
    assert set(world.scaled) == {2}
    assert len(world.scaled) < 9
    assert world.up_to_date["reason"] == "FieldConflict"
    world.edit(suspend=True)
    world.reconcile()
    assert world.scaled[-1] == 0, "a new number of replicas was delayed as if it were a repair"


def test_the_last_accepted_form_of_a_refused_edit_backs_off_too() -> None:
    world = World(replicas=2)
    world.wrong = of("Deployment", "dry-apply", "apply", error=DENIED, form=patched)
    world.edit(**PATCHED)
    ref, change, fields, _ = CHANGES["replicas"]
    for _ in range(40):
        world.now += 0.5
        world.change(ref, change, fields)
        world.reconcile()
    assert world.scaled == []
    assert world.applied() < 12
    assert world.up_to_date["reason"] == "FieldConflict"


@pytest.mark.parametrize("ref", [SERVICE, DEPLOYMENT])
def test_a_child_that_is_deleted_repeatedly_is_reported_and_created_each_time(ref: Ref) -> None:
    world = World()
    for number in range(6):
        del world.objects[ref]
        world.reconcile()
        assert ref in world.objects
        world.now += 5
        assert world.up_to_date["reason"] == ("FieldConflict" if number >= 3 else "UpToDate")
    assert f"{ref.kind} demo: another client keeps deleting it" in world.up_to_date["message"]
    world.now += SETTLED_SECONDS
    world.reconcile()
    assert world.up_to_date["status"] == "True"


def test_children_that_edits_remove_and_restore_are_no_conflict() -> None:
    world = World()
    for number in range(12):
        world.edit(networkPolicy={} if number % 2 else None)
        world.reconcile()
        world.now += 1
    assert world.up_to_date["reason"] == "UpToDate"


def test_the_revision_of_an_edit_that_is_refused_repeatedly_is_no_conflict() -> None:
    world = World()
    world.wrong = of("Deployment", "apply", error=DENIED, form=patched)
    world.edit(**PATCHED)
    for _ in range(8):
        world.reconcile()
        world.now += 10
    assert world.up_to_date["reason"] == "UpToDate"


# Admission


def rewrites_image(obj: Obj) -> None:
    if obj["kind"] == "Deployment":
        deployment_image(obj)


@pytest.mark.parametrize("created", [True, False], ids=["at creation", "later"])
def test_a_webhook_that_changes_written_objects_is_reported_immediately(created: bool) -> None:
    world = World()
    world.mutate = rewrites_image
    if created:
        world.objects.clear()
    else:
        world.change(DEPLOYMENT, deployment_label)
    world.reconcile()
    found = world.up_to_date
    assert (found["status"], found["reason"]) == ("False", "FieldConflict")
    assert "Deployment demo: an admission webhook changes spec.template.spec.containers[main].image" in found["message"]
    assert [event["reason"] for event in world.events].count("FieldConflict") == 1
    assert world.service["status"]["resolvedImage"] == IMAGE
    if not created:
        assert world.objects[DEPLOYMENT]["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "unmask-operator"


@pytest.mark.matrix
def test_repairs_against_a_webhook_back_off() -> None:
    world = World()
    world.mutate = rewrites_image
    world.change(DEPLOYMENT, deployment_label)
    for _ in range(24 * 60):
        world.now += 60
        world.reconcile()
    assert world.applied() <= 8 + 24 * 3600 / LAST_ADMISSION_PAUSE_SECONDS
    assert world.up_to_date["reason"] == "FieldConflict"
    assert [event["reason"] for event in world.events].count("FieldConflict") == 1


def test_the_conflict_with_a_webhook_ends_with_the_first_write_that_stays() -> None:
    world = World()
    world.mutate = rewrites_image
    world.change(DEPLOYMENT, deployment_label)
    result = world.reconcile()
    world.mutate = lambda obj: None
    assert result.requeue_after is not None
    world.now += result.requeue_after
    result = world.reconcile()
    assert world.up_to_date["status"] == "True"
    assert result.requeue_after is None
    assert world.objects[DEPLOYMENT]["spec"]["template"]["spec"]["containers"][0]["image"] != IMAGE


def test_a_new_leader_detects_the_webhook_with_its_first_write() -> None:
    world = World()
    world.mutate = rewrites_image
    world.change(DEPLOYMENT, deployment_label)
    world.reconcile()
    world.restart()
    written = world.applied()
    world.reconcile()
    assert world.applied() == written + 1
    assert world.up_to_date["reason"] == "FieldConflict"
    assert [event["reason"] for event in world.events].count("FieldConflict") == 1


def test_additions_of_other_clients_are_no_conflict() -> None:
    world = World()

    def adds(obj: Obj) -> None:
        obj["metadata"].setdefault("annotations", {})["injected"] = "yes"
        if obj["kind"] == "Deployment":
            obj["spec"]["template"]["spec"]["containers"].append({"name": "sidecar", "image": "s:1"})

    world.mutate = adds
    world.edit(**PATCHED)
    world.reconcile()
    assert world.up_to_date["reason"] == "UpToDate"
    written = world.applied()
    world.reconcile()
    assert world.applied() == written


def test_conflicts_of_a_deleted_resource_are_dropped() -> None:
    world = World()
    ref, change, fields, _ = CHANGES["image"]
    world.fight(ref, change, fields, times=4)
    world.cache.delete(DLMS, {**world.service, "metadata": {**world.service["metadata"], "resourceVersion": "999"}})
    asyncio.run(world.reconciler.reconcile(KEY))
    assert world.reconciler._conflicts.of(KEY) == []


# Owners of fields


def owner(path: tuple[Any, ...], *entries: Obj) -> str:
    return other_manager({"metadata": {"managedFields": list(entries)}}, path)


def entry(manager: str, fields: Any, **members: Any) -> Obj:
    return {"manager": manager, "operation": "Update", "fieldsV1": fields, **members}


REPLICAS = {"f:spec": {"f:replicas": {}}}


def test_managers_are_found_by_the_field_that_they_own() -> None:
    path = ("spec", "replicas")
    ours = entry(FIELD_MANAGER, REPLICAS)
    hpa = entry("kube-controller-manager", REPLICAS, subresource="scale")
    other = entry("kubectl-label", {"f:metadata": {"f:labels": {"f:a": {}}}})
    assert owner(path, ours, other, hpa) == "kube-controller-manager (subresource scale)"
    assert owner(path, ours) == ""
    assert owner(path) == ""
    labels = ("metadata", "labels", "a")
    assert owner(labels, ours, other) == "kubectl-label"


def test_keys_of_lists_and_atomic_parents_are_understood() -> None:
    port = (*("spec", "template", "spec", "containers"), ListKey("name", "main"), "ports", ListKey("containerPort", 80))
    keyed = {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:name": {}}}
    fields = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"main"}': {"f:ports": keyed}}}}}}
    assert owner((*port, "name"), entry("a", fields)) == "a"
    assert owner(port, entry("a", fields)) == "a"
    other = (*port[:-1], ListKey("containerPort", 81))
    assert owner(other, entry("a", fields, time="1"), entry(FIELD_MANAGER, {}, time="2")) == ""
    assert owner(("spec", "selector", "x"), entry("a", {"f:spec": {"f:selector": {}}})) == "a", (
        "the manager of an atomic parent must own the fields below it"
    )


def test_the_status_of_a_controller_is_no_conflict() -> None:
    controller = entry("kube-controller-manager", {"f:status": {}}, subresource="status", time="9")
    assert owner(("spec", "replicas"), controller) == ""


def test_fields_are_named_as_users_write_them() -> None:
    path = ("spec", "containers", ListKey("name", "main"), "env", ListKey("name", "A"), "value")
    assert field_name(path) == "spec.containers[main].env[A].value"
    assert field_name(("metadata", "annotations", "a.b/c")) == "metadata.annotations[a.b/c]"


def test_every_difference_is_listed() -> None:
    desired = {
        "a": 1,
        "list": [1, 2],
        "containers": [{"name": "x", "image": "1"}, {"name": "y"}],
        "selector": {"a": "b"},
    }
    live = {"a": 2, "list": [1], "containers": [{"name": "x", "image": "2"}], "selector": {"a": "b", "c": "d"}}
    named = [field_name(path) for path in differences(desired, live)]
    assert named == ["a", "list", "containers[x].image", "containers[y]", "selector"]


# Pods changed by admission


def pod_of(observed: Observed, name: str = "p1", **changes: Any) -> Obj:
    template = copy.deepcopy(observed.children[DEPLOYMENT]["spec"]["template"])
    spec = {**template["spec"], "nodeName": "n"}
    meta = {"name": name, "namespace": "default", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    found = {"metadata": {**template["metadata"], **meta}, "spec": spec, "status": {"phase": "Running"}}
    found["metadata"] |= changes
    return found


def judged(observed: Observed) -> tuple[Obj, Obj]:
    new = status(observed, make(observed))
    return new, next(c for c in new["conditions"] if c["type"] == "UpToDate")


def test_an_image_that_admission_changed_in_pods_is_the_resolved_one_and_named() -> None:
    observed = running()
    planned = judged(observed)[0]["resolvedImage"]
    pod = pod_of(observed)
    pod["spec"]["containers"][0]["image"] = IMAGE
    new, found = judged(replace(observed, pods=[pod]))
    assert new["resolvedImage"] == IMAGE
    assert found["status"] == "True"
    assert f"container main has the image {IMAGE} instead of {planned}" in found["message"]


@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_a_container_that_admission_added_to_pods_is_named(where: str) -> None:
    observed = running()
    pod = pod_of(observed)
    pod["spec"].setdefault(where, []).append({"name": "istio-proxy", "image": "istio:1"})
    new, found = judged(replace(observed, pods=[pod, pod_of(observed, "p2")]))
    assert found["message"].count("container istio-proxy (istio:1) was added") == 1
    assert new["resolvedImage"] == judged(observed)[0]["resolvedImage"]


def test_a_container_that_admission_removed_is_named() -> None:
    observed = running(podTemplate={"spec": {"containers": [{"name": "helper", "image": "h:1"}]}})
    pod = pod_of(observed)
    pod["spec"]["containers"] = [c for c in pod["spec"]["containers"] if c["name"] == "main"]
    assert "container helper was removed" in judged(replace(observed, pods=[pod]))[1]["message"]


@pytest.mark.parametrize("with_pods", [True, False])
def test_a_container_that_was_added_to_the_deployment_is_named(with_pods: bool) -> None:
    observed = running()
    plan = make(observed)
    children = copy.deepcopy(dict(observed.children))
    template = children[DEPLOYMENT]["spec"]["template"]
    template["spec"]["containers"].append({"name": "agent", "image": "agent:1"})
    observed = replace(observed, children=children)
    observed = replace(observed, pods=[pod_of(observed)] if with_pods else [])
    new = status(observed, plan)
    (found,) = (c for c in new["conditions"] if c["type"] == "UpToDate")
    assert found["message"].count("container agent (agent:1) was added") == 1


def test_unchanged_pods_are_reported_as_such() -> None:
    observed = running()
    _, found = judged(replace(observed, pods=[pod_of(observed)]))
    assert found["message"] == "the pods match the template that this operator renders"


def test_the_resolved_image_is_that_of_the_newest_pod_of_the_newest_template() -> None:
    observed = running()
    pods = []
    for number, image in enumerate(("first:1", "second:1", "old:1")):
        pod = pod_of(observed, f"p{number}", creationTimestamp=f"2026-01-01T00:00:0{number}Z")
        pod["spec"]["containers"][0]["image"] = image
        pods.append(pod)
    pods[2]["metadata"]["labels"] = {**pods[2]["metadata"]["labels"], "serving.unmask.dev/template": "older"}
    assert judged(replace(observed, pods=pods))[0]["resolvedImage"] == "second:1"
    planned = judged(observed)[0]["resolvedImage"]
    assert judged(replace(observed, pods=pods[2:]))[0]["resolvedImage"] == planned, (
        "without a pod of the newest template, the planned image must be reported"
    )
    pods[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:09Z"
    assert judged(replace(observed, pods=pods))[0]["resolvedImage"] == "first:1"


def test_several_conflicts_are_one_message() -> None:
    conflicts = [
        FieldConflict(DEPLOYMENT, "spec.replicas", "hpa"),
        FieldConflict(SERVICE, "spec.type", ""),
        *(FieldConflict(SERVICE, f"spec.f{i}", "tool") for i in range(6)),
        FieldConflict(DEPLOYMENT, "spec.paused", "", by_admission=True),
    ]
    _, found = judged(replace(running(), conflicts=conflicts))
    assert found["reason"] == "FieldConflict"
    assert "field manager hpa keeps changing spec.replicas" in found["message"]
    assert "field manager tool keeps changing spec.f0, spec.f1, spec.f2, spec.f3 and 2 more" in found["message"]
    assert "an admission webhook changes spec.paused" in found["message"]
