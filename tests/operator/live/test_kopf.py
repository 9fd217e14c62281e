"""Tests that kopf leaves nothing on objects or in the log of a running operator."""

from __future__ import annotations

import json

import pytest

from e2e.cluster import ApiServer, Kube
from tests.operator.live.objects import Obj, children, demo, labelled, read, wait_condition
from tests.operator.live.process import OperatorProcess, install
from tests.operator.proxy import FaultProxy
from unmask_operator.objects import SERVICE_LABEL

pytestmark = pytest.mark.cluster

FINALIZER = "kopf.zalando.org/KopfFinalizerMarker"  # kopf's default
LAST_STATE = "kopf.zalando.org/last-handled-configuration"


def pod(namespace: str, name: str, **metadata: object) -> Obj:
    """Returns a pod of the engine `demo`."""
    meta = {"name": name, "namespace": namespace, "labels": {SERVICE_LABEL: "demo"}, **metadata}
    spec = {"nodeName": "somewhere", "containers": [{"name": "main", "image": "engine:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def test_no_object_has_a_finalizer_or_an_annotation_of_kopf(
    operator: OperatorProcess, admin: Kube, namespace: str
) -> None:
    """Checks a resource that is created, edited, scaled, suspended, and deleted in the background.

    The operator restarts before the resource is suspended.
    """
    resource = admin.create(demo(namespace, networkPolicy={}, replicas=2))
    wait_condition(admin, resource, "Accepted", "True")
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
    admin.wait(
        "nothing holds it", lambda: admin.find(resource["apiVersion"], resource["kind"], "demo", namespace) is None
    )


def test_markers_of_another_kopf_operator_stay_and_have_no_effect(
    operator: OperatorProcess, admin: Kube, namespace: str
) -> None:
    marks = {"finalizers": [FINALIZER], "annotations": {LAST_STATE: "no { JSON"}}
    marked = demo(namespace)
    marked["metadata"] |= marks
    resource = admin.create(marked)
    wait_condition(admin, resource, "Accepted", "True")
    one = admin.create(pod(namespace, "one", **marks))
    waits = {"name": "main", "image": "engine:1", "imageID": "", "ready": False, "restartCount": 0}
    waits["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    admin.patch(one, {"status": {"phase": "Pending", "containerStatuses": [waits]}}, subresource="status")
    wait_condition(admin, resource, "Ready", "False", says="no such image")  # the operator received the pod's change
    for obj in (one, resource):
        admin.delete(obj)
    wait_gone_quiet(admin, namespace)
    for obj in (one, resource):
        live = admin.get(obj["apiVersion"], obj["kind"], obj["metadata"]["name"], namespace)
        assert live["metadata"]["deletionTimestamp"]
        assert live["metadata"]["finalizers"] == [FINALIZER]
        admin.patch(live, {"metadata": {"finalizers": None}})
    assert "Traceback" not in operator.log()


def wait_gone_quiet(admin: Kube, namespace: str) -> None:
    """Waits until the operator has processed earlier events: it reconciles another resource."""
    wait_condition(admin, admin.create(demo(namespace, "another")), "Accepted", "True")


def test_the_log_has_no_line_of_kopf_and_each_line_is_an_object(
    operator: OperatorProcess, admin: Kube, namespace: str
) -> None:
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    admin.patch(resource, {"spec": {"service": {"port": 81}}})
    wait_condition(admin, resource, "Accepted", "True")
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
