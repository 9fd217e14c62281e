"""Tests of an operator that watches namespaces, some of which are gone or withhold a kind."""

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import RBAC, OperatorProcess, grant, install
from tests.operator.live.objects import accepted, demo, read, wait_condition
from tools.permissions import RULES

pytestmark = pytest.mark.cluster

WITHHELD = {"a namespace that is gone": "", "a Role without a kind": "deployments"}


@pytest.mark.parametrize("resource", WITHHELD.values(), ids=WITHHELD)
def test_services_of_other_namespaces_are_reconciled_after_a_restart(
    resource: str, api_server: ApiServer, admin: Kube, namespace: str
) -> None:
    team = f"{namespace}-b"
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
    install(api_server, admin, namespace, [namespace, team])
    with OperatorProcess(api_server, namespace, [namespace, team]) as operator:
        mine, other = accepted(admin, demo(namespace)), accepted(admin, demo(team))
        operator.terminate()
        meta = {"name": f"{namespace}-watched", "namespace": team}
        if resource:
            grant(admin, namespace, [namespace, team], [rule for rule in RULES if rule.resource != resource])
        else:
            admin.delete({"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": meta})
        grant(admin, namespace, [namespace])
        operator.start()
        for each in (mine, other):
            admin.patch(each, {"spec": {"replicas": 5}})
        wait_condition(admin, mine, "Accepted", "True")
        assert admin.get("apps/v1", "Deployment", "demo", namespace)["spec"]["replicas"] == 5
        assert operator.metric("unmask_operator_unlisted_namespaces") == 1
        assert read(admin, other)["status"]["observedGeneration"] == 1
        grant(admin, namespace, [namespace, team])
        wait_condition(admin, other, "Accepted", "True")
        assert operator.alive()
