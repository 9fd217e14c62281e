"""Tests of another client or webhook that keeps changing a child: reports, and repairs at increasing intervals."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.samples import SETTINGS, edit, make, observe, running
from tests.operator.test_refused_edits import DENIED, DEPLOYMENT, PATCHED, Cluster, of, patched
from unmask_operator.controller.field_conflicts import (
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
REPLICAS = {"f:spec": {"f:replicas": {}}}
IMAGE = "registry.example.com/other:1"
Change = Callable[[Obj], None]


def engine(obj: Obj) -> Obj:
    found: Obj = obj["spec"]["template"]["spec"]["containers"][0]
    return found


def image(obj: Obj) -> None:
    engine(obj)["image"] = IMAGE


def image_without_annotations(obj: Obj) -> None:
    image(obj)
    obj["metadata"]["annotations"] = {}


def label(obj: Obj) -> None:
    obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"


def service_port(obj: Obj) -> None:
    obj["spec"]["ports"][0]["port"] = 8080


def variable_removed(obj: Obj) -> None:
    del engine(obj)["env"][0]


def of_engine(fields: Obj) -> Obj:
    """Returns the managedFields of members of the container `main`."""
    return {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"main"}': fields}}}}}


MAIN = "spec.template.spec.containers[main]"
LABEL = "metadata.labels[app.kubernetes.io/managed-by]"
ARGOCD = "argocd-controller"
OF_IMAGE = of_engine({".": {}, "f:image": {}})
# The child, the change by the other client, the fields that it then owns, and the name of the changed field.
CHANGES: dict[str, tuple[Ref, Change, Any, str]] = {
    "replicas": (DEPLOYMENT, lambda obj: obj["spec"].update(replicas=7), REPLICAS, "spec.replicas"),
    "image": (DEPLOYMENT, image, OF_IMAGE, f"{MAIN}.image"),
    "arguments": (DEPLOYMENT, lambda o: engine(o).update(args=["-x"]), of_engine({"f:args": {}}), f"{MAIN}.args"),
    "label": (DEPLOYMENT, label, {"f:metadata": {"f:labels": {f"f:{LABEL[16:-1]}": {}}}}, LABEL),
    "port": (SERVICE, service_port, {"f:spec": {"f:ports": {}}}, "spec.ports[80]"),
    "removed, so its owner is unknown": (DEPLOYMENT, variable_removed, {"f:spec": {"f:paused": {}}}, f"{MAIN}.env["),
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
        self.mutate: Change = lambda obj: None
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

    def change(self, ref: Ref, change: Change, fields: Any = None, manager: str = ARGOCD) -> None:
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

    def conflict_events(self) -> list[Obj]:
        return [event for event in self.events if event["reason"] == "FieldConflict"]

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


def in_conflict(name: str = "image", times: int = 3) -> tuple[World, tuple[Ref, Change, Any]]:
    """Returns a world in which another client has changed a field so often, and that change."""
    world, change = World(replicas=2), CHANGES[name][:3]
    world.fight(*change, times=times)
    return world, change


@pytest.mark.parametrize(("ref", "change", "fields", "name"), CHANGES.values(), ids=CHANGES)
def test_a_field_that_is_changed_repeatedly_is_reported_once_with_its_manager(
    ref: Ref, change: Change, fields: Any, name: str
) -> None:
    world = World(replicas=2)
    world.reconcile()
    world.fight(ref, change, fields, times=2)
    assert world.up_to_date["reason"] == "UpToDate", "a conflict was reported after only two changes"
    world.fight(ref, change, fields, times=1)
    found = world.up_to_date
    assert (found["status"], found["reason"]) == ("False", "FieldConflict")
    for part in (f"{ref.kind} demo", name, ARGOCD):
        assert part in found["message"]
    world.fight(ref, change, fields, times=5, seconds=100)
    (event,) = world.conflict_events()
    assert (event["type"], event["note"]) == ("Warning", found["message"])


def test_a_scaler_of_the_deployment_is_reported_with_what_to_do() -> None:
    world = World(replicas=2)
    world.fight(*CHANGES["replicas"][:3], times=4, seconds=15, manager="kube-controller-manager")
    assert "kube-controller-manager" in world.up_to_date["message"]
    assert "HorizontalPodAutoscaler" in world.up_to_date["message"]
    assert world.scaled == [], "the operator wrote the scale subresource during the pause"


def test_repairs_of_a_field_in_conflict_back_off_to_five_minutes() -> None:
    world, change = in_conflict()
    pauses, written = [], world.applied()
    for _ in range(10):
        world.change(*change)
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


def test_another_field_of_the_child_is_repaired_during_the_pause() -> None:
    world, change = in_conflict()
    world.change(*change)
    written = world.applied()
    world.now += 3.9
    assert world.reconcile().requeue_after == pytest.approx(0.1)
    assert world.applied() == written
    world.change(DEPLOYMENT, label)
    world.reconcile()
    assert world.applied() == written + 1
    world.change(SERVICE, service_port)
    world.reconcile()
    assert world.objects[SERVICE]["spec"]["ports"][0]["port"] == 80


@pytest.mark.parametrize(
    ("spec", "replicas"), [({"suspend": True}, 0), ({"replicas": 3}, 3), (PATCHED, 2)], ids=["suspend", "scale", "edit"]
)
def test_an_edit_does_not_wait_for_a_pause(spec: Obj, replicas: int) -> None:
    world, change = in_conflict("replicas", times=6)
    world.change(*change)
    world.edit(**spec)
    world.reconcile()
    assert world.objects[DEPLOYMENT]["spec"]["replicas"] == replicas
    assert spec is not PATCHED or patched(world.objects[DEPLOYMENT])


def test_the_conflict_ends_when_the_field_stays_as_applied() -> None:
    world, _ = in_conflict("label", times=4)
    result = world.reconcile()
    while world.up_to_date["reason"] == "FieldConflict":
        assert result.requeue_after is not None, "no requeue is scheduled, so no reconcile ends the conflict"
        world.now += result.requeue_after
        result = world.reconcile()
        assert world.now < 1000 + 10 * SETTLED_SECONDS
    assert world.up_to_date["reason"] == "UpToDate"
    assert result.requeue_after is None


def test_the_conflict_does_not_end_between_two_writes_of_a_tool_that_acts_every_few_minutes() -> None:
    world, change, minutes = World(), CHANGES["image"][:3], 10
    world.fight(*change, times=3, seconds=60 * minutes)
    for _ in range(6):
        assert engine(world.objects[DEPLOYMENT])["image"] != IMAGE
        for _ in range(9):
            world.now += 6 * minutes
            world.reconcile()
            assert world.up_to_date["reason"] == "FieldConflict"
        world.fight(*change, times=1, seconds=6 * minutes)


def test_repairs_at_long_intervals_are_no_conflict() -> None:
    world = World()
    world.fight(*CHANGES["image"][:3], times=9, seconds=WINDOW_SECONDS / 2 + 1)
    assert world.up_to_date["reason"] == "UpToDate"


REFUSED = of("Deployment", "apply", error=DENIED, form=patched)


@pytest.mark.parametrize(
    ("wrong", "edit"),
    [
        (None, lambda number: {"service": {"port": 81 + number}}),
        (None, lambda number: {"networkPolicy": {} if number % 2 else None}),
        (REFUSED, lambda number: {} if number else PATCHED),
    ],
    ids=["a field", "a child that edits remove and restore", "the revision of a refused edit"],
)
def test_writes_because_of_edits_are_no_repairs(wrong: Any, edit: Callable[[int], Obj]) -> None:
    world = World()
    world.wrong = wrong or world.wrong
    for number in range(12):
        if spec := edit(number):
            world.edit(**spec)
        world.reconcile()
        world.now += 1
    assert world.up_to_date["reason"] == "UpToDate"


def test_a_tool_that_also_removes_the_operators_annotation_is_reported() -> None:
    world = World()
    world.fight(DEPLOYMENT, image_without_annotations, OF_IMAGE, times=4)
    assert f"{MAIN}.image" in world.up_to_date["message"]


def test_a_conflict_is_reported_without_a_manager_where_none_can_be_read() -> None:
    world = World()

    async def get(kind: Any, namespace: str, name: str) -> Obj:
        raise ApiError(500, "InternalError", "no answer")

    world.get = get  # type: ignore[assignment]
    world.fight(*CHANGES["image"][:3], times=3)
    assert f"a client without a field manager keeps changing {MAIN}.image" in world.up_to_date["message"]


@pytest.mark.parametrize("form", [lambda child: True, patched], ids=["every form is refused", "only the edit is"])
def test_repairs_after_a_refused_edit_back_off_too(form: Any) -> None:
    """Checks a client that changes the replicas: they are repaired alone, or with the last accepted form."""
    world = World(replicas=2)
    world.wrong = of("Deployment", "dry-apply", "apply", error=DENIED, form=form)
    world.edit(**PATCHED)
    for _ in range(20):
        world.now += 0.5
        world.change(*CHANGES["replicas"][:3])
        world.reconcile()
    assert world.up_to_date["reason"] == "FieldConflict"
    if form is patched:
        assert world.scaled == []
        assert world.applied() < 9
        return
    assert set(world.scaled) == {2}
    assert len(world.scaled) < 9
    world.edit(suspend=True)
    world.reconcile()
    assert world.scaled[-1] == 0, "a new number of replicas was delayed as if it were a repair"


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


def test_conflicts_of_a_deleted_resource_are_dropped() -> None:
    world, _ = in_conflict(times=4)
    world.cache.delete(DLMS, {**world.service, "metadata": {**world.service["metadata"], "resourceVersion": "999"}})
    asyncio.run(world.reconciler.reconcile(KEY))
    assert world.reconciler._conflicts.of(KEY) == []


# Admission


@pytest.mark.parametrize("created", [True, False], ids=["at creation", "later"])
def test_a_webhook_that_changes_written_objects_is_reported_immediately_until_a_write_stays(created: bool) -> None:
    world = World()
    world.mutate = lambda obj: image(obj) if obj["kind"] == "Deployment" else None
    if created:
        world.objects.clear()
    else:
        world.change(DEPLOYMENT, label)
    result, pauses = world.reconcile(), []
    written = world.applied()
    for _ in range(9):
        assert world.up_to_date["reason"] == "FieldConflict"
        assert f"Deployment demo: an admission webhook changes {MAIN}.image" in world.up_to_date["message"]
        assert world.objects[DEPLOYMENT]["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "unmask-operator"
        assert world.service["status"]["resolvedImage"] == IMAGE
        assert result.requeue_after is not None
        pauses.append(result.requeue_after)
        world.now += result.requeue_after
        result = world.reconcile()
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert world.applied() == written + 9
    assert len(world.conflict_events()) == 1
    world.mutate = lambda obj: None
    world.now += result.requeue_after or 0
    assert world.reconcile().requeue_after is None
    assert world.up_to_date["status"] == "True"
    assert engine(world.objects[DEPLOYMENT])["image"] != IMAGE


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


# Owners of fields


def entry(manager: str, fields: Any, **members: Any) -> Obj:
    return {"manager": manager, "operation": "Update", "fieldsV1": fields, **members}


OURS = entry(FIELD_MANAGER, REPLICAS)
HPA = entry("kube-controller-manager", REPLICAS, subresource="scale")
KUBECTL = entry("kubectl-label", {"f:metadata": {"f:labels": {"f:a": {}}}})
STATUS = entry("kube-controller-manager", {"f:status": {}}, subresource="status", time="9")
PORTS = entry(
    "a", of_engine({"f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:name": {}}}}), time="1"
)
LATER = entry(FIELD_MANAGER, {}, time="2")
SELECTOR = entry("a", {"f:spec": {"f:selector": {}}})


def port(number: int, *member: str) -> tuple[Any, ...]:
    return (*("spec", "template", "spec", "containers"), ListKey("name", "main"), "ports",
            ListKey("containerPort", number), *member)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "entries", "manager"),
    [
        (("spec", "replicas"), [OURS, KUBECTL, HPA], "kube-controller-manager (subresource scale)"),
        (("spec", "replicas"), [OURS], ""),
        (("spec", "replicas"), [], ""),
        (("spec", "replicas"), [STATUS], ""),
        (("metadata", "labels", "a"), [OURS, KUBECTL], "kubectl-label"),
        (("spec", "selector", "x"), [SELECTOR], "a"),  # an atomic parent
        (port(80), [PORTS, LATER], "a"),
        (port(80, "name"), [PORTS, LATER], "a"),
        (port(81), [PORTS, LATER], ""),
        (port(81), [LATER, {**PORTS, "time": "3"}, {**KUBECTL, "time": "4"}], "kubectl-label"),  # the last writer
    ],
)
def test_managers_are_found_by_the_field_that_they_own(path: Any, entries: list[Obj], manager: str) -> None:
    assert other_manager({"metadata": {"managedFields": entries}}, path) == manager


def test_every_difference_is_listed_and_named_as_users_write_it() -> None:
    desired = {
        "a": 1,
        "list": [1, 2],
        "containers": [{"name": "x", "image": "1", "env": [{"name": "A", "value": "1"}]}, {"name": "y"}],
        "selector": {"a": "b"},
        "annotations": {"a.b/c": "1"},
    }
    live = {"a": 2, "list": [1], "containers": [{"name": "x", "image": "2", "env": [{"name": "A", "value": "2"}]}],
            "selector": {"a": "b", "c": "d"}, "annotations": {"other": "x"}}  # fmt: skip
    assert [field_name(path) for path in differences(desired, live)] == [
        "a", "list", "containers[x].image", "containers[x].env[A].value", "containers[y]", "selector",
        "annotations[a.b/c]"]  # fmt: skip


# Pods changed by admission


def pod_of(
    observed: Observed, number: int = 1, image: str = "", added: Obj | None = None, removed: int | None = None,
    **metadata: Any,
) -> Obj:  # fmt: skip
    """Returns a pod of the Deployment with some changes: another image, further containers, or one less."""
    template = copy.deepcopy(observed.children[DEPLOYMENT]["spec"]["template"])
    stamp = f"2026-01-01T00:00:0{number}Z"
    meta = {"name": f"p{number}", "namespace": "default", "uid": f"p{number}", "creationTimestamp": stamp, **metadata}
    meta["labels"] = template["metadata"]["labels"] | metadata.get("labels", {})
    template["spec"]["nodeName"] = "n"
    if image:
        template["spec"]["containers"][0]["image"] = image
    for member, container in (added or {}).items():
        template["spec"].setdefault(member, []).append(container)
    if removed is not None:
        del template["spec"]["containers"][removed]
    return {"metadata": {**template["metadata"], **meta}, "spec": template["spec"], "status": {"phase": "Running"}}


def judged(observed: Observed, *pods: Obj, **state: Any) -> tuple[str, Obj]:
    """Returns the resolved image, and the condition UpToDate."""
    observed = replace(observed, pods=list(pods), **state)
    new = status(observed, make(observed))
    return new["resolvedImage"], next(c for c in new["conditions"] if c["type"] == "UpToDate")


PROXY = {"name": "istio-proxy", "image": "istio:1"}
HELPER = {"podTemplate": {"spec": {"containers": [{"name": "helper", "image": "h:1"}]}}}
PLANNED = judged(running())[0]


@pytest.mark.parametrize(
    ("change", "image", "says"),
    [
        ({}, PLANNED, "the pods match the template that this operator renders"),
        ({"image": IMAGE}, IMAGE, f"container main has the image {IMAGE} instead of {PLANNED}"),
        ({"added": {"containers": PROXY}}, PLANNED, "container istio-proxy (istio:1) was added"),
        ({"added": {"initContainers": PROXY}}, PLANNED, "container istio-proxy (istio:1) was added"),
        ({"removed": 1}, PLANNED, "container helper was removed"),
    ],
)
def test_what_admission_changed_in_pods_is_named_once(change: Any, image: str, says: str) -> None:
    observed = running(**HELPER)
    resolved, found = judged(observed, pod_of(observed, **change), pod_of(observed, 2, **change))
    assert (resolved, found["status"]) == (image, "True")
    assert found["message"].count(says) == 1
    assert bool(change) != found["message"].endswith("renders")


@pytest.mark.parametrize("with_pods", [True, False])
def test_a_container_that_was_added_to_the_deployment_is_named(with_pods: bool) -> None:
    observed = running()
    deployment = copy.deepcopy(observed.children[DEPLOYMENT])
    deployment["spec"]["template"]["spec"]["containers"].append({"name": "agent", "image": "agent:1"})
    observed = replace(observed, children={**observed.children, DEPLOYMENT: deployment})
    found = judged(observed, *([pod_of(observed)] if with_pods else []))[1]
    assert found["message"].count("container agent (agent:1) was added") == 1


def test_the_resolved_image_is_that_of_the_newest_pod_of_the_newest_template() -> None:
    observed = running()
    first, second = pod_of(observed, 1, "first:1"), pod_of(observed, 2, "second:1")
    deleted = pod_of(observed, 3, "third:1", deletionTimestamp="2026-01-01T00:00:09Z")
    old = pod_of(observed, 4, "old:1", labels={"serving.unmask.dev/template": "older"})
    assert judged(observed, first, second, deleted, old)[0] == "second:1"
    assert judged(observed, old)[0] == PLANNED, "without a pod of the newest template, it must be the planned image"


def test_several_conflicts_are_one_message() -> None:
    conflicts = [
        FieldConflict(DEPLOYMENT, "spec.replicas", "hpa"),
        FieldConflict(SERVICE, "spec.type", ""),
        *(FieldConflict(SERVICE, f"spec.f{i}", "tool") for i in range(6)),
        FieldConflict(DEPLOYMENT, "spec.paused", "", by_admission=True),
    ]
    _, found = judged(running(), conflicts=conflicts)
    assert found["reason"] == "FieldConflict"
    for part in (
        "field manager hpa keeps changing spec.replicas",
        "field manager tool keeps changing spec.f0, spec.f1, spec.f2, spec.f3 and 2 more",
        "an admission webhook changes spec.paused",
    ):
        assert part in found["message"]
