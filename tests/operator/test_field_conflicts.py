"""Tests of another client or webhook that keeps changing a child: reports, and repairs at increasing intervals."""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.fake_api import ARGOCD, DENIED, DEPLOYMENT, KEY, PATCHED, SERVICE, Change, FakeApi, of, patched
from tests.operator.pod_states import make_pod
from tests.operator.samples import make, running
from unmask_operator.controller import field_conflicts as module
from unmask_operator.controller.field_conflicts import SETTLED_SECONDS, other_manager
from unmask_operator.kinds import DLMS
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import FIELD_MANAGER, Obj, Ref
from unmask_operator.plan.drift import ListKey, differences, field_name
from unmask_operator.plan.observed import FieldConflict, Observed
from unmask_operator.status import status

REPLICAS = {"f:spec": {"f:replicas": {}}}
IMAGE = "registry.example.com/other:1"


def engine(obj: Obj) -> Obj:
    found: Obj = obj["spec"]["template"]["spec"]["containers"][0]
    return found


def image(obj: Obj) -> None:
    engine(obj)["image"] = IMAGE


def label(obj: Obj) -> None:
    obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"


def service_port(obj: Obj) -> None:
    obj["spec"]["ports"][0]["port"] = 8080


def of_engine(fields: Obj) -> Obj:
    """Returns the managedFields of members of the container `main`."""
    return {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"main"}': fields}}}}}


MAIN = "spec.template.spec.containers[main]"
LABEL = "metadata.labels[app.kubernetes.io/managed-by]"
OF_IMAGE = of_engine({".": {}, "f:image": {}})
# The child, the change by the other client, the fields that it then owns, and the name of the changed field.
CHANGES: dict[str, tuple[Ref, Change, Any, str]] = {
    "replicas": (DEPLOYMENT, lambda obj: obj["spec"].update(replicas=7), REPLICAS, "spec.replicas"),
    "image": (DEPLOYMENT, image, OF_IMAGE, f"{MAIN}.image"),
    "arguments": (DEPLOYMENT, lambda o: engine(o).update(args=["-x"]), of_engine({"f:args": {}}), f"{MAIN}.args"),
    "label": (DEPLOYMENT, label, {"f:metadata": {"f:labels": {f"f:{LABEL[16:-1]}": {}}}}, LABEL),
    "port": (SERVICE, service_port, {"f:spec": {"f:ports": {}}}, "spec.ports[80]"),
    # what is removed has no owner any more
    "removed": (DEPLOYMENT, lambda obj: engine(obj)["env"].pop(0), {"f:spec": {"f:paused": {}}}, f"{MAIN}.env["),
}


def fight(api: FakeApi, *change: Any, times: int, seconds: float = 1.0, **who: str) -> None:
    """Lets the other client make the change `times` times, and reconciles after each."""
    for _ in range(times):
        api.now += seconds
        api.change(*change, **who)
        api.reconcile()


def in_conflict(name: str = "image", times: int = 3) -> tuple[FakeApi, tuple[Ref, Change, Any]]:
    """Returns an API server on which another client has changed a field so often, and that change."""
    api, change = FakeApi(running(replicas=2)), CHANGES[name][:3]
    fight(api, *change, times=times)
    return api, change


@pytest.mark.parametrize(("ref", "change", "fields", "name"), CHANGES.values(), ids=CHANGES)
def test_a_field_that_is_changed_repeatedly_is_reported_once_with_its_manager(
    ref: Ref, change: Change, fields: Any, name: str
) -> None:
    api = FakeApi(running(replicas=2))
    api.reconcile()
    fight(api, ref, change, fields, times=2)
    assert api.conditions["UpToDate"]["reason"] == "UpToDate", "a conflict was reported after only two changes"
    fight(api, ref, change, fields, times=1)
    found = api.conditions["UpToDate"]
    assert (found["status"], found["reason"]) == ("False", "FieldConflict")
    for part in (f"{ref.kind} demo", name, ARGOCD):
        assert part in found["message"]
    fight(api, ref, change, fields, times=5, seconds=100)
    (event,) = api.events("FieldConflict")
    assert (event["type"], event["note"]) == ("Warning", found["message"])


def test_a_scaler_of_the_deployment_is_reported_with_what_to_do() -> None:
    api = FakeApi(running(replicas=2))
    fight(api, *CHANGES["replicas"][:3], times=4, seconds=15, manager="kube-controller-manager")
    assert "kube-controller-manager" in api.conditions["UpToDate"]["message"]
    assert "HorizontalPodAutoscaler" in api.conditions["UpToDate"]["message"]
    assert api.scaled == [], "the operator wrote the scale subresource during the pause"


def test_repairs_of_a_field_in_conflict_back_off_to_five_minutes() -> None:
    api, change = in_conflict()
    pauses, written = [], len(api.written("apply"))
    for _ in range(10):
        api.change(*change)
        start = api.now
        while len(api.written("apply")) == written:
            result = api.reconcile()
            if len(api.written("apply")) == written:
                api.now += result.requeue_after
        written = len(api.written("apply"))
        pauses.append(api.now - start)
    assert pauses == [4, 8, 16, 32, 64, 128, 256, *[module.LAST_PAUSE_SECONDS] * 3]
    assert api.conditions["UpToDate"]["reason"] == "FieldConflict"


