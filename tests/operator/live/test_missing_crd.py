"""Tests that the operator notices within seconds when a missing kind that a resource needs is installed."""

from __future__ import annotations

import pytest

from e2e.cluster import Kube
from e2e.cluster.operator_process import OperatorProcess
from tests.operator.live.objects import demo, wait_condition
from tests.operator.live.test_permissions import POD_MONITOR_CRD
from unmask_operator.kube.kinds import POD_MONITORS

pytestmark = pytest.mark.cluster

MONITOR = (POD_MONITORS.api_version, "PodMonitor", "late-engine")


@pytest.fixture
def no_pod_monitors(admin: Kube) -> None:
    """Removes the CRD that an earlier test may have installed."""
    admin.undefine(POD_MONITOR_CRD)


@pytest.mark.usefixtures("no_pod_monitors")
def test_a_missing_crd_is_named_and_its_installation_noticed(
    operator: OperatorProcess, admin: Kube, namespace: str
) -> None:
    """Checks that objects of the kind are listed from then on, and dropped from the cache when the CRD is removed."""
    resource = admin.create(demo(namespace, "late", monitoring={"podMonitor": {}}))
    up_to_date = wait_condition(admin, resource, "UpToDate", "False")
    assert up_to_date["reason"] == "MissingCRD"
    assert "podmonitors.monitoring.coreos.com" in up_to_date["message"]
    for _ in range(2):
        admin.define(POD_MONITOR_CRD)
        wait_condition(admin, resource, "UpToDate", "True")
        monitor = admin.get(*MONITOR, namespace)
        assert monitor["spec"]["selector"] == {"matchLabels": {"serving.unmask.dev/service": "late"}}
        admin.delete(monitor)
        admin.wait("another one, though nothing else has changed", lambda: admin.find(*MONITOR, namespace))
        admin.undefine(POD_MONITOR_CRD)
        wait_condition(admin, resource, "UpToDate", "False")
