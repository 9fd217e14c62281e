"""Tests of an admission webhook that is unavailable for one kind of child."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Kube
from tests.operator.live.objects import children, condition, demo, wait_condition

pytestmark = pytest.mark.cluster

KINDS = [
    ("policy", "poddisruptionbudgets", "PodDisruptionBudget"),
    ("networking.k8s.io", "networkpolicies", "NetworkPolicy"),
]


@pytest.fixture
def away(admin: Kube, namespace: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Installs a webhook that cannot be called, for one kind in the namespace."""
    group, plural, _ = request.param
    rule = {"apiGroups": [group], "apiVersions": ["*"], "resources": [plural], "operations": ["CREATE", "UPDATE"]}
    webhook = {
        "name": f"{plural}.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"away-{namespace}"},
        "webhooks": [webhook],
    }
    admin.create(configuration)

    def fails() -> bool:
        """Returns whether writes fail. The API server receives the webhook through a watch."""
        probe = {
            "apiVersion": f"{group}/v1",
            "kind": request.param[2],
            "metadata": {"name": "p", "namespace": namespace},
        }
        try:
            admin.create({**probe, "spec": {"podSelector": {}} if plural == "networkpolicies" else {}})
        except Exception as error:
            return "failed calling webhook" in str(error)
        admin.delete(probe)
        return False

    admin.wait("the webhook is called", fails)
    yield configuration
    admin.delete(configuration)


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("away", KINDS, indirect=True, ids=[kind for _, _, kind in KINDS])
def test_an_unavailable_webhook_is_reported_and_does_not_delay_other_kinds(
    admin: Kube, namespace: str, away: Any, request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["away"][2]
    resource = admin.create(demo(namespace, networkPolicy={}, podDisruptionBudget={}))
    accepted = wait_condition(admin, resource, "Accepted", "Unknown", "ApiError")
    assert f"{kind} demo-engine" in accepted["message"]
    assert f'failed calling webhook "{away["webhooks"][0]["name"]}"' in accepted["message"]
    assert {made for made, _ in children(admin, resource)} >= {"Deployment", "Service", "ControllerRevision"}
    assert condition(admin, resource, "Ready")["reason"] == "ApiError"
    assert condition(admin, resource, "Scheduled")["reason"] == "Pending"

    (warning,) = admin.events(namespace, "ApiError")
    assert warning["type"] == "Warning"
    assert kind in warning["note"]

    admin.patch(resource, {"spec": {"replicas": 3}})

    def scaled() -> bool:
        return admin.get("apps/v1", "Deployment", "demo", namespace)["spec"]["replicas"] == 3

    admin.wait("an edit is carried out meanwhile", scaled)
    wait_condition(admin, resource, "Accepted", "Unknown", "ApiError")
    admin.delete(away)
    wait_condition(admin, resource, "Accepted", "True")
    assert (kind, "demo-engine") in children(admin, resource)
