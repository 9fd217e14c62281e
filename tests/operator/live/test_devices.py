"""Tests of claims of Dynamic Resource Allocation, and of the rules of Kueue, on a real API server."""

from collections.abc import Iterator

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, install
from tests.operator.live.objects import accepted, demo, policy, updates, wait_condition, wait_settled
from unmask_operator.kinds import CLAIM_TEMPLATES
from unmask_operator.objects import SERVICE_LABEL

pytestmark = pytest.mark.cluster

QUEUE = "kueue.x-k8s.io/queue-name"


@pytest.fixture
def operator(api_server: ApiServer, admin: Kube, namespace: str) -> Iterator[OperatorProcess]:
    install(api_server, admin, namespace, [namespace])
    with OperatorProcess(api_server, namespace, [namespace]) as process:
        yield process


def test_pods_refer_to_the_claim_template_of_their_number_of_gpus(
    admin: Kube, namespace: str, operator: OperatorProcess
) -> None:
    resource = accepted(admin, demo(namespace, gpu={"deviceClassName": "gpu.example.com"}))

    def referred() -> str:
        pod = admin.get("apps/v1", "Deployment", "demo", namespace)["spec"]["template"]["spec"]
        assert pod["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
        (claim,) = pod["resourceClaims"]
        return str(claim["resourceClaimTemplateName"])

    def count(name: str) -> int:
        found = admin.get(CLAIM_TEMPLATES.api_version, CLAIM_TEMPLATES.kind, name, namespace)
        return int(found["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"])

    first = referred()
    assert count(first) == 1
    wait_settled(admin, namespace)
    assert operator.metric('unmask_operator_writes_total{verb="apply"}') == 0, "defaults of the API server are no drift"
    admin.patch(resource, {"spec": {"parallelism": {"tensor": 2}}})
    admin.wait("pods with two GPUs", lambda: referred() != first)
    assert (count(referred()), count(first)) == (2, 1)


def test_what_kueue_adds_stays_and_what_it_refuses_is_reported(
    admin: Kube, namespace: str, operator: OperatorProcess
) -> None:
    """The test acts as Kueue, which adds to the template of a Deployment, gates pods, and refuses other queues."""
    resource = accepted(admin, demo(namespace, commonLabels={QUEUE: "team-a"}))
    deployment = admin.get("apps/v1", "Deployment", "demo", namespace)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["metadata"]["labels"][QUEUE] == labels[QUEUE] == "team-a"
    added = {"labels": {"kueue.x-k8s.io/managed": "true"}, "annotations": {"kueue.x-k8s.io/role-hash": "x"}}
    admin.patch(deployment, {"spec": {"template": {"metadata": added}}})
    metadata = {"name": "gated", "namespace": namespace, "labels": {SERVICE_LABEL: "demo", QUEUE: "team-a"}}
    containers = [{"name": "main", "image": "engine:1"}]
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    spec = {"containers": containers, "schedulingGates": gates}
    admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    wait_condition(admin, resource, "Scheduled", "False", "WaitingForQueue", "queue team-a")
    wait_settled(admin, namespace)
    live = admin.get("apps/v1", "Deployment", "demo", namespace)
    assert live["spec"]["template"]["metadata"]["labels"].items() >= {**labels, **added["labels"]}.items()
    assert operator.metric('unmask_operator_writes_total{verb="apply"}') == 0
    with policy(admin, namespace):
        admin.wait("the policy holds", lambda: not updates(admin, live))
        admin.patch(resource, {"spec": {"commonLabels": {QUEUE: "team-b"}}})
        wait_condition(admin, resource, "Accepted", "False", "Refused", "no updates today")
