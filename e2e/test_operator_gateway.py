"""Test of routes with the chart's values: rights come and go with gateway.enabled, and no engine restarts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.release import Release
from e2e.services import EXAMPLES, ask, engines, get, kubectl, patch, wait_condition
from tests.operator.live.objects import gateway_crds
from unmask_operator.kinds import HTTP_ROUTES


@pytest.fixture
def crds(kube: Kube) -> Iterator[list[Obj]]:
    """Installs the CRDs of HTTPRoute and InferencePool for the test, unless the cluster has them."""
    missing = [crd for crd in gateway_crds() if not kube.find(crd["apiVersion"], crd["kind"], crd["metadata"]["name"])]
    for crd in missing:
        kube.define(crd)
    yield missing
    for crd in missing:
        kube.undefine(crd)


@pytest.mark.usefixtures("crds")
def test_a_canary_gets_its_part_once_the_chart_grants_routes(kube: Kube, namespace: str, release: Release) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "canary.yaml"), namespace=namespace)
    for name in ("chat", "chat-canary"):
        wait_condition(kube, namespace, "Ready", name=name)
    wait_condition(kube, namespace, "RouteReady", "False", name="chat", reason="NotEnabled", says="gateway.enabled")
    running = engines(kube, namespace)

    release.upgrade({"gateway.enabled": True})
    wait_condition(kube, namespace, "RouteReady", "Unknown", name="chat", reason="Waiting")
    route = kube.get(HTTP_ROUTES.api_version, HTTP_ROUTES.kind, "chat", namespace)
    (rule,) = route["spec"]["rules"]
    parts = {backend["name"]: (backend["weight"], backend["port"]) for backend in rule["backendRefs"]}
    assert parts == {"chat": (90, 80), "chat-canary": (10, 80)}
    for name in parts:  # both Services answer what the Gateway would send them
        assert ask(kube, namespace, name, model="chat")

    accept(kube, route)
    wait_condition(kube, namespace, "RouteReady", "True", name="chat", says="infra/public")
    table = kubectl("get", "dlms", "chat", "-o", "wide", namespace=namespace)
    assert "ROUTE" in table

    release.upgrade({"gateway.enabled": False})
    wait_condition(kube, namespace, "RouteReady", "False", name="chat", reason="NotEnabled")
    kept = kube.get(HTTP_ROUTES.api_version, HTTP_ROUTES.kind, "chat", namespace)
    assert kept["metadata"]["uid"] == route["metadata"]["uid"], "clients behind the Gateway would get no answer"

    release.upgrade({"gateway.enabled": True})
    wait_condition(kube, namespace, "RouteReady", "True", name="chat")
    patch(kube, namespace, {"route": None}, name="chat")
    kube.wait("no HTTPRoute", lambda: not kube.find(HTTP_ROUTES.api_version, HTTP_ROUTES.kind, "chat", namespace))
    assert engines(kube, namespace) == running
    assert get(kube, namespace, "chat")["status"]["readyReplicas"] == 1


def accept(kube: Kube, route: Obj) -> None:
    """Writes the status that the controller of a Gateway writes."""
    (parent,) = route["spec"]["parentRefs"]
    state = {"status": "True", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    state["observedGeneration"] = route["metadata"]["generation"]
    conditions = [{**state, "type": kind, "reason": kind} for kind in ("Accepted", "ResolvedRefs")]
    parents = [{"parentRef": parent, "controllerName": "example.com/gateway", "conditions": conditions}]
    kube.patch(route, {"status": {"parents": parents}}, subresource="status")
