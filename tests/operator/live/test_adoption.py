"""Test of adoption on a real API server: a resource that is created again adopts children without an owner."""

import pytest

from e2e.cluster.authorization import wait_allowed
from e2e.cluster.operator_process import ACCOUNT, OperatorProcess, grant, install
from tests.operator.live.objects import children, demo, read, wait_condition, wait_settled
from tools.permissions import ADOPTION_RULES, RULES
from unmask_operator.objects import ADOPT, API_VERSION, KIND, SERVICE_LABEL, controller_uid

pytestmark = pytest.mark.cluster


def grant_adoption(kube, namespace):
    """Grants the permissions of the chart's rbac.adoption, which an admission plugin of the API server requires."""
    grant(kube, namespace, [namespace], [*RULES, *ADOPTION_RULES])
    for rule in ADOPTION_RULES:
        user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
        wait_allowed(kube, user, "delete", group=rule.group, resource=rule.resource, namespace=namespace)


def test_orphans_are_adopted_with_the_annotation_and_the_permission_and_their_pods_stay(
    controlled_api_server, controlled_admin, controlled_namespace
):
    admin, namespace = controlled_admin, controlled_namespace
    install(controlled_api_server, admin, namespace, [namespace])

    def deployment():
        return admin.get("apps/v1", "Deployment", "demo", namespace)

    def pods():
        found = admin.list("v1", "Pod", namespace, labelSelector=f"{SERVICE_LABEL}=demo")
        return {pod["metadata"]["uid"] for pod in found if "deletionTimestamp" not in pod["metadata"]}

    with OperatorProcess(controlled_api_server, namespace, [namespace]):
        resource = admin.create(demo(namespace, replicas=2, networkPolicy={}))
        admin.wait("two pods", lambda: len(pods()) == 2)
        wait_condition(admin, resource, "Accepted", "True")
        before, found, running = deployment(), children(admin, resource), pods()
        admin.delete(resource, propagationPolicy="Orphan")
        admin.wait("the resource is gone", lambda: not admin.find(API_VERSION, KIND, "demo", namespace))
        assert controller_uid(deployment()) is None

        again = admin.create(demo(namespace, replicas=2, networkPolicy={}))
        wait_condition(admin, again, "Accepted", "False", "NameConflict", ADOPT)
        admin.patch(again, {"metadata": {"annotations": {ADOPT: "true"}}})
        wait_condition(admin, again, "Accepted", "False", "NameConflict", "rbac.adoption of the chart")
        grant_adoption(admin, namespace)
        wait_condition(admin, again, "Accepted", "True")
        wait_settled(admin, namespace)
        after, uid = deployment(), read(admin, again)["metadata"]["uid"]
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["spec"]["template"] == before["spec"]["template"]
        assert pods() == running
        adopted = children(admin, again)
        assert adopted.keys() == found.keys()
        assert {controller_uid(obj) for obj in adopted.values()} == {uid}
        assert any("Deployment demo" in event["note"] for event in admin.events(namespace, "Adopted"))
        admin.patch(again, {"spec": {"suspend": True}})
        admin.wait("suspended", lambda: deployment()["spec"]["replicas"] == 0)
        entries = deployment()["metadata"]["managedFields"]
        own = [e["operation"] for e in entries if e["manager"] == "unmask-operator" and "subresource" not in e]
        assert own == ["Apply"]
