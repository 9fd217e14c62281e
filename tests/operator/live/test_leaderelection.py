"""Tests of the operator's Lease on a cluster with controllers.

The operator creates the Lease. It is deleted with the Deployment and not created again.
"""

from __future__ import annotations

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import ACCOUNT, OperatorProcess, install, reset_lease

pytestmark = pytest.mark.cluster

LEASE = ("coordination.k8s.io/v1", "Lease", "unmask-operator")
DEADLINE = 3600.0  # seconds; that of `operator_main`
DEPLOYMENT = ("apps/v1", "Deployment", ACCOUNT)


def test_the_lease_is_deleted_with_the_deployment_while_the_operator_still_runs(
    controlled_api_server: ApiServer, controlled_admin: Kube, controlled_namespace: str
) -> None:
    admin, own = controlled_admin, controlled_namespace
    install(controlled_api_server, admin, own, [own])
    admin.delete(admin.get(*LEASE, own))
    with OperatorProcess(controlled_api_server, own, [own]) as operator:
        admin.wait("the Lease is made", lambda: admin.find(*LEASE, own))
        reset_lease(admin, own)  # a new Lease cannot be acquired immediately
        admin.wait("the operator leads", lambda: operator.metric("unmask_operator_leader") == 1.0)
        admin.delete(admin.get(*DEPLOYMENT, own))
        admin.wait("the Lease is gone", lambda: admin.find(*LEASE, own) is None)
        operator.advance_clock(DEADLINE)
        assert operator.wait() != 0
        operator.start(wait=False)  # as a kubelet does
        admin.wait("it looks for the Deployment", lambda: "deployments.apps" in operator.log())
        assert admin.find(*LEASE, own) is None
