"""Tests of `kubectl scale`, and of the Builtin autoscaler, which follows the load without a failed request."""

from __future__ import annotations

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.load import ENOUGH, load
from e2e.services import API, KIND, demo, get, kubectl, pods, wait_condition


def at(kube: Kube, namespace: str, replicas: int) -> Obj | None:
    """Returns the service if it has exactly `replicas` pods and all are ready, else None."""
    service = get(kube, namespace)
    status = service["status"]
    there = len(pods(kube, namespace)) == status.get("replicas") == status.get("readyReplicas") == replicas
    return service if there and service["spec"]["replicas"] == replicas else None


# Seconds until the replicas have changed. On a busy machine that includes the time in which an engine loads, and twice
# that time before the autoscaler removes a replica that it added.
SCALING_TIMEOUT = 1200.0


def wait_replicas(kube: Kube, namespace: str, replicas: int) -> Obj:
    return kube.wait(f"{replicas} replicas", lambda: at(kube, namespace, replicas), timeout=SCALING_TIMEOUT)


def wait_desired(kube: Kube, namespace: str, replicas: int) -> Obj:
    """Waits until the replicas are those that the autoscaler reports as desired."""

    def reported() -> Obj | None:
        service = at(kube, namespace, replicas)
        return service if service and service["status"]["autoscaling"]["desired"] == replicas else None

    return kube.wait(f"{replicas} replicas, as desired", reported, timeout=SCALING_TIMEOUT)


@pytest.mark.smoke
def test_kubectl_scale(kube: Kube, namespace: str) -> None:
    kube.create(demo(namespace))
    ready = wait_condition(kube, namespace)
    kubectl("scale", "dlms/demo", "--replicas=2", namespace=namespace)  # within the pod's minReadySeconds
    wait_replicas(kube, namespace, 2)
    scale = kube.get(API, KIND, "demo", namespace, subresource="scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
    selected = kube.list("v1", "Pod", namespace, labelSelector=scale["status"]["selector"])
    assert {one["metadata"]["name"] for one in selected} == {one["metadata"]["name"] for one in pods(kube, namespace)}
    assert len(kube.list("apps/v1", "ControllerRevision", namespace)) == 1  # scaling adds no revision
    kubectl("scale", "dlms/demo", "--replicas=1", namespace=namespace)
    wait_replicas(kube, namespace, 1)
    assert wait_condition(kube, namespace)["lastTransitionTime"] == ready["lastTransitionTime"]  # stayed True


@pytest.mark.smoke
def test_builtin_follows_the_load_up_and_down(kube: Kube, namespace: str) -> None:
    spec = {
        # Without the limit a busy pod would use the cores that the next pods need to start.
        "resources": {"limits": {"cpu": "700m"}},
        "autoscaling": {
            "minReplicas": 1,
            "maxReplicas": 3,
            "targets": {"runningRequestsPerReplica": 2},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 10}},
            "pollingIntervalSeconds": 1,
        },
    }
    kube.create(demo(namespace, spec=spec))
    wait_condition(kube, namespace)
    with load(kube, namespace, called="light", clients=1, pause="500ms") as light:  # never more than one pod's target
        light.wait_requests(5)
        assert at(kube, namespace, 1)
        # Each response takes longer than this pause, even with fast engines, so most of the 20 clients always wait.
        with load(kube, namespace, pause="5ms") as heavy:
            assert wait_desired(kube, namespace, 3)["status"]["lastScaleTime"]
            heavy.wait_requests(max(100, ENOUGH - heavy.report().requests))
            report = heavy.stop()
        assert not report.failed, report.failures
        wait_desired(kube, namespace, 1)
        wait_condition(kube, namespace, "ScalingReady")
        light.wait_requests(10)
        report = light.stop()
    assert not report.failed, report.failures
