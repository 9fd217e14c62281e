"""Tests of the API servers that these tests use: users, audit log and controllers."""

from __future__ import annotations

import pytest

from e2e.cluster import ApiError, ApiServer, Kube
from tests.operator.authorization import wait_allowed

pytestmark = pytest.mark.cluster

RBAC = "rbac.authorization.k8s.io"


def config_map(namespace: str, name: str = "a", **metadata: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace, **metadata}}


def allow(admin: Kube, namespace: str, verbs: list[str], subject: dict[str, str]) -> None:
    """Grants a subject these verbs on ConfigMaps of a namespace. Returns after the API server applies the grant."""
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}]
    meta = {"name": "allowed", "namespace": namespace}
    admin.create({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": meta, "rules": rules})
    role = {"apiGroup": RBAC, "kind": "Role", "name": "allowed"}
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": meta,
        "roleRef": role,
        "subjects": [subject],
    }
    admin.create(binding)
    user, groups = subject["name"], []
    if subject["kind"] == "ServiceAccount":
        user = f"system:serviceaccount:{subject['namespace']}:{user}"
    if subject["kind"] == "Group":
        user, groups = "anybody", [user]
    for verb in verbs:
        wait_allowed(admin, user, verb, group="", resource="configmaps", namespace=namespace, groups=groups)


def test_a_service_account_has_the_permissions_of_its_role(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    allow(admin, namespace, ["create"], {"kind": "ServiceAccount", "name": "default", "namespace": namespace})
    account = Kube(api_server.service_account_kubeconfig(namespace, "default"))
    account.create(config_map(namespace))
    with pytest.raises(ApiError) as refused:
        account.get("v1", "ConfigMap", "a", namespace)
    assert refused.value.reason == "Forbidden"
    assert f"system:serviceaccount:{namespace}:default" in refused.value.message


def test_users_need_not_exist(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    allow(admin, namespace, ["get", "list"], {"kind": "Group", "name": "readers", "apiGroup": RBAC})
    admin.create(config_map(namespace))
    alice = Kube(api_server.user_kubeconfig("alice", "readers"))
    assert alice.get("v1", "ConfigMap", "a", namespace)["metadata"]["name"] == "a"
    with pytest.raises(ApiError, match="Forbidden"):
        alice.delete(config_map(namespace))
    bob = api_server.admin(user="bob", groups=("readers",))
    assert len(bob.list("v1", "ConfigMap", namespace)) == 1


def test_the_audit_log_has_the_user_of_each_request(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    carol = api_server.admin(user="carol", groups=("system:masters",))
    carol.create(config_map(namespace))

    def mine() -> list[dict[str, object]]:
        events = [
            event for event in api_server.requests() if event.get("impersonatedUser", {}).get("username") == "carol"
        ]
        return [event for event in events if event["verb"] == "create"]

    event = admin.wait("carol's request in the audit log", mine)[0]
    assert event["objectRef"] == {"resource": "configmaps", "namespace": namespace, "name": "a", "apiVersion": "v1"}
    assert api_server.requests("admin")


def test_blocking_owner_references_need_permission(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    """Checks that a user who may not delete an object cannot make it a blocking owner.

    An admission plugin enforces this.
    """
    allow(admin, namespace, ["create"], {"kind": "User", "name": "dave", "apiGroup": RBAC})
    owner = admin.create(config_map(namespace, "owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    dave = api_server.admin(user="dave")
    with pytest.raises(ApiError, match="blockOwnerDeletion"):
        dave.create(config_map(namespace, ownerReferences=[{**reference, "blockOwnerDeletion": True}]))
    dave.create(config_map(namespace, ownerReferences=[reference]))


def test_server_side_apply_and_status(admin: Kube, namespace: str) -> None:
    meta = {"name": "web", "namespace": namespace}
    containers = [{"name": "main", "image": "web:1"}]
    pod = admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers}})
    pod = admin.patch(pod, {"status": {"phase": "Running"}}, subresource="status")
    assert pod["status"]["phase"] == "Running"  # neither a node nor a controller changes it
    mine = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": namespace},
        "data": {"k": "1"},
    }
    admin.apply(mine, manager="one")
    with pytest.raises(ApiError) as conflict:
        admin.apply({**mine, "data": {"k": "2"}}, manager="two", force=False)
    assert conflict.value.status == 409


def test_controllers_act(controlled_admin: Kube, controlled_namespace: str) -> None:
    """Checks that Deployments get ReplicaSets and pods, and that owned objects are deleted with their owner."""
    admin, namespace = controlled_admin, controlled_namespace
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "web:1"}]}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    admin.create(deployment)
    admin.wait("two pods", lambda: len(admin.list("v1", "Pod", namespace)) == 2)
    admin.delete(deployment, propagationPolicy="Background")
    admin.wait("no ReplicaSet", lambda: not admin.list("apps/v1", "ReplicaSet", namespace))
    admin.wait("no pods", lambda: not admin.list("v1", "Pod", namespace))
