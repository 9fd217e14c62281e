"""The operator's Lease on a cluster with its controllers: made by the operator, gone with its Deployment, for good."""

from __future__ import annotations

import pytest

from e2e.cluster import ApiServer, Kube
from tests.operator.live.process import ACCOUNT, OperatorProcess, install

pytestmark = pytest.mark.cluster

LEASE = ("coordination.k8s.io/v1", "Lease", "unmask-operator")
DEPLOYMENT = ("apps/v1", "Deployment", ACCOUNT)


def test_the_lease_goes_with_the_deployment_though_the_operator_still_runs(
    controlled_api_server: ApiServer, controlled_admin: Kube, controlled_namespace: str
) -> None:
    admin, own = controlled_admin, controlled_namespace
    install(controlled_api_server, admin, own, [own])
    admin.delete(admin.get(*LEASE, own))
    with OperatorProcess(controlled_api_server, own, [own]) as operator:
        admin.wait("the operator leads", lambda: operator.metric("unmask_operator_leader") == 1.0)
        admin.delete(admin.get(*DEPLOYMENT, own))
        admin.wait("the Lease is gone", lambda: admin.find(*LEASE, own) is None, timeout=60)
        admin.wait("the leader ends", lambda: not operator.alive(), timeout=30)
        operator.start(wait=False)  # as a kubelet would
        admin.wait("it looks for the Deployment", lambda: "deployments.apps" in operator.log(), timeout=30)
        assert admin.find(*LEASE, own) is None
