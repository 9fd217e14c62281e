"""Replicas follow `kubectl scale`, and the Builtin autoscaler the load, without one failed request."""

from __future__ import annotations

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.load import ENOUGH, load
from e2e.services import API, KIND, demo, get, kubectl, pods, wait_condition


def at(kube: Kube, namespace: str, replicas: int) -> Obj | None:
    """The service, once so many pods serve and there are no others."""
    service = get(kube, namespace)
    status = service["status"]
    there = len(pods(kube, namespace)) == status.get("replicas") == status.get("readyReplicas") == replicas
    return service if there and service["spec"]["replicas"] == replicas else None


# Seconds until replicas follow: of a busy machine's time, that in which an engine loads, and twice as long before the
# autoscaler takes away what it added.
SCALING_TIMEOUT = 1200.0


def wait_replicas(kube: Kube, namespace: str, replicas: int) -> Obj:
    return kube.wait(f"{replicas} replicas", lambda: at(kube, namespace, replicas), timeout=SCALING_TIMEOUT)


def wait_desired(kube: Kube, namespace: str, replicas: int) -> Obj:
    """Waits until the replicas are those that the autoscaler reports as desired."""

    def reported() -> Obj | None:
        service = at(kube, namespace, replicas)
        return service if service and service["status"]["autoscaling"]["desired"] == replicas else None

    return kube.wait(f"{replicas} replicas, as desired", reported, timeout=SCALING_TIMEOUT)


def test_kubectl_scale(kube: Kube, namespace: str) -> None:
    kube.create(demo(namespace))
    ready = wait_condition(kube, namespace)
    kubectl("scale", "dlms/demo", "--replicas=2", namespace=namespace)  # within its minReadySeconds
    wait_replicas(kube, namespace, 2)
    scale = kube.get(API, KIND, "demo", namespace, subresource="scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
    selected = kube.list("v1", "Pod", namespace, labelSelector=scale["status"]["selector"])
    assert {one["metadata"]["name"] for one in selected} == {one["metadata"]["name"] for one in pods(kube, namespace)}
    assert len(kube.list("apps/v1", "ControllerRevision", namespace)) == 1  # scaling is no edit
    kubectl("scale", "dlms/demo", "--replicas=1", namespace=namespace)
    wait_replicas(kube, namespace, 1)
    assert wait_condition(kube, namespace)["lastTransitionTime"] == ready["lastTransitionTime"]  # it never ended


def test_builtin_follows_the_load_up_and_down(kube: Kube, namespace: str) -> None:
    spec = {
        # The limit keeps a full pod from taking the cores that the next ones start on.
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
    with load(kube, namespace, called="light", clients=1, pause="500ms") as light:  # never more than one pod's share
        light.wait_requests(5)
        assert at(kube, namespace, 1)
        # However fast the engines are, an answer takes longer than this pause: most of 20 clients wait for one.
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
