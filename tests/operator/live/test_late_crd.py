"""A kind that a resource asks for may be installed after the operator: it is found within seconds."""

from __future__ import annotations

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.kube import ApiError
from tests.operator.live.objects import demo, wait_condition
from tests.operator.live.process import OperatorProcess, wait_served
from tests.operator.live.test_permissions import POD_MONITOR_CRD
from unmask_operator.client.kinds import POD_MONITORS
from unmask_operator.controller.leader import DISCOVERY_SECONDS

pytestmark = pytest.mark.cluster


@pytest.fixture
def no_pod_monitors(admin: Kube) -> None:
    """Whichever test ran before."""
    admin.delete(POD_MONITOR_CRD)

    def gone() -> bool:
        try:
            admin.request("GET", f"{POD_MONITORS.root}/{POD_MONITORS.plural}")
        except ApiError as error:
            return error.status == 404
        return False

    admin.wait("the PodMonitors' end", gone)


@pytest.mark.usefixtures("no_pod_monitors")
def test_a_missing_crd_is_named_and_its_installation_noticed(
    operator: OperatorProcess, api_server: ApiServer, admin: Kube, namespace: str
) -> None:
    """After the two looks at everything with which an operator begins; the next such look is minutes away."""
    resource = admin.create(demo(namespace, "late", monitoring={"podMonitor": {}}))
    told = wait_condition(admin, resource, "UpToDate", "False")
    assert told["reason"] == "MissingCRD"
    assert "podmonitors.monitoring.coreos.com" in told["message"]

    def lists() -> int:
        events = api_server.requests(f"system:serviceaccount:{namespace}:unmask-operator")
        return sum(e["verb"] == "list" and e["objectRef"]["resource"] == "deployments" for e in events)

    admin.wait("two looks at everything, and the watch's own", lambda: lists() >= 3, timeout=60)
    admin.apply(POD_MONITOR_CRD)
    wait_served(admin, POD_MONITORS.api_version, "PodMonitor")
    wait_condition(admin, resource, "UpToDate", "True", timeout=DISCOVERY_SECONDS + 30)
    monitor = admin.get(POD_MONITORS.api_version, "PodMonitor", "late-engine", namespace)
    assert monitor["spec"]["selector"] == {"matchLabels": {"serving.unmask.dev/service": "late"}}
