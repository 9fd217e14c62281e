"""Tests of writes that a real API server rejects: nothing of the edit is applied, and the rest is still reconciled."""

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import ApiError, Kube
from e2e.cluster.operator_process import OperatorProcess
from tests.operator.live.objects import Obj, children, condition, demo, read, wait_condition

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]


def container(**fields: Any) -> Obj:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


# The revision contains the podTemplate twice.
LARGE = container(env=[{"name": f"LARGE_{i}", "value": "x" * 10_000} for i in range(90)])
# One case per way in which the API server rejects an object; test_api_errors.py has the messages of each.
WRONG = {
    "typed": (container(env=[{"name": "A", "value": 4}]), 'env[name="A"].value'),
    "converted": (container(resources={"limits": {"cpu": "lots"}}), "quantities must match"),
    "validated": (container(imagePullPolicy="Sometimes"), "Unsupported value"),
    "too large for etcd": (LARGE, "request is too large"),
}


def spec_of(admin: Kube, kind: str, namespace: str) -> Obj:
    found: Obj = admin.get("v1" if kind == "Service" else "apps/v1", kind, "demo", namespace)["spec"]
    return found


def scale(admin: Kube, resource: Obj, count: int, **change: Any) -> None:
    """Edits the spec and waits for the number of replicas."""
    admin.patch(resource, {"spec": change})
    namespace = resource["metadata"]["namespace"]
    admin.wait(f"{count} replicas", lambda: spec_of(admin, "Deployment", namespace)["replicas"] == count)


def recreated(admin: Kube, namespace: str, *about: str) -> None:
    admin.delete(admin.get(*about, namespace))
    admin.wait(f"{about} is back", lambda: admin.find(*about, namespace))


def accepted(admin: Kube, namespace: str, **spec: Any) -> Obj:
    resource = admin.create(demo(namespace, replicas=2, **spec))
    wait_condition(admin, resource, "Accepted", "True")
    return resource


@pytest.mark.parametrize(("pod_template", "sentence"), WRONG.values(), ids=WRONG)
def test_an_edit_that_the_api_server_rejects_is_reported_and_scaling_continues(
    admin: Kube, namespace: str, pod_template: Obj, sentence: str
) -> None:
    resource = accepted(admin, namespace)
    before = children(admin, resource)
    admin.patch(resource, {"spec": {"podTemplate": pod_template, "service": {"port": 81}}})
    wait_condition(admin, resource, "Accepted", "False", "Refused", sentence)
    scale(admin, resource, 0, suspend=True)
    scale(admin, resource, 3, suspend=False, replicas=3)
    recreated(admin, namespace, "v1", "Service", "demo")
    wait_condition(admin, resource, "Accepted", "False", "Refused", sentence)
    assert children(admin, resource).keys() == before.keys()
    assert spec_of(admin, "Service", namespace)["ports"][0]["port"] == 80
    template = spec_of(admin, "Deployment", namespace)["template"]
    assert template == before["Deployment", "demo"]["spec"]["template"]
    admin.patch(resource, {"spec": {"podTemplate": None}})
    wait_condition(admin, resource, "Accepted", "True")
    assert spec_of(admin, "Service", namespace)["ports"][0]["port"] == 81


def updates(admin: Kube, live: Obj) -> bool:
    """Returns whether the API server accepts an update. It receives admission rules through a watch."""
    try:
        admin.patch(live, {"metadata": {"labels": {"probe": secrets.token_hex(4)}}})
    except ApiError:
        return False
    return True


@contextlib.contextmanager
def installed(admin: Kube, *objects: Obj) -> Iterator[None]:
    made = [admin.create({"apiVersion": "admissionregistration.k8s.io/v1", **obj}) for obj in objects]
    try:
        yield
    finally:
        for obj in reversed(made):
            admin.delete(obj)


def rules(namespace: str, group: str, plural: str, *verbs: str) -> tuple[Obj, Obj]:
    rule = {"apiGroups": [group], "apiVersions": ["*"], "resources": [plural], "operations": [*verbs]}
    return rule, {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}


