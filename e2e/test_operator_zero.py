"""Tests of scale to zero: services sleep and wake without a failed request, also if a part of it is replaced meanwhile.

The activator is not part of the suite's release, so the tests upgrade it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.load import load
from e2e.release import NAMESPACE, RELEASE, Release, leader
from e2e.scripts import STUBS, Client
from e2e.services import POD_TIMEOUT, condition, demo, get, is_ready, kubectl, pods, wait_condition

FIRST = 30  # simultaneous first requests
ACTIVATOR = f"{RELEASE}-activator"
IDLE_SECONDS = 60
ZERO = {
    "minReplicas": 0,
    "maxReplicas": 1,
    "pollingIntervalSeconds": 1,
    "zero": {"idleSeconds": IDLE_SECONDS, "holdSeconds": 600},
}


@pytest.fixture
def sleeper(kube: Kube, namespace: str, release: Release) -> Client:
    """Creates a service that scales to zero and waits for its first pod. Returns a client of it."""
    release.upgrade({"activator.enabled": True})
    kube.create(demo(namespace, spec={"autoscaling": ZERO}))
    client = Client(kube, namespace)
    wait_condition(kube, namespace, reason="Ready")
    return client


def wait_asleep(kube: Kube, namespace: str) -> None:
    wait_condition(kube, namespace, reason="Asleep")
    kube.wait("no pod", lambda: not pods(kube, namespace), timeout=POD_TIMEOUT)


def burst(namespace: str, count: int = FIRST) -> list[tuple[int, float, str]]:
    """Sends requests at once. Returns the status, the seconds and the error of each."""
    script = (STUBS / "burst.py").read_text()
    output = kubectl("exec", "client", "--", "python", "-c", script, "demo", str(count), namespace=namespace)
    return [(status, seconds, error) for status, seconds, error in json.loads(output)]


def activators(kube: Kube) -> list[Obj]:
    return kube.list("v1", "Pod", NAMESPACE, labelSelector=f"app.kubernetes.io/name={ACTIVATOR}")


def nothing(kube: Kube, namespace: str) -> None:
    pass


def kill_operator(kube: Kube, namespace: str) -> None:
    """Deletes the leader without its grace period, once the service has been woken."""
    kube.wait("woken", lambda: get(kube, namespace)["spec"]["replicas"], timeout=POD_TIMEOUT)
    if pod := leader(kube):
        name = pod["metadata"]["name"]
        kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false", namespace=NAMESPACE)


def replace_activators(kube: Kube, namespace: str) -> None:
    """Deletes the pods of the activator that hold requests. They continue with these."""
    kube.wait("woken", lambda: get(kube, namespace)["spec"]["replicas"], timeout=POD_TIMEOUT)
    for pod in activators(kube):
        kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false", namespace=NAMESPACE)


@pytest.mark.parametrize("disturb", [nothing, kill_operator, replace_activators])
@pytest.mark.usefixtures("sleeper")
def test_first_requests_wake_a_service_and_none_fails(
    kube: Kube, namespace: str, disturb: Callable[[Kube, str], None]
) -> None:
    wait_asleep(kube, namespace)
    assert get(kube, namespace)["spec"]["replicas"] == 0
    disturber = threading.Thread(target=disturb, args=(kube, namespace))
    disturber.start()
    answers = burst(namespace)
    disturber.join()
    assert [status for status, _, _ in answers] == [200] * FIRST, answers
    print(f"first answer after {min(seconds for _, seconds, _ in answers):.1f} s")
    wait_condition(kube, namespace, reason="Ready")
    kube.wait("the Service leads to the pod alone", lambda: not slices(kube, namespace), timeout=POD_TIMEOUT)
    reasons = [event["reason"] for event in kube.list("events.k8s.io/v1", "Event", namespace)]
    assert {"Asleep", "Waking"} <= set(reasons)


def slices(kube: Kube, namespace: str) -> list[Obj]:
    ours = "endpointslice.kubernetes.io/managed-by=unmask-operator"
    return kube.list("discovery.k8s.io/v1", "EndpointSlice", namespace, labelSelector=ours)


@pytest.mark.usefixtures("sleeper")
def test_requests_at_the_moment_of_falling_asleep_do_not_fail(kube: Kube, namespace: str) -> None:
    with load(kube, namespace, clients=1, pause=f"{IDLE_SECONDS + 3}s") as seldom:
        seldom.wait_requests(5)
        report = seldom.stop()
    assert not report.failed, report.failures


def test_a_service_is_woken_when_the_activator_is_away(kube: Kube, namespace: str, sleeper: Client) -> None:
    wait_asleep(kube, namespace)
    assert sleeper.send("http://demo/v1/models")[0] == 200
    assert get(kube, namespace)["spec"]["replicas"] == 0, "a request for the models woke the service"
    kubectl("scale", f"deployment/{ACTIVATOR}", "--replicas=0", namespace=NAMESPACE)
    wait_condition(kube, namespace, "ScalingReady", "False", reason="ActivatorUnavailable")
    wait_condition(kube, namespace, reason="Ready")
    assert any(map(is_ready, pods(kube, namespace)))
    kubectl("scale", f"deployment/{ACTIVATOR}", "--replicas=2", namespace=NAMESPACE)
    kube.wait(
        "the cause is gone",
        lambda: condition(get(kube, namespace), "ScalingReady").get("status") == "True",
        timeout=POD_TIMEOUT,
    )