def test_another_child_is_repaired_during_the_pause() -> None:
    api, change = in_conflict()
    api.change(*change)
    written = len(api.written("apply"))
    api.now += 3.9
    assert api.reconcile().requeue_after == pytest.approx(0.1)
    assert len(api.written("apply")) == written
    api.change(SERVICE, service_port)
    api.reconcile()
    assert api.objects[SERVICE]["spec"]["ports"][0]["port"] == 80


@pytest.mark.parametrize(
    ("spec", "replicas"), [({"suspend": True}, 0), ({"replicas": 3}, 3), (PATCHED, 2)], ids=["suspend", "scale", "edit"]
)
def test_an_edit_does_not_wait_for_a_pause(spec: Obj, replicas: int) -> None:
    api, change = in_conflict("replicas", times=6)
    api.change(*change)
    api.edit(**spec)
    api.reconcile()
    assert api.objects[DEPLOYMENT]["spec"]["replicas"] == replicas
    assert spec is not PATCHED or patched(api.objects[DEPLOYMENT])


def test_the_conflict_ends_when_the_field_stays_as_applied() -> None:
    api, _ = in_conflict("label", times=4)
    result = api.reconcile()
    while api.conditions["UpToDate"]["reason"] == "FieldConflict":
        assert result.requeue_after is not None, "no requeue is scheduled, so no reconcile ends the conflict"
        api.now += result.requeue_after
        result = api.reconcile()
        assert api.now < 1000 + 10 * SETTLED_SECONDS
    assert api.conditions["UpToDate"]["reason"] == "UpToDate"
    assert result.requeue_after is None


def test_the_conflict_does_not_end_between_two_writes_of_a_tool_that_acts_every_few_minutes() -> None:
    api, change, minutes = FakeApi(running()), CHANGES["image"][:3], 10
    fight(api, *change, times=3, seconds=60 * minutes)
    for _ in range(6):
        assert engine(api.objects[DEPLOYMENT])["image"] != IMAGE
        for _ in range(9):
            api.now += 6 * minutes
            api.reconcile()
            assert api.conditions["UpToDate"]["reason"] == "FieldConflict"
        fight(api, *change, times=1, seconds=6 * minutes)


def test_repairs_at_long_intervals_are_no_conflict() -> None:
    api = FakeApi(running())
    fight(api, *CHANGES["image"][:3], times=9, seconds=module.WINDOW_SECONDS / 2 + 1)
    assert api.conditions["UpToDate"]["reason"] == "UpToDate"


@pytest.mark.parametrize(
    ("wrong", "edit"),
    [
        (None, lambda number: {"service": {"port": 81 + number}}),
        (None, lambda number: {"networkPolicy": {} if number % 2 else None}),
        (of("Deployment", "apply", error=DENIED, form=patched), lambda number: {} if number else PATCHED),
    ],
    ids=["a field", "a child that edits remove and restore", "the revision of a refused edit"],
)
def test_writes_because_of_edits_are_no_repairs(wrong: Any, edit: Callable[[int], Obj]) -> None:
    api = FakeApi(running())
    api.wrong = wrong or api.wrong
    for number in range(12):
        if spec := edit(number):
            api.edit(**spec)
        api.reconcile()
        api.now += 1
    assert api.conditions["UpToDate"]["reason"] == "UpToDate"


def test_a_tool_that_also_removes_the_operators_annotation_is_reported() -> None:
    def change(obj: Obj) -> None:
        image(obj)
        obj["metadata"]["annotations"] = {}

    api = FakeApi(running())
    fight(api, DEPLOYMENT, change, OF_IMAGE, times=4)
    assert f"{MAIN}.image" in api.conditions["UpToDate"]["message"]


def test_a_conflict_is_reported_without_a_manager_where_none_can_be_read() -> None:
    api = FakeApi(running())
    api.wrong = lambda verb, obj: ApiError(500, "InternalError", "no answer") if verb == "get" else None
    fight(api, *CHANGES["image"][:3], times=3)
    assert (
        f"a client without a field manager, or another operator, keeps changing {MAIN}.image"
        in api.conditions["UpToDate"]["message"]
    )


@pytest.mark.parametrize("form", [lambda child: True, patched], ids=["every form is refused", "only the edit is"])
def test_repairs_after_a_refused_edit_back_off_too(form: Any) -> None:
    """Checks a client that changes the replicas: they are repaired alone, or with the last accepted form."""
    api = FakeApi(running(replicas=2))
    api.wrong = of("Deployment", "dry-apply", "apply", error=DENIED, form=form)
    api.edit(**PATCHED)
    for _ in range(20):
        api.now += 0.5
        api.change(*CHANGES["replicas"][:3])
        api.reconcile()
    assert api.conditions["UpToDate"]["reason"] == "FieldConflict"
    if form is patched:
        assert api.scaled == []
        assert len(api.written("apply")) < 9
        return
    assert set(api.scaled) == {2}
    assert len(api.scaled) < 9
    api.edit(suspend=True)
    api.reconcile()
    assert api.scaled[-1] == 0, "a new number of replicas was delayed as if it were a repair"


