"""Tests of writes that a real API server rejects: nothing of the edit is applied, and the rest is still reconciled."""

from typing import Any

import pytest

from e2e.cluster import Kube
from e2e.cluster.operator_process import OperatorProcess
from tests.operator.live.objects import Obj, accepted, children, demo, policy, read, updates, wait_condition

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]


def container(**fields: Any) -> Obj:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


# The revision contains the podTemplate twice.
LARGE = container(env=[{"name": f"LARGE_{i}", "value": "x" * 10_000} for i in range(90)])
# In a dry run, and in the write; test_api_errors.py has the messages of each way.
WRONG = {
    "typed": (container(env=[{"name": "A", "value": 4}]), 'env[name="A"].value'),
    "too large for etcd": (LARGE, "request is too large"),
}


def spec_of(admin: Kube, kind: str, namespace: str) -> Obj:
    found: Obj = admin.get("v1" if kind == "Service" else "apps/v1", kind, "demo", namespace)["spec"]
    return found


def scale(admin: Kube, resource: Obj, count: int, **change: Any) -> None:
    """Edits the spec and waits for the number of replicas."""
    admin.patch(resource, {"spec": change})
    namespace = resource["metadata"]["namespace"]
    admin.wait(f"{count} replicas", lambda: spec_of(admin, "Deployment", namespace)["replicas"] == count)


def recreated(admin: Kube, namespace: str, *about: str) -> None:
    admin.delete(admin.get(*about, namespace))
    admin.wait(f"{about} is back", lambda: admin.find(*about, namespace))


@pytest.mark.parametrize(("pod_template", "sentence"), WRONG.values(), ids=WRONG)
def test_an_edit_that_the_api_server_rejects_is_reported_and_scaling_continues(
    admin: Kube, namespace: str, pod_template: Obj, sentence: str
) -> None:
    resource = accepted(admin, demo(namespace, replicas=2))
    before = children(admin, resource)
    admin.patch(resource, {"spec": {"podTemplate": pod_template, "service": {"port": 81}}})
    wait_condition(admin, resource, "Accepted", "False", "Refused", sentence)
    scale(admin, resource, 0, suspend=True)
    scale(admin, resource, 3, suspend=False, replicas=3)
    recreated(admin, namespace, "v1", "Service", "demo")
    wait_condition(admin, resource, "Accepted", "False", "Refused", sentence)
    assert children(admin, resource).keys() == before.keys()
    assert spec_of(admin, "Service", namespace)["ports"][0]["port"] == 80
    template = spec_of(admin, "Deployment", namespace)["template"]
    assert template == before["Deployment", "demo"]["spec"]["template"]
    admin.patch(resource, {"spec": {"podTemplate": None}})
    wait_condition(admin, resource, "Accepted", "True")
    assert spec_of(admin, "Service", namespace)["ports"][0]["port"] == 81


def test_replicas_are_scaled_while_admission_rejects_every_update_of_the_workload(
    admin: Kube, namespace: str, shared_operator: OperatorProcess
) -> None:
    scales = 'unmask_operator_writes_total{verb="scale"}'
    resource, before = accepted(admin, demo(namespace, replicas=2)), shared_operator.metric(scales)
    live = admin.get("apps/v1", "Deployment", "demo", namespace)
    with policy(admin, namespace):
        admin.wait("admission rejects updates", lambda: not updates(admin, live))
        scale(admin, resource, 4, engine={"maxNumReqs": 5}, replicas=4)
        wait_condition(admin, resource, "Accepted", "False", "Refused")
        assert {event["type"] for event in admin.events(namespace, "Refused")} == {"Warning"}
        scale(admin, resource, 0, suspend=True)
        scale(admin, resource, 1, suspend=False, replicas=1)
        recreated(admin, namespace, "policy/v1", "PodDisruptionBudget", "demo-engine")
        assert spec_of(admin, "Deployment", namespace)["template"] == live["spec"]["template"]
    assert shared_operator.metric(scales) >= before + 3
    admin.wait("admission accepts updates again", lambda: updates(admin, live))
    admin.patch(resource, {"spec": {"engine": {"maxNumReqs": 6}}})
    wait_condition(admin, resource, "Accepted", "True")
    assert read(admin, resource)["spec"]["replicas"] == spec_of(admin, "Deployment", namespace)["replicas"] == 1
