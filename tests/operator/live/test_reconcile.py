"""Tests of reconciles on a real API server: creation, drift, pruning, edits, foreign objects."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from e2e.cluster import ApiError, Kube
from tests.operator.live.objects import children, demo, labelled, read, wait_condition, wait_settled
from tests.operator.live.process import ROOT
from unmask_operator.objects import API_VERSION, FIELD_MANAGER, KIND, controller_uid

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def kinds(kube: Kube, resource: dict) -> list[str]:
    return sorted(kind for kind, _ in children(kube, resource))


def deployment(kube: Kube, resource: dict) -> dict:
    return kube.get("apps/v1", "Deployment", resource["metadata"]["name"], resource["metadata"]["namespace"])


def main(workload: dict) -> dict:
    (container,) = [c for c in workload["spec"]["template"]["spec"]["containers"] if c["name"] == "main"]
    return container


def services_of(file: Path) -> list[dict]:
    return [obj for obj in yaml.safe_load_all(file.read_text()) if obj and obj["kind"] == KIND]


@pytest.mark.parametrize("file", [f for f in EXAMPLES if services_of(f)], ids=lambda f: f.stem)
def test_every_example_is_accepted_and_gets_its_children(admin, namespace, file):
    for resource in services_of(file):
        resource["metadata"]["namespace"] = namespace
        admin.create(resource)
        wait_condition(admin, resource, "Accepted", "True")
        made = kinds(admin, resource)
        assert {"Deployment", "Service", "ServiceAccount", "ControllerRevision"} <= set(made)
        spec = resource["spec"]
        assert ("NetworkPolicy" in made) == ("networkPolicy" in spec)
        assert ("HorizontalPodAutoscaler" in made) == (spec.get("autoscaling", {}).get("provider") == "HPA")


def test_a_second_reconcile_writes_nothing(admin, namespace):
    resource = admin.create(demo(namespace, "calm", replicas=2, networkPolicy={}))
    wait_condition(admin, resource, "Accepted", "True")
    wait_settled(admin, namespace)  # the reconcile that the operator's own writes trigger
    before = {key: obj["metadata"]["resourceVersion"] for key, obj in children(admin, resource).items()}
    version = read(admin, resource)["metadata"]["resourceVersion"]
    admin.patch(resource, {"metadata": {"annotations": {"look": "again"}}})
    wait_settled(admin, namespace)
    after = {key: obj["metadata"]["resourceVersion"] for key, obj in children(admin, resource).items()}
    assert after == before
    assert int(read(admin, resource)["metadata"]["resourceVersion"]) > int(version)


def test_neither_finalizers_nor_annotations_are_written_on_the_resource(admin, namespace):
    resource = admin.create(demo(namespace, "plain"))
    wait_condition(admin, resource, "Accepted", "True")
    for obj in (read(admin, resource), *children(admin, resource).values()):
        assert "finalizers" not in obj["metadata"]
    assert "annotations" not in read(admin, resource)["metadata"]


def test_drift_is_repaired_and_foreign_fields_stay(admin, namespace):
    resource = admin.create(demo(namespace, "drift"))
    wait_condition(admin, resource, "Accepted", "True")
    workload = deployment(admin, resource)
    image = main(workload)["image"]
    admin.patch(workload, {"metadata": {"annotations": {"theirs": "stays"}}})
    admin.patch(workload, [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "else:1"}])
    admin.wait("the image is put right", lambda: main(deployment(admin, resource))["image"] == image)
    assert deployment(admin, resource)["metadata"]["annotations"]["theirs"] == "stays"

    service = admin.get("v1", "Service", "drift", namespace)
    selector = service["spec"]["selector"]
    admin.patch(service, {"spec": {"selector": {"theirs": "selects-nothing"}}})
    admin.wait(
        "the selector is put right",
        lambda: admin.get("v1", "Service", "drift", namespace)["spec"]["selector"] == selector,
    )
    admin.delete(service)
    admin.wait("the Service is back", lambda: admin.find("v1", "Service", "drift", namespace))


def test_a_child_that_lost_its_label_gets_it_back(admin, namespace):
    resource = admin.create(demo(namespace, "label"))
    wait_condition(admin, resource, "Accepted", "True")
    service = admin.get("v1", "Service", "label", namespace)
    admin.patch(service, {"metadata": {"labels": {"serving.unmask.dev/service": None}}})
    admin.wait("the label is back", lambda: ("Service", "label") in children(admin, resource))
    assert admin.get("v1", "Service", "label", namespace)["metadata"]["uid"] == service["metadata"]["uid"]


def test_removing_a_section_deletes_its_child_and_removing_a_field_removes_its_value(admin, namespace):
    sections = {"networkPolicy": {}, "podDisruptionBudget": {"minAvailable": 1}, "replicas": 2}
    resource = admin.create(demo(namespace, "prune", service={"annotations": {"a": "1", "b": "2"}}, **sections))
    wait_condition(admin, resource, "Accepted", "True")
    assert {"NetworkPolicy", "PodDisruptionBudget"} <= set(kinds(admin, resource))
    service = admin.get("v1", "Service", "prune", namespace)
    assert {"a", "b"} <= set(service["metadata"]["annotations"])

    admin.patch(resource, {"spec": {"networkPolicy": None, "service": {"annotations": {"b": None}}}})
    admin.wait("the policy is deleted", lambda: "NetworkPolicy" not in kinds(admin, resource))
    admin.wait(
        "b is removed", lambda: "b" not in admin.get("v1", "Service", "prune", namespace)["metadata"]["annotations"]
    )
    live = admin.get("v1", "Service", "prune", namespace)
    assert "a" in live["metadata"]["annotations"]
    assert live["spec"]["clusterIP"] == service["spec"]["clusterIP"]
    ours = [f for f in live["metadata"]["managedFields"] if f["manager"] == FIELD_MANAGER]
    assert [f["operation"] for f in ours] == ["Apply"]

    admin.patch(resource, {"spec": {"service": None}})
    admin.wait(
        "a is removed", lambda: "a" not in admin.get("v1", "Service", "prune", namespace)["metadata"]["annotations"]
    )


def test_a_resource_called_kubernetes_does_not_change_the_api_servers_service(admin, namespace):
    if admin.find("v1", "Service", "kubernetes", "default") is None:
        ports = [{"port": 443, "name": "https"}]
        meta = {"name": "kubernetes", "namespace": "default"}
        admin.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": ports}})
    before = admin.get("v1", "Service", "kubernetes", "default")
    resource = admin.create(demo("default", "kubernetes"))
    try:
        seen = wait_condition(admin, resource, "Accepted", "False", "NameConflict")
        assert "Service kubernetes" in seen["message"]
        assert kinds(admin, resource) == []
        admin.delete(resource)
        wait_settled(admin, namespace)
        assert admin.get("v1", "Service", "kubernetes", "default") == before
    finally:
        admin.delete(resource)


def test_a_foreign_service_account_of_the_same_name_is_named_and_not_changed(admin, namespace):
    meta = {"name": "blocked-engine", "namespace": namespace, "labels": {"mine": "yes"}}
    theirs = admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    resource = admin.create(demo(namespace, "blocked"))
    seen = wait_condition(admin, resource, "Accepted", "False", "NameConflict")
    assert "ServiceAccount blocked-engine" in seen["message"]
    assert kinds(admin, resource) == []
    assert admin.get("v1", "ServiceAccount", "blocked-engine", namespace) == theirs


def test_the_last_of_many_edits_wins(admin, namespace):
    resource = admin.create(demo(namespace, "edits", engine={"maxNumReqs": 1}))

    def edit(numbers: range) -> None:
        for number in numbers:
            admin.patch(resource, {"spec": {"engine": {"maxNumReqs": number}}})

    threads = [threading.Thread(target=edit, args=(range(start, start + 10),)) for start in (2, 20, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    admin.patch(resource, {"spec": {"engine": {"maxNumReqs": 77}}})
    admin.wait("77 arrives", lambda: "--max-num-reqs=77" in _args(admin, resource))
    wait_condition(admin, resource, "Accepted", "True")
    wait_settled(admin, namespace)
    assert "--max-num-reqs=77" in _args(admin, resource)


def _args(kube: Kube, resource: dict) -> list[str]:
    args = main(deployment(kube, resource)).get("args", [])
    joined = [f"{flag}={value}" for flag, value in pairwise(args)]
    return [*args, *joined]


def test_a_refused_edit_is_reported_with_the_servers_message_and_changes_nothing(admin, namespace):
    resource = admin.create(demo(namespace, "refused"))
    wait_condition(admin, resource, "Accepted", "True")
    before = deployment(admin, resource)["spec"]
    admin.patch(resource, {"spec": {"podTemplate": {"spec": {"nodeSelector": {"not a label": "x"}}}}})
    seen = wait_condition(admin, resource, "Accepted", "False")
    assert "nodeSelector" in seen["message"]
    assert deployment(admin, resource)["spec"] == before
    admin.patch(resource, {"spec": {"podTemplate": None}})
    wait_condition(admin, resource, "Accepted", "True")


def test_an_unreadable_resource_is_reported_and_others_are_reconciled(admin, namespace):
    """Checks a podTemplate that the schema accepts and the operator rejects."""
    bad = admin.create(demo(namespace, "bad", podTemplate={"spec": {"containers": "none"}}))
    good = admin.create(demo(namespace, "good"))
    wait_condition(admin, good, "Accepted", "True")
    seen = wait_condition(admin, bad, "Accepted", "False")
    assert "podTemplate" in seen["message"]


def test_a_new_condition_emits_one_event(admin, namespace):
    resource = admin.create(demo(namespace, "told", podTemplate={"spec": {"containers": "none"}}))
    wait_condition(admin, resource, "Accepted", "False")

    def matching_events() -> list[dict]:
        events = admin.list("events.k8s.io/v1", "Event", namespace)
        return [e for e in events if e["regarding"]["name"] == "told" and "podTemplate" in e["note"]]

    admin.wait("an Event", matching_events)
    admin.patch(resource, {"metadata": {"annotations": {"look": "again"}}})
    wait_settled(admin, namespace)
    (event,) = matching_events()
    assert event["reportingController"] == FIELD_MANAGER


def test_a_resource_created_again_gets_children_of_its_own(admin, namespace):
    resource = demo(namespace, "again")
    admin.create(resource)
    wait_condition(admin, resource, "Accepted", "True")
    old = {key: obj["metadata"]["uid"] for key, obj in children(admin, resource).items()}
    stored = read(admin, resource)
    uid = stored["metadata"]["uid"]
    admin.delete(resource)
    for member in ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"):
        stored["metadata"].pop(member, None)
    admin.create(stored)  # as applying the output of `kubectl get -o yaml` does, with its status

    def renewed() -> bool:
        for obj in labelled(admin, namespace):
            if controller_uid(obj) == uid:
                admin.delete(obj)  # as the garbage collector does, which does not run here
        now = {key: obj["metadata"]["uid"] for key, obj in children(admin, resource).items()}
        return set(now) == set(old) and not set(now.values()) & set(old.values())

    admin.wait("new children", renewed)
    wait_condition(admin, resource, "Accepted", "True")


def test_the_scale_subresource_scales_the_deployment(admin, namespace):
    resource = admin.create(demo(namespace, "scaled"))
    wait_condition(admin, resource, "Accepted", "True")
    admin.patch(resource, {"spec": {"replicas": 3}}, subresource="scale")
    admin.wait("three replicas", lambda: deployment(admin, resource)["spec"]["replicas"] == 3)
    scale = admin.get(API_VERSION, KIND, "scaled", namespace, "scale")
    assert scale["status"]["selector"] == "serving.unmask.dev/service=scaled"


def test_a_resource_that_is_deleted_before_its_status_is_written_is_ignored(admin, namespace, shared_operator):
    for number in range(5):
        resource = admin.create(demo(namespace, f"brief-{number}"))
        admin.delete(resource)
    wait_settled(admin, namespace)
    assert shared_operator.process is not None
    assert shared_operator.process.poll() is None
    with pytest.raises(ApiError):
        read(admin, demo(namespace, "brief-0"))
