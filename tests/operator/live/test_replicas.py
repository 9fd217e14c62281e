"""Tests of fields that several clients write: spec.replicas beside the autoscaler, and lists."""

import pytest

from e2e.cluster import Kube
from tests.operator.live.objects import Obj, accepted, condition, demo, read, wait_condition
from unmask_operator.kinds import DLMS
from unmask_operator.objects import API_VERSION, KIND

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
SCALED = {"minReplicas": 1, "maxReplicas": 8}


def patch(kube: Kube, resource: Obj, spec: Obj, manager: str, subresource: str = "") -> None:
    meta = resource["metadata"]
    path = DLMS.path(meta["namespace"], meta["name"], subresource)
    kube.request("PATCH", path, {"spec": spec}, content=MERGE, fieldManager=manager)


def apply(kube: Kube, resource: Obj, spec: Obj, manager: str = "flux") -> None:
    meta = {"name": resource["metadata"]["name"], "namespace": resource["metadata"]["namespace"]}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": {"model": {"uri": "demo://"}, **spec}}
    kube.request("PATCH", DLMS.path(*reversed(meta.values())), body, content=APPLY, fieldManager=manager, force="true")


@pytest.mark.parametrize("provider", ["Builtin", "HPA"])
@pytest.mark.parametrize("server_side", [False, True], ids=["kubectl apply", "Flux"])
def test_autoscaling_in_place_of_replicas_ends_no_pod(
    server_side: bool, provider: str, admin: Kube, namespace: str
) -> None:
    resource = demo(namespace, replicas=5)
    if server_side:
        apply(admin, resource, {"replicas": 5})
    else:
        admin.create(resource)
    wait_condition(admin, resource, "Accepted", "True")
    before = admin.get("apps/v1", "Deployment", "demo", namespace)
    scaling = {**SCALED, "provider": provider}
    if server_side:
        apply(admin, resource, {"autoscaling": scaling})
    else:
        patch(admin, resource, {"replicas": None, "autoscaling": scaling}, "kubectl-client-side-apply")
    wait_condition(admin, resource, "Accepted", "True")
    assert read(admin, resource)["spec"]["replicas"] == 5
    after = admin.get("apps/v1", "Deployment", "demo", namespace)
    assert after["metadata"]["generation"] == before["metadata"]["generation"], "the Deployment was scaled"
    assert admin.events(namespace, "ReplicasKept")


def test_another_scaler_and_a_manifest_with_replicas_are_named(admin: Kube, namespace: str) -> None:
    resource = accepted(admin, demo(namespace, autoscaling={"minReplicas": 3, "maxReplicas": 5}))

    def replicas(expected: int) -> None:
        admin.wait(f"{expected} replicas", lambda: read(admin, resource)["spec"]["replicas"] == expected)

    replicas(3)
    for _ in range(3):
        patch(admin, resource, {"replicas": 2}, "argocd-controller")
        replicas(3)
    says = wait_condition(admin, resource, "ScalingReady", "False", "ReplicasOverwritten")["message"]
    assert "argocd-controller" in says
    notes = [event["note"] for event in admin.events(namespace, "Scaled")]
    assert notes
    assert all("from 3" not in note and "spec.replicas was" in note for note in notes)
    patch(admin, resource, {"replicas": 4}, "kube-controller-manager", "scale")
    wait_condition(admin, resource, "ScalingReady", "False", "AnotherScaler", "kube-controller-manager")
    assert condition(admin, resource, "Accepted")["status"] == "True"


def test_two_managers_each_add_a_pull_secret(admin: Kube, namespace: str) -> None:
    resource = demo(namespace)
    for manager in ("team", "platform"):
        apply(admin, resource, {"imagePullSecrets": [{"name": manager}]}, manager)
    assert read(admin, resource)["spec"]["imagePullSecrets"] == [{"name": "team"}, {"name": "platform"}]
