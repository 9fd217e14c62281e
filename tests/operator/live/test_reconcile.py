"""Tests of reconciles on a real API server: drift, pruning, and edits of other clients."""

import copy
from collections.abc import Callable

import pytest

from e2e.cluster import Kube
from tests.operator.live.objects import accepted, children, demo, read, wait_condition, wait_settled
from unmask_operator.objects import FIELD_MANAGER

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]


def kinds(kube: Kube, resource: dict) -> list[str]:
    return sorted(kind for kind, _ in children(kube, resource))


def deployment(kube: Kube, resource: dict) -> dict:
    return kube.get("apps/v1", "Deployment", resource["metadata"]["name"], resource["metadata"]["namespace"])


def service(kube: Kube, namespace: str, name: str) -> dict:
    return kube.get("v1", "Service", name, namespace)


def main(workload: dict) -> dict:
    (container,) = [c for c in workload["spec"]["template"]["spec"]["containers"] if c["name"] == "main"]
    return container


def test_a_second_reconcile_writes_nothing(admin, namespace):
    resource = accepted(admin, demo(namespace, "calm", replicas=2, networkPolicy={}))
    wait_settled(admin, namespace)  # the reconcile that the operator's own writes trigger
    before = {key: obj["metadata"]["resourceVersion"] for key, obj in children(admin, resource).items()}
    version = read(admin, resource)["metadata"]["resourceVersion"]
    admin.patch(resource, {"metadata": {"annotations": {"look": "again"}}})
    wait_settled(admin, namespace)
    after = {key: obj["metadata"]["resourceVersion"] for key, obj in children(admin, resource).items()}
    assert after == before
    assert int(read(admin, resource)["metadata"]["resourceVersion"]) > int(version)


def test_drift_is_repaired_and_foreign_fields_stay(admin, namespace):
    resource = accepted(admin, demo(namespace, "drift"))
    workload = deployment(admin, resource)
    image = main(workload)["image"]
    admin.patch(workload, {"metadata": {"annotations": {"theirs": "stays"}}})
    admin.patch(workload, [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "else:1"}])
    admin.wait("the image is put right", lambda: main(deployment(admin, resource))["image"] == image)
    assert deployment(admin, resource)["metadata"]["annotations"]["theirs"] == "stays"

    selector = service(admin, namespace, "drift")["spec"]["selector"]
    admin.patch(service(admin, namespace, "drift"), {"spec": {"selector": {"theirs": "selects-nothing"}}})
    admin.wait("it is put right", lambda: service(admin, namespace, "drift")["spec"]["selector"] == selector)
    admin.delete(service(admin, namespace, "drift"))
    admin.wait("the Service is back", lambda: admin.find("v1", "Service", "drift", namespace))


def test_removing_a_section_deletes_its_child_and_removing_a_field_removes_its_value(admin, namespace):
    sections = {"networkPolicy": {}, "podDisruptionBudget": {"minAvailable": 1}, "replicas": 2}
    resource = accepted(admin, demo(namespace, "prune", service={"annotations": {"a": "1", "b": "2"}}, **sections))
    assert {"NetworkPolicy", "PodDisruptionBudget"} <= set(kinds(admin, resource))
    before = service(admin, namespace, "prune")
    assert {"a", "b"} <= set(before["metadata"]["annotations"])
    admin.patch(resource, {"spec": {"networkPolicy": None, "service": {"annotations": {"b": None}}}})
    admin.wait("the policy is deleted", lambda: "NetworkPolicy" not in kinds(admin, resource))
    admin.wait("b is removed", lambda: "b" not in service(admin, namespace, "prune")["metadata"]["annotations"])
    live = service(admin, namespace, "prune")
    assert "a" in live["metadata"]["annotations"]
    assert live["spec"]["clusterIP"] == before["spec"]["clusterIP"]
    ours = [f for f in live["metadata"]["managedFields"] if f["manager"] == FIELD_MANAGER]
    assert [f["operation"] for f in ours] == ["Apply"]


def set_alternatives(live: dict) -> None:
    """Changes a container's port, the handler of its probe and the source of a volume."""
    engine, spec = main(live), live["spec"]["template"]["spec"]
    engine["ports"][0]["containerPort"] = 8001
    del engine["readinessProbe"]["httpGet"]
    engine["readinessProbe"]["exec"] = {"command": ["true"]}
    volume = next(volume for volume in spec["volumes"] if "emptyDir" in volume)
    del volume["emptyDir"]
    volume["hostPath"] = {"path": "/tmp"}


def put(kube: Kube, obj: dict, change: Callable[[dict], None]) -> None:
    """Replaces an object as `kubectl edit` does, so that a union member that is no longer set is removed."""
    changed = copy.deepcopy(obj)
    change(changed)
    changed["metadata"].pop("managedFields")
    path = kube.path(obj["apiVersion"], obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])
    kube.request("PUT", path, changed)


def test_alternatives_that_another_client_set_are_replaced(admin: Kube, namespace: str) -> None:
    """Checks this because server-side apply alone keeps them next to the desired ones, which the API server rejects."""
    resource = accepted(admin, demo(namespace))
    wait_settled(admin, namespace)
    template = deployment(admin, resource)["spec"]["template"]
    ports = service(admin, namespace, "demo")["spec"]["ports"]

    def live_ports() -> list[dict]:
        return service(admin, namespace, "demo")["spec"]["ports"]

    for _ in range(2):  # managedFields after the creation of a child differ from those after a repair
        put(admin, deployment(admin, resource), set_alternatives)
        admin.wait("the template is back", lambda: deployment(admin, resource)["spec"]["template"] == template)
        put(admin, service(admin, namespace, "demo"), lambda live: live["spec"]["ports"][0].update(port=8080))
        admin.wait("the ports are back", lambda: live_ports() == ports)
    admin.patch(resource, {"spec": {"service": {"port": 81}}})
    admin.wait("an edit moves the port", lambda: [p["port"] for p in live_ports()] == [81])
    wait_condition(admin, resource, "Accepted", "True")
