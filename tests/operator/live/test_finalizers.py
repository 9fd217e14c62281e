"""Tests of a resource that is deleted, but held by the finalizer of another tool."""

import pytest

from e2e.cluster import Kube
from tests.operator.live.objects import accepted, children, demo, wait_condition

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]


def test_a_held_service_can_be_scaled_and_suspended_and_says_what_holds_it(admin: Kube, namespace: str) -> None:
    resource = demo(namespace, replicas=2)
    resource["metadata"]["finalizers"] = ["backup.example.com/hold"]
    resource = accepted(admin, resource)
    made = children(admin, resource)
    admin.delete(resource)

    def scaled(replicas: int) -> None:
        deployment = ("apps/v1", "Deployment", "demo", namespace)
        admin.wait(f"{replicas} replicas", lambda: admin.get(*deployment)["spec"]["replicas"] == replicas)

    wait_condition(admin, resource, "Ready", "False", "Deleting", "backup.example.com/hold")
    admin.patch(resource, {"spec": {"replicas": 3}})
    scaled(3)
    admin.delete(admin.get("v1", "Service", "demo", namespace))
    admin.patch(resource, {"spec": {"suspend": True}})
    scaled(0)
    wait_condition(admin, resource, "Ready", "False", "Deleting")
    assert children(admin, resource).keys() == made.keys() - {("Service", "demo")}, "a child was created again"
    admin.patch(resource, {"metadata": {"finalizers": None}})
    admin.wait("it is gone", lambda: admin.find(resource["apiVersion"], resource["kind"], "demo", namespace) is None)