def policy(admin: Kube, namespace: str, reason: str = "Invalid") -> contextlib.AbstractContextManager[None]:
    """Installs a ValidatingAdmissionPolicy that denies updates of the namespace's Deployments, but not of the scale."""
    rule, match = rules(namespace, "apps", "deployments", "UPDATE")
    validation = {"expression": "false", "reason": reason, "message": "no updates today"}
    spec = {"matchConstraints": {"resourceRules": [rule], **match}, "validations": [validation]}
    binding = {"policyName": f"denies-{namespace}", "validationActions": ["Deny"]}
    kinds = {"ValidatingAdmissionPolicy": spec, "ValidatingAdmissionPolicyBinding": binding}
    meta = {"metadata": {"name": f"denies-{namespace}"}}
    return installed(admin, *({"kind": kind, **meta, "spec": each} for kind, each in kinds.items()))


def webhook_away(
    admin: Kube, namespace: str, group: str = "apps", plural: str = "deployments"
) -> contextlib.AbstractContextManager[None]:
    """Installs a webhook that cannot be called, for writes of a kind."""
    rule, match = rules(namespace, group, plural, "CREATE", "UPDATE")
    webhook = {
        "name": "away.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
        **match,
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    meta = {"metadata": {"name": f"away-{namespace}"}}
    return installed(admin, {"kind": "ValidatingWebhookConfiguration", **meta, "webhooks": [webhook]})


@pytest.mark.parametrize(
    ("obstacle", "status", "reason"), [(policy, "False", "Refused"), (webhook_away, "Unknown", "ApiError")]
)
def test_replicas_are_scaled_while_admission_rejects_every_update_of_the_workload(
    admin: Kube, namespace: str, shared_operator: OperatorProcess, obstacle: Any, status: str, reason: str
) -> None:
    scales = 'unmask_operator_writes_total{verb="scale"}'
    resource, before = accepted(admin, namespace), shared_operator.metric(scales)
    live = admin.get("apps/v1", "Deployment", "demo", namespace)
    with obstacle(admin, namespace):
        admin.wait("admission rejects updates", lambda: not updates(admin, live))
        scale(admin, resource, 4, engine={"maxNumReqs": 5}, replicas=4)
        wait_condition(admin, resource, "Accepted", status, reason)
        scale(admin, resource, 0, suspend=True)
        scale(admin, resource, 1, suspend=False, replicas=1)
        recreated(admin, namespace, "policy/v1", "PodDisruptionBudget", "demo-engine")
        assert spec_of(admin, "Deployment", namespace)["template"] == live["spec"]["template"]
    assert shared_operator.metric(scales) >= before + 3
    admin.wait("admission accepts updates again", lambda: updates(admin, live))
    admin.patch(resource, {"spec": {"engine": {"maxNumReqs": 6}}})
    wait_condition(admin, resource, "Accepted", "True")
    assert read(admin, resource)["spec"]["replicas"] == spec_of(admin, "Deployment", namespace)["replicas"] == 1


def test_an_unavailable_webhook_is_reported_and_does_not_delay_other_kinds(admin: Kube, namespace: str) -> None:
    probe = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {},
    }
    admin.create(probe)
    with webhook_away(admin, namespace, "policy", "poddisruptionbudgets"):
        admin.wait("the webhook is called", lambda: not updates(admin, probe))
        resource = admin.create(demo(namespace, networkPolicy={}))
        sentence = 'failed calling webhook "away.example.com"'
        message = wait_condition(admin, resource, "Accepted", "Unknown", "ApiError", sentence)["message"]
        assert "PodDisruptionBudget demo-engine" in message
        assert {made for made, _ in children(admin, resource)} >= {"Deployment", "Service", "ControllerRevision"}
        assert condition(admin, resource, "Ready")["reason"] == "ApiError"
        assert condition(admin, resource, "Scheduled")["reason"] == "Pending"
        (warning,) = admin.events(namespace, "ApiError")
        assert warning["type"] == "Warning"
        assert "PodDisruptionBudget" in warning["note"]
        scale(admin, resource, 3, replicas=3)
        wait_condition(admin, resource, "Accepted", "Unknown", "ApiError")
    wait_condition(admin, resource, "Accepted", "True")
    assert ("PodDisruptionBudget", "demo-engine") in children(admin, resource)
