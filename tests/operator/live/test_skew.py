"""Tests of an operator with a newer CustomResourceDefinition, on a real API server."""

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
def test_what_only_the_crd_knows_is_named_and_stays(operator: OperatorProcess, admin: Kube, namespace: str) -> None:
    resource = admin.create(demo(namespace, ofTomorrow=1, engine={"warp": True, "maxNumReqs": 7}))

    def named(*fields: str) -> bool:
        message = condition(admin, resource, "Accepted").get("message", "")
        return all(field in message for field in fields)

    admin.wait("the names of the fields", lambda: named("spec.ofTomorrow", "spec.engine.warp"))
    wait_condition(admin, resource, "Accepted", "True")
    deployment = ("apps/v1", "Deployment", "demo", namespace)
    assert "--max-num-reqs=7" in admin.get(*deployment)["spec"]["template"]["spec"]["containers"][0]["args"]
    before = admin.get("v1", "Service", "demo", namespace)
    admin.patch(resource, {"spec": {"service": {"type": "OfTomorrow", "port": 81}}})
    admin.wait("the name of the value", lambda: named("spec.service.type"))
    admin.patch(resource, {"spec": {"replicas": 3}}, subresource="scale")
    admin.wait("three", lambda: admin.get(*deployment)["spec"]["replicas"] == 3)
    spec = read(admin, resource)["spec"]
    assert (spec["ofTomorrow"], spec["engine"]["warp"]) == (1, True)
    assert admin.get("v1", "Service", "demo", namespace) == before
    assert "Traceback" not in operator.log()
