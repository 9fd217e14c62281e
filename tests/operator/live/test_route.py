"""Tests of routes and pools on a real API server with the real CRDs. The tests write the statuses of Gateways."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, install
from tests.operator.live.objects import Obj, accepted, demo, gateway_crds, wait_condition
from tests.operator.samples import kinds, make, observe
from unmask_operator.kinds import HTTP_ROUTES, INFERENCE_POOLS

pytestmark = pytest.mark.cluster

PARENT = {"name": "public", "namespace": "infra", "sectionName": "https"}
ROUTE = {"parentRefs": [PARENT]}


@pytest.fixture(scope="module")
def crds(admin: Kube) -> Iterator[tuple[Obj, Obj]]:
    """Yields the CRDs of HTTPRoute and InferencePool, which are installed during the tests of the module."""
    routes, pools = gateway_crds()
    for crd in (routes, pools):
        admin.define(crd)
    yield routes, pools
    for crd in (routes, pools):
        admin.undefine(crd)


@pytest.fixture
def operator(api_server: ApiServer, admin: Kube, namespace: str) -> Iterator[OperatorProcess]:
    install(api_server, admin, namespace, [namespace])
    with OperatorProcess(api_server, namespace, [namespace]) as process:
        yield process


FULL: Obj = {
    "parentRefs": [PARENT, {"name": "other", "port": 443}],
    "hostnames": ["llm.example.com", "*.example.org"],
    "paths": ["/v1", "/generate", "/"],
    "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-debug"]}}],
    "timeouts": {"request": "10m", "backendRequest": "1m30s"},
    "weight": 90,
    "backends": [{"service": "canary", "weight": 10}],
    "labels": {"a": "b"},
    "annotations": {"c": "d"},
}
PICKER = {"endpointPickerRef": {"name": "picker", "failureMode": "FailClose"}}


@pytest.mark.usefixtures("crds")
def test_every_rendered_route_and_pool_is_valid(admin: Kube, namespace: str) -> None:
    for route, pool in itertools.product((None, ROUTE, FULL), (None, {}, PICKER)):
        sections = {"route": route, "inferencePool": pool}
        resource = demo(namespace, **{name: section for name, section in sections.items() if section is not None})
        resource["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
        made = make(observe(resource))
        rendered = [child for child in made.children if child["kind"] in ("HTTPRoute", "InferencePool")]
        assert (
            len(rendered)
            == len(set(kinds(made)) & {"HTTPRoute", "InferencePool"})
            == sum(map(bool, (route, pool is not None)))
        )
        for child in rendered:
            admin.create(child, dryRun="All", fieldValidation="Strict")


def report(admin: Kube, kind: Any, namespace: str, **states: str) -> None:
    """Writes the status that a controller of Gateways writes, with the reason of each condition that is not True."""
    live = admin.wait(f"the {kind.kind}", lambda: admin.find(kind.api_version, kind.kind, "demo", namespace))
    conditions = [
        {"type": name, "status": "True" if reason == name else "False", "reason": reason, "message": "its words",
         "observedGeneration": live["metadata"]["generation"], "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for name, reason in states.items()
    ]  # fmt: skip
    parent = {"parentRef": PARENT if kind is HTTP_ROUTES else {"name": "public", "namespace": "infra"}}
    status = {"parents": [{**parent, "controllerName": "example.com/gateway", "conditions": conditions}]}
    admin.patch(live, {"status": status}, subresource="status")


def test_the_condition_follows_the_gateway_and_a_deleted_route_returns(
    admin: Kube, namespace: str, crds: Any, operator: OperatorProcess
) -> None:
    resource = accepted(admin, demo(namespace, route=ROUTE))
    wait_condition(admin, resource, "RouteReady", "Unknown", "Waiting", "Gateway infra/public (https)")
    report(admin, HTTP_ROUTES, namespace, Accepted="NotAllowedByListeners", ResolvedRefs="ResolvedRefs")
    wait_condition(
        admin, resource, "RouteReady", "False", "NotAllowedByListeners", "HTTPRoute demo: its words; allow routes"
    )
    report(admin, HTTP_ROUTES, namespace, Accepted="Accepted", ResolvedRefs="ResolvedRefs")
    wait_condition(admin, resource, "RouteReady", "True")
    assert operator.metric('unmask_operator_writes_total{verb="apply"}') == 0, "defaults of the API server are no drift"
    admin.patch(resource, {"spec": {"inferencePool": {}}})  # the route has another generation
    wait_condition(admin, resource, "RouteReady", "Unknown", "Waiting")
    report(admin, HTTP_ROUTES, namespace, Accepted="Accepted", ResolvedRefs="ResolvedRefs")
    report(admin, INFERENCE_POOLS, namespace, Accepted="EndpointPickerRefMissing")
    wait_condition(admin, resource, "RouteReady", "False", "EndpointPickerRefMissing", "spec.inferencePool")
    route = admin.get(HTTP_ROUTES.api_version, "HTTPRoute", "demo", namespace)
    admin.delete(route)

    def another() -> bool:
        found = admin.find(HTTP_ROUTES.api_version, "HTTPRoute", "demo", namespace)
        return found is not None and found["metadata"]["uid"] != route["metadata"]["uid"]

    admin.wait("a new HTTPRoute", another)
    admin.undefine(crds[0])
    wait_condition(admin, resource, "RouteReady", "False", "MissingCRD", "httproutes.gateway.networking.k8s.io")
    admin.define(crds[0])
    admin.wait("the HTTPRoute after the CRD", another)
    wait_condition(admin, resource, "RouteReady", "False", "EndpointPickerRefMissing")


@pytest.mark.usefixtures("operator", "crds")
def test_a_route_of_another_owner_stays(admin: Kube, namespace: str) -> None:
    metadata = {"name": "demo", "namespace": namespace}
    kind = {"apiVersion": HTTP_ROUTES.api_version, "kind": "HTTPRoute"}
    theirs = admin.create({**kind, "metadata": metadata, "spec": {"parentRefs": [PARENT]}})
    resource = admin.create(demo(namespace, route=ROUTE))
    wait_condition(admin, resource, "Accepted", "False", "NameConflict", "HTTPRoute demo")
    live = admin.get(HTTP_ROUTES.api_version, "HTTPRoute", "demo", namespace)
    assert live["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
