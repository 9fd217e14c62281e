"""Tests of the cluster features that other tests need: it runs pods, resolves Service names, and counts GPUs."""

from __future__ import annotations

import time

import pytest

from e2e.cluster import Kube
from e2e.cluster.node.gpus import pretend_gpus
from e2e.pods import output, pod
from e2e.services import kubectl


def serve(kube: Kube, namespace: str) -> None:
    """Creates a Service `web` and its only pod, and waits until the pod is ready."""
    labels = {"app": "web"}
    kube.create(pod(namespace, "web", "serve", "hello", labels=labels))
    meta = {"name": "web", "namespace": namespace}
    ports = [{"port": 80, "targetPort": 8080}]
    kube.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": labels, "ports": ports}})

    def ready() -> bool:
        slices = kube.list("discovery.k8s.io/v1", "EndpointSlice", namespace)
        return any(endpoint["conditions"]["ready"] for one in slices for endpoint in one.get("endpoints") or ())

    kube.wait("the pod behind the Service", ready)


@pytest.mark.smoke
def test_a_pod_runs(kube: Kube, namespace: str) -> None:
    start = time.monotonic()
    kube.create(pod(namespace, "waiting"))
    kube.wait("the pod", lambda: kube.get("v1", "Pod", "waiting", namespace)["status"]["phase"] == "Running")
    print(f"pod Running after {time.monotonic() - start:.1f} s")


@pytest.mark.smoke
def test_services_are_found_by_name(kube: Kube, namespace: str) -> None:
    serve(kube, namespace)
    address = kube.get("v1", "Service", "web", namespace)["spec"]["clusterIP"]
    for number, name in enumerate(("web", f"web.{namespace}", f"web.{namespace}.svc.cluster.local")):
        assert output(kube, namespace, f"resolve-{number}", "resolve", name).split() == [address]
    assert output(kube, namespace, "fetch", "fetch", f"http://web.{namespace}.svc").strip() == "hello"


@pytest.mark.smoke
def test_the_api_server_is_reached_from_a_pod(kube: Kube, namespace: str) -> None:
    found = output(kube, namespace, "resolve", "resolve", "kubernetes.default.svc").split()
    assert found == [kube.get("v1", "Service", "kubernetes", "default")["spec"]["clusterIP"]]


@pytest.mark.smoke
def test_logs_and_exec_reach_the_kubelet(kube: Kube, namespace: str) -> None:
    serve(kube, namespace)
    fetched = kubectl("exec", "web", "--", "/pod", "fetch", "http://localhost:8080", namespace=namespace)
    assert fetched.strip() == "hello"


def test_pretend_gpus_are_counted(kube: Kube, namespace: str) -> None:
    with pretend_gpus(kube, 2):
        for name in ("one", "two", "three"):
            manifest = pod(namespace, name)
            manifest["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
            kube.create(manifest)

        def running() -> int:
            return sum(one["status"]["phase"] == "Running" for one in kube.list("v1", "Pod", namespace))

        def refused() -> bool:
            conditions = [c for one in kube.list("v1", "Pod", namespace) for c in one["status"].get("conditions", ())]
            return any("Insufficient nvidia.com/gpu" in condition.get("message", "") for condition in conditions)

        kube.wait("two pods", lambda: running() == 2)
        kube.wait("the scheduler's word on the third", refused)
        assert running() == 2
