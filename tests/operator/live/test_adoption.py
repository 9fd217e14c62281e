"""Tests of adoption on a real API server: a resource that is created again adopts children without an owner."""

from __future__ import annotations

import pytest

from e2e.cluster.authorization import wait_allowed
from e2e.cluster.operator_process import ACCOUNT, OperatorProcess, grant, install
from tests.operator.live.objects import children, demo, read, wait_condition, wait_settled
from tools.permissions import ADOPTION_RULES, RULES
from unmask_operator.objects import ADOPT, API_VERSION, KIND, SERVICE_LABEL, controller_uid

pytestmark = pytest.mark.cluster


def deployment(kube, namespace):
    return kube.get("apps/v1", "Deployment", "demo", namespace)


def orphan(kube, resource):
    """Deletes a resource as `kubectl delete --cascade=orphan` does. No garbage collector runs here."""
    found = children(kube, resource)
    kube.delete(resource)
    for obj in found.values():
        kube.patch(obj, {"metadata": {"ownerReferences": None}})
    return found


@pytest.fixture
def may_adopt(admin, namespace, operator):
    grant_adoption(admin, namespace)


def grant_adoption(kube, namespace):
    """Grants the permissions of the chart's rbac.adoption.

    The API servers of these tests run the admission plugin that requires them.
    """
    grant(kube, namespace, [namespace], [*RULES, *ADOPTION_RULES])
    for rule in ADOPTION_RULES:
        user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
        wait_allowed(kube, user, "delete", group=rule.group, resource=rule.resource, namespace=namespace)


@pytest.mark.parametrize("lost", [False, True], ids=["with revisions", "without revisions"])
def test_orphans_are_adopted_and_no_pod_template_changes(admin, namespace, may_adopt, lost):
    resource = admin.create(demo(namespace, replicas=2, networkPolicy={}))
    wait_condition(admin, resource, "Accepted", "True")
    before = deployment(admin, namespace)
    found = orphan(admin, resource)
    if lost:
        for (kind, _), obj in found.items():
            if kind == "ControllerRevision":
                admin.delete(obj)
    again = admin.create(demo(namespace, replicas=2, networkPolicy={}))
    wait_condition(admin, again, "Accepted", "False", "NameConflict", says=ADOPT)
    assert controller_uid(deployment(admin, namespace)) is None
    admin.patch(again, {"metadata": {"annotations": {ADOPT: "true"}}})
    wait_condition(admin, again, "Accepted", "True")
    after = deployment(admin, namespace)
    uid = read(admin, again)["metadata"]["uid"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["template"] == before["spec"]["template"]
    adopted = children(admin, again)
    assert {controller_uid(obj) for obj in adopted.values()} == {uid}
    assert adopted.keys() == found.keys()
    events = admin.list("events.k8s.io/v1", "Event", namespace)
    (event,) = [e for e in events if e.get("reason") == "Adopted"]
    assert "Deployment demo" in event["note"]
    admin.patch(again, {"spec": {"suspend": True}})
    admin.wait("suspended", lambda: deployment(admin, namespace)["spec"]["replicas"] == 0)
    admin.patch(again, {"spec": {"suspend": False, "engine": {"maxNumReqs": 5}}})
    admin.wait(
        "the edit",
        lambda: "--max-num-reqs=5" in deployment(admin, namespace)["spec"]["template"]["spec"]["containers"][0]["args"],
    )
    entries = deployment(admin, namespace)["metadata"]["managedFields"]
    own = [e["operation"] for e in entries if e["manager"] == "unmask-operator" and "subresource" not in e]
    assert own == ["Apply"]


def test_pods_outlive_an_orphaning_deletion_and_the_adoption(
    controlled_api_server, controlled_admin, controlled_namespace
):
    admin, namespace = controlled_admin, controlled_namespace
    install(controlled_api_server, admin, namespace, [namespace])
    grant_adoption(admin, namespace)

    def pods():
        found = admin.list("v1", "Pod", namespace, labelSelector=f"{SERVICE_LABEL}=demo")
        return {pod["metadata"]["uid"] for pod in found if "deletionTimestamp" not in pod["metadata"]}

    with OperatorProcess(controlled_api_server, namespace, [namespace]):
        resource = admin.create(demo(namespace, replicas=2))
        admin.wait("two pods", lambda: len(pods()) == 2)
        before = pods()
        admin.delete(resource, propagationPolicy="Orphan")
        admin.wait("orphans", lambda: controller_uid(deployment(admin, namespace)) is None)
        admin.wait("the resource is gone", lambda: not admin.find(API_VERSION, KIND, "demo", namespace))
        again = demo(namespace, replicas=2)
        again["metadata"]["annotations"] = {ADOPT: "true"}
        again = admin.create(again)
        wait_condition(admin, again, "Accepted", "True")
        uid = again["metadata"]["uid"]
        admin.wait("adopted", lambda: controller_uid(deployment(admin, namespace)) == uid)
        wait_settled(admin, namespace)
        assert pods() == before


def test_a_missing_permission_for_adoption_is_named(admin, namespace, operator):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    orphan(admin, resource)
    again = demo(namespace)
    again["metadata"]["annotations"] = {ADOPT: "true"}
    again = admin.create(again)
    found = wait_condition(admin, again, "Accepted", "False", "NameConflict", says="rbac.adoption of the chart")
    assert "rejected the adoption of Deployment demo" in found["message"]


def test_a_foreign_object_of_the_same_name_is_not_adopted(admin, namespace, operator):
    admin.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "demo-engine", "namespace": namespace}}
    )
    resource = demo(namespace)
    resource["metadata"]["annotations"] = {ADOPT: "true"}
    resource = admin.create(resource)
    found = wait_condition(admin, resource, "Accepted", "False", "NameConflict", says="ServiceAccount demo-engine")
    assert ADOPT not in found["message"]
    assert controller_uid(admin.get("v1", "ServiceAccount", "demo-engine", namespace)) is None
