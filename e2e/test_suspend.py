"""Test of `suspend`: it removes the engines, and the service's previous state returns when it ends."""

from __future__ import annotations

import pytest

from e2e.cluster import Kube
from e2e.services import POD_TIMEOUT, demo, get, kubectl, patch, pods, wait_condition

BUDGET = ("policy/v1", "PodDisruptionBudget", "demo-engine")


@pytest.mark.smoke
def test_a_suspended_service_runs_no_engine_until_it_resumes(kube: Kube, namespace: str) -> None:
    kube.create(
        demo(namespace, spec={"replicas": 2, "drainTimeoutSeconds": 1, "resources": {"requests": {"cpu": "100m"}}})
    )
    wait_condition(kube, namespace, "Ready")
    budget = kube.get(*BUDGET, namespace)["spec"]
    address = kube.get("v1", "Service", "demo", namespace)["spec"]["clusterIP"]

    patch(kube, namespace, {"suspend": True})
    stopped = wait_condition(kube, namespace, "Ready", "False", reason="Suspended")
    assert "set it to false to serve again" in stopped["message"]
    kube.wait("the pods' end", lambda: not pods(kube, namespace), timeout=POD_TIMEOUT)
    wait_condition(kube, namespace, "Available", "False", reason="Suspended")
    assert get(kube, namespace)["spec"]["replicas"] == 2  # for the end of the suspension
    assert kube.find(*BUDGET, namespace) is None  # a budget would count pods that must not run
    assert kube.get("v1", "Service", "demo", namespace)["spec"]["clusterIP"] == address
    events = kubectl("events", "--for=dlms/demo", namespace=namespace)
    assert "Unavailable" not in events  # the user requested it

    patch(kube, namespace, {"suspend": False})
    wait_condition(kube, namespace, "Ready")
    assert kube.get(*BUDGET, namespace)["spec"] == budget
    kube.wait("both", lambda: get(kube, namespace)["status"].get("readyReplicas") == 2, timeout=POD_TIMEOUT)
