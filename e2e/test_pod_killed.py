"""A pod dies under load: requests that were with it fail, and say so; all others are served by the second pod."""

from __future__ import annotations

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.load import CLIENTS, Load, load
from e2e.services import condition, demo, get, kubectl, pods, wait_condition

FORGOTTEN = 5.0  # seconds in which a cluster may still send requests to a dead pod: the kubelet looks once a second
BROKEN = ("EOF", "connection reset", "connection refused", "broke off")  # what a client sees of a process that died
# Ends the engine's first process, as running out of memory would: nothing of a drain runs.
CRASH = "import os, pathlib as p; os.kill(min(int(d.name) for d in p.Path('/proc').glob('[0-9]*') " + (
    "if b'runtime.server' in (d / 'cmdline').read_bytes()), 9)"
)


def serving(kube: Kube, namespace: str) -> list[Obj]:
    """The service's two pods once both are Ready and it says so; else nothing."""
    service, found = get(kube, namespace), pods(kube, namespace)
    ready = [pod for pod in found if condition(pod, "Ready").get("status") == "True"]
    whole = len(found) == len(ready) == service["status"].get("readyReplicas") == 2
    return ready if whole and condition(service, "Ready")["status"] == "True" else []


def failed_since(done: float, before: int, under: Load) -> int:
    """How many requests failed beyond the `before` first; only what a kill that was done at `done` explains may."""
    report = under.wait_requests(100)
    for one in report.failures[before:]:
        print(one)
        assert one.started <= one.ended <= done + FORGOTTEN, one
        assert any(words in one.cause for words in BROKEN), one
    return report.failed - before


@pytest.mark.timeout(600)
def test_only_requests_of_the_dead_pod_fail(kube: Kube, namespace: str) -> None:
    # With one process namespace for the whole pod the engine's process is no init, which nothing in a pod can kill.
    spec = {"replicas": 2, "podTemplate": {"spec": {"shareProcessNamespace": True}}}
    kube.create(demo(namespace, spec=spec))
    wait_condition(kube, namespace)
    victim = pods(kube, namespace)[0]["metadata"]
    with load(kube, namespace) as under:
        assert not under.report().failed
        kubectl("exec", victim["name"], "--", "python", "-c", CRASH, namespace=namespace)
        done = under.report().seconds

        def restarted() -> bool:
            pod = kube.get("v1", "Pod", victim["name"], namespace)
            return pod["status"]["containerStatuses"][0]["restartCount"] == 1 and bool(serving(kube, namespace))

        kube.wait("the pod's second life", restarted, timeout=180)
        crashed = failed_since(done, 0, under)
        assert 0 < crashed <= CLIENTS

        kubectl("delete", "pod", victim["name"], "--grace-period=0", "--force", namespace=namespace)
        done = under.report().seconds

        def replaced() -> bool:
            return victim["uid"] not in {pod["metadata"]["uid"] for pod in serving(kube, namespace)} != set()

        kube.wait("another pod in its place", replaced, timeout=180)
        assert failed_since(done, crashed, under) <= CLIENTS
