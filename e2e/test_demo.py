"""Test of the first steps of a new user: apply the demo service and run a client in the cluster."""

from __future__ import annotations

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.services import EXAMPLES, POD_TIMEOUT, condition, kubectl, wait_condition


@pytest.mark.smoke
def test_the_demo_service_answers_in_the_cluster(kube: Kube, namespace: str) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "demo-service.yaml"), namespace=namespace)
    wait_condition(kube, namespace, "Ready")

    kubectl("apply", "-f", str(EXAMPLES / "client-job.yaml"), namespace=namespace)
    job = kube.wait(
        "the client's end",
        lambda: ended(kube.get("batch/v1", "Job", "demo-client", namespace)),
        timeout=POD_TIMEOUT,
    )
    # The job may have several pods, because the first can start shortly before the Service is known on the node.
    clients = kube.list("v1", "Pod", namespace, labelSelector="batch.kubernetes.io/job-name=demo-client")
    last = max(clients, key=lambda pod: pod["metadata"]["creationTimestamp"])["metadata"]["name"]
    answers = kubectl("logs", last, namespace=namespace).split("\n")
    assert condition(job, "Complete"), answers
    assert [line for line in answers if "42" in line] == answers[:2], answers  # complete, then streamed


def ended(job: Obj) -> Obj | None:
    return job if condition(job, "Complete") or condition(job, "Failed") else None
