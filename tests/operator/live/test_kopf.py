"""Tests that kopf leaves nothing on objects or in the log of a running operator."""

from __future__ import annotations

import json

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, install
from tests.operator.live.objects import Obj, accepted, children, demo, labelled, read, wait_condition
from tests.operator.proxy import FaultProxy
from unmask_operator.objects import SERVICE_LABEL

pytestmark = pytest.mark.cluster


def pod(namespace: str, name: str, **metadata: object) -> Obj:
    """Returns a pod of the engine `demo`."""
    meta = {"name": name, "namespace": namespace, "labels": {SERVICE_LABEL: "demo"}, **metadata}
    spec = {"nodeName": "somewhere", "containers": [{"name": "main", "image": "engine:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def test_neither_objects_nor_the_log_have_anything_of_kopf(
    operator: OperatorProcess, admin: Kube, namespace: str
) -> None:
    """Checks a resource that is created, edited, scaled, suspended, and deleted in the background.

    The operator restarts before the resource is suspended.
    """
    resource = accepted(admin, demo(namespace, networkPolicy={}, replicas=2))
    admin.create(pod(namespace, "one"))
    admin.patch(resource, {"spec": {"engine": {"maxNumReqs": 5}}})
    wait_condition(admin, resource, "Accepted", "True")
    admin.patch(resource, {"spec": {"replicas": 3}}, subresource="scale")
    admin.wait("three", lambda: children(admin, resource)["Deployment", "demo"]["spec"]["replicas"] == 3)
    assert operator.terminate() == 0
    operator.start()
    admin.patch(resource, {"spec": {"suspend": True}})
    wait_condition(admin, resource, "Accepted", "True")
    found = [read(admin, resource), *labelled(admin, namespace), *admin.list("v1", "Pod", namespace)]
    assert {obj["kind"] for obj in found} >= {"DiffusionLMService", "Pod", "Deployment", "ControllerRevision"}
    for obj in found:
        meta = obj["metadata"]
        assert "finalizers" not in meta, meta["name"]
        assert "kopf" not in json.dumps(obj), meta["name"]
    admin.delete(resource)
    admin.wait("it goes", lambda: admin.find(resource["apiVersion"], resource["kind"], "demo", namespace) is None)
    assert operator.terminate() == 0
    lines = [json.loads(line) for line in operator.log().splitlines()]
    assert lines
    assert [line for line in lines if line["logger"].startswith(("kopf", "asyncio"))] == []


def test_an_operator_that_is_stopped_before_its_watches_exits_without_an_error(
    api_server: ApiServer, admin: Kube, namespace: str, fault_proxy: FaultProxy
) -> None:
    """Checks the start, when kopf lists the API groups in tasks that it does not cancel."""
    install(api_server, admin, namespace, [namespace])
    listing = fault_proxy.fail(200, "^/apis$", headers_only=True, after=1)
    with OperatorProcess(api_server, namespace, [namespace], server=fault_proxy.url) as operator:
        admin.wait("kopf lists the API groups", lambda: listing.hits > 1)
        assert operator.terminate() == 0
        lines = [json.loads(line) for line in operator.log().splitlines()]
    assert [line for line in lines if line["level"] in ("warning", "error")] == []
