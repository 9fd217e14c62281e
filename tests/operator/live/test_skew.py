"""Tests of an operator with a newer CustomResourceDefinition, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import Kube
from e2e.cluster.operator_process import OperatorProcess
from tests.operator.live.objects import condition, demo, read, wait_condition
from tools import crd

pytestmark = pytest.mark.cluster


@pytest.fixture
def newer_crd(operator: OperatorProcess, admin: Kube, namespace: str) -> Iterator[None]:
    """Installs a newer CRD while the operator's watches are open, and waits until the API server keeps its fields."""
    made = crd.crd()
    spec = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["ofTomorrow"] = {"type": "integer"}
    spec["engine"]["properties"]["warp"] = {"type": "boolean"}
    spec["service"]["properties"]["type"]["allOf"][0]["enum"].append("OfTomorrow")
    admin.apply(made)
    asked = demo(namespace, "asked", ofTomorrow=1)
    admin.wait("the newer schema", lambda: "ofTomorrow" in admin.create(asked, dryRun="All")["spec"])
    yield
    admin.apply(crd.crd())
    admin.wait("the schema", lambda: "ofTomorrow" not in admin.create(asked, dryRun="All")["spec"])


@pytest.mark.usefixtures("newer_crd")
def test_fields_that_only_the_crd_knows_are_named_and_stay(
    operator: OperatorProcess, admin: Kube, namespace: str
) -> None:
    resource = admin.create(demo(namespace, ofTomorrow=1, engine={"warp": True, "maxNumReqs": 7}))
    accepted = wait_condition(admin, resource, "Accepted", "True")

    def named() -> bool:
        message = condition(admin, resource, "Accepted").get("message", "")
        return "spec.ofTomorrow" in message and "spec.engine.warp" in message

    admin.wait(f"their names; first it was {accepted['message']}", named)
    args = admin.get("apps/v1", "Deployment", "demo", namespace)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--max-num-reqs=7" in args
    admin.patch(resource, {"spec": {"replicas": 3}}, subresource="scale")
    admin.wait("three", lambda: admin.get("apps/v1", "Deployment", "demo", namespace)["spec"]["replicas"] == 3)
    spec = read(admin, resource)["spec"]
    assert (spec["ofTomorrow"], spec["engine"]["warp"]) == (1, True)
    assert "Traceback" not in operator.log()


@pytest.mark.usefixtures("newer_crd")
def test_a_value_that_only_the_crd_knows_is_named_and_its_child_stays(
    operator: OperatorProcess, admin: Kube, namespace: str
) -> None:
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    before = admin.get("v1", "Service", "demo", namespace)
    admin.patch(resource, {"spec": {"service": {"type": "OfTomorrow", "port": 81}, "replicas": 3}})
    admin.wait("three", lambda: admin.get("apps/v1", "Deployment", "demo", namespace)["spec"]["replicas"] == 3)
    admin.wait(
        "its name",
        lambda: "spec.service.type" in condition(admin, resource, "Accepted").get("message", ""),
    )
    assert admin.get("v1", "Service", "demo", namespace) == before
    assert "Traceback" not in operator.log()


def test_the_api_server_adds_only_replicas_to_a_spec(operator: OperatorProcess, admin: Kube, namespace: str) -> None:
    asked = demo(namespace, "plain", gpu={}, startupProbe={}, monitoring={"podMonitor": {}}, rolloutStrategy={})
    stored = admin.create(asked, dryRun="All")
    assert stored["spec"] == {**asked["spec"], "replicas": 1}
    assert operator.alive()
