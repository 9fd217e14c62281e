"""What a newcomer does: install the chart, apply the demo service, and get answers from a client in the cluster."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj

EXAMPLES = Path(__file__).parents[1] / "examples"


def kubectl(*arguments: str, namespace: str) -> str:
    """kubectl's stdout; AssertionError with its stderr when it fails."""
    command = ["kubectl", "--namespace", namespace, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def condition(obj: Obj, kind: str) -> Obj:
    """A condition by its type, {} where there is none."""
    return next((one for one in obj.get("status", {}).get("conditions", ()) if one["type"] == kind), {})


@pytest.mark.timeout(600)
def test_the_demo_service_answers_in_the_cluster(kube: Kube, namespace: str) -> None:
    start = time.monotonic()
    kubectl("apply", "-f", str(EXAMPLES / "demo-service.yaml"), namespace=namespace)

    def ready() -> bool:
        service = kube.get("serving.unmask.dev/v1alpha1", "DiffusionLMService", "demo", namespace)
        return condition(service, "Ready").get("status") == "True"

    try:
        kube.wait("Ready", ready, timeout=240)
    except TimeoutError:
        pytest.fail(kubectl("describe", "dlms,pods", namespace=namespace))
    print(f"demo service Ready after {time.monotonic() - start:.1f} s")

    kubectl("apply", "-f", str(EXAMPLES / "client-job.yaml"), namespace=namespace)
    job = kube.wait(
        "the client's end", lambda: ended(kube.get("batch/v1", "Job", "demo-client", namespace)), timeout=240
    )
    answers = kubectl("logs", "job/demo-client", namespace=namespace).split("\n")
    assert condition(job, "Complete"), answers
    assert [line for line in answers if "42" in line] == answers[:2], answers  # plain, then streamed


def ended(job: Obj) -> Obj | None:
    return job if condition(job, "Complete") or condition(job, "Failed") else None