@pytest.mark.parametrize("ref", [SERVICE, DEPLOYMENT])
def test_a_child_that_is_deleted_repeatedly_is_reported_and_created_each_time(ref: Ref) -> None:
    api = FakeApi(running())
    for number in range(6):
        del api.objects[ref]
        api.reconcile()
        assert ref in api.objects
        api.now += 5
        assert api.conditions["UpToDate"]["reason"] == ("FieldConflict" if number >= 3 else "UpToDate")
    assert f"{ref.kind} demo: another client keeps deleting it" in api.conditions["UpToDate"]["message"]
    api.now += SETTLED_SECONDS
    api.reconcile()
    assert api.conditions["UpToDate"]["status"] == "True"


def test_conflicts_of_a_deleted_resource_are_dropped() -> None:
    api, _ = in_conflict(times=4)
    api.cache.delete(DLMS, {**api.resource, "metadata": {**api.resource["metadata"], "resourceVersion": "999"}})
    asyncio.run(api.reconciler.reconcile(KEY))
    assert api.reconciler._resources == {}


# Admission


@pytest.mark.parametrize("created", [True, False], ids=["at creation", "later"])
def test_a_webhook_that_changes_written_objects_is_reported_immediately_until_a_write_stays(created: bool) -> None:
    api = FakeApi(running())
    api.mutate = lambda obj: image(obj) if obj["kind"] == "Deployment" else None
    if created:
        api.objects.clear()
    else:
        api.change(DEPLOYMENT, label)
    result = api.reconcile()
    written = len(api.written("apply"))
    for _ in range(3):
        assert api.conditions["UpToDate"]["reason"] == "FieldConflict"
        assert f"Deployment demo: an admission webhook changes {MAIN}.image" in api.conditions["UpToDate"]["message"]
        assert api.objects[DEPLOYMENT]["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "unmask-operator"
        assert api.resource["status"]["resolvedImage"] == IMAGE
        assert result.requeue_after == module.TRIAL_SECONDS
        api.now += result.requeue_after
        result = api.reconcile()
    assert len(api.written("apply")) == written, "a write cannot repair what admission replaces"
    assert len(api.events("FieldConflict")) == 1
    api.mutate = lambda obj: None
    api.now += result.requeue_after
    assert api.reconcile().requeue_after is None
    assert api.conditions["UpToDate"]["status"] == "True"
    assert engine(api.objects[DEPLOYMENT])["image"] != IMAGE


def test_a_form_that_the_api_server_stores_differently_is_no_drift() -> None:
    def stores(obj: Obj) -> None:
        if obj["kind"] == "Deployment":
            engine(obj)["resources"]["limits"] = {"cpu": "2", "memory": "1Gi"}
            engine(obj)["env"] = [{**e, "value": "x"} if e.get("value") == "" else e for e in engine(obj)["env"]]

    api = FakeApi(running(resources={"limits": {"cpu": "2000m", "memory": "1024Mi"}}))
    api.mutate = stores
    api.change(DEPLOYMENT, stores)
    for leader in range(2):
        tried = api.calls.count(("dry-apply", "demo"))
        for _ in range(3):
            assert api.reconcile().requeue_after is None
            api.now += module.TRIAL_SECONDS
        assert api.calls.count(("dry-apply", "demo")) == tried + 1, f"leader {leader}"
        api.restart()
    assert api.written("apply") == []
    assert api.conditions["UpToDate"]["reason"] == "UpToDate"


def test_additions_of_other_clients_are_no_conflict() -> None:
    api = FakeApi(running())

    def adds(obj: Obj) -> None:
        obj["metadata"].setdefault("annotations", {})["injected"] = "yes"
        if obj["kind"] == "Deployment":
            obj["spec"]["template"]["spec"]["containers"].append({"name": "sidecar", "image": "s:1"})

    api.mutate = adds
    api.edit(**PATCHED)
    api.reconcile()
    assert api.conditions["UpToDate"]["reason"] == "UpToDate"
    written = len(api.written("apply"))
    api.reconcile()
    assert len(api.written("apply")) == written


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
        "a": 1, "list": [1, 2],
        "containers": [{"name": "x", "image": "1", "env": [{"name": "A", "value": "1"}]}, {"name": "y"}],
        "selector": {"a": "b"}, "annotations": {"a.b/c": "1"},
    }  # fmt: skip
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
    pod = make_pod(observed, {"phase": "Running"})
    labels = pod["metadata"]["labels"] | metadata.pop("labels", {})
    pod["metadata"] |= {"uid": f"p{number}", "creationTimestamp": f"2026-01-01T00:00:0{number}Z", "labels": labels}
    pod["metadata"] |= metadata
    if image:
        engine({"spec": {"template": pod}})["image"] = image
    for member, container in (added or {}).items():
        pod["spec"].setdefault(member, []).append(container)
    if removed is not None:
        del pod["spec"]["containers"][removed]
    return pod


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
