"""Tests that the operator notices within seconds when a missing kind that a resource needs is installed."""

import pytest

from e2e.cluster import Kube
from tests.operator.live.objects import POD_MONITOR_CRD, demo, wait_condition
from unmask_operator.kinds import POD_MONITORS

pytestmark = pytest.mark.cluster

MONITOR = (POD_MONITORS.api_version, "PodMonitor", "late-engine")


@pytest.fixture
def no_pod_monitors(admin: Kube) -> None:
    """Removes the CRD that an earlier test may have installed, before the operator starts."""
    admin.undefine(POD_MONITOR_CRD)


@pytest.mark.usefixtures("no_pod_monitors", "operator")
def test_a_missing_crd_is_named_and_its_installation_noticed(admin: Kube, namespace: str) -> None:
    """Objects of the kind are listed from then on, and dropped from the cache when the CRD is removed."""
    resource = admin.create(demo(namespace, "late", monitoring={"podMonitor": {}}))
    wait_condition(admin, resource, "UpToDate", "False", "MissingCRD", "podmonitors.monitoring.coreos.com")
    admin.define(POD_MONITOR_CRD)
    wait_condition(admin, resource, "UpToDate", "True")
    monitor = admin.get(*MONITOR, namespace)
    assert monitor["spec"]["selector"] == {"matchLabels": {"serving.unmask.dev/service": "late"}}
    admin.delete(monitor)
    admin.wait("another one, though nothing else has changed", lambda: admin.find(*MONITOR, namespace))
    admin.undefine(POD_MONITOR_CRD)
    wait_condition(admin, resource, "UpToDate", "False")
    admin.define(POD_MONITOR_CRD)
    wait_condition(admin, resource, "UpToDate", "True")
    admin.undefine(POD_MONITOR_CRD)
