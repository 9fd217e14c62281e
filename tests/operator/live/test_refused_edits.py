"""Tests of edits that a real API server rejects: nothing of them is applied, and replicas are still scaled."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from e2e.cluster import ApiError, Kube
from e2e.cluster.operator_process import OperatorProcess
from tests.operator.live.objects import Obj, children, demo, read, wait_condition

pytestmark = pytest.mark.cluster

MAIN = {"name": "main"}


def container(**fields: Any) -> Obj:
    return {"spec": {"containers": [{**MAIN, **fields}]}}


def large(count: int) -> Obj:
    """Returns a podTemplate with variables of 10 kB each. The revision contains each twice."""
    return container(env=[{"name": f"LARGE_{i}", "value": "x" * 10_000} for i in range(count)])


WRONG = {
    "an annotation that is no text": ({"metadata": {"annotations": {"sidecar.istio.io/inject": False}}}, "annotations"),
    "a label that is no text": ({"metadata": {"labels": {"tier": 1}}}, "labels.tier"),
    "a variable that is no text": (container(env=[{"name": "A", "value": 4}]), 'env[name="A"].value'),
    "a number that is text": (container(securityContext={"runAsUser": "1000"}), "runAsUser"),
    "an unknown field": ({"spec": {"terminationGracePeriod": 5}}, "terminationGracePeriod"),
    "a map that is text": ({"spec": {"dnsConfig": "none"}}, "dnsConfig"),
    "no quantity": (container(resources={"limits": {"cpu": "lots"}}), "quantities must match"),
    "no port": (container(livenessProbe={"httpGet": {"port": True}}), "unmarshal bool"),
    "no integer": ({"spec": {"priority": 1.5}}, "float64"),
    "an invalid value": (container(imagePullPolicy="Sometimes"), "Unsupported value"),
    "a pin too large for etcd": (large(90), "request is too large"),
    "a pin too large for etcd's client": (large(110), "larger than max"),
}


def spec_of(admin: Kube, kind: str, namespace: str) -> Obj:
    api = "v1" if kind == "Service" else "apps/v1"
    found: Obj = admin.get(api, kind, "demo", namespace)["spec"]
    return found


def wait_replicas(admin: Kube, namespace: str, count: int) -> None:
    admin.wait(f"{count} replicas", lambda: spec_of(admin, "Deployment", namespace)["replicas"] == count)


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(("pod_template", "sentence"), WRONG.values(), ids=WRONG)
def test_an_edit_that_the_api_server_rejects_is_reported_and_scaling_continues(
    admin: Kube, namespace: str, pod_template: Obj, sentence: str
) -> None:
    resource = admin.create(demo(namespace, replicas=2))
    wait_condition(admin, resource, "Accepted", "True")
    before = children(admin, resource)
    admin.patch(resource, {"spec": {"podTemplate": pod_template, "service": {"port": 81}}})
    wait_condition(admin, resource, "Accepted", "False", "Refused", sentence)
    assert spec_of(admin, "Service", namespace)["ports"][0]["port"] == 80
    admin.patch(resource, {"spec": {"suspend": True}})
    wait_replicas(admin, namespace, 0)
    admin.patch(resource, {"spec": {"suspend": False}})
    wait_replicas(admin, namespace, 2)
    admin.patch(resource, {"spec": {"replicas": 3}}, subresource="scale")
    wait_replicas(admin, namespace, 3)
    admin.delete(before["Service", "demo"])
    admin.wait("the Service is back", lambda: admin.find("v1", "Service", "demo", namespace))
    wait_condition(admin, resource, "Accepted", "False", "Refused", sentence)
    after = children(admin, resource)
    assert after.keys() == before.keys()
    assert spec_of(admin, "Service", namespace)["ports"][0]["port"] == 80
    template = spec_of(admin, "Deployment", namespace)["template"]
    assert template == before["Deployment", "demo"]["spec"]["template"]
    admin.patch(resource, {"spec": {"podTemplate": None, "replicas": 1}})
    wait_condition(admin, resource, "Accepted", "True")
    assert spec_of(admin, "Service", namespace)["ports"][0]["port"] == 81


@contextlib.contextmanager
def policy(admin: Kube, namespace: str, reason: str) -> Iterator[None]:
    """Installs a ValidatingAdmissionPolicy that denies updates of the namespace's Deployments, but not of the scale."""
    rule = {"apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["deployments"], "operations": ["UPDATE"]}
    match: Obj = {"resourceRules": [rule]}
    match["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    validation = {"expression": "false", "reason": reason, "message": "no updates today"}
    api = "admissionregistration.k8s.io/v1"
    meta = {"metadata": {"name": f"denies-{namespace}"}}
    spec = {"failurePolicy": "Fail", "matchConstraints": match, "validations": [validation]}
    made = admin.create({"apiVersion": api, "kind": "ValidatingAdmissionPolicy", **meta, "spec": spec})
    binding = {"policyName": f"denies-{namespace}", "validationActions": ["Deny"]}
    bound = admin.create({"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", **meta, "spec": binding})
    try:
        yield
    finally:
        admin.delete(bound)
        admin.delete(made)


@contextlib.contextmanager
def webhook_away(admin: Kube, namespace: str, reason: str) -> Iterator[None]:
    """Installs a webhook that cannot be called, for updates of Deployments."""
    rule = {"apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["deployments"], "operations": ["UPDATE"]}
    webhook = {
        "name": "away.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    made = admin.create({**kind, "metadata": {"name": f"away-{namespace}"}, "webhooks": [webhook]})
    try:
        yield
    finally:
        admin.delete(made)


OBSTACLES: Sequence[tuple[Any, str, str, str]] = [
    (policy, "Invalid", "False", "Refused"),
    (policy, "Forbidden", "False", "Refused"),
    (policy, "RequestEntityTooLarge", "False", "Refused"),
    (webhook_away, "", "Unknown", "ApiError"),
]


@pytest.mark.parametrize(
    ("obstacle", "why", "status", "reason"), OBSTACLES, ids=[f"{o[1] or 'away'}" for o in OBSTACLES]
)
def test_replicas_are_scaled_while_admission_rejects_every_update_of_the_workload(
    admin: Kube, namespace: str, operator: OperatorProcess, obstacle: Any, why: str, status: str, reason: str
) -> None:
    resource = admin.create(demo(namespace, replicas=2))
    wait_condition(admin, resource, "Accepted", "True")
    live = admin.get("apps/v1", "Deployment", "demo", namespace)
    with obstacle(admin, namespace, why):
        admin.wait("admission takes no update", lambda: not updates(admin, live))
        admin.patch(resource, {"spec": {"engine": {"maxNumReqs": 5}, "replicas": 4}})
        wait_condition(admin, resource, "Accepted", status, reason)
        wait_replicas(admin, namespace, 4)
        for change, count in (({"suspend": True}, 0), ({"suspend": False}, 4), ({"replicas": 1}, 1)):
            admin.patch(resource, {"spec": change})
            wait_replicas(admin, namespace, count)
        admin.delete(admin.get("policy/v1", "PodDisruptionBudget", "demo-engine", namespace))
        admin.wait(
            "the budget is back", lambda: admin.find("policy/v1", "PodDisruptionBudget", "demo-engine", namespace)
        )
        assert spec_of(admin, "Deployment", namespace)["template"] == live["spec"]["template"]
    assert operator.metric('unmask_operator_writes_total{verb="scale"}') >= 4
    admin.wait("admission takes updates again", lambda: updates(admin, live))
    admin.patch(resource, {"spec": {"engine": {"maxNumReqs": 6}}})
    wait_condition(admin, resource, "Accepted", "True")
    assert read(admin, resource)["spec"]["replicas"] == spec_of(admin, "Deployment", namespace)["replicas"] == 1


def updates(admin: Kube, live: Obj) -> bool:
    """Returns whether the API server accepts an update. It receives admission rules through a watch."""
    try:
        admin.patch(live, {"metadata": {"labels": {"probe": secrets.token_hex(4)}}})
    except ApiError:
        return False
    return True
