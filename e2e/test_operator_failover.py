"""Leaders that end without a word, or freeze and come back: the work is done once, and as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.host import audit_log, pod_of, requests, signal_container
from e2e.listing import essence, everything
from e2e.release import NAMESPACE, RELEASE, Release, leader, operators
from e2e.services import API, KIND, condition, demo

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
SERVICES = 24  # enough that a leader is killed long before it has done with them
UNNAMED = {"Endpoints", "EndpointSlice"}  # the controller-manager makes these, under random names


@pytest.fixture(autouse=True)
def _on_this_machine() -> None:
    if not audit_log().exists():
        pytest.skip("needs a node whose processes and audit log are at hand: a cluster that `up` started")


@pytest.fixture
def namespaces(kube: Kube, namespace: str) -> Iterator[tuple[str, str]]:
    """Two: one where nothing happens to the leader, and one where something does."""
    other = kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{namespace}-2"}})
    yield namespace, other["metadata"]["name"]
    kube.delete(other)


def create(kube: Kube, namespace: str) -> None:
    """Services without pods: they have every other child."""
    for number in range(SERVICES):
        kube.create(demo(namespace, f"s{number}", {"suspend": True, "networkPolicy": {}}))


def accepted(kube: Kube, namespace: str) -> int:
    """How many services the operator has done with."""
    return sum(condition(one, "Accepted").get("status") == "True" for one in kube.list(API, KIND, namespace))


def all_accepted(kube: Kube, namespace: str, timeout: float) -> None:
    kube.wait("all are accepted", lambda: accepted(kube, namespace) == SERVICES, timeout=timeout)


def state(kube: Kube, namespace: str) -> dict[tuple[str, str], Any]:
    """All that is in a namespace, but for what no two lives share, and the namespace's name."""
    return {
        (kind, name): json.loads(json.dumps(essence(obj)).replace(namespace, "NAMESPACE"))
        for (_, kind, _, name), obj in everything(kube, namespace).items()
        if kind not in UNNAMED
    }


def same_state(kube: Kube, namespace: str, other: str) -> None:
    """Once the controllers have done their part, too."""
    with contextlib.suppress(TimeoutError):
        kube.wait("the same state", lambda: state(kube, namespace) == state(kube, other), timeout=10)
    assert state(kube, namespace) == state(kube, other)


def writers(namespace: str, after: int) -> list[str]:
    """The pods of the operator that wrote objects of a namespace, in the order of their turns."""
    events = [e for e in requests(ACCOUNT, after) if e["verb"] in ("create", "patch", "delete", "update")]
    events = [e for e in events if e["objectRef"].get("namespace") == namespace]
    events.sort(key=lambda event: event["requestReceivedTimestamp"])
    return [pod for pod, _ in groupby(pod_of(event) for event in events)]


def the_leader(kube: Kube) -> Obj:
    return kube.wait("a leader", lambda: leader(kube))


def another_leads(kube: Kube, before: Obj, timeout: float = 40) -> float:
    """Wait for it; the seconds that took."""
    start = time.monotonic()

    def other() -> bool:
        now = leader(kube)
        return now is not None and now["metadata"]["name"] != before["metadata"]["name"]

    kube.wait("another leader", other, timeout=timeout)
    return time.monotonic() - start


@pytest.mark.timeout(300)
def test_a_leader_killed_in_the_middle_is_followed_as_if_nothing_had_happened(
    kube: Kube, namespaces: tuple[str, str]
) -> None:
    undisturbed, disturbed = namespaces
    create(kube, undisturbed)
    all_accepted(kube, undisturbed, timeout=60)
    log, killed = audit_log().stat().st_size, the_leader(kube)
    create(kube, disturbed)
    kube.wait("some are there", lambda: accepted(kube, disturbed) >= 2)
    signal_container(killed, signal.SIGKILL)
    done = accepted(kube, disturbed)
    assert done < SERVICES, "it was too quick to be killed in the middle"
    took = another_leads(kube, killed)
    print(f"killed with {done} of {SERVICES} services done; another leads after {took:.1f} s")
    all_accepted(kube, disturbed, timeout=60)
    same_state(kube, disturbed, undisturbed)
    turns = writers(disturbed, log)
    assert (turns[0], len(turns)) == (killed["metadata"]["name"], 2), turns


@pytest.mark.timeout(300)
def test_of_three_one_writes_also_after_it_was_frozen(
    kube: Kube, namespaces: tuple[str, str], release: Release
) -> None:
    """The frozen one wakes up in the middle of its work and in the belief that it leads."""
    release.upgrade({"replicas": 3})
    undisturbed, disturbed = namespaces
    create(kube, undisturbed)
    all_accepted(kube, undisturbed, timeout=60)
    log, frozen = audit_log().stat().st_size, the_leader(kube)
    assert len(operators(kube)) == 3
    create(kube, disturbed)
    kube.wait("some are there", lambda: accepted(kube, disturbed) >= 2)
    signal_container(frozen, signal.SIGSTOP)
    try:
        done = accepted(kube, disturbed)
        assert done < SERVICES, "it was too quick to be frozen in the middle"
        took = another_leads(kube, frozen)
    finally:
        signal_container(frozen, signal.SIGCONT)
    print(f"frozen with {done} of {SERVICES} services done; another leads after {took:.1f} s")
    all_accepted(kube, disturbed, timeout=60)
    same_state(kube, disturbed, undisturbed)
    turns = writers(disturbed, log)
    assert (turns[0], len(turns)) == (frozen["metadata"]["name"], 2), turns
    restarted = kube.get("v1", "Pod", frozen["metadata"]["name"], NAMESPACE)["status"]["containerStatuses"][0]
    assert restarted["restartCount"] + len(restarted["lastState"]) >= 1, "the frozen one ended by itself when it woke"
