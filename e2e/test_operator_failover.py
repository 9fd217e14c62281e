"""Tests of leaders that are killed or frozen: another pod completes the work, with the same result."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.host import audit_log, pod_of, requests, signal_container
from e2e.listing import essence, everything
from e2e.release import ACCOUNT, NAMESPACE, Release, leader, operators
from e2e.services import API, KIND, POD_TIMEOUT, condition, demo

SERVICES = 24
INTERRUPTED = 18  # the leader is stopped when this many exist: some are in progress, others are created later
UNNAMED = {"Endpoints", "EndpointSlice"}  # not compared: the controller-manager creates these, some with random names


@pytest.fixture(autouse=True)
def _on_this_machine() -> None:
    if not audit_log().exists():
        pytest.skip("needs a node whose processes and audit log are at hand: a cluster that `up` started")


@pytest.fixture
def namespaces(kube: Kube, namespace: str) -> Iterator[tuple[str, str]]:
    """Yields two namespaces: one for an undisturbed leader, and one for a leader that is killed or frozen."""
    other = kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{namespace}-2"}})
    yield namespace, other["metadata"]["name"]
    kube.delete(other)


def create(kube: Kube, namespace: str, first: int = 0, end: int = SERVICES) -> None:
    """Creates suspended services, which have no pods but every other child."""
    for number in range(first, end):
        kube.create(demo(namespace, f"s{number}", {"suspend": True, "networkPolicy": {}}))


def create_and_stop(kube: Kube, namespace: str, number: int) -> Obj:
    """Creates services, and signals the leader after it has started to reconcile them. Returns the leader's pod."""
    signaled = the_leader(kube)
    create(kube, namespace, 0, 2)
    kube.wait("it has begun", lambda: accepted(kube, namespace) == 2)
    create(kube, namespace, 2, INTERRUPTED)
    signal_container(signaled, number)
    print(f"{signal.Signals(number).name} with {accepted(kube, namespace)} of {INTERRUPTED} services done")
    create(kube, namespace, INTERRUPTED)
    return signaled


def accepted(kube: Kube, namespace: str) -> int:
    """Returns the number of services that the operator has accepted."""
    return sum(condition(one, "Accepted").get("status") == "True" for one in kube.list(API, KIND, namespace))


def all_accepted(kube: Kube, namespace: str) -> None:
    kube.wait("all are accepted", lambda: accepted(kube, namespace) == SERVICES, timeout=POD_TIMEOUT)


def state(kube: Kube, namespace: str) -> dict[tuple[str, str], Any]:
    """Returns all objects of a namespace without the members that differ between two equal objects.

    The namespace's name is replaced by a fixed one.
    """
    return {
        (kind, name): json.loads(json.dumps(essence(obj)).replace(namespace, "NAMESPACE"))
        for (_, kind, _, name), obj in everything(kube, namespace).items()
        if kind not in UNNAMED
    }


def same_state(kube: Kube, namespace: str, other: str) -> None:
    """Waits until both namespaces have the same state, because other controllers may still be at work."""
    with contextlib.suppress(TimeoutError):
        kube.wait("the same state", lambda: state(kube, namespace) == state(kube, other), timeout=POD_TIMEOUT)
    assert state(kube, namespace) == state(kube, other)


def stale_writes(namespace: str, after: int, stopped: Obj) -> list[str]:
    """Returns the stopped leader's writes in a namespace after the first one of another pod, in order.

    Asserts that exactly one other pod wrote.
    """
    events = [e for e in requests(ACCOUNT, after) if e["verb"] in ("create", "patch", "delete", "update")]
    events = [e for e in events if e["objectRef"].get("namespace") == namespace]
    events.sort(key=lambda event: event["requestReceivedTimestamp"])
    name, pods = stopped["metadata"]["name"], [pod_of(event) for event in events]
    assert pods[0] == name
    assert len(set(pods)) == 2
    takeover = next(i for i, pod in enumerate(pods) if pod != name)
    return [f"{e['verb']} {e['requestURI']}" for e in events[takeover:] if pod_of(e) == name]


def restarts(pod: Obj) -> int:
    count: int = pod["status"]["containerStatuses"][0]["restartCount"]
    return count


def the_leader(kube: Kube) -> Obj:
    return kube.wait("a leader", lambda: leader(kube))


def another_leads(kube: Kube, before: Obj) -> float:
    """Waits until another pod leads. Returns the seconds that took."""
    start = time.monotonic()

    def other() -> bool:
        now = leader(kube)
        return now is not None and now["metadata"]["name"] != before["metadata"]["name"]

    kube.wait("another leader", other, timeout=POD_TIMEOUT)
    return time.monotonic() - start


@pytest.mark.smoke
def test_another_leader_completes_the_work_of_a_killed_one(kube: Kube, namespaces: tuple[str, str]) -> None:
    undisturbed, disturbed = namespaces
    create(kube, undisturbed)
    all_accepted(kube, undisturbed)
    log = audit_log().stat().st_size
    killed = create_and_stop(kube, disturbed, signal.SIGKILL)
    kube.delete(killed, gracePeriodSeconds=0)  # otherwise its container restarts in the same pod and may lead again
    print(f"another leads after {another_leads(kube, killed):.1f} s")
    all_accepted(kube, disturbed)
    same_state(kube, disturbed, undisturbed)
    assert stale_writes(disturbed, log, killed) == []


def test_a_frozen_leader_of_three_sends_a_single_write_or_none_after_it_resumes(
    kube: Kube, namespaces: tuple[str, str], release: Release
) -> None:
    """The frozen replica resumes while it reconciles, and still assumes that it leads."""
    release.upgrade({"replicas": 3})
    undisturbed, disturbed = namespaces
    create(kube, undisturbed)
    all_accepted(kube, undisturbed)
    log = audit_log().stat().st_size
    assert len(operators(kube)) == 3
    frozen = create_and_stop(kube, disturbed, signal.SIGSTOP)
    try:
        print(f"another leads after {another_leads(kube, frozen):.1f} s")
    finally:
        signal_container(frozen, signal.SIGCONT)
    all_accepted(kube, disturbed)
    same_state(kube, disturbed, undisturbed)
    # The leader may have been frozen between the check of the Lease and the send of one request.
    stale = stale_writes(disturbed, log, frozen)
    assert len(stale) <= 1, stale

    def restarted() -> bool:
        now = kube.get("v1", "Pod", frozen["metadata"]["name"], NAMESPACE)
        return restarts(now) > restarts(frozen)

    kube.wait("the frozen one's end by itself when it woke", restarted, timeout=POD_TIMEOUT)
