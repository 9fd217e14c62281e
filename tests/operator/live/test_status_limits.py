"""Tests that foreign reasons in a status are made valid, and that a rejected status is replaced by a minimal one."""

from __future__ import annotations

import pytest

from e2e.cluster import ApiError, Kube
from e2e.cluster.operator_process import OperatorProcess
from tests.operator.live.objects import demo, read, wait_condition
from unmask_operator.objects import SERVICE_LABEL

pytestmark = pytest.mark.cluster

REASONS = {
    "OutOfnvidia.com/gpu": "OutOfnvidiaComGpu",
    "OutOfephemeral-storage": "OutOfephemeralStorage",
    "Provider failed to create the instance": "ProviderFailedToCreateTheInstance",
    "429": "Reason429",
}


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("where", ["status", "container"])
def test_a_pod_reason_that_is_invalid_for_conditions_is_made_valid(admin: Kube, namespace: str, where: str) -> None:
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    meta = {"name": "demo-p1", "namespace": namespace, "labels": {SERVICE_LABEL: "demo"}}
    spec = {"nodeName": "somewhere", "containers": [{"name": "main", "image": "engine:1"}]}
    pod = admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    for number, (reason, valid) in enumerate(REASONS.items(), start=2):
        if where == "status":
            status = {"phase": "Failed", "reason": reason, "message": "the node does not take it"}
        else:
            main = {"name": "main", "image": "engine:1", "imageID": "", "ready": False, "restartCount": 0}
            waiting = {"reason": reason, "message": "x" * 3000}
            status = {"phase": "Pending", "containerStatuses": [{**main, "state": {"waiting": waiting}}]}
        admin.patch(pod, {"status": status}, subresource="status")
        admin.patch(resource, {"spec": {"replicas": number}}, subresource="scale")
        wait_condition(admin, resource, "Available", "False", valid, reason)
        assert read(admin, resource)["status"]["observedGeneration"] == number
        (event, *_) = admin.events(namespace, valid)
        assert event["type"] == "Warning"


def test_a_status_that_is_refused_is_replaced_by_a_minimal_one(
    admin: Kube, namespace: str, operator: OperatorProcess
) -> None:
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    rule = {"apiGroups": ["serving.unmask.dev"], "apiVersions": ["*"], "resources": ["diffusionlmservices/status"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    match = {"resourceRules": [{**rule, "operations": ["UPDATE"]}], "namespaceSelector": selector}
    validation = {"expression": "!has(object.status.url)", "message": "no URL in a status", "reason": "Invalid"}
    api, meta = "admissionregistration.k8s.io/v1", {"metadata": {"name": f"status-{namespace}"}}
    policy = {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", **meta}
    policy["spec"] = {"failurePolicy": "Fail", "matchConstraints": match, "validations": [validation]}
    binding = {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", **meta}
    binding["spec"] = {"policyName": f"status-{namespace}", "validationActions": ["Deny"]}
    admin.create(policy)
    admin.create(binding)

    def denies() -> bool:
        # The policy may have rejected the operator's status already. Then the resource has no URL unless this write
        # adds one.
        probe = {"modelName": "probe", "url": "http://probe"}
        try:
            admin.patch(resource, {"status": probe}, subresource="status")
        except ApiError:
            return True
        return False

    admin.wait("the policy holds", denies)
    admin.patch(resource, {"spec": {"replicas": 3, "service": {"port": 81}}})
    wait_condition(admin, resource, "Accepted", "True")  # condition of this generation
    status = read(admin, resource)["status"]
    assert "url" not in status
    assert status["selector"] == f"{SERVICE_LABEL}=demo"
    (event,) = admin.events(namespace, "StatusRefused")
    assert event["type"] == "Warning"
    assert "no URL in a status" in event["note"]
    assert operator.metric("unmask_operator_status_refusals_total") >= 1
    admin.delete(binding)
    admin.delete(policy)
    admin.wait("the whole status is back", lambda: "url" in read(admin, resource)["status"])
    assert len(admin.events(namespace, "StatusRefused")) == 1
