"""Pods that tests run. They use the suite's own image, whose modes are in cluster/go/pod/main.go."""

from __future__ import annotations

from typing import Any

from e2e.cluster import Kube
from e2e.cluster.node.containers import PAUSE as IMAGE
from e2e.services import POD_TIMEOUT


def pod(namespace: str, name: str, *arguments: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns a pod that runs the image once with these arguments."""
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "args": list(arguments)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1},
    }


def output(kube: Kube, namespace: str, name: str, *arguments: str) -> str:
    """Runs a pod until it ends and returns its output. Raises AssertionError with the output if the pod failed."""
    made = kube.create(pod(namespace, name, *arguments))

    def phase() -> str:
        now: str = kube.get("v1", "Pod", name, namespace)["status"].get("phase", "")
        return now if now in ("Succeeded", "Failed") else ""

    ended = kube.wait(f"pod {name}", phase, timeout=POD_TIMEOUT)
    text = log(kube, namespace, name)
    kube.delete(made)
    assert ended == "Succeeded", text
    return text


def log(kube: Kube, namespace: str, name: str, **query: Any) -> str:
    """Returns the log of a pod's container. `query` has parameters like `previous`."""
    answer = kube.request("GET", kube.path("v1", "Pod", namespace, name, "log"), **query)
    return str(answer.get("text", answer))  # a log of one line of JSON is an object
